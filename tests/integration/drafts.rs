//! Private names and composing folders.

use crate::common::fixtures::mounted_three;
use crate::common::samp::{self, bodies, member, only, read_log};
use crate::common::{Bed, soon};

const PRIVATE: &[&str] = &[
    ".hidden",
    ".bob.AbCdEf",
    "bob~",
    "bob.tmp",
    "bob.swp",
    "bob.swx",
    "bob.part",
    "bob.bak",
    "bob.orig",
    "bob.new",
    "bob.tmp.3124.9f2c",
    "4913",
    "#bob#",
    "sedAbC123",
];

/// S49: private names are readable and writable like plain files, and are never sent.
#[test]
fn s49_private_names() {
    let bed = Bed::new();
    let m = bed.mount("bar");
    for name in PRIVATE {
        m.ok(&format!("echo 'draft text' > 'outbox/{name}'"));
        assert_eq!(m.cat(&format!("outbox/{name}")), "draft text\n", "{name}");
        m.ok(&format!("echo more >> 'outbox/{name}'; test $(stat -c %s 'outbox/{name}') = 16"));
    }
    std::thread::sleep(std::time::Duration::from_millis(300));
    assert!(read_log(&bed.store, "bar").is_empty());
    m.ok("rm outbox/.hidden outbox/bob~");
    assert!(!m.sh("cat outbox/bob~").ok());
}

/// S1253: a private draft whose name ends like that of a note is removed for good, in `outbox/` and in a thread's
/// folder.
#[test]
fn s1253_a_private_name_that_ends_like_a_note() {
    let (bed, m, _, _) = mounted_three();
    let names = [".error", ".x.error", ".warning"];
    for folder in ["outbox", "threads/plan"] {
        for name in names {
            m.ok(&format!("echo draft > {folder}/{name}; cat {folder}/{name}; rm {folder}/{name}"));
            assert!(!m.sh(&format!("test -e {folder}/{name}")).ok(), "{folder}/{name}");
        }
    }
    m.ok("echo draft > outbox/.error; rm -rf outbox/.error");
    m.umount();
    let m = bed.mount("bar");
    assert_eq!(m.ls("outbox"), [""; 0]);
    for name in names {
        assert!(!m.sh(&format!("test -e threads/plan/{name}")).ok(), "{name}");
    }
    assert!(read_log(&bed.store, "bar").is_empty());
}

/// S49: a private draft that is renamed to a plain name is sent exactly once.
#[test]
fn s49_rename_sends() {
    let bed = Bed::new();
    let m = bed.mount("bar");
    for (i, name) in PRIVATE.iter().enumerate() {
        m.ok(&format!("echo 'number {i}' > 'outbox/{name}'; mv 'outbox/{name}' outbox/bob"));
        assert_eq!(bodies(&bed.store, "bar").len(), i + 1, "{name}");
        assert_eq!(bodies(&bed.store, "bar")[i], format!("number {i}"));
    }
    assert_eq!(m.ls("outbox"), [""; 0]);
}

/// S280: an atomic save into a thread, or as an answer to one message, makes one message. It makes none before the
/// rename.
#[test]
fn s280_atomic_saves_are_one_message_in_threads_and_as_replies() {
    let (bed, m, recs, names) = mounted_three();
    let stem = names[1].trim_end_matches(".txt");
    m.ok("echo 'to the thread' > threads/plan/answer.tmp.77.1f; ls threads/plan > /dev/null");
    assert!(read_log(&bed.store, "bar").is_empty());
    m.ok("mv threads/plan/answer.tmp.77.1f threads/plan/answer");
    assert_eq!(member(&only(&bed.store, "bar"), "thread"), "plan");
    let day = recs[1].archived(0);
    let folders = ["inbox", "threads/lunch", day.rsplit_once('/').unwrap().0];
    let private = ["X.reply.tmp.77.1f", ".X.reply.Ab12Cd", "X.reply.new", "X.reply~"];
    for (i, folder) in folders.iter().enumerate() {
        for (k, private) in private.iter().enumerate() {
            let private = private.replace('X', stem);
            let before = m.ls(folder);
            m.ok(&format!("echo 'answer {i} {k}' > '{folder}/{private}'"));
            assert_eq!(m.cat(&format!("{folder}/{private}")), format!("answer {i} {k}\n"));
            assert_eq!(m.ls(folder), before, "nothing of it is listed");
            assert_eq!(m.ls("outbox"), [""; 0]);
            let sent = read_log(&bed.store, "bar").len();
            assert_eq!(sent, 1 + i * 4 + k, "nothing is sent before the rename");
            m.ok(&format!("mv '{folder}/{private}' '{folder}/{stem}.reply'"));
            let all = read_log(&bed.store, "bar");
            let r = &all[all.len() - 1];
            assert_eq!(all.len(), sent + 1, "{folder}/{private}");
            assert_eq!((member(r, "re"), member(r, "to")), (recs[1].id.as_str(), "carol"));
            assert_eq!(member(r, "body"), format!("answer {i} {k}"));
        }
    }
    // A draft that is thrown away makes no message. A name that answers no message makes none either.
    m.ok(&format!("echo x > 'inbox/{stem}.reply.tmp'; rm 'inbox/{stem}.reply.tmp'"));
    assert!(!m.sh(&format!("test -e 'inbox/{stem}.reply.tmp'")).ok());
    assert!(!m.sh("echo x > inbox/other.reply.tmp").ok());
    m.ok(&format!("echo x > 'inbox/{stem}.reply.tmp'"));
    assert!(!m.sh(&format!("mv 'inbox/{stem}.reply.tmp' inbox/elsewhere")).ok());
    assert_eq!(read_log(&bed.store, "bar").len(), 13);
}

/// S49: a rename between private names sends nothing.
#[test]
fn s49_private_to_private() {
    let bed = Bed::new();
    let m = bed.mount("bar");
    m.ok("echo x > outbox/a.part; mv outbox/a.part outbox/b.part");
    assert_eq!(m.cat("outbox/b.part"), "x\n");
    assert!(read_log(&bed.store, "bar").is_empty());
}

/// S50: a composing folder with only a body is sent when the body is closed, and disappears.
#[test]
fn s50_composing() {
    let bed = Bed::new();
    let m = bed.mount("bar");
    m.ok("mkdir outbox/bob");
    assert!(read_log(&bed.store, "bar").is_empty());
    m.ok("echo 'the text' > outbox/bob/body");
    let r = only(&bed.store, "bar");
    assert_eq!((member(&r, "to"), member(&r, "body")), ("bob", "the text"));
    soon("the folder disappears", || m.ls("outbox").is_empty());
}

/// S49, S55: a remount does not send a private draft either.
#[test]
fn s49_remount() {
    let bed = Bed::new();
    let m = bed.mount("bar");
    m.ok("echo unfinished > outbox/bob.part");
    m.kill9();
    let m = bed.mount("bar");
    assert!(samp::read_log(&bed.store, "bar").is_empty());
    m.ok("echo finished > outbox/bob");
    assert_eq!(bodies(&bed.store, "bar"), ["finished"]);
}

/// S222: a composing folder that was sent is gone for every program that looks at that moment, and for every
/// program that has it open. No inode number ever stands for a folder and then for a file.
#[test]
fn s222_what_is_gone_is_enoent_and_never_eio() {
    let bed = Bed::new();
    let m = bed.mount("bar");
    m.py(
        r"
import errno, threading, stat
ends, seen = threading.Event(), {}
def look():
    while not ends.is_set():
        for path in ['outbox/agent', 'outbox/agent/body', 'outbox/agent/']:
            try:
                s = os.stat(path)
                kind = stat.S_IFMT(s.st_mode)
                assert seen.setdefault(s.st_ino, kind) == kind, (path, s)
            except OSError as e:
                if e.errno not in (errno.ENOENT, errno.ENOTDIR): bad.append((path, e))
bad = []
watchers = [threading.Thread(target=look) for _ in range(2)]
[t.start() for t in watchers]
for n in range(12):
    os.mkdir('outbox/agent')
    folder = os.open('outbox/agent', os.O_RDONLY | os.O_DIRECTORY)
    with open('outbox/agent/body', 'w') as f: f.write('text %d' % n)
    while os.listdir('outbox'): pass
    try: assert stat.S_ISDIR(os.fstat(folder).st_mode)
    except OSError as e:
        if e.errno not in (errno.ENOENT, errno.ESTALE): bad.append(('fstat', e))
    os.close(folder)
    with open('outbox/agent', 'w') as f: f.write('a draft %d' % n)
    while os.listdir('outbox'): pass
ends.set()
[t.join() for t in watchers]
assert not bad, bad[:9]
",
        &[],
    );
    assert_eq!(crate::common::samp::read_log(&bed.store, "bar").len(), 24);
}

/// S380: a rename that is refused changes nothing but the `.error` file. The draft keeps its name and text, no
/// draft takes the place of another one, and nothing is sent until the cause is gone.
#[test]
fn s380_a_refused_rename_changes_nothing() {
    let bed = Bed::new();
    let m = bed.mount("bar");
    m.ok("echo known > outbox/bob; echo text > outbox/save.tmp; : > outbox/empty.tmp");
    m.ok("echo private > outbox/draft.tmp; printf 'To: \\n\\nkept\\n' > outbox/Carol || true");
    let before = m.ls("outbox");
    for (from, to) in [
        ("save.tmp", "Bob"),
        ("save.tmp", "bob2wx9k0ee"),
        ("save.tmp", "nosuch@"),
        ("empty.tmp", "bob"),
    ] {
        let out = m.sh(&format!("mv outbox/{from} 'outbox/{to}'"));
        assert!(!out.ok(), "{from} {to}: {out:?}");
        let now: Vec<String> =
            m.ls("outbox").into_iter().filter(|n| !n.ends_with("tmp.error")).collect();
        assert_eq!(now, before, "{from} {to}");
        assert_eq!(m.cat("outbox/save.tmp"), "text\n");
    }
    m.ok("rm -f outbox/*.error; mv outbox/save.tmp outbox/Bob || true");
    for note in ["save.tmp.error", "Bob.error"] {
        let why = m.cat(&format!("outbox/{note}"));
        assert!(why.contains("not renamed to Bob") && why.contains("bob is"), "{note}: {why}");
    }
    assert!(!m.ls("outbox").contains(&"Bob.error".to_owned()), "that is not listed");
    assert!(m.cat("status.txt").contains("last refusal: 20"));
    // The draft at the target keeps its text if the other one cannot take its place.
    m.ok("printf 'To: \\n\\nother\\n' > outbox/Bob || true");
    assert!(!m.sh("mv outbox/save.tmp outbox/Bob").ok());
    assert_eq!(m.cat("outbox/Bob"), "To: \n\nother\n");
    assert_eq!(bodies(&bed.store, "bar"), ["known"]);
    m.umount();
    let m = bed.mount("bar");
    assert_eq!(m.cat("outbox/save.tmp"), "text\n");
    m.ok("mv outbox/save.tmp outbox/bob");
    assert_eq!(bodies(&bed.store, "bar"), ["known", "text"]);
    assert!(!m.ls("outbox").contains(&"save.tmp.error".to_owned()));
}

/// S380: the same holds for an answer, for a composing folder, and for the body of one.
#[test]
fn s380_answers_and_composing_folders() {
    let (bed, m, recs, names) = mounted_three();
    let stem = names[1].trim_end_matches(".txt");
    m.ok(&format!("printf 'To: bad name\\n\\nx\\n' > inbox/{stem}.reply.tmp"));
    assert!(!m.sh(&format!("mv inbox/{stem}.reply.tmp inbox/{stem}.reply")).ok());
    assert!(m.cat(&format!("inbox/{stem}.reply.tmp")).contains("bad name"));
    for note in [format!("inbox/{stem}.reply.error"), format!("inbox/{stem}.reply.tmp.error")] {
        assert!(m.cat(&note).contains("not renamed"), "{note}");
    }
    assert!(!m.ls("inbox").iter().any(|name| name.contains("reply")));
    m.ok(&format!("echo better > inbox/{stem}.reply.tmp"));
    m.ok(&format!("mv inbox/{stem}.reply.tmp inbox/{stem}.reply"));
    assert_eq!(member(&only(&bed.store, "bar"), "re"), recs[1].id);
    m.ok("mkdir outbox/x.tmp; echo hi > outbox/x.tmp/body");
    assert!(!m.sh("mv outbox/x.tmp outbox/Carol").ok());
    assert!(m.cat("outbox/x.tmp.error").contains("carol is"));
    assert_eq!(m.ls("outbox"), ["x.tmp", "x.tmp.error"]);
    m.ok("mv outbox/x.tmp outbox/dave; mkdir outbox/Carol; echo hi > outbox/Carol/text.tmp");
    soon("the folder is sent", || m.ls("outbox") == ["Carol"]);
    assert!(!m.sh("mv outbox/Carol/text.tmp outbox/Carol/body").ok());
    assert_eq!(m.ls("outbox/Carol"), ["text.tmp"]);
    assert_eq!(m.ls("outbox"), ["Carol", "Carol.error"]);
    m.ok("printf 'To: Carol\\n\\nhi\\n' > outbox/Carol/text.tmp");
    m.ok("mv outbox/Carol/text.tmp outbox/Carol/body");
    soon("it is sent", || m.ls("outbox").is_empty());
    assert_eq!(read_log(&bed.store, "bar").len(), 3);
    // A folder that is about to be sent, and would be refused under the other name, is sent under its own name.
    m.ok("mkdir outbox/erin; echo hi > outbox/erin/body; mv outbox/erin outbox/Dave || true");
    soon("it is sent", || read_log(&bed.store, "bar").len() == 4);
    m.ok("mkdir outbox/gina; echo hi > outbox/gina/body; mv outbox/gina outbox/hugo");
    soon("it is sent", || read_log(&bed.store, "bar").len() == 5);
    let all = read_log(&bed.store, "bar");
    assert_eq!((member(&all[3], "to"), member(&all[4], "to")), ("erin", "hugo"));
}

/// S381: the names that `mktemp` and Python's `tempfile` make are private, unless an agent has exactly that name. A
/// store that takes every name with `Via:` changes nothing.
#[test]
fn s381_temporary_names() {
    let threads = "[[store]]\nkind = \"samp\"\n[[store]]\nkind = \"atsf\"\ndir = \"project\"\n";
    for stores in ["", threads] {
        temporary_names(&format!("{stores}[groups]\ntmpbuilders = [\"bob\"]\n"));
    }
}

fn temporary_names(config: &str) {
    let bed = Bed::new();
    std::fs::create_dir_all(bed.path("project/.agent/threads")).unwrap();
    samp::append(&bed.store, "tmp.abcdef1", "bar", "t", "hello", samp::T0);
    bed.config(&config.replace("project", bed.path("project").to_str().unwrap()));
    let m = bed.mount("bar");
    m.ok("f=$(mktemp -p outbox); echo one > \"$f\"; test -e \"$f\"; mv \"$f\" outbox/bob");
    assert_eq!(bodies(&bed.store, "bar"), ["one"]);
    m.py(
        "
import tempfile
with tempfile.NamedTemporaryFile('w', dir='outbox', suffix='.json', delete=False) as f:
    f.write('two')
assert os.path.exists(f.name)
os.rename(f.name, 'outbox/bob')
fd, name = tempfile.mkstemp(dir='outbox')
os.write(fd, b'three')
os.close(fd)
assert os.path.exists(name)
",
        &[],
    );
    assert_eq!(bodies(&bed.store, "bar"), ["one", "two"]);
    m.ok("rm outbox/*; echo four > outbox/tmp.abcdef1; echo five > outbox/tmpbuilders");
    assert_eq!(bodies(&bed.store, "bar"), ["one", "two", "four", "five"]);
    assert_eq!(m.ls("outbox"), [""; 0]);
    m.ok("echo six > threads/t/tmp.abcdef1; echo x > outbox/tmp.abcdef2");
    assert_eq!(bodies(&bed.store, "bar").len(), 4);
}

/// S382: `rsync --delay-updates` sends everything and leaves nothing. A refused draft stays in its place.
#[test]
fn s382_delayed_updates() {
    let bed = Bed::new();
    std::fs::create_dir(bed.path("out")).unwrap();
    for name in ["bob", "carol.txt"] {
        std::fs::write(bed.path("out").join(name), format!("to {name}\n")).unwrap();
    }
    let m = bed.mount("bar");
    m.ok("rsync -a --delay-updates ../out/ outbox/");
    let mut sent = bodies(&bed.store, "bar");
    sent.sort();
    assert_eq!(sent, ["to bob", "to carol.txt"]);
    assert_eq!(m.ls("outbox"), [""; 0]);
    m.ok("mkdir outbox/.x; echo hi > outbox/.x/a; : > outbox/.x/b");
    assert!(!m.sh("mv outbox/.x/a outbox/Bob").ok() && !m.sh("mv outbox/.x/b outbox/bob").ok());
    assert!(m.cat("outbox/Bob.error").contains("bob is"));
    assert_eq!(
        (m.ls("outbox"), m.ls("outbox/.x")),
        (vec![".x".into()], vec!["a".into(), "b".into()])
    );
    m.ok("mv outbox/.x/a outbox/b.tmp; mv outbox/.x/b outbox/b.part; rmdir outbox/.x");
    assert_eq!(m.cat("outbox/b.tmp"), "hi\n");
    assert_eq!(bodies(&bed.store, "bar").len(), 2);
}

/// S382: `mv` takes a private draft from each folder to each other one, and so sends it.
#[test]
fn s382_private_drafts_move_between_folders() {
    let (bed, m, recs, names) = mounted_three();
    let stem = names[0].trim_end_matches(".txt");
    let thread = format!("threads/{}", recs[0].thread);
    let day = format!("archive/{}", &m.ls("archive")[0]);
    let reply = |folder: &str| format!("{folder}/{stem}.reply");
    let mut count = 0;
    for (from, to) in [
        ("outbox/w.tmp".to_owned(), reply("inbox")),
        (format!("{thread}/w.tmp"), reply("inbox")),
        (format!("{}.tmp", reply("inbox")), "outbox/foo".to_owned()),
        (format!("{}.tmp", reply("inbox")), format!("{thread}/new")),
        (format!("{}.tmp", reply(&day)), reply("inbox")),
        (format!("{}.tmp", reply("inbox")), reply(&day)),
    ] {
        m.ok(&format!("echo text {count} > {from}; mv {from} {to}; ! test -e {from}"));
        count += 1;
        soon("it is sent", || bodies(&bed.store, "bar").len() == count);
        assert!(bodies(&bed.store, "bar").contains(&format!("text {}", count - 1)), "{from} {to}");
    }
}

/// S280, S49: a reply or a draft of a thread that was refused is mended in `outbox/`, in whatever way an editor writes,
/// and goes where it was to go. The name of a reply is nobody's.
#[test]
fn s280_a_refused_reply_is_mended_in_outbox() {
    let (bed, m, recs, names) = mounted_three();
    let stem = names[1].trim_end_matches(".txt");
    let thread = recs[1].thread.clone();
    let mut count = 0;
    for (draft, place) in [
        (format!("inbox/{stem}.reply"), format!("{stem}.reply")),
        (format!("threads/{thread}/zebra"), "zebra".to_owned()),
    ] {
        for mend in [
            "sed -i /Priority/d outbox/$n",
            "sed /Priority/d outbox/$n > outbox/$n.tmp && mv outbox/$n.tmp outbox/$n",
            "printf '\\nbetter' > outbox/$n",
        ] {
            m.sh(&format!("printf 'Priority: high\\n\\nbetter' > {draft}"));
            soon("it is refused", || m.ls("outbox").contains(&format!("{place}.error")));
            m.ok(&format!("n={place}; {mend}"));
            count += 1;
            soon("it is sent", || bodies(&bed.store, "bar").len() == count);
            let sent = read_log(&bed.store, "bar").pop().unwrap();
            assert_eq!(member(&sent, "thread"), &*thread, "{draft} {mend}: {sent:?}");
            if draft.starts_with("inbox/") {
                assert_eq!(member(&sent, "re"), recs[1].id, "{mend}: {sent:?}");
            }
            assert!(m.ls("outbox").is_empty(), "{mend}: {:?}", m.ls("outbox"));
        }
    }
    let out = m.sh(&format!("echo lost > outbox/{stem}.reply"));
    assert!(!out.ok(), "{out:?}");
    assert!(m.cat("status.txt").contains("is the name of a reply"), "{}", m.cat("status.txt"));
    assert_eq!(bodies(&bed.store, "bar").len(), count);
    // Editors make empty files beside a reply, and remove them.
    m.ok(&format!(": > inbox/{stem}.reply~; rm inbox/{stem}.reply~"));
    m.ok(&format!(": > threads/{thread}/new~; rm threads/{thread}/new~"));
}

/// S62: a line that no store of the recipient has a place for is refused at the write that ends the header.
#[test]
fn s62_a_line_without_a_place_is_refused_at_the_write() {
    let (bed, m, ..) = mounted_three();
    for line in ["Priority: high", "Type: question"] {
        let out = m.sh(&format!("printf '{line}\\n\\nhi\\n' > outbox/foo"));
        assert!(!out.ok() && out.stderr.contains("write error"), "{line}: {out:?}");
        assert!(m.cat("outbox/foo.error").contains("has no place for it"), "{line}");
        m.ok("rm outbox/foo");
    }
    assert!(bodies(&bed.store, "bar").is_empty());
}
