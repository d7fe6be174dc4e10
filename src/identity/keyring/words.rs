//! Why a signature is refused, in words.

use crate::model::{PublicKey, Remedy, one_line};

/// `3430f3e127705937`, or several joined by `or`.
fn names(keys: &[PublicKey]) -> String {
    keys.iter().rev().map(|k| k.fingerprint().to_string()).collect::<Vec<_>>().join(" or ")
}

pub(super) fn wrong_signature(
    from: &str,
    offered: Option<PublicKey>,
    pinned: &[PublicKey],
) -> String {
    let from = one_line(from);
    match offered {
        None => format!(
            "the signature is wrong: it is not by {}, the key of {from}, over this message",
            names(pinned)
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
            names(pinned)
        ),
    }
}

pub(super) fn foreign_key(from: &str, offered: PublicKey, owner: &str) -> String {
    format!(
        "its signed text says it is from {}, but it is signed with key {}, which belongs to {}; if \
         it is the key of both, accept it with: {}",
        one_line(from),
        offered.fingerprint(),
        one_line(owner),
        Remedy::Trust(from.to_owned())
    )
}

/// What to do about messages under my own name that another key signed. `own`: mine is that of the mount,
/// and not one that a store keeps.
pub fn other_key_of_mine(address: &str, other: PublicKey, own: bool) -> String {
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
        one_line(address),
        other.fingerprint(),
        Remedy::Trust(address.to_owned())
    )
}

pub(super) fn changed_key(from: &str, offered: PublicKey, pinned: &[PublicKey]) -> String {
    format!(
        "signed with key {}, but the key of {} is {}; if {} really has a new key, accept it with: \
         {}",
        offered.fingerprint(),
        one_line(from),
        names(pinned),
        one_line(from),
        Remedy::Trust(from.to_owned())
    )
}
