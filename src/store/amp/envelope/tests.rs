use proptest::prelude::*;

use super::*;

const WHOLE: &str = r#"{
  "envelope": {"version": "amp/0.1", "id": "msg_1_a", "from": "Alice@acme.x.y", "to": "bob@acme.x.y",
    "subject": "Gr\u00fc\u00dfe", "priority": "high", "timestamp": "2026-11-21T20:07:12Z",
    "thread_id": "msg_0_a", "in_reply_to": "msg-0-a", "expires_at": null, "signature": "c2ln",
    "reply_to": "x", "idempotency_key": "idk_1"},
  "payload": {"type": "task", "message": "a\nb", "context": {"n": 1.10},
    "attachments": [{"id": "att_1_a", "filename": "f.txt", "size": 9, "digest": "d", "url": null,
      "scan_status": "clean", "x": {"id": "no"}}, 7, {"size": -1, "storage": "afp"}, [{"id": "no"}]]},
  "metadata": {"status": "unread"},
  "local": {"received_at": "2026-11-21T20:07:13Z", "status": "read"},
  "sender_public_key": "00", "future": [1e400, {"a": 1, "a": 2}]
}"#;

fn message(envelope: &str, payload: &str, rest: &str) -> String {
    format!(
        r#"{{"envelope":{{"id":"msg_1_a","from":"a@b.c","to":"b@b.c"{envelope}}},"payload":{payload}{rest}}}"#
    )
}

fn fault(text: &str) -> AmpParseError {
    parse(text.as_bytes()).unwrap_err()
}

#[test]
fn reads_every_member() {
    let stored = parse(WHOLE.as_bytes()).unwrap();
    assert_eq!(
        (&*stored.id, &*stored.from, &*stored.to),
        ("msg_1_a", "Alice@acme.x.y", "bob@acme.x.y")
    );
    assert_eq!(stored.subject.as_deref(), Some("Gr\u{fc}\u{df}e"));
    assert_eq!(stored.priority.as_deref(), Some("high"));
    assert_eq!(stored.in_reply_to.as_deref(), Some("msg-0-a"));
    assert_eq!(stored.expires_at, None);
    assert_eq!(stored.message.as_deref(), Some("a\nb"));
    assert_eq!(stored.kind.as_deref(), Some("task"));
    assert_eq!(stored.context, Some(r#"{"n": 1.10}"#));
    assert!(stored.payload.starts_with(r#"{"type": "task""#) && stored.payload.ends_with("]}"));
    assert_eq!(stored.status, Some(ReadState::Read));
    assert!(!stored.has_empty_attachments);
    assert_eq!(stored.received_at.as_deref(), Some("2026-11-21T20:07:13Z"));
    assert_eq!(stored.file_len, WHOLE.len());
    let first = AttachmentRef {
        id: Some("att_1_a".into()),
        filename: Some("f.txt".into()),
        size: Some(9),
        digest: Some("d".into()),
        scan_status: Some("clean".into()),
        ..AttachmentRef::default()
    };
    let afp = AttachmentRef { storage: Some("afp".into()), ..AttachmentRef::default() };
    let nothing = AttachmentRef::default();
    assert_eq!(stored.attachments, [first, nothing.clone(), afp, nothing]);
}

#[test]
fn a_bare_message_is_enough() {
    let text = message("", "{}", "");
    let stored = parse(text.as_bytes()).unwrap();
    assert_eq!(stored.subject, None);
    assert_eq!(stored.message, None);
    assert_eq!(stored.status, None);
    assert_eq!(stored.received_at, None);
}

#[test]
fn nothing_empty_is_a_parent_or_a_signature() {
    for empty in ["null", "\"\""] {
        let text = message(&format!(r#","in_reply_to":{empty},"signature":{empty}"#), "{}", "");
        let stored = parse(text.as_bytes()).unwrap();
        assert_eq!((stored.in_reply_to, stored.signature), (None, None));
    }
}

#[test]
fn the_read_state_is_local_then_metadata() {
    for (rest, state) in [
        (r#","local":{"status":"unread"},"metadata":{"status":"read"}"#, Some(ReadState::Unread)),
        (r#","local":{},"metadata":{"status":"read"}"#, Some(ReadState::Read)),
        (r#","local":{"status":null},"metadata":{"status":"archived"}"#, Some(ReadState::Archived)),
        (r#","local":{"status":"x"}"#, None),
        (r#","local":7"#, None),
    ] {
        assert_eq!(parse(message("", "{}", rest).as_bytes()).unwrap().status, state, "{rest}");
    }
}

#[test]
fn what_is_no_message() {
    use AmpRejection as P;
    let member = |member, problem: &str| P::Member { member, problem: problem.into() };
    let twice = |object, key: &str| P::DuplicateKey { object, key: key.into() };
    let cases = [
        (message("", "[1]", ""), P::NotObject("payload")),
        (message("", "null", ""), P::NotObject("payload")),
        (r#"{"envelope":{"id":"msg_1_a"}}"#.into(), P::Missing("payload")),
        (r#"{"payload":{}}"#.into(), P::Missing("envelope")),
        (r#"{"payload":{},"envelope":[]}"#.into(), P::NotObject("envelope")),
        (message(r#","to":"c@b.c""#, "{}", ""), twice("envelope", "to")),
        (message("", r#"{"a":[{"x":1,"x":2}]}"#, ""), twice("payload", "x")),
        (message("", "{}", r#","payload":{}"#), twice("message", "payload")),
        (message("", r#"{"a":1e400}"#, ""), P::NotFinite("payload")),
        (message("", r#"{"a":NaN}"#, ""), P::NotFinite("payload")),
        (message(r#","subject":"\ud800""#, "{}", ""), P::Unicode("envelope")),
        (message("", r#"{"message":"\udc00x"}"#, ""), P::Unicode("payload")),
        (message(r#","subject":7"#, "{}", ""), member("subject", "is not a text")),
        (message(r#","signature":[]"#, "{}", ""), member("signature", "is not a text")),
        (WHOLE.replace(r#""id": "msg_1_a", "#, ""), member("id", "is missing")),
        (
            WHOLE.replace("msg_1_a", "../x"),
            member("id", "is \"../x\", which is not the id of a message"),
        ),
        (WHOLE.replace("\"bob@acme.x.y\"", "null"), member("to", "is missing")),
    ];
    for (text, problem) in cases {
        assert_eq!(fault(&text), AmpParseError::Rejected(problem), "{text}");
    }
    for text in ["[]", "7", "null", "{}}", "\u{feff}{}", "{\"a\":1,}", "{'a':1}", "\0\0\0\0"] {
        assert!(
            matches!(fault(text), AmpParseError::Rejected(AmpRejection::Json(_))),
            "{text}: {}",
            fault(text)
        );
    }
    assert!(matches!(
        parse(b"{\"a\":\"\xff\"}"),
        Err(AmpParseError::Rejected(AmpRejection::Json(_)))
    ));
    assert!(matches!(
        parse(&vec![b' '; FILE_BYTES + 1]),
        Err(AmpParseError::Rejected(AmpRejection::TooLarge))
    ));
}

#[test]
fn every_beginning_is_incomplete() {
    for end in 0..WHOLE.len() {
        let got = parse(&WHOLE.as_bytes()[..end]);
        assert!(matches!(got, Err(AmpParseError::Incomplete(_))), "{end}: {got:?}");
    }
    let split = "{\"a\":\"\u{e9}".as_bytes();
    assert!(matches!(parse(&split[..split.len() - 1]), Err(AmpParseError::Incomplete(_))));
}

#[test]
fn foreign_words_in_a_sentence_are_short_and_on_one_line() {
    assert_eq!(shown("a\nb"), "\"a\u{240a}b\"");
    assert_eq!(shown(&"x".repeat(100)).chars().count(), 83);
}

proptest! {
    #[test]
    fn nothing_panics(
        bytes in proptest::collection::vec(any::<u8>(), 0..60),
        at in 0usize..WHOLE.len(),
    ) {
        let _ = parse(&bytes);
        let mut damaged = WHOLE.as_bytes().to_vec();
        let end = (at + bytes.len()).min(damaged.len());
        damaged.splice(at..end, bytes);
        let _ = parse(&damaged);
    }

    #[test]
    fn members_of_any_type_do_no_harm(value in r#"null|true|-?(0|[1-9][0-9]{0,4})|"[ -!#-\[\]-~]{0,6}"|\[\]|\{\}|\[\{\}\]|\{"status":1\}"#, n in 0usize..16) {
        let names = ["version", "subject", "priority", "timestamp", "thread_id", "in_reply_to",
            "expires_at", "signature", "reply_to", "idempotency_key"];
        let inside = ["message", "type", "attachments", "context"];
        let text = match (names.get(n), inside.get(n.wrapping_sub(10))) {
            (Some(name), _) => message(&format!(r#","{name}":{value}"#), "{}", ""),
            (_, Some(name)) => message("", &format!(r#"{{"{name}":{value}}}"#), ""),
            _ => message("", "{}", &format!(r#","local":{value},"metadata":{value}"#)),
        };
        match parse(text.as_bytes()) {
            Ok(stored) => prop_assert_eq!(&*stored.id, "msg_1_a"),
            Err(fault) => prop_assert!(matches!(fault, AmpParseError::Rejected(AmpRejection::Member { .. })), "{fault}"),
        }
    }
}
