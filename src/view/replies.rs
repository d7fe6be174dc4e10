//! Drafts beside messages: the replies to them, and the drafts in a thread's folder. All functions take the folder of
//! messages in which a program names the draft.

use std::sync::Arc;

use super::file::{OpenFile, OpenRequest};
use super::folder_scope::FolderScope;
use super::messages::MessagesKey;
use super::node::{Node, NodeProperty};
use super::sidecars::MessageFile;
use super::table::{NodeAttributes, ViewKey};
use super::{Error, Tree};
use crate::index::{MsgIx, ThreadIx};
use crate::model::MessageKey;
use crate::outbox::names::is_private;
use crate::outbox::{DraftTarget, OutboxEntry};

/// Returns the reason why a name beside a message cannot be written: there is no message to answer or
/// acknowledge. Returns `None` for any other name.
pub(super) fn explain_missing(name: &str) -> Option<&'static str> {
    let (_, ending) = name.rsplit_once('.')?;
    match ending {
        "reply" | "reply-all" => Some("there is no message of this name to answer"),
        "ack" => Some("no message of this name asks you for an acknowledgement"),
        _ => None,
    }
}

/// Returns the stem of the message whose `.reply` a program makes under a private name. Programs that save in
/// one step do so: `X` in `X.reply.tmp.7f2c`, `.X.reply.Ab12Cd` and `X.reply~`.
fn private_reply_stem(name: &str) -> Option<&str> {
    let (stem, _) = name.trim_start_matches(['.', '#']).rsplit_once(".reply")?;
    is_private(name).then_some(stem)
}

/// Opens a draft to read or to write it.
pub(super) fn open_draft(
    tree: &Tree,
    key: &MessagesKey,
    access: &OpenRequest,
) -> Result<OpenFile, Error> {
    if access.write {
        tree.writable_outbox()?;
        let (name, target) = draft_target(tree, key)?;
        return tree.writer().start_draft(&name, target, access);
    }
    let outbox = tree.outbox.as_ref().ok_or(Error::NotFound)?;
    let (name, target) = draft_target(tree, key)?;
    let text = match key {
        // The reply does not exist yet, so an editor begins with an empty text.
        MessagesKey::File(_, _, file) if file.begins_empty() => Some(Arc::default()),
        _ => outbox.read_text(&name, &target),
    };
    Ok(OpenFile::from_bytes(text.ok_or(Error::NotFound)?))
}

/// Returns the name and the target of a draft.
pub(super) fn draft_target(tree: &Tree, key: &MessagesKey) -> Result<(String, DraftTarget), Error> {
    match key {
        MessagesKey::ThreadDraft(thread, name) => Ok((name.clone(), thread_target(tree, *thread)?)),
        MessagesKey::File(_, ix, MessageFile::Reply) => Ok(reply_target(tree, *ix, false)),
        MessagesKey::File(_, ix, MessageFile::ReplyAll) => Ok(reply_target(tree, *ix, true)),
        MessagesKey::File(_, ix, MessageFile::Draft(name)) => {
            Ok((name.clone(), reply_target(tree, *ix, false).1))
        }
        _ => Err(tree.writer().not_writable_error(&key.clone().into())),
    }
}

/// Returns the name and the target of a reply to a message; with `all`, of a reply to all its recipients.
fn reply_target(tree: &Tree, ix: MsgIx, all: bool) -> (String, DraftTarget) {
    let name = tree.names.message_name(ix);
    let stem = name.trim_end_matches(".txt");
    let MessageKey { store, from, id } = tree.index.message_key(ix);
    if all {
        (format!("{stem}.reply-all"), DraftTarget::ReplyAll { store, from, id })
    } else {
        (format!("{stem}.reply"), DraftTarget::Reply { store, from, id })
    }
}

fn thread_target(tree: &Tree, thread: ThreadIx) -> Result<DraftTarget, Error> {
    let tables = tree.index.read();
    let (id, number) = tables.threads.thread_id(&tables.messages, thread);
    let store = tree.index.stores().get(number).ok_or(Error::NotFound)?;
    Ok(DraftTarget::Thread { store: store.name().to_owned(), id: id.to_owned() })
}

/// Returns the draft of a new name: an unfinished reply to a message under a private name, or a draft of the thread.
pub(super) fn name_new_draft(tree: &Tree, folder: FolderScope, name: &str) -> Option<MessagesKey> {
    let answer =
        private_reply_stem(name).and_then(|stem| tree.names.find_message_by_stem(folder, stem));
    match (answer, folder) {
        (Some(ix), _) => {
            let file = MessageFile::Draft(name.to_owned());
            Some(MessagesKey::File(folder.message_folder(), ix, file))
        }
        (None, FolderScope::Thread(thread)) => {
            Some(MessagesKey::ThreadDraft(thread, name.to_owned()))
        }
        (None, _) => None,
    }
}

/// Returns the attributes of a draft.
pub(super) fn stat_draft(tree: &Tree, key: &MessagesKey) -> Result<NodeAttributes, Error> {
    let draft = find_written(tree, key).ok_or(Error::NotFound)?;
    Ok(NodeAttributes::of_draft(0o600, draft.len, draft.time))
}

/// Returns the outbox entry of a draft, if there is one now.
fn find_written(tree: &Tree, draft: &MessagesKey) -> Option<OutboxEntry> {
    let (name, target) = draft_target(tree, draft).ok()?;
    tree.outbox.as_ref()?.find_draft(&name, &target)
}

/// Finds the draft of this name, if there is one now.
pub(super) fn find_draft(tree: &Tree, folder: FolderScope, name: &str) -> Option<MessagesKey> {
    name_new_draft(tree, folder, name).filter(|draft| find_written(tree, draft).is_some())
}

/// Returns true if a file of this name may be the reply to a message.
pub fn has_reply_ending(name: &str) -> bool {
    matches!(name.rsplit_once('.'), Some((_, "reply" | "reply-all")))
}

/// Finds the reply to a message, or to all its recipients, by its name.
pub(super) fn find_reply(
    tree: &Tree,
    folder: FolderScope,
    name: &str,
) -> Result<Option<Node>, Error> {
    if !has_reply_ending(name) {
        return Ok(None);
    }
    let found = tree.find_message(folder, name)?;
    Ok(found.filter(|node| node.has(NodeProperty::StaysWhenRemoved)))
}

/// Returns the node that a draft becomes under a new name: the reply to a message, or a draft. A message, or a file
/// beside one, is returned too, and [`draft_target`] refuses it.
pub(super) fn find_new_target(
    tree: &Tree,
    folder: FolderScope,
    name: &str,
) -> Result<MessagesKey, Error> {
    let found = tree.find_message(folder, name)?;
    if let Some(ViewKey::Messages(key)) = found.as_ref().map(Node::key) {
        return Ok(key.clone());
    }
    if let Some(why) = explain_missing(name) {
        return Err(Error::Missing(why.to_owned()));
    }
    name_new_draft(tree, folder, name).ok_or_else(|| {
        Error::not_permitted(
            "an answer is sent under the name of its message, with .reply in place of .txt",
        )
    })
}

/// Finds the note about a refused reply, under the name of the reply in the folder of the reply. Returns its name in
/// `outbox/`.
pub(super) fn find_error_note(tree: &Tree, folder: FolderScope, name: &str) -> Option<String> {
    let draft = name.strip_suffix(".error")?;
    tree.settle_pending_messages();
    let answered = draft.rsplit_once('.').and_then(|(stem, ending)| {
        let ix = tree.names.find_message_by_stem(folder, stem)?;
        let file = match ending {
            "reply" => MessageFile::Reply,
            "reply-all" => MessageFile::ReplyAll,
            _ => return None,
        };
        Some(MessagesKey::File(folder.message_folder(), ix, file))
    });
    let key = answered.or_else(|| name_new_draft(tree, folder, draft))?;
    let (name, target) = draft_target(tree, &key).ok()?;
    tree.outbox.as_ref()?.note_name(&name, &target)
}
