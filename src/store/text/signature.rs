//! The signature that msgfs adds to an object of JSON as two members: `sig`, the base64 of the 64 bytes,
//! and `pub`, that of the 32 bytes of the key. Other readers ignore both.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;

use super::json::{self, Value};
use crate::model::{Claim, ClaimScope, Covered, PublicKey};

/// The signature that the object on this line carries over what `covered` gives; `None` if it has no
/// member `sig`, or is no object at all. Without `pub` it names no key, and the one pinned for its
/// writer decides.
pub fn claim(line: &str, covered: impl FnOnce() -> Option<Vec<u8>>) -> Option<Claim> {
    let (mut sig, mut key) = (None, None);
    json::members(line, |name, value| match &*name.to_text() {
        "sig" => sig = Some(value),
        "pub" => key = Some(value),
        _ => {}
    })
    .ok()?;
    let malformed = |what: &str| Some(Claim::Malformed(what.to_owned()));
    let Some(signature) = bytes::<64>(sig?) else {
        return malformed("the member \"sig\" is not the base64 of 64 bytes");
    };
    let key = match key.map(bytes::<32>) {
        None => None,
        Some(Some(bytes)) => Some(PublicKey(bytes)),
        Some(None) => return malformed("the member \"pub\" is not the base64 of 32 bytes"),
    };
    let Some(covered) = covered() else {
        return malformed(
            "the record is signed but holds something that no signature can cover: half a \
             surrogate pair, a body that is not a string, or arrays nested too deeply",
        );
    };
    let covered = Covered::one(covered);
    Some(Claim::Signed { key, signature, covered, scope: ClaimScope::Whole })
}

/// The bytes that a string spells in padded base64, if there are exactly `N`.
fn bytes<const N: usize>(value: Value<'_>) -> Option<[u8; N]> {
    let Value::String(text) = value else { return None };
    BASE64.decode(text.to_text().as_bytes()).ok()?.try_into().ok()
}
