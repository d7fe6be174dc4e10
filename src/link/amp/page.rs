//! The list of pending messages of a provider. The text of each message is kept as the provider spelled it.

use std::collections::BTreeSet;

use serde_json::json;
use sha2::{Digest as _, Sha256};

use crate::link::engine::FetchedItem;
use crate::link::json_lists::{self, SplitList};
use crate::model::{PublicKey, Timestamp, encode_hex, sanitize_line};
use crate::store::InboundMail;
use crate::store::amp::address::is_wire_address;
use crate::store::amp::id::is_message_id;
use crate::store::text::json::{self, JsonEvent, JsonValue};
use crate::store::text::strict_json::{self, JsonMember, find_last};
use crate::store::text::time::format_time;

/// The nesting depth up to which a message is filed as such. Deeper ones are filed as one text, since they stop other
/// programs that list the folder.
const DEEPEST: usize = 64;
/// The number of messages of a list that are read. The others stay at the provider, which lists them again.
const MAX_LISTED: usize = 1000;

/// The members of an envelope, for messages that carry them beside the payload.
const ENVELOPE: [&str; 12] = [
    "version",
    "id",
    "from",
    "to",
    "reply_to",
    "subject",
    "priority",
    "timestamp",
    "thread_id",
    "in_reply_to",
    "expires_at",
    "signature",
];

/// A list of pending messages.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct AmpPendingList<'a> {
    /// The texts of the messages.
    pub messages: Vec<&'a str>,
    /// The number of further pending messages.
    pub remaining: u64,
}

/// Parses a list; `None` if it is none. An element that is not JSON does not harm the others.
pub(super) fn parse_list(page: &[u8]) -> Option<AmpPendingList<'_>> {
    let page = std::str::from_utf8(page).ok()?;
    let Ok(members) = strict_json::parse_members(page) else {
        let (_, list) = page.split_once("\"messages\"")?;
        let list = list.trim_start().strip_prefix(':')?.trim_start();
        return Some(build_list(split_list_elements(list)?, 0));
    };
    let JsonValue::Compound(list) = find_last(&members, "messages")?.value else { return None };
    let remaining = match find_last(&members, "remaining").map(|m| m.value) {
        Some(JsonValue::Int(digits)) => digits.parse().unwrap_or(0),
        _ => 0,
    };
    Some(build_list(split_list_elements(list)?, remaining))
}

/// Builds the list of these elements; the provider keeps `remaining` further ones, and those beyond the limit.
fn build_list(split: SplitList<'_>, remaining: u64) -> AmpPendingList<'_> {
    let remaining = remaining.saturating_add(split.more as u64);
    AmpPendingList { messages: split.elements, remaining }
}

/// Returns the elements of a list; `None` if it is no list, or cut off.
fn split_list_elements(list: &str) -> Option<SplitList<'_>> {
    let split = json_lists::split_elements(list.strip_prefix('[')?, MAX_LISTED);
    split.is_ended.then_some(split)
}

/// The members of a message.
struct AmpMessageMembers<'a> {
    members: Vec<JsonMember<'a>>,
    text: &'a str,
}

impl<'a> AmpMessageMembers<'a> {
    fn parse(text: &'a str) -> Option<Self> {
        Some(Self { members: strict_json::parse_members(text).ok()?, text })
    }

    fn raw_member(&self, name: &str) -> Option<&'a str> {
        let member = find_last(&self.members, name)?;
        self.text.get(member.value_at.clone())
    }

    fn string_member(&self, name: &str) -> Option<String> {
        match find_last(&self.members, name)?.value {
            JsonValue::String(text) => Some(text.to_text().into_owned()),
            _ => None,
        }
    }

    /// Returns the envelope, or builds it from the members beside the payload.
    fn build_envelope(&self) -> Option<String> {
        if let Some(envelope) = self.raw_member("envelope") {
            return Some(envelope.to_owned());
        }
        self.raw_member("from")?;
        let member = |name: &&str| Some(format!("\"{name}\": {}", self.raw_member(name)?));
        let members: Vec<String> = ENVELOPE.iter().filter_map(member).collect();
        Some(format!("{{{}}}", members.join(", ")))
    }
}

/// Returns the writers of the messages of a list, in lower case.
pub(super) fn list_writers(list: &AmpPendingList<'_>) -> BTreeSet<String> {
    let from = |text: &&str| {
        let envelope = AmpMessageMembers::parse(text)?.build_envelope()?;
        let from = AmpMessageMembers::parse(&envelope)?.string_member("from")?.to_ascii_lowercase();
        is_wire_address(&from).then_some(from)
    };
    list.messages.iter().filter_map(from).collect()
}

/// Builds the item to file for a message. Its texts stay as the provider spelled them.
pub(super) fn build_item(text: &str, provider: &str) -> FetchedItem {
    let parts = AmpMessageMembers::parse(text);
    let id = parts.as_ref().and_then(|p| {
        let envelope = || AmpMessageMembers::parse(&p.build_envelope()?)?.string_member("id");
        p.string_member("id").or_else(envelope)
    });
    let given = id.clone();
    let id = id.filter(|id| is_message_id(id));
    let depth = nesting_depth(text);
    let parts = parts.filter(|_| depth <= DEEPEST);
    let halves = parts
        .as_ref()
        .and_then(|p| Some((p.build_envelope()?, p.raw_member("payload")?.to_owned())));
    let now = format_time(Timestamp::now());
    let (what, bytes) = match (&parts, &id, halves) {
        (Some(parts), Some(_), Some((envelope, payload))) => {
            let what = format!("{envelope}\n{payload}");
            (what, render_stored(parts, &envelope, &payload, provider, &now))
        }
        (parts, id, _) => {
            let why = if depth > DEEPEST {
                format!("it is nested {depth} levels deep, and at most {DEEPEST} are read")
            } else if parts.is_none() {
                "it is not a JSON object, or it has a member twice".to_owned()
            } else if id.is_some() {
                "it has no envelope or no payload".to_owned()
            } else if let Some(given) = given {
                format!("{:?} cannot be the id of a message", sanitize_line(&given))
            } else {
                "it has no id".to_owned()
            };
            (text.to_owned(), render_unreadable(text, &why, provider, &now))
        }
    };
    let hash = encode_hex(&Sha256::digest(&what));
    let hash = hash.get(..32).unwrap_or_default();
    let name = id.clone().unwrap_or_else(|| format!("bad_{hash}"));
    let arrived = InboundMail {
        other_name: format!("{}_{hash}", name.get(..name.len().min(80)).unwrap_or_default()),
        bytes: bytes.into_bytes(),
        name: name.clone(),
        ..InboundMail::default()
    };
    // A message whose text differs the next time is another message.
    FetchedItem { id: format!("{name} {hash}"), arrived, ack_id: id }
}

/// Renders a message in the form in which it lies in the store.
fn render_stored(
    parts: &AmpMessageMembers<'_>,
    envelope: &str,
    payload: &str,
    provider: &str,
    now: &str,
) -> String {
    let given = parts.string_member("sender_public_key").filter(|key| !key.is_empty());
    let given = given.map(|key| format!("  \"sender_public_key\": {},\n", json!(key)));
    let attempts = parts.raw_member("delivery_attempts").and_then(|n| n.parse::<u32>().ok());
    let mut metadata = serde_json::Map::new();
    metadata.insert("status".into(), "unread".into());
    metadata.insert("delivery_attempts".into(), attempts.unwrap_or(0).into());
    let queued_at = parts.string_member("queued_at");
    metadata.extend(queued_at.map(|time| ("queued_at".into(), time.into())));
    format!(
        "{{\n  \"envelope\": {envelope},\n  \"payload\": {payload},\n{}  \"metadata\": {},\n  \
         \"local\": {}\n}}\n",
        given.unwrap_or_default(),
        serde_json::Value::Object(metadata),
        build_local_member(provider, now)
    )
}

fn build_local_member(provider: &str, now: &str) -> serde_json::Value {
    json!({
        "received_at": now, "status": "unread", "delivery_method": "relay", "fetched_from": provider,
    })
}

/// Renders unreadable text as a file that every program can list, with the text as one JSON string.
fn render_unreadable(text: &str, why: &str, provider: &str, now: &str) -> String {
    let local = build_local_member(provider, now);
    format!(
        "{{\n  \"unreadable\": {},\n  \"why\": {},\n  \"local\": {local}\n}}\n",
        json!(text),
        json!(why)
    )
}

/// Returns the nesting depth of a text.
fn nesting_depth(text: &str) -> usize {
    let (mut depth, mut deepest) = (0usize, 0);
    let _ = json::walk_value(text, |event| match event {
        JsonEvent::ObjectStart | JsonEvent::ArrayStart => {
            depth += 1;
            deepest = deepest.max(depth);
        }
        JsonEvent::ObjectEnd | JsonEvent::ArrayEnd => depth = depth.saturating_sub(1),
        JsonEvent::Key(_) | JsonEvent::Scalar(_) => {}
    });
    deepest
}

/// Returns the id under which a fetched key is remembered.
pub(super) fn key_id(address: &str) -> String {
    format!("key {address}")
}

/// Returns true for the id of a remembered key.
pub(super) fn is_key_id(id: &str) -> bool {
    id.starts_with("key ")
}

/// Returns the items of the writers' keys that were fetched.
pub(super) fn parse_key_items(bytes: &[u8]) -> Vec<FetchedItem> {
    let keys: std::collections::BTreeMap<String, String> =
        serde_json::from_slice(bytes).unwrap_or_default();
    let item = |(address, key): (String, String)| {
        let key = PublicKey::from_base64(&key)?;
        let id = key_id(&address);
        let arrived = InboundMail { keys: vec![(address, key)], ..InboundMail::default() };
        Some(FetchedItem { id, arrived, ack_id: None })
    };
    keys.into_iter().filter_map(item).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::amp::envelope;
    use proptest::prelude::*;

    fn items(page: &str) -> Vec<FetchedItem> {
        let list = parse_list(page.as_bytes()).unwrap();
        list.messages.iter().map(|text| build_item(text, "x.ai")).collect()
    }

    const GOOD: &str = r#"{"id": "msg_1_a", "envelope": {"id": "msg_1_a", "from": "B@acme.x.ai", "to": "a@acme.x.ai"},
        "payload": {"message": "hi", "n": 1.10}, "sender_public_key": "00", "queued_at": "2026-01-01T00:00:00Z",
        "delivery_attempts": 2}"#;

    #[test]
    fn of_too_many_messages_the_others_remain() {
        for end in [r#"], "remaining": 3}"#, r#", "\q"]}"#] {
            let page = format!(r#"{{"messages": [{GOOD}{}{end}"#, ",1".repeat(100_000));
            let list = parse_list(page.as_bytes()).unwrap();
            assert_eq!((list.messages.len(), list.messages[999]), (MAX_LISTED, "1"));
            assert!(list.remaining > 99_000, "{}", list.remaining);
        }
    }

    #[test]
    fn a_message_is_stored_as_it_is_spelled() {
        let page = format!(r#"{{"messages": [ {GOOD} ,{GOOD}], "count": 2, "remaining": 7}}"#);
        let list = parse_list(page.as_bytes()).unwrap();
        assert_eq!((list.messages.len(), list.remaining), (2, 7));
        assert_eq!(list_writers(&list).into_iter().collect::<Vec<_>>(), ["b@acme.x.ai"]);
        let item = &items(&page)[0];
        assert_eq!(item.ack_id.as_deref(), Some("msg_1_a"));
        assert_eq!(item.arrived.name, "msg_1_a");
        let text = std::str::from_utf8(&item.arrived.bytes).unwrap();
        assert!(text.contains(r#""payload": {"message": "hi", "n": 1.10},"#), "{text}");
        let stored = envelope::parse(&item.arrived.bytes).unwrap();
        assert_eq!(stored.fetched_from.as_deref(), Some("x.ai"));
        let json: serde_json::Value = serde_json::from_str(text).unwrap();
        assert_eq!(json["metadata"]["delivery_attempts"], 2);
        assert_eq!(json["sender_public_key"], "00");
    }

    #[test]
    fn the_older_flat_form() {
        let flat = r#"{"id":"msg_2_b","from":"b@acme.x.ai","to":"a@acme.x.ai","subject":"s","payload":{"message":"m"}}"#;
        let item = &items(&format!(r#"{{"messages":[{flat}]}}"#))[0];
        let stored = envelope::parse(&item.arrived.bytes).unwrap();
        assert_eq!((&*stored.id, &*stored.from), ("msg_2_b", "b@acme.x.ai"));
        assert_eq!(stored.subject.as_deref(), Some("s"));
    }

    #[test]
    fn what_is_no_message_is_kept_where_it_harms_nobody() {
        let deep = format!(
            r#"{{"id":"msg_3_c","envelope":{{}},"payload":{}{}}}"#,
            "[".repeat(200),
            "]".repeat(200)
        );
        for (text, acknowledge, why) in [
            (
                r#"{"id":"../../x","envelope":{"id":"../../x"},"payload":{}}"#,
                None,
                "cannot be the id",
            ),
            (r#"{"id":"a/b","payload":{}}"#, None, "\"a/b\" cannot be the id"),
            (r#"{"id":"msg_9_z"}"#, Some("msg_9_z"), "no envelope"),
            (r#"{"payload":{}}"#, None, "no id"),
            ("[1]", None, "not a JSON object"),
            ("null", None, "not a JSON object"),
            (&deep, Some("msg_3_c"), "nested 201 levels"),
        ] {
            let items = items(&format!(r#"{{"messages":[{text},{GOOD}]}}"#));
            assert_eq!(items.len(), 2, "{text}");
            let item = &items[0];
            assert_eq!(item.ack_id.as_deref(), acknowledge, "{text}");
            assert!(is_message_id(&item.arrived.name), "{}", item.arrived.name);
            let json: serde_json::Value = serde_json::from_slice(&item.arrived.bytes).unwrap();
            assert_eq!(json["unreadable"], text);
            let told = envelope::parse(&item.arrived.bytes).unwrap_err().to_string();
            assert!(told.contains(why), "{text}: {told}");
        }
    }

    /// S641: an element that is not JSON does not harm the others.
    #[test]
    fn s641_an_odd_element_costs_no_other_one() {
        for odd in [r#"{"id":"\q"}"#, "{\"a\":]}", r#"{"id":"\ud800"}"#, "5"] {
            let items = items(&format!(r#"{{"messages":[{odd},{GOOD}],"remaining":3}}"#));
            assert_eq!(items.len(), 2, "{odd}");
            assert!(envelope::parse(&items[0].arrived.bytes).is_err(), "{odd}");
            assert_eq!(items[1].arrived.name, "msg_1_a", "{odd}");
        }
    }

    #[test]
    fn what_is_no_list() {
        for page in [
            "",
            "<html>",
            "[]",
            "{}",
            r#"{"messages":null}"#,
            r#"{"messages":{}}"#,
            r#"{"messages":[1"#,
        ] {
            assert_eq!(parse_list(page.as_bytes()), None, "{page}");
        }
        assert_eq!(parse_list(br#"{"messages":[]}"#), Some(AmpPendingList::default()));
    }

    #[test]
    fn a_text_that_changes_is_another_message() {
        let one = &items(&format!(r#"{{"messages":[{GOOD}]}}"#))[0];
        let other = &items(&format!(r#"{{"messages":[{}]}}"#, GOOD.replace("hi", "ho")))[0];
        let again =
            &items(&format!(r#"{{"messages":[{}]}}"#, GOOD.replace("ts\": 2", "ts\": 3")))[0];
        assert_ne!(one.id, other.id);
        assert_eq!(one.id, again.id);
        assert_eq!(one.arrived.name, other.arrived.name);
        assert_ne!(one.arrived.other_name, other.arrived.other_name);
    }

    proptest! {
        #[test]
        fn any_list_is_taken_apart(
            texts in proptest::collection::vec("\\{\"id\":\"[a-z/.\"]{0,8}\"\\}|\\[[0-9,]{0,4}\\]|[0-9]|\"\\]\"", 0..5),
            space in "[ \n]{0,2}",
        ) {
            let page = format!("{{\"messages\":[{}]}}", texts.join(&format!("{space},{space}")));
            if let Some(list) = parse_list(page.as_bytes()) {
                // A missing quotation mark merges elements.
                prop_assert!(list.messages == texts || strict_json::parse_members(&page).is_err(), "{:?}", list);
                list.messages.iter().for_each(|text| drop(build_item(text, "x.ai")));
            }
        }
    }
}
