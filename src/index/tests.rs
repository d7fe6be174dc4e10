//! Tests of the whole index: keys, digits, rescans, watermark, snapshot.

mod passed;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::Path;

use proptest::prelude::*;

use super::mark_log::MarkValue;
use super::messages::{MessageHome, SignatureKind, StoreInfo, mix_id, unmix_id};
use super::tables::InsertOutcome;
use super::testing::{tables_of, with_stores};
use super::*;
use crate::identity::Keyring;
use crate::model::PublicKey;
use crate::store::{FoundMessage, Kind, Location, Rejection, RepeatKind, StoreSpec};

const ID_A: &str = "00112233445566aa";
const ID_B: &str = "00112233445566bb";

fn found(from: &'static str, id: &str, secs: i64, offset: u64) -> FoundMessage<'static> {
    FoundMessage {
        at: Location { source: 0, offset, len: 100 },
        line: 1,
        from: Cow::Borrowed(from),
        to: "me".into(),
        thread: "t".into(),
        id: Cow::Owned(id.to_owned()),
        time: Timestamp::from_secs(secs),
        to_me: true,
        repeat_kind: RepeatKind::Same,
        ..FoundMessage::default()
    }
}

fn new_tables() -> IndexTables {
    let info = |name: &str| StoreInfo { whole_seconds: true, ..StoreInfo::with_name(name) };
    tables_of(vec![info("samp"), info("work")])
}

/// Returns the milliseconds from a message's time to the time in its name.
fn name_offset(tables: &IndexTables, ix: MsgIx) -> i64 {
    let entry = tables.messages.entry(ix);
    tables.messages.name_time(entry).millis() - entry.time().millis()
}

#[track_caller]
fn add(tables: &mut IndexTables, store: usize, found: &FoundMessage<'_>) -> MsgIx {
    let InsertOutcome::New(ix) = tables.insert_message(store, found) else {
        panic!("{found:?} is not new")
    };
    tables.admit_message(ix);
    ix
}

#[test]
fn a_key_is_writer_and_id_of_one_store() {
    let mut tables = new_tables();
    let a = add(&mut tables, 0, &found("foo", ID_A, 5, 0));
    assert_eq!(tables.insert_message(0, &found("foo", ID_A, 5, 200)), InsertOutcome::Known);
    let others = [
        add(&mut tables, 0, &found("foo", ID_B, 5, 300)),
        add(&mut tables, 0, &found("zed", ID_A, 5, 400)),
        add(&mut tables, 1, &found("foo", ID_A, 5, 500)),
        add(&mut tables, 0, &found("foo", "not hex", 5, 600)),
        add(&mut tables, 0, &found("foo", "", 5, 700)),
    ];
    let mut identities: Vec<u64> =
        others.iter().chain([&a]).map(|ix| tables.messages.entry(*ix).identity()).collect();
    identities.sort_unstable();
    identities.dedup();
    assert_eq!(identities.len(), 6);
    for (store, from, id, ix) in
        [(0, "foo", ID_A, a), (1, "foo", ID_A, others[2]), (0, "foo", "not hex", others[3])]
    {
        assert_eq!(tables.messages.find_message(store, from, id), Some(ix));
        assert_eq!(tables.messages.id(tables.messages.entry(ix)), id);
    }
    assert_eq!(tables.messages.find_message(1, "zed", ID_A), None);
    assert_eq!(tables.marks.unread_count(), 6);
}

#[test]
fn another_text_under_a_known_id_is_refused_unless_it_hashes_to_it() {
    let mut tables = new_tables();
    add(&mut tables, 0, &found("foo", ID_A, 5, 0));
    let other = |change: fn(&mut FoundMessage<'_>)| {
        let mut f = FoundMessage { repeat_kind: RepeatKind::Claimed, ..found("foo", ID_A, 5, 200) };
        change(&mut f);
        f
    };
    // A copy by a program whose ids do not verify here is still a copy.
    assert_eq!(tables.insert_message(0, &other(|_| {})), InsertOutcome::Known);
    for forged in [
        other(|f| f.time = Timestamp::from_secs(6)),
        other(|f| f.to = "zed".into()),
        other(|f| f.thread = "u".into()),
        other(|f| f.at.len = 101),
    ] {
        assert_eq!(tables.insert_message(0, &forged), InsertOutcome::IdTaken, "{forged:?}");
    }
    assert_eq!(tables.marks.unread_count(), 1);
}

#[test]
fn an_id_crafted_to_look_like_another_message_gets_an_identity_of_its_own() {
    let mut tables = new_tables();
    let a = add(&mut tables, 0, &found("foo", ID_A, 5, 0));
    let (writer, _) = tables.messages.intern_writer(MessageHome::of_store(0), "mallory");
    tables.trust.add_writer(writer);
    let salt = tables.messages.names().writer(writer).salt;
    let crafted = format!("{:016x}", unmix_id(tables.messages.entry(a).hash(), salt));
    let b = add(&mut tables, 0, &found("mallory", &crafted, 5, 100));
    assert_ne!(tables.messages.entry(a).identity(), tables.messages.entry(b).identity());
    assert_eq!(tables.messages.id(tables.messages.entry(b)), crafted);
    assert_eq!(tables.messages.find_message(0, "mallory", &crafted), Some(b));
    assert_eq!(tables.insert_message(0, &found("mallory", &crafted, 5, 900)), InsertOutcome::Known);
    assert_ne!(mix_id(1, 2), mix_id(1, 3));
}

#[test]
fn digits_count_the_earlier_messages_of_a_second_in_log_order() {
    let mut tables = new_tables();
    let mut digits = |from: &'static str, secs: i64| {
        let n = tables.messages.messages_so_far() as u64;
        let ix = add(&mut tables, 0, &found(from, &format!("{n:016x}"), secs, n));
        name_offset(&tables, ix)
    };
    let times = [10, 10, 11, 10, 12, 11, 9, 9, 12, 10];
    assert_eq!(times.map(|secs| digits("foo", secs)), [0, 1, 0, 2, 0, 1, 0, 1, 1, 3]);
    assert_eq!([10, 10].map(|secs| digits("zed", secs)), [0, 1]);
    for expected in (0..1000).chain([999, 999]) {
        assert_eq!(digits("busy", -7), expected);
    }
}

#[test]
fn lists_stay_in_order_whatever_arrives_when() {
    let mut tables = new_tables();
    for (n, secs) in [5, 3, 9, 3, 7, 1].into_iter().enumerate() {
        add(&mut tables, 0, &found("foo", &format!("{n:016x}"), secs, n as u64));
    }
    let times = |list: Vec<MsgIx>| -> Vec<i64> {
        list.iter().map(|ix| tables.messages.entry(*ix).time().secs()).collect()
    };
    assert_eq!(times(tables.messages.lists().messages_to_me().collect()), [1, 3, 3, 5, 7, 9]);
    assert_eq!(
        times(tables.threads.thread_messages(&tables.messages, ThreadIx::MIN)),
        [1, 3, 3, 5, 7, 9]
    );
}

/// A message that the store finds elsewhere, and no longer in my mailbox, leaves the list of messages to me.
#[test]
fn a_message_that_is_no_longer_to_me_is_not_listed() {
    for bulk in [false, true] {
        let mut tables = new_tables();
        if bulk {
            tables.messages.begin_bulk_load();
        }
        let restated = |secs, to_me| FoundMessage {
            to_me,
            repeat_kind: RepeatKind::Restated,
            ..found("foo", ID_A, secs, 0)
        };
        let ix = add(&mut tables, 0, &restated(5, true));
        let other = add(&mut tables, 0, &found("foo", ID_B, 6, 100));
        tables.insert_message(0, &restated(5, false));
        tables.messages.sort_lists();
        assert_eq!(tables.messages.lists().sorted_to_me(), [other], "bulk: {bulk}");
        tables.insert_message(0, &restated(5, true));
        assert_eq!(tables.messages.lists().sorted_to_me(), [ix, other], "bulk: {bulk}");
    }
}

/// Returns tables of which none is empty.
fn full_tables() -> IndexTables {
    let mut tables = new_tables();
    let a = add(&mut tables, 0, &found("foo", ID_A, 5, 0));
    let b = add(&mut tables, 0, &found("foo", "odd \u{e9}", 3, 100));
    let mine = FoundMessage {
        to: "foo, zed".into(),
        to_me: false,
        from_me: true,
        idempotency_key: Some("k".into()),
        ..found("me", ID_B, 5, 200)
    };
    add(&mut tables, 1, &mine);
    add(&mut tables, 1, &FoundMessage { thread: "".into(), ..found("zed", ID_A, 2, 300) });
    tables.trust.note_signature(
        &mut tables.messages,
        a,
        SignatureKind::Valid,
        Some(PublicKey([7; 32])),
    );
    tables.set_own_mark(b, true, false);
    let gone = MessageKey { store: "samp".into(), from: "gone".into(), id: ID_B.into() };
    tables.marks.apply_logged_mark(&mut tables.messages, 0, &gone, &MarkValue::Read(true));
    let label = MailLabel { flags: Some("F".into()), old: true, ..MailLabel::default() };
    let labelled = MarkValue::Label(label.clone());
    tables.marks.apply_logged_mark(&mut tables.messages, 0, &gone, &labelled);
    tables.marks.set_label(tables.messages.entry(a).identity(), label);
    tables.marks.note_answer(
        &tables.messages,
        0,
        &FoundMessage { in_reply_to: Some(ID_A.into()), from_me: true, ..FoundMessage::default() },
    );
    let at = Location { source: 3, offset: 9, len: 4 };
    let (reason, time) = ("bad".to_owned(), Timestamp::from_secs(4));
    let path = "log-x.jsonl".to_owned();
    tables.add_reject(1, Rejection { at, path, line: 2, reason, time, incomplete: true }, None);
    tables
}

/// Returns all answers that tables can give.
fn answers(tables: &mut IndexTables) -> Vec<String> {
    let mut out = Vec::new();
    for ix in (0..tables.messages.messages_so_far()).map(MsgIx::new) {
        let e = *tables.messages.entry(ix);
        let (from, id) = (tables.messages.sender(&e).to_owned(), tables.messages.id(&e));
        let found = tables.messages.find_message(e.store(), &from, &id) == Some(ix);
        let thread = tables.threads.thread_id(&tables.messages, e.thread());
        let told =
            (e.time(), tables.messages.name_time(&e), e.location(), e.is_read(), e.is_to_me());
        let more = (
            tables.messages.recipient_list(&e),
            tables.trust.signature(&tables.messages, &e),
            e.identity(),
            tables.messages.find_by_identity(e.identity()),
        );
        let mail = (tables.marks.label(&e), tables.marks.is_answered(&tables.messages, &e));
        out.push(format!("{ix:?} {from} {id} {found} {thread:?} {told:?} {more:?} {mail:?}"));
    }
    for t in tables.threads.visible_threads(true).collect::<Vec<_>>() {
        let identity = tables.threads.thread_identity(&tables.messages, t);
        assert_eq!(tables.threads.find_thread_by_identity(&tables.messages, identity), Some(t));
        out.push(format!(
            "{t:?} {:?} {}",
            tables.threads.thread_messages(&tables.messages, t),
            tables.threads.is_thread_visible(t, false)
        ));
    }
    out.push(format!(
        "{:?} {:?} {}",
        tables.messages.lists().sorted_to_me(),
        tables.messages.lists().sorted_from_me(),
        tables.marks.unread_count()
    ));
    out.push(format!("{:?}", tables.trust.rejects().collect::<Vec<_>>()));
    let identities: Vec<u64> = tables.trust.rejects().map(|(_, r)| r.identity).collect();
    assert!(identities.iter().all(|i| tables.trust.find_rejection(*i).is_some()));
    out.push(format!(
        "{:?} {:?}",
        tables.messages.find_by_idempotency_key("k"),
        tables.marks.orphan_marks()
    ));
    out.push(format!("{:?}", tables.messages.names().known_addresses().collect::<Vec<_>>()));
    // The counters behind the digits, and the kept marks, still work.
    for from in ["foo", "zed", "gone"] {
        let ix = add(tables, 0, &found(from, ID_B, 5, 1000));
        let e = *tables.messages.entry(ix);
        out.push(format!(
            "{from} {} {} {:?}",
            name_offset(tables, ix),
            e.is_read(),
            tables.marks.label(&e)
        ));
    }
    out
}

fn marks() -> MarkCheckpoint {
    let imported = [("samp".to_owned(), crate::store::Watermark::default())].into();
    MarkCheckpoint { len: 42, imported }
}

fn save(path: &Path, tables: &IndexTables, stores: &[Vec<u8>]) {
    let _ = std::fs::remove_file(path);
    snapshot::save(path, "print", tables, stores, marks(), BTreeMap::new()).unwrap();
}

/// Returns the tables of a snapshot. No piece is checked before its first use.
fn load(path: &Path, like: &IndexTables) -> Option<IndexTables> {
    let tables = snapshot::load(path, "print", true, 0)?.tables;
    Some(with_stores(tables, like.messages.names().stores().to_vec()))
}

#[test]
fn a_snapshot_gives_back_the_same_tables() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("index");
    let stores = [b"positions".to_vec(), Vec::new()];
    save(&path, &full_tables(), &stores);
    for (map, at_once) in [(true, 0), (true, u64::MAX), (false, 0)] {
        let mut back = snapshot::load(&path, "print", map, at_once).unwrap();
        assert_eq!((back.stores.as_slice(), &back.marks), (&stores[..], &marks()));
        back.tables = with_stores(back.tables, full_tables().messages.names().stores().to_vec());
        assert_eq!(answers(&mut back.tables), answers(&mut full_tables()));
    }
    assert!(snapshot::load(&path, "another print", true, 0).is_none());
    assert!(snapshot::load(&dir.path().join("none"), "print", true, 0).is_none());
}

/// Returns the answers from a snapshot. Returns `None` if it is discarded, at once or at its first use.
fn answered(path: &Path, bytes: &[u8], at_once: u64) -> Option<Vec<String>> {
    std::fs::write(path, bytes).unwrap();
    let restored = snapshot::load(path, "print", true, at_once)?;
    let mut tables = with_stores(restored.tables, new_tables().messages.names().stores().to_vec());
    let told = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| answers(&mut tables)));
    // The next process reads the stores.
    assert_eq!(told.is_ok(), path.exists());
    told.ok()
}

#[test]
fn a_damaged_snapshot_answers_nothing_wrong() {
    std::panic::set_hook(Box::new(|_| {}));
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("index");
    let right = answers(&mut full_tables());
    save(&path, &full_tables(), &[b"positions".to_vec()]);
    let good = std::fs::read(&path).unwrap();
    assert_eq!(answered(&path, &good, 0), Some(right.clone()));
    for at_once in [0, u64::MAX] {
        let mut refused = 0;
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 1 << (at % 8);
            match answered(&path, &bad, at_once) {
                None => refused += 1,
                // A flipped bit in the gap between two tables.
                Some(answers) => assert_eq!(answers, right, "a flipped bit in byte {at}"),
            }
        }
        assert!(refused > good.len() * 2 / 3, "{refused} of {}", good.len());
        for len in (0..good.len()).step_by(7) {
            assert!(answered(&path, &good[..len], at_once).is_none(), "cut to {len} bytes");
        }
        assert!(answered(&path, &[good.clone(), vec![0]].concat(), at_once).is_none());
    }
    let _ = std::panic::take_hook();
}

proptest! {
    /// Compares three ways to the same tables: a snapshot and new messages, a snapshot written from both, and
    /// all messages at once.
    #[test]
    fn a_snapshot_and_what_is_new_are_the_same_as_all_at_once(
        messages in prop::collection::vec((0usize..3, 0u64..40, 0i64..9, 0usize..4, any::<bool>()), 1..60),
        first in 0usize..60,
        marked in prop::collection::vec(0usize..60, 0..9),
    ) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("index");
        let put = |tables: &mut IndexTables, all: &[(usize, u64, i64, usize, bool)]| {
            for (from, id, secs, thread, hex) in all {
                let id = if *hex { format!("{id:016x}") } else { format!("number {id}") };
                let from = ["foo", "zed", "me"][*from];
                let thread = ["t", "u", "", "w\u{e9}"][*thread].into();
                let offset = tables.messages.messages_so_far() as u64;
                let found = FoundMessage { thread, from_me: from == "me", ..found(from, &id, *secs, offset) };
                if let InsertOutcome::New(ix) = tables.insert_message(0, &found) {
                    tables.admit_message(ix);
                }
            }
        };
        let mark = |tables: &mut IndexTables| {
            for ix in &marked {
                let Some(ix) = tables.messages.messages_since(0).nth(*ix) else { continue };
                let read = !tables.messages.entry(ix).is_read();
                tables.set_own_mark(ix, read, false);
            }
        };
        let mut all = new_tables();
        put(&mut all, &messages);
        let mut bulk = new_tables();
        bulk.messages.begin_bulk_load();
        put(&mut bulk, &messages);
        bulk.messages.sort_lists();
        prop_assert_eq!(bulk.messages.lists().sorted_to_me(), all.messages.lists().sorted_to_me());
        prop_assert_eq!(bulk.messages.lists().sorted_from_me(), all.messages.lists().sorted_from_me());
        mark(&mut all);
        let (old, new) = messages.split_at(first.min(messages.len()));
        let mut pieces = new_tables();
        put(&mut pieces, old);
        save(&path, &pieces, &[]);
        let mut pieces = load(&path, &pieces).unwrap();
        put(&mut pieces, new);
        mark(&mut pieces);
        save(&path, &pieces, &[]);
        let mut again = load(&path, &pieces).unwrap();
        let adopted = load(&path, &pieces).unwrap();
        let right = answers(&mut all);
        prop_assert_eq!(&answers(&mut again), &right);
        drop(pieces.adopt_tables(adopted));
        prop_assert_eq!(&answers(&mut pieces), &right);
    }
}

// --- over a real store --------------------------------------------------------------------------

fn open_with(dir: &Path, unsigned: Unsigned) -> Index {
    let store = crate::store::open(&StoreSpec {
        may_create: true,
        name: "samp".into(),
        kind: Kind::Samp,
        dir: dir.join("store"),
        me: "me".into(),
        ..StoreSpec::default()
    })
    .unwrap();
    let settings = IndexSettings {
        marks: dir.join("marks"),
        snapshot: dir.join("snapshot"),
        map: true,
        unsigned,
        read_only: false,
        my_keys: Vec::new(),
    };
    let keyring = Arc::new(Keyring::open(&dir.join("keyring.json")).unwrap());
    Index::open(vec![store], keyring, settings, &mut |_, _| {}).unwrap()
}

fn open(dir: &Path) -> Index {
    open_with(dir, Unsigned::Accept)
}

/// Appends records of `from` to me with these ids and times. The ids are not hashes of the texts.
fn append(dir: &Path, from: &str, records: &[(&str, i64)]) {
    use std::io::Write as _;
    let path = dir.join("store").join(format!("log-{from}.jsonl"));
    std::fs::create_dir_all(dir.join("store")).unwrap();
    let mut log = std::fs::OpenOptions::new().create(true).append(true).open(path).unwrap();
    for (id, ts) in records {
        let line = serde_json::json!(
            {"id": id, "ts": ts, "from": from, "to": "me", "thread": "t", "body": "x"}
        );
        log.write_all(format!("{line}\n").as_bytes()).unwrap();
    }
}

fn find(index: &Index, from: &str, id: &str) -> MsgIx {
    index.read().messages.find_message(0, from, id).unwrap()
}

fn inbox(index: &Index) -> Vec<MsgIx> {
    index.read().messages.lists().unread().collect()
}

#[test]
fn what_a_rescan_does_not_find_is_gone_and_may_come_back() {
    let dir = tempfile::tempdir().unwrap();
    append(dir.path(), "foo", &[("a", 5), ("b", 5)]);
    append(dir.path(), "zed", &[("a", 6)]);
    let index = open(dir.path());
    let [a, b, z] = [("foo", "a"), ("foo", "b"), ("zed", "a")].map(|(f, i)| find(&index, f, i));
    index.mark_message(a, true, true).unwrap();
    assert_eq!(inbox(&index), [b, z]);
    let changes = Arc::new(Mutex::new(Vec::new()));
    let heard = Arc::clone(&changes);
    index.subscribe(move |c| heard.lock().push((c.added.clone(), c.removed.clone())));

    let (log, away) = (dir.path().join("store/log-foo.jsonl"), dir.path().join("away"));
    std::fs::rename(&log, &away).unwrap();
    index.refresh_store(0, true).unwrap();
    assert_eq!(changes.lock().pop(), Some((vec![], vec![a, b])));
    assert_eq!((inbox(&index), index.read().marks.unread_count()), (vec![z], 1));
    assert!(index.read().threads.is_thread_visible(ThreadIx::MIN, false), "zed still writes there");
    {
        let tables = index.read();
        assert_eq!(tables.threads.thread_messages(&tables.messages, ThreadIx::MIN), [z]);
    }

    // The marks and names of its messages are kept, for this process and the next.
    std::fs::rename(&away, &log).unwrap();
    index.refresh_store(0, true).unwrap();
    assert_eq!(changes.lock().pop(), Some((vec![a, b], vec![])));
    assert_eq!((inbox(&index), index.read().marks.unread_count()), (vec![b, z], 2));
    assert_eq!(name_offset(&index.read(), b), 1);
    std::fs::rename(&log, &away).unwrap();
    index.refresh_store(0, true).unwrap();
    index.close();
    std::fs::remove_file(dir.path().join("snapshot")).unwrap();
    let index = open(dir.path());
    assert_eq!(index.read().marks.unread_count(), 1);
    std::fs::rename(&away, &log).unwrap();
    index.refresh_store(0, true).unwrap();
    assert_eq!(inbox(&index), [find(&index, "foo", "b"), find(&index, "zed", "a")]);
}

#[test]
fn the_watermark_covers_only_what_is_read() {
    let dir = tempfile::tempdir().unwrap();
    append(dir.path(), "foo", &[("a", 5), ("b", 5), ("c", 7)]);
    append(dir.path(), "zed", &[("d", 6)]);
    let index = open(dir.path());
    let mark = |from: &str, id: &str, read: bool| {
        index.mark_message(find(&index, from, id), read, true).unwrap();
        let w = index.contiguous_watermark(0)?;
        let mut ids: Vec<String> = w.ids.into_iter().collect();
        ids.sort();
        Some((w.time.secs(), ids.join(" ")))
    };
    let at = |secs: i64, ids: &str| Some((secs, ids.to_owned()));
    assert_eq!(mark("zed", "d", true), at(0, "d zed:d"), "nothing is contiguous");
    let both = at(5, "b d foo:b zed:d");
    assert_eq!(mark("foo", "b", true), both, "a is unread in the same second");
    assert_eq!(mark("foo", "c", true), at(5, "b c d foo:b foo:c zed:d"));
    let all = at(7, "a b c d foo:a foo:b foo:c zed:d");
    assert_eq!(mark("foo", "a", true), all);
    assert_eq!(mark("zed", "d", false), at(5, "a b c foo:a foo:b foo:c"));
    assert_eq!(mark("zed", "d", true), all);
    // A message from the future neither moves the watermark to its time nor is shown again.
    append(dir.path(), "foo", &[("f", i64::from(u32::MAX))]);
    index.refresh_store(0, true).unwrap();
    assert_eq!(mark("foo", "f", true), at(7, "a b c d f foo:a foo:b foo:c foo:f zed:d"));
}
