//! Tests of the vectors, of the cases beside them, and of properties of any text.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use proptest::prelude::*;
use serde_json::Value;

use super::super::text::parse;
use super::signed_block::{BEGIN, END, SIGNATURE_BEGIN, SIGNATURE_END};
use super::*;
use crate::store::Signer;
use crate::store::testing::Key;

/// Returns the verdict on the claim of a letter by the key it names.
fn verdict(reading: &LetterContent) -> &'static str {
    match &reading.claim {
        None => "none",
        Some(SignatureClaim::Malformed(_)) => "malformed",
        Some(claim @ SignatureClaim::Signed { scope, .. }) => {
            match (verify::find_claim_fault(claim), scope) {
                (Some(_), _) => "bad",
                (None, SignatureScope::Whole | SignatureScope::Unpinned) => "whole",
                (None, SignatureScope::Renamed) => "renamed",
                (None, SignatureScope::Part) => "part",
            }
        }
    }
}

fn covered(reading: &LetterContent) -> Vec<u8> {
    match &reading.claim {
        Some(SignatureClaim::Signed { covered, .. }) => covered.candidates().remove(0),
        _ => panic!("not signed: {reading:?}"),
    }
}

/// Returns the metadata that every block begins with.
fn own(key: &Key) -> String {
    let public = key.public_key();
    format!("Fingerprint: {}\nPublic-Key: {}\n", public.fingerprint(), STANDARD.encode(public.0))
}

fn block(meta: &str, body: &str, signature: &[u8]) -> String {
    let signature = STANDARD.encode(signature);
    format!("{BEGIN}\n{meta}\n{body}\n{END}\n{SIGNATURE_BEGIN}\n{signature}\n{SIGNATURE_END}")
}

fn signed(key: &Key, body: &str) -> String {
    block(&own(key), body, &key.sign(body.as_bytes()))
}

/// Returns a block with a second signature over `meta`.
fn signed_v2(key: &Key, meta: &str, body: &str) -> String {
    let meta = format!("{}{meta}", own(key));
    let envelope = STANDARD.encode(key.sign(format!("{meta}\n{body}").as_bytes()));
    let meta = format!("{meta}Signature-V2: {envelope}\n");
    block(&meta, body, &key.sign(body.as_bytes()))
}

fn letter(body: &str) -> Letter {
    parse(
        format!("From: alice@x\nTo: bob@x\nSubject: s\nMessage-ID: <1>\n\n---\n{body}").as_bytes(),
    )
}

fn read_body(body: &str) -> LetterContent {
    read(&letter(body))
}

fn vectors() -> Vec<Value> {
    let file: Value =
        serde_json::from_str(include_str!("../../../../tests/vectors/agentazall.json")).unwrap();
    file["vectors"].as_array().unwrap().clone()
}

#[test]
fn every_vector_is_parsed_as_the_reference_parses_it() {
    for vector in vectors() {
        let file = STANDARD.decode(vector["message_file_b64"].as_str().unwrap()).unwrap();
        let letter = parse(&file);
        let headers: serde_json::Map<String, Value> =
            letter.headers.iter().map(|(k, v)| (k.clone(), v.clone().into())).collect();
        assert_eq!(Value::Object(headers), vector["expected"]["headers"], "{}", vector["name"]);
        assert_eq!(letter.body, vector["expected"]["parsed_body"], "{}", vector["name"]);
    }
}

#[test]
fn every_vector_is_read_as_recommended() {
    let vectors = vectors();
    assert_eq!(vectors.len(), 49);
    for vector in &vectors {
        let name = &vector["name"];
        let file = STANDARD.decode(vector["message_file_b64"].as_str().unwrap()).unwrap();
        let letter = parse(&file);
        let reading = read(&letter);
        let wanted = &vector["recommended_superset"];
        let text = wanted["original_body"].as_str().unwrap();
        let allowed: &[&str] = match wanted["status"].as_str().unwrap() {
            "good" => &["whole"],
            "good-partial" => &["part"],
            "bad" => &["bad", "malformed"],
            "fingerprint-mismatch" => &["malformed"],
            "unsigned" | "malformed" => &["none"],
            other => panic!("{name}: unknown status {other}"),
        };
        let verdict = verdict(&reading);
        assert!(allowed.contains(&verdict), "{name}: {verdict}");
        if verdict == "part" {
            assert_eq!(reading.body, letter.body, "{name}");
            let shown = reading.body_if_valid.as_deref().unwrap();
            assert!(shown.starts_with(&format!("{text}\n{NOT_COVERED}\n")), "{name}: {shown}");
        } else {
            assert_eq!(reading.body, text, "{name}");
            assert_eq!(reading.body_if_valid, None, "{name}");
        }
        assert_eq!(reading.signature.is_some(), verdict == "whole", "{name}");
        if let Some(SignatureClaim::Signed { key: Some(key), .. }) = &reading.claim
            && verdict != "bad"
        {
            assert_eq!(wanted["key_fingerprint"], key.fingerprint().to_string(), "{name}");
            let covered = String::from_utf8(covered(&reading)).unwrap();
            match wanted["coverage"].as_str().unwrap() {
                "body" | "body-crlf" => assert_eq!(covered, text, "{name}"),
                "meta+body" => assert!(covered.trim_start().starts_with("Fingerprint:"), "{name}"),
                _ => assert!(covered.starts_with("From:") && reading.is_legacy, "{name}"),
            }
        }
    }
}

#[test]
fn the_proposed_envelope_is_read() {
    let vectors = vectors();
    let vector = vectors.iter().find(|v| v["name"] == "proposal-v2-metadata").unwrap();
    let file = STANDARD.decode(vector["message_file_b64"].as_str().unwrap()).unwrap();
    let reading = read(&parse(&file));
    assert_eq!(reading.signed_id.as_deref(), Some("a1b2c3d4e5f6"));
    assert_eq!(reading.in_reply_to, None);
    let files = reading.signed_attachments.unwrap();
    assert_eq!(files.len(), 1);
    assert_eq!(files[0].name, "x.bin");
    assert!(files[0].sha256.starts_with("2d711642b726b044"));
}

#[test]
fn bodies_the_reference_cannot_verify() {
    let key = Key::new(1);
    for (signed_text, stored) in [
        ("a\rb", "a\nb"),
        ("a\rb\r", "a\nb"),
        ("a\r", "a"),
        ("a\r\nb\r\n", "a\nb\n"),
        ("\u{3000}a\t \u{1c}", "\u{3000}a\t \u{1c}"),
        // A transport added white space.
        ("a", "a \n\n"),
        ("a\r\nb", "a\nb\n\n"),
        ("  \n\t", "  \n\t"),
        (&format!("x {END} y"), &format!("x {END} y")),
        (&format!("{END}\n{SIGNATURE_BEGIN}\nAA"), &format!("{END}\n{SIGNATURE_BEGIN}\nAA")),
    ] {
        let reading = read_body(&block(&own(&key), stored, &key.sign(signed_text.as_bytes())));
        assert_eq!(verdict(&reading), "whole", "{signed_text:?}");
        assert_eq!(reading.body, signed_text);
        assert_eq!(covered(&reading), signed_text.as_bytes());
    }
}

#[test]
fn spellings_of_a_good_block() {
    let key = Key::new(1);
    let good = signed(&key, "Hello");
    let public = STANDARD.encode(key.public_key().0);
    let signature = STANDARD.encode(key.sign(b"Hello"));
    let wrapped = format!("{}\n  {}", &signature[..50], &signature[50..]);
    let fingerprint = key.public_key().fingerprint().to_string();
    for text in [
        good.replace(&signature, &wrapped),
        good.replace(&public, &format!(" {} {} ", &public[..9], &public[9..])),
        good.replace(&fingerprint, &fingerprint.to_uppercase()),
        good.replace(&format!("Fingerprint: {fingerprint}\n"), ""),
        good.replace(&format!("{BEGIN}\n"), &format!("{BEGIN}\n\n \n")),
        good.replace(&format!("\n{END}"), END),
        good.replace(SIGNATURE_END, ""),
        format!("\n \n{good}\n\n"),
        good.replace(&format!("{END}\n"), &format!("{END}\n\n \t\n")),
    ] {
        let reading = read_body(&text);
        assert_eq!(verdict(&reading), "whole", "{text}");
        assert_eq!(reading.body, "Hello");
    }
}

#[test]
fn what_only_looks_like_a_block_is_text() {
    let key = Key::new(1);
    let good = signed(&key, "Hello");
    let signature = STANDARD.encode(key.sign(b"Hello"));
    for text in [
        good.replace("Public-Key:", "public-key:"),
        good.replace("Public-Key:", "Public-Key :"),
        good.replace("Public-Key:", "  Public-Key:"),
        good.replace(&signature, " "),
        good.replace(END, ""),
        good.replace(SIGNATURE_BEGIN, ""),
        good.replace("---BEGIN", "--- BEGIN"),
        format!("I say: {}", good.replace("Hello", "Hullo")),
        format!("{END}{BEGIN}"),
        String::new(),
    ] {
        let reading = read_body(&text);
        assert_eq!(verdict(&reading), "none", "{text}");
        assert_eq!(reading.body, text);
        assert_eq!((reading.signature, reading.body_if_valid), (None, None));
    }
}

#[test]
fn a_whole_block_that_fits_nothing_is_refused() {
    let (key, other) = (Key::new(1), Key::new(2));
    let good = signed(&key, "Hello");
    let public = STANDARD.encode(key.public_key().0);
    let signature = STANDARD.encode(key.sign(b"Hello"));
    for (text, expected) in [
        (good.replace("Hello", "Hello!"), "bad"),
        (good.replace(&public, "AAAA"), "malformed"),
        (good.replace(&public, &STANDARD.encode(other.public_key().0)), "malformed"),
        (block(&own(&other), "Hello", &key.sign(b"Hello")), "bad"),
        (good.replace(&signature, "AAAA"), "malformed"),
        (good.replace(&signature, signature.trim_end_matches('=')), "malformed"),
        (good.replace(&signature, &signature.replace('=', "!=")), "malformed"),
        // The own words of a signed reply that quotes a good block were changed.
        (signed(&other, &format!("Got it.\n{good}")).replace("Got", "Lost"), "bad"),
        // A key of small order.
        (good.replace(&public, &STANDARD.encode([0; 32])), "malformed"),
        (
            format!(
                "{BEGIN}\nPublic-Key: {}\n\nHello\n{END}\n{SIGNATURE_BEGIN}\n{signature}",
                STANDARD.encode([0; 32])
            ),
            "bad",
        ),
    ] {
        let reading = read_body(&text);
        assert_eq!(verdict(&reading), expected, "{text}");
        assert_eq!(reading.body, text);
        assert_eq!(reading.signature, None);
    }
}

#[test]
fn the_outermost_signature_counts_in_a_chain_of_replies() {
    let mut text = signed(&Key::new(1), "Hello");
    for seed in 2..8 {
        let body = format!("Reply {seed}\n\n--- Original from x ---\n{text}");
        let key = Key::new(seed);
        text = signed(&key, &body);
        let reading = read_body(&text);
        assert_eq!(verdict(&reading), "whole");
        assert_eq!(reading.body, body);
        let Some(SignatureClaim::Signed { key: claimed, .. }) = reading.claim else { panic!() };
        assert_eq!(claimed, Some(key.public_key()));
    }
    // The quoting sender does not sign: only the outermost block is credited, as a part.
    let reading = read_body(&format!("See:\n\n{text}\n"));
    assert_eq!(verdict(&reading), "part");
    assert!(reading.body_if_valid.unwrap().starts_with("Reply 7\n"));
}

#[test]
fn text_outside_the_block_makes_it_a_part() {
    let key = Key::new(1);
    let good = signed_v2(&key, "From: eve@x\nMessage-ID: 9\nIn-Reply-To: 8\n", "Hello");
    let other = signed(&Key::new(2), "Second");
    let broken = good.replace("Hello", "Hullo");
    for (text, rest) in [
        (format!("before\n\n{good}"), "before"),
        (format!("{good}\nfooter\n"), "footer"),
        (format!("a\n{good}\nb"), "a\nb"),
        (good.replace(SIGNATURE_BEGIN, &format!("seam\n{SIGNATURE_BEGIN}")), "seam"),
        (good.replace(SIGNATURE_END, "footer"), "footer"),
        (format!("{good}\n{other}"), other.as_str()),
        (format!("{good}\n{broken}"), broken.as_str()),
        (format!("a {BEGIN} b\n{good}"), &format!("a {BEGIN} b")),
    ] {
        let reading = read_body(&text);
        assert_eq!(verdict(&reading), "part", "{text}");
        assert_eq!(reading.body, text);
        assert_eq!(reading.body_if_valid.unwrap(), format!("Hello\n{NOT_COVERED}\n{rest}"));
        // A quotation must not become the sender, the id or the link of the message that quotes it.
        assert_eq!(reading.from.as_deref(), Some("alice@x"));
        assert_eq!(reading.id.as_deref(), Some("1"));
        assert_eq!((reading.signed_id, reading.in_reply_to), (None, None));
        assert_eq!((reading.signed_attachments, reading.signature), (None, None));
    }
    // A quoted block that contradicts itself is text.
    let lying = good.replace("From: eve@x", "From: bob@x");
    assert_eq!(verdict(&read_body(&format!("See: {lying}"))), "none");
    let fingerprint = key.public_key().fingerprint().to_string();
    let lying = good.replace(&fingerprint, "0123456789abcdef");
    assert_eq!(verdict(&read_body(&format!("See: {lying}"))), "none");
}

#[test]
fn signed_metadata_replaces_the_header() {
    let key = Key::new(1);
    let hash = "AB".repeat(32);
    let meta = format!(
        "From: alice@x\nTo: carol@x, dave@x\nSubject: signed\nDate: 2026-03-11 14:23:55\n\
         Message-ID: <m2>\nIn-Reply-To: <m1>\nIdempotency-Key: k\n\
         Attachment: sha256={hash}; name=a; b.txt\nAttachment: sha256=1; name=c\n"
    );
    let text = signed_v2(&key, &meta, "Hello");
    let header = "From: \"Alice\" <alice@x>\nTo: eve@x\nCc: mallory@x\nSubject: outer\n\
                  In-Reply-To: m0\nReferences: m0\nThread: t\nMessage-ID: relay1\n---\n";
    let reading = read(&parse(format!("{header}{text}").as_bytes()));
    assert_eq!(verdict(&reading), "whole");
    assert_eq!(reading.from.as_deref(), Some("alice@x"));
    assert_eq!(reading.to, ["carol@x", "dave@x"]);
    assert!(reading.cc.is_empty());
    assert_eq!(reading.subject.as_deref(), Some("signed"));
    assert_eq!(reading.date.as_deref(), Some("2026-03-11 14:23:55"));
    assert_eq!(reading.id.as_deref(), Some("m2"));
    assert_eq!(reading.signed_id.as_deref(), Some("m2"));
    assert_eq!(reading.in_reply_to.as_deref(), Some("m1"));
    assert_eq!(reading.idempotency_key.as_deref(), Some("k"));
    let file = SignedAttachment { sha256: hash.to_lowercase(), name: "a; b.txt".into() };
    assert_eq!(reading.signed_attachments, Some(vec![file]));

    let renamed = read(&parse(format!("From: bob@x\n---\n{text}").as_bytes()));
    assert_eq!(verdict(&renamed), "renamed");
    assert_eq!(renamed.from.as_deref(), Some("alice@x"));

    for changed in ["carol@x", "signed\n", "m1", "name=a", "Signature-V2: "] {
        let text = text.replacen(changed, &format!("{changed}A"), 1);
        let reading = read(&parse(format!("{header}{text}").as_bytes()));
        assert_eq!(verdict(&reading), "malformed", "{changed}");
        assert_eq!(reading.to, ["eve@x"]);
        assert_eq!((reading.signed_id, reading.in_reply_to), (None, None));
    }
    // Without the second signature the metadata is only decoration.
    let plain = format!("{}{meta}", own(&key));
    let reading = read_body(&block(&plain, "Hello", &key.sign(b"Hello")));
    assert_eq!(verdict(&reading), "whole");
    assert_eq!(reading.id.as_deref(), Some("1"));
    assert_eq!(
        (reading.signed_id, reading.in_reply_to, reading.signed_attachments),
        (None, None, None)
    );
}

#[test]
fn a_legacy_signature_covers_the_header() {
    let key = Key::new(1);
    let public = STANDARD.encode(key.public_key().0);
    let header = format!("From: a@x\nStatus: new\nPublic-Key: {public}");
    let signature = STANDARD.encode(key.sign(format!("{header}\n---\nHello").as_bytes()));
    let file = format!("{header}\nSignature: {signature}\n\n---\nHello");
    let verdict_of = |file: &str| {
        let reading = read(&parse(file.as_bytes()));
        (verdict(&reading), reading.is_legacy, reading.signature.is_some())
    };
    assert_eq!(verdict_of(&file), ("whole", true, true));
    assert_eq!(verdict_of(&file.replace("new", "read")), ("whole", true, true));
    assert_eq!(verdict_of(&file.replace("a@x", "b@x")), ("bad", true, false));
    assert_eq!(verdict_of(&file.replace("Status: new", "State: new")), ("bad", true, false));
    assert_eq!(verdict_of(&file.replace(&signature, "x")), ("malformed", true, false));
    assert_eq!(verdict_of(&file.replace(&public, "x")), ("malformed", true, false));
    assert_eq!(verdict_of(&file.replace(&public, "")), ("none", false, false));
    // A quoted block is no more than text in it; a whole block wins.
    let quoting = format!("See:\n{}", signed(&Key::new(2), "x"));
    let signature = STANDARD.encode(key.sign(format!("{header}\n---\n{quoting}").as_bytes()));
    let file = format!("{header}\nSignature: {signature}\n\n---\n{quoting}");
    assert_eq!(verdict_of(&file), ("whole", true, true));
    let reading = read(&parse(file.as_bytes()));
    assert_eq!(reading.body, quoting);
    let inline = format!("{header}\nSignature: {signature}\n---\n{}", signed(&key, "y"));
    assert_eq!(read(&parse(inline.as_bytes())).body, "y");
}

#[test]
fn a_text_full_of_markers_costs_little() {
    let key = own(&Key::new(1));
    let good = STANDARD.encode([7; 64]);
    let tail = format!("{END}\n{SIGNATURE_BEGIN}\n{good}\n{SIGNATURE_END}\n");
    let blocks = format!("x{}", format!("{BEGIN}\n{key}\nline\n{tail}").repeat(4000));
    let lines = "a\n".repeat(500_000);
    let meta = format!("x{}{key}{lines}{}", format!("{BEGIN}\n").repeat(9), tail.repeat(9));
    let body =
        format!("x{}{key}\n{lines}{}", format!("{BEGIN}\n{key}\n").repeat(9), tail.repeat(9));
    for text in [blocks, meta, body] {
        let start = std::time::Instant::now();
        assert_eq!(verdict(&read_body(&text)), "none");
        let took = start.elapsed();
        assert!(took.as_secs() < 10, "{took:?}");
    }
}

/// Returns texts of the pieces that matter.
fn texts() -> impl Strategy<Value = String> {
    let good = signed(&Key::new(1), "Hello");
    let piece = prop_oneof![
        Just(BEGIN.to_owned()),
        Just(END.to_owned()),
        Just(SIGNATURE_BEGIN.to_owned()),
        Just(SIGNATURE_END.to_owned()),
        Just(own(&Key::new(1))),
        Just(good),
        Just("\n".to_owned()),
        Just("\r\n".to_owned()),
        Just("\u{1c}\u{a0} ".to_owned()),
        "\\PC{0,9}",
    ];
    proptest::collection::vec(piece, 0..10).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn a_signed_text_is_shown_and_nothing_else(text in texts()) {
        let key = Key::new(3);
        // Files have no CR; a text with one is signed as it would arrive.
        let stored = text.replace("\r\n", "\n").replace('\r', "\n");
        let reading = read_body(&block(&own(&key), &stored, &key.sign(stored.as_bytes())));
        prop_assert_eq!(verdict(&reading), "whole");
        prop_assert_eq!(reading.body, stored);
    }

    #[test]
    fn no_text_makes_a_quotation_whole(before in texts(), after in texts()) {
        prop_assume!(!strip(&before).is_empty() || !strip(&after).is_empty());
        let text = format!("{before}{}{after}", signed(&Key::new(3), "precious"));
        let reading = read_body(&text);
        let own = Key::new(3).public_key();
        if let Some(SignatureClaim::Signed { key: Some(key), scope, .. }) = &reading.claim
            && *key == own
            && verdict(&reading) != "bad"
        {
            prop_assert_eq!(*scope, SignatureScope::Part);
        }
    }

    #[test]
    fn a_mutation_never_credits_other_text(
        at in any::<proptest::sample::Index>(),
        cut in 0usize..4,
        insert in "[a-zA-Z0-9 \n:=-]{0,3}",
    ) {
        let key = Key::new(3);
        let original = "The sum\n is 100.";
        let mut text: Vec<char> = signed_v2(&key, "From: alice@x\nTo: bob@x\n", original).chars().collect();
        let from = at.index(text.len());
        let to = (from + cut).min(text.len());
        text.splice(from..to, insert.chars());
        let text: String = text.into_iter().collect();
        let reading = read_body(&text);
        let verdict = verdict(&reading);
        let shown = match verdict {
            "whole" => Some(reading.body.clone()),
            "part" => reading.body_if_valid.clone(),
            _ => None,
        };
        if let Some(shown) = shown {
            let credited = shown.split(&format!("\n{NOT_COVERED}\n")).next().unwrap();
            prop_assert_eq!(credited, original);
            prop_assert_eq!(covered(&reading), original.as_bytes());
        }
        if reading.signed_id.is_some() || reading.signed_attachments.is_some() {
            prop_assert_eq!(reading.to, ["bob@x"]);
        }
    }

    #[test]
    fn foreign_letters_never_panic(text in texts(), header in "\\PC{0,30}") {
        let reading = read(&parse(format!("{header}: x\n---\n{text}").as_bytes()));
        let _ = verdict(&reading);
    }
}
