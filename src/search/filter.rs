//! The conditions of a query that the index of messages decides: names, days, marks.

use std::collections::HashMap;

use super::query::{NamePattern, SearchCondition, SearchQuery, SearchTerm};
use crate::index::{Index, IndexEntry, IndexTables, MsgIx, ThreadIx};
use crate::model::plain_thread_id;

/// The part of the index that a search shows.
#[derive(Clone, Copy)]
pub struct SearchScope<'a> {
    /// Returns the name of a thread's folder.
    pub name_thread: &'a dyn Fn(ThreadIx) -> Option<String>,
    /// Returns true if a message is shown.
    pub is_shown: &'a dyn Fn(&IndexTables, &IndexEntry) -> bool,
}

/// The conditions of a query but those on words, and the scope of the search.
#[derive(Clone, Copy)]
pub(super) struct MessageFilter<'a> {
    pub index: &'a Index,
    pub query: &'a SearchQuery,
    pub scope: SearchScope<'a>,
}

impl MessageFilter<'_> {
    /// Returns true if a message is shown and fits all conditions but those on words and threads.
    pub fn fits(&self, tables: &IndexTables, ix: MsgIx, entry: &IndexEntry) -> bool {
        let Self { index, query, scope } = self;
        entry.is_live()
            && !tables.messages.is_copy(ix)
            && (scope.is_shown)(tables, entry)
            && query.terms().iter().all(|term| fits_term(index, tables, term, ix, entry))
    }

    /// Keeps the messages that fit the conditions on threads.
    pub fn keep_in_threads(&self, messages: &mut Vec<MsgIx>) {
        for term in self.query.terms() {
            if let SearchCondition::Thread(wanted) = &term.condition {
                let mut known = HashMap::new();
                messages.retain(|ix| {
                    let thread = self.index.read().messages.entry(*ix).thread();
                    let fits = || self.fits_thread(wanted, thread);
                    *known.entry(thread).or_insert_with(fits) != term.is_negated
                });
            }
        }
    }

    /// Returns true if the id of a thread or the name of its folder fits. The function for the name locks the tables
    /// itself.
    fn fits_thread(&self, wanted: &NamePattern, thread: ThreadIx) -> bool {
        let fits_id = {
            let tables = self.index.read();
            let (id, _) = tables.threads.thread_id(&tables.messages, thread);
            wanted.fits(plain_thread_id(id))
        };
        fits_id || (self.scope.name_thread)(thread).is_some_and(|name| wanted.fits(&name))
    }
}

/// Returns true if a message fits a term that is not on words or on a thread.
fn fits_term(
    index: &Index,
    tables: &IndexTables,
    term: &SearchTerm,
    ix: MsgIx,
    entry: &IndexEntry,
) -> bool {
    let recipients = || {
        let records = tables.messages.records_of_message(ix);
        let lists =
            records.into_iter().map(|ix| tables.messages.recipient_list(tables.messages.entry(ix)));
        lists.chain([tables.messages.recipient_list(entry)])
    };
    let day = || tables.messages.name_time(entry).day();
    let fits = match &term.condition {
        SearchCondition::Words(_) | SearchCondition::Thread(_) => return true,
        SearchCondition::From(name) => name.fits_address(tables.messages.sender(entry)),
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
