//! A store in memory, for the tests of the tree: messages with files and reply links, and texts.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::model::locks::Mutex;

use crate::model::{Attachment, Claim, Draft, Message, Timestamp};
use crate::store::{
    EmptyThread, Fit, Found, Kind, Location, Note, Notebook, Part, Prepared, Preparing, RawEntry,
    Record, Rejected, Sink, Store, StoreError, Violation,
};

/// A message, and the bytes of its files in the order of its attachments.
#[derive(Clone, Debug, Default)]
pub(super) struct Letter {
    pub message: Message,
    pub body_if_valid: Option<String>,
    pub claim: Option<Claim>,
    pub files: Vec<Vec<u8>>,
    pub from_me: bool,
    /// The store's own mark.
    pub read: Option<bool>,
    pub wants_ack: bool,
    pub note: Option<String>,
}

/// One per source number; `Err` holds why something is refused.
type Slot = Result<Letter, String>;

#[derive(Debug, Default)]
pub(super) struct TestStore {
    pub name: String,
    pub letters: Mutex<Vec<Slot>>,
    pub book: Option<TestBook>,
    /// Files are given as files of this folder.
    pub on_disk: Option<PathBuf>,
    pub reads: AtomicUsize,
    pub carries: bool,
    pub remarks: Vec<String>,
    /// Thread ids may carry labels, and threads are not made of links.
    pub origins: bool,
    pub empty: Mutex<Vec<EmptyThread>>,
    /// Acknowledgements that were given or tried, by number of the letter.
    pub acks: Mutex<Vec<u32>>,
    /// What the next acknowledgements give before one succeeds.
    pub ack_fails: Mutex<Vec<StoreError>>,
    pub deliveries: AtomicUsize,
}

/// Texts and their times, by folder and name.
type Kept = BTreeMap<(String, String), (Vec<u8>, Timestamp)>;

/// Texts, and what was written, in order.
#[derive(Debug, Default)]
pub(super) struct TestBook {
    pub texts: Mutex<Kept>,
    pub written: Mutex<Vec<(String, String)>>,
    pub full: AtomicBool,
}

impl TestBook {
    pub fn put(&self, folder: &str, name: &str, text: &str) {
        let mut texts = self.texts.lock();
        let time = Timestamp::from_secs(1_000 + texts.len() as i64);
        texts.insert((folder.into(), name.into()), (text.into(), time));
    }

    pub fn get(&self, folder: &str, name: &str) -> Option<String> {
        let texts = self.texts.lock();
        let (text, _) = texts.get(&(folder.to_owned(), name.to_owned()))?;
        Some(String::from_utf8(text.clone()).unwrap())
    }
}

impl Notebook for TestBook {
    fn folders(&self) -> &'static [&'static str] {
        &["notes", "plans"]
    }

    fn list(&self, folder: &str) -> Vec<Note> {
        let texts = self.texts.lock();
        let of = texts.iter().filter(|((f, _), _)| f == folder);
        of.map(|((_, name), (text, time))| Note {
            name: name.clone(),
            size: text.len() as u64,
            modified: *time,
        })
        .collect()
    }

    fn read(&self, folder: &str, name: &str) -> io::Result<Vec<u8>> {
        let texts = self.texts.lock();
        let text = texts.get(&(folder.to_owned(), name.to_owned()));
        text.map(|(text, _)| text.clone()).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn check_name(&self, _folder: &str, name: &str) -> Result<(), StoreError> {
        if name.strip_suffix(".txt").is_some() {
            return Ok(());
        }
        Err(StoreError::Invalid(format!("{name}: names of texts end in .txt")))
    }

    fn write(&self, folder: &str, name: &str, text: &[u8]) -> Result<(), StoreError> {
        self.check_name(folder, name)?;
        if self.full.load(Ordering::Relaxed) {
            let full = io::Error::from_raw_os_error(libc::ENOSPC);
            return Err(StoreError::io(Path::new(name), full));
        }
        self.put(folder, name, &String::from_utf8_lossy(text));
        self.written.lock().push((name.to_owned(), String::from_utf8_lossy(text).into_owned()));
        Ok(())
    }
}

fn found(n: usize, letter: &Letter) -> Found<'_> {
    let m = &letter.message;
    Found {
        at: Location { source: n as u32, offset: 0, len: 1 },
        from: m.from.as_deref().unwrap_or_default().into(),
        to: m.to.join(", ").into(),
        thread: m.thread.as_deref().unwrap_or_default().into(),
        answers: m.in_reply_to.as_deref().map(Into::into),
        id: m.id.as_str().into(),
        time: m.time,
        to_me: !letter.from_me,
        from_me: letter.from_me,
        read: letter.read,
        noted: letter.note.is_some(),
        parts: !m.attachments.is_empty(),
        claim: letter.claim.clone().map(Box::new),
        path: format!("inbox/letter{n}.json").into(),
        ..Found::default()
    }
}

impl TestStore {
    pub fn letter(&self, n: u32) -> Result<Letter, StoreError> {
        let letters = self.letters.lock();
        letters.get(n as usize).and_then(|l| l.clone().ok()).ok_or(StoreError::Moved)
    }

    pub fn change(&self, n: usize, change: impl FnOnce(&mut Letter)) {
        change(self.letters.lock()[n].as_mut().unwrap());
    }
}

impl Store for TestStore {
    fn kind(&self) -> Kind {
        Kind::Amp
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn me(&self) -> &'static str {
        "me"
    }

    fn dir(&self) -> &Path {
        Path::new("/")
    }

    fn whole_seconds(&self) -> bool {
        false
    }

    fn max_body(&self) -> u64 {
        1 << 20
    }

    fn links(&self) -> bool {
        !self.origins
    }

    fn origins(&self) -> bool {
        self.origins
    }

    fn empty_threads(&self) -> Vec<EmptyThread> {
        self.empty.lock().clone()
    }

    fn acknowledge(&self, at: &Location) -> Result<(), StoreError> {
        self.acks.lock().push(at.source);
        if let Some(why) = self.ack_fails.lock().pop() {
            return Err(why);
        }
        self.change(at.source as usize, |l| (l.wants_ack, l.read) = (false, Some(true)));
        Ok(())
    }

    fn delivers(&self) -> bool {
        true
    }

    fn deliver(&self) -> Result<bool, StoreError> {
        self.deliveries.fetch_add(1, Ordering::Relaxed);
        Ok(false)
    }

    fn scan(&self, _full: bool, sink: &mut dyn Sink) -> Result<(), StoreError> {
        let letters = self.letters.lock().clone();
        let sources: Vec<u32> = (0..letters.len() as u32).collect();
        sink.begin_rescan(&sources);
        let good = letters.iter().enumerate().filter_map(|(n, l)| Some(found(n, l.as_ref().ok()?)));
        let bad = letters.iter().enumerate().filter_map(|(n, l)| {
            Some(Rejected {
                at: Location { source: n as u32, offset: 0, len: 1 },
                path: format!("inbox/letter{n}.json"),
                reason: l.as_ref().err()?.clone(),
                time: Timestamp::from_secs(5),
                ..Rejected::default()
            })
        });
        sink.batch(&mut good.collect(), &mut bad.collect());
        sink.end_rescan(&sources);
        Ok(())
    }

    fn save(&self) -> Vec<u8> {
        Vec::new()
    }

    fn restore(&self, _saved: &[u8]) -> bool {
        true
    }

    fn reset(&self) {}

    fn watched(&self) -> Vec<PathBuf> {
        Vec::new()
    }

    fn concerns(&self, _folder: &Path, _name: &OsStr) -> bool {
        false
    }

    fn health(&self) -> Vec<String> {
        Vec::new()
    }

    fn remarks(&self) -> Vec<String> {
        self.remarks.clone()
    }

    fn notebook(&self) -> Option<&dyn Notebook> {
        self.book.as_ref().map(|b| b as &dyn Notebook)
    }

    fn source_path(&self, source: u32) -> Option<String> {
        Some(format!("inbox/letter{source}.json"))
    }

    fn read(&self, at: &Location) -> Result<Record, StoreError> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        let Letter { message, body_if_valid, claim, wants_ack, note, .. } =
            self.letter(at.source)?;
        Ok(Record { message, body_if_valid, claim, wants_ack, note, ..Record::default() })
    }

    fn read_bytes(&self, _at: &Location, limit: usize) -> Result<Vec<u8>, StoreError> {
        Ok(b"half a letter".iter().copied().take(limit).collect())
    }

    fn open_part(&self, at: &Location, name: &str) -> Result<Part, StoreError> {
        let letter = self.letter(at.source)?;
        let number = letter.message.attachments.iter().position(|a| a.name == name);
        let bytes = number.and_then(|n| letter.files.get(n)).cloned();
        let bytes =
            bytes.ok_or_else(|| StoreError::io(Path::new(name), io::ErrorKind::NotFound.into()))?;
        let Some(dir) = &self.on_disk else { return Ok(Part::Bytes(bytes.into())) };
        let path = dir.join(name);
        let written = std::fs::write(&path, &bytes).and_then(|()| File::open(&path));
        Ok(Part::File(written.map_err(|e| StoreError::io(&path, e))?))
    }

    fn canonical(&self, address: &str) -> String {
        address.to_lowercase()
    }

    fn fits(&self, _address: &str) -> Fit {
        Fit::Plain
    }

    fn registered(&self, address: &str) -> bool {
        address == "registered"
    }

    fn carries(&self, _files: &[(String, u64)]) -> Result<(), StoreError> {
        if self.carries { Ok(()) } else { Err(StoreError::Invalid("text only".into())) }
    }

    fn prepare(&self, _: &Draft, _: &Preparing<'_>) -> Result<Vec<Prepared>, StoreError> {
        Err(StoreError::Refused("this store takes nothing".into()))
    }

    fn appendable(&self, _bytes: u64) -> Result<(), StoreError> {
        Ok(())
    }

    fn append(&self, _message: &Prepared) -> Result<(), StoreError> {
        Err(StoreError::Refused("this store takes nothing".into()))
    }

    fn sync(&self) -> Result<(), StoreError> {
        Ok(())
    }

    fn raw_list(&self, folder: &str) -> Option<Vec<RawEntry>> {
        folder.is_empty().then(Vec::new)
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

/// A letter to me with these files.
pub(super) fn letter(id: &str, secs: i64, files: &[(&str, &str)]) -> Letter {
    let attachments = files.iter().map(|(name, text)| Attachment {
        name: (*name).to_owned(),
        size: text.len() as u64,
        withheld: None,
    });
    let message = Message {
        from: Some("bob@x".into()),
        to: vec!["me".into()],
        time: Timestamp::from_secs(secs),
        thread: Some(id.to_owned()),
        id: id.to_owned(),
        attachments: attachments.collect(),
        body: "hello".into(),
        ..Message::default()
    };
    let files = files.iter().map(|(_, text)| text.as_bytes().to_vec()).collect();
    Letter { message, files, ..Letter::default() }
}

/// As [`Store`] trait objects.
pub(super) fn as_stores(stores: &[Arc<TestStore>]) -> Vec<Arc<dyn Store>> {
    stores.iter().map(|s| Arc::clone(s) as Arc<dyn Store>).collect()
}
