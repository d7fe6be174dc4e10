//! The two messages that were read last, for `msgfs reply` without a name. They are in a small file of the
//! state folder that is written in place and only has to survive the process.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::unique_names::MessageNames;
use crate::index::{Index, MsgIx};
use crate::model::Timestamp;
use crate::model::locks::Mutex;
use crate::store::fs;

/// Least size of the file: one block, so one write replaces it. Only a long sender or name makes it larger.
const BLOCK: usize = 2048;

/// A message that was read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecentRead {
    /// The time, in milliseconds since 1970.
    pub time: i64,
    /// Its sender.
    pub from: String,
    /// The name of its file.
    pub name: String,
}

/// Returns the messages in the file, the newest first. The rest of a longer text may follow them, if the process was
/// killed before it cut the file.
pub fn load_recent_reads(path: &Path) -> Vec<RecentRead> {
    let text = std::fs::read(path).unwrap_or_default();
    Vec::deserialize(&mut serde_json::Deserializer::from_slice(&text)).unwrap_or_default()
}

/// The file, once a message is read, and its content.
#[derive(Debug)]
pub(super) struct RecentReads {
    path: PathBuf,
    file: Mutex<Option<(File, Vec<RecentRead>)>>,
}

impl RecentReads {
    /// Makes the value for a file, which is not opened before a message is read.
    pub fn new(path: PathBuf) -> Self {
        Self { path, file: Mutex::default() }
    }

    /// Notes that a message was read to its end.
    pub fn note_reading(&self, index: &Index, names: &MessageNames, ix: MsgIx) {
        let from = {
            let tables = index.read();
            tables.messages.sender(tables.messages.entry(ix)).to_owned()
        };
        let name = names.message_name(ix);
        self.record_read(RecentRead { time: Timestamp::now().millis(), from, name });
    }

    /// Records a message as the one that was read last. A failure is only logged.
    fn record_read(&self, reading: RecentRead) {
        let mut open = self.file.lock();
        if open.is_none() {
            let before = load_recent_reads(&self.path);
            *open = fs::open_read_write(&self.path, 0o600).ok().map(|file| (file, before));
        }
        let Some((file, all)) = open.as_mut() else { return };
        all.retain(|other| other.name != reading.name);
        all.insert(0, reading);
        all.truncate(2);
        let Ok(mut block) = serde_json::to_vec(all) else { return };
        block.resize(block.len().max(BLOCK), b' ');
        // The file is cut last: until then the new text is whole, and bytes of the old one follow it.
        let saved = file.write_all_at(&block, 0).and_then(|()| file.set_len(block.len() as u64));
        if let Err(error) = saved {
            tracing::debug!(%error, "the messages read last cannot be saved");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_two_are_kept_each_once_and_over_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("read-last");
        let note = |lately: &RecentReads, time, name: &str| {
            lately.record_read(RecentRead { time, from: "bob".into(), name: name.into() });
        };
        let names =
            || load_recent_reads(&path).into_iter().map(|r| (r.name, r.time)).collect::<Vec<_>>();
        assert_eq!(names(), []);
        let lately = RecentReads::new(path.clone());
        note(&lately, 1, &"long".repeat(60));
        note(&lately, 2, "b");
        note(&lately, 3, "b");
        assert_eq!(names(), [("b".into(), 3), ("long".repeat(60), 1)]);
        note(&RecentReads::new(path.clone()), 4, "c");
        assert_eq!(names(), [("c".into(), 4), ("b".into(), 3)]);
        std::fs::write(&path, "[{\"time\":").unwrap();
        assert_eq!(names(), [], "half of it says nothing");
    }

    #[test]
    fn s1220_a_long_sender_leaves_nothing_behind() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("read-last");
        let lately = RecentReads::new(path.clone());
        let note = |time, from: &str, name: &str| {
            lately.record_read(RecentRead { time, from: from.into(), name: name.into() });
        };
        let names = || load_recent_reads(&path).into_iter().map(|r| r.name).collect::<Vec<_>>();
        note(1, &"x".repeat(3000), "long");
        let long = std::fs::read(&path).unwrap();
        assert!(long.len() > BLOCK && names() == ["long"]);
        note(2, "bob", "b");
        note(3, "bob", "c");
        assert_eq!(names(), ["c", "b"]);
        let short = std::fs::read(&path).unwrap();
        assert_eq!(short.len(), BLOCK);
        // A kill before the cut leaves the end of the longer text.
        std::fs::write(&path, [&short, &long[BLOCK..]].concat()).unwrap();
        assert_eq!(names(), ["c", "b"]);
    }
}
