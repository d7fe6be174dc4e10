//! One message of a store of transcripts, and the files beside it.

use std::fs::File;
use std::io;
use std::path::Path;

use super::dialect::SessionDialect;
use super::format::{SessionFormat, SessionStore, addresses, build_message, open_result_file};
use super::render::{RenderedSessionMessage, render_message};
use crate::model::{Attachment, Message};
use crate::store::engine::lines::LineFormat as _;
use crate::store::engine::lines::table::LogSource;
use crate::store::{Location, PartContent, PartReader, Record, StoreError};

/// Builds the record of the message at a location from its lines.
pub(super) fn build_record<D: SessionDialect>(
    store: &SessionStore<D>,
    at: &Location,
    text: &str,
) -> Result<Record, StoreError> {
    let (built, in_reply_to) = build_message(store, at, text)?;
    let shown = render_message(&built.message);
    let (thread, subject) = {
        let table = store.table.read();
        let n = LogSource::from_number(at.source).log_number().ok_or(StoreError::Moved)?;
        let log = table.get(n).ok_or(StoreError::Moved)?;
        let title = log.facts.title.clone().filter(|title| !title.is_empty());
        (SessionFormat::<D>::log_key(log), title)
    };
    let (from, to) = addresses(built.message.role, built.message.agent.as_deref());
    let parts = list_parts(store, at, &shown);
    let message = Message {
        from: Some(from.into_owned()),
        to: vec![to.into_owned()],
        time: built.message.time,
        subject,
        thread: Some(thread),
        in_reply_to,
        id: built.message.id,
        body: shown.body,
        ..Message::default()
    };
    Ok(Record { message, parts, ..Record::default() })
}

fn list_parts<D: SessionDialect>(
    store: &SessionStore<D>,
    at: &Location,
    shown: &RenderedSessionMessage,
) -> Vec<Attachment> {
    let made = shown.parts.iter().map(|part| Attachment::new(&part.name, part.bytes.len()));
    let whole = shown.result_files.iter().filter_map(|name| {
        let file = open_result_file(store, at.source, name).ok()?;
        let size = file.metadata().ok()?.len();
        Some(Attachment { name: name.clone(), size, withheld: None })
    });
    made.chain(whole).collect()
}

impl<D: SessionDialect> PartReader for SessionStore<D> {
    fn open_part(&self, at: &Location, name: &str) -> Result<PartContent, StoreError> {
        let missing = |e: io::Error| StoreError::io(Path::new(name), e);
        self.with_line(at, |text| {
            let (built, _) = build_message(self, at, text)?;
            let shown = render_message(&built.message);
            if let Some(part) = shown.parts.into_iter().find(|part| part.name == name) {
                return Ok(PartContent::Bytes(part.bytes));
            }
            if !shown.result_files.iter().any(|known| known == name) {
                return Err(missing(io::ErrorKind::NotFound.into()));
            }
            let file: File = open_result_file(self, at.source, name).map_err(missing)?;
            Ok(PartContent::File(file))
        })
    }
}
