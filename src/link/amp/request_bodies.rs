//! The encoding of messages for providers, in the two forms that they take.

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::model::encode_hex;
use crate::store::amp::envelope::{self, AmpMessage};
use crate::store::amp::id::is_message_id;
use crate::store::text::json::JsonValue;
use crate::store::text::strict_json::{self, find_last};

/// The exact bodies of the requests.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct AmpRequestBodies {
    /// The flat form, with the members of the message side by side.
    pub flat: String,
    /// The envelope and the payload, as the message lies in the store.
    pub stored: String,
}

/// The members of a request in the flat form. The payload is inserted as it is spelled.
#[derive(Serialize)]
struct AmpFlatRequest<'a> {
    to: &'a str,
    subject: &'a str,
    priority: &'a str,
    in_reply_to: Option<&'a str>,
    thread_id: Option<&'a str>,
    signature: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    expires_at: Option<&'a str>,
    idempotency_key: &'a str,
}

/// Encodes a message of mine for keeping.
///
/// # Errors
/// Returns the reason why it can never go.
pub(super) fn encode_message(bytes: &[u8], mine: &str) -> Result<Vec<u8>, String> {
    serde_json::to_vec(&build_bodies(bytes, mine, None)?).map_err(|e| e.to_string())
}

/// Builds the requests for a message of mine, under this idempotency key if there is one.
///
/// # Errors
/// Returns the reason why it can never go.
pub(super) fn build_bodies(
    bytes: &[u8],
    mine: &str,
    key: Option<&str>,
) -> Result<AmpRequestBodies, String> {
    let message = envelope::parse(bytes).map_err(|e| format!("it is not a message: {e}"))?;
    if !message.from.eq_ignore_ascii_case(mine) {
        return Err(format!(
            "it is signed as {}, but the registration is for {mine}; send it again",
            crate::model::sanitize_line(&message.from)
        ));
    }
    let signature = message.signature.as_deref().ok_or("it is not signed")?;
    let text = std::str::from_utf8(bytes).map_err(|_| "it is not UTF-8")?;
    let members =
        strict_json::parse_members(text).map_err(|e| format!("it is not a message: {e}"))?;
    let raw = |name: &str| find_last(&members, name).and_then(|m| text.get(m.value_at.clone()));
    let envelope = raw("envelope").ok_or("it has no envelope")?;
    let inside =
        strict_json::parse_members(envelope).map_err(|e| format!("it is not a message: {e}"))?;
    let thread = find_last(&inside, "thread_id").and_then(|m| match m.value {
        JsonValue::String(text) => Some(text.to_text().into_owned()),
        _ => None,
    });
    let key = key.map_or_else(|| derive_idempotency_key(&message), str::to_owned);
    let flat = AmpFlatRequest {
        to: &message.to,
        subject: message.subject.as_deref().unwrap_or_default(),
        priority: message.priority.as_deref().unwrap_or("normal"),
        in_reply_to: message.in_reply_to.as_deref(),
        thread_id: thread.as_deref(),
        signature,
        expires_at: message.expires_at.as_deref(),
        idempotency_key: &key,
    };
    let flat = serde_json::to_string(&flat).map_err(|e| e.to_string())?;
    let flat = flat.strip_suffix('}').unwrap_or_default();
    Ok(AmpRequestBodies {
        flat: format!("{flat},\"payload\":{}}}", message.payload),
        stored: format!(
            "{{\"envelope\":{},\"payload\":{}}}",
            add_idempotency_key(envelope, &inside, &key),
            message.payload
        ),
    })
}

/// Adds the idempotency key, which is not signed, to the envelope.
fn add_idempotency_key(
    envelope: &str,
    inside: &[strict_json::JsonMember<'_>],
    key: &str,
) -> String {
    let end = envelope.trim_end().strip_suffix('}').map(str::trim_end);
    match end.filter(|_| find_last(inside, "idempotency_key").is_none()) {
        Some(rest) => format!("{rest},\"idempotency_key\":\"{key}\"}}"),
        None => envelope.to_owned(),
    }
}

/// Returns the key by which a provider recognizes a repeat: `idk_` and a UUID derived from the signature, so that it is
/// always the same.
pub(super) fn derive_idempotency_key(message: &AmpMessage<'_>) -> String {
    if let Some(key) = message.idempotency_key.as_deref() {
        return key.to_owned();
    }
    let hash = encode_hex(&Sha256::digest(message.signature.as_deref().unwrap_or_default()));
    let part = |from: usize, to: usize| hash.get(from..to).unwrap_or_default();
    let beginning = format!("idk_{}-{}-4{}", part(0, 8), part(8, 12), part(13, 16));
    format!("{beginning}-8{}-{}", part(17, 20), part(20, 32))
}

/// Decodes the kept bytes.
pub(super) fn decode_bodies(bytes: &[u8]) -> Option<AmpRequestBodies> {
    serde_json::from_slice(bytes).ok()
}

/// The meaning of a provider's successful answer.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum AmpRouteAnswer {
    /// An accepted message with this id.
    Named(String),
    /// An accepted message without a usable id.
    Accepted,
    /// An answer that no AMP provider gives.
    Unrecognized,
}

/// Parses a successful answer.
pub(super) fn parse_answer(body: &[u8]) -> AmpRouteAnswer {
    let answer: serde_json::Value = serde_json::from_slice(body).unwrap_or_default();
    let text = |name: &str| answer.get(name).and_then(|value| value.as_str());
    let id = text("id").or_else(|| text("message_id"));
    match id {
        Some(id) if is_message_id(id) => AmpRouteAnswer::Named(id.to_owned()),
        None if text("status").is_none() => AmpRouteAnswer::Unrecognized,
        _ => AmpRouteAnswer::Accepted,
    }
}

/// Returns the code of a refusal.
pub(super) fn parse_error_code(body: &[u8]) -> Option<String> {
    let answer: serde_json::Value = serde_json::from_slice(body).ok()?;
    Some(answer.get("error")?.as_str()?.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const MESSAGE: &str = r#"{
  "envelope": {
    "version": "amp/0.1",
    "id": "msg_1_a",
    "from": "alice@acme.x.ai",
    "to": "bob@acme.x.ai",
    "subject": "a \"b\"",
    "priority": "high",
    "signature": "c2ln",
    "thread_id": "msg_1_a"
  },
  "payload": {"type": "request", "n": 1.10, "message": "hi", "context": {"msgfs": {"id": "msg_1_a"}}},
  "local": {"sent_at": "x"}
}"#;

    #[test]
    fn both_forms_keep_what_is_signed_as_it_is_spelled() {
        let forms =
            decode_bodies(&encode_message(MESSAGE.as_bytes(), "Alice@acme.x.ai").unwrap()).unwrap();
        let payload = r#"{"type": "request", "n": 1.10, "message": "hi", "context": {"msgfs": {"id": "msg_1_a"}}}"#;
        assert!(forms.flat.ends_with(&format!(",\"payload\":{payload}}}")), "{}", forms.flat);
        assert!(forms.stored.ends_with(&format!(",\"payload\":{payload}}}")), "{}", forms.stored);
        let flat: serde_json::Value = serde_json::from_str(&forms.flat).unwrap();
        assert_eq!((&flat["to"], &flat["subject"]), (&"bob@acme.x.ai".into(), &"a \"b\"".into()));
        assert_eq!(flat["in_reply_to"], serde_json::Value::Null);
        let stored: serde_json::Value = serde_json::from_str(&forms.stored).unwrap();
        assert_eq!(stored["envelope"]["id"], "msg_1_a");
        assert_eq!(stored["envelope"]["idempotency_key"], flat["idempotency_key"]);
        assert!(stored.get("local").is_none());
        let key = flat["idempotency_key"].as_str().unwrap();
        assert_eq!((key.len(), &key[..4], &key[18..19]), (40, "idk_", "4"), "{key}");
        let again =
            decode_bodies(&encode_message(MESSAGE.as_bytes(), "alice@acme.x.ai").unwrap()).unwrap();
        assert_eq!((again.flat, again.stored), (forms.flat, forms.stored));
    }

    #[test]
    fn what_can_never_go() {
        for (from, to, why) in [
            ("alice@acme.x.ai", "carol@acme.x.ai", "signed as carol"),
            ("\"signature\": \"c2ln\",", "", "not signed"),
            ("\"payload\"", "\"other\"", "not a message"),
        ] {
            let text = MESSAGE.replace(from, to);
            let error = encode_message(text.as_bytes(), "alice@acme.x.ai").unwrap_err();
            assert!(error.contains(why), "{error}");
        }
    }

    #[test]
    fn what_providers_answer() {
        for (body, expected) in [
            (
                r#"{"id":"msg_1_a","status":"delivered"}"#,
                AmpRouteAnswer::Named("msg_1_a".to_owned()),
            ),
            (r#"{"id":"../../x","status":"queued"}"#, AmpRouteAnswer::Accepted),
            (r#"{"status":"quarantined"}"#, AmpRouteAnswer::Accepted),
            ("{}", AmpRouteAnswer::Unrecognized),
            ("<html>", AmpRouteAnswer::Unrecognized),
            ("[1]", AmpRouteAnswer::Unrecognized),
        ] {
            assert_eq!(parse_answer(body.as_bytes()), expected, "{body}");
        }
        assert_eq!(
            parse_error_code(br#"{"error":"not_found","message":"x"}"#).as_deref(),
            Some("not_found")
        );
        assert_eq!(parse_error_code(b"nginx"), None);
    }
}
