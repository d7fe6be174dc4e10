//! `AgentAZAll`: a mailbox of text files per agent, in folders by local day.
//!
//! - [`text`], [`date`], [`block`], [`mod@write`], [`filter`], [`names`], [`thread`]: the format, without I/O.
//! - `letter`, `group`, `held`, `known`: one file; which files are one message; who has which id; what a
//!   change means for that. `mail`: all of it as a format of the engine. `state`: what outlives the cache.
//! - `mark`: marking in the mailbox. `parts`: attachments. `notebook`: what else is shown.
//! - `send`, `deliver`, `put`, `key`: writing, and carrying mail to mailboxes of this machine.
//! - `check`: `msgfs check` and `msgfs doctor`.
//!
//! # Locks
//!
//! In this order: the engine's scan or `delivering` (one delivery at a time) → what is known of messages →
//! the table of files → all others, each held for one step and never while a sink is called.

pub mod block;
mod check;
mod config;
pub mod date;
mod deliver;
pub mod filter;
mod group;
mod held;
mod key;
mod known;
mod letter;
mod mail;
mod mark;
pub mod names;
mod notebook;
mod parts;
mod place;
mod put;
mod send;
mod state;
pub mod text;
pub mod thread;
pub mod write;

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use crate::model::locks::{Level, Mutex};
use jiff::tz::TimeZone;

use super::digest::Digests;
use super::engine::files::{File, Files};
use super::fs;
use super::{
    Advice, Fit, Kind, Location, Notebook, Part, Prepared, Preparing, RawEntry, Record, Sink, Spec,
    Store, StoreError, Violation,
};
use crate::model::{Claim, Draft, Message, PublicKey, Seed, Timestamp, one_line};
use known::Known;
use letter::{Kept, MAX_FILE, Parsed};
use mail::Mail;

/// A mailbox, read and written as one agent.
pub struct AgentAzall {
    name: String,
    files: Files<Mail>,
    delivering: Mutex<()>,
    delivered: Mutex<deliver::Delivered>,
    /// Why somebody could not be given what waits for him.
    failed: Mutex<deliver::Failed>,
    /// Files that were marked a moment ago.
    replaced: Mutex<Vec<mark::Replaced>>,
    /// Folders whose new entries may not be on disk.
    unsynced: Mutex<BTreeSet<PathBuf>>,
    digests: Digests,
    /// The mount's key, to be written into a mailbox that is not there yet.
    key_for_later: Mutex<Option<Seed>>,
}

/// Attachments' folders are watched this long after their message last changed: the reference copies
/// them after the text, file by file.
const PARTS_MS: i64 = 10 * 60 * 1000;

impl std::fmt::Debug for AgentAzall {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AgentAzall")
            .field("config", &self.mail().config_file)
            .field("me", &self.mail().me)
            .finish_non_exhaustive()
    }
}

impl AgentAzall {
    /// Opens the mailbox that a `config.json` describes: `spec.dir` is its folder, or the file itself.
    /// Neither it nor the mailbox is created.
    ///
    /// # Errors
    /// If there is no usable configuration, or the agent's name cannot be that of a mailbox.
    pub fn open(spec: &Spec) -> Result<Self, StoreError> {
        Self::open_in(spec, TimeZone::system())
    }

    fn open_in(spec: &Spec, zone: TimeZone) -> Result<Self, StoreError> {
        let config_file = config::locate(&spec.dir);
        let stamp = config::stamp(&config_file);
        let read = config::read(&config_file)?;
        let me = spec.as_me.clone().or(read.agent).ok_or_else(|| {
            StoreError::Invalid(format!(
                "{} has no agent_name; write one into it, or set $AGENTAZALL_AGENT",
                config_file.display()
            ))
        })?;
        if !names::is_mailbox_name(&me) || names::bare_address(&me) != me {
            return Err(StoreError::Invalid(format!(
                "the agent_name {:?} cannot be the name of a mailbox folder; choose one without '/', \
                 ',', '<' and control characters that does not begin with '.'",
                one_line(&me)
            )));
        }
        let (state, ledger) = state::State::open(spec.state.as_deref())?;
        let settings = config::Settings { stamp, filters: read.filters, trouble: None };
        let (base, delivered) = (read.mailboxes.join(&me), state.delivered());
        let known = Known::new(ledger);
        let places = (config_file, read.mailboxes);
        let mail = Mail::new(me, zone, places, settings, (state, known));
        Ok(Self {
            name: spec.name.clone(),
            files: Files::new(base, mail),
            delivering: Mutex::at(Level::Store, ()),
            delivered: Mutex::at(Level::Table, delivered),
            failed: Mutex::default(),
            replaced: Mutex::at(Level::Table, Vec::new()),
            unsynced: Mutex::default(),
            digests: Digests::default(),
            key_for_later: Mutex::default(),
        })
    }

    fn mail(&self) -> &Mail {
        &self.files.format
    }

    fn base(&self) -> &Path {
        &self.files.dir
    }

    fn zone(&self) -> &TimeZone {
        &self.mail().zone
    }

    /// Fails if something else than a folder is in the place of my mailbox.
    ///
    /// # Errors
    /// [`StoreError::Unreachable`] with what to do, else as the system gave it.
    fn require_base_if_any(&self) -> Result<(), StoreError> {
        let base = self.base();
        match std::fs::symlink_metadata(base) {
            Ok(meta) if meta.is_dir() => Ok(()),
            Ok(meta) => Err(StoreError::Unreachable(format!(
                "{} is {}, not a folder; a mailbox must be a folder: move it away, or put the folder \
                 it stands for in its place",
                one_line(&base.to_string_lossy()),
                fs::describe(meta.file_type())
            ))),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(e) => Err(StoreError::io(base, e)),
        }
    }

    /// Reads the file of a source again, with the id its message is known by; its time is the message's.
    fn reread(&self, source: u32) -> Result<(Parsed, File<Kept>, String), StoreError> {
        let file = self.files.file(source)?;
        let mut parsed = self.parse(&file)?;
        let (leader, held) = {
            let known = self.mail().known.read();
            let table = self.files.table.read();
            let message = known.message_of(&table, source);
            let leader = message.as_ref().and_then(|m| File::of(&table, m.leader));
            (leader, message.map_or(group::Held::No, |m| m.held))
        };
        let mut id = parsed.id.clone();
        if let Some(leader) = leader {
            parsed.kept.time = leader.facts.time;
            if leader.n != source {
                id = self.parse(&leader)?.id;
            }
        }
        Ok((parsed, file, mail::id_of(&id, held)))
    }

    /// Reads a file again, which must hold what it held.
    fn parse(&self, file: &File<Kept>) -> Result<Parsed, StoreError> {
        let (stamp, bytes) = self.files.bytes(file, MAX_FILE)?;
        let parsed = self.mail().take_apart(file, &stamp, &bytes).ok_or(StoreError::Moved)?;
        let is_known = file.row.is_message() || file.row.is_refused();
        if is_known && parsed.kept.text == file.facts.text {
            return Ok(parsed);
        }
        self.files.note(&self.base().join(file.path()));
        Err(StoreError::Moved)
    }

    /// The folder with the attachments of a message.
    fn parts_of(&self, file: &File<Kept>) -> Result<Option<OwnedFd>, StoreError> {
        let path = file.path();
        parts::open_folder(self.base(), path.strip_suffix(".txt").unwrap_or(&path))
            .map_err(|e| StoreError::io(&self.base().join(&path), e))
    }
}

impl Store for AgentAzall {
    fn kind(&self) -> Kind {
        Kind::AgentAzall
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn me(&self) -> &str {
        &self.mail().me
    }

    fn dir(&self) -> &Path {
        self.base()
    }

    fn whole_seconds(&self) -> bool {
        false
    }

    fn max_body(&self) -> u64 {
        u64::MAX
    }

    fn links(&self) -> bool {
        true
    }

    fn note(&self, path: &Path) {
        self.files.note(path);
    }

    fn scan(&self, full: bool, sink: &mut dyn Sink) -> Result<(), StoreError> {
        self.catch_up();
        // What was in a mailbox that is something else now stays; health says so.
        if self.require_base_if_any().is_err() {
            return Ok(());
        }
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
        let mut out = self.files.watched();
        let table = self.files.table.read();
        let since = Timestamp::now().millis() - PARTS_MS;
        let young = table.messages().filter(|(_, row, kept)| row.beside != 0 && kept.mtime > since);
        let paths = young.filter_map(|(n, ..)| table.path(n));
        out.extend(paths.map(|path| place::parts_dir(&self.base().join(path))));
        out
    }

    fn written(&self) -> Vec<PathBuf> {
        self.folders().iter().flat_map(|folder| self.note_folders(folder)).collect()
    }

    fn concerns(&self, folder: &Path, name: &OsStr) -> bool {
        self.files.concerns(folder, name)
    }

    fn health(&self) -> Vec<String> {
        let mut out: Vec<String> = self.mail().settings.read().trouble.iter().cloned().collect();
        out.extend(self.files.away_line());
        out.extend(self.require_base_if_any().err().map(|e| e.to_string()));
        out.extend(self.files.troubles());
        if let Err(e) = key::read(self.base()) {
            out.push(format!("nothing can be sent: {e}"));
        } else if key::is_exposed(self.base()) {
            let path = key::path(self.base());
            let command = crate::model::shell_word(&path.to_string_lossy());
            out.push(format!("others can read the private key; run `chmod 600 {command}`"));
        }
        out
    }

    fn remarks(&self) -> Vec<String> {
        self.waiting_lines()
    }

    fn advice(&self) -> Vec<Advice> {
        self.all_advice()
    }

    fn notebook(&self) -> Option<&dyn Notebook> {
        Some(self)
    }

    fn source_path(&self, source: u32) -> Option<String> {
        Some(self.files.file(source).ok()?.path())
    }

    fn read(&self, at: &Location) -> Result<Record, StoreError> {
        let (parsed, file, id) = self.reread(at.source)?;
        let attachments = parts::list(self.parts_of(&file)?.as_ref(), &parsed, &self.digests)
            .map_err(|e| StoreError::io(&self.base().join(file.path()), e))?;
        let reading = parsed.reading;
        let to = letter::recipients(&reading.to, &[]);
        let everybody = letter::recipients(&reading.to, &reading.cc);
        let subject = reading.subject.as_deref().unwrap_or_default();
        let thread = letter::thread_of(subject, &parsed.from, &everybody, &self.mail().me);
        let message = Message {
            from: Some(parsed.from).filter(|from| !from.is_empty()),
            cc: everybody.into_iter().filter(|address| !to.contains(address)).collect(),
            to,
            time: Timestamp::from_millis(parsed.kept.time),
            subject: reading.subject,
            thread: Some(thread),
            in_reply_to: reading.answers,
            id,
            attachments,
            body: reading.body,
            ..Message::default()
        };
        Ok(Record {
            message,
            body_if_valid: reading.body_if_valid,
            claim: reading.claim,
            ..Record::default()
        })
    }

    fn read_bytes(&self, at: &Location, limit: usize) -> Result<Vec<u8>, StoreError> {
        self.files.bytes_at(at, limit)
    }

    fn open_part(&self, at: &Location, name: &str) -> Result<Part, StoreError> {
        let (parsed, file, _) = self.reread(at.source)?;
        parts::open(self.parts_of(&file)?.as_ref(), name, &parsed, &self.digests)
            .map(Part::File)
            .map_err(|e| StoreError::io(Path::new(one_line(name).as_ref()), e))
    }

    fn canonical(&self, address: &str) -> String {
        names::bare_address(address)
    }

    fn fits(&self, address: &str) -> Fit {
        if !names::is_mailbox_name(address) {
            Fit::No
        } else if address.ends_with("@localhost")
            || address.ends_with(".agenttalk")
            || self.has_mailbox(address)
        {
            Fit::Exact
        } else if address.contains('@') {
            Fit::Plain
        } else {
            Fit::No
        }
    }

    fn registered(&self, address: &str) -> bool {
        self.has_mailbox(address)
    }

    fn public_key(&self, mine: Option<PublicKey>) -> Option<PublicKey> {
        match key::read(self.base()) {
            Ok(Some(seed)) => Some(seed.public_key()),
            Ok(None) => mine,
            Err(_) => None,
        }
    }

    fn signing_key(&self, mine: Option<&Seed>) -> Result<Seed, StoreError> {
        if let Some(seed) = key::read(self.base())? {
            return Ok(seed);
        }
        let seed = mine.cloned().ok_or_else(|| {
            StoreError::NoKey(format!("there is no key for {} to sign with", self.mail().me))
        })?;
        if !place::is_real_dir(self.base()) {
            *self.key_for_later.lock() = Some(seed.clone());
            return Ok(seed);
        }
        match key::write_first(self.base(), &seed, Timestamp::now(), self.zone()) {
            Ok(()) => Ok(seed),
            // Another program made one a moment ago.
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => key::read(self.base())?
                .ok_or_else(|| StoreError::NoKey("the key is gone again".into())),
            Err(e) => Err(StoreError::NoKey(format!(
                "the key {} cannot be written: {e}",
                key::path(self.base()).display()
            ))),
        }
    }

    fn carries(&self, files: &[(String, u64)]) -> Result<(), StoreError> {
        Self::carries_files(files.iter().map(|(name, _)| name.as_str()))
    }

    fn prepare(&self, draft: &Draft, with: &Preparing<'_>) -> Result<Vec<Prepared>, StoreError> {
        Ok(vec![self.make(draft, with)?])
    }

    fn appendable(&self, bytes: u64) -> Result<(), StoreError> {
        self.could_put(bytes)
    }

    fn append(&self, message: &Prepared) -> Result<(), StoreError> {
        self.put(message)
    }

    fn repeats(&self) -> bool {
        true
    }

    fn deliver(&self) -> Result<bool, StoreError> {
        self.deliver_all()
    }

    fn tell(&self, at: &Location, read: bool) -> Result<bool, StoreError> {
        if read { self.mark_read(at.source) } else { Ok(false) }
    }

    fn sync(&self) -> Result<(), StoreError> {
        self.sync_dirs()
    }

    fn raw_list(&self, folder: &str) -> Option<Vec<RawEntry>> {
        let mut entries = self.files.raw_list(folder)?;
        // A day with notes only is none to show.
        let has_mail =
            |e: &RawEntry| self.files.raw_list(&e.name).is_some_and(|day| !day.is_empty());
        entries.retain(|e| !folder.is_empty() || has_mail(e));
        Some(entries)
    }

    fn raw_newest(&self, folder: &str) -> Option<Timestamp> {
        self.files.raw_newest(folder)
    }

    fn raw_open(&self, path: &str) -> io::Result<std::fs::File> {
        self.files.raw_open(path)
    }

    fn check(
        &self,
        verify: &dyn Fn(&Claim) -> Option<String>,
        report: &mut dyn FnMut(Violation),
    ) -> Result<(), StoreError> {
        self.check_all(verify, report)
    }
}

#[cfg(test)]
mod tests;
