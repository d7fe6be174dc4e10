//! The link to `AgentAZAll`'s relay, against the real relay and the real client on the other side.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::{Value, json};

use crate::common::agz::{self, Tree};
use crate::common::shown;
use crate::common::{Bed, Mount, PATIENCE, run_for, samp, soon, wait_for};
use crate::machine::{answered, arrived};
use crate::peer;
use crate::proxy::{Fault, Proxy};

/// One machine with one agent of the relay.
struct Machine {
    bed: Bed,
    tree: Tree,
    name: &'static str,
    /// The token, which must never be printed.
    token: String,
}

impl Machine {
    /// Makes a machine that is registered at the relay and whose link leads to `port`.
    fn new(relay: &peer::Server, port: u16, name: &'static str) -> Self {
        let bed = Bed::new();
        let mut config = peer::register(&bed, relay, name);
        config["agenttalk"]["server"] = json!(format!("http://127.0.0.1:{port}"));
        let token = config["agenttalk"]["token"].as_str().unwrap().to_owned();
        let tree = Tree::with(&bed, &format!("{name}.agenttalk"), &config);
        agz::identity(&tree.base(), &samp::key(name.as_bytes()[0]));
        let file = tree.root.join("config.json");
        fs::set_permissions(file, fs::Permissions::from_mode(0o600)).unwrap();
        bed.config(&format!("{}links = true\n", tree.store()));
        Self { bed, tree, name, token }
    }

    fn mount(&self) -> Mount {
        self.bed.mount(self.name)
    }

    fn address(&self) -> String {
        format!("{}.agenttalk", self.name)
    }

    /// Ends the backoff of the link.
    fn hurry(&self) {
        let out = self.bed.msgfs_out(&["--me", self.name, "link", "retry", "relay"]);
        assert!(out.ok(), "{out:?}");
    }

    /// Asserts that no file of this machine holds the token, except the mailbox's own configuration.
    #[track_caller]
    fn tells_no_secret(&self) {
        let config = self.tree.root.join("config.json");
        for file in files(&self.bed.path("")) {
            let holds = |text: &[u8]| {
                text.windows(self.token.len()).any(|window| window == self.token.as_bytes())
            };
            let is_secret = file != config && fs::read(&file).is_ok_and(|text| holds(&text));
            let is_relay = file.starts_with(self.bed.path("relay"));
            assert!(!is_secret || is_relay, "{} holds the token", file.display());
        }
    }
}

pub(crate) fn files(folder: &Path) -> Vec<PathBuf> {
    let mut out = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let Ok(kind) = entry.file_type() else { continue };
        let is_mount = entry.file_name().to_string_lossy().starts_with("mnt-");
        if kind.is_dir() && !is_mount {
            out.extend(files(&entry.path()));
        } else if kind.is_file() {
            out.push(entry.path());
        }
    }
    out
}

/// Returns how often each text is in the inbox.
pub(crate) fn bodies(m: &Mount) -> BTreeMap<String, usize> {
    let mut out = BTreeMap::new();
    for message in shown::all(m, "inbox") {
        *out.entry(message.body.trim().to_owned()).or_default() += 1;
    }
    out
}

pub(crate) fn sent(m: &Mount, ending: &str) -> Vec<String> {
    let all = m.ok("find sent -type f");
    all.lines().filter(|name| shown::has_ending(name, ending)).map(str::to_owned).collect()
}

/// S400: a message with an attachment goes and comes by the link and is the same message on both machines, and so is
/// the answer.
#[test]
fn s400_a_letter_goes_by_relay_and_is_answered() {
    let at = Bed::new();
    let relay = peer::relay(&at);
    let (bar, zed) =
        (Machine::new(&relay, relay.port, "bar"), Machine::new(&relay, relay.port, "zed"));
    let (m, z) = (bar.mount(), zed.mount());
    fs::write(bar.bed.path("data.bin"), [0u8, 9, 255]).unwrap();
    m.ok(&format!(
        "printf 'Subject: across\\nAttach: {}\\n\\nby relay\\n' | tee outbox/zed.agenttalk > /dev/null",
        bar.bed.path("data.bin").display()
    ));
    let theirs = arrived(&m, &z);
    assert_eq!(z.ok("cat inbox/*.d/data.bin | wc -c").trim(), "3");
    answered(&m, &z, &theirs, ("across", "by relay\n"));
    soon("everything is in sent/", || bar.tree.list(&bar.address(), "sent").len() == 1);
    assert_eq!(bar.tree.list(&bar.address(), "outbox"), []);
    assert!(m.cat("status.txt").contains("relay: the relay http://127.0.0.1:"));
    bar.tells_no_secret();
}

/// S401: the reference client on the other side reads each message that the link carried, and its own messages arrive.
#[test]
fn s401_the_reference_client_is_on_the_other_side() {
    let at = Bed::new();
    let relay = peer::relay(&at);
    let bar = Machine::new(&relay, relay.port, "bar");
    let zed = Machine::new(&relay, relay.port, "zed");
    let m = bar.mount();
    m.ok("printf 'Subject: hello\\n\\nfrom a mount\\n' | tee outbox/zed.agenttalk > /dev/null");
    soon("the relay has it", || bar.tree.list(&bar.address(), "sent").len() == 1);
    peer::ok(&zed.bed, &zed.tree, &["daemon", "--once"]);
    let (file, text) = zed.tree.only("zed.agenttalk", "inbox");
    assert!(text.contains("from a mount"), "{text}");
    assert_eq!(peer::verify(&zed.bed, &[file])[0]["verified"], true);
    let args = ["send", "--to", "bar.agenttalk", "--subject", "back", "--body", "by the client"];
    peer::ok(&zed.bed, &zed.tree, &args);
    peer::ok(&zed.bed, &zed.tree, &["daemon", "--once"]);
    soon("it comes", || !m.ls("inbox").is_empty());
    let got = shown::all(&m, "inbox").remove(0);
    assert_eq!((got.must("Subject"), got.must("From")), ("back", "zed.agenttalk"));
    assert!(got.body.starts_with("by the client"), "{}", got.body);
    assert!(got.must("Signature").starts_with("valid "));
    // The client opens a letter by the id that it lists.
    let (_, filed) = bar.tree.only("bar.agenttalk", "inbox");
    let id = filed.lines().find_map(|line| line.strip_prefix("Message-ID: ")).unwrap();
    let listed = peer::ok(&bar.bed, &bar.tree, &["inbox", "--all", "--offline"]);
    assert!(listed.contains(&format!("ID: {id}\n")), "{listed}");
    assert!(peer::ok(&bar.bed, &bar.tree, &["read", id]).contains("by the client"));
    let checked = bar.bed.msgfs_out(&["--me", "bar", "check", "agentazall"]);
    assert!(checked.ok(), "{checked:?}");
}

/// S402: a message that the engine refuses for good is in sent/, with a `.warning` that says so; others are sent.
#[test]
fn s402_refused_for_good_is_told() {
    let at = Bed::new();
    let relay = peer::relay(&at);
    let bar = Machine::new(&relay, relay.port, "bar");
    let zed = Machine::new(&relay, relay.port, "zed");
    let m = bar.mount();
    m.ok("printf 'To: nobody.agenttalk\\nCc: zed.agenttalk\\n\\nhi\\n' | tee outbox/x > /dev/null");
    soon("it is told", || !sent(&m, "warning").is_empty() && m.ls("outbox").is_empty());
    let warning = || m.ok("cat sent/*/*.warning");
    soon("only what was refused is left", || !warning().contains("zed.agenttalk"));
    assert!(
        warning()
            .starts_with("nobody.agenttalk does not get it, because it was refused for good: "),
        "{}",
        warning()
    );
    assert!(warning().contains("404"), "{}", warning());
    soon("it is over", || bar.tree.list(&bar.address(), "sent").len() == 1);
    let z = zed.mount();
    soon("the other one has it", || !z.ls("inbox").is_empty());
    let out = bar.bed.msgfs_out(&["--me", "bar", "link", "--json"]);
    let status: Value = serde_json::from_str(&out.stdout).unwrap();
    assert_eq!((&status["refused"], &status["waiting"]), (&json!(1), &json!(0)), "{status}");
    let again = bar.bed.mount_at(&bar.bed.path("mnt-again"), "bar", &["--read-only"]);
    assert_eq!(sent(&again, "txt").len(), 1);
}

/// S403: while the engine is away everything else works. A waiting message says so, and is sent once when the engine is
/// back, without a restart.
#[test]
fn s403_an_engine_that_is_away_delays_nothing_else() {
    let at = Bed::new();
    let relay = peer::relay(&at);
    let down = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(true));
    let is_down = std::sync::Arc::clone(&down);
    let proxy = Proxy::before(relay.port, move |_, _| {
        is_down.load(std::sync::atomic::Ordering::SeqCst).then_some(Fault::Drop)
    });
    let bar = Machine::new(&relay, proxy.port, "bar");
    let zed = Machine::new(&relay, relay.port, "zed");
    let m = bar.mount();
    m.ok("for i in 1 2 3; do echo text $i > outbox/zed.agenttalk; done; echo me > outbox/bar.agenttalk");
    assert_eq!(m.ls("inbox").len(), 1, "mail of this machine");
    soon("each says that it waits", || sent(&m, "warning").len() == 3);
    let warning = m.ok("cat sent/*/*.warning");
    assert!(
        warning.contains("waits for zed.agenttalk") && warning.contains("since 2"),
        "{warning}"
    );
    let status = m.cat("status.txt");
    assert!(status.contains("not connected since") && status.contains("3 waiting"), "{status}");
    down.store(false, std::sync::atomic::Ordering::SeqCst);
    bar.hurry();
    let z = zed.mount();
    let all = ["text 1", "text 2", "text 3"].map(|text| (text.to_owned(), 1));
    wait_for(Duration::from_secs(60), "all are there once", || bodies(&z) == all.clone().into());
    soon("nothing waits", || sent(&m, "warning").is_empty());
    soon("the link says so", || m.cat("status.txt").contains("connected since"));
}

/// S404: requests are dropped, answers are lost, cut or late, and the mount is killed; every message is there once.
#[test]
fn s404_nothing_is_lost_or_doubled_whatever_the_network_does() {
    let at = Bed::new();
    let relay = peer::relay(&at);
    let plan = |line: &str, number: usize| {
        let faults = [Fault::Drop, Fault::Swallow, Fault::Cut, Fault::Delay, Fault::Error];
        // The relay forgets messages that it gives out; another test covers that.
        let is_send = line.starts_with("POST /send");
        (is_send && !number.is_multiple_of(3)).then(|| faults[number / 3 % faults.len()])
    };
    let proxy = Proxy::before(relay.port, plan);
    let bar = Machine::new(&relay, proxy.port, "bar");
    let zed = Machine::new(&relay, relay.port, "zed");
    let count = 24;
    for round in 0..4 {
        let m = bar.mount();
        m.ok(&format!(
            "for i in $(seq {} {}); do echo letter $i > outbox/zed.agenttalk; done",
            round * count / 4,
            (round + 1) * count / 4 - 1
        ));
        std::thread::sleep(Duration::from_millis(50 + 130 * round as u64));
        m.kill9();
    }
    let (m, z) = (bar.mount(), zed.mount());
    let all: BTreeMap<_, _> = (0..count).map(|n| (format!("letter {n}"), 1)).collect();
    wait_for(Duration::from_secs(120), "all are there once", || {
        bar.hurry();
        bodies(&z) == all
    });
    soon("nothing waits", || bar.tree.list(&bar.address(), "sent").len() == count);
    assert_eq!(sent(&m, "txt").len(), count);
    assert!(sent(&m, "warning").is_empty());
}

/// S405: the link reports, with the time, that a relay may have given out messages which were lost. It files the
/// complete messages of an answer that was cut.
#[test]
fn s405_a_fetch_that_was_cut_off_is_told() {
    let at = Bed::new();
    let relay = peer::relay(&at);
    let mut cut = false;
    let plan = move |line: &str, _: usize| {
        let is_first = line.starts_with("GET /messages") && !std::mem::replace(&mut cut, true);
        is_first.then_some(Fault::Cut)
    };
    let proxy = Proxy::before(relay.port, plan);
    let bar = Machine::new(&relay, relay.port, "bar");
    let zed = Machine::new(&relay, proxy.port, "zed");
    let m = bar.mount();
    m.ok("for i in 1 2 3; do echo letter $i > outbox/zed.agenttalk; done");
    soon("the relay has all", || bar.tree.list(&bar.address(), "sent").len() == 3);
    let z = zed.mount();
    soon("it is told", || z.cat("status.txt").contains("may be lost"));
    let got = bodies(&z);
    assert!(!got.is_empty() && got.len() < 3, "{got:?}");
    z.umount();
    assert!(zed.mount().cat("status.txt").contains("may be lost"));
}

/// S406: msgfs does not use a token that others can read. The link says so with the command that repairs it, and
/// continues by itself after the repair.
#[test]
fn s406_a_token_that_others_can_read_is_not_used() {
    let at = Bed::new();
    let relay = peer::relay(&at);
    let bar = Machine::new(&relay, relay.port, "bar");
    let file = bar.tree.root.join("config.json");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
    let m = bar.mount();
    soon("it is told", || m.cat("status.txt").contains("others can read it"));
    assert!(m.cat("status.txt").contains("chmod 600"));
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    soon("it goes on", || m.cat("status.txt").contains("connected since"));
}

/// S409, S644: while the format's own daemon runs on a mailbox, msgfs carries nothing for it, and says so.
#[test]
fn s409_the_formats_own_daemon_is_left_alone() {
    let at = Bed::new();
    let relay = peer::relay(&at);
    let bar = Machine::new(&relay, relay.port, "bar");
    let daemon = peer::command(&bar.bed, &bar.tree, &["daemon"]);
    let daemon = crate::common::proc::Running::start(daemon, None).unwrap();
    let m = bar.mount();
    soon("it is told", || m.cat("status.txt").contains("`agentazall daemon` (process "));
    m.ok("echo later > outbox/zed.agenttalk");
    // S644: the message is not said to be on its way.
    soon("the letter says so, too", || {
        m.ok("cat sent/*/*.warning").contains("`agentazall daemon`")
    });
    let out = bar.bed.msgfs_out(&["--me", "bar", "doctor"]);
    assert!(out.stdout.contains("carries the mail of this mailbox"), "{out:?}");
    drop(daemon);
    soon("msgfs carries", || m.cat("status.txt").contains("connected since"));
}

/// S407: without a mount, drafts wait for `msgfs carry --all`, and so do messages from other machines.
#[test]
fn s407_a_machine_without_a_mount_carries() {
    let at = Bed::new();
    let relay = peer::relay(&at);
    let bar = Machine::new(&relay, relay.port, "bar");
    let zed = Machine::new(&relay, relay.port, "zed");
    let z = zed.mount();
    let write = bar.bed.msgfs(["--me", "bar", "write", "outbox/zed.agenttalk"]);
    let out = run_for(write, Some(b"from a container\n"), Duration::from_secs(20));
    assert!(out.ok(), "{out:?}");
    assert_eq!(z.ls("inbox").len(), 0);
    let carry = bar.bed.msgfs(["--me", "bar", "carry", "--all"]);
    let carrying = crate::common::proc::Running::start(carry, None).unwrap();
    soon("it arrives", || z.ls("inbox").len() == 1);
    z.ok("name=$(ls inbox/*.txt); echo 'to a container' > ${name%.txt}.reply");
    soon("the answer is there", || bar.tree.list(&bar.address(), "inbox").len() == 1);
    carrying.signal(rustix::process::Signal::TERM);
    let ended = carrying.finish(PATIENCE).unwrap();
    assert!(ended.ok(), "{ended:?}");
    let out = bar.bed.msgfs_out(&["--me", "bar", "inbox"]);
    assert!(out.stdout.contains("to a container"), "{out:?}");
    bar.tells_no_secret();
}

/// S408: a person can cancel a message that waits for a link; it is then never sent.
#[test]
fn s408_what_waits_can_be_given_up() {
    let at = Bed::new();
    let relay = peer::relay(&at);
    let proxy = Proxy::before(relay.port, |_, _| Some(Fault::Drop));
    let bar = Machine::new(&relay, proxy.port, "bar");
    let m = bar.mount();
    m.ok("echo no > outbox/zed.agenttalk");
    soon("it waits", || sent(&m, "warning").len() == 1);
    let out = bar.bed.msgfs_out(&["--me", "bar", "link", "drop", "relay"]);
    assert!(out.ok() && out.stdout.contains("1 refused"), "{out:?}");
    soon("it is over", || bar.tree.list(&bar.address(), "sent").len() == 1);
    let warning = m.ok("cat sent/*/*.warning");
    assert!(warning.contains("given up by msgfs link drop"), "{warning}");
    let out = bar.bed.msgfs_out(&["--me", "bar", "link", "drop", "none"]);
    assert!(!out.ok() && out.stderr.contains("there is relay"), "{out:?}");
}

/// S643: an idle link asks through one process that stays, and that ends with the daemon. A draft that is written
/// meanwhile does not wait for it.
#[test]
fn s643_who_asks_stays() {
    let at = Bed::new();
    let relay = peer::relay(&at);
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    let proxy = Proxy::before(relay.port, move |line, _| {
        count.fetch_add(usize::from(line.contains("/messages")), Ordering::SeqCst);
        None
    });
    let bar = Machine::new(&relay, proxy.port, "bar");
    let zed = Machine::new(&relay, relay.port, "zed");
    let (m, z) = (bar.mount(), zed.mount());
    soon("it is connected", || m.cat("status.txt").contains("connected since"));
    let mut askers = BTreeSet::new();
    let begun = asked.load(Ordering::SeqCst);
    wait_for(Duration::from_secs(60), "it is asked five times more", || {
        askers.extend(children(m.pid()));
        asked.load(Ordering::SeqCst) >= begun + 5
    });
    assert!(askers.len() <= 2, "{askers:?}");
    m.ok("echo at once > outbox/zed.agenttalk");
    soon("it arrives", || z.ls("inbox").len() == 1);
    z.ok("name=$(ls inbox/*.txt); echo 'and back' > ${name%.txt}.reply");
    soon("the answer arrives", || m.ls("inbox").len() == 1);
    let mut stays = None;
    soon("somebody asks again", || {
        stays = children(m.pid()).first().copied();
        stays.is_some()
    });
    m.umount();
    soon("and ends", || !Path::new("/proc").join(stays.unwrap().to_string()).exists());
}

/// Returns the running processes that a process started.
fn children(of: i32) -> Vec<u32> {
    let all = fs::read_dir("/proc").into_iter().flatten().flatten();
    let ids = all.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let is_child = |id: &u32| {
        let stat = fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
        let parent = stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(1));
        parent.and_then(|parent| parent.parse().ok()) == Some(of)
    };
    ids.filter(is_child).collect()
}
