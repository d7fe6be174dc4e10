use super::*;
use std::path::PathBuf;

mod copies;

fn settings(part: &str) -> EngineSettings {
    EngineSettings {
        kind: "mail".into(),
        file: PathBuf::from("/nowhere/config.json"),
        part: part.into(),
        me: "bob@x".into(),
        insecure: false,
        ca: None,
        self_copy: false,
    }
}

fn mail(part: &str) -> MailEngine {
    MailEngine::open(&settings(part)).unwrap()
}

#[test]
fn whom_it_reaches() {
    let reached = |address| mail("/email").rank_address(address);
    let all = ["al@y", "bob.agenttalk", "bob", "a@b@c", "@x", ""].map(reached);
    assert_eq!(all, [Some(3), None, None, None, None, None]);
    assert_eq!(mail("/email_accounts/1").rank_address("al@y"), None);
}

#[test]
fn an_address_cannot_speak_smtp() {
    let parcel = |to: &str| OutboundMail {
        message_id: "m".into(),
        to: to.into(),
        bytes: b"From: bob@x\n---\nhi".to_vec(),
        parts: Vec::new(),
    };
    let wire = mail("/email").encode_parcel(&parcel("al@y")).unwrap();
    assert!(wire.starts_with(b"{\"from\":\"bob@x\",\"to\":\"al@y\"}\nFrom: bob@x\r\n"));
    for bad in ["al@y>\r\nRCPT TO:<eve@z", "a b@y", "<al@y>", ""] {
        assert!(mail("/email").encode_parcel(&parcel(bad)).is_err(), "{bad}");
    }
}

/// S1293: a letter whose attachment is gone is refused; one whose attachment cannot be read now is not.
#[test]
fn s1293_only_an_attachment_that_is_gone_refuses_a_letter() {
    let dir = tempfile::tempdir().unwrap();
    let encode = |name: &str| {
        mail("/email").encode_parcel(&OutboundMail {
            message_id: "m".into(),
            to: "al@y".into(),
            bytes: b"From: bob@x\n---\nhi".to_vec(),
            parts: vec![("x".into(), dir.path().join(name))],
        })
    };
    assert!(matches!(encode("gone"), Err(EncodeError::Final(_))));
    assert!(matches!(encode(&"x".repeat(300)), Err(EncodeError::Passing(_))));
}

#[test]
fn what_was_brought_is_filed_unless_the_reference_has() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("agz");
    let inbox = root.join("data/mailboxes/bob@x/2026-03-11/inbox");
    std::fs::create_dir_all(&inbox).unwrap();
    std::fs::write(root.join("config.json"), r#"{"agent_name": "bob@x", "email": {}}"#).unwrap();
    let theirs = "From: Al <al@y>\nTo: bob@x\nSubject: s\nDate: Wed, 11 Mar 2026 10:00:00 +0000\n\
                  Message-ID: random\nStatus: new\n\n---\ntext\r\n";
    std::fs::write(inbox.join("random.txt"), theirs).unwrap();
    let raw = dir.path().join("raw");
    std::fs::create_dir_all(&raw).unwrap();
    let put = |n: usize, maybe, body: &str| {
        let brought =
            FetchedMailMeta { id: format!("imap:{n}"), seen: n.to_string(), maybe, size: None };
        std::fs::write(raw.join(format!("{n}.json")), serde_json::to_vec(&brought).unwrap())
            .unwrap();
        let mail = format!(
            "From: Al <al@y>\r\nTo: bob@x\r\nSubject: s\r\nDate: Wed, 11 Mar 2026 10:00:00 +0000\r\n\r\n{body}\r\n"
        );
        std::fs::write(raw.join(format!("{n}.eml")), mail).unwrap();
    };
    put(0, true, "text");
    put(1, true, "another text of the same second");
    put(2, false, "text");
    std::fs::write(raw.join(fetch_folder::LISTED), r#"["imap:old"]"#).unwrap();
    let mut mail = mail("/email");
    mail.settings.file = root.join("config.json");
    let items: Vec<FetchedItem> = mail.unpack_items(&raw).into_iter().map(Result::unwrap).collect();
    let known: Vec<(&str, bool)> =
        items.iter().map(|i| (i.id.as_str(), i.is_only_known())).collect();
    assert_eq!(known, [("imap:old", true), ("imap:0", true), ("imap:1", false), ("imap:2", false)]);
}

/// S640: a letter that ends the process which reads it does not stop the others.
#[test]
fn s640_a_letter_that_ended_the_process_each_time_is_kept_as_it_came() {
    let dir = tempfile::tempdir().unwrap();
    let letter = b"From: al@y\r\nSubject: s\r\n\r\nx\r\n";
    for n in 0..2 {
        let brought = FetchedMailMeta {
            id: format!("imap:{n}"),
            seen: n.to_string(),
            ..FetchedMailMeta::default()
        };
        let json = serde_json::to_vec(&brought).unwrap();
        std::fs::write(dir.path().join(format!("{n}.json")), json).unwrap();
        std::fs::write(dir.path().join(format!("{n}.eml")), letter).unwrap();
    }
    let texts = || -> Vec<text::Letter> {
        let items = mail("/email").unpack_items(dir.path());
        items.into_iter().map(|item| text::parse(&item.unwrap().arrived.bytes)).collect()
    };
    for (tries, is_kept) in [("..", false), ("...", true), ("...", true)] {
        std::fs::write(dir.path().join("0.tries"), tries).unwrap();
        let texts = texts();
        assert_eq!(texts[0].get(text::UNREADABLE).is_some(), is_kept, "{tries}");
        assert_eq!(texts[0].body.contains("Subject: s"), is_kept, "{tries}");
        assert_eq!(texts[1].get(text::UNREADABLE), None);
    }
    assert!(!dir.path().join("1.tries").exists(), "what ended well is not counted");
}

/// A server of one line protocol that counts its connections. `answer` gives the answer to a line on the n-th
/// connection, and ends the connection with an empty one.
fn smtp_server(
    answer: impl Fn(usize, &str) -> &'static str + Send + Sync + 'static,
) -> (u16, std::sync::Arc<std::sync::Mutex<Vec<String>>>) {
    use std::io::{BufRead, BufReader, Write};
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let heard = std::sync::Arc::<std::sync::Mutex<Vec<String>>>::default();
    let all = std::sync::Arc::clone(&heard);
    std::thread::spawn(move || {
        for (n, stream) in listener.incoming().flatten().enumerate() {
            let mut out = stream.try_clone().unwrap();
            out.write_all(b"220 hi\r\n").unwrap();
            all.lock().unwrap().push(format!("connection {n}"));
            let mut is_text = false;
            for line in BufReader::new(stream).lines().map_while(Result::ok) {
                is_text &= line != ".";
                if is_text {
                    continue;
                }
                all.lock().unwrap().push(line.clone());
                let answer = answer(n, &line);
                if answer.is_empty() {
                    break;
                }
                is_text = line == "DATA" && answer.starts_with("354");
                out.write_all(format!("{answer}\r\n").as_bytes()).unwrap();
            }
        }
    });
    (port, heard)
}

/// Sends mails to these recipients in one session, and returns the outcomes and the commands of the server.
fn sent_in_one_session(
    recipients: &[&str],
    answer: impl Fn(usize, &str) -> &'static str + Send + Sync + 'static,
) -> (Vec<ExchangeOutcome>, Vec<String>) {
    use std::os::unix::fs::PermissionsExt;
    let (port, heard) = smtp_server(answer);
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("config.json");
    let email = serde_json::json!({"smtp_server": "127.0.0.1", "smtp_port": port, "password": ""});
    std::fs::write(&file, serde_json::json!({"email": email}).to_string()).unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
    let engine = MailEngine::open(&EngineSettings { file, ..settings("/email") }).unwrap();
    let mut session = engine.open_session();
    let mut outcomes = Vec::new();
    for (n, to) in recipients.iter().enumerate() {
        let parcel = OutboundMail {
            message_id: format!("m{n}"),
            to: (*to).to_owned(),
            bytes: b"From: bob@x\n---\nhi".to_vec(),
            parts: Vec::new(),
        };
        let wire = dir.path().join(n.to_string());
        std::fs::write(&wire, engine.encode_parcel(&parcel).unwrap()).unwrap();
        outcomes.push(session.send(&wire));
    }
    session.disconnect();
    let heard = heard.lock().unwrap().clone();
    (outcomes, heard)
}

fn usual(line: &str) -> &'static str {
    if line == "DATA" { "354 go" } else { "250 ok" }
}

fn count(heard: &[String], begin: &str) -> usize {
    heard.iter().filter(|line| line.starts_with(begin)).count()
}

#[test]
fn many_mails_go_over_one_connection() {
    let (outcomes, heard) = sent_in_one_session(&["al@y"; 20], |_, line| usual(line));
    assert_eq!(outcomes, vec![ExchangeOutcome::Done; 20]);
    assert_eq!(
        (count(&heard, "connection"), count(&heard, "."), count(&heard, "RSET")),
        (1, 20, 0)
    );
}

/// A refused recipient concerns one mail; the next one goes over the same connection.
#[test]
fn after_a_refusal_the_connection_takes_the_next_mail() {
    let (outcomes, heard) = sent_in_one_session(&["no@y", "al@y", "no@y", "al@y"], |_, line| {
        if line == "RCPT TO:<no@y>" { "550 nobody" } else { usual(line) }
    });
    let refused = ExchangeOutcome::Refused { why: "550 nobody".into() };
    let done = ExchangeOutcome::Done;
    assert_eq!(outcomes, [refused.clone(), done.clone(), refused, done]);
    // A refusal on a used connection may mean the connection, so it is heard twice.
    assert_eq!((count(&heard, "connection"), count(&heard, "RCPT TO:<no")), (2, 3));
    assert_eq!((count(&heard, "RSET"), count(&heard, ".")), (2, 2));
}

/// Servers that end the connection after each mail, or refuse a second one on it, get all mails.
#[test]
fn a_server_that_takes_one_mail_a_connection_gets_all() {
    for refusal in ["", "421 enough", "452 4.5.3 too many mails", "503 bye"] {
        let mails = std::sync::Mutex::new(std::collections::HashMap::<usize, usize>::new());
        let (outcomes, heard) = sent_in_one_session(&["al@y"; 5], move |connection, line| {
            let mut mails = mails.lock().unwrap();
            let taken = mails.entry(connection).or_default();
            match line {
                line if line.starts_with("MAIL") && *taken > 0 => refusal,
                "." => {
                    *taken += 1;
                    "250 ok"
                }
                other => usual(other),
            }
        });
        assert_eq!(outcomes, vec![ExchangeOutcome::Done; 5], "{refusal:?}");
        assert_eq!((count(&heard, "connection"), count(&heard, ".")), (5, 5), "{refusal:?}");
    }
}

/// After a lost answer the mail is unknown, and the next one goes over another connection.
#[test]
fn a_connection_that_breaks_in_a_mail_is_not_used_again() {
    let (outcomes, heard) = sent_in_one_session(&["al@y"; 3], |connection, line| {
        if connection == 0 && line == "." { "" } else { usual(line) }
    });
    assert!(matches!(
        outcomes[..],
        [ExchangeOutcome::Unknown { .. }, ExchangeOutcome::Done, ExchangeOutcome::Done]
    ));
    assert_eq!((count(&heard, "connection"), count(&heard, "MAIL")), (2, 3));
}
