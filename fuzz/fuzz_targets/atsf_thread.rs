//! Foreign `thread.json` files: nothing panics, and an edit changes the derived members only.
#![no_main]

use libfuzzer_sys::fuzz_target;
use msgfs::model::Timestamp;
use msgfs::store::atsf::{AtsfThreadStats, edit, thread};

fuzz_target!(|data: &[u8]| {
    let before = thread::parse(data);
    let stats = AtsfThreadStats { messages: 3, user: 1, agent: 1, system: 1, calls: 7 };
    let updated = Some(Timestamp::from_secs(1_700_000_000));
    let Ok(Some(edited)) = edit::set_derived(data, &stats, updated) else { return };
    // A second edit changes nothing, and the thread is the same.
    assert_eq!(edit::set_derived(&edited, &stats, updated), Ok(None));
    match (before, thread::parse(&edited)) {
        (thread::AtsfThreadFile::Thread(a), thread::AtsfThreadFile::Thread(b)) => {
            assert_eq!((a.id, a.title, a.created), (b.id, b.title, b.created));
        }
        (a, b) => assert_eq!(std::mem::discriminant(&a), std::mem::discriminant(&b)),
    }
});
