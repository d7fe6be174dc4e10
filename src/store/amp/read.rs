//! One message in full: what its header and its text say, and what the reader is warned of.

use std::io;
use std::time::Duration;

use super::Amp;
use super::boxes::{self, BY_CONTENT, Bit, Kept, Mailbox, stem_of};
use super::envelope::{self, Stored};
use super::limits::{FILE_BYTES, over_limit};
use super::parts::{self, Piece};
use super::relate::{spelled, thread_of};
use super::roster::Roster;
use super::{facts, scan_text, verify};
use crate::model::{Message, Timestamp, twin_id};
use crate::store::below;
use crate::store::engine::files::{self, File, Flags, Table};
use crate::store::fs::Stamp;
use crate::store::place::Slot;
use crate::store::{Location, Marks, Part, Parts, Record, Store as _, StoreError};

/// How often, and after which pause, a file is read that somebody is just writing.
const TRIES: u32 = 10;
const PAUSE: Duration = Duration::from_millis(20);

/// What the table says of the file a message is read from.
struct Place {
    file: File<Kept>,
    twin: Option<[u8; 32]>,
    /// The id under which the same signed bytes came before.
    replay_of: Option<String>,
}

impl Amp {
    fn place(&self, n: u32) -> Result<Place, StoreError> {
        let file = self.file(n)?;
        let table = self.table.read();
        let (twin, replay_of) = (table.twins.get(&n).copied(), replay_of(&table, &file));
        Ok(Place { file, twin, replay_of })
    }

    /// The message at a location, handed to `use_it` with what the table says of it. A file that
    /// cannot be parsed is read again for a moment; then the last bytes that could be parsed count.
    fn with_message<T>(
        &self,
        source: u32,
        use_it: impl Fn(&Stored<'_>, &Place, &Stamp, &[u8]) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let mut known = false;
        for attempt in 0..TRIES {
            let place = self.place(source)?;
            known = place.file.row.is_message();
            let (stamp, bytes) = self.bytes(&place.file, FILE_BYTES + 1)?;
            if let Ok(stored) = envelope::parse(&bytes) {
                if !is_what_was_seen(&place, &stored, &stamp) {
                    return Err(StoreError::Moved);
                }
                if known {
                    self.format.keep(source, &bytes);
                }
                return use_it(&stored, &place, &stamp, &bytes);
            }
            // What was never a message is not waited for.
            if !known || attempt + 1 == TRIES || place.file.row.has(Flags::BROKEN) {
                break;
            }
            std::thread::sleep(PAUSE);
        }
        let kept = known.then(|| self.format.kept(source)).flatten().ok_or(StoreError::Moved)?;
        let place = self.place(source)?;
        let stored = envelope::parse(&kept).map_err(|_| StoreError::Moved)?;
        let stamp = Stamp::default();
        if !is_what_was_seen(&place, &stored, &stamp) {
            return Err(StoreError::Moved);
        }
        use_it(&stored, &place, &stamp, &kept)
    }

    pub(super) fn read_message(&self, at: &Location) -> Result<Record, StoreError> {
        let roster = self.format.home.recent()?;
        self.with_message(at.source, |stored, place, stamp, _| {
            Ok(self.record(stored, place, stamp, &roster))
        })
    }

    fn record(&self, stored: &Stored<'_>, place: &Place, stamp: &Stamp, roster: &Roster) -> Record {
        let mut facts = facts::facts(stored, stamp, Timestamp::now());
        if facts.kept.has(Bit::FileTime) {
            facts.time = Timestamp::from_millis(place.file.facts.time);
        }
        let key = roster.key_of(&facts.from);
        let also_to = roster.also_to(&facts.to);
        let bodies = verify::bodies(stored, key.as_ref(), &also_to);
        let pieces = parts::pieces(stored, &self.about.dir, roster, &self.format.digests);
        let mut extra = Vec::new();
        if let Some(kind) = stored.kind.as_deref().filter(|k| !k.is_empty()) {
            extra.push(("Type", kind.to_owned()));
        }
        if let Some(priority) = stored.priority.as_deref().filter(|p| !matches!(*p, "" | "normal"))
        {
            extra.push(("Priority", priority.to_owned()));
        }
        let note = self.note_on(&place.file.folder, stored, &facts);
        let id = twin_id(stored.id.clone(), place.twin.as_ref());
        let message = Message {
            to: facts.everybody,
            cc: Vec::new(),
            time: facts.time,
            subject: stored.subject.as_deref().filter(|s| !s.is_empty()).map(str::to_owned),
            extra,
            thread: Some(thread_of(&stored.id, place.twin.as_ref()).into_owned()),
            in_reply_to: facts.answers.map(|id| spelled(&self.table.read(), id)),
            id: id.into_owned(),
            warnings: warnings(stored, place, &bodies.body),
            attachments: pieces.into_iter().map(|p| p.shown).collect(),
            body: bodies.body,
            from: Some(facts.from),
        };
        let claim = verify::claim(stored, key, &also_to).ok().flatten();
        let body_if_valid = bodies.body_if_valid;
        Record { message, body_if_valid, claim, note, ..Record::default() }
    }
}

impl Parts for Amp {
    fn open_part(&self, at: &Location, name: &str) -> Result<Part, StoreError> {
        let roster = self.format.home.recent()?;
        self.with_message(at.source, |stored, _, _, _| {
            let pieces = parts::pieces(stored, &self.about.dir, &roster, &self.format.digests);
            let found: Option<Piece> = pieces.into_iter().find(|p| p.shown.name == name);
            let missing =
                || StoreError::io(std::path::Path::new(name), io::ErrorKind::NotFound.into());
            parts::open(found.ok_or_else(missing)?, stored)
        })
    }
}

impl Marks for Amp {
    /// Writes my mark into every file of the message, in my own inbox only; whether one says so now.
    fn tell(&self, at: &Location, read: bool) -> Result<bool, StoreError> {
        let copies = {
            let table = self.table.read();
            let kept = table.facts(at.source).ok_or(StoreError::Moved)?;
            boxes::copies(&table, at.source, kept)
        };
        let (mut said, mut failed) = (false, None);
        for n in copies {
            match self.tell_in(n, read) {
                Ok(done) => said |= done,
                Err(e) => failed = failed.or(Some(e)),
            }
        }
        failed.map_or(Ok(said), Err)
    }
}

impl Amp {
    /// The same in one file.
    fn tell_in(&self, n: u32, read: bool) -> Result<bool, StoreError> {
        self.with_message(n, |stored, place, stamp, bytes| {
            // Stale mail is shown as read on the store's word; nothing is said about it there.
            let own = Mailbox::of(&place.file.folder) == Some(Mailbox::Inbox);
            if !own || place.file.facts.has(Bit::Expired) {
                return Ok(false);
            }
            let Some(edited) = super::edit::set_status(bytes, read, Timestamp::now()) else {
                return Ok(stored.status.is_some_and(envelope::ReadState::is_read) == read);
            };
            let path = self.about.dir.join(place.file.path());
            let io = |e| StoreError::io(&path, e);
            let parts = files::parts(&place.file.folder);
            let dir = below::open_dir(&self.about.dir, &parts).map_err(io)?;
            let slot = Slot::below(&dir, &place.file.name).map_err(io)?;
            let done = slot.replace(stamp, &edited).map_err(io)?;
            self.note(&path);
            if done.is_some() { Ok(true) } else { Err(StoreError::Moved) }
        })
    }
}

/// Whether a file holds the message that was reported. One that was refused is shown as it is.
fn is_what_was_seen(place: &Place, stored: &Stored<'_>, stamp: &Stamp) -> bool {
    let Some(kept) = place.file.message() else { return true };
    facts::facts(stored, stamp, Timestamp::now()).kept.is(kept)
}

/// The id under which the signed bytes of a file came first, if that was another one.
fn replay_of(table: &Table<Kept>, file: &File<Kept>) -> Option<String> {
    file.facts.has(Bit::Signed).then_some(())?;
    let first = *table.with_key(BY_CONTENT, file.facts.content).first()?;
    table.facts(first).filter(|earlier| first < file.n && earlier.key != file.facts.key)?;
    stem_of(table.name(first)).map(str::to_owned)
}

fn warnings(stored: &Stored<'_>, place: &Place, body: &str) -> Vec<String> {
    let subject = stored.subject.as_deref().unwrap_or_default();
    let names: Vec<&str> =
        stored.attachments.iter().filter_map(|a| a.filename.as_deref()).collect();
    let found = scan_text::flags(&format!("{subject}\n{body}"), &names);
    let mut out: Vec<String> = found.into_iter().map(str::to_owned).collect();
    let kept = place.file.facts;
    let also = [
        (kept.has(Bit::Expired), "expired"),
        (kept.has(Bit::Future), "future date"),
        (over_limit(stored), "over limit"),
    ];
    out.extend(also.into_iter().filter(|(is, _)| *is).map(|(_, word)| word.to_owned()));
    out.extend(place.replay_of.as_ref().map(|id| format!("replay of {id}")));
    out
}
