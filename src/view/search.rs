//! `search/`: a folder for each query, with the messages that it finds and `hits.txt`.
//!
//! `search/` lists nothing. A name in it is a query, in which `%2F` stands for `/` and `%25` for `%`. The entries of
//! its folder are the files of `archive/`, or of `threads/` for messages that are not there. The folders with
//! attachments are nodes of this view, because a folder has one place. `.search` has the progress of the first index:
//! two numbers. `msgfs search` reads `.hits=N`, which is not listed: the newest N hits as JSON.

use std::ffi::OsStr;
use std::num::NonZeroUsize;
use std::sync::{Arc, OnceLock};

use lru::LruCache;
use serde::Serialize;

use super::attr::README_TIME;
use super::file::{OpenFile, OpenRequest};
use super::folder_scope::{FolderScope, MessageFolder};
use super::hits::{
    LINE, READ_TOGETHER, REPORT_LINE, ReadHit, SearchReport, describe_hits, format_hits,
    format_report, newest_hits, sort_hits,
};
use super::listing::Listing;
use super::messages::{file_node, message_file_of};
use super::names;
use super::node::{Ino, Node, NodeProperty, PagePolicy};
use super::pending_hits::{PendingHit, drop_indexed, find_pending, merge_hits};
use super::sidecars::{MessageFile, split_ending};
use super::table::{NodeAttributes, View, ViewKey};
use super::unique_names::message_name_time;
use super::{CachePolicy, Error, Tree};
use crate::index::{IndexTables, MsgIx};
use crate::model::Timestamp;
use crate::model::locks::Mutex;
use crate::search::{
    self, MatchFinder, QueryError, SearchError, SearchIndex, SearchQuery, SearchScope,
};

/// The name of the file with the newest hits.
const HITS: &str = "hits.txt";
/// The beginning of the name of a report.
const REPORT: &str = ".hits=";
/// The hits that `hits.txt` shows.
pub const SHOWN_HITS: usize = 10;
/// Results that are kept.
const RESULTS: NonZeroUsize = NonZeroUsize::MIN.saturating_add(31);
/// The most hits of all kept results.
const KEPT_HITS: usize = 1 << 20;
/// The number of times that a search is repeated because a hit was false.
const REPEATED: usize = 4;

/// A node of the view. A query is the name of its folder.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum SearchKey {
    /// `search/`
    Top,
    /// `.search`
    Progress,
    /// The folder of a query.
    Folder(Arc<str>),
    /// `hits.txt` in it.
    Hits(Arc<str>),
    /// `.hits=N` in it.
    Report(Arc<str>, usize),
    /// The folder with the attachments of a message.
    Parts(Arc<str>, MessageFolder, MsgIx),
}

impl From<SearchKey> for Node {
    fn from(key: SearchKey) -> Self {
        Self::new(ViewKey::Search(key))
    }
}

/// The last query that could not be parsed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BadQuery {
    /// The query as it was written.
    pub query: String,
    /// The reason.
    pub reason: String,
    #[serde(skip)]
    pub(super) time: Timestamp,
}

/// The hits of a query at one generation of the index.
#[derive(Debug)]
struct SearchResult {
    query: SearchQuery,
    generation: u64,
    /// The hits, in no order.
    hits: Vec<MsgIx>,
    /// The hits in listing order, once they were needed: `hits.txt` needs only the newest.
    sorted: OnceLock<Vec<MsgIx>>,
    /// Hits that their stores do not have yet, oldest first.
    pending: Vec<PendingHit>,
    /// The text of `hits.txt`.
    text: String,
    newest: Timestamp,
}

impl SearchResult {
    /// Returns the hits in listing order.
    fn sorted(&self, tables: &IndexTables) -> &[MsgIx] {
        self.sorted.get_or_init(|| sort_hits(tables, &self.hits))
    }
}

/// The results that were used last.
#[derive(Debug)]
struct ResultCache {
    results: LruCache<Arc<str>, Arc<SearchResult>>,
    hits: usize,
}

impl Default for ResultCache {
    fn default() -> Self {
        Self { results: LruCache::new(RESULTS), hits: 0 }
    }
}

impl ResultCache {
    fn insert(&mut self, name: Arc<str>, result: Arc<SearchResult>) {
        self.hits += result.hits.len();
        let removed = self.results.push(name, result);
        self.hits -= removed.map_or(0, |(_, result)| result.hits.len());
        while self.hits > KEPT_HITS && self.results.len() > 1 {
            self.hits -= self.results.pop_lru().map_or(0, |(_, result)| result.hits.len());
        }
    }
}

/// The view `search/`.
#[derive(Debug, Default)]
pub(super) struct SearchView {
    index: OnceLock<Arc<SearchIndex>>,
    results: Mutex<ResultCache>,
    last_bad: Mutex<Option<BadQuery>>,
}

impl SearchView {
    /// Returns the last query that could not be parsed.
    pub fn last_bad_query(&self) -> Option<BadQuery> {
        self.last_bad.lock().clone()
    }

    /// Returns the reason why the index cannot be written.
    pub fn fault(&self) -> Option<String> {
        self.index.get().and_then(|index| index.fault())
    }

    fn index(&self, tree: &Tree) -> Result<&Arc<SearchIndex>, Error> {
        let settings = tree.settings.search.as_ref().ok_or(Error::NotFound)?;
        Ok(self.index.get_or_init(|| {
            let bodies = Arc::<super::message_texts::MessageTexts>::clone(&tree.texts);
            Arc::new(SearchIndex::new(Arc::clone(&tree.index), bodies, settings.clone()))
        }))
    }

    /// Parses the name of a folder. A name that is no query is noted.
    fn parse_name(&self, name: &str) -> Result<SearchQuery, Error> {
        if !search::IS_BUILT {
            return Err(Error::Missing("this msgfs was built without search".to_owned()));
        }
        let parsed = names::decode_slashes(name).parse();
        parsed.map_err(|error| Error::Missing(self.note_bad_query(name, &error)))
    }

    /// Notes a name that is no query. Returns the reason.
    fn note_bad_query(&self, name: &str, error: &QueryError) -> String {
        let (query, reason) = (cut_query(name), error.to_string());
        *self.last_bad.lock() =
            Some(BadQuery { query, reason: reason.clone(), time: Timestamp::now() });
        reason
    }

    fn cached_result(&self, tree: &Tree, name: &str, generation: u64) -> Option<Arc<SearchResult>> {
        // Messages that wait come and go without a change of the index.
        if tree.pending.has_held() {
            return None;
        }
        let mut results = self.results.lock();
        let is_fresh = |result: &&Arc<SearchResult>| {
            result.generation == generation && result.pending.is_empty()
        };
        results.results.get(name).filter(is_fresh).cloned()
    }

    /// Returns the result of a query.
    fn result(
        &self,
        tree: &Tree,
        name: &Arc<str>,
        is_over: &dyn Fn() -> bool,
    ) -> Result<Arc<SearchResult>, Error> {
        tree.settle_sent_messages();
        // The generation is read first, so a change during the search makes the next one fresh.
        let generation = tree.generation();
        if let Some(result) = self.cached_result(tree, name, generation) {
            return Ok(result);
        }
        let query = self.parse_name(name)?;
        let index = self.index(tree)?;
        let finder = MatchFinder::new(&query);
        let all = tree.is_scope_all();
        let scope = SearchScope {
            name_thread: &|thread| tree.thread_names.thread_folder_name(thread),
            is_shown: &|tables, entry| {
                entry.is_to_me()
                    || entry.is_from_me()
                    || tables.threads.is_thread_visible(entry.thread(), all)
            },
        };
        // Pending messages are read first, so one that reaches its store meanwhile is found in the index.
        let mut pending = find_pending(tree, &query).map_err(SearchError::from)?;
        let mut attempts = 0;
        let (hits, newest, described) = loop {
            let hits = index.find_messages(&query, scope, is_over)?;
            let newest = newest_hits(&tree.index.read(), &hits, SHOWN_HITS);
            let described = describe_hits(tree, &finder, &newest, LINE);
            let is_true = |(ix, hit): &(MsgIx, ReadHit)| {
                index.check_hit(&finder, &query, *ix, (&hit.whole_subject, &hit.body))
            };
            // Every hit is checked, because each false one is indexed again.
            let is_false = described.iter().filter(|hit| !is_true(hit)).count() > 0;
            attempts += 1;
            if !is_false || attempts == REPEATED {
                break (hits, newest, described);
            }
        };
        drop_indexed(tree, &mut pending, &hits);
        let newest = {
            let tables = tree.index.read();
            let newest = newest.first().map(|ix| tables.messages.entry(*ix).time());
            let times = newest.into_iter().chain(pending.last().map(PendingHit::time));
            times.max().unwrap_or(super::attr::NO_TIME)
        };
        let described = described.into_iter().map(|(ix, read)| (ix, read.hit)).collect();
        let shown = merge_hits(tree, &finder, &pending, described, (SHOWN_HITS, LINE));
        let text = format_hits(hits.len() + pending.len(), shown.iter());
        let sorted = OnceLock::new();
        let result =
            Arc::new(SearchResult { query, generation, hits, sorted, pending, text, newest });
        self.results.lock().insert(Arc::clone(name), Arc::clone(&result));
        Ok(result)
    }

    /// Finds a file of a message in the folder of a query.
    fn find_file(&self, tree: &Tree, name: &Arc<str>, file: &str) -> Result<Option<Node>, Error> {
        let result = self.result(tree, name, &never)?;
        let mut waiting = result.pending.iter().flat_map(PendingHit::entries);
        if let Some((_, node)) = waiting.find(|(entry, _)| entry == file) {
            return Ok(Some(node));
        }
        let candidates = find_candidates(tree, &result, file);
        if candidates.is_empty() {
            note_unknown_id(tree, &result, file);
        }
        for ix in candidates {
            let scope = {
                let tables = tree.index.read();
                FolderScope::of_message(&tables, place_of(tree, &tables, ix), ix)
            };
            let Some(node) = tree.find_message(scope, file)? else { continue };
            match message_file_of(&node) {
                Some((_, found, _)) if found != ix => {}
                Some((folder, _, MessageFile::Parts)) => {
                    return Ok(Some(SearchKey::Parts(Arc::clone(name), folder, ix).into()));
                }
                _ => return Ok(Some(node)),
            }
        }
        Ok(None)
    }
}

impl View for SearchView {
    type Key = SearchKey;

    fn is_shown(&self, tree: &Tree, _: &SearchKey) -> bool {
        tree.settings.search.is_some()
    }

    fn node_properties(key: &SearchKey) -> &'static [NodeProperty] {
        use NodeProperty::{
            FixedFiles, Folder, LastingListing, Pages, ShowsMessages, ShowsPending, ShowsSent,
        };
        match key {
            SearchKey::Top => &[Folder],
            SearchKey::Folder(_) => {
                &[Folder, ShowsMessages, ShowsSent, ShowsPending, LastingListing]
            }
            SearchKey::Progress | SearchKey::Hits(_) | SearchKey::Report(..) => {
                &[Pages(PagePolicy::Bypass)]
            }
            SearchKey::Parts(..) => &[Folder, FixedFiles],
        }
    }

    fn inode_number(&self, tree: &Tree, key: &SearchKey) -> Option<Ino> {
        let assign = |path: &[&str]| Some(tree.assign_path_inode(path, &key.clone().into()));
        match key {
            SearchKey::Top | SearchKey::Progress => None,
            SearchKey::Folder(name) => assign(&["search", name]),
            SearchKey::Hits(name) => assign(&["search", name, HITS]),
            SearchKey::Report(name, limit) => assign(&["search", name, &limit.to_string()]),
            SearchKey::Parts(name, place, ix) => {
                let identity = tree.index.read().messages.entry(*ix).identity();
                assign(&["search", name, &format!("{place:?}"), &identity.to_string()])
            }
        }
    }

    fn stat(&self, tree: &Tree, key: &SearchKey) -> Result<NodeAttributes, Error> {
        let folder = |time| NodeAttributes::of_folder(Some(time), CachePolicy::Volatile);
        let file = |size, time| NodeAttributes::of_file(size, time, CachePolicy::Volatile);
        Ok(match key {
            SearchKey::Top => folder(README_TIME),
            SearchKey::Progress => file(progress_text(tree).len() as u64, README_TIME),
            SearchKey::Folder(name) => folder(self.result(tree, name, &never)?.newest),
            SearchKey::Hits(name) => {
                let result = self.result(tree, name, &never)?;
                file(result.text.len() as u64, result.newest)
            }
            // The size of a report is not known before it is read, and no program needs it.
            SearchKey::Report(name, _) => file(0, self.result(tree, name, &never)?.newest),
            SearchKey::Parts(_, _, ix) => {
                let time = tree.texts.live_entry(*ix)?.time();
                NodeAttributes::of_folder(Some(time), CachePolicy::Folder)
            }
        })
    }

    fn list(&self, tree: &Tree, folder: &SearchKey) -> Result<Listing, Error> {
        match folder {
            SearchKey::Top => Ok(Listing::from_named(std::iter::empty())),
            SearchKey::Folder(name) => {
                let result = self.result(tree, name, &never)?;
                Ok(list_result(tree, name, &result))
            }
            SearchKey::Parts(_, place, ix) => tree.parts.list(*place, *ix),
            SearchKey::Progress | SearchKey::Hits(_) | SearchKey::Report(..) => Err(Error::NotDir),
        }
    }

    fn find(&self, tree: &Tree, folder: &SearchKey, name: &str) -> Result<Option<Node>, Error> {
        match folder {
            SearchKey::Top if name.starts_with('.') => Ok(None),
            SearchKey::Top => {
                self.parse_name(name)?;
                Ok(Some(SearchKey::Folder(name.into()).into()))
            }
            SearchKey::Folder(query) if name == HITS => {
                Ok(Some(SearchKey::Hits(Arc::clone(query)).into()))
            }
            SearchKey::Folder(query) => match parse_report_name(name) {
                Some(limit) => Ok(Some(SearchKey::Report(Arc::clone(query), limit).into())),
                None => self.find_file(tree, query, name),
            },
            SearchKey::Parts(_, place, ix) => {
                tree.parts.find(*ix, name)?;
                Ok(Some(file_node(*place, *ix, MessageFile::Part(name.to_owned()))))
            }
            SearchKey::Progress | SearchKey::Hits(_) | SearchKey::Report(..) => Err(Error::NotDir),
        }
    }

    fn parent_folder(&self, _: &Tree, folder: &SearchKey) -> Option<SearchKey> {
        match folder {
            SearchKey::Folder(_) => Some(SearchKey::Top),
            SearchKey::Parts(name, ..) => Some(SearchKey::Folder(Arc::clone(name))),
            _ => None,
        }
    }

    fn open(&self, tree: &Tree, key: &SearchKey, _: &OpenRequest) -> Result<OpenFile, Error> {
        let text = match key {
            SearchKey::Progress => progress_text(tree),
            SearchKey::Hits(name) => self.result(tree, name, &never)?.text.clone(),
            SearchKey::Report(name, limit) => {
                format_report(&make_report(tree, &*self.result(tree, name, &never)?, *limit))
            }
            SearchKey::Top | SearchKey::Folder(_) | SearchKey::Parts(..) => {
                return Err(Error::IsDir);
            }
        };
        Ok(OpenFile::from_bytes(text.into_bytes()))
    }

    fn may_take_long(&self, tree: &Tree, key: &SearchKey, name: Option<&str>) -> bool {
        let Some(query) = query_of(key, name) else { return false };
        let is_cached = || self.cached_result(tree, &query, tree.generation()).is_some();
        let is_ready = || self.index(tree).is_ok_and(|index| index.is_ready());
        !is_cached() && !is_ready()
    }

    fn prepare(
        &self,
        tree: &Tree,
        key: &SearchKey,
        name: Option<&str>,
        is_over: &dyn Fn() -> bool,
    ) -> Result<(), Error> {
        let Some(query) = query_of(key, name) else { return Ok(()) };
        self.result(tree, &query, is_over).map(drop)
    }
}

/// Returns the text of `.search`: the number of messages that are indexed now, and the number of all messages.
fn progress_text(tree: &Tree) -> String {
    tree.search_progress().map_or_else(String::new, |(done, all)| format!("{done} {all}\n"))
}

/// Returns false, for a request that is never cancelled.
fn never() -> bool {
    false
}

/// Returns the query that a request on a node, or on a name in it, needs.
fn query_of(key: &SearchKey, name: Option<&str>) -> Option<Arc<str>> {
    match (key, name) {
        (SearchKey::Top, Some(name)) if !name.starts_with('.') => Some(name.into()),
        (SearchKey::Top | SearchKey::Progress | SearchKey::Parts(..), _) => None,
        (SearchKey::Folder(query) | SearchKey::Hits(query) | SearchKey::Report(query, _), _) => {
            Some(Arc::clone(query))
        }
    }
}

/// Returns the number in the name of a report.
fn parse_report_name(name: &str) -> Option<usize> {
    name.strip_prefix(REPORT)?.parse().ok().filter(|most| *most > 0)
}

/// Returns the path of the report of a query in the tree.
pub fn search_report_path(query: &str, limit: usize) -> String {
    let name = names::encode_slashes(query);
    // A name does not begin with a dot, and blanks change no query.
    format!("search/ {name}/{REPORT}{limit}")
}

/// Returns a refused query in the form that `status.txt` shows.
fn cut_query(name: &str) -> String {
    names::cut_line(name, LINE)
}

/// Returns the folder whose files stand for a message: that of its day, or that of its thread.
fn place_of(tree: &Tree, tables: &IndexTables, ix: MsgIx) -> MessageFolder {
    if tables.messages.entry(ix).is_to_me() || tree.is_scope_all() {
        MessageFolder::Archive
    } else {
        MessageFolder::Thread
    }
}

/// Returns the hits that the name of a file may mean. Its last dot begins an ending, or belongs to an id.
fn find_candidates(tree: &Tree, result: &SearchResult, file: &str) -> Vec<MsgIx> {
    let tables = tree.index.read();
    let hits = result.sorted(&tables);
    let Some(time) = names::parse_name_time(file) else {
        let is_in_folder = |ix: &MsgIx| {
            hits.binary_search_by(|hit| tables.messages.compare_order(*hit, *ix)).is_ok()
        };
        let stem = file.rsplit_once('.').map(|(stem, _)| stem);
        let ids = stem.into_iter().chain([file]);
        return ids.filter_map(|id| tree.names.find_by_id(&tables, id, is_in_folder)).collect();
    };
    let time_of = |ix: &MsgIx| message_name_time(&tables, *ix);
    let from = hits.partition_point(|ix| time_of(ix) < time);
    hits.iter().skip(from).take_while(|ix| time_of(ix) == time).copied().collect()
}

/// Notes the id in the name of a file that stands for no hit, or for several.
fn note_unknown_id(tree: &Tree, result: &SearchResult, file: &str) {
    let id = split_ending(file).map_or(file, |(stem, _)| stem);
    tree.last_unknown_id.note(id, |limit| {
        let newest = newest_hits(&tree.index.read(), &result.hits, limit);
        tree.names.ids_and_names(newest)
    });
}

fn list_result(tree: &Tree, name: &Arc<str>, result: &SearchResult) -> Listing {
    let tables = tree.index.read();
    let (mut entries, mut parts) = (Vec::with_capacity(result.hits.len()), Vec::new());
    for (ix, form) in tree.names.name_forms(&tables, result.sorted(&tables).iter().copied()) {
        let place = place_of(tree, &tables, ix);
        if tables.messages.entry(ix).has_parts() {
            let mut folder = String::new();
            tree.names.push_stem(&mut folder, &tables, ix, form);
            parts.push((folder + ".d", SearchKey::Parts(Arc::clone(name), place, ix).into()));
        }
        entries.push((place, ix, form));
    }
    let hits = (HITS.to_owned(), SearchKey::Hits(Arc::clone(name)).into());
    let waiting = result.pending.iter().flat_map(PendingHit::entries);
    Listing::from_found(entries, parts.into_iter().chain(waiting).chain([hits]))
}

/// Returns the newest hits of a result.
fn make_report(tree: &Tree, result: &SearchResult, limit: usize) -> SearchReport {
    let finder = MatchFinder::new(&result.query);
    let newest = newest_hits(&tree.index.read(), &result.hits, limit);
    let indexed = newest.chunks(READ_TOGETHER).flat_map(|some| {
        let described = describe_hits(tree, &finder, some, REPORT_LINE);
        described.into_iter().map(|(ix, read)| (ix, read.hit))
    });
    let indexed = indexed.collect();
    SearchReport {
        total: result.hits.len() + result.pending.len(),
        hits: merge_hits(tree, &finder, &result.pending, indexed, (limit, REPORT_LINE)),
    }
}

impl Tree {
    /// Notes a name that is not UTF-8 and was looked for in a folder: in `search/` it is a query that cannot be parsed.
    pub fn note_odd_name(&self, folder: &Node, name: &OsStr) {
        let is_query = search::IS_BUILT && self.settings.search.is_some();
        let is_hidden = name.as_encoded_bytes().starts_with(b".");
        if is_query && !is_hidden && *folder == SearchKey::Top.into() {
            self.views.search.note_bad_query(&name.to_string_lossy(), &QueryError::NotText);
        }
    }

    /// Returns the number of messages that are indexed for search now and the number of all messages, while the index
    /// is being made.
    pub fn search_progress(&self) -> Option<(u64, u64)> {
        self.views.search.index.get().and_then(|index| index.progress())
    }

    /// Ends the work on the index of search. Another process may write it when this returns.
    pub fn stop_search(&self) {
        if let Some(index) = self.views.search.index.get() {
            index.stop();
        }
    }
}
