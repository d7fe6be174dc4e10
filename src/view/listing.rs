//! The entries of folders. A listing is taken once, at `opendir`, and its entries keep their numbers, so that
//! offsets stay valid while messages come and go. Names are made when a program asks for them.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use lru::LruCache;

use super::maildir::{MaildirFolder, maildir_name};
use super::node::{MessageFolder, Node, files};
use super::table::{NodeAttributes, ROOT_ENTRIES, RootEntry, on_view};
use super::transcript::transcript_node;
use super::unique_names::NameForm;
use super::{Attr, Error, Tree};
use crate::index::{IndexEntry, IndexTables, MsgIx, ThreadIx};
use crate::model::Day;
use crate::model::locks::Mutex;

/// One entry of a [`Listing`]. It is small, because a listing may have many.
#[derive(Clone, Copy, Debug)]
pub(super) enum ListingEntry {
    /// Number of an entry with a name of its own.
    Named(u32),
    /// A message, and the form of its name.
    Message(MsgIx, NameForm),
    /// The same in a folder of `.maildir/`.
    Mail(MaildirFolder, MsgIx, NameForm),
    /// The attachment folder of a message, named like it.
    Parts(MsgIx, NameForm),
    /// The note about a message of mine, named like it.
    Warning(MsgIx, NameForm),
    Thread(ThreadIx),
    Transcript(ThreadIx),
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

    /// Returns true if there are none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub(super) fn empty(place: MessageFolder) -> Self {
        Self::from_entries(place, Vec::new())
    }

    fn from_entries(place: MessageFolder, items: Vec<ListingEntry>) -> Self {
        Self { folder: place, entries: items, named: Vec::new(), stats: Vec::new() }
    }

    pub(super) fn add_entries(&mut self, items: impl IntoIterator<Item = (String, Node)>) {
        for item in items {
            self.entries.push(ListingEntry::Named(self.named.len() as u32));
            self.named.push(item);
        }
    }

    pub(super) fn from_named(items: impl IntoIterator<Item = (String, Node)>) -> Self {
        let mut listing = Self::empty(MessageFolder::Inbox);
        listing.add_entries(items);
        listing
    }

    /// Makes a listing of threads, in the order of their ids.
    pub(super) fn from_threads(
        core: &IndexTables,
        threads: impl Iterator<Item = ThreadIx>,
        entry: fn(ThreadIx) -> ListingEntry,
    ) -> Self {
        let named = threads.map(|t| (core.threads.thread_id(&core.messages, t).0, t));
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

    /// Returns the messages among `count` entries from `from` on.
    pub(super) fn messages(&self, from: usize, count: usize) -> impl Iterator<Item = MsgIx> {
        self.entries.iter().skip(from).take(count).filter_map(|item| match item {
            ListingEntry::Message(ix, _) | ListingEntry::Mail(_, ix, _) => Some(*ix),
            _ => None,
        })
    }

    /// Returns the position of a message among `count` entries from `from` on.
    pub(super) fn find_position(&self, message: MsgIx, from: usize, count: usize) -> Option<usize> {
        let is_it =
            |item: &ListingEntry| matches!(item, ListingEntry::Message(ix, _) if *ix == message);
        Some(from + self.entries.iter().skip(from).take(count).position(is_it)?)
    }

    /// Returns the thread that is listed after `thread`, if `thread` is listed right after `before`.
    pub(super) fn find_thread_after(
        &self,
        core: &IndexTables,
        before: ThreadIx,
        thread: ThreadIx,
    ) -> Option<ThreadIx> {
        let place = |t| (core.threads.thread_id(&core.messages, t).0, t);
        let wanted = place(before);
        let of =
            |item: &ListingEntry| if let ListingEntry::Thread(t) = item { Some(*t) } else { None };
        let at =
            self.entries.binary_search_by(|item| of(item).map(place).cmp(&Some(wanted))).ok()?;
        let (second, third) = (self.entries.get(at + 1)?, self.entries.get(at + 2)?);
        of(third).filter(|_| of(second) == Some(thread))
    }

    pub(super) fn from_maildir(items: impl Iterator<Item = ListingEntry>) -> Self {
        Self::from_entries(MessageFolder::Maildir, items.collect())
    }
}

/// The listings taken last, each with its generation of the index. A program that lists a folder again gets it
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
    /// Entries kept, of 8 bytes each.
    const KEPT: usize = 1 << 18;
    /// Cost of a listing in addition to its entries.
    const EACH: usize = 32;

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
    /// Returns a listing of messages in listing order, with the files beside them.
    fn list_messages(
        &self,
        core: &IndexTables,
        place: MessageFolder,
        list: impl IntoIterator<Item = MsgIx>,
        waiting: &HashSet<MsgIx>,
    ) -> Listing {
        let list: Vec<MsgIx> = list.into_iter().collect();
        let noted = |ix: &MsgIx| core.messages.has_note(*ix) || waiting.contains(ix);
        let mut items = Vec::with_capacity(list.len());
        for (ix, form) in self.names.name_forms(core, list) {
            if core.messages.entry(ix).has_parts() {
                items.push(ListingEntry::Parts(ix, form));
            }
            items.push(ListingEntry::Message(ix, form));
            if place == MessageFolder::Sent && noted(&ix) {
                items.push(ListingEntry::Warning(ix, form));
            }
        }
        Listing::from_entries(place, items)
    }

    /// Returns the listing of a folder. A cached one is returned if nothing has changed since.
    ///
    /// # Errors
    /// Those of [`Tree::list_folder`].
    pub fn cached_listing(&self, node: &Node) -> Result<Arc<Listing>, Error> {
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
        match node {
            Node::View(folder) => on_view!(self, folder, list()),
            Node::Root => {
                let old = ROOT.iter().map(|(name, node)| ((*name).to_owned(), node.clone()));
                let shown = |entry: &&RootEntry| entry.is_listed && entry.is_shown(self);
                let views = ROOT_ENTRIES.iter().filter(shown);
                let views =
                    views.map(|entry| (entry.name.to_owned(), Node::View(entry.node.clone())));
                let mut entries: Vec<(String, Node)> = views.chain(old).collect();
                entries.sort_unstable_by(|a, b| a.0.cmp(&b.0));
                Ok(Listing::from_named(entries))
            }
            Node::Parts(place, ix) => self.parts.list(*place, *ix),
            Node::Archive | Node::Sent => Ok(self.list_days(node)),
            Node::Threads => {
                let core = self.index.read();
                let threads = core.threads.thread_folders(self.is_scope_all());
                Ok(Listing::from_threads(&core, threads, ListingEntry::Thread))
            }
            Node::Inbox => {
                let core = self.index.read();
                Ok(self.list_messages(
                    &core,
                    MessageFolder::Inbox,
                    core.messages.inbox(),
                    &HashSet::new(),
                ))
            }
            Node::ArchiveDay(day) => self.list_day(MessageFolder::Archive, *day),
            Node::SentDay(day) => {
                // Pending messages are read first, because one that its store gets meanwhile is in the index
                // afterwards.
                let held = self.pending.list_of_day(*day);
                let listed = self.list_day(MessageFolder::Sent, *day).ok();
                self.pending.add_to_listing(held, listed).ok_or(Error::NotFound)
            }
            Node::Thread(thread) => {
                let core = self.index.read();
                let list = self.lists.thread_messages(&core, *thread);
                if list.is_empty() && core.threads.empty_thread_time(*thread).is_none() {
                    return Err(Error::NotFound);
                }
                Ok(self.list_messages(
                    &core,
                    MessageFolder::Thread,
                    list.iter().copied(),
                    &HashSet::new(),
                ))
            }
            files!() => Err(Error::NotDir),
        }
    }

    /// Runs `f` on the list behind the day folders of `archive/` or `sent/`, in listing order.
    pub(super) fn with_day_list<T>(
        &self,
        place: MessageFolder,
        f: impl FnOnce(&IndexTables, &[MsgIx]) -> T,
    ) -> T {
        if place == MessageFolder::Archive && self.is_scope_all() {
            let core = self.index.read();
            let list = self.lists.all_messages(&core);
            return f(&core, &list);
        }
        let core = self.index.read();
        let list = if place == MessageFolder::Sent {
            core.messages.from_me_list()
        } else {
            core.messages.to_me_list()
        };
        f(&core, list)
    }

    fn list_days(&self, node: &Node) -> Listing {
        // Pending messages are read first, because one that its store gets meanwhile is in the index
        // afterwards.
        let days = if *node == Node::Sent { self.pending.days() } else { BTreeSet::new() };
        let mut listing = self.list_index_days(node);
        if !days.is_empty() {
            let name = |day: Day| (day.to_string(), Node::SentDay(day));
            let known: Vec<String> = self.iter_entries(&listing).map(|(name, _)| name).collect();
            listing
                .add_entries(days.into_iter().map(name).filter(|(name, _)| !known.contains(name)));
        }
        listing
    }

    fn list_index_days(&self, node: &Node) -> Listing {
        let (place, folder): (MessageFolder, fn(Day) -> Node) = match node {
            Node::Sent => (MessageFolder::Sent, Node::SentDay),
            _ => (MessageFolder::Archive, Node::ArchiveDay),
        };
        self.with_day_list(place, |core, list| {
            let mut days: Vec<(String, Node)> = Vec::new();
            let mut at = 0;
            // The loop takes one step a day, not a message, because the list is in order of time.
            while let Some(entry) = list.get(at).map(|ix| core.messages.entry(*ix)) {
                let day = core.messages.name_time(entry).day();
                let of_day = core.messages.slice_of_day(list, day);
                if of_day.iter().any(|ix| core.messages.entry(*ix).is_live()) {
                    days.push((day.to_string(), folder(day)));
                }
                at += of_day.len().max(1);
            }
            Listing::from_named(days)
        })
    }

    fn list_day(&self, place: MessageFolder, day: Day) -> Result<Listing, Error> {
        let waiting =
            if place == MessageFolder::Sent { self.pending.list_undelivered() } else { Vec::new() };
        let mut waiting: HashSet<MsgIx> = waiting.into_iter().map(|(ix, _)| ix).collect();
        if place == MessageFolder::Sent && self.pending.may_wait_for_link() {
            let of_day = |core: &IndexTables, list: &[MsgIx]| {
                let entries = core.messages.slice_of_day(list, day).iter();
                entries.map(|ix| (*ix, *core.messages.entry(*ix))).collect::<Vec<_>>()
            };
            let entries = self.with_day_list(place, of_day);
            let waits =
                |(_, entry): &(MsgIx, IndexEntry)| self.pending.link_wait_warning(entry).is_some();
            waiting.extend(entries.into_iter().filter(waits).map(|(ix, _)| ix));
        }
        self.with_day_list(place, |core, list| {
            let live = |ix: &MsgIx| core.messages.entry(*ix).is_live();
            let of_day: Vec<MsgIx> =
                core.messages.slice_of_day(list, day).iter().copied().filter(live).collect();
            if of_day.is_empty() {
                return Err(Error::NotFound);
            }
            Ok(self.list_messages(core, place, of_day, &waiting))
        })
    }

    /// Returns name and node of an entry.
    pub fn resolve_entry(&self, listing: &Listing, number: usize) -> Option<(String, Node)> {
        let mut name = String::new();
        let node = self.push_entry_name(listing, number, &mut name)?;
        Some((name, node))
    }

    /// Returns the node of an entry and appends its name.
    pub fn push_entry_name(
        &self,
        listing: &Listing,
        number: usize,
        name: &mut String,
    ) -> Option<Node> {
        let mut beside = |ix: MsgIx, form: NameForm, ending: &str| {
            let core = self.index.read();
            self.names.push_stem(name, &core, ix, form);
            name.push_str(ending);
            Some(())
        };
        let place = listing.folder;
        Some(match *listing.entries.get(number)? {
            ListingEntry::Named(at) => {
                let (named, node) = listing.named.get(at as usize)?;
                name.push_str(named);
                node.clone()
            }
            ListingEntry::Message(ix, form) => {
                beside(ix, form, ".txt")?;
                Node::Message(place, ix)
            }
            ListingEntry::Mail(which, ix, form) => {
                name.push_str(&maildir_name(self, which, ix, form)?);
                Node::Message(place, ix)
            }
            ListingEntry::Parts(ix, form) => {
                beside(ix, form, ".d")?;
                Node::Parts(place, ix)
            }
            ListingEntry::Warning(ix, form) => {
                beside(ix, form, ".warning")?;
                Node::Warning(ix)
            }
            ListingEntry::Thread(t) => {
                name.push_str(&self.thread_names.thread_folder_name(t)?);
                Node::Thread(t)
            }
            ListingEntry::Transcript(t) => {
                name.push_str(&self.thread_names.thread_folder_name(t)?);
                name.push_str(".txt");
                transcript_node(t)
            }
        })
    }

    /// Returns the attributes of an entry. If the listing has them, they are those of that moment.
    ///
    /// # Errors
    /// Those of [`Tree::stat_node`].
    pub fn stat_entry(&self, listing: &Listing, number: usize, node: &Node) -> Result<Attr, Error> {
        let told = match listing.entries.get(number) {
            Some(ListingEntry::Named(at)) => {
                listing.stats.get(*at as usize).and_then(Option::as_ref)
            }
            _ => None,
        };
        told.map_or_else(|| self.stat_node(node), |told| Ok(self.make_attr(node, told)))
    }

    /// Returns the entries that still exist.
    pub(super) fn iter_entries(&self, listing: &Listing) -> impl Iterator<Item = (String, Node)> {
        (0..listing.len()).filter_map(|number| self.resolve_entry(listing, number))
    }

    /// Returns unread messages and their names in `inbox/`, oldest first, at most `limit`.
    pub(super) fn unread_files(&self, limit: usize) -> Vec<(MsgIx, String)> {
        self.inbox_files(|core| core.messages.inbox().take(limit).collect())
    }

    /// Returns the chosen messages to me, in listing order, and their names in `inbox/`.
    pub(super) fn inbox_files(
        &self,
        which: impl FnOnce(&IndexTables) -> Vec<MsgIx>,
    ) -> Vec<(MsgIx, String)> {
        let listing = {
            let core = self.index.read();
            self.list_messages(&core, MessageFolder::Inbox, which(&core), &HashSet::new())
        };
        let file = |(name, node)| match node {
            Node::Message(_, ix) => Some((ix, name)),
            _ => None,
        };
        self.iter_entries(&listing).filter_map(file).collect()
    }
}

/// The listed entries of the root outside the table of views.
const ROOT: &[(&str, Node)] = &[
    ("archive", Node::Archive),
    ("inbox", Node::Inbox),
    ("sent", Node::Sent),
    ("threads", Node::Threads),
];
