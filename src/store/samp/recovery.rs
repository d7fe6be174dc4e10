//! The recovery of lines that my log loses.
//!
//! Sync programs put the version of another machine in the place of my log, and mine aside, as a conflict copy of
//! which they keep a few. So before anything is appended, and whenever the log or a copy has changed:
//!
//! 1. The lines that this machine appended in the last days (`backup`) are compared with the log. If its end is
//!    missing, those lines are appended again. A line that is missing while a later one is there was taken out on
//!    purpose.
//! 2. A log that is empty or gone for [`GRACE`] was emptied on purpose: sync programs leave none for a moment. The
//!    backup is then cleared.
//! 3. Records that a conflict copy has and the log lacks are appended, if they are from me and my key has signed them.
//!
//! The process that may write for this identity does all of it, and one process at a time.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use twox_hash::XxHash3_64;

use super::backup::{BackupLine, LineBackup, LogIncidents, WEEK_MS};
use super::record::{self, SampScratch};
use super::{SampStore, alias, append, parse_log_name};
use crate::model::locks::{LockLevel, Mutex, MutexGuard};
use crate::model::{PublicKey, SignatureClaim, Timestamp, to_json, verify};
use crate::store::engine::lines::append::{LogPath, UnsyncedLogs, append_once, has_final_newline};
use crate::store::engine::lines::log::{LineRun, LogCursor, read_lines, split_lines};
use crate::store::fs::{self, Stamp};
use crate::store::{PreparedRecord, Store as _, StoreError, StoreUpkeep, confined};

/// The time for which a log must be empty or gone until that is believed.
const GRACE: Duration = Duration::from_secs(1);
/// The interval between examinations meanwhile.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// The length of the writes by which lines are appended again.
const WRITE: usize = 1 << 20;
/// The file in the state folder of the store with the conflict copies that were compared.
const COPIES: &str = "copies.json";

/// The knowledge of my log and its conflict copies. It exists only where something may be written.
#[derive(Debug)]
pub(super) struct OwnLogTracker {
    state: PathBuf,
    known: Mutex<OwnLogState>,
    /// Set when a conflict copy may have come or changed.
    copies_changed: AtomicBool,
    /// The incidents, for people.
    incidents: Mutex<LogIncidents>,
}

#[derive(Debug)]
struct OwnLogState {
    backup: LineBackup,
    /// The stamp of the log when nothing in it was missing.
    log: Option<Stamp>,
    /// The position of the line that was kept last.
    last_line: Option<LinePosition>,
    compared: ComparedCopies,
}

/// The position of a line in the log, to recognize it.
#[derive(Clone, Copy, Debug)]
struct LinePosition {
    at: u64,
    len: usize,
    hash: u64,
}

impl LinePosition {
    fn from_line(at: u64, text: &str) -> Self {
        Self { at, len: text.len(), hash: XxHash3_64::oneshot(text.as_bytes()) }
    }

    fn is_in(self, file: &File) -> io::Result<bool> {
        let bytes = fs::read_range(file, self.at, self.len)?;
        Ok(bytes.len() == self.len && XxHash3_64::oneshot(&bytes) == self.hash)
    }
}

/// The conflict copies of which this state of the log has all records.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct ComparedCopies {
    log: LogCursor<()>,
    copies: HashMap<String, Stamp>,
}

impl OwnLogTracker {
    pub fn new(state: &Path) -> Self {
        let known = OwnLogState {
            backup: LineBackup::new(state.join("kept")),
            log: None,
            last_line: None,
            compared: fs::read_small_file(&state.join(COPIES), 1 << 20)
                .ok()
                .and_then(|bytes| serde_json::from_slice(&bytes).ok())
                .unwrap_or_default(),
        };
        Self {
            state: state.to_owned(),
            known: Mutex::with_level(LockLevel::Surroundings, known),
            copies_changed: AtomicBool::new(true),
            incidents: Mutex::new(LogIncidents::read(state)),
        }
    }

    /// Notes that a path has changed.
    pub fn note_change(&self, me: &str, path: &Path) {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if parse_log_name(name) == Some((me, true)) {
            self.copies_changed.store(true, Ordering::SeqCst);
        }
    }

    /// Returns the incidents of the last days, one line each.
    pub fn incident_lines(&self, me: &str) -> Vec<String> {
        self.incidents.lock().recent_lines(&alias::log_name(me))
    }

    fn state_error(&self, error: io::Error) -> StoreError {
        StoreError::io(&self.state, error)
    }

    /// Takes the lock in this process, and the one between processes.
    fn lock_state(&self) -> Result<(MutexGuard<'_, OwnLogState>, File), StoreError> {
        let known = self.known.lock();
        let alone = known.backup.lock_log().map_err(|e| self.state_error(e))?;
        Ok((known, alone))
    }

    /// Notes an incident, for people.
    fn report_incident(&self, log: &LogPath<'_>, note: impl FnOnce(&mut LogIncidents)) {
        let mut incidents = self.incidents.lock();
        note(&mut incidents);
        for line in incidents.recent_lines(log.name) {
            tracing::warn!("{line}");
        }
        if let Err(error) = incidents.write(&self.state) {
            tracing::warn!(%error, "the note about a damage of my log cannot be saved");
        }
    }
}

impl SampStore {
    /// Appends a line to my log, after the lines that it lost.
    pub(super) fn append_own_line(&self, message: &PreparedRecord) -> Result<(), StoreError> {
        let mut unsynced = self.reader.appending.lock();
        append::with_own_log(self.dir(), self.me(), |log| {
            let Some(guarded) = &self.format.own_log else {
                return append::append_to_log(log, &message.bytes, None, &mut unsynced).map(drop);
            };
            let (mut known, _alone) = guarded.lock_state()?;
            loop {
                let back = restore_lost_lines(guarded, &mut known, log, &mut unsynced)?;
                if back.contains(&message.id) {
                    // The message was among the lost lines.
                    return Ok(());
                }
                let whole = known.log;
                let appended =
                    append::append_to_log(log, &message.bytes, whole.as_ref(), &mut unsynced)?;
                // If nothing was appended, the log was replaced a moment ago. The lines that it lacks must come before
                // this one.
                if let Some((at, stamp)) = appended {
                    known.log = Some(stamp);
                    back_up_line(&mut known, at, &message.bytes);
                    return Ok(());
                }
            }
        })
    }

    /// Returns the conflict copies of my log, as of the last scan.
    fn own_conflict_copies(&self) -> Vec<String> {
        let table = self.table.read();
        let there = table.logs.iter().filter(|log| log.stamp.is_some());
        let mine = there.filter(|log| parse_log_name(&log.name) == Some((self.me(), true)));
        mine.map(|log| log.name.clone()).collect()
    }

    /// Appends the records that conflict copies have, the log lacks and my key has signed. Returns the number of
    /// lines.
    fn append_from_copies(
        &self,
        known: &mut OwnLogState,
        log: &LogPath<'_>,
        mine: &PublicKey,
        unsynced: &mut UnsyncedLogs,
    ) -> Result<usize, StoreError> {
        let names = self.own_conflict_copies();
        if names.is_empty() {
            return Ok(0);
        }
        let there = wait_until_nonempty(log).map_err(|e| log.io_error(e))?;
        let fits =
            |(file, stamp): &(File, Stamp)| known.compared.log.matches_file(file, stamp.size);
        if !there.as_ref().is_some_and(fits) {
            known.compared = ComparedCopies::default();
        }
        let file = there.as_ref().map(|(file, _)| file);
        let mut lacking = Vec::new();
        let mut ids: Option<HashSet<String>> = None;
        let mut seen = HashMap::new();
        for name in names {
            let copy = match confined::open_file(log.dir, &name) {
                Err(e) if fs::is_absent(&e) => continue,
                other => other.map_err(|e| log.io_error(e))?,
            };
            let stamp = Stamp::from_file(&copy).map_err(|e| log.io_error(e))?;
            if known.compared.copies.get(&name) != Some(&stamp) {
                let ids = match &mut ids {
                    Some(ids) => ids,
                    None => ids.insert(read_own_ids(file, self.me()).map_err(|e| log.io_error(e))?),
                };
                let signed = read_signed_lines(&copy, stamp.size, self.me(), mine, ids);
                lacking.extend(signed.map_err(|e| log.io_error(e))?);
            }
            seen.insert(name, stamp);
        }
        if ids.is_none() {
            // All copies were compared with this log.
            return Ok(0);
        }
        append_lines(log, &lacking, None, unsynced)?;
        if let (Some(file), stamp) = open_own_log(log).map_err(|e| log.io_error(e))? {
            let mut compared = ComparedCopies { log: LogCursor::default(), copies: seen };
            compared.log.offset =
                read_lines(&file, 0, stamp.size, |_| ()).map_err(|e| log.io_error(e))?.0;
            compared.log.store_prefix_hash(&file);
            known.compared = compared;
        }
        Ok(lacking.len())
    }
}

impl StoreUpkeep for SampStore {
    fn note_appended(&self, messages: &[&PreparedRecord]) -> Result<(), StoreError> {
        let Some(guarded) = self.format.own_log.as_ref().filter(|_| !messages.is_empty()) else {
            return Ok(());
        };
        let (mut known, _alone) = guarded.lock_state()?;
        let lines: Vec<&str> = messages.iter().map(|message| message.bytes.as_str()).collect();
        let lacking = known.backup.find_missing(&lines).map_err(|e| guarded.state_error(e))?;
        for line in lacking {
            // The offset of the line is not known, so it is searched for.
            back_up_line(&mut known, 0, line);
            known.last_line = None;
        }
        Ok(())
    }

    fn sync_backup(&self) -> Result<(), StoreError> {
        let Some(guarded) = &self.format.own_log else { return Ok(()) };
        guarded.known.lock().backup.sync_segment().map_err(|e| guarded.state_error(e))
    }

    fn suspect_loss(&self) {
        if let Some(guarded) = &self.format.own_log {
            guarded.copies_changed.store(true, Ordering::SeqCst);
        }
    }

    fn is_recovery_due(&self) -> bool {
        let Some(guarded) = &self.format.own_log else { return false };
        if guarded.copies_changed.load(Ordering::SeqCst) {
            return true;
        }
        let path = self.dir().join(alias::log_name(self.me()));
        // An append holds the lock until it has noted the new stamp.
        let known = guarded.known.lock();
        Stamp::from_path(&path).ok().flatten() != known.log
    }

    fn recover_lines(&self, mine: Option<&PublicKey>) -> Result<bool, StoreError> {
        let Some(guarded) = &self.format.own_log else { return Ok(false) };
        let mut unsynced = self.reader.appending.lock();
        let appended = append::with_own_log(self.dir(), self.me(), |log| {
            let (mut known, _alone) = guarded.lock_state()?;
            let before = known.log;
            let back = restore_lost_lines(guarded, &mut known, log, &mut unsynced)?.len();
            let replaced =
                known.log.map(|log| (log.dev, log.ino)) != before.map(|log| (log.dev, log.ino));
            let asked = guarded.copies_changed.swap(false, Ordering::SeqCst);
            let (Some(mine), true) = (mine, asked || replaced || back > 0) else { return Ok(back) };
            let compared = known.compared.copies.clone();
            let taken = self.append_from_copies(&mut known, log, mine, &mut unsynced);
            let taken = taken.inspect_err(|_| self.suspect_loss())?;
            if taken > 0 {
                // The log has changed since it was found whole.
                known.log = None;
                let now = Timestamp::now();
                guarded.report_incident(log, |noted| noted.taken = Some((now, taken as u64)));
            }
            if known.compared.copies != compared {
                let text = to_json(&known.compared);
                let path = guarded.state.join(COPIES);
                crate::store::atomic_file::write_atomic(&path, &text, 0o600)
                    .map_err(|e| guarded.state_error(e))?;
            }
            Ok(back + taken)
        })?;
        drop(unsynced);
        if appended > 0 {
            self.note_change(&self.dir().join(alias::log_name(self.me())));
        }
        Ok(appended > 0)
    }

    fn incidents(&self, state: &Path) -> Vec<String> {
        LogIncidents::read(state).recent_lines(&alias::log_name(self.me()))
    }
}

/// Opens my log for reading; `None` where there is none. Watchers would see the close of a log that was open for
/// writing.
fn open_own_log(log: &LogPath<'_>) -> io::Result<(Option<File>, Stamp)> {
    match confined::open_file(log.dir, log.name) {
        Ok(file) => {
            let stamp = Stamp::from_file(&file)?;
            Ok((Some(file), stamp))
        }
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok((None, Stamp::default())),
        Err(e) => Err(e),
    }
}

/// Adds a line of the log to the backup. If that fails, a loss of the line cannot be repaired.
fn back_up_line(known: &mut OwnLogState, at: u64, text: &str) {
    match known.backup.append_line(at, text) {
        Ok(()) => known.last_line = Some(LinePosition::from_line(at, text)),
        Err(error) => {
            known.last_line = None;
            tracing::warn!(%error, "the copy of a sent message cannot be saved; it could not be \
                restored if the log lost it");
        }
    }
}

/// Appends lines again that the log lost, and returns their ids. Then `known` has the log in which nothing is missing.
fn restore_lost_lines(
    guarded: &OwnLogTracker,
    known: &mut OwnLogState,
    log: &LogPath<'_>,
    unsynced: &mut UnsyncedLogs,
) -> Result<HashSet<String>, StoreError> {
    let failed = |e| log.io_error(e);
    let of_state = |e| guarded.state_error(e);
    let mut back = HashSet::new();
    loop {
        let unchanged =
            |known| confined::stat(log.dir, log.name).is_ok_and(|(_, now)| now == known);
        if known.log.is_some_and(unchanged) {
            return Ok(back);
        }
        let (file, stamp) = open_own_log(log).map_err(failed)?;
        let mine = known.last_line.filter(|_| known.backup.is_unchanged());
        if let (Some(last), Some(file)) = (mine, &file)
            && last.is_in(file).map_err(failed)?
        {
            known.log = Some(stamp);
            return Ok(back);
        }
        let last = known.backup.read_last().map_err(of_state)?;
        let Some(last) = last.filter(is_recent) else {
            known.log = file.map(|_| stamp);
            return Ok(back);
        };
        let Some((file, stamp)) = wait_until_nonempty(log).map_err(failed)? else {
            clear_backup(guarded, known, log)?;
            return Ok(back);
        };
        let place = LinePosition::from_line(last.at, &last.text);
        if place.is_in(&file).map_err(failed)? {
            (known.log, known.last_line) = (Some(stamp), Some(place));
            return Ok(back);
        }
        let kept = known.backup.read_all().map_err(of_state)?;
        let ids = read_own_ids(Some(&file), parse_log_name(log.name).map_or("", |(me, _)| me))
            .map_err(failed)?;
        let lost = find_lost_lines(&kept, &ids);
        let (again, old): (Vec<&BackupLine>, Vec<&BackupLine>) =
            lost.into_iter().partition(|line| is_recent(line));
        let texts: Vec<&str> = again.iter().map(|line| line.text.as_str()).collect();
        if !append_lines(log, &texts, Some(stamp), unsynced)? {
            // The log was replaced once more.
            continue;
        }
        back.extend(texts.iter().filter_map(|text| parse_id_and_time(text)).map(|(id, _)| id));
        if !texts.is_empty() || !old.is_empty() {
            let (now, again, old) = (Timestamp::now(), texts.len() as u64, old.len() as u64);
            guarded.report_incident(log, |noted| noted.lacked = Some((now, again, old)));
        }
        // Every line that may come back is in this file.
        known.last_line = find_line(&file, &last).map_err(failed)?;
        known.log = Some(Stamp::from_file(&file).map_err(failed)?);
        return Ok(back);
    }
}

/// Clears the backup, since the log is empty or gone.
fn clear_backup(
    guarded: &OwnLogTracker,
    known: &mut OwnLogState,
    log: &LogPath<'_>,
) -> Result<(), StoreError> {
    let kept = known.backup.read_all().map_err(|e| guarded.state_error(e))?;
    known.backup.clear().map_err(|e| guarded.state_error(e))?;
    (known.log, known.last_line) = (None, None);
    let (now, count) = (Timestamp::now(), kept.iter().filter(|line| is_recent(line)).count());
    guarded.report_incident(log, |noted| noted.ended = Some((now, count as u64)));
    Ok(())
}

/// Returns the log when it has text; `None` if it is empty or gone and stays so.
fn wait_until_nonempty(log: &LogPath<'_>) -> io::Result<Option<(File, Stamp)>> {
    let began = Instant::now();
    loop {
        match open_own_log(log)? {
            (Some(file), stamp) if stamp.size > 0 => return Ok(Some((file, stamp))),
            _ if began.elapsed() >= GRACE => return Ok(None),
            _ => std::thread::sleep(LOOK_EVERY),
        }
    }
}

/// Returns the kept lines after the last one that is among these ids.
fn find_lost_lines<'a>(kept: &'a [BackupLine], there: &HashSet<String>) -> Vec<&'a BackupLine> {
    let ids: Vec<Option<String>> =
        kept.iter().map(|line| parse_id_and_time(&line.text).map(|(id, _)| id)).collect();
    let is_there = |id: &Option<String>| id.as_ref().is_some_and(|id| there.contains(id));
    let first = ids.iter().rposition(is_there).map_or(0, |n| n + 1);
    let mut seen = HashSet::new();
    let lost = kept.iter().zip(&ids).skip(first).filter(|(_, id)| id.is_some() && seen.insert(*id));
    lost.map(|(line, _)| line).collect()
}

/// Returns the position of a line in a log.
fn find_line(file: &File, line: &BackupLine) -> io::Result<Option<LinePosition>> {
    let mut place = None;
    read_lines(file, 0, file.metadata()?.len(), |run| {
        let LineRun::Lines(run, offset) = run else { return };
        let found = memchr::memmem::rfind(run, line.text.as_bytes());
        place = found.map(|at| LinePosition::from_line(offset + at as u64, &line.text)).or(place);
    })?;
    Ok(place)
}

fn parse_id_and_time(text: &str) -> Option<(String, Timestamp)> {
    let mut scratch = SampScratch::default();
    let parsed = record::parse(text, &mut scratch).ok()?;
    Some((parsed.id.to_string(), parsed.time()))
}

fn is_recent(line: &BackupLine) -> bool {
    parse_id_and_time(&line.text)
        .is_some_and(|(_, time)| time.millis() >= Timestamp::now().millis() - WEEK_MS)
}

/// Hands out each record of a log and its line.
fn for_each_record(
    file: &File,
    mut each: impl FnMut(&record::SampRecord<'_>, &str),
) -> io::Result<()> {
    let mut scratch = SampScratch::default();
    let mut take = |run: &[u8], offset| {
        for piece in split_lines(run, offset) {
            let (text, _) = piece.strip_bom();
            if let Ok(parsed) = record::parse(text, &mut scratch) {
                each(&parsed, text);
            }
        }
    };
    let (end, tail) = read_lines(file, 0, file.metadata()?.len(), |run| {
        if let LineRun::Lines(run, offset) = run {
            take(run, offset);
        }
    })?;
    take(&tail, end);
    Ok(())
}

/// Reads the ids of the records from me in a log.
fn read_own_ids(file: Option<&File>, me: &str) -> io::Result<HashSet<String>> {
    let mut ids = HashSet::new();
    if let Some(file) = file {
        for_each_record(file, |parsed, _| {
            if parsed.from == me && parsed.id_verified {
                ids.insert(parsed.id.to_string());
            }
        })?;
    }
    Ok(ids)
}

/// Reads the lines of a copy that are from me, signed by my key, and not among these ids. Adds their ids to the set.
fn read_signed_lines(
    copy: &File,
    size: u64,
    me: &str,
    mine: &PublicKey,
    ids: &mut HashSet<String>,
) -> io::Result<Vec<String>> {
    let mut lines = Vec::new();
    if size == 0 {
        return Ok(lines);
    }
    for_each_record(copy, |parsed, text| {
        if parsed.from != me || !parsed.id_verified || !parsed.has_sig || ids.contains(&*parsed.id)
        {
            return;
        }
        let Some(claim) = record::parse_claim(text) else { return };
        let named = matches!(&claim, SignatureClaim::Signed { key, .. } if key.is_none_or(|key| key == *mine));
        if named && verify::verify_claim(mine, &claim) {
            ids.insert(parsed.id.to_string());
            lines.push(text.trim().to_owned());
        }
    })?;
    Ok(lines)
}

/// Appends lines and brings them to disk. Stops and returns false if the log does not continue the one that is
/// `known`.
fn append_lines(
    log: &LogPath<'_>,
    lines: &[impl AsRef<str>],
    mut known: Option<Stamp>,
    unsynced: &mut UnsyncedLogs,
) -> Result<bool, StoreError> {
    let (mut lines, mut written) = (lines.iter().peekable(), false);
    while lines.peek().is_some() {
        let mut write = || {
            let file = log.open(true)?;
            let before = Stamp::from_file(&file)?;
            if known.is_some_and(|known| !append::is_continuation(&before, &known)) {
                return Ok(None);
            }
            let mut text = String::new();
            if !has_final_newline(&file, before.size)? {
                text.push('\n');
            }
            while let Some(line) = lines.next_if(|_| text.len() < WRITE) {
                text.push_str(line.as_ref());
                text.push('\n');
            }
            append_once(&file, text.as_bytes(), before.size)?;
            Ok(Some((before, Stamp::from_file(&file)?)))
        };
        let Some((before, stamp)) = write().map_err(|e: io::Error| log.io_error(e))? else {
            return Ok(false);
        };
        unsynced.note_append(log.path, before.size, before);
        known = known.map(|_| stamp);
        written = true;
    }
    if written {
        unsynced.sync_log(log)?;
    }
    Ok(true)
}

#[cfg(test)]
mod tests;
