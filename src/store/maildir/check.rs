//! The check of every mail for `msgfs check`, and advice for `msgfs doctor`.

use super::MaildirStore;
use super::mail;
use crate::model::{display_path, quote_shell_word, sanitize_line};
use crate::store::engine::files::{WalkEntry, file_violation};
use crate::store::fs;
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
    let is_missing = |leaf: &&str| !dir.join(leaf).is_dir();
    let missing: Vec<&str> = ["new", "cur", "tmp"].into_iter().filter(is_missing).collect();
    if missing.is_empty() {
        return Vec::new();
    }
    let there = if fs::is_folder_missing(dir) {
        format!("the folder {} does not exist", display_path(dir))
    } else {
        format!("no {}/ is there", missing.join("/ and no "))
    };
    let path = |leaf: &&str| quote_shell_word(&dir.join(leaf).to_string_lossy());
    let paths: Vec<String> = missing.iter().map(path).collect();
    vec![Advice {
        problem: format!("{there}; a Maildir has new/, cur/ and tmp/"),
        command: Some(format!("mkdir -p {}", paths.join(" "))),
        serious: true,
    }]
}
