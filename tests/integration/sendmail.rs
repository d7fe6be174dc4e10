//! `msgfs sendmail`, and mail programs that send by it.

use std::fs;
use std::path::PathBuf;

use serde_json::{Map, Value};

use crate::amq;
use crate::common::amp;
use crate::common::proc::Out;
use crate::common::samp::{self, T0, log, member, only, read_log};
use crate::common::{Bed, binary, run, soon, write_script};

/// Runs `msgfs sendmail ARGS` as bar.
fn sendmail(bed: &Bed, args: &[&str], mail: &str) -> Out {
    sendmail_bytes(bed, args, mail.as_bytes())
}

fn sendmail_bytes(bed: &Bed, args: &[&str], mail: &[u8]) -> Out {
    let mut c = bed.msgfs(["sendmail", "--me", "bar"]);
    c.args(args);
    run(c, Some(mail))
}

/// Runs [`sendmail`], which must send.
#[track_caller]
fn sends(bed: &Bed, args: &[&str], mail: &str) {
    let out = sendmail(bed, args, mail);
    assert!(out.ok() && out.stdout.is_empty() && out.stderr.is_empty(), "{out:?}");
}

/// Runs [`sendmail`], which must end with this code and must send and keep nothing. Returns what it printed.
#[track_caller]
fn refuses(bed: &Bed, args: &[&str], mail: &str, code: i32) -> String {
    let before = fs::read(log(&bed.store, "bar")).ok();
    let out = sendmail(bed, args, mail);
    assert_eq!(out.code(), Some(code), "{out:?}");
    assert_eq!(fs::read(log(&bed.store, "bar")).ok(), before, "{out:?}");
    let mut c = bed.msgfs(["ls", "outbox", "--me", "bar"]);
    c.env("RUST_LOG", "off");
    assert_eq!(run(c, None).stdout, "", "nothing is left: {out:?}");
    let left = fs::read_dir(bed.path("cache/msgfs/bar")).into_iter().flatten();
    let left: Vec<_> = left.map(|e| e.unwrap().file_name()).collect();
    assert!(!left.iter().any(|n| n.to_string_lossy().starts_with("sendmail")), "{left:?}");
    out.stderr
}

/// Returns the records that bar has written to SAMP, once there are this many.
#[track_caller]
fn sent(bed: &Bed, many: usize) -> Vec<Map<String, Value>> {
    soon("it is sent", || read_log(&bed.store, "bar").len() >= many);
    let all = read_log(&bed.store, "bar");
    assert_eq!(all.len(), many, "{all:#?}");
    all
}

/// Writes an executable script into the bed.
fn script(bed: &Bed, name: &str, text: &str) -> PathBuf {
    let path = bed.path(name);
    write_script(&path, text);
    path
}

/// Returns the command with which mail programs are told to send.
fn by() -> String {
    format!("{} sendmail --me bar", binary().display())
}

/// S535: a mail is sent with and without a mount. Header, text and charset arrive.
#[test]
fn s535_a_mail_is_sent() {
    let mail = "From: Somebody Else <else@x.example>\nTo: Bob <bob>\nMIME-Version: 1.0\n\
                Subject: =?iso-8859-1?q?Gr=FC=DFe?=\nContent-Type: text/plain; charset=iso-8859-1\n\
                Content-Transfer-Encoding: quoted-printable\n\nGr=FC=DFe,\nbar\n";
    for mounted in [false, true] {
        let bed = Bed::new();
        let mount = mounted.then(|| bed.mount("bar"));
        sends(&bed, &["-t"], mail);
        let record = sent(&bed, 1).remove(0);
        assert_eq!(member(&record, "to"), "bob");
        assert_eq!(member(&record, "subject"), "Gr\u{fc}\u{df}e");
        assert_eq!(member(&record, "body"), "Gr\u{fc}\u{df}e,\nbar");
        assert_eq!(member(&record, "from"), "bar");
        assert!(record.contains_key("sig"), "{record:?}");
        drop(mount);
    }
}

/// S535: a mail of only HTML becomes text. If a mail has both, its text is sent. A mail whose subject says
/// everything is sent.
#[test]
fn s535_which_text() {
    let bed = Bed::new();
    let html = "Content-Type: text/html; charset=utf-8\n\n<p>all <b>green</b></p>\n";
    sends(&bed, &["bob"], &format!("To: bob\n{html}"));
    let both = format!(
        "Content-Type: multipart/alternative; boundary=b\n\n--b\n\nplain\n--b\n{html}--b--\n"
    );
    sends(&bed, &["bob"], &format!("To: bob\n{both}"));
    sends(&bed, &["bob"], "To: bob\nSubject: nightly build done\n\n");
    sends(&bed, &["bob"], "no header at all: is text\n\nmore\n");
    let bodies: Vec<String> =
        sent(&bed, 4).iter().map(|r| member(r, "body").trim().to_owned()).collect();
    assert_eq!(
        bodies,
        ["all green", "plain", "nightly build done", "no header at all: is text\n\nmore"]
    );
    let why = refuses(&bed, &["bob"], "To: bob\n\n", 65);
    assert!(why.contains("empty"), "{why}");
}

/// S535: a dot ends the mail only if nothing follows it, and never with -i. Options of other programs change
/// nothing. A link named `sendmail` does the same as the command.
#[test]
fn s535_command_line() {
    let bed = Bed::new();
    sends(&bed, &["bob"], "To: bob\n\nbefore\n.\n");
    sends(&bed, &["bob"], "To: bob\n\nbefore\n.\nafter\n");
    for args in [&["-i"][..], &["-oi"], &["-ti"]] {
        sends(&bed, &[args, &["--", "bob"]].concat(), "To: bob\n\nbefore\n.\nafter\n");
    }
    let many =
        ["-bm", "-FCronDaemon", "-f", "root@x", "-odi", "-oem", "-oi", "-N", "never", "-R", "hdrs"];
    sends(
        &bed,
        &[&many[..], &["-C/etc/mail.cf", "-V", "id", "-B8BITMIME", "-v", "-G", "bob"]].concat(),
        "To: bob\n\nx\n",
    );
    let bodies: Vec<String> = sent(&bed, 6).iter().map(|r| member(r, "body").to_owned()).collect();
    let whole = "before\n.\nafter";
    assert_eq!(bodies, ["before", whole, whole, whole, whole, "x"]);
    std::os::unix::fs::symlink(binary(), bed.path("sendmail")).unwrap();
    let mut c = bed.command(bed.path("sendmail"));
    c.args(["-oi", "bob"]).env("MSGFS_ME", "bar");
    let out = run(c, Some(b"To: bob\n\nby a link\n"));
    assert!(out.ok(), "{out:?}");
    assert_eq!(member(&sent(&bed, 7)[6], "body"), "by a link");
    for args in [&["-bs"][..], &["-q"], &["--frobnicate"], &["-t"], &[]] {
        refuses(&bed, args, "Subject: x\n\nx\n", 64);
    }
}

/// S536, S543: NAME@STORE names the store, in mails and in every draft. An address with another domain goes to the
/// store that knows it.
#[test]
fn s536_addresses_name_stores() {
    let bed = Bed::new();
    let queue = amq::Queue::new(&bed, &["bar", "bob"]);
    bed.config(&format!(
        "[[store]]\nname = \"work\"\nkind = \"samp\"\n\n{}\n{}",
        queue.store(),
        amp::Home::new(&bed).store()
    ));
    samp::append(&bed.store, "bob", "bar", "t", "hello", T0);
    let why = refuses(&bed, &["bob"], "To: bob\n\nx\n", 67);
    assert!(why.contains("several stores could carry"), "{why}");
    sends(&bed, &["-t"], "To: bob@work, bob@amq\nCc: alice@acme.aimaestro.local\n\nto three\n");
    let record = sent(&bed, 1).remove(0);
    assert_eq!((member(&record, "to"), member(&record, "body")), ("bob", "to three"));
    let new = || fs::read_dir(queue.root.join("agents/bob/inbox/new")).unwrap().count();
    soon("it is in the queue", || new() == 1);
    let host = rustix::system::uname().nodename().to_str().unwrap().to_owned();
    sends(&bed, &[&format!("alice@{host}")], "To: x\n\na local user\n");
    let m = bed.mount("bar");
    m.ok("echo one more > outbox/bob@amq");
    soon("it is in the queue", || new() == 2);
    m.ok("printf 'To: bob@work\\n\\nmore\\n' > outbox/x");
    assert_eq!(member(&sent(&bed, 2)[1], "to"), "bob");
    assert!(!m.sh("echo x > 'outbox/no such@work'").ok());
}

/// S537, S543: a recipient that is in the envelope and not in the header gets a message of its own. The others are
/// not told of it.
#[test]
fn s537_blind_copies() {
    let bed = Bed::new();
    let mail = "To: bob\nCc: carol\nBcc: eve\nSubject: plan\n\ntext\n";
    sends(&bed, &["-t"], mail);
    let all = sent(&bed, 3);
    let of = |to: &str| all.iter().find(|r| member(r, "to") == to).unwrap();
    assert_eq!(of("bob")["rcpt"], serde_json::json!(["bob", "carol"]));
    assert!(!of("eve").contains_key("rcpt"), "{all:#?}");
    assert_ne!(member(of("eve"), "thread"), member(of("bob"), "thread"), "another conversation");
    // Only the envelope counts.
    sends(&bed, &["--", "dave"], mail);
    assert_eq!(member(&sent(&bed, 4)[3], "to"), "dave");
    let m = bed.mount("bar");
    m.ok("printf 'To: bob\\nBcc: eve, frank\\n\\nas a draft\\n' > outbox/x");
    let tos: Vec<String> = sent(&bed, 7)[4..].iter().map(|r| member(r, "to").to_owned()).collect();
    assert_eq!(tos, ["bob", "eve", "frank"]);
    // An answer, a named thread and a mark in the text lead nobody into the conversation of the others.
    let asked = samp::append(&bed.store, "bob", "bar", "t", "a question", T0);
    for head in [
        format!("In-Reply-To: <{}@samp>\n\n", asked.id),
        "Thread: t\n\n".into(),
        "\n[thread:t] ".into(),
    ] {
        let count = read_log(&bed.store, "bar").len();
        sends(&bed, &["-t"], &format!("To: bob\nBcc: eve\n{head}blind\n"));
        let all = sent(&bed, count + 2);
        let thread = |to: &str| {
            let one = all[count..].iter().find(|r| member(r, "to") == to).unwrap();
            assert!(to == "bob" || !one.contains_key("re"), "{one:?}");
            member(one, "thread").to_owned()
        };
        assert!(thread("eve") != "t", "{head}");
    }
}

/// S538: a mail goes to all recipients or to none. The exit code says why. Nothing is kept.
#[test]
fn s538_all_or_none() {
    for mounted in [false, true] {
        let bed = Bed::new();
        let tasks = bed.path("ssot");
        bed.config(&format!(
            "unknown_recipient = \"refuse\"\n[[store]]\nkind = \"samp\"\n\n\
             [[store]]\nkind = \"ssot\"\nme = \"coordinator\"\ndir = {:?}\n",
            tasks.to_str().unwrap()
        ));
        samp::append(&bed.store, "bob", "bar", "t", "hello", T0);
        let mount = mounted.then(|| bed.mount("bar"));
        let mail = "To: bob, bad alias, bob@nowhere.example\nSubject: s\n\nx\n";
        let why = refuses(&bed, &["-t"], mail, 67);
        assert!(why.contains("bad alias"), "{why}");
        for (args, code) in [
            (&["bob", "no;name"][..], 67),
            (&["bob", "nobody"], 67),
            (&["bob", "--", "nobody@samp"], 68),
            (&["bob", "executor@ssot"], 69),
        ] {
            refuses(&bed, args, "To: bob\n\nx\n", code);
        }
        assert!(!tasks.join("messages").exists());
        sends(&bed, &["bob"], "To: bob\n\nx\n");
        sent(&bed, 1);
        drop(mount);
        fs::write(bed.path("config/msgfs/config.toml"), "nonsense = 1\n").unwrap();
        let out = sendmail(&bed, &["bob"], "To: bob\n\nx\n");
        assert_eq!(out.code(), Some(78), "{out:?}");
    }
}

/// S538: the exit code is 65 if the mail itself is wrong, with a mount and without. An empty mail is wrong in any
/// form.
#[test]
fn s538_an_empty_mail() {
    for mounted in [false, true] {
        let bed = Bed::new();
        let mount = mounted.then(|| bed.mount("bar"));
        for text in [
            "",
            "\n",
            "\n\n \n",
            "To: bob\n\n",
            "\0\0",
            "To: bob\n\n\0\n",
            "To: bob\nContent-Type: text/html\n\n<p></p>\n",
        ] {
            refuses(&bed, &["bob"], text, 65);
        }
        drop(mount);
    }
}

/// S539: In-Reply-To, or the last of References, names a Message-ID. The mail answers that message, in its thread
/// and its store.
#[test]
fn s539_an_answer() {
    let bed = Bed::new();
    let queue = amq::Queue::new(&bed, &["bar", "foo"]);
    bed.config(&format!("[[store]]\nkind = \"samp\"\n\n{}", queue.store()));
    let asked = samp::append(&bed.store, "foo", "bar", "the plan", "question", T0);
    let id = format!("<{}@samp>", asked.id);
    for head in [format!("In-Reply-To: {id}"), format!("References: <a@b.example> {id}")] {
        sends(&bed, &["foo"], &format!("To: foo\n{head}\nSubject: Re: the plan\n\nanswer\n"));
    }
    for record in sent(&bed, 2) {
        assert_eq!(member(&record, "thread"), "the plan");
        assert_eq!(member(&record, "re"), asked.id);
    }
    // The mail is not from us, and the ids only look like ours.
    let none = ["1234@x.example", "0123456789abcdef@samp", "msg_1_a@amp", "@samp", "x@", "m1@amq"];
    for (n, id) in none.into_iter().enumerate() {
        sends(&bed, &["foo@samp"], &format!("To: foo\nIn-Reply-To: <{id}>\n\nabout {n}\n"));
        let record = sent(&bed, 3 + n).pop().unwrap();
        assert!(
            !record.contains_key("re") && member(&record, "thread") != "the plan",
            "{record:?}"
        );
    }
}

/// S539: a program can answer its own mail by the id that it gave the mail.
#[test]
fn s539_an_answer_to_my_own_mail() {
    for mounted in [false, true] {
        // A program whose From is bar@samp gives ids with this domain.
        for place in ["host", "samp"] {
            let bed = Bed::new();
            let mount = mounted.then(|| bed.mount("bar"));
            let id = |n: u8| format!("<m.{n}@{place}>");
            let first = format!("Message-ID: {}\nSubject: [PATCH 0/1] x\n\ncover\n", id(1));
            sends(&bed, &["bob"], &format!("To: bob\n{first}"));
            let next = format!("Message-ID: {}\nIn-Reply-To: {}\n\npatch\n", id(2), id(1));
            sends(&bed, &["bob"], &format!("To: bob\nSubject: [PATCH 1/1] y\n{next}"));
            let all = sent(&bed, 2);
            assert_eq!(member(&all[1], "re"), member(&all[0], "id"));
            assert_eq!(member(&all[1], "thread"), member(&all[0], "thread"));
            drop(mount);
        }
    }
}

/// S537, S539: an answer to my own mail stays out of the conversation of its blind copy.
#[test]
fn s537_an_answer_and_the_blind_copy() {
    let bed = Bed::new();
    sends(&bed, &["-t"], "To: carol\nBcc: erin\nSubject: plan\nMessage-ID: <m1@x>\n\nsecret\n");
    sends(&bed, &["-t"], "To: carol\nIn-Reply-To: <m1@x>\nSubject: Re: plan\n\nfollow-up\n");
    let all = sent(&bed, 3);
    let to = |name: &str| all.iter().filter(|r| member(r, "to") == name).collect::<Vec<_>>();
    let (carol, erin) = (to("carol"), to("erin"));
    assert_eq!((carol.len(), erin.len()), (2, 1));
    assert_eq!(member(carol[1], "re"), member(carol[0], "id"));
    assert_eq!(member(carol[1], "thread"), member(carol[0], "thread"));
    assert_ne!(member(carol[1], "thread"), member(erin[0], "thread"));
}

/// S565: a text that broke off is sent as the text, also where no file could go.
#[test]
fn s565_a_text_that_broke_off() {
    let bed = Bed::new();
    let head = "To: bob\nMIME-Version: 1.0\nContent-Type: multipart/mixed";
    let part = "Content-Type: text/plain\n\nhalf of it";
    sends(&bed, &["bob"], &format!("{head}; boundary=b\n\n--b\n{part}\n"));
    sends(&bed, &["bob"], &format!("{head}\n\n--b\n{part}\n"));
    let all = sent(&bed, 2);
    assert_eq!(member(&all[0], "body"), "half of it");
    assert!(member(&all[1], "body").ends_with("half of it"), "{all:?}");
}

/// S563: bytes without a charset are UTF-8, else Windows-1252, in texts and headers. Bytes of attachments stay.
#[test]
fn s563_bytes_without_a_charset() {
    let bed = Bed::new();
    let home = amp::Home::new(&bed);
    bed.config(&format!("[[store]]\nkind = \"samp\"\n\n{}", home.store()));
    let old = b"Gr\xfc\xdfe \x80\n";
    let kinds = [
        "",
        "Content-Type: text/plain\nContent-Transfer-Encoding: 8bit\n",
        "Content-Type: text/plain; charset=us-ascii\n",
        "Content-Type: text/plain; charset=UTF-8\n",
        "Content-Type: text/plain; charset=unknown-8bit\n",
    ];
    for kind in kinds {
        for text in [&old[..], "Gr\u{fc}\u{df}e \u{20ac}\n".as_bytes()] {
            let head = format!("To: bob\n{kind}Subject: ");
            let mail = [head.as_bytes(), text, b"\n", text].concat();
            let out = sendmail_bytes(&bed, &["bob@samp"], &mail);
            assert!(out.ok(), "{out:?}");
            let record = read_log(&bed.store, "bar").pop().unwrap();
            for name in ["subject", "body"] {
                assert_eq!(member(&record, name), "Gr\u{fc}\u{df}e \u{20ac}", "{kind}");
            }
        }
    }
    // These words were cut inside a character, or their charset is wrong.
    let split = "=?utf-8?q?Gr=C3?=\n =?utf-8?q?=BC=C3=9Fe_=E2=82=AC?=";
    for subject in [split, "=?x-odd?b?R3L832UggA==?=", "=?utf-8?q?Gr=FC=DFe_=80?="] {
        sends(&bed, &["bob@samp"], &format!("\u{feff}To: bob\nSubject: {subject}\n\n{subject}\n"));
        let record = read_log(&bed.store, "bar").pop().unwrap();
        assert_eq!(member(&record, "subject"), "Gr\u{fc}\u{df}e \u{20ac}", "{subject}");
    }
    let part = |head: &str, name: &[u8]| {
        let head = format!("\n--b\nContent-Type: text/plain{head}\n");
        let file = b"Content-Disposition: attachment; filename=\"";
        [head.as_bytes(), file, name, b"\"\n\n", &old[..]].concat()
    };
    let mail = [
        b"To: x\nMIME-Version: 1.0\nContent-Type: multipart/mixed; boundary=b\n\n--b\n\nsee"
            .to_vec(),
        part("", b"a.txt"),
        part("; charset=iso-8859-2", b"\xfc.txt"),
        b"\n--b--\n".to_vec(),
    ];
    let out = sendmail_bytes(&bed, &["alice@acme.aimaestro.local"], &mail.concat());
    assert!(out.ok(), "{out:?}");
    let m = bed.mount("bar");
    let files = m.ok("for f in sent/*/*.d/*.txt; do od -An -tx1 \"$f\" | tr -d ' '; done");
    assert_eq!(files, "4772fcdf6520800a\n4772fcdf6520800a\n");
}

/// S540: a mail that is sent again with its Message-ID comes once to each recipient. Only recipients that did not
/// get it get it.
#[test]
fn s540_sent_again() {
    let bed = Bed::new();
    let mail = "To: bob\nMessage-ID: <once@host>\nSubject: s\n\ntext\n";
    sends(&bed, &["bob"], mail);
    sends(&bed, &["bob"], mail);
    sends(&bed, &["bob", "carol"], mail);
    let all = sent(&bed, 2);
    assert_eq!((member(&all[0], "to"), member(&all[1], "to")), ("bob", "carol"));
    let why = refuses(&bed, &["bob"], &mail.replace("text", "another text"), 65);
    assert!(why.contains("another text"), "{why}");
}

/// Returns a mail with an attachment of five bytes.
fn with_file(to: &str, name: &str) -> String {
    format!(
        "To: {to}\nSubject: files\nMIME-Version: 1.0\nContent-Type: multipart/mixed; boundary=b\n\n--b\n\n\
         see there\n--b\nContent-Type: application/pdf; name=\"plan.pdf\"\n\
         Content-Transfer-Encoding: base64\nContent-Disposition: attachment; filename=\"{name}\"\n\n\
         AAECAwQ=\n--b--\n"
    )
}

/// S456: a name that is too long keeps its ending.
#[test]
fn s456_long_names_keep_their_ending() {
    let bed = Bed::new();
    bed.config(&amp::Home::new(&bed).store());
    let long = format!("{}.pdf", "x".repeat(300));
    sends(&bed, &["-t"], &with_file("alice@acme.aimaestro.local", &long));
    let m = bed.mount("bar");
    let name = m.ok("basename sent/*/*.d/*.pdf");
    assert_eq!(name.trim(), format!("{}.pdf", "x".repeat(146)));
}

/// S541: attachments are sent if the store carries them. If the store of one recipient does not carry them, nothing is
/// sent, and the error says why.
#[test]
fn s541_attachments() {
    let mail = |to: &str| with_file(to, "../pl an.pdf");
    for mounted in [false, true] {
        let bed = Bed::new();
        let home = amp::Home::new(&bed);
        bed.config(&format!("[[store]]\nkind = \"samp\"\n\n{}", home.store()));
        let mount = mounted.then(|| bed.mount("bar"));
        let data = format!("{}\n", "A".repeat(76)).repeat(14_000);
        let large = mail("bob@samp, alice@acme.aimaestro.local").replace("AAECAwQ=", &data);
        let why = refuses(&bed, &["-t"], &large, 65);
        assert!(why.contains("a SAMP record with files has at most 1047552 bytes"), "{why}");
        sends(&bed, &["-t"], &mail("alice@acme.aimaestro.local"));
        drop(mount);
        let m = bed.mount("bar");
        assert_eq!(m.ok("cat sent/*/*.d/* | od -An -tx1").trim(), "00 01 02 03 04");
        assert_eq!(m.ok("basename sent/*/*.d/*.pdf | tr ' ' _").trim(), "pl_an.pdf");
    }
}

/// S542: mutt and neomutt read the message files, send and answer.
#[test]
fn s542_mutt() {
    for mutt in ["mutt", "neomutt"] {
        let bed = Bed::new();
        let home = amp::Home::new(&bed);
        bed.config(&format!("[[store]]\nkind = \"samp\"\n\n{}", home.store()));
        let asked = samp::append(&bed.store, "foo", "bar", "the plan", "question", T0);
        let m = bed.mount("bar");
        let rc = bed.path("muttrc");
        let by = by();
        fs::write(&rc, format!("set sendmail=\"{by}\"\nset copy=no\nset from=bar\n")).unwrap();
        let run_mutt = |args: &str, text: &str| {
            bed.sh(&format!("printf '%b' '{text}' | {mutt} -n -F {} {args}", rc.display()))
        };
        let out = run_mutt("-s 'Gr\u{fc}\u{df}e' -c carol -- bob", "one\\n.\\ntwo\\n");
        assert!(out.ok(), "{out:?}");
        let all = sent(&bed, 2);
        assert_eq!(member(&all[0], "subject"), "Gr\u{fc}\u{df}e");
        assert_eq!(member(&all[0], "body"), "one\n.\ntwo");
        assert_eq!(all[0]["rcpt"], serde_json::json!(["bob", "carol"]));
        let out = run_mutt("-s file -a /etc/hostname -- alice@acme.aimaestro.local", "see\\n");
        assert!(out.ok(), "{out:?}");
        let hostname = fs::read_to_string("/etc/hostname").unwrap();
        soon("the file is there", || m.sh("cat sent/*/*.d/hostname").stdout == hostname);
        let out = run_mutt("-s file -a /etc/hostname -- bob@samp", "see\\n");
        assert!(out.ok(), "{out:?}");
        assert_eq!(sent(&bed, 3)[2]["files"][0]["name"], "hostname");
        // The answer as mutt makes it from a folder with the message file.
        let file = m.path(asked.archived(0));
        let answer = "set editor=true\nset fast_reply\nset include=no\nset abort_unmodified=no\n\
             set abort_noattach=no\nset mbox_type=Maildir\nset confirmappend=no\nset recall=no\nset autoedit\n\
             set send_charset=us-ascii:utf-8\nset use_domain=yes\nset folder=/\n";
        let maildir = bed.path(format!("maildir-{mutt}"));
        for sub in ["new", "cur", "tmp"] {
            fs::create_dir_all(maildir.join(sub)).unwrap();
        }
        fs::copy(&file, maildir.join("cur/1.m:2,S")).unwrap();
        let with = format!("{}{answer}", fs::read_to_string(&rc).unwrap());
        fs::write(bed.path("answer-rc"), with + "push <reply><send-message><exit>\n").unwrap();
        let out = bed.sh(&format!(
            "TERM=xterm script -qec '{mutt} -n -F {} -f {}' /dev/null </dev/null",
            bed.path("answer-rc").display(),
            maildir.display()
        ));
        let all = read_log(&bed.store, "bar");
        let last = all.last().unwrap();
        assert_eq!(all.len(), 4, "{out:?}");
        assert_eq!(member(last, "re"), asked.id, "{last:?}");
        assert_eq!((member(last, "to"), member(last, "thread")), ("foo", "the plan"));
    }
}

/// S542: mblaze answers through msgfs.
#[test]
fn s542_mblaze() {
    let bed = Bed::new();
    let asked = samp::append(&bed.store, "foo", "bar", "the plan", "question", T0);
    let m = bed.mount("bar");
    fs::create_dir_all(bed.path("home/.mblaze")).unwrap();
    let profile = format!("Local-Mailbox: bar <bar>\nSendmail: {}\nSendmail-Args: -t\n", by());
    fs::write(bed.path("home/.mblaze/profile"), profile).unwrap();
    let editor = script(&bed, "editor", "#!/bin/sh\necho 'the answer' >> \"$1\"\n");
    let file = m.path(asked.archived(0));
    let out = bed.sh(&format!(
        "set -e; export EDITOR={}; echo {} | mseq -S; script -qec 'mrep -send 1' /dev/null </dev/null",
        editor.display(),
        file.display()
    ));
    assert!(out.ok(), "{out:?}");
    let record = sent(&bed, 1).remove(0);
    assert_eq!(member(&record, "re"), asked.id, "{out:?}");
    assert_eq!(member(&record, "thread"), "the plan");
    assert!(member(&record, "body").contains("question"), "{record:?}");
    let out = bed.sh("mcom -send bob -subject hello </dev/null");
    assert_eq!(member(&sent(&bed, 2)[1], "to"), "bob", "{out:?}");
}

/// S542: git send-email sends a series in one thread, and its patches apply.
#[test]
fn s542_git() {
    let bed = Bed::new();
    let m = bed.mount("bar");
    let git = format!(
        "set -e; cd {}; git init -q repo; cd repo; git config user.name 'A U Thor'\n\
         git config user.email author@x.example; git config commit.gpgsign false\n\
         git config sendemail.sendmailCmd '{}'; git config sendemail.confirm never; git config sendemail.suppresscc all; git config sendemail.from 'bar <bar@samp.msgfs>'\n\
         echo one > f; git add f; git commit -qm start\n\
         printf 'Gr\u{fc}\u{df}e\\n.\\nthree\\n' > f; git commit -qam 'Greet'\n\
         echo four >> f; git commit -qam 'Count'\n\
         git send-email -q --to=bob@samp.msgfs --to=carol -2 --cover-letter --annotate\n",
        bed.path("cwd").display(),
        by()
    );
    let editor = script(
        &bed,
        "editor",
        "#!/bin/sh\nsed -i 's/\\*\\*\\* .* HERE \\*\\*\\*/two steps/' \"$1\"\n",
    );
    let out = bed.sh(&format!("export GIT_EDITOR={}\n{git}", editor.display()));
    assert!(out.ok(), "{out:?}");
    let all = sent(&bed, 6);
    let threads: std::collections::BTreeSet<&str> =
        all.iter().map(|r| member(r, "thread")).collect();
    assert_eq!(threads.len(), 1, "{threads:?}");
    let series = m.ok("cat threads/*/*.txt | grep -c '^Subject: \\[PATCH'");
    assert_eq!(series.trim(), "3", "each once");
    let out = bed.sh(&format!(
        "set -e; cd {0}; git init -q other; cd other; git config user.name B; git config user.email b@x\n\
         echo one > f; git add f; git commit -qm start\n\
         for f in $(grep -lE '^Subject: .PATCH [12]/2' {1}/threads/*/*.txt | sort); do git am -q \"$f\"; done\n\
         git log --format=%s%an; cat f",
        bed.path("cwd").display(),
        m.dir.display()
    ));
    assert_eq!(
        out.stdout, "CountA U Thor\nGreetA U Thor\nstartB\nGr\u{fc}\u{df}e\n.\nthree\nfour\n",
        "{out:?}"
    );
    // Another series of the same day and the same subjects is another thread.
    let again = format!(
        "export GIT_EDITOR={}; cd {}/repo; git send-email -q --to=bob@samp.msgfs -2 --cover-letter --annotate",
        editor.display(),
        bed.path("cwd").display()
    );
    let out = bed.sh(&again);
    assert!(out.ok(), "{out:?}");
    let both = sent(&bed, 9);
    let second: std::collections::BTreeSet<&str> =
        both[6..].iter().map(|r| member(r, "thread")).collect();
    assert_eq!(second.len(), 1, "{second:?}");
    assert!(second.is_disjoint(&threads), "{second:?}");
}

/// S542: mail arrives as cron sends it, and as `mail` does.
#[test]
fn s542_cron_and_mail() {
    let bed = Bed::new();
    let cron = "From: root (Cron Daemon)\nTo: root\nSubject: Cron <root@host> make\nMIME-Version: 1.0\n\
                Content-Type: text/plain; charset=UTF-8\nContent-Transfer-Encoding: 8bit\n\
                X-Cron-Env: <SHELL=/bin/sh>\n\nmake: *** Error 2\n";
    sends(&bed, &["-i", "-FCronDaemon", "-B8BITMIME", "-oem", "root"], cron);
    let record = only(&bed.store, "bar");
    assert_eq!((member(&record, "to"), member(&record, "from")), ("root", "bar"));
    assert_eq!(member(&record, "subject"), "Cron <root@host> make");
    assert_eq!(member(&record, "body"), "make: *** Error 2");
    let wrapper = script(&bed, "by", &format!("#!/bin/sh\nexec {} \"$@\"\n", by()));
    fs::write(bed.path("home/.mailrc"), format!("set sendmail={}\n", wrapper.display())).unwrap();
    let out = bed.sh("echo 'disk is full' | bsd-mailx -s alarm -b eve bob");
    assert!(out.ok(), "{out:?}");
    let all = sent(&bed, 3);
    assert_eq!(member(&all[1], "subject"), "alarm");
    assert_eq!(member(&all[1], "body"), "disk is full");
    assert_eq!((member(&all[1], "to"), member(&all[2], "to")), ("bob", "eve"));
}

/// S640: a mail that is made to stop its reader is refused with a sentence. Nothing is sent.
#[test]
fn s640_a_mail_has_a_bound() {
    let bed = Bed::new();
    let nested = "Content-Type: message/rfc822\n\n".repeat(20_000);
    let why = refuses(&bed, &["bob"], &format!("To: bob\n{nested}Subject: x\n\ny\n"), 65);
    assert!(why.contains("more than 1000 mails"), "{why}");
    let head = "To: bob\nContent-Type: multipart/mixed; boundary=b\n\n--b\n\nsee there\n";
    for (part, what) in [
        ("Content-Type: application/x-y; name=f.bin\n\nx", "10000 files"),
        ("Content-Type: text/plain\n\nx", "10002 parts"),
    ] {
        let parts = format!("--b\n{part}\n").repeat(10_000);
        let why = refuses(&bed, &["bob"], &format!("{head}{parts}--b--\n"), 65);
        assert!(why.contains(what), "{why}");
    }
    // A text that broke off and is about mails is sent as it is.
    let head =
        "To: bob\nContent-Type: multipart/mixed; boundary=b\n\n--b\nContent-Type: text/plain\n\n";
    sends(&bed, &["bob"], &format!("{head}He wrote\nContent-Type: message/rfc822\nhalf"));
    let record = only(&bed.store, "bar");
    assert_eq!(member(&record, "body"), "He wrote\nContent-Type: message/rfc822\nhalf");
}
