//! The states of my messages.

use super::*;
use crate::view::receipts::{SentSelection, collect_receipts};

#[test]
fn a_key_names_no_message_that_is_older_than_a_week() {
    let now = Timestamp::now().secs();
    let sent = |id: &str, days: i64| {
        let mut sent = letter(id, now - days * 86_400, &[]);
        sent.message.from = Some("me".into());
        sent.message.to = vec!["bob@x".into()];
        Letter { from_me: true, key: Some("k".into()), ..sent }
    };
    let bed = bed(vec![store(vec![sent("old", 8), sent("new", 6)])]);
    let named = |selection| {
        let found = collect_receipts(&bed.tree, &selection);
        found.iter().map(|one| one.message_id.starts_with("new@")).collect::<Vec<_>>()
    };
    assert_eq!(named(SentSelection::All), [true, false]);
    assert_eq!(named(SentSelection::Key("k".into())), [true]);
}
