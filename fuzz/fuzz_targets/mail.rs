//! Foreign mails: nothing panics, no part is read as a mail, and an unencoded part is shown with its own bytes.
#![no_main]

use libfuzzer_sys::fuzz_target;
use mail_parser::{Encoding, PartType};
use msgfs::mime;

fuzz_target!(|data: &[u8]| {
    let _ = mime::parse_headers(data);
    let Ok(mut mail) = mime::parse(data) else { return };
    for part in &mail.parts {
        assert!(!matches!(part.body, PartType::Message(_)));
        if let (Encoding::None, PartType::Binary(bytes)) = (part.encoding, &part.body) {
            assert_eq!(bytes.as_ref(), mime::charset::bytes(&mail, part).as_ref());
        }
    }
    mime::charset::unicode_texts(&mut mail);
    mime::find_text(&mut mail);
    if let Some(text) = mime::charset::unicode_headers(&mail) {
        let _ = mime::parse(&text);
    }
});
