//! Tests with threads that stores report without messages.

use crate::index::testing::{Bed, entry, listen, message};
use crate::index::{Index, IndexTables, ThreadIx};
use crate::model::Timestamp;
use crate::store::EmptyThread;

fn empty(id: &str, secs: i64) -> EmptyThread {
    EmptyThread { id: id.into(), title: None, time: Timestamp::from_secs(secs) }
}

fn folders(index: &Index) -> Vec<String> {
    let tables = index.read();
    let mut all: Vec<String> = tables
        .threads
        .thread_folders(false)
        .map(|t| tables.threads.thread_id(&tables.messages, t).0.to_owned())
        .collect();
    all.sort();
    all
}

fn find(index: &Index, id: &str) -> ThreadIx {
    let tables = index.read();
    tables.threads.find_thread(&tables.messages, 0, id).unwrap()
}

#[test]
fn they_have_a_folder_as_long_as_the_store_reports_them() {
    let bed = Bed::new();
    bed.put(1, message("foo", "a", 10));
    bed.folder.lock().empty = vec![empty("bare", 5), empty("a", 6)];
    let index = bed.open();
    assert_eq!(folders(&index), ["a", "bare"]);
    let (bare, heard) = (find(&index, "bare"), listen(&index));
    assert_eq!(index.read().threads.empty_thread_time(bare), Some(Timestamp::from_secs(5)));
    assert_eq!(index.read().threads.newest_empty_time(), Some(Timestamp::from_secs(6)));
    assert!(
        !index.read().threads.is_thread_visible(bare, true)
            && index.read().threads.has_thread_folder(bare, false)
    );
    let identity = {
        let IndexTables { messages, threads, .. } = &*index.read();
        let identity = threads.thread_identity(messages, bare);
        assert_eq!(threads.find_thread_by_identity(messages, identity), Some(bare));
        identity
    };
    // Nothing changed, so no listener is called.
    index.refresh_store(0, false).unwrap();
    assert!(heard.lock().is_empty());
    // One thread changes, one goes, one is new.
    bed.folder.lock().empty = vec![empty("bare", 7), empty("next", 8)];
    let generation = index.read().generation();
    index.refresh_store(0, false).unwrap();
    let mut changed = heard.lock().pop().unwrap().empty_threads;
    changed.sort_unstable();
    let mut expected = vec![find(&index, "a"), bare, find(&index, "next")];
    expected.sort_unstable();
    assert_eq!(changed, expected);
    assert!(index.read().generation() > generation);
    assert_eq!(folders(&index), ["a", "bare", "next"]);
    // The first message of a thread arrives.
    bed.put(2, message("foo", "next", 20));
    bed.folder.lock().empty = vec![empty("bare", 7)];
    index.refresh_store(0, false).unwrap();
    assert_eq!(entry(&index, "next").thread(), find(&index, "next"));
    assert_eq!(folders(&index), ["a", "bare", "next"]);
    bed.folder.lock().empty.clear();
    index.refresh_store(0, false).unwrap();
    assert_eq!(folders(&index), ["a", "next"]);
    // After a reload of the snapshot, only reported threads exist.
    bed.folder.lock().empty = vec![empty("bare", 9)];
    index.close();
    let index = bed.open();
    assert_eq!(folders(&index), ["a", "bare", "next"]);
    let bare = find(&index, "bare");
    let tables = index.read();
    assert_eq!(tables.threads.thread_identity(&tables.messages, bare), identity);
}
