//! Copies of one message, and messages that only look like copies.

use std::fs;
use std::path::PathBuf;

use crate::agentazall::with;
use crate::common::agz::{self, DAY, Letter, ME, NOON, Tree};
use crate::common::shown;
use crate::common::{Mount, samp};

/// Writes the same letter as the transports leave it: local, by a relay (its id, UTC), by email (a new id, RFC
/// 2822).
fn three_ways(tree: &Tree, letter: &Letter, at: i64) -> Vec<PathBuf> {
    let relay = letter
        .clone()
        .set("Message-ID", "1777068077123_alice_0badcafe")
        .set("Date", &(samp::strftime(at + 20, "%Y-%m-%dT%H:%M:%S") + ".579619"));
    let email = letter
        .clone()
        .set("Message-ID", "feedfacecafe")
        .set("Date", &samp::strftime(at + 40, "%a, %d %b %Y %H:%M:%S +0000"));
    vec![
        tree.receive(letter),
        tree.put("2026-04-24", "inbox", "1777068077123_alice_0badcafe", relay.text()),
        tree.put(DAY, "inbox", "feedfacecafe", email.text()),
    ]
}

fn texts(m: &Mount) -> Vec<String> {
    shown::all(m, "archive").into_iter().map(|s| s.body).collect()
}

/// S101, S107: a signed message that came in three ways is one message, and a mark is written to each of its
/// files.
#[test]
fn s101_three_ways() {
    let letter = Letter::new("alice@localhost", "release", "ship it", 1).signed(&samp::key(2));
    let mut files = Vec::new();
    let (bed, _tree, m) = with(|_, tree| files = three_ways(tree, &letter, NOON + 60));
    assert_eq!(m.ls("inbox").len(), 1);
    assert_eq!(texts(&m), ["ship it\n"]);
    let name = m.ls("inbox")[0].clone();
    m.cat(&format!("inbox/{name}"));
    m.inbox_becomes(&[]);
    for file in &files {
        agz::says(file, "\nStatus: read\n");
    }
    m.umount();
    let m = bed.mount("bar");
    m.inbox_stays(&[]);
    assert_eq!(texts(&m).len(), 1);
}

/// S101: a copy that arrives later does not make the message unread, and a copy that goes removes nothing else.
#[test]
fn s101_late_copy() {
    let letter = Letter::new("alice@localhost", "release", "ship it", 1).signed(&samp::key(2));
    let (_bed, tree, m) = with(|_, tree| {
        tree.receive(&letter);
    });
    let name = m.ls("inbox")[0].clone();
    m.cat(&format!("inbox/{name}"));
    m.inbox_becomes(&[]);
    let files = three_ways(&tree, &letter, NOON + 60);
    agz::says(&files[1], "\nStatus: read\n");
    agz::says(&files[2], "\nStatus: read\n");
    m.inbox_stays(&[]);
    assert_eq!(texts(&m).len(), 1);
    fs::remove_file(&files[0]).unwrap();
    m.inbox_stays(&[]);
    assert_eq!(texts(&m), ["ship it\n"]);
}

/// S101: files with the same id, From and text in two folders, or with the same signed Message-ID, are one
/// message, however the envelopes differ.
#[test]
fn s101_by_id() {
    let plain = Letter::new("alice@localhost", "twice", "the same file", 1);
    let sealed = Letter::new("carol@localhost", "sealed", "one", 2).sealed(&samp::key(3), &[]);
    let mut other = sealed.clone().set("Message-ID", "555_carol_relay").set("Subject", "");
    other = other.set("Date", "2026-04-30T10:00:00.000001");
    let (_bed, _tree, m) = with(|_, tree| {
        tree.receive(&plain);
        tree.put("2026-04-26", "inbox", "copy", plain.clone().set("Status", "new").text());
        tree.receive(&sealed);
        tree.put(DAY, "inbox", "555_carol_relay", other.text());
    });
    assert_eq!(texts(&m), ["the same file\n", "one\n"]);
    let got = shown::message(&m, sealed.id());
    assert_eq!(
        (got.must("Subject"), got.must("Date")),
        ("sealed", shown::date(NOON + 120).as_str())
    );
}

/// S101: mail to myself is in outbox or sent, and in inbox. It is one message, to me and from me.
#[test]
fn s101_to_self() {
    let letter = Letter::new(ME, "note", "to self", 1);
    let (_bed, _tree, m) = with(|_, tree| {
        tree.receive(&letter);
        tree.put(DAY, "sent", letter.id(), letter.text());
    });
    assert_eq!(m.ls("inbox"), [letter.name(1)]);
    assert_eq!(m.ls("sent/2026-04-24"), [letter.name(1)]);
    assert_eq!(m.ok("ls threads/*").lines().filter(|l| shown::has_ending(l, "txt")).count(), 1);
}

/// S102: unsigned letters with equal texts, signed letters that are sent twice, and letters of one id with two
/// texts are as many messages as there are letters.
#[test]
fn s102_two_messages() {
    let unsigned = Letter::new("alice@localhost", "same", "same", 1);
    let again = Letter::new("alice@localhost", "same", "same", 2);
    let signed = Letter::new("carol@localhost", "nudge", "nudge", 3).signed(&samp::key(3));
    let resent = Letter::new("carol@localhost", "nudge", "nudge", 4).signed(&samp::key(3));
    let far = signed
        .clone()
        .set("Message-ID", "0123456789aa")
        .set("Date", &(samp::strftime(NOON + 180 + 49 * 3600, "%Y-%m-%dT%H:%M:%S") + ".000001"));
    let id = Letter::new("dave@localhost", "s", "first", 5).set("Message-ID", "d00000000000");
    let (_bed, _tree, m) = with(|_, tree| {
        for (i, l) in [&unsigned, &again, &signed, &resent, &far].iter().enumerate() {
            tree.put(DAY, "inbox", &format!("x{i}"), l.text());
        }
        tree.put(DAY, "inbox", "one", id.text());
        tree.put(DAY, "inbox", "two", id.clone().body("second").text());
    });
    assert_eq!(m.ls("inbox").len(), 7, "{:#?}", m.ls("inbox"));
    let mut all = texts(&m);
    all.sort();
    assert_eq!(all, ["first\n", "nudge\n", "nudge\n", "nudge\n", "same\n", "same\n", "second\n"]);
}
