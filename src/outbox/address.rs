//! Addressing: a draft's recipients and its thread, from its headers, its name and the place where it was written
//! (docs/SEMANTICS.md, S46 and S51 to S53).

use std::collections::BTreeSet;
use std::sync::Arc;

use super::{
    DraftTarget, IDEMPOTENCY_WINDOW_MS, OutboxError, draft, find_store, names, route, whole_message,
};
use crate::index::{Index, IndexEntry, IndexTables, MsgIx, ThreadIx};
use crate::model::short_id::short_id;
use crate::model::{Draft, ORIGIN, Timestamp, plain_id, plain_thread_id, sanitize_line};
use crate::store::{Kind, Store};

/// The message that a draft answers, if it is known here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ReplyParent {
    /// Number of the store it lies in.
    pub store: usize,
    /// The message.
    pub ix: MsgIx,
    /// True if its id was filled into the draft, not written there.
    pub filled_id: bool,
    /// True if its thread was filled into the draft, not written there.
    pub filled_thread: bool,
}

/// The values that a reply takes from the answered message.
struct ReplyDefaults {
    store: usize,
    ix: MsgIx,
    to: Vec<String>,
    thread: String,
    id: String,
    /// The newest messages of its thread to me, if they came from several senders at the same time.
    tied: Vec<MsgIx>,
}

/// Completes the draft: recipients, thread, the message it answers, the store that carries it.
///
/// # Errors
/// If nobody or several could be meant.
pub(super) fn complete_draft(
    index: &Index,
    draft: &mut Draft,
    name: &str,
    target: &DraftTarget,
) -> Result<Option<ReplyParent>, OutboxError> {
    whole_message::address_whole_message(index.stores(), draft, target);
    let tables = index.read();
    let original = resolve_target(&tables, index, draft, target)?;
    resolve_mail_id(&tables, index, draft);
    let thread = draft.thread.clone().or_else(|| original.as_ref().map(|o| o.thread.clone()));
    let said = find_named_message(&tables, index, draft, thread.as_deref())?;
    let original = match original {
        Some(thread) if !thread.tied.is_empty() => {
            Some(settle_tie(&tables, index, draft, thread, said)?)
        }
        other => other.or_else(|| Some(reply_to_message(&tables, index, said?))),
    };
    let mut answered = None;
    if let Some(original) = original {
        draft.is_reply = true;
        let (gave_id, gave_thread) = (draft.in_reply_to.is_none(), draft.thread.is_none());
        answered = Some(ReplyParent {
            store: original.store,
            ix: original.ix,
            filled_id: gave_id,
            filled_thread: gave_thread,
        });
        draft.in_reply_to.get_or_insert(original.id);
        continue_thread(index, draft, original.store, original.thread);
        let store = index.stores().get(original.store).map(|s| s.name().to_owned());
        if *target == DraftTarget::Outbox {
            draft.answered_store = store;
        } else {
            if draft.to.is_empty() {
                draft.to = original.to;
                draft.to_is_inherited = true;
            }
            draft.via = draft.via.take().or(store);
        }
    }
    if let (Some(answered), Some(ix)) = (&mut answered, said) {
        // A header that names another message than the one it was written beside wins.
        answered.ix = ix;
        answered.store = tables.messages.entry(ix).store();
        if let Some(shared) = tables.messages.shared_id(ix) {
            // The header may have the id of one record.
            draft.in_reply_to = Some(shared);
        }
    }
    if draft.to.is_empty() && draft.bcc.is_empty() && *target == DraftTarget::Outbox {
        draft.to.push(names::recipient_in_name(name).to_owned());
        draft.to_is_name = true;
    }
    draft.is_typed = *target == DraftTarget::Outbox && names::is_command_draft_name(name);
    // A store gives an empty recipient for a whole message that names none.
    draft.to.retain(|to| draft.is_whole || !to.is_empty());
    if draft.to.is_empty() && draft.bcc.is_empty() {
        return Err(OutboxError::NoRecipient(match target {
            DraftTarget::Outbox => {
                "nobody is named as recipient; write to outbox/NAME, or begin the \
                               text with a line `To: NAME`"
                    .into()
            }
            DraftTarget::Reply { .. } | DraftTarget::ReplyAll { .. } => {
                "the message that is answered names no sender; begin the text \
                                     with a line `To: NAME`"
                    .into()
            }
            DraftTarget::Thread { .. } => {
                "this thread names nobody who can be answered; begin the \
                text with a line `To: NAME`"
                    .into()
            }
        }));
    }
    Ok(answered)
}

/// Returns the message that a draft answers because of the place where it was written. A draft in a thread without
/// messages becomes its first message.
fn resolve_target(
    tables: &IndexTables,
    index: &Index,
    draft: &mut Draft,
    target: &DraftTarget,
) -> Result<Option<ReplyDefaults>, OutboxError> {
    Ok(match target {
        DraftTarget::Outbox => None,
        DraftTarget::Reply { store, from, id } | DraftTarget::ReplyAll { store, from, id } => {
            let (number, _) = find_store(index, store).ok_or(OutboxError::NotFound)?;
            let ix = tables.messages.find_message(number, from, id).ok_or(OutboxError::NotFound)?;
            let mut original = reply_to_message(tables, index, ix);
            if matches!(target, DraftTarget::ReplyAll { .. }) {
                original.to.extend(other_recipients(tables, index, ix, &original.to));
            }
            Some(original)
        }
        DraftTarget::Thread { store, id } => {
            let (number, _) = find_store(index, store).ok_or(OutboxError::NotFound)?;
            let thread = tables
                .threads
                .find_thread(&tables.messages, number, id)
                .ok_or(OutboxError::NotFound)?;
            if tables.threads.empty_thread_time(thread).is_some()
                && tables.threads.thread_messages(&tables.messages, thread).is_empty()
            {
                begin_thread(index, draft, number, id);
                None
            } else {
                Some(reply_to_thread(tables, index, thread)?)
            }
        }
    })
}

/// Makes the draft the first message of a thread that exists without any.
fn begin_thread(index: &Index, draft: &mut Draft, number: usize, id: &str) {
    let Some(store) = index.stores().get(number) else { return };
    draft.is_reply = true;
    continue_thread(index, draft, number, id.to_owned());
    if draft.to.is_empty() {
        draft.to.extend(store.properties().default_recipient.map(str::to_owned));
        draft.to_is_inherited = true;
    }
    draft.via.get_or_insert_with(|| store.name().to_owned());
}

/// Continues a thread of a store with the draft, unless the draft names another. People see and write ids without
/// labels.
fn continue_thread(index: &Index, draft: &mut Draft, number: usize, id: String) {
    if draft.task.is_some() {
        // The task is the thread.
        return;
    }
    let origins = index.stores().get(number).is_some_and(|s| s.properties().has_thread_labels());
    let same = |said: &String| origins && said == plain_thread_id(&id);
    if draft.thread.as_ref().is_none_or(same) {
        draft.thread = Some(id);
    }
}

/// Returns the full id of the thread that a person's id means, in a store whose ids may carry labels: the one without a
/// label, or the only one with one.
pub(super) fn resolve_thread_label(tables: &IndexTables, store: usize, id: String) -> String {
    if id.contains(ORIGIN)
        || tables
            .threads
            .find_thread(&tables.messages, store, &id)
            .is_some_and(|t| tables.threads.has_thread_folder(t, true))
    {
        return id;
    }
    let all = tables
        .threads
        .thread_folders(true)
        .map(|thread| tables.threads.thread_id(&tables.messages, thread));
    let mut same = all.filter(|(other, number)| *number == store && plain_thread_id(other) == id);
    match (same.next(), same.next()) {
        (Some((only, _)), None) => only.to_owned(),
        _ => id,
    }
}

/// Returns the newest message of a thread. A reply to the thread answers that message in stores whose threads are made
/// of links.
pub(super) fn newest_in_thread(tables: &IndexTables, store: usize, id: &str) -> Option<MsgIx> {
    tables
        .threads
        .thread_messages(&tables.messages, tables.threads.find_thread(&tables.messages, store, id)?)
        .last()
        .copied()
}

fn build_reply(tables: &IndexTables, ix: MsgIx, to: Vec<String>) -> ReplyDefaults {
    let entry = tables.messages.entry(ix);
    let (thread, store) = tables.threads.thread_id(&tables.messages, entry.thread());
    let id = plain_id(&tables.messages.shown_id(ix)).to_owned();
    ReplyDefaults { store, ix, to, thread: thread.to_owned(), id, tied: Vec::new() }
}

/// Returns the recipients of a message as bare addresses.
fn list_recipients(tables: &IndexTables, entry: &IndexEntry) -> Vec<String> {
    tables
        .messages
        .recipient_list(entry)
        .split(", ")
        .map(|to| draft::bare_address(to).to_owned())
        .collect()
}

/// Returns the defaults for a reply to a message. It goes to the sender; for my own message, to its recipients.
fn reply_to_message(tables: &IndexTables, index: &Index, ix: MsgIx) -> ReplyDefaults {
    let entry = tables.messages.entry(ix);
    let store = index.store_of(entry);
    let to = list_recipients(tables, entry);
    // A store may know me by several addresses. Mail to nobody but me is answered like any other.
    let others = !entry.is_to_me() || to.iter().any(|to| !store.is_my_address(to));
    let to = if entry.is_from_me() && others {
        to
    } else {
        vec![draft::bare_address(tables.messages.sender(entry)).to_owned()]
    };
    build_reply(tables, ix, to)
}

/// Returns the recipients of a message besides me and these.
fn other_recipients(
    tables: &IndexTables,
    index: &Index,
    ix: MsgIx,
    these: &[String],
) -> Vec<String> {
    let entry = tables.messages.entry(ix);
    let store = index.store_of(entry);
    let mut known: Vec<String> = these.iter().map(|to| store.canonical_address(to)).collect();
    known.extend(store.properties().my_addresses().map(|me| store.canonical_address(me)));
    let mut others = list_recipients(tables, entry);
    others.retain(|to| {
        let to = store.canonical_address(to);
        let is_new = !known.contains(&to);
        known.push(to);
        is_new
    });
    others
}

/// Returns the defaults for a reply to a thread. It goes to the sender of the newest message to me; without one, to the
/// recipients of my newest one.
fn reply_to_thread(
    tables: &IndexTables,
    index: &Index,
    thread: ThreadIx,
) -> Result<ReplyDefaults, OutboxError> {
    let messages = tables.threads.thread_messages(&tables.messages, thread);
    let store = index
        .stores()
        .get(tables.threads.thread_id(&tables.messages, thread).1)
        .ok_or(OutboxError::NotFound)?;
    let seconds = store.properties().whole_seconds;
    // The times of names also have the order of a log. Those in whole seconds have it for each writer alone.
    let order = |e: &IndexEntry| if seconds { e.time() } else { tables.messages.name_time(e) };
    let newest = |mine: fn(&IndexEntry) -> bool| -> Vec<MsgIx> {
        let picked = messages.iter().map(|ix| (*ix, tables.messages.entry(*ix)));
        let picked: Vec<(MsgIx, Timestamp)> =
            picked.filter(|(_, e)| mine(e)).map(|(ix, e)| (ix, order(e))).collect();
        let last = picked.iter().map(|(_, time)| *time).max();
        // A time in whole seconds does not tell the order within the second.
        let whole = |time: Timestamp| seconds && time.millis().rem_euclid(1000) == 0;
        let tied = |time: Timestamp, last: Timestamp| {
            time == last || time.secs() == last.secs() && (whole(time) || whole(last))
        };
        let all = picked.into_iter().filter(|(_, time)| last.is_some_and(|last| tied(*time, last)));
        all.map(|(ix, _)| ix).collect()
    };
    let to_me = newest(IndexEntry::is_to_me);
    if let Some(last) = to_me.last() {
        let last = reply_to_message(tables, index, *last);
        let several = list_senders(tables, store, &to_me).len() > 1;
        return Ok(ReplyDefaults { tied: if several { to_me } else { Vec::new() }, ..last });
    }
    let mine = newest(IndexEntry::is_from_me);
    let mut to: Vec<String> = Vec::new();
    for one in mine.iter().flat_map(|ix| list_recipients(tables, tables.messages.entry(*ix))) {
        if !to.contains(&one) {
            to.push(one);
        }
    }
    let last = mine.last().ok_or_else(|| {
        OutboxError::Invalid(
            "this thread has no message to or from you; begin the text with a line `To: NAME`"
                .into(),
        )
    })?;
    Ok(build_reply(tables, *last, to))
}

/// Returns the senders of messages, each once.
fn list_senders<'a>(
    tables: &'a IndexTables,
    store: &Arc<dyn Store>,
    messages: &[MsgIx],
) -> Vec<&'a str> {
    let from = |ix: &MsgIx| draft::bare_address(tables.messages.sender(tables.messages.entry(*ix)));
    let mut senders: Vec<&str> = messages.iter().map(from).collect();
    senders.sort_unstable_by_key(|from| store.canonical_address(from));
    senders.dedup_by_key(|from| store.canonical_address(from));
    senders
}

/// Returns the defaults for a reply to a thread whose newest messages came from several senders. The draft answers the
/// message of the thread that it names (`said`), else the newest of a sender to whom it goes.
///
/// # Errors
/// If the draft names neither a message of the thread nor a recipient.
fn settle_tie(
    tables: &IndexTables,
    index: &Index,
    draft: &Draft,
    original: ReplyDefaults,
    said: Option<MsgIx>,
) -> Result<ReplyDefaults, OutboxError> {
    let entry = tables.messages.entry(original.ix);
    let store = index.store_of(entry);
    let is_here = |ix: &MsgIx| tables.messages.entry(*ix).thread() == entry.thread();
    if let Some(said) = said.filter(is_here) {
        return Ok(reply_to_message(tables, index, said));
    }
    if draft.to.iter().all(String::is_empty) {
        let seconds = store.properties().whole_seconds;
        return Err(OutboxError::Invalid(format!(
            "the newest messages of this thread came {} from {}; answer one of them with its \
             `.reply` file, or begin the text with a line `To: NAME` and an empty line",
            if seconds { "in the same second" } else { "at the same moment" },
            list_senders(tables, store, &original.tied).join(" and ")
        )));
    }
    let name = |to: &String| match route::split_store_name(to) {
        Some((name, at)) if at == store.name() => store.canonical_address(name),
        _ => store.canonical_address(to),
    };
    let to: Vec<String> = draft.to.iter().map(name).collect();
    let is_recipient = |ix: &&MsgIx| {
        let from = draft::bare_address(tables.messages.sender(tables.messages.entry(**ix)));
        to.contains(&store.canonical_address(from))
    };
    let answered = original.tied.iter().rev().find(is_recipient);
    Ok(reply_to_message(tables, index, answered.copied().unwrap_or(original.ix)))
}

/// Resolves the id of a mail by which a mail program names the answered message. For a message that the index has, the
/// result is the message's own id. For a message that the mail program sent itself, the given id is the idempotency key
/// of my message. Any other id is removed, because a link to nowhere would help nobody. An id at one of our own stores
/// or kinds stays all the same.
fn resolve_mail_id(tables: &IndexTables, index: &Index, draft: &mut Draft) {
    let (Some(mail), Some(id)) = (draft.in_reply_to_mail.take(), draft.in_reply_to.as_ref()) else {
        return;
    };
    let place = mail.rsplit_once('@').map_or("", |(_, place)| place);
    let is_ours = is_own_place(index, place);
    let is_here =
        |id: &str| tables.messages.live_messages().any(|ix| tables.messages.has_plain_id(ix, id));
    let mine = find_sent_mail(tables, &mail);
    if mine.is_none() && !is_ours && is_here(&mail) {
        // The ids of mails have a place of their own.
        draft.in_reply_to = Some(mail);
        return;
    }
    if is_ours && !draft.answers_mail || is_here(id) {
        return;
    }
    let first = mine.map(|ix| tables.messages.find_original(ix).unwrap_or(ix));
    draft.in_reply_to = first.map(|ix| plain_id(&tables.messages.shown_id(ix)).to_owned());
}

/// Returns the message that I sent as the mail of this id. A blind copy has the same key but is later, and the other
/// recipients must not learn of it.
fn find_sent_mail(tables: &IndexTables, mail: &str) -> Option<MsgIx> {
    let all = tables.messages.find_by_idempotency_key(mail).iter().copied();
    let mine: Vec<MsgIx> = all.filter(|ix| tables.messages.entry(*ix).is_from_me()).collect();
    let time = |ix: &MsgIx| tables.messages.entry(*ix).time();
    let since = mine.iter().map(time).max()?.plus_millis(-IDEMPOTENCY_WINDOW_MS);
    let lately = mine.into_iter().filter(|ix| time(ix) >= since);
    lately.min_by(|a, b| tables.messages.compare_order(*a, *b))
}

/// Returns the newest message that has this id, in the store that the draft names, if it names one. An unknown id stays
/// in the draft, since the message may only not have been synced yet.
///
/// # Errors
/// If messages of several threads have the id, as in a thread that is a copy of another, and neither the draft nor its
/// place names one of the threads.
fn find_by_id(
    tables: &IndexTables,
    index: &Index,
    id: &str,
    draft: &Draft,
    thread: Option<&str>,
) -> Result<Option<MsgIx>, OutboxError> {
    let store = draft.via.as_deref().and_then(|via| find_store(index, via));
    let fits = |ix: &MsgIx| {
        let meant = |e: &IndexEntry| store.is_none_or(|(number, _)| number == e.store());
        meant(tables.messages.entry(*ix)) && tables.messages.has_plain_id(*ix, id)
    };
    let mine = || {
        tables
            .messages
            .lists()
            .messages_to_me()
            .rev()
            .chain(tables.messages.lists().messages_from_me().rev())
    };
    let original = |ix: MsgIx| tables.messages.find_original(ix).unwrap_or(ix);
    let Some(newest) = mine().find(fits).map(original) else {
        // Another agent's record may be a copy of a message of mine.
        let copy = tables.messages.copies().find(fits);
        return Ok(copy.and_then(|ix| tables.messages.find_original(ix)));
    };
    let store = index.store_of(tables.messages.entry(newest));
    if !store.properties().has_thread_labels() {
        return Ok(Some(newest));
    }
    // A thread may be a copy of another, with the same ids.
    let thread_of = |ix: &MsgIx| {
        let thread = tables.messages.entry(*ix).thread();
        plain_thread_id(tables.threads.thread_id(&tables.messages, thread).0).to_owned()
    };
    let named = thread.map(plain_thread_id);
    let mut all: Vec<MsgIx> = mine().filter(fits).map(original).collect();
    if all.iter().any(|ix| named == Some(thread_of(ix).as_str())) {
        all.retain(|ix| named == Some(thread_of(ix).as_str()));
    }
    let threads: BTreeSet<String> = all.iter().map(thread_of).collect();
    if threads.len() > 1 {
        let threads: Vec<String> =
            threads.into_iter().map(|id| sanitize_line(&id).into_owned()).collect();
        return Err(OutboxError::Invalid(format!(
            "In-Reply-To: several threads have a message with the id {:?}: {}; add a line `Thread: ID` with one of them",
            sanitize_line(id),
            threads.join(", ")
        )));
    }
    Ok(all.first().copied())
}

/// Returns true if ids end in this place: it is a kind or the name of a store.
fn is_own_place(index: &Index, place: &str) -> bool {
    Kind::ALL.iter().any(|kind| kind.as_str() == place)
        || index.stores().iter().any(|store| store.name() == place)
}

/// Returns the message that the draft names as the answered one, by its id, by its id with its place and without
/// brackets, or by the first 8 characters. It puts the whole id into the draft.
///
/// # Errors
/// The error of [`find_by_id`].
fn find_named_message(
    tables: &IndexTables,
    index: &Index,
    draft: &mut Draft,
    thread: Option<&str>,
) -> Result<Option<MsgIx>, OutboxError> {
    let Some(id) = draft.in_reply_to.clone() else { return Ok(None) };
    if let Some(found) = find_by_id(tables, index, &id, draft, thread)? {
        return Ok(Some(found));
    }
    let is_own = |(bare, place): &(&str, &str)| !bare.is_empty() && is_own_place(index, place);
    if let Some((bare, _)) = id.rsplit_once('@').filter(is_own) {
        draft.in_reply_to = Some(bare.to_owned());
        if let Some(found) = find_by_id(tables, index, bare, draft, thread)? {
            return Ok(Some(found));
        }
    }
    find_by_short_id(tables, index, draft, thread)
}

/// Finds the only message for whose id the 8 characters of the header stand in names of messages. It then puts the
/// whole id into the header.
fn find_by_short_id(
    tables: &IndexTables,
    index: &Index,
    draft: &mut Draft,
    thread: Option<&str>,
) -> Result<Option<MsgIx>, OutboxError> {
    let is_hex = |b: u8| matches!(b, b'0'..=b'9' | b'a'..=b'f');
    let short = draft.in_reply_to.as_ref().filter(|id| id.len() == 8 && id.bytes().all(is_hex));
    let Some(short) = short else { return Ok(None) };
    let fits = |ix: &MsgIx| {
        let own = tables.messages.id(tables.messages.entry(*ix));
        [own, tables.messages.shown_id(*ix)].iter().any(|id| &short_id(id) == short)
    };
    let fitting = tables
        .messages
        .lists()
        .messages_to_me()
        .chain(tables.messages.lists().messages_from_me())
        .filter(fits);
    let mut ids: Vec<String> =
        fitting.map(|ix| plain_id(&tables.messages.shown_id(ix)).to_owned()).collect();
    ids.sort_unstable();
    ids.dedup();
    let Ok([id]) = <[String; 1]>::try_from(ids) else { return Ok(None) };
    let found = find_by_id(tables, index, &id, draft, thread)?;
    if found.is_some() {
        draft.in_reply_to = Some(id);
    }
    Ok(found)
}
