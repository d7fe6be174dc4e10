//! AMP/1.0: records of tasks between roles, one immutable JSON file a message in a shared folder, the
//! SSOT (formats/amp1.md).
//!
//! The format, as functions without I/O:
//! - [`words`], [`tree`], [`schema`], [`rules`], [`envelope`]: what a message is and which rule it
//!   breaks. [`text`]: how it reads. `sign`: what a signature covers.
//! - `state`: what the messages of a task add up to.
//!
//! The store on top of it:
//! - `folder`: the files of an SSOT. `task`: one task as it is on disk, and `tasks/`.
//! - `table`, `scan`: which message files there are, and what changed.
//! - `read`: one message in full. `send`: new ones. `acks`, `resume`, `errors_log`: what else is
//!   written. `status`, `raw`, `check`: the rest.

mod acks;
mod check;
pub mod envelope;
mod errors_log;
mod folder;
mod raw;
mod read;
mod resume;
pub mod rules;
mod scan;
pub mod schema;
mod send;
mod sign;
mod state;
mod status;
mod table;
mod task;
pub mod text;
pub mod tree;
pub mod words;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use crate::model::locks::{Level, Mutex, RwLock};

use super::fs::Fault;
use super::{
    Fit, Kind, Location, Prepared, Preparing, RawEntry, Record, Sink, Spec, Store, StoreError,
    Violation,
};
use crate::model::{Claim, Draft, Timestamp, one_line};
use scan::Memory;
use state::State;
use table::Table;
use words::Role;

/// The SSOT as one role sees it.
pub struct Ssot {
    name: String,
    dir: PathBuf,
    role: Role,
    /// Held for short moments only, and never while a sink is called.
    table: RwLock<Table>,
    /// One scan at a time.
    memory: Mutex<Memory>,
    /// Paths at which something changed since the last scan.
    noted: Mutex<HashSet<PathBuf>>,
    /// What scans found besides messages.
    seen: RwLock<Seen>,
    /// Something could not be read since the last full scan began.
    fault: Fault,
    /// Tasks whose file in `tasks/` may say something else than their messages.
    stale: Mutex<BTreeSet<String>>,
}

/// What scans found besides messages.
#[derive(Debug, Default)]
struct Seen {
    states: BTreeMap<String, State>,
    /// What is wrong, by task.
    trouble: BTreeMap<String, Vec<String>>,
    /// The folders below `messages/`, `acks/` and `resumes/`.
    folders: [BTreeSet<String>; 3],
}

impl Seen {
    fn set_trouble(&mut self, task: &str, lines: Vec<String>) {
        if lines.is_empty() {
            self.trouble.remove(task);
        } else {
            self.trouble.insert(task.to_owned(), lines);
        }
    }
}

impl std::fmt::Debug for Ssot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ssot")
            .field("dir", &self.dir)
            .field("role", &self.role)
            .finish_non_exhaustive()
    }
}

impl Ssot {
    /// Opens the SSOT for the role that `spec` names. Nothing is made, and the folder need not exist.
    ///
    /// # Errors
    /// If I am no role.
    pub fn open(spec: &Spec) -> Result<Self, StoreError> {
        let me = spec.as_me.as_ref().unwrap_or(&spec.me);
        let Some(role) = Role::named(me) else {
            let roles = Role::ALL.map(Role::as_str).join(", ");
            return Err(StoreError::Invalid(format!(
                "{:?} is no role of AMP/1.0 ({roles}); set me = \"executor\" or another of them in \
                 its [[store]]",
                one_line(me)
            )));
        };
        Ok(Self {
            name: spec.name.clone(),
            dir: spec.dir.clone(),
            role,
            table: RwLock::at(Level::Table, Table::default()),
            memory: Mutex::at(Level::Store, Memory::default()),
            noted: Mutex::default(),
            seen: RwLock::at(Level::Table, Seen::default()),
            fault: Fault::default(),
            stale: Mutex::default(),
        })
    }
}

impl Store for Ssot {
    fn kind(&self) -> Kind {
        Kind::Ssot
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn me(&self) -> &str {
        self.role.as_str()
    }

    fn dir(&self) -> &Path {
        &self.dir
    }

    fn whole_seconds(&self) -> bool {
        false
    }

    fn max_body(&self) -> u64 {
        // The file has the envelope besides, and is printed with blanks.
        (envelope::FILE_BYTES / 2) as u64
    }

    fn note(&self, path: &Path) {
        self.noted.lock().insert(path.to_owned());
    }

    fn scan(&self, full: bool, sink: &mut dyn Sink) -> Result<(), StoreError> {
        self.scan_store(full, sink)
    }

    fn is_failing(&self) -> bool {
        self.fault.is_set()
    }

    fn save(&self) -> Vec<u8> {
        self.table.read().save(self.role.as_str())
    }

    fn restore(&self, saved: &[u8]) -> bool {
        let Some(table) = Table::restore(saved, self.role.as_str()) else { return false };
        // The folders are walked again: only what has changed since is read.
        *self.memory.lock() = Memory::default();
        *self.table.write() = table;
        true
    }

    fn reset(&self) {
        let mut memory = self.memory.lock();
        *memory = Memory::default();
        *self.table.write() = Table::default();
        *self.seen.write() = Seen::default();
        self.noted.lock().clear();
    }

    fn watched(&self) -> Vec<PathBuf> {
        self.folders_to_watch()
    }

    fn written(&self) -> Vec<PathBuf> {
        vec![self.dir.join(folder::TASKS)]
    }

    fn concerns(&self, folder: &Path, name: &OsStr) -> bool {
        self.is_of_concern(folder, name)
    }

    fn health(&self) -> Vec<String> {
        self.health_lines()
    }

    fn remarks(&self) -> Vec<String> {
        self.remark_lines(Timestamp::now())
    }

    fn source_path(&self, source: u32) -> Option<String> {
        self.table.read().path(source)
    }

    fn read(&self, at: &Location) -> Result<Record, StoreError> {
        self.read_message(at)
    }

    fn read_bytes(&self, at: &Location, limit: usize) -> Result<Vec<u8>, StoreError> {
        Ok(self.bytes_at(at.source, limit)?.1)
    }

    fn acknowledge(&self, at: &Location) -> Result<(), StoreError> {
        self.give_ack(at)
    }

    fn command(&self, words: &[String]) -> Result<String, StoreError> {
        match words {
            [word, task] if word == "resume" => self.resume_task(task),
            _ => Err(StoreError::Invalid("the command is: resume TASK".into())),
        }
    }

    fn headers(&self) -> &'static [&'static str] {
        &["Task"]
    }

    fn recipient_in(&self, text: &str) -> Option<String> {
        send::recipient_in(text)
    }

    fn fits(&self, address: &str) -> Fit {
        match Role::named(address) {
            Some(role) if role.receives() => Fit::Plain,
            _ => Fit::No,
        }
    }

    fn registered(&self, address: &str) -> bool {
        Role::named(address).is_some_and(Role::receives)
    }

    fn prepare(&self, draft: &Draft, with: &Preparing<'_>) -> Result<Vec<Prepared>, StoreError> {
        Ok(vec![self.prepare_message(draft, with)?])
    }

    fn appendable(&self, bytes: u64) -> Result<(), StoreError> {
        self.has_room(bytes)
    }

    fn append(&self, message: &Prepared) -> Result<(), StoreError> {
        self.append_message(message)
    }

    fn repeats(&self) -> bool {
        true
    }

    fn deliver(&self) -> Result<bool, StoreError> {
        let logged = self.log_errors();
        let written = self.write_tasks();
        Ok(logged? | written?)
    }

    fn sync(&self) -> Result<(), StoreError> {
        // An append is on disk when it returns.
        Ok(())
    }

    fn raw_list(&self, folder: &str) -> Option<Vec<RawEntry>> {
        self.list_raw(folder)
    }

    fn raw_open(&self, path: &str) -> io::Result<File> {
        self.open_raw(path)
    }

    fn repair(&self) -> Result<Vec<String>, StoreError> {
        self.rebuild_tasks()
    }

    fn check(
        &self,
        verify: &dyn Fn(&Claim) -> Option<String>,
        report: &mut dyn FnMut(Violation),
    ) -> Result<(), StoreError> {
        self.check_store(verify, report)
    }
}
