//! Unread messages as a bell counts them, and the name of a message in a path that a bell shows.

use super::folder_scope::FolderScope;
use super::{Error, Tree, names};
use crate::index::MsgIx;
use crate::model::plain_thread_id;
use crate::model::short_id::short_id;

/// An unread message from another agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnreadMail {
    /// A key that no other message has, now or later.
    pub key: String,
    /// Its sender.
    pub from: String,
    /// Its position in the index.
    pub ix: MsgIx,
}

/// The properties of a message by which a person says that it matters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MailUrgency {
    /// True if I am its only recipient.
    pub is_to_me_alone: bool,
    /// True if it answers a message of mine.
    pub answers_me: bool,
    /// Its priority, if its store has priorities and it is not the usual one.
    pub priority: Option<String>,
}

/// Returns the unread messages from other agents, oldest first.
pub fn list_unread_mail(tree: &Tree) -> Vec<UnreadMail> {
    let tables = tree.index.read();
    let mail = tables.messages.lists().unread().map(|ix| (ix, tables.messages.entry(ix)));
    let mail = mail.filter(|(_, e)| !e.is_from_me()).map(|(ix, e)| {
        let (store, from) = (tree.index.store_of(e).as_ref(), tables.messages.sender(e));
        let key = names::bell_key(store, from, &tables.messages.id(e), store.me());
        UnreadMail { key, from: from.to_owned(), ix }
    });
    mail.collect()
}

/// Returns true if one of these words is the sender of a message, the id of its thread, or the thread's name in
/// `threads/`.
pub fn is_named_by(tree: &Tree, mail: &UnreadMail, words: &[String]) -> bool {
    let is_word = |text: &str| words.iter().any(|word| word == text);
    let thread = tree.index.read().messages.entry(mail.ix).thread();
    let is_thread_word = || {
        let tables = tree.index.read();
        is_word(plain_thread_id(tables.threads.thread_id(&tables.messages, thread).0))
    };
    let is_folder_name =
        || tree.thread_names.thread_folder_name(thread).is_some_and(|name| is_word(&name));
    !words.is_empty() && (is_word(&mail.from) || is_thread_word() || is_folder_name())
}

/// Reads the properties by which a person says that a message matters.
///
/// # Errors
/// If the message is gone, or its store cannot be read.
pub fn read_mail_urgency(tree: &Tree, mail: &UnreadMail) -> Result<MailUrgency, Error> {
    let entry = tree.texts.live_entry(mail.ix)?;
    let message = tree.texts.read_record(mail.ix, &entry)?.message;
    let store = tree.index.store_of(&entry);
    let mut recipients = message.to.iter().chain(&message.cc);
    let is_mine = |id: &str| {
        let tables = tree.index.read();
        let mut mine = store.properties().my_addresses();
        mine.any(|me| tables.messages.find_message(entry.store(), me, id).is_some())
    };
    let priority = message.extra.iter().find(|(name, _)| *name == "Priority");
    Ok(MailUrgency {
        is_to_me_alone: recipients.all(|to| store.is_my_address(to)),
        answers_me: message.in_reply_to.as_deref().is_some_and(is_mine),
        priority: priority.map(|(_, priority)| priority.clone()),
    })
}

/// Returns the shortest name in `inbox/` of the unread message from another agent, if there is just one.
pub fn sole_unread_name(tree: &Tree) -> Option<String> {
    let ix: MsgIx = {
        let tables = tree.index.read();
        let is_mail = |ix: &MsgIx| !tables.messages.entry(*ix).is_from_me();
        let mut all = tables.messages.lists().unread().filter(is_mail);
        let first = all.next()?;
        all.next().is_none().then_some(first)?
    };
    let short = {
        let tables = tree.index.read();
        let name = short_id(&tables.messages.shown_id(ix));
        (tree.names.find_by_short_id(&tables, FolderScope::Inbox, &name) == Some(ix))
            .then_some(name)
    };
    if let Some(short) = short {
        return Some(short + ".txt");
    }
    let all = tree.unread_files(usize::MAX);
    all.into_iter().find(|(of, _)| *of == ix).map(|(_, name)| name)
}
