//! One message in full.

use super::Ssot;
use super::envelope::{FILE_BYTES, SsotMessage};
use super::folder::{self, json_stem};
use super::format::{SIGNED, parse_task};
use super::json_node::JsonNode;
use super::{sign, text};
use crate::model::{Message, SignatureClaim};
use crate::store::engine::files::DirCache;
use crate::store::fs::Stamp;
use crate::store::text::time::parse_time;
use crate::store::{Location, Record, StoreError};

impl Ssot {
    /// Reads a message for [`MessageReader::read_record`](crate::store::MessageReader::read_record).
    pub(super) fn read_message(&self, at: &Location) -> Result<Record, StoreError> {
        let file = self.find_file(at.source)?;
        let (stamp, bytes) = self.read_file_bytes(&file, FILE_BYTES + 1)?;
        let is_message = file.row.is_message();
        let message = match SsotMessage::parse(&bytes) {
            Ok(message) => message,
            Err(_) if is_message => return Err(StoreError::Moved),
            Err(_) => return read_rejected(&bytes, &stamp),
        };
        let stem = json_stem(&file.name).unwrap_or_default();
        if is_message && (&*message.id, &*message.task) != (stem, parse_task(&file.folder)) {
            return Err(StoreError::Moved);
        }
        let claim = match file.row.companion_hash & SIGNED {
            0 => None,
            _ => self.read_claim(&file.folder, stem, &bytes),
        };
        let role = self.format.role;
        let asked = message.to == role && message.requires_ack;
        let mine = message.from == role;
        // The index shows a message a moment before it counts here.
        let is_due = file.facts.acked == 0 && file.facts.is_refused() != Some(true);
        Ok(Record {
            wants_ack: asked && is_message && is_due,
            note: message.render_note().filter(|_| mine),
            is_my_name_unproven: mine,
            message: to_model_message(&message),
            claim,
            ..Record::default()
        })
    }

    /// Returns the signature beside a message, if there is one.
    pub(super) fn read_claim(
        &self,
        folder: &str,
        stem: &str,
        message: &[u8],
    ) -> Option<SignatureClaim> {
        let dir = DirCache::new(&*self.properties.dir).open(folder);
        let read = dir.and_then(|dir| folder::read_small_file(&dir, &format!("{stem}.sig")));
        sign::claim_from_result(read, message).unwrap_or_else(|e| Some(sign::unreadable_claim(&e)))
    }
}

/// Returns a message in the terms of the mount.
pub(super) fn to_model_message(message: &SsotMessage<'_>) -> Message {
    Message {
        from: Some(message.from.as_str().to_owned()),
        to: vec![message.to.as_str().to_owned()],
        time: message.time,
        extra: vec![("Type", message.kind.as_str().to_owned())],
        thread: Some(message.task.clone()),
        id: message.id.clone(),
        body: text::render_body(message),
        ..Message::default()
    }
}

/// Returns the readable members of a rejected file.
fn read_rejected(bytes: &[u8], stamp: &Stamp) -> Result<Record, StoreError> {
    let node = JsonNode::parse(bytes).map_err(|_| StoreError::Moved)?;
    let said = |name: &str| node.text(name).map(str::to_owned);
    let time = node.text("timestamp").and_then(parse_time);
    let message = Message {
        from: said("from"),
        to: said("to").into_iter().collect(),
        time: time.unwrap_or_else(|| stamp.modified()),
        extra: said("type").map(|kind| ("Type", kind)).into_iter().collect(),
        thread: said("task_id"),
        id: said("msg_id").unwrap_or_default(),
        body: node.render_pretty(),
        ..Message::default()
    };
    Ok(Record { message, ..Record::default() })
}
