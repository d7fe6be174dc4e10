//! `AgentAZAll`: a mailbox of text files per agent, in folders by local day.
//!
//! - [`text`], [`date`], [`block`], [`mod@write`], [`filter`], [`names`], [`thread`]: the format, without I/O.
//! - `letter`, `group`, `held`, `known`: one file; which files are one message; who has which id; what a
//!   change means for that. `mail`: all of it as a format of the engine. `state`: what outlives the cache.
//! - `mark`: marking in the mailbox. `parts`: attachments. `notebook`: what else is shown.
//! - `send`, `deliver`, `put`, `key`: writing, and carrying mail to mailboxes of this machine. `remote`: what
//!   links carry to others and bring from there.
//! - `check`: `msgfs check` and `msgfs doctor`.
//!
//! # Locks
//!
//! In this order: the engine's scan or `delivering` (one delivery at a time) → what is known of messages →
//! the table of files → all others, each held for one step and never while a sink is called.

pub mod block;
mod check;
mod config;
pub mod date;
mod deliver;
pub mod filter;
mod group;
mod held;
mod key;
mod known;
mod letter;
mod mail;
mod mark;
pub mod names;
mod notebook;
mod parts;
mod place;
mod put;
mod remote;
mod send;
mod state;
pub mod text;
pub mod thread;
pub mod write;

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use jiff::tz::TimeZone;

use std::sync::Arc;

pub use config::mailbox;
pub use key::public as public_key;

use super::engine::files::{File, Files};
use super::{About, Keys, Location, Part, Parts, Record, Spec, Store, StoreError, Threads, fs};
use crate::model::{Message, PublicKey, Seed, Timestamp, one_line};
use known::Known;
use letter::{Kept, MAX_FILE, Parsed};
use mail::Mail;
use place::Folder;

/// A mailbox, read and written as one agent.
type AgentAzall = Files<Mail>;

/// Opens the mailbox that a `config.json` describes: `spec.dir` is its folder, or the file itself.
/// Neither it nor the mailbox is created.
///
/// # Errors
/// If there is no usable configuration, or the agent's name cannot be that of a mailbox.
pub fn open(spec: &Spec) -> Result<Arc<dyn Store>, StoreError> {
    Ok(Arc::new(AgentAzall::open(spec)?))
}

impl AgentAzall {
    fn open(spec: &Spec) -> Result<Self, StoreError> {
        Self::open_in(spec, TimeZone::system())
    }

    fn open_in(spec: &Spec, zone: TimeZone) -> Result<Self, StoreError> {
        let config_file = config::locate(&spec.dir);
        let stamp = config::stamp(&config_file);
        let read = config::read(&config_file)?;
        let me = spec.as_me.clone().or(read.agent).ok_or_else(|| {
            StoreError::Invalid(format!(
                "{} has no agent_name; write one into it, or set $AGENTAZALL_AGENT",
                config_file.display()
            ))
        })?;
        if !names::is_mailbox_name(&me) || names::bare_address(&me) != me {
            return Err(StoreError::Invalid(format!(
                "the agent_name {:?} cannot be the name of a mailbox folder; choose one without '/', \
                 ',', '<' and control characters that does not begin with '.'",
                one_line(&me)
            )));
        }
        let (state, ledger) = state::State::open(spec.state.as_deref())?;
        let settings = config::Settings { stamp, filters: read.filters, trouble: None };
        let base = read.mailboxes.join(&me);
        let known = Known::new(ledger);
        let places = (config_file, read.mailboxes);
        let mail = Mail::new(me, zone, places, settings, (state, known));
        let about = About {
            threads: Threads::Links,
            carries: Some(send::carries),
            ..About::new(spec, &mail.me, base)
        };
        Self::new(about, mail)
    }

    fn base(&self) -> &Path {
        &self.about.dir
    }

    fn zone(&self) -> &TimeZone {
        &self.format.zone
    }

    /// Fails if something else than a folder is in the place of my mailbox.
    ///
    /// # Errors
    /// [`StoreError::Unreachable`] with what to do, else as the system gave it.
    fn require_base_if_any(&self) -> Result<(), StoreError> {
        let base = self.base();
        match std::fs::symlink_metadata(base) {
            Ok(meta) if meta.is_dir() => Ok(()),
            Ok(meta) => Err(StoreError::Unreachable(format!(
                "{} is {}, not a folder; a mailbox must be a folder: move it away, or put the \
                 folder that it leads to in its place",
                one_line(&base.to_string_lossy()),
                fs::describe(&meta)
            ))),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(e) => Err(StoreError::io(base, e)),
        }
    }

    /// Reads the file of a source again, with the id its message is known by; its time is the message's.
    fn reread(&self, source: u32) -> Result<(Parsed, File<Kept>, String), StoreError> {
        let file = self.file(source)?;
        let mut parsed = self.parse(&file)?;
        let (leader, held) = {
            let known = self.format.known.read();
            let table = self.table.read();
            let message = known.message_of(&table, source);
            let leader = message.as_ref().and_then(|m| File::of(&table, m.leader));
            (leader, message.map_or(group::Held::No, |m| m.held))
        };
        let mut id = parsed.id.clone();
        if let Some(leader) = leader {
            parsed.kept.time = leader.facts.time;
            if leader.n != source {
                id = self.parse(&leader)?.id;
            }
        }
        Ok((parsed, file, mail::id_of(&id, held)))
    }

    /// Reads a file again, which must hold what it held.
    fn parse(&self, file: &File<Kept>) -> Result<Parsed, StoreError> {
        let (stamp, bytes) = self.bytes(file, MAX_FILE)?;
        let parsed = self.format.take_apart(file, &stamp, &bytes).ok_or(StoreError::Moved)?;
        let is_known = file.row.is_message() || file.row.is_refused();
        if is_known && parsed.kept.text == file.facts.text {
            return Ok(parsed);
        }
        self.note(&self.base().join(file.path()));
        Err(StoreError::Moved)
    }

    /// See [`Store::read`].
    fn read_message(&self, at: &Location) -> Result<Record, StoreError> {
        let (parsed, file, id) = self.reread(at.source)?;
        let attachments =
            parts::list(self.parts_of(&file)?.as_ref(), &parsed, &self.format.digests)
                .map_err(|e| StoreError::io(&self.base().join(file.path()), e))?;
        let reading = parsed.reading;
        let to = letter::recipients(&reading.to, &[]);
        let everybody = letter::recipients(&reading.to, &reading.cc);
        let subject = reading.subject.as_deref().unwrap_or_default();
        let thread = letter::thread_of(subject, &parsed.from, &everybody, &self.format.me);
        let message = Message {
            from: Some(parsed.from).filter(|from| !from.is_empty()),
            cc: everybody.into_iter().filter(|address| !to.contains(address)).collect(),
            to,
            time: Timestamp::from_millis(parsed.kept.time),
            subject: reading.subject,
            thread: Some(thread),
            in_reply_to: reading.answers,
            id,
            attachments,
            body: reading.body,
            ..Message::default()
        };
        let note = match mail::folder_of(&file.folder) {
            Some(Folder::Sent) => self.refusals(&message),
            Some(folder) if folder.waits() => self.waits(&file.path()),
            _ => None,
        };
        Ok(Record {
            note,
            message,
            body_if_valid: reading.body_if_valid,
            claim: reading.claim,
            ..Record::default()
        })
    }

    /// See [`Store::health`].
    fn health_lines(&self) -> Vec<String> {
        let mut out: Vec<String> = self.format.settings.read().trouble.iter().cloned().collect();
        out.extend(self.missed());
        match self.require_base_if_any() {
            Err(e) => out.push(e.to_string()),
            Ok(()) if std::fs::symlink_metadata(self.base()).is_err() => {
                out.push(check::no_mailbox(self.base()));
            }
            Ok(()) => {}
        }
        out.extend(self.troubles());
        if let Err(e) = key::read(self.base()) {
            out.push(format!("nothing can be sent: {e}"));
        } else if key::is_exposed(self.base()) {
            let path = key::path(self.base());
            let command = crate::model::shell_word(&path.to_string_lossy());
            out.push(format!("others can read the private key; run `chmod 600 {command}`"));
        }
        out
    }

    /// The folder with the attachments of a message.
    fn parts_of(&self, file: &File<Kept>) -> Result<Option<OwnedFd>, StoreError> {
        let path = file.path();
        parts::open_folder(self.base(), path.strip_suffix(".txt").unwrap_or(&path))
            .map_err(|e| StoreError::io(&self.base().join(&path), e))
    }
}

impl Keys for AgentAzall {
    fn signing_key(&self) -> Result<Option<Seed>, StoreError> {
        key::read(self.base())
    }

    fn adopt(&self, mine: &Seed) -> Result<Seed, StoreError> {
        let seed = mine.clone();
        if !place::is_real_dir(self.base()) {
            *self.format.key_for_later.lock() = Some(seed.clone());
            return Ok(seed);
        }
        match key::write_first(self.base(), &seed, Timestamp::now(), self.zone()) {
            Ok(()) => Ok(seed),
            // Another program made one a moment ago.
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => key::read(self.base())?
                .ok_or_else(|| StoreError::NoKey("the key is gone again".into())),
            Err(e) => Err(StoreError::NoKey(format!(
                "the key {} cannot be written: {e}",
                key::path(self.base()).display()
            ))),
        }
    }

    fn public_key(&self, mine: Option<PublicKey>) -> Option<PublicKey> {
        match key::read(self.base()) {
            Ok(Some(seed)) => Some(seed.public_key()),
            Ok(None) => mine,
            Err(_) => None,
        }
    }
}

impl Parts for AgentAzall {
    fn open_part(&self, at: &Location, name: &str) -> Result<Part, StoreError> {
        let (parsed, file, _) = self.reread(at.source)?;
        parts::open(self.parts_of(&file)?.as_ref(), name, &parsed, &self.format.digests)
            .map(Part::File)
            .map_err(|e| StoreError::io(Path::new(one_line(name).as_ref()), e))
    }
}

#[cfg(test)]
mod tests;
