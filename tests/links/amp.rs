//! Two agents with separate homes and a provider between them; the tests run the program as a person does.

use std::collections::BTreeSet;
use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use ed25519_dalek::SigningKey;
use ed25519_dalek::pkcs8::EncodePrivateKey as _;
use ed25519_dalek::pkcs8::spki::EncodePublicKey as _;
use ed25519_dalek::pkcs8::spki::der::pem::LineEnding;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::common::shown::has_ending;
use crate::provider::{Fault, Manner, Provider, hex};

mod files;

/// A limit for something that takes milliseconds on an idle machine.
const PATIENCE: Duration = Duration::from_secs(120);

#[track_caller]
fn soon(what: &str, done: impl FnMut() -> bool) {
    crate::common::wait_for(PATIENCE, what, done);
}

/// A machine with one agent.
struct Home {
    dir: tempfile::TempDir,
    name: &'static str,
    /// The output of all commands.
    said: Mutex<String>,
}

/// A running `msgfs carry --all`.
struct Carrying(Child);

impl Drop for Carrying {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Home {
    fn new(name: &'static str, tenant: &str) -> Self {
        let home = Self { dir: tempfile::tempdir().unwrap(), name, said: Mutex::default() };
        let agent = home.agent();
        for dir in
            [agent.join("keys"), home.path(".config/msgfs"), home.path("run"), home.path("cwd")]
        {
            fs::create_dir_all(dir).unwrap();
        }
        let mut seed = [3; 32];
        seed.iter_mut().zip(name.bytes()).for_each(|(s, b)| *s = b);
        let key = SigningKey::from_bytes(&seed);
        let private = agent.join("keys/private.pem");
        fs::write(&private, key.to_pkcs8_pem(LineEnding::LF).unwrap()).unwrap();
        fs::set_permissions(&private, fs::Permissions::from_mode(0o600)).unwrap();
        let public = key.verifying_key().to_public_key_pem(LineEnding::LF).unwrap();
        fs::write(agent.join("keys/public.pem"), public).unwrap();
        let address = format!("{name}@{tenant}.aimaestro.local");
        let config = json!({
            "agent": {"name": name, "tenant": tenant, "address": address},
            "provider": {"domain": "aimaestro.local"},
        });
        fs::write(agent.join("config.json"), config.to_string()).unwrap();
        let config =
            format!("me = \"{name}\"\n[[store]]\nkind = \"amp\"\ndir = \"~/.agent-messaging\"\n");
        fs::write(home.path(".config/msgfs/config.toml"), config).unwrap();
        home
    }

    fn path(&self, below: &str) -> PathBuf {
        self.dir.path().join(below)
    }

    fn agent(&self) -> PathBuf {
        self.path(&format!(".agent-messaging/agents/{}", self.name))
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_msgfs"));
        command
            .args(args)
            .current_dir(self.path("cwd"))
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("HOME", self.dir.path())
            .env("XDG_RUNTIME_DIR", self.path("run"));
        command
    }

    fn run(&self, args: &[&str]) -> Output {
        let out = self.command(args).stdin(Stdio::null()).output().unwrap();
        let mut said = self.said.lock().unwrap();
        *said += &String::from_utf8_lossy(&out.stdout);
        *said += &String::from_utf8_lossy(&out.stderr);
        out
    }

    /// Returns the output of a command that must succeed.
    #[track_caller]
    fn ok(&self, args: &[&str]) -> String {
        let out = self.run(args);
        let text = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(out.status.success(), "{} {args:?}: {text}", self.name);
        String::from_utf8(out.stdout).unwrap()
    }

    /// Returns the error text of a command that must fail.
    #[track_caller]
    fn refused(&self, args: &[&str]) -> String {
        let out = self.run(args);
        assert!(!out.status.success(), "{} {args:?}", self.name);
        String::from_utf8_lossy(&out.stderr).into_owned()
    }

    fn ls(&self, folder: &str) -> Vec<String> {
        self.ok(&["ls", folder]).lines().map(str::to_owned).collect()
    }

    /// Returns the files of a folder that has one folder for each day, as paths in it.
    fn days(&self, folder: &str) -> Vec<String> {
        let of = |day: String| {
            let names = self.ls(&format!("{folder}/{day}"));
            names.into_iter().map(move |name| format!("{day}/{name}"))
        };
        self.ls(folder).into_iter().flat_map(of).collect()
    }

    #[track_caller]
    fn register(&self, provider: &Provider) {
        let said = self.ok(&["amp", "register", provider.name, "--api-url", &provider.api_url()]);
        assert!(
            said.contains(&format!("registered as {}@acme.{}", self.name, provider.name)),
            "{said}"
        );
    }

    fn carry(&self) -> Carrying {
        let log = fs::OpenOptions::new().create(true).append(true).open(self.path("log")).unwrap();
        let mut command = self.command(&["carry", "--all"]);
        let command = command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        Carrying(command.spawn().unwrap())
    }

    /// Returns the links as `msgfs link status --json` prints them.
    fn links(&self) -> Vec<Value> {
        let text = self.ok(&["link", "status", "--json"]);
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    fn waiting(&self) -> u64 {
        self.links().iter().filter_map(|link| link["waiting"].as_u64()).sum()
    }

    /// Returns every text that this machine wrote outside the registration files.
    fn texts(&self) -> Vec<(PathBuf, Vec<u8>)> {
        let mut out =
            vec![(PathBuf::from("output"), self.said.lock().unwrap().clone().into_bytes())];
        let mut left = vec![self.dir.path().to_owned()];
        while let Some(path) = left.pop() {
            if path.ends_with("registrations") {
            } else if path.is_dir() {
                left.extend(fs::read_dir(&path).unwrap().flatten().map(|e| e.path()));
            } else if let Ok(bytes) = fs::read(&path) {
                out.push((path, bytes));
            }
        }
        out
    }

    fn keys(&self) -> Vec<String> {
        let files = fs::read_dir(self.agent().join("registrations")).unwrap().flatten();
        let key = |path: &Path| {
            let file: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
            file["apiKey"].as_str().unwrap().to_owned()
        };
        files.map(|file| key(&file.path())).collect()
    }

    /// Asserts that no key is in the output or in a file.
    #[track_caller]
    fn keeps_its_keys(&self) {
        let keys = self.keys();
        assert!(!keys.is_empty());
        for (path, bytes) in self.texts() {
            let text = String::from_utf8_lossy(&bytes);
            assert!(!keys.iter().any(|key| text.contains(key.as_str())), "{}", path.display());
        }
    }
}

fn pair(manner: Manner) -> (Provider, Home, Home) {
    let name = if manner == Manner::Paper { "test.example" } else { "acme.aimaestro.local" };
    let provider = Provider::start(name, manner);
    // The second argument gives both homes another organisation, so that neither looks like an agent of the same
    // machine.
    let (alice, bob) = (Home::new("alice", "acme"), Home::new("bob", "acme"));
    alice.register(&provider);
    bob.register(&provider);
    (provider, alice, bob)
}

fn address(name: &str, provider: &Provider) -> String {
    format!("{name}@acme.{}", provider.name)
}

/// The messages of a multicast each know the state of all, and each fact is told once.
#[test]
fn a_warning_says_each_thing_once() {
    let (provider, alice, _bob) = pair(Manner::Paper);
    let (bob, carol) = (address("bob", &provider), address("carol", &provider));
    alice.ok(&["send", &format!("{bob},{carol}"), "to both"]);
    let note = alice.days("sent").into_iter().find(|name| name.ends_with(".warning")).unwrap();
    let note = alice.ok(&["cat", &format!("sent/{note}")]);
    for to in [&bob, &carol] {
        assert_eq!(note.matches(&format!("waits for {to}")).count(), 1, "{note}");
    }
}

#[test]
fn there_and_back_again() {
    for manner in [Manner::Paper, Manner::Deployed] {
        let (provider, alice, bob) = pair(manner);
        let to = address("bob", &provider);
        alice.ok(&["send", &to, "are the tests green?"]);
        // The message is in sent at once, with a note that it waits.
        let sent = alice.days("sent");
        assert!(sent.iter().any(|name| name.ends_with(".warning")), "{sent:?}");
        let note = sent.iter().find(|name| name.ends_with(".warning")).unwrap();
        let note = alice.ok(&["cat", &format!("sent/{note}")]);
        assert!(note.contains(&format!("waits for {to}")), "{note}");
        let states = || {
            let told: Vec<Value> = serde_json::from_str(&alice.ok(&["sent", "--json"])).unwrap();
            told.iter().map(|one| one["state"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(states(), ["waiting"]);
        {
            let _carrying = alice.carry();
            soon("it is taken", || alice.waiting() == 0);
        }
        assert_eq!(states(), ["delivered"]);
        assert!(!alice.days("sent").iter().any(|name| name.ends_with(".warning")));
        {
            let _carrying = bob.carry();
            soon("it is here", || provider.state().waiting.values().all(Vec::is_empty));
        }
        let inbox = bob.ls("inbox");
        assert_eq!(inbox.len(), 1, "{inbox:?}");
        let text = bob.ok(&["cat", &format!("inbox/{}", inbox[0])]);
        assert!(
            text.contains("are the tests green?") && text.contains("Signature: valid"),
            "{text}"
        );
        assert!(text.contains(&format!("From: {}", address("alice", &provider))), "{text}");
        bob.ok(&["reply", &inbox[0], "all of them"]);
        {
            let _carrying = bob.carry();
            soon("the answer is taken", || bob.waiting() == 0);
            let _carrying = alice.carry();
            soon("the answer is here", || provider.state().waiting.values().all(Vec::is_empty));
            // The store hears a moment later under which id the provider took the question.
            soon("the answer joins its thread", || alice.ls("threads").len() == 1);
        }
        soon("it is answered", || states() == ["answered"]);
        // Both sides show one thread.
        for home in [&alice, &bob] {
            let threads = home.ls("threads");
            assert_eq!(threads.len(), 1, "{} {threads:?}", home.name);
            let all = home.ls(&format!("threads/{}", threads[0]));
            let messages = all.iter().filter(|name| name.strip_suffix(".txt").is_some());
            assert_eq!(messages.count(), 2, "{} {all:?}", home.name);
        }
        assert!(alice.ls("rejected").is_empty() && bob.ls("rejected").is_empty());
        alice.keeps_its_keys();
        bob.keeps_its_keys();
    }
}

/// The daemon is killed at any moment and answers get lost; in the end each message is there once.
#[test]
fn killed_and_cut_again_and_again() {
    for (manner, count) in [(Manner::Paper, 100), (Manner::Deployed, 48)] {
        let (provider, alice, bob) = pair(manner);
        let to = address("bob", &provider);
        for n in 0..count {
            alice.ok(&["send", &to, &format!("message {n:03}")]);
        }
        let lost = [
            Fault::CutBefore,
            Fault::CutAfter,
            Fault::Half,
            Fault::Lies,
            Fault::Says(503, "", ""),
            Fault::Says(429, "Retry-After: 1\r\n", ""),
        ];
        for fault in lost.into_iter().cycle().take(count / 16) {
            (0..15).for_each(|_| provider.fail("/route", Fault::Fine));
            provider.fail("/route", fault);
        }
        for fault in [Fault::CutBefore, Fault::Fine, Fault::Half, Fault::Fine, Fault::CutAfter] {
            provider.fail("pending?", fault.clone());
            provider.fail("/ack", fault);
        }
        let mut random = 1u64;
        let mut until = |home: &Home, done: &dyn Fn() -> bool| {
            let start = Instant::now();
            while !done() {
                assert!(start.elapsed() < 3 * PATIENCE, "{} {manner:?}", home.name);
                let carrying = home.carry();
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                std::thread::sleep(Duration::from_millis(200 + (random >> 33) % 2500));
                drop(carrying);
            }
        };
        until(&alice, &|| alice.waiting() == 0);
        let delivered = provider.state().delivered.get(&to).cloned().unwrap_or_default();
        let signatures: BTreeSet<String> = delivered.iter().map(|(_, s)| s.clone()).collect();
        assert_eq!(signatures.len(), count, "nothing is lost");
        match manner {
            Manner::Paper => assert_eq!(delivered.len(), count, "nothing is doubled"),
            Manner::Deployed => assert!(delivered.len() >= count),
        }
        until(&bob, &|| provider.state().waiting.values().all(Vec::is_empty));
        // A last daemon finishes the work of the killed one.
        {
            let _carrying = bob.carry();
            std::thread::sleep(Duration::from_secs(2));
        }
        let inbox = bob.ls("inbox");
        assert_eq!(inbox.len(), count, "{manner:?}");
        let shown = bob.ok(&["inbox"]);
        for n in 0..count {
            assert_eq!(shown.matches(&format!("message {n:03}")).count().min(1), 1, "{n}");
        }
        let sent = alice.days("sent");
        assert_eq!(sent.len(), count, "{sent:?}");
        assert!(!sent.iter().any(|name| name.ends_with(".warning")));
        alice.keeps_its_keys();
        bob.keeps_its_keys();
    }
}

#[test]
fn what_is_refused_for_good_stays_in_sent_and_says_so() {
    let (provider, alice, _bob) = pair(Manner::Paper);
    let to = address("nobody", &provider);
    alice.ok(&["send", &to, "hello?"]);
    {
        let _carrying = alice.carry();
        soon("it is refused", || alice.links().iter().any(|link| link["refused"] == 1));
    }
    let note = alice.days("sent").into_iter().find(|name| name.ends_with(".warning")).unwrap();
    let note = alice.ok(&["cat", &format!("sent/{note}")]);
    assert!(note.contains("refused for good") && note.contains("404 not_found"), "{note}");
    let told: Vec<Value> = serde_json::from_str(&alice.ok(&["sent", "--json"])).unwrap();
    assert_eq!(told[0]["state"], "refused", "{told:?}");
    assert!(told[0]["reason"].as_str().unwrap().contains("404 not_found"), "{told:?}");
    // A sender who waits hears it at once.
    {
        let _carrying = alice.carry();
        let out = alice.run(&["send", &to, "--wait-for", "delivered", "--timeout", "60s", "again"]);
        let said = String::from_utf8_lossy(&out.stderr);
        assert!(out.status.code() == Some(1) && said.contains("404 not_found"), "{out:?}");
    }
    // A draft to an address that no link reaches is refused when it is written.
    let why = alice.refused(&["send", "x@acme.other.example", "hello?"]);
    assert!(why.contains("other.example"), "{why}");
}

/// S1360: what is given up after a try without an answer is not called refused, since the provider may have it.
#[test]
fn s1360_what_is_given_up_after_a_lost_answer_may_have_arrived() {
    for (fault, state) in
        [(Fault::CutAfter, "stored"), (Fault::Says(429, "", r#"{"error": "full"}"#), "refused")]
    {
        let (provider, alice, _bob) = pair(Manner::Paper);
        (0..50).for_each(|_| provider.fail("/route", fault.clone()));
        alice.ok(&["send", &address("bob", &provider), "x"]);
        {
            let _carrying = alice.carry();
            soon("a try fails", || {
                alice.ok(&["sent", "--json"]).contains("tried ")
                    && alice.links().iter().any(|link| link["state"] == "waiting")
            });
        }
        alice.ok(&["link", "drop", provider.name]);
        let told: Vec<Value> = serde_json::from_str(&alice.ok(&["sent", "--json"])).unwrap();
        assert_eq!(told[0]["state"], state, "{told:?}");
        let refused = u64::from(state == "refused");
        assert_eq!(alice.links()[0]["refused"], refused, "{:?}", alice.links());
        let why = told[0]["reason"].as_str().unwrap();
        let note = alice.days("sent").into_iter().find(|name| name.ends_with(".warning")).unwrap();
        let note = alice.ok(&["cat", &format!("sent/{note}")]);
        for text in [why, &note] {
            assert!(text.contains("given up by msgfs link drop"), "{text}");
            assert_eq!(text.contains("may have arrived"), state == "stored", "{text}");
        }
        assert_eq!(note.contains("refused"), state == "refused", "{note}");
    }
}

/// S1361: a question that the provider refuses ends at once, with its reason. One that somebody else can answer goes
/// on.
#[test]
fn s1361_a_question_that_was_refused_is_not_waited_for() {
    let (provider, alice, bob) = pair(Manner::Paper);
    let (nobody, to) = (address("nobody", &provider), address("bob", &provider));
    let _carrying = alice.carry();
    soon("it carries", || alice.links().iter().any(|link| link["state"] == "connected"));
    let begin = Instant::now();
    let ask = |to: &str, timeout: &str, more: &[&str]| {
        let args = [&["ask", to, "--timeout", timeout], more, &["which port?"]].concat();
        let out = alice.run(&args);
        assert_eq!(out.status.code(), Some(3), "{out:?}");
        String::from_utf8(out.stderr).unwrap()
    };
    let why = ask(&nobody, "10m", &[]);
    assert!(why.contains("the message is sent, but no answer can come"), "{why}");
    assert!(why.contains("404 not_found") && why.contains(&nobody), "{why}");
    assert!(begin.elapsed() < PATIENCE, "it waited");
    let why = ask(&format!("{nobody},{to}"), "4s", &[]);
    assert!(why.contains(&format!("no answer from {to} yet")), "{why}");
    // Nobody waits for a recipient who has answered, either.
    let _bob = bob.carry();
    std::thread::scope(|scope| {
        let asking = scope.spawn(|| ask(&format!("{nobody},{to}"), "10m", &["--all"]));
        soon("bob has both", || bob.ls("inbox").len() == 2);
        for name in bob.ls("inbox") {
            let reply = format!("inbox/{}.reply", name.trim_end_matches(".txt"));
            let mut write = bob.command(&["write", &reply]);
            let mut write = write.stdin(Stdio::piped()).spawn().unwrap();
            std::io::Write::write_all(&mut write.stdin.take().unwrap(), b"port 80\n").unwrap();
            assert!(write.wait().unwrap().success());
        }
        let why = asking.join().unwrap();
        assert!(why.contains("no answer can come") && why.contains(&nobody), "{why}");
    });
}

/// S1362, S1363: a message that nothing carries says so: no process runs, or its link is switched off.
#[test]
fn s1363_a_message_that_nothing_carries_says_why_it_waits() {
    let (provider, alice, _bob) = pair(Manner::Paper);
    alice.ok(&["send", &address("bob", &provider), "x"]);
    let told = || {
        let told: Vec<Value> = serde_json::from_str(&alice.ok(&["sent", "--json"])).unwrap();
        assert_eq!(told[0]["state"], "waiting", "{told:?}");
        told[0]["reason"].as_str().unwrap().to_owned()
    };
    assert!(told().contains("once msgfs is mounted or `msgfs carry --all` runs"), "{}", told());
    let file = alice.path(".config/msgfs/config.toml");
    let config = fs::read_to_string(&file).unwrap();
    fs::write(&file, format!("{config}[[link]]\nkind = \"amp\"\noff = true\n")).unwrap();
    assert!(told().contains("it is switched off in the configuration"), "{}", told());
    let link = alice.links().remove(0);
    assert_eq!((&link["state"], &link["waiting"]), (&json!("stopped"), &json!(1)), "{link}");
    let status = alice.ok(&["status"]);
    assert!(status.contains("stopped: it is switched off in the configuration"), "{status}");
    let why = alice.refused(&["link", "retry", provider.name]);
    assert!(why.contains("switched off") && !why.contains("not in the settings"), "{why}");
    fs::write(&file, config).unwrap();
    let status = alice.ok(&["status"]);
    assert!(
        status.contains("stopped: neither a mount") && status.contains("; 1 waiting"),
        "{status}"
    );
    let _carrying = alice.carry();
    soon("it goes", || alice.waiting() == 0);
}

#[test]
fn a_key_that_is_refused_is_told_and_mended_by_registering_anew() {
    let (provider, alice, _bob) = pair(Manner::Paper);
    provider.state().agents.iter_mut().for_each(|agent| agent.tokens.clear());
    alice.ok(&["send", &address("bob", &provider), "x"]);
    {
        let _carrying = alice.carry();
        soon("it is told", || {
            let text = alice.ok(&["link"]);
            text.contains("refuses the key") && text.contains("msgfs amp register test.example")
        });
        alice.register(&provider);
        alice.ok(&["link", "retry", "test.example"]);
    }
    let _carrying = alice.carry();
    soon("it is taken", || alice.waiting() == 0);
    alice.keeps_its_keys();
}

/// S1182: a link that was removed is stopped, and what waits for it is told.
#[test]
fn s1182_a_link_that_was_removed_is_stopped_and_tells_what_waits() {
    let (provider, alice, _bob) = pair(Manner::Paper);
    {
        let _carrying = alice.carry();
        soon("it is connected", || {
            alice.links().first().is_some_and(|link| link["state"] == "connected")
        });
    }
    provider.state().agents.iter_mut().for_each(|agent| agent.tokens.clear());
    alice.ok(&["send", &address("bob", &provider), "x"]);
    soon("it waits", || alice.waiting() == 1);
    let file = alice.agent().join(format!("registrations/{}.json", provider.name));
    fs::remove_file(file).unwrap();
    let link = alice.links().remove(0);
    assert_eq!((&link["state"], &link["waiting"]), (&json!("stopped"), &json!(1)), "{link}");
    assert!(link["why"].as_str().unwrap().contains("not in the settings any more"), "{link}");
    let why = alice.refused(&["link", "retry", provider.name]);
    assert!(why.contains("not in the settings") && !why.contains("switched off"), "{why}");
    // The message stays where it was, and a person can give it up.
    let told = || alice.ok(&["sent", "--json"]);
    assert!(told().contains("waiting") && told().contains("not in the settings"), "{}", told());
    assert!(alice.ls("rejected").is_empty());
    assert!(alice.ok(&["status"]).contains("stopped: it is not in the settings any more"));
    alice.ok(&["link", "drop", provider.name]);
    assert_eq!(alice.waiting(), 0);
    assert!(told().contains("given up by msgfs link drop"), "{}", told());
    assert!(!alice.ok(&["status"]).contains("not in the settings"), "nothing waits any more");
}

/// S408: also a running msgfs gives up what waits for a link that was removed.
#[test]
fn s408_mail_of_a_removed_link_is_given_up_by_a_running_msgfs() {
    let (provider, alice, _bob) = pair(Manner::Paper);
    let other = Provider::start("other.example", Manner::Paper);
    alice.ok(&["send", &address("bob", &provider), "x"]);
    alice.register(&other);
    // One link runs, so that `carry --all` stays. The registration of the other one is gone.
    let file = alice.agent().join(format!("registrations/{}.json", provider.name));
    fs::remove_file(file).unwrap();
    let _carrying = alice.carry();
    soon("it carries", || alice.ok(&["status"]).contains("connected since"));
    assert!(alice.ok(&["status"]).contains("stopped: it is not in the settings any more"));
    alice.ok(&["link", "drop", provider.name]);
    soon("it is given up", || alice.ok(&["sent", "--json"]).contains("given up"));
    assert_eq!(alice.waiting(), 0);
}

/// S406: after the mode or the content of a registration is mended, its link carries without a restart.
#[test]
fn s406_a_mended_registration_is_used_by_a_running_msgfs() {
    let (provider, alice, bob) = pair(Manner::Paper);
    let file = alice.agent().join(format!("registrations/{}.json", provider.name));
    let whole = fs::read(&file).unwrap();
    let mode = |mode| fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
    alice.ok(&["send", &address("bob", &provider), "before"]);
    mode(0o644);
    let carrying = alice.carry();
    soon("it is told", || {
        let status = alice.ok(&["status"]);
        status.contains("stopped: it is left out") && status.contains("chmod 600")
    });
    let why = alice.refused(&["send", &address("bob", &provider), "now"]);
    assert!(why.contains("chmod 600") && !why.contains("amp register"), "{why}");
    assert!(alice.ok(&["sent"]).contains("\twaiting\t"));
    mode(0o600);
    soon("it goes", || alice.waiting() == 0);
    assert!(!alice.ok(&["status"]).contains("note: the link"), "{}", alice.ok(&["status"]));
    alice.ok(&["send", &address("bob", &provider), "after"]);
    let _other = bob.carry();
    soon("both are there", || bob.ls("inbox").iter().filter(|n| !n.starts_with('.')).count() >= 2);
    drop(carrying);
    // A client that is killed leaves half of the file.
    fs::write(&file, &whole[..60]).unwrap();
    let _carrying = alice.carry();
    soon("it is told", || alice.ok(&["status"]).contains("stopped: it is left out"));
    assert!(alice.ls("rejected").is_empty());
    fs::write(&file, &whole).unwrap();
    soon("it carries", || alice.links().first().is_some_and(|link| link["state"] == "connected"));
}

/// S1300: a provider that names itself after another one gets no registration, and a registration with another server
/// is not replaced.
#[test]
fn s1300_a_provider_registers_only_for_itself() {
    let provider = Provider::start("test.example", Manner::Paper);
    let alice = Home::new("alice", "acme");
    let register = ["amp", "register", provider.name, "--api-url", &provider.api_url()];
    let other = r#"{"api_key": "k", "address": "alice@acme.crabmail.ai",
        "provider": {"name": "crabmail.ai"}}"#;
    provider.fail("/register", Fault::Says(201, "", other));
    let why = alice.refused(&register);
    assert!(why.contains("answers as another provider, crabmail.ai"), "{why}");
    let folder = alice.agent().join("registrations");
    assert!(!folder.join("crabmail.ai.json").exists());
    fs::create_dir_all(&folder).unwrap();
    let file = folder.join("test.example.json");
    let there = r#"{"provider": "test.example", "apiUrl": "https://api.test.example"}"#;
    fs::write(&file, there).unwrap();
    let why = alice.refused(&register);
    assert!(why.contains("another server, api.test.example") && why.contains("move"), "{why}");
    assert_eq!(fs::read_to_string(&file).unwrap(), there);
    fs::rename(&file, folder.join("test.example.json.old")).unwrap();
    alice.ok(&register);
}

#[test]
fn a_registration_that_others_can_read_is_not_used_and_told() {
    let (provider, alice, _bob) = pair(Manner::Paper);
    let file = alice.agent().join(format!("registrations/{}.json", provider.name));
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
    let why = alice.refused(&["send", &address("bob", &provider), "x"]);
    assert!(why.contains("not on this machine") || why.contains("chmod"), "{why}");
    let doctor = alice.run(&["doctor"]);
    let text = String::from_utf8_lossy(&doctor.stdout).into_owned();
    assert!(text.contains("chmod 600") && text.contains("registrations"), "{text}");
}

#[test]
fn what_came_as_no_message_is_in_rejected_and_stops_nothing() {
    let (provider, _alice, bob) = pair(Manner::Deployed);
    let me = address("bob", &provider);
    let deep =
        format!("{{\"id\":\"msg_1_deep\",\"payload\":{}{}}}", "[".repeat(200), "]".repeat(200));
    let odd = [
        ("../../x", "{\"id\":\"../../x\",\"envelope\":{},\"payload\":{}}".to_owned()),
        ("msg_1_deep", deep),
        ("msg_1_array", "[1,2]".to_owned()),
    ];
    for (id, text) in &odd {
        provider.wait_for(&me, id, text);
    }
    let good = json!({
        "id": "msg_1_good", "envelope": {"id": "msg_1_good", "from": "gateway@host-1.aimaestro.local",
            "to": "bob@host-1.aimaestro.local", "subject": "s"},
        "payload": {"type": "notification", "message": "from the dashboard"},
    });
    provider.wait_for(&me, "msg_1_good", &good.to_string());
    {
        let _carrying = bob.carry();
        soon("it is here", || provider.state().removed.contains(&"msg_1_good".to_owned()));
    }
    assert!(!provider.state().removed.iter().any(|id| id.contains('/')));
    assert_eq!(bob.ls("inbox").len(), 1);
    assert!(bob.ls("rejected").len() >= 3, "{:?}", bob.ls("rejected"));
}

/// S445: attachments that a provider keeps arrive with their message, under safe names, if they match the message. An
/// attachment that does not match, that is at another address or that never ends is withheld with a reason, and no
/// other message suffers. msgfs waits for an attachment that is away for a moment.
#[test]
fn s445_attachments_come_with_their_message() {
    let (provider, _alice, bob) = pair(Manner::Paper);
    let elsewhere = TcpListener::bind("127.0.0.2:0").unwrap();
    elsewhere.set_nonblocking(true).unwrap();
    let me = address("bob", &provider);
    let text = "what is attached\n";
    for name in ["good", "late", "long"] {
        provider.state().files.insert(name.into(), text.into());
    }
    provider.fail("/files/late", Fault::Says(503, "", "{}"));
    provider.fail("/files/late", Fault::CutAfter);
    provider.fail("/files/endless", Fault::Endless);
    let digest = hex(&Sha256::digest(text));
    let base = format!("http://127.0.0.1:{}/v1/files", provider.port);
    let other = format!("http://{}/x", elsewhere.local_addr().unwrap());
    let cases = [
        ("good", format!("{base}/good"), text.len(), digest.clone()),
        ("late", format!("{base}/late"), text.len(), digest.clone()),
        ("long", format!("{base}/long"), text.len() - 1, digest.clone()),
        ("none", format!("{base}/none"), text.len(), digest.clone()),
        ("wrong", format!("{base}/good"), text.len(), "0".repeat(64)),
        ("endless", format!("{base}/endless"), text.len(), digest.clone()),
        ("elsewhere", other, text.len(), digest.clone()),
        ("file", "file:///etc/passwd".to_owned(), text.len(), digest.clone()),
        ("huge", format!("{base}/good"), 1 << 30, digest.clone()),
    ];
    for (n, (name, url, size, digest)) in cases.iter().enumerate() {
        let message = json!({
            "id": format!("msg_{n}_{name}"),
            "envelope": {"version": "amp/0.1", "id": format!("msg_{n}_{name}"), "from": address("alice", &provider),
                "to": me, "subject": name, "priority": "normal", "timestamp": "2026-04-24T10:00:00Z"},
            "payload": {"type": "notification", "message": name, "attachments": [{
                "id": format!("att_{n}_{}", "0".repeat(16)), "filename": format!("{name}.txt"), "content_type": "text/plain",
                "size": size, "digest": format!("sha256:{digest}"), "url": url, "scan_status": "clean"}]},
        });
        provider.wait_for(&me, &format!("msg_{n}_{name}"), &message.to_string());
    }
    let carrying = bob.carry();
    soon("all but the late one are here", || provider.state().removed.len() >= cases.len() - 1);
    soon("the late one, too", || provider.state().removed.len() == cases.len());
    drop(carrying);
    let names: Vec<String> = bob.ls("inbox").into_iter().filter(|n| has_ending(n, "txt")).collect();
    assert_eq!(names.len(), cases.len(), "{names:?}");
    for name in names {
        let shown = bob.ok(&["cat", &format!("inbox/{name}")]);
        let subject =
            shown.lines().find_map(|line| line.strip_prefix("Subject: ")).unwrap().to_owned();
        let beside = format!("inbox/{}.d", name.trim_end_matches(".txt"));
        if matches!(subject.as_str(), "good" | "late") {
            assert_eq!(bob.ok(&["cat", &format!("{beside}/{subject}.txt")]), text, "{shown}");
        } else {
            assert!(shown.contains("withheld"), "{shown}");
        }
    }
    assert!(elsewhere.accept().is_err(), "nobody asked another machine");
    bob.keeps_its_keys();
}
