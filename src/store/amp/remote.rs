//! What links carry to providers elsewhere and bring from there (docs/formats/amp.md, section 13).

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::boxes::{BY_ID, Bit, Boxes, Kept, Mailbox, Parsed, doubles};
use super::envelope::{self, Stored};
use super::facts::{self, Facts, digest};
use super::limits::FILE_BYTES;
use super::several::Several;
use super::{Amp, address, edit};
use crate::model::{Timestamp, one_line};
use crate::store::engine::files::{self, File, Table};
use crate::store::fs::Stamp;
use crate::store::place::Slot;
use crate::store::{
    Arrived, Deliveries, Fate, Outgoing as _, Parcel, Prepared, Remote, Store, StoreError, Ways,
    below, fs,
};

/// Where mail lies whose writer has no address.
const NO_WRITER: &str = "unknown";

/// How a link is chosen.
#[derive(Clone, Copy, Debug)]
pub(super) enum Choice<'a> {
    /// The best one; of several as good, one where I am one of these.
    Best(&'a [String]),
    /// This one.
    Via(&'a str),
    /// The one where I am this.
    From(&'a str),
}

/// A message of mine of which a link has more to say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Underway {
    id: String,
    to: String,
    /// Ids and recipients of the messages it stands for, itself among them.
    all: Vec<(String, String)>,
    /// There is a note about one of them.
    pub noted: bool,
}

impl Remote for Amp {
    fn described_in(&self) -> Option<PathBuf> {
        Some(self.about.dir.join("registrations"))
    }

    fn join(&self, ways: Arc<dyn Ways>) {
        // The first ones stay: there is one set of links a mount.
        let _ = self.format.ways.set(ways);
        *self.format.underway.lock() = None;
    }

    fn has_way(&self, link: &str) -> bool {
        self.way(link).is_some()
    }

    /// Keys first, so that the messages that come with them can be judged.
    fn file(&self, arrived: &Arrived) -> Result<(), StoreError> {
        (self as &dyn Store).require_there()?;
        for (address, key) in &arrived.keys {
            if self.format.home.pin(address, *key)? {
                self.format.has_new_keys.store(true, Ordering::Relaxed);
            }
        }
        if arrived.bytes.is_empty() {
            return Ok(());
        }
        let _one = self.format.appending.lock();
        let parsed = envelope::parse(&arrived.bytes).ok();
        let facts = parsed.as_ref().map(|p| facts::facts(p, &Stamp::default(), Timestamp::now()));
        let is_double = |facts: &Facts| {
            let table = self.table.read();
            let here = |n: &u32| Mailbox::of(table.folder(*n)) == Some(Mailbox::Inbox);
            // A number that no file has.
            doubles(&table, u32::MAX, &facts.kept).iter().any(here)
        };
        if facts.as_ref().is_some_and(is_double) {
            return Ok(());
        }
        if let Some(message) = &parsed {
            self.put_arrived(&message.id, &arrived.parts)?;
        }
        let from = facts.as_ref().map(|facts| facts.from.as_str());
        let from = from.filter(|from| address::is_wire_address(from)).map(address::folder);
        let folder = from.unwrap_or_else(|| NO_WRITER.to_owned());
        let path @ [messages, inbox, bucket] = ["messages", "inbox", folder.as_str()];
        let content = facts.as_ref().map(|facts| facts.kept.content);
        for stem in [&arrived.name, &arrived.other_name] {
            let name =
                format!("{}.json", below::component(stem).map_err(|e| self.bad_name(stem, e))?);
            let there = below::open_below(&self.about.dir, &[messages, inbox, bucket, &name]);
            match there {
                Ok(file) if !holds(&file, &arrived.bytes, content) => {}
                _ => {
                    self.put(&self.about.dir, &path, &name, &arrived.bytes)?;
                    break;
                }
            }
        }
        self.sync()
    }
}

impl Deliveries for Amp {
    /// Writes down which ids providers gave what they took, so that replies that name these find it also
    /// when the links have forgotten.
    fn deliver(&self) -> Result<bool, StoreError> {
        let Some(ways) = self.format.ways.get() else { return Ok(false) };
        let mut done = false;
        let mut failed = None;
        for (n, underway) in self.format.all_underway() {
            let Some(given) = ways.known_as(&underway.id, &underway.to) else { continue };
            match self.note_relayed(n, &given) {
                Ok(noted) => done |= noted,
                Err(e) => failed = failed.or(Some(e)),
            }
        }
        failed.map_or(Ok(done), Err)
    }

    fn written(&self) -> Vec<PathBuf> {
        Vec::new()
    }
}

impl Amp {
    /// The link that a line `Via` names: by its name, also behind that of the format or of the store.
    pub(super) fn way<'v>(&self, via: &'v str) -> Option<&'v str> {
        let behind = via.split_once('/').filter(|(of, _)| *of == "amp" || *of == self.about.name);
        let link = behind.map_or(via, |(_, link)| link);
        self.format.ways.get().filter(|ways| ways.has(link)).map(|_| link)
    }

    /// The link that takes a message to somebody, and my address there.
    ///
    /// # Errors
    /// Why none can be chosen.
    pub(super) fn road(
        &self,
        to: &str,
        choice: Choice<'_>,
    ) -> Result<Option<(String, String)>, String> {
        let Some(ways) = self.format.ways.get() else { return Ok(None) };
        let link = match choice {
            Choice::From(mine) => ways.reach_as(mine, to),
            Choice::Via(link) if ways.reaches(link, to) => Some(link.to_owned()),
            Choice::Via(link) => {
                return Err(format!("Via: the link {} does not reach it", one_line(link)));
            }
            // An answer goes where it was asked, if several are as good.
            Choice::Best(asked) => match ways.reach(to) {
                Ok(link) => link,
                Err(why) => {
                    let found = asked.iter().find_map(|mine| ways.reach_as(mine, to));
                    Some(found.ok_or(why)?)
                }
            },
        };
        Ok(link.and_then(|link| Some((link.clone(), ways.mine(&link)?))))
    }

    /// Whether a link takes files of these sizes.
    pub(super) fn takes(&self, link: &str, files: &[u64]) -> Result<(), String> {
        self.format.ways.get().map_or(Ok(()), |ways| ways.takes(link, files))
    }

    /// Whether a link reaches an address.
    pub(super) fn is_reached(&self, address: &str) -> bool {
        let address = address.trim().to_ascii_lowercase();
        let reached = self.format.ways.get().map(|ways| ways.reach(&address));
        // Which of several is for the writer to say.
        reached.is_some_and(|reached| reached != Ok(None))
    }

    /// Hands a message to a link, which has it on disk when this returns.
    pub(super) fn hand_to(
        &self,
        link: &str,
        to: &str,
        message: &Prepared,
        parts: Vec<(String, PathBuf)>,
    ) -> Result<(), StoreError> {
        let Some(ways) = self.format.ways.get() else {
            return Err(StoreError::Busy(format!("the link {link} is not open")));
        };
        let parcel = Parcel {
            message: message.id.clone(),
            to: to.to_owned(),
            bytes: message.bytes.clone().into_bytes(),
            parts,
        };
        ways.take(link, &parcel).map_err(|e| StoreError::io(&self.about.dir, e))
    }

    /// The ids of a message elsewhere: the one under which it was written, if it came from there, and the one
    /// by which somebody elsewhere knows it. `None` where they are no others than here.
    pub(super) fn ids_elsewhere(&self, id: &str) -> (Option<String>, Option<String>) {
        let written = || {
            let path = {
                let table = self.table.read();
                let found = table.with_key(BY_ID, digest(&[id]));
                let named = |n: &u32| table.facts(*n).is_some_and(|kept: &Kept| kept.alias != 0);
                table.path(found.into_iter().find(named)?)?
            };
            let file = below::open_below(&self.about.dir, &files::parts(&path)).ok()?;
            let (stamp, bytes) = below::read_whole(&file, FILE_BYTES + 1).ok()?;
            let stored = envelope::parse(&bytes).ok()?;
            Some(match Mailbox::of(path.rsplit_once('/')?.0)? {
                Mailbox::Sent => (None, stored.relayed_id.map(std::borrow::Cow::into_owned)),
                Mailbox::Inbox => {
                    let own = facts::facts(&stored, &stamp, Timestamp::now()).own_id;
                    (own.clone(), own)
                }
            })
        };
        written().unwrap_or_default()
    }

    /// What a person should know of a message of mine that links carry, a line for each recipient who has it
    /// not.
    pub(super) fn note_on(
        &self,
        folder: &str,
        stored: &Stored<'_>,
        facts: &Facts,
    ) -> Option<String> {
        let ways = self.format.ways.get()?;
        if Mailbox::of(folder) != Some(Mailbox::Sent) {
            return None;
        }
        let line = |(id, to): &(String, String)| match ways.fate(id, to)? {
            Fate::Taken => None,
            Fate::Waits(why) => {
                Some(format!("waits for {to} and is tried again by itself: {why}\n"))
            }
            Fate::Refused(why) => {
                Some(format!("{to} does not get it, because it was refused for good: {why}\n"))
            }
        };
        let lines: String = copies(stored, facts).iter().filter_map(line).collect();
        Some(lines).filter(|lines| !lines.is_empty())
    }

    /// Adds the id that a provider gave a message to its file in `sent/`; whether it was not there yet.
    fn note_relayed(&self, n: u32, given: &str) -> Result<bool, StoreError> {
        let file: File<Kept> = self.file(n)?;
        let (stamp, bytes) = self.bytes(&file, FILE_BYTES + 1)?;
        let Some(edited) = edit::set_relayed_id(&bytes, given) else { return Ok(false) };
        let path = self.about.dir.join(file.path());
        let io = |e| StoreError::io(&path, e);
        let dir = below::open_dir(&self.about.dir, &files::parts(&file.folder)).map_err(io)?;
        let done = Slot::below(&dir, &file.name).and_then(|slot| slot.replace(&stamp, &edited));
        let done = done.map_err(io)?.is_some();
        self.note(&path);
        Ok(done)
    }

    /// Puts what came with a message beside it; what is there stays.
    fn put_arrived(&self, id: &str, parts: &[(String, PathBuf)]) -> Result<(), StoreError> {
        for (name, path) in parts {
            let name = below::component(name).map_err(|e| self.bad_name(name, e))?;
            let mut from = fs::open_regular(path).map_err(|e| StoreError::io(path, e))?;
            let copy = |to: &mut std::fs::File| std::io::copy(&mut from, to).map(drop);
            self.put_new(&self.about.dir, &["attachments", id], name, copy)?;
        }
        Ok(())
    }

    fn bad_name(&self, name: &str, error: std::io::Error) -> StoreError {
        StoreError::io(&self.about.dir.join("messages/inbox").join(name), error)
    }
}

impl Boxes {
    /// What a link has still to say of a message in `sent/`, and whether that is known at all: the links may
    /// not have been told of yet.
    pub(super) fn underway(&self, parsed: &Parsed<'_>) -> (bool, Option<Underway>) {
        let Parsed { stored, facts, .. } = parsed;
        let all = copies(stored, facts);
        let is_carried = facts.kept.has(Bit::Carried);
        if !is_carried && all.len() == 1 {
            return (false, None);
        }
        let is_named = stored.relayed_id.is_some() || !is_carried;
        let Some(ways) = self.ways.get() else { return (!is_named || all.len() > 1, None) };
        let (id, to) = (stored.id.to_string(), facts.to.clone());
        let noted = has_note(ways.as_ref(), &all);
        let wants_id = !is_named && ways.known_as(&id, &to).is_some();
        let underway = (noted || wants_id).then_some(Underway { id, to, all, noted });
        (underway.is_some(), underway)
    }

    /// Keeps that, for [`Boxes::changed_underway`].
    pub(super) fn keep_underway(&self, n: u32, underway: Option<Underway>) {
        let mut all = self.underway.lock();
        match (all.as_mut(), underway) {
            (Some(all), Some(underway)) => drop(all.insert(n, underway)),
            (Some(all), None) => drop(all.remove(&n)),
            // They are looked for first.
            (None, _) => {}
        }
    }

    /// Messages of which links say something new.
    pub(super) fn changed_underway(&self, table: &Table<Kept>) -> Vec<u32> {
        let known = {
            let mut all = self.underway.lock();
            let known = all.clone();
            all.get_or_insert_default();
            known
        };
        let (Some(known), Some(ways)) = (known, self.ways.get()) else {
            let underway = table.messages().filter(|(_, _, kept)| kept.has(Bit::Underway));
            return underway.map(|(n, ..)| n).collect();
        };
        let is_other = |u: &Underway| u.noted != has_note(ways.as_ref(), &u.all);
        known.into_iter().filter(|(_, underway)| is_other(underway)).map(|(n, _)| n).collect()
    }

    fn all_underway(&self) -> Vec<(u32, Underway)> {
        let all = self.underway.lock();
        let all = all.iter().flatten();
        all.map(|(n, underway)| (*n, underway.clone())).collect()
    }
}

/// Ids and recipients of all messages of which one stands for all.
fn copies(stored: &Stored<'_>, facts: &Facts) -> Vec<(String, String)> {
    match Several::of_stored(stored, facts) {
        Some(several) => facts.everybody.iter().map(|to| (several.id_to(to), to.clone())).collect(),
        None => vec![(stored.id.to_string(), facts.to.clone())],
    }
}

/// Whether links have something to say of one of these.
fn has_note(ways: &dyn Ways, all: &[(String, String)]) -> bool {
    let says = |(id, to): &(String, String)| {
        matches!(ways.fate(id, to), Some(Fate::Waits(_) | Fate::Refused(_)))
    };
    all.iter().any(says)
}

/// Whether a file holds what arrived: the same bytes, or the same message in other words.
fn holds(file: &std::fs::File, bytes: &[u8], content: Option<u64>) -> bool {
    let Ok((stamp, there)) = below::read_whole(file, FILE_BYTES + 1) else { return false };
    let print = |there: &[u8]| {
        let stored = envelope::parse(there).ok()?;
        Some(facts::facts(&stored, &stamp, Timestamp::now()).kept.content)
    };
    there == bytes || content.is_some_and(|content| print(&there) == Some(content))
}
