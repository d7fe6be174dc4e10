//! The signature that msgfs adds to an object of JSON as two members: `sig`, the base64 of the 64 bytes, and `pub`,
//! that of the 32 bytes of the key. Other readers ignore both.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;

use super::json::{self, JsonValue};
use crate::model::{PublicKey, SignatureClaim, SignatureScope, SignedBytes};

/// Returns the signature of the object on this line, over the bytes that `covered` returns. `None` if it has no member
/// `sig`, or is no object at all. Without `pub` it names no key, and the key pinned for its sender decides.
pub fn parse_claim(
    line: &str,
    covered: impl FnOnce() -> Option<Vec<u8>>,
) -> Option<SignatureClaim> {
    let (mut sig, mut key) = (None, None);
    json::visit_members(line, |name, value| match &*name.to_text() {
        "sig" => sig = Some(value),
        "pub" => key = Some(value),
        _ => {}
    })
    .ok()?;
    let malformed = |what: &str| Some(SignatureClaim::Malformed(what.to_owned()));
    let Some(signature) = decode_base64::<64>(sig?) else {
        return malformed("the member \"sig\" is not the base64 of 64 bytes");
    };
    let key = match key.map(decode_base64::<32>) {
        None => None,
        Some(Some(bytes)) => Some(PublicKey(bytes)),
        Some(None) => return malformed("the member \"pub\" is not the base64 of 32 bytes"),
    };
    let Some(covered) = covered() else {
        return malformed(
            "the record is signed but holds something that no signature can cover: half a \
             surrogate pair, a body that is not a string, arrays nested too deeply, or too many \
             values",
        );
    };
    let covered = SignedBytes::from_bytes(covered);
    Some(SignatureClaim::Signed { key, signature, covered, scope: SignatureScope::Whole })
}

/// Returns the bytes of a string in padded base64, if there are exactly `N`.
fn decode_base64<const N: usize>(value: JsonValue<'_>) -> Option<[u8; N]> {
    let JsonValue::String(text) = value else { return None };
    BASE64.decode(text.to_text().as_bytes()).ok()?.try_into().ok()
}
