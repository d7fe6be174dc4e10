//! `msgfs check`: every message file of the agent against the rules of the format.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{Dir, FileType};

use super::envelope::{self, Stored};
use super::facts::{self, facts};
use super::home::Roster;
use super::limits::{FILE_BYTES, over_limit};
use super::parts::pieces;
use super::table::Mailbox;
use super::time::parse_time;
use super::{address, arrival::Arrival, files::stem_of};
use crate::model::{Claim, Timestamp, one_line};
use crate::store::below;
use crate::store::digest::Digests;
use crate::store::fs::Stamp;
use crate::store::{StoreError, Violation};

struct Checker<'a> {
    dir: &'a Path,
    roster: &'a Roster,
    digests: &'a Digests,
    verify: &'a dyn Fn(&Claim) -> Option<String>,
    report: &'a mut dyn FnMut(Violation),
    seen: Vec<Seen>,
}

/// A message, to be compared with the others once all are known.
struct Seen {
    arrival: Arrival,
    /// Path in the store.
    path: String,
    id: String,
    content: u64,
    signed: bool,
}

/// Reports each violation, file by file.
pub(super) fn check(
    dir: &Path,
    roster: &Roster,
    digests: &Digests,
    verify: &dyn Fn(&Claim) -> Option<String>,
    report: &mut dyn FnMut(Violation),
) -> Result<(), StoreError> {
    below::open_dir(dir, &[]).map_err(|e| StoreError::io(dir, e))?;
    let mut checker = Checker { dir, roster, digests, verify, report, seen: Vec::new() };
    for mailbox in Mailbox::ALL {
        let top = ["messages", mailbox.folder()];
        let Ok(folder) = below::open_dir(dir, &top) else { continue };
        for (name, kind) in checker.entries(&folder, &top) {
            if stem_of(&name).is_some() {
                checker.file(&folder, &top, &name, kind, mailbox);
            } else if kind == FileType::Directory {
                checker.folder(&["messages", mailbox.folder(), &name], mailbox);
            } else {
                checker.say(&path_of(&top, &name), "file", "is no message and no folder".into());
            }
        }
    }
    checker.twice();
    Ok(())
}

fn path_of(parts: &[&str], name: &str) -> String {
    format!("{}/{name}", parts.join("/"))
}

impl Checker<'_> {
    fn say(&mut self, file: &str, rule: &'static str, detail: String) {
        (self.report)(Violation { file: file.to_owned(), line: 0, rule, detail });
    }

    /// Names that are not hidden, sorted.
    fn entries(&mut self, folder: &OwnedFd, parts: &[&str]) -> Vec<(String, FileType)> {
        let mut out = Vec::new();
        let entries = match Dir::read_from(folder) {
            Ok(entries) => entries,
            Err(e) => {
                self.say(&parts.join("/"), "file", format!("cannot be listed: {e}"));
                return out;
            }
        };
        for entry in entries.flatten() {
            match entry.file_name().to_str() {
                Ok(name) if name.starts_with('.') => {}
                Ok(name) => {
                    let kind = below::look(folder, name).map_or(FileType::Unknown, |(k, _)| k);
                    out.push((name.to_owned(), kind));
                }
                Err(_) => {
                    let shown = entry.file_name().to_string_lossy().into_owned();
                    self.say(&path_of(parts, &shown), "name", "the name is not UTF-8".into());
                }
            }
        }
        out.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        out
    }

    fn folder(&mut self, parts: &[&str], mailbox: Mailbox) {
        let folder = match below::open_dir(self.dir, parts) {
            Ok(folder) => folder,
            Err(e) => return self.say(&parts.join("/"), "file", format!("cannot be opened: {e}")),
        };
        for (name, kind) in self.entries(&folder, parts) {
            if stem_of(&name).is_some() {
                self.file(&folder, parts, &name, kind, mailbox);
            } else {
                let what = below::describe_type(kind);
                self.say(&path_of(parts, &name), "file", format!("is {what}, not a message file"));
            }
        }
    }

    fn file(
        &mut self,
        folder: &OwnedFd,
        parts: &[&str],
        name: &str,
        kind: FileType,
        mailbox: Mailbox,
    ) {
        let path = path_of(parts, name);
        if kind != FileType::RegularFile {
            let what = below::describe_type(kind);
            return self.say(&path, "file", format!("is {what}, not a message file"));
        }
        let read = below::open_file(folder, name)
            .and_then(|file| below::read_whole(&file, FILE_BYTES + 1));
        let (stamp, bytes) = match read {
            Ok(read) => read,
            Err(e) => return self.say(&path, "file", format!("cannot be read: {e}")),
        };
        let stored = match envelope::parse(&bytes) {
            Ok(stored) => stored,
            Err(e) => return self.say(&path, "schema", one_line(&e.to_string()).into_owned()),
        };
        let facts = facts(&stored, &stamp, Timestamp::now());
        self.members(&path, parts, name, &stored, mailbox);
        let admitted = facts::admit(&stored, &facts, mailbox, self.roster);
        if admitted.is_ok() {
            self.remember(&path, &stored, &facts, &stamp, mailbox);
        }
        match admitted {
            Err(why) => self.say(&path, "refused", why),
            Ok(None) => self.say(&path, "unsigned", "the message is not signed".into()),
            Ok(Some(claim)) => {
                if let Some(wrong) = (self.verify)(&claim) {
                    self.say(&path, "signature", wrong);
                }
            }
        }
        self.attachments(&path, &stored);
    }

    fn members(
        &mut self,
        path: &str,
        parts: &[&str],
        name: &str,
        stored: &Stored<'_>,
        mailbox: Mailbox,
    ) {
        if stem_of(name) != Some(&*stored.id) {
            let id = one_line(&stored.id).into_owned();
            self.say(path, "name", format!("the file is not named after its id {id}"));
        }
        let other = if mailbox == Mailbox::Inbox { &stored.from } else { &stored.to };
        let folder = address::folder(other);
        if let [_, _, own] = parts
            && !own.eq_ignore_ascii_case(&folder)
        {
            let other = one_line(other).into_owned();
            self.say(path, "folder", format!("the folder of {other} is {folder}"));
        }
        if stored.timestamp.as_deref().and_then(parse_time).is_none() {
            self.say(path, "timestamp", "envelope.timestamp is not a time".into());
        }
        if stored.subject.as_deref().is_none_or(str::is_empty) {
            self.say(path, "subject", "envelope.subject is empty".into());
        }
        if over_limit(stored) {
            self.say(path, "limit", "the message is larger than the format allows".into());
        }
    }

    fn attachments(&mut self, path: &str, stored: &Stored<'_>) {
        for piece in pieces(stored, self.dir, self.roster, self.digests) {
            if let Some(why) = piece.shown.withheld {
                let name = one_line(&piece.shown.name).into_owned();
                self.say(path, "attachment", format!("{name} ({why})"));
            }
        }
    }

    fn remember(
        &mut self,
        path: &str,
        stored: &Stored<'_>,
        facts: &facts::Facts,
        stamp: &Stamp,
        mailbox: Mailbox,
    ) {
        let (received, written) = (stored.received_at.as_deref(), stored.timestamp.as_deref());
        self.seen.push(Seen {
            arrival: Arrival::new(received, written, stamp, mailbox),
            path: path.to_owned(),
            id: stored.id.to_string(),
            content: facts.content,
            signed: facts.signed,
        });
    }

    /// Ids and signed bytes that are there twice, in the order in which messages came: what the mount
    /// takes for the first is the first here too.
    fn twice(&mut self) {
        let mut seen = std::mem::take(&mut self.seen);
        let place = |path: &str| -> (String, String) {
            let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
            let folder = folder.splitn(3, '/').nth(2).unwrap_or_default();
            (folder.to_owned(), stem_of(name).unwrap_or_default().to_owned())
        };
        seen.sort_by_cached_key(|s| (s.arrival, place(&s.path)));
        let mut ids: HashMap<&str, &Seen> = HashMap::new();
        let mut signed: HashMap<u64, &str> = HashMap::new();
        for s in &seen {
            let id = one_line(&s.id);
            let first = *ids.entry(&s.id).or_insert(s);
            if first.content != s.content {
                let earlier = one_line(&first.path);
                let detail = format!("the id {id} is that of another message in {earlier}");
                self.say(&s.path, "duplicate", detail);
            }
            if s.signed {
                let earlier = *signed.entry(s.content).or_insert(&s.id);
                if earlier != s.id {
                    let detail = format!("the same signed bytes have the id {}", one_line(earlier));
                    self.say(&s.path, "replay", detail);
                }
            }
        }
    }
}
