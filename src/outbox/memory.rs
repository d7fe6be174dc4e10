//! A store in memory, for the tests of the outbox: messages with several recipients, threads of
//! links, attachments, appends that can be repeated, and deliveries that can fail.

use std::borrow::Cow;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::model::locks::Mutex;

use crate::model::{Attachment, Claim, Draft, Message, Seed, Timestamp};
use crate::store::{
    EmptyThread, Fit, Found, Kind, Location, Prepared, Preparing, RawEntry, Record, Sink, Store,
    StoreError, Violation,
};

/// My address in it.
pub(super) const ME: &str = "me@acme.crabmail.ai";

/// One message, as it would lie in a file.
#[derive(Clone, Debug, Default)]
pub(super) struct Letter {
    pub message: Message,
    pub answers: Option<String>,
    pub key: Option<String>,
    /// What its parent's subject was when it was written.
    pub parent: Option<String>,
    /// Contents of its attachments.
    pub files: Vec<Vec<u8>>,
    /// The task its draft named.
    pub task: Option<String>,
}

/// What sets this store apart from one of mailboxes.
#[derive(Clone, Debug, Default)]
pub(super) struct Traits {
    /// Messages carry thread ids, which may carry labels.
    pub origins: bool,
    /// Bare names are only meant if the store is named.
    pub only_via: bool,
    pub headers: &'static [&'static str],
    /// A JSON object is a whole message.
    pub whole: bool,
    /// Threads without messages.
    pub empty: Vec<String>,
    pub whom: Option<String>,
    /// Threads that somebody else keeps locked.
    pub locked: Vec<String>,
}

/// The store. Its switches are public.
#[derive(Debug, Default)]
pub(super) struct Memory {
    pub name: String,
    pub letters: Mutex<Vec<Letter>>,
    /// Drafts that were prepared, by id, until they are appended.
    prepared: Mutex<Vec<(String, Letter)>>,
    scanned: AtomicUsize,
    /// What an append gives, if it fails.
    pub refuses: Mutex<Option<fn() -> StoreError>>,
    /// What a delivery gives, if it fails.
    pub stuck: AtomicBool,
    pub appends: AtomicUsize,
    pub deliveries: AtomicUsize,
    /// The store's own key; none: what a mount offers.
    pub key: Mutex<Option<Seed>>,
    pub keyless: AtomicBool,
    /// There is no room for another message.
    pub full: AtomicBool,
    pub traits: Mutex<Traits>,
    next: AtomicUsize,
}

impl Memory {
    pub fn new(name: &str) -> Self {
        Self { name: name.to_owned(), ..Self::default() }
    }

    /// Puts a message there, as another program would.
    pub fn receive(&self, from: &str, to: &[&str], id: &str, secs: i64, answers: Option<&str>) {
        let message = Message {
            from: Some(from.to_owned()),
            to: to.iter().map(|t| (*t).to_owned()).collect(),
            time: Timestamp::from_secs(secs),
            subject: Some(format!("about {id}")),
            id: id.to_owned(),
            body: format!("text of {id}"),
            ..Message::default()
        };
        let answers = answers.map(str::to_owned);
        self.letters.lock().push(Letter { message, answers, ..Letter::default() });
    }

    pub fn sent(&self) -> Vec<Letter> {
        let letters = self.letters.lock();
        letters.iter().filter(|l| l.message.from.as_deref() == Some(ME)).cloned().collect()
    }
}

impl Store for Memory {
    fn kind(&self) -> Kind {
        Kind::Amp
    }
    fn name(&self) -> &str {
        &self.name
    }
    fn me(&self) -> &str {
        ME
    }
    fn dir(&self) -> &Path {
        Path::new("/nowhere")
    }
    fn whole_seconds(&self) -> bool {
        false
    }
    fn max_body(&self) -> u64 {
        1000
    }
    fn links(&self) -> bool {
        !self.origins()
    }
    fn origins(&self) -> bool {
        self.traits.lock().origins
    }
    fn empty_threads(&self) -> Vec<EmptyThread> {
        let bare = |id: &String| EmptyThread {
            id: id.clone(),
            title: None,
            time: Timestamp::from_secs(5),
        };
        self.traits.lock().empty.iter().map(bare).collect()
    }
    fn headers(&self) -> &'static [&'static str] {
        self.traits.lock().headers
    }
    fn default_recipient(&self) -> Option<String> {
        self.traits.lock().whom.clone()
    }
    fn recipient_in(&self, text: &str) -> Option<String> {
        let whole = self.traits.lock().whole;
        let text: serde_json::Value = whole.then(|| serde_json::from_str(text).ok())??;
        Some(text.get("to")?.as_str()?.to_owned())
    }
    fn repeats(&self) -> bool {
        true
    }
    fn scan(&self, _full: bool, sink: &mut dyn Sink) -> Result<(), StoreError> {
        let letters = self.letters.lock().clone();
        let first = self.scanned.swap(letters.len(), Ordering::Relaxed);
        let found = letters.iter().enumerate().skip(first).map(|(n, l)| {
            let m = &l.message;
            Found {
                at: Location { source: 0, offset: n as u64, len: 1 },
                from: Cow::Borrowed(m.from.as_deref().unwrap_or_default()),
                to: Cow::Owned(m.to.join(", ")),
                thread: Cow::Borrowed(m.thread.as_deref().unwrap_or(&m.id)),
                answers: l.answers.as_deref().map(Cow::Borrowed),
                id: Cow::Borrowed(&m.id),
                time: m.time,
                to_me: m.to.iter().any(|t| t == ME),
                from_me: m.from.as_deref().is_some_and(|f| f == ME || f == "alias@of.me"),
                parts: !m.attachments.is_empty(),
                idempotency_key: l.key.as_deref().map(Into::into),
                ..Found::default()
            }
        });
        sink.batch(&mut found.collect(), &mut Vec::new());
        Ok(())
    }
    fn save(&self) -> Vec<u8> {
        Vec::new()
    }
    fn restore(&self, _saved: &[u8]) -> bool {
        false
    }
    fn reset(&self) {
        self.scanned.store(0, Ordering::Relaxed);
    }
    fn watched(&self) -> Vec<PathBuf> {
        Vec::new()
    }
    fn concerns(&self, _folder: &Path, _name: &std::ffi::OsStr) -> bool {
        false
    }
    fn health(&self) -> Vec<String> {
        Vec::new()
    }
    fn source_path(&self, _source: u32) -> Option<String> {
        Some("memory".into())
    }
    fn read(&self, at: &Location) -> Result<Record, StoreError> {
        let letters = self.letters.lock();
        let letter = letters.get(at.offset as usize).ok_or(StoreError::Moved)?;
        Ok(Record { message: letter.message.clone(), ..Record::default() })
    }
    fn read_bytes(&self, _at: &Location, _limit: usize) -> Result<Vec<u8>, StoreError> {
        Ok(Vec::new())
    }
    fn canonical(&self, address: &str) -> String {
        let lower = address.to_ascii_lowercase();
        if lower.contains('@') { lower } else { format!("{lower}@acme.crabmail.ai") }
    }
    fn fits(&self, address: &str) -> Fit {
        match address.split_once('@') {
            Some((_, host)) if host.contains('.') => Fit::Exact,
            None if self.traits.lock().only_via => Fit::Via,
            None if super::names::is_plain(address) => Fit::Plain,
            _ => Fit::No,
        }
    }
    fn registered(&self, address: &str) -> bool {
        self.canonical(address) == "agent@acme.crabmail.ai"
    }
    fn signing_key(&self, mine: Option<&Seed>) -> Result<Seed, StoreError> {
        if self.keyless.load(Ordering::Relaxed) {
            return Err(StoreError::NoKey("keys/private.pem is missing".into()));
        }
        let own = self.key.lock().clone();
        own.or(mine.cloned()).ok_or_else(|| StoreError::NoKey("there is no signing key".into()))
    }
    fn carries(&self, files: &[(String, u64)]) -> Result<(), StoreError> {
        match files.iter().find(|(_, size)| *size > 1000) {
            Some((name, _)) => Err(StoreError::TooLarge(format!("{name} is too large"))),
            None => Ok(()),
        }
    }
    fn prepare(&self, draft: &Draft, with: &Preparing<'_>) -> Result<Vec<Prepared>, StoreError> {
        let id = format!("id{}", self.next.fetch_add(1, Ordering::Relaxed));
        let attachments = draft.attached.iter().map(|a| Attachment {
            name: a.name.clone(),
            size: a.size,
            withheld: None,
        });
        let message = Message {
            from: Some(ME.to_owned()),
            to: draft.to.clone(),
            cc: draft.cc.clone(),
            time: with.now,
            subject: draft.subject.clone(),
            thread: draft.thread.clone(),
            in_reply_to: draft.in_reply_to.clone(),
            id: id.clone(),
            attachments: attachments.collect(),
            body: draft.body.clone(),
            ..Message::default()
        };
        let letter = Letter {
            message,
            answers: draft.in_reply_to.clone(),
            key: draft.idempotency_key.clone(),
            parent: with.parent.and_then(|p| p.subject.clone()),
            files: Vec::new(),
            task: draft.task.clone(),
        };
        self.prepared.lock().push((id.clone(), letter));
        let thread = draft.thread.clone().unwrap_or_default();
        let to = draft.to.join(", ");
        let bytes = draft.body.clone();
        Ok(vec![Prepared { to, id, thread, bytes, files: draft.attached.clone() }])
    }
    fn appendable(&self, _bytes: u64) -> Result<(), StoreError> {
        let full = || StoreError::io(self.dir(), io::Error::from_raw_os_error(libc::ENOSPC));
        if self.full.load(Ordering::Relaxed) { Err(full()) } else { Ok(()) }
    }
    fn append(&self, message: &Prepared) -> Result<(), StoreError> {
        self.appends.fetch_add(1, Ordering::Relaxed);
        if let Some(why) = *self.refuses.lock() {
            return Err(why());
        }
        if self.traits.lock().locked.contains(&message.thread) {
            return Err(StoreError::Busy(format!("thread {} is locked", message.thread)));
        }
        let known = {
            let prepared = self.prepared.lock();
            prepared.iter().find(|(id, _)| *id == message.id).map(|(_, l)| l.clone())
        };
        let mut letters = self.letters.lock();
        if letters.iter().any(|l| l.message.id == message.id) {
            return Ok(());
        }
        let mut letter = known.unwrap_or_else(|| Letter {
            message: Message {
                from: Some(ME.to_owned()),
                to: vec![message.to.clone()],
                id: message.id.clone(),
                body: message.bytes.clone(),
                ..Message::default()
            },
            ..Letter::default()
        });
        for file in &message.files {
            let bytes = std::fs::read(&file.path).map_err(|e| StoreError::io(&file.path, e))?;
            letter.files.push(bytes);
        }
        letters.push(letter);
        Ok(())
    }
    fn deliver(&self) -> Result<bool, StoreError> {
        self.deliveries.fetch_add(1, Ordering::Relaxed);
        if self.stuck.load(Ordering::Relaxed) {
            return Err(StoreError::io(Path::new("/x"), io::ErrorKind::StorageFull.into()));
        }
        Ok(false)
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
