//! The short form of an id, with which the names of messages end (docs/SEMANTICS.md, S17).

use sha2::{Digest, Sha256};

use super::{encode_hex, plain_id};

/// Hex digits of a SHA-256.
pub const HASH_DIGITS: usize = 64;
/// Characters of a short id.
const SHORT: usize = 8;

/// Returns the first hex digits of a text's SHA-256.
pub fn short_hash(text: &str, digits: usize) -> String {
    let mut hex = encode_hex(&Sha256::digest(text.as_bytes()));
    hex.truncate(digits);
    hex
}

/// Returns true if a text has no other characters than lower-case hex digits.
pub fn is_lower_hex(text: &str) -> bool {
    text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

/// Returns true for the id of a mail that is not of the form that msgfs writes, 16 lower-case hex digits before the
/// host. It often begins with a date, as the ids of other mail of that day do.
fn is_foreign_mail_id(id: &str) -> bool {
    id.split_once('@').is_some_and(|(own, _)| own.len() != 16 || !is_lower_hex(own))
}

/// Returns the first 8 characters of an id if they are lower-case hex, else of its hash. For a mail that msgfs did not
/// write they are always those of the hash.
pub fn short_id(id: &str) -> String {
    let id = plain_id(id);
    match id.get(..SHORT).filter(|start| is_lower_hex(start) && !is_foreign_mail_id(id)) {
        Some(start) => start.to_owned(),
        None => short_hash(id, SHORT),
    }
}

/// Returns the whole id in the form in which it stands in names: as it is if it is lower-case hex, else its hash.
pub fn full_id(id: &str) -> String {
    let id = plain_id(id);
    if (SHORT..=HASH_DIGITS).contains(&id.len()) && is_lower_hex(id) {
        id.to_owned()
    } else {
        short_hash(id, HASH_DIGITS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::QUALIFIER;

    #[test]
    fn ids_in_names() {
        assert_eq!(short_id("ab12cd34ef567890"), "ab12cd34");
        assert_eq!(full_id("ab12cd34ef567890"), "ab12cd34ef567890");
        assert_eq!(short_id("AB12CD34"), short_hash("AB12CD34", 8));
        assert_eq!(short_id("abc"), short_hash("abc", 8));
        assert_eq!(short_id("ab12cd34ef567890@msgfs.example.org"), "ab12cd34");
        assert_eq!(short_id("20261128.1@x.org"), "758e06ea");
        assert_eq!(full_id("abc"), short_hash("abc", 64));
        assert_eq!(full_id("ab12cd34/../x"), short_hash("ab12cd34/../x", 64));
        let namesake = format!("ab12cd34ef56{QUALIFIER}{}", "0f".repeat(32));
        assert_eq!(full_id(&namesake), "ab12cd34ef56");
        assert_eq!(full_id("ab12cd34ef56"), "ab12cd34ef56");
    }
}
