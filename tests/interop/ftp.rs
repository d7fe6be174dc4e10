//! The link over FTP, against the real server and the real client on the other side.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::{Value, json};

use crate::common::agz;
use crate::common::shown;
use crate::common::{Bed, need_root, soon, wait_for};
use crate::machine::{Machine, answered, arrived};
use crate::peer;
use crate::proxy::{Fault, Proxy};
use crate::relay::{bodies, sent};

const PASSWORD: &str = "agentoftp_pass";
const BAR: &str = "bar@far.example";
const ZED: &str = "zed@far.example";

fn config(port: u16) -> Value {
    json!({"transport": "ftp", "log_file": "", "ftp": {
        "host": "127.0.0.1", "port": port, "user": "agentoftp", "password": PASSWORD}})
}

/// Returns all files below a folder of the server, without those that no program reads.
fn on_server(at: &Bed, folder: &str) -> Vec<String> {
    let base = at.path("ftp").join(folder);
    let all = crate::relay::files(&base);
    let name = |path: PathBuf| path.strip_prefix(&base).unwrap().to_str().unwrap().to_owned();
    let mut all: Vec<String> = all.into_iter().map(name).collect();
    all.sort();
    all
}

/// Starts a proxy that lets nothing through until the value is false.
fn switched(server: &peer::Server) -> (Proxy, Arc<AtomicBool>) {
    let down = Arc::new(AtomicBool::new(true));
    let is_down = Arc::clone(&down);
    let drop_all = move |_: &str, _| is_down.load(Ordering::SeqCst).then_some(Fault::Drop);
    (Proxy::before_lines(server.port, drop_all), down)
}

/// Returns a path in the folder of a machine's link.
fn in_link(machine: &Machine, name: &str) -> PathBuf {
    machine.bed.state("bar").join("links/agentazall/ftp").join(name)
}

/// Puts a file on the server as a careless sender does.
fn put(at: &Bed, path: &str, text: &str) {
    let path = at.path("ftp").join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

fn unsigned(id: &str, more: &str, body: &str) -> String {
    format!(
        "From: amy@far.example\nTo: {BAR}\nSubject: by hand\nDate: 2026-04-25 12:00:00\n\
         Message-ID: {id}\nStatus: new\n{more}---\n{body}"
    )
}

/// S470: a message with an attachment goes and comes by FTP and is the same message on both machines, and so is the
/// answer. No half file is on the server, and the password is in no other file.
#[test]
fn s470_a_letter_goes_by_ftp_and_is_answered() {
    let at = Bed::new();
    let server = peer::ftp_server(&at);
    let (bar, zed) =
        (Machine::new(BAR, &config(server.port)), Machine::new(ZED, &config(server.port)));
    let (m, z) = (bar.mount(), zed.mount());
    let file = bar.file("data.bin", &[0u8, 9, 255]);
    m.ok(&format!(
        "printf 'Subject: across\\nAttach: {}\\n\\nby ftp\\n' | tee outbox/{ZED} > /dev/null",
        file.display()
    ));
    let theirs = arrived(&m, &z);
    assert_eq!(z.ok("cat inbox/*.d/data.bin | wc -c").trim(), "3");
    answered(&m, &z, &theirs, ("across", "by ftp\n"));
    soon("everything is in sent/", || bar.count("sent") == 1 && zed.count("sent") == 1);
    assert_eq!(bar.count("outbox"), 0);
    assert!(m.cat("status.txt").contains("ftp: ftp://127.0.0.1:"), "{}", m.cat("status.txt"));
    let there = on_server(&at, ZED);
    assert_eq!(there.iter().filter(|n| n.contains("/inbox/")).count(), 2, "{there:?}");
    assert_eq!(there.iter().filter(|n| n.contains("msgfs-tmp")).count(), 0, "{there:?}");
    assert_eq!(on_server(&at, BAR).iter().filter(|n| n.contains("/sent/")).count(), 1);
    bar.tells_no(PASSWORD);
    let out = bar.bed.msgfs_out(&["--me", "bar", "doctor"]);
    assert!(!out.stdout.contains(PASSWORD) && !out.stderr.contains(PASSWORD));
}

/// S471: the reference client on the other side reads once each message that went by FTP, and its own messages arrive
/// with their attachments. Neither program files a message that the other one has filed.
#[test]
fn s471_the_reference_client_is_on_the_other_side_of_ftp() {
    let at = Bed::new();
    let server = peer::ftp_server(&at);
    let (bar, zed) =
        (Machine::new(BAR, &config(server.port)), Machine::new(ZED, &config(server.port)));
    let m = bar.mount();
    zed.reads_and_writes_as_the_reference(&bar, &m);
    wait_for(Duration::from_secs(60), "it comes", || !m.ls("inbox").is_empty());
    zed.wrote_as_the_reference(&m);
    soon("the reference is told", || {
        fs::read_to_string(bar.tree.base().join(".seen_ids")).is_ok_and(|t| t.contains("ftp:"))
    });
    m.umount();
    peer::ok(&bar.bed, &bar.tree, &["daemon", "--once"]);
    assert_eq!(bar.count("inbox"), 1);
    // A message that the reference filed and a person threw away does not come back.
    let z = zed.mount();
    let (file, _) = zed.tree.only(ZED, "inbox");
    fs::remove_file(file).unwrap();
    soon("the link has looked", || z.cat("status.txt").contains("connected since"));
    zed.hurry("ftp");
    m_is_empty(&zed);
}

#[track_caller]
fn m_is_empty(machine: &Machine) {
    std::thread::sleep(Duration::from_secs(6));
    assert_eq!(machine.count("inbox"), 0);
}

/// S472: connections break at any command, before or after the server has got it, and the mount is killed; every
/// message is there with its attachment, once, for msgfs and for the reference client.
#[test]
fn s472_by_ftp_nothing_is_lost_or_doubled() {
    let at = Bed::new();
    let server = peer::ftp_server(&at);
    let verbs = ["MKD", "SIZE", "STOR", "RNFR", "RNTO", "EPSV", "RETR", "PASS", "CWD", "TYPE"];
    let mut met = std::collections::BTreeSet::<(usize, bool)>::new();
    let plan = move |line: &str, number: usize| {
        let verb = verbs.iter().position(|verb| line.starts_with(verb))?;
        // Each command is lost once, and its answer is lost once.
        let faults = [Fault::Drop, Fault::Swallow];
        let at = number % 2;
        let is_new = met.insert((verb, at == 0));
        is_new.then(|| faults[at])
    };
    let proxy = Proxy::before_lines(server.port, plan);
    let bar = Machine::new(BAR, &config(proxy.port));
    let zed = Machine::new(ZED, &config(server.port));
    let yan = Machine::new("yan@far.example", &config(server.port));
    let file = bar.file("data.bin", &vec![7u8; 70_000]);
    let count = 12;
    for round in 0..3 {
        let m = bar.mount();
        m.ok(&format!(
            "for i in $(seq {} {}); do printf 'To: {ZED}\\nCc: yan@far.example\\nAttach: {}\\n\\nletter '$i'\\n' \
             | tee outbox/x > /dev/null; done",
            round * count / 3,
            (round + 1) * count / 3 - 1,
            file.display()
        ));
        std::thread::sleep(Duration::from_millis(100 + 170 * round as u64));
        m.kill9();
    }
    let (_m, z) = (bar.mount(), zed.mount());
    let all: BTreeMap<_, _> = (0..count).map(|n| (format!("letter {n}"), 1)).collect();
    wait_for(Duration::from_secs(180), "all are there once", || {
        bar.hurry("ftp");
        zed.hurry("ftp");
        bodies(&z) == all
    });
    soon("nothing waits", || bar.count("sent") == count);
    assert_eq!(z.ok("cat inbox/*.d/data.bin | wc -c").trim(), (count * 70_000).to_string());
    peer::ok(&yan.bed, &yan.tree, &["daemon", "--once"]);
    assert_eq!(yan.count("inbox"), count);
    let texts = on_server(&at, "yan@far.example");
    assert_eq!(texts.iter().filter(|n| shown::has_ending(n, "txt")).count(), count, "{texts:?}");
    let parts = texts.iter().filter(|n| n.contains("/inbox/") && n.ends_with("data.bin"));
    assert_eq!(parts.count(), count, "{texts:?}");
}

/// S473, S1295: a text that is half on the server is not filed as if it were whole. If it must be filed and grows
/// later, the whole text is a second message that says so, also if the connection breaks when it is asked for. The
/// filed message stays as it was.
#[test]
fn s473_what_is_half_or_changes_on_the_server() {
    let at = Bed::new();
    let server = peer::ftp_server(&at);
    let breaks = Arc::new(AtomicBool::new(false));
    let does_break = Arc::clone(&breaks);
    let proxy = Proxy::before_lines(server.port, move |line, _| {
        let is_hit = line.starts_with("RETR") && does_break.swap(false, Ordering::SeqCst);
        is_hit.then_some(Fault::Drop)
    });
    let bar = Machine::new(BAR, &config(proxy.port));
    let m = bar.mount();
    let day = agz::today();
    let path = format!("{BAR}/{day}/inbox/aaaaaaaaaaaa.txt");
    put(&at, &path, "");
    put(
        &at,
        &format!("{BAR}/{day}/inbox/bbbbbbbbbbbb.txt"),
        &unsigned("bbbbbbbbbbbb", "Attachments: a.md\n", "with\n"),
    );
    std::thread::sleep(Duration::from_secs(6));
    let whole = unsigned("aaaaaaaaaaaa", "", "half and whole\n");
    put(&at, &path, &whole[..whole.len() - 10]);
    bar.hurry("ftp");
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(m.ls("inbox").len(), 0, "neither is known to be whole");
    put(&at, &format!("{BAR}/{day}/inbox/bbbbbbbbbbbb/a.md"), "late\n");
    wait_for(Duration::from_secs(60), "both are filed", || {
        bar.hurry("ftp");
        std::thread::sleep(Duration::from_secs(1));
        bodies(&m).len() == 2
    });
    assert_eq!(m.ok("cat inbox/*.d/a.md"), "late\n");
    let half = bodies(&m).into_keys().find(|body| body.starts_with("half")).unwrap();
    breaks.store(true, Ordering::SeqCst);
    put(&at, &path, &whole);
    let told = "[This is the whole of a text of which the server had only the beginning.]";
    wait_for(Duration::from_secs(60), "the whole one comes", || {
        bar.hurry("ftp");
        std::thread::sleep(Duration::from_secs(1));
        bodies(&m).contains_key(&format!("{told}\n\nhalf and whole"))
    });
    assert!(bodies(&m).contains_key(&half), "{:?}", bodies(&m));
    assert_eq!(bodies(&m).len(), 3);
    assert!(!breaks.load(Ordering::SeqCst), "the connection broke");
}

/// S474: while the server is away everything else works. A waiting message says so, and is sent when the server is
/// back. msgfs does not use a password that others can read.
#[test]
fn s474_a_server_that_is_away_and_a_password_that_is_exposed() {
    let at = Bed::new();
    let server = peer::ftp_server(&at);
    let (proxy, down) = switched(&server);
    let bar = Machine::new(BAR, &config(proxy.port));
    let m = bar.mount();
    m.ok(&format!("echo one > outbox/{ZED}; echo me > outbox/{BAR}"));
    assert_eq!(m.ls("inbox").len(), 1, "mail of this machine");
    soon("it says that it waits", || sent(&m, "warning").len() == 1);
    assert!(m.ok("cat sent/*/*.warning").contains(&format!("waits for {ZED}")));
    soon("it is told", || m.cat("status.txt").contains("not connected since"));
    down.store(false, Ordering::SeqCst);
    bar.permit(0o644);
    bar.hurry("ftp");
    soon("the password is told", || m.cat("status.txt").contains("others can read it"));
    assert!(!at.path("ftp").join(ZED).exists());
    bar.permit(0o600);
    bar.hurry("ftp");
    soon("it goes", || bar.count("sent") == 2);
    assert_eq!(on_server(&at, ZED).iter().filter(|n| shown::has_ending(n, "txt")).count(), 1);
    soon("nothing waits", || sent(&m, "warning").is_empty());
    assert!(Path::new(&bar.tree.root).exists());
}

/// S642: half of a signed message is no message, however long it stays half. `rejected/` reports it, and the whole
/// message arrives once and signed when it is complete.
#[test]
fn s642_half_of_a_signed_letter_waits_for_its_end() {
    let at = Bed::new();
    let server = peer::ftp_server(&at);
    let (bar, zed) =
        (Machine::new(BAR, &config(server.port)), Machine::new(ZED, &config(server.port)));
    let z = zed.mount();
    z.ok(&format!("printf 'Subject: whole\\n\\nwhat is signed\\n' > outbox/{BAR}"));
    let there = || on_server(&at, BAR).into_iter().find(|name| name.contains("/inbox/"));
    soon("it is on the server", || there().is_some());
    let path = format!("{BAR}/{}", there().unwrap());
    let whole = fs::read_to_string(at.path("ftp").join(&path)).unwrap();
    let half = &whole[..whole.find("---END AGENTAZALL SIGNED").unwrap() - 5];
    put(&at, &path, half);
    let m = bar.mount();
    for _ in 0..8 {
        bar.hurry("ftp");
        std::thread::sleep(Duration::from_secs(2));
    }
    assert_eq!((m.ls("inbox").len(), shown::rejected(&m).len()), (0, 0));
    // The journal says that the link saw the half long ago.
    let saw = bar.bed.state("bar").join("links/agentazall/ftp/saw.json");
    wait_for(Duration::from_secs(60), "the half is told", || {
        let aged = |text: String| {
            let mut all: Value = serde_json::from_str(&text).unwrap();
            for one in all["files"].as_object_mut().unwrap().values_mut() {
                one["since"] = json!(1);
            }
            fs::write(&saw, all.to_string()).unwrap();
        };
        fs::read_to_string(&saw).map(aged).unwrap();
        bar.hurry("ftp");
        std::thread::sleep(Duration::from_secs(1));
        shown::rejected(&m).len() == 1
    });
    let told = shown::one_rejected(&m);
    assert!(told.contains("only the beginning of the signed text"), "{told}");
    assert_eq!(m.ls("inbox").len(), 0);
    put(&at, &path, &whole);
    wait_for(Duration::from_secs(60), "the whole one comes", || {
        bar.hurry("ftp");
        std::thread::sleep(Duration::from_secs(1));
        bodies(&m).contains_key("what is signed")
    });
    assert_eq!((bodies(&m).len(), shown::rejected(&m).len()), (1, 1));
    let text = m.ok("cat inbox/*");
    assert!(!text.contains("missing") && !text.contains("Signature: none"), "{text}");
}

/// S1290: a letter at which the connection breaks each time stops neither the letters after it nor one that comes.
#[test]
fn s1290_a_letter_that_always_fails_stops_no_other() {
    let at = Bed::new();
    let server = peer::ftp_server(&at);
    let proxy = Proxy::before_lines(server.port, |line, _| {
        line.contains("/yan@far.example").then_some(Fault::Drop)
    });
    let bar = Machine::new(BAR, &config(proxy.port));
    let zed = Machine::new(ZED, &config(server.port));
    let z = zed.mount();
    z.ok(&format!("echo back > outbox/{BAR}"));
    soon("the server has it", || zed.count("sent") == 1);
    let m = bar.mount();
    m.ok(&format!(
        "echo breaks > outbox/yan@far.example; \
         for i in 1 2 3; do echo letter $i > outbox/{ZED}; done"
    ));
    soon("one comes", || bodies(&m).contains_key("back"));
    let all: BTreeMap<_, _> = (1..4).map(|n| (format!("letter {n}"), 1)).collect();
    wait_for(Duration::from_secs(60), "the others go", || bodies(&z) == all);
    soon("only one waits", || sent(&m, "warning").len() == 1);
    assert!(m.ok("cat sent/*/*.warning").contains("waits for yan@far.example"));
}

/// S1291: what is given up is not sent when the server is back. A letter whose bytes the link has lost is refused, and
/// the one behind it goes.
#[test]
fn s1291_what_is_given_up_or_lost_stops_no_other() {
    let at = Bed::new();
    let server = peer::ftp_server(&at);
    let (proxy, down) = switched(&server);
    let bar = Machine::new(BAR, &config(proxy.port));
    let zed = Machine::new(ZED, &config(server.port));
    let m = bar.mount();
    m.ok(&format!("echo given up > outbox/{ZED}"));
    soon("it fails", || failures(&bar) > 0);
    let out = bar.bed.msgfs_out(&["--me", "bar", "link", "drop", "ftp"]);
    assert!(out.ok(), "{out:?}");
    soon("it is over", || bar.count("sent") == 1);
    for (text, bytes) in [("lost", "out/1"), ("kept", "out/2")] {
        m.ok(&format!("echo {text} > outbox/{ZED}"));
        soon("the link has it", || in_link(&bar, bytes).exists());
    }
    fs::remove_file(in_link(&bar, "out/1")).unwrap();
    down.store(false, Ordering::SeqCst);
    bar.hurry("ftp");
    soon("all is over", || bar.count("sent") == 3 && sent(&m, "warning").len() == 2);
    let told = m.ok("cat sent/*/*.warning");
    assert!(told.contains("given up by msgfs link drop"), "{told}");
    assert!(told.contains("its bytes are gone"), "{told}");
    let z = zed.mount();
    soon("one comes", || bodies(&z) == [("kept".to_owned(), 1)].into());
    assert_eq!(on_server(&at, ZED).iter().filter(|n| shown::has_ending(n, "txt")).count(), 1);
}

/// Returns the number of failed tries in the journal of a link.
fn failures(machine: &Machine) -> usize {
    let journal = fs::read_to_string(in_link(machine, "journal")).unwrap_or_default();
    journal.matches("\"is\":\"later\"").count()
}

/// Changes each line in the journal of a machine without a mount.
fn edit_journal(machine: &Machine, edit: impl Fn(&mut serde_json::Map<String, Value>)) {
    let file = in_link(machine, "journal");
    let edited = |line: &str| {
        let mut all: Value = serde_json::from_str(line).unwrap();
        edit(all.as_object_mut().unwrap());
        format!("{all}\n")
    };
    let lines: Vec<String> = fs::read_to_string(&file).unwrap().lines().map(edited).collect();
    fs::write(file, lines.concat()).unwrap();
}

/// S1292: a letter that failed eight days ago, before this machine was off, waits on after the next failure. It is
/// refused at a failure after more than a week of tries.
#[test]
fn s1292_a_letter_is_given_up_after_a_week_of_tries() {
    const EIGHT_DAYS: i64 = 8 * 24 * 3600 * 1000;
    // No server is there.
    let bar = Machine::new(BAR, &config(9));
    let m = bar.mount();
    m.ok(&format!("echo patient > outbox/{ZED}"));
    soon("it fails", || failures(&bar) > 0);
    m.umount();
    let back = |value: &mut Value| *value = json!(value.as_i64().unwrap() - EIGHT_DAYS);
    edit_journal(&bar, |line| {
        for name in ["at", "until"] {
            line.get_mut(name).into_iter().for_each(back);
        }
        line.get_mut("failed").into_iter().for_each(|failed| back(&mut failed["last"]));
    });
    let before = failures(&bar);
    let m = bar.mount();
    soon("it fails again", || failures(&bar) > before);
    assert!(m.ok("cat sent/*/*.warning").contains(&format!("waits for {ZED}")));
    m.umount();
    edit_journal(&bar, |line| {
        line.get_mut("until").into_iter().for_each(back);
        line.get_mut("failed").into_iter().for_each(|f| f["spread"] = json!(EIGHT_DAYS));
    });
    let m = bar.mount();
    let told = || m.sh("cat sent/*/*.warning").stdout;
    soon("it is given up", || told().contains("not taken for a week"));
}

/// S1293: a letter with a file that cannot be read is not refused, and goes when the file can be read.
#[test]
fn s1293_a_file_that_cannot_be_read_now() {
    need_root();
    let at = Bed::new();
    let server = peer::ftp_server(&at);
    let bar = Machine::new(BAR, &config(server.port));
    let zed = Machine::new(ZED, &config(server.port));
    // Without links it waits in the mailbox.
    bar.bed.config(&bar.tree.store());
    let m = bar.mount();
    let file = bar.file("data.bin", b"bytes");
    m.ok(&format!(
        "printf 'Attach: {}\\n\\nlocked\\n' | tee outbox/{ZED} > /dev/null",
        file.display()
    ));
    m.umount();
    let permit = |mode: &str| {
        let base = bar.tree.base();
        let out = bar
            .bed
            .sh(&format!("find {} -name data.bin -exec chmod {mode} {{}} +", base.display()));
        assert!(out.ok(), "{out:?}");
    };
    permit("0");
    bar.bed.config(&format!("{}links = true\n", bar.tree.store()));
    let m = bar.bed.mount_without_override("bar");
    let told = || m.ok("cat sent/*/*.warning 2>/dev/null; true");
    soon("it is told", || told().contains("data.bin cannot be read"));
    assert!(told().contains(&format!("waits for {ZED}")), "{}", told());
    permit("600");
    let z = zed.mount();
    soon("it comes", || bodies(&z).contains_key("locked"));
    assert_eq!(z.ok("cat inbox/*.d/data.bin"), "bytes");
}

/// S1294: a file at which the connection breaks each time stops no other that comes.
#[test]
fn s1294_a_file_that_breaks_the_connection_stops_no_other() {
    let at = Bed::new();
    let server = peer::ftp_server(&at);
    let mut broken = None;
    let proxy = Proxy::before_lines(server.port, move |line, _| {
        let path = line.strip_prefix("RETR ")?;
        (broken.get_or_insert_with(|| path.to_owned()) == path).then_some(Fault::Drop)
    });
    let bar = Machine::new(BAR, &config(server.port));
    let zed = Machine::new(ZED, &config(proxy.port));
    let m = bar.mount();
    m.ok(&format!("for i in 1 2 3; do echo letter $i > outbox/{ZED}; done"));
    soon("the server has all", || bar.count("sent") == 3);
    let z = zed.mount();
    soon("the others come", || bodies(&z).len() == 2);
    soon("it is told", || z.cat("status.txt").contains("while a letter was fetched"));
}

/// S1296: the bytes of a letter are removed when it is carried, and at the next mount if msgfs was killed before.
#[test]
fn s1296_the_bytes_of_what_is_carried_are_removed() {
    let at = Bed::new();
    let server = peer::ftp_server(&at);
    let bar = Machine::new(BAR, &config(server.port));
    let m = bar.mount();
    m.ok(&format!("echo hi > outbox/{ZED}"));
    soon("it is carried", || bar.count("sent") == 1);
    soon("its bytes are removed", || agz::names(&in_link(&bar, "out")).is_empty());
    m.kill9();
    fs::write(in_link(&bar, "out/0"), "left by the kill").unwrap();
    let _m = bar.mount();
    soon("they are removed", || !in_link(&bar, "out/0").exists());
}
