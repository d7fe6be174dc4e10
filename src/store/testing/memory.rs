//! A store in memory: one file per message, with reply links, marks, files, acknowledgements, appends that can be
//! repeated, and deliveries that can fail.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use super::Texts;
use super::folder::{Folder, Letter, MarkBehavior, path_of};
use crate::model::locks::{LockLevel, Mutex};
use crate::model::{Attachment, Draft, Message, Seed, Timestamp};
use crate::store::{
    AddressFit, Advice, AnswerScheme, ClaimVerifier, DeliveryQueue, EmptyThread, Facets, Kind,
    Location, MessageAppender, MessageReader, PartContent, PartReader, PrepareContext,
    PreparedRecord, RawEntry, RawTree, Record, Rejection, ScanSink, Store, StoreDirectory,
    StoreError, StoreKeys, StoreMarks, StoreProperties, ThreadScheme, ViolationReporter,
};

/// A function that a call of the store calls first.
type Hook = Box<dyn Fn() + Send + Sync>;

/// One process's view of the folder.
pub struct Memory {
    pub about: StoreProperties,
    pub folder: Arc<Mutex<Folder>>,
    /// The versions of the files as they were reported.
    pub seen: Mutex<BTreeMap<u32, u64>>,
    /// For [`StoreMarks::write_mark`].
    pub on_tell: Mutex<Option<Hook>>,
    /// For [`MessageAppender::is_registered`].
    pub on_ask: OnceLock<Hook>,
    /// The texts that it keeps for me.
    pub book: Option<Texts>,
}

impl std::fmt::Debug for Memory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Memory")
    }
}

impl Memory {
    /// Returns a store of this name over a folder, in which I am `me`.
    pub fn new(name: &str, me: &str, folder: &Arc<Mutex<Folder>>) -> Self {
        let mut of = folder.lock();
        me.clone_into(&mut of.me);
        let threads = match of.lines {
            _ if of.origins => ThreadScheme::Labels,
            None => ThreadScheme::Links,
            Some(_) => ThreadScheme::Ids,
        };
        let about = StoreProperties {
            kind: Kind::Amp,
            name: name.to_owned(),
            me: me.to_owned(),
            further_addresses: of.further_addresses.clone(),
            dir: "/memory".into(),
            threads,
            answers: AnswerScheme::default(),
            holds_transcripts: false,
            uses_roles: of.roles,
            offers_keys: false,
            shows_mounted: false,
            whole_seconds: false,
            max_body: 1000,
            headers: of.headers,
            default_recipient: of.whom,
            recipient_in: of.whole.then_some(recipient_in),
            can_repeat_appends: true,
            locks_threads: true,
            attachment_rule: (!of.text_only).then_some(carries),
            signed_text: None,
            durability: crate::store::Durability::default(),
            state: None,
        };
        Self {
            about,
            folder: Arc::clone(folder),
            seen: Mutex::with_level(LockLevel::Store, BTreeMap::new()),
            on_tell: Mutex::with_level(LockLevel::File, None),
            on_ask: OnceLock::new(),
            book: None,
        }
    }

    /// Returns the store of another process over the same folder.
    pub fn again(&self) -> Arc<Self> {
        Arc::new(Self::new(self.name(), self.me(), &self.folder))
    }

    /// Puts a message there, as another program would.
    pub fn receive(&self, from: &str, to: &[&str], id: &str, secs: i64, answers: Option<&str>) {
        let message = Message {
            from: Some(from.to_owned()),
            to: to.iter().map(|t| (*t).to_owned()).collect(),
            time: Timestamp::from_secs(secs),
            subject: Some(format!("about {id}")),
            in_reply_to: answers.map(str::to_owned),
            id: id.to_owned(),
            body: format!("text of {id}"),
            ..Message::default()
        };
        self.folder.lock().push(Letter { message, ..Letter::default() });
    }

    /// Returns the messages that I sent.
    pub fn sent(&self) -> Vec<Letter> {
        let folder = self.folder.lock();
        let mine = folder.letters().filter(|l| l.message.from.as_deref() == Some(self.me()));
        mine.cloned().collect()
    }
}

fn recipient_in(text: &str) -> Option<String> {
    let text: serde_json::Value = serde_json::from_str(text).ok()?;
    Some(text.get("to")?.as_str()?.to_owned())
}

fn carries(files: &[(String, u64)]) -> Result<(), StoreError> {
    match files.iter().find(|(_, size)| *size > 1000) {
        Some((name, _)) => Err(StoreError::TooLarge(format!("{name} is too large"))),
        None => Ok(()),
    }
}

impl Store for Memory {
    fn properties(&self) -> &StoreProperties {
        &self.about
    }

    fn facets(&self) -> Facets<'_> {
        Facets {
            appender: Some(self),
            deliveries: Some(self),
            keys: Some(self),
            marks: Some(self),
            directory: Some(self),
            parts: Some(self),
            notebook: self.book.as_ref().map(|book| book as _),
            ..Facets::default()
        }
    }

    fn note_change(&self, _path: &Path) {}

    fn is_failing(&self) -> bool {
        false
    }

    fn due_time(&self) -> Option<Instant> {
        (self.folder.lock().unfinished > 0).then(Instant::now)
    }

    fn scan(&self, _full: bool, sink: &mut dyn ScanSink) -> Result<(), StoreError> {
        self.folder.lock().require_here()?;
        self.folder.lock().come_nearer_to_end();
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
            let (mut found, mut rejected) = (Vec::new(), Vec::new());
            for source in some {
                match files.get(source) {
                    Some((_, Ok((one, _)))) => found.push(one.clone()),
                    Some((_, Err(reason))) => rejected.push(Rejection {
                        at: Location { source: *source, offset: 0, len: 1 },
                        path: path_of(*source),
                        reason: reason.clone(),
                        time: Timestamp::from_secs(5),
                        ..Rejection::default()
                    }),
                    None => {}
                }
            }
            sink.report_batch(&mut found, &mut rejected);
        }
        sink.end_rescan(&changed);
        *seen = files.iter().map(|(source, (version, _))| (*source, *version)).collect();
        Ok(())
    }

    fn save_cursors(&self) -> Vec<u8> {
        serde_json::to_vec(&*self.seen.lock()).unwrap()
    }

    fn restore_cursors(&self, saved: &[u8]) -> bool {
        *self.seen.lock() = serde_json::from_slice(saved).unwrap();
        true
    }

    fn reset_cursors(&self) {
        self.seen.lock().clear();
    }

    fn folders_to_watch(&self) -> Vec<PathBuf> {
        Vec::new()
    }

    fn is_relevant(&self, _folder: &Path, _name: &OsStr) -> bool {
        true
    }

    fn describe_missing_folder(&self) -> Option<String> {
        None
    }

    fn health(&self) -> Vec<String> {
        Vec::new()
    }

    fn remarks(&self) -> Vec<String> {
        self.folder.lock().remarks.clone()
    }

    fn advice(&self) -> Vec<Advice> {
        Vec::new()
    }
}

impl MessageReader for Memory {
    fn source_path(&self, source: u32) -> Option<String> {
        Some(path_of(source))
    }

    fn read_record(&self, at: &Location) -> Result<Record, StoreError> {
        let mut folder = self.folder.lock();
        folder.reads += 1;
        let letter = folder.letter(at.source)?.clone();
        let Letter { message, body_if_valid, claim, wants_ack, note, .. } = letter;
        let is_my_name_unproven = letter.is_my_name_unproven;
        let record = Record { message, body_if_valid, claim, wants_ack, note, ..Record::default() };
        Ok(Record { is_my_name_unproven, ..record })
    }

    fn read_bytes(&self, _at: &Location, limit: usize) -> Result<Vec<u8>, StoreError> {
        Ok(b"half a letter".iter().copied().take(limit).collect())
    }

    fn check(
        &self,
        _verify: ClaimVerifier<'_>,
        _report: ViolationReporter<'_>,
    ) -> Result<(), StoreError> {
        Ok(())
    }
}

impl RawTree for Memory {
    fn list_raw_folder(&self, folder: &str) -> Option<Vec<RawEntry>> {
        folder.is_empty().then(Vec::new)
    }

    fn stat_raw_entry(&self, _path: &str) -> Option<RawEntry> {
        None
    }

    fn newest_raw_time(&self, _folder: &str) -> Option<Timestamp> {
        None
    }

    fn open_raw_file(&self, _path: &str) -> io::Result<File> {
        Err(io::ErrorKind::NotFound.into())
    }
}

impl MessageAppender for Memory {
    fn canonical_address(&self, address: &str) -> String {
        let lower = address.to_ascii_lowercase();
        let bare = self.folder.lock().providers && !lower.contains('@');
        if bare { format!("{lower}@acme.crabmail.ai") } else { lower }
    }

    fn address_fit(&self, address: &str) -> AddressFit {
        let folder = self.folder.lock();
        match address.split_once('@') {
            _ if !folder.providers => AddressFit::Plain,
            Some((_, host)) if host.contains('.') => AddressFit::Exact,
            None if folder.only_via => AddressFit::Via,
            None if address.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b)) => {
                AddressFit::Plain
            }
            _ => AddressFit::No,
        }
    }

    fn is_registered(&self, address: &str) -> bool {
        if let Some(hook) = self.on_ask.get() {
            hook();
        }
        let known = ["registered", "agent@acme.crabmail.ai"];
        known.contains(&self.canonical_address(address).as_str()) || self.folder.lock().only_via
    }

    fn prepare_records(
        &self,
        draft: &Draft,
        with: &PrepareContext<'_>,
    ) -> Result<Vec<PreparedRecord>, StoreError> {
        let mut folder = self.folder.lock();
        if folder.closed {
            return Err(StoreError::Refused("this store takes nothing".into()));
        }
        folder.versions += 1;
        let id = format!("id{}", folder.versions);
        let attachments = draft.attachments.iter().map(|a| Attachment {
            name: a.name.clone(),
            size: a.size,
            withheld: None,
        });
        let message = Message {
            from: Some(self.me().to_owned()),
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
            key: draft.idempotency_key.clone(),
            parent: with.parent.and_then(|p| p.subject.clone()),
            task: draft.task.clone(),
            ..Letter::default()
        };
        folder.prepared.push((id.clone(), letter));
        let thread = draft.thread.clone().unwrap_or_default();
        let to = draft.to.join(", ");
        let bytes = draft.body.clone();
        Ok(vec![PreparedRecord { to, id, thread, bytes, files: draft.attachments.clone() }])
    }

    fn check_appendable(&self, _bytes: u64) -> Result<(), StoreError> {
        let full = || StoreError::io(self.dir(), io::Error::from_raw_os_error(libc::ENOSPC));
        if self.folder.lock().full { Err(full()) } else { Ok(()) }
    }

    fn append_record(&self, message: &PreparedRecord) -> Result<(), StoreError> {
        let mut folder = self.folder.lock();
        folder.appends += 1;
        if let Some(why) = folder.refuses {
            return Err(why());
        }
        if folder.locked.contains(&message.thread) {
            return Err(StoreError::Busy(format!("thread {} is locked", message.thread)));
        }
        if folder.letters().any(|l| l.message.id == message.id) {
            return Ok(());
        }
        let known = folder.prepared.iter().find(|(id, _)| *id == message.id);
        let new = || Letter {
            message: Message {
                from: Some(self.me().to_owned()),
                to: vec![message.to.clone()],
                id: message.id.clone(),
                body: message.bytes.clone(),
                ..Message::default()
            },
            ..Letter::default()
        };
        let mut letter = known.map_or_else(new, |(_, letter)| letter.clone());
        for file in &message.files {
            let bytes = std::fs::read(&file.path).map_err(|e| StoreError::io(&file.path, e))?;
            letter.files.push(bytes);
        }
        folder.push(letter);
        Ok(())
    }
}

impl DeliveryQueue for Memory {
    fn deliver_waiting(&self) -> Result<bool, StoreError> {
        let mut folder = self.folder.lock();
        folder.deliveries += 1;
        if folder.stuck {
            return Err(StoreError::io(Path::new("/x"), io::ErrorKind::StorageFull.into()));
        }
        Ok(false)
    }
}

impl StoreKeys for Memory {
    fn signing_key(&self) -> Result<Option<Seed>, StoreError> {
        let folder = self.folder.lock();
        if folder.keyless {
            return Err(StoreError::NoKey("keys/private.pem is missing".into()));
        }
        Ok(folder.key.clone())
    }

    fn adopt_key(&self, mine: &Seed) -> Result<Seed, StoreError> {
        Ok(self.folder.lock().key.insert(mine.clone()).clone())
    }
}

impl StoreMarks for Memory {
    fn write_mark(&self, at: &Location, read: bool) -> Result<bool, StoreError> {
        if let Some(hook) = &*self.on_tell.lock() {
            hook();
        }
        let mut folder = self.folder.lock();
        folder.told.push((at.source, read));
        match folder.answer {
            MarkBehavior::CannotNote => return Ok(false),
            MarkBehavior::Fails => return Err(StoreError::Refused("read-only".into())),
            MarkBehavior::Busy => return Err(StoreError::Busy("later".into())),
            MarkBehavior::Moves => {
                folder.answer = MarkBehavior::Noted;
                folder.edit(at.source, |f| f.at.len += 1);
                return Err(StoreError::Moved);
            }
            MarkBehavior::Noted => {}
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

    fn acknowledge_message(&self, at: &Location) -> Result<(), StoreError> {
        let mut folder = self.folder.lock();
        folder.acks.push(at.source);
        if let Some(why) = folder.ack_fails.pop() {
            return Err(why);
        }
        folder.change(at.source, |l| (l.wants_ack, l.read) = (false, Some(true)));
        Ok(())
    }
}

impl PartReader for Memory {
    fn open_part(&self, at: &Location, name: &str) -> Result<PartContent, StoreError> {
        let folder = self.folder.lock();
        let letter = folder.letter(at.source)?;
        let number = letter.message.attachments.iter().position(|a| a.name == name);
        let bytes = number.and_then(|n| letter.files.get(n)).cloned();
        let (Some(dir), Some(bytes)) = (&folder.on_disk, &bytes) else {
            return PartContent::from_bytes(name, bytes);
        };
        let path = dir.join(name);
        let written = std::fs::write(&path, bytes).and_then(|()| File::open(&path));
        Ok(PartContent::File(written.map_err(|e| StoreError::io(&path, e))?))
    }
}

impl StoreDirectory for Memory {
    fn empty_threads(&self) -> Vec<EmptyThread> {
        self.folder.lock().empty.clone()
    }
}
