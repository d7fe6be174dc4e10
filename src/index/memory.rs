//! A store in memory for tests: one file a message, reply links, marks in the files.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;

use crate::model::locks::{Level, Mutex};
use ed25519_dalek::{Signer as _, SigningKey};

use super::entry::{Entry, MsgIx};
use super::{Changes, Index, Settings};
use crate::identity::Keyring;
use crate::model::{Claim, ClaimScope, Covered, Draft, Message, PublicKey, Timestamp, Unsigned};
use crate::store::{
    Again, EmptyThread, Fit, Found, Kind, Location, Prepared, Preparing, RawEntry, Record, Sink,
    Store, StoreError, Violation,
};

/// The folder as all processes see it.
#[derive(Debug, Default)]
pub(super) struct Folder {
    files: BTreeMap<u32, (u64, Found<'static>)>,
    versions: u64,
    /// What was told, and what is answered to that.
    pub told: Vec<(u32, bool)>,
    pub answer: Answer,
    /// Addresses are roles.
    pub roles: bool,
    /// Files are lines of logs: `Some(true)` if what is said again counts.
    pub lines: Option<bool>,
    /// Threads without messages.
    pub empty: Vec<EmptyThread>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Answer {
    /// The mark is written into the file.
    #[default]
    Noted,
    CannotNote,
    Fails,
    Busy,
    /// The file has become another one first.
    Moves,
}

impl Folder {
    /// Writes or replaces a file.
    pub fn put(&mut self, source: u32, mut found: Found<'static>) {
        self.versions += 1;
        found.at.source = source;
        (found.line, found.again) = match self.lines {
            None => (0, Again::Restated),
            Some(false) => (u64::from(source) + 1, Again::Same),
            Some(true) => (u64::from(source) + 1, Again::Rewritten),
        };
        found.path = format!("inbox/{source}.txt").into();
        self.files.insert(source, (self.versions, found));
    }

    pub fn edit(&mut self, source: u32, edit: impl FnOnce(&mut Found<'static>)) {
        let mut found = self.files[&source].1.clone();
        edit(&mut found);
        self.put(source, found);
    }

    pub fn remove(&mut self, source: u32) {
        self.files.remove(&source);
    }

    pub fn file(&self, source: u32) -> &Found<'static> {
        &self.files[&source].1
    }
}

/// What [`Store::tell`] does first.
type Hook = Box<dyn Fn() + Send + Sync>;

/// One process's view of the folder.
pub(super) struct Memory {
    pub folder: Arc<Mutex<Folder>>,
    /// Versions of the files as they were reported.
    seen: Mutex<BTreeMap<u32, u64>>,
    pub on_tell: Mutex<Option<Hook>>,
}

impl std::fmt::Debug for Memory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Memory")
    }
}

impl Memory {
    pub fn new(folder: &Arc<Mutex<Folder>>) -> Arc<Self> {
        let folder = Arc::clone(folder);
        Arc::new(Self {
            folder,
            seen: Mutex::at(Level::Store, BTreeMap::new()),
            on_tell: Mutex::at(Level::File, None),
        })
    }
}

/// A message to me.
pub(super) fn message(from: &str, id: &str, secs: i64) -> Found<'static> {
    Found {
        at: Location { source: 0, offset: 0, len: 100 },
        from: from.to_owned().into(),
        to: "me".into(),
        thread: id.to_owned().into(),
        id: id.to_owned().into(),
        time: Timestamp::from_secs(secs),
        to_me: true,
        read: Some(false),
        ..Found::default()
    }
}

/// The same, in answer to another and signed.
pub(super) fn reply(from: &str, id: &str, secs: i64, to: &str, seed: u8) -> Found<'static> {
    let answers = Some(Cow::Owned(to.to_owned()));
    let claim = Some(Box::new(signed(seed, ClaimScope::Whole)));
    Found { answers, claim, ..message(from, id, secs) }
}

pub(super) fn public(seed: u8) -> PublicKey {
    PublicKey(SigningKey::from_bytes(&[seed; 32]).verifying_key().to_bytes())
}

pub(super) fn signed(seed: u8, scope: ClaimScope) -> Claim {
    let text = b"text".to_vec();
    Claim::Signed {
        key: Some(public(seed)),
        signature: SigningKey::from_bytes(&[seed; 32]).sign(&text).to_bytes(),
        covered: Covered::one(text),
        scope,
    }
}

impl Store for Memory {
    fn kind(&self) -> Kind {
        Kind::Amp
    }

    fn name(&self) -> &'static str {
        "memory"
    }

    fn me(&self) -> &'static str {
        "me"
    }

    fn dir(&self) -> &Path {
        Path::new("/memory")
    }

    fn whole_seconds(&self) -> bool {
        false
    }

    fn max_body(&self) -> u64 {
        u64::MAX
    }

    fn links(&self) -> bool {
        self.folder.lock().lines.is_none()
    }

    fn roles(&self) -> bool {
        self.folder.lock().roles
    }

    fn empty_threads(&self) -> Vec<EmptyThread> {
        self.folder.lock().empty.clone()
    }

    fn scan(&self, _full: bool, sink: &mut dyn Sink) -> Result<(), StoreError> {
        let files = self.folder.lock().files.clone();
        let mut seen = self.seen.lock();
        let changed: BTreeSet<u32> = files
            .iter()
            .filter(|(source, (version, _))| seen.get(source) != Some(version))
            .map(|(source, _)| *source)
            .chain(seen.keys().copied().filter(|source| !files.contains_key(source)))
            .collect();
        if changed.is_empty() {
            return Ok(());
        }
        let changed: Vec<u32> = changed.into_iter().collect();
        sink.begin_rescan(&changed);
        for some in changed.chunks(3) {
            let found = some.iter().filter_map(|source| Some(files.get(source)?.1.clone()));
            sink.batch(&mut found.collect(), &mut Vec::new());
        }
        sink.end_rescan(&changed);
        *seen = files.iter().map(|(source, (version, _))| (*source, *version)).collect();
        Ok(())
    }

    fn save(&self) -> Vec<u8> {
        serde_json::to_vec(&*self.seen.lock()).unwrap()
    }

    fn restore(&self, saved: &[u8]) -> bool {
        *self.seen.lock() = serde_json::from_slice(saved).unwrap();
        true
    }

    fn reset(&self) {
        self.seen.lock().clear();
    }

    fn watched(&self) -> Vec<std::path::PathBuf> {
        Vec::new()
    }

    fn concerns(&self, _folder: &Path, _name: &std::ffi::OsStr) -> bool {
        true
    }

    fn health(&self) -> Vec<String> {
        Vec::new()
    }

    fn source_path(&self, source: u32) -> Option<String> {
        Some(format!("inbox/{source}.txt"))
    }

    fn read(&self, at: &Location) -> Result<Record, StoreError> {
        let folder = self.folder.lock();
        let (_, found) = folder.files.get(&at.source).ok_or(StoreError::Moved)?;
        let message = Message { id: found.id.to_string(), ..Message::default() };
        Ok(Record { message, claim: found.claim.as_deref().cloned(), ..Record::default() })
    }

    fn read_bytes(&self, _at: &Location, _limit: usize) -> Result<Vec<u8>, StoreError> {
        Ok(Vec::new())
    }

    fn fits(&self, _address: &str) -> Fit {
        Fit::Plain
    }

    fn registered(&self, _address: &str) -> bool {
        false
    }

    fn prepare(&self, _: &Draft, _: &Preparing<'_>) -> Result<Vec<Prepared>, StoreError> {
        Err(StoreError::Refused("this store is for reading".into()))
    }

    fn appendable(&self, _bytes: u64) -> Result<(), StoreError> {
        Ok(())
    }

    fn append(&self, _message: &Prepared) -> Result<(), StoreError> {
        Err(StoreError::Refused("this store is for reading".into()))
    }

    fn tell(&self, at: &Location, read: bool) -> Result<bool, StoreError> {
        if let Some(hook) = &*self.on_tell.lock() {
            hook();
        }
        let mut folder = self.folder.lock();
        folder.told.push((at.source, read));
        match folder.answer {
            Answer::CannotNote => return Ok(false),
            Answer::Fails => return Err(StoreError::Refused("read-only".into())),
            Answer::Busy => return Err(StoreError::Busy("later".into())),
            Answer::Moves => {
                folder.answer = Answer::Noted;
                folder.edit(at.source, |f| f.at.len += 1);
                return Err(StoreError::Moved);
            }
            Answer::Noted => {}
        }
        if folder.file(at.source).at.len != at.len {
            return Err(StoreError::Moved);
        }
        folder.edit(at.source, |f| {
            f.read = Some(read);
            f.at.len += 1;
        });
        Ok(true)
    }

    fn sync(&self) -> Result<(), StoreError> {
        Ok(())
    }

    fn raw_list(&self, _folder: &str) -> Option<Vec<RawEntry>> {
        None
    }

    fn raw_open(&self, _path: &str) -> io::Result<File> {
        Err(io::ErrorKind::NotFound.into())
    }

    fn check(
        &self,
        _verify: &dyn Fn(&Claim) -> Option<String>,
        _report: &mut dyn FnMut(Violation),
    ) -> Result<(), StoreError> {
        Ok(())
    }
}

/// A mailbox over one such store, which can be closed and opened again.
pub(super) struct Bed {
    pub dir: tempfile::TempDir,
    pub folder: Arc<Mutex<Folder>>,
    pub unsigned: Unsigned,
    pub my_key: Option<PublicKey>,
}

impl Bed {
    pub fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let folder = Arc::default();
        Self { dir, folder, unsigned: Unsigned::Accept, my_key: None }
    }

    pub fn keyring(&self) -> Keyring {
        Keyring::open(&self.dir.path().join("keyring.json")).unwrap()
    }

    pub fn open(&self) -> Index {
        self.open_with(&Memory::new(&self.folder))
    }

    pub fn open_with(&self, store: &Arc<Memory>) -> Index {
        let settings = Settings {
            marks: self.dir.path().join("marks"),
            snapshot: self.dir.path().join("snapshot"),
            unsigned: self.unsigned,
            read_only: false,
            my_keys: vec![self.my_key],
        };
        let store: Arc<dyn Store> = Arc::clone(store) as _;
        Index::open(vec![store], Arc::new(self.keyring()), settings, &mut |_, _| {}).unwrap()
    }

    pub fn drop_cache(&self) {
        let _ = std::fs::remove_file(self.dir.path().join("snapshot"));
    }

    pub fn put(&self, source: u32, found: Found<'static>) {
        self.folder.lock().put(source, found);
    }

    /// What was told since this was asked last.
    pub fn told(&self) -> Vec<(u32, bool)> {
        std::mem::take(&mut self.folder.lock().told)
    }
}

/// The message with this id.
#[track_caller]
pub(super) fn at(index: &Index, id: &str) -> MsgIx {
    index.read().find_id(0, id).unwrap()
}

/// Its entry.
#[track_caller]
pub(super) fn entry(index: &Index, id: &str) -> Entry {
    let ix = at(index, id);
    *index.read().entry(ix).unwrap()
}

/// The id of its thread.
#[track_caller]
pub(super) fn thread(index: &Index, id: &str) -> String {
    let entry = entry(index, id);
    let core = index.read();
    core.thread_id(entry.thread).unwrap().0.to_owned()
}

/// Everything that is published from now on.
pub(super) fn listen(index: &Index) -> Arc<Mutex<Vec<Changes>>> {
    let heard = Arc::new(Mutex::at(Level::File, Vec::new()));
    let into = Arc::clone(&heard);
    index.subscribe(move |changes| into.lock().push(changes.clone()));
    heard
}
