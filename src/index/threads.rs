//! The identities of threads, which their inode numbers are made from. They are the same in every process, and
//! each thread has another.

use super::intern::{IDENTITY_MASK, stable_hash, text_identity};
use super::tables::{IndexTables, ThreadIx};

impl IndexTables {
    /// Returns the identity that a thread's inode numbers are made from.
    pub fn thread_identity(&self, thread: ThreadIx) -> Option<u64> {
        if let Some(odd) = self.odd_threads.get(&thread) {
            return Some(*odd);
        }
        let t = self.threads.get(thread as usize)?;
        Some(self.default_thread_identity(t.store(), self.strings.get(t.id)))
    }

    /// Returns the identity that a thread gets unless another thread has it.
    fn default_thread_identity(&self, store: usize, id: &str) -> u64 {
        text_identity(id) ^ self.thread_salt(store)
    }

    /// Returns another identity for a thread that is new in its store, if its default identity is taken.
    /// Somebody may construct ids with equal hashes. `alone` is true if no other text has the identity of its
    /// id.
    pub(super) fn find_free_identity(&self, store: usize, id: &str, alone: bool) -> Option<u64> {
        let own = self.default_thread_identity(store, id);
        let mut identity = own;
        let mut except = alone.then_some(store);
        while self.find_thread_except(identity, except).is_some() {
            identity = stable_hash(identity.wrapping_add(1), &[id]) & IDENTITY_MASK;
            except = None;
        }
        (identity != own).then_some(identity)
    }

    fn thread_salt(&self, store: usize) -> u64 {
        self.stores.get(store).map_or(0, |s| s.salt)
    }

    /// Returns the thread with the identity that its inode numbers are made from.
    pub fn find_thread_by_identity(&self, identity: u64) -> Option<ThreadIx> {
        self.find_thread_except(identity, None)
    }

    /// Returns the same without a search in one of the stores.
    fn find_thread_except(&self, identity: u64, except: Option<usize>) -> Option<ThreadIx> {
        let odd = self.odd_threads.iter().find(|(_, odd)| **odd == identity);
        if let Some((thread, _)) = odd {
            return Some(*thread);
        }
        let mut stores = (0..self.stores.len()).filter(|store| Some(*store) != except);
        stores.find_map(|store| {
            let text = identity ^ self.thread_salt(store);
            let ids = self.strings.find_by_identity(text);
            let mut found = ids.filter_map(|id| self.find_thread_by_text(store, id));
            found.find(|t| !self.odd_threads.contains_key(t))
        })
    }
}
