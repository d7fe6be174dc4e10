//! Keys, signatures and trust.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use ed25519_dalek::Signer as _;
use serde_json::{Value, json};

use crate::common::samp::{self, Rec, T0, append_signed, fingerprint, key, only, read_log};
use crate::common::{Bed, Mount, run, soon};

/// Returns the `Signature:` value of a message.
#[track_caller]
fn signature(m: &Mount, file: &str) -> String {
    let text = m.cat(file);
    let line = text.lines().find_map(|l| l.strip_prefix("Signature: "));
    line.unwrap_or_else(|| panic!("no Signature in {text}")).to_owned()
}

/// Returns the only text in rejected/.
#[track_caller]
fn one_rejected(m: &Mount) -> String {
    soon("one file in rejected/", || m.ls("rejected").len() == 1);
    m.cat(&format!("rejected/{}", m.ls("rejected")[0]))
}

fn signed(seed: u8, body: &str, ts: i64) -> (String, Rec) {
    let r = Rec::new("foo", "bar", "t", body, ts);
    (r.signed_line(&key(seed), &[]), r)
}

fn put(bed: &Bed, line: &str) {
    samp::append_raw(&samp::log(&bed.store, "foo"), line);
}

/// S69: Python's `cryptography` verifies everything that msgfs wrote: plain, with subject, reply, key, many
/// recipients, and text that is neither ASCII nor NFC.
#[test]
fn s69_verified_from_outside() {
    let bed = Bed::new();
    let r = samp::append(&bed.store, "foo", "bar", "t", "question", T0);
    let m = bed.mount("bar");
    m.ok("echo plain > outbox/foo");
    m.ok("printf 'To: foo, carol\\nSubject: gr\\303\\274n\\nIdempotency-Key: k\\n\\ncafe\\314\\201 \\360\\237\\230\\200\\n' > outbox/x");
    m.ok(&format!("echo yes > '{}'", r.archived(0).replace(".txt", ".reply")));
    m.ok("printf '\\ttab \\\\ \"quoted\" / \\177 \\342\\200\\250 end' > outbox/foo");
    let mut c = bed.command("python3");
    c.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/verify_samp.py"));
    c.arg(samp::log(&bed.store, "bar"));
    let out = run(c, None);
    assert!(out.ok(), "{out:?}");
    let lines: Vec<_> = out.stdout.lines().collect();
    assert_eq!(lines.len(), 5);
    assert!(lines.iter().all(|l| l.starts_with("valid ")), "{out:?}");
    let mine = lines[0].split(' ').nth(1).unwrap();
    assert!(m.cat("status.txt").contains(mine), "status.txt shows the same fingerprint");
    let sent = format!("sent/{}/", samp::today());
    assert_eq!(signature(&m, &format!("{sent}{}", m.ls(&sent)[0])), format!("valid {mine}"));
}

/// S69, S71: with two mounts on one store, bob sees alice's mail as valid, under alice's fingerprint.
#[test]
fn s71_two_mounts() {
    let bed = Bed::new();
    let (alice, bob) = (bed.mount("alice"), bed.mount("bob"));
    alice.ok("echo 'hello bob' > outbox/bob");
    soon("it arrives", || bob.ls("inbox").len() == 1);
    let name = bob.ls("inbox")[0].clone();
    let got = signature(&bob, &format!("inbox/{name}"));
    assert!(got.starts_with("valid ") && alice.cat("status.txt").contains(&got[6..]), "{got}");
    let reply = format!("archive/{}/{}", samp::today(), name.replace(".txt", ".reply"));
    bob.ok(&format!("echo 'hello alice' > '{reply}'"));
    soon("the reply arrives", || alice.ls("inbox").len() == 1);
}

/// S70: the key file has mode 0600 and is the same after a remount.
#[test]
fn s70_key_file() {
    let bed = Bed::new();
    let m = bed.mount("bar");
    m.ok("echo one > outbox/foo");
    m.umount();
    let file = key_file(&bed);
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    let m = bed.mount("bar");
    m.ok("echo two > outbox/foo");
    let all = read_log(&bed.store, "bar");
    assert_eq!(all[0]["pub"], all[1]["pub"]);
}

/// Returns the private key in the state folder: the only file with "key" in its name that is no keyring.
#[track_caller]
fn key_file(bed: &Bed) -> PathBuf {
    let all: Vec<_> = fs::read_dir(bed.state("bar"))
        .unwrap()
        .map(|e| e.unwrap().path())
        .filter(|p| {
            let n = p.file_name().unwrap().to_string_lossy().into_owned();
            n.contains("key") && !n.contains("ring")
        })
        .collect();
    assert_eq!(all.len(), 1, "{all:?}");
    all[0].clone()
}

/// S63, S70: a key that others can read, a corrupt key and an unreadable key give ENOKEY. Reading still works, and
/// the file is not touched.
#[test]
fn s70_bad_keys() {
    for fault in ["readable", "corrupt", "empty"] {
        let bed = Bed::new();
        let r = samp::append(&bed.store, "foo", "bar", "t", "hello", T0);
        bed.mount("bar").umount();
        let file = key_file(&bed);
        match fault {
            "readable" => fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap(),
            "corrupt" => fs::write(&file, "garbage\n").unwrap(),
            _ => fs::write(&file, "").unwrap(),
        }
        let before = fs::read(&file).unwrap();
        let m = bed.mount("bar");
        assert_eq!(m.cat(&r.archived(0)), r.file("none"), "{fault}: reading works");
        let out = m.sh("echo hi | tee outbox/foo");
        assert!(!out.ok() && out.stderr.contains("Required key not available"), "{fault}: {out:?}");
        assert!(read_log(&bed.store, "bar").is_empty(), "{fault}");
        let why = m.cat("outbox/foo.error");
        assert!(why.contains("key"), "{fault}: {why}");
        m.umount();
        assert_eq!(fs::read(&file).unwrap(), before, "{fault}");
    }
}

/// S310: if my key that has signed is gone, msgfs makes no other one. Sending gives ENOKEY, `status.txt` and
/// `doctor` say so, and reading works. A restored key signs again. A new one is made only when the user asks for
/// it.
#[test]
fn s310_a_missing_key_is_not_replaced() {
    let bed = Bed::new();
    samp::append(&bed.store, "foo", "bar", "t", "hello", T0);
    let m = bed.mount("bar");
    m.ok("echo one > outbox/foo");
    m.umount();
    let file = key_file(&bed);
    let kept = bed.path("kept");
    fs::rename(&file, &kept).unwrap();
    for extra in [&[][..], &["--read-only"]] {
        let m = bed.mount_at(&bed.path("mnt"), "bar", extra);
        assert_eq!(m.ls("inbox").len(), 1, "reading works");
        let status = m.cat("status.txt");
        assert!(status.contains("is gone") && status.contains("msgfs key import"), "{status}");
        let out = m.sh("echo two | tee outbox/foo");
        assert!(!out.ok(), "{out:?}");
        if extra.is_empty() {
            assert!(out.stderr.contains("Required key not available"), "{out:?}");
            assert!(m.cat("outbox/foo.error").contains("is gone"));
        }
        m.umount();
        assert!(!file.exists(), "nothing took its place");
    }
    let out = bed.msgfs_out(&["doctor", "--me", "bar"]);
    assert!(out.code() == Some(1) && out.said().contains("is gone"), "{out:?}");
    assert_eq!(bed.msgfs_out(&["key", "show", "--me", "bar"]).code(), Some(1));
    assert!(!file.exists());
    assert_eq!(read_log(&bed.store, "bar").len(), 1);
    fs::rename(&kept, &file).unwrap();
    let m = bed.mount("bar");
    m.ok("echo three > outbox/foo");
    let all = read_log(&bed.store, "bar");
    assert_eq!(all[0]["pub"], all[1]["pub"]);
    m.umount();
    // The user asks for a new one.
    fs::remove_file(&file).unwrap();
    fs::remove_file(bed.state("bar").join("signers.json")).unwrap();
    let m = bed.mount("bar");
    m.ok("echo four > outbox/foo");
    let all = read_log(&bed.store, "bar");
    assert!(all.len() == 3 && all[0]["pub"] != all[2]["pub"], "{all:?}");
}

/// S1341: while a key is gone, the command that the error names lets the mount make a new one at once.
#[test]
fn s1341_the_remedy_for_a_lost_key_works_beside_a_mount() {
    let bed = Bed::new();
    let m = bed.mount("bar");
    m.ok("echo one > outbox/foo");
    fs::remove_file(key_file(&bed)).unwrap();
    assert!(!m.sh("echo two | tee outbox/foo").ok());
    let list = bed.state("bar").join("signers.json");
    let remedy = format!("rm {}", list.display());
    let why = m.cat("outbox/foo.error");
    assert!(why.contains("is gone") && why.contains(&remedy), "{why}");
    m.ok(&remedy);
    m.ok("echo three > outbox/foo");
    let all = read_log(&bed.store, "bar");
    assert!(all.len() == 2 && all[0]["pub"] != all[1]["pub"], "{all:?}");
    assert!(list.exists(), "the new key is recorded");
}

/// S71: the verdicts are none, valid and missing.
#[test]
fn s71_states() {
    let bed = Bed::new();
    let plain = samp::append(&bed.store, "foo", "bar", "t", "before any signature", T0);
    let (line, first) = signed(1, "signed", T0 + 1);
    put(&bed, &line);
    let after = samp::append(&bed.store, "foo", "bar", "t", "unsigned again", T0 + 2);
    let other = samp::append(&bed.store, "zed", "bar", "t", "never signed", T0 + 3);
    let m = bed.mount("bar");
    let fp = fingerprint(&key(1));
    assert_eq!(signature(&m, &plain.archived(0)), "none");
    assert_eq!(signature(&m, &first.archived(0)), format!("valid {fp}"));
    assert_eq!(signature(&m, &after.archived(0)), format!("missing {fp}"));
    assert_eq!(signature(&m, &other.archived(0)), "none");
    assert_eq!(m.cat(&first.archived(0)), first.file(&format!("valid {fp}")));
}

/// S72: a changed body under an old signature is rejected.
#[test]
fn s72_wrong_signature() {
    let bed = Bed::new();
    let (line, _) = signed(1, "pay 10", T0);
    let forged = Rec::new("foo", "bar", "t", "pay 1000", T0);
    let mut v: Value = serde_json::from_str(&line).unwrap();
    v["body"] = json!("pay 1000");
    v["id"] = json!(forged.id);
    put(&bed, &format!("{v}\n"));
    let good = signed(1, "good", T0 + 1);
    put(&bed, &good.0);
    let m = bed.mount("bar");
    let text = one_rejected(&m);
    assert!(
        text.starts_with("Reason: ") && text.contains("signature") && text.contains("pay 1000"),
        "{text}"
    );
    assert!(text.lines().nth(1).unwrap().starts_with("Source: raw/samp/log-foo.jsonl"), "{text}");
    assert_eq!(m.ls("inbox").len(), 1);
    assert!(m.cat(&good.1.archived(0)).ends_with("\n\ngood\n"));
}

/// S72: the signature covers unknown members too.
#[test]
fn s72_covers_all_members() {
    let bed = Bed::new();
    let r = Rec::new("foo", "bar", "t", "text", T0);
    let line = r.signed_line(
        &key(1),
        &[("subject", json!("harmless")), ("x", json!({"b": [1, 2.5], "a": null}))],
    );
    put(&bed, &line);
    put(
        &bed,
        &Rec::new("foo", "bar", "t", "second", T0 + 1)
            .signed_line(&key(1), &[("subject", json!("original"))])
            .replace("original", "tampered"),
    );
    let m = bed.mount("bar");
    assert_eq!(m.ls("inbox"), [r.name(0)]);
    assert!(one_rejected(&m).contains("tampered"));
}

/// S72: malleable (S not reduced) and small-order signatures fail, although sloppy verifiers accept them.
#[test]
fn s72_strict() {
    let bed = Bed::new();
    // S + L is the same scalar in another spelling.
    let r = Rec::new("foo", "bar", "t", "malleable", T0);
    let members = [("pub", json!(BASE64.encode(key(1).verifying_key().as_bytes())))];
    let mut sig = key(1).sign(&r.signed_bytes(&members)).to_bytes();
    add_group_order(&mut sig);
    let line = r.line_with(&[members[0].clone(), ("sig", json!(BASE64.encode(sig)))]);
    put(&bed, &line);
    // The neutral element as key, and R, S = 0: the plain equation holds for every text.
    let r = Rec::new("eve", "bar", "t", "small order", T0);
    let mut point = [0u8; 32];
    point[0] = 1;
    let mut sig = [0u8; 64];
    sig[0] = 1;
    let line =
        r.line_with(&[("pub", json!(BASE64.encode(point))), ("sig", json!(BASE64.encode(sig)))]);
    samp::append_raw(&samp::log(&bed.store, "eve"), line);
    let m = bed.mount("bar");
    assert_eq!(m.ls("inbox"), [""; 0]);
    assert_eq!(m.ls("rejected").len(), 2);
}

/// Adds the order of the Ed25519 group to the scalar in the second half of a signature.
fn add_group_order(sig: &mut [u8; 64]) {
    const L: [u8; 32] = [
        0xed, 0xd3, 0xf5, 0x5c, 0x1a, 0x63, 0x12, 0x58, 0xd6, 0x9c, 0xf7, 0xa2, 0xde, 0xf9, 0xde,
        0x14, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x10,
    ];
    let mut carry = 0u16;
    for (byte, order) in sig[32..].iter_mut().zip(L) {
        let sum = u16::from(*byte) + u16::from(order) + carry;
        *byte = sum as u8;
        carry = sum >> 8;
    }
}

/// S72: members that cannot be a signature at all are rejected.
#[test]
fn s72_malformed() {
    let bed = Bed::new();
    for (i, (p, s)) in [
        (json!("AAAA"), json!("AAAA")),
        (json!("!!"), json!("!!")),
        (json!(5), json!(null)),
        (json!(BASE64.encode(key(1).verifying_key().as_bytes())), json!("")),
    ]
    .into_iter()
    .enumerate()
    {
        let r = Rec::new("foo", "bar", "t", &format!("broken {i}"), T0 + i as i64);
        put(&bed, &r.line_with(&[("pub", p), ("sig", s)]));
    }
    let good = samp::append(&bed.store, "zed", "bar", "t", "good", T0 + 100);
    let m = bed.mount("bar");
    assert_eq!(m.ls("inbox"), [good.name(0)]);
    assert_eq!(m.ls("rejected").len(), 4);
}

/// S72, S73: a changed key is rejected until it is trusted, while the tree is mounted.
#[test]
fn s73_key_trust() {
    let bed = Bed::new();
    let (line, first) = signed(1, "old key", T0);
    put(&bed, &line);
    let m = bed.mount("bar");
    assert_eq!(m.ls("inbox"), [first.name(0)]);
    let (line, second) = signed(2, "new key", T0 + 1);
    put(&bed, &line);
    let text = one_rejected(&m);
    assert!(text.contains("key") && text.contains(&fingerprint(&key(2))), "{text}");
    assert!(m.ls("inbox").len() == 1 && m.ls("archive/2026-04-24").len() == 1);
    let list = bed.msgfs_out(&["key", "list", "--me", "bar"]);
    assert!(list.ok() && list.stdout.contains(&fingerprint(&key(1))), "{list:?}");
    let out = bed.msgfs_out(&["key", "trust", "foo", "--me", "bar"]);
    assert!(out.ok(), "{out:?}");
    m.inbox_becomes(&[&first.name(0), &second.name(0)]);
    assert_eq!(signature(&m, &second.archived(0)), format!("valid {}", fingerprint(&key(2))));
    assert_eq!(m.ls("rejected"), [""; 0]);
    // A key that nobody trusted stays out. The key that was trusted first still counts for what it signs.
    let (line, _) = signed(3, "a third key", T0 + 2);
    put(&bed, &line);
    soon("the third key is refused", || m.ls("rejected").len() == 1);
}

/// S73: the pin survives remounts and the loss of the cache. Later mail under another key stays out.
#[test]
fn s73_pins_are_durable() {
    let bed = Bed::new();
    put(&bed, &signed(1, "pins key 1", T0).0);
    let m = bed.mount("bar");
    assert_eq!(m.ls("inbox").len(), 1);
    m.kill9();
    fs::remove_dir_all(bed.path("cache")).unwrap();
    fs::remove_file(samp::log(&bed.store, "foo")).unwrap();
    put(&bed, &signed(2, "impostor", T0 - 10).0);
    let m = bed.mount("bar");
    assert_eq!((m.ls("inbox").len(), m.ls("rejected").len()), (0, 1));
}

/// S73: messages that a forgotten key signed are unknown, with and without the cache. Only a later message pins a
/// key again.
#[test]
fn s73_forget() {
    let bed = Bed::new();
    let (line, old) = signed(1, "by the old key", T0);
    put(&bed, &line);
    let mut m = bed.mount("bar");
    let (line, refused) = signed(2, "by another key", T0 + 1);
    put(&bed, &line);
    soon("the other key is refused", || m.ls("rejected").len() == 1);
    let out = bed.msgfs_out(&["key", "forget", "foo", "--me", "bar"]);
    assert!(out.ok(), "{out:?}");
    soon("nothing is refused any more", || m.ls("rejected").is_empty());
    let says = |m: &Mount, rec: &Rec| signature(m, &rec.archived(0));
    let remount = |m: Mount| {
        m.umount();
        fs::remove_dir_all(bed.path("cache")).unwrap();
        bed.mount("bar")
    };
    for _ in 0..2 {
        assert_eq!([says(&m, &old), says(&m, &refused)], ["unknown", "unknown"]);
        let list = bed.msgfs_out(&["key", "list", "--me", "bar"]);
        assert!(!list.stdout.contains("foo"), "{list:?}");
        m = remount(m);
    }
    let (line, new) = signed(2, "by the new key", T0 - 5);
    put(&bed, &line);
    m.inbox_becomes(&[&new.name(0), &old.name(0), &refused.name(0)]);
    let valid = format!("valid {}", fingerprint(&key(2)));
    for _ in 0..2 {
        soon("the new key counts", || says(&m, &refused) == valid);
        assert_eq!([says(&m, &old), says(&m, &new)], ["unknown", &valid]);
        m = remount(m);
    }
    put(&bed, &signed(1, "by the old key again", T0 + 9).0);
    soon("the old key is refused", || m.ls("rejected").len() == 1);
}

/// S74: `known` refuses unsigned mail only of senders with a pinned key. `refuse` refuses all of it.
#[test]
fn s74_unsigned_policy() {
    for (policy, inbox, rejected) in [("accept", 3, 0), ("known", 2, 1), ("refuse", 1, 2)] {
        let bed = Bed::new();
        bed.config(&format!("unsigned = \"{policy}\"\n"));
        append_signed(&bed.store, &key(1), &Rec::new("foo", "bar", "t", "signed", T0));
        samp::append(&bed.store, "foo", "bar", "t", "unsigned", T0 + 1);
        samp::append(&bed.store, "zed", "bar", "t", "stranger", T0 + 2);
        let m = bed.mount("bar");
        assert_eq!((m.ls("inbox").len(), m.ls("rejected").len()), (inbox, rejected), "{policy}");
    }
}

/// S74, S137: messages that are rejected after they were shown have the names, texts and inode numbers in `rejected/`
/// that they have without the cache.
#[test]
fn s74_rejected_later() {
    let bed = Bed::new();
    bed.config("unsigned = \"known\"\n");
    let unsigned: Vec<_> =
        (0..3).map(|n| samp::append(&bed.store, "foo", "bar", "t", "unsigned", T0 + n)).collect();
    let m = bed.mount("bar");
    assert_eq!(m.ls("inbox").len(), unsigned.len());
    append_signed(&bed.store, &key(1), &Rec::new("foo", "bar", "t", "signed", T0 + 9));
    soon("they are rejected", || m.ls("rejected").len() == unsigned.len());
    let look = |m: &Mount| m.ok("ls -i rejected; cat rejected/*");
    let before = look(&m);
    for n in 1..=unsigned.len() {
        assert!(before.contains(&format!("Source: raw/samp/log-foo.jsonl:{n}\n")), "{before}");
    }
    m.umount();
    fs::remove_dir_all(bed.path("cache")).unwrap();
    assert_eq!(look(&bed.mount("bar")), before);
}

/// S75: there is one mount for one me. A second one is refused and names the first. A read-only one is allowed.
#[test]
fn s75_one_mount() {
    let bed = Bed::new();
    let m = bed.mount("bar");
    let other = bed.path("other");
    let out = bed.msgfs_out(&["mount", other.to_str().unwrap(), "--me", "bar"]);
    assert_eq!(out.code(), Some(1), "{out:?}");
    assert!(out.stderr.contains(m.dir.to_str().unwrap()), "names the first mount: {out:?}");
    assert!(!crate::common::mounted(&other));
    m.ok("echo still works > outbox/foo");
    assert_eq!(only(&bed.store, "bar")["to"], "foo");
    let ro = bed.msgfs(["mount", other.to_str().unwrap(), "--me", "bar", "--read-only"]);
    let out = run(ro, None);
    assert!(out.ok(), "{out:?}");
    assert!(bed.sh(&format!("ls {}/inbox", other.display())).ok());
    assert!(bed.msgfs_out(&["umount", other.to_str().unwrap()]).ok());
    assert!(m.sh("ls inbox").ok(), "the first mount is not disturbed");
    crate::common::detach(&other);
}

/// Checks that the mount's own key goes away and comes back, and that status and sending follow without a remount.
#[track_caller]
fn key_comes_and_goes(
    bed: &Bed,
    (mut m, file): (Mount, PathBuf),
    send: &str,
    sent: &dyn Fn() -> usize,
) {
    let kept = bed.path("kept");
    let print = |m: &Mount| m.cat("status.txt").lines().nth(1).unwrap().to_owned();
    m.ok(send);
    let (mut count, shown) = (1, print(&m));
    soon("it is sent", || sent() == count);
    assert!(shown.starts_with("key: ") && shown != "key: none", "{shown}");
    for remount in [false, true] {
        fs::rename(&file, &kept).unwrap();
        if remount {
            let dir = m.dir.clone();
            m.umount();
            m = bed.mount_at(&dir, "bar", &[]);
        }
        let status = m.cat("status.txt");
        let told = ["is gone", "there is no signing key"];
        assert!(told.iter().any(|words| status.contains(words)), "{status}");
        assert_eq!(print(&m), "key: none");
        let out = m.sh(send);
        assert!(!out.ok() && out.stderr.contains("Required key not available"), "{out:?}");
        assert!(!file.exists());
        fs::rename(&kept, &file).unwrap();
        let status = m.cat("status.txt");
        assert!(status.contains(&shown) && !status.contains("nothing can be sent"), "{status}");
        assert!(
            !told
                .iter()
                .any(|words| status.lines().any(|l| l.starts_with("note") && l.contains(words))),
            "{status}"
        );
        m.ok(send);
        count += 1;
        soon("it is sent", || sent() == count);
    }
    fs::set_permissions(&file, fs::Permissions::from_mode(0o000)).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    m.ok(send);
}

/// S383: in every kind, `status.txt` reports at once a key that is taken away, while mounted or before, and
/// nothing is sent. A key that is put back signs at once.
#[test]
fn s383_keys_come_and_go() {
    let bed = Bed::new();
    let m = bed.mount("bar");
    let file = key_file(&bed);
    let sent = || read_log(&bed.store, "bar").len();
    key_comes_and_goes(&bed, (m, file), "date +%N | tee outbox/foo", &sent);
    assert!(
        read_log(&bed.store, "bar")
            .iter()
            .all(|r| r["pub"] == read_log(&bed.store, "bar")[0]["pub"])
    );
}

/// S383: the same in AgentAZAll.
#[test]
fn s383_agentazall() {
    let bob = "bob@localhost";
    let (bed, tree, m) = crate::agentazall::with(|_, tree| {
        fs::create_dir_all(tree.mailbox(bob)).unwrap();
    });
    let file = tree.base().join(".identity_key");
    let sent = || tree.list(bob, "inbox").len();
    key_comes_and_goes(&bed, (m, file), &format!("date +%N | tee outbox/{bob}"), &sent);
}

/// S383: the same in AMP.
#[test]
fn s383_amp() {
    let bed = Bed::new();
    let home = crate::common::amp::Home::new(&bed);
    bed.config(&home.store());
    let m = bed.mount("bar");
    let file = home.dir("bar").join("keys/private.pem");
    let sent = || home.list("alice", "inbox").len();
    let send = "printf 'Subject: x\\n\\n%s\\n' $(date +%N) | tee outbox/alice";
    key_comes_and_goes(&bed, (m, file), send, &sent);
}

/// S383: the same in task records.
#[test]
fn s383_task_records() {
    let bed = Bed::new();
    bed.config(&format!(
        "[[store]]\nkind = \"ssot\"\nme = \"coordinator\"\ndir = {:?}\n",
        bed.path("ssot")
    ));
    let m = bed.mount("bar");
    let file = key_file(&bed);
    let sent = || {
        let find = bed.sh("find ../ssot/messages -name '*.json' | wc -l");
        find.stdout.trim().parse().unwrap_or(0)
    };
    let payload = crate::ssot::payload("task_dispatch");
    fs::write(bed.path("payload"), payload.to_string()).unwrap();
    let send = "(printf 'To: executor\nType: task_dispatch\nTask: T-2026-%03d\n\n' \
                $((10#$(date +%N) % 1000)); cat ../payload) | tee outbox/x";
    key_comes_and_goes(&bed, (m, file), send, &sent);
}

/// S571: if a rewritten log drops the signature of a message and keeps its text, the verdict becomes `missing`,
/// also if no signed message comes before it.
#[test]
fn s571_lost_signature() {
    let bed = Bed::new();
    let (line, rec) = signed(1, "pay 10", T0);
    put(&bed, &line);
    let m = bed.mount("bar");
    let fp = fingerprint(&key(1));
    assert_eq!(signature(&m, &rec.archived(0)), format!("valid {fp}"));
    let log = samp::log(&bed.store, "foo");
    let aside = bed.path("aside");
    fs::write(&aside, rec.line() + "\n").unwrap();
    fs::rename(&aside, &log).unwrap();
    soon("missing", || signature(&m, &rec.archived(0)) == format!("missing {fp}"));
    m.umount();
    let m = bed.mount("bar");
    assert_eq!(signature(&m, &rec.archived(0)), format!("missing {fp}"));
    fs::write(&aside, line.trim_end().to_owned() + "\n").unwrap();
    fs::rename(&aside, &log).unwrap();
    soon("valid", || signature(&m, &rec.archived(0)) == format!("valid {fp}"));
}

/// S1378: without the cache, too, changed text is rejected, and the same text lacks its signature.
#[test]
fn s1378_lost_signatures_are_known_without_the_cache() {
    let bed = Bed::new();
    let (line, rec) = signed(1, "pay 10", T0);
    put(&bed, &line);
    let m = bed.mount("bar");
    let (log, aside) = (samp::log(&bed.store, "foo"), bed.path("aside"));
    let rewrite = |text: &str| {
        fs::write(&aside, text).unwrap();
        fs::rename(&aside, &log).unwrap();
    };
    rewrite(&(rec.line().replace("pay 10", "pay 99") + "\n"));
    soon("it is rejected", || m.ls("rejected").len() == 1);
    m.umount();
    fs::remove_dir_all(bed.path("cache")).unwrap();
    let m = bed.mount("bar");
    assert!(m.ok("cat rejected/*").contains("changed after it was verified"));
    assert!(m.ls("inbox").is_empty());
    rewrite(&(rec.line() + "\n"));
    let missing = format!("missing {}", fingerprint(&key(1)));
    soon("it lacks its signature", || {
        m.ls("rejected").is_empty() && signature(&m, &rec.archived(0)) == missing
    });
    m.umount();
    fs::remove_dir_all(bed.path("cache")).unwrap();
    assert_eq!(signature(&bed.mount("bar"), &rec.archived(0)), missing);
}

/// S1379: if no signed line is in the log any more, the dates decide. A key that a person trusts counts from then on.
#[test]
fn s1379_a_log_without_signed_lines() {
    let bed = Bed::new();
    put(&bed, &signed(1, "signed", T0).0);
    let m = bed.mount("bar");
    let now = jiff::Timestamp::now().as_second();
    let missing = format!("missing {}", fingerprint(&key(1)));
    fs::write(samp::log(&bed.store, "foo"), "").unwrap();
    let old = samp::append(&bed.store, "foo", "bar", "t", "before the pin", T0 - 10);
    let new = samp::append(&bed.store, "foo", "bar", "t", "after the pin", now + 5);
    soon("both are there", || m.ls("inbox").len() == 2);
    let seen = [signature(&m, &old.archived(0)), signature(&m, &new.archived(0))];
    assert_eq!(seen, ["none".to_owned(), missing.clone()]);
    let public = key(1).verifying_key().to_bytes();
    let trusted = BASE64.encode(public);
    assert!(bed.msgfs_out(&["--me", "bar", "key", "trust", "zed", "--key", &trusted]).ok());
    let new = samp::append(&bed.store, "zed", "bar", "t", "never signed", now + 6);
    soon("it lacks its signature", || signature(&m, &new.archived(0)) == missing);
}

/// S71: in a log the order of the lines decides, whatever the dates say.
#[test]
fn s71_backdated_in_a_log() {
    let bed = Bed::new();
    let early = samp::append(&bed.store, "foo", "bar", "t", "dated ahead", T0 + 500);
    put(&bed, &signed(1, "signed", T0 + 100).0);
    let forged = samp::append(&bed.store, "foo", "bar", "t", "dated back", T0);
    let fp = fingerprint(&key(1));
    for cache in [true, false] {
        let m = bed.mount("bar");
        assert_eq!(signature(&m, &early.archived(0)), "none");
        assert_eq!(signature(&m, &forged.archived(0)), format!("missing {fp}"));
        m.umount();
        if cache {
            fs::remove_dir_all(bed.path("cache")).unwrap();
        }
    }
}

/// S1149: my own key cannot be forgotten: others could sign in my name then.
#[test]
fn s1149_my_own_key_is_not_forgotten() {
    let bed = Bed::new();
    let m = bed.mount("bar");
    m.ok("echo hi > outbox/foo");
    let list = || bed.msgfs_out(&["key", "list", "--me", "bar"]).stdout;
    let before = list();
    let out = bed.msgfs_out(&["key", "forget", "bar", "--me", "bar"]);
    assert!(out.code() == Some(1) && out.stderr.contains("your own address"), "{out:?}");
    assert_eq!(list(), before);
}
