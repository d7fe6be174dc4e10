use super::*;
use proptest::prelude::*;

/// Returns a mail in a mail, so many levels deep.
fn nested(depth: usize) -> String {
    "Content-Type: message/rfc822\n\n".repeat(depth) + "Subject: inner\n\ntext\n"
}

/// Parses on a thread with a small stack: a recursive walk of a deep tree overflows it.
fn parsed(raw: Vec<u8>) -> Result<Message<'static>, MailError> {
    let thread = std::thread::Builder::new().stack_size(256 << 10);
    thread.spawn(move || parse(&raw)).unwrap().join().unwrap()
}

fn bodies(mail: &Message<'_>) -> Vec<String> {
    mail.parts.iter().map(|part| String::from_utf8_lossy(part.contents()).into_owned()).collect()
}

/// Returns the joined texts of all numbers.
fn numbered(count: usize, text: impl Fn(usize) -> String) -> String {
    (0..count).map(text).collect()
}

#[test]
fn mails_in_mails_have_a_bound() {
    assert_eq!(parsed(nested(20_000).into_bytes()), Err(MailError::TooManyMails));
    let in_parts = numbered(20_000, |n| {
        format!(
            "Content-Type: multipart/mixed; boundary=b{n}\n\n--b{n}\nContent-Type: message/rfc822\n\n"
        )
    });
    assert_eq!(parsed(in_parts.into_bytes()), Err(MailError::TooManyMails));
    let mail = parsed(format!("Subject: outer\n{}", nested(900)).into_bytes()).unwrap();
    let [part] = &mail.parts[..] else { panic!("{mail:?}") };
    assert!(is_mail_part(part) && part.contents() == nested(899).as_bytes());
}

#[test]
fn a_mail_in_base64_is_not_opened() {
    use base64::Engine as _;
    let inner = base64::engine::general_purpose::STANDARD.encode(nested(20_000));
    let head = "Content-Type: message/rfc822\nContent-Transfer-Encoding: base64\n\n";
    let mail = parsed(format!("{head}{inner}\n").into_bytes()).unwrap();
    assert_eq!(bodies(&mail), [nested(20_000)]);
}

#[test]
fn however_the_type_is_written_no_part_is_read_as_a_mail() {
    for head in [
        "Content-Type: message/rfc822",
        "content-type :MESSAGE/RFC822",
        " Con tent-Ty pe: message/global",
        ":Content-Type: (a;b) Message (c)/ rfc822",
        "Content-Type:\n\tmessage\n /rfc822;\n name=\"message.eml\"",
        "X: Content-Type:;Content-Type:message/rfc822\nContent-Type: \"message\"/rfc822",
    ] {
        let mail = parsed(format!("{head}\n\nSubject: inner\n\ntext\n").into_bytes()).unwrap();
        let [part] = &mail.parts[..] else { panic!("{head}: {mail:?}") };
        assert!(!matches!(part.body, PartType::Message(_)), "{head}");
        assert_eq!(part.contents(), b"Subject: inner\n\ntext\n", "{head}");
    }
    let in_line = "Content-Type: multipart/mixed; boundary=b\n\n--bContent-Type:;--bContent-Type: \
                   message/rfc822\n\nSubject: x\n\ny\n--b--\n";
    let mail = parsed(in_line.into()).unwrap();
    assert!(mail.parts.iter().all(|part| !matches!(part.body, PartType::Message(_))), "{mail:?}");
}

#[test]
fn a_text_about_mails_stays_as_it_is() {
    let quoted = "He wrote\nContent-Type: message/rfc822\nDKIM: h=Content-Type:Message-ID\n";
    let encoded = quoted.replace('=', "=3D");
    let raw = format!(
        "Content-Type: multipart/mixed; boundary=b\n\n--b\nContent-Type: text/plain; charset=utf-8\n\n{quoted}\n\
         --b\nContent-Transfer-Encoding: quoted-printable\n\n{encoded}\n\
         --b\nContent-Type: application/octet-stream; name=\"message.bin\"\n\n{quoted}\n\
         --b\nContent-Type: multipart/digest; boundary=c\n\n--c\n\nSubject: one\n\ndigest\n--c--\n--b--\n"
    );
    let mail = parsed(raw.clone().into_bytes()).unwrap();
    let bodies = bodies(&mail);
    assert_eq!(bodies[1..4], [quoted, quoted, quoted]);
    assert_eq!(mail.parts[3].attachment_name(), Some("message.bin"));
    assert_eq!(mail.parts[4].content_type().unwrap().subtype(), Some("digest"));
    assert_eq!(bodies[5], "Subject: one\n\ndigest");
    assert_eq!(mail.raw_message(), raw.as_bytes());
}

#[test]
fn a_digest_of_many_mails_is_read() {
    let one = "--b\nContent-Type: message/rfc822\n\nSubject: x\n\ny\n";
    let head = "Content-Type: multipart/digest; boundary=b\n\n";
    let mail = parsed(format!("{head}{}--b--\n", one.repeat(300)).into_bytes()).unwrap();
    assert_eq!(mail.parts.iter().filter(|part| is_mail_part(part)).count(), 300);
}

#[test]
fn what_would_take_too_long_is_refused_or_no_header() {
    let divided =
        "Content-Type: multipart/mixed; boundary=b\n\n".to_owned() + &"--b\n\n".repeat(60_000);
    assert_eq!(parsed(divided.into_bytes()), Err(MailError::TooManyParts));
    let absent = "--b\nContent-Type: multipart/mixed; boundary=c\n\n".repeat(20_000);
    let absent =
        format!("Content-Type: multipart/mixed; boundary=b\n\n{absent}{}", "x\n".repeat(1 << 19));
    assert_eq!(parsed(absent.into_bytes()), Err(MailError::TooManyParts));
    let attributes = numbered(50_000, |n| format!("; a{n}*0=x"));
    let mail =
        parsed(format!("Content-Type: text/plain{attributes}\n\ntext\n").into_bytes()).unwrap();
    assert!(mail.parts[0].content_type().is_none());
    assert_eq!(bodies(&mail), ["text\n"]);
    let plain = format!("Subject: s\n\n{}", "--- a\n".repeat(60_000));
    assert!(parsed(plain.into_bytes()).is_ok(), "without parts no line divides them");
}

#[test]
fn a_deep_tree_of_parts_is_read() {
    let open =
        numbered(5_000, |n| format!("Content-Type: multipart/mixed; boundary=b{n}.\n\n--b{n}.\n"));
    let mail = parsed(format!("{open}\nthe text").into_bytes()).unwrap();
    assert_eq!(mail.parts.len(), 5_001);
}

proptest! {
    #[test]
    fn the_disguise_changes_nothing_that_is_shown(pieces in proptest::collection::vec(prop_oneof![
        Just("Content-Type: multipart/mixed; boundary=b\r\n"), Just("Content-Type: message/rfc822\r\n"),
        Just("Content-Type: text/plain; name=message.txt\r\n"), Just("content-type: (;) Message/Global\n"),
        Just("Content-Transfer-Encoding: base64\r\n"), Just("Content-Transfer-Encoding: quoted-printable\n"),
        Just("Content-Type: multipart/digest; boundary=\"b\"\n"), Just("\r\n"), Just("\n"), Just("--b\r\n"),
        Just("--b--\r\n"), Just("text=20\r\n"), Just("YWJj\n"), Just("--b"), Just(" folded\n"),
    ], 0..30)) {
        let raw = pieces.concat();
        if let Ok(mail) = parse(raw.as_bytes()) {
            for part in &mail.parts {
                prop_assert!(!matches!(part.body, PartType::Message(_)));
                let is_plain = part.encoding == mail_parser::Encoding::None
                    && !matches!(part.body, PartType::Multipart(_));
                let bytes = charset::decode_part(raw.as_bytes(), part);
                prop_assert!(!is_plain || part.contents() == &*bytes, "{:?} {:?}", part, bytes);
            }
        }
    }
}
