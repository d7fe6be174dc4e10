//! The key that signs.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::Value;

use crate::agentazall::with;
use crate::common::agz::{self, Letter, ME};
use crate::common::samp::{fingerprint, hex, key, sha_hex};
use crate::common::shown::message;

/// S111: the mailbox's own key signs, also with the mode that the reference program gives it. status and doctor
/// say what to do about the mode.
#[test]
fn s111_own_key() {
    let (bed, tree, m) = with(|_, tree| {
        tree.identity(&key(42));
        fs::create_dir_all(tree.mailbox("bob@localhost")).unwrap();
    });
    m.ok("echo hi > outbox/bob@localhost");
    let (_, text) = tree.only("bob@localhost", "inbox");
    assert_eq!(agz::verify(&text).public, key(42).verifying_key());
    let file = tree.base().join(".identity_key");
    let out = bed.msgfs_out(&["doctor", "--me", "bar"]);
    assert!(out.said().contains("chmod 600") && out.said().contains(".identity_key"), "{out:?}");
    // Other tests leave mounts of a msgfs that they have killed, and doctor rightly reports those too.
    let stale = out.stdout.lines().any(|l| l.starts_with("the mount at "));
    assert_eq!(out.code(), Some(i32::from(stale)), "a warning is no failure: {out:?}");
    assert_eq!(
        fs::metadata(&file).unwrap().permissions().mode() & 0o777,
        0o644,
        "it is not changed"
    );
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    let out = bed.msgfs_out(&["doctor", "--me", "bar"]);
    assert!(!out.said().contains("chmod 600"), "{out:?}");
}

/// S111: a corrupt or unreadable key gives ENOKEY for sending. Reading and marking work, and the file stays as it
/// is.
#[test]
fn s111_bad_key() {
    for text in ["", "{}", "garbage", r#"{"private_key_hex": "00"}"#, r#"{"private_key_hex": 5}"#] {
        let l = Letter::new("alice@localhost", "s", "hello", 1);
        let (bed, tree, m) = with(|_, tree| {
            tree.receive(&l);
            agz::put(&tree.base().join(".identity_key"), text);
            fs::create_dir_all(tree.mailbox("bob@localhost")).unwrap();
        });
        let out = m.sh("echo hi | tee outbox/bob@localhost");
        assert!(
            !out.ok() && out.stderr.contains("Required key not available"),
            "{text:?}: {out:?}"
        );
        assert!(m.cat("outbox/bob@localhost.error").contains("key"), "{text:?}");
        assert_eq!(tree.list("bob@localhost", "inbox"), []);
        assert_eq!(tree.list(ME, "outbox"), []);
        m.cat(&format!("inbox/{}", l.name(1)));
        m.inbox_becomes(&[]);
        let out = bed.msgfs_out(&["doctor", "--me", "bar"]);
        assert!(out.said().contains(".identity_key"), "{out:?}");
        assert_eq!(fs::read_to_string(tree.base().join(".identity_key")).unwrap(), text);
    }
}

/// S111: if there is no key, msgfs writes one, 0600 and in the reference program's form. It signs from then on,
/// and my sent messages are valid for me.
#[test]
fn s111_new_key() {
    let (_bed, tree, m) =
        with(|_, tree| fs::create_dir_all(tree.mailbox("bob@localhost")).unwrap());
    m.ok("echo hi > outbox/bob@localhost");
    let file = tree.base().join(".identity_key");
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    let v: Value = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
    let sent = agz::verify(&tree.only("bob@localhost", "inbox").1);
    let public = sent.public.as_bytes();
    assert_eq!(v["public_key_hex"], hex(public));
    assert_eq!(v["public_key_b64"], BASE64.encode(public));
    assert_eq!(v["fingerprint"], sha_hex(public, 16));
    let seed = v["private_key_hex"].as_str().unwrap();
    let bytes: Vec<u8> =
        (0..32).map(|i| u8::from_str_radix(&seed[2 * i..2 * i + 2], 16).unwrap()).collect();
    let private = ed25519_dalek::SigningKey::from_bytes(&bytes.try_into().unwrap());
    assert_eq!(private.verifying_key(), sent.public);
    assert!(v["created"].is_string());
    let id = sent.get("Message-ID").to_owned();
    let got = m.ok(&format!("grep -rh -A9 'Message-ID: <{id}@' sent"));
    assert!(got.contains(&format!("Signature: valid {}", sha_hex(public, 16))), "{got}");
}

/// S310: a mailbox whose key has signed gets no other key when the key is gone. This holds while mounted, at the
/// next mount, and if the whole mailbox is gone. Sending gives ENOKEY, and status and doctor say so.
#[test]
fn s310_a_missing_key_is_not_replaced() {
    for own in [true, false] {
        let (bed, tree, m) = with(|_, tree| {
            if own {
                tree.identity(&key(42));
            }
            fs::create_dir_all(tree.mailbox("bob@localhost")).unwrap();
        });
        let file = tree.base().join(".identity_key");
        m.ok("echo one > outbox/bob@localhost");
        let (kept, moved) = (bed.path("kept"), bed.path("moved"));
        let refused = |m: &crate::common::Mount| {
            let out = m.sh("echo two | tee outbox/bob@localhost");
            assert!(
                !out.ok() && out.stderr.contains("Required key not available"),
                "{own}: {out:?}"
            );
            assert!(m.cat("outbox/bob@localhost.error").contains("is gone"), "{own}");
            let status = m.cat("status.txt");
            assert!(status.lines().any(|l| l.contains("is gone")), "{own}: {status}");
            assert!(!file.exists(), "{own}");
            m.ok("rm outbox/bob@localhost");
        };
        fs::rename(&file, &kept).unwrap();
        refused(&m);
        m.umount();
        let m = bed.mount("bar");
        refused(&m);
        let out = bed.msgfs_out(&["doctor", "--me", "bar"]);
        assert!(out.code() == Some(1) && out.said().contains("is gone"), "{own}: {out:?}");
        m.umount();
        fs::rename(tree.base(), &moved).unwrap();
        fs::remove_dir_all(bed.path("cache")).unwrap();
        let m = bed.mount("bar");
        refused(&m);
        m.umount();
        assert!(!tree.base().exists(), "{own}: no mailbox was made");
        fs::rename(&moved, tree.base()).unwrap();
        fs::rename(&kept, &file).unwrap();
        let m = bed.mount("bar");
        m.ok("echo three > outbox/bob@localhost");
        let keys: Vec<_> = tree
            .list("bob@localhost", "inbox")
            .iter()
            .map(|(day, name)| tree.mailbox("bob@localhost").join(day).join("inbox").join(name))
            .map(|path| agz::verify(&fs::read_to_string(path).unwrap()).public)
            .collect();
        assert!(keys.len() == 2 && keys[0] == keys[1], "{own}");
    }
}

/// S111: a mount that only reads makes no key and no folder.
#[test]
fn s111_read_only() {
    let l = Letter::new("alice@localhost", "s", "hello", 1).signed(&key(3));
    let bed = crate::common::Bed::new();
    let tree = agz::Tree::new(&bed);
    bed.config(&tree.store());
    let file = tree.receive(&l);
    let m = bed.mount_at(&bed.path("ro"), "bar", &["--read-only"]);
    m.ok("cat inbox/* > /dev/null");
    m.inbox_stays(&[&l.name(1)]);
    assert_eq!(message(&m, l.id()).must("Signature"), format!("valid {}", fingerprint(&key(3))));
    let out = m.sh("echo hi | tee outbox/alice@localhost");
    assert!(!out.ok() && out.stderr.contains("Read-only file system"), "{out:?}");
    assert!(!tree.base().join(".identity_key").exists());
    assert_eq!(fs::read_to_string(file).unwrap(), l.text());
}
