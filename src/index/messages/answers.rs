//! The ids that messages to me answer, in stores whose format has thread ids. The other stores have reply links.

use std::collections::BTreeSet;
use std::sync::OnceLock;

use bytemuck::{Pod, Zeroable};

use super::names::NameTable;
use super::{EntryTable, MessageTable};
use crate::index::intern::stable_hash;
use crate::index::position::MsgIx;
use crate::model::plain_id;
use crate::store::FoundMessage;

/// A message to me, and the hash of the id that it answers.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(in crate::index) struct AnswerLink {
    id: u64,
    ix: MsgIx,
    unused: u32,
}

/// The answered ids of all such messages.
#[derive(Debug, Default)]
pub(super) struct AnswerLinks {
    /// In the order of message positions.
    list: Vec<AnswerLink>,
    /// By the hash of the id, the messages that answer it. The first lookup makes this table.
    answering: OnceLock<BTreeSet<(u64, MsgIx)>>,
}

/// Returns the hash of an id that a message of a store answers.
pub(in crate::index) fn answered_id_hash(names: &NameTable, store: usize, id: &str) -> u64 {
    stable_hash(6, &[names.store(store).name.as_str(), plain_id(id)])
}

impl AnswerLinks {
    fn position(&self, ix: MsgIx) -> Result<usize, usize> {
        self.list.binary_search_by_key(&ix, |link| link.ix)
    }

    /// Sets the hash of the id that a message answers, or removes it.
    fn set(&mut self, ix: MsgIx, id: Option<u64>) {
        let at = self.position(ix);
        if let Some(answering) = self.answering.get_mut() {
            if let Some(before) = at.ok().and_then(|at| self.list.get(at)) {
                answering.remove(&(before.id, ix));
            }
            answering.extend(id.map(|id| (id, ix)));
        }
        match (at, id) {
            (Ok(at), None) => {
                self.list.remove(at);
            }
            (Err(_), None) => {}
            (at, Some(id)) => {
                let link = AnswerLink { id, ix, unused: 0 };
                match at {
                    Ok(at) => self.list.splice(at..=at, [link]).for_each(drop),
                    Err(at) => self.list.insert(at, link),
                }
            }
        }
    }

    /// Returns the table for the snapshot.
    pub fn as_table(&self) -> &Vec<AnswerLink> {
        &self.list
    }

    /// Rebuilds the links from the table that [`AnswerLinks::as_table`] returned; returns `None` if a message of it
    /// is not in the index.
    pub fn from_table(list: Vec<AnswerLink>, known: &EntryTable) -> Option<Self> {
        let fits = list.is_sorted_by(|a, b| a.ix < b.ix)
            && known.has_all(list.iter().map(|link| &link.ix));
        fits.then(|| Self { list, answering: OnceLock::new() })
    }

    /// Returns the messages that answer the id with a hash.
    fn messages_answering(&self, id: u64) -> impl Iterator<Item = MsgIx> + '_ {
        let all = || self.list.iter().map(|link| (link.id, link.ix)).collect();
        let same = self.answering.get_or_init(all).range((id, MsgIx::MIN)..=(id, MsgIx::MAX));
        same.map(|(_, ix)| *ix)
    }
}

impl MessageTable {
    /// Returns true if the reply links of a store are the ids that its messages answer.
    fn has_answers_as_links(&self, store: usize) -> bool {
        let info = self.names().store(store);
        info.links && !info.joins
    }

    /// Returns the messages that name an id as the one that they answer, rejected and gone ones too. In stores with
    /// thread ids these are only messages to me.
    pub fn messages_answering(&self, store: usize, id: &str) -> Vec<MsgIx> {
        if self.has_answers_as_links(store) {
            let id = self.names().find_text(plain_id(id));
            return id
                .map_or_else(Vec::new, |id| self.links().messages_answering(store, id).collect());
        }
        self.answers.messages_answering(answered_id_hash(self.names(), store, id)).collect()
    }

    /// Returns true if a message to me names an id that it answers, in a store with thread ids.
    pub fn names_answered_id(&self, ix: MsgIx) -> bool {
        self.answers.position(ix).is_ok()
    }

    /// Records the id that a message to me answers.
    pub(super) fn note_answered_id(&mut self, ix: MsgIx, store: usize, found: &FoundMessage<'_>) {
        if self.has_answers_as_links(store) {
            return;
        }
        let named = found.in_reply_to.as_deref().filter(|id| found.to_me && !id.is_empty());
        let id = named.map(|id| answered_id_hash(self.names(), store, id));
        if id.is_some() || !self.answers.list.is_empty() {
            self.answers.set(ix, id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_answers_one_id_and_an_id_has_all_its_answers() {
        let mut links = AnswerLinks::default();
        let [a, b] = [1, 2].map(MsgIx::new);
        let answering =
            |links: &AnswerLinks, id| -> Vec<MsgIx> { links.messages_answering(id).collect() };
        links.set(b, Some(7));
        links.set(a, Some(7));
        assert_eq!(answering(&links, 7), [a, b]);
        links.set(a, Some(8));
        links.set(b, Some(8));
        links.set(b, None);
        links.set(b, None);
        assert_eq!((answering(&links, 7), answering(&links, 8)), (vec![], vec![a]));
        assert_eq!(links.as_table().len(), 1);
    }
}
