//! Composing folders.

use super::*;

/// Puts a file into a composing folder.
pub(super) fn put_into(outbox: &Arc<Outbox>, folder: &str, name: &str, bytes: &[u8]) {
    let file = outbox.composer().open_folder_file(folder, name, true, (true, false)).unwrap();
    outbox.composer().write_folder_file(&file, 0, bytes).unwrap();
    outbox.composer().close_folder_file(&file);
}

/// Writes the text of a composing folder and closes it.
pub(super) fn write_body(
    outbox: &Arc<Outbox>,
    folder: &str,
    text: &str,
) -> Result<(), OutboxError> {
    let id = outbox.composer().start_body(folder, Vec::new());
    let written = outbox.write(id, None, text.as_bytes());
    let closed = written.and_then(|()| outbox.composer().flush_body(id, true));
    outbox.composer().release_body(id);
    closed
}

pub(super) fn sent_folders(outbox: &Arc<Outbox>) {
    outbox.composer().wait_for_folders(Duration::from_secs(20));
    outbox.sender().wait_until_appended(Duration::from_secs(5));
}

#[test]
fn a_composing_folder_sends_its_files_also_those_that_come_after_the_text() {
    let bed = Bed::new();
    let outbox = bed.open();
    outbox.composer().create_folder(BOB).unwrap();
    put_into(&outbox, BOB, "a b", b"1");
    let late = outbox.composer().open_folder_file(BOB, "c", true, (true, false)).unwrap();
    write_body(&outbox, BOB, "see files\n").unwrap();
    outbox.composer().write_folder_file(&late, 0, b"22").unwrap();
    outbox.composer().close_folder_file(&late);
    assert_eq!(bed.memory.sent().len(), 0, "it waits until the folder is quiet");
    sent_folders(&outbox);
    assert_eq!(last(&bed).files, [b"1".to_vec(), b"22".to_vec()]);
    assert_eq!(
        (bed.memory.sent().len(), bed.copies(), outbox.composer().folder_names().len()),
        (1, 0, 0)
    );
    assert_eq!(std::fs::read_dir(bed.path("state/composing")).unwrap().count(), 0);
}

/// Without its text, the files would go alone, and the text would be lost.
#[test]
fn a_folder_whose_text_cannot_be_read_stays() {
    let bed = Bed::new();
    let outbox = bed.open();
    outbox.composer().create_folder(BOB).unwrap();
    put_into(&outbox, BOB, "a", b"1");
    write_body(&outbox, BOB, "see files\n").unwrap();
    let folder = std::fs::read_dir(bed.path("state/composing")).unwrap().next().unwrap().unwrap();
    let body = folder.path().join("files/body");
    let kept = folder.path().join("kept");
    std::fs::rename(&body, &kept).unwrap();
    std::fs::create_dir(&body).unwrap();
    sent_folders(&outbox);
    assert_eq!(bed.memory.sent().len(), 0);
    let note = outbox.read_text(&format!("{BOB}.error"), &DraftTarget::Outbox).unwrap();
    let note = String::from_utf8_lossy(&note);
    assert!(note.contains("a file of the message cannot be read"), "{note}");
    assert!(outbox.composer().folder_body(BOB).is_err(), "an editor gets no empty text");
    std::fs::remove_dir(&body).unwrap();
    std::fs::rename(&kept, &body).unwrap();
    outbox.composer().rename_folder_file(BOB, "a", "b").unwrap();
    sent_folders(&outbox);
    assert_eq!(last(&bed).files, [b"1".to_vec()]);
    assert_eq!(outbox.composer().folder_names().len(), 0);
}

#[test]
fn a_folder_outlives_the_process_and_is_sent_once() {
    let bed = Bed::new();
    let outbox = bed.open();
    outbox.composer().create_folder(BOB).unwrap();
    put_into(&outbox, BOB, "a", b"1");
    put_into(&outbox, BOB, ".x", b"private");
    let half = outbox.composer().open_folder_file(BOB, "half", true, (true, false)).unwrap();
    outbox.composer().write_folder_file(&half, 0, b"hal").unwrap();
    write_body(&outbox, BOB, "see files\n").unwrap();
    outbox.folders.stop_waiting();
    drop(outbox);
    // The file that was open is not whole, and is named; nothing is lost.
    let outbox = bed.open();
    outbox.composer().resume_folders();
    sent_folders(&outbox);
    let why = || outbox.read_text(&format!("{BOB}.error"), &DraftTarget::Outbox).unwrap();
    let said = |words: &str| String::from_utf8_lossy(&why()).contains(words);
    assert!(said("the file .x has the name of a private draft"), "{:?}", why());
    outbox.composer().remove_folder_file(BOB, ".x").unwrap();
    write_body(&outbox, BOB, "see files\n").unwrap_err();
    assert!(said("the file half is not whole"), "{:?}", why());
    drop(outbox);
    let outbox = bed.open();
    let note = outbox.read_text(&format!("{BOB}.error"), &DraftTarget::Outbox).unwrap();
    let note = String::from_utf8_lossy(&note);
    assert!(note.contains("not whole"), "the note outlives it, too: {note}");
    put_into(&outbox, BOB, "half", b"whole");
    outbox.composer().rename_folder_file(BOB, "body", "x.part").unwrap();
    outbox.composer().rename_folder_file(BOB, "x.part", "body").unwrap();
    sent_folders(&outbox);
    assert_eq!(last(&bed).files, [b"1".to_vec(), b"whole".to_vec()]);
    assert_eq!((bed.memory.sent().len(), outbox.composer().folder_names().len()), (1, 0));
    assert!(outbox.find_entry(&format!("{BOB}.error")).is_none());
}

#[test]
fn a_folder_that_went_into_the_spool_before_a_kill_does_not_go_again() {
    let bed = Bed::new();
    let outbox = bed.open();
    outbox.composer().create_folder(BOB).unwrap();
    put_into(&outbox, BOB, "a", b"1");
    write_body(&outbox, BOB, "once\n").unwrap();
    outbox.folders.stop_waiting();
    let files = outbox.folders.list_attachments((BOB, BODY), true).unwrap();
    let d = OpenDraft {
        files,
        composed: true,
        ..OpenDraft::new(BOB, DraftTarget::Outbox, b"once\n".to_vec())
    };
    let parcels = outbox.packer.prepare_parcels(&d, &[]).unwrap();
    let ids: Vec<&str> = parcels.iter().map(|p| p.message.id.as_str()).collect();
    outbox.folders.note_sent_ids(BOB, &ids).unwrap();
    outbox.context.spool.insert(parcels.clone(), None).unwrap();
    // The process is killed between the spool and the removal of the folder.
    drop(outbox);
    let outbox = bed.open();
    outbox.composer().resume_folders();
    sent_folders(&outbox);
    assert_eq!((bed.memory.sent().len(), outbox.composer().folder_names().len()), (1, 0));
}
