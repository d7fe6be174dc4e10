//! Attachments to providers, and the choice between links.

use std::collections::BTreeMap;

use super::*;

/// A mount that ends with the test.
struct Mounted<'a>(&'a Home, Child);

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        self.0.run(&["umount", "--lazy", self.0.path("mail").to_str().unwrap()]);
        let _ = self.1.kill();
        let _ = self.1.wait();
    }
}

impl Home {
    fn mount(&self) -> Mounted<'_> {
        let dir = self.path("mail");
        fs::create_dir_all(&dir).unwrap();
        let log = fs::OpenOptions::new().create(true).append(true).open(self.path("log")).unwrap();
        let mut command = self.command(&["mount", "--foreground", dir.to_str().unwrap()]);
        let command = command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        let mounted = Mounted(self, command.spawn().unwrap());
        soon("it is mounted", || dir.join("README.txt").exists());
        mounted
    }

    /// Runs a shell script in the mount and returns its output.
    fn types(&self, script: &str) -> Output {
        let mut shell = Command::new("sh");
        shell.args(["-c", script]).current_dir(self.path("mail")).output().unwrap()
    }

    /// Returns the text of each message in the inbox, with the bytes of its attachments by name.
    fn came(&self) -> Vec<(String, BTreeMap<String, String>)> {
        let names = self.ls("inbox").into_iter().filter(|name| has_ending(name, "txt"));
        let one = |name: String| {
            let text = self.ok(&["cat", &format!("inbox/{name}")]);
            let beside = format!("inbox/{}.d", name.trim_end_matches(".txt"));
            let files = if text.contains("plan") { self.ls(&beside) } else { Vec::new() };
            let read = |file: String| {
                let bytes = self.ok(&["cat", &format!("{beside}/{file}")]);
                (file, bytes)
            };
            (text, files.into_iter().map(read).collect())
        };
        names.map(one).collect()
    }

    /// Runs a carrier until the link knows what the provider takes.
    fn learns(&self, done: impl Fn() -> bool) {
        let _carrying = self.carry();
        soon("it is known what the provider takes", done);
    }
}

fn pair_with_files() -> (Provider, Home, Home) {
    let (provider, alice, bob) = pair(Manner::Paper);
    provider.state().takes = Some(1 << 20);
    (provider, alice, bob)
}

/// Returns true if the provider was asked for its limits more than so many times, and the answer is saved.
fn knows_limits(home: &Home, provider: &Provider, times: usize) -> bool {
    let asked = provider.state().log.iter().filter(|(_, path, _)| path.ends_with("/info")).count();
    let folder = format!(".local/state/msgfs/{}/links/amp/{}", home.name, provider.name);
    asked > times && home.path(&folder).join("info.json").exists()
}

/// S446: the attachments of a draft or of a composing folder travel where an AMP provider keeps attachments. They are
/// uploaded first, and the signature covers the ids that the provider gave them. The message has one name on both
/// sides.
#[test]
fn s446_files_go_along_where_the_provider_keeps_them() {
    let (provider, alice, bob) = pair_with_files();
    let to = address("bob", &provider);
    let mounted = alice.mount();
    soon("it is known what the provider takes", || knows_limits(&alice, &provider, 0));
    let script = format!(
        "mkdir outbox/{to} && printf 'one\\n' > outbox/{to}/plan.txt && printf 'two\\n' > outbox/{to}/b.md \
         && echo 'the plan' > outbox/{to}/body"
    );
    let out = alice.types(&script);
    assert!(out.status.success(), "{out:?}");
    soon("it is taken", || provider.state().delivered.contains_key(&to));
    soon("nobody waits", || alice.waiting() == 0);
    drop(mounted);
    // The signature covers the ids: the provider has checked it, and the ids are its own.
    let given: Value = serde_json::from_str(&provider.state().waiting[&to][0].1).unwrap();
    let files = given["payload"]["attachments"].as_array().unwrap().clone();
    assert!(files.iter().all(|f| provider.state().kept.contains_key(f["id"].as_str().unwrap())));
    {
        let _carrying = bob.carry();
        soon("it is here", || provider.state().waiting.values().all(Vec::is_empty));
    }
    let came = bob.came();
    let [(text, files)] = &came[..] else { panic!("{came:?}") };
    assert!(text.contains("the plan") && text.contains("Signature: valid"), "{text}");
    let files: Vec<(&str, &str)> = files.iter().map(|(n, t)| (n.as_str(), t.as_str())).collect();
    assert_eq!(files, [("b.md", "two\n"), ("plan.txt", "one\n")]);
    let sent = alice.days("sent");
    let sent: Vec<&String> = sent.iter().filter(|name| has_ending(name, "txt")).collect();
    assert_eq!(sent.len(), 1, "{sent:?}");
    let sent = alice.ok(&["cat", &format!("sent/{}", sent[0])]);
    assert!(sent.contains("plan.txt") && sent.contains("Signature: valid"), "{sent}");
    alice.keeps_its_keys();
}

/// S447: daemon and carrier are killed, and requests get lost between the attachments and the message; each message
/// arrives once with its attachments.
#[test]
fn s447_killed_and_cut_while_files_go_along() {
    let (provider, alice, bob) = pair_with_files();
    alice.learns(|| knows_limits(&alice, &provider, 0));
    let (to, count) = (address("bob", &provider), 12);
    for n in 0..count {
        let file = alice.path(&format!("cwd/plan-{n}.txt"));
        fs::write(&file, format!("plan {n}\n").repeat(n + 1)).unwrap();
        let text = format!("the plan {n:02}.");
        alice.ok(&["send", &to, "--attach", file.to_str().unwrap(), &text]);
    }
    let lost = [Fault::CutBefore, Fault::CutAfter, Fault::Half, Fault::Says(503, "", "")];
    let paths = ["/attachments/upload", "/uploads/", "/confirm", "/attachments/att_", "/route"];
    for (path, fault) in paths.iter().flat_map(|path| lost.iter().map(move |f| (path, f))) {
        provider.fail(path, Fault::Fine);
        provider.fail(path, fault.clone());
    }
    let (start, mut random) = (Instant::now(), 7u64);
    while alice.waiting() > 0 {
        assert!(start.elapsed() < 3 * PATIENCE, "{:?}", alice.links());
        let carrying = alice.carry();
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        std::thread::sleep(Duration::from_millis(100 + (random >> 33) % 1500));
        drop(carrying);
        // The process that speaks to the provider dies as well as the daemon.
        for pid in carriers(alice.dir.path()) {
            let _ = Command::new("kill").args(["-9", &pid]).status();
        }
        // Each death counts as a failure, after which a message waits longer.
        alice.ok(&["link", "retry", provider.name]);
    }
    let got = provider.state().delivered.get(&to).cloned().unwrap_or_default();
    assert_eq!(got.len(), count, "each once");
    {
        let _carrying = bob.carry();
        soon("all are here", || provider.state().waiting.values().all(Vec::is_empty));
    }
    let came = bob.came();
    assert_eq!(came.len(), count);
    for n in 0..count {
        let text = format!("the plan {n:02}.");
        let (_, files) = came.iter().find(|(shown, _)| shown.contains(&text)).unwrap();
        let expected = [(format!("plan-{n}.txt"), format!("plan {n}\n").repeat(n + 1))];
        assert_eq!(*files, BTreeMap::from(expected));
    }
    // Each complete upload was used.
    let whole = provider.state().kept.values().filter(|k| k.is_confirmed).count();
    let used = provider.state().kept.values().filter(|k| k.used_by.is_some()).count();
    assert_eq!((whole, used), (count, count), "no upload is done twice without need");
    alice.keeps_its_keys();
}

/// Returns the processes of a home that speak to providers.
fn carriers(home: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let Ok(line) = fs::read(entry.path().join("cmdline")) else { continue };
        let line = String::from_utf8_lossy(&line).into_owned();
        if line.contains("\0carry\0") && line.contains(home.to_str().unwrap()) {
            found.push(entry.file_name().to_string_lossy().into_owned());
        }
    }
    found
}

/// S448: a provider may take no attachments, may not take these, or may not have been reached yet. Then a draft with
/// attachments is refused when it is written, with a remedy, and no part of it is accepted. A text alone is sent.
#[test]
fn s448_a_provider_without_attachments_refuses_the_draft_at_once() {
    let (provider, alice, _bob) = pair(Manner::Paper);
    let to = address("bob", &provider);
    let file = alice.path("cwd/plan.txt");
    fs::write(&file, "12345678").unwrap();
    let with_file = ["send", &to, "--attach", file.to_str().unwrap(), "the plan"];
    let refused = |words: &str| {
        let why = alice.refused(&with_file);
        assert!(why.contains(words) && why.contains("put "), "{why}");
        assert_eq!((alice.waiting(), alice.ls("sent").len()), (0, 0), "nothing is promised");
    };
    refused("the provider test.example was not reached so far, so it is not known yet");
    alice.learns(|| knows_limits(&alice, &provider, 0));
    refused("the provider test.example takes no attachments");
    // The link asks the provider again after a while.
    for path in glob(alice.dir.path(), "info.json") {
        fs::remove_file(path).unwrap();
    }
    provider.state().takes = Some(7);
    alice.learns(|| knows_limits(&alice, &provider, 1));
    refused("takes files of at most 7 bytes, and one has 8");
    fs::write(&file, "1234567").unwrap();
    alice.ok(&with_file);
    alice.ok(&["send", &to, "no file"]);
    let _carrying = alice.carry();
    soon("both are taken", || {
        provider.state().delivered.get(&to).is_some_and(|all| all.len() == 2)
    });
}

/// Returns all files of this name below a folder.
fn glob(folder: &Path, name: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for path in fs::read_dir(folder).unwrap().flatten().map(|entry| entry.path()) {
        if path.is_dir() && !path.is_symlink() {
            found.extend(glob(&path, name));
        } else if path.ends_with(name) {
            found.push(path);
        }
    }
    found
}

/// S449: two registrations may fit a recipient equally. A line `Via: amp/NAME` chooses one, and the message is from my
/// address there. Without the line the draft is refused, and the error has both names. An answer goes by the link that
/// the question came by.
#[test]
fn s449_via_chooses_between_two_registrations() {
    let provider = Provider::start("test.example", Manner::Paper);
    let (alice, bob) = (Home::new("alice", "acme"), Home::new("bob", "acme"));
    alice.register(&provider);
    bob.register(&provider);
    // This is a second organisation at the same provider.
    let first = alice.agent().join("registrations/test.example.json");
    let mut file: Value = serde_json::from_slice(&fs::read(&first).unwrap()).unwrap();
    file["address"] = "alice@globex.test.example".into();
    let second = alice.agent().join("registrations/globex.json");
    fs::write(&second, file.to_string()).unwrap();
    fs::set_permissions(&second, fs::Permissions::from_mode(0o600)).unwrap();
    let to = "carol@initech.test.example";
    let why = alice.refused(&["send", to, "which one?"]);
    let says = "several links reach it: globex, test.example; choose one with a line `Via: globex`";
    assert!(why.contains(says), "{why}");
    let _mounted = alice.mount();
    for (via, from) in [
        ("amp/globex", "alice@globex.test.example"),
        ("test.example", "alice@acme.test.example"),
        ("amp/test.example", "alice@acme.test.example"),
    ] {
        let out =
            alice.types(&format!("printf 'To: {to}\\nVia: {via}\\n\\nby {via}\\n' > outbox/x"));
        assert!(out.status.success(), "{out:?}");
        let has = |name: &String| alice.ok(&["cat", &format!("sent/{name}")]);
        soon("it is in sent", || {
            let sent = alice.days("sent").into_iter().filter(|name| has_ending(name, "txt"));
            let texts: Vec<String> = sent.map(|name| has(&name)).collect();
            let mut mine = texts.iter().filter(|text| text.contains(&format!("by {via}\n")));
            mine.next().is_some_and(|text| text.contains(&format!("From: {from}")))
        });
    }
    let out = alice.types(&format!(
        "printf 'To: {to}\\nVia: amp/other\\n\\nx\\n' > outbox/y; cat outbox/y.error"
    ));
    let why = String::from_utf8_lossy(&out.stdout).into_owned();
    let says = "there is no store or link \"amp/other\"; there is amp, globex, test.example";
    assert!(why.contains(says), "{why} {out:?}");
    let out = alice.types(
        "printf 'To: x@acme.elsewhere.example\\nVia: amp/globex\\n\\nx\\n' > outbox/z; cat outbox/z.error",
    );
    let why = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(why.contains("the link globex does not reach it"), "{why}");
    // An answer is from the address that the question was sent to.
    let me = "alice@globex.test.example";
    let mail = json!({
        "id": "msg_1_asked", "envelope": {"version": "amp/0.1", "id": "msg_1_asked", "from": to, "to": me,
            "subject": "asked", "priority": "normal", "timestamp": "2026-04-24T10:00:00Z"},
        "payload": {"type": "request", "message": "which are you?"},
    });
    provider.wait_for("alice@acme.test.example", "msg_1_asked", &mail.to_string());
    soon("it is here", || !alice.ls("inbox").is_empty());
    let asked = alice.ls("inbox").remove(0);
    alice.ok(&["reply", &asked, "the other one"]);
    let sent = alice.days("sent");
    let texts = sent.iter().filter(|name| has_ending(name, "txt"));
    let mut texts = texts.map(|name| alice.ok(&["cat", &format!("sent/{name}")]));
    assert!(
        texts.any(|text| text.contains("the other one") && text.contains(&format!("From: {me}")))
    );
}
