//! Full-text search over the messages of the index.
//!
//! - [`SearchQuery`]: the grammar of queries. `fold`: words without case and accents, to show where a message matches.
//! - `table`: the table of words of SQLite, in a file or in memory. `documents`: the messages of its rows. `catalog`:
//!   both.
//! - `titles`: subjects that change without their messages.
//! - `file`: the file, its seal, and the right to write it. `filter`: conditions that need no words.
//! - `outside`: queries on messages that wait for their store.
//! - `state`: the file and what it lacks. `builder`: the thread that writes.
//!
//! A search asks the file, and a table in memory with the few messages that the file does not have yet. Both fold words
//! in the same way. If the file lacks many messages, one thread of one process writes them, and searches wait for it. A
//! process that may not write, or cannot, reads such messages in batches for each search: words in memory, the query,
//! the next batch.
//!
//! Nothing in the file is needed. It is made again when it is missing, damaged, or of another version. It holds
//! identities of messages and their words. All other conditions and the order of messages come from the index.

mod builder;
mod catalog;
mod documents;
mod error;
mod file;
mod filter;
mod fold;
mod outside;
mod query;
mod state;
#[cfg(feature = "search")]
mod table;
#[cfg(not(feature = "search"))]
#[path = "no_table.rs"]
mod table;
mod titles;

pub use error::{SearchError, TableError};
pub use filter::SearchScope;
pub use fold::MatchFinder;
pub use outside::OutsideMessage;
pub use query::{QueryError, SearchQuery};

use std::collections::HashSet;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::index::{Index, MsgIx};
use crate::model::locks::{Condvar, LockLevel, Mutex};
use catalog::WordCatalog;
use file::IndexFile;
use filter::MessageFilter;
use state::{FIRST_ATTEMPTS, SearchState, merge_hits};

/// True if this program can search.
pub const IS_BUILT: bool = cfg!(feature = "search");

/// The time between two looks at a program that waits.
const LOOK: Duration = Duration::from_millis(100);
/// The most bytes of records that are read into memory for one part of a search without an index.
const STREAMED: usize = 8 << 20;

/// A source of the texts of messages.
pub trait BodySource: Send + Sync {
    /// Reads messages in the fastest order, and calls `each` with the subject and the body of each one, as they are
    /// shown. Messages that cannot be read are left out.
    fn read_bodies(&self, messages: &[MsgIx], each: &mut dyn FnMut(MsgIx, &str, &str));
}

/// The settings of a search.
#[derive(Clone, Debug)]
pub struct SearchSettings {
    /// The path of the file of the index.
    pub file: PathBuf,
    /// True if this process may write the file, unless another one does.
    pub may_write: bool,
}

/// Search over one index.
pub struct SearchIndex {
    index: Arc<Index>,
    bodies: Arc<dyn BodySource>,
    file: IndexFile,
    may_write: bool,
    state: Mutex<SearchState>,
    /// Messages whose text may have changed, for the next look.
    changed: Mutex<HashSet<MsgIx>>,
    /// Hits whose text did not match.
    false_hits: AtomicUsize,
    is_started: AtomicBool,
    /// True if the builder must end.
    is_closing: AtomicBool,
    /// True if the file must not be written any more.
    is_stopped: AtomicBool,
    /// True if a search waits for the builder.
    is_wanted: AtomicBool,
    /// The number of runs of the builder that ended.
    runs: (Mutex<u64>, Condvar),
    /// The messages of this run that were indexed, and those in all.
    progress: (AtomicU64, AtomicU64),
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl fmt::Debug for SearchIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SearchIndex").field("file", &self.file).finish_non_exhaustive()
    }
}

impl SearchIndex {
    /// Makes a search. It opens and reads nothing before the first query.
    pub fn new(index: Arc<Index>, bodies: Arc<dyn BodySource>, settings: SearchSettings) -> Self {
        Self {
            index,
            bodies,
            file: IndexFile::new(settings.file),
            may_write: settings.may_write,
            state: Mutex::with_level(LockLevel::Searching, SearchState::default()),
            changed: Mutex::default(),
            false_hits: AtomicUsize::new(0),
            is_started: AtomicBool::new(false),
            is_closing: AtomicBool::new(false),
            is_stopped: AtomicBool::new(false),
            is_wanted: AtomicBool::new(false),
            runs: (Mutex::default(), Condvar::default()),
            progress: <(AtomicU64, AtomicU64)>::default(),
            thread: Mutex::default(),
        }
    }

    /// Returns the messages that a query finds in a scope, each once, in no order. `is_over` returns true if nobody
    /// waits any longer.
    ///
    /// # Errors
    /// If nobody waits any longer, or nothing can be searched.
    pub fn find_messages(
        self: &Arc<Self>,
        query: &SearchQuery,
        scope: SearchScope<'_>,
        is_over: &dyn Fn() -> bool,
    ) -> Result<Vec<MsgIx>, SearchError> {
        let filter = MessageFilter { index: &self.index, query, scope };
        let mut found = if query.needs_text() {
            self.find_words(&filter, is_over)?
        } else {
            let tables = self.index.read();
            let fits = |ix: &MsgIx| filter.fits(&tables, *ix, tables.messages.entry(*ix));
            tables.messages.live_messages().filter(fits).collect()
        };
        filter.keep_in_threads(&mut found);
        Ok(found)
    }

    fn find_words(
        self: &Arc<Self>,
        filter: &MessageFilter<'_>,
        is_over: &dyn Fn() -> bool,
    ) -> Result<Vec<MsgIx>, SearchError> {
        self.start();
        let (mut damaged, mut waited) = (0, 0);
        loop {
            let mut state = self.state.lock();
            self.refresh_file(&mut state);
            let missing = self.list_missing(&mut state);
            let can_index_now = self.can_index_now(&state, &missing);
            if !can_index_now && self.is_closing.load(Ordering::Relaxed) {
                return Err(SearchError::Interrupted);
            }
            if !can_index_now && waited < FIRST_ATTEMPTS && self.can_build(&mut state) {
                drop(state);
                self.wait_for_builder(is_over)?;
                waited += 1;
                continue;
            }
            if can_index_now {
                self.index_in_memory(&mut state, &missing)?;
            }
            let Some(mut found) = self.find_known(&mut state, filter, damaged)? else {
                damaged += 1;
                continue;
            };
            drop(state);
            if !can_index_now {
                merge_hits(&mut found, self.stream_missing(filter, missing, is_over)?);
            }
            return Ok(found);
        }
    }

    /// Searches messages that no table has, batch after batch. Their words are forgotten behind each.
    fn stream_missing(
        &self,
        filter: &MessageFilter<'_>,
        mut missing: Vec<MsgIx>,
        is_over: &dyn Fn() -> bool,
    ) -> Result<Vec<MsgIx>, SearchError> {
        self.sort_by_location(&mut missing);
        let (mut found, mut rest) = (Vec::new(), missing.as_slice());
        while !rest.is_empty() {
            if is_over() {
                return Err(SearchError::Interrupted);
            }
            let (batch, behind) = rest.split_at(self.batch_len(rest, STREAMED));
            let mut words = WordCatalog::in_memory()?;
            words.add_messages(&self.index, self.bodies.as_ref(), batch)?;
            found.extend(words.find_words(filter)?);
            rest = behind;
        }
        Ok(found)
    }

    /// Returns true if a query needs no long work before it is answered.
    pub fn is_ready(&self) -> bool {
        let Some(mut state) = self.state.try_lock() else { return false };
        if !state.is_open() {
            return false;
        }
        self.refresh_file(&mut state);
        let missing = self.list_missing(&mut state);
        self.can_index_now(&state, &missing)
    }

    /// Returns true if a message that was found has the words of the query, or would be found again if it was indexed
    /// anew. If not, it is indexed anew, and after several such messages the file is.
    pub fn check_hit(
        &self,
        finder: &MatchFinder,
        query: &SearchQuery,
        ix: MsgIx,
        (subject, body): (&str, &str),
    ) -> bool {
        if !query.needs_text() || finder.is_sure(subject, body) {
            return true;
        }
        let is_true = !matches!(self.has_words(query, ix, &ShownBody { subject, body }), Ok(false));
        // The file is not at fault for a word that a new row has, too.
        if is_true || matches!(self.has_words(query, ix, self.bodies.as_ref()), Ok(true)) {
            return true;
        }
        self.changed.lock().insert(ix);
        if self.false_hits.fetch_add(1, Ordering::Relaxed) + 1 >= FIRST_ATTEMPTS {
            self.false_hits.store(0, Ordering::Relaxed);
            self.distrust_file("hits do not have the words");
        }
        false
    }

    /// Returns true if the words of a message fit a query.
    fn has_words(
        &self,
        query: &SearchQuery,
        ix: MsgIx,
        bodies: &dyn BodySource,
    ) -> Result<bool, TableError> {
        let mut words = WordCatalog::in_memory()?;
        words.add_messages(&self.index, bodies, &[ix])?;
        words.has_match(query)
    }

    /// Returns the messages that are indexed now, and the number of those in all, while the index is built.
    pub fn progress(&self) -> Option<(u64, u64)> {
        let (done, all) = &self.progress;
        let all = all.load(Ordering::Relaxed);
        (all > 0).then(|| (done.load(Ordering::Relaxed), all))
    }

    /// Returns the reason why the index cannot be written, if that was tried.
    pub fn fault(&self) -> Option<String> {
        self.state.try_lock().and_then(|state| state.fault_text())
    }

    /// Ends the work on the file: what is missing there is written if it is little, and the file is sealed. Another
    /// process may write it when this returns.
    pub fn stop(&self) {
        self.is_closing.store(true, Ordering::Relaxed);
        self.index.change_signal().notify();
        let thread = self.thread.lock().take();
        if let Some(thread) = thread {
            let _ = thread.join();
        }
        self.is_stopped.store(true, Ordering::Relaxed);
        self.state.lock().close();
    }

    /// Waits until the builder has ended a run.
    fn wait_for_builder(&self, is_over: &dyn Fn() -> bool) -> Result<(), SearchError> {
        let before = *self.runs.0.lock();
        self.is_wanted.store(true, Ordering::Relaxed);
        self.index.change_signal().notify();
        loop {
            {
                let mut runs = self.runs.0.lock();
                if *runs != before {
                    return Ok(());
                }
                self.runs.1.wait_until(&mut runs, Instant::now() + LOOK);
            }
            if is_over() || self.is_closing.load(Ordering::Relaxed) {
                return Err(SearchError::Interrupted);
            }
        }
    }
}

impl Drop for SearchIndex {
    fn drop(&mut self) {
        self.is_closing.store(true, Ordering::Relaxed);
        self.index.change_signal().notify();
    }
}

/// The text of one message that was read already.
struct ShownBody<'a> {
    subject: &'a str,
    body: &'a str,
}

impl BodySource for ShownBody<'_> {
    fn read_bodies(&self, messages: &[MsgIx], each: &mut dyn FnMut(MsgIx, &str, &str)) {
        for ix in messages {
            each(*ix, self.subject, self.body);
        }
    }
}
