//! The address filter (docs/formats/agentazall.md, section 6; section 14, P11 to P13).
//!
//! It acts when a message is read. Unlike the reference's, it matches the bare address, so that a display name cannot
//! evade it, and an empty whitelist admits nobody.

use serde_json::Value;

use super::names::bare_address;
use crate::model::sanitize_line;

/// The senders that may write to me, from the configuration's `address_filter` (or `filter`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    mode: FilterMode,
    blacklist: Vec<AddressPattern>,
    whitelist: Vec<AddressPattern>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum FilterMode {
    /// A mode in which everybody may write.
    #[default]
    Off,
    /// A mode in which everybody may write who is not on the blacklist.
    Blacklist,
    /// A mode in which everybody may write who is on the whitelist and not on the blacklist.
    Whitelist,
}

/// Returns the key of a list in a filter's value that is no list.
pub(super) fn find_odd_list(value: &Value) -> Option<&'static str> {
    let is_odd =
        |key: &&str| value.get(*key).is_some_and(|list| !list.is_array() && !list.is_null());
    ["blacklist", "whitelist"].into_iter().find(is_odd)
}

impl Filter {
    /// Reads `{"mode": "off" | "blacklist" | "whitelist", "blacklist": […], "whitelist": […]}`.
    ///
    /// A value that is no object is no filter. A mode that is missing or unknown is `blacklist`, as in the reference.
    /// Entries that are not text are ignored.
    pub fn from_config(value: &Value) -> Self {
        let Value::Object(filter) = value else { return Self::default() };
        let mode = filter.get("mode").and_then(Value::as_str).unwrap_or_default();
        let mode = match mode.trim().to_ascii_lowercase().as_str() {
            "off" => FilterMode::Off,
            "whitelist" => FilterMode::Whitelist,
            _ => FilterMode::Blacklist,
        };
        let list = |key| {
            let entries = filter.get(key).and_then(Value::as_array).into_iter().flatten();
            entries.filter_map(Value::as_str).filter_map(AddressPattern::new).collect()
        };
        Self { mode, blacklist: list("blacklist"), whitelist: list("whitelist") }
    }

    /// Returns the reason why a message with this `From` is not accepted, in a sentence for a person; `None` if it is.
    /// A message without a sender is on no whitelist.
    pub fn find_refusal(&self, from: &str) -> Option<String> {
        if self.mode == FilterMode::Off {
            return None;
        }
        let address = bare_address(from);
        let folded = fold_case(&address);
        if let Some(pattern) = self.blacklist.iter().find(|p| p.matches(&folded)) {
            return Some(format!(
                "the address filter's blacklist refuses {} ({})",
                describe_sender(&address),
                sanitize_line(&pattern.text)
            ));
        }
        // A message without a sender is on no list, not even on `*`.
        let listed = !address.is_empty() && self.whitelist.iter().any(|p| p.matches(&folded));
        if self.mode == FilterMode::Whitelist && !listed {
            return Some(format!(
                "{} is not on the address filter's whitelist; `agentazall filter` changes it",
                describe_sender(&address)
            ));
        }
        None
    }
}

/// Returns the text in lower case, one character at a time: the next letter does not matter.
fn fold_case(text: &str) -> Vec<char> {
    text.chars().flat_map(char::to_lowercase).collect()
}

fn describe_sender(address: &str) -> String {
    if address.is_empty() {
        "a message without From".into()
    } else {
        sanitize_line(address).into_owned()
    }
}

/// A shell pattern as Python's `fnmatch` reads it: `*`, `?`, `[abc]`, `[a-z]`, `[!abc]`; upper and lower case are the
/// same.
#[derive(Clone, Debug, PartialEq, Eq)]
struct AddressPattern {
    text: String,
    parts: Vec<GlobToken>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum GlobToken {
    Any,
    One,
    Char(char),
    Set { negated: bool, ranges: Vec<(char, char)> },
}

impl AddressPattern {
    /// Compiles a pattern. Returns `None` for an empty entry, which is a slip and not a wish to match the empty
    /// address.
    fn new(text: &str) -> Option<Self> {
        let text = text.trim();
        let folded = fold_case(text);
        let mut parts = Vec::new();
        let mut rest = folded.as_slice();
        while let Some((first, tail)) = rest.split_first() {
            rest = tail;
            match first {
                // A run of `*` is one `*`; more would only be slower.
                '*' if parts.last() == Some(&GlobToken::Any) => {}
                '*' => parts.push(GlobToken::Any),
                '?' => parts.push(GlobToken::One),
                '[' => match parse_char_set(tail) {
                    Some((part, after)) => {
                        parts.push(part);
                        rest = after;
                    }
                    None => parts.push(GlobToken::Char('[')),
                },
                c => parts.push(GlobToken::Char(*c)),
            }
        }
        (!text.is_empty()).then(|| Self { text: text.to_owned(), parts })
    }

    /// Returns true if the pattern matches all of the folded address. Only the last `*` is ever moved, so the time is
    /// at most the product of the lengths.
    fn matches(&self, address: &[char]) -> bool {
        let (mut part, mut at) = (0, 0);
        let mut star = None;
        loop {
            match (self.parts.get(part), address.get(at)) {
                (None, None) => return true,
                (Some(GlobToken::Any), _) => {
                    part += 1;
                    star = Some((part, at));
                    continue;
                }
                (Some(p), Some(c)) if p.matches_char(*c) => {
                    (part, at) = (part + 1, at + 1);
                    continue;
                }
                _ => {}
            }
            match star {
                Some((after, from)) if from < address.len() => {
                    star = Some((after, from + 1));
                    (part, at) = (after, from + 1);
                }
                _ => return false,
            }
        }
    }
}

impl GlobToken {
    fn matches_char(&self, c: char) -> bool {
        match self {
            Self::Any | Self::One => true,
            Self::Char(own) => *own == c,
            Self::Set { negated, ranges } => {
                ranges.iter().any(|(low, high)| (*low..=*high).contains(&c)) != *negated
            }
        }
    }
}

/// Returns the set after a `[` and the text after its `]`; `None` if it has no end. Such a `[` is an ordinary
/// character. A `]` right at its start belongs to the set.
fn parse_char_set(text: &[char]) -> Option<(GlobToken, &[char])> {
    let (negated, text) = match text.split_first() {
        Some(('!', tail)) => (true, tail),
        _ => (false, text),
    };
    let end = 1 + text.iter().skip(1).position(|c| *c == ']')?;
    let (mut inside, after) = (text.get(..end)?, text.get(end + 1..)?);
    let mut ranges = Vec::new();
    while let Some((first, tail)) = inside.split_first() {
        if let ['-', last, after @ ..] = tail {
            // A range that runs backwards matches nothing, as `(first, last)` does.
            ranges.push((*first, *last));
            inside = after;
        } else {
            ranges.push((*first, *first));
            inside = tail;
        }
    }
    Some((GlobToken::Set { negated, ranges }, after))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn accepts(config: Value, from: &str) -> bool {
        Filter::from_config(&config).find_refusal(from).is_none()
    }

    fn fits(pattern: &str, address: &str) -> bool {
        AddressPattern::new(pattern).unwrap().matches(&fold_case(address))
    }

    #[test]
    fn patterns_as_python_reads_them() {
        // Answers of Python 3.11's fnmatch.
        for (pattern, address, expected) in [
            ("bob@x", "bob@x", true),
            ("BOB@*", "bob@x", true),
            ("*@x", "a@b@x", true),
            ("*.*.agenttalk", "a.b.agenttalk", true),
            ("*.*.agenttalk", "a.agenttalk", false),
            ("b?b", "bob", true),
            ("b?b", "bb", false),
            ("[abc]x", "bx", true),
            ("[!abc]x", "bx", false),
            ("[!abc]x", "dx", true),
            ("[a-c]", "b", true),
            ("[c-a]", "b", false),
            ("[!c-a]", "b", true),
            ("[a-c-e]", "-", true),
            ("[a-c-e]", "d", false),
            ("[-a]", "-", true),
            ("[a-]", "-", true),
            ("[]a]", "]", true),
            ("[!]a]", "]", false),
            ("[!]a]", "b", true),
            ("[", "[", true),
            ("[a", "[a", true),
            ("[]", "[]", true),
            ("[!]", "[!]", true),
            ("[^a]", "^", true),
            ("a\\*", "a\\b", true),
            ("*", "", true),
            ("a**b", "a-b", true),
            ("[[]", "[", true),
        ] {
            assert_eq!(fits(pattern, address), expected, "{pattern} {address}");
        }
    }

    #[test]
    fn lists_and_modes() {
        let both = |mode: &str| json!({"mode": mode, "blacklist": ["eve@*"], "whitelist": ["*@x"]});
        assert!(accepts(both("off"), "eve@x"));
        assert!(!accepts(both("blacklist"), "eve@x") && accepts(both("blacklist"), "bob@y"));
        assert!(!accepts(both("whitelist"), "eve@x") && accepts(both("whitelist"), "bob@x"));
        assert!(!accepts(both("whitelist"), "bob@y") && !accepts(both("Whitelist"), "bob@y"));
        assert!(!accepts(json!({"blacklist": ["eve@*"]}), "eve@x"));
        assert!(accepts(json!({"blacklist": ["eve@*", 7, ""]}), ""));
        assert!(!accepts(json!({"mode": "whitelist", "whitelist": []}), "bob@x"));
        assert!(!accepts(json!({"mode": "whitelist"}), "bob@x"));
        assert!(accepts(json!({"mode": "off", "blacklist": ["*"]}), "bob@x"));
        assert!(accepts(json!("whitelist"), "bob@x") && accepts(json!({}), "bob@x"));
        assert_eq!(Filter::from_config(&Value::Null), Filter::default());
    }

    #[test]
    fn display_names_do_not_evade_and_nobody_fails_a_whitelist() {
        let black = json!({"mode": "blacklist", "blacklist": ["bob@x"]});
        assert!(!accepts(black.clone(), "\"Bob\" <BOB@x>") && !accepts(black.clone(), "bob@x"));
        assert!(accepts(black, "\"bob@x\" <carol@x>"));
        let white = Filter::from_config(&json!({"mode": "whitelist", "whitelist": ["bob@x"]}));
        assert!(white.find_refusal("").unwrap().contains("without From"));
        assert!(white.find_refusal("a\nb").unwrap().contains("a\u{240a}b"));
    }

    #[test]
    fn hostile_patterns_take_no_time() {
        let pattern = AddressPattern::new(&"*a".repeat(200)).unwrap();
        assert!(!pattern.matches(&vec!['a'; 199]));
        assert!(!pattern.matches(&vec!['b'; 5000]));
    }

    proptest! {
        #[test]
        fn any_text_without_specials_matches_itself(text in "[^\\[*?]{1,20}", tail in "\\PC{0,9}") {
            prop_assume!(!text.trim().is_empty());
            prop_assert!(fits(&text, text.trim()));
            let any = format!("{text}*");
            let longer = format!("{}{tail}", text.trim_start());
            prop_assert!(fits(&any, &longer));
        }

        #[test]
        fn foreign_patterns_never_panic(pattern in "\\PC{0,12}|[]\\[!*?a-]{0,12}", address in "\\PC{0,12}") {
            let _ = AddressPattern::new(&pattern).map(|p| p.matches(&fold_case(&address)));
        }
    }
}
