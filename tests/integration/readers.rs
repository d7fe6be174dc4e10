//! Programs that read: sizes, seeking, mapping, many at once, large folders.

use crate::common::fixtures::{mounted_three, strs};
use crate::common::samp::{self, T0};
use crate::common::{Bed, soon};

/// S13: seeking, mapping and reading in odd pieces give the same bytes.
#[test]
fn s13_every_way_to_read() {
    let bed = Bed::new();
    let body: String = (0..60_000).map(|i| format!("{i} ")).collect();
    let r = samp::append(&bed.store, "foo", "bar", "t", &body, T0);
    let m = bed.mount("bar");
    m.py(
        "
import mmap, hashlib
p = sys.argv[1]
whole = open(p, 'rb').read()
assert len(whole) == os.stat(p).st_size
f = os.open(p, os.O_RDONLY)
assert b''.join(os.pread(f, 4093, o) for o in range(0, len(whole), 4093)) == whole
assert os.pread(f, 100, len(whole)) == b'' and os.pread(f, 100, len(whole) + 10**9) == b''
assert os.pread(f, 10**7, len(whole) - 5) == whole[-5:]
assert mmap.mmap(f, 0, prot=mmap.PROT_READ)[:] == whole
assert os.lseek(f, -5, os.SEEK_END) == len(whole) - 5
",
        &[&r.archived(0)],
    );
    assert_eq!(
        m.ok(&format!("tail -c 20 {0}; head -c 4 {0}; wc -c < {0}", r.archived(0))),
        format!("{}From{}\n", &r.file("none")[r.file("none").len() - 20..], r.file("none").len())
    );
}

/// S4, S13: a folder of three thousand messages lists all of them, once each, in order.
#[test]
fn s4_many() {
    let bed = Bed::new();
    let lines: String = (0..3000)
        .map(|i| samp::Rec::new("foo", "bar", "bulk", &format!("mail {i}"), T0 + i / 7).line())
        .collect();
    samp::append_raw(&samp::log(&bed.store, "foo"), lines);
    let m = bed.mount("bar");
    let names = m.ls("inbox");
    assert_eq!(names.len(), 3000);
    assert_eq!(m.ok("ls -U inbox | sort -u | wc -l").trim(), "3000");
    assert_eq!(m.ok("ls -f threads/bulk | grep -vx '[.]*' | LC_ALL=C sort -c; ls -f threads/bulk | grep -c txt").trim(), "3000");
    let text = m.ok("cat threads/bulk/* | grep '^mail '");
    let expected: String = (0..3000).map(|i| format!("mail {i}\n")).collect();
    assert_eq!(text, expected, "names sort as the conversation went");
}

/// S4, S27: a listing that is under way while mail arrives and leaves skips and doubles nothing.
#[test]
fn s27_listing_under_way() {
    let bed = Bed::new();
    for i in 0..500 {
        samp::append(&bed.store, "foo", "bar", "t", &format!("mail {i}"), T0 + i);
    }
    let m = bed.mount("bar");
    let before = m.ls("inbox");
    let out = m.py(
        "
it = os.scandir('inbox'); seen = [next(it).name for _ in range(3)]
import subprocess
subprocess.run(['rm', 'inbox/' + sys.argv[1]], check=True)
seen += [e.name for e in it]
assert len(seen) == len(set(seen))
print(*sorted(seen), sep='\\n')
",
        &[&before[0]],
    );
    let seen: Vec<&str> = out.lines().collect();
    assert!(before[1..].iter().all(|n| seen.contains(&n.as_str())));
    assert_eq!(m.ls("inbox"), before[1..]);
}

/// S13, S25: twenty readers at once get whole messages.
#[test]
fn s25_many_readers() {
    let (_bed, m, recs, _) = mounted_three();
    let all: String = recs.iter().map(|r| r.file("none")).collect();
    let out = m.ok("for i in $(seq 20); do (cat archive/*/* | sha256sum) & done; wait");
    let mut sums: Vec<_> = out.lines().collect();
    sums.dedup();
    assert_eq!(sums.len(), 1);
    assert_eq!(m.ok("cat archive/*/*"), all);
    m.ok("for i in $(seq 5); do cat inbox/* > /dev/null 2>&1 & done; wait");
    m.inbox_becomes(&[]);
}

/// S30: `tail -f` of the transcript follows the conversation.
#[test]
fn s30_tail_follows() {
    let (bed, m, recs, names) = mounted_three();
    let out = bed.path("tail.out");
    let mut c = bed.command("bash");
    c.args([
        "-c",
        &format!(
            "cd {} && exec timeout 20 tail -n +1 -f transcripts/plan.txt > {}",
            m.dir.display(),
            out.display()
        ),
    ]);
    let tail = crate::common::proc::Running::start(c, None).unwrap();
    let has = |s: &str| std::fs::read_to_string(&out).unwrap_or_default().contains(s);
    soon("tail shows what is there", || has(&recs[2].body));
    let new = samp::append(&bed.store, "foo", "bar", "plan", "arrived while tail ran", T0 + 9000);
    crate::common::wait_for(
        std::time::Duration::from_secs(6),
        "tail shows the new message",
        || has(&new.body),
    );
    drop(tail);
    let mut all = strs(&names);
    let name = new.name(0);
    all.push(&name);
    m.inbox_stays(&all);
}
