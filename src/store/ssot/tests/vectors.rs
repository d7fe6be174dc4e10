//! The vectors, and messages that one change makes invalid.

use super::*;
use crate::store::ssot::envelope::{FILE_BYTES, SsotMessage};
use proptest::prelude::*;

const VECTORS: &str = include_str!("../../../../tests/vectors/amp1.json");

/// Returns the rules that a value breaks.
fn broken(value: &Value) -> Vec<&'static str> {
    match SsotMessage::parse(value.to_string().as_bytes()) {
        Ok(_) => Vec::new(),
        Err(fault) => fault.breaches.iter().map(|b| b.rule).collect(),
    }
}

#[test]
fn every_vector_breaks_the_rule_it_names() {
    let vectors: Vec<Value> = serde_json::from_str(VECTORS).unwrap();
    assert!(vectors.len() > 60);
    for v in &vectors {
        let expected: Vec<&str> = v["violated_rule"].as_str().into_iter().collect();
        assert_eq!(broken(&v["message"]), expected, "{}", v["name"]);
        assert_eq!(v["expected_valid"], expected.is_empty(), "{}", v["name"]);
    }
}

/// Sets the member at a path, or removes it.
fn with(mut value: Value, path: &str, new: Option<Value>) -> Value {
    let (parent, last) = path.rsplit_once('/').unwrap();
    let object = value.pointer_mut(parent).unwrap();
    match (object, new) {
        (Value::Object(members), Some(new)) => drop(members.insert(last.to_owned(), new)),
        (Value::Object(members), None) => drop(members.remove(last).unwrap()),
        (Value::Array(items), Some(new)) => items[last.parse::<usize>().unwrap()] = new,
        _ => panic!("{path}"),
    }
    value
}

#[test]
fn what_the_vectors_leave_out() {
    use SsotMessageType::{Dispatch, Escalation, Result, ReviewRequest, ReviewVerdict};
    let cases = [
        (Dispatch, "/protocol_version", json!(1), "wrong_type"),
        (Dispatch, "/from", json!("boss"), "bad_enum"),
        (Dispatch, "/to", json!("system"), "bad_enum"),
        (
            Dispatch,
            "/msg_id",
            json!("task_dispatch-T-2026-007-99999999999999999999"),
            "msg_id_format",
        ),
        (Dispatch, "/requires_ack", json!(false), "ack_required_for_type"),
        (Dispatch, "/ack_timeout_sec", json!(60.0), "wrong_type"),
        (Dispatch, "/ack_timeout_sec", json!(0), "ack_timeout_range"),
        (Dispatch, "/context_ref", json!([1]), "wrong_type"),
        (Dispatch, "/timestamp", json!("2026-02-26T14:32:07"), "timestamp_format"),
        (Dispatch, "/payload", json!([]), "wrong_type"),
        (Dispatch, "/payload/repo", json!("uploader"), "repo_not_absolute"),
        (Dispatch, "/payload/branch", json!("master"), "branch_protected"),
        (Dispatch, "/payload/acceptance_criteria", json!([]), "acceptance_criteria_empty"),
        (Dispatch, "/payload/acceptance_criteria", json!(["a", 1]), "wrong_type"),
        (Dispatch, "/payload/risk_level", json!("none"), "bad_enum"),
        (Dispatch, "/payload/tech_constraints", json!("rust"), "wrong_type"),
        (Result, "/payload/completion_status", json!("partial"), "blockers_required"),
        (Result, "/payload/self_assessment/criteria_met", json!(["yes"]), "wrong_type"),
        (ReviewRequest, "/payload/original_dispatch_ref", json!(id(Result, 1)), "ref_type"),
        (ReviewRequest, "/payload/ci_status", json!({"xcode_cloud": "failed"}), "ci_failed"),
        (ReviewVerdict, "/payload/confidence", json!(1.01), "confidence_range"),
        (ReviewVerdict, "/payload/confidence", json!(true), "wrong_type"),
        (ReviewVerdict, "/payload/decision", json!("approved_with_fix"), "direct_fixes_required"),
        (Escalation, "/payload/auto_suspended", json!(false), "critical_not_suspended"),
    ];
    for (kind, path, new, rule) in cases {
        let changed = with(message(kind, 3), path, Some(new));
        assert_eq!(broken(&changed), [rule], "{path}");
    }
    for text in ["", "null", "{\"msg_id\":\"a\",\"msg_id\":\"a\"}", "\u{feff}{}", "{\"a\":NaN}"] {
        let fault = SsotMessage::parse(text.as_bytes()).unwrap_err();
        assert_eq!(fault.breaches[0].rule, "not_an_object", "{text}");
    }
    let large = vec![b' '; FILE_BYTES + 1];
    assert_eq!(SsotMessage::parse(&large).unwrap_err().breaches[0].rule, "not_an_object");
}

#[test]
fn recommendations_are_named_and_hold_nothing_back() {
    use SsotMessageType::{Dispatch, Escalation, Result, ReviewRequest, ReviewVerdict};
    let cases = [
        (Dispatch, "/payload/branch", json!("origin/Main"), "branch_looks_protected"),
        (Dispatch, "/payload/branch", json!(" main"), "branch_looks_protected"),
        (Dispatch, "/payload/branch", json!("refs/heads/master"), "branch_looks_protected"),
        (Dispatch, "/payload/subtasks", json!([]), "subtasks_empty"),
        (Dispatch, "/context_ref", json!(["task_dispatch-T-2026-043-..."]), "context_ref_format"),
        (ReviewRequest, "/payload/reject_count", json!(2), "lock_warning_missing"),
        (ReviewRequest, "/payload/task_result_ref", json!("task_result-x"), "ref_format"),
        (ReviewVerdict, "/payload/confidence", json!(0.5), "low_confidence"),
        (Result, "/payload/commit_hash", json!("HEAD"), "commit_hash_format"),
        (Escalation, "/ack_timeout_sec", json!(-5), "ack_timeout_without_ack"),
    ];
    for (kind, path, new, rule) in cases {
        let text = with(message(kind, 3), path, Some(new)).to_string();
        let rules: Vec<_> = SsotMessage::parse(text.as_bytes())
            .unwrap()
            .soft_breaches
            .iter()
            .map(|b| b.rule)
            .collect();
        assert_eq!(rules, [rule], "{path}");
    }
    for kind in SsotMessageType::ALL {
        let text = message(kind, 3).to_string();
        let message = SsotMessage::parse(text.as_bytes()).unwrap();
        assert!(message.soft_breaches.is_empty(), "{kind:?}");
    }
    let branch = with(message(Dispatch, 0), "/payload/branch", Some(json!("feature/main")));
    let branch = branch.to_string();
    assert!(SsotMessage::parse(branch.as_bytes()).unwrap().soft_breaches.is_empty());
}

#[test]
fn many_breaches_are_counted_and_not_kept() {
    let mut wrong = vec![json!(1); 5000];
    wrong.push(json!({}));
    let many = with(message(SsotMessageType::Result, 0), "/payload/work_log", Some(wrong.into()));
    let text = many.to_string();
    let fault = SsotMessage::parse(text.as_bytes()).unwrap_err();
    // An object without its four members is one more rule.
    assert_eq!((fault.breaches.len(), fault.breaches.count()), (101, 5004));
    assert_eq!(fault.breaches.last().unwrap().rule, "missing_field");
    let why = fault.to_string();
    assert!(why.len() < 1000 && why.ends_with("; and 5000 more"), "{why}");

    let objects = Some(vec![json!({}); 5000].into());
    let missing = with(message(SsotMessageType::Result, 0), "/payload/work_log", objects);
    let why = SsotMessage::parse(missing.to_string().as_bytes()).unwrap_err().to_string();
    assert!(why.len() < 5000 && why.ends_with("; and 19980 more"), "{why}");

    let blank = Some(vec![json!(" "); 5000].into());
    let soft = with(message(SsotMessageType::Dispatch, 0), "/payload/acceptance_criteria", blank);
    let text = soft.to_string();
    let note = SsotMessage::parse(text.as_bytes()).unwrap().render_note().unwrap();
    assert_eq!(note.lines().count(), 101);
    assert!(note.ends_with("\nand 4900 more\n"), "{note}");
}

/// Returns the paths of all members of objects.
fn members(kind: SsotMessageType) -> Vec<String> {
    fn walk(value: &Value, path: &str, out: &mut Vec<String>) {
        if let Value::Object(members) = value {
            for (key, value) in members {
                let path = format!("{path}/{key}");
                walk(value, &path, out);
                out.push(path);
            }
        }
    }
    let mut out = Vec::new();
    walk(&message(kind, 3), "", &mut out);
    out
}

proptest! {
    #[test]
    fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = SsotMessage::parse(&bytes);
    }

    #[test]
    fn valid_messages_pass_and_one_mutation_is_named(
        kind in prop::sample::select(&SsotMessageType::ALL[..]),
        pick: prop::sample::Index,
        remove: bool,
        text in "\\PC{0,40}",
    ) {
        let free = with(message(kind, 3), "/x_extra", Some(json!(text)));
        prop_assert_eq!(broken(&free), Vec::<&str>::new());
        let read = free.to_string();
        let read = SsotMessage::parse(read.as_bytes()).unwrap();
        let shown = super::super::text::render_body(&read);
        prop_assert!(shown.contains("Payload:\n"));
        let all = members(kind);
        let path = pick.get(&all);
        let optional = ["/payload/issues"].contains(&path.as_str());
        let new = (!remove).then(|| json!({"a": [1.5]}));
        let rules = broken(&with(free, path, new));
        if remove && !optional {
            prop_assert_eq!(rules, ["missing_field"], "{}", path);
        } else if !remove && matches!(path.as_str(), "/payload" | "/payload/diff_summary"
            | "/payload/self_assessment" | "/payload/system_state_snapshot") {
            prop_assert!(rules.iter().all(|r| *r == "missing_field") && !rules.is_empty());
        } else if !remove {
            prop_assert_eq!(rules, ["wrong_type"], "{}", path);
        }
    }

    #[test]
    fn broken_text_never_panics(kind in prop::sample::select(&SsotMessageType::ALL[..]), at: prop::sample::Index, byte: u8) {
        let mut bytes = message(kind, 3).to_string().into_bytes();
        let at = at.index(bytes.len());
        bytes[at] = byte;
        if let Ok(read) = SsotMessage::parse(&bytes) {
            let _ = super::super::text::render_body(&read);
        }
        bytes.truncate(at);
        let fault = SsotMessage::parse(&bytes).unwrap_err();
        prop_assert!(fault.is_incomplete || at == 0, "{}", fault);
    }
}
