//! Questions: `.answer` beside a sent message, and `msgfs ask`.

use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::process::Signal;
use serde_json::json;

use crate::amq::Queue;
use crate::common::agz::{self, Letter, Tree};
use crate::common::amp::{ALICE, Home};
use crate::common::proc::Running;
use crate::common::samp::{self, Rec, append_raw, bodies, key, log, member, now, read_log, today};
use crate::common::{Bed, Mount, Out, PATIENCE, alive, run, soon};

/// Makes a bed in which nothing ends a wait too early.
fn bed() -> Bed {
    let bed = Bed::new();
    bed.config("wait_timeout = \"600s\"\nunknown_recipient = \"accept\"\n");
    bed
}

/// Starts a shell script in a mount.
fn reader(bed: &Bed, m: &Mount, script: &str) -> Running {
    let mut c = bed.command("bash");
    c.args(["-c", script]).current_dir(&m.dir);
    Running::start(c, None).unwrap()
}

/// Starts `msgfs ask … --me bar`.
fn ask(bed: &Bed, args: &[&str]) -> Running {
    let mut c = bed.msgfs(["ask"]);
    c.args(args).args(["--me", "bar"]);
    Running::start(c, Some(b"")).unwrap()
}

/// Runs the reference program for foo.
#[track_caller]
fn peer(bed: &Bed, args: &[&str], input: &str) {
    let mut c = bed.command("python3");
    c.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/peers/samp_reference.py")).arg(&bed.store);
    let out = run(
        {
            c.args(args);
            c
        },
        Some(input.as_bytes()),
    );
    assert!(out.ok(), "{out:?}");
}

/// Returns the path of my sent message with this text, without its ending.
#[track_caller]
fn sent(m: &Mount, text: &str) -> String {
    let found = m.ok(&format!("grep -rlFx --include='*.txt' -- '{text}' sent | sort | tail -n 1"));
    found.trim().strip_suffix(".txt").expect("it was sent").to_owned()
}

/// Sends a question from a mount, and returns its path without its ending.
#[track_caller]
fn question(m: &Mount, to: &str, text: &str) -> String {
    m.ok(&format!("echo '{text}' > outbox/{to}"));
    sent(m, text)
}

/// Answers the message with this text in the inbox of a mount by `.reply`.
#[track_caller]
fn reply(m: &Mount, question: &str, text: &str) {
    let found = format!("grep -rlFx --include='*.txt' -- '{question}' archive | head -n 1");
    soon("the question arrives", || !m.ok(&found).is_empty());
    let name = m.ok(&found);
    let name = name.trim().strip_suffix(".txt").unwrap();
    m.ok(&format!("echo '{text}' > {name}.reply"));
}

/// Returns a record that answers another, as another program writes it.
fn answer(question: &serde_json::Map<String, serde_json::Value>, from: &str, text: &str) -> Rec {
    Rec::new(from, member(question, "from"), member(question, "thread"), text, now())
}

fn line(rec: &Rec, re: &str) -> String {
    rec.line_with(&[("re", json!(re))])
}

/// Waits until an answer was printed, and returns the body.
#[track_caller]
fn body(out: &Out) -> &str {
    assert!(out.ok(), "{out:?}");
    out.stdout.split_once("\n\n").unwrap_or_else(|| panic!("{out:?}")).1
}

/// S950, S952: a read of `.answer` waits for the answer, gives it, and marks it read. The same read gives it again once
/// everything was read. It is not listed, and short names and ids reach it, too.
#[test]
fn s952_answer() {
    let bed = bed();
    let (m, foo) = (bed.mount("bar"), bed.mount("foo"));
    let path = question(&m, "foo", "which port?");
    let mut waits = reader(&bed, &m, &format!("cat {path}.answer"));
    std::thread::sleep(Duration::from_millis(400));
    samp::append(&bed.store, "carol", "bar", "t", "no answer", now());
    let own = &read_log(&bed.store, "bar")[0];
    // Somebody else's word is none of the recipient.
    let forged = answer(own, "carol", "port 1");
    append_raw(&log(&bed.store, "carol"), line(&forged, member(own, "id")));
    std::thread::sleep(Duration::from_millis(400));
    assert!(waits.running(), "it waits for foo");
    reply(&foo, "which port?", "port 8080");
    let out = waits.finish(PATIENCE).unwrap();
    assert_eq!(body(&out), "port 8080\n");
    assert!(out.stdout.starts_with("From: foo\n"), "{out:?}");
    soon("it is marked", || m.ls("inbox").len() == 2);
    for name in [path.clone(), format!("sent/{}/{}", today(), member(own, "id"))] {
        assert!(m.ok(&format!("timeout 20 cat {name}.answer")).ends_with("\n\nport 8080\n"));
    }
    let short = format!("sent/{}/{}.answer", today(), &member(own, "id")[..8]);
    assert!(m.ok(&format!("timeout 20 cat {short}")).ends_with("\n\nport 8080\n"));
    let listed = m.ok("find . -name '*.answer'");
    assert_eq!(listed, "");
    assert_eq!(m.ok(&format!("stat -c '%s %a' {path}.answer")), "0 400\n");
    assert!(
        m.sh(&format!("echo x > {path}.answer")).stderr.contains("ermission denied")
            || m.sh(&format!("echo x > {path}.answer")).stderr.contains("not permitted")
    );
    let archive = m.ok("ls archive/*/*.txt | head -n 1");
    let other = archive.trim().strip_suffix(".txt").unwrap();
    assert!(!m.sh(&format!("cat {other}.answer")).ok(), "only beside what I sent");
}

/// S950, S952: an answer that came before `.answer` was opened is given at once, and the oldest unread one first.
#[test]
fn s952_came_before() {
    let bed = bed();
    let (m, foo) = (bed.mount("bar"), bed.mount("foo"));
    let path = question(&m, "foo", "which port?");
    reply(&foo, "which port?", "port 1");
    reply(&foo, "which port?", "port 2");
    soon("both arrive", || m.ls("inbox").len() == 2);
    for (port, left) in [(1, 1), (2, 0), (2, 0)] {
        let out = m.ok(&format!("timeout 20 cat {path}.answer"));
        assert!(out.ends_with(&format!("\n\nport {port}\n")), "{out}");
        assert_eq!(m.ls("inbox").len(), left);
    }
}

/// S950: `re` may name the shared id or the id of any record, in any thread. An unsigned answer under a pinned name is
/// none, and neither is one that another key signed.
#[test]
fn s950_whose_answer() {
    let bed = bed();
    samp::append_signed(&bed.store, &key(7), &Rec::new("foo", "bar", "old", "hello", now() - 100));
    let m = bed.mount("bar");
    m.ok("cat inbox/* > /dev/null; printf 'To: foo, dan, eve\\n\\nwho comes?\\n' > outbox/x");
    let path = sent(&m, "who comes?");
    let asked = read_log(&bed.store, "bar");
    assert_eq!(asked.len(), 3);
    let id = |to: &str| {
        let one = asked.iter().find(|one| member(one, "to") == to).unwrap();
        member(one, "id").to_owned()
    };
    let own = asked[0].clone();
    let forged = answer(&own, "foo", "forged");
    append_raw(&log(&bed.store, "foo"), line(&forged, &id("foo")));
    let forged = answer(&own, "foo", "forged without re");
    append_raw(&log(&bed.store, "foo"), forged.line());
    soon("they arrive", || m.ls("inbox").len() == 2);
    let mut waits = reader(&bed, &m, &format!("cat {path}.answer"));
    std::thread::sleep(Duration::from_millis(500));
    assert!(waits.running(), "nobody whom I know has answered");
    let elsewhere = Rec::new("dan", "bar", "another-thread", "dan comes", now());
    append_raw(&log(&bed.store, "dan"), line(&elsewhere, &id("foo")));
    assert_eq!(body(&waits.finish(PATIENCE).unwrap()), "dan comes\n");
    let mut waits = reader(&bed, &m, &format!("cat {path}.answer"));
    std::thread::sleep(Duration::from_millis(300));
    assert!(waits.running(), "foo and eve have not answered");
    append_raw(&log(&bed.store, "eve"), line(&answer(&own, "eve", "eve comes"), &id("eve")));
    assert_eq!(body(&waits.finish(PATIENCE).unwrap()), "eve comes\n");
    let mut waits = reader(&bed, &m, &format!("cat {path}.answer"));
    std::thread::sleep(Duration::from_millis(300));
    assert!(waits.running(), "foo has not answered");
    let signed = answer(&own, "foo", "foo comes");
    append_raw(&log(&bed.store, "foo"), signed.signed_line(&key(7), &[("re", json!(id("dan")))]));
    assert_eq!(body(&waits.finish(PATIENCE).unwrap()), "foo comes\n");
    // Now everybody has answered and everything is read.
    assert!(m.ok(&format!("timeout 20 cat {path}.answer")).contains("comes\n"));
}

/// S951: an answer of the reference program, which names nothing, answers the newest question to its writer before it
/// in the thread, and only that one.
#[test]
fn s951_without_a_link() {
    let bed = bed();
    let m = bed.mount("bar");
    let first = question(&m, "foo", "first question");
    // The second question comes in the second of the first answer, if the machine is not very busy.
    while SystemTime::now().duration_since(UNIX_EPOCH).unwrap().subsec_millis() > 100 {
        std::thread::sleep(Duration::from_millis(5));
    }
    peer(&bed, &["reply", "foo"], "first answer\n");
    let out = m.ok(&format!("timeout 60 cat {first}.answer"));
    assert!(out.ends_with("\n\nfirst answer\n"), "{out}");
    let thread = member(&read_log(&bed.store, "bar")[0], "thread").to_owned();
    m.ok(&format!("printf 'To: foo\\nThread: {thread}\\n\\nsecond question\\n' > outbox/x"));
    let second = sent(&m, "second question");
    let waits = reader(&bed, &m, &format!("cat {second}.answer"));
    peer(&bed, &["reply", "foo"], "second answer\n");
    assert_eq!(body(&waits.finish(PATIENCE).unwrap()), "second answer\n");
    // The first question still has the first answer alone.
    assert!(m.ok(&format!("timeout 20 cat {first}.answer")).ends_with("\n\nfirst answer\n"));
    // A message in a thread of its own that nobody asked for answers nothing.
    let third = question(&m, "foo", "third question");
    peer(&bed, &["send", "foo", "bar"], "by the way\n");
    let waits = reader(&bed, &m, &format!("exec timeout 1 cat {third}.answer"));
    assert_eq!(waits.finish(PATIENCE).unwrap().stdout, "");
}

/// S953: no two readers get the same answer, whether they open `.answer` or `.next`, and one that is closed early is
/// the next one's.
#[test]
fn s953_one_answer_to_one_reader() {
    let bed = bed();
    let (m, foo) = (bed.mount("bar"), bed.mount("foo"));
    let path = question(&m, "foo", "which port?");
    for n in 0..6 {
        reply(&foo, "which port?", &format!("port {n}"));
    }
    soon("all arrive", || m.ls("inbox").len() == 6);
    let said = m.py(
        r"
path = sys.argv[1] + '.answer'
opened = [os.open(f, os.O_RDONLY) for f in [path, '.next', path, path, '.next', path]]
first = [os.read(fd, 1 << 20) for fd in opened]
print(len(set(first)))
[os.close(fd) for fd in opened]
print(len(os.listdir('inbox')))
",
        &[&path],
    );
    assert_eq!(said, "6\n0\n");
    reply(&foo, "which port?", &"long ".repeat(100));
    soon("it arrives", || m.ls("inbox").len() == 1);
    m.ok(&format!("head -c 10 {path}.answer > /dev/null"));
    m.inbox_stays(&[&m.ls("inbox")[0]]);
    assert!(m.ok(&format!("timeout 20 cat {path}.answer")).contains("long long"));
    m.inbox_becomes(&[]);
}

/// S953: of two readers who wait for the only answer, one gets it, and the other waits on. Meanwhile a later reader
/// gets it again.
#[test]
fn s953_two_wait_for_one_answer() {
    let bed = bed();
    let (m, foo) = (bed.mount("bar"), bed.mount("foo"));
    let path = question(&m, "foo", "which port?");
    let [a, b, later] = ["a", "b", "later"].map(|name| bed.path(name));
    let flag = bed.path("waiting");
    let script = format!(
        "for to in {} {}; do timeout 20 cat {path}.answer > $to & done; sleep 1; : > {}; wait -n; timeout 10 cat {path}.answer > {}; sleep 1; kill $(jobs -p); wait; true",
        a.display(),
        b.display(),
        flag.display(),
        later.display()
    );
    std::thread::scope(|scope| {
        scope.spawn(|| m.ok(&script));
        soon("both wait", || flag.exists());
        reply(&foo, "which port?", "port 80");
    });
    let has_it = |file: &PathBuf| std::fs::read_to_string(file).unwrap().contains("port 80");
    assert_eq!([&a, &b].into_iter().filter(|file| has_it(file)).count(), 1);
    assert!(has_it(&later));
}

/// S953: several questions at once each get their own answer.
#[test]
fn s953_several_questions() {
    let bed = bed();
    let (m, foo) = (bed.mount("bar"), bed.mount("foo"));
    let texts: Vec<String> = (0..8).map(|n| format!("question {n}")).collect();
    let waits: Vec<_> = texts
        .iter()
        .map(|text| reader(&bed, &m, &format!("exec cat {}.answer", question(&m, "foo", text))))
        .collect();
    for text in texts.iter().rev() {
        reply(&foo, text, &format!("answer to {text}"));
    }
    for (text, one) in texts.iter().zip(waits) {
        assert_eq!(body(&one.finish(PATIENCE).unwrap()), format!("answer to {text}\n"));
    }
    m.inbox_becomes(&[]);
}

/// S954: signals end a reader of `.answer` within a second, and after `wait_timeout` it gives nothing.
#[test]
fn s954_signals_and_time() {
    let bed = bed();
    let m = bed.mount("bar");
    let path = question(&m, "foo", "which port?");
    for signal in [Signal::INT, Signal::TERM, Signal::KILL] {
        let r = reader(&bed, &m, &format!("exec cat {path}.answer"));
        std::thread::sleep(Duration::from_millis(300));
        r.signal(signal);
        let since = Instant::now();
        let out = r.finish(PATIENCE).unwrap();
        assert!(!out.ok() && since.elapsed() < Duration::from_secs(5), "{signal:?}: {out:?}");
    }
    m.umount();
    bed.config("wait_timeout = \"1s\"\n");
    let m = bed.mount("bar");
    let since = Instant::now();
    assert_eq!(m.ok(&format!("timeout 60 cat {path}.answer")), "");
    assert!(since.elapsed() > Duration::from_millis(900));
}

/// S954: `.answer` works without a mount, and beside `msgfs carry --all`.
#[test]
fn s954_without_a_mount() {
    let bed = bed();
    bed.config(
        "wait_timeout = \"600s\"\n[[link]]\nkind = \"nats\"\nurl = \"nats://127.0.0.1:9\"\n",
    );
    for carried in [false, true] {
        let carrier = carried.then(|| {
            let carry = Running::start(bed.msgfs(["--me", "bar", "carry", "--all"]), None).unwrap();
            soon("it carries", || bed.state("bar").join("socket").exists());
            carry
        });
        let text = format!("which port, {carried}?");
        assert!(bed.msgfs_out(&["send", "foo", &text, "--me", "bar"]).ok());
        let listed = bed.msgfs_out(&["ls", &format!("sent/{}", today()), "--me", "bar"]).stdout;
        let names: Vec<&str> = listed.lines().filter(|name| name.contains(".txt")).collect();
        let stem = names.last().unwrap().strip_suffix(".txt").unwrap();
        let path = format!("sent/{}/{stem}.answer", today());
        let c = bed.msgfs(["cat", &path, "--me", "bar"]);
        let mut waits = Running::start(c, None).unwrap();
        std::thread::sleep(Duration::from_millis(600));
        assert!(waits.running());
        peer(&bed, &["reply", "foo"], "port 80\n");
        assert_eq!(body(&waits.finish(PATIENCE).unwrap()), "port 80\n");
        let unread = bed.msgfs_out(&["ls", "inbox", "--me", "bar"]);
        assert_eq!(unread.stdout, "", "it is marked");
        if let Some(carrier) = carrier {
            carrier.signal(Signal::TERM);
            assert!(carrier.finish(PATIENCE).unwrap().ok());
        }
    }
}

/// S955, S957: `msgfs ask` prints the text of the answer and nothing else, with a mount, beside `carry --all` and
/// without both, and marks it read.
#[test]
fn s955_ask() {
    for how in ["alone", "mount", "carry"] {
        let bed = bed();
        if how == "carry" {
            bed.config("[[link]]\nkind = \"nats\"\nurl = \"nats://127.0.0.1:9\"\n");
        }
        let mount = (how == "mount").then(|| bed.mount("bar"));
        let carrier = (how == "carry")
            .then(|| Running::start(bed.msgfs(["--me", "bar", "carry", "--all"]), None).unwrap());
        if carrier.is_some() {
            soon("it carries", || bed.state("bar").join("socket").exists());
        }
        let mut one = ask(&bed, &["foo", "which", "port?"]);
        soon("it is asked", || bodies(&bed.store, "bar").contains(&"which port?".to_owned()));
        std::thread::sleep(Duration::from_millis(400));
        assert!(one.running(), "{how}");
        peer(&bed, &["reply", "foo"], "port 80\n\nor 81\n");
        let out = one.finish(PATIENCE).unwrap();
        assert!(out.ok() && out.stdout == "port 80\n\nor 81\n", "{how}: {out:?}");
        assert!(out.stderr.starts_with("sent to foo"), "{how}: {out:?}");
        assert_eq!(bed.msgfs_out(&["ls", "inbox", "--me", "bar"]).stdout, "", "{how}");
        let mut c = bed.msgfs(["ask", "foo", "--timeout", "1", "--me", "bar"]);
        c.arg("-");
        let late = run(c, Some(b"and now?"));
        assert_eq!((late.code(), late.stdout.as_str()), (Some(3), ""), "{how}: {late:?}");
        let (_, rest) = late.stderr.split_once("wait on with: msgfs ").expect("a command");
        peer(&bed, &["reply", "foo"], "still 80\n");
        let words: Vec<&str> = rest.split_whitespace().collect();
        assert_eq!(words[..3], ["--me", "bar", "cat"], "{how}: {late:?}");
        assert_eq!(body(&run(bed.msgfs(words), None)), "still 80\n", "{how}");
        assert_eq!(bodies(&bed.store, "bar"), ["which port?", "and now?"], "{how}");
        drop((mount, carrier));
    }
}

/// S955: two questions at once never take each other's answers. A question with a key is sent once.
#[test]
fn s955_two_at_once() {
    let bed = bed();
    let (_m, foo) = (bed.mount("bar"), bed.mount("foo"));
    let both = ["left?", "right?"].map(|text| ask(&bed, &["foo", text]));
    for text in ["right?", "left?"] {
        reply(&foo, text, &format!("as to {text}"));
    }
    for (one, text) in both.into_iter().zip(["left?", "right?"]) {
        assert_eq!(one.finish(PATIENCE).unwrap().stdout, format!("as to {text}\n"));
    }
    for _ in 0..2 {
        let out = ask(&bed, &["foo", "--key", "k1", "--timeout", "0", "once?"]);
        let out = out.finish(PATIENCE).unwrap();
        assert_eq!(out.code(), Some(3), "{out:?}");
        assert!(out.stderr.contains("wait on with: msgfs --me bar cat "), "{out:?}");
    }
    reply(&foo, "once?", "once");
    for _ in 0..2 {
        let out = ask(&bed, &["foo", "--key", "k1", "once?"]).finish(PATIENCE).unwrap();
        assert!(out.ok() && out.stdout == "once\n", "{out:?}");
    }
    let times = bodies(&bed.store, "bar").iter().filter(|text| *text == "once?").count();
    assert_eq!(times, 1);
    let refused = ask(&bed, &["foo", "--via", "nowhere", "x"]).finish(PATIENCE).unwrap();
    assert!(refused.code() == Some(1) && refused.stdout.is_empty(), "{refused:?}");
}

/// S956: with several recipients `ask` ends with the first answer, and with `--all` it waits for each and names those
/// who are missing.
#[test]
fn s956_several_names() {
    let bed = bed();
    let _m = bed.mount("bar");
    let one = ask(&bed, &["foo,dan", "who?"]);
    soon("both are asked", || bodies(&bed.store, "bar").len() == 2);
    peer(&bed, &["reply", "dan"], "dan\n");
    let out = one.finish(PATIENCE).unwrap();
    assert!(out.ok() && out.stdout == "dan\n", "{out:?}");
    let mut all = ask(&bed, &["foo,dan", "--all", "all of you?"]);
    soon("both are asked", || bodies(&bed.store, "bar").len() == 4);
    peer(&bed, &["reply", "dan"], "dan again\n");
    std::thread::sleep(Duration::from_millis(800));
    assert!(all.running(), "foo is missing");
    peer(&bed, &["reply", "foo"], "foo\n");
    let out = all.finish(PATIENCE).unwrap();
    assert!(out.ok() && out.stdout == "dan again\nfoo\n", "{out:?}");
    assert!(out.stderr.contains("answered by dan") && out.stderr.contains("answered by foo"));
    let all = ask(&bed, &["foo,dan", "--all", "--timeout", "4", "and you?"]);
    soon("both are asked", || bodies(&bed.store, "bar").len() == 6);
    peer(&bed, &["reply", "foo"], "foo again\n");
    let out = all.finish(PATIENCE).unwrap();
    assert_eq!((out.code(), out.stdout.as_str()), (Some(3), "foo again\n"), "{out:?}");
    assert!(out.stderr.contains("no answer from dan yet"), "{out:?}");
}

/// S957: if msgfs is killed while a question waits, the question goes on, and its message is there once. If the asking
/// command is killed, the answer stays unread.
#[test]
fn s957_kills() {
    let bed = bed();
    let m = bed.mount("bar");
    let mut one = ask(&bed, &["foo", "which port?"]);
    soon("it is asked", || bodies(&bed.store, "bar").len() == 1);
    std::thread::sleep(Duration::from_millis(300));
    let dir = m.dir.clone();
    m.kill9();
    std::thread::sleep(Duration::from_millis(300));
    assert!(one.running(), "it goes on without the mount");
    peer(&bed, &["reply", "foo"], "port 80\n");
    let out = one.finish(PATIENCE).unwrap();
    assert!(out.ok() && out.stdout == "port 80\n", "{out:?}");
    let m = bed.mount_at(&dir, "bar", &[]);
    assert_eq!(bodies(&bed.store, "bar"), ["which port?"]);
    m.inbox_becomes(&[]);
    let one = ask(&bed, &["foo", "and now?"]);
    soon("it is asked", || bodies(&bed.store, "bar").len() == 2);
    std::thread::sleep(Duration::from_millis(300));
    let pid = rustix::process::Pid::from_raw(one.pid()).unwrap();
    one.signal(Signal::INT);
    let since = Instant::now();
    soon("Ctrl-C ends it", || !alive(pid));
    assert!(since.elapsed() < Duration::from_secs(5));
    peer(&bed, &["reply", "foo"], "still 80\n");
    soon("the answer arrives", || m.ls("inbox").len() == 1);
    m.inbox_stays(&[&m.ls("inbox")[0]]);
    let path = sent(&m, "and now?");
    assert!(m.ok(&format!("timeout 60 cat {path}.answer")).ends_with("\n\nstill 80\n"));
}

/// S950, S955: in AMP, AMQ and AgentAZAll stores answers are found, too.
#[test]
fn s950_other_kinds() {
    let bed = Bed::new();
    let home = Home::new(&bed);
    let queue = Queue::new(&bed, &["bar", "dan"]);
    let tree = Tree::new(&bed);
    let eve = tree.beside("eve@localhost", &json!({}));
    bed.config(&[home.store(), queue.store(), tree.store()].concat());
    let m = bed.mount("bar");
    let others = [
        (ALICE, "alice", home.store()),
        ("dan", "dan", queue.store()),
        ("eve@localhost", "eve", eve.store()),
    ];
    for (address, me, store) in others {
        let text = format!("question to {me}?");
        let mut one = ask(&bed, &[address, "--new", &text]);
        let config = bed.path(format!("{me}.toml"));
        agz::put(&config, &store);
        let msgfs = |args: &[&str], input: &str| {
            let mut c = bed.msgfs(["--me", me, "--config"]);
            run(
                {
                    c.arg(&config).args(args);
                    c
                },
                Some(input.as_bytes()),
            )
        };
        soon("the question arrives", || {
            assert!(one.running(), "{me}");
            !msgfs(&["ls", "inbox"], "").stdout.is_empty()
        });
        let name = msgfs(&["ls", "inbox"], "").stdout;
        let name = name.trim().strip_suffix(".txt").unwrap().to_owned();
        let replied = msgfs(&["reply", &name, "here it is"], "");
        assert!(replied.ok(), "{me}: {replied:?}");
        let out = one.finish(PATIENCE).unwrap();
        assert!(out.ok() && out.stdout == "here it is\n", "{me}: {out:?}");
    }
    m.inbox_becomes(&[]);
    // An unsigned mail of the reference names no message in a signed part, so it answers none.
    let path = sent(&m, "question to eve?");
    tree.receive(&Letter::new("eve@localhost", "Re: x", "unsigned", 1));
    soon("it arrives", || m.ls("inbox").len() == 1);
    assert!(m.ok(&format!("timeout 20 cat {path}.answer")).ends_with("\n\nhere it is\n"));
}

/// S702: an answer that a command could not print is unread.
#[test]
fn s702_an_answer_that_is_not_printed() {
    let bed = bed();
    let (m, foo) = (bed.mount("bar"), bed.mount("foo"));
    let path = question(&m, "foo", "which port?");
    reply(&foo, "which port?", "port 80");
    soon("it arrives", || m.ls("inbox").len() == 1);
    let program = crate::common::binary().display().to_string();
    let cat = format!("{program} --me bar cat {path}.answer");
    let out = bed.sh(&format!("{cat} > /dev/full"));
    assert!(!out.ok() && out.stderr.contains("No space left"), "{out:?}");
    assert_eq!(m.ls("inbox").len(), 1);
    assert_eq!(body(&bed.sh(&cat)), "port 80\n");
    m.inbox_becomes(&[]);
}
