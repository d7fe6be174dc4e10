//! Files of foreign mailboxes: nothing panics, a mark changes only the mark, and changed text is never credited to a
//! signer.
#![no_main]

use libfuzzer_sys::fuzz_target;
use msgfs::model::{SignatureClaim, SignatureScope, verify};
use msgfs::store::agentazall::{block, text};

fuzz_target!(|data: &[u8]| {
    let letter = text::parse(data);
    let reading = block::read(&letter);
    if let Some(claim @ SignatureClaim::Signed { scope, .. }) = &reading.claim {
        assert_eq!(*scope == SignatureScope::Part, reading.body_if_valid.is_some());
        // An id or an answer that only the key's owner can give is taken from a message only if its signature fits.
        if reading.signed_id.is_some() || reading.in_reply_to.is_some() {
            assert_eq!(verify::find_claim_fault(claim), None);
        }
    }
    if let Some(marked) = text::set_read(data) {
        assert_eq!(marked.len(), data.len() + 1);
        let read = text::parse(&marked);
        assert!(read.is_read() && !letter.is_read());
        assert_eq!(read.body, letter.body);
        assert_eq!(text::set_read(&marked), None);
    }
});
