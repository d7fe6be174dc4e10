//! Which logs have to be looked at.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io;
use std::rc::Rc;

use rustix::fs::{Dir, FileType};

use super::scan::Scan;
use super::table::{MAX_LOGS, Root};
use super::{Format, Named};
use crate::model::one_line;
use crate::store::{StoreError, below};

impl<F: Format> Scan<'_, F> {
    /// The logs that may have changed: all of them, or those that the noted paths belong to.
    ///
    /// # Errors
    /// Only if there is no store without what cannot be read.
    pub(super) fn survey(&mut self, full: bool) -> Result<BTreeSet<u32>, StoreError> {
        let noted = self.store.take_noted();
        self.folders.clear();
        if full {
            self.store.health.forget(|_| true);
            self.store.health.fault.clear();
        }
        let mut roots = self.store.table.read().roots.clone();
        let changed = self.store.format.find_roots(&self.store.about.dir, &mut roots, full, &noted);
        if changed {
            self.store.table.write().roots.clone_from(&roots);
        }
        let mut lists: BTreeSet<u32> = BTreeSet::new();
        let mut work: BTreeSet<u32> = BTreeSet::new();
        let down = F::SHAPE.folder;
        for (n, root) in (0u32..).zip(&roots) {
            if full || changed {
                lists.insert(n);
                continue;
            }
            for path in &noted {
                let Ok(below) = path.strip_prefix(&root.path) else { continue };
                let parts: Option<Vec<&str>> = below.iter().map(OsStr::to_str).collect();
                let parts = parts.unwrap_or_default();
                match parts.strip_prefix(down) {
                    Some([name, ..]) => match F::classify(name) {
                        Named::Log => work.extend(self.number(n, name)),
                        // It is told why it is none.
                        Named::Bad(..) => drop(lists.insert(n)),
                        Named::Other => {}
                    },
                    _ if down.starts_with(&parts) => drop(lists.insert(n)),
                    _ => {}
                }
            }
        }
        for n in lists {
            if let Some(root) = roots.get(n as usize) {
                self.list(n, root, &mut work)?;
            }
        }
        Ok(work)
    }

    fn number(&self, root: u32, name: &str) -> Option<u32> {
        let mut table = self.store.table.write();
        let n = table.number(root, name);
        let full = table.logs.len() >= MAX_LOGS;
        drop(table);
        if n.is_none() && full {
            let what = "no more logs are taken in: there are 8,388,607";
            self.store.health.set("logs", Some(what.into()));
        }
        n
    }

    /// Adds the logs of a root: those that lie in it, and those that did.
    fn list(&mut self, n: u32, root: &Root, work: &mut BTreeSet<u32>) -> Result<(), StoreError> {
        let flat = F::SHAPE.is_flat();
        if root.is_main() && !root.here && !flat {
            // What was in the store stays: it was moved away, or is made anew.
            return Ok(());
        }
        let listed = match self.root_folder(n).and_then(|dir| self.names(n, &dir)) {
            Ok(listed) => listed,
            Err(e) if e.kind() == io::ErrorKind::NotFound && self.store.is_unborn() => {
                return Ok(());
            }
            Err(e) if flat => return Err(StoreError::io(&root.path, e)),
            Err(e) if e.kind() == io::ErrorKind::NotFound => BTreeSet::new(),
            Err(e) => {
                // Of what cannot be listed nothing is known, so nothing has changed.
                let path = F::SHAPE.folder.iter().fold(root.path.clone(), |p, part| p.join(part));
                self.store.health.cannot(&path.to_string_lossy(), "be listed", &e);
                return Ok(());
            }
        };
        work.extend(&listed);
        let table = self.store.table.read();
        work.extend(table.numbered().filter(|(_, l)| l.root == n && !l.gone).map(|(log, _)| log));
        Ok(())
    }

    /// The numbers of the logs in a folder.
    fn names(&self, root: u32, dir: &Rc<std::os::fd::OwnedFd>) -> io::Result<BTreeSet<u32>> {
        let mut out = BTreeSet::new();
        let (meant, word) = match F::SHAPE.file {
            Some(_) => (FileType::Directory, "folder"),
            None => (FileType::RegularFile, "file"),
        };
        let skipped = |name: &str, why: String| {
            self.store.health.set(name, Some(format!("is skipped: {why}")));
        };
        for entry in Dir::read_from(dir.as_ref())? {
            let entry = entry?;
            let Ok(name) = entry.file_name().to_str() else {
                let shown = one_line(&entry.file_name().to_string_lossy()).into_owned();
                skipped(&shown, "its name is not UTF-8".into());
                continue;
            };
            match F::classify(name) {
                Named::Log => {}
                Named::Other => continue,
                Named::Bad(_, why) => {
                    skipped(name, why.into());
                    continue;
                }
            }
            let kind = match entry.file_type() {
                // One that cannot be looked at is read, and then told of.
                FileType::Unknown => below::look(dir, name).map_or(meant, |(kind, _)| kind),
                known => known,
            };
            if kind == meant {
                out.extend(self.number(root, name));
            } else if meant == FileType::RegularFile || kind == FileType::Symlink {
                skipped(name, format!("it is {}, not a {word}", below::describe_type(kind)));
            }
            // Else other programs put other things here.
        }
        Ok(out)
    }
}
