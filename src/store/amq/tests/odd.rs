//! Odd files: those that the format's own program delivers and those that it makes dead letters, as `encoding/json` and
//! `time.Parse` of Go decide (docs/formats/amq.md, section 6).

use super::*;

/// Returns a message with more members after the required ones; of two members with one name the last counts.
fn with(members: &str) -> String {
    whole(&format!("{{{NEEDED},{members}}}\n---\nhi\n"))
}

/// Returns a message with this time.
fn at(created: &str) -> String {
    with(&format!(r#""created":"{created}""#))
}

/// Returns a file that begins like a message.
fn whole(rest: &str) -> String {
    format!("---json\n{rest}")
}

const NEEDED: &str =
    r#""id":"m","from":"alice","to":["bob"],"thread":"t","created":"2026-11-22T08:32:10Z""#;

fn nested(levels: usize) -> String {
    with(&format!(r#""x":{}{}"#, "[".repeat(levels), "]".repeat(levels)))
}

#[test]
fn delivered() {
    let header = format!("{{{NEEDED}}}");
    let files = [
        // The lines around the header.
        whole(&format!("{header}\n--- \nhi\n")),
        whole(&format!("{header}\n---\t \nhi\n")),
        whole(&format!("{header}\n  ---\nhi\n")),
        whole(&format!("{header}\n---\r\r\nhi\n")),
        whole(&format!("{header}\n\u{a0}---\u{2003}\nhi\n")),
        whole(&format!("{header}---\nhi\n")),
        whole(&format!("{header} \n\u{b}\n\n \t\n---\nhi\n")),
        whole(&format!("\n\n \t{header}\n---\nhi\n")),
        format!("---json\r\r\n{header}\n---\nhi\n"),
        // Types, and null for missing members.
        with(r#""schema":1"#),
        with(r#""schema":0"#),
        with(r#""schema":-3"#),
        with(r#""schema":-0"#),
        with(r#""schema":9223372036854775807"#),
        with(r#""schema":null"#),
        with(r#""Schema":7"#),
        with(r#""subject":null"#),
        with(r#""refs":null"#),
        with(r#""refs":[null]"#),
        with(r#""refs":["a",null]"#),
        with(r#""refs":[]"#),
        with(r#""labels":[null,"x"]"#),
        with(r#""labels":null"#),
        with(r#""labels":["\ud800"]"#),
        with(r#""context":null"#),
        with(r#""context":{}"#),
        with(r#""context":{"a":1e308,"b":1e-999}"#),
        with(r#""to":null"#),
        with(r#""to":["x","y"],"to":["z",null]"#),
        with(r#""to":[null]"#),
        with(r#""kind":"""#),
        with(r#""kind":null"#),
        with(r#""priority":"""#),
        with(r#""reply_to":null"#),
        // Members that no reader knows may be anything.
        with(r#""x":1e999"#),
        with(r#""x":"\ud800""#),
        with(r#""idem":5"#),
        with(r#""subjects":5"#),
        with(r#""":null"#),
        // Names in another case, and two letters that count as others.
        with(r#""SUBJECT":"s""#),
        with(r#""ſubject":"s""#),
        with(r#""\u212Aind":"todo""#),
        // Ids.
        with(r#""id":" m ""#),
        with(r#""id":"a b""#),
        with(r#""id":"m..md.x""#),
        with(r#""id":"-m""#),
        // Times.
        at("2026-11-22T08:32:10.1234567890123Z"),
        at("2026-11-22T08:32:10,5Z"),
        at("2026-11-22T8:32:10Z"),
        at("9999-12-31T23:59:59Z"),
        at("9999-12-31T23:59:59.999999999-23:59"),
        at("0000-02-29T00:00:00Z"),
        at("2024-02-29T00:00:00+00:00"),
        at("2026-11-22T08:32:10+24:00"),
        at("2026-11-22T08:32:10-00:60"),
        at("2026-11-22T08:32:10-12:34"),
        // Depth: the header itself is the first level.
        nested(9_998),
        nested(9_999),
    ];
    for file in files {
        let read = message::parse(file.as_bytes());
        let shown = file.get(..300).unwrap_or(&file);
        assert_eq!(read.as_ref().err(), None, "{shown}");
        assert_eq!(read.unwrap().message.body, "hi\n", "{shown}");
    }
    let bytes = [b"---json\n{", NEEDED.as_bytes(), b",\"subject\":\"\xff\"}\n---\nhi\n"].concat();
    assert_eq!(message::parse(&bytes).unwrap().message.subject.unwrap(), "\u{fffd}");
}

#[test]
fn dead_letters() {
    let header = format!("{{{NEEDED}}}");
    let files = [
        // The lines around the header.
        format!("---json \n{header}\n---\nhi\n"),
        format!("--- json\n{header}\n---\nhi\n"),
        format!("\n---json\n{header}\n---\nhi\n"),
        format!("---JSON\n{header}\n---\nhi\n"),
        whole(&format!("{header}\n----\nhi\n")),
        whole(&format!("{header}\n--\nhi\n")),
        whole(&format!("{header}\n--- x\nhi\n")),
        whole(&format!("{header}\nx\n---\nhi\n")),
        whole(&format!("{header},\n---\nhi\n")),
        whole(&format!("{header}{header}\n---\nhi\n")),
        whole(&format!("\u{a0}{header}\n---\nhi\n")),
        whole(&format!("{header}\n---")),
        whole(&header),
        // The header itself.
        whole("null\n---\nhi\n"),
        whole("[]\n---\nhi\n"),
        whole("\"x\"\n---\nhi\n"),
        whole("1\n---\nhi\n"),
        whole("{}\n---\nhi\n"),
        // Types, also of a member that a later one replaces.
        with(r#""schema":"1""#),
        with(r#""schema":1.0"#),
        with(r#""schema":1e2"#),
        with(r#""schema":true"#),
        with(r#""schema":{}"#),
        with(r#""schema":[]"#),
        with(r#""schema":9223372036854775808"#),
        with(r#""schema":"1","schema":1"#),
        with(r#""SCHEMA":"1""#),
        with(r#""subject":5,"subject":"s""#),
        with(r#""Subject":[]"#),
        with(r#""ſubject":5"#),
        with(r#""thread":false"#),
        with(r#""refs":"a""#),
        with(r#""refs":{}"#),
        with(r#""refs":[1]"#),
        with(r#""refs":[["a"]]"#),
        with(r#""labels":"x""#),
        with(r#""labels":[{}]"#),
        with(r#""context":[]"#),
        with(r#""context":"x""#),
        with(r#""context":{"a":[1e309]}"#),
        with(r#""context":{"a":[]},"context":1"#),
        with(r#""reply_to":1"#),
        with(r#""reply_project":[]"#),
        with(r#""from_project":{}"#),
        with(r#""priority":1"#),
        with(r#""priority":"Urgent""#),
        with(r#""kind":" todo""#),
        // Senders and kinds.
        with(r#""to":[]"#),
        with(r#""to":["bob",null]"#),
        with(r#""to":[""]"#),
        with(r#""to":["bob "]"#),
        with(r#""to":["-bob"]"#),
        with(r#""from":"""#),
        with(r#""from":"al\u0131ce""#),
        with(r#""thread":"""#),
        with(r#""thread":"t\u00a0""#),
        with(r#""thread":"\n""#),
        with(r#""id":"""#),
        with(r#""id":"  ""#),
        with(r#""id":" .m""#),
        with(r#""id":"m.md ""#),
        with(r#""id":"a\\b""#),
        // Grammar.
        with(r#""x":NaN"#),
        with(r#""x":Infinity"#),
        with(r#""x":01"#),
        with(r#""x":.5"#),
        with(r#""x":+1"#),
        with(r#""x":'a'"#),
        with("\"x\":\"a\tb\""),
        with(r#""x":"\x41""#),
        with(r#""x":1,"#),
        with("/* x */\"x\":1"),
        // Times.
        at("2026-11-22t08:32:10Z"),
        at("2026-11-22T08:32:10z"),
        at("2026-11-22 08:32:10Z"),
        at("2026-11-22T08:32:60Z"),
        at("2026-11-22T08:60:10Z"),
        at("2026-11-22T24:00:00Z"),
        at("2026-11-22T08:32:10+0200"),
        at("2026-11-22T08:32:10+02"),
        at("2026-11-22T08:32:10+25:00"),
        at("2026-11-22T08:32:10+02:61"),
        at("2026-11-22T08:32:10+2:00"),
        at("2026-11-22T08:32:10"),
        at("2026-11-22T08:32Z"),
        at("2026-11-22"),
        at("2026-11-22T08:32:10.Z"),
        at("2026-11-22T08:32:10ZZ"),
        at("2026-11-22T08:32:10Z+00:00"),
        at(" 2026-11-22T08:32:10Z"),
        at("2026-11-22T08:32:10Z "),
        at("2026-11-22T08:2:10Z"),
        at("2026-11-22T:32:10Z"),
        at("2026-1-22T08:32:10Z"),
        at("2026-13-22T08:32:10Z"),
        at("2026-00-22T08:32:10Z"),
        at("2026-02-29T08:32:10Z"),
        at("2026-11-31T08:32:10Z"),
        at("2026-11-00T08:32:10Z"),
        at("26-11-22T08:32:10Z"),
        at("+2026-11-22T08:32:10Z"),
        at("10000-01-01T00:00:00Z"),
        at("20261122T083210Z"),
        nested(10_000),
        nested(20_000),
    ];
    for file in files {
        let shown = file.get(..300).unwrap_or(&file);
        assert!(message::parse(file.as_bytes()).is_err(), "{shown}");
    }
}

#[test]
fn what_is_read_of_odd_files() {
    let read = |file: String| message::parse(file.as_bytes()).unwrap();
    let refs = |refs: &str| read(with(&format!(r#""refs":{refs}"#))).refs;
    assert_eq!(refs(r#"["a",null]"#), ["a"]);
    assert_eq!(refs(r#"["a","b"],"refs":[null,"c"]"#), ["a", "c"]);
    assert_eq!(refs(r#"["a","b"],"REFS":["c"]"#), ["c"]);
    assert_eq!(refs(r#"["a","b"],"refs":[]"#), [""; 0]);
    assert_eq!(read(with(r#""labels":[null,"x"]"#)).parts, [("labels.txt", "x\n".to_owned())]);
    // The context drives no terminal, and means the same.
    let context = read(with("\"context\":{\t\"a\u{9b}31m\":\r\n\"\u{202e}\u{e9}\"}")).parts;
    let shown = "{ \"a\\u009b31m\": \n\"\\u202e\u{e9}\"}\n";
    assert_eq!(context, [("context.json", shown.to_owned())]);
    assert_eq!(read(with(r#""ſubject":"s""#)).message.subject.as_deref(), Some("s"));
    assert_eq!(read(with(r#""subject":"s","subject":null"#)).message.subject.as_deref(), Some("s"));
    let evening = 1_795_291_200_000;
    for (created, millis) in [
        ("2026-11-21T20:00:00.1239567890123Z", evening + 123),
        ("2026-11-21T20:00:00,5Z", evening + 500),
        ("2026-11-21T20:00:00.05Z", evening + 50),
        ("2026-11-22T8:00:00Z", evening + 12 * 3_600_000),
        ("2026-11-21T20:00:00+24:00", evening - 24 * 3_600_000),
        ("2026-11-21T20:00:00-01:60", evening + 2 * 3_600_000),
        ("1969-12-31T23:59:59.5Z", -500),
        ("9999-12-31T23:59:59.999Z", 253_402_300_799_999),
        ("0000-02-29T00:00:00Z", -62_162_121_600_000),
    ] {
        assert_eq!(read(at(created)).message.time.millis(), millis, "{created}");
    }
}

proptest! {
    #[test]
    fn any_time_is_read_or_refused(text in "[0-9T:Z.,+ -]{0,40}|2026-11-22T[0-9:.,Z+-]{5,30}") {
        let _ = super::super::go_time::parse(&text);
    }
}
