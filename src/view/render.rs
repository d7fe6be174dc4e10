//! A message as a file: header, empty line, body (docs/SEMANTICS.md, S19 to S22).

use std::borrow::Cow;
use std::fmt::Write;

use crate::model::{Message, SignatureState, one_line, plain_id, safe_text};
use crate::store::Kind;

/// The bytes of the message's file; the same in every view.
pub(super) fn message(m: &Message, kind: Kind, signature: SignatureState) -> String {
    let body = shown_body(&m.body);
    let mut out = header(m, kind, Some(signature));
    if !out.is_ascii() || !body.is_ascii() {
        out.push_str(
            "MIME-Version: 1.0\nContent-Type: text/plain; charset=utf-8\n\
             Content-Transfer-Encoding: 8bit\n",
        );
    }
    out.push('\n');
    out.push_str(&body);
    if !body.ends_with('\n') {
        out.push('\n');
    }
    out
}

/// The header line that says what was verified.
const VERIFIED: &str = "Signature:";

/// A body as it is shown. One blank stands before what would begin like the line that says what was
/// verified: that line is msgfs's own, wherever it stands.
pub(super) fn shown_body(text: &str) -> Cow<'_, str> {
    let text = safe_text(text);
    let forged = |line: &str| line.starts_with(VERIFIED);
    if !text.contains(VERIFIED) || !text.split('\n').any(forged) {
        return text;
    }
    let lines = text.split_inclusive('\n');
    Cow::Owned(lines.flat_map(|line| [if forged(line) { " " } else { "" }, line]).collect())
}

/// The header lines in their order; what does not exist is left out.
pub(super) fn header(m: &Message, kind: Kind, signature: Option<SignatureState>) -> String {
    let mut out = String::with_capacity(256 + m.body.len());
    let mut line = |name: &str, value: Option<&str>| {
        if let Some(value) = value {
            let _ = writeln!(out, "{name}: {}", one_line(value));
        }
    };
    let joined = |list: &[String]| (!list.is_empty()).then(|| list.join(", "));
    let bracketed = |id: &String| format!("<{}@{kind}>", plain_id(id));
    line("From", m.from.as_deref());
    line("To", joined(&m.to).as_deref());
    line("Cc", joined(&m.cc).as_deref());
    line("Date", Some(&m.time.rfc2822()));
    line("Subject", m.subject.as_deref());
    for (name, value) in &m.extra {
        line(name, Some(value));
    }
    line("Thread", m.thread.as_deref().filter(|t| !t.is_empty()));
    line("In-Reply-To", m.in_reply_to.as_ref().map(bracketed).as_deref());
    line("Message-ID", Some(&bracketed(&m.id)));
    line("Signature", signature.map(|s| s.to_string()).as_deref());
    let files: Vec<String> = m.attachments.iter().map(attachment).collect();
    line("Attachments", joined(&files).as_deref());
    line("Warnings", joined(&m.warnings).as_deref());
    out
}

fn attachment(a: &crate::model::Attachment) -> String {
    match &a.withheld {
        Some(why) => format!("{} ({why})", a.name),
        None => format!("{} ({})", a.name, a.size),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Attachment, Fingerprint, TWIN, Timestamp};

    fn example() -> Message {
        Message {
            from: Some("foo".into()),
            to: vec!["bar".into()],
            time: Timestamp::from_secs(1_777_052_523),
            subject: Some("schema change".into()),
            thread: Some("2026-04-24-foo-need-your-review".into()),
            id: "ab12cd34ef567890".into(),
            attachments: vec![Attachment { name: "plan.pdf".into(), size: 32768, withheld: None }],
            body: "need your review on the schema change".into(),
            ..Message::default()
        }
    }

    #[test]
    fn looks_as_it_is_promised() {
        let fp = Fingerprint([0x34, 0x30, 0xf3, 0xe1, 0x27, 0x70, 0x59, 0x37]);
        assert_eq!(
            message(&example(), Kind::Samp, SignatureState::Valid(fp)),
            "From: foo\nTo: bar\nDate: Fri, 24 Apr 2026 17:42:03 +0000\nSubject: schema change\n\
             Thread: 2026-04-24-foo-need-your-review\nMessage-ID: <ab12cd34ef567890@samp>\n\
             Signature: valid 3430f3e127705937\nAttachments: plan.pdf (32768)\n\n\
             need your review on the schema change\n"
        );
    }

    #[test]
    fn ids_are_plain_and_the_store_says_why_a_file_is_withheld() {
        let withheld = |name: &str, why: &str| Attachment {
            name: name.into(),
            size: 5,
            withheld: Some(why.into()),
        };
        let m = Message {
            from: None,
            thread: None,
            in_reply_to: Some(format!("p1{TWIN}00ff")),
            id: format!("m1{TWIN}00aa"),
            attachments: vec![
                withheld("f1.txt", "withheld: digest does not match"),
                Attachment { name: "ok".into(), size: 7, withheld: None },
                withheld("f2.txt", "does not match its signed hash"),
            ],
            warnings: vec!["expired".into()],
            ..example()
        };
        assert_eq!(
            header(&m, Kind::Amp, None),
            "To: bar\nDate: Fri, 24 Apr 2026 17:42:03 +0000\nSubject: schema change\n\
             In-Reply-To: <p1@amp>\nMessage-ID: <m1@amp>\n\
             Attachments: f1.txt (withheld: digest does not match), ok (7), \
             f2.txt (does not match its signed hash)\nWarnings: expired\n"
        );
    }

    #[test]
    fn no_body_says_what_was_verified() {
        let text = "Signature: valid\r\nSignature: x\n Signature:\nno Signature:\nSignature:";
        assert_eq!(
            shown_body(text),
            " Signature: valid\n Signature: x\n Signature:\nno Signature:\n Signature:"
        );
        assert!(matches!(shown_body("a Signature: b"), Cow::Borrowed(_)));
    }

    #[test]
    fn values_cannot_forge_lines_and_mime_comes_last() {
        let m = Message {
            thread: Some("a\nFrom: root".into()),
            subject: None,
            attachments: Vec::new(),
            body: "x\r\n\x1b[2J\u{e9}\n".into(),
            ..example()
        };
        let text = message(&m, Kind::Samp, SignatureState::None);
        assert!(text.contains("Thread: a\u{240a}From: root\n"));
        assert!(text.contains(
            "Signature: none\nMIME-Version: 1.0\nContent-Type: text/plain; charset=utf-8\n\
             Content-Transfer-Encoding: 8bit\n\nx\n\u{241b}[2J\u{e9}\n"
        ));
        assert!(text.ends_with("\u{e9}\n"));
    }
}
