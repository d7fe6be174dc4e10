use super::fetch_folder::LISTED;
use super::*;
use std::io::Seek as _;

fn ftp() -> FtpEngine {
    let settings = EngineSettings {
        kind: "ftp".into(),
        file: PathBuf::from("/nowhere/config.json"),
        part: "/ftp".into(),
        me: "bob@x".into(),
        insecure: false,
        ca: None,
        self_copy: false,
    };
    FtpEngine::open(&settings)
}

fn parcel(to: &str, text: &str, parts: Vec<(String, PathBuf)>) -> OutboundMail {
    OutboundMail { message_id: "0123456789ab".into(), to: to.into(), bytes: text.into(), parts }
}

#[test]
fn what_waits_has_text_and_attachments() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("p.pdf");
    std::fs::write(&file, "attached").unwrap();
    let text = "From: bob@x\nDate: 2026-03-11 10:00:00\n---\nhi\n";
    let wire =
        ftp().encode_parcel(&parcel("al@y", text, vec![("p.pdf".into(), file.clone())])).unwrap();
    let mut at = tempfile::tempfile().unwrap();
    std::io::Write::write_all(&mut at, &wire).unwrap();
    at.rewind().unwrap();
    assert!(wire.ends_with(format!("\n{text}attached").as_bytes()));
    let head: FtpUploadHeader =
        serde_json::from_slice(wire.split(|b| *b == b'\n').next().unwrap()).unwrap();
    assert_eq!((head.day.as_str(), head.stem.as_str()), ("2026-03-11", "0123456789ab"));
    assert_eq!(head.parts, [("p.pdf".to_owned(), 8)]);
    assert!(FtpUpload::open(at).is_ok());
    let large = std::fs::File::create(&file).unwrap();
    large.set_len(1 << 30).unwrap();
    let encode = |path| ftp().encode_parcel(&parcel("al@y", text, vec![("p.pdf".into(), path)]));
    let why = encode(file).unwrap_err().to_string();
    assert!(why.contains("at most"), "{why}");
    // S1293: the store tries again what cannot be read now.
    assert!(matches!(encode(dir.path().join("gone")), Err(EncodeError::Final(_))));
    assert!(matches!(encode(dir.path().join("x".repeat(300))), Err(EncodeError::Passing(_))));
    for bad in ["../x@y", "a/b@y", "a\r\nDELE x@y", ""] {
        assert!(ftp().encode_parcel(&parcel(bad, text, Vec::new())).is_err(), "{bad}");
    }
}

#[test]
fn whom_it_reaches() {
    let all =
        ["bob@localhost", "bob", "bob.agenttalk", "../x@y", ""].map(|a| ftp().rank_address(a));
    assert_eq!(all, [Some(2), None, None, None, None]);
    let mut second = ftp();
    second.settings.part = "/ftp_servers/1".into();
    assert_eq!(second.rank_address("bob@localhost"), None);
    assert_eq!(ftp().describe_engine(), "ftp://127.0.0.1:2121");
}

#[test]
fn what_was_brought_is_filed_under_names_that_can_be_used() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, bytes: &[u8]| std::fs::write(dir.path().join(name), bytes).unwrap();
    let brought = FtpMessageMeta {
        id: "ftp:2026-03-11/..txt".into(),
        names: ["../../x".into(), "0123456789ab".into()],
        day: "../..".into(),
        parts: vec!["a".into(), "../a".into(), "a".into()],
        seen: "x".into(),
        fault: None,
    };
    write(LISTED, br#"["ftp:a/b.txt"]"#);
    write("0.json", &serde_json::to_vec(&brought).unwrap());
    write("0.txt", b"text");
    write("1.json", b"{");
    let items: Vec<FetchedItem> =
        ftp().unpack_items(dir.path()).into_iter().map(Result::unwrap).collect();
    let [known, item] = &items[..] else { panic!("{items:?}") };
    assert!(known.is_only_known() && !item.is_only_known());
    assert_eq!(item.arrived.name, "0123456789ab");
    let names: Vec<&str> = item.arrived.parts.iter().map(|(n, _)| n.as_str()).collect();
    assert_eq!(names, ["a", "a~2", "a~3"]);
}

#[test]
fn refusals_mean_what_they_say() {
    let outcome = |code| {
        let text = format!("{code} no\nmore");
        ftp().classify_error(&FtpError::Refused(client::FtpReply { code, text }))
    };
    for code in [530, 331, 421, 425] {
        assert!(matches!(outcome(code), ExchangeOutcome::Away { .. }), "{code}");
    }
    for code in [450, 452, 552, 502] {
        assert!(matches!(outcome(code), ExchangeOutcome::Later { .. }), "{code}");
    }
}
