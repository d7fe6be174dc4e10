//! The reasons why a search fails.

/// A reason why a search gives no result.
#[derive(Debug, thiserror::Error)]
pub enum SearchError {
    /// The program that asked does not wait any longer.
    #[error("the search was interrupted")]
    Interrupted,
    /// The table of words cannot be used.
    #[error(transparent)]
    Table(#[from] TableError),
}

/// A reason why a table of words cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TableError {
    /// This program has no tables of words.
    #[error("this msgfs was built without search")]
    NotBuilt,
    /// The content is not what was written.
    #[error("the index of search is damaged: {0}")]
    Damaged(String),
    /// The table cannot be read or written now.
    #[error("{0}")]
    Unavailable(String),
}
