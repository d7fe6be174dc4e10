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
use std::num::NonZeroUsize;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use lru::LruCache;
use parking_lot::{Mutex, RwLock};

pub use super::{json, pytext};

use super::fs::{self, Stamp};
use super::{
    Fit, Kind, Location, Prepared, Preparing, RawEntry, Record, Sink, Spec, Store, StoreError,
    Violation, Watermark,
};
use crate::model::{Claim, Draft, Message, Timestamp};
use alias::LogName;
use sources::{Directory, Known, Sources};

/// Open files kept for reading messages again.
const OPEN_FILES: NonZeroUsize = NonZeroUsize::MIN.saturating_add(63);

/// A SAMP folder, read and written as one alias.
pub struct SampStore {
    name: String,
    dir: PathBuf,
    me: String,
    sources: Mutex<Sources>,
    directory: Directory,
    /// What the last scan found wrong.
    trouble: RwLock<Vec<String>>,
    files: Mutex<LruCache<u32, (Stamp, Arc<File>)>>,
    /// Serialises appends of this process to the one log it owns; set while the log is new and its
    /// name may not be on disk.
    appending: Mutex<bool>,
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
        std::fs::create_dir_all(dir).map_err(|e| StoreError::io(dir, e))?;
        std::fs::read_dir(dir).map_err(|e| StoreError::io(dir, e))?;
        let sources = Sources::default();
        Ok(Self {
            directory: Arc::clone(&sources.directory),
            trouble: RwLock::default(),
            name: spec.name.clone(),
            dir: dir.to_owned(),
            me: me.clone(),
            sources: Mutex::new(sources),
            files: Mutex::new(LruCache::new(OPEN_FILES)),
            appending: Mutex::new(false),
        })
    }

    fn log_path(&self) -> PathBuf {
        self.dir.join(format!("log-{}.jsonl", self.me))
    }

    /// The file a source stands for, opened at most once as long as it is not replaced.
    fn open_source(&self, source: u32) -> Result<Arc<File>, StoreError> {
        let (path, scanned) = {
            let directory = self.directory.read();
            let found = directory.get(source as usize).ok_or(StoreError::Moved)?;
            (self.dir.join(&found.file_name), found.stamp)
        };
        if let Some((stamp, file)) = self.files.lock().get(&source)
            && stamp.same_file(&scanned)
        {
            return Ok(Arc::clone(file));
        }
        let file = fs::open_regular(&path).map_err(|e| StoreError::io(&path, e))?;
        let stamp = Stamp::of(&file).map_err(|e| StoreError::io(&path, e))?;
        let file = Arc::new(file);
        self.files.lock().put(source, (stamp, Arc::clone(&file)));
        Ok(file)
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
        let done = scan::scan(&self.dir, &self.me, &mut sources, sink);
        self.trouble.write().clone_from(&sources.trouble);
        done
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
        if !self.dir.is_dir() {
            return vec!["the folder is gone; a message sent now makes it again".to_owned()];
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
        let mut new = self.appending.lock();
        *new |= append::append(&self.dir, &self.log_path(), &message.bytes)?;
        Ok(())
    }

    fn sync(&self) -> Result<(), StoreError> {
        let mut new = self.appending.lock();
        append::sync(&self.dir, &self.log_path(), *new)?;
        *new = false;
        Ok(())
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
