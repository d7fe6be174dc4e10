//! `.wait` and `.next`: reads that block until there is mail.

use std::convert::Infallible;
use std::time::{Duration, Instant};

use super::file::{Answer, MarkAtEnd, OpenFile};
use super::{Error, Tree};
use crate::index::MsgIx;
use crate::model::MarkRead;

impl Tree {
    /// Whether a read of this file has to wait for its answer.
    pub fn would_wait(&self, file: &OpenFile) -> bool {
        matches!(file, OpenFile::Waiting { answer, .. } if answer.lock().is_none())
    }

    /// Finds what a waiting file gives; whether there is anything. [`Tree::read`] then has it.
    ///
    /// # Errors
    /// Store errors as they come.
    pub fn try_answer(&self, file: &OpenFile) -> Result<bool, Error> {
        let OpenFile::Waiting { next, opener, answer } = file else { return Ok(true) };
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
        if !self.wait_until(self.settings.wait_timeout, || self.try_answer(file))? {
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

    /// The oldest unread message that no other `.next` has, for one that has it until it is closed.
    fn hand_out(&self, opener: u32) -> Result<Option<Answer>, Error> {
        loop {
            let oldest = {
                let mut handed = self.handed.lock();
                let oldest = self.index.read().inbox().find(|ix| !handed.contains(ix));
                handed.extend(oldest);
                oldest
            };
            let Some(ix) = oldest else { return Ok(None) };
            match self.rendered(ix) {
                Ok(bytes) => {
                    let marks =
                        self.settings.mark_read == MarkRead::OnRead && !self.settings.read_only;
                    let mark = marks.then(|| MarkAtEnd::new(ix, opener));
                    return Ok(Some(Answer { bytes, mark, handed: Some(ix) }));
                }
                Err(e) => {
                    self.take_back(ix);
                    // Gone between the look and the read: look again.
                    if !matches!(e, Error::NotFound) {
                        return Err(e);
                    }
                }
            }
        }
    }

    /// A `.next` no longer has a message: if it was not read to its end, it is for somebody else.
    pub(super) fn take_back(&self, ix: MsgIx) {
        self.handed.lock().remove(&ix);
        self.index.wake();
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
