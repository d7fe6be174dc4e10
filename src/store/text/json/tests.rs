use proptest::prelude::*;

use super::*;

/// Returns the reports of the scanner, in a form that can be compared.
fn report(line: &str) -> Result<Vec<(String, String)>, JsonError> {
    let mut got = Vec::new();
    visit_members(line, |key, value| got.push((key.to_text().into_owned(), show(value))))?;
    Ok(got)
}

fn show(value: JsonValue<'_>) -> String {
    match value {
        JsonValue::String(s) => format!("s:{}", s.to_text()),
        JsonValue::Int(t) => format!("i:{t}"),
        JsonValue::Float(t) => format!("f:{t}"),
        JsonValue::Bool(b) => format!("b:{b}"),
        JsonValue::Null => "null".to_owned(),
        JsonValue::Constant(t) => format!("c:{t}"),
        JsonValue::Compound(t) => t.to_owned(),
    }
}

/// Returns one value as the scanner reports it.
fn value(text: &str) -> Result<String, JsonError> {
    Ok(report(&format!("{{\"k\":{text}}}"))?.remove(0).1)
}

#[test]
fn values_keep_their_text() {
    let table = [
        ("\"a\"", "s:a"),
        ("0", "i:0"),
        ("-0", "i:-0"),
        ("12345678901234567890123", "i:12345678901234567890123"),
        ("-7", "i:-7"),
        ("0.10", "f:0.10"),
        ("1E15", "f:1E15"),
        ("1e-7", "f:1e-7"),
        ("-1.5E+3", "f:-1.5E+3"),
        ("1e400", "f:1e400"),
        ("true", "b:true"),
        ("false", "b:false"),
        ("null", "null"),
        ("NaN", "c:NaN"),
        ("Infinity", "c:Infinity"),
        ("-Infinity", "c:-Infinity"),
        ("[]", "[]"),
        ("[ 1 , {\"a\" : [ ] } ]", "[ 1 , {\"a\" : [ ] } ]"),
        ("{ }", "{ }"),
        ("{\"a\":{\"b\":\"}]\\\"\"}}", "{\"a\":{\"b\":\"}]\\\"\"}}"),
    ];
    for (text, expected) in table {
        assert_eq!(value(text).as_deref(), Ok(expected), "{text}");
    }
}

#[test]
fn refuses_what_python_refuses() {
    let values = [
        "",
        "01",
        "-",
        "+1",
        ".5",
        "1.",
        "1.e5",
        "1e",
        "1e+",
        "-NaN",
        "nan",
        "infinity",
        "Inf",
        "-Inf",
        "True",
        "None",
        "tru",
        "'a'",
        "[1,]",
        "[,]",
        "[1 2]",
        "[1}",
        "{\"a\":1]",
        "{\"a\":1,}",
        "{\"a\"}",
        "{a:1}",
        "{1:2}",
        "[",
        "{",
        "\"",
        "\"\\x\"",
        "\"\\u12\"",
        "\"\\u12g4\"",
        "\"\\u+123\"",
        "\"\\",
        "\"a\tb\"",
        "\"a\nb\"",
        "\"\0\"",
        "0x10",
        "1_000",
        "\u{664}",
        "1\u{664}",
        "[1]]",
    ];
    for text in values {
        assert!(value(text).is_err(), "{text:?}");
    }
    let lines = [
        "",
        " ",
        "not json",
        "{'single':1}",
        "{\"trailing\":1,}",
        "{}{}",
        "{} x",
        "{\"a\":1} {\"b\":2}",
        "{\"a\" 1}",
        "{\"a\":1 \"b\":2}",
        "{,}",
        "{\"a\":1",
        "{\"a\":",
        "{\"a\"",
        "{\"",
        "{",
        "\u{feff}{}",
        "{\"a\":\u{a0}1}",
        "\0{}",
        "{}\0",
        "{\"a\":1}]",
    ];
    for line in lines {
        assert!(matches!(report(line), Err(JsonError::Syntax { .. })), "{line:?}");
    }
    for line in ["[]", "5", "null", "\"x\"", " NaN ", "[{}]"] {
        assert_eq!(report(line), Err(JsonError::NotAnObject), "{line:?}");
    }
}

#[test]
fn errors_say_where() {
    let at = |line: &str| match report(line) {
        Err(JsonError::Syntax { at, .. } | JsonError::LongInteger { at }) => at,
        other => panic!("{other:?}"),
    };
    assert_eq!(at("  {\"a\":x}"), 7);
    assert_eq!(at("{\"a\":\"b\tc\"}"), 7);
    assert_eq!(at("{\"a\":1}, "), 7);
    assert_eq!(
        report("{\"a\":\"\u{1}\"}").unwrap_err().to_string(),
        "not JSON: at byte 6, a control character in a string is not escaped"
    );
    assert_eq!(
        report("7").unwrap_err().to_string(),
        "JSON, but not an object: a record is written between { and }"
    );
}

#[test]
fn white_space_around_is_pythons() {
    for line in ["\u{a0}\u{1c}{ \t\r\n}\u{3000}\r\n", "{}\u{85}", " {}"] {
        assert_eq!(report(line), Ok(vec![]), "{line:?}");
    }
}

#[test]
fn duplicate_and_escaped_keys_are_reported_in_order() {
    let got = report("{\"a\":1,\"\\u0061\":2,\"\":3,\"a\":4}").unwrap();
    let expected = [("a", "i:1"), ("a", "i:2"), ("", "i:3"), ("a", "i:4")];
    assert_eq!(got, expected.map(|(k, v)| (k.to_owned(), v.to_owned())));
}

fn string(text: &str) -> (String, bool, bool, bool) {
    let line = format!("{{\"k\":\"{text}\"}}");
    let mut got = None;
    visit_members(&line, |_, value| {
        if let JsonValue::String(s) = value {
            let (text, lone) = s.decode();
            got = Some((text.into_owned(), lone, s.has_escapes(), s.is_canonical()));
        }
    })
    .unwrap();
    got.unwrap()
}

#[test]
fn strings_are_decoded() {
    let row = |s: &str, lone, escapes, canonical| (s.to_owned(), lone, escapes, canonical);
    assert_eq!(string("a\u{7f}\u{e9}\u{2028}"), row("a\u{7f}\u{e9}\u{2028}", false, false, true));
    assert_eq!(string("\\\"\\\\\\b\\f\\n\\r\\t"), row("\"\\\u{8}\u{c}\n\r\t", false, true, true));
    assert_eq!(
        string("\\u0000\\u001b\\u0007\\u000b"),
        row("\0\u{1b}\u{7}\u{b}", false, true, true)
    );
    for free in ["\\/", "\\u0041", "\\u001B", "\\u000a", "\\u0008", "\\u0020", "\\u007f"] {
        assert!(!string(free).3, "{free}");
    }
    assert_eq!(string("\\ud83e\\udea8!"), row("\u{1faa8}!", false, true, false));
    assert_eq!(string("\\uD83E\\uDEA8"), row("\u{1faa8}", false, true, false));
    assert_eq!(string("x\\ud800y"), row("x\u{fffd}y", true, true, false));
    assert_eq!(string("\\ud83d\\u0041"), row("\u{fffd}A", true, true, false));
    assert_eq!(string("\\ud83d\\ud83e\\udea8"), row("\u{fffd}\u{1faa8}", true, true, false));
    assert_eq!(string("\\udea8\\ud83e"), row("\u{fffd}\u{fffd}", true, true, false));
    assert_eq!(string("\\ud83e\\\\udea8"), row("\u{fffd}\\udea8", true, true, false));
    assert_eq!(string("\\ufffd"), row("\u{fffd}", false, true, false));
}

#[test]
fn depth_needs_no_stack() {
    for n in [10_000, 2_000_000] {
        let nested = "[".repeat(n) + &"]".repeat(n);
        assert_eq!(value(&nested).unwrap().len(), 2 * n);
        assert!(value(nested.get(..2 * n - 1).unwrap()).is_err());
        assert!(value(&"[".repeat(n)).is_err());
    }
    let nested = "{\"a\":".repeat(10_000) + "1" + &"}".repeat(10_000);
    assert_eq!(value(&nested).unwrap(), nested);
}

#[test]
fn integers_have_pythons_limit() {
    let digits = "9".repeat(4300);
    assert!(value(&digits).is_ok());
    assert!(value(&format!("-{digits}")).is_ok());
    assert!(value(&format!("9{digits}.0")).is_ok());
    assert_eq!(value(&format!("9{digits}")), Err(JsonError::LongInteger { at: 5 }));
    assert!(value(&format!("[[-9{digits}]]")).is_err());
}

#[test]
fn runs_end_at_the_first_special_byte() {
    for len in 0..100 {
        for special in [b'"', b'\\', 0x1f, 0, b'\n'] {
            for at in 0..=len {
                let mut text = vec![b'a' + (len % 7) as u8; len];
                text.insert(at, special);
                text.extend([special, b'"', 0x80, 0xff, 0x20, 0x7f]);
                assert_eq!(plain_run_len(&text), at, "{len} {special} {at}");
            }
        }
        for plain in [0x20u8, 0x21, 0x23, 0x5b, 0x5d, 0x7f, 0x80, 0xa2, 0xdc, 0xff] {
            assert_eq!(plain_run_len(&vec![plain; len]), len, "{plain}");
        }
    }
}

#[test]
fn walk_reports_every_step() {
    let mut got = String::new();
    walk_value(" {\"a\":[1,[],{}],\"b\":null} ", |event| {
        got += match event {
            JsonEvent::ObjectStart => "{",
            JsonEvent::ObjectEnd => "}",
            JsonEvent::ArrayStart => "[",
            JsonEvent::ArrayEnd => "]",
            JsonEvent::Key(_) => "k",
            JsonEvent::Scalar(_) => "v",
        };
    })
    .unwrap();
    assert_eq!(got, "{k[v[]{}]kv}");
    assert!(walk_value("1 2", |_| {}).is_err());
}

/// Returns any JSON value without floats, whose text `serde_json` may print differently.
pub(crate) fn any_json() -> impl Strategy<Value = serde_json::Value> {
    let leaf = prop_oneof![
        Just(serde_json::Value::Null),
        any::<bool>().prop_map(Into::into),
        any::<i64>().prop_map(Into::into),
        any::<String>().prop_map(Into::into),
    ];
    leaf.prop_recursive(4, 32, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Into::into),
            prop::collection::btree_map(any::<String>(), inner, 0..6)
                .prop_map(|m| serde_json::Value::Object(m.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn never_panics(line in any::<String>()) {
        let _ = report(&line);
        let _ = walk_value(&line, |_| {});
    }

    #[test]
    fn never_panics_on_what_looks_like_json(
        line in "[\\{\\}\\[\\],:\"\\\\ud8c0a1eE.+-]{0,60}",
    ) {
        let _ = report(&line);
        let _ = report(&format!("{{\"k\":{line}}}"));
        // Python accepts everything that serde_json accepts.
        if serde_json::from_str::<serde_json::Value>(&line).is_ok() {
            let taken = walk_value(&line, |_| {});
            prop_assert_eq!(taken, Ok(()));
        }
    }

    #[test]
    fn no_prefix_of_an_object_is_an_object(value in any_json(), cut in any::<prop::sample::Index>()) {
        let line = serde_json::json!({ "k": value }).to_string();
        let mut cut = cut.index(line.len());
        while !line.is_char_boundary(cut) {
            cut -= 1;
        }
        prop_assert!(report(&line[..cut]).is_err());
    }

    #[test]
    fn agrees_with_serde_json(object in prop::collection::btree_map(any::<String>(), any_json(), 0..8), pretty: bool) {
        let line = if pretty {
            serde_json::to_string_pretty(&object).unwrap()
        } else {
            serde_json::to_string(&object).unwrap()
        };
        let mut got = std::collections::BTreeMap::new();
        visit_members(&line, |key, value| {
            let value = match value {
                JsonValue::String(s) => s.to_text().into_owned().into(),
                JsonValue::Int(t) | JsonValue::Compound(t) => serde_json::from_str(t).unwrap(),
                JsonValue::Bool(b) => b.into(),
                JsonValue::Null => serde_json::Value::Null,
                other => panic!("{other:?}"),
            };
            got.insert(key.to_text().into_owned(), value);
        })
        .unwrap();
        prop_assert_eq!(got, object);
    }
}
