//! Setting Status in the files of a message (docs/formats/agentazall.md, section 11).
//!
//! The reference writes in place and nobody locks. So a file that was touched a moment ago is left for
//! later, the text must be the one that was marked, and what a writer who was not finished puts into
//! the file that was replaced is put in place again.

use std::io::{self, Read, Seek};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use sha2::{Digest, Sha256};

use super::letter::{Kept, MAX_FILE};
use super::{AgentAzall, text};
use crate::model::{Timestamp, one_line};
use crate::store::engine::files::{self, File};
use crate::store::fs::Stamp;
use crate::store::place::Slot;
use crate::store::{Location, Marks, Store as _, StoreError, below};

/// A file touched less than this ago is not edited.
pub(super) const STILL_MS: i64 = 1000;
/// How long, and how many, replaced files are looked after.
const KEPT: Duration = Duration::from_secs(60);
const KEPT_AT_MOST: usize = 64;

/// A file that was replaced by its marked copy, still open: its writer may not have finished.
#[derive(Debug)]
pub(super) struct Replaced {
    path: PathBuf,
    /// Its folder, and its name there.
    dir: OwnedFd,
    name: String,
    old: std::fs::File,
    /// The old file when it was read, and the SHA-256 of what was read.
    seen: Stamp,
    read: [u8; 32],
    /// What was put in its place.
    ours: Stamp,
    since: Instant,
}

impl Marks for AgentAzall {
    /// Has every copy in the inbox say that the message was read; whether one says so now.
    ///
    /// # Errors
    /// [`StoreError::Moved`] if a file is gone or holds another text by now, [`StoreError::Busy`] if one
    /// was touched a moment ago, else as the system gave it; the others have been tried.
    fn tell(&self, at: &Location, read: bool) -> Result<bool, StoreError> {
        if !read {
            return Ok(false);
        }
        let source = at.source;
        let copies: Vec<File<Kept>> = {
            let known = self.format.known.read();
            let table = self.table.read();
            let message = known.message_of(&table, source).ok_or(StoreError::Moved)?;
            let copies = message.members.iter().filter_map(|n| File::of(&table, *n));
            copies.filter(|file| file.folder.ends_with("/inbox")).collect()
        };
        self.catch_up();
        // The mark is by id: from now on no other text may get it, whatever becomes of the files.
        self.keep_id(source);
        let mut said = false;
        let mut failed = None;
        for file in copies {
            match self.mark_file(&file) {
                Ok(done) => said |= done,
                Err(e) => failed = failed.or(Some(e)),
            }
        }
        failed.map_or(Ok(said), Err)
    }
}

impl AgentAzall {
    /// Settles that the message of this file has its id for good.
    fn keep_id(&self, source: u32) {
        let lines = {
            let mut known = self.format.known.write();
            known.keep_id(&self.table.read(), source);
            known.ledger.take_lines()
        };
        self.format.state.add_ids(&lines, false);
    }

    /// Sets Status in one copy of a message, if it still holds this text; whether it says read now.
    fn mark_file(&self, file: &File<Kept>) -> Result<bool, StoreError> {
        let path = self.base().join(file.path());
        let io = |e: io::Error| match e.kind() {
            io::ErrorKind::NotFound => StoreError::Moved,
            _ => StoreError::io(&path, e),
        };
        let dir = below::open_dir(self.base(), &files::parts(&file.folder)).map_err(io)?;
        let old = below::open_file(&dir, &file.name).map_err(io)?;
        let (seen, bytes) = below::read_whole(&old, MAX_FILE).map_err(io)?;
        let parsed = self.format.take_apart(file, &seen, &bytes).ok_or(StoreError::Moved)?;
        if parsed.kept.text != file.facts.text {
            self.note(&path);
            return Err(StoreError::Moved);
        }
        if parsed.kept.has(Kept::READ) {
            return Ok(true);
        }
        if parsed.reading.legacy {
            return Ok(false);
        }
        let Some(marked) = text::set_read(&bytes) else { return Ok(false) };
        require_still(&path, &seen)?;
        let slot = Slot::below(&dir, &file.name).map_err(io)?;
        let ours = slot.replace(&seen, &marked).map_err(|e| StoreError::io(&path, e))?;
        self.note(&path);
        let ours = ours.ok_or(StoreError::Moved)?;
        let read = Sha256::digest(&bytes).into();
        let name = file.name.clone();
        let mut one = Replaced { path, dir, name, old, seen, read, ours, since: Instant::now() };
        let late = one.catch_up();
        let shown = one_line(&one.path.to_string_lossy()).into_owned();
        let mut replaced = self.format.replaced.lock();
        if replaced.len() >= KEPT_AT_MOST {
            replaced.remove(0);
        }
        replaced.push(one);
        if late { Err(busy(&shown)) } else { Ok(true) }
    }

    /// Puts in place what was written to replaced files since they were replaced.
    pub(super) fn catch_up(&self) {
        self.format.replaced.lock().retain_mut(|one| {
            let old = one.since.elapsed() >= KEPT;
            if !one.catch_up() {
                return !old;
            }
            self.note(&one.path);
            true
        });
    }
}

impl Replaced {
    /// Looks whether the old file changed since it was read, and puts what it holds now in the place of
    /// the marked copy. Whether it did.
    fn catch_up(&mut self) -> bool {
        let Ok(now) = Stamp::of(&self.old) else { return false };
        if (now.size, now.mtime) == (self.seen.size, self.seen.mtime) {
            return false;
        }
        let put = self.put_again(now);
        if let Err(error) = &put {
            let path = one_line(&self.path.to_string_lossy()).into_owned();
            tracing::warn!(path, %error, "lines that another program added to a message could not \
                be kept");
        }
        put.is_ok()
    }

    fn put_again(&mut self, now: Stamp) -> io::Result<()> {
        let mut bytes = Vec::new();
        self.old.rewind()?;
        (&mut self.old).take(MAX_FILE as u64).read_to_end(&mut bytes)?;
        let before = usize::try_from(self.seen.size).ok().and_then(|size| bytes.get(..size));
        let grown =
            before.is_some_and(|before| <[u8; 32]>::from(Sha256::digest(before)) == self.read);
        // Another text was not read by anybody.
        let marked = if grown { text::set_read(&bytes) } else { None };
        let whole = marked.as_deref().unwrap_or(&bytes);
        match Slot::below(&self.dir, &self.name)?.replace(&self.ours, whole) {
            Ok(Some(ours)) => self.ours = ours,
            // Somebody replaced, moved or removed the message: that is as he wants it.
            Ok(None) => {}
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => return Err(e),
        }
        self.seen = Stamp { size: bytes.len() as u64, ..now };
        self.read = Sha256::digest(&bytes).into();
        self.since = Instant::now();
        Ok(())
    }
}

fn require_still(path: &Path, stamp: &Stamp) -> Result<(), StoreError> {
    let age = Timestamp::now().millis().saturating_sub(stamp.modified().millis());
    if (-STILL_MS..STILL_MS).contains(&age) {
        return Err(busy(&one_line(&path.to_string_lossy())));
    }
    Ok(())
}

fn busy(shown: &str) -> StoreError {
    StoreError::Busy(format!("{shown} was written a moment ago; it is marked a little later"))
}

#[cfg(test)]
mod tests;
