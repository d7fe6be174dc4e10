//! SAMP v1: a shared folder with one append-only JSON-lines log per writer.
//!
//! - [`json`], [`canonical`], [`record`]: one line, its members, its id.
//! - [`thread`], [`alias`], [`pytext`]: the rules for names and derived threads.
//! - `scan`: following the logs as they grow, are replaced, truncated and synced.
//! - `seen`: the read position that other readers of the folder share.
//! - `append`: the one write that this module ever makes to a log, its own.

pub mod alias;
mod append;
pub mod canonical;
mod check;
pub mod record;
mod scan;
mod seen;
mod sources;
pub mod thread;

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::model::locks::{Level, Mutex, RwLock};

pub use super::{json, pytext};

use super::fs::{self, Fault, Stamp};
use super::{
    Fit, Kind, Location, Prepared, Preparing, RawEntry, Record, Sink, Spec, Store, StoreError,
    Violation, Watermark,
};
use crate::model::{Claim, Draft, Message, Timestamp};
use alias::LogName;
use sources::{Directory, Known, Sources};

/// A SAMP folder, read and written as one alias.
pub struct SampStore {
    name: String,
    dir: PathBuf,
    me: String,
    sources: Mutex<Sources>,
    directory: Directory,
    /// What the last scan found wrong.
    trouble: RwLock<Vec<String>>,
    /// Something could not be read by the last scan.
    fault: Fault,
    /// Serialises appends of this process to the one log it owns; set while the log is new and its
    /// name may not be on disk.
    appending: Mutex<append::Unsynced>,
}

impl std::fmt::Debug for SampStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SampStore")
            .field("dir", &self.dir)
            .field("me", &self.me)
            .finish_non_exhaustive()
    }
}

impl SampStore {
    /// Opens the folder, creating it as the reference does (`mkdir -p`) if it is missing.
    ///
    /// # Errors
    /// If the folder cannot be created or read, or `me` is not a SAMP alias.
    pub fn open(spec: &Spec) -> Result<Self, StoreError> {
        let (dir, me) = (spec.dir.as_path(), spec.as_me.as_ref().unwrap_or(&spec.me));
        if !alias::is_valid(me) {
            return Err(StoreError::Invalid(bad_alias(me)));
        }
        fs::make_dirs(dir, 0o777).map_err(|e| StoreError::io(dir, e))?;
        std::fs::read_dir(dir).map_err(|e| StoreError::io(dir, e))?;
        let sources = Sources::default();
        let store = Self {
            directory: Arc::clone(&sources.directory),
            trouble: RwLock::default(),
            name: spec.name.clone(),
            dir: dir.to_owned(),
            me: me.clone(),
            sources: Mutex::at(Level::Store, sources),
            fault: Fault::default(),
            appending: Mutex::at(Level::Store, append::Unsynced::default()),
        };
        if spec.state.is_some()
            && let Err(error) = append::end_torn(&store.log_path())
        {
            // The next append ends it.
            tracing::debug!(%error, "the end of my log cannot be looked at");
        }
        Ok(store)
    }

    fn log_path(&self) -> PathBuf {
        self.dir.join(format!("log-{}.jsonl", self.me))
    }

    /// Opens the file a source stands for. It is never kept open: that would keep its disk from being
    /// unmounted.
    fn open_source(&self, source: u32) -> Result<File, StoreError> {
        let path = {
            let directory = self.directory.read();
            let found = directory.get(source as usize).ok_or(StoreError::Moved)?;
            self.dir.join(&found.file_name)
        };
        fs::open_regular(&path).map_err(|e| StoreError::io(&path, e))
    }
}

/// Why a name cannot be an alias, for people.
fn bad_alias(name: &str) -> String {
    format!(
        "{:?} is not a SAMP alias: it takes letters, digits, '.', '_' and '-', begins with a letter \
         or digit and has at most 64 characters",
        crate::model::one_line(name)
    )
}

impl Store for SampStore {
    fn kind(&self) -> Kind {
        Kind::Samp
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn me(&self) -> &str {
        &self.me
    }

    fn dir(&self) -> &Path {
        &self.dir
    }

    fn whole_seconds(&self) -> bool {
        true
    }

    fn max_body(&self) -> u64 {
        u64::MAX
    }

    fn scan(&self, _full: bool, sink: &mut dyn Sink) -> Result<(), StoreError> {
        let mut sources = self.sources.lock();
        let done = scan::scan(&self.dir, &self.me, &mut sources, &self.fault, sink);
        self.trouble.write().clone_from(&sources.trouble);
        done
    }

    fn is_failing(&self) -> bool {
        self.fault.is_set()
    }

    fn save(&self) -> Vec<u8> {
        self.sources.lock().save()
    }

    fn restore(&self, saved: &[u8]) -> bool {
        self.sources.lock().restore(saved)
    }

    fn reset(&self) {
        self.sources.lock().reset();
    }

    fn watched(&self) -> Vec<PathBuf> {
        vec![self.dir.clone()]
    }

    fn concerns(&self, _folder: &Path, name: &OsStr) -> bool {
        let bytes = name.as_bytes();
        (bytes.starts_with(b"log-") && bytes.ends_with(b".jsonl"))
            || bytes.strip_prefix(b".seen-") == Some(self.me.as_bytes())
    }

    fn health(&self) -> Vec<String> {
        if let Some(gone) = fs::away_line(&self.dir) {
            return vec![format!("{gone}; a message sent now makes it again")];
        }
        self.trouble.read().clone()
    }

    fn source_path(&self, source: u32) -> Option<String> {
        self.directory.read().get(source as usize).map(|k| k.file_name.clone())
    }

    fn read(&self, at: &Location) -> Result<Record, StoreError> {
        if at.len as usize > fs::MAX_RECORD {
            return Err(StoreError::Moved);
        }
        let bytes = self.read_bytes(at, at.len as usize)?;
        if bytes.len() != at.len as usize {
            return Err(StoreError::Moved);
        }
        let line = String::from_utf8_lossy(&bytes);
        let mut scratch = record::Scratch::default();
        let parsed = record::parse(&line, &mut scratch).map_err(|_| StoreError::Moved)?;
        let claim = if parsed.has_sig { record::claim(&line) } else { None };
        let owned = |v: &Option<std::borrow::Cow<'_, str>>| v.as_deref().map(str::to_owned);
        let message = Message {
            from: Some(parsed.from.to_string()),
            to: vec![parsed.to.to_string()],
            time: Timestamp::from_secs(parsed.secs),
            subject: owned(&parsed.subject),
            thread: Some(parsed.thread.to_string()),
            in_reply_to: owned(&parsed.re),
            id: parsed.id.to_string(),
            body: parsed.body_text().into_owned(),
            ..Message::default()
        };
        Ok(Record { message, claim, ..Record::default() })
    }

    fn read_bytes(&self, at: &Location, limit: usize) -> Result<Vec<u8>, StoreError> {
        let file = self.open_source(at.source)?;
        let mut bytes = vec![0; limit.min(at.len as usize)];
        let n = fs::read_at_most(&file, &mut bytes, at.offset)
            .map_err(|e| StoreError::io(&self.dir, e))?;
        bytes.truncate(n);
        Ok(bytes)
    }

    fn fits(&self, address: &str) -> Fit {
        // No other kind writes addresses without `@` by itself.
        if alias::is_valid(address) { Fit::Exact } else { Fit::No }
    }

    fn registered(&self, address: &str) -> bool {
        self.directory.read().iter().any(|k| k.alias == address)
    }

    fn prepare(&self, draft: &Draft, with: &Preparing<'_>) -> Result<Vec<Prepared>, StoreError> {
        append::prepare(&self.me, draft, with)
    }

    fn appendable(&self, bytes: u64) -> Result<(), StoreError> {
        append::possible(&self.dir, &self.log_path(), bytes)
    }

    fn append(&self, message: &Prepared) -> Result<(), StoreError> {
        let mut unsynced = self.appending.lock();
        append::append(&self.dir, &self.log_path(), &message.bytes, &mut unsynced)
    }

    fn sync(&self) -> Result<(), StoreError> {
        self.appending.lock().sync(&self.dir, &self.log_path())
    }

    fn has_watermark(&self) -> bool {
        true
    }

    fn watermark(&self) -> Option<Watermark> {
        seen::read(&self.dir, &self.me)
    }

    fn set_watermark(&self, mark: &Watermark) -> Result<Option<Watermark>, StoreError> {
        seen::advance(&self.dir, &self.me, mark)
    }

    fn raw_list(&self, folder: &str) -> Option<Vec<RawEntry>> {
        if !folder.is_empty() {
            return None;
        }
        let directory = self.directory.read();
        let numbered = (0u32..).zip(directory.iter());
        let known = numbered.map(|(n, k)| (k.file_name.as_str(), (n, k))).collect();
        let entries = std::fs::read_dir(&self.dir).ok()?.flatten();
        let mut out: Vec<RawEntry> = entries.filter_map(|e| raw_entry(&e, &known)).collect();
        out.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        Some(out)
    }

    fn raw_newest(&self, folder: &str) -> Option<Timestamp> {
        let directory = self.directory.read();
        let known = directory.iter().filter(|k| folder.is_empty() && k.stamp != Stamp::default());
        known.map(|k| k.last_time.unwrap_or_else(|| on_disk(&k.stamp))).max()
    }

    fn raw_open(&self, path: &str) -> io::Result<File> {
        if alias::classify(path) == LogName::NotALog {
            return Err(io::ErrorKind::NotFound.into());
        }
        fs::open_regular(&self.dir.join(path))
    }

    fn check(
        &self,
        verify: &dyn Fn(&Claim) -> Option<String>,
        report: &mut dyn FnMut(Violation),
    ) -> Result<(), StoreError> {
        check::check(&self.dir, verify, report)
    }
}

fn raw_entry(entry: &std::fs::DirEntry, known: &HashMap<&str, (u32, &Known)>) -> Option<RawEntry> {
    let name = entry.file_name().into_string().ok()?;
    if alias::classify(&name) == LogName::NotALog {
        return None;
    }
    let meta = entry.metadata().ok().filter(std::fs::Metadata::is_file)?;
    let stamp = Stamp::from(&meta);
    let known = known.get(name.as_str());
    Some(RawEntry {
        is_dir: false,
        size: stamp.size,
        // The time of the last record, where there is one, is the same on every machine.
        modified: known.and_then(|(_, k)| k.last_time).unwrap_or_else(|| on_disk(&stamp)),
        source: known.map(|(n, _)| *n),
        name,
    })
}

/// A file's own modification time.
fn on_disk(stamp: &Stamp) -> Timestamp {
    Timestamp::from_millis(i64::try_from(stamp.mtime / 1_000_000).unwrap_or_default())
}
