//! Short names of messages. `<id8>` and the whole id open a message in each folder that lists it
//! (docs/SEMANTICS.md, S223). A reader of a forwarded text knows its `Message-ID:` and no file name.

use std::collections::BTreeSet;

use serde::Serialize;

use super::node::Node;
use super::{Tree, names};
use crate::index::{IndexTables, MsgIx};
use crate::model::{Timestamp, find_nearest};

/// Largest number of messages that are compared with an unknown id.
const LOOKED_AT: usize = 1000;

/// A requested id that does not stand for exactly one message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct UnknownId {
    /// The id as it was written.
    pub id: String,
    /// The id that may have been meant.
    pub meaning: String,
    #[serde(skip)]
    pub(super) time: Timestamp,
}

/// Returns true if a folder shows a message, or has shown it.
fn is_message_in(tree: &Tree, core: &IndexTables, ix: MsgIx, folder: &Node) -> bool {
    tree.is_in_folder(core, core.messages.entry(ix), folder)
}

/// The messages by the keys of their ids. It grows on demand, because messages are only ever added and keep
/// their ids.
#[derive(Debug, Default)]
pub(super) struct ShortIdIndex {
    /// Number of messages indexed so far.
    indexed_count: usize,
    by_key: BTreeSet<(u32, MsgIx)>,
}

impl ShortIdIndex {
    fn index_new_messages(&mut self, core: &IndexTables) {
        let new = core.messages.messages_since(self.indexed_count);
        self.indexed_count = core.messages.messages_so_far();
        let key =
            |ix| Some((names::short_key_of_id(&core.messages.id(core.messages.entry(ix)))?, ix));
        self.by_key.extend(new.filter_map(key));
    }

    fn messages_with_key(&self, key: u32) -> Vec<MsgIx> {
        let same = self.by_key.range((key, MsgIx::MIN)..=(key, MsgIx::MAX));
        same.map(|(_, ix)| *ix).collect()
    }
}

impl Tree {
    /// Finds the message of a folder by a short name. Returns `None` if it fits several.
    pub(super) fn find_by_short_id(
        &self,
        core: &IndexTables,
        folder: &Node,
        name: &str,
    ) -> Option<MsgIx> {
        let key = names::short_key_of_name(name)?;
        let near = {
            let mut known = self.short_ids.lock();
            known.index_new_messages(core);
            known.messages_with_key(key)
        };
        let is_meant =
            |ix: &MsgIx| names::is_name_of_id(name, &core.messages.id(core.messages.entry(*ix)));
        let lies = |ix: &MsgIx| self.is_in_folder(core, core.messages.entry(*ix), folder);
        // The id of a record that is not shown here belongs to the original that is shown.
        let shown =
            |ix| Some(ix).filter(lies).or_else(|| core.messages.find_original(ix).filter(lies));
        let meant = near.into_iter().filter(is_meant).filter_map(shown);
        let meant: BTreeSet<MsgIx> = meant.collect();
        meant.first().copied().filter(|_| meant.len() == 1)
    }

    /// Finds the message that an id alone opens in a folder.
    pub(super) fn find_bare_id(&self, folder: &Node, name: &str) -> Option<Node> {
        if names::has_time_prefix(name) {
            return None;
        }
        self.find_message_by_stem(folder, name).map(|(place, ix)| Node::Message(place, ix))
    }

    /// Records an id that was requested and stands for no message of the folder, or for several.
    pub(super) fn note_unknown_id(&self, folder: &Node, id: &str) {
        let is_hex = |b: u8| matches!(b, b'0'..=b'9' | b'a'..=b'f');
        let Some(short) = id.get(..8).filter(|_| id.len() <= 64 && id.bytes().all(is_hex)) else {
            return;
        };
        let near: Vec<MsgIx> = {
            let core = self.index.read();
            match folder {
                // `inbox/` finds read messages, too.
                Node::Inbox => core.messages.messages_to_me().rev().take(LOOKED_AT).collect(),
                Node::Thread(thread) => self.thread_messages(&core, *thread).to_vec(),
                Node::ArchiveDay(_) => core
                    .messages
                    .messages_to_me()
                    .filter(|ix| is_message_in(self, &core, *ix, folder))
                    .collect(),
                _ => core
                    .messages
                    .messages_from_me()
                    .filter(|ix| is_message_in(self, &core, *ix, folder))
                    .collect(),
            }
        };
        let named: Vec<(String, String)> = near
            .into_iter()
            .rev()
            .take(LOOKED_AT)
            .map(|ix| (self.message_short_id(ix), self.message_name(ix)))
            .collect();
        let same: Vec<&str> =
            named.iter().filter(|(id, _)| id == short).map(|(_, name)| name.as_str()).collect();
        let nearest = find_nearest(short, named.iter().map(|(id, _)| id.as_str()));
        let found = named.iter().find(|(id, _)| Some(id.as_str()) == nearest);
        let meaning = match (&same[..], found) {
            ([_, _, ..], _) => format!("stands for {}", same.join(" and ")),
            (_, Some((_, name))) => format!("the nearest is {name}"),
            _ => "none here is like it".to_owned(),
        };
        *self.last_unknown_id.lock() =
            Some(UnknownId { id: id.to_owned(), meaning, time: Timestamp::now() });
    }

    /// Returns the part of a message's name that stands for its id.
    fn message_short_id(&self, ix: MsgIx) -> String {
        let core = self.index.read();
        names::short_id(&core.messages.id(core.messages.entry(ix)))
    }

    /// Returns true if a file name is a short one of this message.
    pub(super) fn is_short_name(&self, folder: &Node, name: &str, ix: MsgIx) -> bool {
        let stem = Some(name.strip_suffix(".txt").unwrap_or(name));
        let stem = stem.filter(|stem| !names::has_time_prefix(stem));
        stem.and_then(|stem| self.find_message_by_stem(folder, stem))
            .is_some_and(|(_, of)| of == ix)
    }

    /// Returns true if new messages may give a name another meaning, or none.
    pub fn may_mean_another(&self, folder: &Node, name: &str) -> bool {
        let of_messages = matches!(
            folder,
            Node::Inbox | Node::ArchiveDay(_) | Node::SentDay(_) | Node::Thread(_)
        );
        of_messages && !names::has_time_prefix(name)
    }
}
