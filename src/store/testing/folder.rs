//! The folder of a [store in memory](super::Memory), as all processes see it.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use crate::model::{Message, Seed, SignatureClaim};
use crate::store::{EmptyThread, FoundMessage, Location, RepeatKind, StoreError};

/// One message, as it would lie in a file.
#[derive(Clone, Debug, Default)]
pub struct Letter {
    pub message: Message,
    /// Contents of its attachments, in their order.
    pub files: Vec<Vec<u8>>,
    pub body_if_valid: Option<String>,
    pub claim: Option<SignatureClaim>,
    /// True if I wrote it, whatever its sender is.
    pub from_me: bool,
    pub is_my_name_unproven: bool,
    /// The store's own mark.
    pub read: Option<bool>,
    pub wants_ack: bool,
    pub note: Option<String>,
    /// Its idempotency key.
    pub key: Option<String>,
    /// The subject of its parent when it was written.
    pub parent: Option<String>,
    /// The task that its draft named.
    pub task: Option<String>,
}

/// A file: the report on it and its message, or the reason why it is rejected.
pub type State = Result<(FoundMessage<'static>, Letter), String>;

/// The behaviour of [`StoreMarks::write_mark`](crate::store::StoreMarks::write_mark).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MarkBehavior {
    #[default]
    CannotNote,
    /// The mark is written into the file.
    Noted,
    Fails,
    Busy,
    /// Another file takes the place of the file first.
    Moves,
}

/// The folder as all processes see it, and the properties that set this store apart from others.
#[derive(Debug, Default)]
pub struct Folder {
    pub files: BTreeMap<u32, (u64, State)>,
    pub versions: u64,
    /// The address of its owner.
    pub me: String,
    /// Further addresses of its owner.
    pub further_addresses: Vec<String>,
    /// The marks that were written, and the answer to them.
    pub told: Vec<(u32, bool)>,
    pub answer: MarkBehavior,
    /// True if addresses are roles.
    pub roles: bool,
    /// True if addresses are names at providers.
    pub providers: bool,
    /// Set if files are lines of logs, and true if a repeated report counts.
    pub lines: Option<bool>,
    /// True if messages carry thread ids, which may carry labels. Threads are then not made of links.
    pub origins: bool,
    /// Threads without messages.
    pub empty: Vec<EmptyThread>,
    /// True if nothing can be sent in it.
    pub closed: bool,
    /// True if messages carry no files.
    pub text_only: bool,
    /// True if bare names are only meant if the store is named.
    pub only_via: bool,
    pub headers: &'static [&'static str],
    /// True if a JSON object is a whole message.
    pub whole: bool,
    pub whom: Option<&'static str>,
    pub remarks: Vec<String>,
    /// Threads that somebody else keeps locked.
    pub locked: Vec<String>,
    /// A folder for the files of messages. If it is set, parts are given as files of this folder.
    pub on_disk: Option<PathBuf>,
    /// The store's own key, if it has one. Else the mount's key counts.
    pub key: Option<Seed>,
    pub keyless: bool,
    /// True if nothing in it can be read, because it is elsewhere for now.
    pub away: bool,
    /// True if there is no room for another message.
    pub full: bool,
    /// The error of an append, if it fails.
    pub refuses: Option<fn() -> StoreError>,
    /// The errors of the files that cannot be read.
    pub unreadable: BTreeMap<u32, fn() -> StoreError>,
    /// The number of scans until the files that cannot be read are finished.
    pub unfinished: usize,
    /// True if deliveries fail.
    pub stuck: bool,
    /// Drafts that were prepared, by id, until they are appended.
    pub prepared: Vec<(String, Letter)>,
    /// Acknowledgements that were given or tried, by number of the file.
    pub acks: Vec<u32>,
    /// The errors of the next acknowledgements before one succeeds.
    pub ack_fails: Vec<StoreError>,
    pub reads: usize,
    pub appends: usize,
    pub deliveries: usize,
}

impl Folder {
    /// Counts a scan. After the last one that the unfinished files need, they can be read.
    pub fn come_nearer_to_end(&mut self) {
        if self.unfinished == 1 {
            self.unreadable.clear();
        }
        self.unfinished = self.unfinished.saturating_sub(1);
    }

    fn set(&mut self, source: u32, state: State) {
        self.versions += 1;
        self.files.insert(source, (self.versions, state));
    }

    /// Writes or replaces a file with this report.
    pub fn put(&mut self, source: u32, mut found: FoundMessage<'static>) {
        found.at.source = source;
        (found.line, found.repeat_kind) = match self.lines {
            None => (0, RepeatKind::Restated),
            Some(false) => (u64::from(source) + 1, RepeatKind::Same),
            Some(true) => (u64::from(source) + 1, RepeatKind::Rewritten),
        };
        found.path = path_of(source).into();
        let message = Message { id: found.id.to_string(), ..Message::default() };
        let claim = found.claim.as_deref().cloned();
        let is_my_name_unproven = found.is_my_name_unproven;
        let letter = Letter { message, claim, is_my_name_unproven, ..Letter::default() };
        self.set(source, Ok((found, letter)));
    }

    pub fn edit(&mut self, source: u32, edit: impl FnOnce(&mut FoundMessage<'static>)) {
        let mut found = self.file(source).clone();
        edit(&mut found);
        self.put(source, found);
    }

    pub fn remove(&mut self, source: u32) {
        self.files.remove(&source);
    }

    pub fn file(&self, source: u32) -> &FoundMessage<'static> {
        &self.files[&source].1.as_ref().unwrap().0
    }

    /// Adds a message.
    pub fn push(&mut self, letter: Letter) {
        self.write(self.files.len() as u32, letter);
    }

    /// Adds a file that is rejected, or makes a file a rejected one.
    pub fn refuse(&mut self, source: Option<u32>, why: &str) {
        self.set(source.unwrap_or(self.files.len() as u32), Err(why.to_owned()));
    }

    /// Changes a message.
    pub fn change(&mut self, source: u32, change: impl FnOnce(&mut Letter)) {
        let mut letter = self.letter(source).unwrap().clone();
        change(&mut letter);
        self.write(source, letter);
    }

    fn write(&mut self, source: u32, letter: Letter) {
        let found = report(&self.me, source, &letter);
        self.set(source, Ok((found, letter)));
    }

    /// Returns an error if the folder is away.
    pub(super) fn require_here(&self) -> Result<(), StoreError> {
        let error = || StoreError::io(Path::new("/memory"), io::ErrorKind::NotFound.into());
        if self.away { Err(error()) } else { Ok(()) }
    }

    pub(super) fn letter(&self, source: u32) -> Result<&Letter, StoreError> {
        self.require_here()?;
        let (_, state) = self.files.get(&source).ok_or(StoreError::Moved)?;
        if let Some(error) = self.unreadable.get(&source) {
            return Err(error());
        }
        state.as_ref().map(|(_, letter)| letter).map_err(|_| StoreError::Moved)
    }

    /// Returns the messages, in the order of the files.
    pub fn letters(&self) -> impl Iterator<Item = &Letter> {
        self.files.values().filter_map(|(_, state)| Some(&state.as_ref().ok()?.1))
    }
}

pub(super) fn path_of(source: u32) -> String {
    format!("inbox/letter{source}.json")
}

/// Returns the report of a message.
fn report(me: &str, source: u32, letter: &Letter) -> FoundMessage<'static> {
    let m = letter.message.clone();
    let from = m.from.unwrap_or_default();
    FoundMessage {
        at: Location { source, offset: 0, len: 1 },
        path: path_of(source).into(),
        to_me: !letter.from_me && m.to.iter().any(|to| to == me),
        from_me: letter.from_me || from == me || from == "alias@of.me",
        is_my_name_unproven: letter.is_my_name_unproven,
        from: from.into(),
        to: m.to.join(", ").into(),
        thread: m.thread.unwrap_or_else(|| m.id.clone()).into(),
        in_reply_to: m.in_reply_to.map(Into::into),
        id: m.id.into(),
        time: m.time,
        read: letter.read,
        has_note: letter.note.is_some(),
        has_parts: !m.attachments.is_empty(),
        claim: letter.claim.clone().map(Box::new),
        idempotency_key: letter.key.as_deref().map(Into::into),
        ..FoundMessage::default()
    }
}
