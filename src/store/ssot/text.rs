//! The body of a message: its payload in words, then as JSON with the order and spelling of the file.

use std::fmt::Write as _;

use super::envelope::SsotMessage;
use super::json_node::JsonNode;
use super::vocabulary::SsotMessageType;

/// The line before the payload; no line of the payload can be equal.
pub(super) const PAYLOAD: &str = "Payload:\n";

/// Returns the body of a message for a person or an agent that only has `cat`.
pub fn render_body(message: &SsotMessage<'_>) -> String {
    let payload = message.payload();
    let mut out = ParagraphWriter::default();
    match message.kind {
        SsotMessageType::Dispatch => render_dispatch(payload, &mut out),
        SsotMessageType::Result => render_result(payload, &mut out),
        SsotMessageType::ReviewRequest => render_request(payload, &mut out),
        SsotMessageType::ReviewVerdict => render_verdict(payload, &mut out),
        SsotMessageType::Escalation => render_escalation(payload, &mut out),
    }
    let ids: Vec<&str> =
        message.node.items("context_ref").iter().filter_map(JsonNode::as_text).collect();
    out.write_list("Context", &ids);
    let asks = match message.ack_timeout.filter(|_| message.requires_ack) {
        Some(secs) => format!("within {secs} seconds"),
        None if message.requires_ack => "yes, without a time limit".to_owned(),
        None => "not asked for".to_owned(),
    };
    out.begin_paragraph();
    out.write_line("Acknowledgement", &asks);
    let others = unknown_members(&message.node);
    if !others.is_empty() {
        out.begin_paragraph();
        out.0.push_str("Other members:\n");
        out.0.push_str(&JsonNode::Object(others).render_pretty());
        out.0.push('\n');
    }
    out.begin_paragraph();
    out.0.push_str(PAYLOAD);
    out.0.push_str(&payload.render_pretty());
    out.0.push('\n');
    out.0
}

/// Returns the members of the envelope that the format does not know.
fn unknown_members<'a>(node: &JsonNode<'a>) -> Vec<(std::borrow::Cow<'a, str>, JsonNode<'a>)> {
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
    let JsonNode::Object(members) = node else { return Vec::new() };
    members.iter().filter(|(key, _)| !KNOWN.contains(&&**key)).cloned().collect()
}

/// A text in paragraphs.
#[derive(Default)]
struct ParagraphWriter(String);

impl ParagraphWriter {
    /// Begins a paragraph.
    fn begin_paragraph(&mut self) {
        if !self.0.is_empty() && !self.0.ends_with("\n\n") {
            self.0.push('\n');
        }
    }

    fn write_line(&mut self, name: &str, value: &str) {
        let _ = writeln!(self.0, "{name}: {}", indent_continuation(value));
    }

    fn write_line_if_some(&mut self, name: &str, value: Option<&str>) {
        if let Some(value) = value {
            self.write_line(name, value);
        }
    }

    fn write_paragraph(&mut self, text: &str) {
        self.begin_paragraph();
        let _ = writeln!(self.0, "{}", text.trim_end_matches('\n'));
    }

    fn write_list(&mut self, title: &str, items: &[impl AsRef<str>]) {
        if items.is_empty() {
            return;
        }
        self.begin_paragraph();
        let _ = writeln!(self.0, "{title}:");
        for (n, item) in items.iter().enumerate() {
            let _ = writeln!(self.0, "{}. {}", n + 1, indent_continuation(item.as_ref()));
        }
    }
}

/// Indents the further lines of a value, so that none looks like the next item.
fn indent_continuation(value: &str) -> String {
    value.trim_end_matches('\n').replace('\n', "\n   ")
}

fn text_items<'a>(node: &'a JsonNode<'_>, name: &str) -> Vec<&'a str> {
    node.items(name).iter().filter_map(JsonNode::as_text).collect()
}

fn render_scalar(node: Option<&JsonNode<'_>>) -> String {
    match node {
        Some(JsonNode::Text(text)) => text.to_string(),
        Some(node) => node.render_pretty(),
        None => "null".to_owned(),
    }
}

fn render_members(node: Option<&JsonNode<'_>>) -> Vec<String> {
    let Some(JsonNode::Object(members)) = node else { return Vec::new() };
    members.iter().map(|(key, value)| format!("{key}: {}", render_scalar(Some(value)))).collect()
}

fn render_member(node: &JsonNode<'_>, name: &str) -> String {
    render_scalar(node.get(name))
}

fn render_dispatch(payload: &JsonNode<'_>, out: &mut ParagraphWriter) {
    out.write_paragraph(payload.text("description").unwrap_or_default());
    out.begin_paragraph();
    out.write_line_if_some("Repo", payload.text("repo"));
    out.write_line_if_some("Branch", payload.text("branch"));
    out.write_line_if_some("Risk", payload.text("risk_level"));
    let subtasks: Vec<String> = payload
        .items("subtasks")
        .iter()
        .map(|s| {
            let (id, lines) = (render_member(s, "subtask_id"), render_member(s, "estimated_lines"));
            format!("{id} (about {lines} lines): {}", render_member(s, "description"))
        })
        .collect();
    out.write_list("Subtasks", &subtasks);
    out.write_list("Acceptance criteria", &text_items(payload, "acceptance_criteria"));
    out.write_list("Forbidden", &text_items(payload, "forbidden_actions"));
    out.write_list("Technical constraints", &render_members(payload.get("tech_constraints")));
}

fn render_result(payload: &JsonNode<'_>, out: &mut ParagraphWriter) {
    let status = render_member(payload, "completion_status");
    out.write_paragraph(&format!("Subtask {}: {status}", render_member(payload, "subtask_id")));
    out.write_list("Blockers", &text_items(payload, "blockers"));
    if let Some(diff) = payload.get("diff_summary") {
        let (added, removed) =
            (render_member(diff, "lines_added"), render_member(diff, "lines_removed"));
        out.write_list(
            &format!("Changed files (+{added} -{removed})"),
            &text_items(diff, "files_changed"),
        );
        if diff.items("files_changed").is_empty() {
            out.write_paragraph(&format!("Changed files (+{added} -{removed}): none"));
        }
    }
    out.write_line_if_some("Commit", payload.text("commit_hash"));
    if let Some(own) = payload.get("self_assessment") {
        let notes = text_items(own, "notes");
        let met = own.items("criteria_met").iter().enumerate().map(|(n, met)| {
            let met = choose_word(met, ["met", "not met", "could not be verified"]);
            notes.get(n).map_or_else(|| met.to_owned(), |note| format!("{met}: {note}"))
        });
        let extra = notes.iter().skip(own.items("criteria_met").len());
        let all: Vec<String> = met.chain(extra.map(|note| (*note).to_owned())).collect();
        out.write_list("Acceptance criteria, by the executor", &all);
    }
    let log: Vec<String> = payload
        .items("work_log")
        .iter()
        .map(|e| {
            let (time, action) = (render_member(e, "timestamp"), render_member(e, "action"));
            format!("{time} {action} {}: {}", render_member(e, "file"), render_member(e, "detail"))
        })
        .collect();
    out.write_list("Work log", &log);
}

/// Returns the word for `true`, `false` or `null`.
fn choose_word<'a>(node: &JsonNode<'_>, words: [&'a str; 3]) -> &'a str {
    match node {
        JsonNode::Bool(true) => words[0],
        JsonNode::Bool(false) => words[1],
        _ => words[2],
    }
}

fn render_request(payload: &JsonNode<'_>, out: &mut ParagraphWriter) {
    out.write_line("Scope", &render_member(payload, "review_scope"));
    out.write_line("Diff", &render_member(payload, "diff_url"));
    out.write_line("Dispatch", &render_member(payload, "original_dispatch_ref"));
    out.write_line("Result", &render_member(payload, "task_result_ref"));
    out.write_line("Rejected so far", &render_member(payload, "reject_count"));
    if let Some(notes) = payload.text("coordinator_notes") {
        out.write_paragraph(notes);
    }
    out.write_list("CI", &render_members(payload.get("ci_status")));
}

fn render_verdict(payload: &JsonNode<'_>, out: &mut ParagraphWriter) {
    out.write_line("Decision", &render_member(payload, "decision"));
    out.write_line("Confidence", &render_member(payload, "confidence"));
    let criteria: Vec<String> = payload
        .items("criteria_results")
        .iter()
        .map(|c| {
            let passed = c.get("passed").unwrap_or(&JsonNode::Null);
            let passed = choose_word(passed, ["passed", "failed", "not verified"]);
            format!(
                "{} - {passed}: {}",
                render_member(c, "criterion"),
                render_member(c, "evidence")
            )
        })
        .collect();
    out.write_list("Criteria", &criteria);
    let issues: Vec<String> = payload
        .items("issues")
        .iter()
        .map(|i| {
            let place = format!("{}:{}", render_member(i, "file"), render_member(i, "line"));
            let (severity, what) = (render_member(i, "severity"), render_member(i, "description"));
            format!("{place} {severity}: {what}\nfix: {}", render_member(i, "suggested_fix"))
        })
        .collect();
    out.write_list("Issues", &issues);
    let fixes: Vec<String> = payload
        .items("direct_fixes")
        .iter()
        .map(|f| {
            let (kind, lines) = (render_member(f, "change_type"), render_member(f, "diff_lines"));
            format!("{}: {kind}, {lines} lines", render_member(f, "file"))
        })
        .collect();
    out.write_list("Fixed by the reviewer", &fixes);
    if let Some(notes) = payload.text("architecture_notes") {
        out.begin_paragraph();
        out.write_line("Architecture", notes);
    }
}

fn render_escalation(payload: &JsonNode<'_>, out: &mut ParagraphWriter) {
    out.write_paragraph(payload.text("description").unwrap_or_default());
    out.begin_paragraph();
    out.write_line("Escalation", &render_member(payload, "escalation_type"));
    out.write_line("Severity", &render_member(payload, "severity"));
    out.write_line("Triggered by", &render_member(payload, "triggered_by"));
    let suspended = payload.flag("auto_suspended") == Some(true);
    out.write_line("Suspended", if suspended { "yes, until the admin resumes" } else { "no" });
    out.write_list("Affected messages", &text_items(payload, "affected_msgs"));
    out.write_list("State", &render_members(payload.get("system_state_snapshot")));
    out.write_list("Suggested actions", &text_items(payload, "suggested_actions"));
}
