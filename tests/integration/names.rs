//! Ids and line numbers that are made so that names would be equal.

use std::time::Duration;

use crate::common::agz::{Letter, Tree};
use crate::common::samp::{self, T0};
use crate::common::{Bed, Mount, wait_for};

/// Waits until a folder lists these names.
#[track_caller]
fn lists(m: &Mount, folder: &str, names: &[String]) {
    wait_for(Duration::from_secs(60), &format!("{folder} lists {names:?}"), || {
        m.ls(folder) == names
    });
}

/// Returns two thread ids that are cut to the same bytes and whose SHA-256 begin alike.
fn alike() -> [String; 2] {
    ["739", "3062"].map(|n| format!("{}-{n:0>18}", "x".repeat(190)))
}

/// S190: two such threads have folders of their own, which no arrival changes, and each answer goes to its thread.
#[test]
fn s190_two_threads_never_share_a_folder() {
    let bed = Bed::new();
    let [first, second] = alike();
    let honest = samp::append(&bed.store, "foo", "bar", &first, "mine", T0);
    let [one, other] = [&first, &second].map(|id| samp::thread_dir(id));
    assert_eq!((one.get(..136), &one[136..144]), (other.get(..136), &other[136..144]));
    let m = bed.mount("bar");
    assert_eq!(m.ls("threads"), [one.as_str()]);
    // It comes later, says that it is older, and its log comes first.
    let forged = samp::append(&bed.store, "evil", "bar", &second, "no, mine", T0 - 9);
    let mut names = [one.clone(), other.clone()];
    names.sort();
    let mut m = m;
    for round in ["a", "b", "c"] {
        lists(&m, "threads", &names);
        assert_eq!(m.ls(&format!("threads/{one}")).first(), Some(&honest.name(0)));
        m.ok(&format!("ls -l threads transcripts; echo answer-{round} > threads/{one}/answer"));
        let reply = format!("threads/{other}/{}.reply", forged.name(0).trim_end_matches(".txt"));
        m.ok(&format!("echo reply-{round} > {reply}; ls sent > /dev/null"));
        assert!(m.cat(&format!("transcripts/{one}.txt")).contains("\n\nmine\n"));
        m.umount();
        if round == "b" {
            std::fs::remove_dir_all(bed.path("cache")).expect("the cache");
        }
        m = bed.mount("bar");
    }
    let sent = samp::read_log(&bed.store, "bar");
    assert_eq!(sent.len(), 6);
    for rec in sent {
        let body = samp::member(&rec, "body").to_owned();
        let (to, thread) =
            if body.starts_with("answer") { ("foo", &first) } else { ("evil", &second) };
        assert_eq!((samp::member(&rec, "to"), samp::member(&rec, "thread")), (to, thread.as_str()));
    }
}

/// S191: if two messages have one time, sender and short id, each is named by its full id. The short name that the
/// first one had opens it as long as the mount lives, and is listed nowhere.
#[test]
fn s191_two_messages_never_share_a_name() {
    let bed = Bed::new();
    let tree = Tree::new(&bed);
    bed.config(&tree.store());
    let letter = |id: &str| Letter::new("foo@x", "t", id, 1).set("Message-ID", id);
    let [first, second] = ["00000001bbbb", "00000001aaaa"].map(letter);
    let file = tree.receive(&first);
    let m = bed.mount("bar");
    let short = first.name(1);
    assert_eq!(m.ls("inbox"), [short.as_str()]);
    tree.receive(&second);
    let [long, other] = ["00000001bbbb", "00000001aaaa"].map(|id| short.replace("00000001", id));
    let both = [other.clone(), long.clone()];
    lists(&m, "inbox", &both);
    assert!(m.cat(&format!("archive/2026-04-24/{short}")).ends_with("\n\n00000001bbbb\n"));
    assert!(m.cat(&format!("inbox/{short}")).ends_with("\n\n00000001bbbb\n"));
    lists(&m, "inbox", std::slice::from_ref(&other));
    crate::common::agz::says(&file, "Status: read");
    m.umount();
    std::fs::remove_dir_all(bed.path("cache")).expect("the cache");
    std::fs::remove_dir_all(bed.path("state")).expect("the state");
    let m = bed.mount("bar");
    assert_eq!(m.ls("inbox"), [other.as_str()]);
    let thread = m.ls("threads").remove(0);
    assert_eq!(m.ls(&format!("threads/{thread}")), both);
    assert!(m.cat(&format!("threads/{thread}/{other}")).ends_with("\n\n00000001aaaa\n"));
    let gone = m.sh(&format!("cat archive/2026-04-24/{short}"));
    assert!(!gone.ok() && gone.stderr.contains("No such file"), "{gone:?}");
}

/// S191: two broken lines whose names in `rejected/` would be equal are both there.
#[test]
fn s191_two_rejects_never_share_a_name() {
    let bed = Bed::new();
    // The SHA-256 of `log-w304.jsonl:283` and of `log-w304.jsonl:2873` begin alike.
    let lines: String = (1..=2900).map(|n| format!("broken {n}\n")).collect();
    samp::append_raw(&samp::log(&bed.store, "w304"), lines);
    let m = bed.mount("bar");
    let names = m.ls("rejected");
    assert_eq!(names.len(), 2900);
    let name = |line: usize, digits| {
        format!(
            "log-w304-{}.txt",
            samp::sha_hex(format!("log-w304.jsonl:{line}").as_bytes(), digits)
        )
    };
    assert_eq!(name(283, 8), name(2873, 8));
    assert!(m.cat(&format!("rejected/{}", name(283, 8))).contains("log-w304.jsonl:283\n"));
    assert!(m.cat(&format!("rejected/{}", name(2873, 64))).contains("log-w304.jsonl:2873\n"));
}

/// S1384: the fraction of a time that another program wrote is the milliseconds in the name, and orders the messages.
#[test]
fn s1384_the_fraction_of_a_time() {
    let bed = Bed::new();
    for (fraction, body) in [(".9", "second"), (".1", "first"), (".1000001", "first, too")] {
        let rec = samp::Rec::new("foo", "bar", "t", body, T0);
        let line = rec.line().replace(&T0.to_string(), &format!("{T0}{fraction}"));
        samp::append_raw(&samp::log(&bed.store, "foo"), line);
    }
    let m = bed.mount("bar");
    let names = m.ls("threads/t");
    let ends: Vec<&str> = names.iter().map(|name| &name[15..20]).collect();
    assert_eq!(ends, [".100Z", ".100Z", ".900Z"], "{names:?}");
    assert!(m.cat(&format!("threads/t/{}", names[2])).ends_with("second\n"));
}
