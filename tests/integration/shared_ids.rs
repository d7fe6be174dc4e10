//! A message to several recipients has one id for everybody, a reply keeps the subject, and the agents of this machine
//! see each other before they have written.

use std::fs;
use std::time::Duration;

use serde_json::{Value, json};

use crate::common::amp::Home;
use crate::common::proc::Running;
use crate::common::samp::{self, Rec, T0, append_raw, log, member, read_log};
use crate::common::shown::{self, Shown};
use crate::common::{Bed, Mount, PATIENCE, run, soon};

/// Returns the ids in a folder of the mount, in the order of the names.
fn ids(m: &Mount, folder: &str) -> Vec<String> {
    let id = |s: &Shown| {
        let id = s.must("Message-ID");
        id.trim_start_matches('<').trim_end_matches("@samp>").to_owned()
    };
    shown::all(m, folder).iter().map(id).collect()
}

/// Returns the ids that the reference program shows, without moving its mark.
fn peek(bed: &Bed, me: &str, release: &str) -> Vec<String> {
    let mut c = bed.command("python3");
    c.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/peers/samp_reference.py")).arg(&bed.store);
    c.args(["inbox", me, release, "--peek"]);
    let out = run(c, None);
    assert!(out.ok(), "{out:?}");
    out.stdout.lines().map(str::to_owned).collect()
}

/// Returns the part of the first line of `status.txt` about the SAMP store that has the counts.
fn counts(m: &Mount) -> String {
    let status = m.cat("status.txt");
    let line = status.lines().find_map(|line| line.trim().strip_prefix("samp (samp): "));
    line.unwrap_or_else(|| panic!("{status}")).split(';').next().unwrap().to_owned()
}

/// S371, S253, S900: the sender, each recipient and the answers call the message by one id. Marks and the reference
/// program use the record's own id.
#[test]
fn s371_one_id_for_everybody() {
    let bed = Bed::new();
    let [foo, bob, carol] = ["foo", "bob", "carol"].map(|me| bed.mount(me));
    foo.ok("printf 'To: bob, carol\nSubject: plan\n\nwho comes?\n' > outbox/x");
    foo.ok("echo alone > outbox/bob");
    let log = read_log(&bed.store, "foo");
    let [to_bob, to_carol] = [0, 1].map(|n| member(&log[n], "id").to_owned());
    assert_eq!(counts(&foo), "0 to me, 2 from me, 0 rejected");
    let day = format!("sent/{}", foo.ls("sent")[0]);
    assert_eq!(foo.ls(&day).len(), 2);
    assert_eq!(ids(&foo, "sent")[0], to_bob);
    soon("it is there", || bob.ls("inbox").len() == 2 && carol.ls("inbox").len() == 1);
    let name = foo.ls(&day)[0].clone();
    for m in [&bob, &carol] {
        assert_eq!((&ids(m, "inbox")[0], &m.ls("inbox")[0]), (&to_bob, &name));
        assert_eq!(
            m.cat(&format!("archive/{}/{name}", samp::today())),
            foo.cat(&format!("{day}/{name}"))
        );
        for id in [&to_bob, &to_carol] {
            for short in [id.as_str(), &id[..8]] {
                assert_eq!(ids(m, "archive")[0], to_bob);
                m.ok(&format!("test -e archive/*/{short}.txt && test -e inbox/{short}.reply"));
            }
        }
    }
    for id in [&to_bob, &to_carol] {
        assert_eq!(foo.cat(&format!("{day}/{id}.txt")), foo.cat(&format!("{day}/{name}")));
    }
    // Others have the own ids of the records, before and after carol has read hers.
    assert_eq!(
        (peek(&bed, "carol", "r12"), peek(&bed, "bob", "r111").len()),
        (vec![to_carol.clone()], 2)
    );
    carol.ok(&format!("echo 'I do' > inbox/{}.reply; cat inbox/* > /dev/null", &to_bob[..8]));
    let seen = bed.store.join(".seen-carol");
    soon("the mark is told", || fs::read_to_string(&seen).is_ok_and(|s| s.contains(&to_carol)));
    assert!(!fs::read_to_string(&seen).unwrap().contains(&to_bob));
    assert!(peek(&bed, "carol", "r12").is_empty() && peek(&bed, "carol", "r111").is_empty());
    let said = read_log(&bed.store, "carol").remove(0);
    assert_eq!((member(&said, "re"), member(&said, "subject")), (to_bob.as_str(), "Re: plan"));
    // An answer that names the record's own id answers the message.
    bob.ok(&format!("printf 'To: foo\nIn-Reply-To: {to_carol}\n\nnot I\n' > outbox/x"));
    assert_eq!(member(&read_log(&bed.store, "bob")[0], "re"), to_bob);
    soon("both are there", || foo.ls("inbox").len() == 2);
    for answer in shown::all(&foo, "inbox") {
        assert_eq!(answer.must("In-Reply-To"), format!("<{to_bob}@samp>"));
        assert_eq!(answer.must("Subject"), "Re: plan");
    }
    let look =
        "find archive sent threads transcripts -type f | sort | xargs sha256sum; ls -l threads/*";
    let before = [&foo, &bob, &carol].map(|m| m.ok(look));
    for m in [foo, bob, carol] {
        m.umount();
    }
    fs::remove_dir_all(bed.path("cache")).unwrap();
    let again = ["foo", "bob", "carol"].map(|me| bed.mount(me));
    assert_eq!(again.each_ref().map(|m| m.ok(look)), before);
    let [foo, ..] = again;
    foo.umount();
    assert_eq!(bed.mount("foo").ok(look), before[0], "from the snapshot");
}

/// S371: records and answers of an earlier msgfs, whose answers name the own id of each record, are shown with the
/// shared id, also if the message comes after its answer.
#[test]
fn s371_what_was_written_earlier() {
    let bed = Bed::new();
    let everybody = [("ms", json!(7)), ("rcpt", json!(["bob", "carol"]))];
    let [bob, carol] = ["bob", "carol"].map(|to| Rec::new("foo", to, "t", "who comes?", T0));
    let m = bed.mount("carol");
    for (to, re) in [("foo", &bob.id), ("carol", &carol.id)] {
        let answer = Rec::new("bob", to, "t", "I do", T0 + 5);
        let more = [("re", json!(re)), ("ms", json!(1)), ("rcpt", json!(["foo", "carol"]))];
        append_raw(&log(&bed.store, "bob"), answer.line_with(&more));
    }
    soon("the answer is there", || m.ls("inbox").len() == 1);
    let answered = |m: &Mount| {
        let all = shown::all(m, "threads/t");
        let answer = all.iter().find(|s| s.must("From") == "bob").unwrap();
        answer.get("In-Reply-To").map(str::to_owned)
    };
    let in_inbox = shown::all(&m, "inbox").remove(0);
    assert_eq!(
        in_inbox.must("In-Reply-To"),
        format!("<{}@samp>", carol.id),
        "the message is not there"
    );
    for rec in [&bob, &carol] {
        append_raw(&log(&bed.store, "foo"), rec.line_with(&everybody));
    }
    soon("the message is there", || m.ls("inbox").len() == 2);
    let wanted = format!("<{}@samp>", bob.id);
    soon("the answer names it", || m.ls("threads/t").len() == 2);
    assert_eq!(answered(&m), Some(wanted.clone()));
    for me in ["foo", "bob", "dave"] {
        bed.config("scope = \"all\"\n");
        let m = bed.mount(me);
        assert_eq!((ids(&m, "threads/t").len(), answered(&m)), (2, Some(wanted.clone())), "{me}");
        assert_eq!(ids(&m, "threads/t")[0], bob.id, "{me}");
    }
}

/// S371, S253: a record that differs, or claims an id, stands alone under its own id, and nothing is left out. A
/// record whose first one is missing has the computed id.
#[test]
fn s371_hostile_records() {
    let bed = Bed::new();
    let rcpt = ["bob", "bar", "dave"];
    let more = |list: Value, subject: &str| {
        vec![("subject", json!(subject)), ("ms", json!(1)), ("rcpt", list)]
    };
    let put = |rec: &Rec, more: &[(&str, Value)]| {
        append_raw(&log(&bed.store, "foo"), rec.line_with(more));
    };
    let rec = |to: &str, thread: &str| Rec::new("foo", to, thread, "for all of you", T0);
    let good = more(json!(rcpt), "s");
    let m = bed.mount("bar");
    let shows = |thread: &str, wanted: &[&str]| {
        let mut wanted: Vec<&str> = wanted.to_vec();
        wanted.sort_unstable();
        let listed = || {
            let mut found = m.sh(&format!("grep -h '^Message-ID:' threads/{thread}/*.txt")).stdout;
            found = found.replace("Message-ID: <", "").replace("@samp>", "");
            let mut found: Vec<String> = found.lines().map(str::to_owned).collect();
            found.sort_unstable();
            found
        };
        let mut last = Vec::new();
        for _ in 0..100 {
            last = listed();
            if last == wanted {
                return;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        panic!("{thread}: {last:?} and not {wanted:?}");
    };
    // The first record is missing, then comes.
    put(&rec("bar", "late"), &good);
    shows("late", &[&rec("bob", "late").id]);
    put(&rec("dave", "late"), &good);
    put(&rec("bob", "late"), &good);
    shows("late", &[&rec("bob", "late").id]);
    // The first record has another subject, and comes when mine was seen.
    put(&rec("bar", "subject"), &good);
    shows("subject", &[&rec("bob", "subject").id]);
    put(&rec("bob", "subject"), &more(json!(rcpt), "another"));
    shows("subject", &[&rec("bob", "subject").id, &rec("bar", "subject").id]);
    // The first record has no list, or a list in another order.
    put(&rec("bob", "plain"), &[("subject", json!("s")), ("ms", json!(1))]);
    put(&rec("bar", "plain"), &good);
    shows("plain", &[&rec("bob", "plain").id, &rec("bar", "plain").id]);
    put(&rec("bob", "order"), &more(json!(["bob", "dave", "bar"]), "s"));
    put(&rec("bar", "order"), &good);
    shows("order", &[&rec("bob", "order").id, &rec("bar", "order").id]);
    // Somebody claims the id of the first record for another text.
    let forged = Rec { body: "something else".into(), ..rec("bob", "forged") };
    put(&forged, &good);
    put(&rec("bar", "forged"), &good);
    shows("forged", &[&forged.id, &rec("bar", "forged").id]);
    // My own record has an id that is not its own.
    let claimed = Rec { id: "00112233445566ff".into(), ..rec("bar", "claimed") };
    put(&rec("bob", "claimed"), &good);
    put(&claimed, &good);
    shows("claimed", &[&rec("bob", "claimed").id, &claimed.id]);
    // Lists that are none, names twice, and a long list.
    put(&rec("bar", "none"), &more(json!(["bob", "dave"]), "s"));
    shows("none", &[&rec("bar", "none").id]);
    put(&rec("bar", "one"), &more(json!(["bar"]), "s"));
    shows("one", &[&rec("bar", "one").id]);
    put(&rec("bar", "twice"), &more(json!(["bob", "bar", "bob", "bar"]), "s"));
    shows("twice", &[&rec("bob", "twice").id]);
    assert_eq!(shown::all(&m, "threads/twice")[0].must("To"), "bob, bar");
    let crowd: Vec<String> =
        (0..10_000).map(|n| format!("n{n}")).chain(["bar".to_owned()]).collect();
    let crowd: Vec<(&str, Value)> = more(json!(crowd), "s");
    let lines = |to: &String| rec(to, "crowd").line_with(&crowd);
    let some: Vec<String> =
        ["n0", "n1", "n9999", "bar"].map(str::to_owned).iter().map(lines).collect();
    append_raw(&log(&bed.store, "foo"), some.concat());
    shows("crowd", &[&rec("n0", "crowd").id]);
    // The files of another writer make no difference.
    append_raw(
        &log(&bed.store, "eve"),
        Rec { from: "eve".into(), ..rec("bob", "late") }.line_with(&good),
    );
    shows("late", &[&rec("bob", "late").id, &rec("bob", "late").id]);
    assert_eq!(m.ls("inbox").len(), 10, "each record to me is mail");
    let names = m.ok("ls threads/* inbox");
    m.umount();
    fs::remove_dir_all(bed.path("cache")).unwrap();
    assert_eq!(bed.mount("bar").ok("ls threads/* inbox"), names);
}

/// S371: a log that loses what other programs do not know shows what is left.
#[test]
fn s371_a_log_that_loses_members() {
    let bed = Bed::new();
    let more = [("ms", json!(1)), ("rcpt", json!(["bob", "bar"]))];
    let all = ["bob", "bar"].map(|to| Rec::new("foo", to, "t", "hello", T0));
    let lines =
        |more: &[(&str, Value)]| all.iter().map(|rec| rec.line_with(more)).collect::<String>();
    append_raw(&log(&bed.store, "foo"), lines(&more));
    let m = bed.mount("bar");
    assert_eq!(ids(&m, "threads/t"), [all[0].id.as_str()]);
    let new = bed.path("new");
    fs::write(&new, lines(&[])).unwrap();
    fs::rename(&new, log(&bed.store, "foo")).unwrap();
    soon("mine stands alone", || ids(&m, "inbox") == [all[1].id.as_str()]);
    fs::write(&new, all[1].line_with(&more)).unwrap();
    fs::rename(&new, log(&bed.store, "foo")).unwrap();
    soon("its first one is gone", || ids(&m, "threads/t") == [all[0].id.as_str()]);
}

/// S900: in AMP the ids stay, and `sent/` and `status.txt` have a message once.
#[test]
fn s900_amp() {
    let bed = Bed::new();
    let home = Home::new(&bed);
    home.agent("carol", "acme", 3);
    bed.config(&home.store());
    let m = bed.mount("bar");
    m.ok("printf 'To: alice, carol\nSubject: plan\n\nwho comes?\n' > outbox/x");
    let own = ["alice", "carol"]
        .map(|name| home.only(name, "inbox").1["envelope"]["id"].as_str().unwrap().to_owned());
    let sent = shown::all(&m, "sent");
    assert_eq!(sent.len(), 1);
    assert_eq!(sent[0].must("Message-ID"), format!("<{}@amp>", own[0]));
    assert!(m.cat("status.txt").contains("0 to me, 1 from me, 0 rejected"));
    let day = &m.ls("sent")[0];
    assert_eq!(
        m.cat(&format!("sent/{day}/{}.txt", own[1])),
        m.cat(&format!("sent/{day}/{}.txt", own[0]))
    );
}

/// S901: an answer has the subject of its message with one `Re: ` before it, in the thread, beside the message and by
/// command. A subject that is written stays as it is, and a message without one is answered without one.
#[test]
fn s901_a_reply_keeps_the_subject() {
    let bed = Bed::new();
    for (n, subject) in ["plan", "Re: plan", "RE: re:plan", "two\nlines"].into_iter().enumerate() {
        let rec = Rec::new("foo", "bar", &format!("t{n}"), "text", T0 + n as i64);
        append_raw(&log(&bed.store, "foo"), rec.line_with(&[("subject", json!(subject))]));
    }
    samp::append(&bed.store, "foo", "bar", "t4", "text", T0 + 4);
    let m = bed.mount("bar");
    for n in 0..5 {
        m.ok(&format!("echo hi > threads/t{n}/x"));
    }
    m.ok("echo hi > threads/t0/$(ls threads/t0 | head -1 | sed s/.txt//).reply");
    m.ok("printf 'Subject: mine\n\nhi\n' > threads/t0/y");
    m.umount();
    let out = bed.msgfs_out(&[
        "--me",
        "bar",
        "reply",
        &Rec::new("foo", "bar", "t0", "text", T0).id,
        "hi",
    ]);
    assert!(out.ok(), "{out:?}");
    let subjects: Vec<Value> =
        read_log(&bed.store, "bar").iter().map(|r| r.get("subject").cloned().into()).collect();
    let plan = json!("Re: plan");
    assert_eq!(
        subjects,
        [
            plan.clone(),
            plan.clone(),
            plan.clone(),
            json!("Re: two lines"),
            Value::Null,
            plan.clone(),
            json!("mine"),
            plan
        ]
    );
}

/// S902, S530: identities of the same user that have a mount on the same store are in `agents.txt`, marked, before they
/// have written. They count for nothing else, and nothing is written into the store for them.
#[test]
fn s902_who_is_mounted_is_listed() {
    let bed = Bed::new();
    let foo = bed.mount("foo");
    let elsewhere = bed.path("config/eve.toml");
    fs::write(&elsewhere, format!("[[store]]\nkind = \"samp\"\ndir = {:?}\n", bed.path("other")))
        .unwrap();
    fs::create_dir_all(bed.path("other")).unwrap();
    let _eve =
        bed.mount_at(&bed.path("mnt-eve"), "eve", &["--config", elsewhere.to_str().unwrap()]);
    bed.config("unknown_recipient = \"refuse\"\n[groups]\nteam = [\"bob\", \"eve\"]\n");
    let m = bed.mount("bar");
    let text = m.cat("agents.txt");
    assert!(text.starts_with("# name ") && text.ends_with("\nteam: bob eve\n"), "{text}");
    let line = |name: &str| {
        let text = m.cat("agents.txt");
        text.lines().find(|line| line.split(' ').next() == Some(name)).map(str::to_owned)
    };
    soon("foo is listed", || line("foo").is_some());
    assert_eq!(line("foo").unwrap(), "foo samp - - - - mounted");
    assert_eq!(line("eve"), None, "another store");
    assert!(!line("bar").unwrap().ends_with("mounted"));
    let out = bed.msgfs_out(&["--me", "bar", "agents", "--json"]);
    let agents: Value = serde_json::from_str(&out.stdout).unwrap();
    let is_mounted = |name: &str| {
        agents.as_array().unwrap().iter().find(|a| a["name"] == name).map(|a| a["mounted"].clone())
    };
    assert_eq!(
        (is_mounted("foo"), is_mounted("bar"), is_mounted("eve")),
        (Some(json!(true)), Some(Value::Null), None)
    );
    assert!(fs::read_dir(&bed.store).unwrap().next().is_none(), "nothing is written there");
    // foo is as unknown as before.
    assert!(!m.sh("echo hi | tee outbox/foo").ok());
    foo.umount();
    soon("foo is gone", || line("foo").is_none());
    samp::append(&bed.store, "foo", "bar", "t", "hi", T0);
    soon("foo has written", || line("foo").is_some_and(|line| !line.ends_with("mounted")));
    let _foo = bed.mount("foo");
    soon("foo is back", || line("foo").is_some_and(|line| line.ends_with(" mounted")));
}

fn waiting(bed: &Bed, m: &Mount, file: &str) -> Running {
    let mut c = bed.command("bash");
    c.args(["-c", &format!("cat {file}")]).current_dir(&m.dir);
    let running = Running::start(c, None).unwrap();
    std::thread::sleep(Duration::from_millis(300));
    running
}

/// S903: a `.wait` that had to wait names all messages that come within 100 ms, and waits on if nothing is unread then.
#[test]
fn s903_wait_gathers() {
    let bed = Bed::new();
    let m = bed.mount("bar");
    let reader = waiting(&bed, &m, ".wait");
    let first = samp::append(&bed.store, "foo", "bar", "t", "one", T0);
    std::thread::sleep(Duration::from_millis(30));
    let second = samp::append(&bed.store, "zed", "bar", "t", "two", T0 + 1);
    let out = reader.finish(PATIENCE).unwrap();
    assert_eq!(out.stdout, format!("{}\n{}\n", first.name(0), second.name(0)));
    m.ok("cat inbox/* > /dev/null");
    // Another reader takes the message while the first one gathers.
    let (mut reader, next) = (waiting(&bed, &m, ".wait"), waiting(&bed, &m, ".next"));
    samp::append(&bed.store, "foo", "bar", "t", "three", T0 + 2);
    assert!(next.finish(PATIENCE).unwrap().stdout.ends_with("\n\nthree\n"));
    std::thread::sleep(Duration::from_millis(400));
    assert!(reader.running(), "it waits on");
    let last = samp::append(&bed.store, "foo", "bar", "t", "four", T0 + 3);
    assert_eq!(reader.finish(PATIENCE).unwrap().stdout, format!("{}\n", last.name(0)));
}
