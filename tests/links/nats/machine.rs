//! A machine: a folder of logs, a state folder, and a link between the folder and a server.

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use msgfs::link::nats::{self, NatsLink};
use msgfs::link::{HealthBoard, LinkHealth, LinkState, NatsConfig, NatsSettings};
use serde_json::Value;

use super::server::Server;
use crate::soon;

pub(crate) struct Machine {
    pub(crate) root: tempfile::TempDir,
    pub(crate) spec: NatsConfig,
    link: Option<Link>,
}

struct Link {
    nats: Arc<NatsLink>,
    board: Arc<HealthBoard>,
    watch: Option<std::thread::JoinHandle<()>>,
    stop: Arc<AtomicBool>,
}

impl Drop for Link {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(watch) = self.watch.take() {
            let _ = watch.join();
        }
    }
}

/// Returns the configuration of a link of the space `team`.
pub(crate) fn spec(url: &str) -> NatsConfig {
    NatsConfig {
        name: "nats".into(),
        store: "samp".into(),
        settings: NatsSettings {
            url: vec![url.into()],
            space: "team".into(),
            ..NatsSettings::default()
        },
        ..NatsConfig::default()
    }
}

/// Returns a record with its newline.
pub(crate) fn record(writer: &str, n: impl std::fmt::Display) -> String {
    format!(
        "{{\"id\":\"{writer}-{n}\",\"ts\":1700000000,\"from\":\"{writer}\",\"to\":\"b\",\
         \"thread\":\"t\",\"body\":\"number {n}\"}}\n"
    )
}

/// Returns several records.
pub(crate) fn records(writer: &str, range: std::ops::Range<u32>) -> String {
    range.map(|n| record(writer, n)).collect()
}

/// Appends to a file as any program does.
pub(crate) fn append(path: &Path, text: &str) {
    let mut file = OpenOptions::new().create(true).append(true).open(path).unwrap();
    file.write_all(text.as_bytes()).unwrap();
}

impl Machine {
    /// Makes a machine whose link does not run yet.
    pub(crate) fn new(url: &str) -> Self {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("samp")).unwrap();
        Self { root, spec: spec(url), link: None }
    }

    /// Makes a machine whose link runs.
    pub(crate) fn of(server: &Server) -> Self {
        let mut machine = Self::new(&server.url());
        machine.start();
        machine
    }

    pub(crate) fn folder(&self) -> PathBuf {
        self.root.path().join("samp")
    }

    pub(crate) fn state(&self) -> PathBuf {
        self.root.path().join("state")
    }

    /// Returns the folder of the link's own state.
    pub(crate) fn kept(&self) -> PathBuf {
        msgfs::link::shared_links_folder(&self.state()).join("nats")
    }

    /// Starts the link. A loop that examines the folder stands for the watch of a mount.
    pub(crate) fn start(&mut self) {
        let kept = self.kept();
        fs::create_dir_all(&kept).unwrap();
        let board = Arc::new(HealthBoard::new("nats", &kept, "nats"));
        let nats = nats::start(&self.spec, &self.folder(), &kept, Arc::clone(&board));
        let nats = Arc::new(nats.unwrap());
        let stop = Arc::new(AtomicBool::new(false));
        let (folder, told, until) = (self.folder(), Arc::clone(&nats), Arc::clone(&stop));
        let watch = std::thread::spawn(move || {
            let mut before = Vec::new();
            while !until.load(Ordering::Relaxed) {
                let now = look(&folder);
                if now != before {
                    told.notify_all_changed();
                }
                before = now;
                std::thread::sleep(std::time::Duration::from_millis(2));
            }
        });
        self.link = Some(Link { nats, board, watch: Some(watch), stop });
    }

    pub(crate) fn stop(&mut self) {
        if let Some(link) = self.link.take() {
            let nats = Arc::clone(&link.nats);
            drop(link);
            assert_eq!(Arc::strong_count(&nats), 1);
        }
    }

    pub(crate) fn restart(&mut self) {
        self.stop();
        self.start();
    }

    pub(crate) fn log(&self, writer: &str) -> PathBuf {
        self.folder().join(format!("log-{writer}.jsonl"))
    }

    pub(crate) fn write(&self, writer: &str, text: &str) {
        append(&self.log(writer), text);
    }

    pub(crate) fn read(&self, writer: &str) -> String {
        let bytes = fs::read(self.log(writer)).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    #[track_caller]
    pub(crate) fn has(&self, writer: &str, text: &str) {
        let start = std::time::Instant::now();
        while self.read(writer) != text {
            if start.elapsed() > crate::PATIENCE {
                assert_eq!(self.read(writer), text, "{:?}", self.health());
            }
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    }

    /// Waits until the link has saved that the whole log is published. Until then a link that is stopped publishes its
    /// last lines again, because it does not know that the server took them.
    #[track_caller]
    pub(crate) fn has_published(&self, writer: &str) {
        let (journal, len) = (self.kept().join("journal.jsonl"), self.read(writer).len());
        soon("it is saved that the log is published", || {
            let lines = fs::read_to_string(&journal).unwrap_or_default();
            let mut places = lines.lines().filter_map(|l| serde_json::from_str::<Value>(l).ok());
            places.any(|place| place["writer"] == writer && place["end"] == len)
        });
    }

    pub(crate) fn health(&self) -> LinkHealth {
        self.link.as_ref().unwrap().board.health()
    }

    #[track_caller]
    pub(crate) fn connected(&self) {
        soon("the link is connected", || {
            matches!(self.health().state, LinkState::Connected { .. })
        });
    }

    /// Waits until the link reports this.
    #[track_caller]
    pub(crate) fn tells(&self, what: &str) {
        soon(what, || self.told(what));
    }

    /// Returns true if the link reports this.
    pub(crate) fn told(&self, what: &str) -> bool {
        let health = self.health();
        let why = match &health.state {
            LinkState::Waiting { why, .. } | LinkState::Stopped { why } => why.as_str(),
            _ => "",
        };
        why.contains(what) || health.notes.iter().any(|note| note.contains(what))
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Returns names, lengths, inodes and times of a folder's files, so that a change is seen.
fn look(folder: &Path) -> Vec<(std::ffi::OsString, u64, u64, std::time::SystemTime)> {
    use std::os::unix::fs::MetadataExt as _;
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut all: Vec<_> = entries
        .filter_map(|entry| {
            let meta = entry.metadata().ok()?;
            Some((entry.file_name(), meta.len(), meta.ino(), meta.modified().ok()?))
        })
        .collect();
    all.sort();
    all
}
