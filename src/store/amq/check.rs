//! The check of every message file of my mailbox for `msgfs check`.

use std::collections::{BTreeMap, HashSet};

use super::AmqStore;
use super::format::AmqFolderKind;
use super::message;
use crate::model::sanitize_line;
use crate::store::digest::secure_hash64;
use crate::store::engine::files::{WalkEntry, file_violation, path_parts};
use crate::store::{ClaimVerifier, Store as _, StoreError, ViolationReporter};

/// Reports each violation, file by file.
pub(super) fn check_messages(
    store: &AmqStore,
    verify: ClaimVerifier<'_>,
    report: ViolationReporter<'_>,
) -> Result<(), StoreError> {
    let mine = format!("agents/{}/", store.me());
    let mut claimed = HashSet::new();
    let mut ids: BTreeMap<String, (u64, String)> = BTreeMap::new();
    store.visit_entries(&mut |visit| {
        let (folder, name, bytes) = match visit {
            WalkEntry::Message { folder, name, bytes, .. } => (folder, name, bytes),
            WalkEntry::Wrong(wrong) if wrong.file.starts_with(&mine) => return report(wrong),
            WalkEntry::Wrong(_) | WalkEntry::Other { .. } => return,
        };
        // Other agents mend their own folders.
        let place = store.format.classify_folder(&path_parts(folder));
        let Some(place) = place.filter(|place| *place != AmqFolderKind::OtherAgent) else { return };
        let path = format!("{folder}/{name}");
        let mut say =
            |rule, why: String| report(file_violation(&path, rule, sanitize_line(&why).into()));
        // The walk goes by name, so cur comes before new.
        if place == AmqFolderKind::Cur {
            claimed.insert(name.to_owned());
        } else if place == AmqFolderKind::New && claimed.contains(name) {
            say("twice", "there is a file of this name in cur/, too".into());
        }
        match (name.strip_suffix(".md"), message::parse(bytes)) {
            _ if place == AmqFolderKind::DeadLetter => {
                say("dead_letter", "is a dead letter".into());
            }
            (None, _) => say("name", "the name of a message ends in .md".into()),
            (_, Err(fault)) => say("schema", fault.to_string()),
            (Some(stem), Ok(read)) => {
                let (id, content) = (read.message.id, secure_hash64(bytes));
                if stem != id {
                    say("name", format!("the file is not named after its id {id}"));
                }
                if let Some(wrong) = read.claim.as_ref().and_then(verify) {
                    say("signature", wrong);
                }
                let (first, other) = ids.entry(id.clone()).or_insert((content, path.clone()));
                if *first != content {
                    say("duplicate", format!("the id {id} is that of another message in {other}"));
                }
            }
        }
    })?;
    for folder in store.missing_folders() {
        report(file_violation(&folder, "mailbox", "is not there".into()));
    }
    Ok(())
}
