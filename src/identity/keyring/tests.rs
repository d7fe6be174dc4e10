mod own_keys;
mod size;

use super::*;
use crate::model::{SignatureScope, SignedBytes};
use crate::store::fs::Stamp;
use ed25519_dalek::{Signer as _, SigningKey};
use proptest::prelude::*;
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};

struct Bench {
    dir: tempfile::TempDir,
}

impl Bench {
    fn new() -> Self {
        Self { dir: tempfile::tempdir().unwrap() }
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("keyring.json")
    }

    fn open(&self) -> Keyring {
        Keyring::open(&self.path()).unwrap()
    }

    fn json(&self) -> Value {
        serde_json::from_slice(&fs::read(self.path()).unwrap()).unwrap()
    }

    fn edit(&self, edit: impl FnOnce(&mut Value)) {
        let mut json = if self.path().exists() { self.json() } else { json!({}) };
        edit(&mut json);
        fs::write(self.path(), json.to_string()).unwrap();
    }
}

fn secret(seed: u8) -> SigningKey {
    SigningKey::from_bytes(&[seed; 32])
}

fn public(seed: u8) -> PublicKey {
    PublicKey(secret(seed).verifying_key().to_bytes())
}

/// Returns a claim that this key signed and offers itself.
fn by(seed: u8) -> SignatureClaim {
    offering(Some(public(seed)), seed)
}

fn offering(key: Option<PublicKey>, seed: u8) -> SignatureClaim {
    let text = b"text".to_vec();
    let signature = secret(seed).sign(&text).to_bytes();
    let covered = SignedBytes::from_candidates(vec![b"another reading".to_vec(), text]);
    SignatureClaim::Signed { key, signature, covered, scope: SignatureScope::Whole }
}

fn by_hand(keys: &Keyring, address: &str) -> bool {
    keys.list_pins().iter().any(|pin| pin.address == address && pin.by_hand)
}

/// Returns one of the messages of this sender.
fn signed<'a>(from: &'a str, store: &'a str) -> SignedMessage<'a> {
    SignedMessage { store, from, id: "id" }
}

fn reason(verdict: SignatureVerdict) -> String {
    match verdict {
        SignatureVerdict::Rejected(reason) => reason,
        other => panic!("{other:?}"),
    }
}

/// Returns the key that was offered for the address and refused last.
fn last_refused(keys: &Keyring, address: &str) -> Option<PublicKey> {
    keys.refused_key(address)
}

#[test]
fn keys_pinned_in_one_moment_stay_in_their_order() {
    let ring = Bench::new();
    let keyring = ring.open();
    let keys: Vec<PublicKey> = (1..30).map(public).collect();
    for key in &keys {
        keyring.trust_key("bob", Some(*key)).unwrap();
    }
    assert_eq!(keyring.pinned_keys("bob"), keys);
    assert_eq!(ring.open().pinned_keys("bob"), keys, "also after the file was read again");
}

#[test]
fn the_first_key_is_trusted_and_the_next_is_not() {
    let ring = Bench::new();
    let keys = ring.open();
    assert!(!keys.is_pinned("bob"));
    assert_eq!(
        keys.judge_signature(signed("bob", "samp"), &by(1)),
        SignatureVerdict::Valid(public(1))
    );
    assert_eq!(
        keys.judge_signature(signed("bob", "samp"), &by(1)),
        SignatureVerdict::Valid(public(1))
    );
    assert!(keys.is_pinned("bob") && !by_hand(&keys, "bob"));

    let why = reason(keys.judge_signature(signed("bob", "samp"), &by(2)));
    for part in [&public(1).fingerprint().to_string(), &public(2).fingerprint().to_string()] {
        assert!(why.contains(part), "{why}");
    }
    let command = format!("msgfs key trust bob --key {}", public(2).to_base64());
    assert!(why.ends_with(&command), "{why}");
    assert_eq!(keys.pinned_keys("bob"), [public(1)]);
    assert_eq!(last_refused(&keys, "bob"), Some(public(2)));
    // The store does not matter: an address is one person.
    reason(keys.judge_signature(signed("bob", "work"), &by(2)));
}

#[test]
fn wrong_signatures_pin_nothing_and_are_not_remembered() {
    let ring = Bench::new();
    let keys = ring.open();
    let forged = offering(Some(public(1)), 2);
    let why = reason(keys.judge_signature(signed("bob", "samp"), &forged));
    assert!(why.contains(&public(1).fingerprint().to_string()), "{why}");
    assert!(!keys.is_pinned("bob"));

    keys.judge_signature(signed("bob", "samp"), &by(1));
    reason(keys.judge_signature(signed("bob", "samp"), &forged));
    let why = reason(keys.judge_signature(signed("bob", "samp"), &offering(Some(public(3)), 2)));
    assert!(why.contains(&public(3).fingerprint().to_string()), "{why}");
    assert!(why.contains(&public(1).fingerprint().to_string()), "{why}");
    assert_eq!(last_refused(&keys, "bob"), None);
    assert!(matches!(keys.trust_key("bob", None), Err(KeyringError::NothingRefused { .. })));

    let why = reason(keys.judge_signature(
        signed("bob", "samp"),
        &SignatureClaim::Malformed("sig is a \x1b number".into()),
    ));
    assert!(why.contains("sig is a") && !why.contains('\x1b'), "{why}");
}

#[test]
fn a_small_order_key_is_never_trusted() {
    let ring = Bench::new();
    let keys = ring.open();
    let mut identity = [0; 32];
    identity[0] = 1;
    let mut signature = [0; 64];
    signature[0] = 1;
    let weak = PublicKey(identity);
    let covered = SignedBytes::from_bytes(b"any".to_vec());
    let claim = SignatureClaim::Signed {
        key: Some(weak),
        signature,
        covered,
        scope: SignatureScope::Whole,
    };
    let why = reason(keys.judge_signature(signed("bob", "samp"), &claim));
    assert!(why.contains("small order"), "{why}");
    assert!(matches!(keys.trust_key("bob", Some(weak)), Err(KeyringError::BadKey { .. })));
    assert!(!keys.is_pinned("bob") && !ring.path().exists());
}

#[test]
fn a_signature_without_a_key_needs_a_pin() {
    let ring = Bench::new();
    let keys = ring.open();
    assert_eq!(
        keys.judge_signature(signed("bob", "amp"), &offering(None, 1)),
        SignatureVerdict::Unknown
    );
    assert!(!keys.is_pinned("bob"));
    keys.trust_key("bob", Some(public(1))).unwrap();
    keys.trust_key("bob", Some(public(2))).unwrap();
    assert_eq!(
        keys.judge_signature(signed("bob", "amp"), &offering(None, 1)),
        SignatureVerdict::Valid(public(1))
    );
    assert_eq!(
        keys.judge_signature(signed("bob", "amp"), &offering(None, 2)),
        SignatureVerdict::Valid(public(2))
    );
    let why = reason(keys.judge_signature(signed("bob", "amp"), &offering(None, 3)));
    assert!(why.contains(&public(2).fingerprint().to_string()), "{why}");
    // Nobody has the empty name.
    assert_eq!(keys.judge_signature(signed("", "amp"), &by(1)), SignatureVerdict::Unknown);
    assert!(!keys.is_pinned("") && keys.trust_key("", Some(public(1))).is_err());
}

#[test]
fn trust_adds_and_forget_removes() {
    let ring = Bench::new();
    let keys = ring.open();
    keys.judge_signature(signed("bob", "samp"), &by(1));
    reason(keys.judge_signature(signed("bob", "samp"), &by(2)));
    reason(keys.judge_signature(signed("bob", "samp"), &by(3)));
    assert_eq!(last_refused(&keys, "bob"), Some(public(3)));
    assert_eq!(keys.trust_key("bob", Some(public(3))).unwrap(), public(3));
    assert_eq!(last_refused(&keys, "bob"), None);
    assert!(by_hand(&keys, "bob"));
    assert_eq!(
        keys.judge_signature(signed("bob", "samp"), &by(3)),
        SignatureVerdict::Valid(public(3))
    );
    assert_eq!(
        keys.judge_signature(signed("bob", "samp"), &by(1)),
        SignatureVerdict::Valid(public(1)),
        "old mail stays valid"
    );
    reason(keys.judge_signature(signed("bob", "samp"), &by(2)));

    keys.judge_signature(signed("carol", "samp"), &by(1));
    assert_eq!(keys.find_other_owner(&public(1), "carol").as_deref(), Some("bob"));
    assert_eq!(keys.find_other_owner(&public(3), "bob"), None);
    assert_eq!(keys.find_other_owner(&public(9), "bob"), None);

    assert!(keys.forget_address("bob", BTreeSet::new()).unwrap());
    assert!(!keys.forget_address("bob", BTreeSet::new()).unwrap());
    assert!(!keys.is_pinned("bob") && keys.is_pinned("carol"));
    assert_eq!(last_refused(&keys, "bob"), None);
    assert_eq!(
        keys.judge_signature(signed("bob", "samp"), &by(2)),
        SignatureVerdict::Valid(public(2))
    );
}

#[test]
fn of_several_refused_keys_a_person_names_one() {
    let ring = Bench::new();
    let keys = ring.open();
    keys.judge_signature(signed("bob", "samp"), &by(1));
    for seed in [2, 3, 2] {
        reason(keys.judge_signature(signed("bob", "samp"), &by(seed)));
    }
    keys.flush().unwrap();
    for keys in [&keys, &ring.open()] {
        let error = keys.trust_key("bob", None).unwrap_err();
        assert!(matches!(error, KeyringError::SeveralRefused(..)), "{error}");
        let lines: Vec<String> = error.to_string().lines().skip(1).map(str::to_owned).collect();
        let wanted = [2, 3].map(public).map(|key| {
            format!("{}: msgfs key trust bob --key {}", key.fingerprint(), key.to_base64())
        });
        assert_eq!(lines, wanted);
        assert_eq!(keys.pinned_keys("bob"), [public(1)]);
    }
    keys.trust_key("bob", Some(public(2))).unwrap();
    assert!(matches!(keys.trust_key("bob", None), Err(KeyringError::NothingRefused(_))));
    reason(keys.judge_signature(signed("bob", "samp"), &by(3)));
    assert_eq!(keys.trust_key("bob", None).unwrap(), public(3), "it is the only one since then");
}

#[test]
fn few_refused_keys_are_remembered() {
    let ring = Bench::new();
    let keys = ring.open();
    keys.judge_signature(signed("bob", "samp"), &by(1));
    for seed in 2..20 {
        reason(keys.judge_signature(signed("bob", "samp"), &by(seed)));
    }
    let last = (16..20).map(public).collect::<Vec<_>>();
    assert_eq!(keys.state.lock().document.refused_keys("bob"), last);
    // Another process refuses one more in the meantime.
    let other = ring.open();
    other.judge_signature(signed("bob", "samp"), &by(1));
    reason(other.judge_signature(signed("bob", "samp"), &by(30)));
    other.flush().unwrap();
    keys.flush().unwrap();
    let refused = ring.open().state.lock().document.refused_keys("bob");
    assert_eq!(refused, last);
    assert_eq!(ring.json().as_object().unwrap().len(), 1 + last.len());
}

#[test]
fn pins_and_refusals_survive_and_are_listed() {
    let ring = Bench::new();
    let before = Timestamp::now();
    let keys = ring.open();
    keys.judge_signature(signed("bob", "samp"), &by(1));
    reason(keys.judge_signature(signed("bob", "samp"), &by(2)));
    keys.judge_signature(signed("alice", "work"), &by(3));
    keys.judge_signature(signed("alice", "samp"), &by(3));
    assert!(!ring.path().exists(), "nothing is written before flush");
    keys.flush().unwrap();
    let mode = fs::metadata(ring.path()).unwrap().permissions().mode() & 0o7777;
    assert_eq!(mode, 0o600);

    let again = ring.open();
    assert_eq!(again.list_pins(), keys.list_pins());
    let pins = again.list_pins();
    assert_eq!(pins.iter().map(|p| p.address.as_str()).collect::<Vec<_>>(), ["alice", "bob"]);
    assert_eq!(pins[0].stores, ["work", "samp"]);
    assert_eq!((pins[1].key, pins[1].fingerprint), (public(1), public(1).fingerprint()));
    assert!(pins[1].first_seen >= before && pins[1].first_seen <= Timestamp::now());
    assert_eq!(last_refused(&again, "bob"), Some(public(2)));
    std::thread::sleep(std::time::Duration::from_millis(2)); // pins have a time to the millisecond
    again.trust_key("bob", None).unwrap();
    let third = ring.open();
    assert_eq!(third.pinned_keys("bob"), [public(1), public(2)], "the newest last");
    assert!(by_hand(&third, "bob") && !by_hand(&third, "alice"));
}

#[test]
fn the_file_has_the_form_of_the_reference() {
    let ring = Bench::new();
    let keys = ring.open();
    keys.judge_signature(signed("bob@host", "samp"), &by(1));
    reason(keys.judge_signature(signed("bob@host", "samp"), &by(2)));
    keys.flush().unwrap();
    let json = ring.json();
    let entry = &json[public(1).fingerprint().to_string()];
    assert_eq!(entry["fingerprint"], public(1).fingerprint().to_string());
    assert_eq!(entry["addresses"], json!(["bob@host"]));
    assert_eq!(entry["public_key_b64"].as_str().unwrap().len(), 44);
    assert!(entry["first_seen"].is_string() && entry["last_seen"].is_string());
    assert_eq!(entry["pinned"]["bob@host"]["by"], "first-use");
    // A reader that takes addresses for trust must not find a refused key there.
    assert_eq!(json[public(2).fingerprint().to_string()]["addresses"], json!([]));
}

#[test]
fn a_keyring_of_the_reference_pins_nothing_by_itself() {
    let ring = Bench::new();
    ring.edit(|json| {
        json["56475aa75463474c"] = json!({
            "public_key_b64": "A6EHv/POEL4dcN0Y50vAmWfk1jCbpQ1fHdyGZBJVMbg=",
            "fingerprint": "56475aa75463474c",
            "first_seen": "2026-03-11T14:23:55.123456",
            "last_seen": "2026-03-11T14:23:55.123456",
            "addresses": ["alice@localhost"],
        });
    });
    let keys = ring.open();
    assert!(!keys.is_pinned("alice@localhost"));
    keys.judge_signature(signed("alice@localhost", "mail"), &by(1));
    keys.flush().unwrap();
    assert_eq!(ring.json()["56475aa75463474c"]["addresses"], json!(["alice@localhost"]));
}

#[test]
fn unknown_members_survive_every_write() {
    let ring = Bench::new();
    let keys = ring.open();
    keys.judge_signature(signed("bob", "samp"), &by(1));
    keys.flush().unwrap();
    let name = public(1).fingerprint().to_string();
    ring.edit(|json| {
        json["comment"] = json!(["mine"]);
        json[&name]["note"] = json!({"a": 1.5});
        json[&name]["pinned"]["bob"]["why"] = json!("met in person");
    });
    let keys = ring.open();
    keys.judge_signature(signed("carol", "samp"), &by(2));
    keys.flush().unwrap();
    keys.trust_key("dave", Some(public(3))).unwrap();
    let json = ring.json();
    assert_eq!(json["comment"], json!(["mine"]));
    assert_eq!(json[&name]["note"], json!({"a": 1.5}));
    assert_eq!(json[&name]["pinned"]["bob"]["why"], "met in person");
    keys.forget_address("bob", BTreeSet::new()).unwrap();
    assert_eq!(ring.json()[&name]["note"], json!({"a": 1.5}), "a note outlives the pin");
}

#[test]
fn a_corrupt_keyring_is_named_and_stays() {
    let ring = Bench::new();
    let short = json!({"56475aa75463474c": {"public_key_b64": "AAAA"}}).to_string();
    let renamed = json!({"0000000000000000": {
        "public_key_b64": "A6EHv/POEL4dcN0Y50vAmWfk1jCbpQ1fHdyGZBJVMbg="}});
    let renamed = renamed.to_string();
    for text in ["", "{", "[]", "null", r#"{"56475aa75463474c": 5}"#, &short, &renamed] {
        fs::write(ring.path(), text).unwrap();
        for open in [Keyring::open, Keyring::open_read_only] {
            let error = open(&ring.path()).unwrap_err();
            assert!(matches!(error, KeyringError::Corrupt { .. }), "{text}: {error}");
            assert!(error.to_string().contains(&ring.path().display().to_string()));
        }
        assert_eq!(fs::read_to_string(ring.path()).unwrap(), text);
    }
    fs::remove_file(ring.path()).unwrap();
    symlink("/nonexistent", ring.path()).unwrap();
    assert!(matches!(Keyring::open(&ring.path()), Err(KeyringError::Corrupt { .. })));
}

#[test]
fn corruption_while_open_changes_nothing_and_is_not_overwritten() {
    let ring = Bench::new();
    let keys = ring.open();
    keys.judge_signature(signed("bob", "samp"), &by(1));
    keys.flush().unwrap();
    let good = fs::read(ring.path()).unwrap();
    fs::write(ring.path(), "{ half").unwrap();
    assert!(!keys.reload_if_changed());
    assert!(keys.fault().unwrap().contains("keyring.json"));
    keys.judge_signature(signed("carol", "samp"), &by(2));
    assert!(matches!(keys.flush(), Err(KeyringError::Corrupt { .. })));
    assert!(
        keys.trust_key("bob", Some(public(5))).is_err()
            && keys.forget_address("bob", BTreeSet::new()).is_err()
    );
    assert_eq!(fs::read_to_string(ring.path()).unwrap(), "{ half");
    assert_eq!(keys.pinned_keys("bob"), [public(1)]);

    fs::write(ring.path(), good).unwrap();
    keys.flush().unwrap();
    assert_eq!(keys.fault(), None);
    assert!(ring.open().is_pinned("carol"));
}

#[test]
fn what_another_process_trusts_counts_at_once() {
    let ring = Bench::new();
    let mount = ring.open();
    mount.judge_signature(signed("bob", "samp"), &by(1));
    reason(mount.judge_signature(signed("bob", "samp"), &by(2)));
    mount.flush().unwrap();
    assert!(!mount.reload_if_changed(), "our own write is no news");
    mount.judge_signature(signed("carol", "samp"), &by(3)); // not flushed

    let command = ring.open();
    assert_eq!(command.trust_key("bob", None).unwrap(), public(2));
    assert!(mount.reload_if_changed());
    assert_eq!(mount.take_changed_addresses(), BTreeSet::from(["bob".to_owned()]));
    assert!(!mount.reload_if_changed());
    assert_eq!(
        mount.judge_signature(signed("bob", "samp"), &by(2)),
        SignatureVerdict::Valid(public(2))
    );
    assert!(mount.is_pinned("carol"), "a pin that was not written yet stays");
    mount.flush().unwrap();
    assert!(ring.open().is_pinned("carol"));

    command.forget_address("bob", BTreeSet::new()).unwrap();
    assert!(mount.reload_if_changed());
    assert!(!mount.is_pinned("bob"));
}

#[test]
fn a_flush_keeps_what_another_process_wrote() {
    let ring = Bench::new();
    let mount = ring.open();
    mount.judge_signature(signed("bob", "samp"), &by(1));
    mount.judge_signature(signed("carol", "samp"), &by(2));
    // A person vouches for another key of bob's before the first-use pin is on disk.
    ring.open().trust_key("bob", Some(public(7))).unwrap();
    mount.flush().unwrap();
    assert_eq!(mount.pinned_keys("bob"), [public(7)], "the file wins");
    assert!(mount.reload_if_changed(), "and the caller hears of it");
    let disk = ring.open();
    assert_eq!(
        (disk.pinned_keys("bob"), disk.pinned_keys("carol")),
        (vec![public(7)], vec![public(2)])
    );
}

#[test]
fn processes_that_write_at_once_lose_nothing() {
    let ring = Bench::new();
    std::thread::scope(|s| {
        for n in 0..8u8 {
            let ring = &ring;
            s.spawn(move || {
                let keys = ring.open(); // its own instance, as another process has
                keys.judge_signature(signed(&format!("first{n}"), "samp"), &by(n));
                keys.flush().unwrap();
                keys.trust_key(&format!("hand{n}"), Some(public(n))).unwrap();
            });
        }
    });
    assert_eq!(ring.open().list_pins().len(), 16);
}

#[test]
fn read_only_pins_in_memory() {
    let ring = Bench::new();
    let keys = Keyring::open_read_only(&ring.path()).unwrap();
    assert_eq!(
        keys.judge_signature(signed("bob", "samp"), &by(1)),
        SignatureVerdict::Valid(public(1))
    );
    reason(keys.judge_signature(signed("bob", "samp"), &by(2)));
    keys.flush().unwrap();
    assert!(matches!(keys.trust_key("bob", None), Err(KeyringError::ReadOnly { .. })));
    assert!(matches!(
        keys.forget_address("bob", BTreeSet::new()),
        Err(KeyringError::ReadOnly { .. })
    ));
    assert_eq!(fs::read_dir(ring.dir.path()).unwrap().count(), 0);
}

#[test]
fn a_flush_with_nothing_new_does_not_touch_the_file() {
    let ring = Bench::new();
    let keys = ring.open();
    keys.judge_signature(signed("bob", "samp"), &by(1));
    keys.flush().unwrap();
    let stamp = Stamp::from_path(&ring.path()).unwrap();
    for _ in 0..3 {
        keys.judge_signature(signed("bob", "samp"), &by(1));
        keys.flush().unwrap();
        keys.trust_key("carol", Some(public(2))).ok();
    }
    let after_trust = Stamp::from_path(&ring.path()).unwrap();
    assert_ne!(stamp, after_trust);
    keys.trust_key("carol", Some(public(2))).unwrap();
    keys.judge_signature(signed("bob", "samp"), &by(1));
    keys.flush().unwrap();
    assert_eq!(Stamp::from_path(&ring.path()).unwrap(), after_trust);
}

#[test]
fn hostile_addresses_stay_text() {
    let ring = Bench::new();
    let keys = ring.open();
    let from = "x\n; rm -rf ~ \x1b[2J'";
    keys.judge_signature(signed(from, "samp"), &by(1));
    let why = reason(keys.judge_signature(signed(from, "samp"), &by(2)));
    assert!(!why.chars().any(char::is_control), "{why}");
    keys.flush().unwrap();
    assert!(ring.open().is_pinned(from));
}

proptest! {
    #[test]
    fn no_text_makes_the_reader_panic(text in "\\PC{0,200}") {
        if let Ok(document) = KeyringDocument::parse(text.as_bytes()) {
            let again = KeyringDocument::parse(document.to_text().unwrap().as_bytes());
            prop_assert_eq!(again.unwrap(), document);
        }
    }

    /// After any operations, a keyring opened afterwards agrees with the one in memory, and a key is valid for an
    /// address only if it was the first there or trusted by hand.
    #[test]
    fn memory_and_file_agree(ops in proptest::collection::vec((0u8..5, 0u8..3, 0u8..4), 1..24)) {
        let ring = Bench::new();
        let keys = ring.open();
        let mut model: BTreeMap<String, Vec<PublicKey>> = BTreeMap::new();
        for (op, who, seed) in ops {
            let who = format!("agent{who}");
            match op {
                0 | 1 => {
                    let trusted = model.entry(who.clone()).or_default();
                    if trusted.is_empty() {
                        trusted.push(public(seed));
                    }
                    let expected = trusted.contains(&public(seed));
                    let verdict = keys.judge_signature(signed(&who, "samp"), &by(seed));
                    prop_assert_eq!(verdict == SignatureVerdict::Valid(public(seed)), expected);
                }
                2 => {
                    keys.trust_key(&who, Some(public(seed))).unwrap();
                    let trusted = model.entry(who).or_default();
                    if !trusted.contains(&public(seed)) {
                        trusted.push(public(seed));
                    }
                }
                3 => {
                    let had = model.remove(&who).is_some_and(|t| !t.is_empty());
                    prop_assert_eq!(keys.forget_address(&who, BTreeSet::new()).unwrap(), had);
                }
                _ => keys.flush().unwrap(),
            }
        }
        keys.flush().unwrap();
        let disk = ring.open();
        prop_assert_eq!(disk.list_pins(), keys.list_pins());
        for (who, mut trusted) in model {
            let mut pinned = disk.pinned_keys(&who);
            pinned.sort();
            trusted.sort();
            prop_assert_eq!(pinned, trusted);
        }
    }
}

/// Returns a claim over something else than the whole message as it was sent.
fn scoped(seed: u8, scope: SignatureScope) -> SignatureClaim {
    let SignatureClaim::Signed { key, signature, covered, .. } = by(seed) else {
        panic!("it is signed")
    };
    SignatureClaim::Signed { key, signature, covered, scope }
}

#[test]
fn a_part_of_a_message_pins_and_refuses_nothing() {
    let ring = Bench::new();
    let keys = ring.open();
    assert_eq!(
        keys.judge_signature(signed("bob", "mail"), &scoped(1, SignatureScope::Part)),
        SignatureVerdict::Unknown
    );
    assert!(!keys.is_pinned("bob"));
    keys.judge_signature(signed("bob", "mail"), &by(1));
    assert_eq!(
        keys.judge_signature(signed("bob", "mail"), &scoped(1, SignatureScope::Part)),
        SignatureVerdict::Valid(public(1))
    );
    assert_eq!(
        keys.judge_signature(signed("bob", "mail"), &scoped(2, SignatureScope::Part)),
        SignatureVerdict::Unknown
    );
    assert_eq!(last_refused(&keys, "bob"), None);
}

#[test]
fn a_renamed_sender_does_not_get_the_key_of_another() {
    let ring = Bench::new();
    let keys = ring.open();
    let renamed = |seed| scoped(seed, SignatureScope::Renamed);
    keys.judge_signature(signed("alice", "mail"), &by(1));
    assert_eq!(
        keys.judge_signature(signed("alice", "mail"), &renamed(1)),
        SignatureVerdict::Valid(public(1))
    );
    let why = reason(keys.judge_signature(signed("bob", "mail"), &renamed(1)));
    assert!(why.contains("belongs to alice"), "{why}");
    assert!(!keys.is_pinned("bob"));
    // A key that nobody has is pinned as usual.
    assert_eq!(
        keys.judge_signature(signed("carol", "mail"), &renamed(3)),
        SignatureVerdict::Valid(public(3))
    );
    // A refused key can be trusted, also after another process wrote the file.
    ring.open().trust_key("dave", Some(public(4))).unwrap();
    keys.flush().unwrap();
    assert_eq!(ring.open().trust_key("bob", None).unwrap(), public(1));
    assert!(keys.reload_if_changed());
    assert_eq!(
        keys.judge_signature(signed("bob", "mail"), &renamed(1)),
        SignatureVerdict::Valid(public(1))
    );
}

#[test]
fn forgetting_takes_the_keys_and_pins_nothing_until_something_new_comes() {
    let ring = Bench::new();
    let keys = ring.open();
    let id = |id| SignedMessage { id, ..signed("bob", "samp") };
    assert_eq!(keys.judge_signature(id("a"), &by(1)), SignatureVerdict::Valid(public(1)));
    reason(keys.judge_signature(id("b"), &by(2)));
    keys.take_changed_addresses();
    let held = ["a", "b", "c"].map(|name| id(name).digest());
    assert!(
        ring.open().forget_address("bob", BTreeSet::new()).is_ok_and(|pinned| !pinned),
        "not flushed"
    );
    assert!(keys.forget_address("bob", BTreeSet::from(held)).unwrap());
    assert_eq!(keys.take_changed_addresses(), BTreeSet::from(["bob".to_owned()]));
    for keys in [&keys, &ring.open()] {
        for (name, seed) in [("a", 1), ("b", 2), ("c", 3)] {
            assert_eq!(
                keys.judge_signature(id(name), &by(seed)),
                SignatureVerdict::Unknown,
                "{name}"
            );
        }
        reason(keys.judge_signature(id("a"), &offering(Some(public(1)), 2)));
        assert!(!keys.is_pinned("bob"));
    }
    assert_eq!(keys.judge_signature(id("new"), &by(2)), SignatureVerdict::Valid(public(2)));
    keys.flush().unwrap();
    let keys = ring.open();
    assert_eq!(
        keys.judge_signature(id("a"), &by(1)),
        SignatureVerdict::Unknown,
        "not refused for the other key"
    );
    assert_eq!(keys.judge_signature(id("b"), &by(2)), SignatureVerdict::Valid(public(2)));
    reason(keys.judge_signature(id("later"), &by(1)));
    ring.edit(|json| json["forgotten"] = json!({"bob": "AAAA"}));
    let error = Keyring::open(&ring.path()).unwrap_err().to_string();
    assert!(error.contains("forgotten"), "{error}");
}
