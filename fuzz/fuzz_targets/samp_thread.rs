//! The text of a new message always gives a thread, and the body is in NFC.
#![no_main]

use libfuzzer_sys::fuzz_target;
use msgfs::store::samp::thread::{derive_thread, split_thread};
use msgfs::store::text::pytext::to_nfc;

fuzz_target!(|body: &str| {
    let (named, rest) = split_thread(body);
    let thread = named.unwrap_or_else(|| derive_thread(&rest, "me", "2026-04-25"));
    assert!(!thread.is_empty());
    assert!(!thread.chars().any(|c| c.is_ascii_control()));
    assert_eq!(to_nfc(&rest), rest);
});
