//! Mail that links carry to other machines and bring from there.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::deliver::is_same_but_status;
use super::layout::MailboxFolder;
use super::{AgentAzall, date, names, new_files};
use crate::model::{Message, Timestamp};
use crate::store::{InboundMail, LinkRouter, RemoteMail, Store as _, StoreError};

impl RemoteMail for AgentAzall {
    fn description_path(&self) -> Option<PathBuf> {
        Some(self.format.config_file.clone())
    }

    fn set_router(&self, router: Arc<dyn LinkRouter>) {
        self.format.router.set(router);
    }

    fn link_names(&self) -> Vec<String> {
        self.format.router.link_names()
    }

    /// Puts the attachments first, then the text, each under its final name or not at all.
    fn file_mail(&self, arrived: &InboundMail) -> Result<(), StoreError> {
        self.make_mailbox()?;
        let today = || date::format_local_day(Timestamp::now(), self.zone());
        let day = arrived.day.clone().filter(|day| date::is_day(day)).unwrap_or_else(today);
        let inbox = self.mailbox_dir().join(&day).join(MailboxFolder::Inbox.as_str());
        new_files::make_dirs_below(self.mailbox_dir(), &[&day, MailboxFolder::Inbox.as_str()])?;
        self.mark_unsynced([inbox.clone()]);
        let given = [&arrived.name, &arrived.other_name].into_iter().cloned();
        let more = (2..).map(|n| format!("{}~{n}", arrived.other_name));
        let fits = |name: &String| names::is_attachment_name(name) && !name.starts_with('.');
        for stem in given.filter(fits).chain(more) {
            let target = inbox.join(format!("{stem}.txt"));
            let io = |e| StoreError::io(&target, e);
            let parts = inbox.join(&stem);
            if target.symlink_metadata().is_ok() {
                if is_same_but_status(&target, &arrived.bytes) {
                    // Attachments that came late.
                    if !arrived.parts.is_empty() {
                        self.put_attachments(&parts, &arrived.parts).map_err(io)?;
                        self.note_change(&target);
                    }
                    break;
                }
                continue;
            }
            if !arrived.parts.is_empty()
                && !self.put_attachments(&parts, &arrived.parts).map_err(io)?
            {
                continue;
            }
            match new_files::create_file(&target, 0o666, &arrived.bytes) {
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => continue,
                other => other.map_err(io)?,
            }
            self.note_change(&target);
            break;
        }
        self.sync_dirs(Path::new(""))
    }
}

impl AgentAzall {
    /// Returns the sentences about a recipient to whom no link carries a message any more.
    pub(super) fn describe_link_end(&self, id: &str, to: &str) -> Option<String> {
        self.format.router.delivery_fate(id, to)?.describe_end(to)
    }

    /// Returns the sentences about all such recipients of a message; `None` if there are none.
    pub(super) fn describe_link_ends(&self, message: &Message) -> Option<String> {
        let all = message.to.iter().chain(&message.cc);
        let lines: String = all.filter_map(|to| self.describe_link_end(&message.id, to)).collect();
        Some(lines).filter(|lines| !lines.is_empty())
    }
}
