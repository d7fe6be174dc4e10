//! Remedies: what a person can do about a fault.

use std::fmt;
use std::path::{Path, PathBuf};

use super::{PublicKey, quote_shell_word};

/// A remedy for a fault. The code that finds the fault chooses it, and only this file turns it into a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Remedy {
    /// Make the folder.
    Make(PathBuf),
    /// Give the file or folder these permissions.
    Permit(PathBuf, u32),
    /// Make me the owner of the file or folder.
    Own(PathBuf),
    /// Move the file out of the way.
    MoveAway(PathBuf),
    /// Remove the file.
    Remove(PathBuf),
    /// Trust this key for an address.
    Trust(String, PublicKey),
    /// Give another machine the key of this one.
    ShareKey,
    /// List the pinned keys.
    ListKeys,
    /// End the mount.
    Unmount(PathBuf),
    /// End the process.
    End(u32),
    /// Send a draft of `outbox/` by renaming it.
    Rename(String, String),
    /// Send the text of a composing folder once more.
    SendFolder(String),
    /// Write the text of a draft to it once more.
    WriteAgain(String),
}

impl fmt::Display for Remedy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = |path: &Path| quote_shell_word(&path.to_string_lossy());
        match self {
            Self::Make(path) => write!(f, "mkdir -p {}", word(path)),
            Self::Permit(path, mode) => write!(f, "chmod {mode:o} {}", word(path)),
            Self::Own(path) => {
                let me = rustix::process::geteuid().as_raw();
                let sudo = if me == 0 { "" } else { "sudo " };
                write!(f, "{sudo}chown {me} {}", word(path))
            }
            Self::MoveAway(path) => write!(f, "mv {0} {0}.bad", word(path)),
            Self::Remove(path) => write!(f, "rm {}", word(path)),
            Self::Trust(address, key) => {
                let address = quote_shell_word(address);
                write!(f, "msgfs key trust {address} --key {}", key.to_base64())
            }
            Self::ShareKey => f.write_str("msgfs key export | ssh HOST msgfs key import"),
            Self::ListKeys => f.write_str("msgfs key list"),
            Self::Unmount(dir) => write!(f, "msgfs umount {}", word(dir)),
            Self::End(process) => write!(f, "kill {process}"),
            Self::Rename(from, to) => write!(f, "mv outbox/{from} outbox/{to}"),
            Self::SendFolder(name) => {
                write!(f, "cd outbox/{name}; mv body body.part; mv body.part body")
            }
            Self::WriteAgain(name) => {
                write!(f, "cp outbox/{name} /tmp/x; cat /tmp/x > outbox/{name}")
            }
        }
    }
}
