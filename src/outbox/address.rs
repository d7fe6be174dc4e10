//! Whom a draft goes to and which conversation it belongs to, from its headers, its name and where
//! it was written (docs/SEMANTICS.md, S46 and S51 to S53).

use super::{OutboxError, Target, draft, named, names, whole};
use crate::index::{Core, Entry, Index, MsgIx, ThreadIx};
use crate::model::{Draft, ORIGIN, Timestamp, plain_id, plain_thread};
use crate::store::{Kind, Store};

/// The message a draft answers, as far as it is known here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Answered {
    /// Number of the store it lies in.
    pub store: usize,
    /// The message.
    pub ix: MsgIx,
    /// Its id was put into the draft, not written there.
    pub gave_id: bool,
    /// Its thread was put into the draft, not written there.
    pub gave_thread: bool,
}

/// What is needed of a message to answer it.
struct Original {
    store: usize,
    ix: MsgIx,
    to: Vec<String>,
    thread: String,
    id: String,
}

/// Completes the draft: recipients, thread, the message it answers, the store that carries it.
///
/// # Errors
/// If nobody or several could be meant.
pub(super) fn complete(
    index: &Index,
    draft: &mut Draft,
    name: &str,
    target: &Target,
) -> Result<Option<Answered>, OutboxError> {
    whole::address(index.stores(), draft, target);
    let core = index.read();
    let original = beside(&core, index, draft, target)?;
    resolve_mail(&core, index, draft);
    let said = draft.in_reply_to.as_ref().and_then(|id| by_id(&core, index, id, draft));
    let said = said.or_else(|| by_short_id(&core, index, draft));
    let original = original.or_else(|| answer(&core, index, said?));
    let mut answered = None;
    if let Some(original) = original {
        draft.is_reply = true;
        let (gave_id, gave_thread) = (draft.in_reply_to.is_none(), draft.thread.is_none());
        answered = Some(Answered { store: original.store, ix: original.ix, gave_id, gave_thread });
        draft.in_reply_to.get_or_insert(original.id);
        continue_thread(index, draft, original.store, original.thread);
        let store = index.stores().get(original.store).map(|s| s.name().to_owned());
        if *target == Target::Outbox {
            draft.near = store;
        } else {
            if draft.to.is_empty() {
                draft.to = original.to;
            }
            draft.via = draft.via.take().or(store);
        }
    }
    if let (Some(answered), Some(ix)) = (&mut answered, said) {
        // A header that names another message than the one it was written beside wins.
        answered.ix = ix;
        answered.store = core.entry(ix).map_or(answered.store, Entry::store);
    }
    if draft.to.is_empty() && draft.bcc.is_empty() && *target == Target::Outbox {
        draft.to.push(names::recipient(name).to_owned());
        draft.to_is_name = true;
    }
    draft.is_typed = *target == Target::Outbox && names::is_typed(name);
    // Of a whole message the store says that nobody is named.
    draft.to.retain(|to| draft.is_whole || !to.is_empty());
    if draft.to.is_empty() && draft.bcc.is_empty() {
        return Err(OutboxError::NoRecipient(match target {
            Target::Outbox => "nobody is named as recipient; write to outbox/NAME, or begin the \
                               text with a line `To: NAME`"
                .into(),
            Target::Reply { .. } | Target::ReplyAll { .. } => {
                "the message that is answered names no sender; begin the text \
                                     with a line `To: NAME`"
                    .into()
            }
            Target::Thread { .. } => "this thread names nobody who can be answered; begin the \
                text with a line `To: NAME`"
                .into(),
        }));
    }
    Ok(answered)
}

/// What a draft answers because of where it was written; the draft itself is noted to be the first
/// of a thread that has no messages.
fn beside(
    core: &Core,
    index: &Index,
    draft: &mut Draft,
    target: &Target,
) -> Result<Option<Original>, OutboxError> {
    Ok(match target {
        Target::Outbox => None,
        Target::Reply { store, from, id } | Target::ReplyAll { store, from, id } => {
            let (number, _) = named(index, store).ok_or(OutboxError::NotFound)?;
            let ix = core.find(number, from, id).ok_or(OutboxError::NotFound)?;
            let mut original = answer(core, index, ix).ok_or(OutboxError::NotFound)?;
            if matches!(target, Target::ReplyAll { .. }) {
                original.to.extend(others(core, index, ix, &original.to));
            }
            Some(original)
        }
        Target::Thread { store, id } => {
            let (number, _) = named(index, store).ok_or(OutboxError::NotFound)?;
            let thread = core.find_thread(number, id).ok_or(OutboxError::NotFound)?;
            if core.empty_thread(thread).is_some() && core.thread_messages(thread).is_empty() {
                begin(index, draft, number, id);
                None
            } else {
                Some(answer_thread(core, index, thread)?)
            }
        }
    })
}

/// The draft is the first message of a thread that exists without any.
fn begin(index: &Index, draft: &mut Draft, number: usize, id: &str) {
    let Some(store) = index.stores().get(number) else { return };
    draft.is_reply = true;
    continue_thread(index, draft, number, id.to_owned());
    if draft.to.is_empty() {
        draft.to.extend(store.about().default_recipient.map(str::to_owned));
    }
    draft.via.get_or_insert_with(|| store.name().to_owned());
}

/// The draft goes on in this thread of a store, unless it names another. People see and write ids
/// without labels.
fn continue_thread(index: &Index, draft: &mut Draft, number: usize, id: String) {
    let origins = index.stores().get(number).is_some_and(|s| s.about().labels());
    let same = |said: &String| origins && said == plain_thread(&id);
    if draft.thread.as_ref().is_none_or(same) {
        draft.thread = Some(id);
    }
}

/// The thread that is meant by an id that people write, in a store whose ids may carry labels: the
/// one without a label, or the only one with one.
pub(super) fn labelled(core: &Core, store: usize, id: String) -> String {
    if id.contains(ORIGIN) || core.find_thread(store, &id).is_some_and(|t| core.has_folder(t, true))
    {
        return id;
    }
    let all = core.thread_folders(true).filter_map(|thread| core.thread_id(thread));
    let mut same = all.filter(|(other, number)| *number == store && plain_thread(other) == id);
    match (same.next(), same.next()) {
        (Some((only, _)), None) => only.to_owned(),
        _ => id,
    }
}

/// The newest message of a thread, which an answer to the thread answers where threads are made of
/// links.
pub(super) fn newest_in_thread(core: &Core, store: usize, id: &str) -> Option<MsgIx> {
    core.thread_messages(core.find_thread(store, id)?).last().copied()
}

fn original(core: &Core, ix: MsgIx, to: Vec<String>) -> Option<Original> {
    let entry = core.entry(ix)?;
    let (thread, store) = core.thread_id(core.thread_of(entry))?;
    let id = plain_id(&core.id(entry)).to_owned();
    Some(Original { store, ix, to, thread: thread.to_owned(), id })
}

/// Those a message was for, as bare addresses.
fn recipients(core: &Core, entry: &Entry) -> Vec<String> {
    core.to(entry).split(", ").map(|to| draft::bare_address(to).to_owned()).collect()
}

/// An answer goes to the writer; to my own message, to those it was for.
fn answer(core: &Core, index: &Index, ix: MsgIx) -> Option<Original> {
    let entry = core.entry(ix)?;
    let store = index.store_of(entry)?;
    let to = recipients(core, entry);
    // A store may know me by several addresses, so it is asked and not compared; only mail to
    // nobody but me is answered like any other.
    let others = !entry.is_to_me() || to.iter().any(|to| !is_me(store.as_ref(), to));
    let to = if entry.is_from_me() && others {
        to
    } else {
        vec![draft::bare_address(core.from(entry)).to_owned()]
    };
    original(core, ix, to)
}

/// Those a message was for, besides me and these.
fn others(core: &Core, index: &Index, ix: MsgIx, these: &[String]) -> Vec<String> {
    let Some(entry) = core.entry(ix) else { return Vec::new() };
    let Some(store) = index.store_of(entry) else { return Vec::new() };
    let mut known: Vec<String> = these.iter().map(|to| store.canonical(to)).collect();
    known.push(store.canonical(store.me()));
    let mut others = recipients(core, entry);
    others.retain(|to| {
        let to = store.canonical(to);
        let is_new = !known.contains(&to);
        known.push(to);
        is_new
    });
    others
}

fn is_me(store: &dyn Store, address: &str) -> bool {
    store.canonical(address) == store.canonical(store.me())
}

/// An answer to a thread goes to the writer of the newest message to me; with none, to those my
/// newest one was for.
fn answer_thread(core: &Core, index: &Index, thread: ThreadIx) -> Result<Original, OutboxError> {
    let messages = core.thread_messages(thread);
    let store = core.thread_id(thread).and_then(|(_, n)| index.stores().get(n));
    let store = store.ok_or(OutboxError::NotFound)?;
    let seconds = store.about().whole_seconds;
    let newest = |mine: fn(&Entry) -> bool| -> Vec<MsgIx> {
        let picked = messages.iter().filter_map(|ix| core.entry(*ix).map(|e| (*ix, e)));
        let picked: Vec<(MsgIx, Timestamp)> =
            picked.filter(|(_, e)| mine(e)).map(|(ix, e)| (ix, e.time())).collect();
        let last = picked.iter().map(|(_, time)| *time).max();
        // Of a time in whole seconds nobody knows when in that second it was.
        let whole = |time: Timestamp| seconds && time.millis().rem_euclid(1000) == 0;
        let tied = |time: Timestamp, last: Timestamp| {
            time == last || time.secs() == last.secs() && (whole(time) || whole(last))
        };
        let all = picked.into_iter().filter(|(_, time)| last.is_some_and(|last| tied(*time, last)));
        all.map(|(ix, _)| ix).collect()
    };
    let to_me = newest(Entry::is_to_me);
    if let Some(last) = to_me.last() {
        let from = |ix: &MsgIx| core.entry(*ix).map(|e| draft::bare_address(core.from(e)));
        let mut senders: Vec<&str> = to_me.iter().filter_map(from).collect();
        senders.sort_unstable_by_key(|from| store.canonical(from));
        senders.dedup_by_key(|from| store.canonical(from));
        if senders.len() > 1 {
            return Err(OutboxError::Invalid(format!(
                "the newest messages of this thread came {} from {}; answer one of them with its \
                 `.reply` file, or begin the text with a line `To: NAME`",
                if seconds { "in the same second" } else { "at the same moment" },
                senders.join(" and ")
            )));
        }
        return answer(core, index, *last).ok_or(OutboxError::NotFound);
    }
    let mine = newest(Entry::is_from_me);
    let mut to: Vec<String> = Vec::new();
    for one in mine.iter().filter_map(|ix| core.entry(*ix)).flat_map(|e| recipients(core, e)) {
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
    original(core, *last, to).ok_or(OutboxError::NotFound)
}

/// A mail program names what it answers by the id of a mail. That of a message that is here is its own; what it
/// sent itself it knows by the id it gave, which is then the idempotency key of my message. Any other is no
/// message that is here, and answers nothing: a link to nowhere would help nobody. What a draft says of one of
/// our places is kept all the same.
fn resolve_mail(core: &Core, index: &Index, draft: &mut Draft) {
    let (Some(mail), Some(id)) = (draft.in_reply_to_mail.take(), draft.in_reply_to.as_ref()) else {
        return;
    };
    let place = mail.rsplit_once('@').map_or("", |(_, place)| place);
    let is_ours = Kind::ALL.iter().any(|kind| kind.as_str() == place)
        || index.stores().iter().any(|store| store.name() == place);
    let is_it = |entry: &Entry| plain_id(&core.id(entry)) == id;
    if is_ours && !draft.answers_mail || core.all().any(|ix| core.entry(ix).is_some_and(is_it)) {
        return;
    }
    let mut mine = core.with_idempotency_key(&mail).iter().rev().copied();
    let mine = mine.find(|ix| core.entry(*ix).is_some_and(Entry::is_from_me));
    let first = mine.map(|ix| core.first_of(ix).unwrap_or(ix)).and_then(|ix| core.entry(ix));
    draft.in_reply_to = first.map(|entry| plain_id(&core.id(entry)).to_owned());
}

/// The message a header names by its id, newest first, in the store the draft names if it names one.
/// An id nobody knows here is kept as it is, since the message may only not have been synced yet.
fn by_id(core: &Core, index: &Index, id: &str, draft: &Draft) -> Option<MsgIx> {
    let store = draft.via.as_deref().and_then(|via| named(index, via));
    let fits = |ix: &MsgIx| {
        let meant = |e: &Entry| store.is_none_or(|(number, _)| number == e.store());
        core.entry(*ix).is_some_and(|e| meant(e) && plain_id(&core.id(e)) == id)
    };
    let mine = || core.to_me().rev().chain(core.from_me().rev()).find(fits);
    // Somebody else's record of a message of which I have one, too.
    mine().or_else(|| core.first_of(core.copies().find(fits)?))
}

/// The only message whose id begins with the 8 characters that a header names, as names of messages end; the
/// header names the whole id then.
fn by_short_id(core: &Core, index: &Index, draft: &mut Draft) -> Option<MsgIx> {
    let is_hex = |b: u8| matches!(b, b'0'..=b'9' | b'a'..=b'f');
    let short = draft.in_reply_to.as_ref().filter(|id| id.len() == 8 && id.bytes().all(is_hex))?;
    let begins =
        |ix: &MsgIx| core.entry(*ix).is_some_and(|e| core.id(e).starts_with(short.as_str()));
    let fitting = core.to_me().chain(core.from_me()).filter(begins);
    let mut ids: Vec<String> =
        fitting.filter_map(|ix| core.entry(ix)).map(|e| plain_id(&core.id(e)).to_owned()).collect();
    ids.sort_unstable();
    ids.dedup();
    let [id] = <[String; 1]>::try_from(ids).ok()?;
    let found = by_id(core, index, &id, draft)?;
    draft.in_reply_to = Some(id);
    Some(found)
}
