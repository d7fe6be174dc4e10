//! What was made of the index and is not made again while that stays as it is.

use std::convert::Infallible;
use std::hash::Hash;
use std::num::NonZeroUsize;
use std::time::{Duration, Instant};

use crate::model::locks::Mutex;
use lru::LruCache;

/// What was made under a key, as of a generation of the index.
#[derive(Debug)]
struct Made<V> {
    generation: u64,
    at: Instant,
    value: V,
}

/// The values that were asked for last.
#[derive(Debug)]
pub(super) struct Dated<K: Hash + Eq, V> {
    made: Mutex<LruCache<K, Made<V>>>,
    /// How long one is true at most.
    fresh: Duration,
}

impl<K: Hash + Eq, V: Clone> Dated<K, V> {
    /// Keeps this many.
    pub fn new(many: NonZeroUsize) -> Self {
        Self::fresh_for(many, Duration::MAX)
    }

    /// Keeps this many, and none longer than this.
    pub fn fresh_for(many: NonZeroUsize, fresh: Duration) -> Self {
        Self { made: Mutex::new(LruCache::new(many)), fresh }
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
        let holds = |m: &&Made<V>| m.generation == generation && m.at.elapsed() < self.fresh;
        if let Some(made) = self.made.lock().get(&key).filter(holds) {
            return Ok(made.value.clone());
        }
        let value = make()?;
        let made = Made { generation, at: Instant::now(), value: value.clone() };
        self.made.lock().put(key, made);
        Ok(value)
    }

    /// The value of a key is to be made again.
    pub fn forget(&self, key: &K) {
        self.made.lock().pop(key);
    }
}
