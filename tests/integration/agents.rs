//! `agents.txt`: all known agents, and the number of their unread messages.

use std::fs;

use serde_json::{Value, json};

use crate::amq;
use crate::common::agz;
use crate::common::amp;
use crate::common::samp::{self, Rec, T0, append_raw, append_signed, fingerprint, log};
use crate::common::{Bed, Mount, run, soon};
use crate::ssot;

/// Returns the words of the line about an agent.
#[track_caller]
fn words(m: &Mount, name: &str) -> Vec<String> {
    let text = m.cat("agents.txt");
    let mut of = text.lines().filter(|line| line.split(' ').next() == Some(name));
    let line = of.next().unwrap_or_else(|| panic!("no {name} in\n{text}"));
    assert!(of.next().is_none(), "{text}");
    line.split(' ').map(str::to_owned).collect()
}

fn unread(m: &Mount, name: &str) -> String {
    words(m, name)[3].clone()
}

fn position(bed: &Bed, alias: &str, ts: i64, ids: &[&str]) {
    fs::write(bed.store.join(format!(".seen-{alias}")), json!({"ts": ts, "ids": ids}).to_string())
        .unwrap();
}

/// S530: there is one line for each agent, over all stores, with the facts that are known of it. Looking changes
/// nothing.
#[test]
fn s530_one_line_an_agent() {
    let bed = Bed::new();
    let queue = amq::Queue::new(&bed, &["bar", "alice", "idle"]);
    bed.config(&format!("[[store]]\nkind = \"samp\"\n\n{}", queue.store()));
    let key = samp::key(7);
    append_signed(&bed.store, &key, &Rec::new("alice", "bar", "t", "signed", T0));
    samp::append(&bed.store, "foo", "bar", "t", "one", T0 + 5);
    samp::append(&bed.store, "foo", "bar", "t", "two", T0 + 10);
    samp::append(&bed.store, "foo", "never", "t", "three", T0 + 3);
    let m = bed.mount("bar");
    let text = m.cat("agents.txt");
    let own = m.cat("status.txt");
    let own = own.lines().find_map(|l| l.strip_prefix("key: ")).unwrap();
    assert_eq!(
        text,
        format!(
            "# name stores last-wrote unread key pinned mounted (-: not known)\n\
             alice amq,samp 2026-04-24T17:42:03.000Z 0 {} pinned\n\
             bar amq,samp - 3 {own} pinned\n\
             foo samp 2026-04-24T17:42:13.000Z - - -\n\
             idle amq - 0 - -\n\
             never samp - - - -\n",
            fingerprint(&key)
        )
    );
    assert_eq!(m.ok("awk '$6 == \"pinned\" {print $1}' agents.txt"), "alice\nbar\n");
    assert_eq!(m.ok("column -t agents.txt | wc -l").trim(), "6");
    let stat = m.ok("stat -c '%a %s %Y' agents.txt");
    let mode_and_size = format!("400 {} ", text.len());
    assert!(stat.starts_with(&mode_and_size), "{stat}");
    assert_eq!(m.ok("cat agents.txt; stat -c '%a %s %Y' agents.txt"), format!("{text}{stat}"));
    assert_eq!(m.ls("inbox").len(), 3, "nothing is marked");
    assert!(!m.sh("echo x > agents.txt").ok());
    assert!(m.cat("README.txt").contains("agents.txt"));
}

/// S531: in SAMP, the messages after an agent's read position are unread, except those that the position names.
#[test]
fn s531_behind_a_read_position() {
    let bed = Bed::new();
    let body = |n: i64| format!("message {n}");
    let all: Vec<Rec> =
        (0..6).map(|n| samp::append(&bed.store, "foo", "bob", "t", &body(n / 2), T0 + n)).collect();
    let same = samp::append(&bed.store, "foo", "bob", "t", "in one second", T0 + 3);
    samp::append(&bed.store, "foo", "carol", "t", "to carol", T0);
    position(&bed, "bob", T0 + 3, &[&all[3].id]);
    let m = bed.mount("bar");
    // There are two later messages, and one of the second of the position.
    assert_eq!(unread(&m, "bob"), "3");
    assert_eq!(unread(&m, "carol"), "-");
    assert_eq!(words(&m, "bob")[1], "samp", "who never wrote is known too");
    let late = format!("foo:{}", all[5].id);
    position(&bed, "bob", T0 + 3, &[&all[3].id, &same.id, &late]);
    soon("bob has read two more", || unread(&m, "bob") == "1");
    position(&bed, "bob", T0 + 9, &[]);
    soon("bob has read all", || unread(&m, "bob") == "0");
    // For me, my own marks count, as they are now.
    samp::append(&bed.store, "foo", "bar", "t", "to me", T0 + 20);
    soon("it is here", || unread(&m, "bar") == "1");
    m.ok("cat inbox/*");
    assert_eq!(unread(&m, "bar"), "0");
    // A position that is no regular file tells nothing.
    fs::remove_file(bed.store.join(".seen-bob")).unwrap();
    std::os::unix::fs::symlink("/etc/passwd", bed.store.join(".seen-bob")).unwrap();
    soon("nothing is told", || unread(&m, "bob") == "-");
}

/// S531: a message to several recipients counts once for each of them, until that recipient has read it.
#[test]
fn s531_a_message_to_several() {
    let bed = Bed::new();
    let m = bed.mount("bar");
    m.ok("printf 'To: bob, carol\\nSubject: plan\\n\\none for both\\n' > outbox/x");
    let record = samp::read_log(&bed.store, "bar");
    let of = |to: &str| record.iter().find(|r| samp::member(r, "to") == to).unwrap();
    let ts = of("bob")["ts"].as_i64().unwrap();
    position(&bed, "bob", ts, &[samp::member(of("bob"), "id")]);
    position(&bed, "carol", ts - 1, &[]);
    soon("bob has read it", || unread(&m, "bob") == "0");
    assert_eq!(unread(&m, "carol"), "1");
    position(&bed, "carol", ts, &[samp::member(of("carol"), "id")]);
    soon("carol has read it", || unread(&m, "carol") == "0");
}

/// S531: in a queue the messages in `new/` count. A task record counts if it asks a role for its acknowledgement.
#[test]
fn s531_queues_and_tasks() {
    let bed = Bed::new();
    let queue = amq::Queue::new(&bed, &["bar", "alice", "bob"]);
    let tasks = format!(
        "[[store]]\nkind = \"ssot\"\nme = \"coordinator\"\ndir = {:?}\n",
        bed.path("ssot").to_str().unwrap()
    );
    bed.config(&format!("{}\n{tasks}", queue.store()));
    for n in 1..=3 {
        let (path, text) = amq::mail(n);
        fs::write(queue.root.join(path), text).unwrap();
    }
    let m = bed.mount("bar");
    assert_eq!(unread(&m, "bob"), "3");
    let bob = queue.root.join("agents/bob/inbox");
    fs::rename(bob.join("new/m1.md"), bob.join("cur/m1.md")).unwrap();
    soon("bob has read one", || unread(&m, "bob") == "2");
    assert_eq!(words(&m, "executor")[1..], ["ssot", "-", "0", "-", "-"]);
    let draft = ssot::draft("executor", "task_dispatch", &ssot::payload("task_dispatch"));
    m.ok(&format!("cat > outbox/task <<'EOF'\n{draft}EOF"));
    soon("it waits", || unread(&m, "executor") == "1");
    let config = bed.path("executor.toml");
    fs::write(&config, tasks.replace("coordinator", "executor")).unwrap();
    let more = ["--config", config.to_str().unwrap()];
    let executor = bed.mount_at(&bed.path("mnt-executor"), "executor", &more);
    executor.ok("for f in inbox/*.txt; do echo ok > \"${f%.txt}.ack\"; done");
    soon("it is acknowledged", || unread(&m, "executor") == "0");
}

/// S531: in mailboxes of other agents of this machine, the status in their files counts.
#[test]
fn s531_mailboxes_of_others() {
    let bed = Bed::new();
    let (home, tree) = (amp::Home::new(&bed), agz::Tree::new(&bed));
    bed.config(&format!("{}\n{}", home.store(), tree.store()));
    let to_alice = |n| amp::Msg::new("plan", "text", n).between(amp::BAR, amp::ALICE);
    let first = home.deliver("alice", &to_alice(1));
    home.deliver("alice", &to_alice(2));
    let letter = agz::Letter::new(agz::ME, "plan", "text", 1);
    let there = tree.mailbox("pal.agenttalk").join(agz::DAY).join("inbox/a1.txt");
    agz::put(&there, letter.set("To", "pal.agenttalk").text());
    let m = bed.mount("bar");
    assert_eq!(unread(&m, amp::ALICE), "2");
    assert_eq!(unread(&m, "pal.agenttalk"), "1");
    let replaced = |file: &std::path::Path, from: &str, to: &str| {
        let text = fs::read_to_string(file).unwrap();
        assert!(text.contains(from), "{text}");
        fs::write(file, text.replace(from, to)).unwrap();
    };
    replaced(&first, "\"unread\"", "\"read\"");
    replaced(&there, "Status: new", "Status: read");
    soon("one less each", || unread(&m, amp::ALICE) == "1" && unread(&m, "pal.agenttalk") == "0");
}

/// S532: the name that a stranger gives itself is one word, and a sender whose mail was refused is not listed.
#[test]
fn s532_names_of_strangers() {
    let bed = Bed::new();
    let evil = "e vil\n\u{1b}[31m,\u{202e}x";
    append_raw(&log(&bed.store, "foo"), Rec::new("foo", evil, "t", "x", T0).line());
    append_raw(&log(&bed.store, "foo"), Rec::new("foo", "../seen", "t", "x", T0).line());
    append_raw(&log(&bed.store, "liar"), Rec::new("somebody", "bar", "t", "x", T0).line());
    fs::write(log(&bed.store, "new"), "").unwrap();
    append_signed(&bed.store, &samp::key(7), &Rec::new("known", "bar", "t", "x", T0));
    let rec = Rec::new("forger", "bar", "t", "x", T0);
    let [own, other] = [7, 8]
        .map(|n| -> Value { serde_json::from_str(&rec.signed_line(&samp::key(n), &[])).unwrap() });
    let mix = [("pub", own["pub"].clone()), ("sig", other["sig"].clone())];
    append_raw(&log(&bed.store, "forger"), rec.line_with(&mix));
    let m = bed.mount("bar");
    let text = m.cat("agents.txt");
    let (heading, text) = text.split_once('\n').unwrap();
    assert!(heading.starts_with("# "));
    assert_eq!(text.lines().count(), 6, "{text}");
    assert!(text.lines().all(|line| line.split(' ').count() == 6), "{text}");
    assert!(text.is_ascii() && !text.contains(['\u{1b}', '\t']), "{text}");
    assert!(text.contains("\ne%20vil%0A%1B%5B31m%2C%E2%80%AEx samp - - - -\n"), "{text}");
    assert!(text.starts_with("%2E.%2Fseen samp "), "{text}");
    assert!(!text.contains("somebody") && text.contains("\nnew samp - - - -\n"), "{text}");
    // The same holds with the cache. A sender whose records were all refused is not listed in the JSON either.
    assert!(!text.contains("liar") && !text.contains("forger"), "{text}");
    drop(m);
    assert_eq!(bed.mount("bar").cat("agents.txt"), format!("{heading}\n{text}"));
    let out = run(bed.msgfs(["agents", "--json", "--me", "bar"]), None).stdout;
    let told: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(told.as_array().unwrap().len(), 6, "{told}");
}

/// S533: the command prints the same, mounted or not, and can print JSON with names as they are.
#[test]
fn s533_command() {
    let bed = Bed::new();
    let key = samp::key(7);
    append_signed(&bed.store, &key, &Rec::new("foo", "bar", "t", "signed", T0));
    append_raw(&log(&bed.store, "foo"), Rec::new("foo", "b ob", "t", "x", T0).line());
    let bar = |args: &[&str]| {
        let mut c = bed.msgfs(args);
        c.args(["--me", "bar"]);
        let out = run(c, None);
        assert!(out.ok(), "{out:?}");
        out.stdout
    };
    let m = bed.mount("bar");
    let text = m.cat("agents.txt");
    assert_eq!(bar(&["agents"]), text);
    let told: Value = serde_json::from_str(&bar(&["agents", "--json"])).unwrap();
    drop(m);
    assert_eq!(bar(&["agents"]), text);
    assert_eq!(serde_json::from_str::<Value>(&bar(&["agents", "--json"])).unwrap(), told);
    let foo = json!({"name": "foo", "stores": ["samp"], "last_wrote": "2026-04-24T17:42:03.000Z",
        "unread": null, "key": fingerprint(&key), "pinned": true});
    let bob = json!({"name": "b ob", "stores": ["samp"], "last_wrote": null, "unread": null,
        "key": null, "pinned": false});
    let all = told.as_array().unwrap();
    assert!(all.contains(&foo) && all.contains(&bob) && all.len() == 3, "{told}");
}

/// S534: a reader of all mail is told how many messages there are to see.
#[test]
fn s534_status_counts_what_is_shown() {
    let bed = Bed::new();
    samp::append(&bed.store, "foo", "bob", "t", "one", T0);
    samp::append(&bed.store, "bob", "foo", "t", "two", T0 + 5);
    samp::append(&bed.store, "foo", "watcher", "t", "three", T0 + 9);
    let several = Rec::new("foo", "bob", "u", "to both", T0 + 20);
    let line = |rec: &Rec| rec.line_with(&[("rcpt", json!(["bob", "carol"]))]);
    append_raw(&log(&bed.store, "foo"), line(&several));
    append_raw(&log(&bed.store, "foo"), line(&Rec::new("foo", "carol", "u", "to both", T0 + 20)));
    let counts = |m: &Mount| {
        let text = m.cat("status.txt");
        text.lines().find_map(|l| l.trim().strip_prefix("samp (samp): ")).unwrap().to_owned()
    };
    let m = bed.mount_at(&bed.path("mnt"), "watcher", &["--read-only"]);
    assert!(counts(&m).starts_with("1 to me, 0 from me, 0 rejected; "), "{}", counts(&m));
    drop(m);
    bed.config("scope = \"all\"\n");
    for more in [&[][..], &["--read-only"]] {
        let m = bed.mount_at(&bed.path("mnt"), "watcher", more);
        let said = counts(&m);
        assert!(said.starts_with("4 messages (1 to me, 0 from me), 0 rejected; "), "{said}");
        assert_eq!(m.ok("cat threads/*/*.txt | grep -c '^Message-ID:'").trim(), "4");
    }
}
