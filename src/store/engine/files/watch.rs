//! Which folders tell of news.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use super::Files;
use super::format::Format;

/// At most this many folders with messages are watched, those with the newest first, and as many others,
/// those whose names come last; what changes in the rest is seen by a full scan.
const MAX_WATCHED: usize = 4096;

impl<F: Format> Files<F> {
    /// See [`Store::watched`](crate::store::Store::watched).
    pub(super) fn watched_folders(&self) -> Vec<PathBuf> {
        // Of a store that is not there yet, the nearest folder that is.
        let above = self.about.dir.ancestors().find(|folder| folder.is_dir());
        let mut out: Vec<PathBuf> = above.map(Path::to_owned).into_iter().collect();
        out.extend(F::watched_besides(self).into_iter().filter(|path| path.is_dir()));
        if above == Some(&self.about.dir) {
            out.extend(self.folders_by_age().into_iter().map(|path| self.about.dir.join(path)));
        }
        out.sort_unstable();
        out.dedup();
        out
    }

    /// The folders that were listed and tell of news.
    fn folders_by_age(&self) -> Vec<String> {
        let newest: HashMap<String, i64> = {
            let table = self.table.read();
            let path = |n: u32| Some(table.folders().get(n as usize)?.path.to_string());
            table.newest().into_iter().filter_map(|(n, time)| Some((path(n)?, time))).collect()
        };
        let listed = self.listed.read();
        let (mut dated, others): (Vec<&String>, Vec<&String>) =
            listed.iter().rev().partition(|path| newest.contains_key(*path));
        dated.sort_by_key(|path| std::cmp::Reverse(newest.get(*path)));
        let folders = dated.into_iter().take(MAX_WATCHED);
        folders.chain(others.into_iter().take(MAX_WATCHED)).cloned().collect()
    }

    /// Says that not every folder is watched, if so.
    pub fn unwatched_line(&self) -> Option<String> {
        let count = self.listed.read().len();
        (count > MAX_WATCHED).then(|| {
            format!(
                "there are more than {MAX_WATCHED} folders; what changes in the oldest is seen at the \
                 next mount"
            )
        })
    }
}
