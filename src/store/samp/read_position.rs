//! The read position in `.seen-<alias>` that all readers of the folder share.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Number, Value};

use crate::model::Timestamp;
use crate::model::locks::Mutex;
use crate::store::{StoreError, Watermark, atomic_file, fs};

/// The largest size of my read position. No reader writes more. Its values take some thirty times the memory.
const LIMIT: u64 = 4 << 20;
/// The largest size of another reader's position that is read, which happens at each look. A thousand ids take 100 KiB.
const PEER_LIMIT: u64 = 1 << 20;

fn position_path(dir: &Path, me: &str) -> PathBuf {
    dir.join(format!(".seen-{me}"))
}

/// A reader of my position. Each change in the folder asks for the position, which rarely changes.
#[derive(Debug, Default)]
pub(super) struct PositionReader {
    last: Mutex<Option<KnownPosition>>,
}

/// The file as it was last.
#[derive(Debug)]
struct KnownPosition {
    bytes: Vec<u8>,
    /// The position in it, unless it is garbage.
    mark: Option<Arc<Watermark>>,
    written: PositionWriteTime,
}

/// The time at which a position was written.
#[derive(Clone, Copy, Debug)]
pub(super) struct PositionWriteTime {
    /// The time of the file, or now if that is later.
    time: Timestamp,
    /// The time of the file in nanoseconds since the epoch; `None` if it is in the future, so that it proves nothing.
    nanos: Option<i128>,
}

impl PositionWriteTime {
    fn from_mtime(nanos: i128) -> Self {
        let (now, file) = (Timestamp::now(), Timestamp::from_nanos(nanos));
        Self { time: file.min(now), nanos: (file <= now).then_some(nanos) }
    }

    /// Returns true if a record was there when the position was written: it is older, or nobody has changed its log
    /// since. `changed` is the time of the last change of the log in nanoseconds since the epoch.
    pub(super) fn was_there(self, record: Timestamp, changed: Option<i128>) -> bool {
        record.secs() < self.time.secs()
            || self.nanos.zip(changed).is_some_and(|(written, changed)| changed < written)
    }
}

impl PositionReader {
    /// Returns the position, if there is a file that holds one. Garbage counts as absent, as it does for the reference.
    pub(super) fn read(&self, dir: &Path, me: &str) -> Option<Arc<Watermark>> {
        let file = fs::open_regular(&position_path(dir, me)).ok()?;
        let written = PositionWriteTime::from_mtime(fs::Stamp::from_file(&file).ok()?.mtime);
        let bytes = fs::read_limited(file, LIMIT).ok()?;
        let mut last = self.last.lock();
        match &*last {
            Some(known) if known.bytes == bytes => known.mark.clone(),
            _ => {
                let mark = parse_watermark(&bytes).map(Arc::new);
                *last = Some(KnownPosition { bytes, mark: mark.clone(), written });
                mark
            }
        }
    }

    /// Returns the time at which the position that was read last was written, if the position is later: a sender's
    /// clock was ahead.
    pub(super) fn write_time_if_ahead(&self) -> Option<PositionWriteTime> {
        let last = self.last.lock();
        let KnownPosition { mark, written, .. } = last.as_ref()?;
        mark.as_ref().is_some_and(|mark| mark.time > written.time).then_some(*written)
    }
}

/// Returns the position of another reader, unless its file is larger than it should be.
pub(super) fn read_peer_watermark(dir: &Path, alias: &str) -> Option<Watermark> {
    parse_watermark(&fs::read_small_file(&position_path(dir, alias), PEER_LIMIT).ok()?)
}

/// Returns the time at which the file was last written.
pub(super) fn modified_time(dir: &Path, me: &str) -> Option<Timestamp> {
    let meta = std::fs::symlink_metadata(position_path(dir, me)).ok()?;
    Some(meta.modified().ok()?.into())
}

fn load_bytes(dir: &Path, me: &str) -> std::io::Result<Vec<u8>> {
    fs::read_small_file(&position_path(dir, me), LIMIT)
}

fn parse_watermark(bytes: &[u8]) -> Option<Watermark> {
    Some(parse_position(bytes)?.0)
}

/// Returns the position in these bytes, and its time as it is spelled there.
fn parse_position(bytes: &[u8]) -> Option<(Watermark, Number)> {
    let value: Value = serde_json::from_slice(bytes).ok()?;
    let object = value.as_object()?;
    let ts = object.get("ts").map_or(Some(Number::from(0)), |ts| ts.as_number().cloned())?;
    let time = Timestamp::from_json_secs(&ts)?;
    let ids: HashSet<String> = match object.get("ids") {
        Some(Value::Array(ids)) => {
            ids.iter().filter_map(|v| v.as_str().map(str::to_owned)).collect()
        }
        _ => HashSet::new(),
    };
    Some((Watermark { time, ids }, ts))
}

/// Moves the position forward to `mark` and lists its ids. A position that is already further keeps its time. The ids
/// of another reader at the same second or later are kept, but for the retired ones. Returns the position that was
/// written.
///
/// # Errors
/// As the system gave it.
pub(super) fn advance_watermark(
    dir: &Path,
    me: &str,
    mark: &Watermark,
    retired: &HashSet<String>,
) -> Result<Option<Watermark>, StoreError> {
    let old = match load_bytes(dir, me) {
        // A position that cannot be read now may be further.
        Err(e) if fs::is_transient(&e) => return Err(StoreError::io(&position_path(dir, me), e)),
        old => old.ok().and_then(|bytes| parse_position(&bytes)),
    };
    let (mut new, mut ts) = (mark.clone(), Number::from(mark.time.secs()));
    if let Some((old, spelled)) = old.as_ref().filter(|(old, _)| old.time >= mark.time) {
        // A time with a fraction, or a very large one, stays as it is spelled.
        (new.time, ts) = (old.time, spelled.clone());
        new.ids.extend(old.ids.iter().filter(|id| !retired.contains(*id)).cloned());
    }
    if old.is_some_and(|(old, _)| old == new) {
        return Ok(None);
    }
    let mut list: Vec<String> =
        new.ids.iter().map(|id| Value::from(id.as_str()).to_string()).collect();
    list.sort_unstable();
    let text = format!("{{\"ts\": {ts}, \"ids\": [{}]}}", list.join(", "));
    let path = position_path(dir, me);
    atomic_file::write_atomic(&path, text.as_bytes(), 0o644)
        .map_err(|e| StoreError::io(&path, e))?;
    Ok(Some(new))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark(secs: i64, ids: &[&str]) -> Watermark {
        Watermark {
            time: Timestamp::from_secs(secs),
            ids: ids.iter().map(|s| (*s).to_owned()).collect(),
        }
    }

    fn stored(dir: &Path) -> Option<Watermark> {
        PositionReader::default().read(dir, "bar").map(|mark| (*mark).clone())
    }

    fn advance(dir: &Path, mark: &Watermark, retired: &[&str]) -> Option<Watermark> {
        let retired = retired.iter().map(|id| (*id).to_owned()).collect();
        advance_watermark(dir, "bar", mark, &retired).unwrap()
    }

    #[test]
    fn moves_forward_only_and_unites_ids_of_one_second() {
        let dir = tempfile::tempdir().unwrap();
        advance(dir.path(), &mark(10, &["a", "foo:a"]), &[]);
        let text = std::fs::read_to_string(dir.path().join(".seen-bar")).unwrap();
        assert_eq!(text, r#"{"ts": 10, "ids": ["a", "foo:a"]}"#);
        advance(dir.path(), &mark(9, &["z"]), &[]);
        assert_eq!(stored(dir.path()), Some(mark(10, &["a", "foo:a", "z"])));
        assert_eq!(advance(dir.path(), &mark(10, &["z"]), &[]), None, "nothing changes");
        advance(dir.path(), &mark(10, &["b"]), &["z"]);
        assert_eq!(stored(dir.path()), Some(mark(10, &["a", "b", "foo:a"])));
        advance(dir.path(), &mark(11, &["c"]), &[]);
        assert_eq!(stored(dir.path()), Some(mark(11, &["c"])));
    }

    /// S1382: another reader may write a time with a fraction, or a very large one. It is not moved back.
    #[test]
    fn s1382_a_time_with_a_fraction_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join(".seen-bar");
        for ts in ["10.5", "10.0001", "1e+26"] {
            std::fs::write(&file, format!(r#"{{"ts": {ts}, "ids": ["a"]}}"#)).unwrap();
            let position = stored(dir.path()).unwrap();
            assert!(position.has_read(Timestamp::from_secs(10), "foo", "z") == (ts != "10.0001"));
            advance(dir.path(), &mark(10, &["b"]), &[]);
            let text = std::fs::read_to_string(&file).unwrap();
            assert_eq!(text, format!(r#"{{"ts": {ts}, "ids": ["a", "b"]}}"#));
        }
        std::fs::write(&file, r#"{"ts": 10.5, "ids": ["a"]}"#).unwrap();
        let position = stored(dir.path()).unwrap();
        let at = |millis: i64| Timestamp::from_millis(10_000 + millis);
        assert!(position.has_read(at(499), "foo", "z") && !position.has_read(at(500), "foo", "z"));
        advance(dir.path(), &mark(11, &["b"]), &[]);
        assert_eq!(stored(dir.path()), Some(mark(11, &["b"])));
    }

    #[test]
    fn garbage_and_symlinks_are_absent() {
        let dir = tempfile::tempdir().unwrap();
        for text in ["", "[]", "null", "{\"ts\": \"x\"}", "{"] {
            std::fs::write(dir.path().join(".seen-bar"), text).unwrap();
            assert_eq!(stored(dir.path()), None, "{text}");
        }
        std::fs::remove_file(dir.path().join(".seen-bar")).unwrap();
        std::fs::write(dir.path().join("t"), "{\"ts\": 5}").unwrap();
        std::os::unix::fs::symlink("t", dir.path().join(".seen-bar")).unwrap();
        assert_eq!(stored(dir.path()), None);
        advance(dir.path(), &mark(6, &[]), &[]);
        assert_eq!(std::fs::read_to_string(dir.path().join("t")).unwrap(), "{\"ts\": 5}");
    }

    #[test]
    fn a_reader_sees_each_change() {
        let (dir, reader) = (tempfile::tempdir().unwrap(), PositionReader::default());
        let read = |text: &str| {
            std::fs::write(dir.path().join(".seen-bar"), text).unwrap();
            reader.read(dir.path(), "bar")
        };
        let first = read(r#"{"ts": 5, "ids": ["a"]}"#).unwrap();
        let again = reader.read(dir.path(), "bar").unwrap();
        assert!(Arc::ptr_eq(&first, &again), "nothing changed");
        assert_eq!(*read(r#"{"ts": 5, "ids": ["b"]}"#).unwrap(), mark(5, &["b"]));
        assert_eq!(read("{"), None);
        assert_eq!(*read(r#"{"ts": 5, "ids": ["b"]}"#).unwrap(), mark(5, &["b"]));
    }

    #[test]
    fn both_spellings_cover() {
        let m = mark(10, &["a", "foo:b"]);
        let at = Timestamp::from_secs;
        assert!(m.has_read(at(9), "foo", "z"));
        assert!(m.has_read(at(10), "foo", "a"));
        assert!(m.has_read(at(10), "foo", "b"));
        assert!(!m.has_read(at(10), "bar", "b"));
        assert!(m.has_read(at(11), "foo", "b"));
        assert!(!m.has_read(at(11), "foo", "a"));
    }
}
