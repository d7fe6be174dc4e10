//! Disturbances of the mounts and the stores (kills, sync programs, clocks), and programs that read without consuming
//! (backups, hooks, `.watch`).

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::agent::LIMIT;
use crate::common::dice::Dice;
use crate::common::proc::{Running, run_for};
use crate::common::samp;
use crate::common::shown::has_ending;
use crate::ledger::{Soak, count, locked};
use crate::people::{KINDS, Kind, PEOPLE, STRANGER, UNHARMED};

/// Ends mounts, mostly with `kill -9`, sometimes removes a cache, and mounts again.
pub(crate) fn kill(soak: &Soak) {
    let mut dice = soak.dice(200);
    while !soak.over() {
        soak.pause(1000 + dice.below(4000));
        let person = dice.below(UNHARMED as u64) as usize;
        let side = &soak.sides[person];
        let mut mount = locked(&side.mount);
        let Some(old) = mount.take() else { continue };
        side.life.fetch_add(1, Ordering::SeqCst);
        if dice.below(4) == 0 {
            old.signal(Signal::TERM);
            // The guard of the old mount must not unmount the next one.
            drop(old);
            count(&soak.counts.ends);
        } else {
            old.kill9();
            count(&soak.counts.kills);
        }
        if dice.below(6) == 0 {
            let _ = fs::remove_dir_all(soak.stores.bed.path("cache/msgfs").join(PEOPLE[person]));
            count(&soak.counts.caches);
        }
        if dice.below(3) == 0 {
            look(soak, person, &mut dice);
        }
        std::thread::sleep(std::time::Duration::from_millis(dice.below(300)));
        *mount = Some(soak.stores.mount(person));
        side.life.fetch_add(1, Ordering::SeqCst);
    }
}

/// Commands that read, beside mounts and after a mount was killed.
const LOOKS: [&[&str]; 7] = [
    &["check"],
    &["check", "--json"],
    &["check", "--repair"],
    &["status"],
    &["agents"],
    &["ls", "outbox"],
    &["cat", "status.txt"],
];

/// Runs one of them. It may find problems in stores that change meanwhile; its output does not matter.
fn look(soak: &Soak, person: usize, dice: &mut Dice) {
    let c = soak.stores.msgfs(person, dice.of::<&[&str]>(&LOOKS));
    let out = run_for(c, None, LIMIT);
    if !matches!(out.code(), Some(0 | 1)) {
        soak.wrong(format!("{}: a command that looks: {out:?}", PEOPLE[person]));
    }
    count(&soak.counts.commands);
}

/// Runs commands that read, for everybody in turn.
pub(crate) fn commands(soak: &Soak) {
    let mut dice = soak.dice(700);
    while !soak.over() {
        look(soak, dice.below(PEOPLE.len() as u64) as usize, &mut dice);
        soak.pause(dice.below(400));
    }
}

/// Times that a clock may show: between 1970 and 2100, and a little off.
const CLOCKS: [i64; 4] = [86_400, 1_000_000_000, 2_000_000_000, 4_102_444_800];
const OFF: [i64; 6] = [-86_400, -3600, -2, 0, 240, 86_400];

/// Writes messages of another program whose clock jumps.
pub(crate) fn stranger(soak: &Soak) {
    let mut dice = soak.dice(300);
    let mut n = 0;
    while !soak.over() {
        n += 1;
        let ts = match dice.below(3) {
            0 => *dice.of(&CLOCKS) + n,
            _ => samp::now() + *dice.of(&OFF),
        };
        let kind = match *dice.of(&KINDS) {
            Kind::Atsf | Kind::Ssot => Kind::Samp,
            kind => kind,
        };
        let to = dice.below(PEOPLE.len() as u64) as usize;
        let token = soak.token(kind, None, to);
        soak.stores.foreign(kind, to, &token, ts & !1, n);
        soak.accepted(&token, 0);
        soak.pause(200 + dice.below(1500));
    }
}

/// Acts as a sync program between two machines: logs get conflict copies, which somebody resolves later.
pub(crate) fn sync(soak: &Soak) {
    let mut dice = soak.dice(400);
    let store = &soak.stores.bed.store;
    let begun = samp::now();
    let mut copies: Vec<(PathBuf, String)> = Vec::new();
    let mut n = 0;
    while !soak.over() {
        soak.pause(1500 + dice.below(4000));
        n += 1;
        let whose = if dice.below(2) == 0 { STRANGER } else { *dice.of(&PEOPLE) };
        let Ok(mut bytes) = fs::read(samp::log(store, whose)) else { continue };
        let mut only = String::new();
        if whose == STRANGER {
            // The other machine wrote this record before it got the log of this one.
            let to = dice.below(PEOPLE.len() as u64) as usize;
            let token = soak.token(Kind::Samp, None, to);
            // The digits of a name count earlier messages of its second, and two machines may see these in two orders.
            // So each record here has a second of its own, an odd one; [`stranger`] has the even ones.
            let ts = (begun | 1) + 2 * n - *dice.of(&[0, 100_000]);
            only = samp::Rec::new(STRANGER, PEOPLE[to], "afar", &token, ts).line();
            bytes.extend(only.bytes());
            place(store, &copy_name(whose, n), &bytes);
            soak.accepted(&token, 0);
        } else {
            place(store, &copy_name(whose, n), &bytes);
        }
        count(&soak.counts.copies);
        copies.push((store.join(copy_name(whose, n)), only));
        if copies.len() > 8 {
            let (file, only) = copies.swap_remove(dice.below(8) as usize);
            // Somebody appends to the log the record that only the copy has.
            if !only.is_empty() {
                samp::append_raw(&samp::log(store, STRANGER), only);
            }
            soak.pause(dice.below(2) * 500);
            fs::remove_file(file).expect("remove");
        }
    }
}

fn copy_name(whose: &str, n: i64) -> String {
    let stamp = samp::strftime(samp::now(), "%Y%m%d");
    format!("log-{whose}.sync-conflict-{stamp}-{n:06}-K3X2R2T.jsonl")
}

/// Places a file as Syncthing does.
fn place(store: &Path, name: &str, bytes: &[u8]) {
    let tmp = store.join(format!(".syncthing.{name}.tmp"));
    fs::write(&tmp, bytes).expect("write");
    fs::rename(tmp, store.join(name)).expect("rename");
}

/// Backs up one mount after the other. A message file in a backup is never written again.
pub(crate) fn back_up(soak: &Soak) {
    let mut dice = soak.dice(500);
    while !soak.over() {
        let person = dice.below(PEOPLE.len() as u64) as usize;
        let life = soak.life(person);
        let target = soak.stores.bed.path(format!("backup-{}", PEOPLE[person]));
        fs::create_dir_all(&target).expect("mkdir");
        let out = if dice.below(3) == 0 {
            tar(soak, person)
        } else {
            rsync(soak, person, &target, &mut dice)
        };
        count(&soak.counts.backups);
        if let Err(what) = out
            && soak.was_up_since(person, life)
        {
            soak.wrong(format!("{}: {what}", PEOPLE[person]));
        }
        soak.pause(500 + dice.below(2000));
    }
}

fn rsync(soak: &Soak, person: usize, target: &Path, dice: &mut Dice) -> Result<(), String> {
    let mut c = soak.stores.command(person, "rsync");
    c.arg("-ai").args((dice.below(3) == 0).then_some("-c"));
    // The note beside a waiting message comes and goes.
    c.arg("--exclude=*.warning");
    for folder in ["archive", "sent", "inbox"] {
        c.arg(soak.stores.dir(person).join(folder));
    }
    c.arg(target);
    let out = run_for(c, None, LIMIT);
    let again = |l: &&str| l.starts_with(">f") && !l.starts_with(">f+") && has_ending(l, "txt");
    if let Some(line) = out.stdout.lines().find(again) {
        // A file that was copied whole stays the same, whether the mount is up or down.
        soak.wrong(format!("{}: a message changed since the last backup: {line}", PEOPLE[person]));
    }
    // The code 24 means that a file vanished from inbox/ meanwhile.
    if matches!(out.code(), Some(0 | 24)) { Ok(()) } else { Err(format!("rsync: {out:?}")) }
}

fn tar(soak: &Soak, person: usize) -> Result<(), String> {
    let mut c = soak.stores.command(person, "bash");
    let script =
        "set -o pipefail; tar -C \"$M\" --exclude='*.warning' -cf - archive sent | tar -tf -";
    c.args(["-c", script]);
    let out = run_for(c, None, LIMIT);
    let names: Vec<&str> = out.stdout.lines().filter(|l| has_ending(l, "txt")).collect();
    let once: BTreeSet<&&str> = names.iter().collect();
    if once.len() != names.len() {
        return Err("tar was given a name twice".into());
    }
    // The code 1 means that a folder got an entry meanwhile.
    if matches!(out.code(), Some(0 | 1)) { Ok(()) } else { Err(format!("tar: {out:?}")) }
}

/// Runs the hooks of a harness, for everybody in turn.
pub(crate) fn hooks(soak: &Soak) {
    let mut dice = soak.dice(600);
    while !soak.over() {
        let person = dice.below(PEOPLE.len() as u64) as usize;
        let (event, name) =
            *dice.of(&[("prompt", "UserPromptSubmit"), ("tool", "PostToolUse"), ("stop", "Stop")]);
        let told = json!({
            "session_id": format!("soak-{}", PEOPLE[person]), "cwd": "/p", "turn_id": "t",
            "model": "m", "hook_event_name": name, "prompt": "x", "stop_hook_active": false,
        });
        let c = soak.stores.msgfs(person, &["hook", "run", event, "--for", "codex"]);
        let out = run_for(c, Some(told.to_string().as_bytes()), LIMIT);
        if let Err(what) = heard(soak, person, &out.stdout) {
            soak.wrong(format!("{}: hook {event}: {what}: {out:?}", PEOPLE[person]));
        }
        if !out.ok() || !out.stderr.is_empty() {
            soak.wrong(format!("{}: hook {event}: {out:?}", PEOPLE[person]));
        }
        soak.pause(200 + dice.below(800));
    }
}

/// Judges the output of a hook and counts the messages for which it rang.
fn heard(soak: &Soak, person: usize, said: &str) -> Result<(), &'static str> {
    if said.is_empty() {
        return Ok(());
    }
    let told: Value = serde_json::from_str(said).map_err(|_| "no JSON")?;
    let text = told["reason"].as_str();
    let text = text.or_else(|| told["hookSpecificOutput"]["additionalContext"].as_str());
    let text = text.ok_or("no text")?;
    if text.len() > 240 || text.contains("tok-") {
        return Err("too long, or a body");
    }
    let number = |end: &str| {
        let (head, _) = text.split_once(end)?;
        head.rsplit(' ').next()?.parse::<u64>().ok()
    };
    let all = number(" unread message").ok_or("no number")?;
    locked(&soak.counts.rung)[person] += number(" new").unwrap_or(all);
    count(&soak.counts.rings);
    Ok(())
}

/// Starts a loop that reads `.watch` as long as the mount lives, and again, as long as this test runs.
pub(crate) fn watch(soak: &Soak, person: usize) -> Running {
    let mut c = soak.stores.command(person, "bash");
    c.env("OUT", watched(soak, person));
    c.args([
        "-c",
        "while kill -0 $PPID; do echo ---; cat \"$M/.watch\"; sleep 0.1; done >> \"$OUT\" 2>/dev/null",
    ]);
    Running::start(c, None).expect("bash")
}

fn watched(soak: &Soak, person: usize) -> PathBuf {
    soak.stores.bed.path("cwd").join(format!("watched-{}", PEOPLE[person]))
}

/// Checks the output of `.watch`: each stream gives a name once, and only names that are there.
pub(crate) fn judge_watch(soak: &Soak, person: usize, there: &BTreeSet<&str>) -> usize {
    let text = fs::read_to_string(watched(soak, person)).unwrap_or_default();
    let mut all = BTreeSet::new();
    for stream in text.split("---\n") {
        let mut once = BTreeSet::new();
        for name in stream.lines() {
            if !once.insert(name) {
                soak.wrong(format!("{}: .watch gave {name} twice in one stream", PEOPLE[person]));
            }
            if !there.contains(name) {
                soak.wrong(format!("{}: .watch gave {name}, which is no mail", PEOPLE[person]));
            }
        }
        all.extend(once);
    }
    all.len()
}
