//! Files of foreign mailboxes: nothing panics, and a mark changes no signed byte.
#![no_main]

use libfuzzer_sys::fuzz_target;
use msgfs::model::Timestamp;
use msgfs::store::amp::{edit, envelope, injection, verify};

fuzz_target!(|data: &[u8]| {
    let now = Timestamp::from_secs(1_700_000_000);
    let marked = edit::set_status(data, true, now);
    let Ok(stored) = envelope::parse(data) else { return };
    let _ = verify::check_signed_fields(&stored);
    let claim = verify::extract_claim(&stored, None, &[]);
    let _ = verify::choose_bodies(&stored, None, &[]);
    if let Some(text) = &stored.message {
        let _ = injection::detect_injections(text, &[]);
    }
    if let Some(marked) = marked {
        let again = envelope::parse(&marked).expect("a mark leaves a message a message");
        assert_eq!(again.payload, stored.payload);
        assert_eq!(verify::extract_claim(&again, None, &[]), claim);
        let _ = edit::set_status(&marked, false, now).expect("what was marked can be unmarked");
    }
});
