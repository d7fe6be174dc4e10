//! Kept threads in the mount.

use std::os::unix::fs::MetadataExt;

use super::*;
use crate::common::{atsf_reader, shown, soon};

/// Returns a bed in which a session with a sub-agent is kept.
fn kept_bed() -> (Bed, Session) {
    let bed = bed();
    let mut session = Session::new(&bed, ONE, 0);
    session.turn(1);
    session.turn(2);
    session.sub_agent();
    kept(&bed, &[ONE]);
    (bed, session)
}

/// Returns the number of messages in the thread of the session.
fn texts(m: &Mount) -> usize {
    let names = m.ls(&format!("threads/{ONE}"));
    names.iter().filter(|name| shown::has_ending(name, "txt")).count()
}

/// Returns the names of all messages in threads.
fn names(m: &Mount) -> String {
    m.ok("find threads | LC_ALL=C sort")
}

fn delete_session(session: &Session) {
    fs::remove_dir_all(session.file.with_extension("")).expect("remove");
    fs::remove_file(&session.file).expect("remove");
}

/// S1022: a message that its session has is shown once. When the session is deleted, also while mounted, everything in
/// threads/ and transcripts/ stays, with names, bytes, ids and inode numbers. When it comes back, too.
#[test]
fn s1022_stand_in() {
    let (bed, session) = kept_bed();
    for order in [["claude", "atsf"], ["atsf", "claude"]] {
        bed.config(&stores(&bed, &order));
        let _ = fs::remove_dir_all(bed.path("cache/msgfs"));
        let m = bed.mount("anna");
        let sub = format!("{ONE}.{SUB}");
        assert_eq!(
            m.ls("threads").iter().filter(|name| name.starts_with(ONE)).count(),
            m.ls("threads").len()
        );
        assert!(m.ls("threads").contains(&ONE.to_owned()), "{:?}", m.ls("threads"));
        assert_eq!(texts(&m), 4);
        assert_eq!(m.ok(&format!("cat threads/{ONE}/*.txt")).matches("@claude>").count(), 4);
        let before = look(&m);
        let (home, away) = (bed.path("home/.claude/projects/-shop"), bed.path("away"));
        fs::rename(&home, &away).expect("rename");
        fs::create_dir(&home).expect("mkdir");
        // The mount shows the same at each moment, and raw/ shows that the session is gone.
        soon("the session is gone", || !m.ok("find raw/claude").contains(ONE));
        assert_eq!(look(&m), before, "while mounted");
        m.umount();
        let m = bed.mount("anna");
        assert_eq!(look(&m), before, "from the snapshot");
        m.umount();
        fs::remove_dir_all(bed.path("cache/msgfs")).expect("remove");
        let m = bed.mount("anna");
        assert_eq!(look(&m), before, "without a cache");
        fs::remove_dir(&home).expect("rmdir");
        fs::rename(&away, &home).expect("rename");
        soon("the session is back", || m.ok("find raw/claude").contains(ONE));
        assert_eq!(look(&m), before, "when it is back");
        m.umount();
        assert!(fs::metadata(folder(&bed, &sub)).expect("kept").ino() > 0);
    }
    delete_session(&session);
}

/// S1022: a session that went on since it was kept shows what is new from the session, and loses only that with it.
#[test]
fn s1022_went_on() {
    let (bed, mut session) = kept_bed();
    session.turn(3);
    let m = bed.mount("anna");
    let count = || texts(&m);
    assert_eq!(count(), 6);
    kept(&bed, &[ONE]);
    session.turn(4);
    soon("eight messages", || count() == 8);
    delete_session(&session);
    soon("the kept ones", || count() == 6);
    assert_eq!(m.ok(&format!("cat threads/{ONE}/*.txt")).matches("answer ").count(), 3);
}

/// S1022: a session that was compacted, and a fork of it, are the same threads when they are gone.
#[test]
fn s1022_forks() {
    let bed = bed();
    let mut session = Session::new(&bed, ONE, 0);
    session.turn(1);
    session.compact();
    session.turn(2);
    let mut fork = session.fork(&bed, TWO);
    fork.lines += 100;
    fork.turn(3);
    kept(&bed, &["--all"]);
    assert_eq!((log(&bed, ONE).len(), log(&bed, TWO).len()), (5, 2));
    assert_eq!(log(&bed, ONE)[2]["role"], "system");
    assert_eq!(meta(&bed, TWO)["parentThreadId"], ONE);
    assert_eq!(atsf_reader::texts(&bed, &bed.path("shop"), ONE)[2], "This is the summary.");
    let m = bed.mount("anna");
    let before = look(&m);
    assert_eq!(before.matches("In-Reply-To: <").count(), 1, "{before}");
    m.umount();
    delete_session(&session);
    delete_session(&fork);
    let m = bed.mount("anna");
    assert_eq!(look(&m), before);
    m.umount();
    bed.config(&stores(&bed, &["atsf"]));
    let m = bed.mount("anna");
    assert_eq!(look(&m), before);
    for file in ["long1.txt", "*-tool-Bash.json"] {
        assert!(m.ok(&format!("cat threads/{ONE}/*.d/{file}")).contains("the whole"));
    }
}

/// S1022: a thread of Codex, the same after the migration of its log, and when it is gone. Its ids have the form of
/// UUIDs in the kept thread.
#[test]
fn s1022_codex() {
    let bed = bed();
    bed.config(&stores(&bed, &["codex", "atsf"]));
    let id = "01a21513-c9d0-7083-aec5-c7538fdc5181";
    let log_file =
        bed.path(format!("home/.codex/sessions/2026/11/25/rollout-2026-11-25T23-00-00-{id}.jsonl"));
    let cwd = bed.path("shop").to_str().unwrap().to_owned();
    let session = |is_legacy: bool| {
        let seen = |old: &str, new: &str, text: &str| {
            if is_legacy {
                return json!({"type": old, "message": text});
            }
            let content = json!([{"type": "text", "text": text}]);
            json!({"type": "item_completed", "item": {"type": new, "id": "x", "content": content}})
        };
        let call =
            json!({"type": "function_call", "name": "shell", "arguments": "{}", "call_id": "c1"});
        let result = json!({"type": "function_call_output", "call_id": "c1", "output": "out"});
        let meta =
            json!({"id": id, "cwd": cwd, "cli_version": "0.169.0", "git": {"branch": "main"}});
        let records = [
            ("session_meta", meta),
            ("event_msg", seen("user_message", "UserMessage", "please run: echo hello codex")),
            ("response_item", call),
            ("response_item", result),
            ("event_msg", seen("agent_message", "AgentMessage", "ran")),
        ];
        let line = |(n, (kind, payload)): (usize, &(&str, Value))| {
            let time = format!("2026-11-25T23:39:{:02}.126Z", 7 + n);
            format!("{}\n", json!({"timestamp": time, "type": kind, "payload": payload}))
        };
        records.iter().enumerate().map(line).collect::<String>()
    };
    put(&log_file, session(true));
    kept(&bed, &["--all"]);
    assert_eq!(log(&bed, id)[0]["id"], "060849bb-129c-4f25-642b-dc6e99c3cb08");
    assert_eq!(meta(&bed, id)["agent"]["id"], "codex");
    let texts = atsf_reader::texts(&bed, &bed.path("shop"), id);
    assert_eq!(texts, ["please run: echo hello codex", "ran"]);
    put(&log_file, session(false));
    assert!(kept(&bed, &["--all"]).contains("0 messages added"));
    let m = bed.mount("anna");
    let before = look(&m);
    assert!(before.contains("Message-ID: <060849bb129c4f25642bdc6e99c3cb08@codex>"), "{before}");
    fs::remove_file(&log_file).expect("remove");
    soon("the log is gone", || !m.ok("find raw/codex").contains(id));
    assert_eq!(look(&m), before);
    m.umount();
    bed.config(&stores(&bed, &["atsf"]));
    let m = bed.mount("anna");
    assert_eq!(look(&m), before);
}

/// Returns a session of two turns, and a fork of it with a third one.
fn session_and_fork(bed: &Bed) -> (Session, Session) {
    let mut session = Session::new(bed, ONE, 0);
    session.turn(1);
    session.turn(2);
    let mut fork = session.fork(bed, TWO);
    fork.lines += 100;
    fork.turn(3);
    (session, fork)
}

/// S1375: a session that is gone has its messages in its kept thread, also while a fork of it is there, and after that.
/// A keep of the fork adds none of them. If the kept thread is removed, the fork has them.
#[test]
fn s1375_fork_stays() {
    for is_removed in [false, true] {
        let bed = bed();
        let (session, fork) = session_and_fork(&bed);
        kept(&bed, &["--all"]);
        let m = bed.mount("anna");
        let before = names(&m);
        delete_session(&session);
        soon("the session is gone", || !m.ok("find raw/claude").contains(ONE));
        // The fork is read again meanwhile.
        std::thread::sleep(std::time::Duration::from_secs(1));
        assert_eq!(names(&m), before);
        assert!(kept(&bed, &["--all"]).contains("0 messages added"));
        m.umount();
        fs::remove_dir_all(bed.path("cache/msgfs")).expect("remove");
        let m = bed.mount("anna");
        assert_eq!(names(&m), before, "without a cache");
        if is_removed {
            fs::remove_dir_all(folder(&bed, ONE)).expect("remove");
            let moved = || m.ok(&format!("ls threads/{TWO}")).matches(".txt").count() == 6;
            soon("the fork has the messages", moved);
            assert!(!m.ls("threads").contains(&ONE.to_owned()));
            assert!(kept(&bed, &["--all"]).contains("4 messages added"));
        } else {
            delete_session(&fork);
            soon("the fork is gone", || !m.ok("find raw/claude").contains(TWO));
            assert_eq!(names(&m), before, "without both");
        }
        let last = look(&m);
        m.umount();
        fs::remove_dir_all(bed.path("cache/msgfs")).expect("remove");
        let m = bed.mount("anna");
        assert_eq!(look(&m), last, "without a cache at the end");
    }
}

/// S1376: a fork gets the messages of its origin when that is gone. A later keep of the fork adds them, and they have
/// their names also when the fork is gone and the cache is lost.
#[test]
fn s1376_added_later() {
    let bed = bed();
    let (session, fork) = session_and_fork(&bed);
    kept(&bed, &[TWO]);
    delete_session(&session);
    let m = bed.mount("anna");
    let before = names(&m);
    assert!(kept(&bed, &[TWO]).contains("4 messages added"));
    assert_eq!(log(&bed, TWO)[2]["nameTime"], log(&bed, TWO)[2]["timestamp"]);
    assert!(log(&bed, TWO)[3].get("nameTime").is_none());
    delete_session(&fork);
    soon("the fork is gone", || !m.ok("find raw/claude").contains(TWO));
    assert_eq!(names(&m), before);
    let first = look(&m);
    m.umount();
    fs::remove_dir_all(bed.path("cache/msgfs")).expect("remove");
    let m = bed.mount("anna");
    assert_eq!(look(&m), first);
}

/// S1377: a session that two stores keep is shown until both have lost it, whichever of them loses it first.
#[test]
fn s1377_kept_twice() {
    for (store, project) in [("atsf", "shop"), ("second", "second")] {
        let (bed, session) = kept_bed();
        let second = bed.path("second");
        fs::create_dir(&second).expect("mkdir");
        let both = stores(&bed, &["claude", "atsf"]);
        let more = format!("[[store]]\nkind = \"atsf\"\nname = \"second\"\ndir = {second:?}\n");
        bed.config(&format!("{both}{more}"));
        kept(&bed, &["--store", "second", ONE]);
        delete_session(&session);
        let m = bed.mount("anna");
        let before = look(&m);
        assert_eq!(texts(&m), 4);
        for thread in fs::read_dir(bed.path(project).join(".agent/threads")).expect("threads") {
            fs::remove_dir_all(thread.expect("thread").path()).expect("remove");
        }
        let raw = format!("find raw/{store} 2>&1 || true");
        soon("one has lost it", || !m.ok(&raw).contains(ONE));
        assert_eq!(look(&m), before, "{store} lost it");
        m.umount();
        let m = bed.mount("anna");
        assert_eq!(look(&m), before, "{store} lost it, from the snapshot");
    }
}

/// S1023: where the store of the session is not mounted, the kept thread looks the same.
#[test]
fn s1023_alone() {
    let (bed, session) = kept_bed();
    let m = bed.mount("anna");
    let before = look(&m);
    m.umount();
    delete_session(&session);
    bed.config(&stores(&bed, &["atsf"]));
    let m = bed.mount("anna");
    assert_eq!(look(&m), before);
    let text = m.ok(&format!("cat threads/{ONE}/*.txt"));
    assert!(text.contains(&format!("Message-ID: <{}@claude>", uuid(1))), "{text}");
}

/// S1024: a kept thread is never in inbox/, in sent.txt or behind `last sent:`, and nobody can write into it.
#[test]
fn s1024_no_mail() {
    let (bed, session) = kept_bed();
    delete_session(&session);
    for kinds in [&["claude", "atsf"][..], &["atsf"]] {
        bed.config(&stores(&bed, kinds));
        let m = bed.mount("anna");
        assert!(m.ls(&format!("threads/{ONE}")).len() > 4);
        m.inbox_stays(&[]);
        assert!(!m.cat("sent.txt").contains("prompt"), "{}", m.cat("sent.txt"));
        let status = m.cat("status.txt");
        assert!(
            status.lines().any(|line| line.starts_with("last sent:") && line.ends_with("none")),
            "{status}"
        );
        assert!(status.contains("unread: 0"), "{status}");
        let log_before = log(&bed, ONE);
        let out = m.py(
            "try:\n f=open('threads/'+sys.argv[1]+'/answer','w'); f.write('hi'); f.close()\n\
             except OSError as e: print(e.errno)",
            &[ONE],
        );
        assert!(!out.trim().is_empty(), "close fails");
        let out = bed.msgfs_out(&[
            "--me", "anna", "send", "--via", "atsf", "--thread", ONE, "agent", "hello",
        ]);
        assert!(!out.ok(), "{out:?}");
        assert_eq!(log(&bed, ONE), log_before);
        m.umount();
    }
}

/// S1025: the list in the state folder says that a thread was kept, if another program dropped its metadata.
#[test]
fn s1025_metadata_dropped() {
    let (bed, session) = kept_bed();
    let m = bed.mount("anna");
    let before = look(&m);
    m.umount();
    delete_session(&session);
    let path = folder(&bed, ONE).join("thread.json");
    let mut meta = meta(&bed, ONE);
    meta["metadata"] = serde_json::json!({});
    fs::write(&path, format!("{meta:#}\n")).unwrap();
    let m = bed.mount("anna");
    assert_eq!(look(&m), before);
    m.inbox_stays(&[]);
    // It happens while mounted, too.
    meta["metadata"] = serde_json::json!({"other": 1});
    fs::write(&path, format!("{meta:#}\n")).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(500));
    assert_eq!(look(&m), before);
    m.inbox_stays(&[]);
}
