use proptest::prelude::*;
use serde_json::Value as Json;

use super::*;

const HEAD: &str =
    r#""envelope":{"id":"msg_1_a","from":"a@b.c","to":"b@b.c"},"payload":{"n":1.10}"#;

fn now() -> Timestamp {
    Timestamp::from_millis(1_795_291_632_305)
}

fn mark(text: &str, read: bool) -> Option<String> {
    set_status(text.as_bytes(), read, now()).map(|bytes| String::from_utf8(bytes).unwrap())
}

#[test]
fn only_the_marks_change() {
    let at = "2026-11-21T20:07:12Z";
    let cases = [
        (
            r#","local":{"status":"unread"}"#,
            true,
            Some(format!(r#","local":{{"status":"read","read_at":"{at}"}}"#)),
        ),
        (
            r#","local":{"status" : "unread", "read_at":null , "x":1}"#,
            true,
            Some(format!(r#","local":{{"status" : "read", "read_at":"{at}" , "x":1}}"#)),
        ),
        (
            r#","local":{"a": 1e2}"#,
            true,
            Some(format!(r#","local":{{"a": 1e2,"read_at": "{at}","status": "read"}}"#)),
        ),
        (
            r#","local":{ }"#,
            true,
            Some(format!(r#","local":{{"read_at": "{at}", "status": "read" }}"#)),
        ),
        (
            r#","local":null"#,
            true,
            Some(format!(r#","local":{{"status": "read", "read_at": "{at}"}}"#)),
        ),
        ("", true, Some(format!(r#","local":{{"status": "read", "read_at": "{at}"}}"#))),
        (
            r#","local":{"status":"unread"},"metadata":{"status":"unread"}"#,
            true,
            Some(format!(
                r#","local":{{"status":"read","read_at":"{at}"}},"metadata":{{"status":"read"}}"#
            )),
        ),
        (
            r#","metadata":{"attempts":0},"local":{"status":"unread"}"#,
            true,
            Some(format!(
                r#","metadata":{{"attempts":0}},"local":{{"status":"read","read_at":"{at}"}}"#
            )),
        ),
        (
            r#","local":{"status":"read","read_at":"x"},"metadata":{"status":"read"}"#,
            false,
            Some(
                r#","local":{"status":"unread","read_at":"x"},"metadata":{"status":"unread"}"#
                    .to_owned(),
            ),
        ),
        (
            r#","local":{"status":"archived"}"#,
            false,
            Some(r#","local":{"status":"unread"}"#.to_owned()),
        ),
        (
            r#","local":{"status":"unread","status":"unread"}"#,
            true,
            Some(format!(r#","local":{{"status":"unread","status":"read","read_at":"{at}"}}"#)),
        ),
        (r#","local":{"status":"read"}"#, true, None),
        (r#","local":{"status":"archived"}"#, true, None),
        (r#","local":{"status":"unread"}"#, false, None),
        (r#","local":{}"#, false, None),
        ("", false, None),
        (r#","local":[]"#, true, None),
        (r#","local":"x""#, true, None),
    ];
    for (rest, read, expected) in cases {
        let text = format!("{{{HEAD}{rest}}}");
        let expected = expected.map(|rest| format!("{{{HEAD}{rest}}}"));
        assert_eq!(mark(&text, read), expected, "{rest}");
    }
    assert_eq!(mark("{}", true), None);
    assert_eq!(mark(&format!("{{{HEAD}"), true), None);
}

#[test]
fn a_mark_can_be_thought_away() {
    for rest in [
        "",
        r#","local":{"status":"unread"}"#,
        r#","local":{"status" : "unread" , "x":1}"#,
        r#","local":{"a": 1e2}"#,
        r#","local":{"a": 1e2,"status":"unread"},"metadata":{"status":"unread"}"#,
        r#","local":{}"#,
        r#","metadata":{"attempts":0}"#,
        "\n, \"local\": {\n  \"received_at\": \"x\",\n  \"status\": \"unread\"\n }\n",
    ] {
        let text = format!("{{{HEAD}{rest}}}");
        assert!(matches!(strip_marks(text.as_bytes()), Cow::Borrowed(_)), "{rest}");
        let read = set_status(text.as_bytes(), true, now()).unwrap();
        assert_eq!(String::from_utf8_lossy(&strip_marks(&read)), text, "{rest}");
        let unread = set_status(&read, false, now()).unwrap();
        assert_eq!(String::from_utf8_lossy(&strip_marks(&unread)), text, "{rest}");
    }
    // If the change cannot be undone, the result is at least always the same.
    for rest in [
        r#","local":null,"x":1"#,
        r#","local":{"read_at":"x","status":"unread"}"#,
        r#","local":{"status":"read"}"#,
        r#","local":{"status":"archived","read_at":"x","y":1}"#,
    ] {
        let text = format!("{{{HEAD}{rest}}}").into_bytes();
        let plain = strip_marks(&text).into_owned();
        let read = set_status(&text, true, now()).unwrap_or(text);
        let unread = set_status(&read, false, now()).unwrap();
        assert_eq!(strip_marks(&read), plain, "{rest}");
        assert_eq!(strip_marks(&unread), plain, "{rest}");
        assert_eq!(strip_marks(&plain), plain, "{rest}");
    }
}

#[test]
fn the_look_of_the_file_stays() {
    let text = format!(
        "{{\n  {HEAD},\n  \"local\": {{\n    \"received_at\": \"x\",\n    \"status\": \"unread\"\n  }}\n}}\n"
    );
    let marked = mark(&text, true).unwrap();
    assert_eq!(
        marked,
        text.replace(
            "\"status\": \"unread\"",
            "\"status\": \"read\",\n    \"read_at\": \"2026-11-21T20:07:12Z\""
        )
    );
    let bare = format!("{{\n  {HEAD},\n  \"x\": 1\n}}\n");
    let marked = mark(&bare, true).unwrap();
    assert!(marked.contains("\"x\": 1,\n  \"local\": {\"status\": \"read\""), "{marked}");
}

fn json() -> impl Strategy<Value = Json> {
    let leaf = prop_oneof![
        Just(Json::Null),
        any::<i64>().prop_map(Json::from),
        any::<i32>().prop_map(|n| Json::from(f64::from(n) / 4.0)),
        any::<String>().prop_map(Json::from),
        "unread|read|archived".prop_map(Json::from),
    ];
    leaf.prop_recursive(3, 20, 4, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4).prop_map(Json::from),
            proptest::collection::btree_map("status|read_at|[a-z]{0,3}", inner, 0..4)
                .prop_map(|map| Json::Object(map.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn nothing_else_changes(
        local in proptest::option::of(json()),
        metadata in proptest::option::of(json()),
        payload in json(),
        pretty in any::<bool>(),
        read in any::<bool>(),
    ) {
        let mut file = serde_json::json!({
            "envelope": { "id": "msg_1_a", "from": "a@b.c", "to": "b@b.c" },
            "payload": { "message": payload },
        });
        for (name, value) in [("local", &local), ("metadata", &metadata)] {
            if let Some(value) = value {
                file[name] = value.clone();
            }
        }
        let text = if pretty { serde_json::to_string_pretty(&file) } else { serde_json::to_string(&file) }.unwrap();
        let Some(marked) = mark(&text, read) else { return Ok(()) };
        let payload_of = |text: &str| envelope::parse(text.as_bytes()).unwrap().payload.to_owned();
        prop_assert_eq!(payload_of(&marked), payload_of(&text));
        let after: Json = serde_json::from_str(&marked).unwrap();
        let stored = envelope::parse(marked.as_bytes()).unwrap();
        prop_assert_eq!(stored.status.is_some_and(envelope::ReadState::is_read), read);
        // Setting the members by hand gives the same values.
        let mut expected = file.clone();
        if after.get("local") != file.get("local") {
            if !expected["local"].is_object() {
                expected["local"] = serde_json::json!({});
            }
            expected["local"]["status"] = after["local"]["status"].clone();
            if read {
                expected["local"]["read_at"] = "2026-11-21T20:07:12Z".into();
            }
        }
        if file.get("metadata").and_then(|m| m.get("status")).is_some() {
            let old = &file["metadata"]["status"];
            let fine = if read { old == "read" || old == "archived" } else { old == "unread" };
            if !fine {
                expected["metadata"]["status"] = if read { "read" } else { "unread" }.into();
            }
        }
        prop_assert_eq!(&after, &expected);
        // A second mark changes nothing.
        prop_assert_eq!(mark(&marked, read), None);
    }

    #[test]
    fn nothing_panics(text in any::<String>(), read in any::<bool>()) {
        let _ = set_status(text.as_bytes(), read, now());
        let _ = set_status(format!("{{{HEAD},\"local\":{text}}}").as_bytes(), read, now());
    }
}
