//! Rendering for programs that walk through folders. Messages are read in batches, and before a program asks
//! for them.

use std::sync::Arc;

use super::folder_scope::FolderScope;
use super::listing::ListingCache;
use super::message_texts::MessageTexts;
use super::messages::{MessagesKey, folder_scope};
use super::node::Node;
use super::ordered_messages::OrderedMessages;
use super::{Listing, OpenFile};
use crate::index::{Index, IndexEntry, ThreadIx};
use crate::model::locks::Mutex;

/// Messages that are read and rendered together.
pub const TOGETHER: usize = 64;

/// Number of rendered messages left ahead of a sequential reader at which the next batch is rendered.
const LEFT: usize = 16;
/// Largest distance between two messages of a sequential read; attachment folders and warnings are listed
/// between them.
const STEP: usize = 3;

/// Progress of a sequential read through a folder: the next position in its listing, and the end of the
/// rendered part.
#[derive(Clone, Copy, Debug, Default)]
struct ReadAheadState {
    folder: Option<FolderScope>,
    next: usize,
    ready: usize,
}

impl ReadAheadState {
    /// Notes that an entry was read. Returns the position from which messages are to be rendered now, if any.
    /// The first read of a folder renders nothing, because it may be the only one.
    fn advance_to(&mut self, folder: FolderScope, at: usize) -> Option<usize> {
        let goes_on = self.folder == Some(folder) && (self.next..self.next + STEP).contains(&at);
        let ready = if goes_on { self.ready.max(at + 1) } else { at + 1 };
        let wanted = goes_on && at + LEFT >= ready;
        let until = if wanted { ready + TOGETHER } else { ready };
        *self = Self { folder: Some(folder), next: at + 1, ready: until };
        wanted.then_some(ready)
    }
}

/// The progress of the program that walks through folders, and the means to render what it asks for next.
pub struct ReadAhead {
    index: Arc<Index>,
    lists: Arc<OrderedMessages>,
    texts: Arc<MessageTexts>,
    listings: Arc<ListingCache>,
    progress: Mutex<ReadAheadState>,
    /// The thread whose folder was last listed with the sizes of its messages.
    last_walked_thread: Mutex<Option<ThreadIx>>,
}

impl ReadAhead {
    pub(super) fn new(
        index: Arc<Index>,
        lists: Arc<OrderedMessages>,
        texts: Arc<MessageTexts>,
        listings: Arc<ListingCache>,
    ) -> Self {
        let (progress, last_walked_thread) = (Mutex::default(), Mutex::default());
        Self { index, lists, texts, listings, progress, last_walked_thread }
    }

    /// Renders messages of a listing that no program has asked for yet. A program that lists with sizes asks
    /// for them next.
    pub fn render_listing(&self, listing: &Listing, from: usize, count: usize) {
        self.texts.render_ahead(listing.messages(from, count));
    }

    /// Renders the next messages of a folder after one was read, if the messages of the folder are read in
    /// order.
    pub fn render_following(&self, file: &OpenFile) {
        let OpenFile::Message(place, ix, _) = file else { return };
        let (folder, generation) = {
            let core = self.index.read();
            (FolderScope::of_message(&core, *place, *ix), core.generation())
        };
        let Some(listing) = self.listings.get(&folder.into(), generation) else { return };
        let before = *self.progress.lock();
        let from = if before.folder == Some(folder) { before.next } else { 0 };
        let Some(at) = listing.find_position(*ix, from, STEP) else { return };
        let Some(from) = self.progress.lock().advance_to(folder, at) else { return };
        self.texts.render_uncached(listing.messages(from, TOGETHER));
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
        let Some(FolderScope::Thread(thread)) = folder_scope(folder) else { return };
        let Some(before) = self.last_walked_thread.lock().replace(thread) else { return };
        let messages = |thread| self.lists.thread_messages(&self.index.read(), thread);
        let read = *self.progress.lock();
        if read.folder == Some(FolderScope::Thread(before)) && read.next >= messages(before).len() {
            let folder = Some(FolderScope::Thread(thread));
            *self.progress.lock() = ReadAheadState { folder, next: 0, ready: TOGETHER };
            return self.texts.render_uncached(messages(thread).iter().copied().take(TOGETHER));
        }
        if let Some(next) = self.find_next_thread(before, thread) {
            self.texts.render_ahead(messages(next).iter().copied().take(count));
        }
    }

    /// Returns the thread that is listed after `thread`, if `thread` is listed right after `before`.
    fn find_next_thread(&self, before: ThreadIx, thread: ThreadIx) -> Option<ThreadIx> {
        let core = self.index.read();
        let listing = self.listings.get(&MessagesKey::Threads.into(), core.generation())?;
        listing.find_thread_after(&core, before, thread)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_reads_on_is_ahead_of_nothing_that_is_not_rendered() {
        let mut reading = ReadAheadState::default();
        let [this, other] = [7, 8].map(|n| FolderScope::Thread(ThreadIx::for_test(n)));
        assert_eq!(reading.advance_to(this, 0), None, "it may be the only one");
        assert_eq!(reading.advance_to(this, 1), Some(2));
        let mut ready = 2 + TOGETHER;
        for at in 2..1000 {
            assert!(at < ready, "{at}");
            if let Some(from) = reading.advance_to(this, at) {
                assert!(from == ready && from <= at + LEFT);
                ready += TOGETHER;
            }
        }
        assert_eq!(reading.advance_to(other, 1000), None, "another folder");
        assert_eq!(reading.advance_to(other, 1000), None, "the same again");
        assert_eq!(reading.advance_to(other, 1001), Some(1002));
        assert_eq!(reading.advance_to(other, 1001 + STEP), None, "what comes next is rendered");
        assert_eq!(reading.advance_to(other, 5000), None, "far away");
    }
}
