//! The file of a log: its path below the folder of logs, and its bytes, which other programs may have compressed.
//!
//! A compressed log is unpacked as a whole into memory of the system that looks like a file. So offsets in it are
//! those of the log before it was compressed, and all readers work as for any other log.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::rc::Rc;

use rustix::fs::{FileType, MemfdFlags};
use ruzstd::decoding::StreamingDecoder;

use super::format::LogShape;
use crate::store::confined;
use crate::store::fs::{Stamp, is_absent};

/// The size of the largest log that is unpacked.
const MAX_UNPACKED: u64 = 1 << 30;
/// Bytes that are unpacked at once.
const CHUNK: usize = 256 << 10;

/// A log that was opened for reading.
#[derive(Debug)]
pub struct LogFile {
    /// Its bytes, unpacked.
    pub file: File,
    /// The stamp of the file on disk.
    pub stamp: Stamp,
    /// The number of its bytes, unpacked.
    pub len: u64,
}

impl LogShape {
    /// Returns the name of a log's file in the folder that contains it.
    pub(super) fn file_name<'n>(&self, log: &'n str) -> &'n str {
        self.log_file.unwrap_or_else(|| split_log_name(log).1)
    }

    fn packed_suffix(&self) -> Option<&'static str> {
        self.tree.as_ref().map(|tree| tree.packed_suffix)
    }

    /// Returns the name of the log that a file is, compressed or not.
    pub(super) fn log_name<'n>(&self, path: &'n str) -> &'n str {
        self.packed_suffix().and_then(|suffix| path.strip_suffix(suffix)).unwrap_or(path)
    }

    /// Returns true if a folder at this path may contain logs.
    pub(super) fn is_tree_folder(&self, path: &str) -> bool {
        self.tree.as_ref().is_some_and(|tree| (tree.is_folder)(path))
    }

    /// Returns the name, type and stamp of a log's file. The log itself counts while its compressed form lies beside
    /// it.
    ///
    /// # Errors
    /// As the system gave it.
    pub(super) fn stat_log(
        &self,
        dir: &OwnedFd,
        log: &str,
    ) -> io::Result<(String, FileType, Stamp)> {
        let name = self.file_name(log);
        let packed = self.packed_suffix().map(|suffix| format!("{name}{suffix}"));
        match (confined::stat(dir, name), packed) {
            (Err(e), Some(packed)) if is_absent(&e) => {
                let (kind, stamp) = confined::stat(dir, &packed)?;
                Ok((packed, kind, stamp))
            }
            (found, _) => found.map(|(kind, stamp)| (name.to_owned(), kind, stamp)),
        }
    }

    /// Opens a log for reading.
    ///
    /// # Errors
    /// As the system gave it; `InvalidData` if it cannot be unpacked.
    pub(super) fn open_log(&self, dir: &OwnedFd, log: &str) -> io::Result<LogFile> {
        let name = self.file_name(log);
        let packed = self.packed_suffix().map(|suffix| format!("{name}{suffix}"));
        match (self.open_log_bytes(dir, name), packed) {
            (Err(e), Some(packed)) if is_absent(&e) => {
                let file = self.open_log_bytes(dir, &packed)?;
                let stamp = Stamp::from_file(&file)?;
                let (file, len) = unpack_log(&file)?;
                Ok(LogFile { file, stamp, len })
            }
            (opened, _) => {
                let file = opened?;
                let stamp = Stamp::from_file(&file)?;
                Ok(LogFile { file, stamp, len: stamp.size })
            }
        }
    }

    /// Opens a file of a log as it is on disk. The logs of a tree belong to programs that expect no other reader.
    ///
    /// # Errors
    /// As the system gave it.
    pub(super) fn open_log_bytes(&self, dir: &OwnedFd, file: &str) -> io::Result<File> {
        match self.tree {
            Some(_) => confined::open_file_without_trace(dir, file),
            None => confined::open_file(dir, file),
        }
    }
}

/// Splits the name of a log into the folder above it, which may be empty, and the name of its file.
pub(super) fn split_log_name(log: &str) -> (&str, &str) {
    log.rsplit_once('/').unwrap_or(("", log))
}

/// Opens a folder by its path below an open one.
pub(super) fn open_below(dir: &Rc<OwnedFd>, path: &str) -> io::Result<Rc<OwnedFd>> {
    let mut here = Rc::clone(dir);
    for part in path.split('/').filter(|_| !path.is_empty()) {
        here = Rc::new(confined::open_subdir(&here, part)?);
    }
    Ok(here)
}

/// Unpacks a log into memory. Returns the open memory and its length.
fn unpack_log(packed: &File) -> io::Result<(File, u64)> {
    let broken = |why: String| io::Error::new(io::ErrorKind::InvalidData, why);
    let mut decoder = StreamingDecoder::new(io::BufReader::new(packed))
        .map_err(|e| broken(format!("it cannot be unpacked: {e}")))?;
    let memory = rustix::fs::memfd_create("msgfs-log", MemfdFlags::CLOEXEC)?;
    let (mut memory, mut len) = (File::from(memory), 0u64);
    let mut chunk = vec![0; CHUNK];
    loop {
        let got = decoder.read(&mut chunk)?;
        let piece = chunk.get(..got).unwrap_or_default();
        if piece.is_empty() {
            return Ok((memory, len));
        }
        len += got as u64;
        if len > MAX_UNPACKED {
            return Err(broken("it unpacks to more than 1 GiB".to_owned()));
        }
        memory.write_all(piece)?;
    }
}
