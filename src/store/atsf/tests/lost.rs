//! Messages that other programs remove.

use super::*;
use crate::model::DeliveryState;
use crate::store::MessageReader as _;

fn sent(project: &Project) -> (AtsfStore, Book, String) {
    project.thread("t", &[message("a", "agent", "x")]);
    let (store, mut books) = project.opened();
    let prepared = prepare(&store, &draft(Some("t"), None, "mine")).unwrap();
    store.append_record(&prepared).unwrap();
    store.scan(false, &mut books).unwrap();
    assert!(store.remarks().is_empty());
    (store, books, prepared.id)
}

/// Overwrites the log as the application does from its memory, which lacks my message.
fn overwrite(project: &Project) {
    let lines = [message("a", "agent", "x"), message("b", "agent", "y")];
    std::fs::write(project.log("t"), lines.map(|l| l + "\n").concat()).unwrap();
}

#[test]
fn a_message_of_mine_stays_when_it_is_overwritten() {
    let project = Project::new();
    let (store, mut books, id) = sent(&project);
    overwrite(&project);
    follow(&store, &mut books, &project.log("t"));
    assert!(!books.vanished.contains(&id));
    let ask = |store: &AtsfStore, books: &Book| {
        let (at, to) = (books.one(&id).at, "agent");
        let one = SentMessage { at, id: &id, time: Timestamp::now(), to, has_others: false };
        store.find_receipts(&[one])
    };
    let told = |store: &AtsfStore, books: &Book| {
        let kept = books.one(&id);
        assert_eq!((&*kept.thread, kept.from_me, kept.at.source), ("t", true, KEPT));
        let record = store.read_record(&kept.at).unwrap();
        assert_eq!(
            (record.message.body.as_str(), record.message.id.as_str()),
            ("mine", id.as_str())
        );
        assert_eq!(record.message.subject.as_deref(), Some("title of t"));
        assert_eq!(verify::find_claim_fault(&record.claim.unwrap()), None);
        let remarks = store.remarks();
        assert!(remarks.len() == 1 && remarks[0].contains(&id), "{remarks:?}");
        // Its note says the same, and nothing proves that it is stored.
        assert_eq!((kept.has_note, record.note.as_ref()), (true, Some(&remarks[0])));
        let receipt = Receipt::of_fault(DeliveryState::Waiting, remarks[0].clone());
        assert_eq!(ask(store, books), [receipt]);
    };
    told(&store, &books);
    // The same holds after a restart, with or without the cache.
    let (again, mut fresh) = project.opened();
    told(&again, &fresh);
    assert_eq!(fresh.messages.len(), 3);
    let resumed = project.open();
    assert!(resumed.restore_cursors(&store.save_cursors()));
    resumed.scan(true, &mut books).unwrap();
    told(&resumed, &books);
    // A mount that writes nothing knows it too.
    let reading = AtsfStore::open(&project.spec()).unwrap();
    let mut seen = Book::default();
    reading.scan(true, &mut seen).unwrap();
    told(&reading, &seen);
    // The message is never appended again, and is not lost once it is back.
    let before = read(&project.log("t"));
    let text =
        String::from_utf8(again.format.sent_log.read(0, fresh.one(&id).at.len as usize).unwrap())
            .unwrap();
    let line = super::super::sent_log::parse_record(&text).unwrap().message.to_owned();
    let prepared = PreparedRecord {
        to: "agent".into(),
        id: id.clone(),
        thread: "t".into(),
        bytes: line.clone(),
        files: vec![],
    };
    again.append_record(&prepared).unwrap();
    assert_eq!(read(&project.log("t")), before);
    std::fs::write(project.log("t"), format!("{before}{line}\n")).unwrap();
    follow(&again, &mut fresh, &project.log("t"));
    assert_ne!(fresh.one(&id).at.source, KEPT);
    assert!(again.remarks().is_empty() && !fresh.one(&id).has_note);
    assert_eq!(ask(&again, &fresh), [Receipt::default()]);
}

#[test]
fn a_message_of_mine_that_no_scan_saw_stays() {
    let project = Project::new();
    project.thread("t", &[message("a", "agent", "x")]);
    let (store, mut books) = project.opened();
    let before = read(&project.log("t"));
    let prepared = prepare(&store, &draft(Some("t"), None, "mine")).unwrap();
    store.append_record(&prepared).unwrap();
    std::fs::write(project.log("t"), before).unwrap();
    store.scan(false, &mut books).unwrap();
    assert_eq!(books.one(&prepared.id).at.source, KEPT);
    assert_eq!(store.remarks().len(), 1);
    // A message that is still in its log is reported from there.
    let prepared = prepare(&store, &draft(Some("t"), None, "again")).unwrap();
    store.append_record(&prepared).unwrap();
    store.scan(false, &mut books).unwrap();
    assert_ne!(books.one(&prepared.id).at.source, KEPT);
}

#[test]
fn a_message_of_mine_stays_when_its_thread_is_removed() {
    let project = Project::new();
    let (store, mut books, id) = sent(&project);
    std::fs::remove_dir_all(thread_dir(&project.root(), "t")).unwrap();
    follow(&store, &mut books, &thread_dir(&project.root(), "t"));
    assert_eq!(ids(&books), [id.as_str()]);
    assert!(books.vanished.contains("a") && !books.vanished.contains(&id));
    assert_eq!(store.remarks().len(), 1);
}

#[test]
fn a_store_without_a_folder_of_its_own_keeps_nothing() {
    let project = Project::new();
    project.thread("t", &[]);
    let store = AtsfStore::open(&StoreSpec { state: None, ..project.spec() }).unwrap();
    let mut books = Book::default();
    store.scan(true, &mut books).unwrap();
    let prepared = prepare(&store, &draft(Some("t"), None, "x")).unwrap();
    store.append_record(&prepared).unwrap();
    store.append_record(&prepared).unwrap();
    assert_eq!(read(&project.log("t")).lines().count(), 1);
}
