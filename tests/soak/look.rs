//! Checks of the mounts that must hold all the time, while everything else runs.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Instant;

use crate::agent::{inbox, is_message};
use crate::common::dice::Dice;
use crate::ledger::{PATIENCE, Soak, count, locked, tokens};
use crate::people::PEOPLE;

/// The messages that one person's mount has shown so far.
#[derive(Default)]
pub(crate) struct View {
    /// The bytes of each message file as it was first seen, by its path in the mount.
    pub(crate) files: BTreeMap<String, Vec<u8>>,
    /// The path of each message by folder and token.
    pub(crate) places: BTreeMap<(&'static str, String), String>,
}

pub(crate) type Views = [View; PEOPLE.len()];

/// The views in which a person has each message once.
pub(crate) const FOLDERS: [&str; 2] = ["archive", "sent"];

/// Returns the message files two levels below a folder of the mount, as paths in the mount.
pub(crate) fn walk(dir: &Path, top: &str) -> io::Result<Vec<String>> {
    let mut all = Vec::new();
    for below in names(&dir.join(top))? {
        for name in names(&dir.join(top).join(&below))? {
            if is_message(&name) {
                all.push(format!("{top}/{below}/{name}"));
            }
        }
    }
    Ok(all)
}

fn names(folder: &Path) -> io::Result<Vec<String>> {
    let name = |entry: io::Result<fs::DirEntry>| {
        let name = entry?.file_name().into_string();
        name.map_err(|_| io::ErrorKind::InvalidData.into())
    };
    let all = fs::read_dir(folder).and_then(|entries| entries.map(name).collect());
    all.map_err(|e| at(folder, &e))
}

fn read(file: &Path) -> io::Result<Vec<u8>> {
    fs::read(file).map_err(|e| at(file, &e))
}

/// Adds the path to an error.
fn at(path: &Path, e: &io::Error) -> io::Error {
    io::Error::new(e.kind(), format!("{}: {e}", path.display()))
}

/// Returns the last part of a path.
pub(crate) fn name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// Checks everybody's mount in turn until the end.
pub(crate) fn go_on(soak: &Soak, views: &mut Views) {
    let mut dice = soak.dice(100);
    while !soak.over() {
        for (me, view) in views.iter_mut().enumerate() {
            let _ = look(soak, me, view, &mut dice);
            soak.pause(300);
        }
    }
}

/// Checks a mount once. Returns `None` if the mount went down meanwhile, else true if every accepted message is there.
pub(crate) fn look(soak: &Soak, me: usize, view: &mut View, dice: &mut Dice) -> Option<bool> {
    let start = Instant::now();
    let life = soak.life(me);
    if !life.is_multiple_of(2) {
        return None;
    }
    let ledger = soak.ledger();
    let read = locked(&soak.sides[me].read).clone();
    match listed(soak, me, view, dice) {
        Ok(()) => {}
        Err(e) if soak.was_up_since(me, life) => {
            soak.wrong(format!("{}: {e}", PEOPLE[me]));
            return None;
        }
        Err(_) => return None,
    }
    let unread: BTreeSet<String> = inbox(soak, me)?.into_iter().collect();
    if !soak.was_up_since(me, life) {
        return None;
    }
    let who = PEOPLE[me];
    if let Some(again) = unread.intersection(&read).next() {
        soak.wrong(format!("{who}: {again} was marked and is unread again"));
    }
    let tried = locked(&soak.sides[me].tried).clone();
    for path in view.files.keys().filter(|path| path.starts_with("archive/")) {
        let name = name(path);
        if !unread.contains(name) && !tried.contains(name) {
            soak.wrong(format!("{who}: {path} is not in inbox/, and nobody meant to read it"));
        }
    }
    let mut complete = true;
    for (token, sent) in &ledger {
        let Some((at, then)) = sent.accepted else { continue };
        for (folder, mine) in [("sent", sent.from == Some(me)), ("archive", sent.to == me)] {
            if !mine || view.places.contains_key(&(folder, token.clone())) {
                continue;
            }
            complete = false;
            let at_once = folder == "sent" && then == life;
            if at_once || start.duration_since(at) > PATIENCE {
                let when = start.duration_since(at);
                let what = format!("{token} ({sent:?}) was accepted {when:.1?} ago");
                soak.wrong(format!("{who}: {what} and is not in {folder}/ (life {life})"));
            }
        }
    }
    count(&soak.counts.looks);
    Some(complete)
}

/// Checks names and bytes: every file that was there is there, and every new message is whole and there once.
fn listed(soak: &Soak, me: usize, view: &mut View, dice: &mut Dice) -> io::Result<()> {
    let dir = soak.stores.dir(me);
    for top in FOLDERS {
        let now = walk(&dir, top)?;
        let set: BTreeSet<&String> = now.iter().collect();
        if set.len() != now.len() {
            soak.wrong(format!("{}: a name is listed twice in {top}/", PEOPLE[me]));
        }
        let old: Vec<&String> = view.files.keys().filter(|p| p.starts_with(top)).collect();
        if let Some(gone) = old.iter().find(|path| !set.contains(*path)) {
            soak.wrong(format!("{}: {gone} was there and is gone", PEOPLE[me]));
        }
        soak.counts.facts.fetch_add(old.len() as u64, Ordering::Relaxed);
        for _ in 0..old.len().min(20) {
            let path = *dice.of(&old);
            compare(soak, me, path, &view.files[path], &read(&dir.join(path))?);
        }
        for path in now {
            if !view.files.contains_key(&path) {
                let bytes = read(&dir.join(&path))?;
                first(soak, me, top, path, bytes, view);
            }
        }
    }
    Ok(())
}

pub(crate) fn compare(soak: &Soak, me: usize, path: &str, before: &[u8], now: &[u8]) {
    count(&soak.counts.facts);
    if before != now {
        let (before, now) = (String::from_utf8_lossy(before), String::from_utf8_lossy(now));
        soak.wrong(format!("{}: {path} changed:\n{before}\n--- now\n{now}", PEOPLE[me]));
    }
}

fn first(soak: &Soak, me: usize, top: &'static str, path: String, bytes: Vec<u8>, view: &mut View) {
    let who = PEOPLE[me];
    let text = String::from_utf8_lossy(&bytes);
    // A subject may repeat the text of another message.
    let found = tokens(text.split_once("\n\n").map_or("", |(_, body)| body));
    let Some(token) = found.first().filter(|_| found.len() == 1) else {
        soak.wrong(format!("{who}: {path} is half a message, or several: {text:?}"));
        return;
    };
    let token = (*token).to_owned();
    if let Some(sent) = soak.sent(&token) {
        let mine = if top == "sent" { sent.from == Some(me) } else { sent.to == me };
        if !mine {
            soak.wrong(format!("{who}: {path} is no mail of mine: {sent:?}"));
        }
    } else if !token.starts_with("tok-begun") {
        soak.wrong(format!("{who}: nobody wrote what is in {path}: {text}"));
    }
    if let Some(other) = view.places.insert((top, token.clone()), path.clone()) {
        soak.wrong(format!("{who}: {token} is there twice, as {other} and as {path}"));
    }
    view.files.insert(path, bytes);
}

/// The resources of a process: anonymous memory in KiB, descriptors, threads.
#[derive(Clone, Copy, Default)]
pub(crate) struct Figures {
    pub(crate) memory: u64,
    pub(crate) descriptors: u64,
    pub(crate) threads: u64,
}

pub(crate) fn figures(pid: i32) -> Option<Figures> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let of = |key: &str| {
        let line = status.lines().find_map(|l| l.strip_prefix(key))?;
        line.split_whitespace().next()?.parse::<u64>().ok()
    };
    Some(Figures {
        memory: of("RssAnon:")?,
        descriptors: fs::read_dir(format!("/proc/{pid}/fd")).ok()?.count() as u64,
        threads: of("Threads:")?,
    })
}

/// Returns the open files of a process.
pub(crate) fn open_files(pid: i32) -> Vec<String> {
    let Ok(all) = fs::read_dir(format!("/proc/{pid}/fd")) else { return Vec::new() };
    let target =
        |e: fs::DirEntry| fs::read_link(e.path()).ok()?.into_os_string().into_string().ok();
    let mut all: Vec<String> = all.flatten().filter_map(target).collect();
    all.sort();
    all
}
