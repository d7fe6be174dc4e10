//! What a fetch of letters leaves in its job's folder: [`LISTED`], and for each letter `N.json` beside its bytes.
//!
//! A letter that ends the process which takes it apart must not hold the link: it is counted in `N.tries` how often
//! that was begun, and after some times it is filed as one that cannot be read.

use std::io;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;

use crate::link::engine::FetchedItem;
use crate::store::{fs, place};

/// What is still on the server and known.
pub const LISTED: &str = "listed.json";
/// No file of a fetch is larger, but attachments.
const MAX_FILE: u64 = 64 << 20;
/// So often it is begun to take a letter apart.
const MAX_TRIES: u64 = 3;
/// The reason for refusing a letter that ended the process each time.
pub const DEADLY: &str = "msgfs crashed each time it read this";

/// Writes down what is still on the server and known.
///
/// # Errors
/// As the system gave it.
pub fn write_known_ids(raw: &Path, listed: &[String]) -> io::Result<()> {
    write_if_changed(&raw.join(LISTED), &serde_json::to_vec(listed)?)
}

/// Writes a file, unless it is there with these bytes: a link that has nothing to do writes nothing. On disk when it
/// returns.
///
/// # Errors
/// As the system gave it.
pub fn write_if_changed(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let is_there = fs::read_small_file(path, MAX_FILE).is_ok_and(|there| there == bytes);
    if is_there { Ok(()) } else { place::write_atomic(path, bytes, 0o600) }
}

/// Returns whether there are letters in the folder of a fetch.
pub fn has_letters(raw: &Path) -> bool {
    raw.join("0.json").exists()
}

/// How often it was begun to take a letter apart.
struct UnpackAttempts(PathBuf);

impl UnpackAttempts {
    fn for_letter(raw: &Path, n: usize) -> Self {
        Self(raw.join(format!("{n}.tries")))
    }

    /// Counts; returns whether it may be tried.
    fn begin_attempt(&self) -> io::Result<bool> {
        let before = fs::empty_if_absent(fs::read_small_file(&self.0, MAX_TRIES))?.len() as u64;
        if before < MAX_TRIES {
            let mut file = fs::open_append(&self.0, 0o600)?;
            io::Write::write_all(&mut file, b".")?;
        }
        Ok(before < MAX_TRIES)
    }

    /// The process is still there.
    fn end_attempt(&self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Reads the list, and the letters, made of number, JSON and bytes, whose file has this ending. `unreadable` is asked
/// for what is filed of one that cannot be taken apart.
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
            // The last one that was written whole.
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
        // It has the number as long as it is open.
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
