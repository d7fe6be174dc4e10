//! What was promised to drafts and is not in the index yet: ids, so that the same text twice in one
//! second gets two, and idempotency keys, so that a retry is recognised before its original is sent.

use std::collections::HashMap;

use super::spool::Parcel;

/// An idempotency key in use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Keyed {
    pub key: String,
    /// Whom the message goes to, as its store compares addresses.
    pub to: Vec<String>,
    pub body: String,
}

/// Reserved ids by store and id, with the key their message carries.
#[derive(Debug, Default)]
pub(super) struct Reserved(HashMap<(String, String), Option<Keyed>>);

impl Reserved {
    pub fn add(&mut self, parcel: &Parcel, keyed: Option<Keyed>) {
        self.0.insert((parcel.store.clone(), parcel.message.id.clone()), keyed);
    }

    pub fn has(&self, store: &str, id: &str) -> bool {
        self.0.contains_key(&(store.to_owned(), id.to_owned()))
    }

    /// Gives back what was reserved for a message.
    pub fn remove(&mut self, parcel: &Parcel) -> Option<Keyed> {
        self.0.remove(&(parcel.store.clone(), parcel.message.id.clone())).flatten()
    }

    /// Gives back what was reserved for messages.
    pub fn forget(&mut self, parcels: &[Parcel]) {
        for parcel in parcels {
            self.remove(parcel);
        }
    }

    /// The text that goes to `to`, an address as its store compares it, under a key.
    pub fn text(&self, store: &str, to: &str, key: &str) -> Option<&str> {
        let same = |k: &&Keyed| k.key == key && k.to.iter().any(|t| t == to);
        let of_store = self.0.iter().filter(|((s, _), _)| s == store);
        of_store.filter_map(|(_, k)| k.as_ref()).find(same).map(|k| k.body.as_str())
    }
}
