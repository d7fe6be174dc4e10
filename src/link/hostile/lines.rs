//! Hostile servers with protocols of lines: FTP, SMTP, IMAP and POP3.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::server::{HostileProtocol, HostileServer, ServerAction};
use super::*;

/// Returns the correct answer of a server to a line.
fn usual_answer(protocol: &str, line: &str) -> ServerAction {
    let say = |text: &str| ServerAction::Say(text.as_bytes().to_vec());
    let tag = line.split(' ').next().unwrap_or_default().trim_end();
    let verb = if protocol == "imap" { line.split(' ').nth(1).unwrap_or_default() } else { tag };
    match (protocol, verb.trim_end()) {
        // This is the empty line between header and body of a mail.
        ("smtp", "") if !line.is_empty() => say(""),
        ("smtp", "") => say("220 hi\r\n"),
        ("smtp", "EHLO") => say("250-x\r\n250 AUTH PLAIN\r\n"),
        ("smtp", "AUTH") => say("235 in\r\n"),
        ("smtp", "DATA") => say("354 go\r\n"),
        ("smtp", "MAIL" | "RCPT" | ".") => say("250 ok\r\n"),
        ("smtp", _) => ServerAction::Say(Vec::new()),
        ("imap", "") => say("* OK hi\r\n"),
        ("imap", "EXAMINE") => say(&format!("* OK [UIDVALIDITY 1] x\r\n{tag} OK in\r\n")),
        ("imap", "UID") if line.contains("SEARCH") => {
            say(&format!("* SEARCH 1 2\r\n{tag} OK done\r\n"))
        }
        ("imap", "UID") => say(&format!(
            "* 1 FETCH (UID 1 RFC822 {{21}}\r\nSubject: s\r\n\r\nhello\r\n)\r\n{tag} OK\r\n"
        )),
        ("imap", _) => say(&format!("{tag} OK\r\n")),
        ("pop", "UIDL") => say("+OK\r\n1 one\r\n2 two\r\n.\r\n"),
        ("pop", "RETR") => say("+OK\r\nSubject: s\r\n\r\nhello\r\n.\r\n"),
        ("pop", _) => say("+OK\r\n"),
        ("ftp", "") => say("220 hi\r\n"),
        ("ftp", "USER") => say("331 and?\r\n"),
        ("ftp", "PASS") => say("230 in\r\n"),
        ("ftp", "EPSV") => say("500 no\r\n"),
        ("ftp", "PASV") => say("227 ok (127,0,0,1,0,9)\r\n"),
        ("ftp", "MLSD" | "NLST" | "RETR" | "STOR") => say("150 go\r\n"),
        _ => say("250 ok\r\n"),
    }
}

fn list_faults() -> Vec<(&'static str, ServerAction)> {
    use ServerAction::{Close, Drip, Endless, Hang, Say};
    let echo = format!("535 -ERR no: {SECRET}, {}\r\n", SECRET.to_uppercase());
    let begins = |code: &str| Endless(Vec::new(), format!("{code}-more\r\n").into_bytes());
    vec![
        ("hangs", Hang),
        ("goes", Close(Vec::new())),
        ("says a byte at a time", Drip(b"220 +OK * OK a line that never ends".to_vec())),
        ("says a line without end", Endless(b"220 +OK * OK ".to_vec(), b"a".to_vec())),
        ("says lines without end", Endless(Vec::new(), b"* 1 EXISTS\r\n".to_vec())),
        ("says an answer without end", begins("220")),
        ("says another answer without end", begins("150")),
        (
            "lists without end",
            Endless(b"+OK\r\n* SEARCH ".to_vec(), b"* SEARCH 123456789012345\r\n".to_vec()),
        ),
        ("numbers without end", Endless(b"+OK\r\n* SEARCH ".to_vec(), b"12 ".to_vec())),
        (
            "sends a mail without end",
            Endless(b"+OK\r\n* 1 FETCH (RFC822 {60000000}\r\n".to_vec(), b"aaaaaaaa\r\n".to_vec()),
        ),
        (
            "sends a mail of an absurd length",
            Say(b"* 1 FETCH (RFC822 {18446744073709551615}\r\n".to_vec()),
        ),
        ("sends pieces without end", Endless(Vec::new(), b"* X {5}\r\nabcde\r\n".to_vec())),
        ("is noise", Endless(vec![0, 255, 13], vec![10, 0, 254])),
        ("is HTTP", Close(b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec())),
        ("repeats the secret", Close(echo.into_bytes())),
        ("repeats it in IMAP", Close(format!("a1 NO {SECRET}\r\n* BYE\r\n").into_bytes())),
    ]
}

fn open_machine(protocol: &str, port: u16) -> LinkTestMachine {
    match protocol {
        "ftp" => LinkTestMachine::ftp(port, &json!({})),
        "pop" => LinkTestMachine::mail(port, &json!({"use_pop3": true})),
        _ => LinkTestMachine::mail(port, &json!({})),
    }
}

/// Starts an FTP server whose data connections act as `give` says for their number. It refuses to send a path that
/// contains `refused`.
fn start_ftp(
    give: impl Fn(usize) -> ServerAction + Send + Sync + 'static,
    refused: Option<&'static str>,
) -> HostileServer {
    let next = AtomicUsize::new(0);
    let act = move |_: &str| give(next.fetch_add(1, Ordering::SeqCst));
    let data = HostileServer::start(HostileProtocol::Lines, Arc::new(act));
    let [high, low] = data.port.to_be_bytes();
    let answer = move |line: &str| match line.split([' ', '\r']).next().unwrap_or_default() {
        "PASV" => ServerAction::Say(format!("227 ok (1,2,3,4,{high},{low})\r\n").into_bytes()),
        "RETR" if refused.is_some_and(|path| line.contains(path)) => {
            ServerAction::Say(b"550 no\r\n".to_vec())
        }
        "MLSD" | "RETR" => ServerAction::Say(b"150 go\r\n226 done\r\n".to_vec()),
        _ => usual_answer("ftp", line),
    };
    HostileServer::start(HostileProtocol::Lines, Arc::new(answer))
}

/// After any action of a server at any moment no message counts as delivered, and nothing lasts for ever.
#[test]
fn whatever_a_server_does_at_any_moment() {
    let moments: [(&str, &[&str]); 4] = [
        ("smtp", &["", "EHLO", "AUTH", "MAIL", "RCPT", "DATA", "."]),
        ("imap", &["", "LOGIN", "EXAMINE", "UID SEARCH", "UID FETCH"]),
        ("pop", &["", "USER", "PASS", "UIDL", "RETR"]),
        ("ftp", &["", "USER", "PASS", "TYPE", "CWD", "PASV", "MKD", "MLSD"]),
    ];
    let mut all = Vec::new();
    for (protocol, verbs) in moments {
        for verb in verbs {
            all.extend(list_faults().into_iter().map(|(what, act)| (protocol, *verb, what, act)));
        }
    }
    // The tests run in groups, since a machine has only so many ports.
    for some in all.chunks(160) {
        run_each(some.to_vec(), |(protocol, verb, what, act)| {
            let name = format!("{protocol}: a server that {what} at {verb:?}");
            let server = HostileServer::start(
                HostileProtocol::Lines,
                Arc::new(move |line| {
                    let command = if protocol == "imap" {
                        line.split_once(' ').map_or(line, |(_, c)| c)
                    } else {
                        line
                    };
                    let is_it = if verb.is_empty() {
                        line.is_empty()
                    } else {
                        command.trim_end().starts_with(verb)
                    };
                    if is_it { act.clone() } else { usual_answer(protocol, line) }
                }),
            );
            let machine = open_machine(protocol, server.port);
            if matches!(protocol, "smtp" | "ftp") {
                let outcome = machine.send(&name);
                assert!(!is_taken(&outcome), "{name}: {outcome:?}");
            }
            if protocol != "smtp" {
                let ended = machine.fetch(&name);
                let is_part = !is_taken(&ended.outcome) || ended.brought.len() <= 2;
                assert!(
                    is_part && machine.count_written_bytes() < 140 << 20,
                    "{name}: {:?}",
                    ended.outcome
                );
            }
            if verb.len() == 4 {
                machine.check(&name);
            }
        });
    }
}

/// Data comes only from the host of the control connection, even if the server names another one.
#[test]
fn an_ftp_server_leads_to_no_other_machine() {
    let elsewhere =
        HostileServer::start(HostileProtocol::Lines, Arc::new(|_| ServerAction::Close(Vec::new())));
    let [high, low] = elsewhere.port.to_be_bytes();
    // This is another address of this machine.
    let named = format!("227 ok (127,0,0,2,{high},{low})\r\n").into_bytes();
    let server = HostileServer::start(
        HostileProtocol::Lines,
        Arc::new(move |line| {
            if line.starts_with("PASV") {
                ServerAction::Say(named.clone())
            } else {
                usual_answer("ftp", line)
            }
        }),
    );
    let asked = open_machine("ftp", server.port).fetch("a server that names another machine");
    assert!(!is_taken(&asked.outcome));
    // It listens on 127.0.0.1, the host of the control connection, so the client went there.
    assert!(elsewhere.has_connections());
}

/// Tests listings and files that are endless, absurdly long, slow or cut off. Only a note about a file that is too
/// large is filed, and names lead nowhere.
#[test]
fn an_ftp_server_whose_data_means_harm() {
    use ServerAction::{Close, Drip, Endless, Hang};
    let days = || Close(b"type=dir; 2026-04-24\r\ntype=dir; ../../etc\r\n".to_vec());
    let inbox = |text: &str| Close(text.as_bytes().to_vec());
    let one = "type=file;size=30;modify=1; a.txt\r\n";
    let cases: Vec<(&'static str, Vec<ServerAction>)> = vec![
        ("days without end", vec![Endless(Vec::new(), b"type=dir; 2026-04-24\r\n".to_vec())]),
        ("days a byte at a time", vec![Drip(b"type=dir; 2026-04-24\r\n".to_vec())]),
        ("no data", vec![Hang]),
        ("files without end", vec![days(), Endless(Vec::new(), one.as_bytes().to_vec())]),
        (
            "a text without end",
            vec![days(), inbox(one), Endless(Vec::new(), b"From: a\n".to_vec())],
        ),
        ("a text a byte at a time", vec![days(), inbox(one), Drip(b"From: a\n".to_vec())]),
        ("a text that is cut", vec![days(), inbox(one), Close(b"From: a".to_vec())]),
        ("a text of 1 GB", vec![days(), inbox("type=file;size=1073741824;modify=1; a.txt\r\n")]),
        (
            "names that are paths",
            vec![days(), inbox("type=file;size=5; ../../x.txt\r\ntype=file;size=5; ..\r\n")],
        ),
    ];
    run_each(cases, |(what, acts)| {
        let give = move |n: usize| acts.get(n).cloned().unwrap_or(Close(Vec::new()));
        let server = start_ftp(give, None);
        let ended = open_machine("ftp", server.port).fetch(what);
        let is_told = |bytes: &[u8]| bytes.windows(9).any(|w| w == b"too large");
        assert!(
            ended.brought.iter().all(|(_, bytes)| is_told(bytes)),
            "{what}: {:?}",
            ended.brought
        );
        assert_eq!(ended.brought.len(), usize::from(what.contains("1 GB")), "{what}");
    });
}

/// A mail with nested parts, too many parts, impossible dates and paths as names makes one message on a valid day.
#[test]
fn mails_that_no_program_writes() {
    let nested = |n: usize| {
        let begin: String = (0..n)
            .map(|n| format!("Content-Type: multipart/mixed; boundary=b{n}\r\n\r\n--b{n}\r\n"))
            .collect();
        format!("Subject: s\r\n{begin}\r\nhello\r\n")
    };
    let many = format!(
        "Subject: s\r\nContent-Type: multipart/mixed; boundary=b\r\n\r\n{}--b--\r\n",
        "--b\r\nContent-Disposition: attachment; filename=\"../../x\"\r\n\r\na\r\n".repeat(5000)
    );
    let mut mails = vec![
        nested(20),
        nested(5000),
        many,
        "Subject: ".to_owned() + &"x".repeat(1 << 20) + "\r\n\r\nb\r\n",
    ];
    mails.push("A: b\r\n".repeat(60_000) + "\r\nb\r\n");
    for date in [
        "Thu, 01 Jan 1970 00:00:00 +0000",
        "Sun, 07 Feb 2106 06:28:16 +0000",
        "Fri, 31 Dec 9999 23:59:59 -1200",
        "Sat, 01 Jan 0000 00:00:00 +0000",
        "Mon, 99 Xyz 99999 99:99:99 +9999",
        "../../etc",
        "",
    ] {
        mails.push(format!(
            "Date: {date}\r\nSubject: s\r\nMessage-ID: <../../../x\0y>\r\n\r\nhello\r\n"
        ));
    }
    let count = mails.len();
    let server = HostileServer::start(
        HostileProtocol::Lines,
        Arc::new(move |line| {
            let number = line.strip_prefix("RETR ").and_then(|n| n.trim().parse::<usize>().ok());
            match number {
                Some(n) => ServerAction::Say(
                    format!("+OK\r\n{}\r\n.\r\n", mails[n - 1].trim_end()).into_bytes(),
                ),
                None if line.starts_with("UIDL") => {
                    let list: String =
                        (1..=mails.len()).map(|n| format!("{n} {n}/../{n}\r\n")).collect();
                    ServerAction::Say(format!("+OK\r\n{list}.\r\n").into_bytes())
                }
                None => usual_answer("pop", line),
            }
        }),
    );
    let machine = open_machine("pop", server.port);
    let raw = machine.dir.path().join("links/store/name/jobs/1/raw");
    let ended = machine.fetch("odd mails");
    assert_eq!((&ended.outcome, ended.brought.len()), (&ExchangeOutcome::Done, count));
    for item in machine.engine().unpack_items(&raw).into_iter().map(Result::unwrap) {
        let day = item.arrived.day.unwrap();
        assert!(crate::store::agentazall::date::is_day(&day), "{day}");
        assert!(!item.arrived.name.contains('/') && item.arrived.parts.len() <= 100);
        assert!(item.arrived.parts.iter().all(|(name, _)| !name.contains('/')));
    }
}

/// A mail that a server refuses to hand out hides no other.
#[test]
fn a_mail_that_a_server_refuses_hides_no_other() {
    for (protocol, command, refusal) in
        [("imap", "UID FETCH 1 ", "NO damaged\r\n"), ("pop", "RETR 1", "-ERR damaged\r\n")]
    {
        let server = HostileServer::start(
            HostileProtocol::Lines,
            Arc::new(move |line| match line.split_once(command) {
                Some((tag, _)) => ServerAction::Say(format!("{tag}{refusal}").into_bytes()),
                None => usual_answer(protocol, line),
            }),
        );
        let ended = open_machine(protocol, server.port).fetch(protocol);
        let why = ended.outcome.reason().unwrap_or_default();
        let is_told = matches!(ended.outcome, ExchangeOutcome::Later { .. });
        assert!(is_told && why.contains("damaged"), "{protocol}: {:?}", ended.outcome);
        assert_eq!(ended.brought.len(), 1, "{protocol}");
    }
}

/// A message waits for an attachment that the server refuses, and is filed without it in the end. It hides no
/// other message.
#[test]
fn an_attachment_that_a_server_refuses_hides_no_message() {
    let text = "From: al@far.example\nTo: bob@far.example\nSubject: other\n---\nhello\n";
    let with_part = text.replace("Subject: other", "Attachments: b");
    for is_late in [false, true] {
        let (size, other_size) = (with_part.len(), text.len());
        let days = "type=dir; 2026-04-24\r\n".to_owned();
        let inbox = format!(
            "type=file;size={size};modify=1; a.txt\r\ntype=dir; a\r\n\
             type=file;size={other_size};modify=1; c.txt\r\n"
        );
        let parts = "type=file;size=3;modify=1; b\r\n".to_owned();
        let first_data = [days, inbox, parts, with_part.clone()];
        let give = move |n: usize| {
            let what = first_data.get(n).map_or(text, String::as_str);
            ServerAction::Close(what.as_bytes().to_vec())
        };
        let server = start_ftp(give, Some("/a/b"));
        let machine = open_machine("ftp", server.port);
        // The texts were seen long ago, and have not changed since.
        let first = if is_late { 1 } else { crate::model::Timestamp::now().millis() };
        let seen = |size: usize, parts: Value| {
            let look = json!({"size": size, "modify": "1", "parts": parts});
            json!({"look": look, "since": 1, "first": first, "unproven": true})
        };
        let files = json!({
            "ftp:2026-04-24/a.txt": seen(size, json!([["b", 3]])),
            "ftp:2026-04-24/c.txt": seen(other_size, json!([])),
        });
        let folder = machine.dir.path().join("links/store/name");
        std::fs::create_dir_all(&folder).unwrap();
        let saw = json!({"all": 0, "files": files}).to_string();
        std::fs::write(folder.join("saw.json"), saw).unwrap();
        let ended = machine.fetch("a server that refuses an attachment");
        let why = ended.outcome.reason().unwrap_or_default();
        assert!(why.contains("/a/b: 550 no"), "{:?}", ended.outcome);
        assert!(matches!(ended.outcome, ExchangeOutcome::Later { .. }), "{:?}", ended.outcome);
        let names: Vec<&str> = ended.brought.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, if is_late { vec!["a", "c"] } else { vec!["c"] });
    }
}

/// S1295: a connection that breaks while a file is examined does not end the watch over the file.
#[test]
fn s1295_a_connection_that_breaks_ends_no_watch_over_a_file() {
    let acts = [
        ServerAction::Close(b"type=dir; 2026-04-24\r\n".to_vec()),
        ServerAction::Close(b"type=file;size=30;modify=1; a.txt\r\n".to_vec()),
    ];
    let give = move |n: usize| acts.get(n).cloned().unwrap_or(ServerAction::Hang);
    let machine = open_machine("ftp", start_ftp(give, None).port);
    let look = json!({"size": 20, "modify": "1", "parts": []});
    let at = crate::model::Timestamp::now().millis();
    let taken = json!({"at": at, "look": look, "length": 20, "sha": "x"});
    let saw = json!({"look": look, "since": 1, "first": 1, "unproven": true, "taken": taken});
    let saw = json!({"all": 0, "files": {"ftp:2026-04-24/a.txt": saw}});
    let path = machine.dir.path().join("links/store/name/saw.json");
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(&path, saw.to_string()).unwrap();
    let ended = machine.fetch("a server that sends no data");
    assert!(matches!(ended.outcome, ExchangeOutcome::Away { .. }), "{:?}", ended.outcome);
    let kept: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    assert_eq!(kept["files"]["ftp:2026-04-24/a.txt"]["taken"]["sha"], "x", "{kept}");
}

/// S1294: a mail at which the connection breaks each time stops no other. The next fetch takes it last, and then it
/// rests.
#[test]
fn s1294_a_mail_that_breaks_the_connection_stops_no_other() {
    for (protocol, command) in [("imap", "UID FETCH 1 "), ("pop", "RETR 1")] {
        let asked = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&asked);
        let server = HostileServer::start(
            HostileProtocol::Lines,
            Arc::new(move |line| {
                if line.contains(command) {
                    counted.fetch_add(1, Ordering::SeqCst);
                    return ServerAction::Close(Vec::new());
                }
                usual_answer(protocol, line)
            }),
        );
        let machine = open_machine(protocol, server.port);
        let first = machine.fetch(protocol);
        assert!(matches!(first.outcome, ExchangeOutcome::Away { .. }), "{:?}", first.outcome);
        for (why, count) in [("broke again", 2), ("broke 2 times", 2)] {
            let next = machine.fetch(protocol);
            assert!(matches!(next.outcome, ExchangeOutcome::Later { .. }), "{:?}", next.outcome);
            assert!(next.outcome.reason().unwrap_or_default().contains(why), "{:?}", next.outcome);
            assert_eq!(next.brought.len(), 1, "{protocol}");
            assert_eq!(asked.load(Ordering::SeqCst), count, "{protocol}");
        }
    }
}

/// S1294 holds for FTP.
#[test]
fn s1294_a_file_that_breaks_the_connection_stops_no_other() {
    let text = "From: al@far.example\nTo: bob@far.example\nSubject: other\n---\nhello\n";
    let size = text.len();
    let close = |text: &str| ServerAction::Close(text.as_bytes().to_vec());
    let days = close("type=dir; 2026-04-24\r\n");
    let inbox = close(&format!(
        "type=file;size={size};modify=1; a.txt\r\ntype=file;size={size};modify=1; c.txt\r\n"
    ));
    let first = [days.clone(), inbox.clone(), ServerAction::Hang];
    let second = [days.clone(), inbox.clone(), close(text), ServerAction::Hang];
    let acts: Vec<ServerAction> =
        first.into_iter().chain(second).chain([days, inbox, close(text)]).collect();
    let give = move |n: usize| acts.get(n).cloned().unwrap_or(ServerAction::Hang);
    let machine = open_machine("ftp", start_ftp(give, None).port);
    // The texts were seen long ago, and have not changed since.
    let look = json!({"size": size, "modify": "1", "parts": []});
    let seen = json!({"look": look, "since": 1, "first": 1, "unproven": true});
    let files = json!({"ftp:2026-04-24/a.txt": seen, "ftp:2026-04-24/c.txt": seen});
    let folder = machine.dir.path().join("links/store/name");
    std::fs::create_dir_all(&folder).unwrap();
    let saw = json!({"all": 0, "files": files}).to_string();
    std::fs::write(folder.join("saw.json"), saw).unwrap();
    let outcome = machine.fetch("a file without data").outcome;
    assert!(matches!(outcome, ExchangeOutcome::Away { .. }), "{outcome:?}");
    for why in ["broke again", "broke 2 times"] {
        let next = machine.fetch(why);
        assert!(next.outcome.reason().unwrap_or_default().contains(why), "{:?}", next.outcome);
        let names: Vec<&str> = next.brought.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["c"]);
    }
}
