//! The conversion of a mail (RFC 5322) to the text of a draft.

use std::borrow::Cow;
use std::fmt::Write;
use std::path::PathBuf;

use mail_parser::{Address, HeaderValue, Message};
use msgfs::mime;
use msgfs::mime::attachments::MailAttachment;
use msgfs::model::sanitize_line;
use rustix::system::uname;

use crate::cli::message::header_value;

/// The longest id of a mail that is kept, in bytes.
const ID: usize = 256;
/// The most files of a mail: links carry no more.
const MAX_FILES: usize = 100;
/// The most parts of a mail.
const MAX_PARTS: usize = 1_000;

/// A mail.
pub(super) struct SubmittedMail<'a>(Message<'a>);

/// The recipients of a mail.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct SubmissionEnvelope {
    to: Vec<String>,
    cc: Vec<String>,
    /// Recipients that the others do not see.
    bcc: Vec<String>,
}

/// Returns the text before a line with only a dot. In text that no person typed, such a line is part of the
/// text unless it is the last, so that nothing after it is lost.
pub(super) fn cut_at_dot(text: &[u8], is_typed: bool) -> &[u8] {
    let mut end = 0;
    for line in text.split_inclusive(|b| *b == b'\n') {
        let rest = text.get(end + line.len()..).unwrap_or_default();
        let ends = is_typed || rest.trim_ascii().is_empty();
        if ends && matches!(line, b"." | b".\n" | b".\r\n") {
            return text.get(..end).unwrap_or_default();
        }
        end += line.len();
    }
    text
}

/// Headers that identify a text as a mail.
const USUAL: [&str; 14] = [
    "To",
    "Cc",
    "Bcc",
    "From",
    "Subject",
    "Date",
    "Message-ID",
    "In-Reply-To",
    "References",
    "Reply-To",
    "MIME-Version",
    "Content-Type",
    "Received",
    "Resent-To",
];

/// Returns true if a line is a header line.
fn is_header_line(line: &[u8]) -> bool {
    let name = line.split(|b| *b == b':').next().unwrap_or_default();
    name.len() < line.len() && !name.is_empty() && name.iter().all(u8::is_ascii_graphic)
}

/// Returns the start of the text, if no empty line marks it: the first line among the headers that is none, or
/// 0 if the lines before it have no usual mail header.
fn find_text_start(text: &[u8]) -> Option<usize> {
    let mut at = 0;
    let mut is_mail = false;
    for line in text.split_inclusive(|b| *b == b'\n') {
        let bare = line.trim_ascii_end();
        if bare.is_empty() {
            return (at > 0 && !is_mail).then_some(0);
        }
        let continues = at > 0 && bare.first().is_some_and(u8::is_ascii_whitespace);
        if !continues && !is_header_line(bare) {
            return Some(if is_mail { at } else { 0 });
        }
        let name = bare.split(|b| *b == b':').next().unwrap_or_default();
        is_mail |= USUAL.iter().any(|usual| name.eq_ignore_ascii_case(usual.as_bytes()));
        at += line.len();
    }
    (!is_mail).then_some(0)
}

impl<'a> SubmittedMail<'a> {
    /// Parses a mail. A text that does not begin with a header is all text.
    ///
    /// # Errors
    /// Returns an error if the mail cannot be understood.
    pub fn parse(text: &'a [u8]) -> Result<Self, String> {
        let text = text.strip_prefix("\u{feff}".as_bytes()).unwrap_or(text);
        let text = mime::reading::strip_mbox_line(text);
        let text: Cow<'a, [u8]> = match find_text_start(text) {
            Some(at) => {
                let (headers, rest) = text.split_at(at);
                [headers, b"\n", rest].concat().into()
            }
            None => text.into(),
        };
        Ok(Self(mime::decode_texts(parse_bounded(&text)?, parse_bounded)?))
    }

    /// Returns the text, as plain text.
    fn body(&self) -> String {
        let texts = (0..self.0.text_body_count()).filter_map(|n| self.0.body_text(n));
        let texts: Vec<String> = texts.map(|text| text.replace("\r\n", "\n")).collect();
        texts.join("\n")
    }

    /// Returns the files that come with the mail.
    pub fn attachments(&self) -> Vec<MailAttachment<'_>> {
        mime::attachments::list_attachments(&self.0, self.0.attachments())
    }

    /// Returns the id of the mail that this one answers.
    pub fn in_reply_to(&self) -> Option<&str> {
        let first = header_ids(self.0.in_reply_to()).into_iter().next();
        first
            .or_else(|| header_ids(self.0.references()).into_iter().next_back())
            .filter(|id| is_message_id(id))
    }

    /// Returns the text of a draft with these files.
    ///
    /// # Errors
    /// Returns an error if there is nothing to send.
    pub fn render_draft(
        &self,
        envelope: &SubmissionEnvelope,
        files: &[PathBuf],
    ) -> Result<String, String> {
        let subject = sanitize_line(self.0.subject().unwrap_or_default().trim()).into_owned();
        let mut body = self.body();
        if body.trim().is_empty() && files.is_empty() {
            // Many people write everything into the subject.
            body.clone_from(&subject);
        }
        if body.trim().is_empty() && files.is_empty() {
            return Err("the mail is empty: nothing was sent".to_owned());
        }
        // A resent mail is not the first with its id.
        let again = header_ids(self.0.resent_message_id()).into_iter().next();
        let id = again.or_else(|| self.0.message_id()).filter(|id| is_message_id(id));
        let list = |all: &[String]| (!all.is_empty()).then(|| all.join(", "));
        let lines = [
            ("To", list(&envelope.to)),
            ("Cc", list(&envelope.cc)),
            ("Bcc", list(&envelope.bcc)),
            ("Subject", Some(subject).filter(|subject| !subject.is_empty())),
            ("In-Reply-To", self.in_reply_to().map(|id| format!("mid:{id}"))),
            ("Idempotency-Key", id.map(str::to_owned)),
        ];
        let mut draft = String::new();
        for (name, value) in lines {
            if let Some(value) = value {
                // Writing to a String cannot fail.
                let _ = writeln!(draft, "{name}: {value}");
            }
        }
        for path in files {
            let _ = writeln!(draft, "Attach: {}", path.display());
        }
        Ok(draft + "\n" + &body)
    }
}

/// Parses a mail that fits into a message.
fn parse_bounded(text: &[u8]) -> Result<Message<'static>, String> {
    let mail = mime::parse(text).map_err(|why| why.to_string())?;
    for (number, most, what) in
        [(mail.attachments.len(), MAX_FILES, "files"), (mail.parts.len(), MAX_PARTS, "parts")]
    {
        if number > most {
            return Err(format!(
                "this mail has {number} {what}; no message is made of more than {most}"
            ));
        }
    }
    Ok(mail)
}

/// Returns the ids in a header.
fn header_ids<'v>(value: &'v HeaderValue<'_>) -> Vec<&'v str> {
    let list = value.as_text_list().unwrap_or_default();
    list.iter().map(|id| id.trim()).collect()
}

fn is_message_id(id: &str) -> bool {
    !id.is_empty()
        && id.len() <= ID
        && id.chars().all(|c| c.is_ascii_graphic() && c != '<' && c != '>')
        && !id.starts_with('@')
}

impl SubmissionEnvelope {
    /// Returns the recipients: those of the command line, and with `from_header` those of the mail. Recipients
    /// that the mail names in To or Cc stay there; the others are blind.
    ///
    /// # Errors
    /// Returns a sentence about a recipient that is no address.
    pub fn from_mail(
        mail: &SubmittedMail<'_>,
        line: &[String],
        from_header: bool,
    ) -> Result<Self, String> {
        let message = &mail.0;
        let resent = [message.resent_to(), message.resent_cc(), message.resent_bcc()];
        let is_resent = resent.iter().any(Option::is_some);
        let shown = |own: Vec<&Address<'_>>, again: Option<&Address<'_>>| {
            parse_addresses(if is_resent { again.into_iter().collect() } else { own })
                .map(dedup_addresses)
        };
        let (to, cc) = (
            shown(message.all_to().collect(), resent[0])?,
            shown(message.all_cc().collect(), resent[1])?,
        );
        let mut envelope = Vec::new();
        for word in line {
            envelope.extend(parse_recipient_word(word)?);
        }
        if from_header {
            let bcc = shown(message.all_bcc().collect(), resent[2])?;
            envelope.extend(to.iter().chain(&cc).cloned().chain(bcc));
        }
        let envelope = dedup_addresses(envelope);
        let among = |list: Vec<String>| -> Vec<String> {
            list.into_iter().filter(|one| envelope.contains(one)).collect()
        };
        let (to, cc) = (among(to), among(cc));
        let is_blind = |one: &&String| !to.contains(one) && !cc.contains(one);
        let mut bcc: Vec<String> = envelope.iter().filter(is_blind).cloned().collect();
        if to.is_empty() && cc.is_empty() && bcc.len() == 1 {
            return Ok(Self { to: std::mem::take(&mut bcc), ..Self::default() });
        }
        // A message needs a To.
        let (to, cc) = if to.is_empty() { (cc, to) } else { (to, cc) };
        Ok(Self { to, cc, bcc })
    }

    /// Returns true if there are no recipients.
    pub fn is_empty(&self) -> bool {
        self.recipients().next().is_none()
    }

    /// Returns true if a recipient has a domain part.
    pub fn has_domain(&self) -> bool {
        self.recipients().any(|one| one.contains('@'))
    }

    fn recipients(&self) -> impl Iterator<Item = &String> {
        self.to.iter().chain(&self.cc).chain(&self.bcc)
    }
}

/// Returns the addresses in a word of the command line.
fn parse_recipient_word(word: &str) -> Result<Vec<String>, String> {
    if word.contains(char::is_control) {
        return Err(format!("{:?} is no address: it has control characters", sanitize_line(word)));
    }
    let text = format!("To: {}\n\n", sanitize_line(word));
    let mail = SubmittedMail::parse(text.as_bytes())?;
    parse_addresses(mail.0.all_to().collect())
}

/// Returns the addresses in header lines.
fn parse_addresses(all: Vec<&Address<'_>>) -> Result<Vec<String>, String> {
    let places = local_host_names();
    let one = |addr: &mail_parser::Addr<'_>| {
        // A name alone is a local user.
        let text = addr.address.as_deref().or(addr.name.as_deref()).unwrap_or_default();
        let refused = |why: &str| Err(format!("{:?} is no address: {why}", sanitize_line(text)));
        let text = match header_value(text) {
            Ok(text) if text.contains([',', '<', '>', '"']) => {
                return refused("it has , < > or \"");
            }
            Ok(text) if text.contains(char::is_whitespace) => return refused("it has blanks"),
            Ok(text) if text.starts_with('@') => return refused("nobody is named before the @"),
            Ok(text) => text,
            Err(why) => return refused(&format!("it {why}")),
        };
        Ok(match text.rsplit_once('@') {
            Some((name, place)) if places.iter().any(|mine| mine.eq_ignore_ascii_case(place)) => {
                name.to_owned()
            }
            _ => text,
        })
    };
    all.into_iter().flat_map(Address::iter).map(one).collect()
}

fn dedup_addresses(all: Vec<String>) -> Vec<String> {
    let mut out: Vec<String> = Vec::new();
    for one in all {
        if !out.contains(&one) {
            out.push(one);
        }
    }
    out
}

/// Returns the names of this machine. Mail programs append them to the name of a local user.
fn local_host_names() -> Vec<String> {
    let node = uname().nodename().to_string_lossy().into_owned();
    let first = node.split('.').next().unwrap_or_default().to_owned();
    let mailname = std::fs::read_to_string("/etc/mailname").unwrap_or_default();
    let mut places = vec![mailname.trim().to_owned(), first, node];
    places.retain(|place| !place.is_empty());
    places
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draft(text: &str, line: &[&str], from_header: bool) -> String {
        let mail = SubmittedMail::parse(text.as_bytes()).unwrap();
        let line: Vec<String> = line.iter().map(|word| (*word).to_owned()).collect();
        let envelope = SubmissionEnvelope::from_mail(&mail, &line, from_header).unwrap();
        mail.render_draft(&envelope, &[]).unwrap()
    }

    #[test]
    fn no_line_of_the_text_is_lost_to_the_header() {
        for (text, wanted) in [
            ("Subject: m\nthis is text\nmore\n", "Subject: m\n\nthis is text\nmore"),
            ("Subject: hi\n\tfold\nno header\n\nbody\n", "Subject: hi fold\n\nno header\n\nbody"),
            (
                "Warning: disk full\nplease act\n\nregards\n",
                "\nWarning: disk full\nplease act\n\nregards",
            ),
            ("Warning: disk full\n\nregards\n", "\nWarning: disk full\n\nregards"),
            ("http://x/y\nsecond\n", "\nhttp://x/y\nsecond"),
            ("Note: all\n", "\nNote: all"),
            ("\nTo: is text\n", "\nTo: is text"),
            ("Subject: s\nX-Odd: y\n\nbody\n", "Subject: s\n\nbody"),
        ] {
            let draft = draft(text, &["bob"], false);
            assert_eq!(draft.trim_end(), format!("To: bob\n{wanted}"), "{text:?}");
        }
    }

    #[test]
    fn a_mail_becomes_a_draft() {
        let text = "From: Me <me@here>\r\nTo: Bob B <bob@samp>, carol\r\nCc: dave@x.example\r\n\
                    Bcc: eve\r\nSubject: =?utf-8?q?Gr=C3=BC=C3=9Fe?=\r\n of all\r\n\
                    In-Reply-To: <ab12@samp>\r\nMessage-ID: <m1@here>\r\n\r\none\r\n\r\ntwo\r\n";
        let head = "Subject: Gr\u{fc}\u{df}e of all\nIn-Reply-To: mid:ab12@samp\nIdempotency-Key: m1@here\n\n\
                    one\n\ntwo\n";
        let to = "To: bob@samp, carol\nCc: dave@x.example\nBcc: eve\n";
        assert_eq!(draft(text, &[], true), format!("{to}{head}"));
        assert_eq!(draft(text, &["carol"], false), format!("To: carol\n{head}"));
        assert_eq!(draft(text, &["dave@x.example"], false), format!("To: dave@x.example\n{head}"));
        assert_eq!(draft(text, &["frank"], false), format!("To: frank\n{head}"));
        assert_eq!(
            draft(text, &["carol", "frank,Bob <bob@samp>"], false),
            format!("To: bob@samp, carol\nBcc: frank\n{head}")
        );
        assert_eq!(draft(text, &["a", "b"], false), format!("Bcc: a, b\n{head}"));
    }

    #[test]
    fn what_has_no_header_is_text() {
        assert_eq!(
            draft("tests are green\nTo: x\n", &["bob"], false),
            "To: bob\n\ntests are green\nTo: x\n"
        );
        assert_eq!(draft("\nhi\n", &["bob"], false), "To: bob\n\nhi\n");
        assert_eq!(draft("Subject: done\n\n", &["bob"], false), "To: bob\nSubject: done\n\ndone");
        let from = "From me Mon Jan  1 00:00:00 2026\nSubject: s\n\nFrom here\n";
        assert_eq!(draft(from, &["bob"], false), "To: bob\nSubject: s\n\nFrom here\n");
        let mail = SubmittedMail::parse(b"To: bob\n\n \n").unwrap();
        let envelope = SubmissionEnvelope::from_mail(&mail, &[], true).unwrap();
        assert!(mail.render_draft(&envelope, &[]).unwrap_err().contains("empty"));
    }

    #[test]
    fn texts_are_decoded_and_html_becomes_text() {
        let latin = b"To: bob\nContent-Type: text/plain; charset=iso-8859-1\n\
                      Content-Transfer-Encoding: quoted-printable\n\nGr=FC=DFe=\n!\n";
        let mail = SubmittedMail::parse(latin).unwrap();
        assert_eq!(mail.body(), "Gr\u{fc}\u{df}e!\n");
        let html =
            "To: bob\nContent-Type: text/html; charset=utf-8\n\n<p>one</p><p>t&uuml;wo</p>\n";
        let text = SubmittedMail::parse(html.as_bytes()).unwrap().body();
        assert!(
            text.contains("one") && text.contains("t\u{fc}wo") && !text.contains('<'),
            "{text}"
        );
        let both = "To: bob\nContent-Type: multipart/alternative; boundary=b\n\n--b\n\
                    Content-Type: text/plain\n\nplain\n--b\nContent-Type: text/html\n\n<b>html</b>\n--b--\n";
        let mail = SubmittedMail::parse(both.as_bytes()).unwrap();
        assert_eq!((mail.body().trim(), mail.attachments().len()), ("plain", 0));
    }

    #[test]
    fn a_text_that_broke_off_is_no_file() {
        let head =
            "To: bob\nContent-Type: multipart/mixed; boundary=b\n\n--b\nContent-Type: text/plain";
        for (text, body) in [
            (format!("{head}\n\nhalf of"), "half of"),
            ("To: bob\nContent-Type: multipart/mixed\n\n--b\nlost\n".into(), "--b\nlost\n"),
        ] {
            let mail = SubmittedMail::parse(text.as_bytes()).unwrap();
            assert_eq!((mail.body().as_str(), mail.attachments().len()), (body, 0), "{text}");
        }
        let file = format!("{head}; name=x.txt\n\nhalf of");
        assert_eq!(SubmittedMail::parse(file.as_bytes()).unwrap().attachments().len(), 1);
    }

    fn part(name: &str, text: &str) -> String {
        format!(
            "--b\nContent-Type: application/octet-stream\nContent-Transfer-Encoding: base64\n\
             Content-Disposition: attachment; filename=\"{name}\"\n\n{text}\n"
        )
    }

    /// S456: a name that is too long is cut before its ending, at a whole character.
    #[test]
    fn s456_long_names_keep_their_ending() {
        let long = part(&format!("{}.pdf", "\u{e4}".repeat(100)), "AAEC");
        let text = format!(
            "To: bob\nContent-Type: multipart/mixed; boundary=b\n\n--b\n\nsee there\n{long}{long}--b--\n"
        );
        let mail = SubmittedMail::parse(text.as_bytes()).unwrap();
        let names: Vec<String> = mail.attachments().into_iter().map(|file| file.name).collect();
        let cut = "\u{e4}".repeat(73);
        assert_eq!(names, [format!("{cut}.pdf"), format!("{cut}-2.pdf")]);
    }

    #[test]
    fn files_have_names_of_their_own() {
        let text = format!(
            "To: bob\nContent-Type: multipart/mixed; boundary=b\n\n--b\n\nsee there\n{}{}{}{}--b--\n",
            part("plan.pdf", "AAEC"),
            part("../../plan.pdf", "AAED"),
            part("", "AAEE"),
            part(".bashrc", "AAEF"),
        );
        let mail = SubmittedMail::parse(text.as_bytes()).unwrap();
        let files = mail.attachments();
        let all: Vec<(&str, &[u8])> = files.iter().map(|f| (f.name.as_str(), &*f.bytes)).collect();
        assert_eq!(
            all,
            [
                ("plan.pdf", &[0, 1, 2][..]),
                ("plan-2.pdf", &[0, 1, 3]),
                ("attachment", &[0, 1, 4]),
                ("bashrc", &[0, 1, 5])
            ]
        );
        let envelope =
            SubmissionEnvelope { to: vec!["bob".into()], ..SubmissionEnvelope::default() };
        let draft = mail.render_draft(&envelope, &["/c/plan.pdf".into()]).unwrap();
        assert_eq!(draft, "To: bob\nAttach: /c/plan.pdf\n\nsee there");
    }

    #[test]
    fn addresses_cannot_smuggle_a_header() {
        let of = |text: &str, line: &[String]| {
            SubmissionEnvelope::from_mail(
                &SubmittedMail::parse(text.as_bytes()).unwrap(),
                line,
                true,
            )
        };
        for bad in ["To: \"a b\"\n\nx", "To: \"x\\\" y\"@z\n\nx"] {
            assert!(of(bad, &[]).is_err(), "{bad}");
        }
        let word = "bob\nSubject: forged".to_owned();
        let got = of("Subject: x\n\nx", &[word]);
        assert!(got.is_err(), "{got:?}");
        let named = format!("To: bob@{}\n\nx", uname().nodename().to_string_lossy());
        assert_eq!(of(&named, &[]).unwrap().to, ["bob"]);
        assert_eq!(
            of("To: team: bob, carol;\nCc: undisclosed:;\n\nx", &[]).unwrap().to,
            ["bob", "carol"]
        );
    }

    #[test]
    fn a_dot_ends_what_is_typed_and_is_the_end_of_all_else() {
        for (text, typed, piped) in [
            ("a\n.\nb", "a\n", "a\n.\nb"),
            ("a\n..\n.b\n", "a\n..\n.b\n", "a\n..\n.b\n"),
            ("a\r\n.\r\n", "a\r\n", "a\r\n"),
            ("a\n.", "a\n", "a\n"),
            ("a\n.\n\n", "a\n", "a\n"),
        ] {
            assert_eq!(cut_at_dot(text.as_bytes(), true), typed.as_bytes());
            assert_eq!(cut_at_dot(text.as_bytes(), false), piped.as_bytes());
        }
    }

    #[test]
    fn the_last_reference_is_what_a_mail_answers() {
        let answers = |head: &str| {
            let text = format!("{head}\n\nx");
            SubmittedMail::parse(text.as_bytes()).unwrap().in_reply_to().map(str::to_owned)
        };
        assert_eq!(answers("References: <a@x> <b@y>").as_deref(), Some("b@y"));
        assert_eq!(answers("References: <a@x>\nIn-Reply-To: <c@z>").as_deref(), Some("c@z"));
        assert_eq!(answers("Subject: x"), None);
    }
}
