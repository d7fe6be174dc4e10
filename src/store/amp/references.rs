//! Ids and threads of messages, as the index knows them.

use std::borrow::Cow;

use super::facts::hash_texts;
use super::format::{AmpMailFolder, find_resent_copies, message_file_stem};
use super::table_facts::{AmpTableFacts, BY_ALIAS, BY_ID};
use crate::model::encode_hex;
use crate::store::engine::files::FileTable;

/// Returns the thread that a message begins. If another message had the id first, the thread gets a hash: nobody enters
/// a thread by using the id of its first message.
pub(super) fn begun_thread_id<'a>(id: &'a str, qualifier: Option<&[u8; 32]>) -> Cow<'a, str> {
    match qualifier {
        None => id.into(),
        Some(hash) => {
            format!("{id}~{}", encode_hex(hash.first_chunk::<4>().unwrap_or(&[0; 4]))).into()
        }
    }
}

/// Returns the id that a message answers, in the spelling of the message it means, if that is known. One client turns
/// every `_` of an id into `-`, in replies and in the names of its own copies. A carried message has one id at its
/// origin and others at its destinations.
pub(super) fn resolve_reply_id(table: &FileTable<AmpTableFacts>, answers: String) -> String {
    let known = |id: &str| table.files_with_key(BY_ID, hash_texts(&[id])).first().copied();
    let turned = || Some(answers.replace('_', "-")).filter(|id| known(id).is_some());
    if let Some(n) = known(&answers) {
        return find_shown_copy_id(table, n).unwrap_or(answers);
    }
    turned().or_else(|| find_id_by_alias(table, &answers)).unwrap_or(answers)
}

/// Returns the id of the message that has this other id. My own messages come first, because other senders choose these
/// names themselves.
fn find_id_by_alias(table: &FileTable<AmpTableFacts>, id: &str) -> Option<String> {
    let is_received =
        |n: &u32| AmpMailFolder::from_path(table.folder(*n)) != Some(AmpMailFolder::Sent);
    let found = table.files_with_key(BY_ALIAS, hash_texts(&[id])).into_iter();
    let n = found.min_by_key(|n| (is_received(n), *n))?;
    find_shown_copy_id(table, n).or_else(|| message_file_stem(table.name(n)).map(str::to_owned))
}

/// Returns the id under which a resent message is shown; `None` if it is its own.
fn find_shown_copy_id(table: &FileTable<AmpTableFacts>, n: u32) -> Option<String> {
    let kept = table.facts(n)?;
    let mailbox = |n: &u32| AmpMailFolder::from_path(table.folder(*n));
    let first = find_resent_copies(table, n, kept).into_iter().min_by_key(|n| (mailbox(n), *n))?;
    let id = || message_file_stem(table.name(first)).map(str::to_owned);
    if (mailbox(&first), first) < (mailbox(&n), n) { id() } else { None }
}
