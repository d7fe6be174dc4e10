//! Everything that changes the tree at once, against everything that reads it: nothing hangs, and nothing is lost.
//! The workers are processes of their own, because a thread that hangs cannot be ended.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::common::proc::Running;
use crate::common::samp::{self, T0};
use crate::common::{Bed, Mount, wait_for};

/// A program that does one kind of work again and again until the stop file is there, then prints the number of
/// rounds. Errors from refusals and from files that are gone do not matter here.
const WORKER: &str = r"
import os, sys
mount, stop, work = sys.argv[1:]
def each(folder):
    for name in os.listdir(f'{mount}/{folder}'):
        if os.path.exists(stop): return
        yield f'{mount}/{folder}/{name}'
def read(path):
    with open(path, 'rb') as f: f.read()
def days(folder):
    for day in os.listdir(f'{mount}/{folder}'):
        yield from each(f'{folder}/{day}')
def mark():
    for path in each('inbox'): os.unlink(path)
def unmark():
    for path in days('archive'): os.rename(path, f'{mount}/inbox/' + os.path.basename(path))
def send():
    with open(f'{mount}/outbox/foo', 'w') as f: f.write(f'message {done}\n')
def list():
    for folder, _, names in os.walk(mount):
        for name in names:
            if not os.path.exists(stop): os.lstat(f'{folder}/{name}')
def show():
    for folder in ['transcripts', 'rejected']:
        for path in each(folder): read(path)
    for path in days('archive'): read(path)
    read(f'{mount}/status.txt')
def next():
    with open(f'{mount}/.next', 'rb') as f: f.read()
done = 0
while not os.path.exists(stop):
    try:
        globals()[work]()
        done += 1
    except OSError:
        pass
print(done)
";

fn worker(bed: &Bed, m: &Mount, stop: &Path, work: &str) -> Running {
    let mut c = bed.command("python3");
    c.args(["-c", WORKER]).arg(&m.dir).arg(stop).arg(work);
    Running::start(c, None).unwrap()
}

/// Appends to a log as another program, and sometimes writes it anew, until `stop`.
fn arrive(bed: &Bed, stop: &AtomicBool, count: &AtomicU64) {
    let key = samp::key(7);
    while !stop.load(Ordering::Relaxed) {
        let n = count.fetch_add(1, Ordering::Relaxed);
        let rec = samp::Rec::new("foo", "bar", &format!("t{}", n % 5), &format!("n{n}"), T0);
        samp::append_signed(&bed.store, &key, &rec);
        if n % 100 == 99 {
            let log = samp::log(&bed.store, "foo");
            let new = bed.path("log.new");
            std::fs::copy(&log, &new).and_then(|_| std::fs::rename(&new, &log)).unwrap();
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Waits for the workers, and returns what each printed.
fn all_end(m: &Mount, workers: Vec<(&'static str, Running)>) -> Vec<(&'static str, String)> {
    let end = |(work, running): (&'static str, Running)| {
        let out = running.finish(Duration::from_secs(120)).unwrap();
        assert!(out.status.is_some(), "{work} hangs at {}", m.dir.display());
        (work, out.stdout.trim().to_owned())
    };
    workers.into_iter().map(end).collect()
}

/// S162: every pair of operations runs at once, for `MSGFS_STRESS_SECS` (15) seconds. With debug assertions, msgfs
/// also panics where locks are taken out of order, and says so.
#[test]
fn s162_nothing_hangs() {
    let secs: u64 =
        std::env::var("MSGFS_STRESS_SECS").ok().and_then(|s| s.parse().ok()).unwrap_or(15);
    let mut bed = Bed::new();
    bed.limit = Duration::from_secs(secs + 300);
    bed.config("wait_timeout = \"1s\"\n");
    samp::append(&bed.store, "foo", "bar", "t0", "first", T0);
    let m = bed.mount("bar");
    let (stop, over, count) = (bed.path("stop"), AtomicBool::new(false), AtomicU64::new(0));
    let works = ["mark", "unmark", "unmark", "send", "list", "show", "next"];
    let workers: Vec<_> = works.map(|w| (w, worker(&bed, &m, &stop, w))).into_iter().collect();
    let start = Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(|| arrive(&bed, &over, &count));
        while start.elapsed() < Duration::from_secs(secs) {
            // This command judges everything again, from outside.
            let _ = bed.msgfs_out(&["--me", "bar", "key", "forget", "foo"]);
            std::thread::sleep(Duration::from_millis(200));
        }
        over.store(true, Ordering::Relaxed);
    });
    std::fs::write(&stop, "").unwrap();
    for (work, times) in all_end(&m, workers) {
        println!("{work}: {times} times");
        assert!(times.parse::<u64>().is_ok_and(|n| n > 0), "{work} never got through: {times:?}");
    }
    let came = count.load(Ordering::Relaxed) as usize + 1;
    println!("{came} arrived");
    wait_for(Duration::from_secs(120), "everything that arrived is there", || {
        m.ok("ls archive/*/ | wc -l").trim() == came.to_string()
    });
    m.umount();
}

/// S163: nothing hangs when msgfs is killed while messages arrive, are marked and are moved back, three times.
#[test]
fn s163_nothing_hangs_when_it_is_killed() {
    let mut bed = Bed::new();
    bed.limit = Duration::from_secs(300);
    samp::append(&bed.store, "foo", "bar", "t0", "first", T0);
    let count = AtomicU64::new(0);
    for round in 0..3 {
        let m = bed.mount("bar");
        let (stop, over) = (bed.path(format!("stop{round}")), AtomicBool::new(false));
        let works = ["mark", "mark", "unmark", "unmark", "unmark", "list", "show"];
        let workers: Vec<_> = works.map(|w| (w, worker(&bed, &m, &stop, w))).into_iter().collect();
        std::thread::scope(|scope| {
            scope.spawn(|| arrive(&bed, &over, &count));
            std::thread::sleep(Duration::from_millis(1500));
            let pid = rustix::process::Pid::from_raw(m.pid()).unwrap();
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            wait_for(Duration::from_secs(30), "the killed msgfs is gone", || {
                !crate::common::alive(pid)
            });
            over.store(true, Ordering::Relaxed);
        });
        std::fs::write(&stop, "").unwrap();
        all_end(&m, workers);
        m.kill9();
    }
    let m = bed.mount("bar");
    let came = (count.load(Ordering::Relaxed) + 1).to_string();
    assert_eq!(m.ok("ls archive/*/ | wc -l").trim(), came);
    m.umount();
}

/// A program that moves every n-th message of `archive/` to `inbox/`, and prints the number of wrong files in
/// `inbox/` right after the move.
const MOVER: &str = r"
import os, sys
day = 'archive/' + os.listdir('archive')[0]
wrong = []
rounds, first, every = map(int, sys.argv[1:])
for again in range(rounds):
    for name in sorted(os.listdir(day))[first::every]:
        os.rename(f'{day}/{name}', f'inbox/{name}')
        if os.stat(f'inbox/{name}').st_ino == os.stat(f'{day}/{name}').st_ino: wrong.append(name)
print(len(wrong))
";

/// S164: a message that was moved to `inbox/` is at once the file of `inbox/`, whether its name was known there or
/// not. This holds for `mv`, `rename` and several movers at once.
#[test]
fn s164_what_was_moved_back_is_at_once_the_file_of_the_inbox() {
    let bed = Bed::new();
    let recs: Vec<_> =
        (0..20).map(|n| samp::append(&bed.store, "foo", "bar", "t", "text", T0 + n)).collect();
    let names: Vec<String> = recs.iter().map(|r| r.name(0)).collect();
    let m = bed.mount("bar");
    m.ok("rm inbox/*");
    assert_eq!(m.py(MOVER, &["3", "0", "1"]).trim(), "0");
    // A lookup of a name while another process moves it may get the mover's answer.
    let movers: Vec<_> = ["0", "1"]
        .map(|first| {
            let mut c = bed.command("python3");
            c.args(["-c", MOVER, "10", first, "2"]).current_dir(&m.dir);
            Running::start(c, None).unwrap()
        })
        .into();
    let looker = Running::start(
        {
            let mut c = bed.command("bash");
            c.args(["-c", "for i in {1..200}; do ls -l inbox; done"]).current_dir(&m.dir);
            c
        },
        None,
    );
    for mover in movers {
        let out = mover.finish(Duration::from_secs(60)).unwrap();
        assert!(out.ok() && out.stdout.trim() == "0", "{out:?}");
    }
    drop(looker);
    m.inbox_becomes(&names.iter().map(String::as_str).collect::<Vec<_>>());
    for name in &names[..3] {
        let archived = format!("archive/{}/{name}", recs[0].day());
        // The message is read, moved back, and read again: each reading marks.
        let script =
            format!("cat inbox/{name} && ls inbox && mv {archived} inbox/ && cat inbox/{name}");
        let out = m.ok(&format!("{script} > /dev/null; ls inbox; stat -c %i {archived}"));
        assert!(!out.contains(name.as_str()), "{out}");
        assert!(m.ok(&format!("ls archive/{}", recs[0].day())).contains(name.as_str()));
    }
}
