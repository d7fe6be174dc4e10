//! Fetching of complete files from my day folders on the server.
//!
//! A file can be seen while it is being written, and may stay torn for ever. A text that its own signature covers is
//! complete. A text whose signed block has no end is not. Any other text is believed when it has not changed for some
//! time. Nothing is deleted on the server.

use std::collections::{BTreeMap, HashSet};
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::client::{FtpClient, FtpEntry, FtpError, FtpReply};
use super::history::{FtpDelivery, FtpFetchCache, FtpFileHistory, FtpFileStamp};
use crate::link::agentazall::broken_fetches::BrokenFetches;
use crate::link::agentazall::fetch_folder;
use crate::link::disk_space::SpaceCheckedFile;
use crate::link::engine::ExchangeOutcome;
use crate::model::{Timestamp, encode_hex, sanitize_line};
use crate::store::agentazall::{block, date, names, text};
use crate::store::{atomic_file, fs};

/// The time for which a text without a signature must stay unchanged, in milliseconds.
const STABLE: i64 = 10_000;
/// The time for which attachments are awaited, in milliseconds.
const MAX_WAIT_MS: i64 = 10 * 60_000;
/// The time for which a filed message is watched for changes on the server, in milliseconds.
const WATCHED: i64 = 24 * 3_600_000;
/// The time between two fetches that examine old days too, in milliseconds.
const ALL_DAYS: i64 = 10 * 60_000;
/// The room for the note in a text that changed.
const NOTICE: u64 = 256;
/// The limit on the size of a text. With the note, it is no longer than the job's reader and the store read.
const MAX_TEXT: u64 = fs::MAX_RECORD as u64 - NOTICE;
/// The limit on the size of an attachment. A larger one is left out.
const MAX_PART: u64 = 256 << 20;
/// The limit on the size of all attachments of a message.
const MAX_PARTS: u64 = 1 << 30;
/// The limit on the number of attachments of a message.
const MAX_FILES: usize = 100;
/// The limit on the number of messages in one fetch.
const MAX_FETCHED_AT_ONCE: usize = 256;

/// The data that a fetch writes beside a text and its attachments.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct FtpMessageMeta {
    /// The id that distinguishes it from all others.
    pub id: String,
    /// The file names for it, the better one first.
    pub names: [String; 2],
    /// The day of its folder.
    pub day: String,
    /// The names of its attachments; the n-th is in the file `n`.
    pub parts: Vec<String>,
    /// The id by which the reference program knows it; empty if the reference should not learn of it.
    pub seen: String,
    /// The reason why it cannot be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<String>,
}

/// One fetch.
pub struct FtpFetch<'a> {
    client: FtpClient,
    raw: &'a Path,
    known: &'a HashSet<String>,
    me: &'a str,
    cache: FtpFetchCache,
    listed_ids: Vec<String>,
    /// The reasons why the server refused files. They are asked for again.
    refusals: Vec<String>,
    broken: BrokenFetches,
    /// The files at which an earlier fetch broke off, which come last: their id, their day, their entry, and true if
    /// they have a folder.
    postponed: Vec<(String, String, FtpEntry, bool)>,
    fetched_count: usize,
    now: i64,
}

/// A file in an inbox.
struct FtpInboxFile<'a> {
    day: &'a str,
    /// The file's name without the ending.
    stem: &'a str,
    id: String,
    /// The folder of its attachments, on the server.
    folder: String,
}

impl<'a> FtpInboxFile<'a> {
    /// Returns the file of this name in my inbox of a day, if it can be a text.
    fn new(me: &str, day: &'a str, name: &'a str) -> Option<Self> {
        let stem = name.strip_suffix(".txt").filter(|stem| !stem.is_empty())?;
        let (id, folder) = (make_id(day, name), format!("/{me}/{day}/inbox/{stem}"));
        (id.len() <= 1000).then_some(Self { day, stem, id, folder })
    }
}

impl<'a> FtpFetch<'a> {
    /// Returns a fetch into a folder, whose time began with `broken`.
    pub fn new(
        client: FtpClient,
        broken: BrokenFetches,
        raw: &'a Path,
        known: &'a HashSet<String>,
        me: &'a str,
    ) -> Self {
        Self {
            client,
            raw,
            known,
            me,
            cache: FtpFetchCache::read(raw),
            listed_ids: Vec::new(),
            refusals: Vec::new(),
            broken,
            postponed: Vec::new(),
            fetched_count: 0,
            now: Timestamp::now().millis(),
        }
    }

    /// Fetches what is complete and not known. Returns the session, if it can be used again, and the outcome.
    /// `classify_error` gives the outcome of an error.
    pub fn run(
        mut self,
        classify_error: impl FnOnce(&FtpError) -> ExchangeOutcome,
    ) -> (Option<FtpClient>, ExchangeOutcome) {
        let result = self.fetch_days();
        if matches!(result, Err(FtpError::Unsaved(_))) {
            self.broken.leave_letter();
        }
        let client = result.is_ok().then_some(self.client);
        let saved = self.cache.save(self.raw).map_err(fetch_folder::unsaved_outcome);
        let result = result.map_err(|e| classify_error(&e).before_message()).and(saved);
        (client, self.broken.end_fetch(self.raw, &self.listed_ids, self.refusals, result))
    }

    fn fetch_days(&mut self) -> Result<(), FtpError> {
        let folders = self.client.list_folder(&format!("/{}", self.me))?;
        let is_day = |e: &FtpEntry| e.is_dir != Some(false) && date::is_day(&e.name);
        let mut days: Vec<String> = folders.into_iter().filter(is_day).map(|e| e.name).collect();
        days.sort_unstable();
        let is_all = !(0..ALL_DAYS).contains(&(self.now - self.cache.all));
        let yesterday = Timestamp::from_millis(self.now - 24 * 3_600_000);
        let yesterday = date::format_local_day(yesterday, &jiff::tz::TimeZone::system());
        let mut there = HashSet::new();
        let is_open = |files: &BTreeMap<String, FtpFileHistory>, day: &String| {
            let prefix = format!("ftp:{day}/");
            files.range(prefix.clone()..).next().is_some_and(|(id, _)| id.starts_with(&prefix))
        };
        for day in days.iter().rev() {
            if !is_all && *day < yesterday && !is_open(&self.cache.files, day) {
                continue;
            }
            self.fetch_day(day, &mut there)?;
            if self.has_enough() {
                return Ok(());
            }
        }
        if is_all {
            self.cache.all = self.now;
            let is_watched =
                |saw: &FtpFileHistory| saw.taken.as_ref().is_none_or(|t| is_fresh(self.now - t.at));
            self.cache.files.retain(|id, saw| there.contains(id) && is_watched(saw));
        }
        self.examine_postponed()
    }

    /// Returns true if the fetch should examine no further file.
    fn has_enough(&self) -> bool {
        self.fetched_count >= MAX_FETCHED_AT_ONCE
            || self.fetched_count > 0 && !self.broken.has_time()
    }

    fn fetch_day(&mut self, day: &str, there: &mut HashSet<String>) -> Result<(), FtpError> {
        let entries = self.client.list_folder(&format!("/{}/{day}/inbox", self.me))?;
        for entry in entries.iter().filter(|e| e.is_dir != Some(true)) {
            let Some(place) = FtpInboxFile::new(self.me, day, &entry.name) else { continue };
            there.insert(place.id.clone());
            let has_folder =
                entries.iter().any(|e| e.name == place.stem && e.is_dir != Some(false));
            if self.broken.is_noted(&place.id) {
                self.postponed.push((place.id, day.to_owned(), entry.clone(), has_folder));
                continue;
            }
            self.examine_file(&place, entry, has_folder)?;
            if self.has_enough() {
                break;
            }
        }
        Ok(())
    }

    /// Examines the files at which an earlier fetch broke off, after all others.
    fn examine_postponed(&mut self) -> Result<(), FtpError> {
        let mut postponed = std::mem::take(&mut self.postponed);
        self.broken.put_last(&mut postponed, |(id, ..)| id.clone());
        for (id, day, entry, has_folder) in &postponed {
            if let Some(why) = self.broken.describe_rest(id) {
                self.refusals.push(why);
                continue;
            }
            let Some(place) = FtpInboxFile::new(self.me, day, &entry.name) else { continue };
            self.examine_file(&place, entry, *has_folder)?;
            if self.has_enough() {
                break;
            }
        }
        Ok(())
    }

    fn examine_file(
        &mut self,
        place: &FtpInboxFile<'_>,
        entry: &FtpEntry,
        has_folder: bool,
    ) -> Result<(), FtpError> {
        let is_known = self.known.contains(&place.id);
        if is_known {
            self.listed_ids.push(place.id.clone());
        }
        // If the connection breaks below, the file is watched on.
        let mut saw = self.cache.files.get(&place.id).cloned().unwrap_or_default();
        let is_watched = saw.taken.as_ref().is_some_and(|t| is_fresh(self.now - t.at));
        if is_known && !is_watched {
            self.cache.files.remove(&place.id);
            return Ok(());
        }
        self.broken.begin_letter(&place.id);
        if self.broken.has_time() {
            self.client.begin_exchange();
        }
        let mut look = FtpFileStamp { modify: entry.modify.clone(), ..FtpFileStamp::default() };
        look.size = entry.size.unwrap_or_default();
        if has_folder {
            let parts = self.client.list_folder(&place.folder)?;
            let is_part =
                |e: &&FtpEntry| e.is_dir != Some(true) && names::is_attachment_name(&e.name);
            let parts = parts.iter().filter(is_part).take(MAX_FILES);
            look.parts = parts.map(|e| (e.name.clone(), e.size.unwrap_or(0))).collect();
        }
        if saw.first == 0 || saw.look != look {
            saw.first = if saw.first == 0 { self.now } else { saw.first };
            (saw.since, saw.unproven, saw.told) = (self.now, false, false);
            saw.look = look;
        }
        let kept = saw.taken.clone().filter(|_| is_known);
        let is_same = kept.as_ref().is_some_and(|taken| taken.look == saw.look);
        let fetched = if !is_same && saw.look.size > 0 {
            self.fetch_whole_file(place, &mut saw, kept.as_ref())
        } else {
            Ok(())
        };
        self.cache.files.insert(place.id.clone(), saw);
        fetched.inspect(|()| self.broken.end_letter())
    }

    /// Fetches a file if it is complete.
    fn fetch_whole_file(
        &mut self,
        place: &FtpInboxFile<'_>,
        saw: &mut FtpFileHistory,
        before: Option<&FtpDelivery>,
    ) -> Result<(), FtpError> {
        // The clock may have been set.
        let is_stable = !(0..STABLE).contains(&(self.now - saw.since));
        if saw.told || saw.unproven && !is_stable {
            return Ok(());
        }
        if saw.look.size > MAX_TEXT {
            return self.report_large_file(place, saw);
        }
        let path = format!("{}.txt", place.folder);
        let mut bytes = Vec::new();
        let length = match self.client.retrieve_file(&path, MAX_TEXT, &mut bytes) {
            Err(FtpError::Refused(reply)) if is_about_file(&reply) => {
                self.note_refusal(&path, &reply);
                return Ok(());
            }
            other => other?,
        };
        let letter = text::parse(&bytes);
        let reading = block::read(&letter);
        let is_proven = reading.signature.is_some();
        saw.unproven = !is_proven;
        if !is_proven && !is_stable || length != saw.look.size {
            return Ok(());
        }
        let sha = encode_hex(&Sha256::digest(&bytes));
        if text::has_torn_signature(&letter) {
            return self.report_torn_file(place, saw, &bytes, &sha);
        }
        let signed = reading.signed_attachments.clone().unwrap_or_default();
        let mut wanted: Vec<String> = signed.iter().map(|f| f.name.clone()).collect();
        if reading.signed_attachments.is_none() {
            wanted = letter.list_values("Attachments");
        }
        let is_here = |name: &String| saw.look.parts.iter().any(|(there, _)| there == name);
        let is_missing = !wanted.iter().all(is_here);
        let is_late = !(0..MAX_WAIT_MS).contains(&(self.now - saw.first));
        let must_rest = reading.signed_attachments.is_none() && !saw.look.parts.is_empty();
        if !is_late && (is_missing || must_rest && !is_stable) {
            return Ok(());
        }
        let folder = self.raw.join(self.fetched_count.to_string());
        fs::make_dirs(&folder, 0o700).map_err(FtpError::Unsaved)?;
        let fetched = self.fetch_attachments(place, &saw.look.parts, &signed, is_late, &folder)?;
        let Some(kept) = fetched else {
            return std::fs::remove_dir_all(&folder).map_err(FtpError::Unsaved);
        };
        let hashed = hash_name(&[place.day, place.stem, &sha]);
        let mut brought = FtpMessageMeta {
            id: place.id.clone(),
            names: [place.stem.to_owned(), hashed.clone()],
            day: place.day.to_owned(),
            parts: kept,
            seen: place.id.clone(),
            fault: None,
        };
        match before {
            Some(old) if old.sha != sha => {
                brought.id = format!("{}#{hashed}", place.id);
                brought.names = [hashed.clone(), hashed];
                if !is_proven {
                    bytes = add_change_notice(&bytes, old);
                }
            }
            Some(_) => brought.id = format!("{}+{}", place.id, saw.since),
            None => {}
        }
        self.write_fetched(&brought, &bytes)?;
        saw.taken = Some(FtpDelivery { at: self.now, look: saw.look.clone(), length, sha });
        Ok(())
    }

    /// Waits for the end of a text of which the server has only the beginning. After a long wait the torn text is
    /// reported once, not as a message. The complete text becomes a message whenever it comes.
    fn report_torn_file(
        &mut self,
        place: &FtpInboxFile<'_>,
        saw: &mut FtpFileHistory,
        bytes: &[u8],
        sha: &str,
    ) -> Result<(), FtpError> {
        if (0..MAX_WAIT_MS).contains(&(self.now - saw.since)) {
            return Ok(());
        }
        let name = hash_name(&[place.day, place.stem, sha]);
        let brought = FtpMessageMeta {
            id: format!("{}#{name}", place.id),
            names: [name.clone(), name],
            day: place.day.to_owned(),
            parts: Vec::new(),
            seen: String::new(),
            fault: Some(format!(
                "the server has only the beginning of the signed text {}.txt, and no more came \
                 for {} minutes; when the whole text comes, it becomes a message",
                sanitize_line(&place.folder),
                MAX_WAIT_MS / 60_000
            )),
        };
        self.write_fetched(&brought, bytes)?;
        saw.told = true;
        Ok(())
    }

    /// Writes a letter that reports a file too large to be a message.
    fn report_large_file(
        &mut self,
        place: &FtpInboxFile<'_>,
        saw: &mut FtpFileHistory,
    ) -> Result<(), FtpError> {
        let text = format!(
            "From: {me}\nTo: {me}\nSubject: a file on the server is too large\nDate: {}\nMessage-ID: {id}\n\
             Status: new\n---\nThe file {}.txt on the FTP server has {} bytes; no message is larger than \
             {MAX_TEXT}. It was left there.\n",
            date::format_local_stamp(
                Timestamp::from_millis(self.now),
                &jiff::tz::TimeZone::system()
            ),
            sanitize_line(&place.folder),
            saw.look.size,
            id = hash_name(&[place.day, place.stem, "too large"]),
            me = self.me,
        );
        let name = hash_name(&[place.day, place.stem, "too large"]);
        let (id, day) = (place.id.clone(), place.day.to_owned());
        let names = [name.clone(), name];
        let brought =
            FtpMessageMeta { seen: id.clone(), id, names, day, ..FtpMessageMeta::default() };
        self.write_fetched(&brought, text.as_bytes())?;
        saw.taken =
            Some(FtpDelivery { at: self.now, look: saw.look.clone(), ..FtpDelivery::default() });
        Ok(())
    }

    /// Downloads the attachments of a message to a folder and returns their names; `None` if the message must wait for
    /// one of them.
    fn fetch_attachments(
        &mut self,
        place: &FtpInboxFile<'_>,
        parts: &[(String, u64)],
        signed: &[block::SignedAttachment],
        is_late: bool,
        folder: &Path,
    ) -> Result<Option<Vec<String>>, FtpError> {
        let (mut kept, mut total) = (Vec::new(), 0);
        for (name, size) in parts {
            total += size;
            if *size > MAX_PART || total > MAX_PARTS {
                continue;
            }
            let to = folder.join(kept.len().to_string());
            let sum = self.fetch_attachment(&format!("{}/{name}", place.folder), &to)?;
            let expected = signed.iter().find(|file| file.name == *name);
            let is_right = match (&sum, expected) {
                (Some(sum), Some(file)) => file.sha256 == *sum,
                (sum, _) => sum.is_some(),
            };
            // The attachment may still be written. One that differs from its signature to the end is filed, and
            // withheld. One that the server refuses to the end is missing.
            if !is_right && !is_late {
                return Ok(None);
            }
            kept.extend(sum.map(|_| name.clone()));
        }
        Ok(Some(kept))
    }

    /// Downloads an attachment and returns its SHA-256; `None` if the server refuses it.
    fn fetch_attachment(&mut self, path: &str, to: &Path) -> Result<Option<String>, FtpError> {
        let file = SpaceCheckedFile::create(to).map_err(FtpError::Unsaved)?;
        let mut out = DigestWriter { file, sum: Sha256::new() };
        match self.client.retrieve_file(path, MAX_PART, &mut out) {
            Err(FtpError::Refused(reply)) if is_about_file(&reply) => {
                self.note_refusal(path, &reply);
                return Ok(None);
            }
            Err(FtpError::Io(e)) if out.file.has_failed() => return Err(FtpError::Unsaved(e)),
            other => drop(other?),
        }
        out.file.file().sync_all().map_err(FtpError::Unsaved)?;
        Ok(Some(encode_hex(&out.sum.finalize())))
    }

    /// Remembers that the server refused a file.
    fn note_refusal(&mut self, path: &str, reply: &FtpReply) {
        self.refusals.push(format!("the server refuses {}: {reply}", sanitize_line(path)));
    }

    /// Writes a fetched text; the last file marks it as complete.
    fn write_fetched(&mut self, brought: &FtpMessageMeta, text: &[u8]) -> Result<(), FtpError> {
        let name = |ending: &str| self.raw.join(format!("{}.{ending}", self.fetched_count));
        let written = serde_json::to_vec(brought).map_err(io::Error::from).and_then(|json| {
            atomic_file::write_atomic(&name("txt"), text, 0o600)?;
            atomic_file::write_atomic(&name("json"), &json, 0o600)
        });
        written.map_err(FtpError::Unsaved)?;
        self.fetched_count += 1;
        Ok(())
    }
}

/// A writer that also computes the SHA-256.
struct DigestWriter {
    file: SpaceCheckedFile,
    sum: Sha256,
}

impl io::Write for DigestWriter {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        let n = self.file.write(buf)?;
        self.sum.update(buf.get(..n).unwrap_or_default());
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// Returns true if a refusal concerns one file, so that the session can go on.
fn is_about_file(reply: &FtpReply) -> bool {
    matches!(reply.code, 450 | 451 | 550 | 551 | 553)
}

/// Returns the id of a file in an inbox.
fn make_id(day: &str, name: &str) -> String {
    format!("ftp:{day}/{name}")
}

fn is_fresh(age: i64) -> bool {
    (0..WATCHED).contains(&age)
}

/// Returns a name derived from what identifies a message.
fn hash_name(of: &[&str]) -> String {
    let digest = encode_hex(&Sha256::digest(of.join("|")));
    digest.get(..12).unwrap_or_default().to_owned()
}

/// Adds a note to a text that differed when it was first filed.
fn add_change_notice(bytes: &[u8], old: &FtpDelivery) -> Vec<u8> {
    let begins_so = bytes
        .get(..old.length as usize)
        .is_some_and(|begin| encode_hex(&Sha256::digest(begin)) == old.sha);
    let what = if begins_so {
        "the whole of a text of which the server had only the beginning"
    } else {
        "a text that was changed on the server after it was delivered"
    };
    let mark = b"\n---\n";
    let at = bytes.windows(mark.len()).position(|window| window == mark);
    let at = at.map_or(bytes.len(), |at| at + mark.len());
    let (head, rest) = bytes.split_at(at.min(bytes.len()));
    [head, format!("[This is {what}.]\n\n").as_bytes(), rest].concat()
}

#[cfg(test)]
mod tests;
