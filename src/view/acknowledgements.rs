//! `.ack` beside a message that asks me for an acknowledgement.

use super::file::OpenFile;
use super::{Error, OpenRequest, Tree};
use crate::index::MsgIx;
use crate::model::Timestamp;
use crate::model::locks::{LockLevel, Mutex};
use crate::store::StoreError;

/// The acknowledgements that are given through a tree.
#[derive(Clone, Copy)]
pub(super) struct Acknowledgements<'a>(&'a Tree);

impl Tree {
    /// Returns the acknowledgements that are given through this tree.
    pub(super) fn acknowledgements(&self) -> Acknowledgements<'_> {
        Acknowledgements(self)
    }
}

impl Acknowledgements<'_> {
    /// Returns true if a message asks me for an acknowledgement. The result stays true after this tree gave the
    /// acknowledgement, so that a program may write to `.ack` again, without effect.
    pub fn is_asked_for(self, ix: MsgIx) -> Result<bool, Error> {
        if self.is_given(ix) {
            return Ok(true);
        }
        let entry = *self.0.index.read().messages.entry(ix);
        Ok(entry.is_to_me() && self.0.texts.read_record(ix, &entry)?.wants_ack)
    }

    /// Returns true if the message was acknowledged through this tree.
    pub fn is_given(self, ix: MsgIx) -> bool {
        self.0.acknowledged.lock().contains(&ix)
    }

    /// Opens `.ack`.
    pub fn open(self, ix: MsgIx, access: &OpenRequest) -> Result<OpenFile, Error> {
        if !access.write {
            return Err(Error::not_permitted("this file can only be written"));
        }
        self.0.writable_outbox()?;
        Ok(OpenFile::Ack { message: ix, done: Mutex::with_level(LockLevel::File, false) })
    }

    /// Writes to `.ack`. The first bytes acknowledge the message, whatever they are, so that the writer gets
    /// the error.
    pub fn write(self, ix: MsgIx, done: &Mutex<bool>, data: &[u8]) -> Result<(), Error> {
        let mut done = done.lock();
        if !*done && !data.is_empty() {
            let given = self.give(ix);
            if let Some(outbox) = &self.0.outbox {
                let name = self.0.names.message_name(ix);
                let name = format!("{}.ack", name.trim_end_matches(".txt"));
                match &given {
                    Ok(()) => outbox.clear_last_refusal(&name),
                    Err(e) => outbox.note_refusal(&name, &e.to_string(), Timestamp::now()),
                }
            }
            given?;
            *done = true;
        }
        Ok(())
    }

    fn give(self, ix: MsgIx) -> Result<(), Error> {
        let at = || {
            let entry = *self.0.index.read().messages.entry(ix);
            let entry = entry.is_to_me().then_some(entry);
            entry.ok_or(Error::NotFound)
        };
        let entry = at()?;
        let (number, store) = (entry.store(), self.0.index.store_of(&entry));
        let marks = store.facets().marks.ok_or(Error::NotFound)?;
        store.require_folder()?;
        match marks.acknowledge_message(&entry.location()) {
            // The message may only have moved since the last scan.
            Err(StoreError::Moved) => {
                self.0.texts.rescan_store(number, true);
                marks.acknowledge_message(&at()?.location())?;
            }
            done => done?,
        }
        self.0.acknowledged.lock().insert(ix);
        self.0.texts.rescan_store(number, false);
        if let Some(outbox) = &self.0.outbox {
            outbox.handle_store_change(number);
        }
        Ok(())
    }
}
