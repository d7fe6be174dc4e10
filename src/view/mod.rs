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

pub use agents::Agent;
pub use ahead::TOGETHER;
pub use attr::{Attr, Caching};
pub use error::Error;
pub use file::{Access, OpenFile};
pub use lately::{Reading, readings};
pub use listing::Listing;
pub use mail::Mail;
pub use node::{Ino, Node, Place};
pub use path::Listed;
pub use reader::Reader;
pub use short::UnknownId;
pub use status::{LastRefusal, Status, StoreStatus, Unread};
pub use texts::TextFile;
pub use wait::{Arrivals, WaitsFor};
pub use writers::Writers;

use std::collections::{BTreeMap, HashSet};
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use crate::model::locks::{Level, Mutex, RwLock};
use lru::LruCache;

use crate::index::{Core, Entry, Index, MsgIx, ThreadIx};
use crate::link::{Board, Boards};
use crate::model::{MarkRead, Message, PublicKey, Scope, SignatureState, Timestamp, plain_thread};
use crate::outbox::Outbox;
use crate::store::{Record, Store, StoreError};
use dated::Dated;
use reader::Listers;

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
pub struct Settings {
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
    pub firsts: PathBuf,
    /// Where it is noted what was read last.
    pub lately: PathBuf,
    /// Where the links stand.
    pub links: Boards,
}

/// How many there were when the tree was made.
#[derive(Clone, Copy, Debug)]
struct AtStart {
    messages: usize,
    threads: usize,
}

/// The tree of one mount.
pub struct Tree {
    index: Arc<Index>,
    outbox: Option<Arc<Outbox>>,
    settings: Settings,
    at_start: AtStart,
    firsts: firsts::Firsts,
    lately: lately::Lately,
    long_ids: Mutex<threads::LongIds>,
    twins: twins::Seen,
    rendered: Mutex<rendered::Cache>,
    /// Messages whose text changed and whose pages the kernel may still hold.
    rewritten: Mutex<HashSet<(Place, MsgIx)>>,
    parts: parts::Seen,
    raw: raw::Seen,
    /// Messages of threads in listing order.
    orders: Dated<ThreadIx, Arc<Vec<MsgIx>>>,
    transcripts: Dated<ThreadIx, Arc<transcript::Plan>>,
    every: Dated<(), Arc<Vec<MsgIx>>>,
    listings: Mutex<listing::Listings>,
    /// How many threads there are up to the last one whose attributes somebody was told.
    threads_told: AtomicU32,
    /// The thread whose folder was listed last with the sizes of its messages.
    walked: Mutex<Option<ThreadIx>>,
    /// How far the folder was read whose messages somebody reads one after the other.
    reading: Mutex<ahead::ReadOn>,
    agents_seen: Dated<(), Arc<agents::Agents>>,
    /// Time of the newest entry.
    newest_seen: Dated<(), Option<Timestamp>>,
    /// The files of `rejected/`.
    rejects_seen: Dated<(), Arc<BTreeMap<String, u64>>>,
    /// Nodes whose inode number is the hash of a path.
    paths: Mutex<LruCache<Ino, Node>>,
    listers: Mutex<Listers>,
    /// What `.next` has handed out.
    handed: Mutex<wait::Handed>,
    mail_changed: Mutex<maildir::Changed>,
    short_names: Mutex<short::ShortNames>,
    unknown_id: Mutex<Option<short::UnknownId>>,
    /// Threads whose folder was called without the name of their store.
    plain_folders: Mutex<HashSet<ThreadIx>>,
    /// Messages acknowledged through this tree.
    acknowledged: Mutex<HashSet<MsgIx>>,
    texts: texts::Texts,
}

impl Tree {
    /// A tree over an index; without an outbox nothing can be written.
    pub fn new(index: Arc<Index>, outbox: Option<Arc<Outbox>>, settings: Settings) -> Self {
        let (at_start, generation) = {
            let core = index.read();
            let (messages, threads) = (core.messages_so_far(), core.threads_so_far());
            (AtStart { messages, threads }, core.generation())
        };
        Self {
            index,
            outbox,
            at_start,
            firsts: firsts::Firsts::open(settings.firsts.clone(), settings.read_only),
            lately: lately::Lately::new(settings.lately.clone()),
            long_ids: Mutex::default(),
            twins: Dated::new(twins::GROUPS),
            settings,
            rendered: Mutex::default(),
            rewritten: Mutex::default(),
            parts: Dated::fresh_for(parts::MESSAGES, parts::FRESH),
            raw: raw::Seen::default(),
            orders: Dated::new(THREADS),
            transcripts: Dated::new(THREADS),
            every: Dated::new(ONE),
            listings: Mutex::default(),
            threads_told: AtomicU32::new(0),
            walked: Mutex::default(),
            reading: Mutex::default(),
            agents_seen: Dated::fresh_for(ONE, agents::FRESH),
            newest_seen: Dated::new(ONE),
            rejects_seen: Dated::new(ONE),
            // Not with room for all of them at once.
            paths: Mutex::new(LruCache::unbounded()),
            listers: Mutex::new(Listers::default()),
            handed: Mutex::at(Level::Shown, wait::Handed::default()),
            mail_changed: Mutex::new(maildir::Changed::new(generation)),
            short_names: Mutex::default(),
            unknown_id: Mutex::default(),
            plain_folders: Mutex::default(),
            acknowledged: Mutex::default(),
            texts: texts::Texts::default(),
        }
    }

    /// The index below.
    pub fn index(&self) -> &Arc<Index> {
        &self.index
    }

    /// How it was set up.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Where the links stand that there are now.
    fn boards(&self) -> Vec<Arc<Board>> {
        self.settings.links.read().clone()
    }

    /// Grows with every change a folder can show; drafts change without it.
    pub fn generation(&self) -> u64 {
        self.index.read().generation()
    }

    /// Whether a listing holds until the [generation](Tree::generation) changes.
    pub fn is_cacheable(&self, node: &Node) -> bool {
        // What waits comes and goes without the index.
        let waits = || self.has_held() || self.has_behind();
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

    fn outbox(&self) -> Result<&Arc<Outbox>, Error> {
        // One that can only be looked at is there in a tree that is read only.
        self.outbox.as_ref().filter(|_| !self.settings.read_only).ok_or(Error::ReadOnly)
    }

    /// Whether nothing can be written by whoever has this tree. A command that only looks sees the
    /// drafts: the next one may write.
    fn only_shows(&self) -> bool {
        self.settings.read_only && self.outbox.is_none()
    }

    fn all_conversations(&self) -> bool {
        self.settings.scope == Scope::All
    }

    /// Waits until what was just sent can be seen in a folder.
    pub fn settle(&self, folder: &Node) {
        if let Node::Sent
        | Node::SentDay(_)
        | Node::Outbox
        | Node::Threads
        | Node::Thread(_)
        | Node::Transcripts
        | Node::MailBox(_) = folder
            && let Some(outbox) = &self.outbox
        {
            outbox.settle(SETTLE);
            if matches!(folder, Node::Sent | Node::SentDay(_)) {
                outbox.settle_folders(SETTLE);
                outbox.settle(SETTLE);
            }
        }
    }

    fn thread_messages(&self, core: &Core, thread: ThreadIx) -> Arc<Vec<MsgIx>> {
        let make = || Arc::new(core.thread_messages(thread));
        self.orders.get(thread, core.generation(), make)
    }

    /// All messages in listing order, for `scope = "all"`.
    fn every_message(&self, core: &Core) -> Arc<Vec<MsgIx>> {
        self.every.get((), core.generation(), || {
            let mut all: Vec<MsgIx> = core.all().filter(|ix| !core.is_copy(*ix)).collect();
            all.sort_by(|a, b| core.order(*a, *b));
            Arc::new(all)
        })
    }

    /// The message as a file.
    fn rendered(&self, ix: MsgIx) -> Result<Arc<[u8]>, Error> {
        let (entry, signature, generation) = {
            let core = self.index.read();
            let entry = *core.entry(ix).filter(|e| e.is_live()).ok_or(Error::NotFound)?;
            (entry, core.signature(&entry), core.generation())
        };
        // The index forgets the length of what may have become another text in the same place.
        let holds = |seen: &Entry, bytes: &Arc<[u8]>| {
            entry.looks_like(seen) && entry.size() == Some(bytes.len() as u64)
        };
        if let Some((seen, bytes)) = self.rendered.lock().get(ix)
            && holds(seen, bytes)
        {
            return Ok(Arc::clone(bytes));
        }
        let record = self.record(ix, &entry)?;
        self.render((ix, &entry), signature, generation, record)
    }

    /// A message that was just read as a file, for whoever asks next.
    fn render(
        &self,
        (ix, entry): (MsgIx, &Entry),
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
            render::message(&record.message, kind, signature).into_bytes().into();
        if entry.size() != Some(bytes.len() as u64) {
            let ruled = transcript::rules(&bytes).count() as u32;
            self.index.remember_size(ix, entry, generation, (bytes.len() as u64, ruled));
        }
        self.rendered.lock().put(ix, (*entry, Arc::clone(&bytes)));
        Ok(bytes)
    }

    /// The message as it stands in its store, if it is still there, in the thread it belongs to.
    fn record(&self, ix: MsgIx, entry: &Entry) -> Result<Record, Error> {
        let store = self.index.store_of(entry).ok_or(Error::NotFound)?;
        let record = match store.read(&entry.location()) {
            // It may only lie elsewhere since the last scan: what was read is claimed by a rename, a copy of a log
            // is merged into the log, and what I wrote is kept when a log loses it.
            Err(StoreError::Moved) => {
                if let Some(path) = store.source_path(entry.location().source) {
                    store.note(&store.dir().join(path));
                }
                self.look_again(entry.store(), entry.is_from_me());
                store.read(&self.live(ix)?.location())?
            }
            read => read?,
        };
        self.own_record(ix, entry, record)
    }

    /// What was read in the place of a message, if it is that message.
    fn own_record(&self, ix: MsgIx, entry: &Entry, mut record: Record) -> Result<Record, Error> {
        let store = self.index.store_of(entry).ok_or(Error::NotFound)?;
        let core = self.index.read();
        let same = core.entry(ix).is_some_and(|e| {
            let from = record.message.from.as_deref().unwrap_or_default();
            core.id(e) == record.message.id && core.from(e) == from
        });
        if !same {
            return Err(StoreError::Moved.into());
        }
        if store.about().links() {
            // Where threads are made of links, the message alone does not know its own.
            let thread = core.thread_id(core.thread_of(entry));
            record.message.thread = thread.map(|(id, _)| id.to_owned());
        }
        without_label(store.as_ref(), &mut record.message);
        Ok(record)
    }
}

/// People see thread ids without the label of the place a thread comes from.
fn without_label(store: &dyn Store, message: &mut Message) {
    if store.about().labels()
        && let Some(thread) = &mut message.thread
    {
        thread.truncate(plain_thread(thread).len());
    }
}

/// Joins a folder (`""` for the root) and a name.
fn join_path(folder: &str, name: &str) -> String {
    if folder.is_empty() { name.to_owned() } else { format!("{folder}/{name}") }
}
