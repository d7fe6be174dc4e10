//! Files of foreign SSOTs: nothing panics, each shown message can be printed again, and a message that is printed anew
//! is the same message.
#![no_main]

use libfuzzer_sys::fuzz_target;
use msgfs::store::ssot::envelope::SsotMessage;
use msgfs::store::ssot::text;

fuzz_target!(|data: &[u8]| {
    match SsotMessage::parse(data) {
        Err(fault) => assert!(!fault.breaches.is_empty() && !fault.to_string().is_empty()),
        Ok(message) => {
            let _ = text::render_body(&message);
            let printed = message.node.render_pretty();
            let again = SsotMessage::parse(printed.as_bytes()).expect("a message stays a message");
            assert_eq!(again, message);
        }
    }
});
