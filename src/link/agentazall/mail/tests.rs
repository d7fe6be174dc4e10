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
