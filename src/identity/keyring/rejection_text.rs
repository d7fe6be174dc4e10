//! The texts of refused signatures.

use crate::model::{PublicKey, Remedy, sanitize_line};

/// Returns `3430f3e127705937`, or several joined by `or`.
fn join_fingerprints(keys: &[PublicKey]) -> String {
    keys.iter().rev().map(|k| k.fingerprint().to_string()).collect::<Vec<_>>().join(" or ")
}

/// Returns the reason for the rejection of a message whose signature is wrong. `offered` is the key that the message
/// names.
pub(super) fn describe_wrong_signature(
    from: &str,
    offered: Option<PublicKey>,
    pinned: &[PublicKey],
) -> String {
    let from = sanitize_line(from);
    match offered {
        None => format!(
            "the signature is wrong: it is not by {}, the key of {from}, over this message",
            join_fingerprints(pinned)
        ),
        Some(key) if pinned.is_empty() || pinned.contains(&key) => {
            format!(
                "the signature is wrong: it is not by key {} over this message",
                key.fingerprint()
            )
        }
        Some(key) => format!(
            "the signature is wrong: it is not by the key {} it offers, and the key of {from} is {}",
            key.fingerprint(),
            join_fingerprints(pinned)
        ),
    }
}

/// Returns the reason for the rejection of a message that is signed with the key of another address.
pub(super) fn describe_foreign_key(from: &str, offered: PublicKey, owner: &str) -> String {
    format!(
        "its signed text says it is from {}, but it is signed with key {}, which belongs to {}; if \
         it is the key of both, accept it with: {}",
        sanitize_line(from),
        offered.fingerprint(),
        sanitize_line(owner),
        Remedy::Trust(from.to_owned(), offered)
    )
}

/// Returns the text about messages under my own name that another key signed. `own` is true if my key is that of the
/// mount, and not one that a store keeps.
pub fn describe_other_own_key(address: &str, other: PublicKey, own: bool) -> String {
    let share = Remedy::ShareKey;
    let share = if own {
        format!("with, on the one whose key is to stay: {share}")
    } else {
        "by copying the key file of the store".to_owned()
    };
    format!(
        "messages under my name ({}) are signed with another key, {}, and refused; if they are \
         from another machine of mine, both need one key, {share}; accept the messages signed \
         until then with: {}; if they are not from a machine of mine, somebody writes in my name",
        sanitize_line(address),
        other.fingerprint(),
        Remedy::Trust(address.to_owned(), other)
    )
}

/// Returns the fingerprint of each key refused for an address, with the command that trusts it, a line each.
pub(super) fn list_refused_keys(address: &str, refused: &[PublicKey]) -> String {
    let line = |key: &PublicKey| {
        format!("\n{}: {}", key.fingerprint(), Remedy::Trust(address.to_owned(), *key))
    };
    refused.iter().map(line).collect()
}

/// Returns the reason for the rejection of a message that is signed with another key than the pinned ones.
pub(super) fn describe_changed_key(from: &str, offered: PublicKey, pinned: &[PublicKey]) -> String {
    format!(
        "signed with key {}, but the key of {} is {}; if {} really has a new key, accept it with: \
         {}",
        offered.fingerprint(),
        sanitize_line(from),
        join_fingerprints(pinned),
        sanitize_line(from),
        Remedy::Trust(from.to_owned(), offered)
    )
}
