//! `AgentAZAll`: a mailbox of text files per agent, in folders by local day.
//!
//! - [`text`], [`date`], [`block`], [`mod@write`], [`filter`], [`names`], [`thread`]: the format, without I/O.
//! - `letter`, `group`, `held`, `table`, `codec`: one file; which files are one message; who has which id;
//!   all files; on disk. `state`: what outlives the cache.
//! - `scan`, `watch`, `mark`: following the mailbox, and marking in it. `parts`: attachments. `raw`, `notebook`: what else is shown.
//! - `send`, `deliver`, `files`, `key`: writing, and carrying mail to mailboxes of this machine.
//! - `check`: `msgfs check` and `msgfs doctor`.
//!
//! # Locks
//!
//! In this order: `scanning` or `delivering` (one scan, one delivery at a time) → all others, each held
//! for one step and never while a sink is called.

pub mod block;
mod check;
mod codec;
mod config;
pub mod date;
mod deliver;
mod files;
pub mod filter;
mod group;
mod held;
mod key;
mod letter;
mod mark;
pub mod names;
mod notebook;
mod parts;
mod place;
mod raw;
mod scan;
mod send;
mod state;
mod table;
pub mod text;
pub mod thread;
mod watch;
pub mod write;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use crate::model::locks::{Level, Mutex, RwLock, RwLockReadGuard};
use jiff::tz::TimeZone;

use super::fs::{self, Stamp};
use super::{
    Advice, Fit, Kind, Location, Notebook, Part, Prepared, Preparing, RawEntry, Record, Sink, Spec,
    Store, StoreError, Violation,
};
use crate::model::{Claim, Draft, Message, PublicKey, Seed, Timestamp, one_line};
use place::{Folder, Place};
use table::Table;

/// What can change in the configuration while the store is open.
#[derive(Debug, Default)]
struct Settings {
    stamp: Option<Stamp>,
    filters: config::Filters,
    trouble: Option<String>,
    /// Messages were not judged by these filters yet.
    fresh: bool,
}

/// A mailbox, read and written as one agent.
pub struct AgentAzall {
    name: String,
    me: String,
    config_file: PathBuf,
    /// The folder of all mailboxes of this machine.
    mailboxes: PathBuf,
    /// Mine.
    base: PathBuf,
    zone: TimeZone,
    settings: RwLock<Settings>,
    scanning: Mutex<()>,
    delivering: Mutex<()>,
    table: RwLock<Table>,
    /// Paths that the next scan looks at.
    noted: Mutex<BTreeSet<PathBuf>>,
    /// What is wrong, by folder.
    trouble: RwLock<BTreeMap<String, Vec<String>>>,
    /// Something could not be read since the last full scan began.
    fault: fs::Fault,
    /// The folders that are there, by day.
    layout: RwLock<BTreeMap<String, BTreeSet<Folder>>>,
    delivered: Mutex<deliver::Delivered>,
    /// Why somebody could not be given what waits for him.
    failed: Mutex<deliver::Failed>,
    state: state::State,
    /// Files that were marked a moment ago.
    replaced: Mutex<Vec<mark::Replaced>>,
    /// Addresses that mail waits for.
    waiting: RwLock<BTreeSet<String>>,
    /// Folders whose new entries may not be on disk.
    unsynced: Mutex<BTreeSet<PathBuf>>,
    hashes: parts::Hashes,
    /// The mount's key, to be written into a mailbox that is not there yet.
    key_for_later: Mutex<Option<Seed>>,
}

impl std::fmt::Debug for AgentAzall {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AgentAzall")
            .field("config", &self.config_file)
            .field("me", &self.me)
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
        let settings = Settings { stamp, filters: read.filters, trouble: None, fresh: true };
        Ok(Self {
            name: spec.name.clone(),
            base: read.mailboxes.join(&me),
            me,
            config_file,
            mailboxes: read.mailboxes,
            zone,
            settings: RwLock::new(settings),
            scanning: Mutex::at(Level::Store, ()),
            delivering: Mutex::at(Level::Store, ()),
            table: RwLock::at(Level::Table, Table::new(ledger)),
            noted: Mutex::default(),
            trouble: RwLock::default(),
            fault: fs::Fault::default(),
            layout: RwLock::default(),
            delivered: Mutex::at(Level::Table, state.delivered()),
            failed: Mutex::default(),
            state,
            replaced: Mutex::at(Level::Table, Vec::new()),
            waiting: RwLock::default(),
            unsynced: Mutex::default(),
            hashes: parts::Hashes::default(),
            key_for_later: Mutex::default(),
        })
    }

    fn base(&self) -> &Path {
        &self.base
    }

    fn zone(&self) -> &TimeZone {
        &self.zone
    }

    fn table(&self) -> RwLockReadGuard<'_, Table> {
        self.table.read()
    }

    /// The zone as a text that changes with it.
    fn zone_name(&self) -> String {
        self.zone.iana_name().map_or_else(|| format!("{:?}", self.zone), str::to_owned)
    }

    /// Reads the configuration again if it changed. Whether messages must be judged again.
    fn reload_config(&self) -> bool {
        let stamp = config::stamp(&self.config_file);
        let mut settings = self.settings.write();
        let first = std::mem::take(&mut settings.fresh);
        if stamp == settings.stamp {
            return first;
        }
        settings.stamp = stamp;
        match config::read(&self.config_file) {
            Ok(read) => {
                settings.trouble = (read.mailboxes != self.mailboxes).then(|| {
                    let file = self.config_file.display();
                    format!("mailbox_dir was changed in {file}; mount again to use the new one")
                });
                let changed = read.filters != settings.filters;
                settings.filters = read.filters;
                changed || first
            }
            Err(e) => {
                if e.may_pass() {
                    self.fault.set();
                }
                settings.trouble = Some(format!("{e}; the address filter stays what it was"));
                first
            }
        }
    }

    /// Notes what is wrong with one file, or that nothing is.
    fn set_trouble(&self, path: &str, line: Option<String>) {
        if line.is_some() || self.trouble.read().contains_key(path) {
            let mut trouble = self.trouble.write();
            match line {
                Some(line) => drop(trouble.insert(path.to_owned(), vec![line])),
                None => drop(trouble.remove(path)),
            }
        }
    }

    /// Notes whether a folder of messages is there.
    fn lay_out(&self, day: &str, folder: Folder, there: bool) {
        let mut layout = self.layout.write();
        if there {
            layout.entry(day.to_owned()).or_default().insert(folder);
        } else if let Some(folders) = layout.get_mut(day) {
            folders.remove(&folder);
        } else if place::is_real_dir(&self.base.join(day)) {
            layout.entry(day.to_owned()).or_default();
        }
    }

    /// Fails if something else than a folder is in the place of my mailbox.
    ///
    /// # Errors
    /// [`StoreError::Unreachable`] with what to do, else as the system gave it.
    fn require_base_if_any(&self) -> Result<(), StoreError> {
        match std::fs::symlink_metadata(&self.base) {
            Ok(meta) if meta.is_dir() => Ok(()),
            Ok(meta) => Err(StoreError::Unreachable(scan::no_folder(&self.base, meta.file_type()))),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(e) => Err(StoreError::io(&self.base, e)),
        }
    }

    /// Whether files come with the message that this file shows.
    fn has_parts(&self, source: u32) -> bool {
        self.table().row(source).and_then(|r| r.state.head()).is_some_and(|head| head.parts)
    }

    /// Reads the file of a source again, with the id its message is known by; its time is the message's.
    fn reread(&self, source: u32) -> Result<(letter::Parsed, PathBuf, String), StoreError> {
        let (path, id, text, time) = {
            let table = self.table();
            let row = table.row(source).ok_or(StoreError::Moved)?;
            let head = row.state.head().ok_or(StoreError::Moved)?;
            let message = table.message_of(source);
            let id = message.map_or(&*head.id, |message| &message.id);
            let time = message.and_then(|m| table.row(m.leader)).unwrap_or(row).time();
            (row.path.to_string(), id.to_owned(), head.text, time)
        };
        let full = self.base.join(&path);
        let place = Place::parse(&path).ok_or(StoreError::Moved)?;
        let mut parsed = letter::open(&full, &place, &self.zone).map_err(|e| match e.kind() {
            io::ErrorKind::NotFound => StoreError::Moved,
            _ => StoreError::io(&full, e),
        })?;
        if parsed.head.text != text {
            self.noted.lock().insert(full);
            return Err(StoreError::Moved);
        }
        parsed.head.time = time;
        Ok((parsed, full, id))
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
        &self.me
    }

    fn dir(&self) -> &Path {
        &self.base
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
        self.noted.lock().insert(path.to_owned());
    }

    fn scan(&self, full: bool, sink: &mut dyn Sink) -> Result<(), StoreError> {
        scan::scan(self, full, sink)
    }

    fn is_failing(&self) -> bool {
        self.fault.is_set()
    }

    fn save(&self) -> Vec<u8> {
        let delivered = self.delivered.lock().clone().into_iter();
        codec::encode(&codec::Saved {
            zone: self.zone_name(),
            rows: self.table().rows().to_vec(),
            delivered: delivered.map(|(path, to)| (path, to.into_iter().collect())).collect(),
        })
    }

    fn restore(&self, saved: &[u8]) -> bool {
        let Some(mut saved) = codec::decode(saved) else { return false };
        if saved.zone != self.zone_name() {
            // Times are local, so every file is read again; what it was known by stays.
            saved.rows.iter_mut().for_each(|row| row.stamp = Stamp::default());
        }
        self.table.write().restore(saved.rows, &self.me);
        let mut delivered = self.delivered.lock();
        for (path, to) in saved.delivered {
            delivered.entry(path).or_default().extend(to);
        }
        true
    }

    fn reset(&self) {
        self.table.write().clear();
        self.settings.write().fresh = true;
    }

    fn watched(&self) -> Vec<PathBuf> {
        self.folders_to_watch()
    }

    fn written(&self) -> Vec<PathBuf> {
        self.folders().iter().flat_map(|folder| self.note_folders(folder)).collect()
    }

    fn concerns(&self, folder: &Path, name: &OsStr) -> bool {
        self.is_concerned(folder, name)
    }

    fn health(&self) -> Vec<String> {
        let mut out: Vec<String> = self.settings.read().trouble.iter().cloned().collect();
        let read = self.table().rows().iter().any(|row| row.state.head().is_some());
        out.extend(fs::away_line(&self.base).filter(|_| read));
        out.extend(self.trouble.read().values().flatten().map(|line| one_line(line).into_owned()));
        if let Err(e) = key::read(&self.base) {
            out.push(format!("nothing can be sent: {e}"));
        } else if key::is_exposed(&self.base) {
            let path = key::path(&self.base);
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
        let table = self.table();
        let path = table.row(source).map(|row| row.path.to_string());
        path.filter(|path| !path.is_empty())
    }

    fn read(&self, at: &Location) -> Result<Record, StoreError> {
        let (parsed, path, id) = self.reread(at.source)?;
        let folder = place::parts_dir(&path);
        let attachments =
            parts::list(&folder, &parsed, &self.hashes).map_err(|e| StoreError::io(&folder, e))?;
        let reading = parsed.reading;
        let to = letter::recipients(&reading.to, &[]);
        let everybody = letter::recipients(&reading.to, &reading.cc);
        let subject = reading.subject.as_deref().unwrap_or_default();
        let thread = letter::thread_of(subject, &parsed.head.from, &everybody, &self.me);
        let message = Message {
            from: Some(parsed.head.from.to_string()).filter(|from| !from.is_empty()),
            cc: everybody.into_iter().filter(|address| !to.contains(address)).collect(),
            to,
            time: parsed.head.time,
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
        let path = self.source_path(at.source).ok_or(StoreError::Moved)?;
        let full = self.base.join(path);
        let file = fs::open_regular(&full).map_err(|e| StoreError::io(&full, e))?;
        let mut bytes = vec![0; limit.min(at.len as usize)];
        let n =
            fs::read_at_most(&file, &mut bytes, at.offset).map_err(|e| StoreError::io(&full, e))?;
        bytes.truncate(n);
        Ok(bytes)
    }

    fn open_part(&self, at: &Location, name: &str) -> Result<Part, StoreError> {
        let (parsed, path, _) = self.reread(at.source)?;
        let folder = place::parts_dir(&path);
        parts::open(&folder, name, &parsed, &self.hashes)
            .map(Part::File)
            .map_err(|e| StoreError::io(&folder.join(one_line(name).as_ref()), e))
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
        match key::read(&self.base) {
            Ok(Some(seed)) => Some(seed.public_key()),
            Ok(None) => mine,
            Err(_) => None,
        }
    }

    fn signing_key(&self, mine: Option<&Seed>) -> Result<Seed, StoreError> {
        if let Some(seed) = key::read(&self.base)? {
            return Ok(seed);
        }
        let seed = mine.cloned().ok_or_else(|| {
            StoreError::NoKey(format!("there is no key for {} to sign with", self.me))
        })?;
        if !place::is_real_dir(&self.base) {
            *self.key_for_later.lock() = Some(seed.clone());
            return Ok(seed);
        }
        match key::write_first(&self.base, &seed, Timestamp::now(), &self.zone) {
            Ok(()) => Ok(seed),
            // Another program made one a moment ago.
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => key::read(&self.base)?
                .ok_or_else(|| StoreError::NoKey("the key is gone again".into())),
            Err(e) => Err(StoreError::NoKey(format!(
                "the key {} cannot be written: {e}",
                key::path(&self.base).display()
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
        self.list_raw(folder)
    }

    fn raw_newest(&self, folder: &str) -> Option<Timestamp> {
        self.newest_raw(folder)
    }

    fn raw_open(&self, path: &str) -> io::Result<File> {
        self.open_raw(path)
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
