use std::collections::BTreeMap;
use std::num::NonZeroU64;

use proptest::prelude::*;

use super::*;
use crate::index::IndexTables;
use crate::index::messages::StoreInfo;
use crate::index::tables::InsertOutcome;
use crate::index::testing::tables_of;
use crate::model::Timestamp;
use crate::store::{FoundMessage, Location, RepeatKind};

/// Number of ids that the records of these tests use.
const IDS: u64 = 6;

/// A record as its log has it.
#[derive(Clone, Debug)]
struct LoggedRecord {
    writer: bool,
    id: u64,
    to_me: bool,
    key: Option<(u64, u64)>,
    answers: Option<u64>,
}

impl LoggedRecord {
    fn multicast(&self) -> Option<MulticastKey> {
        let (key, digest) = self.key?;
        let answers = self.answers.and_then(NonZeroU64::new);
        Some(MulticastKey {
            key,
            digest: digest << 3,
            answers,
            is_first: key == self.id,
            is_id: true,
        })
    }

    fn found(&self, offset: usize) -> FoundMessage<'static> {
        FoundMessage {
            at: Location { source: 0, offset: offset as u64, len: 1 },
            from: if self.writer { "foo" } else { "zed" }.into(),
            to: "a, b".into(),
            thread: "t".into(),
            id: format!("{:016x}", self.id).into(),
            time: Timestamp::from_secs(5),
            to_me: self.to_me,
            repeat_kind: RepeatKind::Same,
            multicast: self.multicast(),
            ..FoundMessage::default()
        }
    }
}

fn new_tables() -> IndexTables {
    tables_of(vec![StoreInfo::with_name("samp")])
}

fn insert(tables: &mut IndexTables, record: &LoggedRecord, offset: usize) -> Option<MsgIx> {
    match tables.insert_message(0, &record.found(offset)) {
        InsertOutcome::New(ix) => {
            tables.admit_message(ix);
            Some(ix)
        }
        _ => None,
    }
}

/// Returns the representative of each record by the rule, applied to all records. `None` stands for a record alone.
fn apply_rule(live: &BTreeMap<MsgIx, LoggedRecord>) -> BTreeMap<MsgIx, Option<MsgIx>> {
    let same = |a: &LoggedRecord, b: &LoggedRecord| a.writer == b.writer && a.key == b.key;
    let represent = |record: &LoggedRecord| {
        let (key, digest) = record.key?;
        let of_writer = || live.iter().filter(|(_, other)| other.writer == record.writer);
        let holder = of_writer().find(|(_, other)| other.id == key);
        let earliest = of_writer().find(|(_, other)| other.key.is_some_and(|(k, _)| k == key));
        let (_, decides) = holder.or(earliest)?;
        if decides.key != Some((key, digest)) {
            return None;
        }
        let joined = || live.iter().filter(|(_, other)| same(other, record));
        let to_me = joined().find(|(_, other)| other.to_me);
        let first = || joined().find(|(_, other)| other.id == key);
        to_me.or_else(first).or_else(|| joined().next()).map(|(ix, _)| *ix)
    };
    live.iter().map(|(ix, record)| (*ix, represent(record))).collect()
}

#[track_caller]
fn check(tables: &IndexTables, live: &BTreeMap<MsgIx, LoggedRecord>) {
    for (ix, primary) in apply_rule(live) {
        let record = &live[&ix];
        assert_eq!(tables.messages.find_original(ix), primary.filter(|p| *p != ix), "{record:?}");
        let shared = primary.and(record.key).map(|(key, _)| format!("{key:016x}"));
        assert_eq!(tables.messages.shared_id(ix), shared, "{record:?} in {live:?}");
        let together = |other: &MsgIx| apply_rule(live)[other] == primary && primary.is_some();
        let all: Vec<MsgIx> = live.keys().copied().filter(together).collect();
        let all = if primary.is_some() { all } else { vec![ix] };
        assert_eq!(tables.messages.records_of_message(ix), all);
    }
}

fn records() -> impl Strategy<Value = Vec<(LoggedRecord, bool)>> {
    let key = prop::option::weighted(0.8, (0..IDS, 0..2u64));
    let one = (any::<bool>(), 0..IDS * 3, prop::bool::weighted(0.2), key);
    let one = one.prop_map(|(writer, id, to_me, key)| LoggedRecord {
        writer,
        id,
        to_me,
        key,
        answers: None,
    });
    prop::collection::vec((one, any::<bool>()), 1..24)
}

proptest! {
    /// Records come and go, in one batch or in many.
    #[test]
    fn the_rule_holds_whatever_comes_and_goes(all in records(), gone in prop::collection::vec(0usize..24, 0..8)) {
        let (mut tables, mut live) = (new_tables(), BTreeMap::new());
        for (n, (record, settles)) in all.iter().enumerate() {
            if let Some(ix) = insert(&mut tables, record, n) {
                live.insert(ix, record.clone());
            }
            if *settles {
                tables.settle_multicasts();
                check(&tables, &live);
            }
        }
        tables.settle_multicasts();
        check(&tables, &live);
        for n in gone {
            let Some(ix) = live.keys().nth(n).copied() else { continue };
            tables.dismiss_gone(&mut vec![ix]);
            live.remove(&ix);
            let shown = |tables: &IndexTables| {
                let messages = &tables.messages;
                let ids = live.keys().map(|ix| (messages.shown_id(*ix), messages.find_original(*ix)));
                ids.collect::<Vec<_>>()
            };
            let before = shown(&tables);
            let told = tables.settle_multicasts();
            let after = shown(&tables);
            for ((ix, before), after) in live.keys().zip(before).zip(after) {
                prop_assert!(before == after || told.contains(ix), "a change is told");
            }
            check(&tables, &live);
        }
        let list = tables.messages.multicasts.as_table().clone();
        let read = MulticastTable::from_table(list, &tables.messages.known).unwrap();
        prop_assert_eq!(read.by_key, tables.messages.multicasts.by_key.clone());
    }
}

/// Records that answer different ids are one message as soon as these ids are those of records of one message.
#[test]
fn records_may_answer_the_records_of_one_message() {
    let mut tables = new_tables();
    let answer = |id, answers| LoggedRecord {
        writer: true,
        id,
        to_me: false,
        key: Some((10, 0)),
        answers: Some(answers),
    };
    let question =
        |id| LoggedRecord { writer: false, id, to_me: false, key: Some((2, 0)), answers: None };
    let all = [answer(10, 2), answer(11, 3), answer(12, 2), answer(13, 4)];
    let all: Vec<MsgIx> =
        all.iter().enumerate().map(|(n, r)| insert(&mut tables, r, n).unwrap()).collect();
    tables.settle_multicasts();
    let copies = |tables: &IndexTables| {
        all.iter().map(|ix| tables.messages.is_copy(*ix)).collect::<Vec<_>>()
    };
    assert_eq!(copies(&tables), [false, false, true, false]);
    insert(&mut tables, &question(3), 8).unwrap();
    insert(&mut tables, &question(2), 9).unwrap();
    assert!(tables.settle_multicasts().contains(&all[1]));
    assert_eq!(copies(&tables), [false, true, true, false]);
    let question = tables.messages.find_message(0, "zed", &format!("{:016x}", 3)).unwrap();
    tables.dismiss_gone(&mut vec![question]);
    tables.settle_multicasts();
    assert_eq!(copies(&tables), [false, false, true, false]);
}

#[test]
fn a_record_is_small_and_a_store_without_such_messages_pays_nothing() {
    assert_eq!(size_of::<MulticastRecord>(), 32);
    let mut tables = new_tables();
    let plain = LoggedRecord { writer: true, id: 1, to_me: true, key: None, answers: None };
    let ix = insert(&mut tables, &plain, 0).unwrap();
    assert!(tables.settle_multicasts().is_empty() && tables.messages.multicasts.is_empty());
    assert_eq!(tables.messages.multicasts.list.capacity(), 0);
    assert_eq!(tables.messages.shown_id(ix), format!("{:016x}", 1));
}

/// Many records of one message, or of many that claim the same first record, take little time.
#[test]
fn a_crowd_of_records_takes_no_square_of_time() {
    for digests in [1, 20_000] {
        let mut tables = new_tables();
        let start = std::time::Instant::now();
        for n in 0..20_000usize {
            let key = Some((0, n as u64 % digests));
            let record =
                LoggedRecord { writer: true, id: n as u64 + 1, to_me: false, key, answers: None };
            insert(&mut tables, &record, n).unwrap();
        }
        tables.settle_multicasts();
        let all: Vec<MsgIx> = tables.messages.live_messages().collect();
        tables.dismiss_gone(&mut all[..all.len() / 2].to_vec());
        tables.settle_multicasts();
        let shown = all.iter().filter(|ix| tables.messages.entry(**ix).is_live());
        let shown = shown.filter(|ix| !tables.messages.is_copy(**ix)).count();
        assert_eq!(shown, if digests == 1 { 1 } else { 10_000 });
        assert!(start.elapsed().as_secs() < 20, "{:?}", start.elapsed());
    }
}
