//! A project that takes sessions, and what it has of sessions that are gone.
//!
//! When a session is gone, its forks count the lines that they copied as theirs. The kept thread of the session has
//! them already, so a keep of a fork leaves them out.

use std::collections::HashSet;
use std::io;
use std::path::{Path, PathBuf};

use super::super::line::parse;
use super::super::roots::{AGENT, THREADS};
use super::super::{LOG, META, thread};
use super::list::KeptList;
use crate::model::Timestamp;
use crate::store::confined;
use crate::store::engine::lines::log::{LineRun, read_lines, split_lines};
use crate::store::fs::Stamp;

/// A project that takes sessions.
#[derive(Debug)]
pub struct KeptProject {
    pub(super) folder: PathBuf,
    /// The file with the kept threads.
    pub(super) list: PathBuf,
    listed: KeptList,
    /// The threads of sessions that are gone and whose logs are not read yet, by the times of their last changes.
    unread: Vec<(Timestamp, String)>,
    /// The ids of messages in the logs that are read.
    ids: HashSet<String>,
}

impl KeptProject {
    /// Opens the project in a folder. `list` is the file with the kept threads, and `is_there` returns true for the ids
    /// of sessions that are not gone.
    pub fn open(folder: PathBuf, list: PathBuf, is_there: impl Fn(&str) -> bool) -> Self {
        let listed = KeptList::default();
        listed.set_folder(list.parent().unwrap_or(Path::new("/")));
        let threads = folder.join(AGENT).join(THREADS);
        let entries = std::fs::read_dir(&threads).into_iter().flatten().flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        let changed =
            |name: &String| Stamp::from_path(&threads.join(name).join(LOG)).ok().flatten();
        let gone = names.filter(|name| !is_there(name));
        let gone = gone.filter_map(|name| Some((changed(&name)?.modified(), name)));
        let mut unread: Vec<(Timestamp, String)> = gone.collect();
        unread.sort_unstable();
        Self { folder, list, listed, unread, ids: HashSet::new() }
    }

    /// Returns true if there is a folder for a thread.
    pub(super) fn has_thread(&self, name: &str) -> bool {
        self.folder.join(AGENT).join(THREADS).join(name).exists()
    }

    /// Returns true if the thread of a session that is gone has the message with this id and time.
    pub(super) fn has_gone_message(&mut self, id: &str, time: Timestamp) -> bool {
        // A log has no message that is newer than its last change.
        while let Some((_, name)) = self.unread.pop_if(|(changed, _)| *changed >= time) {
            if let Err(error) = self.read_thread(&name) {
                tracing::warn!(%error, thread = name, "a kept thread cannot be read");
            }
        }
        self.ids.contains(id)
    }

    fn read_thread(&mut self, name: &str) -> io::Result<()> {
        let dir = confined::open_dir(&self.folder, &[AGENT, THREADS, name])?;
        let meta = confined::open_file(&dir, META)?;
        let (_, bytes) = confined::read_whole(&meta, thread::MAX_BYTES + 1)?;
        let thread::AtsfThreadFile::Thread(meta) = thread::parse(&bytes) else { return Ok(()) };
        let is_kept = meta.kept.is_some() || self.listed.find_thread(name).is_some();
        if !is_kept || meta.id.as_deref() != Some(name) {
            return Ok(());
        }
        let file = confined::open_file(&dir, LOG)?;
        read_lines(&file, 0, file.metadata()?.len(), |run| {
            let LineRun::Lines(run, offset) = run else { return };
            let lines = split_lines(run, offset);
            let parsed = lines.iter().filter_map(|line| parse(line.strip_bom().0).ok());
            self.ids.extend(parsed.map(|line| line.id.into_owned()));
        })?;
        Ok(())
    }
}
