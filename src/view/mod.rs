//! The tree: nodes, names, rendering. It uses no kernel types, so every operation can be tested without a
//! mount.
//!
//! - `table`: the trait of a view, and the table of the views. `root`, `messages` (`inbox/`, `archive/`, `sent/` and
//!   `threads/`), `readme`, `status`, `agents`, `wait` (`.wait`, `.next` and `.watch`), `maildir`, `me`, `outbox`,
//!   `raw`, `rejected`, `search`, `sent` (`sent.txt`), `transcript`: a view each.
//! - [`node`]: what a node is, and inode numbers. `listing`: the entries of a folder.
//! - [`attr`](Attr), [`file`](OpenFile): `stat`, open, read, and the marks that reading makes.
//! - The tree owns a struct for each of these: `unique_names`, names of messages, and `threads`, of folders of
//!   threads; `names` formats them, `short_names` finds ids. `ordered_messages`: messages in order. `message_texts`:
//!   rendered messages. `parts`: attachments; `mail_with_files`: a mail that has them. `pending_sent`: messages that
//!   wait. `recent_reads`: the messages that were read last.
//! - Of messages: `folder_scope`, `message_folders`: the folders that show them. `sidecars`: the files of a message.
//!   `replies`: the drafts beside messages. `acknowledgements`: `.ack`. `answered`: the messages that answer mine;
//!   `awaited_answers`: reads that wait for one. `unread_mail`: unread messages as a bell counts them. `text_buffers`:
//!   the open texts of `me`.
//! - `hits`: the hits of a search, as lines and as data. `pending_hits`: hits that their stores do not have yet.
//! - `receipts`: the way of my messages to their recipients, as stores and links prove it.
//! - `write`: writes, renames and removals. `draft_writers`: the processes that write a draft. `path`: the same tree by
//!   path, for the command line.
//! - `render_cache`, `generation_cache`: caches of computed values. `invalidation`: what the kernel must forget.
//!   [`reader`]: the program that reads.
//! - `error`: every refusal, and its errno.

mod acknowledgements;
mod agents;
mod answered;
mod attr;
mod awaited_answers;
mod draft_writers;
mod error;
mod file;
mod folder_scope;
mod generation_cache;
mod hits;
mod invalidation;
mod listing;
mod mail_with_files;
mod maildir;
mod me;
mod message_folders;
mod message_texts;
mod messages;
mod names;
pub mod node;
mod ordered_messages;
mod outbox;
mod parts;
mod path;
mod pending_hits;
mod pending_sent;
mod raw;
pub mod reader;
mod readme;
mod receipts;
mod recent_reads;
mod rejected;
mod render_cache;
mod replies;
mod root;
mod search;
mod sent;
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
pub use answered::Question;
pub use attr::{Attr, CachePolicy};
pub use awaited_answers::{AskProgress, AskQuery, copy_next_answer, wait_for_answer};
pub use draft_writers::DraftWriters;
pub use error::Error;
pub use file::{OpenFile, OpenRequest};
pub use folder_scope::MessageFolder;
pub use hits::{SearchHit, SearchReport, format_hits};
pub use listing::Listing;
pub use node::{Ino, Node, NodeProperty, PagePolicy};
pub use path::{FolderEntry, copy_path_to, list_path, remove_path, rename_path, write_path};
pub use reader::ReaderProfile;
pub use receipts::{BellRecord, LastSent, SentReceipt};
pub use recent_reads::{RecentRead, load_recent_reads};
pub use replies::has_reply_ending;
pub use search::{BadQuery, SHOWN_HITS, search_report_path};
pub use sent::{format_receipts, sent_report_path};
pub use short_names::{UnknownId, may_mean_another};
pub use status::{LastRefusal, MailboxStatus, StoreStatus, UnreadHeadline};
pub use text_buffers::TextHandle;
pub use unread_mail::{
    MailUrgency, UnreadMail, is_named_by, list_unread_mail, read_mail_urgency, sole_unread_name,
};
pub use wait::{Awaited, WaitTarget, WatchFeed, try_fill_answer, wait_for_unread};
pub use write::TreeWriter;

use std::collections::HashSet;
use std::fmt;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use crate::model::locks::{Mutex, RwLock};

use crate::index::{Index, MsgIx};
use crate::link::{HealthBoard, HealthBoards, TakenLogs};
use crate::model::{MarkRead, PublicKey, Scope};
use crate::outbox::{FollowedReplyWarnings, Outbox, RecipientGroups};
use crate::search::SearchSettings;
use listing::ListingCache;
use message_texts::MessageTexts;
use node::PathNodes;
use ordered_messages::OrderedMessages;
use parts::MessageParts;
use pending_sent::PendingSent;
use reader::InboxListers;
use recent_reads::RecentReads;
use short_names::LastUnknownId;
use table::on_view;
use threads::ThreadNames;
use unique_names::MessageNames;

/// Capacity of a cache with one value.
const ONE: NonZeroUsize = NonZeroUsize::MIN;
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
    /// The log with the warnings about replies of mine.
    pub reply_warnings_file: PathBuf,
    /// The health of each link.
    pub link_boards: HealthBoards,
    /// The proofs about what servers have taken of my logs.
    pub taken_logs: TakenLogs,
    /// The messages for which bells have rung; `None` if nothing tells.
    pub bell_record: Option<Arc<dyn BellRecord>>,
    /// The groups of the configuration.
    pub groups: RecipientGroups,
    /// A function that finds the others who have a mount now.
    pub find_mounted: MountedFinder,
    /// The index of `search/`; `None` if there is no such folder.
    pub search: Option<SearchSettings>,
}

/// A function that gets the folder of a store, and returns the addresses in that store of other identities that have a
/// mount now.
pub type FindMounted = dyn Fn(&Path) -> Vec<String> + Send + Sync;

/// A [`FindMounted`] that settings share.
#[derive(Clone)]
pub struct MountedFinder(pub Arc<FindMounted>);

impl Default for MountedFinder {
    /// Returns a function that finds nobody.
    fn default() -> Self {
        Self(Arc::new(|_| Vec::new()))
    }
}

impl fmt::Debug for MountedFinder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MountedFinder")
    }
}

/// The tree of one mount.
pub struct Tree {
    index: Arc<Index>,
    outbox: Option<Arc<Outbox>>,
    settings: TreeSettings,
    views: table::Views,
    lists: Arc<OrderedMessages>,
    names: Arc<MessageNames>,
    thread_names: ThreadNames,
    texts: Arc<MessageTexts>,
    parts: MessageParts,
    pending: PendingSent,
    recent_reads: RecentReads,
    last_unknown_id: LastUnknownId,
    listing_cache: ListingCache,
    /// Messages whose text changed and whose pages the kernel may still hold.
    rewritten: Mutex<HashSet<Ino>>,
    /// Number of threads up to the last one whose attributes a program has got.
    threads_exposed: AtomicUsize,
    /// Nodes whose inode number is the hash of a path.
    path_nodes: Mutex<PathNodes>,
    inbox_listers: Mutex<InboxListers>,
    /// Messages acknowledged through this tree.
    acknowledged: Mutex<HashSet<MsgIx>>,
}

impl Tree {
    /// Makes a tree over an index. Without an outbox nothing can be written.
    pub fn new(index: Arc<Index>, outbox: Option<Arc<Outbox>>, settings: TreeSettings) -> Self {
        let lists = Arc::new(OrderedMessages::new(settings.scope));
        let names = Arc::new(MessageNames::new(Arc::clone(&index), Arc::clone(&lists)));
        let texts = Arc::new(MessageTexts::new(Arc::clone(&index)));
        let tree = Self {
            views: table::Views::default(),
            thread_names: ThreadNames::new(Arc::clone(&index), settings.scope),
            parts: MessageParts::new(Arc::clone(&index), Arc::clone(&texts)),
            pending: PendingSent::new(
                Arc::clone(&index),
                outbox.clone(),
                FollowedReplyWarnings::new(settings.reply_warnings_file.clone()),
                Arc::clone(&names),
                Arc::clone(&texts),
                Arc::clone(&settings.link_boards),
            ),
            recent_reads: RecentReads::new(settings.recent_reads_file.clone()),
            last_unknown_id: LastUnknownId::default(),
            index,
            outbox,
            settings,
            lists,
            names,
            texts,
            listing_cache: ListingCache::default(),
            rewritten: Mutex::default(),
            threads_exposed: AtomicUsize::new(0),
            path_nodes: Mutex::default(),
            inbox_listers: Mutex::new(InboxListers::default()),
            acknowledged: Mutex::default(),
        };
        // The first call sets the Maildir's time of change to the time at which the tree is made.
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

    /// Returns the health boards of the links that exist now, with the health of this moment.
    fn link_boards(&self) -> Vec<Arc<HealthBoard>> {
        let boards = self.settings.link_boards.read().clone();
        for board in &boards {
            board.refresh();
        }
        boards
    }

    /// Returns a number that grows with every change a folder can show. Drafts change without it.
    pub fn generation(&self) -> u64 {
        self.index.read().generation()
    }

    /// Returns true if a listing stays valid until the [generation](Tree::generation) changes.
    pub fn is_cacheable(&self, node: &Node) -> bool {
        // Messages that wait come and go without a change of the index.
        let waits = || self.pending.may_wait();
        node.has(NodeProperty::LastingListing) && !(node.has(NodeProperty::ShowsPending) && waits())
    }

    /// Returns true if a request on a node, or on a name in it, would wait for long work.
    pub fn may_take_long(&self, node: &Node, name: Option<&str>) -> bool {
        on_view!(self, node, may_take_long(name))
    }

    /// Does the long work of a request on a node, or on a name in it. `is_over` returns true if nobody waits any
    /// longer.
    ///
    /// # Errors
    /// `EINTR` if nobody waits any longer, or why the work cannot be done.
    pub fn prepare(
        &self,
        node: &Node,
        name: Option<&str>,
        is_over: &dyn Fn() -> bool,
    ) -> Result<(), Error> {
        on_view!(self, node, prepare(name, is_over))
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
        self.lists.is_scope_all()
    }

    /// Waits until a folder shows the messages that were just sent.
    pub fn wait_for_sent(&self, folder: &Node) {
        if folder.has(NodeProperty::ShowsPending) {
            self.settle_pending_messages();
        } else if folder.has(NodeProperty::ShowsSent) {
            self.settle_sent_messages();
        }
    }

    /// Waits until the messages that were just sent, or are sent as folders, are in their stores.
    fn settle_pending_messages(&self) {
        self.settle_sent_messages();
        if let Some(outbox) = &self.outbox {
            outbox.composer().wait_for_folders(SETTLE);
            self.settle_sent_messages();
        }
    }

    /// Waits until the messages that were just sent are in their stores.
    fn settle_sent_messages(&self) {
        if let Some(outbox) = &self.outbox {
            outbox.sender().wait_until_appended(SETTLE);
        }
    }

    /// Returns the file that a program makes under a name in a folder, if it can make one there.
    ///
    /// # Errors
    /// The reason why the view refuses the name.
    pub fn name_file(&self, folder: &Node, name: &str) -> Result<Option<Node>, Error> {
        on_view!(self, folder, name_file(name))
    }
}

/// Joins a folder (`""` for the root) and a name.
fn join_path(folder: &str, name: &str) -> String {
    if folder.is_empty() { name.to_owned() } else { format!("{folder}/{name}") }
}
