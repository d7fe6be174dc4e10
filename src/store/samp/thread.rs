//! The way from subject and text of a new message to its thread (docs/formats/samp.md, section 4).

use crate::store::text::pytext;

/// The longest slug, in characters.
const MAX_SLUG: usize = 40;

/// Splits the text of a new message into the thread that it names, if it names one, and the text that remains
/// as its body, in NFC.
///
/// A text that starts with `[thread:<id>]` names its thread itself, and the mark is removed. Control
/// characters in that id are dropped; if nothing but white space remains, no thread is named. Replies inherit
/// their thread and do not come here.
pub fn split_thread(body: &str) -> (Option<String>, String) {
    let text = pytext::to_nfc(body);
    let Some((id, rest)) = split_override(&text) else { return (None, text.into_owned()) };
    (Some(clean_id(id)).filter(|id| !id.is_empty()), rest.to_owned())
}

/// Derives the thread of a new message that names none from its subject or its text: `<date>-<from>-<slug>`. The slug
/// is made of the first line. `date_utc` is the day of sending in UTC, `YYYY-MM-DD`.
pub fn derive_thread(text: &str, from: &str, date_utc: &str) -> String {
    format!("{date_utc}-{from}-{}", make_slug(&pytext::to_nfc(text)))
}

/// Splits `\s*\[thread:([^\]]+)\]\s*` off the start. Returns the captured text and the rest.
fn split_override(text: &str) -> Option<(&str, &str)> {
    let (id, rest) = pytext::strip_start(text).strip_prefix("[thread:")?.split_once(']')?;
    (!id.is_empty()).then(|| (id, pytext::strip_start(rest)))
}

/// Returns the id of an override without control characters and surrounding white space.
fn clean_id(id: &str) -> String {
    let kept: String = id.chars().filter(|c| !c.is_ascii_control()).collect();
    pytext::strip(&kept).to_owned()
}

/// Returns the first line in lower case, in which a `-` replaces every run of anything but ASCII letters and digits.
/// There is none at the start or end. The slug is cut to 40 characters (so the cut may leave one at the end); `msg` if
/// empty.
fn make_slug(text: &str) -> String {
    let mut slug = String::with_capacity(MAX_SLUG);
    let mut gap = false;
    // Lower-casing comes first: the Kelvin sign becomes an ASCII letter.
    for c in pytext::first_line(text).chars().flat_map(char::to_lowercase) {
        if !c.is_ascii_alphanumeric() {
            gap = true;
            continue;
        }
        if gap && !slug.is_empty() {
            slug.push('-');
        }
        gap = false;
        if slug.len() == MAX_SLUG {
            break;
        }
        slug.push(c);
    }
    if slug.is_empty() {
        slug.push_str("msg");
    }
    slug.truncate(MAX_SLUG);
    slug
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::Value;

    fn derive(body: &str, from: &str, date_utc: &str) -> (String, String) {
        let (named, body) = split_thread(body);
        (named.unwrap_or_else(|| derive_thread(&body, from, date_utc)), body)
    }

    #[test]
    fn vectors() {
        let all: Value =
            serde_json::from_str(include_str!("../../../tests/vectors/samp-threads.json")).unwrap();
        let all = all.as_array().unwrap();
        assert!(all.len() >= 26);
        for v in all {
            let text = |key: &str| v[key].as_str().unwrap();
            let (thread, body) = derive(text("body_in"), text("from"), text("date"));
            assert_eq!(thread, text("spec20260808_thread"), "{}", v["name"]);
            assert_eq!(body, text("spec20260808_body"), "{}", v["name"]);
        }
    }

    #[test]
    fn overrides() {
        let table = [
            ("[thread:[a]] x", "[a", "] x"),
            ("[thread:a]", "a", ""),
            ("\u{1c}\u{3000}\n[thread: a ]\u{1f}\n x", "a", "x"),
            ("[thread:]x", "D-me-thread-x", "[thread:]x"),
            ("[thread:]]x", "D-me-thread-x", "[thread:]]x"),
            ("\u{200b}[thread:a] x", "D-me-thread-a-x", "\u{200b}[thread:a] x"),
            ("\u{feff}[thread:a] x", "D-me-thread-a-x", "\u{feff}[thread:a] x"),
            ("[thread:a", "D-me-thread-a", "[thread:a"),
            ("[thread:\u{a0}\u{7f}]", "D-me-msg", ""),
            ("[thread: ]\nHello", "D-me-hello", "Hello"),
        ];
        for (text, thread, body) in table {
            assert_eq!(derive(text, "me", "D"), (thread.into(), body.into()), "{text:?}");
        }
    }

    #[test]
    fn slugs() {
        assert_eq!(make_slug("\u{212a}elvin"), "kelvin");
        assert_eq!(make_slug(&format!("{}!!b", "a".repeat(39))), format!("{}-", "a".repeat(39)));
        assert_eq!(make_slug(&format!("{}!!b", "a".repeat(40))), "a".repeat(40));
        assert_eq!(make_slug(&format!("{}!!", "a".repeat(39))), "a".repeat(39));
        assert_eq!(make_slug("\nfirst line is empty"), "msg");
        // The text is normalised first, so the accented letter is one separator.
        assert_eq!(derive("cafe\u{301}", "a", "D").0, "D-a-caf");
    }

    /// Returns the slug by the same rule, step by step as it is written down.
    fn plain_slug(text: &str) -> String {
        let lower = pytext::first_line(text).to_lowercase();
        let mut s = String::new();
        for c in lower.chars() {
            if c.is_ascii_alphanumeric() {
                s.push(c);
            } else if !s.ends_with('-') {
                s.push('-');
            }
        }
        let cut: String = s.trim_matches('-').chars().take(40).collect();
        if cut.is_empty() { "msg".to_owned() } else { cut }
    }

    proptest! {
        #[test]
        fn slug_is_the_rule(s in "[ a-zA-Z0-9!\\-\u{130}\u{212a}\u{e9}\n\u{1d}]{0,90}") {
            prop_assert_eq!(make_slug(&s), plain_slug(&s));
        }

        #[test]
        fn derive_holds_its_promises(s in any::<String>()) {
            let (thread, body) = derive(&s, "me", "2026-04-25");
            let slug = thread.strip_prefix("2026-04-25-me-").unwrap();
            prop_assert!(!slug.is_empty() && slug.len() <= 40);
            prop_assert!(slug.bytes().all(|b| b.is_ascii_digit() || b.is_ascii_lowercase() || b == b'-'));
            prop_assert_eq!(pytext::to_nfc(&body).into_owned(), body);
        }

        #[test]
        fn derive_with_override(s in "\\s{0,2}\\[thread:(?s:.){0,30}\\](?s:.){0,20}") {
            let (thread, _) = derive(&s, "me", "2026-04-25");
            prop_assert!(!thread.is_empty());
            prop_assert!(!thread.chars().any(|c| c.is_ascii_control()));
        }
    }
}
