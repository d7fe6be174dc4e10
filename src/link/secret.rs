//! Files that hold secrets: only their owner may read them.

use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use zeroize::Zeroizing;

use crate::model::{Remedy, shown_path};
use crate::store::fs;

/// No secret is larger.
const MAX_FILE: u64 = 64 << 10;

/// Why a secret cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    /// Others can read or change it.
    #[error("{}: {}, so it is not used; mend it with: {}", shown_path(.0), .1, .2)]
    Exposed(PathBuf, &'static str, Remedy),
    /// The operating system refused the file.
    #[error("{}: the secret cannot be read: {}", shown_path(.0), .1)]
    Io(PathBuf, #[source] io::Error),
    /// It is no text.
    #[error("{}: the secret is not UTF-8 text", shown_path(.0))]
    NotText(PathBuf),
}

/// The text of a file that nobody else may read.
///
/// # Errors
/// [`SecretError`]; no text of it holds the secret.
pub fn read(path: &Path) -> Result<Zeroizing<String>, SecretError> {
    let io = |e| SecretError::Io(path.to_owned(), e);
    let file = fs::open_regular(path).map_err(io)?;
    let meta = file.metadata().map_err(io)?;
    if fs::foreign_owner(&meta).is_some() {
        let remedy = Remedy::Own(path.to_owned());
        return Err(SecretError::Exposed(path.to_owned(), "it belongs to another user", remedy));
    }
    if meta.mode() & 0o077 != 0 {
        let remedy = Remedy::Permit(path.to_owned(), 0o600);
        return Err(SecretError::Exposed(path.to_owned(), "others can read it", remedy));
    }
    let mut bytes = Zeroizing::new(Vec::with_capacity(meta.len().min(MAX_FILE) as usize + 1));
    file.take(MAX_FILE + 1).read_to_end(&mut bytes).map_err(io)?;
    if bytes.len() as u64 > MAX_FILE {
        return Err(io(io::Error::new(io::ErrorKind::FileTooLarge, "it is larger than 64 KiB")));
    }
    match std::str::from_utf8(&bytes) {
        Ok(text) => Ok(Zeroizing::new(text.to_owned())),
        Err(_) => Err(SecretError::NotText(path.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn only_what_nobody_else_can_read_is_used() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("secret");
        std::fs::write(&path, "hunter2\n").unwrap();
        for (mode, used) in [(0o600, true), (0o400, true), (0o640, false), (0o604, false)] {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            let result = read(&path);
            assert_eq!(result.is_ok(), used, "{mode:o}");
            if let Err(error) = result {
                assert!(error.to_string().contains("chmod 600"), "{error}");
                assert!(!error.to_string().contains("hunter2"));
            }
        }
        assert!(matches!(read(&dir.path().join("none")), Err(SecretError::Io(..))));
    }
}
