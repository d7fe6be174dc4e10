//! One connection for marks: it first reads all values, then publishes the counts that they lack, and then does both as
//! they come.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Instant;

use async_nats::{Event, HeaderMap, Request};
use futures_util::FutureExt as _;
use tokio::time;

use super::bucket_value::{self, BucketPart};
use super::direct_get::StreamMessage;
use super::failure::NatsError;
use super::feed::{FeedMessage, StreamFeed};
use super::make_consumer_name;
use super::mark_sync::{MarkSyncState, MarkSyncWorker, describe_not_permitted};
use super::publish::{DENIED, PublishOutcome, await_outcome};
use super::read_counts::{MarkReplica, ReadCount};
use super::server::NatsConnection;
use crate::model::sanitize_line;

/// The number of silences in a row, of five seconds each, after which the bucket is checked.
const SILENCES: u32 = 6;
/// The number of connections in a row that were lost before all was read, after which values are read one by one
/// through the API, so that no value can end the connection.
const STRIKES: u32 = 3;
/// The number of counts that are merged at once.
const COUNTS: usize = 4096;
/// The limit on the number of parts of this machine, which are enough for as many counts as a machine takes.
const PARTS: u32 = if cfg!(test) { 4 } else { 4096 };
/// The number of queued counts above which lost counts are left to the next connection.
const QUEUED: usize = 1 << 14;
/// The limit on the number of bad values that are remembered.
const TOLD: usize = 32;

/// One connection.
struct MarkSession<'a> {
    share: &'a MarkSyncWorker,
    known: &'a mut MarkSyncState,
    server: NatsConnection,
    /// My subjects.
    own_subjects: String,
    /// The time at which the bucket was made.
    created: String,
    /// The counts of the values that existed at first, as far as they are known here; `None` after they were read.
    initial_replica: Option<MarkReplica>,
    /// The number of values that must still be read at first.
    pending: u64,
    /// The counts to publish.
    unpublished: Vec<ReadCount>,
    /// The parts of this machine, and the number of the part that is filled.
    parts: BTreeMap<u32, BucketPart>,
    filling_part: u32,
    /// The moment before which nothing is published, and the reason.
    held_until: Option<(Instant, String)>,
    /// The reasons why values are ignored, by subject.
    bad_values: BTreeMap<String, String>,
}

/// Shares marks until the connection or the link ends.
///
/// # Errors
/// Returns the reason why it cannot go on.
pub async fn run(share: &MarkSyncWorker, known: &mut MarkSyncState) -> Result<(), NatsError> {
    let mut server = NatsConnection::connect(&share.spec).await?.with_mark_bucket();
    let info = match server.query_mark_bucket().await? {
        Some(info) => info,
        None => server.create_mark_bucket().await?,
    };
    let mut round = MarkSession::new(share, known, server, info.created);
    round.read_local_marks()?;
    // The comparison with the bucket finds those that are missing there.
    round.unpublished.clear();
    if round.known.strikes >= STRIKES {
        round.read_carefully().await?;
    }
    let next = round.known.last_seq + 1;
    let name = make_consumer_name();
    let (feed, pending) =
        StreamFeed::start(&mut round.server, &name, next, Some(&round.own_subjects)).await?;
    round.pending = pending;
    round.exchange_marks(feed).await
}

impl<'a> MarkSession<'a> {
    fn new(
        share: &'a MarkSyncWorker,
        known: &'a mut MarkSyncState,
        server: NatsConnection,
        created: String,
    ) -> Self {
        Self {
            share,
            known,
            own_subjects: server.space.identity_subjects(&share.identity.me),
            server,
            created,
            initial_replica: Some(MarkReplica::default()),
            pending: 0,
            unpublished: Vec::new(),
            parts: BTreeMap::new(),
            filling_part: 0,
            held_until: None,
            bad_values: BTreeMap::new(),
        }
    }

    async fn exchange_marks(&mut self, mut feed: StreamFeed) -> Result<(), NatsError> {
        let (client, mut silences) = (self.server.client.clone(), 0);
        loop {
            if self.pending == 0 {
                self.finish_initial_read();
            }
            if self.may_publish() {
                self.publish_part().await?;
                continue;
            }
            if self.share.wake.is_stopped() {
                self.read_local_marks()?;
                if self.may_publish() {
                    continue;
                }
                return Ok(());
            }
            let hold = self.held_until.as_ref().map(|(until, _)| time::Instant::from_std(*until));
            let hold = hold.filter(|_| !self.unpublished.is_empty());
            tokio::select! {
                biased;
                event = self.server.next_event() => {
                    if matches!(event, None | Some(Event::Disconnected | Event::Closed)) {
                        return Err(NatsError::Lost("by the server".into()));
                    }
                }
                came = feed.next(&client) => {
                    if let Some(came) = came? {
                        silences = 0;
                        self.receive_values(&client, &mut feed, came)?;
                        continue;
                    }
                    silences += 1;
                    // The values that were still to come were rewritten, and came as new ones.
                    self.pending = 0;
                    if silences % SILENCES == 0 {
                        self.check_same_bucket().await?;
                    }
                }
                () = self.share.wake.work.notified() => self.read_local_marks()?,
                () = time::sleep_until(hold.unwrap_or_else(time::Instant::now)), if hold.is_some() => {}
            }
        }
    }

    /// Queues all counts that the bucket lacked.
    fn finish_initial_read(&mut self) {
        if let Some(there) = self.initial_replica.take() {
            self.unpublished.extend(self.known.replica.list_missing_in(&there));
            self.share.is_connected.store(true, Ordering::Relaxed);
            self.report_status();
        }
    }

    fn may_publish(&self) -> bool {
        let held = self.held_until.as_ref().is_some_and(|(until, _)| *until > Instant::now());
        self.initial_replica.is_none() && !self.unpublished.is_empty() && !held
    }

    /// Updates the note for people about marks.
    fn report_status(&self) {
        let held = self.held_until.as_ref().map(|(_, why)| why.clone());
        let full =
            || "there are too many marks, so this machine does not get all of them".to_owned();
        let full = || self.known.replica.is_full().then(full);
        self.share
            .report_status(held.or_else(|| self.bad_values.values().next().cloned()).or_else(full));
    }

    /// Merges the new marks of this machine.
    fn read_local_marks(&mut self) -> Result<(), NatsError> {
        let since = self.share.marks.read_since(self.known.file_length);
        let (marks, at) = since.map_err(NatsError::disk("the file of marks"))?;
        for mark in &marks {
            self.unpublished.extend(self.known.replica.apply_mark(self.known.host, mark));
        }
        self.known.file_length = at;
        Ok(())
    }

    /// Merges the counts of other machines. The new marks of this machine come first: a program that cleared a mark
    /// could not mean one that was not known yet.
    fn apply_heard_counts(&mut self, entries: &[ReadCount]) -> Result<(), NatsError> {
        loop {
            self.read_local_marks()?;
            let heard = self.known.replica.preview_news(entries);
            if heard.is_empty() {
                break;
            }
            let noted = self.share.marks.append_heard(self.known.file_length, &heard);
            if let Some(at) = noted.map_err(NatsError::disk("the file of marks"))? {
                for mark in &heard {
                    self.known.replica.apply_mark(self.known.host, mark);
                }
                self.known.file_length = at;
                break;
            }
        }
        // Counts for which there is no room here are not kept, since nothing of them is missing there.
        let known = &self.known.replica;
        if let Some(there) = &mut self.initial_replica {
            for entry in entries.iter().filter(|entry| known.has_count(entry)) {
                there.merge_count(entry);
            }
        }
        Ok(())
    }

    /// Reads all values one by one through the API, so that no value can end the connection.
    async fn read_carefully(&mut self) -> Result<(), NatsError> {
        loop {
            let next = self.known.last_seq + 1;
            let (some, more) = self.server.fetch_from(&self.own_subjects, next, true).await?;
            let mut entries = Vec::new();
            for StreamMessage { seq, subject, message, .. } in some {
                self.read_value(seq, &subject, &message.payload, &mut entries);
            }
            self.apply_heard_counts(&entries)?;
            if !more {
                return Ok(());
            }
        }
    }

    /// Accepts a value and those that are ready behind it.
    fn receive_values(
        &mut self,
        client: &async_nats::Client,
        feed: &mut StreamFeed,
        came: FeedMessage,
    ) -> Result<(), NatsError> {
        let (mut next, mut entries) = (Some(came), Vec::new());
        while let Some(FeedMessage { seq, pending, message, .. }) = next {
            self.read_value(seq, &message.subject, &message.payload, &mut entries);
            // After the first reading, further values are new.
            self.pending = self.pending.min(pending);
            if entries.len() > COUNTS {
                break;
            }
            next = feed.next(client).now_or_never().transpose()?.flatten();
        }
        if self.initial_replica.is_none() {
            self.report_status();
        }
        self.apply_heard_counts(&entries)
    }

    /// Reads one value and merges its counts into the known parts.
    fn read_value(&mut self, seq: u64, subject: &str, bytes: &[u8], entries: &mut Vec<ReadCount>) {
        self.known.last_seq = seq;
        let parted = self.server.space.parse_part_subject(&self.share.identity.me, subject);
        let mine = parted.filter(|(host, part)| *host == self.known.host && *part < PARTS);
        let mine = mine.map(|(_, part)| part);
        if mine.and_then(|part| self.parts.get(&part)).is_some_and(|part| part.seq >= seq) {
            return;
        }
        let value = parted.ok_or("its subject is not one of msgfs");
        let value = value.and_then(|(host, _)| bucket_value::decode_value(host, bytes));
        self.bad_values.remove(subject);
        let found = value.unwrap_or_else(|why| {
            let subject = sanitize_line(subject).into_owned();
            if self.bad_values.len() < TOLD {
                let what = format!("the marks in {subject} are ignored: {why}");
                self.bad_values.insert(subject, what);
            }
            Vec::new()
        });
        if let Some(part) = mine {
            // Another machine wrote this part, so its missing counts are published again.
            let old = self.parts.insert(part, BucketPart::new(seq, &found));
            let lost = old.into_iter().flat_map(|old| old.entries);
            let room = QUEUED.saturating_sub(self.unpublished.len());
            self.unpublished.extend(lost.filter(|entry| !found.contains(entry)).take(room));
        }
        entries.extend(found);
    }

    /// Publishes some of the queued counts.
    async fn publish_part(&mut self) -> Result<(), NatsError> {
        if self.filling_part == PARTS {
            let why = "there are too many marks, so my other machines do not get all of them";
            self.held_until = Some((Instant::now() + DENIED, why.to_owned()));
            self.report_status();
            return Ok(());
        }
        let host = self.known.host;
        let part = self.parts.entry(self.filling_part).or_default();
        let (seq, before) = (part.seq, part.entries.len());
        let Some(mut entries) = part.fill_from(&mut self.unpublished) else {
            self.filling_part += u32::from(!self.unpublished.is_empty());
            return Ok(());
        };
        let subject =
            self.server.space.part_subject(&self.share.identity.me, host, self.filling_part);
        let mut headers = HeaderMap::new();
        headers.insert("Nats-Expected-Stream", &*self.server.stream);
        headers.insert("Nats-Expected-Last-Subject-Sequence", seq.to_string());
        let value = bucket_value::encode_value(host, &entries);
        let request = Request::new().headers(headers).payload(value.into());
        let client = self.server.client.clone();
        let ack = client.send_request(subject.clone(), request);
        let ack = async { Ok(ack.await.map_err(|error| error.kind())) };
        let why = match await_outcome(&mut self.server, &subject, ack).await? {
            PublishOutcome::Stored(seq) => {
                self.parts.insert(self.filling_part, BucketPart { seq, entries });
                if self.held_until.take().is_some() {
                    self.report_status();
                }
                return Ok(());
            }
            // The next connection reads the value and publishes what it lacks.
            PublishOutcome::NotLast(_) => {
                return fail_lost("another machine uses the identity of this one");
            }
            PublishOutcome::Unknown => return fail_lost("a mark was not answered"),
            PublishOutcome::Denied => describe_not_permitted(&self.own_subjects),
            PublishOutcome::Refused(error) => format!(
                "my other machines do not learn what I read here: the stream {} does not take it: \
                 {}",
                self.server.stream,
                sanitize_line(&error.description)
            ),
        };
        self.unpublished.extend(entries.drain(before..));
        self.held_until = Some((Instant::now() + DENIED, why));
        self.report_status();
        Ok(())
    }

    /// Fails if the bucket is another one now, or an older copy.
    async fn check_same_bucket(&mut self) -> Result<(), NatsError> {
        let info = self.server.query_mark_bucket().await?;
        let same = info.is_some_and(|info| {
            info.created == self.created && info.state.last_seq >= self.known.last_seq
        });
        if same {
            Ok(())
        } else {
            fail_lost("the bucket of marks was replaced or has lost messages")
        }
    }
}

fn fail_lost<T>(why: &str) -> Result<T, NatsError> {
    Err(NatsError::Lost(why.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::super::block_on_runtime;
    use super::super::mark_sync::tests::worker;
    use super::super::server::tests::silent_server;
    use super::*;
    use crate::model::MachineId;

    /// S434: values of other machines, also in the name of this one, take a limited part of the memory.
    #[test]
    fn s434_foreign_values_take_limited_memory() {
        let dir = tempfile::tempdir().unwrap();
        let share = worker(dir.path());
        let mut known = MarkSyncState { host: MachineId(1), ..MarkSyncState::default() };
        let server = async { silent_server().await.with_mark_bucket() };
        let server = block_on_runtime(server).unwrap();
        let mut session = MarkSession::new(&share, &mut known, server, String::new());
        for seq in 0..480 {
            let (host, part, round) = (MachineId(seq % 2 + 1), seq as u32 / 2 % 12, seq / 24);
            let entry = |n: u32| {
                let id = format!("{round}-{part}-{n}");
                ReadCount { from: "bob".into(), id, host, count: 1 }
            };
            let value: Vec<ReadCount> = (0..300).map(entry).collect();
            let value = bucket_value::encode_value(host, &value);
            let subject = session.server.space.part_subject("alice", host, part);
            let mut entries = Vec::new();
            session.read_value(seq + 1, &subject, &value, &mut entries);
            assert_eq!(entries.len(), 300);
            session.apply_heard_counts(&entries).unwrap();
        }
        assert!(session.known.replica.is_full());
        let there = session.initial_replica.as_ref().unwrap();
        assert!(there.list_missing_in(&MarkReplica::default()).len() < 400);
        assert_eq!(session.parts.len(), 4);
        assert!(session.parts.values().all(|part| part.entries.len() == 256));
        let queued = session.unpublished.len();
        assert_eq!(queued, QUEUED);
        session.finish_initial_read();
        assert_eq!(session.unpublished.len(), queued, "nothing is missing there");
    }
}
