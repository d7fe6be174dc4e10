//! AMQ (Agent Message Queue): a Maildir per agent below one root, with a header of JSON on each message
//! (docs/formats/amq.md).
//!
//! - [`message`]: one file. [`queue`]: a root as files of the engine.
//! - `send`: new messages, and claiming those that were read. `check`: `msgfs check`.

mod check;
pub mod message;
pub mod queue;
mod send;

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::engine::files::Files;
use super::fs;
use super::{
    Advice, Fit, Kind, Location, Part, Prepared, Preparing, RawEntry, Record, Sink, Spec, Store,
    StoreError, Violation,
};
use crate::model::{Attachment, Claim, Draft, Timestamp, one_line, shell_word};
use message::{FILE_BYTES, Message};
use queue::Queue;

/// A queue, read and written as one agent.
#[derive(Debug)]
pub struct Amq {
    name: String,
    files: Files<Queue>,
}

/// The folders that make a mailbox.
const LEAVES: [&str; 8] = [
    "inbox/tmp",
    "inbox/new",
    "inbox/cur",
    "outbox/sent",
    "receipts",
    "dlq/tmp",
    "dlq/new",
    "dlq/cur",
];
/// What lies beside a message: its labels, a line each, and its context.
const LABELS: &str = "labels.txt";
const CONTEXT: &str = "context.json";

/// The files that a message brings: what is too long or too foreign for its text.
fn texts(message: &Message) -> Vec<(&'static str, String)> {
    let labels = (!message.labels.is_empty()).then(|| message.labels.join("\n") + "\n");
    let context = message.context.as_ref().map(|value| message::print(value) + "\n");
    let named = [labels.map(|text| (LABELS, text)), context.map(|text| (CONTEXT, text))];
    named.into_iter().flatten().collect()
}

impl Amq {
    /// Opens a queue root. Nothing is made.
    ///
    /// # Errors
    /// If my name cannot be a handle.
    pub fn open(spec: &Spec) -> Result<Self, StoreError> {
        let me = spec.as_me.clone().unwrap_or_else(|| spec.me.to_ascii_lowercase());
        if !message::is_handle(&me) {
            return Err(StoreError::Invalid(format!(
                "{:?} is not a handle of AMQ (lower-case letters, digits, '_' and '-'); set me in its \
                 [[store]]",
                one_line(&me)
            )));
        }
        let files = Files::new(spec.dir.clone(), Queue { me });
        Ok(Self { name: spec.name.clone(), files })
    }

    fn me(&self) -> &str {
        &self.files.format.me
    }

    /// The message at a location.
    fn message_at(&self, at: &Location) -> Result<Message, StoreError> {
        let file = self.files.file(at.source)?;
        let (_, bytes) = self.files.bytes(&file, FILE_BYTES)?;
        let known = file.message().is_none_or(|kept| kept.content == queue::print(&bytes));
        message::parse(&bytes).ok().filter(|_| known).ok_or(StoreError::Moved)
    }

    /// Names that lie in `new/` and in `cur/`: at the first of them every later reader stops.
    fn pairs(&self) -> Vec<String> {
        let table = self.files.table.read();
        let folder = |leaf: &str| table.find_folder(&format!("agents/{}/inbox/{leaf}", self.me()));
        let (Some(new), Some(cur)) = (folder("new"), folder("cur")) else { return Vec::new() };
        let both = table.files_in(new).filter(|n| table.find(cur, table.name(*n)).is_some());
        both.filter_map(|n| table.path(n)).collect()
    }

    /// Folders of my mailbox that are missing.
    fn missing(&self) -> Vec<String> {
        let me = self.me();
        let is_missing = |leaf: &&&str| self.leaf(me, leaf).is_err();
        LEAVES.iter().filter(is_missing).map(|leaf| format!("agents/{me}/{leaf}")).collect()
    }
}

impl Store for Amq {
    fn kind(&self) -> Kind {
        Kind::Amq
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn me(&self) -> &str {
        Self::me(self)
    }

    fn dir(&self) -> &Path {
        &self.files.dir
    }

    fn whole_seconds(&self) -> bool {
        false
    }

    fn max_body(&self) -> u64 {
        // The file has the header besides.
        (FILE_BYTES - (64 << 10)) as u64
    }

    fn note(&self, path: &Path) {
        self.files.note(path);
    }

    fn scan(&self, full: bool, sink: &mut dyn Sink) -> Result<(), StoreError> {
        self.files.scan(full, sink)
    }

    fn is_failing(&self) -> bool {
        self.files.fault.is_set()
    }

    fn save(&self) -> Vec<u8> {
        self.files.save()
    }

    fn restore(&self, saved: &[u8]) -> bool {
        self.files.restore(saved)
    }

    fn reset(&self) {
        self.files.reset();
    }

    fn watched(&self) -> Vec<PathBuf> {
        self.files.watched()
    }

    fn concerns(&self, folder: &Path, name: &OsStr) -> bool {
        self.files.concerns(folder, name)
    }

    fn health(&self) -> Vec<String> {
        let mut out: Vec<String> = self.files.away_line().into_iter().collect();
        let missing = if out.is_empty() { self.missing() } else { Vec::new() };
        out.extend(missing.first().map(|first| {
            format!("{first} is not there, so {} has no whole mailbox here", self.me())
        }));
        out.extend(self.files.troubles());
        out.extend(self.files.unwatched_line());
        out
    }

    fn remarks(&self) -> Vec<String> {
        let line = |path: String| {
            let path = one_line(&path).into_owned();
            let twice = path.replacen("/new/", "/cur/", 1);
            format!(
                "{path} and {twice} have one name: at the first of them `amq drain` stops, and what is \
                 sorted after it is not read; look at both and move one away"
            )
        };
        self.pairs().into_iter().map(line).collect()
    }

    fn advice(&self) -> Vec<Advice> {
        let missing = self.missing();
        let Some(first) = missing.first() else { return Vec::new() };
        let root = shell_word(&self.files.dir.to_string_lossy());
        vec![Advice {
            problem: format!(
                "{}: {first} is not there; without all {} folders of my mailbox nothing is read and \
                 nothing can be sent",
                self.files.dir.display(),
                LEAVES.len()
            ),
            command: Some(format!("amq init --root {root} --agents {}", self.me())),
            serious: true,
        }]
    }

    fn source_path(&self, source: u32) -> Option<String> {
        Some(self.files.file(source).ok()?.path())
    }

    fn read(&self, at: &Location) -> Result<Record, StoreError> {
        let read = self.message_at(at)?;
        let twin = self.files.table.read().twins.get(&at.source).copied();
        let named =
            |name: &'static str, value: &Option<String>| value.clone().map(|value| (name, value));
        let parts = texts(&read).into_iter().map(|(name, text)| Attachment {
            name: name.to_owned(),
            size: text.len() as u64,
            withheld: None,
        });
        let parts = parts.collect();
        let message = crate::model::Message {
            extra: [named("Type", &read.kind), named("Priority", &read.priority)]
                .into_iter()
                .flatten()
                .collect(),
            id: queue::id_of(&read.id, twin),
            in_reply_to: read.refs.last().cloned(),
            from: Some(read.from),
            to: read.to,
            time: read.created,
            subject: read.subject,
            thread: Some(read.thread),
            body: read.body,
            ..crate::model::Message::default()
        };
        Ok(Record { message, claim: read.claim, parts, ..Record::default() })
    }

    fn read_bytes(&self, at: &Location, limit: usize) -> Result<Vec<u8>, StoreError> {
        self.files.bytes_at(at, limit)
    }

    fn open_part(&self, at: &Location, name: &str) -> Result<Part, StoreError> {
        let missing = || StoreError::io(Path::new(name), io::ErrorKind::NotFound.into());
        let text = texts(&self.message_at(at)?).into_iter().find(|(part, _)| *part == name);
        let (_, text) = text.ok_or_else(missing)?;
        Ok(Part::Bytes(Arc::from(text.into_bytes())))
    }

    fn fits(&self, address: &str) -> Fit {
        if self.has_mailbox(address) {
            Fit::Plain
        } else if message::is_handle(address) {
            Fit::Via
        } else {
            Fit::No
        }
    }

    fn registered(&self, address: &str) -> bool {
        self.has_mailbox(address)
    }

    fn prepare(&self, draft: &Draft, with: &Preparing<'_>) -> Result<Vec<Prepared>, StoreError> {
        Ok(vec![self.make(draft, with)?])
    }

    fn appendable(&self, bytes: u64) -> Result<(), StoreError> {
        let dir = &self.files.dir;
        // The message goes to the recipient and to my own folder.
        fs::room_for(dir, bytes.saturating_mul(2)).map_err(|e| StoreError::io(dir, e))
    }

    fn append(&self, message: &Prepared) -> Result<(), StoreError> {
        self.deliver_prepared(message)
    }

    fn repeats(&self) -> bool {
        true
    }

    fn tell(&self, at: &Location, read: bool) -> Result<bool, StoreError> {
        if read { self.claim(at) } else { Ok(false) }
    }

    fn sync(&self) -> Result<(), StoreError> {
        // An append is on disk when it returns.
        Ok(())
    }

    fn raw_list(&self, folder: &str) -> Option<Vec<RawEntry>> {
        self.files.raw_list(folder)
    }

    fn raw_newest(&self, folder: &str) -> Option<Timestamp> {
        self.files.raw_newest(folder)
    }

    fn raw_open(&self, path: &str) -> io::Result<File> {
        self.files.raw_open(path)
    }

    fn check(
        &self,
        verify: &dyn Fn(&Claim) -> Option<String>,
        report: &mut dyn FnMut(Violation),
    ) -> Result<(), StoreError> {
        check::check(self, verify, report)
    }
}

#[cfg(test)]
mod tests;
