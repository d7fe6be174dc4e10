//! The view of a draft during its release.

use std::time::Duration;

use super::{BOB, Bed, DraftTarget, of};
use crate::outbox::CLOSING;

/// The kernel releases a draft some time after its last close returned, while the process that closed it goes on.
#[test]
fn a_draft_is_found_at_every_moment_of_its_release() {
    let bed = Bed::new();
    let outbox = bed.open();
    for n in 0..3000 {
        let (from, to) = (of(&format!("bob{n}.tmp")), of(&format!("bob{n}.bak")));
        let id = outbox.start_draft(&from.0, DraftTarget::Outbox, true).unwrap();
        outbox.write(id, Some(0), b"hello\n").unwrap();
        outbox.flush(id, true).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| outbox.release(id));
            assert!(outbox.list_entries().iter().any(|listed| listed.name == from.0), "{n}");
            assert!(outbox.find_entry(&from.0).is_some(), "{n}");
            outbox.rename_draft(&from, &to, true).unwrap();
        });
        assert!(outbox.find_entry(&to.0).is_some() && outbox.find_entry(&from.0).is_none(), "{n}");
        outbox.remove(&to.0, &DraftTarget::Outbox).unwrap();
    }
}

#[test]
fn a_draft_that_is_removed_while_it_is_open_is_sent_by_no_later_process() {
    let bed = Bed::new();
    let outbox = bed.open();
    let id = outbox.start_draft(BOB, DraftTarget::Outbox, true).unwrap();
    outbox.write(id, Some(0), b"not yet\n").unwrap();
    outbox.flush(id, true).unwrap();
    outbox.remove(BOB, &DraftTarget::Outbox).unwrap();
    bed.open().wait_until_appended(Duration::from_secs(5));
    assert!(bed.memory.sent().is_empty());
}

/// A child has written the text and closed it earlier. The close of the opener brings no text.
#[test]
fn a_listing_waits_for_the_release_after_a_close_without_new_text() {
    let bed = Bed::new();
    let outbox = bed.open();
    let id = outbox.start_draft(BOB, DraftTarget::Outbox, true).unwrap();
    outbox.write(id, Some(0), b"hello\n").unwrap();
    outbox.flush(id, false).unwrap();
    std::thread::sleep(CLOSING);
    outbox.flush(id, true).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(CLOSING / 4);
            outbox.release(id);
        });
        outbox.wait_until_appended(Duration::from_secs(5));
        assert_eq!(bed.memory.sent().len(), 1);
    });
}
