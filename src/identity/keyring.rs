//! Which key belongs to which address.
//!
//! # Rules
//!
//! 1. The keys pinned for an address decide, whatever key a message offers and in whatever store it
//!    lies. An address without a pin gets one from the first message whose signature verifies with
//!    the key it offers (trust on first use).
//!    A signature over a part of a message, or by nobody, makes no pin.
//! 2. Another key is refused until a person trusts it. Trusting adds a key: messages signed with the
//!    older ones stay valid.
//! 3. Keys are compared as 32 bytes, never by fingerprint: fingerprints are 64 bits of a hash.
//! 4. The file wins. Another process may change it (`msgfs key trust`); what it says replaces what
//!    is in memory, except for first-use pins that were not written yet and that it says nothing
//!    about.
//! 5. A file that cannot be understood is an error and is never replaced.
//!
//! # Locks
//!
//! One mutex over the state, held while the file is written so that nothing is lost in between, and
//! never while a signature is verified. The lock on disk is taken after the mutex.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::path::{Path, PathBuf};

use crate::model::locks::Mutex;
use rustix::io::Errno;

use super::disk::{self, Stamp, WriteLock};
use super::document::{By, Document, PinForm, Trusted, iso, parse_time};
use super::{shell_path, shown};
use crate::model::verify::{BadKey, check_key, verify};
use crate::model::{Claim, ClaimScope, Fingerprint, PublicKey, Timestamp, one_line};

/// Why the keyring could not be read or changed.
#[derive(Debug, thiserror::Error)]
pub enum KeyringError {
    /// The file is not a keyring.
    #[error(
        "{}: not a usable keyring: {problem}; msgfs never replaces it: mend it, or move it away to \
         start with an empty one (every sender is then trusted on first use again): mv {} {}.bad",
        shown(path),
        shell_path(path),
        shell_path(path)
    )]
    Corrupt {
        /// The keyring.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// The operating system refused.
    #[error("{}: the keyring cannot be read or written: {source}", shown(path))]
    Io {
        /// The keyring.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The keyring was opened with [`Keyring::open_read_only`].
    #[error(
        "{}: the keyring is open for reading only, so trust cannot be changed here",
        shown(path)
    )]
    ReadOnly {
        /// The keyring.
        path: PathBuf,
    },
    /// There is no refused key to trust.
    #[error(
        "no key of {} was refused, so there is none to trust; give the key itself with `--key BASE64`, or see \
         `msgfs key list`",
        one_line(address)
    )]
    NothingRefused {
        /// The address.
        address: String,
    },
    /// The key can vouch for nobody.
    #[error("key {fingerprint} cannot be trusted: {source}")]
    BadKey {
        /// The key's name.
        fingerprint: Fingerprint,
        /// The rule it breaks.
        source: BadKey,
    },
    /// The keyring holds a different key of the same name.
    #[error(
        "key {fingerprint} cannot be trusted: the keyring already holds a different key with this \
         fingerprint; one of the two was made to look like the other"
    )]
    Collision {
        /// The name both keys have.
        fingerprint: Fingerprint,
    },
    /// Nobody has the empty address.
    #[error("an empty address cannot be trusted")]
    NoAddress,
}

/// What the keyring says about a signature.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// By a key trusted for the sender.
    Valid(PublicKey),
    /// No key is known to judge it with.
    Unknown,
    /// Wrong, malformed, or by a key that is not the sender's; a sentence for a person.
    Rejected(String),
}

/// One address and a key trusted for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pin {
    /// Whom the key vouches for.
    pub address: String,
    /// The key's name.
    pub fingerprint: Fingerprint,
    /// The key.
    pub key: PublicKey,
    /// When the key was first seen, under any address.
    pub first_seen: Timestamp,
    /// When it was last seen, to the day.
    pub last_seen: Timestamp,
    /// When it was pinned to this address.
    pub since: Timestamp,
    /// A person said so, rather than the first message.
    pub by_hand: bool,
    /// Names of the stores it was seen in for this address.
    pub stores: Vec<String>,
}

/// The keyring of one me. Share it with `Arc`; every method takes `&self`.
#[derive(Debug)]
pub struct Keyring {
    path: PathBuf,
    read_only: bool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    document: Document,
    /// What `document` says, by address; kept because every signed message asks for it.
    trusted: HashMap<String, Vec<Trusted>>,
    /// First-use pins that are not in the file.
    new_pins: BTreeMap<String, (PublicKey, PinForm)>,
    /// Refused keys that are not in the file, with the time.
    new_refusals: BTreeMap<String, (PublicKey, String)>,
    /// Days and stores of use that are not in the file.
    touched: bool,
    /// The file as it was read or written last; `None` if there was none.
    stamp: Option<Stamp>,
    /// Addresses that got their first key and nobody was told yet.
    first_uses: Vec<String>,
    /// Trust was changed by another process and nobody was told yet.
    changed: bool,
    /// Why the file could not be read again.
    trouble: Option<String>,
}

impl Keyring {
    /// Opens the keyring; a missing file is an empty keyring, which is not written until there is
    /// something to write.
    ///
    /// # Errors
    /// [`KeyringError::Corrupt`] if the file is no keyring or no regular file, and I/O errors.
    pub fn open(path: &Path) -> Result<Self, KeyringError> {
        Self::open_as(path, false)
    }

    /// As [`Keyring::open`], but nothing is ever written: pins made on first use live in memory.
    ///
    /// # Errors
    /// As [`Keyring::open`].
    pub fn open_read_only(path: &Path) -> Result<Self, KeyringError> {
        Self::open_as(path, true)
    }

    fn open_as(path: &Path, read_only: bool) -> Result<Self, KeyringError> {
        let mut state = State::default();
        state.read(path)?;
        state.changed = false;
        Ok(Self { path: path.to_owned(), read_only, state: Mutex::new(state) })
    }

    /// Judges the signature of a message from `from`, found in the store named `store`, and pins
    /// the key it offers if `from` has none. Call it in the order of the messages: the first one
    /// decides. Messages without any signature are not for the keyring to judge.
    ///
    /// A claim over a [part](ClaimScope::Part) is valid by a key pinned for `from`, and otherwise
    /// [`Verdict::Unknown`]: it says nothing.
    pub fn judge(&self, from: &str, store: &str, claim: &Claim) -> Verdict {
        let (offered, signature, covered, scope) = match claim {
            Claim::Malformed(why) => {
                return Verdict::Rejected(format!("the signature is malformed: {}", one_line(why)));
            }
            Claim::Signed { key, signature, covered, scope } => (*key, signature, covered, *scope),
        };
        let fits = |key: &PublicKey| covered.any(|bytes| verify(key, bytes, signature));
        if scope == ClaimScope::Part {
            let asked = |key: &PublicKey| offered.is_none_or(|offered| offered == *key);
            let key = self.pinned(from).into_iter().rev().find(|key| asked(key) && fits(key));
            return key.map_or(Verdict::Unknown, |key| self.settle(from, store, key, scope));
        }
        let Some(offered) = offered else {
            if scope == ClaimScope::Unpinned {
                return Verdict::Unknown;
            }
            let pinned = self.pinned(from);
            if pinned.is_empty() {
                return Verdict::Unknown;
            }
            return match pinned.iter().rev().find(|key| fits(key)) {
                Some(key) => self.settle(from, store, *key, scope),
                None => Verdict::Rejected(wrong_signature(from, None, &pinned)),
            };
        };
        if scope != ClaimScope::Unpinned {
            // What a store offers may be another key than the message was signed with: a sender's
            // key file may have been replaced since.
            let pinned = self.pinned(from);
            if !pinned.contains(&offered)
                && let Some(key) = pinned.iter().rev().find(|key| fits(key))
            {
                return self.settle(from, store, *key, scope);
            }
        }
        if !fits(&offered) {
            let reason = match check_key(&offered) {
                Ok(()) => wrong_signature(from, Some(offered), &self.pinned(from)),
                Err(bad) => {
                    format!("the key {} it offers is not usable: {bad}", offered.fingerprint())
                }
            };
            return Verdict::Rejected(reason);
        }
        match scope {
            ClaimScope::Unpinned => Verdict::Valid(offered),
            _ if from.is_empty() => Verdict::Unknown,
            _ => self.settle(from, store, offered, scope),
        }
    }

    /// Decides about a key whose signature verified, and remembers what follows.
    fn settle(&self, from: &str, store: &str, key: PublicKey, scope: ClaimScope) -> Verdict {
        let now = Timestamp::now();
        let state = &mut *self.state.lock();
        match state.trusted.get(from) {
            None if scope == ClaimScope::Part => Verdict::Unknown,
            None => {
                let owner = state.owner_but(&key, from).filter(|_| scope == ClaimScope::Renamed);
                if let Some(owner) = owner {
                    state.refuse(from, key, now);
                    return Verdict::Rejected(foreign_key(from, key, &owner));
                }
                state.first_uses.push(from.to_owned());
                state.pin_first(from, store, key, now)
            }
            Some(trusted) if trusted.iter().any(|t| t.key == key) => {
                state.touched |= state.document.used(from, key, store, now);
                Verdict::Valid(key)
            }
            Some(_) if scope == ClaimScope::Part => Verdict::Unknown,
            Some(trusted) => {
                let keys: Vec<_> = trusted.iter().map(|t| t.key).collect();
                let owner = state.owner_but(&key, from).filter(|_| scope == ClaimScope::Renamed);
                state.refuse(from, key, now);
                Verdict::Rejected(match owner {
                    Some(owner) => foreign_key(from, key, &owner),
                    None => changed_key(from, key, &keys),
                })
            }
        }
    }

    /// The addresses that got their first key since this was last asked.
    pub fn take_first_uses(&self) -> Vec<String> {
        std::mem::take(&mut self.state.lock().first_uses)
    }

    /// The keys trusted for an address, the one trusted last at the end.
    pub fn pinned(&self, address: &str) -> Vec<PublicKey> {
        let state = self.state.lock();
        state.trusted.get(address).map(|t| t.iter().map(|t| t.key).collect()).unwrap_or_default()
    }

    /// Whether any key is pinned for the address.
    pub fn is_pinned(&self, address: &str) -> bool {
        self.state.lock().trusted.contains_key(address)
    }

    /// Whether a person said that a key belongs to this address.
    pub fn pinned_by_hand(&self, address: &str) -> bool {
        let state = self.state.lock();
        state.trusted.get(address).is_some_and(|t| t.iter().any(|t| t.by == By::Hand))
    }

    /// Another address than this one to which the key is pinned.
    pub fn other_owner(&self, key: &PublicKey, address: &str) -> Option<String> {
        self.state.lock().owner_but(key, address)
    }

    /// The key that was offered for the address and refused last.
    pub fn last_refused(&self, address: &str) -> Option<PublicKey> {
        self.state.lock().document.refused(address)
    }

    /// Every pin, by address, then by the time it was made.
    pub fn list(&self) -> Vec<Pin> {
        let state = self.state.lock();
        let time = |text: &str| parse_time(text).unwrap_or_default();
        let mut pins: Vec<Pin> = state
            .document
            .entries()
            .flat_map(|e| e.form.pinned.iter().map(move |(address, pin)| (e, address, pin)))
            .map(|(entry, address, pin)| Pin {
                address: address.clone(),
                fingerprint: entry.key.fingerprint(),
                key: entry.key,
                first_seen: time(&entry.form.first_seen),
                last_seen: time(&entry.form.last_seen),
                since: time(&pin.since),
                by_hand: pin.by == By::Hand,
                stores: pin.stores.clone(),
            })
            .collect();
        pins.sort_by(|a, b| {
            (&a.address, a.since, a.fingerprint).cmp(&(&b.address, b.since, b.fingerprint))
        });
        pins
    }

    /// Trusts a key for an address, beside those already trusted, and writes that down before it
    /// returns. Without a key it is the one that was offered and refused last. Returns the key;
    /// trusting it again changes nothing.
    ///
    /// # Errors
    /// [`KeyringError::NothingRefused`] if no key is given and none was refused,
    /// [`KeyringError::BadKey`] and [`KeyringError::Collision`] if the key can vouch for nobody,
    /// [`KeyringError::ReadOnly`], and what writing the file fails with; then nothing is changed.
    pub fn trust(&self, address: &str, key: Option<PublicKey>) -> Result<PublicKey, KeyringError> {
        if address.is_empty() {
            return Err(KeyringError::NoAddress);
        }
        self.change(|document| {
            let Some(key) = key.or_else(|| document.refused(address)) else {
                return Err(KeyringError::NothingRefused { address: address.to_owned() });
            };
            let fingerprint = key.fingerprint();
            check_key(&key).map_err(|source| KeyringError::BadKey { fingerprint, source })?;
            document
                .pin(address, key, PinForm::new(By::Hand, None, Timestamp::now()))
                .map_err(|_| KeyringError::Collision { fingerprint })?;
            Ok(key)
        })
    }

    /// Forgets every key of an address, so that its next valid signature is trusted as the first.
    /// Writes that down before it returns. Whether there was a pin.
    ///
    /// # Errors
    /// [`KeyringError::ReadOnly`], and what writing the file fails with; then nothing is changed.
    pub fn forget(&self, address: &str) -> Result<bool, KeyringError> {
        self.change(|document| Ok(document.forget(address)))
    }

    /// Writes what is new since the last flush: one durable write, or none if there is nothing.
    /// Call it at the end of a batch. What another process wrote in the meantime is merged.
    ///
    /// # Errors
    /// What reading or writing the file fails with; what is new stays and can be flushed later.
    pub fn flush(&self) -> Result<(), KeyringError> {
        let state = &mut *self.state.lock();
        if self.read_only || !state.dirty() {
            return Ok(());
        }
        let _lock = self.lock_file()?;
        state.refresh(&self.path)?;
        let document = state.document.clone();
        state.write(&self.path, document)
    }

    /// Looks whether another process changed the file (one `stat` if not), and reads it if so.
    /// Returns whether trust is different from when it was last asked about, also if a flush found
    /// out: messages then have to be judged again. A file that cannot be read changes nothing, see
    /// [`Keyring::trouble`].
    pub fn reload_if_changed(&self) -> bool {
        let state = &mut *self.state.lock();
        if let Err(error) = state.refresh(&self.path) {
            let text = error.to_string();
            if state.trouble.as_ref() != Some(&text) {
                tracing::warn!("{text}");
                state.trouble = Some(text);
            }
        }
        std::mem::take(&mut state.changed)
    }

    /// Why the file could not be read again, for `status.txt`; `None` if all is well.
    pub fn trouble(&self) -> Option<String> {
        self.state.lock().trouble.clone()
    }

    /// Applies a change to the newest state of the file and writes it.
    fn change<T>(
        &self,
        edit: impl FnOnce(&mut Document) -> Result<T, KeyringError>,
    ) -> Result<T, KeyringError> {
        if self.read_only {
            return Err(KeyringError::ReadOnly { path: self.path.clone() });
        }
        let state = &mut *self.state.lock();
        let _lock = self.lock_file()?;
        state.refresh(&self.path)?;
        let mut document = state.document.clone();
        let result = edit(&mut document)?;
        if document != state.document || state.dirty() {
            state.write(&self.path, document)?;
        }
        Ok(result)
    }

    fn lock_file(&self) -> Result<WriteLock, KeyringError> {
        WriteLock::take(&self.path)
            .map_err(|source| KeyringError::Io { path: self.path.clone(), source })
    }
}

impl State {
    /// Another address than this one to which the key is pinned.
    fn owner_but(&self, key: &PublicKey, address: &str) -> Option<String> {
        let entry = self.document.entries().find(|e| e.key == *key)?;
        entry.form.pinned.keys().find(|a| *a != address).cloned()
    }

    /// Trust on first use.
    fn pin_first(&mut self, from: &str, store: &str, key: PublicKey, now: Timestamp) -> Verdict {
        let pin = PinForm::new(By::FirstUse, Some(store), now);
        if self.document.pin(from, key, pin.clone()).is_err() {
            return Verdict::Rejected(format!(
                "the key {} it offers was made to look like another key in the keyring",
                key.fingerprint()
            ));
        }
        self.new_pins.insert(from.to_owned(), (key, pin));
        self.trusted.insert(from.to_owned(), vec![Trusted { key, by: By::FirstUse }]);
        Verdict::Valid(key)
    }

    /// Remembers the key as the one refused last for the address.
    fn refuse(&mut self, from: &str, key: PublicKey, now: Timestamp) {
        if self.document.refused(from) == Some(key) {
            return;
        }
        let when = iso(now);
        // A key that collides with another cannot be trusted later either.
        if self.document.refuse(from, key, &when).is_ok() {
            self.new_refusals.insert(from.to_owned(), (key, when));
        }
    }

    fn dirty(&self) -> bool {
        self.touched || !self.new_pins.is_empty() || !self.new_refusals.is_empty()
    }

    /// Reads the file again if it is not the one read or written last.
    fn refresh(&mut self, path: &Path) -> Result<(), KeyringError> {
        let now =
            Stamp::at(path).map_err(|source| KeyringError::Io { path: path.to_owned(), source })?;
        if now == self.stamp && self.trouble.is_none() { Ok(()) } else { self.read(path) }
    }

    /// Reads the file and lays what is not written yet over it, where the file does not object.
    fn read(&mut self, path: &Path) -> Result<(), KeyringError> {
        let (mut document, stamp) = read_document(path)?;
        let in_file = document.trusted();
        self.new_pins.retain(|address, (key, pin)| {
            !in_file.contains_key(address) && document.pin(address, *key, pin.clone()).is_ok()
        });
        let trusted = document.trusted();
        self.new_refusals.retain(|address, (key, when)| {
            // Refused because the address has another key, or the key another address.
            let still = match trusted.get(address) {
                Some(keys) => keys.iter().all(|t| t.key != *key),
                None => trusted.values().flatten().any(|t| t.key == *key),
            };
            still && document.refuse(address, *key, when).is_ok()
        });
        self.changed |= trusted != self.trusted;
        self.touched = false;
        (self.document, self.trusted, self.stamp) = (document, trusted, stamp);
        self.trouble = None;
        Ok(())
    }

    /// Replaces the file and makes its content the state.
    fn write(&mut self, path: &Path, document: Document) -> Result<(), KeyringError> {
        let io = |source| KeyringError::Io { path: path.to_owned(), source };
        let text = document.to_text().map_err(|e| io(e.into()))?;
        disk::replace(path, text.as_bytes()).map_err(io)?;
        self.trusted = document.trusted();
        self.document = document;
        self.new_pins.clear();
        self.new_refusals.clear();
        self.touched = false;
        self.stamp = Stamp::at(path).map_err(io)?;
        Ok(())
    }
}

/// The file and its stamp, taken before the content so that a later change is noticed.
fn read_document(path: &Path) -> Result<(Document, Option<Stamp>), KeyringError> {
    let corrupt = |problem: String| KeyringError::Corrupt { path: path.to_owned(), problem };
    let io = |source| KeyringError::Io { path: path.to_owned(), source };
    let (file, stat) = match disk::open_regular(path) {
        Ok(opened) => opened,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok((Document::default(), None)),
        Err(e) if e.kind() == io::ErrorKind::InvalidInput => {
            return Err(corrupt("it is not a regular file".into()));
        }
        Err(e) if e.raw_os_error() == Some(Errno::LOOP.raw_os_error()) => {
            return Err(corrupt("it is a symbolic link".into()));
        }
        Err(e) => return Err(io(e)),
    };
    let document = Document::parse(&disk::read_all(file).map_err(io)?).map_err(corrupt)?;
    Ok((document, Some(Stamp::of(&stat))))
}

/// `3430f3e127705937`, or several joined by `or`.
fn names(keys: &[PublicKey]) -> String {
    keys.iter().rev().map(|k| k.fingerprint().to_string()).collect::<Vec<_>>().join(" or ")
}

fn wrong_signature(from: &str, offered: Option<PublicKey>, pinned: &[PublicKey]) -> String {
    let from = one_line(from);
    match offered {
        None => format!(
            "the signature is wrong: it is not by {}, the key of {from}, over this message",
            names(pinned)
        ),
        Some(key) if pinned.is_empty() || pinned.contains(&key) => {
            format!(
                "the signature is wrong: it is not by key {} over this message",
                key.fingerprint()
            )
        }
        Some(key) => format!(
            "the signature is wrong: it is not by the key {} it offers, and the key of {from} is {}",
            key.fingerprint(),
            names(pinned)
        ),
    }
}

fn foreign_key(from: &str, offered: PublicKey, owner: &str) -> String {
    format!(
        "its signed text says it is from {}, but it is signed with key {}, which belongs to {}; if \
         it is the key of both, accept it with: msgfs key trust {}",
        one_line(from),
        offered.fingerprint(),
        one_line(owner),
        crate::model::shell_word(from)
    )
}

fn changed_key(from: &str, offered: PublicKey, pinned: &[PublicKey]) -> String {
    format!(
        "signed with key {}, but the key of {} is {}; if {} really has a new key, accept it with: \
         msgfs key trust {}",
        offered.fingerprint(),
        one_line(from),
        names(pinned),
        one_line(from),
        crate::model::shell_word(from)
    )
}

#[cfg(test)]
mod tests;
