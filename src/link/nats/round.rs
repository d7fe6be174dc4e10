//! One connection on which marks are shared: first all that is there is read, then what is not there is told,
//! and both go on.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Instant;

use async_nats::{Event, HeaderMap, Request};
use futures_util::FutureExt as _;
use tokio::time;

use super::consumer_name;
use super::direct::Stored;
use super::failure::Failure;
use super::feed::{Came, Feed};
use super::publish::{DENIED, Sent, outcome};
use super::said::{Entry, Replica};
use super::server::Server;
use super::share::{Known, Share, not_permitted};
use super::value::{self, Part};
use crate::model::one_line;

/// So many times in a row nothing came for five seconds, and it is asked whether the bucket is the same.
const SILENCES: u32 = 6;
/// Connections that ended behind the same value, after which it is read in the way that nothing can break.
const STRIKES: u32 = 3;
/// Counts that are taken over at once.
const COUNTS: usize = 4096;
/// Values that count for nothing and are remembered.
const TOLD: usize = 32;

/// One connection.
struct Round<'a> {
    share: &'a Share,
    known: &'a mut Known,
    server: Server,
    /// The subjects of me.
    all: String,
    /// When the bucket was made.
    created: String,
    /// All that the values held that were there at first; `None` once they were read.
    there: Option<Replica>,
    /// Values that are to be read before that.
    pending: u64,
    /// What is to be told.
    todo: Vec<Entry>,
    /// The parts of this machine, and the one that is filled.
    parts: BTreeMap<u32, Part>,
    filling: u32,
    /// Nothing is told before, and why not.
    hold: Option<(Instant, String)>,
    /// Which values count for nothing, by subject.
    spoilt: BTreeMap<String, String>,
}

/// Shares marks until the connection ends, or the link.
///
/// # Errors
/// Why it cannot go on.
pub async fn run(share: &Share, known: &mut Known) -> Result<(), Failure> {
    let mut server = Server::connect(&share.spec).await?.for_marks();
    let info = match server.bucket().await? {
        Some(info) => info,
        None => server.create_bucket().await?,
    };
    let mut round = Round {
        share,
        known,
        all: server.space.marks_of(&share.identity.me),
        server,
        created: info.created,
        there: Some(Replica::default()),
        pending: 0,
        todo: Vec::new(),
        parts: BTreeMap::new(),
        filling: 0,
        hold: None,
        spoilt: BTreeMap::new(),
    };
    round.fold()?;
    // It is among what is known and not there, unless it is there.
    round.todo.clear();
    if round.known.strikes >= STRIKES {
        round.read_carefully().await?;
    }
    let next = round.known.last + 1;
    let name = consumer_name();
    let (feed, pending) = Feed::start(&mut round.server, &name, next, Some(&round.all)).await?;
    round.pending = pending;
    round.exchange(feed).await
}

impl Round<'_> {
    async fn exchange(&mut self, mut feed: Feed) -> Result<(), Failure> {
        let (client, mut silences) = (self.server.client.clone(), 0);
        loop {
            if self.pending == 0 {
                self.all_is_read();
            }
            if self.may_tell() {
                self.tell().await?;
                continue;
            }
            if self.share.wake.stopped() {
                self.fold()?;
                if self.may_tell() {
                    continue;
                }
                return Ok(());
            }
            let hold = self.hold.as_ref().map(|(until, _)| time::Instant::from_std(*until));
            let hold = hold.filter(|_| !self.todo.is_empty());
            tokio::select! {
                biased;
                event = self.server.event() => {
                    if matches!(event, None | Some(Event::Disconnected | Event::Closed)) {
                        return Err(Failure::Lost("by the server".into()));
                    }
                }
                came = feed.next(&client) => {
                    if let Some(came) = came? {
                        silences = 0;
                        self.take_in(&client, &mut feed, came)?;
                        continue;
                    }
                    silences += 1;
                    // What was to come was written anew, and came so.
                    self.pending = 0;
                    if silences % SILENCES == 0 {
                        self.is_same().await?;
                    }
                }
                () = self.share.wake.something.notified() => self.fold()?,
                () = time::sleep_until(hold.unwrap_or_else(time::Instant::now)), if hold.is_some() => {}
            }
        }
    }

    /// What is known here and was not there is to be told.
    fn all_is_read(&mut self) {
        if let Some(there) = self.there.take() {
            self.todo.extend(self.known.replica.beyond(&there));
            self.share.is_there.store(true, Ordering::Relaxed);
            self.say();
        }
    }

    fn may_tell(&self) -> bool {
        let held = self.hold.as_ref().is_some_and(|(until, _)| *until > Instant::now());
        self.there.is_none() && !self.todo.is_empty() && !held
    }

    /// Tells people what is not shared.
    fn say(&self) {
        let held = self.hold.as_ref().map(|(_, why)| why.clone());
        let full =
            || "there are too many marks, so this machine does not get all of them".to_owned();
        let full = || self.known.replica.is_full().then(full);
        self.share.say(held.or_else(|| self.spoilt.values().next().cloned()).or_else(full));
    }

    /// Takes in what was read here.
    fn fold(&mut self) -> Result<(), Failure> {
        let since = self.share.marks.since(self.known.at);
        let (marks, at) = since.map_err(Failure::disk("the file of marks"))?;
        for mark in &marks {
            self.todo.extend(self.known.replica.note(self.known.host, mark));
        }
        self.known.at = at;
        Ok(())
    }

    /// Takes in what other machines say. What was read here meanwhile comes first: who cleared a mark that was
    /// not known yet did not mean this one.
    fn hear(&mut self, entries: &[Entry]) -> Result<(), Failure> {
        loop {
            self.fold()?;
            let heard = self.known.replica.news(entries);
            if heard.is_empty() {
                return Ok(());
            }
            let noted = self.share.marks.hear(self.known.at, &heard);
            if let Some(at) = noted.map_err(Failure::disk("the file of marks"))? {
                for mark in &heard {
                    self.known.replica.note(self.known.host, mark);
                }
                self.known.at = at;
                return Ok(());
            }
        }
    }

    /// Reads all values in the way that nothing can break.
    async fn read_carefully(&mut self) -> Result<(), Failure> {
        loop {
            let next = self.known.last + 1;
            let (some, more) = self.server.from(&self.all, next, true).await?;
            let mut entries = Vec::new();
            for Stored { seq, subject, message, .. } in some {
                self.open(seq, &subject, &message.payload, &mut entries);
            }
            self.hear(&entries)?;
            if !more {
                return Ok(());
            }
        }
    }

    /// Takes in what came, and what comes at once behind it.
    fn take_in(
        &mut self,
        client: &async_nats::Client,
        feed: &mut Feed,
        came: Came,
    ) -> Result<(), Failure> {
        let (mut next, mut entries) = (Some(came), Vec::new());
        while let Some(Came { seq, pending, message, .. }) = next {
            self.open(seq, &message.subject, &message.payload, &mut entries);
            // Once all was read, what comes is new.
            self.pending = self.pending.min(pending);
            if entries.len() > COUNTS {
                break;
            }
            next = feed.next(client).now_or_never().transpose()?.flatten();
        }
        if self.there.is_none() {
            self.say();
        }
        self.hear(&entries)
    }

    /// Looks into a value.
    fn open(&mut self, seq: u64, subject: &str, bytes: &[u8], entries: &mut Vec<Entry>) {
        self.known.last = seq;
        let parted = self.server.space.parted(&self.share.identity.me, subject);
        let mine = parted.filter(|(host, _)| *host == self.known.host).map(|(_, part)| part);
        if mine.and_then(|part| self.parts.get(&part)).is_some_and(|part| part.seq >= seq) {
            return;
        }
        let value = parted.ok_or("its subject is not one of msgfs");
        let value = value.and_then(|(host, _)| value::decode(host, bytes));
        self.spoilt.remove(subject);
        let found = value.unwrap_or_else(|why| {
            let subject = one_line(subject).into_owned();
            if self.spoilt.len() < TOLD {
                let what = format!("the marks in {subject} are ignored: {why}");
                self.spoilt.insert(subject, what);
            }
            Vec::new()
        });
        if let Some(there) = &mut self.there {
            for entry in &found {
                there.hear(entry);
            }
        }
        if let Some(part) = mine {
            // Somebody else wrote it: what it lacks now is told again.
            let old = self.parts.insert(part, Part { seq, entries: found.clone() });
            let lost = old.into_iter().flat_map(|old| old.entries);
            self.todo.extend(lost.filter(|entry| !found.contains(entry)));
        }
        entries.extend(found);
    }

    /// Tells some of what is to be told.
    async fn tell(&mut self) -> Result<(), Failure> {
        let host = self.known.host;
        let part = self.parts.entry(self.filling).or_default();
        let (seq, before) = (part.seq, part.entries.len());
        let Some(mut entries) = part.fill(&mut self.todo) else {
            self.filling += u32::from(!self.todo.is_empty());
            return Ok(());
        };
        let subject = self.server.space.part(&self.share.identity.me, host, self.filling);
        let mut headers = HeaderMap::new();
        headers.insert("Nats-Expected-Stream", &*self.server.stream);
        headers.insert("Nats-Expected-Last-Subject-Sequence", seq.to_string());
        let value = value::encode(host, &entries);
        let request = Request::new().headers(headers).payload(value.into());
        let client = self.server.client.clone();
        let ack = client.send_request(subject.clone(), request);
        let ack = async { Ok(ack.await.map_err(|error| error.kind())) };
        let why = match outcome(&mut self.server, &subject, ack).await? {
            Sent::Stored(seq) => {
                self.parts.insert(self.filling, Part { seq, entries });
                if self.hold.take().is_some() {
                    self.say();
                }
                return Ok(());
            }
            // It is read, and what it lacks is told.
            Sent::NotLast(_) => return lost("another machine uses the identity of this one"),
            Sent::Unknown => return lost("a mark was not answered"),
            Sent::Denied => not_permitted(&self.all),
            Sent::Refused(error) => format!(
                "my other machines do not learn what I read here: the stream {} does not take it: \
                 {}",
                self.server.stream,
                one_line(&error.description)
            ),
        };
        self.todo.extend(entries.drain(before..));
        self.hold = Some((Instant::now() + DENIED, why));
        self.say();
        Ok(())
    }

    /// Fails if the bucket is another one now, or an older copy.
    async fn is_same(&mut self) -> Result<(), Failure> {
        let info = self.server.bucket().await?;
        let same = info.is_some_and(|info| {
            info.created == self.created && info.state.last_seq >= self.known.last
        });
        if same { Ok(()) } else { lost("the bucket of marks was replaced or has lost messages") }
    }
}

fn lost<T>(why: &str) -> Result<T, Failure> {
    Err(Failure::Lost(why.to_owned()))
}
