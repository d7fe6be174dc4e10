//! The way from the logs into the stream.
//!
//! Each message names the one that it expects to be the last of its subject. So a line that is sent twice is stored
//! once, even if an answer was lost, and two machines that write as one never overtake each other unseen.

use std::fs::File;
use std::io;
use std::time::{Duration, Instant};

use async_nats::{Event, HeaderMap, Message, Request, RequestErrorKind, ServerError};
use serde::Deserialize;

use super::failure::NatsError;
use super::line::{self, AT, PublishedLine};
use super::log::{NatsLogReader, NatsLogTail};
use super::log_sync::LogSync;
use super::receive::ReplayEnd;
use super::server::{ApiError, NatsConnection};
use crate::model::sanitize_line;
use crate::store::fs::Stamp;
use crate::store::samp::alias;

/// The room for the headers of a message.
pub const HEADERS: u64 = 1024;
/// The limits on lines and bytes of one batch.
const LINES: usize = 500;
const BYTES: usize = 4 << 20;
/// The time for which a rewritten log must stay unchanged before it is examined, since the program that rewrites it may
/// not be done.
const STILL: Duration = Duration::from_secs(1);
/// The pauses for one writer: after the server has a newer message, a lost answer, a full stream, and a denied
/// permission of the server or of the disk.
const NEWER: Duration = Duration::from_millis(100);
const LOST: Duration = Duration::from_millis(500);
const FULL: Duration = Duration::from_secs(5);
pub const DENIED: Duration = Duration::from_secs(30);

/// The pause before the lines that a log lacks are put back again, if it could not be written.
const BLOCKED: Duration = Duration::from_secs(300);

/// The error codes for a full stream.
const NO_ROOM: [u64; 5] = [10_002, 10_023, 10_047, 10_077, 10_122];
/// The error code for another last message of the subject, whose number stands at the end of the text.
const NOT_LAST: u64 = 10_071;

/// A line to publish.
#[derive(Debug)]
struct OutgoingLine {
    bytes: Vec<u8>,
    id: String,
}

/// The result of publishing.
#[derive(Debug)]
pub enum PublishOutcome {
    /// Success, as the message of this number.
    Stored(u64),
    /// A conflict with the subject's last message, of this number.
    NotLast(u64),
    /// A missing permission.
    Denied,
    /// No answer, or a useless one.
    Unknown,
    /// A refusal by the stream.
    Refused(ApiError),
}

#[derive(Debug, Deserialize)]
struct PublishAck {
    #[serde(default)]
    seq: u64,
    error: Option<ApiError>,
}

impl LogSync {
    /// Publishes the next lines of a log, or puts back the lines that it lacks. Returns true if there is more to do at
    /// once.
    ///
    /// # Errors
    /// Returns an error of the connection or the disk.
    pub async fn sync_writer(
        &mut self,
        server: &mut NatsConnection,
        writer: &str,
        batches: bool,
    ) -> Result<bool, NatsError> {
        let known = self.writer_mut(writer);
        if known.held_until.is_some_and(|hold| hold > Instant::now()) {
            return Ok(false);
        }
        known.held_until = None;
        let opened = self.open_unsettled(writer);
        let Some(Some((file, stamp))) = self.note_unreadable(writer, opened) else {
            return Ok(false);
        };
        let known = self.writer_mut(writer);
        let end = stamp.map_or(0, |stamp| stamp.size);
        if known.place.odd.is_some() && known.compared_upto() < end && known.published_ids.is_none()
        {
            self.load_published_ids(server, writer).await?;
        }
        let limit = if batches && self.writer_mut(writer).is_accepted { LINES } else { 1 };
        let collected = self.collect_lines(writer, file, server.max_payload, limit);
        let Some(lines) = self.note_unreadable(writer, collected) else {
            return Ok(false);
        };
        if !lines.is_empty() {
            return self.publish_lines(server, writer, lines).await;
        }
        self.set_note(&format!("publish {writer}"), None);
        let known = self.writer_mut(writer);
        known.settled_stamp = stamp;
        if !known.place.lacks_lines {
            return Ok(false);
        }
        let upto = self.state.cursor.seq;
        let end = self.replay_messages(server, writer, upto).await?;
        let known = self.writer_mut(writer);
        match end {
            ReplayEnd::Complete => (known.place.lacks_lines, known.is_dirty) = (false, true),
            ReplayEnd::Deferred => {}
            ReplayEnd::Blocked => {
                known.held_until = Some(Instant::now() + BLOCKED);
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Opens a log in which something is to do now. Returns it with its stamp; both are `None` if it was removed.
    fn open_unsettled(
        &mut self,
        writer: &str,
    ) -> io::Result<Option<(Option<File>, Option<Stamp>)>> {
        let stamp = self.logs.read_stamp(writer)?;
        let known = self.writer_mut(writer);
        let same = stamp.is_some() && stamp == known.settled_stamp && !known.place.lacks_lines;
        let nothing = stamp.is_none() && known.place.end == 0;
        if same || nothing {
            return Ok(None);
        }
        let file = self.logs.open_log(writer)?;
        let stamp = file.as_ref().map(Stamp::from_file).transpose()?;
        let is_settled = self.is_settled(writer, file.as_ref(), stamp)?;
        Ok(is_settled.then_some((file, stamp)))
    }

    /// Returns the result of reading a log; `None` if it cannot be read. Then people are told, and the log is tried
    /// again later, so that no other writer waits for it.
    fn note_unreadable<T>(&mut self, writer: &str, read: io::Result<T>) -> Option<T> {
        let text = read.as_ref().err().map(|error| format!("{} {error}", alias::log_name(writer)));
        if text.is_some() {
            self.writer_mut(writer).held_until = Some(Instant::now() + DENIED);
        }
        self.set_note(&format!("log {writer}"), text);
        read.ok()
    }

    /// Returns true if a log only grew, or was rewritten and has not changed since.
    fn is_settled(
        &mut self,
        writer: &str,
        file: Option<&File>,
        stamp: Option<Stamp>,
    ) -> io::Result<bool> {
        let known = self.writer_mut(writer);
        let (ino, len) = stamp.map_or((0, 0), |stamp| (stamp.ino, stamp.size));
        let rewritten = match file {
            Some(file) => !known.place.is_of(file)?,
            None => known.place.odd.is_some() || known.place.end > 0,
        };
        if !rewritten || known.place.lacks_lines {
            known.rewritten_since = None;
            if known.place.lacks_lines
                && known.place.odd.is_none_or(|(was, done)| was != ino || len < done)
            {
                known.start_compare(ino, 0);
            }
            return Ok(true);
        }
        let since = match known.rewritten_since {
            Some((was, since)) if was == stamp => since,
            _ => Instant::now(),
        };
        known.rewritten_since = Some((stamp, since));
        if since.elapsed() < STILL {
            known.held_until = Some(since + STILL);
            return Ok(false);
        }
        known.rewritten_since = None;
        known.start_compare(ino, 0);
        known.note_missing_lines();
        Ok(true)
    }

    /// Returns the next lines to publish. They follow each other in the log.
    fn collect_lines(
        &mut self,
        writer: &str,
        file: Option<File>,
        most: u64,
        limit: usize,
    ) -> io::Result<Vec<OutgoingLine>> {
        let (mut batch, mut size, mut kept) = (Vec::new(), 0, Vec::new());
        let known = self.writer_mut(writer);
        let Some(file) = file else { return Ok(batch) };
        let ino = Stamp::from_file(&file)?.ino;
        let mut lines = NatsLogReader::read_from(file.try_clone()?, known.compared_upto())?;
        while let Some((line, end)) = lines.next()? {
            let fits = match line::validate_line(writer, line) {
                Ok(_) if line.len() as u64 + HEADERS > most => {
                    Err(format!("it has {} bytes, and the server takes {most}", line.len()))
                }
                other => other.map_err(|why| why.to_string()),
            };
            let new =
                |id: &String| known.published_ids.as_ref().is_none_or(|ids| !ids.contains(id));
            let is_published = fits.is_ok();
            match fits {
                Ok(id) if known.place.odd.is_none() || new(&id) => {
                    if batch.len() == limit || (size + line.len() > BYTES && !batch.is_empty()) {
                        break;
                    }
                    size += line.len();
                    batch.push(OutgoingLine { bytes: line.to_vec(), id });
                }
                // The batch goes out before further lines are examined.
                _ if !batch.is_empty() => break,
                Ok(_) => {}
                Err(why) => {
                    if !line.trim_ascii().is_empty() {
                        kept.push((end, why));
                    }
                }
            }
            if batch.is_empty() {
                known.place.pass_local_line(ino, (line, end), is_published);
                known.is_dirty = true;
            }
        }
        if !batch.is_empty() {
            file.sync_data()?;
        }
        for (end, why) in kept {
            self.note_local_line(writer, end, &why);
        }
        Ok(batch)
    }

    async fn publish_lines(
        &mut self,
        server: &mut NatsConnection,
        writer: &str,
        lines: Vec<OutgoingLine>,
    ) -> Result<bool, NatsError> {
        let place = self.writer_mut(writer).place.clone();
        let sent = send_lines(server, writer, &lines, (place.end, place.seq)).await?;
        let now = Instant::now();
        let mut note = None;
        let cursor = self.state.cursor.seq;
        let known = self.writer_mut(writer);
        match sent {
            PublishOutcome::Stored(seq) => {
                let mut at = place.end;
                for OutgoingLine { bytes, id } in lines {
                    let line = PublishedLine { at, bytes: &bytes, id };
                    at = line.end_offset();
                    known.place.tail = Some(NatsLogTail::from_line(&line));
                    if let Some((ino, done)) = known.place.odd {
                        let end = done + bytes.len() as u64;
                        known.place.pass_local_line(ino, (&bytes, end), true);
                    }
                    if let Some(published) = &mut known.published_ids {
                        published.insert(line.id);
                    }
                }
                (known.place.seq, known.place.end) = (seq, at);
                (known.is_accepted, known.is_dirty) = (true, true);
                self.set_note(&format!("publish {writer}"), None);
                self.flush()?;
                return Ok(true);
            }
            PublishOutcome::NotLast(last) => {
                known.held_until = Some(now + NEWER);
                // A newer message comes by itself; an older one means a purge.
                if last <= cursor {
                    known.place.seq = last;
                }
            }
            PublishOutcome::Unknown => {
                known.held_until = Some(now + LOST);
                note = Some(format!(
                    "the server does not say that it took lines of {writer}; they are sent again"
                ));
            }
            PublishOutcome::Denied => {
                known.is_accepted = false;
                known.held_until = Some(now + DENIED);
                note = Some(format!(
                    "this machine may not publish as {writer}: the server does not permit it; it is tried \
                     again by itself"
                ));
            }
            PublishOutcome::Refused(error) => {
                let full = NO_ROOM.contains(&error.err_code);
                known.held_until = Some(now + FULL);
                // A single line may pass if a batch does not.
                known.is_accepted = false;
                let what = sanitize_line(&error.description).into_owned();
                note = Some(if full {
                    format!(
                        "the stream is full ({what}): lines of {writer} wait; give it more room"
                    )
                } else {
                    format!("the server does not take lines of {writer}: {what}")
                });
            }
        }
        if note.is_some() {
            self.set_note(&format!("publish {writer}"), note);
        }
        Ok(false)
    }
}

/// Sends lines, several as one batch. They begin at an offset of the published log and follow the message `expected`.
async fn send_lines(
    server: &mut NatsConnection,
    writer: &str,
    lines: &[OutgoingLine],
    (mut at, expected): (u64, u64),
) -> Result<PublishOutcome, NatsError> {
    let client = server.client.clone();
    let subject = server.space.writer_subject(writer);
    let stream = server.space.stream_name();
    let inbox = client.new_inbox();
    let batch = inbox.rsplit('.').next().unwrap_or_default().to_owned();
    let lost = |e: &dyn std::fmt::Display| NatsError::Lost(e.to_string());
    let ack = async {
        let mut answer = Err(RequestErrorKind::Other);
        for (n, line) in lines.iter().enumerate() {
            let mut headers = HeaderMap::new();
            headers.insert(AT, at.to_string());
            headers.insert("Nats-Expected-Stream", &*stream);
            if n == 0 {
                headers.insert("Nats-Expected-Last-Subject-Sequence", expected.to_string());
            }
            if lines.len() > 1 {
                headers.insert("Nats-Batch-Id", &*batch);
                headers.insert("Nats-Batch-Sequence", (n + 1).to_string());
            }
            at += line.bytes.len() as u64;
            let payload = line.bytes.clone().into();
            if n + 1 < lines.len() {
                let sent = client.publish_with_headers(subject.clone(), headers, payload);
                sent.await.map_err(|e| lost(&e))?;
                continue;
            }
            if lines.len() > 1 {
                headers.insert("Nats-Batch-Commit", "1");
            }
            let request = Request::new().headers(headers).payload(payload);
            answer = client.send_request(subject.clone(), request).await.map_err(|e| e.kind());
        }
        Ok(answer)
    };
    await_outcome(server, &subject, ack).await
}

/// Returns the result of publishing to a subject, by the answer. A missing permission shows only as an event.
///
/// # Errors
/// Returns an error if the connection ends.
pub async fn await_outcome(
    server: &mut NatsConnection,
    subject: &str,
    ack: impl Future<Output = Result<Result<Message, RequestErrorKind>, NatsError>>,
) -> Result<PublishOutcome, NatsError> {
    let denied = async {
        loop {
            match server.next_event().await {
                Some(Event::ServerError(ServerError::Other(text)))
                    if text.contains("ermissions Violation for Publish")
                        && text.contains(&format!("\"{subject}\"")) =>
                {
                    return Ok(());
                }
                Some(Event::Disconnected | Event::Closed) | None => {
                    return Err(NatsError::Lost("by the server".into()));
                }
                Some(_) => {}
            }
        }
    };
    let answer = tokio::select! {
        answer = ack => answer?,
        denied = denied => return denied.map(|()| PublishOutcome::Denied),
    };
    let message = match answer {
        Ok(message) => message,
        Err(RequestErrorKind::NoResponders) => {
            return Err(NatsError::Lost("the stream is gone".into()));
        }
        Err(_) => return Ok(PublishOutcome::Unknown),
    };
    let ack: PublishAck = serde_json::from_slice(&message.payload)
        .map_err(|_| NatsError::BadAnswer("the answer to a line"))?;
    Ok(match ack.error {
        None if ack.seq > 0 => PublishOutcome::Stored(ack.seq),
        None => PublishOutcome::Unknown,
        Some(error) if error.err_code == NOT_LAST => {
            let last = error.description.rsplit(' ').next().and_then(|last| last.parse().ok());
            last.map_or(PublishOutcome::Unknown, PublishOutcome::NotLast)
        }
        Some(error) => PublishOutcome::Refused(error),
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;
    use std::path::Path;
    use std::sync::Arc;

    use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

    use super::*;
    use crate::link::HealthBoard;
    use crate::link::nats::block_on_runtime;
    use crate::link::nats::server::tests::silent_server;
    use crate::link::nats::state::NatsState;

    fn open(dir: &Path) -> (LogSync, Arc<HealthBoard>) {
        let folder = dir.join("samp");
        std::fs::create_dir_all(&folder).unwrap();
        let line = r#"{"id":"1","from":"a","to":"b","thread":"t","ts":1,"body":"x"}"#;
        std::fs::write(folder.join("log-a.jsonl"), format!("{line}\n")).unwrap();
        let kept = NatsState::open(&dir.join("state")).unwrap().unwrap();
        let board = Arc::new(HealthBoard::new("nats", dir, ""));
        (LogSync::new(&folder, kept, Arc::clone(&board)).unwrap(), board)
    }

    /// Syncs the log of `a` with a server that does not answer lines.
    fn sync(log_sync: &mut LogSync) -> bool {
        let synced = async {
            let mut server = silent_server().await;
            let more = log_sync.sync_writer(&mut server, "a", false).await;
            log_sync.report_notes();
            more
        };
        block_on_runtime(synced).unwrap().unwrap()
    }

    /// Takes from root, on this thread, the right to read every file.
    fn obey_modes() {
        let mut sets = capabilities(None).unwrap();
        sets.effective -= CapabilitySet::DAC_OVERRIDE | CapabilitySet::DAC_READ_SEARCH;
        set_capabilities(None, sets).unwrap();
    }

    /// S1310: the connection goes on, so the logs of other writers are published.
    #[test]
    fn s1310_a_log_that_cannot_be_read_stops_no_other() {
        obey_modes();
        let dir = tempfile::tempdir().unwrap();
        let (mut log_sync, board) = open(dir.path());
        let log = dir.path().join("samp/log-a.jsonl");
        std::fs::set_permissions(&log, std::fs::Permissions::from_mode(0o0)).unwrap();
        assert!(!sync(&mut log_sync));
        assert_eq!(board.health().notes, ["log-a.jsonl Permission denied (os error 13)"]);
        assert!(log_sync.writer_mut("a").held_until.is_some(), "it is tried again");
        // A log that is gone is not tried again for ever.
        log_sync.writer_mut("a").held_until = Some(Instant::now());
        std::fs::remove_file(&log).unwrap();
        assert!(!sync(&mut log_sync));
        assert_eq!(board.health().notes, [""; 0]);
        assert_eq!(log_sync.writer_mut("a").held_until, None);
    }

    /// S1311: the message whose line is sent again and again says why it waits.
    #[test]
    fn s1311_a_server_that_does_not_answer_lines_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let (mut log_sync, board) = open(dir.path());
        assert!(!sync(&mut log_sync));
        let why = "the server does not say that it took lines of a; they are sent again";
        assert_eq!(board.health().notes, [why]);
        let (waiting, behind) = log_sync.measure_backlog();
        assert_eq!((waiting, behind["a"].why.as_deref()), (1, Some(why)));
    }
}
