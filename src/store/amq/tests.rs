mod obstacles;
mod odd;
mod receipts;

use crate::store::MessageReader;
use crate::store::RawTree as _;
use std::path::PathBuf;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::model::verify::{find_claim_fault, verify_claim};
use crate::model::{self, Draft, SignatureClaim, Timestamp};
use crate::store::testing::{Book, Key, traits::*};
use crate::store::{Kind, PrepareContext, PreparedRecord};

/// A queue root with mailboxes.
struct Root {
    dir: tempfile::TempDir,
}

impl Root {
    fn new(agents: &[&str]) -> Self {
        let root = Self { dir: tempfile::tempdir().unwrap() };
        for agent in agents {
            for leaf in LEAVES.split(' ') {
                std::fs::create_dir_all(root.path(&format!("agents/{agent}/{leaf}"))).unwrap();
            }
        }
        root
    }

    fn path(&self, path: &str) -> PathBuf {
        self.dir.path().join(path)
    }

    fn put(&self, path: &str, text: &str) {
        std::fs::write(self.path(path), text).unwrap();
    }

    fn names(&self, path: &str) -> Vec<String> {
        let entries = std::fs::read_dir(self.path(path)).unwrap();
        let mut names: Vec<String> =
            entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    fn spec(&self, me: &str) -> StoreSpec {
        StoreSpec {
            may_create: true,
            name: "amq".into(),
            kind: Kind::Amq,
            dir: self.dir.path().to_owned(),
            me: me.into(),
            ..StoreSpec::default()
        }
    }

    fn store(&self, me: &str) -> AmqStore {
        AmqStore::open(&self.spec(me)).unwrap()
    }
}

/// Returns a message file whose header is changed by `head`.
fn file(head: &Value, body: &str) -> String {
    let mut header = json!({
        "schema": 1, "id": "m", "from": "alice", "to": ["bob"], "thread": "t",
        "created": "2026-11-22T08:32:10Z",
    });
    for (name, value) in head.as_object().into_iter().flatten() {
        header[name] = value.clone();
    }
    format!("---json\n{header:#}\n---\n{body}")
}

fn draft(to: &[&str], body: &str) -> Draft {
    let to = to.iter().map(|to| (*to).to_owned()).collect();
    Draft { to, body: body.into(), ..Draft::default() }
}

fn prepare(store: &AmqStore, draft: &Draft) -> Result<PreparedRecord, StoreError> {
    answer(store, draft, None)
}

fn answer(
    store: &AmqStore,
    draft: &Draft,
    parent: Option<&model::Message>,
) -> Result<PreparedRecord, StoreError> {
    let key = Key::new(7);
    let now = Timestamp::from_millis(1_795_336_330_840);
    let with = PrepareContext { parent, ..PrepareContext::new(now, &key) };
    Ok(store.prepare_records(draft, &with)?.remove(0))
}

#[test]
fn many_large_files_come_in_their_order() {
    let root = Root::new(&["alice", "bob"]);
    // This is more than is held at once, and enough for all cores.
    let body = "word ".repeat(20_000);
    for n in 0..90 {
        let id = format!("m{n:02}");
        let path = format!("agents/bob/inbox/new/{id}.md");
        root.put(&path, &file(&json!({ "id": id }), &body));
    }
    let store = root.store("bob");
    let book = Book::scanned(&store);
    let ids = |book: &Book| -> Vec<String> {
        let paths = book.order.iter().map(|(at, _)| store.source_path(at.source).unwrap());
        paths.collect()
    };
    let all: Vec<String> = (0..90).map(|n| format!("agents/bob/inbox/new/m{n:02}.md")).collect();
    assert_eq!(ids(&book).len(), 90);
    assert_eq!(ids(&book), all);
}

#[test]
fn vectors() {
    let vectors: Value =
        serde_json::from_str(include_str!("../../../tests/vectors/amq.json")).unwrap();
    for vector in vectors["files"].as_array().unwrap() {
        let name = vector["name"].as_str().unwrap();
        let text = vector["text"].as_str().map_or_else(
            || file(&vector["head"], vector["body_text"].as_str().unwrap_or("hi\n")),
            str::to_owned,
        );
        match message::parse(text.as_bytes()) {
            Ok(mut read) => {
                let shown = read.message;
                assert_eq!(vector["id"].as_str(), Some(&*shown.id), "{name}");
                let said = [
                    ("thread", shown.thread.unwrap()),
                    ("body", shown.body),
                    ("from", shown.from.unwrap()),
                    ("subject", shown.subject.unwrap_or_default()),
                    ("created", shown.time.rfc3339()),
                    ("context", read.parts.pop().map_or_else(String::new, |(_, text)| text)),
                ];
                for (member, value) in said {
                    let expected = vector[member].as_str().unwrap_or(&value);
                    assert_eq!(value, expected, "{name}: {member}");
                }
            }
            Err(fault) => {
                let why = vector["why"].as_str().unwrap_or("no fault");
                assert!(fault.to_string().contains(why), "{name}: {fault}");
                let cut = vector["cut"].as_bool().unwrap_or(false);
                assert_eq!(fault == message::AmqParseError::Incomplete, cut, "{name}");
            }
        }
    }
    // Printing the program's own text again gives the same text.
    let text = vectors["files"][0]["text"].as_str().unwrap();
    let (head, body) = text["---json\n".len()..].split_once("\n---\n").unwrap();
    let parsed: Value = serde_json::from_str(head).unwrap();
    let order = head.lines().filter_map(|line| line.strip_prefix("  \"")?.split('"').next());
    let printed: message::AmqJsonFields<'_> =
        order.map(|name| (name, parsed[name].clone())).collect();
    assert_eq!((message::print_json(&printed).as_str(), body), (head, "need your review\n"));
}

#[test]
fn every_beginning_of_a_message_is_unfinished() {
    let whole = file(&json!({"subject": "é"}), "");
    for end in 0..whole.len() {
        let fault = message::parse(&whole.as_bytes()[..end]).unwrap_err();
        assert_eq!(fault, message::AmqParseError::Incomplete, "{end}: {fault}");
    }
    message::parse(whole.as_bytes()).unwrap();
}

#[test]
fn what_is_written_is_what_the_program_writes() {
    let root = Root::new(&["alice", "bob"]);
    let alice = root.store("alice");
    let with_kind = Draft {
        subject: Some("a < b & c".into()),
        kind: Some("Question".into()),
        ..draft(&["bob"], "is\r\nit?")
    };
    let made = prepare(&alice, &with_kind).unwrap();
    let (head, sig) = made.bytes.split_once("  \"pub\"").unwrap();
    let id = &made.id;
    assert!(id.starts_with("2026-11-22T08-32-10.840Z_pid"), "{id}");
    assert_eq!(
        head,
        format!(
            "---json\n{{\n  \"schema\": 1,\n  \"id\": \"{id}\",\n  \"from\": \"alice\",\n  \"to\": [\n    \
             \"bob\"\n  ],\n  \"thread\": \"p2p/alice__bob\",\n  \"subject\": \"a \\u003c b \\u0026 c\",\n  \
             \"created\": \"2026-11-22T08:32:10.84Z\",\n  \"priority\": \"normal\",\n  \"kind\": \
             \"question\",\n"
        )
    );
    assert!(sig.ends_with("\n}\n---\nis\r\nit?\n"), "{sig}");
    let claim = message::parse(made.bytes.as_bytes()).unwrap().claim.unwrap();
    let SignatureClaim::Signed { key: Some(key), .. } = &claim else { panic!("{claim:?}") };
    assert!(verify_claim(key, &claim) && find_claim_fault(&claim).is_none());
    for (old, new) in [("it?", "it."), ("question", "answer"), ("is\r\n", "is\n")] {
        let other = made.bytes.replace(old, new);
        let claim = message::parse(other.as_bytes()).unwrap().claim.unwrap();
        assert!(!verify_claim(key, &claim), "{other}");
    }
    let malformed = made.bytes.replace("\"sig\": \"", "\"sig\": \"x");
    let claim = message::parse(malformed.as_bytes()).unwrap().claim;
    assert!(matches!(claim, Some(SignatureClaim::Malformed(_))), "{claim:?}");
    assert_eq!(Timestamp::from_secs(1_795_336_300).rfc3339_short(), "2026-11-22T08:31:40Z");
    for (header, value) in [("Type", "memo"), ("Priority", "high")] {
        let mut wrong = draft(&["bob"], "hi");
        *(if header == "Type" { &mut wrong.kind } else { &mut wrong.priority }) =
            Some(value.into());
        let refused = prepare(&alice, &wrong).unwrap_err();
        assert!(
            matches!(&refused, StoreError::Invalid(why) if why.starts_with(header)),
            "{refused}"
        );
    }
}

#[test]
fn sent_once_to_everybody_however_often() {
    let root = Root::new(&["alice", "bob", "carol"]);
    let alice = root.store("alice");
    let made = prepare(&alice, &draft(&["carol", "bob", "carol"], "hi")).unwrap();
    assert_eq!((made.thread.as_str(), made.to.as_str()), ("msgfs/alice__bob__carol", "carol, bob"));
    let name = vec![format!("{}.md", made.id)];
    alice.append_record(&made).unwrap();
    for place in ["agents/bob/inbox/new", "agents/carol/inbox/new", "agents/alice/outbox/sent"] {
        assert_eq!(root.names(place), name, "{place}");
        let path = root.path(place).join(&name[0]);
        assert_eq!(std::fs::read_to_string(path).unwrap(), made.bytes);
    }
    // Bob claims it, and a repeated append does not bring it back.
    let claimed = root.path("agents/bob/inbox/cur").join(&name[0]);
    std::fs::rename(root.path("agents/bob/inbox/new").join(&name[0]), claimed).unwrap();
    std::fs::remove_file(root.path("agents/alice/outbox/sent").join(&name[0])).unwrap();
    alice.append_record(&made).unwrap();
    assert!(root.names("agents/bob/inbox/new").is_empty());
    assert_eq!(root.names("agents/alice/outbox/sent"), name, "what was missing is done");
    // Other bytes under its name are not replaced, and nothing stays in tmp.
    root.put(&format!("agents/carol/inbox/new/{}", name[0]), "other");
    assert!(matches!(alice.append_record(&made), Err(StoreError::Refused(_))));
    for agent in ["bob", "carol"] {
        assert!(root.names(&format!("agents/{agent}/inbox/tmp")).is_empty());
    }
    let books = Book::scanned(&alice);
    let one = books.one(&made.id);
    assert!(one.from_me && !one.to_me && one.read.is_none() && books.messages.len() == 1);
    let shown = alice.read_record(&one.at).unwrap().message;
    assert_eq!(alice.preview_message(&made), Some(shown));
    assert_eq!(one.valid(), Some(true));
    for (to, why) in [("Bob", "not a handle"), ("dave", "no mailbox")] {
        let refused = prepare(&alice, &draft(&[to], "hi")).unwrap_err();
        assert!(refused.to_string().contains(why), "{refused}");
    }
    assert!(!root.path("agents/dave").exists(), "a mailbox is never made");
    std::fs::remove_dir(root.path("agents/carol/inbox/tmp")).unwrap();
    assert!(matches!(prepare(&alice, &draft(&["carol"], "x")), Err(StoreError::Unreachable(_))));
    let big = "x".repeat(FILE_BYTES);
    assert!(matches!(prepare(&alice, &draft(&["bob"], &big)), Err(StoreError::TooLarge(_))));
}

#[test]
fn reading_claims_and_tells_the_sender() {
    let root = Root::new(&["alice", "bob"]);
    let (alice, bob) = (root.store("alice"), root.store("bob"));
    let made = prepare(&alice, &draft(&["bob"], "hi")).unwrap();
    alice.append_record(&made).unwrap();
    // The same bytes are there under another name, and `drain` would deliver them too.
    root.put("agents/bob/inbox/new/again.md", &made.bytes);
    let mut books = Book::scanned(&bob);
    let one = books.one(&made.id).clone();
    assert_eq!((one.to_me, one.read), (true, Some(false)));
    assert!(!bob.write_mark(&one.at, false).unwrap());
    assert!(bob.write_mark(&one.at, true).unwrap());
    assert_eq!(root.names("agents/bob/inbox/cur"), [format!("{}.md", made.id), "again.md".into()]);
    let receipt = format!("{}__bob__drained.json", made.id);
    let path = root.path("agents/bob/receipts").join(&receipt);
    let text = std::fs::read_to_string(&path).unwrap();
    let start = format!(
        "{{\n  \"schema\": 1,\n  \"msg_id\": \"{}\",\n  \"thread\": \"p2p/alice__bob\",\n  \"sender\": \
         \"alice\",\n  \"consumer\": \"bob\",\n  \"stage\": \"drained\",\n  \"emitted_at\": \"20",
        made.id
    );
    assert!(text.starts_with(&start) && text.ends_with("Z\"\n}\n"), "{text}");
    assert!(root.names("agents/bob/extensions/msgfs").is_empty());
    books.scan(&bob, false);
    let one = books.one(&made.id).clone();
    assert_eq!((books.messages.len(), one.read), (1, Some(true)));
    assert!(bob.write_mark(&one.at, true).unwrap() && !bob.deliver_waiting().unwrap());
    // The process is killed between the claim and the receipt: the next process finishes it.
    let begun = root.path("agents/bob/extensions/msgfs").join(&receipt);
    std::fs::rename(&path, &begun).unwrap();
    // Another process is about to claim one message; the other message never came.
    for name in ["soon", "never"] {
        root.put(&format!("agents/bob/extensions/msgfs/{name}__bob__drained.json"), "x");
    }
    let never = root.path("agents/bob/extensions/msgfs/never__bob__drained.json");
    let long_ago = std::time::SystemTime::now() - std::time::Duration::from_secs(90);
    std::fs::File::open(never).unwrap().set_modified(long_ago).unwrap();
    let next = root.store("bob");
    Book::scanned(&next);
    assert!(next.deliver_waiting().unwrap() && !next.deliver_waiting().unwrap());
    assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
    assert_eq!(
        root.names("agents/bob/receipts"),
        [receipt],
        "of what is not claimed nothing is said"
    );
    assert_eq!(root.names("agents/bob/extensions/msgfs"), ["soon__bob__drained.json"]);
}

#[test]
fn who_is_slower_takes_no_receipt_away() {
    let root = Root::new(&["alice", "bob"]);
    root.put("agents/bob/inbox/new/m.md", &file(&json!({}), "hi\n"));
    let (slower, bob) = (root.store("bob"), root.store("bob"));
    let at = Book::scanned(&slower).one("m").at;
    assert_eq!(Book::scanned(&bob).one("m").at, at);
    // The other process has begun, and claims it a moment before this one.
    std::fs::create_dir_all(root.path("agents/bob/extensions/msgfs")).unwrap();
    let begun = "agents/bob/extensions/msgfs/m__bob__drained.json";
    root.put(begun, "of the other");
    let (new, cur) =
        ["new", "cur"].map(|leaf| root.path(&format!("agents/bob/inbox/{leaf}/m.md"))).into();
    std::fs::rename(new, cur).unwrap();
    assert!(matches!(slower.write_mark(&at, true), Err(StoreError::Moved)));
    assert_eq!(std::fs::read_to_string(root.path(begun)).unwrap(), "of the other");
    Book::scanned(&bob);
    assert!(bob.deliver_waiting().unwrap());
    assert_eq!(root.names("agents/bob/receipts"), ["m__bob__drained.json"]);
}

#[test]
fn who_claims_first_wins() {
    let root = Root::new(&["alice", "bob"]);
    root.put("agents/bob/inbox/new/m.md", &file(&json!({}), "hi\n"));
    let bob = root.store("bob");
    let mut books = Book::scanned(&bob);
    let at = books.one("m").at;
    std::fs::rename(root.path("agents/bob/inbox/new/m.md"), root.path("agents/bob/inbox/cur/m.md"))
        .unwrap();
    assert!(matches!(bob.write_mark(&at, true), Err(StoreError::Moved)));
    books.scan(&bob, true);
    assert_eq!((books.one("m").read, books.messages.len()), (Some(true), 1));
    assert!(root.names("agents/bob/receipts").is_empty());
}

#[test]
fn a_claim_of_which_half_is_known_takes_nothing_away() {
    let root = Root::new(&["alice", "bob"]);
    root.put("agents/bob/inbox/new/m.md", &file(&json!({}), "hi\n"));
    let bob = root.store("bob");
    let mut books = Book::scanned(&bob);
    let [new, cur] = ["new", "cur"].map(|leaf| root.path(&format!("agents/bob/inbox/{leaf}/m.md")));
    std::fs::rename(&new, cur).unwrap();
    bob.note_change(&new);
    books.scan(&bob, false);
    assert_eq!((books.one("m").read, books.messages.len()), (Some(true), 1));
}

#[test]
fn a_name_in_new_and_in_cur_is_told_and_left_alone() {
    for body in ["hi\n", "other\n"] {
        let root = Root::new(&["alice", "bob"]);
        root.put("agents/bob/inbox/cur/m.md", &file(&json!({}), "hi\n"));
        root.put("agents/bob/inbox/new/m.md", &file(&json!({}), body));
        let bob = root.store("bob");
        let books = Book::scanned(&bob);
        let remarks = bob.remarks();
        assert!(
            remarks.len() == 1 && remarks[0].contains("agents/bob/inbox/new/m.md"),
            "{remarks:?}"
        );
        let same = body == "hi\n";
        assert_eq!(books.messages.len(), if same { 1 } else { 2 });
        let new = bob.table.read().find_path("agents/bob/inbox/new/m.md").unwrap();
        let at = StoreFile::<AmqTableFacts>::location(new, 1);
        assert_eq!(bob.write_mark(&at, true).is_ok(), same);
        assert_eq!(root.names("agents/bob/inbox/new"), ["m.md"]);
        assert!(root.names("agents/bob/receipts").is_empty());
        let mut wrong = Vec::new();
        root.store("bob").check(&|_| None, &mut |v| wrong.push(v.rule)).unwrap();
        assert_eq!(wrong, if same { vec!["twice"] } else { vec!["twice", "duplicate"] });
    }
}

#[test]
fn copies_are_one_message_and_other_bytes_another() {
    let root = Root::new(&["alice", "bob", "carol", "eve"]);
    let to_both = file(&json!({"to": ["bob", "carol"]}), "hi\n");
    root.put("agents/bob/inbox/new/m.md", &to_both);
    root.put("agents/carol/inbox/cur/m.md", &to_both);
    root.put("agents/alice/outbox/sent/m.md", &to_both);
    root.put("agents/bob/inbox/new/z.md", &file(&json!({}), "other\n"));
    root.put("agents/carol/inbox/new/x.md", &file(&json!({"id": "x", "to": ["carol"]}), "no\n"));
    root.put("agents/eve/inbox/new/y.md", &file(&json!({"id": "y", "from": "bob"}), "mine?\n"));
    root.put("agents/eve/inbox/new/bad.md", "theirs to mend");
    // The first to arrive keeps the id, whatever the paths are.
    let old = std::fs::FileTimes::new().set_modified(std::time::UNIX_EPOCH);
    let first = root.path("agents/bob/inbox/new/z.md");
    std::fs::File::options().write(true).open(first).unwrap().set_times(old).unwrap();
    let bob = root.store("bob");
    let mut books = Book::scanned(&bob);
    assert!(books.rejected.is_empty());
    let ids: Vec<&str> = books.messages.keys().map(|(_, id)| id.as_str()).collect();
    let namesake = ids.iter().find(|id| id.contains(model::QUALIFIER)).unwrap().to_string();
    assert_eq!(ids, ["m", &namesake, "x", "y"]);
    assert_eq!(books.one("m").path.as_ref(), "agents/bob/inbox/new/z.md");
    let kept = books.one(&namesake);
    assert!(kept.to_me && kept.read == Some(false) && kept.path.ends_with("bob/inbox/new/m.md"));
    assert!(!books.one("y").from_me, "only what lies in my own folder is mine");
    assert!(!books.one("x").to_me && books.one("x").read.is_none());
    let read = MessageReader::read_record(&bob, &kept.at).unwrap().message;
    assert_eq!((read.id, read.body.as_str()), (namesake.clone(), "hi\n"));
    let again = root.store("bob");
    assert!(again.restore_cursors(&bob.save_cursors()));
    assert!(Book::scanned(&again).messages.is_empty(), "a remount reads nothing");
    assert!(bob.open_raw_file("agents/bob/inbox/new/m.md").is_ok());
    assert!(
        bob.open_raw_file("agents/alice/outbox/sent/m.md").is_err(),
        "what others have is theirs"
    );
    // Without the copy that showed it, another copy shows it.
    std::fs::remove_file(root.path("agents/bob/inbox/new/m.md")).unwrap();
    books.scan(&bob, true);
    assert!(!books.one(&namesake).to_me);
}

#[test]
fn dead_letters_and_broken_files_are_refused() {
    let root = Root::new(&["alice", "bob"]);
    let dead = "---\n{\n  \"schema\": \"amq/dlq/v1\",\n  \"failure_reason\": \"parse_error\",\n  \
                \"failure_detail\": \"bad\\nheader\"\n}\n---\nx";
    root.put("agents/bob/dlq/new/dlq_1_2_3.md", dead);
    root.put("agents/bob/inbox/new/b.md", "hello");
    root.put("agents/bob/inbox/new/.hidden.md", "hello");
    root.put("agents/bob/inbox/new/note.txt", "hello");
    root.put("agents/alice/inbox/new/b.md", "hello");
    std::fs::create_dir(root.path("agents/bob/inbox/new/folder")).unwrap();
    std::os::unix::fs::symlink("b.md", root.path("agents/bob/inbox/new/l.md")).unwrap();
    let bob = root.store("bob");
    let books = Book::scanned(&bob);
    let mut reasons = books.reasons();
    reasons.sort_unstable();
    assert_eq!(reasons.len(), 3, "{reasons:?}");
    assert_eq!(reasons[0], "it does not begin with ---json");
    assert!(reasons[1].starts_with("it is a dead letter: parse_error: bad"), "{reasons:?}");
    assert!(reasons[2].contains("ends in .md"), "{reasons:?}");
    let health = bob.health();
    assert!(health.len() == 1 && health[0].contains("l.md is skipped"), "{health:?}");
    assert!(bob.advice().is_empty());
    std::fs::remove_dir_all(root.path("agents/bob/receipts")).unwrap();
    assert!(bob.advice()[0].problem.contains("agents/bob/receipts"));
    let mut wrong = Vec::new();
    bob.check(&|_| None, &mut |v| wrong.push(v.rule)).unwrap();
    wrong.sort_unstable();
    assert_eq!(wrong, ["dead_letter", "file", "mailbox", "name", "schema"]);
    let upper = StoreSpec { me: "Bob.Smith".into(), ..root.spec("x") };
    assert!(AmqStore::open(&upper).is_err());
    assert_eq!(AmqStore::open(&StoreSpec { me: "BOB".into(), ..upper }).unwrap().me(), "bob");
}

#[test]
fn answers_take_kind_subject_and_refs() {
    let root = Root::new(&["alice", "bob"]);
    let head = json!({
        "subject": "s", "kind": "review_request", "priority": "urgent", "refs": ["a"],
        "labels": ["x", "y\u{1b}z"], "context": {"n": 1e2}, "created": "2030-01-01T00:00:00.5Z"
    });
    root.put("agents/bob/inbox/new/m.md", &file(&head, "hi\n"));
    let far = json!({"id": "far", "reply_to": "a@b"});
    root.put("agents/bob/inbox/new/far.md", &file(&far, "hi\n"));
    let bob = root.store("bob");
    let books = Book::scanned(&bob);
    let record = |id: &str| MessageReader::read_record(&bob, &books.one(id).at).unwrap();
    let parent = record("m");
    assert_eq!(parent.message.in_reply_to.as_deref(), Some("a"));
    let extra = [("Type", "review_request".to_owned()), ("Priority", "urgent".to_owned())];
    assert_eq!(parent.message.extra, extra);
    let names: Vec<&str> = parent.parts.iter().map(|p| p.name.as_str()).collect();
    assert_eq!(names, ["labels.txt", "context.json"]);
    for (part, name) in parent.parts.iter().zip(names) {
        let Ok(PartContent::Bytes(bytes)) = bob.open_part(&books.one("m").at, name) else {
            panic!()
        };
        assert_eq!(bytes.len() as u64, part.size);
        assert!(bytes.ends_with(b"\n") && !bytes.contains(&0x1b), "{bytes:?}");
    }
    let reply = |id: &str| Draft {
        in_reply_to: Some(id.into()),
        is_reply: true,
        ..draft(&["alice"], "LGTM")
    };
    let made = answer(&bob, &reply("m"), Some(&parent.message)).unwrap();
    let read = message::parse(made.bytes.as_bytes()).unwrap();
    assert_eq!(
        (read.message.thread.as_deref(), read.message.subject.as_deref()),
        (Some("t"), Some("Re: s"))
    );
    let extra = [("Type", "review_response".to_owned()), ("Priority", "normal".to_owned())];
    assert_eq!(read.message.extra, extra);
    assert_eq!(read.refs, ["a", "m"]);
    let again = answer(&bob, &reply("m"), Some(&read.message)).unwrap();
    assert_eq!(message::parse(again.bytes.as_bytes()).unwrap().message.subject.unwrap(), "Re: s");
    let far = answer(&bob, &reply("far"), Some(&record("far").message)).unwrap_err();
    assert!(far.to_string().contains("another queue"), "{far}");
    // A message that is not here is known only by its id.
    let unknown = prepare(&bob, &reply("gone")).unwrap();
    assert_eq!(message::parse(unknown.bytes.as_bytes()).unwrap().refs, ["gone"]);
}

proptest! {
    #[test]
    fn any_bytes_can_be_read(bytes in proptest::collection::vec(any::<u8>(), 0..300), text in "(---json\n)?\\{?[\"a-z:,\\[\\]{}0-9 \n-]{0,60}(\n---\n)?.{0,9}") {
        let _ = message::parse(&bytes);
        let _ = message::parse(text.as_bytes());
    }

    #[test]
    fn what_is_composed_is_read_back(body in "\\PC{0,40}", subject in "[^\\p{Cc}]{0,20}") {
        let header = vec![
            ("schema", json!(1)), ("id", json!("m")), ("from", json!("alice")),
            ("to", json!(["bob"])), ("thread", json!("t")), ("subject", json!(subject)),
            ("created", json!("2026-11-22T08:32:10Z")), ("refs", json!([])), ("kind", Value::Null),
        ];
        let text = message::compose_message(header, &body, &Key::new(7));
        let read = message::parse(text.as_bytes()).unwrap();
        prop_assert_eq!(read.message.body.strip_suffix('\n').unwrap_or(""), body.as_str());
        prop_assert_eq!(read.message.subject.unwrap_or_default(), subject);
        let valid = read.claim.is_some_and(|claim| find_claim_fault(&claim).is_none());
        prop_assert!(valid);
    }
}

#[test]
fn an_odd_name_is_refused_where_it_is_mine() {
    use std::os::unix::ffi::OsStrExt as _;
    let root = Root::new(&["alice", "bob"]);
    let odd = std::ffi::OsStr::from_bytes(b"odd\xff.md");
    for place in ["bob/inbox/new", "alice/inbox/new", "alice/outbox/sent"] {
        std::fs::write(root.path(&format!("agents/{place}")).join(odd), file(&json!({}), "hi"))
            .unwrap();
    }
    let book = Book::scanned(&root.store("bob"));
    let refused: Vec<(&str, &str)> =
        book.rejected.values().map(|r| (r.path.as_str(), r.reason.as_str())).collect();
    assert_eq!(refused, [("agents/bob/inbox/new/odd\0FF.md", "its name is not UTF-8")]);
    assert!(book.order.is_empty());
}
