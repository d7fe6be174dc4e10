//! The mark `Status` in the files of a message (docs/formats/agentazall.md, section 11).
//!
//! The reference writes in place and nobody locks. So a file that was touched a moment ago is left for later, and the
//! text must be the one that was marked. A writer who was not finished writes on into the replaced file; that text is
//! put in place again.

use std::io::{self, Read, Seek};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use sha2::{Digest, Sha256};

use super::letter::{LetterFacts, MAX_FILE};
use super::{AgentAzall, text};
use crate::model::{Timestamp, sanitize_line};
use crate::store::atomic_file::FileSlot;
use crate::store::engine::files::{self, StoreFile};
use crate::store::fs::Stamp;
use crate::store::{Location, Store as _, StoreError, StoreMarks, confined};

/// Time after the last write in which a file is not edited.
pub(super) const STILL_MS: i64 = 1000;
/// Time for which replaced files are watched, and the limit of their number.
const KEPT: Duration = Duration::from_secs(60);
const KEPT_AT_MOST: usize = 64;

/// A file that was replaced by its marked copy. It is still open, because its writer may not have finished.
#[derive(Debug)]
pub(super) struct ReplacedFile {
    path: PathBuf,
    /// Its folder, and its name there.
    dir: OwnedFd,
    name: String,
    old_file: std::fs::File,
    /// The stamp of the old file when it was read, and the SHA-256 of its bytes then.
    old_stamp: Stamp,
    old_hash: [u8; 32],
    /// Stamp of the file that is in its place.
    new_stamp: Stamp,
    since: Instant,
}

impl StoreMarks for AgentAzall {
    /// Marks every copy in the inbox as read. Returns true if one is marked now.
    ///
    /// # Errors
    /// [`StoreError::Moved`] if a file is gone or holds another text by now, [`StoreError::Busy`] if one was touched a
    /// moment ago, else the error of the system; the other copies were tried too.
    fn write_mark(&self, at: &Location, read: bool) -> Result<bool, StoreError> {
        if !read {
            return Ok(false);
        }
        let source = at.source;
        let copies: Vec<StoreFile<LetterFacts>> = {
            let known = self.format.group_index.read();
            let table = self.table.read();
            let message = known.find_group(&table, source).ok_or(StoreError::Moved)?;
            let copies = message.members.iter().filter_map(|n| StoreFile::from_table(&table, *n));
            copies.filter(|file| file.folder.ends_with("/inbox")).collect()
        };
        self.restore_late_writes();
        // The mark belongs to the id: from now on no other text may get it, whatever happens to the files.
        self.make_id_permanent(source);
        let mut said = false;
        let mut failed = None;
        for file in copies {
            match self.mark_file_read(&file) {
                Ok(done) => said |= done,
                Err(e) => failed = failed.or(Some(e)),
            }
        }
        failed.map_or(Ok(said), Err)
    }
}

impl AgentAzall {
    /// Assigns its id to the message of this file for good.
    fn make_id_permanent(&self, source: u32) {
        let lines = {
            let mut known = self.format.group_index.write();
            known.make_id_permanent(&self.table.read(), source);
            known.ledger.take_unsaved_lines()
        };
        self.format.state.append_ids(&lines, false);
    }

    /// Sets Status in one copy of a message, if it still holds this text. Returns true if it is marked read now.
    fn mark_file_read(&self, file: &StoreFile<LetterFacts>) -> Result<bool, StoreError> {
        let path = self.mailbox_dir().join(file.path());
        let io = |e: io::Error| match e.kind() {
            io::ErrorKind::NotFound => StoreError::Moved,
            _ => StoreError::io(&path, e),
        };
        let dir =
            confined::open_dir(self.mailbox_dir(), &files::path_parts(&file.folder)).map_err(io)?;
        let old = confined::open_file(&dir, &file.name).map_err(io)?;
        let (seen, bytes) = confined::read_whole(&old, MAX_FILE).map_err(io)?;
        let parsed = self.format.parse_letter_file(file, &seen, &bytes).ok_or(StoreError::Moved)?;
        if parsed.facts.text_hash != file.facts.text_hash {
            self.note_change(&path);
            return Err(StoreError::Moved);
        }
        if parsed.facts.has_bit(LetterFacts::READ) {
            return Ok(true);
        }
        if parsed.content.is_legacy {
            return Ok(false);
        }
        let Some(marked) = text::set_read(&bytes) else { return Ok(false) };
        require_untouched(&path, &seen)?;
        let slot = FileSlot::for_component(&dir, &file.name).map_err(io)?;
        let ours =
            slot.replace_if_unchanged(&seen, &marked).map_err(|e| StoreError::io(&path, e))?;
        self.note_change(&path);
        let ours = ours.ok_or(StoreError::Moved)?;
        let read = Sha256::digest(&bytes).into();
        let name = file.name.clone();
        let mut one = ReplacedFile {
            path,
            dir,
            name,
            old_file: old,
            old_stamp: seen,
            old_hash: read,
            new_stamp: ours,
            since: Instant::now(),
        };
        let late = one.restore_late_write();
        let shown = sanitize_line(&one.path.to_string_lossy()).into_owned();
        let mut replaced = self.format.replaced_files.lock();
        if replaced.len() >= KEPT_AT_MOST {
            replaced.remove(0);
        }
        replaced.push(one);
        if late { Err(busy_error(&shown)) } else { Ok(true) }
    }

    /// Puts late writes to replaced files in place.
    pub(super) fn restore_late_writes(&self) {
        self.format.replaced_files.lock().retain_mut(|one| {
            let old = one.since.elapsed() >= KEPT;
            if !one.restore_late_write() {
                return !old;
            }
            self.note_change(&one.path);
            true
        });
    }
}

impl ReplacedFile {
    /// Puts the old file in the place of the marked copy if it changed since it was read. Returns true if it did.
    fn restore_late_write(&mut self) -> bool {
        let Ok(now) = Stamp::from_file(&self.old_file) else { return false };
        if (now.size, now.mtime) == (self.old_stamp.size, self.old_stamp.mtime) {
            return false;
        }
        let put = self.replace_again(now);
        if let Err(error) = &put {
            let path = sanitize_line(&self.path.to_string_lossy()).into_owned();
            tracing::warn!(path, %error, "lines that another program added to a message could not \
                be kept");
        }
        put.is_ok()
    }

    fn replace_again(&mut self, now: Stamp) -> io::Result<()> {
        let mut bytes = Vec::new();
        self.old_file.rewind()?;
        (&mut self.old_file).take(MAX_FILE as u64).read_to_end(&mut bytes)?;
        let before = usize::try_from(self.old_stamp.size).ok().and_then(|size| bytes.get(..size));
        let grown =
            before.is_some_and(|before| <[u8; 32]>::from(Sha256::digest(before)) == self.old_hash);
        // Nobody has read another text.
        let marked = if grown { text::set_read(&bytes) } else { None };
        let whole = marked.as_deref().unwrap_or(&bytes);
        match FileSlot::for_component(&self.dir, &self.name)?
            .replace_if_unchanged(&self.new_stamp, whole)
        {
            Ok(Some(ours)) => self.new_stamp = ours,
            // Another program replaced, moved or removed the message, and that stays.
            Ok(None) => {}
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => return Err(e),
        }
        self.old_stamp = Stamp { size: bytes.len() as u64, ..now };
        self.old_hash = Sha256::digest(&bytes).into();
        self.since = Instant::now();
        Ok(())
    }
}

fn require_untouched(path: &Path, stamp: &Stamp) -> Result<(), StoreError> {
    let age = Timestamp::now().millis().saturating_sub(stamp.modified().millis());
    if (-STILL_MS..STILL_MS).contains(&age) {
        return Err(busy_error(&sanitize_line(&path.to_string_lossy())));
    }
    Ok(())
}

fn busy_error(shown: &str) -> StoreError {
    StoreError::Busy(format!("{shown} was written a moment ago; it is marked a little later"))
}

#[cfg(test)]
mod tests;
