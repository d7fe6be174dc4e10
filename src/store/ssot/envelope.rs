//! The envelope of a message, checked in the order of docs/formats/ssot.md, section 5: an object, its version, the
//! envelope, the route, the payload.

use super::json_node::JsonNode;
use super::rules;
use super::schema::{self, BreachList, RuleBreach, SsotField, SsotShape, opt, req};
use super::vocabulary::{Role, SsotMessageType, can_answer, is_task_id, split_message_id};
use crate::model::Timestamp;
use crate::store::text::time::parse_time;

/// The supported version.
pub const VERSION: &str = "AMP/1.0";
/// Largest message file, in bytes.
pub const FILE_BYTES: usize = 16 << 20;
/// Longest message id. With `.json` and the additions of programs it must stay a file name.
const MAX_ID: usize = 200;
/// The most missing members that a reason names; envelope and payload have fewer.
const MAX_MISSING: usize = 20;
/// The most other breaches that a reason names.
const MAX_OTHERS: usize = 3;

/// A message that breaks no hard rule.
#[derive(Clone, Debug, PartialEq)]
pub struct SsotMessage<'a> {
    /// `msg_id`.
    pub id: String,
    /// `type`.
    pub kind: SsotMessageType,
    /// `from`.
    pub from: Role,
    /// `to`.
    pub to: Role,
    /// `task_id`.
    pub task: String,
    /// The milliseconds in its id: its place in the order of messages.
    pub order: Timestamp,
    /// `timestamp`.
    pub time: Timestamp,
    /// `requires_ack`.
    pub requires_ack: bool,
    /// Seconds in which it must be acknowledged, if it states a limit or its type has one.
    pub ack_timeout: Option<u32>,
    /// Every member.
    pub node: JsonNode<'a>,
    /// The recommendations that it does not follow.
    pub soft_breaches: BreachList,
}

/// The reason why bytes are no message.
#[derive(Clone, Debug, PartialEq)]
pub struct SsotRejection {
    /// The hard rules it breaks, at least one, all of the same step.
    pub breaches: BreachList,
    /// True if it may be the beginning of a message.
    pub is_incomplete: bool,
    /// `msg_id`, if there is one.
    pub id: Option<String>,
    /// `to`, if it is a role that can receive messages.
    pub to: Option<Role>,
}

impl std::fmt::Display for SsotRejection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (mut missing, mut others, mut shown) = (0, 0, 0);
        for breach in self.breaches.iter() {
            // The missing members of a message are named at once.
            let (count, most) = match breach.rule {
                schema::MISSING => (&mut missing, MAX_MISSING),
                _ => (&mut others, MAX_OTHERS),
            };
            *count += 1;
            if *count <= most {
                write!(f, "{}{breach}", if shown == 0 { "" } else { "; " })?;
                shown += 1;
            }
        }
        match self.breaches.describe_others(shown) {
            None => Ok(()),
            Some(more) => write!(f, "; {more}"),
        }
    }
}

const ENVELOPE: &[SsotField] = &[
    req("msg_id", SsotShape::Text),
    req("protocol_version", SsotShape::Text),
    req("type", SsotShape::Text),
    req("from", SsotShape::Word(&["admin", "coordinator", "executor", "reviewer", "system"])),
    req("to", SsotShape::Word(&["admin", "coordinator", "executor", "reviewer"])),
    req("task_id", SsotShape::Text),
    req("timestamp", SsotShape::Text),
    req("requires_ack", SsotShape::Bool),
    opt("ack_timeout_sec", SsotShape::Int),
    opt("context_ref", SsotShape::Each(&SsotShape::Text)),
    req("payload", SsotShape::Free),
];

impl<'a> SsotMessage<'a> {
    /// Parses a message.
    ///
    /// # Errors
    /// The rules it breaks.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, SsotRejection> {
        if bytes.len() > FILE_BYTES {
            let why = "the file is larger than 16 MiB".to_owned();
            return Err(SsotRejection::from_breach(
                RuleBreach::new("not_an_object", "", why),
                false,
            ));
        }
        let node = JsonNode::parse(bytes).map_err(|e| {
            let why = format!("the file is not a JSON object: {}", e.why);
            SsotRejection::from_breach(RuleBreach::new("not_an_object", "", why), e.is_incomplete)
        })?;
        Self::from_node(node)
    }

    /// Returns the id of the message that it answers by its `context_ref`: the last one that fits its type, or else
    /// the last one.
    pub fn answered_id(&self) -> Option<&str> {
        let named = self.node.items("context_ref").iter().rev().filter_map(JsonNode::as_text);
        let named: Vec<&str> = named.collect();
        let fits = named.iter().find(|id| can_answer(id, &self.id));
        fits.or(named.first()).copied()
    }

    /// Makes a message of an object.
    ///
    /// # Errors
    /// The rules it breaks.
    pub fn from_node(node: JsonNode<'a>) -> Result<Self, SsotRejection> {
        let fault = |breaches| SsotRejection {
            breaches,
            is_incomplete: false,
            id: node.text("msg_id").map(str::to_owned),
            to: node.text("to").and_then(Role::from_name).filter(|role| role.can_receive()),
        };
        if node.text("protocol_version").is_some_and(|version| version != VERSION) {
            let why = format!("is not {VERSION:?}");
            return Err(fault(RuleBreach::new("protocol_version", "protocol_version", why).into()));
        }
        let mut breaches = BreachList::default();
        schema::check_fields(ENVELOPE, &node, "", &mut breaches);
        let read = read_envelope(&node, &mut breaches);
        let Some(mut message) = read.filter(|_| breaches.is_empty()) else {
            return Err(fault(breaches));
        };
        if !message.kind.may_go(message.from, message.to) {
            let why = format!("{} goes {}", message.kind.as_str(), message.kind.describe_route());
            return Err(fault(RuleBreach::new("route", "from, to:", why).into()));
        }
        let payload = node.get("payload").unwrap_or(&JsonNode::Null);
        let breaches = rules::check_payload(message.kind, payload);
        if !breaches.is_empty() {
            return Err(fault(breaches));
        }
        message.soft_breaches.append(rules::check_soft_rules(message.kind, payload));
        message.node = node;
        Ok(message)
    }

    /// Returns its payload.
    pub fn payload(&self) -> &JsonNode<'a> {
        self.node.get("payload").unwrap_or(&JsonNode::Null)
    }

    /// Returns the time until which it must be acknowledged, if it asks for that and has a limit.
    pub fn ack_deadline(&self) -> Option<Timestamp> {
        let timeout = self.ack_timeout.filter(|_| self.requires_ack)?;
        Some(self.time.plus_millis(i64::from(timeout) * 1000))
    }

    /// Returns the recommendations that it does not follow, a line each.
    pub fn render_note(&self) -> Option<String> {
        let soft = &self.soft_breaches;
        let mut lines: Vec<String> = soft.iter().map(|breach| format!("{breach}\n")).collect();
        lines.extend(soft.describe_others(soft.len()).map(|more| format!("{more}\n")));
        (!lines.is_empty()).then(|| lines.concat())
    }
}

impl SsotRejection {
    fn from_breach(breach: RuleBreach, incomplete: bool) -> Self {
        Self { breaches: breach.into(), is_incomplete: incomplete, id: None, to: None }
    }
}

/// Reads the envelope of an object, as far as possible, and adds its faults to `out`.
fn read_envelope(node: &JsonNode<'_>, out: &mut BreachList) -> Option<SsotMessage<'static>> {
    let kind = node.text("type").map(SsotMessageType::from_name);
    if kind == Some(None) {
        let names = SsotMessageType::ALL.map(SsotMessageType::as_str).join(", ");
        out.push(RuleBreach::new("unknown_type", "type", format!("is none of {names}")));
    }
    let kind = kind.flatten();
    let task = node.text("task_id");
    if task.is_some_and(|task| !is_task_id(task)) {
        out.push(RuleBreach::new("task_id_format", "task_id", "is not of the form T-YYYY-NNN"));
    }
    let task = task.filter(|task| is_task_id(task));
    let order = check_message_id(node.text("msg_id"), kind, task, out);
    let time = node.text("timestamp").map(parse_time);
    if time == Some(None) {
        let why =
            "is not an ISO 8601 date and time with an offset, as in 2026-02-26T14:32:07+00:00";
        out.push(RuleBreach::new("timestamp_format", "timestamp", why));
    }
    let requires_ack = node.flag("requires_ack");
    if requires_ack == Some(false) && kind.is_some_and(|kind| kind != SsotMessageType::Escalation) {
        let why = "must be true for every type but escalation";
        out.push(RuleBreach::new("ack_required_for_type", "requires_ack", why));
    }
    let timeout = node.int("ack_timeout_sec");
    if requires_ack == Some(true) && timeout.is_some_and(|secs| secs <= 0) {
        out.push(RuleBreach::new("ack_timeout_range", "ack_timeout_sec", "is not more than 0"));
    }
    let timeout = timeout.map(|secs| u32::try_from(secs.max(0)).unwrap_or(u32::MAX));
    Some(SsotMessage {
        id: node.text("msg_id")?.to_owned(),
        kind: kind?,
        from: Role::from_name(node.text("from")?)?,
        to: Role::from_name(node.text("to")?)?,
        task: task?.to_owned(),
        order: order?,
        time: time??,
        requires_ack: requires_ack?,
        ack_timeout: timeout.or(kind?.ack_timeout()),
        node: JsonNode::Null,
        soft_breaches: check_soft_rules(node),
    })
}

/// Returns the time in a message's id, if the id is made of its type and task. The id is checked only if both are
/// known, so that one mistake is named once.
fn check_message_id(
    id: Option<&str>,
    kind: Option<SsotMessageType>,
    task: Option<&str>,
    out: &mut BreachList,
) -> Option<Timestamp> {
    let (id, kind, task) = (id?, kind?, task?);
    let order = split_message_id(id)
        .filter(|(of, within, _)| (*of, *within) == (kind, task) && id.len() <= MAX_ID)
        .and_then(|(_, _, counter)| counter.parse().ok())
        .map(Timestamp::from_millis);
    if order.is_none() {
        let why = format!("is not {}-{task}-<milliseconds since 1970>", kind.as_str());
        out.push(RuleBreach::new("msg_id_format", "msg_id", why));
    }
    order
}

/// Returns the recommendations that the envelope does not follow.
fn check_soft_rules(node: &JsonNode<'_>) -> BreachList {
    let mut out = BreachList::default();
    if node.flag("requires_ack") == Some(false) && node.get("ack_timeout_sec").is_some() {
        let why = "means nothing without requires_ack";
        out.push(RuleBreach::new("ack_timeout_without_ack", "ack_timeout_sec", why));
    }
    for (n, item) in node.items("context_ref").iter().enumerate() {
        if item.as_text().is_some_and(|id| split_message_id(id).is_none()) {
            let member = format!("context_ref[{n}]");
            out.push(RuleBreach::new("context_ref_format", member, "is not the form of a msg_id"));
        }
    }
    out
}
