//! What links carry to other machines and bring from there.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use super::deliver::{refused, same_but_status};
use super::place::Folder;
use super::{AgentAzall, date, names, put};
use crate::model::{Message, Timestamp};
use crate::store::{Arrived, Fate, Remote, Store as _, StoreError, Ways};

impl Remote for AgentAzall {
    fn described_in(&self) -> Option<PathBuf> {
        Some(self.format.config_file.clone())
    }

    fn join(&self, ways: Arc<dyn Ways>) {
        // The first ones stay: there is one set of links a mount.
        let _ = self.format.ways.set(ways);
    }

    fn has_way(&self, link: &str) -> bool {
        self.format.ways.get().is_some_and(|ways| ways.has(link))
    }

    /// Attachments first, then the text, each under its final name or not at all.
    fn file(&self, arrived: &Arrived) -> Result<(), StoreError> {
        self.make_base()?;
        let today = || date::local_day(Timestamp::now(), self.zone());
        let day = arrived.day.clone().filter(|day| date::is_day(day)).unwrap_or_else(today);
        let inbox = self.base().join(&day).join(Folder::Inbox.as_str());
        let changed = put::make_dirs(self.base(), &[&day, Folder::Inbox.as_str()])?;
        self.dirty(changed);
        self.dirty([inbox.clone()]);
        let given = [&arrived.name, &arrived.other_name].into_iter().cloned();
        let more = (2..).map(|n| format!("{}~{n}", arrived.other_name));
        let fits = |name: &String| names::is_attachment_name(name) && !name.starts_with('.');
        for stem in given.filter(fits).chain(more) {
            let target = inbox.join(format!("{stem}.txt"));
            let io = |e| StoreError::io(&target, e);
            let parts = inbox.join(&stem);
            if target.symlink_metadata().is_ok() {
                if same_but_status(&target, &arrived.bytes) {
                    // What came late.
                    if !arrived.parts.is_empty() {
                        self.put_parts(&parts, &arrived.parts).map_err(io)?;
                        self.note(&target);
                    }
                    break;
                }
                continue;
            }
            if !arrived.parts.is_empty() && !self.put_parts(&parts, &arrived.parts).map_err(io)? {
                continue;
            }
            match put::put_bytes(&target, 0o666, &arrived.bytes) {
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => continue,
                other => other.map_err(io)?,
            }
            self.note(&target);
            break;
        }
        self.sync_dirs()
    }
}

impl AgentAzall {
    /// The link that reaches an address.
    ///
    /// # Errors
    /// Why none of several can be chosen.
    pub(super) fn reach(&self, address: &str) -> Result<Option<String>, String> {
        self.format.ways.get().map_or(Ok(None), |ways| ways.reach(address))
    }

    /// Whether a link of this name reaches an address.
    pub(super) fn reaches(&self, link: &str, address: &str) -> bool {
        self.format.ways.get().is_some_and(|ways| ways.reaches(link, address))
    }

    /// Why a link will never hand a message to somebody.
    pub(super) fn refusal(&self, id: &str, to: &str) -> Option<String> {
        match self.format.ways.get()?.fate(id, to)? {
            Fate::Refused(why) => Some(why),
            Fate::Waits(_) | Fate::Taken => None,
        }
    }

    /// Who will never get a message, and why, a line each; `None` if nobody.
    pub(super) fn refusals(&self, message: &Message) -> Option<String> {
        let all = message.to.iter().chain(&message.cc);
        let line = |to: &String| Some(refused(to, &self.refusal(&message.id, to)?));
        let lines: String = all.filter_map(line).collect();
        Some(lines).filter(|lines| !lines.is_empty())
    }
}
