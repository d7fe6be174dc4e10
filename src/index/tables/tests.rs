//! Tests with messages whose files change under the index.

use super::super::testing::{Bed, at, entry, listen, message, public, reply, signed, thread};
use super::super::{Index, IndexChanges, MsgIx};
use crate::model::{SignatureClaim, SignatureScope, SignatureState, Timestamp};
use crate::store::{FoundMessage, Location, RepeatKind};

fn times(index: &Index, mine: bool) -> Vec<i64> {
    let tables = index.read();
    let secs = |ix: MsgIx| tables.messages.entry(ix).time().secs();
    if mine {
        tables.messages.lists().messages_from_me().map(secs).collect()
    } else {
        tables.messages.lists().messages_to_me().map(secs).collect()
    }
}

#[test]
fn what_the_store_says_last_counts() {
    let bed = Bed::new();
    for (source, secs) in [(1, 10), (2, 20), (3, 30)] {
        bed.put(source, message("foo", &format!("m{source}"), secs));
    }
    let index = bed.open();
    let heard = listen(&index);
    let ix = at(&index, "m2");
    let refresh = |edit: fn(&mut FoundMessage<'static>)| -> IndexChanges {
        bed.folder.lock().edit(2, edit);
        index.refresh_store(0, false).unwrap();
        heard.lock().pop().unwrap()
    };
    // Another location only: a view shows no change.
    let changes = refresh(|f| f.at.offset = 7);
    assert_eq!((changes.added, changes.removed), (vec![], vec![]));
    assert_eq!(
        index.read().messages.entry(ix).location(),
        Location { source: 2, offset: 7, len: 100 }
    );
    // Another time, also out of order.
    assert_eq!(refresh(|f| f.time = Timestamp::from_secs(5)).redrawn, [ix]);
    assert_eq!(times(&index, false), [5, 10, 30]);
    refresh(|f| f.time = Timestamp::from_secs(40));
    assert_eq!(times(&index, false), [10, 30, 40]);
    // The message is from me too, and then no longer to me.
    assert_eq!(refresh(|f| f.from_me = true).redrawn, [ix]);
    assert_eq!((times(&index, false), times(&index, true)), (vec![10, 30, 40], vec![40]));
    assert_eq!(refresh(|f| f.to_me = false).redrawn, [ix]);
    assert_eq!((times(&index, false), times(&index, true)), (vec![10, 30], vec![40]));
    assert_eq!(index.read().marks.unread_count(), 2);
    refresh(|f| (f.to_me, f.from_me) = (true, false));
    assert_eq!((times(&index, false), times(&index, true)), (vec![10, 30, 40], vec![]));
    assert_eq!(index.read().marks.unread_count(), 3);
    assert_eq!(index.read().messages.lists().unread().count(), 3);
    // Files, and recipients.
    assert!(!entry(&index, "m2").has_parts());
    assert_eq!(refresh(|f| f.has_parts = true).redrawn, [ix]);
    assert!(entry(&index, "m2").has_parts());
    assert_eq!(refresh(|f| f.to = "me, bar".into()).redrawn, [ix]);
    assert!(index.read().messages.names().is_known_address(0, "bar"));
    // The snapshot has all of it.
    index.close();
    let index = bed.open();
    assert!(entry(&index, "m2").has_parts());
    assert_eq!(times(&index, false), [10, 30, 40]);
}

#[test]
fn a_message_that_is_mine_no_longer_takes_its_thread_with_it() {
    let bed = Bed::new();
    bed.put(1, message("foo", "a", 10));
    let index = bed.open();
    let a = entry(&index, "a").thread();
    let shown = |all| index.read().threads.is_thread_visible(a, all);
    assert!(shown(false));
    bed.folder.lock().edit(1, |f| f.to_me = false);
    index.refresh_store(0, false).unwrap();
    assert!(!shown(false) && shown(true));
}

#[test]
fn one_file_of_many_goes_and_comes_back_at_another_place() {
    let bed = Bed::new();
    for source in 0..1000 {
        bed.put(source, message("foo", &format!("m{source:04}"), i64::from(source)));
    }
    let index = bed.open();
    let (heard, ix) = (listen(&index), at(&index, "m0500"));
    bed.folder.lock().remove(500);
    index.refresh_store(0, false).unwrap();
    assert_eq!(heard.lock().pop().unwrap().removed, [ix]);
    assert_eq!((times(&index, false).len(), index.read().marks.unread_count()), (999, 999));
    bed.put(5000, message("foo", "m0500", 2000));
    index.refresh_store(0, false).unwrap();
    assert_eq!(heard.lock().pop().unwrap().added, [ix]);
    assert_eq!((times(&index, false).len(), index.read().marks.unread_count()), (1000, 1000));
    assert_eq!(times(&index, false).last(), Some(&2000));
    // A message moves, and its old location is scanned too: the views show no change.
    bed.folder.lock().remove(5000);
    bed.put(500, message("foo", "m0500", 2000));
    index.refresh_store(0, false).unwrap();
    let changes = heard.lock().pop().unwrap();
    assert_eq!((changes.added, changes.removed), (vec![], vec![]));
    assert_eq!(index.read().messages.entry(ix).location().source, 500);
}

#[test]
fn replies_join_threads_and_leave_them_as_files_change() {
    let bed = Bed::new();
    bed.put(1, message("foo", "a", 10));
    bed.put(3, reply("bar", "c", 30, "b", 2));
    bed.put(4, FoundMessage { claim: None, ..reply("eve", "d", 40, "a", 3) });
    let index = bed.open();
    let heard = listen(&index);
    assert_eq!((thread(&index, "c"), thread(&index, "d")), ("c".into(), "d".into()));
    let (c, old) = (at(&index, "c"), entry(&index, "c").thread());
    // The middle message arrives last.
    bed.put(2, reply("foo", "b", 20, "a", 1));
    index.refresh_store(0, false).unwrap();
    let changes = heard.lock().pop().unwrap();
    assert_eq!((changes.added, changes.moved), (vec![at(&index, "b")], vec![(c, old)]));
    assert_eq!((thread(&index, "b"), thread(&index, "c")), ("a".into(), "a".into()));
    assert!(!index.read().threads.is_thread_visible(old, true));
    // The message goes and still links the others, also after a reload of the snapshot.
    bed.folder.lock().remove(2);
    index.refresh_store(0, false).unwrap();
    assert_eq!(thread(&index, "c"), "a");
    index.close();
    let index = bed.open();
    assert_eq!(thread(&index, "c"), "a");
    // The message answers nothing any more, and takes c with it.
    bed.put(2, FoundMessage { in_reply_to: None, ..reply("foo", "b", 20, "a", 1) });
    index.refresh_store(0, false).unwrap();
    assert_eq!((thread(&index, "b"), thread(&index, "c")), ("b".into(), "b".into()));
    // The signed copy of d arrives after the unsigned one.
    bed.put(4, reply("eve", "d", 40, "a", 3));
    index.refresh_store(0, false).unwrap();
    assert_eq!(thread(&index, "d"), "a");
    let valid = SignatureState::Valid(public(3).fingerprint());
    let d = entry(&index, "d");
    let tables = index.read();
    assert_eq!(tables.trust.signature(&tables.messages, &d), valid);
}

fn lines(restates: bool) -> Bed {
    let bed = Bed::new();
    bed.folder.lock().lines = Some(restates);
    for (source, secs) in [(1, 10), (2, 20)] {
        bed.put(source, message("foo", &format!("m{source}"), secs));
    }
    bed
}

#[test]
fn a_line_that_is_repeated_says_something_new_only_where_its_store_vouches_for_it() {
    for restates in [true, false] {
        let bed = lines(restates);
        let index = bed.open();
        let (heard, ix) = (listen(&index), at(&index, "m1"));
        bed.folder.lock().edit(1, |f| {
            f.thread = "another".into();
            f.time = Timestamp::from_secs(30);
            f.read = Some(true);
        });
        index.refresh_store(0, false).unwrap();
        let now = (thread(&index, "m1"), times(&index, false), entry(&index, "m1").is_read());
        let changes = heard.lock().pop().unwrap();
        if restates {
            assert_eq!(now, ("another".into(), vec![20, 30], true));
            assert_eq!((changes.redrawn, changes.marked), (vec![ix], vec![ix]));
            assert_eq!(changes.moved.len(), 1);
        } else {
            assert_eq!(now, ("m1".into(), vec![10, 20], false));
            assert!(changes.redrawn.is_empty());
        }
    }
}

#[test]
fn what_is_said_again_in_the_same_place_may_be_another_text() {
    let bed = lines(true);
    let index = bed.open();
    let (heard, ix) = (listen(&index), at(&index, "m2"));
    let seen = entry(&index, "m2");
    let generation = index.read().generation();
    index.remember_size(ix, &seen, generation, (77, 0));
    assert_eq!(entry(&index, "m2").size(), Some(77));
    bed.folder.lock().edit(2, |_| {});
    index.refresh_store(0, false).unwrap();
    assert_eq!(heard.lock().pop().unwrap().redrawn, [ix]);
    assert_eq!(entry(&index, "m2").size(), None);
    // A length that was measured before the change is not stored.
    index.remember_size(ix, &seen, generation, (77, 0));
    assert_eq!(entry(&index, "m2").size(), None);
}

#[test]
fn a_note_comes_and_goes_and_is_in_the_snapshot() {
    let bed = Bed::new();
    let mine = |noted| FoundMessage { from_me: true, has_note: noted, ..message("me", "a", 10) };
    bed.put(1, mine(true));
    bed.put(2, message("foo", "b", 20));
    let index = bed.open();
    let noted = |index: &Index| {
        ["a", "b"].map(|id| at(index, id)).map(|ix| index.read().messages.has_note(ix))
    };
    assert_eq!(noted(&index), [true, false]);
    index.close();
    let index = bed.open();
    assert_eq!(noted(&index), [true, false]);
    let heard = listen(&index);
    bed.put(1, mine(false));
    index.refresh_store(0, false).unwrap();
    assert_eq!(noted(&index), [false, false]);
    assert_eq!(heard.lock().pop().unwrap().redrawn, [at(&index, "a")]);
}

/// Returns a claim by the key of seed 1 with a signature of another key.
fn forged() -> SignatureClaim {
    let SignatureClaim::Signed { signature, covered, scope, .. } = signed(2, SignatureScope::Whole)
    else {
        panic!("it is signed");
    };
    SignatureClaim::Signed { key: Some(public(1)), signature, covered, scope }
}

/// The better verdict counts, and of equal ones that of the log itself, whichever comes first (S1210).
#[test]
fn the_log_and_its_copy_give_one_verdict_in_any_order() {
    let valid = || Some(signed(1, SignatureScope::Whole));
    let bad = || Some(forged());
    for (in_log, in_copy, place, is_shown) in [
        (valid(), bad(), 1, true),
        (bad(), valid(), 2, true),
        (valid(), valid(), 1, true),
        (None, None, 1, true),
        (None, bad(), 1, true),
        (bad(), None, 2, true),
        (None, valid(), 2, true),
        (bad(), bad(), 1, false),
    ] {
        let report = |source, claim: Option<SignatureClaim>| FoundMessage {
            is_in_copy: source == 2,
            claim: claim.map(Box::new),
            ..message("foo", "a", 10)
        };
        let places = [(1, in_log), (2, in_copy)];
        for order in [[0, 1], [1, 0]] {
            let bed = Bed::new();
            bed.folder.lock().lines = Some(false);
            let index = bed.open();
            for at in order {
                let (source, claim) = &places[at];
                bed.put(*source, report(*source, claim.clone()));
                index.refresh_store(0, false).unwrap();
            }
            let found = entry(&index, "a");
            let told = (found.location().source, found.is_live());
            assert_eq!(told, (place, is_shown), "{places:?} {order:?}");
            assert_eq!(index.read().marks.unread_count(), usize::from(is_shown));
            assert_eq!(index.read().trust.rejects().count(), usize::from(!is_shown));
        }
    }
}

/// If the id does not hash to the text, the verdict of the log counts, whichever comes first (S1210).
#[test]
fn a_claimed_id_has_the_verdict_of_the_log_in_any_order() {
    let valid = || signed(1, SignatureScope::Whole);
    for (in_log, in_copy, is_shown) in [(valid(), forged(), true), (forged(), valid(), false)] {
        let places = [(1, in_log), (2, in_copy)];
        for order in [[0, 1], [1, 0]] {
            let bed = Bed::new();
            bed.folder.lock().lines = Some(false);
            let index = bed.open();
            for at in order {
                let (source, claim) = &places[at];
                let claim = Some(Box::new(claim.clone()));
                let is_in_copy = *source == 2;
                bed.put(*source, FoundMessage { is_in_copy, claim, ..message("foo", "a", 10) });
                if let Some((_, Ok((found, _)))) = bed.folder.lock().files.get_mut(source) {
                    found.repeat_kind = RepeatKind::Claimed;
                }
                index.refresh_store(0, false).unwrap();
            }
            let found = entry(&index, "a");
            assert_eq!((found.location().source, found.is_live()), (1, is_shown), "{order:?}");
            assert_eq!(index.read().trust.rejects().count(), usize::from(!is_shown));
        }
    }
}
