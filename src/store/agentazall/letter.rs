//! One message file: read whole, taken apart, and reduced to what tells it from other messages.

use std::borrow::Cow;

use bytemuck::{Pod, Zeroable};
use jiff::tz::TimeZone;
use sha2::{Digest, Sha256};

use super::block::{self, Reading};
use super::date::{self, DateForm};
use super::place::Place;
use super::text::{self, Letter, unmarked};
use super::{names, thread};
use crate::model::{Claim, ClaimScope, PublicKey, Timestamp, verify};
use crate::store::Found;
use crate::store::engine::files::Facts;
use crate::store::fs::{self, Stamp};

/// A larger file is not a message; it is not read into memory.
pub(super) const MAX_FILE: usize = fs::MAX_RECORD;

/// Sixteen bytes of a SHA-256: enough that nobody makes two that are equal.
pub(super) type Print = [u8; 16];

/// Who wrote the Date line, as its form tells; the writer's own program first.
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

/// What is kept of a message file between scans. A print of zeros is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Kept {
    /// Of From, id and text.
    pub text: Print,
    /// Of From and id.
    pub name: Print,
    /// What else tells that another file is a copy: with [`Kept::LINK`], of key, signed Message-ID and
    /// signature; else, where only they can tell, of signature, From, Subject and text.
    pub tie: Print,
    /// Of the key by which its signature verifies.
    pub key: Print,
    /// SHA-256 of the file as it was before anybody marked it read.
    pub file: [u8; 32],
    /// When it was written, in milliseconds since 1970.
    pub time: i64,
    /// Modification time of the file, in milliseconds since 1970.
    pub mtime: i64,
    /// The file whose id its message has, by number; [`Kept::UNSORTED`] until that is settled.
    pub leader: u32,
    pub form: u8,
    pub bits: u8,
    pub _pad: [u8; 2],
}

impl Kept {
    /// No number of a file.
    pub const UNSORTED: u32 = u32::MAX;
    /// Status says read.
    pub const READ: u8 = 1;
    /// Files lie beside it.
    pub const PARTS: u8 = 1 << 1;
    /// All that is shown is signed.
    pub const WHOLE: u8 = 1 << 2;
    /// It looked as if somebody was still writing it.
    pub const UNFINISHED: u8 = 1 << 3;
    /// There is a signed Message-ID.
    pub const LINK: u8 = 1 << 4;
    /// From is me, or nobody.
    pub const MINE: u8 = 1 << 5;
    /// Its id is that of its message, and that is settled.
    pub const PLAIN: u8 = 1 << 6;
    /// Status says new, and may be set.
    pub const NEW: u8 = 1 << 7;

    /// Whether a bit is set.
    pub fn has(&self, bit: u8) -> bool {
        self.bits & bit != 0
    }

    /// Sets a bit, or takes it away.
    pub fn set(&mut self, bit: u8, on: bool) {
        self.bits = if on { self.bits | bit } else { self.bits & !bit };
    }

    /// The form of its Date.
    pub fn form(&self) -> Form {
        match self.form {
            0 => Form::Local,
            1 => Form::Relay,
            2 => Form::Mail,
            _ => Form::None,
        }
    }

    /// The same with another form.
    pub fn with_form(self, form: Form) -> Self {
        Self { form: form as u8, ..self }
    }

    /// Whether a signature verifies.
    pub fn is_signed(&self) -> bool {
        self.key != NO_PRINT
    }

    /// What ties it to files with the same signed Message-ID.
    pub fn link(&self) -> Option<Print> {
        (self.has(Self::LINK) && self.tie != NO_PRINT).then_some(self.tie)
    }

    /// What ties it to copies that came by other transports.
    pub fn copy(&self) -> Option<Print> {
        (!self.has(Self::LINK) && self.tie != NO_PRINT).then_some(self.tie)
    }
}

/// The slot under which files are found by From and id.
pub(super) const BY_NAME: u8 = 2;

impl Facts for Kept {
    const SLOTS: u8 = 3;

    fn key(&self, slot: u8, is_message: bool) -> u64 {
        let print = [self.text, self.tie, self.name].get(usize::from(slot)).copied();
        let print = print.filter(|_| is_message).unwrap_or_default();
        u128::from_le_bytes(print) as u64
    }

    fn time(&self) -> i64 {
        self.time
    }

    fn prints(&self) -> (u64, u64) {
        let short = |print: Print| u128::from_le_bytes(print) as u64;
        (short(self.name), short(print(b'v', &[&self.text, &self.key])))
    }
}

/// No print at all.
const NO_PRINT: Print = [0; 16];

/// A message file taken apart.
#[derive(Debug)]
pub(super) struct Parsed {
    /// Headers and body as they stand in the file.
    pub letter: Letter,
    /// What they say.
    pub reading: Reading,
    /// The writer's bare address; empty if there is none.
    pub from: String,
    /// Its id: Message-ID, else the file's stem.
    pub id: String,
    /// What is kept.
    pub kept: Kept,
}

/// Takes the bytes of a message file apart, which lies at `place` in the mailbox of `me`.
pub(super) fn take_apart(
    bytes: &[u8],
    stamp: &Stamp,
    place: &Place<'_>,
    (me, zone): (&str, &TimeZone),
) -> Parsed {
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
    let time = reading.time.unwrap_or(time);
    let from = reading.from.as_deref().map(names::bare_address).unwrap_or_default();
    let id = reading.id.clone().filter(|id| !id.is_empty());
    let id = id.unwrap_or_else(|| place.stem.replace('\0', "\u{fffd}"));
    // Transports change line ends and the end of the text.
    let body = text::universal_newlines(reading.body.trim_end());
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
    let mut kept = Kept {
        text: print(b't', &[from.as_bytes(), id.as_bytes(), body.as_bytes()]),
        name: print(b'n', &[from.as_bytes(), id.as_bytes()]),
        tie: link.or(copy).unwrap_or_default(),
        key: key.map(|key| key_print(&key.0)).unwrap_or_default(),
        file: Sha256::digest(unmarked(bytes)).into(),
        time: time.millis(),
        mtime: stamp.modified().millis(),
        ..Kept::default()
    }
    .with_form(form);
    let scope = match &reading.claim {
        Some(Claim::Signed { scope, .. }) => Some(scope),
        _ => None,
    };
    kept.set(Kept::WHOLE, matches!(scope, Some(ClaimScope::Whole | ClaimScope::Renamed)));
    kept.set(Kept::READ, letter.is_read());
    kept.set(Kept::NEW, text::may_set_read(bytes));
    kept.set(Kept::LINK, link.is_some());
    kept.set(Kept::MINE, from.is_empty() || from == me);
    kept.set(Kept::UNFINISHED, text::is_unfinished(bytes, &letter));
    Parsed { letter, reading, from, id, kept }
}

/// A print of a key.
pub(super) fn key_print(key: &[u8; 32]) -> Print {
    print(b'k', &[key])
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
    digest.first_chunk().copied().unwrap_or_default()
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

/// Whether a file is `before` (hash and size, as [`Kept::file`] has it) with something added, marked or not.
pub(super) fn has_grown(bytes: &[u8], before: &[u8; 32], size: u64) -> bool {
    let size = usize::try_from(size).unwrap_or(usize::MAX);
    // A mark makes a file one byte longer, its removal one shorter.
    let sizes = [size, size.saturating_add(1), size.saturating_sub(1)];
    let starts = sizes.into_iter().filter_map(|n| bytes.get(..n));
    starts.into_iter().any(|start| <[u8; 32]>::from(Sha256::digest(unmarked(start))) == *before)
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
            thread: Cow::Owned(thread_of(subject, &self.from, &to, me)),
            from: Cow::Owned(self.from),
            to: Cow::Owned(to.join(", ")),
            answers: self.reading.answers.map(Cow::Owned),
            id: Cow::Owned(self.id),
            time: Timestamp::from_millis(self.kept.time),
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

    proptest::proptest! {
        #[test]
        fn any_bytes_can_be_taken_apart(bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..300)) {
            let place = Place::parse("2026-03-11/inbox/ab.txt").unwrap();
            let zone = TimeZone::UTC;
            let parsed = take_apart(&bytes, &Stamp::default(), &place, ("me", &zone));
            proptest::prop_assert!(!parsed.id.is_empty());
            let once = unmarked(&bytes);
            proptest::prop_assert_eq!(unmarked(&once), once.clone());
        }
    }
}
