//! The rendered length of a message whose body needs no escaping, computed without rendering it. A listing can
//! so show sizes of messages that nobody has read.

/// The header lines that declare the encoding of text that is not ASCII.
pub const MIME: &str = "MIME-Version: 1.0\nContent-Type: text/plain; charset=utf-8\n\
                        Content-Transfer-Encoding: 8bit\n";

/// The beginning of the header line that shows the result of verification.
pub const VERIFIED: &str = "Signature:";

/// The beginning of a line that separates messages in a transcript.
pub const RULE: &str = "================";

/// Length of a date in a header, in bytes. It is the same for every year.
const DATE: usize = 31;

/// The values of a message without attachments and warnings that determine its length.
#[derive(Clone, Copy, Debug, Default)]
pub struct PlainMessage<'a> {
    /// The name of its store's kind.
    pub kind: &'a str,
    /// The sender.
    pub from: &'a str,
    /// The recipients, as its header lists them.
    pub to: &'a str,
    /// The subject.
    pub subject: Option<&'a str>,
    /// The thread.
    pub thread: &'a str,
    /// The id of the message that it answers.
    pub in_reply_to: Option<&'a str>,
    /// The id.
    pub id: &'a str,
    /// The body, in which a backslash may escape newlines and other characters.
    pub body: &'a str,
    /// The number of such backslashes, which the rendered text does not have.
    pub escapes: usize,
    /// True if the body ends with a newline.
    pub ends_with_newline: bool,
}

impl PlainMessage<'_> {
    /// Returns the length of the rendered text in bytes, without the text after [`VERIFIED`]. Returns `None` if
    /// the file shows any character in another way than it is written, or if a line begins like [`VERIFIED`] or
    /// [`RULE`].
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
        // The position after a backslash and the character that it escapes, even if that is not a newline.
        let spelled = memchr::memchr_iter(b'\\', body).map(|at| at + 2);
        let spelled = spelled.filter(|_| self.escapes > 0);
        let newline = memchr::memchr_iter(b'\n', body).map(|at| at + 1);
        ours(0) || spelled.chain(newline).any(ours)
    }

    /// Returns the same length for a message of which every character [is visible](is_visible).
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

/// Returns true if every character is visible ASCII or a space. It checks all of them, many at once.
pub fn is_visible(text: &str) -> bool {
    text.bytes().fold(true, |visible, b| visible & matches!(b, b' '..=b'~'))
}

/// Returns true if a body is shown as it stands, and true if it is ASCII.
fn classify_body(body: &str) -> (bool, bool) {
    let stands = |b: u8| matches!(b, b'\n' | b'\t' | b' '..=b'~' | 0x80..);
    // The control characters that are not ASCII begin with this byte.
    let shown = |b: u8| stands(b) && b != 0xc2;
    (body.bytes().fold(true, |all, b| all & shown(b)), body.is_ascii())
}
