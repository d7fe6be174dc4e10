//! Sending: from a draft to one file in today's `outbox/` (docs/formats/agentazall.md, sections 2 to 4).

use std::io;
use std::path::Path;

use super::layout::MailboxFolder;
use super::write::{self, OutgoingLetter};
use super::{AgentAzall, attachments, date, deliver, key, layout, letter, names, new_files, text};
use crate::model::{DeliveryState, Draft, Message, Timestamp, reply_subject, sanitize_line};
use crate::store::engine::files::{
    self,
    unread::{MAILBOXES, UnreadRules},
};
use crate::store::{
    AddressFit, PeerReadState, PrepareContext, PreparedRecord, Receipt, RemoteMail, SentMessage,
    Store, StoreDirectory, StoreError, confined, fs, refuse_headers,
};

impl StoreDirectory for AgentAzall {
    fn list_peers(&self) -> Vec<String> {
        let all =
            confined::open_dir(&self.format.mailboxes, &[]).and_then(|dir| files::list_names(&dir));
        let folders = all.unwrap_or_default().into_iter().filter(|(_, kind)| kind.is_dir());
        folders.filter_map(|(name, _)| name.ok()).filter(|n| names::is_mailbox_name(n)).collect()
    }

    fn peer_read_states(&self, addresses: &[&str]) -> Vec<Option<PeerReadState>> {
        const MAIL: UnreadRules = UnreadRules {
            is_message: layout::is_text_name,
            is_unread: (letter::MAX_FILE, |bytes| !text::parse(bytes).is_read()),
        };
        let are_few = self.list_peers().len() <= MAILBOXES;
        let inbox = |day: String| format!("{day}/{}", MailboxFolder::Inbox.as_str());
        let told = |address: &&str| {
            let base = self.format.mailboxes.join(address);
            let days = (are_few && self.has_mailbox(address)).then(|| layout::list_days(&base))?;
            let folders: Vec<String> = days.ok()?.into_iter().map(inbox).collect();
            self.format.unread_counts.count_unread(&base, &folders, false, MAIL)
        };
        addresses.iter().map(told).collect()
    }

    fn provable_states(&self, to: &str) -> Vec<DeliveryState> {
        self.list_provable_states(to)
    }

    fn find_receipts(&self, sent: &[SentMessage<'_>]) -> Vec<Receipt> {
        sent.iter().map(|one| self.find_letter_receipt(one)).collect()
    }
}

impl crate::store::MessageAppender for AgentAzall {
    fn canonical_address(&self, address: &str) -> String {
        names::bare_address(address)
    }

    fn address_fit(&self, address: &str) -> AddressFit {
        let local = address.ends_with("@localhost") || address.ends_with(".agenttalk");
        match names::is_address(&names::bare_address(address)) {
            _ if self.has_mailbox(address) => AddressFit::Exact,
            true if local => AddressFit::Exact,
            true => AddressFit::Plain,
            false if matches!(self.format.router.find_link(address), Ok(Some(_))) => {
                AddressFit::Via
            }
            false => AddressFit::No,
        }
    }

    fn is_registered(&self, address: &str) -> bool {
        self.has_mailbox(address)
    }

    fn may_be_id(&self, id: &str) -> bool {
        id.len() == 12 && id.bytes().all(|b| b.is_ascii_hexdigit())
    }

    fn preview_message(&self, prepared: &PreparedRecord) -> Option<Message> {
        Some(self.preview_prepared(prepared))
    }

    fn check_header(&self, draft: &Draft) -> Result<(), StoreError> {
        let lines = [("Priority", draft.priority.is_some()), ("Type", draft.kind.is_some())];
        refuse_headers("an AgentAZAll letter", &lines)
    }

    fn prepare_records(
        &self,
        draft: &Draft,
        with: &PrepareContext<'_>,
    ) -> Result<Vec<PreparedRecord>, StoreError> {
        self.require_mailbox_folder()?;
        let (to, cc) = letter::split_recipients(&draft.to, &draft.cc);
        let everybody: Vec<&str> = to.iter().chain(&cc).map(String::as_str).collect();
        if everybody.is_empty() {
            return Err(StoreError::Invalid("To: names nobody".into()));
        }
        everybody.iter().try_for_each(|to| check_recipient(to))?;
        self.check_header(draft)?;
        // The thread follows from subjects and answers.
        let has_thread = draft.thread.is_some() && draft.in_reply_to.is_none();
        refuse_headers("an AgentAZAll letter", &[("Thread", has_thread)])?;
        if let Some(why) = everybody.iter().find_map(|to| self.find_refusal_by(to)) {
            return Err(StoreError::Refused(why));
        }
        let via = draft.via.as_deref().filter(|via| RemoteMail::has_link(self, via));
        if let Some(link) = via {
            let router = self.format.router.get();
            let reaches = |to: &str| router.is_some_and(|router| router.can_reach(link, to));
            let is_far = |to: &&&str| **to != self.format.me && !reaches(to);
            if let Some(to) = everybody.iter().find(is_far) {
                let why = format!("Via: the link {link} does not reach {}", sanitize_line(to));
                return Err(StoreError::Unreachable(why));
            }
        }
        let subject = match (&draft.subject, with.parent) {
            (Some(subject), _) => subject.clone(),
            (None, Some(parent)) => {
                let subject = reply_subject(parent.subject.as_deref().unwrap_or_default());
                subject.unwrap_or_else(|| "Re:".to_owned())
            }
            (None, None) => String::new(),
        };
        if subject.chars().any(|c| c.is_control() && c != '\t') {
            let why = "Subject: holds a line break or another control character; take it out";
            return Err(StoreError::Invalid(why.into()));
        }
        let files: Vec<_> = draft.attachments.iter().map(|a| (a.name.clone(), a.size)).collect();
        check_attachment_names(&files)?;
        let all = everybody.join(", ");
        let id = self.find_free_id(&all, &subject, with)?;
        let bytes = write::compose_letter(
            &OutgoingLetter {
                from: &self.format.me,
                to: &to,
                cc: &cc,
                subject: &subject,
                now: with.now,
                zone: self.zone(),
                id: &id,
                in_reply_to: draft.in_reply_to.as_deref().map(crate::model::plain_id),
                idempotency_key: draft.idempotency_key.as_deref(),
                via_link: via,
                body: &draft.body,
                attachments: &draft.attachments,
            },
            with.signer,
        );
        check_letter_size(bytes.len())?;
        let thread = match with.parent.and_then(|p| p.thread.clone()) {
            Some(thread) if draft.in_reply_to.is_some() => thread,
            _ => letter::derive_thread(&subject, &self.format.me, &everybody, &self.format.me),
        };
        Ok(vec![PreparedRecord { to: all, id, thread, bytes, files: draft.attachments.clone() }])
    }

    fn check_appendable(&self, bytes: u64) -> Result<(), StoreError> {
        self.require_mailbox_folder()?;
        let mut above = Some(self.mailbox_dir());
        while let Some(folder) = above.filter(|f| !f.is_dir()) {
            above = folder.parent();
        }
        let Some(folder) = above else { return Ok(()) };
        if folder == self.mailbox_dir() {
            let day = date::format_local_day(Timestamp::now(), self.zone());
            for place in [MailboxFolder::Outbox, MailboxFolder::Sent] {
                let made = confined::check_can_create(folder, &[&day, place.as_str()]);
                made.map_err(|(path, e)| StoreError::io(&path, e))?;
            }
        }
        // The text goes to the outbox and to each recipient.
        fs::check_room_for_files(folder, bytes.saturating_mul(2), 2)
    }

    /// Puts a record into today's `outbox/` unless it is in the mailbox already, and delivers it as far as possible
    /// now.
    ///
    /// # Errors
    /// The error of the system; nothing is half written.
    fn append_record(&self, message: &PreparedRecord) -> Result<(), StoreError> {
        let _turn = self.format.delivery_lock.lock();
        self.make_mailbox()?;
        let path = match self.find_appended(message)? {
            Some(path) => path,
            None => self.write_to_outbox(message)?,
        };
        // It is in the outbox. If it cannot be delivered now, it is delivered later.
        if let Err(e) = self.deliver_file(&path) {
            tracing::warn!(file = %sanitize_line(&path), error = %e, "a message could not be delivered \
                yet; it is tried again");
        }
        Ok(())
    }

    fn sync_appends(&self) -> Result<(), StoreError> {
        self.sync_dirs(Path::new(""))
    }
}

/// Checks that a recipient is an address of the format.
fn check_recipient(to: &str) -> Result<(), StoreError> {
    if names::is_mailbox_name(to) {
        return Ok(());
    }
    Err(StoreError::Invalid(format!(
        "{:?} is not an AgentAZAll address: it is the name of a mailbox folder (mostly \
         name@host), without '/', ',', control characters or a '.' at its beginning",
        sanitize_line(to)
    )))
}

impl AgentAzall {
    /// Returns an id that neither a message of mine nor a file has.
    fn find_free_id(
        &self,
        to: &str,
        subject: &str,
        with: &PrepareContext<'_>,
    ) -> Result<String, StoreError> {
        loop {
            let mut random = [0; 8];
            getrandom::fill(&mut random)
                .map_err(|e| StoreError::io(self.mailbox_dir(), io::Error::other(e.to_string())))?;
            let id = write::generate_id(&self.format.me, to, subject, with.now, random);
            if !(with.is_id_taken)(&id) && self.find_files_named(&id)?.is_empty() {
                return Ok(id);
            }
        }
    }

    /// Returns the files of this stem in any `outbox/`, `carrying/` or `sent/`, as paths below the mailbox.
    fn find_files_named(&self, stem: &str) -> Result<Vec<String>, StoreError> {
        if !layout::is_real_dir(self.mailbox_dir()) {
            return Ok(Vec::new());
        }
        let days = layout::list_days(self.mailbox_dir())
            .map_err(|e| StoreError::io(self.mailbox_dir(), e))?;
        let mut out = Vec::new();
        for day in days.iter().rev() {
            for folder in [MailboxFolder::Sent, MailboxFolder::Carrying, MailboxFolder::Outbox] {
                let path = format!("{day}/{}/{stem}.txt", folder.as_str());
                if std::fs::symlink_metadata(self.mailbox_dir().join(&path)).is_ok() {
                    out.push(path);
                }
            }
        }
        Ok(out)
    }

    /// Returns the path of a record that was appended before.
    fn find_appended(&self, message: &PreparedRecord) -> Result<Option<String>, StoreError> {
        for path in self.find_files_named(&message.id)? {
            let file = self.mailbox_dir().join(&path);
            if deliver::is_same_but_status(&file, message.bytes.as_bytes()) {
                // The process that wrote it may have ended before the names were on disk.
                let all = deliver::list_letter_folders(&self.format, &path, &message.bytes);
                self.mark_unsynced(all.into_iter().filter(|folder| layout::is_real_dir(folder)));
                self.note_change(&file);
                return Ok(Some(path));
            }
        }
        Ok(None)
    }

    fn write_to_outbox(&self, message: &PreparedRecord) -> Result<String, StoreError> {
        let day = date::format_local_day(Timestamp::now(), self.zone());
        let dir = self.mailbox_dir().join(&day).join(MailboxFolder::Outbox.as_str());
        for folder in [MailboxFolder::Inbox, MailboxFolder::Sent, MailboxFolder::Outbox] {
            new_files::make_dirs_below(self.mailbox_dir(), &[&day, folder.as_str()])?;
        }
        self.mark_unsynced([dir.clone()]);
        let parts = dir.join(&message.id);
        if !message.files.is_empty() && !self.has_all_attachments(&parts, message) {
            let list: Vec<_> =
                message.files.iter().map(|f| (f.name.clone(), f.path.clone())).collect();
            new_files::create_folder_of_copies(&parts, &list)
                .map_err(|e| StoreError::io(&parts, e))?;
        }
        let file = dir.join(format!("{}.txt", message.id));
        new_files::create_file(&file, 0o666, message.bytes.as_bytes())
            .map_err(|e| StoreError::io(&file, e))?;
        self.note_change(&file);
        Ok(format!("{day}/{}/{}.txt", MailboxFolder::Outbox.as_str(), message.id))
    }

    /// Returns true if an interrupted append has left all attachments.
    fn has_all_attachments(&self, folder: &Path, message: &PreparedRecord) -> bool {
        layout::is_real_dir(folder)
            && message.files.iter().all(|file| {
                let digest = self.hash_attachment(&folder.join(&file.name));
                digest.is_ok_and(|digest| digest.eq_ignore_ascii_case(&file.sha256))
            })
    }

    /// Makes my mailbox, if it is missing, and writes my key into it, if the key waits for that.
    ///
    /// # Errors
    /// The error of the system, or a refusal if something else is in its place.
    pub(super) fn make_mailbox(&self) -> Result<(), StoreError> {
        let base = self.mailbox_dir();
        self.require_mailbox_folder()?;
        (self as &dyn Store).require_folder()?;
        if std::fs::symlink_metadata(base).is_err() {
            fs::make_dirs(base, 0o777).map_err(|e| StoreError::io(base, e))?;
        }
        if let Some(seed) = self.format.key_for_later.lock().as_ref() {
            match key::write_first_key(base, seed, Timestamp::now(), self.zone()) {
                Err(e) if e.kind() != io::ErrorKind::AlreadyExists => {
                    return Err(StoreError::io(&key::key_path(base), e));
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// Checks that every reader takes a letter of this size, also when a mark has made it one byte longer.
///
/// # Errors
/// [`StoreError::TooLarge`].
fn check_letter_size(bytes: usize) -> Result<(), StoreError> {
    if bytes < letter::MAX_FILE {
        return Ok(());
    }
    let limit = letter::MAX_FILE >> 20;
    Err(StoreError::TooLarge(format!("a letter with its header has less than {limit} MiB")))
}

/// Checks that files of these names and sizes can be attached.
///
/// # Errors
/// [`StoreError::Invalid`] with the first name that cannot, [`StoreError::TooLarge`].
pub(super) fn check_attachment_names(files: &[(String, u64)]) -> Result<(), StoreError> {
    let mut seen: Vec<&str> = Vec::new();
    for (name, size) in files {
        let shown = sanitize_line(name);
        if *size > attachments::MAX_ATTACHMENT {
            let limit = attachments::MAX_ATTACHMENT >> 30;
            let why = format!("Attach: {shown:?} has more than {limit} GiB");
            return Err(StoreError::TooLarge(why));
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_letter_that_no_reader_takes_is_too_large() {
        assert!(check_letter_size(letter::MAX_FILE - 1).is_ok());
        let refused = check_letter_size(letter::MAX_FILE);
        assert!(matches!(refused, Err(StoreError::TooLarge(_))), "{refused:?}");
    }
}
