//! Whom a draft goes to and which conversation it belongs to, from its headers, its name and where
//! it was written (contract, section 5).

use super::{OutboxError, Target, names};
use crate::index::{Core, Entry, Index, MsgIx, ThreadIx};
use crate::model::Draft;

/// What is needed of a message to answer it.
struct Original {
    store: usize,
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
) -> Result<(), OutboxError> {
    let core = index.read();
    let original = match target {
        Target::Outbox => None,
        Target::Reply { store, from, id } => {
            let number = store_number(index, store)?;
            let ix = core.find(number, from, id).ok_or(OutboxError::NotFound)?;
            Some(answer(&core, index, ix).ok_or(OutboxError::NotFound)?)
        }
        Target::Thread { store, id } => {
            let number = store_number(index, store)?;
            let thread = core.find_thread(number, id).ok_or(OutboxError::NotFound)?;
            Some(answer_thread(&core, index, thread)?)
        }
    };
    let original = match (original, &draft.in_reply_to) {
        (None, Some(id)) => by_id(&core, index, id),
        (original, _) => original,
    };
    if let Some(original) = original {
        draft.is_reply = true;
        draft.in_reply_to.get_or_insert(original.id);
        draft.thread.get_or_insert(original.thread);
        if *target != Target::Outbox {
            if draft.to.is_empty() {
                draft.to = original.to;
            }
            let via = index.stores().get(original.store).map(|s| s.name().to_owned());
            draft.via = draft.via.take().or(via);
        }
    }
    if draft.to.is_empty() && *target == Target::Outbox {
        draft.to.push(names::recipient(name).to_owned());
    }
    if draft.to.iter().all(String::is_empty) {
        return Err(OutboxError::NoRecipient(
            "nobody is named as recipient; write to outbox/NAME, or begin the text with a line \
             `To: NAME`"
                .into(),
        ));
    }
    Ok(())
}

fn store_number(index: &Index, name: &str) -> Result<usize, OutboxError> {
    index.stores().iter().position(|s| s.name() == name).ok_or(OutboxError::NotFound)
}

fn original(core: &Core, entry: &Entry, to: Vec<String>) -> Option<Original> {
    let (thread, store) = core.thread_id(core.thread_of(entry))?;
    Some(Original { store, to, thread: thread.to_owned(), id: core.id(entry) })
}

/// An answer goes to the writer; to my own message, to those it was for.
fn answer(core: &Core, index: &Index, ix: MsgIx) -> Option<Original> {
    let entry = core.entry(ix)?;
    let me = index.store_of(entry)?.me();
    let from = core.from(entry);
    let to = if from == me && core.to(entry) != me {
        core.to(entry).split(", ").map(str::to_owned).collect()
    } else {
        vec![from.to_owned()]
    };
    original(core, entry, to)
}

/// An answer to a thread goes to the writer of the newest message to me; with none, to those my
/// newest one was for.
fn answer_thread(core: &Core, index: &Index, thread: ThreadIx) -> Result<Original, OutboxError> {
    let messages = core.thread_messages(thread);
    let newest = |mine: fn(&Entry) -> bool| -> Vec<MsgIx> {
        let picked: Vec<(MsgIx, i64)> = messages
            .iter()
            .filter_map(|ix| core.entry(*ix).filter(|e| mine(e)).map(|e| (*ix, e.time().secs())))
            .collect();
        let last = picked.iter().map(|(_, secs)| *secs).max();
        picked.into_iter().filter(|(_, secs)| Some(*secs) == last).map(|(ix, _)| ix).collect()
    };
    let to_me = newest(Entry::is_to_me);
    if let Some(last) = to_me.last() {
        let mut senders: Vec<&str> =
            to_me.iter().filter_map(|ix| core.entry(*ix)).map(|e| core.from(e)).collect();
        senders.sort_unstable();
        senders.dedup();
        if senders.len() > 1 {
            return Err(OutboxError::Invalid(format!(
                "the newest messages of this thread came in the same second from {}; answer one of \
                 them with its `.reply` file, or begin the text with a line `To: NAME`",
                senders.join(" and ")
            )));
        }
        return answer(core, index, *last).ok_or(OutboxError::NotFound);
    }
    let mine = newest(Entry::is_from_me);
    let mut to: Vec<String> = Vec::new();
    for entry in mine.iter().filter_map(|ix| core.entry(*ix)) {
        for one in core.to(entry).split(", ") {
            if !to.iter().any(|t| t == one) {
                to.push(one.to_owned());
            }
        }
    }
    let entry = mine.last().and_then(|ix| core.entry(*ix)).ok_or_else(|| {
        OutboxError::Invalid(
            "this thread has no message to or from you; begin the text with a line `To: NAME`"
                .into(),
        )
    })?;
    original(core, entry, to).ok_or(OutboxError::NotFound)
}

/// The message a header names by its id; an id nobody knows here is kept as it is, since the
/// message may only not have been synced yet.
fn by_id(core: &Core, index: &Index, id: &str) -> Option<Original> {
    let ix = core
        .to_me()
        .chain(core.from_me())
        .find(|ix| core.entry(*ix).is_some_and(|e| core.id(e) == id))?;
    answer(core, index, ix)
}
