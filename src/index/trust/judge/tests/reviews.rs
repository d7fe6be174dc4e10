//! Tests of reviews that are interrupted, or that cannot read a message.

use super::*;

/// S1207: a snapshot that is written before or amid a review has the next process judge the messages again.
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

/// S1206: messages that could not be read when the keys changed are judged as soon as the store is back, also in the
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
