//! `AgentAZAll`: a mailbox of text files per agent, in folders by local day.
//!
//! - [`text`], [`date`], [`block`], [`mod@write`], [`filter`], [`names`], [`thread`]: the format, without I/O.
//! - `config`, `layout`: the configuration of the agent, and the folders of its mailbox.
//! - `letter`: one file. `group`: the files that are one message. `id_ledger`: the owners of ids. `group_index`: the
//!   effects of a change. `format`: all of it as a format of the engine. `state`: the data that must outlive the cache.
//! - `mark`: marks in the mailbox. `attachments`: attachments. `notebook`: the other texts that are shown.
//! - `send`, `deliver`, `new_files`, `key`: sending, and delivery to mailboxes of this machine. `waiting_letters`: the
//!   letters that wait, and for whom. `receipts`: proofs that a message was read. `remote`: mail that links carry to
//!   other machines and bring from there.
//! - `check`: `msgfs check` and `msgfs doctor`.
//!
//! # Locks
//!
//! In this order: the engine's scan or `delivery_lock` (one delivery at a time) → `group_index` → the table of files →
//! all others. Each of those is held for one step and never while a sink is called.

mod attachments;
pub mod block;
mod check;
mod config;
pub mod date;
mod deliver;
pub mod filter;
mod format;
mod group;
mod group_index;
mod id_ledger;
mod key;
mod layout;
mod letter;
mod mark;
pub mod names;
mod new_files;
mod notebook;
mod receipts;
mod remote;
mod send;
mod state;
pub mod text;
pub mod thread;
mod waiting_letters;
pub mod write;

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use jiff::tz::TimeZone;

use std::sync::Arc;

pub use config::find_mailbox;
pub use key::read_public_key as public_key;

use super::engine::files::{FileStore, StoreFile};
use super::kind::KindRow;
use super::{
    Location, PartContent, PartReader, PreparedRecord, Record, Store, StoreError, StoreKeys,
    StoreProperties, StoreSpec, ThreadScheme, fs,
};
use crate::model::{Attachment, DraftAttachment, Message, Seed, Timestamp, sanitize_line};
use format::AgentAzallFormat;
use layout::{LetterPath, MailboxFolder};
use letter::{LetterFacts, MAX_FILE, ParsedLetter};

/// The row of this kind.
pub(super) const KIND: KindRow = KindRow {
    dir_variables: &["AGENTAZALL_CONFIG", "AGENTAZALL_ROOT"],
    me_variable: Some("AGENTAZALL_AGENT"),
    is_store: Some(|dir, _| dir.is_file() || dir.join("config.json").is_file()),
    ..KindRow::new(
        "agentazall",
        "an AgentAZAll address is written NAME@HOST, or is the name of a mailbox beside mine",
        EXAMPLE,
        open,
    )
};

const EXAMPLE: &str = r#"# [[store]]
# kind = "agentazall"
# dir = "~/agents/bob"               # the folder of config.json
# me = "bob.agenttalk"               # default: agent_name in config.json
# links = false                      # true: its mail goes to other machines (docs/links)
"#;

/// A mailbox that one agent reads and writes.
type AgentAzall = FileStore<AgentAzallFormat>;

/// Opens the mailbox that a `config.json` describes: `spec.dir` is its folder, or the file itself. Neither the file nor
/// the mailbox is created.
///
/// # Errors
/// If there is no usable configuration, or the agent's name cannot be that of a mailbox.
fn open(spec: &StoreSpec) -> Result<Arc<dyn Store>, StoreError> {
    Ok(Arc::new(AgentAzall::open(spec)?))
}

impl AgentAzall {
    fn open(spec: &StoreSpec) -> Result<Self, StoreError> {
        Self::open_in_zone(spec, TimeZone::system())
    }

    fn open_in_zone(spec: &StoreSpec, zone: TimeZone) -> Result<Self, StoreError> {
        let config_file = config::locate_config_file(&spec.dir);
        let stamp = config::read_stamp(&config_file);
        let read = config::read_config(&config_file)?;
        let me = spec.own_address.clone().or(read.agent).ok_or_else(|| {
            StoreError::Invalid(format!(
                "{} has no agent_name; write one into it, or set $AGENTAZALL_AGENT",
                config_file.display()
            ))
        })?;
        if !names::is_mailbox_name(&me) || names::bare_address(&me) != me {
            return Err(StoreError::Invalid(format!(
                "the agent_name {:?} cannot be the name of a mailbox folder; choose one without '/', \
                 ',', '<' and control characters that does not begin with '.'",
                sanitize_line(&me)
            )));
        }
        let settings =
            config::ReloadableSettings { stamp, filters: read.filters, fault: read.filter_fault };
        let base = read.mailboxes.join(&me);
        let places = (config_file, read.mailboxes);
        let mail = AgentAzallFormat::new(me, zone, places, settings, spec.state.as_deref());
        spec.state.as_deref().map_or(Ok(()), |dir| mail.load_saved_state(dir))?;
        let about = StoreProperties {
            threads: ThreadScheme::Links,
            // The file also has the header.
            max_body: (MAX_FILE - (64 << 10)) as u64,
            attachment_rule: Some(send::check_attachment_names),
            ..StoreProperties::new(spec, &mail.me, base)
        };
        Self::new(about, mail)
    }

    fn mailbox_dir(&self) -> &Path {
        &self.properties.dir
    }

    fn zone(&self) -> &TimeZone {
        &self.format.zone
    }

    /// Fails if something else than a folder is in the place of my mailbox.
    ///
    /// # Errors
    /// [`StoreError::Unreachable`] with a remedy, else the error of the system.
    fn require_mailbox_folder(&self) -> Result<(), StoreError> {
        let base = self.mailbox_dir();
        match std::fs::symlink_metadata(base) {
            Ok(meta) if meta.is_dir() => Ok(()),
            Ok(meta) => Err(StoreError::Unreachable(format!(
                "{} is {}, not a folder; a mailbox must be a folder: move it away, or put the \
                 folder that it leads to in its place",
                sanitize_line(&base.to_string_lossy()),
                fs::describe_file_type(&meta)
            ))),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(e) => Err(StoreError::io(base, e)),
        }
    }

    /// Reads the file of a source again. Returns it with the id of its message; its time is the message's.
    fn reread_message(
        &self,
        source: u32,
    ) -> Result<(ParsedLetter, StoreFile<LetterFacts>, String), StoreError> {
        let file = self.find_file(source)?;
        let mut parsed = self.reread_letter(&file)?;
        let (leader, held) = {
            let known = self.format.group_index.read();
            let table = self.table.read();
            let message = known.find_group(&table, source);
            let leader = message.as_ref().and_then(|m| StoreFile::from_table(&table, m.leader));
            (leader, message.map_or(group::IdAssignment::Unassigned, |m| m.assignment))
        };
        let mut id = parsed.id.clone();
        if let Some(leader) = leader {
            parsed.facts.time = leader.facts.time;
            if leader.n != source {
                id = self.reread_letter(&leader)?.id;
            }
        }
        Ok((parsed, file, format::compose_id(&id, held)))
    }

    /// Reads a file again. Fails if its text is another by now.
    fn reread_letter(&self, file: &StoreFile<LetterFacts>) -> Result<ParsedLetter, StoreError> {
        let (stamp, bytes) = self.read_file_bytes(file, MAX_FILE)?;
        let parsed =
            self.format.parse_letter_file(file, &stamp, &bytes).ok_or(StoreError::Moved)?;
        let is_known = file.row.is_message() || file.row.is_rejected();
        if is_known && parsed.facts.text_hash == file.facts.text_hash {
            return Ok(parsed);
        }
        self.note_change(&self.mailbox_dir().join(file.path()));
        Err(StoreError::Moved)
    }

    /// Reads a message for [`MessageReader::read_record`].
    fn read_message(&self, at: &Location) -> Result<Record, StoreError> {
        let (mut parsed, file, id) = self.reread_message(at.source)?;
        let attachments = attachments::list_attachments(
            self.open_attachments_dir(&file)?.as_ref(),
            &parsed,
            &self.format.digests,
        )
        .map_err(|e| StoreError::io(&self.mailbox_dir().join(file.path()), e))?;
        let (body_if_valid, claim) =
            (parsed.content.body_if_valid.take(), parsed.content.claim.take());
        let message = Message { id, attachments, ..self.build_message(parsed) };
        let note = match format::parse_folder(&file.folder) {
            Some(MailboxFolder::Sent) => self.describe_link_ends(&message),
            Some(folder) if folder.is_waiting() => {
                self.describe_waiting(&file.path(), message.time)
            }
            _ => None,
        };
        Ok(Record { message, body_if_valid, claim, note, ..Record::default() })
    }

    /// Builds a message of what its file alone says.
    fn build_message(&self, parsed: ParsedLetter) -> Message {
        let reading = parsed.content;
        let (to, cc) = letter::split_recipients(&reading.to, &reading.cc);
        let everybody: Vec<&String> = to.iter().chain(&cc).collect();
        let subject = reading.subject.as_deref().unwrap_or_default();
        let thread = letter::derive_thread(subject, &parsed.from, &everybody, &self.format.me);
        Message {
            from: Some(parsed.from).filter(|from| !from.is_empty()),
            to,
            cc,
            time: Timestamp::from_millis(parsed.facts.time),
            subject: reading.subject,
            thread: Some(thread),
            in_reply_to: reading.in_reply_to,
            body: reading.body,
            ..Message::default()
        }
    }

    /// Returns a prepared letter as it will be shown.
    fn preview_prepared(&self, prepared: &PreparedRecord) -> Message {
        let day = date::format_local_day(Timestamp::now(), self.zone());
        let place = LetterPath { day: &day, folder: MailboxFolder::Outbox, stem: &prepared.id };
        let (me, zone) = (self.format.me.as_str(), self.zone());
        let bytes = prepared.bytes.as_bytes();
        let parsed = letter::parse_letter(bytes, &fs::Stamp::default(), &place, (me, zone));
        let file = |file: &DraftAttachment| Attachment::new(&*file.name, file.size as usize);
        Message {
            id: parsed.id.clone(),
            thread: Some(prepared.thread.clone()),
            attachments: prepared.files.iter().map(file).collect(),
            ..self.build_message(parsed)
        }
    }

    /// Returns the lines for [`Store::health`].
    fn render_mailbox_health(&self) -> Vec<String> {
        let mut out: Vec<String> = self.format.settings.read().fault.iter().cloned().collect();
        out.extend(self.describe_missing_folder());
        match self.require_mailbox_folder() {
            Err(e) => out.push(e.to_string()),
            Ok(()) if std::fs::symlink_metadata(self.mailbox_dir()).is_err() => {
                out.push(check::describe_missing_mailbox(self.mailbox_dir()));
            }
            Ok(()) => {}
        }
        out.extend(self.fault_lines());
        if let Err(e) = key::read_key(self.mailbox_dir()) {
            out.push(format!("nothing can be sent: {e}"));
        } else if key::is_exposed(self.mailbox_dir()) {
            let path = key::key_path(self.mailbox_dir());
            let command = crate::model::quote_shell_word(&path.to_string_lossy());
            out.push(format!("others can read the private key; run `chmod 600 {command}`"));
        }
        out
    }

    /// Opens the folder with the attachments of a message.
    fn open_attachments_dir(
        &self,
        file: &StoreFile<LetterFacts>,
    ) -> Result<Option<OwnedFd>, StoreError> {
        let path = file.path();
        attachments::open_attachments_dir(
            self.mailbox_dir(),
            path.strip_suffix(".txt").unwrap_or(&path),
        )
        .map_err(|e| StoreError::io(&self.mailbox_dir().join(&path), e))
    }
}

impl StoreKeys for AgentAzall {
    fn signing_key(&self) -> Result<Option<Seed>, StoreError> {
        key::read_key(self.mailbox_dir())
    }

    fn adopt_key(&self, mine: &Seed) -> Result<Seed, StoreError> {
        let seed = mine.clone();
        if !layout::is_real_dir(self.mailbox_dir()) {
            *self.format.key_for_later.lock() = Some(seed.clone());
            return Ok(seed);
        }
        match key::write_first_key(self.mailbox_dir(), &seed, Timestamp::now(), self.zone()) {
            Ok(()) => Ok(seed),
            // Another program made one a moment ago.
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
                key::read_key(self.mailbox_dir())?
                    .ok_or_else(|| StoreError::NoKey("the key is gone again".into()))
            }
            Err(e) => Err(StoreError::NoKey(format!(
                "the key {} cannot be written: {e}",
                key::key_path(self.mailbox_dir()).display()
            ))),
        }
    }
}

impl PartReader for AgentAzall {
    fn open_part(&self, at: &Location, name: &str) -> Result<PartContent, StoreError> {
        let (parsed, file, _) = self.reread_message(at.source)?;
        attachments::open_attachment(
            self.open_attachments_dir(&file)?.as_ref(),
            name,
            &parsed,
            &self.format.digests,
        )
        .map(PartContent::File)
        .map_err(|e| StoreError::io(Path::new(sanitize_line(name).as_ref()), e))
    }
}

#[cfg(test)]
mod tests;
