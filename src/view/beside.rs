//! What lies beside a message, named like it: `.reply` answers it, `.reply-all` too, `.ack` acknowledges
//! it (all three are not listed, nor is the `.error` of an answer), `.warning` says what I should know
//! of one of mine, `.d/` holds the files that come with it.

use crate::model::locks::{LockLevel, Mutex};

use super::file::OpenFile;
use super::node::{MessageFolder, Node};
use super::{Error, OpenRequest, Tree, names};
use crate::index::{IndexEntry, MsgIx};
use crate::model::{Timestamp, sanitize_line, sanitize_text};
use crate::outbox::names::is_private;
use crate::store::StoreError;

/// What the names of a message and of what lies beside it end with.
const ENDINGS: [&str; 6] = ["txt", "reply", "reply-all", "ack", "warning", "d"];

/// Why there is nothing to write under a name beside a message: what there is to answer or
/// acknowledge would have been found. `None` for any other name.
pub(super) fn explain_missing(name: &str) -> Option<&'static str> {
    let (_, ending) = name.rsplit_once('.')?;
    match ending {
        "reply" | "reply-all" => Some("there is no message of this name to answer"),
        "ack" => Some("no message of this name asks you for an acknowledgement"),
        _ => None,
    }
}

/// The stem of the message whose `.reply` a program makes under a private name, as those do that save
/// in one step: `X` in `X.reply.tmp.7f2c`, `.X.reply.Ab12Cd` and `X.reply~`.
fn private_reply_stem(name: &str) -> Option<&str> {
    let (stem, _) = name.trim_start_matches(['.', '#']).rsplit_once(".reply")?;
    is_private(name).then_some(stem)
}

impl Tree {
    /// A message, or what lies beside one, by its name in a folder; a draft in a thread's folder.
    pub(super) fn find_message(&self, parent: &Node, name: &str) -> Result<Option<Node>, Error> {
        let named = name.rsplit_once('.').filter(|(_, ending)| ENDINGS.contains(ending));
        let indexed = || named.map_or(Ok(None), |named| self.find_indexed(parent, named));
        if let Some(found) = indexed()? {
            return Ok(Some(found));
        }
        let mut found = self.find_pending(parent, name);
        if found.is_none() && matches!(parent, Node::SentDay(_)) {
            // It may have gone to its store since the index was asked.
            found = indexed()?;
        }
        let found = found.or_else(|| self.find_draft_beside(parent, name));
        let found = found.or_else(|| self.find_error_note(parent, name));
        let found = found.or_else(|| self.find_bare_id(parent, name));
        if found.is_none() {
            self.note_unknown_id(parent, named.map_or(name, |(stem, _)| stem));
        }
        Ok(found)
    }

    /// Finds what belongs to a message of the index by the name without its ending, and the ending.
    fn find_indexed(
        &self,
        parent: &Node,
        (stem, ending): (&str, &str),
    ) -> Result<Option<Node>, Error> {
        let Some((place, ix)) = self.find_message_by_stem(parent, stem) else { return Ok(None) };
        let has_parts = || self.index.read().entry(ix).is_some_and(IndexEntry::has_parts);
        let is_noted = || place == MessageFolder::Sent && self.has_warning(ix);
        let opens = || place != MessageFolder::Inbox || self.can_open_in_inbox(ix, stem);
        Ok(match ending {
            "txt" if opens() => Some(Node::Message(place, ix)),
            "reply" => Some(Node::Reply(place, ix)),
            "reply-all" => Some(Node::ReplyAll(place, ix)),
            "ack" if place != MessageFolder::Sent && self.has_ack_request(ix)? => {
                Some(Node::Ack(place, ix))
            }
            "warning" if is_noted() => Some(Node::Warning(ix)),
            "d" if has_parts() && opens() => Some(Node::Parts(place, ix)),
            _ => None,
        })
    }

    /// The note about an answer that was refused, under the name of the answer where that was written.
    pub(super) fn find_error_note(&self, folder: &Node, name: &str) -> Option<Node> {
        let draft = name.strip_suffix(".error")?;
        self.wait_for_sent(&Node::Sent);
        let answered = draft.rsplit_once('.').and_then(|(stem, ending)| {
            let (place, ix) = self.find_message_by_stem(folder, stem)?;
            match ending {
                "reply" => Some(Node::Reply(place, ix)),
                "reply-all" => Some(Node::ReplyAll(place, ix)),
                _ => None,
            }
        });
        let node = answered.or_else(|| self.draft_node(folder, draft))?;
        let (name, target) = self.draft_target(&node).ok()?;
        self.outbox.as_ref()?.note_name(&name, &target).map(Node::Draft)
    }

    /// The draft that a new name beside messages is: in the making of an answer to one of them, or of
    /// one to the thread.
    pub(super) fn draft_node(&self, folder: &Node, name: &str) -> Option<Node> {
        let answer =
            private_reply_stem(name).and_then(|stem| self.find_message_by_stem(folder, stem));
        match (answer, folder) {
            (Some((place, ix)), _) => Some(Node::ReplyDraft(place, ix, name.to_owned())),
            (None, Node::Thread(thread)) => Some(Node::ThreadDraft(*thread, name.to_owned())),
            (None, _) => None,
        }
    }

    /// Whether a message still opens in `inbox/` under a name: one that a process already has does
    /// after the message was read, or acknowledged. An id is not had from a listing, and always does.
    fn can_open_in_inbox(&self, ix: MsgIx, stem: &str) -> bool {
        let known = |e: &IndexEntry| !e.is_read() || e.is_read_here() || self.is_acknowledged(ix);
        !names::has_time_prefix(stem) || self.index.read().entry(ix).is_some_and(known)
    }

    /// Whether a message asks me for an acknowledgement. One that was given through this tree may be
    /// given again under the name that is known already, and changes nothing.
    fn has_ack_request(&self, ix: MsgIx) -> Result<bool, Error> {
        if self.is_acknowledged(ix) {
            return Ok(true);
        }
        let entry = self.index.read().entry(ix).copied();
        let Some(entry) = entry.filter(IndexEntry::is_to_me) else { return Ok(false) };
        Ok(self.read_record(ix, &entry)?.wants_ack)
    }

    /// Whether an acknowledgement was given through this tree.
    pub(super) fn is_acknowledged(&self, ix: MsgIx) -> bool {
        self.acknowledged.lock().contains(&ix)
    }

    pub(super) fn open_ack(&self, ix: MsgIx, access: &OpenRequest) -> Result<OpenFile, Error> {
        if !access.write {
            return Err(Error::not_permitted("this file can only be written"));
        }
        self.writable_outbox()?;
        Ok(OpenFile::Ack { message: ix, done: Mutex::with_level(LockLevel::File, false) })
    }

    /// Takes what is written to `.ack`, whatever it is: the first bytes acknowledge, so that whoever
    /// writes them hears why it cannot be done.
    pub(super) fn write_ack(
        &self,
        ix: MsgIx,
        done: &Mutex<bool>,
        data: &[u8],
    ) -> Result<(), Error> {
        let mut done = done.lock();
        if !*done && !data.is_empty() {
            self.acknowledge_message(ix).inspect_err(|e| {
                let (name, why) = (self.message_name(ix).unwrap_or_default(), e.to_string());
                tracing::warn!(%name, reason = %sanitize_line(&why), "acknowledgement refused");
            })?;
            *done = true;
        }
        Ok(())
    }

    fn acknowledge_message(&self, ix: MsgIx) -> Result<(), Error> {
        let at = || {
            let entry = self.index.read().entry(ix).copied().filter(IndexEntry::is_to_me);
            entry.ok_or(Error::NotFound)
        };
        let entry = at()?;
        let (number, store) = (entry.store(), self.index.store_of(&entry).ok_or(Error::NotFound)?);
        let acks = store.facets().acks.ok_or(Error::NotFound)?;
        store.require_folder()?;
        match acks.acknowledge_message(&entry.location()) {
            // It may only lie elsewhere since the last scan.
            Err(StoreError::Moved) => {
                self.rescan_store(number, true);
                acks.acknowledge_message(&at()?.location())?;
            }
            done => done?,
        }
        self.acknowledged.lock().insert(ix);
        self.rescan_store(number, false);
        if let Some(outbox) = &self.outbox {
            outbox.handle_store_change(number);
        }
        Ok(())
    }

    pub(super) fn rescan_store(&self, number: usize, full: bool) {
        if let Err(error) = self.index.refresh_store(number, full) {
            tracing::warn!(%error, "the store cannot be read now");
        }
    }

    /// The text of `.warning`, and its time: that of the message.
    pub(super) fn warning_text(&self, ix: MsgIx) -> Result<(String, Timestamp), Error> {
        let entry = self.live_entry(ix)?;
        let mut text: String = self.read_record(ix, &entry)?.note.into_iter().collect();
        let waits = self.list_undelivered().into_iter().filter(|(of, _)| *of == ix);
        text.extend(waits.map(|(_, why)| why));
        text.extend(self.link_wait_warning(&entry));
        if text.is_empty() {
            return Err(Error::NotFound);
        }
        Ok((format!("{}\n", sanitize_text(text.trim_end_matches('\n'))), entry.time()))
    }

    /// Whether there is something to say of a message of mine.
    fn has_warning(&self, ix: MsgIx) -> bool {
        let entry = self.index.read().entry(ix).copied();
        self.index.read().has_note(ix)
            || self.list_undelivered().iter().any(|(of, _)| *of == ix)
            || entry.is_some_and(|entry| self.link_wait_warning(&entry).is_some())
    }
}
