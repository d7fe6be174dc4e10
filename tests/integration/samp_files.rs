//! Files in SAMP records (docs/SEMANTICS.md, S910 to S914).

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Value, json};

use crate::common::samp::{self, Rec, T0, member};
use crate::common::shown::{self, Shown};
use crate::common::{Bed, Mount, bytes_read, quote, run, soon};

/// Bytes that are no text.
const AGENDA: &[u8] = b"1. plan\n\x00\xff\r\n2. rest";

/// Returns the entry of a file in a list.
fn entry(name: &str, bytes: &[u8], with_data: bool) -> Value {
    let mut entry = json!({"name": name, "size": bytes.len(), "sha256": samp::sha_hex(bytes, 64)});
    if with_data {
        entry["data"] = json!(BASE64.encode(bytes));
    }
    entry
}

/// Appends a record of `foo` with a list of files, as another program would.
fn append(bed: &Bed, to: &str, n: i64, body: &str, more: &[(&str, Value)]) -> Rec {
    let rec = Rec::new("foo", to, "t", body, T0 + n);
    samp::append_raw(&samp::log(&bed.store, "foo"), rec.line_with(more));
    rec
}

/// Returns the paths in `archive/` of all messages with this text.
#[track_caller]
fn with_text(m: &Mount, text: &str) -> Vec<String> {
    m.ok(&format!("grep -rlF --include='*.txt' -- '{text}' archive; :"))
        .lines()
        .map(str::to_owned)
        .collect()
}

/// Returns the path of the folder of files beside a message.
fn folder(path: &str) -> String {
    path.replace(".txt", ".d")
}

/// Checks that the only message with this text came with the agenda.
#[track_caller]
fn came_with_agenda(m: &Mount, text: &str) {
    soon("the message is there", || with_text(m, text).len() == 1);
    let path = with_text(m, text).remove(0);
    let size = AGENDA.len();
    assert_eq!(
        Shown::parse(&m.cat(&path)).must("Attachments"),
        format!("agenda.md ({size})"),
        "{text}"
    );
    assert_eq!(m.bytes(&format!("{}/agenda.md", folder(&path))), AGENDA);
    m.ok(&format!(
        "cp {}/agenda.md copied && cmp copied {}/agenda.md",
        folder(&path),
        folder(&path)
    )
    .replace("copied", &quote(&m.path("../copied"))));
    assert!(m.cat(&path).ends_with(&format!("{text}\n\n[attached: agenda.md ({size} bytes)]\n")));
}

/// S910, S911: files go by `Attach:`, a composing folder, `msgfs send --attach` and `msgfs sendmail`, to several
/// recipients. Each finds them beside the message, and so does the sender. Programs that know no files show the body.
#[test]
fn s910_every_way_to_attach_a_file() {
    let bed = Bed::new();
    let path = bed.path("agenda.md");
    fs::write(&path, AGENDA).unwrap();
    let file = path.to_str().unwrap();
    let m = bed.mount("bar");
    m.ok(&format!(
        "printf 'To: foo, carol, dan\\nSubject: by header\\nAttach: {file}\\n\\nfirst text\\n' > outbox/x
         mkdir outbox/foo && cp {file} outbox/foo/ && echo 'second text' > outbox/foo/body"
    ));
    let out = bed.msgfs_out(&["--me", "bar", "send", "foo,carol", "--attach", file, "third text"]);
    assert!(out.ok(), "{out:?}");
    let mail = format!(
        "To: foo@samp\nSubject: mail\nMIME-Version: 1.0\nContent-Type: multipart/mixed; boundary=b\n\n--b\n\n\
         fourth text\n--b\nContent-Type: application/octet-stream\nContent-Transfer-Encoding: base64\n\
         Content-Disposition: attachment; filename=\"agenda.md\"\n\n{}\n--b--\n",
        BASE64.encode(AGENDA)
    );
    let out = run(bed.msgfs(["--me", "bar", "sendmail", "-t"]), Some(mail.as_bytes()));
    assert!(out.ok(), "{out:?}");
    soon("all are sent", || samp::read_log(&bed.store, "bar").len() == 7);
    m.ok("ls sent/*/*.d > /dev/null && cat sent/*/*.d/agenda.md > /dev/null");
    for (who, texts) in [
        ("foo", &["first text", "second text", "third text", "fourth text"][..]),
        ("carol", &["first text", "third text"]),
        ("dan", &["first text"]),
    ] {
        let theirs = bed.mount(who);
        for text in texts {
            came_with_agenda(&theirs, text);
        }
    }
    for rec in samp::read_log(&bed.store, "bar") {
        let is_first = rec.get("rcpt").is_none_or(|all| all[0] == rec["to"]);
        assert_eq!(rec["files"], json!([entry("agenda.md", AGENDA, is_first)]));
        assert!(!member(&rec, "thread").contains("attached"));
    }
    let mut reference = bed.command("python3");
    reference.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/peers/samp_reference.py"));
    let all = run(
        {
            reference.arg(&bed.store).args(["all", "foo"]);
            reference
        },
        None,
    )
    .stdout;
    assert_eq!(all.matches("[attached: agenda.md").count(), 4, "{all}");
    let checked = bed.msgfs_out(&["--me", "bar", "check"]);
    assert!(checked.ok(), "{checked:?}");
}

/// S911, S910: a message of files alone has only the lines about them. Each recipient in Bcc has a record with the
/// bytes.
#[test]
fn s911_the_body_names_the_files() {
    let bed = Bed::new();
    let (a, b) = (bed.path("a b.txt"), bed.path("new\nline"));
    fs::write(&a, "x").unwrap();
    fs::write(&b, "").unwrap();
    let m = bed.mount("bar");
    m.ok(&format!(
        "mkdir outbox/foo && cp {} {} outbox/foo/ && : > outbox/foo/body
         printf 'To: foo\\nBcc: carol, dan\\nAttach: {}\\n\\nhidden copies\\n' > outbox/x",
        quote(&a),
        quote(&b),
        a.display()
    ));
    soon("all are sent", || samp::read_log(&bed.store, "bar").len() == 4);
    let all = samp::read_log(&bed.store, "bar");
    let alone = all.iter().find(|rec| rec["files"].as_array().unwrap().len() == 2).unwrap();
    assert_eq!(
        member(alone, "body"),
        "\n[attached: a b.txt (1 bytes)]\n[attached: new\u{240a}line (0 bytes)]"
    );
    assert!(all.iter().all(|rec| rec["files"][0].get("data").is_some()));
    let theirs = bed.mount("carol");
    let path = with_text(&theirs, "hidden copies").remove(0);
    assert_eq!(theirs.cat(&format!("{}/a b.txt", folder(&path))), "x");
}

/// S912: a record with files is at most 1,047,552 bytes long. A longer record is refused with EFBIG; the refusal names
/// the alternatives, and nothing is sent.
#[test]
fn s912_too_large_for_a_record() {
    let bed = Bed::new();
    let m = bed.mount("bar");
    let (big, huge) = (bed.path("big"), bed.path("huge"));
    let bytes: Vec<u8> = (0..784_000u32).map(|n| (n * 7 % 253) as u8).collect();
    fs::write(&big, &bytes).unwrap();
    fs::write(&huge, vec![1u8; 790_000]).unwrap();
    let attach = |file: &Path, text: &str| {
        m.sh(&format!(
            "printf 'Attach: {}\\n\\n%s\\n' \"{text}\" > outbox/foo; echo $?; cat outbox/foo.error; rm -f outbox/foo",
            file.display()
        ))
    };
    let long = "$(head -c 4000 /dev/zero | tr '\\0' x)";
    for out in [attach(&huge, "huge"), attach(&big, long)] {
        assert!(out.stdout.contains("1047552 bytes"), "{out:?}");
        assert!(
            out.stdout.contains("Via: STORE") && out.stdout.contains("name the path"),
            "{out:?}"
        );
    }
    let copied = m.sh(&format!("mkdir outbox/dan; cp {} outbox/dan/; echo $?", huge.display()));
    assert!(
        copied.stdout.starts_with('1') && copied.said().contains("File too large"),
        "{copied:?}"
    );
    let out =
        bed.msgfs_out(&["--me", "bar", "send", "foo", "--attach", huge.to_str().unwrap(), "x"]);
    assert!(!out.ok() && out.said().contains("1047552 bytes"), "{out:?}");
    assert_eq!(samp::read_log(&bed.store, "bar").len(), 0);
    let sent = attach(&big, "fits");
    assert!(sent.stdout.starts_with('0'), "{sent:?}");
    soon("it is sent", || samp::read_log(&bed.store, "bar").len() == 1);
    let line = fs::read(samp::log(&bed.store, "bar")).unwrap();
    assert!(line.len() <= 1_047_552 && line.len() > 1_045_000);
    let theirs = bed.mount("foo");
    let path = with_text(&theirs, "fits").remove(0);
    assert_eq!(theirs.bytes(&format!("{}/big", folder(&path))), bytes);
}

/// S913: bytes that are not there, or do not have the size and SHA-256 of the reader's own record, are missing. The
/// message is shown.
#[test]
fn s913_bytes_that_are_missing() {
    let bed = Bed::new();
    let rcpt = || ("rcpt", json!(["bob", "bar"]));
    let files = |name: &str, bytes: &[u8], data| ("files", json!([entry(name, bytes, data)]));
    let mut recs = Vec::new();
    for (n, (first, mine, wanted)) in [
        (Some(&b"good"[..]), &b"good"[..], "a (4)"),
        (Some(b"evil"), b"good", "a (data missing)"),
        (Some(b"longer"), b"good", "a (data missing)"),
        (None, b"good", "a (data missing)"),
    ]
    .into_iter()
    .enumerate()
    {
        let (n, body) = (n as i64, format!("text {n}"));
        if let Some(first) = first {
            append(&bed, "bob", n, &body, &[rcpt(), files("a", first, true)]);
        }
        recs.push((append(&bed, "bar", n, &body, &[rcpt(), files("a", mine, false)]), wanted));
    }
    let wrong = json!([{"name": "b", "size": 4, "sha256": "0".repeat(64), "data": "Z29vZA=="}]);
    recs.push((append(&bed, "bar", 9, "wrong hash", &[("files", wrong)]), "b (data missing)"));
    let m = bed.mount("bar");
    assert_eq!(
        m.ls("inbox").iter().filter(|name| shown::has_ending(name, "txt")).count(),
        recs.len()
    );
    for (rec, wanted) in &recs {
        let path = with_text(&m, &rec.body).remove(0);
        let text = m.cat(&path);
        assert_eq!(Shown::parse(&text).must("Attachments"), *wanted);
        assert!(text.ends_with(&format!("{}\n", rec.body)));
        assert_eq!(
            m.ls(&folder(&path)).len(),
            usize::from(!wanted.contains("missing")),
            "{wanted}"
        );
    }
    let good = with_text(&m, &recs[0].0.body).remove(0);
    assert_eq!(m.cat(&format!("{}/a", folder(&good))), "good");
    assert!(m.ls("rejected").is_empty());
    let checked = bed.msgfs_out(&["--me", "bar", "check"]);
    assert!(checked.said().contains("another size or SHA-256"), "{checked:?}");
}

/// S914: a hostile list hides nothing and hurts nothing. Names in it are safe, and no two are equal.
#[test]
fn s914_hostile_lists() {
    let bed = Bed::new();
    let good = |name: Value| {
        let mut good = entry("", b"data", true);
        good["name"] = name;
        good
    };
    let names = json!([
        good(json!("../x")),
        good(json!("")),
        good(json!("/etc/passwd")),
        good(json!("x")),
        good(json!("..")),
        good(json!(["x"])),
        good(json!("a\nb\u{1b}[2J")),
        7,
        [],
        "x",
        null
    ]);
    let named = append(&bed, "bar", 0, "names", &[("files", names)]);
    let many: Vec<Value> = (0..10_000).map(|_| good(json!("same"))).collect();
    let many = append(&bed, "bar", 1, "many", &[("files", json!(many))]);
    let mut none = Vec::new();
    let deep = serde_json::from_str::<Value>(&format!("{}{}", "[".repeat(100), "]".repeat(100)));
    for (n, list) in
        [json!({}), json!("x"), json!(7), Value::Null, json!([])].into_iter().enumerate()
    {
        none.push(append(&bed, "bar", 2 + n as i64, "no list", &[("files", list)]));
    }
    let deep = append(&bed, "bar", 20, "deep", &[("files", deep.unwrap())]);
    let mut lies = entry("lies", b"data", true);
    lies["size"] = json!(u64::MAX);
    let spaced = json!([{"name": "s", "size": 4, "sha256": samp::sha_hex(b"data", 64), "data": "ZG F0\nYQ=="}]);
    let lies = append(&bed, "bar", 21, "lies", &[("files", json!([lies]))]);
    let spaced = append(&bed, "bar", 22, "spaced", &[("files", spaced)]);
    let m = bed.mount("bar");
    let count = m.ls("inbox").iter().filter(|name| shown::has_ending(name, "txt")).count();
    assert_eq!((count, m.ls("rejected").len()), (10, 0));
    let mut parts = m.ls(&folder(&named.archived(0)));
    parts.sort();
    assert_eq!(
        parts,
        [
            "attachment",
            "attachment-2",
            "attachment-3",
            "a\u{240a}b\u{241b}[2J",
            "passwd",
            "x",
            "x-2"
        ]
    );
    let header = Shown::parse(&m.cat(&named.archived(0)));
    assert_eq!(header.must("Attachments").matches("(data missing)").count(), 4);
    let dir = folder(&many.archived(0));
    assert_eq!(
        m.ok(&format!("ls {dir} | wc -l; cp {dir}/same-77* ../; cat ../same-777")).trim(),
        "10000\ndata"
    );
    assert_eq!(m.cat(&format!("{dir}/same-10000")), "data");
    for rec in &none {
        let text = m.cat(&rec.archived(0));
        assert_eq!(Shown::parse(&text).get("Attachments"), None);
        assert!(!m.path(folder(&rec.archived(0))).exists());
    }
    for (rec, wanted) in [
        (deep, "attachment (data missing)"),
        (lies, "lies (data missing)"),
        (spaced, "s (data missing)"),
    ] {
        assert_eq!(shown::message(&m, &rec.id).must("Attachments"), wanted);
    }
}

/// S910, S55: a message with files that was accepted is in the log once, however often msgfs is killed.
#[test]
fn s910_kills_lose_no_file() {
    let bed = Bed::new();
    let path = bed.path("agenda.md");
    fs::write(&path, AGENDA.repeat(20_000)).unwrap();
    for round in 0..4 {
        let m = bed.mount("bar");
        let out = m.sh(&format!(
            "printf 'To: foo, carol\\nAttach: {}\\n\\nround {round}\\n' > outbox/x",
            path.display()
        ));
        assert!(out.ok(), "{out:?}");
        m.kill9();
        crate::common::detach(&bed.path("mnt-bar"));
    }
    drop(bed.mount("bar"));
    let mut seen = String::new();
    for rec in samp::read_log(&bed.store, "bar") {
        let _ = write!(seen, "{} {};", member(&rec, "to"), &member(&rec, "body")[..7]);
    }
    let wanted = (0..4).fold(String::new(), |mut all, n| {
        let _ = write!(all, "foo round {n};carol round {n};");
        all
    });
    assert_eq!(seen, wanted);
    let theirs = bed.mount("carol");
    for path in with_text(&theirs, "round ") {
        assert_eq!(theirs.bytes(&format!("{}/agenda.md", folder(&path))), AGENDA.repeat(20_000));
    }
}

/// S930: a second look at `sent.txt` does not read the files of messages to several recipients again. An empty `re` is
/// no answer to anything.
#[test]
fn s930_receipts_do_not_read_files_again() {
    let bed = Bed::new();
    let file = bed.path("agenda");
    fs::write(&file, vec![7; 300_000]).unwrap();
    let m = bed.mount("bar");
    m.ok(&format!("printf 'To: foo, zed\nAttach: {}\n\nread it' > outbox/x", file.display()));
    soon("both have it", || m.cat("sent.txt").matches("stored").count() == 2);
    // The look above may have found the message where it waited.
    m.cat("sent.txt");
    let before = bytes_read(m.pid());
    assert_eq!(m.cat("sent.txt").matches("stored").count(), 2);
    let read = bytes_read(m.pid()) - before;
    assert!(read < 100_000, "{read} bytes were read");
    append(&bed, "bar", 1, "no answer", &[("re", json!(""))]);
    soon("it comes", || m.ls("inbox").len() == 1);
    assert!(!m.ok("cat inbox/*").contains("In-Reply-To"));
}
