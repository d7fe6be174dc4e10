//! One message in full: its header, its text and its warnings.

use std::io;
use std::time::Duration;

use super::AmpStore;
use super::attachments::{self, AmpAttachmentFile};
use super::envelope::{self, AmpMessage, AttachmentRef};
use super::facts::{self, AmpFacts};
use super::format::{self, AmpMailFolder, message_file_stem};
use super::limits::{FILE_BYTES, is_over_limit};
use super::multicast::AmpMulticast;
use super::references::{begun_thread_id, resolve_reply_id};
use super::roster::Roster;
use super::table_facts::{AmpFlag, AmpTableFacts, BY_CONTENT};
use super::{injection, verify};
use crate::model::{Attachment, DraftAttachment, Message, Timestamp, display_path, qualify_id};
use crate::store::atomic_file::FileSlot;
use crate::store::confined;
use crate::store::engine::files::{self, FileFlags, FileTable, StoreFile};
use crate::store::fs::Stamp;
use crate::store::{
    Location, PartContent, PartReader, PreparedRecord, Record, Store as _, StoreError, StoreMarks,
};

/// The number of tries for a file in writing, and the pause between them.
const TRIES: u32 = 10;
const PAUSE: Duration = Duration::from_millis(20);

/// The table's entry for the file of a message.
pub(super) struct AmpSourceFile {
    file: StoreFile<AmpTableFacts>,
    qualifier: Option<[u8; 32]>,
    /// The id under which the same signed bytes came earlier.
    replay_of: Option<String>,
}

impl AmpStore {
    fn lookup_source_file(&self, n: u32) -> Result<AmpSourceFile, StoreError> {
        let file = self.find_file(n)?;
        let table = self.table.read();
        let (qualifier, replay_of) =
            (table.qualifiers.get(&n).copied(), find_replayed_id(&table, &file));
        Ok(AmpSourceFile { file, qualifier, replay_of })
    }

    /// Passes the message at a location to `use_it`, with the table's entry. A file that cannot be parsed is read again
    /// for a moment; then the last parsable bytes count.
    pub(super) fn with_message<T>(
        &self,
        source: u32,
        use_it: impl Fn(&AmpMessage<'_>, &AmpSourceFile, &Stamp, &[u8]) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let mut known = false;
        for attempt in 0..TRIES {
            let place = self.lookup_source_file(source)?;
            known = place.file.row.is_message();
            let (stamp, bytes) = self.read_file_bytes(&place.file, FILE_BYTES + 1)?;
            if let Ok(stored) = envelope::parse(&bytes) {
                if !is_reported_message(&place, &stored, &stamp) {
                    return Err(StoreError::Moved);
                }
                if known {
                    self.format.cache_bytes(source, &bytes);
                }
                return use_it(&stored, &place, &stamp, &bytes);
            }
            // A file that was never a message is not waited for.
            if !known || attempt + 1 == TRIES || place.file.row.has_flag(FileFlags::BROKEN) {
                break;
            }
            std::thread::sleep(PAUSE);
        }
        let saved = || Some(self.table.read().last_texts.get(&source)?.as_bytes().into());
        let kept = self.format.cached_bytes(source).or_else(saved);
        let kept: Box<[u8]> = kept.filter(|_| known).ok_or(StoreError::Moved)?;
        let place = self.lookup_source_file(source)?;
        let stored = envelope::parse(&kept).map_err(|_| StoreError::Moved)?;
        let stamp = Stamp::default();
        if !is_reported_message(&place, &stored, &stamp) {
            return Err(StoreError::Moved);
        }
        use_it(&stored, &place, &stamp, &kept)
    }

    pub(super) fn read_message(&self, at: &Location) -> Result<Record, StoreError> {
        let roster = self.format.home.recent_roster()?;
        self.with_message(at.source, |stored, place, stamp, _| {
            Ok(self.build_record(stored, place, stamp, &roster))
        })
    }

    fn build_record(
        &self,
        stored: &AmpMessage<'_>,
        place: &AmpSourceFile,
        stamp: &Stamp,
        roster: &Roster,
    ) -> Record {
        let mut facts = facts::collect_facts(stored, stamp, Timestamp::now());
        if facts.table_facts.has_flag(AmpFlag::FileTime) {
            facts.time = Timestamp::from_millis(place.file.facts.time);
        }
        let key = roster.find_key(&facts.from);
        let also_to = roster.alternate_addresses(&facts.to);
        let bodies = verify::choose_bodies(stored, key.as_ref(), &also_to);
        let pieces = attachments::resolve_attachments(
            stored,
            &self.properties.dir,
            roster,
            &self.format.digests,
        );
        let note = self.describe_relay(&place.file.folder, stored, &facts);
        let message = Message {
            id: qualify_id(stored.id.clone(), place.qualifier.as_ref()).into_owned(),
            thread: Some(begun_thread_id(&stored.id, place.qualifier.as_ref()).into_owned()),
            warnings: collect_warnings(
                stored,
                (&place.file.facts, place.replay_of.as_deref()),
                &bodies.body,
            ),
            attachments: pieces.into_iter().map(|p| p.attachment).collect(),
            ..self.build_message(stored, facts, bodies.body)
        };
        let claim = verify::extract_claim(stored, key, &also_to).ok().flatten();
        let body_if_valid = bodies.body_if_valid;
        Record { message, body_if_valid, claim, note, ..Record::default() }
    }

    /// Builds a message of what its file alone says.
    fn build_message(&self, stored: &AmpMessage<'_>, facts: AmpFacts, body: String) -> Message {
        let mut extra = Vec::new();
        if let Some(kind) = stored.kind.as_deref().filter(|k| !k.is_empty()) {
            extra.push(("Type", kind.to_owned()));
        }
        if let Some(priority) = stored.priority.as_deref().filter(|p| !matches!(*p, "" | "normal"))
        {
            extra.push(("Priority", priority.to_owned()));
        }
        Message {
            to: facts.recipients,
            time: facts.time,
            subject: stored.subject.as_deref().filter(|s| !s.is_empty()).map(str::to_owned),
            extra,
            in_reply_to: facts.answers.map(|id| resolve_reply_id(&self.table.read(), id)),
            body,
            from: Some(facts.from),
            ..Message::default()
        }
    }

    /// Returns a prepared message as it will be shown. The message to the first recipient stands for those to all.
    pub(super) fn preview_prepared(&self, prepared: &PreparedRecord) -> Option<Message> {
        let stored = envelope::parse(prepared.bytes.as_bytes()).ok()?;
        let now = Timestamp::now();
        let stamp = Stamp { mtime: i128::from(now.millis()) * 1_000_000, ..Stamp::default() };
        let facts = facts::collect_facts(&stored, &stamp, now);
        let roster = self.format.home.recent_roster().ok()?;
        let also_to = roster.alternate_addresses(&facts.to);
        let key = roster.find_key(&facts.from);
        let body = verify::choose_bodies(&stored, key.as_ref(), &also_to).body;
        let several = AmpMulticast::from_stored(&stored, &facts);
        let file = |(file, piece): (&DraftAttachment, &AttachmentRef<'_>)| {
            Some(Attachment::new(piece.filename.as_deref()?, file.size as usize))
        };
        let begins = several.as_ref().filter(|_| prepared.thread == prepared.id);
        let first = facts.recipients.first().zip(several.as_ref());
        Some(Message {
            id: first.map_or_else(|| prepared.id.clone(), |(to, all)| all.message_id_for(to)),
            thread: Some(begins.map_or_else(|| prepared.thread.clone(), AmpMulticast::thread_id)),
            warnings: collect_warnings(&stored, (&facts.table_facts, None), &body),
            attachments: prepared.files.iter().zip(&stored.attachments).filter_map(file).collect(),
            ..self.build_message(&stored, facts, body)
        })
    }
}

impl PartReader for AmpStore {
    fn open_part(&self, at: &Location, name: &str) -> Result<PartContent, StoreError> {
        let roster = self.format.home.recent_roster()?;
        self.with_message(at.source, |stored, _, _, _| {
            let pieces = attachments::resolve_attachments(
                stored,
                &self.properties.dir,
                &roster,
                &self.format.digests,
            );
            let found: Option<AmpAttachmentFile> =
                pieces.into_iter().find(|p| p.attachment.name == name);
            let missing =
                || StoreError::io(std::path::Path::new(name), io::ErrorKind::NotFound.into());
            attachments::open_attachment(found.ok_or_else(missing)?, stored)
        })
    }
}

impl StoreMarks for AmpStore {
    /// Writes my mark into every file of the message in my own inbox. Returns true if one has the mark now.
    fn write_mark(&self, at: &Location, read: bool) -> Result<bool, StoreError> {
        let copies = {
            let table = self.table.read();
            let kept = table.facts(at.source).ok_or(StoreError::Moved)?;
            format::find_copies(&table, at.source, kept)
        };
        let (mut said, mut failed) = (false, None);
        for n in copies {
            match self.mark_file(n, read) {
                Ok(done) => said |= done,
                Err(e) => failed = failed.or(Some(e)),
            }
        }
        failed.map_or(Ok(said), Err)
    }
}

impl AmpStore {
    /// Writes my mark into one file. Returns true if it has the mark now.
    fn mark_file(&self, n: u32, read: bool) -> Result<bool, StoreError> {
        self.with_message(n, |stored, place, stamp, bytes| {
            if AmpMailFolder::from_path(&place.file.folder) != Some(AmpMailFolder::Inbox) {
                return Ok(false);
            }
            let Some(edited) = super::edit::set_status(bytes, read, Timestamp::now()) else {
                return Ok(stored.status.is_some_and(envelope::ReadState::is_read) == read);
            };
            let path = self.properties.dir.join(place.file.path());
            if place.file.row.has_flag(FileFlags::BROKEN) {
                return Err(StoreError::Invalid(format!(
                    "{} cannot be read as a message now, so it takes no mark",
                    display_path(&path)
                )));
            }
            let io = |e| StoreError::io(&path, e);
            let parts = files::path_parts(&place.file.folder);
            let dir = confined::open_dir(&self.properties.dir, &parts).map_err(io)?;
            let slot = FileSlot::for_component(&dir, &place.file.name).map_err(io)?;
            let done = slot.replace_if_unchanged(stamp, &edited).map_err(io)?;
            self.note_change(&path);
            if done.is_some() { Ok(true) } else { Err(StoreError::Moved) }
        })
    }
}

/// Returns true if a file still holds the reported message. A rejected file is shown as it is.
fn is_reported_message(place: &AmpSourceFile, stored: &AmpMessage<'_>, stamp: &Stamp) -> bool {
    let Some(kept) = place.file.message_facts() else { return true };
    facts::collect_facts(stored, stamp, Timestamp::now()).table_facts.is_same_message(kept)
}

/// Returns the id under which the signed bytes of a file came first, if it was another id.
fn find_replayed_id(
    table: &FileTable<AmpTableFacts>,
    file: &StoreFile<AmpTableFacts>,
) -> Option<String> {
    file.facts.has_flag(AmpFlag::Signed).then_some(())?;
    let first = *table.files_with_key(BY_CONTENT, file.facts.content).first()?;
    table.facts(first).filter(|earlier| first < file.n && earlier.key != file.facts.key)?;
    message_file_stem(table.name(first)).map(str::to_owned)
}

/// Returns the warnings about a message, by its facts and the id under which it came first.
fn collect_warnings(
    stored: &AmpMessage<'_>,
    (kept, replay_of): (&AmpTableFacts, Option<&str>),
    body: &str,
) -> Vec<String> {
    let subject = stored.subject.as_deref().unwrap_or_default();
    let names: Vec<&str> =
        stored.attachments.iter().filter_map(|a| a.filename.as_deref()).collect();
    let found = injection::detect_injections(&format!("{subject}\n{body}"), &names);
    let mut out: Vec<String> = found.into_iter().map(str::to_owned).collect();
    let also = [
        (kept.has_flag(AmpFlag::Expired), "expired"),
        (kept.has_flag(AmpFlag::Future), "future date"),
        (is_over_limit(stored), "over limit"),
    ];
    out.extend(also.into_iter().filter(|(is, _)| *is).map(|(_, word)| word.to_owned()));
    out.extend(replay_of.map(|id| format!("replay of {id}")));
    out
}
