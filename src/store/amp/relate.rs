//! Ids and threads of messages, as the index knows them.

use std::borrow::Cow;

use super::boxes::{BY_ID, Kept};
use super::facts::digest;
use crate::model::hex;
use crate::store::engine::files::Table;

/// The thread a message begins. One whose id another message has already begins its own: nobody gets
/// into a thread by taking the id of its first message.
pub(super) fn thread_of<'a>(id: &'a str, twin: Option<&[u8; 32]>) -> Cow<'a, str> {
    match twin {
        None => id.into(),
        Some(hash) => format!("{id}~{}", hex(hash.first_chunk::<4>().unwrap_or(&[0; 4]))).into(),
    }
}

/// The id a message answers, spelled like that of the message it means if that is known: one client
/// turns every `_` of an id into `-`, in links and in the names of its own copies.
pub(super) fn spelled(table: &Table<Kept>, answers: String) -> String {
    let is_known = |id: &str| !table.with_key(BY_ID, digest(&[id])).is_empty();
    if is_known(&answers) {
        return answers;
    }
    let turned = answers.replace('_', "-");
    if is_known(&turned) { turned } else { answers }
}
