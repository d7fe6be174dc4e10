//! What a scan found, handed over in the order of its time.

use std::collections::HashMap;

use super::super::AgentAzall;
use super::super::group::Message;
use super::super::letter::{self, Parsed};
use super::super::place::Place;
use super::super::table::{Delta, Row, State};
use crate::store::{Found, Rejected, Sink};

/// Messages handed over at once, so that no index is locked for long.
const BATCH: usize = 256;

/// Hands over what a scan found.
pub(super) fn hand_over(
    store: &AgentAzall,
    delta: Delta,
    mut fresh: HashMap<String, Found<'static>>,
    sink: &mut dyn Sink,
) {
    let (mut messages, rejected) = {
        let table = store.table.read();
        // The time is that of the copy by which it is known, whichever shows it.
        let best = |m: Message| {
            let (row, leader) = (table.row(m.best)?, table.row(m.leader)?);
            Some((leader.time(), row.path.to_string(), row.location(m.best), m))
        };
        let messages: Vec<_> = delta.messages.into_iter().filter_map(best).collect();
        let reject = |n: u32| table.row(n).and_then(|row| rejected(n, row));
        (messages, delta.rejected.into_iter().filter_map(reject).collect::<Vec<_>>())
    };
    messages.sort_unstable_by(|a, b| (a.0, &a.1).cmp(&(b.0, &b.1)));
    let total = messages.iter().map(|m| u64::from(m.2.len)).sum();
    let (mut done, mut whole) = (0, true);
    if !delta.again.is_empty() {
        sink.begin_rescan(&delta.again);
    }
    let mut rejected = rejected;
    if !rejected.is_empty() {
        sink.batch(&mut Vec::new(), &mut rejected);
    }
    for batch in messages.chunks(BATCH) {
        let mut found = Vec::with_capacity(batch.len());
        for (time, path, at, message) in batch {
            done += u64::from(at.len);
            let one = fresh.remove(path).or_else(|| read_again(store, path, message));
            let Some(mut one) = one else {
                whole = false;
                continue;
            };
            one.at = *at;
            one.path = path.as_str().into();
            one.time = *time;
            one.id = message.id.clone().into();
            one.to_me = message.to_me;
            one.from_me = message.from_me;
            one.read = message.read;
            one.parts = store.has_parts(message.best);
            one.idempotency_key = one.idempotency_key.filter(|_| message.from_me);
            found.push(one);
        }
        sink.batch(&mut found, &mut Vec::new());
        sink.progress(done, total);
    }
    if !delta.again.is_empty() && whole {
        sink.end_rescan(&delta.again);
    } else if !delta.again.is_empty() {
        sink.keep(&delta.again);
    }
}

fn rejected(source: u32, row: &Row) -> Option<Rejected> {
    let (reason, incomplete) = match &row.state {
        State::Refused(_, why) => (why.to_string(), false),
        State::Problem { reason, incomplete } => (reason.to_string(), *incomplete),
        State::Gone | State::Letter(_) => return None,
    };
    let (at, path) = (row.location(source), row.path.to_string());
    Some(Rejected { at, path, line: 0, reason, time: row.time(), incomplete })
}

/// Reads a file for its report; one that is no longer what it was is left to the next scan.
fn read_again(store: &AgentAzall, path: &str, message: &Message) -> Option<Found<'static>> {
    let full = store.base().join(path);
    let parsed = letter::open(&full, &Place::parse(path)?, store.zone()).ok();
    let same = |parsed: &Parsed| {
        let table = store.table.read();
        let head = table.row(message.best).and_then(|row| row.state.head().cloned());
        head.is_some_and(|head| head.text == parsed.head.text)
    };
    let parsed = parsed.filter(same);
    if parsed.is_none() {
        // Not the stamp of a file that was reported: the next scan reads it.
        store.table.write().forget_stamp(message.best);
        store.fault.set();
    }
    Some(parsed?.found(&store.me))
}
