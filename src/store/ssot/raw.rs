//! `raw/<store>/`: the message files and their signatures, byte for byte.

use std::fs::File;
use std::io;

use super::Ssot;
use super::folder::{self, MESSAGES};
use super::scan::on_disk;
use crate::model::Timestamp;
use crate::store::RawEntry;
use crate::store::below;

/// A path that is shown: `messages[/<folder>[/<file>]]` or `messages/<file>`.
fn parts(path: &str) -> Option<Vec<&str>> {
    let parts: Vec<&str> = path.split('/').filter(|_| !path.is_empty()).collect();
    let sound = |part: &&str| below::is_component(part) && !part.starts_with('.');
    let shown = matches!(parts.as_slice(), [] | [MESSAGES] | [MESSAGES, _] | [MESSAGES, _, _]);
    (shown && parts.iter().all(sound)).then_some(parts)
}

impl Ssot {
    pub(super) fn list_raw(&self, path: &str) -> Option<Vec<RawEntry>> {
        let parts = parts(path)?;
        if parts.is_empty() {
            below::open_dir(&self.dir, &[MESSAGES]).ok()?;
            let modified = self.newest(None).unwrap_or_default();
            let (name, is_dir) = (MESSAGES.to_owned(), true);
            return Some(vec![RawEntry { name, is_dir, size: 0, modified, source: None }]);
        }
        below::open_dir(&self.dir, &parts).ok()?;
        let listing = folder::list(&self.dir, &parts).ok()?;
        let within = parts.get(1).copied().unwrap_or_default();
        let table = self.table.read();
        let known = table.files_in(within);
        let mut out: Vec<RawEntry> = Vec::new();
        for (name, stamp) in listing.files.into_iter().filter(|(name, _)| folder::is_ours(name)) {
            let stem = name.rsplit_once('.').map_or(&*name, |(stem, _)| stem);
            let source = known.get(stem).copied();
            // The time of a message is the same on every machine.
            let message = source.and_then(|n| table.get(n)).filter(|f| f.is_message());
            let modified =
                message.map_or(on_disk(&stamp), |f| Timestamp::from_millis(f.facts.time));
            let source = source.filter(|_| folder::stem(&name).is_some());
            out.push(RawEntry { name, is_dir: false, size: stamp.size, modified, source });
        }
        drop(known);
        drop(table);
        if parts.len() == 1 {
            let entry = |name: String| {
                let modified = self.newest(Some(&name)).unwrap_or_default();
                RawEntry { name, is_dir: true, size: 0, modified, source: None }
            };
            out.extend(listing.folders.into_iter().map(entry));
        }
        out.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        Some(out)
    }

    /// The time of the newest message in a folder below `messages/`, or in all of them.
    fn newest(&self, folder: Option<&str>) -> Option<Timestamp> {
        let table = self.table.read();
        let within = match folder {
            Some(folder) => table.files_in(folder).into_values().collect(),
            None => (0..table.files.len() as u32).collect::<Vec<_>>(),
        };
        let times = within.into_iter().filter_map(|n| table.get(n)).filter(|f| f.is_message());
        times.map(|f| Timestamp::from_millis(f.facts.time)).max()
    }

    pub(super) fn open_raw(&self, path: &str) -> io::Result<File> {
        let missing = || io::Error::from(io::ErrorKind::NotFound);
        let parts = parts(path).ok_or_else(missing)?;
        let name = parts.last().filter(|name| parts.len() > 1 && folder::is_ours(name));
        name.ok_or_else(missing)?;
        below::open_below(&self.dir, &parts)
    }
}
