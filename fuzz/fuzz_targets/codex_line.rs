//! Lines of transcripts of Codex: nothing panics, and the files of a message have safe, different names.
#![no_main]

use std::collections::HashSet;

use libfuzzer_sys::fuzz_target;
use msgfs::model::Timestamp;
use msgfs::store::sessions::build::MessageBuilder;
use msgfs::store::sessions::codex::line;
use msgfs::store::sessions::message::SessionRole;
use msgfs::store::sessions::render::render_message;

fuzz_target!(|data: &[u8]| {
    let text = String::from_utf8_lossy(data);
    let _ = line::parse("thread", &text);
    let mut message = MessageBuilder::default();
    for line in text.lines() {
        line::read_contents(line, &mut message);
    }
    let built = message.finish(String::new(), SessionRole::Agent, None, Timestamp::default());
    let shown = render_message(&built.message);
    let names: HashSet<&str> = shown.parts.iter().map(|part| part.name.as_str()).collect();
    assert_eq!(names.len(), shown.parts.len());
    assert!(names.iter().all(|name| !name.contains('/') && !name.starts_with('.')));
});
