//! `.next` while messages cannot be read.

use std::io;

use super::*;
use crate::store::StoreError;

fn denied() -> StoreError {
    StoreError::io(Path::new("x"), io::Error::from_raw_os_error(libc::EACCES))
}

#[test]
fn next_passes_over_messages_that_cannot_be_read() {
    let letters = (1..=4).map(|n| letter(&format!("0000000{n}aaaa"), T0 + n, &[])).collect();
    let b = bed(vec![store(letters)]);
    let takes = |id: &str| {
        let text = b.cat(".next");
        assert!(text.contains(id), "{id}: {text}");
    };
    let unreadable: [(u32, fn() -> StoreError); 2] = [(0, denied), (1, || StoreError::Moved)];
    b.stores[0].folder.lock().unreadable = unreadable.into();
    takes("00000003aaaa");
    takes("00000004aaaa");
    // Only if no message can be read, the reader hears why.
    let e = copy_path_to(&b.tree, ".next", &mut Vec::new()).unwrap_err();
    assert_eq!(e.errno(), libc::EACCES);
    assert_eq!(b.tree.index().read().marks.unread_count(), 2);
    b.stores[0].folder.lock().unreadable.remove(&0);
    takes("00000001aaaa");
    // The reader waits for a message that moves, and is not woken by its own attempt.
    assert_eq!(b.cat(".next"), "");
    let changes = b.tree.index().change_count();
    assert_eq!(b.cat(".next"), "");
    assert_eq!(b.tree.index().change_count(), changes);
    b.stores[0].folder.lock().unreadable.clear();
    takes("00000002aaaa");
}
