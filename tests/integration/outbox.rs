//! Sending: the messages that a draft becomes.

use std::collections::BTreeSet;
use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::Value;

use crate::common::proc::Running;
use crate::common::samp::{self, T0, bodies, member, only, read_log};
use crate::common::{Bed, soon, wait_for};

/// S42: `outbox/bob` and its spellings reach bob, and nothing stays in outbox/.
#[test]
fn s42_plain() {
    let bed = Bed::new();
    let m = bed.mount("bar");
    for (i, name) in ["bob", "bob.txt", "bob.md", "bob.eml"].iter().enumerate() {
        m.ok(&format!("echo 'tests are green {i}' > outbox/{name}"));
        assert_eq!(m.ls("outbox"), [""; 0]);
        let all = read_log(&bed.store, "bar");
        assert_eq!(all.len(), i + 1, "{name}");
        assert_eq!(member(&all[i], "to"), "bob", "{name}");
        assert_eq!(member(&all[i], "from"), "bar");
        assert_eq!(member(&all[i], "body"), format!("tests are green {i}"));
    }
    m.ok("echo appended >> outbox/bob");
    assert_eq!(bodies(&bed.store, "bar")[4], "appended");
    m.ok("echo dotted > outbox/host.local");
    assert_eq!(member(&read_log(&bed.store, "bar")[5], "to"), "host.local");
}

/// S43: ten writers that share a descriptor, many writes, or a late background child make one message.
#[test]
fn s43_one_draft_one_message() {
    let bed = Bed::new();
    let m = bed.mount("bar");
    for (script, body) in [
        ("(echo a; cat <<< b) > outbox/bob", "a\nb"),
        ("exec 3>outbox/bob; echo a >&3; echo b >&3; exec 3>&-", "a\nb"),
        ("{ /bin/echo a; /bin/echo b; } > outbox/bob", "a\nb"),
        ("{ echo a; (sleep 0.4; echo late) & } > outbox/bob; wait", "a\nlate"),
        ("for i in 1 2 3; do echo $i; done > outbox/bob", "1\n2\n3"),
        ("exec 3>>outbox/bob; echo a >&3; /bin/echo b >&3; exec 3>&-", "a\nb"),
        (
            "seq 20000 | while read -r x; do echo $x; done | dd bs=7 of=outbox/bob status=none; :",
            "",
        ),
        (
            "python3 -c 'import subprocess; f=open(\"outbox/bob\",\"w\"); subprocess.run([\"echo\",\"child\"],stdout=f); f.close()'",
            "child",
        ),
    ] {
        let before = bodies(&bed.store, "bar").len();
        m.ok(script);
        soon("the message is in the log", || bodies(&bed.store, "bar").len() > before);
        let all = bodies(&bed.store, "bar");
        assert_eq!(all.len(), before + 1, "{script}");
        if body.is_empty() {
            let lines: Vec<String> = (1..=20000).map(|n| n.to_string()).collect();
            assert_eq!(all[before], lines.join("\n"), "{script}");
        } else {
            assert_eq!(all[before], body, "{script}");
        }
    }
}

/// S44: the line has the reference program's own form: key order, separators, id, newline. Further members follow.
#[test]
fn s44_record() {
    let bed = Bed::new();
    let m = bed.mount("bar");
    let before = samp::now();
    m.ok("printf 'Gr\\303\\274\\303\\237e cafe\\314\\201\\n\\ttab \"q\" \\\\ /\\177\\n' > outbox/bob");
    let text = std::fs::read_to_string(samp::log(&bed.store, "bar")).unwrap();
    let r = only(&bed.store, "bar");
    let (id, ts) = (member(&r, "id"), r["ts"].as_i64().unwrap());
    assert!((before..=samp::now()).contains(&ts));
    let body = "Gr\u{fc}\u{df}e caf\u{e9}\n\ttab \"q\" \\ /\u{7f}";
    assert_eq!(member(&r, "body"), body, "NFC, everything else kept");
    let thread = format!("{}-bar-gr-e-caf", samp::strftime(ts, "%Y-%m-%d"));
    assert_eq!(member(&r, "thread"), thread);
    assert_eq!(id, samp::id("bar", "bob", &thread, body, ts));
    let head = samp::Rec::new("bar", "bob", &thread, body, ts).line();
    let head = head.trim_end_matches("}\n");
    assert!(text.starts_with(&format!("{head}, ")), "{text}\nshould start with\n{head}");
    assert!(text.ends_with("}\n") && text.matches('\n').count() == 1, "{text}");
    let known = [
        "id", "ts", "from", "to", "thread", "body", "pub", "sig", "re", "subject", "idem", "ms",
        "rcpt",
    ];
    let strange: Vec<_> = r.keys().filter(|k| !known.contains(&k.as_str())).collect();
    assert!(strange.is_empty(), "members no document names: {strange:?}");
}

/// S44: the thread follows from the text as the table says, with NFC before the slug.
#[test]
fn s44_threads_from_vectors() {
    let text = include_str!("../vectors/samp-threads.json");
    let table: Vec<Value> = serde_json::from_str(text).unwrap();
    let bed = Bed::new();
    let m = bed.mount("alice");
    let mut sent = 0;
    for v in &table {
        let input = v["body_in"].as_str().unwrap();
        // A draft is a text file. An empty first line means "no headers" and is not part of the text, so the test
        // puts one before every input. Trailing newlines are not part of the text either.
        let file = bed.path("draft");
        std::fs::write(&file, format!("\n{input}")).unwrap();
        let out = m.sh(&format!("cat {} > outbox/bob", file.display()));
        let name = v["name"].as_str().unwrap();
        if input.trim().is_empty() {
            // Readers meet such records, but msgfs writes none.
            assert!(!out.ok(), "{name}: {out:?}");
            continue;
        }
        assert!(out.ok(), "{name}: {out:?}");
        let all = read_log(&bed.store, "alice");
        sent += 1;
        assert_eq!(all.len(), sent, "{name}");
        let r = &all[sent - 1];
        let day = samp::strftime(r["ts"].as_i64().unwrap(), "%Y-%m-%d");
        let thread = v["spec20260808_thread"].as_str().unwrap();
        let thread = thread.replace(v["date"].as_str().unwrap(), &day);
        // A thread that follows from the text is another conversation each time.
        let is_named = !thread.starts_with(&format!("{day}-alice-"));
        let known = |thread: &String| all[..sent - 1].iter().any(|r| member(r, "thread") == thread);
        let numbered = (2..).map(|n| format!("{thread}-{n}"));
        let mut free = std::iter::once(thread.clone()).chain(numbered);
        let wanted = free.find(|thread| is_named || !known(thread)).unwrap();
        assert_eq!(member(r, "thread"), wanted, "{name}: {input:?}");
        let body = v["spec20260808_body"].as_str().unwrap().trim_end_matches('\n');
        assert_eq!(member(r, "body"), body, "{name}: {input:?}");
    }
}

/// S45: these are headers, these lines end them, and these are no headers.
#[test]
fn s45_headers() {
    let bed = Bed::new();
    let m = bed.mount("bar");
    let send = |text: &str| {
        let before = read_log(&bed.store, "bar").len();
        std::fs::write(bed.path("d"), text).unwrap();
        m.ok(&format!("cat {} > outbox/zed", bed.path("d").display()));
        let mut all = read_log(&bed.store, "bar");
        assert_eq!(all.len(), before + 1, "{text:?}");
        all.remove(before)
    };
    let r = send("To: bob\nSubject: schema change\nThread: my-thread\n\nbody\n\nsecond\n");
    assert_eq!(
        (member(&r, "to"), member(&r, "subject"), member(&r, "thread"), member(&r, "body")),
        ("bob", "schema change", "my-thread", "body\n\nsecond")
    );
    let r = send("subject: names ignore case\nto: bob\n---\nbody after a rule");
    assert_eq!((member(&r, "to"), member(&r, "body")), ("bob", "body after a rule"));
    let r = send("\nTo: carol\nnot a header after an empty first line");
    assert_eq!(
        (member(&r, "to"), member(&r, "body")),
        ("zed", "To: carol\nnot a header after an empty first line")
    );
    let r = send("Note: this is text\nTo: carol\n");
    assert_eq!((member(&r, "to"), member(&r, "body")), ("zed", "Note: this is text\nTo: carol"));
    let r = send("Subject: windows\r\nTo: bob\r\n\r\nline one\r\nline two\r\n");
    assert_eq!((member(&r, "to"), member(&r, "subject")), ("bob", "windows"));
    let r = send("In-Reply-To: <0123456789abcdef@samp>\nTo: bob\n\nanswer");
    assert_eq!(member(&r, "re"), "0123456789abcdef");
    let r = send("Via: samp\n\nwith a store named");
    assert_eq!((member(&r, "to"), member(&r, "body")), ("zed", "with a store named"));
}

/// S46: `To:` has precedence over the name of the file.
#[test]
fn s46_headers_beat_names() {
    let bed = Bed::new();
    let m = bed.mount("bar");
    m.ok("printf 'To: carol\\n\\nfor carol only\\n' > outbox/bob");
    assert_eq!(member(&only(&bed.store, "bar"), "to"), "carol");
}

/// S47: all trailing newlines go, and other blanks stay. The thread prefix is taken off.
#[test]
fn s47_trailing_newlines_and_prefix() {
    let bed = Bed::new();
    let m = bed.mount("bar");
    m.ok("printf '  two blanks  \\n\\n\\n' > outbox/bob");
    m.ok("printf '[thread:roadmap] next step\\n' > outbox/bob");
    let all = read_log(&bed.store, "bar");
    assert_eq!(member(&all[0], "body"), "  two blanks  ");
    assert_eq!((member(&all[1], "thread"), member(&all[1], "body")), ("roadmap", "next step"));
    assert_eq!(m.ls("threads").len(), 2);
}

/// S48: each recipient gets one record, and all records have the same text. `sent/` has one message.
#[test]
fn s48_recipients() {
    let bed = Bed::new();
    let m = bed.mount("bar");
    m.ok("printf 'To: bob, carol,dave\\nCc: erin\\nSubject: s\\n\\nall of you\\n' > outbox/x");
    let all = read_log(&bed.store, "bar");
    let mut to: Vec<_> = all.iter().map(|r| member(r, "to")).collect();
    to.sort_unstable();
    assert_eq!(to, ["bob", "carol", "dave", "erin"]);
    assert!(all.iter().all(|r| member(r, "body") == "all of you" && member(r, "subject") == "s"));
    assert_eq!(m.ls(&format!("sent/{}", samp::today())).len(), 1);
}

/// S54: a file that is listed in sent/ can be read and stays there, while it goes to its store and others are
/// written.
#[test]
fn s54_what_is_listed_in_sent_can_be_read() {
    let bed = Bed::new();
    let m = bed.mount("bar");
    let folder = m.path("sent").join(samp::today());
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let looks = scope.spawn(|| {
            let mut seen = BTreeSet::new();
            loop {
                let last = is_over.load(Ordering::Relaxed);
                let listed = fs::read_dir(&folder).map(|all| all.map(|e| e.unwrap().path()));
                let listed: BTreeSet<_> = listed.into_iter().flatten().collect();
                let gone: Vec<_> = seen.difference(&listed).collect();
                assert!(gone.is_empty(), "was there and is gone: {gone:?}");
                for file in listed.difference(&seen) {
                    let text = fs::read_to_string(file);
                    let text = text.unwrap_or_else(|e| panic!("{}: {e}", file.display()));
                    assert!(text.contains("\n\nlook "), "{text}");
                }
                seen = listed;
                if last {
                    return seen.len();
                }
            }
        });
        for _ in 0..10 {
            let six = "for i in 1 2 3 4 5 6; do echo \"look $i $RANDOM\" > outbox/foo & done; wait";
            m.ok(six);
        }
        is_over.store(true, Ordering::Relaxed);
        assert_eq!(looks.join().unwrap(), 60);
    });
}

/// S54: the message is in sent/ at the first listing after `close`, thirty times in a row.
#[test]
fn s54_read_your_writes() {
    let bed = Bed::new();
    let m = bed.mount("bar");
    let out = m.ok("for i in $(seq 30); do /bin/echo message $i > outbox/bob || exit 1; \
         n=$(ls sent/$(TZ=UTC date +%F) | wc -l); [ $n = $i ] || echo \"after $i: $n\"; done");
    assert_eq!(out, "");
    // The same holds for a program that never starts another one.
    m.py(
        "import time\nfor i in range(30):\n    open('outbox/bob','w').write(f'python {i}')\n    day=time.strftime('%Y-%m-%d',time.gmtime())\n    assert len(os.listdir('sent/'+day)) == 31+i, i\n    assert os.listdir('outbox') == []",
        &[],
    );
}

/// S56: a retry with the same key makes no second message, also after a remount. Another key makes one.
#[test]
fn s56_idempotency() {
    let bed = Bed::new();
    let m = bed.mount("bar");
    let send = "printf 'Idempotency-Key: job-17\\n\\ndeployed\\n' | /bin/cat > outbox/bob";
    m.ok(send);
    m.ok(send);
    assert_eq!(m.ls("outbox"), [""; 0]);
    m.umount();
    let m = bed.mount("bar");
    m.ok(send);
    assert_eq!(bodies(&bed.store, "bar"), ["deployed"]);
    m.ok("printf 'Idempotency-Key: job-18\\n\\ndeployed\\n' > outbox/bob");
    assert_eq!(bodies(&bed.store, "bar"), ["deployed", "deployed"]);
    m.kill9();
    let m = bed.mount("bar");
    m.ok(send);
    assert_eq!(bodies(&bed.store, "bar").len(), 2);
}

/// S1154: what differs from the message of a key in its subject, its thread, its files or the message that it answers
/// is no retry of it, and is refused.
#[test]
fn s1154_another_message_under_a_key() {
    let bed = Bed::new();
    let asked =
        [1, 2].map(|n| samp::append(&bed.store, "bob", "bar", "t", &format!("q{n}"), T0 + n));
    let m = bed.mount("bar");
    for (file, text) in [("a", "one"), ("b", "three")] {
        std::fs::write(bed.path(file), text).unwrap();
    }
    let attach = |file: &str| format!("Attach: {}\n", bed.path(file).display());
    let first = format!("Subject: plan\nThread: t1\n{}", attach("a"));
    let send = |head: &str, to: &str| {
        m.sh(&format!(
            "printf 'Idempotency-Key: k\\n%s\\nsame\\n' '{head}' | tee '{to}' > /dev/null"
        ))
    };
    assert!(send(&first, "outbox/bob").ok());
    for same in [first.clone(), String::new()] {
        assert!(send(&same, "outbox/bob").ok(), "{same}");
    }
    for (other, what) in [
        ("Subject: another\n".to_owned(), "another subject"),
        ("Thread: t2\n".to_owned(), "another thread"),
        (attach("b"), "other files"),
    ] {
        assert!(!send(&other, "outbox/bob").ok(), "{other}");
        let why = m.cat("outbox/bob.error");
        assert!(why.contains(&format!("was used for {what}")), "{why}");
    }
    assert_eq!(bodies(&bed.store, "bar").len(), 1);
    // A retry whose files are gone, and one with a blind copy, are retries.
    std::fs::remove_file(bed.path("a")).unwrap();
    assert!(send(&first, "outbox/bob").ok());
    for _ in 0..2 {
        let out = m.sh("printf 'Idempotency-Key: b\\nThread: t9\\nTo: bob\\nBcc: erin\\n\\nhush\\n' | tee outbox/x");
        assert!(out.ok(), "{out:?}");
    }
    assert_eq!(bodies(&bed.store, "bar").iter().filter(|body| *body == "hush").count(), 2);
    let replies = asked.map(|r| format!("archive/{}/{}.reply", r.day(), &r.id[..8]));
    let reply = |n: usize| {
        m.sh(&format!("printf 'Idempotency-Key: r\\n\\nyes\\n' | tee '{}' > /dev/null", replies[n]))
    };
    assert!(reply(0).ok() && reply(0).ok());
    assert!(!reply(1).ok());
    assert_eq!(bodies(&bed.store, "bar").iter().filter(|body| *body == "yes").count(), 1);
}

/// S57: the same text to the same recipient, sent repeatedly as fast as possible, makes as many messages.
#[test]
fn s57_same_text_same_second() {
    let bed = Bed::new();
    let m = bed.mount("bar");
    m.ok("for i in 1 2 3; do echo again > outbox/bob; done");
    let all = read_log(&bed.store, "bar");
    assert_eq!(all.len(), 3);
    let mut ids: Vec<_> = all.iter().map(|r| member(r, "id").to_owned()).collect();
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), 3, "readers drop equal ids: {all:#?}");
    for r in &all {
        let ts = r["ts"].as_i64().unwrap();
        assert_eq!(member(r, "id"), samp::id("bar", "bob", member(r, "thread"), "again", ts));
    }
    assert_eq!(m.ok("cat sent/*/* | grep -c '^again$'").trim(), "3");
}

/// S58: a torn or unterminated last line of my log does not swallow the next message and is not changed.
#[test]
fn s58_torn_tail() {
    for tail in ["{\"id\": \"00", "{\"ts\": 1}", "junk"] {
        let bed = Bed::new();
        let whole = samp::append(&bed.store, "bar", "bob", "t", "whole", T0);
        samp::append_raw(&samp::log(&bed.store, "bar"), tail);
        let m = bed.mount("bar");
        m.ok("echo after > outbox/bob");
        let text = std::fs::read_to_string(samp::log(&bed.store, "bar")).unwrap();
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines.len(), 3, "{text}");
        assert_eq!((lines[0], lines[1]), (whole.line().trim_end(), tail));
        let v: Value = serde_json::from_str(lines[2]).unwrap();
        assert_eq!(v["body"], "after");
        assert!(text.ends_with('\n'));
    }
    // An unterminated but complete record is a message and stays one.
    let bed = Bed::new();
    let r = samp::Rec::new("bar", "bob", "t", "unterminated", T0);
    samp::append_raw(&samp::log(&bed.store, "bar"), r.line().trim_end());
    let m = bed.mount("bar");
    m.ok("echo after > outbox/bob");
    assert_eq!(bodies(&bed.store, "bar"), ["unterminated", "after"]);
    assert_eq!(m.ls(&format!("sent/{}", r.day())), [r.name(0)]);
}

/// S59: two programs that have `outbox/bob` open at once send two messages.
#[test]
fn s59_concurrent_drafts() {
    let bed = Bed::new();
    let m = bed.mount("bar");
    m.py(
        "a=open('outbox/bob','w'); b=open('outbox/bob','w')\na.write('first '); a.flush()\nb.write('second draft'); b.flush()\na.write('draft'); a.close(); b.close()",
        &[],
    );
    let mut all = bodies(&bed.store, "bar");
    all.sort();
    assert_eq!(all, ["first draft", "second draft"]);
    // The same with real concurrency.
    m.ok("for i in $(seq 20); do (echo par $i > outbox/bob) & done; wait");
    soon("all are sent", || bodies(&bed.store, "bar").len() == 22);
    let mut all = bodies(&bed.store, "bar");
    all.sort();
    all.dedup();
    assert_eq!(all.len(), 22);
    assert_eq!(m.ls("outbox"), [""; 0]);
}

/// S59: a writer that pauses does not delay the others.
#[test]
fn s59_slow_writer() {
    let bed = Bed::new();
    let m = bed.mount("bar");
    let mut c = bed.command("bash");
    c.args(["-c", "(echo slow; sleep 2; echo end) > outbox/bob"]).current_dir(&m.dir);
    let mut slow = Running::start(c, None).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(200));
    m.ok("echo quick > outbox/bob");
    assert_eq!(bodies(&bed.store, "bar"), ["quick"]);
    wait_for(std::time::Duration::from_secs(5), "the slow writer ends", || !slow.running());
    soon("both are sent", || bodies(&bed.store, "bar") == ["quick", "slow\nend"]);
}

/// S60: mail to a stranger is sent, with a note in status.txt.
#[test]
fn s60_unknown_recipient() {
    let bed = Bed::new();
    samp::append(&bed.store, "alice", "bar", "t", "hello", T0);
    let m = bed.mount("bar");
    m.ok("echo hi > outbox/dave");
    assert_eq!(member(&only(&bed.store, "bar"), "to"), "dave");
    assert!(m.cat("status.txt").contains("dave"), "{}", m.cat("status.txt"));
}

/// S281: a file name that resembles a known name is refused, and the error gives the known name. A recipient that
/// is written into the draft is taken as it is.
#[test]
fn s281_names_like_known_ones_are_refused() {
    let bed = Bed::new();
    samp::append(&bed.store, "bob", "bar", "t", "hello", T0);
    samp::append(&bed.store, "worker-1", "bar", "t", "hello", T0 + 1);
    let m = bed.mount("bar");
    for name in ["Bob", "bbo", "bobb", "bob.json", "bob.3124124", "bob2wx9k0ee", "BOB.txt"] {
        let out = m.sh(&format!("echo hi > outbox/{name}"));
        assert!(!out.ok() && out.stderr.contains("No route to host"), "{name}: {out:?}");
        let why = m.cat(&format!("outbox/{name}.error"));
        assert!(why.contains("but bob is") && why.contains("To: "), "{name}: {why}");
        let out = bed.msgfs_out(&["send", "--me", "bar", name.trim_end_matches(".txt"), "hi"]);
        assert!(!out.ok() && out.stderr.contains("but bob is"), "{name}: {out:?}");
    }
    assert!(read_log(&bed.store, "bar").is_empty());
    m.ok("printf 'To: Bob\\n\\nhi\\n' > outbox/x; echo hi > outbox/bob; echo hi > outbox/carol");
    m.ok("echo hi > outbox/worker-2; echo again > outbox/Bob");
    let out = bed.msgfs_out(&["send", "--me", "bar", "--new", "bobb", "hi"]);
    assert!(out.ok(), "{out:?}");
    m.ok("ls sent/* > /dev/null");
    let to: Vec<String> =
        read_log(&bed.store, "bar").iter().map(|r| member(r, "to").to_owned()).collect();
    assert_eq!(to, ["Bob", "bob", "carol", "worker-2", "Bob", "bobb"]);
    m.umount();
    bed.config("unknown_recipient = \"accept\"\n");
    let m = bed.mount("bar");
    m.ok("echo hi > outbox/bob.json");
    assert_eq!(read_log(&bed.store, "bar").len(), 7);
}

/// S60, S63: with `refuse` a stranger gives EHOSTUNREACH, and the error offers the nearest names.
#[test]
fn s60_refuse() {
    let bed = Bed::new();
    bed.config("unknown_recipient = \"refuse\"\n");
    samp::append(&bed.store, "alice", "bar", "t", "hello", T0);
    let m = bed.mount("bar");
    let out = m.sh("echo hi | tee outbox/alise");
    assert!(!out.ok() && out.stderr.contains("No route to host"), "{out:?}");
    assert!(m.cat("outbox/alise.error").contains("alice"));
    assert!(read_log(&bed.store, "bar").is_empty());
    m.ok("echo hi > outbox/alice");
    assert_eq!(bodies(&bed.store, "bar"), ["hi"]);
}
