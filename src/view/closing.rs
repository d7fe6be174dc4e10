//! Handles that are about to be released.
//!
//! `close` tells us with a flush, which may also be that of a copy of the descriptor; the release
//! follows at once if it was the last, and nobody waits for it. Who looks at what the release
//! changes waits for it here, for as long as it could take.

use std::collections::HashMap;
use std::time::Instant;

use parking_lot::{Condvar, Mutex};

use crate::outbox::CLOSING;

/// The handles that were flushed and not yet released.
#[derive(Debug, Default)]
pub(super) struct Closing {
    until: Mutex<HashMap<usize, Instant>>,
    changed: Condvar,
}

impl Closing {
    /// A handle was flushed.
    pub fn flushed(&self, handle: usize) {
        self.until.lock().insert(handle, Instant::now() + CLOSING);
    }

    /// A handle was released, and what that changes is changed.
    pub fn released(&self, handle: usize) {
        self.until.lock().remove(&handle);
        self.changed.notify_all();
    }

    /// Waits for the releases that can be expected.
    pub fn wait(&self) {
        let mut until = self.until.lock();
        loop {
            let now = Instant::now();
            until.retain(|_, at| *at > now);
            let Some(last) = until.values().max().copied() else { return };
            self.changed.wait_until(&mut until, last);
        }
    }
}
