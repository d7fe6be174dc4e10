use super::*;
use crate::link::agentazall::letter::is_file_stem;

fn relay() -> RelayEngine {
    let settings = EngineSettings {
        kind: "agenttalk".into(),
        file: PathBuf::from("/nowhere/config.json"),
        part: "/agenttalk".into(),
        me: "bob@localhost".into(),
        insecure: false,
        ca: None,
        self_copy: false,
    };
    RelayEngine { settings, server: "http://127.0.0.1:1".into() }
}

/// Returns the items of a fetch with these bytes.
fn unpacked(answer: &[u8]) -> (tempfile::TempDir, Vec<FetchedItem>) {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join(ANSWER), answer).unwrap();
    let items = relay().unpack_items(dir.path()).into_iter().map(Result::unwrap).collect();
    (dir, items)
}

fn text_of(item: &FetchedItem) -> String {
    String::from_utf8(item.arrived.bytes.clone()).unwrap()
}

#[test]
fn a_message_goes_out_and_comes_in_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("a b.txt");
    std::fs::write(&file, "attached").unwrap();
    let bytes = b"From: alice.agenttalk\nTo: bob.agenttalk\nSubject: hi\n---\ntext\n".to_vec();
    let parts = vec![("a b.txt".to_owned(), file)];
    let parcel = OutboundMail { message_id: "x".into(), to: "bob.agenttalk".into(), bytes, parts };
    let wire: Value = serde_json::from_slice(&relay().encode_parcel(&parcel).unwrap()).unwrap();
    assert_eq!(wire["to"], "bob.agenttalk");
    let answer = json!({"messages": [{
        "id": "1_alice_ab", "from": "alice.agenttalk", "to": "bob.agenttalk",
        "timestamp": "2026-03-11T10:00:00.123456", "payload": wire["payload"],
    }]});
    let (_dir, items) = unpacked(answer.to_string().as_bytes());
    let [item] = &items[..] else { panic!("{items:?}") };
    assert_eq!(item.id, "1_alice_ab");
    let name = &item.arrived.name;
    let head =
        "From: alice.agenttalk\nTo: bob.agenttalk\nSubject: hi\nDate: 2026-03-11T10:00:00.123456";
    assert_eq!(
        text_of(item),
        format!("{head}\nMessage-ID: {name}\nStatus: new\nAttachments: a b.txt\n---\ntext\n")
    );
    let [(name, path)] = &item.arrived.parts[..] else { panic!() };
    assert_eq!((name.as_str(), std::fs::read(path).unwrap()), ("a b.txt", b"attached".to_vec()));
    assert_eq!(item.arrived.name.len(), 12);
}

#[test]
fn any_payload_is_a_message() {
    for (payload, subject, body) in [
        (json!("plain words"), NO_SUBJECT, "plain words"),
        (json!("\"a text\""), NO_SUBJECT, "a text"),
        (json!("[1, 2]"), NO_SUBJECT, "[1, 2]"),
        (json!("{\"subject\": \" \", \"body\": 5}"), NO_SUBJECT, "5"),
        (json!("{\"subject\": \"s\", \"attachments\": \"no\"}"), "s", ""),
        (json!({"subject": "s", "body": "b"}), "s", "b"),
        (json!(null), NO_SUBJECT, "null"),
    ] {
        let answer = json!({"messages": [{"id": "1", "from": "a", "to": "b", "payload": payload}]});
        let (_dir, items) = unpacked(answer.to_string().as_bytes());
        let text = text_of(&items[0]);
        assert!(text.contains(&format!("\nSubject: {subject}\n")), "{payload}: {text}");
        assert!(text.ends_with(&format!("---\n{body}")), "{payload}: {text}");
    }
}

#[test]
fn what_is_foreign_cannot_forge_a_header_or_lead_elsewhere() {
    let payload = json!({
        "subject": "s\nFrom: root\r\nX: y",
        "body": "b",
        "attachments": [
            {"name": "../../etc/passwd", "data": "YQ=="}, {"name": "passwd", "data": "Yg=="},
            {"name": "..", "data": "Yw=="}, {"name": "a\u{1b}[2J\n", "data": "ZA=="},
            {"name": "x", "data": "***"},
        ],
    });
    let answer = json!({"messages": [
        {"id": "../../../x\nStatus: read", "from": "a\nTo: c", "to": "b", "payload": payload.to_string()},
        {"from": 5, "payload": "no id"},
    ]});
    let (_dir, items) = unpacked(answer.to_string().as_bytes());
    let letter = text::parse(&items[0].arrived.bytes);
    assert_eq!(letter.get("From"), Some("a To: c"));
    assert_eq!(letter.get("Status"), Some("new"));
    assert_eq!(letter.get("X"), None);
    let names: Vec<&str> = items[0].arrived.parts.iter().map(|(n, _)| n.as_str()).collect();
    assert_eq!(names, ["passwd", "passwd~2", "attachment3.bin", "a_[2J_", "x"]);
    for item in &items {
        assert!(is_file_stem(&item.arrived.name) && is_file_stem(&item.arrived.other_name));
    }
    assert_ne!(items[0].arrived.name, items[1].arrived.name);
}

/// The relay has deleted an attachment when it arrives, so each one is kept.
#[test]
fn an_attachment_is_kept_however_it_is_encoded() {
    let wrapped = format!("{}\r\n{}\n", "YWJj".repeat(19), "YWJj");
    for (attachment, expected, is_told) in [
        (json!({"name": "x", "data": " YWI= "}), "ab", false),
        (json!({"name": "x", "data": "YWI"}), "ab", false),
        (json!({"name": "x", "data": wrapped}), &*"abc".repeat(20), false),
        (json!({"name": "x", "data": ""}), "", false),
        (json!({"name": "x", "data": "***"}), "***", true),
        (json!({"name": "x", "data": 5}), r#"{"data":5,"name":"x"}"#, true),
        (json!("x"), "\"x\"", true),
    ] {
        let payload = json!({"subject": "s", "body": "b", "attachments": [attachment]});
        let answer = json!({"messages": [{"id": "1", "from": "a", "to": "b", "payload": payload}]});
        let (_dir, items) = unpacked(answer.to_string().as_bytes());
        let [(name, path)] = &items[0].arrived.parts[..] else { panic!("{attachment}") };
        assert_eq!(std::fs::read_to_string(path).unwrap(), expected, "{attachment}");
        let told = format!("b\n[The attachment {name} is not base64. It is kept as it came.]\n");
        let text = if is_told { &told } else { "b" };
        assert!(text_of(&items[0]).ends_with(&format!("\n---\n{text}")), "{attachment}");
    }
}

/// Attachments with one name are bounded, as in mails, and cost no time before they are unpacked.
#[test]
fn a_letter_has_a_bound_of_attachments_and_says_what_is_left_out() {
    let all = vec![json!({"name": "a.txt", "data": "YQ=="}); 20_000];
    let payload = json!({"subject": "s", "body": "b\n", "attachments": all}).to_string();
    let answer = json!({"messages": [{"id": "1", "from": "a", "to": "b", "payload": payload}]});
    let (dir, items) = unpacked(answer.to_string().as_bytes());
    let names: HashSet<&str> = items[0].arrived.parts.iter().map(|(n, _)| n.as_str()).collect();
    assert_eq!((items[0].arrived.parts.len(), names.len()), (100, 100));
    assert!(names.contains("a.txt") && names.contains("a.txt~100"), "{names:?}");
    assert!(text_of(&items[0]).ends_with("b\n\n[Left out: all attachments after the 100th.]\n"));
    std::fs::remove_dir_all(dir.path().join("parts-0")).unwrap();
    assert!(relay().has_fetched(dir.path()));
    assert!(!dir.path().join("parts-0").exists(), "only unpacking writes files");
    for (list, has_some) in [("[]}", false), ("[ , \n]}", false), ("[", false), ("[ ,5", true)] {
        std::fs::write(dir.path().join(ANSWER), format!("{{\"messages\": {list}")).unwrap();
        assert_eq!(relay().has_fetched(dir.path()), has_some, "{list}");
    }
    assert!(!relay().has_fetched(&dir.path().join("none")));
}

#[test]
fn of_an_answer_that_was_cut_off_the_whole_messages_are_kept() {
    let message =
        |n: usize| json!({"id": format!("m{n}"), "from": "a", "to": "b", "payload": "x]}"});
    let answer =
        json!({"agent": "b", "count": 3, "messages": [message(0), message(1), message(2)]});
    let answer = answer.to_string();
    let ends: Vec<usize> = answer.match_indices("\"x]}\"").map(|(at, _)| at).collect();
    for cut in 0..answer.len() {
        let (_dir, items) = unpacked(&answer.as_bytes()[..cut]);
        // Members are sorted by name, so the recipient comes after the payload.
        let whole = ends.iter().filter(|at| cut >= **at + "\"x]}\",\"to\":\"b\"}".len()).count();
        let is_odd = |item: &&FetchedItem| text_of(item).contains(text::UNREADABLE);
        let odd: Vec<&FetchedItem> = items.iter().filter(is_odd).collect();
        assert_eq!(items.len() - odd.len(), whole, "{cut}");
        // The fetched beginning of the last element is kept too.
        assert!(odd.len() <= 1, "{cut}: {odd:?}");
    }
    let (dir, items) = unpacked(answer.as_bytes());
    assert_eq!((items.len(), classify_fetched(dir.path())), (3, ExchangeOutcome::Done));
    for cut in ["}]}", "]}"] {
        let begun = answer.strip_suffix(cut).unwrap();
        let (dir, _) = unpacked(begun.as_bytes());
        let outcome = classify_fetched(dir.path());
        assert!(matches!(outcome, ExchangeOutcome::Unknown { .. }), "{begun}: {outcome:?}");
    }
    let deep = format!("{{\"messages\": {}", "[".repeat(100_000));
    let items = unpacked(deep.as_bytes()).1;
    assert!(text_of(&items[0]).ends_with(&"[".repeat(99_999)), "{}", items.len());
}

/// S641: each element of an answer is parsed by itself; one that is no message is kept with its bytes.
#[test]
fn s641_an_odd_element_costs_no_other_one() {
    let good = |n: usize| format!(r#"{{"id":"m{n}","from":"a","to":"b","payload":"[x, \"y\"]"}}"#);
    let deep = "[".repeat(300) + &"]".repeat(300);
    for odd in [
        "5",
        "null",
        "\"a, b]\"",
        r#"{"id":"\q"}"#,
        r#"{"id":"\ud800"}"#,
        "[1, {}]",
        "{\"a\":]}",
        &deep,
    ] {
        let answer = format!("{{\"messages\": [{}, {odd} ,{}], \"count\": 3}}", good(1), good(2));
        let (_dir, items) = unpacked(answer.as_bytes());
        let ids: Vec<&str> = items.iter().map(|item| item.id.as_str()).collect();
        assert_eq!((ids.len(), ids[0], ids[2]), (3, "m1", "m2"), "{odd}");
        let text = text_of(&items[1]);
        assert!(
            text.contains(text::UNREADABLE) && text.ends_with(&format!("\n---\n{odd}")),
            "{text}"
        );
        assert!(is_file_stem(&items[1].arrived.name));
    }
    let answer = "{\"messages\": [ , \n]}";
    assert!(unpacked(answer.as_bytes()).1.is_empty());
}

/// S641: millions of elements take the memory and the files of a limited number.
#[test]
fn s641_too_many_elements_are_one_rejected_message() {
    let message = |n: usize| json!({"id": format!("m{n}"), "from": "a", "to": "b", "payload": "x"});
    let all: Vec<String> = (0..MAX_MESSAGES + 3).map(|n| message(n).to_string()).collect();
    let (_dir, items) = unpacked(format!("{{\"messages\": [{}]}}", all.join(",")).as_bytes());
    assert_eq!((items.len(), items[MAX_MESSAGES - 1].id.as_str()), (MAX_MESSAGES + 1, "m999"));
    let text = text_of(&items[MAX_MESSAGES]);
    assert!(text.contains("it is 3 more messages of an answer"), "{text}");
    assert!(text.ends_with(&format!("\n---\n{}", all[MAX_MESSAGES..].join(","))), "{text}");
    let numbers = format!("{{\"messages\": [{}1]}}", "1,".repeat(1_000_000));
    assert_eq!(unpacked(numbers.as_bytes()).1.len(), MAX_MESSAGES + 1);
}

#[test]
fn answers_mean_what_they_say() {
    let answer = |status| HttpAnswer {
        status,
        retry_after: Some(7),
        body: br#"{"error": "no\nway"}"#.to_vec(),
    };
    assert_eq!(classify_answer(Ok(answer(200))), ExchangeOutcome::Done);
    for status in [400, 404, 413] {
        let ExchangeOutcome::Refused { why } = classify_answer(Ok(answer(status))) else {
            panic!("{status}")
        };
        assert_eq!(why, format!("{status} no\u{240a}way"));
    }
    let page = |status| HttpAnswer { body: b"<html>no</html>".to_vec(), ..answer(status) };
    for status in [400, 404] {
        let why = format!("{NO_RELAY} ({status})");
        let expected = ExchangeOutcome::Away { why, after: Some(7) };
        assert_eq!(classify_answer(Ok(page(status))), expected);
    }
    assert!(matches!(classify_answer(Ok(page(413))), ExchangeOutcome::Later { .. }));
    for status in [301, 401, 403, 408, 429] {
        assert!(matches!(
            classify_answer(Ok(answer(status))),
            ExchangeOutcome::Away { after: Some(7), .. }
        ));
    }
    assert!(matches!(
        classify_answer(Ok(answer(507))),
        ExchangeOutcome::Later { after: Some(7), .. }
    ));
    for status in [500, 502, 503] {
        assert!(matches!(classify_answer(Ok(answer(status))), ExchangeOutcome::Unknown { .. }));
    }
}

#[test]
fn only_a_relay_that_took_a_message_says_so() {
    for (body, is_sent) in [
        (r#"{"status": "sent", "message_id": "1_a_2"}"#, true),
        (r#"{"status": "sent"}"#, true),
        (r#"{"message_id": "1_a_2"}"#, true),
        (r#"{"status": "error"}"#, false),
        (r#"{"status": 200}"#, false),
        (r#"{"status": "ok", "message_id": null}"#, false),
        (r#"{"message_id": ""}"#, false),
        (r#"["sent"]"#, false),
        ("<html>sent</html>", false),
        ("", false),
    ] {
        let answer = HttpAnswer { status: 200, retry_after: None, body: body.into() };
        assert_eq!(is_sent_answer(&answer), is_sent, "{body}");
    }
}

#[test]
fn whom_it_reaches_and_where_it_is() {
    let relay = relay();
    let all =
        ["bob.agenttalk", "bob", "bob@localhost", ""].map(|address| relay.rank_address(address));
    assert_eq!(all, [Some(5), Some(3), None, None]);
    let second = RelayEngine {
        settings: EngineSettings { part: "/relays/1".into(), ..relay.settings },
        ..relay
    };
    assert_eq!(second.rank_address("bob.agenttalk"), Some(4));
    for (given, meant) in [
        ("", LOCAL),
        ("http://127.0.0.1:9/", "http://127.0.0.1:9"),
        ("relay.example:8443", "https://relay.example:8443"),
    ] {
        assert_eq!(normalize_address(given), meant);
    }
}

proptest::proptest! {
    #[test]
    fn any_answer_can_be_taken_apart(bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..300)) {
        let mut answer = b"{\"messages\":[".to_vec();
        answer.extend(bytes);
        let _ = unpacked(&answer);
    }
}
