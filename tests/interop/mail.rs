//! The link by e-mail, against the server and the client of the reference.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};

use crate::common::shown;
use crate::common::{Bed, soon, wait_for};
use crate::machine::{Machine, answered, arrived};
use crate::peer::{self, MailServer};
use crate::proxy::{Fault, Proxy};
use crate::relay::{bodies, sent};

const PASSWORD: &str = "s3cret-of-the-mailbox";
const BAR: &str = "bar@far.example";
const ZED: &str = "zed@far.example";
const PEOPLE: &str = "amy@people.example";

fn server(at: &Bed) -> MailServer {
    peer::mail_server(at, &[BAR, ZED, PEOPLE], PASSWORD)
}

fn config(address: &str, server: &MailServer) -> Value {
    json!({"transport": "email", "log_file": "", "email": {
        "imap_server": "127.0.0.1", "imap_port": server.imap, "imap_ssl": false, "imap_folder": "INBOX",
        "smtp_server": "127.0.0.1", "smtp_port": server.smtp, "smtp_ssl": false, "smtp_starttls": false,
        "pop3_server": "127.0.0.1", "pop3_port": server.pop3, "pop3_ssl": false, "use_pop3": false,
        "username": address, "password": PASSWORD, "sync_special_folders": false}})
}

fn machine(address: &'static str, server: &MailServer) -> Machine {
    Machine::new(address, &config(address, server))
}

/// Returns the mails of an account in the folder of the server.
fn on_server(at: &Bed, address: &str) -> Vec<PathBuf> {
    inbox_at(&at.path("mail"), address)
}

fn inbox_at(mail: &Path, address: &str) -> Vec<PathBuf> {
    let folder = mail.join(address.replace('@', "_at_")).join("INBOX");
    let mut all = crate::relay::files(&folder);
    // The server makes a file before it writes into it.
    let has_content = |path: &Path| fs::metadata(path).is_ok_and(|file| file.len() > 0);
    all.retain(|path| path.extension().is_some_and(|e| e == "eml") && has_content(path));
    all.sort();
    all
}

/// S480: a message with attachments goes and comes by e-mail and is the same message on both machines, and so is the
/// answer. Nothing is deleted on the server, and the password is in no other file.
#[test]
fn s480_a_letter_goes_by_mail_and_is_answered() {
    let at = Bed::new();
    let server = server(&at);
    let (bar, zed) = (machine(BAR, &server), machine(ZED, &server));
    let (m, z) = (bar.mount(), zed.mount());
    let (file, empty) = (bar.file("d\u{e9}ta.bin", &[0u8, 9, 255, 13, 10]), bar.file("empty", b""));
    m.ok(&format!(
        "printf 'Subject: \u{e0} travers\\nAttach: {}\\nAttach: {}\\n\\n.\\nby mail\\n' | tee outbox/{ZED} > /dev/null",
        file.display(),
        empty.display()
    ));
    let theirs = arrived(&m, &z);
    assert_eq!(z.ok("cat inbox/*.d/d*.bin | od -An -tx1").trim(), "00 09 ff 0d 0a");
    assert_eq!(z.ok("cat inbox/*.d/empty | wc -c").trim(), "0");
    answered(&m, &z, &theirs, ("\u{e0} travers", ".\nby mail\n"));
    soon("everything is in sent/", || bar.count("sent") == 1 && zed.count("sent") == 1);
    assert_eq!((on_server(&at, BAR).len(), on_server(&at, ZED).len()), (1, 1));
    let status = m.cat("status.txt");
    assert!(status.contains("email: mail by smtp://127.0.0.1:"), "{status}");
    bar.tells_no(PASSWORD);
    let out = bar.bed.msgfs_out(&["--me", "bar", "doctor"]);
    assert!(!out.stdout.contains(PASSWORD) && !out.stderr.contains(PASSWORD));
}

/// S481: the reference client on the other side reads each message that went by e-mail, and its own messages arrive
/// with their attachments. A message that it has filed is not filed again.
#[test]
fn s481_the_reference_client_is_on_the_other_side_of_mail() {
    let at = Bed::new();
    let server = server(&at);
    let (bar, zed) = (machine(BAR, &server), machine(ZED, &server));
    let m = bar.mount();
    zed.reads_and_writes_as_the_reference(&bar, &m);
    soon("it comes", || !m.ls("inbox").is_empty());
    let got = zed.wrote_as_the_reference(&m);
    assert!(got.must("Signature").starts_with("valid "), "{got:?}");
    soon("the reference is told", || bar.tree.base().join(".seen_ids").exists());
    m.umount();
    peer::ok(&bar.bed, &bar.tree, &["daemon", "--once"]);
    assert_eq!(bar.count("inbox"), 1);
    let z = zed.mount();
    soon("the link has looked", || z.cat("status.txt").contains("connected since"));
    zed.hurry("email");
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(zed.count("inbox"), 1, "the reference has filed it");
}

/// S482: connections break at any command, before or after the server has got it, answers are cut, and the mount is
/// killed; every message is there once.
#[test]
fn s482_by_mail_nothing_is_lost_or_doubled() {
    let (count, on_server) = letters_through_faults(Machine::new);
    assert!(on_server > count, "some went twice: that is what this is for");
}

/// S454: with `self_copy` no message is sent twice.
#[test]
fn s454_with_copies_nothing_goes_twice() {
    let (count, on_server) = letters_through_faults(copying);
    assert_eq!(on_server, count);
}

/// Makes one machine send messages to another, which has each once at the end. Returns the number of messages and the
/// number of mails on the server.
#[track_caller]
fn letters_through_faults(sender: fn(&'static str, &Value) -> Machine) -> (usize, usize) {
    let at = Bed::new();
    let server = server(&at);
    let met = BTreeMap::<(String, bool), usize>::new();
    let mut plan = {
        let mut met = met;
        move |line: &str, number: usize, verbs: &[&str]| {
            let verb = verbs.iter().find(|verb| line.starts_with(**verb))?;
            // The server of the reference never ends if a text does not.
            if verb.starts_with('.') && line != "." {
                return None;
            }
            let is_drop = number.is_multiple_of(2) && *verb != ".";
            let count = met.entry(((*verb).to_owned(), is_drop)).or_default();
            *count += 1;
            let fault = if is_drop { Fault::Drop } else { Fault::Swallow };
            (*count <= if *verb == "." { 4 } else { 1 }).then_some(fault)
        }
    };
    let mut again = plan.clone();
    let smtp = Proxy::before_lines(server.smtp, move |line, number| {
        plan(line, number, &["EHLO", "AUTH", "MAIL", "RCPT", "."])
    });
    let imap = Proxy::before_lines(server.imap, move |line, number| {
        let line = line.split_once(' ').map_or(line, |(_, rest)| rest);
        again(line, number, &["LOGIN", "EXAMINE", "UID SEARCH", "UID FETCH"])
    });
    let mut one = config(BAR, &server);
    one["email"]["smtp_port"] = json!(smtp.port);
    let mut other = config(ZED, &server);
    other["email"]["imap_port"] = json!(imap.port);
    let (bar, zed) = (sender(BAR, &one), Machine::new(ZED, &other));
    let file = bar.file("data.bin", &vec![7u8; 70_000]);
    let count = 15;
    for round in 0..3 {
        let (m, z) = (bar.mount(), zed.mount());
        m.ok(&format!(
            "for i in $(seq {} {}); do printf 'Attach: {}\\n\\nletter '$i'\\n' | tee outbox/{ZED} > /dev/null; done",
            round * count / 3,
            (round + 1) * count / 3 - 1,
            file.display()
        ));
        std::thread::sleep(Duration::from_millis(100 + 170 * round as u64));
        m.kill9();
        std::thread::sleep(Duration::from_millis(700 * round as u64));
        z.kill9();
    }
    let (_m, z) = (bar.mount(), zed.mount());
    let all: BTreeMap<_, _> = (0..count).map(|n| (format!("letter {n}"), 1)).collect();
    wait_for(Duration::from_secs(180), "all are there once", || {
        bar.hurry("email");
        zed.hurry("email");
        std::thread::sleep(Duration::from_millis(500));
        bodies(&z) == all
    });
    soon("nothing waits", || bar.count("sent") == count);
    soon("all that is on the server was looked at", || {
        let seen = fs::read_to_string(zed.tree.base().join(".seen_ids")).unwrap_or_default();
        seen.lines().count() == on_server(&at, ZED).len()
    });
    assert_eq!(bodies(&z), all);
    assert_eq!(z.ok("cat inbox/*.d/data.bin | wc -c").trim(), (count * 70_000).to_string());
    (count, on_server(&at, ZED).len())
}

/// S483: while the server is away everything else works. A waiting message says so, and is sent when the server is
/// back. The status reports a password that others can read, or that the server refuses.
#[test]
fn s483_a_mail_server_that_is_away_and_passwords_that_cannot_be_used() {
    let at = Bed::new();
    let server = server(&at);
    let down = Arc::new(AtomicBool::new(true));
    let is_down = Arc::clone(&down);
    let proxy = Proxy::before_lines(server.smtp, move |_, _| {
        is_down.load(Ordering::SeqCst).then_some(Fault::Drop)
    });
    let mut config = config(BAR, &server);
    config["email"]["smtp_port"] = json!(proxy.port);
    let bar = Machine::new(BAR, &config);
    let m = bar.mount();
    m.ok(&format!("echo one > outbox/{ZED}; echo me > outbox/{BAR}"));
    assert_eq!(m.ls("inbox").len(), 1, "mail of this machine");
    soon("it says that it waits", || sent(&m, "warning").len() == 1);
    assert!(m.ok("cat sent/*/*.warning").contains(&format!("waits for {ZED}")));
    down.store(false, Ordering::SeqCst);
    bar.permit(0o644);
    bar.hurry("email");
    soon("the password is told", || m.cat("status.txt").contains("others can read it"));
    config["email"]["password"] = json!("wrong-secret");
    bar.tree.configure(&config);
    bar.permit(0o600);
    bar.hurry("email");
    soon("the refusal is told", || {
        m.cat("status.txt").contains("refuses the user or the password")
    });
    bar.tells_no("wrong-secret");
    assert!(on_server(&at, ZED).is_empty());
    config["email"]["password"] = json!(PASSWORD);
    bar.tree.configure(&config);
    bar.permit(0o600);
    bar.hurry("email");
    soon("it goes", || bar.count("sent") == 2);
    assert_eq!(on_server(&at, ZED).len(), 1);
    soon("nothing waits", || sent(&m, "warning").is_empty());
}

/// S484: a mail that a person's mail program sends is a message with its text and attachments, and forges nothing. The
/// answer refers to it, so that the mail program shows both together.
#[test]
fn s484_people_write_and_are_answered() {
    let at = Bed::new();
    let server = server(&at);
    let bar = machine(BAR, &server);
    let m = bar.mount();
    let code = "import smtplib,sys\n\
        from email.message import EmailMessage\n\
        m=EmailMessage()\n\
        m['From']='Amy \"the, boss\" <amy@people.example>'; m['To']='Bar <bar@far.example>'\n\
        m['Subject']='Caf\u{e9} tomorrow?'; m['Date']='Sat, 25 Apr 2026 12:00:00 -0500'\n\
        m['Message-ID']='<first.of.amy@people.example>'\n\
        m.set_content('Dear Bar,\\n\\n'+'a long line '*40+'\\n.\\n--\\nAmy\\n',cte='quoted-printable')\n\
        m.add_alternative('<p>Dear <b>Bar</b></p>',subtype='html')\n\
        m.add_attachment(b'\\x00\\x01',maintype='application',subtype='octet-stream',filename='../../pl\u{e4}n.bin')\n\
        s=smtplib.SMTP('127.0.0.1',int(sys.argv[1])); s.send_message(m); s.quit()";
    peer::python(&bar.bed, code, &[&server.smtp.to_string()]);
    soon("it comes", || !m.ls("inbox").is_empty());
    let got = shown::all(&m, "inbox").remove(0);
    assert_eq!(got.must("Subject"), "Caf\u{e9} tomorrow?");
    assert!(got.must("From").contains("amy@people.example"), "{got:?}");
    assert!(got.body.starts_with("Dear Bar,\n\na long line a long"), "{}", got.body);
    assert!(got.body.contains("\n.\n--\nAmy"), "{}", got.body);
    assert!(got.get("Signature").is_none_or(|s| !s.starts_with("valid")));
    assert_eq!(m.ok("ls inbox/*.d/").trim(), "pl\u{e4}n.bin");
    let day = bar.tree.list(BAR, "inbox").remove(0);
    assert!(format!("{day:?}").contains("2026-04-25"), "{day:?}");
    m.ok("name=$(ls inbox/*.txt); echo 'With pleasure.' > ${name%.txt}.reply");
    soon("the answer is there", || on_server(&at, PEOPLE).len() == 1);
    let mail = fs::read_to_string(&on_server(&at, PEOPLE)[0]).unwrap();
    assert!(mail.contains("In-Reply-To: <first.of.amy@people.example>"), "{mail}");
    assert!(mail.contains("Subject: Re: ") || mail.contains("=?utf-8?B?"), "{mail}");
}

/// S485: by POP3 messages arrive as by IMAP, and nothing is deleted.
#[test]
fn s485_by_pop3() {
    let at = Bed::new();
    let server = server(&at);
    let bar = machine(BAR, &server);
    let mut config = config(ZED, &server);
    config["email"]["use_pop3"] = json!(true);
    let zed = Machine::new(ZED, &config);
    let (m, z) = (bar.mount(), zed.mount());
    m.ok(&format!(
        "for i in 1 2 3; do printf '.\\nletter '$i'\\n.\\n' | tee outbox/{ZED} > /dev/null; done"
    ));
    let all: BTreeMap<_, _> = (1..4).map(|n| (format!(".\nletter {n}\n."), 1)).collect();
    soon("all come", || bodies(&z) == all);
    assert_eq!(on_server(&at, ZED).len(), 3);
    for message in shown::all(&z, "inbox") {
        assert!(message.must("Signature").starts_with("valid "), "{message:?}");
    }
    z.umount();
    let z = zed.mount();
    soon("it has looked again", || z.cat("status.txt").contains("connected since"));
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(bodies(&z), all);
}

/// S1294: a mail at which the connection breaks each time stops no other that comes.
#[test]
fn s1294_a_mail_that_breaks_the_connection_stops_no_other() {
    let at = Bed::new();
    let server = server(&at);
    let mut broken = None;
    let proxy = Proxy::before_lines(server.imap, move |line, _| {
        let uid = line.split_once("UID FETCH ")?.1.split(' ').next()?;
        (broken.get_or_insert_with(|| uid.to_owned()) == uid).then_some(Fault::Drop)
    });
    let bar = machine(BAR, &server);
    let mut config = config(ZED, &server);
    config["email"]["imap_port"] = json!(proxy.port);
    let zed = Machine::new(ZED, &config);
    let m = bar.mount();
    m.ok(&format!("for i in 1 2 3; do echo letter $i > outbox/{ZED}; done"));
    soon("the server has all", || on_server(&at, ZED).len() == 3);
    let z = zed.mount();
    soon("the others come", || bodies(&z).len() == 2);
    soon("it is told", || z.cat("status.txt").contains("while a letter was fetched"));
}

/// S486: a server may give new numbers to the same mails or to others; no mail is hidden or doubled by that.
#[test]
fn s486_a_server_that_counts_anew() {
    let at = Bed::new();
    let server = server(&at);
    let (bar, zed) = (machine(BAR, &server), machine(ZED, &server));
    let (m, z) = (bar.mount(), zed.mount());
    m.ok(&format!("for i in 1 2; do echo letter $i > outbox/{ZED}; done"));
    soon("both come", || bodies(&z).len() == 2);
    z.umount();
    let [first, second] = &on_server(&at, ZED)[..] else { panic!() };
    // The second mail gets the number of the first, and the first a new and low one.
    fs::rename(first, first.with_file_name("17.eml")).unwrap();
    fs::rename(second, first).unwrap();
    m.ok(&format!("echo letter 3 > outbox/{ZED}"));
    soon("the server has it", || on_server(&at, ZED).len() == 3);
    let z = zed.mount();
    let all: BTreeMap<_, _> = (1..4).map(|n| (format!("letter {n}"), 1)).collect();
    soon("the new one comes", || bodies(&z).len() == 3);
    soon("all was looked at", || {
        fs::read_to_string(zed.tree.base().join(".seen_ids"))
            .is_ok_and(|t| t.lines().any(|l| l == "17"))
    });
    assert_eq!(bodies(&z), all);
    assert_eq!(zed.count("inbox"), 3);
}

/// S487: with links by e-mail and by FTP, messages to an address go by e-mail. A line `Via:` chooses another link, also
/// if msgfs is killed before it sends. A draft whose link reaches nobody is refused.
#[test]
fn s487_a_line_via_chooses_the_link() {
    let at = Bed::new();
    let (server, ftp) = (server(&at), peer::ftp_server(&at));
    let down = Arc::new(AtomicBool::new(true));
    let is_down = Arc::clone(&down);
    let proxy = Proxy::before_lines(ftp.port, move |_, _| {
        is_down.load(Ordering::SeqCst).then_some(Fault::Drop)
    });
    let mut config = config(BAR, &server);
    config["transport"] = json!("both");
    config["ftp"] = json!({"host": "127.0.0.1", "port": proxy.port, "user": "agentoftp",
        "password": "agentoftp_pass"});
    let bar = Machine::new(BAR, &config);
    let m = bar.mount();
    m.ok(&format!("echo by mail > outbox/{ZED}"));
    m.ok(&format!("printf 'Via: ftp\\n\\nby ftp\\n' | tee outbox/{ZED} > /dev/null"));
    m.kill9();
    let m = bar.mount();
    assert!(!m.sh(&format!("printf 'Via: relay\\n\\nno\\n' > outbox/{ZED}")).ok());
    soon("one goes", || on_server(&at, ZED).len() == 1);
    soon("the other waits for FTP", || m.cat("status.txt").contains("ftp: ftp://"));
    assert!(m.ok("cat sent/*/*.warning").contains("link ftp"));
    down.store(false, Ordering::SeqCst);
    bar.hurry("ftp");
    soon("it goes, too", || bar.count("sent") == 2);
    assert_eq!(on_server(&at, ZED).len(), 1);
    let there = crate::relay::files(&at.path("ftp").join(ZED));
    let [letter] = &there[..] else { panic!("{there:?}") };
    assert!(fs::read_to_string(letter).unwrap().contains("by ftp"));
}

/// Makes a machine whose link by e-mail gets a copy of each mail that it sends.
fn copying(address: &'static str, config: &Value) -> Machine {
    let machine = Machine::new(address, config);
    let store = machine.tree.store();
    machine
        .bed
        .config(&format!("{store}links = true\n\n[[link]]\nkind = \"mail\"\nself_copy = true\n"));
    machine
}

/// S454: with `self_copy` a message is there once for every reader, also if the server is killed between the end of the
/// text and its answer, and both if it has served before and if not.
#[test]
fn s454_a_server_that_is_killed_before_it_answers() {
    for has_served in [true, false] {
        let at = Bed::new();
        let server = server(&at);
        let (smtp, mut one) = (server.smtp, config(BAR, &server));
        let there = {
            let mail = at.path("mail");
            move || {
                let is_whole = |mail: &PathBuf| fs::metadata(mail).is_ok_and(|m| m.len() > 0);
                let one = |address| inbox_at(&mail, address).iter().any(is_whole);
                one(ZED) && one(BAR)
            }
        };
        let running = Arc::new(Mutex::new(Some(server)));
        let its = Arc::clone(&running);
        let proxy = Proxy::before_lines(smtp, move |line, _| {
            if line != "." {
                return None;
            }
            if !has_served {
                its.lock().unwrap().take();
                return Some(Fault::Drop);
            }
            let (its, there) = (Arc::clone(&its), there.clone());
            std::thread::spawn(move || {
                soon("it has served", there);
                its.lock().unwrap().take();
            });
            Some(Fault::Swallow)
        });
        one["email"]["smtp_port"] = json!(proxy.port);
        let bar = copying(BAR, &one);
        let m = bar.mount();
        m.ok(&format!("echo once > outbox/{ZED}"));
        soon("the server is dead", || running.lock().unwrap().is_none());
        soon("it is told", || sent(&m, "warning").len() == 1);
        assert_eq!(on_server(&at, ZED).len(), usize::from(has_served));
        let server = peer::mail_server_again(&at);
        bar.tree.configure(&config(BAR, &server));
        bar.permit(0o600);
        soon("it is taken", || {
            bar.hurry("email");
            bar.count("sent") == 1
        });
        assert_eq!((on_server(&at, ZED).len(), on_server(&at, BAR).len()), (1, 1));
        let zed = machine(ZED, &server);
        peer::ok(&zed.bed, &zed.tree, &["daemon", "--once"]);
        assert!(zed.tree.only(ZED, "inbox").1.contains("once"));
        bar.hurry("email");
        soon("the copy was looked at", || bar.tree.base().join(".seen_ids").exists());
        assert!(m.ls("inbox").is_empty() && bar.count("inbox") == 0);
    }
}

/// S455: a copy to me of a message to others is no message, for msgfs and for the reference, also when `self_copy` is
/// off again. A message to myself arrives once, both by its local way and by e-mail.
#[test]
fn s455_copies_to_me_are_no_mail() {
    let at = Bed::new();
    let server = server(&at);
    let bar = copying(BAR, &config(BAR, &server));
    let m = bar.mount();
    m.ok(&format!("echo to zed > outbox/{ZED}"));
    m.ok(&format!("printf 'Cc: {BAR}\\n\\nto us\\n' | tee outbox/{ZED} > /dev/null"));
    m.ok(&format!("echo to me > outbox/{BAR}"));
    let mine: BTreeMap<_, _> = [("to us".to_owned(), 1), ("to me".to_owned(), 1)].into();
    let all_seen = |machine: &Machine, count| {
        let seen = fs::read_to_string(machine.tree.base().join(".seen_ids")).unwrap_or_default();
        seen.lines().count() == count
    };
    soon("both copies are there", || on_server(&at, BAR).len() == 2);
    bar.hurry("email");
    soon("they were looked at", || all_seen(&bar, 2));
    soon("all is sent", || bar.count("sent") == 3);
    assert_eq!(bodies(&m), mine);
    assert_eq!(bar.count("inbox"), 2);
    assert_eq!(on_server(&at, ZED).len(), 2);
    m.umount();
    peer::ok(&bar.bed, &bar.tree, &["daemon", "--once"]);
    assert_eq!(bar.count("inbox"), 2, "the reference knows them");
    // Another machine of mine has the same key and no `self_copy`.
    let other = machine(BAR, &server);
    let m = other.mount();
    soon("they were looked at", || all_seen(&other, 2));
    assert!(bodies(&m).is_empty());
    m.umount();
    // My name differs from my address.
    let robot = copying("robot.agenttalk", &config(PEOPLE, &server));
    let m = robot.mount();
    m.ok(&format!("echo by mail to me > outbox/{PEOPLE}"));
    m.ok(&format!("printf 'Cc: {PEOPLE}\\n\\nto us\\n' | tee outbox/{ZED} > /dev/null"));
    let mine: BTreeMap<_, _> = [("by mail to me".to_owned(), 1), ("to us".to_owned(), 1)].into();
    soon("all of it was looked at", || {
        robot.hurry("email");
        all_seen(&robot, 3)
    });
    assert_eq!(on_server(&at, PEOPLE).len(), 3, "two to me, and a copy");
    assert_eq!((bodies(&m), robot.count("inbox")), (mine, 2));
}

/// S566: `self_copy` without IMAP carries nothing, and `msgfs doctor` says what to do.
#[test]
fn s566_self_copy_needs_imap() {
    let at = Bed::new();
    let server = server(&at);
    let mut config = config(BAR, &server);
    config["email"]["use_pop3"] = json!(true);
    let bar = copying(BAR, &config);
    let doctor = || bar.bed.msgfs_out(&["--me", "bar", "doctor"]).said();
    assert!(doctor().contains("self_copy needs IMAP"), "{}", doctor());
    let m = bar.mount();
    m.ok(&format!("echo waits > outbox/{ZED}"));
    m.umount();
    assert!(on_server(&at, ZED).is_empty());
    config["email"]["use_pop3"] = json!(false);
    bar.tree.configure(&config);
    bar.permit(0o600);
    assert!(!doctor().contains("self_copy"), "{}", doctor());
    let _m = bar.mount();
    soon("it goes", || bar.count("sent") == 1);
}
