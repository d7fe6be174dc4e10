//! How a message reads: its payload in words, then as JSON with the order and spelling it has in the
//! file.

use std::fmt::Write as _;

use super::envelope::Message;
use super::tree::Node;
use super::words::Type;

/// The line before the payload; no line of the payload can be like it.
pub(super) const PAYLOAD: &str = "Payload:\n";

/// The body of a message for a person or an agent that only has `cat`.
pub fn body(message: &Message<'_>) -> String {
    let payload = message.payload();
    let mut out = Text::default();
    match message.kind {
        Type::Dispatch => dispatch(payload, &mut out),
        Type::Result => result(payload, &mut out),
        Type::Request => request(payload, &mut out),
        Type::Verdict => verdict(payload, &mut out),
        Type::Escalation => escalation(payload, &mut out),
    }
    let ids: Vec<&str> =
        message.node.items("context_ref").iter().filter_map(Node::as_text).collect();
    out.list("Context", &ids);
    let asks = match message.ack_timeout.filter(|_| message.requires_ack) {
        Some(secs) => format!("within {secs} seconds"),
        None if message.requires_ack => "yes, without a time limit".to_owned(),
        None => "not asked for".to_owned(),
    };
    out.gap();
    out.line("Acknowledgement", &asks);
    let others = others(&message.node);
    if !others.is_empty() {
        out.gap();
        out.0.push_str("Other members:\n");
        out.0.push_str(&Node::Object(others).pretty());
        out.0.push('\n');
    }
    out.gap();
    out.0.push_str(PAYLOAD);
    out.0.push_str(&payload.pretty());
    out.0.push('\n');
    out.0
}

/// Members of the envelope that the format does not know.
fn others<'a>(node: &Node<'a>) -> Vec<(std::borrow::Cow<'a, str>, Node<'a>)> {
    const KNOWN: [&str; 11] = [
        "msg_id",
        "protocol_version",
        "type",
        "from",
        "to",
        "task_id",
        "timestamp",
        "requires_ack",
        "ack_timeout_sec",
        "context_ref",
        "payload",
    ];
    let Node::Object(members) = node else { return Vec::new() };
    members.iter().filter(|(key, _)| !KNOWN.contains(&&**key)).cloned().collect()
}

/// A text in paragraphs.
#[derive(Default)]
struct Text(String);

impl Text {
    /// Begins a paragraph.
    fn gap(&mut self) {
        if !self.0.is_empty() && !self.0.ends_with("\n\n") {
            self.0.push('\n');
        }
    }

    fn line(&mut self, name: &str, value: &str) {
        let _ = writeln!(self.0, "{name}: {}", indented(value));
    }

    fn line_if(&mut self, name: &str, value: Option<&str>) {
        if let Some(value) = value {
            self.line(name, value);
        }
    }

    fn paragraph(&mut self, text: &str) {
        self.gap();
        let _ = writeln!(self.0, "{}", text.trim_end_matches('\n'));
    }

    fn list(&mut self, title: &str, items: &[impl AsRef<str>]) {
        if items.is_empty() {
            return;
        }
        self.gap();
        let _ = writeln!(self.0, "{title}:");
        for (n, item) in items.iter().enumerate() {
            let _ = writeln!(self.0, "{}. {}", n + 1, indented(item.as_ref()));
        }
    }
}

/// Further lines of a value stand below its first, so that none looks like the next item.
fn indented(value: &str) -> String {
    value.trim_end_matches('\n').replace('\n', "\n   ")
}

fn texts<'a>(node: &'a Node<'_>, name: &str) -> Vec<&'a str> {
    node.items(name).iter().filter_map(Node::as_text).collect()
}

fn scalar(node: Option<&Node<'_>>) -> String {
    match node {
        Some(Node::Text(text)) => text.to_string(),
        Some(node) => node.pretty(),
        None => "null".to_owned(),
    }
}

fn members(node: Option<&Node<'_>>) -> Vec<String> {
    let Some(Node::Object(members)) = node else { return Vec::new() };
    members.iter().map(|(key, value)| format!("{key}: {}", scalar(Some(value)))).collect()
}

fn said(node: &Node<'_>, name: &str) -> String {
    scalar(node.get(name))
}

fn dispatch(payload: &Node<'_>, out: &mut Text) {
    out.paragraph(payload.text("description").unwrap_or_default());
    out.gap();
    out.line_if("Repo", payload.text("repo"));
    out.line_if("Branch", payload.text("branch"));
    out.line_if("Risk", payload.text("risk_level"));
    let subtasks: Vec<String> = payload
        .items("subtasks")
        .iter()
        .map(|s| {
            let (id, lines) = (said(s, "subtask_id"), said(s, "estimated_lines"));
            format!("{id} (about {lines} lines): {}", said(s, "description"))
        })
        .collect();
    out.list("Subtasks", &subtasks);
    out.list("Acceptance criteria", &texts(payload, "acceptance_criteria"));
    out.list("Forbidden", &texts(payload, "forbidden_actions"));
    out.list("Technical constraints", &members(payload.get("tech_constraints")));
}

fn result(payload: &Node<'_>, out: &mut Text) {
    let status = said(payload, "completion_status");
    out.paragraph(&format!("Subtask {}: {status}", said(payload, "subtask_id")));
    out.list("Blockers", &texts(payload, "blockers"));
    if let Some(diff) = payload.get("diff_summary") {
        let (added, removed) = (said(diff, "lines_added"), said(diff, "lines_removed"));
        out.list(&format!("Changed files (+{added} -{removed})"), &texts(diff, "files_changed"));
        if diff.items("files_changed").is_empty() {
            out.paragraph(&format!("Changed files (+{added} -{removed}): none"));
        }
    }
    out.line_if("Commit", payload.text("commit_hash"));
    if let Some(own) = payload.get("self_assessment") {
        let notes = texts(own, "notes");
        let met = own.items("criteria_met").iter().enumerate().map(|(n, met)| {
            let met = verdict_of(met, ["met", "not met", "could not be verified"]);
            notes.get(n).map_or_else(|| met.to_owned(), |note| format!("{met}: {note}"))
        });
        let extra = notes.iter().skip(own.items("criteria_met").len());
        let all: Vec<String> = met.chain(extra.map(|note| (*note).to_owned())).collect();
        out.list("Acceptance criteria, by the executor", &all);
    }
    let log: Vec<String> = payload
        .items("work_log")
        .iter()
        .map(|e| {
            let (time, action) = (said(e, "timestamp"), said(e, "action"));
            format!("{time} {action} {}: {}", said(e, "file"), said(e, "detail"))
        })
        .collect();
    out.list("Work log", &log);
}

/// What `true`, `false` or `null` says.
fn verdict_of<'a>(node: &Node<'_>, words: [&'a str; 3]) -> &'a str {
    match node {
        Node::Bool(true) => words[0],
        Node::Bool(false) => words[1],
        _ => words[2],
    }
}

fn request(payload: &Node<'_>, out: &mut Text) {
    out.line("Scope", &said(payload, "review_scope"));
    out.line("Diff", &said(payload, "diff_url"));
    out.line("Dispatch", &said(payload, "original_dispatch_ref"));
    out.line("Result", &said(payload, "task_result_ref"));
    out.line("Rejected so far", &said(payload, "reject_count"));
    if let Some(notes) = payload.text("coordinator_notes") {
        out.paragraph(notes);
    }
    out.list("CI", &members(payload.get("ci_status")));
}

fn verdict(payload: &Node<'_>, out: &mut Text) {
    out.line("Decision", &said(payload, "decision"));
    out.line("Confidence", &said(payload, "confidence"));
    let criteria: Vec<String> = payload
        .items("criteria_results")
        .iter()
        .map(|c| {
            let passed = c.get("passed").unwrap_or(&Node::Null);
            let passed = verdict_of(passed, ["passed", "failed", "not verified"]);
            format!("{} - {passed}: {}", said(c, "criterion"), said(c, "evidence"))
        })
        .collect();
    out.list("Criteria", &criteria);
    let issues: Vec<String> = payload
        .items("issues")
        .iter()
        .map(|i| {
            let place = format!("{}:{}", said(i, "file"), said(i, "line"));
            let (severity, what) = (said(i, "severity"), said(i, "description"));
            format!("{place} {severity}: {what}\nfix: {}", said(i, "suggested_fix"))
        })
        .collect();
    out.list("Issues", &issues);
    let fixes: Vec<String> = payload
        .items("direct_fixes")
        .iter()
        .map(|f| {
            let (kind, lines) = (said(f, "change_type"), said(f, "diff_lines"));
            format!("{}: {kind}, {lines} lines", said(f, "file"))
        })
        .collect();
    out.list("Fixed by the reviewer", &fixes);
    if let Some(notes) = payload.text("architecture_notes") {
        out.gap();
        out.line("Architecture", notes);
    }
}

fn escalation(payload: &Node<'_>, out: &mut Text) {
    out.paragraph(payload.text("description").unwrap_or_default());
    out.gap();
    out.line("Escalation", &said(payload, "escalation_type"));
    out.line("Severity", &said(payload, "severity"));
    out.line("Triggered by", &said(payload, "triggered_by"));
    let suspended = payload.flag("auto_suspended") == Some(true);
    out.line("Suspended", if suspended { "yes, until the admin resumes" } else { "no" });
    out.list("Affected messages", &texts(payload, "affected_msgs"));
    out.list("State", &members(payload.get("system_state_snapshot")));
    out.list("Suggested actions", &texts(payload, "suggested_actions"));
}
