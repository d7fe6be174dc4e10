//! Bytes that somebody wrote into the mount: a draft or a reason, never a panic.
#![no_main]

use libfuzzer_sys::fuzz_target;
use msgfs::outbox::draft::Headers;

fuzz_target!(|data: &[u8]| match Headers::with(["Task"]).parse(data) {
    Ok(draft) => assert!(!draft.body.ends_with('\n')),
    Err(error) => assert!(!error.to_string().is_empty()),
});
