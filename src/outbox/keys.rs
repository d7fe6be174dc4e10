//! The keys that sign for me, store by store.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use crate::model::locks::Mutex;

use super::OutboxError;
use crate::identity::{KeyError, KeyPair, Keyring, KeyringError, SignerRegistry};
use crate::model::{PublicKey, Remedy, Seed, sanitize_line};
use crate::store::{Signer as _, Store, StoreError};

/// What the mount's own key is now, or why it cannot be used.
type OwnKeyReader = Box<dyn Fn(&SignerRegistry) -> Result<Seed, KeyError> + Send + Sync>;

/// Asks each store which key signs there, and pins that key to my address in the store.
///
/// Key files are asked for every time, because somebody may take one away, put it back or replace it;
/// what is costly, the key pair made from the seed, is kept.
pub struct SigningKeys {
    own_key: OwnKeyReader,
    keyring: Arc<Keyring>,
    used: SignerRegistry,
    /// By store, the key that signed there last.
    cached: Mutex<BTreeMap<String, (Seed, Arc<KeyPair>)>>,
}

impl fmt::Debug for SigningKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keys").field("used", &self.used).finish_non_exhaustive()
    }
}

/// The keys by which I am known now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MyPublicKeys {
    /// The one to show: the mount's own, unless every store has another one, or none.
    pub shown: Option<PublicKey>,
    /// By number of the store: the one that signs there.
    pub by_store: Vec<Option<PublicKey>>,
    /// Why the mount's own cannot be used, if so.
    pub own_fault: Option<String>,
}

impl SigningKeys {
    /// Keys around the mount's own.
    pub fn new(
        own: impl Fn(&SignerRegistry) -> Result<Seed, KeyError> + Send + Sync + 'static,
        keyring: Arc<Keyring>,
        used: SignerRegistry,
    ) -> Self {
        Self { own_key: Box::new(own), keyring, used, cached: Mutex::default() }
    }

    /// The key that signs in a store.
    ///
    /// # Errors
    /// [`OutboxError::NoKey`] if there is none or it cannot be used; what the store fails with.
    pub fn key_for_store(&self, store: &dyn Store) -> Result<Arc<KeyPair>, OutboxError> {
        let seed = self.resolve_seed(store).map_err(|e| match e {
            StoreError::NoKey(why) => OutboxError::NoKey(why),
            other => other.into(),
        })?;
        let mut made = self.cached.lock();
        if let Some((known, identity)) = made.get(store.name())
            && *known == seed
        {
            return Ok(Arc::clone(identity));
        }
        let identity = Arc::new(KeyPair::new(&seed));
        made.insert(store.name().to_owned(), (seed, Arc::clone(&identity)));
        Ok(identity)
    }

    /// The mount's own key.
    fn read_own_key(&self) -> Result<Seed, StoreError> {
        let no_key = |e| StoreError::NoKey(format!("there is no signing key: {e}"));
        (self.own_key)(&self.used).map_err(no_key)
    }

    /// The key that a store says signs there, or the mount's own; a store that has none gets it, unless
    /// it had one.
    fn resolve_seed(&self, store: &dyn Store) -> Result<Seed, StoreError> {
        let no_key = |e: KeyError| StoreError::NoKey(e.to_string());
        let Some(keys) = store.facets().keys else { return self.read_own_key() };
        let mut there = keys.signing_key()?;
        if there.is_none() {
            if let Some(why) = explain_lost_key(store, &self.used).map_err(no_key)? {
                return Err(StoreError::NoKey(why));
            }
            keys.adopt_key(&self.read_own_key()?)?;
            // One that waits for its folder is not there yet, and has not signed.
            there = keys.signing_key()?;
        }
        if let Some(seed) = &there {
            self.used
                .record_key(&store_place(store), KeyPair::new(seed).public_key())
                .map_err(no_key)?;
        }
        there.map_or_else(|| self.read_own_key(), Ok)
    }

    /// Why nothing can be sent in a store that keeps a key of its own, if so. Nothing is written.
    fn find_fault(&self, store: &dyn Store) -> Option<String> {
        if store.describe_missing_folder().is_some() {
            // The store says so itself.
            return None;
        }
        match store.facets().keys?.signing_key() {
            Ok(Some(_)) => None,
            Ok(None) => explain_lost_key(store, &self.used).unwrap_or_else(|e| Some(e.to_string())),
            Err(e) => Some(e.to_string()),
        }
    }

    /// As [`Keys::of`]; when this returns, the key is pinned to my address in the store, so that no
    /// forged message from me can be the first to pin another.
    ///
    /// # Errors
    /// As [`Keys::of`], and if the pin cannot be written.
    pub fn pin_key_for_store(&self, store: &dyn Store) -> Result<Arc<KeyPair>, OutboxError> {
        let identity = self.key_for_store(store)?;
        let key = identity.public_key();
        // A role is not an identity: its next holder has another key.
        let pins = !store.me().is_empty() && !store.properties().uses_roles;
        if pins && !self.keyring.pinned_keys(store.me()).contains(&key) {
            self.keyring.trust_key(store.me(), Some(key)).map_err(pin_error)?;
        }
        Ok(identity)
    }

    /// The keys by which I am known in these stores, as they are now.
    pub fn public_keys(&self, stores: &[Arc<dyn Store>]) -> MyPublicKeys {
        let own = (self.own_key)(&self.used);
        let public = own.as_ref().ok().map(Seed::public_key);
        let key = |store: &Arc<dyn Store>| {
            let lost = self.find_fault(store.as_ref()).is_some();
            store.public_key(public).filter(|_| !lost)
        };
        let by_store: Vec<Option<PublicKey>> = stores.iter().map(key).collect();
        let others = by_store.iter().flatten().copied().next();
        let is_own = by_store.is_empty() || by_store.contains(&public);
        let shown = if is_own { public } else { others };
        // Who writes nothing makes none, and misses none that nobody had.
        let wrong = own.err().filter(|e| !matches!(e, KeyError::Missing(_)));
        MyPublicKeys { shown, by_store, own_fault: wrong.map(|e| e.to_string()) }
    }

    /// Why nothing can be sent in some of these stores now: name and reason. That the mount's own key
    /// cannot be used is no fault of a store.
    pub fn list_faults(&self, stores: &[Arc<dyn Store>]) -> Vec<(String, String)> {
        let told = |s: &Arc<dyn Store>| Some((s.name().to_owned(), self.find_fault(s.as_ref())?));
        stores.iter().filter_map(told).collect()
    }
}

/// How a store's place is called in the notes on keys.
fn store_place(store: &dyn Store) -> Cow<'_, str> {
    store.dir().to_string_lossy()
}

/// That the key which signed in a store is not there any more, if so.
///
/// # Errors
/// [`KeyError::Untold`] if nobody knows whether one signed.
pub fn explain_lost_key(
    store: &dyn Store,
    used: &SignerRegistry,
) -> Result<Option<String>, KeyError> {
    let gone = store.facets().keys.is_some_and(|keys| matches!(keys.signing_key(), Ok(None)));
    let place = store_place(store);
    let key = if gone { used.last_key(&place)? } else { None };
    let start_over = Remedy::Remove(used.path().to_owned());
    Ok(key.map(|key| {
        format!(
            "the key {} that signed for me in {} is gone; msgfs makes no new one, because others \
             would refuse its signatures; restore it from a backup, or, to start with a new key \
             all the same: {start_over}",
            key.fingerprint(),
            sanitize_line(&place)
        )
    }))
}

fn pin_error(error: KeyringError) -> OutboxError {
    match error {
        KeyringError::Io { path, source } => StoreError::io(&path, source).into(),
        other => OutboxError::NoKey(format!(
            "my signing key cannot be saved in the keyring: {}",
            sanitize_line(&other.to_string())
        )),
    }
}
