//! One message in full.

use std::io;

use super::Ssot;
use super::envelope::{FILE_BYTES, Message as Task};
use super::folder::MESSAGES;
use super::scan::{on_disk, read_claim, unreadable};
use super::table::{File, Flags};
use super::text;
use super::tree::Node;
use crate::model::{Message, Timestamp};
use crate::store::below;
use crate::store::fs::Stamp;
use crate::store::{Location, Record, StoreError};

impl Ssot {
    /// The bytes of a source as they are.
    pub(super) fn bytes_at(
        &self,
        source: u32,
        limit: usize,
    ) -> Result<(Stamp, Vec<u8>), StoreError> {
        let (_, task, stem) = self.place(source)?;
        let name = format!("{stem}.json");
        self.open_messages(&task)
            .and_then(|dir| below::open_file(&dir, &name))
            .and_then(|file| below::read_whole(&file, limit))
            .map_err(|e| match e.kind() {
                io::ErrorKind::NotFound => StoreError::Moved,
                _ => StoreError::io(&self.dir.join(MESSAGES).join(&task).join(&name), e),
            })
    }

    /// What the table says of a source, its folder and its name without `.json`.
    fn place(&self, source: u32) -> Result<(File, String, String), StoreError> {
        let table = self.table.read();
        let file = table.get(source).ok_or(StoreError::Moved)?;
        Ok((*file, table.folder_of(file).to_owned(), table.stem(file).to_owned()))
    }

    /// See [`Store::read`](crate::store::Store::read).
    pub(super) fn read_message(&self, at: &Location) -> Result<Record, StoreError> {
        let (file, task, stem) = self.place(at.source)?;
        let (stamp, bytes) = self.bytes_at(at.source, FILE_BYTES + 1)?;
        let message = match Task::parse(&bytes) {
            Ok(message) => message,
            Err(_) if file.is_message() => return Err(StoreError::Moved),
            Err(_) => return refused(&bytes, &stamp),
        };
        if file.is_message() && (message.id != stem || message.task != task) {
            return Err(StoreError::Moved);
        }
        let dir = self.open_messages(&task).map_err(|e| StoreError::io(&self.dir, e))?;
        let claim = (file.sig != 0).then(|| {
            let unreadable = |e| crate::model::Claim::Malformed(unreadable(&e));
            read_claim(&dir, &stem, &bytes).unwrap_or_else(unreadable)
        });
        let asked = message.to == self.role && message.requires_ack;
        let mine = message.from == self.role;
        Ok(Record {
            wants_ack: asked && file.acked == 0 && !file.flags.has(Flags::REJECTED),
            note: message.note().filter(|_| mine),
            message: shown(&message),
            claim,
            ..Record::default()
        })
    }
}

/// A message in the terms of the mount.
fn shown(message: &Task<'_>) -> Message {
    Message {
        from: Some(message.from.as_str().to_owned()),
        to: vec![message.to.as_str().to_owned()],
        time: message.time,
        extra: vec![("Type", message.kind.as_str().to_owned())],
        thread: Some(message.task.clone()),
        id: message.id.clone(),
        body: text::body(message),
        ..Message::default()
    }
}

/// What can be read of a file that is refused.
fn refused(bytes: &[u8], stamp: &Stamp) -> Result<Record, StoreError> {
    let node = Node::parse(bytes).map_err(|_| StoreError::Moved)?;
    let said = |name: &str| node.text(name).map(str::to_owned);
    let time = node.text("timestamp").and_then(crate::store::amp::time::parse_time);
    let message = Message {
        from: said("from"),
        to: said("to").into_iter().collect(),
        time: time.unwrap_or_else(|| -> Timestamp { on_disk(stamp) }),
        extra: said("type").map(|kind| ("Type", kind)).into_iter().collect(),
        thread: said("task_id"),
        id: said("msg_id").unwrap_or_default(),
        body: node.pretty(),
        ..Message::default()
    };
    Ok(Record { message, ..Record::default() })
}
