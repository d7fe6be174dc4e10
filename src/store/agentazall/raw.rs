//! What `raw/<store>/` shows: day folders, message files and attachments, never keys, notes or state.

use std::fs::File;
use std::io;
use std::path::Path;

use super::place::{self, Folder, Place};
use super::table::{Table, on_disk};
use super::{AgentAzall, date, names};
use crate::model::Timestamp;
use crate::store::RawEntry;
use crate::store::fs::{self, Stamp};

/// A path below the mailbox that may be shown.
enum Shown<'a> {
    Root,
    Day(&'a str),
    Folder(&'a str, Folder),
    File,
    Parts(&'a str),
    Part,
}

fn classify(path: &str) -> Option<Shown<'_>> {
    if path.is_empty() {
        return Some(Shown::Root);
    }
    let pieces: Vec<&str> = path.split('/').collect();
    let (day, rest) = pieces.split_first()?;
    if !date::is_day(day) || rest.iter().any(|p| !usable(p)) {
        return None;
    }
    let folder = match rest {
        [] => return Some(Shown::Day(day)),
        [folder, ..] => Folder::from_name(folder)?,
    };
    match rest {
        [_] => Some(Shown::Folder(day, folder)),
        [_, name] if place::is_text(name) => Some(Shown::File),
        [_, _] => Some(Shown::Parts(path)),
        [_, _, _] => Some(Shown::Part),
        _ => None,
    }
}

fn usable(name: &str) -> bool {
    !name.is_empty() && name != "." && name != ".." && !name.contains('\0')
}

impl AgentAzall {
    /// See [`Store::raw_list`](crate::store::Store::raw_list).
    pub(super) fn list_raw(&self, path: &str) -> Option<Vec<RawEntry>> {
        let table = self.table();
        let mut out: Vec<RawEntry> = match classify(path)? {
            Shown::Root => self.raw_days(&table),
            Shown::Day(day) => self.raw_folders(day, &table)?,
            Shown::Folder(day, folder) => self.raw_files(day, folder, &table)?,
            Shown::Parts(path) => self.raw_parts(path, &table)?,
            Shown::File | Shown::Part => return None,
        };
        out.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        Some(out)
    }

    fn raw_days(&self, table: &Table) -> Vec<RawEntry> {
        if !place::is_real_dir(self.base()) {
            return Vec::new();
        }
        let days = place::days(self.base(), &mut |_| {}).unwrap_or_default();
        let has_folder = |day: &String| {
            Folder::ALL.iter().any(|f| place::is_real_dir(&self.base().join(day).join(f.as_str())))
        };
        let newest = newest_by(table, |path| path.split('/').next());
        days.into_iter()
            .filter(has_folder)
            .map(|day| folder_entry(newest.get(day.as_str()).copied(), day))
            .collect()
    }

    fn raw_folders(&self, day: &str, table: &Table) -> Option<Vec<RawEntry>> {
        let dir = self.base().join(day);
        if !place::is_real_dir(self.base()) || !place::is_real_dir(&dir) {
            return None;
        }
        let newest = newest_by(table, |path| path.rsplit_once('/').map(|(folder, _)| folder));
        let there = Folder::ALL.into_iter().filter(|f| place::is_real_dir(&dir.join(f.as_str())));
        let entry = |f: Folder| {
            let newest = newest.get(format!("{day}/{}", f.as_str()).as_str()).copied();
            folder_entry(newest, f.as_str().to_owned())
        };
        Some(there.map(entry).collect())
    }

    fn raw_files(&self, day: &str, folder: Folder, table: &Table) -> Option<Vec<RawEntry>> {
        let inside = format!("{day}/{}", folder.as_str());
        let dir = self.real_folder(&inside)?;
        let mut out = Vec::new();
        for entry in std::fs::read_dir(dir).ok()?.flatten() {
            let Ok(name) = entry.file_name().into_string() else { continue };
            let Ok(meta) = entry.metadata() else { continue };
            let stamp = Stamp::from(&meta);
            if meta.is_file() && place::is_text(&name) {
                let source = table.find(&format!("{inside}/{name}"));
                let known = source.and_then(|n| table.row(n)).filter(|r| r.state.head().is_some());
                let modified = known.map_or_else(|| on_disk(&stamp), super::table::Row::time);
                out.push(RawEntry { is_dir: false, size: stamp.size, modified, source, name });
            } else if meta.is_dir() {
                // A folder of attachments, if its message is there.
                let message = table.find(&format!("{inside}/{name}.txt"));
                if let Some(row) =
                    message.and_then(|n| table.row(n)).filter(|r| r.state.head().is_some())
                {
                    out.push(folder_entry(Some(row.time()), name));
                }
            }
        }
        Some(out)
    }

    fn raw_parts(&self, path: &str, table: &Table) -> Option<Vec<RawEntry>> {
        let message = table.find(&format!("{path}.txt"))?;
        let row = table.row(message).filter(|row| row.state.head().is_some())?;
        let (folder, stem) = path.rsplit_once('/')?;
        let dir = self.real_folder(folder)?.join(stem);
        if !place::is_real_dir(&dir) {
            return None;
        }
        let mut out = Vec::new();
        for entry in std::fs::read_dir(dir).ok()?.flatten() {
            let Ok(name) = entry.file_name().into_string() else { continue };
            let Ok(meta) = entry.metadata() else { continue };
            if meta.is_file() && is_part(&name) {
                let (size, modified) = (meta.len(), row.time());
                out.push(RawEntry { name, is_dir: false, size, modified, source: None });
            }
        }
        Some(out)
    }

    /// A folder of messages, unless it or one above it is a symbolic link.
    fn real_folder(&self, inside: &str) -> Option<std::path::PathBuf> {
        let (day, _) = inside.split_once('/')?;
        let dir = self.base().join(inside);
        let real = [self.base(), &self.base().join(day), &dir].into_iter().all(place::is_real_dir);
        real.then_some(dir)
    }

    /// See [`Store::raw_newest`](crate::store::Store::raw_newest).
    pub(super) fn newest_raw(&self, path: &str) -> Option<Timestamp> {
        let table = self.table();
        let start = match classify(path)? {
            Shown::Root => String::new(),
            Shown::Day(_) | Shown::Folder(..) => format!("{path}/"),
            Shown::Parts(_) => format!("{path}."),
            Shown::File | Shown::Part => return None,
        };
        let there = table.rows().iter().filter(|r| r.state != super::table::State::Gone);
        there.filter(|r| r.path.starts_with(&start)).map(super::table::Row::time).max()
    }

    /// See [`Store::raw_open`](crate::store::Store::raw_open).
    pub(super) fn open_raw(&self, path: &str) -> io::Result<File> {
        let gone = || io::Error::from(io::ErrorKind::NotFound);
        let pieces: Vec<&str> = path.split('/').collect();
        let [day, folder, rest @ ..] = pieces.as_slice() else { return Err(gone()) };
        let dir = self.real_folder(&format!("{day}/{folder}")).ok_or_else(gone)?;
        match (classify(path), rest) {
            (Some(Shown::File), [name]) => fs::open_regular(&dir.join(name)),
            (Some(Shown::Part), [stem, name]) if is_part(name) => {
                let folder = dir.join(stem);
                let message = dir.join(format!("{stem}.txt"));
                if !place::is_real_dir(&folder) || !Path::new(&message).exists() {
                    return Err(gone());
                }
                fs::open_regular(&folder.join(name))
            }
            _ => Err(gone()),
        }
    }
}

fn is_part(name: &str) -> bool {
    names::attachment_name(name).is_some_and(|n| n == name)
        && !name.ends_with(crate::store::place::TEMP_END)
}

fn folder_entry(newest: Option<Timestamp>, name: String) -> RawEntry {
    RawEntry { name, is_dir: true, size: 0, modified: newest.unwrap_or_default(), source: None }
}

/// The time of the newest file by a part of its path.
fn newest_by<'t>(
    table: &'t Table,
    part: impl Fn(&'t str) -> Option<&'t str>,
) -> std::collections::HashMap<&'t str, Timestamp> {
    let mut out = std::collections::HashMap::new();
    for row in table.rows().iter().filter(|r| r.state != super::table::State::Gone) {
        let Some(key) = part(&row.path).filter(|_| Place::parse(&row.path).is_some()) else {
            continue;
        };
        let newest = out.entry(key).or_insert_with(|| row.time());
        *newest = row.time().max(*newest);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::super::tests::Bed;
    use crate::store::Store;

    #[test]
    fn only_messages_and_their_attachments() {
        let bed = Bed::new();
        bed.letter("2026-03-11/inbox/a1.txt", "bob@x", "a1", "2026-03-11 10:00:00", "hi");
        bed.put("2026-03-11/inbox/a1/plan.txt", "plan");
        bed.put("2026-03-11/inbox/b1/x", "no message");
        bed.put("2026-03-11/inbox/half.tmp", "x");
        bed.put("2026-03-11/notes/secret.txt", "x");
        bed.put("2026-03-11/index.txt", "x");
        bed.put("2026-03-12/notes/secret.txt", "x");
        bed.put(".identity_key", "{}");
        let store = bed.scanned();
        let names = |path: &str| -> Option<Vec<String>> {
            Some(store.raw_list(path)?.into_iter().map(|e| e.name).collect())
        };
        assert_eq!(names("").unwrap(), ["2026-03-11"]);
        assert_eq!(names("2026-03-11").unwrap(), ["inbox"]);
        assert_eq!(names("2026-03-11/inbox").unwrap(), ["a1", "a1.txt"]);
        assert_eq!(names("2026-03-11/inbox/a1").unwrap(), ["plan.txt"]);
        for hidden in ["2026-03-11/notes", "2026-03-11/inbox/b1", "..", "2026-03-11/../x", "skills"]
        {
            assert_eq!(names(hidden), None, "{hidden}");
        }
        for open in ["2026-03-11/inbox/a1.txt", "2026-03-11/inbox/a1/plan.txt"] {
            assert!(store.raw_open(open).is_ok(), "{open}");
        }
        for closed in [
            ".identity_key",
            "2026-03-11/notes/secret.txt",
            "2026-03-11/index.txt",
            "2026-03-11/inbox/../../.identity_key",
            "2026-03-11/inbox/half.tmp",
            "2026-03-11/inbox/b1/x",
        ] {
            assert!(store.raw_open(closed).is_err(), "{closed}");
        }
        let inbox = store.raw_list("2026-03-11/inbox").unwrap();
        assert_eq!(inbox[1].source, Some(0));
        assert_eq!(store.raw_newest(""), Some(inbox[1].modified));
    }
}
