//! File names: of messages, threads and rejects (docs/SEMANTICS.md, S17, S18, S23 and S137).

use std::fmt::Write;

use crate::index::{IndexEntry, IndexTables, MsgIx};
use crate::model::short_id::{HASH_DIGITS, full_id, is_lower_hex, short_hash, short_id};
use crate::model::{ORIGIN, Timestamp, name_encoding, plain_id, sanitize_line};
use crate::store::{Kind, Store};

/// Bytes of the time that a message's name begins with.
pub(super) const STAMP: usize = 20;
/// Longest `<from>` part of a message's name, in bytes.
const MAX_FROM: usize = 64;
/// Longest name of a thread folder, in bytes; a longer one is cut.
const MAX_THREAD: usize = 200;
/// Length to which a longer name is cut before `~` and the hash.
const CUT_THREAD: usize = 135;

/// Returns a text as a part of a path: `%2F` stands for `/`, and `%25` for `%`.
pub fn encode_slashes(text: &str) -> String {
    text.replace('%', "%25").replace('/', "%2F")
}

/// Returns the text that [`encode_slashes`] encoded. A person may also have typed `%2f`.
pub fn decode_slashes(name: &str) -> String {
    name.replace("%2F", "/").replace("%2f", "/").replace("%25", "%")
}

fn is_plain(b: u8) -> bool {
    b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'@' | b'-')
}

/// Returns the `<from>` part of a name, at most 64 bytes. Plain characters stay, everything else is `_`; a
/// message without sender gives `unknown`.
fn sender_part(from: &str) -> String {
    let mut out = String::new();
    push_sender(&mut out, from);
    out
}

fn push_sender(out: &mut String, from: &str) {
    if from.is_empty() {
        out.push_str("unknown");
    } else if from.len() <= MAX_FROM && from.bytes().all(is_plain) {
        out.push_str(from);
    } else {
        let plain = from.chars().map(|c| if c.is_ascii() && is_plain(c as u8) { c } else { '_' });
        out.extend(plain.take(MAX_FROM));
    }
}

/// Returns the short name of a message without its ending. Other messages may have it too.
pub(super) fn short_stem(tables: &IndexTables, ix: MsgIx) -> String {
    let mut stem = String::with_capacity(64);
    push_short_stem(&mut stem, tables, ix);
    stem
}

/// Appends the short name of a message without its ending.
pub(super) fn push_short_stem(out: &mut String, tables: &IndexTables, ix: MsgIx) {
    push_stem_start(out, tables, tables.messages.entry(ix));
    match tables.messages.shown_hex_id(ix) {
        Some(id) => push_hex(out, (id >> 32) as u32),
        None => out.push_str(&short_id(&tables.messages.shown_id(ix))),
    }
}

/// Appends the parts of a message's name before its id.
fn push_stem_start(out: &mut String, tables: &IndexTables, entry: &IndexEntry) {
    tables.messages.name_time(entry).push_iso8601_basic(out);
    out.push('-');
    push_sender(out, tables.messages.sender(entry));
    out.push('-');
}

/// Returns the name of a message whose short name others have, too. `id` distinguishes it from them.
pub(super) fn long_stem(tables: &IndexTables, entry: &IndexEntry, id: &str) -> String {
    let mut stem = String::with_capacity(128);
    push_stem_start(&mut stem, tables, entry);
    stem + id
}

/// Appends eight lower hex digits.
fn push_hex(out: &mut String, value: u32) {
    for place in (0..8).rev() {
        out.extend(char::from_digit(value >> (4 * place) & 15, 16));
    }
}

/// Returns the name, without its ending, of a message that is not in the index yet. With `full`, it has the whole id.
pub(super) fn format_stem(time: Timestamp, from: &str, id: &str, full: bool) -> String {
    let id = if full { full_id(id) } else { short_id(id) };
    format!("{}-{}-{id}", time.iso8601_basic(), sender_part(from))
}

/// Returns the hash of a message's key.
pub(super) fn message_digest(tables: &IndexTables, entry: &IndexEntry) -> String {
    short_hash(&tables.messages.key_parts(entry).join("\0"), HASH_DIGITS)
}

/// Number of hex digits of a bell key: enough that no two keys are equal.
const KEY_DIGITS: usize = 16;

/// Returns the key under which a bell notes a message for one recipient. The sender and the recipient compute the same,
/// whatever they call the store.
pub(super) fn bell_key(store: &dyn Store, from: &str, id: &str, to: &str) -> String {
    let (from, to) = (store.canonical_address(from), store.canonical_address(to));
    short_hash(&[store.kind().as_str(), &from, id, &to].join("\0"), KEY_DIGITS)
}

/// Removes blanks around a line and cuts it if it is longer than this many characters.
pub(super) fn cut_line(line: &str, most: usize) -> String {
    let line = line.trim();
    if line.chars().count() <= most {
        return sanitize_line(line).into_owned();
    }
    let short: String = line.chars().take(most.saturating_sub(1)).collect();
    format!("{}\u{2026}", sanitize_line(&short))
}

/// Returns the time with which a name begins, like a message's own.
pub(super) fn parse_name_time(stem: &str) -> Option<Timestamp> {
    stem.get(..STAMP).and_then(Timestamp::from_iso8601_basic)
}

/// Returns true if a name begins with a time. Such a name is never taken for an id.
pub(super) fn has_time_prefix(stem: &str) -> bool {
    parse_name_time(stem).is_some()
}

/// Returns the key of an id, under which messages are found by a [name that stands for it](ids_of_name).
pub(super) fn short_key_of_id(id: &str) -> Option<u32> {
    u32::from_str_radix(&short_id(id), 16).ok()
}

/// An id for which a name may stand: a whole one, or the id part of message names.
#[derive(Debug)]
pub(super) struct NamedId {
    id: String,
    /// The kind of store, if the name has it.
    pub kind: Option<Kind>,
}

/// Returns the ids for which a name may stand. It may be escaped, have the kind of a store, and stand in brackets, as in
/// the line `Message-ID`.
pub(super) fn ids_of_name(name: &str) -> impl Iterator<Item = NamedId> {
    let name = name.strip_prefix('<').and_then(|name| name.strip_suffix('>')).unwrap_or(name);
    let before_kind =
        name.rsplit_once('@').and_then(|(id, kind)| Some((id, Some(kind.parse().ok()?))));
    let spelled = [Some((name, None)), before_kind].into_iter().flatten();
    spelled.flat_map(|(id, kind)| {
        let unescaped = unescape_id(id).filter(|unescaped| unescaped != id);
        let ids = std::iter::once(id.to_owned()).chain(unescaped);
        ids.map(move |id| NamedId { id, kind })
    })
}

impl NamedId {
    /// Returns the key under which the messages with this id are found.
    pub fn short_key(&self) -> Option<u32> {
        match Some(&self.id).filter(|id| id.len() == 8 && is_lower_hex(id)) {
            Some(start) => u32::from_str_radix(start, 16).ok(),
            None => short_key_of_id(&self.id),
        }
    }

    /// Returns true if this is an id of a message, or its short form.
    pub fn stands_for(&self, id: &str) -> bool {
        self.id == plain_id(id) || self.id == short_id(id)
    }
}

/// Returns the folder name of a thread id. It also turns any other text into one word.
pub(super) fn thread_name(id: &str) -> String {
    cut_to_length(escape_id(id), id)
}

/// Returns a thread id as one path component, of any length.
fn escape_id(id: &str) -> String {
    if id.is_empty() {
        return format!("~{}", short_hash("", 8));
    }
    escape_bytes(id.as_bytes())
}

fn escape_bytes(id: &[u8]) -> String {
    let mut out = String::with_capacity(id.len());
    for (i, &b) in id.iter().enumerate() {
        if is_plain(b) && (i > 0 || b.is_ascii_alphanumeric()) {
            out.push(b as char);
        } else {
            let _ = write!(out, "%{b:02X}");
        }
    }
    out
}

/// Returns the uncut folder name of a thread id that may carry a label: both, escaped, with `~` between them,
/// which neither contains.
fn escape_labelled(id: &str) -> String {
    match id.split_once(ORIGIN) {
        None => escape_id(id),
        Some((plain, label)) => format!("{}~{}", thread_name(plain), thread_name(label)),
    }
}

/// Cuts a name that is too long, and appends `~` and the hash of the id.
fn cut_to_length(mut name: String, id: &str) -> String {
    if name.len() > MAX_THREAD {
        name.truncate(CUT_THREAD);
        name.push('~');
        name.push_str(&short_hash(id, HASH_DIGITS));
    }
    name
}

/// Returns the folder name of a thread. Its id has a label if `labels` is set.
pub(super) fn thread_folder_name(id: &str, labels: bool) -> String {
    cut_to_length(if labels { escape_labelled(id) } else { escape_id(id) }, id)
}

/// Returns the hash at the end of a name that looks as if it was cut.
pub(super) fn hash_of_cut_name(name: &str) -> Option<&str> {
    let (plain, hash) = name.rsplit_once('~')?;
    (plain.len() == CUT_THREAD && hash.len() == HASH_DIGITS).then_some(hash)
}

/// The thread id in a folder name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ParsedThreadName {
    /// The id.
    Complete(String),
    /// The name was cut, so the id has to be looked up.
    Truncated,
}

/// Parses a folder name. Returns `None` if no thread id gives this name.
pub(super) fn parse_thread_name(name: &str) -> Option<ParsedThreadName> {
    if hash_of_cut_name(name).is_some() {
        return Some(ParsedThreadName::Truncated);
    }
    unescape_id(name).filter(|id| thread_name(id) == name).map(ParsedThreadName::Complete)
}

/// Returns the id for which an escaped one stands. `None` if it is no text, or `%` stands alone in it.
fn unescape_id(name: &str) -> Option<String> {
    if name == thread_name("") {
        return Some(String::new());
    }
    let mut bytes = Vec::with_capacity(name.len());
    let mut rest = name.bytes();
    while let Some(b) = rest.next() {
        if b == b'%' {
            let mut digit = || rest.next().and_then(|d| (d as char).to_digit(16));
            bytes.push((digit()? * 16 + digit()?) as u8);
        } else {
            bytes.push(b);
        }
    }
    String::from_utf8(bytes).ok()
}

/// Returns the name of a file in `rejected/` for a path, with the hash of `what`. The hash is whole if another
/// file has the short name.
pub(super) fn reject_name(path: &str, what: &str, full: bool) -> String {
    let file = path.rsplit('/').next().unwrap_or(path);
    let stem = file.rsplit_once('.').map_or(file, |(stem, _)| stem);
    let hash = short_hash(what, if full { HASH_DIGITS } else { 8 });
    let mut stem = if name_encoding::is_encoded(stem) {
        cut_to_length(escape_bytes(&name_encoding::decode_name(stem)), stem)
    } else {
        thread_name(stem)
    };
    // Names have at most 255 bytes.
    stem.truncate(if full { CUT_THREAD } else { MAX_THREAD });
    format!("{stem}-{hash}.txt")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::QUALIFIER;
    use proptest::prelude::*;

    #[test]
    fn thread_names_are_safe_and_readable() {
        for (id, name) in [
            ("2026-04-24-foo-need-your-review", "2026-04-24-foo-need-your-review"),
            ("../../etc", "%2E.%2F..%2Fetc"),
            ("a/b", "a%2Fb"),
            ("", "~e3b0c442"),
            ("-x", "%2Dx"),
            ("\u{202e}a", "%E2%80%AEa"),
            ("a~samp", "a%7Esamp"),
        ] {
            assert_eq!(thread_folder_name(id, true), name);
            assert_eq!(parse_thread_name(name), Some(ParsedThreadName::Complete(id.to_owned())));
        }
        let long = thread_name(&"x".repeat(10_000));
        assert_eq!(
            (long.len(), parse_thread_name(&long)),
            (200, Some(ParsedThreadName::Truncated))
        );
        assert_eq!(hash_of_cut_name(&long), Some(short_hash(&"x".repeat(10_000), 64).as_str()));
        assert_eq!(thread_name(&"x".repeat(200)).len(), 200);
        for bad in ["a b", "%2e", "%zz", "%4", "a%41", ".", "..", "~x"] {
            assert_eq!(parse_thread_name(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_label_stands_behind_the_id() {
        let labelled_name = |id: &str| thread_folder_name(id, true);
        assert_eq!(labelled_name("a/b"), thread_name("a/b"));
        assert_eq!(labelled_name("a/b\0my tree"), "a%2Fb~my%20tree");
        assert_eq!(labelled_name("t\0~x"), "t~%7Ex");
        let long = format!("{}\0tree", "x".repeat(198));
        let name = labelled_name(&long);
        assert_eq!((name.len(), name.ends_with(&short_hash(&long, 64))), (200, true));
        assert_ne!(name, labelled_name(&format!("{}\0treetop", "x".repeat(198))));
        assert_eq!(parse_thread_name(&name), Some(ParsedThreadName::Truncated));
    }

    /// Returns true if a name stands for an id, and leads to it.
    fn names_id(name: &str, id: &str) -> bool {
        let leads = |named: &NamedId| named.short_key() == short_key_of_id(id);
        ids_of_name(name).any(|named| named.stands_for(id) && leads(&named))
    }

    #[test]
    fn an_id_is_found_by_what_stands_for_it() {
        let plain = ["ab12cd34ef567890", "ab12cd34/x", "AB12CD34", "msg_1_2", "Q/b c.d", "x", ""];
        for id in plain.into_iter().chain(["20261128.1+a=b@x.org", "ab12cd34ef567890@h", "a%2Bb"]) {
            for name in [short_id(id), escape_id(id), id.to_owned()] {
                for name in
                    [format!("<{name}>"), format!("{name}@amq"), format!("<{name}@amq>"), name]
                {
                    assert!(names_id(&name, id), "{id} {name}");
                }
            }
        }
        let namesake = format!("ab12cd34ef56{QUALIFIER}{}", "0f".repeat(32));
        assert!(names_id("ab12cd34", &namesake) && names_id("ab12cd34ef56", &namesake));
        assert!(!names_id("ab12cd34e", "ab12cd34ef567890") && !names_id("ab12cd34", "AB12CD34"));
        assert!(!names_id("x@nowhere", "x"));
        assert_eq!(sender_part(""), "unknown");
        assert!(has_time_prefix("20260424T174203.000Z-foo-ab12cd34.txt"));
        assert!(!has_time_prefix("ab12cd34") && !has_time_prefix(&"\u{e4}".repeat(15)));
    }

    proptest! {
        #[test]
        fn every_id_is_found_by_its_name(id in any::<String>()) {
            prop_assert!(names_id(&short_id(&id), &id) && names_id(&escape_id(&id), &id));
        }

        #[test]
        fn every_thread_id_is_one_safe_component(id in any::<String>()) {
            let name = thread_name(&id);
            prop_assert!(name.len() <= MAX_THREAD && !name.starts_with('.') && !name.contains('/'));
            prop_assert!(name.bytes().all(|b| is_plain(b) || matches!(b, b'%' | b'~')));
            match parse_thread_name(&name) {
                Some(ParsedThreadName::Complete(back)) => prop_assert_eq!(back, id),
                Some(ParsedThreadName::Truncated) => prop_assert_eq!(name.len(), MAX_THREAD),
                None => prop_assert!(false, "{} does not read back", name),
            }
        }

        #[test]
        fn from_is_one_safe_component(from in any::<String>()) {
            let part = sender_part(&from);
            prop_assert!(part.len() <= MAX_FROM && part.bytes().all(is_plain));
        }

        #[test]
        fn reading_a_name_never_panics(name in any::<String>()) {
            let _ = (parse_thread_name(&name), ids_of_name(&name).count(), has_time_prefix(&name));
        }
    }
}
