//! `notes/`, `remember/`, `who_am_i/` and `what_am_i_doing/` of all days as one folder each. Each name shows its newest
//! text that is not empty (docs/formats/agentazall.md, section 9).

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::FileType;

use super::letter::MAX_FILE;
use super::{AgentAzall, date, layout, names, new_files};
use crate::model::{Timestamp, sanitize_line};
use crate::store::atomic_file::write_atomic;
use crate::store::engine::files;
use crate::store::{Notebook, NotebookEntry, StoreError, confined, fs};

const FOLDERS: &[&str] = &["notes", "remember", "who_am_i", "what_am_i_doing"];

impl AgentAzall {
    /// Returns the folders of this name, newest day first.
    pub(super) fn list_note_folders(&self, folder: &str) -> Vec<PathBuf> {
        self.open_note_folders(folder).map(|(path, _)| path).collect()
    }

    fn open_note_folders(&self, folder: &str) -> impl Iterator<Item = (PathBuf, OwnedFd)> {
        let is_there = FOLDERS.contains(&folder) && layout::is_real_dir(self.mailbox_dir());
        let days = is_there.then(|| layout::list_days(self.mailbox_dir()).unwrap_or_default());
        days.into_iter().flatten().rev().filter_map(move |day| {
            let dir = confined::open_dir(self.mailbox_dir(), &[&day, folder]).ok()?;
            Some((self.mailbox_dir().join(day).join(folder), dir))
        })
    }

    /// Returns true if a file of this day and size stands for a text. If the text was removed, only a later file does.
    fn is_not_removed(&self, path: &Path, folder: &str, name: &str, size: u64) -> bool {
        let Some(removed) = self.format.state.removal_day(&format!("{folder}/{name}")) else {
            return true;
        };
        let day = path.parent().and_then(Path::file_name).and_then(OsStr::to_str);
        day.is_some_and(|day| day > &*removed || day == removed && size > 0)
    }

    /// Returns the current text of a name, and the open folder in which it is.
    fn find_current_text(&self, folder: &str, name: &str) -> Option<(OwnedFd, NotebookEntry)> {
        let mut empty = None;
        for (path, dir) in self.open_note_folders(folder).filter(|_| is_shown_text(name)) {
            let Ok((FileType::RegularFile, stamp)) = confined::stat(&dir, name) else { continue };
            let (name, size, modified) = (name.to_owned(), stamp.size, stamp.modified());
            if !self.is_not_removed(&path, folder, &name, size) {
                continue;
            }
            let found = (dir, NotebookEntry { name, size, modified });
            if size > 0 {
                return Some(found);
            }
            empty = empty.or(Some(found));
        }
        empty
    }
}

/// Returns true if a file in one of the folders is a text, not one of the reference's markers.
fn is_shown_text(name: &str) -> bool {
    let text = name.strip_suffix(".txt").is_some_and(|stem| !stem.is_empty());
    text && !name.starts_with('.') && names::is_attachment_name(name)
}

impl Notebook for AgentAzall {
    fn folders(&self) -> &'static [&'static str] {
        FOLDERS
    }

    fn list_entries(&self, folder: &str) -> Vec<NotebookEntry> {
        let mut notes: BTreeMap<String, NotebookEntry> = BTreeMap::new();
        for (path, dir) in self.open_note_folders(folder) {
            for name in
                files::list_names(&dir).unwrap_or_default().into_iter().flat_map(|(name, _)| name)
            {
                if !is_shown_text(&name) || notes.get(&name).is_some_and(|n| n.size > 0) {
                    continue;
                }
                let Ok((FileType::RegularFile, stamp)) = confined::stat(&dir, &name) else {
                    continue;
                };
                if !self.is_not_removed(&path, folder, &name, stamp.size) {
                    continue;
                }
                if stamp.size > 0 || !notes.contains_key(&name) {
                    let (size, modified) = (stamp.size, stamp.modified());
                    notes.insert(name.clone(), NotebookEntry { name, size, modified });
                }
            }
        }
        notes.into_values().collect()
    }

    fn find_entry(&self, folder: &str, name: &str) -> Option<NotebookEntry> {
        self.find_current_text(folder, name).map(|(_, entry)| entry)
    }

    fn read_entry(&self, folder: &str, name: &str) -> io::Result<Vec<u8>> {
        let (dir, _) = self.find_current_text(folder, name).ok_or(io::ErrorKind::NotFound)?;
        fs::read_limited(confined::open_file(&dir, name)?, MAX_FILE as u64)
    }

    fn check_name(&self, folder: &str, name: &str) -> Result<(), StoreError> {
        if !FOLDERS.contains(&folder) {
            let why = format!(
                "there is no folder {:?}; there are {}",
                sanitize_line(folder),
                FOLDERS.join(", ")
            );
            return Err(StoreError::Invalid(why));
        }
        // An existing text can be written, whatever its name.
        if self.find_current_text(folder, name).is_some() { Ok(()) } else { check_text_name(name) }
    }

    fn write_entry(&self, folder: &str, name: &str, text: &[u8]) -> Result<(), StoreError> {
        Notebook::check_name(self, folder, name)?;
        self.write_text(folder, name, text)
    }

    /// Returns true unless this process wrote the text: the reference writes no newline at the end.
    fn may_lack_newline(&self, folder: &str, name: &str) -> bool {
        !self.format.own_texts.lock().contains(&format!("{folder}/{name}"))
    }

    fn can_remove(&self) -> bool {
        true
    }

    /// Removes a text. It leaves an empty file of today, which the reference reads as no text.
    fn remove_entry(&self, folder: &str, name: &str) -> Result<(), StoreError> {
        let day = date::format_local_day(Timestamp::now(), self.zone());
        self.write_text(folder, name, b"")?;
        self.format.state.save_removed(&format!("{folder}/{name}"), &day)
    }
}

impl AgentAzall {
    /// Writes today's text of a name.
    fn write_text(&self, folder: &str, name: &str, text: &[u8]) -> Result<(), StoreError> {
        self.make_mailbox()?;
        let day = date::format_local_day(Timestamp::now(), self.zone());
        new_files::make_dirs_below(self.mailbox_dir(), &[&day, folder])?;
        let path = self.mailbox_dir().join(&day).join(folder).join(name);
        write_atomic(&path, text, 0o666).map_err(|e| StoreError::io(&path, e))?;
        self.format.own_texts.lock().insert(format!("{folder}/{name}"));
        Ok(())
    }
}

/// Refuses unusual names. The reference replaces other characters, so that two names could become one.
fn check_text_name(name: &str) -> Result<(), StoreError> {
    let word = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-' | '.');
    let problem = if !layout::is_text_name(name) || name.len() <= 4 {
        "it must end in .txt"
    } else if name.starts_with('.') {
        "it must not begin with '.'"
    } else if name.len() > 255 {
        "it is longer than 255 bytes"
    } else if !name.chars().all(word) {
        "it takes letters, digits, '_', '-' and '.'"
    } else {
        return Ok(());
    };
    let stem = name.trim_end_matches(".txt").trim_start_matches('.');
    let hint: String = stem.chars().take(60).map(|c| if word(c) { c } else { '_' }).collect();
    Err(StoreError::Invalid(format!(
        "{:?} cannot be the name of a text here: {problem}; try {hint}.txt",
        sanitize_line(name)
    )))
}

#[cfg(test)]
mod tests {
    use super::super::tests::Bed;
    use super::*;

    #[test]
    fn the_newest_text_that_is_not_empty_wins() {
        let bed = Bed::new();
        bed.put("2026-03-10/notes/a.txt", "old");
        bed.put("2026-03-11/notes/a.txt", "newer");
        bed.put("2026-03-12/notes/a.txt", "");
        bed.put("2026-03-12/notes/a.synced", "x");
        bed.put("2026-03-12/notes/a.txt.ftp_synced", "x");
        bed.put("2026-03-12/notes/b.txt", "");
        std::os::unix::fs::symlink("/etc/passwd", bed.base().join("2026-03-12/notes/c.txt"))
            .unwrap();
        let store = bed.store();
        let names: Vec<(String, u64)> =
            store.list_entries("notes").into_iter().map(|n| (n.name, n.size)).collect();
        assert_eq!(names, [("a.txt".to_owned(), 5), ("b.txt".to_owned(), 0)]);
        assert_eq!(Notebook::read_entry(&store, "notes", "a.txt").unwrap(), b"newer");
        assert!(Notebook::read_entry(&store, "notes", "c.txt").is_err());
        assert!(Notebook::read_entry(&store, "notes", "../notes/a.txt").is_err());
        assert!(Notebook::read_entry(&store, "inbox", "a.txt").is_err());
    }

    #[test]
    fn writing_makes_todays_file_and_leaves_the_old_one() {
        let bed = Bed::new();
        bed.put("2020-01-01/who_am_i/identity.txt", "old");
        let store = bed.store();
        store.write_entry("who_am_i", "identity.txt", b"new").unwrap();
        assert_eq!(Notebook::read_entry(&store, "who_am_i", "identity.txt").unwrap(), b"new");
        assert_eq!(bed.get("2020-01-01/who_am_i/identity.txt"), "old");
        let today = date::format_local_day(Timestamp::now(), store.zone());
        assert_eq!(bed.get(&format!("{today}/who_am_i/identity.txt")), "new");
    }

    #[test]
    fn odd_names_are_refused_with_a_better_one() {
        let bed = Bed::new();
        let store = bed.store();
        for (bad, hint) in
            [("a b.txt", "a_b.txt"), ("a", "a.txt"), (".x.txt", "x.txt"), ("../x.txt", "_x.txt")]
        {
            let e = store.write_entry("notes", bad, b"x").unwrap_err().to_string();
            assert!(e.contains(hint), "{e}");
            let e = Notebook::check_name(&store, "notes", bad).unwrap_err();
            assert!(matches!(e, StoreError::Invalid(_)), "{e}");
        }
        Notebook::check_name(&store, "notes", "new.txt").unwrap();
        assert!(Notebook::check_name(&store, "inbox", "new.txt").is_err());
        bed.put("2026-03-11/notes/old name.txt", "x");
        Notebook::check_name(&store, "notes", "old name.txt").unwrap();
        assert!(store.write_entry("inbox", "a.txt", b"x").is_err());
    }
}
