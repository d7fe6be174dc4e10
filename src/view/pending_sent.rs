//! Messages in `sent/` that were accepted and are not in their store yet. Each has the bytes that it will have
//! there, and beside it a note with the reason of the wait.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use super::Error;
use super::folder_scope::{FolderScope, MessageFolder};
use super::listing::Listing;
use super::message_texts::{MessageTexts, strip_thread_label};
use super::messages::MessagesKey;
use super::names;
use super::node::Node;
use super::unique_names::MessageNames;
use crate::index::{Index, IndexEntry, MsgIx};
use crate::link::{HealthBoard, HealthBoards};
use crate::model::{
    Day, Message, ShownMessage, SignatureState, Timestamp, sanitize_line, sanitize_text,
};
use crate::outbox::{FollowedReplyWarnings, Outbox, PendingMessage};

/// A message that waits.
#[derive(Debug)]
pub(super) struct PendingSentFile {
    /// Number of its store.
    pub store: usize,
    /// The id under which the outbox has it.
    id: String,
    stem: String,
    /// The message as its store will return it.
    pub message: Message,
    /// True if there is a note about it, because it is not merely on its way.
    is_noted: bool,
}

impl PendingSentFile {
    fn day(&self) -> Day {
        self.message.time.day()
    }

    /// Returns the name of its file.
    pub fn name(&self) -> String {
        format!("{}.txt", self.stem)
    }

    fn to_node(&self, warning: bool) -> Node {
        MessagesKey::Pending(self.store, self.id.clone(), warning).into()
    }

    /// Returns its name and node, and those of the note beside it.
    pub fn entries(&self) -> impl Iterator<Item = (String, Node)> + '_ {
        let note = || (format!("{}.warning", self.stem), self.to_node(true));
        let text = (self.name(), self.to_node(false));
        std::iter::once(text).chain(self.is_noted.then(note))
    }
}

/// A message that was accepted and is in no store yet.
pub(super) struct HeldMessage {
    /// Number of its store.
    pub store: usize,
    /// Its id, as it will be shown.
    pub id: String,
    /// The recipients of its record.
    pub to: Vec<String>,
    /// All its recipients.
    pub everybody: Vec<String>,
    pub time: Timestamp,
    /// Its subject, or the first line of its text.
    pub headline: String,
    /// The idempotency key under which it was accepted.
    pub key: Option<String>,
    /// The reason why it waits.
    pub waits: Option<String>,
}

/// The messages of mine that wait for their store, a recipient or a link.
pub(super) struct PendingSent {
    index: Arc<Index>,
    outbox: Option<Arc<Outbox>>,
    /// The warnings about replies, if there is no outbox that has them.
    followed_warnings: FollowedReplyWarnings,
    names: Arc<MessageNames>,
    texts: Arc<MessageTexts>,
    link_boards: HealthBoards,
}

impl PendingSent {
    /// Makes the value for one tree.
    pub fn new(
        index: Arc<Index>,
        outbox: Option<Arc<Outbox>>,
        followed_warnings: FollowedReplyWarnings,
        names: Arc<MessageNames>,
        texts: Arc<MessageTexts>,
        link_boards: HealthBoards,
    ) -> Self {
        Self { index, outbox, followed_warnings, names, texts, link_boards }
    }

    fn link_boards(&self) -> Vec<Arc<HealthBoard>> {
        self.link_boards.read().clone()
    }

    /// Returns the messages that the outbox still has.
    pub fn held_messages(&self) -> Vec<PendingMessage> {
        self.outbox.as_ref().map(|outbox| outbox.sender().pending_messages()).unwrap_or_default()
    }

    /// Returns the messages that were accepted and are not in their stores yet, oldest first.
    fn list(&self) -> Vec<PendingSentFile> {
        let mut taken = HashSet::new();
        let mut seen: HashMap<(usize, Timestamp), Vec<Message>> = HashMap::new();
        let mut files = Vec::new();
        for held in self.held_messages() {
            let Some((store, message)) = self.preview_message(&held) else { continue };
            // The records of one message to several recipients differ in nothing but their ids and the threads that
            // they begin.
            let common = Message { id: String::new(), thread: None, ..message.clone() };
            let seen = seen.entry((store, message.time)).or_default();
            if seen.contains(&common) || self.find_shown_record(store, &message).is_some() {
                continue;
            }
            seen.push(common);
            files.push(self.make_file(&held, store, message, &mut taken));
        }
        files
    }

    /// Returns the note about a message that waits. It waits since it was accepted.
    fn format_waiting_note(&self, held: &PendingMessage) -> Option<String> {
        let why = sanitize_line(held.waits.as_ref()?);
        let shown = |ix| self.index.read().messages.entry(ix).time();
        let since = self.find_in_index(held).map(shown);
        let since = since.or_else(|| Some(self.preview_message(held)?.1.time))?.rfc3339();
        let to = sanitize_line(&held.message.to);
        Some(format!("waits for {to} since {since} and is tried again by itself: {why}\n"))
    }

    /// Returns the note about a message that is not in its store yet.
    fn note_of_held(&self, held: &PendingMessage) -> Option<String> {
        let warnings = self.outbox.as_ref().map(|outbox| outbox.reply_warnings());
        let answer = warnings.and_then(|all| all.find(&held.store, &held.message.id));
        let lines: Vec<String> = self
            .format_waiting_note(held)
            .into_iter()
            .chain(answer.map(|text| text + "\n"))
            .collect();
        (!lines.is_empty()).then(|| lines.concat())
    }

    /// Returns the record of a message that the index has, if `sent/` shows that record for all recipients of the
    /// message.
    fn find_shown_record(&self, store: usize, message: &Message) -> Option<MsgIx> {
        self.find_my_message(store, &message.id).filter(|_| message.to.len() > 1)
    }

    /// Returns true if messages may wait, and so come and go without a change of the index.
    pub fn may_wait(&self) -> bool {
        self.has_held() || self.may_wait_for_link()
    }

    /// Returns true if the outbox may have messages that their stores do not have yet.
    pub fn has_held(&self) -> bool {
        self.outbox.as_ref().is_some_and(|outbox| outbox.sender().has_pending())
    }

    /// Returns the messages that are not in their stores yet, oldest first, each with its text.
    pub fn list_texts(&self) -> Vec<(PendingSentFile, String)> {
        let with_text = |file: PendingSentFile| {
            let text = self.render_outgoing(file.store, &file.message)?;
            Some((file, text))
        };
        self.list().into_iter().filter_map(with_text).collect()
    }

    /// Returns the message in the index for a message that waited, if its store has it by now.
    pub fn find_indexed(&self, file: &PendingSentFile) -> Option<MsgIx> {
        let ix = self.find_my_message(file.store, &file.id)?;
        Some(self.index.read().messages.find_original(ix).unwrap_or(ix))
    }

    /// Returns a pending message as its store will return it, and the number of the store; `None` if the index
    /// has it.
    fn preview_message(&self, held: &PendingMessage) -> Option<(usize, Message)> {
        if self.find_in_index(held).is_some() {
            return None;
        }
        let mut stores = self.index.stores().iter().enumerate();
        let (number, store) = stores.find(|(_, store)| store.name() == held.store)?;
        let mut message = store.require_appender().ok()?.preview_message(&held.message)?;
        strip_thread_label(store.as_ref(), &mut message);
        Some((number, message))
    }

    fn make_file(
        &self,
        held: &PendingMessage,
        store: usize,
        message: Message,
        taken: &mut HashSet<String>,
    ) -> PendingSentFile {
        let time = message.time;
        let from = message.from.clone().unwrap_or_default();
        let stem = |full| names::format_stem(time, &from, &message.id, full);
        let folder = FolderScope::SentDay(time.day());
        // The store may have got the message meanwhile, under the same name.
        let is_other = |ix| Some(ix) != self.find_my_message(store, &held.message.id);
        let free = |stem: &String| {
            let named = self.names.find_message_by_stem(folder, stem);
            !taken.contains(stem) && !named.is_some_and(is_other)
        };
        let stem = Some(stem(false)).filter(free).unwrap_or_else(|| stem(true));
        taken.insert(stem.clone());
        let is_noted = self.note_of_held(held).is_some();
        PendingSentFile { store, id: held.message.id.clone(), stem, message, is_noted }
    }

    /// Returns the message in the index that still waits because not every recipient has it.
    fn find_in_index(&self, held: &PendingMessage) -> Option<MsgIx> {
        let number = self.index.stores().iter().position(|s| s.name() == held.store)?;
        self.find_my_message(number, &held.message.id)
    }

    /// Returns my message with this id in a store, if the index has it.
    fn find_my_message(&self, number: usize, id: &str) -> Option<MsgIx> {
        let tables = self.index.read();
        let ix = tables.messages.find_message(number, self.index.stores().get(number)?.me(), id)?;
        tables.messages.entry(ix).is_live().then_some(ix)
    }

    /// Returns the messages of mine that are in the index and wait for a recipient, each with its note.
    pub fn list_undelivered(&self) -> Vec<(MsgIx, String)> {
        let held = self.held_messages();
        // A record that its store lacks may belong to a message of which the store has another record.
        let shown = |held: &PendingMessage| {
            let (store, message) = self.preview_message(held)?;
            self.find_shown_record(store, &message)
        };
        let noted = |held: &PendingMessage| {
            let note = self.format_waiting_note(held)?;
            Some((self.find_in_index(held).or_else(|| shown(held))?, note))
        };
        held.iter().filter_map(noted).collect()
    }

    /// Returns my messages that the index has and that the outbox still holds for some recipient, each with the reason
    /// of its wait, if it has one.
    pub fn held_reasons(&self, held: &[PendingMessage]) -> HashMap<MsgIx, Option<String>> {
        held.iter()
            .filter_map(|held| Some((self.find_in_index(held)?, held.waits.clone())))
            .collect()
    }

    /// Returns the messages that are not in their stores yet.
    pub fn list_unappended(&self, held: &[PendingMessage]) -> Vec<HeldMessage> {
        let to_message = |held: &PendingMessage| {
            let (store, message) = self.preview_message(held)?;
            let text = message.subject.as_deref().filter(|text| !text.trim().is_empty());
            let first = || message.body.lines().find(|line| !line.trim().is_empty());
            let headline = text.or_else(first).unwrap_or_default().to_owned();
            let everybody = message.to.iter().chain(&message.cc).cloned().collect();
            Some(HeldMessage {
                store,
                id: message.id,
                to: held.message.to.split(", ").map(str::to_owned).collect(),
                everybody,
                time: message.time,
                headline,
                key: held.key.clone(),
                waits: held.waits.clone(),
            })
        };
        held.iter().filter_map(to_message).collect()
    }

    /// Reads the boards of all links again, and returns true if a line of mine may wait for a link. Must be called
    /// before [`PendingSent::link_wait_warning`], which uses what the boards said last.
    pub fn may_wait_for_link(&self) -> bool {
        let boards = self.link_boards();
        for board in &boards {
            board.refresh();
        }
        boards.iter().any(|board| board.has_backlog())
    }

    /// Returns the warning about a message of mine whose line waits for a link.
    pub fn link_wait_warning(&self, entry: &IndexEntry) -> Option<String> {
        let store = entry.is_from_me().then(|| self.index.store_of(entry))?;
        let at = entry.location();
        let why =
            |board: &Arc<HealthBoard>| board.explain_wait(store.name(), store.me(), at.offset);
        let why = self.link_boards().iter().find_map(why)?;
        // A line in a copy of the log waits for nothing.
        store.is_my_log(at.source).then_some(why)
    }

    /// Returns the warning about a reply of mine: the other messages that were unread when it was sent.
    fn reply_warning(&self, entry: &IndexEntry) -> Option<String> {
        if !entry.is_from_me() || !self.has_reply_warnings() {
            return None;
        }
        let id = self.index.read().messages.id(entry);
        let store = self.index.store_of(entry).name();
        match &self.outbox {
            Some(outbox) => outbox.reply_warnings().find(store, &id),
            None => self.followed_warnings.find(store, &id),
        }
    }

    /// Returns true if there is a warning about a reply of mine.
    fn has_reply_warnings(&self) -> bool {
        match &self.outbox {
            Some(outbox) => !outbox.reply_warnings().is_empty(),
            None => !self.followed_warnings.is_empty(),
        }
    }

    /// Returns true if a message of mine has a warning of its own: it waits for a link, or it is a reply that was sent
    /// while other messages were unread.
    pub fn has_own_warning(&self, entry: &IndexEntry) -> bool {
        self.link_wait_warning(entry).is_some() || self.reply_warning(entry).is_some()
    }

    /// Returns true if [`PendingSent::has_own_warning`] may be true for a message.
    pub fn may_have_own_warning(&self) -> bool {
        self.may_wait_for_link() || self.has_reply_warnings()
    }

    /// Returns the text of `.warning`, and its time, which is that of the message. It has the warnings about all
    /// records of the message.
    pub fn warning_text(&self, ix: MsgIx) -> Result<(String, Timestamp), Error> {
        let time = self.texts.live_entry(ix)?.time();
        let records = self.index.read().messages.records_of_message(ix);
        let waits = self.list_undelivered();
        // The call reads the boards of the links again.
        self.may_wait_for_link();
        let mut notes: Vec<String> = Vec::new();
        for record in records {
            let entry = self.texts.live_entry(record)?;
            if record == ix || self.index.read().messages.has_note(record) {
                notes.extend(self.texts.read_record(record, &entry)?.note);
            }
            notes.extend(waits.iter().filter(|(of, _)| *of == record).map(|(_, why)| why.clone()));
            let own = [self.link_wait_warning(&entry), self.reply_warning(&entry)];
            notes.extend(own.into_iter().flatten());
        }
        // The notes of several records may have the same lines.
        let mut told = HashSet::new();
        let lines = notes.iter().flat_map(|note| note.trim_end_matches('\n').split('\n'));
        let lines: Vec<&str> = lines.filter(|line| told.insert(*line)).collect();
        let text = lines.join("\n");
        if text.is_empty() {
            return Err(Error::NotFound);
        }
        Ok((format!("{}\n", sanitize_text(text.trim_end_matches('\n'))), time))
    }

    /// Returns true if there is a note about a message of mine.
    pub fn has_warning(&self, ix: MsgIx) -> bool {
        let records = self.index.read().messages.records_of_message(ix);
        let waits = self.list_undelivered();
        let may_have_own = self.may_have_own_warning();
        records.into_iter().any(|ix| {
            let entry = *self.index.read().messages.entry(ix);
            self.index.read().messages.has_note(ix)
                || waits.iter().any(|(of, _)| *of == ix)
                || may_have_own && self.has_own_warning(&entry)
        })
    }

    /// Returns the pending messages of a day of `sent/`.
    pub fn list_of_day(&self, day: Day) -> Vec<PendingSentFile> {
        self.list().into_iter().filter(|waiting| waiting.day() == day).collect()
    }

    /// Adds pending messages to the listing of their day of `sent/`, unless they are in their store and listed.
    pub fn add_to_listing(
        &self,
        mut held: Vec<PendingSentFile>,
        listing: Option<Listing>,
    ) -> Option<Listing> {
        if let Some(listing) = &listing {
            let listed: HashSet<MsgIx> = listing.messages().collect();
            let is_listed = |ix: MsgIx| {
                let original = self.index.read().messages.find_original(ix);
                listed.contains(&original.unwrap_or(ix))
            };
            held.retain(|w| self.find_my_message(w.store, &w.id).is_none_or(|ix| !is_listed(ix)));
        }
        if held.is_empty() {
            return listing;
        }
        let mut listing = listing.unwrap_or_else(|| Listing::empty(MessageFolder::Sent));
        listing.add_entries(held.iter().flat_map(PendingSentFile::entries));
        Some(listing)
    }

    /// Returns the days of `sent/` with pending messages.
    pub fn days(&self) -> BTreeSet<Day> {
        self.list().iter().map(PendingSentFile::day).collect()
    }

    /// Returns the time of the newest pending message.
    pub fn newest_time(&self) -> Option<Timestamp> {
        self.list().iter().map(|waiting| waiting.message.time).max()
    }

    /// Returns the time of the newest pending message of a day.
    pub fn newest_of_day(&self, day: Day) -> Option<Timestamp> {
        self.list_of_day(day).iter().map(|waiting| waiting.message.time).max()
    }

    /// Finds a pending message, or its note, by its name in a day of `sent/`.
    pub fn find(&self, day: Day, name: &str) -> Option<Node> {
        let held = self.list_of_day(day);
        let mut entries = held.iter().flat_map(PendingSentFile::entries);
        entries.find(|(entry, _)| entry == name).map(|(_, node)| node)
    }

    /// Returns the text of a message that waits, or of the note beside it, and its time. A message that has
    /// gone to its store since its name was looked up has the same text there.
    ///
    /// # Errors
    /// [`Error::NotFound`] for a note once its message is in its store.
    pub fn text(
        &self,
        store: usize,
        id: &str,
        warning: bool,
    ) -> Result<(String, Timestamp), Error> {
        let held = self.held_messages();
        let of_id = held.iter().filter(|held| held.message.id == id);
        let mut texts = of_id.filter_map(|held| {
            let (number, message) =
                self.preview_message(held).filter(|(number, _)| *number == store)?;
            let text = if warning {
                self.note_of_held(held)?
            } else {
                self.render_outgoing(number, &message)?
            };
            Some((text, message.time))
        });
        if let Some(text) = texts.next() {
            return Ok(text);
        }
        let ix = self.find_my_message(store, id).filter(|_| !warning).ok_or(Error::NotFound)?;
        let text = String::from_utf8_lossy(&self.texts.rendered_text(ix)?).into_owned();
        Ok((text, self.texts.live_entry(ix)?.time()))
    }

    /// Returns the text that a message of mine will have once its store has it.
    fn render_outgoing(&self, number: usize, message: &Message) -> Option<String> {
        let key = self.index.my_key(number).map(|key| key.fingerprint());
        let signature = key.map_or(SignatureState::None, SignatureState::Valid);
        let store = self.index.stores().get(number)?;
        let mut text = String::new();
        ShownMessage::new(message, store.kind().as_str()).render(&mut text, &signature.to_string());
        Some(text)
    }
}
