//! Files of foreign SSOTs: nothing panics, what is shown can be printed again, and a message that is
//! printed anew is the same message.
#![no_main]

use libfuzzer_sys::fuzz_target;
use msgfs::store::ssot::envelope::Message;
use msgfs::store::ssot::text;

fuzz_target!(|data: &[u8]| {
    match Message::parse(data) {
        Err(fault) => assert!(!fault.breaches.is_empty() && !fault.to_string().is_empty()),
        Ok(message) => {
            let _ = text::body(&message);
            let printed = message.node.pretty();
            let again = Message::parse(printed.as_bytes()).expect("a message stays a message");
            assert_eq!(again, message);
        }
    }
});
