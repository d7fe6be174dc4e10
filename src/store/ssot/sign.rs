//! Signatures: `<msg_id>.sig` beside `<msg_id>.json` holds the key and the signature over `"ssot-sig-v1\n"` and the
//! bytes of the message file.

use std::io;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;

use super::json_node::JsonNode;
use crate::model::{PublicKey, SignatureClaim, SignatureScope, SignedBytes};
use crate::store::{Signer, fs};

/// The beginning of the signed bytes, so that a signature fits no other format.
const PREFIX: &[u8] = b"ssot-sig-v1\n";

fn build_signed_bytes(message: &[u8]) -> Vec<u8> {
    [PREFIX, message].concat()
}

/// Returns the claim that a signature file makes about a message file.
pub(super) fn parse_claim(signature: &[u8], message: &[u8]) -> SignatureClaim {
    let malformed = |what: &str| SignatureClaim::Malformed(format!("its signature file {what}"));
    let Ok(node) = JsonNode::parse(signature) else { return malformed("is not a JSON object") };
    let Some(key) = decode_member::<32>(&node, "pub") else {
        return malformed("has no member \"pub\" that is the base64 of 32 bytes");
    };
    let Some(signature) = decode_member::<64>(&node, "sig") else {
        return malformed("has no member \"sig\" that is the base64 of 64 bytes");
    };
    let covered = SignedBytes::from_bytes(build_signed_bytes(message));
    SignatureClaim::Signed {
        key: Some(PublicKey(key)),
        signature,
        covered,
        scope: SignatureScope::Whole,
    }
}

fn decode_member<const N: usize>(node: &JsonNode<'_>, name: &str) -> Option<[u8; N]> {
    BASE64.decode(node.text(name)?).ok()?.try_into().ok()
}

/// Returns the claim of the signature file beside a message, if there is one. `read` is the result of reading it.
///
/// # Errors
/// The error of reading, if it may pass.
pub(super) fn claim_from_result(
    read: io::Result<Vec<u8>>,
    message: &[u8],
) -> io::Result<Option<SignatureClaim>> {
    match read {
        Ok(signature) => Ok(Some(parse_claim(&signature, message))),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) if fs::is_transient(&e) => Err(e),
        Err(e) => Ok(Some(unreadable_claim(&e))),
    }
}

/// Returns the claim of a signature file that cannot be read.
pub(super) fn unreadable_claim(error: &io::Error) -> SignatureClaim {
    SignatureClaim::Malformed(format!("its signature file cannot be read: {error}"))
}

/// Returns the text of a signature file, one line.
pub(super) fn render_signature(message: &[u8], signer: &dyn Signer) -> String {
    let key = BASE64.encode(signer.public_key().0);
    let signature = BASE64.encode(signer.sign(&build_signed_bytes(message)));
    format!("{{\"pub\": \"{key}\", \"sig\": \"{signature}\"}}\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::verify;
    use crate::store::testing::Key;

    #[test]
    fn a_signature_fits_its_message_only() {
        let line = render_signature(b"{}\n", &Key::new(7));
        assert_eq!(verify::find_claim_fault(&parse_claim(line.as_bytes(), b"{}\n")), None);
        assert!(verify::find_claim_fault(&parse_claim(line.as_bytes(), b"{} \n")).is_some());
        for bad in ["", "{", "{}", "{\"pub\":\"AA==\",\"sig\":\"\"}", &line.replace("sig", "gis")] {
            assert!(
                matches!(parse_claim(bad.as_bytes(), b"{}\n"), SignatureClaim::Malformed(_)),
                "{bad}"
            );
        }
    }
}
