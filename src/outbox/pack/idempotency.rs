//! The recipients who got a message already under its idempotency key.

use super::DraftPacker;
use crate::index::IndexEntry;
use crate::model::{Draft, Message, SignatureState, Timestamp};
use crate::outbox::reservations::Reservations;
use crate::outbox::retry::{DraftOutline, is_same_text};
use crate::outbox::route::Route;
use crate::outbox::spool::SpoolParcel;
use crate::outbox::{IDEMPOTENCY_WINDOW_MS, OutboxError, draft};

impl DraftPacker {
    /// Returns true if every recipient got the draft already under its idempotency key, or is about to. `replaced` are
    /// earlier versions of this same draft.
    pub(super) fn is_sent_to_all(
        &self,
        draft: &Draft,
        outline: &DraftOutline,
        routes: &[Route],
        replaced: &[SpoolParcel],
    ) -> Result<bool, OutboxError> {
        if draft.idempotency_key.is_none() {
            return Ok(false);
        }
        let mut reserved = self.context.reservations.lock();
        reserved.remove_all(replaced);
        let all = routes.iter().try_fold(true, |all, route| {
            let (to, cc) = (route.to.clone(), route.cc.clone());
            let mut part = Draft { to, cc, is_blind: route.is_blind, ..draft.clone() };
            Ok(self.remove_served_recipients(route.store, &mut part, outline, &reserved)? && all)
        });
        reserved.insert_all(replaced);
        all
    }

    /// Removes the recipients who already got this under the same idempotency key, or are about to. Returns true if
    /// none is left.
    pub(super) fn remove_served_recipients(
        &self,
        number: usize,
        part: &mut Draft,
        outline: &DraftOutline,
        reserved: &Reservations,
    ) -> Result<bool, OutboxError> {
        let Some(key) = part.idempotency_key.clone() else { return Ok(false) };
        let outline = &if part.is_blind { outline.without_thread() } else { outline.clone() };
        let store = self.store(number)?;
        let outgoing = store.require_appender()?;
        let says = |sent: &str, draft: &str| {
            is_same_text(sent, draft) || outgoing.is_retry_of(sent, draft)
        };
        let sent = self.find_sent_with_key(number, &key);
        let left = |named: &String| -> Result<Option<String>, OutboxError> {
            let to = store.canonical_address(named);
            let (text, other) = match sent.iter().find(|(all, _)| all.contains(&to)) {
                Some((_, Ok(sent))) => {
                    (sent.body.as_str(), outline.find_difference(store.as_ref(), sent))
                }
                Some((_, Err(why))) => return Err(OutboxError::Unreachable(why.clone())),
                None => match reserved.find_draft(store.name(), &to, &key) {
                    Some(earlier) => {
                        (earlier.body.as_str(), outline.find_difference_of_drafts(earlier))
                    }
                    None => return Ok(Some(named.clone())),
                },
            };
            let other = if says(text, &part.body) { other } else { Some("another text") };
            other.map_or(Ok(None), |what| {
                Err(OutboxError::Invalid(format!(
                    "Idempotency-Key: {key:?} was used for {what} to {to}; use a new key for a new message"
                )))
            })
        };
        let all_left = |list: &[String]| -> Result<Vec<String>, OutboxError> {
            list.iter().filter_map(|to| left(to).transpose()).collect()
        };
        let (to, cc) = (all_left(&part.to)?, all_left(&part.cc)?);
        (part.to, part.cc) = if to.is_empty() { (cc, to) } else { (to, cc) };
        Ok(part.to.is_empty())
    }

    /// Returns my recent messages in a store that carry an idempotency key: the recipients of each, as the store
    /// compares addresses, and the message, or why it cannot be read. A message counts if its place or its signature
    /// proves that I wrote it. Otherwise anybody could keep mine from being sent.
    fn find_sent_with_key(
        &self,
        number: usize,
        key: &str,
    ) -> Vec<(Vec<String>, Result<Message, String>)> {
        let Ok(store) = self.store(number) else { return Vec::new() };
        let since = Timestamp::now().plus_millis(-IDEMPOTENCY_WINDOW_MS);
        let sent: Vec<_> = {
            let tables = self.context.index.read();
            let sent = tables
                .messages
                .find_by_idempotency_key(key)
                .iter()
                .map(|ix| tables.messages.entry(*ix));
            let is_signed = |e: &IndexEntry| {
                let signature = tables.trust.signature(&tables.messages, e);
                matches!(signature, SignatureState::Valid(_))
            };
            sent.filter(|e| e.store() == number && e.is_from_me() && e.time() >= since)
                .map(|e| (tables.messages.recipient_list(e).to_owned(), e.location(), is_signed(e)))
                .collect()
        };
        let canonical = |to: &str| store.canonical_address(draft::bare_address(to));
        sent.into_iter()
            .filter_map(|(to, at, is_signed)| {
                let mut to: Vec<String> = to.split(", ").map(canonical).collect();
                let record = store.read_record(&at);
                if record.as_ref().is_ok_and(|record| record.is_my_name_unproven && !is_signed) {
                    return None;
                }
                // The index may lack the recipients in Cc.
                let sent = record.map(|record| {
                    let m = record.message;
                    to.extend(m.to.iter().chain(&m.cc).map(|one| canonical(one)));
                    m
                });
                Some((to, sent.map_err(|e| format!("a message with this key cannot be read: {e}"))))
            })
            .collect()
    }
}
