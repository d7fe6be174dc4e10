//! Signs of an attempt to steer an agent that reads the text (docs/formats/amp.md, section 10).
//!
//! The format wants such messages flagged, not dropped. Words are compared without case, after compatibility
//! normalisation, without invisible characters, and with look-alikes of other scripts read as Latin. So the usual
//! disguises do not help, and a disguise is a category of its own.
//!
//! 1. A text becomes a list of words. The end of a sentence is a word that nothing matches.
//! 2. A pattern is a list of steps. A step names words (`|` between them, `*` after a prefix); `..` before a step
//!    allows up to four other words in between.
//! 3. Shell, SQL and markup are not words: they are searched literally.

mod patterns;

use std::collections::HashMap;
use std::sync::LazyLock;

use unicode_normalization::UnicodeNormalization as _;

use super::limits::MESSAGE_BYTES;

/// The most words that one `..` stands for.
const GAP: usize = 4;

/// The end of a sentence, in a list of words.
const STOP: &str = "";

/// The category of disguises.
const UNICODE: &str = "unicode_tricks";

/// Returns the categories found in a text and in the names of attachments, in the order of the source document. Text
/// beyond the largest allowed message is ignored.
pub fn detect_injections(text: &str, names: &[&str]) -> Vec<&'static str> {
    let text = scanned_prefix(text);
    let all = [&[text], names].concat().join("\n\n");
    let plain = normalize_text(&all);
    let words = split_words(&plain);
    let squeezed = plain.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut flags: Vec<&'static str> = patterns::CATEGORIES
        .iter()
        .filter(|c| {
            c.literals.iter().any(|literal| squeezed.contains(literal))
                || has_phrase(c.name, &words)
        })
        .map(|c| c.name)
        .collect();
    if is_disguised(&all) {
        flags.push(UNICODE);
    }
    flags
}

/// Returns the part of a text that is scanned.
fn scanned_prefix(text: &str) -> &str {
    // A character has at most four bytes.
    (0..4).find_map(|back| text.get(..MESSAGE_BYTES - back)).unwrap_or(text)
}

/// The patterns of a category.
struct InjectionCategory {
    /// Its name in header lines.
    name: &'static str,
    /// Patterns of words.
    phrases: &'static [&'static str],
    /// Lower-case text.
    literals: &'static [&'static str],
}

/// One step of a pattern.
struct PhraseStep {
    /// The most other words that may precede it.
    gap: usize,
    words: Vec<&'static str>,
}

/// The steps of a pattern after its first, and its category.
struct PhrasePattern {
    category: &'static str,
    steps: Vec<PhraseStep>,
}

/// All patterns by their first words.
static PATTERNS: LazyLock<HashMap<&'static str, Vec<PhrasePattern>>> = LazyLock::new(|| {
    let mut map: HashMap<&'static str, Vec<PhrasePattern>> = HashMap::new();
    for category in patterns::CATEGORIES {
        for phrase in category.phrases {
            let (first, _) = phrase.split_once(' ').unwrap_or((phrase, ""));
            for word in first.split('|') {
                let pattern = PhrasePattern { category: category.name, steps: parse_steps(phrase) };
                map.entry(word).or_default().push(pattern);
            }
        }
    }
    map
});

/// Parses the steps of a pattern after its first.
fn parse_steps(phrase: &'static str) -> Vec<PhraseStep> {
    let mut steps = Vec::new();
    let mut gap = 0;
    for part in phrase.split(' ').skip(1) {
        if part == ".." {
            gap += GAP;
        } else {
            steps.push(PhraseStep { gap, words: part.split('|').collect() });
            gap = 0;
        }
    }
    steps
}

/// Returns true if the words contain a pattern of the category.
fn has_phrase(category: &str, words: &[&str]) -> bool {
    words.iter().enumerate().any(|(at, word)| {
        let rest = words.get(at + 1..).unwrap_or_default();
        let mut patterns = PATTERNS.get(word).into_iter().flatten();
        patterns.any(|p| p.category == category && has_steps_next(&p.steps, rest))
    })
}

/// Returns true if the words begin with the steps. Each step takes the first place that fits, or a later one if the
/// rest fits only then.
fn has_steps_next(steps: &[PhraseStep], words: &[&str]) -> bool {
    let Some((step, rest)) = steps.split_first() else { return true };
    words.iter().take_while(|word| **word != STOP).take(step.gap + 1).enumerate().any(
        |(n, word)| {
            step.words.iter().any(|wanted| is_word_match(wanted, word))
                && has_steps_next(rest, words.get(n + 1..).unwrap_or_default())
        },
    )
}

fn is_word_match(wanted: &str, word: &str) -> bool {
    match wanted.strip_suffix('*') {
        Some(beginning) => word.starts_with(beginning),
        None => word == wanted,
    }
}

/// Returns the text as it was meant to be read: lower case, one spelling of every letter.
fn normalize_text(text: &str) -> String {
    text.nfkc()
        .filter(|c| !is_invisible(*c) && !matches!(c, '\'' | '\u{2019}'))
        .flat_map(char::to_lowercase)
        .map(|c| latin_look_alike(c).unwrap_or(c))
        .collect()
}

/// Splits a text into words, with [`STOP`] at the ends of sentences and paragraphs.
fn split_words(text: &str) -> Vec<&str> {
    let mut words = Vec::new();
    for sentence in split_sentences(text) {
        words
            .extend(sentence.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty()));
        words.push(STOP);
    }
    words
}

/// Splits after `.`, `!` and `?` before white space, and at empty lines.
fn split_sentences(text: &str) -> Vec<&str> {
    let mut sentences = Vec::new();
    for paragraph in text.split("\n\n") {
        let mut rest = paragraph;
        let mut from = 0;
        while let Some(end) = rest.get(from..).and_then(|t| t.find(['.', '!', '?'])) {
            let after = from + end + 1;
            let (sentence, tail) = rest.split_at_checked(after).unwrap_or((rest, ""));
            if tail.starts_with(char::is_whitespace) {
                sentences.push(sentence);
                rest = tail;
                from = 0;
            } else {
                from = after;
            }
        }
        sentences.push(rest);
    }
    sentences
}

/// Returns true if letters are hidden: by invisible characters inside words, by characters that reorder or tag text, or
/// by words that mix Latin letters with look-alikes.
fn is_disguised(text: &str) -> bool {
    let mut before = ' ';
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        let after = chars.peek().copied().unwrap_or(' ');
        // Writing systems and emoji need these marks, but no ASCII word does.
        let mark = matches!(c, '\u{ad}' | '\u{200c}'..='\u{200f}');
        let in_word = before.is_ascii_alphanumeric() || after.is_ascii_alphanumeric();
        let hidden = is_invisible(c) && (!mark || in_word);
        if hidden {
            return true;
        }
        before = c;
    }
    text.split(|c: char| !c.is_alphabetic()).any(|word| {
        word.contains(|c: char| c.is_ascii_alphabetic())
            && word.contains(|c: char| {
                c.to_lowercase().next().is_some_and(|c| latin_look_alike(c).is_some())
            })
    })
}

fn is_invisible(c: char) -> bool {
    matches!(
        c,
        '\u{ad}'
            | '\u{180e}'
            | '\u{200b}'..='\u{200f}'
            | '\u{202a}'..='\u{202e}'
            | '\u{2060}'..='\u{2064}'
            | '\u{2066}'..='\u{2069}'
            | '\u{feff}'
            | '\u{e0000}'..='\u{e007f}'
    )
}

/// Returns the Latin letter that looks like a lower-case Cyrillic or Greek one.
fn latin_look_alike(c: char) -> Option<char> {
    Some(match c {
        'а' => 'a',
        'е' => 'e',
        'о' | 'ο' => 'o',
        'р' => 'p',
        'с' => 'c',
        'у' => 'y',
        'х' => 'x',
        'і' => 'i',
        'ј' => 'j',
        'ѕ' => 's',
        'ԁ' => 'd',
        'һ' => 'h',
        'ѵ' => 'v',
        'ԛ' => 'q',
        'ԝ' => 'w',
        'ӏ' => 'l',
        _ => return None,
    })
}

#[cfg(test)]
mod tests;
