//! Signatures: `<msg_id>.sig` beside `<msg_id>.json` holds the key and the signature over
//! `"ssot-sig-v1\n"` and the bytes of the message file.

use std::io;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;

use super::tree::Node;
use crate::model::{Claim, ClaimScope, Covered, PublicKey};
use crate::store::{Signer, fs};

/// What the signed bytes begin with, so that a signature fits no other format.
const PREFIX: &[u8] = b"ssot-sig-v1\n";

fn covered(message: &[u8]) -> Vec<u8> {
    [PREFIX, message].concat()
}

/// The claim that a signature file makes about a message file.
pub(super) fn claim(signature: &[u8], message: &[u8]) -> Claim {
    let malformed = |what: &str| Claim::Malformed(format!("its signature file {what}"));
    let Ok(node) = Node::parse(signature) else { return malformed("is not a JSON object") };
    let Some(key) = decode::<32>(&node, "pub") else {
        return malformed("has no member \"pub\" that is the base64 of 32 bytes");
    };
    let Some(signature) = decode::<64>(&node, "sig") else {
        return malformed("has no member \"sig\" that is the base64 of 64 bytes");
    };
    let covered = Covered::one(covered(message));
    Claim::Signed { key: Some(PublicKey(key)), signature, covered, scope: ClaimScope::Whole }
}

fn decode<const N: usize>(node: &Node<'_>, name: &str) -> Option<[u8; N]> {
    BASE64.decode(node.text(name)?).ok()?.try_into().ok()
}

/// The claim about a message in what was read from the signature file beside it, if there is one.
///
/// # Errors
/// That of reading, if it may pass.
pub(super) fn claim_in(read: io::Result<Vec<u8>>, message: &[u8]) -> io::Result<Option<Claim>> {
    match read {
        Ok(signature) => Ok(Some(claim(&signature, message))),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) if fs::may_pass(&e) => Err(e),
        Err(e) => Ok(Some(unreadable(&e))),
    }
}

/// The claim of a signature file that cannot be read.
pub(super) fn unreadable(error: &io::Error) -> Claim {
    Claim::Malformed(format!("its signature file cannot be read: {error}"))
}

/// The text of a signature file, one line.
pub(super) fn signature_line(message: &[u8], signer: &dyn Signer) -> String {
    let key = BASE64.encode(signer.public_key().0);
    let signature = BASE64.encode(signer.sign(&covered(message)));
    format!("{{\"pub\": \"{key}\", \"sig\": \"{signature}\"}}\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::verify;
    use crate::store::testing::Key;

    #[test]
    fn a_signature_fits_its_message_only() {
        let line = signature_line(b"{}\n", &Key::new(7));
        assert_eq!(verify::fault(&claim(line.as_bytes(), b"{}\n")), None);
        assert!(verify::fault(&claim(line.as_bytes(), b"{} \n")).is_some());
        for bad in ["", "{", "{}", "{\"pub\":\"AA==\",\"sig\":\"\"}", &line.replace("sig", "gis")] {
            assert!(matches!(claim(bad.as_bytes(), b"{}\n"), Claim::Malformed(_)), "{bad}");
        }
    }
}
