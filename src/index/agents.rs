//! Senders and recipients, and the number of messages behind a read position.

use std::collections::BTreeMap;

use hashbrown::{HashMap, HashSet};

use super::column::at_mut;
use super::intern::StrId;
use super::messages::{IndexEntry, MessageTable};
use super::position::MsgIx;
use super::tables::IndexTables;
use crate::model::{PublicKey, Timestamp};
use crate::store::Watermark;

/// A store, by its number, and an address in it.
pub type StoreAddress = (usize, String);

/// The data that the messages of one store have about an address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Correspondent {
    /// The time of the newest message from there.
    pub wrote: Option<Timestamp>,
    /// The newest of the keys that validly signed such a message.
    pub key: Option<PublicKey>,
}

/// A counter of the messages behind a read position. `ahead` has the messages that the position names together with
/// their writers: they are read, although they may stand after it.
struct BacklogCounter<'a> {
    position: &'a Watermark,
    ahead: HashSet<MsgIx>,
    behind: u64,
}

impl IndexTables {
    /// Returns all senders and recipients of live messages. It visits each message once.
    pub fn list_correspondents(&self) -> BTreeMap<StoreAddress, Correspondent> {
        let mut wrote: Vec<Option<i64>> = vec![None; self.messages.names().writers().len()];
        let mut to: HashSet<(usize, StrId)> = HashSet::new();
        let mut last = None;
        for (_, entry) in self.messages.all_entries().filter(|(_, e)| e.is_live()) {
            let newest = at_mut(&mut wrote, entry.writer() as usize);
            *newest = (*newest).max(Some(entry.time().millis()));
            // Neighbours in a log have the same recipients.
            let this = Some((entry.store(), entry.recipients()));
            if this != last {
                to.extend(this);
                last = this;
            }
        }
        let names = self.messages.names();
        let mut correspondents: BTreeMap<StoreAddress, Correspondent> = BTreeMap::new();
        for (store, all) in to {
            for one in names.text(all).split(", ").filter(|one| !one.is_empty()) {
                correspondents.entry((store, one.to_owned())).or_default();
            }
        }
        for ((number, writer), newest) in (0u32..).zip(names.writers()).zip(wrote) {
            let (Some(newest), name) = (newest, names.text(writer.name)) else { continue };
            if !name.is_empty() {
                let correspondent =
                    correspondents.entry((writer.store, name.to_owned())).or_default();
                correspondent.wrote = Some(Timestamp::from_millis(newest));
                correspondent.key = self.trust.newest_key(number);
            }
        }
        correspondents
    }

    /// Returns the number of messages in each store. A message with a record for each recipient counts once.
    pub fn count_messages_by_store(&self) -> Vec<usize> {
        let copies: HashSet<MsgIx> = self.messages.copies().collect();
        self.count_by_store(self.messages.live_messages().filter(|ix| !copies.contains(ix)))
    }

    /// Returns the number of my unread messages in each store.
    pub fn count_unread_by_store(&self) -> Vec<usize> {
        self.count_by_store(self.messages.lists().unread())
    }

    fn count_by_store(&self, messages: impl Iterator<Item = MsgIx>) -> Vec<usize> {
        let mut counts = vec![0; self.messages.names().stores().len()];
        for entry in messages.map(|ix| self.messages.entry(ix)) {
            *at_mut(&mut counts, entry.store()) += 1;
        }
        counts
    }

    /// Returns, for each address, the number of messages to it behind its read position. It visits each message
    /// once.
    pub fn count_behind(
        &self,
        positions: &BTreeMap<StoreAddress, Watermark>,
    ) -> Vec<(StoreAddress, u64)> {
        let make_counter = |(address, position)| BacklogCounter {
            position,
            ahead: find_read_ahead(&self.messages, address, position),
            behind: 0,
        };
        let mut all: Vec<BacklogCounter<'_>> = positions.iter().map(make_counter).collect();
        let number: HashMap<&StoreAddress, usize> = positions.keys().zip(0..).collect();
        // For each list of recipients, the positions that count.
        let mut lists: HashMap<(usize, StrId), Vec<usize>> = HashMap::new();
        // Records of one message to several recipients. It is read if one of its records is.
        let mut several: HashMap<(usize, MsgIx), bool> = HashMap::new();
        for (ix, entry) in self.messages.all_entries().filter(|(_, e)| e.is_live()) {
            let store = entry.store();
            let counters = lists.entry((store, entry.recipients())).or_insert_with(|| {
                let names = self.messages.recipient_list(entry).split(", ");
                names.filter_map(|to| number.get(&(store, to.to_owned())).copied()).collect()
            });
            for n in counters.iter() {
                let counter = at_mut(&mut all, *n);
                if !counter.may_miss(entry) {
                    continue;
                }
                let read = counter.has_read(&self.messages, ix, entry);
                let first = self.messages.find_original(ix).unwrap_or(ix);
                if first == ix && !self.messages.recipient_list(entry).contains(", ") {
                    counter.behind += u64::from(!read);
                } else {
                    *several.entry((*n, first)).or_default() |= read;
                }
            }
        }
        for ((n, _), _) in several.into_iter().filter(|(_, read)| !read) {
            at_mut(&mut all, n).behind += 1;
        }
        positions.keys().cloned().zip(all.iter().map(|counter| counter.behind)).collect()
    }
}

/// Returns the messages that a read position names together with their writers.
fn find_read_ahead(
    messages: &MessageTable,
    address: &StoreAddress,
    position: &Watermark,
) -> HashSet<MsgIx> {
    let named = position.ids.iter().filter_map(|id| id.split_once(':'));
    named.filter_map(|(from, id)| messages.find_message(address.0, from, id)).collect()
}

impl BacklogCounter<'_> {
    /// Returns true unless a message is so old that it counts as read in any case.
    fn may_miss(&self, entry: &IndexEntry) -> bool {
        entry.time() >= self.position.time
    }

    fn has_read(&self, messages: &MessageTable, ix: MsgIx, entry: &IndexEntry) -> bool {
        // Ids without their writer count only within the second of the position.
        let same =
            entry.time().secs() == self.position.time.secs() && !self.position.ids.is_empty();
        self.ahead.contains(&ix)
            || same
                && self.position.has_read(entry.time(), messages.sender(entry), &messages.id(entry))
    }
}
