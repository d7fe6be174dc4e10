//! Secrets that are in no place but a file of their owner.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use crate::common::{Bed, Mount, run};

/// A watch over the processes of a bed, which must show no secret; at the end it searches all other places.
pub(crate) struct Secrets {
    all: Vec<Vec<u8>>,
    stop: Arc<AtomicBool>,
    seen: Option<JoinHandle<BTreeSet<String>>>,
}

impl Secrets {
    /// Starts the watch. Everything that this bed starts logs all it can.
    pub(crate) fn watch(bed: &mut Bed, secrets: &[&str]) -> Self {
        bed.env.push(("MSGFS_LOG".into(), "trace".into()));
        let spelled =
            |secret: &&str| [secret.as_bytes().to_vec(), STANDARD.encode(secret).into_bytes()];
        let all: Vec<Vec<u8>> = secrets.iter().flat_map(spelled).collect();
        let stop = Arc::new(AtomicBool::new(false));
        let (stopped, mine) = (Arc::clone(&stop), all.clone());
        let home = format!("HOME={}", bed.path("home").display()).into_bytes();
        let seen = std::thread::spawn(move || {
            let mut seen = BTreeSet::new();
            while !stopped.load(Ordering::SeqCst) {
                seen.extend(processes(&home, &mine));
                std::thread::sleep(Duration::from_millis(20));
            }
            seen
        });
        Self { all, stop, seen: Some(seen) }
    }

    /// Searches all output, logs, shown files and written files, except the files that may hold the secrets. Asserts
    /// that only the owner can read the files of links.
    #[track_caller]
    pub(crate) fn are_nowhere_but(mut self, bed: &Bed, m: &Mount, me: &str, may: &[PathBuf]) {
        let mut texts: Vec<(PathBuf, Vec<u8>)> = Vec::new();
        for args in [
            &["status"][..],
            &["status", "--json"],
            &["link"],
            &["link", "status", "--json"],
            &["doctor"],
            &["stores"],
            &["ls"],
        ] {
            let out = run(bed.msgfs([&["--me", me][..], args].concat()), None);
            texts.push((args.join(" ").into(), out.said().into_bytes()));
        }
        let mut left = vec![bed.path("")];
        while let Some(path) = left.pop() {
            let Ok(meta) = path.symlink_metadata() else { continue };
            if meta.is_dir() {
                left.extend(fs::read_dir(&path).into_iter().flatten().flatten().map(|e| e.path()));
            } else if meta.is_file() && !may.contains(&path) {
                texts.push((path.clone(), fs::read(&path).unwrap_or_default()));
            }
        }
        let links = bed.state(me).join("links");
        let is_private = |path: &Path| {
            !path.starts_with(&links)
                || path.metadata().is_ok_and(|m| m.mode().trailing_zeros() >= 6)
        };
        for (path, bytes) in &texts {
            let line = bytes.split(|b| *b == b'\n').find(|line| holds(line, &self.all));
            let line = line.map(String::from_utf8_lossy);
            assert!(line.is_none(), "{} holds a secret: {line:?}", path.display());
            assert!(is_private(path) || !path.exists(), "{} is for others to read", path.display());
        }
        assert!(
            texts.iter().any(|(path, _)| path.starts_with(m.path(""))),
            "the mount was looked through"
        );
        self.stop.store(true, Ordering::SeqCst);
        let seen = self.seen.take().unwrap().join().unwrap();
        assert!(seen.is_empty(), "{seen:?}");
    }
}

impl Drop for Secrets {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
    }
}

fn holds(bytes: &[u8], all: &[Vec<u8>]) -> bool {
    all.iter().any(|secret| bytes.windows(secret.len()).any(|w| w == secret))
}

/// Returns the texts that the processes of a home show, if they hold a secret.
fn processes(home: &[u8], all: &[Vec<u8>]) -> Vec<String> {
    let mut seen = Vec::new();
    for process in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Ok(environ) = fs::read(process.path().join("environ")) else { continue };
        if !environ.split(|b| *b == 0).any(|line| line == home) {
            continue;
        }
        let line = fs::read(process.path().join("cmdline")).unwrap_or_default();
        if line.windows(5).any(|w| w == b"msgfs") && (holds(&line, all) || holds(&environ, all)) {
            seen.push(String::from_utf8_lossy(&line).into_owned());
        }
    }
    seen
}
