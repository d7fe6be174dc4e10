use proptest::prelude::*;
use serde_json::Value as Json;

use super::*;

fn print(text: &str, profile: JsonProfile) -> String {
    printed(&JsonTape::parse(text).unwrap(), profile).unwrap()
}

fn printed(tape: &JsonTape<'_>, profile: JsonProfile) -> Option<String> {
    let mut out = String::new();
    tape.print_as(&mut out, profile, |_| ()).map(|()| out)
}

/// Returns values that every profile prints alike: ASCII without DEL, small integers, no keys of digits.
fn plain_json() -> impl Strategy<Value = Json> {
    let leaf = prop_oneof![
        Just(Json::Null),
        any::<bool>().prop_map(Json::from),
        any::<i32>().prop_map(Json::from),
        "[ -~\\n\\t\u{1}]{0,12}".prop_map(Json::from),
    ];
    leaf.prop_recursive(4, 40, 6, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..6).prop_map(Json::from),
            object(inner),
        ]
    })
}

fn object(inner: impl Strategy<Value = Json>) -> impl Strategy<Value = Json> {
    proptest::collection::btree_map("[a-zA-Z_ \\n\"][ -~]{0,6}", inner, 0..6)
        .prop_map(|map| Json::Object(map.into_iter().collect()))
}

#[test]
fn each_program_has_its_own_text() {
    let text = "{\"b\":\"\u{7f}\u{e9}\u{1f600}/\\u0001\",\"a\":1.0,\"10\":1,\"9\":2,\"\u{ff5e}\":3,\"\u{10000}\":4}";
    let raw = "\"b\":\"\u{7f}\u{e9}\u{1f600}/\\u0001\"";
    let jq = "\"b\":\"\\u007f\u{e9}\u{1f600}/\\u0001\"";
    let tail = "\"\u{10000}\":4,\"\u{ff5e}\":3}";
    assert_eq!(print(text, JsonProfile::Jcs), format!("{{\"10\":1,\"9\":2,\"a\":1,{raw},{tail}"));
    assert_eq!(print(text, JsonProfile::Js), format!("{{\"9\":2,\"10\":1,\"a\":1,{raw},{tail}"));
    let tail = "\"\u{ff5e}\":3,\"\u{10000}\":4}";
    assert_eq!(print(text, JsonProfile::Jq16), format!("{{\"10\":1,\"9\":2,\"a\":1,{jq},{tail}"));
    assert_eq!(print(text, JsonProfile::Jq17), format!("{{\"10\":1,\"9\":2,\"a\":1.0,{jq},{tail}"));
    assert_eq!(
        print(text, JsonProfile::Python),
        "{\"10\":1,\"9\":2,\"a\":1.0,\"b\":\"\\u007f\\u00e9\\ud83d\\ude00/\\u0001\",\
         \"\\uff5e\":3,\"\\ud800\\udc00\":4}"
    );
    let profiles: Vec<JsonProfile> = JsonTape::parse(text).unwrap().differing_profiles().collect();
    assert_eq!(profiles.len(), 5);
}

#[test]
fn javascript_loses_proto_and_we_do_not() {
    let tape = JsonTape::parse(r#"{"__proto__":{"x":1},"1":2}"#).unwrap();
    assert!(tape.differing_profiles().all(|p| p != JsonProfile::Js));
}

#[test]
fn keys_that_are_array_indices() {
    for (key, index) in [
        ("0", Some(0)),
        ("10", Some(10)),
        ("4294967294", Some(4_294_967_294)),
        ("4294967295", None),
        ("01", None),
        ("-1", None),
        ("1a", None),
        ("", None),
    ] {
        assert_eq!(array_index(key), index, "{key}");
    }
}

#[test]
fn deep_nesting_is_bounded_and_cheap() {
    let deep = |n: usize| format!("{}{}", "[".repeat(n), "]".repeat(n));
    assert_eq!(print(&deep(MAX_DEPTH), JsonProfile::Jcs), deep(MAX_DEPTH));
    assert!(JsonTape::parse(&deep(MAX_DEPTH + 1)).is_none());
}

proptest! {
    #[test]
    fn plain_json_is_printed_as_serde_prints_it(value in plain_json()) {
        // serde_json keeps objects sorted by key.
        let expected = value.to_string();
        let pretty = serde_json::to_string_pretty(&value).unwrap();
        let tape = JsonTape::parse(&pretty).unwrap();
        prop_assert_eq!(tape.differing_profiles().collect::<Vec<_>>(), [JsonProfile::Jcs]);
        for profile in
            [JsonProfile::Jcs, JsonProfile::Jq16, JsonProfile::Jq17, JsonProfile::Js, JsonProfile::Python]
        {
            prop_assert_eq!(printed(&tape, profile).unwrap(), expected.clone());
        }
    }

    #[test]
    fn every_profile_means_the_same(value in plain_json(), text in any::<String>()) {
        let value = serde_json::json!({ "message": text, "context": value, "\u{e9}\u{7f}": 1.5 });
        let source = value.to_string();
        let tape = JsonTape::parse(&source).unwrap();
        for profile in
            [JsonProfile::Jcs, JsonProfile::Jq16, JsonProfile::Jq17, JsonProfile::Js, JsonProfile::Python]
        {
            let printed = printed(&tape, profile).unwrap();
            prop_assert_eq!(&serde_json::from_str::<Json>(&printed).unwrap(), &value);
        }
    }

    #[test]
    fn nothing_panics(text in "[\\[\\]{}\":,a0.e+ \\\\u\u{a0}ntf-]{0,40}") {
        if let Some(tape) = JsonTape::parse(&text) {
            for profile in tape.differing_profiles() {
                let _ = printed(&tape, profile);
            }
        }
    }
}
