//! Differences between kinds of stores: headers, whole messages, labels, threads without messages, locks.

use super::folders::{put_into, sent_folders, write_body};
use super::*;
use crate::store::EmptyThread;

const DAN: &str = "dan@acme.crabmail.ai";

fn bed(traits: Folder) -> Bed {
    Bed { memory: memory(traits), ..Bed::new() }
}

#[test]
fn a_header_of_one_store_goes_to_that_store_and_no_other() {
    let mut bed = bed(Folder { headers: &["Task"], ..Folder::default() });
    let outbox = bed.open();
    send(&outbox, BOB, "Task: T1\n\nhi\n").unwrap();
    assert_eq!(last(&bed).task.as_deref(), Some("T1"));
    // A bare name would be an alias of the other store, which has no such header.
    send(&outbox, "dan", "Task: T2\n\nhi\n").unwrap();
    assert_eq!((last(&bed).task.as_deref(), bed.samp_log().as_str()), (Some("T2"), ""));
    let e = send(&outbox, "carol", "Task: T3\nVia: samp\n\nhi\n").unwrap_err();
    assert!(matches!(meaning(&e), OutboxError::Invalid(_)), "{e}");
    assert!(e.to_string().contains("in the store samp have no such header, only those in amp"));
    drop(outbox);
    bed.memory.folder.lock().headers = &[];
    bed.memory = bed.memory.again();
    let outbox = bed.open();
    send(&outbox, "carol", "Task: T3\n\nhi\n").unwrap();
    assert!(bed.samp_log().contains("Task: T3"), "elsewhere it is text");
}

#[test]
fn a_whole_message_says_itself_whom_it_is_for() {
    let bed = bed(Folder { whole: true, ..Folder::default() });
    let outbox = bed.open();
    let text = format!("{{\n  \"to\": \"{DAN}\"\n}}");
    send(&outbox, "carol", &text).unwrap();
    assert_eq!((last(&bed).message.to, last(&bed).message.body), (vec![DAN.to_owned()], text));
    // The text comes line by line, under a name that nobody has.
    let id = outbox.start_draft("x.json", DraftTarget::Outbox, true).unwrap();
    for line in ["{\n", "\"to\":\n", &format!("\"{DAN}\"\n"), "}\n"] {
        outbox.write(id, None, line.as_bytes()).unwrap();
    }
    outbox.flush(id, true).unwrap();
    assert!(outbox.release(id));
    outbox.sender().wait_until_appended(Duration::from_secs(5));
    assert_eq!((bed.memory.sent().len(), bed.samp_log().as_str()), (2, ""));
    // Headers beat the text; another store takes no such text whole; a text in no store's form is an ordinary text.
    send(&outbox, "x", &format!("To: {BOB}\n\n{{\"to\": \"{DAN}\"}}\n")).unwrap();
    assert_eq!(last(&bed).message.to, [BOB]);
    send(&outbox, "carol", &format!("Via: samp\n\n{{\"to\": \"{DAN}\"}}\n")).unwrap();
    assert_eq!((bed.samp_log().lines().count(), bed.memory.sent().len()), (1, 3));
    for text in ["{\"a\": 1}\n", "{ hello\n", "{\n", "{\"to\": 5}\n"] {
        send(&outbox, "carol", text).unwrap();
    }
    assert_eq!((bed.samp_log().lines().count(), bed.memory.sent().len()), (5, 3));
}

#[test]
fn an_answer_that_is_a_whole_message_goes_to_whom_it_says() {
    let bed = bed(Folder { whole: true, ..Folder::default() });
    bed.memory.receive(BOB, &[ME], "m1", 10, None);
    let outbox = bed.open();
    let target = || DraftTarget::Thread { store: "amp".into(), id: "m1".into() };
    send_as(&outbox, "x", target(), &format!("{{\"to\": \"{DAN}\"}}\n")).unwrap();
    assert_eq!(last(&bed).message.to, [DAN]);
    send_as(&outbox, "x", target(), "{\"to\": 1}\n").unwrap();
    assert_eq!(last(&bed).message.to, [BOB]);
}

#[test]
fn a_store_that_is_meant_only_by_name_is_named() {
    let bed = bed(Folder { only_via: true, ..Folder::default() });
    let outbox = bed.open();
    // The store knows `agent`, and is still not chosen.
    send(&outbox, "agent", "hi\n").unwrap();
    assert!(bed.samp_log().contains("\"agent\""));
    send(&outbox, "agent", "Via: amp\nSubject: new\n\nhi\n").unwrap();
    assert_eq!(last(&bed).message.to, ["agent"]);
    // The text of a composing folder carries such lines as well.
    outbox.composer().create_folder("agent").unwrap();
    put_into(&outbox, "agent", "a.png", b"1");
    write_body(&outbox, "agent", "Via: amp\nSubject: composed\n\nsee file\n").unwrap();
    sent_folders(&outbox);
    let letter = last(&bed);
    assert_eq!((letter.message.subject.as_deref(), letter.files.len()), (Some("composed"), 1));
}

#[test]
fn a_store_that_is_meant_only_by_name_has_those_who_are_in_its_messages() {
    let bed = bed(Folder { only_via: true, ..Folder::default() });
    bed.memory.receive("agent", &[ME], "m1", 10, None);
    let outbox = bed.open();
    send(&outbox, "agent", "hi\n").unwrap();
    assert_eq!((last(&bed).message.to, bed.samp_log()), (vec!["agent".to_owned()], String::new()));
    // Another name is registered there as well, but has no message.
    send(&outbox, "carol", "hi\n").unwrap();
    assert!(bed.samp_log().contains("\"carol\""));
}

#[test]
fn an_address_of_nobody_else_is_told_with_the_line_that_names_the_store() {
    let bed = bed(Folder { only_via: true, ..Folder::default() });
    let outbox = bed.open();
    let long = "x".repeat(65);
    let e = send(&outbox, "x", &format!("To: {long}\n\nhi\n")).unwrap_err();
    assert!(
        matches!(meaning(&e), OutboxError::Unreachable(t) if t.ends_with("\n  Via: amp")),
        "{e}"
    );
}

/// Returns a bed with messages to me in threads of these ids.
fn in_threads(ids: &[&str]) -> Bed {
    let bed = bed(Folder { origins: true, ..Folder::default() });
    for (n, id) in ids.iter().enumerate() {
        bed.memory.receive(BOB, &[ME], &format!("m{n}"), 10 + n as i64, None);
        bed.memory.folder.lock().change(n as u32, |l| l.message.thread = Some((*id).to_owned()));
    }
    bed
}

#[test]
fn an_answer_goes_to_the_thread_of_its_folder_and_a_header_means_the_one_without_label() {
    let bed = in_threads(&["t", "t\0tree", "u\0tree", "v\0tree", "v\0other"]);
    let outbox = bed.open();
    let thread = || last(&bed).message.thread.unwrap_or_default();
    let labelled = || DraftTarget::Thread { store: "amp".into(), id: "t\0tree".into() };
    send_as(&outbox, "x", labelled(), "one\n").unwrap();
    assert_eq!(thread(), "t\0tree");
    send_as(&outbox, "x", labelled(), "Thread: t\n\nthe same\n").unwrap();
    assert_eq!(thread(), "t\0tree");
    let reply = DraftTarget::Reply { store: "amp".into(), from: BOB.into(), id: "m1".into() };
    send_as(&outbox, "x", reply, "two\n").unwrap();
    assert_eq!(thread(), "t\0tree");
    for (said, meant) in [("t", "t"), ("u", "u\0tree"), ("v", "v"), ("new", "new")] {
        send(&outbox, BOB, &format!("Thread: {said}\n\nthree\n")).unwrap();
        assert_eq!(thread(), meant);
    }
    // In another store the label means nothing.
    send_as(&outbox, "x", labelled(), "To: carol\nVia: samp\n\nelsewhere\n").unwrap();
    assert!(bed.samp_log().contains("\"thread\": \"t\""), "{}", bed.samp_log());
}

fn empty(id: &str) -> EmptyThread {
    EmptyThread { id: id.into(), title: None, time: Timestamp::from_secs(5) }
}

#[test]
fn a_thread_without_messages_can_be_begun() {
    let mut bed = bed(Folder {
        origins: true,
        empty: vec![empty("bare"), empty("bare\0tree")],
        ..Folder::default()
    });
    let outbox = bed.open();
    let target = |id: &str| DraftTarget::Thread { store: "amp".into(), id: id.into() };
    let e = send_as(&outbox, "x", target("bare"), "whom?\n").unwrap_err();
    assert!(matches!(meaning(&e), OutboxError::NoRecipient(_)), "{e}");
    send_as(&outbox, "x", target("bare\0tree"), &format!("To: {BOB}\n\nyou\n")).unwrap();
    let sent = last(&bed).message;
    assert_eq!((sent.to, sent.thread.as_deref()), (vec![BOB.to_owned()], Some("bare\0tree")));
    bed.memory.folder.lock().whom = Some(DAN);
    bed.memory = bed.memory.again();
    let outbox = bed.open();
    send_as(&outbox, "x", target("bare"), "whom it concerns\n").unwrap();
    let sent = last(&bed).message;
    assert_eq!((sent.to, sent.thread.as_deref()), (vec![DAN.to_owned()], Some("bare")));
    assert_eq!(sent.in_reply_to, None);
}

fn bodies(bed: &Bed) -> Vec<String> {
    bed.memory.sent().into_iter().map(|l| l.message.body).collect()
}

#[test]
fn a_locked_thread_delays_nobody_else_and_keeps_its_order() {
    let bed = in_threads(&["t", "u"]);
    let outbox = bed.open();
    bed.memory.folder.lock().locked = vec!["t".into()];
    let to = |thread: &str, text: &str| {
        send(&outbox, BOB, &format!("Thread: {thread}\n\n{text}\n")).unwrap();
    };
    to("t", "first");
    to("t", "second");
    to("u", "other");
    assert_eq!(bodies(&bed), ["other"]);
    let stuck = outbox.sender().stuck_messages();
    assert_eq!(stuck.len(), 2);
    assert!(stuck.iter().all(|(to, why)| to == BOB && why == "thread t is locked"), "{stuck:?}");
    let begin = Instant::now();
    bed.memory.folder.lock().locked.clear();
    wait_until("it is tried again", || outbox.sender().stuck_messages().is_empty());
    assert!(begin.elapsed() < Duration::from_secs(2), "in a moment, and not when others are");
    assert_eq!(bodies(&bed), ["other", "first", "second"]);
}

#[test]
fn what_waits_for_a_locked_thread_is_sent_by_the_next_process() {
    let bed = in_threads(&["t"]);
    let outbox = bed.open();
    bed.memory.folder.lock().locked = vec!["t".into()];
    send(&outbox, BOB, "Thread: t\n\nlate\n").unwrap();
    outbox.close();
    assert_eq!(bodies(&bed), [""; 0]);
    bed.memory.folder.lock().locked.clear();
    let outbox = bed.open();
    assert_eq!((bodies(&bed), outbox.sender().stuck_messages()), (vec!["late".to_owned()], vec![]));
}

/// An answer is given while the file of the answered message is being rewritten.
#[test]
fn an_answer_waits_for_the_details_of_a_message_that_is_being_rewritten() {
    let bed = Bed::new();
    bed.memory.receive(BOB, &[ME], "m1", 10, None);
    let outbox = bed.open();
    {
        let mut folder = bed.memory.folder.lock();
        folder.unreadable = [(0, (|| StoreError::Moved) as fn() -> StoreError)].into();
        folder.unfinished = 5;
    }
    let reply = DraftTarget::Reply { store: "amp".into(), from: BOB.into(), id: "m1".into() };
    send_as(&outbox, "m.reply", reply, "yes\n").unwrap();
    assert_eq!(last(&bed).parent.as_deref(), Some("about m1"));
}
