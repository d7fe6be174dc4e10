use super::*;
use crate::model::verify::verify;
use proptest::prelude::*;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};

/// RFC 8032, section 7.1, test 1.
const SEED: &str = "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60";
const PUBLIC: &str = "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a";
const SIGNATURE: &str = "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24655141438e7a100b";

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

fn put(path: &Path, text: &str) {
    fs::write(path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn signs_as_the_rfc_says() {
    let identity = KeyPair::from_seed(&decode_hex_32(SEED).unwrap());
    assert_eq!(encode_hex(&identity.public_key().0), PUBLIC);
    assert_eq!(encode_hex(&identity.sign(b"")), SIGNATURE);
    assert!(!format!("{identity:?}").contains("9d61"));
}

#[test]
fn a_seed_goes_out_and_comes_back() {
    let identity = KeyPair::from_seed(&decode_hex_32(SEED).unwrap());
    let seed = identity.seed();
    assert_eq!(encode_hex(seed.bytes()), SEED);
    assert_eq!(encode_hex(&KeyPair::new(&seed).public_key().0), PUBLIC);
    assert!(!format!("{seed:?}").contains("9d61"));
}

#[test]
fn reads_a_key_file_of_the_reference() {
    let dir = folder();
    let path = dir.path().join(".identity_key");
    put(
        &path,
        r#"{
  "private_key_hex": "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f",
  "public_key_hex": "03a107bff3ce10be1d70dd18e74bc09967e4d6309ba50d5f1ddc8664125531b8",
  "public_key_b64": "A6EHv/POEL4dcN0Y50vAmWfk1jCbpQ1fHdyGZBJVMbg=",
  "fingerprint": "56475aa75463474c",
  "created": "2026-03-11T14:23:55.123456"
}"#,
    );
    let identity = KeyPair::load(&path).unwrap();
    assert_eq!(identity.public_key().fingerprint().to_string(), "56475aa75463474c");
    // Only the private half is needed.
    put(&path, &format!("{{\"private_key_hex\": \"{SEED}\"}}"));
    assert_eq!(encode_hex(&KeyPair::load(&path).unwrap().public_key().0), PUBLIC);
}

#[test]
fn makes_one_key_and_keeps_it() {
    let dir = folder();
    let path = dir.path().join("state/foo/key");
    assert!(matches!(KeyPair::load(&path), Err(KeyError::Missing { .. })));
    let first = KeyPair::load_or_create(&path).unwrap();
    let bytes = fs::read(&path).unwrap();
    let again = KeyPair::load_or_create(&path).unwrap();
    assert_eq!(first.public_key(), again.public_key());
    assert_eq!(fs::read(&path).unwrap(), bytes);
    assert!(verify(&first.public_key(), b"x", &again.sign(b"x")));
    let mode = |p: &Path| fs::metadata(p).unwrap().permissions().mode() & 0o7777;
    assert_eq!(mode(&path), 0o600);
    assert_eq!(mode(path.parent().unwrap()), 0o700);
    assert_eq!(names(path.parent().unwrap()), ["key"], "no temporary file is left");
    let other = KeyPair::load_or_create(&dir.path().join("other")).unwrap();
    assert_ne!(first.public_key(), other.public_key());

    let json: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
    let members: Vec<_> = json.as_object().unwrap().keys().cloned().collect();
    for member in ["private_key_hex", "public_key_hex", "public_key_b64", "fingerprint", "created"]
    {
        assert!(members.iter().any(|m| m == member), "{member}");
    }
    assert_eq!(json["fingerprint"], first.public_key().fingerprint().to_string());
    let created = json["created"].as_str().unwrap();
    assert_eq!(created.len(), "2026-03-11T14:23:55.123456".len(), "{created}");
}

#[test]
fn all_who_make_it_at_once_get_the_same() {
    let dir = folder();
    let path = dir.path().join("key");
    let made: Vec<PublicKey> = std::thread::scope(|s| {
        let threads: Vec<_> = (0..8)
            .map(|_| s.spawn(|| KeyPair::load_or_create(&path).unwrap().public_key()))
            .collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    });
    assert!(made.iter().all(|k| *k == made[0]));
    assert_eq!(names(dir.path()), ["key"]);
}

#[test]
fn a_key_others_can_reach_is_refused_with_the_remedy() {
    let dir = folder();
    let path = dir.path().join("my key");
    KeyPair::load_or_create(&path).unwrap();
    for mode in [0o640, 0o604, 0o601, 0o620, 0o666] {
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        let error = KeyPair::load_or_create(&path).unwrap_err();
        assert!(matches!(error, KeyError::Exposed { .. }), "{mode:o}");
        let text = error.to_string();
        assert!(text.contains(&format!("chmod 600 '{}'", path.display())), "{text}");
    }
    fs::set_permissions(&path, fs::Permissions::from_mode(0o400)).unwrap();
    KeyPair::load(&path).unwrap();
}

#[test]
fn a_key_signs_though_the_list_of_signers_cannot_be_read() {
    let dir = folder();
    let (path, list) = (dir.path().join("key"), dir.path().join("signers.json"));
    let made = KeyPair::load_or_create(&path).unwrap();
    fs::write(&list, "{ half").unwrap();
    let used = SignerRegistry::open(&list, false);
    let loaded = KeyPair::load_own(&path, &used, true).unwrap();
    assert_eq!(loaded.public_key(), made.public_key());
    fs::remove_file(&path).unwrap();
    let error = KeyPair::load_own(&path, &used, true).unwrap_err();
    assert!(matches!(error, KeyError::SignersUnreadable(..)), "{error}");
    assert_eq!(fs::read_to_string(&list).unwrap(), "{ half");
    assert_eq!(names(dir.path()), ["signers.json"], "no other key is made");
}

/// S1341: a list that is removed beside a mount gets a key that is there again, so that it is missed when it goes.
#[test]
fn a_key_that_is_there_is_recorded_again() {
    let dir = folder();
    let (path, list) = (dir.path().join("key"), dir.path().join("signers.json"));
    let used = SignerRegistry::open(&list, false);
    let own = OwnKey::new(path.clone(), true);
    let key = own.load_current(&used).unwrap().public_key();
    fs::remove_file(&list).unwrap();
    own.load_current(&used).unwrap();
    let recorded = SignerRegistry::open(&list, true).last_key(SignerRegistry::OWN).unwrap();
    assert_eq!(recorded, Some(key));
    fs::remove_file(&path).unwrap();
    assert!(matches!(own.load_current(&used), Err(KeyError::Gone(..))));
    fs::remove_file(&list).unwrap();
    assert_ne!(own.load_current(&used).unwrap().public_key(), key, "the user asked for a new one");
}

#[test]
fn what_is_not_a_key_is_refused_and_stays() {
    let dir = folder();
    let path = dir.path().join("key");
    let swapped = format!(r#"{{"private_key_hex":"{SEED}","public_key_hex":"{SEED}"}}"#);
    let name = format!(r#"{{"private_key_hex":"{SEED}","fingerprint":"0000000000000000"}}"#);
    for text in [
        "",
        "{",
        "[]",
        "{}",
        r#"{"private_key_hex": 5}"#,
        r#"{"private_key_hex": "ab"}"#,
        &swapped,
        &name,
    ] {
        put(&path, text);
        let error = KeyPair::load_or_create(&path).unwrap_err();
        assert!(matches!(error, KeyError::Corrupt { .. }), "{text}: {error}");
        assert!(error.to_string().contains(&path.display().to_string()));
        assert_eq!(fs::read_to_string(&path).unwrap(), text);
        assert_eq!(names(dir.path()), ["key"]);
    }
}

#[test]
fn symlinks_folders_and_fifos_are_refused_and_stay() {
    let dir = folder();
    let real = dir.path().join("real");
    KeyPair::load_or_create(&real).unwrap();
    let link = dir.path().join("link");
    symlink(&real, &link).unwrap();
    let dangling = dir.path().join("dangling");
    symlink(dir.path().join("nowhere"), &dangling).unwrap();
    let fifo = dir.path().join("fifo");
    let mode = rustix::fs::Mode::RUSR;
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    let folder = dir.path().join("folder");
    fs::create_dir(&folder).unwrap();
    for path in [link, dangling, fifo, folder] {
        let error = KeyPair::load_or_create(&path).unwrap_err();
        assert!(matches!(error, KeyError::Corrupt { .. }), "{error}");
    }
    assert!(!dir.path().join("nowhere").exists());
}

#[test]
fn trouble_with_the_folder_is_told() {
    let dir = folder();
    let file = dir.path().join("file");
    fs::write(&file, "").unwrap();
    let error = KeyPair::load_or_create(&file.join("key")).unwrap_err();
    assert!(matches!(error, KeyError::Io { .. }), "{error}");
}

proptest! {
    #[test]
    fn no_text_makes_the_reader_panic_or_leak(text in "\\PC{0,200}") {
        if let Err(problem) = KeyPair::parse(text.as_bytes()) {
            prop_assert!(text.len() < 30 || !problem.contains(&text));
        }
    }

    #[test]
    fn every_key_survives_its_file(seed in any::<[u8; 32]>()) {
        let identity = KeyPair::from_seed(&seed);
        let again = KeyPair::parse(identity.to_file_text().as_bytes()).unwrap();
        prop_assert_eq!(identity.public_key(), again.public_key());
        prop_assert_eq!(decode_hex_32(&encode_hex(&seed)), Some(seed));
    }
}
