//! The spool: messages that were accepted and may not be in their store yet.
//!
//! It is a file of JSON lines, `{"n":1,"put":[…]}` and `{"n":1,"end":true}`. A put is on disk before the sender's
//! `close` returns. The end is written after the store has the message on disk. It need not reach the disk itself,
//! because a process that finds a put without an end first looks for the message in the store. So each message is
//! appended exactly once, whenever the process dies.
//!
//! A put that did not reach the disk was refused, and is struck out in place, which needs no room.
//! The lines are in an [`AppendLog`] that grows ahead.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::model::locks::{LockLevel, Mutex};
use serde::{Deserialize, Serialize};

use super::reservations::IdempotencyUse;
use crate::store::append_log::{AppendLog, AppendSync, AppendedLine, read_log, split_log};
use crate::store::{Durability, PreparedRecord};

/// The length above which the file is cut back to nothing when nothing is pending.
const KEEP: u64 = 1 << 20;
/// The step by which the file grows.
const AHEAD: u64 = 32 << 10;
/// A size that the file never reaches.
const LIMIT: u64 = 1 << 40;

/// One message on its way to a store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpoolParcel {
    /// Name of the store.
    pub store: String,
    /// The record that is appended there.
    pub message: PreparedRecord,
    /// The idempotency key under which it was accepted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) keyed: Option<IdempotencyUse>,
}

#[derive(Serialize, Deserialize)]
struct SpoolLine {
    n: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    put: Option<Vec<SpoolParcel>>,
    /// The number of an earlier put that this put replaces and ends. One line does both, so that at any moment one of
    /// the two counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    instead: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    end: Option<bool>,
    /// True if the message of the entry is in its store.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    sent: bool,
}

/// The spool of one state folder.
#[derive(Debug)]
pub struct Spool {
    durability: Durability,
    /// True if the spool is only looked at: nothing can be put into it.
    read_only: bool,
    state: Mutex<SpoolState>,
    /// The number of bytes on disk, counted as [`SpoolState::written`].
    synced: Mutex<u64>,
    /// The number of failed syncs. Nobody knows which of the lines of that moment the disk has.
    failures: AtomicU64,
}

/// A put that has no end.
#[derive(Debug)]
struct SpoolEntry {
    /// The offset at which its line begins.
    offset: u64,
    parcels: Vec<SpoolParcel>,
}

#[derive(Debug)]
struct SpoolState {
    log: AppendLog,
    /// Bytes ever written, also those that were cut back since.
    written: u64,
    next: u64,
    pending: BTreeMap<u64, SpoolEntry>,
    /// The messages that were sent and were still in the file when it was opened.
    sent: Vec<SpoolParcel>,
}

impl SpoolState {
    /// Appends one line, whole or not at all, and returns the offset at which it begins.
    fn append_line(&mut self, line: &SpoolLine) -> io::Result<u64> {
        let mut text = serde_json::to_vec(line)?;
        text.push(b'\n');
        let at = self.log.append(&text, AppendSync::Later)?;
        self.written += text.len() as u64;
        Ok(at)
    }

    /// Makes the line of a put unreadable.
    fn strike_out(&mut self, put: &SpoolEntry) -> io::Result<()> {
        self.written += 1;
        self.log.strike_out(put.offset)
    }

    /// Ends a put, even on a full disk.
    fn end_entry(&mut self, n: u64, sent: bool) -> Option<SpoolEntry> {
        let put = self.pending.remove(&n)?;
        let line = SpoolLine { n, put: None, instead: None, end: Some(true), sent };
        let ended = self.append_line(&line).map(drop).or_else(|_| self.strike_out(&put));
        if let Err(e) = ended {
            tracing::warn!(error = %e, "the spool could not be written; msgfs may look again for \
                a message that it delivered");
        }
        Some(put)
    }
}

impl Spool {
    /// Opens the spool. [`Spool::pending`] returns its pending messages.
    pub fn open(path: &Path, durability: Durability) -> io::Result<Self> {
        let bytes = read_log(path, LIMIT)?;
        let mut log = AppendLog::new(path).growing_by(AHEAD);
        log.open()?;
        Ok(Self::from_bytes(log, &bytes, durability, false))
    }

    /// Opens the spool to look at only, and makes nothing on disk.
    pub fn open_read_only(path: &Path) -> io::Result<Self> {
        let bytes = read_log(path, LIMIT)?;
        Ok(Self::from_bytes(AppendLog::new(path), &bytes, Durability::None, true))
    }

    fn from_bytes(log: AppendLog, bytes: &[u8], durability: Durability, looks: bool) -> Self {
        let (mut next, mut pending, mut sent) = (0, BTreeMap::new(), Vec::new());
        for AppendedLine { offset, text } in split_log(bytes) {
            let Ok(line) = serde_json::from_slice::<SpoolLine>(text) else { continue };
            next = line.n.max(next);
            if let Some(earlier) = line.instead {
                pending.remove(&earlier);
            }
            let ended = match line.put {
                Some(parcels) => pending.insert(line.n, SpoolEntry { offset, parcels }),
                None => pending.remove(&line.n),
            };
            sent.extend(ended.filter(|_| line.sent).into_iter().flat_map(|put| put.parcels));
        }
        let written = log.len();
        let state = SpoolState { log, written, next, pending, sent };
        let disk = Mutex::with_level(LockLevel::Spool, 0);
        let failures = AtomicU64::new(0);
        Self { durability, read_only: looks, state: Mutex::new(state), synced: disk, failures }
    }

    /// Returns the puts without an end, oldest first.
    pub fn pending(&self) -> Vec<(u64, Vec<SpoolParcel>)> {
        self.state.lock().pending.iter().map(|(n, p)| (*n, p.parcels.clone())).collect()
    }

    /// Takes the messages that were sent in a store before this was opened and are still in the file, oldest first.
    pub fn drain_sent(&self, store: &str) -> Vec<SpoolParcel> {
        self.state.lock().sent.extract_if(.., |parcel| parcel.store == store).collect()
    }

    /// Returns the parcels of the put with this number, if it has no end.
    pub fn get(&self, n: u64) -> Vec<SpoolParcel> {
        let state = self.state.lock();
        state.pending.get(&n).map(|p| p.parcels.clone()).unwrap_or_default()
    }

    /// Keeps parcels until [`Spool::end_entry`], in place of an earlier put if there is one. With [`Durability::Fsync`]
    /// they are on disk when this returns.
    ///
    /// # Errors
    /// I/O errors. After one, neither these parcels nor the earlier ones are kept.
    pub fn insert(&self, parcels: Vec<SpoolParcel>, instead: Option<u64>) -> io::Result<u64> {
        if self.read_only {
            return Err(io::ErrorKind::ReadOnlyFilesystem.into());
        }
        let failures = self.failures.load(Ordering::SeqCst);
        let mut state = self.state.lock();
        state.next += 1;
        let n = state.next;
        let line = SpoolLine { n, put: Some(parcels.clone()), instead, end: None, sent: false };
        let at = match state.append_line(&line) {
            Ok(at) => at,
            Err(e) => {
                instead.map(|earlier| state.end_entry(earlier, false));
                return Err(e);
            }
        };
        let replaced = instead.and_then(|earlier| state.pending.remove(&earlier));
        // The entry comes before the wait for the disk: pending entries keep the file from being cut back.
        state.pending.insert(n, SpoolEntry { offset: at, parcels });
        let written = state.written;
        drop(state);
        if self.durability == Durability::Fsync
            && let Err(e) = self.sync_up_to(written, failures)
        {
            self.roll_back(n, replaced);
            return Err(e);
        }
        Ok(n)
    }

    /// Takes back a put, and the put that it replaced.
    fn roll_back(&self, n: u64, replaced: Option<SpoolEntry>) {
        let mut state = self.state.lock();
        let put = state.pending.remove(&n);
        for put in [put, replaced].iter().flatten() {
            if let Err(e) = state.strike_out(put) {
                tracing::error!(error = %e, "a refused message could not be taken out of the spool");
            }
        }
        // A second failure does no more harm than the first.
        let _ = state.log.file().map(|file| file.sync_data());
    }

    /// Waits until everything up to `written` is on disk. Concurrent callers share one sync. If it fails, it fails for
    /// all of them, though the system reports the error only once.
    fn sync_up_to(&self, written: u64, failures: u64) -> io::Result<()> {
        let mut disk = self.synced.lock();
        if self.failures.load(Ordering::SeqCst) != failures {
            return Err(io::Error::from_raw_os_error(libc::EIO));
        }
        if *disk >= written {
            return Ok(());
        }
        let (upto, file) = {
            let state = self.state.lock();
            (state.written, state.log.file())
        };
        file.map_or(Ok(()), |file| file.sync_data()).inspect_err(|_| {
            self.failures.fetch_add(1, Ordering::SeqCst);
        })?;
        *disk = upto;
        Ok(())
    }

    /// Ends an entry and returns its parcels. `sent` is false if they will not be sent.
    pub fn end_entry(&self, n: u64, sent: bool) -> Vec<SpoolParcel> {
        let mut state = self.state.lock();
        let put = if self.read_only { state.pending.remove(&n) } else { state.end_entry(n, sent) };
        put.map(|p| p.parcels).unwrap_or_default()
    }

    /// Returns true if [`Spool::trim_if_long`] would cut the file.
    pub fn is_long(&self) -> bool {
        let state = self.state.lock();
        state.pending.is_empty() && state.log.len() > KEEP
    }

    /// Cuts the file back to nothing if it is long and nothing is pending. The stores must have the sent messages on
    /// disk.
    pub fn trim_if_long(&self) {
        let mut state = self.state.lock();
        if state.pending.is_empty() && state.log.len() > KEEP {
            state.log.truncate_to(0);
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use std::fs::File;
    use std::io::Write;
    use std::path::PathBuf;
    use std::sync::Arc;

    pub fn parcel(store: &str, id: &str, thread: &str) -> SpoolParcel {
        let message = PreparedRecord {
            to: "bob".into(),
            id: id.into(),
            thread: thread.into(),
            bytes: "text".into(),
            files: Vec::new(),
        };
        SpoolParcel { store: store.into(), message, keyed: None }
    }

    fn put(spool: &Spool, id: &str) -> u64 {
        spool.insert(vec![of_id(id)], None).unwrap()
    }

    fn of_id(id: &str) -> SpoolParcel {
        parcel("samp", id, "t")
    }

    fn pending(path: &Path) -> Vec<(u64, Vec<SpoolParcel>)> {
        Spool::open(path, Durability::None).unwrap().pending()
    }

    fn spool() -> (tempfile::TempDir, PathBuf, Spool) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("spool");
        let spool = Spool::open(&path, Durability::Fsync).unwrap();
        (dir, path, spool)
    }

    #[test]
    fn puts_without_an_end_survive() {
        let (_dir, path, spool) = spool();
        let a = put(&spool, "a");
        let b = spool.insert(vec![of_id("b"), of_id("c")], None).unwrap();
        spool.end_entry(a, true);
        drop(spool);
        let mut file = File::options().append(true).open(&path).unwrap();
        file.write_all(b"{\"n\":9,\"pu").unwrap();
        let spool = Spool::open(&path, Durability::None).unwrap();
        assert_eq!(spool.pending(), [(b, vec![of_id("b"), of_id("c")])]);
        let d = put(&spool, "d");
        assert!(d > b);
        spool.end_entry(b, true);
        spool.end_entry(d, true);
        drop(spool);
        assert!(pending(&path).is_empty());
    }

    #[test]
    fn at_any_moment_one_of_two_versions_counts() {
        let (_dir, path, spool) = spool();
        let a = put(&spool, "a");
        let b = spool.insert(vec![of_id("b")], Some(a)).unwrap();
        let mut whole = std::fs::read(&path).unwrap();
        whole.retain(|byte| *byte != 0);
        let first = whole.iter().position(|c| *c == b'\n').unwrap() + 1;
        for cut in first..=whole.len() {
            std::fs::write(&path, &whole[..cut]).unwrap();
            let (n, id) = if cut < whole.len() { (a, "a") } else { (b, "b") };
            assert_eq!(pending(&path), [(n, vec![of_id(id)])], "cut to {cut} bytes");
        }
    }

    #[test]
    fn of_a_line_the_disk_may_have_any_blocks() {
        let (_dir, path, spool) = spool();
        let a = put(&spool, "a");
        let end = spool.state.lock().log.len() as usize;
        let mut long = of_id("b");
        long.message.bytes = "x".repeat(3 * 512);
        spool.insert(vec![long], None).unwrap();
        let whole = std::fs::read(&path).unwrap();
        assert_eq!(whole.len() as u64, AHEAD);
        drop(spool);
        for lost in [0..512, 512..1024, 1024..1536, 1536..2048] {
            let mut torn = whole.clone();
            torn[lost].iter_mut().for_each(|byte| *byte = 0);
            let kept = torn[..end] == whole[..end];
            std::fs::write(&path, &torn).unwrap();
            let spool = Spool::open(&path, Durability::Fsync).unwrap();
            let found: Vec<u64> = spool.pending().into_iter().map(|(n, _)| n).collect();
            assert_eq!(found, if kept { vec![a] } else { vec![] });
            // A put behind it is found, whatever the torn line has left.
            let c = put(&spool, "c");
            drop(spool);
            assert!(pending(&path).contains(&(c, vec![of_id("c")])));
        }
    }

    #[test]
    fn the_file_grows_in_large_steps_and_is_no_longer_than_it_was() {
        let (_dir, path, spool) = spool();
        let len = || std::fs::metadata(&path).unwrap().len();
        for n in 0..40 {
            let n = put(&spool, &n.to_string());
            spool.end_entry(n, true);
            assert_eq!(len(), AHEAD);
        }
        drop(spool);
        let spool = Spool::open(&path, Durability::Fsync).unwrap();
        put(&spool, "more");
        assert_eq!(len(), AHEAD);
        assert_eq!(pending(&path).len(), 1);
    }

    #[test]
    fn what_did_not_reach_the_disk_is_struck_out() {
        let (_dir, path, spool) = spool();
        let (a, b) = (put(&spool, "a"), put(&spool, "b"));
        let (upto, failures) = (spool.state.lock().written, 0);
        // It accepts every write and cannot be synced.
        let null = File::options().write(true).open("/dev/null").unwrap();
        let file = spool.state.lock().log.swap_file(Arc::new(null));
        spool.insert(vec![of_id("c")], None).unwrap_err();
        assert_eq!(spool.pending().len(), 2);
        spool.state.lock().log.swap_file(file);
        assert!(spool.sync_up_to(upto, failures).is_err(), "nobody knows which lines the disk has");
        assert!(spool.sync_up_to(upto, 1).is_ok(), "it had these before");
        let put = spool.state.lock().pending.remove(&b);
        spool.roll_back(a, put);
        assert_eq!(spool.pending(), []);
        assert_eq!(pending(&path), []);
    }

    #[test]
    fn a_long_file_is_cut_back_only_when_nothing_is_pending() {
        let (_dir, path, spool) = spool();
        let mut long = of_id("l");
        long.message.bytes = "x".repeat(KEEP as usize);
        let l = spool.insert(vec![long], None).unwrap();
        let b = put(&spool, "b");
        spool.end_entry(l, true);
        assert_eq!(pending(&path).len(), 1);
        spool.trim_if_long();
        assert_eq!(pending(&path).len(), 1);
        spool.end_entry(b, true);
        assert!(spool.is_long());
        spool.trim_if_long();
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 0);
        let c = put(&spool, "c");
        assert_eq!(pending(&path), [(c, vec![of_id("c")])]);
    }

    #[test]
    fn what_was_sent_is_told_and_what_was_taken_back_is_not() {
        let (_dir, path, spool) = spool();
        let (a, b, c) = (put(&spool, "a"), put(&spool, "b"), put(&spool, "c"));
        spool.insert(vec![of_id("d")], Some(c)).unwrap();
        spool.end_entry(b, true);
        spool.end_entry(a, false);
        drop(spool);
        let spool = Spool::open(&path, Durability::None).unwrap();
        assert_eq!(spool.drain_sent("other"), []);
        assert_eq!(spool.drain_sent("samp"), [of_id("b")]);
        assert_eq!((spool.drain_sent("samp").len(), spool.pending().len()), (0, 1));
    }
}
