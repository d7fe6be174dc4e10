//! Writing: from a draft to one file in today's `outbox/` (docs/formats/agentazall.md, sections 2
//! to 4).

use std::io;

use super::place::Folder;
use super::write::{self, Outgoing};
use super::{AgentAzall, date, deliver, key, letter, names, place, put, text};
use crate::model::{Draft, Timestamp, one_line};
use crate::store::engine::files::{
    self,
    unread::{MAILBOXES, Mail},
};
use crate::store::{
    Agents, Fit, Prepared, Preparing, Remote, Store, StoreError, Told, below, fs, refuse_headers,
};

impl Agents for AgentAzall {
    fn agents(&self) -> Vec<String> {
        let all = below::open_dir(&self.format.mailboxes, &[]).and_then(|dir| files::names(&dir));
        let folders = all.unwrap_or_default().into_iter().filter(|(_, kind)| kind.is_dir());
        folders.filter_map(|(name, _)| name.ok()).filter(|n| names::is_mailbox_name(n)).collect()
    }

    fn told(&self, addresses: &[&str]) -> Vec<Option<Told>> {
        const MAIL: Mail = Mail {
            is_message: place::is_text,
            is_unread: (letter::MAX_FILE, |bytes| !text::parse(bytes).is_read()),
        };
        let are_few = self.agents().len() <= MAILBOXES;
        let inbox = |day: String| format!("{day}/{}", Folder::Inbox.as_str());
        let told = |address: &&str| {
            let base = self.format.mailboxes.join(address);
            let days = (are_few && self.has_mailbox(address)).then(|| place::days(&base))?;
            let folders: Vec<String> = days.ok()?.into_iter().map(inbox).collect();
            self.format.others.count(&base, &folders, false, MAIL)
        };
        addresses.iter().map(told).collect()
    }
}

impl crate::store::Outgoing for AgentAzall {
    fn canonical(&self, address: &str) -> String {
        names::bare_address(address)
    }

    fn fits(&self, address: &str) -> Fit {
        let local = address.ends_with("@localhost") || address.ends_with(".agenttalk");
        match names::is_address(&names::bare_address(address)) {
            _ if self.has_mailbox(address) => Fit::Exact,
            true if local => Fit::Exact,
            true => Fit::Plain,
            false if matches!(self.reach(address), Ok(Some(_))) => Fit::Via,
            false => Fit::No,
        }
    }

    fn registered(&self, address: &str) -> bool {
        self.has_mailbox(address)
    }

    fn may_be_id(&self, id: &str) -> bool {
        id.len() == 12 && id.bytes().all(|b| b.is_ascii_hexdigit())
    }

    fn prepare(&self, draft: &Draft, with: &Preparing<'_>) -> Result<Vec<Prepared>, StoreError> {
        self.require_base_if_any()?;
        let everybody = letter::recipients(&draft.to, &draft.cc);
        if everybody.is_empty() {
            return Err(StoreError::Invalid("To: names nobody".into()));
        }
        everybody.iter().try_for_each(|to| Self::check_recipient(to))?;
        let lines = [
            ("Priority", draft.priority.is_some()),
            ("Type", draft.kind.is_some()),
            // It is made of subjects and answers.
            ("Thread", draft.thread.is_some() && draft.in_reply_to.is_none()),
        ];
        refuse_headers("an AgentAZAll letter", &lines)?;
        if let Some(why) = everybody.iter().find_map(|to| self.refused_by(to)) {
            return Err(StoreError::Refused(why));
        }
        let via = draft.via.as_deref().filter(|via| Remote::has_way(self, via));
        if let Some(link) = via {
            let is_far = |to: &&String| **to != self.format.me && !self.reaches(link, to);
            if let Some(to) = everybody.iter().find(is_far) {
                let why = format!("Via: the link {link} does not reach {}", one_line(to));
                return Err(StoreError::Unreachable(why));
            }
        }
        let subject = match (&draft.subject, with.parent) {
            (Some(subject), _) => subject.clone(),
            (None, Some(parent)) => {
                write::reply_subject(parent.subject.as_deref().unwrap_or_default())
            }
            (None, None) => String::new(),
        };
        if subject.chars().any(|c| c.is_control() && c != '\t') {
            let why = "Subject: holds a line break or another control character; take it out";
            return Err(StoreError::Invalid(why.into()));
        }
        let files: Vec<_> = draft.attached.iter().map(|a| (a.name.clone(), a.size)).collect();
        carries(&files)?;
        let to = everybody.join(", ");
        let first = letter::recipients(&draft.to, &[]);
        let also: Vec<String> = everybody.iter().filter(|a| !first.contains(a)).cloned().collect();
        let id = self.free_id(&to, &subject, with)?;
        let bytes = write::compose(
            &Outgoing {
                from: &self.format.me,
                to: &first,
                cc: &also,
                subject: &subject,
                now: with.now,
                zone: self.zone(),
                id: &id,
                answers: draft.in_reply_to.as_deref().map(crate::model::plain_id),
                idempotency_key: draft.idempotency_key.as_deref(),
                via,
                body: &draft.body,
                files: &draft.attached,
            },
            with.signer,
        );
        let thread = match with.parent.and_then(|p| p.thread.clone()) {
            Some(thread) if draft.in_reply_to.is_some() => thread,
            _ => letter::thread_of(&subject, &self.format.me, &everybody, &self.format.me),
        };
        Ok(vec![Prepared { to, id, thread, bytes, files: draft.attached.clone() }])
    }

    fn appendable(&self, bytes: u64) -> Result<(), StoreError> {
        self.require_base_if_any()?;
        let mut above = Some(self.base());
        while let Some(folder) = above.filter(|f| !f.is_dir()) {
            above = folder.parent();
        }
        let Some(folder) = above else { return Ok(()) };
        if folder == self.base() {
            let day = date::local_day(Timestamp::now(), self.zone());
            for place in [Folder::Outbox, Folder::Sent] {
                let made = below::can_make(folder, &[&day, place.as_str()]);
                made.map_err(|(path, e)| StoreError::io(&path, e))?;
            }
        }
        // The text goes to the outbox and to each recipient.
        fs::room_for(folder, bytes.saturating_mul(2))
    }

    /// Puts a record into today's `outbox/` unless it is in the mailbox already, and delivers it as far
    /// as that is possible now.
    ///
    /// # Errors
    /// As the system gave it; nothing is half written.
    fn append(&self, message: &Prepared) -> Result<(), StoreError> {
        let _turn = self.format.delivering.lock();
        self.make_base()?;
        let path = match self.appended(message)? {
            Some(path) => path,
            None => self.put_new(message)?,
        };
        // It is in the outbox: what cannot be delivered now is delivered later.
        if let Err(e) = self.deliver_one(&path) {
            tracing::warn!(file = %one_line(&path), error = %e, "a message could not be delivered \
                yet; it is tried again");
        }
        Ok(())
    }

    fn sync(&self) -> Result<(), StoreError> {
        self.sync_dirs()
    }
}

impl AgentAzall {
    fn check_recipient(to: &str) -> Result<(), StoreError> {
        if names::is_mailbox_name(to) {
            return Ok(());
        }
        Err(StoreError::Invalid(format!(
            "{:?} is not an AgentAZAll address: it is the name of a mailbox folder (mostly \
             name@host), without '/', ',', control characters or a '.' at its beginning",
            one_line(to)
        )))
    }

    /// An id that neither a message of mine nor a file has.
    fn free_id(&self, to: &str, subject: &str, with: &Preparing<'_>) -> Result<String, StoreError> {
        loop {
            let mut random = [0; 8];
            getrandom::fill(&mut random)
                .map_err(|e| StoreError::io(self.base(), io::Error::other(e.to_string())))?;
            let id = write::new_id(&self.format.me, to, subject, with.now, random);
            if !(with.taken)(&id) && self.holders(&id)?.is_empty() {
                return Ok(id);
            }
        }
    }

    /// The files of this stem in any `outbox/` or `sent/`, as paths below the mailbox.
    fn holders(&self, stem: &str) -> Result<Vec<String>, StoreError> {
        if !place::is_real_dir(self.base()) {
            return Ok(Vec::new());
        }
        let days = place::days(self.base()).map_err(|e| StoreError::io(self.base(), e))?;
        let mut out = Vec::new();
        for day in days.iter().rev() {
            for folder in [Folder::Sent, Folder::Carrying, Folder::Outbox] {
                let path = format!("{day}/{}/{stem}.txt", folder.as_str());
                if std::fs::symlink_metadata(self.base().join(&path)).is_ok() {
                    out.push(path);
                }
            }
        }
        Ok(out)
    }

    /// Where a record is if it was appended before.
    fn appended(&self, message: &Prepared) -> Result<Option<String>, StoreError> {
        for path in self.holders(&message.id)? {
            let file = self.base().join(&path);
            if deliver::same_but_status(&file, message.bytes.as_bytes()) {
                self.note(&file);
                return Ok(Some(path));
            }
        }
        Ok(None)
    }

    fn put_new(&self, message: &Prepared) -> Result<String, StoreError> {
        let day = date::local_day(Timestamp::now(), self.zone());
        let dir = self.base().join(&day).join(Folder::Outbox.as_str());
        for folder in [Folder::Inbox, Folder::Sent, Folder::Outbox] {
            let changed = put::make_dirs(self.base(), &[&day, folder.as_str()])?;
            self.dirty(changed);
        }
        self.dirty([dir.clone()]);
        let parts = dir.join(&message.id);
        if !message.files.is_empty() && !self.parts_are_there(&parts, message) {
            let list: Vec<_> =
                message.files.iter().map(|f| (f.name.clone(), f.path.clone())).collect();
            put::put_folder(&parts, &list).map_err(|e| StoreError::io(&parts, e))?;
        }
        let file = dir.join(format!("{}.txt", message.id));
        put::put_bytes(&file, 0o666, message.bytes.as_bytes())
            .map_err(|e| StoreError::io(&file, e))?;
        self.note(&file);
        Ok(format!("{day}/{}/{}.txt", Folder::Outbox.as_str(), message.id))
    }

    /// Whether an append that was interrupted has left the attachments already.
    fn parts_are_there(&self, folder: &std::path::Path, message: &Prepared) -> bool {
        place::is_real_dir(folder)
            && message.files.iter().all(|file| {
                let digest = self.digest(&folder.join(&file.name));
                digest.is_ok_and(|digest| digest.eq_ignore_ascii_case(&file.sha256))
            })
    }

    /// My mailbox, made if it is missing; and my key in it, if it was waiting for that.
    ///
    /// # Errors
    /// As the system gave it, or if something else is in its place.
    pub(super) fn make_base(&self) -> Result<(), StoreError> {
        let base = self.base();
        self.require_base_if_any()?;
        (self as &dyn Store).require_there()?;
        if std::fs::symlink_metadata(base).is_err() {
            fs::make_dirs(base, 0o777).map_err(|e| StoreError::io(base, e))?;
        }
        if let Some(seed) = self.format.key_for_later.lock().as_ref() {
            match key::write_first(base, seed, Timestamp::now(), self.zone()) {
                Err(e) if e.kind() != io::ErrorKind::AlreadyExists => {
                    return Err(StoreError::io(&key::path(base), e));
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// Whether files of these names can go along.
///
/// # Errors
/// [`StoreError::Invalid`] naming the first that cannot.
pub(super) fn carries(files: &[(String, u64)]) -> Result<(), StoreError> {
    let mut seen: Vec<&str> = Vec::new();
    for (name, _) in files {
        let shown = one_line(name);
        if !names::is_attachment_name(name) || name.trim() != name {
            let why = format!("Attach: {shown:?} cannot be the name of an attachment; rename it");
            return Err(StoreError::Invalid(why));
        }
        if seen.contains(&name.as_str()) {
            let why = format!("Attach: two files are named {shown:?}; rename one");
            return Err(StoreError::Invalid(why));
        }
        seen.push(name);
    }
    Ok(())
}
