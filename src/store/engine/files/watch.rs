//! The folders in which changes matter.

use std::path::{Path, PathBuf};

use super::FileStore;
use super::format::FileFormat;

/// The number of folders with messages that are watched, those with the newest messages first. The same number of
/// other folders is watched, those with the last names. A full scan finds changes in the rest.
const MAX_WATCHED: usize = 4096;

impl<F: FileFormat> FileStore<F> {
    /// Returns the folders to watch; see [`Store::folders_to_watch`](crate::store::Store::folders_to_watch).
    pub(super) fn watched_folders(&self) -> Vec<PathBuf> {
        // For a store that is not there yet, this is the nearest folder that is.
        let above = self.properties.dir.ancestors().find(|folder| folder.is_dir());
        let mut out: Vec<PathBuf> = above.map(Path::to_owned).into_iter().collect();
        out.extend(F::extra_watched_folders(self).into_iter().filter(|path| path.is_dir()));
        if above == Some(&self.properties.dir) {
            out.extend(
                self.folders_by_age().into_iter().map(|path| self.properties.dir.join(path)),
            );
        }
        out.sort_unstable();
        out.dedup();
        out
    }

    /// Returns the listed folders in which changes matter.
    fn folders_by_age(&self) -> Vec<String> {
        let table = self.table.read();
        let newest = table.newest_by_folder();
        let listed = table.listed_folders().map(|(n, folder)| (newest.get(&n), &*folder.path));
        let (mut dated, mut others): (Vec<_>, Vec<_>) =
            listed.partition(|(time, _)| time.is_some());
        for folders in [&mut dated, &mut others] {
            folders.sort_unstable_by(|a, b| b.cmp(a));
            folders.truncate(MAX_WATCHED);
        }
        dated.into_iter().chain(others).map(|(_, path)| path.to_owned()).collect()
    }

    /// Returns a line if not every folder is watched.
    pub fn unwatched_line(&self) -> Option<String> {
        let count = self.table.read().listed_folders().count();
        (count > MAX_WATCHED).then(|| {
            format!(
                "there are more than {MAX_WATCHED} folders; changes in the oldest folders are \
                 seen at the next mount"
            )
        })
    }
}
