//! Rendering for whoever walks through folders: messages are read together, and before they are asked for.

use std::collections::BTreeMap;

use super::node::Node;
use super::{Listing, Tree};
use crate::index::{Entry, MsgIx, ThreadIx};
use crate::model::SignatureState;

/// Messages that are read and rendered together.
pub const TOGETHER: usize = 64;

/// A message to be rendered: what is known of it.
type Ahead = (MsgIx, Entry, SignatureState);

impl Tree {
    /// Renders messages of a listing that nobody has asked for yet: whoever reads it with its sizes comes
    /// to them next.
    pub fn look_ahead(&self, listing: &Listing, from: usize, count: usize) {
        self.render_ahead(listing.messages(from, count));
    }

    /// Whether the sizes of the first messages of a listing need no rendering.
    pub fn knows_sizes(&self, listing: &Listing) -> bool {
        let core = self.index.read();
        let unknown = |ix: MsgIx| core.entry(ix).is_some_and(|e| e.is_live() && e.size().is_none());
        !listing.messages(0, TOGETHER).any(unknown)
    }

    /// A folder was listed to its end with the sizes of its messages. Whoever came there from the thread before
    /// comes to the next one now: as many of its messages are rendered.
    pub fn look_beyond(&self, folder: &Node, count: usize) {
        let Node::Thread(thread) = folder else { return };
        let before = self.walked.lock().replace(*thread);
        let Some(next) = before.and_then(|before| self.thread_behind(before, *thread)) else {
            return;
        };
        let messages = self.thread_messages(&self.index.read(), next);
        self.render_ahead(messages.iter().copied().take(count));
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
        messages.chunks(TOGETHER).for_each(|some| self.render_together(some));
    }

    fn render_together(&self, messages: &[MsgIx]) {
        let mut wanted: BTreeMap<usize, Vec<Ahead>> = BTreeMap::new();
        let core = self.index.read();
        let generation = core.generation();
        for ix in messages.iter().copied() {
            if let Some(entry) = core.entry(ix).filter(|e| e.is_live() && e.size().is_none()) {
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
