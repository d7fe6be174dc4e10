//! Files that hold one message, and messages that have one id.

use std::borrow::Cow;

use sha2::{Digest as _, Sha256};

use super::boxes::{BY_ID, Kept, Mailbox};
use super::edit::unmarked;
use super::envelope::Stored;
use super::facts::digest;
use crate::model::{TWIN, hex};
use crate::store::engine::files::Table;

/// How a message stands to those in other files.
pub(super) struct Relation {
    /// The hash that its id carries, if another message has the id.
    pub twin: Option<[u8; 32]>,
    /// The file that is reported for it: one in `inbox/`, where marks are kept, before one in `sent/`.
    pub primary: u32,
    /// One of the files lies in `sent/`.
    pub from_me: bool,
}

/// Compares a message, given by the number of its file and the prints of its id and content, with
/// those known. `before` are the prints of what the file held, if that was a message anybody saw.
pub(super) fn relate(
    table: &Table<Kept>,
    (n, key, content): (u32, u64, u64),
    before: Option<(u64, u64)>,
    bytes: &[u8],
) -> Relation {
    let others = table.with_key(BY_ID, key).into_iter().filter(|other| *other != n);
    let (copies, other): (Vec<u32>, Vec<u32>) =
        others.partition(|n| table.facts(*n).is_some_and(|kept| kept.content == content));
    let kept = before == Some((key, content));
    let replaced = before.is_some_and(|(k, _)| k == key);
    let twin = if kept {
        table.twins.get(&n).copied()
    } else if let Some(first) = copies.first() {
        table.twins.get(first).copied()
    } else if !other.is_empty() || replaced {
        // Of the file as it came: marks change it, and the id must stay, also without the cache.
        Some(Sha256::digest(unmarked(bytes)).into())
    } else {
        None
    };
    let mailbox = |n: u32| Mailbox::of(table.folder(n));
    let group = || std::iter::once(n).chain(copies.iter().copied());
    let primary = group().min_by_key(|n| (mailbox(*n), *n)).unwrap_or(n);
    let from_me = group().any(|n| mailbox(n) == Some(Mailbox::Sent));
    Relation { twin, primary, from_me }
}

/// The id under which the index knows a message.
pub(super) fn id_of<'a>(stored: &Stored<'a>, twin: Option<&[u8; 32]>) -> Cow<'a, str> {
    match twin {
        None => stored.id.clone(),
        Some(hash) => format!("{}{TWIN}{}", stored.id, hex(hash)).into(),
    }
}

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

/// Other files that hold this message.
pub(super) fn same_message(table: &Table<Kept>, n: u32, key: u64, content: u64) -> Vec<u32> {
    let same = |other: &u32| {
        *other != n && table.facts(*other).is_some_and(|kept| kept.content == content)
    };
    table.with_key(BY_ID, key).into_iter().filter(same).collect()
}
