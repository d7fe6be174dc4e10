//! `search/`: a folder for each query, with the messages that it finds and `hits.txt`.
//!
//! `search/` lists nothing. A name in it is a query, in which `%2F` stands for `/` and `%25` for `%`. The entries of its folder are
//! the files of `archive/`, or of `threads/` for messages that are not there. The folders with attachments are nodes of this view,
//! because a folder has one place. `msgfs search` reads `.hits=N`, which is not listed: the newest N hits as JSON.

use std::num::NonZeroUsize;
use std::sync::{Arc, OnceLock};

use lru::LruCache;
use serde::{Deserialize, Serialize};

use super::attr::README_TIME;
use super::file::{OpenFile, OpenRequest};
use super::folder_scope::{FolderScope, MessageFolder};
use super::listing::Listing;
use super::messages::{MessagesKey, file_node};
use super::names;
use super::node::{Ino, Node, NodeTrait, PagePolicy};
use super::sidecars::MessageFile;
use super::table::{NodeAttributes, View, ViewKey};
use super::{CachePolicy, Error, Tree};
use crate::index::{IndexTables, MsgIx};
use crate::model::locks::Mutex;
use crate::model::{Timestamp, sanitize_line};
use crate::search::{self, MatchFinder, QueryError, SearchIndex, SearchQuery};

/// The name of the file with the newest hits.
const HITS: &str = "hits.txt";
/// The beginning of the name of a report.
const REPORT: &str = ".hits=";
/// The hits that `hits.txt` shows.
pub const SHOWN_HITS: usize = 10;
/// The longest line of `hits.txt`, in characters.
const LINE: usize = 80;
/// The longest name of a sender and the longest subject in it, in characters.
const FROM: usize = 16;
const SUBJECT: usize = 20;
/// The longest line of a message in a report, in characters.
const REPORT_LINE: usize = 200;
/// Messages of a report that are read together.
const READ_TOGETHER: usize = 64;
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

/// A message that a search found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SearchHit {
    /// Its short id.
    pub id: String,
    /// Its id.
    pub message_id: String,
    /// The name of its file.
    pub name: String,
    /// Its store.
    pub store: String,
    /// Its thread.
    pub thread: String,
    /// The sender.
    pub from: String,
    /// The recipients.
    pub to: Vec<String>,
    /// Its time, in RFC 3339.
    pub time: String,
    /// Its day, as the folders of `archive/` have it.
    pub day: String,
    /// Its subject, if it has one.
    pub subject: Option<String>,
    /// The line that matches, cut around the match; or else its first line.
    pub line: String,
    /// The place of the match in the line, in characters: begin and end.
    pub place: Option<(usize, usize)>,
}

/// The newest hits of a query.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SearchReport {
    /// The number of all hits.
    pub total: usize,
    /// The newest ones, newest first.
    pub hits: Vec<SearchHit>,
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
    /// In listing order.
    hits: Vec<MsgIx>,
    /// The text of `hits.txt`.
    text: String,
    newest: Timestamp,
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
        decode_query(name).parse().map_err(|error: QueryError| {
            let (query, reason) = (cut_query(name), error.to_string());
            *self.last_bad.lock() =
                Some(BadQuery { query, reason: reason.clone(), time: Timestamp::now() });
            Error::Missing(reason)
        })
    }

    fn cached_result(&self, name: &str, generation: u64) -> Option<Arc<SearchResult>> {
        let mut results = self.results.lock();
        results.results.get(name).filter(|result| result.generation == generation).cloned()
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
        if let Some(result) = self.cached_result(name, generation) {
            return Ok(result);
        }
        let query = self.parse_name(name)?;
        let index = self.index(tree)?;
        let finder = MatchFinder::new(&query);
        let mut attempts = 0;
        let (hits, described) = loop {
            let namer = |thread| tree.thread_names.thread_folder_name(thread);
            let hits = sort_hits(tree, index.find_messages(&query, &namer, is_over)?);
            let newest: Vec<MsgIx> = hits.iter().rev().take(SHOWN_HITS).copied().collect();
            let described = describe_hits(tree, &finder, &newest, LINE);
            let is_true = |(ix, hit): &(MsgIx, ReadHit)| {
                index.check_hit(&finder, &query, *ix, (&hit.whole_subject, &hit.body))
            };
            // Each is asked, because each false one is indexed anew.
            let is_false = described.iter().filter(|hit| !is_true(hit)).count() > 0;
            attempts += 1;
            if !is_false || attempts == REPEATED {
                break (hits, described);
            }
        };
        let text = format_hits(hits.len(), described.iter().map(|(_, hit)| &hit.hit));
        let newest = {
            let core = tree.index.read();
            hits.last().map_or(super::attr::NO_TIME, |ix| core.messages.entry(*ix).time())
        };
        let result = Arc::new(SearchResult { query, generation, hits, text, newest });
        self.results.lock().insert(Arc::clone(name), Arc::clone(&result));
        Ok(result)
    }

    /// Finds a file of a message in the folder of a query.
    fn find_file(&self, tree: &Tree, name: &Arc<str>, file: &str) -> Result<Option<Node>, Error> {
        let result = self.result(tree, name, &never)?;
        let stem = file.rsplit_once('.').map_or(file, |(stem, _)| stem);
        for ix in find_candidates(tree, &result.hits, stem) {
            let scope = {
                let core = tree.index.read();
                FolderScope::of_message(&core, place_of(tree, &core, ix), ix)
            };
            let Some(node) = tree.find_message(scope, file)? else { continue };
            let ViewKey::Messages(MessagesKey::File(place, found, kind)) = node.key() else {
                return Ok(Some(node));
            };
            if *found == ix {
                return Ok(Some(match kind {
                    MessageFile::Parts => SearchKey::Parts(Arc::clone(name), *place, ix).into(),
                    _ => node,
                }));
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

    fn traits(key: &SearchKey) -> &'static [NodeTrait] {
        use NodeTrait::{FixedFiles, Folder, LastingListing, Pages, ShowsMessages, ShowsSent};
        match key {
            SearchKey::Top => &[Folder],
            SearchKey::Folder(_) => &[Folder, ShowsMessages, ShowsSent, LastingListing],
            SearchKey::Hits(_) | SearchKey::Report(..) => &[Pages(PagePolicy::Bypass)],
            SearchKey::Parts(..) => &[Folder, FixedFiles],
        }
    }

    fn inode_number(&self, tree: &Tree, key: &SearchKey) -> Option<Ino> {
        let assign = |path: &[&str]| Some(tree.assign_path_inode(path, &key.clone().into()));
        match key {
            SearchKey::Top => None,
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
            SearchKey::Folder(name) => folder(self.result(tree, name, &never)?.newest),
            SearchKey::Hits(name) => {
                let result = self.result(tree, name, &never)?;
                file(result.text.len() as u64, result.newest)
            }
            // Its size is not known before it is read, and nobody asks.
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
            SearchKey::Hits(_) | SearchKey::Report(..) => Err(Error::NotDir),
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
            SearchKey::Hits(_) | SearchKey::Report(..) => Err(Error::NotDir),
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
        let is_cached = || self.cached_result(&query, tree.generation()).is_some();
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

/// Returns false: somebody waits.
fn never() -> bool {
    false
}

/// Returns the query that a request on a node, or on a name in it, needs.
fn query_of(key: &SearchKey, name: Option<&str>) -> Option<Arc<str>> {
    match (key, name) {
        (SearchKey::Top, Some(name)) if !name.starts_with('.') => Some(name.into()),
        (SearchKey::Top | SearchKey::Parts(..), _) => None,
        (SearchKey::Folder(query) | SearchKey::Hits(query) | SearchKey::Report(query, _), _) => {
            Some(Arc::clone(query))
        }
    }
}

/// Returns the number in the name of a report.
fn parse_report_name(name: &str) -> Option<usize> {
    name.strip_prefix(REPORT)?.parse().ok()
}

/// Returns the query that a name stands for.
fn decode_query(name: &str) -> String {
    name.replace("%2F", "/").replace("%2f", "/").replace("%25", "%")
}

/// Returns the path of the report of a query in the tree.
pub fn search_report_path(query: &str, limit: usize) -> String {
    let name = query.replace('%', "%25").replace('/', "%2F");
    // A name does not begin with a dot, and blanks change no query.
    format!("search/ {name}/{REPORT}{limit}")
}

/// Returns a query that was refused as `status.txt` shows it.
fn cut_query(name: &str) -> String {
    names::cut_line(name, LINE)
}

/// Returns the folder whose files stand for a message: that of its day, or that of its thread.
fn place_of(tree: &Tree, core: &IndexTables, ix: MsgIx) -> MessageFolder {
    if core.messages.entry(ix).is_to_me() || tree.is_scope_all() {
        MessageFolder::Archive
    } else {
        MessageFolder::Thread
    }
}

/// Keeps the hits that the tree shows, and sorts them in listing order.
fn sort_hits(tree: &Tree, mut hits: Vec<MsgIx>) -> Vec<MsgIx> {
    let (core, all) = (tree.index.read(), tree.is_scope_all());
    hits.retain(|ix| {
        let entry = core.messages.entry(*ix);
        entry.is_to_me()
            || entry.is_from_me()
            || core.threads.is_thread_visible(entry.thread(), all)
    });
    let timed = |ix| (core.messages.name_time(core.messages.entry(ix)), ix);
    let mut timed: Vec<(Timestamp, MsgIx)> = hits.into_iter().map(timed).collect();
    timed.sort_by(|a, b| a.0.cmp(&b.0).then_with(|| core.messages.compare_order(a.1, b.1)));
    timed.into_iter().map(|(_, ix)| ix).collect()
}

/// Returns the hits that a name without its ending may mean.
fn find_candidates(tree: &Tree, hits: &[MsgIx], stem: &str) -> Vec<MsgIx> {
    let core = tree.index.read();
    let Some(time) = names::parse_name_time(stem) else {
        let lies = |ix: &MsgIx| {
            hits.binary_search_by(|hit| core.messages.compare_order(*hit, *ix)).is_ok()
        };
        return tree.names.find_by_id(&core, stem, lies).into_iter().collect();
    };
    let time_of = |ix: &MsgIx| core.messages.name_time(core.messages.entry(*ix));
    let from = hits.partition_point(|ix| time_of(ix) < time);
    hits.iter().skip(from).take_while(|ix| time_of(ix) == time).copied().collect()
}

fn list_result(tree: &Tree, name: &Arc<str>, result: &SearchResult) -> Listing {
    let core = tree.index.read();
    let (mut entries, mut parts) = (Vec::with_capacity(result.hits.len()), Vec::new());
    for (ix, form) in tree.names.name_forms(&core, result.hits.iter().copied()) {
        let place = place_of(tree, &core, ix);
        if core.messages.entry(ix).has_parts() {
            let mut folder = String::new();
            tree.names.push_stem(&mut folder, &core, ix, form);
            parts.push((folder + ".d", SearchKey::Parts(Arc::clone(name), place, ix).into()));
        }
        entries.push((place, ix, form));
    }
    let hits = (HITS.to_owned(), SearchKey::Hits(Arc::clone(name)).into());
    Listing::from_found(entries, parts.into_iter().chain([hits]))
}

/// A hit, and the texts from which it was made.
struct ReadHit {
    hit: SearchHit,
    whole_subject: String,
    body: String,
}

/// Reads messages, each with its matching line cut to so many characters. Those that cannot be read are left out.
fn describe_hits(
    tree: &Tree,
    finder: &MatchFinder,
    hits: &[MsgIx],
    most: usize,
) -> Vec<(MsgIx, ReadHit)> {
    let mut described = Vec::with_capacity(hits.len());
    for some in hits.chunks(READ_TOGETHER) {
        tree.texts.render_uncached(some.iter().copied());
        let read = some.iter().filter_map(|ix| Some((*ix, describe_hit(tree, finder, *ix, most)?)));
        described.extend(read);
    }
    described
}

fn describe_hit(tree: &Tree, finder: &MatchFinder, ix: MsgIx, most: usize) -> Option<ReadHit> {
    let text = tree.texts.rendered_text(ix).ok()?;
    let text = String::from_utf8_lossy(&text);
    let (header, body) = text.split_once("\n\n").unwrap_or((&text, ""));
    let subject = header.lines().find_map(|line| line.strip_prefix("Subject: "));
    let (line, place) = match finder.find_in_body(body) {
        Some(place) => cut_around(body, place, most),
        None => match finder.find_in_subject(subject.unwrap_or_default()) {
            Some(place) => cut_around(subject.unwrap_or_default(), place, most),
            None => (names::cut_line(first_line(body), most), None),
        },
    };
    let core = tree.index.read();
    let entry = core.messages.entry(ix);
    let (thread, _) = core.threads.thread_id(&core.messages, entry.thread());
    let id = core.messages.shown_id(ix);
    let recipients = core.messages.recipient_list(entry).split(", ").filter(|to| !to.is_empty());
    let hit = SearchHit {
        id: names::short_id(&id),
        message_id: crate::model::plain_id(&id).to_owned(),
        name: format!("{}.txt", tree.names.unique_stem(&core, ix)),
        store: tree.store_name(entry.store()).to_owned(),
        thread: crate::model::plain_thread_id(thread).to_owned(),
        from: core.messages.sender(entry).to_owned(),
        to: recipients.map(str::to_owned).collect(),
        time: entry.time().rfc3339(),
        day: core.messages.name_time(entry).day().to_string(),
        subject: Some(subject.unwrap_or(first_line(body)))
            .filter(|_| subject.is_some())
            .map(|subject| names::cut_line(subject, REPORT_LINE)),
        line,
        place,
    };
    let whole_subject = subject.unwrap_or_default().to_owned();
    Some(ReadHit { hit, whole_subject, body: body.to_owned() })
}

fn first_line(body: &str) -> &str {
    body.lines().find(|line| !line.trim().is_empty()).unwrap_or_default()
}

/// Returns the line around a place in a text, cut to so many characters, and the place in it.
fn cut_around(
    text: &str,
    place: std::ops::Range<usize>,
    most: usize,
) -> (String, Option<(usize, usize)>) {
    let (before, after) = (text.get(..place.start), text.get(place.end..));
    let (before, after) = (before.unwrap_or_default(), after.unwrap_or_default());
    let before = before.rsplit('\n').next().unwrap_or_default().trim_start();
    let found = text.get(place).unwrap_or_default();
    let after = if found.contains('\n') { "" } else { after.lines().next().unwrap_or_default() };
    let found: String = found.lines().next().unwrap_or_default().chars().take(most).collect();
    let room = most - found.chars().count();
    // Only so many characters are counted, however long the line is.
    let count = |text: &str, cut: &mut dyn Iterator<Item = char>| {
        (text.is_empty(), cut.take(most + 1).count())
    };
    let (_, left) = count(before, &mut before.chars().rev());
    let (_, right) = count(after, &mut after.trim_end().chars());
    let keep_left = left.min((room / 3).max(room.saturating_sub(right)));
    let keep_right = right.min(room - keep_left);
    let mut begin: Vec<char> = before.chars().rev().take(keep_left).collect();
    begin.reverse();
    let mut end: Vec<char> = after.trim_end().chars().take(keep_right).collect();
    if keep_left < left
        && let Some(first) = begin.first_mut()
    {
        *first = '\u{2026}';
    }
    if keep_right < right
        && let Some(last) = end.last_mut()
    {
        *last = '\u{2026}';
    }
    let from = begin.len();
    let to = from + found.chars().count();
    let line: String = begin.into_iter().chain(found.chars()).chain(end).collect();
    (sanitize_line(&line.replace('\t', " ")).into_owned(), Some((from, to)))
}

/// Returns the newest hits of a result.
fn make_report(tree: &Tree, result: &SearchResult, limit: usize) -> SearchReport {
    let finder = MatchFinder::new(&result.query);
    let newest: Vec<MsgIx> = result.hits.iter().rev().take(limit).copied().collect();
    let hits = newest.chunks(READ_TOGETHER).flat_map(|some| {
        describe_hits(tree, &finder, some, REPORT_LINE).into_iter().map(|(_, read)| read.hit)
    });
    SearchReport { total: result.hits.len(), hits: hits.collect() }
}

/// Returns the text of `hits.txt` with these hits of so many.
pub fn format_hits<'a>(total: usize, hits: impl Iterator<Item = &'a SearchHit>) -> String {
    let lines: String = hits.map(|hit| format_hit(hit) + "\n").collect();
    match total {
        0 => "0 hits: no message matches\n".to_owned(),
        1 => format!("{lines}1 hit\n"),
        _ => format!("{lines}{total} hits\n"),
    }
}

/// Returns the line of a hit, with tabs between its fields.
fn format_hit(hit: &SearchHit) -> String {
    let SearchHit { id, day, line, place, .. } = hit;
    let from = names::cut_line(&hit.from.replace('\t', " "), FROM);
    let room = LINE.saturating_sub(
        4 + [id, &from, day].map(|field| field.chars().count()).iter().sum::<usize>(),
    );
    let about = hit.subject.as_deref().unwrap_or(line).replace('\t', " ");
    let about = names::cut_line(&about, SUBJECT.min(room / 2));
    let about = if about.is_empty() { "-".to_owned() } else { about };
    let room = room.saturating_sub(about.chars().count());
    let line = match *place {
        Some((from, to)) => {
            let byte = |at| line.char_indices().nth(at).map_or(line.len(), |(byte, _)| byte);
            cut_around(line, byte(from)..byte(to), room).0
        }
        None => names::cut_line(&line.replace('\t', " "), room),
    };
    [id, &from, day, &about, &line].map(String::as_str).join("\t")
}

fn format_report(report: &SearchReport) -> String {
    match serde_json::to_string(report) {
        Ok(text) => text + "\n",
        Err(e) => panic!("a report is texts and numbers only, but it cannot be printed: {e}"),
    }
}

impl Tree {
    /// Returns the messages that are indexed for search now, and those in all, while that lasts.
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
