//! AMP/1.0: records of tasks between roles, one immutable JSON file a message in a shared folder,
//! the SSOT (docs/formats/ssot.md).
//!
//! The format, as functions without I/O:
//! - [`words`], [`tree`], [`schema`], [`rules`], [`envelope`]: what a message is and which rule it
//!   breaks. [`text`]: how it reads. `sign`: what a signature covers.
//! - `state`: what the messages of a task add up to.
//!
//! The store on top of it:
//! - `folder`: the files of an SSOT. `task`: one task as it is on disk, and `tasks/`.
//! - `format`: what its files are, and what the messages of each task add up to.
//! - `read`: one message in full. `send`: new ones. `acks`, `resume`, `errors_log`: what else is
//!   written. `status`, `check`: the rest.

mod acks;
mod check;
pub mod envelope;
mod errors_log;
mod folder;
mod format;
mod read;
mod resume;
pub mod rules;
pub mod schema;
mod send;
mod sign;
mod state;
mod status;
mod task;
pub mod text;
pub mod tree;
pub mod words;

#[cfg(test)]
mod tests;

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use super::engine::files::Files;
use super::{
    Fit, Kind, Location, Prepared, Preparing, RawEntry, Record, Sink, Spec, Store, StoreError,
    Violation,
};
use crate::model::{Claim, Draft, Timestamp, one_line};
use format::Tasks;
use words::Role;

/// The SSOT as one role sees it.
pub struct Ssot {
    name: String,
    files: Files<Tasks>,
}

impl std::fmt::Debug for Ssot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ssot")
            .field("dir", &self.files.dir)
            .field("role", &self.tasks().role)
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
        let files = Files::new(spec.dir.clone(), Tasks::new(spec.dir.clone(), role));
        Ok(Self { name: spec.name.clone(), files })
    }

    fn tasks(&self) -> &Tasks {
        &self.files.format
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
        self.tasks().role.as_str()
    }

    fn dir(&self) -> &Path {
        &self.files.dir
    }

    fn whole_seconds(&self) -> bool {
        false
    }

    fn max_body(&self) -> u64 {
        // The file has the envelope besides, and is printed with blanks.
        (envelope::FILE_BYTES / 2) as u64
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

    /// What is mine, and what I have to log, is not the same for another role.
    fn save(&self) -> Vec<u8> {
        [self.me().as_bytes(), &self.files.save()].concat()
    }

    fn restore(&self, saved: &[u8]) -> bool {
        saved.strip_prefix(self.me().as_bytes()).is_some_and(|saved| self.files.restore(saved))
    }

    fn reset(&self) {
        self.files.reset();
        self.tasks().reset();
    }

    fn watched(&self) -> Vec<PathBuf> {
        self.files.watched()
    }

    fn written(&self) -> Vec<PathBuf> {
        vec![self.files.dir.join(folder::TASKS)]
    }

    fn concerns(&self, folder: &Path, name: &OsStr) -> bool {
        self.files.concerns(folder, name)
    }

    fn health(&self) -> Vec<String> {
        self.health_lines()
    }

    fn remarks(&self) -> Vec<String> {
        self.remark_lines(Timestamp::now())
    }

    fn source_path(&self, source: u32) -> Option<String> {
        self.files.table.read().path(source)
    }

    fn read(&self, at: &Location) -> Result<Record, StoreError> {
        self.read_message(at)
    }

    fn read_bytes(&self, at: &Location, limit: usize) -> Result<Vec<u8>, StoreError> {
        self.files.bytes_at(at, limit)
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
        self.files.raw_list(folder)
    }

    fn raw_newest(&self, folder: &str) -> Option<Timestamp> {
        self.files.raw_newest(folder)
    }

    fn raw_open(&self, path: &str) -> io::Result<File> {
        self.files.raw_open(path)
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
