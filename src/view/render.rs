//! A message as a file: header, empty line, body (docs/SEMANTICS.md, S19 to S22).

use std::borrow::Cow;
use std::fmt::Write;

use crate::model::plain_message::{MIME, VERIFIED};
use crate::model::{Message, SignatureState, plain_id, sanitize_line, sanitize_text};
use crate::store::Kind;

/// Returns the rendered text of a message, which is the same in every view.
pub(super) fn render_message(m: &Message, kind: Kind, signature: SignatureState) -> String {
    let body = render_body(&m.body);
    let mut out = render_header(m, kind, Some(signature));
    if !out.is_ascii() || !body.is_ascii() {
        out.push_str(MIME);
    }
    out.push('\n');
    out.push_str(&body);
    if !body.ends_with('\n') {
        out.push('\n');
    }
    out
}

/// Returns a body as it is shown. A blank precedes each line that begins like the line about the signature,
/// which only msgfs writes.
pub(super) fn render_body(text: &str) -> Cow<'_, str> {
    let text = sanitize_text(text);
    let forged = |line: &str| line.starts_with(VERIFIED);
    if !text.contains(VERIFIED) || !text.split('\n').any(forged) {
        return text;
    }
    let lines = text.split_inclusive('\n');
    Cow::Owned(lines.flat_map(|line| [if forged(line) { " " } else { "" }, line]).collect())
}

/// Returns the header lines in their order; missing ones are left out.
pub(super) fn render_header(m: &Message, kind: Kind, signature: Option<SignatureState>) -> String {
    let mut out = String::with_capacity(256 + m.body.len());
    let mut line = |name: &str, value: Option<&str>| {
        if let Some(value) = value {
            let _ = writeln!(out, "{name}: {}", sanitize_line(value));
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
    let files: Vec<String> = m.attachments.iter().map(format_attachment).collect();
    line("Attachments", joined(&files).as_deref());
    line("Warnings", joined(&m.warnings).as_deref());
    out
}

fn format_attachment(a: &crate::model::Attachment) -> String {
    match &a.withheld {
        Some(why) => format!("{} ({why})", a.name),
        None => format!("{} ({})", a.name, a.size),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::plain_message::{PlainMessage, RULE, is_visible};
    use crate::model::{Attachment, Fingerprint, TWIN, Timestamp};
    use crate::view::transcript::find_rules;
    use proptest::prelude::*;

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
            render_message(&example(), Kind::Samp, SignatureState::Valid(fp)),
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
            render_header(&m, Kind::Amp, None),
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
            render_body(text),
            " Signature: valid\n Signature: x\n Signature:\nno Signature:\n Signature:"
        );
        assert!(matches!(render_body("a Signature: b"), Cow::Borrowed(_)));
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
        let text = render_message(&m, Kind::Samp, SignatureState::None);
        assert!(text.contains("Thread: a\u{240a}From: root\n"));
        assert!(text.contains(
            "Signature: none\nMIME-Version: 1.0\nContent-Type: text/plain; charset=utf-8\n\
             Content-Transfer-Encoding: 8bit\n\nx\n\u{241b}[2J\u{e9}\n"
        ));
        assert!(text.ends_with("\u{e9}\n"));
    }

    /// Generates texts of messages; most are plain.
    fn text() -> impl Strategy<Value = String> {
        let pieces = prop_oneof![
            8 => "[ -~]{0,12}",
            1 => Just(VERIFIED.to_owned()),
            1 => Just(RULE.to_owned()),
            1 => Just("\n".to_owned()),
            1 => "[\t\r\n\u{e9}\u{80}\u{7f}\u{202e}\u{4e00}]",
        ];
        prop::collection::vec(pieces, 0..4).prop_map(|pieces| pieces.concat())
    }

    proptest! {
        #[test]
        fn the_length_of_a_plain_file_is_known_without_it(
            (from, to, thread, id) in ("[a-z]{0,3}", "[ -~]{0,9}", text(), "[0-9a-f]{16}"),
            (subject, answered) in (prop::option::of(text()), prop::option::of("[ -~]{1,20}")),
            (body, secs) in (text(), any::<i64>()),
        ) {
            let plain = PlainMessage {
                kind: "samp",
                from: &from,
                to: &to,
                subject: subject.as_deref(),
                thread: &thread,
                in_reply_to: answered.as_deref(),
                id: &id,
                body: &body,
                escapes: 0,
                ends_with_newline: body.ends_with('\n'),
            };
            let m = Message {
                from: Some(from.clone()),
                to: vec![to.clone()],
                time: Timestamp::from_secs(secs),
                subject: subject.clone(),
                thread: Some(thread.clone()),
                in_reply_to: answered.clone(),
                id: id.clone(),
                body: body.clone(),
                ..Message::default()
            };
            let file = render_message(&m, Kind::Samp, SignatureState::None);
            let length = file.len() - SignatureState::None.to_string().len();
            if let Some(told) = plain.rendered_length() {
                prop_assert_eq!(told as usize, length, "{}", file);
                prop_assert_eq!(find_rules(file.as_bytes()).count(), 0);
            } else {
                let odd = |b: u8| b == 0xc2 || b == 0x7f || (b < b' ' && !b"\n\t".contains(&b));
                let ours = [VERIFIED, RULE].iter().any(|begin| body.contains(begin));
                let values = [&thread].into_iter().chain(&subject);
                prop_assert!(ours || body.bytes().any(odd) || !values.into_iter().all(|v| is_visible(v)));
            }
            let values = [&from, &to, &thread, &id, &body].into_iter().chain(&subject).chain(&answered);
            if values.into_iter().all(|text| is_visible(text)) {
                prop_assert_eq!(plain.visible_rendered_length(), plain.rendered_length());
            }
        }
    }
}
