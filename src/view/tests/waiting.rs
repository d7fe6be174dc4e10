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
    let changes = b.tree.index().change_signal().count();
    assert_eq!(b.cat(".next"), "");
    assert_eq!(b.tree.index().change_signal().count(), changes);
    b.stores[0].folder.lock().unreadable.clear();
    takes("00000002aaaa");
}

#[test]
fn next_tries_each_message_once() {
    let count: u32 = 20;
    let at = |n: u32| T0 + i64::from(n);
    let letters = (0..=count).map(|n| letter(&format!("{n:08}aaaa"), at(n), &[])).collect();
    let b = bed(vec![store(letters)]);
    let denied = (0..count).map(|n| (n, denied as fn() -> StoreError)).collect();
    b.stores[0].folder.lock().unreadable = denied;
    let reads = || std::mem::take(&mut b.stores[0].folder.lock().reads);
    reads();
    assert!(b.cat(".next").contains("00000020aaaa"));
    assert!(reads() < 2 * count as usize);
    // A folder that is away is not read for each of its messages.
    b.stores[0].folder.lock().away = true;
    assert!(b.tree.index().refresh_store(0, false).is_err());
    reads();
    copy_path_to(&b.tree, ".next", &mut Vec::new()).unwrap_err();
    assert_eq!(reads(), 1);
}

/// A message that is made unread while the `.next` that handed it out is still open is handed out again.
#[test]
fn next_hands_out_again_what_is_unread_again() {
    let b = bed(vec![store(vec![letter("00000001aaaa", T0, &[])])]);
    let access = OpenRequest { opener: 7, ..OpenRequest::default() };
    let file = b.tree.open(&b.tree.resolve_path(".next").unwrap(), &access).unwrap();
    assert!(crate::view::wait::try_fill_answer(&b.tree, &file).unwrap());
    assert!(!b.tree.read(&file, 0, 1 << 20, 7).unwrap().is_empty());
    // The opener closes a duplicate of the descriptor.
    b.tree.flush(&file, 7).unwrap();
    assert_eq!(b.names("inbox"), [""; 0]);
    let archived = b.names("archive/2026-04-24");
    let name = archived.first().unwrap();
    let path = format!("archive/2026-04-24/{name}");
    rename_path(&b.tree, &path, &format!("inbox/{name}")).unwrap();
    b.tree.release(&file);
    assert!(b.cat(".next").contains("00000001aaaa"));
    assert_eq!(b.cat(".next"), "");
}
