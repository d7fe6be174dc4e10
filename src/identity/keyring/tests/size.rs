//! Tests of what messages can bring into the keyring.

use super::*;
use crate::identity::keyring::size::{FULL, MAX_ADDRESS};

/// Writes a keyring of about this size in which bob has a key.
fn fill(ring: &Bench, size: u64) {
    ring.open().trust_key("bob", Some(public(1))).unwrap();
    ring.edit(|json| json["note"] = json!("x".repeat(usize::try_from(size).unwrap())));
}

/// S1340: no message brings a very long address into the keyring.
#[test]
fn a_very_long_address_gets_no_key() {
    let ring = Bench::new();
    let keys = ring.open();
    let (most, more) = ("b".repeat(MAX_ADDRESS), "b".repeat(MAX_ADDRESS + 1));
    for _ in 0..2 {
        let verdict = keys.judge_signature(signed(&more, "samp"), &by(1));
        assert_eq!(verdict, SignatureVerdict::Unknown);
    }
    keys.flush().unwrap();
    assert!(!ring.path().exists() && !keys.is_pinned(&more));
    let verdict = keys.judge_signature(signed(&most, "samp"), &by(1));
    assert_eq!(verdict, SignatureVerdict::Valid(public(1)));

    let SignatureClaim::Signed { key, signature, covered, .. } = by(1) else { unreachable!() };
    let scope = SignatureScope::Renamed;
    let renamed = SignatureClaim::Signed { key, signature, covered, scope };
    reason(keys.judge_signature(signed(&more, "samp"), &renamed));
    assert_eq!(last_refused(&keys, &more), None, "it is refused, but not remembered");
    assert_eq!(keys.fault(), None);
}

#[test]
fn messages_bring_no_key_into_a_full_keyring() {
    let ring = Bench::new();
    fill(&ring, FULL);
    let keys = ring.open();
    let why = keys.fault().expect("it is reported");
    assert!(why.contains(&format!("mv {0} {0}.bad", ring.path().display())), "{why}");
    let judge = |from: &str, seed| keys.judge_signature(signed(from, "samp"), &by(seed));
    assert_eq!(judge("carol", 2), SignatureVerdict::Unknown);
    assert_eq!(judge("bob", 1), SignatureVerdict::Valid(public(1)));
    reason(judge("bob", 2));
    assert_eq!(last_refused(&keys, "bob"), None);
    keys.trust_key("carol", Some(public(2))).unwrap();
    assert_eq!(judge("carol", 2), SignatureVerdict::Valid(public(2)), "a person has the last word");
    assert!(ring.open().is_pinned("carol"));

    fs::remove_file(ring.path()).unwrap();
    assert!(keys.reload_if_changed());
    assert_eq!(keys.fault(), None, "the remedy works at once");
    assert_eq!(judge("dave", 4), SignatureVerdict::Valid(public(4)));
}

#[test]
fn keys_that_are_not_written_yet_count() {
    let ring = Bench::new();
    fill(&ring, FULL - 1500);
    let keys = ring.open();
    let judge = |from: &str| keys.judge_signature(signed(from, "samp"), &by(1));
    assert_eq!(judge("dave"), SignatureVerdict::Valid(public(1)));
    let long = "e".repeat(MAX_ADDRESS);
    assert_eq!(judge(&long), SignatureVerdict::Valid(public(1)));
    assert_eq!(judge("frank"), SignatureVerdict::Unknown);
}

#[test]
fn no_keyring_is_written_that_cannot_be_read() {
    let ring = Bench::new();
    fill(&ring, disk::MAX_BYTES - 1000);
    let before = Stamp::from_path(&ring.path()).unwrap();
    let keys = ring.open();
    let long = "c".repeat(2000);
    let error = keys.trust_key(&long, Some(public(2))).unwrap_err();
    assert!(matches!(error, KeyringError::Full(_)), "{error}");
    assert_eq!(Stamp::from_path(&ring.path()).unwrap(), before);
    assert!(!keys.is_pinned(&long) && ring.open().is_pinned("bob"));
}

#[test]
fn a_keyring_that_is_too_large_names_its_remedy() {
    let ring = Bench::new();
    let file = fs::File::create(ring.path()).unwrap();
    file.set_len(disk::MAX_BYTES + 1).unwrap();
    let error = Keyring::open(&ring.path()).unwrap_err();
    assert!(matches!(error, KeyringError::Corrupt(..)), "{error}");
    let remedy = format!("mv {0} {0}.bad", ring.path().display());
    assert!(error.to_string().contains(&remedy), "{error}");
}

#[test]
fn the_first_keys_of_very_many_senders_are_pinned_fast() {
    let mut document = KeyringDocument::default();
    let start = std::time::Instant::now();
    for n in 0..40_000u32 {
        let mut key = [0; 32];
        key[..4].copy_from_slice(&n.to_be_bytes());
        let pin = PinRecord::new(PinOrigin::FirstUse, Some("samp"), Timestamp::now());
        document.pin_key(&n.to_string(), PublicKey(key), pin).unwrap();
    }
    let took = start.elapsed();
    assert!(took < std::time::Duration::from_secs(10), "{took:?}");
}
