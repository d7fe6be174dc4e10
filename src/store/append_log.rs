//! An append-only log of lines with torn-tail repair.
//!
//! One process writes the log. A line ends with a newline. Bytes behind the last newline were never a line: the next
//! line takes their place. An append is whole or not at all, also on a full disk. A line can be struck out in place,
//! which needs no room, and all lines can be replaced at once by a rename.
//!
//! A log may [grow ahead](AppendLog::growing_by): the file is filled with NULs behind the lines, because a disk writes
//! into a file of constant length in half the time. Only the line's bytes are written then, and no journal of the file
//! system. A NUL is no part of any line, so a line of which the disk has only some blocks is not a line.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::fs::Stamp;
use super::{atomic_file, fs};

/// The mode of a log: only its owner reads it.
const MODE: u32 = 0o600;
/// The number of bytes that a search for the last newline reads at once.
const CHUNK: u64 = 64 << 10;

/// The moment at which appended lines must be on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AppendSync {
    /// Before the append returns.
    Now,
    /// Whenever the system writes them, or the caller [syncs the file](AppendLog::file).
    Later,
}

/// An append-only log.
#[derive(Debug)]
pub struct AppendLog {
    path: PathBuf,
    /// The step by which the file grows; 0 for the length of its lines.
    growth: u64,
    open: Option<OpenLog>,
}

/// The file of a log.
#[derive(Debug)]
struct OpenLog {
    file: Arc<File>,
    /// The length of the whole lines in bytes. The next line begins there.
    len: u64,
    /// The length of the file in bytes.
    filled: u64,
}

/// One whole line of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AppendedLine<'a> {
    /// The offset at which it begins.
    pub offset: u64,
    /// Its bytes without the newline.
    pub text: &'a [u8],
}

/// Returns the whole lines in the bytes of a log, in order.
pub fn split_log(bytes: &[u8]) -> impl Iterator<Item = AppendedLine<'_>> {
    let mut end = 0;
    bytes.split_inclusive(|b| *b == b'\n').filter_map(move |piece| {
        end += piece.len();
        let line = piece.strip_suffix(b"\n")?;
        // The disk may have lost the end of an earlier line, so a line can stand behind its remains.
        let text = line.rsplit(|b| *b == 0).next().unwrap_or_default();
        Some(AppendedLine { offset: (end - 1 - text.len()) as u64, text })
    })
}

/// Returns the bytes of a log of at most `limit` bytes; nothing if there is no log.
///
/// # Errors
/// As the system gave it, or `InvalidData` for a larger log.
pub fn read_log(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    fs::empty_if_absent(fs::read_small_file(path, limit))
}

impl AppendLog {
    /// Returns a log at a path. The first append makes the file and its folder if they are missing.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), growth: 0, open: None }
    }

    /// Returns its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Makes the file grow in steps of this many bytes.
    #[must_use]
    pub fn growing_by(self, growth: u64) -> Self {
        Self { growth, ..self }
    }

    /// Opens the file now, and makes it if it is missing. Its name is on disk when this returns. Bytes behind the last
    /// line are cut off, so that no later line completes them.
    ///
    /// # Errors
    /// As the system gave it.
    pub fn open(&mut self) -> io::Result<()> {
        self.open_file().map(drop)
    }

    fn open_file(&mut self) -> io::Result<&mut OpenLog> {
        if self.open.is_none() {
            let folder = self.path.parent().unwrap_or(Path::new("/"));
            fs::make_dirs(folder, 0o700)?;
            let file = fs::open_read_write(&self.path, MODE)?;
            let filled = file.metadata()?.len();
            let (len, is_torn) = find_end(&file, filled)?;
            let mut open = OpenLog { file: Arc::new(file), len, filled };
            if is_torn {
                open.truncate_to(len);
            }
            fs::sync_dir(folder)?;
            return Ok(self.open.insert(open));
        }
        self.open.as_mut().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// Returns the length of the whole lines in bytes, as far as this process knows them: 0 before the log is open.
    pub fn len(&self) -> u64 {
        self.open.as_ref().map_or(0, |open| open.len)
    }

    /// Returns true if no line is known.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the file, for a sync that several appends share; `None` before the log is open.
    pub fn file(&self) -> Option<Arc<File>> {
        self.open.as_ref().map(|open| Arc::clone(&open.file))
    }

    /// Exchanges the file of an open log.
    #[cfg(test)]
    pub fn swap_file(&mut self, file: Arc<File>) -> Arc<File> {
        std::mem::replace(&mut self.open.as_mut().unwrap().file, file)
    }

    /// Appends whole lines, all or none of them, and returns the offset at which the first one begins.
    ///
    /// # Errors
    /// As the system gave it. Then no reader finds any of the lines.
    pub fn append(&mut self, lines: &[u8], sync: AppendSync) -> io::Result<u64> {
        debug_assert!(lines.ends_with(b"\n"), "a line without its newline would be torn");
        let growth = self.growth;
        let open = self.open_file()?;
        let at = open.len;
        let written = open.write_lines(lines, growth).and_then(|()| match sync {
            AppendSync::Now => open.file.sync_data(),
            AppendSync::Later => Ok(()),
        });
        if let Err(e) = written {
            open.truncate_to(at);
            // If the file keeps its length, the next line overwrites the rest.
            open.len = at;
            return Err(e);
        }
        Ok(at)
    }

    /// Makes the line at an offset unreadable, which needs no room on the disk. Does nothing if the log is not open.
    ///
    /// # Errors
    /// As the system gave it.
    pub fn strike_out(&self, offset: u64) -> io::Result<()> {
        self.open.as_ref().map_or(Ok(()), |open| open.file.write_all_at(b"-", offset))
    }

    /// Replaces all lines. At any moment the log has either all old lines or all new ones.
    ///
    /// # Errors
    /// As the system gave it. Then the old lines are there, or the new ones if only their folder could not be synced.
    pub fn replace(&mut self, lines: &[u8]) -> io::Result<()> {
        let replaced = atomic_file::write_atomic(&self.path, lines, MODE);
        if replaced.is_ok() || self.is_renamed_over() {
            self.open = None;
            self.open()?;
        }
        replaced
    }

    /// Returns true if the path names another file than the open one. An append to the open one would be lost.
    fn is_renamed_over(&self) -> bool {
        let Some(open) = &self.open else { return false };
        let inode = |stamp: Stamp| (stamp.dev, stamp.ino);
        let there = Stamp::from_path(&self.path).ok().flatten().map(inode);
        there.is_some_and(|there| Stamp::from_file(&open.file).is_ok_and(|own| inode(own) != there))
    }

    /// Cuts off the lines from an offset on, if the system can.
    pub fn truncate_to(&mut self, len: u64) {
        if let Some(open) = &mut self.open {
            open.truncate_to(len);
        }
    }
}

impl OpenLog {
    fn write_lines(&mut self, lines: &[u8], growth: u64) -> io::Result<()> {
        let end = self.len + lines.len() as u64;
        let ahead =
            if growth > 0 && end > self.filled { end.next_multiple_of(growth) - end } else { 0 };
        let mut written = if ahead > 0 {
            let mut text = lines.to_vec();
            text.resize(lines.len() + ahead as usize, 0);
            self.file.write_all_at(&text, self.len).map(|()| self.filled = end + ahead)
        } else {
            self.file.write_all_at(lines, self.len)
        };
        if written.is_err() && ahead > 0 {
            // There may be room for the lines alone.
            written = self.file.write_all_at(lines, self.len);
        }
        written?;
        self.filled = self.filled.max(end);
        self.len = end;
        Ok(())
    }

    fn truncate_to(&mut self, len: u64) {
        if self.file.set_len(len).is_ok() {
            (self.len, self.filled) = (len, len);
        }
    }
}

/// Returns the offset behind the last newline, and true if other bytes than NULs follow.
fn find_end(file: &File, filled: u64) -> io::Result<(u64, bool)> {
    let (mut end, mut is_torn) = (filled, false);
    while end > 0 {
        let start = end.saturating_sub(CHUNK);
        let chunk = fs::read_range(file, start, (end - start) as usize)?;
        let newline = memchr::memrchr(b'\n', &chunk);
        let rest = chunk.get(newline.map_or(0, |at| at + 1)..).unwrap_or_default();
        is_torn |= rest.iter().any(|b| *b != 0);
        if let Some(at) = newline {
            return Ok((start + at as u64 + 1, is_torn));
        }
        end = start;
    }
    Ok((0, is_torn))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn log() -> (tempfile::TempDir, PathBuf, AppendLog) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("below/log");
        (dir, path.clone(), AppendLog::new(path))
    }

    fn lines(path: &Path) -> Vec<String> {
        let bytes = read_log(path, 1 << 20).unwrap();
        split_log(&bytes).map(|line| String::from_utf8_lossy(line.text).into_owned()).collect()
    }

    #[test]
    fn the_first_append_makes_the_file_and_offsets_lead_to_lines() {
        let (_dir, path, mut log) = log();
        assert!(!path.exists() && lines(&path).is_empty());
        assert_eq!(log.append(b"one\n", AppendSync::Now).unwrap(), 0);
        assert_eq!(log.append(b"two\nthree\n", AppendSync::Later).unwrap(), 4);
        assert_eq!(
            (lines(&path), log.len()),
            (vec!["one".into(), "two".into(), "three".into()], 14)
        );
        let bytes = std::fs::read(&path).unwrap();
        let at: Vec<u64> = split_log(&bytes).map(|line| line.offset).collect();
        assert_eq!(at, [0, 4, 8]);
        log.strike_out(4).unwrap();
        assert_eq!(lines(&path), ["one", "-wo", "three"]);
    }

    #[test]
    fn a_torn_line_gives_its_place_to_the_next() {
        let (_dir, path, mut log) = log();
        log.append(b"one\n", AppendSync::Now).unwrap();
        for torn in ["tw".to_owned(), "x".repeat(3 * CHUNK as usize), "\0\0x\0".to_owned()] {
            std::fs::write(&path, format!("one\n{torn}")).unwrap();
            assert_eq!(lines(&path), ["one"]);
            let mut log = AppendLog::new(&path);
            log.open().unwrap();
            assert_eq!(std::fs::read(&path).unwrap(), b"one\n");
            log.append(b"two\n", AppendSync::Now).unwrap();
            assert_eq!(lines(&path), ["one", "two"]);
        }
    }

    #[test]
    fn lines_are_replaced_at_once() {
        let (_dir, path, mut log) = log();
        log.append(b"one\ntwo\n", AppendSync::Now).unwrap();
        log.replace(b"two\n").unwrap();
        log.append(b"three\n", AppendSync::Now).unwrap();
        assert_eq!(lines(&path), ["two", "three"]);
        log.truncate_to(4);
        log.append(b"4\n", AppendSync::Now).unwrap();
        assert_eq!((lines(&path), log.len()), (vec!["two".into(), "4".into()], 6));
    }

    #[test]
    fn a_failed_append_leaves_nothing() {
        let (_dir, path, mut log) = log();
        log.append(b"one\n", AppendSync::Now).unwrap();
        // It refuses every write.
        let file = log.swap_file(Arc::new(File::open("/dev/null").unwrap()));
        log.append(b"two\n", AppendSync::Now).unwrap_err();
        log.swap_file(file);
        assert_eq!((lines(&path), log.len()), (vec!["one".to_owned()], 4));
        log.append(b"three\n", AppendSync::Now).unwrap();
        assert_eq!(lines(&path), ["one", "three"]);
    }

    #[test]
    fn a_growing_log_keeps_its_length() {
        let (_dir, path, log) = log();
        let mut log = log.growing_by(1024);
        for n in 0..100 {
            log.append(format!("{n}\n").as_bytes(), AppendSync::Now).unwrap();
            assert_eq!(std::fs::metadata(&path).unwrap().len(), 1024);
        }
        let mut again = AppendLog::new(&path).growing_by(1024);
        again.append(b"more\n", AppendSync::Now).unwrap();
        assert_eq!((lines(&path).len(), std::fs::metadata(&path).unwrap().len()), (101, 1024));
    }

    proptest! {
        #[test]
        fn whole_lines_survive_a_tear_at_any_byte(
            texts in prop::collection::vec("[a-z]{0,8}", 1..6),
            cut in any::<prop::sample::Index>(),
        ) {
            let (_dir, path, mut log) = log();
            for text in &texts {
                log.append(format!("{text}\n").as_bytes(), AppendSync::Later).unwrap();
            }
            let bytes = std::fs::read(&path).unwrap();
            let cut = cut.index(bytes.len() + 1);
            std::fs::write(&path, &bytes[..cut]).unwrap();
            let whole = split_log(&bytes[..cut]).count();
            let mut log = AppendLog::new(&path);
            log.append(b"END\n", AppendSync::Later).unwrap();
            let mut expected = texts[..whole].to_vec();
            expected.push("END".into());
            prop_assert_eq!(lines(&path), expected);
        }
    }
}
