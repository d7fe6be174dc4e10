//! From the text of a draft to a [`Draft`] (docs/SEMANTICS.md, S45 to S47).
//!
//! ```text
//! To: bob, carol
//! Subject: schema change
//!
//! body
//! ```
//!
//! There is a header block only if the first line is a known header. It ends at an empty line or at a line `---`. An
//! empty first line means "no headers", and is itself dropped.

use crate::model::{Draft, DraftError};

/// The header lines that make a header block in every mount.
const EVERYWHERE: &[&str] = &[
    "To",
    "Cc",
    "Bcc",
    "Subject",
    "Thread",
    "In-Reply-To",
    "Priority",
    "Type",
    "Attach",
    "Via",
    "Idempotency-Key",
];

/// The header lines that only some kinds of stores have, and what they name.
const OF_SOME_KINDS: &[(&str, &str)] = &[("Task", "tasks")];

/// The header lines that drafts of one mount can have.
#[derive(Clone, Debug)]
pub struct DraftParser(Vec<&'static str>);

impl DraftParser {
    /// Returns a parser for the header lines of every draft, and for these, which only some stores know
    /// ([`StoreProperties::headers`](crate::store::StoreProperties::headers)).
    pub fn with_headers(more: impl IntoIterator<Item = &'static str>) -> Self {
        let mut all = EVERYWHERE.to_vec();
        for name in more {
            if !all.contains(&name) {
                all.push(name);
            }
        }
        Self(all)
    }

    /// Parses a complete draft.
    ///
    /// # Errors
    /// If the text is not UTF-8 or a header cannot be used.
    pub fn parse(&self, bytes: &[u8]) -> Result<Draft, DraftError> {
        let text = std::str::from_utf8(bytes).map_err(|e| DraftError::NotUtf8(e.valid_up_to()))?;
        let (header, body) = self.split_header(text);
        let body = body.ok_or_else(|| self.open_header_error(header))?;
        let mut draft = Draft { body: without_final_newlines(body).to_owned(), ..Draft::default() };
        for (name, value) in self.parse_lines(header)? {
            set_header(&mut draft, name, &value)?;
        }
        Ok(draft)
    }

    /// Parses the text so far of a draft that is still being written. Returns `None` while its header block is open,
    /// because nothing is certain yet.
    ///
    /// # Errors
    /// A refusal that is already certain.
    pub fn parse_partial(&self, bytes: &[u8]) -> Result<Option<Draft>, DraftError> {
        let text = match std::str::from_utf8(bytes) {
            Ok(text) => text,
            // A character may be cut at the end of a write.
            Err(e) if e.error_len().is_none() => {
                std::str::from_utf8(bytes.get(..e.valid_up_to()).unwrap_or_default())
                    .unwrap_or_default()
            }
            Err(e) => return Err(DraftError::NotUtf8(e.valid_up_to())),
        };
        let Some((first, _)) = strip_byte_order_mark(text).split_once('\n') else {
            return Ok(None);
        };
        if self.match_header(first).is_some()
            && let (header, None) = self.split_header(text)
        {
            // The last line may be incomplete, and complete it may be a header.
            let whole = header.rfind('\n').map_or("", |end| header.get(..=end).unwrap_or_default());
            return self.parse_lines(whole).map(|_| None);
        }
        self.parse(text.as_bytes()).map(Some)
    }

    /// Returns the fault of a header block that nothing ends.
    fn open_header_error(&self, header: &str) -> DraftError {
        self.parse_lines(header).err().unwrap_or(DraftError::OpenHeader)
    }

    /// Splits a text into header block and body. The block is empty if there is none; the body is `None` while nothing
    /// ends the block.
    fn split_header<'t>(&self, text: &'t str) -> (&'t str, Option<&'t str>) {
        let text = strip_byte_order_mark(text);
        let first = text.lines().next().unwrap_or_default();
        if self.match_header(first).is_none() {
            // An empty first line means that the rest is no header.
            let body =
                text.strip_prefix("\r\n").or_else(|| text.strip_prefix('\n')).unwrap_or(text);
            return ("", Some(body));
        }
        let mut end = 0;
        for line in text.split_inclusive('\n') {
            let bare = line.trim_end_matches(['\n', '\r']);
            if bare.is_empty() || is_rule(bare) {
                let header = text.get(..end).unwrap_or_default();
                let body = text.get(end + line.len()..).unwrap_or_default();
                // After a rule, AgentAZAll's form has one empty line that is not part of the text.
                let body =
                    if is_rule(bare) { body.strip_prefix('\n').unwrap_or(body) } else { body };
                return (header, Some(body));
            }
            end += line.len();
        }
        (text, None)
    }

    /// Returns the known header a line begins with, in its canonical spelling, and the rest of the line.
    fn match_header<'t>(&self, line: &'t str) -> Option<(&'static str, &'t str)> {
        let (name, value) = line.split_once(':')?;
        let known = self.0.iter().find(|k| k.eq_ignore_ascii_case(name))?;
        Some((known, value.trim()))
    }

    /// Returns the lines of the block, continuation lines joined to the line they continue.
    fn parse_lines(&self, header: &str) -> Result<Vec<(&'static str, String)>, DraftError> {
        let mut out: Vec<(&'static str, String)> = Vec::new();
        for line in header.lines() {
            if line.starts_with([' ', '\t'])
                && let Some((_, value)) = out.last_mut()
            {
                value.push(' ');
                value.push_str(line.trim());
                continue;
            }
            match self.match_header(line) {
                Some((name, value)) => out.push((name, value.to_owned())),
                None => return Err(self.unknown_header_error(line)),
            }
        }
        Ok(out)
    }

    fn unknown_header_error(&self, line: &str) -> DraftError {
        let (name, is_header) =
            line.split_once(':').map_or((line, false), |(name, _)| (name, true));
        let shown: String = crate::model::sanitize_line(name).chars().take(40).collect();
        if !is_header {
            return DraftError::NoHeader(shown);
        }
        if let Some((name, what)) = OF_SOME_KINDS.iter().find(|k| k.0.eq_ignore_ascii_case(name)) {
            return DraftError::BadHeader {
                header: (*name).to_owned(),
                problem: format!("no store here has {what}; remove the line"),
            };
        }
        DraftError::BadHeader {
            header: shown,
            problem: format!(
                "is not a header that a draft can have ({}); leave an empty line between the \
                 header and the text, or begin the text with an empty line if it has no header",
                self.0.join(", ")
            ),
        }
    }
}

fn without_final_newlines(mut text: &str) -> &str {
    while let Some(rest) = text.strip_suffix('\n') {
        text = rest.strip_suffix('\r').unwrap_or(rest);
    }
    text
}

fn is_rule(line: &str) -> bool {
    line.trim_end() == "---"
}

fn set_header(draft: &mut Draft, name: &'static str, value: &str) -> Result<(), DraftError> {
    let bad = |problem: &str| {
        Err(DraftError::BadHeader { header: name.to_owned(), problem: problem.to_owned() })
    };
    if value.chars().any(|c| c.is_control() && c != '\t') {
        return bad("holds a control character");
    }
    let single = match name {
        "To" | "Cc" | "Bcc" => {
            let list = parse_addresses(value);
            if list.is_empty() {
                return Err(DraftError::NoRecipient(name));
            }
            let slot = match name {
                "To" => &mut draft.to,
                "Cc" => &mut draft.cc,
                _ => &mut draft.bcc,
            };
            slot.extend(list);
            return Ok(());
        }
        "Attach" => {
            if !value.starts_with('/') {
                return bad("takes an absolute path, one a line");
            }
            draft.attach_paths.push(value.to_owned());
            return Ok(());
        }
        "Subject" => &mut draft.subject,
        "Thread" => &mut draft.thread,
        "In-Reply-To" => &mut draft.in_reply_to,
        "Priority" => &mut draft.priority,
        "Type" => &mut draft.kind,
        "Via" => &mut draft.via,
        "Task" => &mut draft.task,
        "Idempotency-Key" => &mut draft.idempotency_key,
        _ => return bad("cannot be sent by this version; remove the line"),
    };
    if single.is_some() {
        return bad("is given twice; leave one out");
    }
    let whole_id = value.strip_prefix('<').and_then(|v| v.strip_suffix('>'));
    // The form in which RFC 2392 names a mail.
    let mail = value.strip_prefix("mid:");
    let value = match mail {
        _ if name != "In-Reply-To" => value,
        Some(mail) => mail.rsplit_once('@').map_or(mail, |(id, _)| id),
        None => bare_id(value),
    };
    if value.is_empty() {
        // An empty subject is a choice; every other empty value is a mistake.
        return if name == "Subject" { Ok(()) } else { bad("has no value; remove the line") };
    }
    if name == "Idempotency-Key" && value.len() > 256 {
        return bad("is longer than 256 bytes");
    }
    *single = Some(value.to_owned());
    if name == "In-Reply-To" {
        let whole_id = whole_id.filter(|id| id.contains('@'));
        draft.in_reply_to_mail = mail.or(whole_id).map(str::to_owned);
        draft.answers_mail = mail.is_some();
    }
    Ok(())
}

/// Returns the bare addresses of a list: `bob, Carol <carol@x>`.
fn parse_addresses(value: &str) -> Vec<String> {
    value.split(',').map(bare_address).filter(|a| !a.is_empty()).map(str::to_owned).collect()
}

/// Returns the bare address: `carol@x` for `Carol <carol@x>`.
pub(super) fn bare_address(text: &str) -> &str {
    let text = text.trim();
    match (text.rfind('<'), text.strip_suffix('>')) {
        (Some(at), Some(inner)) => inner.get(at + 1..).unwrap_or(text).trim(),
        _ => text,
    }
}

/// Returns the id in angle brackets without its place: `id` for `<id@samp>`.
fn bare_id(value: &str) -> &str {
    let inner = value.strip_prefix('<').and_then(|v| v.strip_suffix('>'));
    match inner {
        Some(inner) => inner.rsplit_once('@').map_or(inner, |(id, _)| id),
        None => value,
    }
}

/// Returns a text without its byte order mark. Editors put one before text. Before JSON it is a fault that a store must
/// see, and stays.
fn strip_byte_order_mark(text: &str) -> &str {
    text.strip_prefix('\u{feff}').filter(|rest| !rest.starts_with('{')).unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parse(bytes: &[u8]) -> Result<Draft, DraftError> {
        DraftParser::with_headers([]).parse(bytes)
    }

    fn parse_partial(bytes: &[u8]) -> Result<Option<Draft>, DraftError> {
        DraftParser::with_headers([]).parse_partial(bytes)
    }

    #[test]
    fn a_header_of_one_kind_is_known_where_there_is_such_a_store() {
        let text = b"Task: T1\nTo: bob\n\nx";
        assert_eq!(parse(text).unwrap().body, "Task: T1\nTo: bob\n\nx");
        let headers = DraftParser::with_headers(["Task", "Task", "To"]);
        let draft = headers.parse(text).unwrap();
        assert_eq!((draft.task.as_deref(), draft.to), (Some("T1"), vec!["bob".to_owned()]));
        let e = headers.parse(b"task: T1\nX: y\n\nx").unwrap_err().to_string();
        assert!(e.contains("Idempotency-Key, Task)"), "{e}");
        let e = parse(b"To: bob\nTask: T1\n\nx").unwrap_err().to_string();
        assert!(e == "Task: no store here has tasks; remove the line", "{e}");
    }

    #[test]
    fn a_block_needs_a_known_first_line() {
        let d = parse(b"hello\nTo: bob\n\n").unwrap();
        assert_eq!((d.body.as_str(), d.to.len()), ("hello\nTo: bob", 0));
        let d = parse(b"\nTo: bob\n").unwrap();
        assert_eq!((d.body.as_str(), d.to.len()), ("To: bob", 0));
        let d = parse(b"to: bob, Carol <carol>\nSubject: a\n b\n\n\nx\n\n").unwrap();
        assert_eq!(d.to, ["bob", "carol"]);
        assert_eq!(d.subject.as_deref(), Some("a b"));
        assert_eq!(d.body, "\nx");
    }

    #[test]
    fn a_rule_ends_the_block_too() {
        let d = parse(b"To: bob\nSubject: s\n---\n\nbody\n---\nmore\n").unwrap();
        assert_eq!(d.body, "body\n---\nmore");
    }

    #[test]
    fn addresses_lose_their_names() {
        for (text, bare) in [
            ("bob", "bob"),
            (" Carol <carol@x> ", "carol@x"),
            ("\"D <e>\" <d@x>", "d@x"),
            ("<>", ""),
            ("a>", "a>"),
            (">", ">"),
            ("<", "<"),
        ] {
            assert_eq!(bare_address(text), bare, "{text}");
        }
        let d = parse(b"To: bob@acme.crabmail.ai, B C <b+c@x>\nCc: d\n\nx").unwrap();
        assert_eq!(
            (d.to, d.cc),
            (vec!["bob@acme.crabmail.ai".into(), "b+c@x".into()], vec!["d".into()])
        );
    }

    #[test]
    fn message_ids_lose_their_brackets() {
        let d = parse(b"In-Reply-To: <ab12@samp>\n\nx").unwrap();
        assert_eq!(d.in_reply_to.as_deref(), Some("ab12"));
        assert_eq!(parse(b"In-Reply-To: ab12\n\nx").unwrap().in_reply_to.as_deref(), Some("ab12"));
        let d = parse(b"In-Reply-To: mid:ab12@samp\n\nx").unwrap();
        assert_eq!((d.in_reply_to.as_deref(), d.answers_mail), (Some("ab12"), true));
    }

    #[test]
    fn refusals_say_what_to_do() {
        for (text, words) in [
            (&b"To: bob\nX-Foo: 1\n\nx"[..], "is not a header"),
            (b"To: bob\nsome text\n", "the line \"some text\" stands in the header"),
            (b"To: ,\n\nx", "names nobody"),
            (b"To: bob\nThread:\n\nx", "remove the line"),
            (b"Subject: a\nSubject: b\n\nx", "given twice"),
            (b"Attach: a.txt\n\nx", "absolute path"),
            (b"Subject: a\x07b\n\nx", "control"),
            (b"a\xffb", "iconv"),
        ] {
            let e = parse(text).unwrap_err().to_string();
            assert!(e.contains(words), "{e}");
        }
    }

    #[test]
    fn of_an_open_block_whole_lines_are_judged() {
        assert_eq!(parse_partial(b"To: bob\nX").unwrap(), None);
        assert_eq!(parse_partial(b"To: bo").unwrap(), None);
        assert_eq!(parse_partial("\u{feff}To: bob\n".as_bytes()).unwrap(), None);
        assert_eq!(parse_partial(b"To: bob\nSubject: x\n more\n").unwrap(), None);
        for text in [&b"To: bob\nSubject: x\ntext\n"[..], b"To: bob\ntext: more\nSub"] {
            let e = parse_partial(text).unwrap_err().to_string();
            assert!(e.contains("leave an empty line between"), "{e}");
            assert_eq!(parse(text).unwrap_err().to_string(), e);
        }
        assert_eq!(parse(b"To: bob\nSubject: x\n"), Err(DraftError::OpenHeader));
        assert_eq!(parse(b"To: bob"), Err(DraftError::OpenHeader));
        assert_eq!(parse(b"To: bob\n\n").unwrap().body, "");
        assert!(parse_partial(b"To: bob\nX: 1\n\n").is_err());
        assert!(parse_partial(b"hi\n").unwrap().is_some());
        assert!(parse_partial(b"hi\n\xc3").unwrap().is_some());
        assert!(parse_partial(b"hi\n\xff\n").is_err());
    }

    proptest! {
        #[test]
        fn any_bytes_parse_or_are_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse(&bytes);
            let _ = parse_partial(&bytes);
        }

        #[test]
        fn a_text_after_an_empty_line_is_kept_as_it_is(text in "[^\n\u{feff}]{0,40}(\n[^\n]{1,20}){0,4}") {
            let d = parse(format!("\n{text}\n").as_bytes()).unwrap();
            let body = format!("{text}\n");
            prop_assert_eq!(d.body, without_final_newlines(&body));
        }
    }
}
