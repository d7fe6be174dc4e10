//! The values in the bucket of marks, and under which subject each lies.
//!
//! A machine has parts, each a value of its own with some of the counts it told, so that one more mark is
//! one small value more. What is in them is foreign text: a value that is not wholly as it should be counts
//! for nothing.

use serde::{Deserialize, Serialize};

use super::said::{Entry, NOBODY};
use super::subject::Space;
use crate::model::Host;

/// The largest value.
pub const MAX_VALUE: usize = 256 << 10;
/// What a machine puts into one part.
const ENTRIES: usize = 256;
const BYTES: usize = 32 << 10;
/// The longest name of a writer, and the longest id: longer ones are not told.
const MAX_FROM: usize = 256;
const MAX_ID: usize = 1024;
/// No count is greater.
const MAX_COUNT: u32 = 1 << 20;
/// The version of the format.
const VERSION: u64 = 1;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Value {
    v: u64,
    said: Vec<Line>,
}

/// The writer and the id of a message; in the longer form whose count, and the count. In the short one the
/// machine that tells it has read it, for the first time.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Line {
    Read(String, String),
    Said(String, String, String, u32),
}

/// Whether a count can be told.
fn fits(entry: &Entry) -> bool {
    entry.host != NOBODY
        && (1..=MAX_FROM).contains(&entry.from.len())
        && (1..=MAX_ID).contains(&entry.id.len())
        && (1..=MAX_COUNT).contains(&entry.count)
}

/// A value with these counts, told by a machine.
pub fn encode(host: Host, entries: &[Entry]) -> Vec<u8> {
    let line = |Entry { from, id, host: whose, count }: &Entry| {
        let (from, id) = (from.clone(), id.clone());
        match count {
            1 if *whose == host => Line::Read(from, id),
            _ => Line::Said(from, id, whose.to_string(), *count),
        }
    };
    let value = Value { v: VERSION, said: entries.iter().map(line).collect() };
    // Nothing in it can fail.
    serde_json::to_vec(&value).unwrap_or_default()
}

/// The counts in a value of a machine.
///
/// # Errors
/// Why it counts for nothing.
pub fn decode(host: Host, bytes: &[u8]) -> Result<Vec<Entry>, &'static str> {
    #[derive(Deserialize)]
    struct Version {
        v: u64,
    }
    if bytes.len() > MAX_VALUE {
        return Err("it is too large");
    }
    match serde_json::from_slice(bytes) {
        Ok(Version { v: VERSION }) => {}
        Ok(Version { .. }) => return Err("it is of another version of msgfs"),
        Err(_) => return Err("it does not have the form that msgfs writes"),
    }
    let value: Value =
        serde_json::from_slice(bytes).map_err(|_| "it does not have the form that msgfs writes")?;
    let entry = |line: Line| {
        let (from, id, host, count) = match line {
            Line::Read(from, id) => (from, id, host, 1),
            Line::Said(from, id, whose, count) => (from, id, Host::parse(&whose)?, count),
        };
        let entry = Entry { from, id, host, count };
        fits(&entry).then_some(entry)
    };
    value
        .said
        .into_iter()
        .map(entry)
        .collect::<Option<_>>()
        .ok_or("it does not have the form that msgfs writes")
}

/// A part of a machine as it is in the bucket.
#[derive(Clone, Debug, Default)]
pub struct Part {
    /// The last message of its subject; 0 if there is none.
    pub seq: u64,
    /// The counts in it.
    pub entries: Vec<Entry>,
}

impl Part {
    /// The part with the first of these counts besides, as many as there is room for; they are taken from
    /// the list. `None` if there is no room.
    pub fn fill(&self, todo: &mut Vec<Entry>) -> Option<Vec<Entry>> {
        todo.retain(fits);
        let cost = |entry: &Entry| entry.from.len() + entry.id.len() + 40;
        let mut size: usize = self.entries.iter().map(cost).sum();
        let mut number = 0;
        for entry in todo.iter().take(ENTRIES.saturating_sub(self.entries.len())) {
            size += cost(entry);
            if size > BYTES && !(self.entries.is_empty() && number == 0) {
                break;
            }
            number += 1;
        }
        let mut entries = self.entries.clone();
        entries.extend(todo.drain(..number));
        (number > 0).then_some(entries)
    }
}

impl Space {
    /// The stream that holds the marks.
    pub fn bucket(&self) -> String {
        format!("MSGFSM_{}", self.name())
    }

    /// Every subject of it.
    pub fn marks(&self) -> String {
        format!("msgfs-marks.{}.*.*", self.name())
    }

    /// Every subject of an identity.
    pub fn marks_of(&self, me: &str) -> String {
        format!("msgfs-marks.{}.{}.*", self.name(), super::subject::token(me))
    }

    /// The subject of a part of a machine of an identity.
    pub fn part(&self, me: &str, host: Host, part: u32) -> String {
        let all = self.marks_of(me);
        format!("{}{host}-{part}", all.trim_end_matches('*'))
    }

    /// The machine and the number of its part that a subject of an identity names, in the one spelling that
    /// [`Space::part`] makes.
    pub fn parted(&self, me: &str, subject: &str) -> Option<(Host, u32)> {
        let (host, part) = subject.rsplit('.').next()?.split_once('-')?;
        let (host, part) = (Host::parse(host)?, part.parse().ok()?);
        (self.part(me, host, part) == subject).then_some((host, part))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    fn entries() -> impl Strategy<Value = Vec<Entry>> {
        let entry = ("[a-z/.]{1,9}", "\\PC{1,9}", 1u64..4, 1u32..4);
        let entry =
            entry.prop_map(|(from, id, host, count)| Entry { from, id, host: Host(host), count });
        vec(entry, 0..9)
    }

    proptest! {
        #[test]
        fn there_and_back(entries in entries()) {
            prop_assert_eq!(decode(Host(1), &encode(Host(1), &entries)), Ok(entries));
        }

        #[test]
        fn anything_is_read_or_refused(bytes in vec(any::<u8>(), 0..200)) {
            let _ = decode(Host(1), &bytes);
        }

        #[test]
        fn what_is_cut_is_refused(entries in entries(), cut in 0usize..200) {
            let whole = encode(Host(1), &entries);
            if cut < whole.len() {
                prop_assert!(decode(Host(1), &whole[..cut]).is_err());
            }
        }
    }

    #[test]
    fn hostile_values() {
        let deep = format!("{{\"v\":1,\"said\":{}{}}}", "[".repeat(9000), "]".repeat(9000));
        let long = format!("{{\"v\":1,\"said\":[[\"a\",\"{}\"]]}}", "x".repeat(2000));
        let large = format!("{{\"v\":1,\"said\":[]}}{}", " ".repeat(MAX_VALUE));
        for bad in [
            "",
            "null",
            "[]",
            "{}",
            "7",
            "\"\\ud800\"",
            "{\"v\":1}",
            "{\"v\":2,\"said\":[]}",
            "{\"v\":\"1\",\"said\":[]}",
            "{\"v\":1,\"said\":{}}",
            "{\"v\":1,\"said\":[{}]}",
            "{\"v\":1,\"said\":[[\"a\"]]}",
            "{\"v\":1,\"said\":[[\"a\",7]]}",
            "{\"v\":1,\"said\":[[\"\",\"b\"]]}",
            "{\"v\":1,\"said\":[[\"a\",\"\"]]}",
            "{\"v\":1,\"said\":[[\"a\",\"b\",\"c\"]]}",
            "{\"v\":1,\"said\":[[\"a\",\"b\",\"../../x\",1]]}",
            "{\"v\":1,\"said\":[[\"a\",\"b\",\"0123456789abcdef\",0]]}",
            "{\"v\":1,\"said\":[[\"a\",\"b\",\"0000000000000000\",1]]}",
            "{\"v\":1,\"said\":[[\"a\",\"b\",\"0123456789abcdef\",-1]]}",
            "{\"v\":1,\"said\":[[\"a\",\"b\",\"0123456789ABCDEF\",1]]}",
            "{\"v\":1,\"said\":[[\"a\",\"b\",\"0123456789abcdef\",4294967295]]}",
            "{\"v\":1,\"said\":[],\"more\":1}",
            &deep,
            &long,
            &large,
        ] {
            assert!(decode(Host(1), bad.as_bytes()).is_err(), "{bad:.80}");
        }
    }

    #[test]
    fn subjects() {
        let team = Space::new("team").unwrap();
        let subject = team.part("build.1", Host(0xabc), 7);
        assert_eq!(subject, "msgfs-marks.team.build%2E1.0000000000000abc-7");
        assert_eq!(team.parted("build.1", &subject), Some((Host(0xabc), 7)));
        for bad in [
            "msgfs-marks.team.build.0000000000000abc-7",
            "msgfs-marks.team.build%2E1.0000000000000ABC-7",
            "msgfs-marks.team.build%2E1.0000000000000abc-07",
            "msgfs-marks.team.build%2E1.0000000000000abc-+7",
            "msgfs-marks.team.build%2E1.0000000000000abc",
            "msgfs-marks.team.build%2E1.x-7",
            "msgfs-marks.other.build%2E1.0000000000000abc-7",
        ] {
            assert_eq!(team.parted("build.1", bad), None, "{bad}");
        }
    }

    #[test]
    fn parts_are_filled_in_turn() {
        let entry = |n: usize| {
            let id = n.to_string();
            Entry { from: "bob".into(), id, host: Host(1), count: 1 }
        };
        let mut todo: Vec<Entry> = (0..600).map(entry).collect();
        todo.push(Entry { id: "x".repeat(MAX_ID + 1), ..entry(0) });
        let mut part = Part::default();
        let mut parts = Vec::new();
        while !todo.is_empty() {
            match part.fill(&mut todo) {
                Some(entries) => part = Part { seq: 1, entries },
                None => parts.push(std::mem::take(&mut part)),
            }
        }
        parts.push(part);
        let sizes: Vec<usize> = parts.iter().map(|part| part.entries.len()).collect();
        assert_eq!(sizes, [256, 256, 88]);
        let mut long: Vec<Entry> = (0..64).map(entry).collect();
        for entry in &mut long {
            entry.id = "x".repeat(MAX_ID);
        }
        let some = Part::default().fill(&mut long).unwrap();
        assert!(some.len() < 64 && encode(Host(2), &some).len() <= MAX_VALUE);
        assert!(!long.is_empty());
    }
}
