//! The authors of texts, as signatures prove them.

use crate::agentazall::with;
use crate::common::agz::{self, DAY, Letter, ME, around, block};
use crate::common::samp::{self, fingerprint, key};
use crate::common::shown::{self, message, one_rejected};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use ed25519_dalek::Signer as _;

const OUTSIDE: &str = "--- not covered by the signature ---";

fn letter(who: &str, text: &str, n: i64) -> Letter {
    Letter::new(&format!("{who}@localhost"), "s", text, n)
}

/// Returns a block whose signature covers other bytes than the text that it shows.
fn over(text: &str, covered: &[u8], seed: u8) -> String {
    around(text, &key(seed), &[], &BASE64.encode(key(seed).sign(covered).to_bytes()))
}

/// S1340: a letter of a sender with a very long address is readable, and pins no key. One with a long address does.
#[test]
fn s1340_a_very_long_address() {
    let from =
        |len: usize, n| letter(&"x".repeat(len - "@localhost".len()), "hello", n).signed(&key(1));
    let (most, more) = (from(1024, 1), from(1025, 2));
    let (bed, _tree, m) = with(|_, tree| {
        tree.receive(&most);
        tree.receive(&more);
    });
    let pinned = message(&m, most.id());
    assert_eq!(pinned.must("Signature"), format!("valid {}", fingerprint(&key(1))));
    let unknown = message(&m, more.id());
    assert_eq!((unknown.must("Signature"), unknown.body.as_str()), ("unknown", "hello\n"));
    let ring = std::fs::read_to_string(bed.state("bar").join("keyring.json")).unwrap();
    assert!(ring.contains(most.get("From")) && !ring.contains(more.get("From")), "{ring}");
}

/// S103: each form of signature that a real writer leaves is valid, and the text is the signed text.
#[test]
fn s103_forms() {
    let meta = |seed: u8| {
        format!(
            "Fingerprint: {}\nPublic-Key: {}\n\n",
            fingerprint(&key(seed)),
            BASE64.encode(key(seed).verifying_key().as_bytes())
        )
    };
    let quoting = format!("yes\n\n--- Original ---\n{}", block("inner text", &key(99), &[]));
    let table: Vec<(&str, u8, String, &str)> = vec![
        ("exact", 1, block("one\n\ntwo", &key(1), &[]), "one\n\ntwo\n"),
        ("newline", 2, over("text\n", b"text\n", 2), "text\n"),
        ("newlines", 3, over("text\n\n", b"text\n\n", 3), "text\n\n"),
        ("stripped", 4, over("text \n", b"text", 4), "text\n"),
        ("crlf", 5, over("a\nb", b"a\r\nb", 5), "a\nb\n"),
        (
            "paper",
            6,
            over("of the paper", format!("{}of the paper", meta(6)).as_bytes(), 6),
            "of the paper\n",
        ),
        (
            "paperline",
            7,
            over("with newline", format!("{}with newline\n", meta(7)).as_bytes(), 7),
            "with newline\n",
        ),
        ("extra", 8, block("more metadata", &key(8), &["X-Any: thing".into()]), "more metadata\n"),
        ("unicode", 9, block("gr\u{fc}n \u{1faa8}", &key(9), &[]), "gr\u{fc}n \u{1faa8}\n"),
        ("blank", 10, block("\n\n  leading", &key(10), &[]), "\n\n  leading\n"),
        ("quoting", 11, block(&quoting, &key(11), &[]), ""),
    ];
    let (_bed, _tree, m) = with(|_, tree| {
        for (i, (name, _, text, _)) in table.iter().enumerate() {
            let l = letter(name, text, i as i64);
            let file = if *name == "exact" { l.text().replace('\n', "\r\n") } else { l.text() };
            tree.put(DAY, "inbox", l.id(), file);
        }
        let l = agz::legacy(letter("legacy", "in the header", 20), &key(20));
        tree.receive(&l);
    });
    assert_eq!(m.ls("rejected"), [""; 0], "{:#?}", shown::rejected(&m));
    let all = shown::all(&m, "archive");
    let from = |who: &str| {
        let address = format!("{who}@localhost");
        all.iter()
            .find(|s| s.get("From") == Some(&address))
            .unwrap_or_else(|| panic!("{who} is missing"))
    };
    for (name, seed, _, body) in &table {
        let got = from(name);
        assert_eq!(got.must("Signature"), format!("valid {}", fingerprint(&key(*seed))), "{name}");
        if body.is_empty() {
            assert_eq!(got.body, format!("{quoting}\n"), "{name}: the outer block is what counts");
        } else {
            // A text that was signed with trailing newlines may be shown with or without them.
            assert_eq!(got.body.trim_end_matches('\n'), body.trim_end_matches('\n'), "{name}");
        }
    }
    assert_eq!(from("legacy").must("Signature"), format!("valid {}", fingerprint(&key(20))));
}

/// S103: a changed message is in rejected/ with a reason, and hides nothing.
#[test]
fn s103_wrong() {
    let good = letter("good", "good", 50).signed(&key(9));
    let signed = |who: &str, n| letter(who, "pay 10", n).signed(&key(n as u8));
    let table = [
        signed("text", 1).text().replace("pay 10", "pay 1000"),
        signed("print", 2).text().replace(&fingerprint(&key(2)), &fingerprint(&key(3))),
        signed("swapped", 3).text().replace(
            &BASE64.encode(key(3).verifying_key().as_bytes()),
            &BASE64.encode(key(4).verifying_key().as_bytes()),
        ),
        letter("sealed", "pay 10", 5)
            .sealed(&key(5), &[])
            .text()
            .replace("\nSubject: s\nDate", "\nSubject: forged\nDate"),
    ];
    let (_bed, _tree, m) = with(|_, tree| {
        for (i, text) in table.iter().enumerate() {
            tree.put(DAY, "inbox", &format!("bad{i}"), text);
        }
        tree.receive(&good);
    });
    assert_eq!(m.ls("inbox"), [good.name(50)]);
    let all = shown::rejected(&m);
    assert_eq!(all.len(), table.len(), "{all:#?}");
    for i in 0..table.len() {
        let source = format!("Source: raw/agentazall/{DAY}/inbox/bad{i}.txt");
        let text = all.iter().find(|t| t.lines().nth(1) == Some(&source));
        let text = text.unwrap_or_else(|| panic!("{source} is not in {all:#?}"));
        assert!(text.starts_with("Reason: ") && text.contains("pay 10"), "{text}");
    }
    for name in m.ls("rejected") {
        let hash =
            name.strip_prefix("bad").and_then(|s| s.get(2..)).and_then(|s| s.strip_suffix(".txt"));
        assert!(
            hash.is_some_and(|h| h.len() == 8 && h.bytes().all(|b| b.is_ascii_hexdigit())),
            "{name}"
        );
    }
}

/// S103, S73: the key that is seen first is pinned. After that, unsigned mail has the verdict missing. Another key
/// is rejected until it is trusted, while the tree is mounted.
#[test]
fn s103_pins() {
    let first = letter("alice", "first", 1).signed(&key(1));
    let keyring = "{\"not\": \"ours\"}";
    let (bed, tree, m) = with(|_, tree| {
        tree.receive(&first);
        agz::put(&tree.base().join(".keyring.json"), keyring);
    });
    assert_eq!(
        message(&m, first.id()).must("Signature"),
        format!("valid {}", fingerprint(&key(1)))
    );
    let unsigned = letter("alice", "unsigned", 2);
    tree.receive(&unsigned);
    m.appears(&format!("inbox/{}", unsigned.name(2)));
    assert_eq!(
        message(&m, unsigned.id()).must("Signature"),
        format!("missing {}", fingerprint(&key(1)))
    );
    let changed = letter("alice", "another key", 3).signed(&key(2));
    tree.receive(&changed);
    let text = one_rejected(&m);
    assert!(text.contains(&fingerprint(&key(2))) && text.contains("another key"), "{text}");
    let out = bed.msgfs_out(&["key", "trust", "alice@localhost", "--me", "bar"]);
    assert!(out.ok(), "{out:?}");
    m.appears(&format!("inbox/{}", changed.name(3)));
    assert_eq!(m.ls("rejected"), [""; 0]);
    // msgfs never writes the keyring of the reference program.
    assert_eq!(std::fs::read_to_string(tree.base().join(".keyring.json")).unwrap(), keyring);
}

/// S104: if there is text around a block of a pinned key, the covered text comes first, then a line, then the
/// rest.
#[test]
fn s104_partial() {
    let first = letter("alice", "first", 1).signed(&key(1));
    let around = format!("before\n{}\nafter", block("the covered words", &key(1), &[]));
    let partial = letter("alice", &around, 2);
    let (_bed, tree, m) = with(|_, tree| {
        tree.receive(&first);
    });
    m.appears(&format!("inbox/{}", first.name(1)));
    tree.receive(&partial);
    m.appears(&format!("inbox/{}", partial.name(2)));
    let got = message(&m, partial.id());
    assert_eq!(got.must("Signature"), format!("valid {}", fingerprint(&key(1))));
    let lines: Vec<&str> = got.body.lines().filter(|l| !l.is_empty()).collect();
    assert_eq!(lines[..2], ["the covered words", OUTSIDE], "{got:?}");
    let rest = lines[2..].join("\n");
    assert!(rest.contains("before") && rest.contains("after"), "{got:?}");
}

/// S104: a block whose key is not pinned to the sender gives no credit and makes no pin. This holds for a sender
/// who quotes it, and for the sender whose name a file carries.
#[test]
fn s104_quoted() {
    let alice = letter("alice", "said by alice", 1).signed(&key(1));
    let quote = letter("mallory", &format!("alice agrees:\n{}", alice.body), 2);
    let early = letter("carol", &format!("hello\n{}", block("claimed", &key(7), &[])), 3);
    let (_bed, tree, m) = with(|_, tree| {
        tree.receive(&alice);
        tree.receive(&quote);
        tree.receive(&early);
    });
    for (l, first) in [(&quote, "alice agrees:"), (&early, "hello")] {
        let got = message(&m, l.id());
        assert_eq!(got.must("Signature"), "none", "{got:?}");
        assert!(got.body.starts_with(first) && !got.body.contains(OUTSIDE), "{got:?}");
        assert!(got.body.contains("BEGIN AGENTAZALL SIGNED MESSAGE"), "the whole text is shown");
    }
    // If one of them had made a pin, these messages would be rejected.
    let own = letter("mallory", "mine", 4).signed(&key(5));
    let real = letter("carol", "really carol", 5).signed(&key(6));
    tree.receive(&own);
    tree.receive(&real);
    m.appears(&format!("inbox/{}", own.name(4)));
    m.appears(&format!("inbox/{}", real.name(5)));
    assert_eq!(message(&m, own.id()).must("Signature"), format!("valid {}", fingerprint(&key(5))));
    assert_eq!(message(&m, real.id()).must("Signature"), format!("valid {}", fingerprint(&key(6))));
}

/// S104: with `unsigned = "refuse"` an uncovered text does not come in under a quoted signature.
#[test]
fn s104_policy() {
    let alice = letter("alice", "said by alice", 1).signed(&key(1));
    let quote = letter("mallory", &format!("pay me\n{}", alice.body), 2);
    let (_bed, _tree, m) = with(|bed, tree| {
        bed.config(&format!("unsigned = \"refuse\"\n{}", tree.store()));
        tree.receive(&alice);
        tree.receive(&quote);
    });
    assert_eq!(m.ls("inbox"), [alice.name(1)]);
    assert!(one_rejected(&m).contains("pay me"));
}

/// S105: signed header lines replace those of the file. A block without Signature-V2 changes nothing, and unsigned
/// links change nothing either.
#[test]
fn s105_envelope() {
    let sealed =
        letter("alice", "sealed", 1).set("Subject", "the real subject").sealed(&key(1), &[]);
    let carried = sealed
        .clone()
        .set("Subject", "changed on the way")
        .set("To", "zed@x")
        .set("Date", "2026-05-05 05:05:05");
    let meta = [
        "Subject: only claimed".to_owned(),
        "To: nobody@x".to_owned(),
        "Message-ID: 000000000000".to_owned(),
    ];
    let claimed = letter("carol", &block("claimed", &key(2), &meta), 2)
        .set("In-Reply-To", sealed.id())
        .set("References", sealed.id())
        .set("Thread", "hijack");
    let (_bed, _tree, m) = with(|_, tree| {
        tree.put(DAY, "inbox", sealed.id(), carried.text());
        tree.receive(&claimed);
    });
    let got = message(&m, sealed.id());
    assert_eq!((got.must("Subject"), got.must("To")), ("the real subject", ME));
    assert_eq!(got.must("Signature"), format!("valid {}", fingerprint(&key(1))));
    assert!(m.ls("inbox").contains(&sealed.name(1)), "its time is the signed one");
    let got = message(&m, claimed.id());
    assert_eq!((got.must("Subject"), got.must("To")), ("s", ME));
    assert_eq!(
        (got.get("In-Reply-To"), got.must("Signature")),
        (None, format!("valid {}", fingerprint(&key(2))).as_str())
    );
    assert_ne!(got.must("Thread"), "hijack");
}

/// S105: an attachment that is not the signed one is left out of `.d/`, and a warning says so.
#[test]
fn s105_attachments() {
    let good = samp::sha_hex(b"good", 64);
    let wrong = samp::sha_hex(b"the original", 64);
    let l = letter("alice", "two files", 1).set("Attachments", "a.txt, b.txt").sealed(
        &key(1),
        &[
            ("Attachment", &format!("sha256={good}; name=a.txt")),
            ("Attachment", &format!("sha256={wrong}; name=b.txt")),
        ],
    );
    let (_bed, _tree, m) = with(|_, tree| {
        tree.receive(&l);
        agz::put(&tree.file(DAY, "inbox", l.id()).join("a.txt"), b"good");
        agz::put(&tree.file(DAY, "inbox", l.id()).join("b.txt"), b"exchanged");
    });
    let got = message(&m, l.id());
    assert_eq!(got.must("Attachments"), "a.txt (4), b.txt (does not match its signed hash)");
    let dir = format!("archive/2026-04-24/{}", l.name(1).replace(".txt", ".d"));
    assert_eq!(m.ls(&dir), ["a.txt"]);
    assert!(!m.sh(&format!("cat '{dir}/b.txt'")).ok());
}

/// S106: a signature by a key that is pinned to another address is valid, and `status.txt` names both addresses.
/// Under a signed From the key never speaks for the other address.
#[test]
fn s106_borrowed() {
    let alice = letter("alice", "first", 1).signed(&key(1));
    let alias = letter("alias", "the same key", 2).signed(&key(1));
    let stolen = letter("alice", "sealed by alice", 3).sealed(&key(1), &[]);
    let replayed = stolen.clone().set("From", "mallory@localhost");
    let (_bed, tree, m) = with(|_, tree| {
        tree.receive(&alice);
    });
    m.appears(&format!("inbox/{}", alice.name(1)));
    tree.receive(&alias);
    m.appears(&format!("inbox/{}", alias.name(2)));
    assert_eq!(
        message(&m, alias.id()).must("Signature"),
        format!("valid {}", fingerprint(&key(1)))
    );
    let status = m.cat("status.txt");
    let line =
        status.lines().find(|l| l.contains("alias@localhost") && l.contains("alice@localhost"));
    assert!(line.is_some(), "status.txt says whose else the key is:\n{status}");
    tree.receive(&replayed);
    crate::common::soon("the replayed letter is somewhere", || {
        m.sh("grep -rq 'sealed by alice' archive rejected").ok()
    });
    for s in shown::all(&m, "archive") {
        assert!(s.get("From") != Some("mallory@localhost"), "{s:?}");
    }
}
