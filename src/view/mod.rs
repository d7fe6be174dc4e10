//! The tree: nodes, names, rendering. No kernel types; every operation can be tested without a mount.
//!
//! - [`node`]: what there is, and the inode number of each. `listing`: what a folder holds.
//! - [`attr`](Attr), [`file`](OpenFile): `stat`, open, read, and the marks that reading makes.
//! - `beside`: what lies beside a message. `threads`: the folders of threads. `twins`: messages with
//!   one time, whose names may be equal. `short`: ids that stand for names. `firsts`: who keeps a name that several have. `lately`: what was read last. `parts`: the files that come with a message. `raw`: the stores' own files. `me`, `texts`: texts that stores keep.
//! - `maildir`: `.maildir/`, for mail programs.
//! - `write`: what may be written where. `path`: the same tree by path, for the command line.
//! - `render`, `status`, `agents`, `readme`, `transcript`: the bytes of files. `rendered`, `dated`: what is kept of
//!   what was made. `ahead`: what is made before it is asked for. [`reader`]: who is looking.
//! - `error`: every refusal, and its errno.

mod agents;
mod ahead;
mod attr;
mod beside;
mod dated;
mod error;
mod file;
mod firsts;
mod held;
mod lately;
mod listing;
mod mail;
mod maildir;
mod me;
mod names;
pub mod node;
mod parts;
mod path;
mod raw;
pub mod reader;
mod readme;
mod render;
mod rendered;
mod short;
mod stale;
mod status;
#[cfg(test)]
mod tests;
mod texts;
mod threads;
mod transcript;
mod twins;
mod wait;
mod write;
mod writers;

pub use agents::AgentStatus;
pub use ahead::TOGETHER;
pub use attr::{Attr, CachePolicy};
pub use error::Error;
pub use file::{OpenFile, OpenRequest};
pub use lately::{RecentRead, load_recent_reads};
pub use listing::Listing;
pub use mail::UnreadMail;
pub use node::{Ino, MessageFolder, Node};
pub use path::FolderEntry;
pub use reader::ReaderProfile;
pub use short::UnknownId;
pub use status::{LastRefusal, MailboxStatus, StoreStatus, UnreadHeadline};
pub use texts::TextHandle;
pub use wait::{WaitTarget, WatchFeed};
pub use writers::DraftWriters;

use std::collections::{BTreeMap, HashSet};
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use crate::model::locks::{LockLevel, Mutex, RwLock};
use lru::LruCache;

use crate::index::{Index, IndexEntry, IndexTables, MsgIx, ThreadIx};
use crate::link::{HealthBoard, HealthBoards};
use crate::model::{
    MarkRead, Message, PublicKey, Scope, SignatureState, Timestamp, plain_thread_id,
};
use crate::outbox::Outbox;
use crate::store::{Record, Store, StoreError};
use dated::GenerationCache;
use reader::InboxListers;

/// Threads whose order or transcript is kept.
const THREADS: NonZeroUsize = NonZeroUsize::MIN.saturating_add(31);
/// What there is once.
const ONE: NonZeroUsize = NonZeroUsize::MIN;
/// Nodes that are known by the hash of their path. The kernel looks a forgotten one up again by its name.
const PATHS: usize = 65_536;
/// How long a reader of `sent/` waits for what was just written.
const SETTLE: Duration = Duration::from_secs(2);

/// What a tree needs to know besides the messages.
#[derive(Clone, Debug)]
pub struct TreeSettings {
    /// Who the tree is for.
    pub me: String,
    /// My key when the tree was made; `None` if it cannot be used.
    pub key: Option<PublicKey>,
    /// What marks a message as read.
    pub mark_read: MarkRead,
    /// Whose conversations are shown.
    pub scope: Scope,
    /// How long a read of `.wait` or `.next` blocks.
    pub wait_timeout: Duration,
    /// Nothing can be written.
    pub read_only: bool,
    /// Everybody may read.
    pub allow_other: bool,
    /// Lines for `status.txt` about things that are wrong besides the stores, as they are now.
    pub warnings: Arc<RwLock<Vec<String>>>,
    /// Where it is noted who keeps a name that several have.
    pub name_owners_file: PathBuf,
    /// Where it is noted what was read last.
    pub recent_reads_file: PathBuf,
    /// Where the links stand.
    pub link_boards: HealthBoards,
}

/// How many there were when the tree was made.
#[derive(Clone, Copy, Debug)]
struct InitialCounts {
    messages: usize,
    threads: usize,
}

/// The tree of one mount.
pub struct Tree {
    index: Arc<Index>,
    outbox: Option<Arc<Outbox>>,
    settings: TreeSettings,
    initial_counts: InitialCounts,
    name_owners: firsts::ShortNameOwners,
    recent_reads: lately::RecentReads,
    long_thread_names: Mutex<threads::LongThreadNames>,
    same_time_groups: twins::SameTimeCache,
    render_cache: Mutex<rendered::RenderCache>,
    /// Messages whose text changed and whose pages the kernel may still hold.
    rewritten: Mutex<HashSet<(MessageFolder, MsgIx)>>,
    parts_cache: parts::PartsCache,
    raw_times: raw::RawTimeCache,
    /// Messages of threads in listing order.
    thread_orders: GenerationCache<ThreadIx, Arc<Vec<MsgIx>>>,
    transcripts: GenerationCache<ThreadIx, Arc<transcript::TranscriptPlan>>,
    all_messages: GenerationCache<(), Arc<Vec<MsgIx>>>,
    listing_cache: Mutex<listing::ListingCache>,
    /// How many threads there are up to the last one whose attributes somebody was told.
    threads_exposed: AtomicU32,
    /// The thread whose folder was listed last with the sizes of its messages.
    last_walked_thread: Mutex<Option<ThreadIx>>,
    /// How far the folder was read whose messages somebody reads one after the other.
    read_ahead: Mutex<ahead::ReadAheadState>,
    agents_cache: GenerationCache<(), Arc<agents::AgentDirectory>>,
    /// Time of the newest entry.
    newest_cache: GenerationCache<(), Option<Timestamp>>,
    /// The files of `rejected/`.
    rejects_cache: GenerationCache<(), Arc<BTreeMap<String, u64>>>,
    /// Nodes whose inode number is the hash of a path.
    path_nodes: Mutex<LruCache<Ino, Node>>,
    inbox_listers: Mutex<InboxListers>,
    /// What `.next` has handed out.
    next_claims: Mutex<wait::NextClaims>,
    maildir_change: Mutex<maildir::MaildirChangeTime>,
    short_ids: Mutex<short::ShortIdIndex>,
    last_unknown_id: Mutex<Option<short::UnknownId>>,
    /// Threads whose folder was called without the name of their store.
    plain_folders: Mutex<HashSet<ThreadIx>>,
    /// Messages acknowledged through this tree.
    acknowledged: Mutex<HashSet<MsgIx>>,
    open_texts: texts::OpenTexts,
}

impl Tree {
    /// A tree over an index; without an outbox nothing can be written.
    pub fn new(index: Arc<Index>, outbox: Option<Arc<Outbox>>, settings: TreeSettings) -> Self {
        let (at_start, generation) = {
            let core = index.read();
            let (messages, threads) = (core.messages_so_far(), core.threads_so_far());
            (InitialCounts { messages, threads }, core.generation())
        };
        Self {
            index,
            outbox,
            initial_counts: at_start,
            name_owners: firsts::ShortNameOwners::open(
                settings.name_owners_file.clone(),
                settings.read_only,
            ),
            recent_reads: lately::RecentReads::new(settings.recent_reads_file.clone()),
            long_thread_names: Mutex::default(),
            same_time_groups: GenerationCache::new(twins::GROUPS),
            settings,
            render_cache: Mutex::default(),
            rewritten: Mutex::default(),
            parts_cache: GenerationCache::with_max_age(parts::MESSAGES, parts::FRESH),
            raw_times: raw::RawTimeCache::default(),
            thread_orders: GenerationCache::new(THREADS),
            transcripts: GenerationCache::new(THREADS),
            all_messages: GenerationCache::new(ONE),
            listing_cache: Mutex::default(),
            threads_exposed: AtomicU32::new(0),
            last_walked_thread: Mutex::default(),
            read_ahead: Mutex::default(),
            agents_cache: GenerationCache::with_max_age(ONE, agents::FRESH),
            newest_cache: GenerationCache::new(ONE),
            rejects_cache: GenerationCache::new(ONE),
            // Not with room for all of them at once.
            path_nodes: Mutex::new(LruCache::unbounded()),
            inbox_listers: Mutex::new(InboxListers::default()),
            next_claims: Mutex::with_level(LockLevel::Shown, wait::NextClaims::default()),
            maildir_change: Mutex::new(maildir::MaildirChangeTime::new(generation)),
            short_ids: Mutex::default(),
            last_unknown_id: Mutex::default(),
            plain_folders: Mutex::default(),
            acknowledged: Mutex::default(),
            open_texts: texts::OpenTexts::default(),
        }
    }

    /// The index below.
    pub fn index(&self) -> &Arc<Index> {
        &self.index
    }

    /// How it was set up.
    pub fn settings(&self) -> &TreeSettings {
        &self.settings
    }

    /// Where the links stand that there are now.
    fn link_boards(&self) -> Vec<Arc<HealthBoard>> {
        self.settings.link_boards.read().clone()
    }

    /// Grows with every change a folder can show; drafts change without it.
    pub fn generation(&self) -> u64 {
        self.index.read().generation()
    }

    /// Whether a listing holds until the [generation](Tree::generation) changes.
    pub fn is_cacheable(&self, node: &Node) -> bool {
        // What waits comes and goes without the index.
        let waits = || self.has_pending() || self.may_wait_for_link();
        if matches!(node, Node::Sent | Node::SentDay(_)) && waits() {
            return false;
        }
        // What is not named here is asked for again each time, which is only slower.
        matches!(
            node,
            Node::Root
                | Node::Maildir
                | Node::MailBox(_)
                | Node::Archive
                | Node::ArchiveDay(_)
                | Node::Sent
                | Node::SentDay(_)
                | Node::Threads
                | Node::Thread(_)
                | Node::Transcripts
                | Node::Rejected
        )
    }

    fn writable_outbox(&self) -> Result<&Arc<Outbox>, Error> {
        // One that can only be looked at is there in a tree that is read only.
        self.outbox.as_ref().filter(|_| !self.settings.read_only).ok_or(Error::ReadOnly)
    }

    /// Whether nothing can be written by whoever has this tree. A command that only looks sees the
    /// drafts: the next one may write.
    fn is_view_only(&self) -> bool {
        self.settings.read_only && self.outbox.is_none()
    }

    fn is_scope_all(&self) -> bool {
        self.settings.scope == Scope::All
    }

    /// Waits until what was just sent can be seen in a folder.
    pub fn wait_for_sent(&self, folder: &Node) {
        if let Node::Sent
        | Node::SentDay(_)
        | Node::Outbox
        | Node::Threads
        | Node::Thread(_)
        | Node::Transcripts
        | Node::MailBox(_) = folder
            && let Some(outbox) = &self.outbox
        {
            outbox.wait_until_appended(SETTLE);
            if matches!(folder, Node::Sent | Node::SentDay(_)) {
                outbox.wait_for_folders(SETTLE);
                outbox.wait_until_appended(SETTLE);
            }
        }
    }

    fn thread_messages(&self, core: &IndexTables, thread: ThreadIx) -> Arc<Vec<MsgIx>> {
        let make = || Arc::new(core.thread_messages(thread));
        self.thread_orders.get(thread, core.generation(), make)
    }

    /// All messages in listing order, for `scope = "all"`.
    fn all_messages(&self, core: &IndexTables) -> Arc<Vec<MsgIx>> {
        self.all_messages.get((), core.generation(), || {
            let mut all: Vec<MsgIx> =
                core.live_messages().filter(|ix| !core.is_copy(*ix)).collect();
            all.sort_by(|a, b| core.compare_order(*a, *b));
            Arc::new(all)
        })
    }

    /// The message as a file.
    fn rendered_text(&self, ix: MsgIx) -> Result<Arc<[u8]>, Error> {
        let (entry, signature, generation) = {
            let core = self.index.read();
            let entry = *core.entry(ix).filter(|e| e.is_live()).ok_or(Error::NotFound)?;
            (entry, core.signature(&entry), core.generation())
        };
        // The index forgets the length of what may have become another text in the same place.
        let holds = |seen: &IndexEntry, bytes: &Arc<[u8]>| {
            entry.has_same_appearance(seen) && entry.size() == Some(bytes.len() as u64)
        };
        if let Some((seen, bytes)) = self.render_cache.lock().get(ix)
            && holds(seen, bytes)
        {
            return Ok(Arc::clone(bytes));
        }
        let record = self.read_record(ix, &entry)?;
        self.render_record((ix, &entry), signature, generation, record)
    }

    /// A message that was just read as a file, for whoever asks next.
    fn render_record(
        &self,
        (ix, entry): (MsgIx, &IndexEntry),
        signature: SignatureState,
        generation: u64,
        mut record: Record,
    ) -> Result<Arc<[u8]>, Error> {
        let kind = self.index.store_of(entry).ok_or(Error::NotFound)?.kind();
        if let SignatureState::Valid(_) = signature
            && let Some(body) = record.body_if_valid.take()
        {
            record.message.body = body;
        }
        let bytes: Arc<[u8]> =
            render::render_message(&record.message, kind, signature).into_bytes().into();
        if entry.size() != Some(bytes.len() as u64) {
            let ruled = transcript::find_rules(&bytes).count() as u32;
            self.index.remember_size(ix, entry, generation, (bytes.len() as u64, ruled));
        }
        self.render_cache.lock().insert(ix, (*entry, Arc::clone(&bytes)));
        Ok(bytes)
    }

    /// The message as it stands in its store, if it is still there, in the thread it belongs to.
    fn read_record(&self, ix: MsgIx, entry: &IndexEntry) -> Result<Record, Error> {
        let store = self.index.store_of(entry).ok_or(Error::NotFound)?;
        let record = match store.read_record(&entry.location()) {
            // It may only lie elsewhere since the last scan: what was read is claimed by a rename, a copy of a log
            // is merged into the log, and what I wrote is kept when a log loses it.
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

    /// What was read in the place of a message, if it is that message.
    fn check_record(
        &self,
        ix: MsgIx,
        entry: &IndexEntry,
        mut record: Record,
    ) -> Result<Record, Error> {
        let store = self.index.store_of(entry).ok_or(Error::NotFound)?;
        let core = self.index.read();
        let same = core.entry(ix).is_some_and(|e| {
            let from = record.message.from.as_deref().unwrap_or_default();
            core.id(e) == record.message.id && core.sender(e) == from
        });
        if !same {
            return Err(StoreError::Moved.into());
        }
        if store.properties().has_reply_links() {
            // Where threads are made of links, the message alone does not know its own.
            let thread = core.thread_id(core.thread_of(entry));
            record.message.thread = thread.map(|(id, _)| id.to_owned());
        }
        strip_thread_label(store.as_ref(), &mut record.message);
        Ok(record)
    }
}

/// People see thread ids without the label of the place a thread comes from.
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
