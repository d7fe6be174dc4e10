//! From a draft to a file in every recipient's mailbox (docs/formats/amq.md, section 4).
//!
//! Each step happens once or not at all, and a repeated append does only the missing steps: the nameless file in every
//! `tmp/`, then its name in every `new/`, then my own copy.

use std::io;

use serde_json::json;

use super::AmqStore;
use super::format::AmqFormat;
use super::message::{self, AmqMessage, FILE_BYTES, KINDS, PRIORITIES, check_word};
use crate::model::{self, Draft, Message, plain_id, reply_subject, sanitize_line};
use crate::store::digest::secure_hash64;
use crate::store::engine::files::{OpenFolder, PlaceOutcome, StoreFile};
use crate::store::{
    AddressFit, MessageAppender, PrepareContext, PreparedRecord, Store as _, StoreError, fs,
};

/// Returns the words of the lines Type and Priority of a draft, in lower case.
fn lower_words(draft: &Draft) -> [Option<String>; 2] {
    let lower = |said: &Option<String>| said.as_ref().map(|word| word.to_ascii_lowercase());
    [lower(&draft.kind), lower(&draft.priority)]
}

/// Returns the kind of an answer to a message of this kind.
fn reply_kind(kind: &str) -> &str {
    match kind {
        "review_request" => "review_response",
        "question" => "answer",
        other => other,
    }
}

/// Returns the thread of a first message between these agents.
fn new_thread_id(me: &str, to: &[String]) -> String {
    let mut all: Vec<&str> = to.iter().map(String::as_str).chain([me]).collect();
    all.sort_unstable();
    let kind = if to.len() == 1 { "p2p" } else { "msgfs" };
    if to.len() > 1 {
        all.dedup();
    }
    format!("{kind}/{}", all.join("__"))
}

impl MessageAppender for AmqStore {
    fn address_fit(&self, address: &str) -> AddressFit {
        match self.open_mailbox(address) {
            Ok(_) => AddressFit::Plain,
            Err(StoreError::Unreachable(_)) => AddressFit::Via,
            Err(_) => AddressFit::No,
        }
    }

    fn is_registered(&self, address: &str) -> bool {
        self.open_mailbox(address).is_ok()
    }

    fn may_be_id(&self, id: &str) -> bool {
        // The parts are a time, a process and random digits.
        id.contains("_pid") && id.starts_with(|c: char| c.is_ascii_digit()) && message::is_id(id)
    }

    /// Parses a prepared record. Returns `None` if it is not a message.
    fn preview_message(&self, prepared: &PreparedRecord) -> Option<Message> {
        message::parse(prepared.bytes.as_bytes()).ok().map(|read| read.message)
    }

    fn check_header(&self, draft: &Draft) -> Result<(), StoreError> {
        let [kind, priority] = lower_words(draft);
        check_word("Type", kind.as_deref(), KINDS)
            .and_then(|()| check_word("Priority", priority.as_deref(), PRIORITIES))
            .map_err(StoreError::Invalid)
    }

    /// Prepares one message for all recipients. It writes nothing.
    fn prepare_records(
        &self,
        draft: &Draft,
        with: &PrepareContext<'_>,
    ) -> Result<Vec<PreparedRecord>, StoreError> {
        let mut to: Vec<String> = Vec::new();
        for handle in draft.to.iter().chain(&draft.cc) {
            let [tmp, new, _] = self.open_mailbox(handle)?;
            tmp.check_can_create(draft.body.len() as u64).and_then(|()| new.check_can_create(0))?;
            if !to.contains(handle) {
                to.push(handle.clone());
            }
        }
        self.open_mailbox_folder(self.me(), "outbox/sent")?
            .check_can_create(draft.body.len() as u64)?;
        let parent = with.parent.filter(|_| draft.is_reply);
        let answered = parent.and_then(|parent| self.read_answered_message(parent));
        if answered.as_ref().is_some_and(|answered| answered.is_routed) {
            let why =
                "the message came by another queue (reply_to), and msgfs answers in its own only";
            let error = io::Error::new(io::ErrorKind::CrossesDevices, why);
            return Err(StoreError::io(&self.properties.dir, error));
        }
        let asked = answered.as_ref().and_then(|answered| answered.kind.as_deref());
        self.check_header(draft)?;
        let [kind, priority] = lower_words(draft);
        let kind = kind.or_else(|| asked.map(|kind| reply_kind(kind).to_owned()));
        let priority = priority.or_else(|| kind.as_ref().map(|_| "normal".to_owned()));
        let subject = draft.subject.clone().or_else(|| {
            let subject = reply_subject(parent?.subject.as_deref().unwrap_or_default());
            Some(subject.unwrap_or_else(|| "Re: (no subject)".to_owned()))
        });
        let thread = draft.thread.clone().or_else(|| parent?.thread.clone());
        let thread = thread.unwrap_or_else(|| {
            let people: Vec<&str> = to.iter().map(String::as_str).collect();
            with.new_thread_id(new_thread_id(self.me(), &to), &people)
        });
        let mut refs = answered.map(|answered| answered.refs).unwrap_or_default();
        refs.extend(draft.in_reply_to.as_deref().map(|id| plain_id(id).to_owned()));
        let chance = getrandom::u32();
        let chance =
            chance.map_err(|e| StoreError::io(&self.properties.dir, io::Error::other(e)))?;
        let id = message::new_id(with.now, chance);
        let header = vec![
            ("schema", json!(1)),
            ("id", json!(id)),
            ("from", json!(self.me())),
            ("to", json!(to)),
            ("thread", json!(thread)),
            ("subject", json!(subject)),
            ("created", json!(with.now.rfc3339_short())),
            ("refs", json!(refs)),
            ("priority", json!(priority)),
            ("kind", json!(kind)),
            ("idem", json!(draft.idempotency_key)),
        ];
        let bytes = message::compose_message(header, &draft.body, with.signer);
        let is_large = bytes.len() > FILE_BYTES;
        let why = if is_large { StoreError::TooLarge } else { StoreError::Invalid };
        message::parse(bytes.as_bytes()).map_err(|fault| why(fault.to_string()))?;
        Ok(vec![PreparedRecord { to: to.join(", "), id, thread, bytes, files: Vec::new() }])
    }

    fn check_appendable(&self, bytes: u64) -> Result<(), StoreError> {
        let dir = &self.properties.dir;
        // The message goes to the recipient and to my own folder.
        fs::check_room_for_files(dir, bytes.saturating_mul(2), 2)
    }

    /// Writes a message into the mailboxes of all recipients, and my copy into `outbox/sent`.
    fn append_record(&self, prepared: &PreparedRecord) -> Result<(), StoreError> {
        let bytes = prepared.bytes.as_bytes();
        let name = format!("{}.md", prepared.id);
        let holds = |folder: &OpenFolder<'_, AmqFormat>| holds_message(folder, &name, bytes);
        let sent = self.open_mailbox_folder(self.me(), "outbox/sent")?;
        let mut staged = Vec::new();
        for to in prepared.to.split(", ") {
            let [tmp, new, cur] = self.open_mailbox(to)?;
            // The order matters: files go from new to cur, and a claimed one must not come back.
            if !holds(&new)? && !holds(&cur)? {
                staged.push((tmp, new, cur));
            }
        }
        let files = staged.iter().map(|(tmp, ..)| tmp.stage_file(&name, bytes));
        let files = files.collect::<Result<Vec<_>, _>>()?;
        for ((_, new, cur), file) in staged.iter().zip(&files) {
            // If another process was faster, the recipient may have claimed its file already.
            confirm_placement(new.publish_file(&name, file)?, &[new, cur], &name, bytes)?;
        }
        confirm_placement(sent.create_file(&name, bytes)?, &[&sent], &name, bytes)
    }
}

/// Returns true if a folder holds this message, and false if no file there has its name.
///
/// # Errors
/// [`StoreError::Refused`] if another message has its name, else as the system gave it.
fn holds_message(
    folder: &OpenFolder<'_, AmqFormat>,
    name: &str,
    bytes: &[u8],
) -> Result<bool, StoreError> {
    match folder.read_file(name, FILE_BYTES + 1)? {
        Some(there) if there != bytes => {
            let why =
                format!("{}: another message has this name", folder.child_path(name).display());
            Err(StoreError::Refused(why))
        }
        // The process that wrote it may have ended before its name was on disk.
        Some(_) => folder.sync_names().map(|()| true),
        None => Ok(false),
    }
}

/// Fails unless a message is in place: by this attempt, or by another one in one of these folders, in the order in
/// which a file moves.
///
/// # Errors
/// [`StoreError::Busy`] if it is nowhere, else as [`holds_message`].
pub(super) fn confirm_placement(
    outcome: PlaceOutcome,
    folders: &[&OpenFolder<'_, AmqFormat>],
    name: &str,
    bytes: &[u8],
) -> Result<(), StoreError> {
    if outcome == PlaceOutcome::Done {
        return Ok(());
    }
    if outcome == PlaceOutcome::NameTaken {
        for folder in folders {
            if holds_message(folder, name, bytes)? {
                return Ok(());
            }
        }
    }
    let path = folders.first().map(|folder| folder.child_path(name)).unwrap_or_default();
    Err(StoreError::Busy(format!("{}: the message did not get there", path.display())))
}

impl AmqStore {
    /// Reads the file of a message that is answered.
    fn read_answered_message(&self, parent: &model::Message) -> Option<AmqMessage> {
        let id = plain_id(&parent.id);
        let files: Vec<StoreFile<_>> = {
            let table = self.table.read();
            let found = table.files_with_key(0, secure_hash64(id.as_bytes())).into_iter();
            let is_it = |n: &u32| model::qualify_id(id, table.qualifiers.get(n)) == parent.id;
            found.filter(is_it).filter_map(|n| StoreFile::from_table(&table, n)).collect()
        };
        files.iter().find_map(|file| self.read_message_in(file).ok())
    }

    /// Opens the folders in which mail for a handle arrives.
    pub(super) fn open_mailbox(
        &self,
        handle: &str,
    ) -> Result<[OpenFolder<'_, AmqFormat>; 3], StoreError> {
        let (shown, dir) = (sanitize_line(handle), self.properties.dir.display());
        if !message::is_handle(handle) {
            return Err(StoreError::Invalid(format!(
                "{shown:?} is not a handle: it takes lower-case letters, digits, '_' and '-'"
            )));
        }
        let [tmp, new, cur] = ["tmp", "new", "cur"].map(|leaf| {
            let why = format!("{shown} has no mailbox in {dir}, and msgfs makes none for others");
            self.open_mailbox_folder(handle, &format!("inbox/{leaf}"))
                .map_err(|_| StoreError::Unreachable(why))
        });
        Ok([tmp?, new?, cur?])
    }
}
