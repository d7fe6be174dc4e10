//! What may be written where (docs/SEMANTICS.md, "Writing" and S64).

use std::collections::BTreeMap;

use crate::model::locks::{Level, Mutex};

use super::file::OpenFile;
use super::node::{Node, Place};
use super::{Access, Error, Tree, Writers};
use crate::index::{MsgIx, ThreadIx};
use crate::model::{Timestamp, write_at};
use crate::outbox::{DraftId, Listed, OutboxError, Target, names};

/// The file of a composing folder that is its text, and sends it.
const BODY: &str = "body";

/// A composing folder: `outbox/<name>/`.
#[derive(Debug)]
pub(super) struct Composing {
    files: BTreeMap<String, (Vec<u8>, Timestamp)>,
    pub time: Timestamp,
}

fn parts_are_fixed() -> Error {
    Error::not_permitted(
        "the files of a message cannot be changed; copy them to where you want to work on them",
    )
}

impl Tree {
    /// Why a node cannot be written.
    pub(super) fn not_writable(&self, node: &Node) -> Error {
        match node {
            _ if self.settings.read_only => Error::ReadOnly,
            Node::Message(..) => Error::not_permitted(
                "messages cannot be changed; write NAME.reply to answer this one",
            ),
            Node::Part(..) => parts_are_fixed(),
            Node::Warning(_) => Error::not_permitted("this note about a sent message is fixed"),
            _ => Error::not_permitted("this file cannot be written; drafts go to outbox/"),
        }
    }

    pub(super) fn open_draft(&self, node: &Node, access: &Access) -> Result<OpenFile, Error> {
        let outbox = self.outbox()?;
        if let Node::ComposeFile(folder, name) = node {
            return self.open_composed(folder, name, access);
        }
        let (name, target) = self.draft_of(node)?;
        if !access.write {
            if matches!(node, Node::Reply(..)) {
                return Err(Error::not_permitted("this file can only be written"));
            }
            let text = outbox.text(&name, &target).ok_or(Error::NotFound)?;
            return Ok(OpenFile::bytes(text));
        }
        if target == Target::Outbox && outbox.find(&name).is_some_and(|l| l.is_note) {
            return Err(Error::not_permitted(
                "this note is about a refused draft; write the draft again",
            ));
        }
        let id = outbox.start(&name, target, access.truncate)?;
        Ok(OpenFile::Draft {
            id,
            writers: Writers::new(access.opener),
            append: access.append,
            readable: !matches!(node, Node::Reply(..)),
            folder: None,
        })
    }

    /// The name of a draft, and what it is written for.
    fn draft_of(&self, node: &Node) -> Result<(String, Target), Error> {
        match node {
            Node::Draft(name) => Ok((name.clone(), Target::Outbox)),
            Node::ThreadDraft(thread, name) => Ok((name.clone(), self.thread_target(*thread)?)),
            Node::Reply(_, ix) => Ok((self.reply_name(*ix)?, self.reply_target(*ix)?)),
            Node::ReplyDraft(_, ix, name) => Ok((name.clone(), self.reply_target(*ix)?)),
            _ => Err(self.not_writable(node)),
        }
    }

    fn reply_name(&self, ix: MsgIx) -> Result<String, Error> {
        let name = self.message_name(ix).ok_or(Error::NotFound)?;
        Ok(format!("{}.reply", name.trim_end_matches(".txt")))
    }

    fn reply_target(&self, ix: MsgIx) -> Result<Target, Error> {
        let key = self.index.key(ix).ok_or(Error::NotFound)?;
        Ok(Target::Reply { store: key.store, from: key.from, id: key.id })
    }

    fn thread_target(&self, thread: ThreadIx) -> Result<Target, Error> {
        let core = self.index.read();
        let (id, number) = core.thread_id(thread).ok_or(Error::NotFound)?;
        let store = self.index.stores().get(number).ok_or(Error::NotFound)?;
        Ok(Target::Thread { store: store.name().to_owned(), id: id.to_owned() })
    }

    /// Creates a file and opens it.
    ///
    /// # Errors
    /// [`Error::NotPermitted`] where nothing can be created, outbox errors for names that are no
    /// address.
    pub fn create(
        &self,
        parent: &Node,
        name: &str,
        access: &Access,
    ) -> Result<(Node, OpenFile), Error> {
        self.outbox()?;
        let node = match parent {
            Node::Inbox | Node::ArchiveDay(_) | Node::SentDay(_) | Node::Thread(_)
                if let Some(why) = super::beside::missing(name) =>
            {
                return Err(Error::Missing(why.to_owned()));
            }
            Node::Outbox => Node::Draft(name.to_owned()),
            Node::Compose(folder) => Node::ComposeFile(folder.clone(), name.to_owned()),
            Node::TextFolder(number, folder) => {
                let node = Node::Text(*number, folder, name.to_owned());
                let access = Access { write: true, ..access.clone() };
                let file = self.open_text((*number, *folder, name.to_owned()), &access)?;
                return Ok((node, file));
            }
            Node::Parts(..) => return Err(parts_are_fixed()),
            _ => self.draft_node(parent, name).ok_or_else(|| {
                Error::not_permitted(
                    "files cannot be created here; drafts go to outbox/, answers beside a message \
                     (NAME.reply) or into a thread's folder",
                )
            })?,
        };
        let file = self.open_draft(&node, &Access { write: true, ..access.clone() })?;
        Ok((node, file))
    }

    /// Writes to an open file; the number of bytes taken is all of them.
    ///
    /// # Errors
    /// What is already certain to be refused.
    pub fn write_file(&self, file: &OpenFile, offset: u64, data: &[u8]) -> Result<(), Error> {
        match file {
            OpenFile::Draft { id, append, .. } => {
                let at = (!append).then_some(offset);
                Ok(self.outbox()?.write(*id, at, data)?)
            }
            OpenFile::Compose { text, append, .. } => {
                let limit = self.outbox()?.max_message();
                let done = write_at(&mut text.lock(), (!append).then_some(offset), data, limit);
                done.then_some(()).ok_or(OutboxError::TooLarge(limit).into())
            }
            OpenFile::Text(file) => Ok(file.write(offset, data, self.outbox()?.max_message())?),
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
            (Some(OpenFile::Draft { id, .. }), _) => Ok(self.outbox()?.truncate(*id, len)?),
            (Some(OpenFile::Compose { text, .. }), _) => {
                let limit = self.outbox()?.max_message();
                if len > limit {
                    return Err(OutboxError::TooLarge(limit).into());
                }
                text.lock().resize(len as usize, 0);
                Ok(())
            }
            (Some(OpenFile::Text(file)), _) => self.cut_text(file, len),
            (None, Node::Text(number, folder, name)) => {
                self.truncate_text(&(*number, *folder, name.clone()), len)
            }
            // `truncate FILE` and `> FILE` on a name that no handle holds.
            (Some(OpenFile::Ack { .. }), _) | (None, Node::Reply(..) | Node::Ack(..)) => Ok(()),
            (None, Node::Draft(_) | Node::ThreadDraft(..) | Node::ReplyDraft(..)) => {
                let outbox = self.outbox()?;
                let (name, target) = self.draft_of(node)?;
                let id = outbox.start(&name, target, false)?;
                let done = outbox.truncate(id, len);
                outbox.set_aside(id);
                Ok(done?)
            }
            _ => Err(self.not_writable(node)),
        }
    }

    /// Makes a composing folder.
    ///
    /// # Errors
    /// [`Error::NotPermitted`] anywhere but in `outbox/`.
    pub fn mkdir(&self, parent: &Node, name: &str) -> Result<Node, Error> {
        let outbox = self.outbox()?;
        if *parent != Node::Outbox {
            return Err(Error::not_permitted("folders can only be made in outbox/"));
        }
        outbox.check_name(name)?;
        let folder = Composing { files: BTreeMap::new(), time: Timestamp::now() };
        self.composing.lock().insert(name.to_owned(), folder);
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
        let mut composing = self.composing.lock();
        if !composing.get(name).ok_or(Error::NotFound)?.files.is_empty() {
            return Err(Error::NotEmpty);
        }
        composing.remove(name);
        self.outbox()?.forget_note(name);
        Ok(())
    }

    /// `rm`: a message of `inbox/` is marked read, a draft is thrown away.
    ///
    /// # Errors
    /// [`Error::NotPermitted`] for everything else.
    pub fn unlink(&self, parent: &Node, name: &str) -> Result<(), Error> {
        let outbox = self.outbox()?;
        match parent {
            Node::Inbox | Node::ArchiveDay(_) | Node::SentDay(_) | Node::Thread(_)
                if let Some(draft) = self.kept_beside(parent, name) =>
            {
                let (name, target) = self.draft_of(&draft)?;
                Ok(outbox.remove(&name, &target)?)
            }
            Node::Inbox => match self.lookup(parent, name)? {
                Node::Message(_, ix) => {
                    self.index.mark(ix, true, false);
                    Ok(())
                }
                node => Err(self.not_writable(&node)),
            },
            Node::Outbox => Ok(outbox.remove(name, &Target::Outbox)?),
            Node::Compose(folder) => {
                let mut composing = self.composing.lock();
                let removed = composing.get_mut(folder).and_then(|f| f.files.remove(name));
                removed.map(drop).ok_or(Error::NotFound)
            }
            Node::TextFolder(number, folder) => {
                self.remove_text(&(*number, *folder, name.to_owned()))
            }
            Node::Parts(..) => Err(parts_are_fixed()),
            _ => Err(Error::not_permitted(
                "only messages in inbox/ (which marks them read) and drafts in outbox/ can be removed",
            )),
        }
    }

    /// `mv`: a private draft under a plain name is sent; a message from `archive/` to `inbox/` is
    /// unread again.
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
        let outbox = self.outbox()?;
        match (parent, new_parent) {
            (Node::Outbox, Node::Outbox) => {
                let named = |name: &str| (name.to_owned(), Target::Outbox);
                Ok(outbox.rename(&named(name), &named(new_name), replace)?)
            }
            (Node::Inbox | Node::ArchiveDay(_) | Node::SentDay(_) | Node::Thread(_), _)
                if parent == new_parent
                    && let Some(draft) = self.kept_beside(parent, name) =>
            {
                let to = self.draft_of(&self.beside_named(parent, new_name)?)?;
                Ok(outbox.rename(&self.draft_of(&draft)?, &to, replace)?)
            }
            (Node::ArchiveDay(_) | Node::Inbox, Node::Inbox) => {
                let Node::Message(_, ix) = self.lookup(parent, name)? else {
                    return Err(Error::not_permitted("only messages can be moved to inbox/"));
                };
                if self.message_name(ix).as_deref() != Some(new_name) {
                    return Err(Error::not_permitted("messages keep their names"));
                }
                let to_me = self.index.read().entry(ix).is_some_and(crate::index::Entry::is_to_me);
                if !to_me {
                    return Err(Error::not_permitted("this message is not addressed to you"));
                }
                if *parent != Node::Inbox {
                    self.make_unread(&Node::Message(Place::Inbox, ix));
                }
                Ok(())
            }
            (Node::Compose(from), Node::Compose(to)) if from == to => {
                self.rename_composed(from, name, new_name)
            }
            (Node::TextFolder(number, folder), Node::TextFolder(n, f))
                if (number, folder) == (n, f) =>
            {
                let key = |name: &str| (*number, *folder, name.to_owned());
                self.rename_text(&key(name), &key(new_name), replace)
            }
            // `mv` then copies, which writes the draft where it shall be.
            (
                Node::Outbox | Node::Thread(_) | Node::Compose(_) | Node::TextFolder(..),
                Node::Outbox | Node::Thread(_) | Node::Compose(_) | Node::TextFolder(..),
            ) => Err(Error::os(libc::EXDEV)),
            (Node::Parts(..), _) | (_, Node::Parts(..)) => Err(parts_are_fixed()),
            _ => Err(Error::not_permitted(
                "only drafts in outbox/ and private files in me/ can be renamed, and messages moved from archive/ to inbox/",
            )),
        }
    }

    /// A message is unread again.
    pub fn make_unread(&self, message: &Node) {
        if let Node::Message(_, ix) = message {
            self.index.mark(*ix, false, false);
        }
    }

    /// A file of a composing folder gets another name; if that is `body`, the folder is sent.
    fn rename_composed(&self, folder: &str, from: &str, to: &str) -> Result<(), Error> {
        let text = {
            let mut composing = self.composing.lock();
            let files = &mut composing.get_mut(folder).ok_or(Error::NotFound)?.files;
            let file = files.remove(from).ok_or(Error::NotFound)?;
            if to != BODY {
                files.insert(to.to_owned(), file);
                return Ok(());
            }
            file.0
        };
        let outbox = self.outbox()?;
        let id = outbox.compose(folder, Vec::new());
        let done = outbox
            .write(id, None, &text)
            .and_then(|()| outbox.attach(id, self.attachments(folder)))
            .and_then(|()| outbox.flush(id, true));
        self.release_draft(id, Some(folder));
        Ok(done?)
    }

    /// A draft beside messages, if there is one now.
    pub(super) fn draft_beside(&self, draft: &Node) -> Option<Listed> {
        let (name, target) = self.draft_of(draft).ok()?;
        self.outbox.as_ref()?.find_for(&name, &target)
    }

    /// The draft of this name beside messages, if there is one now.
    pub(super) fn kept_beside(&self, folder: &Node, name: &str) -> Option<Node> {
        self.draft_node(folder, name).filter(|draft| self.draft_beside(draft).is_some())
    }

    /// What a draft beside messages becomes under a name there: the answer to one of them, or a
    /// draft.
    fn beside_named(&self, folder: &Node, name: &str) -> Result<Node, Error> {
        if let Some(why) = super::beside::missing(name) {
            let found = self.find_message(folder, name)?;
            return found.ok_or_else(|| Error::Missing(why.to_owned()));
        }
        self.draft_node(folder, name).ok_or_else(|| {
            Error::not_permitted(
                "an answer is sent under the name of its message, with .reply in place of .txt",
            )
        })
    }

    /// A name in `outbox/`.
    pub(super) fn find_draft(&self, name: &str) -> Option<Node> {
        if self.composing.lock().contains_key(name) {
            return Some(Node::Compose(name.to_owned()));
        }
        if name.strip_suffix(".error").is_some() {
            self.settle(&Node::Outbox);
        }
        let outbox = self.outbox.as_ref().filter(|o| !o.is_leaving(name))?;
        outbox.find(name).map(|l| Node::Draft(l.name))
    }

    pub(super) fn outbox_entries(&self) -> Vec<(String, Node)> {
        let drafts = self.outbox.as_ref().map(|o| o.list()).unwrap_or_default();
        let mut out: Vec<(String, Node)> =
            drafts.into_iter().map(|l| (l.name.clone(), Node::Draft(l.name))).collect();
        out.extend(self.composing.lock().keys().map(|n| (n.clone(), Node::Compose(n.clone()))));
        out.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        out
    }

    pub(super) fn compose_entries(&self, folder: &str) -> Result<Vec<(String, Node)>, Error> {
        let composing = self.composing.lock();
        let files = &composing.get(folder).ok_or(Error::NotFound)?.files;
        let node = |n: &String| (n.clone(), Node::ComposeFile(folder.to_owned(), n.clone()));
        Ok(files.keys().map(node).collect())
    }

    pub(super) fn compose_file(&self, folder: &str, name: &str) -> Option<(u64, Timestamp)> {
        let composing = self.composing.lock();
        composing.get(folder)?.files.get(name).map(|(text, time)| (text.len() as u64, *time))
    }

    fn open_composed(&self, folder: &str, name: &str, access: &Access) -> Result<OpenFile, Error> {
        let mut composing = self.composing.lock();
        let files = &mut composing.get_mut(folder).ok_or(Error::NotFound)?.files;
        if name == BODY && access.write {
            let kept = files.get(BODY).map(|(text, _)| text.clone()).unwrap_or_default();
            let kept = if access.truncate { Vec::new() } else { kept };
            let id = self.outbox()?.compose(folder, kept);
            let (folder, writers) = (Some(folder.to_owned()), Writers::new(access.opener));
            let append = access.append;
            return Ok(OpenFile::Draft { id, writers, append, readable: true, folder });
        }
        let entry = files.entry(name.to_owned()).or_insert_with(|| (Vec::new(), Timestamp::now()));
        let text = if access.truncate { Vec::new() } else { entry.0.clone() };
        Ok(OpenFile::Compose {
            folder: folder.to_owned(),
            name: name.to_owned(),
            text: Mutex::at(Level::File, text),
            append: access.append,
        })
    }

    pub(super) fn flush_compose(&self, folder: &str, name: &str, text: &[u8]) -> Result<(), Error> {
        let mut composing = self.composing.lock();
        let folder = composing.get_mut(folder).ok_or(Error::NotFound)?;
        folder.time = Timestamp::now();
        folder.files.insert(name.to_owned(), (text.to_vec(), folder.time));
        Ok(())
    }

    /// The files of a composing folder that go along with its text.
    pub(super) fn attachments(&self, folder: &str) -> Vec<(String, Vec<u8>)> {
        let composing = self.composing.lock();
        let Some(folder) = composing.get(folder) else { return Vec::new() };
        let goes_along = |name: &&String| *name != BODY && !names::is_private(name);
        let files = folder.files.iter().filter(|(name, _)| goes_along(name));
        files.map(|(name, (text, _))| (name.clone(), text.clone())).collect()
    }

    /// A draft was closed. Of a composing folder, what was sent goes, and what was refused stays.
    pub(super) fn release_draft(&self, id: DraftId, folder: Option<&str>) {
        let Ok(outbox) = self.outbox() else { return };
        let text = folder.and_then(|_| outbox.open_text(id)).unwrap_or_default();
        let sent = outbox.release(id);
        let Some(folder) = folder else { return };
        let mut composing = self.composing.lock();
        if sent {
            composing.remove(folder);
        } else if let Some(folder) = composing.get_mut(folder) {
            folder.files.insert(BODY.to_owned(), (text, Timestamp::now()));
        }
    }

    /// Whether a node is a draft or a text, whose mode and times programs may set to no effect.
    pub fn is_draft(&self, node: &Node) -> bool {
        matches!(
            node,
            Node::Draft(_)
                | Node::ThreadDraft(..)
                | Node::Compose(_)
                | Node::ComposeFile(..)
                | Node::Reply(..)
                | Node::ReplyDraft(..)
                | Node::Ack(..)
                | Node::Text(..)
        )
    }

    /// Length of an open draft, for `fstat` while it is written.
    pub fn open_len(&self, file: &OpenFile) -> Option<u64> {
        match file {
            OpenFile::Draft { id, .. } => self.outbox.as_ref()?.open_len(*id),
            OpenFile::Compose { text, .. } => Some(text.lock().len() as u64),
            OpenFile::Text(file) => Some(file.len()),
            _ => None,
        }
    }
}
