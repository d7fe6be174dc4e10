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

/// S190: the second of two such threads gets a name of its own, and each answer goes to its thread.
#[test]
fn s190_two_threads_never_share_a_folder() {
    let bed = Bed::new();
    let [first, second] = alike();
    let honest = samp::append(&bed.store, "foo", "bar", &first, "mine", T0);
    let short = samp::thread_dir(&first);
    assert_eq!(short, samp::thread_dir(&second));
    let m = bed.mount("bar");
    assert_eq!(m.ls("threads"), [short.as_str()]);
    // It comes later, says that it is older, and its log comes first.
    let forged = samp::append(&bed.store, "evil", "bar", &second, "no, mine", T0 - 9);
    let long = format!("{}~{}", &second[..135], samp::sha_hex(second.as_bytes(), 64));
    let mut m = m;
    for round in ["a", "b", "c"] {
        let mut names = [short.clone(), long.clone()];
        names.sort();
        lists(&m, "threads", &names);
        assert_eq!(m.ls(&format!("threads/{short}")).first(), Some(&honest.name(0)));
        m.ok(&format!("ls -l threads transcripts; echo answer-{round} > threads/{short}/answer"));
        let reply = format!("threads/{long}/{}.reply", forged.name(0).trim_end_matches(".txt"));
        m.ok(&format!("echo reply-{round} > {reply}; ls sent > /dev/null"));
        assert!(m.cat(&format!("transcripts/{short}.txt")).contains("\n\nmine\n"));
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

/// S191: if two messages have one time, sender and short id, the later one is named by its full id.
#[test]
fn s191_two_messages_never_share_a_name() {
    let bed = Bed::new();
    let tree = Tree::new(&bed);
    bed.config(&tree.store());
    let letter = |id: &str| Letter::new("foo@x", "t", id, 1).set("Message-ID", id);
    let [first, second] = ["00000001bbbb", "00000001aaaa"].map(letter);
    tree.receive(&first);
    let m = bed.mount("bar");
    let short = first.name(1);
    assert_eq!(m.ls("inbox"), [short.as_str()]);
    tree.receive(&second);
    let long = second.name(1).replace("00000001", "00000001aaaa");
    let mut both = [short.clone(), long.clone()];
    both.sort();
    lists(&m, "inbox", &both);
    assert!(m.cat(&format!("inbox/{short}")).ends_with("\n\n00000001bbbb\n"));
    lists(&m, "inbox", std::slice::from_ref(&long));
    m.umount();
    std::fs::remove_dir_all(bed.path("cache")).expect("the cache");
    let m = bed.mount("bar");
    assert_eq!(m.ls("inbox"), [long.as_str()]);
    let thread = m.ls("threads").remove(0);
    assert_eq!(m.ls(&format!("threads/{thread}")), both);
    assert!(m.cat(&format!("threads/{thread}/{long}")).ends_with("\n\n00000001aaaa\n"));
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
