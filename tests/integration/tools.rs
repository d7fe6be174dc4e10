//! Editors and copy tools, which write into `outbox/` as they write anywhere else.

use crate::common::fixtures::mounted_three;
use crate::common::samp::{self, T0, bodies, member, only, read_log};
use crate::common::{Bed, Mount, soon};

fn mounted() -> (Bed, Mount) {
    let bed = Bed::new();
    std::fs::write(bed.path("letter"), "from a file\n").unwrap();
    let m = bed.mount("bar");
    (bed, m)
}

/// Checks that the script sends exactly one message to bob with this text and leaves outbox/ empty.
#[track_caller]
fn sends(script: &str, body: &str) {
    let (bed, m) = mounted();
    let out = m.sh(script);
    assert!(out.ok(), "{script}: {out:?}");
    soon("outbox/ is empty", || m.ls("outbox").is_empty());
    let r = only(&bed.store, "bar");
    assert_eq!((member(&r, "to"), member(&r, "body")), ("bob", body), "{script}");
}

/// S61: echo, here documents, pipes and tee send.
#[test]
fn s61_shell() {
    sends("echo 'tests are green' > outbox/bob", "tests are green");
    sends("cat > outbox/bob <<EOF\nline one\n\nline three\nEOF", "line one\n\nline three");
    sends("echo piped | tee outbox/bob > /dev/null", "piped");
    sends("echo piped | cat > outbox/bob", "piped");
    sends("printf 'no newline' > outbox/bob", "no newline");
}

/// S61: Python sends.
#[test]
fn s61_python() {
    sends("python3 -c \"open('outbox/bob','w').write('from python')\"", "from python");
    sends(
        "python3 -c \"import pathlib; pathlib.Path('outbox/bob.txt').write_text('a\\nb\\n')\"",
        "a\nb",
    );
    sends(
        "python3 -c \"import os; f=os.open('outbox/bob',os.O_WRONLY|os.O_CREAT|os.O_EXCL,0o600); os.write(f,b'x'); os.fsync(f); os.close(f)\"",
        "x",
    );
}

/// S61: cp, cp -a, mv, install and dd send.
#[test]
fn s61_copies() {
    sends("cp ../letter outbox/bob", "from a file");
    sends("cp -a ../letter outbox/bob", "from a file");
    sends("mv ../letter outbox/bob", "from a file");
    sends("dd if=../letter of=outbox/bob status=none conv=fsync", "from a file");
    sends("cp ../letter ../bob.txt; mv ../bob.txt outbox/", "from a file");
}

/// S282: a program can set mode, owner and times of a draft, also by its name, and of `outbox/`. A program that
/// only looks for the draft does not find it.
#[test]
fn s282_modes_and_times_of_drafts_are_taken() {
    sends("install -m 600 ../letter outbox/bob", "from a file");
    sends("install -p ../letter outbox/bob", "from a file");
    sends("mkdir ../many; cp ../letter ../many/bob; rsync -a ../many/ outbox/", "from a file");
    sends("cp -a ../letter outbox/bob; chmod 700 outbox; touch outbox", "from a file");
    sends("python3 -c 'import shutil; shutil.copy2(\"../letter\", \"outbox/bob\")'", "from a file");
    sends("{ echo hi; } > outbox/bob; ! test -e outbox/bob", "hi");
    sends("echo hi > outbox/bob.tmp; chmod 640 outbox/bob.tmp; mv outbox/bob.tmp outbox/bob", "hi");
}

/// S282: nobody else can become the owner of a draft. Outside `outbox/` such calls are refused.
#[test]
fn s282_owners_are_not_changed() {
    let bed = Bed::new();
    let m = bed.mount("bar");
    m.ok("echo hi > outbox/bob.tmp; chown $(id -u):$(id -g) outbox/bob.tmp outbox");
    for script in ["chown 12345 outbox/bob.tmp", "chown 12345 outbox", "chmod 755 inbox"] {
        let out = m.sh(script);
        assert!(!out.ok() && out.stderr.contains("not permitted"), "{script}: {out:?}");
    }
}

/// S61: rsync writes a hidden temporary file and renames it, which sends.
#[test]
fn s61_rsync() {
    sends("cp ../letter ../bob; rsync -a ../bob outbox/", "from a file");
}

/// S61: vim writes a message. Its swap file and its probes send nothing.
#[test]
fn s61_vim() {
    let (bed, m) = mounted();
    // Vim's later complaints about the file that was sent and is gone do not matter here.
    m.sh("vim -es -u NONE -i NONE -c 'normal ifrom vim' -c wq outbox/bob");
    soon("outbox/ is empty", || m.ls("outbox").is_empty());
    assert_eq!(bodies(&bed.store, "bar"), ["from vim"]);
    // This vim has swap file, backup and the usual defaults.
    m.sh("vim -es -N -u NONE -i NONE --cmd 'set swapfile backup writebackup' -c 'normal isecond' -c 'write' -c 'quit' outbox/carol");
    soon("the second is sent", || bodies(&bed.store, "bar").contains(&"second".to_owned()));
    assert_eq!(read_log(&bed.store, "bar").len(), 2);
}

/// Opens a file with nano in a terminal, types a text, saves and ends.
#[track_caller]
fn nano(m: &Mount, file: &str, text: &str) {
    m.py(
        r"
import pty, time, select
pid, tty = pty.fork()
if pid == 0:
    os.environ['TERM'] = 'xterm'
    os.execvp('nano', ['nano', '--ignorercfiles', sys.argv[1]])
def until(text):
    seen, end = b'', time.time() + 15
    while text not in seen:
        assert time.time() < end, seen
        if select.select([tty], [], [], 0.2)[0]:
            try: seen += os.read(tty, 65536)
            except OSError: return
until(b'Exit')
os.write(tty, sys.argv[2].encode())
until(b'nano')
os.write(tty, b'\x0f')
until(b'Write')
os.write(tty, b'\r')
time.sleep(0.7)
os.write(tty, b'\x18')
end = time.time() + 10
while os.waitpid(pid, os.WNOHANG) == (0, 0):
    assert time.time() < end, 'nano does not end'
    if select.select([tty], [], [], 0.1)[0]:
        try: os.read(tty, 65536)
        except OSError: pass
",
        &[file, text],
    );
}

/// S61: nano in a terminal sends.
#[test]
fn s61_nano() {
    let (bed, m) = mounted();
    nano(&m, "outbox/bob", "from nano");
    soon("the message is sent", || bodies(&bed.store, "bar") == ["from nano"]);
    assert_eq!(m.ls("outbox"), [""; 0]);
}

/// S224: editors open a reply as an empty file, and the text that they save is the answer. Each save is one
/// answer.
#[test]
fn s224_editors_write_replies() {
    let (bed, m, recs, names) = mounted_three();
    let beside = |name: &str| format!("inbox/{}.reply", name.trim_end_matches(".txt"));
    let reply = beside(&names[0]);
    assert_eq!(m.ok(&format!("cat {reply}; stat -c '%s %a' {reply}")), "0 600\n");
    let vim = "vim -es -N -u NONE -i NONE --cmd 'set swapfile backup writebackup'";
    m.sh(&format!("{vim} -c 'normal ifrom vim' -c write -c 'normal o, again' -c wq {reply}"));
    soon("vim's are sent", || read_log(&bed.store, "bar").len() == 2);
    m.sh(&format!("vim -es -c 'normal iwith defaults' -c wq inbox/{}.reply", &recs[0].id[..8]));
    soon("the third is sent", || read_log(&bed.store, "bar").len() == 3);
    nano(&m, &beside(&names[0]), "from nano");
    soon("nano's is sent", || read_log(&bed.store, "bar").len() == 4);
    m.ok(&format!("python3 -c \"f=open('{reply}','r+'); assert f.read()==''; f.write('read and written'); f.close()\""));
    soon("the last is sent", || read_log(&bed.store, "bar").len() == 5);
    let said = ["from vim", "from vim\n, again", "with defaults", "from nano", "read and written"];
    assert_eq!(bodies(&bed.store, "bar"), said);
    for r in read_log(&bed.store, "bar") {
        assert_eq!((member(&r, "to"), member(&r, "re")), ("foo", recs[0].id.as_str()));
    }
    assert_eq!((m.ls("outbox"), m.ls("inbox")), (Vec::new(), names));
}

/// S1219: `mv` from another file system and `install` remove a reply before they write it, and send one answer.
#[test]
fn s1219_moved_replies() {
    let (bed, m, recs, names) = mounted_three();
    let beside = |ending: &str| format!("inbox/{}", names[0].replace(".txt", ending));
    let reply = beside(".reply");
    let mut said = Vec::new();
    for script in [
        format!("mv ../answer {reply}"),
        format!("install -m 600 ../answer {reply}"),
        format!("mv ../answer {}", beside(".reply-all")),
        format!("mv ../answer archive/{}/{}.reply", recs[0].day(), &recs[0].id[..8]),
        format!("mv ../answer threads/plan/{}", names[0].replace(".txt", ".reply")),
    ] {
        std::fs::write(bed.path("answer"), format!("{script}\n")).unwrap();
        m.ok(&script);
        said.push(script);
        soon("it is sent", || read_log(&bed.store, "bar").len() == said.len());
    }
    assert_eq!(bodies(&bed.store, "bar"), said);
    for r in read_log(&bed.store, "bar") {
        assert_eq!((member(&r, "to"), member(&r, "re")), ("foo", recs[0].id.as_str()));
    }
    m.ok(&format!("rm {reply}; test -e {reply}"));
    assert_eq!((m.ls("inbox"), read_log(&bed.store, "bar").len()), (names, said.len()));
}

/// S61, S65: sed -i works on a private draft, and on a refused one.
#[test]
fn s61_sed() {
    sends(
        "echo helo > outbox/bob.part; sed -i s/helo/hello/ outbox/bob.part; mv outbox/bob.part outbox/bob",
        "hello",
    );
    let (bed, m) = mounted();
    m.sh("printf 'To: b d\\n\\nbody\\n' | tee outbox/bob");
    assert_eq!(m.ls("outbox"), ["bob", "bob.error"]);
    m.ok("sed -i 's/To: b d/To: bob/' outbox/bob");
    let r = only(&bed.store, "bar");
    assert_eq!((member(&r, "to"), member(&r, "body")), ("bob", "body"));
    soon("draft and error are gone", || m.ls("outbox").is_empty());
}

/// S15, S28, S61: a second `rsync -a` of the whole tree transfers nothing, also after a remount.
#[test]
fn s15_rsync_twice() {
    let bed = Bed::new();
    let recs = crate::common::fixtures::three(&bed);
    samp::append_raw(&samp::log(&bed.store, "foo"), "garbage\n");
    samp::append(&bed.store, "bar", "foo", "plan", "mine", T0 + 1);
    let m = bed.mount("bar");
    let to = bed.path("backup");
    m.ok(&format!("rsync -a ./ {}/", to.display()));
    let again = format!("rsync -ai ./ {}/", to.display());
    assert_eq!(m.ok(&again), "");
    m.umount();
    std::fs::remove_dir_all(bed.path("cache")).unwrap();
    let m = bed.mount("bar");
    assert_eq!(m.ok(&again), "");
    // rsync transfers the new message and nothing else.
    let new = samp::append(&bed.store, "foo", "bar", "plan", "new", T0 + 9000);
    m.appears(&format!("inbox/{}", new.name(0)));
    let changed = m.ok(&again);
    assert!(changed.contains(&new.name(0)) && !changed.contains(&recs[0].name(0)), "{changed}");
    let copy = std::fs::read_to_string(to.join(recs[0].archived(0))).unwrap();
    assert_eq!(copy, recs[0].file("none"));
}

/// S13, S15: tar twice gives the same bytes, and the unpacked files equal the output of cat.
#[test]
fn s15_tar() {
    let (bed, m, recs, _) = crate::common::fixtures::mounted_three();
    let script = "tar c --sort=name archive threads | sha256sum";
    assert_eq!(m.ok(script), m.ok(script));
    let out = bed.path("x");
    m.ok(&format!("mkdir {0} && tar c archive threads transcripts | tar x -C {0}", out.display()));
    for r in &recs {
        assert_eq!(std::fs::read_to_string(out.join(r.archived(0))).unwrap(), r.file("none"));
    }
    m.ok(&format!("diff -r transcripts {}/transcripts", out.display()));
}

/// S169: rsync can write in place, with `-a` and without it, into `outbox/` and a thread.
#[test]
fn s169_rsync_in_place() {
    let (bed, m, ..) = mounted_three();
    std::fs::write(bed.path("cwd/foo"), "in place\n").unwrap();
    let from = bed.path("cwd/foo");
    for (n, (options, to)) in
        [("", "outbox/"), ("-a", "outbox/"), ("-t", "threads/plan/")].into_iter().enumerate()
    {
        let out = m.sh(&format!("rsync {options} --inplace {} {to}", from.display()));
        assert!(out.ok(), "{options} {to}: {out:?}");
        assert!(!m.ls(to).contains(&"foo".to_owned()));
        assert_eq!(samp::read_log(&bed.store, "bar").len(), n + 1);
        assert!(!m.sh(&format!("stat {to}foo")).ok(), "only rsync sees it");
    }
}
