//! The outbox over two stores: SAMP in a folder, and one in memory that can do all that SAMP cannot.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::*;
use crate::identity::{KeyError, KeyPair, Keyring, SignerRegistry};
use crate::model::{PublicKey, Seed, Unsigned};
use crate::store::testing::{Folder, Letter, Memory};
use crate::store::{Kind, Signer as _, Store, StoreError, StoreSpec};

const ME: &str = "me@acme.crabmail.ai";
const BOB: &str = "bob@acme.crabmail.ai";
const SEED: [u8; 32] = [7; 32];

/// The folders, and the store that outlives a process.
struct Bed {
    root: tempfile::TempDir,
    memory: Arc<Memory>,
    groups: RecipientGroups,
}

/// Returns a store of names at providers.
fn memory(folder: Folder) -> Arc<Memory> {
    let folder = Arc::new(Mutex::new(Folder { providers: true, ..folder }));
    Arc::new(Memory::new("amp", ME, &folder))
}

impl Bed {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join("state")).unwrap();
        Self { root, memory: memory(Folder::default()), groups: RecipientGroups::new() }
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.root.path().join(name)
    }

    fn open(&self) -> Arc<Outbox> {
        self.open_as(Ok(Seed::new(SEED)))
    }

    fn open_as(&self, mine: Result<Seed, &'static str>) -> Arc<Outbox> {
        std::fs::create_dir_all(self.path("samp")).unwrap();
        let samp = crate::store::open(&StoreSpec {
            may_create: true,
            name: "samp".into(),
            kind: Kind::Samp,
            dir: self.path("samp"),
            me: "me".into(),
            ..StoreSpec::default()
        });
        let memory: Arc<dyn Store> = Arc::clone(&self.memory) as Arc<dyn Store>;
        memory.reset_cursors();
        let state = self.path("state");
        let settings = crate::index::IndexSettings {
            marks: state.join("marks"),
            snapshot: state.join("snapshot"),
            map: true,
            unsigned: Unsigned::Accept,
            read_only: true,
            my_keys: Vec::new(),
        };
        let keyring = Arc::new(Keyring::open(&state.join("keyring.json")).unwrap());
        let stores = vec![samp.unwrap(), memory];
        let index = Index::open(stores, Arc::clone(&keyring), settings, &mut |_, _| {}).unwrap();
        let settings = OutboxSettings {
            durability: Durability::None,
            max_message: 1 << 20,
            unknown_recipient: UnknownRecipient::Accept,
            groups: self.groups.clone(),
        };
        let used = SignerRegistry::open(&state.join("signers.json"), false);
        let own = move |_: &SignerRegistry| {
            let wrong = |why: &str| KeyError::Corrupt("key".into(), why.to_owned());
            mine.clone().map_err(wrong)
        };
        let keys = Arc::new(SigningKeys::new(own, keyring, used));
        Outbox::open(&state, Arc::new(index), keys, settings).unwrap()
    }

    fn copies(&self) -> usize {
        std::fs::read_dir(self.path("state/attachments")).map_or(0, Iterator::count)
    }

    fn file(&self, name: &str, bytes: &[u8]) -> String {
        std::fs::write(self.path(name), bytes).unwrap();
        self.path(name).to_str().unwrap().to_owned()
    }

    fn samp_log(&self) -> String {
        std::fs::read_to_string(self.path("samp/log-me.jsonl")).unwrap_or_default()
    }
}

/// Writes a draft and closes it.
fn send_as(
    outbox: &Outbox,
    name: &str,
    target: DraftTarget,
    text: &str,
) -> Result<(), OutboxError> {
    let id = outbox.start_draft(name, target, true)?;
    let written = outbox.write(id, Some(0), text.as_bytes());
    let closed = written.and_then(|()| outbox.flush(id, true));
    outbox.release(id);
    outbox.sender().wait_until_appended(Duration::from_secs(5));
    closed
}

/// Returns the key of a draft of this name in `outbox/`.
fn of(name: &str) -> (String, DraftTarget) {
    (name.to_owned(), DraftTarget::Outbox)
}

fn send(outbox: &Outbox, name: &str, text: &str) -> Result<(), OutboxError> {
    send_as(outbox, name, DraftTarget::Outbox, text)
}

fn refused(outbox: &Outbox, name: &str, text: &str) -> String {
    send(outbox, name, text).expect_err(text).to_string()
}

fn meaning(e: &OutboxError) -> &OutboxError {
    match e {
        OutboxError::Already(e) => meaning(e),
        other => other,
    }
}

fn last(bed: &Bed) -> Letter {
    bed.memory.sent().pop().unwrap()
}

fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(5);
    while !done() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_recipient_goes_where_its_address_belongs() {
    let bed = Bed::new();
    let outbox = bed.open();
    send(&outbox, BOB, "to amp\n").unwrap();
    assert_eq!(last(&bed).message.to, [BOB]);
    send(&outbox, "bob+x@acme.crabmail.ai.txt", "plus\n").unwrap();
    assert_eq!(last(&bed).message.to, ["bob+x@acme.crabmail.ai"]);
    // A bare name that nobody knows is first taken for an alias.
    send(&outbox, "carol", "to samp\n").unwrap();
    assert!(bed.samp_log().contains("to samp"));
    // The other store knows these bare names, in any of their spellings.
    send(&outbox, "agent", "registered\n").unwrap();
    send(&outbox, "bob", "written to before\n").unwrap();
    assert_eq!((bed.memory.sent().len(), bed.samp_log().lines().count()), (4, 1));
    // Both stores know this name: the writer has to choose.
    send(&outbox, "x", "To: bob\nVia: samp\n\nfirst\n").unwrap();
    let text = refused(&outbox, "bob", "which?\n");
    assert!(text.contains("  Via: samp\n  Via: amp"), "{text}");
    send(&outbox, "bob", "Via: amp\n\nthat\n").unwrap();
    assert_eq!(last(&bed).message.body, "that");
}

#[test]
fn what_is_no_address_is_told_with_the_grammars() {
    let bed = Bed::new();
    let outbox = bed.open();
    let text = outbox.start_draft("a b!", DraftTarget::Outbox, true).unwrap_err().to_string();
    for words in ["(samp, amp)", "name in SAMP", "NAME@TENANT.PROVIDER"] {
        assert!(text.contains(words), "{text}");
    }
    let e = send(&outbox, "x", "To: bob@nowhere\n\nhi\n").unwrap_err();
    assert!(matches!(meaning(&e), OutboxError::Invalid(_)), "{e}");
    assert_eq!(outbox.find_entry("x.error").map(|l| l.is_note), Some(true), "the draft is kept");
}

#[test]
fn to_and_cc_stay_apart_and_nobody_gets_it_twice() {
    let bed = Bed::new();
    let outbox = bed.open();
    let text =
        format!("To: {BOB}, carol\nCc: BOB@ACME.crabmail.ai, dan@acme.crabmail.ai, erin\n\nhi\n");
    send(&outbox, "x", &text).unwrap();
    let letter = last(&bed);
    assert_eq!(letter.message.to, [BOB]);
    assert_eq!(letter.message.cc, ["dan@acme.crabmail.ai"]);
    let log = bed.samp_log();
    assert_eq!(log.lines().count(), 2, "{log}");
    assert!(log.contains("carol") && log.contains("erin"));
    // A recipient who would be alone with a copy in a store becomes the recipient there.
    send(&outbox, "x", &format!("To: carol\nCc: {BOB}\n\nhi\n")).unwrap();
    assert_eq!((last(&bed).message.to, last(&bed).message.cc.len()), (vec![BOB.to_owned()], 0));
}

#[test]
fn a_retry_under_a_key_reaches_only_who_is_missing() {
    let bed = Bed::new();
    let outbox = bed.open();
    let draft = |to: &str, text: &str| format!("To: {to}\nIdempotency-Key: k\n\n{text}\n");
    send(&outbox, "x", &draft(&format!("{BOB}, dan@acme.crabmail.ai"), "hi")).unwrap();
    assert_eq!(bed.memory.sent().len(), 1);
    send(&outbox, "x", &draft("Bob@ACME.crabmail.ai", "hi")).unwrap();
    assert_eq!(bed.memory.sent().len(), 1, "the same in another spelling");
    send(&outbox, "x", &draft("dan@acme.crabmail.ai, eve@acme.crabmail.ai", "hi")).unwrap();
    assert_eq!(last(&bed).message.to, ["eve@acme.crabmail.ai"]);
    let text = refused(&outbox, "x", &draft(BOB, "other"));
    assert!(text.contains("another text"), "{text}");
    // Recipients in Cc count as well, also in the next process.
    let cc = format!("To: {BOB}\nCc: fay@acme.crabmail.ai\nIdempotency-Key: k2\n\nhi\n");
    send(&outbox, "x", &cc).unwrap();
    drop(outbox);
    let outbox = bed.open();
    send(&outbox, "fay@acme.crabmail.ai", "Idempotency-Key: k2\n\nhi\n").unwrap();
    assert_eq!(bed.memory.sent().len(), 3);
}

#[test]
fn a_retry_does_not_need_the_files_again() {
    let bed = Bed::new();
    let outbox = bed.open();
    let path = bed.file("plan", b"the plan");
    let text = format!("Attach: {path}\nIdempotency-Key: k\n\nsee file\n");
    send(&outbox, BOB, &text).unwrap();
    std::fs::remove_file(&path).unwrap();
    // The draft is not checked early, because it comes in one piece at the close.
    let id = outbox.start_draft(".x", DraftTarget::Outbox, true).unwrap();
    outbox.write(id, None, text.as_bytes()).unwrap();
    outbox.release(id);
    outbox.rename_draft(&of(".x"), &of(BOB), true).unwrap();
    outbox.sender().wait_until_appended(Duration::from_secs(5));
    assert_eq!(bed.memory.sent().len(), 1);
}

#[test]
fn a_reply_goes_to_the_writer_with_the_message_it_answers() {
    let bed = Bed::new();
    bed.memory.receive(BOB, &[ME], "m1", 10, None);
    bed.memory.receive("alias@of.me", &["dan@acme.crabmail.ai", ME], "m2", 20, None);
    bed.memory.receive(ME, &[ME], "m3", 30, None);
    bed.memory.receive("", &[ME], "m4", 40, None);
    let outbox = bed.open();
    let reply = |from: &str, id: &str| DraftTarget::Reply {
        store: "amp".into(),
        from: from.into(),
        id: id.into(),
    };
    send_as(&outbox, "m.reply", reply(BOB, "m1"), "yes\n").unwrap();
    let letter = last(&bed);
    assert_eq!(letter.message.to, [BOB]);
    assert_eq!(letter.message.in_reply_to.as_deref(), Some("m1"));
    assert_eq!(letter.message.thread.as_deref(), Some("m1"));
    assert_eq!(letter.parent.as_deref(), Some("about m1"));
    // An answer to my own message under another of my addresses goes to its recipients.
    send_as(&outbox, "m.reply", reply("alias@of.me", "m2"), "more\n").unwrap();
    assert_eq!(last(&bed).message.to, ["dan@acme.crabmail.ai", ME]);
    send_as(&outbox, "m.reply", reply(ME, "m3"), "note to self\n").unwrap();
    assert_eq!(last(&bed).message.to, [ME]);
    let e = send_as(&outbox, "m.reply", reply("", "m4"), "whom?\n").unwrap_err();
    assert!(matches!(meaning(&e), OutboxError::NoRecipient(t) if t.contains("names no sender")));
    // By header, from outbox/: the recipient is the name, and the parent is found.
    send(&outbox, "dan@acme.crabmail.ai", "In-Reply-To: <m1@amp>\n\nfyi\n").unwrap();
    let letter = last(&bed);
    assert_eq!(letter.message.to, ["dan@acme.crabmail.ai"]);
    assert_eq!(
        (letter.message.in_reply_to.as_deref(), letter.parent.as_deref()),
        (Some("m1"), Some("about m1"))
    );
}

#[test]
fn a_thread_of_links_is_answered_at_its_newest_message() {
    let bed = Bed::new();
    bed.memory.receive(BOB, &[ME], "root", 10, None);
    let outbox = bed.open();
    send(&outbox, BOB, "Thread: root\n\none\n").unwrap();
    let letter = last(&bed);
    assert_eq!(
        (letter.message.in_reply_to.as_deref(), letter.parent.as_deref()),
        (Some("root"), Some("about root"))
    );
    // That message is in the thread now, and is the newest.
    send(&outbox, BOB, "Thread: root\n\ntwo\n").unwrap();
    assert_eq!(last(&bed).message.in_reply_to.as_deref(), Some(letter.message.id.as_str()));
    send(&outbox, BOB, "Thread: root\nIn-Reply-To: <root@amp>\n\nthree\n").unwrap();
    assert_eq!(last(&bed).message.in_reply_to.as_deref(), Some("root"), "a header beats it");
    send(&outbox, BOB, "Thread: new\n\nfour\n").unwrap();
    assert_eq!((last(&bed).message.in_reply_to, last(&bed).parent), (None, None));
    // Ids of one store mean nothing in another.
    let target = DraftTarget::Thread { store: "amp".into(), id: "root".into() };
    send_as(&outbox, "x", target, "To: carol\nVia: samp\n\nelsewhere\n").unwrap();
    let log = bed.samp_log();
    assert!(log.contains("elsewhere") && !log.contains("\"re\""), "{log}");
    // SAMP has thread ids, so the header adds nothing else there.
    send(&outbox, "carol", "Thread: root\n\nsamp\n").unwrap();
    assert!(!bed.samp_log().contains("\"re\""));
}

#[test]
fn a_tie_is_one_of_milliseconds_where_a_store_has_them() {
    let bed = Bed::new();
    bed.memory.receive(BOB, &[ME], "a", 10, None);
    bed.memory.receive("dan@acme.crabmail.ai", &[ME], "b", 10, Some("a"));
    for n in 0..2 {
        bed.memory.folder.lock().change(n, |letter| {
            letter.message.thread = Some("t".into());
            letter.message.time = letter.message.time.plus_millis(i64::from(n));
        });
    }
    let outbox = bed.open();
    let target = || DraftTarget::Thread { store: "amp".into(), id: "t".into() };
    send_as(&outbox, "x", target(), "hi\n").unwrap();
    assert_eq!(last(&bed).message.to, ["dan@acme.crabmail.ai"]);
    drop(outbox);
    for n in 0..2 {
        bed.memory.folder.lock().change(n, |l| l.message.time = Timestamp::from_secs(10));
    }
    let outbox = bed.open();
    let e = send_as(&outbox, "x", target(), "hi\n").unwrap_err().to_string();
    assert!(e.contains("same moment") && e.contains("bob@") && e.contains("dan@"), "{e}");
    for (line, to, id) in [
        ("To: bob", "bob", "a"),
        ("To: dan@acme.crabmail.ai", "dan@acme.crabmail.ai", "b"),
        ("In-Reply-To: <a@amp>", BOB, "a"),
    ] {
        send_as(&outbox, "x", target(), &format!("{line}\n\nhi\n")).unwrap();
        let sent = last(&bed).message;
        assert_eq!((sent.to, sent.in_reply_to.as_deref()), (vec![to.to_owned()], Some(id)));
    }
}

#[test]
fn files_go_along_and_their_copies_go_when_it_is_sent() {
    let bed = Bed::new();
    let outbox = bed.open();
    let (a, b) = (bed.file("plan.pdf", b"the plan"), bed.file("empty", b""));
    let id = outbox.start_draft(BOB, DraftTarget::Outbox, true).unwrap();
    let text = format!("Attach: {a}\nAttach: {b}\n\nsee files\n");
    outbox.write(id, Some(0), text.as_bytes()).unwrap();
    outbox.flush(id, true).unwrap();
    assert_eq!(bed.copies(), 1);
    // A later close with more text replaces the copies; the file may have changed.
    std::fs::write(&a, "the plan, again").unwrap();
    outbox.write(id, None, b"more\n").unwrap();
    outbox.flush(id, true).unwrap();
    assert_eq!(bed.copies(), 1);
    std::fs::remove_file(&a).unwrap();
    assert!(outbox.release(id));
    outbox.sender().wait_until_appended(Duration::from_secs(5));
    let letter = last(&bed);
    assert_eq!(letter.files, [b"the plan, again".to_vec(), Vec::new()]);
    let names: Vec<&str> = letter.message.attachments.iter().map(|a| a.name.as_str()).collect();
    assert_eq!(
        (names, letter.message.body.as_str()),
        (vec!["plan.pdf", "empty"], "see files\nmore")
    );
    assert_eq!(bed.copies(), 0);
}

#[test]
fn files_that_cannot_go_are_refused_before_they_are_copied() {
    let bed = Bed::new();
    let outbox = bed.open();
    let (small, large) = (bed.file("small", b"x"), bed.file("large", &[0; 1001]));
    std::fs::create_dir(bed.path("sub")).unwrap();
    let namesake = bed.file("sub/small", b"y");
    for (lines, words) in [
        (vec!["/no/such/file"], "does not exist"),
        (vec!["/dev/null"], "is a device"),
        (vec!["/"], "name of a file"),
        (vec![small.as_str(), namesake.as_str()], "the same name"),
        (vec![large.as_str()], "large is too large"),
    ] {
        let header = format!("Attach: {}\n", lines.join("\nAttach: "));
        // The write is refused already: a shell does not look at close.
        let id = outbox.start_draft(BOB, DraftTarget::Outbox, true).unwrap();
        let e = outbox.write(id, None, format!("{header}\nhi\n").as_bytes()).unwrap_err();
        assert!(e.to_string().contains(words), "{e}");
        let large = words.contains("too large");
        assert_eq!(matches!(meaning(&e), OutboxError::Store(StoreError::TooLarge(_))), large);
        outbox.release(id);
        assert_eq!(bed.copies(), 0);
    }
    let huge = bed.file("huge", &vec![0; 800_000]);
    let text = refused(&outbox, "carol", &format!("Attach: {huge}\n\ntoo large for samp\n"));
    assert!(text.contains("1047552 bytes") && text.contains("Via: STORE"), "{text}");
    assert_eq!((bed.memory.sent().len(), bed.samp_log().as_str()), (0, ""));
}

#[test]
fn a_retry_with_files_is_sent_once_in_samp() {
    let bed = Bed::new();
    let outbox = bed.open();
    let plan = bed.file("plan", b"x");
    let draft = format!("Attach: {plan}\nIdempotency-Key: k\n\nthe plan\n");
    send(&outbox, "carol", &draft).unwrap();
    send(&outbox, "carol", &draft).unwrap();
    assert_eq!(bed.samp_log().lines().count(), 1);
    assert!(bed.samp_log().contains(r"the plan\n\n[attached: plan (1 bytes)]"));
    assert_eq!(bed.copies(), 0);
    let other = refused(&outbox, "carol", &draft.replace("the plan", "another"));
    assert!(other.contains("was used for another text"), "{other}");
}

#[test]
fn what_a_close_refused_is_sent_only_when_it_is_tried_again() {
    let bed = Bed::new();
    let outbox = bed.open();
    // Other processes than the opener learn of a fault as well: no further text mends it.
    for by_opener in [true, false] {
        let start = || {
            bed.memory.folder.lock().full = true;
            let id = outbox.start_draft(BOB, DraftTarget::Outbox, true).unwrap();
            outbox.write(id, Some(0), b"hi\n").unwrap();
            let e = outbox.flush(id, by_opener).unwrap_err();
            assert!(e.to_string().contains("No space"), "{e}");
            bed.memory.folder.lock().full = false;
            id
        };
        let sent = bed.memory.sent().len();
        let id = start();
        outbox.flush(id, true).unwrap_err();
        assert!(!outbox.release(id) && outbox.find_entry(&format!("{BOB}.error")).is_some());
        outbox.sender().wait_until_appended(Duration::from_secs(5));
        assert_eq!(bed.memory.sent().len(), sent);
        outbox.rename_draft(&of(BOB), &of(&format!("{BOB}.txt")), true).unwrap();
        let id = start();
        outbox.write(id, None, b"more\n").unwrap();
        outbox.flush(id, by_opener).unwrap();
        assert!(outbox.release(id));
        let id = start();
        outbox.rename_draft(&of(BOB), &of(&format!("{BOB}.txt")), true).unwrap();
        assert!(outbox.release(id));
        outbox.sender().wait_until_appended(Duration::from_secs(5));
        assert_eq!(bed.memory.sent().len(), sent + 3);
        assert!(outbox.list_entries().is_empty(), "{:?}", outbox.list_entries());
    }
}

#[test]
fn a_writer_that_was_killed_has_sent_nothing() {
    let bed = Bed::new();
    let outbox = bed.open();
    let id = outbox.start_draft(BOB, DraftTarget::Outbox, true).unwrap();
    outbox.write(id, None, b"half ").unwrap();
    outbox.flush(id, false).unwrap();
    outbox.refuse_interrupted(id, 9);
    outbox.flush(id, true).unwrap_err();
    // Another writer goes on: then the message has the text of all of them.
    outbox.write(id, None, b"and half\n").unwrap();
    outbox.flush(id, true).unwrap();
    assert!(outbox.release(id));
    outbox.sender().wait_until_appended(Duration::from_secs(5));
    let id = outbox.start_draft(BOB, DraftTarget::Outbox, true).unwrap();
    outbox.write(id, None, b"half").unwrap();
    outbox.flush(id, true).unwrap();
    outbox.refuse_interrupted(id, 15);
    assert!(outbox.context.spool.pending().is_empty(), "the next process must not send it either");
    assert!(!outbox.release(id));
    outbox.sender().wait_until_appended(Duration::from_secs(5));
    let why = outbox.read_text(&format!("{BOB}.error"), &DraftTarget::Outbox).unwrap();
    let why = String::from_utf8_lossy(&why).into_owned();
    assert!(why.contains("signal 15") && why.contains(&format!("mv outbox/{BOB} ")), "{why}");
    // Nothing was written, and that is the reason for not sending.
    let id = outbox.start_draft("carol", DraftTarget::Outbox, true).unwrap();
    outbox.refuse_interrupted(id, 15);
    outbox.flush(id, true).unwrap();
    outbox.release(id);
    let why = outbox.read_text("carol.error", &DraftTarget::Outbox).unwrap();
    assert!(String::from_utf8_lossy(&why).contains("the text is empty"));
    drop(outbox);
    let outbox = bed.open();
    assert_eq!(bed.memory.sent().len(), 1, "neither does the next process send it");
    assert_eq!(last(&bed).message.body, "half and half");
    outbox.rename_draft(&of(BOB), &of(&format!("{BOB}.txt")), true).unwrap();
    outbox.sender().wait_until_appended(Duration::from_secs(5));
    assert_eq!(last(&bed).message.body, "half");
}

#[test]
fn a_draft_that_is_given_up_leaves_no_copies() {
    let bed = Bed::new();
    let outbox = bed.open();
    let path = bed.file("f", b"x");
    let text = format!("Attach: {path}\n\nhi\n");
    let id = outbox.start_draft(BOB, DraftTarget::Outbox, true).unwrap();
    outbox.write(id, None, text.as_bytes()).unwrap();
    outbox.flush(id, true).unwrap();
    outbox.remove(BOB, &DraftTarget::Outbox).unwrap();
    assert!(!outbox.release(id));
    assert_eq!((bed.copies(), bed.memory.sent().len()), (0, 0));
}

#[test]
fn a_store_signs_with_its_own_key_which_is_pinned_first() {
    let bed = Bed::new();
    let key = |seed: [u8; 32]| KeyPair::new(&Seed::new(seed)).public_key();
    let pinned = |bed: &Bed, address: &str| -> Vec<PublicKey> {
        Keyring::open_read_only(&bed.path("state/keyring.json")).unwrap().pinned_keys(address)
    };
    bed.memory.folder.lock().key = Some(Seed::new([9; 32]));
    let outbox = bed.open_as(Err("the key file is open to all"));
    send(&outbox, BOB, "hi\n").unwrap();
    assert_eq!(pinned(&bed, ME), [key([9; 32])]);
    // The store's key was replaced: the new one is trusted beside the old.
    bed.memory.folder.lock().key = Some(Seed::new([8; 32]));
    send(&outbox, BOB, "again\n").unwrap();
    assert_eq!(pinned(&bed, ME), [key([9; 32]), key([8; 32])]);
    // SAMP has no key of its own.
    let e = send(&outbox, "carol", "hi\n").unwrap_err();
    assert!(matches!(meaning(&e), OutboxError::NoKey(t) if t.contains("open to all")), "{e}");
    assert_eq!(outbox.list_faults(), [""; 0], "the mount says that itself");
    bed.memory.folder.lock().keyless = true;
    let e = send(&outbox, BOB, "hi\n").unwrap_err();
    assert!(matches!(meaning(&e), OutboxError::NoKey(t) if t.contains("private.pem")), "{e}");
    drop(outbox);
    let outbox = bed.open();
    send(&outbox, "carol", "hi\n").unwrap();
    assert_eq!(pinned(&bed, "me"), [key(SEED)]);
    refused(&outbox, BOB, "hi\n");
    let told = outbox.list_faults();
    assert!(told.len() == 1 && told[0].contains("in the store amp: keys/private.pem"), "{told:?}");
    bed.memory.folder.lock().keyless = false;
    send(&outbox, BOB, "mended\n").unwrap();
    assert_eq!(outbox.list_faults(), [""; 0]);
}

/// Puts a parcel into the spool, like a process that dies before it appends.
fn accept(bed: &Bed, store: &str, id: &str, files: Vec<crate::model::DraftAttachment>) {
    let spool = Spool::open(&bed.path("state/spool"), Durability::None).unwrap();
    let mut parcel = spool::tests::parcel(store, id, "t");
    parcel.message.to = BOB.into();
    parcel.message.files = files;
    spool.insert(vec![parcel], None).unwrap();
}

#[test]
fn what_was_accepted_is_appended_again_where_that_does_no_harm() {
    let bed = Bed::new();
    let copy = bed.path("state/attachments/3/0");
    std::fs::create_dir_all(copy.parent().unwrap()).unwrap();
    std::fs::write(&copy, "kept").unwrap();
    let file = crate::model::DraftAttachment {
        name: "f".into(),
        path: copy,
        size: 4,
        sha256: String::new(),
    };
    accept(&bed, "amp", "p1", vec![file]);
    let outbox = bed.open();
    assert_eq!(bed.memory.sent().len(), 1);
    assert_eq!(last(&bed).files, [b"kept".to_vec()]);
    assert_eq!(bed.copies(), 0);
    drop(outbox);
    // The message is there already, perhaps only in part: the outbox asks the store all the same, and the store knows.
    accept(&bed, "amp", "p1", Vec::new());
    let before = bed.memory.folder.lock().appends;
    let outbox = bed.open();
    assert_eq!(bed.memory.folder.lock().appends, before + 1);
    assert_eq!((bed.memory.sent().len(), outbox.sender().stuck_messages().len()), (1, 0));
    assert_eq!(outbox.context.spool.pending(), []);
}

#[test]
fn what_a_store_will_not_have_waits_and_says_why() {
    let bed = Bed::new();
    let outbox = bed.open();
    let path = bed.file("f", b"x");
    bed.memory.folder.lock().refuses = Some(|| StoreError::Refused("bob refuses me".into()));
    send(&outbox, BOB, &format!("Attach: {path}\n\nhi\n")).unwrap();
    assert_eq!(outbox.sender().stuck_messages(), [(BOB.to_owned(), "bob refuses me".to_owned())]);
    assert_eq!(bed.copies(), 1);
    outbox.close();
    bed.memory.folder.lock().refuses = None;
    let outbox = bed.open();
    assert_eq!(
        (outbox.sender().stuck_messages(), bed.memory.sent().len(), bed.copies()),
        (vec![], 1, 0)
    );
}

#[test]
fn stores_are_asked_to_deliver_at_the_start_and_when_they_change() {
    let bed = Bed::new();
    bed.memory.folder.lock().stuck = true;
    let outbox = bed.open();
    wait_until("the first delivery fails", || !outbox.list_faults().is_empty());
    let told = outbox.list_faults();
    assert!(
        told[0].contains("the store amp cannot write or deliver everything")
            && told[0].contains("/x"),
        "{told:?}"
    );
    let before = {
        let mut folder = bed.memory.folder.lock();
        folder.stuck = false;
        folder.deliveries
    };
    outbox.handle_store_change(1);
    // The pause after a failure may end meanwhile, and then the store is asked once more.
    wait_until("it is tried again", || outbox.list_faults().is_empty());
    assert!(bed.memory.folder.lock().deliveries > before);
    outbox.close();
}

#[test]
fn plain_names_are_drafts_whatever_the_stores() {
    let bed = Bed::new();
    let memory: Arc<dyn Store> = Arc::clone(&bed.memory) as Arc<dyn Store>;
    assert!(check_name(&[Arc::clone(&memory)], "send-12"), "a name of headers to come");
    assert!(check_name(&[memory], "Bob@acme.crabmail.ai"));
    assert!(!check_name(&[], "bob@acme.crabmail.ai"));
    let outbox = bed.open();
    let samp = outbox.context.index.stores()[..1].to_vec();
    assert!(check_name(&samp, "bob@samp") && check_name(&samp, "bob@samp.msgfs"));
    assert!(!check_name(&samp, "bob@nosuch") && !check_name(&samp, "a b@samp"));
    let why = |name: &str| invalid_address_error(&samp, name).to_string();
    assert!(why("bob@nosuch").contains("there is no store \"nosuch\"; there is samp"));
    assert!(why("a b@samp").starts_with("\"a b\" is not an address"));
    assert!(why("bob@@x").contains("\"bob@@x\" is not an address of any store here (samp)"));
    // A store that is named twice is the same store.
    send(&outbox, "bob@samp", "Via: samp\n\nhi\n").unwrap();
    assert!(bed.samp_log().contains("\"bob\""));
    let e = refused(&outbox, "bob@samp", "Via: amp\n\nhi\n");
    assert!(e.contains("is not an address of any store here (amp)"), "{e}");
    assert!(check_name(&[], "bob") && !check_name(&[], &"b".repeat(65)));
}

fn check_name(stores: &[Arc<dyn Store>], name: &str) -> bool {
    super::route::is_well_formed(stores, name)
}

mod addresses;
mod folders;
mod kinds;
mod release;
mod retries;
