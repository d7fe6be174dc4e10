//! Which folders tell of news, and which names in them can mean any.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use rustix::fs::FileType;

use super::Files;
use super::format::{Format, What};
use crate::store::fs;

/// At most this many folders with messages are watched, those with the newest first, and as many others,
/// those whose names come last; what changes in the rest is seen by a full scan.
const MAX_WATCHED: usize = 4096;

impl<F: Format> Files<F> {
    /// See [`Store::watched`](crate::store::Store::watched).
    pub fn watched(&self) -> Vec<PathBuf> {
        // Of a store that is not there yet, the nearest folder that is.
        let above = self.dir.ancestors().find(|folder| folder.is_dir());
        let mut out: Vec<PathBuf> = above.map(Path::to_owned).into_iter().collect();
        out.extend(self.format.watched_besides(&self.dir).into_iter().filter(|path| path.is_dir()));
        if above == Some(&self.dir) {
            out.extend(self.folders_by_age().into_iter().map(|path| self.dir.join(path)));
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

    /// Whether something was ever read of the store, so that its folder is missed.
    pub fn away_line(&self) -> Option<String> {
        let read = !self.table.read().is_empty();
        fs::away_line(&self.dir).filter(|_| read)
    }

    /// See [`Store::concerns`](crate::store::Store::concerns).
    pub fn concerns(&self, folder: &Path, name: &OsStr) -> bool {
        let path = folder.join(name);
        if self.dir.starts_with(&path) {
            return true;
        }
        let Ok(inside) = path.strip_prefix(&self.dir) else {
            return self.format.concerns_besides(&path);
        };
        let parts: Option<Vec<&str>> = inside.iter().map(OsStr::to_str).collect();
        let Some(parts) = parts else { return false };
        match self.format.what(&parts, FileType::Unknown) {
            What::Folder | What::Message | What::Beside(_) | What::Group(_) | What::Around => true,
            What::Strange(_) | What::Nothing => false,
        }
    }
}
