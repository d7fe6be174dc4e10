//! Text of a new message: a thread always comes out, and the body is in NFC.
#![no_main]

use libfuzzer_sys::fuzz_target;
use msgfs::store::text::pytext::nfc;
use msgfs::store::samp::thread::derive;

fuzz_target!(|body: &str| {
    let (thread, rest) = derive(body, "me", "2026-04-25");
    assert!(!thread.id().is_empty());
    assert!(!thread.id().chars().any(|c| c.is_ascii_control()));
    assert_eq!(nfc(&rest), rest);
});
