//! New mail: its bytes, and its way.

use super::*;
use crate::model::{Draft, Message, plain_id};
use crate::store::MessageReader as _;
use crate::store::{AddressFit, PrepareContext, PreparedRecord};
use std::os::unix::fs::PermissionsExt as _;

const NOW: Timestamp = Timestamp::from_millis(1_777_052_523_250);

fn draft(to: &[&str], body: &str) -> Draft {
    let to = to.iter().map(|to| (*to).to_owned()).collect();
    Draft { to, body: body.into(), ..Draft::default() }
}

fn prepare(
    store: &MaildirStore,
    draft: &Draft,
    parent: Option<&Message>,
) -> Result<PreparedRecord, StoreError> {
    let key = vector_key();
    let with = PrepareContext { parent, ..PrepareContext::new(NOW, &key) };
    Ok(store.prepare_records(draft, &with)?.remove(0))
}

fn with_bob(place: &Place) -> MaildirStore {
    place.make("bob");
    let local = [("Bob@Localhost".to_owned(), place.path("bob"))].into();
    place.store_with(MaildirSettings { local, ..MaildirSettings::default() })
}

/// Returns a store whose program is this script.
fn with_program(place: &Place, script: &str) -> MaildirStore {
    let program = place.path("sendmail");
    std::fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    place.store_with(MaildirSettings { sendmail: Some(program), ..MaildirSettings::default() })
}

/// Appends until the program has ended.
fn append(store: &MaildirStore, prepared: &PreparedRecord) -> Result<(), StoreError> {
    for _ in 0..100 {
        match store.append_record(prepared) {
            Err(StoreError::Busy(why)) if why.contains("finished") => {}
            done => return done,
        }
    }
    panic!("the program did not end");
}

#[test]
fn local_mail_is_delivered_once() {
    let place = Place::new();
    let store = with_bob(&place);
    let draft = Draft {
        subject: Some("schéma change".into()),
        ..draft(&["BOB@localhost"], "réview\nFrom here")
    };
    let prepared = prepare(&store, &draft, None).unwrap();
    assert_eq!(prepared.to, "bob@localhost");
    store.append_record(&prepared).unwrap();
    let names = place.names("bob/new");
    let chance = prepared.id.split('@').next().unwrap();
    assert_eq!(names, [format!("1777052523.M250000R{chance}.example.org")]);
    let path = place.path("bob/new").join(&names[0]);
    assert_eq!(std::fs::read_to_string(&path).unwrap(), prepared.bytes);
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(place.names("box/.Sent/cur"), [format!("{}:2,S", names[0])]);
    // Bob reads it, and msgfs is killed before it knows of its success.
    std::fs::rename(&path, place.path("bob/cur").join(format!("{}:2,RS", names[0]))).unwrap();
    store.append_record(&prepared).unwrap();
    assert!(place.names("bob/new").is_empty() && place.names("bob/tmp").is_empty());
    assert_eq!((place.names("bob/cur").len(), place.names("box/.Sent/cur").len()), (1, 1));

    let read = parse(&prepared.bytes);
    assert!(read.is_signed);
    assert_eq!(read.message.body, draft.body);
    assert_eq!(read.message.subject, draft.subject);
    assert_eq!((read.message.time, read.message.thread.as_deref()), (NOW, Some(&*prepared.thread)));
    let book = Book::scanned(&store);
    assert_eq!(
        (&*only(&book).id, only(&book).from_me, only(&book).to_me),
        (&*prepared.id, true, false)
    );
}

/// A delivered mail is not delivered again, also if somebody moved my copy of it.
#[test]
fn a_delivered_mail_needs_no_copy() {
    let place = Place::new();
    let store = with_bob(&place);
    let prepared = prepare(&store, &draft(&["bob@localhost"], "x"), None).unwrap();
    store.append_record(&prepared).unwrap();
    let name = place.names("bob/new").remove(0);
    std::fs::rename(place.path("bob/new").join(&name), place.path("bob/cur").join(name + ":2,S"))
        .unwrap();
    let copy = place.names("box/.Sent/cur").remove(0);
    place.rename(&format!(".Sent/cur/{copy}"), &format!("cur/{copy}"));
    // msgfs was killed before it knew of its success.
    with_bob(&place).append_record(&prepared).unwrap();
    assert_eq!((place.names("bob/new").len(), place.names("bob/cur").len()), (0, 1));
}

#[test]
fn a_kill_after_the_copy_leaves_the_rest_to_the_next_process() {
    let place = Place::new();
    let store = with_bob(&place);
    let prepared = prepare(&store, &draft(&["bob@localhost"], "x"), None).unwrap();
    std::fs::rename(place.path("bob/new"), place.path("bob/away")).unwrap();
    assert!(store.append_record(&prepared).is_err());
    let name = place.names("box/.Sent/cur").remove(0);
    std::fs::rename(place.path("bob/away"), place.path("bob/new")).unwrap();
    let next = with_bob(&place);
    next.append_record(&prepared).unwrap();
    next.append_record(&prepared).unwrap();
    assert_eq!(place.names("bob/new"), [name.strip_suffix(":2,S").unwrap()]);
    assert_eq!(place.names("box/.Sent/cur").len(), 1);
}

#[test]
fn an_answer_continues_the_thread_and_marks_the_mail() {
    let place = Place::new();
    place.put("cur/1.h:2,FS", &mail("m@x", "References: <a@x> <b@x>\nSubject: Plan\n", "x"));
    let store = with_bob(&place);
    let mut book = Book::scanned(&store);
    let parent = store.read_record(&only(&book).at).unwrap().message;
    let answer =
        Draft { is_reply: true, in_reply_to: Some("m@x".into()), ..draft(&["bob@localhost"], "y") };
    let prepared = prepare(&store, &answer, Some(&parent)).unwrap();
    let read = parse(&prepared.bytes);
    assert_eq!(read.references, ["a@x", "b@x", "m@x"]);
    assert_eq!(read.message.in_reply_to.as_deref(), Some("m@x"));
    assert_eq!(read.message.subject.as_deref(), Some("Re: Plan"));
    assert_eq!(read.message.thread.as_deref(), Some("a@x"));
    assert!(!prepared.bytes.contains("X-Msgfs-Thread"));
    store.append_record(&prepared).unwrap();
    assert_eq!(place.names("box/cur"), ["1.h:2,FRS"]);
    book.scan(&store, false);
    assert_eq!(book.messages.len(), 2);
    for thread in ["plans", "pl\u{e4}ne f\u{fc}r morgen"] {
        let other = Draft {
            thread: Some(thread.into()),
            idempotency_key: Some("k \u{e9}".into()),
            ..draft(&["bob@localhost"], "z")
        };
        let read = parse(&prepare(&store, &other, None).unwrap().bytes);
        assert!(read.is_signed);
        assert_eq!(read.message.thread.as_deref(), Some(thread));
        assert_eq!(read.idempotency_key.as_deref(), Some("k \u{e9}"));
    }
}

/// S1327: an answer continues the mail that is answered, and marks it, also if a stranger's mail has its id.
#[test]
fn an_answer_is_to_one_of_the_mails_of_its_id() {
    let place = Place::new();
    let text = mail("m@x", "References: <a@x>\n", "x");
    place.put(
        "cur/0.h:2,",
        &text.replace("<a@x>", "<evil@x>").replace("Bob@example", "Eve@example"),
    );
    place.put("cur/1.h:2,S", &text);
    place.put("cur/2.h:2,", &format!("{text}-- \nlist\n"));
    place.make("bob");
    let local = [("bob@example.org".to_owned(), place.path("bob"))].into();
    let store = place.store_with(MaildirSettings { local, ..MaildirSettings::default() });
    let book = Book::scanned(&store);
    let answered = book.messages.values().find(|kept| kept.read == Some(true)).unwrap();
    let parent = store.read_record(&answered.at).unwrap().message;
    let answer = Draft {
        is_reply: true,
        in_reply_to: Some("m@x".into()),
        ..draft(&["bob@example.org"], "y")
    };
    let prepared = prepare(&store, &answer, Some(&parent)).unwrap();
    assert_eq!(parse(&prepared.bytes).references, ["a@x", "m@x"]);
    // A program moves the mail, and the table does not know it yet.
    place.rename("cur/1.h:2,S", "cur/1.h:2,FS");
    store.append_record(&prepared).unwrap();
    assert_eq!(place.names("box/cur"), ["0.h:2,", "1.h:2,FRS", "2.h:2,R"]);
}

#[test]
fn attachments_and_odd_texts_arrive_as_they_are() {
    let place = Place::new();
    let store = with_bob(&place);
    std::fs::write(place.path("file"), b"\0\xff\r\n").unwrap();
    let file = crate::model::DraftAttachment {
        name: "r\u{e9}sum\u{e9} 1.pdf".into(),
        path: place.path("file"),
        size: 4,
        sha256: String::new(),
    };
    for body in ["plain", "a\rb", &"long ".repeat(500), "--=_msgfs_\n.", ""] {
        let draft = Draft { attachments: vec![file.clone()], ..draft(&["bob@localhost"], body) };
        let prepared = prepare(&store, &draft, None).unwrap();
        let read = parse(&prepared.bytes);
        assert!(read.is_signed);
        assert_eq!(read.message.body, body);
        assert_eq!(
            (read.message.attachments[0].name.as_str(), read.files),
            (&*file.name, vec![b"\0\xff\r\n".to_vec()])
        );
    }
}

#[test]
fn mail_goes_only_where_it_can() {
    let place = Place::new();
    let store = with_bob(&place);
    let fit = |to: &str| store.address_fit(to);
    assert_eq!(
        (fit("bob@localhost"), fit("eve@x"), fit("bob")),
        (AddressFit::Plain, AddressFit::Via, AddressFit::No)
    );
    assert!(matches!(
        prepare(&store, &draft(&["eve@x"], "x"), None),
        Err(StoreError::Unreachable(_))
    ));
    for odd in ["-oQ@x", "a b@x", "a@x,b@x", "a\n@x", "<a@x>", "@x", "a@"] {
        assert!(
            matches!(prepare(&store, &draft(&[odd], "x"), None), Err(StoreError::Invalid(_))),
            "{odd}"
        );
    }
    let typed = Draft { kind: Some("review".into()), ..draft(&["bob@localhost"], "x") };
    assert!(matches!(prepare(&store, &typed, None), Err(StoreError::Invalid(_))));
    let link = place.path("link");
    std::os::unix::fs::symlink(place.path("bob"), &link).unwrap();
    let local =
        [("bob@localhost".to_owned(), link), ("none@localhost".to_owned(), place.path("none"))]
            .into();
    let linked = place.store_with(MaildirSettings { local, ..MaildirSettings::default() });
    assert!(matches!(
        prepare(&linked, &draft(&["bob@localhost"], "x"), None),
        Err(StoreError::NotPermitted(_))
    ));
    assert!(matches!(
        prepare(&linked, &draft(&["none@localhost"], "x"), None),
        Err(StoreError::Unreachable(_))
    ));
    assert!(!place.path("none").exists());
    let nobody = MaildirStore::open(&place.spec(MaildirSettings::default())).unwrap();
    let why = prepare(&nobody, &draft(&["bob@localhost"], "x"), None).unwrap_err();
    assert!(
        matches!(&why, StoreError::Invalid(why) if why.contains("me = \"NAME@HOST\"")),
        "{why}"
    );
}

#[test]
fn the_program_gets_the_mail_and_its_answer_counts() {
    let place = Place::new();
    let log = place.path("log");
    let script = format!(
        "echo \"$@\" >>{log}; cat >>{log}.mail; n=$(wc -l <{log}); [ $n -gt 2 ] || exit 75",
        log = log.display()
    );
    let store = with_program(&place, &script);
    let prepared = prepare(&store, &draft(&["eve@x.example", "bob@y"], "x"), None).unwrap();
    for _ in 0..2 {
        let why = append(&store, &prepared).unwrap_err();
        assert!(matches!(why, StoreError::Busy(_)), "{why}");
    }
    append(&store, &prepared).unwrap();
    let arguments = "-i -f anna@example.org -- bob@y eve@x.example\n";
    assert_eq!(std::fs::read_to_string(&log).unwrap(), arguments.repeat(3));
    let mails = std::fs::read_to_string(place.path("log.mail")).unwrap();
    assert_eq!(mails, prepared.bytes.repeat(3));
    assert_eq!(place.names("box/.Sent/cur").len(), 1);

    // A refused mail is done, also if there is no state that keeps the refusal.
    let script = format!("echo >>{}; echo 'no such user' >&2; exit 67", log.display());
    let store = with_program(&place, &script);
    for _ in 0..2 {
        append(&store, &prepared).unwrap();
        let refused = store.format.outcomes.find_refusal(plain_id(&prepared.id)).unwrap();
        assert_eq!(refused.recipients(), "bob@y, eve@x.example");
        assert!(refused.why.contains("no such user"), "{}", refused.why);
    }
    assert_eq!(std::fs::read_to_string(&log).unwrap().lines().count(), 4, "it ran once");
}

/// S1322: a program that a signal ended has refused nothing.
#[test]
fn a_killed_program_is_tried_again() {
    let place = Place::new();
    let store =
        with_program(&place, "cat >/dev/null; [ -e $0.again ] || { >$0.again; kill -9 $$; }");
    let prepared = prepare(&store, &draft(&["eve@x.example"], "x"), None).unwrap();
    let why = append(&store, &prepared).unwrap_err();
    assert!(matches!(&why, StoreError::Busy(why) if why.contains("signal")), "{why}");
    append(&store, &prepared).unwrap();
    assert!(store.format.outcomes.find_refusal(plain_id(&prepared.id)).is_none());
}

/// S1323: the program reads a file that has the whole mail before it starts, so that the end of msgfs cuts no mail off.
#[test]
fn the_program_reads_a_whole_file() {
    let place = Place::new();
    let copy = place.path("copy");
    let script = format!("test -f /dev/stdin || exit 75\ncat >'{}'", copy.display());
    let store = with_program(&place, &script);
    let prepared =
        prepare(&store, &draft(&["eve@x.example"], &"x\n".repeat(100_000)), None).unwrap();
    append(&store, &prepared).unwrap();
    assert_eq!(std::fs::read_to_string(copy).unwrap(), prepared.bytes);
    // One that says much and reads nothing blocks nobody.
    let store = with_program(&place, "head -c 1000000 /dev/zero | tr '\\0' x >&2; exit 67");
    append(&store, &prepared).unwrap();
    assert!(
        store.format.outcomes.find_refusal(plain_id(&prepared.id)).unwrap().why.contains("xxx")
    );
}

/// S1324: a mail that also went to me has its note in either place.
#[test]
fn a_refused_mail_to_me_has_its_note() {
    let place = Place::new();
    let store = with_program(&place, "cat >/dev/null; echo 'no such user' >&2; exit 67");
    let to_both = draft(&["anna@example.org", "eve@x.example"], "x");
    append(&store, &prepare(&store, &to_both, None).unwrap()).unwrap();
    assert_eq!(place.names("box/new").len(), 1);
    let book = Book::scanned(&store);
    let note = store.read_record(&only(&book).at).unwrap().note.unwrap();
    assert!(note.contains("eve@x.example") && note.contains("no such user"), "{note}");
}

#[test]
fn mail_is_not_delivered_again_while_the_program_says_to_try_later() {
    let place = Place::new();
    place.make("bob");
    let program = place.path("sendmail");
    std::fs::write(&program, "#!/bin/sh\ncat >/dev/null\n[ -e \"${0%/*}/open\" ] || exit 75\n")
        .unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    let open = || {
        let settings = MaildirSettings {
            me: vec!["anna@example.org".into()],
            local: [("bob@localhost".to_owned(), place.path("bob"))].into(),
            sendmail: Some(program.clone()),
            ..MaildirSettings::default()
        };
        let state = Some(place.path("state"));
        MaildirStore::open(&StoreSpec { state, ..place.spec(settings) }).unwrap()
    };
    let store = open();
    let prepared = prepare(&store, &draft(&["bob@localhost", "eve@x.example"], "x"), None).unwrap();
    assert!(matches!(append(&store, &prepared), Err(StoreError::Busy(_))));
    let name = place.names("bob/new").remove(0);
    std::fs::remove_file(place.path("bob/new").join(name)).unwrap();
    assert!(matches!(append(&store, &prepared), Err(StoreError::Busy(_))));
    // The next process knows it, too.
    let store = open();
    assert!(matches!(append(&store, &prepared), Err(StoreError::Busy(_))));
    std::fs::write(place.path("open"), "").unwrap();
    append(&store, &prepared).unwrap();
    assert!(place.names("bob/new").is_empty() && place.names("bob/cur").is_empty());
}

#[test]
fn a_program_that_hangs_holds_up_nothing() {
    let place = Place::new();
    let store = with_program(&place, "exec sleep 3");
    let prepared = prepare(&store, &draft(&["eve@x.example"], "x"), None).unwrap();
    let start = std::time::Instant::now();
    assert!(matches!(store.append_record(&prepared), Err(StoreError::Busy(_))));
    assert!(start.elapsed().as_secs() < 2);
    append(&store, &prepared).unwrap();
}
