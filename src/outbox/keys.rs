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

/// A function that reads the mount's own key, or returns why it cannot be used.
type OwnKeyReader = Box<dyn Fn(&SignerRegistry) -> Result<Seed, KeyError> + Send + Sync>;

/// The signing keys of the stores, each pinned to my addresses in its store.
///
/// Key files are read every time, because a person may take one away, put it back or replace it. The key pair made from
/// the seed is expensive and is cached.
pub struct SigningKeys {
    own_key: OwnKeyReader,
    keyring: Arc<Keyring>,
    used: SignerRegistry,
    /// The key that signed last in each store.
    cached: Mutex<BTreeMap<String, (Seed, Arc<KeyPair>)>>,
}

impl fmt::Debug for SigningKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SigningKeys").field("used", &self.used).finish_non_exhaustive()
    }
}

/// The keys by which I am known now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MyPublicKeys {
    /// The key to show: the mount's own, unless every store has another one, or none.
    pub shown: Option<PublicKey>,
    /// The key that signs in each store, by number of the store.
    pub by_store: Vec<Option<PublicKey>>,
    /// The reason why the mount's own key cannot be used.
    pub own_fault: Option<String>,
}

impl SigningKeys {
    /// Returns the signing keys around the mount's own.
    pub fn new(
        own: impl Fn(&SignerRegistry) -> Result<Seed, KeyError> + Send + Sync + 'static,
        keyring: Arc<Keyring>,
        used: SignerRegistry,
    ) -> Self {
        Self { own_key: Box::new(own), keyring, used, cached: Mutex::default() }
    }

    /// Returns the key that signs in a store.
    ///
    /// # Errors
    /// [`OutboxError::NoKey`] if there is none or it cannot be used; errors of the store.
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

    /// Returns the mount's own key.
    fn read_own_key(&self) -> Result<Seed, StoreError> {
        let no_key = |e: KeyError| StoreError::NoKey(e.to_string());
        (self.own_key)(&self.used).map_err(no_key)
    }

    /// Returns the key that a store names for signing there, or the mount's own. A store without a key gets the mount's
    /// own, unless it had one.
    fn resolve_seed(&self, store: &dyn Store) -> Result<Seed, StoreError> {
        let no_key = |e: KeyError| StoreError::NoKey(e.to_string());
        let Some(keys) = store.facets().keys else { return self.read_own_key() };
        let mut there = keys.signing_key()?;
        if there.is_none() {
            if let Some(why) = explain_lost_key(store, &self.used).map_err(no_key)? {
                return Err(StoreError::NoKey(why));
            }
            keys.adopt_key(&self.read_own_key()?)?;
            // A key that waits for its folder is not there yet, and has not signed.
            there = keys.signing_key()?;
        }
        if let Some(seed) = &there {
            self.used
                .record_key_if_readable(&store_place(store), KeyPair::new(seed).public_key())
                .map_err(no_key)?;
        }
        there.map_or_else(|| self.read_own_key(), Ok)
    }

    /// Returns why nothing can be sent in a store that keeps a key of its own. It writes nothing.
    fn find_fault(&self, store: &dyn Store) -> Option<String> {
        if store.describe_missing_folder().is_some() {
            // The store reports that itself.
            return None;
        }
        match store.facets().keys?.signing_key() {
            Ok(Some(_)) => None,
            Ok(None) => explain_lost_key(store, &self.used).unwrap_or_else(|e| Some(e.to_string())),
            Err(e) => Some(e.to_string()),
        }
    }

    /// Returns the key like [`SigningKeys::key_for_store`], and pins it to my addresses in the store before it returns,
    /// so that no forged message from me can be the first to pin another.
    ///
    /// # Errors
    /// The errors of [`SigningKeys::key_for_store`], and if the pin cannot be written.
    pub fn pin_key_for_store(&self, store: &dyn Store) -> Result<Arc<KeyPair>, OutboxError> {
        let identity = self.key_for_store(store)?;
        let key = identity.public_key();
        for me in addresses_with_pins(store) {
            if !self.keyring.pinned_keys(me).contains(&key) {
                self.keyring.trust_key(me, Some(key)).map_err(pin_error)?;
            }
        }
        self.keep_key_for_store(store, key);
        Ok(identity)
    }

    /// Keeps a key pinned to my addresses in a store, see [`Keyring::keep_own_key`]. It writes nothing.
    pub fn keep_key_for_store(&self, store: &dyn Store, key: PublicKey) {
        addresses_with_pins(store).for_each(|me| self.keyring.keep_own_key(me, key));
    }

    /// Returns the keys by which I am known in these stores, as they are now.
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
        // A process that writes nothing makes no key. A key that never existed is not missed.
        let wrong = own.err().filter(|e| !matches!(e, KeyError::Missing(_)));
        MyPublicKeys { shown, by_store, own_fault: wrong.map(|e| e.to_string()) }
    }

    /// Returns the name and the fault of each of these stores in which nothing can be sent now. An unusable key of the
    /// mount is no fault of a store.
    pub fn list_faults(&self, stores: &[Arc<dyn Store>]) -> Vec<(String, String)> {
        let told = |s: &Arc<dyn Store>| Some((s.name().to_owned(), self.find_fault(s.as_ref())?));
        stores.iter().filter_map(told).collect()
    }
}

/// Returns my addresses in a store to which my key is pinned.
fn addresses_with_pins(store: &dyn Store) -> impl Iterator<Item = &str> {
    // A role is not an identity: its next holder has another key.
    let pins = !store.properties().uses_roles;
    store.properties().my_addresses().filter(move |me| pins && !me.is_empty())
}

/// Returns the name of a store's place in the registry of signers.
fn store_place(store: &dyn Store) -> Cow<'_, str> {
    store.dir().to_string_lossy()
}

/// Returns a text if the key that signed in a store is not there any more.
///
/// # Errors
/// [`KeyError::SignersUnreadable`] if nobody knows if one signed.
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
