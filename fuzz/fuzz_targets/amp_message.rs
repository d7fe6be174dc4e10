//! Files of foreign mailboxes: nothing panics, and a mark changes nothing that is signed.
#![no_main]

use libfuzzer_sys::fuzz_target;
use msgfs::model::Timestamp;
use msgfs::store::amp::{edit, envelope, scan_text, verify};

fuzz_target!(|data: &[u8]| {
    let now = Timestamp::from_secs(1_700_000_000);
    let marked = edit::set_status(data, true, now);
    let Ok(stored) = envelope::parse(data) else { return };
    let _ = verify::check(&stored);
    let claim = verify::claim(&stored, None, &[]);
    let _ = verify::bodies(&stored, None, &[]);
    if let Some(text) = &stored.message {
        let _ = scan_text::flags(text, &[]);
    }
    if let Some(marked) = marked {
        let again = envelope::parse(&marked).expect("a mark leaves a message a message");
        assert_eq!(again.payload, stored.payload);
        assert_eq!(verify::claim(&again, None, &[]), claim);
        let _ = edit::set_status(&marked, false, now).expect("what was marked can be unmarked");
    }
});
