use super::*;
use crate::link::agentazall::letter::is_file_stem;
use proptest::prelude::*;

fn parcel(text: &str, parts: Vec<(String, PathBuf)>) -> OutboundMail {
    OutboundMail { message_id: "0123456789ab".into(), to: "al@y".into(), bytes: text.into(), parts }
}

/// Returns the letter of a mail.
fn got(raw: &[u8]) -> (tempfile::TempDir, InboundMail, text::Letter) {
    let dir = tempfile::tempdir().unwrap();
    let arrived = mail_to_letter(raw, &dir.path().join("parts")).unwrap();
    let letter = text::parse(&arrived.bytes);
    (dir, arrived, letter)
}

#[test]
fn a_letter_goes_out_and_comes_in_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let mut parts = Vec::new();
    for (name, bytes) in
        [("a b.txt", &b"x\r\n.\r\n"[..]), ("\u{fc}ber \"x\".bin", b""), ("c.txt", b"t\n")]
    {
        let path = dir.path().join(parts.len().to_string());
        std::fs::write(&path, bytes).unwrap();
        parts.push((name.to_owned(), path));
    }
    let text = format!(
        "From: bob@x\nTo: al@y, zoe@z\nCc: eve@w\nSubject: {}\nDate: 2026-03-11 10:00:00\n\
         Message-ID: 0123456789ab\nIn-Reply-To: orig@mail.example\n---\n.\nline \u{e9}\n\n",
        "gr\u{fc}\u{df}e ".repeat(30).trim()
    );
    for parts in [Vec::new(), parts] {
        let wire = compose_mail(&parcel(&text, parts.clone()), false, 1 << 20).unwrap();
        assert_eq!(
            wire,
            compose_mail(&parcel(&text, parts.clone()), false, 1 << 20).unwrap(),
            "stable"
        );
        let shown = String::from_utf8(wire.clone()).unwrap();
        assert!(shown.is_ascii() && shown.lines().all(|l| l.len() <= 998), "{shown}");
        assert!(shown.contains("\r\nMessage-ID: <0123456789ab@agentazall>\r\n"), "{shown}");
        assert!(shown.contains("\r\nIn-Reply-To: <orig@mail.example>\r\n"), "{shown}");
        let (_dir, arrived, letter) = got(&wire);
        let sent = text::parse(text.as_bytes());
        for key in ["From", "To", "Cc", "Subject", "Message-ID"] {
            assert_eq!(letter.get(key), sent.get(key), "{key}");
        }
        assert_eq!(letter.body, sent.body);
        assert_eq!(
            parse_mail_date(letter.get("Date").unwrap()).map(|at| at.millis() % 1000),
            Some(0)
        );
        assert_eq!(arrived.day.as_deref(), Some("2026-03-11"));
        let names: Vec<&str> = arrived.parts.iter().map(|(n, _)| n.as_str()).collect();
        match parts.len() {
            0 => assert_eq!(names, [""; 0]),
            _ => assert_eq!(names, ["a b.txt", "\u{fc}ber _x_.bin", "c.txt"]),
        }
        for ((_, mine), (_, theirs)) in parts.iter().zip(&arrived.parts) {
            assert_eq!(std::fs::read(mine).unwrap(), std::fs::read(theirs).unwrap());
        }
    }
}

#[test]
fn what_is_too_large_does_not_go() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x");
    std::fs::File::create(&path).unwrap().set_len(1 << 30).unwrap();
    let why = compose_mail(&parcel("From: a@x\n---\n", vec![("x".into(), path)]), false, 1000)
        .unwrap_err()
        .to_string();
    assert!(why.contains("larger than 1000 bytes"), "{why}");
}

#[test]
fn ids_as_mails_have_them() {
    for (id, mail) in [("0123456789ab", "<0123456789ab@agentazall>"), ("x.y@z", "<x.y@z>")] {
        assert_eq!(format_mail_id(id), mail);
    }
    for odd in ["", "a b", "a>\r\nBcc: x", "a<b", "\u{e9}", &"x".repeat(300)] {
        let mail = format_mail_id(odd);
        assert!(mail.ends_with("@agentazall>") && mail.len() == 37, "{odd}: {mail}");
    }
}

#[test]
fn mails_of_people_are_letters() {
    let raw = "From: =?utf-8?q?J=C3=BCrgen=2C_the_=3Cboss=3E?= <j@people.example>\r\n\
        To: \"Bob, B.\" <bob@x>, al@y\r\nSubject: =?iso-8859-1?Q?caf=E9?=\r\n\
        Date: Wed, 11 Mar 2026 23:30:00 -0500\r\nMessage-ID: <abc.def@people.example>\r\n\
        MIME-Version: 1.0\r\nContent-Type: multipart/alternative; boundary=b\r\n\r\n\
        --b\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Transfer-Encoding: quoted-printable\r\n\r\n\
        caf=C3=A9 =\r\nand more\r\n\r\n--b\r\nContent-Type: text/html\r\n\r\n<p>caf&eacute;</p>\r\n--b--\r\n";
    let (_dir, arrived, letter) = got(raw.as_bytes());
    assert_eq!(letter.get("From"), Some("J\u{fc}rgen  the  boss <j@people.example>"));
    assert_eq!(letter.get("To"), Some("bob@x, al@y"));
    assert_eq!(letter.get("Subject"), Some("caf\u{e9}"));
    assert_eq!(letter.get("Message-ID"), Some("abc.def@people.example"));
    assert_eq!(letter.body.trim_end(), "caf\u{e9} and more");
    assert_eq!(arrived.day.as_deref(), Some("2026-03-11"), "where it was written");
    let (_dir, _, letter) =
        got(b"Subject: h\r\nContent-Type: text/html\r\n\r\n<p>only <b>html</b></p>\r\n");
    assert!(letter.body.contains("only html"), "{}", letter.body);
}

#[test]
fn what_is_foreign_cannot_forge_a_header_or_lead_elsewhere() {
    let raw = "From: =?utf-8?q?a=0ATo:_root?= <e@x>\r\nSubject: =?utf-8?q?s=0D=0AFrom:_root=0AStatus:_read?=\r\n\
        Date: x\u{2028}y\r\nMessage-ID: <../../etc/passwd@agentazall>\r\nContent-Type: multipart/mixed; boundary=b\r\n\r\n\
        --b\r\nContent-Disposition: attachment; filename=\"../../etc/passwd\"\r\n\r\na\r\n\
        --b\r\nContent-Disposition: attachment; filename=passwd\r\n\r\nb\r\n\
        --b\r\nContent-Disposition: attachment; filename*=utf-8''..%2F..\r\n\r\nc\r\n--b--\r\n";
    let (_dir, arrived, letter) = got(raw.as_bytes());
    assert_eq!(letter.get("Status"), Some("new"));
    assert!(letter.get("From").unwrap().ends_with("<e@x>"), "{letter:?}");
    let names: Vec<&str> = arrived.parts.iter().map(|(n, _)| n.as_str()).collect();
    assert_eq!(names, ["passwd", "passwd~2", "attachment3.bin"]);
    assert!(is_file_stem(&arrived.name) && is_file_stem(&arrived.other_name));
    assert_eq!(arrived.day.as_deref(), Some(NO_DAY));
}

#[test]
fn days_of_any_clock() {
    for (date, day) in [
        ("Thu, 1 Jan 1970 00:00:00 +0000", "1970-01-01"),
        ("Sun, 7 Feb 2106 06:28:16 +0000", "2106-02-07"),
        ("Thu, 30 Feb 2026 00:00:00 +0000", NO_DAY),
        ("", NO_DAY),
        ("yesterday", NO_DAY),
    ] {
        let raw = format!("From: a@x\r\nDate: {date}\r\n\r\nx\r\n");
        assert_eq!(got(raw.as_bytes()).1.day.as_deref(), Some(day), "{date}");
    }
    for text in ["1970-01-01 00:00:00", "2106-02-07 06:28:16", "never", ""] {
        assert!(format_mail_date(text).contains(':'), "{text}");
    }
}

#[test]
fn the_same_mail_is_the_same_letter_however_it_ends() {
    let raw = b"From: a@x\r\nSubject: s\r\n\r\ntext\r\n";
    let first = got(raw).1;
    assert_eq!(first.name, got(&[&raw[..], b"\r\n"].concat()).1.name);
    assert_ne!(first.name, got(b"From: a@x\r\nSubject: s\r\n\r\nother\r\n").1.name);
}

#[test]
fn of_a_mail_that_is_too_large_the_beginning_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let begin = b"From: a@x\r\nSubject: big\r\n\r\nit begins";
    let arrived = describe_large_mail(begin, 1 << 32, 100, dir.path()).unwrap();
    let letter = text::parse(&arrived.bytes);
    assert_eq!(letter.get("Subject"), Some("big"));
    assert!(letter.body.contains("4294967296 bytes") && letter.body.ends_with("it begins"));
}

proptest! {
    #[test]
    fn any_bytes_are_a_letter(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        let (_dir, arrived, _) = got(&bytes);
        prop_assert!(is_file_stem(&arrived.name));
    }

    #[test]
    fn any_structure_is_a_letter(pieces in proptest::collection::vec(prop_oneof![
        Just("Content-Type: multipart/mixed; boundary=b\r\n"), Just("Content-Type: message/rfc822\r\n"),
        Just("Content-Transfer-Encoding: base64\r\n"), Just("Content-Disposition: attachment; filename=\"x\"\r\n"),
        Just("\r\n"), Just("--b\r\n"), Just("--b--\r\n"), Just("text\0\r\n"), Just("From: a <b\r\n"),
        Just("Date: Wed, 11 Mar 2026 23:30:00 -0500\r\n"), Just("=?utf-8?B?!!?="),
    ], 0..30)) {
        let (_dir, arrived, letter) = got(pieces.concat().as_bytes());
        prop_assert!(is_file_stem(&arrived.name));
        prop_assert!(letter.get("Status").is_none_or(|status| status == "new"));
    }
}

/// S640: a mail that is dangerous to parse keeps all its bytes, and the store rejects it.
#[test]
fn s640_what_is_made_to_stop_its_reader_is_kept_as_it_came() {
    let raw = "From: a@x\r\n".to_owned() + &"Content-Type: message/rfc822\r\n\r\n".repeat(20_000);
    let (_dir, arrived, letter) = got(raw.as_bytes());
    assert!(letter.get(text::UNREADABLE).unwrap().contains("more than 1000 mails"), "{letter:?}");
    assert!(arrived.bytes.ends_with(raw.as_bytes()) && is_file_stem(&arrived.name));
    let parts = "--b\r\nContent-Type: application/x-y\r\n\r\nx\r\n".repeat(10_000);
    let raw =
        format!("From: a@x\r\nContent-Type: multipart/mixed; boundary=b\r\n\r\n{parts}--b--\r\n");
    let (_dir, arrived, letter) = got(raw.as_bytes());
    assert_eq!((arrived.parts.len(), letter.get(text::UNREADABLE)), (100, None));
    assert!(letter.body.contains("after the 100th"));
}

#[test]
fn a_mail_that_broke_off_is_a_letter_of_what_there_is() {
    let raw = "From: a@x\r\nSubject: s\r\nContent-Type: multipart/mixed; boundary=b\r\n\r\n--b\r\n\
               Content-Type: text/plain\r\n\r\nhalf of";
    let (_dir, arrived, letter) = got(raw.as_bytes());
    assert_eq!((letter.body.as_str(), arrived.parts.len()), ("half of", 0));
    let file = raw.to_owned()
        + "\r\n--b\r\nContent-Type: application/x-y; name=f.bin\r\nContent-Transfer-Encoding: base64\r\n\r\nAAEC";
    let (_dir, arrived, letter) = got(file.as_bytes());
    assert_eq!((letter.body.as_str(), arrived.parts[0].0.as_str()), ("half of", "f.bin"));
    assert!(!std::fs::read(&arrived.parts[0].1).unwrap().is_empty());
}
