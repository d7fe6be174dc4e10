//! The values in the bucket of marks, and their subjects.
//!
//! A machine has parts. Each part is a value of its own with some of its counts, so that one more mark rewrites only a
//! small value. Values are foreign text: one that is not entirely valid is ignored.

use serde::{Deserialize, Serialize};

use super::read_counts::{NOBODY, ReadCount};
use super::subject::NatsSpace;
use crate::model::{MachineId, to_json};

/// The limit on the size of a value.
pub const MAX_VALUE: usize = 256 << 10;
/// The limit on counts in one part of a machine, and the number of bytes from which on it is full.
const ENTRIES: usize = 256;
const BYTES: usize = 32 << 10;
/// The limits on the length of a writer's name and of an id; longer ones are not published.
const MAX_FROM: usize = 256;
const MAX_ID: usize = 1024;
/// The limit on a count.
const MAX_COUNT: u32 = 1 << 20;
/// The version of the format.
const VERSION: u64 = 1;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct BucketValue {
    v: u64,
    said: Vec<BucketLine>,
}

/// The writer and the id of a message. The longer form adds a machine and its count. The short form means that the
/// publishing machine has read the message for the first time.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum BucketLine {
    Read(String, String),
    Said(String, String, String, u32),
}

/// Returns true if a count can be published.
fn is_encodable(entry: &ReadCount) -> bool {
    entry.host != NOBODY
        && (1..=MAX_FROM).contains(&entry.from.len())
        && (1..=MAX_ID).contains(&entry.id.len())
        && (1..=MAX_COUNT).contains(&entry.count)
}

/// Encodes a value of a machine with these counts.
pub fn encode_value(host: MachineId, entries: &[ReadCount]) -> Vec<u8> {
    let line = |ReadCount { from, id, host: whose, count }: &ReadCount| {
        let (from, id) = (from.clone(), id.clone());
        match count {
            1 if *whose == host => BucketLine::Read(from, id),
            _ => BucketLine::Said(from, id, whose.to_string(), *count),
        }
    };
    to_json(&BucketValue { v: VERSION, said: entries.iter().map(line).collect() })
}

/// Decodes the counts in a value of a machine.
///
/// # Errors
/// Returns the reason why the value is ignored.
pub fn decode_value(host: MachineId, bytes: &[u8]) -> Result<Vec<ReadCount>, &'static str> {
    #[derive(Deserialize)]
    struct BucketVersion {
        v: u64,
    }
    if bytes.len() > MAX_VALUE {
        return Err("it is too large");
    }
    match serde_json::from_slice(bytes) {
        Ok(BucketVersion { v: VERSION }) => {}
        Ok(BucketVersion { .. }) => return Err("it is of another version of msgfs"),
        Err(_) => return Err("it does not have the form that msgfs writes"),
    }
    let value: BucketValue =
        serde_json::from_slice(bytes).map_err(|_| "it does not have the form that msgfs writes")?;
    let entry = |line: BucketLine| {
        let (from, id, host, count) = match line {
            BucketLine::Read(from, id) => (from, id, host, 1),
            BucketLine::Said(from, id, whose, count) => {
                (from, id, MachineId::parse(&whose)?, count)
            }
        };
        let entry = ReadCount { from, id, host, count };
        is_encodable(&entry).then_some(entry)
    };
    value
        .said
        .into_iter()
        .map(entry)
        .collect::<Option<_>>()
        .ok_or("it does not have the form that msgfs writes")
}

/// A part of a machine, as it is in the bucket.
#[derive(Clone, Debug, Default)]
pub struct BucketPart {
    /// The number of the last message of its subject; 0 if there is none.
    pub seq: u64,
    /// The counts in it.
    pub entries: Vec<ReadCount>,
}

/// Returns the size of a count in a part, about.
fn encoded_size(entry: &ReadCount) -> usize {
    entry.from.len() + entry.id.len() + 40
}

impl BucketPart {
    /// Returns the part with these counts. Of more counts than fit, it has so many that it is full.
    pub fn new(seq: u64, entries: &[ReadCount]) -> Self {
        let kept = entries.iter().take(count_fitting(&[], entries));
        Self { seq, entries: kept.cloned().collect() }
    }

    /// Returns the part's counts with as many of the queued ones as fit, which are removed from the queue. `None` if
    /// none fits.
    pub fn fill_from(&self, todo: &mut Vec<ReadCount>) -> Option<Vec<ReadCount>> {
        todo.retain(is_encodable);
        let number = count_fitting(&self.entries, todo);
        let mut entries = self.entries.clone();
        entries.extend(todo.drain(..number));
        (number > 0).then_some(entries)
    }
}

/// Returns how many of some counts fit into a part behind those that it has. The last one may make it larger than
/// `BYTES`.
fn count_fitting(there: &[ReadCount], more: &[ReadCount]) -> usize {
    let mut size: usize = there.iter().map(encoded_size).sum();
    let room = ENTRIES.saturating_sub(there.len());
    let fits = more.iter().take(room).take_while(|entry| {
        let has_room = size < BYTES;
        size += encoded_size(entry);
        has_room
    });
    fits.count()
}

impl NatsSpace {
    /// Returns the name of the stream that holds the marks.
    pub fn bucket_name(&self) -> String {
        format!("MSGFSM_{}", self.name())
    }

    /// Returns the pattern for all subjects of marks.
    pub fn mark_subjects(&self) -> String {
        format!("msgfs-marks.{}.*.*", self.name())
    }

    /// Returns the pattern for all subjects of an identity.
    pub fn identity_subjects(&self, me: &str) -> String {
        format!("msgfs-marks.{}.{}.*", self.name(), super::subject::encode_token(me))
    }

    /// Returns the subject of a part of a machine of an identity.
    pub fn part_subject(&self, me: &str, host: MachineId, part: u32) -> String {
        let all = self.identity_subjects(me);
        format!("{}{host}-{part}", all.trim_end_matches('*'))
    }

    /// Returns the machine and the part in a subject of an identity, if it has the one spelling that
    /// [`NatsSpace::part_subject`] makes.
    pub fn parse_part_subject(&self, me: &str, subject: &str) -> Option<(MachineId, u32)> {
        let (host, part) = subject.rsplit('.').next()?.split_once('-')?;
        let (host, part) = (MachineId::parse(host)?, part.parse().ok()?);
        (self.part_subject(me, host, part) == subject).then_some((host, part))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    fn entries() -> impl Strategy<Value = Vec<ReadCount>> {
        let entry = ("[a-z/.]{1,9}", "\\PC{1,9}", 1u64..4, 1u32..4);
        let entry = entry.prop_map(|(from, id, host, count)| ReadCount {
            from,
            id,
            host: MachineId(host),
            count,
        });
        vec(entry, 0..9)
    }

    proptest! {
        #[test]
        fn there_and_back(entries in entries()) {
            prop_assert_eq!(decode_value(MachineId(1), &encode_value(MachineId(1), &entries)), Ok(entries));
        }

        #[test]
        fn anything_is_read_or_refused(bytes in vec(any::<u8>(), 0..200)) {
            let _ = decode_value(MachineId(1), &bytes);
        }

        #[test]
        fn what_is_cut_is_refused(entries in entries(), cut in 0usize..200) {
            let whole = encode_value(MachineId(1), &entries);
            if cut < whole.len() {
                prop_assert!(decode_value(MachineId(1), &whole[..cut]).is_err());
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
            assert!(decode_value(MachineId(1), bad.as_bytes()).is_err(), "{bad:.80}");
        }
    }

    #[test]
    fn subjects() {
        let team = NatsSpace::new("team").unwrap();
        let subject = team.part_subject("build.1", MachineId(0xabc), 7);
        assert_eq!(subject, "msgfs-marks.team.build%2E1.0000000000000abc-7");
        assert_eq!(team.parse_part_subject("build.1", &subject), Some((MachineId(0xabc), 7)));
        for bad in [
            "msgfs-marks.team.build.0000000000000abc-7",
            "msgfs-marks.team.build%2E1.0000000000000ABC-7",
            "msgfs-marks.team.build%2E1.0000000000000abc-07",
            "msgfs-marks.team.build%2E1.0000000000000abc-+7",
            "msgfs-marks.team.build%2E1.0000000000000abc",
            "msgfs-marks.team.build%2E1.x-7",
            "msgfs-marks.other.build%2E1.0000000000000abc-7",
        ] {
            assert_eq!(team.parse_part_subject("build.1", bad), None, "{bad}");
        }
    }

    #[test]
    fn parts_are_filled_in_turn() {
        let entry = |n: usize| {
            let id = n.to_string();
            ReadCount { from: "bob".into(), id, host: MachineId(1), count: 1 }
        };
        let mut todo: Vec<ReadCount> = (0..600).map(entry).collect();
        todo.push(ReadCount { id: "x".repeat(MAX_ID + 1), ..entry(0) });
        let mut part = BucketPart::default();
        let mut parts = Vec::new();
        while !todo.is_empty() {
            match part.fill_from(&mut todo) {
                Some(entries) => part = BucketPart { seq: 1, entries },
                None => parts.push(std::mem::take(&mut part)),
            }
        }
        parts.push(part);
        let sizes: Vec<usize> = parts.iter().map(|part| part.entries.len()).collect();
        assert_eq!(sizes, [256, 256, 88]);
        let mut long: Vec<ReadCount> = (0..64).map(entry).collect();
        for entry in &mut long {
            entry.id = "x".repeat(MAX_ID);
        }
        let some = BucketPart::default().fill_from(&mut long).unwrap();
        assert!(some.len() < 64 && encode_value(MachineId(2), &some).len() <= MAX_VALUE);
        assert!(!long.is_empty());
        // A value with more than fits is full, and takes no more room than a full part.
        for entries in [(0..600).map(entry).collect(), [some, long].concat()] {
            let full = BucketPart::new(1, &entries);
            assert!(full.entries.len() < entries.len());
            assert!(full.fill_from(&mut vec![entry(0)]).is_none());
        }
    }
}
