//! Tests of my own keys.

use super::*;

/// S1240: my key stays pinned when the file goes, and every other key is refused.
#[test]
fn my_key_stays_pinned_when_the_file_goes() {
    for read_only in [false, true] {
        let ring = Bench::new();
        ring.open().trust_key("me", Some(public(1))).unwrap();
        let open = if read_only { Keyring::open_read_only } else { Keyring::open };
        let keys = open(&ring.path()).unwrap();
        keys.keep_own_key("me", public(1));
        fs::remove_file(ring.path()).unwrap();
        assert!(keys.reload_if_changed());
        assert!(keys.take_changed_addresses().contains("me"), "the refused keys are known no more");
        reason(keys.judge_signature(signed("me", "samp"), &by(2)));
        assert_eq!(last_refused(&keys, "me"), Some(public(2)));
        let own = keys.judge_signature(signed("me", "samp"), &by(1));
        assert_eq!(own, SignatureVerdict::Valid(public(1)));
        keys.flush().unwrap();
        assert_eq!(ring.path().exists(), !read_only);
        if !read_only {
            assert_eq!(ring.open().pinned_keys("me"), [public(1)]);
            assert!(by_hand(&ring.open(), "me"));
        }
    }
}

/// S1240: an address of mine without a key gets mine at once. A file that has keys of the address decides.
#[test]
fn the_file_decides_about_my_address_as_long_as_it_has_keys() {
    let ring = Bench::new();
    let keys = ring.open();
    for seed in [1, 2] {
        keys.keep_own_key("me", public(seed));
    }
    assert_eq!(keys.pinned_keys("me"), [public(1)]);
    ring.open().trust_key("me", Some(public(3))).unwrap();
    assert!(keys.reload_if_changed());
    assert_eq!(keys.pinned_keys("me"), [public(3)]);
    // Both keys signed for me, so what they signed stays valid.
    fs::remove_file(ring.path()).unwrap();
    assert!(keys.reload_if_changed());
    assert_eq!(keys.pinned_keys("me"), [public(1), public(2)]);
}
