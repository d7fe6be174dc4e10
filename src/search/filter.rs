//! The conditions of a query that the index of messages decides: names, days, marks.

use std::collections::HashMap;

use super::query::{NamePattern, SearchCondition, SearchQuery, SearchTerm};
use crate::index::{Index, IndexEntry, IndexTables, MsgIx, ThreadIx};
use crate::model::plain_thread_id;

/// A function that returns the name of a thread's folder.
pub type ThreadNamer<'a> = &'a dyn Fn(ThreadIx) -> Option<String>;

/// Keeps the messages that are shown and fit all conditions but those on words.
pub(super) fn keep_fitting(
    index: &Index,
    query: &SearchQuery,
    name_thread: ThreadNamer<'_>,
    messages: Vec<MsgIx>,
) -> Vec<MsgIx> {
    let mut messages = messages;
    {
        let core = index.read();
        messages.retain(|ix| {
            let entry = core.messages.entry(*ix);
            entry.is_live()
                && !core.messages.is_copy(*ix)
                && query.terms().iter().all(|term| fits_term(index, &core, term, *ix, entry))
        });
    }
    for term in query.terms() {
        if let SearchCondition::Thread(wanted) = &term.condition {
            let mut known = HashMap::new();
            messages.retain(|ix| {
                let thread = index.read().messages.entry(*ix).thread();
                let fits = || fits_thread(index, name_thread, wanted, thread);
                *known.entry(thread).or_insert_with(fits) != term.is_negated
            });
        }
    }
    messages
}

/// Returns true if the id of a thread or the name of its folder fits. The function for the name locks the tables itself.
fn fits_thread(
    index: &Index,
    name_thread: ThreadNamer<'_>,
    wanted: &NamePattern,
    thread: ThreadIx,
) -> bool {
    let fits_id = {
        let core = index.read();
        let (id, _) = core.threads.thread_id(&core.messages, thread);
        wanted.fits(plain_thread_id(id))
    };
    fits_id || name_thread(thread).is_some_and(|name| wanted.fits(&name))
}

/// Returns true if a message fits a term that is not on words or on a thread.
fn fits_term(
    index: &Index,
    core: &IndexTables,
    term: &SearchTerm,
    ix: MsgIx,
    entry: &IndexEntry,
) -> bool {
    let recipients = || {
        let records = core.messages.records_of_message(ix);
        let lists =
            records.into_iter().map(|ix| core.messages.recipient_list(core.messages.entry(ix)));
        lists.chain([core.messages.recipient_list(entry)])
    };
    let day = || core.messages.name_time(entry).day();
    let fits = match &term.condition {
        SearchCondition::Words(_) | SearchCondition::Thread(_) => return true,
        SearchCondition::From(name) => name.fits_address(core.messages.sender(entry)),
        SearchCondition::To(name) => {
            recipients().any(|list| list.split(", ").any(|to| name.fits_address(to)))
        }
        SearchCondition::Store(name) => {
            let store = index.store_of(entry);
            name.fits(store.name()) || name.fits(store.kind().as_str())
        }
        SearchCondition::After(after) => day() >= *after,
        SearchCondition::Before(before) => day() < *before,
        SearchCondition::Unread => entry.is_unread(),
    };
    fits != term.is_negated
}
