//! ATSF 1.1 (Agent Thread Storage Format): a project's conversations with agents, a folder each, in
//! `.agent/threads/` of the project and of its git worktrees.
//!
//! The format, as functions without I/O:
//! - [`line`](mod@line), [`thread`](mod@thread), `values`: what a line and a `thread.json` say.
//! - [`blocks`], [`sign`], [`edit`]: a message as text, signatures, derived numbers.
//!
//! The store on top of it:
//! - `roots`, `git`: where threads lie. `table`, `ids`, `log`, `scan`: which there are, how far their
//!   logs were read, what changed. `lost`: what I wrote, kept.
//! - `read`, [`assets`]: one message in full. `send`, `create`, `append`: new ones.
//! - `raw`, `status`, `check`: the rest.
//!
//! A log is never rewritten and a `thread.json` changed in its derived numbers only, so members nobody
//! here knows, their spelling and their order stay as they are.

mod append;
pub mod assets;
pub mod blocks;
mod check;
mod create;
pub mod edit;
mod git;
mod ids;
pub mod line;
mod log;
mod lost;
mod raw;
mod read;
mod roots;
mod scan;
mod send;
pub mod sign;
mod status;
mod table;
pub mod thread;
mod values;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use crate::model::locks::{Level, Mutex, RwLock};

use super::{
    EmptyThread, Fit, Kind, Location, Part, Prepared, Preparing, RawEntry, Record, Sink, Spec,
    Store, StoreError, Violation,
};
use crate::model::{Claim, Draft, Timestamp, one_line};
use crate::store::digest::Digests;
use crate::store::fs::Fault;
pub use log::Stats;
use lost::Kept;
use roots::{AGENT, Repository};
use table::Table;

/// Roles the format names, as which a mount can act.
const ROLES: [&str; 3] = ["user", "agent", "system"];

/// The threads of one project, read and written as one role.
pub struct Atsf {
    name: String,
    /// The folder that holds `.agent`.
    project: PathBuf,
    /// My role.
    me: String,
    table: RwLock<Table>,
    /// One scan at a time; set once everything was listed.
    scanning: Mutex<bool>,
    repository: Mutex<Repository>,
    /// Paths that changed since the last scan.
    noted: Mutex<HashSet<PathBuf>>,
    /// By path: what is wrong with it, in words.
    trouble: RwLock<BTreeMap<String, String>>,
    fault: Fault,
    kept: Kept,
    digests: Digests,
    /// One append at a time. By log: from where on the disk has refused it.
    appending: Mutex<HashMap<PathBuf, u64>>,
    /// Threads whose derived numbers could not be brought up to date after an append.
    stale: Mutex<BTreeSet<u32>>,
}

impl std::fmt::Debug for Atsf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Atsf")
            .field("project", &self.project)
            .field("me", &self.me)
            .finish_non_exhaustive()
    }
}

/// Whom a message of this role is for: the format has no recipients (contract, ATSF).
fn recipient(role: &str) -> &'static str {
    if role == "user" { "agent" } else { "user" }
}

impl Atsf {
    /// Opens the project whose folder, or whose `.agent`, `spec` names. Nothing is made.
    ///
    /// # Errors
    /// [`StoreError::Invalid`] if I am no role, I/O errors for what msgfs itself keeps.
    pub fn open(spec: &Spec) -> Result<Self, StoreError> {
        let me = spec.as_me.as_deref().unwrap_or("user");
        if !ROLES.contains(&me) {
            return Err(StoreError::Invalid(format!(
                "me = {:?}: in an ATSF store one acts as {}",
                one_line(me),
                ROLES.join(", ")
            )));
        }
        let project = match (spec.dir.file_name(), spec.dir.parent()) {
            (Some(name), Some(parent)) if name == AGENT => parent,
            _ => &spec.dir,
        };
        Ok(Self {
            name: spec.name.clone(),
            project: project.to_owned(),
            me: me.to_owned(),
            table: RwLock::at(Level::Table, Table::default()),
            scanning: Mutex::at(Level::Store, false),
            repository: Mutex::at(Level::Around, Repository::default()),
            noted: Mutex::default(),
            trouble: RwLock::default(),
            fault: Fault::default(),
            kept: Kept::open(spec.state.as_deref())?,
            digests: Digests::default(),
            appending: Mutex::at(Level::Store, HashMap::new()),
            stale: Mutex::default(),
        })
    }

    /// Has the next scan look at a path.
    fn remember(&self, path: &Path) {
        self.noted.lock().insert(path.to_owned());
    }

    fn take_noted(&self) -> HashSet<PathBuf> {
        std::mem::take(&mut *self.noted.lock())
    }
}

impl Store for Atsf {
    fn kind(&self) -> Kind {
        Kind::Atsf
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn me(&self) -> &str {
        &self.me
    }

    fn dir(&self) -> &Path {
        &self.project
    }

    fn whole_seconds(&self) -> bool {
        false
    }

    fn max_body(&self) -> u64 {
        u64::MAX
    }

    fn default_recipient(&self) -> Option<String> {
        Some(recipient(self.me.as_str()).to_owned())
    }

    fn roles(&self) -> bool {
        true
    }

    fn origins(&self) -> bool {
        true
    }

    fn empty_threads(&self) -> Vec<EmptyThread> {
        self.table.read().empty()
    }

    fn note(&self, path: &Path) {
        self.remember(path);
    }

    fn scan(&self, full: bool, sink: &mut dyn Sink) -> Result<(), StoreError> {
        let mut listed = self.scanning.lock();
        scan::scan(self, &mut listed, full, sink);
        Ok(())
    }

    fn is_failing(&self) -> bool {
        self.fault.is_set()
    }

    fn save(&self) -> Vec<u8> {
        self.table.read().save()
    }

    fn restore(&self, saved: &[u8]) -> bool {
        let Some(table) = Table::restore(saved) else { return false };
        // The folders are walked again: only what has changed since is read.
        *self.scanning.lock() = false;
        *self.table.write() = table;
        true
    }

    fn reset(&self) {
        let mut listed = self.scanning.lock();
        *listed = false;
        *self.table.write() = Table::default();
        *self.repository.lock() = Repository::default();
        self.take_noted();
    }

    fn watched(&self) -> Vec<PathBuf> {
        self.watched_folders()
    }

    fn concerns(&self, folder: &Path, name: &OsStr) -> bool {
        self.is_of_concern(folder, name)
    }

    fn health(&self) -> Vec<String> {
        self.health_lines()
    }

    fn remarks(&self) -> Vec<String> {
        self.lost_lines()
    }

    fn source_path(&self, source: u32) -> Option<String> {
        self.path_of_source(source)
    }

    fn read(&self, at: &Location) -> Result<Record, StoreError> {
        self.read_message(at)
    }

    fn read_bytes(&self, at: &Location, limit: usize) -> Result<Vec<u8>, StoreError> {
        self.bytes_at(at, limit)
    }

    fn open_part(&self, at: &Location, name: &str) -> Result<Part, StoreError> {
        self.open_piece(at, name)
    }

    fn fits(&self, address: &str) -> Fit {
        let word = !address.is_empty() && address.len() <= 255 && one_line(address) == address;
        if word { Fit::Via } else { Fit::No }
    }

    fn registered(&self, address: &str) -> bool {
        // A project always has a user and an agent, also before either has written, and the agent
        // may be called by its id.
        address != self.me && self.fits(address) != Fit::No
    }

    fn carries(&self, _files: &[(String, u64)]) -> Result<(), StoreError> {
        // Every file can be an asset; how large one may be is for the mount to say.
        Ok(())
    }

    fn prepare(&self, draft: &Draft, with: &Preparing<'_>) -> Result<Vec<Prepared>, StoreError> {
        self.prepare_draft(draft, with)
    }

    fn appendable(&self, bytes: u64) -> Result<(), StoreError> {
        super::fs::room_for(&self.project, bytes).map_err(|e| StoreError::io(&self.project, e))
    }

    fn append(&self, message: &Prepared) -> Result<(), StoreError> {
        let mut refused = self.appending.lock();
        self.append_prepared(message, &mut refused)
    }

    fn repeats(&self) -> bool {
        true
    }

    fn deliver(&self) -> Result<bool, StoreError> {
        let _one = self.appending.lock();
        self.refresh_stale()
    }

    fn sync(&self) -> Result<(), StoreError> {
        // An append waits for the disk itself: the lock is held until it has.
        Ok(())
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

    fn repair(&self) -> Result<Vec<String>, StoreError> {
        let _one = self.appending.lock();
        self.repair_threads()
    }

    fn check(
        &self,
        verify: &dyn Fn(&Claim) -> Option<String>,
        report: &mut dyn FnMut(Violation),
    ) -> Result<(), StoreError> {
        self.check_threads(verify, report);
        Ok(())
    }
}
