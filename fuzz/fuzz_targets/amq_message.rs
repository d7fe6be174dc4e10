//! Files of foreign queues: nothing panics, and what is a message stays one with another text.
#![no_main]

use libfuzzer_sys::fuzz_target;
use msgfs::store::amq::message::{FILE_BYTES, Fault, is_handle, is_id, parse};

fuzz_target!(|data: &[u8]| {
    match parse(data) {
        Err(Fault::Unfinished) => {}
        Err(fault) => assert!(!fault.to_string().is_empty()),
        Ok(message) => {
            let shown = &message.shown;
            assert!(is_id(&shown.id) && shown.from.as_deref().is_some_and(is_handle));
            assert!(!shown.to.is_empty() && shown.to.iter().all(|to| is_handle(to)));
            assert_eq!(shown.in_reply_to.as_ref(), message.refs.last());
            let longer = [data, b"x"].concat();
            if longer.len() <= FILE_BYTES {
                let again = parse(&longer).expect("a message stays a message");
                assert_eq!((&again.shown.id, &again.parts), (&shown.id, &message.parts));
            }
        }
    }
});
