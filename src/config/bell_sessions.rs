//! The files in which the bell notes the messages for which it has rung, as far as other parts of msgfs read them.

use std::collections::HashSet;
use std::fs;
use std::path::PathBuf;

use serde::Deserialize;

use super::{Env, private_base};
use crate::store::fs as store_fs;

/// The folder of the files, below the folder for runtime files of this user.
const FOLDER: &str = "msgfs/hook";
/// The largest size of a session's file.
const LARGEST: u64 = 16 << 20;

/// The part of a session's file with the keys of the messages that were rung.
#[derive(Deserialize)]
struct RungMessages {
    #[serde(default)]
    rung: Vec<String>,
}

/// Returns the folder of the sessions of this login.
pub fn locate_session_folder(env: &Env) -> Option<PathBuf> {
    Some(private_base(env)?.join(FOLDER))
}

/// Returns every folder that may hold sessions of this user, also of other logins.
pub fn locate_session_folders(env: &Env) -> Vec<PathBuf> {
    let mut all: Vec<PathBuf> = locate_session_folder(env).into_iter().collect();
    let other = locate_session_folder(&env.clone().without_var("XDG_RUNTIME_DIR"));
    all.extend(other.filter(|other| !all.contains(other)));
    all
}

/// Returns true if a file of this name holds a session.
pub fn is_session_file(name: &str) -> bool {
    let stem = name.strip_suffix(".json").or_else(|| name.strip_suffix(".new"));
    stem.is_some_and(|stem| stem.len() == 32 && stem.bytes().all(|b| b.is_ascii_hexdigit()))
}

/// Returns the keys of all messages that were rung in the sessions of these folders. A folder of another user, and a
/// file that cannot be read, prove nothing.
pub fn read_rung_keys(folders: &[PathBuf]) -> HashSet<String> {
    let mut keys = HashSet::new();
    let is_mine = |folder: &&PathBuf| {
        fs::symlink_metadata(folder)
            .is_ok_and(|meta| meta.is_dir() && store_fs::foreign_owner(&meta).is_none())
    };
    for folder in folders.iter().filter(is_mine) {
        let names = fs::read_dir(folder).into_iter().flatten().flatten().map(|e| e.file_name());
        for name in names.filter(|name| name.to_str().is_some_and(is_session_file)) {
            let bytes = store_fs::read_small_file(&folder.join(name), LARGEST).unwrap_or_default();
            let session = serde_json::from_slice::<RungMessages>(&bytes);
            keys.extend(session.map(|session| session.rung).unwrap_or_default());
        }
    }
    keys
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_come_from_the_files_of_sessions_only() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(dir.path().join(name), text).unwrap();
        write(&format!("{}.json", "a".repeat(32)), r#"{"rung": ["x", "y"], "harness": "codex"}"#);
        write(&format!("{}.json", "b".repeat(32)), "{");
        write("keyring.json", r#"{"rung": ["z"]}"#);
        let keys = read_rung_keys(&[dir.path().to_owned(), dir.path().join("gone")]);
        assert_eq!(keys, HashSet::from(["x".to_owned(), "y".to_owned()]));
    }
}
