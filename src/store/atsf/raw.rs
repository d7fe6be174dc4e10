//! `raw/<store>/`: the files of threads, byte for byte. Those of the project lie at the top, those of
//! a worktree below its label.

use std::fs::File;
use std::io;

use rustix::fs::{Dir, FileType};

use super::Atsf;
use super::assets::{self, digest_in};
use super::roots::{AGENT, Root, THREADS};
use super::table::{LOG, META, Source, State, Table, Thread};
use crate::model::Timestamp;
use crate::store::{RawEntry, below};

/// A folder or file below `raw/<store>/`: the root, and the path below its `threads/`.
struct Spot<'a> {
    root: u32,
    parts: Vec<&'a str>,
}

fn spot<'a>(table: &Table, path: &'a str) -> Option<Spot<'a>> {
    let parts: Vec<&str> = path.split('/').filter(|_| !path.is_empty()).collect();
    let sound = |part: &&str| below::is_component(part) && !part.starts_with('.');
    if !parts.iter().all(sound) {
        return None;
    }
    let Some((first, rest)) = parts.split_first() else { return Some(Spot { root: 0, parts }) };
    // A thread of the project wins over a worktree of that name.
    if table.find(0, first).and_then(|n| table.get(n)).is_some_and(is_shown) {
        return Some(Spot { root: 0, parts });
    }
    let root = worktrees(table).find(|(_, root)| root.label == *first).map(|(n, _)| n)?;
    Some(Spot { root, parts: rest.to_vec() })
}

fn worktrees(table: &Table) -> impl Iterator<Item = (u32, &Root)> {
    (0u32..).zip(&table.roots).skip(1).filter(|(_, root)| root.here)
}

fn is_shown(thread: &Thread) -> bool {
    !thread.gone && thread.state != State::Foreign
}

fn time_of(thread: &Thread) -> Timestamp {
    Timestamp::from_millis(thread.tally.last_time.unwrap_or(thread.updated))
}

fn folder(name: &str, modified: Timestamp) -> RawEntry {
    RawEntry { name: name.to_owned(), is_dir: true, size: 0, modified, source: None }
}

/// The threads of a root as folders.
fn threads(table: &Table, root: u32) -> Vec<RawEntry> {
    let own = table.threads.iter().filter(|t| t.root == root && is_shown(t));
    own.map(|t| folder(&t.name, time_of(t))).collect()
}

impl Atsf {
    pub(super) fn list_raw(&self, path: &str) -> Option<Vec<RawEntry>> {
        let table = self.table.read();
        let spot = spot(&table, path)?;
        let mut out = match spot.parts.as_slice() {
            [] => {
                let mut out = threads(&table, spot.root);
                if path.is_empty() {
                    for (n, root) in worktrees(&table) {
                        let inside = threads(&table, n);
                        let newest = inside.iter().map(|e| e.modified).max();
                        let taken = out.iter().any(|e| e.name == root.label);
                        out.extend(
                            newest.filter(|_| !taken).map(|newest| folder(&root.label, newest)),
                        );
                    }
                }
                out
            }
            [name] | [name, assets::FOLDER] => {
                let n = table.find(spot.root, name)?;
                let thread = table.get(n).filter(|t| is_shown(t))?.clone();
                let root = table.roots.get(spot.root as usize)?.clone();
                drop(table);
                files(&root, n, &thread, spot.parts.len() > 1)?
            }
            _ => return None,
        };
        out.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        Some(out)
    }

    pub(super) fn newest_raw(&self, path: &str) -> Option<Timestamp> {
        self.list_raw(path)?.iter().map(|e| e.modified).max()
    }

    pub(super) fn open_raw(&self, path: &str) -> io::Result<File> {
        let missing = || io::Error::from(io::ErrorKind::NotFound);
        let table = self.table.read();
        let spot = spot(&table, path).ok_or_else(missing)?;
        let shown = match spot.parts.as_slice() {
            [_, LOG | META] => true,
            [_, assets::FOLDER, name] => digest_in(name).is_some(),
            _ => false,
        };
        let known = spot.parts.first().and_then(|name| table.get(table.find(spot.root, name)?));
        let root = table.roots.get(spot.root as usize).ok_or_else(missing)?.path.clone();
        if !shown || !known.is_some_and(is_shown) {
            return Err(missing());
        }
        drop(table);
        below::open_below(&root, &[&[AGENT, THREADS], spot.parts.as_slice()].concat())
    }
}

/// The files of a thread, or its assets.
fn files(root: &Root, n: u32, thread: &Thread, assets: bool) -> Option<Vec<RawEntry>> {
    let mut parts = vec![AGENT, THREADS, thread.name.as_str()];
    parts.extend(assets.then_some(assets::FOLDER));
    let dir = below::open_dir(&root.path, &parts).ok()?;
    let mut out = Vec::new();
    for entry in Dir::read_from(&dir).ok()?.flatten() {
        let Ok(name) = entry.file_name().to_str() else { continue };
        let Ok((kind, stamp)) = below::look(&dir, name) else { continue };
        let millis = i64::try_from(stamp.mtime.div_euclid(1_000_000)).unwrap_or_default();
        let on_disk = Timestamp::from_millis(millis);
        // The time of a message is the same on every machine.
        let (source, modified) = match name {
            LOG if !assets => (Some(Source::Log(n).number()), time_of(thread)),
            META if !assets => {
                (Some(Source::Meta(n).number()), Timestamp::from_millis(thread.updated))
            }
            _ => (None, on_disk),
        };
        let is_file = kind == FileType::RegularFile
            && if assets { digest_in(name).is_some() } else { matches!(name, LOG | META) };
        if is_file {
            let name = name.to_owned();
            out.push(RawEntry { name, is_dir: false, size: stamp.size, modified, source });
        } else if !assets && name == assets::FOLDER && kind == FileType::Directory {
            out.push(folder(name, time_of(thread)));
        }
    }
    Some(out)
}
