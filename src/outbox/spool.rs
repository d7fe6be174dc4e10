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

use crate::model::locks::Mutex;
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
    /// This put takes the place of that one, which is thereby ended: one line, so that at any
    /// moment one of the two counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    instead: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    end: Option<bool>,
}

/// The spool of one state folder.
#[derive(Debug)]
pub struct Spool {
    durability: Durability,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    file: File,
    /// Bytes of whole lines in the file.
    len: u64,
    /// Half a line stands at the end of the file.
    torn: bool,
    next: u64,
    pending: BTreeMap<u64, Vec<Parcel>>,
}

impl State {
    /// Writes a line whole or not at all.
    fn write(&mut self, line: &Line) -> io::Result<()> {
        let mut text = if self.torn { vec![b'\n'] } else { Vec::new() };
        serde_json::to_writer(&mut text, line)?;
        text.push(b'\n');
        if let Err(e) = self.file.write_all(&text) {
            // What is left of it would take the next line with it.
            self.torn = self.file.set_len(self.len).is_err();
            return Err(e);
        }
        self.len += text.len() as u64;
        self.torn = false;
        Ok(())
    }
}

impl Spool {
    /// Opens the spool; what is still pending in it is what [`Spool::pending`] gives.
    ///
    /// # Errors
    /// As the system gave it.
    pub fn open(path: &Path, durability: Durability) -> io::Result<Self> {
        let file = fs::open_append(path, 0o600)?;
        let bytes = std::fs::read(path)?;
        let (mut next, mut pending) = (0, BTreeMap::new());
        for line in bytes.split(|b| *b == b'\n') {
            // A torn last line is a put whose close has not returned.
            let Ok(line) = serde_json::from_slice::<Line>(line) else { continue };
            next = line.n.max(next);
            if let Some(earlier) = line.instead {
                pending.remove(&earlier);
            }
            match line.put {
                Some(parcels) => pending.insert(line.n, parcels),
                None => pending.remove(&line.n),
            };
        }
        if let Some(dir) = path.parent() {
            fs::sync_dir(dir)?;
        }
        let torn = bytes.last().is_some_and(|b| *b != b'\n');
        let state = State { file, len: bytes.len() as u64, torn, next, pending };
        Ok(Self { durability, state: Mutex::new(state) })
    }

    /// What was put and not ended, oldest first.
    pub fn pending(&self) -> Vec<(u64, Vec<Parcel>)> {
        self.state.lock().pending.iter().map(|(n, p)| (*n, p.clone())).collect()
    }

    /// What was put under a number and not ended.
    pub fn get(&self, n: u64) -> Vec<Parcel> {
        self.state.lock().pending.get(&n).cloned().unwrap_or_default()
    }

    /// Keeps parcels until [`Spool::end`], in place of an earlier put if there is one; on disk when
    /// this returns, if durability asks for it.
    ///
    /// # Errors
    /// As the system gave it; these parcels are not kept then.
    pub fn put(&self, parcels: Vec<Parcel>, instead: Option<u64>) -> io::Result<u64> {
        let (n, file) = {
            let mut state = self.state.lock();
            let file = state.file.try_clone()?;
            state.next += 1;
            let n = state.next;
            state.write(&Line { n, put: Some(parcels.clone()), instead, end: None })?;
            if let Some(earlier) = instead {
                state.pending.remove(&earlier);
            }
            // Before the wait for the disk: what is pending keeps the file from being cut back.
            state.pending.insert(n, parcels);
            (n, file)
        };
        if self.durability == Durability::Fsync {
            // Outside the lock: concurrent senders share one trip to the disk.
            file.sync_data().inspect_err(|_| self.end(n))?;
        }
        Ok(n)
    }

    /// Forgets parcels: they are in their stores, or will not be sent.
    pub fn end(&self, n: u64) {
        self.take(n);
    }

    /// As [`Spool::end`], and gives back what was forgotten.
    pub fn take(&self, n: u64) -> Vec<Parcel> {
        let mut state = self.state.lock();
        let parcels = state.pending.remove(&n).unwrap_or_default();
        let line = Line { n, put: None, instead: None, end: Some(true) };
        if let Err(e) = state.write(&line) {
            tracing::warn!(error = %e, "the spool could not be written; the message may be looked for again");
        }
        if state.pending.is_empty() && state.len > KEEP && state.file.set_len(0).is_ok() {
            (state.len, state.torn) = (0, false);
        }
        parcels
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
            files: Vec::new(),
        };
        Parcel { store: "samp".into(), message }
    }

    #[test]
    fn puts_without_an_end_survive() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("spool");
        let spool = Spool::open(&path, Durability::Fsync).unwrap();
        let a = spool.put(vec![parcel("a")], None).unwrap();
        let b = spool.put(vec![parcel("b"), parcel("c")], None).unwrap();
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
        let d = spool.put(vec![parcel("d")], None).unwrap();
        assert!(d > b);
        spool.end(b);
        spool.end(d);
        drop(spool);
        assert!(Spool::open(&path, Durability::None).unwrap().pending().is_empty());
    }

    #[test]
    fn at_any_moment_one_of_two_versions_counts() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("spool");
        let spool = Spool::open(&path, Durability::None).unwrap();
        let a = spool.put(vec![parcel("a")], None).unwrap();
        let b = spool.put(vec![parcel("b")], Some(a)).unwrap();
        let whole = std::fs::read(&path).unwrap();
        let first = whole.iter().position(|c| *c == b'\n').unwrap() + 1;
        for cut in first..=whole.len() {
            std::fs::write(&path, &whole[..cut]).unwrap();
            let pending = Spool::open(&path, Durability::None).unwrap().pending();
            let expected = if cut + 1 < whole.len() { (a, "a") } else { (b, "b") };
            assert_eq!(pending, [(expected.0, vec![parcel(expected.1)])], "cut to {cut} bytes");
        }
    }

    #[test]
    fn a_long_file_is_cut_back_only_when_nothing_is_pending() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("spool");
        let spool = Spool::open(&path, Durability::None).unwrap();
        let long = Parcel {
            message: Prepared { bytes: "x".repeat(KEEP as usize), ..parcel("l").message },
            ..parcel("l")
        };
        let l = spool.put(vec![long], None).unwrap();
        let b = spool.put(vec![parcel("b")], None).unwrap();
        spool.end(l);
        assert_eq!(Spool::open(&path, Durability::None).unwrap().pending().len(), 1);
        spool.end(b);
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 0);
        let c = spool.put(vec![parcel("c")], None).unwrap();
        let again = Spool::open(&path, Durability::None).unwrap();
        assert_eq!(again.pending(), [(c, vec![parcel("c")])]);
    }
}
