//! The part of the engine that depends on messages being files.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::time::Instant;

use super::copies::digest_content;
use super::format::{FileFormat, PathRole};
use super::table::{FileFacts, FileFlags, FileTable};
use super::{FileStore, GRACE, scan};
use crate::store::engine::Engine;
use crate::store::engine::sources::ScanMemory;
use crate::store::{
    ClaimVerifier, Location, MessageReader, Record, ScanSink, Store as _, StoreError,
    ViolationReporter, parallel,
};

impl<F: FileFormat> Engine for FileStore<F> {
    fn load_reader_state(&self, dir: &Path) -> Result<(), StoreError> {
        self.reader.tamper_log.load_notes(dir)?;
        self.reader.qualifier_log.load_notes(dir)?;
        self.format.load_state(dir)
    }

    fn find_due_time(&self) -> Option<Instant> {
        let unfinished = self.reader.unfinished.lock();
        unfinished.values().map(|file| file.since + GRACE).min()
    }

    fn scan_sources(
        &self,
        memory: &mut ScanMemory,
        full: bool,
        sink: &mut dyn ScanSink,
    ) -> Result<(), StoreError> {
        scan::scan_files(self, memory, full, sink)
    }

    fn save_table(&self) -> Vec<u8> {
        let basis = self.memory.lock().basis;
        // My messages are not the same for somebody else.
        [self.me().as_bytes(), &self.table.read().to_bytes(F::TAG, basis)].concat()
    }

    fn replace_table(&self, saved: Option<&[u8]>) -> Option<u64> {
        let (table, basis) = match saved {
            Some(saved) => {
                FileTable::from_bytes(saved.strip_prefix(self.me().as_bytes())?, F::TAG)?
            }
            None => (FileTable::default(), 0),
        };
        self.format.note_restored_table(&table);
        self.reader.unfinished.lock().clear();
        *self.table.write() = table;
        Some(basis)
    }

    fn has_earlier_sources(&self) -> bool {
        !self.table.read().is_empty()
    }

    fn source_folders(&self) -> Vec<PathBuf> {
        let dir = &self.properties.dir;
        // For a store that is not there yet, this is the nearest folder that is.
        let above = dir.ancestors().find(|folder| folder.is_dir());
        let mut out: Vec<PathBuf> = above.map(Path::to_owned).into_iter().collect();
        if above == Some(dir) {
            out.extend(self.folders_by_age().into_iter().map(|path| dir.join(path)));
        }
        out
    }

    fn is_source_name(&self, folder: &Path, name: &OsStr) -> bool {
        let path = folder.join(name);
        if self.properties.dir.starts_with(&path) {
            return true;
        }
        let Ok(inside) = path.strip_prefix(&self.properties.dir) else { return false };
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

    fn list_remarks(&self) -> Vec<String> {
        F::remarks(self)
    }

    fn default_health(&self) -> Vec<String> {
        let gone = self.describe_missing_folder();
        // Without its folder, nothing else is missing.
        let missing = if gone.is_none() { F::describe_missing(self) } else { None };
        let lines = gone.into_iter().chain(self.fault_lines());
        lines.chain(self.unwatched_line()).chain(missing).collect()
    }
}

impl<F: FileFormat> MessageReader for FileStore<F> {
    fn source_path(&self, source: u32) -> Option<String> {
        self.table.read().path(source)
    }

    fn read_record(&self, at: &Location) -> Result<Record, StoreError> {
        F::read_record(self, at)
    }

    fn lacks_text(&self, at: &Location) -> bool {
        let (table, n) = (self.table.read(), at.source);
        let is_broken = table.row(n).is_some_and(|row| row.has_flag(FileFlags::BROKEN));
        is_broken && !table.last_texts.contains_key(&n) && self.format.last_text(n).is_none()
            || table.facts(n).is_some_and(FileFacts::is_held)
    }

    fn read_records(&self, at: &[Location], each: &mut dyn FnMut(usize, Record)) {
        let records = parallel::map(at, |at| F::read_record(self, at).ok());
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

    fn check(
        &self,
        verify: ClaimVerifier<'_>,
        report: ViolationReporter<'_>,
    ) -> Result<(), StoreError> {
        F::check_files(self, verify, report)
    }
}
