//! What a store is asked, of files.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::format::{Format, What};
use super::table::Table;
use super::{Files, Memory};
use crate::model::Timestamp;
use crate::store::{
    About, Advice, Facets, Listener, Location, RawEntry, Record, Report, Sink, Store, StoreError,
    Verify,
};
use crate::store::{fs, parallel};

impl<F: Format> Store for Files<F> {
    fn about(&self) -> &About {
        &self.about
    }

    fn facets(&self) -> Facets<'_> {
        F::facets(self)
    }

    fn look_at_state(&self, dir: &Path) -> Result<(), StoreError> {
        self.changed.read(dir)
    }

    fn note(&self, path: &Path) {
        self.noted.lock().insert(path.to_owned());
    }

    fn is_failing(&self) -> bool {
        self.health.fault.is_set()
    }

    fn scan(&self, full: bool, sink: &mut dyn Sink) -> Result<(), StoreError> {
        self.scan_files(full, sink)
    }

    fn save(&self) -> Vec<u8> {
        let basis = self.memory.lock().basis;
        // What is mine is not the same for somebody else.
        [self.me().as_bytes(), &self.table.read().save(F::TAG, basis)].concat()
    }

    fn restore(&self, saved: &[u8]) -> bool {
        let saved = saved.strip_prefix(self.me().as_bytes());
        let restored = saved.and_then(|saved| Table::restore(saved, F::TAG));
        let Some((table, basis)) = restored else { return false };
        // The folders are listed again: only what has changed since is read.
        self.replace(table, Memory { basis, is_listed: false });
        true
    }

    fn reset(&self) {
        self.replace(Table::default(), Memory::default());
        self.noted.lock().clear();
    }

    fn watched(&self) -> Vec<PathBuf> {
        self.watched_folders()
    }

    fn tell_listed(&self, listener: Arc<dyn Listener>) {
        let _ = self.listener.set(listener);
    }

    fn concerns(&self, folder: &Path, name: &OsStr) -> bool {
        let path = folder.join(name);
        if self.about.dir.starts_with(&path) {
            return true;
        }
        let Ok(inside) = path.strip_prefix(&self.about.dir) else {
            return self.format.concerns_besides(&path);
        };
        let parts: Option<Vec<&str>> = inside.iter().map(OsStr::to_str).collect();
        // A name that is not UTF-8 is told of, where others would be messages.
        let Some(parts) = parts else { return self.is_listed(inside.parent()) };
        match self.format.what(&parts, rustix::fs::FileType::Unknown) {
            What::Folder | What::Message | What::Beside(_) | What::Group(_) | What::Around => true,
            What::Strange(_) | What::Nothing => false,
        }
    }

    fn missed(&self) -> Option<String> {
        let missed = self.health.missed(&self.about.dir);
        // Or an earlier process has read something of it.
        let read = || !self.table.read().is_empty();
        missed.or_else(|| fs::away_line(&self.about.dir).filter(|_| read()))
    }

    fn health(&self) -> Vec<String> {
        F::health(self)
    }

    fn remarks(&self) -> Vec<String> {
        F::remarks(self)
    }

    fn advice(&self) -> Vec<Advice> {
        F::advice(self)
    }

    fn source_path(&self, source: u32) -> Option<String> {
        self.table.read().path(source)
    }

    fn read(&self, at: &Location) -> Result<Record, StoreError> {
        F::record(self, at)
    }

    fn read_many(&self, at: &[Location], each: &mut dyn FnMut(usize, Record)) {
        let records = parallel::map(at, |at| self.read(at).ok());
        for (number, record) in records.into_iter().enumerate() {
            if let Some(record) = record {
                each(number, record);
            }
        }
    }

    fn read_bytes(&self, at: &Location, limit: usize) -> Result<Vec<u8>, StoreError> {
        Ok(self.bytes(&self.file(at.source)?, limit)?.1)
    }

    fn raw_list(&self, folder: &str) -> Option<Vec<RawEntry>> {
        self.list_raw(folder)
    }

    fn raw_look(&self, path: &str) -> Option<RawEntry> {
        self.look_raw(path)
    }

    fn raw_newest(&self, folder: &str) -> Option<Timestamp> {
        self.newest_raw(folder)
    }

    fn raw_open(&self, path: &str) -> io::Result<File> {
        self.open_raw(path)
    }

    fn check(&self, verify: Verify<'_>, report: Report<'_>) -> Result<(), StoreError> {
        F::check(self, verify, report)
    }
}
