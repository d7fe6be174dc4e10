//! One message file: read, parsed, and reduced to the hashes that tell it from other messages.

use std::borrow::Cow;
use std::collections::HashSet;

use bytemuck::{Pod, Zeroable};
use jiff::tz::TimeZone;
use sha2::{Digest, Sha256};

use super::block::{self, LetterContent};
use super::date::{self, DateForm};
use super::layout::LetterPath;
use super::text::{self, Letter, without_mark};
use super::{names, thread};
use crate::model::{PublicKey, SignatureClaim, SignatureScope, Timestamp, sanitize_line, verify};
use crate::store::FoundMessage;
use crate::store::engine::files::FileFacts;
use crate::store::fs::{self, Stamp};

/// Size limit of a message. A larger file is no message and is not read into memory.
pub(super) const MAX_FILE: usize = fs::MAX_RECORD;

/// Sixteen bytes of a SHA-256: enough that nobody makes two that are equal.
pub(super) type LetterHash = [u8; 16];

/// The program that wrote the Date line, as its form tells; the writer's own program comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum DateOrigin {
    /// The writer's own program.
    Local,
    /// A relay.
    Relay,
    /// A mail program.
    Mail,
    /// No usable Date.
    None,
}

impl From<DateForm> for DateOrigin {
    fn from(form: DateForm) -> Self {
        match form {
            DateForm::Local | DateForm::DateOnly => Self::Local,
            DateForm::Relay | DateForm::Rfc3339 => Self::Relay,
            DateForm::Rfc2822 => Self::Mail,
        }
    }
}

/// The facts of a message file that are kept between scans. A hash of zeros is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub(super) struct LetterFacts {
    /// Hash of From, id and text.
    pub text_hash: LetterHash,
    /// Hash of From and id.
    pub name_hash: LetterHash,
    /// The hash by which another file is known as a copy. With [`LetterFacts::LINK`]: of key, signed Message-ID and
    /// signature. Else, where only they can tell: of signature, From, Subject and text.
    pub tie_hash: LetterHash,
    /// Hash of the key by which its signature verifies.
    pub key_hash: LetterHash,
    /// SHA-256 of the file as it was before anybody marked it read.
    pub file_hash: [u8; 32],
    /// Time at which it was written, in milliseconds since 1970.
    pub time: i64,
    /// Modification time of the file, in milliseconds since 1970.
    pub mtime: i64,
    /// Number of the file whose id its message has; [`LetterFacts::UNSORTED`] until that is settled.
    pub leader: u32,
    pub origin: u8,
    pub bits: u8,
    pub _pad: [u8; 2],
}

impl LetterFacts {
    /// A number that no file has.
    pub const UNSORTED: u32 = u32::MAX;
    /// Bit: Status is read.
    pub const READ: u8 = 1;
    /// Bit: it has attachments.
    pub const PARTS: u8 = 1 << 1;
    /// Bit: the signature covers all that is shown.
    pub const WHOLE: u8 = 1 << 2;
    /// Bit: it looked as if somebody was still writing it.
    pub const UNFINISHED: u8 = 1 << 3;
    /// Bit: it has a signed Message-ID.
    pub const LINK: u8 = 1 << 4;
    /// Bit: From is me, or empty.
    pub const MINE: u8 = 1 << 5;
    /// Bit: its id is that of its message, and that is settled.
    pub const PLAIN: u8 = 1 << 6;
    /// Bit: Status is new and may be set.
    pub const NEW: u8 = 1 << 7;

    /// Returns true if a bit is set.
    pub fn has_bit(&self, bit: u8) -> bool {
        self.bits & bit != 0
    }

    /// Sets or clears a bit.
    pub fn set_bit(&mut self, bit: u8, on: bool) {
        self.bits = if on { self.bits | bit } else { self.bits & !bit };
    }

    /// Returns the origin of its Date.
    pub fn date_origin(&self) -> DateOrigin {
        match self.origin {
            0 => DateOrigin::Local,
            1 => DateOrigin::Relay,
            2 => DateOrigin::Mail,
            _ => DateOrigin::None,
        }
    }

    /// Returns the same facts with another origin.
    pub fn with_date_origin(self, form: DateOrigin) -> Self {
        Self { origin: form as u8, ..self }
    }

    /// Returns true if a signature verifies.
    pub fn is_signed(&self) -> bool {
        self.key_hash != NO_PRINT
    }

    /// Returns the hash that it shares with files of the same signed Message-ID.
    pub fn link_hash(&self) -> Option<LetterHash> {
        (self.has_bit(Self::LINK) && self.tie_hash != NO_PRINT).then_some(self.tie_hash)
    }

    /// Returns a hash of its text and key.
    fn hash_content(&self, domain: u8) -> u64 {
        shorten_hash(hash_fields(domain, &[&self.text_hash, &self.key_hash]))
    }

    /// Returns the hash that it shares with copies that came by other transports.
    pub fn copy_hash(&self) -> Option<LetterHash> {
        (!self.has_bit(Self::LINK) && self.tie_hash != NO_PRINT).then_some(self.tie_hash)
    }
}

/// The slot in which files are found by From and id.
pub(super) const BY_NAME: u8 = 2;

impl FileFacts for LetterFacts {
    const SLOTS: u8 = 3;

    fn slot_key(&self, slot: u8, is_message: bool) -> u64 {
        let print = [self.text_hash, self.tie_hash, self.name_hash].get(usize::from(slot)).copied();
        shorten_hash(print.filter(|_| is_message).unwrap_or_default())
    }

    fn time(&self) -> i64 {
        self.time
    }

    fn hashes(&self) -> (u64, u64) {
        // Form 2 covers the header, too.
        let domain = if self.link_hash().is_some() { b'w' } else { b'v' };
        (shorten_hash(self.name_hash), self.hash_content(domain))
    }

    fn earlier_content_hash(&self) -> u64 {
        self.hash_content(b'v')
    }
}

/// The hash that stands for none.
const NO_PRINT: LetterHash = [0; 16];

/// A parsed message file.
#[derive(Debug)]
pub(super) struct ParsedLetter {
    /// Header and body as they stand in the file.
    pub letter: Letter,
    /// The content of header and body.
    pub content: LetterContent,
    /// The writer's bare address; empty if there is none.
    pub from: String,
    /// Its id: Message-ID, else the file's stem.
    pub id: String,
    /// The facts that are kept.
    pub facts: LetterFacts,
}

/// Returns the reason why a file of these bytes is too large to be a message.
pub(super) fn find_size_fault(bytes: &[u8]) -> Option<String> {
    let limit = MAX_FILE >> 20;
    let why = || format!("it cannot be read: is larger than {limit} MiB, so it is not a message");
    (bytes.len() > MAX_FILE).then(why)
}

/// Parses the bytes of a message file that lies at `place` in the mailbox of `me`.
pub(super) fn parse_letter(
    bytes: &[u8],
    stamp: &Stamp,
    place: &LetterPath<'_>,
    (me, zone): (&str, &TimeZone),
) -> ParsedLetter {
    let letter = text::parse(bytes);
    let mut reading = block::read(&letter);
    for id in
        [&mut reading.id, &mut reading.in_reply_to, &mut reading.signed_id].into_iter().flatten()
    {
        // A NUL separates the additions of msgfs from the id.
        *id = id.replace('\0', "\u{fffd}");
    }
    let (time, form) = match reading.date.as_deref().and_then(|d| date::parse_date(d, zone)) {
        Some((time, form)) => (time, form.into()),
        None => (date::local_midnight(place.day, zone).unwrap_or_default(), DateOrigin::None),
    };
    let time = reading.time.unwrap_or(time);
    let from = reading.from.as_deref().map(names::bare_address).unwrap_or_default();
    let id = reading.id.clone().filter(|id| !id.is_empty());
    let id = id.unwrap_or_else(|| place.stem.replace('\0', "\u{fffd}"));
    // Transports change line ends and the end of the text.
    let body = text::normalize_newlines(reading.body.trim_end());
    let key = find_verified_key(&reading);
    let copy = match (&key, &reading.signature, form) {
        (Some(_), Some(signature), DateOrigin::Local | DateOrigin::Relay | DateOrigin::Mail)
            if reading.signed_id.is_none() && !reading.is_legacy =>
        {
            let subject = reading.subject.as_deref().unwrap_or_default();
            Some(hash_fields(
                b'c',
                &[signature, from.as_bytes(), subject.as_bytes(), body.as_bytes()],
            ))
        }
        _ => None,
    };
    let link = match (&key, &reading.signed_id, &reading.claim) {
        (Some(key), Some(id), Some(SignatureClaim::Signed { signature, .. })) => {
            Some(hash_fields(b'l', &[&key.0, id.as_bytes(), signature]))
        }
        _ => None,
    };
    let mut kept = LetterFacts {
        text_hash: hash_fields(b't', &[from.as_bytes(), id.as_bytes(), body.as_bytes()]),
        name_hash: hash_fields(b'n', &[from.as_bytes(), id.as_bytes()]),
        tie_hash: link.or(copy).unwrap_or_default(),
        key_hash: key.map(|key| hash_key(&key.0)).unwrap_or_default(),
        file_hash: Sha256::digest(without_mark(bytes)).into(),
        time: time.millis(),
        mtime: stamp.modified().millis(),
        ..LetterFacts::default()
    }
    .with_date_origin(form);
    let scope = match &reading.claim {
        Some(SignatureClaim::Signed { scope, .. }) => Some(scope),
        _ => None,
    };
    kept.set_bit(
        LetterFacts::WHOLE,
        matches!(scope, Some(SignatureScope::Whole | SignatureScope::Renamed)),
    );
    kept.set_bit(LetterFacts::READ, letter.is_read());
    kept.set_bit(LetterFacts::NEW, text::may_set_read(bytes));
    kept.set_bit(LetterFacts::LINK, link.is_some());
    kept.set_bit(LetterFacts::MINE, from.is_empty() || from == me);
    kept.set_bit(LetterFacts::UNFINISHED, text::is_unfinished(bytes, &letter));
    ParsedLetter { letter, content: reading, from, id, facts: kept }
}

/// Returns the first 8 bytes of a hash as a number.
fn shorten_hash(hash: LetterHash) -> u64 {
    u128::from_le_bytes(hash) as u64
}

/// Returns the hash of a key.
pub(super) fn hash_key(key: &[u8; 32]) -> LetterHash {
    hash_fields(b'k', &[key])
}

/// Returns a hash of these fields. Equal fields of another domain have another hash.
pub(super) fn hash_fields(domain: u8, fields: &[&[u8]]) -> LetterHash {
    let mut hash = Sha256::new();
    hash.update([domain]);
    for field in fields {
        hash.update((field.len() as u64).to_le_bytes());
        hash.update(field);
    }
    let digest: [u8; 32] = hash.finalize().into();
    digest.first_chunk().copied().unwrap_or_default()
}

/// Returns the key by which the signature verifies; it may be anybody's.
fn find_verified_key(reading: &LetterContent) -> Option<PublicKey> {
    match &reading.claim {
        Some(claim @ SignatureClaim::Signed { key: Some(key), .. }) => {
            // A verified Signature-V2 covers the body too.
            let good = reading.signed_id.is_some() || verify::verify_claim(key, claim);
            good.then_some(*key)
        }
        _ => None,
    }
}

/// Returns true if a file is `before` (hash and size, as [`LetterFacts::file_hash`] has it) with bytes added. Marks do
/// not matter.
pub(super) fn has_grown(bytes: &[u8], before: &[u8; 32], size: u64) -> bool {
    let size = usize::try_from(size).unwrap_or(usize::MAX);
    // A mark makes a file one byte longer, its removal one shorter.
    let sizes = [size, size.saturating_add(1), size.saturating_sub(1)];
    let starts = sizes.into_iter().filter_map(|n| bytes.get(..n));
    starts.into_iter().any(|start| <[u8; 32]>::from(Sha256::digest(without_mark(start))) == *before)
}

/// Returns the recipients as bare addresses, each once: those of To, and those that are only in Cc.
pub(super) fn split_recipients(to: &[String], cc: &[String]) -> (Vec<String>, Vec<String>) {
    let mut seen = HashSet::new();
    let mut list = |addresses: &[String]| {
        let bare = addresses.iter().map(|address| names::bare_address(address));
        bare.filter(|to| !to.is_empty() && seen.insert(to.clone())).collect::<Vec<_>>()
    };
    (list(to), list(cc))
}

/// Returns all recipients, as [`split_recipients`] does.
pub(super) fn merge_recipients(to: &[String], cc: &[String]) -> Vec<String> {
    let (to, cc) = split_recipients(to, cc);
    to.into_iter().chain(cc).collect()
}

/// Returns the id of the thread that a message begins. It follows from the subject and from all who take part; I am one
/// of them, since the message lies in my mailbox.
pub(super) fn derive_thread(
    subject: &str,
    from: &str,
    recipients: &[impl AsRef<str>],
    me: &str,
) -> String {
    let mut people: Vec<&str> = recipients.iter().map(AsRef::as_ref).collect();
    people.extend([from, me].into_iter().filter(|p| !p.is_empty()));
    thread::derive_thread_id(subject, &people)
}

impl ParsedLetter {
    /// Returns the reason why a link could make no message of this.
    pub fn find_link_fault(&self) -> Option<String> {
        let why = sanitize_line(self.letter.get(text::UNREADABLE)?);
        Some(format!("a link brought a message that cannot be read: {why}"))
    }

    /// Returns the report of this message, as far as this one file tells it.
    pub fn into_report(self, me: &str) -> FoundMessage<'static> {
        let to = merge_recipients(&self.content.to, &self.content.cc);
        let subject = self.content.subject.as_deref().unwrap_or_default();
        FoundMessage {
            thread: Cow::Owned(derive_thread(subject, &self.from, &to, me)),
            from: Cow::Owned(self.from),
            to: Cow::Owned(to.join(", ")),
            in_reply_to: self.content.in_reply_to.map(Cow::Owned),
            id: Cow::Owned(self.id),
            time: Timestamp::from_millis(self.facts.time),
            claim: self.content.claim.map(Box::new),
            idempotency_key: self.content.idempotency_key.map(String::into_boxed_str),
            ..FoundMessage::default()
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
            assert_eq!(without_mark(file(status).as_bytes()), new.as_bytes(), "{status}");
        }
        assert_eq!(without_mark(file("odd").as_bytes()), file("odd").as_bytes());
        assert_eq!(without_mark(b"---\nStatus: read"), b"---\nStatus: read".as_slice());
    }

    #[test]
    fn a_letter_without_its_form_2_signature_is_other_content() {
        let part = LetterFacts { text_hash: [1; 16], key_hash: [2; 16], ..LetterFacts::default() };
        let mut whole = LetterFacts { tie_hash: [3; 16], ..part };
        whole.set_bit(LetterFacts::LINK, true);
        assert_eq!(whole.hashes().0, part.hashes().0);
        assert_ne!(whole.hashes().1, part.hashes().1);
        // Earlier builds noted the same hash for both.
        let noted = [whole, part].map(|facts| facts.earlier_content_hash());
        assert_eq!(noted, [part.hashes().1; 2]);
    }

    #[test]
    fn recipients_come_once_however_many_there_are() {
        let list = |names: &[&str]| names.iter().map(|n| (*n).to_owned()).collect::<Vec<_>>();
        let (to, cc) = (list(&["b", "A <a>", "b", ""]), list(&["c", "a", "c"]));
        assert_eq!(merge_recipients(&to, &cc), ["b", "a", "c"]);
        assert_eq!(split_recipients(&to, &cc), (list(&["b", "a"]), list(&["c"])));
        let many: Vec<String> = (0..300_000).map(|n| n.to_string()).collect();
        let start = std::time::Instant::now();
        assert_eq!(split_recipients(&many, &many), (many, Vec::new()));
        assert!(start.elapsed().as_secs() < 20, "each is compared with each");
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_can_be_taken_apart(bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..300)) {
            let place = LetterPath::parse("2026-03-11/inbox/ab.txt").unwrap();
            let zone = TimeZone::UTC;
            let parsed = parse_letter(&bytes, &Stamp::default(), &place, ("me", &zone));
            proptest::prop_assert!(!parsed.id.is_empty());
            let once = without_mark(&bytes);
            proptest::prop_assert_eq!(without_mark(&once), once.clone());
        }
    }
}
