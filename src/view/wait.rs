//! `.wait` and `.next`: reads that block until there is mail.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::file::{Answer, MarkAtEnd, OpenFile};
use super::{Error, Tree};
use crate::index::MsgIx;
use crate::model::MarkRead;

/// How often a waiting process is asked whether it was interrupted.
const ASK: Duration = Duration::from_millis(100);

impl Tree {
    /// Whether a read of this file would block: it belongs on a thread of its own.
    pub fn would_wait(&self, file: &OpenFile) -> bool {
        matches!(file, OpenFile::Waiting { answer, .. } if answer.lock().is_none())
    }

    /// Waits for mail on behalf of a reader; [`Tree::read`] then has the answer. `interrupted` is
    /// asked every tenth of a second.
    ///
    /// # Errors
    /// [`Error::Interrupted`]; store errors as they come.
    pub fn await_mail(&self, file: &OpenFile, interrupted: &dyn Fn() -> bool) -> Result<(), Error> {
        let OpenFile::Waiting { next, answer } = file else { return Ok(()) };
        let deadline = Instant::now() + self.settings.wait_timeout;
        let got = loop {
            let seen = self.index.news();
            let unread = self.index.read().inbox().next();
            if let Some(ix) = unread {
                match self.answer(*next, ix) {
                    // Gone between the look and the read: look again.
                    Err(Error::NotFound) => {}
                    other => break other?,
                }
            }
            if interrupted() {
                return Err(Error::Interrupted);
            }
            let now = Instant::now();
            if now >= deadline {
                break Answer { bytes: Arc::from(&[][..]), mark: None };
            }
            self.index.wait(seen, deadline.min(now + ASK));
        };
        *answer.lock() = Some(got);
        Ok(())
    }

    fn answer(&self, next: bool, oldest: MsgIx) -> Result<Answer, Error> {
        if next {
            let marks = self.settings.mark_read == MarkRead::OnRead && !self.settings.read_only;
            let mark = marks.then(|| MarkAtEnd::new(oldest));
            return Ok(Answer { bytes: self.rendered(oldest)?, mark });
        }
        let mut text = self.unread_names().join("\n");
        text.push('\n');
        Ok(Answer { bytes: text.into_bytes().into(), mark: None })
    }

    /// Names of the unread messages, oldest first.
    pub(super) fn unread_names(&self) -> Vec<String> {
        self.unread_files(usize::MAX).into_iter().map(|(_, name)| name).collect()
    }

    /// Waits until there is unread mail, at most `timeout`, and gives its names, oldest first.
    pub fn wait(&self, timeout: Duration) -> Vec<String> {
        let deadline = Instant::now() + timeout;
        loop {
            let seen = self.index.news();
            let names = self.unread_names();
            if !names.is_empty() || Instant::now() >= deadline {
                return names;
            }
            self.index.wait(seen, deadline);
        }
    }
}
