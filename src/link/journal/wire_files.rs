//! The files with the bytes of accepted messages.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use crate::store::fs;

/// Returns the file in which a carrier records its progress on a message that takes several steps. It is removed with
/// the message's bytes.
pub fn progress_note_path(wire: &Path) -> PathBuf {
    wire.with_extension("note")
}

/// Writes the bytes of a message that is about to be accepted. They are on disk once they are [synced](sync_wire_files).
///
/// # Errors
/// Returns the system's error.
pub fn write_wire_file(path: &Path, wire: &[u8]) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        fs::make_dirs(folder, 0o700)?;
    }
    // No line names the file yet, so nobody reads a part of it.
    let mut options = OpenOptions::new();
    let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(path)?;
    file.write_all(wire)
}

/// Waits until the bytes of messages are on disk. All are in one folder.
///
/// # Errors
/// Returns the system's error. The bytes must then be written again: a second sync may succeed without them.
pub fn sync_wire_files(wires: &[PathBuf]) -> io::Result<()> {
    for wire in wires {
        File::open(wire)?.sync_all()?;
    }
    wires.first().and_then(|wire| wire.parent()).map_or(Ok(()), fs::sync_dir)
}

/// Removes the files of messages that are over.
pub fn remove_wire_files(wires: &[PathBuf]) {
    for wire in wires {
        if let Err(error) = std::fs::remove_file(wire) {
            let path = wire.display();
            tracing::debug!(%error, %path, "the file of a finished message could not be removed");
        }
        // Few messages have one.
        let _ = std::fs::remove_file(progress_note_path(wire));
    }
}
