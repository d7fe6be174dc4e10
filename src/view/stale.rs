//! What a change of the index makes stale in the kernel's caches.

use std::collections::HashSet;

use super::node::{Ino, Node, Place};
use super::{Tree, names};
use crate::index::{Changes, MsgIx, ThreadIx};

/// Something a cache holds that is no longer true.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Stale {
    /// The attributes of a node.
    Attributes(Ino),
    /// A name in a folder.
    Name(Ino, String),
}

/// The places whose pages the kernel may keep; `inbox/` is always read through us.
const CACHED: [Place; 3] = [Place::Archive, Place::Sent, Place::Thread];

impl Tree {
    /// What a change of the index makes stale in a cache of this tree.
    pub fn stale(&self, changes: &Changes) -> HashSet<Stale> {
        let mut stale = HashSet::new();
        let mut nodes = vec![Node::Root, Node::Inbox];
        let listed =
            [&changes.added, &changes.redrawn, &changes.removed].iter().any(|l| !l.is_empty());
        if listed || !changes.moved.is_empty() || !changes.emptied.is_empty() {
            nodes.extend([Node::Archive, Node::Sent, Node::Threads, Node::Transcripts]);
        }
        if changes.other {
            nodes.extend([Node::Rejected, Node::Raw]);
        }
        stale.extend(nodes.iter().map(|n| Stale::Attributes(self.ino(n))));
        let added = changes.added.iter().map(|ix| (*ix, false));
        for (ix, gone) in added.chain(changes.removed.iter().map(|ix| (*ix, true))) {
            self.stale_message(ix, gone, &mut stale);
        }
        for ix in &changes.redrawn {
            self.stale_message(*ix, false, &mut stale);
            self.stale_text(*ix, &mut stale);
        }
        for (ix, left) in &changes.moved {
            self.stale_move(*ix, *left, &mut stale);
        }
        for thread in &changes.emptied {
            self.stale_thread(*thread, &mut stale);
        }
        for ix in &changes.marked {
            self.stale_mark(*ix, &mut stale);
        }
        stale
    }

    /// A message came or went.
    fn stale_message(&self, ix: MsgIx, gone: bool, stale: &mut HashSet<Stale>) {
        let Some(entry) = self.index.read().entry(ix).copied() else { return };
        let day = self.index.read().name_time(&entry).day();
        let thread = self.index.read().thread_of(&entry);
        let folders = [
            (Node::Inbox, Place::Inbox),
            (Node::ArchiveDay(day), Place::Archive),
            (Node::SentDay(day), Place::Sent),
            (Node::Thread(thread), Place::Thread),
        ];
        for (folder, place) in folders {
            stale.insert(Stale::Attributes(self.ino(&folder)));
            if gone {
                self.stale_names(&folder, ix, stale);
                for node in [Node::Message(place, ix), Node::Parts(place, ix), Node::Ack(place, ix)]
                {
                    stale.insert(Stale::Attributes(self.ino(&node)));
                }
            }
        }
        self.stale_thread(thread, stale);
    }

    /// A message left a thread for another: both change, and the message says where it is.
    fn stale_move(&self, ix: MsgIx, left: ThreadIx, stale: &mut HashSet<Stale>) {
        let Some(entry) = self.index.read().entry(ix).copied() else { return };
        let now = self.index.read().thread_of(&entry);
        self.stale_names(&Node::Thread(left), ix, stale);
        self.stale_thread(left, stale);
        self.stale_thread(now, stale);
        self.stale_text(ix, stale);
    }

    /// The text of a message changed.
    fn stale_text(&self, ix: MsgIx, stale: &mut HashSet<Stale>) {
        stale.insert(Stale::Attributes(self.ino(&Node::Warning(ix))));
        stale.insert(Stale::Attributes(self.ino(&Node::Message(Place::Inbox, ix))));
        for place in CACHED {
            stale.insert(Stale::Attributes(self.ino(&Node::Message(place, ix))));
        }
    }

    /// A name that was moved from `archive/` to `inbox/` stands there with the inode number it had.
    fn stale_mark(&self, ix: MsgIx, stale: &mut HashSet<Stale>) {
        let Some(entry) = self.index.read().entry(ix).copied() else { return };
        let Some(name) = self.message_name(ix).filter(|_| !entry.is_read()) else { return };
        for folder in [Node::Inbox, Node::ArchiveDay(self.index.read().name_time(&entry).day())] {
            stale.insert(Stale::Name(self.ino(&folder), name.clone()));
        }
    }

    /// Every name a message can have in a folder.
    fn stale_names(&self, folder: &Node, ix: MsgIx, stale: &mut HashSet<Stale>) {
        let (stems, parts, noted) = {
            let core = self.index.read();
            let Some(entry) = core.entry(ix) else { return };
            (names::message_stems(&core, entry), entry.has_parts(), core.is_noted(ix))
        };
        let parent = self.ino(folder);
        for stem in stems {
            if parts {
                stale.insert(Stale::Name(parent, format!("{stem}.d")));
            }
            if noted {
                stale.insert(Stale::Name(parent, format!("{stem}.warning")));
            }
            stale.insert(Stale::Name(parent, format!("{stem}.txt")));
        }
    }

    /// A thread got or lost a message: its folder and its transcript, and their names if they are
    /// shown no longer. Where two stores show the same id, what is left changes its name too.
    fn stale_thread(&self, thread: ThreadIx, stale: &mut HashSet<Stale>) {
        for node in [Node::Thread(thread), Node::Transcript(thread)] {
            stale.insert(Stale::Attributes(self.ino(&node)));
        }
        let (shown, read) = {
            let (core, all) = (self.index.read(), self.all_conversations());
            (core.has_folder(thread, all), core.thread_visible(thread, all))
        };
        if read {
            // Not touched: somebody may be working in the folder. The kernel asks for its name again
            // after a second.
            return;
        }
        let (folders, texts) = (self.ino(&Node::Threads), self.ino(&Node::Transcripts));
        for name in self.thread_names(thread) {
            stale.insert(Stale::Name(texts, format!("{name}.txt")));
            if !shown {
                stale.insert(Stale::Name(folders, name));
            }
        }
    }

    /// Forgets what was kept of messages that changed or went: call it before the caches are told
    /// of [`Tree::stale`].
    pub fn forget(&self, changes: &Changes) {
        let rewritten = changes.moved.iter().map(|(ix, _)| *ix).chain(changes.redrawn.clone());
        let gone = changes.added.iter().chain(&changes.removed).copied();
        let all: HashSet<MsgIx> = gone.chain(rewritten.clone()).collect();
        {
            let mut rendered = self.rendered.lock();
            for ix in &all {
                rendered.pop(ix);
            }
        }
        for ix in &all {
            self.parts.forget(*ix);
        }
        self.large.lock().take_if(|(ix, ..)| all.contains(ix));
        let mut open_anew = self.rewritten.lock();
        open_anew.extend(rewritten.flat_map(|ix| CACHED.map(|place| (place, ix))));
    }

    /// Whether the kernel may keep the pages of a message's file that it has from an earlier open:
    /// not at the first open after the text changed (see [`Changes::redrawn`], [`Changes::moved`]).
    pub fn keeps_pages(&self, place: Place, ix: MsgIx) -> bool {
        let mut rewritten = self.rewritten.lock();
        rewritten.is_empty() || !rewritten.remove(&(place, ix))
    }
}
