//! Defects that were found and mended. Each test is named after its defect.

use crate::common::{Bed, samp};

const T0: i64 = 1_777_052_523;

fn to_and_body(bed: &Bed) -> Vec<(String, String, String)> {
    let text = std::fs::read_to_string(samp::log(&bed.store, "bar")).unwrap_or_default();
    let field = |v: &serde_json::Value, name: &str| v[name].as_str().unwrap_or("").to_owned();
    text.lines()
        .map(|l| serde_json::from_str(l).unwrap())
        .map(|v: serde_json::Value| (field(&v, "to"), field(&v, "thread"), field(&v, "body")))
        .collect()
}

fn sent(to: &str, thread: &str, body: &str) -> (String, String, String) {
    (to.to_owned(), thread.to_owned(), body.to_owned())
}

/// S59: a refused draft gives nothing to a draft of the same name elsewhere.
#[test]
fn s59_a_kept_draft_keeps_to_its_place() {
    let bed = Bed::new();
    samp::append(&bed.store, "foo", "bar", "A", "one", T0);
    samp::append(&bed.store, "baz", "bar", "B", "two", T0 + 1);
    let m = bed.mount("bar");
    m.sh("printf '\\xff\\n' > outbox/new; printf '\\xff\\n' > threads/A/new");
    m.ok("echo 'to baz' > threads/B/new; ls sent > /dev/null");
    assert_eq!(to_and_body(&bed), [sent("baz", "B", "to baz")]);
    m.ok("echo 'to foo' > threads/A/new; ls sent > /dev/null");
    assert_eq!(to_and_body(&bed)[1], sent("foo", "A", "to foo"));
    assert_eq!(m.ls("outbox"), ["new", "new.error"]);
}

/// S49: a draft that is renamed while it is open goes where its new name says.
#[test]
fn s49_renamed_while_open() {
    let bed = Bed::new();
    let m = bed.mount("bar");
    m.ok(
        "exec 5> outbox/foo; echo x >&5; mv outbox/foo outbox/qux; exec 5>&-; ls sent > /dev/null",
    );
    assert_eq!(to_and_body(&bed).len(), 1);
    assert_eq!(to_and_body(&bed)[0].0, "qux");
    m.ok("exec 5> outbox/foo; echo y >&5; mv outbox/foo outbox/.hold; exec 5>&-; ls sent > /dev/null");
    assert_eq!(to_and_body(&bed).len(), 1);
    assert_eq!(m.ls("outbox"), [".hold"]);
}

/// S34: the next reading marks a message that was moved back to `inbox/`.
#[test]
fn s34_read_after_moving_back() {
    let bed = Bed::new();
    let rec = samp::append(&bed.store, "foo", "bar", "t", "hi", T0);
    let m = bed.mount("bar");
    let (day, name) = (rec.day(), rec.name(0));
    m.ok(&format!("stat archive/{day}/{name}; rm inbox/{name}; mv archive/{day}/{name} inbox/"));
    m.inbox_becomes(&[&name]);
    crate::common::soon("reading marks", || {
        m.ok(&format!("cat inbox/{name} > /dev/null"));
        m.ls("inbox").is_empty()
    });
    assert_eq!(m.ls(&format!("archive/{day}")), [name]);
}

/// S57: a text that is cut in the middle of a character or header between two programs is one draft.
#[test]
fn s57_cut_between_programs() {
    let bed = Bed::new();
    let m = bed.mount("bar");
    m.ok("printf 'h\\xc3\\xa9llo\\n' > /tmp/u.$$; (head -c2 /tmp/u.$$; tail -c +3 /tmp/u.$$) > outbox/foo; \
          rm /tmp/u.$$; ls sent > /dev/null");
    m.ok("(/usr/bin/printf 'To: qux\\nSub'; /usr/bin/printf 'ject: x\\n\\nhi\\n') > outbox/any; ls sent > /dev/null");
    let all = to_and_body(&bed);
    assert_eq!(
        (all[0].2.as_str(), all[1].0.as_str(), all[1].2.as_str()),
        ("h\u{e9}llo", "qux", "hi")
    );
}

/// S65: text that follows a refused part of a draft is kept with it.
#[test]
fn s65_text_after_a_refusal_is_kept() {
    let bed = Bed::new();
    let m = bed.mount("bar");
    m.sh("{ echo 'To: foo'; echo 'Subjekt: x'; echo; echo line1; echo line2; } > outbox/foo");
    assert_eq!(m.ok("cat outbox/foo"), "To: foo\nSubjekt: x\n\nline1\nline2\n");
    assert!(m.ok("cat outbox/foo.error").contains("Subjekt"));
    m.ok("sed -i s/Subjekt/Subject/ outbox/foo; ls sent > /dev/null");
    assert_eq!(to_and_body(&bed)[0].2, "line1\nline2");
    assert_eq!(m.ls("outbox"), [""; 0]);
}

/// S49: rsync and mv work in a thread's folder and in a composing folder.
#[test]
fn s49_rename_elsewhere() {
    let bed = Bed::new();
    samp::append(&bed.store, "foo", "bar", "A", "one", T0);
    let m = bed.mount("bar");
    let file = bed.path("answer");
    std::fs::write(&file, "by rsync\n").unwrap();
    m.ok(&format!(
        "rsync --no-perms --no-times {} threads/A/; ls sent > /dev/null",
        file.display()
    ));
    m.ok("echo 'by mv' > threads/A/.x; mv threads/A/.x threads/A/go; ls sent > /dev/null");
    m.ok("mkdir outbox/qux; echo composed > outbox/qux/.b; mv outbox/qux/.b outbox/qux/body; ls sent > /dev/null");
    m.ok("echo across > outbox/.d; mv outbox/.d threads/A/new; ls sent > /dev/null");
    let all = to_and_body(&bed);
    assert_eq!(all[0], sent("foo", "A", "by rsync"));
    assert_eq!(all[1], sent("foo", "A", "by mv"));
    assert_eq!((all[2].0.as_str(), all[2].2.as_str()), ("qux", "composed"));
    assert_eq!(all[3], sent("foo", "A", "across"));
    assert_eq!(m.ls("outbox"), [""; 0]);
}

/// S17: thousands of messages of one sender in one second are listed and found like others.
#[test]
fn s17_many_in_one_second() {
    let bed = Bed::new();
    let lines: String =
        (0..5000).map(|i| samp::Rec::new("foo", "bar", "t", &format!("m{i}"), T0).line()).collect();
    samp::append_raw(&samp::log(&bed.store, "foo"), &lines);
    let m = bed.mount("bar");
    assert_eq!(m.ok("ls inbox | sort -u | wc -l").trim(), "5000");
    assert_eq!(m.ok("cd inbox && ls | tail -n 3 | xargs cat | grep -c ^From:").trim(), "3");
}

/// S74: thousands of rejected lines are listed like others.
#[test]
fn s74_many_rejects() {
    let bed = Bed::new();
    let lines: String = (0..5000).map(|i| format!("garbage {i}\n")).collect();
    samp::append_raw(&samp::log(&bed.store, "foo"), &lines);
    let m = bed.mount("bar");
    assert_eq!(m.ok("ls -l rejected | grep -c txt").trim(), "5000");
    assert_eq!(m.ok("cat rejected/* | grep -c ^garbage").trim(), "5000");
}
