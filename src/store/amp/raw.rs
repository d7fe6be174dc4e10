//! `raw/<store>/`: the message files and attachments of my own folder, byte for byte.

use std::collections::HashMap;
use std::fs::File;
use std::io;

use rustix::fs::{Dir, FileType};

use super::Amp;
use super::files::stem_of;
use super::table::{Flags, Mailbox, Table};
use crate::model::Timestamp;
use crate::store::RawEntry;
use crate::store::below;

/// A path below the agent's folder, if it is one that is shown: `messages/<box>[/<folder>][/<file>]`
/// or `attachments[/<id>][/<file>]`.
fn parts(path: &str) -> Option<Vec<&str>> {
    let parts: Vec<&str> = path.split('/').filter(|_| !path.is_empty()).collect();
    let shown = match parts.as_slice() {
        [] | ["messages"] => true,
        ["messages", mailbox, rest @ ..] => {
            Mailbox::ALL.iter().any(|m| m.folder() == *mailbox) && rest.len() <= 2
        }
        ["attachments", rest @ ..] => rest.len() <= 2,
        _ => false,
    };
    let sound = |part: &&str| below::is_component(part) && !part.starts_with('.');
    (shown && parts.iter().all(sound)).then_some(parts)
}

/// Whether a name in a shown folder is shown.
fn is_shown(folder: &[&str], name: &str, kind: FileType) -> bool {
    if name.starts_with('.') {
        return false;
    }
    let file = kind == FileType::RegularFile;
    let dir = kind == FileType::Directory;
    match folder {
        [] => dir && matches!(name, "messages" | "attachments"),
        ["messages"] => dir && Mailbox::ALL.iter().any(|m| m.folder() == name),
        ["messages", _] => dir && stem_of(name).is_none() || file && stem_of(name).is_some(),
        ["messages", ..] => file && stem_of(name).is_some(),
        ["attachments"] => dir,
        ["attachments", _] => file,
        _ => false,
    }
}

/// The number of the folder of the table that a shown folder is.
fn folder_number(table: &Table, parts: &[&str]) -> Option<u32> {
    let (mailbox, name) = match parts {
        ["messages", mailbox] => (*mailbox, ""),
        ["messages", mailbox, name] => (*mailbox, *name),
        _ => return None,
    };
    let mailbox = Mailbox::ALL.into_iter().find(|m| m.folder() == mailbox)?;
    table.find_folder(mailbox, name)
}

impl Amp {
    pub(super) fn list_raw(&self, folder: &str) -> Option<Vec<RawEntry>> {
        let parts = parts(folder)?;
        let dir = below::open_dir(&self.files.dir, &parts).ok()?;
        let mut found = Vec::new();
        for entry in Dir::read_from(&dir).ok()?.flatten() {
            let Ok(name) = entry.file_name().to_str() else { continue };
            if let Ok((kind, stamp)) = below::look(&dir, name)
                && is_shown(&parts, name, kind)
            {
                found.push((name.to_owned(), kind == FileType::Directory, stamp));
            }
        }
        found.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        let table = self.files.table.read();
        let number = folder_number(&table, &parts);
        let newest = newest(&table);
        let entries = found.into_iter().map(|(name, is_dir, stamp)| {
            let known = number.zip(stem_of(&name)).and_then(|(n, stem)| table.find(n, stem));
            let on_disk = Timestamp::from_millis(
                i64::try_from(stamp.mtime.div_euclid(1_000_000)).unwrap_or_default(),
            );
            // The time of a message is the same on every machine and survives marks.
            let time = if is_dir {
                let mut path = parts.clone();
                path.push(&name);
                newest_below(&table, &newest, &path)
            } else {
                known.and_then(|n| table.get(n)).map(|f| f.time)
            };
            RawEntry {
                is_dir,
                size: if is_dir { 0 } else { stamp.size },
                modified: time.map_or(on_disk, Timestamp::from_millis),
                source: known.filter(|_| !is_dir),
                name,
            }
        });
        Some(entries.collect())
    }

    pub(super) fn newest_raw(&self, folder: &str) -> Option<Timestamp> {
        let parts = parts(folder)?;
        if let ["attachments", ..] = parts[..] {
            return self.list_raw(folder)?.iter().map(|e| e.modified).max();
        }
        let table = self.files.table.read();
        newest_below(&table, &newest(&table), &parts).map(Timestamp::from_millis)
    }

    pub(super) fn open_raw(&self, path: &str) -> io::Result<File> {
        let missing = || io::Error::from(io::ErrorKind::NotFound);
        let parts = parts(path).ok_or_else(missing)?;
        let (name, folder) = parts.split_last().ok_or_else(missing)?;
        if !is_shown(folder, name, FileType::RegularFile) {
            return Err(missing());
        }
        below::open_below(&self.files.dir, &parts)
    }
}

/// The time of the newest message of every folder.
fn newest(table: &Table) -> HashMap<u32, i64> {
    let mut out: HashMap<u32, i64> = HashMap::new();
    for file in table.files.iter().filter(|f| !f.flags.has(Flags::GONE)) {
        let newest = out.entry(file.folder).or_insert(file.time);
        *newest = file.time.max(*newest);
    }
    out
}

/// The time of the newest message in a shown folder and those below it.
fn newest_below(table: &Table, newest: &HashMap<u32, i64>, parts: &[&str]) -> Option<i64> {
    let path = parts.join("/");
    let below = |own: &str| {
        path.is_empty()
            || own.strip_prefix(&path).is_some_and(|r| r.is_empty() || r.starts_with('/'))
    };
    (0u32..)
        .zip(&table.folders)
        .filter(|(_, f)| below(&f.path()))
        .filter_map(|(n, _)| newest.get(&n).copied())
        .max()
}
