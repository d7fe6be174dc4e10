//! The signal by which threads wait for a change of the index.

use std::time::Instant;

use crate::model::locks::{Condvar, Mutex};

/// A count of changes on which threads wait.
#[derive(Default)]
pub struct ChangeSignal {
    count: Mutex<u64>,
    changed: Condvar,
}

impl ChangeSignal {
    /// Returns the number of notifications so far, for [`ChangeSignal::wait`].
    pub fn count(&self) -> u64 {
        *self.count.lock()
    }

    /// Waits until there was a notification since the count was `seen`, or until `deadline`. Returns the count to pass
    /// next time.
    pub fn wait(&self, seen: u64, deadline: Instant) -> u64 {
        let mut now = self.count.lock();
        while *now == seen {
            if self.changed.wait_until(&mut now, deadline) {
                break;
            }
        }
        *now
    }

    /// Lets all waiting threads go on, even if nothing changed.
    pub fn notify(&self) {
        *self.count.lock() += 1;
        self.changed.notify_all();
    }
}
