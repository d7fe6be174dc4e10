//! Unread messages as a bell counts them, and the name of a message in a path that a bell shows.

use super::folder_scope::FolderScope;
use super::{Tree, names};
use crate::index::MsgIx;

/// An unread message from another agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnreadMail {
    /// A key that no other message has, now or later.
    pub key: String,
    /// Its sender.
    pub from: String,
}

/// Returns the unread messages from other agents, oldest first.
pub fn list_unread_mail(tree: &Tree) -> Vec<UnreadMail> {
    let core = tree.index.read();
    let entries =
        core.messages.inbox().map(|ix| core.messages.entry(ix)).filter(|e| !e.is_from_me());
    let mail = entries.map(|e| {
        let (store, from) = (tree.index.store_of(e).as_ref(), core.messages.sender(e));
        let key = names::bell_key(store, from, &core.messages.id(e), store.me());
        UnreadMail { key, from: from.to_owned() }
    });
    mail.collect()
}

/// Returns the shortest name in `inbox/` of the unread message from another agent, if there is just one.
pub fn sole_unread_name(tree: &Tree) -> Option<String> {
    let ix: MsgIx = {
        let core = tree.index.read();
        let is_mail = |ix: &MsgIx| !core.messages.entry(*ix).is_from_me();
        let mut all = core.messages.inbox().filter(is_mail);
        let first = all.next()?;
        all.next().is_none().then_some(first)?
    };
    let short = {
        let core = tree.index.read();
        let name = names::short_id(&core.messages.shown_id(ix));
        (tree.names.find_by_short_id(&core, FolderScope::Inbox, &name) == Some(ix)).then_some(name)
    };
    if let Some(short) = short {
        return Some(short + ".txt");
    }
    let all = tree.unread_files(usize::MAX);
    all.into_iter().find(|(of, _)| *of == ix).map(|(_, name)| name)
}
