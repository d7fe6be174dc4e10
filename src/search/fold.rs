//! Words of a text with their case and accents folded, for the table of words, and to find the place of a match in a
//! text.
//!
//! The table of words folds ASCII letters by itself. It divides folded text into words and decides what matches. The
//! division here is nearly the same. It serves names, which are not in the table, and shows where a message matches.

#[cfg(feature = "search")]
use std::borrow::Cow;
use std::ops::Range;

use unicode_normalization::UnicodeNormalization as _;

use super::query::{SearchQuery, WordPattern};

/// The largest number of patterns whose place is sought.
const PATTERNS: usize = 16;

/// Returns a text folded as far as the table of words does not fold it.
#[cfg(feature = "search")]
pub(super) fn fold_for_table(text: &str) -> Cow<'_, str> {
    if text.is_ascii() { Cow::Borrowed(text) } else { Cow::Owned(fold_text(text)) }
}

/// Returns a text without differences of case and accents.
pub(super) fn fold_text(text: &str) -> String {
    if text.is_ascii() {
        return text.to_ascii_lowercase();
    }
    let folded = text.nfd().filter(|c| !is_accent(*c)).flat_map(fold_case);
    folded.filter(|c| !is_accent(*c)).nfc().collect()
}

/// Folds the case of a character. Only the capitals of ß, ſ, ς and of ligatures are those of the letters that they
/// stand for.
fn fold_case(c: char) -> impl Iterator<Item = char> {
    c.to_lowercase().flat_map(char::to_uppercase).flat_map(char::to_lowercase)
}

/// Returns true if a text has a word.
pub(super) fn has_words(text: &str) -> bool {
    text.chars().any(char::is_alphanumeric)
}

fn is_accent(c: char) -> bool {
    matches!(c, '\u{300}'..='\u{36f}')
}

fn is_in_word(c: char) -> bool {
    c.is_alphanumeric() || is_accent(c)
}

/// Returns the words of a text, each with its place.
fn split_words(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut rest = 0;
    std::iter::from_fn(move || {
        let ahead = text.get(rest..)?;
        let start = rest + ahead.find(is_in_word)?;
        let word = text.get(start..)?;
        let word = word.get(..word.find(|c| !is_in_word(c)).unwrap_or(word.len()))?;
        rest = start + word.len();
        Some((start, word))
    })
}

/// Words that stand one after the other, folded.
#[derive(Debug)]
struct FoldedWords {
    words: Vec<String>,
    is_prefix: bool,
    in_subject: bool,
}

impl FoldedWords {
    fn new(pattern: &WordPattern) -> Self {
        Self {
            words: split_words(&pattern.text).map(|(_, word)| fold_text(word)).collect(),
            is_prefix: pattern.is_prefix,
            in_subject: pattern.in_subject,
        }
    }

    /// Returns the first place in a text.
    fn find_in(&self, text: &str) -> Option<Range<usize>> {
        split_words(text).find_map(|(start, _)| {
            let mut end = start;
            let mut words = split_words(text.get(start..)?);
            for (number, wanted) in self.words.iter().enumerate() {
                let (at, word) = words.next()?;
                let may_go_on = self.is_prefix && number + 1 == self.words.len();
                if !is_same_word(word, wanted, may_go_on) {
                    return None;
                }
                end = start + at + word.len();
            }
            Some(start..end)
        })
    }
}

/// Returns true if a word of a text is a folded word, or begins with it.
fn is_same_word(word: &str, wanted: &str, may_go_on: bool) -> bool {
    if word.is_ascii() {
        let begin = word.as_bytes().get(..wanted.len());
        let fits = begin.is_some_and(|begin| begin.eq_ignore_ascii_case(wanted.as_bytes()));
        return fits && (may_go_on || word.len() == wanted.len());
    }
    let folded = fold_text(word);
    if may_go_on { folded.starts_with(wanted) } else { folded == wanted }
}

/// The words of a query, to find their places in texts.
#[derive(Debug)]
pub struct MatchFinder {
    patterns: Vec<FoldedWords>,
    has_all: bool,
}

impl MatchFinder {
    /// Returns a finder of what a query looks for.
    pub fn new(query: &SearchQuery) -> Self {
        let wanted = || query.words().filter(|(_, is_negated)| !is_negated);
        let patterns = wanted().take(PATTERNS).map(|(words, _)| FoldedWords::new(words)).collect();
        Self { patterns, has_all: wanted().nth(PATTERNS).is_none() }
    }

    /// Returns the first place in a subject, of any pattern.
    pub fn find_in_subject(&self, subject: &str) -> Option<Range<usize>> {
        let found = self.patterns.iter().filter_map(|pattern| pattern.find_in(subject));
        found.min_by_key(|place| place.start)
    }

    /// Returns the first place in a body, of any pattern.
    pub fn find_in_body(&self, body: &str) -> Option<Range<usize>> {
        let patterns = self.patterns.iter().filter(|pattern| !pattern.in_subject);
        let found = patterns.filter_map(|pattern| pattern.find_in(body));
        found.min_by_key(|place| place.start)
    }

    /// Returns true if a message surely matches all words of the query that it must have.
    pub fn is_sure(&self, subject: &str, body: &str) -> bool {
        let is_there = |pattern: &FoldedWords| {
            pattern.find_in(subject).is_some()
                || !pattern.in_subject && pattern.find_in(body).is_some()
        };
        self.has_all && self.patterns.iter().all(is_there)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn find(query: &str, text: &str) -> Option<String> {
        let finder = MatchFinder::new(&query.parse().unwrap());
        finder.find_in_body(text).map(|place| text[place].to_owned())
    }

    #[test]
    fn case_and_accents_are_folded() {
        assert_eq!(fold_text("ÄÉÎ naïve ΣΊΣΥΦΟΣ"), "aei naive σισυφοσ");
        assert_eq!(fold_text("Straße STRAẞE ſo ﬁn ŉ ΐ ᾳ"), "strasse strasse so fin ʼn ι α");
        for (query, text) in [("müll", "Der MULL"), ("mull", "der Müll"), ("mu\u{308}ll", "Müll")]
        {
            assert!(find(query, text).is_some(), "{query}");
        }
    }

    #[test]
    fn each_form_of_a_character_is_folded_to_one() {
        let is_whole = |c: &char| [*c].into_iter().nfc().eq([*c]);
        for c in ('\u{80}'..='\u{1ffff}').filter(|c| !is_accent(*c) && is_whole(c)) {
            let folded = fold_text(&c.to_string());
            assert_eq!(fold_text(&folded), folded, "{c:?}");
            assert!(!c.is_alphanumeric() || folded.chars().all(is_in_word), "{c:?} {folded}");
            let forms = [c.to_lowercase().to_string(), c.to_uppercase().to_string()];
            // The iota below a Greek letter is an accent, but its capital is a letter.
            let has_iota = [c].into_iter().nfd().any(|c| c == '\u{345}');
            assert!(has_iota || forms.iter().all(|form| fold_text(form) == folded), "{c:?}");
        }
    }

    #[test]
    fn the_first_place_is_found() {
        assert_eq!(find("bug", "debug a BUG. bug"), Some("BUG".into()));
        assert_eq!(find("\"a b\"", "a c, A-b"), Some("A-b".into()));
        assert_eq!(find("pars*", "spars parser"), Some("parser".into()));
        assert_eq!(find("x bug", "a bug"), Some("bug".into()));
        assert_eq!(find("subject:bug", "a bug"), None);
        assert_eq!(find("-bug", "a bug"), None);
    }

    #[test]
    fn a_message_with_all_words_is_sure() {
        let finder = MatchFinder::new(&"parser subject:bug -x".parse().unwrap());
        assert!(finder.is_sure("a bug", "the parser"));
        assert!(!finder.is_sure("a parser", "the bug"));
    }

    proptest! {
        #[test]
        fn places_lie_in_the_text(query in "\"?[a-zä]{1,3}( [a-z]{1,2})?\"?\\*?", text in any::<String>()) {
            if let Ok(query) = query.parse() {
                let finder = MatchFinder::new(&query);
                if let Some(place) = finder.find_in_body(&text) {
                    prop_assert!(text.get(place).is_some_and(|found| !found.is_empty()));
                }
            }
        }
    }
}
