//! What a scan finds, and what one message is when it is read in full.

use std::borrow::Cow;
use std::collections::HashSet;
use std::fs::File;
use std::sync::Arc;

use crate::model::{Attachment, Message, SignatureClaim, Timestamp};

/// Where a message's bytes are: a byte range of one of the store's files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Location {
    /// The file, by the number the store gave it (see [`Store::source_path`](super::Store::source_path)). At most 2^24 - 1.
    pub source: u32,
    /// First byte of the record.
    pub offset: u64,
    /// Length of the record in bytes, without a line terminator.
    pub len: u32,
}

/// What a report says of the message that is known by its key already.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RepeatKind {
    /// That it has the same id: its writer claims it, and the text need not be the same.
    Claimed,
    /// That it is the same: the id is a hash of the content. Only its place may be another.
    Same,
    /// What it is now, compared with what it was: all that is said here is taken over.
    #[default]
    Restated,
    /// As [`Again::Restated`], and its text may be another, in the same place.
    Rewritten,
}

/// What an index keeps of a message; borrowed from the scan's buffer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FoundMessage<'a> {
    /// Where it is.
    pub at: Location,
    /// Path of that file, relative to [`Store::dir`](super::Store::dir).
    pub path: Arc<str>,
    /// What this says of the message with the same key.
    pub repeat_kind: RepeatKind,
    /// Line number in a log, counted from 1; 0 where a file is one message.
    pub line: u64,
    /// Its writer, already unescaped; empty if it names none.
    pub from: Cow<'a, str>,
    /// Its recipients, already unescaped, joined by `", "` if there are several.
    pub to: Cow<'a, str>,
    /// Its thread id, verbatim. Where the format has none ([`Threads::Links`](super::Threads::Links)), the id of the thread
    /// it begins unless its reply link leads to another.
    pub thread: Cow<'a, str>,
    /// The id of the message it answers, where the format has no thread ids or the message is mine. A
    /// thread is joined only if the signature is valid, never on somebody else's word.
    pub in_reply_to: Option<Cow<'a, str>>,
    /// Its id, unique for the writer (see [`TWIN`](crate::model::TWIN)).
    pub id: Cow<'a, str>,
    /// When it was written.
    pub time: Timestamp,
    /// The time in its name, where that is another: the order of the store is not that of the times.
    pub name_time: Option<Timestamp>,
    /// It is addressed to me.
    pub to_me: bool,
    /// I wrote it.
    pub from_me: bool,
    /// The store's own read mark, where it has one on the message itself.
    pub read: Option<bool>,
    /// A print of the files that hold it and could say that it was read, but do not; 0 for none, and
    /// where the format keeps a message in one place.
    pub unmarked_hash: u64,
    /// Files come with it ([`Parts`](super::Parts)).
    pub has_parts: bool,
    /// There is a note about it ([`Record::note`]).
    pub has_note: bool,
    /// Length of its file in bytes but for what is said of its signature, if that is known without making the
    /// file ([`Plain`](crate::model::plain::Plain)).
    pub plain_length: Option<u32>,
    /// The record as it stands in its log, if that may be rewritten ([`About::covers`](super::About::covers)).
    pub record: &'a str,
    /// It carries this signature.
    pub claim: Option<Box<SignatureClaim>>,
    /// It is the record of one recipient of a message that has a record for each, and another record
    /// stands for the message where it is shown once.
    pub copy_of: Option<PrimaryRecord>,
    /// It carries this idempotency key.
    pub idempotency_key: Option<Box<str>>,
}

/// The record of a message to several that stands for the others.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct PrimaryRecord {
    /// Its id; its writer is the same.
    pub id: String,
    /// It is the one to me.
    pub to_me: bool,
}

/// Something in the store that is not delivered, and why.
#[derive(Clone, Debug, Default)]
pub struct Rejection {
    /// Where it is.
    pub at: Location,
    /// Path of that file, relative to [`Store::dir`](super::Store::dir).
    pub path: String,
    /// Line number in a log, counted from 1; 0 where a file is one message.
    pub line: u64,
    /// One sentence for a person.
    pub reason: String,
    /// Its time, or that of the last good record before it.
    pub time: Timestamp,
    /// The file is still being written: it may become a message.
    pub incomplete: bool,
}

/// Notes the path of the one file that a batch was read from.
pub fn set_source_path(path: &str, found: &mut [FoundMessage<'_>], rejected: &mut [Rejection]) {
    let shared: Arc<str> = path.into();
    for f in found {
        f.path = Arc::clone(&shared);
    }
    for r in rejected {
        path.clone_into(&mut r.path);
    }
}

/// Receives what a scan finds, on whatever thread.
pub trait ScanSink: Send {
    /// These messages and rejects, in the store's order. What is done with a message that is known by
    /// its key is said by [`Found::again`]. What the lists hold afterwards means nothing.
    fn report_batch(&mut self, found: &mut Vec<FoundMessage<'_>>, rejected: &mut Vec<Rejection>);

    /// Everything reported so far from these sources is about to be reported again; what is not,
    /// by the matching [`Sink::end_rescan`], is gone from the store.
    fn begin_rescan(&mut self, sources: &[u32]);

    /// Which of these sources hold a message whose signature counts as valid.
    fn verified_sources(&mut self, _sources: &[u32]) -> HashSet<u32> {
        HashSet::new()
    }

    /// Ends the rescan of these sources.
    fn end_rescan(&mut self, sources: &[u32]);

    /// Ends the rescan of these sources, which could not be read to their end: what was not reported
    /// again stays.
    fn abort_rescan(&mut self, _sources: &[u32]) {}

    /// The scan goes on in this source where it stopped; what was reported
    /// [incomplete](Rejected::incomplete) at its end is about to be reported again.
    fn resume_source(&mut self, source: u32);

    /// Bytes read so far of the bytes to read, for progress bars.
    fn report_progress(&mut self, done: u64, total: u64);
}

/// One message read in full.
#[derive(Clone, Debug, Default)]
pub struct Record {
    /// The message.
    pub message: Message,
    /// The body to show instead if the signature is valid, where that makes a difference: the text
    /// it covers first.
    pub body_if_valid: Option<String>,
    /// The signature it carries, if any.
    pub claim: Option<SignatureClaim>,
    /// What lies in the message's folder besides its attachments: texts too long or too foreign for
    /// the body.
    pub parts: Vec<Attachment>,
    /// It asks for an acknowledgement from me that was not given yet.
    pub wants_ack: bool,
    /// What a person should know of a message of mine that is not wrong enough to be refused; shown
    /// as a file beside it.
    pub note: Option<String>,
}

/// A thread without messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EmptyThread {
    /// Its id, as in [`Found::thread`].
    pub id: String,
    /// Its title, for the subject.
    pub title: Option<String>,
    /// When it was last changed.
    pub time: Timestamp,
}

/// A file that comes with a message.
#[derive(Debug)]
pub enum PartContent {
    /// It lies in the store.
    File(File),
    /// It is made from the message.
    Bytes(Arc<[u8]>),
}
