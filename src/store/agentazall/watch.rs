//! Which folders to watch, and which names in them can mean mail.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use super::place::{self, Folder};
use super::table::on_disk;
use super::{AgentAzall, date};
use crate::model::Timestamp;
use crate::store::place::TEMP_END;

/// Days whose folders are watched, newest first: mail arrives in today's, or in that of the day when
/// it was sent.
const DAYS: usize = 400;
/// Attachments' folders are watched this long after they last changed: the reference copies them
/// after the text, file by file.
const PARTS_MS: i64 = 10 * 60 * 1000;

impl AgentAzall {
    /// See [`Store::watched`](crate::store::Store::watched).
    pub(super) fn folders_to_watch(&self) -> Vec<PathBuf> {
        let mut out: Vec<PathBuf> =
            self.config_file.parent().map(Path::to_owned).into_iter().collect();
        // Of mailboxes that are not there yet, the nearest folder that is.
        let mut above = Some(self.mailboxes.as_path());
        while let Some(folder) = above.filter(|f| !f.is_dir()) {
            above = folder.parent();
        }
        out.extend(above.map(Path::to_owned));
        if place::is_real_dir(self.base()) {
            out.push(self.base().to_owned());
            for (day, folders) in self.layout.read().iter().rev().take(DAYS) {
                let day = self.base().join(day);
                out.extend(folders.iter().map(|folder| day.join(folder.as_str())));
                out.push(day);
            }
            let table = self.table();
            let now = Timestamp::now().millis();
            let young = table.rows().iter().filter(|row| {
                row.parts != 0 && now.saturating_sub(on_disk(&row.stamp).millis()) < PARTS_MS
            });
            out.extend(young.map(|row| place::parts_dir(&self.base().join(&*row.path))));
        }
        out.sort_unstable();
        out.dedup();
        out
    }

    /// See [`Store::concerns`](crate::store::Store::concerns).
    pub(super) fn is_concerned(&self, folder: &Path, name: &OsStr) -> bool {
        let path = folder.join(name);
        if path == self.config_file || self.base().starts_with(&path) {
            return true;
        }
        let text = name.to_str().unwrap_or_default();
        if folder == self.mailboxes {
            return self.waiting.read().contains(text);
        }
        let Ok(inside) = folder.strip_prefix(self.base()) else { return false };
        let depth = inside.components().count();
        match depth {
            0 => date::is_day(text),
            1 => Folder::from_name(text).is_some(),
            2 if place::is_text(text) => true,
            // The attachments of a message that is there; of one to come, its own arrival tells.
            2 if text.starts_with('.') || text.strip_suffix(".tmp").is_some() => false,
            2 => {
                let mut file = name.to_owned();
                file.push(".txt");
                std::fs::symlink_metadata(folder.join(file)).is_ok()
            }
            3 => !text.ends_with(TEMP_END),
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::Bed;
    use super::*;
    use crate::store::Store;

    #[test]
    fn folders_that_are_there_and_names_that_matter() {
        let bed = Bed::new();
        bed.letter("2026-03-11/inbox/a1.txt", "bob@x", "a1", "2026-03-11 10:00:00", "hi");
        let store = bed.scanned();
        let base = bed.base();
        let watched = store.watched();
        for folder in
            [bed.root(), base.clone(), base.join("2026-03-11"), base.join("2026-03-11/inbox")]
        {
            assert!(watched.contains(&folder), "{}", folder.display());
        }
        assert!(watched.iter().all(|f| f.is_dir()));
        let concerns =
            |folder: &str, name: &str| store.concerns(&base.join(folder), OsStr::new(name));
        assert!(
            concerns("", "2026-03-12") && !concerns("", ".seen_ids") && !concerns("", "skills")
        );
        assert!(concerns("2026-03-11", "sent") && !concerns("2026-03-11", "index.txt"));
        assert!(concerns("2026-03-11/inbox", "b.txt") && !concerns("2026-03-11/inbox", "b.tmp"));
        assert!(concerns("2026-03-11/inbox", "a1") && !concerns("2026-03-11/inbox", "b2"));
        assert!(store.concerns(&bed.root(), OsStr::new("config.json")));
        assert!(!store.concerns(&bed.root(), OsStr::new("other.json")));
        assert!(!store.concerns(base.parent().unwrap(), OsStr::new("carol@x")));
    }

    #[test]
    fn a_mailbox_that_is_not_there_yet_is_waited_for() {
        let bed = Bed::without_mailbox();
        let store = bed.scanned();
        assert_eq!(store.watched(), [bed.root()]);
        assert!(store.concerns(&bed.root(), OsStr::new("data")));
        std::fs::create_dir_all(bed.root().join("data/mailboxes")).unwrap();
        assert_eq!(store.watched(), [bed.root(), bed.root().join("data/mailboxes")]);
        assert!(store.concerns(&bed.root().join("data/mailboxes"), OsStr::new("me@x")));
    }
}
