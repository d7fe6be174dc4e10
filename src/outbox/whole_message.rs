//! Drafts that are a whole message in the form of a store: their text names their recipients.

use std::sync::Arc;

use super::DraftTarget;
use crate::model::Draft;
use crate::store::Store;

/// Returns true if a draft can be a whole message: nothing in its header gives its content or its recipients.
fn is_unaddressed(draft: &Draft) -> bool {
    draft.to.is_empty()
        && draft.cc.is_empty()
        && draft.bcc.is_empty()
        && draft.kind.is_none()
        && draft.task.is_none()
}

/// Returns the stores that may take a draft as a whole message: the one that it names, or the one in which it is a
/// reply, or all.
fn candidate_stores<'a>(
    stores: &'a [Arc<dyn Store>],
    draft: &'a Draft,
    target: &'a DraftTarget,
) -> impl Iterator<Item = &'a Arc<dyn Store>> {
    let answered = match target {
        DraftTarget::Outbox => None,
        DraftTarget::Reply { store, .. }
        | DraftTarget::ReplyAll { store, .. }
        | DraftTarget::Thread { store, .. } => Some(store),
    };
    let named = draft.via.as_ref().or(answered);
    stores.iter().filter(move |s| named.is_none_or(|name| s.name() == name))
}

/// Addresses a draft that is a whole message of a store to the recipients that the store finds in its text.
pub(super) fn address_whole_message(
    stores: &[Arc<dyn Store>],
    draft: &mut Draft,
    target: &DraftTarget,
) {
    if !is_unaddressed(draft) {
        return;
    }
    let found = candidate_stores(stores, draft, target)
        .find_map(|s| Some((s.name().to_owned(), s.properties().recipient_in?(&draft.body)?)));
    if let Some((store, to)) = found {
        draft.to.push(to);
        draft.is_whole = true;
        draft.via = Some(store);
    }
}

/// Returns true if a partial draft may become a whole message with the text still to come. Its recipients are then not
/// known yet.
pub(super) fn may_become_whole(
    stores: &[Arc<dyn Store>],
    draft: &Draft,
    target: &DraftTarget,
) -> bool {
    let begun = || {
        let text = draft.body.trim_start();
        let read = serde_json::from_str::<serde::de::IgnoredAny>(text);
        text.starts_with('{') && read.is_err_and(|e| e.is_eof())
    };
    is_unaddressed(draft) && candidate_stores(stores, draft, target).next().is_some() && begun()
}
