//! Rendering for whoever walks through folders: messages are read together, and before they are asked for.

use std::collections::BTreeMap;

use super::node::{Ino, Node};
use super::{Listing, OpenFile, Tree};
use crate::index::{IndexEntry, MsgIx, ThreadIx};
use crate::model::SignatureState;

/// Messages that are read and rendered together.
pub const TOGETHER: usize = 64;

/// A message to be rendered: what is known of it.
type PendingRender = (MsgIx, IndexEntry, SignatureState);

/// Messages that are read one after the other are rendered when so few are left that are.
const LEFT: usize = 16;
/// The next message stands at most so many entries behind one: what comes with it stands between.
const STEP: usize = 3;

/// How far the messages of a folder were read one after the other, in its listing, and are rendered.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ReadAheadState {
    folder: Ino,
    next: usize,
    ready: usize,
}

impl ReadAheadState {
    /// An entry of a folder was read: where those begin that are to be rendered now. Whoever reads a first one
    /// may read no other.
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
    /// Renders messages of a listing that nobody has asked for yet: whoever reads it with its sizes comes
    /// to them next.
    pub fn render_listing_ahead(&self, listing: &Listing, from: usize, count: usize) {
        self.render_ahead(listing.messages(from, count));
    }

    /// A message was read. Whoever reads those of a folder one after the other comes to the next ones now: they
    /// are rendered.
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

    /// Whether the sizes of the first messages of a listing need no rendering.
    pub fn has_all_sizes(&self, listing: &Listing) -> bool {
        let core = self.index.read();
        let unknown = |ix: MsgIx| core.entry(ix).is_some_and(|e| e.is_live() && e.size().is_none());
        !listing.messages(0, TOGETHER).any(unknown)
    }

    /// A folder was listed to its end with the sizes of its messages. Whoever read those of the thread before reads
    /// these now. Else whoever came there from the thread before comes to the next one: as many of its messages are
    /// rendered.
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

    /// The thread that is listed behind one, if another is listed right before that.
    fn find_next_thread(&self, before: ThreadIx, thread: ThreadIx) -> Option<ThreadIx> {
        let (ino, generation) = (self.inode_number(&Node::Threads), self.generation());
        let listing = self.listing_cache.lock().get(ino, generation)?;
        listing.find_thread_after(&self.index.read(), before, thread)
    }

    /// Renders messages nobody has asked for yet, whose sizes are not known. What cannot be read is told to
    /// who asks.
    pub(super) fn render_ahead(&self, messages: impl Iterator<Item = MsgIx>) {
        let messages: Vec<MsgIx> = messages.collect();
        // Not all as of one moment: what comes meanwhile makes those in vain that were not read before.
        let unknown = |entry: &IndexEntry| entry.size().is_none();
        messages.chunks(TOGETHER).for_each(|some| self.render_batch(some, unknown));
    }

    fn render_batch(&self, messages: &[MsgIx], which: impl Fn(&IndexEntry) -> bool) {
        let mut wanted: BTreeMap<usize, Vec<PendingRender>> = BTreeMap::new();
        let core = self.index.read();
        let generation = core.generation();
        for ix in messages.iter().copied() {
            if let Some(entry) = core.entry(ix).filter(|e| e.is_live() && which(e)) {
                let ahead = (ix, *entry, core.signature(entry));
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
                    let _ = self.render_record((*ix, entry), *signature, generation, record);
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
