//! The tree: nodes, names, rendering. It uses no kernel types, so every operation can be tested without a
//! mount.
//!
//! - `table`: the trait of a view, and the table of the views. `readme`, `status`, `agents`, `wait` (`.wait`, `.next`
//!   and `.watch`), `maildir`, `me`, `outbox`, `raw`, `rejected`, `transcript`: a view each.
//! - [`node`]: the nodes of the message folders, and inode numbers. `listing`: the entries of a folder.
//! - [`attr`](Attr), [`file`](OpenFile): `stat`, open, read, and the marks that reading makes.
//! - `sidecars`: the files beside a message. `threads`: the folders of threads. `names`: file names.
//!   `unique_names`: names of messages with the same time. `short_names`: ids that stand for names. `recent_reads`:
//!   the messages that were read last. `parts`: the attachments of a message. `text_buffers`: the open texts of `me`.
//! - `write`: writes, renames and removals. `path`: the same tree by path, for the command line.
//! - `render_cache`, `generation_cache`: caches of computed values. `read_ahead`: rendering before a read asks for
//!   it. [`reader`]: the program that reads.
//! - `error`: every refusal, and its errno.

mod agents;
mod attr;
mod draft_writers;
mod error;
mod file;
mod generation_cache;
mod invalidation;
mod listing;
mod maildir;
mod me;
mod names;
pub mod node;
mod outbox;
mod parts;
mod path;
mod pending_sent;
mod raw;
mod read_ahead;
pub mod reader;
mod readme;
mod recent_reads;
mod rejected;
mod render_cache;
mod short_names;
mod sidecars;
mod status;
mod table;
#[cfg(test)]
mod tests;
mod text_buffers;
mod threads;
mod transcript;
mod unique_names;
mod unread_mail;
mod wait;
mod write;

pub use agents::AgentStatus;
pub use attr::{Attr, CachePolicy};
pub use draft_writers::DraftWriters;
pub use error::Error;
pub use file::{OpenFile, OpenRequest};
pub use listing::Listing;
pub use node::{Ino, MessageFolder, Node};
pub use path::FolderEntry;
pub use read_ahead::TOGETHER;
pub use reader::ReaderProfile;
pub use recent_reads::{RecentRead, load_recent_reads};
pub use short_names::UnknownId;
pub use status::{LastRefusal, MailboxStatus, StoreStatus, UnreadHeadline};
pub use text_buffers::TextHandle;
pub use unread_mail::UnreadMail;
pub use wait::{WaitTarget, WatchFeed};

use std::collections::HashSet;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use crate::model::locks::{Mutex, RwLock};
use lru::LruCache;

use crate::index::{Index, IndexEntry, IndexTables, MsgIx, ThreadIx};
use crate::link::{HealthBoard, HealthBoards};
use crate::model::{
    MarkRead, Message, PublicKey, Scope, ShownMessage, SignatureState, Timestamp, plain_thread_id,
};
use crate::outbox::Outbox;
use crate::store::{Record, Store, StoreError};
use generation_cache::GenerationCache;
use reader::InboxListers;

/// Threads whose order or transcript is cached.
const THREADS: NonZeroUsize = NonZeroUsize::MIN.saturating_add(31);
/// Capacity of a cache with one value.
const ONE: NonZeroUsize = NonZeroUsize::MIN;
/// Nodes that are found by the hash of their path. The kernel looks a forgotten one up again by its name.
const PATHS: usize = 65_536;
/// Longest time for which a reader of `sent/` waits for messages that were just written.
const SETTLE: Duration = Duration::from_secs(2);

/// Settings of a tree.
#[derive(Clone, Debug)]
pub struct TreeSettings {
    /// The agent whose messages the tree shows.
    pub me: String,
    /// My key when the tree was made; `None` if it cannot be used.
    pub key: Option<PublicKey>,
    /// The action that marks a message as read.
    pub mark_read: MarkRead,
    /// The agents whose threads are shown.
    pub scope: Scope,
    /// Longest time for which a read of `.wait` or `.next` blocks.
    pub wait_timeout: Duration,
    /// True if nothing can be written.
    pub read_only: bool,
    /// True if every user may read.
    pub allow_other: bool,
    /// Lines for `status.txt` about present problems outside the stores.
    pub warnings: Arc<RwLock<Vec<String>>>,
    /// The file with the messages that were read last.
    pub recent_reads_file: PathBuf,
    /// The health of each link.
    pub link_boards: HealthBoards,
}

/// The tree of one mount.
pub struct Tree {
    index: Arc<Index>,
    outbox: Option<Arc<Outbox>>,
    settings: TreeSettings,
    views: table::Views,
    /// Number of messages when the tree was made.
    messages_at_start: usize,
    recent_reads: recent_reads::RecentReads,
    long_thread_names: Mutex<threads::LongThreadNames>,
    same_time_groups: unique_names::SameTimeCache,
    render_cache: Mutex<render_cache::RenderCache>,
    /// Messages whose text changed and whose pages the kernel may still hold.
    rewritten: Mutex<HashSet<(MessageFolder, MsgIx)>>,
    parts_cache: parts::PartsCache,
    /// Messages of threads in listing order.
    thread_orders: GenerationCache<ThreadIx, Arc<Vec<MsgIx>>>,
    all_messages: GenerationCache<(), Arc<Vec<MsgIx>>>,
    listing_cache: Mutex<listing::ListingCache>,
    /// Number of threads up to the last one whose attributes a program has got.
    threads_exposed: AtomicUsize,
    /// The thread whose folder was last listed with the sizes of its messages.
    last_walked_thread: Mutex<Option<ThreadIx>>,
    /// Progress of the program that reads a folder's messages in order.
    read_ahead: Mutex<read_ahead::ReadAheadState>,
    /// Time of the newest entry.
    newest_cache: GenerationCache<(), Option<Timestamp>>,
    /// Nodes whose inode number is the hash of a path.
    path_nodes: Mutex<LruCache<Ino, Node>>,
    inbox_listers: Mutex<InboxListers>,
    short_ids: Mutex<short_names::ShortIdIndex>,
    last_unknown_id: Mutex<Option<short_names::UnknownId>>,
    /// Threads whose folder was looked up without the name of their store.
    plain_folders: Mutex<HashSet<ThreadIx>>,
    /// Messages acknowledged through this tree.
    acknowledged: Mutex<HashSet<MsgIx>>,
}

impl Tree {
    /// Makes a tree over an index. Without an outbox nothing can be written.
    pub fn new(index: Arc<Index>, outbox: Option<Arc<Outbox>>, settings: TreeSettings) -> Self {
        let messages_at_start = index.read().messages.messages_so_far();
        let tree = Self {
            index,
            outbox,
            messages_at_start,
            recent_reads: recent_reads::RecentReads::new(settings.recent_reads_file.clone()),
            long_thread_names: Mutex::default(),
            same_time_groups: GenerationCache::new(unique_names::GROUPS),
            settings,
            views: table::Views::default(),
            render_cache: Mutex::default(),
            rewritten: Mutex::default(),
            parts_cache: GenerationCache::with_max_age(parts::MESSAGES, parts::FRESH),
            thread_orders: GenerationCache::new(THREADS),
            all_messages: GenerationCache::new(ONE),
            listing_cache: Mutex::default(),
            threads_exposed: AtomicUsize::new(0),
            last_walked_thread: Mutex::default(),
            read_ahead: Mutex::default(),
            newest_cache: GenerationCache::new(ONE),
            // `unbounded`, because a cache with a limit allocates room for all its values at once.
            path_nodes: Mutex::new(LruCache::unbounded()),
            inbox_listers: Mutex::new(InboxListers::default()),
            short_ids: Mutex::default(),
            last_unknown_id: Mutex::default(),
            plain_folders: Mutex::default(),
            acknowledged: Mutex::default(),
        };
        // The Maildir has changed last when the tree was made.
        tree.views.maildir.change_time(&tree);
        tree
    }

    /// Returns the index below the tree.
    pub fn index(&self) -> &Arc<Index> {
        &self.index
    }

    /// Returns the settings of the tree.
    pub fn settings(&self) -> &TreeSettings {
        &self.settings
    }

    /// Returns the health boards of the links that exist now.
    fn link_boards(&self) -> Vec<Arc<HealthBoard>> {
        self.settings.link_boards.read().clone()
    }

    /// Returns a number that grows with every change a folder can show. Drafts change without it.
    pub fn generation(&self) -> u64 {
        self.index.read().generation()
    }

    /// Returns true if a listing stays valid until the [generation](Tree::generation) changes.
    pub fn is_cacheable(&self, node: &Node) -> bool {
        // Messages that wait come and go without a change of the index.
        let waits = || self.has_pending() || self.may_wait_for_link();
        if matches!(node, Node::Sent | Node::SentDay(_)) && waits() {
            return false;
        }
        // The other folders are listed anew each time, which is correct and only slower.
        if let Node::View(folder) = node {
            return folder.is_listing_cacheable();
        }
        matches!(
            node,
            Node::Root
                | Node::Archive
                | Node::ArchiveDay(_)
                | Node::Sent
                | Node::SentDay(_)
                | Node::Threads
                | Node::Thread(_)
        )
    }

    fn writable_outbox(&self) -> Result<&Arc<Outbox>, Error> {
        // A read-only tree may have an outbox, only to show its drafts.
        self.outbox.as_ref().filter(|_| !self.settings.read_only).ok_or(Error::ReadOnly)
    }

    /// Returns true if nothing can be written through this tree, not even by a later command. A command that
    /// only looks sees the drafts, because the next command may write.
    fn is_view_only(&self) -> bool {
        self.settings.read_only && self.outbox.is_none()
    }

    fn is_scope_all(&self) -> bool {
        self.settings.scope == Scope::All
    }

    /// Waits until a folder shows the messages that were just sent.
    pub fn wait_for_sent(&self, folder: &Node) {
        let shows_sent = match folder {
            Node::View(folder) => folder.shows_sent_messages(),
            Node::Sent | Node::SentDay(_) | Node::Threads | Node::Thread(_) => true,
            _ => false,
        };
        if !shows_sent {
            return;
        }
        self.settle_sent_messages();
        if let Some(outbox) = &self.outbox
            && matches!(folder, Node::Sent | Node::SentDay(_))
        {
            outbox.composer().wait_for_folders(SETTLE);
            self.settle_sent_messages();
        }
    }

    /// Waits until the messages that were just sent are in their stores.
    fn settle_sent_messages(&self) {
        if let Some(outbox) = &self.outbox {
            outbox.wait_until_appended(SETTLE);
        }
    }

    /// Returns true if the process that opens a file to read it matters.
    pub fn needs_opener(&self, node: &Node) -> bool {
        match node {
            Node::View(node) => node.needs_opener(),
            _ => matches!(node, Node::Message(MessageFolder::Inbox, _)),
        }
    }

    /// Returns true if every read of a file must reach msgfs, because its text changes without notice.
    pub fn bypasses_page_cache(&self, node: &Node) -> bool {
        match node {
            Node::View(node) => node.bypasses_page_cache(),
            _ => false,
        }
    }

    /// Returns true for a file whose name goes when it is closed, because its message is sent.
    pub fn goes_when_closed(&self, node: &Node) -> bool {
        match node {
            Node::View(node) => node.goes_when_closed(),
            _ => matches!(node, Node::ThreadDraft(..)),
        }
    }

    /// Returns the draft that a program means by a name in a folder, also if there is none.
    pub fn name_draft(&self, folder: &Node, name: &str) -> Option<Node> {
        match folder {
            Node::View(folder) => folder.name_draft(name),
            Node::Thread(thread) => Some(Node::ThreadDraft(*thread, name.to_owned())),
            _ => None,
        }
    }

    fn thread_messages(&self, core: &IndexTables, thread: ThreadIx) -> Arc<Vec<MsgIx>> {
        let make = || Arc::new(core.threads.thread_messages(&core.messages, thread));
        self.thread_orders.get(thread, core.generation(), make)
    }

    /// Returns all messages in listing order, for `scope = "all"`.
    fn all_messages(&self, core: &IndexTables) -> Arc<Vec<MsgIx>> {
        self.all_messages.get((), core.generation(), || {
            let mut all: Vec<MsgIx> =
                core.messages.live_messages().filter(|ix| !core.messages.is_copy(*ix)).collect();
            all.sort_by(|a, b| core.messages.compare_order(*a, *b));
            Arc::new(all)
        })
    }

    /// Returns the rendered text of a message.
    fn rendered_text(&self, ix: MsgIx) -> Result<Arc<[u8]>, Error> {
        let (entry, signature, generation) = {
            let core = self.index.read();
            let entry = *core.messages.entry(ix);
            if !entry.is_live() {
                return Err(Error::NotFound);
            }
            (entry, core.trust.signature(&core.messages, &entry), core.generation())
        };
        // The index forgets the length if another text may have replaced this one in the same place.
        let holds = |seen: &IndexEntry, bytes: &Arc<[u8]>| {
            entry.has_same_appearance(seen) && entry.size() == Some(bytes.len() as u64)
        };
        if let Some((seen, bytes)) = self.render_cache.lock().get(ix)
            && holds(seen, bytes)
        {
            return Ok(Arc::clone(bytes));
        }
        let record = self.read_record(ix, &entry)?;
        Ok(self.render_record((ix, &entry), signature, generation, record))
    }

    /// Renders a record that was just read, and caches the text.
    fn render_record(
        &self,
        (ix, entry): (MsgIx, &IndexEntry),
        signature: SignatureState,
        generation: u64,
        mut record: Record,
    ) -> Arc<[u8]> {
        let kind = self.index.store_of(entry).kind();
        if let SignatureState::Valid(_) = signature
            && let Some(body) = record.body_if_valid.take()
        {
            record.message.body = body;
        }
        let mut text = String::with_capacity(256 + record.message.body.len());
        ShownMessage::new(&record.message, kind.as_str()).render(&mut text, &signature.to_string());
        let bytes: Arc<[u8]> = text.into_bytes().into();
        if entry.size() != Some(bytes.len() as u64) {
            let ruled = transcript::find_rules(&bytes).count() as u32;
            self.index.remember_size(ix, entry, generation, (bytes.len() as u64, ruled));
        }
        self.render_cache.lock().insert(ix, (*entry, Arc::clone(&bytes)));
        bytes
    }

    /// Reads the record of a message from its store and sets its thread. Fails if the message is gone.
    fn read_record(&self, ix: MsgIx, entry: &IndexEntry) -> Result<Record, Error> {
        let store = self.index.store_of(entry);
        let record = match store.read_record(&entry.location()) {
            // The message may only have moved since the last scan: a rename claims what was read, a copy of a
            // log is merged into the log, and what I wrote is kept when a log loses it.
            Err(StoreError::Moved) => {
                if let Some(path) = store.source_path(entry.location().source) {
                    store.note_change(&store.dir().join(path));
                }
                self.rescan_store(entry.store(), entry.is_from_me());
                store.read_record(&self.live_entry(ix)?.location())?
            }
            read => read?,
        };
        self.check_record(ix, entry, record)
    }

    /// Returns the record with its thread, or `Moved` if it belongs to another message.
    fn check_record(
        &self,
        ix: MsgIx,
        entry: &IndexEntry,
        mut record: Record,
    ) -> Result<Record, Error> {
        let store = self.index.store_of(entry);
        let core = self.index.read();
        let known = core.messages.entry(ix);
        let from = record.message.from.as_deref().unwrap_or_default();
        if core.messages.id(known) != record.message.id || core.messages.sender(known) != from {
            return Err(StoreError::Moved.into());
        }
        if store.properties().has_reply_links() {
            // In a store whose threads are made of links, only the index knows the thread of a message.
            let (thread, _) = core.threads.thread_id(&core.messages, entry.thread());
            record.message.thread = Some(thread.to_owned());
        }
        strip_thread_label(store.as_ref(), &mut record.message);
        Ok(record)
    }
}

/// Removes the label of a thread's source from its id; people see ids without it.
fn strip_thread_label(store: &dyn Store, message: &mut Message) {
    if store.properties().has_thread_labels()
        && let Some(thread) = &mut message.thread
    {
        thread.truncate(plain_thread_id(thread).len());
    }
}

/// Joins a folder (`""` for the root) and a name.
fn join_path(folder: &str, name: &str) -> String {
    if folder.is_empty() { name.to_owned() } else { format!("{folder}/{name}") }
}
