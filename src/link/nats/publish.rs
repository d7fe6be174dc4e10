//! From the logs into the stream.
//!
//! Each message says which one it expects to be the last of its subject, so a line that is sent twice is
//! stored once, whatever became of the answer, and two machines that write as one never overtake
//! each other unseen.

use std::fs::File;
use std::time::{Duration, Instant};

use async_nats::{Event, HeaderMap, Message, Request, RequestErrorKind, ServerError};
use serde::Deserialize;

use super::carrier::{Carrier, is_barred};
use super::failure::Failure;
use super::line::{self, AT, Line};
use super::log::{Lines, Tail};
use super::server::{ApiError, Server};
use crate::model::one_line;
use crate::store::fs::Stamp;
use crate::store::samp::alias;

/// Room for the headers of a message.
pub const HEADERS: u64 = 1024;
/// Lines and bytes of one batch.
const LINES: usize = 500;
const BYTES: usize = 4 << 20;
/// A log that was rewritten is looked at when it has stayed as it is for this long: whoever rewrites it may
/// not be done.
const STILL: Duration = Duration::from_secs(1);
/// How long nothing is tried for a writer: when the server knows something newer, when an answer was lost, when
/// it has no room, when it does not permit.
const NEWER: Duration = Duration::from_millis(100);
const LOST: Duration = Duration::from_millis(500);
const FULL: Duration = Duration::from_secs(5);
pub const DENIED: Duration = Duration::from_secs(30);

/// The errors that say there is no room.
const NO_ROOM: [u64; 5] = [10_002, 10_023, 10_047, 10_077, 10_122];
/// The error that says another message is the last of the subject, and which, at the end of its text.
const NOT_LAST: u64 = 10_071;

/// A line to be sent.
#[derive(Debug)]
struct Outgoing {
    bytes: Vec<u8>,
    id: String,
}

/// What became of what was sent.
#[derive(Debug)]
pub enum Sent {
    /// It is the message of this number.
    Stored(u64),
    /// Another message is the last of the subject.
    NotLast(u64),
    /// The server does not permit it.
    Denied,
    /// There was no answer, or none that tells.
    Unknown,
    /// The stream does not take it.
    Refused(ApiError),
}

#[derive(Debug, Deserialize)]
struct Ack {
    #[serde(default)]
    seq: u64,
    error: Option<ApiError>,
}

impl Carrier {
    /// Publishes the next lines of a log, or puts back what it lacks. Whether there is more to do at once.
    ///
    /// # Errors
    /// If the connection or the disk ends it.
    pub async fn serve(
        &mut self,
        server: &mut Server,
        writer: &str,
        batches: bool,
    ) -> Result<bool, Failure> {
        let stamp = match self.logs.stamp(writer) {
            Err(error) if is_barred(&error) => {
                let text = format!("{} {error}", alias::log_name(writer));
                self.say(&format!("log {writer}"), Some(text));
                return Ok(false);
            }
            other => other.map_err(Failure::disk(writer))?,
        };
        self.say(&format!("log {writer}"), None);
        let known = self.writer(writer);
        let same = stamp.is_some() && stamp == known.seen && !known.wanting;
        let nothing = stamp.is_none() && known.place.end == 0;
        if same || nothing || known.hold.is_some_and(|hold| hold > Instant::now()) {
            return Ok(false);
        }
        known.hold = None;
        let file = self.logs.read(writer).map_err(Failure::disk(writer))?;
        let stamp = file.as_ref().map(Stamp::of).transpose().map_err(Failure::disk(writer))?;
        if !self.is_settled(writer, file.as_ref(), stamp)? {
            return Ok(false);
        }
        let known = self.writer(writer);
        let end = stamp.map_or(0, |stamp| stamp.size);
        if known.place.odd.is_some() && known.done() < end && known.published.is_none() {
            self.ask_published(server, writer).await?;
        }
        let limit = if batches && self.writer(writer).proven { LINES } else { 1 };
        let (lines, upto) = self.next_lines(writer, file, server.most, limit)?;
        if !lines.is_empty() {
            return self.publish(server, writer, lines, upto).await;
        }
        self.say(&format!("publish {writer}"), None);
        let known = self.writer(writer);
        known.seen = stamp;
        if std::mem::take(&mut known.wanting) {
            let upto = self.state.cursor.seq;
            self.replay(server, writer, upto).await?;
            return Ok(true);
        }
        Ok(false)
    }

    /// Whether a log is as it was but for what was appended, or has been rewritten and left alone since.
    fn is_settled(
        &mut self,
        writer: &str,
        file: Option<&File>,
        stamp: Option<Stamp>,
    ) -> Result<bool, Failure> {
        let known = self.writer(writer);
        let (ino, len) = stamp.map_or((0, 0), |stamp| (stamp.ino, stamp.size));
        let rewritten = match (known.place.odd, known.tail, file) {
            (Some((was, done)), _, _) => was != ino || len < done,
            (None, Some(tail), Some(file)) => {
                len < known.place.end || !tail.is_in(file).map_err(Failure::disk(writer))?
            }
            (None, ..) => len < known.place.end,
        };
        if !rewritten || known.wanting {
            known.unsettled = None;
            if known.wanting && known.place.odd.is_none_or(|(was, done)| was != ino || len < done) {
                known.compare(ino, 0);
            }
            return Ok(true);
        }
        let since = match known.unsettled {
            Some((was, since)) if was == stamp => since,
            _ => Instant::now(),
        };
        known.unsettled = Some((stamp, since));
        if since.elapsed() < STILL {
            known.hold = Some(since + STILL);
            return Ok(false);
        }
        known.unsettled = None;
        known.compare(ino, 0);
        known.wanting = true;
        Ok(true)
    }

    /// The next lines to be published, and where they end in the log.
    fn next_lines(
        &mut self,
        writer: &str,
        file: Option<File>,
        most: u64,
        limit: usize,
    ) -> Result<(Vec<Outgoing>, u64), Failure> {
        let disk = |e| Failure::Disk(alias::log_name(writer), e);
        let (mut batch, mut size, mut kept) = (Vec::new(), 0, Vec::new());
        let known = self.writer(writer);
        let mut upto = known.done();
        let Some(file) = file else { return Ok((batch, upto)) };
        let ino = Stamp::of(&file).map_err(disk)?.ino;
        let mut lines = Lines::from(file.try_clone().map_err(disk)?, upto).map_err(disk)?;
        while let Some((line, end)) = lines.next().map_err(disk)? {
            let fits = match line::travels(writer, line) {
                Ok(_) if line.len() as u64 + HEADERS > most => {
                    Err(format!("it has {} bytes, and the server takes {most}", line.len()))
                }
                other => other.map_err(|why| why.to_string()),
            };
            let new = |id: &String| known.published.as_ref().is_none_or(|ids| !ids.contains(id));
            match fits {
                Ok(id) if known.place.odd.is_none() || new(&id) => {
                    if batch.len() == limit || (size + line.len() > BYTES && !batch.is_empty()) {
                        break;
                    }
                    size += line.len();
                    batch.push(Outgoing { bytes: line.to_vec(), id });
                }
                // What was published goes on before what follows is looked at.
                _ if !batch.is_empty() => break,
                Ok(_) => {}
                Err(why) => {
                    if !line.trim_ascii().is_empty() {
                        kept.push((end, why));
                    }
                }
            }
            upto = end;
            if batch.is_empty() {
                // Behind a line that stays here, places differ.
                known.place.odd = Some((ino, end));
                known.changed = true;
            }
        }
        if !batch.is_empty() {
            file.sync_data().map_err(disk)?;
        }
        for (end, why) in kept {
            self.keep_here(writer, end, &why);
        }
        Ok((batch, upto))
    }

    async fn publish(
        &mut self,
        server: &mut Server,
        writer: &str,
        lines: Vec<Outgoing>,
        upto: u64,
    ) -> Result<bool, Failure> {
        let place = self.writer(writer).place.clone();
        let sent = send(server, writer, &lines, (place.end, place.seq)).await?;
        let now = Instant::now();
        let mut note = None;
        let cursor = self.state.cursor.seq;
        let known = self.writer(writer);
        match sent {
            Sent::Stored(seq) => {
                let mut at = place.end;
                for Outgoing { bytes, id } in lines {
                    let line = Line { at, bytes: &bytes, id };
                    at = line.end();
                    known.tail = Some(Tail::of(&line));
                    if let Some(published) = &mut known.published {
                        published.insert(line.id);
                    }
                }
                if let Some((_, done)) = &mut known.place.odd {
                    *done = upto;
                }
                (known.place.seq, known.place.end) = (seq, at);
                (known.proven, known.changed) = (true, true);
                self.say(&format!("publish {writer}"), None);
                self.flush()?;
                return Ok(true);
            }
            Sent::NotLast(last) => {
                known.hold = Some(now + NEWER);
                // Something newer comes by itself; nothing at all is a purge.
                if last <= cursor {
                    known.place.seq = last;
                }
            }
            Sent::Unknown => known.hold = Some(now + LOST),
            Sent::Denied => {
                known.proven = false;
                known.hold = Some(now + DENIED);
                note = Some(format!(
                    "this machine may not publish as {writer}: the server does not permit it; it is tried \
                     again by itself"
                ));
            }
            Sent::Refused(error) => {
                let full = NO_ROOM.contains(&error.err_code);
                known.hold = Some(now + FULL);
                // One alone may pass where several do not.
                known.proven = false;
                let what = one_line(&error.description).into_owned();
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
            self.say(&format!("publish {writer}"), note);
        }
        Ok(false)
    }
}

/// Sends lines, which begin at a place of the published log behind a message: several as one.
async fn send(
    server: &mut Server,
    writer: &str,
    lines: &[Outgoing],
    (mut at, expected): (u64, u64),
) -> Result<Sent, Failure> {
    let client = server.client.clone();
    let subject = server.space.subject(writer);
    let stream = server.space.stream();
    let inbox = client.new_inbox();
    let batch = inbox.rsplit('.').next().unwrap_or_default().to_owned();
    let lost = |e: &dyn std::fmt::Display| Failure::Lost(e.to_string());
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
    outcome(server, &subject, ack).await
}

/// What became of what is sent to a subject, by the answer; a server that does not permit it says so beside.
///
/// # Errors
/// If the connection ends.
pub async fn outcome(
    server: &mut Server,
    subject: &str,
    ack: impl Future<Output = Result<Result<Message, RequestErrorKind>, Failure>>,
) -> Result<Sent, Failure> {
    let denied = async {
        loop {
            match server.event().await {
                Some(Event::ServerError(ServerError::Other(text)))
                    if text.contains("ermissions Violation for Publish")
                        && text.contains(&format!("\"{subject}\"")) =>
                {
                    return Ok(());
                }
                Some(Event::Disconnected | Event::Closed) | None => {
                    return Err(Failure::Lost("by the server".into()));
                }
                Some(_) => {}
            }
        }
    };
    let answer = tokio::select! {
        answer = ack => answer?,
        denied = denied => return denied.map(|()| Sent::Denied),
    };
    let message = match answer {
        Ok(message) => message,
        Err(RequestErrorKind::NoResponders) => {
            return Err(Failure::Lost("the stream is gone".into()));
        }
        Err(_) => return Ok(Sent::Unknown),
    };
    let ack: Ack = serde_json::from_slice(&message.payload)
        .map_err(|_| Failure::Nonsense("the answer to a line"))?;
    Ok(match ack.error {
        None if ack.seq > 0 => Sent::Stored(ack.seq),
        None => Sent::Unknown,
        Some(error) if error.err_code == NOT_LAST => {
            let last = error.description.rsplit(' ').next().and_then(|last| last.parse().ok());
            last.map_or(Sent::Unknown, Sent::NotLast)
        }
        Some(error) => Sent::Refused(error),
    })
}
