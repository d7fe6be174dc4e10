//! Carrying what lies in `outbox/` to mailboxes of this machine, and then to `sent/`
//! (docs/formats/agentazall.md, sections 6 and 7).
//!
//! What has no mailbox here may be reached by a link: then the file is moved to `carrying/` first, where no
//! other program looks, and is handed over there.
//!
//! Only files that msgfs wrote are carried: their block has a Signature-V2 by my key. Others belong to
//! the program that wrote them. The reference may work on the same tree at the same moment: whatever
//! appears or vanishes meanwhile is taken as it is, and nothing is ever put under another name.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::CWD;

use super::block::Reading;
use super::letter::MAX_FILE;
use super::place::{Folder, Place};
use super::{AgentAzall, block, config, letter, mail, names, parts, place, put, text, write};
use crate::model::{Seed, one_line};
use crate::store::engine::files::Row;
use crate::store::place::move_new;
use crate::store::{Deliveries, Fate, Notebook, Parcel, Store as _, StoreError, fs};

/// Who has got which file of `outbox/`, by its path.
pub(super) type Delivered = BTreeMap<String, BTreeSet<String>>;

/// Why somebody could not be given a file of `outbox/`, by its path and his address; no address: why it
/// could not be moved to `sent/`.
pub(super) type Failed = BTreeMap<(String, String), String>;

/// What is the matter with one recipient of a waiting message.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Way {
    /// He has it.
    Done,
    /// His mailbox is here and has it not yet.
    Open,
    /// This link reaches him and has it not yet.
    Link(String),
    /// A link could not hand it over, for this reason, and never will.
    Refused(String),
    /// It cannot be delivered from here, for this reason.
    Waits(String),
}

/// A message in `outbox/` and where it stands.
struct Waiting {
    path: String,
    id: String,
    mine: bool,
    bytes: Vec<u8>,
    to: Vec<(String, Way)>,
}

impl Deliveries for AgentAzall {
    fn deliver(&self) -> Result<bool, StoreError> {
        let _turn = self.format.delivering.lock();
        let paths = self.outbox_paths();
        self.forget_gone(&paths)?;
        let mut done = false;
        let mut waiting = BTreeSet::new();
        let mut failed = None;
        for path in &paths {
            match self.deliver_one(path) {
                Ok(moved) => done |= moved,
                Err(e) => {
                    tracing::warn!(file = %one_line(path), error = %e, "a message could not be \
                        delivered; it is tried again");
                    failed = failed.or(Some(e));
                }
            }
            let names = self.survey(path).map(|w| w.to).unwrap_or_default();
            waiting
                .extend(names.into_iter().filter(|(_, way)| *way != Way::Done).map(|(to, _)| to));
        }
        *self.format.waiting.write() = waiting;
        self.sync_dirs()?;
        failed.map_or(Ok(done), Err)
    }

    fn written(&self) -> Vec<PathBuf> {
        Notebook::folders(self).iter().flat_map(|folder| self.note_folders(folder)).collect()
    }
}

impl AgentAzall {
    fn outbox_paths(&self) -> Vec<String> {
        let table = self.table.read();
        let outboxes = (0..).zip(table.folders()).filter(|(_, f)| is_waiting(&f.path));
        let files = outboxes.flat_map(|(number, _)| table.files_in(number));
        let messages = files.filter(|n| table.row(*n).is_some_and(Row::is_message));
        messages.filter_map(|n| table.path(n)).collect()
    }

    /// The SHA-256 of a file, in hex.
    pub(super) fn digest(&self, path: &Path) -> io::Result<String> {
        self.format.digests.of(&fs::open_regular(path)?)
    }

    /// Delivers one file of `outbox/` as far as possible; whether anything was done.
    ///
    /// # Errors
    /// As the system gave it.
    pub(super) fn deliver_one(&self, path: &str) -> Result<bool, StoreError> {
        let Some(waiting) = self.survey(path).filter(|w| w.mine) else { return Ok(false) };
        let Some(place) = Place::parse(path) else { return Ok(false) };
        let by_link = waiting.to.iter().any(|(_, way)| matches!(way, Way::Link(_)));
        if by_link && place.folder == Folder::Outbox {
            // Whoever moves it, sends it.
            if !self.move_to(Folder::Carrying, &place, &waiting.bytes)? {
                return Ok(false);
            }
            return self.deliver_one(&place.path_in(Folder::Carrying)).map(|_| true);
        }
        let mut done = false;
        let mut all = true;
        let mut failed = None;
        for (to, way) in &waiting.to {
            let delivered = match way {
                Way::Refused(_) => continue,
                Way::Done => true,
                Way::Waits(_) => false,
                Way::Open | Way::Link(_) => {
                    let handed = match way {
                        Way::Link(link) => self.hand_to(link, to, &place, &waiting),
                        _ => self.hand_over(to, &place, &waiting.bytes),
                    };
                    self.note_failure(path, to, handed.as_ref().err());
                    done |= *handed.as_ref().unwrap_or(&false);
                    handed.unwrap_or_else(|e| {
                        failed = failed.take().or(Some(e));
                        false
                    })
                }
            };
            let is_here = !matches!(way, Way::Link(_));
            if delivered
                && is_here
                && let Err(e) = self.note_delivered(path, to, waiting.to.len() > 1)
            {
                failed = failed.or(Some(e));
            }
            all &= delivered && is_here;
        }
        if all && !waiting.to.is_empty() {
            let moved = self.move_to(Folder::Sent, &place, &waiting.bytes);
            self.note_failure(path, "", moved.as_ref().err());
            match moved {
                Ok(moved) => done |= moved,
                Err(e) => failed = failed.or(Some(e)),
            }
        }
        failed.map_or(Ok(done), Err)
    }

    /// Notes that somebody has it, on disk if others may wait: from now on he does not get it again, also
    /// if he throws it away.
    fn note_delivered(&self, path: &str, to: &str, others: bool) -> Result<(), StoreError> {
        let mut known = self.format.delivered.lock();
        known.entry(key(path)).or_default().insert(to.to_owned());
        if others { self.format.state.keep_delivered(&known) } else { Ok(()) }
    }

    /// Forgets who has got what is not in the outbox any more. What cannot be seen may still be there.
    fn forget_gone(&self, paths: &[String]) -> Result<(), StoreError> {
        let stays = |path: &String| {
            let there = || std::fs::symlink_metadata(self.base().join(path));
            paths.iter().any(|one| key(one) == *path)
                || !place::is_real_dir(self.base())
                || !there().is_err_and(|e| e.kind() == io::ErrorKind::NotFound)
        };
        self.format.failed.lock().retain(|(path, _), _| stays(&key(path)));
        let mut known = self.format.delivered.lock();
        known.retain(|path, _| stays(path));
        self.format.state.keep_delivered(&known)
    }

    fn note_failure(&self, path: &str, to: &str, error: Option<&StoreError>) {
        let key = (path.to_owned(), to.to_owned());
        let mut failed = self.format.failed.lock();
        match error {
            Some(e) => failed.insert(key, e.to_string()),
            None => failed.remove(&key),
        };
    }

    /// Puts a copy into one mailbox, attachments before the text. `false` if another file has the name.
    fn hand_over(&self, to: &str, place: &Place<'_>, bytes: &[u8]) -> Result<bool, StoreError> {
        let mailbox = self.format.mailboxes.join(to);
        let inbox = mailbox.join(place.day).join("inbox");
        let target = inbox.join(format!("{}.txt", place.stem));
        let io = |e| StoreError::io(&target, e);
        let changed = put::make_dirs(&mailbox, &[place.day, "inbox"])?;
        self.dirty(changed);
        let attached = self.attached(place).map_err(io)?;
        if !attached.is_empty()
            && !self.put_parts(&inbox.join(place.stem), &attached).map_err(io)?
        {
            return Ok(false);
        }
        self.dirty([inbox]);
        match put::put_bytes(&target, 0o666, bytes) {
            Ok(()) => {
                if to == self.format.me {
                    self.note(&target);
                }
                Ok(true)
            }
            // Somebody was faster; it is delivered if what he put there is this.
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
                Ok(same_but_status(&target, bytes))
            }
            Err(e) => Err(io(e)),
        }
    }

    /// The attachments of a file: names, and where they lie.
    fn attached(&self, place: &Place<'_>) -> io::Result<Vec<(String, PathBuf)>> {
        let stem = format!("{}/{}/{}", place.day, place.folder.as_str(), place.stem);
        parts::paths(self.base(), &stem)
    }

    /// Puts attachments in place; `false` if other files are there under their names.
    pub(super) fn put_parts(
        &self,
        folder: &Path,
        attached: &[(String, PathBuf)],
    ) -> io::Result<bool> {
        match put::put_folder(folder, attached) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
            other => return other.map(|()| true),
        }
        if !place::is_real_dir(folder) {
            return Ok(false);
        }
        self.dirty([folder.to_owned()]);
        for (name, source) in attached {
            let target = folder.join(name);
            match put::put_copy(&target, source) {
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
                    if self.digest(&target)? != self.digest(source)? {
                        return Ok(false);
                    }
                }
                other => other?,
            }
        }
        Ok(true)
    }

    /// Moves a message to another folder of its day: attachments first, so that what is left behind by a
    /// crash is still where it was and is moved next time. `false` if another file has its name there, or
    /// another program moved it.
    fn move_to(&self, to: Folder, from: &Place<'_>, bytes: &[u8]) -> Result<bool, StoreError> {
        let path = from.path_in(from.folder);
        let source = self.base().join(&path);
        let folder = self.base().join(from.day).join(to.as_str());
        let target = folder.join(format!("{}.txt", from.stem));
        let io = |e| StoreError::io(&target, e);
        let changed = put::make_dirs(self.base(), &[from.day, to.as_str()])?;
        self.dirty(changed);
        self.dirty([folder.clone()]);
        self.dirty(source.parent().map(Path::to_owned));
        if matches!(at_target(&target, bytes), Way::Waits(_)) {
            return Ok(false);
        }
        let parts = place::parts_dir(&source);
        match move_new(CWD, &parts, &folder.join(from.stem)) {
            Err(e)
                if !matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::AlreadyExists) =>
            {
                return Err(io(e));
            }
            _ => {}
        }
        match move_new(CWD, &source, &target) {
            // Another program moved it.
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
                if !same_but_status(&target, bytes) {
                    return Ok(false);
                }
                std::fs::remove_file(&source).map_err(io)?;
            }
            other => other.map_err(io)?,
        }
        self.note(&source);
        self.note(&target);
        if to == Folder::Sent {
            let mut known = self.format.delivered.lock();
            known.remove(&key(&path));
            self.format.state.keep_delivered(&known)?;
        }
        Ok(target.exists())
    }

    /// How things stand with a file that waits; `None` if it is not there (any more).
    fn survey(&self, path: &str) -> Option<Waiting> {
        let place = Place::parse(path).filter(|p| p.folder.waits())?;
        let bytes = fs::read_small(&self.base().join(path), MAX_FILE as u64).ok()?;
        let letter = text::parse(&bytes);
        let via = letter.get(write::VIA).filter(|via| !via.is_empty());
        let reading = block::read(&letter);
        let mine = self.is_mine(&reading);
        let known = self.format.delivered.lock().get(&key(path)).cloned().unwrap_or_default();
        let to = letter::recipients(&reading.to, &reading.cc);
        let id = reading.id.clone().filter(|id| !id.is_empty());
        let id = id.unwrap_or_else(|| place.stem.to_owned());
        let way = |to: &String| {
            if !mine {
                return Way::Waits("the program that wrote it must deliver it".to_owned());
            }
            match via.filter(|_| *to != self.format.me) {
                _ if known.contains(to) => Way::Done,
                Some(link) => self.way_by_link(to, &id, Some(link)),
                None => self.way_to(to, &id, &place, &bytes),
            }
        };
        let to = to.iter().map(|to| (to.clone(), way(to))).collect();
        Some(Waiting { path: path.to_owned(), id, mine, bytes, to })
    }

    /// Whether msgfs wrote this under my key.
    fn is_mine(&self, reading: &Reading) -> bool {
        let Some(signer) = reading.signer() else { return false };
        let later = || self.format.key_for_later.lock().as_ref().map(Seed::public_key);
        super::key::public(self.base()).or_else(later).as_ref() == Some(signer)
    }

    fn way_to(&self, to: &str, id: &str, place: &Place<'_>, bytes: &[u8]) -> Way {
        if to != self.format.me && !self.has_mailbox(to) {
            return self.way_by_link(to, id, None);
        }
        let day = self.format.mailboxes.join(to).join(place.day);
        let inbox = day.join("inbox");
        // Where a folder is something else, trying will say so.
        let is_odd = put::require_dir(&day).and_then(|()| put::require_dir(&inbox)).is_err();
        let target = inbox.join(format!("{}.txt", place.stem));
        match if is_odd { Way::Open } else { at_target(&target, bytes) } {
            Way::Open => self.refused_by(to).map_or(Way::Open, Way::Waits),
            other => other,
        }
    }

    /// How things stand with a recipient who has no mailbox here, or whom a link shall reach that the sender
    /// named.
    fn way_by_link(&self, to: &str, id: &str, via: Option<&str>) -> Way {
        let Some(ways) = self.format.ways.get() else {
            return Way::Waits(
                "no mailbox of this name here; a transport must carry it".to_owned(),
            );
        };
        let reached = match via {
            Some(link) if ways.reaches(link, to) => Ok(Some(link.to_owned())),
            Some(link) => Err(format!("Via: no link {} reaches it", one_line(link))),
            None => ways.reach(to),
        };
        match (ways.fate(id, to), reached) {
            (Some(Fate::Taken), _) => Way::Done,
            (Some(Fate::Refused(why)), _) => Way::Refused(why),
            (Some(Fate::Waits(why)), _) | (None, Err(why)) => Way::Waits(why),
            (None, Ok(Some(link))) => Way::Link(link),
            (None, Ok(None)) => {
                Way::Waits("no mailbox of this name here, and no link reaches it".to_owned())
            }
        }
    }

    /// Hands a message to a link, which has it on disk when this returns.
    fn hand_to(
        &self,
        link: &str,
        to: &str,
        place: &Place<'_>,
        waiting: &Waiting,
    ) -> Result<bool, StoreError> {
        let path = self.base().join(&waiting.path);
        let io = |e| StoreError::io(&path, e);
        let parcel = Parcel {
            message: waiting.id.clone(),
            to: to.to_owned(),
            bytes: waiting.bytes.clone(),
            parts: self.attached(place).map_err(io)?,
        };
        match self.format.ways.get() {
            Some(ways) => ways.take(link, &parcel).map(|()| true).map_err(io),
            None => Ok(false),
        }
    }

    /// Whether there is a mailbox of this name: a folder, not a symbolic link.
    pub(super) fn has_mailbox(&self, address: &str) -> bool {
        names::is_mailbox_name(address) && place::is_real_dir(&self.format.mailboxes.join(address))
    }

    /// Why a recipient does not want my mail, as far as his configuration can be read here.
    pub(super) fn refused_by(&self, to: &str) -> Option<String> {
        if to == self.format.me {
            return None;
        }
        let files = config::neighbours(&self.format.config_file, &self.format.mailboxes, to);
        let own = self.format.mailboxes.join(to).join("config.json");
        files.into_iter().find_map(|file| {
            let theirs = config::read(&file).ok()?;
            let his = theirs.agent.as_deref() == Some(to)
                && (file == own || config::same_folder(&theirs.mailboxes, &self.format.mailboxes));
            let why = his.then(|| theirs.filters.refuses(&self.format.me))??;
            Some(format!("{to} does not accept mail from {}: {why}", self.format.me))
        })
    }

    /// Whom a message in `outbox/` waits for, and why, a line each; `None` if it is on its way.
    pub(super) fn waits(&self, path: &str) -> Option<String> {
        let waiting = self.survey(path)?;
        let failed = self.format.failed.lock().clone();
        let failure = |to: &str| failed.get(&(path.to_owned(), to.to_owned()));
        let line = |(to, way): &(String, Way)| {
            let why = match way {
                Way::Done => return None,
                Way::Refused(why) => return Some(refused(to, why)),
                Way::Waits(why) => why,
                Way::Open | Way::Link(_) => {
                    failure(to).map_or("it is being delivered", String::as_str)
                }
            };
            Some(format!("waits for {to} and is tried again by itself: {why}\n"))
        };
        let lines: String = waiting.to.iter().filter_map(line).collect();
        let moved =
            failure("").map(|why| format!("every recipient has it; it stays in outbox: {why}\n"));
        Some(lines + &moved.unwrap_or_default()).filter(|text| !text.is_empty())
    }

    /// One line per waiting message and recipient, for people.
    pub(super) fn waiting_lines(&self) -> Vec<String> {
        let mut out = Vec::new();
        let mut say = |line: String| out.push(one_line(&line).into_owned());
        let failed = self.format.failed.lock().clone();
        for Waiting { path, id, to: all, .. } in
            self.outbox_paths().iter().filter_map(|path| self.survey(path))
        {
            let (has, waits): (Vec<_>, Vec<_>) = all.iter().partition(|(_, way)| *way == Way::Done);
            let waits: Vec<_> =
                waits.into_iter().filter(|(_, way)| !matches!(way, Way::Refused(_))).collect();
            let names: Vec<&str> = has.iter().map(|(to, _)| to.as_str()).collect();
            let has = match names.join(", ") {
                names if names.is_empty() => names,
                names => format!("; delivered to {names}"),
            };
            let failure = |to: &str| failed.get(&(path.clone(), to.to_owned()));
            for (to, way) in &waits {
                let why = match way {
                    Way::Waits(why) => why,
                    _ => failure(to).map_or("it is being delivered", String::as_str),
                };
                say(format!("waiting in outbox: {id} to {to} ({why}{has})"));
            }
            if all.is_empty() {
                say(format!("waiting in outbox: {path} names no recipient"));
            } else if waits.is_empty() {
                let why = failure("").map_or("sent/ has another file of its name", String::as_str);
                say(format!("{path} is delivered and stays in outbox: {why}"));
            }
        }
        out
    }

    /// Folders whose new names must reach the disk.
    pub(super) fn dirty(&self, folders: impl IntoIterator<Item = PathBuf>) {
        self.format.unsynced.lock().extend(folders);
    }

    /// Waits until they have.
    ///
    /// # Errors
    /// As the system gave it; the folders are tried again next time.
    pub(super) fn sync_dirs(&self) -> Result<(), StoreError> {
        let mut unsynced = self.format.unsynced.lock();
        fs::sync_dirs(&*unsynced)?;
        unsynced.clear();
        Ok(())
    }
}

/// Under which path it is noted who has got a file: wherever it lies now, that in the outbox.
fn key(path: &str) -> String {
    Place::parse(path).map_or_else(|| path.to_owned(), |place| place.path_in(Folder::Outbox))
}

/// Whether a folder of a mailbox holds what waits for somebody.
fn is_waiting(folder: &str) -> bool {
    mail::folder_of(folder).is_some_and(Folder::waits)
}

/// The line for people on somebody who will not get it.
pub(super) fn refused(to: &str, why: &str) -> String {
    format!("{to} does not get it: {why}\n")
}

fn at_target(target: &Path, bytes: &[u8]) -> Way {
    match std::fs::symlink_metadata(target) {
        Err(_) => Way::Open,
        Ok(_) if same_but_status(target, bytes) => Way::Done,
        Ok(_) => Way::Waits("another file has its name in the recipient's inbox".to_owned()),
    }
}

/// Whether a file holds these bytes, read or not.
pub(super) fn same_but_status(path: &Path, bytes: &[u8]) -> bool {
    let there = fs::read_small(path, MAX_FILE as u64);
    there.is_ok_and(|there| text::unmarked(&there) == text::unmarked(bytes))
}
