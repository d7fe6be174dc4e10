//! `.wait`, `.next` and `.watch`: reads that block until there is mail.

use std::collections::HashSet;
use std::convert::Infallible;
use std::time::{Duration, Instant};

use super::file::{Answer, MarkAtEnd, OpenFile};
use super::{Error, Reader, Tree};
use crate::index::MsgIx;
use crate::model::locks::{Level, Mutex};

/// What `.next` has handed out, and hands out to nobody else.
#[derive(Debug, Default)]
pub(super) struct Handed {
    /// To readers that have it open.
    open: HashSet<MsgIx>,
    /// To readers that read it to its end, where that marks nothing.
    read: HashSet<MsgIx>,
}

/// An open `.watch`: what arrived since. Readers that share it share the names, each goes to one.
#[derive(Debug)]
pub struct Arrivals(Mutex<Seen>);

#[derive(Debug)]
struct Seen {
    /// Messages there were when it was opened.
    upto: usize,
    /// Those that were unread then, and those that were told.
    told: HashSet<MsgIx>,
    /// Names for the next read.
    ready: Vec<u8>,
}

impl Arrivals {
    /// Takes what is ready, as much as a read asks for.
    pub(super) fn take(&self, size: usize) -> Vec<u8> {
        let mut seen = self.0.lock();
        let len = seen.ready.len().min(size);
        seen.ready.drain(..len).collect()
    }
}

/// What the reads of a file wait for. If there is nothing for one, there is nothing for others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitsFor {
    /// `.wait`
    Unread,
    /// `.next`
    Message,
    /// `.watch`, each for itself and without end.
    Arrivals,
}

/// Who waits without end looks again after this.
const LONG: Duration = Duration::from_secs(86_400);

impl Tree {
    /// What a read of this file has to wait for, if it has to.
    pub fn waits_for(&self, file: &OpenFile) -> Option<WaitsFor> {
        match file {
            OpenFile::Waiting { next, answer, .. } if answer.lock().is_none() => {
                Some(if *next { WaitsFor::Message } else { WaitsFor::Unread })
            }
            // Always, so that of several readers none takes what another was promised.
            OpenFile::Watch(_) => Some(WaitsFor::Arrivals),
            _ => None,
        }
    }

    /// Finds what a waiting file gives; whether there is anything. [`Tree::read`] then has it.
    ///
    /// # Errors
    /// Store errors as they come.
    pub fn try_answer(&self, file: &OpenFile) -> Result<bool, Error> {
        let (next, opener, answer) = match file {
            OpenFile::Waiting { next, opener, answer } => (next, opener, answer),
            OpenFile::Watch(arrivals) => return Ok(self.has_arrivals(arrivals)),
            _ => return Ok(true),
        };
        if answer.lock().is_some() {
            return Ok(true);
        }
        let found = if *next { self.hand_out(*opener)? } else { self.names_answer() };
        let Some(found) = found else { return Ok(false) };
        *answer.lock() = Some(found);
        Ok(true)
    }

    /// Nothing came in time: a waiting file gives nothing.
    pub fn answer_nothing(&self, file: &OpenFile) {
        if let OpenFile::Waiting { answer, .. } = file {
            answer.lock().get_or_insert_default();
        }
    }

    /// Waits for mail on behalf of a reader; [`Tree::read`] then has the answer.
    ///
    /// # Errors
    /// Store errors as they come.
    pub fn await_mail(&self, file: &OpenFile) -> Result<(), Error> {
        if let OpenFile::Watch(_) = file {
            while !self.wait_until(LONG, || self.try_answer(file))? {}
        } else if !self.wait_until(self.settings.wait_timeout, || self.try_answer(file))? {
            self.answer_nothing(file);
        }
        Ok(())
    }

    /// Looks again whenever something came, until `found` or the time is over; whether it was found.
    fn wait_until<E>(
        &self,
        timeout: Duration,
        mut found: impl FnMut() -> Result<bool, E>,
    ) -> Result<bool, E> {
        let deadline = Instant::now() + timeout;
        loop {
            let seen = self.index.news();
            let found = found()?;
            if found || Instant::now() >= deadline {
                return Ok(found);
            }
            self.index.wait(seen, deadline);
        }
    }

    fn names_answer(&self) -> Option<Answer> {
        let names = self.unread_names();
        let text = (!names.is_empty()).then(|| names.join("\n") + "\n")?;
        Some(Answer { bytes: text.into_bytes().into(), ..Answer::default() })
    }

    /// A `.watch` that is opened now.
    pub(super) fn watch(&self) -> Arrivals {
        let core = self.index.read();
        let (upto, told) = (core.messages_so_far(), core.inbox().collect());
        Arrivals(Mutex::at(Level::File, Seen { upto, told, ready: Vec::new() }))
    }

    /// Whether there are names for a `.watch` that it has not given yet.
    fn has_arrivals(&self, arrivals: &Arrivals) -> bool {
        let mut seen = arrivals.0.lock();
        let came = self.inbox_files(|core| {
            let is_new = |ix: &MsgIx| {
                core.entry(*ix).is_some_and(|e| {
                    // Somebody may have read it already.
                    let came = *ix as usize >= seen.upto && e.is_read_here();
                    (came || !e.is_read()) && !seen.told.contains(ix)
                })
            };
            core.to_me().filter(is_new).collect()
        });
        for (ix, name) in came {
            seen.told.insert(ix);
            seen.ready.extend_from_slice(name.as_bytes());
            seen.ready.push(b'\n');
        }
        !seen.ready.is_empty()
    }

    /// The oldest unread message that no other `.next` has, for one that has it until it is closed.
    fn hand_out(&self, opener: u32) -> Result<Option<Answer>, Error> {
        loop {
            let oldest = {
                let mut handed = self.handed.lock();
                let free = |ix: &MsgIx| !handed.open.contains(ix) && !handed.read.contains(ix);
                let oldest = self.index.read().inbox().find(free);
                handed.open.extend(oldest);
                oldest
            };
            let Some(ix) = oldest else { return Ok(None) };
            match self.rendered(ix) {
                Ok(bytes) => {
                    let mark = Some(MarkAtEnd::new(ix, opener));
                    return Ok(Some(Answer { bytes, mark }));
                }
                Err(e) => {
                    self.take_back((ix, false));
                    // Gone between the look and the read: look again.
                    if !matches!(e, Error::NotFound) {
                        return Err(e);
                    }
                }
            }
        }
    }

    /// Notes that the text of a file was not taken: it marks nothing, and another `.next` hands out its message.
    pub(super) fn abandon(&self, file: &OpenFile) {
        let OpenFile::Waiting { answer, .. } = file else { return };
        let mark = answer.lock().take().and_then(|answer| answer.mark);
        if let Some((ix, _)) = mark.map(|mark| mark.outcome()) {
            self.take_back((ix, false));
        }
    }

    /// A `.next` no longer has a message: if it was not read to its end, it is for somebody else.
    pub(super) fn take_back(&self, (ix, read): (MsgIx, bool)) {
        let mut handed = self.handed.lock();
        handed.open.remove(&ix);
        if read && !self.reading_marks(&Reader::default()) {
            handed.read.insert(ix);
        }
        drop(handed);
        self.index.wake();
    }

    /// A message is made unread: `.next` hands it out like any other.
    pub(super) fn hand_out_again(&self, ix: MsgIx) {
        self.handed.lock().read.remove(&ix);
    }

    /// Names of the unread messages, oldest first.
    pub(super) fn unread_names(&self) -> Vec<String> {
        self.unread_files(usize::MAX).into_iter().map(|(_, name)| name).collect()
    }

    /// Waits until there is unread mail, at most `timeout`, and gives its names, oldest first.
    pub fn wait(&self, timeout: Duration) -> Vec<String> {
        let mut names = Vec::new();
        let Ok(_) = self.wait_until(timeout, || {
            names = self.unread_names();
            Ok::<bool, Infallible>(!names.is_empty())
        });
        names
    }
}
