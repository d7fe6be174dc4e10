use super::*;
use crate::model::DeliveryState;

/// Returns the state that is proven for bob of the only message, without another scan.
fn state(store: &AmqStore, at: Location) -> Option<DeliveryState> {
    let sent =
        SentMessage { at, id: "m", time: Timestamp::from_millis(0), to: "bob", has_others: false };
    store.find_receipts(&[sent]).remove(0).state
}

#[test]
fn a_receipt_says_what_the_mailbox_holds_now() {
    use DeliveryState::{Delivered, Read};
    let root = Root::new(&["alice", "bob"]);
    let text = file(&json!({}), "hi\n");
    // A writer may deliver the message under another name than that of its own copy.
    for name in ["m.md", "other.md"] {
        let [new, cur] =
            ["new", "cur"].map(|leaf| root.path(&format!("agents/bob/inbox/{leaf}/{name}")));
        root.put("agents/alice/outbox/sent/m.md", &text);
        std::fs::write(&new, &text).unwrap();
        let alice = root.store("alice");
        let at = Book::scanned(&alice).one("m").at;
        assert_eq!(state(&alice, at), Some(Delivered));
        std::fs::rename(&new, &cur).unwrap();
        assert_eq!(state(&alice, at), Some(Read));
        std::fs::rename(&cur, &new).unwrap();
        assert_eq!(state(&alice, at), Some(Delivered));
        std::fs::write(&new, text.clone() + "forged\n").unwrap();
        assert_eq!(state(&alice, at), None);
        std::fs::write(&new, &text).unwrap();
        assert_eq!(state(&alice, at), Some(Delivered));
        std::fs::remove_file(&new).unwrap();
        assert_eq!(state(&alice, at), None);
    }
}

#[test]
fn a_file_that_the_index_does_not_know_is_a_receipt() {
    let root = Root::new(&["alice", "bob"]);
    let text = file(&json!({}), "hi\n");
    root.put("agents/alice/outbox/sent/m.md", &text);
    let alice = root.store("alice");
    let at = Book::scanned(&alice).one("m").at;
    assert_eq!(state(&alice, at), None);
    root.put("agents/bob/inbox/new/m.md", &text);
    assert_eq!(state(&alice, at), Some(DeliveryState::Delivered));
}
