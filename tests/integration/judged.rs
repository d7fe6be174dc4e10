//! The verdicts of the keyring on messages: while mounted, after a remount and without the cache.

use std::fs;

use crate::agentazall;
use crate::common::agz::{self, Letter, Tree};
use crate::common::amp::{ALICE, Home, Msg};
use crate::common::samp::{self, T0, fingerprint, key};
use crate::common::{Bed, Mount, shown, soon};

/// A store with a sender that can write mail with different keys.
struct Writer {
    bed: Bed,
    name: &'static str,
    /// Puts the mail of this number into the store, signed by the key of a seed.
    write: Box<dyn Fn(i64, u8)>,
}

fn samp_writer() -> Writer {
    let bed = Bed::new();
    let store = bed.store.clone();
    let write = move |n: i64, seed| {
        let rec = samp::Rec::new("foo", "bar", "t", &format!("mail {n}"), T0 + n);
        samp::append_signed(&store, &key(seed), &rec);
    };
    Writer { bed, name: "foo", write: Box::new(write) }
}

fn agentazall_writer() -> Writer {
    let bed = Bed::new();
    let tree = Tree::new(&bed);
    bed.config(&tree.store());
    let write = move |n: i64, seed| {
        let letter = Letter::new("alice@localhost", "s", &format!("mail {n}"), n);
        tree.receive(&letter.signed(&key(seed)));
    };
    Writer { bed, name: "alice@localhost", write: Box::new(write) }
}

/// Makes an agent of AMP whose key file is replaced when it writes with another key.
fn amp_writer() -> Writer {
    let bed = Bed::new();
    let home = Home::new(&bed);
    bed.config(&home.store());
    for seed in 1..4 {
        home.agent_in(&format!("key{seed}"), &format!("key{seed}"), "other", seed);
    }
    let write = move |n: i64, seed| {
        let public = |agent: &str| home.dir(agent).join("keys/public.pem");
        fs::copy(public(&format!("key{seed}")), public("alice")).unwrap();
        home.receive(&Msg::new("s", &format!("mail {n}"), n).signed(seed));
    };
    Writer { bed, name: ALICE, write: Box::new(write) }
}

/// Returns everything that is shown except the inbox, whose files are marked by reading.
fn shown(m: &Mount) -> String {
    m.ok("ls inbox; find archive rejected threads transcripts -type f | sort | xargs -d '\\n' tail -n +1")
}

/// Returns the `Signature:` lines of all messages, in the order of names, and the number of refused messages.
fn signatures(m: &Mount) -> (Vec<String>, usize) {
    let lines = m.ok("grep -rh ^Signature: archive | sort; true");
    let lines = lines.lines().map(|l| l.trim_start_matches("Signature: ").to_owned());
    (lines.collect(), m.ls("rejected").len())
}

/// Waits for these verdicts, and checks that they are the same after a remount, with the cache and without it.
#[track_caller]
fn stays(w: &Writer, m: Mount, valid: &[u8], unknown: usize, refused: usize, what: &str) -> Mount {
    let mut wanted: Vec<String> = vec!["unknown".to_owned(); unknown];
    wanted.extend(valid.iter().map(|seed| format!("valid {}", fingerprint(&key(*seed)))));
    wanted.sort();
    soon(&format!("{}: {what}", w.name), || signatures(&m) == (wanted.clone(), refused));
    let before = shown(&m);
    m.umount();
    for cache in [true, false] {
        if !cache {
            fs::remove_dir_all(w.bed.path("cache")).unwrap();
        }
        let m = w.bed.mount("bar");
        assert_eq!(shown(&m), before, "{}: {what}, cache: {cache}", w.name);
        m.umount();
    }
    w.bed.mount("bar")
}

/// S315: a key may be trusted and forgotten, while mounted or not. The messages that are there get their new
/// verdict at once, and it is the same with and without the cache.
#[test]
fn s315_judged_the_same() {
    for w in [samp_writer(), agentazall_writer(), amp_writer()] {
        let run = |args: &[&str]| {
            let out = w.bed.msgfs_out(&[&["--me", "bar", "key"], args, &[w.name]].concat());
            assert!(out.ok(), "{args:?} {out:?}");
        };
        (w.write)(1, 1);
        (w.write)(2, 1);
        let m = w.bed.mount("bar");
        (w.write)(3, 2);
        let m = stays(&w, m, &[1, 1], 0, 1, "another key is refused");
        run(&["trust"]);
        let m = stays(&w, m, &[1, 1, 2], 0, 0, "and trusted");
        run(&["forget"]);
        let m = stays(&w, m, &[], 3, 0, "what forgotten keys signed is unknown");
        (w.write)(4, 2);
        let m = stays(
            &w,
            m,
            &[2, 2],
            2,
            0,
            "the next new message pins, and vouches for what its key signed",
        );
        (w.write)(5, 3);
        let m = stays(&w, m, &[2, 2], 2, 1, "another key is refused again");
        m.umount();
        run(&["forget"]);
        let m = w.bed.mount("bar");
        let m = stays(&w, m, &[], 5, 0, "forgotten while nobody was mounted");
        m.umount();
        (w.write)(6, 3);
        let m = w.bed.mount("bar");
        let m = stays(&w, m, &[3, 3], 4, 0, "a new message that came while nobody was mounted");
        m.umount();
        run(&["trust", "--key", &samp_key(1)]);
        let m = w.bed.mount("bar");
        stays(&w, m, &[1, 1, 3, 3], 2, 0, "an old key that is trusted by hand");
    }
}

fn samp_key(seed: u8) -> String {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD.encode(key(seed).verifying_key().as_bytes())
}

/// S317: if one identity has a different key on each of two machines, both are told: at the mount, in `status.txt`
/// and by `doctor`. The text has the commands that make it one key. After these nothing is told, and all messages
/// are valid.
#[test]
fn s317_one_identity_on_two_machines() {
    let one = Bed::new();
    let mut two = Bed::new();
    two.store = one.store.clone();
    let (a, b) = (one.mount("bar"), two.mount("bar"));
    a.ok("echo from one > outbox/foo");
    b.ok("echo from two > outbox/foo");
    let print = |bed: &Bed| {
        let out = bed.msgfs_out(&["--me", "bar", "key", "show"]);
        out.stdout.split_whitespace().nth(1).expect("a fingerprint").to_owned()
    };
    let (first, second) = (print(&one), print(&two));
    assert_ne!(first, second);
    let told = |text: &str, other: &str| {
        text.contains("under my name")
            && [other, "msgfs key export |", "msgfs key import", "msgfs key trust bar"]
                .iter()
                .all(|part| text.contains(part))
    };
    for (bed, m, other) in [(&one, &a, &second), (&two, &b, &first)] {
        soon("told", || told(&m.cat("status.txt"), other));
        assert_eq!(m.ls("rejected").len(), 1);
        let out = bed.msgfs_out(&["--me", "bar", "doctor"]);
        assert!(told(&out.said(), other), "{out:?}");
    }
    b.umount();
    let b = two.mount("bar");
    assert!(told(&b.said, &first), "{}", b.said);
    b.umount();
    // This follows the printed commands: the second machine gets the key of the first, and keeps its own aside.
    let out = one.msgfs_out(&["--me", "bar", "key", "export"]);
    assert!(out.ok() && out.stdout.contains("private_key_hex"), "{out:?}");
    let import = |text: &str| {
        let command = two.msgfs(["--me", "bar", "key", "import"]);
        crate::common::run(command, Some(text.as_bytes()))
    };
    assert_eq!(import("no key").code(), Some(1));
    assert_eq!(print(&two), second, "nothing was changed");
    let done = import(&out.stdout);
    assert!(done.ok() && done.said().contains(&format!("replaced-{second}.json")), "{done:?}");
    assert!(import(&out.stdout).ok(), "again changes nothing");
    assert_eq!(print(&two), first);
    let kept = two.state("bar").join(format!("replaced-{second}.json"));
    assert!(fs::read_to_string(kept).unwrap().contains("private_key_hex"));
    let b = two.mount("bar");
    assert!(!b.said.contains("under my name"), "{}", b.said);
    assert_eq!(b.ls("rejected"), [""; 0], "both keys are mine there");
    assert!(one.msgfs_out(&["--me", "bar", "key", "trust", "bar"]).ok());
    soon("the first accepts what the second signed", || a.ls("rejected").is_empty());
    b.ok("echo again > outbox/foo");
    let sent = || a.ok("grep -rh ^Signature: sent").matches(&format!("valid {first}")).count();
    soon("it signs with the one key", || sent() == 2);
    for m in [&a, &b] {
        let status = m.cat("status.txt");
        assert!(!status.contains("under my name"), "{status}");
    }
}

/// S316: a reader's program marks a letter as read and so breaks its signature of the old form. The letter keeps
/// its verdict: after the mark, after a new verdict, after a remount, and without the cache.
#[test]
fn s316_old_signatures_outlive_the_mark() {
    let l = agz::legacy(Letter::new("alice@localhost", "s", "hello", 1), &key(20));
    let (bed, tree, m) = agentazall::with(|_, tree| {
        tree.receive(&l);
    });
    let valid = format!("valid {}", fingerprint(&key(20)));
    assert_eq!(signatures(&m), (vec![valid.clone()], 0));
    let file = tree.file(agz::DAY, "inbox", &format!("{}.txt", l.id()));
    agz::put(&file, l.text().replacen("Status: new", "Status: read", 1));
    m.inbox_becomes(&[]);
    assert_eq!(signatures(&m), (vec![valid.clone()], 0));
    for verb in ["forget", "trust"] {
        let encoded = samp_key(20);
        let key: &[&str] = if verb == "trust" { &["--key", &encoded] } else { &[] };
        let args = [&["--me", "bar", "key", verb, "alice@localhost"], key].concat();
        assert!(bed.msgfs_out(&args).ok());
        let wanted = if verb == "trust" { valid.clone() } else { "unknown".to_owned() };
        soon(verb, || signatures(&m) == (vec![wanted.clone()], 0));
    }
    m.umount();
    fs::remove_dir_all(bed.path("cache")).unwrap();
    let m = bed.mount("bar");
    assert_eq!(signatures(&m), (vec![valid], 0));
    // Any other change of the file breaks the signature.
    agz::put(&file, l.text().replacen("Subject: s", "Subject: t", 1));
    soon("refused", || m.ls("rejected").len() == 1);
}

/// S1205: text that was changed after it was verified stays rejected when the keys of another sender change, also
/// after a remount.
#[test]
fn s1205_changed_text_stays_rejected() {
    let bed = Bed::new();
    let rec = samp::Rec::new("foo", "bar", "t", "pay 10", T0);
    samp::append_signed(&bed.store, &key(1), &rec);
    let carol = |n: u8| {
        let mail = samp::Rec::new("carol", "bar", "t", &format!("mail {n}"), T0 + i64::from(n));
        samp::append_signed(&bed.store, &key(n), &mail);
    };
    carol(2);
    let mut m = bed.mount("bar");
    assert_eq!((m.ls("inbox").len(), m.ls("rejected").len()), (2, 0));
    let changed = samp::Rec { body: "pay 9999".to_owned(), ..rec };
    let aside = bed.path("aside");
    fs::write(&aside, changed.line()).unwrap();
    fs::rename(&aside, samp::log(&bed.store, "foo")).unwrap();
    soon("refused", || m.ls("rejected").len() == 1);
    for n in [3, 4] {
        carol(n);
        soon("another key is refused", || m.ls("rejected").len() == 2);
        let out = bed.msgfs_out(&["--me", "bar", "key", "trust", "carol"]);
        assert!(out.ok(), "{out:?}");
        // Her mail shows that the messages are judged again.
        soon("it is trusted", || m.ok("cat archive/*/*.txt").contains(&format!("mail {n}")));
        m.umount();
        m = bed.mount("bar");
        let why = shown::one_rejected(&m);
        assert!(why.contains("changed after it was verified"), "{n} {why}");
        assert!(!m.ok("cat archive/*/*.txt").contains("9999"), "{n}");
    }
}

/// S1206: messages of a store that was away when a key was trusted are judged when it is back.
#[test]
fn s1206_a_store_that_is_away() {
    let w = samp_writer();
    (w.write)(1, 1);
    let m = w.bed.mount("bar");
    (w.write)(2, 2);
    soon("another key is refused", || m.ls("rejected").len() == 1);
    let aside = w.bed.path("aside");
    fs::rename(&w.bed.store, &aside).unwrap();
    let out = w.bed.msgfs_out(&["--me", "bar", "key", "trust", w.name]);
    assert!(out.ok(), "{out:?}");
    fs::rename(&aside, &w.bed.store).unwrap();
    stays(&w, m, &[1, 2], 0, 0, "the store is back");
}

/// S1171: an unsigned message that only says it is from me is refused like that of anybody. In my own log it is mine.
#[test]
fn s1171_unsigned_in_a_conflict_copy_of_my_log() {
    for policy in ["known", "refuse"] {
        let bed = Bed::new();
        bed.config(&format!("unsigned = \"{policy}\"\n"));
        let mine = samp::append(&bed.store, "bar", "foo", "t", "by the reference", T0);
        let forged = samp::Rec::new("bar", "foo", "t", "only in the copy", T0 + 1);
        let copy = bed.store.join("log-bar.sync-conflict-20261126-010203-ABCDEFG.jsonl");
        samp::append_raw(&copy, forged.line() + &mine.line());
        let m = bed.mount("bar");
        let sent = format!("sent/{}", mine.day());
        assert_eq!(m.ls(&sent).len(), 1, "{policy}");
        let why = shown::one_rejected(&m);
        assert!(why.contains("only in the copy") && why.contains("it is not signed"), "{why}");
        samp::append_raw(&samp::log(&bed.store, "bar"), forged.line());
        soon("it is in my log", || m.ls("rejected").is_empty());
        assert_eq!(m.ls(&sent).len(), 2, "{policy}");
    }
}

/// Returns the line of a record with the signature of another one.
fn badly_signed(rec: &samp::Rec) -> String {
    let parsed = |rec: &samp::Rec| -> serde_json::Map<String, serde_json::Value> {
        serde_json::from_str(&rec.signed_line(&key(1), &[])).unwrap()
    };
    let mut line = parsed(rec);
    let other = samp::Rec::new("foo", "bar", "t", "another", T0 + 100);
    line["sig"] = parsed(&other)["sig"].clone();
    serde_json::to_string(&line).unwrap() + "\n"
}

/// S1210: a badly signed line hides no message, whether it or the message comes first, and whether it lies in the log
/// or in a conflict copy.
#[test]
fn s1210_a_badly_signed_line_hides_no_message() {
    let bed = Bed::new();
    let rec = |n: i64| samp::Rec::new("foo", "bar", "t", &format!("mail {n}"), T0 + n);
    let recs = [0, 1, 2, 3].map(rec);
    let [first, in_log, in_copy, probe] = &recs;
    let names = recs.each_ref().map(|r| r.name(0));
    let copy = bed.store.join("log-foo.sync-conflict-20260101-000000-ABCDEFG.jsonl");
    samp::append_signed(&bed.store, &key(1), first);
    let m = bed.mount("bar");
    samp::append_raw(&copy, badly_signed(in_log));
    soon("the bad line is refused", || m.ls("rejected").len() == 1);
    samp::append_signed(&bed.store, &key(1), in_log);
    m.inbox_becomes(&[&names[0], &names[1]]);
    assert_eq!(m.ls("rejected"), [""; 0]);
    samp::append_raw(&copy, in_copy.signed_line(&key(1), &[]));
    m.inbox_becomes(&[&names[0], &names[1], &names[2]]);
    samp::append_raw(&samp::log(&bed.store, "foo"), badly_signed(in_copy));
    samp::append_signed(&bed.store, &key(1), probe);
    m.inbox_becomes(&names.each_ref().map(String::as_str));
    let w = Writer { bed, name: "foo", write: Box::new(|_, _| {}) };
    stays(&w, m, &[1; 4], 0, 0, "what a bad line repeats");
}

/// S1239: after the keyring is lost, the first message of a sender pins a key again, mounted or not, cached or not.
/// Rejected messages pin no key, and neither do later ones by another key.
#[test]
fn s1239_a_lost_keyring() {
    let bed = Bed::new();
    let put = |seed: u8, n: i64| {
        let rec = samp::Rec::new("foo", "bar", "t", &format!("mail {n}"), T0 + n);
        samp::append_signed(&bed.store, &key(seed), &rec);
    };
    put(1, 1);
    put(2, 2);
    let ring = bed.state("bar").join("keyring.json");
    let lose = || fs::rename(&ring, bed.path("aside")).unwrap();
    let valid = vec![format!("valid {}", fingerprint(&key(1)))];
    let m = bed.mount("bar");
    assert_eq!(signatures(&m), (valid.clone(), 1));
    lose();
    soon("there is a new keyring", || ring.exists());
    assert_eq!(signatures(&m), (valid.clone(), 1), "mounted");
    m.umount();
    put(2, 3);
    for cache in [true, false] {
        lose();
        if !cache {
            fs::remove_dir_all(bed.path("cache")).unwrap();
        }
        let m = bed.mount("bar");
        assert_eq!(signatures(&m), (valid.clone(), 2), "cache: {cache}");
        m.umount();
    }
}

/// S1240: my key stays pinned to my name when the keyring is moved away beside a mount: a message under my name by
/// another key stays rejected and reported, and mine stay valid.
#[test]
fn s1240_a_lost_keyring_and_my_own_name() {
    let bed = Bed::new();
    let forged = samp::Rec::new("bar", "foo", "t", "not from me", T0);
    samp::append_signed(&bed.store, &key(2), &forged);
    let m = bed.mount("bar");
    m.ok("echo from me > outbox/foo");
    let out = bed.msgfs_out(&["--me", "bar", "key", "show"]);
    let mine = out.stdout.split_whitespace().nth(1).expect("a fingerprint").to_owned();
    let check = |m: &Mount| {
        let why = shown::one_rejected(m);
        assert!(why.contains("not from me"), "{why}");
        soon("it is reported", || {
            let status = m.cat("status.txt");
            status.contains("under my name") && status.contains(&fingerprint(&key(2)))
        });
        let sent = m.ok("grep -rh ^Signature: sent");
        assert_eq!(sent.trim(), format!("Signature: valid {mine}"));
    };
    soon("it is sent", || m.sh("grep -rq ^Signature: sent").ok());
    check(&m);
    let ring = bed.state("bar").join("keyring.json");
    fs::rename(&ring, bed.path("aside")).unwrap();
    soon("there is a new keyring", || ring.exists());
    check(&m);
    m.umount();
    check(&bed.mount("bar"));
}
