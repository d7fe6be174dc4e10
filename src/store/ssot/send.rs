//! Writing: from a draft to a message file and its signature, every rule checked first
//! (docs/formats/ssot.md, sections 1 to 5).
//!
//! A draft is either a whole message, in which nothing but `ack_timeout_sec` is filled in, or a
//! payload with `To`, `Type` and `Task` beside it.

use std::borrow::Cow;

use super::Ssot;
use super::envelope::{FILE_BYTES, Fault, Message, VERSION};
use super::folder::{self, IMMUTABLE, MESSAGES};
use super::rules::{self, REFS};
use super::schema::{Breach, MISSING};
use super::task;
use super::tree::Node;
use super::words::{Role, Type, is_task_id};
use crate::model::{Draft, Timestamp, one_line};
use crate::store::engine::files::Row;
use crate::store::{
    Fit, Outgoing, Prepared, Preparing, Store as _, StoreError, below, fs, refuse_headers,
    ssot::sign,
};

/// In milliseconds.
const A_DAY: i64 = 24 * 3600 * 1000;

/// The `to` of a draft that is a whole message; empty if it has none that could be one.
pub(super) fn recipient_in(text: &str) -> Option<String> {
    if !text.trim_start().starts_with('{') {
        return None;
    }
    let node = Node::parse(text.as_bytes()).ok()?;
    node.text("protocol_version")?;
    Some(node.text("to").unwrap_or_default().to_owned())
}

fn refused(breach: Breach) -> StoreError {
    StoreError::Refused(one_line(&breach.to_string()).into_owned())
}

impl From<Fault> for StoreError {
    fn from(fault: Fault) -> Self {
        Self::Refused(one_line(&fault.to_string()).into_owned())
    }
}

impl Outgoing for Ssot {
    fn fits(&self, address: &str) -> Fit {
        match Role::named(address) {
            Some(role) if role.receives() => Fit::Plain,
            _ => Fit::No,
        }
    }

    fn registered(&self, address: &str) -> bool {
        self.fits(address) != Fit::No
    }

    fn shown(&self, prepared: &Prepared) -> Option<crate::model::Message> {
        let (_, text) = prepared.bytes.split_once('\n')?;
        Some(super::read::shown(&Message::parse(text.as_bytes()).ok()?))
    }

    /// A draft is the payload, which stands at the end of a body.
    fn says(&self, sent: &str, draft: &str) -> bool {
        let payload = sent.rsplit_once(super::text::PAYLOAD).map(|(_, payload)| payload.trim());
        payload.is_some_and(|payload| is_same(payload.as_bytes(), draft.trim().as_bytes()))
    }

    fn prepare(&self, draft: &Draft, with: &Preparing<'_>) -> Result<Vec<Prepared>, StoreError> {
        check_headers(draft)?;
        // A byte order mark makes it no JSON, not another kind of draft.
        let text = draft.body.trim_start();
        let begins = text.strip_prefix('\u{feff}').unwrap_or(text).starts_with('{');
        let node = if begins && draft.kind.is_none() && draft.task.is_none() {
            whole(&draft.body)?
        } else {
            self.compose(draft, with)?
        };
        let text = format!("{}\n", node.pretty());
        if text.len() > FILE_BYTES {
            return Err(StoreError::TooLarge("the message is larger than 16 MiB".into()));
        }
        let message =
            Message::parse(text.as_bytes()).map_err(|fault| with_missing(fault, &node))?;
        self.check_state(&message, text.as_bytes())?;
        let line = sign::signature_line(text.as_bytes(), with.signer);
        Ok(vec![Prepared {
            to: message.to.as_str().to_owned(),
            id: message.id.clone(),
            thread: message.task.clone(),
            bytes: format!("{line}{text}"),
            files: Vec::new(),
        }])
    }

    /// Puts a prepared message into its task, its signature first, so that nobody sees it unsigned.
    /// Done again it does only what is missing.
    fn append(&self, prepared: &Prepared) -> Result<(), StoreError> {
        let (line, text) = prepared.bytes.split_once('\n').unwrap_or_default();
        let message = Message::parse(text.as_bytes())?;
        let (task, id) = (message.task.as_str(), message.id.as_str());
        let dir = folder::make(&self.about.dir, &[MESSAGES, task])?;
        let (json, sig) = (format!("{id}.json"), format!("{id}.sig"));
        let path = self.about.dir.join(MESSAGES).join(task).join(&json);
        let io = |e| StoreError::io(&path, e);
        let _lock = folder::lock_task(&self.about.dir, task)?;
        let done = match task::message_bytes(&self.about.dir, task, id) {
            Ok(there) if is_same(&there, text.as_bytes()) => Ok(()),
            Ok(_) => return Err(duplicate(id)),
            Err(_) => {
                folder::put(&dir, &sig, IMMUTABLE, format!("{line}\n").as_bytes()).map_err(io)?;
                match folder::put_new(&dir, &json, IMMUTABLE, text.as_bytes()) {
                    Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => Err(duplicate(id)),
                    done => done.map_err(io),
                }
            }
        };
        // Not before it is there: another scan would look for it, and the next one not any more.
        self.note(&path);
        done
    }

    fn appendable(&self, bytes: u64) -> Result<(), StoreError> {
        let dir = &self.about.dir;
        let top = dir.ancestors().find(|folder| folder.is_dir()).unwrap_or(dir);
        let parts: &[&str] = if top == dir { &[MESSAGES] } else { &[] };
        below::can_make(top, parts).map_err(|(path, e)| StoreError::io(&path, e))?;
        fs::room_for(top, bytes)
    }

    fn sync(&self) -> Result<(), StoreError> {
        // An append is on disk when it returns.
        Ok(())
    }
}

impl Ssot {
    /// A message around the payload of a draft.
    fn compose<'a>(&self, draft: &'a Draft, with: &Preparing<'_>) -> Result<Node<'a>, StoreError> {
        let (to, kind) = self.route(draft)?;
        let payload = Node::parse(draft.body.trim().as_bytes()).map_err(|e| {
            refused(Breach::new("not_an_object", "", format!(
                "the text is not a JSON object: {}; a {} is written as its payload, for example {}",
                e.why,
                kind.as_str(),
                example(kind)
            )))
        })?;
        let task = Self::task_of(draft)?;
        let now = self.after_what_came(task, with.now);
        with.used.set(now);
        let id = self.free_id(kind, task, now, with);
        let text = |text: &str| Node::Text(Cow::Owned(text.to_owned()));
        let mut members: Vec<(Cow<'a, str>, Node<'a>)> = vec![
            ("msg_id".into(), text(&id)),
            ("protocol_version".into(), text(VERSION)),
            ("type".into(), text(kind.as_str())),
            ("from".into(), text(self.format.role.as_str())),
            ("to".into(), text(to.as_str())),
            ("task_id".into(), text(task)),
            ("timestamp".into(), text(&now.rfc3339())),
            ("requires_ack".into(), Node::Bool(kind != Type::Escalation)),
        ];
        if let Some(secs) = kind.ack_timeout() {
            members.push(("ack_timeout_sec".into(), Node::Int(secs.to_string().into())));
        }
        members.push(("payload".into(), payload));
        if let Some(key) = &draft.idempotency_key {
            members.push(("idem".into(), text(key)));
        }
        Ok(Node::Object(members))
    }

    /// Now, or a moment after the newest message of the task to me: an answer is later than what it answers,
    /// also if the other clock is ahead. One that is a day ahead counts for nothing.
    fn after_what_came(&self, task: &str, now: Timestamp) -> Timestamp {
        let table = self.table.read();
        let folder = table.find_folder(&format!("{MESSAGES}/{task}"));
        let files = folder.into_iter().flat_map(|folder| table.files_in(folder));
        let messages = files.filter(|n| table.row(*n).is_some_and(Row::is_message));
        let to_me = messages.filter_map(|n| table.facts(n)).filter(|kept| {
            let near = kept.facts.order < now.millis().saturating_add(A_DAY);
            kept.facts.to() == self.format.role && near && kept.counts()
        });
        let newest = to_me.map(|kept| Timestamp::from_millis(kept.facts.order)).max();
        newest.map_or(now, |newest| now.max(newest.plus_millis(1)))
    }

    /// The first id from a moment on that no message has.
    fn free_id(&self, kind: Type, task: &str, now: Timestamp, with: &Preparing<'_>) -> String {
        let mut ms = now.millis().max(0);
        loop {
            let id = format!("{}-{task}-{ms}", kind.as_str());
            let name = format!("{id}.json");
            let there = || below::open_below(&self.about.dir, &[MESSAGES, task, &name]).is_ok();
            if !(with.taken)(&id) && !there() {
                return id;
            }
            ms = ms.saturating_add(1);
        }
    }

    /// To whom a draft goes and as which type.
    fn route(&self, draft: &Draft) -> Result<(Role, Type), StoreError> {
        let me = self.format.role;
        let [to] = draft.to.as_slice() else {
            return Err(StoreError::Invalid(
                "route: a message of AMP/1.0 goes to one role; write one message to each".into(),
            ));
        };
        let to = Role::named(to).filter(|role| role.receives()).ok_or_else(|| {
            let to = one_line(to);
            StoreError::Invalid(format!("{to:?}: {}", crate::store::Kind::Ssot.grammar()))
        })?;
        let kind = match draft.kind.as_deref() {
            Some(name) => Type::named(name).ok_or_else(|| {
                let names = Type::ALL.map(Type::as_str).join(", ");
                StoreError::Invalid(format!(
                    "Type: unknown_type: {:?} is none of {names}",
                    one_line(name)
                ))
            })?,
            None => Type::between(me, to).ok_or_else(|| no_route(me, to))?,
        };
        Ok((to, kind))
    }

    /// The task that a draft is about.
    fn task_of(draft: &Draft) -> Result<&str, StoreError> {
        let named = draft.task.as_deref().or(draft.thread.as_deref());
        let task = named.ok_or_else(|| {
            StoreError::Invalid(
                "Task: is missing; name the task, as in `Task: T-2026-001`, or write the whole \
                 message as JSON without header lines"
                    .into(),
            )
        })?;
        if !is_task_id(task) {
            let why =
                format!("Task: task_id_format: {:?} is not of the form T-YYYY-NNN", one_line(task));
            return Err(StoreError::Invalid(why));
        }
        Ok(task)
    }

    /// The rules that need other messages: unique id, readable references, lock, writer.
    fn check_state(&self, message: &Message<'_>, text: &[u8]) -> Result<(), StoreError> {
        let (id, role) = (&message.id, self.format.role.as_str());
        if message.from != self.format.role {
            let why = format!("is not {role}, your role here");
            return Err(refused(Breach::new("writer_role", "from", why)));
        }
        match task::message_bytes(&self.about.dir, &message.task, id) {
            Ok(there) if is_same(&there, text) => return Ok(()),
            Ok(_) => return Err(duplicate(id)),
            Err(_) => {}
        }
        let state = task::load(self, &message.task)?;
        if message.kind == Type::Request {
            self.check_request(message.payload(), state.rejects)?;
        }
        if message.kind == Type::Escalation {
            return Ok(());
        }
        let resume = "until the admin resumes it only escalations can be sent";
        if let Some(lock) = &state.lock {
            let why = format!("{} is locked by {lock}; {resume}", message.task);
            return Err(refused(Breach::new("task_locked", "task_id", why)));
        }
        if let Some(by) = state.suspended.first() {
            let why = format!("{} is suspended by {by}; {resume}", message.task);
            return Err(refused(Breach::new("task_suspended", "task_id", why)));
        }
        Ok(())
    }

    /// What a review request says of other messages.
    fn check_request(&self, payload: &Node<'_>, rejects: u32) -> Result<(), StoreError> {
        for (name, kind) in REFS {
            let named = payload.text(name).unwrap_or_default();
            if !task::is_readable(self, named) {
                let why = format!("names no {} that can be read here", kind.as_str());
                return Err(refused(Breach::new("ref_unreadable", format!("payload.{name}"), why)));
            }
        }
        let said = payload.int("reject_count").unwrap_or_default();
        if said != i64::from(rejects) {
            let why = format!("is {said}, but the task has {rejects} rejected verdicts");
            return Err(refused(Breach::new("reject_count_wrong", "payload.reject_count", why)));
        }
        Ok(())
    }
}

/// Adds the members that the payload of a draft lacks to what is wrong with its envelope, so that one attempt
/// names all of them.
fn with_missing(mut fault: Fault, node: &Node<'_>) -> Fault {
    let is_payload = |breach: &Breach| breach.member.starts_with("payload.");
    let kind = node.text("type").and_then(Type::named);
    if let (Some(kind), Some(payload)) = (kind, node.get("payload"))
        && !fault.breaches.iter().any(is_payload)
    {
        let missing = rules::payload(kind, payload).into_iter().filter(|b| b.rule == MISSING);
        fault.breaches.extend(missing);
    }
    fault
}

/// Header lines that a task record has no place for.
fn check_headers(draft: &Draft) -> Result<(), StoreError> {
    let lines = [
        ("Cc", !draft.cc.is_empty()),
        ("Subject", draft.subject.is_some()),
        ("Priority", draft.priority.is_some()),
    ];
    refuse_headers("a message of AMP/1.0", &lines)
}

fn no_route(from: Role, to: Role) -> StoreError {
    let (from, to) = (from.as_str(), to.as_str());
    let all = Type::ALL.map(|kind| format!("a {} goes {}", kind.as_str(), kind.route()));
    refused(Breach::new(
        "route",
        "from, to:",
        format!("nothing goes from {from} to {to}; {}", all.join(", ")),
    ))
}

fn duplicate(id: &str) -> StoreError {
    let why = format!("{id} is that of another message in the SSOT; take another one");
    refused(Breach::new("duplicate_msg_id", "msg_id", why))
}

/// Whether two files say the same, however they are spaced.
fn is_same(a: &[u8], b: &[u8]) -> bool {
    let pretty = |bytes: &[u8]| Node::parse(bytes).ok().map(|node| node.pretty());
    a == b || pretty(a).is_some_and(|text| Some(text) == pretty(b))
}

/// A draft that is a whole message, with the time limit it leaves out.
fn whole(text: &str) -> Result<Node<'_>, StoreError> {
    let parsed = Node::parse(text.as_bytes());
    let mut node = parsed.map_err(|e| {
        let why = format!("the text is not a JSON object: {}", e.why);
        refused(Breach::new("not_an_object", "", why))
    })?;
    let kind = node.text("type").and_then(Type::named);
    let wants = node.flag("requires_ack") == Some(true) && node.get("ack_timeout_sec").is_none();
    if let Some(secs) = kind.and_then(Type::ack_timeout).filter(|_| wants)
        && let Node::Object(members) = &mut node
    {
        members.retain(|(key, _)| key != "ack_timeout_sec");
        let after = members.iter().position(|(key, _)| key == "requires_ack");
        let at = after.map_or(members.len(), |n| n + 1);
        members.insert(at, ("ack_timeout_sec".into(), Node::Int(secs.to_string().into())));
    }
    Ok(node)
}

/// The smallest payload of a type, in one line.
const fn example(kind: Type) -> &'static str {
    match kind {
        Type::Dispatch => {
            r#"{"description": "what to do", "repo": "/path/to/repo", "branch": "feature/x", "subtasks": [{"subtask_id": "T-2026-001-S1", "description": "first step", "estimated_lines": 20}], "acceptance_criteria": ["all tests pass"], "risk_level": "low"}"#
        }
        Type::Result => {
            r#"{"subtask_id": "T-2026-001-S1", "completion_status": "complete", "diff_summary": {"files_changed": ["src/a.rs"], "lines_added": 10, "lines_removed": 2}, "self_assessment": {"criteria_met": [true], "notes": ["tests pass"]}, "work_log": []}"#
        }
        Type::Request => {
            r#"{"original_dispatch_ref": "task_dispatch-T-2026-001-1772116327001", "task_result_ref": "task_result-T-2026-001-1772117000002", "review_scope": "full", "diff_url": "/path/to.diff", "reject_count": 0}"#
        }
        Type::Verdict => {
            r#"{"decision": "approved", "criteria_results": [{"criterion": "all tests pass", "passed": true, "evidence": "CI run 12"}], "confidence": 0.9}"#
        }
        Type::Escalation => {
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
        for kind in Type::ALL {
            let node = Node::parse(example(kind).as_bytes()).unwrap();
            assert_eq!(rules::payload(kind, &node), [], "{kind:?}");
        }
    }
}
