//! The owners of ids (docs/formats/agentazall.md, section 8).
//!
//! The first text that a writer sent under an id keeps that id, and all its marks depend on the id. A later text under
//! the same id gets the id with the hash of its file, even if the first one is gone: the reference's local delivery
//! overwrites, and a person may delete. A message with several copies, and so several ids, keeps the id by which it is
//! known.
//!
//! For most files nothing of this needs to be saved, since their text and id are enough. The ledger has the rest. It is
//! saved in the state folder, because the cache may be lost but marks may not.

use std::collections::{BTreeSet, HashMap};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD as BASE64;

use super::group::IdAssignment;
use super::letter::{LetterFacts, LetterHash, hash_key};

/// The identity of a text, whatever the name of its file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LetterIdentity {
    text: LetterHash,
    /// Hash of the key.
    key: Option<LetterHash>,
    link: Option<LetterHash>,
}

impl LetterIdentity {
    /// Returns the identity that a file states.
    pub fn from_facts(kept: &LetterFacts) -> Self {
        let key = kept.is_signed().then_some(kept.key_hash);
        Self { text: kept.text_hash, key, link: kept.link_hash() }
    }

    /// Returns true if two files are one message as far as these two alone can tell (rule 1 of
    /// [`group`](super::group)). Texts that verify by different keys are two messages.
    pub fn is_same_message(&self, other: &Self) -> bool {
        let keys = self.key.is_none() || other.key.is_none() || self.key == other.key;
        (self.link.is_some() && self.link == other.link) || (self.text == other.text && keys)
    }
}

#[derive(Clone, Debug)]
struct LedgerEntry {
    /// The place in the order of all entries.
    order: u64,
    identity: LetterIdentity,
    assignment: IdAssignment,
    saved: bool,
}

/// A text or a signed Message-ID under the hash of a writer and an id.
type EntryKey = (LetterHash, LetterHash);

/// The assignments of ids, by writer and id.
#[derive(Debug, Default)]
pub(super) struct IdLedger {
    /// The entries of each text.
    entries: HashMap<EntryKey, Vec<LedgerEntry>>,
    /// The texts of the entries with each signed Message-ID, one for each entry.
    linked_texts: HashMap<EntryKey, Vec<LetterHash>>,
    /// The number of entries of each writer and id, and of those that are [`IdAssignment::Plain`].
    counts: HashMap<LetterHash, (usize, usize)>,
    /// Entries that are not saved, by writer and id, order and text. Some may be gone.
    unsaved: BTreeSet<(LetterHash, u64, LetterHash)>,
    next_order: u64,
}

/// The answer of the ledger about a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct IdRuling {
    /// The assignment of its message.
    pub assignment: IdAssignment,
    /// True if the id without a hash belongs to another message.
    pub is_id_taken: bool,
}

impl IdLedger {
    /// Reads the lines of [`IdLedger::take_unsaved_lines`]. Other lines are skipped.
    pub fn from_lines(text: &[u8]) -> Self {
        let mut ledger = Self::default();
        for (name, identity, assignment) in text.split(|b| *b == b'\n').filter_map(parse_line) {
            ledger.insert_entry(name, identity, assignment, true);
        }
        ledger
    }

    /// Returns the ruling for this file; `None` if the ledger has nothing for its writer and id.
    pub fn find_ruling(&self, kept: &LetterFacts) -> Option<IdRuling> {
        let (_, plain) = self.counts.get(&kept.name_hash)?;
        let assignment = self
            .find_entry(&kept.name_hash, &LetterIdentity::from_facts(kept))
            .map_or(IdAssignment::Unassigned, |entry| entry.assignment);
        let taken = assignment != IdAssignment::Plain && *plain > 0;
        Some(IdRuling { assignment, is_id_taken: taken })
    }

    /// Assigns an id to the message of this file. Returns true if that is new.
    pub fn assign_id(&mut self, kept: &LetterFacts, assignment: IdAssignment) -> bool {
        assignment != IdAssignment::Unassigned
            && self.insert_entry(
                kept.name_hash,
                LetterIdentity::from_facts(kept),
                assignment,
                false,
            )
    }

    /// Removes the assignments of this file that are not saved yet.
    pub fn revoke_unsaved(&mut self, kept: &LetterFacts) {
        let identity = LetterIdentity::from_facts(kept);
        self.remove_entries((kept.name_hash, identity.text), |e| {
            !e.saved && e.identity == identity
        });
    }

    /// Returns the entry of this very text, else one that it may be a copy of.
    fn find_entry(&self, name: &LetterHash, identity: &LetterIdentity) -> Option<&LedgerEntry> {
        let linked = identity.link.and_then(|link| self.linked_texts.get(&(*name, link)));
        let texts = linked.into_iter().flatten().chain([&identity.text]);
        let entries = texts.filter_map(|text| self.entries.get(&(*name, *text))).flatten();
        let same = entries.filter(|e| e.identity.is_same_message(identity));
        same.min_by_key(|e| (e.identity != *identity, e.assignment != IdAssignment::Plain, e.order))
    }

    /// Removes the entries of a text for which `is_it` returns true.
    fn remove_entries(&mut self, key: EntryKey, is_it: impl Fn(&LedgerEntry) -> bool) {
        let (name, text) = key;
        let (gone, rest): (Vec<_>, Vec<_>) =
            self.entries.remove(&key).unwrap_or_default().into_iter().partition(is_it);
        if !rest.is_empty() {
            self.entries.insert(key, rest);
        }
        for entry in gone {
            if let Some(texts) =
                entry.identity.link.and_then(|l| self.linked_texts.get_mut(&(name, l)))
                && let Some(at) = texts.iter().position(|other| *other == text)
            {
                texts.swap_remove(at);
            }
            if let Some((all, plain)) = self.counts.get_mut(&name) {
                *all -= 1;
                *plain -= usize::from(entry.assignment == IdAssignment::Plain);
                if *all == 0 {
                    self.counts.remove(&name);
                }
            }
        }
    }

    fn insert_entry(
        &mut self,
        name: LetterHash,
        mut identity: LetterIdentity,
        assignment: IdAssignment,
        saved: bool,
    ) -> bool {
        if let Some(known) = self.find_entry(&name, &identity).cloned() {
            // A copy without a signature does not remove the key of the signer.
            identity.key = identity.key.or(known.identity.key);
            identity.link = identity.link.or(known.identity.link);
            if known.identity == identity && known.assignment == assignment {
                return false;
            }
            self.remove_entries((name, known.identity.text), |e| {
                (&e.identity, e.assignment, e.saved)
                    == (&known.identity, known.assignment, known.saved)
            });
        }
        let (order, text) = (self.next_order, identity.text);
        self.next_order += 1;
        if !saved {
            self.unsaved.insert((name, order, text));
        }
        if let Some(link) = identity.link {
            self.linked_texts.entry((name, link)).or_default().push(text);
        }
        let (all, plain) = self.counts.entry(name).or_default();
        *all += 1;
        *plain += usize::from(assignment == IdAssignment::Plain);
        let entry = LedgerEntry { order, identity, assignment, saved };
        self.entries.entry((name, text)).or_default().push(entry);
        true
    }

    /// Returns the unsaved lines for the file. They count as saved from now on.
    pub fn take_unsaved_lines(&mut self) -> Vec<u8> {
        let mut out = Vec::new();
        for (name, order, text) in std::mem::take(&mut self.unsaved) {
            let mut entries = self.entries.get_mut(&(name, text)).into_iter().flatten();
            if let Some(entry) = entries.find(|entry| entry.order == order) {
                entry.saved = true;
                out.extend_from_slice(render_line(&name, entry).as_bytes());
            }
        }
        out
    }
}

fn render_line(name: &LetterHash, entry: &LedgerEntry) -> String {
    let encode = |bytes: Option<&[u8]>| bytes.map(|b| BASE64.encode(b)).unwrap_or_default();
    let identity = &entry.identity;
    let (word, hash) = match &entry.assignment {
        IdAssignment::Hashed(hash) => ("twin", Some(&hash[..])),
        IdAssignment::Plain | IdAssignment::Unassigned => ("plain", None),
    };
    let key = identity.key.as_ref().map(|k| &k[..]);
    let link = identity.link.as_ref().map(|l| &l[..]);
    let fields = [Some(&name[..]), Some(&identity.text[..]), key, link, hash].map(encode);
    format!("{word} {} .\n", fields.join(" "))
}

fn parse_line(line: &[u8]) -> Option<(LetterHash, LetterIdentity, IdAssignment)> {
    let fields: Vec<&str> = std::str::from_utf8(line).ok()?.split(' ').collect();
    // The dot proves that the line is complete.
    let [word, name, text, key, link, hash, "."] = fields.as_slice() else { return None };
    let assignment = match *word {
        "plain" if hash.is_empty() => IdAssignment::Plain,
        "twin" => IdAssignment::Hashed(decode_base64(hash)?),
        _ => return None,
    };
    // Older lines have the key itself.
    let key = match *key {
        "" => None,
        key => Some(decode_base64::<16>(key).or_else(|| Some(hash_key(&decode_base64(key)?)))?),
    };
    let link = if link.is_empty() { None } else { Some(decode_base64(link)?) };
    Some((
        decode_base64(name)?,
        LetterIdentity { text: decode_base64(text)?, key, link },
        assignment,
    ))
}

fn decode_base64<const N: usize>(text: &str) -> Option<[u8; N]> {
    BASE64.decode(text).ok()?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::super::group::tests::kept;
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn another_text_does_not_get_the_id() {
        let mut ledger = IdLedger::default();
        assert_eq!(ledger.find_ruling(&kept("a", "x", 1)), None);
        assert!(ledger.assign_id(&kept("a", "x", 1), IdAssignment::Plain));
        assert!(!ledger.assign_id(&kept("a", "x", 1), IdAssignment::Plain), "once is enough");
        let first = ledger.find_ruling(&kept("a", "x", 1)).unwrap();
        assert_eq!(first, IdRuling { assignment: IdAssignment::Plain, is_id_taken: false });
        let second = ledger.find_ruling(&kept("a", "x", 2)).unwrap();
        assert_eq!(second, IdRuling { assignment: IdAssignment::Unassigned, is_id_taken: true });
        ledger.assign_id(&kept("a", "x", 2), IdAssignment::Hashed([2; 32]));
        let second = IdRuling { assignment: IdAssignment::Hashed([2; 32]), is_id_taken: true };
        assert_eq!(ledger.find_ruling(&kept("a", "x", 2)), Some(second));
        assert_eq!(ledger.find_ruling(&kept("b", "x", 1)), None, "another writer");
        // The lines come back from the disk with a torn line and junk.
        let mut lines = ledger.take_unsaved_lines();
        assert!(ledger.take_unsaved_lines().is_empty());
        let torn = lines.len() / 2;
        let mut again = lines.clone();
        lines.extend_from_slice(b"junk\n\xff\n");
        lines.extend_from_slice(&again.split_off(torn));
        let back = IdLedger::from_lines(&lines);
        assert_eq!(back.find_ruling(&kept("a", "x", 1)), Some(first));
        assert_eq!(back.find_ruling(&kept("a", "x", 2)), Some(second));
    }

    #[test]
    fn what_was_not_saved_can_be_taken_back() {
        let mut ledger = IdLedger::default();
        ledger.assign_id(&kept("a", "x", 1), IdAssignment::Plain);
        ledger.revoke_unsaved(&kept("a", "x", 1));
        assert_eq!(ledger.find_ruling(&kept("a", "x", 2)), None);
        assert!(ledger.take_unsaved_lines().is_empty());
        ledger.assign_id(&kept("a", "x", 1), IdAssignment::Plain);
        assert!(!ledger.take_unsaved_lines().is_empty());
        ledger.revoke_unsaved(&kept("a", "x", 1));
        assert!(ledger.find_ruling(&kept("a", "x", 2)).unwrap().is_id_taken);
    }

    #[test]
    fn who_signed_it_keeps_it() {
        let by =
            |key: Option<u8>| LetterFacts { key_hash: [key.unwrap_or(0); 16], ..kept("a", "x", 1) };
        let mut ledger = IdLedger::default();
        ledger.assign_id(&by(None), IdAssignment::Plain);
        ledger.assign_id(&by(Some(1)), IdAssignment::Plain);
        assert_eq!(ledger.find_ruling(&by(None)).unwrap().assignment, IdAssignment::Plain);
        assert_eq!(ledger.find_ruling(&by(Some(1))).unwrap().assignment, IdAssignment::Plain);
        assert!(ledger.find_ruling(&by(Some(2))).unwrap().is_id_taken);
        ledger.assign_id(&by(None), IdAssignment::Plain);
        let back = IdLedger::from_lines(&ledger.take_unsaved_lines());
        assert!(back.find_ruling(&by(Some(2))).unwrap().is_id_taken);
    }

    #[test]
    fn a_signed_message_id_finds_the_entry_of_another_text() {
        let signed = |text| {
            let mut letter =
                LetterFacts { key_hash: [1; 16], tie_hash: [5; 16], ..kept("a", "x", text) };
            letter.set_bit(LetterFacts::LINK, true);
            letter
        };
        let mut ledger = IdLedger::default();
        assert!(ledger.assign_id(&signed(1), IdAssignment::Plain));
        assert_eq!(ledger.find_ruling(&signed(2)).unwrap().assignment, IdAssignment::Plain);
        assert!(ledger.assign_id(&signed(2), IdAssignment::Plain), "it takes the place");
        let first = IdRuling { assignment: IdAssignment::Unassigned, is_id_taken: true };
        assert_eq!(ledger.find_ruling(&kept("a", "x", 1)), Some(first));
        let lines = ledger.take_unsaved_lines();
        assert_eq!(lines.split(|b| *b == b'\n').count(), 2);
        let back = IdLedger::from_lines(&lines);
        assert_eq!(back.find_ruling(&signed(1)).unwrap().assignment, IdAssignment::Plain);
    }

    #[test]
    fn lines_with_whole_keys_are_still_understood() {
        let mut ledger = IdLedger::default();
        let signed = LetterFacts { key_hash: hash_key(&[7; 32]), ..kept("a", "x", 1) };
        ledger.assign_id(&signed, IdAssignment::Plain);
        let line = String::from_utf8(ledger.take_unsaved_lines()).unwrap();
        let (short, whole) = (BASE64.encode(signed.key_hash), BASE64.encode([7; 32]));
        let old = IdLedger::from_lines(line.replace(&short, &whole).as_bytes());
        assert_eq!(old.find_ruling(&signed), ledger.find_ruling(&signed));
        let other = LetterFacts { key_hash: hash_key(&[8; 32]), ..signed };
        assert!(old.find_ruling(&other).unwrap().is_id_taken);
    }

    proptest! {
        #[test]
        fn any_file_can_be_looked_at(bytes in proptest::collection::vec(any::<u8>(), 0..200), text in "((plain|twin)( [A-Za-z0-9+/]{0,43}){0,6} \\.?\n){0,4}") {
            IdLedger::from_lines(&bytes);
            IdLedger::from_lines(text.as_bytes());
        }
    }
}
