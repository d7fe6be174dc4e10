//! Files beside a message, named like it. `.reply` and `.reply-all` answer it and `.ack` acknowledges it; these three
//! are not listed, nor is the `.error` of a reply. `.answer` waits for the answer to a message of mine, and is not
//! listed either. `.warning` has a note about a message of mine. `.d/` has the attachments.

use super::folder_scope::{FolderScope, MessageFolder, PLACES};
use super::messages::{MessagesKey, file_node};
use super::node::{InodeTag, Node, NodeProperty, PagePolicy};
use super::replies::{find_draft, find_error_note, stat_draft};
use super::table::NodeAttributes;
use super::{CachePolicy, Error, Tree, names};
use crate::index::{IndexEntry, MsgIx};

/// Endings of a message's name and of the files beside it.
const ENDINGS: [&str; 7] = ["txt", "reply", "reply-all", "ack", "answer", "warning", "d"];
/// The reason why a message cannot be written.
pub(super) const FIXED_MESSAGE: &str =
    "messages cannot be changed; write NAME.reply to answer this one";

/// A file or folder that a message has in a folder of messages.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum MessageFile {
    /// `<name>.txt`: the message.
    Text,
    /// `<name>.reply`, not listed.
    Reply,
    /// `<name>.reply-all`, not listed.
    ReplyAll,
    /// `<name>.ack` beside a message that asks for an acknowledgement, not listed.
    Ack,
    /// `<name>.answer` beside a message in `sent/`: the answer to it, not listed.
    Answer,
    /// `<name>.warning` beside a message in `sent/`: a note about it.
    Warning,
    /// `<name>.d/`: its attachments.
    Parts,
    /// An attachment.
    Part(String),
    /// An unfinished reply under a private name, not listed.
    Draft(String),
}

impl MessageFile {
    /// Returns the place and the file that the upper 8 bits of an inode number stand for.
    pub fn from_tag(tag: u64) -> Option<(MessageFolder, Self)> {
        if tag == InodeTag::Warning as u64 {
            return Some((MessageFolder::Sent, Self::Warning));
        }
        if tag == InodeTag::Answer as u64 {
            return Some((MessageFolder::Sent, Self::Answer));
        }
        let numbered = [
            (InodeTag::Message, Self::Text),
            (InodeTag::Reply, Self::Reply),
            (InodeTag::ReplyAll, Self::ReplyAll),
            (InodeTag::Parts, Self::Parts),
            (InodeTag::Ack, Self::Ack),
        ];
        let place = *PLACES.get((tag % 8) as usize)?;
        let mut files = numbered.into_iter();
        files.find(|(base, _)| *base as u64 == tag - tag % 8).map(|(_, file)| (place, file))
    }

    /// Returns true for a file that is empty whenever a program opens it.
    pub fn begins_empty(&self) -> bool {
        matches!(self, Self::Reply | Self::ReplyAll | Self::Ack)
    }

    /// Returns the properties of the file.
    pub fn node_properties(&self, place: MessageFolder) -> &'static [NodeProperty] {
        use NodeProperty::{Editable, FixedFiles, Folder, NeedsOpener, Pages, StaysWhenRemoved};
        match self {
            Self::Text if place == MessageFolder::Inbox => {
                &[NeedsOpener, Pages(PagePolicy::Bypass)]
            }
            Self::Text => &[Pages(PagePolicy::Keep)],
            Self::Reply | Self::ReplyAll => {
                &[Editable, StaysWhenRemoved, Pages(PagePolicy::Bypass)]
            }
            Self::Ack | Self::Draft(_) => &[Editable, Pages(PagePolicy::Bypass)],
            Self::Answer => &[NeedsOpener, Pages(PagePolicy::Bypass)],
            Self::Parts => &[Folder, FixedFiles],
            Self::Warning | Self::Part(_) => &[],
        }
    }

    /// Returns the attributes of the file.
    pub fn stat(
        &self,
        tree: &Tree,
        place: MessageFolder,
        ix: MsgIx,
    ) -> Result<NodeAttributes, Error> {
        match self {
            Self::Text => {
                // A late parent moves a message to another thread.
                let linked = || {
                    let entry = *tree.index.read().messages.entry(ix);
                    tree.index.store_of(&entry).properties().has_indexed_threads()
                };
                let caching = match place {
                    MessageFolder::Inbox => CachePolicy::Folder,
                    MessageFolder::Thread if linked() => CachePolicy::Folder,
                    _ => CachePolicy::Immutable,
                };
                tree.stat_message(ix, caching)
            }
            Self::Reply | Self::ReplyAll | Self::Ack => {
                let time = tree.index.read().messages.entry(ix).time();
                // Editors read the files that they open to write.
                Ok(NodeAttributes::of_draft(
                    if *self == Self::Ack { 0o200 } else { 0o600 },
                    0,
                    time,
                ))
            }
            Self::Answer => {
                let time = tree.texts.live_entry(ix)?.time();
                Ok(NodeAttributes::of_file(0, time, CachePolicy::Volatile))
            }
            Self::Draft(_) => stat_draft(tree, &MessagesKey::File(place, ix, self.clone())),
            Self::Warning => {
                Ok(NodeAttributes::of_text(&tree.pending.warning_text(ix)?, CachePolicy::Brief))
            }
            Self::Parts => {
                let time = tree.texts.live_entry(ix)?.time();
                Ok(NodeAttributes::of_folder(Some(time), CachePolicy::Folder))
            }
            Self::Part(name) => {
                let (size, time) = tree.parts.size(ix, name)?;
                Ok(NodeAttributes::of_file(size, time, CachePolicy::Brief))
            }
        }
    }
}

/// Splits the name of a message or of a file beside one from its ending. Returns `None` if it has none of these
/// endings: a dot may belong to an id.
pub(super) fn split_ending(name: &str) -> Option<(&str, &str)> {
    name.rsplit_once('.').filter(|(_, ending)| ENDINGS.contains(ending))
}

impl Tree {
    /// Finds a message, a file beside one, or a draft in a thread's folder, by its name in a folder.
    pub(super) fn find_message(
        &self,
        parent: FolderScope,
        name: &str,
    ) -> Result<Option<Node>, Error> {
        let named = split_ending(name);
        let indexed = || named.map_or(Ok(None), |named| self.find_indexed(parent, named));
        if let Some(found) = indexed()? {
            return Ok(Some(found));
        }
        let found = match parent {
            // The store may have got the message since the index was searched.
            FolderScope::SentDay(day) => {
                self.pending.find(day, name).map_or_else(indexed, |held| Ok(Some(held)))?
            }
            _ => None,
        };
        let found = found.or_else(|| find_draft(self, parent, name).map(Node::from));
        let found =
            found.or_else(|| find_error_note(self, parent, name).map(super::outbox::draft_node));
        let found = found.or_else(|| {
            let is_id = !names::has_time_prefix(name);
            let ix = is_id.then(|| self.names.find_message_by_stem(parent, name))??;
            Some(file_node(parent.message_folder(), ix, MessageFile::Text))
        });
        if found.is_none() {
            let id = named.map_or(name, |(stem, _)| stem);
            self.last_unknown_id.note(id, |limit| self.names.recent_names(parent, limit));
        }
        Ok(found)
    }

    /// Finds a node of an indexed message by the name without its ending, and the ending.
    fn find_indexed(
        &self,
        parent: FolderScope,
        (stem, ending): (&str, &str),
    ) -> Result<Option<Node>, Error> {
        let Some(ix) = self.names.find_message_by_stem(parent, stem) else { return Ok(None) };
        let place = parent.message_folder();
        let has_parts = || self.index.read().messages.entry(ix).has_parts();
        let is_noted = || place == MessageFolder::Sent && self.pending.has_warning(ix);
        let opens = || place != MessageFolder::Inbox || self.can_open_in_inbox(ix, stem);
        let file = match ending {
            "txt" if opens() => MessageFile::Text,
            "reply" => MessageFile::Reply,
            "reply-all" => MessageFile::ReplyAll,
            "ack"
                if place != MessageFolder::Sent && self.acknowledgements().is_asked_for(ix)? =>
            {
                MessageFile::Ack
            }
            "answer" if place == MessageFolder::Sent => MessageFile::Answer,
            "warning" if is_noted() => MessageFile::Warning,
            "d" if has_parts() && opens() => MessageFile::Parts,
            _ => return Ok(None),
        };
        Ok(Some(file_node(place, ix, file)))
    }

    /// Returns true if a message still opens in `inbox/` under a name. A program may have the name from a
    /// listing, so it opens even after the message was read or acknowledged. An id always opens, since no
    /// listing shows it.
    fn can_open_in_inbox(&self, ix: MsgIx, stem: &str) -> bool {
        let known = |e: &IndexEntry| {
            !e.is_read() || e.is_read_here() || self.acknowledgements().is_given(ix)
        };
        !names::has_time_prefix(stem) || known(self.index.read().messages.entry(ix))
    }
}
