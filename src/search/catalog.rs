//! A table of words together with the messages that it has.

use std::collections::{HashMap, HashSet};

use super::BodySource;
use super::documents::{DocumentMap, SavedDocument, stamp_of};
use super::error::TableError;
use super::filter::MessageFilter;
use super::query::SearchQuery;
use super::table::WordTable;
use super::titles::{TitleMark, TitlePrints};
use crate::index::{Index, MsgIx};

/// Documents that are resolved under one lock of the index.
const RESOLVED_AT_ONCE: usize = 20_000;

/// A table of words and its messages.
#[derive(Debug)]
pub(super) struct WordCatalog {
    table: WordTable,
    pub documents: DocumentMap,
    /// The titles that its rows have.
    titles: TitlePrints,
}

impl WordCatalog {
    /// Makes an empty catalog in memory.
    ///
    /// # Errors
    /// If there is no memory.
    pub fn in_memory() -> Result<Self, TableError> {
        Ok(Self {
            table: WordTable::in_memory()?,
            documents: DocumentMap::default(),
            titles: TitlePrints::new(),
        })
    }

    /// Takes over a table of a file and finds its messages.
    ///
    /// # Errors
    /// If the table cannot be read.
    pub fn load(table: WordTable, index: &Index) -> Result<Self, TableError> {
        let (mut documents, mut added) = (DocumentMap::default(), 0);
        table.visit_documents(&mut |document| {
            documents.add_saved(document);
            added += 1;
            if added % RESOLVED_AT_ONCE == 0 {
                documents.resolve_absent(&index.read());
            }
        })?;
        documents.resolve_absent(&index.read());
        let titles = table.read_titles()?;
        Ok(Self { table, documents, titles })
    }

    /// Lets messages be missing whose title is another one than that of their rows.
    pub fn mark_retitled(&mut self, index: &Index, now: &[TitleMark]) {
        let other = now.iter().filter(|mark| self.is_other_title(mark));
        let retitled: HashSet<(usize, u32)> = other.map(|mark| mark.source).collect();
        if retitled.is_empty() {
            return;
        }
        let tables = index.read();
        for ix in tables.messages.live_messages() {
            let entry = tables.messages.entry(ix);
            if retitled.contains(&(entry.store(), entry.location().source)) {
                self.documents.mark_changed(ix);
            }
        }
    }

    fn is_other_title(&self, mark: &TitleMark) -> bool {
        self.titles.get(&mark.key) != Some(&mark.print)
    }

    /// Returns true if titles are others than those of the rows.
    pub fn has_other_titles(&self, now: &[TitleMark]) -> bool {
        now.iter().any(|mark| self.is_other_title(mark))
    }

    /// Records the titles that the rows have now.
    ///
    /// # Errors
    /// If the table cannot be written. Then nothing is recorded.
    pub fn save_titles(&mut self, now: &[TitleMark]) -> Result<(), TableError> {
        let other: Vec<TitleMark> =
            now.iter().filter(|mark| self.is_other_title(mark)).copied().collect();
        self.table.begin()?;
        if let Err(error) = self.table.insert_titles(&other).and_then(|()| self.table.commit()) {
            self.table.roll_back();
            return Err(error);
        }
        self.titles.extend(other.iter().map(|mark| (mark.key, mark.print)));
        Ok(())
    }

    /// Returns true if most rows stand for no message, so that a new table would be much smaller.
    pub fn is_mostly_dead(&self) -> bool {
        let rows = self.table.rows_so_far() as usize;
        let live = self.documents.live_rows();
        rows > live * 2 + 10_000
    }

    /// Adds messages in one transaction. Returns those that cannot be read now.
    ///
    /// # Errors
    /// If the table cannot be written. Then nothing was added.
    pub fn add_messages(
        &mut self,
        index: &Index,
        bodies: &dyn BodySource,
        messages: &[MsgIx],
    ) -> Result<Vec<MsgIx>, TableError> {
        self.table.begin()?;
        let added = self.insert_messages(index, bodies, messages);
        match added.and_then(|added| self.table.commit().map(|()| added)) {
            Ok(added) => {
                for (ix, document) in &added {
                    self.documents.insert(document.row, *ix, document.stamp);
                }
                let known: HashMap<_, _> = added.into_iter().collect();
                Ok(messages.iter().copied().filter(|ix| !known.contains_key(ix)).collect())
            }
            Err(error) => {
                self.table.roll_back();
                Err(error)
            }
        }
    }

    fn insert_messages(
        &mut self,
        index: &Index,
        bodies: &dyn BodySource,
        messages: &[MsgIx],
    ) -> Result<Vec<(MsgIx, SavedDocument)>, TableError> {
        // The stamps are taken before the texts are read. A change meanwhile makes the message missing again.
        let states: HashMap<MsgIx, (u64, u32)> = {
            let tables = index.read();
            let state = |ix: &MsgIx| {
                let entry = tables.messages.entry(*ix);
                (*ix, (entry.identity(), stamp_of(entry)))
            };
            messages.iter().map(state).collect()
        };
        let (mut added, mut fault) = (Vec::with_capacity(messages.len()), None);
        let Self { table, documents, .. } = self;
        bodies.read_bodies(messages, &mut |ix, subject, body| {
            let Some((identity, stamp)) = states.get(&ix).filter(|_| fault.is_none()) else {
                return;
            };
            let row = table.rows_so_far() + 1;
            let document = SavedDocument { row, identity: *identity, stamp: *stamp };
            let removed = documents.row_of(ix).map_or(Ok(()), |row| table.remove(row));
            match removed.and_then(|()| table.insert(&document, subject, body)) {
                Ok(()) => added.push((ix, document)),
                Err(error) => fault = Some(error),
            }
        });
        fault.map_or(Ok(added), Err)
    }

    /// Returns the messages that fit a filter and whose words fit a query, if their records are still as they were
    /// inserted.
    ///
    /// # Errors
    /// If the table cannot be read.
    pub fn find_words(&self, filter: &MessageFilter<'_>) -> Result<Vec<MsgIx>, TableError> {
        let rows = self.table.find_rows(filter.query)?;
        let tables = filter.index.read();
        // One look at each entry decides everything: a query may match hundreds of thousands.
        let is_hit = |ix: &MsgIx| {
            let entry = tables.messages.entry(*ix);
            self.documents.has(*ix, entry) && filter.fits(&tables, *ix, entry)
        };
        let found = rows.into_iter().filter_map(|row| self.documents.message_of(row));
        Ok(found.filter(is_hit).collect())
    }

    /// Returns true if the words of any message fit a query.
    ///
    /// # Errors
    /// If the table cannot be read.
    pub fn has_match(&self, query: &SearchQuery) -> Result<bool, TableError> {
        Ok(!self.table.find_rows(query)?.is_empty())
    }

    /// Examines the structure of every page of the table.
    ///
    /// # Errors
    /// If one is damaged.
    pub fn check_pages(&self) -> Result<(), TableError> {
        self.table.check_pages()
    }
}
