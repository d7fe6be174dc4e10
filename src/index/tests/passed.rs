//! Tests of messages that count as read only because a read position passed them.

use super::{append, find, inbox, open};
use crate::index::Index;

/// A message that a position only passed is read and not listed, in this process and in later ones, until it is marked
/// (S1211).
#[test]
fn a_message_that_a_position_only_passed_is_not_listed() {
    let dir = tempfile::tempdir().unwrap();
    append(dir.path(), "foo", &[("a", 5), ("b", 6), ("c", 7), ("d", 20)]);
    let position = r#"{"ts": 9, "ids": ["foo:b"]}"#;
    std::fs::write(dir.path().join("store/.seen-me"), position).unwrap();
    let listed = |index: &Index| {
        let mark = index.contiguous_watermark(0).unwrap();
        let mut ids: Vec<String> = mark.ids.into_iter().filter(|id| !id.contains(':')).collect();
        ids.sort();
        ids.concat()
    };
    let mut index = open(dir.path());
    assert_eq!(inbox(&index), [find(&index, "foo", "d")]);
    assert_eq!(listed(&index), "b");
    index.mark_message(find(&index, "foo", "d"), true, true).unwrap();
    for cache in [true, false] {
        index.close();
        if !cache {
            std::fs::remove_file(dir.path().join("snapshot")).unwrap();
        }
        index = open(dir.path());
        assert_eq!((inbox(&index).len(), listed(&index)), (0, "bd".to_owned()), "cache: {cache}");
    }
    index.mark_message(find(&index, "foo", "a"), true, true).unwrap();
    assert_eq!(listed(&index), "abd");
    index.close();
    std::fs::remove_file(dir.path().join("snapshot")).unwrap();
    assert_eq!(listed(&open(dir.path())), "abd");
}
