//! Files of verified messages that are changed.

use std::fs;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use ed25519_dalek::Signer as _;
use serde_json::json;

use crate::amq::Queue;
use crate::common::agz::{Letter, Tree, put};
use crate::common::amp::{Home, Msg};
use crate::common::samp::key;
use crate::common::{Bed, Mount, soon};
use crate::ssot;

/// A store with one verified message, and the changed form that somebody without the key makes of it.
struct Case {
    bed: Bed,
    me: &'static str,
    file: PathBuf,
    /// Another path at which a message can be.
    other: PathBuf,
    good: Vec<u8>,
    forged: Vec<u8>,
    /// A file that is beside the message file as long as that is good.
    beside: Option<(PathBuf, Vec<u8>)>,
}

impl Case {
    fn new(bed: Bed, me: &'static str, file: PathBuf, other: &str, forged: String) -> Self {
        let (other, good) = (file.with_file_name(other), fs::read(&file).expect("message"));
        assert_ne!(good, forged.as_bytes());
        Self { bed, me, file, other, good, forged: forged.into(), beside: None }
    }

    fn amp() -> Self {
        let bed = Bed::new();
        let home = Home::new(&bed);
        bed.config(&home.store());
        let msg = Msg::new("s", "pay 10", 1).signed(2);
        let file = home.receive(&msg);
        let forged = Msg { signature: String::new(), ..Msg::new("s", "pay 9999", 1) }.text();
        Self::new(bed, "bar", file, "other.json", forged)
    }

    fn agentazall() -> Self {
        let bed = Bed::new();
        let tree = Tree::new(&bed);
        bed.config(&tree.store());
        let letter = |text: &str| Letter::new("alice@localhost", "s", text, 1);
        let good = letter("pay 10").signed(&key(1));
        let file = tree.receive(&good);
        let forged = letter("pay 9999").set("Message-ID", good.get("Message-ID"));
        Self::new(bed, "bar", file, "other.txt", forged.text())
    }

    /// Returns the case in which the signature of the text stays, and that of the header goes.
    fn agentazall_envelope() -> Self {
        let bed = Bed::new();
        let tree = Tree::new(&bed);
        bed.config(&tree.store());
        let good = Letter::new("alice@localhost", "s", "pay 10", 1).sealed(&key(1), &[]);
        let file = tree.receive(&good);
        let forged = good.set("Subject", "pay 9999").set("To", "eve@localhost").text();
        let is_kept = |line: &&str| !line.starts_with("Signature-V2: ");
        let forged: Vec<&str> = forged.split('\n').filter(is_kept).collect();
        Self::new(bed, "bar", file, "other.txt", forged.join("\n"))
    }

    /// Returns the case in which a text is added to the signed one.
    fn agentazall_grown() -> Self {
        let mut case = Self::agentazall();
        case.forged = [case.good.as_slice(), b"\npay 9999"].concat();
        case
    }

    fn amq() -> Self {
        let case = Self::amq_with_own_copy();
        fs::remove_dir_all(case.bed.path("queue/collab/agents/alice/outbox/sent"))
            .expect("the writer's copy");
        case
    }

    /// Returns the case in which the writer's own copy is still there.
    fn amq_with_own_copy() -> Self {
        let bed = Bed::new();
        let queue = Queue::new(&bed, &["alice", "bob"]);
        bed.config(&queue.store());
        let out = bed.msgfs_out(&["--me", "alice", "send", "bob", "pay 10"]);
        assert!(out.ok(), "{out:?}");
        let new = queue.root.join("agents/bob/inbox/new");
        let file =
            fs::read_dir(new).expect("new/").next().expect("a message").expect("entry").path();
        let text = fs::read_to_string(&file).expect("message");
        let unsigned = |line: &&str| !line.contains("\"pub\":") && !line.contains("\"sig\":");
        let lines: Vec<&str> = text.lines().filter(unsigned).collect();
        let forged = lines.join("\n").replace(",\n}", "\n}").replace("pay 10", "pay 9999") + "\n";
        Self::new(bed, "bob", file, "other.md", forged)
    }

    fn ssot() -> Self {
        let bed = ssot::bed();
        let mut payload = ssot::payload("task_dispatch");
        payload["description"] = json!("pay 10");
        let record =
            ssot::record("task_dispatch", "coordinator", "executor", 1_777_052_523_000, &payload);
        let file = ssot::deliver(&bed, &record);
        let good = fs::read(&file).expect("record");
        let signed = [b"ssot-sig-v1\n", good.as_slice()].concat();
        let sig = json!({
            "pub": BASE64.encode(key(1).verifying_key().as_bytes()),
            "sig": BASE64.encode(key(1).sign(&signed).to_bytes()),
        });
        let sig = (file.with_extension("sig"), format!("{sig}\n").into_bytes());
        put(&sig.0, &sig.1);
        let forged = String::from_utf8(good).expect("text").replace("pay 10", "pay 9999");
        Self { beside: Some(sig), ..Self::new(bed, "executor", file, "other.json", forged) }
    }

    fn all() -> [Self; 4] {
        [Self::amp(), Self::agentazall(), Self::amq(), Self::ssot()]
    }

    /// Overwrites the file in place and restores its time.
    fn overwrite(&self, bytes: &[u8]) {
        let time = fs::metadata(&self.file).expect("file").modified().expect("time");
        fs::write(&self.file, bytes).expect("overwrite");
        let file = fs::File::options().write(true).open(&self.file).expect("file");
        file.set_modified(time).expect("time");
    }

    /// Puts a file in its place by a rename.
    fn replace(&self, bytes: &[u8]) {
        self.place(&self.file, bytes);
    }

    /// Puts a file at a path by a rename, so that nobody reads half of it.
    fn place(&self, path: &Path, bytes: &[u8]) {
        let aside = self.bed.path("aside");
        fs::write(&aside, bytes).expect("write");
        fs::rename(&aside, path).expect("rename");
    }

    fn forge(&self, put: impl Fn(&Self, &[u8])) {
        if let Some((path, _)) = &self.beside {
            fs::remove_file(path).expect("the signature");
        }
        put(self, &self.forged);
    }

    fn restore(&self) {
        if let Some((path, bytes)) = &self.beside {
            put(path, bytes);
        }
        self.replace(&self.good);
    }

    fn mount(&self) -> Mount {
        self.bed.mount(self.me)
    }

    /// Unmounts, deletes the cache, and mounts again.
    fn without_cache(&self, m: Mount) -> Mount {
        m.umount();
        drop(fs::remove_dir_all(self.bed.path("cache")));
        self.mount()
    }
}

/// Returns the `Signature:` of the only message to me, and whether its text and whether the changed text is shown
/// anywhere.
fn shown(m: &Mount) -> (String, bool, bool) {
    let text = m.sh("cat $(find archive threads transcripts -type f) < /dev/null").stdout;
    let signature = m.ok("grep -rh ^Signature: archive || true");
    let kind = signature.split(' ').nth(1).unwrap_or_default().trim().to_owned();
    // An id or a key may have these digits, too.
    let changed = text.contains("pay 9999");
    (kind, text.contains("pay 10\n") || text.contains("\"pay 10\""), changed)
}

#[track_caller]
fn is_verified(m: &Mount, what: &Path) {
    soon(&format!("{} verified", what.display()), || shown(m) == ("valid".into(), true, false));
    assert_eq!(m.ls("rejected"), [""; 0], "{}", what.display());
}

#[track_caller]
fn is_refused(m: &Mount, what: &Path) {
    soon(&format!("{} refused", what.display()), || {
        shown(m) == (String::new(), false, false) && m.ls("rejected").len() == 1
    });
    let text = m.ok("cat rejected/*");
    assert!(text.contains("changed after it was verified") && text.contains("pay 9999"), "{text}");
}

/// S570: a file that replaces a verified message under its id is refused, however it got there, also after a
/// remount and without the cache. The message itself is shown again when it is back.
#[test]
fn s570_changed_after_it_was_verified() {
    for case in Case::all() {
        let file = &case.file;
        let m = case.mount();
        is_verified(&m, file);
        case.forge(Case::overwrite);
        is_refused(&m, file);
        m.umount();
        let m = case.mount();
        is_refused(&m, file);
        m.umount();
        // A read-only mount does not show it either.
        fs::remove_dir_all(case.bed.path("cache")).expect("cache");
        let m = case.bed.mount_at(&case.bed.path("looks"), case.me, &["--read-only"]);
        is_refused(&m, file);
        let m = case.without_cache(m);
        is_refused(&m, file);
        case.restore();
        is_verified(&m, file);
        case.forge(Case::replace);
        is_refused(&m, file);
        case.restore();
        is_verified(&m, file);
        let m = case.without_cache(m);
        is_verified(&m, file);
        m.umount();
        case.forge(Case::replace);
        let m = case.mount();
        is_refused(&m, file);
    }
}

/// Forges a case in place and restores it, mounted, after a remount and without the cache.
fn forge_and_restore(case: &Case) {
    let file = &case.file;
    let m = case.mount();
    is_verified(&m, file);
    case.forge(Case::overwrite);
    is_refused(&m, file);
    m.umount();
    let m = case.mount();
    is_refused(&m, file);
    let m = case.without_cache(m);
    is_refused(&m, file);
    case.restore();
    is_verified(&m, file);
    let m = case.without_cache(m);
    is_verified(&m, file);
    m.umount();
    case.forge(Case::replace);
    let m = case.mount();
    is_refused(&m, file);
    m.umount();
}

/// S1270: a letter whose `Signature-V2` is gone is other content, though the signature of its text still verifies. A
/// mark is none.
#[test]
fn s1270_without_the_signature_of_its_header() {
    let case = Case::agentazall_envelope();
    forge_and_restore(&case);
    case.restore();
    let m = case.mount();
    is_verified(&m, &case.file);
    let read = String::from_utf8_lossy(&case.good).replace("Status: new", "Status: read");
    case.overwrite(read.as_bytes());
    soon("it is read", || m.ls("inbox").is_empty());
    is_verified(&m, &case.file);
}

/// S1271: a letter with a valid signature that grew is other content, also if its file keeps its time.
#[test]
fn s1271_grown_after_it_was_verified() {
    forge_and_restore(&Case::agentazall_grown());
}

/// S570: it makes no difference if the file was away or broken in between.
#[test]
fn s570_away_in_between() {
    for case in Case::all() {
        let m = case.mount();
        is_verified(&m, &case.file);
        fs::remove_file(&case.file).expect("remove");
        soon("it is gone", || m.ls("archive").is_empty());
        case.forge(Case::replace);
        is_refused(&m, &case.file);
    }
}

/// S570: a task record whose signature file is gone says so, and no other record takes its place after that.
#[test]
fn s570_signature_file_gone() {
    let case = Case::ssot();
    let m = case.mount();
    is_verified(&m, &case.file);
    let (sig, _) = case.beside.as_ref().expect("a signature");
    fs::remove_file(sig).expect("remove");
    soon("it is missed", || shown(&m) == ("missing".into(), true, false));
    let m = case.without_cache(m);
    assert_eq!(m.ls("rejected"), [""; 0]);
    case.overwrite(&case.forged);
    is_refused(&m, &case.file);
    case.restore();
    is_verified(&m, &case.file);
}

/// S570: a task record that was changed is in `errors.log`, and counts for nothing.
#[test]
fn s570_errors_log() {
    let case = Case::ssot();
    let m = case.mount();
    is_verified(&m, &case.file);
    case.forge(Case::overwrite);
    is_refused(&m, &case.file);
    let log = || fs::read_to_string(case.bed.path("ssot/errors.log")).unwrap_or_default();
    soon("errors.log", || log().lines().count() == 1);
    assert!(log().contains("\"rules\": [\"signature\"]"), "{}", log());
    m.umount();
    case.mount().umount();
    assert_eq!(log().lines().count(), 1, "once is enough");
}

/// S570: a file with that id at another path is another message.
#[test]
fn s570_another_path_is_another_message() {
    for case in [Case::amp(), Case::agentazall(), Case::amq()] {
        let m = case.mount();
        is_verified(&m, &case.file);
        case.place(&case.other, &case.forged);
        soon("both are shown", || m.ok("grep -rl pay archive | wc -l").trim() == "2");
        assert_eq!(m.ls("rejected"), [""; 0]);
        let m = case.without_cache(m);
        assert_eq!(m.ls("rejected"), [""; 0]);
        assert!(m.ok("grep -rh ^Signature: archive").contains("valid"));
    }
}

/// S980: the writer's own copy does not bring a message back whose file in my mailbox was changed. Only a conversation
/// that I take part in shows it. The cache makes no difference.
#[test]
fn s980_the_copy_of_the_writer() {
    let case = Case::amq_with_own_copy();
    let m = case.mount();
    is_verified(&m, &case.file);
    case.forge(Case::overwrite);
    is_refused(&m, &case.file);
    let m = case.without_cache(m);
    is_refused(&m, &case.file);
    let out = case.bed.msgfs_out(&["--me", "alice", "send", "bob", "pay 20"]);
    assert!(out.ok(), "{out:?}");
    let view = |m: &Mount| {
        m.ok("find archive threads rejected -type f | sort; grep -rh ^pay archive threads | sort")
    };
    soon("a second message", || m.ls("inbox").len() == 1);
    let shown = view(&m);
    assert_eq!(shown.matches("pay 10\n").count(), 1, "in the conversation only: {shown}");
    let m = case.without_cache(m);
    assert_eq!(view(&m), shown);
    case.restore();
    soon("it is back", || m.ls("inbox").len() == 2 && m.ls("rejected").is_empty());
    let restored = view(&m);
    fs::remove_file(&case.file).expect("remove");
    soon("it is gone from my mailbox", || view(&m).matches("pay 10\n").count() == 1);
    assert_ne!(view(&m), restored);
    let gone = view(&m);
    let m = case.without_cache(m);
    assert_eq!(view(&m), gone);
}
