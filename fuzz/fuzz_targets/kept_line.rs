//! Lines of kept threads, as other programs may leave them: nothing panics, and a message that was read from one is the
//! same when it is kept and read again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use msgfs::store::Kind;
use msgfs::store::atsf::keep::head::KeptSource;
use msgfs::store::atsf::keep::line::{list_assets, read_message, render};
use msgfs::store::atsf::line;

fuzz_target!(|data: &[u8]| {
    let text = String::from_utf8_lossy(data);
    let Ok(parsed) = line::parse(&text) else { return };
    for kind in [Kind::Claude, Kind::Codex] {
        let source = KeptSource { kind, agent: None };
        let asset = |name: &str| Some(name.as_bytes().to_vec());
        let message = read_message(&parsed, &text, &source, &asset);
        let kept = render(kind, &message);
        let parsed = line::parse(&kept).expect("a kept message is a line");
        let assets = list_assets(&message);
        let find = |name: &str| {
            assets.iter().find(|(known, _)| known == name).map(|(_, data)| data.to_vec())
        };
        assert_eq!(read_message(&parsed, &kept, &source, &find), message);
    }
});
