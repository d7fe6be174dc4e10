//! JSON values inside a text: members of objects and elements of arrays, without a copy.

use std::borrow::Cow;

use crate::store::text::json::{self, JsonValue};

/// Returns the elements of an array as they are spelled; none if the text is no array.
///
/// The scanner must have found the text well formed.
pub(in crate::store) fn split_elements(array: &str) -> Vec<&str> {
    let mut out = Vec::new();
    let _ = json::visit_elements(array, |text, _| out.push(text));
    out
}

/// Returns the members of an object with these names, in the order of the names. Of equal keys the last counts. `None`
/// if the text is no object.
pub(in crate::store) fn pick_members<'a, const N: usize>(
    object: &'a str,
    names: [&str; N],
) -> Option<[Option<JsonValue<'a>>; N]> {
    let mut out = [None; N];
    json::visit_members(object, |key, value| {
        let key = if key.has_escapes() { key.to_text() } else { Cow::Borrowed(key.raw_text()) };
        if let Some(n) = names.iter().position(|name| *name == key)
            && let Some(slot) = out.get_mut(n)
        {
            *slot = Some(value);
        }
    })
    .ok()?;
    Some(out)
}

/// Returns the value of a string, with lone surrogates as U+FFFD.
pub(in crate::store) fn as_text<'a>(value: Option<&JsonValue<'a>>) -> Option<Cow<'a, str>> {
    match value {
        Some(JsonValue::String(text)) => Some(text.to_text()),
        _ => None,
    }
}

/// Returns the text of an object.
pub(in crate::store) fn as_object<'a>(value: Option<&JsonValue<'a>>) -> Option<&'a str> {
    as_compound(value, '{')
}

/// Returns the text of an array.
pub(in crate::store) fn as_array<'a>(value: Option<&JsonValue<'a>>) -> Option<&'a str> {
    as_compound(value, '[')
}

fn as_compound<'a>(value: Option<&JsonValue<'a>>, opens: char) -> Option<&'a str> {
    match value {
        Some(JsonValue::Compound(text)) if text.starts_with(opens) => Some(text),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn arrays_come_apart_at_their_own_commas() {
        for (array, parts) in [
            ("[]", &[][..]),
            ("[ ]", &[]),
            ("[1]", &["1"]),
            ("[ {\"a\":[1,2]} , \"x,]\\\",\" ,null]", &["{\"a\":[1,2]}", "\"x,]\\\",\"", "null"]),
            ("{}", &[]),
        ] {
            assert_eq!(split_elements(array), parts, "{array}");
        }
    }

    #[test]
    fn the_last_of_equal_keys_counts() {
        let [a, b] = pick_members(r#"{"a":1,"\u0061":"2"}"#, ["a", "b"]).unwrap();
        assert_eq!(as_text(a.as_ref()).unwrap(), "2");
        assert!(b.is_none());
        assert!(pick_members("[]", ["a"]).is_none());
    }

    proptest! {
        #[test]
        fn elements_join_to_the_array(values in proptest::collection::vec(any::<String>(), 0..6)) {
            let array = serde_json::to_string(&values).unwrap();
            prop_assert_eq!(format!("[{}]", split_elements(&array).join(",")), array);
        }

        #[test]
        fn nothing_panics(text in "[\\[\\]{}\":,a0\\\\ \u{e9}]{0,30}") {
            let _ = split_elements(&text);
        }
    }
}
