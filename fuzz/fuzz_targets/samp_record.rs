//! Lines of a foreign log: nothing panics, and what is delivered can be written again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use msgfs::model::Claim;
use msgfs::store::text::canonical::signed_bytes;
use msgfs::store::samp::record::{Scratch, claim, parse};

fuzz_target!(|data: &[u8]| {
    let text = String::from_utf8_lossy(data);
    let mut scratch = Scratch::default();
    for line in text.split('\n') {
        let claimed = claim(line);
        let Ok(record) = parse(line, &mut scratch) else { continue };
        assert!(!record.id.is_empty());
        assert_eq!(record.has_sig, claimed.is_some());
        let _ = record.body_text();
        if let Some(Claim::Signed { covered, .. }) = claimed {
            // What a signature covers is canonical: it is its own canonical form.
            let covered = covered.all().concat();
            let json = covered.strip_prefix(b"samp-sig-v1\n").expect("the context comes first");
            let json = std::str::from_utf8(json).expect("canonical JSON is UTF-8");
            assert_eq!(signed_bytes(json).as_deref(), Some(&*covered));
        }
    }
});
