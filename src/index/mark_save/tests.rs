//! Tests of marks that cannot be saved.

use std::fs::File;
use std::sync::Arc;

use super::*;
use crate::index::testing::{Bed, at, entry, message};

/// A mark that cannot be written is an error each time, counts in this process, and is written later (S1212).
#[test]
fn a_mark_that_cannot_be_saved_is_an_error_until_it_is_saved() {
    let bed = Bed::new();
    for (n, id) in [(1, "a"), (2, "b"), (3, "c")] {
        bed.put(n, message("foo", id, 5));
    }
    let index = bed.open();
    let full = Arc::new(File::options().write(true).open("/dev/full").unwrap());
    let file = index.marks.lock().swap_file(full);
    let is_full = |result: Result<(), StoreError>| match result {
        Err(StoreError::Io { source, .. }) => source.raw_os_error() == Some(libc::ENOSPC),
        _ => false,
    };
    assert!(is_full(index.mark_message(at(&index, "a"), true, false)));
    assert!(is_full(index.mark_message(at(&index, "a"), true, false)), "it is still not saved");
    let label = MailLabel { old: true, ..MailLabel::default() };
    assert!(is_full(index.set_label(at(&index, "b"), label, Some(true))));
    assert!(is_full(index.mark_all_read().map(drop)));
    assert!(
        is_full(index.mark_all_read().map(drop)),
        "nothing is unread here, and nothing is saved"
    );
    assert!(["a", "b", "c"].iter().all(|id| entry(&index, id).is_read()));
    assert!(index.unsaved_marks_fault().unwrap().contains("No space left"));
    assert!(index.sync_marks_to_stores().is_some(), "it is tried again without another mark");
    index.marks.lock().swap_file(file);
    index.sync_marks_to_stores();
    assert_eq!(index.unsaved_marks_fault(), None);
    assert_eq!(index.mark_all_read().unwrap(), 0);
    bed.folder.lock().edit(1, |f| f.read = Some(false));
    // The process is killed.
    drop(index);
    let index = bed.open();
    assert!(["a", "b", "c"].iter().all(|id| entry(&index, id).is_read()));
}
