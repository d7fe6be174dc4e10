//! Drafts that are a whole message in the form of a store: they say themselves whom they are for.

use std::sync::Arc;

use super::Target;
use crate::model::Draft;
use crate::store::Store;

/// Whether a draft can be a whole message: nothing in its header says what is in it or for whom.
fn is_bare(draft: &Draft) -> bool {
    draft.to.is_empty()
        && draft.cc.is_empty()
        && draft.bcc.is_empty()
        && draft.kind.is_none()
        && draft.task.is_none()
}

/// The stores that may take a draft whole: the one it names, or is an answer in, or any.
fn candidates<'a>(
    stores: &'a [Arc<dyn Store>],
    draft: &'a Draft,
    target: &'a Target,
) -> impl Iterator<Item = &'a Arc<dyn Store>> {
    let answered = match target {
        Target::Outbox => None,
        Target::Reply { store, .. }
        | Target::ReplyAll { store, .. }
        | Target::Thread { store, .. } => Some(store),
    };
    let named = draft.via.as_ref().or(answered);
    stores.iter().filter(move |s| named.is_none_or(|name| s.name() == name))
}

/// Addresses a draft that is a whole message of a store: to whom its text says, by that store.
pub(super) fn address(stores: &[Arc<dyn Store>], draft: &mut Draft, target: &Target) {
    if !is_bare(draft) {
        return;
    }
    let found = candidates(stores, draft, target)
        .find_map(|s| Some((s.name().to_owned(), s.about().recipient_in?(&draft.body)?)));
    if let Some((store, to)) = found {
        draft.to.push(to);
        draft.is_whole = true;
        draft.via = Some(store);
    }
}

/// Whether what is there of a draft may become a whole message with what is still to come, so that
/// nobody can say yet whom it is for.
pub(super) fn may_come(stores: &[Arc<dyn Store>], draft: &Draft, target: &Target) -> bool {
    let begun = || {
        let text = draft.body.trim_start();
        let read = serde_json::from_str::<serde::de::IgnoredAny>(text);
        text.starts_with('{') && read.is_err_and(|e| e.is_eof())
    };
    is_bare(draft) && candidates(stores, draft, target).next().is_some() && begun()
}
