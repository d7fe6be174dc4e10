//! Bytes that somebody wrote into the mount give a draft or a reason, never a panic.
#![no_main]

use libfuzzer_sys::fuzz_target;
use msgfs::outbox::draft::DraftParser;

fuzz_target!(|data: &[u8]| match DraftParser::with_headers(["Task"]).parse(data) {
    Ok(draft) => assert!(!draft.body.ends_with('\n')),
    Err(error) => assert!(!error.to_string().is_empty()),
});
