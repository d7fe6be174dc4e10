//! My addresses, and what only says it is from me.

use std::fs;

use super::{Place, mail, make, texts, with};
use crate::common::{Bed, shown, soon};

/// Returns the texts of all mails that Bob got.
fn mail_of_bob(place: &Place) -> String {
    let names = place.names("bob/new").into_iter();
    names.map(|name| fs::read_to_string(place.at("bob/new").join(name)).unwrap()).collect()
}

/// S1170: mail under any of my addresses that another key signed is rejected and reported. No address of mine gets an
/// answer to all, or mail to a group.
#[test]
fn s1170_each_of_my_addresses_is_mine() {
    let bed = Bed::new();
    let place = Place { root: bed.path("mail") };
    make(&place.at("anna"));
    make(&place.at("eve"));
    let root = place.root.display();
    bed.config(&format!(
        "[[store]]\nkind = \"maildir\"\ndir = \"{root}/eve\"\nme = \"anna@localhost\"\n\
         [store.local]\n\"anna@example.org\" = \"{root}/anna\"\n"
    ));
    let eve = bed.mount("eve");
    eve.ok("printf 'To: anna@example.org\\n\\nforged\\n' > outbox/x");
    soon("it is delivered", || place.names("anna/new").len() == 1);
    eve.umount();
    let place = Place::new(&bed, "");
    let config = bed.path("config/msgfs/config.toml");
    let text = fs::read_to_string(&config).unwrap();
    bed.config(&(text + "[groups]\nteam = [\"bob@localhost\", \"anna@localhost\"]\n"));
    place.deliver(
        "anna/new/1.h",
        &mail(1, "Cc: anna@localhost\n").replace("bob@example.org", "bob@localhost"),
    );
    let m = bed.mount("anna");
    let why = shown::one_rejected(&m);
    assert!(why.contains("forged") && why.contains("the key of anna@localhost is"), "{why}");
    let out = bed.msgfs_out(&["--me", "anna", "doctor"]);
    for told in [&m.said, &m.cat("status.txt"), &out.said()] {
        assert!(told.contains("under my name (anna@localhost)"), "{told}");
    }
    m.ok("n=$(ls archive/2026-04-24); echo fine > archive/2026-04-24/${n%.txt}.reply-all");
    soon("the answer is delivered", || place.names("bob/new").len() == 1);
    assert!(!mail_of_bob(&place).contains("anna@localhost"), "{}", mail_of_bob(&place));
    m.ok("printf 'To: team\\n\\nall\\n' > outbox/x");
    soon("the mail is delivered", || place.names("bob/new").len() == 2);
    assert!(!mail_of_bob(&place).contains("anna@localhost"), "{}", mail_of_bob(&place));
    let mine = [place.names("anna/new"), place.names("anna/cur")].concat();
    assert_eq!(mine.len(), 2, "nothing came to me: {mine:?}");
}

/// S1171: with `unsigned = "refuse"`, unsigned mail that says it is from me is refused. A copy in Sent proves it.
#[test]
fn s1171_unsigned_mail_under_my_name() {
    let bed = Bed::new();
    let place = Place::new(&bed, "");
    let text = fs::read_to_string(bed.path("config/msgfs/config.toml")).unwrap();
    bed.config(&format!("unsigned = \"refuse\"\n{text}"));
    make(&place.at("anna/.Sent"));
    let mine = |n| mail(n, "").replace("Bob <bob@example.org>", "anna@localhost");
    place.deliver("anna/.Sent/cur/1.h:2,S", &mine(1));
    place.deliver("anna/new/2.h", &mine(2));
    let m = bed.mount("anna");
    assert_eq!(texts(&m, "sent/2026-04-24"), ["text 1"]);
    assert!(m.ls("inbox").is_empty());
    let why = shown::one_rejected(&m);
    assert!(why.contains("text 2") && why.contains("it is not signed"), "{why}");
    place.deliver("anna/.Sent/cur/2.h:2,S", &mine(2));
    soon("Sent has it", || m.ls("rejected").is_empty());
    assert_eq!(texts(&m, "sent/2026-04-24"), ["text 1", "text 2"]);
    fs::remove_file(place.at("anna/.Sent/cur/2.h:2,S")).unwrap();
    soon("nothing proves it", || m.ls("rejected").len() == 1);
}

/// S1172: a mail that only says it is from me uses up no idempotency key.
#[test]
fn s1172_a_forged_key() {
    let (_bed, place, m) = with("", |place| {
        let forged = "From: anna@example.org\nTo: bob@localhost\nMessage-ID: <f@x>\n\
                      X-Msgfs-Idempotency: k\n\npay\n";
        place.deliver("anna/new/1.h", forged);
    });
    for _ in 0..2 {
        m.ok("printf 'To: bob@localhost\\nIdempotency-Key: k\\n\\npay\\n' > outbox/x");
        soon("bob has it", || place.names("bob/new").len() == 1);
    }
    assert_eq!(place.names("anna/.Sent/cur").len(), 1);
}

/// S1351: an unsigned mail in my inbox that says it is from me is none of mine. It chooses no recipient for me.
#[test]
fn s1351_unsigned_mail_under_my_name_is_not_mine() {
    let (_bed, place, m) = with("sendmail = \"/bin/true\"\n", |_| {});
    m.ok("printf 'To: bob@localhost\\n\\nask\\n' > outbox/x");
    soon("bob has it", || place.names("bob/new").len() == 1);
    let sent = mail_of_bob(&place);
    let id = sent.lines().find_map(|line| line.strip_prefix("Message-ID: ")).unwrap();
    let forged = format!(
        "From: anna@example.org\nTo: evil@x.example\nMessage-ID: <f@x>\nIn-Reply-To: {id}\n\n\
         forged\n"
    );
    place.deliver("anna/new/1.h", &forged);
    soon("it is in my inbox", || texts(&m, "inbox") == ["forged"]);
    let lines = || m.cat("sent.txt").lines().filter(|line| !line.starts_with('#')).count();
    assert_eq!(lines(), 1, "{}", m.cat("sent.txt"));
    assert!(!m.cat("status.txt").contains("evil"), "{}", m.cat("status.txt"));
    m.ok("t=$(ls threads); echo secret > \"threads/$t/new\"");
    soon("the answer is sent", || lines() == 2);
    assert!(!m.cat("sent.txt").contains("evil"), "{}", m.cat("sent.txt"));
}

/// S1228: a key that is trusted for an address in capitals counts for its mail. It is forgotten in any spelling.
#[test]
fn s1228_a_pin_takes_any_spelling() {
    let bed = Bed::new();
    let place = Place::new(&bed, "");
    let run = |args: &[&str]| bed.msgfs_out(&[&["--me", "anna", "key"][..], args].concat());
    let other = "11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=";
    let out = run(&["trust", "Bob@Example.org", "--key", other]);
    assert!(out.ok() && out.stderr.contains("for bob@example.org"), "{out:?}");
    let vectors: serde_json::Value =
        serde_json::from_str(include_str!("../../vectors/maildir.json")).unwrap();
    place.deliver("anna/new/1.good", vectors["valid"][0]["text"].as_str().unwrap());
    let m = bed.mount("anna");
    let why = shown::one_rejected(&m);
    assert!(why.contains("the key of bob@example.org is"), "{why}");
    let out = run(&["forget", "BOB@example.org"]);
    assert!(out.ok(), "{out:?}");
    assert!(!run(&["list"]).stdout.contains(other));
}
