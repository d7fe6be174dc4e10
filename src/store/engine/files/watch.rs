//! The folders in which changes matter.

use super::FileStore;
use super::format::FileFormat;

/// The number of folders with messages that are watched, those with the newest messages first. The same number of
/// other folders is watched, those with the last names. A full scan finds changes in the rest.
const MAX_WATCHED: usize = 4096;

impl<F: FileFormat> FileStore<F> {
    /// Returns the listed folders in which changes matter.
    pub(super) fn folders_by_age(&self) -> Vec<String> {
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
