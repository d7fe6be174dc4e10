//! Rendering for programs that walk through folders. Messages are read in batches, and before a program asks
//! for them.

use std::collections::BTreeMap;

use super::node::{Ino, Node};
use super::{Listing, OpenFile, Tree};
use crate::index::{IndexEntry, MsgIx, ThreadIx};
use crate::model::SignatureState;

/// Messages that are read and rendered together.
pub const TOGETHER: usize = 64;

/// A message to be rendered: its number, entry and signature.
type PendingRender = (MsgIx, IndexEntry, SignatureState);

/// Number of rendered messages left ahead of a sequential reader at which the next batch is rendered.
const LEFT: usize = 16;
/// Largest distance between two messages of a sequential read; attachment folders and warnings are listed
/// between them.
const STEP: usize = 3;

/// Progress of a sequential read through a folder: the next position in its listing, and the end of the
/// rendered part.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ReadAheadState {
    folder: Ino,
    next: usize,
    ready: usize,
}

impl ReadAheadState {
    /// Notes that an entry was read. Returns the position from which messages are to be rendered now, if any.
    /// The first read of a folder renders nothing, because it may be the only one.
    fn advance_to(&mut self, folder: Ino, at: usize) -> Option<usize> {
        let goes_on = self.folder == folder && (self.next..self.next + STEP).contains(&at);
        let ready = if goes_on { self.ready.max(at + 1) } else { at + 1 };
        let wanted = goes_on && at + LEFT >= ready;
        let until = if wanted { ready + TOGETHER } else { ready };
        *self = Self { folder, next: at + 1, ready: until };
        wanted.then_some(ready)
    }
}

impl Tree {
    /// Renders messages of a listing that no program has asked for yet. A program that lists with sizes asks
    /// for them next.
    pub fn render_listing_ahead(&self, listing: &Listing, from: usize, count: usize) {
        self.render_ahead(listing.messages(from, count));
    }

    /// Renders the next messages of a folder after one was read, if the messages of the folder are read in
    /// order.
    pub fn render_following(&self, file: &OpenFile) {
        let OpenFile::Message(place, ix, _) = file else { return };
        let (folder, generation) =
            (self.inode_number(&self.folder_of_message(*place, *ix)), self.generation());
        let Some(listing) = self.listing_cache.lock().get(folder, generation) else { return };
        let before = *self.read_ahead.lock();
        let from = if before.folder == folder { before.next } else { 0 };
        let Some(at) = listing.find_position(*ix, from, STEP) else { return };
        let Some(from) = self.read_ahead.lock().advance_to(folder, at) else { return };
        self.render_uncached(listing.messages(from, TOGETHER));
    }

    fn render_uncached(&self, messages: impl Iterator<Item = MsgIx>) {
        let unread = |ix: &MsgIx| self.render_cache.lock().get(*ix).is_none();
        let messages: Vec<MsgIx> = messages.filter(unread).collect();
        self.render_batch(&messages, |_| true);
    }

    /// Returns true if the sizes of the first messages of a listing are known.
    pub fn has_all_sizes(&self, listing: &Listing) -> bool {
        let core = self.index.read();
        let unknown = |e: &IndexEntry| e.is_live() && e.size().is_none();
        !listing.messages(0, TOGETHER).any(|ix| unknown(core.messages.entry(ix)))
    }

    /// Renders messages after a thread's folder was listed to its end with sizes. If the messages of the
    /// previous thread were read to the end, those of this thread are rendered. Otherwise, if this thread
    /// directly follows the previous one, `count` messages of the next thread are rendered.
    pub fn render_next_thread(&self, folder: &Node, count: usize) {
        let Node::Thread(thread) = folder else { return };
        let Some(before) = self.last_walked_thread.lock().replace(*thread) else { return };
        let messages = |thread| self.thread_messages(&self.index.read(), thread);
        let read = *self.read_ahead.lock();
        if read.folder == self.inode_number(&Node::Thread(before))
            && read.next >= messages(before).len()
        {
            *self.read_ahead.lock() =
                ReadAheadState { folder: self.inode_number(folder), next: 0, ready: TOGETHER };
            return self.render_uncached(messages(*thread).iter().copied().take(TOGETHER));
        }
        if let Some(next) = self.find_next_thread(before, *thread) {
            self.render_ahead(messages(next).iter().copied().take(count));
        }
    }

    /// Returns the thread that is listed after `thread`, if `thread` is listed right after `before`.
    fn find_next_thread(&self, before: ThreadIx, thread: ThreadIx) -> Option<ThreadIx> {
        let (ino, generation) = (self.inode_number(&Node::Threads), self.generation());
        let listing = self.listing_cache.lock().get(ino, generation)?;
        listing.find_thread_after(&self.index.read(), before, thread)
    }

    /// Renders messages of unknown size before a program asks for them. The read of a message reports its
    /// error.
    pub(super) fn render_ahead(&self, messages: impl Iterator<Item = MsgIx>) {
        let messages: Vec<MsgIx> = messages.collect();
        // The batches are not of one generation: a change in between would make the rest of the work useless.
        let unknown = |entry: &IndexEntry| entry.size().is_none();
        messages.chunks(TOGETHER).for_each(|some| self.render_batch(some, unknown));
    }

    fn render_batch(&self, messages: &[MsgIx], which: impl Fn(&IndexEntry) -> bool) {
        let mut wanted: BTreeMap<usize, Vec<PendingRender>> = BTreeMap::new();
        let core = self.index.read();
        let generation = core.generation();
        for ix in messages.iter().copied() {
            let entry = core.messages.entry(ix);
            if entry.is_live() && which(entry) {
                let ahead = (ix, *entry, core.trust.signature(&core.messages, entry));
                wanted.entry(entry.store()).or_default().push(ahead);
            }
        }
        drop(core);
        for (number, messages) in wanted {
            let Some(store) = self.index.stores().get(number) else { continue };
            let at: Vec<_> = messages.iter().map(|(_, entry, _)| entry.location()).collect();
            store.read_records(&at, &mut |number, record| {
                let Some((ix, entry, signature)) = messages.get(number) else { return };
                if let Ok(record) = self.check_record(*ix, entry, record) {
                    self.render_record((*ix, entry), *signature, generation, record);
                }
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_reads_on_is_ahead_of_nothing_that_is_not_rendered() {
        let mut reading = ReadAheadState::default();
        assert_eq!(reading.advance_to(7, 0), None, "it may be the only one");
        assert_eq!(reading.advance_to(7, 1), Some(2));
        let mut ready = 2 + TOGETHER;
        for at in 2..1000 {
            assert!(at < ready, "{at}");
            if let Some(from) = reading.advance_to(7, at) {
                assert!(from == ready && from <= at + LEFT);
                ready += TOGETHER;
            }
        }
        assert_eq!(reading.advance_to(8, 1000), None, "another folder");
        assert_eq!(reading.advance_to(8, 1000), None, "the same again");
        assert_eq!(reading.advance_to(8, 1001), Some(1002));
        assert_eq!(reading.advance_to(8, 1001 + STEP), None, "what comes next is rendered");
        assert_eq!(reading.advance_to(8, 5000), None, "far away");
    }
}
