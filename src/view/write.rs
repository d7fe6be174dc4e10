//! Writes to the tree: creation, writing, removal and renaming (docs/SEMANTICS.md, "Writing" and S64).

use std::sync::Arc;

use super::file::OpenFile;
use super::folder_scope::FolderScope;
use super::me::MeView;
use super::node::{MessageFolder, Node};
use super::table::on_view;
use super::{DraftWriters, Error, OpenRequest, Tree};
use crate::index::{MsgIx, ThreadIx};
use crate::model::MessageKey;
use crate::outbox::{DraftTarget, OutboxEntry};

/// Returns true for a folder in which programs make files. `mv` may copy a file there.
fn takes_files(folder: &Node) -> bool {
    match folder {
        Node::View(folder) => folder.takes_files(),
        _ => matches!(folder, Node::Thread(_)),
    }
}

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
        self.writable_outbox()?;
        let (name, target) = self.draft_target(node)?;
        self.start_draft(&name, target, access)
    }

    /// Opens a draft to write it.
    pub(super) fn start_draft(
        &self,
        name: &str,
        target: DraftTarget,
        access: &OpenRequest,
    ) -> Result<OpenFile, Error> {
        let id = self.writable_outbox()?.start_draft(name, target, access.truncate)?;
        Ok(OpenFile::Draft {
            id,
            writers: DraftWriters::new(access.opener),
            append: access.append,
            composed: false,
        })
    }

    /// Sets the length of a draft that no handle holds.
    pub(super) fn truncate_draft(
        &self,
        name: &str,
        target: DraftTarget,
        len: u64,
    ) -> Result<(), Error> {
        let outbox = self.writable_outbox()?;
        let id = outbox.start_draft(name, target, false)?;
        let done = outbox.truncate(id, len);
        outbox.close_unsent(id);
        Ok(done?)
    }

    /// Returns the name and the target of a draft.
    pub(super) fn draft_target(&self, node: &Node) -> Result<(String, DraftTarget), Error> {
        match node {
            Node::ThreadDraft(thread, name) => Ok((name.clone(), self.thread_target(*thread)?)),
            Node::Reply(_, ix) => Ok(self.reply_target(*ix, false)),
            Node::ReplyAll(_, ix) => Ok(self.reply_target(*ix, true)),
            Node::ReplyDraft(_, ix, name) => Ok((name.clone(), self.reply_target(*ix, false).1)),
            _ => Err(self.not_writable_error(node)),
        }
    }

    /// Returns the name and the target of an answer to a message, or to all its recipients.
    fn reply_target(&self, ix: MsgIx, all: bool) -> (String, DraftTarget) {
        let name = self.names.message_name(ix);
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
        let access = &OpenRequest { write: true, ..access.clone() };
        if let Node::View(folder) = parent
            && let Some(made) = on_view!(self, folder, create(name, access))?
        {
            return Ok(made);
        }
        let folder = FolderScope::of_node(parent);
        let node = match parent {
            _ if folder.is_some()
                && let Some(why) = super::sidecars::explain_missing(name) =>
            {
                return Err(Error::Missing(why.to_owned()));
            }
            Node::Parts(..) => return Err(fixed_parts_error()),
            _ => folder.and_then(|folder| self.draft_node(folder, name)).ok_or_else(|| {
                Error::not_permitted(
                    "files cannot be created here; drafts go to outbox/, answers beside a message \
                     (NAME.reply) or into a thread's folder",
                )
            })?,
        };
        let file = self.open_draft(&node, access)?;
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
            (Some(OpenFile::Text(file)), _) => MeView::set_text_len(self, file, len),
            (None, Node::View(of_view)) if on_view!(self, of_view, set_len(len))? => Ok(()),
            // `truncate FILE` and `> FILE` on a name that no handle holds.
            (Some(OpenFile::Ack { .. }), _)
            | (None, Node::Reply(..) | Node::ReplyAll(..) | Node::Ack(..)) => Ok(()),
            (None, Node::ThreadDraft(..) | Node::ReplyDraft(..)) => {
                self.writable_outbox()?;
                let (name, target) = self.draft_target(node)?;
                self.truncate_draft(&name, target, len)
            }
            _ => Err(self.not_writable_error(node)),
        }
    }

    /// Makes a composing folder.
    ///
    /// # Errors
    /// [`Error::NotPermitted`] anywhere but in `outbox/`.
    pub fn mkdir(&self, parent: &Node, name: &str) -> Result<Node, Error> {
        self.writable_outbox()?;
        let made = match parent {
            Node::View(folder) => on_view!(self, folder, make_folder(name))?,
            _ => None,
        };
        made.ok_or_else(|| Error::not_permitted("folders can only be made in outbox/"))
    }

    /// Removes a composing folder, which must be empty.
    ///
    /// # Errors
    /// [`Error::NotEmpty`], [`Error::NotPermitted`].
    pub fn rmdir(&self, parent: &Node, name: &str) -> Result<(), Error> {
        match parent {
            Node::View(folder) if on_view!(self, folder, remove_folder(name))? => Ok(()),
            _ => Err(Error::not_permitted("this folder cannot be removed")),
        }
    }

    /// Serves `rm`: marks a message of `inbox/` as read, throws a draft away.
    ///
    /// # Errors
    /// [`Error::NotPermitted`] for everything else.
    pub fn unlink(&self, parent: &Node, name: &str) -> Result<(), Error> {
        let outbox = self.writable_outbox()?;
        if let Some(folder) = FolderScope::of_node(parent) {
            if let Some(draft) = self.find_draft_beside(folder, name) {
                let (name, target) = self.draft_target(&draft)?;
                return Ok(outbox.remove(&name, &target)?);
            }
            if let Some(note) = self.find_error_note(folder, name) {
                return Ok(outbox.remove(&note, &DraftTarget::Outbox)?);
            }
        }
        match parent {
            Node::Inbox => match self.lookup(parent, name)? {
                Node::Message(_, ix) => Ok(self.index.mark_message(ix, true, false)?),
                node => Err(self.not_writable_error(&node)),
            },
            Node::View(folder) if on_view!(self, folder, remove(name))? => Ok(()),
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
            _ if parent == new_parent
                && let Some(folder) = FolderScope::of_node(parent)
                && let Some(draft) = self.find_draft_beside(folder, name) =>
            {
                let to = self.draft_target(&self.resolve_rename_target(folder, new_name)?)?;
                Ok(outbox.rename_draft(&self.draft_target(&draft)?, &to, replace)?)
            }
            (Node::ArchiveDay(_) | Node::Inbox, Node::Inbox) => {
                let Node::Message(_, ix) = self.lookup(parent, name)? else {
                    return Err(Error::not_permitted("only messages can be moved to inbox/"));
                };
                let kept = self.names.message_name(ix) == *new_name;
                if !kept && !self.names.is_short_name(FolderScope::Inbox, new_name, ix) {
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
            (Node::View(folder), _)
                if on_view!(self, folder, rename(name, (new_parent, new_name), replace))? =>
            {
                Ok(())
            }
            // After this error `mv` copies, which writes the draft at the new name.
            _ if takes_files(parent) && takes_files(new_parent) => {
                Err(Error::from_errno(libc::EXDEV))
            }
            (Node::Parts(..), _) | (_, Node::Parts(..)) => Err(fixed_parts_error()),
            _ => Err(Error::not_permitted(
                "only drafts in outbox/ and private files in me/ can be renamed, and messages moved from archive/ to inbox/",
            )),
        }
    }

    /// Marks a message unread again.
    pub fn mark_unread(&self, message: &Node) {
        if let Node::Message(_, ix) = message {
            self.views.wait.release_claim(*ix);
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
    pub(super) fn find_draft_beside(&self, folder: FolderScope, name: &str) -> Option<Node> {
        self.draft_node(folder, name).filter(|draft| self.lookup_draft(draft).is_some())
    }

    /// Returns the node that a draft beside messages becomes under a new name there: the answer to one of them,
    /// or a draft.
    fn resolve_rename_target(&self, folder: FolderScope, name: &str) -> Result<Node, Error> {
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

    /// Returns true for a draft or a text. Programs may set its mode and times, without effect.
    pub fn is_editable(&self, node: &Node) -> bool {
        if let Node::View(node) = node {
            return node.is_editable();
        }
        matches!(
            node,
            Node::ThreadDraft(..)
                | Node::Reply(..)
                | Node::ReplyAll(..)
                | Node::ReplyDraft(..)
                | Node::Ack(..)
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
