//! `sent.txt`, `msgfs sent`, `msgfs send --wait-for`: each state by its proof, with the recipient's program or another
//! mount doing the reading and answering.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::amq;
use crate::common::agz::{ME, Tree};
use crate::common::amp::{ALICE, Home};
use crate::common::proc::Running;
use crate::common::samp::{self, Rec, append_raw, append_signed, log};
use crate::common::{Bed, Mount, Out, run, soon, write_script};
use crate::ssot;

/// Returns the fields of each line of `sent.txt`.
#[track_caller]
fn lines(m: &Mount) -> Vec<Vec<String>> {
    let text = m.cat("sent.txt");
    let (heading, rest) = text.split_once('\n').expect("a heading");
    assert!(heading.starts_with('#'), "{text}");
    let fields = |line: &str| line.split('\t').map(str::to_owned).collect::<Vec<_>>();
    let all: Vec<Vec<String>> = rest.lines().map(fields).collect();
    assert!(all.iter().all(|line| line.len() == 6), "{text}");
    all
}

/// Returns the state of the newest message to a recipient.
#[track_caller]
fn state(m: &Mount, to: &str) -> String {
    let all = lines(m);
    let line = all.iter().find(|line| line[2] == to);
    line.unwrap_or_else(|| panic!("nothing to {to} in {all:?}"))[3].clone()
}

#[track_caller]
pub(crate) fn becomes(m: &Mount, to: &str, wanted: &str) {
    soon(&format!("the message to {to} is {wanted}"), || state(m, to) == wanted);
}

fn position(bed: &Bed, alias: &str, ts: i64, ids: &[&str]) {
    let text = json!({"ts": ts, "ids": ids}).to_string();
    fs::write(bed.store.join(format!(".seen-{alias}")), text).unwrap();
}

#[track_caller]
fn reference(bed: &Bed, args: &[&str]) -> Out {
    let mut c = bed.command("python3");
    c.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/peers/samp_reference.py")).arg(&bed.store);
    c.args(args);
    let out = run(c, None);
    assert!(out.ok(), "{out:?}");
    out
}

/// S930: `sent.txt` has a line for each message and recipient, newest first. Looking changes nothing.
#[test]
fn s930_one_line_a_message_and_recipient() {
    let bed = Bed::new();
    let m = bed.mount("bar");
    m.ok("echo 'first words of the text' > outbox/foo");
    let long = "a subject that is much longer than the forty characters of the list";
    m.ok(&format!("printf 'To: bob, carol\\nSubject: {long}\\n\\nx\\n' > outbox/x"));
    let all = lines(&m);
    let to: Vec<&str> = all.iter().map(|line| line[2].as_str()).collect();
    assert_eq!(to, ["bob", "carol", "foo"]);
    assert_eq!(all[0][1], all[1][1], "one message has one id");
    assert_eq!(all[2][5], "first words of the text");
    assert_eq!(all[0][5].chars().count(), 40);
    assert!(long.starts_with(all[0][5].trim_end_matches('\u{2026}')));
    for line in &all {
        assert_eq!((line[3].as_str(), &line[4]), ("stored", &line[0]));
        let id = &line[1];
        m.ok(&format!("cat sent/*/{id} | grep -q '^Message-ID: <{id}'"));
    }
    let stat = m.ok("stat -c '%a %s %Y' sent.txt; md5sum sent.txt");
    assert!(stat.starts_with("400 "), "{stat}");
    assert_eq!(m.ok("stat -c '%a %s %Y' sent.txt; md5sum sent.txt"), stat);
    assert!(!m.sh("echo x > sent.txt").ok());
    assert!(!m.ok("ls -a").contains(".sent\n"), "it is not listed");
    samp::append(&bed.store, "foo", "bar", "t", "to me", samp::now());
    soon("mail", || m.ls("inbox").len() == 1);
    m.ok("cat sent.txt > /dev/null; test $(ls inbox | wc -l) = 1");
    let empty = Bed::new();
    assert_eq!(lines(&empty.mount("bar")).len(), 0);
}

/// S930: `sent.txt` ends after 200 lines; `msgfs sent --all` does not.
#[test]
fn s930_the_newest_200() {
    let bed = Bed::new();
    for n in 0..205 {
        samp::append(&bed.store, "bar", "foo", "t", &format!("number {n}"), samp::T0 + n);
    }
    let m = bed.mount("bar");
    let all = lines(&m);
    assert_eq!((all.len(), all[0][5].as_str()), (200, "number 204"));
    let out = bed.msgfs_out(&["--me", "bar", "sent", "--all"]);
    assert_eq!(out.stdout.lines().count(), 206, "{out:?}");
    drop(m);
    let out = bed.msgfs_out(&["--me", "bar", "sent"]);
    assert_eq!(out.stdout.lines().count(), 201, "also without a mount: {out:?}");
}

/// S931: in SAMP, the reference program's position passes a message, and an id that it lists is read.
#[test]
fn s931_samp_passed_and_read() {
    let bed = Bed::new();
    let m = bed.mount("bar");
    m.ok("echo one > outbox/foo");
    std::thread::sleep(std::time::Duration::from_millis(1100));
    m.ok("echo two > outbox/foo");
    assert_eq!(state(&m, "foo"), "stored");
    reference(&bed, &["inbox", "foo", "r111", "--peek"]);
    assert_eq!(state(&m, "foo"), "stored", "a look moves nothing");
    reference(&bed, &["inbox", "foo", "r111"]);
    becomes(&m, "foo", "read");
    assert_eq!(lines(&m)[1][3], "passed");
    fs::remove_file(bed.store.join(".seen-foo")).unwrap();
    becomes(&m, "foo", "stored");
    let foo = bed.mount("foo");
    foo.ok("cat inbox/* > /dev/null");
    becomes(&m, "foo", "read");
}

/// S931: each recipient of a message to several has a state of its own.
#[test]
fn s931_samp_several() {
    let bed = Bed::new();
    let m = bed.mount("bar");
    m.ok("printf 'To: bob, carol\\nSubject: plan\\n\\nx\\n' > outbox/x");
    reference(&bed, &["inbox", "carol", "r12"]);
    becomes(&m, "carol", "read");
    assert_eq!(state(&m, "bob"), "stored");
    reference(&bed, &["inbox", "bob", "r111"]);
    becomes(&m, "bob", "read");
}

/// S931: in AMQ, a message in `new/` is delivered, and one in `cur/` is read, with the time of the receipt.
#[test]
fn s931_amq() {
    let bed = Bed::new();
    let queue = amq::Queue::new(&bed, &["bar", "bob", "carol"]);
    bed.config(&queue.store());
    let m = bed.mount("bar");
    m.ok("printf 'To: bob, carol\\n\\nhello\\n' > outbox/x");
    becomes(&m, "bob", "delivered");
    let bob = bed.mount("bob");
    soon("it arrives", || bob.ls("inbox").len() == 1);
    bob.ok("cat inbox/* > /dev/null");
    becomes(&m, "bob", "read");
    let since = lines(&m).into_iter().find(|line| line[2] == "bob").unwrap()[4].clone();
    assert!(since.starts_with("20"), "the receipt has a time: {since}");
    assert_eq!(state(&m, "carol"), "delivered");
    bob.ok("for n in $(ls archive/*/*.txt); do echo fine > \"${n%.txt}.reply\"; done");
    becomes(&m, "bob", "answered");
    // A receipt proves nothing as long as the message lies in new/.
    let carol = queue.root.join("agents/carol");
    let name = fs::read_dir(carol.join("inbox/new")).unwrap().next().unwrap().unwrap().file_name();
    let id = name.to_str().unwrap().strip_suffix(".md").unwrap().to_owned();
    let receipt = json!({"schema": 1, "msg_id": id, "consumer": "carol", "stage": "drained"});
    fs::write(carol.join(format!("receipts/{id}__carol__drained.json")), receipt.to_string())
        .unwrap();
    assert_eq!(state(&m, "carol"), "delivered");
    fs::rename(carol.join("inbox/new").join(&name), carol.join("inbox/cur").join(&name)).unwrap();
    becomes(&m, "carol", "read");
    // Other bytes under the name of the message are another message.
    m.ok("echo again > outbox/carol");
    becomes(&m, "carol", "delivered");
    let name = fs::read_dir(carol.join("inbox/new")).unwrap().next().unwrap().unwrap().file_name();
    fs::remove_file(carol.join("inbox/new").join(&name)).unwrap();
    let mine = fs::read_to_string(queue.root.join("agents/bar/outbox/sent").join(&name)).unwrap();
    fs::write(carol.join("inbox/cur").join(&name), mine + "forged\n").unwrap();
    becomes(&m, "carol", "stored");
}

/// S931: in AMP, the file in the recipient's mailbox delivers a message, and its `local.status` says that it is read.
#[test]
fn s931_amp() {
    let bed = Bed::new();
    let home = Home::new(&bed);
    home.agent("carol", "acme", 3);
    bed.config(&home.store());
    let m = bed.mount("bar");
    m.ok("printf 'To: alice, carol\\nSubject: plan\\n\\nhello\\n' > outbox/x");
    let carol = ALICE.replace("alice", "carol");
    becomes(&m, ALICE, "delivered");
    let alice = bed.mount("alice");
    soon("it arrives", || alice.ls("inbox").len() == 1);
    alice.ok("cat inbox/* > /dev/null");
    becomes(&m, ALICE, "read");
    assert_eq!(state(&m, &carol), "delivered");
    alice.ok("for n in $(ls archive/*/*.txt); do echo fine > \"${n%.txt}.reply\"; done");
    becomes(&m, ALICE, "answered");
    // A status in my own copy, and another text under the id, prove nothing.
    m.ok("echo again > outbox/carol");
    becomes(&m, &carol, "delivered");
    let sent = newest_file(&home.dir("bar").join("messages/sent"), "json");
    mark_amp_file(&sent);
    assert_eq!(state(&m, &carol), "delivered");
    let theirs = newest_file(&home.dir("carol").join("messages/inbox"), "json");
    let text = fs::read_to_string(&theirs).unwrap();
    fs::write(&theirs, text.replace("again", "forged")).unwrap();
    mark_amp_file(&theirs);
    becomes(&m, &carol, "stored");
}

/// Marks an AMP message as read, as its clients do.
fn mark_amp_file(file: &Path) {
    let mut all: Value = serde_json::from_str(&fs::read_to_string(file).unwrap()).unwrap();
    all["local"]["status"] = "read".into();
    all["local"]["read_at"] = "2026-04-24T17:42:03Z".into();
    fs::write(file, all.to_string()).unwrap();
}

/// Returns the file below a folder that was written last.
#[track_caller]
fn newest_file(folder: &Path, ending: &str) -> std::path::PathBuf {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == ending) {
                found.push((path.metadata().unwrap().modified().unwrap(), path));
            }
        }
    }
    found.into_iter().max().expect("a file").1
}

/// S931: in AgentAZAll, a letter waits for a missing mailbox, the copy in the mailbox delivers it, and its `Status`
/// says that it is read.
#[test]
fn s931_agentazall() {
    let bed = Bed::new();
    let tree = Tree::new(&bed);
    bed.config(&tree.store());
    let m = bed.mount("bar");
    let dave = "dave@localhost";
    m.ok(&format!("echo hello > outbox/{dave}"));
    becomes(&m, dave, "waiting");
    let out = bed.msgfs_out(&["--me", "bar", "sent", "--json"]);
    let told: Value = serde_json::from_str(&out.stdout).unwrap();
    assert!(told[0]["reason"].as_str().unwrap().contains("no mailbox of this name"), "{told}");
    fs::create_dir(tree.mailbox(dave)).unwrap();
    becomes(&m, dave, "delivered");
    assert_eq!(tree.agent, ME);
    // A status in my copy and in a copy of somebody else proves nothing.
    let mine = newest_file(&tree.base(), "txt");
    set_status(&mine);
    let theirs = newest_file(&tree.mailbox(dave), "txt");
    let other = tree.mailbox("eve@localhost").join("2026-04-25/inbox");
    fs::create_dir_all(&other).unwrap();
    fs::copy(&theirs, other.join(theirs.file_name().unwrap())).unwrap();
    set_status(&other.join(theirs.file_name().unwrap()));
    assert_eq!(state(&m, dave), "delivered");
    set_status(&theirs);
    becomes(&m, dave, "read");
    let text = fs::read_to_string(&theirs).unwrap();
    fs::write(&theirs, text.replace("hello", "forged")).unwrap();
    becomes(&m, dave, "stored");
}

/// Marks a letter as read, as the reference program does.
fn set_status(file: &Path) {
    let text = fs::read_to_string(file).unwrap();
    assert!(text.contains("Status: "), "{text}");
    fs::write(file, text.replacen("Status: new", "Status: read", 1)).unwrap();
}

/// S931: in a Maildir, the file in `new/` delivers a mail, and the flag `S` says that it is read. A mail that the
/// program takes is delivered.
#[test]
fn s931_maildir() {
    let bed = Bed::new();
    for leaf in ["anna", "bob"].iter().flat_map(|who| ["new", "cur", "tmp"].map(|l| (who, l))) {
        fs::create_dir_all(bed.path("mail").join(leaf.0).join(leaf.1)).unwrap();
    }
    let (root, program) = (bed.path("mail"), bed.path("sendmail"));
    write_script(&program, "#!/bin/sh\ntest -e \"$0.ok\" || exit 75\ncat > /dev/null\n");
    bed.config(&format!(
        "[[store]]\nkind = \"maildir\"\ndir = \"{0}/anna\"\nme = \"anna@localhost\"\n\
         sendmail = {1:?}\n[store.local]\n\"bob@localhost\" = \"{0}/bob\"\n",
        root.display(),
        program.to_str().unwrap()
    ));
    let m = bed.mount("anna");
    m.ok("echo hello > outbox/bob@localhost");
    becomes(&m, "bob@localhost", "delivered");
    let name = fs::read_dir(root.join("bob/new")).unwrap().next().unwrap().unwrap().file_name();
    let name = name.to_str().unwrap();
    let cur = root.join("bob/cur");
    fs::rename(root.join("bob/new").join(name), cur.join(format!("{name}:2,"))).unwrap();
    assert_eq!(state(&m, "bob@localhost"), "delivered", "seen by a program, not read");
    fs::rename(cur.join(format!("{name}:2,")), cur.join(format!("{name}:2,RS"))).unwrap();
    becomes(&m, "bob@localhost", "read");
    fs::remove_file(cur.join(format!("{name}:2,RS"))).unwrap();
    becomes(&m, "bob@localhost", "stored");
    m.ok("echo far > outbox/dave@example.org");
    becomes(&m, "dave@example.org", "waiting");
    fs::write(bed.path("sendmail.ok"), "").unwrap();
    becomes(&m, "dave@example.org", "delivered");
}

/// Makes Maildirs, and a configuration by which anna sends to bob. Returns the folder of the Maildirs.
pub(crate) fn make_maildirs(bed: &Bed, folders: &[&str]) -> PathBuf {
    let root = bed.path("mail");
    for (folder, leaf) in folders.iter().flat_map(|f| ["new", "cur", "tmp"].map(|leaf| (f, leaf))) {
        fs::create_dir_all(root.join(folder).join(leaf)).unwrap();
    }
    bed.config(&format!(
        "[[store]]\nkind = \"maildir\"\ndir = \"{0}/anna\"\nme = \"anna@localhost\"\n\
         [store.local]\n\"bob@localhost\" = \"{0}/bob\"\n",
        root.display()
    ));
    root
}

/// S1090: a program that carries mail to a server adds to the name, sets flags in `new/`, and moves mail to another
/// folder. Whatever it does, the mail stays delivered, and the flag `S` says that it is read.
#[test]
fn s1090_a_mail_keeps_its_state_when_programs_rename_it() {
    let bed = Bed::new();
    let root = make_maildirs(&bed, &["anna", "bob", "bob/.Archive"]);
    let m = bed.mount("anna");
    m.ok("echo hello > outbox/bob@localhost");
    becomes(&m, "bob@localhost", "delivered");
    let name = fs::read_dir(root.join("bob/new")).unwrap().next().unwrap().unwrap().file_name();
    let name = name.to_str().unwrap();
    let mut at = format!("new/{name}");
    for (place, state) in [
        (format!("new/{name}:2,F"), "delivered"),
        (format!("new/{name}:2,FS"), "read"),
        (format!("cur/{name},U=7:2,"), "delivered"),
        (format!("cur/{name},S=18,W=21:2,S"), "read"),
        (format!(".Archive/cur/{name},U=1:2,"), "delivered"),
        (format!(".Archive/cur/{name},U=1:2,RS"), "read"),
        ("gone".to_owned(), "stored"),
    ] {
        fs::rename(root.join("bob").join(&at), root.join("bob").join(&place)).unwrap();
        becomes(&m, "bob@localhost", state);
        at = place;
    }
    // My own copy in Sent, which has the flag, proves nothing of a mail to me.
    m.ok("echo note > outbox/anna@localhost");
    becomes(&m, "anna@localhost", "delivered");
    fs::remove_file(newest_file(&root.join("anna/new"), "localhost")).unwrap();
    becomes(&m, "anna@localhost", "stored");
}

/// S931: a task record is read when its recipient has acknowledged it.
#[test]
fn s931_task_records() {
    let bed = ssot::bed();
    let m = bed.mount("coordinator");
    let draft = ssot::draft("executor", "task_dispatch", &ssot::payload("task_dispatch"));
    m.ok(&format!("cat > outbox/task <<'EOF'\n{draft}EOF"));
    becomes(&m, "executor", "stored");
    let e = bed.mount("executor");
    soon("it arrives", || e.ls("inbox").len() == 1);
    e.ok("cat inbox/* > /dev/null");
    assert_eq!(state(&m, "executor"), "stored", "reading acknowledges nothing");
    e.ok("for n in $(ls archive/*/*.txt); do echo ok > \"${n%.txt}.ack\"; done");
    becomes(&m, "executor", "read");
}

/// S931: the bell of a session of the recipient tells of a message, and an answer is the last state.
#[test]
fn s931_told_and_answered() {
    let bed = Bed::new();
    let m = bed.mount("bar");
    m.ok("echo question > outbox/alice");
    m.ok("echo other > outbox/bob");
    let ring = bed.msgfs(["hook", "run", "prompt", "--for", "codex", "--me", "alice"]);
    let payload = json!({"session_id": "s1", "cwd": bed.path("cwd"), "turn_id": "t", "model": "m",
        "hook_event_name": "UserPromptSubmit", "prompt": "x"});
    let out = run(ring, Some(format!("{payload}\n").as_bytes()));
    assert!(out.stdout.contains("1 unread message for alice"), "{out:?}");
    becomes(&m, "alice", "told");
    assert_eq!(state(&m, "bob"), "stored");
    let alice = bed.mount("alice");
    alice.ok("cat inbox/* > /dev/null");
    becomes(&m, "alice", "read");
    alice.ok("for n in $(ls archive/*/*.txt); do echo fine > \"${n%.txt}.reply\"; done");
    becomes(&m, "alice", "answered");
}

/// S932: a position of the future, an unsigned answer under a pinned name and a symbolic link prove nothing that they
/// cannot.
#[test]
fn s932_forged_proofs() {
    let bed = Bed::new();
    let key = samp::key(7);
    append_signed(&bed.store, &key, &Rec::new("alice", "bar", "t", "signed", samp::T0));
    let m = bed.mount("bar");
    position(&bed, "alice", 9_999_999_999, &[]);
    std::thread::sleep(std::time::Duration::from_millis(20));
    m.ok("echo question > outbox/alice");
    assert_eq!(state(&m, "alice"), "stored");
    let record = samp::only(&bed.store, "bar");
    let id = samp::member(&record, "id").to_owned();
    let thread = samp::member(&record, "thread").to_owned();
    let now = samp::now() + 1;
    let forged = Rec::new("alice", "bar", &thread, "forged", now);
    append_raw(&log(&bed.store, "alice"), forged.line_with(&[("re", json!(id))]) + "\n");
    soon("it is seen", || m.cat("status.txt").contains("unread: 2"));
    assert_eq!(state(&m, "alice"), "stored");
    fs::remove_file(bed.store.join(".seen-alice")).unwrap();
    fs::write(bed.path("elsewhere"), json!({"ts": now + 5, "ids": [id]}).to_string()).unwrap();
    std::os::unix::fs::symlink(bed.path("elsewhere"), bed.store.join(".seen-alice")).unwrap();
    assert_eq!(state(&m, "alice"), "stored");
    // A file that is larger than any reader writes is not read, so it keeps nobody waiting.
    fs::remove_file(bed.store.join(".seen-alice")).unwrap();
    let many: Vec<String> = (0..100_000).map(|n| format!("{n:016x}")).collect();
    position(&bed, "alice", now + 5, &[&id, &many.concat()]);
    assert_eq!(state(&m, "alice"), "stored");
    position(&bed, "alice", now + 5, &[&id]);
    assert_eq!(state(&m, "alice"), "read");
    let answer = Rec::new("alice", "bar", &thread, "signed answer", now + 1);
    append_raw(
        &log(&bed.store, "alice"),
        answer.signed_line(&key, &[("re", json!(id))]).trim_end().to_owned() + "\n",
    );
    becomes(&m, "alice", "answered");
}

/// S933, S1097: `msgfs sent` prints `sent.txt`, one message by its id, all, and JSON, with a mount and without one.
#[test]
fn s933_the_command() {
    let bed = Bed::new();
    let m = bed.mount("bar");
    m.ok("echo one > outbox/foo; printf 'To: bob, carol\\n\\ntwo\\n' > outbox/x");
    let text = m.cat("sent.txt");
    let sent = |args: &[&str]| bed.msgfs_out(&[&["--me", "bar", "sent"], args].concat());
    assert_eq!(sent(&[]).stdout, text);
    let short = lines(&m)[2][1].clone();
    let one = sent(&[&short]);
    assert!(one.stdout.lines().count() == 2 && one.stdout.contains("\tfoo\tstored\t"), "{one:?}");
    let told: Value = serde_json::from_str(&sent(&["--json"]).stdout).unwrap();
    let foo = &told[2];
    assert_eq!(
        [&foo["recipient"], &foo["state"], &foo["store"], &foo["subject"], &foo["id"]],
        [&json!("foo"), &json!("stored"), &json!("samp"), &json!("one"), &json!(short)]
    );
    let whole = foo["message_id"].as_str().unwrap();
    assert!(m.ok("cat sent/*/*.txt").contains(&format!("Message-ID: <{whole}>")));
    assert_eq!(sent(&[whole]).stdout, one.stdout);
    assert_eq!(sent(&[&format!("<{whole}>")]).stdout, one.stdout);
    // S1097: the name of the file, and the id of the record of one recipient, name the message, too.
    let names = m.ls(&format!("sent/{}", samp::today()));
    let name = names.iter().find(|name| name.contains(&short)).expect("a file");
    assert_eq!(sent(&[name]).stdout, one.stdout);
    let two = sent(&[&lines(&m)[0][1]]).stdout;
    for record in samp::read_log(&bed.store, "bar") {
        let known = sent(&[samp::member(&record, "id")]).stdout;
        assert!(known == one.stdout || known == two, "{known}");
    }
    let wrong = sent(&["ffffffff"]);
    assert!(wrong.code() == Some(1) && wrong.stderr.contains("ffffffff"), "{wrong:?}");
    drop(m);
    assert_eq!(sent(&[]).stdout, text);
    assert_eq!(sent(&[&short]).stdout, one.stdout);
    let all: Value = serde_json::from_str(&sent(&["--json", "--all"]).stdout).unwrap();
    assert_eq!(all, told);
}

/// S934: `msgfs send --wait-for` ends with 0 when each recipient shows the state or a later one, and with 3 when the
/// time is over. A state that can never be shown is refused before anything is sent.
#[test]
fn s934_wait_for() {
    let bed = Bed::new();
    let m = bed.mount("bar");
    let send = |to: &str, state: &str, time: &str| {
        let line = ["--me", "bar", "send", to, "--wait-for", state, "--timeout", time, "hello"];
        bed.msgfs(line)
    };
    let out = run(send("foo", "stored", "10s"), None);
    assert_eq!(out.code(), Some(0), "{out:?}");
    let out = run(send("foo", "read", "1s"), None);
    assert!(out.code() == Some(3) && out.stderr.contains("foo: stored"), "{out:?}");
    assert_eq!(lines(&m).len(), 2, "the message stays sent");
    let out = run(send("foo", "delivered", "1s"), None);
    assert_eq!(out.code(), Some(1), "{out:?}");
    assert!(out.stderr.contains("waiting, stored, told, passed, read, answered"), "{out:?}");
    assert_eq!(lines(&m).len(), 2, "nothing was sent");
    for bad in ["gone", "refused"] {
        assert_eq!(run(send("foo", bad, "1s"), None).code(), Some(2));
    }
    let mut waits = Running::start(send("bob,carol", "passed", "60s"), None).unwrap();
    soon("it is sent", || lines(&m).len() == 4);
    reference(&bed, &["inbox", "bob", "r111"]);
    std::thread::sleep(std::time::Duration::from_millis(600));
    assert!(waits.running(), "carol has not read it");
    reference(&bed, &["inbox", "carol", "r12"]);
    soon("it ends", || !waits.running());
    drop(m);
    // Without a mount, the command follows the store itself.
    let mut waits = Running::start(send("foo", "read", "60s"), None).unwrap();
    soon("it is sent", || samp::read_log(&bed.store, "bar").len() == 5);
    reference(&bed, &["inbox", "foo", "r111"]);
    soon("it ends", || !waits.running());
}

/// S935: `status.txt` says which message was accepted last, to whom and when.
#[test]
fn s935_last_sent() {
    let bed = Bed::new();
    let m = bed.mount("bar");
    let last = || {
        let text = m.cat("status.txt");
        text.lines().find_map(|l| l.strip_prefix("last sent: ")).expect("a line").to_owned()
    };
    assert_eq!(last(), "none");
    m.ok("printf 'To: bob, carol\\n\\none\\n' > outbox/x");
    let line = &lines(&m)[0];
    assert_eq!(last(), format!("{} to bob, carol at {}", line[1], line[0]));
    m.ok("echo two > outbox/foo");
    let line = &lines(&m)[0];
    assert_eq!(last(), format!("{} to foo at {}", line[1], line[0]));
    let out = bed.msgfs_out(&["--me", "bar", "status", "--json"]);
    let told: Value = serde_json::from_str(&out.stdout).unwrap();
    assert_eq!(told["last_sent"], json!({"id": line[1], "to": ["foo"], "time": line[0]}));
}

/// S935: a message of mine with a time ahead of the clock does not stay the last one.
#[test]
fn s935_last_sent_despite_a_time_ahead() {
    let bed = Bed::new();
    let ahead = samp::now() + 5000;
    samp::append(&bed.store, "bar", "bob", "", "ahead", ahead);
    let m = bed.mount("bar");
    soon("it is sent", || lines(&m).len() == 1);
    m.ok("echo now > outbox/foo; ls sent/* > /dev/null");
    m.ok("grep 'last sent: .* to foo at' status.txt");
}

/// S1091: the last message that is made unread again leaves the read position, and the sender sees it.
#[test]
fn s1091_the_last_read_message_can_be_made_unread() {
    let bed = Bed::new();
    let (m, bob) = (bed.mount("bar"), bed.mount("bob"));
    m.ok("echo hello > outbox/bob");
    soon("it is there", || bob.ls("inbox").len() == 1);
    bob.ok("cat inbox/* > /dev/null");
    becomes(&m, "bob", "read");
    bob.ok("mv archive/*/*.txt inbox/");
    soon("it left the list", || state(&m, "bob") != "read");
    assert_eq!(bob.ls("inbox").len(), 1);
}

/// S1091: each look at `sent.txt` shows what is proven at that moment, however soon it follows another one.
#[test]
fn s1091_each_look_is_of_its_moment() {
    let bed = Bed::new();
    let m = bed.mount("bar");
    m.ok("echo hello > outbox/bob");
    becomes(&m, "bob", "stored");
    let id = samp::member(&samp::only(&bed.store, "bar"), "id").to_owned();
    for _ in 0..10 {
        position(&bed, "bob", samp::now() + 5, &[&id]);
        assert_eq!(state(&m, "bob"), "read");
        fs::remove_file(bed.store.join(".seen-bob")).unwrap();
        assert_eq!(state(&m, "bob"), "stored");
    }
}

/// S1092: a folder in which a message is composed keeps nobody from sending to the same recipient by a command.
#[test]
fn s1092_a_command_sends_beside_a_composing_folder() {
    let bed = Bed::new();
    let m = bed.mount("bar");
    m.ok("mkdir outbox/bob; echo plan > outbox/bob/plan.txt");
    for send in [&["send", "bob", "one"][..], &["send", "bob", "--new", "two"]] {
        let out = bed.msgfs_out(&[&["--me", "bar"], send].concat());
        assert!(out.ok(), "{out:?}");
    }
    // A message is in its store once `sent/` was listed.
    m.ok("ls sent/* > /dev/null");
    assert_eq!(samp::bodies(&bed.store, "bar"), ["one", "two"]);
    assert_eq!(m.ls("outbox/bob"), ["plan.txt"]);
}

/// S1093: a message is there, but a file beside it is not: then its id is no unknown one.
#[test]
fn s1093_a_missing_file_beside_a_message_is_no_unknown_id() {
    let bed = Bed::new();
    let m = bed.mount("bar");
    m.ok("echo hello > outbox/bob");
    let id = lines(&m)[0][1].clone();
    assert!(!m.sh(&format!("cat sent/*/{id}.ack || cat sent/{}/{id}.ack", samp::today())).ok());
    assert!(!m.cat("status.txt").contains("last unknown id:"));
}
