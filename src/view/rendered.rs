//! Rendered messages for the next reader: the latest ones, and no more bytes of them than a bound.

use std::sync::Arc;

use lru::LruCache;

use crate::index::{Entry, MsgIx};

/// A rendered message, and its entry as it was then: it is rendered again once it looks different.
pub(super) type Rendered = (Entry, Arc<[u8]>);

/// A longer message is kept only until the next one.
const MAX: usize = 64 << 10;
/// Bytes kept.
const KEPT: usize = 2 << 20;
/// What a message costs besides its bytes.
const EACH: usize = 256;

/// The cache.
#[derive(Debug)]
pub(super) struct Cache {
    of: LruCache<MsgIx, Rendered>,
    bytes: usize,
    /// The last message that is too long to be kept: who reads it reads on.
    large: Option<(MsgIx, Rendered)>,
}

impl Default for Cache {
    fn default() -> Self {
        Self { of: LruCache::unbounded(), bytes: 0, large: None }
    }
}

impl Cache {
    pub fn get(&mut self, ix: MsgIx) -> Option<&Rendered> {
        let large = self.large.as_ref().filter(|(of, _)| *of == ix).map(|(_, rendered)| rendered);
        large.or_else(|| self.of.get(&ix))
    }

    pub fn forget(&mut self, ix: MsgIx) {
        self.large.take_if(|(of, _)| *of == ix);
        if let Some((_, bytes)) = self.of.pop(&ix) {
            self.bytes -= bytes.len() + EACH;
        }
    }

    pub fn put(&mut self, ix: MsgIx, rendered: Rendered) {
        self.forget(ix);
        if rendered.1.len() > MAX {
            self.large = Some((ix, rendered));
            return;
        }
        self.bytes += rendered.1.len() + EACH;
        self.of.put(ix, rendered);
        while self.bytes > KEPT && self.of.len() > 1 {
            let Some((oldest, _)) = self.of.peek_lru() else { return };
            self.forget(*oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_holds_the_latest_and_no_more_than_its_bytes() {
        let mut cache = Cache::default();
        let text: Arc<[u8]> = vec![0; 1000].into();
        let put = |cache: &mut Cache, ix| {
            cache.put(ix, (bytemuck::Zeroable::zeroed(), Arc::clone(&text)));
        };
        for ix in 0..10_000 {
            put(&mut cache, ix % 5000);
            assert!(cache.get(0).is_some(), "what is used stays");
        }
        let held = cache.of.iter().map(|(_, (_, bytes))| bytes.len() + EACH).sum::<usize>();
        assert!(held == cache.bytes && held <= KEPT && held > KEPT - 2000, "{held}");
        assert!(cache.get(4999).is_some() && cache.get(1).is_none());
        (0..5000).for_each(|ix| cache.forget(ix));
        assert_eq!((cache.bytes, cache.of.len()), (0, 0));
    }
}
