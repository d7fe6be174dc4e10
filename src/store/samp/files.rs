//! The files of a message: the member `files` of its records (docs/formats/samp.md, section 12).
//!
//! A record lists its files with name, size and SHA-256. The first record of a message also has their bytes. The record
//! to another recipient has the list alone, and its reader takes the bytes from the first record.

use std::borrow::Cow;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use sha2::{Digest as _, Sha256};

use super::first_record::find_first_record;
use super::record::{self, SampRecord, SampScratch};
use super::{Samp, SampStore};
use crate::model::{Attachment, DraftAttachment, FileNames, encode_hex, sanitize_line};
use crate::store::text::json::{self, JsonEvent, JsonValue, RawStr};
use crate::store::{Location, StoreError};

/// The longest record with files in bytes, with its newline. A NATS server takes no longer line unless it is told to.
pub(super) const MAX_RECORD_WITH_FILES: u64 = 1_047_552;
/// The most bytes of files that stay in memory after they were read.
const MAX_CACHED: u64 = 2 << 20;
/// The most files of a record that are shown. No record with the bytes of files has room for more.
const MOST_FILES: usize = 16_384;
/// The reason for a file without its bytes.
const DATA_MISSING: &str = "data missing";
/// The name of a file without a name.
const UNNAMED: &str = "attachment";
/// The beginning and the end of the line about a file in the body.
const NOTE: (&str, &str) = ("[attached: ", " bytes)]");

/// A file of a record that is to be written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NewSampFile {
    /// The sender's name for it.
    pub name: String,
    /// The number of its bytes.
    pub size: u64,
    /// The SHA-256 of its bytes in lower-case hex.
    pub sha256: String,
    /// The base64 of its bytes.
    pub data: String,
}

/// A file as a record lists it. A member of a wrong type counts as missing.
#[derive(Clone, Debug, Default)]
pub struct ListedSampFile<'a> {
    /// The sender's name for it.
    pub name: Option<Cow<'a, str>>,
    /// The number of its bytes.
    pub size: Option<u64>,
    /// The SHA-256 of its bytes in hex.
    pub sha256: Option<Cow<'a, str>>,
    /// The base64 of its bytes.
    pub data: Option<RawStr<'a>>,
}

impl<'a> ListedSampFile<'a> {
    fn set_member(&mut self, key: &str, value: JsonValue<'a>) {
        let text = match value {
            JsonValue::String(text) => Some(text),
            _ => None,
        };
        match key {
            "name" => self.name = text.map(|text| text.to_text()),
            "sha256" => self.sha256 = text.map(|text| text.to_text()),
            "data" => self.data = text,
            "size" => {
                self.size = match value {
                    JsonValue::Int(digits) => digits.parse().ok(),
                    _ => None,
                };
            }
            _ => {}
        }
    }

    /// Returns the bytes that this base64 stands for, if they have the size and the SHA-256 of the list.
    fn decode(&self, data: RawStr<'_>) -> Option<Arc<[u8]>> {
        let text = data.to_text();
        if text.len() as u64 != base64_len(self.size?) {
            return None;
        }
        let bytes = BASE64.decode(text.as_bytes()).ok()?;
        let fits = bytes.len() as u64 == self.size?
            && encode_hex(&Sha256::digest(&bytes)).eq_ignore_ascii_case(self.sha256.as_deref()?);
        fits.then(|| bytes.into())
    }
}

/// A file of a message as its reader gets it.
#[derive(Clone, Debug)]
pub(super) struct ReceivedSampFile {
    /// The file as the header shows it, under a name that no other file of the message has.
    pub shown: Attachment,
    /// Its bytes; `None` if they are missing.
    pub bytes: Option<Arc<[u8]>>,
}

/// The files of the record that was read last. A folder of many files is then copied without parsing it for each.
#[derive(Debug)]
pub(super) struct LastSampFiles {
    line: String,
    files: Arc<[ReceivedSampFile]>,
}

/// Returns the length of the base64 of this many bytes.
pub(super) fn base64_len(bytes: u64) -> u64 {
    bytes.div_ceil(3).saturating_mul(4)
}

/// Returns the text of a list if it has an entry. Any other value lists no files.
pub(super) fn find_list(value: Option<JsonValue<'_>>) -> Option<&str> {
    let Some(JsonValue::Compound(list)) = value else { return None };
    let inner = list.strip_prefix('[')?.strip_suffix(']')?;
    (!inner.trim_ascii().is_empty()).then_some(list)
}

/// Returns the entries of a list, at most the first 16,384; `None` if the text is no list. An entry of another
/// type has no members.
pub fn parse_list(list: &str) -> Option<Vec<ListedSampFile<'_>>> {
    let mut files: Vec<ListedSampFile<'_>> = Vec::new();
    let (mut depth, mut is_list, mut count) = (0usize, false, 0usize);
    let mut key: Option<Cow<'_, str>> = None;
    json::walk_value(list, |event| match event {
        JsonEvent::ObjectStart | JsonEvent::ArrayStart => {
            match depth {
                0 => is_list = matches!(event, JsonEvent::ArrayStart),
                1 => {
                    count += 1;
                    files.resize_with(count.min(MOST_FILES), ListedSampFile::default);
                    key = None;
                }
                2 => {
                    if let (Some(file), Some(key)) = (files.get_mut(count - 1), key.take()) {
                        file.set_member(&key, JsonValue::Null);
                    }
                }
                _ => {}
            }
            depth += 1;
        }
        JsonEvent::ObjectEnd | JsonEvent::ArrayEnd => depth -= 1,
        JsonEvent::Key(text) if depth == 2 => key = Some(text.to_text()),
        JsonEvent::Scalar(_) if depth == 1 => {
            count += 1;
            files.resize_with(count.min(MOST_FILES), ListedSampFile::default);
        }
        JsonEvent::Scalar(value) if depth == 2 => {
            if let (Some(file), Some(key)) = (files.get_mut(count - 1), key.take()) {
                file.set_member(&key, value);
            }
        }
        JsonEvent::Key(_) | JsonEvent::Scalar(_) => {}
    })
    .ok()?;
    is_list.then_some(files)
}

/// Returns the files of a list with their bytes: those that it has itself, else those that `first` returns.
fn receive_files(
    listed: &[ListedSampFile<'_>],
    first: impl FnOnce() -> Option<String>,
) -> Arc<[ReceivedSampFile]> {
    let mut found: Vec<_> = listed.iter().map(|file| file.decode(file.data?)).collect();
    if found.iter().any(Option::is_none)
        && let Some(line) = first()
    {
        let parsed = record::parse(&line, &mut SampScratch::default());
        let theirs = parsed.ok().and_then(|first| parse_list(first.files?)).unwrap_or_default();
        let mine = listed.iter().zip(&mut found).zip(&theirs);
        for ((file, bytes), theirs) in mine.filter(|((_, bytes), _)| bytes.is_none()) {
            *bytes = theirs.data.and_then(|data| file.decode(data));
        }
    }
    let mut names = FileNames::default();
    let received = listed.iter().zip(found).map(|(file, bytes)| ReceivedSampFile {
        shown: Attachment {
            name: names.choose(file.name.as_deref(), UNNAMED),
            size: file.size.unwrap_or(0),
            withheld: bytes.is_none().then(|| DATA_MISSING.to_owned()),
        },
        bytes,
    });
    received.collect()
}

impl Samp {
    /// Returns the files of the record on this line if it was read last.
    pub(super) fn find_last_files(&self, line: &str) -> Option<Arc<[ReceivedSampFile]>> {
        let last = self.last_files.lock();
        last.as_ref().filter(|known| known.line == line).map(|known| Arc::clone(&known.files))
    }

    /// Returns the files of the record on this line, which stands at this location.
    pub(super) fn read_files(
        store: &SampStore,
        at: &Location,
        line: &str,
        parsed: &SampRecord<'_>,
    ) -> Arc<[ReceivedSampFile]> {
        let Some(list) = parsed.files else { return Arc::default() };
        if let Some(files) = store.format.find_last_files(line) {
            return files;
        }
        let listed = parse_list(list).unwrap_or_default();
        let files = receive_files(&listed, || find_first_record(store, at, parsed, &listed));
        let bytes = files.iter().filter_map(|file| file.bytes.as_ref());
        let total = bytes.fold(line.len() as u64, |sum, bytes| sum + bytes.len() as u64);
        // Missing bytes may come later.
        let is_whole = files.iter().all(|file| file.bytes.is_some());
        if is_whole && total <= MAX_CACHED {
            let last = LastSampFiles { line: line.to_owned(), files: Arc::clone(&files) };
            *store.format.last_files.lock() = Some(last);
        }
        files
    }
}

/// Returns the files of a record that was just made, all of whose bytes are there.
pub(super) fn preview_files(parsed: &SampRecord<'_>) -> Vec<Attachment> {
    let listed = parsed.files.and_then(parse_list).unwrap_or_default();
    let mut names = FileNames::default();
    let shown = listed.iter().map(|file| Attachment {
        name: names.choose(file.name.as_deref(), UNNAMED),
        size: file.size.unwrap_or(0),
        withheld: None,
    });
    shown.collect()
}

/// Returns a sentence that says why a list of files is not sound.
pub(super) fn find_list_fault(list: &str) -> Option<String> {
    let listed = parse_list(list)?;
    if listed.len() >= MOST_FILES {
        return Some(format!(
            "the member \"files\" lists {MOST_FILES} files or more; the others are not shown"
        ));
    }
    let fault = |file: &ListedSampFile<'_>| match (&file.name, file.size, &file.sha256) {
        (None, ..) => Some("has no name"),
        (_, None, _) => Some("has no size"),
        (.., None) => Some("has no sha256"),
        _ => match file.data {
            Some(data) if file.decode(data).is_none() => {
                Some("has data of another size or SHA-256")
            }
            _ => None,
        },
    };
    listed.iter().enumerate().find_map(|(n, file)| {
        Some(format!("file {} of the member \"files\" {}", n + 1, fault(file)?))
    })
}

/// Fails if a record cannot carry files of these sizes.
pub(super) fn check_attachments(files: &[(String, u64)]) -> Result<(), StoreError> {
    let bytes = files.iter().fold(0u64, |sum, (_, size)| sum.saturating_add(base64_len(*size)));
    if bytes < MAX_RECORD_WITH_FILES { Ok(()) } else { Err(too_large_error(bytes)) }
}

/// Returns the error for a record with files that would have this many bytes.
pub(super) fn too_large_error(bytes: u64) -> StoreError {
    StoreError::TooLarge(format!(
        "a SAMP record with files has at most {MAX_RECORD_WITH_FILES} bytes, about 750 KB of files, and this one \
         would have {bytes}: attach less, send the files by a store that carries larger ones (Via: STORE), or put them \
         where the recipient can read them and name the path in the text"
    ))
}

/// Reads the files of a draft.
///
/// # Errors
/// [`StoreError::TooLarge`], or as the system gave it.
pub(super) fn read_attachments(files: &[DraftAttachment]) -> Result<Vec<NewSampFile>, StoreError> {
    let sizes: Vec<_> = files.iter().map(|file| (file.name.clone(), file.size)).collect();
    check_attachments(&sizes)?;
    let read = |file: &DraftAttachment| {
        let bytes = std::fs::read(&file.path).map_err(|e| StoreError::io(&file.path, e))?;
        Ok(NewSampFile {
            name: file.name.clone(),
            size: bytes.len() as u64,
            sha256: encode_hex(&Sha256::digest(&bytes)),
            data: BASE64.encode(&bytes),
        })
    };
    files.iter().map(read).collect()
}

/// Adds the lines about files to a body. Programs that do not know the member show the body alone.
pub(super) fn add_notes(body: &mut String, files: &[NewSampFile]) {
    if files.is_empty() {
        return;
    }
    if !body.is_empty() {
        body.push('\n');
    }
    for file in files {
        let (begin, end) = NOTE;
        body.extend(["\n", begin, &sanitize_line(&file.name), " ("]);
        body.extend([&file.size.to_string(), end]);
    }
}

/// Returns a body without the lines about files at its end; `None` if it has none.
pub(super) fn strip_notes(body: &str) -> Option<&str> {
    let mut text = body;
    while let Some((before, line)) = text.rsplit_once('\n') {
        if !line.starts_with(NOTE.0) || !line.ends_with(NOTE.1) {
            break;
        }
        text = before;
    }
    (text.len() < body.len()).then(|| text.strip_suffix('\n').unwrap_or(text))
}

#[cfg(test)]
mod tests;
