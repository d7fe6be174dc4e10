//! The messages of a conversation, their order, and the agents that they name.

use std::collections::BTreeSet;
use std::fs;

use serde_json::json;

use crate::common::agz::{Letter, Tree};
use crate::common::amp::{self, Home};
use crate::common::samp::{self, Rec, T0, key, member, read_log};
use crate::common::{Bed, Mount, shown, soon};

/// Returns the threads of the records in a log, in order.
fn threads(bed: &Bed, alias: &str) -> Vec<String> {
    read_log(&bed.store, alias).iter().map(|r| member(r, "thread").to_owned()).collect()
}

/// S250: every draft that answers nothing and names no thread begins a conversation. It is named after the draft's
/// subject or first line, whoever the recipients are. This holds for several drafts at once and after a remount,
/// too. All recipients of one draft are in one thread. A draft with a named thread, and an answer, join the thread
/// that they name.
#[test]
fn s250_a_new_conversation_joins_none() {
    let bed = Bed::new();
    let m = bed.mount("bar");
    let day = samp::today();
    m.ok("echo done > outbox/bob; printf 'done\nnot for bob\n' > outbox/carol; echo done > outbox/bob");
    m.ok("printf 'To: carol, bob\n\nDone!\n' > outbox/x");
    m.ok("for s in 'schema change' lunch lunch; do printf \"To: bob\\nSubject: $s\\n\\nHi Bob,\\n\" > outbox/x; done");
    let all = threads(&bed, "bar");
    let named =
        |ends: &[&str]| ends.iter().map(|end| format!("{day}-bar-{end}")).collect::<Vec<_>>();
    if samp::today() == day {
        let ends =
            ["done", "done-2", "done-3", "done-4", "done-4", "schema-change", "lunch", "lunch-2"];
        assert_eq!(all, named(&ends));
    }
    let bob = bed.mount("bob");
    assert_eq!(bob.ls("threads").len(), 6);
    let unread = bob.cat("status.txt");
    assert!(unread.contains("txt  schema change\n") && unread.contains("txt  lunch\n"), "{unread}");
    assert!(!unread.contains("Hi Bob"), "{unread}");
    bob.ok(&format!("echo fine > threads/{}/x", all[0]));
    assert_eq!(threads(&bed, "bob"), [all[0].as_str()]);
    m.umount();
    let m = bed.mount("bar");
    m.ok("echo done > outbox/bob");
    m.ok(&format!("printf 'Thread: {}\n\ndone\n' > outbox/dave", all[0]));
    m.ok(&format!("echo '[thread:{}] done' > outbox/dave", all[1]));
    let more = &threads(&bed, "bar")[8..];
    assert!(!all.contains(&more[0]), "{}", more[0]);
    assert_eq!(more[1..], all[..2]);
    // Each of the drafts that are written at once begins its own conversation. A retry begins none.
    m.ok("for i in $(seq 20); do printf 'Idempotency-Key: k%s\nTo: bob, carol\n\nat once\n' $i > outbox/p$i & done; wait");
    m.ok("for i in $(seq 20); do printf 'Idempotency-Key: k%s\nTo: bob, carol\n\nat once\n' $i > outbox/p$i; done");
    let all = threads(&bed, "bar");
    let at_once: Vec<&String> = all.iter().filter(|t| t.contains("at-once")).collect();
    assert_eq!(at_once.len(), 40, "{all:?}");
    assert_eq!(at_once.iter().collect::<BTreeSet<_>>().len(), 20, "{all:?}");
}

/// S250: accepted drafts of a killed mount keep the conversation that they were to begin. A draft that is written
/// next begins another one.
#[test]
fn s250_what_is_sent_after_a_kill_keeps_its_conversation() {
    let bed = Bed::new();
    let thread = format!("{}-bar-plan", samp::today());
    for at_once in [1, 8] {
        let m = bed.mount("bar");
        let write = format!("for i in $(seq {at_once}); do echo plan > outbox/bob & done; wait");
        m.sh(&format!("{write}; kill -9 {}", m.pid()));
        m.kill9();
    }
    let m = bed.mount("bar");
    m.ok("echo plan > outbox/bob");
    m.ls("sent");
    let all = threads(&bed, "bar");
    assert_eq!(all.len(), 10, "{all:?}");
    assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), 10, "{all:?}");
    assert!(all.iter().all(|t| t.starts_with(&thread) || samp::today() > thread), "{all:?}");
    // The same holds without a mount, with one process for each message.
    m.umount();
    for _ in 0..2 {
        assert!(bed.msgfs(["send", "bob", "plan", "--me", "bar"]).status().unwrap().success());
    }
    let all = threads(&bed, "bar");
    assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), 12, "{all:?}");
}

/// S250: a message that somebody else wrote under the id that follows from my text keeps that id.
#[test]
fn s250_of_another_writer() {
    let bed = Bed::new();
    let id = format!("{}-bar-plan", samp::today());
    samp::append(&bed.store, "eve", "mallory", &id, "between the two of us", T0);
    let m = bed.mount("bar");
    m.ok("echo plan > outbox/bob");
    assert_eq!(threads(&bed, "bar"), [format!("{id}-2")]);
    let bob = bed.mount("bob");
    assert!(!bob.ok("cat transcripts/*").contains("between"), "he sees what eve wrote");
}

/// Returns the texts in a folder of the mount, in the order of their names.
fn texts(m: &Mount, folder: &str) -> Vec<String> {
    shown::all(m, folder).iter().map(|s| s.body.trim().to_owned()).collect()
}

/// Returns the only folder below another one.
#[track_caller]
fn only_folder(m: &Mount, folder: &str) -> String {
    let all = m.ls(folder);
    assert_eq!(all.len(), 1, "{all:?}");
    format!("{folder}/{}", all[0])
}

/// Lets two mounts ask and answer as fast as they can, a dozen times. The names in both must be in the order of
/// the writing.
#[track_caller]
fn ping_pong(asks: &Mount, answers: &Mount, first: &str) {
    asks.ok(first);
    let mut said = vec!["q0".to_owned()];
    let thread = |m: &Mount| only_folder(m, "threads");
    for n in 0..12 {
        soon("the question is there", || answers.ls("inbox").len() == 1);
        // `.next` comes right after: question, answer and question fall into one second.
        answers.ok(&format!(
            "f=$(echo inbox/*); echo a{n} > \"${{f%.txt}}.reply\"; cat $f > /dev/null"
        ));
        soon("the answer is there", || asks.ls("inbox").len() == 1);
        asks.ok(&format!(
            "f=$(echo inbox/*); echo q{} > \"${{f%.txt}}.reply\"; cat $f > /dev/null",
            n + 1
        ));
        said.extend([format!("a{n}"), format!("q{}", n + 1)]);
    }
    for m in [asks, answers] {
        soon("all of it is there", || m.ls(&thread(m)).len() == said.len());
        assert_eq!(texts(m, &thread(m)), said);
    }
    assert_eq!(asks.ls(&thread(asks)), answers.ls(&thread(answers)), "names are the same for both");
}

/// S251: in SAMP an answer comes after its question also within one second. Every record has its milliseconds in a
/// member that the signature covers.
#[test]
fn s251_an_answer_never_stands_before_its_question() {
    let bed = Bed::new();
    let (bar, foo) = (bed.mount("bar"), bed.mount("foo"));
    ping_pong(&bar, &foo, "printf 'Thread: t\n\nq0\n' > outbox/foo");
    for rec in read_log(&bed.store, "bar") {
        let ms = rec["ms"].as_u64().unwrap();
        let sent = format!("sent/{}", samp::strftime(rec["ts"].as_i64().unwrap(), "%Y-%m-%d"));
        let stem = samp::strftime(rec["ts"].as_i64().unwrap(), "%Y%m%dT%H%M%S");
        let name = format!("{stem}.{ms:03}Z-bar-{}.txt", &member(&rec, "id")[..8]);
        assert!(ms < 1000 && bar.ls(&sent).contains(&name), "{name}");
    }
    assert!(bar.ls("rejected").is_empty() && foo.ls("rejected").is_empty());
}

/// S251: the same holds in AgentAZAll mailboxes, whose dates are local and in whole seconds, also for a reader in
/// another time zone.
#[test]
fn s251_letters() {
    let bed = Bed::new();
    let tree = Tree::new(&bed);
    let other = tree.beside("foo@localhost", &json!({}));
    bed.config(&tree.store());
    let bar = bed.mount("bar");
    let config = bed.path("config/foo.toml");
    fs::write(&config, other.store()).unwrap();
    let dir = bed.path("mnt-foo");
    let mut c = bed.msgfs(["mount"]);
    c.arg(&dir).args(["--me", "foo", "--config"]).arg(&config).env("TZ", "<-11>11");
    let foo = bed.mount_by(c, &dir, "foo");
    ping_pong(&bar, &foo, "printf 'Subject: s\n\nq0\n' > outbox/foo@localhost");
    assert!(bar.ls("rejected").is_empty() && foo.ls("rejected").is_empty());
}

/// S251: the same holds in AMP mailboxes. Messages of a burst arrive in their order, and their ids are in this
/// order, too.
#[test]
fn s251_amp() {
    let bed = Bed::new();
    let home = Home::new(&bed);
    bed.config(&home.store());
    let (bar, alice) = (bed.mount("bar"), bed.mount("alice"));
    ping_pong(&bar, &alice, "printf 'Subject: s\n\nq0\n' > outbox/alice");
    bar.ok("for i in $(seq 10 59); do echo burst $i > outbox/alice; done");
    soon("all of it is there", || alice.ls("inbox").len() == 51);
    let burst: Vec<String> = (10..60).map(|i| format!("burst {i}")).collect();
    assert_eq!(texts(&alice, "inbox")[1..], burst);
    let mut files = home.list("alice", "inbox");
    files.sort();
    let said: Vec<String> =
        files.iter().map(|f| amp::read(f)).map(|v| v["payload"]["message"].to_string()).collect();
    assert!(said.iter().filter(|s| s.contains("burst")).is_sorted(), "{said:?}");
}

/// S251: if a writer's clock is ahead, an answer is later than the question, and further answers are later still.
/// My other messages do not follow that clock.
#[test]
fn s251_a_clock_ahead() {
    let bed = Bed::new();
    let ahead = samp::now() + 3600;
    for n in 0..3 {
        samp::append(&bed.store, "foo", "bar", "t", &format!("question {n}"), ahead);
    }
    let m = bed.mount("bar");
    let stem = m.ls("threads/t")[2].replace(".txt", ".reply");
    m.ok(&format!(
        "for n in 0 1 2; do echo answer $n > threads/t/{stem}; done; echo other > outbox/foo"
    ));
    let wanted = ["question 0", "question 1", "question 2", "answer 0", "answer 1", "answer 2"];
    assert_eq!(texts(&m, "threads/t"), wanted);
    let times: Vec<i64> =
        read_log(&bed.store, "bar").iter().map(|r| r["ts"].as_i64().unwrap()).collect();
    assert_eq!(times[..3], [ahead; 3]);
    assert!(times[3] < ahead - 1800, "{times:?}");
}

/// S252: names of messages with milliseconds do not depend on the order in which a writer's logs and their
/// conflict copies are read. Messages without milliseconds are counted as before.
#[test]
fn s252_names_after_conflict_copies_were_merged() {
    let bed = Bed::new();
    let line = |n: u32, ms: u32| {
        let rec = Rec::new("foo", "bar", "t", &format!("mail {n}"), T0);
        rec.signed_line(&key(3), &[("ms", json!(ms))])
    };
    let [a, b, c] = [line(0, 250), line(1, 7), line(2, 999)];
    let old = |n: u32| Rec::new("old", "bar", "t", &format!("mail {n}"), T0);
    let copy = "log-foo.sync-conflict-20260424-174203-ABCDEFG.jsonl";
    let mut shown = Vec::new();
    for (machine, main, other) in [("one", [&a, &b], &c), ("two", [&c, &a], &b)] {
        let store = bed.path(machine);
        fs::create_dir(&store).unwrap();
        samp::append_raw(&samp::log(&store, "foo"), main.map(String::as_str).concat());
        samp::append_raw(&store.join(copy), other);
        samp::append_raw(&samp::log(&store, "old"), old(0).line() + &old(1).line());
        bed.config(&format!("[[store]]\nkind = \"samp\"\ndir = {:?}\n", store.to_str().unwrap()));
        let m = bed.mount("bar");
        let names = m.ls("threads/t");
        assert!(names.contains(&old(0).name(0)) && names.contains(&old(1).name(1)), "{names:?}");
        let foo: Vec<String> = names.into_iter().filter(|n| n.contains("-foo-")).collect();
        let times: Vec<&str> = foo.iter().map(|n| &n[..20]).collect();
        let second = samp::strftime(T0, "%Y%m%dT%H%M%S");
        assert_eq!(times, [".007Z", ".250Z", ".999Z"].map(|ms| format!("{second}{ms}")));
        shown.push((foo, m.ok("cat threads/t/*")));
        m.umount();
        fs::remove_dir_all(bed.path("cache/msgfs")).unwrap();
    }
    assert_eq!(shown[0], shown[1]);
    assert!(shown[0].1.contains("Signature: valid"), "{}", shown[0].1);
}

/// S252: a value that is no count of milliseconds gives none.
#[test]
fn s252_no_milliseconds() {
    let bed = Bed::new();
    let odd = [json!(1000), json!(-1), json!("5"), json!(5.0), json!(null), json!([5])];
    for (n, ms) in odd.iter().enumerate() {
        let rec = Rec::new("foo", "bar", "t", &format!("mail {n}"), T0);
        samp::append_raw(&samp::log(&bed.store, "foo"), rec.line_with(&[("ms", ms.clone())]));
    }
    let m = bed.mount("bar");
    let wanted: Vec<String> = (0..odd.len()).map(|n| format!("mail {n}")).collect();
    assert_eq!(texts(&m, "threads/t"), wanted);
    let names = m.ls("threads/t");
    assert!(names.iter().enumerate().all(|(n, name)| name[15..].starts_with(&format!(".00{n}Z-"))));
}

/// S53, S252: two senders tie only if nobody can tell whose message is newer.
#[test]
fn s252_ties() {
    let bed = Bed::new();
    for (from, ms) in [("foo", 900), ("carol", 100)] {
        let rec = Rec::new(from, "bar", "t", "which?", T0);
        let line = rec.line_with(&[("ms", json!(ms))]);
        samp::append_raw(&samp::log(&bed.store, from), line);
    }
    let m = bed.mount("bar");
    m.ok("echo yes > threads/t/x");
    assert_eq!(member(&samp::only(&bed.store, "bar"), "to"), "foo");
    let whole = samp::append(&bed.store, "dave", "bar", "t", "some time in that second", T0);
    m.appears(&format!("inbox/{}", whole.name(0)));
    let out = m.sh("echo x | tee threads/t/y");
    assert!(!out.ok() && out.stderr.contains("Invalid argument"), "{out:?}");
}

/// Returns the Message-IDs in a folder, each as often as it is there.
fn ids(m: &Mount, folder: &str) -> Vec<String> {
    shown::all(m, folder).iter().map(|s| s.must("Message-ID").to_owned()).collect()
}

/// S253: a message to several recipients names all of them to each of them, in `To` and in a signed member of each
/// record. Threads, transcripts and `sent/` have it once, under one id for everybody.
#[test]
fn s253_to_several() {
    let bed = Bed::new();
    let bar = bed.mount("bar");
    bar.ok("printf 'To: bob, carol\nCc: dave\nThread: t\n\nhello\n' > outbox/x");
    let sent = read_log(&bed.store, "bar");
    assert_eq!(sent.iter().map(|r| member(r, "to")).collect::<Vec<_>>(), ["bob", "carol", "dave"]);
    let own = |n: usize| format!("<{}@samp>", member(&sent[n], "id"));
    for rec in &sent {
        assert_eq!(rec["rcpt"], json!(["bob", "carol", "dave"]));
        assert_eq!((&rec["ts"], &rec["ms"]), (&sent[0]["ts"], &sent[0]["ms"]));
    }
    let everybody = |s: &shown::Shown| s.must("To").to_owned();
    assert_eq!(ids(&bar, "threads/t"), [own(0)]);
    assert_eq!(ids(&bar, "sent"), [own(0)]);
    for name in ["bob", "carol", "dave"] {
        let m = bed.mount(name);
        assert_eq!(
            (ids(&m, "inbox"), ids(&m, "threads/t")),
            (vec![own(0)], vec![own(0)]),
            "{name}"
        );
        let got = shown::all(&m, "inbox").remove(0);
        assert_eq!(everybody(&got), "bob, carol, dave");
        assert!(got.must("Signature").starts_with("valid "));
        assert_eq!(m.cat("transcripts/t.txt").matches("\nhello\n").count(), 1);
        // The same holds again without the cache. A name that is not listed is not there.
        let listed = m.ok("ls -l threads/t transcripts; cat transcripts/t.txt");
        let id8 = |n: usize| member(&sent[n % 3], "id")[..8].to_owned();
        let other = m.ls("threads/t")[0].replace(&id8(0), &id8(1));
        assert!(!m.sh(&format!("test -e threads/t/{other}")).ok(), "{other}");
        m.umount();
        let m = bed.mount(name);
        assert_eq!(m.ok("ls -l threads/t transcripts; cat transcripts/t.txt"), listed);
        m.umount();
        fs::remove_dir_all(bed.path("cache/msgfs").join(name)).unwrap();
        let m = bed.mount(name);
        assert_eq!(m.ok("ls -l threads/t transcripts; cat transcripts/t.txt"), listed);
    }
    // A message to one recipient has the same record as before.
    bar.ok("echo hi > outbox/bob");
    assert_eq!(read_log(&bed.store, "bar")[3].get("rcpt"), None);
    // A reader that is no recipient sees it once.
    bed.config("scope = \"all\"\n");
    let eve = bed.mount("eve");
    assert_eq!((ids(&eve, "threads/t"), ids(&eve, "archive").len()), (vec![own(0)], 2));
}

/// S253: nothing is left out on somebody's word. A record may say that I got the message as well. It stands for
/// itself if mine is not there, or says something else.
#[test]
fn s253_on_nobodys_word() {
    let bed = Bed::new();
    let list = json!(["bob", "bar"]);
    let put = |rec: &Rec| {
        let line = rec.line_with(&[("ms", json!(1)), ("rcpt", list.clone())]);
        samp::append_raw(&samp::log(&bed.store, "foo"), line);
    };
    samp::append(&bed.store, "foo", "bar", "t", "first", T0);
    put(&Rec::new("foo", "bob", "t", "to bob", T0 + 1));
    put(&Rec::new("foo", "bar", "t", "to bar", T0 + 1));
    put(&Rec::new("foo", "bob", "t", "kept from bar", T0 + 2));
    let m = bed.mount("bar");
    let four: BTreeSet<String> = texts(&m, "threads/t").into_iter().collect();
    assert_eq!(four, ["first", "to bar", "to bob", "kept from bar"].map(str::to_owned).into());
    samp::append(&bed.store, "foo", "bob", "t", "more", T0 + 3);
    soon("it is there", || m.ls("threads/t").len() == 5);
    let wanted = ["first", "to bar", "to bob", "kept from bar", "more"];
    let shown: BTreeSet<String> = texts(&m, "threads/t").into_iter().collect();
    assert_eq!(shown, wanted.map(str::to_owned).into());
    // A list that is malformed, or does not name the recipient, says nothing.
    for (n, odd) in
        [json!("bar"), json!([]), json!(["bob"]), json!(["bar", "a b"]), json!(["bar", 3])]
            .into_iter()
            .enumerate()
    {
        let rec = Rec::new("foo", "bar", "odd", &format!("odd {n}"), T0 + 9);
        samp::append_raw(&samp::log(&bed.store, "foo"), rec.line_with(&[("rcpt", odd)]));
    }
    soon("they are there", || m.sh("ls threads/odd").stdout.lines().count() == 5);
    assert!(shown::all(&m, "threads/odd").iter().all(|s| s.must("To") == "bar"));
}

/// S254: a group stands for its members except me, as a name in `outbox/`, in `To` and in `Cc`, and for `msgfs
/// send`. A group of nobody else is refused, and so is a group that is no list.
#[test]
fn s254_groups() {
    let bed = Bed::new();
    bed.config("[groups]\nteam = [\"bob\", \"bar\", \"carol\"]\nself = [\"bar\"]\n");
    let m = bed.mount("bar");
    m.ok("echo one > outbox/team; printf 'To: team, dave, bob\n\ntwo\n' > outbox/x");
    m.ok("printf 'To: dave\nCc: team\n\nthree\n' > outbox/x");
    let sent = read_log(&bed.store, "bar");
    let to: Vec<&str> = sent.iter().map(|r| member(r, "to")).collect();
    assert_eq!(to, ["bob", "carol", "bob", "carol", "dave", "dave", "bob", "carol"]);
    assert_eq!(sent[0]["rcpt"], json!(["bob", "carol"]));
    let out = m.sh("echo me | tee outbox/self");
    assert!(!out.ok() && out.stderr.contains("Destination address required"), "{out:?}");
    assert!(m.cat("outbox/self.error").contains("no member but you"));
    m.umount();
    let out = bed.msgfs_out(&["--me", "bar", "send", "team", "four"]);
    assert!(out.ok() && samp::bodies(&bed.store, "bar").len() == 10, "{out:?}");
    for bad in ["team = \"bob\"", "team = []", "\"a b\" = [\"bob\"]"] {
        bed.config(&format!("[groups]\n{bad}\n"));
        let out = bed.msgfs_out(&["--me", "bar", "status"]);
        assert!(!out.ok() && out.stderr.contains("config.toml:2:"), "{bad}: {out:?}");
    }
}

/// S255, S10: `.reply-all` answers the sender and all other recipients in the thread, wherever the message is.
/// Beside a message to me alone it equals `.reply`. Beside one of mine it goes to the recipients of that one.
#[test]
fn s255_reply_all() {
    let bed = Bed::new();
    let (foo, bar) = (bed.mount("foo"), bed.mount("bar"));
    foo.ok(
        "printf 'To: carol, bar, dave\nThread: t\n\nwho comes?\n' > outbox/x; echo hi > outbox/bar",
    );
    soon("both are there", || bar.ls("inbox").len() == 2);
    let of = |m: &Mount, folder: &str, text: &str| {
        let file = m.ok(&format!("grep -l '{text}' {folder}/*.txt | head -1"));
        file.trim().trim_end_matches(".txt").to_owned()
    };
    for (n, folder) in ["inbox", "archive/*", "threads/t"].into_iter().enumerate() {
        let stem = of(&bar, folder, "who comes");
        assert_eq!(bar.ok(&format!("ls {folder} | grep -c reply; :")).trim(), "0", "not listed");
        bar.ok(&format!("echo I do {n} > {stem}.reply-all"));
        let sent = read_log(&bed.store, "bar").split_off(3 * n);
        assert_eq!(
            sent.iter().map(|r| member(r, "to")).collect::<Vec<_>>(),
            ["foo", "carol", "dave"]
        );
        let asked = read_log(&bed.store, "foo");
        for r in sent {
            // The answer names the id that the message has for everybody (S371).
            let shared = member(&asked[0], "id");
            assert_eq!((member(&r, "thread"), member(&r, "re")), ("t", shared));
            assert_eq!(r["rcpt"], json!(["foo", "carol", "dave"]));
        }
    }
    let said = ["who comes?", "I do 0", "I do 1", "I do 2"];
    for m in [&foo, &bar, &bed.mount("dave")] {
        soon("all is there", || m.ls("threads/t").len() == 4);
        assert_eq!(texts(m, "threads/t"), said);
    }
    bar.ok(&format!("echo alone > {}.reply-all", of(&bar, "archive/*", "^hi$")));
    let own = of(&bar, "threads/t", "I do 0");
    bar.ok(&format!("printf 'one more thing\n' > {own}.reply-all"));
    let last = read_log(&bed.store, "bar").split_off(9);
    let to: Vec<&str> = last.iter().map(|r| member(r, "to")).collect();
    assert_eq!(to, ["foo", "foo", "carol", "dave"]);
    // If it is refused, it is kept under its own name and for its own recipients.
    let stem = of(&bar, "threads/t", "who comes");
    let out = bar.sh(&format!("printf 'To: no one!\n\nx\n' | tee {stem}.reply-all"));
    assert!(!out.ok() && bar.ok("ls outbox").contains(".reply-all.error"), "{out:?}");
    bar.ok("f=$(ls outbox/*.reply-all); echo again > $f");
    let last = read_log(&bed.store, "bar").split_off(13);
    assert_eq!(last.iter().map(|r| member(r, "to")).collect::<Vec<_>>(), ["foo", "carol", "dave"]);
    assert!(bar.ls("outbox").is_empty());
    let out = bar.sh("echo x > inbox/20200101T000000.000Z-foo-00000000.reply-all");
    assert!(!out.ok(), "{out:?}");
}

/// S255: in a letter, everybody who got the one letter gets the answer, also the recipients in Cc.
#[test]
fn s255_letters() {
    let bed = Bed::new();
    let tree = Tree::new(&bed);
    bed.config(&tree.store());
    let letter = Letter::new("alice@localhost", "s", "who comes?", 1)
        .set("To", "bob@localhost, bar@localhost")
        .set("Cc", "carol@localhost");
    tree.receive(&letter);
    let m = bed.mount("bar");
    let stem = letter.name(1).replace(".txt", "");
    m.ok(&format!("echo 'I do' > inbox/{stem}.reply-all"));
    let file = only_folder(&m, "sent");
    let got = shown::all(&m, &file).remove(0);
    assert_eq!(got.must("To"), "alice@localhost, bob@localhost, carol@localhost");
    m.ok(&format!("echo 'for you' > inbox/{stem}.reply"));
    let all: BTreeSet<String> =
        shown::all(&m, &file).iter().map(|s| s.must("To").to_owned()).collect();
    assert!(all.contains("alice@localhost"), "{all:?}");
}

/// S389: a name that resembles a group is refused like one that resembles an agent, and the error names the group.
#[test]
fn s389_names_near_a_group() {
    let bed = Bed::new();
    bed.config("[groups]\nteam = [\"bob\", \"carol\"]\n");
    let m = bed.mount("bar");
    for name in ["teams", "Team", "team.json", "taem"] {
        let out = m.sh(&format!("echo hi | tee outbox/{name}"));
        assert!(!out.ok() && out.stderr.contains("No route to host"), "{name}: {out:?}");
        assert!(m.cat(&format!("outbox/{name}.error")).contains("outbox/team "), "{name}");
    }
    assert!(samp::read_log(&bed.store, "bar").is_empty());
    m.ok("printf 'To: teams\\n\\nhi\\n' > outbox/teams");
    assert_eq!(samp::member(&samp::only(&bed.store, "bar"), "to"), "teams");
    m.umount();
    bed.config("unknown_recipient = \"refuse\"\n[groups]\nteam = [\"bob\", \"carol\"]\n");
    let m = bed.mount("bar");
    assert!(!m.sh("echo hi | tee outbox/teem").ok());
    assert!(m.cat("outbox/teem.error").contains("the nearest known name is team"));
}
