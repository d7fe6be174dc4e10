//! The state of a task, derived from its messages: status, lock, suspensions (docs/formats/ssot.md, sections 3 to 5).

use std::fmt::Debug;

use bytemuck::{Pod, Zeroable};

use super::envelope::SsotMessage;
use super::json_node::JsonNode;
use super::order::sort_messages;
use super::rules::{LOCK_AT, REFS};
use super::vocabulary::{Role, SsotMessageType, split_message_id};
use crate::model::Timestamp;
use twox_hash::XxHash3_64;

/// The facts of a message that are kept to judge its task: few bytes, plain data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub(super) struct TaskMessageFacts {
    /// The milliseconds in its id.
    pub order_millis: i64,
    /// `timestamp` in milliseconds since 1970.
    pub time: i64,
    /// Hashes of the ids that a review request names.
    pub refs: [u64; 2],
    /// Hashes of the last ids of its `context_ref`.
    pub context_refs: [u64; 2],
    /// Seconds in which to acknowledge it; 0 for no limit.
    pub timeout: u32,
    /// `reject_count` of a review request.
    pub rejects: u32,
    /// Number of its type in [`SsotMessageType::ALL`].
    kind: u8,
    /// Numbers of its roles in [`Role::ALL`].
    from: u8,
    to: u8,
    /// Bits from [`ACK`] to [`CRITICAL`].
    bits: u8,
    _pad: [u8; 4],
}

/// Bit: it asks for an acknowledgement.
const ACK: u8 = 1;
/// Bit: a result that completes the task, or a verdict that approves.
const GOOD: u8 = 1 << 1;
/// Bit: a verdict that rejects, or a result that does not complete the task.
const BAD: u8 = 1 << 2;
/// Bit: an escalation that suspends the task.
const CRITICAL: u8 = 1 << 3;

/// Returns a hash of an id. It serves to find ids, never to prove that two are the same.
pub(super) fn hash_id(id: &str) -> u64 {
    XxHash3_64::oneshot(id.as_bytes()).max(1)
}

fn hash_last_two(ids: &[JsonNode<'_>]) -> [u64; 2] {
    let mut last = ids.iter().rev().filter_map(JsonNode::as_text).map(hash_id);
    [last.next().unwrap_or_default(), last.next().unwrap_or_default()]
}

/// Returns the number under which a value is kept.
///
/// # Panics
/// If the list of all values does not have it.
fn number_of<T: PartialEq + Debug>(all: &[T], one: &T) -> u8 {
    let number = all.iter().position(|other| other == one);
    number.unwrap_or_else(|| panic!("{one:?} is not in the list of all its kind")) as u8
}

/// Returns the value that is kept under a number.
///
/// # Panics
/// If there is none.
fn value_of<T: Copy>(all: &[T], number: u8) -> T {
    let value = all.get(usize::from(number));
    *value
        .unwrap_or_else(|| panic!("the table of task messages is broken: it has a value {number}"))
}

impl TaskMessageFacts {
    pub fn from_message(message: &SsotMessage<'_>) -> Self {
        let payload = message.payload();
        let bit = |on: bool, bit: u8| if on { bit } else { 0 };
        let status = payload.text("completion_status").or(payload.text("decision"));
        let good = matches!(status, Some("complete" | "approved" | "approved_with_fix"));
        let critical = message.kind == SsotMessageType::Escalation
            && payload.text("severity") == Some("critical");
        let bits = bit(message.requires_ack, ACK)
            | bit(good, GOOD)
            | bit(!good && status.is_some(), BAD)
            | bit(critical, CRITICAL);
        let named = |name: &str| payload.text(name).map_or(0, hash_id);
        let is_request = message.kind == SsotMessageType::ReviewRequest;
        let count = payload.int("reject_count").filter(|_| is_request).unwrap_or_default();
        Self {
            order_millis: message.order.millis(),
            time: message.time.millis(),
            refs: if is_request { REFS.map(|(name, _)| named(name)) } else { [0; 2] },
            context_refs: hash_last_two(message.node.items("context_ref")),
            timeout: message.ack_timeout.filter(|_| message.requires_ack).unwrap_or_default(),
            rejects: u32::try_from(count).unwrap_or(u32::MAX),
            kind: number_of(&SsotMessageType::ALL, &message.kind),
            from: number_of(&Role::ALL, &message.from),
            to: number_of(&Role::ALL, &message.to),
            bits,
            _pad: [0; 4],
        }
    }

    pub fn kind(&self) -> SsotMessageType {
        value_of(&SsotMessageType::ALL, self.kind)
    }

    pub fn from(&self) -> Role {
        value_of(&Role::ALL, self.from)
    }

    pub fn to(&self) -> Role {
        value_of(&Role::ALL, self.to)
    }

    pub fn requires_ack(&self) -> bool {
        self.bits & ACK != 0
    }

    /// Returns the time until which it must be acknowledged, if it has a limit.
    pub fn ack_deadline(&self) -> Option<Timestamp> {
        let limit = i64::from(self.timeout) * 1000;
        (limit > 0).then(|| Timestamp::from_millis(self.time).plus_millis(limit))
    }

    fn is_rejection(&self) -> bool {
        self.kind() == SsotMessageType::ReviewVerdict && self.bits & BAD != 0
    }
}

/// A message of a task.
#[derive(Clone, Debug)]
pub(super) struct TaskMessage {
    pub id: String,
    pub facts: TaskMessageFacts,
    /// Time at which its recipient acknowledged it.
    pub acked_at: Option<Timestamp>,
}

/// A lock and suspensions that the admin lifted, and the time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct TaskResume {
    pub time: Timestamp,
    /// The newest of the verdicts that locked the task.
    pub lock: Option<String>,
    pub escalations: Vec<String>,
}

/// A rule about other messages that a message breaks.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct StateBreach {
    pub id: String,
    pub rule: &'static str,
    pub why: String,
}

/// The state of a task.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct TaskState {
    /// Number of its messages.
    pub message_count: usize,
    pub status: &'static str,
    pub reject_count: u32,
    /// The verdict that locks it.
    pub lock: Option<String>,
    /// The escalations that suspend it.
    pub suspended: Vec<String>,
    /// The newest dispatch.
    pub dispatch: Option<String>,
    pub last_successful: Option<String>,
    pub updated: Timestamp,
    pub breaches: Vec<StateBreach>,
}

impl TaskState {
    /// Returns true if a person should know of it.
    pub fn is_remarkable(&self) -> bool {
        self.lock.is_some() || !self.suspended.is_empty() || !self.breaches.is_empty()
    }
}

/// Derives the state of a task. `find_task` returns the task of the message with this hash, if it is in the SSOT.
pub(super) fn derive_state(
    items: Vec<TaskMessage>,
    resumes: &[TaskResume],
    find_task: &dyn Fn(u64) -> Option<String>,
) -> TaskState {
    let items = sort_messages(items);
    let times = items.iter().map(|i| Timestamp::from_millis(i.facts.order_millis));
    let acks = items.iter().filter_map(|i| i.acked_at);
    let newest = times.chain(acks).chain(resumes.iter().map(|r| r.time)).max();
    let mut state = TaskState {
        status: "escalated",
        message_count: items.len(),
        updated: newest.unwrap_or_default(),
        ..TaskState::default()
    };
    let mut sum = TaskTally::default();
    for item in &items {
        let at = Timestamp::from_millis(item.facts.order_millis);
        state.breaches.extend(sum.holds.check_message(item, at, resumes));
        state.breaches.extend(check_references(item, sum.rejects, find_task));
        state.status = sum.add_message(item).unwrap_or(state.status);
    }
    let TaskTally { holds, rejects, dispatch, successes } = sum;
    state.reject_count = rejects;
    state.dispatch = dispatch.map(|i| i.id.clone());
    state.last_successful = successes.last().map(|i| i.id.clone());
    state.lock = holds.find_lock(None, resumes).map(|i| i.id.clone());
    state.suspended = holds.find_suspensions(None, resumes).map(|i| i.id.clone()).collect();
    if state.lock.is_some() {
        state.status = "locked";
    } else if !state.suspended.is_empty() {
        state.status = "escalated";
    }
    state
}

/// The sums over the messages so far.
#[derive(Default)]
struct TaskTally<'a> {
    holds: TaskHolds<'a>,
    rejects: u32,
    dispatch: Option<&'a TaskMessage>,
    /// The successful messages that were not rejected since.
    successes: Vec<&'a TaskMessage>,
}

impl<'a> TaskTally<'a> {
    /// Adds the next message. Returns the status that it gives the task, if any.
    fn add_message(&mut self, item: &'a TaskMessage) -> Option<&'static str> {
        let good = item.facts.bits & GOOD != 0;
        let kind = item.facts.kind();
        if good || kind == SsotMessageType::Dispatch {
            self.successes.push(item);
        }
        Some(match kind {
            SsotMessageType::Dispatch => {
                self.dispatch = Some(item);
                if item.acked_at.is_some() { "in_progress" } else { "dispatched" }
            }
            SsotMessageType::Result if good => "submitted",
            SsotMessageType::Result => "blocked",
            SsotMessageType::ReviewRequest => "in_review",
            SsotMessageType::ReviewVerdict if item.facts.is_rejection() => {
                self.rejects += 1;
                self.successes.retain(|i| i.facts.kind() != SsotMessageType::Result);
                if self.rejects >= LOCK_AT {
                    self.holds.locks.push(item);
                }
                "rejected"
            }
            SsotMessageType::ReviewVerdict => "approved",
            SsotMessageType::Escalation => {
                if item.facts.bits & CRITICAL != 0 {
                    self.holds.escalations.push(item);
                }
                return None;
            }
        })
    }
}

/// The messages that held the task up so far.
#[derive(Default)]
struct TaskHolds<'a> {
    /// Rejections at or above the threshold, in order.
    locks: Vec<&'a TaskMessage>,
    /// Critical escalations, in order.
    escalations: Vec<&'a TaskMessage>,
}

impl<'a> TaskHolds<'a> {
    /// Returns the newest rejection that locks the task at a moment.
    fn find_lock(&self, at: Option<Timestamp>, resumes: &[TaskResume]) -> Option<&'a TaskMessage> {
        let last = *self.locks.last()?;
        let lifted = |r: &TaskResume| r.lock.as_deref() == Some(&*last.id);
        let open = !resumes.iter().any(|r| lifted(r) && at.is_none_or(|at| r.time <= at));
        open.then_some(last)
    }

    fn find_suspensions<'s>(
        &'s self,
        at: Option<Timestamp>,
        resumes: &'s [TaskResume],
    ) -> impl Iterator<Item = &'a TaskMessage> + 's {
        let lifted = move |item: &TaskMessage, r: &TaskResume| {
            r.escalations.contains(&item.id) && at.is_none_or(|at| r.time <= at)
        };
        let open = move |item: &&TaskMessage| !resumes.iter().any(|r| lifted(item, r));
        self.escalations.iter().copied().filter(open)
    }

    /// Returns the breach of a message that was written while the task was held up.
    fn check_message(
        &self,
        item: &TaskMessage,
        at: Timestamp,
        resumes: &[TaskResume],
    ) -> Option<StateBreach> {
        if item.facts.kind() == SsotMessageType::Escalation {
            return None;
        }
        let (rule, why) = if let Some(lock) = self.find_lock(Some(at), resumes) {
            ("task_locked", format!("the task was locked by {}", lock.id))
        } else if let Some(by) = self.find_suspensions(Some(at), resumes).next() {
            ("task_suspended", format!("the task was suspended by {}", by.id))
        } else {
            return None;
        };
        Some(StateBreach { id: item.id.clone(), rule, why })
    }
}

/// Returns the fault of a reference, which must name a message of the same task. `found` is the task of the message
/// that it names, if that is in the SSOT.
pub(super) fn find_reference_fault(
    kind: SsotMessageType,
    found: Option<&str>,
    task: &str,
) -> Option<String> {
    match found {
        Some(found) if found == task => None,
        Some(other) => Some(format!("names a {} of another task, {other}", kind.as_str())),
        None => Some(format!("names no {} that can be read here", kind.as_str())),
    }
}

/// Returns the breaches of a review request whose statements about other messages are wrong.
fn check_references(
    item: &TaskMessage,
    rejects: u32,
    find_task: &dyn Fn(u64) -> Option<String>,
) -> Vec<StateBreach> {
    if item.facts.kind() != SsotMessageType::ReviewRequest {
        return Vec::new();
    }
    let task = split_message_id(&item.id).map_or("", |(_, task, _)| task);
    let unreadable = |((name, kind), print): (&(&str, SsotMessageType), u64)| {
        let fault = find_reference_fault(*kind, find_task(print).as_deref(), task)?;
        let why = format!("payload.{name} {fault}");
        Some(StateBreach { id: item.id.clone(), rule: "ref_unreadable", why })
    };
    let mut out: Vec<StateBreach> =
        REFS.iter().zip(item.facts.refs).filter_map(unreadable).collect();
    if item.facts.rejects != rejects {
        let said = item.facts.rejects;
        let why = format!("payload.reject_count is {said}, but {rejects} verdicts rejected");
        out.push(StateBreach { id: item.id.clone(), rule: "reject_count_wrong", why });
    }
    out
}
