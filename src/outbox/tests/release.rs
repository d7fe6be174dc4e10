//! The view of a draft during its release.

use super::{Bed, DraftTarget, of};

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
