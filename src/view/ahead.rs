//! Rendering for whoever walks through folders: messages are read together, and before they are asked for.

use std::collections::BTreeMap;

use super::node::{Ino, Node};
use super::{Listing, OpenFile, Tree};
use crate::index::{Entry, MsgIx, ThreadIx};
use crate::model::SignatureState;

/// Messages that are read and rendered together.
pub const TOGETHER: usize = 64;

/// A message to be rendered: what is known of it.
type Ahead = (MsgIx, Entry, SignatureState);

/// Messages that are read one after the other are rendered when so few are left that are.
const LEFT: usize = 16;
/// The next message stands at most so many entries behind one: what comes with it stands between.
const STEP: usize = 3;

/// How far the messages of a folder were read one after the other, in its listing, and are rendered.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ReadOn {
    folder: Ino,
    next: usize,
    ready: usize,
}

impl ReadOn {
    /// An entry of a folder was read: where those begin that are to be rendered now. Whoever reads a first one
    /// may read no other.
    fn read(&mut self, folder: Ino, at: usize) -> Option<usize> {
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
    pub fn look_ahead(&self, listing: &Listing, from: usize, count: usize) {
        self.render_ahead(listing.messages(from, count));
    }

    /// A message was read. Whoever reads those of a folder one after the other comes to the next ones now: they
    /// are rendered.
    pub fn read_on(&self, file: &OpenFile) {
        let OpenFile::Message(place, ix, _) = file else { return };
        let (folder, generation) = (self.ino(&self.folder_of(*place, *ix)), self.generation());
        let Some(listing) = self.listings.lock().get(folder, generation) else { return };
        let before = *self.reading.lock();
        let from = if before.folder == folder { before.next } else { 0 };
        let Some(at) = listing.place_of(*ix, from, STEP) else { return };
        let Some(from) = self.reading.lock().read(folder, at) else { return };
        self.render_for_reading(listing.messages(from, TOGETHER));
    }

    fn render_for_reading(&self, messages: impl Iterator<Item = MsgIx>) {
        let unread = |ix: &MsgIx| self.rendered.lock().get(*ix).is_none();
        let messages: Vec<MsgIx> = messages.filter(unread).collect();
        self.render_together(&messages, |_| true);
    }

    /// Whether the sizes of the first messages of a listing need no rendering.
    pub fn knows_sizes(&self, listing: &Listing) -> bool {
        let core = self.index.read();
        let unknown = |ix: MsgIx| core.entry(ix).is_some_and(|e| e.is_live() && e.size().is_none());
        !listing.messages(0, TOGETHER).any(unknown)
    }

    /// A folder was listed to its end with the sizes of its messages. Whoever read those of the thread before reads
    /// these now. Else whoever came there from the thread before comes to the next one: as many of its messages are
    /// rendered.
    pub fn look_beyond(&self, folder: &Node, count: usize) {
        let Node::Thread(thread) = folder else { return };
        let Some(before) = self.walked.lock().replace(*thread) else { return };
        let messages = |thread| self.thread_messages(&self.index.read(), thread);
        let read = *self.reading.lock();
        if read.folder == self.ino(&Node::Thread(before)) && read.next >= messages(before).len() {
            *self.reading.lock() = ReadOn { folder: self.ino(folder), next: 0, ready: TOGETHER };
            return self.render_for_reading(messages(*thread).iter().copied().take(TOGETHER));
        }
        if let Some(next) = self.thread_behind(before, *thread) {
            self.render_ahead(messages(next).iter().copied().take(count));
        }
    }

    /// The thread that is listed behind one, if another is listed right before that.
    fn thread_behind(&self, before: ThreadIx, thread: ThreadIx) -> Option<ThreadIx> {
        let (ino, generation) = (self.ino(&Node::Threads), self.generation());
        let listing = self.listings.lock().get(ino, generation)?;
        listing.behind(&self.index.read(), before, thread)
    }

    /// Renders messages nobody has asked for yet, whose sizes are not known. What cannot be read is told to
    /// who asks.
    pub(super) fn render_ahead(&self, messages: impl Iterator<Item = MsgIx>) {
        let messages: Vec<MsgIx> = messages.collect();
        // Not all as of one moment: what comes meanwhile makes those in vain that were not read before.
        let unknown = |entry: &Entry| entry.size().is_none();
        messages.chunks(TOGETHER).for_each(|some| self.render_together(some, unknown));
    }

    fn render_together(&self, messages: &[MsgIx], which: impl Fn(&Entry) -> bool) {
        let mut wanted: BTreeMap<usize, Vec<Ahead>> = BTreeMap::new();
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
            store.read_many(&at, &mut |number, record| {
                let Some((ix, entry, signature)) = messages.get(number) else { return };
                if let Ok(record) = self.own_record(*ix, entry, record) {
                    let _ = self.render((*ix, entry), *signature, generation, record);
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
        let mut reading = ReadOn::default();
        assert_eq!(reading.read(7, 0), None, "it may be the only one");
        assert_eq!(reading.read(7, 1), Some(2));
        let mut ready = 2 + TOGETHER;
        for at in 2..1000 {
            assert!(at < ready, "{at}");
            if let Some(from) = reading.read(7, at) {
                assert!(from == ready && from <= at + LEFT);
                ready += TOGETHER;
            }
        }
        assert_eq!(reading.read(8, 1000), None, "another folder");
        assert_eq!(reading.read(8, 1000), None, "the same again");
        assert_eq!(reading.read(8, 1001), Some(1002));
        assert_eq!(reading.read(8, 1001 + STEP), None, "what comes next is rendered");
        assert_eq!(reading.read(8, 5000), None, "far away");
    }
}
