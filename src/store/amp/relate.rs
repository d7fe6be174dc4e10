//! Ids and threads of messages, as the index knows them.

use std::borrow::Cow;

use super::boxes::{BY_ALIAS, BY_ID, Kept, Mailbox, doubles, stem_of};
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

/// The id a message answers, as the message it means has it if that is known: one client turns every `_`
/// of an id into `-`, in links and in the names of its own copies, and what a link carried has one id where
/// it was written and others where it came.
pub(super) fn spelled(table: &Table<Kept>, answers: String) -> String {
    let known = |id: &str| table.with_key(BY_ID, digest(&[id])).first().copied();
    let turned = || Some(answers.replace('_', "-")).filter(|id| known(id).is_some());
    if let Some(n) = known(&answers) {
        return shown_in_its_place(table, n).unwrap_or(answers);
    }
    turned().or_else(|| named_otherwise(table, &answers)).unwrap_or(answers)
}

/// The id of the message that has this other id. What I wrote comes first: of what others send, they say
/// themselves what it is called.
fn named_otherwise(table: &Table<Kept>, id: &str) -> Option<String> {
    let is_received = |n: &u32| Mailbox::of(table.folder(*n)) != Some(Mailbox::Sent);
    let found = table.with_key(BY_ALIAS, digest(&[id])).into_iter();
    let n = found.min_by_key(|n| (is_received(n), *n))?;
    shown_in_its_place(table, n).or_else(|| stem_of(table.name(n)).map(str::to_owned))
}

/// The id under which a message is shown of which there is a double; `None` if it is its own.
fn shown_in_its_place(table: &Table<Kept>, n: u32) -> Option<String> {
    let kept = table.facts(n)?;
    let mailbox = |n: &u32| Mailbox::of(table.folder(*n));
    let first = doubles(table, n, kept).into_iter().min_by_key(|n| (mailbox(n), *n))?;
    let id = || stem_of(table.name(first)).map(str::to_owned);
    if (mailbox(&first), first) < (mailbox(&n), n) { id() } else { None }
}
