//! Large folders and large records take time in proportion to their size.

use std::fs;
use std::io::Write;
use std::time::Duration;

use crate::common::proc::run_for;
use crate::common::samp::{self, T0};
use crate::common::{Bed, Mount};
use crate::gone::{Kind, all};

/// A time limit. Code that goes through a folder once for each of its entries takes many minutes.
const LIMIT: Duration = Duration::from_secs(50);

/// Returns the number of entries that `ls -l` lists. Its first line is a sum.
#[track_caller]
fn entries(bed: &Bed, m: &Mount, folder: &str) -> usize {
    let mut c = bed.command("bash");
    c.args(["-c", &format!("ls -l {} | wc -l", m.path(folder).display())]);
    let out = run_for(c, None, LIMIT);
    assert!(out.ok() && out.stderr.is_empty(), "{folder}: {out:?}");
    out.stdout.trim().parse::<usize>().unwrap() - 1
}

/// S198: ten thousand thread ids of over 200 bytes, whose messages have one sender and one second, are listed in
/// time.
#[test]
fn s198_many_long_ids_of_one_second() {
    const N: usize = 10_000;
    let bed = Bed::new();
    let id = |n| format!("{}-{n}", "x".repeat(200));
    let lines: String =
        (0..N).map(|n| samp::Rec::new("foo", "bar", &id(n), "hello", T0).line()).collect();
    samp::append_raw(&samp::log(&bed.store, "foo"), lines);
    let m = bed.mount("bar");
    let day = samp::Rec::new("foo", "bar", "", "", T0).day();
    for folder in ["threads", "transcripts", "inbox", &format!("archive/{day}")] {
        assert_eq!(entries(&bed, &m, folder), N, "{folder}");
    }
}

/// S198: five thousand logs in `raw/`, and the rejected lines of each in `rejected/`, are listed in time.
#[test]
fn s198_many_logs() {
    const N: usize = 5_000;
    let bed = Bed::new();
    for n in 0..N {
        fs::write(samp::log(&bed.store, &format!("w{n}")), "broken\n").unwrap();
    }
    let m = bed.mount("bar");
    for folder in ["raw/samp", "rejected"] {
        assert_eq!(entries(&bed, &m, folder), N, "{folder}");
    }
    // The size is that of the file as it is now.
    let log = samp::log(&bed.store, "w7");
    m.ok("stat raw/samp/log-w7.jsonl");
    samp::append_raw(&log, "more\n");
    assert_eq!(
        m.ok("stat -c %s raw/samp/log-w7.jsonl; cat raw/samp/log-w7.jsonl"),
        "12\nbroken\nmore\n"
    );
}

/// S1218: a program stays in its folder while seventy thousand files are looked at by path.
#[test]
fn s1218_many_files_and_an_open_folder() {
    let bed = Bed::new();
    let m = bed.mount("bar");
    m.py(
        r"
top = os.getcwd()
os.mkdir('outbox/bob.tmp')
os.chdir('outbox/bob.tmp')
for n in range(70_000): os.stat(f'{top}/.sent/key={n}')
assert os.listdir('.') == []
assert not os.path.exists('body')
with open('plan.txt', 'w') as f: f.write('kept')
assert os.listdir('.') == ['plan.txt']
",
        &[],
    );
}

/// S199: a line of 600 MiB is shown cut, is not held in memory, and hides nothing.
#[test]
fn s199_a_huge_line() {
    let bed = Bed::new();
    let path = samp::log(&bed.store, "foo");
    let mut file = fs::File::create(&path).unwrap();
    file.write_all(b"{\"from\": \"").unwrap();
    file.set_len(600 << 20).unwrap();
    drop(file);
    let rec = samp::Rec::new("foo", "bar", "t", "after it", T0);
    samp::append_raw(&path, format!("\n{}", rec.line()));
    let m = bed.mount("bar");
    assert_eq!(m.ls("inbox"), [rec.name(0)]);
    let names = m.ls("rejected");
    assert_eq!(names.len(), 1);
    let text = m.cat(&format!("rejected/{}", names[0]));
    assert!(text.contains("longer than 64 MiB") && text.contains("only the beginning"));
    assert!(text.len() < 1 << 20, "{}", text.len());
    let status = fs::read_to_string(format!("/proc/{}/status", m.pid())).unwrap();
    let peak = status.lines().find_map(|l| l.strip_prefix("VmHWM:")).unwrap();
    let peak: usize = peak.trim().trim_end_matches(" kB").parse().unwrap();
    assert!(peak < 400 << 10, "{peak} KiB");
}

/// Counts the system calls with which the daemon looks at its stores while `find` and `ls -lR` go through `raw/`.
#[track_caller]
fn looks(bed: &Bed, m: &Mount) -> usize {
    let notes = bed.path("calls");
    let tracer = m.trace("openat,newfstatat,getdents64", "delay_exit=1", &notes);
    m.ok("find raw > /dev/null; ls -lR raw > /dev/null");
    tracer.signal(rustix::process::Signal::INT);
    tracer.finish(LIMIT).unwrap();
    fs::read_to_string(notes).unwrap().lines().count()
}

/// S198: in every kind of store, going through `raw/` costs system calls in proportion to the files in it.
#[test]
fn s198_raw_in_proportion() {
    const FEW: i64 = 30;
    const TIMES: usize = 5;
    for (small, large) in all().into_iter().zip(all()) {
        let dir = small.dir.display().to_string();
        let [few, many] = [(small, FEW), (large, FEW * TIMES as i64)].map(|(kind, n)| {
            let Kind { bed, deliver, .. } = kind;
            (1..=n).for_each(|n| drop(deliver(n)));
            let m = bed.mount("bar");
            looks(&bed, &m)
        });
        assert!(many < few * TIMES * 2, "{dir}: {few}, {many}");
    }
}
