//! One message in full.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::blocks::{self, Shown};
use super::line::{self, Line, When};
use super::table::{KEPT, LOG, META, Source};
use super::{Atsf, assets, ids, lost, recipient, sign};
use crate::model::{Attachment, Message, Timestamp};
use crate::store::fs::{read_at_most, require_regular};
use crate::store::{Location, Part, Record, StoreError, below};

/// How long after a change a log may be half rewritten.
const GRACE: Duration = Duration::from_millis(500);
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// A message and what else is known of it.
struct Found<'a> {
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

impl Atsf {
    /// The file of a source that lies in a thread, and the thread.
    fn open_source(&self, source: u32) -> Result<(u32, File), StoreError> {
        let (n, name) = match Source::of(source) {
            Source::Kept => return Err(StoreError::Moved),
            Source::Log(n) => (n, LOG),
            Source::Meta(n) => (n, META),
        };
        let (root, [agent, threads, thread]) = self.table.read().place(n)?;
        let parts = [agent.as_str(), &threads, &thread, name];
        let file = below::open_below(&root, &parts).map_err(|e| match e.kind() {
            io::ErrorKind::NotFound => StoreError::Moved,
            _ => StoreError::io(&parts.iter().fold(root.clone(), |p, part| p.join(part)), e),
        })?;
        Ok((n, file))
    }

    pub(super) fn bytes_at(&self, at: &Location, limit: usize) -> Result<Vec<u8>, StoreError> {
        let limit = limit.min(at.len as usize);
        if at.source == KEPT {
            return self.kept.read(at.offset, limit);
        }
        let (_, file) = self.open_source(at.source)?;
        let mut bytes = vec![0; limit];
        let n = read_at_most(&file, &mut bytes, at.offset)
            .map_err(|e| StoreError::io(&self.project, e))?;
        bytes.truncate(n);
        Ok(bytes)
    }

    /// Hands the message at a location to `use_it`.
    fn with_message<T>(
        &self,
        at: &Location,
        use_it: impl FnOnce(&Found<'_>) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        if at.source == KEPT {
            let bytes = self.kept.read(at.offset, at.len as usize)?;
            let text = String::from_utf8_lossy(&bytes);
            let record = lost::record(&text).ok_or(StoreError::Moved)?;
            return use_it(&Found {
                text: record.message,
                line: record.line,
                title: record.title,
                key: record.thread,
                thread: None,
                created: Timestamp::default(),
            });
        }
        let Source::Log(n) = Source::of(at.source) else { return Err(StoreError::Moved) };
        let bytes = self.line_at(at)?;
        let text = String::from_utf8_lossy(&bytes);
        let line = line::parse(&text).map_err(|_| StoreError::Moved)?;
        let (title, key, created) = {
            let table = self.table.read();
            let thread = table.get(n).ok_or(StoreError::Moved)?;
            (thread.title.clone(), thread.key(), Timestamp::from_millis(thread.created))
        };
        use_it(&Found { line, text: &text, title, key, thread: Some(n), created })
    }

    /// The line at a location. A log that is being rewritten is short for a moment.
    fn line_at(&self, at: &Location) -> Result<Vec<u8>, StoreError> {
        let io = |e| StoreError::io(&self.project, e);
        let until = Instant::now() + GRACE;
        loop {
            let (_, file) = self.open_source(at.source)?;
            if let Some(line) = whole_line(&file, at).map_err(io)?
                && line::parse(&String::from_utf8_lossy(&line)).is_ok()
            {
                return Ok(line);
            }
            let changed = file.metadata().and_then(|meta| meta.modified()).map_err(io)?;
            let young = changed.elapsed().map_or(true, |age| age < GRACE);
            if !young || Instant::now() >= until {
                return Err(StoreError::Moved);
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }

    pub(super) fn read_message(&self, at: &Location) -> Result<Record, StoreError> {
        self.with_message(at, |found| Ok(self.record(found)))
    }

    fn record(&self, found: &Found<'_>) -> Record {
        let Found { line, title, key, thread, .. } = found;
        let shown = self.shown(found);
        let id = match thread {
            Some(n) => {
                let told = ids::Told { role: &line.role, id: &line.id, content: line.content };
                self.table.read().ids.of(told, *n, key).into_owned()
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
                found.created
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
        let part = |piece: blocks::Piece| Attachment {
            name: piece.name,
            size: piece.bytes.len() as u64,
            withheld: None,
        };
        let claim = if line.signed { sign::claim(found.text) } else { None };
        let parts = shown.parts.into_iter().map(part).collect();
        Record { message, claim, parts, ..Record::default() }
    }

    fn shown(&self, found: &Found<'_>) -> Shown {
        blocks::render(&found.line, &|reference| {
            let file = self.asset(found.thread, reference)?;
            file.metadata().map(|m| m.len()).map_err(|_| "the file cannot be read".to_owned())
        })
    }

    fn asset(&self, thread: Option<u32>, reference: &str) -> Result<File, String> {
        let place = thread.and_then(|n| self.table.read().place(n).ok());
        // What a lost message referred to was lost with it.
        let (root, parts) = place.ok_or("the file is not here")?;
        assets::open(&self.digests, &root, &parts.each_ref().map(String::as_str), reference)
    }

    pub(super) fn open_piece(&self, at: &Location, name: &str) -> Result<Part, StoreError> {
        let missing = || StoreError::io(Path::new(name), io::ErrorKind::NotFound.into());
        self.with_message(at, |found| {
            let shown = self.shown(found);
            if let Some(piece) = shown.parts.into_iter().find(|p| p.name == name) {
                return Ok(Part::Bytes(Arc::from(piece.bytes)));
            }
            let listed = shown.assets.iter().any(|a| a.name == name && a.withheld.is_none());
            let file = if listed { self.asset(found.thread, name).ok() } else { None };
            let file = file.ok_or_else(missing)?;
            require_regular(&file).map_err(|_| missing())?;
            Ok(Part::File(file))
        })
    }
}

/// The bytes at a location, if a line begins and ends there.
fn whole_line(file: &File, at: &Location) -> io::Result<Option<Vec<u8>>> {
    const BOM: u64 = super::line::BOM.len_utf8() as u64;
    let before = u64::from(at.offset > 0);
    let mut bytes = vec![0; at.len as usize + before as usize + 1];
    let got = read_at_most(file, &mut bytes, at.offset - before)?;
    bytes.truncate(got);
    let starts = at.offset == 0 || at.offset == BOM || bytes.first() == Some(&b'\n');
    let line = bytes.get(before as usize..).unwrap_or_default();
    let (line, rest) = line.split_at_checked(at.len as usize).unwrap_or_default();
    let ends = line.len() == at.len as usize && matches!(rest, [] | [b'\n']);
    Ok((starts && ends).then(|| line.to_vec()))
}
