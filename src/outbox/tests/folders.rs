//! Composing folders.

use super::*;

/// Puts a file into a composing folder.
pub(super) fn put_into(outbox: &Arc<Outbox>, folder: &str, name: &str, bytes: &[u8]) {
    let file = outbox.open_composed(folder, name, true, (true, false)).unwrap();
    outbox.write_composed(&file, 0, bytes).unwrap();
    outbox.close_composed(&file);
}

/// Writes the text of a composing folder and closes it.
pub(super) fn write_body(
    outbox: &Arc<Outbox>,
    folder: &str,
    text: &str,
) -> Result<(), OutboxError> {
    let id = outbox.compose(folder, Vec::new());
    let written = outbox.write(id, None, text.as_bytes());
    let closed = written.and_then(|()| outbox.flush_body(id, true));
    outbox.release_body(id);
    closed
}

pub(super) fn sent_folders(outbox: &Outbox) {
    outbox.settle_folders(Duration::from_secs(20));
    outbox.settle(Duration::from_secs(5));
}

#[test]
fn a_composing_folder_sends_its_files_also_those_that_come_after_the_text() {
    let bed = Bed::new();
    let outbox = Arc::new(bed.open());
    outbox.make_folder(BOB).unwrap();
    put_into(&outbox, BOB, "a b", b"1");
    let late = outbox.open_composed(BOB, "c", true, (true, false)).unwrap();
    write_body(&outbox, BOB, "see files\n").unwrap();
    outbox.write_composed(&late, 0, b"22").unwrap();
    outbox.close_composed(&late);
    assert_eq!(bed.memory.sent().len(), 0, "it waits until the folder is quiet");
    sent_folders(&outbox);
    assert_eq!(last(&bed).files, [b"1".to_vec(), b"22".to_vec()]);
    assert_eq!((bed.memory.sent().len(), bed.copies(), outbox.folders().len()), (1, 0, 0));
    assert_eq!(std::fs::read_dir(bed.path("state/composing")).unwrap().count(), 0);
}

#[test]
fn a_folder_outlives_the_process_and_is_sent_once() {
    let bed = Bed::new();
    let outbox = Arc::new(bed.open());
    outbox.make_folder(BOB).unwrap();
    put_into(&outbox, BOB, "a", b"1");
    put_into(&outbox, BOB, ".x", b"private");
    let half = outbox.open_composed(BOB, "half", true, (true, false)).unwrap();
    outbox.write_composed(&half, 0, b"hal").unwrap();
    write_body(&outbox, BOB, "see files\n").unwrap();
    outbox.folders.end();
    drop(outbox);
    // What was open is not whole, and is named; nothing is lost.
    let outbox = Arc::new(bed.open());
    outbox.resume();
    sent_folders(&outbox);
    let why = || outbox.text(&format!("{BOB}.error"), &Target::Outbox).unwrap();
    let said = |words: &str| String::from_utf8_lossy(&why()).contains(words);
    assert!(said("the file .x has the name of a private draft"), "{:?}", why());
    outbox.remove_composed(BOB, ".x").unwrap();
    write_body(&outbox, BOB, "see files\n").unwrap_err();
    assert!(said("the file half is not whole"), "{:?}", why());
    drop(outbox);
    let outbox = Arc::new(bed.open());
    let note = outbox.text(&format!("{BOB}.error"), &Target::Outbox).unwrap();
    let note = String::from_utf8_lossy(&note);
    assert!(note.contains("not whole"), "the note outlives it, too: {note}");
    put_into(&outbox, BOB, "half", b"whole");
    outbox.rename_composed(BOB, "body", "x.part").unwrap();
    outbox.rename_composed(BOB, "x.part", "body").unwrap();
    sent_folders(&outbox);
    assert_eq!(last(&bed).files, [b"1".to_vec(), b"whole".to_vec()]);
    assert_eq!((bed.memory.sent().len(), outbox.folders().len()), (1, 0));
    assert!(outbox.find(&format!("{BOB}.error")).is_none());
}

#[test]
fn a_folder_that_went_into_the_spool_before_a_kill_does_not_go_again() {
    let bed = Bed::new();
    let outbox = Arc::new(bed.open());
    outbox.make_folder(BOB).unwrap();
    put_into(&outbox, BOB, "a", b"1");
    write_body(&outbox, BOB, "once\n").unwrap();
    outbox.folders.end();
    let files = outbox.folders.attached((BOB, BODY), true).unwrap();
    let d = Open { files, composed: true, ..Open::new(BOB, Target::Outbox, b"once\n".to_vec()) };
    let parcels = outbox.prepare(&d, &[]).unwrap();
    let ids: Vec<&str> = parcels.iter().map(|p| p.message.id.as_str()).collect();
    outbox.folders.sent_as(BOB, &ids).unwrap();
    outbox.tools.spool.put(parcels.clone(), None).unwrap();
    // Killed between the spool and the removal of the folder.
    drop(outbox);
    let outbox = Arc::new(bed.open());
    outbox.resume();
    sent_folders(&outbox);
    assert_eq!((bed.memory.sent().len(), outbox.folders().len()), (1, 0));
}
