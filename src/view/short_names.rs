//! Short names of messages. `<id8>` and the whole id open a message in each folder that lists it
//! (docs/SEMANTICS.md, S223). A reader of a forwarded text knows its `Message-ID:` and no file name.

use std::collections::BTreeSet;

use serde::Serialize;

use super::names;
use super::node::{Node, NodeProperty};
use crate::index::{Index, IndexTables, MsgIx};
use crate::model::locks::Mutex;
use crate::model::short_id::short_id;
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

/// The last id that was requested and does not stand for exactly one message.
#[derive(Debug, Default)]
pub(super) struct LastUnknownId(Mutex<Option<UnknownId>>);

impl LastUnknownId {
    /// Returns the last such id, if there is one.
    pub fn get(&self) -> Option<UnknownId> {
        self.0.lock().clone()
    }

    /// Records an id that was requested and stands for no message of a folder, or for several. `list` gets a number,
    /// and returns at most that many of the messages that came last in the folder, each with its id and its name.
    pub fn note(&self, id: &str, list: impl FnOnce(usize) -> Vec<(String, String)>) {
        let is_hex = |b: u8| matches!(b, b'0'..=b'9' | b'a'..=b'f');
        let Some(short) = id.get(..8).filter(|_| id.len() <= 64 && id.bytes().all(is_hex)) else {
            return;
        };
        let named = list(LOOKED_AT);
        let stands_for = |whole: &str| names::ids_of_name(id).any(|named| named.stands_for(whole));
        let same = named.iter().filter(|(whole, _)| stands_for(whole));
        let same: Vec<&str> = same.map(|(_, name)| name.as_str()).collect();
        if let [_] = &same[..] {
            // The message exists, and only the file beside it does not.
            return;
        }
        let short_ids: Vec<String> = named.iter().map(|(whole, _)| short_id(whole)).collect();
        let nearest = find_nearest(short, short_ids.iter().map(String::as_str));
        let found = short_ids.iter().zip(&named).find(|(id, _)| Some(id.as_str()) == nearest);
        let meaning = match (&same[..], found) {
            ([_, _, ..], _) => format!("stands for {}", same.join(" and ")),
            (_, Some((_, (_, name)))) => format!("the nearest is {name}"),
            _ => "none here is like it".to_owned(),
        };
        *self.0.lock() = Some(UnknownId { id: id.to_owned(), meaning, time: Timestamp::now() });
    }
}

/// The positions of messages by the keys of their own ids, and of ids that they may share with other records. It only
/// grows, because messages are only added and keep their ids.
#[derive(Debug, Default)]
pub(super) struct ShortIdIndex(Mutex<IndexedIds>);

#[derive(Debug, Default)]
struct IndexedIds {
    /// Number of messages indexed so far.
    count: usize,
    by_key: BTreeSet<(u32, MsgIx)>,
}

impl ShortIdIndex {
    fn messages_with_key(&self, tables: &IndexTables, key: u32) -> Vec<MsgIx> {
        let mut known = self.0.lock();
        let new = tables.messages.messages_since(known.count);
        known.count = tables.messages.messages_so_far();
        let keys_of = |ix| {
            let own = tables.messages.id(tables.messages.entry(ix));
            let ids = std::iter::once(own).chain(tables.messages.possible_shared_id(ix));
            ids.filter_map(move |id| Some((names::short_key_of_id(&id)?, ix)))
        };
        known.by_key.extend(new.flat_map(keys_of));
        let same = known.by_key.range((key, MsgIx::MIN)..=(key, MsgIx::MAX));
        same.map(|(_, ix)| *ix).collect()
    }

    /// Finds a message by a short name among those that `lies` chooses. Returns `None` if the name fits several.
    pub fn find(
        &self,
        index: &Index,
        tables: &IndexTables,
        name: &str,
        is_in_folder: impl Fn(&MsgIx) -> bool,
    ) -> Option<MsgIx> {
        let meant = names::ids_of_name(name).flat_map(|named| {
            let near = named.short_key().map(|key| self.messages_with_key(tables, key));
            near.into_iter().flatten().filter(move |ix| {
                let entry = tables.messages.entry(*ix);
                let kind = || index.store_of(entry).kind();
                let shared = || tables.messages.shared_id(*ix);
                named.kind.is_none_or(|named| named == kind())
                    && (named.stands_for(&tables.messages.id(entry))
                        || shared().is_some_and(|id| named.stands_for(&id)))
            })
        });
        // The id of a record that is not shown here belongs to the original that is shown.
        let shown = |ix| {
            Some(ix)
                .filter(&is_in_folder)
                .or_else(|| tables.messages.find_original(ix).filter(&is_in_folder))
        };
        let meant: BTreeSet<MsgIx> = meant.filter_map(shown).collect();
        meant.first().copied().filter(|_| meant.len() == 1)
    }
}

/// Returns true if new messages may give a name another meaning, or none.
pub fn may_mean_another(folder: &Node, name: &str) -> bool {
    folder.has(NodeProperty::ShowsMessages) && !names::has_time_prefix(name)
}
