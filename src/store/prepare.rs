//! The context in which a store prepares a draft, and the records that it makes of it.

use std::cell::Cell;

use super::StoreError;
use crate::model::{DraftAttachment, Message, PublicKey, Timestamp};

/// The degree to which a recipient's name fits a store's address grammar.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum AddressFit {
    /// A name that is not an address of this store.
    No,
    /// An address of this store that is only meant if the store is named or has messages of it.
    Via,
    /// A name that could be an address of this store, among other things.
    Plain,
    /// A form that only this kind of store uses.
    Exact,
}

/// A signer on behalf of me. The identity layer implements it.
pub trait Signer: Send + Sync {
    /// Returns the public half of the key.
    fn public_key(&self) -> PublicKey;
    /// Returns an Ed25519 signature over `bytes`.
    fn sign(&self, bytes: &[u8]) -> [u8; 64];
}

/// The context of [`MessageAppender::prepare_records`](super::MessageAppender::prepare_records) besides the draft.
pub struct PrepareContext<'a> {
    /// The time of sending, which is later than that of the parent.
    pub now: Timestamp,
    /// The message that is answered, if it is known.
    pub parent: Option<&'a Message>,
    /// The signer of the records.
    pub signer: &'a dyn Signer,
    /// A function that returns true if I already have a message with this id. A second message with the same text in
    /// the same second then gets another id.
    pub is_id_taken: &'a dyn Fn(&str) -> bool,
    /// The time that was used, if it had to be another than `now`.
    pub used_time: Cell<Timestamp>,
    /// A function that returns true if the people of a thread with this id are others than these.
    pub has_other_people: &'a dyn Fn(&str, &[&str]) -> bool,
    /// A function that returns true if a thread id has messages, or will have those that are on their way.
    pub is_thread_begun: &'a dyn Fn(&str) -> bool,
}

impl<'a> PrepareContext<'a> {
    /// Returns the context of a first message, where no id is taken.
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

    /// Returns the id of a thread that begins now among these people. It is the given id, which follows from the text,
    /// or that id with `-2`, `-3` … at its end if others have a thread of that id.
    pub fn new_thread_id(&self, id: String, people: &[&str]) -> String {
        next_free_id(id, |id| (self.has_other_people)(id, people))
    }

    /// Returns the id of a thread that begins now and is no other's, whoever is in it. It is this id, or one with
    /// `-2`, `-3` … at its end.
    pub fn unused_thread_id(&self, id: String) -> String {
        next_free_id(id, self.is_thread_begun)
    }
}

/// Returns this id, or one with a number at its end, that is not taken. It tests few ids where many are taken.
fn next_free_id(id: String, is_taken: impl Fn(&str) -> bool) -> String {
    if !is_taken(&id) {
        return id;
    }
    let numbered = |n: u64| format!("{id}-{n}");
    // The id with `last` is taken, or the plain id.
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

/// Fails if a draft has header lines for which a message of a kind has no member, so that no line is dropped in
/// silence.
///
/// # Errors
/// [`StoreError::Invalid`] for the first such line.
pub fn refuse_headers(message: &str, lines: &[(&str, bool)]) -> Result<(), StoreError> {
    match lines.iter().find(|(_, is_there)| *is_there) {
        Some((name, _)) => Err(StoreError::Invalid(format!(
            "{name}: {message} has no place for it; remove the line"
        ))),
        None => Ok(()),
    }
}

/// One message ready to be appended, byte for byte. It survives in the spool until it is in the store.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct PreparedRecord {
    /// The recipient.
    pub to: String,
    /// Its id in the store.
    pub id: String,
    /// Its thread.
    pub thread: String,
    /// The exact bytes that the store appends (for SAMP: the line without its newline).
    pub bytes: String,
    /// Its attachments.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<DraftAttachment>,
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
