//! From a draft to parcels in the spool: parse, address, route, copy the attachments, sign.

mod idempotency;

use std::collections::{BTreeSet, HashMap};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::address::{self, ReplyParent};
use super::attachments::{self, AttachmentSource, NamedSize};
use super::clock::{SendClock, TimeFloor};
use super::draft::DraftParser;
use super::keys::SigningKeys;
use super::reply_warnings::{self, ReplyWarnings};
use super::reservations::{IdempotencyUse, Reservations};
use super::retry::DraftOutline;
use super::route::{self, Route};
use super::sender::SendContext;
use super::spool::SpoolParcel;
use super::{DraftTarget, OpenDraft, Outbox, OutboxError, OutboxSettings, SpooledDraft, draft};
use crate::identity::KeyPair;
use crate::index::{MsgIx, ThreadIx};
use crate::model::locks::Mutex;
use crate::model::{Draft, Message, Timestamp, plain_id, plain_thread_id, sanitize_line};
use crate::store::{AnswerScheme, PrepareContext, Signer as _, Store, StoreError};

/// The share of a draft that goes to one store.
struct StoreDraft {
    store: usize,
    draft: Draft,
    parent: Option<Message>,
    /// The time that the new message must follow: the later of two times. One is in the name of the answered message,
    /// whatever store has it. The other is that of my newest message in the thread, which counts only if it is too far
    /// ahead of the clock.
    after: Option<Timestamp>,
    signer: Arc<KeyPair>,
}

/// The way from a draft to signed records: it routes, copies attachments and signs.
pub(super) struct DraftPacker {
    context: Arc<SendContext>,
    settings: OutboxSettings,
    keys: Arc<SigningKeys>,
    pub(super) reply_warnings: ReplyWarnings,
    clock: Mutex<SendClock>,
}

impl Outbox {
    /// Puts the draft as it is now into the spool, in place of an earlier version.
    pub(super) fn spool_draft(&self, d: &mut OpenDraft) -> Result<(), OutboxError> {
        let earlier = d.spooled.take();
        if d.is_empty() {
            self.discard_spooled(earlier);
            return Ok(());
        }
        let replaced = earlier.as_ref().map_or(&[][..], |spooled| &spooled.parcels);
        let parcels = match self.packer.prepare_parcels(d, replaced) {
            Ok(parcels) if !parcels.is_empty() => parcels,
            Ok(_) => {
                self.discard_spooled(earlier);
                d.spooled = Some(SpooledDraft { number: None, parcels: Vec::new() });
                return Ok(());
            }
            // More text may come. Until then the success of an earlier close stays true.
            Err(e) => {
                d.spooled = earlier;
                return Err(e);
            }
        };
        // One step replaces the old version, so that a crash leaves one of the two.
        let instead = earlier.as_ref().and_then(|spooled| spooled.number);
        let put = self.context.spool.insert(parcels.clone(), instead);
        self.context.attachments.remove_copies(replaced);
        let number = put.map_err(|error| {
            self.context.release_parcels(&parcels);
            OutboxError::Io { what: "the message could not be put into the spool", error }
        })?;
        d.spooled = Some(SpooledDraft { number: Some(number), parcels });
        Ok(())
    }

    /// Ends the spool entry of a draft, with its ids and copies.
    pub(super) fn discard_spooled(&self, spooled: Option<SpooledDraft>) {
        if let Some(n) = spooled.and_then(|spooled| spooled.number) {
            self.context.end_entry(n, false);
        }
    }

    /// Takes back the spool entry of a draft that has changed. The next flush or the last close spools it again.
    pub(super) fn unspool(&self, d: &mut OpenDraft) {
        if let Some(spooled) = d.spooled.take() {
            self.discard_spooled(Some(spooled));
            d.dirty = true;
        }
    }

    /// Hands a spooled draft to the sending thread.
    pub(super) fn send_spooled(&self, spooled: Option<SpooledDraft>) {
        if let Some(SpooledDraft { number: Some(n), parcels }) = spooled {
            self.sender.send(n, parcels, false);
        }
    }
}

impl Outbox {
    /// Returns the recipients to whom a text would go as a draft of this name in `outbox/`, each with the number of its
    /// store. Nothing is written.
    ///
    /// # Errors
    /// The reason for which the draft would be refused.
    pub fn route_text(&self, name: &str, text: &[u8]) -> Result<Vec<(usize, String)>, OutboxError> {
        let mut draft = self.packer.draft_parser().parse(text)?;
        address::complete_draft(&self.context.index, &mut draft, name, &DraftTarget::Outbox)?;
        let routes = self.packer.route_draft(&draft)?;
        let recipients = |route: Route| {
            let store = route.store;
            route.to.into_iter().chain(route.cc).map(move |to| (store, to))
        };
        Ok(routes.into_iter().flat_map(recipients).collect())
    }
}

impl DraftPacker {
    /// Makes a packer with these settings and keys.
    pub(super) fn new(
        context: Arc<SendContext>,
        settings: OutboxSettings,
        keys: Arc<SigningKeys>,
        reply_warnings: ReplyWarnings,
    ) -> Self {
        Self { context, settings, keys, reply_warnings, clock: Mutex::default() }
    }

    /// Returns a parser for the header lines that a draft can have here.
    pub(super) fn draft_parser(&self) -> DraftParser {
        let stores = self.context.index.stores();
        DraftParser::with_headers(
            stores.iter().flat_map(|store| store.properties().headers).copied(),
        )
    }

    /// Parses, routes, copies and signs. The ids of the result are reserved. The result is empty if every recipient has
    /// the message already.
    pub(super) fn prepare_parcels(
        &self,
        d: &OpenDraft,
        replaced: &[SpoolParcel],
    ) -> Result<Vec<SpoolParcel>, OutboxError> {
        let parsed = self.draft_parser().parse(&d.text)?;
        let mut draft = parsed.clone();
        let answered =
            address::complete_draft(&self.context.index, &mut draft, &d.name, &d.target)?;
        let outline = DraftOutline::new(d, &parsed, &draft);
        let routes = self.route_draft(&draft)?;
        let sources = attachment_sources(&draft, &d.files);
        if is_blank(&draft.body) && sources.is_empty() {
            return Err(empty_draft_error());
        }
        let copies = if sources.is_empty() {
            None
        } else if self.is_sent_to_all(&draft, &outline, &routes, replaced)? {
            // The message is a retry, and its files may be gone by now.
            return Ok(Vec::new());
        } else {
            Some(
                self.context
                    .attachments
                    .copy_files(&sources, &self.check_sizes(&sources, &routes)?)?,
            )
        };
        draft.attachments = copies.as_ref().map(|c| c.files.clone()).unwrap_or_default();
        let parts = routes.into_iter().map(|route| self.draft_for_store(&draft, route, answered));
        let parts = parts.collect::<Result<Vec<_>, _>>()?;
        let mut reserved = self.context.reservations.lock();
        reserved.remove_all(replaced);
        let made = self.sign_drafts(parts, &outline, &reserved);
        reserved.insert_all(made.as_deref().unwrap_or(replaced));
        drop(reserved);
        let parcels = made?;
        // Nothing would ever remove copies that no parcel names.
        if let Some(copies) = copies.filter(|_| parcels.iter().any(|p| !p.message.files.is_empty()))
        {
            copies.persist();
        }
        self.warn_of_unread(answered, &parcels);
        Ok(parcels)
    }

    /// Records a warning about a reply if newer messages to me in its thread are unread.
    fn warn_of_unread(&self, answered: Option<ReplyParent>, parcels: &[SpoolParcel]) {
        let Some(answered) = answered else { return };
        let Ok(store) = self.store(answered.store) else { return };
        let warning = {
            let tables = self.context.index.read();
            reply_warnings::describe_unread(&tables, store.as_ref(), answered)
        };
        if let Some(text) = warning {
            self.reply_warnings.record(parcels, &text);
        }
    }

    /// Returns the recipients by store, in the order of the stores' first recipients.
    pub(super) fn route_draft(&self, draft: &Draft) -> Result<Vec<Route>, OutboxError> {
        route::route_recipients(&self.context.index, draft, &self.settings)
    }

    fn store(&self, number: usize) -> Result<&Arc<dyn Store>, OutboxError> {
        self.context.index.stores().get(number).ok_or(OutboxError::NotFound)
    }

    /// Returns names and sizes of the files to attach, if every store takes them.
    fn check_sizes(
        &self,
        files: &[AttachmentSource],
        routes: &[Route],
    ) -> Result<Vec<NamedSize>, OutboxError> {
        let sizes = attachments::measure_files(files)?;
        for route in routes {
            let carried = self.store(route.store)?.properties().check_attachments(&sizes);
            carried.map_err(|e| match e {
                StoreError::Invalid(why) => {
                    let to: Vec<&str> =
                        route.to.iter().chain(&route.cc).map(String::as_str).collect();
                    OutboxError::Invalid(format!(
                        "{why} (it is to {})",
                        sanitize_line(&to.join(", "))
                    ))
                }
                other => other.into(),
            })?;
        }
        Ok(sizes)
    }

    /// Refuses files that cannot be attached, without copying any.
    pub(super) fn check_files(&self, draft: &Draft, routes: &[Route]) -> Result<(), OutboxError> {
        let sources = attachment_sources(draft, &[]);
        if sources.is_empty() { Ok(()) } else { self.check_sizes(&sources, routes).map(drop) }
    }

    /// Returns the share of a draft for one store: its recipients, and the thread as they know it.
    fn draft_for_store(
        &self,
        draft: &Draft,
        route: Route,
        answered: Option<ReplyParent>,
    ) -> Result<StoreDraft, OutboxError> {
        let store = self.store(route.store)?;
        let signer = self.keys.pin_key_for_store(store.as_ref())?;
        self.context.index.set_my_key(route.store, signer.public_key());
        let mut draft = Draft { to: route.to, cc: route.cc, ..draft.clone() };
        draft.is_blind = route.is_blind;
        let answered = answered.filter(|_| !route.is_blind);
        if route.is_blind {
            (draft.thread, draft.in_reply_to, draft.is_reply) = (None, None, false);
        }
        let mut parent = answered.filter(|a| a.store == route.store).map(|a| a.ix);
        if let Some(elsewhere) = answered.filter(|a| a.store != route.store) {
            // Ids of one store mean nothing in another. A header that the writer wrote stays.
            draft.in_reply_to.take_if(|_| elsewhere.filled_id);
            draft
                .thread
                .take_if(|_| elsewhere.filled_thread && store.properties().has_reply_links());
            if self.store(elsewhere.store)?.properties().has_thread_labels() {
                draft.thread = draft.thread.map(|id| plain_thread_id(&id).to_owned());
            }
            draft.is_reply = draft.in_reply_to.is_some() || draft.thread.is_some();
        }
        if store.properties().has_thread_labels() {
            let tables = self.context.index.read();
            draft.thread =
                draft.thread.map(|id| address::resolve_thread_label(&tables, route.store, id));
        }
        if store.properties().has_reply_links()
            && draft.in_reply_to.is_none()
            && let Some(thread) = &draft.thread
        {
            let tables = self.context.index.read();
            parent = address::newest_in_thread(&tables, route.store, thread);
            let id = parent.map(|ix| tables.messages.id(tables.messages.entry(ix)));
            draft.in_reply_to = id.map(|id| plain_id(&id).to_owned());
        }
        draft.is_reply |= draft.in_reply_to.is_some() && parent.is_some();
        if let (Some(id), None, None) = (&draft.in_reply_to, answered, parent)
            && !store.require_appender()?.may_be_id(id)
        {
            return Err(OutboxError::Invalid(format!(
                "In-Reply-To: no message here has the id {:?}; copy the id from the line Message-ID of the \
                 message, or remove the line",
                sanitize_line(id)
            )));
        }
        let (after, thread) = {
            let tables = self.context.index.read();
            let named = answered.map(|a| a.ix).into_iter().chain(parent);
            let named = named.map(|ix| tables.messages.name_time(tables.messages.entry(ix)));
            let thread = draft
                .thread
                .as_ref()
                .and_then(|id| tables.threads.find_thread(&tables.messages, route.store, id));
            let far = SendClock::horizon(Timestamp::now());
            let mine =
                thread.and_then(|thread| tables.messages.lists().newest_from_me_in(thread, far));
            (named.chain(mine).map(Timestamp::clamp_to_calendar).max(), thread)
        };
        if let Some(thread) = thread
            && store.properties().whole_seconds
            && matches!(store.properties().answers, AnswerScheme::NamedOrNext(_))
        {
            self.wait_for_next_second(thread);
        }
        let parent = parent.and_then(|ix| self.read_message(ix));
        Ok(StoreDraft { store: route.store, draft, parent, after, signer })
    }

    /// Waits for the next second if the thread has a message to me whose time is exactly the present second. Otherwise
    /// nobody could tell which of my messages in this second that message answers.
    fn wait_for_next_second(&self, thread: ThreadIx) {
        let now = Timestamp::now();
        let second = Timestamp::from_secs(now.secs());
        if self.context.index.read().messages.has_answer_in_second(thread, second) {
            let passed = now.millis().rem_euclid(1000).unsigned_abs();
            std::thread::sleep(Duration::from_millis(1000 - passed));
        }
    }

    /// Reads a message of the index. A message that cannot be read can still be answered.
    fn read_message(&self, ix: MsgIx) -> Option<Message> {
        for is_last in [false, true] {
            let (entry, id) = {
                let tables = self.context.index.read();
                let entry = *tables.messages.entry(ix);
                (entry, tables.messages.id(&entry))
            };
            let store = self.context.index.store_of(&entry);
            match store.read_record(&entry.location()) {
                Ok(mut record) if record.message.id == id => {
                    if store.properties().has_indexed_threads() {
                        let tables = self.context.index.read();
                        let (thread, _) = tables
                            .threads
                            .thread_id(&tables.messages, tables.messages.entry(ix).thread());
                        record.message.thread = Some(thread.to_owned());
                    }
                    return Some(record.message);
                }
                // The message moved since the last scan, or is just being rewritten.
                Ok(_) | Err(StoreError::Moved) if is_last => break,
                Ok(_) | Err(StoreError::Moved) => {
                    let _ = self.context.index.refresh_until_finished(entry.store(), true);
                }
                Err(e) => {
                    tracing::warn!(error = %e, "the message that is answered cannot be read");
                    return None;
                }
            }
        }
        None
    }

    /// Returns the signed records of a draft, in stores that have room for them.
    fn sign_drafts(
        &self,
        parts: Vec<StoreDraft>,
        outline: &DraftOutline,
        reserved: &Reservations,
    ) -> Result<Vec<SpoolParcel>, OutboxError> {
        let mut signed: Vec<SpoolParcel> = Vec::new();
        // The recipients of this draft's own messages, by thread.
        let mut along: HashMap<(usize, String), Vec<String>> = HashMap::new();
        let mut used: Vec<&Arc<dyn Store>> = Vec::new();
        for mut part in parts {
            if self.remove_served_recipients(part.store, &mut part.draft, outline, reserved)? {
                continue;
            }
            let store = self.store(part.store)?;
            store.require_folder()?;
            let max_body = store.properties().max_body;
            if part.draft.body.len() as u64 > max_body {
                return Err(OutboxError::TooLarge(max_body));
            }
            // The lock of the tables is not held for the store: it may wait for a scan that fills them.
            let taken = |id: &str| {
                self.context
                    .index
                    .read()
                    .messages
                    .find_message(part.store, store.me(), id)
                    .is_some()
                    || reserved.contains(store.name(), id)
            };
            let others = |thread: &str, people: &[&str]| {
                let along = along.get(&(part.store, thread.to_owned())).into_iter().flatten();
                let along = along.flat_map(|to| to.split(", "));
                self.has_others((part.store, store), thread, people, reserved, along)
            };
            let begun = |thread: &str| {
                along.contains_key(&(part.store, thread.to_owned()))
                    || reserved.recipients_in_thread(store.name(), thread).next().is_some()
                    || {
                        let tables = self.context.index.read();
                        tables.threads.has_thread_messages(&tables.messages, part.store, thread)
                    }
            };
            let now = self.next_send_time(part.after);
            let with = PrepareContext {
                parent: part.parent.as_ref(),
                is_id_taken: &taken,
                has_other_people: &others,
                is_thread_begun: &begun,
                ..PrepareContext::new(now, part.signer.as_ref())
            };
            let made = store.require_appender()?.prepare_records(&part.draft, &with)?;
            self.clock.lock().note_used(now, with.used_time.get());
            let one_for_all = made.len() == 1;
            for message in made {
                let to: Vec<String> = if one_for_all {
                    let all = part.draft.to.iter().chain(&part.draft.cc);
                    all.map(|to| store.canonical_address(to)).collect()
                } else {
                    message.to.split(", ").map(|to| store.canonical_address(to)).collect()
                };
                let thread = (part.store, message.thread.clone());
                along.entry(thread).or_default().push(message.to.clone());
                let key = part.draft.idempotency_key.clone();
                let keyed = key.map(|key| IdempotencyUse { key, to, outline: outline.clone() });
                signed.push(SpoolParcel { store: store.name().to_owned(), message, keyed });
            }
            used.push(store);
        }
        let size = |p: &SpoolParcel| {
            p.message.bytes.len() as u64 + 2 + p.message.files.iter().map(|f| f.size).sum::<u64>()
        };
        let bytes: u64 = signed.iter().map(size).sum();
        for store in used {
            store.require_appender()?.check_appendable(bytes)?;
        }
        Ok(signed)
    }

    /// Returns the time for a message sent now, later than `parent`.
    fn next_send_time(&self, parent: Option<Timestamp>) -> Timestamp {
        let now = Timestamp::now();
        let mine =
            self.context.index.read().messages.lists().newest_from_me(SendClock::horizon(now));
        self.clock.lock().next(now, TimeFloor { mine, parent })
    }

    /// Returns true if a thread has participants, and they are not exactly these and me.
    fn has_others<'a>(
        &self,
        (number, store): (usize, &Arc<dyn Store>),
        thread: &str,
        people: &[&str],
        reserved: &'a Reservations,
        along: impl Iterator<Item = &'a str>,
    ) -> bool {
        // The lock of the tables is not held for the store, as for `taken`.
        let known = {
            let tables = self.context.index.read();
            tables.threads.list_participants(&tables.messages, number, thread)
        };
        let canonical = |name: &str| store.canonical_address(draft::bare_address(name));
        let mut known: BTreeSet<String> = known.iter().map(|name| canonical(name)).collect();
        known.extend(
            reserved.recipients_in_thread(store.name(), thread).chain(along).map(canonical),
        );
        if known.is_empty() {
            return false;
        }
        known.insert(canonical(store.me()));
        let these = people.iter().copied().chain([store.me()]);
        known != these.map(canonical).collect()
    }
}

/// Returns true if a text has nothing to read: only blanks, and the NULs of a file that was only made longer.
fn is_blank(body: &str) -> bool {
    body.chars().all(|c| c.is_whitespace() || c == '\0')
}

/// Returns the error for a draft without text and files.
pub(super) fn empty_draft_error() -> OutboxError {
    OutboxError::Invalid("the text is empty, so there is nothing to send; write a text".into())
}

/// Returns the attachments: the files named in the header, then those of a composing folder.
fn attachment_sources(draft: &Draft, files: &[(String, PathBuf)]) -> Vec<AttachmentSource> {
    let named = draft.attach_paths.iter().map(|path| AttachmentSource::Path(path.into()));
    let composed =
        files.iter().map(|(name, path)| AttachmentSource::FolderFile(name.clone(), path.clone()));
    named.chain(composed).collect()
}
