//! The view of a draft during its release.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use super::{BOB, Bed, DraftTarget, Outbox, of};
use crate::outbox::CLOSING;

/// The kernel releases a draft some time after its last close returned, while the process that closed it goes on.
#[test]
fn a_draft_is_found_at_every_moment_of_its_release() {
    let bed = Bed::new();
    let outbox = bed.open();
    for n in 0..3000 {
        let (from, to) = (of(&format!("bob{n}.tmp")), of(&format!("bob{n}.bak")));
        let id = outbox.start_draft(&from.0, DraftTarget::Outbox, true).unwrap();
        outbox.write(id, Some(0), b"hello\n").unwrap();
        outbox.flush(id, true).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| outbox.release(id));
            assert!(outbox.list_entries().iter().any(|listed| listed.name == from.0), "{n}");
            assert!(outbox.find_entry(&from.0).is_some(), "{n}");
            outbox.rename_draft(&from, &to, true).unwrap();
        });
        assert!(outbox.find_entry(&to.0).is_some() && outbox.find_entry(&from.0).is_none(), "{n}");
        outbox.remove(&to.0, &DraftTarget::Outbox).unwrap();
    }
}

#[test]
fn a_draft_that_is_removed_while_it_is_open_is_sent_by_no_later_process() {
    let bed = Bed::new();
    let outbox = bed.open();
    let id = outbox.start_draft(BOB, DraftTarget::Outbox, true).unwrap();
    outbox.write(id, Some(0), b"not yet\n").unwrap();
    outbox.flush(id, true).unwrap();
    outbox.remove(BOB, &DraftTarget::Outbox).unwrap();
    bed.open().sender().wait_until_appended(Duration::from_secs(5));
    assert!(bed.memory.sent().is_empty());
}

/// A child has written the text and closed it earlier. The close of the opener brings no text.
#[test]
fn a_listing_waits_for_the_release_after_a_close_without_new_text() {
    let bed = Bed::new();
    let outbox = bed.open();
    let id = outbox.start_draft(BOB, DraftTarget::Outbox, true).unwrap();
    outbox.write(id, Some(0), b"hello\n").unwrap();
    outbox.flush(id, false).unwrap();
    std::thread::sleep(CLOSING);
    outbox.flush(id, true).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(CLOSING / 4);
            outbox.release(id);
        });
        outbox.sender().wait_until_appended(Duration::from_secs(5));
        assert_eq!(bed.memory.sent().len(), 1);
    });
}

/// Has each question to the store wait for the time of the newest entry of `outbox/`. Returns the number of questions.
fn look_during_questions(bed: &Bed, outbox: &Arc<Outbox>) -> Arc<AtomicUsize> {
    let (asked, outbox) = (Arc::new(AtomicUsize::new(0)), Arc::downgrade(outbox));
    let count = Arc::clone(&asked);
    let hook = move || {
        let Some(outbox) = outbox.upgrade() else { return };
        let (tell, told) = mpsc::channel();
        std::thread::spawn(move || tell.send(outbox.newest_time()));
        told.recv_timeout(Duration::from_secs(10)).expect("the lock of the drafts is free");
        count.fetch_add(1, Ordering::Relaxed);
    };
    assert!(bed.memory.on_ask.set(Box::new(hook)).is_ok());
    asked
}

/// A store may wait for its disk when it is asked about the name of a refused answer. `outbox/` can be looked at
/// meanwhile.
#[test]
fn nobody_waits_for_a_store_that_is_asked_about_the_name_of_an_answer() {
    let bed = Bed::new();
    let outbox = bed.open();
    let asked = look_during_questions(&bed, &outbox);
    let answer = || DraftTarget::Thread { store: "amp".into(), id: "t".into() };
    let id = outbox.start_draft("zed", answer(), true).unwrap();
    let _ = outbox.write(id, Some(0), b"\xff\n");
    outbox.release(id);
    assert!(outbox.find_entry("zed").is_some() && outbox.find_entry("zed.error").is_some());
    assert!(asked.swap(0, Ordering::Relaxed) > 0);

    // Somebody is known by the name of an answer.
    let kept = outbox.saved_drafts.lock().get("zed").cloned().unwrap();
    outbox
        .saved_drafts
        .lock()
        .save_at("agent", crate::outbox::SavedDraft { name: "agent".into(), ..kept });
    let error = outbox.start_draft("agent", DraftTarget::Outbox, true).unwrap_err().to_string();
    assert!(error.contains("is now in outbox/agent.2"), "{error}");
    assert!(outbox.find_entry("agent").is_none() && outbox.find_entry("agent.2").is_some());
    assert!(asked.load(Ordering::Relaxed) > 0);
}
