//! Sending: from a draft to a message file and its signature, after a check of every rule (docs/formats/ssot.md,
//! sections 1 to 5).
//!
//! A draft is either a whole message, in which only `ack_timeout_sec` is filled in, or a payload with `To`, `Type` and
//! `Task` beside it.

use std::borrow::Cow;

use super::Ssot;
use super::envelope::{FILE_BYTES, SsotMessage, SsotRejection, VERSION};
use super::folder::{self, IMMUTABLE, MESSAGES};
use super::json_node::JsonNode;
use super::rules::{self, REFS};
use super::schema::{MISSING, RuleBreach};
use super::state::find_reference_fault;
use super::task;
use super::vocabulary::{Role, SsotMessageType, is_task_id};
use crate::model::{Draft, Timestamp, plain_thread_id, sanitize_line};
use crate::store::engine::files::FileRow;
use crate::store::{
    AddressFit, MessageAppender, PrepareContext, PreparedRecord, Store as _, StoreError, confined,
    fs, refuse_headers, ssot::sign,
};

/// A day in milliseconds.
const A_DAY: i64 = 24 * 3600 * 1000;

/// Returns the `to` of a draft that is a whole message; empty if it has none.
pub(super) fn parse_recipient(text: &str) -> Option<String> {
    if !text.trim_start().starts_with('{') {
        return None;
    }
    let node = JsonNode::parse(text.as_bytes()).ok()?;
    // One of them may be missing, which is then the reason for the refusal.
    ["protocol_version", "msg_id"].iter().find_map(|member| node.get(member))?;
    Some(node.text("to").unwrap_or_default().to_owned())
}

fn to_refusal(breach: RuleBreach) -> StoreError {
    StoreError::Refused(sanitize_line(&breach.to_string()).into_owned())
}

impl From<SsotRejection> for StoreError {
    fn from(fault: SsotRejection) -> Self {
        Self::Refused(sanitize_line(&fault.to_string()).into_owned())
    }
}

impl MessageAppender for Ssot {
    fn address_fit(&self, address: &str) -> AddressFit {
        match Role::from_name(address) {
            Some(role) if role.can_receive() => AddressFit::Plain,
            _ => AddressFit::No,
        }
    }

    fn is_registered(&self, address: &str) -> bool {
        self.address_fit(address) != AddressFit::No
    }

    fn preview_message(&self, prepared: &PreparedRecord) -> Option<crate::model::Message> {
        let (_, text) = prepared.bytes.split_once('\n')?;
        Some(super::read::to_model_message(&SsotMessage::parse(text.as_bytes()).ok()?))
    }

    /// Returns true if the draft is the payload at the end of the sent body.
    fn is_retry_of(&self, sent: &str, draft: &str) -> bool {
        let payload = sent.rsplit_once(super::text::PAYLOAD).map(|(_, payload)| payload.trim());
        payload.is_some_and(|payload| is_same_json(payload.as_bytes(), draft.trim().as_bytes()))
    }

    fn prepare_records(
        &self,
        draft: &Draft,
        with: &PrepareContext<'_>,
    ) -> Result<Vec<PreparedRecord>, StoreError> {
        check_headers(draft)?;
        // A byte order mark makes it invalid JSON, not another kind of draft.
        let text = draft.body.trim_start();
        let begins = text.strip_prefix('\u{feff}').unwrap_or(text).starts_with('{');
        let node = if begins && draft.kind.is_none() && draft.task.is_none() {
            parse_whole_message(&draft.body)?
        } else {
            self.compose_message(draft, with)?
        };
        let text = format!("{}\n", node.render_pretty());
        if text.len() > FILE_BYTES {
            return Err(StoreError::TooLarge("the message is larger than 16 MiB".into()));
        }
        let message = SsotMessage::parse(text.as_bytes())
            .map_err(|fault| add_missing_members(fault, &node))?;
        self.check_task_state(&message, text.as_bytes())?;
        let line = sign::render_signature(text.as_bytes(), with.signer);
        Ok(vec![PreparedRecord {
            to: message.to.as_str().to_owned(),
            id: message.id.clone(),
            thread: message.task.clone(),
            bytes: format!("{line}{text}"),
            files: Vec::new(),
        }])
    }

    /// Puts a prepared message into its task, its signature first, so that nobody sees it unsigned. A repeated call
    /// does only the missing steps.
    fn append_record(&self, prepared: &PreparedRecord) -> Result<(), StoreError> {
        let (line, text) = prepared.bytes.split_once('\n').unwrap_or_default();
        let message = SsotMessage::parse(text.as_bytes())?;
        let (task, id) = (message.task.as_str(), message.id.as_str());
        let dir = folder::make_folder(&self.properties.dir, &[MESSAGES, task])?;
        let (json, sig) = (format!("{id}.json"), format!("{id}.sig"));
        let path = self.properties.dir.join(MESSAGES).join(task).join(&json);
        let io = |e| StoreError::io(&path, e);
        let _lock = folder::lock_task(&self.properties.dir, task)?;
        let done = match task::read_message_bytes(&self.properties.dir, task, id) {
            // The process that wrote it may have ended before its name was on disk.
            Ok(there) if is_same_json(&there, text.as_bytes()) => fs::fsync(&dir).map_err(io),
            Ok(_) => return Err(duplicate_id_error(id)),
            Err(_) => {
                folder::overwrite_file(&dir, &sig, IMMUTABLE, format!("{line}\n").as_bytes())
                    .map_err(io)?;
                match folder::create_file(&dir, &json, IMMUTABLE, text.as_bytes()) {
                    Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {
                        Err(duplicate_id_error(id))
                    }
                    done => done.map_err(io),
                }
            }
        };
        // The change is noted only now. A scan before the append would find nothing, and the next one would not look
        // again.
        self.note_change(&path);
        done
    }

    fn check_appendable(&self, bytes: u64) -> Result<(), StoreError> {
        let dir = &self.properties.dir;
        let top = dir.ancestors().find(|folder| folder.is_dir()).unwrap_or(dir);
        let parts: &[&str] = if top == dir { &[MESSAGES] } else { &[] };
        confined::check_can_create(top, parts).map_err(|(path, e)| StoreError::io(&path, e))?;
        fs::check_free_space(top, bytes)
    }
}

impl Ssot {
    /// Builds a message around the payload of a draft.
    fn compose_message<'a>(
        &self,
        draft: &'a Draft,
        with: &PrepareContext<'_>,
    ) -> Result<JsonNode<'a>, StoreError> {
        let (to, kind) = self.resolve_route(draft)?;
        let payload = JsonNode::parse(draft.body.trim().as_bytes()).map_err(|e| {
            to_refusal(RuleBreach::new("not_an_object", "", format!(
                "the text is not a JSON object: {}; a {} is written as its payload, for example {}",
                e.why,
                kind.as_str(),
                example_payload(kind)
            )))
        })?;
        let task = Self::resolve_task(draft)?;
        let now = self.choose_send_time(task, with.now);
        with.used_time.set(now);
        let id = self.find_free_id(kind, task, now, with);
        let text = |text: &str| JsonNode::Text(Cow::Owned(text.to_owned()));
        let mut members: Vec<(Cow<'a, str>, JsonNode<'a>)> = vec![
            ("msg_id".into(), text(&id)),
            ("protocol_version".into(), text(VERSION)),
            ("type".into(), text(kind.as_str())),
            ("from".into(), text(self.format.role.as_str())),
            ("to".into(), text(to.as_str())),
            ("task_id".into(), text(task)),
            ("timestamp".into(), text(&now.rfc3339())),
            ("requires_ack".into(), JsonNode::Bool(kind != SsotMessageType::Escalation)),
        ];
        if let Some(secs) = kind.ack_timeout() {
            members.push(("ack_timeout_sec".into(), JsonNode::Int(secs.to_string().into())));
        }
        members.push(("payload".into(), payload));
        if let Some(key) = &draft.idempotency_key {
            members.push(("idem".into(), text(key)));
        }
        Ok(JsonNode::Object(members))
    }

    /// Returns the time of a new message: now, or a moment after the newest message of the task to me. So an answer is
    /// later than its question, even if the other clock is ahead. Messages that are a day ahead do not count.
    fn choose_send_time(&self, task: &str, now: Timestamp) -> Timestamp {
        let table = self.table.read();
        let folder = table.find_folder(&format!("{MESSAGES}/{task}"));
        let files = folder.into_iter().flat_map(|folder| table.files_in(folder));
        let messages = files.filter(|n| table.row(*n).is_some_and(FileRow::is_message));
        let to_me = messages.filter_map(|n| table.facts(n)).filter(|kept| {
            let near = kept.message.order_millis < now.millis().saturating_add(A_DAY);
            kept.message.to() == self.format.role && near && kept.is_counted()
        });
        let newest = to_me.map(|kept| Timestamp::from_millis(kept.message.order_millis)).max();
        newest.map_or(now, |newest| now.max(newest.plus_millis(1)))
    }

    /// Returns the first free id from a moment on.
    fn find_free_id(
        &self,
        kind: SsotMessageType,
        task: &str,
        now: Timestamp,
        with: &PrepareContext<'_>,
    ) -> String {
        let mut ms = now.millis().max(0);
        loop {
            let id = format!("{}-{task}-{ms}", kind.as_str());
            let name = format!("{id}.json");
            let there =
                || confined::open_path(&self.properties.dir, &[MESSAGES, task, &name]).is_ok();
            if !(with.is_id_taken)(&id) && !there() {
                return id;
            }
            ms = ms.saturating_add(1);
        }
    }

    /// Returns the recipient and the type of a draft.
    fn resolve_route(&self, draft: &Draft) -> Result<(Role, SsotMessageType), StoreError> {
        let me = self.format.role;
        let [to] = draft.to.as_slice() else {
            return Err(StoreError::Invalid(
                "route: a message of AMP/1.0 goes to one role; write one message to each".into(),
            ));
        };
        let to = Role::from_name(to).filter(|role| role.can_receive()).ok_or_else(|| {
            let to = sanitize_line(to);
            StoreError::Invalid(format!(
                "{to:?}: {}",
                crate::store::Kind::Ssot.row().address_grammar
            ))
        })?;
        let kind = match draft.kind.as_deref() {
            Some(name) => SsotMessageType::from_name(name).ok_or_else(|| {
                let names = SsotMessageType::ALL.map(SsotMessageType::as_str).join(", ");
                StoreError::Invalid(format!(
                    "Type: unknown_type: {:?} is none of {names}",
                    sanitize_line(name)
                ))
            })?,
            None => SsotMessageType::for_route(me, to).ok_or_else(|| no_route_error(me, to))?,
        };
        Ok((to, kind))
    }

    /// Returns the task of a draft.
    fn resolve_task(draft: &Draft) -> Result<&str, StoreError> {
        let named = draft.task.as_deref().or(draft.thread.as_deref());
        let task = named.ok_or_else(|| {
            StoreError::Invalid(
                "Task: is missing; name the task, as in `Task: T-2026-001`, or write the whole \
                 message as JSON without header lines"
                    .into(),
            )
        })?;
        if !is_task_id(task) {
            let why = format!(
                "Task: task_id_format: {:?} is not of the form T-YYYY-NNN",
                sanitize_line(task)
            );
            return Err(StoreError::Invalid(why));
        }
        Ok(task)
    }

    /// Checks the rules that need other messages: unique id, readable references, lock, writer.
    fn check_task_state(&self, message: &SsotMessage<'_>, text: &[u8]) -> Result<(), StoreError> {
        let (id, role) = (&message.id, self.format.role.as_str());
        if message.from != self.format.role {
            let why = format!("is not {role}, your role here");
            return Err(to_refusal(RuleBreach::new("writer_role", "from", why)));
        }
        match task::read_message_bytes(&self.properties.dir, &message.task, id) {
            Ok(there) if is_same_json(&there, text) => return Ok(()),
            Ok(_) => return Err(duplicate_id_error(id)),
            Err(_) => {}
        }
        let state = task::load_state(self, &message.task)?;
        if message.kind == SsotMessageType::ReviewRequest {
            self.check_review_request(message, state.reject_count)?;
        }
        if message.kind == SsotMessageType::Escalation {
            return Ok(());
        }
        let resume = "until the admin resumes it only escalations can be sent";
        if let Some(lock) = &state.lock {
            let why = format!("{} is locked by {lock}; {resume}", message.task);
            return Err(to_refusal(RuleBreach::new("task_locked", "task_id", why)));
        }
        if let Some(by) = state.suspended.first() {
            let why = format!("{} is suspended by {by}; {resume}", message.task);
            return Err(to_refusal(RuleBreach::new("task_suspended", "task_id", why)));
        }
        Ok(())
    }

    /// Checks the statements of a review request about other messages.
    fn check_review_request(
        &self,
        message: &SsotMessage<'_>,
        rejects: u32,
    ) -> Result<(), StoreError> {
        let payload = message.payload();
        for (name, kind) in REFS {
            let named = payload.text(name).unwrap_or_default();
            let found = task::find_message_task(self, named);
            if let Some(why) = find_reference_fault(kind, found, &message.task) {
                return Err(to_refusal(RuleBreach::new(
                    "ref_unreadable",
                    format!("payload.{name}"),
                    why,
                )));
            }
        }
        let said = payload.int("reject_count").unwrap_or_default();
        if said != i64::from(rejects) {
            let why = format!("is {said}, but the task has {rejects} rejected verdicts");
            return Err(to_refusal(RuleBreach::new(
                "reject_count_wrong",
                "payload.reject_count",
                why,
            )));
        }
        Ok(())
    }
}

/// Adds the missing members of a draft's payload to the faults of its envelope, so that one attempt names all of them.
fn add_missing_members(mut fault: SsotRejection, node: &JsonNode<'_>) -> SsotRejection {
    let is_payload = |breach: &RuleBreach| breach.member.starts_with("payload.");
    let kind = node.text("type").and_then(SsotMessageType::from_name);
    if let (Some(kind), Some(payload)) = (kind, node.get("payload"))
        && !fault.breaches.iter().any(is_payload)
    {
        let payload = rules::check_payload(kind, payload);
        let missing = payload.iter().filter(|b| b.rule == MISSING);
        missing.for_each(|breach| fault.breaches.push(breach.clone()));
    }
    fault
}

/// Refuses header lines that have no place in a task record.
fn check_headers(draft: &Draft) -> Result<(), StoreError> {
    let lines = [
        ("Cc", !draft.cc.is_empty()),
        ("Subject", draft.subject.is_some()),
        ("Priority", draft.priority.is_some()),
    ];
    refuse_headers("a message of AMP/1.0", &lines)?;
    match (&draft.task, draft.thread.as_deref().map(plain_thread_id)) {
        (Some(task), Some(thread)) if task != thread => Err(StoreError::Invalid(format!(
            "Thread: the thread of a message of AMP/1.0 is its task, and Task says {:?}; remove one of the two lines",
            sanitize_line(task)
        ))),
        _ => Ok(()),
    }
}

fn no_route_error(from: Role, to: Role) -> StoreError {
    let (from, to) = (from.as_str(), to.as_str());
    let all = SsotMessageType::ALL
        .map(|kind| format!("{} goes {}", kind.as_str(), kind.describe_route()));
    to_refusal(RuleBreach::new(
        "route",
        "from, to:",
        format!("nothing goes from {from} to {to}; {}", all.join(", ")),
    ))
}

fn duplicate_id_error(id: &str) -> StoreError {
    let why = format!("{id} is that of another message in the SSOT; take another one");
    to_refusal(RuleBreach::new("duplicate_msg_id", "msg_id", why))
}

/// Returns true if two files have the same JSON, whatever their spacing.
fn is_same_json(a: &[u8], b: &[u8]) -> bool {
    let pretty = |bytes: &[u8]| JsonNode::parse(bytes).ok().map(|node| node.render_pretty());
    a == b || pretty(a).is_some_and(|text| Some(text) == pretty(b))
}

/// Parses a draft that is a whole message, and adds the time limit if it is missing.
fn parse_whole_message(text: &str) -> Result<JsonNode<'_>, StoreError> {
    let parsed = JsonNode::parse(text.as_bytes());
    let mut node = parsed.map_err(|e| {
        let why = format!("the text is not a JSON object: {}", e.why);
        to_refusal(RuleBreach::new("not_an_object", "", why))
    })?;
    let kind = node.text("type").and_then(SsotMessageType::from_name);
    let wants = node.flag("requires_ack") == Some(true) && node.get("ack_timeout_sec").is_none();
    if let Some(secs) = kind.and_then(SsotMessageType::ack_timeout).filter(|_| wants)
        && let JsonNode::Object(members) = &mut node
    {
        members.retain(|(key, _)| key != "ack_timeout_sec");
        let after = members.iter().position(|(key, _)| key == "requires_ack");
        let at = after.map_or(members.len(), |n| n + 1);
        members.insert(at, ("ack_timeout_sec".into(), JsonNode::Int(secs.to_string().into())));
    }
    Ok(node)
}

/// Returns the smallest payload of a type, in one line.
const fn example_payload(kind: SsotMessageType) -> &'static str {
    match kind {
        SsotMessageType::Dispatch => {
            r#"{"description": "what to do", "repo": "/path/to/repo", "branch": "feature/x", "subtasks": [{"subtask_id": "T-2026-001-S1", "description": "first step", "estimated_lines": 20}], "acceptance_criteria": ["all tests pass"], "risk_level": "low"}"#
        }
        SsotMessageType::Result => {
            r#"{"subtask_id": "T-2026-001-S1", "completion_status": "complete", "diff_summary": {"files_changed": ["src/a.rs"], "lines_added": 10, "lines_removed": 2}, "self_assessment": {"criteria_met": [true], "notes": ["tests pass"]}, "work_log": []}"#
        }
        SsotMessageType::ReviewRequest => {
            r#"{"original_dispatch_ref": "task_dispatch-T-2026-001-1772116327001", "task_result_ref": "task_result-T-2026-001-1772117000002", "review_scope": "full", "diff_url": "/path/to.diff", "reject_count": 0}"#
        }
        SsotMessageType::ReviewVerdict => {
            r#"{"decision": "approved", "criteria_results": [{"criterion": "all tests pass", "passed": true, "evidence": "CI run 12"}], "confidence": 0.9}"#
        }
        SsotMessageType::Escalation => {
            r#"{"escalation_type": "unknown", "severity": "info", "triggered_by": "executor", "description": "what happened", "affected_msgs": [], "system_state_snapshot": {"task_status": "in_progress", "reject_count": 0, "last_successful_msg_id": null}, "auto_suspended": false}"#
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::ssot::rules;

    #[test]
    fn every_example_is_a_payload() {
        for kind in SsotMessageType::ALL {
            let node = JsonNode::parse(example_payload(kind).as_bytes()).unwrap();
            assert!(rules::check_payload(kind, &node).is_empty(), "{kind:?}");
        }
    }
}
