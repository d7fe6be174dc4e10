//! `inbox/`, `archive/`, `sent/` and `threads/`: the folders of messages, and the folders above them.
//!
//! `message_folders` has the entries of a folder of messages, `sidecars` the messages and the files beside them,
//! `replies` the drafts beside them, and `pending_sent` the messages of `sent/` that their stores do not have yet.

use super::awaited_answers::open_answer;
use super::file::{OpenFile, OpenRequest};
use super::folder_scope::{FolderScope, MessageFolder, PLACES};
use super::listing::{Listing, ListingEntry};
use super::message_folders::{list_days, newest_at_place, newest_on_day};
use super::node::{
    Ino, InodeTag, Node, NodeProperty, PagePolicy, day_inode, inode_day, join_inode, make_inode,
};
use super::parts::FIXED_PARTS;
use super::replies::{
    draft_target, explain_missing, find_draft, find_error_note, find_new_target, find_reply,
    name_new_draft, open_draft, stat_draft,
};
use super::sidecars::{FIXED_MESSAGE, MessageFile};
use super::table::{NodeAttributes, TreeChanges, View, ViewKey, WRITE_REFUSAL};
use super::{CachePolicy, Error, Tree};
use crate::index::{MsgIx, ThreadIx};
use crate::model::{Day, Timestamp};
use crate::outbox::DraftTarget;

/// A node of `inbox/`, `archive/`, `sent/` or `threads/`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum MessagesKey {
    /// `archive/`
    Archive,
    /// `sent/`
    Sent,
    /// `threads/`
    Threads,
    /// A folder of messages.
    Folder(FolderScope),
    /// A message, or a file beside one.
    File(MessageFolder, MsgIx, MessageFile),
    /// A draft that is being written in a thread's folder.
    ThreadDraft(ThreadIx, String),
    /// A message of mine in `sent/` that is not in its store yet, or the note about it: store, id, and true for
    /// the note.
    Pending(usize, String, bool),
}

/// The view of the folders of messages.
#[derive(Debug, Default)]
pub(super) struct MessagesView;

impl From<MessagesKey> for Node {
    fn from(key: MessagesKey) -> Self {
        Self::new(ViewKey::Messages(key))
    }
}

impl From<FolderScope> for Node {
    fn from(folder: FolderScope) -> Self {
        MessagesKey::Folder(folder).into()
    }
}

/// Returns the node of a message, or of a file beside it.
pub(super) fn file_node(place: MessageFolder, ix: MsgIx, file: MessageFile) -> Node {
    MessagesKey::File(place, ix, file).into()
}

/// Returns the message whose text a node of this view is.
pub(super) fn message_of(node: &Node) -> Option<MsgIx> {
    match node.key() {
        ViewKey::Messages(MessagesKey::File(_, ix, MessageFile::Text)) => Some(*ix),
        _ => None,
    }
}

/// Returns the folder, the message and the part of it that a node is, if it is a message or a file beside one.
pub(super) fn message_file_of(node: &Node) -> Option<(MessageFolder, MsgIx, &MessageFile)> {
    match node.key() {
        ViewKey::Messages(MessagesKey::File(folder, ix, file)) => Some((*folder, *ix, file)),
        _ => None,
    }
}

/// Returns the folder of messages that a node is.
pub(super) fn folder_scope(node: &Node) -> Option<FolderScope> {
    match node.key() {
        ViewKey::Messages(MessagesKey::Folder(scope)) => Some(*scope),
        _ => None,
    }
}

impl View for MessagesView {
    type Key = MessagesKey;

    const CHANGES_WITHOUT_INDEX: bool = true;

    fn node_properties(key: &MessagesKey) -> &'static [NodeProperty] {
        use NodeProperty::{
            Editable, Folder, GoesWhenClosed, LastingListing, Pages, ShowsPending, ShowsSent,
        };
        match key {
            MessagesKey::Archive => &[Folder, LastingListing],
            MessagesKey::Sent => &[Folder, LastingListing, ShowsSent, ShowsPending],
            MessagesKey::Threads => &[Folder, LastingListing, ShowsSent],
            MessagesKey::Folder(scope) => scope.node_properties(),
            MessagesKey::File(place, _, file) => file.node_properties(*place),
            MessagesKey::ThreadDraft(..) => &[Editable, GoesWhenClosed, Pages(PagePolicy::Bypass)],
            MessagesKey::Pending(..) => &[],
        }
    }

    fn inode_number(&self, tree: &Tree, key: &MessagesKey) -> Option<Ino> {
        let assign = |path: &[&str]| tree.assign_path_inode(path, &key.clone().into());
        Some(match key {
            MessagesKey::Archive
            | MessagesKey::Sent
            | MessagesKey::Threads
            | MessagesKey::Folder(FolderScope::Inbox) => return None,
            MessagesKey::Folder(FolderScope::ArchiveDay(day)) => {
                day_inode(InodeTag::ArchiveDay, *day)
            }
            MessagesKey::Folder(FolderScope::SentDay(day)) => day_inode(InodeTag::SentDay, *day),
            MessagesKey::Folder(FolderScope::Thread(thread)) => {
                let tables = tree.index.read();
                make_inode(
                    InodeTag::Thread,
                    tables.threads.thread_identity(&tables.messages, *thread),
                )
            }
            MessagesKey::File(place, ix, file) => {
                let identity = tree.index.read().messages.entry(*ix).identity();
                let number = |tag| join_inode(tag as u64 + *place as u64, identity);
                match file {
                    MessageFile::Text => number(InodeTag::Message),
                    MessageFile::Reply => number(InodeTag::Reply),
                    MessageFile::ReplyAll => number(InodeTag::ReplyAll),
                    MessageFile::Ack => number(InodeTag::Ack),
                    MessageFile::Parts => number(InodeTag::Parts),
                    MessageFile::Warning => make_inode(InodeTag::Warning, identity),
                    MessageFile::Answer => make_inode(InodeTag::Answer, identity),
                    MessageFile::Part(name) => {
                        assign(&["part", &number(InodeTag::Parts).to_string(), name])
                    }
                    MessageFile::Draft(name) => {
                        assign(&["reply", &number(InodeTag::Reply).to_string(), name])
                    }
                }
            }
            MessagesKey::ThreadDraft(thread, name) => {
                let tables = tree.index.read();
                assign(&["threads", tables.threads.thread_id(&tables.messages, *thread).0, name])
            }
            MessagesKey::Pending(store, id, note) => {
                assign(&[if *note { "warning" } else { "held" }, tree.store_name(*store), id])
            }
        })
    }

    fn find_by_inode(&self, tree: &Tree, tag: u64, low: u64) -> Option<MessagesKey> {
        if tag == InodeTag::ArchiveDay as u64 {
            return Some(MessagesKey::Folder(FolderScope::ArchiveDay(inode_day(low))));
        }
        if tag == InodeTag::SentDay as u64 {
            return Some(MessagesKey::Folder(FolderScope::SentDay(inode_day(low))));
        }
        let tables = tree.index.read();
        if tag == InodeTag::Thread as u64 {
            let thread = tables.threads.find_thread_by_identity(&tables.messages, low)?;
            return Some(MessagesKey::Folder(FolderScope::Thread(thread)));
        }
        let (place, file) = MessageFile::from_tag(tag)?;
        Some(MessagesKey::File(place, tables.messages.find_by_identity(low)?, file))
    }

    fn stat(&self, tree: &Tree, key: &MessagesKey) -> Result<NodeAttributes, Error> {
        match key {
            MessagesKey::ThreadDraft(..) => stat_draft(tree, key),
            MessagesKey::File(place, ix, file) => file.stat(tree, *place, *ix),
            MessagesKey::Pending(..) => {
                Ok(NodeAttributes::of_text(&self.text(tree, key)?, CachePolicy::Volatile))
            }
            MessagesKey::Archive
            | MessagesKey::Sent
            | MessagesKey::Threads
            | MessagesKey::Folder(_) => {
                if let MessagesKey::Folder(FolderScope::Thread(thread)) = key {
                    tree.note_thread_exposed(*thread);
                }
                let time = self.newest_time(tree, key);
                // The folders of a day or thread exist as long as they have an entry.
                if time.is_none() && self.parent_folder(tree, key).is_some() {
                    return Err(Error::NotFound);
                }
                Ok(NodeAttributes::of_folder(time, CachePolicy::Folder))
            }
        }
    }

    fn text(&self, tree: &Tree, key: &MessagesKey) -> Result<(String, Timestamp), Error> {
        match key {
            MessagesKey::File(_, ix, MessageFile::Warning) => tree.pending.warning_text(*ix),
            MessagesKey::Pending(store, id, note) => tree.pending.text(*store, id, *note),
            _ => Err(Error::IsDir),
        }
    }

    fn list(&self, tree: &Tree, folder: &MessagesKey) -> Result<Listing, Error> {
        let of_days = |days: Vec<Day>, folder: fn(Day) -> FolderScope| {
            let named = days.into_iter().map(|day| (day.to_string(), folder(day).into()));
            Listing::from_named(named)
        };
        match folder {
            MessagesKey::Folder(scope) => scope.list(tree),
            MessagesKey::Archive => {
                Ok(of_days(list_days(tree, MessageFolder::Archive), FolderScope::ArchiveDay))
            }
            MessagesKey::Sent => {
                // Pending messages are read first, so one that reaches its store meanwhile is found in the index.
                let pending = tree.pending.days();
                let days = list_days(tree, MessageFolder::Sent);
                let more = pending.into_iter().filter(|day| !days.contains(day)).collect();
                Ok(of_days([days.clone(), more].concat(), FolderScope::SentDay))
            }
            MessagesKey::Threads => {
                let tables = tree.index.read();
                let threads = tables.threads.thread_folders(tree.is_scope_all());
                Ok(Listing::from_threads(&tables, threads, ListingEntry::Thread))
            }
            MessagesKey::File(place, ix, MessageFile::Parts) => tree.parts.list(*place, *ix),
            MessagesKey::File(..) | MessagesKey::ThreadDraft(..) | MessagesKey::Pending(..) => {
                Err(Error::NotDir)
            }
        }
    }

    fn find(&self, tree: &Tree, folder: &MessagesKey, name: &str) -> Result<Option<Node>, Error> {
        Ok(match folder {
            MessagesKey::Folder(scope) => tree.find_message(*scope, name)?,
            MessagesKey::Archive => name.parse().ok().and_then(|day| {
                newest_on_day(tree, MessageFolder::Archive, day)?;
                Some(FolderScope::ArchiveDay(day).into())
            }),
            MessagesKey::Sent => {
                tree.settle_pending_messages();
                let is_shown = |day: &Day| {
                    // Pending messages are read first, as in `list`.
                    tree.pending.days().contains(day)
                        || newest_on_day(tree, MessageFolder::Sent, *day).is_some()
                };
                let day = name.parse().ok().filter(is_shown);
                day.map(|day| FolderScope::SentDay(day).into())
            }
            MessagesKey::Threads => {
                tree.find_thread(name).map(|thread| FolderScope::Thread(thread).into())
            }
            MessagesKey::File(place, ix, MessageFile::Parts) => {
                tree.parts.find(*ix, name)?;
                Some(file_node(*place, *ix, MessageFile::Part(name.to_owned())))
            }
            MessagesKey::File(..) | MessagesKey::ThreadDraft(..) | MessagesKey::Pending(..) => {
                return Err(Error::NotDir);
            }
        })
    }

    fn parent_folder(&self, tree: &Tree, folder: &MessagesKey) -> Option<MessagesKey> {
        match folder {
            MessagesKey::Folder(FolderScope::ArchiveDay(_)) => Some(MessagesKey::Archive),
            MessagesKey::Folder(FolderScope::SentDay(_)) => Some(MessagesKey::Sent),
            MessagesKey::Folder(FolderScope::Thread(_)) => Some(MessagesKey::Threads),
            MessagesKey::File(place, ix, MessageFile::Parts) => {
                let tables = tree.index.read();
                Some(MessagesKey::Folder(FolderScope::of_message(&tables, *place, *ix)))
            }
            _ => None,
        }
    }

    fn open(&self, tree: &Tree, key: &MessagesKey, how: &OpenRequest) -> Result<OpenFile, Error> {
        match key {
            MessagesKey::File(place, ix, MessageFile::Text) => tree.open_message(*place, *ix, how),
            MessagesKey::File(_, ix, MessageFile::Ack) => tree.acknowledgements().open(*ix, how),
            MessagesKey::File(_, ix, MessageFile::Part(name)) => tree.parts.open(*ix, name),
            MessagesKey::File(_, ix, MessageFile::Answer) => open_answer(tree, *ix, how),
            MessagesKey::Pending(..) | MessagesKey::File(_, _, MessageFile::Warning) => {
                Ok(OpenFile::from_bytes(self.text(tree, key)?.0.into_bytes()))
            }
            MessagesKey::Archive
            | MessagesKey::Sent
            | MessagesKey::Threads
            | MessagesKey::Folder(_)
            | MessagesKey::File(_, _, MessageFile::Parts) => Err(Error::IsDir),
            MessagesKey::ThreadDraft(..) | MessagesKey::File(..) => open_draft(tree, key, how),
        }
    }

    fn name_file(
        &self,
        tree: &Tree,
        folder: &MessagesKey,
        name: &str,
    ) -> Result<Option<Node>, Error> {
        let MessagesKey::Folder(scope) = folder else { return Ok(None) };
        // A program that removed the reply makes it again.
        if let Some(answer) = find_reply(tree, *scope, name)? {
            return Ok(Some(answer));
        }
        match explain_missing(name) {
            Some(why) => Err(Error::Missing(why.to_owned())),
            None => Ok(name_new_draft(tree, *scope, name).map(Node::from)),
        }
    }

    fn set_len(&self, tree: &Tree, key: &MessagesKey, len: u64) -> Result<bool, Error> {
        match key {
            // `> FILE` on a name that no handle holds.
            MessagesKey::File(_, _, file) if file.begins_empty() => Ok(true),
            MessagesKey::ThreadDraft(..) | MessagesKey::File(_, _, MessageFile::Draft(_)) => {
                let (name, target) = draft_target(tree, key)?;
                tree.writer().truncate_draft(&name, target, len)?;
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    fn write_refusal(&self, _tree: &Tree, key: &MessagesKey) -> &'static str {
        match key {
            MessagesKey::File(_, _, MessageFile::Text) => FIXED_MESSAGE,
            MessagesKey::File(_, _, MessageFile::Part(_)) => FIXED_PARTS,
            MessagesKey::File(_, _, MessageFile::Answer) => {
                "reading this file gives the answer of the recipient; it cannot be written"
            }
            MessagesKey::File(_, _, MessageFile::Warning) => {
                "this note about a sent message is fixed"
            }
            _ => WRITE_REFUSAL,
        }
    }

    /// Marks a message of `inbox/` as read, or throws a draft or the note about one away. A `.reply` beside a message
    /// is always empty, and stays.
    fn remove(&self, tree: &Tree, folder: &MessagesKey, name: &str) -> Result<bool, Error> {
        let MessagesKey::Folder(scope) = folder else { return Ok(false) };
        let outbox = tree.writable_outbox()?;
        if let Some(draft) = find_draft(tree, *scope, name) {
            let (name, target) = draft_target(tree, &draft)?;
            outbox.remove(&name, &target)?;
        } else if let Some(note) = find_error_note(tree, *scope, name) {
            outbox.remove(&note, &DraftTarget::Outbox)?;
        } else if find_reply(tree, *scope, name)?.is_some() {
            // `mv` from another file system removes the file before it makes it.
        } else if *scope == FolderScope::Inbox {
            let found = tree.find_message(*scope, name)?.ok_or(Error::NotFound)?;
            let ix = message_of(&found).ok_or_else(|| tree.writer().not_writable_error(&found))?;
            tree.index.mark_message(ix, true, false)?;
        } else {
            return Ok(false);
        }
        Ok(true)
    }

    /// Makes a message unread that moves from `archive/` to `inbox/`, or renames a draft within its folder.
    fn rename(
        &self,
        tree: &Tree,
        folder: &MessagesKey,
        name: &str,
        (to, new_name): (&Node, &str),
        replace: bool,
    ) -> Result<bool, Error> {
        let (MessagesKey::Folder(from), Some(to)) = (folder, folder_scope(to)) else {
            return Ok(false);
        };
        if let Some(draft) = find_draft(tree, *from, name) {
            if *from != to {
                return Ok(false);
            }
            let target = draft_target(tree, &find_new_target(tree, to, new_name)?)?;
            let draft = draft_target(tree, &draft)?;
            tree.writable_outbox()?.rename_draft(&draft, &target, replace)?;
            return Ok(true);
        }
        if to != FolderScope::Inbox
            || !matches!(from, FolderScope::Inbox | FolderScope::ArchiveDay(_))
        {
            return Ok(false);
        }
        let found = tree.find_message(*from, name)?.ok_or(Error::NotFound)?;
        let Some(ix) = message_of(&found) else {
            return Err(Error::not_permitted("only messages can be moved to inbox/"));
        };
        let keeps_name = new_name == name
            || tree.names.message_name(ix) == *new_name
            || tree.names.is_short_name(to, new_name, ix);
        if !keeps_name {
            return Err(Error::not_permitted("messages keep their names"));
        }
        if !tree.index.read().messages.entry(ix).is_to_me() {
            return Err(Error::not_permitted("this message is not addressed to you"));
        }
        if *from != to {
            tree.writer().mark_unread(&found)?;
        }
        Ok(true)
    }

    fn newest_time(&self, tree: &Tree, key: &MessagesKey) -> Option<Timestamp> {
        match key {
            MessagesKey::Archive => newest_at_place(tree, MessageFolder::Archive),
            MessagesKey::Sent => {
                // Pending messages are read first, as in `list`.
                let held = tree.pending.newest_time();
                held.max(newest_at_place(tree, MessageFolder::Sent))
            }
            MessagesKey::Threads => {
                let tables = tree.index.read();
                tree.lists.newest_time(&tables).max(tables.threads.newest_empty_time())
            }
            MessagesKey::Folder(scope) => scope.newest_time(tree),
            MessagesKey::File(..) | MessagesKey::ThreadDraft(..) | MessagesKey::Pending(..) => None,
        }
    }

    fn stale_keys(&self, changes: &TreeChanges<'_>) -> Vec<MessagesKey> {
        let days = changes.days.iter();
        let days = days.flat_map(|day| [FolderScope::ArchiveDay(*day), FolderScope::SentDay(*day)]);
        let threads = changes.threads.iter().copied().map(FolderScope::Thread);
        let folders = days.chain(threads).chain([FolderScope::Inbox]);
        let mut keys: Vec<MessagesKey> = folders.map(MessagesKey::Folder).collect();
        if changes.changes_listings() {
            keys.extend([MessagesKey::Archive, MessagesKey::Sent, MessagesKey::Threads]);
        }
        let files = |ix, file: MessageFile| {
            PLACES.into_iter().map(move |place| MessagesKey::File(place, ix, file.clone()))
        };
        for ix in changes.changed_texts() {
            keys.push(MessagesKey::File(MessageFolder::Sent, ix, MessageFile::Warning));
            keys.extend(files(ix, MessageFile::Text));
        }
        for ix in changes.index.removed.iter().copied() {
            keys.extend(files(ix, MessageFile::Parts).chain(files(ix, MessageFile::Ack)));
        }
        keys
    }
}
