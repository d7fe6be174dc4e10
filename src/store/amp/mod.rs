//! AMP 0.1 (Agent Messaging Protocol): a folder per agent, a JSON file per message.
//!
//! The format, as functions without I/O:
//! - [`envelope`], [`id`], [`address`], [`limits`]: what a file says.
//! - [`verify`], [`wrap`]: what a signature covers. [`scan_text`]: what to warn of.
//! - [`write`](mod@write), [`edit`], [`filename`], [`pem`]: new messages, marks, attachments, keys.
//!
//! The store on top of it:
//! - `agent`, `home`: the agents of this host and which of them is me.
//! - `boxes`, `facts`, `relate`: what its files are, and which of them are one message.
//! - `read`, `parts`: one message in full. `send`: new ones. `status`, `check`: the rest.

pub mod address;
mod agent;
mod boxes;
mod check;
pub mod edit;
pub mod envelope;
mod facts;
pub mod filename;
mod home;
pub mod id;
pub mod limits;
mod parts;
pub mod pem;
mod read;
mod relate;
pub mod scan_text;
mod send;
mod status;
pub mod verify;
pub mod wrap;
pub mod write;

#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use crate::model::locks::{Level, Mutex};

use super::{
    Advice, Fit, Kind, Location, Part, Prepared, Preparing, RawEntry, Record, Sink, Spec, Store,
    StoreError, Violation,
};
use crate::model::{Claim, Draft, PublicKey, Seed, Timestamp};
use crate::store::digest::Digests;
use crate::store::engine::files::Files;
use boxes::Boxes;
use home::{Home, Recipient};

/// The mailbox of one AMP agent.
pub struct Amp {
    name: String,
    /// My address when the store was opened; a later one is used for what is sent later.
    me: String,
    files: Files<Boxes>,
    digests: Digests,
    /// One append at a time; two that make the same folder would wait for each other anyway.
    appending: Mutex<()>,
    /// Folders with new names in them that may not be on disk yet.
    unsynced: Mutex<HashSet<PathBuf>>,
}

impl std::fmt::Debug for Amp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Amp")
            .field("dir", &self.files.dir)
            .field("me", &self.me)
            .finish_non_exhaustive()
    }
}

impl Amp {
    /// Opens the mailbox of the agent that `spec` names. Nothing is made.
    ///
    /// # Errors
    /// If there are no agents at `spec.dir`, or I am none of them or several.
    pub fn open(spec: &Spec) -> Result<Self, StoreError> {
        let home = Home::open(spec)?;
        let me = home.roster()?.me.address.clone();
        let files = Files::new(home.my_dir.clone(), Boxes::new(home));
        Ok(Self {
            name: spec.name.clone(),
            me,
            files,
            digests: Digests::default(),
            appending: Mutex::at(Level::Store, ()),
            unsynced: Mutex::default(),
        })
    }

    fn boxes(&self) -> &Boxes {
        &self.files.format
    }
}

impl Store for Amp {
    fn kind(&self) -> Kind {
        Kind::Amp
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn me(&self) -> &str {
        &self.me
    }

    fn dir(&self) -> &Path {
        &self.files.dir
    }

    fn whole_seconds(&self) -> bool {
        false
    }

    fn max_body(&self) -> u64 {
        limits::BODY_BYTES as u64
    }

    fn links(&self) -> bool {
        true
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

    fn concerns(&self, folder: &Path, name: &OsStr) -> bool {
        self.files.concerns(folder, name)
    }

    fn health(&self) -> Vec<String> {
        self.health_lines()
    }

    fn advice(&self) -> Vec<Advice> {
        self.advice_lines()
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

    fn open_part(&self, at: &Location, name: &str) -> Result<Part, StoreError> {
        self.open_attachment(at, name)
    }

    fn canonical(&self, address: &str) -> String {
        match self.boxes().home.recent() {
            Ok(roster) => roster.canonical(address),
            Err(_) => address.trim().to_ascii_lowercase(),
        }
    }

    fn fits(&self, text: &str) -> Fit {
        let Ok(roster) = self.boxes().home.recent() else { return Fit::No };
        let provider = &roster.default_provider;
        match address::parse(text, &roster.me.tenant, provider) {
            Err(_) => Fit::No,
            Ok(_) if !text.contains('@') => Fit::Plain,
            Ok(a) if address::is_local(&a.provider, provider) => Fit::Exact,
            // Nothing is carried to providers elsewhere, so another store has the first claim.
            Ok(_) if roster.has(&text.trim().to_ascii_lowercase()) => Fit::Exact,
            Ok(_) => Fit::Plain,
        }
    }

    fn registered(&self, address: &str) -> bool {
        let Ok(roster) = self.boxes().home.recent() else { return false };
        // One whose config is broken for a moment is no stranger.
        !matches!(roster.recipient(address), Err(_) | Ok(Recipient::Nobody(_)))
    }

    fn signing_key(&self, _mine: Option<&Seed>) -> Result<Seed, StoreError> {
        status::signing_key(&self.files.dir)
    }

    fn public_key(&self, _mine: Option<PublicKey>) -> Option<PublicKey> {
        Some(status::signing_key(&self.files.dir).ok()?.public_key())
    }

    fn carries(&self, files: &[(String, u64)]) -> Result<(), StoreError> {
        send::carries(files)
    }

    fn prepare(&self, draft: &Draft, with: &Preparing<'_>) -> Result<Vec<Prepared>, StoreError> {
        let roster = self.boxes().home.roster()?;
        send::prepare(&roster, draft, with)
    }

    fn appendable(&self, bytes: u64) -> Result<(), StoreError> {
        self.has_room(bytes)
    }

    fn append(&self, message: &Prepared) -> Result<(), StoreError> {
        let _one = self.appending.lock();
        self.deliver_prepared(message)
    }

    fn repeats(&self) -> bool {
        true
    }

    fn tell(&self, at: &Location, read: bool) -> Result<bool, StoreError> {
        self.mark(at, read)
    }

    fn sync(&self) -> Result<(), StoreError> {
        self.sync_folders()
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
        self.check_boxes(verify, report)
    }
}
