//! Ids of messages and attachments (docs/formats/amp.md, sections 4 and 8).
//!
//! Ids become file names, so only a text that is certainly harmless is an id.

use std::borrow::Cow;

use crate::model::{Timestamp, encode_hex};

/// The longest id, in bytes: with `.json` and a leading dot it is still a file name everywhere.
const MAX_ID: usize = 128;

/// Returns true if readers accept this text as the id of a message. The plugin's pattern is
/// `msg_<digits>_<letters and digits>`, or `-` for `_`. The form that `amp-fetch` stores is a letter or digit and 3 to
/// 63 more, `_` or `-`. The word `null` stands for a missing id and is never one.
pub fn is_message_id(text: &str) -> bool {
    text != "null"
        && (has_pattern(text, "msg")
            || ((4..=64).contains(&text.len())
                && text.bytes().next().is_some_and(|b| b.is_ascii_alphanumeric())
                && text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_'))))
}

/// Returns true if a program of this format may have made this id: `msg_<digits>_<letters and digits>`.
pub fn is_generated_id(text: &str) -> bool {
    has_pattern(text, "msg")
}

/// Returns true if a text is the id of an attachment: `att_<digits>_<letters and digits>`.
pub fn is_attachment_id(text: &str) -> bool {
    has_pattern(text, "att")
}

/// Returns true if a text matches `^<prefix>[_-][0-9]+[_-][A-Za-z0-9]+$`.
fn has_pattern(text: &str, prefix: &str) -> bool {
    let separators = ['_', '-'];
    let Some((number, suffix)) = text
        .strip_prefix(prefix)
        .and_then(|rest| rest.strip_prefix(separators))
        .and_then(|rest| rest.split_once(separators))
    else {
        return false;
    };
    text.len() <= MAX_ID
        && !number.is_empty()
        && number.bytes().all(|b| b.is_ascii_digit())
        && !suffix.is_empty()
        && suffix.bytes().all(|b| b.is_ascii_alphanumeric())
}

/// Makes a new id of a message (`msg`) or an attachment (`att`) that fits the pattern of every known program: ten
/// digits of seconds and 16 of lower-case hex, without `-`, which one program deletes. The first three hex digits are
/// the milliseconds, so later ids are greater.
pub fn new_id(prefix: &str, now: Timestamp, rest: [u8; 8]) -> String {
    build_id(&new_id_prefix(prefix, now), rest)
}

/// Returns the beginning of all new ids of a moment.
pub(super) fn new_id_prefix(prefix: &str, now: Timestamp) -> String {
    let secs = now.secs().clamp(0, 9_999_999_999);
    let ms = now.millis().rem_euclid(1000);
    format!("{prefix}_{secs:010}_{ms:03x}")
}

/// Builds an id from its beginning and 13 hex digits of these bytes.
pub(super) fn build_id(beginning: &str, rest: [u8; 8]) -> String {
    format!("{beginning}{}", encode_hex(&rest).get(3..).unwrap_or_default())
}

/// Returns the beginning of an id of this form.
pub(super) fn split_id_prefix(id: &str) -> Option<&str> {
    let (beginning, rest) = id.split_at_checked(id.len().checked_sub(13)?)?;
    let is_ours = beginning.len() == 18 && beginning.starts_with("msg_") && rest.is_ascii();
    is_ours.then_some(beginning)
}

/// Returns the spelling in which ids are compared: one program writes `-` for `_`.
pub fn fold_id(id: &str) -> Cow<'_, str> {
    if id.contains('-') { Cow::Owned(id.replace('-', "_")) } else { Cow::Borrowed(id) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn ids_of_every_program() {
        for id in [
            "msg_1706648400_abc123",
            "msg_1795291632305_e025e81e",
            "msg-1795291632305-e025e81e",
            "msg_1706648400_xyz789def",
            "receipt_read_msg_1795291632305_e025e81_1795291632999",
            "abcd",
            "A-_z",
        ] {
            assert!(is_message_id(id), "{id}");
        }
        let long = format!("msg_1_{}", "a".repeat(200));
        for id in [
            "",
            "null",
            "abc",
            "../x",
            "msg_1_a/../../x",
            "msg_1_.json",
            "_abc",
            "-abc",
            "a b c d",
            "msg_1_a\n",
            "msg_1_\u{e9}a",
            ".tmp",
            "a..b",
            &long,
        ] {
            assert!(!is_message_id(id), "{id}");
        }
        assert!(is_attachment_id("att_1706648400_abc123"));
        assert!(is_attachment_id("att-1-A"));
        for id in ["att_1_", "att__a", "att_x_a", "att_1_a_b", "att_1_a/..", "msg_1_a", "ATT_1_a"] {
            assert!(!is_attachment_id(id), "{id}");
        }
    }

    #[test]
    fn new_ids_fit_every_pattern() {
        let now = Timestamp::from_millis(1_795_291_603_999);
        let id = new_id("msg", now, [0, 1, 0xab, 0xff, 4, 5, 6, 7]);
        assert_eq!(id, "msg_1795291603_3e71abff04050607");
        assert_eq!(new_id("att", now, [9; 8]), "att_1795291603_3e79090909090909");
        for time in [i64::MIN, -1, 0, i64::MAX] {
            let id = new_id("msg", Timestamp::from_millis(time), [0; 8]);
            assert_eq!(id.len(), 31);
            assert!(is_message_id(&id));
        }
        assert_eq!(fold_id("msg-1-a"), "msg_1_a");
        assert!(matches!(fold_id("msg_1_a"), Cow::Borrowed(_)));
    }

    proptest! {
        #[test]
        fn an_id_is_one_harmless_path_component(text in "[a-z./\\\\_0-9-]{0,12}|msg_[0-9]{0,3}_[a-z./]{0,5}") {
            if is_message_id(&text) || is_attachment_id(&text) {
                prop_assert!(!text.contains(['/', '\\', '.', '\0']) && !text.starts_with('-'));
            }
        }
    }
}
