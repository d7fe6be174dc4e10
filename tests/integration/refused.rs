//! Drafts and settings that msgfs refuses or reports instead of accepting them silently; and names that stand for
//! messages and threads.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use serde_json::json;

use crate::amq::Queue;
use crate::common::agz::Tree;
use crate::common::amp::Home;
use crate::common::samp::{self, T0, member, only, read_log};
use crate::common::{Bed, Mount, Out, run, soon};

/// Writes a draft that must be refused with this error, and returns the reason.
#[track_caller]
fn refused(m: &Mount, name: &str, text: &str, errno: &str) -> String {
    let out = m.sh(&format!("printf '{text}' | tee 'outbox/{name}'"));
    assert!(!out.ok() && out.stderr.contains(errno), "{text}: {out:?}");
    m.ok(&format!("cat 'outbox/{name}.error' && rm -f 'outbox/{name}'"))
}

fn bar(bed: &Bed, args: &[&str]) -> Out {
    let mut c = bed.msgfs(args);
    c.args(["--me", "bar"]);
    run(c, Some(b"To: Bob\nSubject: s\n\ntext\n"))
}

/// S727: if the configuration names a folder that does not exist, msgfs does not make it. It reports that, and
/// takes the folder up when it appears, with and without a mount.
#[test]
fn s727_a_configured_folder_is_not_made() {
    let bed = Bed::new();
    let dir = bed.path("mistyped");
    bed.config(&format!("[[store]]\nkind = \"samp\"\ndir = {:?}\n", dir.to_str().unwrap()));
    let command = format!("mkdir -p {}", dir.display());
    for args in [&["status"][..], &["doctor"], &["send", "bob", "hi"]] {
        let out = bar(&bed, args);
        let text = format!("{}{}", out.stdout, out.stderr);
        assert!(text.contains("does not exist") && text.contains(&command), "{args:?}: {out:?}");
        assert!(!dir.exists(), "{args:?}");
    }
    let m = bed.mount("bar");
    let status = m.cat("status.txt");
    assert!(status.contains("needs a look") && status.contains(&command), "{status}");
    let why = refused(&m, "bob", "hi\\n", "No such file");
    assert!(why.contains(&command), "{why}");
    assert!(!dir.exists() && m.ls("sent").is_empty());
    fs::create_dir(&dir).unwrap();
    samp::append(&dir, "foo", "bar", "t", "it is there", T0);
    soon("it is taken up", || m.ls("inbox").len() == 1);
    assert!(m.cat("status.txt").contains("healthy"));
    m.ok("echo hi > outbox/foo");
    assert_eq!(member(&only(&dir, "bar"), "body"), "hi");
    // The folder of the variable is made, also if the configuration names it.
    m.umount();
    let named = bed.path("named");
    bed.config("[[store]]\nkind = \"samp\"\ndir = \"$AGENT_MESSAGE_DIR\"\n");
    let mut c = bed.msgfs(["send", "foo", "hi", "--me", "bar"]);
    c.env("AGENT_MESSAGE_DIR", &named);
    let out = run(c, None);
    assert!(out.ok() && named.join("log-bar.jsonl").is_file(), "{out:?}");
}

/// S724: header lines that a store cannot carry are refused, and the error names them.
#[test]
fn s724_a_header_that_the_store_cannot_carry() {
    let bed = Bed::new();
    let m = bed.mount("bar");
    for header in ["Priority: high", "Type: question"] {
        let why = refused(&m, "bob", &format!("{header}\\n\\nhi\\n"), "Invalid argument");
        assert!(why.contains(header.split(':').next().unwrap()), "{why}");
    }
    let out = bar(&bed, &["send", "bob", "--priority", "high", "hi"]);
    assert!(!out.ok() && out.stderr.contains("Priority"), "{out:?}");
    assert_eq!(read_log(&bed.store, "bar").len(), 0);
    m.umount();
    let (tree, home) = (Tree::new(&bed), Home::new(&bed));
    bed.config(&format!("{}{}", tree.store(), home.store()));
    tree.beside("foo@localhost", &json!({}));
    let m = bed.mount("bar");
    for (to, headers) in [
        ("foo@localhost", &["Priority: high", "Type: request", "Thread: nowhere"][..]),
        ("alice", &["Thread: no where"]),
    ] {
        for header in headers {
            let why = refused(&m, to, &format!("{header}\\n\\nhi\\n"), "Invalid argument");
            assert!(why.contains(header.split(':').next().unwrap()), "{why}");
        }
        m.ok(&format!("printf 'Subject: s\\n\\nhi\\n' > outbox/{to}"));
    }
    m.ok("printf 'Priority: high\\nType: request\\n\\nhi\\n' > outbox/alice");
}

/// S539: an answer names a message that is here, or an id that a message may have. 8 digits stand for the id.
#[test]
fn s539_an_id_that_nothing_can_have() {
    let bed = Bed::new();
    let asked = samp::append(&bed.store, "foo", "bar", "plan", "a question", T0);
    for mounted in [false, true] {
        let m = mounted.then(|| bed.mount("bar"));
        let out = bar(&bed, &["send", "foo", "--re", "nonsense", "yes"]);
        assert!(out.code() == Some(1) && out.stderr.contains("\"nonsense\""), "{out:?}");
        assert_eq!(bar(&bed, &["rm", "outbox/foo"]).code(), Some(0));
        let out = bar(&bed, &["send", "foo", "--re", &asked.id[..8], "yes"]);
        assert!(out.ok(), "{out:?}");
        let record = read_log(&bed.store, "bar").pop().unwrap();
        assert_eq!((member(&record, "re"), member(&record, "thread")), (asked.id.as_str(), "plan"));
        drop(m);
    }
    assert_eq!(read_log(&bed.store, "bar").len(), 2);
}

/// S281: recipients of commands are judged like names of drafts, one or several.
#[test]
fn s281_typed_recipients() {
    let bed = Bed::new();
    samp::append(&bed.store, "bob", "bar", "t", "hello", T0);
    for mounted in [false, true] {
        let m = mounted.then(|| bed.mount("bar"));
        for args in [&["sendmail", "Bob"][..], &["sendmail", "-t"], &["send", "carol,Bob", "hi"]] {
            let out = bar(&bed, args);
            let code = if args[0] == "sendmail" { 67 } else { 1 };
            assert!(
                out.code() == Some(code) && out.stderr.contains("outbox/bob"),
                "{args:?}: {out:?}"
            );
        }
        drop(m);
    }
    assert_eq!(read_log(&bed.store, "bar").len(), 0);
    assert!(bar(&bed, &["send", "--new", "carol,Bob", "hi"]).ok());
    assert_eq!(read_log(&bed.store, "bar").len(), 2);
}

/// S726: a string with a blank in it is no address.
#[test]
fn s726_a_blank_in_an_address() {
    let bed = Bed::new();
    let tree = Tree::new(&bed);
    bed.config(&tree.store());
    let m = bed.mount("bar");
    for to in ["bob @localhost", "bob@ localhost", "bob b@localhost"] {
        refused(&m, "x", &format!("To: {to}\\n\\nhi\\n"), "Invalid argument");
        assert!(!m.sh(&format!("echo hi > 'outbox/{to}'")).ok(), "{to}");
    }
    assert!(m.ls("sent").is_empty());
}

/// S725: if a recipient needs a mailbox, the error offers the known name that was probably meant.
#[test]
fn s725_near_names_in_a_queue() {
    let bed = Bed::new();
    let queue = Queue::new(&bed, &["bar", "alice"]);
    bed.config(&queue.store());
    let m = bed.mount("bar");
    let why = refused(&m, "alise", "hi\\n", "No route to host");
    assert!(why.contains("outbox/alice"), "{why}");
    let out = m.sh("echo hi > outbox/Alice");
    assert!(!out.ok() && m.cat("status.txt").contains("outbox/alice"), "{out:?}");
    let why = refused(&m, "zed", "hi\\n", "No route to host");
    assert!(!why.contains("outbox/alice"), "{why}");
}

/// S223, S723: the id alone opens a message wherever the message is listed, and takes no text. `status.txt`
/// reports a name that stands for no message, with the nearest one.
#[test]
fn s223_the_id_alone() {
    let bed = Bed::new();
    let rec = samp::append(&bed.store, "foo", "bar", "t", "the text", T0);
    let m = bed.mount("bar");
    m.ok("echo mine > outbox/foo");
    let sent = format!("sent/{}", samp::today());
    let mine = member(&only(&bed.store, "bar"), "id").to_owned();
    let day = samp::strftime(T0, "%Y-%m-%d");
    assert!(!m.cat("status.txt").contains("last unknown id:"));
    for (folder, id) in
        [(format!("archive/{day}"), &rec.id), ("threads/t".into(), &rec.id), (sent, &mine)]
    {
        for name in [&id[..8], id] {
            assert_eq!(m.cat(&format!("{folder}/{name}")), m.cat(&format!("{folder}/{name}.txt")));
            let out = m.sh(&format!("echo x > {folder}/{name}"));
            assert!(!out.ok() && out.stderr.contains("not permitted"), "{out:?}");
        }
        let listed = m.ls(&folder);
        assert!(listed.iter().all(|name| name != id && *name != id[..8]), "{listed:?}");
    }
    assert_eq!(read_log(&bed.store, "bar").len(), 1, "nothing was sent");
    assert!(m.cat(&format!("inbox/{}", &rec.id[..8])).contains("the text"));
    m.inbox_becomes(&[]);
    // One digit is wrong.
    let last = if rec.id[..8].ends_with('0') { "1" } else { "0" };
    let wrong = format!("{}{last}", &rec.id[..7]);
    for name in [
        format!("inbox/{wrong}"),
        format!("inbox/{wrong}.reply"),
        format!("archive/{day}/{wrong}.txt"),
    ] {
        let out = m.sh(&format!("cat {name}"));
        assert!(!out.ok() && out.stderr.contains("No such file"), "{out:?}");
        let line = format!("last unknown id: {wrong} (the nearest is {})", rec.name(0));
        assert!(m.cat("status.txt").contains(&line), "{name}: {}", m.cat("status.txt"));
    }
}

/// S723: a whole id stands for the messages that have it, not for others that begin alike.
#[test]
fn s723_a_whole_id_of_several_messages() {
    let bed = Bed::new();
    let mut names = Vec::new();
    let first = samp::Rec::new("foo", "bar", "t", "one", T0);
    let other = format!("{}ffffffff", &first.id[..8]);
    for (n, id) in [&first.id, &first.id, &other].into_iter().enumerate() {
        let from = ["foo", "zed", "foo"][n];
        let rec = samp::Rec::new(from, "bar", "t", &format!("mail {n}"), T0 + n as i64);
        samp::append_raw(&samp::log(&bed.store, from), rec.line().replace(&rec.id, id));
        names.push(format!("-{from}-{}", &id[..8]));
    }
    let m = bed.mount("bar");
    assert_eq!(m.ls("inbox").len(), 3);
    assert!(!m.sh(&format!("cat inbox/{}", first.id)).ok());
    let status = m.cat("status.txt");
    let line = status.lines().find(|line| line.starts_with("last unknown id:")).expect("line");
    assert_eq!((line.matches(" and ").count(), line.contains(&names[1])), (1, true), "{line}");
}

/// S23: the name under which a thread was shown still opens it when another store gets a thread of the same name.
#[test]
fn s23_a_name_that_was_shown_goes_on_opening_its_thread() {
    let bed = Bed::new();
    let queue = Queue::new(&bed, &["bar", "foo"]);
    bed.config(&format!(
        "{}[[store]]\nkind = \"samp\"\ndir = {:?}\n",
        queue.store(),
        bed.store.to_str().unwrap()
    ));
    samp::append(&bed.store, "foo", "bar", "plan", "in the log", T0);
    let m = bed.mount("bar");
    assert_eq!(m.ls("threads"), ["plan"]);
    m.ok("printf 'Via: amq\\nThread: plan\\n\\nin the queue\\n' > outbox/foo");
    soon("both are listed", || m.ls("threads") == ["plan~amq", "plan~samp"]);
    assert!(m.ok("cat threads/plan/*.txt").contains("in the log"));
    assert!(m.cat("transcripts/plan.txt").contains("in the log"));
    m.ok("echo answer > threads/plan/x");
    assert_eq!(member(&only(&bed.store, "bar"), "thread"), "plan");
    m.umount();
    let m = bed.mount("bar");
    assert_eq!(m.ls("threads"), ["plan~amq", "plan~samp"]);
    assert!(!m.sh("ls threads/plan").ok(), "nobody was shown that name in this mount");
}

/// S728: an error about a word of the configuration, or about a path, says what to do.
#[test]
fn s728_hints() {
    let bed = Bed::new();
    bed.config("me = foo\n");
    let out = run(bed.msgfs(["status"]), None);
    assert!(!out.ok() && out.stderr.contains("a text needs quotes"), "{out:?}");
    assert!(!out.stderr.contains("boolean"), "{out:?}");
    bed.config("[[store]]\nkind = \"amq\"\ndir = \"queue\"\n");
    let out = run(bed.msgfs(["status"]), None);
    assert!(!out.ok() && out.stderr.contains("absolute path"), "{out:?}");
    bed.config("");
    samp::append(&bed.store, "foo", "bar", "t", "hello", T0);
    for mounted in [false, true] {
        let m = mounted.then(|| bed.mount("bar"));
        let out = bar(&bed, &["cat", "inbox/*"]);
        assert!(!out.ok() && out.stderr.contains("`msgfs ls inbox`"), "{out:?}");
        let out = bar(&bed, &["ls", "inbox/*.txt"]);
        assert!(!out.ok() && out.stderr.contains("`msgfs ls inbox`"), "{out:?}");
        let out = bar(&bed, &["ls", "/home/anna/mail/inbox"]);
        assert!(!out.ok() && out.stderr.contains("try `msgfs ls inbox`"), "{out:?}");
        assert!(bar(&bed, &["ls", "/inbox"]).ok());
        for (args, hint) in [
            (&["cat", "nope"][..], "see `msgfs ls`"),
            (&["cat", "inbox/deadbeef"], "see `msgfs ls inbox`"),
            (&["cat", "inbox"], "list it with `msgfs ls inbox`"),
        ] {
            let out = bar(&bed, args);
            assert!(!out.ok() && out.stderr.contains(hint), "{out:?}");
        }
        // A key that is there is not said to be missing.
        let key = bed.state("bar").join("identity_key");
        let permit = |mode| fs::set_permissions(&key, fs::Permissions::from_mode(mode)).unwrap();
        if m.is_none() {
            permit(0o644);
            let out = bar(&bed, &["send", "foo", "hi"]);
            assert!(!out.ok() && out.stderr.contains("others on this machine can read"), "{out:?}");
            assert!(!out.stderr.contains("there is no signing key"), "{out:?}");
            permit(0o600);
        }
        drop(m);
    }
    // A file in the place of a store's folder is told once.
    bed.config(&format!("[[store]]\nkind = \"samp\"\ndir = {:?}\n", bed.path("file")));
    fs::write(bed.path("file"), "x").unwrap();
    let out = bar(&bed, &["inbox"]);
    assert!(!out.ok(), "{out:?}");
    assert_eq!(out.stderr.matches("it is not a folder; choose another path").count(), 1, "{out:?}");
    assert!(!out.stderr.contains("os error"), "{out:?}");
}

/// S536: `NAME@STORE` is NAME in that store, also if it is the only one. An unknown store is told.
#[test]
fn s536_a_name_in_the_only_store() {
    let bed = Bed::new();
    for mounted in [false, true] {
        let m = mounted.then(|| bed.mount("bar"));
        for to in ["bob@samp", "bob@samp.msgfs"] {
            let out = bar(&bed, &["send", to, "hi"]);
            assert!(out.ok(), "{out:?}");
        }
        let out = bar(&bed, &["send", "bob@nosuch", "hi"]);
        let why = "there is no store \"nosuch\"; there is samp";
        assert!(!out.ok() && out.stderr.contains(why), "{out:?}");
        if let Some(m) = &m {
            m.ok("echo hi > outbox/bob@samp");
            assert!(!m.sh("echo hi > outbox/bob@nosuch").ok());
            assert!(m.cat("status.txt").contains(why));
        }
        assert!(bar(&bed, &["ls", "sent"]).ok());
    }
    let log = read_log(&bed.store, "bar");
    assert_eq!(log.len(), 5);
    assert!(log.iter().all(|record| member(record, "to") == "bob"), "{log:?}");
}

/// S729: the refusal of a draft of a task record that lacks members names all of them at once.
#[test]
fn s729_all_missing_members() {
    let bed = crate::ssot::bed();
    let m = bed.mount("coordinator");
    let members =
        ["description", "repo", "branch", "subtasks", "acceptance_criteria", "risk_level"];
    let head = "To: executor\\nTask: T-2026-001\\nType: task_dispatch\\n";
    let why = refused(&m, "x", &format!("{head}\\n{{}}\\n"), "");
    assert!(
        members.iter().all(|name| why.contains(&format!("payload.{name} is missing"))),
        "{why}"
    );
    let why = refused(&m, "executor", "{\"type\": \"task_dispatch\", \"payload\": {}}\\n", "");
    let envelope = ["msg_id is", "to is", "task_id is", "timestamp is", "payload.risk_level is"];
    assert!(envelope.iter().all(|name| why.contains(&format!("{name} missing"))), "{why}");
}

/// S1200: a refused answer with a number behind its name is sent when it is mended there. Its note and the last refusal
/// go with it.
#[test]
fn s1200_an_answer_with_a_number_is_mended_in_its_place() {
    let bed = Bed::new();
    samp::append(&bed.store, "foo", "bar", "A", "one", T0);
    samp::append(&bed.store, "baz", "bar", "B", "two", T0 + 1);
    let m = bed.mount("bar");
    let last = || m.last_refusal().split(' ').nth(1).map(str::to_owned);
    m.sh("printf '\\xff\\n' > threads/A/reply");
    soon("one is refused", || m.ls("outbox") == ["reply", "reply.error"]);
    m.sh("printf '\\xff\\n' > threads/B/reply");
    let both = ["reply", "reply.2", "reply.2.error", "reply.error"];
    soon("both are refused", || m.ls("outbox") == both);
    assert_eq!(last().as_deref(), Some("reply.2:"));
    m.sh("printf 'x\\xfe\\n' > outbox/reply.2");
    soon("it is refused again", || m.bytes("outbox/reply.2") == b"x\xfe\n");
    assert_eq!(m.ls("outbox"), both);
    m.ok("echo good > outbox/reply.2");
    soon("it is gone", || m.ls("outbox") == ["reply", "reply.error"]);
    let record = only(&bed.store, "bar");
    assert_eq!((member(&record, "thread"), member(&record, "to")), ("B", "baz"));
    assert_eq!(last().as_deref(), Some("reply:"));
    m.umount();
    let m = bed.mount("bar");
    assert_eq!(m.ls("outbox"), ["reply", "reply.error"]);
    // The removal of one ends the last refusal, too.
    m.sh("printf '\\xff\\n' > threads/B/reply");
    soon("both are refused", || m.ls("outbox") == both);
    m.ok("rm outbox/reply && rm outbox/reply.2");
    assert!(m.cat("status.txt").contains("last refusal: none"));
}

/// S1201: a refused reply with the name of a recipient is kept under another name. A draft of the recipient's name goes
/// to the recipient.
#[test]
fn s1201_an_answer_named_like_a_recipient() {
    let bed = Bed::new();
    samp::append(&bed.store, "foo", "bar", "A", "one", T0);
    samp::append(&bed.store, "bob", "bar", "B", "two", T0 + 1);
    bed.config("[groups]\nteam = [\"bob\"]\n");
    let m = bed.mount("bar");
    for (name, place) in [
        ("bob", "bob.2"),
        ("bob.txt", "bob.txt.2"),
        ("team", "team.2"),
        ("bob@samp", "bob.samp"),
        ("zed", "zed"),
    ] {
        m.sh(&format!("printf '\\xff\\n' > threads/A/{name}"));
        soon("it is refused", || m.ls("outbox") == [place.to_owned(), format!("{place}.error")]);
        let why = m.cat(&format!("threads/A/{name}.error"));
        assert!(why.contains(&format!("is kept in outbox/{place},")), "{why}");
        if name != place {
            m.ok(&format!("echo secret > outbox/{name}; ls sent > /dev/null"));
            let record = read_log(&bed.store, "bar").pop().unwrap();
            assert_eq!((member(&record, "to"), member(&record, "body")), ("bob", "secret"));
            assert_ne!(member(&record, "thread"), "A");
        }
        m.ok(&format!("echo mended > outbox/{place}"));
        soon("it is sent", || m.ls("outbox").is_empty());
        let record = read_log(&bed.store, "bar").pop().unwrap();
        assert_eq!((member(&record, "to"), member(&record, "body")), ("foo", "mended"));
        assert_eq!(member(&record, "thread"), "A");
        assert!(m.cat("status.txt").contains("last refusal: none"));
    }
}

/// S1202: somebody becomes known by the name of a refused answer. A text under that name goes to nobody else: it is
/// refused once, and the answer moves.
#[test]
fn s1202_a_recipient_becomes_known_by_the_name_of_an_answer() {
    let bed = Bed::new();
    samp::append(&bed.store, "foo", "bar", "A", "one", T0);
    let m = bed.mount("bar");
    for (n, (name, write)) in [
        ("zebra", "echo secret > outbox/zebra"),
        ("yak", "echo secret > outbox/x.tmp && mv outbox/x.tmp outbox/yak"),
    ]
    .into_iter()
    .enumerate()
    {
        m.sh(&format!("printf '\\xff\\n' > threads/A/{name}"));
        soon("it is refused", || m.ls("outbox") == [name.to_owned(), format!("{name}.error")]);
        let rec = samp::append(&bed.store, name, "bar", "B", "hello", T0 + 1);
        soon("the sender is known", || m.ls("inbox").contains(&rec.name(0)));
        let out = m.sh(write);
        assert!(!out.ok(), "{out:?}");
        assert_eq!(read_log(&bed.store, "bar").len(), 2 * n, "nothing is sent");
        let said = format!("is now in outbox/{name}.2: mend it there");
        assert!(m.cat(&format!("outbox/{name}.error")).contains(&said));
        assert!(m.cat("status.txt").contains(&said));
        assert_eq!(m.bytes(&format!("outbox/{name}.2")), b"\xff\n");
        m.ok(write);
        m.ok(&format!("ls sent > /dev/null; echo mended > outbox/{name}.2"));
        soon("both are sent", || m.ls("outbox").is_empty());
        let log = read_log(&bed.store, "bar");
        let sent = |n: usize| ["to", "body"].map(|key| member(&log[n], key));
        assert_eq!((log.len(), sent(2 * n)), (2 * n + 2, [name, "secret"]));
        assert_eq!(sent(2 * n + 1), ["foo", "mended"]);
        assert_eq!(member(&log[2 * n + 1], "thread"), "A");
    }
}
