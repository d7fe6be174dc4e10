//! Retries of messages that wait in the spool.

use super::*;

#[test]
fn a_key_in_the_spool_is_known_to_the_next_process() {
    let bed = Bed::new();
    let outbox = bed.open();
    let draft = |text: &str| format!("Idempotency-Key: k\n\n{text}\n");
    bed.memory.folder.lock().refuses = Some(|| StoreError::Refused("bob refuses me".into()));
    send(&outbox, BOB, &draft("hi")).unwrap();
    outbox.close();
    let outbox = bed.open();
    send(&outbox, BOB, &draft("hi")).unwrap();
    assert_eq!(outbox.sender().pending_messages().len(), 1);
    let text = refused(&outbox, BOB, &draft("other"));
    assert!(text.contains("was used for another text"), "{text}");
    outbox.close();
    bed.memory.folder.lock().refuses = None;
    let outbox = bed.open();
    send(&outbox, BOB, &draft("hi")).unwrap();
    assert_eq!((outbox.sender().stuck_messages(), bed.memory.sent().len()), (vec![], 1));
}

#[test]
fn the_spool_of_an_earlier_version_has_no_keys() {
    let bed = Bed::new();
    let message = r#"{"to":"bob","id":"p1","thread":"t","bytes":"text"}"#;
    let line = format!("{{\"n\":1,\"put\":[{{\"store\":\"amp\",\"message\":{message}}}]}}\n");
    std::fs::write(bed.path("state/spool"), line).unwrap();
    let pending = Spool::open(&bed.path("state/spool"), Durability::None).unwrap().pending();
    assert_eq!(pending, [(1, vec![spool::tests::parcel("amp", "p1", "t")])]);
}
