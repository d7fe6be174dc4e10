//! Tests of reviews that are interrupted, or that cannot read a message.

use std::io;
use std::path::Path;

use super::*;
use crate::store::{Location, StoreError};

/// A snapshot that is written before or amid a review has the next process judge the messages again.
#[test]
fn a_review_that_a_kill_ends_takes_place_at_the_next_start() {
    for begun in [false, true] {
        let bed = Bed::new();
        bed.keyring().trust_key("foo", Some(public(1))).unwrap();
        bed.put(1, with("foo", "a", signed(2, SignatureScope::Whole)));
        bed.put(2, with("bar", "b", without_key(4)));
        let index = bed.open();
        assert_eq!((state(&index, "a"), state(&index, "b")), (None, Some(SignatureState::Unknown)));
        index.keyring().trust_key("foo", Some(public(2))).unwrap();
        // The first key of bar vouches for its earlier message.
        bed.put(3, with("bar", "c", signed(4, SignatureScope::Whole)));
        index.scan_store(0, false, false, &mut |_, _| {});
        if begun {
            assert_eq!(index.keyring().take_changed_addresses().len(), 1);
            assert_eq!(index.keyring().take_first_uses().len(), 1);
        }
        index.save_snapshot();
        drop(index);
        let index = bed.open();
        assert_eq!((state(&index, "a"), state(&index, "b")), (Some(valid(2)), Some(valid(4))));
        // This is in the next snapshot, and needs no other review.
        let reviewed = index.keyring().reviewed_hashes(BTreeSet::new());
        assert_eq!(reviewed, index.keyring().trust_hashes());
    }
}

/// Messages that could not be read when the keys changed are judged as soon as the store is back, also in the
/// next process.
#[test]
fn what_could_not_be_read_is_judged_when_the_store_is_back() {
    for remount in [false, true] {
        let bed = Bed::new();
        for name in ["foo", "bar"] {
            bed.keyring().trust_key(name, Some(public(1))).unwrap();
        }
        bed.put(1, with("foo", "a", signed(2, SignatureScope::Whole)));
        bed.put(2, with("bar", "b", signed(1, SignatureScope::Whole)));
        let mut index = bed.open();
        assert_eq!((state(&index, "a"), state(&index, "b")), (None, Some(valid(1))));
        bed.folder.lock().away = true;
        index.keyring().trust_key("foo", Some(public(2))).unwrap();
        index.keyring().forget_address("bar", index.keyring_digests("bar")).unwrap();
        index.rejudge_changed();
        assert!(index.refresh_store(0, false).is_err());
        assert_eq!((state(&index, "a"), state(&index, "b")), (None, Some(valid(1))));
        if remount {
            index.save_snapshot();
            drop(index);
            index = bed.open();
            assert_eq!((state(&index, "a"), state(&index, "b")), (None, Some(valid(1))));
        }
        bed.folder.lock().away = false;
        index.refresh_store(0, false).unwrap();
        let unknown = Some(SignatureState::Unknown);
        assert_eq!((state(&index, "a"), state(&index, "b")), (Some(valid(2)), unknown));
        assert!(index.read().trust.unreviewed.is_empty());
    }
}

/// S1239: after the keyring is lost, the first message of a sender pins a key again, as without the cache. A forged one
/// that was rejected does not, and neither does one that came since.
#[test]
fn after_a_lost_keyring_the_first_message_pins() {
    for mounted in [true, false] {
        let bed = Bed::new();
        bed.put(1, with("foo", "genuine", signed(1, SignatureScope::Whole)));
        bed.put(2, with("foo", "forged", signed(2, SignatureScope::Whole)));
        let mut index = bed.open();
        let check = |index: &Index| {
            assert_eq!((state(index, "genuine"), state(index, "forged")), (Some(valid(1)), None));
        };
        check(&index);
        if !mounted {
            index.close();
            bed.put(3, with("foo", "late", signed(2, SignatureScope::Whole)));
        }
        std::fs::remove_file(bed.dir.path().join("keyring.json")).unwrap();
        if mounted {
            assert!(index.keyring().reload_if_changed());
            index.rejudge_changed();
        } else {
            index = bed.open();
            assert_eq!(state(&index, "late"), None);
        }
        check(&index);
        stays(&bed, index);
    }
}

/// S1239: a line that was put in front of others in its log is judged before them, as without the cache.
#[test]
fn after_a_lost_keyring_each_file_is_judged_from_its_start() {
    let bed = Bed::new();
    for (id, seed) in [("one", 1), ("two", 2), ("three", 3)] {
        bed.put(u32::from(seed), with("foo", id, signed(seed, SignatureScope::Whole)));
    }
    let index = bed.open();
    for (id, source, offset) in [("one", 1, 50), ("two", 2, 0), ("three", 1, 0)] {
        let ix = at(&index, id);
        let found =
            FoundMessage { at: Location { source, offset, len: 10 }, ..message("foo", id, 5) };
        index.tables.write().messages.relocate(ix, SourceId::new(0, source), &found);
    }
    let [one, two, three] = ["one", "two", "three"].map(|id| at(&index, id));
    let sorted = index.sort_as_scanned(&index.read().messages, vec![two, three, one, two]);
    assert_eq!(sorted, [three, one, two]);
}

/// S1239: the snapshot stays in use after a person forgot the keys of an address.
#[test]
fn forgotten_keys_are_not_lost() {
    let bed = Bed::new();
    bed.put(1, with("foo", "a", signed(1, SignatureScope::Whole)));
    let index = bed.open();
    let before = index.keyring().reviewed_hashes(BTreeSet::new());
    let is_lost = |keyring: &Keyring| index.read().has_lost_pins(index.stores(), keyring, &before);
    let other = bed.keyring();
    assert!(!is_lost(&other));
    other.forget_address("foo", index.keyring_digests("foo")).unwrap();
    assert!(!is_lost(&other));
    std::fs::remove_file(bed.dir.path().join("keyring.json")).unwrap();
    assert!(is_lost(&bed.keyring()));
}

/// A sender without a pin has lost none, so its mail stays if a review could not read one of its messages (S171).
#[test]
fn a_sender_who_waits_for_a_review_has_lost_no_pin() {
    let bed = Bed::new();
    bed.put(1, message("eve", "good", 5));
    bed.put(2, with("eve", "bad", SignatureClaim::Malformed("it is no signature".to_owned())));
    let index = bed.open();
    let states = |index: &Index| (state(index, "good"), state(index, "bad"));
    let known = (Some(SignatureState::None), None);
    assert_eq!(states(&index), known);
    bed.folder.lock().away = true;
    index.keyring().trust_key("foo", Some(public(1))).unwrap();
    index.rejudge_changed();
    assert_eq!(index.read().trust.unreviewed.len(), 1);
    index.save_snapshot();
    drop(index);
    let index = bed.open();
    assert_eq!(states(&index), known);
    // The rejected message waits for the store again.
    assert_eq!(index.read().trust.unreviewed.len(), 1);
}

/// A retry reads a bounded number of files that fail, and each message gets its turn.
#[test]
fn a_retry_reads_few_files_that_fail() {
    let (count, readable) = (50, 40);
    let bed = Bed::new();
    bed.keyring().trust_key("foo", Some(public(1))).unwrap();
    for n in 0..count {
        bed.put(n, with("foo", &format!("m{n}"), signed(2, SignatureScope::Whole)));
    }
    let index = bed.open();
    let unreadable = || StoreError::io(Path::new("x"), io::Error::from_raw_os_error(libc::EACCES));
    let files = (0..count).map(|n| (n, unreadable as fn() -> StoreError)).collect();
    bed.folder.lock().unreadable = files;
    index.keyring().trust_key("foo", Some(public(2))).unwrap();
    index.rejudge_changed();
    assert_eq!(index.read().trust.unreviewed.len(), count as usize);
    bed.folder.lock().unreadable.remove(&readable);
    let mut is_valid = false;
    for _ in 0..=count as usize / FAILURES_AT_MOST {
        let before = bed.folder.lock().reads;
        index.refresh_store(0, false).unwrap();
        assert!(bed.folder.lock().reads - before <= FAILURES_AT_MOST + 1);
        is_valid |= state(&index, &format!("m{readable}")) == Some(valid(2));
    }
    assert!(is_valid);
    assert_eq!(index.read().trust.unreviewed.len(), count as usize - 1);
}

/// After the first failure in a file a retry reads nothing else of it.
#[test]
fn a_retry_leaves_a_file_alone_after_a_failure() {
    let bed = Bed::new();
    for n in 0..3 {
        bed.put(n, with("foo", &format!("m{n}"), signed(1, SignatureScope::Whole)));
    }
    let index = bed.open();
    for n in 0..3u32 {
        let at_line = Location { source: 0, offset: u64::from(n) * 10, len: 10 };
        let id = format!("m{n}");
        let (ix, found) = (at(&index, &id), FoundMessage { at: at_line, ..message("foo", &id, 5) });
        let IndexTables { messages, trust, .. } = &mut *index.tables.write();
        messages.relocate(ix, SourceId::new(0, 0), &found);
        trust.note_unreviewed(ix, true);
    }
    bed.folder.lock().away = true;
    for _ in 0..3 {
        let before = bed.folder.lock().reads;
        index.rejudge_unreviewed(0);
        assert_eq!(bed.folder.lock().reads, before + 1);
    }
    assert_eq!(index.read().trust.unreviewed.len(), 3);
}
