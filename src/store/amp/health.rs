//! The health of the store and of its key, and advice for people.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::format::message_file_stem;
use super::{AmpStore, pem};
use crate::model::{Seed, quote_shell_word, sanitize_line};
use crate::store::engine::files;
use crate::store::{Advice, StoreError};
use crate::store::{confined, fs};

/// The most broken files that are named.
const NAMED: usize = 20;
/// The largest key file that is read, in bytes.
const MAX_KEY: usize = 64 << 10;

/// A fault of the signing key, and the command that mends it.
type AmpKeyFault = (String, Option<String>);

fn load_key(dir: &Path) -> Result<Seed, AmpKeyFault> {
    let path = dir.join("keys/private.pem");
    let is_link = |p: &&Path| std::fs::symlink_metadata(p).is_ok_and(|m| m.is_symlink());
    if let Some(link) = [&dir.join("keys"), &path].map(PathBuf::as_path).into_iter().find(is_link) {
        return Err(symlink_fault(link, link == path));
    }
    let shown = path.to_string_lossy();
    let (word, shown) = (quote_shell_word(&shown), sanitize_line(&shown));
    let without = |problem: String| (format!("{shown}: {problem}"), None);
    let mended = |problem: String, by: String| (format!("{shown}: {problem}"), Some(by));
    let unreadable = |e| without(format!("the signing key cannot be read: {e}"));
    let file = confined::open_path(dir, &["keys", "private.pem"]).map_err(|e| match e.kind() {
        io::ErrorKind::NotFound => without(
            "there is no signing key; restore it from a backup or make one with amp-init".into(),
        ),
        _ => unreadable(e),
    })?;
    let meta = file.metadata().map_err(unreadable)?;
    if let Some(owner) = fs::foreign_owner(&meta) {
        let why = format!("the signing key belongs to another user ({owner}), so it is not used");
        return Err(mended(why, fs::chown_command(&path)));
    }
    let mode = meta.mode() & 0o7777;
    if mode & 0o077 != 0 {
        let why = format!(
            "others on this machine can read the signing key (mode {mode:04o}), so it is not used"
        );
        return Err(mended(why, format!("chmod 600 {word}")));
    }
    let (_, bytes) = confined::read_whole(&file, MAX_KEY).map_err(unreadable)?;
    let bytes = zeroize::Zeroizing::new(bytes);
    let corrupt = |why: &dyn std::fmt::Display| {
        without(format!(
            "not a usable signing key: {}; msgfs never replaces it: restore it from a backup",
            sanitize_line(&why.to_string())
        ))
    };
    let text = std::str::from_utf8(&bytes).map_err(|e| corrupt(&e))?;
    let seed = pem::parse_private_key(text).map_err(|e| match e {
        pem::PemError::Encrypted => mended(
            "is encrypted; msgfs needs it unencrypted, because nobody is there to ask for the \
             passphrase when it signs"
                .into(),
            format!(
                "(umask 077 && openssl pkey -in {word} -out {word}.new && mv {word}.new {word})"
            ),
        ),
        other => corrupt(&other),
    })?;
    // Others verify with public.pem, so every message would fail if the private key does not fit it.
    if let Ok(file) = confined::open_path(dir, &["keys", "public.pem"])
        && let Ok((_, public)) = confined::read_whole(&file, MAX_KEY)
        && let Ok(key) = pem::parse_public_key(&String::from_utf8_lossy(&public))
        && key != seed.public_key()
    {
        return Err(without(
            "keys/public.pem is not the other half of this key, so nobody could verify what it \
             signs; restore the pair from a backup"
                .into(),
        ));
    }
    Ok(seed)
}

/// Explains a symbolic link in the place of the key or of its folder.
fn symlink_fault(link: &Path, is_key: bool) -> AmpKeyFault {
    let shown = link.to_string_lossy();
    let word = quote_shell_word(&shown);
    let problem = format!(
        "{}: is a symbolic link, which msgfs does not follow to a signing key; put what it leads to \
         in its place",
        sanitize_line(&shown)
    );
    let copy = format!("(umask 077 && cp --remove-destination \"$(readlink -f {word})\" {word})");
    (problem, is_key.then_some(copy))
}

/// Returns the agent's signing key.
///
/// # Errors
/// [`StoreError::NoKey`] with a remedy.
pub fn signing_key(dir: &Path) -> Result<Seed, StoreError> {
    load_key(dir).map_err(|(problem, command)| {
        StoreError::NoKey(match command {
            Some(command) => format!("{problem}; mend it with: {command}"),
            None => problem,
        })
    })
}

impl AmpStore {
    pub(super) fn collect_health(&self) -> Vec<String> {
        let dir = &self.properties.dir;
        if let Some(gone) = fs::missing_folder_line(dir) {
            return vec![gone];
        }
        if let Err(e) = confined::open_dir(dir, &[]) {
            return vec![format!("the agent's folder cannot be opened: {e}")];
        }
        let mut lines = self.fault_lines();
        if let Ok(roster) = self.format.home.recent_roster() {
            lines.extend(roster.faults.iter().take(NAMED).cloned());
        }
        if let Err((problem, _)) = load_key(dir) {
            lines.push(format!("nothing can be sent: {problem}"));
        }
        lines.extend(self.unwatched_line());
        lines
    }

    pub(super) fn collect_advice(&self) -> Vec<Advice> {
        let dir = &self.properties.dir;
        let mut out = Vec::new();
        if let Err((problem, command)) = load_key(dir) {
            out.push(Advice { problem, command, serious: true });
        }
        let Ok(roster) = self.format.home.refresh_roster() else { return out };
        let known = |problem: String, serious| Advice { problem, command: None, serious };
        for (a, b, shared) in roster.find_clashes() {
            let problem = format!(
                "the agents in {} and {} are both {}: mail for one can reach the other; give one of \
                 them another address in its config.json, and say which one is yours with \
                 dir = \"…/agents/FOLDER\" in the [[store]] of kind \"amp\"",
                sanitize_line(&a.dir.to_string_lossy()),
                sanitize_line(&b.dir.to_string_lossy()),
                sanitize_line(shared)
            );
            out.push(known(problem, a.dir == *dir || b.dir == *dir));
        }
        if roster.me.key.is_none() {
            let file = dir.join("keys/public.pem");
            let file = file.to_string_lossy();
            let why = "there is no usable public key, so others cannot verify my mail";
            out.push(known(format!("{}: {why}", sanitize_line(&file)), false));
        }
        out.extend(self.find_exposed_messages());
        out.extend(self.find_exposed_registrations());
        out.extend(roster.faults.iter().map(|problem| known(problem.clone(), false)));
        out
    }

    /// Finds registrations that others may read. They hold keys, and some clients leave them readable for a moment.
    fn find_exposed_registrations(&self) -> Vec<Advice> {
        let names = confined::open_dir(&self.properties.dir, &["registrations"]);
        let names = names.and_then(|dir| files::list_names(&dir)).unwrap_or_default();
        let paths = names.into_iter().filter_map(|(name, _)| {
            let name = name.ok().filter(|name| message_file_stem(name).is_some())?;
            Some(self.properties.dir.join("registrations").join(name))
        });
        let open = |path: &PathBuf| {
            let meta = std::fs::symlink_metadata(path);
            meta.is_ok_and(|m| m.is_file() && m.mode() & 0o077 != 0)
        };
        let advice = |path: PathBuf| Advice {
            problem: format!(
                "{}: others can read the key in it, so no mail goes through this provider",
                sanitize_line(&path.to_string_lossy())
            ),
            command: Some(format!("chmod 600 {}", quote_shell_word(&path.to_string_lossy()))),
            serious: true,
        };
        paths.filter(open).map(advice).collect()
    }

    /// Returns advice if others may read the messages: the clients leave them readable for everybody who can enter the
    /// folder.
    fn find_exposed_messages(&self) -> Option<Advice> {
        let messages = self.properties.dir.join("messages");
        let open =
            |path: &Path| std::fs::symlink_metadata(path).is_ok_and(|m| m.mode() & 0o077 != 0);
        let reachable = messages.ancestors().take(2).all(open);
        let path = messages.to_string_lossy();
        reachable.then(|| Advice {
            problem: format!(
                "{}: other users of this machine may read the messages",
                sanitize_line(&path)
            ),
            command: Some(format!("chmod 700 {}", quote_shell_word(&path))),
            serious: false,
        })
    }
}
