//! What is seen of a draft while it is released.

use super::{Bed, Target, of};

/// The kernel releases a draft some time after its last close returned, while who closed it goes on.
#[test]
fn a_draft_is_found_at_every_moment_of_its_release() {
    let bed = Bed::new();
    let outbox = bed.open();
    for n in 0..3000 {
        let (from, to) = (of(&format!("bob{n}.tmp")), of(&format!("bob{n}.bak")));
        let id = outbox.start(&from.0, Target::Outbox, true).unwrap();
        outbox.write(id, Some(0), b"hello\n").unwrap();
        outbox.flush(id, true).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| outbox.release(id));
            assert!(outbox.list().iter().any(|listed| listed.name == from.0), "{n}");
            assert!(outbox.find(&from.0).is_some(), "{n}");
            outbox.rename(&from, &to, true).unwrap();
        });
        assert!(outbox.find(&to.0).is_some() && outbox.find(&from.0).is_none(), "{n}");
        outbox.remove(&to.0, &Target::Outbox).unwrap();
    }
}
