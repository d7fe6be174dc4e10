//! The keys that sign for me, store by store.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use crate::model::locks::Mutex;

use super::OutboxError;
use crate::identity::{Identity, KeyError, Keyring, KeyringError, Used};
use crate::model::{PublicKey, Remedy, Seed, one_line};
use crate::store::{Signer as _, Store, StoreError};

/// Asks each store which key signs there, and pins that key to my address in the store.
///
/// The store is asked every time, because another program may put its key there or replace it; what
/// is costly, the key pair made from the seed, is kept.
#[derive(Debug)]
pub struct Keys {
    /// The mount's own key, or why it cannot be used.
    mine: Result<Seed, String>,
    keyring: Arc<Keyring>,
    used: Used,
    made: Mutex<BTreeMap<String, Made>>,
}

/// What a store answered last, by its name.
#[derive(Debug)]
enum Made {
    Key(Seed, Arc<Identity>),
    /// It wants the mount's own key, which cannot be used.
    NoMountKey,
    Trouble(String),
}

impl Keys {
    /// Keys around the mount's own (or why there is none).
    pub fn new(mine: Result<Seed, String>, keyring: Arc<Keyring>, used: Used) -> Self {
        Self { mine, keyring, used, made: Mutex::default() }
    }

    /// The key that signs in a store.
    ///
    /// # Errors
    /// [`OutboxError::NoKey`] if there is none or it cannot be used; what the store fails with.
    pub fn of(&self, store: &dyn Store) -> Result<Arc<Identity>, OutboxError> {
        let asked = self.ask(store);
        let mut made = self.made.lock();
        let seed = asked.map_err(|e| {
            let (trouble, e) = self.explain(e);
            made.insert(store.name().to_owned(), trouble);
            e
        })?;
        if let Some(Made::Key(known, identity)) = made.get(store.name())
            && *known == seed
        {
            return Ok(Arc::clone(identity));
        }
        let identity = Arc::new(Identity::new(&seed));
        made.insert(store.name().to_owned(), Made::Key(seed, Arc::clone(&identity)));
        Ok(identity)
    }

    /// The key that a store says signs there, or the mount's own; a store that has none gets it, unless
    /// it had one.
    fn ask(&self, store: &dyn Store) -> Result<Seed, StoreError> {
        let no_key = |e: KeyError| StoreError::NoKey(e.to_string());
        let mine = || {
            let mine = self.mine.as_ref();
            mine.map_err(|_| StoreError::NoKey("there is no signing key".into()))
        };
        let Some(keys) = store.facets().keys else { return mine().cloned() };
        let mut there = keys.signing_key()?;
        if there.is_none() {
            if let Some(why) = lost_key(store, &self.used).map_err(no_key)? {
                return Err(StoreError::NoKey(why));
            }
            keys.adopt(mine()?)?;
            // One that waits for its folder is not there yet, and has not signed.
            there = keys.signing_key()?;
        }
        if let Some(seed) = &there {
            self.used.note(&place_of(store), Identity::new(seed).public_key()).map_err(no_key)?;
        }
        there.map_or_else(|| mine().cloned(), Ok)
    }

    /// As [`Keys::of`]; when this returns, the key is pinned to my address in the store, so that no
    /// forged message from me can be the first to pin another.
    ///
    /// # Errors
    /// As [`Keys::of`], and if the pin cannot be written.
    pub fn pinned(&self, store: &dyn Store) -> Result<Arc<Identity>, OutboxError> {
        let identity = self.of(store)?;
        let key = identity.public_key();
        // A role is not an identity: its next holder has another key.
        let pins = !store.me().is_empty() && !store.about().roles;
        if pins && !self.keyring.pinned(store.me()).contains(&key) {
            self.keyring.trust(store.me(), Some(key)).map_err(not_pinned)?;
        }
        Ok(identity)
    }

    /// The mount's own public key, if its key can be used.
    pub fn mine(&self) -> Option<PublicKey> {
        self.mine.as_ref().ok().map(|seed| Identity::new(seed).public_key())
    }

    /// Why nothing can be sent in some stores: name and reason. That the mount's own key cannot be
    /// used is for the mount to say.
    pub fn troubles(&self) -> Vec<(String, String)> {
        let made = self.made.lock();
        let trouble = |(name, made): (&String, &Made)| match made {
            Made::Trouble(why) => Some((name.clone(), why.clone())),
            Made::NoMountKey | Made::Key(..) => None,
        };
        made.iter().filter_map(trouble).collect()
    }

    /// What a store fails with. One that was given no key for want of mine says only that it has
    /// none: mine is why.
    fn explain(&self, error: StoreError) -> (Made, OutboxError) {
        match (error, &self.mine) {
            (StoreError::NoKey(text), Err(why)) => {
                (Made::NoMountKey, OutboxError::NoKey(format!("{text}: {why}")))
            }
            (StoreError::NoKey(text), Ok(_)) => {
                (Made::Trouble(text.clone()), OutboxError::NoKey(text))
            }
            (other, _) => (Made::Trouble(other.to_string()), other.into()),
        }
    }
}

/// How a store's place is called in the notes on keys.
fn place_of(store: &dyn Store) -> Cow<'_, str> {
    store.dir().to_string_lossy()
}

/// That the key which signed in a store is not there any more, if so.
///
/// # Errors
/// [`KeyError::Untold`] if nobody knows whether one signed.
pub fn lost_key(store: &dyn Store, used: &Used) -> Result<Option<String>, KeyError> {
    let gone = store.facets().keys.is_some_and(|keys| matches!(keys.signing_key(), Ok(None)));
    let place = place_of(store);
    let key = if gone { used.key(&place)? } else { None };
    let start_over = Remedy::Remove(used.path().to_owned());
    Ok(key.map(|key| {
        format!(
            "the key {} that signed for me in {} is gone, and others would refuse what another signs, \
             so msgfs puts none in its place; restore it from a backup, or, to start with a new key \
             all the same: {start_over}",
            key.fingerprint(),
            one_line(&place)
        )
    }))
}

fn not_pinned(error: KeyringError) -> OutboxError {
    match error {
        KeyringError::Io { path, source } => StoreError::io(&path, source).into(),
        other => OutboxError::NoKey(format!(
            "the key that signs for me cannot be noted in the keyring: {}",
            one_line(&other.to_string())
        )),
    }
}
