//! The facts in a thread's `thread.json`, and the thread's name in the mount.

use std::collections::HashMap;
use std::os::fd::OwnedFd;

use rustix::fs::FileType;
use serde::{Deserialize, Serialize};

use super::keep::head::KeptSource;
use super::{AtsfFormat, AtsfLog, AtsfStore, META, thread};
use crate::model::{Timestamp, sanitize_line};
use crate::store::engine::lines::scan::{LogScan, dir_stamp};
use crate::store::engine::lines::table::{LogSource, LogTable};
use crate::store::engine::lines::{LineFormat as _, LogFacts};
use crate::store::fs::{self, Stamp};
use crate::store::{Location, Rejection, confined};

/// The usability of a folder as a thread.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum AtsfThreadState {
    /// The folder has no `thread.json` of this format.
    #[default]
    Foreign,
    /// The thread is usable.
    Usable,
    /// The `thread.json` names this other thread.
    Misnamed(String),
    /// The thread must not be read, for this reason.
    Refused(String),
}

/// The facts about a folder in `.agent/threads/`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AtsfThreadFacts {
    /// The label that distinguishes it from a thread of the same id in an earlier root; empty if there is none.
    pub label: String,
    /// The usability of the folder.
    pub state: AtsfThreadState,
    /// The title.
    pub title: Option<String>,
    /// The time of creation, in milliseconds.
    pub created: i64,
    /// The time of the last update, in milliseconds.
    pub updated: i64,
    /// The stamp of the `thread.json` when it was read.
    pub meta: Stamp,
    /// True if another thread has the plain id of one of its messages.
    pub shared: bool,
    /// The session from which it was kept, if it was.
    pub kept: Option<KeptSource>,
}

impl LogFacts for AtsfThreadFacts {
    fn title(&self) -> Option<&str> {
        Some(self.title.as_deref().unwrap_or_default())
    }

    fn is_shown(&self) -> bool {
        matches!(self.state, AtsfThreadState::Usable | AtsfThreadState::Misnamed(_))
    }

    fn is_ours(&self) -> bool {
        self.state != AtsfThreadState::Foreign
    }

    fn reset_for_reread(&mut self) {
        self.shared = false;
    }

    fn begin_time(&self) -> Timestamp {
        Timestamp::from_millis(self.created)
    }

    fn change_time(&self) -> Option<Timestamp> {
        Some(Timestamp::from_millis(self.updated))
    }
}

/// Finds a thread by its id in the mount, or by the name of its folder there.
pub(super) fn find_thread(table: &LogTable<AtsfFormat>, key: &str) -> Option<u32> {
    let is = |spelled: &dyn Fn(&AtsfLog) -> bool| {
        let mut all = table.iter_numbered().filter(|(_, log)| log.is_listed());
        all.find(|(_, log)| spelled(log)).map(|(n, _)| n)
    };
    let folder = |log: &AtsfLog| format!("{}~{}", log.name, log.facts.label);
    is(&|log| AtsfFormat::log_key(log) == key)
        .or_else(|| is(&|log| !log.facts.label.is_empty() && folder(log) == key))
}

/// Labels threads that have the id of a thread in an earlier root. Returns those whose label changed.
pub(super) fn relabel_threads(table: &mut LogTable<AtsfFormat>) -> Vec<u32> {
    let mut first: HashMap<&str, u32> = HashMap::new();
    for log in table.logs.iter().filter(|log| log.is_shown()) {
        let root = first.entry(&log.name).or_insert(log.root);
        *root = log.root.min(*root);
    }
    let mut changed = Vec::new();
    for (n, log) in table.iter_numbered().filter(|(_, log)| log.is_shown()) {
        let plain = first.get(log.name.as_str()) == Some(&log.root);
        let label = table.roots.get(log.root as usize).map_or("", |root| &root.label);
        let label = if plain { "" } else { label };
        if log.facts.label != label {
            changed.push((n, label.to_owned()));
        }
    }
    for (n, label) in &changed {
        if let Some(log) = table.logs.get_mut(*n as usize) {
            log.facts.label.clone_from(label);
        }
    }
    changed.into_iter().map(|(n, _)| n).collect()
}

/// Updates the facts from a thread's `thread.json`. Returns true if its messages are shown differently.
pub(super) fn refresh_thread(scan: &mut LogScan<'_, AtsfFormat>, n: u32) -> bool {
    let Some(old) = scan.store.table.read().get(n).cloned() else { return false };
    let mut new = old.clone();
    refresh_facts(scan, n, &mut new);
    let refused = |log: &AtsfLog| match &log.facts.state {
        AtsfThreadState::Refused(why) if !log.gone => Some(why.clone()),
        _ => None,
    };
    if refused(&old) != refused(&new) {
        let source = LogSource::Head(n).number();
        scan.sink.begin_rescan(&[source]);
        scan.store.table.write().set_log(n, new.clone());
        if let Some(reason) = refused(&new) {
            let refused = &mut vec![build_rejection(source, &new.facts, reason)];
            scan.report_found(&new, Some(META), &mut Vec::new(), refused);
        }
        scan.sink.end_rescan(&[source]);
    }
    let is_other = old.facts.title != new.facts.title || old.facts.kept != new.facts.kept;
    let retitled = old.stamp.is_some() && is_other;
    scan.store.table.write().set_log(n, new);
    retitled
}

fn refresh_facts(scan: &mut LogScan<'_, AtsfFormat>, n: u32, log: &mut AtsfLog) {
    let path = log.path(Some(META));
    scan.store.health.set_fault(&path, None);
    let dir = match scan.open_log_folder(log) {
        Ok(dir) => dir,
        // If a whole project is missing, its threads stay as they were.
        Err(e) if fs::is_absent(&e) && !scan.is_root_missing(log) => {
            log.gone = true;
            return;
        }
        Err(e) => return scan.store.health.note_error(&path, "be read", &e),
    };
    log.gone = false;
    let stamp = match confined::stat(&dir, META) {
        Ok((FileType::RegularFile, stamp)) => stamp,
        Ok((kind, _)) => {
            let what = format!("is skipped: it is {}", confined::describe_type(kind));
            scan.store.health.set_fault(&path, Some(what));
            log.facts.state = AtsfThreadState::Foreign;
            return;
        }
        Err(e) if !fs::is_absent(&e) => return scan.store.health.note_error(&path, "be read", &e),
        Err(_) => {
            // Some programs remove a file before they write it anew.
            if !log.is_shown() || !scan.should_wait(LogSource::Head(n), &dir_stamp(&dir)) {
                log.facts.state = AtsfThreadState::Foreign;
                log.facts.meta = Stamp::default();
            }
            return;
        }
    };
    scan.stop_waiting(LogSource::Head(n));
    if stamp != log.facts.meta {
        match read_thread_file(&dir) {
            Ok((stamp, bytes)) => accept_thread_file(scan.store, log, &path, stamp, &bytes),
            Err(e) => scan.store.health.note_error(&path, "be read", &e),
        }
    }
}

/// Reads the `thread.json` in a thread's folder.
pub(super) fn read_thread_file(dir: &OwnedFd) -> std::io::Result<(Stamp, Vec<u8>)> {
    confined::read_whole(&confined::open_file(dir, META)?, thread::MAX_BYTES + 1)
}

fn accept_thread_file(
    store: &AtsfStore,
    log: &mut AtsfLog,
    path: &str,
    stamp: Stamp,
    bytes: &[u8],
) {
    let facts = &mut log.facts;
    match thread::parse(bytes) {
        thread::AtsfThreadFile::Thread(meta) => {
            facts.state = match meta.id {
                Some(id) if id == log.name => AtsfThreadState::Usable,
                id => AtsfThreadState::Misnamed(id.unwrap_or_default()),
            };
            let millis = |time: Option<Timestamp>| time.map(Timestamp::millis);
            facts.title = meta.title;
            facts.created = millis(meta.created).unwrap_or_default();
            facts.updated = millis(meta.updated).unwrap_or(facts.created);
            facts.kept = meta.kept.or_else(|| store.format.kept_list.find_thread(&log.name));
        }
        thread::AtsfThreadFile::Foreign => facts.state = AtsfThreadState::Foreign,
        thread::AtsfThreadFile::Refused(why) => facts.state = AtsfThreadState::Refused(why),
        thread::AtsfThreadFile::Broken(why) => {
            // The old facts stay; the next scan reads the file again.
            let what = format!("cannot be read as a thread now: {}", sanitize_line(&why));
            return store.health.set_fault(path, Some(what));
        }
    }
    facts.meta = stamp;
}

fn build_rejection(source: u32, thread: &AtsfThreadFacts, reason: String) -> Rejection {
    let len = u32::try_from(thread.meta.size).unwrap_or(u32::MAX);
    Rejection {
        at: Location { source, offset: 0, len },
        reason,
        time: thread.meta.modified(),
        ..Rejection::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::atsf::LOG;
    use crate::store::engine::lines::table::LogRoot;

    fn root(label: &str) -> LogRoot {
        LogRoot { path: format!("/{label}").into(), label: label.into(), here: true }
    }

    #[test]
    fn the_same_id_in_two_roots_is_two_threads() {
        let mut table = LogTable::<AtsfFormat>::default();
        table.roots = vec![root(""), root("wt")];
        let [b, a, other] =
            [(1, "t"), (0, "t"), (1, "u")].map(|(r, n)| table.assign_number(r, n).unwrap());
        for log in &mut table.logs {
            (log.gone, log.facts.state) = (false, AtsfThreadState::Usable);
        }
        assert_eq!(relabel_threads(&mut table), [b]);
        let key = |table: &LogTable<AtsfFormat>, n| AtsfFormat::log_key(table.get(n).unwrap());
        assert_eq!([a, b, other].map(|n| key(&table, n)), ["t", "t\0wt", "u"]);
        assert_eq!(
            ["t", "t\0wt", "t~wt"].map(|spelled| find_thread(&table, spelled)),
            [Some(a), Some(b), Some(b)]
        );
        let path = table.raw_path(table.get(b).unwrap(), Some(LOG));
        assert_eq!(path, "wt/t/messages.jsonl");
        // Without the other thread it has the plain id again.
        table.logs[a as usize].gone = true;
        assert_eq!(relabel_threads(&mut table), [b]);
        assert_eq!(key(&table, b), "t");
        let again = LogTable::<AtsfFormat>::from_bytes(&table.to_bytes()).unwrap();
        for (log, saved) in again.logs.iter().zip(&table.logs) {
            assert_eq!((&log.name, log.root, &log.facts), (&saved.name, saved.root, &saved.facts));
        }
        assert_eq!(again.find_log(1, "u"), Some(other));
        assert!(LogTable::<AtsfFormat>::from_bytes(b"junk").is_none());
    }
}
