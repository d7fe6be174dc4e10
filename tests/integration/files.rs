//! Message files: names and bytes.

use serde_json::json;

use crate::common::samp::{self, Rec, T0};
use crate::common::{Bed, Mount};

/// S17: a name is `<time>-<from>-<id8>.txt`. The digits count the sender's earlier messages of that second,
/// whoever the recipients are. Duplicates do not count.
#[test]
fn s17_names_count_within_a_second() {
    let bed = Bed::new();
    let a = samp::append(&bed.store, "foo", "bar", "t", "first", T0);
    samp::append(&bed.store, "foo", "carol", "t", "to somebody else", T0);
    samp::append_raw(&samp::log(&bed.store, "foo"), a.line());
    let c = samp::append(&bed.store, "foo", "bar", "t", "third", T0);
    let d = samp::append(&bed.store, "foo", "bar", "t", "a second later", T0 + 1);
    let z = samp::append(&bed.store, "zed", "bar", "t", "another writer", T0);
    let m = bed.mount("bar");
    assert_eq!(a.name(0), format!("20260424T174203.000Z-foo-{}.txt", &a.id[..8]));
    let mut expected = [a.name(0), c.name(2), d.name(0), z.name(0)];
    expected.sort();
    assert_eq!(m.ls("inbox"), expected);
    // Further mail of the same second changes no name.
    let e = samp::append(&bed.store, "foo", "bar", "t", "fourth", T0);
    m.appears(&format!("inbox/{}", e.name(3)));
    assert!(expected.iter().all(|n| m.ls("inbox").contains(n)));
    m.umount();
    let m = bed.mount("bar");
    assert!(expected.iter().all(|n| m.ls("inbox").contains(n)));
}

/// S17: if two messages would have equal names, the later one takes its full id.
#[test]
fn s17_equal_names() {
    let bed = Bed::new();
    // In SAMP no two senders have names that are shown alike. Two ids with equal first digits in different seconds
    // differ by time. Only a claimed id remains.
    let mut a = Rec::new("foo", "bar", "t", "one", T0);
    a.id = "aaaaaaaa00000001".into();
    samp::append_raw(&samp::log(&bed.store, "foo"), a.line());
    let mut b = Rec::new("foo", "bar", "t", "two", T0);
    b.id = "aaaaaaaa00000002".into();
    samp::append_raw(&samp::log(&bed.store, "foo"), b.line());
    let m = bed.mount("bar");
    let names = m.ls("inbox");
    assert_eq!(names, [a.name(0), b.name(1)], "the digits already tell them apart");
}

/// S18: an id that is not hex is named by its SHA-256.
#[test]
fn s18_foreign_ids() {
    let bed = Bed::new();
    let mut recs = Vec::new();
    for (i, id) in ["../../../etc/passwd", "ABCDEF0123456789", "short", "a b\nc"].iter().enumerate()
    {
        let mut r = Rec::new("foo", "bar", "t", &format!("body {i}"), T0 + i as i64);
        r.id = (*id).to_owned();
        samp::append_raw(&samp::log(&bed.store, "foo"), r.line());
        recs.push(r);
    }
    let m = bed.mount("bar");
    let names: Vec<_> = recs.iter().map(|r| r.name(0)).collect();
    assert_eq!(m.ls("inbox"), names);
    assert!(names[0].ends_with(&format!("-foo-{}.txt", samp::sha_hex(b"../../../etc/passwd", 8))));
    for (r, n) in recs.iter().zip(&names) {
        assert!(m.cat(&format!("archive/{}/{n}", r.day())).ends_with(&format!("\n\n{}\n", r.body)));
    }
}

/// S19: the bytes are exact, and the same in inbox/, archive/ and threads/.
#[test]
fn s19_bytes() {
    let bed = Bed::new();
    let r = samp::append(
        &bed.store,
        "foo",
        "bar",
        "2026-04-24-foo-need-your-review",
        "need your review on the schema change",
        T0,
    );
    let m = bed.mount("bar");
    let expected = format!(
        "From: foo\nTo: bar\nDate: Fri, 24 Apr 2026 17:42:03 +0000\nThread: 2026-04-24-foo-need-your-review\n\
         Message-ID: <{}@samp>\nSignature: none\n\nneed your review on the schema change\n",
        r.id
    );
    assert_eq!(r.file("none"), expected);
    assert_eq!(m.cat(&r.archived(0)), expected);
    assert_eq!(m.cat(&format!("threads/2026-04-24-foo-need-your-review/{}", r.name(0))), expected);
    assert_eq!(m.cat(&format!("inbox/{}", r.name(0))), expected);
}

/// S19: Subject and In-Reply-To are shown in their places if the record has them.
#[test]
fn s19_optional_headers() {
    let bed = Bed::new();
    let key = samp::key(3);
    let r = Rec::new("foo", "bar", "t", "text", T0);
    let line = r.signed_line(
        &key,
        &[("subject", json!("schema change")), ("re", json!("0123456789abcdef"))],
    );
    samp::append_raw(&samp::log(&bed.store, "foo"), line);
    let m = bed.mount("bar");
    assert_eq!(
        m.cat(&r.archived(0)),
        format!(
            "From: foo\nTo: bar\nDate: Fri, 24 Apr 2026 17:42:03 +0000\nSubject: schema change\nThread: t\n\
             In-Reply-To: <0123456789abcdef@samp>\nMessage-ID: <{}@samp>\nSignature: valid {}\n\ntext\n",
            r.id,
            samp::fingerprint(&key)
        )
    );
}

/// S19: a body that ends in a newline gets no second one. An empty body gives one newline.
#[test]
fn s19_final_newline() {
    let bed = Bed::new();
    let a = samp::append(&bed.store, "foo", "bar", "t", "two\n\n", T0);
    let b = samp::append(&bed.store, "foo", "bar", "t", "", T0 + 1);
    let m = bed.mount("bar");
    assert!(m.cat(&a.archived(0)).ends_with("Signature: none\n\ntwo\n\n"));
    assert!(m.cat(&b.archived(0)).ends_with("Signature: none\n\n\n"));
}

/// S20: MIME lines end the header only if the message is not ASCII. Python's mail parser reads both forms.
#[test]
fn s20_mime() {
    let bed = Bed::new();
    let plain = samp::append(&bed.store, "foo", "bar", "t", "plain", T0);
    let wide = samp::append(&bed.store, "foo", "bar", "t", "gr\u{fc}\u{df}e \u{1f600}", T0 + 1);
    let head = samp::append(&bed.store, "foo", "bar", "\u{fc}", "plain body", T0 + 2);
    let m = bed.mount("bar");
    let mime = "MIME-Version: 1.0\nContent-Type: text/plain; charset=utf-8\nContent-Transfer-Encoding: 8bit\n\n";
    assert!(!m.cat(&plain.archived(0)).contains("MIME"));
    for r in [&wide, &head] {
        let text = m.cat(&r.archived(0));
        let at = text.find("\n\n").unwrap() + 2;
        assert!(text[..at].ends_with(&format!("Signature: none\n{mime}")), "{text}");
    }
    let parsed = m.py(
        "import email.policy,email\nm=email.message_from_binary_file(open(sys.argv[1],'rb'),policy=email.policy.default)\nassert not m.defects\nprint(m['from'],m['to'],m['thread'],m['message-id'],m.get_content(),sep='|')",
        &[&wide.archived(0)],
    );
    assert_eq!(parsed, format!("foo|bar|t|<{}@samp>|gr\u{fc}\u{df}e \u{1f600}\n\n", wide.id));
}

/// S21: control characters, line separators and direction marks in values stay on one line.
#[test]
fn s21_header_values() {
    let bed = Bed::new();
    let thread = "x\nSignature: valid 0000000000000000\r\nFrom: boss\u{2028}\u{85}\x1b[2J\u{202e}";
    let r = Rec::new("foo", "bar", thread, "body", T0);
    let line = r.line_with(&[("subject", json!("a\n\nfake body\u{9b}31m\0"))]);
    samp::append_raw(&samp::log(&bed.store, "foo"), line);
    let m = bed.mount("bar");
    let text = m.cat(&r.archived(0));
    let head = &text[..text.find("\n\n").unwrap()];
    assert!(text.ends_with("\n\nbody\n"), "{text:?}");
    assert_eq!(head.lines().filter(|l| l.starts_with("From:")).count(), 1, "{text:?}");
    assert_eq!(
        head.lines().filter(|l| l.starts_with("Signature:")).collect::<Vec<_>>(),
        ["Signature: none"]
    );
    assert!(head.contains("Thread: x\u{240a}Signature"), "{text:?}");
    harmless(&text);
    assert!(!head.contains('\u{2028}') && !head.contains('\u{202e}'), "{text:?}");
}

#[track_caller]
fn harmless(text: &str) {
    let bad: Vec<_> = text.chars().filter(|c| c.is_control() && !"\n\t".contains(*c)).collect();
    assert!(bad.is_empty(), "control characters {bad:?} in {text:?}");
}

/// S22: every C0 and C1 control in a body is shown as a picture or U+FFFD. raw/ has the bytes.
#[test]
fn s22_bodies() {
    let bed = Bed::new();
    let body = "tab\there\r\nbare\rcr\u{b}\u{c}\x1b]0;title\x07\0\u{9b}31m\u{7f}end";
    let r = samp::append(&bed.store, "foo", "bar", "t", body, T0);
    let m = bed.mount("bar");
    let text = m.cat(&r.archived(0));
    assert!(
        text.ends_with("\n\ntab\there\nbare\u{240d}cr\u{240b}\u{240c}\u{241b}]0;title\u{2407}\u{2400}\u{fffd}31m\u{2421}end\n"),
        "{text:?}"
    );
    harmless(&text);
    harmless(&m.cat("transcripts/t.txt"));
    harmless(&m.cat("status.txt"));
    assert!(m.cat("raw/samp/log-foo.jsonl").contains("\\u001b]0;title"));
}

fn one_thread(thread: &str) -> (Bed, Mount, Rec) {
    let bed = Bed::new();
    let r = samp::append(&bed.store, "foo", "bar", thread, "hello", T0);
    let m = bed.mount("bar");
    (bed, m, r)
}

/// S23: thread folders have these names. The test spells them out by hand, so that the rule does not prove itself.
#[test]
fn s23_thread_folders() {
    for (id, folder) in [
        ("plan", "plan"),
        ("../../etc", "%2E.%2F..%2Fetc"),
        ("a/b", "a%2Fb"),
        ("", "~e3b0c442"),
        (".hidden", "%2Ehidden"),
        ("-rf", "%2Drf"),
        ("50%", "50%25"),
        ("a b", "a%20b"),
        ("\u{fc}", "%C3%BC"),
        ("a_b@c.d-e", "a_b@c.d-e"),
        ("_x", "%5Fx"),
        ("nul\0", "nul%00"),
    ] {
        let (_bed, m, r) = one_thread(id);
        assert_eq!(m.ls("threads"), [folder], "{id:?}");
        assert_eq!(m.ls("transcripts"), [format!("{folder}.txt")], "{id:?}");
        assert_eq!(m.ls(&format!("threads/{folder}")), [r.name(0)], "{id:?}");
        assert_eq!(samp::thread_dir(id), folder);
    }
}

/// S23: ids of exactly 200 bytes stay. Ids of 201 bytes are cut to 135 and hashed.
#[test]
fn s23_long_ids() {
    for (len, cut) in [(200, false), (201, true), (10_240, true)] {
        let id = "k".repeat(len);
        let (_bed, m, _) = one_thread(&id);
        let expected = if cut {
            format!("{}~{}", "k".repeat(135), samp::sha_hex(id.as_bytes(), 64))
        } else {
            id.clone()
        };
        assert_eq!(m.ls("threads"), [expected.as_str()]);
        assert_eq!(m.ls("transcripts"), [format!("{expected}.txt")]);
    }
}
