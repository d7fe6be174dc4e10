//! Writes to the tree: creation, writing, removal and renaming (docs/SEMANTICS.md, "Writing" and S64).

use std::sync::Arc;

use super::file::OpenFile;
use super::maildir::creation_refused_error;
use super::node::{MessageFolder, Node};
use super::{DraftWriters, Error, OpenRequest, Tree};
use crate::index::{MsgIx, ThreadIx};
use crate::model::MessageKey;
use crate::outbox::{BODY, DraftTarget, OutboxEntry};

fn fixed_parts_error() -> Error {
    Error::not_permitted(
        "the files of a message cannot be changed; copy them to where you want to work on them",
    )
}

impl Tree {
    /// Returns the error that says why a node cannot be written.
    pub(super) fn not_writable_error(&self, node: &Node) -> Error {
        match node {
            _ if self.settings.read_only => Error::ReadOnly,
            Node::Message(..) => Error::not_permitted(
                "messages cannot be changed; write NAME.reply to answer this one",
            ),
            Node::Part(..) => fixed_parts_error(),
            Node::Warning(_) => Error::not_permitted("this note about a sent message is fixed"),
            _ => Error::not_permitted("this file cannot be written; drafts go to outbox/"),
        }
    }

    pub(super) fn open_draft(&self, node: &Node, access: &OpenRequest) -> Result<OpenFile, Error> {
        if let Node::ComposeFile(folder, name) = node {
            return self.open_composed(folder, name, access);
        }
        if !access.write {
            let outbox = self.outbox.as_ref().ok_or(Error::NotFound)?;
            let (name, target) = self.draft_target(node)?;
            let text = match node {
                // The answer does not exist yet, so an editor begins with an empty text.
                Node::Reply(..) | Node::ReplyAll(..) => Some(Arc::default()),
                _ => outbox.read_text(&name, &target),
            };
            return Ok(OpenFile::from_bytes(text.ok_or(Error::NotFound)?));
        }
        let outbox = self.writable_outbox()?;
        let (name, target) = self.draft_target(node)?;
        if target == DraftTarget::Outbox && self.is_error_note(&name) {
            return Err(Error::not_permitted(
                "this note is about a refused draft; write the draft again",
            ));
        }
        let id = outbox.start_draft(&name, target, access.truncate)?;
        Ok(OpenFile::Draft {
            id,
            writers: DraftWriters::new(access.opener),
            append: access.append,
            composed: false,
        })
    }

    /// Returns the name and the target of a draft.
    pub(super) fn draft_target(&self, node: &Node) -> Result<(String, DraftTarget), Error> {
        match node {
            Node::Draft(name) => Ok((name.clone(), DraftTarget::Outbox)),
            Node::ThreadDraft(thread, name) => Ok((name.clone(), self.thread_target(*thread)?)),
            Node::Reply(_, ix) => Ok(self.reply_target(*ix, false)),
            Node::ReplyAll(_, ix) => Ok(self.reply_target(*ix, true)),
            Node::ReplyDraft(_, ix, name) => Ok((name.clone(), self.reply_target(*ix, false).1)),
            _ => Err(self.not_writable_error(node)),
        }
    }

    /// Returns the name and the target of an answer to a message, or to all its recipients.
    fn reply_target(&self, ix: MsgIx, all: bool) -> (String, DraftTarget) {
        let name = self.message_name(ix);
        let stem = name.trim_end_matches(".txt");
        let MessageKey { store, from, id } = self.index.message_key(ix);
        if all {
            (format!("{stem}.reply-all"), DraftTarget::ReplyAll { store, from, id })
        } else {
            (format!("{stem}.reply"), DraftTarget::Reply { store, from, id })
        }
    }

    fn thread_target(&self, thread: ThreadIx) -> Result<DraftTarget, Error> {
        let core = self.index.read();
        let (id, number) = core.threads.thread_id(&core.messages, thread);
        let store = self.index.stores().get(number).ok_or(Error::NotFound)?;
        Ok(DraftTarget::Thread { store: store.name().to_owned(), id: id.to_owned() })
    }

    /// Creates a file and opens it.
    ///
    /// # Errors
    /// [`Error::NotPermitted`] where nothing can be created, outbox errors for names that are no address.
    pub fn create(
        &self,
        parent: &Node,
        name: &str,
        access: &OpenRequest,
    ) -> Result<(Node, OpenFile), Error> {
        self.writable_outbox()?;
        let node = match parent {
            Node::Inbox | Node::ArchiveDay(_) | Node::SentDay(_) | Node::Thread(_)
                if let Some(why) = super::sidecars::explain_missing(name) =>
            {
                return Err(Error::Missing(why.to_owned()));
            }
            Node::Outbox => Node::Draft(name.to_owned()),
            Node::Compose(folder) => Node::ComposeFile(folder.clone(), name.to_owned()),
            Node::TextFolder(number, folder) => {
                let node = Node::Text(*number, folder, name.to_owned());
                let access = OpenRequest { write: true, ..access.clone() };
                let file = self.open_text((*number, *folder, name.to_owned()), &access)?;
                return Ok((node, file));
            }
            Node::Parts(..) => return Err(fixed_parts_error()),
            Node::Maildir | Node::MailBox(_) => return Err(creation_refused_error()),
            _ => self.draft_node(parent, name).ok_or_else(|| {
                Error::not_permitted(
                    "files cannot be created here; drafts go to outbox/, answers beside a message \
                     (NAME.reply) or into a thread's folder",
                )
            })?,
        };
        let file = self.open_draft(&node, &OpenRequest { write: true, ..access.clone() })?;
        Ok((node, file))
    }

    /// Writes all bytes to an open file.
    ///
    /// # Errors
    /// Any refusal that is already certain.
    pub fn write_file(&self, file: &OpenFile, offset: u64, data: &[u8]) -> Result<(), Error> {
        match file {
            OpenFile::Draft { id, append, .. } => {
                let at = (!append).then_some(offset);
                Ok(self.writable_outbox()?.write(*id, at, data)?)
            }
            OpenFile::Compose { file, .. } => {
                Ok(self.writable_outbox()?.composer().write_folder_file(file, offset, data)?)
            }
            OpenFile::Text(file) => {
                Ok(file.write(offset, data, self.writable_outbox()?.max_message())?)
            }
            OpenFile::Ack { message, done } => self.write_ack(*message, done, data),
            _ => Err(Error::not_permitted("this file was not opened for writing")),
        }
    }

    /// Sets the length of a draft or text: of the open file if there is one, else of the kept one.
    ///
    /// # Errors
    /// [`Error::NotPermitted`] for everything else.
    pub fn set_len(&self, node: &Node, file: Option<&OpenFile>, len: u64) -> Result<(), Error> {
        match (file, node) {
            (Some(OpenFile::Draft { id, .. }), _) => {
                Ok(self.writable_outbox()?.truncate(*id, len)?)
            }
            (Some(OpenFile::Compose { file, .. }), _) => {
                Ok(self.writable_outbox()?.composer().resize_folder_file(file, len)?)
            }
            (Some(OpenFile::Text(file)), _) => self.set_text_len(file, len),
            (None, Node::Text(number, folder, name)) => {
                self.truncate_text(&(*number, *folder, name.clone()), len)
            }
            // `truncate FILE` and `> FILE` on a name that no handle holds.
            (Some(OpenFile::Ack { .. }), _)
            | (None, Node::Reply(..) | Node::ReplyAll(..) | Node::Ack(..)) => Ok(()),
            (None, Node::ComposeFile(folder, name)) if *name != BODY => {
                let outbox = self.writable_outbox()?;
                let file =
                    outbox.composer().open_folder_file(folder, name, true, (false, false))?;
                let done = outbox.composer().resize_folder_file(&file, len);
                outbox.composer().close_folder_file(&file);
                Ok(done?)
            }
            (None, Node::Draft(_) | Node::ThreadDraft(..) | Node::ReplyDraft(..)) => {
                let outbox = self.writable_outbox()?;
                let (name, target) = self.draft_target(node)?;
                let id = outbox.start_draft(&name, target, false)?;
                let done = outbox.truncate(id, len);
                outbox.close_unsent(id);
                Ok(done?)
            }
            _ => Err(self.not_writable_error(node)),
        }
    }

    /// Makes a composing folder.
    ///
    /// # Errors
    /// [`Error::NotPermitted`] anywhere but in `outbox/`.
    pub fn mkdir(&self, parent: &Node, name: &str) -> Result<Node, Error> {
        let outbox = self.writable_outbox()?;
        if *parent != Node::Outbox {
            return Err(Error::not_permitted("folders can only be made in outbox/"));
        }
        outbox.composer().create_folder(name)?;
        Ok(Node::Compose(name.to_owned()))
    }

    /// Removes a composing folder, which must be empty.
    ///
    /// # Errors
    /// [`Error::NotEmpty`], [`Error::NotPermitted`].
    pub fn rmdir(&self, parent: &Node, name: &str) -> Result<(), Error> {
        if *parent != Node::Outbox {
            return Err(Error::not_permitted("this folder cannot be removed"));
        }
        if self.writable_outbox()?.composer().remove_folder(name)? {
            Ok(())
        } else {
            Err(Error::NotEmpty)
        }
    }

    /// Serves `rm`: marks a message of `inbox/` as read, throws a draft away.
    ///
    /// # Errors
    /// [`Error::NotPermitted`] for everything else.
    pub fn unlink(&self, parent: &Node, name: &str) -> Result<(), Error> {
        let outbox = self.writable_outbox()?;
        match parent {
            Node::Inbox | Node::ArchiveDay(_) | Node::SentDay(_) | Node::Thread(_)
                if let Some(draft) = self.find_draft_beside(parent, name) =>
            {
                let (name, target) = self.draft_target(&draft)?;
                Ok(outbox.remove(&name, &target)?)
            }
            Node::Inbox | Node::ArchiveDay(_) | Node::SentDay(_) | Node::Thread(_)
                if let Some(Node::Draft(note)) = self.find_error_note(parent, name) =>
            {
                Ok(outbox.remove(&note, &DraftTarget::Outbox)?)
            }
            Node::Inbox => match self.lookup(parent, name)? {
                Node::Message(_, ix) => Ok(self.index.mark_message(ix, true, false)?),
                node => Err(self.not_writable_error(&node)),
            },
            Node::MailBox(which) => self.remove_from_maildir(*which, name),
            Node::Outbox => Ok(outbox.remove(name, &DraftTarget::Outbox)?),
            Node::Compose(folder) => Ok(outbox.composer().remove_folder_file(folder, name)?),
            Node::TextFolder(number, folder) => {
                self.remove_text(&(*number, *folder, name.to_owned()))
            }
            Node::Parts(..) => Err(fixed_parts_error()),
            _ => Err(Error::not_permitted(
                "only messages in inbox/ (which marks them read) and drafts in outbox/ can be removed",
            )),
        }
    }

    /// Serves `mv`: sends a private draft that gets a plain name, and makes a message unread that moves from
    /// `archive/` to `inbox/`.
    ///
    /// # Errors
    /// [`Error::NotPermitted`] for everything else, outbox errors for drafts that are refused.
    pub fn rename(
        &self,
        parent: &Node,
        name: &str,
        new_parent: &Node,
        new_name: &str,
        replace: bool,
    ) -> Result<(), Error> {
        let outbox = self.writable_outbox()?;
        match (parent, new_parent) {
            (Node::Outbox, Node::Outbox) if outbox.composer().folder_time(name).is_some() => {
                Ok(outbox.composer().rename_folder(name, new_name)?)
            }
            (Node::Outbox, Node::Outbox) if self.is_error_note(name) => Err(Error::not_permitted(
                "this note about a refused draft goes with its draft; rename the draft, or copy the note",
            )),
            (Node::Outbox, Node::Outbox) => {
                let named = |name: &str| (name.to_owned(), DraftTarget::Outbox);
                Ok(outbox.rename_draft(&named(name), &named(new_name), replace)?)
            }
            (Node::Inbox | Node::ArchiveDay(_) | Node::SentDay(_) | Node::Thread(_), _)
                if parent == new_parent
                    && let Some(draft) = self.find_draft_beside(parent, name) =>
            {
                let to = self.draft_target(&self.resolve_rename_target(parent, new_name)?)?;
                Ok(outbox.rename_draft(&self.draft_target(&draft)?, &to, replace)?)
            }
            (Node::ArchiveDay(_) | Node::Inbox, Node::Inbox) => {
                let Node::Message(_, ix) = self.lookup(parent, name)? else {
                    return Err(Error::not_permitted("only messages can be moved to inbox/"));
                };
                let kept = self.message_name(ix) == *new_name;
                if !kept && !self.is_short_name(new_parent, new_name, ix) {
                    return Err(Error::not_permitted("messages keep their names"));
                }
                let to_me = self.index.read().messages.entry(ix).is_to_me();
                if !to_me {
                    return Err(Error::not_permitted("this message is not addressed to you"));
                }
                if *parent != Node::Inbox {
                    self.mark_unread(&Node::Message(MessageFolder::Inbox, ix));
                }
                Ok(())
            }
            (Node::Compose(from), Node::Compose(to)) if from == to => {
                Ok(outbox.composer().rename_folder_file(from, name, new_name)?)
            }
            (Node::TextFolder(number, folder), Node::TextFolder(n, f))
                if (number, folder) == (n, f) =>
            {
                let key = |name: &str| (*number, *folder, name.to_owned());
                self.rename_text(&key(name), &key(new_name), replace)
            }
            (Node::Compose(folder), Node::Outbox)
                if outbox.composer().move_file_out(folder, name, new_name, replace)? =>
            {
                Ok(())
            }
            (Node::MailBox(from), Node::MailBox(to)) => {
                self.move_in_maildir((*from, name), (*to, new_name))
            }
            // After this error `mv` copies, which writes the draft at the new name.
            (
                Node::Outbox | Node::Thread(_) | Node::Compose(_) | Node::TextFolder(..),
                Node::Outbox | Node::Thread(_) | Node::Compose(_) | Node::TextFolder(..),
            ) => Err(Error::from_errno(libc::EXDEV)),
            (Node::Parts(..), _) | (_, Node::Parts(..)) => Err(fixed_parts_error()),
            _ => Err(Error::not_permitted(
                "only drafts in outbox/ and private files in me/ can be renamed, and messages moved from archive/ to inbox/",
            )),
        }
    }

    /// Returns true if a name in `outbox/` is that of a note about a refused draft.
    fn is_error_note(&self, name: &str) -> bool {
        let found = self.outbox.as_ref().and_then(|outbox| outbox.find_entry(name));
        found.is_some_and(|file| file.is_note)
    }

    /// Marks a message unread again.
    pub fn mark_unread(&self, message: &Node) {
        if let Node::Message(_, ix) = message {
            self.release_claim(*ix);
            // Only a mark can fail.
            drop(self.index.mark_message(*ix, false, false));
        }
    }

    /// Returns the outbox entry of a draft beside messages, if there is one now.
    pub(super) fn lookup_draft(&self, draft: &Node) -> Option<OutboxEntry> {
        let (name, target) = self.draft_target(draft).ok()?;
        self.outbox.as_ref()?.find_draft(&name, &target)
    }

    /// Finds the draft of this name beside messages, if there is one now.
    pub(super) fn find_draft_beside(&self, folder: &Node, name: &str) -> Option<Node> {
        self.draft_node(folder, name).filter(|draft| self.lookup_draft(draft).is_some())
    }

    /// Returns the node that a draft beside messages becomes under a new name there: the answer to one of them,
    /// or a draft.
    fn resolve_rename_target(&self, folder: &Node, name: &str) -> Result<Node, Error> {
        if let Some(why) = super::sidecars::explain_missing(name) {
            let found = self.find_message(folder, name)?;
            return found.ok_or_else(|| Error::Missing(why.to_owned()));
        }
        self.draft_node(folder, name).ok_or_else(|| {
            Error::not_permitted(
                "an answer is sent under the name of its message, with .reply in place of .txt",
            )
        })
    }

    /// Finds a draft or composing folder by its name in `outbox/`.
    pub(super) fn find_draft(&self, name: &str) -> Option<Node> {
        if self.outbox.as_ref().is_some_and(|outbox| outbox.composer().folder_time(name).is_some())
        {
            return Some(Node::Compose(name.to_owned()));
        }
        if name.strip_suffix(".error").is_some() {
            self.wait_for_sent(&Node::Sent);
        }
        let outbox = self.outbox.as_ref().filter(|o| !o.is_leaving(name))?;
        outbox.find_entry(name).map(|l| Node::Draft(l.name))
    }

    pub(super) fn outbox_entries(&self) -> Vec<(String, Node)> {
        let Some(outbox) = &self.outbox else { return Vec::new() };
        let drafts =
            outbox.list_entries().into_iter().map(|l| (l.name.clone(), Node::Draft(l.name)));
        let folders =
            outbox.composer().folder_names().into_iter().map(|n| (n.clone(), Node::Compose(n)));
        let mut out: Vec<(String, Node)> = drafts.chain(folders).collect();
        out.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        out
    }

    pub(super) fn compose_entries(&self, folder: &str) -> Result<Vec<(String, Node)>, Error> {
        let files = self.outbox.as_ref().and_then(|outbox| outbox.composer().folder_files(folder));
        let node = |n: String| (n.clone(), Node::ComposeFile(folder.to_owned(), n));
        Ok(files.ok_or(Error::NotFound)?.into_iter().map(node).collect())
    }

    fn open_composed(
        &self,
        folder: &str,
        name: &str,
        access: &OpenRequest,
    ) -> Result<OpenFile, Error> {
        let (outbox, append) = (self.writable_outbox()?, access.append);
        let writers = DraftWriters::new(access.opener);
        if name != BODY || !access.write {
            let how = (access.truncate, append);
            let file = outbox.composer().open_folder_file(folder, name, access.write, how)?;
            return Ok(OpenFile::Compose { file, writers });
        }
        outbox.composer().folder_time(folder).ok_or(Error::NotFound)?;
        let kept = if access.truncate { Vec::new() } else { outbox.composer().folder_body(folder) };
        let id = outbox.composer().start_body(folder, kept);
        Ok(OpenFile::Draft { id, writers, append, composed: true })
    }

    /// Returns true for a draft or a text. Programs may set its mode and times, without effect.
    pub fn is_editable(&self, node: &Node) -> bool {
        matches!(
            node,
            Node::Draft(_)
                | Node::ThreadDraft(..)
                | Node::Compose(_)
                | Node::ComposeFile(..)
                | Node::Reply(..)
                | Node::ReplyAll(..)
                | Node::ReplyDraft(..)
                | Node::Ack(..)
                | Node::Text(..)
        )
    }

    /// Returns the length of an open draft, for `fstat` while it is written.
    pub fn open_len(&self, file: &OpenFile) -> Option<u64> {
        match file {
            OpenFile::Draft { id, .. } => self.outbox.as_ref()?.open_len(*id),
            OpenFile::Compose { file, .. } => Some(file.len()),
            OpenFile::Text(file) => Some(file.len()),
            _ => None,
        }
    }
}
