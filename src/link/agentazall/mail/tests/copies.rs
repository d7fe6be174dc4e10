//! Copies to me, which show the mails that a server has taken.

use super::*;
use crate::link::journal::progress_note_path;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::sync::{Arc, Mutex};

/// The server's action after it has a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Does {
    /// A delivery with an answer.
    All,
    /// A delivery that is cut off before the answer.
    Serve,
    /// No delivery: it is cut off before.
    Nothing,
}

/// A server of one account, by SMTP and IMAP.
struct Server {
    /// The lines that it heard by SMTP, except for texts.
    said: Mutex<Vec<String>>,
    inbox: Mutex<Vec<String>>,
    does: Mutex<Does>,
    /// True if the server refuses me as a recipient.
    refuses_me: bool,
}

impl Server {
    fn smtp(&self, mut s: TcpStream) {
        let mut lines = BufReader::new(s.try_clone().unwrap()).lines();
        s.write_all(b"220 x\r\n").unwrap();
        let (mut text, mut to_me) = (None::<String>, false);
        while let Some(Ok(line)) = lines.next() {
            if let Some(so_far) = text.as_mut().filter(|_| line != ".") {
                so_far.push_str(&(line + "\r\n"));
                continue;
            }
            self.said.lock().unwrap().push(line.clone());
            let is_me = line == "RCPT TO:<bob@x>";
            let answer = match line.as_str() {
                "DATA" => {
                    text = Some(String::new());
                    "354 go"
                }
                "." => {
                    let does = *self.does.lock().unwrap();
                    if does != Does::Nothing && to_me {
                        self.inbox.lock().unwrap().push(text.take().unwrap());
                    }
                    if does != Does::All {
                        return;
                    }
                    "250 ok"
                }
                _ if is_me && self.refuses_me => "550 not you",
                _ => {
                    to_me |= is_me;
                    "250 ok"
                }
            };
            s.write_all(format!("{answer}\r\n").as_bytes()).unwrap();
        }
    }

    fn imap(&self, mut s: TcpStream) {
        let lines = BufReader::new(s.try_clone().unwrap()).lines();
        s.write_all(b"* OK hi\r\n").unwrap();
        for line in lines.map_while(Result::ok) {
            let (tag, command) = line.split_once(' ').unwrap();
            let inbox = self.inbox.lock().unwrap().clone();
            let answer = if command.starts_with("UID SEARCH HEADER Message-ID \"m@agentazall\"") {
                // Like the server of the reference, it returns all numbers.
                let all: Vec<String> = (1..=inbox.len()).map(|n| n.to_string()).collect();
                format!("* SEARCH {}\r\n", all.join(" "))
            } else if let Some(rest) = command.strip_prefix("UID FETCH ") {
                let uid: usize = rest.split(' ').next().unwrap().parse().unwrap();
                let mail = &inbox[uid - 1];
                format!("* {uid} FETCH (UID {uid} RFC822 {{{}}}\r\n{mail})\r\n", mail.len())
            } else {
                String::new()
            };
            if s.write_all(format!("{answer}{tag} OK\r\n").as_bytes()).is_err() {
                return;
            }
        }
    }

    fn heard(&self, what: &str) -> usize {
        self.said.lock().unwrap().iter().filter(|line| line.starts_with(what)).count()
    }
}

/// Serves each connection at a port with this function, and returns the port.
fn listen(server: &Arc<Server>, serve: fn(&Server, TcpStream)) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (port, server) = (listener.local_addr().unwrap().port(), Arc::clone(server));
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let server = Arc::clone(&server);
            std::thread::spawn(move || serve(&server, stream));
        }
    });
    port
}

struct Bed {
    dir: tempfile::TempDir,
    server: Arc<Server>,
    settings: EngineSettings,
}

impl Bed {
    fn new(does: Does, refuses_me: bool) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (said, inbox, does) = (Mutex::default(), Mutex::default(), Mutex::new(does));
        let server = Arc::new(Server { said, inbox, does, refuses_me });
        let bed = Self { server, settings: settings("/email"), dir };
        let (smtp, imap) = (listen(&bed.server, Server::smtp), listen(&bed.server, Server::imap));
        bed.described(smtp, imap)
    }

    fn described(mut self, smtp: u16, imap: u16) -> Self {
        self.settings.file = self.dir.path().join("config.json");
        self.settings.self_copy = true;
        let text = format!(
            r#"{{"email": {{"smtp_server": "127.0.0.1", "smtp_port": {smtp}, "imap_server": "127.0.0.1",
               "imap_port": {imap}, "password": "p"}}}}"#
        );
        std::fs::write(&self.settings.file, text).unwrap();
        let only_me = std::fs::Permissions::from_mode(0o600);
        std::fs::set_permissions(&self.settings.file, only_me).unwrap();
        self
    }

    fn mail(&self) -> MailEngine {
        MailEngine::open(&self.settings).unwrap()
    }

    /// Returns the file with the bytes for a recipient in the link's folder.
    fn wire(&self, to: &str) -> PathBuf {
        let bytes = b"From: bob@x\nTo: zed@y, amy@y\nMessage-ID: m\n---\nhi".to_vec();
        let parcel =
            OutboundMail { message_id: "m".into(), to: to.into(), bytes, parts: Vec::new() };
        let path = self.dir.path().join(to);
        std::fs::write(&path, self.mail().encode_parcel(&parcel).unwrap()).unwrap();
        path
    }

    fn does(&self, does: Does) {
        *self.server.does.lock().unwrap() = does;
    }
}

fn is_unknown(outcome: &ExchangeOutcome) -> bool {
    matches!(outcome, ExchangeOutcome::Unknown { .. })
}

/// S454: I am the last recipient. A mail whose answer was lost is sought in my inbox before it is sent again. The copy
/// of another recipient's mail does not count for this one.
#[test]
fn s454_what_was_cut_off_is_looked_for() {
    for does in [Does::Serve, Does::Nothing] {
        let bed = Bed::new(does, false);
        let (zed, amy) = (bed.wire("zed@y"), bed.wire("amy@y"));
        assert!(is_unknown(&bed.mail().open_session().send(&zed)), "{does:?}");
        let said = bed.server.said.lock().unwrap().clone();
        let said: Vec<&str> = said.iter().map(String::as_str).collect();
        let [.., from, to, me, data, _] = said[..] else { panic!("{said:?}") };
        assert_eq!((from, to, me), ("MAIL FROM:<bob@x>", "RCPT TO:<zed@y>", "RCPT TO:<bob@x>"));
        assert_eq!(data, "DATA");
        bed.does(Does::All);
        assert_eq!(bed.mail().open_session().send(&zed), ExchangeOutcome::Done);
        let served = usize::from(does == Does::Serve);
        assert_eq!(bed.server.heard("DATA"), 2 - served, "{does:?}");
        // The mail to the other recipient has the same Message-ID.
        bed.does(Does::Nothing);
        assert!(is_unknown(&bed.mail().open_session().send(&amy)));
        bed.does(Does::All);
        assert_eq!(bed.mail().open_session().send(&amy), ExchangeOutcome::Done);
        assert_eq!(bed.server.heard("RCPT TO:<amy@y>"), 2, "{does:?}");
        assert_eq!(bed.server.inbox.lock().unwrap().len(), 2);
    }
}

/// S454: nothing is sent a second time while the inbox cannot be read.
#[test]
fn s454_an_inbox_that_cannot_be_asked() {
    let bed = Bed::new(Does::Serve, false);
    let smtp = bed.mail().smtp.port;
    let zed = bed.wire("zed@y");
    assert!(is_unknown(&bed.mail().open_session().send(&zed)));
    let imap = bed.mail().inbox.port;
    // No server listens there.
    let bed = bed.described(smtp, 1);
    let outcome = bed.mail().open_session().send(&zed);
    assert!(
        matches!(&outcome, ExchangeOutcome::Away { why, .. } if why.contains("may have it")),
        "{outcome:?}"
    );
    let bed = bed.described(smtp, imap);
    assert_eq!(bed.mail().open_session().send(&zed), ExchangeOutcome::Done);
    assert_eq!(bed.server.heard("DATA"), 1);
}

/// S454: nothing is sought if I get no copy: with a server that refuses me, and without `self_copy`, even if it was
/// just removed.
#[test]
fn s454_without_a_copy_the_same_goes_again() {
    let refused = Bed::new(Does::Nothing, true);
    let mut off = Bed::new(Does::Nothing, false);
    let with_it = off.wire("with@y");
    off.settings.self_copy = false;
    for (bed, wire) in
        [(&refused, refused.wire("zed@y")), (&off, off.wire("zed@y")), (&off, with_it)]
    {
        bed.does(Does::Nothing);
        assert!(is_unknown(&bed.mail().open_session().send(&wire)));
        assert!(!progress_note_path(&wire).exists());
        bed.does(Does::All);
        assert_eq!(bed.mail().open_session().send(&wire), ExchangeOutcome::Done);
    }
    assert_eq!((off.server.heard("DATA"), off.server.heard("RCPT TO:<bob@x>")), (4, 0));
    assert_eq!(refused.server.heard("DATA"), 2);
}

/// S566: `self_copy` without IMAP is refused with a remedy.
#[test]
fn s566_a_copy_needs_imap() {
    let dir = tempfile::tempdir().unwrap();
    let mut settings = settings("/email");
    settings.file = dir.path().join("config.json");
    for (part, works) in [
        (r#"{"imap_server": "mail.x"}"#, true),
        (r#"{"imap_server": "mail.x", "use_pop3": true}"#, false),
        (r#"{"imap_server": " "}"#, false),
        ("{}", false),
    ] {
        std::fs::write(&settings.file, format!(r#"{{"email": {part}}}"#)).unwrap();
        settings.self_copy = false;
        assert!(MailEngine::open(&settings).is_ok());
        settings.self_copy = true;
        match MailEngine::open(&settings) {
            Ok(_) => assert!(works, "{part}"),
            Err(why) => assert!(!works && why.contains("needs IMAP"), "{part}: {why}"),
        }
        // A second account sends nothing.
        let second = EngineSettings { part: "/email_accounts/1".into(), ..settings.clone() };
        assert!(MailEngine::open(&second).is_ok_and(|mail| !mail.self_copy));
    }
}
