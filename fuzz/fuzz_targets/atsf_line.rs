//! Lines of foreign logs: nothing panics, and the attachments of a message have safe, different names.
#![no_main]

use std::collections::HashSet;

use libfuzzer_sys::fuzz_target;
use msgfs::store::atsf::{blocks, line, sign};

fuzz_target!(|data: &[u8]| {
    let text = String::from_utf8_lossy(data);
    let _ = sign::extract_claim(&text);
    let Ok(message) = line::parse(&text) else { return };
    let _ = (message.parse_timestamp(), message.call_count());
    let shown = blocks::render(&message, &|_| Ok(1));
    let names: HashSet<&str> = shown.parts.iter().map(|p| p.name.as_str()).collect();
    assert_eq!(names.len(), shown.parts.len());
    assert!(names.iter().all(|name| !name.contains('/') && !name.starts_with('.')));
    if !shown.parts.is_empty() || !shown.assets.is_empty() {
        assert!(message.has_parts());
    }
});
