//! One message file: read whole, taken apart, and reduced to what tells it from other messages.

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use jiff::tz::TimeZone;
use sha2::{Digest, Sha256};

use super::block::{self, Reading};
use super::date::{self, DateForm};
use super::place::Place;
use super::text::{self, Letter};
use super::{names, thread};
use crate::model::{Claim, ClaimScope, PublicKey, Timestamp, verify};
use crate::store::fs::{self, Stamp};
use crate::store::{Found, Location};

/// A larger file is not a message; it is not read into memory.
pub(super) const MAX_FILE: u64 = fs::MAX_RECORD as u64;

/// Sixteen bytes of a SHA-256: enough that nobody makes two that are equal.
pub(super) type Print = [u8; 16];

/// Who wrote the Date line, as its form tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Form {
    /// The writer's own program.
    Local,
    /// A relay.
    Relay,
    /// A mail program.
    Mail,
    /// There is no usable Date.
    None,
}

impl From<DateForm> for Form {
    fn from(form: DateForm) -> Self {
        match form {
            DateForm::Local | DateForm::DateOnly => Self::Local,
            DateForm::Relay | DateForm::Rfc3339 => Self::Relay,
            DateForm::Rfc2822 => Self::Mail,
        }
    }
}

/// What is kept of a message file between scans.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Head {
    /// The writer's bare address; empty if there is none.
    pub from: Box<str>,
    /// Its id: Message-ID, else the file's stem.
    pub id: Box<str>,
    /// When it was written.
    pub time: Timestamp,
    /// The form of its Date.
    pub form: Form,
    /// Status says read.
    pub read: bool,
    /// Files lie beside it.
    pub parts: bool,
    /// All that is shown is signed.
    pub whole: bool,
    /// The key by which its signature verifies.
    pub key: Option<[u8; 32]>,
    /// Of From, id and text.
    pub text: Print,
    /// Of key, signed Message-ID and signature, where there is a signed Message-ID.
    pub link: Option<Print>,
    /// Of signature, From, Subject and text, where only they can tell that this is a copy.
    pub copy: Option<Print>,
    /// SHA-256 of the file as it was before anybody marked it read.
    pub file: [u8; 32],
    /// It looked as if somebody was still writing it.
    pub unfinished: bool,
}

/// A message file taken apart.
#[derive(Debug)]
pub(super) struct Parsed {
    /// The file's state when it was read.
    pub stamp: Stamp,
    /// Its size as a location has it.
    pub len: u32,
    /// Headers and body as they stand in the file.
    pub letter: Letter,
    /// What they say.
    pub reading: Reading,
    /// What is kept.
    pub head: Head,
}

/// Reads a file whole, with its stamp; one that is larger than a message can be is an error.
pub(super) fn load(path: &Path) -> io::Result<(Stamp, Vec<u8>)> {
    load_open(path).map(|(_, stamp, bytes)| (stamp, bytes))
}

/// As [`load`], with the open file.
///
/// # Errors
/// As [`load`].
pub(super) fn load_open(path: &Path) -> io::Result<(File, Stamp, Vec<u8>)> {
    let mut file = fs::open_regular(path)?;
    let stamp = Stamp::of(&file)?;
    if stamp.size > MAX_FILE {
        let why = format!("is larger than {} MiB, so it is not a message", MAX_FILE >> 20);
        return Err(io::Error::new(io::ErrorKind::InvalidData, why));
    }
    let mut bytes = Vec::with_capacity(usize::try_from(stamp.size).unwrap_or_default() + 1);
    (&mut file).take(MAX_FILE).read_to_end(&mut bytes)?;
    Ok((file, stamp, bytes))
}

/// Reads the message file at `path`, which lies at `place` in the mailbox.
///
/// # Errors
/// As [`load`].
pub(super) fn open(path: &Path, place: &Place<'_>, zone: &TimeZone) -> io::Result<Parsed> {
    let (stamp, bytes) = load(path)?;
    Ok(take_apart(&bytes, stamp, place, zone))
}

/// Takes the bytes of a message file apart.
pub(super) fn take_apart(bytes: &[u8], stamp: Stamp, place: &Place<'_>, zone: &TimeZone) -> Parsed {
    let letter = text::parse(bytes);
    let mut reading = block::read(&letter);
    for id in [&mut reading.id, &mut reading.answers, &mut reading.signed_id].into_iter().flatten()
    {
        // A NUL sets apart what msgfs itself adds to ids.
        *id = id.replace('\0', "\u{fffd}");
    }
    let (time, form) = match reading.date.as_deref().and_then(|d| date::parse_date(d, zone)) {
        Some((time, form)) => (time, form.into()),
        None => (date::midnight(place.day, zone).unwrap_or_default(), Form::None),
    };
    let from = reading.from.as_deref().map(names::bare_address).unwrap_or_default();
    let id = reading.id.clone().filter(|id| !id.is_empty());
    let id = id.unwrap_or_else(|| place.stem.replace('\0', "\u{fffd}"));
    let body = plain(&reading.body);
    let key = verified(&reading);
    let copy = match (&key, &reading.signature, form) {
        (Some(_), Some(signature), Form::Local | Form::Relay | Form::Mail)
            if reading.signed_id.is_none() && !reading.legacy =>
        {
            let subject = reading.subject.as_deref().unwrap_or_default();
            Some(print(b'c', &[signature, from.as_bytes(), subject.as_bytes(), body.as_bytes()]))
        }
        _ => None,
    };
    let link = match (&key, &reading.signed_id, &reading.claim) {
        (Some(key), Some(id), Some(Claim::Signed { signature, .. })) => {
            Some(print(b'l', &[&key.0, id.as_bytes(), signature]))
        }
        _ => None,
    };
    let head = Head {
        text: print(b't', &[from.as_bytes(), id.as_bytes(), body.as_bytes()]),
        from: from.into(),
        id: id.into(),
        time,
        form,
        read: letter.is_read(),
        parts: false,
        whole: matches!(
            reading.claim,
            Some(Claim::Signed { scope: ClaimScope::Whole | ClaimScope::Renamed, .. })
        ),
        key: key.map(|k| k.0),
        link,
        copy,
        file: Sha256::digest(unmarked(bytes)).into(),
        unfinished: is_unfinished(bytes, &letter),
    };
    let len = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
    Parsed { stamp, len, letter, reading, head }
}

/// The text for comparing: transports change line ends and the end of the text.
fn plain(body: &str) -> Cow<'_, str> {
    let body = body.trim_end();
    if body.contains('\r') {
        Cow::Owned(body.replace("\r\n", "\n").replace('\r', "\n"))
    } else {
        Cow::Borrowed(body)
    }
}

/// A hash of these fields, apart from those of another domain.
pub(super) fn print(domain: u8, fields: &[&[u8]]) -> Print {
    let mut hash = Sha256::new();
    hash.update([domain]);
    for field in fields {
        hash.update((field.len() as u64).to_le_bytes());
        hash.update(field);
    }
    let digest: [u8; 32] = hash.finalize().into();
    let mut print = Print::default();
    print.iter_mut().zip(digest).for_each(|(to, from)| *to = from);
    print
}

/// The key by which the signature verifies, whoever's it is.
fn verified(reading: &Reading) -> Option<PublicKey> {
    match &reading.claim {
        Some(claim @ Claim::Signed { key: Some(key), .. }) => {
            // A Signature-V2 that was checked speaks for the body too.
            let good = reading.signed_id.is_some() || verify::verify_claim(key, claim);
            good.then_some(*key)
        }
        _ => None,
    }
}

fn has_separator(bytes: &[u8]) -> bool {
    lines(bytes).any(|line| strip(line) == b"---")
}

/// Whether a file is `before` (hash and size, as [`Head::file`] has it) with something added, marked or not.
pub(super) fn has_grown(bytes: &[u8], before: &[u8; 32], size: u64) -> bool {
    let size = usize::try_from(size).unwrap_or(usize::MAX);
    // A mark makes a file one byte longer, its removal one shorter.
    let sizes = [size, size.saturating_add(1), size.saturating_sub(1)];
    let starts = sizes.into_iter().filter_map(|n| bytes.get(..n));
    starts.into_iter().any(|start| <[u8; 32]>::from(Sha256::digest(unmarked(start))) == *before)
}

/// Empty, without the line that ends the header, or with a signed block that does not end.
fn is_unfinished(bytes: &[u8], letter: &Letter) -> bool {
    !has_separator(bytes)
        || (letter.body.starts_with("---BEGIN AGENTAZALL SIGNED MESSAGE---")
            && !letter.body.contains("---END AGENTAZALL SIGNATURE---"))
}

/// The bytes of a message file as they were before it was marked read: the value of the last Status
/// line of the header is `new`. Thus a mark changes neither hash nor identity of a message.
pub(super) fn unmarked(bytes: &[u8]) -> Cow<'_, [u8]> {
    let mut at = 0;
    let mut status = None;
    for line in lines(bytes) {
        if strip(line) == b"---" {
            break;
        }
        if let Some(colon) = memchr::memchr(b':', line) {
            let (key, value) = line.split_at(colon);
            let value = value.get(1..).unwrap_or_default();
            if strip(key) == b"Status" {
                let start = at + colon + 1 + value.iter().take_while(|b| is_space(**b)).count();
                status = Some((start, strip(value).len()));
            }
        }
        at += line.len() + 1;
    }
    let value = status.and_then(|(start, len)| Some((start, bytes.get(start..start + len)?)));
    match value {
        Some((start, value))
            if value.eq_ignore_ascii_case(b"read") || value.eq_ignore_ascii_case(b"new") =>
        {
            let before = bytes.get(..start).unwrap_or_default();
            let after = bytes.get(start + value.len()..).unwrap_or_default();
            Cow::Owned([before, b"new", after].concat())
        }
        _ => Cow::Borrowed(bytes),
    }
}

fn lines(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    bytes.split(|b| *b == b'\n' || *b == b'\r')
}

fn is_space(b: u8) -> bool {
    matches!(b, b' ' | b'\t' | 0x0b | 0x0c | 0x1c..=0x1f)
}

fn strip(mut line: &[u8]) -> &[u8] {
    while let [first, rest @ ..] = line
        && is_space(*first)
    {
        line = rest;
    }
    while let [rest @ .., last] = line
        && is_space(*last)
    {
        line = rest;
    }
    line
}

/// The recipients as bare addresses, each once, To before Cc.
pub(super) fn recipients(to: &[String], cc: &[String]) -> Vec<String> {
    let mut out: Vec<String> = Vec::new();
    for address in to.iter().chain(cc) {
        let address = names::bare_address(address);
        if !address.is_empty() && !out.contains(&address) {
            out.push(address);
        }
    }
    out
}

/// The thread that a message begins: of its subject and of those who take part, me among them since
/// it lies in my mailbox.
pub(super) fn thread_of(subject: &str, from: &str, recipients: &[String], me: &str) -> String {
    let mut people: Vec<&str> = recipients.iter().map(String::as_str).collect();
    people.extend([from, me].into_iter().filter(|p| !p.is_empty()));
    thread::thread_id(subject, &people)
}

impl Parsed {
    /// The report of this message, as far as this one file tells it.
    pub fn found(self, me: &str) -> Found<'static> {
        let to = recipients(&self.reading.to, &self.reading.cc);
        let subject = self.reading.subject.as_deref().unwrap_or_default();
        Found {
            name_time: None,
            noted: false,
            at: Location { source: 0, offset: 0, len: self.len },
            line: 0,
            thread: Cow::Owned(thread_of(subject, &self.head.from, &to, me)),
            from: Cow::Owned(self.head.from.into_string()),
            to: Cow::Owned(to.join(", ")),
            answers: self.reading.answers.map(Cow::Owned),
            id: Cow::Owned(self.head.id.into_string()),
            time: self.head.time,
            to_me: false,
            from_me: false,
            read: None,
            parts: false,
            claim: self.reading.claim.map(Box::new),
            idempotency_key: self.reading.idempotency_key.map(String::into_boxed_str),
            ..Found::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_does_not_change_the_bytes_that_are_hashed() {
        let file =
            |status: &str| format!("From: a\nStatus: x\nStatus:  {status} \r\n---\nStatus: y");
        let new = file("new");
        for status in ["new", "read", "READ", "New"] {
            assert_eq!(unmarked(file(status).as_bytes()), new.as_bytes(), "{status}");
        }
        assert_eq!(unmarked(file("odd").as_bytes()), file("odd").as_bytes());
        assert_eq!(unmarked(b"---\nStatus: read"), b"---\nStatus: read".as_slice());
    }

    #[test]
    fn half_of_a_file_is_noticed() {
        let unfinished = |bytes: &[u8]| is_unfinished(bytes, &text::parse(bytes));
        assert!(unfinished(b""));
        assert!(unfinished(b"From: a\nTo: b\n"));
        assert!(unfinished(b"From: a\n---\n---BEGIN AGENTAZALL SIGNED MESSAGE---\nFinger"));
        assert!(!unfinished(b"From: a\n---\n"));
        assert!(!unfinished(b"From: a\r\n  --- \r\nhello"));
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_can_be_taken_apart(bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..300)) {
            let place = Place::parse("2026-03-11/inbox/ab.txt").unwrap();
            let parsed = take_apart(&bytes, Stamp::default(), &place, &TimeZone::UTC);
            proptest::prop_assert!(!parsed.head.id.is_empty());
            let once = unmarked(&bytes);
            proptest::prop_assert_eq!(unmarked(&once), once.clone());
        }
    }
}
