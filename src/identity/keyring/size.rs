//! Limits of what messages bring into the keyring. Anybody who writes in a store can have keys pinned and refused, and
//! a file that is too large to be read would cost me every pin.

use serde_json::Value;

use crate::identity::disk;
use crate::store::fs::Stamp;

/// The largest address that gets a key from a message, in bytes.
pub(super) const MAX_ADDRESS: usize = 1 << 10;

/// The size from which messages bring no more keys. The rest is for the keys that a person trusts.
pub(super) const FULL: u64 = disk::MAX_BYTES / 4 * 3;

/// The size of a new key with one address, without the text of the address.
const ENTRY_BYTES: u64 = 600;

/// The size of the file with the keys that are not written yet, as far as they can be estimated.
#[derive(Debug, Default)]
pub(super) struct KeyringSize(u64);

impl KeyringSize {
    /// Returns the size of a file with this stamp; `None` is no file.
    pub(super) fn of_file(stamp: Option<Stamp>) -> Self {
        Self(stamp.map_or(0, |stamp| stamp.size))
    }

    /// Returns true if messages bring no more keys.
    pub(super) fn is_full(&self) -> bool {
        self.0 >= FULL
    }

    /// Adds a key that a message brings for an address. Returns false if there is no room for it.
    pub(super) fn add_key(&mut self, address: &str) -> bool {
        if self.is_full() || address.len() > MAX_ADDRESS {
            return false;
        }
        // The address is the name of its pin, too.
        let text = Value::from(address).to_string().len() as u64;
        self.0 += ENTRY_BYTES + 2 * text;
        true
    }
}
