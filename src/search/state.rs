//! The file of the index as this process has it open, and the messages that it lacks.

use std::collections::HashSet;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::catalog::WordCatalog;
use super::error::TableError;
use super::file::{SealState, WriterLock};
use super::filter::MessageFilter;
use super::table::WordTable;
use super::titles::list_titles;
use super::{SearchError, SearchIndex};
use crate::index::MsgIx;
use crate::model::locks::MutexGuard;
use crate::store::fs::Stamp;

/// The number of attempts before something that fails again and again is given up for a while.
pub(super) const FIRST_ATTEMPTS: usize = 3;
/// The most messages that a search indexes itself.
pub(super) const INDEXED_BY_SEARCH: usize = 1000;
/// The most bytes of their records.
const INDEXED_BY_SEARCH_BYTES: usize = 4 << 20;
/// The most bytes of records whose words are kept in memory.
const MEMORY_INDEX_BYTES: usize = 64 << 20;
/// The time after which a message that could not be read, or a file that could not be written, is tried again.
const RETRY: Duration = Duration::from_secs(10);

/// Adds messages to others, each once.
pub(super) fn merge_hits(found: &mut Vec<MsgIx>, others: Vec<MsgIx>) {
    if !others.is_empty() {
        found.extend(others);
        found.sort_unstable();
        found.dedup();
    }
}

/// An open file of the index.
#[derive(Debug)]
pub(super) struct OpenFileIndex {
    pub words: WordCatalog,
    /// The stamp of the file with this content.
    pub stamp: Stamp,
    /// True if the seal of the file was checked or written, and nothing was written since.
    pub is_sealed: bool,
    /// True if this process may write it.
    pub writes: bool,
}

/// The words of messages that the file lacks, in memory.
#[derive(Debug)]
struct MemoryIndex {
    words: WordCatalog,
    bytes: usize,
}

/// The part of the index that this process holds.
#[derive(Debug, Default)]
pub(super) struct SearchState {
    pub file: Option<OpenFileIndex>,
    in_memory: Option<MemoryIndex>,
    lock: Option<WriterLock>,
    /// The stamp of a file that is not used any more.
    distrusted: Option<Stamp>,
    /// Messages that could not be read, and the time when the first of them was tried.
    unreadable: HashSet<MsgIx>,
    unreadable_since: Option<Instant>,
    /// The generation of the index at which no message was missing.
    complete_at: Option<u64>,
    /// The reason why the file cannot be written, and the time when that was tried.
    fault: Option<(String, Instant)>,
}

impl SearchState {
    /// Returns true if a file or words in memory are there.
    pub fn is_open(&self) -> bool {
        self.file.is_some() || self.in_memory.is_some()
    }

    /// Returns true if words in memory are there.
    pub fn has_memory_index(&self) -> bool {
        self.in_memory.is_some()
    }

    /// Forgets the words in memory, which the file has now. A message that came since those of the file were listed is
    /// missing again.
    pub fn drop_memory_index(&mut self) {
        (self.in_memory, self.complete_at) = (None, None);
    }

    /// Returns the reason why the file cannot be written.
    pub fn fault_text(&self) -> Option<String> {
        self.fault.as_ref().map(|(text, _)| text.clone())
    }

    /// Records the reason why the file cannot be written, or that it can.
    pub fn set_fault(&mut self, fault: Option<String>) {
        self.fault = fault.map(|text| (text, Instant::now()));
    }

    /// Records messages that cannot be read now.
    pub fn note_unreadable(&mut self, messages: Vec<MsgIx>) {
        if !messages.is_empty() {
            self.unreadable_since.get_or_insert_with(Instant::now);
            self.unreadable.extend(messages);
        }
    }

    /// Closes everything, so that another process may write the file.
    pub fn close(&mut self) {
        *self = Self::default();
    }

    /// Stops using the file, and never uses it again as it is.
    pub fn distrust(&mut self, stamp: Option<Stamp>) {
        (self.file, self.complete_at) = (None, None);
        self.distrusted = stamp;
    }

    fn has(&self, ix: MsgIx, entry: &crate::index::IndexEntry) -> bool {
        self.file.as_ref().is_some_and(|file| file.words.documents.has(ix, entry))
            || self
                .in_memory
                .as_ref()
                .is_some_and(|unwritten| unwritten.words.documents.has(ix, entry))
    }
}

impl SearchIndex {
    /// Takes the right to write the file, if this process may have it.
    fn may_write_file(&self, state: &mut SearchState) -> bool {
        if !self.may_write || self.is_stopped.load(Ordering::Relaxed) {
            return false;
        }
        // A folder that was removed has taken the lock with it.
        state.lock.take_if(|lock| !self.file.is_locked_by(lock));
        if state.lock.is_none() {
            match self.file.try_lock() {
                Ok(lock) => state.lock = lock,
                Err(error) => state.set_fault(Some(self.describe_fault(&error.to_string()))),
            }
        }
        state.lock.is_some()
    }

    /// Returns the sentence about a file that cannot be written.
    pub(super) fn describe_fault(&self, error: &str) -> String {
        let path = crate::model::display_path(self.file.path());
        format!("the index of search cannot be written to {path}, so searches are slow: {error}")
    }

    /// Returns true if the builder can write the file now.
    pub(super) fn can_build(&self, state: &mut SearchState) -> bool {
        let failed = |(_, at): &(String, Instant)| at.elapsed() < RETRY;
        !state.fault.as_ref().is_some_and(failed) && self.may_write_file(state)
    }

    /// Opens the file, or opens it anew if somebody else changed it. A damaged file is not used, and removed if this
    /// process may write.
    pub(super) fn refresh_file(&self, state: &mut SearchState) {
        let stamp = self.file.stamp();
        if let Some(open) = &state.file {
            if stamp == Some(open.stamp) && self.file.check_types().is_ok() {
                return;
            }
            (state.file, state.complete_at) = (None, None);
        }
        let Some(stamp) = stamp else { return };
        if state.distrusted == Some(stamp) {
            return;
        }
        let writes = self.may_write_file(state);
        match self.load_file(stamp, writes) {
            Ok(open) => (state.file, state.complete_at) = (Some(open), None),
            Err(error) => self.handle_fault(state, &error),
        }
    }

    fn load_file(&self, stamp: Stamp, writes: bool) -> Result<OpenFileIndex, TableError> {
        self.file.check_types()?;
        let seal = self.file.check_seal()?;
        if seal == SealState::Broken {
            return Err(TableError::Damaged("its bytes are not those that were written".into()));
        }
        let table = WordTable::open_file(self.file.path(), writes)?;
        let mut words = WordCatalog::load(table, &self.index)?;
        words.mark_retitled(&self.index, &list_titles(&self.index));
        if writes && seal == SealState::Unsealed {
            words.check_pages()?;
        }
        if writes && words.is_mostly_dead() {
            return Err(TableError::Damaged("most of its messages are gone".into()));
        }
        Ok(OpenFileIndex { words, stamp, is_sealed: seal == SealState::Whole, writes })
    }

    /// Stops using a file after an error. A damaged one is removed by the process that writes it.
    pub(super) fn handle_fault(&self, state: &mut SearchState, error: &TableError) {
        tracing::warn!(%error, "the index of search is not used as it is");
        state.distrust(self.file.stamp());
        if !self.may_write_file(state) {
            return;
        }
        let removed = match error {
            TableError::Damaged(_) => self.file.remove().map_err(|e| e.to_string()),
            TableError::Unavailable(_) | TableError::NotBuilt => Err(error.to_string()),
        };
        if let Err(error) = removed {
            state.set_fault(Some(self.describe_fault(&error)));
        }
    }

    /// Stops using the file, because what it says is wrong.
    pub(super) fn distrust_file(&self, why: &str) {
        self.handle_fault(&mut self.state.lock(), &TableError::Damaged(why.to_owned()));
    }

    /// Returns the shown messages that neither the file nor the memory has as they are now.
    pub(super) fn list_missing(&self, state: &mut SearchState) -> Vec<MsgIx> {
        self.apply_changes(state);
        if state.unreadable_since.is_some_and(|since| since.elapsed() > RETRY) {
            (state.unreadable, state.unreadable_since) = (HashSet::new(), None);
            state.complete_at = None;
        }
        let tables = self.index.read();
        let generation = tables.generation();
        if state.complete_at == Some(generation) {
            return Vec::new();
        }
        if let Some(file) = &mut state.file {
            file.words.documents.resolve_absent(&tables);
        }
        let is_missing = |ix: &MsgIx| {
            !state.has(*ix, tables.messages.entry(*ix))
                && !state.unreadable.contains(ix)
                && !tables.messages.is_copy(*ix)
        };
        let missing: Vec<MsgIx> = tables.messages.live_messages().filter(is_missing).collect();
        if missing.is_empty() && state.is_open() {
            state.complete_at = Some(generation);
        }
        missing
    }

    /// Returns the shown messages that the file does not have as they are now.
    pub(super) fn list_unwritten(&self, state: &mut SearchState) -> Vec<MsgIx> {
        self.apply_changes(state);
        let tables = self.index.read();
        let documents = state.file.as_ref().map(|file| &file.words.documents);
        let is_missing = |ix: &MsgIx| {
            !documents.is_some_and(|of| of.has(*ix, tables.messages.entry(*ix)))
                && !state.unreadable.contains(ix)
                && !tables.messages.is_copy(*ix)
        };
        tables.messages.live_messages().filter(is_missing).collect()
    }

    /// Lets messages be missing whose text may have changed.
    fn apply_changes(&self, state: &mut SearchState) {
        let changed = std::mem::take(&mut *self.changed.lock());
        for ix in changed {
            state.complete_at = None;
            state.file.iter_mut().for_each(|file| file.words.documents.mark_changed(ix));
            state
                .in_memory
                .iter_mut()
                .for_each(|unwritten| unwritten.words.documents.mark_changed(ix));
        }
    }

    /// Returns true if missing messages are so few that a search indexes them itself.
    pub(super) fn can_index_now(&self, state: &SearchState, missing: &[MsgIx]) -> bool {
        let kept = state.in_memory.as_ref().map_or(0, |unwritten| unwritten.bytes);
        let limit = INDEXED_BY_SEARCH_BYTES.min(MEMORY_INDEX_BYTES.saturating_sub(kept));
        // The first index of a process that may write is made by the builder, which writes it.
        let is_first = !state.is_open() && self.may_write && state.fault.is_none();
        !is_first && missing.len() <= INDEXED_BY_SEARCH && self.bytes_of(missing) <= limit
    }

    /// Indexes missing messages in memory.
    pub(super) fn index_in_memory(
        &self,
        state: &mut SearchState,
        missing: &[MsgIx],
    ) -> Result<(), SearchError> {
        if missing.is_empty() {
            return Ok(());
        }
        let bytes = self.bytes_of(missing);
        if state.in_memory.is_none() {
            state.in_memory = Some(MemoryIndex { words: WordCatalog::in_memory()?, bytes: 0 });
        }
        let Some(unwritten) = &mut state.in_memory else { return Ok(()) };
        let unreadable =
            unwritten.words.add_messages(&self.index, self.bodies.as_ref(), missing)?;
        unwritten.bytes += bytes;
        state.note_unreadable(unreadable);
        Ok(())
    }

    /// Returns the messages of the file and of the memory that a search finds, or `None` if the file was found to be
    /// damaged.
    pub(super) fn find_known(
        &self,
        state: &mut MutexGuard<'_, SearchState>,
        filter: &MessageFilter<'_>,
        damaged: usize,
    ) -> Result<Option<Vec<MsgIx>>, SearchError> {
        let mut found = Vec::new();
        if let Some(file) = &state.file {
            match file.words.find_words(filter) {
                Ok(some) => found = some,
                Err(error) => {
                    self.handle_fault(state, &error);
                    if damaged >= FIRST_ATTEMPTS {
                        state.set_fault(Some(self.describe_fault(&error.to_string())));
                    }
                    return Ok(None);
                }
            }
        }
        if let Some(unwritten) = &state.in_memory {
            merge_hits(&mut found, unwritten.words.find_words(filter)?);
        }
        Ok(Some(found))
    }

    /// Sorts messages by the place of their records, in which they are read fastest.
    pub(super) fn sort_by_location(&self, messages: &mut [MsgIx]) {
        let tables = self.index.read();
        messages.sort_by_cached_key(|ix| {
            let entry = tables.messages.entry(*ix);
            let at = entry.location();
            (entry.store(), at.source, at.offset)
        });
    }

    /// Returns the number of messages from the first on whose records have at most so many bytes; at least one.
    pub(super) fn batch_len(&self, messages: &[MsgIx], bytes: usize) -> usize {
        let (tables, mut sum) = (self.index.read(), 0);
        let fits = |ix: &&MsgIx| {
            sum += tables.messages.entry(**ix).location().len as usize;
            sum <= bytes
        };
        messages.iter().take_while(fits).count().max(1).min(messages.len())
    }

    fn bytes_of(&self, messages: &[MsgIx]) -> usize {
        let tables = self.index.read();
        messages.iter().map(|ix| tables.messages.entry(*ix).location().len as usize).sum()
    }
}

#[cfg(all(test, feature = "search"))]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::index::testing::{Bed, at, message};
    use crate::search::{BodySource, MatchFinder, SearchSettings};

    /// Messages that have one text.
    struct SameBody;

    impl BodySource for SameBody {
        fn read_bodies(&self, messages: &[MsgIx], each: &mut dyn FnMut(MsgIx, &str, &str)) {
            for ix in messages {
                each(*ix, "", "a text");
            }
        }
    }

    fn open_search(bed: &Bed) -> SearchIndex {
        let settings = SearchSettings { file: bed.dir.path().join("search"), may_write: false };
        SearchIndex::new(Arc::new(bed.open()), Arc::new(SameBody), settings)
    }

    /// S942: a message that came while the builder wrote is in memory only. It is missing again when the memory is
    /// dropped.
    #[test]
    fn a_message_that_only_the_memory_has_is_missing_without_it() {
        let bed = Bed::new();
        bed.put(1, message("bob", "a", 1));
        let search = open_search(&bed);
        let mut state = SearchState::default();
        let missing = search.list_missing(&mut state);
        assert_eq!(missing.len(), 1);
        search.index_in_memory(&mut state, &missing).unwrap();
        assert!(search.list_missing(&mut state).is_empty());
        state.drop_memory_index();
        assert_eq!(search.list_missing(&mut state), missing);
    }

    /// S943: a hit without the words of the query is no fault of the file if the message would be indexed so again.
    #[test]
    fn a_hit_that_would_be_found_again_keeps_the_file() {
        let bed = Bed::new();
        bed.put(1, message("bob", "a", 1));
        let search = open_search(&bed);
        let ix = at(&search.index, "a");
        for (word, is_kept, false_hits) in [("text", true, 0), ("gone", false, 1)] {
            let query = word.parse().unwrap();
            let finder = MatchFinder::new(&query);
            assert_eq!(search.check_hit(&finder, &query, ix, ("", "shown")), is_kept, "{word}");
            assert_eq!(search.false_hits.load(Ordering::Relaxed), false_hits, "{word}");
        }
    }
}
