//! Keys and trust: the key that signs for me, and the keys that vouch for others.
//!
//! [`Identity`] is my own Ed25519 key and signs what I send. [`Keyring`] remembers which key
//! belongs to which address and judges the signatures that stores find on messages. [`verify`]
//! is the only place where a signature is checked. Contract: section 7.

mod disk;
mod document;
mod key;
mod keyring;
pub mod verify;

pub use key::{Identity, KeyError};
pub use keyring::{Keyring, KeyringError, Pin, Verdict};

use std::path::Path;

use crate::model::one_line;

/// A word as it has to be typed in a shell, so that a command in an error text can be pasted.
fn shell_word(text: &str) -> String {
    let text = one_line(text);
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+,:@%=".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        return text.into_owned();
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// A path as a word of a shell.
fn shell_path(path: &Path) -> String {
    shell_word(&path.to_string_lossy())
}

/// A path in a sentence: on one line, whatever bytes it holds.
fn shown(path: &Path) -> String {
    one_line(&path.to_string_lossy()).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_can_be_pasted() {
        assert_eq!(shell_word("bob@host"), "bob@host");
        assert_eq!(shell_word("my key"), "'my key'");
        assert_eq!(shell_word("it's $HOME"), r"'it'\''s $HOME'");
        assert_eq!(shell_word(""), "''");
        assert_eq!(shell_word("a\nrm"), "'a\u{240a}rm'");
    }
}
