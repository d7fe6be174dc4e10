//! The fold of the lines of a log, one after the other. It finds the lines that are copies, and the ends of messages.

use std::borrow::Cow;

use super::dialect::SessionDialect;
use super::facts::PendingPieces;
use super::format::{SessionFormat, SessionStore, agent_of_log, report_message, role_of_step};
use super::line::{HeadNotes, LineStep, SessionLine, TitleNote};
use super::message::SessionRole;
use super::owners::{LineClaim, OwnedLine, SessionShared, find_copied, hash_line_id, last_message};
use crate::model::{Timestamp, sanitize_line};
use crate::store::engine::lines::table::LogRowOf;
use crate::store::fs::MAX_RECORD;
use crate::store::{FoundMessage, Location};

/// A line that is taken in after those before it.
pub(super) struct SessionFold<'r, 'a, D: SessionDialect> {
    pub(super) store: &'r SessionStore<D>,
    pub(super) n: u32,
    pub(super) log: &'r mut LogRowOf<SessionFormat<D>>,
    pub(super) shared: &'r mut SessionShared,
    /// The thread of the log.
    pub(super) key: &'a str,
    pub(super) at: Location,
}

impl<'a, D: SessionDialect> SessionFold<'_, 'a, D> {
    /// Takes in a line. Adds the messages that are complete now to `found`. The error is the reason why the line is
    /// not understood.
    pub(super) fn accept_line(
        &mut self,
        mut line: SessionLine<'a>,
        found: &mut Vec<FoundMessage<'a>>,
    ) -> Result<(), String> {
        let read = &mut self.log.facts.read;
        if read.is_refused {
            return Ok(());
        }
        let mut notes = Some(std::mem::take(&mut line.notes));
        let is_head = notes.as_ref().is_some_and(|notes| notes.is_first);
        let is_first = !std::mem::replace(&mut read.is_begun, true);
        if is_first {
            self.shared.note_log(self.n, self.key, None);
        }
        if D::FIRST_LINE_DESCRIBES_SESSION && is_first != is_head {
            if is_head {
                // A fork repeats the first line of its origin.
                read.repeats_origin = true;
                return Ok(());
            }
            read.is_refused = true;
            return Err("the first line of the log does not describe a session".to_owned());
        }
        read.repeats_origin |= notes.as_ref().is_some_and(|notes| notes.repeats_origin);
        if let (true, Some(time)) = (line.id.is_empty(), line.time) {
            self.shared.note_log(self.n, self.key, Some(time.millis()));
        }
        if is_first && notes.as_ref().is_some_and(|notes| notes.base.is_some()) {
            let shared = self.shared.forks.get(&self.n);
            self.log.facts.read.last_copied = shared.and_then(|lines| last_message(lines)).cloned();
        }
        if let Some(agent) = notes.as_mut().and_then(|notes| notes.agent.take()) {
            self.log.facts.agent = Some(agent.into_owned());
        }
        let read = &mut self.log.facts.read;
        let is_prompt =
            |notes: &mut HeadNotes<'_>| matches!(notes.title, Some(TitleNote::Prompt(_)));
        // A prompt that was copied is no title.
        let at_once = notes.take_if(|notes| !is_prompt(notes));
        if at_once.is_some_and(|notes| read.about.take_notes(notes)) {
            self.shared.retitled.insert(self.n);
        }
        if line.step == LineStep::End {
            self.close_pending(found);
        }
        if !line.step.is_shown() || self.is_repeated(&line) || !self.claim_line(&line)? {
            return Ok(());
        }
        if notes.is_some_and(|notes| self.log.facts.read.about.take_notes(notes)) {
            self.shared.retitled.insert(self.n);
        }
        self.take_step(&line, found);
        Ok(())
    }

    /// Returns true if a line is one of those that a fork has repeated.
    fn is_repeated(&mut self, line: &SessionLine<'_>) -> bool {
        let read = &mut self.log.facts.read;
        if !read.repeats_origin || read.copies_ended {
            return false;
        }
        let Some(origin) = self.shared.forks.get(&self.n) else { return false };
        if line.step == LineStep::Piece && line.content == 0 {
            return true;
        }
        let ahead = origin.get(read.copied_lines..).unwrap_or_default();
        let Some((before, copied)) = find_copied(ahead, line) else {
            read.copies_ended = true;
            return false;
        };
        read.copied_lines += before + 1;
        if copied.id.is_some() {
            read.last_copied.clone_from(&copied.id);
        }
        true
    }

    /// Returns true if a line is one of this log, and not a copy.
    fn claim_line(&mut self, line: &SessionLine<'_>) -> Result<bool, String> {
        if !D::PIECES_HAVE_IDS && line.step == LineStep::Piece {
            return Ok(true);
        }
        if line.id.is_empty() || line.id.contains('\0') {
            return Err("the id is missing, empty or holds U+0000".to_owned());
        }
        if let Some(origin) = &line.copied_from {
            self.shared.note_origin(self.n, origin);
        }
        let claimed = self.shared.claim_line(&OwnedLine {
            id: hash_line_id(&line.id),
            content: line.content,
            log: self.n,
            offset: self.at.offset,
            epoch: self.log.epoch,
        });
        if claimed != LineClaim::Own && !D::PIECES_HAVE_IDS {
            // The pieces before it are those of the other line.
            self.log.facts.read.pending = None;
        }
        match claimed {
            LineClaim::Own => Ok(true),
            LineClaim::Repeated => Ok(false),
            LineClaim::Conflict => {
                let id = sanitize_line(&line.id);
                Err(format!("another line with the id {id:?} stands before it"))
            }
            LineClaim::CopyOf(owner) => {
                self.note_copy(line, owner);
                Ok(false)
            }
        }
    }

    fn note_copy(&mut self, line: &SessionLine<'_>, owner: u32) {
        let read = &mut self.log.facts.read;
        if line.step.ends_message() && read.first_own.is_none() {
            read.last_copied = Some(line.id.clone().into_owned());
        }
        if read.about.origin.is_none() {
            read.about.origin = self.shared.log_name(owner).map(str::to_owned);
        }
    }

    fn take_step(&mut self, line: &SessionLine<'a>, found: &mut Vec<FoundMessage<'a>>) {
        let end = self.at.offset + u64::from(self.at.len);
        let starts_new = |pending: &PendingPieces| {
            end - pending.start > MAX_RECORD as u64 || pending.is_sidechain != line.is_sidechain
        };
        let is_own_message = matches!(line.step, LineStep::Prompt | LineStep::Notice);
        let pending = self.log.facts.read.pending.as_ref();
        if pending.is_some_and(|pending| is_own_message || starts_new(pending)) {
            self.close_pending(found);
        }
        let read = &mut self.log.facts.read;
        let before = self.log.tally.last_time.map(Timestamp::from_millis).unwrap_or_default();
        let time = line.time.unwrap_or(before);
        let pending = read.pending.take();
        let has_parts = line.has_parts || pending.is_some();
        let start = pending.map_or(self.at.offset, |pending| pending.start);
        if line.time.is_none() {
            read.taken_times.insert(start, time);
        } else {
            read.taken_times.remove(&start);
        }
        let whole = PendingPieces {
            start,
            end,
            last_id: line.id.clone().into_owned(),
            time,
            line: self.log.tally.lines,
            is_sidechain: line.is_sidechain,
        };
        if line.step == LineStep::Piece {
            read.pending = Some(whole);
        } else {
            found.push(self.describe_message(whole, role_of_step(line.step), has_parts));
        }
    }

    /// Reports the pieces that no text has followed as a message.
    fn close_pending(&mut self, found: &mut Vec<FoundMessage<'a>>) {
        let Some(mut pending) = self.log.facts.read.pending.take() else { return };
        if !D::PIECES_HAVE_IDS {
            pending.last_id = D::derive_id(self.key, &pending);
        }
        found.push(self.describe_message(pending, SessionRole::Agent, true));
    }

    fn describe_message(
        &mut self,
        message: PendingPieces,
        role: SessionRole,
        has_parts: bool,
    ) -> FoundMessage<'a> {
        let agent = agent_of_log::<D>(self.log, message.is_sidechain);
        let read = &mut self.log.facts.read;
        let before = read.name_time.map(Timestamp::from_millis);
        let name_time = message.time.kept_behind(before);
        read.name_time = Some(name_time.millis());
        if self.log.facts.title.is_none() {
            // It is reported without a title, also if none follows.
            self.shared.retitled.insert(self.n);
        }
        let read = &mut self.log.facts.read;
        self.log.tally.last_time = Some(message.time.millis());
        if read.first_own.is_none() {
            read.first_own = Some(message.last_id.clone());
        }
        let is_first = read.first_own.as_ref() == Some(&message.last_id);
        let report = report_message(role, agent.as_deref(), &self.store.properties.me);
        let answered = read.last_copied.clone().filter(|_| is_first && report.from_me);
        let Ok(len) = u32::try_from(message.end - message.start) else {
            panic!("a message spans more bytes than a record may have");
        };
        FoundMessage {
            at: Location { offset: message.start, len, ..self.at },
            line: message.line,
            thread: Cow::Borrowed(self.key),
            in_reply_to: answered.map(Cow::Owned),
            id: Cow::Owned(message.last_id),
            time: message.time,
            name_time: Some(name_time),
            has_parts,
            ..report
        }
    }
}
