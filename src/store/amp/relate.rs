//! Ids and threads of messages, as the index knows them.

use std::borrow::Cow;

use super::boxes::{
    AmpMailFolder, AmpTableFacts, BY_ALIAS, BY_ID, find_resent_copies, message_file_stem,
};
use super::facts::hash_texts;
use crate::model::encode_hex;
use crate::store::engine::files::FileTable;

/// The thread a message begins. One whose id another message has already begins its own: nobody gets
/// into a thread by taking the id of its first message.
pub(super) fn begun_thread_id<'a>(id: &'a str, twin: Option<&[u8; 32]>) -> Cow<'a, str> {
    match twin {
        None => id.into(),
        Some(hash) => {
            format!("{id}~{}", encode_hex(hash.first_chunk::<4>().unwrap_or(&[0; 4]))).into()
        }
    }
}

/// The id a message answers, as the message it means has it if that is known: one client turns every `_`
/// of an id into `-`, in links and in the names of its own copies, and what a link carried has one id where
/// it was written and others where it came.
pub(super) fn resolve_reply_id(table: &FileTable<AmpTableFacts>, answers: String) -> String {
    let known = |id: &str| table.files_with_key(BY_ID, hash_texts(&[id])).first().copied();
    let turned = || Some(answers.replace('_', "-")).filter(|id| known(id).is_some());
    if let Some(n) = known(&answers) {
        return find_shown_copy_id(table, n).unwrap_or(answers);
    }
    turned().or_else(|| find_id_by_alias(table, &answers)).unwrap_or(answers)
}

/// The id of the message that has this other id. What I wrote comes first: of what others send, they say
/// themselves what it is called.
fn find_id_by_alias(table: &FileTable<AmpTableFacts>, id: &str) -> Option<String> {
    let is_received =
        |n: &u32| AmpMailFolder::from_path(table.folder(*n)) != Some(AmpMailFolder::Sent);
    let found = table.files_with_key(BY_ALIAS, hash_texts(&[id])).into_iter();
    let n = found.min_by_key(|n| (is_received(n), *n))?;
    find_shown_copy_id(table, n).or_else(|| message_file_stem(table.name(n)).map(str::to_owned))
}

/// The id under which a message is shown of which there is a double; `None` if it is its own.
fn find_shown_copy_id(table: &FileTable<AmpTableFacts>, n: u32) -> Option<String> {
    let kept = table.facts(n)?;
    let mailbox = |n: &u32| AmpMailFolder::from_path(table.folder(*n));
    let first = find_resent_copies(table, n, kept).into_iter().min_by_key(|n| (mailbox(n), *n))?;
    let id = || message_file_stem(table.name(first)).map(str::to_owned);
    if (mailbox(&first), first) < (mailbox(&n), n) { id() } else { None }
}
