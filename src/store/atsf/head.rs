//! What is known of a thread from its `thread.json`, and what it is called in the mount.

use std::collections::HashMap;
use std::os::fd::OwnedFd;

use rustix::fs::FileType;
use serde::{Deserialize, Serialize};

use super::{Atsf, Log, META, Threads, thread};
use crate::model::{Timestamp, one_line};
use crate::store::engine::lines::scan::{Scan, stamp_of};
use crate::store::engine::lines::table::{Source, Table};
use crate::store::engine::lines::{Facts, Format as _};
use crate::store::fs::{self, Stamp};
use crate::store::{Location, Rejected, below};

/// Whether a folder is a thread that can be used.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum State {
    /// It has no `thread.json` of this format.
    #[default]
    Foreign,
    /// It is.
    Usable,
    /// Its `thread.json` names another thread, this one.
    Misnamed(String),
    /// It must not be read: why.
    Refused(String),
}

/// What is known of a folder in `.agent/threads/`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Thread {
    /// Tells it from a thread of the same id in an earlier root; empty if there is none.
    pub label: String,
    /// Whether it is a thread.
    pub state: State,
    /// What it is about.
    pub title: Option<String>,
    /// Milliseconds.
    pub created: i64,
    /// Milliseconds.
    pub updated: i64,
    /// The `thread.json` as it was when it was read.
    pub meta: Stamp,
    /// Another thread has the plain id of one of its messages.
    pub shared: bool,
}

impl Facts for Thread {
    fn is_read(&self) -> bool {
        matches!(self.state, State::Usable | State::Misnamed(_))
    }

    fn is_ours(&self) -> bool {
        self.state != State::Foreign
    }

    fn restart(&mut self) {
        self.shared = false;
    }

    fn begun(&self) -> Timestamp {
        Timestamp::from_millis(self.created)
    }

    fn changed(&self) -> Option<Timestamp> {
        Some(Timestamp::from_millis(self.updated))
    }
}

/// The thread of an id as the mount has it, or as its folder there is called.
pub(super) fn by_key(table: &Table<Threads>, key: &str) -> Option<u32> {
    let is = |spelled: &dyn Fn(&Log) -> bool| {
        let mut all = table.numbered().filter(|(_, log)| log.is_listed());
        all.find(|(_, log)| spelled(log)).map(|(n, _)| n)
    };
    let folder = |log: &Log| format!("{}~{}", log.name, log.facts.label);
    is(&|log| Threads::key(log) == key)
        .or_else(|| is(&|log| !log.facts.label.is_empty() && folder(log) == key))
}

/// Gives labels to the threads of one id, but the one in the earliest root; those that have
/// another now.
pub(super) fn relabel(table: &mut Table<Threads>) -> Vec<u32> {
    let mut first: HashMap<&str, u32> = HashMap::new();
    for log in table.logs.iter().filter(|log| log.is_read()) {
        let root = first.entry(&log.name).or_insert(log.root);
        *root = log.root.min(*root);
    }
    let mut changed = Vec::new();
    for (n, log) in table.numbered().filter(|(_, log)| log.is_read()) {
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

/// Brings what is known of a thread's `thread.json` up to date; whether its messages are shown
/// differently.
pub(super) fn look(scan: &mut Scan<'_, Threads>, n: u32) -> bool {
    let Some(old) = scan.store.table.read().get(n).cloned() else { return false };
    let mut new = old.clone();
    look_at(scan, n, &mut new);
    let refused = |log: &Log| match &log.facts.state {
        State::Refused(why) if !log.gone => Some(why.clone()),
        _ => None,
    };
    if refused(&old) != refused(&new) {
        let source = Source::Beside(n).number();
        scan.sink.begin_rescan(&[source]);
        scan.store.table.write().put(n, new.clone());
        if let Some(reason) = refused(&new) {
            let refused = &mut vec![refusal(source, &new.facts, reason)];
            scan.report(&new, Some(META), &mut Vec::new(), refused);
        }
        scan.sink.end_rescan(&[source]);
    }
    let retitled = old.stamp.is_some() && old.facts.title != new.facts.title;
    scan.store.table.write().put(n, new);
    retitled
}

fn look_at(scan: &mut Scan<'_, Threads>, n: u32, log: &mut Log) {
    let path = log.path(Some(META));
    scan.store.health.set(&path, None);
    let dir = match scan.folder(log) {
        Ok(dir) => dir,
        // What was in a project that is gone as a whole stays.
        Err(e) if fs::is_absent(&e) && !scan.is_away(log) => {
            log.gone = true;
            return;
        }
        Err(e) => return scan.store.health.cannot(&path, "be read", &e),
    };
    log.gone = false;
    let stamp = match below::look(&dir, META) {
        Ok((FileType::RegularFile, stamp)) => stamp,
        Ok((kind, _)) => {
            let what = format!("is skipped: it is {}", below::describe_type(kind));
            scan.store.health.set(&path, Some(what));
            log.facts.state = State::Foreign;
            return;
        }
        Err(e) if !fs::is_absent(&e) => return scan.store.health.cannot(&path, "be read", &e),
        Err(_) => {
            // Some programs remove a file before they write it anew.
            if !log.is_read() || !scan.must_wait(Source::Beside(n), &stamp_of(&dir)) {
                log.facts.state = State::Foreign;
                log.facts.meta = Stamp::default();
            }
            return;
        }
    };
    scan.believe(Source::Beside(n));
    if stamp != log.facts.meta {
        match read(&dir) {
            Ok((stamp, bytes)) => take(scan.store, log, &path, stamp, &bytes),
            Err(e) => scan.store.health.cannot(&path, "be read", &e),
        }
    }
}

/// The bytes of the `thread.json` in a thread's folder.
pub(super) fn read(dir: &OwnedFd) -> std::io::Result<(Stamp, Vec<u8>)> {
    below::read_whole(&below::open_file(dir, META)?, thread::MAX_BYTES + 1)
}

fn take(store: &Atsf, log: &mut Log, path: &str, stamp: Stamp, bytes: &[u8]) {
    let facts = &mut log.facts;
    match thread::read(bytes) {
        thread::Reading::Thread(meta) => {
            facts.state = match meta.id {
                Some(id) if id == log.name => State::Usable,
                id => State::Misnamed(id.unwrap_or_default()),
            };
            let millis = |time: Option<Timestamp>| time.map(Timestamp::millis);
            facts.title = meta.title;
            facts.created = millis(meta.created).unwrap_or_default();
            facts.updated = millis(meta.updated).unwrap_or(facts.created);
        }
        thread::Reading::Foreign => facts.state = State::Foreign,
        thread::Reading::Refused(why) => facts.state = State::Refused(why),
        thread::Reading::Broken(why) => {
            // What it was before still holds; it is read again with the next look.
            let what = format!("cannot be read as a thread now: {}", one_line(&why));
            return store.health.set(path, Some(what));
        }
    }
    facts.meta = stamp;
}

fn refusal(source: u32, thread: &Thread, reason: String) -> Rejected {
    let len = u32::try_from(thread.meta.size).unwrap_or(u32::MAX);
    Rejected {
        at: Location { source, offset: 0, len },
        reason,
        time: thread.meta.modified(),
        ..Rejected::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::atsf::LOG;
    use crate::store::engine::lines::table::Root;

    fn root(label: &str) -> Root {
        Root { path: format!("/{label}").into(), label: label.into(), here: true }
    }

    #[test]
    fn the_same_id_in_two_roots_is_two_threads() {
        let mut table = Table::<Threads>::default();
        table.roots = vec![root(""), root("wt")];
        let [b, a, other] =
            [(1, "t"), (0, "t"), (1, "u")].map(|(r, n)| table.number(r, n).unwrap());
        for log in &mut table.logs {
            (log.gone, log.facts.state) = (false, State::Usable);
        }
        assert_eq!(relabel(&mut table), [b]);
        let key = |table: &Table<Threads>, n| Threads::key(table.get(n).unwrap());
        assert_eq!([a, b, other].map(|n| key(&table, n)), ["t", "t\0wt", "u"]);
        assert_eq!(
            ["t", "t\0wt", "t~wt"].map(|spelled| by_key(&table, spelled)),
            [Some(a), Some(b), Some(b)]
        );
        let path = table.raw_path(table.get(b).unwrap(), Some(LOG));
        assert_eq!(path, "wt/t/messages.jsonl");
        // Alone it is plain again.
        table.logs[a as usize].gone = true;
        assert_eq!(relabel(&mut table), [b]);
        assert_eq!(key(&table, b), "t");
        let again = Table::<Threads>::restore(&table.save()).unwrap();
        for (log, saved) in again.logs.iter().zip(&table.logs) {
            assert_eq!((&log.name, log.root, &log.facts), (&saved.name, saved.root, &saved.facts));
        }
        assert_eq!(again.find(1, "u"), Some(other));
        assert!(Table::<Threads>::restore(b"junk").is_none());
    }
}
