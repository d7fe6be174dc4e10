//! Who has an id (docs/formats/agentazall.md, section 8).
//!
//! The first text that a writer sent under an id is known by that id, and every mark of it hangs on the
//! id. A text that comes later under the same id is known by the id with the hash of its file, even
//! where the first one is gone: the reference's local delivery overwrites, and a person may delete. And
//! a message that lies here in several copies, with several ids, keeps the one it is known by.
//!
//! For most files nothing of this needs to be kept, since their text and id say it all. What has to
//! be kept is here, and in the state folder, because the cache may be lost while marks never are.

use std::collections::{BTreeSet, HashMap};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD as BASE64;

use super::group::Held;
use super::letter::{Kept, Print, key_print};

/// Which message a text is, whatever its file is called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Who {
    text: Print,
    /// Of the key.
    key: Option<Print>,
    link: Option<Print>,
}

impl Who {
    /// What a file says of itself.
    pub fn of(kept: &Kept) -> Self {
        let key = kept.is_signed().then_some(kept.key);
        Self { text: kept.text, key, link: kept.link() }
    }

    /// Whether two files are one message as far as these two alone can tell (rule 1 of
    /// [`group`](super::group)): texts that verify by different keys are two.
    pub fn is(&self, other: &Self) -> bool {
        let keys = self.key.is_none() || other.key.is_none() || self.key == other.key;
        (self.link.is_some() && self.link == other.link) || (self.text == other.text && keys)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    who: Who,
    held: Held,
    saved: bool,
}

/// What was settled about ids, by writer and id.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    entries: HashMap<Print, Vec<Entry>>,
    /// Writers and ids with something that is not saved.
    unsaved: BTreeSet<Print>,
}

/// What the ledger says of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Settled {
    /// What was settled for its message.
    pub held: Held,
    /// The id without a hash is another message's.
    pub taken: bool,
}

impl Ledger {
    /// Reads what [`Ledger::take_lines`] gave. Lines that are not from there are passed over.
    pub fn load(text: &[u8]) -> Self {
        let mut ledger = Self::default();
        for (name, who, held) in text.split(|b| *b == b'\n').filter_map(parse) {
            ledger.put(name, who, held, true);
        }
        ledger
    }

    /// What is settled for this file; `None` if nothing is for any of its writer and id.
    pub fn look(&self, kept: &Kept) -> Option<Settled> {
        let entries = self.entries.get(&kept.name)?;
        let held = find(entries, &Who::of(kept)).map_or(Held::No, |entry| entry.held);
        let taken = held != Held::Plain && entries.iter().any(|e| e.held == Held::Plain);
        Some(Settled { held, taken })
    }

    /// Settles by what id the message with this file is known. Whether that is new.
    pub fn settle(&mut self, kept: &Kept, held: Held) -> bool {
        held != Held::No && self.put(kept.name, Who::of(kept), held, false)
    }

    /// Takes back what was settled and not saved yet.
    pub fn unsettle(&mut self, kept: &Kept) {
        let (name, who) = (kept.name, Who::of(kept));
        if let Some(entries) = self.entries.get_mut(&name) {
            entries.retain(|e| e.saved || e.who != who);
            if entries.is_empty() {
                self.entries.remove(&name);
            }
        }
    }

    fn put(&mut self, name: Print, mut who: Who, held: Held, saved: bool) -> bool {
        let entries = self.entries.entry(name).or_default();
        let known = find(entries, &who).cloned();
        if let Some(known) = &known {
            // A copy that is not signed does not make one forget who signed.
            who.key = who.key.or(known.who.key);
            who.link = who.link.or(known.who.link);
            if known.who == who && known.held == held {
                return false;
            }
        }
        entries.retain(|e| Some(e) != known.as_ref());
        entries.push(Entry { who, held, saved });
        if !saved {
            self.unsaved.insert(name);
        }
        true
    }

    /// What has to be added to the file, a line each. It counts as saved from now on.
    pub fn take_lines(&mut self) -> Vec<u8> {
        let mut out = Vec::new();
        for name in std::mem::take(&mut self.unsaved) {
            for entry in self.entries.get_mut(&name).into_iter().flatten() {
                if !std::mem::replace(&mut entry.saved, true) {
                    out.extend_from_slice(line(&name, entry).as_bytes());
                }
            }
        }
        out
    }
}

/// The entry of this very text, else one that it may be a copy of.
fn find<'a>(entries: &'a [Entry], who: &Who) -> Option<&'a Entry> {
    let same = entries.iter().filter(|e| e.who.is(who));
    same.min_by_key(|e| (e.who != *who, e.held != Held::Plain))
}

fn line(name: &Print, entry: &Entry) -> String {
    let encode = |bytes: Option<&[u8]>| bytes.map(|b| BASE64.encode(b)).unwrap_or_default();
    let who = &entry.who;
    let (word, hash) = match &entry.held {
        Held::Twin(hash) => ("twin", Some(&hash[..])),
        Held::Plain | Held::No => ("plain", None),
    };
    let key = who.key.as_ref().map(|k| &k[..]);
    let link = who.link.as_ref().map(|l| &l[..]);
    let fields = [Some(&name[..]), Some(&who.text[..]), key, link, hash].map(encode);
    format!("{word} {} .\n", fields.join(" "))
}

fn parse(line: &[u8]) -> Option<(Print, Who, Held)> {
    let fields: Vec<&str> = std::str::from_utf8(line).ok()?.split(' ').collect();
    // The dot says that the line is whole.
    let [word, name, text, key, link, hash, "."] = fields.as_slice() else { return None };
    let held = match *word {
        "plain" if hash.is_empty() => Held::Plain,
        "twin" => Held::Twin(decode(hash)?),
        _ => return None,
    };
    // Older lines have the key itself.
    let key = match *key {
        "" => None,
        key => Some(decode::<16>(key).or_else(|| Some(key_print(&decode(key)?)))?),
    };
    let link = if link.is_empty() { None } else { Some(decode(link)?) };
    Some((decode(name)?, Who { text: decode(text)?, key, link }, held))
}

fn decode<const N: usize>(text: &str) -> Option<[u8; N]> {
    BASE64.decode(text).ok()?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::super::group::tests::kept;
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn another_text_does_not_get_the_id() {
        let mut ledger = Ledger::default();
        assert_eq!(ledger.look(&kept("a", "x", 1)), None);
        assert!(ledger.settle(&kept("a", "x", 1), Held::Plain));
        assert!(!ledger.settle(&kept("a", "x", 1), Held::Plain), "once is enough");
        let first = ledger.look(&kept("a", "x", 1)).unwrap();
        assert_eq!(first, Settled { held: Held::Plain, taken: false });
        let second = ledger.look(&kept("a", "x", 2)).unwrap();
        assert_eq!(second, Settled { held: Held::No, taken: true });
        ledger.settle(&kept("a", "x", 2), Held::Twin([2; 32]));
        let second = Settled { held: Held::Twin([2; 32]), taken: true };
        assert_eq!(ledger.look(&kept("a", "x", 2)), Some(second));
        assert_eq!(ledger.look(&kept("b", "x", 1)), None, "another writer");
        // As it comes back from the disk, with a torn line and junk.
        let mut lines = ledger.take_lines();
        assert!(ledger.take_lines().is_empty());
        let torn = lines.len() / 2;
        let mut again = lines.clone();
        lines.extend_from_slice(b"junk\n\xff\n");
        lines.extend_from_slice(&again.split_off(torn));
        let back = Ledger::load(&lines);
        assert_eq!(back.look(&kept("a", "x", 1)), Some(first));
        assert_eq!(back.look(&kept("a", "x", 2)), Some(second));
    }

    #[test]
    fn what_was_not_saved_can_be_taken_back() {
        let mut ledger = Ledger::default();
        ledger.settle(&kept("a", "x", 1), Held::Plain);
        ledger.unsettle(&kept("a", "x", 1));
        assert_eq!(ledger.look(&kept("a", "x", 2)), None);
        assert!(ledger.take_lines().is_empty());
        ledger.settle(&kept("a", "x", 1), Held::Plain);
        assert!(!ledger.take_lines().is_empty());
        ledger.unsettle(&kept("a", "x", 1));
        assert!(ledger.look(&kept("a", "x", 2)).unwrap().taken);
    }

    #[test]
    fn who_signed_it_keeps_it() {
        let by = |key: Option<u8>| Kept { key: [key.unwrap_or(0); 16], ..kept("a", "x", 1) };
        let mut ledger = Ledger::default();
        ledger.settle(&by(None), Held::Plain);
        ledger.settle(&by(Some(1)), Held::Plain);
        assert_eq!(ledger.look(&by(None)).unwrap().held, Held::Plain);
        assert_eq!(ledger.look(&by(Some(1))).unwrap().held, Held::Plain);
        assert!(ledger.look(&by(Some(2))).unwrap().taken);
        ledger.settle(&by(None), Held::Plain);
        let back = Ledger::load(&ledger.take_lines());
        assert!(back.look(&by(Some(2))).unwrap().taken);
    }

    #[test]
    fn lines_with_whole_keys_are_still_understood() {
        let mut ledger = Ledger::default();
        let signed = Kept { key: key_print(&[7; 32]), ..kept("a", "x", 1) };
        ledger.settle(&signed, Held::Plain);
        let line = String::from_utf8(ledger.take_lines()).unwrap();
        let (short, whole) = (BASE64.encode(signed.key), BASE64.encode([7; 32]));
        let old = Ledger::load(line.replace(&short, &whole).as_bytes());
        assert_eq!(old.look(&signed), ledger.look(&signed));
        let other = Kept { key: key_print(&[8; 32]), ..signed };
        assert!(old.look(&other).unwrap().taken);
    }

    proptest! {
        #[test]
        fn any_file_can_be_looked_at(bytes in proptest::collection::vec(any::<u8>(), 0..200), text in "((plain|twin)( [A-Za-z0-9+/]{0,43}){0,6} \\.?\n){0,4}") {
            Ledger::load(&bytes);
            Ledger::load(text.as_bytes());
        }
    }
}
