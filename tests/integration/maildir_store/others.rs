//! Mails as other programs write, change and answer them.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::net::UnixListener;
use std::time::Duration;

use super::{Place, mail, texts, with};
use crate::common::samp::today;
use crate::common::{Bed, shown, soon, write_script};

/// S801: a mail that its writer still has open gets its second, and is shown when it is whole.
#[test]
fn s801_a_mail_that_is_being_written() {
    let (_bed, place, m) = with("", |_| {});
    let path = place.at("anna/new/1.h");
    let writer = std::thread::spawn(move || {
        let mut file = File::create(path).unwrap();
        file.write_all(mail(1, "").as_bytes()).unwrap();
        file.sync_all().unwrap();
        std::thread::sleep(Duration::from_millis(400));
        file.write_all(b"the second half\n").unwrap();
    });
    assert!(m.cat(".next").contains("text 1\nthe second half\n"));
    writer.join().unwrap();
    soon("S is set", || place.names("anna/cur") == ["1.h:2,S"]);
    assert_eq!(m.ls("archive/2026-04-24").len(), 1);
    // A delivery by rename waits for nothing.
    place.deliver("anna/new/2.h", &mail(2, ""));
    assert!(m.cat(".next").contains("text 2"));
}

/// S811: a mail shows its thread after a remount as before, also where each answer names only the one before it.
#[test]
fn s811_threads_after_a_remount() {
    let (bed, place, m) = with("", |place| {
        for n in 1..=4 {
            let answered = format!("In-Reply-To: <m{}@example.org>\n", n - 1);
            place
                .deliver(&format!("anna/new/{n}.h"), &mail(n, if n == 1 { "" } else { &answered }));
        }
    });
    let before = m.ok("grep -rh '^Thread:' archive; sha256sum archive/*/* transcripts/*");
    assert_eq!(before.matches("Thread: m1@example.org").count(), 4, "{before}");
    drop(m);
    let m = bed.mount("anna");
    let after = m.ok("grep -rh '^Thread:' archive; sha256sum archive/*/* transcripts/*");
    assert_eq!(after, before);
    // An answer that comes later joins them.
    place.deliver("anna/new/5.h", &mail(5, "In-Reply-To: <m4@example.org>\n"));
    soon("it joins", || {
        m.ls("threads/m1@example.org").iter().filter(|n| shown::has_ending(n, "txt")).count() == 5
    });
    assert_eq!(m.ls("threads"), ["m1@example.org"]);
}

/// S811: an answer of another program joins the thread that I gave to my mail, and so does my reply to it.
#[test]
fn s811_a_thread_with_a_name_of_its_own() {
    let (_bed, place, m) = with("", |_| {});
    m.ok("printf 'To: bob@localhost\\nThread: plan\\n\\nq\\n' > outbox/x");
    soon("it is delivered", || place.names("bob/new").len() == 1);
    let text = fs::read_to_string(place.at("bob/new").join(&place.names("bob/new")[0])).unwrap();
    let id = text.lines().find_map(|line| line.strip_prefix("Message-ID: ")).unwrap();
    let from_bob = mail(1, &format!("In-Reply-To: {id}\nReferences: {id}\n"));
    place.deliver("anna/new/1.h", &from_bob.replace("bob@example.org", "bob@localhost"));
    soon("it comes", || m.ls("inbox").len() == 1);
    assert_eq!(m.ls("threads"), ["plan"]);
    m.ok("n=$(ls inbox); echo fine > inbox/${n%.txt}.reply");
    soon("the reply is delivered", || place.names("bob/new").len() == 2);
    assert_eq!(m.ls("threads"), ["plan"]);
    assert_eq!(m.sh("grep -rl '^Thread: plan$' sent | wc -l").stdout.trim(), "2");
}

/// S1321: a stranger's mail with the id of another mail moves the answers of that mail nowhere, also if it is read
/// first.
#[test]
fn s1321_a_mail_with_the_id_of_another() {
    let (_bed, place, m) = with("", |place| {
        let forged = mail(1, "References: <evil@example.org>\n").replace("text 1", "forged");
        place.deliver("anna/cur/0.h:2,", &forged);
        place.deliver("anna/cur/1.h:2,", &mail(1, ""));
        place.deliver("anna/cur/2.h:2,", &mail(2, "In-Reply-To: <m1@example.org>\n"));
    });
    let thread = |n: u32| m.sh(&format!("grep -h ^Thread: archive/*/*1742{n:02}*")).stdout;
    assert_eq!(thread(2), "Thread: m1@example.org\n");
    assert!(m.ls("threads").contains(&"evil@example.org".to_owned()), "the forged mail has it");
    place.deliver("anna/new/3.h", &mail(3, "In-Reply-To: <m2@example.org>\n"));
    soon("it comes", || thread(3) == "Thread: m1@example.org\n");
}

/// S1320: without a mount, a mail that was deleted is gone, whatever an earlier process saved, and whatever came since.
#[test]
fn s1320_a_loss_without_a_mount() {
    let (bed, place, m) = with("", |place| {
        place.deliver("anna/cur/1.h:2,", &mail(1, ""));
        place.deliver("anna/cur/2.h:2,", &mail(2, ""));
    });
    assert_eq!(m.ls("archive/2026-04-24").len(), 2);
    drop(m);
    fs::remove_file(place.at("anna/cur/1.h:2,")).unwrap();
    place.deliver("anna/cur/3.h:2,", &mail(3, ""));
    let out = bed.msgfs_out(&["--me", "anna", "ls", "archive/2026-04-24"]);
    assert!(out.stdout.contains("174202") && !out.stdout.contains("174201"), "{out:?}");
}

/// S1400: a mail that is held, and so has no text, hides no other mail from a command.
#[test]
fn s1400_a_held_mail_hides_no_other() {
    let (bed, place, m) = with("", |place| {
        place.deliver("anna/new/1.h", &mail(1, ""));
        place.deliver("anna/new/2.h", &mail(2, ""));
    });
    assert_eq!(m.ls("inbox").len(), 2);
    fs::remove_file(place.at("anna/new/1.h")).unwrap();
    soon("the loss is seen", || !m.sh("cat inbox/*174201*").ok());
    drop(m);
    let run = |args: &[&str]| bed.msgfs_out(&[&["--me", "anna"], args].concat());
    for args in [&["ls", "inbox"][..], &["status"], &["wait", "--timeout", "0"], &["inbox"]] {
        let out = run(args);
        assert!(out.ok() && out.stdout.contains("174202"), "{args:?}: {out:?}");
    }
}

/// S1325: copies of a mail without an id are one message, whatever the programs wrote that carried them.
#[test]
fn s1325_copies_without_an_id() {
    let (_bed, _place, m) = with("", |place| {
        let text = mail(1, "").replace("Message-ID: <m1@example.org>\n", "");
        place.deliver("anna/new/1.h", &text);
        place.deliver("anna/cur/2.h:2,", &format!("Received: from a by b\n{text}"));
    });
    assert_eq!(texts(&m, "inbox"), ["text 1"]);
}

/// S1327: an answer continues the mail that is answered, and marks it, also if a stranger's mail has its id.
#[test]
fn s1327_an_answer_to_one_of_two_mails() {
    let (_bed, place, m) = with("", |place| {
        let forged = mail(1, "References: <evil@example.org>\n").replace("text 1", "forged");
        place.deliver("anna/cur/0.h:2,", &forged);
        let text = mail(1, "").replace("bob@example.org", "bob@localhost");
        place.deliver("anna/cur/1.h:2,S", &text);
    });
    m.ok("n=$(ls archive/2026-04-24 | grep bob@localhost); echo fine > \"archive/2026-04-24/${n%.txt}.reply\"");
    soon("it is delivered", || place.names("bob/new").len() == 1);
    let text = fs::read_to_string(place.at("bob/new").join(&place.names("bob/new")[0])).unwrap();
    assert!(text.contains("\nReferences: <m1@example.org>\n"), "{text}");
    soon("R is set", || place.names("anna/cur") == ["0.h:2,", "1.h:2,RS"]);
}

/// S810: a verified mail that was changed stays rejected when a program moves it or changes its flags.
#[test]
fn s810_a_changed_mail_that_is_moved() {
    let (bed, place, m) = with("", |_| {});
    m.ok("printf 'To: anna@localhost\\n\\npay 10\\n' > outbox/x");
    soon("it comes", || place.names("anna/new").len() == 1);
    soon("it is valid", || {
        shown::all(&m, "inbox").iter().any(|one| one.must("Signature").starts_with("valid"))
    });
    let name = place.names("anna/new").remove(0);
    let signed = fs::read_to_string(place.at("anna/new").join(&name)).unwrap();
    let (_, plain) = signed.split_once("\nFrom: ").unwrap();
    let forged = format!("From: {plain}").replace("pay 10", "pay 9999");
    place.deliver(&format!("anna/new/{name}"), &forged);
    soon("it is rejected", || shown::rejected(&m).len() == 1);
    for to in [format!("cur/{name}:2,"), format!("cur/{name}:2,F")] {
        let there = ["new", "cur"].iter().flat_map(|leaf| {
            place
                .names(&format!("anna/{leaf}"))
                .into_iter()
                .map(move |name| format!("{leaf}/{name}"))
        });
        let from = there.into_iter().next().unwrap();
        fs::rename(place.at("anna").join(from), place.at("anna").join(&to)).unwrap();
        soon("it is looked at", || shown::rejected(&m).iter().any(|text| text.contains(&to)));
        assert!(!m.ok("cat inbox/* 2> /dev/null || true").contains("9999"));
    }
    drop(m);
    let m = bed.mount("anna");
    assert_eq!(shown::rejected(&m).len(), 1);
    assert!(m.ls("inbox").is_empty());
}

/// S810: a socket is rejected as everything that is no file, and is no fault of the store.
#[test]
fn s810_a_socket() {
    let (_bed, place, m) = with("", |_| {});
    let _listener = UnixListener::bind(place.at("anna/new/sock")).unwrap();
    soon("it is rejected", || shown::rejected(&m).iter().any(|text| text.contains("socket")));
    assert!(!m.cat("status.txt").contains("cannot be read"), "{}", m.cat("status.txt"));
}

/// S1248: mail that comes while another mail waits for its end is shown before that. A busy machine may miss the second
/// once, but not each time.
#[test]
fn s1248_an_unfinished_mail_delays_no_other() {
    let (_bed, place, m) = with("", |_| {});
    let mut is_first = false;
    for n in (1..10).step_by(2) {
        if is_first {
            break;
        }
        place.deliver(&format!("anna/new/{n}.h"), mail(n, "").trim_end());
        std::thread::sleep(Duration::from_millis(100));
        place.deliver(&format!("anna/new/{}.h", n + 1), &mail(n + 1, ""));
        let (torn, whole) = (format!("text {n}"), format!("text {}", n + 1));
        soon("the whole mail is shown", || {
            let shown = texts(&m, "inbox");
            is_first |= shown.contains(&whole) && !shown.contains(&torn);
            shown.contains(&whole)
        });
        soon("the other counts without its end", || texts(&m, "inbox").contains(&torn));
    }
    assert!(is_first, "the whole mail waited for the unfinished one");
}

/// S803: the recipients in Cc are recipients.
#[test]
fn s803_recipients_in_cc() {
    let (_bed, _place, m) = with("", |place| {
        let text = mail(1, "Cc: carol@localhost, anna@localhost\n");
        place.deliver("anna/new/1.h", &text.replace("bob@example.org", "bob@localhost"));
        fs::create_dir(place.at("carol")).unwrap();
    });
    assert_eq!(m.ls("search/to:carol@localhost").iter().filter(|n| n.contains("bob@")).count(), 1);
    m.ok("printf 'To: bob@localhost\\nCc: bob@localhost, anna@localhost\\n\\nx\\n' > outbox/x");
    soon("both are told", || m.sh("grep -c delivered sent.txt").stdout.trim() == "2");
    assert_eq!(
        m.ls(&format!("sent/{}", today())).iter().filter(|n| shown::has_ending(n, "txt")).count(),
        1
    );
}

/// S811: a draft may name the answered mail as mail programs do.
#[test]
fn s811_a_draft_names_a_mail() {
    let (_bed, place, m) = with("", |place| place.deliver("anna/new/1.h", &mail(1, "")));
    assert_eq!(texts(&m, "inbox"), ["text 1"]);
    m.ok("printf 'To: bob@localhost\\nIn-Reply-To: <m1@example.org>\\n\\nx\\n' > outbox/x");
    soon("it is delivered", || place.names("bob/new").len() == 1);
    let text = fs::read_to_string(place.at("bob/new").join(&place.names("bob/new")[0])).unwrap();
    assert!(text.contains("\nIn-Reply-To: <m1@example.org>\n"), "{text}");
    assert_eq!(m.ls("threads"), ["m1@example.org"]);
}

/// S807: a program that ends with success has taken the mail, whatever it read of it.
#[test]
fn s807_a_program_that_does_not_read_all() {
    let bed = Bed::new();
    let (program, log) = (bed.path("sendmail"), bed.path("log"));
    let text = format!("#!/bin/sh\nhead -c 100 > /dev/null\necho run >> {}\n", log.display());
    write_script(&program, &text);
    Place::new(&bed, &format!("sendmail = \"{}\"\n", program.display()));
    let m = bed.mount("anna");
    m.ok("(printf 'To: eve@x.example\\n\\n'; yes | head -c 1000000) > outbox/x");
    soon("it is taken", || !m.cat("status.txt").contains("waits for") && log.exists());
    std::thread::sleep(Duration::from_secs(6));
    assert_eq!(fs::read_to_string(&log).unwrap(), "run\n");
}

/// S1220: after a message with a very long sender was read, `msgfs reply` without a name answers what is read later.
#[test]
fn s1220_a_long_sender() {
    let (bed, _place, m) = with("", |place| {
        let long = format!("{}@example.org", "x".repeat(3000));
        place.deliver("anna/new/1.h", &mail(1, "").replace("bob@example.org", &long));
        for n in 2..=3 {
            let text = mail(n, "").replace("bob@example.org", "bob@localhost");
            place.deliver(&format!("anna/new/{n}.h"), &text);
        }
    });
    for n in 1..=3 {
        assert!(m.ok(&format!("cat inbox/*17420{n}*")).contains(&format!("text {n}")));
    }
    let out = bed.msgfs_out(&["reply", "--me", "anna", "fine"]);
    assert!(out.ok() && out.stderr.contains("replied to bob@localhost"), "{out:?}");
}

/// S1221: in a folder of `search/`, a whole id with a dot opens its message, and a wrong id is shown in `status.txt`.
#[test]
fn s1221_ids_in_search() {
    let (_bed, _place, m) = with("", |place| {
        place.deliver("anna/new/1.h", &mail(1, "").replace("<m1@", "<1234.5678@"));
    });
    let text = m.cat("archive/2026-04-24/1234.5678@example.org");
    assert!(text.ends_with("text 1\n"), "{text}");
    for name in ["1234.5678@example.org", "1234.5678@example.org.txt"] {
        assert_eq!(m.cat(&format!("search/text/{name}")), text, "{name}");
    }
    assert!(!m.cat("status.txt").contains("last unknown id:"));
    for (name, id) in [("deadbeef", "deadbeef"), ("0badcafe.reply", "0badcafe")] {
        let out = m.sh(&format!("cat search/text/{name}"));
        assert!(!out.ok() && out.stderr.contains("No such file"), "{out:?}");
        let status = m.cat("status.txt");
        assert!(status.contains(&format!("last unknown id: {id} (")), "{status}");
    }
}

/// S17: mails whose ids begin with the date have different short names.
#[test]
fn s17_ids_that_begin_with_the_date() {
    let (_bed, _place, m) = with("", |place| {
        for n in [1, 2] {
            let text = mail(n, "").replace(&format!("<m{n}@"), &format!("<20260424.{n}@"));
            place.deliver(&format!("anna/new/{n}.h"), &text);
        }
    });
    let listed = m.ok("ls inbox");
    let shown: BTreeSet<&str> = listed.lines().filter_map(|name| name.rsplit('-').next()).collect();
    assert_eq!((shown.len(), listed.contains("20260424.txt")), (2, false), "{listed}");
    for name in shown {
        let short = name.strip_suffix(".txt").unwrap();
        assert!(m.cat(&format!("inbox/{short}")).contains("Message-ID: <20260424."));
    }
    assert!(m.cat("inbox/20260424.2@example.org").ends_with("text 2\n"));
}
