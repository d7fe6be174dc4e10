//! Files beside a message, named like it. `.reply` and `.reply-all` answer it and `.ack` acknowledges it; these
//! three are not listed, nor is the `.error` of an answer. `.warning` has a note about a message of mine. `.d/`
//! has the attachments.

use crate::model::locks::{LockLevel, Mutex};

use super::file::OpenFile;
use super::folder_scope::FolderScope;
use super::node::{MessageFolder, Node};
use super::outbox::draft_node;
use super::{Error, OpenRequest, Tree, names};
use crate::index::{IndexEntry, MsgIx};
use crate::model::sanitize_line;
use crate::outbox::names::is_private;
use crate::store::StoreError;

/// Endings of a message's name and of the files beside it.
const ENDINGS: [&str; 6] = ["txt", "reply", "reply-all", "ack", "warning", "d"];

/// Returns the reason why a name beside a message cannot be written: there is no message to answer or
/// acknowledge. Returns `None` for any other name.
pub(super) fn explain_missing(name: &str) -> Option<&'static str> {
    let (_, ending) = name.rsplit_once('.')?;
    match ending {
        "reply" | "reply-all" => Some("there is no message of this name to answer"),
        "ack" => Some("no message of this name asks you for an acknowledgement"),
        _ => None,
    }
}

/// Returns the stem of the message whose `.reply` a program makes under a private name. Programs that save in
/// one step do so: `X` in `X.reply.tmp.7f2c`, `.X.reply.Ab12Cd` and `X.reply~`.
fn private_reply_stem(name: &str) -> Option<&str> {
    let (stem, _) = name.trim_start_matches(['.', '#']).rsplit_once(".reply")?;
    is_private(name).then_some(stem)
}

impl Tree {
    /// Finds a message, a file beside one, or a draft in a thread's folder, by its name in a folder.
    pub(super) fn find_message(
        &self,
        folder: FolderScope,
        name: &str,
    ) -> Result<Option<Node>, Error> {
        let named = name.rsplit_once('.').filter(|(_, ending)| ENDINGS.contains(ending));
        let indexed = || named.map_or(Ok(None), |named| self.find_indexed(folder, named));
        if let Some(found) = indexed()? {
            return Ok(Some(found));
        }
        let found = if let FolderScope::SentDay(day) = folder {
            // Its store may have got it since the index was asked.
            self.pending.find(day, name).map_or_else(indexed, |held| Ok(Some(held)))?
        } else {
            None
        };
        let found = found.or_else(|| self.find_draft_beside(folder, name));
        let found = found.or_else(|| self.find_error_note(folder, name).map(draft_node));
        let found = found.or_else(|| {
            // An id alone opens its message.
            let is_id = !names::has_time_prefix(name);
            let ix = is_id.then(|| self.names.find_message_by_stem(folder, name))??;
            Some(Node::Message(folder.message_folder(), ix))
        });
        if found.is_none() {
            let id = named.map_or(name, |(stem, _)| stem);
            self.last_unknown_id.note(&self.names, folder, id);
        }
        Ok(found)
    }

    /// Finds a node of an indexed message by the name without its ending, and the ending.
    fn find_indexed(
        &self,
        folder: FolderScope,
        (stem, ending): (&str, &str),
    ) -> Result<Option<Node>, Error> {
        let Some(ix) = self.names.find_message_by_stem(folder, stem) else { return Ok(None) };
        let place = folder.message_folder();
        let has_parts = || self.index.read().messages.entry(ix).has_parts();
        let is_noted = || place == MessageFolder::Sent && self.pending.has_warning(ix);
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

    /// Finds the note about a refused answer, under the name of the answer in the folder of the answer. Returns
    /// its name in `outbox/`.
    pub(super) fn find_error_note(&self, folder: FolderScope, name: &str) -> Option<String> {
        let draft = name.strip_suffix(".error")?;
        self.wait_for_sent(&Node::Sent);
        let answered = draft.rsplit_once('.').and_then(|(stem, ending)| {
            let place = folder.message_folder();
            let ix = self.names.find_message_by_stem(folder, stem)?;
            match ending {
                "reply" => Some(Node::Reply(place, ix)),
                "reply-all" => Some(Node::ReplyAll(place, ix)),
                _ => None,
            }
        });
        let node = answered.or_else(|| self.draft_node(folder, draft))?;
        let (name, target) = self.draft_target(&node).ok()?;
        self.outbox.as_ref()?.note_name(&name, &target)
    }

    /// Returns the draft node of a new name beside messages: an answer to a message in the making, or a draft
    /// of the thread.
    pub(super) fn draft_node(&self, folder: FolderScope, name: &str) -> Option<Node> {
        let answer =
            private_reply_stem(name).and_then(|stem| self.names.find_message_by_stem(folder, stem));
        match (answer, folder) {
            (Some(ix), _) => Some(Node::ReplyDraft(folder.message_folder(), ix, name.to_owned())),
            (None, FolderScope::Thread(thread)) => Some(Node::ThreadDraft(thread, name.to_owned())),
            (None, _) => None,
        }
    }

    /// Returns true if a message still opens in `inbox/` under a name. A program may have the name from a
    /// listing, so it opens even after the message was read or acknowledged. An id always opens, since no
    /// listing shows it.
    fn can_open_in_inbox(&self, ix: MsgIx, stem: &str) -> bool {
        let known = |e: &IndexEntry| !e.is_read() || e.is_read_here() || self.is_acknowledged(ix);
        !names::has_time_prefix(stem) || known(self.index.read().messages.entry(ix))
    }

    /// Returns true if a message asks me for an acknowledgement. An acknowledgement given through this tree may
    /// be given again under the known name, and changes nothing.
    fn has_ack_request(&self, ix: MsgIx) -> Result<bool, Error> {
        if self.is_acknowledged(ix) {
            return Ok(true);
        }
        let entry = *self.index.read().messages.entry(ix);
        Ok(entry.is_to_me() && self.texts.read_record(ix, &entry)?.wants_ack)
    }

    /// Returns true if the message was acknowledged through this tree.
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

    /// Writes to `.ack`. The first bytes acknowledge the message, whatever they are, so that the writer gets
    /// the error.
    pub(super) fn write_ack(
        &self,
        ix: MsgIx,
        done: &Mutex<bool>,
        data: &[u8],
    ) -> Result<(), Error> {
        let mut done = done.lock();
        if !*done && !data.is_empty() {
            self.acknowledge_message(ix).inspect_err(|e| {
                let (name, why) = (self.names.message_name(ix), e.to_string());
                tracing::warn!(%name, reason = %sanitize_line(&why), "acknowledgement refused");
            })?;
            *done = true;
        }
        Ok(())
    }

    fn acknowledge_message(&self, ix: MsgIx) -> Result<(), Error> {
        let at = || {
            let entry = *self.index.read().messages.entry(ix);
            let entry = entry.is_to_me().then_some(entry);
            entry.ok_or(Error::NotFound)
        };
        let entry = at()?;
        let (number, store) = (entry.store(), self.index.store_of(&entry));
        let marks = store.facets().marks.ok_or(Error::NotFound)?;
        store.require_folder()?;
        match marks.acknowledge_message(&entry.location()) {
            // It may only have moved since the last scan.
            Err(StoreError::Moved) => {
                self.texts.rescan_store(number, true);
                marks.acknowledge_message(&at()?.location())?;
            }
            done => done?,
        }
        self.acknowledged.lock().insert(ix);
        self.texts.rescan_store(number, false);
        if let Some(outbox) = &self.outbox {
            outbox.handle_store_change(number);
        }
        Ok(())
    }
}
