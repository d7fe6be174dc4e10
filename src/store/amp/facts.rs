//! The parts of a message file that the index needs.

use std::borrow::Cow;

use serde_json::Value;

use super::address::is_wire_address;
use super::envelope::{AmpMessage, ReadState};
use super::format::AmpMailFolder;
use super::id::is_message_id;
use super::roster::Roster;
use super::table_facts::{AmpFlag, AmpTableFacts};
use super::{id, verify};
use crate::model::verify::verify_claim;
use crate::model::{CLOCK_SKEW_MS, SignatureClaim, Timestamp, sanitize_line};
use crate::store::digest;
use crate::store::fs::Stamp;
use crate::store::text::time::parse_time;

/// A message as its file states it. Texts that are compared are in lower case.
#[derive(Debug)]
pub(super) struct AmpFacts {
    /// The sender, in lower case: pins, names and the index know one spelling only.
    pub from: String,
    /// The recipient, in lower case.
    pub to: String,
    /// All recipients that the message itself names, in lower case.
    pub recipients: Vec<String>,
    pub time: Timestamp,
    /// The id it answers, in one of the spellings that clients use.
    pub answers: Option<String>,
    /// The store's own mark.
    pub is_read: bool,
    pub expires: Option<Timestamp>,
    /// Its original id, if a link carried it. It is signed, so every copy has the same.
    pub own_id: Option<String>,
    /// The facts for the table, as far as the message states them.
    pub table_facts: AmpTableFacts,
}

/// Returns a [hash](digest::secure_hash64) of texts.
pub(super) fn hash_texts(texts: &[&str]) -> u64 {
    let with_len = |text: &&str| [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat();
    digest::secure_hash64(&texts.iter().flat_map(with_len).collect::<Vec<u8>>())
}

/// Collects the facts of a message. `now` is the time of the scan.
pub(super) fn collect_facts(stored: &AmpMessage<'_>, stamp: &Stamp, now: Timestamp) -> AmpFacts {
    let received = stored.received_at.as_deref().and_then(parse_time);
    let written = stored.timestamp.as_deref().and_then(parse_time);
    let time = written.or(received).unwrap_or_else(|| stamp.modified());
    let (key, content) = (hash_texts(&[&stored.id]), hash_content(stored));
    let mut kept = AmpTableFacts { key, content, time: time.millis(), ..AmpTableFacts::default() };
    kept.set_flag(AmpFlag::Signed, stored.signature.is_some());
    kept.set_flag(AmpFlag::FileTime, written.is_none() && received.is_none());
    let answers = stored.in_reply_to.as_deref().map(normalize_reply_id);
    kept.answers = answers.as_deref().map_or(0, |id| hash_texts(&[id]));
    let context = AmpContextRecord::from_message(stored);
    let own_id = context.msgfs.id.filter(|id| is_message_id(id));
    kept.set_flag(AmpFlag::Carried, own_id.is_some() && stored.signature.is_some());
    kept.alias = own_id.as_deref().filter(|id| *id != stored.id).map_or(0, |id| hash_texts(&[id]));
    // It is judged by its arrival, or by the age of its file, so the flag stays once that time has come.
    let came = received.unwrap_or_else(|| stamp.modified()).min(now);
    kept.set_flag(AmpFlag::Future, written.is_some_and(|t| t > came.plus_millis(CLOCK_SKEW_MS)));
    let to = stored.to.trim().to_ascii_lowercase();
    AmpFacts {
        from: stored.from.to_ascii_lowercase(),
        recipients: list_recipients(context.recipients, &to),
        to,
        time,
        answers,
        own_id,
        is_read: stored.status.is_some_and(ReadState::is_read),
        expires: stored.expires_at.as_deref().and_then(parse_time),
        table_facts: kept,
    }
}

/// The record that msgfs writes into `payload.context`.
#[derive(Default, serde::Deserialize)]
#[serde(default)]
struct AmpContextRecord {
    /// All recipients.
    recipients: Vec<String>,
    /// The data that a link needs.
    msgfs: AmpOwnIdRecord,
}

#[derive(Default, serde::Deserialize)]
#[serde(default)]
struct AmpOwnIdRecord {
    /// The original id of the message.
    id: Option<String>,
}

impl AmpContextRecord {
    fn from_message(stored: &AmpMessage<'_>) -> Self {
        stored.context.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
    }
}

/// Returns the recipients that the context lists, if the message's own recipient is among them; else only that one.
fn list_recipients(list: Vec<String>, to: &str) -> Vec<String> {
    let list: Vec<String> = list.iter().map(|address| address.to_ascii_lowercase()).collect();
    let good = list.iter().any(|one| one == to) && list.iter().all(|one| is_wire_address(one));
    if good { list } else { vec![to.to_owned()] }
}

/// Returns the id that a reply names, without the change of one client, which turns every `_` into `-`.
pub(super) fn normalize_reply_id(in_reply_to: &str) -> String {
    let is_turned = in_reply_to.starts_with("msg-") || in_reply_to.starts_with("receipt-");
    if is_turned { id::fold_id(in_reply_to).into_owned() } else { in_reply_to.to_owned() }
}

/// Returns a hash of everything that is shown or signed, except what other clients change on the way: empty
/// attachments, an absent context, final newlines, the spelling of numbers and the order of keys (docs/formats/amp.md,
/// sections 5 and 9).
fn hash_content(stored: &AmpMessage<'_>) -> u64 {
    let payload = match serde_json::from_str::<Value>(stored.payload) {
        Ok(mut value) => {
            normalize_numbers(&mut value);
            if let Some(object) = value.as_object_mut() {
                object.retain(|key, v| {
                    !(key == "context" && v.is_null()
                        || key == "attachments" && v.as_array().is_some_and(Vec::is_empty))
                });
                if let Some(Value::String(text)) = object.get_mut("message") {
                    text.truncate(text.trim_end_matches(['\r', '\n']).len());
                }
            }
            Cow::Owned(value.to_string())
        }
        Err(_) => Cow::Borrowed(stored.payload),
    };
    let or_empty = |text: &Option<Cow<'_, str>>| text.as_deref().unwrap_or_default().to_owned();
    hash_texts(&[
        &stored.from,
        &stored.to,
        &or_empty(&stored.subject),
        stored.priority.as_deref().unwrap_or("normal"),
        &or_empty(&stored.in_reply_to),
        &or_empty(&stored.signature),
        &payload,
    ])
}

fn normalize_numbers(value: &mut Value) {
    match value {
        Value::Number(n) => {
            let same = n.as_f64().and_then(serde_json::Number::from_f64);
            if let Some(same) = same {
                *n = same;
            }
        }
        Value::Array(list) => list.iter_mut().for_each(normalize_numbers),
        Value::Object(members) => members.values_mut().for_each(normalize_numbers),
        _ => {}
    }
}

/// Judges a message by its box and its members, and returns its signature.
///
/// # Errors
/// The reason for the rejection, in a sentence.
pub(super) fn admit_message(
    stored: &AmpMessage<'_>,
    facts: &AmpFacts,
    mailbox: AmpMailFolder,
    roster: &Roster,
) -> Result<Option<SignatureClaim>, String> {
    match mailbox {
        AmpMailFolder::Inbox if !is_to_me(stored, facts, roster) => {
            return Err(format!(
                "it is not addressed to me: it is for {:?}, and I am {}",
                sanitize_line(&stored.to),
                roster.me.addresses().collect::<Vec<_>>().join(", ")
            ));
        }
        AmpMailFolder::Sent
            if !roster.may_write_as(&facts.from) && !is_signed_by_me(stored, roster) =>
        {
            return Err(format!(
                "it lies in my sent folder, but it is from {:?}, and I am {}",
                sanitize_line(&stored.from),
                roster.me.addresses().collect::<Vec<_>>().join(", ")
            ));
        }
        _ => {}
    }
    verify::extract_claim(
        stored,
        roster.find_key(&facts.from),
        &roster.alternate_addresses(&facts.to),
    )
    .map_err(|e| sanitize_line(&e.to_string()).into_owned())
}

/// Returns true if my key signed a message. In my sent folder that proves that I wrote it, also under an address that
/// no file gives me any more.
pub(super) fn is_signed_by_me(stored: &AmpMessage<'_>, roster: &Roster) -> bool {
    let Some(key) = roster.me.key else { return false };
    let also_to = roster.alternate_addresses(&stored.to);
    let claim = verify::extract_claim(stored, Some(key), &also_to).ok().flatten();
    claim.is_some_and(|claim| verify_claim(&key, &claim))
}

fn is_to_me(stored: &AmpMessage<'_>, facts: &AmpFacts, roster: &Roster) -> bool {
    let there = |provider: &Cow<'_, str>| roster.is_mine_at_provider(&facts.to, provider);
    roster.is_mine(&facts.to) || stored.fetched_from.as_ref().is_some_and(there)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::amp::envelope;

    /// The flag for a date in the future never changes, even when the date has come.
    #[test]
    fn what_is_dated_in_the_future_stays_so() {
        let text = r#"{"envelope": {"id": "msg_1_a", "from": "a@b.aimaestro.local", "to": "c@b.aimaestro.local",
            "timestamp": "2026-04-24T17:45:00Z"}, "payload": {"type": "request", "message": "x"}}"#;
        let stored = envelope::parse(text.as_bytes()).unwrap();
        let at = |text: &str| parse_time(text).unwrap();
        for (made, future) in [("2026-04-24T17:42:00Z", true), ("2026-04-24T17:44:30Z", false)] {
            let made = at(made);
            let stamp = Stamp { mtime: i128::from(made.millis()) * 1_000_000, ..Stamp::default() };
            for now in [made, at("2026-04-24T17:44:59Z"), at("2027-01-01T00:00:00Z")] {
                let facts = collect_facts(&stored, &stamp, now);
                assert_eq!(facts.table_facts.has_flag(AmpFlag::Future), future, "{made:?} {now:?}");
            }
        }
    }
}
