//! The results of a scan, and one message that is read in full.

use std::borrow::Cow;
use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::num::NonZeroU64;
use std::path::Path;
use std::sync::Arc;

use super::{Kind, StoreError};
use crate::model::{Attachment, Message, SignatureClaim, Timestamp};

/// The location of a message's bytes: a byte range of one of the store's files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Location {
    /// The file, by the number the store gave it (see
    /// [`MessageReader::source_path`](super::MessageReader::source_path)). At most 2^24
    /// - 1.
    pub source: u32,
    /// The first byte of the record.
    pub offset: u64,
    /// Length of the record in bytes, without a line terminator.
    pub len: u32,
}

/// The meaning of a report whose key is known already.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RepeatKind {
    /// A message with the same id, as its writer claims. The text may differ.
    Claimed,
    /// The same message: the id is a hash of the content. Only its location may differ.
    Same,
    /// The present state of the message, which replaces the earlier one.
    #[default]
    Restated,
    /// The present state, as [`RepeatKind::Restated`]. The text in the same location may differ, too.
    Rewritten,
}

/// The facts that an index keeps of a message, borrowed from the scan's buffer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FoundMessage<'a> {
    /// Its location.
    pub at: Location,
    /// The path of that file, relative to [`Store::dir`](super::Store::dir).
    pub path: Arc<str>,
    /// The meaning of this report if the key is known already.
    pub repeat_kind: RepeatKind,
    /// Line number in a log, counted from 1; 0 where a file is one message.
    pub line: u64,
    /// Its sender, already unescaped; empty if it names none.
    pub from: Cow<'a, str>,
    /// Its recipients, already unescaped, joined by `", "` if there are several.
    pub to: Cow<'a, str>,
    /// Its thread id, verbatim. In a format without thread ids ([`ThreadScheme::Links`](super::ThreadScheme::Links)),
    /// it is the id of the thread that the message begins unless its reply link, or its parent, leads to another.
    pub thread: Cow<'a, str>,
    /// The id of the message that it answers, where the format has no thread ids or the message is from or to me. A
    /// message joins a thread only if its signature is valid, never on somebody else's word.
    pub in_reply_to: Option<Cow<'a, str>>,
    /// The id of the message whose thread it joins, signed or not, as soon as only one message has that id. Only
    /// stores that [join](super::ThreadScheme::Joined) threads set it.
    pub parent: Option<Cow<'a, str>>,
    /// Its id, unique for the sender (see [`QUALIFIER`](crate::model::QUALIFIER)).
    pub id: Cow<'a, str>,
    /// The kind of the store from which the message was kept here. It is then a message of that kind: a store of that
    /// kind shows it first, and this store stands in when that one has it no more.
    pub origin: Option<Kind>,
    /// The time at which it was written.
    pub time: Timestamp,
    /// The time in its name if that is another. The order of the store then differs from that of the times.
    pub name_time: Option<Timestamp>,
    /// True if it is addressed to me.
    pub to_me: bool,
    /// True if I wrote it.
    pub from_me: bool,
    /// True if only its own words say that I wrote it: others can write where it lies.
    pub is_my_name_unproven: bool,
    /// True if it lies in a conflict copy, which a sync program left beside the log that it copies.
    pub is_in_copy: bool,
    /// The store's own read mark, where it has one on the message itself.
    pub read: Option<bool>,
    /// A hash of the files that hold it and could carry a read mark, but do not. It is 0 if there are none, and where
    /// the format keeps a message in one place.
    pub unmarked_hash: u64,
    /// True if files come with it ([`PartReader`](super::PartReader)).
    pub has_parts: bool,
    /// True if there is a note about it ([`Record::note`]).
    pub has_note: bool,
    /// The length of its rendered text in bytes without the lines on its signature, if that is known without rendering
    /// it ([`ShownMessage`](crate::model::ShownMessage)).
    pub plain_length: Option<u32>,
    /// The record as it stands in its log, if the log may be rewritten
    /// ([`StoreProperties::signed_text`](super::StoreProperties::signed_text)).
    pub record: &'a str,
    /// The signature that it carries.
    pub claim: Option<Box<SignatureClaim>>,
    /// The message to several recipients of which it is the record to one.
    pub multicast: Option<MulticastKey>,
    /// The idempotency key that it carries.
    pub idempotency_key: Option<Box<str>>,
}

/// The values that all records of one message to several recipients have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MulticastKey {
    /// A number that follows from the record to the first recipient.
    pub key: u64,
    /// A hash of everything else in which the records must agree.
    pub digest: u64,
    /// The value of the id that the record answers. The records must answer one message, of which each may name another
    /// record.
    pub answers: Option<NonZeroU64>,
    /// True if this is the record to the first recipient.
    pub is_first: bool,
    /// True if the key, as 16 hex digits, is the id under which all of them are shown.
    pub is_id: bool,
}

/// Something in the store that is not delivered, and the reason.
#[derive(Clone, Debug, Default)]
pub struct Rejection {
    /// Its location.
    pub at: Location,
    /// The path of that file, relative to [`Store::dir`](super::Store::dir).
    pub path: String,
    /// Line number in a log, counted from 1; 0 where a file is one message.
    pub line: u64,
    /// One sentence for a person.
    pub reason: String,
    /// Its time, or that of the last good record before it.
    pub time: Timestamp,
    /// True if the file is still being written and may become a message.
    pub incomplete: bool,
}

/// Sets the path of the one file from which a batch was read.
pub fn set_source_path(path: &str, found: &mut [FoundMessage<'_>], rejected: &mut [Rejection]) {
    let shared: Arc<str> = path.into();
    for f in found {
        f.path = Arc::clone(&shared);
    }
    for r in rejected {
        path.clone_into(&mut r.path);
    }
}

/// Receives the results of a scan, on whatever thread.
pub trait ScanSink: Send {
    /// Takes these messages and rejections, in the store's order. [`FoundMessage::repeat_kind`] says what to do with a
    /// message whose key is known. The contents of the lists afterwards mean nothing. Returns the location of each of
    /// these messages, and true if trust refuses it.
    fn report_batch(
        &mut self,
        found: &mut Vec<FoundMessage<'_>>,
        rejected: &mut Vec<Rejection>,
    ) -> Vec<(Location, bool)>;

    /// Begins a rescan: everything reported so far from these sources is about to be reported again. A message that is
    /// not reported again before the matching [`ScanSink::end_rescan`] is gone from the store.
    fn begin_rescan(&mut self, sources: &[u32]);

    /// Returns those of these sources that hold a message whose signature counts as valid.
    fn verified_sources(&mut self, _sources: &[u32]) -> HashSet<u32> {
        HashSet::new()
    }

    /// Ends the rescan of these sources.
    fn end_rescan(&mut self, sources: &[u32]);

    /// Ends the rescan of these sources, which could not be read to their end. Messages that were not reported again
    /// stay.
    fn abort_rescan(&mut self, _sources: &[u32]) {}

    /// Notes that the store has lost the texts of the messages of these sources, which still count as there
    /// ([`MessageReader::lacks_text`](super::MessageReader::lacks_text)).
    fn note_lost_texts(&mut self, _sources: &[u32]) {}

    /// Notes that the scan goes on in this source where it stopped. A rejection at its end that was
    /// [incomplete](Rejection::incomplete) is about to be reported again.
    fn resume_source(&mut self, source: u32);

    /// Reports how much of the scan is done, and how much it is in all, for progress bars: bytes of logs, or numbers of
    /// files.
    fn report_progress(&mut self, done: u64, total: u64);

    /// Returns true if a watcher has the store scanned again at its [due time](crate::store::Store::due_time). The scan
    /// then does not wait for unfinished files.
    fn is_watched(&self) -> bool {
        false
    }
}

/// One message read in full.
#[derive(Clone, Debug, Default)]
pub struct Record {
    /// The message.
    pub message: Message,
    /// The body to show instead if the signature is valid: the signed text comes first in it. `None` if there is no
    /// difference.
    pub body_if_valid: Option<String>,
    /// The signature it carries, if any.
    pub claim: Option<SignatureClaim>,
    /// True if only its own words say that I wrote it ([`FoundMessage::is_my_name_unproven`]).
    pub is_my_name_unproven: bool,
    /// True if its time cannot be read: the scan chose another one ([`FoundMessage::time`]), and that is shown.
    pub has_unknown_time: bool,
    /// The kind of the store from which the message was kept ([`FoundMessage::origin`]).
    pub origin: Option<Kind>,
    /// Files of the message's folder besides its attachments: texts too long or too foreign for the body.
    pub parts: Vec<Attachment>,
    /// True if it asks for an acknowledgement from me that was not given yet.
    pub wants_ack: bool,
    /// Ids besides its own under which others may answer it.
    pub further_ids: Vec<String>,
    /// A note for a person on a message of mine that is not wrong enough to be refused. It is shown as a file beside
    /// the message.
    pub note: Option<String>,
}

/// A thread without messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EmptyThread {
    /// Its id, as in [`FoundMessage::thread`].
    pub id: String,
    /// Its title, for the subject.
    pub title: Option<String>,
    /// The time of its last change.
    pub time: Timestamp,
}

/// A file that comes with a message.
#[derive(Debug)]
pub enum PartContent {
    /// A file of the store.
    File(File),
    /// Bytes that are made from the message.
    Bytes(Arc<[u8]>),
}

impl PartContent {
    /// Returns the bytes of the file with this name.
    ///
    /// # Errors
    /// `NotFound` if there is none.
    pub fn from_bytes(name: &str, bytes: Option<impl Into<Arc<[u8]>>>) -> Result<Self, StoreError> {
        let missing = || StoreError::io(Path::new(name), io::ErrorKind::NotFound.into());
        bytes.map(|bytes| Self::Bytes(bytes.into())).ok_or_else(missing)
    }
}
