//! Writes to the tree: creation, writing, removal and renaming (docs/SEMANTICS.md, "Writing" and S64).

use super::file::OpenFile;
use super::me::MeView;
use super::messages::message_of;
use super::node::{Node, NodeProperty};
use super::parts::FIXED_PARTS;
use super::reader::{detect_ending_signal, thread_group};
use super::table::on_view;
use super::{DraftWriters, Error, OpenRequest, Tree};
use crate::outbox::DraftTarget;

/// The changes that programs make in a tree.
#[derive(Clone, Copy)]
pub struct TreeWriter<'a>(&'a Tree);

impl Tree {
    /// Returns the part of the tree that changes it.
    pub fn writer(&self) -> TreeWriter<'_> {
        TreeWriter(self)
    }
}

impl TreeWriter<'_> {
    /// Returns the error that says why a node cannot be written.
    pub(super) fn not_writable_error(self, node: &Node) -> Error {
        if self.0.settings.read_only {
            return Error::ReadOnly;
        }
        Error::not_permitted(on_view!(self.0, node, write_refusal()))
    }

    /// Opens a draft to write it.
    pub(super) fn start_draft(
        self,
        name: &str,
        target: DraftTarget,
        access: &OpenRequest,
    ) -> Result<OpenFile, Error> {
        let id = self.0.writable_outbox()?.start_draft(name, target, access.truncate)?;
        Ok(OpenFile::Draft {
            id,
            writers: DraftWriters::new(access.opener),
            append: access.append,
            composed: false,
        })
    }

    /// Sets the length of a draft that no handle holds.
    pub(super) fn truncate_draft(
        self,
        name: &str,
        target: DraftTarget,
        len: u64,
    ) -> Result<(), Error> {
        let outbox = self.0.writable_outbox()?;
        let id = outbox.start_draft(name, target, false)?;
        let done = outbox.truncate(id, len);
        outbox.close_unsent(id);
        Ok(done?)
    }

    /// Creates a file and opens it.
    ///
    /// # Errors
    /// [`Error::NotPermitted`] where nothing can be created, outbox errors for names that are no address.
    pub fn create(
        self,
        parent: &Node,
        name: &str,
        access: &OpenRequest,
    ) -> Result<(Node, OpenFile), Error> {
        self.0.writable_outbox()?;
        let access = &OpenRequest { write: true, ..access.clone() };
        if let Some(node) = self.0.name_file(parent, name)? {
            let file = on_view!(self.0, &node, open(access))?;
            return Ok((node, file));
        }
        Err(Error::not_permitted(if parent.has(NodeProperty::FixedFiles) {
            FIXED_PARTS
        } else {
            "files cannot be created here; drafts go to outbox/, answers beside a message \
             (NAME.reply) or into a thread's folder"
        }))
    }

    /// Writes all bytes to an open file.
    ///
    /// # Errors
    /// Any refusal that is already certain.
    pub fn write_file(self, file: &OpenFile, offset: u64, data: &[u8]) -> Result<(), Error> {
        match file {
            OpenFile::Draft { id, append, .. } => {
                let at = (!append).then_some(offset);
                Ok(self.0.writable_outbox()?.write(*id, at, data)?)
            }
            OpenFile::Compose { file, .. } => {
                Ok(self.0.writable_outbox()?.composer().write_folder_file(file, offset, data)?)
            }
            OpenFile::Text(file) => {
                Ok(file.write(offset, data, self.0.writable_outbox()?.max_message())?)
            }
            OpenFile::Ack { message, done } => {
                self.0.acknowledgements().write(*message, done, data)
            }
            _ => Err(Error::not_permitted("this file was not opened for writing")),
        }
    }

    /// Sets the length of a draft or text: of the open file if there is one, else of the kept one.
    ///
    /// # Errors
    /// [`Error::NotPermitted`] for everything else.
    pub fn set_len(self, node: &Node, file: Option<&OpenFile>, len: u64) -> Result<(), Error> {
        match file {
            Some(OpenFile::Draft { id, .. }) => Ok(self.0.writable_outbox()?.truncate(*id, len)?),
            Some(OpenFile::Compose { file, .. }) => {
                Ok(self.0.writable_outbox()?.composer().resize_folder_file(file, len)?)
            }
            Some(OpenFile::Text(file)) => MeView::set_text_len(self.0, file, len),
            Some(OpenFile::Ack { .. }) => Ok(()),
            None if on_view!(self.0, node, set_len(len))? => Ok(()),
            _ => Err(self.not_writable_error(node)),
        }
    }

    /// Makes a composing folder.
    ///
    /// # Errors
    /// [`Error::NotPermitted`] anywhere but in `outbox/`.
    pub fn mkdir(self, parent: &Node, name: &str) -> Result<Node, Error> {
        self.0.writable_outbox()?;
        let made = on_view!(self.0, parent, make_folder(name))?;
        made.ok_or_else(|| Error::not_permitted("folders can only be made in outbox/"))
    }

    /// Removes a composing folder, which must be empty.
    ///
    /// # Errors
    /// [`Error::NotEmpty`], [`Error::NotPermitted`].
    pub fn rmdir(self, parent: &Node, name: &str) -> Result<(), Error> {
        let removed = on_view!(self.0, parent, remove_folder(name))?;
        removed.then_some(()).ok_or_else(|| Error::not_permitted("this folder cannot be removed"))
    }

    /// Serves `rm`: marks a message of `inbox/` as read, throws a draft away.
    ///
    /// # Errors
    /// [`Error::NotPermitted`] for everything else.
    pub fn unlink(self, parent: &Node, name: &str) -> Result<(), Error> {
        self.0.writable_outbox()?;
        if on_view!(self.0, parent, remove(name))? {
            return Ok(());
        }
        Err(Error::not_permitted(if parent.has(NodeProperty::FixedFiles) {
            FIXED_PARTS
        } else {
            "only messages in inbox/ (which marks them read) and drafts in outbox/ can be removed"
        }))
    }

    /// Serves `mv`: sends a private draft that gets a plain name, and makes a message unread that moves from
    /// `archive/` to `inbox/`.
    ///
    /// # Errors
    /// [`Error::NotPermitted`] for everything else, outbox errors for drafts that are refused.
    pub fn rename(
        self,
        parent: &Node,
        name: &str,
        new_parent: &Node,
        new_name: &str,
        replace: bool,
    ) -> Result<(), Error> {
        self.0.writable_outbox()?;
        if on_view!(self.0, parent, rename(name, (new_parent, new_name), replace))? {
            return Ok(());
        }
        let folders = [parent, new_parent];
        // After this error `mv` copies, which writes the draft at the new name.
        let is_draft = || {
            let file = self.0.lookup(parent, name).ok().filter(|file| !file.is_dir());
            file.is_some_and(|file| file.has(NodeProperty::Editable))
        };
        if folders.iter().all(|folder| folder.has(NodeProperty::TakesFiles)) || is_draft() {
            return Err(Error::from_errno(libc::EXDEV));
        }
        Err(Error::not_permitted(if folders.iter().any(|f| f.has(NodeProperty::FixedFiles)) {
            FIXED_PARTS
        } else {
            "only drafts in outbox/ and private files in me/ can be renamed, and messages moved from archive/ to inbox/"
        }))
    }

    /// Marks a message unread again.
    ///
    /// # Errors
    /// If the mark could not be saved.
    pub fn mark_unread(self, message: &Node) -> Result<(), Error> {
        let Some(ix) = message_of(message) else { return Ok(()) };
        self.0.views.wait.release_claim(ix);
        Ok(self.0.index.mark_message(ix, false, false)?)
    }

    /// Returns the length of an open draft, for `fstat` while it is written.
    pub fn open_len(self, file: &OpenFile) -> Option<u64> {
        match file {
            OpenFile::Draft { id, .. } => self.0.outbox.as_ref()?.open_len(*id),
            OpenFile::Compose { file, .. } => Some(file.len()),
            OpenFile::Text(file) => Some(file.len()),
            _ => None,
        }
    }

    /// Notes that a thread closes a descriptor of the file. If a signal is ending its process, the text is
    /// incomplete, and [`Tree::flush`] refuses it.
    pub fn note_closer(self, file: &OpenFile, thread: u32) {
        let (OpenFile::Draft { writers, .. } | OpenFile::Compose { writers, .. }) = file else {
            return;
        };
        let Some(signal) = detect_ending_signal(thread) else { return };
        if let Some(outbox) = &self.0.outbox
            && thread_group(thread).is_some_and(|process| writers.is_writer(process))
        {
            match file {
                OpenFile::Draft { id, .. } => outbox.refuse_interrupted(*id, signal),
                OpenFile::Compose { file, .. } => {
                    outbox.composer().mark_folder_file_cut(file, signal);
                }
                _ => {}
            }
        }
    }

    /// Marks all messages of `inbox/` as read, as removing each of them does. Returns their number.
    ///
    /// # Errors
    /// If nothing can be marked here, if a store refused the mark of a message (the others are then marked), or if the
    /// marks could not be saved.
    pub fn mark_all_read(self) -> Result<usize, Error> {
        self.0.writable_outbox()?;
        Ok(self.0.index.mark_all_read()?)
    }
}
