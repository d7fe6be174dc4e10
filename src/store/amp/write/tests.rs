use std::sync::LazyLock;

use proptest::prelude::*;
use serde_json::Value as Json;

use super::super::edit::set_status;
use super::super::envelope::{self, AmpMessage, ReadState};
use super::super::limits::is_over_limit;
use super::super::verify::extract_claim;
use super::*;
use crate::model::verify::verify_claim;
use crate::store::testing::Key;

static KEY: LazyLock<Key> = LazyLock::new(|| Key::new(5));

const DIGEST: &str = "8e722e34af271ba626bdbdf618ebf1386eaad27b073b6421d329bf5ffca22637";

const FILE: AmpNewAttachment<'static> = AmpNewAttachment {
    id: "att_1795291680_0eb86f9f",
    filename: "a_b.log",
    content_type: "text/plain",
    size: 9,
    sha256: DIGEST,
};

fn plain() -> AmpNewMessage<'static> {
    AmpNewMessage {
        from: "alice@acme.aimaestro.local",
        to: "bob@acme.aimaestro.local",
        subject: "Hello",
        priority: "normal",
        kind: "notification",
        in_reply_to: None,
        thread_id: "msg_1795291603_a000000000000003",
        id: "msg_1795291603_a000000000000003",
        now: Timestamp::from_millis(1_795_291_632_305),
        body: "tests are green",
        files: &[],
        recipients: &[],
        is_carried: false,
        idempotency_key: None,
    }
}

fn is_valid(text: &str) -> bool {
    let stored = envelope::parse(text.as_bytes()).unwrap();
    let claim = extract_claim(&stored, None, &[]).unwrap().unwrap();
    verify_claim(&KEY.public_key(), &claim)
}

fn parse(text: &str) -> AmpMessage<'_> {
    envelope::parse(text.as_bytes()).unwrap()
}

#[test]
fn the_form_in_sent() {
    let text = compose_message(&plain(), &*KEY).unwrap();
    let signature = parse(&text).signature.unwrap().into_owned();
    assert_eq!(signature.len(), 88);
    let expected = format!(
        r#"{{
  "envelope": {{
    "version": "amp/0.1",
    "id": "msg_1795291603_a000000000000003",
    "from": "alice@acme.aimaestro.local",
    "to": "bob@acme.aimaestro.local",
    "subject": "Hello",
    "priority": "normal",
    "timestamp": "2026-11-21T20:07:12.305Z",
    "expires_at": "2026-11-28T20:07:12Z",
    "signature": "{signature}",
    "thread_id": "msg_1795291603_a000000000000003"
  }},
  "payload": {{
    "type": "notification",
    "message": "tests are green"
  }},
  "local": {{
    "sent_at": "2026-11-21T20:07:12Z"
  }}
}}
"#
    );
    assert_eq!(text, expected);
}

#[test]
fn the_form_in_inbox() {
    let sent = compose_message(
        &AmpNewMessage {
            in_reply_to: Some("msg_1_a"),
            files: &[FILE],
            idempotency_key: Some("idk_1"),
            ..plain()
        },
        &*KEY,
    )
    .unwrap();
    let inbox = make_delivered_copy(&sent, Timestamp::from_millis(1_795_291_633_000)).unwrap();
    let (before, after): (Json, Json) =
        (serde_json::from_str(&sent).unwrap(), serde_json::from_str(&inbox).unwrap());
    assert_eq!(before["envelope"], after["envelope"]);
    assert_eq!(before["payload"], after["payload"]);
    assert_eq!(
        after["local"],
        serde_json::json!({
            "received_at": "2026-11-21T20:07:13Z", "delivery_method": "local", "status": "unread"
        })
    );
    assert!(inbox.ends_with("\n  }\n}\n"));
    let stored = parse(&inbox);
    assert_eq!(stored.status, Some(ReadState::Unread));
    assert_eq!(stored.in_reply_to.as_deref(), Some("msg_1_a"));
    assert_eq!(stored.idempotency_key.as_deref(), Some("idk_1"));
    assert_eq!(stored.attachments.len(), 1);
    assert_eq!(super::super::filename::withheld_reason(&stored.attachments[0]), None);
    assert!(is_valid(&inbox));
    // It has no null: one verifier reads it as a word.
    assert!(!inbox.contains("null"));
    assert_eq!(make_delivered_copy("{}", plain().now), None);
    assert_eq!(make_delivered_copy("", plain().now), None);
}

#[test]
fn what_must_not_be_written() {
    let subject = "\u{e9}".repeat(257);
    let body = "x".repeat(BODY_BYTES + 1);
    let many = [FILE; 11];
    let big = [AmpNewAttachment { size: ATTACHMENT_BYTES + 1, ..FILE }];
    let all = [AmpNewAttachment { size: ATTACHMENT_BYTES, ..FILE }; 5];
    let named = [AmpNewAttachment { filename: "../x", ..FILE }];
    let ids = [AmpNewAttachment { id: "../x", ..FILE }];
    let digest = [AmpNewAttachment { sha256: "00", ..FILE }];
    let invalid = [
        AmpNewMessage { subject: "", ..plain() },
        AmpNewMessage { subject: "  ", ..plain() },
        AmpNewMessage { subject: "a\tb", ..plain() },
        AmpNewMessage { subject: "a\u{7f}", ..plain() },
        AmpNewMessage { subject: &subject, ..plain() },
        AmpNewMessage { body: "a\0b", ..plain() },
        AmpNewMessage { to: "bob", ..plain() },
        AmpNewMessage { from: "a|b@c.d", ..plain() },
        AmpNewMessage { priority: "High", ..plain() },
        AmpNewMessage { kind: "greeting", ..plain() },
        AmpNewMessage { kind: "", ..plain() },
        AmpNewMessage { in_reply_to: Some("null"), ..plain() },
        AmpNewMessage { id: "../x", ..plain() },
        AmpNewMessage { thread_id: "", ..plain() },
        AmpNewMessage { files: &named, ..plain() },
        AmpNewMessage { files: &ids, ..plain() },
        AmpNewMessage { files: &digest, ..plain() },
    ];
    for out in &invalid {
        assert!(matches!(compose_message(out, &*KEY), Err(StoreError::Invalid(_))), "{out:?}");
    }
    let too_large = [
        AmpNewMessage { body: &body, ..plain() },
        AmpNewMessage { files: &many, ..plain() },
        AmpNewMessage { files: &big, ..plain() },
        AmpNewMessage { files: &all, ..plain() },
    ];
    for out in &too_large {
        assert!(
            matches!(compose_message(out, &*KEY), Err(StoreError::TooLarge(_))),
            "{:?}",
            out.files
        );
    }
    assert!(is_kind("github:pull_request") && is_kind("ack"));
    assert!(!is_kind("github:") && !is_kind(":x") && !is_kind("a:b c"));
}

#[test]
fn the_largest_message_fits() {
    let subject = "\u{e9}".repeat(256);
    let body = "\u{1}".repeat(BODY_BYTES);
    let files = [FILE; 10];
    let out = AmpNewMessage { subject: &subject, body: &body, files: &files, ..plain() };
    let text = compose_message(&out, &*KEY).unwrap();
    assert!(!is_over_limit(&parse(&text)));
    let stored = parse(&text);
    assert!(is_over_limit(&AmpMessage { file_len: MESSAGE_BYTES + 1, ..stored.clone() }));
    assert!(is_over_limit(&AmpMessage { subject: Some("x".repeat(257).into()), ..stored.clone() }));
    assert!(is_over_limit(&AmpMessage {
        message: Some("x".repeat(BODY_BYTES + 1).into()),
        ..stored.clone()
    }));
    let context = "x".repeat(262_145);
    assert!(is_over_limit(&AmpMessage { context: Some(&context), ..stored.clone() }));
    let mut more = stored.attachments.clone();
    more.push(more[0].clone());
    assert!(is_over_limit(&AmpMessage { attachments: more.clone(), ..stored.clone() }));
    more[0].storage = Some("afp".into());
    assert!(!is_over_limit(&AmpMessage { attachments: more, ..stored }));
}

proptest! {
    #[test]
    fn what_is_written_verifies_whatever_happens_to_it(
        body in any::<String>().prop_map(|s| s.replace(['\0', '\u{7f}'], "")),
        subject in "[ -~\u{e9}\u{4e00}\u{1f600}]{1,60}".prop_filter("", |s| !s.trim().is_empty()),
        priority in 0usize..4,
        with_file in any::<bool>(),
        is_reply in any::<bool>(),
    ) {
        let out = AmpNewMessage {
            subject: &subject,
            body: &body,
            priority: PRIORITIES[priority],
            in_reply_to: is_reply.then_some("msg_1_a"),
            files: if with_file { std::slice::from_ref(&FILE) } else { &[] },
            ..plain()
        };
        let sent = compose_message(&out, &*KEY).unwrap();
        prop_assert!(is_valid(&sent));
        {
            let stored = parse(&sent);
            prop_assert_eq!(stored.message.as_deref(), Some(body.as_str()));
            prop_assert_eq!(stored.subject.as_deref(), Some(subject.as_str()));
        }
        let inbox = make_delivered_copy(&sent, out.now).unwrap();
        prop_assert!(is_valid(&inbox));
        let read = set_status(inbox.as_bytes(), true, out.now).unwrap();
        let read = String::from_utf8(read).unwrap();
        prop_assert!(is_valid(&read));
        let unread = set_status(read.as_bytes(), false, out.now).unwrap();
        prop_assert!(is_valid(std::str::from_utf8(&unread).unwrap()));
        // Other programs add members and print the message again.
        let mut damaged: Json = serde_json::from_str(&inbox).unwrap();
        damaged["payload"]["context"] = Json::Null;
        if !with_file {
            damaged["payload"]["attachments"] = serde_json::json!([]);
        }
        damaged["metadata"] = serde_json::json!({ "status": "read" });
        prop_assert!(is_valid(&damaged.to_string()));
        damaged["payload"]["message"] = format!("{body}x").into();
        prop_assert!(!is_valid(&damaged.to_string()));
    }
}
