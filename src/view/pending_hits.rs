//! Messages of mine that a search finds before their stores have them.

use super::Tree;
use super::hits::{SearchHit, describe_text, split_file};
use super::names;
use super::node::Node;
use super::pending_sent::PendingSentFile;
use crate::index::MsgIx;
use crate::model::short_id::short_id;
use crate::model::{Timestamp, plain_id};
use crate::search::{MatchFinder, OutsideMessage, SearchQuery, TableError};

/// A message that waits, and that a query finds.
#[derive(Debug)]
pub(super) struct PendingHit {
    file: PendingSentFile,
    text: String,
}

impl PendingHit {
    /// Returns the time of the message.
    pub fn time(&self) -> Timestamp {
        self.file.message.time
    }

    /// Returns the names and nodes of its files.
    pub fn entries(&self) -> impl Iterator<Item = (String, Node)> + '_ {
        self.file.entries()
    }

    /// Returns the hit as a list shows it, with its matching line cut to `most` characters.
    pub fn describe(&self, tree: &Tree, finder: &MatchFinder, most: usize) -> SearchHit {
        let message = &self.file.message;
        let (subject, body) = split_file(&self.text);
        SearchHit {
            id: short_id(&message.id),
            message_id: plain_id(&message.id).to_owned(),
            name: self.file.name(),
            store: tree.store_name(self.file.store).to_owned(),
            thread: message.thread.clone().unwrap_or_default(),
            from: message.from.clone().unwrap_or_default(),
            to: message.to.iter().chain(&message.cc).cloned().collect(),
            time: message.time.rfc3339(),
            day: message.time.day().to_string(),
            ..describe_text(finder, subject, body, most)
        }
    }
}

/// Returns the messages that a query finds and that their stores do not have yet, oldest first.
///
/// # Errors
/// If SQLite cannot make or read the table in memory.
pub(super) fn find_pending(
    tree: &Tree,
    query: &SearchQuery,
) -> Result<Vec<PendingHit>, TableError> {
    let mut found = Vec::new();
    for (file, text) in tree.pending.list_texts() {
        if fits(tree, query, &file, &text)? {
            found.push(PendingHit { file, text });
        }
    }
    Ok(found)
}

fn fits(
    tree: &Tree,
    query: &SearchQuery,
    file: &PendingSentFile,
    text: &str,
) -> Result<bool, TableError> {
    let message = &file.message;
    let (subject, body) = split_file(text);
    let to: Vec<String> = message.to.iter().chain(&message.cc).cloned().collect();
    let thread = message.thread.as_deref().unwrap_or_default();
    let store = tree.index.stores().get(file.store);
    query.fits_outside(&OutsideMessage {
        subject: subject.unwrap_or_default(),
        body,
        from: message.from.as_deref().unwrap_or_default(),
        to: &to,
        thread: [thread, &names::thread_folder_name(thread, false)],
        store: [tree.store_name(file.store), store.map_or("", |store| store.kind().as_str())],
        day: message.time.day(),
    })
}

/// Removes messages that have come to their stores meanwhile, so that the index found them.
pub(super) fn drop_indexed(tree: &Tree, pending: &mut Vec<PendingHit>, found: &[MsgIx]) {
    pending.retain(|hit| {
        let ix = tree.pending.find_indexed(&hit.file);
        ix.is_none_or(|ix| !found.contains(&ix))
    });
}

/// Puts pending hits among those of the index, newest first, and keeps the first `limit`. Lines are cut to `most`
/// characters.
pub(super) fn merge_hits(
    tree: &Tree,
    finder: &MatchFinder,
    pending: &[PendingHit],
    indexed: Vec<(MsgIx, SearchHit)>,
    (limit, most): (usize, usize),
) -> Vec<SearchHit> {
    let newest = pending.iter().rev().take(limit);
    let mut all: Vec<(Timestamp, SearchHit)> =
        newest.map(|hit| (hit.time(), hit.describe(tree, finder, most))).collect();
    let tables = tree.index.read();
    let time_of = |ix| tables.messages.name_time(tables.messages.entry(ix));
    all.extend(indexed.into_iter().map(|(ix, hit)| (time_of(ix), hit)));
    all.sort_by_key(|(time, _)| std::cmp::Reverse(*time));
    all.into_iter().take(limit).map(|(_, hit)| hit).collect()
}
