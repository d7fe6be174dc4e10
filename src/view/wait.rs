//! `.wait`, `.next` and `.watch`: reads that block until a message comes.

use std::collections::HashSet;
use std::convert::Infallible;
use std::time::{Duration, Instant};

use super::file::{FileContent, OpenFile, ReadToEndMark};
use super::{Error, ReaderProfile, Tree};
use crate::index::MsgIx;
use crate::model::locks::{LockLevel, Mutex};

/// The messages that `.next` has handed out, which no other `.next` gets.
#[derive(Debug, Default)]
pub(super) struct NextClaims {
    /// Messages of readers that have `.next` open.
    open: HashSet<MsgIx>,
    /// Messages that a reader read to the end, where that marks nothing.
    read: HashSet<MsgIx>,
}

/// An open `.watch`: the messages that arrived since. Readers that share it share the names; each name goes to
/// one.
#[derive(Debug)]
pub struct WatchFeed(Mutex<WatchProgress>);

#[derive(Debug)]
struct WatchProgress {
    /// Number of messages when it was opened.
    first_new: usize,
    /// Messages that were unread then, and messages that were reported.
    reported: HashSet<MsgIx>,
    /// Names for the next read.
    ready: Vec<u8>,
}

impl WatchFeed {
    /// Takes the bytes that are ready, at most `size`.
    pub(super) fn drain_ready(&self, size: usize) -> Vec<u8> {
        let mut seen = self.0.lock();
        let len = seen.ready.len().min(size);
        seen.ready.drain(..len).collect()
    }
}

/// The event that the reads of a file wait for. If it has not happened for one of them, it has not for the
/// others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitTarget {
    /// Any unread message: `.wait`.
    Unread,
    /// A message of its own: `.next`.
    Message,
    /// New messages, for each reader separately and without end: `.watch`.
    Arrivals,
}

/// Pause after which a wait without end looks again.
const LONG: Duration = Duration::from_secs(86_400);

impl Tree {
    /// Returns the event that a read of this file has to wait for, if any.
    pub fn wait_target(&self, file: &OpenFile) -> Option<WaitTarget> {
        match file {
            OpenFile::Waiting { next, answer, .. } if answer.lock().is_none() => {
                Some(if *next { WaitTarget::Message } else { WaitTarget::Unread })
            }
            // Every read waits, so that none of several readers takes names that another was promised.
            OpenFile::Watch(_) => Some(WaitTarget::Arrivals),
            _ => None,
        }
    }

    /// Finds the content of a waiting file. Returns true if there is any; [`Tree::read`] then returns it.
    ///
    /// # Errors
    /// Store errors as they come.
    pub fn try_fill_answer(&self, file: &OpenFile) -> Result<bool, Error> {
        let (next, opener, answer) = match file {
            OpenFile::Waiting { next, opener, answer } => (next, opener, answer),
            OpenFile::Watch(arrivals) => return Ok(self.collect_arrivals(arrivals)),
            _ => return Ok(true),
        };
        if answer.lock().is_some() {
            return Ok(true);
        }
        let found = if *next { self.claim_next(*opener)? } else { self.make_names_answer() };
        let Some(found) = found else { return Ok(false) };
        *answer.lock() = Some(found);
        Ok(true)
    }

    /// Gives a waiting file empty content, because nothing came in time.
    pub fn answer_empty(&self, file: &OpenFile) {
        if let OpenFile::Waiting { answer, .. } = file {
            answer.lock().get_or_insert_default();
        }
    }

    /// Waits for a message on behalf of a reader; [`Tree::read`] then has the answer.
    ///
    /// # Errors
    /// Store errors as they come.
    pub fn await_mail(&self, file: &OpenFile) -> Result<(), Error> {
        if let OpenFile::Watch(_) = file {
            while !self.wait_until(LONG, || self.try_fill_answer(file))? {}
        } else if !self.wait_until(self.settings.wait_timeout, || self.try_fill_answer(file))? {
            self.answer_empty(file);
        }
        Ok(())
    }

    /// Calls `found` after each change until it returns true or the time is over. Returns its last result.
    fn wait_until<E>(
        &self,
        timeout: Duration,
        mut found: impl FnMut() -> Result<bool, E>,
    ) -> Result<bool, E> {
        let deadline = Instant::now() + timeout;
        loop {
            let seen = self.index.change_count();
            let found = found()?;
            if found || Instant::now() >= deadline {
                return Ok(found);
            }
            self.index.wait_for_change(seen, deadline);
        }
    }

    fn make_names_answer(&self) -> Option<FileContent> {
        let names = self.unread_names();
        let text = (!names.is_empty()).then(|| names.join("\n") + "\n")?;
        Some(FileContent { bytes: text.into_bytes().into(), ..FileContent::default() })
    }

    /// Opens a `.watch`.
    pub(super) fn open_watch(&self) -> WatchFeed {
        let core = self.index.read();
        let (upto, told) = (core.messages.messages_so_far(), core.messages.inbox().collect());
        WatchFeed(Mutex::with_level(
            LockLevel::File,
            WatchProgress { first_new: upto, reported: told, ready: Vec::new() },
        ))
    }

    /// Returns true if a `.watch` has names that it has not given yet.
    fn collect_arrivals(&self, arrivals: &WatchFeed) -> bool {
        let mut seen = arrivals.0.lock();
        let came = self.inbox_files(|core| {
            let is_new = |ix: &MsgIx| {
                let e = core.messages.entry(*ix);
                // A program may have read it already.
                let came = !ix.is_among_first(seen.first_new) && e.is_read_here();
                (came || !e.is_read()) && !seen.reported.contains(ix)
            };
            core.messages.messages_to_me().filter(is_new).collect()
        });
        for (ix, name) in came {
            seen.reported.insert(ix);
            seen.ready.extend_from_slice(name.as_bytes());
            seen.ready.push(b'\n');
        }
        !seen.ready.is_empty()
    }

    /// Returns the oldest unread message that no other `.next` has, and reserves it until this `.next` is
    /// closed.
    fn claim_next(&self, opener: u32) -> Result<Option<FileContent>, Error> {
        loop {
            let oldest = {
                let mut handed = self.next_claims.lock();
                let free = |ix: &MsgIx| !handed.open.contains(ix) && !handed.read.contains(ix);
                let oldest = self.index.read().messages.inbox().find(free);
                handed.open.extend(oldest);
                oldest
            };
            let Some(ix) = oldest else { return Ok(None) };
            match self.rendered_text(ix) {
                Ok(bytes) => {
                    let mark = Some(ReadToEndMark::new(ix, opener));
                    return Ok(Some(FileContent { bytes, mark }));
                }
                Err(e) => {
                    self.return_claim((ix, false));
                    // The message went before it could be read; the loop takes the next one.
                    if !matches!(e, Error::NotFound) {
                        return Err(e);
                    }
                }
            }
        }
    }

    /// Drops the text of a file that was not printed. It marks nothing, and another `.next` hands out its
    /// message.
    pub(super) fn abandon_read(&self, file: &OpenFile) {
        let OpenFile::Waiting { answer, .. } = file else { return };
        let mark = answer.lock().take().and_then(|answer| answer.mark);
        if let Some((ix, _)) = mark.map(|mark| mark.outcome()) {
            self.return_claim((ix, false));
        }
    }

    /// Ends the claim of a `.next` on a message. Unless the message was read to its end, another `.next` gets
    /// it.
    pub(super) fn return_claim(&self, (ix, read): (MsgIx, bool)) {
        let mut handed = self.next_claims.lock();
        handed.open.remove(&ix);
        if read && !self.should_mark_reading(&ReaderProfile::default()) {
            handed.read.insert(ix);
        }
        drop(handed);
        self.index.wake_all();
    }

    /// Lets `.next` hand out a message again that is unread again.
    pub(super) fn release_claim(&self, ix: MsgIx) {
        self.next_claims.lock().read.remove(&ix);
    }

    /// Returns the names of the unread messages, oldest first.
    pub(super) fn unread_names(&self) -> Vec<String> {
        self.unread_files(usize::MAX).into_iter().map(|(_, name)| name).collect()
    }

    /// Waits until there is an unread message, at most `timeout`. Returns the names of the unread messages,
    /// oldest first.
    pub fn wait_for_unread(&self, timeout: Duration) -> Vec<String> {
        let mut names = Vec::new();
        let Ok(_) = self.wait_until(timeout, || {
            names = self.unread_names();
            Ok::<bool, Infallible>(!names.is_empty())
        });
        names
    }
}
