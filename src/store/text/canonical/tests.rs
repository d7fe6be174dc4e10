use proptest::prelude::*;

use super::super::json::tests::any_json;
use super::super::strict_json::MAX_DEPTH;
use super::*;

fn canonical(text: &str) -> Option<String> {
    let line = format!("{{\"k\":{text}}}");
    let bytes = signed_bytes(&line)?;
    let text = String::from_utf8(bytes).unwrap();
    Some(text.strip_prefix("samp-sig-v1\n{\"k\":").unwrap().strip_suffix('}').unwrap().to_owned())
}

#[test]
fn numbers_as_python_prints_them() {
    let table = [
        ("-0", "0"),
        ("007e0", ""),
        ("123456789012345678901234567890", "123456789012345678901234567890"),
        ("-0.0", "-0.0"),
        ("0e5", "0.0"),
        ("1.0", "1.0"),
        ("0.10", "0.1"),
        ("1.7e9", "1700000000.0"),
        ("1700000000.25", "1700000000.25"),
        ("1E15", "1000000000000000.0"),
        ("9999999999999998.0", "9999999999999998.0"),
        ("1e16", "1e+16"),
        ("12345678901234567890.0", "1.2345678901234567e+19"),
        ("1e22", "1e+22"),
        ("-1.5e300", "-1.5e+300"),
        ("0.0001", "0.0001"),
        ("0.00012345", "0.00012345"),
        ("0.00001", "1e-05"),
        ("0.0000123", "1.23e-05"),
        ("0.0000001", "1e-07"),
        ("5e-324", "5e-324"),
        ("1e-400", "0.0"),
        ("-1e-400", "-0.0"),
        ("1.7976931348623157e308", "1.7976931348623157e+308"),
        ("1e400", "Infinity"),
        ("-1e400", "-Infinity"),
        ("NaN", "NaN"),
        ("-Infinity", "-Infinity"),
        ("9007199254740993.0", "9007199254740992.0"),
        ("5.684341886080801e-14", "5.684341886080801e-14"),
        // Two shortest forms are equally near: the even one wins.
        ("1801514316094494.3", "1801514316094494.2"),
        ("2244273033561874.75", "2244273033561874.8"),
        ("2.2250738585072011e-308", "2.225073858507201e-308"),
    ];
    for (text, expected) in table {
        assert_eq!(canonical(text).unwrap_or_default(), expected, "{text}");
    }
}

#[test]
fn strings_as_python_prints_them() {
    let all = (0..0x20).map(|b| format!("\\u{b:04X}")).collect::<Vec<_>>().concat();
    let expected: String = (0..0x20u8)
        .map(|b| match b {
            8 => "\\b".to_owned(),
            9 => "\\t".to_owned(),
            10 => "\\n".to_owned(),
            12 => "\\f".to_owned(),
            13 => "\\r".to_owned(),
            b => format!("\\u{b:04x}"),
        })
        .collect();
    assert_eq!(canonical(&format!("\"{all}\"")).unwrap(), format!("\"{expected}\""));
    assert_eq!(
        canonical("\"\\/\\u0022\\u005c\\u007f\\u2028\\u00e9\""),
        Some("\"/\\\"\\\\\u{7f}\u{2028}\u{e9}\"".to_owned())
    );
    assert_eq!(canonical("\"\\ud800\""), None);
    assert_eq!(canonical("[\"\\ud800\"]"), None);
    assert_eq!(canonical("{\"\\ud800\":1}"), None);
}

#[test]
fn compounds_are_sorted_at_every_depth() {
    let table = [
        ("[ ]", "[]"),
        ("{ }", "{}"),
        ("[[],{},[ 1 , 2.50 ],\"[\",\"{\",0]", "[[],{},[1,2.5],\"[\",\"{\",0]"),
        ("{\"b\":1,\"a\":{\"z\":0,\"y\":[]}}", "{\"a\":{\"y\":[],\"z\":0},\"b\":1}"),
        (
            "[{\"b\":{},\"a\":[]},{\"d\":null,\"c\":true}]",
            "[{\"a\":[],\"b\":{}},{\"c\":true,\"d\":null}]",
        ),
        // Keys are sorted by code point, not by UTF-16 unit, and the last of equal keys wins.
        (
            "{\"\u{1f600}\":1,\"\u{ffff}\":2,\"\":3,\"Z\":4,\"a\":5}",
            "{\"\":3,\"Z\":4,\"a\":5,\"\u{ffff}\":2,\"\u{1f600}\":1}",
        ),
        ("{\"a\":1,\"b\":2,\"\\u0061\":3,\"b\":[4]}", "{\"a\":3,\"b\":[4]}"),
        // Only the record's own body is normalised.
        ("{\"body\":\"e\u{301}\"}", "{\"body\":\"e\u{301}\"}"),
    ];
    for (text, expected) in table {
        assert_eq!(canonical(text).as_deref(), Some(expected), "{text}");
    }
}

#[test]
fn depth_is_limited() {
    let nested = |n: usize| "[".repeat(n) + &"]".repeat(n);
    assert_eq!(canonical(&nested(MAX_DEPTH)), Some(nested(MAX_DEPTH)));
    assert_eq!(canonical(&nested(MAX_DEPTH + 1)), None);
    assert_eq!(canonical(&nested(1_000_000)), None);
}

/// A line of 64 MiB would otherwise cost 16 times its length in memory.
#[test]
fn values_are_limited() {
    // The list itself is a value.
    let list = |n: usize| format!("[{}0]", "0,".repeat(n - 2));
    assert_eq!(canonical(&list(MAX_TOKENS)), Some(list(MAX_TOKENS)));
    assert_eq!(canonical(&list(MAX_TOKENS + 1)), None);
    let object = |n: usize| format!("{{{}\"\":0}}", "\"\":0,".repeat(n - 1));
    assert_eq!(signed_bytes(&object(MAX_TOKENS)).unwrap(), b"samp-sig-v1\n{\"\":0}");
    assert_eq!(signed_bytes(&object(MAX_TOKENS + 1)), None);
    assert_eq!(canonical(&object(MAX_TOKENS / 2)), None, "keys count, and the object");
}

#[test]
fn nested_sorting_is_near_linear() {
    // Each level needs sorting. Moving text at each would move 10^11 bytes.
    let n = MAX_DEPTH / 2;
    let pad = "x".repeat(2000);
    let line = format!("{{\"b\":\"{pad}\",\"a\":").repeat(n) + "1" + &"}".repeat(n);
    let expected = "{\"a\":".repeat(n) + "1" + &format!(",\"b\":\"{pad}\"}}").repeat(n);
    let start = std::time::Instant::now();
    assert!(canonical(&line).unwrap() == expected);
    assert!(start.elapsed().as_secs() < 10);
}

#[test]
fn signatures_cover_all_but_sig() {
    let line = "{\"ts\":1,\"sig\":\"x\",\"body\":\"e\\u0301\",\"x\":\"e\u{301}\",\"a\":0,\"\\u0073ig\":2,\"a\":1}";
    let expected = "samp-sig-v1\n{\"a\":1,\"body\":\"\u{e9}\",\"ts\":1,\"x\":\"e\u{301}\"}";
    assert_eq!(signed_bytes(line).unwrap(), expected.as_bytes());
    assert_eq!(signed_bytes("{}").unwrap(), b"samp-sig-v1\n{}");
    assert_eq!(signed_bytes("{\"sig\":\"\\ud800\"}").unwrap(), b"samp-sig-v1\n{}");
    assert_eq!(signed_bytes("{\"a\":\"\\ud800\",\"a\":1}").unwrap(), b"samp-sig-v1\n{\"a\":1}");
    for none in ["[]", "{\"body\":1}", "{\"a\":\"\\ud800\"}", "{\"\\udc00\":1}", "{"] {
        assert_eq!(signed_bytes(none), None, "{none}");
    }
}

/// Returns canonical JSON the slow way.
fn naive(value: &serde_json::Value) -> String {
    use serde_json::Value::{Array, Object};
    match value {
        Array(items) => {
            let items: Vec<_> = items.iter().map(naive).collect();
            format!("[{}]", items.join(","))
        }
        Object(members) => {
            let mut members: Vec<_> = members.iter().collect();
            members.sort_by_key(|(key, _)| key.chars().collect::<Vec<_>>());
            let members: Vec<_> = members
                .iter()
                .map(|(k, v)| format!("{}:{}", serde_json::Value::from(k.as_str()), naive(v)))
                .collect();
            format!("{{{}}}", members.join(","))
        }
        scalar => scalar.to_string(),
    }
}

/// Returns a text with every character as an escape.
fn escaped(text: &str) -> String {
    text.encode_utf16().map(|unit| format!("\\u{unit:04X}")).collect::<Vec<_>>().concat()
}

proptest! {
    #[test]
    fn agrees_with_a_naive_implementation(value in any_json()) {
        prop_assert_eq!(canonical(&value.to_string()), Some(naive(&value)));
        let pretty = serde_json::to_string_pretty(&value).unwrap();
        let canonical_text = canonical(&pretty).unwrap();
        prop_assert_eq!(&canonical_text, &naive(&value));
        // It is its own canonical form.
        prop_assert_eq!(canonical(&canonical_text), Some(canonical_text));
    }

    #[test]
    fn spelling_does_not_matter(body in any::<String>(), thread in any::<String>()) {
        let plain = serde_json::json!({ "body": body, "thread": thread }).to_string();
        let free = format!("{{\"thread\":\"{}\",\"body\":\"{}\"}}", escaped(&thread), escaped(&body));
        let signed = signed_bytes(&plain).unwrap();
        prop_assert_eq!(signed_bytes(&free).unwrap(), signed.clone());
        let body = pytext::to_nfc(&body).into_owned();
        let expected = naive(&serde_json::json!({ "body": body, "thread": thread }));
        prop_assert_eq!(signed, format!("{SIGNATURE_CONTEXT}{expected}").into_bytes());
    }

    #[test]
    fn floats_read_back(bits: u64) {
        let value = f64::from_bits(bits);
        prop_assume!(value.is_finite());
        let mut text = String::new();
        number::push_double(&mut text, value, NumberStyle::Python);
        prop_assert_eq!(text.parse::<f64>().unwrap().to_bits(), bits);
        prop_assert!(text.contains('.') || text.contains('e'));
        let mut again = String::new();
        number::push_double(&mut again, text.parse().unwrap(), NumberStyle::Python);
        prop_assert_eq!(text, again);
    }

    #[test]
    fn never_panics(line in "\\{?[\\{\\}\\[\\],:\"\\\\ud8c0a1eE.+-]{0,60}\\}?") {
        let _ = signed_bytes(&line);
    }
}
