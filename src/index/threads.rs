//! The identities of threads, behind their inode numbers: the same in every process, and each thread another.

use super::core::{IndexTables, ThreadIx};
use super::intern::{IDENTITY_MASK, stable_hash, text_identity};

impl IndexTables {
    /// The identity behind a thread's inode numbers.
    pub fn thread_identity(&self, thread: ThreadIx) -> Option<u64> {
        if let Some(odd) = self.odd_threads.get(&thread) {
            return Some(*odd);
        }
        let t = self.threads.get(thread as usize)?;
        Some(self.default_thread_identity(t.store(), self.strings.get(t.id)))
    }

    /// The identity that a thread has unless another one has it.
    fn default_thread_identity(&self, store: usize, id: &str) -> u64 {
        text_identity(id) ^ self.thread_salt(store)
    }

    /// Another identity for a thread that is new in its store, if its own is taken: ids can be made so that they
    /// are equal. `alone`: no other text has the identity of its id.
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

    /// Finds a thread by the identity behind its inode numbers.
    pub fn find_thread_by_identity(&self, identity: u64) -> Option<ThreadIx> {
        self.find_thread_except(identity, None)
    }

    /// The same, without a look at one of the stores.
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
