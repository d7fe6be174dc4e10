//! Messages of roles whose clocks differ.

use super::*;
use crate::store::ssot::envelope;
use crate::store::ssot::order::sort_messages;
use crate::store::ssot::state::{TaskMessage, TaskMessageFacts};
use crate::store::ssot::vocabulary::Role;

const MINUTE: i64 = 60_000;

/// Returns a message as it counts, acknowledged at a moment.
fn item(value: &Value, acked: Option<i64>) -> TaskMessage {
    let text = value.to_string();
    let message = envelope::SsotMessage::parse(text.as_bytes()).unwrap();
    let acked = acked.map(Timestamp::from_millis);
    TaskMessage {
        id: message.id.clone(),
        facts: TaskMessageFacts::from_message(&message),
        acked_at: acked,
    }
}

/// Returns the milliseconds by which a role's clock is ahead.
fn ahead(clocks: &[i64; 3], role: Role) -> i64 {
    match role {
        Role::Coordinator => clocks[0],
        Role::Executor => clocks[1],
        _ => clocks[2],
    }
}

/// Returns two rounds of a task as they happened, one message every ten minutes, by these clocks.
fn rounds(clocks: &[i64; 3], with_acks: bool) -> Vec<TaskMessage> {
    let mut out: Vec<TaskMessage> = Vec::new();
    let mut last: Vec<String> = Vec::new();
    for n in 0..8 {
        let kind = [
            SsotMessageType::Dispatch,
            SsotMessageType::Result,
            SsotMessageType::ReviewRequest,
            SsotMessageType::ReviewVerdict,
        ][n % 4];
        let real = n as i64 * 10 * MINUTE;
        let (from, to) = match kind {
            SsotMessageType::Dispatch => (Role::Coordinator, Role::Executor),
            SsotMessageType::Result => (Role::Executor, Role::Coordinator),
            SsotMessageType::ReviewRequest => (Role::Coordinator, Role::Reviewer),
            _ => (Role::Reviewer, Role::Coordinator),
        };
        let mut value = message(kind, real + ahead(clocks, from));
        if kind == SsotMessageType::ReviewRequest {
            value["payload"]["original_dispatch_ref"] = json!(last[n - 2]);
            value["payload"]["task_result_ref"] = json!(last[n - 1]);
        }
        let acked = START + real + MINUTE + ahead(clocks, to);
        out.push(item(&value, with_acks.then_some(acked)));
        last.push(value["msg_id"].as_str().unwrap().to_owned());
    }
    out
}

fn ids(items: &[TaskMessage]) -> Vec<&str> {
    items.iter().map(|item| item.id.as_str()).collect()
}

#[test]
fn whatever_the_clocks_say_acknowledged_messages_count_as_they_were_written() {
    let hours = [-60 * MINUTE, 0, 60 * MINUTE];
    for coordinator in hours {
        for executor in hours {
            for reviewer in hours {
                let clocks = [coordinator, executor, reviewer];
                let all = rounds(&clocks, true);
                for seen in 1..=all.len() {
                    let mut given = all[..seen].to_vec();
                    given.reverse();
                    assert_eq!(ids(&sort_messages(given)), ids(&all[..seen]), "{clocks:?}");
                }
            }
        }
    }
}

#[test]
fn what_carries_no_ref_counts_after_what_it_answers() {
    let hour = 60 * MINUTE;
    let d = |at| item(&message(SsotMessageType::Dispatch, at), None);
    let r = |at| item(&message(SsotMessageType::Result, at), None);
    let named = |at, id: &TaskMessage| {
        let mut value = message(SsotMessageType::Result, at);
        value["context_ref"] = json!([id.id]);
        item(&value, None)
    };
    let (d1, d2, r1, r2) = (d(hour), d(hour + 9), r(5), r(6));
    for (given, wanted) in [
        (vec![&r1, &d1], vec![&d1, &r1]),
        (vec![&r1, &r2, &d1], vec![&d1, &r1, &r2]),
        (vec![&r1, &r2, &d1, &d2], vec![&d1, &r1, &d2, &r2]),
        // It was there before the second request.
        (vec![&d(1), &r1, &d1], vec![&d(1), &r1, &d1]),
        (vec![&d(1), &named(7, &d1), &d1], vec![&d(1), &d1, &named(7, &d1)]),
    ] {
        let given = given.into_iter().cloned().collect();
        let wanted: Vec<TaskMessage> = wanted.into_iter().cloned().collect();
        assert_eq!(ids(&sort_messages(given)), ids(&wanted));
    }
}

#[test]
fn nothing_is_lost_in_a_circle() {
    let (one, two) = (id(SsotMessageType::Result, 5), id(SsotMessageType::ReviewVerdict, 9));
    let of = |kind, at, names: &str| {
        let mut value = message(kind, at);
        value["context_ref"] = json!([names]);
        item(&value, None)
    };
    let circle =
        vec![of(SsotMessageType::ReviewVerdict, 9, &one), of(SsotMessageType::Result, 5, &two)];
    assert_eq!(ids(&sort_messages(circle)), [one, two]);
}
