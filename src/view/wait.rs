//! `.wait`, `.next` and `.watch`: reads that block until a message comes. `awaited_answers` has `.answer`, which blocks
//! the same way.

use std::collections::{HashMap, HashSet};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::answered::Question;
use super::attr::NO_TIME;
use super::awaited_answers::claim_answer;
use super::file::{FileContent, OpenFile, OpenRequest, ReadToEndMark};
use super::node::{NodeProperty, PagePolicy};
use super::table::{NodeAttributes, View};
use super::{CachePolicy, Error, Tree};
use crate::index::MsgIx;
use crate::model::locks::{LockLevel, Mutex};
use crate::store::StoreError;

/// The messages that `.next` and `.answer` have handed out. No other reader of such a file gets them.
#[derive(Debug, Default)]
struct NextClaims {
    /// Messages of readers that have such a file open.
    open: HashSet<MsgIx>,
    /// Messages that a reader read to the end and that stayed unread.
    read: HashSet<MsgIx>,
    /// The time at which each message was last handed out, for as long as a reader waits.
    times: HashMap<MsgIx, Instant>,
}

impl NextClaims {
    /// Notes that a reader gets a message. Returns false if another reader has it.
    fn hand_out(&mut self, ix: MsgIx, longest_wait: Duration) -> bool {
        self.times.retain(|_, time| time.elapsed() <= longest_wait);
        let is_free = self.open.insert(ix);
        if is_free {
            self.times.insert(ix, Instant::now());
        }
        is_free
    }
}

/// The number of a store, and the number of a file in it.
type SourceNumber = (usize, u32);

/// The number of messages of one file that one `.next` fails to read before it leaves the file alone.
const FAILED_AT_MOST: u32 = 8;

/// The messages that one `.next` tries no more.
#[derive(Debug, Default)]
struct PassedMessages {
    /// Messages that it tried.
    tried: HashSet<MsgIx>,
    /// The number of messages that could not be read, for each file.
    failed: HashMap<SourceNumber, u32>,
    /// Stores that cannot be read as a whole.
    stores: HashSet<usize>,
}

impl PassedMessages {
    /// Returns true if a message of this file may still be tried.
    fn allows(&self, ix: MsgIx, source: SourceNumber) -> bool {
        !self.tried.contains(&ix)
            && self.failed.get(&source).is_none_or(|failed| *failed < FAILED_AT_MOST)
            && !self.stores.contains(&source.0)
    }

    /// Notes that a message is tried. Returns false if it is not to be tried.
    fn insert(&mut self, ix: MsgIx, source: SourceNumber) -> bool {
        self.allows(ix, source) && self.tried.insert(ix)
    }
}

/// An open `.watch`: the messages that arrived since. Readers that share it share the names; each name goes to
/// one.
#[derive(Debug)]
pub struct WatchFeed(Mutex<WatchProgress>);

#[derive(Debug)]
struct WatchProgress {
    /// Number of messages when it was opened.
    first_new: usize,
    /// Messages that were unread then, and messages that were reported.
    reported: HashSet<MsgIx>,
    /// Names for the next read.
    ready: Vec<u8>,
}

impl WatchFeed {
    /// Takes the bytes that are ready, at most `size`.
    pub(super) fn drain_ready(&self, size: usize) -> Vec<u8> {
        let mut seen = self.0.lock();
        let len = seen.ready.len().min(size);
        seen.ready.drain(..len).collect()
    }
}

/// A node of this view.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum WaitKey {
    /// `.wait`
    Wait,
    /// `.next`
    Next,
    /// `.watch`
    Watch,
}

/// The view of the files that block.
#[derive(Debug)]
pub(super) struct WaitView {
    /// The messages that were handed out.
    claims: Mutex<NextClaims>,
}

impl Default for WaitView {
    fn default() -> Self {
        Self { claims: Mutex::with_level(LockLevel::ViewCache, NextClaims::default()) }
    }
}

impl View for WaitView {
    type Key = WaitKey;

    fn node_properties(key: &WaitKey) -> &'static [NodeProperty] {
        use NodeProperty::{NeedsOpener, Pages};
        match key {
            WaitKey::Wait => &[Pages(PagePolicy::Bypass)],
            WaitKey::Next => &[Pages(PagePolicy::Bypass), NeedsOpener],
            WaitKey::Watch => &[Pages(PagePolicy::Stream)],
        }
    }

    fn stat(&self, _tree: &Tree, _key: &WaitKey) -> Result<NodeAttributes, Error> {
        Ok(NodeAttributes::of_file(0, NO_TIME, CachePolicy::Volatile))
    }

    fn open(&self, tree: &Tree, key: &WaitKey, access: &OpenRequest) -> Result<OpenFile, Error> {
        if *key == WaitKey::Watch {
            return Ok(OpenFile::Watch(open_watch(tree)));
        }
        let next = *key == WaitKey::Next;
        if next {
            refuse_stranger(access)?;
        }
        let awaited =
            if next { Awaited::Message } else { Awaited::Names(UnreadGatherer::default()) };
        Ok(OpenFile::Waiting { awaited, opener: access.opener, answer: Mutex::new(None) })
    }
}

/// Refuses another user, who cannot mark messages: the file would hand out the same message again and again.
pub(super) fn refuse_stranger(access: &OpenRequest) -> Result<(), Error> {
    if access.reader.stranger {
        return Err(Error::not_permitted(
            "only the user who made the mount can take mail with .next or .answer",
        ));
    }
    Ok(())
}

impl WaitView {
    /// Reserves a message for one reader. Returns false if another reader has it, or if it was handed out where
    /// reading marks nothing and is `unread`.
    pub fn try_claim(&self, tree: &Tree, ix: MsgIx, unread: bool) -> bool {
        let mut handed = self.claims.lock();
        !(unread && handed.read.contains(&ix)) && handed.hand_out(ix, tree.settings.wait_timeout)
    }

    /// Returns true if a reader got the message after this time.
    pub fn was_claimed_since(&self, ix: MsgIx, time: Instant) -> bool {
        self.claims.lock().times.get(&ix).is_some_and(|claimed| *claimed >= time)
    }

    /// Returns true if a reader has the message and has not closed it.
    pub fn is_claimed(&self, ix: MsgIx) -> bool {
        self.claims.lock().open.contains(&ix)
    }

    /// Returns the oldest unread message that can be read and that no other `.next` has, and reserves it until this
    /// `.next` is closed. If there is none, returns the error of the first message that cannot be read.
    fn claim_next(&self, tree: &Tree, opener: u32) -> Result<Option<FileContent>, Error> {
        let (mut passed, mut failure, mut count) = (PassedMessages::default(), None, 1);
        loop {
            let free = self.list_free(tree, &passed, count);
            if free.is_empty() {
                return failure.map_or(Ok(None), Err);
            }
            for (ix, source) in free {
                if !passed.insert(ix, source) {
                    continue;
                }
                match self.claim_text(tree, ix) {
                    Ok(Some(bytes)) => {
                        let mark = Some(ReadToEndMark::new(ix, opener));
                        return Ok(Some(FileContent { bytes, mark }));
                    }
                    Ok(None) => continue,
                    // The message went before it could be read, or its text may come back.
                    Err(Error::NotFound | Error::NoText | Error::Store(StoreError::Moved)) => {}
                    Err(e) => {
                        if matches!(e, Error::Store(StoreError::Io { .. })) {
                            *passed.failed.entry(source).or_default() += 1;
                        }
                        failure.get_or_insert(e);
                    }
                }
                if tree.index.store_failure(source.0).is_some() {
                    passed.stores.insert(source.0);
                }
            }
            // Most often the first message is the answer. If many cannot be read, the list is walked a few times.
            count = count.saturating_mul(2);
        }
    }

    /// Returns the first `count` unread messages that no reader has and that were not passed over, oldest first, each
    /// with its file.
    fn list_free(
        &self,
        tree: &Tree,
        passed: &PassedMessages,
        count: usize,
    ) -> Vec<(MsgIx, SourceNumber)> {
        let handed = self.claims.lock();
        let tables = tree.index.read();
        let free = |ix: &MsgIx| !handed.open.contains(ix) && !handed.read.contains(ix);
        let unread = tables.messages.lists().unread().filter(free).map(|ix| {
            let entry = tables.messages.entry(ix);
            (ix, (entry.store(), entry.location().source))
        });
        unread.filter(|(ix, source)| passed.allows(*ix, *source)).take(count).collect()
    }

    /// Reserves an unread message for one reader and returns its text, or `None` if another reader has it or had it.
    fn claim_text(&self, tree: &Tree, ix: MsgIx) -> Result<Option<Arc<[u8]>>, Error> {
        if !self.try_claim(tree, ix, true) {
            return Ok(None);
        }
        // The message may have been read before it was claimed.
        let is_unread = tree.index.read().messages.entry(ix).is_unread();
        let text = if is_unread { tree.texts.rendered_text(ix).map(Some) } else { Ok(None) };
        if !matches!(text, Ok(Some(_))) {
            // Nobody is woken: a reader that waits would try this message again without end.
            self.claims.lock().open.remove(&ix);
        }
        text
    }

    /// Notes that a reader read a message to its end. No other reader gets it until it is made unread again.
    pub fn note_read(&self, tree: &Tree, ix: MsgIx) {
        // Reading may mark nothing here, or the store could not be marked.
        let is_unread = tree.index.read().messages.entry(ix).is_unread();
        if is_unread {
            self.claims.lock().read.insert(ix);
        }
    }

    /// Ends the claim of a reader on a message. Unless the message was [read to its end](Self::note_read), another
    /// reader gets it.
    pub fn return_claim(&self, tree: &Tree, ix: MsgIx) {
        self.claims.lock().open.remove(&ix);
        tree.index.change_signal().notify();
    }

    /// Lets `.next` and `.answer` hand out a message again that is unread again.
    pub fn release_claim(&self, ix: MsgIx) {
        self.claims.lock().read.remove(&ix);
    }
}

/// The event that the reads of a file wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitTarget {
    /// Any unread message: `.wait`.
    Unread,
    /// A message of its own: `.next`.
    Message,
    /// An answer to this message of mine: `.answer`.
    Answer(MsgIx),
    /// New messages, for each reader separately and without end: `.watch`.
    Arrivals,
}

impl WaitTarget {
    /// Returns true if one read can have data while another read of this target has none. An answer that somebody read
    /// counts again for those who opened `.answer` later.
    pub fn depends_on_reader(self) -> bool {
        matches!(self, Self::Answer(_) | Self::Arrivals)
    }
}

/// The content for which an open file waits.
#[derive(Debug)]
pub enum Awaited {
    /// The names of the unread messages, those that come together at once: `.wait`.
    Names(UnreadGatherer),
    /// A message: `.next`.
    Message,
    /// An answer to a message of mine, by a file that was opened at this time: `.answer`.
    Answer(Box<Question>, Instant),
}

impl Awaited {
    /// Returns true if the content is a message, which is marked once it is read to its end.
    pub(super) fn is_message(&self) -> bool {
        !matches!(self, Self::Names(_))
    }
}

/// Time for which a read of `.wait` gathers messages after the one that it waited for.
const GATHERING: Duration = Duration::from_millis(100);

/// The state of a read that waits for any unread message, and then for those that come with it.
#[derive(Clone, Copy, Debug, Default)]
enum GatherState {
    /// Nothing was looked for yet.
    #[default]
    New,
    /// Nothing is unread.
    Waiting,
    /// A message came. Others that come until then are returned with it.
    Until(Instant),
}

/// A gatherer of messages that come together. Returns them at once if some are unread at the start, else a moment after
/// the first one.
#[derive(Debug, Default)]
pub struct UnreadGatherer(Mutex<GatherState>);

impl UnreadGatherer {
    /// Returns the names of the unread messages, oldest first, if the gathering has ended.
    fn take_names(&self, tree: &Tree) -> Option<Vec<String>> {
        let names = unread_names(tree);
        let mut state = self.0.lock();
        match *state {
            _ if names.is_empty() => *state = GatherState::Waiting,
            GatherState::Waiting => *state = GatherState::Until(Instant::now() + GATHERING),
            GatherState::Until(end) if Instant::now() < end => {}
            GatherState::New | GatherState::Until(_) => return Some(names),
        }
        None
    }

    /// Returns the time at which the gathering ends, if there is one.
    fn end(&self) -> Option<Instant> {
        if let GatherState::Until(end) = *self.0.lock() { Some(end) } else { None }
    }
}

/// Longest single wait of a read without a time limit.
const LONGEST_WAIT: Duration = Duration::from_secs(86_400);

impl OpenFile {
    /// Returns the event that a read of this file has to wait for, if any.
    pub fn wait_target(&self) -> Option<WaitTarget> {
        match self {
            Self::Waiting { awaited, answer, .. } if answer.lock().is_none() => {
                Some(match awaited {
                    Awaited::Names(_) => WaitTarget::Unread,
                    Awaited::Message => WaitTarget::Message,
                    Awaited::Answer(question, _) => WaitTarget::Answer(question.ix),
                })
            }
            // Every read waits, so that none of several readers takes names for which another reader was woken.
            Self::Watch(_) => Some(WaitTarget::Arrivals),
            _ => None,
        }
    }

    /// Returns the time at which a read that gathers messages has to be tried again.
    pub fn gathering_end(&self) -> Option<Instant> {
        match self {
            Self::Waiting { awaited: Awaited::Names(gathering), .. } => gathering.end(),
            _ => None,
        }
    }

    /// Gives a waiting file empty content, because nothing came in time.
    pub fn answer_empty(&self) {
        if let Self::Waiting { answer, .. } = self {
            answer.lock().get_or_insert_default();
        }
    }
}

/// Finds the content of a waiting file. Returns true if there is any; [`Tree::read`] then returns it.
///
/// # Errors
/// Store errors as they come.
pub fn try_fill_answer(tree: &Tree, file: &OpenFile) -> Result<bool, Error> {
    let (awaited, opener, answer) = match file {
        OpenFile::Waiting { awaited, opener, answer } => (awaited, *opener, answer),
        OpenFile::Watch(arrivals) => return Ok(collect_arrivals(tree, arrivals)),
        _ => return Ok(true),
    };
    if answer.lock().is_some() {
        return Ok(true);
    }
    let found = match awaited {
        Awaited::Names(gathering) => gathering.take_names(tree).map(make_names_answer),
        Awaited::Message => tree.views.wait.claim_next(tree, opener)?,
        Awaited::Answer(question, opened) => claim_answer(tree, question, (opener, *opened))?,
    };
    let Some(found) = found else { return Ok(false) };
    *answer.lock() = Some(found);
    Ok(true)
}

/// Waits for a message on behalf of a reader; [`Tree::read`] then has the answer.
pub(super) fn await_mail(tree: &Tree, file: &OpenFile) -> Result<(), Error> {
    let until = |timeout| {
        wait_until(tree, timeout, || try_fill_answer(tree, file), || file.gathering_end())
    };
    if let OpenFile::Watch(_) = file {
        while !until(LONGEST_WAIT)? {}
    } else if !until(tree.settings.wait_timeout)? {
        file.answer_empty();
    }
    Ok(())
}

/// Drops the text of a file that was not printed. It marks nothing, and another reader gets its message.
pub(super) fn abandon_read(tree: &Tree, file: &OpenFile) {
    let OpenFile::Waiting { answer, .. } = file else { return };
    let mark = answer.lock().take().and_then(|answer| answer.mark);
    if let Some(mark) = mark {
        tree.views.wait.return_claim(tree, mark.message());
    }
}

/// Returns the names of the unread messages, oldest first.
fn unread_names(tree: &Tree) -> Vec<String> {
    tree.unread_files(usize::MAX).into_iter().map(|(_, name)| name).collect()
}

/// Waits until there is an unread message, at most `timeout`, and then for those that come with it. Returns the names
/// of the unread messages, oldest first.
pub fn wait_for_unread(tree: &Tree, timeout: Duration) -> Vec<String> {
    let gathering = UnreadGatherer::default();
    let mut names = None;
    let look = || {
        names = gathering.take_names(tree);
        Ok::<bool, Infallible>(names.is_some())
    };
    let Ok(_) = wait_until(tree, timeout, look, || gathering.end());
    names.unwrap_or_default()
}

/// Calls `found` after each change, and when a gathering ends, until it returns true or the time is over. A gathering
/// that has begun is ended first. Returns its last result.
pub(super) fn wait_until<E>(
    tree: &Tree,
    timeout: Duration,
    mut found: impl FnMut() -> Result<bool, E>,
    gathering_end: impl Fn() -> Option<Instant>,
) -> Result<bool, E> {
    let deadline = Instant::now() + timeout;
    loop {
        let seen = tree.index.change_signal().count();
        let found = found()?;
        let gathers = gathering_end().filter(|_| !found);
        if found || gathers.is_none() && Instant::now() >= deadline {
            return Ok(found);
        }
        tree.index.change_signal().wait(seen, gathers.unwrap_or(deadline));
    }
}

fn make_names_answer(names: Vec<String>) -> FileContent {
    let text = names.join("\n") + "\n";
    FileContent { bytes: text.into_bytes().into(), ..FileContent::default() }
}

/// Opens a `.watch`.
fn open_watch(tree: &Tree) -> WatchFeed {
    let tables = tree.index.read();
    let (upto, told) =
        (tables.messages.messages_so_far(), tables.messages.lists().unread().collect());
    WatchFeed(Mutex::with_level(
        LockLevel::File,
        WatchProgress { first_new: upto, reported: told, ready: Vec::new() },
    ))
}

/// Returns true if a `.watch` has names that it has not given yet.
fn collect_arrivals(tree: &Tree, arrivals: &WatchFeed) -> bool {
    let mut seen = arrivals.0.lock();
    let came = tree.inbox_files(|tables| {
        let is_new = |ix: &MsgIx| {
            let e = tables.messages.entry(*ix);
            // A program may have read it already.
            let came = !ix.is_among_first(seen.first_new) && e.is_read_here();
            (came || !e.is_read()) && !seen.reported.contains(ix)
        };
        tables.messages.lists().messages_to_me().filter(is_new).collect()
    });
    for (ix, name) in came {
        seen.reported.insert(ix);
        seen.ready.extend_from_slice(name.as_bytes());
        seen.ready.push(b'\n');
    }
    !seen.ready.is_empty()
}
