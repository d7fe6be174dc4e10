//! The files with the bytes of accepted messages.

use std::io;
use std::path::{Path, PathBuf};

use crate::store::{atomic_file, fs};

/// Returns the file in which a carrier records its progress on a message that takes several steps. It is removed with
/// the message's bytes.
pub fn progress_note_path(wire: &Path) -> PathBuf {
    wire.with_extension("note")
}

/// Writes the bytes of a message that is about to be accepted. They are on disk when this returns.
///
/// # Errors
/// Returns the system's error.
pub fn write_wire_file(path: &Path, wire: &[u8]) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        fs::make_dirs(folder, 0o700)?;
    }
    atomic_file::write_atomic(path, wire, 0o600)
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
