//! Writing: from a draft to a file in every recipient's mailbox, and claiming what was read
//! (docs/formats/amq.md, sections 4 and 5).
//!
//! Every step happens once or not at all, and made again after a crash only what is missing happens:
//! the file under a temporary name in every `tmp/`, then a rename into every `new/`, then my own copy.

use std::io::{self, Write as _};
use std::os::fd::OwnedFd;

use rustix::fs::RenameFlags;
use serde::Serialize;
use sha2::{Digest as _, Sha256};

use super::Amq;
use super::message::{self, FILE_BYTES, Header, KINDS, Message, PRIORITIES};
use super::queue::{Kept, Place, print};
use crate::model::{Draft, Timestamp, hex, one_line, plain_id};
use crate::store::engine::files::{File, parts};
use crate::store::place::Slot;
use crate::store::{Location, Prepared, Preparing, StoreError, below, fs};

/// Mode of files made here.
const FILE_MODE: u32 = 0o600;

/// The note that a message was read, for its sender.
#[derive(Serialize)]
struct Receipt<'a> {
    schema: u8,
    msg_id: &'a str,
    thread: &'a str,
    sender: &'a str,
    consumer: &'a str,
    stage: &'a str,
    emitted_at: String,
}

/// The kind of an answer to a message of this kind.
fn answering(kind: &str) -> &str {
    match kind {
        "review_request" => "review_response",
        "question" => "answer",
        other => other,
    }
}

fn reply_subject(subject: &str) -> String {
    let subject = subject.trim();
    match subject.get(..3) {
        _ if subject.is_empty() => "Re: (no subject)".to_owned(),
        Some(start) if start.eq_ignore_ascii_case("re:") => subject.to_owned(),
        _ => format!("Re: {subject}"),
    }
}

/// A word of the draft, if it is one of these.
fn word(header: &str, said: Option<&str>, words: &[&str]) -> Result<Option<String>, StoreError> {
    let Some(said) = said.map(str::to_ascii_lowercase) else { return Ok(None) };
    if words.contains(&said.as_str()) {
        return Ok(Some(said));
    }
    let all = words.join(", ");
    Err(StoreError::Invalid(format!("{header}: {:?} is none of {all}", one_line(&said))))
}

/// The thread of a first message between these.
fn new_thread(me: &str, to: &[String]) -> String {
    let mut all: Vec<&str> = to.iter().map(String::as_str).chain([me]).collect();
    all.sort_unstable();
    all.dedup();
    let kind = if to.len() == 1 { "p2p" } else { "msgfs" };
    match all.as_slice() {
        [only] => format!("{kind}/{only}__{only}"),
        all => format!("{kind}/{}", all.join("__")),
    }
}

impl Amq {
    /// Whether a handle has a mailbox here.
    pub(super) fn has_mailbox(&self, handle: &str) -> bool {
        let inbox = ["agents", handle, "inbox", "new"];
        message::is_handle(handle) && below::open_dir(&self.files.dir, &inbox).is_ok()
    }

    /// One message for all recipients. Writes nothing.
    pub(super) fn make(&self, draft: &Draft, with: &Preparing<'_>) -> Result<Prepared, StoreError> {
        let mut to: Vec<String> = draft.to.iter().chain(&draft.cc).cloned().collect();
        to.sort_unstable();
        to.dedup();
        for handle in &to {
            self.require_mailbox(handle)?;
        }
        let parent = draft.in_reply_to.as_deref().map(plain_id).and_then(|id| self.by_id(id));
        if parent.as_ref().is_some_and(|parent| parent.is_routed && draft.is_reply) {
            let why =
                "the message came by another queue (reply_to), and msgfs answers in its own only";
            let error = io::Error::new(io::ErrorKind::CrossesDevices, why);
            return Err(StoreError::io(&self.files.dir, error));
        }
        let kind = word("Type", draft.kind.as_deref(), &KINDS)?;
        let answered = parent.as_ref().and_then(|p| p.kind.as_deref()).map(answering);
        let kind = kind.or_else(|| answered.map(str::to_owned));
        let priority = word("Priority", draft.priority.as_deref(), &PRIORITIES)?;
        let priority = priority.or_else(|| kind.as_ref().map(|_| "normal".to_owned()));
        let subject = match (&draft.subject, &parent) {
            (Some(subject), _) => subject.clone(),
            (None, Some(parent)) => reply_subject(parent.subject.as_deref().unwrap_or_default()),
            (None, None) => String::new(),
        };
        let thread = draft.thread.as_deref().map(plain_id).or(parent.as_ref().map(|p| &*p.thread));
        let thread = thread.map_or_else(|| new_thread(self.me(), &to), str::to_owned);
        if thread.trim() != thread || thread.is_empty() {
            let why = "Thread: begins or ends with white space, which no thread here does";
            return Err(StoreError::Invalid(why.into()));
        }
        let refs: Vec<String> =
            parent.into_iter().flat_map(|p| [p.refs, vec![p.id]].concat()).collect();
        let id = loop {
            let mut chance = [0; 4];
            getrandom::fill(&mut chance)
                .map_err(|e| StoreError::io(&self.files.dir, io::Error::other(e)))?;
            let id = message::new_id(with.now, chance);
            if !(with.taken)(&id) {
                break id;
            }
        };
        let header = Header {
            schema: 1,
            id: &id,
            from: self.me(),
            to: &to,
            thread: &thread,
            subject: &subject,
            created: message::time_text(with.now),
            refs: &refs,
            priority: priority.as_deref(),
            kind: kind.as_deref(),
            idem: draft.idempotency_key.as_deref(),
            key: message::key_text(&with.signer.public_key()),
            sig: None,
        };
        let bytes = message::compose(header, &draft.body, |bytes| with.signer.sign(bytes));
        if bytes.len() > FILE_BYTES {
            let why = "the message is larger than 10 MiB, which no program here takes";
            return Err(StoreError::TooLarge(why.into()));
        }
        Ok(Prepared { to: to.join(", "), id, thread, bytes, files: Vec::new() })
    }

    fn require_mailbox(&self, handle: &str) -> Result<(), StoreError> {
        let shown = one_line(handle);
        if !message::is_handle(handle) {
            return Err(StoreError::Invalid(format!(
                "{shown:?} is not a handle: it takes lower-case letters, digits, '_' and '-'"
            )));
        }
        if self.has_mailbox(handle) {
            return Ok(());
        }
        Err(StoreError::Unreachable(format!(
            "{shown} has no mailbox in {}, and msgfs makes none for others",
            self.files.dir.display()
        )))
    }

    /// A message of mine by its id.
    fn by_id(&self, id: &str) -> Option<Message> {
        let found = self.files.table.read().with_key(0, print(id.as_bytes()));
        let parse = |n: u32| {
            message::parse(&self.files.bytes(&self.files.file(n).ok()?, FILE_BYTES).ok()?.1).ok()
        };
        found.into_iter().find_map(parse).filter(|message| message.id == id)
    }

    /// Puts a message into the mailboxes of all recipients, and my copy into `outbox/sent`.
    pub(super) fn deliver_prepared(&self, prepared: &Prepared) -> Result<(), StoreError> {
        let bytes = prepared.bytes.as_bytes();
        let parsed = message::parse(bytes)
            .map_err(|e| StoreError::Refused(format!("the message cannot be appended: {e}")))?;
        let name = format!("{}.md", parsed.id);
        let mut ready = Vec::new();
        for to in &parsed.to {
            self.require_mailbox(to)?;
            let new = self.leaf(to, "inbox/new")?;
            // Claimed by now: whoever puts it into `new/` again stops every later reader.
            let there = [&self.leaf(to, "inbox/cur")?, &new]
                .into_iter()
                .find_map(|dir| same(dir, &name, bytes));
            match there {
                Some(true) => {}
                Some(false) => return Err(self.taken(to, &name)),
                None => {
                    let tmp = self.leaf(to, "inbox/tmp")?;
                    let temp = self.put_aside(&tmp, &parsed, to, bytes)?;
                    ready.push((to, tmp, temp, new));
                }
            }
        }
        for (to, tmp, temp, new) in &ready {
            let io = |e: io::Error| StoreError::io(&self.path(to, "inbox/new").join(&name), e);
            match rustix::fs::renameat_with(tmp, temp, new, &name, RenameFlags::NOREPLACE) {
                Err(rustix::io::Errno::EXIST) => {
                    if same(new, &name, bytes) != Some(true) {
                        return Err(self.taken(to, &name));
                    }
                    rustix::fs::unlinkat(tmp, temp, rustix::fs::AtFlags::empty())
                        .map_err(|e| io(e.into()))?;
                }
                done => done.map_err(|e| io(e.into()))?,
            }
            fs::sync(new).and_then(|()| fs::sync(tmp)).map_err(io)?;
            self.files.note(&self.path(to, "inbox/new").join(&name));
        }
        let sent = self.leaf(self.me(), "outbox/sent")?;
        self.put(&sent, &name, bytes)
            .map_err(|e| StoreError::io(&self.path(self.me(), "outbox/sent"), e))?;
        self.files.note(&self.path(self.me(), "outbox/sent").join(&name));
        Ok(())
    }

    fn taken(&self, to: &str, name: &str) -> StoreError {
        let path = self.path(to, "inbox").join(name);
        StoreError::Refused(format!("{}: another message has this name", path.display()))
    }

    fn path(&self, agent: &str, leaf: &str) -> std::path::PathBuf {
        self.files.dir.join("agents").join(agent).join(leaf)
    }

    /// Opens a folder of a mailbox.
    pub(super) fn leaf(&self, agent: &str, leaf: &str) -> Result<OwnedFd, StoreError> {
        let path = [&["agents", agent], parts(leaf).as_slice()].concat();
        below::open_dir(&self.files.dir, &path)
            .map_err(|e| StoreError::io(&self.path(agent, leaf), e))
    }

    /// Writes the message under its temporary name.
    fn put_aside(
        &self,
        tmp: &OwnedFd,
        message: &Message,
        to: &str,
        bytes: &[u8],
    ) -> Result<String, StoreError> {
        let digest: [u8; 32] = Sha256::digest([bytes, to.as_bytes()].concat()).into();
        let chance = hex(digest.get(..6).unwrap_or_default());
        let nanos = i128::from(message.created.millis()) * 1_000_000;
        let (id, pid) = (&message.id, std::process::id());
        let temp = format!(".{id}.md.tmp-{nanos}-{pid}-{chance}");
        self.put(tmp, &temp, bytes)
            .map_err(|e| StoreError::io(&self.path(to, "inbox/tmp").join(&temp), e))?;
        Ok(temp)
    }

    /// Makes a file, on disk with its name when this returns. One that is there is from an attempt that
    /// was interrupted.
    fn put(&self, dir: &OwnedFd, name: &str, bytes: &[u8]) -> io::Result<()> {
        match Slot::below(dir, name)?.fill(FILE_MODE, |file| file.write_all(bytes)) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
            done => done?,
        }
        fs::sync(dir)
    }

    /// Claims a message of mine that was read, and tells its sender by a receipt; whether it is claimed.
    pub(super) fn claim(&self, at: &Location) -> Result<bool, StoreError> {
        let file: File<Kept> = self.files.file(at.source)?;
        let place = self.files.format.place(&file.folder);
        if !matches!(place, Some(Place::New | Place::Cur)) {
            return Ok(false);
        }
        let (_, bytes) = self.files.bytes(&file, FILE_BYTES)?;
        let read = message::parse(&bytes).map_err(|_| StoreError::Moved)?;
        if print(&bytes) != file.facts.content {
            return Err(StoreError::Moved);
        }
        let me = self.me();
        if place == Some(Place::New) {
            let (new, cur) = (self.leaf(me, "inbox/new")?, self.leaf(me, "inbox/cur")?);
            let io = |e: io::Error| StoreError::io(&self.path(me, "inbox/new").join(&file.name), e);
            match rustix::fs::renameat_with(
                &new,
                &file.name,
                &cur,
                &file.name,
                RenameFlags::NOREPLACE,
            ) {
                // In both: see [`Amq::pairs`]. It is left alone.
                Err(rustix::io::Errno::EXIST) => return Ok(false),
                // Somebody else claimed it.
                Err(rustix::io::Errno::NOENT) => return Err(StoreError::Moved),
                done => done.map_err(|e| io(e.into()))?,
            }
            fs::sync(&cur).and_then(|()| fs::sync(&new)).map_err(io)?;
            self.files.note(&self.path(me, "inbox/new").join(&file.name));
            self.files.note(&self.path(me, "inbox/cur").join(&file.name));
        }
        let receipt = Receipt {
            schema: 1,
            msg_id: &read.id,
            thread: &read.thread,
            sender: &read.from,
            consumer: me,
            stage: "drained",
            emitted_at: message::time_text(Timestamp::now()),
        };
        let (name, text) = (format!("{}__{me}__drained.json", read.id), message::print(&receipt));
        let put = self.put(&self.leaf(me, "receipts")?, &name, format!("{text}\n").as_bytes());
        put.map_err(|e| StoreError::io(&self.path(me, "receipts").join(&name), e))?;
        Ok(true)
    }
}

/// Whether a file holds these bytes; `None` if there is none.
fn same(dir: &OwnedFd, name: &str, bytes: &[u8]) -> Option<bool> {
    let read = below::open_file(dir, name).and_then(|f| below::read_whole(&f, FILE_BYTES + 1));
    match read {
        Err(e) if e.kind() == io::ErrorKind::NotFound => None,
        read => Some(read.is_ok_and(|(_, there)| there == bytes)),
    }
}
