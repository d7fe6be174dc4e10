//! Reading of secret files, which only their owner may read, and removal of secrets from texts of the other side.

use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use zeroize::Zeroizing;

use crate::model::{Remedy, display_path, sanitize_line};
use crate::store::fs;

/// The limit on the size of a secret.
const MAX_FILE: u64 = 64 << 10;
/// The text in place of a secret.
const HIDDEN: &str = "(hidden)";
/// The length below which a secret is hidden only as a word of its own, since it may be part of any word.
const SHORT: usize = 4;
/// The number of characters that are shown of the beginning and of the end of a longer text.
const MOST: usize = 300;

/// The reason why a secret cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    /// A file that other users can read or change.
    #[error("{}: {}, so it is not used; mend it with: {}", display_path(.0), .1, .2)]
    Exposed(PathBuf, &'static str, Remedy),
    /// A file that the operating system refused.
    #[error("{}: the secret cannot be read: {}", display_path(.0), .1)]
    Io(PathBuf, #[source] io::Error),
    /// A file that is not text.
    #[error("{}: the secret is not UTF-8 text", display_path(.0))]
    NotText(PathBuf),
}

/// Reads the text of a file that only its owner may read.
///
/// # Errors
/// Returns [`SecretError`], without the secret.
pub fn read_secret(path: &Path) -> Result<Zeroizing<String>, SecretError> {
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

/// Returns a text of the other side for people: without these secrets, in one line, and of limited length.
pub fn redact_text(text: &str, secrets: &[Zeroizing<String>]) -> String {
    let mut text = hide_logins(text);
    for secret in secrets.iter().filter(|secret| !secret.is_empty()) {
        let quoted = secret.replace('\\', "\\\\").replace('"', "\\\"");
        for spelled in [STANDARD.encode(secret.as_bytes()), quoted, secret.to_string()] {
            text = hide_secret(&text, &Zeroizing::new(spelled));
        }
    }
    let begin = text.char_indices().nth(MOST).map_or(text.len(), |(at, _)| at);
    let end = text.char_indices().nth_back(MOST).map_or(0, |(at, _)| at);
    match (text.get(..begin), text.get(end..)) {
        (Some(begins), Some(ends)) if begin < end => {
            sanitize_line(&format!("{begins} … {ends}")).into_owned()
        }
        _ => sanitize_line(&text).into_owned(),
    }
}

/// Returns the address of a server without the user and the password that may stand before its host.
pub fn strip_login(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").map_or(("", url), |(scheme, rest)| (scheme, rest));
    match rest.rsplit_once('@') {
        Some((_, host)) if scheme.is_empty() => host.to_owned(),
        Some((_, host)) => format!("{scheme}://{host}"),
        None => url.to_owned(),
    }
}

/// Returns a text without the users and passwords in its addresses of servers.
pub fn hide_logins(text: &str) -> String {
    let is_end = |c: char| c.is_whitespace() || c == '"';
    let strip = |part: &str| if part.contains("://") { strip_login(part) } else { part.to_owned() };
    text.split_inclusive(is_end).map(strip).collect()
}

/// Replaces a secret in a text, in upper or lower case.
fn hide_secret(text: &str, secret: &str) -> String {
    let (lower, wanted) = (text.to_ascii_lowercase(), secret.to_ascii_lowercase());
    let is_part = |c: Option<char>| c.is_some_and(char::is_alphanumeric);
    let (mut out, mut from) = (String::new(), 0);
    for (at, found) in lower.match_indices(&wanted) {
        let (before, behind) = (text.get(from..at), text.get(at + found.len()..));
        let (Some(before), Some(behind)) = (before, behind) else { continue };
        let in_word = is_part(before.chars().next_back()) || is_part(behind.chars().next());
        if secret.len() >= SHORT || !in_word {
            out = out + before + HIDDEN;
            from = at + found.len();
        }
    }
    out + text.get(from..).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn users_and_passwords_are_taken_out_of_addresses() {
        for (url, shown) in [
            ("nats://u:hunter2@h:4222", "nats://h:4222"),
            ("nats://u:p@ss/w\"rd@h", "nats://h"),
            ("https://token@[::1]:80/x", "https://[::1]:80/x"),
            ("u:hunter2@h", "h"),
            ("tls://h:4222", "tls://h:4222"),
            ("h", "h"),
        ] {
            assert_eq!(strip_login(url), shown);
        }
        for (text, shown) in [
            ("bad: nats://u:pw@h, nats://v@i; bob@x waits", "bad: nats://h, nats://i; bob@x waits"),
            ("\"https://u:pw@h/x\" is none", "\"https://h/x\" is none"),
            ("bob@x", "bob@x"),
            ("", ""),
        ] {
            assert_eq!(hide_logins(text), shown);
        }
        assert_eq!(redact_text("no nats://u:pw@h", &[]), "no nats://h");
    }

    #[test]
    fn only_what_nobody_else_can_read_is_used() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("secret");
        std::fs::write(&path, "hunter2\n").unwrap();
        for (mode, used) in [(0o600, true), (0o400, true), (0o640, false), (0o604, false)] {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            let result = read_secret(&path);
            assert_eq!(result.is_ok(), used, "{mode:o}");
            if let Err(error) = result {
                assert!(error.to_string().contains("chmod 600"), "{error}");
                assert!(!error.to_string().contains("hunter2"));
            }
        }
        assert!(matches!(read_secret(&dir.path().join("none")), Err(SecretError::Io(..))));
    }

    #[test]
    fn nothing_that_is_told_holds_a_secret() {
        let secrets = ["hunter2", "pw", "a\"b\\c", ""].map(|s| Zeroizing::new(s.to_owned()));
        for (text, expected) in [
            ("535 hunter2 is wrong, HUNTER2!", "535 (hidden) is wrong, (hidden)!"),
            ("AUTH aHVudGVyMg==?", "AUTH (hidden)?"),
            ("LOGIN \"a\\\"b\\\\c\" a\"b\\c", "LOGIN \"(hidden)\" (hidden)"),
            ("pw; the pwd stays", "(hidden); the pwd stays"),
            ("two\r\nlines", "two\u{240d}\u{240a}lines"),
            ("\u{e4}\u{130}hunter2\u{e4}", "\u{e4}\u{130}(hidden)\u{e4}"),
        ] {
            assert_eq!(redact_text(text, &secrets), expected);
        }
        let long = redact_text(&("\u{e4}".repeat(1 << 20) + "; do this"), &secrets);
        assert!(long.chars().count() < 2 * MOST + 5 && long.ends_with("; do this"), "{long}");
    }
}
