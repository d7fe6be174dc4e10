//! The way from the stream into the logs.
//!
//! A line carries its offset in the published log. If the local log is a beginning or a continuation of the published
//! one, that suffices: the line is there, or it goes to the end. If the log is neither (some program compacted it, or
//! two machines write as one), the ids of records decide.

use std::fs::File;
use std::io;

use async_nats::Message;

use super::direct_get::{SUBJECTS, StreamMessage};
use super::failure::NatsError;
use super::line::{self, PublishedLine};
use super::log::{LogLineMatch, NatsLogTail, match_line};
use super::log_sync::{ConnectionRisk, LogSync, WriterState, is_log_blocked};
use super::publish::HEADERS;
use super::server::{NatsConnection, StreamInfo};
use super::state::StreamCursor;
use crate::store::fs::Stamp;
use crate::store::samp::alias;

/// The room that a subject takes in a request, at most.
const SUBJECT: u64 = 256;

/// The result of placing a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinePlacement {
    /// A line at its position.
    InPlace,
    /// A line elsewhere, or one that does not belong into the log.
    Elsewhere,
    /// A line that is left out until the new lines of the local log are published.
    Deferred,
    /// A line whose predecessors must come first, since the local log ends before its position.
    Replay,
    /// A line for which the published ids must be loaded first.
    Compare,
}

/// The end of a replay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplayEnd {
    /// The log has every line that belongs into it.
    Complete,
    /// Lines are left out until the new lines of the log are published.
    Deferred,
    /// The log cannot be written.
    Blocked,
}

impl LogSync {
    /// Puts a line into the log, unless it is there.
    fn accept_line(
        &mut self,
        writer: &str,
        line: &PublishedLine<'_>,
        seq: u64,
        replayed: bool,
    ) -> io::Result<LinePlacement> {
        let (name, mut known) = self
            .writers
            .remove_entry(writer)
            .unwrap_or_else(|| (writer.to_owned(), WriterState::default()));
        let taken = self.place_line(writer, &mut known, line, (seq, replayed));
        let is_unplaced =
            matches!(taken, Err(_) | Ok(LinePlacement::Replay | LinePlacement::Compare));
        if !is_unplaced {
            known.advance_past(line, seq, replayed);
        }
        self.writers.insert(name, known);
        taken
    }

    fn place_line(
        &mut self,
        writer: &str,
        known: &mut WriterState,
        line: &PublishedLine<'_>,
        (seq, replayed): (u64, bool),
    ) -> io::Result<LinePlacement> {
        // The line was in the local log before it came, or known not to belong there.
        let passed = seq <= known.place.seq;
        let file = self.logs.open_log(writer)?;
        let len = file.as_ref().map(Stamp::from_file).transpose()?.map_or(0, |stamp| stamp.size);
        let found = match &file {
            Some(file) => match_line(file, len, line)?,
            None if line.at == 0 => LogLineMatch::End,
            None => LogLineMatch::Short,
        };
        let missing = match found {
            LogLineMatch::Line => return Ok(LinePlacement::InPlace),
            LogLineMatch::Partial(there) => line.bytes.get(there as usize..).unwrap_or_default(),
            // The log was cut or rewritten after this machine published its lines. It is examined when it no longer
            // changes, and its new lines are published first.
            _ if passed && !replayed && known.place.odd.is_none() => {
                self.pending_writers.insert(writer.to_owned());
                return Ok(LinePlacement::Deferred);
            }
            LogLineMatch::End if is_continuation(known, line, file.as_ref())? => line.bytes,
            // If ids decide, a log may be longer or shorter than the published one.
            LogLineMatch::Short if !replayed && known.place.odd.is_none() => {
                return Ok(LinePlacement::Replay);
            }
            _ => return self.place_line_by_id(writer, known, line, (file.as_ref(), passed)),
        };
        let name = alias::log_name(writer);
        let landed = self.logs.append_text(&name, missing, false)?;
        self.unsynced_files.insert(name);
        if landed.at == len {
            return Ok(LinePlacement::InPlace);
        }
        // Another program appended first, so the log must be compared.
        known.start_compare(0, 0);
        Ok(LinePlacement::Elsewhere)
    }

    fn place_line_by_id(
        &mut self,
        writer: &str,
        known: &mut WriterState,
        line: &PublishedLine<'_>,
        (file, passed): (Option<&File>, bool),
    ) -> io::Result<LinePlacement> {
        if known.refresh_ids(writer, file)?.contains(&line.id) {
            return Ok(LinePlacement::Elsewhere);
        }
        if !known.advance_compared(writer, file)? {
            if known.published_ids.is_none() {
                return Ok(LinePlacement::Compare);
            }
            if passed {
                // The lines that the local log lost come back after its new lines are published.
                known.note_missing_lines();
                self.pending_writers.insert(writer.to_owned());
                return Ok(LinePlacement::Deferred);
            }
            return self.append_conflict_copy(writer, line);
        }
        let name = alias::log_name(writer);
        let landed = self.logs.append_text(&name, line.bytes, true)?;
        self.unsynced_files.insert(name);
        // This is skipped if another program appended in between, since its line must still be examined.
        if landed.at == known.compared_upto() {
            let end = line.bytes.len() as u64 + landed.at;
            known.place.pass_local_line(landed.ino, (line.bytes, end), true);
            known.is_dirty = true;
        }
        Ok(if landed.at == line.at { LinePlacement::InPlace } else { LinePlacement::Elsewhere })
    }

    /// Appends a line to the conflict copy, since this machine and another one write as the same writer. So the order
    /// of both is kept.
    fn append_conflict_copy(
        &mut self,
        writer: &str,
        line: &PublishedLine<'_>,
    ) -> io::Result<LinePlacement> {
        let name = self.logs.choose_copy_name(writer, &self.host)?;
        let file = self.logs.open_beside(&name)?;
        let stamp = file.as_ref().map(Stamp::from_file).transpose()?.unwrap_or_default();
        let ids = self.conflict_copies.entry(name.clone()).or_default();
        ids.read_new_ids(writer, file.as_ref(), &stamp)?;
        if !ids.contains(&line.id) {
            self.logs.append_text(&name, line.bytes, true)?;
            self.unsynced_files.insert(name.clone());
        }
        let text = format!("another machine writes as {writer}, too; its lines are in {name}");
        self.set_note(&format!("two {writer}"), Some(text));
        Ok(LinePlacement::Elsewhere)
    }

    /// Accepts a message of the stream.
    ///
    /// # Errors
    /// Returns an error if it can be neither placed nor refused.
    pub async fn receive_message(
        &mut self,
        server: &mut NatsConnection,
        (seq, time): (u64, i64),
        message: &Message,
    ) -> Result<(), NatsError> {
        self.receive_as(server, (seq, time), &message.subject, message, 0).await
    }

    /// Accepts a message that was read out of order.
    ///
    /// # Errors
    /// Returns the errors of [`LogSync::receive_message`].
    pub async fn receive_stored(
        &mut self,
        server: &mut NatsConnection,
        stored: &StreamMessage,
    ) -> Result<(), NatsError> {
        let (number, subject) = ((stored.seq, stored.time), stored.subject.as_str());
        self.receive_as(server, number, subject, &stored.message, stored.answers).await?;
        self.state.cursor.is_risky = true;
        Ok(())
    }

    async fn receive_as(
        &mut self,
        server: &mut NatsConnection,
        (seq, time): (u64, i64),
        subject: &str,
        message: &Message,
        answers: usize,
    ) -> Result<(), NatsError> {
        let headers = message.headers.as_ref();
        match line::accept_message(&server.space, subject, headers, &message.payload, answers) {
            Ok((writer, line)) => self.settle_line(server, &writer, &line, seq).await?,
            Err(why) => self.refuse_message(server, subject, seq, &why.to_string()),
        }
        (self.state.cursor.seq, self.state.cursor.time) = (seq, time);
        self.state.cursor.is_risky = false;
        Ok(())
    }

    /// Refuses a message. The server still expects its number as the last one of the subject.
    fn refuse_message(&mut self, server: &NatsConnection, subject: &str, seq: u64, why: &str) {
        if let Some(writer) = server.space.parse_writer(subject) {
            let known = self.writer_mut(&writer);
            known.place.seq = known.place.seq.max(seq);
            known.is_dirty = true;
        }
        self.note_refused_message(seq, subject, why);
    }

    async fn settle_line(
        &mut self,
        server: &mut NatsConnection,
        writer: &str,
        line: &PublishedLine<'_>,
        seq: u64,
    ) -> Result<(), NatsError> {
        let mut replayed = false;
        loop {
            match self.accept_line(writer, line, seq, replayed) {
                Ok(LinePlacement::Replay) => {
                    self.replay_messages(server, writer, seq.saturating_sub(1)).await?;
                    replayed = true;
                }
                Ok(LinePlacement::Compare) => self.load_published_ids(server, writer).await?,
                Ok(_) => return Ok(()),
                Err(error) if is_log_blocked(&error) => {
                    let why = format!("{} {error}", alias::log_name(writer));
                    self.refuse_message(server, &server.space.writer_subject(writer), seq, &why);
                    let known = self.writer_mut(writer);
                    known.place.end = known.place.end.max(line.end_offset());
                    known.note_missing_lines();
                    return Ok(());
                }
                Err(error) => return Err(NatsError::Disk(alias::log_name(writer), error)),
            }
        }
    }

    /// Puts the lines into a log that it lacks of the messages up to `upto`.
    ///
    /// # Errors
    /// Returns an error if they cannot be read or written.
    pub async fn replay_messages(
        &mut self,
        server: &mut NatsConnection,
        writer: &str,
        upto: u64,
    ) -> Result<ReplayEnd, NatsError> {
        let (mut from, mut straight, mut first) = (1, true, true);
        let mut end = ReplayEnd::Complete;
        loop {
            let (some, more) = self.read_messages(server, writer, from).await?;
            for stored in some.iter().take_while(|stored| stored.seq <= upto) {
                let Some(line) = parse_stored_line(server, stored) else { continue };
                straight &= !first || line.at == 0;
                first = false;
                loop {
                    match self.accept_line(writer, &line, stored.seq, true) {
                        Ok(LinePlacement::Compare) => {
                            self.load_published_ids(server, writer).await?;
                        }
                        Ok(taken) => {
                            straight &= taken == LinePlacement::InPlace;
                            if taken == LinePlacement::Deferred {
                                end = ReplayEnd::Deferred;
                            }
                            break;
                        }
                        Err(error) if is_log_blocked(&error) => return Ok(ReplayEnd::Blocked),
                        Err(error) => return Err(NatsError::Disk(alias::log_name(writer), error)),
                    }
                }
            }
            self.flush()?;
            match some.last().map(|stored| stored.seq) {
                Some(last) if more && last < upto => from = last + 1,
                _ => break,
            }
        }
        let known = self.writer_mut(writer);
        if straight && !first {
            known.place.set_odd(None);
            (known.local_ids, known.published_ids) = (None, None);
            known.is_dirty = true;
        }
        Ok(end)
    }

    /// Returns some messages of a writer from a number on, and true if there may be more.
    async fn read_messages(
        &mut self,
        server: &mut NatsConnection,
        writer: &str,
        from: u64,
    ) -> Result<(Vec<StreamMessage>, bool), NatsError> {
        let subject = server.space.writer_subject(writer);
        self.risk = ConnectionRisk::Writers(vec![writer.to_owned()]);
        let read = server.fetch_from(&subject, from, self.broken_writers.contains(writer)).await?;
        self.risk = ConnectionRisk::None;
        Ok(read)
    }

    /// Loads the published ids of a writer.
    ///
    /// # Errors
    /// Returns an error if they cannot be read.
    pub async fn load_published_ids(
        &mut self,
        server: &mut NatsConnection,
        writer: &str,
    ) -> Result<(), NatsError> {
        let (mut ids, mut from) = (std::collections::HashSet::new(), 1);
        loop {
            let (some, more) = self.read_messages(server, writer, from).await?;
            ids.extend(
                some.iter().filter_map(|stored| Some(parse_stored_line(server, stored)?.id)),
            );
            match some.last() {
                Some(last) if more => from = last.seq + 1,
                _ => break,
            }
        }
        self.writer_mut(writer).published_ids = Some(ids);
        Ok(())
    }

    /// Checks after connecting that the stream is the known one, and that the logs still hold the published lines.
    ///
    /// # Errors
    /// Returns an error if the check cannot be made.
    pub async fn verify_stream(
        &mut self,
        server: &mut NatsConnection,
        info: &StreamInfo,
    ) -> Result<(), NatsError> {
        let cursor = self.state.cursor.clone();
        let held = info.state;
        let mut other = cursor.created != info.created || cursor.seq > held.last_seq;
        if !other && cursor.time != 0 && cursor.seq >= held.first_seq {
            let there = self.query_cursor_time(server).await?;
            other = there.is_some_and(|time| time != cursor.time);
        }
        if other {
            // The stream was made anew, or restored from an older copy. Local lines are published again if they are
            // missing there.
            self.writers.clear();
            self.reset_refusal_count();
            let start = StreamCursor { created: info.created.clone(), ..StreamCursor::default() };
            self.state.restart_at(start).map_err(NatsError::disk("the state of the link"))?;
        }
        self.state.cursor.most = server.max_payload;
        if self.state.cursor.seq + 1 < held.first_seq {
            (self.state.cursor.seq, self.state.cursor.time) = (held.first_seq - 1, 0);
        }
        for known in self.writers.values_mut() {
            (known.held_until, known.is_accepted, known.settled_stamp) = (None, false, None);
        }
        for name in &self.broken_writers {
            if let Some(known) = self.writers.get_mut(name) {
                known.note_missing_lines();
            }
        }
        let names = self.writers.keys().filter(|name| !self.broken_writers.contains(*name));
        let names: Vec<String> = names.cloned().collect();
        let room = (server.max_payload.saturating_sub(HEADERS) / SUBJECT) as usize;
        let several = if self.asks_singly { 1 } else { room.clamp(1, SUBJECTS) };
        for names in names.chunks(several) {
            let subjects: Vec<String> =
                names.iter().map(|w| server.space.writer_subject(w)).collect();
            self.risk = ConnectionRisk::Writers(names.to_vec());
            let lasts = server.fetch_last_messages(&subjects, self.state.cursor.seq).await?;
            self.risk = ConnectionRisk::None;
            for name in names {
                // The subject counts as purged, unless its last message follows below.
                self.writer_mut(name).place.seq = 0;
            }
            for stored in lasts {
                self.verify_log(server, &stored);
            }
        }
        Ok(())
    }

    /// Returns the time of the message at the cursor; `None` if it does not exist.
    async fn query_cursor_time(
        &mut self,
        server: &mut NatsConnection,
    ) -> Result<Option<i64>, NatsError> {
        let seq = self.state.cursor.seq;
        let there = if self.state.cursor.is_risky {
            server.fetch_via_api(">", seq).await?.filter(|there| there.seq == seq)
        } else {
            self.risk = ConnectionRisk::Cursor;
            let there = server.fetch_message(seq).await?;
            self.risk = ConnectionRisk::None;
            there
        };
        Ok(there.map(|there| there.time))
    }

    /// Compares the last message of a subject with the log.
    fn verify_log(&mut self, server: &NatsConnection, stored: &StreamMessage) {
        let Some(writer) = server.space.parse_writer(&stored.subject) else { return };
        let file = self.logs.open_log(&writer).ok().flatten();
        let known = self.writer_mut(&writer);
        known.place.seq = stored.seq;
        known.is_dirty = true;
        let Some(line) = parse_stored_line(server, stored) else {
            known.note_missing_lines();
            return;
        };
        known.place.end = line.end_offset();
        known.place.tail = Some(NatsLogTail::from_line(&line));
        let stamp = file.as_ref().and_then(|file| Stamp::from_file(file).ok()).unwrap_or_default();
        let found = file.and_then(|file| match_line(&file, stamp.size, &line).ok());
        let compared = known.place.odd.is_some_and(|(ino, n)| ino == stamp.ino && n <= stamp.size);
        known.place.lacks_lines |= found != Some(LogLineMatch::Line) && !compared;
    }
}

/// Returns the line in a message that was read out of order.
fn parse_stored_line<'a>(
    server: &NatsConnection,
    stored: &'a StreamMessage,
) -> Option<PublishedLine<'a>> {
    let Message { headers, payload, .. } = &stored.message;
    let (space, subject, answers) = (&server.space, &stored.subject, stored.answers);
    let (_, line) =
        line::accept_message(space, subject, headers.as_ref(), payload, answers).ok()?;
    Some(line)
}

/// Returns true if a line at the end of a log continues the lines that were published before it.
fn is_continuation(
    known: &WriterState,
    line: &PublishedLine<'_>,
    file: Option<&File>,
) -> io::Result<bool> {
    if known.place.odd.is_some() {
        return Ok(false);
    }
    Ok(match (known.place.tail, file) {
        _ if line.at == 0 => true,
        (Some(tail), Some(file)) => tail.end_offset() == line.at && tail.is_in(file)?,
        (None, _) => known.place.end == line.at,
        (Some(_), None) => false,
    })
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::path::Path;
    use std::sync::Arc;

    use super::*;
    use crate::link::HealthBoard;
    use crate::link::nats::state::{self, NatsState, SubjectPosition};

    fn text(n: usize) -> String {
        format!(
            "{{\"id\":\"a-{n}\",\"from\":\"a\",\"to\":\"b\",\"thread\":\"t\",\"ts\":1,\"body\":\"{n}\"}}\n"
        )
    }

    fn texts(range: std::ops::Range<usize>) -> String {
        range.map(text).collect()
    }

    /// Returns a machine with this text in the log of `a`, of which it has published the first six lines.
    fn machine(dir: &Path, log: &str) -> LogSync {
        let folder = dir.join("samp");
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("log-a.jsonl"), log).unwrap();
        let kept = NatsState::open(&dir.join("state")).unwrap().unwrap();
        let board = Arc::new(HealthBoard::new("nats", dir, ""));
        let mut log_sync = LogSync::new(&folder, kept, board).unwrap();
        let (last, all) = (text(5), texts(0..6));
        let at = (all.len() - last.len()) as u64;
        let tail = PublishedLine { at, bytes: last.as_bytes(), id: String::new() };
        let known = log_sync.writer_mut("a");
        known.place =
            SubjectPosition { seq: 6, end: all.len() as u64, ..SubjectPosition::default() };
        known.place.tail = Some(NatsLogTail::from_line(&tail));
        log_sync
    }

    fn comes(log_sync: &mut LogSync, n: usize, seq: u64, replayed: bool) -> LinePlacement {
        let (at, bytes) = (texts(0..n).len() as u64, text(n));
        let line = PublishedLine { at, bytes: bytes.as_bytes(), id: format!("a-{n}") };
        log_sync.accept_line("a", &line, seq, replayed).unwrap()
    }

    fn files(dir: &Path) -> Vec<String> {
        let entries = std::fs::read_dir(dir.join("samp")).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    /// The log is cut, and a line is added before the machine's own published lines come back.
    #[test]
    fn own_lines_that_come_after_a_cut_are_not_another_machines() {
        for cut in [texts(0..2) + &text(6), texts(0..2), texts(3..6) + &text(6), String::new()] {
            let dir = tempfile::tempdir().unwrap();
            let mut log_sync = machine(dir.path(), &cut);
            for n in 2..6 {
                assert_eq!(comes(&mut log_sync, n, n as u64 + 1, false), LinePlacement::Deferred);
            }
            assert_eq!(files(dir.path()), ["log-a.jsonl"]);
            let log = dir.path().join("samp/log-a.jsonl");
            assert_eq!(
                std::fs::read_to_string(log).unwrap(),
                cut,
                "nothing before it is left alone"
            );
            assert!(log_sync.pending_writers.contains("a"));
        }
    }

    /// The same, but the line is added while they are put back.
    #[test]
    fn what_is_put_back_waits_for_what_is_to_be_published() {
        let dir = tempfile::tempdir().unwrap();
        let mut log_sync = machine(dir.path(), &(texts(0..2) + &text(6)));
        let known = log_sync.writer_mut("a");
        known.start_compare(0, 0);
        known.published_ids = Some((0..6).map(|n| format!("a-{n}")).collect::<HashSet<_>>());
        assert_eq!(comes(&mut log_sync, 2, 3, true), LinePlacement::Deferred);
        assert_eq!(files(dir.path()), ["log-a.jsonl"]);
        assert!(
            log_sync.writer_mut("a").place.lacks_lines && log_sync.pending_writers.contains("a")
        );
        // A process that is killed here leaves the need behind, although its cursor may be past the lines.
        log_sync.flush().unwrap();
        let (_, saved) =
            state::read_journal(&dir.path().join("state").join(state::JOURNAL)).unwrap();
        assert!(saved["a"].lacks_lines);
        // After it is published, the missing lines come to the end.
        log_sync.writer_mut("a").published_ids.as_mut().unwrap().insert("a-6".into());
        assert_eq!(comes(&mut log_sync, 2, 3, true), LinePlacement::Elsewhere);
        let log = std::fs::read_to_string(dir.path().join("samp/log-a.jsonl")).unwrap();
        assert_eq!(log, texts(0..2) + &text(6) + &text(2));
    }

    /// Lines that another machine wrote under the same name do not count.
    #[test]
    fn what_another_machine_wrote_goes_beside() {
        let dir = tempfile::tempdir().unwrap();
        let mut log_sync = machine(dir.path(), &(texts(0..6) + &text(7)));
        assert_eq!(comes(&mut log_sync, 6, 7, false), LinePlacement::Compare);
        let ids = (0..7).map(|n| format!("a-{n}")).collect::<HashSet<_>>();
        log_sync.writer_mut("a").published_ids = Some(ids);
        assert_eq!(comes(&mut log_sync, 6, 7, false), LinePlacement::Elsewhere);
        assert!(files(dir.path()).iter().any(|name| name.contains("sync-conflict")));
    }
}
