use std::collections::BTreeMap;
use std::path::PathBuf;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::model::verify::{fault, verify_claim};
use crate::store::testing::Key;
use crate::store::{Found, Rejected};

/// A queue root with mailboxes.
struct Root {
    dir: tempfile::TempDir,
}

impl Root {
    fn new(agents: &[&str]) -> Self {
        let root = Self { dir: tempfile::tempdir().unwrap() };
        for agent in agents {
            for leaf in LEAVES {
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

    fn store(&self, me: &str) -> Amq {
        Amq::open(&Spec {
            name: "amq".into(),
            kind: Kind::Amq,
            dir: self.dir.path().to_owned(),
            me: me.into(),
            as_me: None,
            state: None,
            home: None,
        })
        .unwrap()
    }
}

/// A message file whose header is changed by `head`.
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

/// What an index would know after the reports it got.
#[derive(Default)]
struct Books {
    messages: BTreeMap<String, Found<'static>>,
    rejected: BTreeMap<u32, String>,
    stale: Vec<String>,
}

impl Sink for Books {
    fn batch(&mut self, found: &mut Vec<Found<'_>>, rejected: &mut Vec<Rejected>) {
        for f in found.drain(..) {
            let id = f.id.to_string();
            self.stale.retain(|stale| *stale != id);
            let owned = |text: std::borrow::Cow<'_, str>| text.into_owned().into();
            let (from, to, thread) = (owned(f.from), owned(f.to), owned(f.thread));
            let f = Found { from, to, thread, id: id.clone().into(), answers: None, ..f };
            self.messages.insert(id, f);
        }
        self.rejected.extend(rejected.drain(..).map(|r| (r.at.source, r.reason)));
    }

    fn begin_rescan(&mut self, sources: &[u32]) {
        self.rejected.retain(|source, _| !sources.contains(source));
        let stale = self.messages.values().filter(|f| sources.contains(&f.at.source));
        self.stale.extend(stale.map(|f| f.id.to_string()));
    }

    fn end_rescan(&mut self, _: &[u32]) {
        for id in std::mem::take(&mut self.stale) {
            self.messages.remove(&id);
        }
    }

    fn resume(&mut self, _: u32) {}
    fn progress(&mut self, _: u64, _: u64) {}
}

impl Books {
    fn scan(&mut self, store: &Amq) {
        store.scan(true, self).unwrap();
    }

    fn ids(&self) -> Vec<&str> {
        self.messages.keys().map(String::as_str).collect()
    }
}

fn draft(to: &[&str], body: &str) -> Draft {
    let to = to.iter().map(|to| (*to).to_owned()).collect();
    Draft { to, body: body.into(), ..Draft::default() }
}

fn prepare(store: &Amq, draft: &Draft) -> Result<Prepared, StoreError> {
    let with = Preparing {
        now: Timestamp::from_millis(1_795_336_330_840),
        parent: None,
        signer: &Key::new(7),
        taken: &|_| false,
    };
    Ok(store.prepare(draft, &with)?.remove(0))
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
            Ok(read) => {
                assert_eq!(vector["id"].as_str(), Some(&*read.id), "{name}");
                let said = [
                    ("thread", read.thread),
                    ("body", read.body),
                    ("from", read.from),
                    ("subject", read.subject.unwrap_or_default()),
                    ("created", read.created.rfc3339()),
                ];
                for (member, value) in said {
                    let expected = vector[member].as_str().unwrap_or(&value);
                    assert_eq!(value, expected, "{name}: {member}");
                }
            }
            Err(fault) => {
                let why = vector["why"].as_str().unwrap_or("no fault");
                assert!(fault.to_string().contains(why), "{name}: {fault}");
            }
        }
    }
}

#[test]
fn what_is_written_is_what_the_program_writes() {
    let root = Root::new(&["alice", "bob"]);
    let alice = root.store("alice");
    let with_kind = Draft {
        subject: Some("a < b & c".into()),
        kind: Some("question".into()),
        ..draft(&["bob"], "is it?")
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
    assert!(sig.ends_with("\n}\n---\nis it?\n"), "{sig}");
    let claim = message::parse(made.bytes.as_bytes()).unwrap().claim.unwrap();
    let Claim::Signed { key: Some(key), .. } = &claim else { panic!("{claim:?}") };
    assert!(verify_claim(key, &claim) && fault(&claim).is_none());
    for other in [made.bytes.replace("is it?", "it is."), made.bytes.replace("question", "answer")]
    {
        let claim = message::parse(other.as_bytes()).unwrap().claim.unwrap();
        assert!(!verify_claim(key, &claim), "{other}");
    }
    assert_eq!(message::time_text(Timestamp::from_secs(1_795_336_300)), "2026-11-22T08:31:40Z");
}

#[test]
fn sent_once_to_everybody_however_often() {
    let root = Root::new(&["alice", "bob", "carol"]);
    let alice = root.store("alice");
    let made = prepare(&alice, &draft(&["carol", "bob"], "hi")).unwrap();
    assert_eq!(made.thread, "msgfs/alice__bob__carol");
    let name = vec![format!("{}.md", made.id)];
    alice.append(&made).unwrap();
    for place in ["agents/bob/inbox/new", "agents/carol/inbox/new", "agents/alice/outbox/sent"] {
        assert_eq!(root.names(place), name, "{place}");
        let path = root.path(place).join(&name[0]);
        assert_eq!(std::fs::read_to_string(path).unwrap(), made.bytes);
    }
    // Bob claims it; an append that is made again puts it nowhere.
    let claimed = root.path("agents/bob/inbox/cur").join(&name[0]);
    std::fs::rename(root.path("agents/bob/inbox/new").join(&name[0]), claimed).unwrap();
    alice.append(&made).unwrap();
    assert!(root.names("agents/bob/inbox/new").is_empty());
    for agent in ["bob", "carol"] {
        assert!(root.names(&format!("agents/{agent}/inbox/tmp")).is_empty());
    }
    let mut books = Books::default();
    books.scan(&alice);
    assert_eq!(books.ids(), [&*made.id]);
    let one = &books.messages[&made.id];
    assert!(one.from_me && !one.to_me && one.read.is_none());
    for (to, why) in [("Bob", "not a handle"), ("dave", "no mailbox")] {
        let refused = prepare(&alice, &draft(&[to], "hi")).unwrap_err();
        assert!(refused.to_string().contains(why), "{refused}");
    }
    assert!(!root.path("agents/dave").exists(), "a mailbox is never made");
}

#[test]
fn reading_claims_and_tells_the_sender() {
    let root = Root::new(&["alice", "bob"]);
    let (alice, bob) = (root.store("alice"), root.store("bob"));
    let made = prepare(&alice, &draft(&["bob"], "hi")).unwrap();
    alice.append(&made).unwrap();
    let mut books = Books::default();
    books.scan(&bob);
    let one = books.messages[&made.id].clone();
    assert_eq!((one.to_me, one.read), (true, Some(false)));
    assert!(!bob.tell(&one.at, false).unwrap());
    assert!(bob.tell(&one.at, true).unwrap());
    assert_eq!(root.names("agents/bob/inbox/cur"), [format!("{}.md", made.id)]);
    let receipt = root.path(&format!("agents/bob/receipts/{}__bob__drained.json", made.id));
    let text = std::fs::read_to_string(receipt).unwrap();
    let start = format!(
        "{{\n  \"schema\": 1,\n  \"msg_id\": \"{}\",\n  \"thread\": \"p2p/alice__bob\",\n  \"sender\": \
         \"alice\",\n  \"consumer\": \"bob\",\n  \"stage\": \"drained\",\n  \"emitted_at\": \"20",
        made.id
    );
    assert!(text.starts_with(&start) && text.ends_with("Z\"\n}\n"), "{text}");
    bob.scan(false, &mut books).unwrap();
    let one = books.messages[&made.id].clone();
    assert_eq!((books.ids(), one.read), (vec![&*made.id], Some(true)));
    // A kill between the claim and the receipt: told again, only the receipt is missing.
    std::fs::remove_dir_all(root.path("agents/bob/receipts")).unwrap();
    std::fs::create_dir(root.path("agents/bob/receipts")).unwrap();
    assert!(bob.tell(&one.at, true).unwrap());
    assert_eq!(root.names("agents/bob/receipts").len(), 1);
}

#[test]
fn a_name_in_new_and_in_cur_is_told_and_left_alone() {
    let root = Root::new(&["alice", "bob"]);
    for leaf in ["new", "cur"] {
        root.put(&format!("agents/bob/inbox/{leaf}/m.md"), &file(&json!({}), "hi\n"));
    }
    let bob = root.store("bob");
    let mut books = Books::default();
    books.scan(&bob);
    assert_eq!((books.ids(), books.messages["m"].read), (vec!["m"], Some(true)));
    let remarks = bob.remarks();
    assert!(remarks.len() == 1 && remarks[0].contains("agents/bob/inbox/new/m.md"), "{remarks:?}");
    let new = bob.files.table.read().find_path("agents/bob/inbox/new/m.md").unwrap();
    let at = crate::store::engine::files::File::<queue::Kept>::at(new, 1);
    assert!(!bob.tell(&at, true).unwrap());
    assert_eq!(root.names("agents/bob/inbox/new"), ["m.md"]);
    let mut wrong = Vec::new();
    bob.check(&|_| None, &mut |v| wrong.push(v.rule)).unwrap();
    assert_eq!(wrong, ["twice"]);
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
    let bob = root.store("bob");
    let mut books = Books::default();
    books.scan(&bob);
    assert_eq!(books.messages.len(), 3, "{:?}", books.ids());
    assert!(books.messages["m"].to_me && books.messages["m"].read == Some(false));
    assert!(!books.messages["y"].from_me, "only what lies in my own folder is mine");
    let twin =
        books.ids().into_iter().find(|id| id.contains(crate::model::TWIN)).unwrap().to_owned();
    let read = Store::read(&bob, &books.messages[&twin].at).unwrap().message;
    assert_eq!((read.id, read.body.as_str()), (twin.clone(), "other\n"));
    let saved = bob.save();
    let again = root.store("bob");
    assert!(again.restore(&saved));
    let mut none = Books::default();
    none.scan(&again);
    assert!(none.messages.is_empty(), "a remount reads nothing");
    // Without the copy that showed it, another shows it.
    std::fs::remove_file(root.path("agents/bob/inbox/new/m.md")).unwrap();
    books.scan(&bob);
    assert!(books.ids().contains(&"m") && !books.messages["m"].to_me);
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
    std::os::unix::fs::symlink("b.md", root.path("agents/bob/inbox/new/l.md")).unwrap();
    let bob = root.store("bob");
    let mut books = Books::default();
    books.scan(&bob);
    let mut reasons: Vec<&str> = books.rejected.values().map(String::as_str).collect();
    reasons.sort_unstable();
    assert_eq!(reasons.len(), 2, "{reasons:?}");
    assert_eq!(reasons[0], "it does not begin with ---json");
    assert!(reasons[1].starts_with("it is a dead letter: parse_error: bad"), "{reasons:?}");
    assert!(bob.health().join("\n").contains("l.md is skipped"), "{:?}", bob.health());
    std::fs::remove_dir_all(root.path("agents/bob/receipts")).unwrap();
    assert!(bob.advice()[0].problem.contains("agents/bob/receipts"));
}

#[test]
fn answers_take_kind_subject_and_refs() {
    let root = Root::new(&["alice", "bob"]);
    let head = json!({"subject": "s", "kind": "review_request", "refs": ["a"], "labels": ["x"]});
    root.put("agents/bob/inbox/new/m.md", &file(&head, "hi\n"));
    root.put(
        "agents/bob/inbox/new/far.md",
        &file(&json!({"id": "far", "reply_to": "a@b"}), "hi\n"),
    );
    let bob = root.store("bob");
    let mut books = Books::default();
    books.scan(&bob);
    let at = books.messages["m"].at;
    let record = Store::read(&bob, &at).unwrap();
    assert_eq!(record.message.in_reply_to.as_deref(), Some("a"));
    assert_eq!(record.parts.iter().map(|p| p.name.as_str()).collect::<Vec<_>>(), ["labels.txt"]);
    assert!(matches!(bob.open_part(&at, "labels.txt"), Ok(Part::Bytes(b)) if *b == *b"x\n"));
    let reply = |id: &str| Draft {
        in_reply_to: Some(id.into()),
        is_reply: true,
        ..draft(&["alice"], "LGTM")
    };
    let made = prepare(&bob, &reply("m")).unwrap();
    let read = message::parse(made.bytes.as_bytes()).unwrap();
    assert_eq!((read.thread.as_str(), read.subject.as_deref()), ("t", Some("Re: s")));
    assert_eq!(
        (read.kind.as_deref(), read.priority.as_deref()),
        (Some("review_response"), Some("normal"))
    );
    assert_eq!(read.refs, ["a", "m"]);
    let far = prepare(&bob, &reply("far")).unwrap_err();
    assert!(far.to_string().contains("another queue"), "{far}");
}

proptest! {
    #[test]
    fn any_bytes_can_be_read(bytes in proptest::collection::vec(any::<u8>(), 0..300), text in "(---json\n)?\\{?[\"a-z:,\\[\\]{}0-9 \n-]{0,60}(\n---\n)?.{0,9}") {
        let _ = message::parse(&bytes);
        let _ = message::parse(text.as_bytes());
    }

    #[test]
    fn what_is_composed_is_read_back(body in "\\PC{0,40}", subject in "[^\\p{Cc}]{0,20}") {
        let to = ["bob".to_owned()];
        let header = message::Header {
            schema: 1, id: "m", from: "alice", to: &to, thread: "t", subject: &subject,
            created: "2026-11-22T08:32:10Z".into(), refs: &[], priority: None, kind: None, idem: None,
            key: message::key_text(&crate::model::PublicKey([1; 32])), sig: None,
        };
        let text = message::compose(header, &body, |_| [0; 64]);
        let read = message::parse(text.as_bytes()).unwrap();
        prop_assert_eq!(read.body.strip_suffix('\n').unwrap_or(""), body.as_str());
        prop_assert_eq!(read.subject.unwrap_or_default(), subject);
        let signed = matches!(read.claim, Some(Claim::Signed { .. }));
        prop_assert!(signed);
    }
}
