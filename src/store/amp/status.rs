//! What a person should know of the store: its health, its key, what to mend.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::{Amp, pem};
use crate::model::{Seed, one_line, shell_word};
use crate::store::{Advice, StoreError};
use crate::store::{below, fs};

/// At most this many broken files are named.
const NAMED: usize = 20;
/// Largest key file that is read, in bytes.
const MAX_KEY: usize = 64 << 10;

/// Why the signing key cannot be used.
enum KeyTrouble {
    Missing,
    /// A symbolic link in its place, or in that of its folder.
    Link(PathBuf),
    Encrypted,
    /// Its permission bits.
    Exposed(u32),
    /// Its owner, who is not me.
    Foreign(u32),
    Corrupt(String),
    Unreadable(io::Error),
    /// `public.pem` is not its other half.
    Mismatch,
}

fn key_path(dir: &Path) -> PathBuf {
    dir.join("keys/private.pem")
}

fn load_key(dir: &Path) -> Result<Seed, KeyTrouble> {
    let is_link = |p: &PathBuf| std::fs::symlink_metadata(p).is_ok_and(|m| m.is_symlink());
    if let Some(link) = [dir.join("keys"), key_path(dir)].into_iter().find(is_link) {
        return Err(KeyTrouble::Link(link));
    }
    let file = match below::open_below(dir, &["keys", "private.pem"]) {
        Ok(file) => file,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Err(KeyTrouble::Missing),
        Err(e) => return Err(KeyTrouble::Unreadable(e)),
    };
    let meta = file.metadata().map_err(KeyTrouble::Unreadable)?;
    if let Some(owner) = fs::foreign_owner(&meta) {
        return Err(KeyTrouble::Foreign(owner));
    }
    let mode = meta.mode() & 0o7777;
    if mode & 0o077 != 0 {
        return Err(KeyTrouble::Exposed(mode));
    }
    let (_, bytes) = below::read_whole(&file, MAX_KEY).map_err(KeyTrouble::Unreadable)?;
    let bytes = zeroize::Zeroizing::new(bytes);
    let corrupt = |why: &dyn std::fmt::Display| KeyTrouble::Corrupt(why.to_string());
    let text = std::str::from_utf8(&bytes).map_err(|e| corrupt(&e))?;
    let seed = pem::private(text).map_err(|e| match e {
        pem::PemError::Encrypted => KeyTrouble::Encrypted,
        other => corrupt(&other),
    })?;
    // Others verify with public.pem: what does not fit it would be refused by everybody.
    if let Ok(file) = below::open_below(dir, &["keys", "public.pem"])
        && let Ok((_, public)) = below::read_whole(&file, MAX_KEY)
        && let Ok(key) = pem::public(&String::from_utf8_lossy(&public))
        && key.0 != ed25519_dalek::SigningKey::from_bytes(seed.bytes()).verifying_key().to_bytes()
    {
        return Err(KeyTrouble::Mismatch);
    }
    Ok(seed)
}

/// What is wrong with a key, and the command that mends it.
fn key_advice(dir: &Path, trouble: &KeyTrouble) -> (String, Option<String>) {
    let path = key_path(dir);
    let (shown, word) =
        (one_line(&path.to_string_lossy()).into_owned(), shell_word(&path.to_string_lossy()));
    match trouble {
        KeyTrouble::Missing => (
            format!(
                "{shown}: there is no signing key; restore it from a backup or make one with \
                 amp-init"
            ),
            None,
        ),
        KeyTrouble::Link(link) => link_advice(dir, link),
        KeyTrouble::Encrypted => (
            format!(
                "{shown}: is encrypted; msgfs needs it unencrypted, because nobody is there to ask \
                 for the passphrase when it signs"
            ),
            Some(format!(
                "(umask 077 && openssl pkey -in {word} -out {word}.new && mv {word}.new {word})"
            )),
        ),
        KeyTrouble::Exposed(mode) => (
            format!(
                "{shown}: others on this machine can read the signing key (mode {mode:04o}), so it \
                 is not used"
            ),
            Some(format!("chmod 600 {word}")),
        ),
        KeyTrouble::Foreign(owner) => (
            format!(
                "{shown}: the signing key belongs to another user ({owner}), so it is not used"
            ),
            Some(fs::own_command(&path)),
        ),
        KeyTrouble::Corrupt(why) => (
            format!(
                "{shown}: not a usable signing key: {}; msgfs never replaces it: restore it from a \
                 backup",
                one_line(why)
            ),
            None,
        ),
        KeyTrouble::Unreadable(e) => {
            (format!("{shown}: the signing key cannot be read: {e}"), None)
        }
        KeyTrouble::Mismatch => (
            format!(
                "{shown}: keys/public.pem is not the other half of this key, so nobody could verify \
                 what it signs; restore the pair from a backup"
            ),
            None,
        ),
    }
}

fn link_advice(dir: &Path, link: &Path) -> (String, Option<String>) {
    let shown = one_line(&link.to_string_lossy()).into_owned();
    let word = shell_word(&link.to_string_lossy());
    let problem = format!(
        "{shown}: is a symbolic link, which msgfs does not follow to a signing key; put what it leads \
         to in its place"
    );
    let copy = (link == key_path(dir)).then(|| {
        format!("(umask 077 && cp --remove-destination \"$(readlink -f {word})\" {word})")
    });
    (problem, copy)
}

/// The agent's signing key.
///
/// # Errors
/// [`StoreError::NoKey`] with what to do.
pub(super) fn signing_key(dir: &Path) -> Result<Seed, StoreError> {
    load_key(dir).map_err(|trouble| {
        let (problem, command) = key_advice(dir, &trouble);
        StoreError::NoKey(match command {
            Some(command) => format!("{problem}; mend it with: {command}"),
            None => problem,
        })
    })
}

impl Amp {
    pub(super) fn health_lines(&self) -> Vec<String> {
        let dir = &self.about.dir;
        if let Some(gone) = fs::away_line(dir) {
            return vec![gone];
        }
        if let Err(e) = below::open_dir(dir, &[]) {
            return vec![format!("the agent's folder cannot be opened: {e}")];
        }
        let mut lines = self.troubles();
        if let Ok(roster) = self.format.home.recent() {
            lines.extend(roster.troubles.iter().take(NAMED).cloned());
        }
        if let Err(trouble) = load_key(dir) {
            lines.push(format!("nothing can be sent: {}", key_advice(dir, &trouble).0));
        }
        lines.extend(self.unwatched_line());
        lines
    }

    pub(super) fn advice_lines(&self) -> Vec<Advice> {
        let dir = &self.about.dir;
        let mut out = Vec::new();
        if let Err(trouble) = load_key(dir) {
            let (problem, command) = key_advice(dir, &trouble);
            out.push(Advice { problem, command, serious: true });
        }
        let Ok(roster) = self.format.home.roster() else { return out };
        for (a, b, shared) in roster.clashes() {
            let mine = a.dir == *dir || b.dir == *dir;
            out.push(Advice {
                problem: format!(
                    "the agents in {} and {} are both {}: mail for one can reach the other; give one \
                     of them another address in its config.json, and say which one is yours with \
                     dir = \"…/agents/FOLDER\" in the [[store]] of kind \"amp\"",
                    one_line(&a.dir.to_string_lossy()),
                    one_line(&b.dir.to_string_lossy()),
                    one_line(shared)
                ),
                command: None,
                serious: mine,
            });
        }
        if roster.me.key.is_none() {
            out.push(Advice {
                problem: format!(
                    "{}: there is no usable public key, so others cannot verify my mail",
                    one_line(&dir.join("keys/public.pem").to_string_lossy())
                ),
                command: None,
                serious: false,
            });
        }
        out.extend(self.exposed_messages());
        out.extend(roster.troubles.iter().map(|problem| Advice {
            problem: problem.clone(),
            command: None,
            serious: false,
        }));
        out
    }

    /// The clients leave messages readable for everybody who can reach the folder.
    fn exposed_messages(&self) -> Option<Advice> {
        let messages = self.about.dir.join("messages");
        let open =
            |path: &Path| std::fs::symlink_metadata(path).is_ok_and(|m| m.mode() & 0o077 != 0);
        let reachable = messages.ancestors().take(2).all(open);
        reachable.then(|| Advice {
            problem: format!(
                "{}: other users of this machine may read the messages",
                one_line(&messages.to_string_lossy())
            ),
            command: Some(format!("chmod 700 {}", shell_word(&messages.to_string_lossy()))),
            serious: false,
        })
    }
}
