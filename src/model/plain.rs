//! How long the file of a message is that shows every character as it stands, told without making the file. So a
//! folder is listed with its sizes although nobody has read a message in it.

/// The header lines that say how text is encoded which is not ASCII.
pub const MIME: &str = "MIME-Version: 1.0\nContent-Type: text/plain; charset=utf-8\n\
                        Content-Transfer-Encoding: 8bit\n";

/// How the header line begins that says what was verified.
pub const VERIFIED: &str = "Signature:";

/// How a line begins that separates messages in a transcript.
pub const RULE: &str = "================";

/// Length of a date in a header, in bytes: that of every year is the same.
const DATE: usize = 31;

/// A message without attachments and warnings, as far as its length depends on it.
#[derive(Clone, Copy, Debug, Default)]
pub struct PlainMessage<'a> {
    /// The word for its store's kind.
    pub kind: &'a str,
    /// Who wrote it.
    pub from: &'a str,
    /// Whom it is for, as its header says it.
    pub to: &'a str,
    /// What it is about.
    pub subject: Option<&'a str>,
    /// Its thread.
    pub thread: &'a str,
    /// The id of the message it answers.
    pub in_reply_to: Option<&'a str>,
    /// Its id.
    pub id: &'a str,
    /// Its text, in which newlines and others may be spelled with a backslash.
    pub body: &'a str,
    /// How many bytes of the body are such a backslash, which its file has not.
    pub escapes: usize,
    /// The text ends with a newline.
    pub ends_with_newline: bool,
}

impl PlainMessage<'_> {
    /// Length of its file in bytes, but for what stands behind [`VERIFIED`]. `None` if the file shows anything
    /// in another way than it is written, or has a line that begins like [`VERIFIED`] or [`RULE`].
    pub fn rendered_length(&self) -> Option<u32> {
        let values = [self.from, self.to, self.thread, self.id].into_iter();
        let mut values = values.chain(self.subject).chain(self.in_reply_to);
        let (shown, ascii) = classify_body(self.body);
        let plain = values.all(is_visible) && shown && !self.has_reserved_line();
        plain.then(|| self.sum_length(if ascii { 0 } else { MIME.len() }))?
    }

    fn has_reserved_line(&self) -> bool {
        let ours = |at| {
            let line = self.body.as_bytes().get(at..).unwrap_or_default();
            line.starts_with(VERIFIED.as_bytes()) || line.starts_with(RULE.as_bytes())
        };
        let body = self.body.as_bytes();
        // Behind a backslash and what it stands before, even if that is no newline.
        let spelled = memchr::memchr_iter(b'\\', body).map(|at| at + 2);
        let spelled = spelled.filter(|_| self.escapes > 0);
        let newline = memchr::memchr_iter(b'\n', body).map(|at| at + 1);
        ours(0) || spelled.chain(newline).any(ours)
    }

    /// The same of a message of which every character [is visible](is_visible).
    pub fn visible_rendered_length(&self) -> Option<u32> {
        let ours = [VERIFIED, RULE].iter().any(|begin| self.body.starts_with(begin));
        if ours { None } else { self.sum_length(0) }
    }

    fn sum_length(&self, mime: usize) -> Option<u32> {
        let line = |name: &str, length: usize| name.len() + ": \n".len() + length;
        let id = |id: &str| id.len() + self.kind.len() + "<@>".len();
        let header = line("From", self.from.len())
            + line("To", self.to.len())
            + line("Date", DATE)
            + self.subject.map_or(0, |subject| line("Subject", subject.len()))
            + if self.thread.is_empty() { 0 } else { line("Thread", self.thread.len()) }
            + self.in_reply_to.map_or(0, |answered| line("In-Reply-To", id(answered)))
            + line("Message-ID", id(self.id))
            + line("Signature", 0);
        let body = self.body.len() - self.escapes + usize::from(!self.ends_with_newline);
        u32::try_from(header + mime + "\n".len() + body).ok()
    }
}

/// Whether every character is ASCII, and has a shape or is a blank. All of them are looked at, many at once.
pub fn is_visible(text: &str) -> bool {
    text.bytes().fold(true, |visible, b| visible & matches!(b, b' '..=b'~'))
}

/// Whether a body is shown as it stands, and whether it is ASCII.
fn classify_body(body: &str) -> (bool, bool) {
    let stands = |b: u8| matches!(b, b'\n' | b'\t' | b' '..=b'~' | 0x80..);
    // The control characters that are not ASCII begin with this byte.
    let shown = |b: u8| stands(b) && b != 0xc2;
    (body.bytes().fold(true, |all, b| all & shown(b)), body.is_ascii())
}
