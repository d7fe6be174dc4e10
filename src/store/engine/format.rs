//! The part of a format that does not depend on what its sources are.

use std::path::{Path, PathBuf};

use super::Engine;
use crate::store::{Advice, Facets};

/// A format whose stores are of type `S`.
pub trait Format<S: Engine>: Send + Sync + Sized + 'static {
    /// Returns the facets of a store of the format.
    fn facets(store: &S) -> Facets<'_>;

    /// Notes that a path in the store has changed.
    fn note_change(_store: &S, _path: &Path) {}

    /// Returns a sentence if something that makes the folder a store is missing.
    fn describe_missing(_store: &S) -> Option<String> {
        None
    }

    /// Returns the lines of [`Store::health`](crate::store::Store::health).
    fn health(store: &S) -> Vec<String> {
        store.default_health()
    }

    /// Returns the lines of [`Store::remarks`](crate::store::Store::remarks).
    fn remarks(_store: &S) -> Vec<String> {
        Vec::new()
    }

    /// Returns the entries of [`Store::advice`](crate::store::Store::advice).
    fn advice(store: &S) -> Vec<Advice> {
        Self::describe_missing(store).map(Advice::warning).into_iter().collect()
    }

    /// Returns folders besides those of the sources in which a change can matter.
    fn extra_watched_folders(_store: &S) -> Vec<PathBuf> {
        Vec::new()
    }

    /// Returns true if a change of a path can matter that is no source and no folder of sources.
    fn is_relevant_path(_store: &S, _path: &Path) -> bool {
        false
    }
}
