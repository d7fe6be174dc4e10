//! Delivery from `outbox/` to mailboxes of this machine, and then to `sent/` (docs/formats/agentazall.md, sections 6
//! and 7).
//!
//! A link may reach a recipient who has no mailbox here. Then the file is first moved to `carrying/`, where no other
//! program looks, and is handed over there.
//!
//! Only files that msgfs wrote are delivered: their block has a Signature-V2 by my key. Others belong to the program
//! that wrote them. The reference may work on the same tree at the same moment. So files may appear or vanish
//! meanwhile, and nothing is ever put under another name.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::CWD;

use super::layout::{LetterPath, MailboxFolder};
use super::letter::MAX_FILE;
use super::waiting_letters::{RecipientState, WaitingLetter, check_target};
use super::{AgentAzall, attachments, block, format, layout, letter, new_files, text};
use crate::model::sanitize_line;
use crate::store::atomic_file::rename_new;
use crate::store::engine::files::FileRow;
use crate::store::{DeliveryQueue, Durability, Notebook, OutboundMail, Store as _, StoreError, fs};

/// The recipients that have a file of `outbox/`, by its path.
pub(super) type DeliveredRecipients = BTreeMap<String, BTreeSet<String>>;

impl DeliveryQueue for AgentAzall {
    fn deliver_waiting(&self) -> Result<bool, StoreError> {
        let _turn = self.format.delivery_lock.lock();
        let paths = self.list_outbox_paths();
        self.forget_gone_files(&paths)?;
        let mut done = false;
        let mut waiting = BTreeSet::new();
        let mut failed = None;
        for path in &paths {
            match self.deliver_file(path) {
                Ok(moved) => done |= moved,
                Err(e) => {
                    tracing::warn!(file = %sanitize_line(path), error = %e, "a message could not be \
                        delivered; it is tried again");
                    failed = failed.or(Some(e));
                }
            }
            let names = self.read_waiting_letter(path).map(|w| w.recipients).unwrap_or_default();
            waiting.extend(
                names
                    .into_iter()
                    .filter(|(_, state)| *state != RecipientState::Delivered)
                    .map(|(to, _)| to),
            );
        }
        *self.format.awaited_addresses.write() = waiting;
        self.format.router.sync_accepted(self.mailbox_dir())?;
        self.sync_dirs(Path::new(""))?;
        failed.map_or(Ok(done), Err)
    }

    fn folders_to_sweep(&self) -> Vec<PathBuf> {
        Notebook::folders(self).iter().flat_map(|folder| self.list_note_folders(folder)).collect()
    }
}

impl AgentAzall {
    pub(super) fn list_outbox_paths(&self) -> Vec<String> {
        let table = self.table.read();
        let outboxes = (0..).zip(table.folders()).filter(|(_, f)| is_waiting_folder(&f.path));
        let files = outboxes.flat_map(|(number, _)| table.files_in(number));
        let messages = files.filter(|n| table.row(*n).is_some_and(FileRow::is_message));
        messages.filter_map(|n| table.path(n)).collect()
    }

    /// Returns the SHA-256 of a file, in hex.
    pub(super) fn hash_attachment(&self, path: &Path) -> io::Result<String> {
        self.format.digests.file_digest(&fs::open_regular(path)?)
    }

    /// Delivers one file of `outbox/` as far as possible. Returns true if anything was done.
    ///
    /// # Errors
    /// The error of the system.
    pub(super) fn deliver_file(&self, path: &str) -> Result<bool, StoreError> {
        let Some(waiting) = self.read_waiting_letter(path).filter(|w| w.is_mine) else {
            return Ok(false);
        };
        let Some(place) = LetterPath::parse(path) else { return Ok(false) };
        let by_link =
            waiting.recipients.iter().any(|(_, state)| matches!(state, RecipientState::Link(_)));
        if by_link && place.folder == MailboxFolder::Outbox {
            // The process that moves the file sends it.
            if !self.move_to_folder(MailboxFolder::Carrying, &place, &waiting.bytes)? {
                return Ok(false);
            }
            return self.deliver_file(&place.path_in(MailboxFolder::Carrying)).map(|_| true);
        }
        let mut done = false;
        let mut all = true;
        let mut failed = None;
        for (to, state) in &waiting.recipients {
            let delivered = match state {
                RecipientState::Ended(_) => continue,
                RecipientState::Delivered => {
                    // A process that ended may have put it there, and not have brought its name to disk.
                    self.mark_unsynced([inbox_of(&self.format.mailboxes.join(to), &place)]);
                    true
                }
                RecipientState::Waiting(_) => false,
                RecipientState::Undelivered | RecipientState::Link(_) => {
                    let handed = match state {
                        RecipientState::Link(link) => {
                            self.deliver_to_link(link, to, &place, &waiting)
                        }
                        _ => self.deliver_to_mailbox(to, &place, &waiting.bytes),
                    };
                    self.note_failure(path, to, handed.as_ref().err());
                    done |= *handed.as_ref().unwrap_or(&false);
                    handed.unwrap_or_else(|e| {
                        failed = failed.take().or(Some(e));
                        false
                    })
                }
            };
            let is_here = !matches!(state, RecipientState::Link(_));
            if delivered
                && is_here
                && let Err(e) = self.note_delivered(path, to, waiting.recipients.len() > 1)
            {
                failed = failed.or(Some(e));
            }
            all &= delivered && is_here;
        }
        if all && !waiting.recipients.is_empty() {
            let mut inboxes = waiting
                .recipients
                .iter()
                .map(|(to, _)| inbox_of(&self.format.mailboxes.join(to), &place));
            // The copies reach the disk before the letter leaves the outbox.
            let synced = match self.properties.durability {
                Durability::None => Ok(()),
                Durability::Fsync => inboxes.try_for_each(|inbox| self.sync_dirs(&inbox)),
            };
            let moved = synced
                .and_then(|()| self.move_to_folder(MailboxFolder::Sent, &place, &waiting.bytes));
            self.note_failure(path, "", moved.as_ref().err());
            match moved {
                Ok(moved) => done |= moved,
                Err(e) => failed = failed.or(Some(e)),
            }
        }
        failed.map_or(Ok(done), Err)
    }

    /// Notes that a recipient has the message, on disk if others may wait. From now on the recipient does not get it
    /// again, not even after deleting it.
    fn note_delivered(&self, path: &str, to: &str, others: bool) -> Result<(), StoreError> {
        let mut known = self.format.delivered.lock();
        known.entry(to_outbox_path(path)).or_default().insert(to.to_owned());
        if !others {
            return Ok(());
        }
        self.sync_dirs(Path::new(""))?;
        self.format.state.save_delivered(&known)
    }

    /// Forgets the recipients of files that are not in the outbox any more. A file that cannot be seen may still be
    /// there.
    fn forget_gone_files(&self, paths: &[String]) -> Result<(), StoreError> {
        let stays = |path: &String| {
            let there = || std::fs::symlink_metadata(self.mailbox_dir().join(path));
            paths.iter().any(|one| to_outbox_path(one) == *path)
                || !layout::is_real_dir(self.mailbox_dir())
                || !there().is_err_and(|e| e.kind() == io::ErrorKind::NotFound)
        };
        self.format.delivery_failures.lock().retain(|(path, _), _| stays(&to_outbox_path(path)));
        let mut known = self.format.delivered.lock();
        known.retain(|path, _| stays(path));
        self.format.state.save_delivered(&known)
    }

    fn note_failure(&self, path: &str, to: &str, error: Option<&StoreError>) {
        let key = (path.to_owned(), to.to_owned());
        let mut failed = self.format.delivery_failures.lock();
        match error {
            Some(e) => failed.insert(key, e.to_string()),
            None => failed.remove(&key),
        };
    }

    /// Puts a copy into one mailbox, attachments before the text. Returns `false` if another file has the name.
    fn deliver_to_mailbox(
        &self,
        to: &str,
        place: &LetterPath<'_>,
        bytes: &[u8],
    ) -> Result<bool, StoreError> {
        let mailbox = self.format.mailboxes.join(to);
        let inbox = inbox_of(&mailbox, place);
        let target = inbox.join(format!("{}.txt", place.stem));
        let io = |e| StoreError::io(&target, e);
        new_files::make_dirs_below(&mailbox, &[place.day, "inbox"])?;
        let attached = self.list_attachments(place).map_err(io)?;
        if !attached.is_empty()
            && !self.put_attachments(&inbox.join(place.stem), &attached).map_err(io)?
        {
            return Ok(false);
        }
        self.mark_unsynced([inbox]);
        match new_files::create_file(&target, 0o666, bytes) {
            Ok(()) => {
                if to == self.format.me {
                    self.note_change(&target);
                }
                Ok(true)
            }
            // Another program was faster. The message is delivered if its file is the same.
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
                Ok(is_same_but_status(&target, bytes))
            }
            Err(e) => Err(io(e)),
        }
    }

    /// Returns the names and paths of a file's attachments.
    fn list_attachments(&self, place: &LetterPath<'_>) -> io::Result<Vec<(String, PathBuf)>> {
        let stem = format!("{}/{}/{}", place.day, place.folder.as_str(), place.stem);
        attachments::list_attachment_paths(self.mailbox_dir(), &stem)
    }

    /// Puts attachments in place. Returns `false` if other files have their names.
    pub(super) fn put_attachments(
        &self,
        folder: &Path,
        attached: &[(String, PathBuf)],
    ) -> io::Result<bool> {
        match new_files::create_folder_of_copies(folder, attached) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
            other => return other.map(|()| true),
        }
        if !layout::is_real_dir(folder) {
            return Ok(false);
        }
        self.mark_unsynced([folder.to_owned()]);
        for (name, source) in attached {
            let target = folder.join(name);
            match new_files::copy_file(&target, source) {
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
                    if self.hash_attachment(&target)? != self.hash_attachment(source)? {
                        return Ok(false);
                    }
                }
                other => other?,
            }
        }
        Ok(true)
    }

    /// Moves a message to another folder of its day, attachments first: after a crash the rest is still in the old
    /// folder and is moved next time. Returns `false` if another file has its name there, or another program moved it.
    fn move_to_folder(
        &self,
        to: MailboxFolder,
        from: &LetterPath<'_>,
        bytes: &[u8],
    ) -> Result<bool, StoreError> {
        let path = from.path_in(from.folder);
        let source = self.mailbox_dir().join(&path);
        let folder = self.mailbox_dir().join(from.day).join(to.as_str());
        let target = folder.join(format!("{}.txt", from.stem));
        let io = |e| StoreError::io(&target, e);
        new_files::make_dirs_below(self.mailbox_dir(), &[from.day, to.as_str()])?;
        self.mark_unsynced([folder.clone()]);
        self.mark_unsynced(source.parent().map(Path::to_owned));
        if matches!(check_target(&target, bytes), RecipientState::Waiting(_)) {
            return Ok(false);
        }
        let parts = layout::attachments_dir(&source);
        match rename_new(CWD, &parts, &folder.join(from.stem)) {
            Err(e)
                if !matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::AlreadyExists) =>
            {
                return Err(io(e));
            }
            _ => {}
        }
        match rename_new(CWD, &source, &target) {
            // Another program moved it.
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
                if !is_same_but_status(&target, bytes) {
                    return Ok(false);
                }
                std::fs::remove_file(&source).map_err(io)?;
            }
            other => other.map_err(io)?,
        }
        self.note_change(&source);
        self.note_change(&target);
        if to == MailboxFolder::Sent {
            let mut known = self.format.delivered.lock();
            known.remove(&to_outbox_path(&path));
            self.format.state.save_delivered(&known)?;
        }
        Ok(target.exists())
    }

    /// Hands a message to a link. The link has it on disk once its accepted messages are synced.
    fn deliver_to_link(
        &self,
        link: &str,
        to: &str,
        place: &LetterPath<'_>,
        waiting: &WaitingLetter,
    ) -> Result<bool, StoreError> {
        let path = self.mailbox_dir().join(&waiting.path);
        let io = |e| StoreError::io(&path, e);
        let parcel = OutboundMail {
            message_id: waiting.id.clone(),
            to: to.to_owned(),
            bytes: waiting.bytes.clone(),
            parts: self.list_attachments(place).map_err(io)?,
        };
        match self.format.router.get() {
            Some(router) => router.accept_mail(link, &parcel).map(|()| true).map_err(io),
            None => Ok(false),
        }
    }

    /// Notes folders whose new names must reach the disk.
    pub(super) fn mark_unsynced(&self, folders: impl IntoIterator<Item = PathBuf>) {
        self.format.unsynced_dirs.lock().extend(folders);
    }

    /// Waits until the new names of the noted folders at or below this one are on disk. All are below the empty path.
    ///
    /// # Errors
    /// The error of the system; the folders are tried again next time.
    pub(super) fn sync_dirs(&self, below: &Path) -> Result<(), StoreError> {
        let mut unsynced = self.format.unsynced_dirs.lock();
        fs::sync_dirs(unsynced.iter().filter(|folder| folder.starts_with(below)))?;
        unsynced.retain(|folder| !folder.starts_with(below));
        Ok(())
    }
}

/// Returns the folders that have, or had, a letter of mine: my own and those of its recipients.
pub(super) fn list_letter_folders(
    format: &format::AgentAzallFormat,
    path: &str,
    bytes: &str,
) -> Vec<PathBuf> {
    let Some(place) = LetterPath::parse(path) else { return Vec::new() };
    let reading = block::read(&text::parse(bytes.as_bytes()));
    let mine = format.mailboxes.join(&format.me).join(place.day);
    let mine = [place.folder, MailboxFolder::Outbox].map(|folder| mine.join(folder.as_str()));
    let to = letter::merge_recipients(&reading.to, &reading.cc).into_iter();
    let theirs = to.map(|to| inbox_of(&format.mailboxes.join(to), &place));
    mine.into_iter().chain(theirs).collect()
}

/// Returns the folder of a mailbox into which a letter is delivered.
fn inbox_of(mailbox: &Path, place: &LetterPath<'_>) -> PathBuf {
    mailbox.join(place.day).join("inbox")
}

/// Returns the path under which a file's recipients are noted: that in the outbox, wherever the file lies now.
pub(super) fn to_outbox_path(path: &str) -> String {
    LetterPath::parse(path)
        .map_or_else(|| path.to_owned(), |place| place.path_in(MailboxFolder::Outbox))
}

/// Returns true if messages in this folder of a mailbox wait for delivery.
fn is_waiting_folder(folder: &str) -> bool {
    format::parse_folder(folder).is_some_and(MailboxFolder::is_waiting)
}

/// Returns true if a file holds these bytes, whatever its mark.
pub(super) fn is_same_but_status(path: &Path, bytes: &[u8]) -> bool {
    let there = fs::read_small_file(path, MAX_FILE as u64);
    there.is_ok_and(|there| text::without_mark(&there) == text::without_mark(bytes))
}
