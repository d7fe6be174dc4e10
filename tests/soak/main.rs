//! A week in an hour: five people with mounts over stores of six kinds write, read and answer in the ways of
//! programs and editors. Meanwhile mounts are killed, logs get conflict copies, the clock of a stranger jumps, backups
//! and hooks run, `msgfs check` and other reading commands run, and `.watch` is read. All the time these hold: no
//! message is lost or doubled, names and bytes stay, marked messages stay marked and no other message is marked, both
//! sides see the same, and memory and descriptors do not grow.
//!
//! `MSGFS_SOAK_MINUTES` (2) sets the duration. `MSGFS_SOAK_SEED` repeats the random choices; it cannot repeat the other
//! work of the machine. The stores of a failed run are kept, and the test prints their folder.

// A test ends by panicking; clippy knows test functions but not their helpers.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

// This is the harness of the integration tests; this target uses a part of it.
#[path = "../integration/common/mod.rs"]
#[allow(dead_code, unused_imports, clippy::format_push_string, clippy::format_collect)]
mod common;

mod agent;
mod ledger;
mod look;
mod people;
mod trouble;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use common::Bed;
use common::shown::has_ending;
use ledger::{Soak, locked, say};
use look::{FOLDERS, Figures, Views, figures, look, name, open_files, walk};
use people::{KINDS, PEOPLE, Stores, UNHARMED};

/// The memory that a daemon may take beyond its first figure, in KiB: a fixed part, and a part for each message.
const GROWTH: (u64, u64) = (16 << 10, 6);
/// The descriptors that a daemon may have beyond its first figure, for files that it opens when it first needs them. And
/// those of the 64 AgentAZAll letters that it watches for a minute after their status was set, each with its folder
/// (docs/formats/agentazall.md, section 11).
const DESCRIPTORS: (usize, usize) = (16, 2 * 64 + 8);

fn given(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[test]
fn a_week_in_an_hour() {
    let minutes = given("MSGFS_SOAK_MINUTES").unwrap_or(2);
    let seed = given("MSGFS_SOAK_SEED")
        .unwrap_or_else(|| SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64);
    let mut bed = Bed::new();
    bed.limit = Duration::from_secs(minutes * 60 + 900);
    say(&format!("soak: {minutes} minutes, MSGFS_SOAK_SEED={seed}"));
    let soak = Soak::new(Stores::new(bed), seed);
    let mut views = Views::default();
    soak.guarded("the test", || whole(&soak, &mut views, Duration::from_secs(minutes * 60)));
    for side in &soak.sides {
        drop(locked(&side.mount).take());
    }
    if soak.problems() > 0 {
        let kept = std::env::temp_dir().join(format!("msgfs-soak-{seed}"));
        fs::rename(soak.stores.bed.path(""), &kept).expect("the stores are kept");
        panic!(
            "{} things are wrong, see above; MSGFS_SOAK_SEED={seed}; the stores are in {}",
            soak.problems(),
            kept.display()
        );
    }
}

fn whole(soak: &Soak, views: &mut Views, time: Duration) {
    for (person, side) in soak.sides.iter().enumerate() {
        *locked(&side.mount) = Some(soak.stores.mount(person));
    }
    let first = taken(soak);
    let watchers: Vec<_> = (0..PEOPLE.len()).map(|person| trouble::watch(soak, person)).collect();
    at_work(soak, views, time);
    if soak.problems() > 0 {
        return;
    }
    settle(soak, views);
    drop(watchers);
    let last = taken(soak);
    let open = locked(&soak.sides[UNHARMED].mount).as_ref().map(|m| open_files(m.pid()));
    let watched = judged(soak, views);
    again(soak, views);
    table(soak, views, first, last, watched);
    flat(soak, views, first[UNHARMED], last[UNHARMED], &open.unwrap_or_default());
}

type Work = fn(&Soak);

/// Runs everybody's work at once, for this time.
fn at_work(soak: &Soak, views: &mut Views, time: Duration) {
    let start = Instant::now();
    let work: [(&str, Work); 6] = [
        ("kills", trouble::kill),
        ("the stranger", trouble::stranger),
        ("sync", trouble::sync),
        ("backups", trouble::back_up),
        ("hooks", trouble::hooks),
        ("commands", trouble::commands),
    ];
    std::thread::scope(|scope| {
        for (person, who) in PEOPLE.into_iter().enumerate() {
            scope.spawn(move || soak.guarded(who, || agent::live(soak, person)));
        }
        for (what, work) in work {
            scope.spawn(move || soak.guarded(what, || work(soak)));
        }
        scope.spawn(move || soak.guarded("looks", || look::go_on(soak, views)));
        while !soak.over() && start.elapsed() < time {
            std::thread::sleep(Duration::from_millis(100));
        }
        soak.stop();
    });
}

/// Waits until every accepted message arrives. Checks twice, so that duplicates have arrived, too.
fn settle(soak: &Soak, views: &mut Views) {
    let mut dice = soak.dice(101);
    for (me, view) in views.iter_mut().enumerate() {
        let start = Instant::now();
        while look(soak, me, view, &mut dice) != Some(true) && soak.problems() == 0 {
            assert!(start.elapsed() < ledger::PATIENCE, "{}: not all arrives", PEOPLE[me]);
            std::thread::sleep(Duration::from_millis(200));
        }
    }
    for (me, view) in views.iter_mut().enumerate() {
        look(soak, me, view, &mut dice);
    }
}

/// Checks the rules that hold once nothing changes any more. Returns the number of names that each `.watch` gave.
fn judged(soak: &Soak, views: &Views) -> [usize; PEOPLE.len()] {
    let mut watched = [0; PEOPLE.len()];
    for (me, view) in views.iter().enumerate() {
        let who = PEOPLE[me];
        let dir = soak.stores.dir(me);
        let names: BTreeSet<&str> = view.files.keys().map(|path| name(path)).collect();
        let threads = walk(&dir, "threads").expect("threads");
        let of: BTreeSet<&str> = threads.iter().map(|path| name(path)).collect();
        for lost in names.difference(&of) {
            soak.wrong(format!("{who}: {lost} is in no thread"));
        }
        let twice = threads.len() - of.len();
        if twice > 0 {
            soak.wrong(format!("{who}: {twice} messages are in two threads"));
        }
        for folder in ["outbox", "rejected"] {
            let left: Vec<String> = fs::read_dir(dir.join(folder))
                .expect(folder)
                .map(|e| e.expect(folder).file_name().into_string().expect("UTF-8"))
                .filter(|n| !has_ending(n, "tmp"))
                .collect();
            if !left.is_empty() {
                soak.wrong(format!("{who}: {folder}/ has {left:?}"));
            }
        }
        let mail = |top: &str| view.files.keys().filter(|p| p.starts_with(top)).count();
        let rung = locked(&soak.counts.rung)[me];
        if rung > mail("archive") as u64 {
            soak.wrong(format!("{who}: the hooks rang for {rung}, and {} came", mail("archive")));
        }
        let there = view.files.keys().filter(|p| p.starts_with("archive")).map(|p| name(p));
        watched[me] = trouble::judge_watch(soak, me, &there.collect());
    }
    both_sides(soak, views);
    watched
}

/// Checks that each message in `sent/` of one person is in `archive/` of the other, under one name and with the same
/// text, also if its writer did not learn that it was accepted.
fn both_sides(soak: &Soak, views: &Views) {
    for (token, sent) in soak.ledger() {
        let Some(from) = sent.from else { continue };
        let path = |person: usize, folder| {
            views.get(person)?.places.get(&(folder, token.clone())).map(String::as_str)
        };
        let (mine, theirs) = (path(from, "sent"), path(sent.to, "archive"));
        if sent.to == people::ZED {
            continue;
        }
        match (mine, theirs) {
            (None, None) => {}
            (Some(mine), Some(theirs)) => {
                if name(mine) != name(theirs) {
                    soak.wrong(format!("{token} {sent:?} is {mine} here and {theirs} there"));
                }
                let here = without_warnings(&views[from].files[mine]);
                let there = without_warnings(&views[sent.to].files[theirs]);
                look::compare(soak, sent.to, theirs, &here, &there);
            }
            one => soak.wrong(format!("{token} {sent:?} is on one side only: {one:?}")),
        }
    }
}

/// Returns a message file without its warnings: a date is in the future for the reader who got the message a moment
/// earlier.
fn without_warnings(bytes: &[u8]) -> Vec<u8> {
    let text = String::from_utf8_lossy(bytes);
    let (head, body) = text.split_once("\n\n").unwrap_or_default();
    let head: Vec<&str> = head.lines().filter(|line| !line.starts_with("Warnings:")).collect();
    format!("{}\n\n{body}", head.join("\n")).into_bytes()
}

/// Checks that everything is the same after a new start without cache.
fn again(soak: &Soak, views: &Views) {
    let unread: Vec<_> = (0..PEOPLE.len()).map(|me| agent::inbox(soak, me)).collect();
    for side in &soak.sides {
        locked(&side.mount).take().expect("mounted").umount();
    }
    fs::remove_dir_all(soak.stores.bed.path("cache")).expect("cache");
    for (me, view) in views.iter().enumerate() {
        let mount = soak.stores.mount(me);
        let dir = soak.stores.dir(me);
        let mut now: BTreeSet<String> = BTreeSet::new();
        for top in FOLDERS {
            now.extend(walk(&dir, top).expect(top));
        }
        let before: BTreeSet<String> = view.files.keys().cloned().collect();
        if let Some(other) = now.symmetric_difference(&before).next() {
            soak.wrong(format!("{}: {other} is not the same without a cache", PEOPLE[me]));
        }
        for (path, before) in &view.files {
            let bytes = fs::read(dir.join(path)).unwrap_or_default();
            look::compare(soak, me, path, before, &bytes);
        }
        if agent::inbox(soak, me) != unread[me] {
            soak.wrong(format!("{}: inbox/ is not the same without a cache", PEOPLE[me]));
        }
        mount.umount();
    }
}

fn taken(soak: &Soak) -> [Figures; PEOPLE.len()] {
    let of = |side: &ledger::Side| {
        locked(&side.mount).as_ref().and_then(|mount| figures(mount.pid())).unwrap_or_default()
    };
    soak.sides.each_ref().map(of)
}

/// Checks that the daemon which was never killed has its first resources, and a little for each message.
fn flat(soak: &Soak, views: &Views, first: Figures, last: Figures, open: &[String]) {
    let allowed = first.memory + GROWTH.0 + GROWTH.1 * views[UNHARMED].files.len() as u64;
    if last.memory > allowed {
        let memory = (first.memory, last.memory);
        soak.wrong(format!("memory grows: {memory:?} KiB, and {allowed} would be enough"));
    }
    let (letters, others): (Vec<_>, Vec<_>) = open.iter().partition(|file| file.contains("/agz/"));
    let allowed = first.descriptors as usize + DESCRIPTORS.0;
    if others.len() > allowed || letters.len() > DESCRIPTORS.1 {
        soak.wrong(format!("descriptors grow, from {} to {open:#?}", first.descriptors));
    }
}

fn table(
    soak: &Soak,
    views: &Views,
    first: [Figures; PEOPLE.len()],
    last: [Figures; PEOPLE.len()],
    watched: [usize; PEOPLE.len()],
) {
    let ledger = soak.ledger();
    let (mut kinds, mut strange) = (BTreeMap::new(), BTreeMap::new());
    for sent in ledger.values() {
        let of = if sent.from.is_some() { &mut kinds } else { &mut strange };
        *of.entry(sent.kind).or_insert(0) += 1;
    }
    let unknown = ledger.values().filter(|s| s.accepted.is_none()).count();
    say("soak: messages       of people  of the stranger");
    for kind in KINDS {
        let of = |counts: &BTreeMap<_, u64>| counts.get(&kind).copied().unwrap_or_default();
        say(&format!("  {:<16} {:>10} {:>16}", format!("{kind:?}"), of(&kinds), of(&strange)));
    }
    let c = &soak.counts;
    let n = |count: &AtomicU64| count.load(Ordering::Relaxed).to_string();
    for (what, how_many) in [
        ("cut off by a kill", unknown.to_string()),
        ("answers among them", n(&c.replies)),
        ("by vim", n(&c.edited)),
        ("marks", n(&c.marks)),
        ("kill -9", n(&c.kills)),
        ("ended by SIGTERM", n(&c.ends)),
        ("caches removed", n(&c.caches)),
        ("rings of hooks", n(&c.rings)),
        ("given by .watch", watched.iter().sum::<usize>().to_string()),
        ("conflict copies", n(&c.copies)),
        ("backups", n(&c.backups)),
        ("looks", n(&c.looks)),
        ("commands that look", n(&c.commands)),
        ("names and bytes", n(&c.facts)),
    ] {
        say(&format!("  {what:<20} {how_many:>10}"));
    }
    say("  daemon   shows    RssAnon KiB first, last    descriptors    threads");
    for (me, who) in PEOPLE.into_iter().enumerate() {
        let (a, b, files) = (first[me], last[me], views[me].files.len());
        let note = if me == UNHARMED { "  never killed" } else { "" };
        say(&format!(
            "  {who:<8} {files:>5} {:>15} {:>10} {:>8} {:>5} {:>6} {:>4}{note}",
            a.memory, b.memory, a.descriptors, b.descriptors, a.threads, b.threads
        ));
    }
}
