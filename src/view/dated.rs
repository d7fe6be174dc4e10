//! What was made of the index and is not made again while that stays as it is.

use std::convert::Infallible;
use std::hash::Hash;
use std::num::NonZeroUsize;
use std::time::{Duration, Instant};

use crate::model::locks::Mutex;
use lru::LruCache;

/// What was made under a key, as of a generation of the index.
#[derive(Debug)]
struct CachedValue<V> {
    generation: u64,
    made_at: Instant,
    value: V,
}

/// The values that were asked for last.
#[derive(Debug)]
pub(super) struct GenerationCache<K: Hash + Eq, V> {
    values: Mutex<LruCache<K, CachedValue<V>>>,
    /// How long one is true at most.
    max_age: Duration,
}

impl<K: Hash + Eq, V: Clone> GenerationCache<K, V> {
    /// Keeps this many.
    pub fn new(many: NonZeroUsize) -> Self {
        Self::with_max_age(many, Duration::MAX)
    }

    /// Keeps this many, and none longer than this.
    pub fn with_max_age(many: NonZeroUsize, fresh: Duration) -> Self {
        Self { values: Mutex::new(LruCache::new(many)), max_age: fresh }
    }

    /// The value of a key at a generation of the index.
    pub fn get(&self, key: K, generation: u64, make: impl FnOnce() -> V) -> V {
        let Ok(value) = self.try_get(key, generation, || Ok::<V, Infallible>(make()));
        value
    }

    /// The same where it may be that it cannot be made. Nothing is locked meanwhile.
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

    /// The value of a key is to be made again.
    pub fn remove(&self, key: &K) {
        self.values.lock().pop(key);
    }
}
