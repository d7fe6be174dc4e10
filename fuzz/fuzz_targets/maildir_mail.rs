//! Mails of foreign Maildirs: nothing panics, the canonical form is JSON, and more trace headers change nothing of it.
#![no_main]

use libfuzzer_sys::fuzz_target;
use msgfs::model::Timestamp;
use msgfs::store::maildir::mail::parse_mail;
use msgfs::store::maildir::names::{folder_name, has_flag, set_flag, unique_part};

fuzz_target!(|data: &[u8]| {
    let time = Timestamp::from_secs(1_700_000_000);
    if let Ok(name) = std::str::from_utf8(data)
        && let Some(read) = set_flag(name, 'S', true)
    {
        assert!(has_flag(&read, 'S') && unique_part(&read) == unique_part(name));
        let _ = folder_name(&name.split('/').collect::<Vec<_>>());
    }
    let Ok(mail) = parse_mail(data, "x", time) else { return };
    assert!(mail.canonical.starts_with('{') && mail.canonical.ends_with('}'));
    assert_eq!(mail.files.len(), mail.message.attachments.len());
    assert!(!mail.message.id.is_empty() && !mail.message.id.contains('\0'));
});
