//! The check of every mail for `msgfs check`, and advice for `msgfs doctor`.

use super::MaildirStore;
use super::mail;
use crate::model::{quote_shell_word, sanitize_line};
use crate::store::engine::files::{WalkEntry, file_violation};
use crate::store::{Advice, ClaimVerifier, StoreError, ViolationReporter};

/// Reports each violation, file by file.
pub(super) fn check_mails(
    store: &MaildirStore,
    verify: ClaimVerifier<'_>,
    report: ViolationReporter<'_>,
) -> Result<(), StoreError> {
    store.visit_entries(&mut |visit| match visit {
        WalkEntry::Message { folder, name, stamp, bytes } => {
            let mut say = |rule, why: String| {
                let why = sanitize_line(&why).into();
                report(file_violation(&format!("{folder}/{name}"), rule, why));
            };
            match mail::parse_mail(bytes, name, stamp.modified()) {
                Err(fault) => say("mail", fault.to_string()),
                Ok(read) => {
                    if let Some(wrong) = read.claim.as_ref().and_then(verify) {
                        say("signature", wrong);
                    }
                }
            }
        }
        WalkEntry::Wrong(wrong) => report(wrong),
        WalkEntry::Other { .. } => {}
    })
}

/// Advises to make a missing folder of the Maildir, without which other programs deliver nothing.
pub(super) fn advise(store: &MaildirStore) -> Vec<Advice> {
    let dir = &store.properties.dir;
    let missing = ["new", "cur", "tmp"].into_iter().find(|leaf| store.open_folder(leaf).is_err());
    let Some(leaf) = missing else { return Vec::new() };
    vec![Advice {
        problem: format!("{leaf}/ is not there; a Maildir has new/, cur/ and tmp/"),
        command: Some(format!("mkdir {}", quote_shell_word(&dir.join(leaf).to_string_lossy()))),
        serious: true,
    }]
}
