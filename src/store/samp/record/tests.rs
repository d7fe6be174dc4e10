use base64::prelude::BASE64_STANDARD;
use proptest::prelude::*;
use serde_json::Value as Json;

use super::*;
use crate::model::{PublicKey, SignatureScope, SignedBytes};
use crate::store::samp::alias::{SampLogName, classify_log_name};

/// Returns the id vectors: the line, the expected id and the expected canonical form.
fn id_vectors() -> Vec<Json> {
    let all: Json =
        serde_json::from_str(include_str!("../../../../tests/vectors/samp-ids.json")).unwrap();
    let all = all.as_array().unwrap().clone();
    assert!(all.len() >= 61);
    all
}

fn store_vectors() -> Vec<Json> {
    let all: Json =
        serde_json::from_str(include_str!("../../../../tests/vectors/samp-stores.json")).unwrap();
    all.as_array().unwrap().clone()
}

fn hashed_members(line: &str) -> HashedMembers<'_> {
    let mut m = HashedMembers::default();
    json::visit_members(line, |key, value| match &*key.to_text() {
        "ts" => m.ts = Some(value),
        "from" => m.from = Some(value),
        "to" => m.to = Some(value),
        "thread" => m.thread = Some(value),
        "body" => m.body = Some(value),
        _ => {}
    })
    .unwrap();
    m
}

/// Returns the vectors that are too large for the file, by the recipe that they state.
fn large_line(name: &str) -> String {
    let body = match name {
        "large-64KiB-ascii" => "a".repeat(65536),
        "large-emoji-100k" => "\u{1f600}".repeat(100_000),
        "large-nfd-50k" => "e\u{301}".repeat(50_000),
        other => panic!("no recipe for {other}"),
    };
    format!(
        "{{\"ts\": 1700000000, \"from\": \"alice\", \"to\": \"bob\", \"thread\": \"t1\", \"body\": \"{body}\"}}"
    )
}

fn sha256(bytes: &[u8]) -> String {
    use sha2::Digest as _;
    sha2::Sha256::digest(bytes).iter().map(|b| format!("{b:02x}")).collect::<Vec<_>>().concat()
}

#[test]
fn id_vectors_hold() {
    for v in id_vectors() {
        let name = v["name"].as_str().unwrap();
        // These two characters compose only by the tables of Unicode 16, which the program that made the vectors did
        // not have.
        if name == "nfc-unicode16-version-dependent" {
            continue;
        }
        let line = v["line"].as_str().map_or_else(
            || {
                let line = large_line(name);
                assert_eq!(sha256(line.as_bytes()), v["line_sha256"], "{name}");
                line
            },
            str::to_owned,
        );
        let members = hashed_members(&line);
        let expected = v["expected_id"].as_str();
        assert_eq!(canonical::record_id(&members).as_deref(), expected, "{name}");
        if let Some(canonical) = v["canonical"].as_str() {
            let mut buffer = String::new();
            canonical::compute_id(&members, &mut buffer);
            assert_eq!(buffer, canonical, "{name}");
        }
        // A record that is delivered has this id.
        match parse(&line, &mut SampScratch::default()) {
            Ok(parsed) => {
                assert_eq!(Some(&*parsed.id), expected, "{name}");
                assert!(parsed.id_verified, "{name}");
            }
            Err(SampRecordError::NoId) => assert_eq!(expected, None, "{name}"),
            Err(e) => {
                let not_delivered = matches!(
                    e,
                    SampRecordError::TimeNotANumber
                        | SampRecordError::TimeNotFinite
                        | SampRecordError::Missing("ts")
                        | SampRecordError::NotAString("body")
                );
                assert!(not_delivered, "{name}: {e}");
            }
        }
    }
}

/// Returns the files of a store vector, the large ones by the recipe of their records.
fn files(v: &Json) -> Vec<(String, Vec<u8>)> {
    let record = |ts: u64, body: &str, id: &Json| {
        format!(
            "{{\"id\": {id}, \"ts\": {ts}, \"from\": \"foo\", \"to\": \"bar\", \"thread\": \"t\", \"body\": \"{body}\"}}\n"
        )
    };
    v["files"]
        .as_object()
        .unwrap()
        .iter()
        .map(|(name, content)| {
            let bytes = content.as_str().map_or_else(
                || {
                    let mine =
                        v["expect"].as_array().unwrap().iter().filter(|e| e["file"] == **name);
                    let text: String = mine
                        .map(|e| {
                            let body = e["body"].as_str().map_or_else(
                                || "x".repeat(e["body_chars"].as_u64().unwrap() as usize),
                                str::to_owned,
                            );
                            record(e["ts"].as_u64().unwrap(), &body, &e["id"])
                        })
                        .collect();
                    text.into_bytes()
                },
                |text| BASE64_STANDARD.decode(text).unwrap(),
            );
            if let Some(sum) = v["files_sha256"][name].as_str() {
                assert_eq!(sha256(&bytes), sum, "{name}");
            }
            (name.clone(), bytes)
        })
        .collect()
}

#[test]
fn store_vectors_hold() {
    for v in store_vectors() {
        let name = v["name"].as_str().unwrap();
        let mut got = Vec::new();
        let mut scratch = SampScratch::default();
        for (file, bytes) in files(&v) {
            let (SampLogName::Main(alias) | SampLogName::Conflict(alias)) =
                classify_log_name(&file)
            else {
                continue;
            };
            if v["special"].get(&file).is_some() {
                continue;
            }
            for line in String::from_utf8_lossy(&bytes).split('\n') {
                let Ok(p) = parse(line, &mut scratch) else { continue };
                let seen = |g: &Json| g["id"] == *p.id && g["from"] == *p.from;
                if p.from == alias && p.to == v["me"].as_str().unwrap() && !got.iter().any(seen) {
                    let body = p.body_text();
                    got.push(serde_json::json!({
                        "id": p.id, "from": p.from, "secs": p.secs, "thread": p.thread,
                        "body_chars": body.chars().count(),
                        "body": if body.len() > 10_000 { "".into() } else { body },
                        "file": file,
                    }));
                }
            }
        }
        let expected = v["expect"].as_array().unwrap();
        assert_eq!(got.len(), expected.len(), "{name}");
        for e in expected {
            let found = got.iter().find(|g| g["id"] == e["id"] && g["from"] == e["from"]);
            let found = found.unwrap_or_else(|| panic!("{name}: {e} is missing"));
            for key in ["thread", "body_chars", "file"] {
                assert_eq!(found[key], e[key], "{name}: {key}");
            }
            if e["body"].is_string() {
                assert_eq!(found["body"], e["body"], "{name}");
            }
            let secs = e["ts"].as_i64().unwrap_or(i64::MAX);
            assert_eq!(found["secs"], secs, "{name}");
        }
    }
}

const GOOD: &str = r#"{"id":"262b3c8fbec35a2d","ts":1700000000,"from":"alice","to":"bob","thread":"t1","body":"hello"}"#;

fn parsed(line: &str) -> Result<(String, bool), SampRecordError> {
    parse(line, &mut SampScratch::default()).map(|p| (p.id.into_owned(), p.id_verified))
}

#[test]
fn ids_stored_and_computed() {
    let computed = "262b3c8fbec35a2d";
    assert_eq!(parsed(GOOD), Ok((computed.to_owned(), true)));
    // These records have no usable id.
    for id in ["\"\"", "null", "0", "1", "[1]", "{\"a\":1}", "true"] {
        let line = GOOD.replace("\"262b3c8fbec35a2d\"", id);
        assert_eq!(parsed(&line), Ok((computed.to_owned(), true)), "{id}");
    }
    assert_eq!(parsed(&GOOD.replacen("id", "x", 1)), Ok((computed.to_owned(), true)));
    // A stored id is kept, whatever it is.
    for id in ["262B3C8FBEC35A2D", "x", "262b3c8fbec35a2d00", "../x\\n"] {
        let (got, verified) = parsed(&GOOD.replace(computed, id)).unwrap();
        assert_eq!((got.as_str(), verified), (id.replace("\\n", "\n").as_str(), false));
    }
    // An escape in a stored id does not matter.
    assert_eq!(
        parsed(&GOOD.replace(computed, "\\u003262b3c8fbec35a2d")),
        Ok((computed.to_owned(), true))
    );
    // Nobody can hash this body: the stored id serves, else there is none.
    let lone = GOOD.replace("hello", "x\\ud800y");
    assert_eq!(parsed(&lone), Ok((computed.to_owned(), false)));
    assert_eq!(parsed(&lone.replacen("id", "x", 1)), Err(SampRecordError::NoId));
    // Half a pair does not matter in these places.
    let unknown = GOOD.replace("\"ts\"", "\"x\":\"\\ud800\",\"\\udc00\":[[]],\"ts\"");
    assert_eq!(parsed(&unknown), Ok((computed.to_owned(), true)));
}

#[test]
fn members_are_required() {
    for (name, key) in
        [("ts", "ts"), ("from", "from"), ("to", "to"), ("thread", "thread"), ("body", "body")]
    {
        let without = GOOD.replace(&format!("\"{key}\":"), "\"x\":");
        assert_eq!(parsed(&without), Err(SampRecordError::Missing(name)));
        if key == "ts" {
            continue;
        }
        for value in ["null", "1", "1.5", "true", "[]", "{}", "NaN"] {
            let line = GOOD.replace('}', &format!(",\"{key}\":{value}}}"));
            assert_eq!(parsed(&line), Err(SampRecordError::NotAString(name)), "{value}");
        }
    }
    assert!(matches!(parsed("[]"), Err(SampRecordError::Json(JsonError::NotAnObject))));
    assert!(matches!(parsed(""), Err(SampRecordError::Json(JsonError::Syntax { .. }))));
}

#[test]
fn times() {
    let table = [
        ("0", Ok(0)),
        ("-0", Ok(0)),
        ("-5", Ok(-5)),
        ("9223372036854775807", Ok(i64::MAX)),
        ("9223372036854775808", Ok(i64::MAX)),
        ("1000000000000000000000000000000", Ok(i64::MAX)),
        ("-9223372036854775809", Ok(i64::MIN)),
        ("1700000000.9", Ok(1_700_000_000)),
        ("-0.5", Ok(-1)),
        ("-0.0", Ok(0)),
        ("1.7e9", Ok(1_700_000_000)),
        ("1e300", Ok(i64::MAX)),
        ("-1e300", Ok(i64::MIN)),
        ("1e400", Err(SampRecordError::TimeNotFinite)),
        ("NaN", Err(SampRecordError::TimeNotFinite)),
        ("Infinity", Err(SampRecordError::TimeNotFinite)),
        ("-Infinity", Err(SampRecordError::TimeNotFinite)),
        ("true", Err(SampRecordError::TimeNotANumber)),
        ("null", Err(SampRecordError::TimeNotANumber)),
        ("\"1700000000\"", Err(SampRecordError::TimeNotANumber)),
        ("[1]", Err(SampRecordError::TimeNotANumber)),
    ];
    for (ts, expected) in table {
        let line = GOOD.replace("1700000000", ts);
        assert_eq!(parse(&line, &mut SampScratch::default()).map(|p| p.secs), expected, "{ts}");
    }
}

#[test]
fn extra_members_count_only_as_text() {
    let line =
        GOOD.replace('}', ",\"re\":\"a\\u0062\",\"subject\":\"s\",\"idem\":\"i\",\"sig\":null}");
    let mut scratch = SampScratch::default();
    let p = parse(&line, &mut scratch).unwrap();
    assert_eq!(
        (p.re.as_deref(), p.subject.as_deref(), p.idem.as_deref()),
        (Some("ab"), Some("s"), Some("i"))
    );
    assert!(p.has_sig);
    let line = GOOD.replace('}', ",\"re\":1,\"subject\":null,\"idem\":[\"i\"],\"Sig\":1}");
    let p = parse(&line, &mut scratch).unwrap();
    assert_eq!((p.re, p.subject, p.idem, p.has_sig), (None, None, None, false));
}

#[test]
fn plain_records_are_borrowed() {
    let p = parse(GOOD, &mut SampScratch::default()).unwrap();
    for field in [&p.id, &p.from, &p.to, &p.thread, &p.body_text()] {
        assert!(matches!(field, Cow::Borrowed(_)), "{field}");
    }
}

/// A signer whose signature contains the signed bytes.
struct FakeKey;

impl Signer for FakeKey {
    fn public_key(&self) -> PublicKey {
        PublicKey([7; 32])
    }

    fn sign(&self, bytes: &[u8]) -> [u8; 64] {
        let mut sig = [0; 64];
        sig[..32].copy_from_slice(&<sha2::Sha256 as sha2::Digest>::digest(bytes));
        sig
    }
}

#[test]
fn lines_are_written_as_the_reference_writes_them() {
    let mut record = NewSampRecord {
        time: Timestamp::from_millis(1_700_000_000_007),
        from: "alice",
        to: "bob",
        thread: "t1",
        body: "hello",
        ..NewSampRecord::default()
    };
    let (line, id) = build_line(&record, &FakeKey);
    assert_eq!(id, "262b3c8fbec35a2d");
    assert_eq!(record.id(), id);
    let reference = r#"{"id": "262b3c8fbec35a2d", "ts": 1700000000, "from": "alice", "to": "bob", "thread": "t1", "body": "hello", "ms": 7, "pub": "BwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwc=", "sig": ""#;
    assert!(line.starts_with(reference), "{line}");
    assert!(line.ends_with("==\"}"));

    record.body = "cafe\u{301}\n\"\\\t\u{1b}\u{7f}\u{85}\u{2028}/<>&";
    record.re = Some("r");
    record.subject = Some("s\u{e9}");
    record.idem = Some("i");
    record.rcpt = &["alice", "bob"];
    let (line, id) = build_line(&record, &FakeKey);
    let expected = format!(
        "{{\"id\": \"{id}\", \"ts\": 1700000000, \"from\": \"alice\", \"to\": \"bob\", \"thread\": \"t1\", \
         \"body\": \"caf\u{e9}\\n\\\"\\\\\\t\\u001b\u{7f}\u{85}\u{2028}/<>&\", \"re\": \"r\", \
         \"subject\": \"s\u{e9}\", \"idem\": \"i\", \"ms\": 7, \"rcpt\": [\"alice\", \"bob\"], \"pub\": \""
    );
    assert!(line.starts_with(&expected), "{line}");
}

/// Returns the lines of a message to these recipients.
fn lines_to(rcpt: &[&str], subject: Option<&str>) -> Vec<String> {
    let time = Timestamp::from_millis(1_700_000_000_007);
    let (from, thread, body) = ("alice", "t1", "hello");
    let line = |to: &&str| {
        let record = NewSampRecord {
            time,
            from,
            to,
            thread,
            body,
            subject,
            rcpt,
            ..NewSampRecord::default()
        };
        build_line(&record, &FakeKey).0
    };
    rcpt.iter().map(line).collect()
}

fn key_of(line: &str) -> Option<MulticastKey> {
    parse(line, &mut SampScratch::default()).unwrap().multicast_key(line)
}

#[test]
fn all_records_of_a_message_have_the_id_of_the_first() {
    let lines = lines_to(&["bob", "carol", "dave"], Some("s"));
    let first = parse(&lines[0], &mut SampScratch::default()).unwrap().id.into_owned();
    let keys: Vec<MulticastKey> = lines.iter().map(|line| key_of(line).unwrap()).collect();
    for (n, key) in keys.iter().enumerate() {
        assert_eq!(format!("{:016x}", key.key), first);
        assert_eq!((key.digest, key.is_first, key.is_id), (keys[0].digest, n == 0, true));
    }
    // Spelling is no difference, and any other member is.
    let spaced = lines[1].replace(", ", " ,\t").replace("hello", "h\\u0065llo");
    assert_eq!(key_of(&spaced), Some(keys[1]));
    let differs = |line: &str| {
        let other = key_of(line).unwrap();
        assert!(other.key == keys[1].key && other.digest != keys[1].digest, "{line}");
    };
    differs(&lines_to(&["bob", "carol", "dave"], Some("other"))[1]);
    differs(&lines_to(&["bob", "carol", "dave"], None)[1]);
    differs(&lines_to(&["bob", "carol", "eve"], Some("s"))[1]);
    differs(&lines[1].replace("\"ms\": 7", "\"ms\": 8"));
    differs(&lines[1].replace("\"ms\"", "\"x\": null, \"ms\""));
    differs(&lines[1].replace("\"pub\": \"B", "\"pub\": \"C"));
}

#[test]
fn each_record_tells_the_ids_of_the_others() {
    let names = ["bob", "carol", "dave"];
    let lines = lines_to(&names, Some("s"));
    let parsed: Vec<_> =
        lines.iter().map(|line| parse(line, &mut SampScratch::default()).unwrap()).collect();
    for record in &parsed {
        let told = names.map(record.recipient_ids());
        assert!(told.iter().zip(&parsed).all(|(id, other)| *id == other.id), "{told:?}");
    }
}

#[test]
fn a_list_that_is_none_says_nothing() {
    let good = &lines_to(&["bob", "carol"], None)[1];
    assert!(key_of(good).is_some());
    for bad in [
        good.replace("hello", "other"),
        good.replace("[\"bob\", \"carol\"]", "[\"bob\", \"dave\"]"),
        good.replace("[\"bob\", \"carol\"]", "[\"carol\"]"),
        good.replace("[\"bob\", \"carol\"]", "[\"carol\", \"carol\"]"),
        good.replace("[\"bob\", \"carol\"]", "[\"a b\", \"carol\"]"),
        good.replace("[\"bob\", \"carol\"]", "[7, \"carol\"]"),
        good.replace("[\"bob\", \"carol\"]", "\"carol\""),
        good.replace("[\"bob\", \"carol\"]", "[]"),
        good.replace("\"ms\"", "\"x\": \"\\ud800\", \"ms\""),
    ] {
        assert_eq!(key_of(&bad), None, "{bad}");
    }
    let names: Vec<String> = (0..10_000).map(|n| format!("n{n}")).collect();
    let twice = good.replace("[\"bob\", \"carol\"]", r#"["bob", "bob", "carol"]"#);
    assert_eq!(
        key_of(&twice).unwrap().key,
        key_of(good).unwrap().key,
        "a name that is there twice"
    );
    let long = serde_json::to_string(&[&names[..], &["carol".to_owned()]].concat()).unwrap();
    let long = good.replace("[\"bob\", \"carol\"]", &long);
    let parsed = parse(&long, &mut SampScratch::default()).unwrap();
    assert_eq!(parsed.all_recipients().len(), 10_001);
    assert!(parsed.multicast_key(&long).is_some());
}

#[test]
fn only_the_data_of_files_may_differ() {
    let [first, other] = <[String; 2]>::try_from(lines_to(&["bob", "carol"], None)).unwrap();
    let with =
        |line: &str, files: &str| line.replace("\"pub\"", &format!("\"files\": {files}, \"pub\""));
    let digest = |line: &str, files: &str| key_of(&with(line, files)).map(|key| key.digest);
    let full = r#"[{"name":"a","size":1,"data":"QQ=="},{"name":"b","size":2,"data":"QUE="}]"#;
    let bare = r#"[ { "size" : 1,"name":"a"} , {"name":"b","size":2}]"#;
    assert!(digest(&first, full).is_some());
    assert_eq!(digest(&first, full), digest(&other, bare));
    for differs in [
        r#"[{"name":"a","size":1}]"#,
        r#"[{"name":"a","size":1},{"name":"b","size":3}]"#,
        r#"[{"name":"b","size":2},{"name":"a","size":1}]"#,
        r#"[{"name":"a","size":1},{"name":"b","size":2},{}]"#,
        r#"{"name":"a","size":1}"#,
        r#""a""#,
        "[[{\"name\":\"a\"}]]",
        "[]",
        "null",
    ] {
        assert_ne!(digest(&first, full), digest(&other, differs), "{differs}");
    }
    let many = format!("[{}]", vec![r#"{"name":"a","data":"QQ=="}"#; 10_000].join(","));
    assert_eq!(digest(&first, &many), digest(&other, &many.replace(r#","data":"QQ==""#, "")));
}

#[test]
fn claims() {
    let sig = BASE64_STANDARD.encode([1; 64]);
    let key = BASE64_STANDARD.encode([2; 32]);
    let with = |more: &str| GOOD.replace('}', &format!(",{more}}}"));
    assert_eq!(parse_claim(GOOD), None);
    assert_eq!(parse_claim("not json \"sig\""), None);
    assert_eq!(parse_claim(&with(&format!("\"pub\":\"{key}\""))), None);
    let line = with(&format!("\"pub\":\"{key}\",\"sig\":\"{sig}\""));
    let covered = SignedBytes::from_bytes(canonical::signed_bytes(&line).unwrap());
    let scope = SignatureScope::Whole;
    let signed = |key| {
        Some(SignatureClaim::Signed { key, signature: [1; 64], covered: covered.clone(), scope })
    };
    assert_eq!(parse_claim(&line), signed(Some(PublicKey([2; 32]))));
    // The last of equal members wins, in both readings.
    let twice = with(&format!("\"pub\":1,\"sig\":2,\"\\u0070ub\":\"{key}\",\"sig\":\"{sig}\""));
    assert_eq!(parse_claim(&twice), signed(Some(PublicKey([2; 32]))));
    let no_key = with(&format!("\"sig\":\"{sig}\""));
    assert!(matches!(parse_claim(&no_key), Some(SignatureClaim::Signed { key: None, .. })));

    let short = BASE64_STANDARD.encode([1; 63]);
    let unpadded = sig.trim_end_matches('=');
    let url = sig.replace('E', "-");
    let trailing = sig.replace("Q==", "R==");
    for bad in ["", "x", &short, unpadded, &url, &trailing, &format!("{sig}\\n"), "\\ud800"] {
        let line = with(&format!("\"pub\":\"{key}\",\"sig\":\"{bad}\""));
        assert!(matches!(parse_claim(&line), Some(SignatureClaim::Malformed(_))), "{bad}");
    }
    for bad in ["null", "1", "[]", "\"\"", "\"AAAA\""] {
        let line = with(&format!("\"pub\":\"{key}\",\"sig\":{bad}"));
        assert!(matches!(parse_claim(&line), Some(SignatureClaim::Malformed(_))), "{bad}");
        let line = with(&format!("\"pub\":{bad},\"sig\":\"{sig}\""));
        assert!(matches!(parse_claim(&line), Some(SignatureClaim::Malformed(_))), "{bad}");
    }
    let lone = with(&format!("\"x\":\"\\ud800\",\"sig\":\"{sig}\""));
    assert!(matches!(parse_claim(&lone), Some(SignatureClaim::Malformed(_))));
}

proptest! {
    #[test]
    fn what_is_written_is_read(
        time in -9_000_000_000_000_000i64..9_000_000_000_000_000,
        texts in prop::array::uniform4(any::<String>()),
        more in prop::array::uniform3(prop::option::of(any::<String>())),
    ) {
        let [from, to, thread, body] = &texts;
        let [re, subject, idem] = &more;
        let rcpt = [to.as_str(), "bob"];
        let time = Timestamp::from_millis(time);
        let record = NewSampRecord {
            time, from, to, thread, body, re: re.as_deref(), subject: subject.as_deref(), idem: idem.as_deref(),
            rcpt: &rcpt,
            files: &[],
        };
        let (line, id) = build_line(&record, &FakeKey);
        prop_assert!(!line.contains(['\n', '\r']));
        let mut scratch = SampScratch::default();
        let p = parse(&line, &mut scratch).unwrap();
        prop_assert!(p.id_verified && p.has_sig);
        prop_assert_eq!(&*p.id, id.as_str());
        prop_assert_eq!((p.time(), p.ms.is_some()), (time, true));
        prop_assert_eq!((&*p.from, &*p.to, &*p.thread), (from.as_str(), to.as_str(), thread.as_str()));
        prop_assert_eq!(p.body_text(), pytext::to_nfc(body));
        prop_assert_eq!((p.re.as_deref(), p.subject.as_deref(), p.idem.as_deref()), (re.as_deref(), subject.as_deref(), idem.as_deref()));
        let covered = canonical::signed_bytes(&line).unwrap();
        let signature = FakeKey.sign(&covered);
        let (key, covered) = (Some(PublicKey([7; 32])), SignedBytes::from_bytes(covered));
        let expected = SignatureClaim::Signed { key, signature, covered, scope: SignatureScope::Whole };
        prop_assert_eq!(parse_claim(&line), Some(expected));
    }

    #[test]
    fn the_fast_way_gives_the_same_id(body in "[a-z\n\"\\\\\u{e9}e\u{301}\u{1161}\u{1100}\u{0}\u{1f600}]{0,12}", thread in any::<String>()) {
        // Raw slices are hashed where they can be; escapes force the slow way.
        let plain = serde_json::json!({"ts": 1, "from": "a", "to": "b", "thread": thread, "body": body}).to_string();
        let escape =
            |s: &str| s.encode_utf16().map(|u| format!("\\u{u:04x}")).collect::<Vec<_>>().concat();
        let free = format!(
            "{{\"ts\":1,\"from\":\"\\u0061\",\"to\":\"\\u0062\",\"thread\":\"{}\",\"body\":\"{}\"}}",
            escape(&thread), escape(&body),
        );
        prop_assert_eq!(parsed(&plain).unwrap(), parsed(&free).unwrap());
    }

    #[test]
    fn never_panics(line in any::<String>()) {
        let _ = parsed(&line);
        let _ = parse_claim(&line);
    }
}
