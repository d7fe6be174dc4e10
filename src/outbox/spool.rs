//! The spool: messages whose sender was told that they are sent and that may not be in their store yet.
//!
//! An append-only file of JSON lines, `{"n":1,"put":[…]}` and `{"n":1,"end":true}`. A put is on disk
//! before the sender's `close` returns; the end is written after the append and need not reach the
//! disk, because whoever finds a put without an end asks the index whether the message is already
//! there. So each message is appended exactly once, whenever the process dies.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::store::{Durability, Prepared, fs};

/// The file is cut back to nothing when it is longer than this and nothing is pending.
const KEEP: u64 = 1 << 20;

/// One message on its way to a store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Parcel {
    /// Name of the store.
    pub store: String,
    /// What is appended there.
    pub message: Prepared,
}

#[derive(Serialize, Deserialize)]
struct Line {
    n: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    put: Option<Vec<Parcel>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    end: Option<bool>,
}

/// The spool of one state folder.
#[derive(Debug)]
pub struct Spool {
    file: Mutex<File>,
    durability: Durability,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    next: u64,
    pending: BTreeMap<u64, Vec<Parcel>>,
}

impl Spool {
    /// Opens the spool; what is still pending in it is what [`Spool::pending`] gives.
    ///
    /// # Errors
    /// As the system gave it.
    pub fn open(path: &Path, durability: Durability) -> io::Result<Self> {
        let mut file = fs::open_append(path, 0o600)?;
        let bytes = std::fs::read(path)?;
        let mut state = State::default();
        for line in bytes.split(|b| *b == b'\n') {
            // A torn last line is a put whose close has not returned.
            let Ok(line) = serde_json::from_slice::<Line>(line) else { continue };
            state.next = state.next.max(line.n + 1);
            match line.put {
                Some(parcels) => state.pending.insert(line.n, parcels),
                None => state.pending.remove(&line.n),
            };
        }
        if bytes.last().is_some_and(|b| *b != b'\n') {
            file.write_all(b"\n")?;
        }
        if let Some(dir) = path.parent() {
            fs::sync_dir(dir)?;
        }
        Ok(Self { file: Mutex::new(file), durability, state: Mutex::new(state) })
    }

    /// What was put and not ended, oldest first.
    pub fn pending(&self) -> Vec<(u64, Vec<Parcel>)> {
        self.state.lock().pending.iter().map(|(n, p)| (*n, p.clone())).collect()
    }

    /// Keeps parcels until [`Spool::end`]; on disk when this returns, if durability asks for it.
    ///
    /// # Errors
    /// As the system gave it; nothing is kept then.
    pub fn put(&self, parcels: Vec<Parcel>) -> io::Result<u64> {
        let n = {
            let mut state = self.state.lock();
            state.next += 1;
            state.next
        };
        self.write(&Line { n, put: Some(parcels.clone()), end: None })?;
        if self.durability == Durability::Fsync {
            // Outside the lock: concurrent senders share one trip to the disk.
            let file = self.file.lock().try_clone()?;
            file.sync_data()?;
        }
        self.state.lock().pending.insert(n, parcels);
        Ok(n)
    }

    /// Forgets parcels: they are in their stores, or were replaced by a newer version of the draft.
    pub fn end(&self, n: u64) {
        self.take(n);
    }

    /// As [`Spool::end`], and gives back what was forgotten.
    pub fn take(&self, n: u64) -> Vec<Parcel> {
        let (parcels, empty) = {
            let mut state = self.state.lock();
            (state.pending.remove(&n).unwrap_or_default(), state.pending.is_empty())
        };
        if let Err(e) = self.write(&Line { n, put: None, end: Some(true) }) {
            tracing::warn!(error = %e, "the spool could not be written; the message may be looked for again");
        }
        if empty {
            self.shrink();
        }
        parcels
    }

    fn write(&self, line: &Line) -> io::Result<()> {
        let mut text = serde_json::to_vec(line)?;
        text.push(b'\n');
        self.file.lock().write_all(&text)
    }

    fn shrink(&self) {
        let file = self.file.lock();
        let state = self.state.lock();
        let long = file.metadata().is_ok_and(|m| m.len() > KEEP);
        if long && state.pending.is_empty() {
            let _ = file.set_len(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parcel(id: &str) -> Parcel {
        let message = Prepared {
            to: "bob".into(),
            id: id.into(),
            thread: "t".into(),
            bytes: format!("{{\"id\": \"{id}\"}}"),
        };
        Parcel { store: "samp".into(), message }
    }

    #[test]
    fn puts_without_an_end_survive() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("spool");
        let spool = Spool::open(&path, Durability::Fsync).unwrap();
        let a = spool.put(vec![parcel("a")]).unwrap();
        let b = spool.put(vec![parcel("b"), parcel("c")]).unwrap();
        spool.end(a);
        drop(spool);
        std::fs::OpenOptions::new()
            .append(true)
            .open(&path)
            .unwrap()
            .write_all(b"{\"n\":9,\"pu")
            .unwrap();
        let spool = Spool::open(&path, Durability::None).unwrap();
        assert_eq!(spool.pending(), [(b, vec![parcel("b"), parcel("c")])]);
        let d = spool.put(vec![parcel("d")]).unwrap();
        assert!(d > b);
        spool.end(b);
        spool.end(d);
        drop(spool);
        assert!(Spool::open(&path, Durability::None).unwrap().pending().is_empty());
    }
}
