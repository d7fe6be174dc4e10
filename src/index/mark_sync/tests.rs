//! Tests of marks: the store's mark against msgfs's own, and the writes to stores.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Weak};

use proptest::prelude::*;

use super::*;
use crate::index::testing::{Bed, MarkBehavior, at, entry, listen, message};
use crate::model::MachineId;

/// An event that may affect one message's mark.
#[derive(Clone, Copy, Debug)]
enum Event {
    /// The message arrives with this mark of the store, or the store changes the mark.
    Store(bool),
    /// msgfs sets or clears the mark.
    Own(bool),
    /// The file is removed.
    Gone,
    Tell,
    /// The process ends and another continues, with its cache or without.
    Restart(bool),
    /// The process is killed and saves nothing.
    Kill,
    Save,
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        4 => any::<bool>().prop_map(Event::Store),
        3 => any::<bool>().prop_map(Event::Own),
        1 => Just(Event::Gone),
        2 => Just(Event::Tell),
        1 => any::<bool>().prop_map(Event::Restart),
        1 => Just(Event::Kill),
        1 => Just(Event::Save),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn our_own_mark_beats_the_stores_whatever_comes_first(
        events in prop::collection::vec(event(), 0..25),
        notes in any::<bool>(),
    ) {
        let bed = Bed::new();
        bed.folder.lock().answer = if notes { MarkBehavior::Noted } else { MarkBehavior::CannotNote };
        let mut index = bed.open();
        let (mut own, mut there) = (None, false);
        for event in events {
            match event {
                Event::Store(read) => {
                    bed.put(1, crate::store::FoundMessage { read: Some(read), ..message("foo", "a", 5) });
                    there = true;
                    index.refresh_store(0, false).unwrap();
                }
                Event::Own(read) if there => {
                    index.mark_message(at(&index, "a"), read, false).unwrap();
                    own = Some(read);
                }
                Event::Own(_) => {}
                Event::Gone => {
                    bed.folder.lock().remove(1);
                    there = false;
                    index.refresh_store(0, false).unwrap();
                }
                Event::Tell => {
                    index.sync_marks_to_stores();
                }
                Event::Restart(cache) => {
                    index.close();
                    if !cache {
                        bed.drop_cache();
                    }
                    index = bed.open();
                }
                Event::Kill => index = bed.open(),
                Event::Save => index.save_snapshot(),
            }
            if there {
                let word = bed.folder.lock().file(1).read;
                let expected = own.or(word) == Some(true);
                prop_assert_eq!(entry(&index, "a").is_read(), expected);
                prop_assert_eq!(index.read().marks.unread_count(), usize::from(!expected));
                prop_assert_eq!(index.read().messages.lists().unread().count(), usize::from(!expected));
            } else {
                prop_assert_eq!(index.read().marks.unread_count(), 0);
            }
        }
        if there && notes {
            // The store agrees in the end.
            index.sync_marks_to_stores();
            let word = bed.folder.lock().file(1).read;
            if own == Some(true) {
                prop_assert_eq!(word, Some(true));
            }
        }
    }
}

#[test]
fn a_mark_is_told_once_and_again_only_when_the_store_forgets_it() {
    let bed = Bed::new();
    bed.put(1, message("foo", "a", 5));
    bed.put(2, message("foo", "b", 6));
    let index = bed.open();
    index.sync_marks_to_stores();
    assert_eq!(bed.told(), []);
    index.mark_message(at(&index, "a"), true, true).unwrap();
    index.sync_marks_to_stores();
    index.sync_marks_to_stores();
    assert_eq!(bed.told(), [(1, true)]);
    assert_eq!(bed.folder.lock().file(1).read, Some(true));
    // The message is delivered again as new. Our mark stays, and is written to the store.
    let heard = listen(&index);
    bed.put(1, message("foo", "a", 5));
    index.refresh_store(0, false).unwrap();
    assert!(entry(&index, "a").is_read());
    assert!(heard.lock().iter().all(|c| c.marked.is_empty()));
    index.sync_marks_to_stores();
    assert_eq!(bed.told(), [(1, true)]);
    // Another reader marks b.
    bed.folder.lock().edit(2, |f| f.read = Some(true));
    index.refresh_store(0, false).unwrap();
    assert_eq!(heard.lock().pop().map(|c| c.marked), Some(vec![at(&index, "b")]));
    assert_eq!(index.read().marks.unread_count(), 0);
    // A mark that I cleared stays cleared, whatever the store says.
    index.mark_message(at(&index, "b"), false, false).unwrap();
    index.sync_marks_to_stores();
    assert_eq!(bed.told(), [(2, false)]);
    bed.folder.lock().edit(2, |f| f.read = Some(true));
    index.refresh_store(0, false).unwrap();
    index.sync_marks_to_stores();
    assert_eq!((bed.told(), index.read().marks.unread_count()), (vec![], 1));
}

#[test]
fn a_store_that_cannot_note_a_mark_is_left_alone() {
    let bed = Bed::new();
    bed.folder.lock().answer = MarkBehavior::CannotNote;
    bed.put(1, message("foo", "a", 5));
    let index = bed.open();
    index.mark_message(at(&index, "a"), true, true).unwrap();
    for _ in 0..5 {
        index.sync_marks_to_stores();
        bed.folder.lock().edit(1, |f| f.at.len += 1);
        index.refresh_store(0, false).unwrap();
    }
    assert_eq!(bed.told(), [(1, true)]);
    assert!(entry(&index, "a").is_read());
}

#[test]
fn a_busy_store_is_told_again_without_another_event() {
    let bed = Bed::new();
    for n in 1..=20 {
        bed.put(n, message("foo", &format!("m{n}"), 5));
    }
    let index = bed.open();
    bed.folder.lock().answer = MarkBehavior::Busy;
    for n in 1..=20 {
        index.mark_message(at(&index, &format!("m{n}")), true, true).unwrap();
    }
    assert_eq!(index.sync_marks_to_stores(), Some(BUSY_AGAIN));
    assert_eq!(bed.told().len(), 20, "one that is busy says nothing about the others");
    bed.folder.lock().answer = MarkBehavior::Noted;
    assert_eq!(index.sync_marks_to_stores(), None);
    assert_eq!(bed.told().len(), 20);
    assert_eq!(index.sync_marks_to_stores(), None);
    assert_eq!(bed.told(), []);
}

#[test]
fn what_could_not_be_told_is_told_later_also_by_the_next_process() {
    let bed = Bed::new();
    bed.put(1, message("foo", "a", 5));
    bed.put(2, message("foo", "b", 5));
    let index = bed.open();
    index.save_snapshot();
    bed.folder.lock().answer = MarkBehavior::Fails;
    index.mark_message(at(&index, "a"), true, true).unwrap();
    assert_eq!(index.sync_marks_to_stores(), Some(FAILED_AGAIN));
    assert!(index.mark_fault(0).unwrap().ends_with("and tries again: read-only"));
    assert_eq!(index.sync_marks_to_stores(), Some(FAILED_AGAIN));
    assert_eq!(bed.told(), [(1, true), (1, true)], "it is tried again without another mark");
    index.close();
    // The process is killed before the write: only the journal has the mark.
    let index = bed.open();
    index.mark_message(at(&index, "b"), true, true).unwrap();
    drop(index);
    bed.folder.lock().answer = MarkBehavior::Noted;
    let index = bed.open();
    bed.told();
    index.sync_marks_to_stores();
    assert_eq!(bed.told(), [(1, true), (2, true)]);
    index.close();
    // The mark is restored from the journal alone.
    bed.folder.lock().edit(1, |f| f.read = Some(false));
    bed.drop_cache();
    let index = bed.open();
    index.sync_marks_to_stores();
    assert_eq!(bed.told(), [(1, true)]);
}

#[test]
fn a_message_that_moved_is_looked_for_and_told_again() {
    let bed = Bed::new();
    bed.put(1, message("foo", "a", 5));
    let index = bed.open();
    bed.folder.lock().answer = MarkBehavior::Moves;
    index.mark_message(at(&index, "a"), true, true).unwrap();
    index.sync_marks_to_stores();
    index.sync_marks_to_stores();
    assert_eq!(bed.told(), [(1, true), (1, true)]);
    assert_eq!(bed.folder.lock().file(1).read, Some(true));
    assert_eq!(entry(&index, "a").location().len, bed.folder.lock().file(1).at.len);
}

#[test]
fn no_lock_is_held_while_a_store_is_told() {
    let bed = Bed::new();
    bed.put(1, message("foo", "a", 5));
    let store = bed.memory();
    let index = Arc::new(bed.open_with(&store));
    let (told, weak): (_, Weak<Index>) = (Arc::new(AtomicBool::new(false)), Arc::downgrade(&index));
    let into = Arc::clone(&told);
    *store.on_tell.lock() = Some(Box::new(move || {
        let index = weak.upgrade().unwrap();
        // Each of the two panics if its lock is held.
        drop(index.marks.lock());
        drop(index.tables.write());
        into.store(true, Ordering::Relaxed);
    }));
    index.mark_message(at(&index, "a"), true, true).unwrap();
    index.sync_marks_to_stores();
    assert!(told.load(Ordering::Relaxed));
}

#[test]
fn marks_that_the_journal_lost_are_nobodys() {
    let bed = Bed::new();
    bed.put(1, message("foo", "a", 5));
    bed.put(2, crate::store::FoundMessage { read: Some(true), ..message("foo", "b", 5) });
    let index = bed.open();
    index.mark_message(at(&index, "a"), true, true).unwrap();
    index.mark_message(at(&index, "b"), false, false).unwrap();
    index.save_snapshot();
    drop(index);
    std::fs::write(bed.dir.path().join("marks"), "").unwrap();
    let index = bed.open();
    assert!(!entry(&index, "a").is_read() && entry(&index, "b").is_read());
    assert_eq!(index.read().marks.unread_count(), 1);
}

fn heard(id: &str, read: bool) -> Mark {
    let origin = MarkOrigin::Heard(MachineId(7), if read { 1 } else { 2 });
    Mark { from: "foo".into(), id: id.into(), read, origin }
}

#[test]
fn what_is_heard_is_noted_behind_all_that_was_noted_here() {
    let bed = Bed::new();
    bed.put(1, message("foo", "a", 5));
    bed.put(2, message("foo", "b", 6));
    let index = bed.open();
    let (_, at_first) = index.read_marks_since(0, 0).unwrap();
    index.mark_message(at(&index, "a"), true, true).unwrap();
    assert_eq!(index.import_marks(0, at_first, &[heard("b", true)]).unwrap(), None);
    assert!(!entry(&index, "b").is_read());
    let (marks, len) = index.read_marks_since(0, at_first).unwrap();
    let (from, id) = ("foo".to_owned(), "a".to_owned());
    assert_eq!(marks, [Mark { from, id, read: true, origin: MarkOrigin::Here }]);
    let all = [heard("a", false), heard("b", true), heard("c", true), heard("d", true)];
    let len = index.import_marks(0, len, &all).unwrap().unwrap();
    assert_eq!(index.read_marks_since(0, len).unwrap(), (Vec::new(), len));
    assert!(!entry(&index, "a").is_read() && entry(&index, "b").is_read());
    // A message that arrives later is read already, in this process and in the next.
    bed.put(3, message("foo", "c", 7));
    index.refresh_store(0, false).unwrap();
    assert!(entry(&index, "c").is_read());
    assert_eq!(index.read().marks.unread_count(), 1);
    drop(index);
    bed.put(4, message("foo", "d", 8));
    let index = bed.open();
    let read = ["a", "b", "c", "d"].map(|id| entry(&index, id).is_read());
    assert_eq!(read, [false, true, true, true]);
    assert_eq!(index.read_marks_since(0, 0).unwrap().0.len(), 5);
}
