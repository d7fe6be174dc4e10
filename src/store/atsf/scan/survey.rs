//! Which threads have to be looked at.

use std::collections::{BTreeSet, HashSet};
use std::ffi::OsStr;
use std::io;
use std::path::PathBuf;

use rustix::fs::{Dir, FileType};

use super::Scan;
use crate::model::one_line;
use crate::store::atsf::roots::{AGENT, THREADS};
use crate::store::below;

impl Scan<'_> {
    /// The threads that may have changed: all of them, or those that the noted paths belong to.
    pub(super) fn survey(&mut self, full: bool, noted: &HashSet<PathBuf>) -> BTreeSet<u32> {
        if full {
            self.store.trouble.write().clear();
            self.store.fault.clear();
        }
        let mut lists: BTreeSet<u32> = BTreeSet::new();
        let mut work: BTreeSet<u32> = BTreeSet::new();
        let mut ask = full;
        {
            let repository = self.store.repository.lock();
            let told = |path: &PathBuf| {
                let (folder, name) = (path.parent()?, path.file_name()?.to_str()?);
                repository.concerns(folder, name)
            };
            ask |= noted.iter().any(|path| told(path).is_some());
        }
        let changed = self.refresh_roots(ask);
        let roots = self.store.table.read().roots.clone();
        for (n, root) in (0u32..).zip(&roots) {
            if full || changed {
                lists.insert(n);
                continue;
            }
            for path in noted {
                let Ok(below) = path.strip_prefix(&root.path) else { continue };
                let parts: Option<Vec<&str>> = below.iter().map(OsStr::to_str).collect();
                match parts.as_deref() {
                    Some([] | [AGENT] | [AGENT, THREADS]) => drop(lists.insert(n)),
                    Some([AGENT, THREADS, name, ..]) => work.extend(self.number(n, name)),
                    _ => {}
                }
            }
        }
        for root in lists {
            self.list(root, &mut work);
        }
        work
    }

    fn refresh_roots(&self, ask: bool) -> bool {
        let mut roots = self.store.table.read().roots.clone();
        let mut repository = self.store.repository.lock();
        let changed = repository.refresh(&self.store.project, &mut roots, ask);
        if changed {
            self.store.table.write().roots = roots;
        }
        changed
    }

    fn number(&self, root: u32, name: &str) -> Option<u32> {
        if name.starts_with('.') {
            return None;
        }
        let n = self.store.table.write().number(root, name);
        if n.is_none() {
            let full = "no more threads are taken in: there are 8,388,607";
            self.store.set_trouble("threads", Some(full.into()));
        }
        n
    }

    /// Adds the threads of a root: those that lie in it, and those that did.
    fn list(&mut self, n: u32, work: &mut BTreeSet<u32>) {
        let Some(root) = self.store.table.read().roots.get(n as usize).cloned() else { return };
        if root.is_main() && !root.here {
            // What was in the project stays: it was moved away, or is made anew.
            return;
        }
        let opened = if root.here {
            below::open_dir(&root.path, &[AGENT, THREADS])
        } else {
            Err(io::ErrorKind::NotFound.into())
        };
        let listed = match opened {
            Ok(dir) => self.folders(n, &dir),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Some(BTreeSet::new()),
            Err(e) => {
                let path = root.path.join(AGENT).join(THREADS);
                self.store.cannot(&path.to_string_lossy(), "be read", &e);
                None
            }
        };
        // Of what cannot be listed nothing is known, so nothing has changed.
        let Some(listed) = listed else { return };
        work.extend(&listed);
        let table = self.store.table.read();
        let known = (0u32..).zip(&table.threads).filter(|(_, t)| t.root == n && !t.gone);
        work.extend(known.map(|(thread, _)| thread));
    }

    /// The numbers of the folders in `threads/`.
    fn folders(&self, root: u32, dir: &std::os::fd::OwnedFd) -> Option<BTreeSet<u32>> {
        let mut out = BTreeSet::new();
        let failed = |e: &io::Error| self.store.cannot(THREADS, "be listed", e);
        let entries = Dir::read_from(dir).map_err(io::Error::from).inspect_err(failed).ok()?;
        for entry in entries {
            let entry = entry.map_err(io::Error::from).inspect_err(failed).ok()?;
            let Ok(name) = entry.file_name().to_str() else {
                let shown = one_line(&entry.file_name().to_string_lossy()).into_owned();
                self.store.set_trouble(&shown, Some("is skipped: its name is not UTF-8".into()));
                continue;
            };
            if name.starts_with('.') {
                continue;
            }
            let kind = match entry.file_type() {
                FileType::Unknown => below::look(dir, name).map_or(FileType::Unknown, |(k, _)| k),
                known => known,
            };
            match kind {
                FileType::Directory => out.extend(self.number(root, name)),
                FileType::Symlink => {
                    let what = "is skipped: it is a symbolic link, not a folder";
                    self.store.set_trouble(name, Some(what.into()));
                }
                // Other programs put other things here.
                _ => {}
            }
        }
        Some(out)
    }
}
