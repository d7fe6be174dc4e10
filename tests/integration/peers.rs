//! Programs that speak plain SAMP and use the store at the same time.

use serde_json::Value;

use crate::common::proc::Running;
use crate::common::samp::{self, member};
use crate::common::{Bed, Out, run, soon};

fn script(bed: &Bed, args: &[&str]) -> std::process::Command {
    let mut c = bed.command("python3");
    c.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/peers/samp_reference.py")).arg(&bed.store);
    c.args(args);
    c
}

#[track_caller]
fn peer(bed: &Bed, args: &[&str], input: &str) -> Out {
    let out = run(script(bed, args), Some(input.as_bytes()));
    assert!(out.ok(), "{out:?}");
    out
}

/// S44, S76: an agent with plain SAMP tools and one with a mount can have a conversation.
#[test]
fn s44_conversation() {
    let bed = Bed::new();
    let m = bed.mount("bar");
    let id = peer(&bed, &["send", "foo", "bar"], "is the build green?\n").stdout;
    let day = samp::today();
    let thread = format!("{day}-foo-is-the-build-green");
    soon("the mail arrives", || m.ls("inbox").len() == 1);
    assert!(m.ok("cat inbox/*").contains(&format!("Message-ID: <{}@samp>\n", id.trim())));
    m.ok(&format!("echo 'yes, all of it' > 'threads/{thread}/answer'"));
    let all = peer(&bed, &["all", "foo"], "").stdout;
    let got: Value = serde_json::from_str(all.trim()).unwrap();
    assert_eq!(
        (&got["from"], &got["thread"], &got["body"]),
        (&"bar".into(), &thread.into(), &"yes, all of it".into())
    );
    let replied = peer(&bed, &["reply", "foo"], "great").stdout;
    soon("the reply arrives", || m.sh(&format!("cat inbox/* | grep {}", replied.trim())).ok());
}

/// S41, S55, S76: while both sides send and read as fast as they can, every message is there once on both sides.
#[test]
fn s55_two_sides_at_once() {
    let bed = Bed::new();
    let m = bed.mount("bar");
    let mut burst =
        Running::start(script(&bed, &["burst", "foo", "bar", "100", "0.01"]), None).unwrap();
    for i in 0..50 {
        m.ok(&format!("echo 'mounted {i}' > outbox/foo; cat inbox/* > /dev/null 2>&1; :"));
        if i % 10 == 0 {
            peer(&bed, &["inbox", "foo", "r12"], "");
        }
    }
    soon("the burst ends", || !burst.running());
    let archive = format!("archive/{}", samp::today());
    soon("all 100 are in archive/", || {
        m.sh("cat archive/*/* | grep -c '^burst '").stdout.trim() == "100"
    });
    let mut bodies = samp::bodies(&bed.store, "bar");
    assert_eq!(bodies.len(), 50, "{archive}");
    bodies.sort();
    bodies.dedup();
    assert_eq!(bodies.len(), 50);
    let ids: std::collections::BTreeSet<String> = peer(&bed, &["all", "foo"], "")
        .stdout
        .lines()
        .map(|l| {
            let v: Value = serde_json::from_str(l).unwrap();
            v["id"].as_str().unwrap().to_owned()
        })
        .collect();
    assert_eq!(ids.len(), 50, "the other program sees every message once");
    for r in samp::read_log(&bed.store, "bar") {
        assert!(ids.contains(member(&r, "id")));
    }
}

/// S77: another program may compact its log while msgfs reads it.
#[test]
fn s77_compaction() {
    let bed = Bed::new();
    for i in 0..200 {
        samp::append(&bed.store, "foo", "bar", "t", &format!("mail {i}"), samp::T0 + i);
    }
    let r = samp::append(&bed.store, "foo", "bar", "t", "twice", samp::T0 + 500);
    samp::append_raw(&samp::log(&bed.store, "foo"), r.line());
    samp::append_raw(&samp::log(&bed.store, "foo"), "junk\n\n");
    let m = bed.mount("bar");
    let before = m.ls("inbox");
    assert_eq!(before.len(), 201);
    let text = m.cat(&r.archived(0));
    peer(&bed, &["compact", "foo"], "");
    let new = samp::append(&bed.store, "foo", "bar", "t", "after", samp::T0 + 600);
    m.appears(&format!("inbox/{}", new.name(0)));
    let mut expected = before;
    expected.push(new.name(0));
    assert_eq!(m.ls("inbox"), expected);
    assert_eq!(m.cat(&r.archived(0)), text);
    soon("the junk is gone", || m.ls("rejected").is_empty());
}

/// S60, S80: three hundred strangers get mail while other programs append. Nothing waits long for anything.
#[test]
fn s60_strangers_under_load() {
    let bed = Bed::new();
    let m = bed.mount("bar");
    let bursts: Vec<_> = ["foo", "zed"]
        .iter()
        .map(|w| Running::start(script(&bed, &["burst", w, "bar", "100000", "0"]), None).unwrap())
        .collect();
    let out =
        m.sh("for i in $(seq 300); do echo hi > outbox/stranger-$i || exit 1; done; ls sent/*");
    drop(bursts);
    assert!(out.ok(), "{out:?}");
    assert_eq!(samp::read_log(&bed.store, "bar").len(), 300);
    assert_eq!(out.stdout.lines().filter(|l| l.contains("-bar-")).count(), 300);
}
