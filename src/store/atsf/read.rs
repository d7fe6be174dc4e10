//! One message in full.

use std::borrow::Cow;
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;

use super::blocks::{self, AtsfRenderedMessage};
use super::ids::AtsfIdAssignment;
use super::keep::head::KeptSource;
use super::line::{self, AtsfLine, AtsfTimestamp};
use super::{
    AtsfFormat, AtsfStore, LineFormat as _, assets, default_recipient, ids, keep, send, sent_log,
    sign, thread, thread_facts,
};
use crate::model::{Attachment, DeliveryState, FileNames, Message, Timestamp};
use crate::store::engine::lines::table::{KEPT, LogSource};
use crate::store::engine::lines::{LogFacts as _, LogReading};
use crate::store::fs::{MAX_RECORD, read_limited, require_regular};
use crate::store::sessions::format::{addresses, report_message};
use crate::store::sessions::message::SessionMessage;
use crate::store::sessions::render::render_message;
use crate::store::{
    FoundMessage, Location, PartContent, PreparedRecord, Receipt, Record, SentMessage, Store as _,
    StoreError,
};

/// A message and the facts around it.
struct AtsfMessage<'a> {
    line: AtsfLine<'a>,
    text: &'a str,
    title: Option<String>,
    /// Its thread's id in the mount.
    key: String,
    /// The thread that holds it; `None` for a lost message.
    thread: Option<u32>,
    /// The time at which its thread was made.
    created: Timestamp,
    /// The session from which its thread was kept.
    kept: Option<KeptSource>,
}

/// Resolves the message on this line.
fn resolve_message<'a>(
    store: &AtsfStore,
    at: &Location,
    text: &'a str,
) -> Result<AtsfMessage<'a>, StoreError> {
    if at.source == KEPT {
        let record = sent_log::parse_record(text).ok_or(StoreError::Moved)?;
        return Ok(AtsfMessage {
            text: record.message,
            line: record.line,
            title: record.title,
            key: record.thread,
            thread: None,
            created: Timestamp::default(),
            kept: None,
        });
    }
    let LogSource::Log(n) = LogSource::from_number(at.source) else {
        return Err(StoreError::Moved);
    };
    let line = line::parse(text).map_err(|_| StoreError::Moved)?;
    let table = store.table.read();
    let log = table.get(n).ok_or(StoreError::Moved)?;
    let (title, key, created) =
        (log.facts.title.clone(), AtsfFormat::log_key(log), log.facts.begin_time());
    let kept = log.facts.kept.clone();
    Ok(AtsfMessage { line, text, title, key, thread: Some(n), created, kept })
}

/// Returns the hash of the message on this line, as the first with its id in its thread.
pub(super) fn digest_message(
    store: &AtsfStore,
    at: &Location,
    text: &str,
) -> Result<[u8; 32], StoreError> {
    let whole = resolve_message(store, at, text)?;
    Ok(ids::hash_texts(&[&whole.key, &whole.line.id]))
}

/// Accepts a line of a kept thread. The index knows the message by its id in the session. A message that an earlier
/// thread has is left out.
pub(super) fn accept_kept_line<'a>(
    store: &AtsfStore,
    reading: &mut LogReading<'_, AtsfFormat>,
    source: &KeptSource,
    (key, text, at): (&'a str, &'a str, Location),
    line: AtsfLine<'a>,
    found: &mut Vec<FoundMessage<'a>>,
) {
    let log = &mut *reading.log;
    let by = ids::AtsfLogScan { thread: reading.n, epoch: log.epoch, key };
    // Sessions have ids of their own.
    let role = format!("{}\0{}", source.kind, line.role);
    let told = ids::AtsfIdInput { role: &role, id: &line.id, content: line.content };
    let AtsfIdAssignment::Id { id, shared, .. } = reading.shared.assign_id(told, by) else {
        return;
    };
    log.facts.shared |= shared;
    let (time, name_time) = line::count_message(&mut log.tally, &line, log.facts.begin_time());
    if id != line.id {
        return;
    }
    let agent = keep::line::sub_agent(text, source);
    let report = report_message(keep::line::author(&line.role), agent.as_deref(), store.me());
    let answered = if report.from_me { keep::line::answered_id(source.kind, text) } else { None };
    found.push(FoundMessage {
        at,
        line: log.tally.lines,
        thread: Cow::Borrowed(key),
        in_reply_to: answered.map(Cow::Owned),
        id: keep::line::session_id(source.kind, &line.id).into(),
        origin: Some(source.kind),
        time,
        name_time: Some(name_time),
        has_parts: line.has_parts(),
        record: text,
        ..report
    });
}

pub(super) fn build_record(
    store: &AtsfStore,
    at: &Location,
    text: &str,
) -> Result<Record, StoreError> {
    let whole = resolve_message(store, at, text)?;
    if let Some(source) = &whole.kept {
        return Ok(build_kept_record(store, &whole, source));
    }
    let shown = render_line(store, &whole);
    let AtsfMessage { line, title, key, thread, .. } = &whole;
    let id = match thread {
        Some(n) => {
            let told = ids::AtsfIdInput { role: &line.role, id: &line.id, content: line.content };
            store.table.read().shared.find_assigned_id(told, *n, key).into_owned()
        }
        None => line.id.clone().into_owned(),
    };
    let mut warnings = Vec::new();
    let time = match line.parse_timestamp() {
        AtsfTimestamp::Zoned(time) => time,
        AtsfTimestamp::Naive(time) => {
            warnings.push("time without a zone, read as UTC".to_owned());
            time
        }
        AtsfTimestamp::Unknown => {
            warnings.push("time cannot be read".to_owned());
            whole.created
        }
    };
    let message = Message {
        from: Some(line.role.clone().into_owned()).filter(|role| !role.is_empty()),
        to: vec![default_recipient(&line.role).to_owned()],
        time,
        subject: title.clone(),
        thread: Some(key.clone()),
        id,
        attachments: shown.assets,
        warnings,
        body: shown.body,
        ..Message::default()
    };
    let part = |piece: blocks::AtsfMessagePart| Attachment::new(piece.name, piece.bytes.len());
    let claim = if line.has_signature { sign::extract_claim(whole.text) } else { None };
    let parts = shown.parts.into_iter().map(part).collect();
    let has_unknown_time = line.parse_timestamp() == AtsfTimestamp::Unknown;
    let note = thread.is_none().then(|| sent_log::describe_loss(line, key));
    Ok(Record { message, claim, has_unknown_time, parts, note, ..Record::default() })
}

/// Returns the proofs for a message of mine. One that no log has any more is not stored.
pub(super) fn find_receipt(store: &AtsfStore, one: &SentMessage<'_>) -> Receipt {
    let lost = (one.at.source == KEPT)
        .then(|| store.format.sent_log.describe_loss_at(one.at.offset, one.at.len))
        .flatten();
    lost.map_or_else(Receipt::default, |why| Receipt::of_fault(DeliveryState::Waiting, why))
}

/// Returns a message of a kept thread as its session has it. Any program may have written the names of its files.
fn read_kept_message(
    store: &AtsfStore,
    whole: &AtsfMessage<'_>,
    source: &KeptSource,
) -> SessionMessage {
    let asset = |name: &str| {
        let file = open_message_asset(store, whole.thread, name).ok()?;
        read_limited(file, MAX_RECORD as u64).ok()
    };
    let mut message = keep::line::read_message(&whole.line, whole.text, source, &asset);
    let mut names = FileNames::default();
    for file in &mut message.result_files {
        file.name = names.choose(Some(&file.name), "result");
    }
    message
}

/// Returns a message of a kept thread as its session shows it.
fn build_kept_record(store: &AtsfStore, whole: &AtsfMessage<'_>, source: &KeptSource) -> Record {
    let message = read_kept_message(store, whole, source);
    let shown = render_message(&message);
    let (from, to) = addresses(message.role, message.agent.as_deref());
    let made = shown.parts.iter().map(|part| Attachment::new(&part.name, part.bytes.len()));
    let files =
        message.result_files.iter().map(|file| Attachment::new(&file.name, file.data.len()));
    let parts = made.chain(files).collect();
    let message = Message {
        from: Some(from.into_owned()),
        to: vec![to.into_owned()],
        time: message.time,
        subject: whole.title.clone(),
        thread: Some(whole.key.clone()),
        in_reply_to: message.in_reply_to,
        id: message.id,
        body: shown.body,
        ..Message::default()
    };
    let has_unknown_time = whole.line.parse_timestamp() == AtsfTimestamp::Unknown;
    Record { message, has_unknown_time, origin: Some(source.kind), parts, ..Record::default() }
}

/// Returns the bytes of a file beside a message of a kept thread.
fn read_kept_part(message: SessionMessage, name: &str) -> Option<Arc<[u8]>> {
    let shown = render_message(&message);
    let made = shown.parts.into_iter().find(|part| part.name == name);
    let file = || message.result_files.into_iter().find(|file| file.name == name);
    made.map(|part| part.bytes).or_else(|| file().map(|file| file.data))
}

/// Renders a message that waits for its thread as it will look there.
pub(super) fn render_prepared(store: &AtsfStore, prepared: &PreparedRecord) -> Option<Message> {
    let (text, meta) = send::split_prepared(&prepared.bytes);
    let line = line::parse(text).ok()?;
    let (AtsfTimestamp::Zoned(time) | AtsfTimestamp::Naive(time)) = line.parse_timestamp() else {
        return None;
    };
    let title = if let Some(meta) = meta {
        let thread::AtsfThreadFile::Thread(meta) = thread::parse(meta.as_bytes()) else {
            return None;
        };
        meta.title
    } else {
        let table = store.table.read();
        let log = thread_facts::find_thread(&table, &prepared.thread).and_then(|n| table.get(n));
        log.and_then(|log| log.facts.title.clone())
    };
    let files = send::list_asset_references(&line).into_iter().zip(&prepared.files);
    let sizes: Vec<(String, u64)> = files.map(|(name, file)| (name, file.size)).collect();
    let size = |name: &str| sizes.iter().find(|(n, _)| n == name).map(|(_, size)| *size);
    let shown = blocks::render(&line, &|name| size(name).ok_or("the file is not here".to_owned()));
    Some(Message {
        from: Some(line.role.clone().into_owned()),
        to: vec![default_recipient(&line.role).to_owned()],
        time,
        subject: title,
        thread: Some(prepared.thread.clone()),
        id: prepared.id.clone(),
        attachments: shown.assets,
        body: shown.body,
        ..Message::default()
    })
}

fn render_line(store: &AtsfStore, whole: &AtsfMessage<'_>) -> AtsfRenderedMessage {
    blocks::render(&whole.line, &|reference| {
        let file = open_message_asset(store, whole.thread, reference)?;
        file.metadata().map(|m| m.len()).map_err(|_| "the file cannot be read".to_owned())
    })
}

fn open_message_asset(
    store: &AtsfStore,
    thread: Option<u32>,
    reference: &str,
) -> Result<File, String> {
    let place = thread.and_then(|n| store.table.read().log_folder_path(n).ok());
    // The attachments of a lost message are lost too.
    let (root, parts) = place.ok_or("the file is not here")?;
    let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
    assets::open_asset(&store.format.digests, &root, &parts, reference)
}

pub(super) fn open_part(
    store: &AtsfStore,
    at: &Location,
    name: &str,
) -> Result<PartContent, StoreError> {
    let missing = || StoreError::io(Path::new(name), io::ErrorKind::NotFound.into());
    store.with_line(at, |text| {
        let whole = resolve_message(store, at, text)?;
        if let Some(source) = &whole.kept {
            let bytes = read_kept_part(read_kept_message(store, &whole, source), name);
            return PartContent::from_bytes(name, bytes);
        }
        let shown = render_line(store, &whole);
        if let Some(piece) = shown.parts.into_iter().find(|p| p.name == name) {
            return Ok(PartContent::Bytes(Arc::from(piece.bytes)));
        }
        let listed = shown.assets.iter().any(|a| a.name == name && a.withheld.is_none());
        let file = if listed { open_message_asset(store, whole.thread, name).ok() } else { None };
        let file = file.ok_or_else(missing)?;
        require_regular(&file).map_err(|_| missing())?;
        Ok(PartContent::File(file))
    })
}
