//! Lines of a foreign log: nothing panics, and each accepted record can be written again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use msgfs::model::SignatureClaim;
use msgfs::store::samp::files::parse_list;
use msgfs::store::samp::record::{SampScratch, parse, parse_claim};
use msgfs::store::text::canonical::signed_bytes;

fuzz_target!(|data: &[u8]| {
    let text = String::from_utf8_lossy(data);
    let mut scratch = SampScratch::default();
    for line in text.split('\n') {
        let claimed = parse_claim(line);
        let Ok(record) = parse(line, &mut scratch) else { continue };
        assert!(!record.id.is_empty());
        assert_eq!(record.has_sig, claimed.is_some());
        let _ = record.body_text();
        if let Some(list) = record.files {
            let files = parse_list(list).expect("a record lists files in a list");
            assert!(!files.is_empty() && files.len() <= list.len());
        }
        if let Some(SignatureClaim::Signed { covered, .. }) = claimed {
            // The signed bytes are canonical: they are their own canonical form.
            let covered = covered.candidates().concat();
            let json = covered.strip_prefix(b"samp-sig-v1\n").expect("the context comes first");
            let json = std::str::from_utf8(json).expect("canonical JSON is UTF-8");
            assert_eq!(signed_bytes(json).as_deref(), Some(&*covered));
        }
    }
});
