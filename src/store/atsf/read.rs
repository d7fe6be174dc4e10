//! One message in full.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;

use super::blocks::{self, Shown};
use super::line::{self, Line, When};
use super::{Atsf, Format as _, Threads, assets, head, ids, lost, recipient, send, sign, thread};
use crate::model::{Attachment, Message, Timestamp};
use crate::store::engine::lines::Facts as _;
use crate::store::engine::lines::table::{KEPT, Source};
use crate::store::fs::require_regular;
use crate::store::{Location, Part, Prepared, Record, StoreError};

/// A message and what else is known of it.
struct Whole<'a> {
    line: Line<'a>,
    text: &'a str,
    title: Option<String>,
    /// Its thread as the mount has it.
    key: String,
    /// The thread it lies in; `None` for what is kept of a lost one.
    thread: Option<u32>,
    /// When its thread was made.
    created: Timestamp,
}

/// The message on this line.
fn whole<'a>(store: &Atsf, at: &Location, text: &'a str) -> Result<Whole<'a>, StoreError> {
    if at.source == KEPT {
        let record = lost::record(text).ok_or(StoreError::Moved)?;
        return Ok(Whole {
            text: record.message,
            line: record.line,
            title: record.title,
            key: record.thread,
            thread: None,
            created: Timestamp::default(),
        });
    }
    let Source::Log(n) = Source::of(at.source) else { return Err(StoreError::Moved) };
    let line = line::parse(text).map_err(|_| StoreError::Moved)?;
    let table = store.table.read();
    let log = table.get(n).ok_or(StoreError::Moved)?;
    let (title, key, created) = (log.facts.title.clone(), Threads::key(log), log.facts.begun());
    Ok(Whole { line, text, title, key, thread: Some(n), created })
}

pub(super) fn record(store: &Atsf, at: &Location, text: &str) -> Result<Record, StoreError> {
    let whole = whole(store, at, text)?;
    let shown = show(store, &whole);
    let Whole { line, title, key, thread, .. } = &whole;
    let id = match thread {
        Some(n) => {
            let told = ids::Told { role: &line.role, id: &line.id, content: line.content };
            store.table.read().shared.of(told, *n, key).into_owned()
        }
        None => line.id.clone().into_owned(),
    };
    let mut warnings = Vec::new();
    let time = match line.when() {
        When::At(time) => time,
        When::Naive(time) => {
            warnings.push("time without a zone, read as UTC".to_owned());
            time
        }
        When::Unknown => {
            warnings.push("time cannot be read".to_owned());
            whole.created
        }
    };
    let message = Message {
        from: Some(line.role.clone().into_owned()),
        to: vec![recipient(&line.role).to_owned()],
        time,
        subject: title.clone(),
        thread: Some(key.clone()),
        id,
        attachments: shown.assets,
        warnings,
        body: shown.body,
        ..Message::default()
    };
    let part = |piece: blocks::Piece| Attachment::new(piece.name, piece.bytes.len());
    let claim = if line.signed { sign::claim(whole.text) } else { None };
    let parts = shown.parts.into_iter().map(part).collect();
    Ok(Record { message, claim, parts, ..Record::default() })
}

/// A message that waits for its thread, as it will be there.
pub(super) fn prepared(store: &Atsf, prepared: &Prepared) -> Option<Message> {
    let (text, meta) = send::unpack(&prepared.bytes);
    let line = line::parse(text).ok()?;
    let (When::At(time) | When::Naive(time)) = line.when() else { return None };
    let title = if let Some(meta) = meta {
        let thread::Reading::Thread(meta) = thread::read(meta.as_bytes()) else { return None };
        meta.title
    } else {
        let table = store.table.read();
        let log = head::by_key(&table, &prepared.thread).and_then(|n| table.get(n));
        log.and_then(|log| log.facts.title.clone())
    };
    let files = send::references(&line).into_iter().zip(&prepared.files);
    let sizes: Vec<(String, u64)> = files.map(|(name, file)| (name, file.size)).collect();
    let size = |name: &str| sizes.iter().find(|(n, _)| n == name).map(|(_, size)| *size);
    let shown = blocks::render(&line, &|name| size(name).ok_or("the file is not here".to_owned()));
    Some(Message {
        from: Some(line.role.clone().into_owned()),
        to: vec![recipient(&line.role).to_owned()],
        time,
        subject: title,
        thread: Some(prepared.thread.clone()),
        id: prepared.id.clone(),
        attachments: shown.assets,
        body: shown.body,
        ..Message::default()
    })
}

fn show(store: &Atsf, whole: &Whole<'_>) -> Shown {
    blocks::render(&whole.line, &|reference| {
        let file = asset(store, whole.thread, reference)?;
        file.metadata().map(|m| m.len()).map_err(|_| "the file cannot be read".to_owned())
    })
}

fn asset(store: &Atsf, thread: Option<u32>, reference: &str) -> Result<File, String> {
    let place = thread.and_then(|n| store.table.read().place(n).ok());
    // What a lost message referred to was lost with it.
    let (root, parts) = place.ok_or("the file is not here")?;
    let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
    assets::open(&store.format.digests, &root, &parts, reference)
}

pub(super) fn open_part(store: &Atsf, at: &Location, name: &str) -> Result<Part, StoreError> {
    let missing = || StoreError::io(Path::new(name), io::ErrorKind::NotFound.into());
    store.with_line(at, |text| {
        let whole = whole(store, at, text)?;
        let shown = show(store, &whole);
        if let Some(piece) = shown.parts.into_iter().find(|p| p.name == name) {
            return Ok(Part::Bytes(Arc::from(piece.bytes)));
        }
        let listed = shown.assets.iter().any(|a| a.name == name && a.withheld.is_none());
        let file = if listed { asset(store, whole.thread, name).ok() } else { None };
        let file = file.ok_or_else(missing)?;
        require_regular(&file).map_err(|_| missing())?;
        Ok(Part::File(file))
    })
}
