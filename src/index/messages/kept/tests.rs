use std::borrow::Cow;

use crate::index::messages::StoreInfo;
use crate::index::tables::InsertOutcome;
use crate::index::testing::tables_of;
use crate::index::{IndexTables, MsgIx, SourceId};
use crate::model::Timestamp;
use crate::store::{FoundMessage, Kind, Location, RepeatKind};

const OWN: usize = 0;
const KEEPER: usize = 1;

fn info(kind: Kind) -> StoreInfo {
    StoreInfo { kind, ..StoreInfo::with_name(kind.as_str()) }
}

fn both() -> IndexTables {
    tables_of(vec![info(Kind::Claude), info(Kind::Atsf)])
}

/// Returns a message as its own store reports it, or as a store that keeps it does.
fn found(id: &str, origin: Option<Kind>) -> FoundMessage<'static> {
    FoundMessage {
        at: Location { source: 1, offset: u64::from(origin.is_some()) * 1000, len: 100 },
        repeat_kind: RepeatKind::Rewritten,
        from: "agent".into(),
        to: "user".into(),
        thread: "session".into(),
        id: Cow::Owned(id.to_owned()),
        time: Timestamp::from_secs(5),
        to_me: true,
        read: Some(true),
        origin,
        ..FoundMessage::default()
    }
}

fn report(tables: &mut IndexTables, store: usize, id: &str) -> Option<MsgIx> {
    let origin = (store == KEEPER).then_some(Kind::Claude);
    match tables.insert_message(store, &found(id, origin)) {
        InsertOutcome::New(ix) => {
            tables.admit_message(ix);
            Some(ix)
        }
        InsertOutcome::Updated(ix, _) => Some(ix),
        InsertOutcome::Known | InsertOutcome::Repeated(..) | InsertOutcome::IdTaken => None,
    }
}

/// Begins and ends a rescan of the source of a store that finds nothing.
fn lose(tables: &mut IndexTables, store: usize) {
    let source = SourceId::new(store, 1);
    tables.messages.mark_stale_copies(|of| of == source, true);
    let mut gone: Vec<MsgIx> = tables
        .messages
        .live_messages()
        .filter(|ix| tables.messages.entry(*ix).source() == source)
        .collect();
    tables.dismiss_gone(&mut gone);
    tables.messages.drop_stale_copies(|of| of == source);
}

fn live(tables: &IndexTables) -> Vec<(usize, u64)> {
    let entry = |ix| tables.messages.entry(ix);
    tables
        .messages
        .live_messages()
        .map(|ix| (entry(ix).store(), entry(ix).location().offset))
        .collect()
}

#[test]
fn the_own_store_counts_in_whatever_order_both_are_read() {
    for order in [[OWN, KEEPER], [KEEPER, OWN]] {
        let mut tables = both();
        for store in order {
            report(&mut tables, store, "m");
            assert_eq!(tables.messages.live_messages().count(), 1);
        }
        assert_eq!(live(&tables), [(OWN, 0)], "{order:?}");
        let ix = tables.messages.live_messages().next().unwrap();
        let (before, thread) =
            (tables.messages.entry(ix).identity(), tables.messages.entry(ix).thread());
        assert!(!tables.messages.is_kept(tables.messages.entry(ix)));
        lose(&mut tables, OWN);
        assert_eq!(live(&tables), [(KEEPER, 1000)], "the kept one stands in");
        let entry = tables.messages.entry(ix);
        assert_eq!((entry.identity(), entry.thread()), (before, thread));
        assert!(tables.messages.is_kept(entry));
        assert_eq!(tables.messages.key_parts(entry), ["claude", "agent", "m"]);
        // It comes back.
        assert_eq!(report(&mut tables, OWN, "m"), Some(ix));
        assert_eq!(live(&tables), [(OWN, 0)]);
        // The keeping store loses it, and then its own.
        lose(&mut tables, KEEPER);
        assert_eq!(live(&tables), [(OWN, 0)]);
        lose(&mut tables, OWN);
        assert_eq!(live(&tables), []);
    }
}

#[test]
fn a_kept_message_is_the_same_without_its_own_store() {
    let mut tables = both();
    report(&mut tables, OWN, "m");
    // The keeping store also has messages of its own, by the same role and id.
    let mut alone = tables_of(vec![info(Kind::Samp), info(Kind::Atsf)]);
    let own = FoundMessage { thread: "other".into(), ..found("m", None) };
    let InsertOutcome::New(own) = alone.insert_message(KEEPER, &own) else { panic!("not new") };
    let kept = report(&mut alone, KEEPER, "m").unwrap();
    assert_ne!(own, kept);
    assert!(alone.messages.is_kept(alone.messages.entry(kept)));
    assert!(!alone.messages.is_kept(alone.messages.entry(own)));
    let identity = |tables: &IndexTables, ix: MsgIx| {
        let entry = tables.messages.entry(ix);
        (entry.identity(), tables.threads.thread_identity(&tables.messages, entry.thread()))
    };
    let first = tables.messages.live_messages().next().unwrap();
    assert_eq!(identity(&alone, kept), identity(&tables, first));
    assert_eq!(alone.messages.key_parts(alone.messages.entry(kept)), ["claude", "agent", "m"]);
    // A rescan finds it again.
    assert_eq!(report(&mut alone, KEEPER, "m"), Some(kept));
}

#[test]
fn of_several_stores_of_a_kind_the_one_that_has_the_message_counts() {
    let second = StoreInfo { kind: Kind::Claude, ..StoreInfo::with_name("second") };
    let mut tables = tables_of(vec![info(Kind::Claude), info(Kind::Atsf), second]);
    report(&mut tables, 2, "m");
    assert_eq!(report(&mut tables, KEEPER, "m"), None);
    report(&mut tables, KEEPER, "only kept");
    let names = tables.messages.live_messages().map(|ix| tables.messages.entry(ix));
    let names: Vec<String> =
        names.map(|entry| tables.messages.key_parts(entry)[0].clone()).collect();
    assert_eq!(names, ["second", "claude"]);
}

#[test]
fn messages_of_which_one_store_has_more_are_all_there() {
    let mut tables = both();
    for (store, ids) in [(OWN, ["a", "b"]), (KEEPER, ["b", "c"])] {
        for id in ids {
            report(&mut tables, store, id);
        }
    }
    let mut places = live(&tables);
    places.sort_unstable();
    assert_eq!(places, [(OWN, 0), (OWN, 0), (KEEPER, 1000)]);
    lose(&mut tables, OWN);
    assert_eq!(live(&tables), [(KEEPER, 1000), (KEEPER, 1000)]);
}

#[test]
fn a_message_that_two_stores_keep_stays_until_both_have_lost_it() {
    let second = StoreInfo { kind: Kind::Atsf, ..StoreInfo::with_name("second") };
    for gone_first in [KEEPER, 2] {
        let mut tables = tables_of(vec![info(Kind::Claude), info(Kind::Atsf), second.clone()]);
        let ix = report(&mut tables, OWN, "m").unwrap();
        for keeper in [KEEPER, 2] {
            tables.insert_message(keeper, &found("m", Some(Kind::Claude)));
        }
        lose(&mut tables, OWN);
        lose(&mut tables, gone_first);
        let left = KEEPER + 2 - gone_first;
        assert_eq!(live(&tables), [(left, 1000)], "{gone_first}");
        assert_eq!(tables.messages.live_messages().next(), Some(ix));
        // The first one comes back, and the other goes.
        tables.insert_message(gone_first, &found("m", Some(Kind::Claude)));
        lose(&mut tables, left);
        assert_eq!(live(&tables), [(gone_first, 1000)], "{gone_first}");
        lose(&mut tables, gone_first);
        assert_eq!(live(&tables), []);
    }
}

#[test]
fn a_kept_thread_has_the_messages_of_a_session_that_is_gone_and_not_a_fork() {
    let insert = |tables: &mut IndexTables, store: usize, thread: &'static str| {
        let mut found = found("m", (store == KEEPER).then_some(Kind::Claude));
        found.thread = thread.into();
        found.at.source = if thread == "fork" { 2 } else { 1 };
        if let InsertOutcome::New(ix) = tables.insert_message(store, &found) {
            tables.admit_message(ix);
        }
    };
    let place = |tables: &mut IndexTables| {
        tables.relink_threads();
        let [ix] = tables.messages.live_messages().collect::<Vec<_>>()[..] else {
            panic!("not one message")
        };
        let entry = tables.messages.entry(ix);
        let (thread, _) = tables.threads.thread_id(&tables.messages, entry.thread());
        (thread.to_owned(), entry.store())
    };
    for order in [[(OWN, "fork"), (KEEPER, "session")], [(KEEPER, "session"), (OWN, "fork")]] {
        let mut tables = both();
        for (store, thread) in order {
            insert(&mut tables, store, thread);
        }
        assert_eq!(place(&mut tables), ("session".to_owned(), KEEPER), "{order:?}");
        // The session comes back, and goes again.
        insert(&mut tables, OWN, "session");
        assert_eq!(place(&mut tables), ("session".to_owned(), OWN));
        lose(&mut tables, OWN);
        assert_eq!(place(&mut tables), ("session".to_owned(), KEEPER));
        insert(&mut tables, OWN, "fork");
        assert_eq!(place(&mut tables), ("session".to_owned(), KEEPER));
        lose(&mut tables, KEEPER);
        assert_eq!(place(&mut tables), ("fork".to_owned(), OWN));
    }
}
