//! `msgfs check`: every message file of my mailbox against the rules of the format.

use super::Amq;
use super::message::{self, stem_of};
use super::queue::Place;
use crate::model::{Claim, one_line};
use crate::store::engine::files::{Visit, violation};
use crate::store::{StoreError, Violation};

/// Reports each violation, file by file.
pub(super) fn check(
    store: &Amq,
    verify: &dyn Fn(&Claim) -> Option<String>,
    report: &mut dyn FnMut(Violation),
) -> Result<(), StoreError> {
    let mine = format!("agents/{}/", store.me());
    store.files.visit(&mut |visit| {
        let (folder, name, bytes) = match visit {
            Visit::Message { folder, name, bytes, .. } => (folder, name, bytes),
            Visit::Wrong(wrong) if wrong.file.starts_with(&mine) => return report(wrong),
            Visit::Wrong(_) | Visit::Other { .. } => return,
        };
        // What others have is theirs to mend.
        let place = store.files.format.place(folder).filter(|place| *place != Place::Theirs);
        let path = format!("{folder}/{name}");
        let mut say = |rule, why: String| report(violation(&path, rule, one_line(&why).into()));
        match (place, message::parse(bytes)) {
            (None, _) => {}
            (Some(Place::Dead), _) => say("dead_letter", "is a dead letter".into()),
            (Some(_), Err(fault)) => say("schema", fault.to_string()),
            (Some(_), Ok(read)) => {
                if stem_of(name) != Some(&*read.id) {
                    say("name", format!("the file is not named after its id {}", read.id));
                }
                if let Some(wrong) = read.claim.as_ref().and_then(verify) {
                    say("signature", wrong);
                }
            }
        }
    })?;
    for path in store.pairs() {
        report(violation(&path, "twice", "a file of this name lies in new/ and in cur/".into()));
    }
    Ok(())
}
