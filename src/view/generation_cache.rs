//! A cache of values that are computed from the index and stay valid for one generation.

use std::convert::Infallible;
use std::hash::Hash;
use std::num::NonZeroUsize;
use std::time::{Duration, Instant};

use crate::model::locks::Mutex;
use lru::LruCache;

/// The default capacity of a cache.
const VALUES: NonZeroUsize = NonZeroUsize::MIN.saturating_add(31);

/// A cached value with the generation of the index that it was made from.
#[derive(Debug)]
struct CachedValue<V> {
    generation: u64,
    made_at: Instant,
    value: V,
}

/// A cache of the values used last, each valid for one generation of the index.
#[derive(Debug)]
pub(super) struct GenerationCache<K: Hash + Eq, V> {
    values: Mutex<LruCache<K, CachedValue<V>>>,
    /// Longest time for which a value is valid.
    max_age: Duration,
}

impl<K: Hash + Eq, V: Clone> Default for GenerationCache<K, V> {
    fn default() -> Self {
        Self::new(VALUES)
    }
}

impl<K: Hash + Eq, V: Clone> GenerationCache<K, V> {
    /// Makes a cache for this many values.
    pub fn new(many: NonZeroUsize) -> Self {
        Self::with_max_age(many, Duration::MAX)
    }

    /// Makes a cache for this many values, each valid for at most this time.
    pub fn with_max_age(many: NonZeroUsize, fresh: Duration) -> Self {
        Self { values: Mutex::new(LruCache::new(many)), max_age: fresh }
    }

    /// Returns the value of a key at a generation of the index; makes it if it is missing.
    pub fn get(&self, key: K, generation: u64, make: impl FnOnce() -> V) -> V {
        let Ok(value) = self.try_get(key, generation, || Ok::<V, Infallible>(make()));
        value
    }

    /// Returns the value of a key as [`GenerationCache::get`] does, with a function that may fail. Nothing is locked
    /// while the function runs.
    pub fn try_get<E>(
        &self,
        key: K,
        generation: u64,
        make: impl FnOnce() -> Result<V, E>,
    ) -> Result<V, E> {
        let holds =
            |m: &&CachedValue<V>| m.generation == generation && m.made_at.elapsed() < self.max_age;
        if let Some(made) = self.values.lock().get(&key).filter(holds) {
            return Ok(made.value.clone());
        }
        let value = make()?;
        let made = CachedValue { generation, made_at: Instant::now(), value: value.clone() };
        self.values.lock().put(key, made);
        Ok(value)
    }

    /// Removes the value of a key.
    pub fn remove(&self, key: &K) {
        self.values.lock().pop(key);
    }
}
