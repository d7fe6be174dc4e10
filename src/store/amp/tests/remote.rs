//! Mail that links carry away and bring.

use crate::store::MessageReader as _;
use std::sync::Arc;

use super::super::multicast::AmpMulticast;
use super::sending::{draft, prepare};
use super::*;
use crate::model::PublicKey;
use crate::model::locks::Mutex;
use crate::store::{
    DeliveryFate, Durability, InboundMail, LinkRouter, OutboundMail, RemoteMail as _,
};

/// A router for tests.
#[derive(Debug, Default)]
struct Road {
    taken: Mutex<Vec<OutboundMail>>,
    fate: Mutex<Option<DeliveryFate>>,
    given: Mutex<Option<String>>,
    /// True if the next sync fails.
    is_full: Mutex<bool>,
}

impl LinkRouter for Road {
    fn find_link(&self, address: &str) -> Result<Option<String>, String> {
        if address.starts_with("two@") {
            return Err("several links reach it: a, b".into());
        }
        let reached = registration::score_reach("alice@acme.crabmail.ai", address).is_some();
        Ok(reached.then(|| "crabmail.ai".into()))
    }

    fn link_names(&self) -> Vec<String> {
        vec!["crabmail.ai".into()]
    }

    fn can_reach(&self, link: &str, address: &str) -> bool {
        link == "crabmail.ai" && matches!(self.find_link(address), Ok(Some(_)))
    }

    fn find_link_as(&self, mine: &str, address: &str) -> Option<String> {
        self.find_link(address).ok()?.filter(|_| mine == "alice@acme.crabmail.ai")
    }

    fn own_address(&self, link: &str) -> Option<String> {
        (link == "crabmail.ai").then(|| "alice@acme.crabmail.ai".into())
    }

    fn check_file_sizes(&self, _: &str, files: &[u64]) -> Result<(), String> {
        if files.is_empty() { Ok(()) } else { Err("x takes no attachments".into()) }
    }

    fn accept_mail(&self, link: &str, parcel: &OutboundMail) -> io::Result<()> {
        assert_eq!(link, "crabmail.ai");
        let mut taken = self.taken.lock();
        if !taken.contains(parcel) {
            taken.push(parcel.clone());
        }
        Ok(())
    }

    fn sync_accepted(&self) -> io::Result<()> {
        let is_full = std::mem::take(&mut *self.is_full.lock());
        if is_full { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
    }

    fn delivery_fate(&self, _: &str, _: &str) -> Option<DeliveryFate> {
        self.fate.lock().clone()
    }

    fn engine_id(&self, _: &str, _: &str) -> Option<String> {
        self.given.lock().clone()
    }
}

/// Returns a host on which alice is registered elsewhere.
fn registered() -> (Host, Arc<Road>) {
    let host = Host::new(&["alice", "bob"]);
    register(&host, "alice", "crabmail.ai", "alice@acme.crabmail.ai");
    (host, Arc::default())
}

fn register(host: &Host, agent: &str, provider: &str, address: &str) {
    let folder = host.agents().join(agent).join("registrations");
    std::fs::create_dir_all(&folder).unwrap();
    let json = serde_json::json!({"provider": provider, "address": address});
    std::fs::write(folder.join(format!("{provider}.json")), json.to_string()).unwrap();
}

fn joined(host: &Host, me: &str, road: &Arc<Road>) -> AmpStore {
    let store =
        AmpStore::open(&StoreSpec { state: Some(host.dir.path().join("state")), ..host.spec(me) });
    let store = store.unwrap();
    store.set_router(Arc::clone(road) as Arc<dyn LinkRouter>);
    store
}

/// Returns a message from elsewhere, in the form in which a link files it.
fn arrived(id: &str, own: Option<&str>, re: Option<&str>) -> InboundMail {
    let mut message = mail(id, "carol", "alice");
    message.from = "carol@acme.crabmail.ai".into();
    message.to = "alice@acme.crabmail.ai".into();
    let mut payload = serde_json::json!({"message": "hi", "type": "request"});
    if let Some(own) = own {
        payload["context"] = serde_json::json!({"msgfs": {"id": own}});
    }
    let hash = base64(&sha2::Sha256::digest(payload.to_string().as_bytes()));
    let answers = re.unwrap_or_default();
    let signed = format!("{}|{}|s|normal|{answers}|{hash}", message.from, message.to);
    let signature = base64(&Key::from(key_of("carol")).sign(signed.as_bytes()));
    let json = serde_json::json!({
        "envelope": {"version": "amp/0.1", "id": id, "from": message.from, "to": message.to,
            "subject": "s", "priority": "normal", "timestamp": "2026-04-24T17:42:03Z",
            "in_reply_to": re, "signature": signature},
        "payload": payload,
        "metadata": {"status": "unread"},
        "local": {"received_at": "2026-04-24T17:42:05Z", "status": "unread",
            "delivery_method": "relay", "fetched_from": "crabmail.ai"},
    });
    InboundMail {
        name: id.into(),
        other_name: format!("{id}_other"),
        bytes: json.to_string().into_bytes(),
        ..InboundMail::default()
    }
}

fn carols_key() -> PublicKey {
    PublicKey(key_of("carol").verifying_key().to_bytes())
}

fn file(store: &AmpStore, arrived: &InboundMail) {
    crate::store::RemoteMail::file_mail(store, arrived).unwrap();
}

const CAROL: &str = "carol@acme.crabmail.ai";

#[test]
fn who_has_no_mailbox_here_is_handed_to_a_link_and_it_is_in_sent() {
    let (host, road) = registered();
    let store = joined(&host, "alice", &road);
    let to = "Carol@acme.crabmail.ai";
    assert_eq!(
        (store.address_fit(to), store.address_fit("x@acme.other.ai")),
        (AddressFit::Exact, AddressFit::Plain)
    );
    assert!(store.is_registered(to) && !store.is_registered("x@acme.other.ai"));
    *road.fate.lock() = Some(DeliveryFate::Waits("it is on its way".into()));
    let both = Draft { to: vec![to.into(), "bob".into()], ..draft("bob", "x") };
    let made = prepare(&store, &both, None).unwrap();
    for one in [&made[0], &made[1], &made[0]] {
        store.append_record(one).unwrap();
    }
    let taken = road.taken.lock().clone();
    assert_eq!(taken.len(), 1);
    assert_eq!((taken[0].to.as_str(), &taken[0].message_id), (CAROL, &made[0].id));
    let json: serde_json::Value = serde_json::from_slice(&taken[0].bytes).unwrap();
    assert_eq!(
        json["payload"]["context"]["recipients"],
        serde_json::json!([CAROL, address("bob")])
    );
    assert_eq!(json["envelope"]["from"], "alice@acme.crabmail.ai");
    assert_eq!(json["payload"]["context"]["msgfs"]["id"], made[0].id.as_str());
    let books = Book::scanned(&store);
    let kept = books.one(&made[0].id);
    assert!(kept.from_me && kept.has_note && kept.valid() == Some(true));
    assert!(!books.one(&made[1].id).has_note, "bob is here");
    let note = store.read_record(&kept.at).unwrap().note.unwrap();
    assert_eq!(note, format!("waits for {CAROL} and is tried again by itself: it is on its way\n"));
    for (to, why) in [("two@acme.crabmail.ai", "a, b"), ("x@acme.other.ai", "other.ai")] {
        let error = prepare(&store, &draft(to, "x"), None).unwrap_err();
        assert!(matches!(&error, StoreError::Unreachable(text) if text.contains(why)), "{error}");
    }
    let without = AmpStore::open(&host.spec("alice")).unwrap();
    assert!(matches!(prepare(&without, &draft(to, "x"), None), Err(StoreError::Unreachable(_))));
}

#[test]
fn a_note_goes_when_it_was_taken_and_the_id_given_there_is_kept_on_the_file() {
    let (host, road) = registered();
    let store = joined(&host, "alice", &road);
    *road.fate.lock() = Some(DeliveryFate::Waits("down".into()));
    let made = prepare(&store, &draft(CAROL, "x"), None).unwrap().remove(0);
    store.append_record(&made).unwrap();
    let mut books = Book::scanned(&store);
    let path = host.agents().join("alice/messages/sent/carol_acme_crabmail_ai");
    let path = path.join(format!("{}.json", made.id));
    let before = std::fs::read_to_string(&path).unwrap();
    assert!(!store.deliver_waiting().unwrap());
    *road.fate.lock() = Some(DeliveryFate::Taken);
    *road.given.lock() = Some("msg_9_server".into());
    books.scan(&store, false);
    assert!(!books.one(&made.id).has_note);
    assert!(store.deliver_waiting().unwrap() && !store.deliver_waiting().unwrap());
    books.scan(&store, false);
    let after = std::fs::read_to_string(&path).unwrap();
    let (head, tail) = before.split_at(before.rfind('"').unwrap() + 1);
    assert_eq!(after, format!("{head},\n    \"relayed_id\": \"msg_9_server\"{tail}"));
    assert_eq!(books.one(&made.id).valid(), Some(true));
    // A reply names it by that id, even when the links have forgotten.
    let again = joined(&host, "alice", &Arc::default());
    file(&again, &arrived("msg_2_b", None, Some("msg_9_server")));
    let books = Book::scanned(&again);
    assert_eq!(books.one("msg_2_b").in_reply_to.as_deref(), Some(made.id.as_str()));
}

/// A loss of power can take what a link accepted and leave the file in `sent/`. The message is appended again then.
#[test]
fn a_message_whose_link_lost_it_is_followed_once_it_is_handed_over_again() {
    let (host, road) = registered();
    let store = joined(&host, "alice", &road);
    let made = prepare(&store, &draft(CAROL, "x"), None).unwrap().remove(0);
    store.append_record(&made).unwrap();
    let mut books = Book::scanned(&store);
    assert!(!books.one(&made.id).has_note);
    store.append_record(&made).unwrap();
    *road.fate.lock() = Some(DeliveryFate::Waits("down".into()));
    books.scan(&store, false);
    assert!(books.one(&made.id).has_note);
}

/// Only the caller that appends messages learns that a link could not sync them, because it hands them over again.
#[test]
fn a_link_that_cannot_sync_is_an_error_of_the_append() {
    let (host, road) = registered();
    let store = joined(&host, "alice", &road);
    *road.is_full.lock() = true;
    file(&store, &arrived("msg_1_a", None, None));
    let error = store.sync_appends().unwrap_err();
    assert!(error.to_string().contains("no storage space"), "{error}");
    store.sync_appends().unwrap();
    // Without syncs of appends, each append syncs the link.
    let spec = StoreSpec { durability: Durability::None, ..host.spec("alice") };
    let store = AmpStore::open(&spec).unwrap();
    store.set_router(Arc::clone(&road) as Arc<dyn LinkRouter>);
    let made = prepare(&store, &draft(CAROL, "x"), None).unwrap().remove(0);
    *road.is_full.lock() = true;
    store.append_record(&made).unwrap_err();
    store.append_record(&made).unwrap();
}

#[test]
fn a_refusal_is_told_after_a_restart_and_taken_mail_is_noted_down_then() {
    let (host, road) = registered();
    let store = joined(&host, "alice", &road);
    *road.fate.lock() = Some(DeliveryFate::Waits("down".into()));
    let made = prepare(&store, &draft(CAROL, "x"), None).unwrap().remove(0);
    store.append_record(&made).unwrap();
    let mut books = Book::scanned(&store);
    let saved = store.save_cursors();
    *road.fate.lock() = Some(DeliveryFate::Refused("404 not_found".into()));
    let store = joined(&host, "alice", &road);
    assert!(store.restore_cursors(&saved));
    books.scan(&store, true);
    let at = books.one(&made.id).at;
    assert!(books.one(&made.id).has_note);
    assert!(
        store.read_record(&at).unwrap().note.unwrap().contains("refused for good: 404 not_found")
    );
    *road.fate.lock() = Some(DeliveryFate::Taken);
    *road.given.lock() = Some("msg_9_server".into());
    let store = joined(&host, "alice", &road);
    assert!(store.restore_cursors(&saved));
    books.scan(&store, true);
    assert!(!books.one(&made.id).has_note);
    assert!(store.deliver_waiting().unwrap());
}

#[test]
fn what_is_brought_is_filed_once_under_its_name_and_judged_by_the_key_that_came() {
    let (host, road) = registered();
    let store = joined(&host, "alice", &road);
    let mut books = Book::scanned(&store);
    file(&store, &arrived("msg_1_a", None, None));
    books.scan(&store, false);
    let kept = books.one("msg_1_a");
    assert_eq!((kept.to_me, kept.valid(), kept.from.as_ref()), (true, Some(false), CAROL));
    // The key comes later: the message is judged again.
    let keys = vec![(CAROL.to_owned(), carols_key())];
    file(&store, &InboundMail { keys: keys.clone(), ..InboundMail::default() });
    books.scan(&store, false);
    assert_eq!(books.one("msg_1_a").valid(), Some(true));
    let folder = host.agents().join("alice/messages/inbox/carol_acme_crabmail_ai");
    file(&store, &arrived("msg_1_a", None, None));
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 1);
    // Another text under the same id is another message, and the first stays as it was.
    file(&store, &arrived("msg_1_a", Some("msg_1_own"), None));
    file(&store, &arrived("msg_1_a", Some("msg_1_own"), None));
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 2);
    books.scan(&store, false);
    assert_eq!(ids(&books), ["msg_1_a", "msg_1_a"]);
    // Another key for the same sender changes nothing, now and after a restart.
    let other = PublicKey(key_of("mallory").verifying_key().to_bytes());
    let keys = vec![(CAROL.to_owned(), other)];
    file(&store, &InboundMail { keys, ..InboundMail::default() });
    let again = Book::scanned(&joined(&host, "alice", &road));
    assert!(again.messages.values().all(|kept| kept.valid() == Some(true)));
    let state = host.dir.path().join("state");
    assert_eq!(mode(&state.join("keys.json")), 0o600);
    // A process that writes nothing knows the key, too.
    let reader = host.open("alice");
    reader.read_state(&state).unwrap();
    assert!(Book::scanned(&reader).messages.values().all(|kept| kept.valid() == Some(true)));
}

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o777
}

/// After a lost response the provider has the message twice, under two ids, with the same signed bytes.
#[test]
fn a_second_copy_is_the_same_message_whoever_filed_it() {
    let (host, road) = registered();
    let store = joined(&host, "alice", &road);
    let keys = vec![(CAROL.to_owned(), carols_key())];
    file(&store, &InboundMail { keys, ..InboundMail::default() });
    file(&store, &arrived("msg_1_a", Some("msg_1_own"), None));
    let mut books = Book::scanned(&store);
    file(&store, &arrived("msg_1_b", Some("msg_1_own"), None));
    let folder = host.agents().join("alice/messages/inbox/carol_acme_crabmail_ai");
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 1, "it is not filed at all");
    // Another program files it.
    let second = arrived("msg_1_b", Some("msg_1_own"), None);
    host.put("alice", "inbox/carol_acme_crabmail_ai/msg_1_b.json", &second.bytes);
    books.scan(&store, true);
    assert_eq!(ids(&books), ["msg_1_a"]);
    assert!(store.read_record(&books.one("msg_1_a").at).unwrap().message.warnings.is_empty());
    let fresh = joined(&host, "alice", &road);
    assert_eq!(Book::scanned(&fresh).messages.len(), 1);
    // Replies find it by each of its three ids.
    for (n, re) in ["msg_1_a", "msg_1_b", "msg_1_own"].into_iter().enumerate() {
        let id = format!("msg_2_{n}");
        file(&store, &arrived(&id, None, Some(re)));
        books.scan(&store, false);
        assert_eq!(books.one(&id).in_reply_to.as_deref(), Some("msg_1_a"), "{re}");
    }
    // When the shown file goes, the other one replaces it.
    std::fs::remove_file(folder.join("msg_1_a.json")).unwrap();
    books.scan(&store, true);
    assert!(ids(&books).contains(&"msg_1_b"));
    // Without the signed id they are two messages.
    file(&store, &arrived("msg_3_a", None, None));
    file(&store, &arrived("msg_3_b", None, None));
    books.scan(&store, false);
    assert!(ids(&books).contains(&"msg_3_a") && ids(&books).contains(&"msg_3_b"));
}

/// S1281: a changed copy that another program filed first, under the same id or another, keeps no message out.
#[test]
fn s1281_a_changed_copy_keeps_no_arriving_message_out() {
    for copied in ["msg_1_a", "msg_1_b"] {
        let (host, road) = registered();
        let store = joined(&host, "alice", &road);
        let keys = vec![(CAROL.to_owned(), carols_key())];
        file(&store, &InboundMail { keys, ..InboundMail::default() });
        let copy = arrived(copied, Some("msg_1_own"), None);
        let copy = String::from_utf8(copy.bytes).unwrap().replace("\"hi\"", "\"hi\\n\"");
        let path = format!("inbox/carol_acme_crabmail_ai/{copied}.json");
        host.put("alice", &path, copy.as_bytes());
        let mut books = Book::scanned(&store);
        file(&store, &arrived("msg_1_a", Some("msg_1_own"), None));
        books.scan(&store, true);
        assert_eq!(books.one("msg_1_a").valid(), Some(true), "{copied}");
        // It is filed once.
        file(&store, &arrived("msg_1_a", Some("msg_1_own"), None));
        let folder = host.agents().join("alice/messages/inbox/carol_acme_crabmail_ai");
        assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 2, "{copied}");
    }
}

#[test]
fn a_reply_that_came_first_finds_its_parent_by_any_id() {
    let (host, road) = registered();
    let store = joined(&host, "alice", &road);
    file(&store, &arrived("msg_2_b", None, Some("msg_1_own")));
    let mut books = Book::scanned(&store);
    assert_eq!(books.one("msg_2_b").in_reply_to.as_deref(), Some("msg_1_own"));
    file(&store, &arrived("msg_1_a", Some("msg_1_own"), None));
    books.scan(&store, false);
    assert_eq!(books.one("msg_2_b").in_reply_to.as_deref(), Some("msg_1_a"));
}

#[test]
fn a_reply_names_its_parent_as_it_is_known_elsewhere() {
    let (host, road) = registered();
    let store = joined(&host, "alice", &road);
    let keys = vec![(CAROL.to_owned(), carols_key())];
    file(&store, &InboundMail { keys, ..InboundMail::default() });
    file(&store, &arrived("msg_1_a", Some("msg_1_own"), None));
    file(&store, &arrived("msg_1_b", None, None));
    let books = Book::scanned(&store);
    for (parent, named) in [("msg_1_a", "msg_1_own"), ("msg_1_b", "msg_1_b")] {
        let message = store.read_record(&books.one(parent).at).unwrap().message;
        let mut answer = draft(CAROL, "yes");
        answer.is_reply = true;
        answer.in_reply_to = Some(parent.into());
        let made = prepare(&store, &answer, Some(&message)).unwrap().remove(0);
        let json: serde_json::Value = serde_json::from_str(&made.bytes).unwrap();
        assert_eq!(json["envelope"]["in_reply_to"], named);
        store.append_record(&made).unwrap();
        let mut books = Book::scanned(&store);
        books.scan(&store, true);
        assert_eq!(books.one(&made.id).in_reply_to.as_deref(), Some(parent), "in my own store");
    }
}

#[test]
fn what_a_provider_in_local_writes_to_my_name_is_mine_and_what_a_stranger_writes_is_not() {
    let host = Host::new(&["alice"]);
    register(&host, "alice", "acme.aimaestro.local", "alice@acme.aimaestro.local");
    let store = joined(&host, "alice", &Arc::default());
    let bring = |id: &str, to: &str, provider: &str| {
        let json = serde_json::json!({
            "envelope": {"id": id, "from": "gateway@host-1.aimaestro.local", "to": to, "subject": "s"},
            "payload": {"message": "hi", "type": "request"},
            "local": {"delivery_method": "relay", "fetched_from": provider},
        });
        let bytes = json.to_string().into_bytes();
        file(&store, &InboundMail { name: id.into(), bytes, ..InboundMail::default() });
    };
    bring("msg_1_a", "alice@host-1.aimaestro.local", "acme.aimaestro.local");
    bring("msg_1_b", "alice", "acme.aimaestro.local");
    bring("msg_1_c", "alice@host-1.aimaestro.local", "evil.example");
    bring("msg_1_d", "bob@host-1.aimaestro.local", "acme.aimaestro.local");
    bring("msg_1_e", "alice@host-1.aimaestro.local", "other.aimaestro.local");
    let books = Book::scanned(&store);
    assert_eq!(ids(&books), ["msg_1_a", "msg_1_b"]);
    assert_eq!(books.reasons().len(), 3);
}

#[test]
fn a_message_to_several_elsewhere_is_shown_once_and_says_who_has_it_not() {
    let (host, road) = registered();
    let store = joined(&host, "alice", &road);
    *road.fate.lock() = Some(DeliveryFate::Waits("down".into()));
    let dave = "dave@acme.crabmail.ai";
    let both = Draft { to: vec![CAROL.into(), dave.into()], ..draft(CAROL, "x") };
    let made = prepare(&store, &both, None).unwrap();
    for one in &made {
        store.append_record(one).unwrap();
    }
    let books = Book::scanned(&store);
    let (first, other) = (books.one(&made[0].id), books.one(&made[1].id));
    let [of_first, of_other] = [&first, &other].map(|found| found.multicast.unwrap());
    assert_eq!((of_first.key, of_first.digest), (of_other.key, of_other.digest));
    assert!(of_first.is_first && !of_other.is_first && first.has_note);
    let note = store.read_record(&first.at).unwrap().note.unwrap();
    assert!(note.contains(CAROL) && note.contains(dave), "{note}");
    // The message has another id at its destination, and each reply names its own.
    let mine = "alice@acme.crabmail.ai";
    let own = AmpMulticast::new(Timestamp::now(), CAROL, &[mine, dave], ("s", "hi"));
    let mut letter = arrived("msg_1_a", Some(&own.message_id_for(mine)), None);
    let text = String::from_utf8(letter.bytes).unwrap();
    let list = format!("\"context\":{{\"recipients\":[\"{mine}\",\"{dave}\"],");
    letter.bytes = text.replace("\"context\":{", &list).into_bytes();
    file(&store, &letter);
    let books = Book::scanned(&store);
    assert_eq!(books.one("msg_1_a").thread, own.thread_id());
    let parent = store.read_record(&books.one("msg_1_a").at).unwrap().message;
    let to = vec![CAROL.into(), dave.into()];
    let answer =
        Draft { to, is_reply: true, in_reply_to: Some("msg_1_a".into()), ..draft("x", "y") };
    let made = prepare(&store, &answer, Some(&parent)).unwrap();
    let named = |n: usize| {
        envelope::parse(made[n].bytes.as_bytes()).unwrap().in_reply_to.unwrap().into_owned()
    };
    assert_eq!((named(0), named(1)), (own.message_id_for(mine), own.message_id_for(dave)));
}

/// A mesh replaces the signed address by my bare name.
#[test]
fn a_short_form_of_my_address_is_verified_with_the_whole() {
    let host = Host::new(&["alice", "bob"]);
    let mut message = mail("msg_1_a", "bob", "alice");
    message.signer = Some("bob");
    for (id, to, valid) in [("msg_1_a", "alice", true), ("msg_1_b", "alice@local", true)] {
        let json = message.json().replace("msg_1_a", id);
        let json =
            json.replace("\"to\": \"alice@acme.aimaestro.local\"", &format!("\"to\": \"{to}\""));
        assert!(json.contains(&format!("\"to\": \"{to}\"")), "{json}");
        host.put("alice", &format!("inbox/x/{id}.json"), json.as_bytes());
        let books = Book::scanned(&host.open("alice"));
        assert_eq!(books.one(id).valid(), Some(valid), "{to}");
    }
}

#[test]
fn no_attachments_go_to_a_provider() {
    let (host, road) = registered();
    let store = joined(&host, "alice", &road);
    let mut with_file = draft(CAROL, "x");
    with_file.attachments = vec![crate::model::DraftAttachment {
        name: "a.txt".into(),
        path: host.dir.path().join("a.txt"),
        size: 1,
        sha256: "00".repeat(32),
    }];
    let error = prepare(&store, &with_file, None).unwrap_err();
    assert!(
        matches!(&error, StoreError::Unreachable(why) if why.contains("takes no attachments")),
        "{error}"
    );
}

/// S6: mail under an address that a registration gave me stays mine while the file is half-written or missing. Of what
/// nothing else tells, my key proves which messages I wrote.
#[test]
fn mail_under_my_address_stays_mine_without_the_registration() {
    let (host, road) = registered();
    let store = joined(&host, "alice", &road);
    let made = prepare(&store, &draft(CAROL, "x"), None).unwrap();
    store.append_record(&made[0]).unwrap();
    file(&store, &arrived("msg_1_a", None, None));
    let mut books = Book::scanned(&store);
    let is_whole = |books: &Book| {
        books.rejected.is_empty()
            && books.one(&made[0].id).from_me
            && books.one(&made[0].id).valid() != Some(false)
            && books.one("msg_1_a").to_me
    };
    assert!(is_whole(&books));
    let path = host.agents().join("alice/registrations/crabmail.ai.json");
    std::fs::write(&path, "{\"provider\": \"crab").unwrap();
    books.scan(&store, true);
    assert!(is_whole(&books), "half of the file is there");
    std::fs::remove_file(&path).unwrap();
    books.scan(&store, true);
    assert!(is_whole(&books), "the file is gone");
    assert!(is_whole(&Book::scanned(&joined(&host, "alice", &road))));
    let state = host.dir.path().join("state");
    let reader = host.open("alice");
    reader.read_state(&state).unwrap();
    assert!(is_whole(&Book::scanned(&reader)), "this process writes nothing");
    // Nothing knows the address, but my key signed what lies in my sent folder under it. So mail to it is mine, too.
    std::fs::remove_file(state.join("addresses.json")).unwrap();
    let forgetful = joined(&host, "alice", &road);
    let mut books = Book::scanned(&forgetful);
    assert!(books.one(&made[0].id).from_me);
    books.scan(&forgetful, true);
    assert!(is_whole(&books));
    // Without my signature it is not mine.
    let forged = host.agents().join("alice/messages/sent/carol_acme_crabmail_ai");
    for entry in std::fs::read_dir(&forged).unwrap().flatten() {
        let text = std::fs::read_to_string(entry.path()).unwrap();
        let text = text.replace("alice@acme.crabmail.ai", "alice@acme.other.ai");
        std::fs::write(entry.path(), text).unwrap();
    }
    books.scan(&forgetful, true);
    assert_eq!(books.rejected.len(), 1);
}
