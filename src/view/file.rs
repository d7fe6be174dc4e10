//! Opening and reading, and the marks that reading makes.

use std::fs::File;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use crate::model::locks::Mutex;

use super::draft_writers::is_opener;
use super::folder_scope::MessageFolder;
use super::mail_with_files::MailWithFiles;
use super::me::MeView;
use super::node::{Node, NodeProperty};
use super::reader::{has_gone, runs_looking_program};
use super::table::on_view;
use super::transcript::TranscriptPlan;
use super::wait::{Awaited, WatchFeed};
use super::{DraftWriters, Error, ReaderProfile, TextHandle, Tree};
use crate::index::{MsgIx, ThreadIx};
use crate::model::MarkRead;
use crate::outbox::{ComposeHandle, DraftId};
use crate::store::fs;

/// The way in which a file is opened.
#[derive(Clone, Debug, Default)]
pub struct OpenRequest {
    /// True for writing.
    pub write: bool,
    /// True if every write goes to the end.
    pub append: bool,
    /// True if the present content is thrown away.
    pub truncate: bool,
    /// The process that opens it; 0 if it is unknown.
    pub opener: u32,
    /// The reader profile of that process.
    pub reader: ReaderProfile,
}

/// An open file. It keeps the content of the moment at which it was opened, so that size and bytes agree.
#[derive(Debug)]
pub enum OpenFile {
    /// The bytes at the moment of opening.
    Bytes(FileContent),
    /// A message whose size is known. It is rendered when the kernel lacks a page that a program reads.
    Message(MessageFolder, MsgIx, OnceLock<Arc<[u8]>>),
    /// The line in place of the text of a message that cannot be read now. Reading it marks nothing.
    NoText(Arc<[u8]>),
    /// A message with files as a mail.
    Mail(MailWithFiles),
    /// A file of a store.
    Raw(File),
    /// A transcript as it was when it was opened. A reader that reads on also gets later additions.
    Transcript {
        /// The thread.
        thread: ThreadIx,
        /// The offsets of its messages.
        plan: Mutex<Arc<TranscriptPlan>>,
    },
    /// A draft.
    Draft {
        /// Its number.
        id: DraftId,
        /// The processes that write it.
        writers: DraftWriters,
        /// True if writes go to the end.
        append: bool,
        /// True if it is the body of a composing folder; closing it sends that folder.
        composed: bool,
    },
    /// `.wait`, `.next` and `.answer`: their content once a read has waited.
    Waiting {
        /// The content for which it waits.
        awaited: Awaited,
        /// The process that opened it.
        opener: u32,
        /// The result of the wait.
        answer: Mutex<Option<FileContent>>,
    },
    /// `.watch`: the messages that arrived since it was opened.
    Watch(WatchFeed),
    /// `<name>.ack`: the first bytes written acknowledge the message.
    Ack {
        /// The message.
        message: MsgIx,
        /// True once this handle has acknowledged it.
        done: Mutex<bool>,
    },
    /// A text that a store keeps, open for writing.
    Text(TextHandle),
    /// A file in a composing folder.
    Compose {
        /// The file.
        file: ComposeHandle,
        /// The processes that write it.
        writers: DraftWriters,
    },
}

impl OpenFile {
    /// Makes a file that marks nothing when it is read.
    pub(super) fn from_bytes(bytes: impl Into<Arc<[u8]>>) -> Self {
        Self::Bytes(FileContent { bytes: bytes.into(), ..FileContent::default() })
    }

    /// Returns true if msgfs has to know which process closes the file.
    pub fn should_know_closer(&self) -> bool {
        match self {
            Self::Bytes(answer) => answer.mark.is_some(),
            Self::Message(..)
            | Self::NoText(_)
            | Self::Mail(_)
            | Self::Raw(_)
            | Self::Transcript { .. }
            | Self::Watch(_)
            | Self::Ack { .. } => false,
            Self::Waiting { awaited, .. } => awaited.is_message(),
            _ => true,
        }
    }

    /// Returns the message to mark when the handle is closed, if its last byte was read. The read counts if the opener
    /// closes the handle; if `by` is `None`, the last process closes it, and the read counts always. The message is
    /// returned only once, so a later *unread* mark by another program stays while the handle is open.
    fn claim_read_mark(&self, by: Option<u32>) -> Option<MsgIx> {
        match self {
            Self::Bytes(answer) => answer.mark.as_ref()?.claim_message(by),
            Self::Waiting { answer, .. } => {
                answer.lock().as_ref()?.mark.as_ref()?.claim_message(by)
            }
            _ => None,
        }
    }
}

/// The mark of a message that is set when a handle is read to its end.
#[derive(Debug)]
pub struct ReadToEndMark {
    message: MsgIx,
    opener: u32,
    reached_end: AtomicBool,
    /// The thread of a program that only looks, if one read the end; else 0.
    looked_by: AtomicU32,
    is_claimed: AtomicBool,
}

/// The content of an open file.
#[derive(Debug, Default)]
pub struct FileContent {
    pub(super) bytes: Arc<[u8]>,
    /// The mark that reading it to the end sets. For `.next` and `.answer` it holds the message, which no other
    /// reader gets.
    pub(super) mark: Option<ReadToEndMark>,
}

impl OpenFile {
    /// Notes that a thread is about to write to this file (0 if the thread is invisible from here).
    pub fn note_writer(&self, thread: u32) {
        if let OpenFile::Draft { writers, .. } | OpenFile::Compose { writers, .. } = self {
            writers.note_write(thread);
        }
    }
}

impl FileContent {
    /// Reads for a thread. A program that only looks may read from a file that a shell opened, as in `head < NAME`.
    fn read(&self, offset: u64, size: usize, by: u32) -> Vec<u8> {
        let len = self.bytes.len() as u64;
        // A read that begins at the end or after it gets no byte, so it does not count.
        if let Some(mark) = &self.mark
            && offset < len
            && offset.saturating_add(size as u64) >= len
        {
            if runs_looking_program(by) {
                mark.looked_by.store(by, Ordering::Relaxed);
            } else {
                mark.reached_end.store(true, Ordering::Relaxed);
            }
        }
        slice_range(&self.bytes, offset, size).to_vec()
    }
}

impl ReadToEndMark {
    /// Makes the mark of a message that a process opened.
    pub(super) fn new(message: MsgIx, opener: u32) -> Self {
        Self {
            message,
            opener,
            reached_end: false.into(),
            looked_by: 0.into(),
            is_claimed: false.into(),
        }
    }

    fn claim_message(&self, by: Option<u32>) -> Option<MsgIx> {
        let closed = |by| is_opener(self.opener, by) || has_gone(self.opener);
        let read = self.has_reached_end() && by.is_none_or(closed);
        (read && !self.is_claimed.swap(true, Ordering::Relaxed)).then_some(self.message)
    }

    /// Notes that a process closes the file. If a program that only looks read the end, another program that has the
    /// file from the same shell shows the rest, which the kernel has.
    fn note_close(&self, by: u32) {
        let looked_by = self.looked_by.load(Ordering::Relaxed);
        if looked_by != 0 && ![0, looked_by, self.opener].contains(&by) && !runs_looking_program(by)
        {
            self.reached_end.store(true, Ordering::Relaxed);
        }
    }

    fn has_reached_end(&self) -> bool {
        self.reached_end.load(Ordering::Relaxed)
    }

    /// Returns the message.
    pub(super) fn message(&self) -> MsgIx {
        self.message
    }
}

/// Returns the range of `bytes` that a read asks for.
pub(super) fn slice_range(bytes: &[u8], offset: u64, size: usize) -> &[u8] {
    let start = usize::try_from(offset).unwrap_or(usize::MAX).min(bytes.len());
    bytes.get(start..start.saturating_add(size).min(bytes.len())).unwrap_or_default()
}

impl Tree {
    /// Notes that a process lists `inbox/`. Files that it opens there from now on are not marked as read.
    pub fn note_inbox_lister(&self, process: Option<super::reader::ProcessIdentity>) {
        if let Some(process) = process {
            self.inbox_listers.lock().insert(process);
        }
    }

    /// Opens a file.
    ///
    /// # Errors
    /// [`Error::IsDir`] for folders, [`Error::NotPermitted`] for writing a file that cannot be written.
    pub fn open(&self, node: &Node, access: &OpenRequest) -> Result<OpenFile, Error> {
        let is_editable = node.has(NodeProperty::Editable) && !node.is_dir();
        if (access.write || access.truncate) && !is_editable {
            return Err(self.writer().not_writable_error(node));
        }
        self.index.require_sound_tables();
        on_view!(self, node, open(access))
    }

    /// Opens a message. Reading it marks it only in `inbox/`.
    pub(super) fn open_message(
        &self,
        place: MessageFolder,
        ix: MsgIx,
        access: &OpenRequest,
    ) -> Result<OpenFile, Error> {
        let is_inbox = place == MessageFolder::Inbox;
        if !is_inbox && self.texts.known_size(ix)?.is_some() {
            return Ok(OpenFile::Message(place, ix, OnceLock::new()));
        }
        let mark = (is_inbox && self.is_reading(&access.reader))
            .then(|| ReadToEndMark::new(ix, access.opener));
        Ok(match self.texts.rendered_text(ix) {
            Err(Error::NoText) => OpenFile::NoText(self.texts.shown_text(ix)?),
            bytes => OpenFile::Bytes(FileContent { bytes: bytes?, mark }),
        })
    }

    /// Returns true if a program reads, and does not only look.
    fn is_reading(&self, reader: &ReaderProfile) -> bool {
        let has_listed = |p| self.inbox_listers.lock().contains(p);
        let looking = reader.is_only_looking() || reader.process.as_ref().is_some_and(has_listed);
        !looking && !self.settings.read_only
    }

    /// Reads from an open file, for a thread (0 if it is unknown). `.wait`, `.next`, `.answer` and `.watch` return what
    /// [`super::try_fill_answer`] found.
    ///
    /// # Errors
    /// Store errors as they come.
    pub fn read(
        &self,
        file: &OpenFile,
        offset: u64,
        size: usize,
        by: u32,
    ) -> Result<Vec<u8>, Error> {
        match file {
            OpenFile::Bytes(answer) => Ok(answer.read(offset, size, by)),
            OpenFile::Message(_, ix, kept) => {
                if let Some(bytes) = kept.get() {
                    return Ok(slice_range(bytes, offset, size).to_vec());
                }
                let rendered = self.texts.rendered_text(*ix)?;
                let bytes = kept.get_or_init(|| rendered);
                Ok(slice_range(bytes, offset, size).to_vec())
            }
            OpenFile::NoText(bytes) => Ok(slice_range(bytes, offset, size).to_vec()),
            OpenFile::Mail(mail) => mail.read(self, offset, size),
            OpenFile::Raw(file) => Ok(fs::read_range(file, offset, size)?),
            OpenFile::Transcript { thread, plan } => {
                self.views.transcripts.read(self, (*thread, plan), offset, size)
            }
            OpenFile::Ack { .. } => Err(Error::not_permitted("this file can only be written")),
            OpenFile::Draft { id, .. } => {
                let text = self.writable_outbox()?.open_text(*id).ok_or(Error::NotFound)?;
                Ok(slice_range(&text, offset, size).to_vec())
            }
            OpenFile::Waiting { answer, .. } => {
                let answer = answer.lock();
                // Every program takes its message from `.next`.
                Ok(answer.as_ref().map(|a| a.read(offset, size, 0)).unwrap_or_default())
            }
            OpenFile::Watch(arrivals) => Ok(arrivals.drain_ready(size)),
            OpenFile::Compose { file, .. } => Ok(file.read(offset, size)?),
            OpenFile::Text(file) => Ok(file.read(offset, size)),
        }
    }

    /// Does what the close of one descriptor requires: saves, sends or marks. `by` is the closing process (0 if
    /// it is unknown).
    ///
    /// # Errors
    /// The reason why a draft is refused.
    pub fn flush(&self, file: &OpenFile, by: u32) -> Result<(), Error> {
        match file {
            OpenFile::Draft { id, writers, composed, .. } => {
                let (outbox, by_opener) = (self.writable_outbox()?, writers.is_opened_by(by));
                let flushed = if *composed {
                    outbox.composer().flush_body(*id, by_opener)
                } else {
                    outbox.flush(*id, by_opener)
                };
                Ok(flushed?)
            }
            OpenFile::Text(file) => MeView::flush_text(self, file, by),
            OpenFile::Bytes(_) | OpenFile::Waiting { .. } => {
                self.mark_if_read(file, Some(by));
                Ok(())
            }
            OpenFile::Message(..)
            | OpenFile::NoText(_)
            | OpenFile::Mail(_)
            | OpenFile::Raw(_)
            | OpenFile::Compose { .. }
            | OpenFile::Transcript { .. }
            | OpenFile::Watch(_)
            | OpenFile::Ack { .. } => Ok(()),
        }
    }

    /// Does what the close of the last descriptor requires.
    pub fn release(&self, file: &OpenFile) {
        match file {
            OpenFile::Draft { id, composed, .. } => match &self.outbox {
                Some(outbox) if *composed => outbox.composer().release_body(*id),
                Some(outbox) => drop(outbox.release(*id)),
                None => {}
            },
            OpenFile::Compose { file, .. } => {
                if let Some(outbox) = &self.outbox {
                    outbox.composer().close_folder_file(file);
                }
            }
            // The log and `status.txt` say why it could not be saved.
            OpenFile::Text(file) => drop(self.views.me.release_text(self, file)),
            OpenFile::Waiting { answer, .. } => {
                self.mark_if_read(file, None);
                let handed = answer.lock().take().and_then(|a| a.mark);
                if let Some(mark) = handed {
                    self.views.wait.return_claim(self, mark.message());
                }
            }
            _ => self.mark_if_read(file, None),
        }
    }

    fn mark_if_read(&self, file: &OpenFile, by: Option<u32>) {
        if let (OpenFile::Bytes(FileContent { mark: Some(mark), .. }), Some(by)) = (file, by) {
            mark.note_close(by);
        }
        if let Some(message) = file.claim_read_mark(by) {
            self.note_reading(message);
            // `.next` hands a message out once even where reading marks nothing.
            if matches!(file, OpenFile::Waiting { .. }) {
                self.views.wait.note_read(self, message);
            }
        }
    }

    /// Notes that a message was read to its end, and marks it where reading marks.
    pub(super) fn note_reading(&self, message: MsgIx) {
        if self.settings.read_only {
            return;
        }
        self.recent_reads.note_reading(&self.index, &self.names, message);
        if self.settings.mark_read == MarkRead::OnRead {
            // The log and `status.txt` say why it could not be marked.
            drop(self.index.mark_message(message, true, true));
        }
    }
}
