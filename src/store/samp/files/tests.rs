use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::model::{Draft, Message, Timestamp};
use crate::store::samp::record::{NewSampRecord, build_line};
use crate::store::testing::{Book, Key};
use crate::store::{self, Kind, PartContent, PrepareContext, Store, StoreSpec};

fn open(dir: &Path, me: &str) -> Arc<dyn Store> {
    let spec = StoreSpec {
        may_create: true,
        name: "samp".into(),
        kind: Kind::Samp,
        dir: dir.to_owned(),
        me: me.into(),
        ..StoreSpec::default()
    };
    store::open(&spec).unwrap()
}

fn new_file(name: &str, bytes: &[u8]) -> NewSampFile {
    NewSampFile {
        name: name.to_owned(),
        size: bytes.len() as u64,
        sha256: encode_hex(&Sha256::digest(bytes)),
        data: BASE64.encode(bytes),
    }
}

/// Returns the line of a record from `foo`.
fn line(to: &str, rcpt: &[&str], files: &[NewSampFile]) -> String {
    let time = Timestamp::from_secs(1_700_000_000);
    let record = NewSampRecord {
        time,
        from: "foo",
        to,
        thread: "t",
        body: "hi",
        rcpt,
        files,
        ..NewSampRecord::default()
    };
    build_line(&record, &Key::new(1)).0
}

/// Returns a record from `foo` to `bar` with this member `files`.
fn line_with_list(list: &str) -> String {
    format!(
        r#"{{"ts":1700000000,"from":"foo","to":"bar","thread":"t","body":"hi","files":{list}}}"#
    )
}

/// Returns the message and the parts that `me` finds in a log of these lines.
fn read_as(me: &str, lines: &[String]) -> (Message, Vec<Result<Vec<u8>, StoreError>>) {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("log-foo.jsonl"), lines.join("\n") + "\n").unwrap();
    let store = open(dir.path(), me);
    let book = Book::scanned(&*store);
    let kept = book.messages.values().find(|kept| kept.to_me).expect("a message to me");
    assert!(kept.has_parts && kept.plain_length.is_none());
    let message = store.read_record(&kept.at).unwrap().message;
    let open = |file: &Attachment| {
        let part = store.facets().parts.unwrap().open_part(&kept.at, &file.name)?;
        let PartContent::Bytes(bytes) = part else { panic!("no file of the store") };
        Ok(bytes.to_vec())
    };
    let parts = message.attachments.iter().map(open).collect();
    (message, parts)
}

/// Returns the files as a header shows them.
fn shown(message: &Message) -> Vec<String> {
    let show = |a: &Attachment| match &a.withheld {
        Some(why) => format!("{} ({why})", a.name),
        None => format!("{} ({})", a.name, a.size),
    };
    message.attachments.iter().map(show).collect()
}

#[test]
fn a_list_that_is_too_long_is_cut() {
    let file = format!("{{\"name\":\"a\",\"size\":1}}{}", ",0".repeat(MOST_FILES - 2));
    let list = format!("[{file},{{\"name\":\"last\"}},{{\"name\":\"left out\"}},0]");
    let listed = parse_list(&list).unwrap();
    let names = [&listed[0], &listed[MOST_FILES - 1]].map(|file| file.name.as_deref());
    assert_eq!((listed.len(), names), (MOST_FILES, [Some("a"), Some("last")]));
    assert!(find_list_fault(&list).unwrap().contains("not shown"));
}

#[test]
fn the_first_record_has_the_bytes_and_all_others_the_list() {
    let rcpt = ["bob", "bar", "carol"];
    let files = [new_file("agenda.md", b"one\ntwo\n"), new_file("empty", b"")];
    let lines = rcpt.map(|to| line(to, &rcpt, &files));
    assert!(lines[0].contains(r#""files": [{"name": "agenda.md", "size": 8, "sha256": ""#));
    assert_eq!(lines.each_ref().map(|line| line.contains("\"data\"")), [true, false, false]);
    assert!(line("bar", &[], &files).contains("\"data\""));
    for me in ["bob", "bar", "carol"] {
        let (message, parts) = read_as(me, &lines);
        assert_eq!(shown(&message), ["agenda.md (8)", "empty (0)"], "{me}");
        let parts: Vec<_> = parts.into_iter().map(Result::unwrap).collect();
        assert_eq!(parts, [b"one\ntwo\n".to_vec(), Vec::new()]);
    }
}

#[test]
fn a_signature_covers_the_list_and_the_bytes() {
    let rcpt = ["bob", "bar"];
    let files = [new_file("a\"\u{e9}\n", b"text")];
    for to in rcpt {
        let good = line(to, &rcpt, &files);
        let dir = tempfile::tempdir().unwrap();
        let valid = |line: &str| {
            std::fs::write(dir.path().join("log-foo.jsonl"), format!("{line}\n")).unwrap();
            let book = Book::scanned(&*open(dir.path(), "bar"));
            book.messages.values().next().unwrap().valid()
        };
        assert_eq!(valid(&good), Some(true));
        assert_eq!(valid(&good.replace("\"size\": 4", "\"size\": 5")), Some(false));
        let data = BASE64.encode("text");
        let other = good.replace(&data, &BASE64.encode("tent"));
        assert_eq!(valid(&other), Some(other == good), "{to}");
    }
}

#[test]
fn bytes_count_if_they_fit_the_readers_own_list() {
    let rcpt = ["bob", "bar"];
    let (good, other) = ([new_file("a", b"good")], [new_file("a", b"evil")]);
    let mine = line("bar", &rcpt, &good);
    let missing = ["a (data missing)"];
    for (first, wanted) in [
        (line("bob", &rcpt, &good), &["a (4)"]),
        (line("bob", &rcpt, &other), &missing),
        (line("bob", &rcpt, &[]), &missing),
        ("{}".to_owned(), &missing),
        (line("bob", &rcpt, &good).replace("\"body\": \"hi\"", "\"body\": \"ho\""), &missing),
        (line("bob", &rcpt, &good).replace("{\"name\"", "[], {\"name\""), &missing),
    ] {
        let (message, parts) = read_as("bar", &[first.clone(), mine.clone()]);
        assert_eq!(shown(&message), wanted, "{first}");
        assert_eq!(message.body, "hi");
        assert_eq!(parts[0].is_ok(), wanted[0] == "a (4)");
    }
}

#[test]
fn the_first_record_is_found_behind_others_and_within_bounds() {
    let rcpt = ["bob", "bar"];
    let bytes: Vec<u8> = (0..700_000u32).map(|n| (n % 251) as u8).collect();
    let files = [new_file("big", &bytes)];
    let [first, mine] = rcpt.map(|to| line(to, &rcpt, &files));
    // An answer to the first record names its id too.
    let id = first.get(8..24).unwrap();
    let answer = format!(
        r#"{{"ts":1700000001,"from":"foo","to":"bob","thread":"t","body":"again","re":"{id}"}}"#
    );
    let far = answer.replace("again", &"x".repeat(500 << 10));
    for (lines, found) in [
        (vec![&first, &mine], true),
        (vec![&first, &answer, &answer, &mine], true),
        (vec![&answer, &mine, &answer, &first], true),
        (vec![&first, &far, &mine], false),
        (vec![&mine], false),
    ] {
        let lines: Vec<String> = lines.into_iter().cloned().collect();
        let (message, parts) = read_as("bar", &lines);
        let wanted = if found { "big (700000)" } else { "big (data missing)" };
        assert_eq!(shown(&message), [wanted]);
        assert_eq!(parts[0].as_ref().ok() == Some(&bytes), found);
    }
}

#[test]
fn hostile_lists_hurt_nothing_and_hide_nothing() {
    let good = new_file("x", b"data");
    let entry = |more: &str| format!(r#"{{"size":4,"sha256":"{}",{more}}}"#, good.sha256);
    let data = BASE64.encode("data");
    for (list, wanted) in [
        (format!("[{}]", entry(&format!(r#""name":"../x","data":"{data}""#))), "x (4)"),
        (format!("[{}]", entry(&format!(r#""name":"","data":"{data}""#))), "attachment (4)"),
        (format!("[{}]", entry(&format!(r#""name":7,"data":"{data}""#))), "attachment (4)"),
        (format!("[{}]", entry(r#""name":"x","data":"ZGF0YQ== ""#)), "x (data missing)"),
        (format!("[{}]", entry(r#""name":"x","data":"ZGF0\nYQ==""#)), "x (data missing)"),
        (format!("[{}]", entry(r#""name":"x","data":"%%%%YQ==""#)), "x (data missing)"),
        (format!("[{}]", entry(r#""name":"x","data":"ZGF0YR==""#)), "x (data missing)"),
        (format!("[{}]", entry(r#""name":"x","data":null"#)), "x (data missing)"),
        (format!("[{}]", entry(r#""name":"x""#)), "x (data missing)"),
        (
            format!("[{}]", entry(&format!(r#""name":"x","size":5,"data":"{data}""#))),
            "x (data missing)",
        ),
        (
            format!("[{}]", entry(&format!(r#""name":"x","size":-4,"data":"{data}""#))),
            "x (data missing)",
        ),
        (
            format!(
                "[{}]",
                entry(&format!(r#""name":"x","size":18446744073709551615,"data":"{data}""#))
            ),
            "x (data missing)",
        ),
        (
            format!("[{}]", entry(&format!(r#""name":"x","sha256":[],"data":"{data}""#))),
            "x (data missing)",
        ),
        ("[7]".to_owned(), "attachment (data missing)"),
        (format!("[{}{}]", "[".repeat(5000), "]".repeat(5000)), "attachment (data missing)"),
        (
            format!("[{}]", entry(&format!(r#""name":"x","more":{{"name":"y"}},"data":"{data}""#))),
            "x (4)",
        ),
    ] {
        let (message, parts) = read_as("bar", &[line_with_list(&list)]);
        assert_eq!(shown(&message), [wanted], "{list}");
        assert_eq!((parts.len(), message.body.as_str()), (1, "hi"));
    }
    for none in ["{}", "null", "7", "\"x\"", "[]", "[ ]", r#"{"name":"x"}"#] {
        let line = line_with_list(none);
        assert!(
            record::parse(&line, &mut SampScratch::default()).unwrap().files.is_none(),
            "{none}"
        );
    }
    let many = (0..2_000).fold(String::new(), |mut all, n| {
        let _ = write!(
            all,
            "{}{}",
            if n == 0 { "" } else { "," },
            entry(&format!(r#""name":"a","data":"{data}""#))
        );
        all
    });
    let (message, parts) = read_as("bar", &[line_with_list(&format!("[{many}]"))]);
    assert_eq!((message.attachments[1_999].name.as_str(), parts.len()), ("a-2000", 2_000));
    assert!(parts.into_iter().all(|part| part.unwrap() == b"data"));
}

#[test]
fn a_check_names_faults() {
    let good = new_file("x", b"data");
    let lists = [line("bar", &[], std::slice::from_ref(&good))];
    let list = |line: &String| {
        record::parse(line, &mut SampScratch::default()).unwrap().files.and_then(find_list_fault)
    };
    assert_eq!(list(&lists[0]), None);
    let fault = |from: &str, to: &str| list(&lists[0].replace(from, to)).unwrap();
    assert!(fault("\"name\"", "\"nam\"").contains("file 1 of the member \"files\" has no name"));
    assert!(fault("\"size\"", "\"siz\"").ends_with("has no size"));
    assert!(fault("\"sha256\"", "\"sha\"").ends_with("has no sha256"));
    assert!(fault("\"size\": 4", "\"size\": 5").ends_with("another size or SHA-256"));
}

/// Escapes count, and the body alone may be far below the limit.
#[test]
fn a_line_that_stops_a_reader_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path(), "foo");
    let signer = Key::new(1);
    let with = PrepareContext::new(Timestamp::from_secs(1_700_000_000), &signer);
    for (letter, is_refused) in [("x", false), ("\u{1b}", true)] {
        let body = letter.repeat(3 << 20);
        let draft = Draft { to: vec!["bob".to_owned()], body, ..Draft::default() };
        let made = store.require_appender().unwrap().prepare_records(&draft, &with);
        assert_eq!(matches!(made, Err(StoreError::TooLarge(_))), is_refused, "{letter:?}");
    }
}

#[test]
fn a_draft_with_files_makes_records_or_is_too_large() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path(), "foo");
    let signer = Key::new(1);
    let with = PrepareContext::new(Timestamp::from_secs(1_700_000_000), &signer);
    let prepare = |to: &[&str], size: usize, name: &str| {
        let path = dir.path().join("copy");
        std::fs::write(&path, vec![b'x'; size]).unwrap();
        let attachments = vec![DraftAttachment {
            name: name.to_owned(),
            path,
            size: size as u64,
            sha256: String::new(),
        }];
        let to = to.iter().map(|to| (*to).to_owned()).collect();
        let draft = Draft { to, body: "see there".to_owned(), attachments, ..Draft::default() };
        store.require_appender().unwrap().prepare_records(&draft, &with)
    };
    let made = prepare(&["bob", "bar"], 58, "agenda\n.md").unwrap();
    assert!(
        made.iter()
            .all(|record| record.files.is_empty() && record.thread == "2023-11-14-foo-see-there")
    );
    for record in &made {
        let message = store.require_appender().unwrap().preview_message(record).unwrap();
        assert_eq!(message.body, "see there\n\n[attached: agenda\u{240a}.md (58 bytes)]");
        assert_eq!(shown(&message), ["agenda\u{240a}.md (58)"]);
    }
    let most = (1..1000)
        .map(|n| 785_664 - 3 * n)
        .find(|size| prepare(&["bob"], *size, "x").is_ok())
        .unwrap();
    let longest = prepare(&["bob"], most, "x").unwrap().remove(0).bytes.len() as u64 + 1;
    assert!((MAX_RECORD_WITH_FILES - 7..=MAX_RECORD_WITH_FILES).contains(&longest), "{longest}");
    for size in [most + 3, 785_664, 2 << 20] {
        let e = prepare(&["bob"], size, "x").unwrap_err();
        assert!(matches!(e, StoreError::TooLarge(_)) && e.to_string().contains("1047552"), "{e}");
    }
}

#[test]
fn a_retry_has_the_text_without_the_lines_about_files() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path(), "foo");
    let is_retry =
        |sent: &str, draft: &str| store.require_appender().unwrap().is_retry_of(sent, draft);
    let sent = "hi\nthere\n\n[attached: a (1 bytes)]\n[attached: b (2 bytes)]";
    assert!(is_retry(sent, "hi\nthere\n") && is_retry(sent, "[thread:t] hi\nthere"));
    assert!(is_retry("\n[attached: a (1 bytes)]", ""));
    assert!(!is_retry(sent, "hi") && !is_retry("hi", "hi") && !is_retry(sent, "there"));
}

proptest! {
    #[test]
    fn what_is_written_is_read(
        files in proptest::collection::vec(("\\PC{0,12}", proptest::collection::vec(any::<u8>(), 0..200)), 1..5)
    ) {
        let new: Vec<NewSampFile> = files.iter().map(|(name, bytes)| new_file(name, bytes)).collect();
        let rcpt = ["bob", "bar"];
        let first = line("bob", &rcpt, &new);
        let mine = line("bar", &rcpt, &new);
        for text in [&first, &mine] {
            let parsed = record::parse(text, &mut SampScratch::default()).unwrap();
            let listed = parse_list(parsed.files.unwrap()).unwrap();
            let received = receive_files(&listed, || Some(first.clone()));
            prop_assert_eq!(received.len(), files.len());
            for ((got, listed), (name, bytes)) in received.iter().zip(&listed).zip(&files) {
                prop_assert_eq!(listed.name.as_deref(), Some(name.as_str()));
                prop_assert_eq!(got.bytes.as_deref(), Some(bytes.as_slice()));
            }
        }
    }

    #[test]
    fn any_list_is_read_without_harm(list in "(\\[|\\]|\\{|\\}|,|:|\"name\"|\"data\"|\"size\"|\"sha256\"|\"x\"|4|null|\"ZGF0YQ==\"){0,40}") {
        if let Some(listed) = parse_list(&list) {
            let received = receive_files(&listed, || Some(list.clone()));
            prop_assert_eq!(received.len(), listed.len());
            prop_assert!(received.iter().all(|file| file.bytes.is_none() == file.shown.withheld.is_some()));
        }
        let _ = find_list_fault(&list);
    }
}
