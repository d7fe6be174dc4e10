//! The trait of stores for a store of files.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::copies::digest_content;
use super::format::{FileFormat, PathRole};
use super::table::FileTable;
use super::{FileStore, ScanMemory};
use crate::model::Timestamp;
use crate::store::{
    Advice, ClaimVerifier, Facets, FolderListener, Location, RawEntry, Record, ScanSink, Store,
    StoreError, StoreProperties, ViolationReporter,
};
use crate::store::{fs, parallel};

impl<F: FileFormat> Store for FileStore<F> {
    fn properties(&self) -> &StoreProperties {
        &self.properties
    }

    fn facets(&self) -> Facets<'_> {
        F::facets(self)
    }

    fn read_state(&self, dir: &Path) -> Result<(), StoreError> {
        self.tamper_log.load_notes(dir)
    }

    fn note_change(&self, path: &Path) {
        self.noted.lock().insert(path.to_owned());
    }

    fn is_failing(&self) -> bool {
        self.health.read_fault.is_set()
    }

    fn scan(&self, full: bool, sink: &mut dyn ScanSink) -> Result<(), StoreError> {
        self.scan_files(full, sink)
    }

    fn save_cursors(&self) -> Vec<u8> {
        let basis = self.memory.lock().basis;
        // My messages are not the same for somebody else.
        [self.me().as_bytes(), &self.table.read().to_bytes(F::TAG, basis)].concat()
    }

    fn restore_cursors(&self, saved: &[u8]) -> bool {
        let saved = saved.strip_prefix(self.me().as_bytes());
        let restored = saved.and_then(|saved| FileTable::from_bytes(saved, F::TAG));
        let Some((table, basis)) = restored else { return false };
        // The folders are listed again, and only changed files are read.
        self.replace_table(table, ScanMemory { basis, is_listed: false });
        true
    }

    fn reset_cursors(&self) {
        self.replace_table(FileTable::default(), ScanMemory::default());
        self.noted.lock().clear();
    }

    fn folders_to_watch(&self) -> Vec<PathBuf> {
        self.watched_folders()
    }

    fn set_folder_listener(&self, listener: Arc<dyn FolderListener>) {
        let _ = self.listener.set(listener);
    }

    fn is_relevant(&self, folder: &Path, name: &OsStr) -> bool {
        let path = folder.join(name);
        if self.properties.dir.starts_with(&path) {
            return true;
        }
        let Ok(inside) = path.strip_prefix(&self.properties.dir) else {
            return self.format.is_relevant_outside(&path);
        };
        let parts: Option<Vec<&str>> = inside.iter().map(OsStr::to_str).collect();
        // A name that is not UTF-8 is relevant in the folders of messages.
        let Some(parts) = parts else { return self.is_folder_listed(inside.parent()) };
        match self.format.determine_role(&parts, rustix::fs::FileType::Unknown) {
            PathRole::Folder
            | PathRole::Message
            | PathRole::Companion(_)
            | PathRole::Group(_)
            | PathRole::Context => true,
            PathRole::Unexpected(_) | PathRole::Nothing => false,
        }
    }

    fn describe_missing_folder(&self) -> Option<String> {
        let missed = self.health.describe_missing_folder(&self.properties.dir);
        // An earlier process may have read something of it.
        let read = || !self.table.read().is_empty();
        missed.or_else(|| fs::missing_folder_line(&self.properties.dir).filter(|_| read()))
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

    fn read_record(&self, at: &Location) -> Result<Record, StoreError> {
        F::read_record(self, at)
    }

    fn read_records(&self, at: &[Location], each: &mut dyn FnMut(usize, Record)) {
        let records = parallel::map(at, |at| self.read_record(at).ok());
        for (number, record) in records.into_iter().enumerate() {
            if let Some(record) = record {
                each(number, record);
            }
        }
    }

    fn read_bytes(&self, at: &Location, limit: usize) -> Result<Vec<u8>, StoreError> {
        Ok(self.read_file_bytes(&self.find_file(at.source)?, limit)?.1)
    }

    fn content_digest(&self, at: &Location) -> Result<[u8; 32], StoreError> {
        Ok(digest_content::<F>(&self.read_bytes(at, F::LONGEST)?))
    }

    fn list_raw_folder(&self, folder: &str) -> Option<Vec<RawEntry>> {
        self.list_raw(folder)
    }

    fn stat_raw_entry(&self, path: &str) -> Option<RawEntry> {
        self.stat_raw(path)
    }

    fn newest_raw_time(&self, folder: &str) -> Option<Timestamp> {
        self.newest_raw(folder)
    }

    fn open_raw_file(&self, path: &str) -> io::Result<File> {
        self.open_raw(path)
    }

    fn check(
        &self,
        verify: ClaimVerifier<'_>,
        report: ViolationReporter<'_>,
    ) -> Result<(), StoreError> {
        F::check_files(self, verify, report)
    }
}
