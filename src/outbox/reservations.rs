//! Reservations for accepted drafts that are not in the index yet: ids, so that the same text twice in one second gets
//! two ids; idempotency keys, so that a retry is recognised before its original is sent; and threads with their
//! participants, so that a new thread does not join one that is on its way.

use std::collections::HashMap;

use super::retry::DraftOutline;
use super::spool::SpoolParcel;

/// An idempotency key in use.
#[derive(Clone, Debug, PartialEq, Eq)]
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
    pub fn insert(&mut self, parcel: &SpoolParcel, keyed: Option<IdempotencyUse>) {
        let message = &parcel.message;
        let reservation =
            Reservation { thread: message.thread.clone(), to: message.to.clone(), keyed };
        self.0.insert((parcel.store.clone(), message.id.clone()), reservation);
    }

    pub fn contains(&self, store: &str, id: &str) -> bool {
        self.0.contains_key(&(store.to_owned(), id.to_owned()))
    }

    /// Removes the reservation of a message and returns its idempotency key.
    pub fn remove(&mut self, parcel: &SpoolParcel) -> Option<IdempotencyUse> {
        self.0.remove(&(parcel.store.clone(), parcel.message.id.clone()))?.keyed
    }

    /// Removes the reservations of messages.
    pub fn remove_all(&mut self, parcels: &[SpoolParcel]) {
        for parcel in parcels {
            self.remove(parcel);
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
