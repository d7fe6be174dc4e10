//! What a store needs to write a message, and what it makes of a draft.

use std::cell::Cell;

use super::StoreError;
use crate::model::{DraftAttachment, Message, PublicKey, Timestamp};

/// How well a recipient's name fits a store's address grammar.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum AddressFit {
    /// Not an address of this store.
    No,
    /// An address of this store, but one that is never meant unless the store is named.
    Via,
    /// A name that could be one among other things.
    Plain,
    /// The form that only this kind of store uses.
    Exact,
}

/// Signs on behalf of me; implemented by the identity layer.
pub trait Signer: Send + Sync {
    /// The public half of the key.
    fn public_key(&self) -> PublicKey;
    /// An Ed25519 signature over `bytes`.
    fn sign(&self, bytes: &[u8]) -> [u8; 64];
}

/// What [`Outgoing::prepare`](super::Outgoing::prepare) needs besides the draft.
pub struct PrepareContext<'a> {
    /// The moment of sending: later than that of the parent.
    pub now: Timestamp,
    /// The message that is answered, if it is known.
    pub parent: Option<&'a Message>,
    /// Signs the records.
    pub signer: &'a dyn Signer,
    /// Whether I already have a message with this id, so that a second message with the same text
    /// in the same second gets another.
    pub is_id_taken: &'a dyn Fn(&str) -> bool,
    /// The moment that was used, where another than `now` had to be.
    pub used_time: Cell<Timestamp>,
    /// Whether a thread of this id has people who are none of these, or not all of these.
    pub has_other_people: &'a dyn Fn(&str, &[&str]) -> bool,
    /// Tells of a thread id that it has messages, or will have those that are on their way.
    pub is_thread_begun: &'a dyn Fn(&str) -> bool,
}

impl<'a> PrepareContext<'a> {
    /// A first message, where nothing is taken.
    pub fn new(now: Timestamp, signer: &'a dyn Signer) -> Self {
        let used = Cell::new(now);
        let (taken, others, begun) =
            (&|_: &str| false, &|_: &str, _: &[&str]| false, &|_: &str| false);
        Self {
            now,
            parent: None,
            signer,
            is_id_taken: taken,
            used_time: used,
            has_other_people: others,
            is_thread_begun: begun,
        }
    }

    /// The id of a conversation that begins now among these people: the one that follows from the
    /// text, or with `-2`, `-3` … at its end if others have a conversation of that id.
    pub fn new_thread_id(&self, id: String, people: &[&str]) -> String {
        next_free_id(id, |id| (self.has_other_people)(id, people))
    }

    /// Returns the id of a conversation that begins now and is no other's, whoever is in it: this one, or one
    /// with `-2`, `-3` … at its end.
    pub fn unused_thread_id(&self, id: String) -> String {
        next_free_id(id, self.is_thread_begun)
    }
}

/// Returns this id, or one with a number at its end, that is not taken. Takes few questions where many are taken.
fn next_free_id(id: String, is_taken: impl Fn(&str) -> bool) -> String {
    if !is_taken(&id) {
        return id;
    }
    let numbered = |n: u64| format!("{id}-{n}");
    // `last` is taken, or the plain id.
    let (mut last, mut next) = (1u64, 2);
    while is_taken(&numbered(next)) {
        (last, next) = (next, next.saturating_mul(2));
    }
    while next - last > 1 {
        let middle = last + (next - last) / 2;
        if is_taken(&numbered(middle)) { last = middle } else { next = middle }
    }
    numbered(next)
}

/// Refuses header lines that a message of a kind has no place for: what is written is not dropped in silence.
///
/// # Errors
/// [`StoreError::Invalid`] for the first that is there.
pub fn refuse_headers(message: &str, lines: &[(&str, bool)]) -> Result<(), StoreError> {
    match lines.iter().find(|(_, is_there)| *is_there) {
        Some((name, _)) => Err(StoreError::Invalid(format!(
            "{name}: {message} has no such member; remove the line"
        ))),
        None => Ok(()),
    }
}

/// One message ready to be appended, byte for byte. It survives in the spool until it is in the
/// store.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct PreparedRecord {
    /// Whom it goes to.
    pub to: String,
    /// Its id in the store.
    pub id: String,
    /// The thread it belongs to.
    pub thread: String,
    /// The exact bytes the store appends (for SAMP: the line without its newline).
    pub bytes: String,
    /// The files that go along.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<DraftAttachment>,
}

/// Whether an append waits for the disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Durability {
    /// `fdatasync` before the append counts as done.
    #[default]
    Fsync,
    /// The kernel decides when.
    None,
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::next_free_id;

    #[test]
    fn the_first_number_that_is_free_is_taken_with_few_questions() {
        for taken in [0u64, 1, 2, 3, 4, 7, 8, 9, 100, 4096, 100_000] {
            let asked = Cell::new(0);
            let is_taken = |id: &str| {
                asked.set(asked.get() + 1);
                id.strip_prefix("x").is_some_and(|n| match n.strip_prefix('-') {
                    Some(n) => n.parse::<u64>().unwrap() <= taken,
                    None => taken > 0,
                })
            };
            let wanted = match taken {
                0 => "x".to_owned(),
                n => format!("x-{}", n + 1),
            };
            assert_eq!(next_free_id("x".to_owned(), is_taken), wanted);
            assert!(asked.get() < 40, "{} questions", asked.get());
        }
    }
}
