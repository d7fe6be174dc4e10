//! `.maildir/`: the mail to me as mail programs know it. The programs themselves are in `mailtools`.

use std::fs;
use std::os::unix::fs::MetadataExt as _;

use crate::amq::{Queue, mail};
use crate::common::fixtures::mounted_three;
use crate::common::samp::{self, T0};
use crate::common::{Bed, Mount, agz, amp, soon};

/// Returns the name in `.maildir/` of a message file.
fn base(name: &str) -> &str {
    name.strip_suffix(".txt").expect("a message file")
}

fn new(m: &Mount) -> Vec<String> {
    m.ls(".maildir/new")
}

fn cur(m: &Mount) -> Vec<String> {
    m.ls(".maildir/cur")
}

/// Moves a message within `.maildir/`, for example `new/X` to `cur/X:2,S`.
#[track_caller]
fn mv(m: &Mount, from: &str, to: &str) {
    m.ok(&format!("cd .maildir && mv '{from}' '{to}'"));
}

/// Makes three messages, mounts for bar, and returns them with their names in `.maildir/`.
fn three() -> (Bed, Mount, [samp::Rec; 3], [String; 3]) {
    let (bed, m, recs, names) = mounted_three();
    let names: Vec<String> = names.iter().map(|n| base(n).to_owned()).collect();
    (bed, m, recs, names.try_into().expect("three"))
}

/// S550, S10: there are the folders of a Maildir. Names are those of the message files, with the same bytes, mode
/// and time. A program that walks the tree does not get there.
#[test]
fn s550_a_maildir_of_all_mail_to_me() {
    let (bed, m, recs, [a, b, c]) = three();
    samp::append(&bed.store, "bar", "foo", "plan", "mine", T0 + 9000);
    samp::append(&bed.store, "foo", "carol", "plan", "not to me", T0 + 9001);
    assert!(!m.ls(".").contains(&".maildir".to_owned()));
    assert_eq!(m.ok("find . -path './.maildir*'"), "");
    assert_eq!(m.ls(".maildir"), ["cur", "new", "tmp"]);
    assert_eq!(new(&m), [a.clone(), b.clone(), c.clone()]);
    m.cat(&format!("inbox/{b}.txt"));
    assert_eq!((new(&m), cur(&m)), (vec![a.clone(), c], vec![format!("{b}:2,S")]));
    assert_eq!(m.ls(".maildir/tmp"), [""; 0]);
    for (rec, place) in [(&recs[0], format!("new/{a}")), (&recs[1], format!("cur/{b}:2,S"))] {
        let (file, place) = (rec.archived(0), format!(".maildir/{place}"));
        assert_eq!(m.bytes(&place), m.bytes(&file));
        let look = |path: &str| {
            let meta = fs::metadata(m.path(path)).unwrap();
            (meta.mode(), meta.mtime(), meta.len(), meta.uid())
        };
        assert_eq!(look(&place), look(&file));
    }
}

/// S550, S14: a message keeps its inode number when it is moved, and from mount to mount.
#[test]
fn s550_inode_numbers_stay() {
    let (bed, m, _, [a, ..]) = three();
    let ino = |m: &Mount, place: &str| fs::metadata(m.path(place)).unwrap().ino();
    let first = ino(&m, &format!(".maildir/new/{a}"));
    let folders = [".maildir", ".maildir/new", ".maildir/cur", ".maildir/tmp"];
    let before = folders.map(|f| ino(&m, f));
    mv(&m, &format!("new/{a}"), &format!("cur/{a}:2,FS"));
    assert_eq!(ino(&m, &format!(".maildir/cur/{a}:2,FS")), first);
    m.umount();
    let m = bed.mount("bar");
    assert_eq!(ino(&m, &format!(".maildir/cur/{a}:2,FS")), first);
    assert_eq!(folders.map(|f| ino(&m, f)), before);
}

/// S551: a program that reads everything marks nothing, whichever it is.
#[test]
fn s551_reading_marks_nothing() {
    let (_bed, m, _, [a, b, c]) = three();
    m.ok("cat .maildir/new/* > /dev/null; md5sum .maildir/new/*; tail -n 1 .maildir/new/*");
    m.py("print(len(open(sys.argv[1]).read()))", &[&format!(".maildir/new/{a}")]);
    let names = [a, b, c].map(|n| format!("{n}.txt"));
    m.inbox_stays(&names.each_ref().map(String::as_str));
    assert_eq!(cur(&m), [""; 0]);
}

/// S552: a move marks, and removing `S` unmarks, in one step with the move. This holds for `rename` that replaces
/// nothing, and without a mount, too.
#[test]
fn s552_moving_marks() {
    let (bed, m, _, [a, b, c]) = three();
    mv(&m, &format!("new/{a}"), &format!("cur/{a}:2,S"));
    m.ok(&format!("mv -n .maildir/new/{b} .maildir/cur/{b}:2,S"));
    assert_eq!(m.ls("inbox"), [format!("{c}.txt")]);
    assert_eq!(cur(&m), [format!("{a}:2,S"), format!("{b}:2,S")]);
    assert!(m.cat("status.txt").contains("unread: 1"));
    mv(&m, &format!("cur/{a}:2,S"), &format!("new/{a}"));
    assert_eq!(m.ls("inbox"), [format!("{a}.txt"), format!("{c}.txt")]);
    // After it was made unread, `.next` hands it out like any other message.
    assert!(m.cat(".next").contains("first of three"));
    assert_eq!(m.ls("inbox"), [format!("{c}.txt")]);
    m.umount();
    let out = bed.msgfs_out(&[
        "--me",
        "bar",
        "mv",
        &format!(".maildir/new/{c}"),
        &format!(".maildir/cur/{c}:2,S"),
    ]);
    assert!(out.ok(), "{out:?}");
    assert_eq!(bed.msgfs_out(&["--me", "bar", "ls", ".maildir/new"]).stdout, "");
}

/// S552, S35: the mark survives a `kill -9` right after the move has returned, and the loss of the cache.
#[test]
fn s552_a_move_survives_a_kill() {
    let (bed, m, _, [a, b, c]) = three();
    mv(&m, &format!("new/{a}"), &format!("cur/{a}:2,S"));
    mv(&m, &format!("new/{b}"), &format!("cur/{b}:2,Fa"));
    m.ok(&format!("rm .maildir/new/{c}"));
    m.kill9();
    let shown = (Vec::<String>::new(), vec![format!("{a}:2,S"), format!("{b}:2,Fa")]);
    for _ in 0..2 {
        let m = bed.mount("bar");
        assert_eq!((new(&m), cur(&m)), shown);
        assert_eq!(m.ls("inbox"), [format!("{b}.txt")]);
        m.umount();
        fs::remove_dir_all(bed.path("cache/msgfs")).unwrap();
    }
}

/// S553: a message that a program has seen and nobody has read is unread and in `cur/`, also after a remount. A
/// message that is made unread elsewhere is new.
#[test]
fn s553_seen_and_not_read() {
    let (bed, m, recs, [a, b, c]) = three();
    mv(&m, &format!("new/{a}"), &format!("cur/{a}:2,"));
    mv(&m, &format!("new/{b}"), &format!("cur/{b}"));
    m.umount();
    let m = bed.mount("bar");
    assert_eq!((new(&m), cur(&m)), (vec![c.clone()], vec![format!("{a}:2,"), b.clone()]));
    assert_eq!(m.ls("inbox").len(), 3);
    m.ok("cat inbox/* > /dev/null");
    let read = [&a, &b, &c].map(|n| format!("{n}:2,S"));
    assert_eq!((new(&m), cur(&m)), (Vec::new(), read.to_vec()));
    m.ok(&format!("mv {} {} inbox/", recs[0].archived(0), recs[2].archived(0)));
    assert_eq!((new(&m), cur(&m)), (vec![a.clone(), c], vec![format!("{b}:2,S")]));
    // The mark alone does not decide this: the message was unread, and is new again.
    mv(&m, &format!("new/{a}"), &format!("cur/{a}:2,"));
    m.ok(&format!("mv {} inbox/", recs[0].archived(0)));
    assert!(new(&m).contains(&a), "{:?}", new(&m));
}

/// S554: flags stay as they were spelled, also those that mean nothing here. A mark elsewhere changes only `S`.
#[test]
fn s554_flags_are_kept() {
    let (bed, m, recs, [a, b, c]) = three();
    mv(&m, &format!("new/{a}"), &format!("cur/{a}:2,DFPSab"));
    mv(&m, &format!("new/{b}"), &format!("cur/{b}:2,SbaF"));
    mv(&m, &format!("new/{c}"), &format!("new/{c}:2,F"));
    let kept = vec![format!("{a}:2,DFPSab"), format!("{b}:2,SbaF")];
    assert_eq!((new(&m), cur(&m)), (vec![format!("{c}:2,F")], kept.clone()));
    m.umount();
    fs::remove_dir_all(bed.path("cache/msgfs")).unwrap();
    let m = bed.mount("bar");
    assert_eq!((new(&m), cur(&m)), (vec![format!("{c}:2,F")], kept));
    m.ok(&format!("mv {} inbox/ && cat inbox/{c}.txt > /dev/null", recs[0].archived(0)));
    assert_eq!(new(&m), [format!("{a}:2,DFPab")]);
    assert_eq!(cur(&m), [format!("{b}:2,SbaF"), format!("{c}:2,FS")]);
    m.cat(&format!("inbox/{a}.txt"));
    assert_eq!(cur(&m)[0], format!("{a}:2,DFPSab"));
}

/// S555: `R` is there once the message was answered, read or not, by any program. If it is removed, it stays away.
#[test]
fn s555_answered() {
    let (bed, m, _, [a, b, c]) = three();
    m.cat(&format!("inbox/{a}.txt"));
    m.ok(&format!("echo yes > inbox/{a}.reply; echo no > inbox/{b}.reply"));
    let (of_new, of_cur) = (vec![format!("{b}:2,R"), c.clone()], vec![format!("{a}:2,RS")]);
    assert_eq!((new(&m), cur(&m)), (of_new.clone(), of_cur.clone()));
    m.umount();
    let m = bed.mount("bar");
    assert_eq!((new(&m), cur(&m)), (of_new.clone(), of_cur.clone()));
    m.umount();
    fs::remove_dir_all(bed.path("cache/msgfs")).unwrap();
    let m = bed.mount("bar");
    assert_eq!((new(&m), cur(&m)), (of_new, of_cur));
    mv(&m, &format!("cur/{a}:2,RS"), &format!("cur/{a}:2,S"));
    // The program answered elsewhere.
    mv(&m, &format!("new/{c}"), &format!("cur/{c}:2,RS"));
    assert_eq!(cur(&m), [format!("{a}:2,S"), format!("{c}:2,RS")]);
    m.umount();
    assert_eq!(cur(&bed.mount("bar")), [format!("{a}:2,S"), format!("{c}:2,RS")]);
}

/// S555: the same holds in stores whose threads are made of links.
#[test]
fn s555_answered_in_other_kinds() {
    let bed = Bed::new();
    let (home, letters) = (amp::Home::new(&bed), agz::Tree::new(&bed));
    bed.config(&format!("{}{}", home.store(), letters.store()));
    home.receive(&amp::Msg::new("by AMP", "text", 1).signed(2));
    letters.receive(&agz::Letter::new("alice@localhost", "by AgentAZAll", "text", 2));
    let m = bed.mount("bar");
    let plain = new(&m);
    assert_eq!(plain.len(), 2, "{}", m.cat("status.txt"));
    for name in &plain {
        m.ok(&format!("echo thanks > inbox/{name}.reply"));
    }
    let answered: Vec<String> = plain.iter().map(|name| format!("{name}:2,R")).collect();
    assert_eq!(new(&m), answered, "{}", m.cat("status.txt"));
}

/// S552, S555: a move is a mark like any other: it claims a queue's file.
#[test]
fn s552_a_move_claims() {
    let bed = Bed::new();
    let queue = Queue::new(&bed, &["alice", "bob"]);
    bed.config(&queue.store());
    let (file, text) = mail(3);
    agz::put(&queue.root.join(&file), text);
    let m = bed.mount("bob");
    let name = new(&m).remove(0);
    m.ok(&format!("echo thanks > inbox/{name}.reply"));
    assert_eq!(new(&m), [format!("{name}:2,R")]);
    assert!(queue.root.join(&file).exists());
    mv(&m, &format!("new/{name}:2,R"), &format!("cur/{name}:2,RS"));
    soon("the file is claimed", || {
        !queue.root.join(&file).exists() && queue.root.join(file.replace("/new/", "/cur/")).exists()
    });
    assert_eq!(cur(&m), [format!("{name}:2,RS")]);
}

/// S556: a message that is thrown away or removed is read, and is hidden only in `.maildir/`. `T` can be removed
/// again, and a message that is made unread is there again.
#[test]
fn s556_removing_hides() {
    let (bed, m, recs, [a, b, c]) = three();
    let logs = ["foo", "carol"].map(|n| samp::log(&bed.store, n));
    let before = logs.each_ref().map(|log| fs::read(log).unwrap());
    m.ok(&format!("rm .maildir/new/{a}"));
    mv(&m, &format!("new/{b}"), &format!("cur/{b}:2,FT"));
    mv(&m, &format!("new/{c}"), &format!("new/{c}:2,T"));
    assert_eq!((new(&m), cur(&m), m.ls("inbox")), Default::default());
    assert_eq!(logs.each_ref().map(|log| fs::read(log).unwrap()), before);
    for rec in &recs {
        assert_eq!(m.cat(&rec.archived(0)), rec.file("none"));
    }
    m.umount();
    let m = bed.mount("bar");
    assert_eq!((new(&m), cur(&m), m.ls("inbox")), Default::default());
    assert!(!m.sh(&format!("cat .maildir/cur/{a}:2,S")).ok());
    mv(&m, &format!("cur/{b}:2,FST"), &format!("cur/{b}:2,FS"));
    assert_eq!(cur(&m), [format!("{b}:2,FS")]);
    m.ok(&format!("mv {} {} inbox/", recs[0].archived(0), recs[2].archived(0)));
    assert_eq!(new(&m), [a.clone(), c.clone()]);
    m.ok("cat inbox/* > /dev/null");
    assert_eq!(cur(&m), [format!("{a}:2,S"), format!("{b}:2,FS"), format!("{c}:2,S")]);
    m.umount();
    assert_eq!(cur(&bed.mount("bar")).len(), 3);
}

/// Returns the answers of the system to a list of calls, as names of errors.
fn said(m: &Mount, names: &[&str; 2], calls: &str) -> Vec<String> {
    let program = format!(
        "import errno, shutil\nos.chdir('.maildir')\na, b = sys.argv[1:]\n\
         def said(call):\n\
         \x20   try: call()\n\
         \x20   except OSError as e: return errno.errorcode[e.errno]\n\
         \x20   return 'done'\n\
         w = os.O_WRONLY | os.O_CREAT\n\
         for call in [{calls}]: print(said(call))"
    );
    m.py(&program, names).lines().map(str::to_owned).collect()
}

/// S557: every other operation is refused and changes nothing.
#[test]
fn s557_nothing_else_can_be_done() {
    let (bed, m, _, [a, b, _]) = three();
    let before = (new(&m), cur(&m), m.ls("inbox"));
    let not_permitted = "
        lambda: os.open('tmp/x', w), lambda: os.open('new/x', w), lambda: os.open('cur/x:2,S', w),
        lambda: os.open('x', w), lambda: os.mkdir('tmp/x'), lambda: os.mkdir('.Sent'),
        lambda: os.rmdir('tmp'), lambda: os.rename('tmp', 'temp'), lambda: os.mkfifo('tmp/x'),
        lambda: os.link('new/' + a, 'cur/' + a), lambda: os.symlink('new/' + a, 'cur/' + a),
        lambda: os.rename('new/' + a, 'tmp/' + a), lambda: os.rename('new/' + a, 'new/' + a + ':2,S'),
        lambda: os.rename('new/' + a, 'cur/other:2,S'), lambda: os.rename('new/' + a, 'cur/' + b + ':2,S'),
        lambda: os.rename('new/' + a, 'new/' + b), lambda: os.rename('new/' + a, 'cur/' + a + ':1,S'),
        lambda: os.rename('new/' + a, 'cur/' + a + ':2,S S'), lambda: os.rename('new/' + a, a),
        lambda: os.rename('new/' + a, '../inbox/' + a + '.txt'),
        lambda: os.rename('../inbox/' + a + '.txt', 'cur/' + a + ':2,S'),
        lambda: os.utime('new/' + a), lambda: os.truncate('new/' + a, 0), lambda: os.chmod('new', 0o777),
    ";
    let of = said(&m, &[&a, &b], not_permitted);
    assert!(of.len() == 24 && of.iter().all(|e| e == "EPERM" || e == "EACCES"), "{of:?}");
    let missing = "
        lambda: os.rename('cur/' + a + ':2,S', 'cur/' + a + ':2,FS'), lambda: os.unlink('cur/' + a + ':2,S'),
        lambda: os.rename('new/' + a + ':2,', 'cur/' + a + ':2,S'), lambda: os.stat('cur/' + a),
        lambda: os.stat('new/' + a + '.txt'), lambda: os.stat('new/' + a[-8:]), lambda: os.stat('tmp/' + a),
    ";
    assert_eq!(said(&m, &[&a, &b], missing), ["ENOENT"; 7]);
    assert_eq!((new(&m), cur(&m), m.ls("inbox")), before);
    mv(&m, &format!("new/{a}"), &format!("cur/{a}:2,FS"));
    let ro = bed.mount_at(&bed.path("ro"), "bar", &["--read-only"]);
    assert_eq!(cur(&ro), [format!("{a}:2,FS")]);
    let moves = "
        lambda: os.rename('cur/' + a + ':2,FS', 'cur/' + a + ':2,S'), lambda: os.unlink('new/' + b),
        lambda: os.rename('new/' + b, 'cur/' + b + ':2,S'), lambda: os.open('tmp/x', w),
    ";
    assert_eq!(said(&ro, &[&a, &b], moves), ["EROFS"; 4]);
    assert_eq!((new(&ro).len(), cur(&ro)), (2, vec![format!("{a}:2,FS")]));
}

/// S558: each change of `new/` or `cur/` gives both a later time. Nothing else does.
#[test]
fn s558_folders_tell_that_they_changed() {
    let (bed, m, recs, [a, b, _]) = three();
    let times = |folders: [&str; 2]| {
        folders.map(|f| {
            let meta = fs::metadata(m.path(format!(".maildir/{f}"))).unwrap();
            (meta.mtime(), meta.mtime_nsec())
        })
    };
    let still = times([".", "tmp"]);
    let mut last = times(["new", "cur"]);
    let mut later = |what: &str| {
        let now = times(["new", "cur"]);
        assert!(now.iter().zip(&last).all(|(now, then)| now > then), "{what}: {now:?} {last:?}");
        last = now;
        assert_eq!(last, times(["new", "cur"]), "{what}: and then they stay");
    };
    mv(&m, &format!("new/{a}"), &format!("cur/{a}:2,S"));
    later("moved");
    mv(&m, &format!("cur/{a}:2,S"), &format!("cur/{a}:2,FS"));
    later("flagged");
    for (from, to) in [("FS", "S"), ("S", "FS"), ("FS", "aS"), ("aS", ""), ("", "FS")] {
        mv(&m, &format!("cur/{a}:2,{from}"), &format!("cur/{a}:2,{to}"));
        later(to);
    }
    m.ok(&format!("rm .maildir/cur/{a}:2,FS"));
    later("removed");
    m.cat(&format!("inbox/{b}.txt"));
    later("read elsewhere");
    m.ok(&format!("mv {} inbox/", recs[0].archived(0)));
    later("unread again");
    samp::append(&bed.store, "foo", "bar", "plan", "late", T0 + 3);
    soon("it is here", || new(&m).len() == 3);
    later("new mail, whatever its time");
    m.ok(&format!("echo yes > inbox/{a}.reply"));
    soon("it is answered", || new(&m).contains(&format!("{a}:2,FR")));
    later("answered");
    assert_eq!(times([".", "tmp"]), still);
}

/// S559: a name is gone when the call that changed it has returned. No cache keeps it, and no rename to a name
/// that was known before is lost.
#[test]
fn s559_no_name_is_kept() {
    let (_bed, m, recs, [a, ..]) = three();
    let (read, file) = (format!("cur/{a}:2,S"), recs[0].archived(0));
    let said = m.py(
        "new, read, kept, shown = sys.argv[1:]\n\
         os.chdir('.maildir')\n\
         def look(): return [os.path.exists(name) for name in (new, read, shown)]\n\
         for _ in range(5):\n\
         \x20   print(*look())\n\
         \x20   os.system('cat ' + shown + ' > /dev/null')\n\
         \x20   print(*look()[:2])\n\
         \x20   os.rename('../' + kept, shown)\n\
         \x20   print(*look())\n\
         \x20   os.system('cat ' + shown + ' > /dev/null')\n\
         \x20   look()\n\
         \x20   os.rename('../' + kept, shown)\n\
         \x20   os.rename(new, read)\n\
         \x20   print(*[os.path.basename(shown) in os.listdir('../inbox')] + look()[:2])\n\
         \x20   os.rename(read, new)\n",
        &[&format!("new/{a}"), &read, &file, &format!("../inbox/{a}.txt")],
    );
    let round = "True False True\nFalse True\nTrue False True\nFalse False True\n";
    assert_eq!(said, round.repeat(5));
}

/// S560: a copy is complete, and copying again, in either direction, finds nothing to do.
#[test]
fn s560_backups() {
    let (bed, m, _, [a, b, c]) = three();
    mv(&m, &format!("new/{a}"), &format!("cur/{a}:2,FS"));
    mv(&m, &format!("new/{b}"), &format!("cur/{b}:2,"));
    let to = bed.path("backup");
    let to = to.display();
    m.ok(&format!("rsync -a .maildir/ {to}/ && diff -r .maildir {to}"));
    assert_eq!(m.ok(&format!("cd {to} && ls -1 new cur")).lines().count(), 6);
    assert_eq!(m.ok(&format!("rsync -ai .maildir/ {to}/; rsync -ai {to}/ .maildir/")), "");
    let names = [a, b, c].map(|n| format!("{n}.txt"));
    m.inbox_stays(&[&names[1], &names[2]]);
}

/// S561: if only removing marks, a move marks, too.
#[test]
fn s561_on_remove() {
    let bed = Bed::new();
    bed.config("mark_read = \"on-remove\"\n");
    let rec = samp::append(&bed.store, "foo", "bar", "plan", "text", T0);
    let m = bed.mount("bar");
    let (name, file) = (base(&rec.name(0)).to_owned(), rec.name(0));
    m.cat(&format!(".maildir/new/{name}"));
    m.inbox_stays(&[&file]);
    mv(&m, &format!("new/{name}"), &format!("cur/{name}:2,S"));
    assert_eq!((m.ls("inbox"), cur(&m)), (Vec::new(), vec![format!("{name}:2,S")]));
}
