//! Signatures, which the format does not have: msgfs adds the member `signature`, and other readers ignore it.

use std::fmt::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;

use crate::model::{PublicKey, SignatureClaim, SignatureScope, SignedBytes};
use crate::store::Signer;
use crate::store::text::canonical::{push_text, signed_object_bytes};
use crate::store::text::json::JsonValue;
use crate::store::text::json_values::{as_object, as_text, pick_members};

/// The first line of the bytes that a signature covers, which separates them from every other kind of signed text.
pub const CONTEXT: &str = "atsf-sig-v1\n";
const MEMBER: &str = "signature";

/// Returns the signature of the message on this line; `None` if it has no member `signature`. Roles are not identities,
/// so the signature is verified with the key that it carries, and no key is pinned.
pub fn extract_claim(line: &str) -> Option<SignatureClaim> {
    let [signature] = pick_members(line, [MEMBER])?;
    let signature = signature?;
    let malformed = |what: &str| Some(SignatureClaim::Malformed(what.to_owned()));
    let inner = as_object(Some(&signature)).and_then(|inner| pick_members(inner, ["pub", "sig"]));
    let Some([key, sig]) = inner else {
        return malformed("the member \"signature\" is not an object");
    };
    let Some(key) = decode_bytes::<32>(key.as_ref()) else {
        return malformed("\"pub\" of the signature is not the base64 of 32 bytes");
    };
    let Some(sig) = decode_bytes::<64>(sig.as_ref()) else {
        return malformed("\"sig\" of the signature is not the base64 of 64 bytes");
    };
    let Some(covered) = signed_object_bytes(CONTEXT, line, MEMBER) else {
        return malformed(
            "the message is signed but holds something that no signature can cover: half a \
             surrogate pair, arrays nested too deeply, or too many values",
        );
    };
    Some(SignatureClaim::Signed {
        key: Some(PublicKey(key)),
        signature: sig,
        covered: SignedBytes::from_bytes(covered),
        scope: SignatureScope::Unpinned,
    })
}

/// Returns what a message on this line says, in one spelling: its content and its time. Other programs drop members
/// that they do not know, so no other member counts.
pub fn text_bytes(line: &str) -> Option<Vec<u8>> {
    let parsed = super::line::parse(line).ok()?;
    let mut object = format!("{{\"content\":{},\"timestamp\":", parsed.content);
    push_text(&mut object, &parsed.timestamp);
    object.push('}');
    signed_object_bytes(CONTEXT, &object, MEMBER)
}

fn decode_bytes<const N: usize>(value: Option<&JsonValue<'_>>) -> Option<[u8; N]> {
    BASE64.decode(as_text(value)?.as_bytes()).ok()?.try_into().ok()
}

/// Adds the signature as the last member of the object. A text that is no object is returned as it is.
pub fn sign_object(mut object: String, signer: &dyn Signer) -> String {
    let Some(covered) = signed_object_bytes(CONTEXT, &object, MEMBER) else { return object };
    let key = BASE64.encode(signer.public_key().0);
    let sig = BASE64.encode(signer.sign(&covered));
    if object.ends_with('}') {
        object.pop();
        // Writing to a string cannot fail.
        let _ = write!(object, ",\"{MEMBER}\":{{\"pub\":\"{key}\",\"sig\":\"{sig}\"}}}}");
    }
    object
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::verify::find_claim_fault;
    use crate::store::testing::Key;

    const PLAIN: &str = r#"{"id":"m1","role":"user","timestamp":"2025-02-14T10:30:00.000Z","content":[{"type":"text","text":"h\u0065i 1e2"}],"n":1e2}"#;

    #[test]
    fn what_is_signed_verifies_and_nothing_else() {
        let line = sign_object(PLAIN.to_owned(), &Key::new(7));
        assert!(line.starts_with(PLAIN.strip_suffix('}').unwrap()));
        let claim_of = |line: &str| extract_claim(line).unwrap();
        let SignatureClaim::Signed { covered, scope, .. } = claim_of(&line) else {
            panic!("{line}")
        };
        assert_eq!(scope, SignatureScope::Unpinned);
        assert_eq!(
            covered.candidates(),
            [br#"atsf-sig-v1
{"content":[{"text":"hei 1e2","type":"text"}],"id":"m1","n":100.0,"role":"user","timestamp":"2025-02-14T10:30:00.000Z"}"#]
        );
        assert_eq!(find_claim_fault(&claim_of(&line)), None);
        // Another spelling of the same values is the same message.
        let spaced = line.replace("\"role\":", " \"role\" : ").replace("1e2}", "100.0}");
        assert_eq!(find_claim_fault(&claim_of(&spaced)), None);
        let forged = line.replace("\"user\"", "\"agent\"");
        assert!(find_claim_fault(&claim_of(&forged)).is_some());
        assert_eq!(extract_claim(PLAIN), None);
    }

    #[test]
    fn malformed_signatures_are_claims() {
        for bad in [
            "1",
            "{}",
            r#"{"pub":"AA==","sig":"AA=="}"#,
            r#"{"pub":"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="}"#,
            "null",
        ] {
            let line = PLAIN.replacen('{', &format!("{{\"signature\":{bad},"), 1);
            assert!(matches!(extract_claim(&line), Some(SignatureClaim::Malformed(_))), "{bad}");
        }
    }
}
