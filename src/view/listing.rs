//! The entries of folders. A listing is taken at `opendir`, and again when a program goes back to the beginning. Its
//! entries keep their numbers, so that offsets stay valid while messages come and go. Names are made when a program
//! asks for them.

use std::collections::HashSet;
use std::sync::Arc;

use lru::LruCache;

use super::folder_scope::{FolderScope, MessageFolder};
use super::maildir::{MaildirFolder, maildir_name, maildir_node};
use super::messages::file_node;
use super::node::Node;
use super::sidecars::MessageFile;
use super::table::{NodeAttributes, on_view};
use super::transcript::transcript_node;
use super::unique_names::{MessageNames, NameForm};
use super::{Attr, Error, Tree};
use crate::index::{IndexEntry, IndexTables, MsgIx, ThreadIx};
use crate::model::locks::Mutex;

/// Number of messages at the beginning of a listing that [`Tree::has_all_sizes`] examines.
const LOOKED_AT: usize = 64;

/// One entry of a [`Listing`]. It is small, because a listing may have many.
#[derive(Clone, Copy, Debug)]
pub(super) enum ListingEntry {
    /// Number of an entry with a name of its own.
    Named(u32),
    /// A message, and the form of its name.
    Message(MsgIx, NameForm),
    /// A message in a folder of `.maildir/`, and the form of its name.
    Mail(MaildirFolder, MsgIx, NameForm),
    /// The attachment folder of a message, named like it.
    Parts(MsgIx, NameForm),
    /// The note about a message of mine, named like it.
    Warning(MsgIx, NameForm),
    Thread(ThreadIx),
    Transcript(ThreadIx),
    /// A message that a search found, as the file that it is in this folder.
    Found(MessageFolder, MsgIx, NameForm),
}

/// The entries of a folder at one moment.
#[derive(Debug)]
pub struct Listing {
    folder: MessageFolder,
    entries: Vec<ListingEntry>,
    named: Vec<(String, Node)>,
    /// Attributes of the entries with a name of their own, where the store listed them.
    stats: Vec<Option<NodeAttributes>>,
}

impl Listing {
    /// Returns the number of entries.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns true if there are no entries.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Makes a listing without entries.
    pub(super) fn empty(place: MessageFolder) -> Self {
        Self::from_entries(place, Vec::new())
    }

    /// Makes a listing of these entries, none of which has a name of its own.
    fn from_entries(place: MessageFolder, items: Vec<ListingEntry>) -> Self {
        Self { folder: place, entries: items, named: Vec::new(), stats: Vec::new() }
    }

    /// Adds entries with names of their own at the end.
    pub(super) fn add_entries(&mut self, items: impl IntoIterator<Item = (String, Node)>) {
        for item in items {
            self.entries.push(ListingEntry::Named(self.named.len() as u32));
            self.named.push(item);
        }
    }

    /// Makes a listing of entries with names of their own.
    pub(super) fn from_named(items: impl IntoIterator<Item = (String, Node)>) -> Self {
        let mut listing = Self::empty(MessageFolder::Inbox);
        listing.add_entries(items);
        listing
    }

    /// Makes a listing of threads, in the order of their ids.
    pub(super) fn from_threads(
        tables: &IndexTables,
        threads: impl Iterator<Item = ThreadIx>,
        entry: fn(ThreadIx) -> ListingEntry,
    ) -> Self {
        let named = threads.map(|t| (tables.threads.thread_id(&tables.messages, t).0, t));
        let mut named: Vec<(&str, ThreadIx)> = named.collect();
        named.sort_unstable();
        let entries = named.into_iter().map(|(_, t)| entry(t)).collect();
        Self::from_entries(MessageFolder::Thread, entries)
    }

    /// Makes a listing as [`Listing::from_named`] does. Each entry may have attributes from the store.
    pub(super) fn with_attributes(
        items: impl Iterator<Item = (String, Node, Option<NodeAttributes>)>,
    ) -> Self {
        let (mut named, mut told) = (Vec::new(), Vec::new());
        for (name, node, stat) in items {
            named.push((name, node));
            told.push(stat);
        }
        Self { stats: told, ..Self::from_named(named) }
    }

    /// Returns the messages among the entries.
    pub(super) fn messages(&self) -> impl Iterator<Item = MsgIx> {
        self.entries.iter().filter_map(|item| match item {
            ListingEntry::Message(ix, _)
            | ListingEntry::Mail(_, ix, _)
            | ListingEntry::Found(_, ix, _) => Some(*ix),
            _ => None,
        })
    }

    /// Makes a listing of messages that a search found, and other entries behind them.
    pub(super) fn from_found(
        found: impl IntoIterator<Item = (MessageFolder, MsgIx, NameForm)>,
        others: impl Iterator<Item = (String, Node)>,
    ) -> Self {
        let entries =
            found.into_iter().map(|(place, ix, form)| ListingEntry::Found(place, ix, form));
        let mut listing = Self::from_entries(MessageFolder::Archive, entries.collect());
        listing.add_entries(others);
        listing
    }

    /// Makes a listing of a folder of `.maildir/`.
    pub(super) fn from_maildir(items: impl Iterator<Item = ListingEntry>) -> Self {
        Self::from_entries(MessageFolder::Maildir, items.collect())
    }
}

impl Listing {
    /// Makes a listing of messages in listing order, with the files beside them.
    pub(super) fn from_messages(
        names: &MessageNames,
        tables: &IndexTables,
        place: MessageFolder,
        list: impl IntoIterator<Item = MsgIx>,
        waiting: &HashSet<MsgIx>,
    ) -> Self {
        let list: Vec<MsgIx> = list.into_iter().collect();
        let noted = |ix: &MsgIx| tables.messages.has_message_note(*ix) || waiting.contains(ix);
        let mut items = Vec::with_capacity(list.len());
        for (ix, form) in names.name_forms(tables, list) {
            if tables.messages.entry(ix).has_parts() {
                items.push(ListingEntry::Parts(ix, form));
            }
            items.push(ListingEntry::Message(ix, form));
            if place == MessageFolder::Sent && noted(&ix) {
                items.push(ListingEntry::Warning(ix, form));
            }
        }
        Self::from_entries(place, items)
    }

    /// Returns name and node of an entry.
    pub fn resolve_entry(&self, tree: &Tree, number: usize) -> Option<(String, Node)> {
        let mut name = String::new();
        let node = self.push_entry_name(tree, number, &mut name)?;
        Some((name, node))
    }

    /// Returns the node of an entry and appends its name.
    pub fn push_entry_name(&self, tree: &Tree, number: usize, name: &mut String) -> Option<Node> {
        let mut beside = |ix: MsgIx, form: NameForm, ending: &str| {
            let tables = tree.index.read();
            tree.names.push_stem(name, &tables, ix, form);
            name.push_str(ending);
            Some(())
        };
        let place = self.folder;
        Some(match *self.entries.get(number)? {
            ListingEntry::Named(at) => {
                let (named, node) = self.named.get(at as usize)?;
                name.push_str(named);
                node.clone()
            }
            ListingEntry::Message(ix, form) => {
                beside(ix, form, ".txt")?;
                file_node(place, ix, MessageFile::Text)
            }
            ListingEntry::Found(place, ix, form) => {
                beside(ix, form, ".txt")?;
                file_node(place, ix, MessageFile::Text)
            }
            ListingEntry::Mail(which, ix, form) => {
                name.push_str(&maildir_name(tree, which, ix, form)?);
                maildir_node(ix)
            }
            ListingEntry::Parts(ix, form) => {
                beside(ix, form, ".d")?;
                file_node(place, ix, MessageFile::Parts)
            }
            ListingEntry::Warning(ix, form) => {
                beside(ix, form, ".warning")?;
                file_node(place, ix, MessageFile::Warning)
            }
            ListingEntry::Thread(t) => {
                name.push_str(&tree.thread_names.thread_folder_name(t)?);
                FolderScope::Thread(t).into()
            }
            ListingEntry::Transcript(t) => {
                name.push_str(&tree.thread_names.thread_folder_name(t)?);
                name.push_str(".txt");
                transcript_node(t)
            }
        })
    }

    /// Returns the attributes of an entry. If the listing has them, they are those of the moment at which it was taken.
    ///
    /// # Errors
    /// Those of [`Tree::stat_node`].
    pub fn stat_entry(&self, tree: &Tree, number: usize, node: &Node) -> Result<Attr, Error> {
        let told = match self.entries.get(number) {
            Some(ListingEntry::Named(at)) => self.stats.get(*at as usize).and_then(Option::as_ref),
            _ => None,
        };
        told.map_or_else(|| tree.stat_node(node), |told| Ok(tree.make_attr(node, told)))
    }

    /// Returns the entries that still exist.
    pub(super) fn iter_entries(&self, tree: &Tree) -> impl Iterator<Item = (String, Node)> {
        (0..self.len()).filter_map(|number| self.resolve_entry(tree, number))
    }
}

/// The listings taken last, each with its generation of the index. A program that lists a folder again gets its listing
/// at once.
#[derive(Debug)]
pub(super) struct ListingCache(Mutex<CachedListings>);

#[derive(Debug)]
struct CachedListings {
    by_folder: LruCache<Node, (u64, Arc<Listing>)>,
    cost: usize,
}

impl Default for ListingCache {
    fn default() -> Self {
        Self(Mutex::new(CachedListings { by_folder: LruCache::unbounded(), cost: 0 }))
    }
}

impl ListingCache {
    /// Entries kept. An entry of a message has 8 bytes, and one with a name about 100.
    const KEPT: usize = 1 << 18;
    /// Cost of a listing in addition to its entries.
    const EACH: usize = 32;

    /// Returns the cached listing of a folder, if it was taken at this generation of the index.
    pub fn get(&self, folder: &Node, generation: u64) -> Option<Arc<Listing>> {
        let mut cached = self.0.lock();
        let (made, listing) = cached.by_folder.get(folder)?;
        (*made == generation).then(|| Arc::clone(listing))
    }

    fn insert(&self, folder: &Node, generation: u64, listing: &Arc<Listing>) {
        let cost = |listing: &Listing| listing.len() + Self::EACH;
        let cached = &mut *self.0.lock();
        cached.cost += cost(listing);
        let new = (generation, Arc::clone(listing));
        if let Some((_, before)) = cached.by_folder.put(folder.clone(), new) {
            cached.cost -= cost(&before);
        }
        while cached.cost > Self::KEPT {
            let Some((_, (_, oldest))) = cached.by_folder.pop_lru() else { return };
            cached.cost -= cost(&oldest);
        }
    }
}

impl Tree {
    /// Returns true if the sizes of the first messages of a listing are known. Then it is cheap to list the folder with
    /// sizes.
    pub fn has_all_sizes(&self, listing: &Listing) -> bool {
        let tables = self.index.read();
        let unknown = |e: &IndexEntry| e.is_live() && e.size().is_none();
        !listing.messages().take(LOOKED_AT).any(|ix| unknown(tables.messages.entry(ix)))
    }

    /// Returns the listing of a folder. A cached one is returned if nothing has changed since.
    ///
    /// # Errors
    /// Those of [`Tree::list_folder`].
    pub fn cached_listing(&self, node: &Node) -> Result<Arc<Listing>, Error> {
        self.index.require_sound_tables();
        if !self.is_cacheable(node) {
            return self.list_folder(node).map(Arc::new);
        }
        // The generation is read first, so a change during the listing makes the next one fresh.
        let generation = self.generation();
        if let Some(listing) = self.listing_cache.get(node, generation) {
            return Ok(listing);
        }
        let listing = Arc::new(self.list_folder(node)?);
        // A message may have begun to wait meanwhile.
        if self.is_cacheable(node) {
            self.listing_cache.insert(node, generation, &listing);
        }
        Ok(listing)
    }

    /// Takes the listing of a folder.
    ///
    /// # Errors
    /// [`Error::NotDir`] for anything else, [`Error::NotFound`] for a folder that is gone.
    pub fn list_folder(&self, node: &Node) -> Result<Listing, Error> {
        self.wait_for_sent(node);
        on_view!(self, node, list())
    }

    /// Returns unread messages and their names in `inbox/`, oldest first, at most `limit`.
    pub(super) fn unread_files(&self, limit: usize) -> Vec<(MsgIx, String)> {
        self.inbox_files(|tables| tables.messages.lists().unread().take(limit).collect())
    }

    /// Returns the chosen messages to me, in listing order, and their names in `inbox/`.
    pub(super) fn inbox_files(
        &self,
        which: impl FnOnce(&IndexTables) -> Vec<MsgIx>,
    ) -> Vec<(MsgIx, String)> {
        let listing = {
            let tables = self.index.read();
            Listing::from_messages(
                &self.names,
                &tables,
                MessageFolder::Inbox,
                which(&tables),
                &HashSet::new(),
            )
        };
        let file = |number| {
            let ListingEntry::Message(ix, _) = listing.entries.get(number)? else { return None };
            Some((*ix, listing.resolve_entry(self, number)?.0))
        };
        (0..listing.len()).filter_map(file).collect()
    }
}
