//! Reservations for accepted drafts that are not in the index yet: ids, so that the same text twice in one second gets
//! two ids; idempotency keys, so that a retry is recognised before its original is sent; and threads with their
//! participants, so that a new thread does not join one that is on its way.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use super::retry::DraftOutline;
use super::spool::SpoolParcel;

/// An idempotency key in use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct IdempotencyUse {
    pub key: String,
    /// The recipients of the message, as its store compares addresses.
    pub to: Vec<String>,
    pub outline: DraftOutline,
}

/// The reservation for one message.
#[derive(Debug)]
struct Reservation {
    thread: String,
    /// The recipients, joined by `", "`.
    to: String,
    keyed: Option<IdempotencyUse>,
}

/// All reservations, by store and id.
#[derive(Debug, Default)]
pub(super) struct Reservations(HashMap<(String, String), Reservation>);

impl Reservations {
    /// Adds the reservations of messages.
    pub fn insert_all(&mut self, parcels: &[SpoolParcel]) {
        for SpoolParcel { store, message, keyed } in parcels {
            let (thread, to) = (message.thread.clone(), message.to.clone());
            let reservation = Reservation { thread, to, keyed: keyed.clone() };
            self.0.insert((store.clone(), message.id.clone()), reservation);
        }
    }

    /// Returns true if the id of a message is reserved in a store.
    pub fn contains(&self, store: &str, id: &str) -> bool {
        self.0.contains_key(&(store.to_owned(), id.to_owned()))
    }

    /// Removes the reservations of messages.
    pub fn remove_all(&mut self, parcels: &[SpoolParcel]) {
        for parcel in parcels {
            self.0.remove(&(parcel.store.clone(), parcel.message.id.clone()));
        }
    }

    /// Returns the draft on its way to `to` under a key. `to` is an address as its store compares it.
    pub fn find_draft(&self, store: &str, to: &str, key: &str) -> Option<&DraftOutline> {
        let same = |k: &&IdempotencyUse| k.key == key && k.to.iter().any(|t| t == to);
        let keyed = self.iter_store(store).filter_map(|reservation| reservation.keyed.as_ref());
        keyed.into_iter().find(same).map(|k| &k.outline)
    }

    /// Returns the recipients of a thread's messages that are on their way.
    pub fn recipients_in_thread<'a>(
        &'a self,
        store: &str,
        thread: &str,
    ) -> impl Iterator<Item = &'a str> {
        let of_thread =
            self.iter_store(store).filter(move |reservation| reservation.thread == thread);
        of_thread.flat_map(|reservation| reservation.to.split(", "))
    }

    fn iter_store<'a>(&'a self, store: &str) -> impl Iterator<Item = &'a Reservation> {
        self.0
            .iter()
            .filter(move |((name, _), _)| name == store)
            .map(|(_, reservation)| reservation)
    }
}
