//! The mail that links exchange with providers elsewhere (docs/formats/amp.md, section 13).

use std::path::PathBuf;
use std::sync::Arc;

use super::envelope::{self, AmpMessage};
use super::facts::{self, AmpFacts, hash_texts};
use super::format::{AmpFormat, AmpMailFolder, AmpMessageRecord, find_resent_copies};
use super::limits::FILE_BYTES;
use super::multicast::AmpMulticast;
use super::table_facts::{AmpFlag, AmpTableFacts, BY_ID};
use super::{AmpStore, address, edit};
use crate::model::{Timestamp, sanitize_line};
use crate::store::atomic_file::FileSlot;
use crate::store::engine::files::{self, DirCache, FileTable, StoreFile};
use crate::store::fs::Stamp;
use crate::store::{
    DeliveryFate, DeliveryQueue, InboundMail, LinkRouter, OutboundMail, PreparedRecord, RemoteMail,
    Store, StoreError, confined, fs,
};

/// The number of threads that write the ids of providers into files, and the number of files for which one is enough.
const WRITERS: usize = 4;
const FEW_FILES: usize = 4;

/// The folder for mail whose sender has no address.
const NO_WRITER: &str = "unknown";

/// The way to choose a link.
#[derive(Clone, Copy, Debug)]
pub(super) enum AmpLinkChoice<'a> {
    /// The best link. If several are equally good, the one that knows me by one of these addresses.
    Best(&'a [String]),
    /// The link of this name.
    Via(&'a str),
    /// The link that knows me by this address.
    From(&'a str),
}

/// A message of mine about which a link will report more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct AmpPendingRelay {
    id: String,
    to: String,
    /// Ids and recipients of the messages of the multicast, including this one.
    members: Vec<(String, String)>,
    /// True if a link has a note about one of them.
    pub has_note: bool,
}

impl RemoteMail for AmpStore {
    fn description_path(&self) -> Option<PathBuf> {
        Some(self.properties.dir.join("registrations"))
    }

    fn set_router(&self, router: Arc<dyn LinkRouter>) {
        self.format.router.set(router);
        *self.format.pending_relays.lock() = None;
    }

    fn link_names(&self) -> Vec<String> {
        self.format.router.link_names()
    }

    fn has_link(&self, link: &str) -> bool {
        self.find_via_link(link).is_some()
    }

    /// Stores keys first, so that the messages that come with them can be judged.
    fn file_mail(&self, arrived: &InboundMail) -> Result<(), StoreError> {
        (self as &dyn Store).require_folder()?;
        for (address, key) in &arrived.keys {
            self.format.home.pin_key(address, *key)?;
        }
        if arrived.bytes.is_empty() {
            return Ok(());
        }
        let _one = self.format.append_lock.lock();
        let parsed = envelope::parse(&arrived.bytes).ok();
        let facts =
            parsed.as_ref().map(|p| facts::collect_facts(p, &Stamp::default(), Timestamp::now()));
        let is_double = |facts: &AmpFacts| {
            let table = self.table.read();
            // A file whose signature is not valid takes the place of no message.
            let is_valid =
                |kept: &AmpTableFacts| !kept.has_flag(AmpFlag::Invalid) && kept.lacking_keys == 0;
            let here = |n: &u32| {
                AmpMailFolder::from_path(table.folder(*n)) == Some(AmpMailFolder::Inbox)
                    && table.facts(*n).is_some_and(is_valid)
            };
            // No file has this number.
            find_resent_copies(&table, u32::MAX, &facts.table_facts).iter().any(here)
        };
        if facts.as_ref().is_some_and(is_double) {
            return Ok(());
        }
        if let Some(message) = &parsed {
            self.store_arrived_files(&message.id, &arrived.parts)?;
        }
        let from = facts.as_ref().map(|facts| facts.from.as_str());
        let from =
            from.filter(|from| address::is_wire_address(from)).map(address::correspondent_folder);
        let folder = from.unwrap_or_else(|| NO_WRITER.to_owned());
        let path @ [messages, inbox, bucket] = ["messages", "inbox", folder.as_str()];
        for stem in [&arrived.name, &arrived.other_name] {
            let name = format!(
                "{}.json",
                confined::require_component(stem).map_err(|e| self.bad_name_error(stem, e))?
            );
            let there =
                confined::open_path(&self.properties.dir, &[messages, inbox, bucket, &name]);
            match there {
                Ok(file) if !has_same_message(&file, &arrived.bytes) => {}
                _ => {
                    self.write_message_file(&self.properties.dir, &path, &name, &arrived.bytes)?;
                    break;
                }
            }
        }
        self.sync_folders()
    }
}

impl DeliveryQueue for AmpStore {
    /// Writes into my messages the ids that providers assigned, so that replies find them even when the links have
    /// forgotten. Returns true if a file changed.
    fn deliver_waiting(&self) -> Result<bool, StoreError> {
        let Some(router) = self.format.router.get() else { return Ok(false) };
        let given = |(n, underway): (u32, AmpPendingRelay)| {
            Some((n, router.engine_id(&underway.id, &underway.to)?))
        };
        let given: Vec<_> =
            self.format.list_pending_relays().into_iter().filter_map(given).collect();
        // Each file waits for the disk, which serves several in the time of one.
        let share = given.len().div_ceil(WRITERS).max(FEW_FILES);
        std::thread::scope(|scope| {
            let write = |part| scope.spawn(move || self.write_relayed_ids(part));
            let (own, others) = given.split_at(share.min(given.len()));
            let others: Vec<_> = others.chunks(share).map(write).collect();
            let own = self.write_relayed_ids(own);
            let all = others
                .into_iter()
                .map(|other| other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
            all.fold(own, |done, other| Ok(done? | other?))
        })
    }
}

impl AmpStore {
    /// Returns the link that a `Via` line names. The format's or the store's name may stand before the link's name.
    pub(super) fn find_via_link<'v>(&self, via: &'v str) -> Option<&'v str> {
        let behind =
            via.split_once('/').filter(|(of, _)| *of == "amp" || *of == self.properties.name);
        let link = behind.map_or(via, |(_, link)| link);
        self.link_names().iter().any(|name| name == link).then_some(link)
    }

    /// Chooses the link that reaches an address, and returns it with my address there.
    ///
    /// # Errors
    /// A sentence that says why no link can be chosen.
    pub(super) fn choose_link(
        &self,
        to: &str,
        choice: AmpLinkChoice<'_>,
    ) -> Result<Option<(String, String)>, String> {
        let Some(router) = self.format.router.get() else { return Ok(None) };
        let link = match choice {
            AmpLinkChoice::From(mine) => router.find_link_as(mine, to),
            AmpLinkChoice::Via(link) if router.can_reach(link, to) => Some(link.to_owned()),
            AmpLinkChoice::Via(link) => {
                return Err(format!("Via: the link {} does not reach it", sanitize_line(link)));
            }
            // If several links are equally good, a reply uses the one of my address in the answered message.
            AmpLinkChoice::Best(asked) => match router.find_link(to) {
                Ok(link) => link,
                Err(why) => {
                    let found = asked.iter().find_map(|mine| router.find_link_as(mine, to));
                    Some(found.ok_or(why)?)
                }
            },
        };
        Ok(link.and_then(|link| Some((link.clone(), router.own_address(&link)?))))
    }

    /// Checks that a link takes files of these sizes.
    pub(super) fn check_link_limits(&self, link: &str, files: &[u64]) -> Result<(), String> {
        self.format.router.get().map_or(Ok(()), |router| router.check_file_sizes(link, files))
    }

    /// Returns true if a link reaches an address.
    pub(super) fn is_reachable(&self, address: &str) -> bool {
        let address = address.trim().to_ascii_lowercase();
        // If several do, the sender chooses.
        self.format.router.find_link(&address) != Ok(None)
    }

    /// Hands a message to a link. The link has it on disk when the appends are synced.
    pub(super) fn hand_to_link(
        &self,
        link: &str,
        to: &str,
        message: &PreparedRecord,
        parts: Vec<(String, PathBuf)>,
    ) -> Result<(), StoreError> {
        let Some(router) = self.format.router.get() else {
            return Err(StoreError::Busy(format!("the link {link} is not open")));
        };
        let parcel = OutboundMail {
            message_id: message.id.clone(),
            to: to.to_owned(),
            bytes: message.bytes.clone().into_bytes(),
            parts,
        };
        router.accept_mail(link, &parcel).map_err(|e| StoreError::io(&self.properties.dir, e))
    }

    /// Returns the ids of a message elsewhere: the id under which it was written, if it came from there, and the id by
    /// which others know it. Each is `None` if it is the same as here.
    pub(super) fn lookup_remote_ids(&self, id: &str) -> (Option<String>, Option<String>) {
        let written = || {
            let path = {
                let table = self.table.read();
                let found = table.files_with_key(BY_ID, hash_texts(&[id]));
                let named =
                    |n: &u32| table.facts(*n).is_some_and(|kept: &AmpTableFacts| kept.alias != 0);
                table.path(found.into_iter().find(named)?)?
            };
            let file = confined::open_path(&self.properties.dir, &files::path_parts(&path)).ok()?;
            let (stamp, bytes) = confined::read_whole(&file, FILE_BYTES + 1).ok()?;
            let stored = envelope::parse(&bytes).ok()?;
            Some(match AmpMailFolder::from_path(path.rsplit_once('/')?.0)? {
                AmpMailFolder::Sent => (None, stored.relayed_id.map(std::borrow::Cow::into_owned)),
                AmpMailFolder::Inbox => {
                    let own = facts::collect_facts(&stored, &stamp, Timestamp::now()).own_id;
                    (own.clone(), own)
                }
            })
        };
        written().unwrap_or_default()
    }

    /// Describes for a person the state of a message of mine that links carry: one line for each recipient who does not
    /// have it yet.
    pub(super) fn describe_relay(
        &self,
        folder: &str,
        stored: &AmpMessage<'_>,
        facts: &AmpFacts,
    ) -> Option<String> {
        let router = self.format.router.get()?;
        if AmpMailFolder::from_path(folder) != Some(AmpMailFolder::Sent) {
            return None;
        }
        let line = |(id, to): &(String, String)| match router.delivery_fate(id, to)? {
            DeliveryFate::Waits(why) => {
                Some(format!("waits for {to} and is tried again by itself: {why}\n"))
            }
            fate => fate.describe_end(to),
        };
        let lines: String = list_multicast_members(stored, facts).iter().filter_map(line).collect();
        Some(lines).filter(|lines| !lines.is_empty())
    }

    /// Writes the ids that providers assigned into files in `sent/`, all that can be written. Returns true if a file
    /// changed.
    fn write_relayed_ids(&self, given: &[(u32, String)]) -> Result<bool, StoreError> {
        let mut dirs = DirCache::new(&self.properties.dir);
        let (mut done, mut failed) = (false, None);
        for (n, id) in given {
            match self.write_relayed_id(&mut dirs, *n, id) {
                Ok(noted) => done |= noted,
                Err(e) => failed = failed.or(Some(e)),
            }
        }
        failed.map_or(Ok(done), Err)
    }

    /// Writes the id that a provider assigned into the message's file in `sent/`. Returns true if the file changed.
    fn write_relayed_id(
        &self,
        dirs: &mut DirCache<'_>,
        n: u32,
        given: &str,
    ) -> Result<bool, StoreError> {
        let file: StoreFile<AmpTableFacts> = self.find_file(n)?;
        let (stamp, bytes) = self.read_file_bytes_in(dirs, &file, FILE_BYTES + 1)?;
        let Some(edited) = edit::set_relayed_id(&bytes, given) else { return Ok(false) };
        let path = self.properties.dir.join(file.path());
        let io = |e| StoreError::io(&path, e);
        let dir = dirs.open(&file.folder).map_err(io)?;
        let done = FileSlot::for_component(&*dir, &file.name)
            .and_then(|slot| slot.replace_if_unchanged(&stamp, &edited));
        let done = done.map_err(io)?.is_some();
        self.note_change(&path);
        Ok(done)
    }

    /// Stores the files that came with a message. Existing files stay.
    fn store_arrived_files(&self, id: &str, parts: &[(String, PathBuf)]) -> Result<(), StoreError> {
        for (name, path) in parts {
            let name =
                confined::require_component(name).map_err(|e| self.bad_name_error(name, e))?;
            let mut from = fs::open_regular(path).map_err(|e| StoreError::io(path, e))?;
            let copy = |to: &mut std::fs::File| std::io::copy(&mut from, to).map(drop);
            self.write_new_file(&self.properties.dir, &["attachments", id], name, copy)?;
        }
        Ok(())
    }

    fn bad_name_error(&self, name: &str, error: std::io::Error) -> StoreError {
        StoreError::io(&self.properties.dir.join("messages/inbox").join(name), error)
    }
}

impl AmpFormat {
    /// Returns true if a link will report more about a message in `sent/`, and the pending relay. The relay is also
    /// `None` while the links are unknown.
    pub(super) fn find_pending_relay(
        &self,
        parsed: &AmpMessageRecord<'_>,
    ) -> (bool, Option<AmpPendingRelay>) {
        let AmpMessageRecord { stored, facts, .. } = parsed;
        let all = list_multicast_members(stored, facts);
        let is_carried = facts.table_facts.has_flag(AmpFlag::Carried);
        if !is_carried && all.len() == 1 {
            return (false, None);
        }
        let is_named = stored.relayed_id.is_some() || !is_carried;
        let Some(router) = self.router.get() else { return (!is_named || all.len() > 1, None) };
        let (id, to) = (stored.id.to_string(), facts.to.clone());
        let noted = has_relay_note(router, &all);
        let wants_id = || router.engine_id(&id, &to).is_some();
        // The link may have lost its acceptance with the power, and accepts it again soon.
        let is_unknown = || router.delivery_fate(&id, &to).is_none();
        let is_pending = noted || !is_named && (wants_id() || is_unknown());
        let underway =
            is_pending.then_some(AmpPendingRelay { id, to, members: all, has_note: noted });
        (underway.is_some(), underway)
    }

    /// Stores or removes the pending relay of a message, for [`AmpFormat::list_changed_relays`].
    pub(super) fn store_pending_relay(&self, n: u32, underway: Option<AmpPendingRelay>) {
        let mut all = self.pending_relays.lock();
        match (all.as_mut(), underway) {
            (Some(all), Some(underway)) => drop(all.insert(n, underway)),
            (Some(all), None) => drop(all.remove(&n)),
            // The relays were not looked up yet.
            (None, _) => {}
        }
    }

    /// Returns the messages about which links report something new.
    pub(super) fn list_changed_relays(&self, table: &FileTable<AmpTableFacts>) -> Vec<u32> {
        let known = {
            let mut all = self.pending_relays.lock();
            let known = all.clone();
            all.get_or_insert_default();
            known
        };
        let (Some(known), Some(router)) = (known, self.router.get()) else {
            let underway =
                table.messages().filter(|(_, _, kept)| kept.has_flag(AmpFlag::RelayPending));
            return underway.map(|(n, ..)| n).collect();
        };
        let is_other = |u: &AmpPendingRelay| u.has_note != has_relay_note(router, &u.members);
        known.into_iter().filter(|(_, underway)| is_other(underway)).map(|(n, _)| n).collect()
    }

    fn list_pending_relays(&self) -> Vec<(u32, AmpPendingRelay)> {
        let all = self.pending_relays.lock();
        let all = all.iter().flatten();
        all.map(|(n, underway)| (*n, underway.clone())).collect()
    }
}

/// Lists ids and recipients of all messages of a multicast.
fn list_multicast_members(stored: &AmpMessage<'_>, facts: &AmpFacts) -> Vec<(String, String)> {
    match AmpMulticast::from_stored(stored, facts) {
        Some(several) => {
            facts.recipients.iter().map(|to| (several.message_id_for(to), to.clone())).collect()
        }
        None => vec![(stored.id.to_string(), facts.to.clone())],
    }
}

/// Returns true if a link has a note about one of these messages.
fn has_relay_note(router: &dyn LinkRouter, all: &[(String, String)]) -> bool {
    all.iter().any(|(id, to)| router.is_underway(id, to))
}

/// Returns true if a file holds the arrived message: the same bytes, or the same content spelled differently. Newlines
/// at the end of the text count here: the signature may cover them.
fn has_same_message(file: &std::fs::File, bytes: &[u8]) -> bool {
    let Ok((stamp, there)) = confined::read_whole(file, FILE_BYTES + 1) else { return false };
    let print = |bytes: &[u8]| {
        let stored = envelope::parse(bytes).ok()?;
        let facts = facts::collect_facts(&stored, &stamp, Timestamp::now()).table_facts;
        Some((facts.content, stored.message.map(std::borrow::Cow::into_owned)))
    };
    there == bytes || print(bytes).is_some_and(|arrived| print(&there) == Some(arrived))
}
