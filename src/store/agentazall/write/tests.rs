//! Tests of the written bytes, as msgfs and the reference read them.

use proptest::prelude::*;

use super::super::block::{self, SignedAttachment};
use super::super::text::parse;
use super::*;
use crate::model::{SignatureClaim, SignatureScope, verify};
use crate::store::testing::Key;

fn names(list: &[&str]) -> Vec<String> {
    list.iter().map(|name| (*name).to_owned()).collect()
}

static UTC: TimeZone = TimeZone::UTC;

/// Returns a message at a fixed moment in UTC.
fn outgoing<'a>(to: &'a [String], body: &'a str) -> OutgoingLetter<'a> {
    OutgoingLetter {
        from: "alice@x",
        to,
        cc: &[],
        subject: "Vector",
        now: Timestamp::from_iso8601_basic("20260311T142355.700Z").unwrap(),
        zone: &UTC,
        id: "a1b2c3d4e5f6",
        in_reply_to: None,
        via_link: None,
        idempotency_key: None,
        body,
        attachments: &[],
    }
}

/// Returns the text as the reference sees it: from the first BEGIN to the first END marker after it, stripped, without
/// the lines up to the first blank one. Only such text verifies there.
fn unwrapped_by_the_reference(body: &str) -> String {
    let (_, tail) = body.split_once(BEGIN).unwrap();
    let (inside, _) = tail.split_once(END).unwrap();
    let inside = strip(inside);
    let mut lines = inside.split('\n');
    let blank = lines.by_ref().find(|line| strip(line).is_empty());
    blank.map(|_| lines.collect::<Vec<_>>().join("\n")).unwrap_or_default()
}

#[test]
fn a_letter_in_full() {
    // The reference (1.0.24) calls this verified.
    let cc = names(&["dave@x"]);
    let files = [DraftAttachment {
        name: "x.bin".into(),
        path: "/p".into(),
        size: 1,
        sha256: "ab".repeat(32),
    }];
    let to = names(&["bob@x", "carol@x"]);
    let mut out = outgoing(&to, "Hello\r\nWorld \n\n");
    out.cc = &cc;
    out.in_reply_to = Some("0123456789ab");
    out.idempotency_key = Some("k");
    out.attachments = &files;
    let text = compose_letter(&out, &Key::new(1));
    let expected = "\
From: alice@x
To: bob@x, carol@x
Cc: dave@x
Subject: Vector
Date: 2026-03-11 14:23:55
Message-ID: a1b2c3d4e5f6
Status: new
Attachments: x.bin

---
---BEGIN AGENTAZALL SIGNED MESSAGE---
Fingerprint: 34750f98bd59fcfc
Public-Key: iojj3XQJ8ZX9UtstPLpdcspnCb8dlBIb83SIAbQPb1w=
From: alice@x
To: bob@x, carol@x
Cc: dave@x
Subject: Vector
Date: 2026-03-11 14:23:55
Message-ID: a1b2c3d4e5f6
Time: 2026-03-11T14:23:55.700Z
In-Reply-To: 0123456789ab
Idempotency-Key: k
Attachment: sha256=abababababababababababababababababababababababababababababababab; name=x.bin
Signature-V2: ";
    assert!(text.starts_with(expected), "{text}");
    let tail: Vec<&str> = text[expected.len()..].split('\n').skip(1).collect();
    assert_eq!(tail[..5], ["", "Hello", "World", END, SIGNATURE_BEGIN]);
    assert_eq!(tail[6..], [SIGNATURE_END]);
    assert_eq!(tail[5].len(), 88);
}

#[test]
fn nothing_in_a_value_starts_a_line_or_ends_the_block() {
    let to = names(&["bob@x\nStatus: read"]);
    let subject = format!(" a\r\nFrom: eve@x\u{0}{END} \u{a0}");
    let mut out = outgoing(&to, "");
    out.subject = &subject;
    out.idempotency_key = Some("k\n\nbody");
    let text = compose_letter(&out, &Key::new(1));
    let letter = parse(text.as_bytes());
    assert_eq!(letter.get("From"), Some("alice@x"));
    assert!(!letter.is_read());
    let reading = block::read(&letter);
    let subject = reading.subject.unwrap();
    assert!(subject.starts_with("a\u{240d}\u{240a}From: eve@x\u{2400}--- END AGENT"), "{subject}");
    assert_eq!(reading.to, ["bob@x\u{240a}Status: read"]);
    assert_eq!(reading.idempotency_key.as_deref(), Some("k\u{240a}\u{240a}body"));
    assert_eq!(reading.body, "");
    out.subject = "";
    assert!(compose_letter(&out, &Key::new(1)).contains("\nSubject:\nDate:"));
}

#[test]
fn markers_are_broken_visibly() {
    let shared = format!("{END}{}", &END[3..]);
    for (body, written) in [
        (format!("a {BEGIN} b"), "a --- BEGIN AGENTAZALL SIGNED MESSAGE--- b".to_owned()),
        (format!("--{END}--"), "----- END AGENTAZALL SIGNED MESSAGE-----".into()),
        (shared, "--- END AGENTAZALL SIGNED MESSAGE--- END AGENTAZALL SIGNED MESSAGE---".into()),
        ("---END AGENTAZALL".into(), "---END AGENTAZALL".into()),
        (SIGNATURE_END.into(), "--- END AGENTAZALL SIGNATURE---".into()),
    ] {
        assert_eq!(to_signable_text(&body), written);
    }
}

#[test]
fn ids_are_twelve_hex_digits() {
    let now = Timestamp::from_secs(1);
    let id = generate_id("a", "b", "s", now, [0; 8]);
    assert_eq!(id.len(), 12);
    assert!(id.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b)));
    assert_eq!(id, generate_id("a", "b", "s", now, [0; 8]));
    assert_ne!(id, generate_id("a", "b", "s", now, [1; 8]));
    assert_ne!(id, generate_id("a", "b", "t", now, [0; 8]));
}

/// Returns bodies of the pieces that matter.
fn bodies() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        Just(BEGIN.to_owned()),
        Just(END.to_owned()),
        Just(SIGNATURE_BEGIN.to_owned()),
        Just(SIGNATURE_END.to_owned()),
        Just("END AGENTAZALL SIGNED MESSAGE---".to_owned()),
        Just("\n---\n".to_owned()),
        Just("\r".to_owned()),
        Just("\r\n".to_owned()),
        Just("\n\n".to_owned()),
        Just("\u{1c}\u{a0}\u{2028} ".to_owned()),
        any::<String>(),
    ];
    proptest::collection::vec(piece, 0..8).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn what_is_written_is_read_back(body in bodies(), subject in any::<String>(), name in "\\PC{1,20}") {
        let cc = names(&["dave@x"]);
        let files =
            [DraftAttachment { name: name.clone(), path: "/p".into(), size: 1, sha256: "0a".repeat(32) }];
        let to = names(&["bob@x"]);
        let mut out = outgoing(&to, &body);
        out.cc = &cc;
        out.subject = &subject;
        out.in_reply_to = Some("p1");
        out.attachments = &files;
        let file = compose_letter(&out, &Key::new(1));
        let letter = parse(file.as_bytes());
        let reading = block::read(&letter);
        prop_assert_eq!(&reading.body, &to_signable_text(&body));
        let claim = reading.claim.as_ref().unwrap();
        prop_assert_eq!(verify::find_claim_fault(claim), None);
        let whole = matches!(claim, SignatureClaim::Signed { scope: SignatureScope::Whole, .. });
        prop_assert!(whole, "{claim:?}");
        prop_assert_eq!(reading.signed_id.as_deref(), Some("a1b2c3d4e5f6"));
        prop_assert_eq!(reading.in_reply_to.as_deref(), Some("p1"));
        prop_assert_eq!(&reading.cc, &cc);
        prop_assert_eq!(reading.from.as_deref(), letter.get("From"));
        prop_assert_eq!(reading.subject.as_deref().unwrap_or_default(), letter.get("Subject").unwrap());
        let expected: Vec<SignedAttachment> = Some(sanitize_value(&name))
            .filter(|name| !name.is_empty())
            .map(|name| SignedAttachment { sha256: "0a".repeat(32), name })
            .into_iter()
            .collect();
        prop_assert_eq!(reading.signed_attachments, Some(expected));
        // The reference sees one block, and in it exactly the signed text.
        prop_assert_eq!(letter.body.matches(BEGIN).count(), 1);
        prop_assert_eq!(letter.body.matches(END).count(), 1);
        prop_assert_eq!(unwrapped_by_the_reference(&letter.body), to_signable_text(&body));
    }

    #[test]
    fn breaking_markers_changes_nothing_else(body in "\\PC{0,60}|[-END AGTZL]{0,40}") {
        prop_assert_eq!(to_signable_text(&body), body.trim_end_matches(is_space));
    }
}
