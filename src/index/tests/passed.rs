//! Tests of messages that count as read only because a read position passed them.

use super::{append, find, inbox, open};
use crate::index::Index;
use crate::model::MarkOrigin;

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

/// A message that another program's position covers since a later move was shown by that program, so it is read (S36).
#[test]
fn a_message_that_a_position_covers_later_is_listed() {
    let dir = tempfile::tempdir().unwrap();
    append(dir.path(), "foo", &[("a", 5), ("b", 20), ("c", 40)]);
    let seen = dir.path().join("store/.seen-me");
    std::fs::write(&seen, r#"{"ts": 9, "ids": []}"#).unwrap();
    let index = open(dir.path());
    std::fs::write(&seen, r#"{"ts": 30, "ids": []}"#).unwrap();
    index.refresh_store(0, true).unwrap();
    assert_eq!(inbox(&index), [find(&index, "foo", "c")]);
    let mut ids: Vec<String> = index.contiguous_watermark(0).unwrap().ids.into_iter().collect();
    ids.sort();
    assert_eq!(ids, ["b", "foo:b"]);
    // My other machines get its mark, and not the one of the message that came before it.
    let (marks, _) = index.read_marks_since(0, 0).unwrap();
    let told = marks.into_iter().filter(|mark| mark.origin == MarkOrigin::Here);
    assert_eq!(told.map(|mark| mark.id).collect::<Vec<_>>(), ["b"]);
}

/// A position names a message by its id alone, or with its sender (S36).
#[test]
fn a_position_names_a_message_in_either_spelling() {
    for (spelled, expected) in [("b", "foo:b zed:b"), ("foo:b", "foo:b"), ("zed:x", "")] {
        let dir = tempfile::tempdir().unwrap();
        append(dir.path(), "foo", &[("a", 5), ("b", 6)]);
        append(dir.path(), "zed", &[("b", 7)]);
        let position = format!(r#"{{"ts": 9, "ids": ["{spelled}"]}}"#);
        std::fs::write(dir.path().join("store/.seen-me"), position).unwrap();
        let mark = open(dir.path()).contiguous_watermark(0);
        let ids = mark.map(|mark| mark.ids).unwrap_or_default();
        let mut full: Vec<String> = ids.into_iter().filter(|id| id.contains(':')).collect();
        full.sort();
        assert_eq!(full.join(" "), expected, "{spelled}");
    }
}
