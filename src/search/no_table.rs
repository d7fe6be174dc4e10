//! Stands in place of `table.rs` where msgfs is built without search.

use std::path::Path;

use super::documents::SavedDocument;
use super::error::TableError;
use super::query::SearchQuery;
use super::titles::{TitleMark, TitlePrints};

/// A table of words that nobody can make.
#[derive(Debug)]
pub(super) enum WordTable {}

impl WordTable {
    /// Fails, because msgfs was built without search.
    pub fn in_memory() -> Result<Self, TableError> {
        Err(TableError::NotBuilt)
    }

    /// Fails, because msgfs was built without search.
    pub fn open_file(_: &Path, _writes: bool) -> Result<Self, TableError> {
        Err(TableError::NotBuilt)
    }

    /// Examines the structure of every page.
    pub fn check_pages(&self) -> Result<(), TableError> {
        match *self {}
    }

    /// Returns the number of rows that were ever inserted.
    pub fn rows_so_far(&self) -> u32 {
        match *self {}
    }

    /// Begins a transaction.
    pub fn begin(&mut self) -> Result<(), TableError> {
        match *self {}
    }

    /// Inserts a message as the next row.
    pub fn insert(&mut self, _: &SavedDocument, _: &str, _: &str) -> Result<(), TableError> {
        match *self {}
    }

    /// Returns the saved titles.
    pub fn read_titles(&self) -> Result<TitlePrints, TableError> {
        match *self {}
    }

    /// Saves titles in the place of those of their sources.
    pub fn insert_titles(&self, _: &[TitleMark]) -> Result<(), TableError> {
        match *self {}
    }

    /// Removes a row from the documents.
    pub fn remove(&mut self, _row: u32) -> Result<(), TableError> {
        match *self {}
    }

    /// Commits the transaction.
    pub fn commit(&mut self) -> Result<(), TableError> {
        match *self {}
    }

    /// Forgets what the transaction changed.
    pub fn roll_back(&mut self) {
        match *self {}
    }

    /// Calls the function with every document, in the order of rows.
    pub fn visit_documents(&self, _: &mut dyn FnMut(SavedDocument)) -> Result<(), TableError> {
        match *self {}
    }

    /// Returns the rows whose text a query matches, in their order.
    pub fn find_rows(&self, _: &SearchQuery) -> Result<Vec<u32>, TableError> {
        match *self {}
    }
}
