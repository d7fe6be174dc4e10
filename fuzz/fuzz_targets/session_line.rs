//! Lines of transcripts: nothing panics, the files of a message have safe, different names, and a kept message is the
//! same when it is read.
#![no_main]

use std::collections::HashSet;

use libfuzzer_sys::fuzz_target;
use msgfs::model::Timestamp;
use msgfs::store::atsf::keep::head::KeptSource;
use msgfs::store::atsf::keep::line::{list_assets, read_message, render};
use msgfs::store::atsf::line;
use msgfs::store::sessions::build::MessageBuilder;
use msgfs::store::sessions::claude::ClaudeCode;
use msgfs::store::sessions::codex::CodexCli;
use msgfs::store::sessions::dialect::SessionDialect;
use msgfs::store::sessions::message::SessionRole;
use msgfs::store::sessions::render::render_message;

fn check_lines<D: SessionDialect>(text: &str) {
    let mut builder = MessageBuilder::default();
    for line in text.lines() {
        let _ = (D::parse_line("thread", line), D::read_context(line));
        D::read_contents(line, &mut builder);
    }
    let id = "0".repeat(32);
    let message = builder.finish(id, SessionRole::Agent, None, Timestamp::default()).message;
    let shown = render_message(&message);
    let names: HashSet<&str> = shown.parts.iter().map(|part| part.name.as_str()).collect();
    assert_eq!(names.len(), shown.parts.len());
    assert!(names.iter().all(|name| !name.contains('/') && !name.starts_with('.')));
    let kept = render(D::KIND, &message);
    let line = line::parse(&kept).expect("a kept message is a line");
    let assets = list_assets(&message);
    let find =
        |name: &str| assets.iter().find(|(known, _)| known == name).map(|(_, data)| data.to_vec());
    let source = KeptSource { kind: D::KIND, agent: None };
    assert_eq!(read_message(&line, &kept, &source, &find), message);
}

fuzz_target!(|data: &[u8]| {
    let text = String::from_utf8_lossy(data);
    check_lines::<ClaudeCode>(&text);
    check_lines::<CodexCli>(&text);
});
