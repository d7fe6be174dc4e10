//! `msgfs check`: every message file of my mailbox against the rules of the format.

use std::collections::{BTreeMap, HashSet};

use super::Amq;
use super::message;
use super::queue::Place;
use crate::model::one_line;
use crate::store::digest::print;
use crate::store::engine::files::{Visit, parts, violation};
use crate::store::{Report, Store as _, StoreError, Verify};

/// Reports each violation, file by file.
pub(super) fn check(store: &Amq, verify: Verify<'_>, report: Report<'_>) -> Result<(), StoreError> {
    let mine = format!("agents/{}/", store.me());
    let mut claimed = HashSet::new();
    let mut ids: BTreeMap<String, (u64, String)> = BTreeMap::new();
    store.visit(&mut |visit| {
        let (folder, name, bytes) = match visit {
            Visit::Message { folder, name, bytes, .. } => (folder, name, bytes),
            Visit::Wrong(wrong) if wrong.file.starts_with(&mine) => return report(wrong),
            Visit::Wrong(_) | Visit::Other { .. } => return,
        };
        // What others have is theirs to mend.
        let place = store.format.place(&parts(folder));
        let Some(place) = place.filter(|place| *place != Place::Theirs) else { return };
        let path = format!("{folder}/{name}");
        let mut say = |rule, why: String| report(violation(&path, rule, one_line(&why).into()));
        // In the order of names, cur comes before new.
        if place == Place::Cur {
            claimed.insert(name.to_owned());
        } else if place == Place::New && claimed.contains(name) {
            say("twice", "there is a file of this name in cur/, too".into());
        }
        match (name.strip_suffix(".md"), message::parse(bytes)) {
            _ if place == Place::Dead => say("dead_letter", "is a dead letter".into()),
            (None, _) => say("name", "the name of a message ends in .md".into()),
            (_, Err(fault)) => say("schema", fault.to_string()),
            (Some(stem), Ok(read)) => {
                let (id, content) = (read.shown.id, print(bytes));
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
    for folder in store.missing() {
        report(violation(&folder, "mailbox", "is not there".into()));
    }
    Ok(())
}
