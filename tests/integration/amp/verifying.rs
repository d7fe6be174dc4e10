//! The authors of texts, as signatures prove them.

use std::fs;

use serde_json::json;

use crate::amp::with;
use crate::common::amp::{ALICE, BAR, Msg};
use crate::common::samp::{fingerprint, key};
use crate::common::shown::{message, one_rejected, rejected};
use crate::common::soon;

/// S121: the key comes from the local agent whose address is exactly the sender's. The text of the file never
/// vouches for itself.
#[test]
fn s121_local_keys() {
    let good = Msg::new("s", "good", 1).signed(2);
    let cased = Msg::new("s", "cased", 2).between("Alice@Acme.AIMaestro.Local", BAR).signed(2);
    let stranger =
        Msg::new("s", "stranger", 3).between("carol@acme.aimaestro.local", BAR).signed(7);
    let mut claims = Msg::new("s", "claims", 4).between("dave@acme.aimaestro.local", BAR).signed(8);
    claims.rest = json!({"sender_public_key": crate::common::samp::hex(key(8).verifying_key().as_bytes()),
                         "security": {"trust_level": "verified"}});
    let tenant = Msg::new("s", "tenant", 5).between("alice@globex.aimaestro.local", BAR).signed(2);
    let unsigned = Msg::new("s", "unsigned", 6).between("erin@acme.aimaestro.local", BAR);
    let (_bed, _home, m) = with(|_, home| {
        for x in [&good, &cased, &stranger, &claims, &tenant, &unsigned] {
            home.receive(x);
        }
    });
    let valid = format!("valid {}", fingerprint(&key(2)));
    for (msg, wanted) in [
        (&good, valid.as_str()),
        (&cased, &valid),
        (&stranger, "unknown"),
        (&claims, "unknown"),
        (&tenant, "unknown"),
        (&unsigned, "none"),
    ] {
        assert_eq!(message(&m, &msg.id).must("Signature"), wanted, "{}", msg.subject);
    }
    assert_eq!(m.ls("rejected"), [""; 0]);
}

/// S121: a registration address vouches for the agent's key as well.
#[test]
fn s121_registered_address() {
    let from = "alice@team.acme.crabmail.ai";
    let msg = Msg::new("s", "by registration", 1).between(from, BAR).signed(2);
    let (_bed, _home, m) = with(|_, home| {
        let file = home.dir("alice").join("registrations/crabmail.ai.json");
        crate::common::agz::put(
            &file,
            json!({"provider": "crabmail.ai", "address": from}).to_string(),
        );
        home.receive(&msg);
    });
    assert_eq!(message(&m, &msg.id).must("Signature"), format!("valid {}", fingerprint(&key(2))));
}

/// S121: a file with a changed signed field is rejected. Unsigned fields may change.
#[test]
fn s121_tampered() {
    let base = |n| {
        Msg { priority: "high".into(), ..Msg::new("s", "pay 10", n) }
            .answering("msg_1_parent0")
            .signed(2)
    };
    let changes: [fn(Msg) -> Msg; 6] = [
        |m| Msg { payload: m.payload.replace("10", "99"), ..m },
        |m| Msg { subject: "t".into(), ..m },
        |m| Msg { priority: "low".into(), ..m },
        |m| Msg { parent: None, ..m },
        |m| m.between(ALICE, "BAR@acme.aimaestro.local"),
        |m| Msg { payload: m.payload.replace("\"type\"", "\"x\":null,\"type\""), ..m },
    ];
    let free = base(50)
        .envelope(json!({"thread_id": "msg_1_other", "expires_at": null, "version": "amp/0.2"}));
    // The signature covers the payload in the order in which it was written.
    let mut unsorted = Msg::new("s", "pay 10", 60);
    unsorted.payload = "{\"type\":\"request\",\"message\":\"pay 10\"}".into();
    let unsorted = unsorted.signed(2);
    let (_bed, _home, m) = with(|_, home| {
        home.receive(&unsorted);
        for (i, change) in changes.iter().enumerate() {
            home.receive(&change(base(i as i64)));
        }
        home.receive(&free);
    });
    assert_eq!(m.ls("inbox"), [free.name()]);
    let all = rejected(&m);
    assert_eq!(all.len(), changes.len() + 1, "{all:#?}");
    assert!(all.iter().all(|t| t.starts_with("Reason: ") && t.contains("signature")), "{all:#?}");
}

/// S121, S1285: the key that is seen first stays pinned. Another key of the same address is rejected until it is
/// trusted.
#[test]
fn s121_pinned() {
    let first = Msg::new("s", "first", 1).signed(2);
    let (bed, home, m) = with(|_, home| {
        home.receive(&first);
    });
    assert!(message(&m, &first.id).must("Signature").starts_with("valid "));
    // Agent alice gets another key, as from a new installation.
    let public = home.agent_in("other", "alice2", "acme", 5).join("keys/public.pem");
    fs::copy(public, home.dir("alice").join("keys/public.pem")).unwrap();
    let second = Msg::new("s", "second", 2).signed(5);
    home.receive(&second);
    let text = one_rejected(&m);
    assert!(text.contains("second") && text.contains("key"), "{text}");
    let out = bed.msgfs_out(&["key", "trust", ALICE, "--me", "bar"]);
    assert!(out.ok(), "{out:?}");
    m.appears(&format!("inbox/{}", second.name()));
    assert_eq!(
        message(&m, &second.id).must("Signature"),
        format!("valid {}", fingerprint(&key(5)))
    );
    // S1285: both keys count for `check`.
    m.umount();
    let out = bed.msgfs_out(&["check", "amp", "--me", "bar"]);
    assert_eq!(out.code(), Some(0), "{out:?}");
}

/// S1283: a key of this machine that is there later judges the messages that came before it.
#[test]
fn s1283_a_key_that_comes_later_counts() {
    let carol = "carol@acme.aimaestro.local";
    let early = Msg::new("s", "early", 1).between(carol, BAR).signed(7);
    let (_bed, home, m) = with(|_, home| drop(home.receive(&early)));
    assert_eq!(message(&m, &early.id).must("Signature"), "unknown");
    home.agent("carol", "acme", 7);
    // The next message makes msgfs look.
    home.receive(&Msg::new("s", "late", 2).between(carol, BAR).signed(7));
    let valid = format!("valid {}", fingerprint(&key(7)));
    soon("the key counts", || message(&m, &early.id).must("Signature") == valid);
}

/// S1284: files with the same signed bytes and a signed id are one message, and no replay for `check`. Without that id
/// they are two messages, and the second is a replay.
#[test]
fn s1284_a_carried_copy_is_no_replay() {
    for (context, count) in [(json!({"msgfs": {"id": "msg_5_a"}}), 1), (json!({}), 2)] {
        let text = json!({"type": "notification", "message": "hello", "context": context});
        let real = Msg::new("s", "hello", 1).payload(&text).signed(2);
        let copy = Msg { id: Msg::new("s", "hello", 2).id, ..real.clone() };
        let (bed, _home, m) = with(|_, home| {
            home.receive(&real);
            home.receive(&copy);
        });
        assert_eq!(m.ls("inbox").len(), count);
        m.umount();
        let out = bed.msgfs_out(&["check", "amp", "--me", "bar"]);
        assert_eq!(out.said().contains("replay"), count == 2, "{out:?}");
    }
}

/// S121: mail whose signature nobody can check falls under the policy for unsigned mail.
#[test]
fn s121_policy() {
    for (policy, inbox) in [("accept", 2), ("refuse", 1)] {
        let (_bed, _home, m) = with(|bed, home| {
            bed.config(&format!("unsigned = \"{policy}\"\n{}", home.store()));
            home.receive(&Msg::new("s", "valid", 1).signed(2));
            home.receive(
                &Msg::new("s", "unknown", 2).between("carol@acme.aimaestro.local", BAR).signed(7),
            );
        });
        assert_eq!((m.ls("inbox").len(), m.ls("rejected").len()), (inbox, 2 - inbox), "{policy}");
    }
}

/// S71: a message that comes after the key was pinned is newer than the pin, whatever its date says. This holds
/// after a remount, without the cache, and with the signed message gone, too. A message that was there before is
/// not newer.
#[test]
fn s71_backdated_in_files() {
    let missing = format!("missing {}", fingerprint(&key(2)));
    let old = Msg::new("s", "old", 90);
    let (bed, home, m) = with(|_, home| {
        home.receive(&old);
    });
    assert_eq!(message(&m, &old.id).must("Signature"), "none");
    let signed = home.receive(&Msg::new("s", "signed", 50).signed(2));
    crate::common::soon("signed", || m.ls("inbox").len() == 2);
    let forged = Msg::new("s", "dated back", 1);
    home.receive(&forged);
    crate::common::soon("forged", || m.ls("inbox").len() == 3);
    let check = |m: &crate::common::Mount| {
        assert_eq!(message(m, &forged.id).must("Signature"), missing);
        assert_eq!(message(m, &old.id).must("Signature"), "none");
    };
    check(&m);
    m.umount();
    let m = bed.mount("bar");
    check(&m);
    m.umount();
    fs::remove_dir_all(bed.path("cache")).unwrap();
    fs::remove_file(signed).unwrap();
    check(&bed.mount("bar"));
}
