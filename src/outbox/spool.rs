//! The spool: messages that were accepted and may not be in their store yet.
//!
//! It is a file of JSON lines, `{"n":1,"put":[…]}` and `{"n":1,"end":true}`. A put is on disk before the sender's
//! `close` returns. The end is written after the store has the message on disk. It need not reach the disk itself,
//! because a process that finds a put without an end first looks for the message in the store. So each message is
//! appended exactly once, whenever the process dies.
//!
//! A put that did not reach the disk was refused, and is struck out in place, which needs no room. The lines are in an
//! [`AppendLog`] that grows ahead. When most lines are no longer needed, the needed ones replace the file.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::model::locks::{LockLevel, Mutex};
use serde::{Deserialize, Serialize};

use super::reservations::IdempotencyUse;
use crate::model::Timestamp;
use crate::store::append_log::{AppendLog, AppendSync, AppendedLine, read_log, split_log};
use crate::store::{Durability, PreparedRecord};

/// The length of unneeded lines above which the file is cut back.
const KEEP: u64 = 1 << 20;
/// The time for which a sent message is reported to its store, which may be away until then.
const REPORTED_MS: i64 = 7 * 86_400_000;
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
    /// The time at which it was found there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    at: Option<Timestamp>,
}

impl SpoolLine {
    fn new_put(n: u64, parcels: Vec<SpoolParcel>, instead: Option<u64>) -> Self {
        Self { n, put: Some(parcels), instead, end: None, sent: false, at: None }
    }

    /// Returns the end of an entry; with the time if it was sent.
    fn new_end(n: u64, at: Option<Timestamp>) -> Self {
        Self { n, put: None, instead: None, end: Some(true), sent: at.is_some(), at }
    }

    /// Appends the line to a text, and returns its length.
    fn write_to(&self, text: &mut Vec<u8>) -> io::Result<u64> {
        let before = text.len();
        serde_json::to_writer(&mut *text, self)?;
        text.push(b'\n');
        Ok((text.len() - before) as u64)
    }
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
    /// The number of failed syncs. It is unknown which of the lines of that moment are on disk.
    failures: AtomicU64,
}

/// A put that has no end.
#[derive(Debug)]
struct SpoolEntry {
    /// The length of its line.
    len: u64,
    parcels: Vec<SpoolParcel>,
}

/// An entry that was sent, with the parcels that no store has taken over.
#[derive(Debug)]
struct FinishedSend {
    at: Timestamp,
    put: SpoolEntry,
}

#[derive(Debug)]
struct SpoolState {
    log: AppendLog,
    /// Bytes ever written, also those that were cut back since.
    written: u64,
    next: u64,
    pending: BTreeMap<u64, SpoolEntry>,
    /// The messages that were sent and were still in the file when it was opened, oldest first.
    sent: Vec<FinishedSend>,
}

impl SpoolState {
    /// Appends one line, whole or not at all, and returns its length.
    fn append_line(&mut self, line: &SpoolLine) -> io::Result<u64> {
        let mut text = Vec::new();
        let len = line.write_to(&mut text)?;
        self.log.append(&text, AppendSync::Later)?;
        self.written += len;
        Ok(len)
    }

    /// Makes the line of a put unreadable. The line is searched for, because the file may have been cut back.
    fn strike_out(&mut self, n: u64) -> io::Result<()> {
        self.written += 1;
        let bytes = read_log(self.log.path(), LIMIT)?;
        let is_put = |line: SpoolLine| line.n == n && line.put.is_some();
        split_log(&bytes)
            .filter(|line| serde_json::from_slice(line.text).is_ok_and(is_put))
            .try_for_each(|line| self.log.strike_out(line.offset))
    }

    /// Returns true if most of a long file is no longer needed.
    fn is_long(&self) -> bool {
        let len = self.log.len();
        // The needed lines are counted only if that can matter.
        len > KEEP && {
            let puts = self.pending.values().chain(self.sent.iter().map(|sent| &sent.put));
            let needed: u64 = puts.map(|put| put.len).sum();
            len.saturating_sub(needed) > needed.max(KEEP)
        }
    }

    /// Replaces the file by the lines that are still needed.
    fn rewrite(&mut self) -> io::Result<()> {
        let mut text = Vec::new();
        for (n, put) in &self.pending {
            SpoolLine::new_put(*n, put.parcels.clone(), None).write_to(&mut text)?;
        }
        for sent in &self.sent {
            self.next += 1;
            SpoolLine::new_put(self.next, sent.put.parcels.clone(), None).write_to(&mut text)?;
            SpoolLine::new_end(self.next, Some(sent.at)).write_to(&mut text)?;
        }
        self.log.replace(&text)
    }

    /// Ends a put, even on a full disk.
    fn end_entry(&mut self, n: u64, sent: bool) -> Option<SpoolEntry> {
        let put = self.pending.remove(&n)?;
        let line = SpoolLine::new_end(n, sent.then(Timestamp::now));
        let ended = self.append_line(&line).map(drop).or_else(|_| self.strike_out(n));
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

    fn from_bytes(log: AppendLog, bytes: &[u8], durability: Durability, read_only: bool) -> Self {
        let (mut next, mut pending, mut sent) = (0, BTreeMap::new(), Vec::new());
        let now = Timestamp::now();
        for AppendedLine { text, .. } in split_log(bytes) {
            let Ok(line) = serde_json::from_slice::<SpoolLine>(text) else { continue };
            next = line.n.max(next);
            if let Some(earlier) = line.instead {
                pending.remove(&earlier);
            }
            let ended = match line.put {
                Some(parcels) => {
                    pending.insert(line.n, SpoolEntry { len: text.len() as u64 + 1, parcels })
                }
                None => pending.remove(&line.n),
            };
            let at = line.at.unwrap_or(now);
            if let Some(put) = ended.filter(|_| line.sent && at >= now.plus_millis(-REPORTED_MS)) {
                sent.push(FinishedSend { at, put });
            }
        }
        let written = log.len();
        let state = SpoolState { log, written, next, pending, sent };
        let disk = Mutex::with_level(LockLevel::Spool, 0);
        let failures = AtomicU64::new(0);
        Self { durability, read_only, state: Mutex::new(state), synced: disk, failures }
    }

    /// Returns the puts without an end, oldest first.
    pub fn pending(&self) -> Vec<(u64, Vec<SpoolParcel>)> {
        self.state.lock().pending.iter().map(|(n, p)| (*n, p.parcels.clone())).collect()
    }

    /// Returns the messages that were sent in a store before this was opened, and that it has not taken over, oldest
    /// first.
    pub fn list_sent(&self, store: &str) -> Vec<SpoolParcel> {
        let state = self.state.lock();
        let sent = state.sent.iter().flat_map(|sent| &sent.put.parcels);
        sent.filter(|parcel| parcel.store == store).cloned().collect()
    }

    /// Forgets the messages that [`Spool::list_sent`] returns, because the store has taken them over.
    pub fn forget_sent(&self, store: &str) {
        self.state.lock().sent.retain_mut(|sent| {
            sent.put.parcels.retain(|parcel| parcel.store != store);
            !sent.put.parcels.is_empty()
        });
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
        let len = match state.append_line(&SpoolLine::new_put(n, parcels.clone(), instead)) {
            Ok(len) => len,
            Err(e) => {
                instead.map(|earlier| state.end_entry(earlier, false));
                return Err(e);
            }
        };
        instead.map(|earlier| state.pending.remove(&earlier));
        // The entry comes before the wait for the disk: a pending entry stays when the file is cut back.
        state.pending.insert(n, SpoolEntry { len, parcels });
        let written = state.written;
        drop(state);
        if self.durability == Durability::Fsync
            && let Err(e) = self.sync_up_to(written, failures)
        {
            self.roll_back(n, instead);
            return Err(e);
        }
        Ok(n)
    }

    /// Takes back a put, and the put that it replaced.
    fn roll_back(&self, n: u64, replaced: Option<u64>) {
        let mut state = self.state.lock();
        state.pending.remove(&n);
        for n in [Some(n), replaced].into_iter().flatten() {
            if let Err(e) = state.strike_out(n) {
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
        self.state.lock().is_long()
    }

    /// Cuts the file back to what is pending or must still be reported to a store, if most of it is something else. The
    /// stores must have the other sent messages on disk.
    pub fn trim_if_long(&self) {
        let mut state = self.state.lock();
        if !state.is_long() {
            return;
        }
        if state.pending.is_empty() && state.sent.is_empty() {
            state.log.truncate_to(0);
        } else if let Err(error) = state.rewrite() {
            tracing::warn!(%error, "the spool cannot be cut back; it stays long");
        }
    }
}

#[cfg(test)]
pub(super) mod tests;
