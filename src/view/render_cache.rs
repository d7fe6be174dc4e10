//! A bounded cache of the messages that were rendered last.

use std::sync::Arc;

use lru::LruCache;

use crate::index::{IndexEntry, MsgIx};

/// A rendered message, and its entry at that time. It is rendered again once the entry's appearance differs.
pub(super) type RenderedMessage = (IndexEntry, Arc<[u8]>);

/// Longest message in the cache, in bytes. Of longer ones only the last is kept.
const MAX: usize = 64 << 10;
/// Bytes kept.
const KEPT: usize = 2 << 20;
/// Cost of a message in addition to its bytes.
const EACH: usize = 256;

/// A bounded cache of rendered messages.
#[derive(Debug)]
pub(super) struct RenderCache {
    by_message: LruCache<MsgIx, RenderedMessage>,
    bytes: usize,
    /// The last message that was too long for the cache, kept because its reader reads it in pieces.
    large: Option<(MsgIx, RenderedMessage)>,
}

impl Default for RenderCache {
    fn default() -> Self {
        Self { by_message: LruCache::unbounded(), bytes: 0, large: None }
    }
}

impl RenderCache {
    /// Returns the cached text of a message.
    pub fn get(&mut self, ix: MsgIx) -> Option<&RenderedMessage> {
        let large = self.large.as_ref().filter(|(of, _)| *of == ix).map(|(_, rendered)| rendered);
        large.or_else(|| self.by_message.get(&ix))
    }

    /// Removes the text of a message.
    pub fn remove(&mut self, ix: MsgIx) {
        self.large.take_if(|(of, _)| *of == ix);
        if let Some((_, bytes)) = self.by_message.pop(&ix) {
            self.bytes -= bytes.len() + EACH;
        }
    }

    /// Adds the text of a message, and drops the texts that were not used for the longest time if there is no room.
    pub fn insert(&mut self, ix: MsgIx, rendered: RenderedMessage) {
        self.remove(ix);
        if rendered.1.len() > MAX {
            self.large = Some((ix, rendered));
            return;
        }
        self.bytes += rendered.1.len() + EACH;
        self.by_message.put(ix, rendered);
        while self.bytes > KEPT && self.by_message.len() > 1 {
            let Some((oldest, _)) = self.by_message.peek_lru() else { return };
            self.remove(*oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_holds_the_latest_and_no_more_than_its_bytes() {
        let mut cache = RenderCache::default();
        let text: Arc<[u8]> = vec![0; 1000].into();
        let put = |cache: &mut RenderCache, ix| {
            cache.insert(ix, (bytemuck::Zeroable::zeroed(), Arc::clone(&text)));
        };
        for ix in 0..10_000 {
            put(&mut cache, MsgIx::for_test(ix % 5000));
            assert!(cache.get(MsgIx::MIN).is_some(), "what is used stays");
        }
        let held = cache.by_message.iter().map(|(_, (_, bytes))| bytes.len() + EACH).sum::<usize>();
        assert!(held == cache.bytes && held <= KEPT && held > KEPT - 2000, "{held}");
        assert!(
            cache.get(MsgIx::for_test(4999)).is_some() && cache.get(MsgIx::for_test(1)).is_none()
        );
        (0..5000).for_each(|ix| cache.remove(MsgIx::for_test(ix)));
        assert_eq!((cache.bytes, cache.by_message.len()), (0, 0));
    }
}
