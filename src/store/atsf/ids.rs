//! The table of message ids and the threads that hold them.
//!
//! Ids are unique by rule, but logs are copied: a fork holds the messages of its original thread, a worktree may hold a
//! stale copy of a thread, and a broken writer may use an id twice. Each of them is a message of its own. The first one
//! keeps the plain id. A later one gets a hash ([`QUALIFIER`](crate::model::QUALIFIER)). In each log, the first message
//! of the id gets the hash of thread and id, and the others that of their content, too. Names that would be equal have
//! this hash, also the name of the message with the plain id. So names do not depend on which message came first.

use std::borrow::Cow;

use bytemuck::{Pod, Zeroable};
use hashbrown::HashTable;
use sha2::{Digest as _, Sha256};
use twox_hash::XxHash3_64;

use crate::model::qualify_id;

/// The holder of an id, in 24 bytes a message.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct AtsfIdHolder {
    /// The hash of role and id.
    hash: u64,
    /// The hash of the content blocks.
    content: u64,
    thread: u32,
    /// The last full read of the log that found the message.
    epoch: u32,
}

/// The table of all ids.
#[derive(Debug, Default)]
pub struct AtsfIdTable(HashTable<AtsfIdHolder>);

/// A log that is being read.
#[derive(Clone, Copy, Debug)]
pub struct AtsfLogScan<'a> {
    pub thread: u32,
    pub epoch: u32,
    /// The thread's id in the mount.
    pub key: &'a str,
}

/// The result of assigning an id.
#[derive(Debug, PartialEq, Eq)]
pub enum AtsfIdAssignment<'a> {
    /// The assigned id. `new`: the thread did not have it before. `shared`: another thread has the plain id.
    Id { id: Cow<'a, str>, new: bool, shared: bool },
    /// An earlier line of this log holds the same message.
    Duplicate,
}

/// The parts of a message that decide about its id.
#[derive(Clone, Copy, Debug)]
pub struct AtsfIdInput<'a> {
    pub role: &'a str,
    pub id: &'a str,
    pub content: &'a str,
}

impl<'a> AtsfIdInput<'a> {
    /// Returns a candidate: its own id, one of this thread, one of this text.
    fn candidate_id(&self, n: usize, key: &str) -> Cow<'a, str> {
        match n {
            0 => Cow::Borrowed(self.id),
            1 => qualify_id(self.id, Some(&hash_texts(&[key, self.id]))),
            _ => qualify_id(self.id, Some(&hash_texts(&[key, self.id, self.content]))),
        }
    }
}

/// Returns the SHA-256 of some texts.
pub(super) fn hash_texts(texts: &[&str]) -> [u8; 32] {
    let mut hash = Sha256::new();
    for text in texts {
        hash.update((text.len() as u64).to_le_bytes());
        hash.update(text);
    }
    hash.finalize().into()
}

/// Returns the hash of a role and an id.
pub(super) fn hash_id(role: &str, id: &str) -> u64 {
    XxHash3_64::oneshot(format!("{role}\0{id}").as_bytes())
}

impl AtsfIdTable {
    fn find_holder(&self, hash: u64) -> Option<&AtsfIdHolder> {
        self.0.find(hash, |h| h.hash == hash)
    }

    /// Returns true if any thread has the id.
    pub fn has_id(&self, print: u64) -> bool {
        self.find_holder(print).is_some()
    }

    /// Returns true if this thread has the id.
    pub fn has_id_in_thread(&self, print: u64, thread: u32) -> bool {
        self.find_holder(print).is_some_and(|h| h.thread == thread)
    }

    /// Assigns an id to the next message of a log.
    pub fn assign_id<'a>(
        &mut self,
        told: AtsfIdInput<'a>,
        by: AtsfLogScan<'_>,
    ) -> AtsfIdAssignment<'a> {
        let content = XxHash3_64::oneshot(told.content.as_bytes());
        let (mut shared, mut n) = (false, 0);
        while n < 3 {
            let id = told.candidate_id(n, by.key);
            let hash = hash_id(told.role, &id);
            match self.0.find_mut(hash, |h| h.hash == hash) {
                None => {
                    let holder = AtsfIdHolder { hash, content, thread: by.thread, epoch: by.epoch };
                    self.0.insert_unique(hash, holder, |h| h.hash);
                    return AtsfIdAssignment::Id { id, new: true, shared };
                }
                Some(holder) if holder.thread != by.thread => shared = true,
                Some(holder) if holder.epoch != by.epoch => {
                    (holder.epoch, holder.content) = (by.epoch, content);
                    return AtsfIdAssignment::Id { id, new: false, shared };
                }
                Some(holder) if holder.content == content => return AtsfIdAssignment::Duplicate,
                // An earlier line of this log has the id, so only the content tells this one apart.
                Some(_) => n = n.max(1),
            }
            n += 1;
        }
        AtsfIdAssignment::Duplicate
    }

    /// Returns the id that a message of this thread was assigned.
    pub fn find_assigned_id<'a>(
        &self,
        told: AtsfIdInput<'a>,
        thread: u32,
        key: &str,
    ) -> Cow<'a, str> {
        let content = XxHash3_64::oneshot(told.content.as_bytes());
        let held = |n: usize, same: bool| {
            let id = told.candidate_id(n, key);
            let holder = self.find_holder(hash_id(told.role, &id))?;
            (holder.thread == thread && (!same || holder.content == content)).then_some(id)
        };
        let exact = (0..3).find_map(|n| held(n, true));
        exact.or_else(|| (0..3).find_map(|n| held(n, false))).unwrap_or(Cow::Borrowed(told.id))
    }

    /// Forgets the ids that a full read of a log did not find again, and returns their hashes.
    pub fn forget_unseen(&mut self, thread: u32, epoch: u32) -> Vec<u64> {
        let mut gone = Vec::new();
        self.0.retain(|h| {
            let stays = h.thread != thread || h.epoch == epoch;
            if !stays {
                gone.push(h.hash);
            }
            stays
        });
        gone
    }

    /// Returns the table as bytes, for [`AtsfIdTable::restore`].
    pub fn save(&self) -> Vec<u8> {
        let all: Vec<AtsfIdHolder> = self.0.iter().copied().collect();
        bytemuck::cast_slice(&all).to_vec()
    }

    /// Restores the table from bytes; `None` if they are malformed.
    pub fn restore(bytes: &[u8]) -> Option<Self> {
        let (holders, rest) = bytes.as_chunks::<{ size_of::<AtsfIdHolder>() }>();
        if !rest.is_empty() {
            return None;
        }
        let mut table = HashTable::with_capacity(holders.len());
        for bytes in holders {
            let holder: AtsfIdHolder = bytemuck::pod_read_unaligned(bytes);
            table.insert_unique(holder.hash, holder, |h| h.hash);
        }
        Some(Self(table))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::plain_id;

    fn claim(
        ids: &mut AtsfIdTable,
        thread: u32,
        epoch: u32,
        id: &str,
        content: &str,
    ) -> Option<String> {
        let key = format!("t{thread}");
        let by = AtsfLogScan { thread, epoch, key: &key };
        match ids.assign_id(AtsfIdInput { role: "user", id, content }, by) {
            AtsfIdAssignment::Id { id, .. } => Some(id.into_owned()),
            AtsfIdAssignment::Duplicate => None,
        }
    }

    #[test]
    fn the_first_keeps_the_plain_id() {
        let mut ids = AtsfIdTable::default();
        assert_eq!(claim(&mut ids, 1, 1, "a", "x").unwrap(), "a");
        assert_eq!(claim(&mut ids, 1, 1, "a", "x"), None);
        let namesake = claim(&mut ids, 1, 1, "a", "y").unwrap();
        assert!(namesake != "a" && plain_id(&namesake) == "a");
        let fork = claim(&mut ids, 2, 1, "a", "x").unwrap();
        assert!(fork != namesake && plain_id(&fork) == "a");
        // A second read gives the same ids, also for another text.
        assert_eq!(claim(&mut ids, 1, 2, "a", "z").unwrap(), "a");
        assert_eq!(claim(&mut ids, 2, 2, "a", "x").unwrap(), fork);
        let told = |content| AtsfIdInput { role: "user", id: "a", content };
        assert_eq!(ids.find_assigned_id(told("x"), 2, "t2"), fork);
        assert_eq!(ids.find_assigned_id(told("z"), 1, "t1"), "a");
        // An id that is not found again is free.
        assert_eq!(ids.forget_unseen(1, 3).len(), 2);
        assert!(!ids.has_id(hash_id("user", "a")));
        assert_eq!(claim(&mut ids, 2, 3, "a", "x").unwrap(), "a");
    }

    #[test]
    fn ids_survive_being_saved() {
        let mut ids = AtsfIdTable::default();
        for n in 0..1000 {
            claim(&mut ids, n % 7, 1, &n.to_string(), "x").unwrap();
        }
        let again = AtsfIdTable::restore(&ids.save()).unwrap();
        assert!((0..1000).all(|n| again.has_id_in_thread(hash_id("user", &n.to_string()), n % 7)));
        assert!(AtsfIdTable::restore(&[0; 25]).is_none());
        assert!(!again.has_id(hash_id("agent", "1")));
    }
}
