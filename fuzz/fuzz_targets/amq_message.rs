//! Files of foreign queues: nothing panics, and a message stays a message when its text changes.
#![no_main]

use libfuzzer_sys::fuzz_target;
use msgfs::store::amq::message::{AmqParseError, FILE_BYTES, is_handle, is_id, parse};

fuzz_target!(|data: &[u8]| {
    match parse(data) {
        Err(AmqParseError::Incomplete) => {}
        Err(fault) => assert!(!fault.to_string().is_empty()),
        Ok(message) => {
            let shown = &message.message;
            assert!(is_id(&shown.id) && shown.from.as_deref().is_some_and(is_handle));
            assert!(!shown.to.is_empty() && shown.to.iter().all(|to| is_handle(to)));
            assert_eq!(shown.in_reply_to.as_ref(), message.refs.last());
            let longer = [data, b"x"].concat();
            if longer.len() <= FILE_BYTES {
                let again = parse(&longer).expect("a message stays a message");
                assert_eq!((&again.message.id, &again.parts), (&shown.id, &message.parts));
            }
        }
    }
});
