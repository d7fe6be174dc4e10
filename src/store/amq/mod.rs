//! AMQ (Agent Message Queue): a Maildir per agent below one root, with a header of JSON on each message
//! (docs/formats/amq.md).
//!
//! - [`message`]: one file. [`queue`]: a root as files of the engine.
//! - `send`: new messages. `claim`: telling that one was read. `check`: `msgfs check`.

mod check;
mod claim;
pub mod message;
pub mod queue;
mod send;

#[cfg(test)]
mod tests;

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use super::engine::files::{File as Known, Files, Folder};
use super::{
    Advice, Fit, Kind, Location, Part, Prepared, Preparing, RawEntry, Record, Sink, Spec, Store,
    StoreError, Violation, fs,
};
use crate::model::locks::{Level, Mutex};
use crate::model::{Attachment, Claim, Draft, Timestamp, one_line, shell_word};
use message::{FILE_BYTES, Message};
use queue::{Kept, Queue};

/// The folders that make a mailbox.
const LEAVES: &str = "inbox/tmp inbox/new inbox/cur outbox/sent receipts dlq/tmp dlq/new dlq/cur";

/// A queue, read and written as one agent.
#[derive(Debug)]
pub struct Amq {
    name: String,
    files: Files<Queue>,
    /// One message is claimed at a time.
    claiming: Mutex<()>,
}

impl Amq {
    /// Opens a queue root. Nothing is made.
    ///
    /// # Errors
    /// If my name cannot be a handle.
    pub fn open(spec: &Spec) -> Result<Self, StoreError> {
        let me = spec.as_me.clone().unwrap_or_else(|| spec.me.to_ascii_lowercase());
        if !message::is_handle(&me) {
            let (me, grammar) = (one_line(&me), Kind::Amq.grammar());
            let why = format!("{me:?} is no handle: {grammar}; set me in its [[store]]");
            return Err(StoreError::Invalid(why));
        }
        let files = Files::new(spec.dir.clone(), Queue { me });
        Ok(Self { name: spec.name.clone(), files, claiming: Mutex::at(Level::Store, ()) })
    }

    /// The message in a file, if it still is what it was.
    fn message_in(&self, file: &Known<Kept>) -> Result<Message, StoreError> {
        let (_, bytes) = self.files.bytes(file, FILE_BYTES)?;
        let known = file.message().is_none_or(|kept| kept.content == queue::print(&bytes));
        message::parse(&bytes).ok().filter(|_| known).ok_or(StoreError::Moved)
    }

    /// Opens a folder of a mailbox.
    fn leaf(&self, agent: &str, leaf: &str) -> Result<Folder<'_, Queue>, StoreError> {
        self.files.folder(&format!("agents/{agent}/{leaf}"))
    }

    /// Folders of my mailbox that are missing.
    fn missing(&self) -> impl Iterator<Item = String> {
        let missing = LEAVES.split(' ').filter(|leaf| self.leaf(self.me(), leaf).is_err());
        missing.map(|leaf| format!("agents/{}/{leaf}", self.me()))
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
        &self.files.format.me
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
        self.files.health.fault.is_set()
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

    fn written(&self) -> Vec<PathBuf> {
        vec![self.files.dir.join(format!("agents/{}/{}", self.me(), claim::CLAIMS))]
    }

    fn concerns(&self, folder: &Path, name: &OsStr) -> bool {
        self.files.concerns(folder, name)
    }

    fn health(&self) -> Vec<String> {
        let mut lines = self.files.health_lines();
        if !fs::is_away(&self.files.dir) {
            lines.extend(self.advice().into_iter().map(|advice| advice.problem));
        }
        lines
    }

    fn remarks(&self) -> Vec<String> {
        let inbox = format!("agents/{}/inbox", self.me());
        let line = |name: &String| {
            let name = one_line(name);
            format!(
                "{inbox}/new/{name} and {inbox}/cur/{name} have one name: at the first of them `amq \
                 drain` stops, and what is sorted after it is not read; look at both and move one away"
            )
        };
        self.files.format.pairs(&self.files.table.read()).iter().map(line).collect()
    }

    fn advice(&self) -> Vec<Advice> {
        let Some(first) = self.missing().next() else { return Vec::new() };
        let root = shell_word(&self.files.dir.to_string_lossy());
        vec![Advice {
            problem: format!("{first} is not there; a mailbox has {LEAVES}"),
            command: Some(format!("amq init --root {root} --agents {}", self.me())),
            serious: true,
        }]
    }

    fn source_path(&self, source: u32) -> Option<String> {
        self.files.table.read().path(source)
    }

    fn read(&self, at: &Location) -> Result<Record, StoreError> {
        let mut read = self.message_in(&self.files.file(at.source)?)?;
        let twin = self.files.table.read().twins.get(&at.source).copied();
        read.shown.id = queue::id_of(&read.shown.id, twin.as_ref());
        let parts = read.parts.iter().map(|(name, text)| Attachment {
            name: (*name).to_owned(),
            size: text.len() as u64,
            withheld: None,
        });
        let parts = parts.collect();
        Ok(Record { message: read.shown, claim: read.claim, parts, ..Record::default() })
    }

    fn read_bytes(&self, at: &Location, limit: usize) -> Result<Vec<u8>, StoreError> {
        self.files.bytes_at(at, limit)
    }

    fn open_part(&self, at: &Location, name: &str) -> Result<Part, StoreError> {
        let read = self.message_in(&self.files.file(at.source)?)?;
        let part = read.parts.into_iter().find(|(part, _)| *part == name);
        let missing = || StoreError::io(Path::new(name), io::ErrorKind::NotFound.into());
        part.map(|(_, text)| Part::Bytes(text.into_bytes().into())).ok_or_else(missing)
    }

    fn fits(&self, address: &str) -> Fit {
        match self.mailbox(address) {
            Ok(_) => Fit::Plain,
            Err(StoreError::Unreachable(_)) => Fit::Via,
            Err(_) => Fit::No,
        }
    }

    fn registered(&self, address: &str) -> bool {
        self.mailbox(address).is_ok()
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

    fn deliver(&self) -> Result<bool, StoreError> {
        self.finish_claims()
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
