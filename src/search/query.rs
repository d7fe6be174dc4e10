//! The grammar of queries (docs/SEMANTICS.md, "Search").
//!
//! A query is a list of terms, all of which must match. A term is a word, a phrase in quotes, or a key with a value,
//! such as `from:bob`. A `-` before a term excludes what it matches. A `*` behind a word or phrase stands for more
//! letters.

use std::fmt::{self, Display, Formatter};
use std::str::FromStr;

use super::fold::{fold_text, has_words};
use crate::model::{Day, cut_text, sanitize_line};

/// A query that was parsed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SearchQuery {
    terms: Vec<SearchTerm>,
}

/// One condition of a query.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct SearchTerm {
    /// True if messages that match are excluded.
    pub is_negated: bool,
    /// The condition.
    pub condition: SearchCondition,
}

/// The condition of a term.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum SearchCondition {
    /// Words in the text of a message.
    Words(WordPattern),
    /// `from:`
    From(NamePattern),
    /// `to:`
    To(NamePattern),
    /// `thread:`
    Thread(NamePattern),
    /// `store:`
    Store(NamePattern),
    /// `after:`, which includes the day.
    After(Day),
    /// `before:`, which does not include the day.
    Before(Day),
    /// `is:unread`
    Unread,
}

/// Words that stand one after the other in the subject or in the body.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct WordPattern {
    /// The words, without a double quote.
    pub text: String,
    /// True if the last word may go on.
    pub is_prefix: bool,
    /// True if only subjects count.
    pub in_subject: bool,
}

/// The name of an agent, a thread or a store.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct NamePattern {
    /// The name with its case and accents folded.
    folded: String,
    /// True if the name may go on.
    is_prefix: bool,
}

/// The reason why a text is no query.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QueryError {
    /// The query is not text.
    #[error("it is not UTF-8")]
    NotText,
    /// There is no term.
    #[error("there is no word to look for")]
    Empty,
    /// A quote is not closed.
    #[error("a phrase has no closing quote: {0}")]
    OpenQuote(String),
    /// A minus sign stands alone.
    #[error("a word must follow the `-` at once")]
    LoneMinus,
    /// A term has neither letters nor digits.
    #[error("{0} has no letter and no digit, and nothing else is looked for")]
    NoWord(String),
    /// A key has no value.
    #[error("a value must follow {0}: at once")]
    NoValue(&'static str),
    /// A value is no day.
    #[error("{0}: needs a day such as {0}:2026-11-01, not {1}")]
    NoDay(&'static str, String),
    /// A value of `is:` is unknown.
    #[error("is: knows only is:unread, not {0}")]
    UnknownState(String),
}

/// The keys of terms.
const KEYS: [&str; 8] = ["from", "to", "thread", "subject", "store", "after", "before", "is"];

/// The longest text that an error repeats, in characters.
const REPEATED: usize = 40;

/// The text of one term as it is written.
struct RawTerm<'a> {
    is_negated: bool,
    key: Option<&'static str>,
    value: &'a str,
    is_prefix: bool,
}

impl FromStr for SearchQuery {
    type Err = QueryError;

    fn from_str(text: &str) -> Result<Self, QueryError> {
        let (mut terms, mut rest) = (Vec::new(), skip_blanks(text));
        while !rest.is_empty() {
            let (raw, behind) = split_term(rest)?;
            let condition = raw.parse()?;
            terms.push(SearchTerm { is_negated: raw.is_negated, condition });
            rest = skip_blanks(behind);
        }
        if terms.is_empty() { Err(QueryError::Empty) } else { Ok(Self { terms }) }
    }
}

impl SearchQuery {
    /// Returns the terms of the query.
    pub(super) fn terms(&self) -> &[SearchTerm] {
        &self.terms
    }

    /// Returns true if the text of messages decides.
    pub(super) fn needs_text(&self) -> bool {
        self.words().next().is_some()
    }

    /// Returns the word patterns, and true for those that exclude messages.
    pub(super) fn words(&self) -> impl Iterator<Item = (&WordPattern, bool)> {
        self.terms.iter().filter_map(|term| match &term.condition {
            SearchCondition::Words(words) => Some((words, term.is_negated)),
            _ => None,
        })
    }
}

impl RawTerm<'_> {
    fn parse(&self) -> Result<SearchCondition, QueryError> {
        let Some(key) = self.key else { return Ok(SearchCondition::Words(self.words(false)?)) };
        if self.value.trim().is_empty() {
            return Err(QueryError::NoValue(key));
        }
        let day = || self.value.parse().map_err(|_| QueryError::NoDay(key, repeat(self.value)));
        Ok(match key {
            "subject" => SearchCondition::Words(self.words(true)?),
            "from" => SearchCondition::From(self.name()),
            "to" => SearchCondition::To(self.name()),
            "thread" => SearchCondition::Thread(self.name()),
            "store" => SearchCondition::Store(self.name()),
            "after" => SearchCondition::After(day()?),
            "before" => SearchCondition::Before(day()?),
            _ if self.value.eq_ignore_ascii_case("unread") => SearchCondition::Unread,
            _ => return Err(QueryError::UnknownState(repeat(self.value))),
        })
    }

    fn words(&self, in_subject: bool) -> Result<WordPattern, QueryError> {
        // A quote separates words, as every other sign does.
        let text = self.value.replace(is_blank, " ").replace('"', " ").trim().to_owned();
        if !has_words(&text) {
            let star = if self.is_prefix { "*" } else { "" };
            return Err(QueryError::NoWord(repeat(&format!("{}{star}", self.value))));
        }
        Ok(WordPattern { text, is_prefix: self.is_prefix, in_subject })
    }

    fn name(&self) -> NamePattern {
        NamePattern { folded: fold_text(self.value.trim()), is_prefix: self.is_prefix }
    }
}

/// Returns true for a character that separates terms. A control character in a name could not be typed.
fn is_blank(c: char) -> bool {
    c.is_whitespace() || c.is_control()
}

fn skip_blanks(text: &str) -> &str {
    text.trim_start_matches(is_blank)
}

/// Splits the first term from a text that begins with one. Returns it and the rest.
fn split_term(text: &str) -> Result<(RawTerm<'_>, &str), QueryError> {
    let (is_negated, text) = text.strip_prefix('-').map_or((false, text), |rest| (true, rest));
    if text.is_empty() || text.starts_with(is_blank) {
        return Err(QueryError::LoneMinus);
    }
    let (key, text) = split_key(text);
    if let Some(quoted) = text.strip_prefix('"') {
        let (value, rest) =
            quoted.split_once('"').ok_or_else(|| QueryError::OpenQuote(repeat(quoted)))?;
        let (is_prefix, rest) = rest.strip_prefix('*').map_or((false, rest), |rest| (true, rest));
        return Ok((RawTerm { is_negated, key, value, is_prefix }, rest));
    }
    let (word, rest) = text.split_at(text.find(is_blank).unwrap_or(text.len()));
    let (value, is_prefix) =
        word.strip_suffix('*').map_or((word, false), |begin| (begin.trim_end_matches('*'), true));
    Ok((RawTerm { is_negated, key, value, is_prefix }, rest))
}

/// Splits a known key and its colon from a text. Other words may have colons, too.
fn split_key(text: &str) -> (Option<&'static str>, &str) {
    let known = text.split_once(':').and_then(|(key, value)| {
        let known = KEYS.into_iter().find(|known| known.eq_ignore_ascii_case(key))?;
        Some((Some(known), value))
    });
    known.unwrap_or((None, text))
}

/// Returns a text of a query as an error shows it.
fn repeat(text: &str) -> String {
    format!("`{}`", sanitize_line(&cut_text(text, REPEATED)))
}

impl NamePattern {
    /// Returns true if a name fits.
    pub fn fits(&self, name: &str) -> bool {
        let name = fold_text(name);
        if self.is_prefix { name.starts_with(&self.folded) } else { name == self.folded }
    }

    /// Returns true if an address fits: the whole, or the part before its `@`.
    pub fn fits_address(&self, address: &str) -> bool {
        let local = address.split_once('@').map(|(local, _)| local);
        self.fits(address) || local.is_some_and(|local| self.fits(local))
    }
}

impl Display for SearchQuery {
    /// Prints the query in a form that parses to the same query.
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        for (number, term) in self.terms.iter().enumerate() {
            let blank = if number == 0 { "" } else { " " };
            let minus = if term.is_negated { "-" } else { "" };
            write!(f, "{blank}{minus}{}", term.condition)?;
        }
        Ok(())
    }
}

impl Display for SearchCondition {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Words(words) => {
                let key = if words.in_subject { "subject:" } else { "" };
                let star = if words.is_prefix { "*" } else { "" };
                write!(f, "{key}\"{}\"{star}", words.text)
            }
            Self::From(name) => write!(f, "from:{name}"),
            Self::To(name) => write!(f, "to:{name}"),
            Self::Thread(name) => write!(f, "thread:{name}"),
            Self::Store(name) => write!(f, "store:{name}"),
            Self::After(day) => write!(f, "after:{day}"),
            Self::Before(day) => write!(f, "before:{day}"),
            Self::Unread => f.write_str("is:unread"),
        }
    }
}

impl Display for NamePattern {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let star = if self.is_prefix { "*" } else { "" };
        // A name with a quote was written without quotes around it, so it has no blanks.
        let quote = if self.folded.contains('"') { "" } else { "\"" };
        write!(f, "{quote}{}{quote}{star}", self.folded)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parse(text: &str) -> SearchQuery {
        text.parse().unwrap_or_else(|e| panic!("{text}: {e}"))
    }

    fn words(text: &str, is_prefix: bool, in_subject: bool) -> SearchCondition {
        SearchCondition::Words(WordPattern { text: text.to_owned(), is_prefix, in_subject })
    }

    fn conditions(text: &str) -> Vec<(bool, SearchCondition)> {
        parse(text).terms.into_iter().map(|term| (term.is_negated, term.condition)).collect()
    }

    #[test]
    fn words_and_phrases_are_terms() {
        assert_eq!(
            conditions("  parser \"a phrase\" -old pars* subject:\"x y\"* "),
            [
                (false, words("parser", false, false)),
                (false, words("a phrase", false, false)),
                (true, words("old", false, false)),
                (false, words("pars", true, false)),
                (false, words("x y", true, true)),
            ]
        );
    }

    #[test]
    fn a_word_with_signs_is_one_term() {
        assert_eq!(conditions("foo-bar"), [(false, words("foo-bar", false, false))]);
        assert_eq!(conditions("std::vec"), [(false, words("std::vec", false, false))]);
        assert_eq!(conditions("http://x"), [(false, words("http://x", false, false))]);
        assert_eq!(conditions("a\"b"), [(false, words("a b", false, false))]);
        assert_eq!(conditions("--x"), [(true, words("-x", false, false))]);
    }

    #[test]
    fn keys_take_values() {
        let name = |text: &str| NamePattern { folded: text.to_owned(), is_prefix: false };
        let day = |text: &str| text.parse::<Day>().unwrap();
        assert_eq!(
            conditions(
                "from:Bob -to:\"Ä\" THREAD:t store:s after:2026-11-01 before:2026-12-01 is:unread"
            ),
            [
                (false, SearchCondition::From(name("bob"))),
                (true, SearchCondition::To(name("a"))),
                (false, SearchCondition::Thread(name("t"))),
                (false, SearchCondition::Store(name("s"))),
                (false, SearchCondition::After(day("2026-11-01"))),
                (false, SearchCondition::Before(day("2026-12-01"))),
                (false, SearchCondition::Unread),
            ]
        );
    }

    #[test]
    fn a_wrong_query_says_why() {
        for (text, error) in [
            ("", QueryError::Empty),
            (" \t\n", QueryError::Empty),
            ("a \"b", QueryError::OpenQuote("`b`".into())),
            ("-", QueryError::LoneMinus),
            ("a - b", QueryError::LoneMinus),
            ("*", QueryError::NoWord("`*`".into())),
            ("a !!!", QueryError::NoWord("`!!!`".into())),
            ("\"\"", QueryError::NoWord("``".into())),
            ("from:", QueryError::NoValue("from")),
            ("subject: x", QueryError::NoValue("subject")),
            ("after:yesterday", QueryError::NoDay("after", "`yesterday`".into())),
            ("before:2026-13-01", QueryError::NoDay("before", "`2026-13-01`".into())),
            ("is:old", QueryError::UnknownState("`old`".into())),
        ] {
            assert_eq!(text.parse::<SearchQuery>(), Err(error), "{text}");
        }
    }

    #[test]
    fn names_are_whole_or_prefixes() {
        let SearchCondition::From(bob) = &parse("from:BOB").terms[0].condition else { panic!() };
        assert!(bob.fits_address("bob") && bob.fits_address("Bob@example.org"));
        assert!(!bob.fits_address("bob2") && !bob.fits_address("x.bob"));
        let SearchCondition::From(bo) = &parse("from:bo*").terms[0].condition else { panic!() };
        assert!(bo.fits_address("bob") && !bo.fits_address("abo"));
    }

    proptest! {
        #[test]
        fn every_text_is_a_query_or_an_error(text in any::<String>()) {
            if let Err(e) = text.parse::<SearchQuery>() {
                prop_assert!(!e.to_string().contains('\n'));
            }
        }

        #[test]
        fn a_printed_query_parses_to_itself(
            text in "(-?((from|to|subject|thread|store|is|after|x):)?[a-zA-Z0-9ÄéßΣ\"*-]{1,5} ?){1,6}"
        ) {
            if let Ok(query) = text.parse::<SearchQuery>() {
                let printed = query.to_string();
                prop_assert_eq!(printed.parse::<SearchQuery>(), Ok(query), "{}", printed);
            }
        }
    }
}
