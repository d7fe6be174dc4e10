//! Mail from the mount to other Maildirs and to other machines.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use super::{Place, mail, texts, with};
use crate::common::shown;
use crate::common::{Bed, quote, soon, write_script};

/// S806: mail to an address of this machine is one signed file in that `new/`, with a copy among my sent mail. Mail
/// programs show it, and another mount.
#[test]
fn s806_local() {
    let (bed, place, m) = with("", |_| {});
    m.ok("printf 'To: bob@localhost\\nSubject: schéma\\n\\nréview\\nFrom here\\n' > outbox/x");
    soon("it is delivered", || place.names("bob/new").len() == 1);
    let name = place.names("bob/new").remove(0);
    assert_eq!(place.names("anna/.Sent/cur"), [format!("{name}:2,S")]);
    let file = place.at("bob/new").join(&name);
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    let shown = bed.sh(&format!("mshow -n -h from:to:subject:auto-submitted {}", quote(&file)));
    for part in
        ["anna@example.org", "bob@localhost", "schéma", "auto-generated", "réview\nFrom here"]
    {
        assert!(shown.stdout.contains(part), "{shown:?}");
    }
    assert_eq!(texts(&m, &format!("sent/{}", crate::common::samp::today())), ["réview\nFrom here"]);
    drop(m);
    bed.config(&format!(
        "[[store]]\nkind = \"maildir\"\ndir = {:?}\nme = \"bob@localhost\"\n",
        place.at("bob").to_str().unwrap()
    ));
    let bob = bed.mount("bob");
    let got = shown::all(&bob, "inbox").remove(0);
    assert!(got.must("Signature").starts_with("valid "), "{got:?}");
    assert_eq!((got.must("From"), got.must("Subject")), ("anna@example.org", "schéma"));
}

/// S811: an answer goes to the thread of its parent, and sets `R` on it.
#[test]
fn s811_answer() {
    let (_bed, place, m) = with("", |place| {
        let text = mail(1, "").replace("bob@example.org", "bob@localhost");
        place.deliver("anna/new/1.h", &text);
    });
    m.ok(
        "cat inbox/*; for f in archive/2026-04-24/*.txt; do echo fine > \"${f%.txt}.reply\"; done",
    );
    soon("it is delivered", || place.names("bob/new").len() == 1);
    let text = fs::read_to_string(place.at("bob/new").join(&place.names("bob/new")[0])).unwrap();
    assert!(
        text.contains("\nIn-Reply-To: <m1@example.org>\nReferences: <m1@example.org>\n"),
        "{text}"
    );
    assert!(text.contains("\nSubject: Re: mail 1\n"), "{text}");
    soon("R is set", || place.names("anna/cur") == ["1.h:2,RS"]);
    assert_eq!(m.ls("threads"), ["m1@example.org"]);
    m.ok("test $(ls threads/m1@example.org | wc -l) = 2");
}

/// S1390, S722: an id is taken as `Message-ID:` has it, and escaped. An unknown one is never sent as text to the sender
/// of the message that was read last.
#[test]
fn s1390_ids_as_they_stand() {
    let (bed, place, m) = with("", |place| {
        for (n, id) in [(1, "plain.1@x.org"), (2, "a+b=c/d@x.org")] {
            let text = mail(n, "").replace("bob@example.org", "bob@localhost");
            let text = text.replace(&format!("m{n}@example.org"), id);
            place.deliver(&format!("anna/new/{n}.h"), &text);
        }
        place.deliver("anna/new/3.h", &mail(3, "").replace("bob@example.org", "eve@localhost"));
    });
    m.ok("cat inbox/*eve*");
    let reply = |word: &str| bed.msgfs_out(&["--me", "anna", "reply", word, word]);
    let words = [
        "plain.1@x.org",
        "plain.1@x.org@maildir",
        "<plain.1@x.org>",
        "<plain.1@x.org@maildir>",
        "a+b=c/d@x.org",
        "a+b=c/d@x.org@maildir",
        "<a+b=c/d@x.org@maildir>",
        "a%2Bb%3Dc%2Fd@x.org",
    ];
    let answered = |word: &str| {
        let id = if word.contains("plain") { "plain.1@x.org" } else { "a+b=c/d@x.org" };
        let texts: Vec<String> = place
            .names("bob/new")
            .iter()
            .map(|name| fs::read_to_string(place.at("bob/new").join(name)).unwrap())
            .filter(|text| text.contains(&format!("\nIn-Reply-To: <{id}>\n")))
            .collect();
        texts.iter().any(|text| text.contains(&format!("\n\n{word}\n")))
    };
    for word in words {
        let out = reply(word);
        assert!(out.ok() && out.stderr.contains("replied to bob@localhost"), "{word}: {out:?}");
        soon("the answer is delivered", || answered(word));
    }
    for word in ["<plain.1@x.org@maildir>", "plain.1@x.org", "a+b=c%2Fd@x.org@maildir"] {
        m.ok(&format!("echo 'file {word}' > 'inbox/{word}.reply'"));
        soon("the answer is delivered", || answered(&format!("file {word}")));
    }
    drop(m);
    for word in ["plain.2@x.org", "plain.1@x.org@amq", "a+b@x.org", "<plain.2@x.org@maildir>"] {
        let out = reply(word);
        assert!(
            out.code() == Some(1) && out.stderr.contains("nothing was sent"),
            "{word}: {out:?}"
        );
    }
    assert_eq!(place.names("bob/new").len(), words.len() + 3);
}

/// S807, S1096: other mail goes to the program. Its status decides, and while it hangs, other mail goes. A refused mail
/// is not tried again, not even after a remount, and a note says so.
#[test]
fn s807_sendmail() {
    let bed = Bed::new();
    let program = bed.path("sendmail");
    let log = bed.path("log");
    let text = format!(
        "#!/bin/sh\necho \"$@\" >>{log}\ncase \"$*\" in *hang*) exec sleep 60 ;; *gone*) echo 'no such user' >&2; exit 67 ;; esac\n\
         [ $(wc -l <{log}) -gt 2 ] || exit 75\ncat >{log}.new && mv {log}.new {log}.mail\n",
        log = log.display()
    );
    write_script(&program, &text);
    let place = Place::new(&bed, &format!("sendmail = \"{}\"\n", program.display()));
    let m = bed.mount("anna");
    m.ok("printf 'To: eve@x.example\\n\\nhello\\n' > outbox/x");
    soon("the third call takes it", || bed.path("log.mail").exists());
    let calls = fs::read_to_string(&log).unwrap();
    assert_eq!(calls, "-i -f anna@example.org -- eve@x.example\n".repeat(3));
    assert!(fs::read_to_string(bed.path("log.mail")).unwrap().ends_with("\n\nhello\n"));
    m.ok("printf 'To: hang@x.example\\nThread: t\\n\\nslow\\n' > outbox/y");
    m.ok("printf 'To: bob@localhost\\nThread: t\\n\\nfast\\n' > outbox/z");
    soon("other mail goes", || place.names("bob/new").len() == 1);
    m.ok("printf 'To: gone@x.example\\n\\nlost\\n' > outbox/w");
    soon("the reason is told", || m.sh("cat status.txt").stdout.contains("no such user"));
    assert_eq!(place.names("anna/.Sent/cur").len(), 4);
    // S1096: who waits for a state learns at once that the program refused the mail, and not that it is late.
    let line = m.sh("grep gone@x.example sent.txt").stdout;
    assert!(line.contains("\trefused\t"), "{line}");
    assert!(m.sh("grep hang@x.example sent.txt").stdout.contains("\twaiting\t"));
    let warnings = || m.sh("cat $(ls sent/*/*.warning) | grep -v '^waits for hang'").stdout;
    let note = warnings();
    assert!(
        note.starts_with("gone@x.example does not get it, because it was refused for good: "),
        "{note}"
    );
    assert!(note.contains("no such user\nit is not tried again: "), "{note}");
    let wait = ["--wait-for", "delivered", "--timeout", "60s", "lost again"];
    let out = bed.msgfs_out(&[&["--me", "anna", "send", "gone@x.example"], &wait[..]].concat());
    assert!(out.code() == Some(1) && out.stderr.contains("no such user"), "{out:?}");
    let refused = || fs::read_to_string(&log).unwrap().matches("gone@x.example").count();
    assert_eq!(refused(), 2);
    let seen = note.clone() + &note;
    // An orderly end would wait for the program that hangs.
    m.kill9();
    let m = bed.mount("anna");
    let shown = m.sh("cat $(ls sent/*/*.warning) | grep -v '^waits for hang'").stdout;
    assert_eq!((shown, refused()), (seen, 2));
    // A command that only looks, without a mount, knows it, too.
    m.kill9();
    let out = bed.msgfs_out(&["--me", "anna", "sent"]);
    assert_eq!(out.stdout.matches("gone@x.example\trefused\t").count(), 2, "{out:?}");
}

/// S1142: what an ended process left unsent is in `sent/` and not delivered, also for a command without a mount.
#[test]
fn s1142_left_unsent() {
    let bed = Bed::new();
    let program = bed.path("sendmail");
    write_script(&program, "#!/bin/sh\nexit 75\n");
    let place = Place::new(&bed, &format!("sendmail = \"{}\"\n", program.display()));
    let m = bed.mount("anna");
    m.ok("printf 'To: eve@x.example\\n\\nfar\\n' > outbox/x");
    soon("it waits", || m.sh("grep eve@x.example sent.txt").stdout.contains("\twaiting\t"));
    fs::create_dir_all(place.at("anna/.Sent/cur")).unwrap();
    fs::rename(place.at("anna/.Sent/tmp"), place.at("anna/.Sent/away")).unwrap();
    fs::write(place.at("anna/.Sent/tmp"), "").unwrap();
    m.ok("printf 'To: bob@localhost\\n\\nnear\\n' > outbox/y");
    let before = m.ok("ls sent/* | grep txt");
    m.kill9();
    let run = |args: &[&str]| bed.msgfs_out(&[&["--me", "anna"], args].concat()).stdout;
    let sent = run(&["sent"]);
    assert!(sent.contains("eve@x.example\tstored\t"), "{sent}");
    assert!(sent.contains("bob@localhost\twaiting\t"), "{sent}");
    let day = crate::common::samp::today();
    let listed = run(&["ls", &format!("sent/{day}")]);
    assert_eq!(before.lines().count(), 2);
    assert!(before.lines().all(|name| listed.contains(name)), "{before} {listed}");
}

/// S1096: a mail that `sendmail` refuses slowly has its note, too, and a mail to two has one for both.
#[test]
fn s1096_refused_late() {
    let bed = Bed::new();
    let program = bed.path("sendmail");
    write_script(&program, "#!/bin/sh\nsleep 1\necho 'not today' >&2\nexit 69\n");
    let place = Place::new(&bed, &format!("sendmail = \"{}\"\n", program.display()));
    let m = bed.mount("anna");
    m.ok("printf 'To: eve@x.example, bob@localhost, dan@x.example\\n\\nhello\\n' > outbox/x");
    soon("it is refused", || m.sh("grep -c '\trefused\t' sent.txt").stdout.trim() == "2");
    assert_eq!(place.names("bob/new").len(), 1, "who can get it has it");
    assert!(m.sh("grep bob@localhost sent.txt").stdout.contains("\tdelivered\t"));
    let note = m.ok("cat sent/*/*.warning");
    assert!(note.starts_with("dan@x.example, eve@x.example does not get it, because "), "{note}");
    assert!(m.cat("status.txt").contains("not today"), "{}", m.cat("status.txt"));
}

/// Makes a bed in which mail to other machines goes to this script, and mounts it for anna.
fn with_sendmail(script: &str) -> (Bed, crate::common::Mount) {
    let bed = Bed::new();
    let program = bed.path("sendmail");
    write_script(&program, &format!("#!/bin/sh\n{script}\n"));
    Place::new(&bed, &format!("sendmail = \"{}\"\n", program.display()));
    let m = bed.mount("anna");
    (bed, m)
}

/// S1322: a `sendmail` that a signal ended has refused nothing, and is run again.
#[test]
fn s1322_a_killed_sendmail() {
    let (bed, m) = with_sendmail("echo run >>$0.log\n[ $(wc -l <$0.log) -gt 1 ] || kill -9 $$");
    m.ok("printf 'To: eve@x.example\\n\\nhello\\n' > outbox/x");
    soon("it goes", || m.sh("grep eve@x.example sent.txt").stdout.contains("\tdelivered\t"));
    assert_eq!(fs::read_to_string(bed.path("sendmail.log")).unwrap(), "run\nrun\n");
}

/// S1323: `sendmail` reads a file, which has the whole mail before the program starts.
#[test]
fn s1323_sendmail_reads_a_file() {
    let script = "[ -f /dev/stdin ] || exit 67\ncat >$0.new && mv $0.new $0.mail";
    let (bed, m) = with_sendmail(script);
    m.ok("printf 'To: eve@x.example\\n\\nhello\\n' > outbox/x");
    let mail = bed.path("sendmail.mail");
    soon("it goes", || mail.exists());
    assert!(fs::read_to_string(mail).unwrap().ends_with("\n\nhello\n"));
}

/// S1324: a refused mail that also went to me has its note.
#[test]
fn s1324_a_refused_mail_to_me() {
    let (_bed, m) = with_sendmail("echo 'no such user' >&2; exit 67");
    m.ok("printf 'To: anna@localhost, eve@x.example\\n\\nhello\\n' > outbox/x");
    soon("it has its note", || m.sh("cat sent/*/*.warning").stdout.contains("no such user"));
    assert_eq!(texts(&m, "inbox"), ["hello"]);
}

/// S1352: an address that is not ASCII stands in the mail as it is, and has its receipt.
#[test]
fn s1352_addresses_that_are_not_ascii() {
    let bed = Bed::new();
    let place = Place::new(&bed, "sendmail = \"/bin/true\"\n");
    let m = bed.mount("anna");
    let all = ["zoë@x.example", "bob@localhost", "dora@domäin.example"];
    m.ok(&format!(
        "printf 'To: {}\\nCc: {}\\n\\nhello\\n' > outbox/x",
        all[..2].join(", "),
        all[2]
    ));
    soon("bob has it", || place.names("bob/new").len() == 1);
    let text = fs::read_to_string(place.at("bob/new").join(&place.names("bob/new")[0])).unwrap();
    let wanted = "\nTo: zoë@x.example,\n bob@localhost\nCc: dora@domäin.example\n";
    assert!(text.contains(wanted), "{text}");
    soon("each has a receipt", || {
        let sent = m.cat("sent.txt");
        all.iter().all(|to| sent.contains(&format!("\t{to}\tdelivered\t")))
    });
}

/// S1350: the end of a command or a mount takes the result of a slow `sendmail`, which does not get the mail again.
#[test]
fn s1350_a_slow_sendmail_at_the_end() {
    let (bed, m) = with_sendmail("echo run >>$0.log\nsleep 1\ncat >$0.new && mv $0.new $0.mail");
    let runs = || fs::read_to_string(bed.path("sendmail.log")).unwrap_or_default().lines().count();
    m.ok("printf 'To: eve@x.example\n\nhello\n' > outbox/x");
    soon("it runs", || runs() == 1);
    m.umount();
    assert!(bed.path("sendmail.mail").exists(), "the mount ended before sendmail");
    let run = |args: &[&str]| bed.msgfs_out(&[&["--me", "anna"], args].concat());
    let wait = ["send", "eve@x.example", "--wait-for", "delivered", "hello again"];
    let out = run(&wait);
    assert!(out.ok(), "{out:?}");
    for looks in [&["inbox"][..], &["status"], &["sent"]] {
        run(looks);
        assert_eq!(runs(), 2, "{looks:?}");
    }
    let sent = run(&["sent"]).stdout;
    assert_eq!(sent.matches("eve@x.example\tdelivered\t").count(), 2, "{sent}");
    let _m = bed.mount("anna");
    assert_eq!(runs(), 2);
}

/// S1174: who has a mail here does not get it again while `sendmail` says to try later, whatever he did with it, also
/// after a remount.
#[test]
fn s1174_delivered_once_while_sendmail_is_retried() {
    let bed = Bed::new();
    let (program, log, open) = (bed.path("sendmail"), bed.path("log"), bed.path("open"));
    let (log_path, open_path) = (quote(&log), quote(&open));
    let text = format!("#!/bin/sh\necho >>{log_path}\n[ -e {open_path} ] || exit 75\n");
    write_script(&program, &text);
    let place = Place::new(&bed, &format!("sendmail = \"{}\"\n", program.display()));
    let calls = || fs::read_to_string(&log).map_or(0, |text| text.lines().count());
    let m = bed.mount("anna");
    m.ok("printf 'To: bob@localhost, eve@x.example\\n\\nhello\\n' > outbox/x");
    let line = |m: &crate::common::Mount| m.sh("grep eve@x.example sent.txt").stdout;
    soon("it waits", || line(&m).contains("\twaiting\t") && calls() > 0);
    let name = place.names("bob/new").remove(0);
    fs::remove_file(place.at("bob/new").join(name)).unwrap();
    let before = calls();
    soon("it is tried again", || calls() > before + 1);
    drop(m);
    fs::write(&open, "").unwrap();
    let m = bed.mount("anna");
    soon("it goes", || line(&m).contains("\tdelivered\t"));
    assert!(place.names("bob/new").is_empty() && place.names("bob/cur").is_empty());
}

/// S808: what cannot go is refused at once, with the reason.
#[test]
fn s808_refused() {
    let (bed, place, m) = with("", |_| {});
    let refused = |m: &crate::common::Mount, to: &str, errno: &str, why: &str| {
        let out = m.sh(&format!("printf 'To: {to}\\n\\nx\\n' | cat > outbox/x"));
        assert!(!out.ok() && out.stderr.contains(errno), "{to}: {out:?}");
        let note = m.cat("outbox/x.error");
        assert!(note.contains(why), "{note}");
        m.ok("rm outbox/x");
    };
    refused(&m, "eve@x.example", "No route to host", "no line sendmail = ");
    drop(m);
    fs::rename(place.at("bob"), place.at("real")).unwrap();
    std::os::unix::fs::symlink(place.at("real"), place.at("bob")).unwrap();
    let m = bed.mount("anna");
    refused(&m, "bob@localhost", "Operation not permitted", "symbolic link");
    drop(m);
    bed.config(&format!(
        "[[store]]\nkind = \"maildir\"\ndir = {:?}\n[store.local]\n\"bob@localhost\" = \"/x\"\n",
        place.at("anna").to_str().unwrap()
    ));
    let m = bed.mount("anna");
    for to in ["bob@localhost", "eve@x.example"] {
        refused(&m, to, "Invalid argument", "me = \"NAME@HOST\"");
    }
}

/// S809: kills of msgfs lose and double no local mail, while the recipient's program moves it.
#[test]
fn s809_killed() {
    let bed = Bed::new();
    let place = Place::new(&bed, "");
    let mut accepted = Vec::new();
    for round in 0..5 {
        let mut mover = bed.command("bash");
        mover.args(["-c", "while :; do for f in new/*; do [ -e \"$f\" ] && mv -n \"$f\" \"cur/${f#new/}:2,S\"; done; sleep 0.01; done"]);
        mover.current_dir(place.at("bob"));
        let mover = crate::common::proc::Running::start(mover, None).unwrap();
        accepted.extend(bed.killed_while_sending("anna", "bob@localhost", round));
        drop(mover);
    }
    let _m = bed.mount("anna");
    let texts = |folders: &[&str]| {
        let mut all: Vec<String> = Vec::new();
        for folder in folders {
            for name in place.names(folder) {
                let text = fs::read_to_string(place.at(folder).join(name)).unwrap();
                all.push(text.split_once("\n\n").unwrap().1.trim_end().to_owned());
            }
        }
        all.sort();
        all
    };
    soon("both sides agree", || texts(&["anna/.Sent/cur"]) == texts(&["bob/new", "bob/cur"]));
    let got = texts(&["bob/new", "bob/cur"]);
    let mut once = got.clone();
    once.dedup();
    assert_eq!(once.len(), got.len(), "doubled");
    assert!(!accepted.is_empty());
    for text in &accepted {
        assert!(got.binary_search(text).is_ok(), "{text} was accepted and is lost");
    }
}
