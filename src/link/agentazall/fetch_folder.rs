//! The output of a fetch of letters in its job's folder: [`LISTED`], and for each letter `N.json` beside its bytes.
//!
//! A letter that crashes the process which unpacks it must not stop the link. `N.tries` counts the attempts, and after
//! some of them the letter is filed as one that cannot be read.

use std::io;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;

use crate::link::engine::{ExchangeOutcome, FetchedItem};
use crate::store::{atomic_file, fs};

/// The file with the known ids that are still on the server.
pub const LISTED: &str = "listed.json";
/// The limit on the size of a fetched file, except for attachments.
pub const MAX_FILE: u64 = 64 << 20;
/// The number of attempts to unpack a letter.
const MAX_TRIES: u64 = 3;
/// The reason for refusing a letter that ended the process each time.
pub const DEADLY: &str = "msgfs crashed each time it read this";

/// Writes the known ids that are still on the server.
///
/// # Errors
/// Returns the system's error.
pub fn write_known_ids(raw: &Path, listed: &[String]) -> io::Result<()> {
    write_if_changed(&raw.join(LISTED), &serde_json::to_vec(listed)?)
}

/// Writes a file durably, unless it has these bytes already. So an idle link writes nothing.
///
/// # Errors
/// Returns the system's error.
pub fn write_if_changed(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let is_there = fs::read_small_file(path, MAX_FILE).is_ok_and(|there| there == bytes);
    if is_there { Ok(()) } else { atomic_file::write_atomic(path, bytes, 0o600) }
}

/// Returns the reason why a fetch ended that could not write here.
pub fn describe_unsaved(error: &io::Error) -> String {
    format!("the mail of this link cannot be saved here: {error}")
}

/// Returns the outcome of a fetch that could not write here.
pub fn unsaved_outcome(error: io::Error) -> ExchangeOutcome {
    ExchangeOutcome::away(describe_unsaved(&error))
}

/// Returns the outcome of a whole fetch in which the server refused some letters for these reasons.
pub fn outcome_after(refusals: &[String]) -> ExchangeOutcome {
    let Some(first) = refusals.first() else { return ExchangeOutcome::Done };
    let more = match refusals.len() - 1 {
        0 => String::new(),
        more => format!(" (and {more} more)"),
    };
    ExchangeOutcome::Later { why: format!("{first}{more}"), after: None }
}

/// Returns true if there are letters in the folder of a fetch.
pub fn has_letters(raw: &Path) -> bool {
    raw.join("0.json").exists()
}

/// The counter of attempts to unpack a letter.
struct UnpackAttempts(PathBuf);

impl UnpackAttempts {
    fn for_letter(raw: &Path, n: usize) -> Self {
        Self(raw.join(format!("{n}.tries")))
    }

    /// Counts an attempt. Returns true if it may be made.
    fn begin_attempt(&self) -> io::Result<bool> {
        let before = fs::empty_if_absent(fs::read_small_file(&self.0, MAX_TRIES))?.len() as u64;
        if before < MAX_TRIES {
            let mut file = fs::open_append(&self.0, 0o600)?;
            io::Write::write_all(&mut file, b".")?;
        }
        Ok(before < MAX_TRIES)
    }

    /// Ends an attempt that did not end the process.
    fn end_attempt(&self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Reads the list and the letters, each from its JSON and a file with this ending. `unreadable` builds the item of a
/// letter that cannot be unpacked.
pub fn unpack_letters<J: DeserializeOwned>(
    raw: &Path,
    ending: &str,
    letter: impl Fn(usize, J, Vec<u8>) -> io::Result<FetchedItem>,
    unreadable: impl Fn(J, &[u8]) -> FetchedItem,
) -> Vec<io::Result<FetchedItem>> {
    let read = |name: &str| fs::empty_if_absent(fs::read_small_file(&raw.join(name), MAX_FILE));
    let listed: Vec<String> = match read(LISTED) {
        Ok(bytes) => serde_json::from_slice(&bytes).unwrap_or_default(),
        Err(e) => return vec![Err(e)],
    };
    let mut out: Vec<io::Result<FetchedItem>> =
        listed.into_iter().map(|id| Ok(FetchedItem::from_known_id(id))).collect();
    for n in 0.. {
        match read(&format!("{n}.json")).map(|json| serde_json::from_slice(&json)) {
            Ok(Ok(json)) => {
                let bytes = read(&format!("{n}.{ending}"));
                let tries = UnpackAttempts::for_letter(raw, n);
                out.push(bytes.and_then(|bytes| {
                    if tries.begin_attempt()? {
                        return letter(n, json, bytes);
                    }
                    Ok(unreadable(json, &bytes))
                }));
                tries.end_attempt();
            }
            // This was the last complete letter.
            Ok(Err(_)) => break,
            Err(e) => {
                out.push(Err(e));
                break;
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt as _;

    #[test]
    fn what_did_not_change_is_not_written_again() {
        let dir = tempfile::tempdir().unwrap();
        let written = || std::fs::metadata(dir.path().join(LISTED)).unwrap().ino();
        let all = ["imap:a".to_owned(), "imap:b".to_owned()];
        write_known_ids(dir.path(), &all).unwrap();
        // The file keeps its inode number while it is open.
        let open = std::fs::File::open(dir.path().join(LISTED)).unwrap();
        let first = written();
        write_known_ids(dir.path(), &all).unwrap();
        assert_eq!(written(), first);
        write_known_ids(dir.path(), &all[1..]).unwrap();
        assert_ne!(written(), first);
        assert_eq!(std::fs::read_to_string(dir.path().join(LISTED)).unwrap(), r#"["imap:b"]"#);
        drop(open);
    }
}
