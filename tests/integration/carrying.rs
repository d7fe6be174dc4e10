//! `msgfs carry --all` beside commands and mounts of the same name.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;

use crate::common::proc::Running;
use crate::common::samp::{append, bodies, now, only};
use crate::common::{Bed, Out, PATIENCE, quote, run, soon};

/// Makes a bed with a SAMP store and a link to a server that is away.
fn linked() -> Bed {
    let bed = Bed::new();
    bed.config("[[link]]\nkind = \"nats\"\nurl = \"nats://127.0.0.1:9\"\n");
    bed
}

/// Returns the pid of the holder of the state folder, and true if it is a mount.
fn holder(bed: &Bed) -> Option<(i64, bool)> {
    let text = fs::read_to_string(bed.state("bar").join("lock")).ok()?;
    let value: Value = serde_json::from_str(&text).ok()?;
    Some((value["pid"].as_i64()?, value["mountpoint"].is_string()))
}

/// Starts `msgfs carry --all`, which runs until it is dropped or killed.
fn carry(bed: &Bed) -> Running {
    let carry = bed.msgfs(["--me", "bar", "carry", "--all"]);
    Running::start(carry, None).expect("start")
}

#[track_caller]
fn carrying(bed: &Bed) -> Running {
    let running = carry(bed);
    let pid = i64::from(running.pid());
    soon("it carries", || {
        holder(bed) == Some((pid, false)) && bed.state("bar").join("socket").exists()
    });
    running
}

fn bar(bed: &Bed, args: &[&str], input: &str) -> Out {
    let mut c = bed.msgfs(args);
    c.args(["--me", "bar"]);
    run(c, Some(input.as_bytes()))
}

#[track_caller]
fn ok(bed: &Bed, args: &[&str], input: &str) -> String {
    let out = bar(bed, args, input);
    assert!(out.ok(), "{args:?}: {out:?}");
    out.stdout
}

/// Runs eight writers at once that send until they are stopped. Returns the texts that were reported as sent.
fn eight_writers(bed: &Bed, stop: &AtomicBool, limit: usize) -> Vec<String> {
    let write = |writer: usize| {
        let mut sent = Vec::new();
        for n in 0..limit {
            if stop.load(Ordering::SeqCst) {
                break;
            }
            let text = format!("writer {writer} says {n}");
            if bar(bed, &["send", "foo", "--subject", "one thread", &text], "").ok() {
                sent.push(text);
            }
        }
        sent
    };
    thread::scope(|scope| {
        let all: Vec<_> = (0..8).map(|writer| scope.spawn(move || write(writer))).collect();
        all.into_iter().flat_map(|writer| writer.join().expect("writer")).collect()
    })
}

/// Checks that each sent text is in the store once, and that no text and no id is there twice.
#[track_caller]
fn exactly_once(bed: &Bed, sent: &[String]) {
    let mut times: BTreeMap<String, usize> = BTreeMap::new();
    for body in bodies(&bed.store, "bar") {
        *times.entry(body.trim().to_owned()).or_default() += 1;
    }
    let lost: Vec<&String> = sent.iter().filter(|text| !times.contains_key(*text)).collect();
    assert!(lost.is_empty(), "lost: {lost:?}");
    let twice: Vec<_> = times.iter().filter(|(_, times)| **times > 1).collect();
    assert!(twice.is_empty(), "twice: {twice:?}");
    let records = crate::common::samp::read_log(&bed.store, "bar");
    let ids: std::collections::BTreeSet<_> =
        records.iter().map(|record| record["id"].to_string()).collect();
    assert_eq!(ids.len(), records.len(), "each has an id of its own");
}

/// S702: beside `msgfs carry --all` all commands of the same name work, and each one sees what the one before did.
#[test]
fn s702_all_commands_beside_it() {
    let bed = linked();
    for n in 0..4 {
        append(&bed.store, "foo", "bar", "t", &format!("mail {n}"), now() - 100 + n);
    }
    let mut running = carrying(&bed);
    let listed = ok(&bed, &["ls", "inbox"], "");
    let names: Vec<&str> = listed.lines().collect();
    assert_eq!(names.len(), 4, "{listed}");
    assert!(ok(&bed, &["cat", &format!("inbox/{}", names[0])], "").contains("mail 0"));
    assert_eq!(ok(&bed, &["ls", "inbox"], "").lines().count(), 3);
    ok(&bed, &["rm", &format!("inbox/{}", names[1])], "");
    assert!(ok(&bed, &["cat", ".next"], "").contains("mail 2"));
    assert_eq!(ok(&bed, &["ls", "inbox"], "").lines().count(), 1);
    ok(&bed, &["reply", "an answer"], "");
    assert!(ok(&bed, &["inbox"], "").contains("mail 3"));
    ok(&bed, &["write", "outbox/foo"], "a draft");
    ok(&bed, &["write", "outbox/.later"], "in the making");
    ok(&bed, &["mv", "outbox/.later", "outbox/foo"], "");
    let refused = bar(&bed, &["write", "outbox/z"], "Via: nowhere\n\nhi");
    assert!(refused.code() == Some(1) && refused.stderr.contains("nowhere"), "{refused:?}");
    assert!(ok(&bed, &["cat", "outbox/z.error"], "").contains("nowhere"));
    ok(&bed, &["send", "foo", "a message"], "");
    append(&bed.store, "foo", "bar", "t", "one more", now());
    soon("it is seen", || ok(&bed, &["status"], "").contains("one more"));
    ok(&bed, &["wait", "--timeout", "60"], "");
    ok(&bed, &["mark", "--all"], "");
    assert_eq!(ok(&bed, &["ls", "inbox"], ""), "");
    let mut sent = bodies(&bed.store, "bar");
    for body in &mut sent {
        *body = body.trim().to_owned();
    }
    assert_eq!(sent, ["an answer", "a draft", "in the making", "a message"]);
    let second = bar(&bed, &["carry", "--all"], "");
    assert!(second.code() == Some(1) && second.stderr.contains("already running"), "{second:?}");
    assert!(running.running());
    running.signal(Signal::TERM);
    assert!(running.finish(PATIENCE).expect("wait").ok());
    assert!(!bed.state("bar").join("socket").exists());
    assert_eq!(ok(&bed, &["ls", "inbox"], ""), "", "the marks are kept");
}

/// S702: a message that a command could not print was not read, also beside `msgfs carry --all`.
#[test]
fn s702_what_is_not_printed_is_not_read() {
    let bed = linked();
    append(&bed.store, "foo", "bar", "t", &"long ".repeat(100_000), now() - 9);
    let _running = carrying(&bed);
    for path in ["inbox/$(msgfs ls inbox --me bar)", ".next"] {
        let path = path.replace("msgfs", crate::common::binary().to_str().expect("UTF-8"));
        let program = quote(&crate::common::binary());
        let out = bed.sh(&format!("{program} cat --me bar {path} | head -c 10"));
        assert_eq!(out.stdout.len(), 10, "{out:?}");
        assert_eq!(ok(&bed, &["ls", "inbox"], "").lines().count(), 1, "{path}");
    }
    assert!(ok(&bed, &["cat", ".next"], "").contains("long "), "it is handed out again");
    assert_eq!(ok(&bed, &["ls", "inbox"], ""), "");
}

/// S703: eight writers send at once while `msgfs carry --all` is killed again and again. Each message that a
/// command reported as sent is in the store exactly once, and no two messages share an id.
#[test]
fn s703_eight_writers_and_kills() {
    let bed = linked();
    let stop = AtomicBool::new(false);
    let sent = thread::scope(|scope| {
        let writers = scope.spawn(|| eight_writers(&bed, &stop, 200));
        // On a busy machine few are sent in a round.
        let log = crate::common::samp::log(&bed.store, "bar");
        let stored = || fs::read_to_string(&log).unwrap_or_default().lines().count();
        for round in 0..40 {
            if round >= 8 && stored() >= 16 {
                break;
            }
            let running = carry(&bed);
            thread::sleep(Duration::from_millis(300 + 130 * (round % 8)));
            running.signal(Signal::KILL);
            running.finish(PATIENCE).expect("wait");
        }
        stop.store(true, Ordering::SeqCst);
        writers.join().expect("writers")
    });
    assert!(!sent.is_empty(), "nothing was sent");
    bar(&bed, &["inbox"], "");
    exactly_once(&bed, &sent);
}

/// S704: a mount takes the place of `msgfs carry --all` as long as the mount lasts, whichever of them is killed.
/// The process goes on, commands work all the time, and each message that they reported as sent is in the store
/// exactly once.
#[test]
fn s704_a_mount_takes_its_place_and_gives_it_back() {
    let bed = linked();
    let mut running = carrying(&bed);
    let pid = i64::from(running.pid());
    let stop = AtomicBool::new(false);
    let sent = thread::scope(|scope| {
        let writers = scope.spawn(|| eight_writers(&bed, &stop, 60));
        for round in 0..4 {
            let m = bed.mount("bar");
            assert_eq!(holder(&bed), Some((i64::from(m.pid()), true)));
            m.ok(&format!("echo 'through the mount {round}' > outbox/foo"));
            if round % 2 == 0 {
                // Writers may be using it.
                m.signal(Signal::TERM);
                drop(m);
            } else {
                m.kill9();
            }
            soon("it carries again", || holder(&bed) == Some((pid, false)));
        }
        stop.store(true, Ordering::SeqCst);
        writers.join().expect("writers")
    });
    assert!(running.running());
    ok(&bed, &["send", "foo", "the last"], "");
    let mut sent = sent;
    sent.extend((0..4).map(|round| format!("through the mount {round}")));
    exactly_once(&bed, &sent);
    // While a mount is there, `msgfs carry --all` can begin and be killed.
    running.signal(Signal::TERM);
    assert!(running.finish(PATIENCE).expect("wait").ok());
    let m = bed.mount("bar");
    let second = carry(&bed);
    thread::sleep(Duration::from_millis(500));
    assert_eq!(holder(&bed), Some((i64::from(m.pid()), true)));
    let pid = i64::from(second.pid());
    m.signal(Signal::TERM);
    soon("it carries", || holder(&bed) == Some((pid, false)));
}

/// S705: a container that shares the state folder, and neither the mount nor the runtime folder, reads and sends
/// through the process that acts.
#[test]
fn s705_without_sight_of_the_mount() {
    let bed = Bed::new();
    append(&bed.store, "foo", "bar", "t", "for bar", now() - 9);
    let m = bed.mount("bar");
    let program = quote(&crate::common::binary());
    let inside = |script: &str| {
        let mut c = bed.command("unshare");
        let away = format!("umount -l {}; unset XDG_RUNTIME_DIR; {script}", quote(&m.dir));
        c.args(["-m", "sh", "-c", &away]);
        run(c, None)
    };
    let out =
        inside(&format!("{program} --me bar inbox; {program} --me bar send foo 'from inside'"));
    assert!(out.ok() && out.stdout.contains("for bar"), "{out:?}");
    assert_eq!(only(&bed.store, "bar")["body"], "from inside");
    assert_eq!(m.ls("inbox"), [""; 0]);
    let out = inside(&format!("{program} --me bar mount {}", quote(Path::new("elsewhere"))));
    assert!(!out.ok() && out.stderr.contains("already running"), "{out:?}");
}
