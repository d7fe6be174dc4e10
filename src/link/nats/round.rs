//! One connection on which marks are shared: first all that is there is read, then what is not there is told,
//! and both go on.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Instant;

use async_nats::{Event, HeaderMap, Request};
use futures_util::FutureExt as _;
use tokio::time;

use super::direct::StreamMessage;
use super::failure::NatsError;
use super::feed::{FeedMessage, StreamFeed};
use super::make_consumer_name;
use super::publish::{DENIED, PublishOutcome, await_outcome};
use super::said::{MarkReplica, ReadCount};
use super::server::NatsConnection;
use super::share::{MarkSyncState, MarkSyncWorker, describe_not_permitted};
use super::value::{self, BucketPart};
use crate::model::sanitize_line;

/// So many times in a row nothing came for five seconds, and it is asked whether the bucket is the same.
const SILENCES: u32 = 6;
/// Connections that ended behind the same value, after which it is read in the way that nothing can break.
const STRIKES: u32 = 3;
/// Counts that are taken over at once.
const COUNTS: usize = 4096;
/// Values that count for nothing and are remembered.
const TOLD: usize = 32;

/// One connection.
struct MarkSession<'a> {
    share: &'a MarkSyncWorker,
    known: &'a mut MarkSyncState,
    server: NatsConnection,
    /// The subjects of me.
    own_subjects: String,
    /// When the bucket was made.
    created: String,
    /// All that the values held that were there at first; `None` once they were read.
    initial_replica: Option<MarkReplica>,
    /// Values that are to be read before that.
    pending: u64,
    /// What is to be told.
    unpublished: Vec<ReadCount>,
    /// The parts of this machine, and the one that is filled.
    parts: BTreeMap<u32, BucketPart>,
    filling_part: u32,
    /// Nothing is told before, and why not.
    held_until: Option<(Instant, String)>,
    /// Which values count for nothing, by subject.
    bad_values: BTreeMap<String, String>,
}

/// Shares marks until the connection ends, or the link.
///
/// # Errors
/// Why it cannot go on.
pub async fn run(share: &MarkSyncWorker, known: &mut MarkSyncState) -> Result<(), NatsError> {
    let mut server = NatsConnection::connect(&share.spec).await?.with_mark_bucket();
    let info = match server.query_mark_bucket().await? {
        Some(info) => info,
        None => server.create_mark_bucket().await?,
    };
    let mut round = MarkSession {
        share,
        known,
        own_subjects: server.space.identity_subjects(&share.identity.me),
        server,
        created: info.created,
        initial_replica: Some(MarkReplica::default()),
        pending: 0,
        unpublished: Vec::new(),
        parts: BTreeMap::new(),
        filling_part: 0,
        held_until: None,
        bad_values: BTreeMap::new(),
    };
    round.read_local_marks()?;
    // It is among what is known and not there, unless it is there.
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

impl MarkSession<'_> {
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
                    // What was to come was written anew, and came so.
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

    /// What is known here and was not there is to be told.
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

    /// Tells people what is not shared.
    fn report_status(&self) {
        let held = self.held_until.as_ref().map(|(_, why)| why.clone());
        let full =
            || "there are too many marks, so this machine does not get all of them".to_owned();
        let full = || self.known.replica.is_full().then(full);
        self.share
            .report_status(held.or_else(|| self.bad_values.values().next().cloned()).or_else(full));
    }

    /// Takes in what was read here.
    fn read_local_marks(&mut self) -> Result<(), NatsError> {
        let since = self.share.marks.read_since(self.known.file_length);
        let (marks, at) = since.map_err(NatsError::disk("the file of marks"))?;
        for mark in &marks {
            self.unpublished.extend(self.known.replica.apply_mark(self.known.host, mark));
        }
        self.known.file_length = at;
        Ok(())
    }

    /// Takes in what other machines say. What was read here meanwhile comes first: who cleared a mark that was
    /// not known yet did not mean this one.
    fn apply_heard_counts(&mut self, entries: &[ReadCount]) -> Result<(), NatsError> {
        loop {
            self.read_local_marks()?;
            let heard = self.known.replica.preview_news(entries);
            if heard.is_empty() {
                return Ok(());
            }
            let noted = self.share.marks.append_heard(self.known.file_length, &heard);
            if let Some(at) = noted.map_err(NatsError::disk("the file of marks"))? {
                for mark in &heard {
                    self.known.replica.apply_mark(self.known.host, mark);
                }
                self.known.file_length = at;
                return Ok(());
            }
        }
    }

    /// Reads all values in the way that nothing can break.
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

    /// Takes in what came, and what comes at once behind it.
    fn receive_values(
        &mut self,
        client: &async_nats::Client,
        feed: &mut StreamFeed,
        came: FeedMessage,
    ) -> Result<(), NatsError> {
        let (mut next, mut entries) = (Some(came), Vec::new());
        while let Some(FeedMessage { seq, pending, message, .. }) = next {
            self.read_value(seq, &message.subject, &message.payload, &mut entries);
            // Once all was read, what comes is new.
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

    /// Looks into a value.
    fn read_value(&mut self, seq: u64, subject: &str, bytes: &[u8], entries: &mut Vec<ReadCount>) {
        self.known.last_seq = seq;
        let parted = self.server.space.parse_part_subject(&self.share.identity.me, subject);
        let mine = parted.filter(|(host, _)| *host == self.known.host).map(|(_, part)| part);
        if mine.and_then(|part| self.parts.get(&part)).is_some_and(|part| part.seq >= seq) {
            return;
        }
        let value = parted.ok_or("its subject is not one of msgfs");
        let value = value.and_then(|(host, _)| value::decode_value(host, bytes));
        self.bad_values.remove(subject);
        let found = value.unwrap_or_else(|why| {
            let subject = sanitize_line(subject).into_owned();
            if self.bad_values.len() < TOLD {
                let what = format!("the marks in {subject} are ignored: {why}");
                self.bad_values.insert(subject, what);
            }
            Vec::new()
        });
        if let Some(there) = &mut self.initial_replica {
            for entry in &found {
                there.merge_count(entry);
            }
        }
        if let Some(part) = mine {
            // Somebody else wrote it: what it lacks now is told again.
            let old = self.parts.insert(part, BucketPart { seq, entries: found.clone() });
            let lost = old.into_iter().flat_map(|old| old.entries);
            self.unpublished.extend(lost.filter(|entry| !found.contains(entry)));
        }
        entries.extend(found);
    }

    /// Tells some of what is to be told.
    async fn publish_part(&mut self) -> Result<(), NatsError> {
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
        let value = value::encode_value(host, &entries);
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
            // It is read, and what it lacks is told.
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
