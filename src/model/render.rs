//! A message as a file: header, empty line, body (docs/SEMANTICS.md, S19 to S22).
//!
//! The text goes into a [`TextSink`]. A [`ByteCounter`] is a sink that keeps nothing, so the length of a file is
//! known without the file.

use std::borrow::Cow;
use std::sync::LazyLock;

use memchr::memmem::Finder;

use super::message::{Attachment, Message, plain_id};
use super::text::{sanitize_line, sanitize_text};
use super::time::Timestamp;

/// The header lines that declare the encoding of text that is not ASCII.
pub const MIME_LINES: &str = "MIME-Version: 1.0\nContent-Type: text/plain; charset=utf-8\n\
                    Content-Transfer-Encoding: 8bit\n";

/// The beginning of the header line that shows the result of verification.
const VERIFIED: &str = "Signature:";

/// The beginning of a line that separates messages in a transcript.
pub const RULE: &str = "================";

static FIND_VERIFIED: LazyLock<Finder<'_>> = LazyLock::new(|| Finder::new(VERIFIED));
static FIND_RULE: LazyLock<Finder<'_>> = LazyLock::new(|| Finder::new(RULE));

/// A receiver of rendered text.
pub trait TextSink {
    /// Takes the next piece of the text.
    fn push_str(&mut self, text: &str);

    /// Takes a time, as a header shows it.
    fn push_date(&mut self, time: Timestamp) {
        self.push_str(&time.rfc2822());
    }
}

impl TextSink for String {
    fn push_str(&mut self, text: &str) {
        Self::push_str(self, text);
    }
}

/// A sink that counts the bytes of a text.
#[derive(Clone, Copy, Debug, Default)]
pub struct ByteCounter(usize);

impl ByteCounter {
    /// Returns the length of the text in bytes.
    pub fn count(self) -> usize {
        self.0
    }
}

impl TextSink for ByteCounter {
    fn push_str(&mut self, text: &str) {
        self.0 += text.len();
    }

    fn push_date(&mut self, _: Timestamp) {
        self.0 += Timestamp::RFC2822_LEN;
    }
}

/// The values of a message that its file shows.
#[derive(Clone, Debug, Default)]
pub struct ShownMessage<'a> {
    /// The name of its store's kind.
    pub kind: &'a str,
    /// The sender.
    pub from: Option<&'a str>,
    /// The recipients, as the header lists them; empty if there are none.
    pub to: Cow<'a, str>,
    /// The recipients of copies, in the same form.
    pub cc: Cow<'a, str>,
    /// The time at which it was written.
    pub time: Timestamp,
    /// The subject.
    pub subject: Option<&'a str>,
    /// Header lines that only some stores have.
    pub extra: &'a [(&'static str, String)],
    /// The thread id; empty if it has none.
    pub thread: &'a str,
    /// The id of the message that it answers.
    pub in_reply_to: Option<&'a str>,
    /// The id.
    pub id: &'a str,
    /// The attachments.
    pub attachments: &'a [Attachment],
    /// The store's warnings for the reader.
    pub warnings: &'a [String],
    /// The body.
    pub body: &'a str,
    /// True if it is known that every character of every value [is visible](super::is_visible). Then none is checked
    /// again.
    pub is_visible: bool,
}

impl<'a> ShownMessage<'a> {
    /// Returns the values of a message of a kind of store.
    pub fn new(m: &'a Message, kind: &'a str) -> Self {
        Self {
            kind,
            from: m.from.as_deref(),
            to: m.to.join(", ").into(),
            cc: m.cc.join(", ").into(),
            time: m.time,
            subject: m.subject.as_deref(),
            extra: &m.extra,
            thread: m.thread.as_deref().unwrap_or_default(),
            in_reply_to: m.in_reply_to.as_deref(),
            id: &m.id,
            attachments: &m.attachments,
            warnings: &m.warnings,
            body: &m.body,
            is_visible: false,
        }
    }

    /// Renders the message. `signature` is the result of verification.
    pub fn render(&self, out: &mut impl TextSink, signature: &str) {
        let is_plain = self.is_visible && !self.body.starts_with(VERIFIED);
        let body = if is_plain { Cow::Borrowed(self.body) } else { render_body(self.body) };
        let is_ascii = self.render_header(out, Some(signature));
        if !is_ascii || !is_plain && !body.is_ascii() {
            out.push_str(MIME_LINES);
        }
        out.push_str("\n");
        out.push_str(&body);
        if !body.ends_with('\n') {
            out.push_str("\n");
        }
    }

    /// Renders the header lines in their order; missing ones are left out. Returns true if all of them are ASCII.
    pub fn render_header(&self, out: &mut impl TextSink, signature: Option<&str>) -> bool {
        let mut header = HeaderWriter { out, is_visible: self.is_visible, is_ascii: true };
        let filled = |value: &'a str| Some(value).filter(|value| !value.is_empty());
        header.write_line("From", self.from);
        header.write_line("To", Some(&*self.to).filter(|to| !to.is_empty()));
        header.write_line("Cc", Some(&*self.cc).filter(|cc| !cc.is_empty()));
        for piece in ["Date", ": "] {
            header.out.push_str(piece);
        }
        header.out.push_date(self.time);
        header.out.push_str("\n");
        header.write_line("Subject", self.subject);
        for (name, value) in self.extra {
            header.write_line(name, Some(value));
        }
        header.write_line("Thread", filled(self.thread));
        header.write_id("In-Reply-To", self.in_reply_to.and_then(filled), self.kind);
        header.write_id("Message-ID", Some(self.id), self.kind);
        header.write_line("Signature", signature);
        let files: Vec<String> = self.attachments.iter().map(format_attachment).collect();
        header.write_line("Attachments", Some(&*files.join(", ")).filter(|_| !files.is_empty()));
        let warnings = self.warnings.join(", ");
        header.write_line("Warnings", Some(&*warnings).filter(|_| !self.warnings.is_empty()));
        header.is_ascii
    }

    /// Returns the length of the rendered text in bytes without the result of verification. Returns `None` if a line of
    /// the body begins like [`RULE`], because a transcript shows such a message in another length.
    pub fn length_unverified(&self) -> Option<u32> {
        let has_rule = if self.is_visible {
            self.body.starts_with(RULE)
        } else {
            FIND_RULE.find(self.body.as_bytes()).is_some()
        };
        if has_rule {
            return None;
        }
        let mut counter = ByteCounter::default();
        self.render(&mut counter, "");
        u32::try_from(counter.count()).ok()
    }
}

/// A writer of header lines.
struct HeaderWriter<'s, S> {
    out: &'s mut S,
    /// True if every character of every value is visible.
    is_visible: bool,
    /// True if all lines so far are ASCII.
    is_ascii: bool,
}

impl<S: TextSink> HeaderWriter<'_, S> {
    fn write_line(&mut self, name: &str, value: Option<&str>) {
        if let Some(value) = value {
            self.write_pieces(name, &[value]);
        }
    }

    /// Writes an id with the kind of its store.
    fn write_id(&mut self, name: &str, id: Option<&str>, kind: &str) {
        if let Some(id) = id {
            self.write_pieces(name, &["<", plain_id(id), "@", kind, ">"]);
        }
    }

    fn write_pieces(&mut self, name: &str, pieces: &[&str]) {
        self.out.push_str(name);
        self.out.push_str(": ");
        for piece in pieces {
            if self.is_visible {
                self.out.push_str(piece);
                continue;
            }
            let piece = sanitize_line(piece);
            self.is_ascii &= piece.is_ascii();
            self.out.push_str(&piece);
        }
        self.out.push_str("\n");
    }
}

/// Returns a body as it is shown. A blank precedes each line that begins like the line about the signature,
/// which only msgfs writes.
pub fn render_body(text: &str) -> Cow<'_, str> {
    let text = sanitize_text(text);
    let forged = |line: &str| line.starts_with(VERIFIED);
    if FIND_VERIFIED.find(text.as_bytes()).is_none() || !text.split('\n').any(forged) {
        return text;
    }
    let lines = text.split_inclusive('\n');
    Cow::Owned(lines.flat_map(|line| [if forged(line) { " " } else { "" }, line]).collect())
}

fn format_attachment(a: &Attachment) -> String {
    match &a.withheld {
        Some(why) => format!("{} ({why})", a.name),
        None => format!("{} ({})", a.name, a.size),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Fingerprint, QUALIFIER, SignatureState, is_visible};
    use proptest::prelude::*;

    fn render_message(m: &Message, signature: SignatureState) -> String {
        let mut out = String::new();
        ShownMessage::new(m, "samp").render(&mut out, &signature.to_string());
        out
    }

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
            render_message(&example(), SignatureState::Valid(fp)),
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
            in_reply_to: Some(format!("p1{QUALIFIER}00ff")),
            id: format!("m1{QUALIFIER}00aa"),
            attachments: vec![
                withheld("f1.txt", "withheld: digest does not match"),
                Attachment { name: "ok".into(), size: 7, withheld: None },
                withheld("f2.txt", "does not match its signed hash"),
            ],
            warnings: vec!["expired".into()],
            ..example()
        };
        let mut header = String::new();
        assert!(ShownMessage::new(&m, "amp").render_header(&mut header, None));
        assert_eq!(
            header,
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
        let text = render_message(&m, SignatureState::None);
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
        fn the_counted_length_is_that_of_the_file(
            (from, to, thread, id) in ("[a-z]{0,3}", "[ -~]{0,9}", text(), "[0-9a-f]{16}"),
            (subject, answered) in (prop::option::of(text()), prop::option::of("[ -~]{1,20}")),
            (body, secs) in (text(), any::<i64>()),
        ) {
            let m = Message {
                from: Some(from),
                to: vec![to],
                time: Timestamp::from_secs(secs),
                subject,
                thread: Some(thread),
                in_reply_to: answered,
                id,
                body,
                ..Message::default()
            };
            let file = render_message(&m, SignatureState::None);
            let shown = ShownMessage::new(&m, "samp");
            let mut counter = ByteCounter::default();
            shown.render(&mut counter, &SignatureState::None.to_string());
            prop_assert_eq!(counter.count(), file.len());
            let has_rule = file.split('\n').any(|line| line.starts_with(RULE));
            match shown.length_unverified() {
                Some(length) => {
                    prop_assert_eq!(length as usize + "none".len(), file.len(), "{}", file);
                    prop_assert!(!has_rule);
                }
                None => prop_assert!(m.body.contains(RULE)),
            }
            let values = [&m.to[0], m.thread.as_ref().unwrap(), &m.body];
            let values = values.into_iter().chain(&m.subject).chain(&m.in_reply_to);
            if values.into_iter().all(|value| is_visible(value)) {
                let known = ShownMessage { is_visible: true, ..ShownMessage::new(&m, "samp") };
                let has_rule = m.body.starts_with(RULE);
                prop_assert_eq!(known.length_unverified(), shown.length_unverified().or_else(|| {
                    (!has_rule).then(|| file.len() as u32 - 4)
                }));
            }
        }
    }
}
