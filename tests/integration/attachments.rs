//! Attachments that come and go with messages.

use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::json;

use crate::common::agz::{self, DAY, Letter, ME, Tree};
use crate::common::amp::{self, Home, Msg};
use crate::common::shown::{self, message};
use crate::common::{Bed, Mount, samp, soon};

fn attachment(id: &str, name: &str, bytes: &[u8]) -> serde_json::Value {
    json!({
        "id": id,
        "filename": name,
        "content_type": "application/octet-stream",
        "size": bytes.len(),
        "digest": format!("sha256:{}", samp::sha_hex(bytes, 64)),
        "url": null,
        "scan_status": "basic_clean",
        "uploaded_at": "2026-04-24T17:42:03Z",
        "expires_at": "2027-04-24T17:42:03Z",
    })
}

/// Puts a message with two attachments into each of the two kinds of store that have them. Returns the folder
/// names in `archive/` without their ending.
fn two_kinds() -> (Bed, Tree, Home, Mount, [String; 2]) {
    let bed = Bed::new();
    let (tree, home) = (Tree::new(&bed), Home::new(&bed));
    bed.config(&(tree.store() + &home.store()));
    let l = Letter::new("alice@localhost", "files", "see the files", 1)
        .set("Attachments", "a b.txt, big.bin");
    tree.receive(&l);
    agz::put(&tree.file(DAY, "inbox", l.id()).join("a b.txt"), "text\n");
    agz::put(&tree.file(DAY, "inbox", l.id()).join("big.bin"), vec![7u8; 300_000]);
    let files = json!([
        attachment("att_1777052523_a1", "a b.txt", b"text\n"),
        attachment("att_1777052523_a2", "big.bin", &[7u8; 300_000])
    ]);
    let msg = Msg::new("files", "see the files", 1)
        .payload(&json!({"type": "notification", "message": "see the files", "attachments": files}))
        .signed(2);
    home.receive(&msg);
    let mine = home.dir("bar").join("attachments");
    agz::put(&mine.join("att_1777052523_a1/a_b.txt"), "text\n");
    agz::put(&mine.join("att_1777052523_a2/big.bin"), vec![7u8; 300_000]);
    let m = bed.mount("bar");
    let stems = [
        format!("archive/2026-04-24/{}", l.name(1).trim_end_matches(".txt")),
        msg.archived().trim_end_matches(".txt").to_owned(),
    ];
    (bed, tree, home, m, stems)
}

/// S115: the attachments of a message are in `<name>.d/` beside it in every view, with exact sizes, the message's
/// time and modes 0700 and 0400. The message names them.
#[test]
fn s115_beside_the_message() {
    let (_bed, _tree, _home, m, stems) = two_kinds();
    for stem in &stems {
        let dir = format!("{stem}.d");
        let names = m.ls(&dir);
        assert_eq!(names.len(), 2, "{dir}: {names:?}");
        assert_eq!(m.bytes(&format!("{dir}/{}", names[0])), b"text\n");
        assert_eq!(m.bytes(&format!("{dir}/{}", names[1])), vec![7u8; 300_000]);
        let meta = |p: &str| fs::symlink_metadata(m.path(p)).unwrap();
        let time = meta(&format!("{stem}.txt")).mtime();
        assert_eq!((meta(&dir).mode() & 0o777, meta(&dir).mtime()), (0o700, time));
        for (name, size) in names.iter().zip([5, 300_000]) {
            let f = meta(&format!("{dir}/{name}"));
            assert_eq!((f.mode() & 0o777, f.mtime(), f.len()), (0o400, time, size), "{name}");
        }
        let text = shown::Shown::parse(&m.cat(&format!("{stem}.txt")));
        let line = text.must("Attachments");
        assert!(line.contains("(5)") && line.contains("big.bin (300000)"), "{line}");
        let name = dir.rsplit('/').next().unwrap();
        let thread = samp::thread_dir(text.must("Thread"));
        for place in ["inbox".to_owned(), format!("threads/{thread}")] {
            assert!(m.ls(&place).contains(&name.to_owned()), "{name} is in {place}");
            assert_eq!(m.ls(&format!("{place}/{name}")), names);
        }
    }
}

/// S115: reading attachments marks nothing. When the message is marked, its folder leaves `inbox/` with it, and
/// known names still open.
#[test]
fn s115_marks() {
    let (_bed, _tree, _home, m, _) = two_kinds();
    let before = m.ls("inbox");
    assert_eq!(before.len(), 4);
    m.ok("cat inbox/*.d/* | wc -c");
    let names: Vec<&str> = before.iter().map(String::as_str).collect();
    m.inbox_stays(&names);
    let dir = before.iter().find(|n| shown::has_ending(n, "d")).unwrap();
    m.cat(&format!("inbox/{}", dir.replace(".d", ".txt")));
    let left: Vec<&str> =
        names.iter().copied().filter(|n| !n.starts_with(dir.trim_end_matches(".d"))).collect();
    m.inbox_becomes(&left);
    assert!(m.sh(&format!("cat 'inbox/{dir}'/big.bin | wc -c")).stdout.trim() == "300000");
    for script in [
        format!("rm -f 'inbox/{dir}/big.bin'"),
        format!("echo x > 'archive/2026-04-24/{dir}/new'"),
        format!("mv 'archive/2026-04-24/{dir}' outbox/x"),
        format!("rmdir 'archive/2026-04-24/{dir}'"),
        format!("echo x >> 'archive/2026-04-24/{dir}/big.bin'"),
    ] {
        let out = m.sh(&script);
        assert!(!out.ok() && out.stderr.contains("Operation not permitted"), "{script}: {out:?}");
    }
}

/// S115, S28: `rsync`, `tar`, `cp -a` and `find` over a tree with attachments are complete and repeatable, and
/// consume nothing.
#[test]
fn s115_recursive_tools() {
    let (bed, _tree, _home, m, _) = two_kinds();
    let before = m.ls("inbox");
    let out = bed.path("out");
    fs::create_dir(&out).unwrap();
    let o = out.display();
    m.ok(&format!("rsync -a archive inbox threads sent {o}/rsync/; cp -a inbox {o}/cp; tar cf {o}/t.tar inbox; mkdir {o}/tar; tar xf {o}/t.tar -C {o}/tar"));
    m.ok(&format!(
        "diff -r inbox {o}/rsync/inbox && diff -r inbox {o}/cp && diff -r inbox {o}/tar/inbox"
    ));
    assert_eq!(
        m.ok(&format!("rsync -ain archive inbox threads sent {o}/rsync/")),
        "",
        "nothing changed"
    );
    let tree = "find . -path ./status.txt -prune -o -printf '%p %i %s %T@ %m\\n' | sort";
    let first = m.ok(tree);
    assert_eq!(m.ok(tree), first);
    m.umount();
    let m = bed.mount("bar");
    assert_eq!(m.ok(tree), first, "inode numbers and times survive a remount");
    assert_eq!(m.ls("inbox"), before);
}

/// S115: mail programs read a message that names its attachments.
#[test]
fn s115_mail_programs() {
    let (_bed, _tree, _home, m, stems) = two_kinds();
    for stem in &stems {
        let shown = m.ok(&format!("mhdr -h attachments '{stem}.txt'"));
        assert!(shown.contains("big.bin (300000)"), "{shown}");
        assert!(m.ok(&format!("mshow -n -h from:subject '{stem}.txt'")).contains("see the files"));
        m.ok(&format!(
            "mkdir -p ../box/cur ../box/new ../box/tmp; cp '{stem}.txt' ../box/cur/1:2,S"
        ));
        let listed = m.ok("cd ..; mlist box | mscan 2> /dev/null");
        assert!(listed.contains("files"), "{listed}");
    }
}

/// S115: a thing among the attachments that is no file is never opened, and names cannot lead out of the folder.
#[test]
fn s115_hostile() {
    let bed = Bed::new();
    let tree = Tree::new(&bed);
    bed.config(&tree.store());
    let l = Letter::new("alice@localhost", "s", "x", 1)
        .set("Attachments", "good.txt, link, fifo, ../../etc/passwd, gone.txt");
    tree.receive(&l);
    let dir = tree.file(DAY, "inbox", l.id());
    agz::put(&dir.join("good.txt"), "good");
    agz::put(&dir.join("folder/inner"), "x");
    agz::put(&dir.join("esc\u{1b}[31m.txt"), "x");
    fs::write(bed.path("secret"), "secret").unwrap();
    symlink(bed.path("secret"), dir.join("link")).unwrap();
    assert!(bed.sh(&format!("mkfifo {}/fifo", dir.display())).ok());
    let m = bed.mount("bar");
    let d = format!("archive/2026-04-24/{}", l.name(1).replace(".txt", ".d"));
    let names = m.ls(&d);
    assert!(names.contains(&"good.txt".to_owned()), "{names:?}");
    for bad in ["link", "fifo", "folder", "passwd", "gone.txt"] {
        assert!(!names.contains(&bad.to_owned()), "{names:?}");
    }
    assert!(!m.sh(&format!("cat '{d}/link'")).ok());
    let got = message(&m, l.id());
    let line = got.must("Attachments");
    assert!(line.contains("good.txt (4)") && line.contains("gone.txt ("), "{line}");
    assert!(!m.cat(&shown::path(&m, "archive", l.id())).contains('\u{1b}'));
    assert!(!m.sh("grep -r secret .").ok());
}

/// S136: `Attach:` takes absolute paths of regular files, one a line. It refuses everything else before anything
/// is sent, and never waits.
#[test]
fn s136_attach_header() {
    let bed = Bed::new();
    let tree = Tree::new(&bed);
    bed.config(&tree.store());
    fs::create_dir_all(tree.mailbox("bob@localhost")).unwrap();
    let m = bed.mount("bar");
    fs::write(bed.path("one.txt"), "one").unwrap();
    fs::write(bed.path("two words.bin"), [0u8, 255]).unwrap();
    fs::create_dir(bed.path("other")).unwrap();
    fs::write(bed.path("other/one.txt"), "another").unwrap();
    assert!(bed.sh(&format!("mkfifo {}", bed.path("fifo").display())).ok());
    let attach =
        |paths: &[&str]| paths.iter().map(|p| format!("Attach: {p}\\n")).collect::<String>();
    let p = |name: &str| bed.path(name).to_str().unwrap().to_owned();
    for bad in [
        p("fifo"),
        "/dev/null".into(),
        "/dev/zero".into(),
        p("other"),
        p("missing"),
        "relative.txt".into(),
        "cwd/../one.txt".into(),
    ] {
        let out = m.sh(&format!(
            "timeout 5 tee outbox/bob@localhost < <(printf '{}\\nbody\\n')",
            attach(&[&bad])
        ));
        assert!(!out.ok() && out.stderr.contains("Invalid argument"), "{bad}: {out:?}");
        m.sh("rm -f outbox/*");
    }
    let out = m.sh(&format!(
        "printf '{}\\nbody\\n' | tee outbox/bob@localhost",
        attach(&[&p("one.txt"), &p("other/one.txt")])
    ));
    assert!(!out.ok() && out.stderr.contains("Invalid argument"), "two files of one name: {out:?}");
    m.sh("rm -f outbox/*");
    assert_eq!(tree.list("bob@localhost", "inbox"), []);
    m.ok(&format!(
        "printf '{}Subject: files\\n\\nbody\\n' | tee outbox/bob@localhost > /dev/null",
        attach(&[&p("one.txt"), &p("two words.bin")])
    ));
    let (file, text) = tree.only("bob@localhost", "inbox");
    let letter = agz::verify(&text);
    assert_eq!(
        (letter.get("Attachments"), letter.body.as_str()),
        ("one.txt, two words.bin", "body")
    );
    let hashes: Vec<&str> =
        letter.meta.iter().filter(|(k, _)| k == "Attachment").map(|(_, v)| v.as_str()).collect();
    assert_eq!(
        hashes,
        [
            format!("sha256={}; name=one.txt", samp::sha_hex(b"one", 64)),
            format!("sha256={}; name=two words.bin", samp::sha_hex(&[0, 255], 64)),
        ]
    );
    for folder in [file.with_extension(""), tree.only(ME, "sent").0.with_extension("")] {
        assert_eq!(agz::names(&folder), ["one.txt", "two words.bin"]);
        assert_eq!(fs::read(folder.join("two words.bin")).unwrap(), [0, 255]);
    }
    let left =
        bed.sh(&format!("find {} -path '*attach*' -type f", bed.path("state").display())).stdout;
    assert_eq!(left, "", "the copies of the spool are gone");
}

/// S136: the files of a composing folder are sent with its `body`, and reach the recipient before the text does.
#[test]
fn s136_composing_folder() {
    let bed = Bed::new();
    let tree = Tree::new(&bed);
    bed.config(&tree.store());
    fs::create_dir_all(tree.mailbox("bob@localhost")).unwrap();
    let m = bed.mount("bar");
    m.ok("mkdir outbox/bob@localhost; head -c 500000 /dev/urandom > ../plan.pdf; cp ../plan.pdf outbox/bob@localhost/; echo notes > outbox/bob@localhost/n.txt; ls outbox/bob@localhost");
    assert_eq!(tree.list("bob@localhost", "inbox"), []);
    m.ok("printf 'Subject: the plan\\n\\nattached\\n' > outbox/bob@localhost/body");
    let (file, text) = tree.only("bob@localhost", "inbox");
    let letter = agz::verify(&text);
    assert_eq!((letter.get("Subject"), letter.body.as_str()), ("the plan", "attached"));
    let mut names: Vec<&str> = letter.get("Attachments").split(", ").collect();
    names.sort_unstable();
    assert_eq!(names, ["n.txt", "plan.pdf"]);
    let dir = file.with_extension("");
    assert_eq!(agz::names(&dir), ["n.txt", "plan.pdf"]);
    assert_eq!(fs::read(dir.join("plan.pdf")).unwrap(), fs::read(bed.path("plan.pdf")).unwrap());
    assert!(
        fs::metadata(dir.join("plan.pdf")).unwrap().mtime() <= fs::metadata(&file).unwrap().mtime()
    );
    assert_eq!(m.ls("outbox"), [""; 0]);
    let sent = m.ls(&format!("sent/{}", samp::today()));
    assert_eq!(sent.len(), 2, "the message and its folder: {sent:?}");
    let d = sent.iter().find(|n| shown::has_ending(n, "d")).unwrap();
    m.ok(&format!("cmp ../plan.pdf 'sent/{}/{d}/plan.pdf'", samp::today()));
}

/// S132: my attachments to an AMP message are in both stores, named and described as the format wants.
#[test]
fn s132_amp_files() {
    let bed = Bed::new();
    let home = Home::new(&bed);
    bed.config(&home.store());
    let m = bed.mount("bar");
    fs::write(bed.path("a report.txt"), "report\n").unwrap();
    m.ok(&format!(
        "printf 'Attach: {}\\n\\nsee file\\n' | tee outbox/alice > /dev/null",
        bed.path("a report.txt").display()
    ));
    let (_, v) = home.only("alice", "inbox");
    amp::verify(&v, &samp::key(1));
    let list = v["payload"]["attachments"].as_array().unwrap();
    assert_eq!(list.len(), 1);
    let a = &list[0];
    let id = a["id"].as_str().unwrap();
    let rest = id.strip_prefix("att_").unwrap();
    assert!(
        rest.split_once('_').is_some_and(|(t, h)| t.bytes().all(|b| b.is_ascii_digit())
            && h.bytes().all(|b| b.is_ascii_hexdigit() && !b.is_ascii_uppercase())),
        "{id}"
    );
    assert_eq!(
        (a["size"].as_u64(), a["digest"].as_str().unwrap()),
        (Some(7), format!("sha256:{}", samp::sha_hex(b"report\n", 64)).as_str())
    );
    assert!(
        ["unscanned", "basic_clean", "clean"].contains(&a["scan_status"].as_str().unwrap()),
        "{a}"
    );
    let name = a["filename"].as_str().unwrap();
    assert_eq!(name, "a_report.txt");
    for who in ["alice", "bar"] {
        let file = home.dir(who).join("attachments").join(id).join(name);
        assert_eq!(fs::read(&file).unwrap(), b"report\n", "{who}");
        assert_eq!(fs::metadata(&file).unwrap().mode() & 0o777, 0o600);
        assert_eq!(fs::metadata(file.parent().unwrap()).unwrap().mode() & 0o777, 0o700);
    }
    // These are limits of the format.
    let big = fs::File::create(bed.path("big")).unwrap();
    big.set_len(25 * 1024 * 1024 + 1).unwrap();
    let out = m.sh(&format!(
        "printf 'Attach: {}\\n\\nx\\n' | tee outbox/alice",
        bed.path("big").display()
    ));
    assert!(!out.ok() && out.stderr.contains("File too large"), "{out:?}");
    m.sh("rm -f outbox/*");
    for i in 0..11 {
        fs::write(bed.path(format!("f{i}")), "x").unwrap();
    }
    let eleven: String =
        (0..11).map(|i| format!("Attach: {}\\n", bed.path(format!("f{i}")).display())).collect();
    let out = m.sh(&format!("printf '{eleven}\\nx\\n' | tee outbox/alice"));
    assert!(!out.ok() && out.stderr.contains("File too large"), "{out:?}");
    assert_eq!(home.list("alice", "inbox").len(), 1);
}

/// A guard that mounts a folder as long as it lives.
struct Bound(PathBuf);

impl Bound {
    fn new(what: &Path, at: PathBuf) -> Self {
        fs::create_dir(&at).unwrap();
        let done = Command::new("mount").arg("--bind").args([what, &at]).status().unwrap();
        let bound = Self(at);
        assert!(done.success());
        bound
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

/// S136: a file of a mount of msgfs is refused at once, by whatever path it is named. This holds if many drafts of
/// two mounts name files of each other, too. Both mounts go on.
#[test]
fn s136_files_of_a_mount_are_refused() {
    let (one, two) = (Bed::new(), Bed::new());
    let mounts: Vec<(&Bed, Tree, Mount)> = [(&one, "bar"), (&two, "bar")]
        .into_iter()
        .map(|(bed, me)| {
            let tree = Tree::new(bed);
            bed.config(&tree.store());
            tree.receive(&Letter::new("alice@localhost", "files", "see the files", 1));
            fs::create_dir_all(tree.mailbox("bob@localhost")).unwrap();
            (bed, tree, bed.mount(me))
        })
        .collect();
    let (mine, theirs) = (&mounts[0].2, &mounts[1].2);
    symlink(mine.path("archive"), one.path("link")).unwrap();
    symlink(theirs.path("README.txt"), one.path("other.txt")).unwrap();
    let bound = Bound::new(&theirs.path("archive"), one.path("bound"));
    let letter = shown::path(
        mine,
        "archive",
        Letter::new("alice@localhost", "files", "see the files", 1).id(),
    );
    let letter = letter.strip_prefix("archive/").unwrap();
    let files = [
        mine.path("archive").join(letter),
        theirs.path("archive").join(letter),
        one.path("link").join(letter),
        bound.0.join(letter),
        one.path("other.txt"),
        mine.path("README.txt"),
        one.path("cwd/../link/../status.txt"),
        PathBuf::from(format!("/proc/self/root{}", mine.path("status.txt").display())),
    ];
    let refused = "Invalid argument";
    std::thread::scope(|scope| {
        for (_, _, m) in &mounts {
            for (n, file) in files.iter().cycle().take(16).enumerate() {
                scope.spawn(move || {
                    let draft = format!("To: bob@localhost\\nAttach: {}\\n\\nx\\n", file.display());
                    let out = m.sh(&format!("printf '{draft}' | tee outbox/d{n}"));
                    assert!(
                        !out.ok() && out.stderr.contains(refused),
                        "{}: {out:?}",
                        file.display()
                    );
                });
            }
        }
    });
    for (bed, tree, m) in &mounts {
        assert_eq!(tree.list("bob@localhost", "inbox"), []);
        for (n, file) in files.iter().cycle().take(16).enumerate() {
            let why = m.cat(&format!("outbox/d{n}.error"));
            assert!(
                why.contains("mount of msgfs") && why.contains("copy the file"),
                "{file:?}: {why}"
            );
        }
        let send = |file: &Path| {
            bed.msgfs_out(&[
                "--me",
                "bar",
                "send",
                "bob@localhost",
                "--attach",
                file.to_str().unwrap(),
                "see it",
            ])
        };
        let out = send(&files[0]);
        assert!(!out.ok() && out.stderr.contains("mount of msgfs"), "{out:?}");
        m.ok(&format!("cat archive/{letter} > ../copy.txt"));
        let out = send(&bed.path("copy.txt"));
        assert!(out.ok(), "{out:?}");
        soon("the copy goes along", || tree.list("bob@localhost", "inbox").len() == 1);
        let copy = tree.only("bob@localhost", "inbox").0.with_extension("");
        assert_eq!(agz::names(&copy), ["copy.txt"]);
    }
}

/// S915: in `.maildir/` a message with files is a mail of several parts, its text and then its files, whatever kind its
/// store is of. Programs of others read it. All other messages have the bytes of the message file.
#[test]
fn s915_mails_of_several_parts() {
    let (bed, _tree, _home, m, stems) = two_kinds();
    let plain = m.ls(".maildir/new").len();
    assert_eq!(plain, 2, "{bed:?}", bed = bed.path(""));
    for stem in &stems {
        let (_, name) = stem.rsplit_once('/').unwrap();
        let mail = format!(".maildir/new/{name}");
        let size = fs::metadata(m.path(&mail)).unwrap().len();
        assert_eq!(m.bytes(&mail).len() as u64, size);
        let read = m.py(
            "import email.parser, email.policy, sys\n\
             m = email.parser.BytesParser(policy=email.policy.default).parse(open(sys.argv[1], 'rb'))\n\
             assert not m.defects and m.get_content_type() == 'multipart/mixed', m.defects\n\
             text, first, second = m.iter_parts()\n\
             print(m['signature'], '|', text.get_content().strip(), '|', first.get_filename(), first.get_content(),\n\
                   second.get_filename(), second.get_content() == b'\\x07' * 300000)",
            &[&mail],
        );
        let names = m.ls(&format!("{stem}.d"));
        let files = format!("| see the files | {} b'text\\n' {} True", names[0], names[1]);
        assert!(read.trim().ends_with(&files), "{read} {files}");
        let list = m.ok(&format!("mshow -t {mail}"));
        assert!(list.contains("multipart/mixed") && list.contains("big.bin"), "{list}");
        assert_eq!(m.ok(&format!("mshow -O {mail} 4 | wc -c")).trim(), "300000", "{list}");
    }
}
