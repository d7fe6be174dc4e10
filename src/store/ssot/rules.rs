//! The payload of each type: shapes, hard rules and recommendations (docs/formats/ssot.md, sections
//! 3 and 6).

use super::json_node::JsonNode;
use super::schema::{self, BreachList, RuleBreach, SsotField, SsotShape, opt, req};
use super::vocabulary::{SsotMessageType, split_message_id};
use crate::store::text::time::parse_time;

/// Number of rejected verdicts from which a task is locked.
pub const LOCK_AT: u32 = 3;
/// Number of rejected verdicts from which the reviewer should be warned.
const WARN_AT: i64 = 2;
/// Number of lines that a direct fix must stay below.
const FIX_LINES: i64 = 5;
const FIX_TYPES: &[&str] = &["typo", "lint", "whitespace", "import_order"];
const PROTECTED: &[&str] = &["main", "master"];

const TEXTS: SsotShape = SsotShape::Each(&SsotShape::Text);

const DISPATCH: &[SsotField] = &[
    req("description", SsotShape::Text),
    req("repo", SsotShape::Text),
    req("branch", SsotShape::Text),
    req(
        "subtasks",
        SsotShape::Each(&SsotShape::Object(&[
            req("subtask_id", SsotShape::Text),
            req("description", SsotShape::Text),
            req("estimated_lines", SsotShape::Int),
        ])),
    ),
    req("acceptance_criteria", TEXTS),
    req("risk_level", SsotShape::Word(&["low", "medium", "high"])),
    opt("forbidden_actions", TEXTS),
    opt("tech_constraints", SsotShape::Free),
];

const RESULT: &[SsotField] = &[
    req("subtask_id", SsotShape::Text),
    req("completion_status", SsotShape::Word(&["complete", "partial", "failed"])),
    req(
        "diff_summary",
        SsotShape::Object(&[
            req("files_changed", TEXTS),
            req("lines_added", SsotShape::Int),
            req("lines_removed", SsotShape::Int),
        ]),
    ),
    req(
        "self_assessment",
        SsotShape::Object(&[
            req("criteria_met", SsotShape::Each(&SsotShape::BoolOrNull)),
            req("notes", TEXTS),
        ]),
    ),
    req(
        "work_log",
        SsotShape::Each(&SsotShape::Object(&[
            req("timestamp", SsotShape::Text),
            req("action", SsotShape::Text),
            req("file", SsotShape::Text),
            req("detail", SsotShape::Text),
        ])),
    ),
    opt("commit_hash", SsotShape::Text),
    opt("blockers", TEXTS),
];

const REQUEST: &[SsotField] = &[
    req("original_dispatch_ref", SsotShape::Text),
    req("task_result_ref", SsotShape::Text),
    req("review_scope", SsotShape::Word(&["full", "incremental"])),
    req("diff_url", SsotShape::Text),
    req("reject_count", SsotShape::Int),
    opt("coordinator_notes", SsotShape::Text),
    opt("ci_status", SsotShape::Free),
];

const VERDICT: &[SsotField] = &[
    req("decision", SsotShape::Word(&["approved", "approved_with_fix", "rejected"])),
    req(
        "criteria_results",
        SsotShape::Each(&SsotShape::Object(&[
            req("criterion", SsotShape::Text),
            req("passed", SsotShape::BoolOrNull),
            req("evidence", SsotShape::Text),
        ])),
    ),
    opt(
        "issues",
        SsotShape::Each(&SsotShape::Object(&[
            req("severity", SsotShape::Word(&["critical", "major", "minor"])),
            req("file", SsotShape::Text),
            req("line", SsotShape::Int),
            req("description", SsotShape::Text),
            req("suggested_fix", SsotShape::Text),
        ])),
    ),
    opt(
        "direct_fixes",
        SsotShape::Each(&SsotShape::Object(&[
            req("file", SsotShape::Text),
            req("change_type", SsotShape::Text),
            req("diff_lines", SsotShape::Int),
        ])),
    ),
    opt("architecture_notes", SsotShape::Text),
    req("confidence", SsotShape::Number),
];

const ESCALATION: &[SsotField] = &[
    req(
        "escalation_type",
        SsotShape::Word(&[
            "hallucination_lock",
            "ack_timeout",
            "branch_violation",
            "ci_failure",
            "conflict",
            "heartbeat_timeout",
            "permission_denied",
            "unknown",
        ]),
    ),
    req("severity", SsotShape::Word(&["critical", "warning", "info"])),
    req("triggered_by", SsotShape::Word(&["coordinator", "executor", "reviewer", "system"])),
    req("description", SsotShape::Text),
    req("affected_msgs", TEXTS),
    req(
        "system_state_snapshot",
        SsotShape::Object(&[
            req("task_status", SsotShape::Text),
            req("reject_count", SsotShape::Int),
            req("last_successful_msg_id", SsotShape::TextOrNull),
        ]),
    ),
    opt("suggested_actions", TEXTS),
    req("auto_suspended", SsotShape::Bool),
];

/// Returns the hard rules that a payload of this type breaks. Rules about values are checked only if the shape is
/// right, so that one mistake is named once.
pub fn check_payload(kind: SsotMessageType, payload: &JsonNode<'_>) -> BreachList {
    let mut out = BreachList::default();
    let fields = match kind {
        SsotMessageType::Dispatch => DISPATCH,
        SsotMessageType::Result => RESULT,
        SsotMessageType::ReviewRequest => REQUEST,
        SsotMessageType::ReviewVerdict => VERDICT,
        SsotMessageType::Escalation => ESCALATION,
    };
    schema::check_fields(fields, payload, "payload.", &mut out);
    if out.is_empty() {
        match kind {
            SsotMessageType::Dispatch => check_dispatch(payload, &mut out),
            SsotMessageType::Result => check_result(payload, &mut out),
            SsotMessageType::ReviewRequest => check_request(payload, &mut out),
            SsotMessageType::ReviewVerdict => check_verdict(payload, &mut out),
            SsotMessageType::Escalation => check_escalation(payload, &mut out),
        }
    }
    out
}

fn check_dispatch(payload: &JsonNode<'_>, out: &mut BreachList) {
    if payload.text("repo").is_some_and(|repo| !repo.starts_with('/')) {
        let why = "is not an absolute path";
        out.push(RuleBreach::new("repo_not_absolute", "payload.repo", why));
    }
    if payload.text("branch").is_some_and(|branch| PROTECTED.contains(&branch)) {
        let why = "is main or master; work on a branch of its own";
        out.push(RuleBreach::new("branch_protected", "payload.branch", why));
    }
    if payload.items("acceptance_criteria").is_empty() {
        let why = "is empty; say when the task is done";
        out.push(RuleBreach::new("acceptance_criteria_empty", "payload.acceptance_criteria", why));
    }
}

fn check_result(payload: &JsonNode<'_>, out: &mut BreachList) {
    let complete = payload.text("completion_status") == Some("complete");
    if !complete && payload.items("blockers").is_empty() {
        let why = "must say what stands in the way of a partial or failed task";
        out.push(RuleBreach::new("blockers_required", "payload.blockers", why));
    }
}

fn check_request(payload: &JsonNode<'_>, out: &mut BreachList) {
    for (name, kind) in REFS {
        let begins = |id: &str| id.strip_prefix(kind.as_str()).is_some_and(|r| r.starts_with('-'));
        if payload.text(name).is_some_and(|id| !begins(id)) {
            let why = format!("is not the id of a {}", kind.as_str());
            out.push(RuleBreach::new("ref_type", format!("payload.{name}"), why));
        }
    }
    if payload.int("reject_count").is_some_and(|count| count < 0) {
        out.push(RuleBreach::new(
            "reject_count_negative",
            "payload.reject_count",
            "is less than 0",
        ));
    }
    let ci = payload.get("ci_status");
    if ci.and_then(|ci| ci.text("xcode_cloud")) == Some("failed") {
        let why = "is failed; dispatch a fix instead of asking for a review";
        out.push(RuleBreach::new("ci_failed", "payload.ci_status.xcode_cloud", why));
    }
}

fn check_verdict(payload: &JsonNode<'_>, out: &mut BreachList) {
    let decision = payload.text("decision").unwrap_or_default();
    if decision == "rejected" && payload.items("issues").is_empty() {
        let why = "must say why it is rejected";
        out.push(RuleBreach::new("issues_required", "payload.issues", why));
    }
    let fixes = payload.items("direct_fixes");
    if decision == "approved_with_fix" && fixes.is_empty() {
        let why = "must say what was fixed";
        out.push(RuleBreach::new("direct_fixes_required", "payload.direct_fixes", why));
    }
    for (n, fix) in fixes.iter().enumerate() {
        if fix.text("change_type").is_some_and(|kind| !FIX_TYPES.contains(&kind)) {
            let member = format!("payload.direct_fixes[{n}].change_type");
            let why = format!("is none of {}", FIX_TYPES.join(", "));
            out.push(RuleBreach::new("fix_change_type", member, why));
        }
        if fix.int("diff_lines").is_some_and(|lines| lines >= FIX_LINES) {
            let member = format!("payload.direct_fixes[{n}].diff_lines");
            out.push(RuleBreach::new("fix_too_large", member, "is not less than 5"));
        }
    }
    if payload.number("confidence").is_some_and(|c| !(0.0..=1.0).contains(&c)) {
        let why = "is not between 0.0 and 1.0";
        out.push(RuleBreach::new("confidence_range", "payload.confidence", why));
    }
}

fn check_escalation(payload: &JsonNode<'_>, out: &mut BreachList) {
    let critical = payload.text("severity") == Some("critical");
    if critical && payload.flag("auto_suspended") == Some(false) {
        let why = "must be true if the severity is critical";
        out.push(RuleBreach::new("critical_not_suspended", "payload.auto_suspended", why));
    }
}

/// Members of a review request that name messages, and the types of those.
pub const REFS: [(&str, SsotMessageType); 2] = [
    ("original_dispatch_ref", SsotMessageType::Dispatch),
    ("task_result_ref", SsotMessageType::Result),
];

/// Returns the recommendations that a payload does not follow.
pub fn check_soft_rules(kind: SsotMessageType, payload: &JsonNode<'_>) -> BreachList {
    let mut out = BreachList::default();
    match kind {
        SsotMessageType::Dispatch => check_soft_dispatch(payload, &mut out),
        SsotMessageType::Result => check_soft_result(payload, &mut out),
        SsotMessageType::ReviewRequest => check_soft_request(payload, &mut out),
        SsotMessageType::ReviewVerdict => check_soft_verdict(payload, &mut out),
        SsotMessageType::Escalation => {
            let warned = payload.text("severity") == Some("warning");
            if warned && payload.flag("auto_suspended") == Some(false) {
                let why = "is false, which is meant for severity info only";
                out.push(RuleBreach::new("warning_not_suspended", "payload.auto_suspended", why));
            }
        }
    }
    out
}

fn check_soft_dispatch(payload: &JsonNode<'_>, out: &mut BreachList) {
    let branch = payload.text("branch").unwrap_or_default();
    let last = branch.trim().rsplit('/').next().unwrap_or_default().to_ascii_lowercase();
    let short = ["refs/heads", "refs/remotes/origin", "origin", ""];
    let path = branch.trim().rsplit_once('/').map_or("", |(path, _)| path);
    if PROTECTED.contains(&&*last) && short.contains(&path) {
        let why = "looks like main or master";
        out.push(RuleBreach::new("branch_looks_protected", "payload.branch", why));
    }
    let subtasks = payload.items("subtasks");
    if subtasks.is_empty() {
        out.push(RuleBreach::new("subtasks_empty", "payload.subtasks", "is empty"));
    }
    let mut seen = std::collections::HashSet::new();
    for (n, subtask) in subtasks.iter().enumerate() {
        if subtask.text("subtask_id").is_some_and(|id| !seen.insert(id)) {
            let member = format!("payload.subtasks[{n}].subtask_id");
            out.push(RuleBreach::new("subtask_id_repeated", member, "is that of another subtask"));
        }
    }
    for (n, item) in payload.items("acceptance_criteria").iter().enumerate() {
        if item.as_text().is_some_and(|text| text.trim().is_empty()) {
            let member = format!("payload.acceptance_criteria[{n}]");
            out.push(RuleBreach::new("acceptance_criterion_blank", member, "is blank"));
        }
    }
}

fn check_soft_result(payload: &JsonNode<'_>, out: &mut BreachList) {
    let hex =
        |hash: &str| (7..=64).contains(&hash.len()) && hash.bytes().all(|b| b.is_ascii_hexdigit());
    if payload.text("commit_hash").is_some_and(|hash| !hex(hash)) {
        let why = "is not 7 to 64 hexadecimal digits";
        out.push(RuleBreach::new("commit_hash_format", "payload.commit_hash", why));
    }
    if let Some(own) = payload.get("self_assessment")
        && own.items("notes").len() != own.items("criteria_met").len()
    {
        let why = "has not as many items as criteria_met";
        out.push(RuleBreach::new("notes_length", "payload.self_assessment.notes", why));
    }
    for (n, item) in payload.items("work_log").iter().enumerate() {
        if item.text("timestamp").is_some_and(|time| parse_time(time).is_none()) {
            let member = format!("payload.work_log[{n}].timestamp");
            out.push(RuleBreach::new("work_log_timestamp", member, "is not a time with an offset"));
        }
    }
}

fn check_soft_request(payload: &JsonNode<'_>, out: &mut BreachList) {
    for (name, _) in REFS {
        if payload.text(name).is_some_and(|id| split_message_id(id).is_none()) {
            let member = format!("payload.{name}");
            out.push(RuleBreach::new("ref_format", member, "is not the form of a msg_id"));
        }
    }
    let count = payload.int("reject_count").unwrap_or_default();
    let notes = payload.text("coordinator_notes").unwrap_or_default().to_ascii_lowercase();
    if count >= WARN_AT && !notes.contains("lock") {
        let why = "does not tell the reviewer that the lock is approaching";
        out.push(RuleBreach::new("lock_warning_missing", "payload.coordinator_notes", why));
    }
    if count >= i64::from(LOCK_AT) {
        let why = "is at the threshold where the task is locked";
        out.push(RuleBreach::new("lock_threshold_reached", "payload.reject_count", why));
    }
    let Some(JsonNode::Object(members)) = payload.get("ci_status") else { return };
    for (key, value) in members {
        if key != "xcode_cloud" && value.as_text() == Some("failed") {
            let key: String = crate::model::sanitize_line(key).chars().take(80).collect();
            let member = format!("payload.ci_status.{key}");
            out.push(RuleBreach::new("ci_other_failed", member, "is failed"));
        }
    }
}

fn check_soft_verdict(payload: &JsonNode<'_>, out: &mut BreachList) {
    let decision = payload.text("decision").unwrap_or_default();
    if payload.number("confidence").is_some_and(|c| c < 0.8) {
        let why = "is below 0.8; the coordinator should ask the admin before passing it on";
        out.push(RuleBreach::new("low_confidence", "payload.confidence", why));
    }
    let failed = payload.items("criteria_results").iter().any(|c| c.flag("passed") == Some(false));
    if decision != "rejected" && failed {
        let why = "is approved although a criterion failed";
        out.push(RuleBreach::new("approved_with_failed_criterion", "payload.decision", why));
    }
    let minor = |issue: &JsonNode<'_>| issue.text("severity") == Some("minor");
    if decision == "rejected" && payload.items("issues").iter().all(minor) {
        let why = "names only minor issues, which do not block";
        out.push(RuleBreach::new("rejected_for_minor_issues", "payload.issues", why));
    }
    if decision != "approved_with_fix" && !payload.items("direct_fixes").is_empty() {
        let why = "is meant for approved_with_fix";
        out.push(RuleBreach::new("direct_fixes_unexpected", "payload.direct_fixes", why));
    }
}
