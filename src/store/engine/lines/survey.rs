//! The search for logs that a scan has to examine.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;

use rustix::fs::{Dir, FileType};

use super::scan::LogScan;
use super::table::{LogRoot, MAX_LOGS};
use super::tree::{TreeEntry, show_path};
use super::{LineFormat, NameClass};
use crate::model::sanitize_line;
use crate::store::{StoreError, confined};

impl<F: LineFormat> LogScan<'_, F> {
    /// Returns the logs that may have changed: all of them, or those to which the noted paths belong.
    ///
    /// # Errors
    /// Only if there is no store without the folder that cannot be read.
    pub(super) fn find_changed_logs(&mut self, full: bool) -> Result<BTreeSet<u32>, StoreError> {
        let noted = self.store.take_noted_paths();
        self.folders.clear();
        if full {
            self.store.health.clear_faults(|_| true);
            self.store.health.read_fault.clear();
        }
        let mut roots = self.store.table.read().roots.clone();
        let changed =
            self.store.format.find_roots(&self.store.properties.dir, &mut roots, full, &noted);
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
                    Some(below @ [_, ..]) if F::SHAPE.tree.is_some() => {
                        let path = below.join("/");
                        let log = F::SHAPE.log_name(&path);
                        if F::classify_name(log) == NameClass::Log {
                            work.extend(self.assign_number(n, log));
                        } else if F::SHAPE.is_tree_folder(&path) {
                            lists.insert(n);
                        }
                    }
                    Some([name, ..]) => match F::classify_name(name) {
                        NameClass::Log => work.extend(self.assign_number(n, name)),
                        // The listing of the root reports why it is no log.
                        NameClass::Bad(..) => drop(lists.insert(n)),
                        NameClass::Other => {}
                    },
                    _ if down.starts_with(&parts) => drop(lists.insert(n)),
                    _ => {}
                }
            }
        }
        for n in lists {
            if let Some(root) = roots.get(n as usize) {
                self.list_root(n, root, &mut work)?;
            }
        }
        Ok(work)
    }

    fn assign_number(&self, root: u32, name: &str) -> Option<u32> {
        let mut table = self.store.table.write();
        let n = table.assign_number(root, name);
        let full = table.logs.len() >= MAX_LOGS;
        drop(table);
        if n.is_none() && full {
            let what = "no more logs are taken in: there are 8,388,607";
            self.store.health.set_fault("logs", Some(what.into()));
        }
        n
    }

    /// Adds the logs of a root: those that lie in it now, and those that lay in it before.
    fn list_root(
        &mut self,
        n: u32,
        root: &LogRoot,
        work: &mut BTreeSet<u32>,
    ) -> Result<(), StoreError> {
        let flat = F::SHAPE.is_flat();
        if root.is_main() && !root.here && !flat {
            // The messages of the store stay: its folder was moved away, or is being created anew.
            return Ok(());
        }
        let opened = self.open_root_folder(n);
        let listed = match opened.and_then(|dir| match F::SHAPE.tree {
            Some(_) => Ok(self.list_tree(n, root, &dir)),
            None => self.list_log_numbers(n, &dir),
        }) {
            Ok(listed) => listed,
            Err(e) if e.kind() == io::ErrorKind::NotFound && self.store.is_expected_missing() => {
                return Ok(());
            }
            Err(e) if flat => return Err(StoreError::io(&root.path, e)),
            Err(e) if e.kind() == io::ErrorKind::NotFound => BTreeSet::new(),
            Err(e) => {
                // Nothing is known of a folder that cannot be listed, so its logs count as unchanged.
                let path = F::SHAPE.folder.iter().fold(root.path.clone(), |p, part| p.join(part));
                self.store.health.note_error(&path.to_string_lossy(), "be listed", &e);
                return Ok(());
            }
        };
        work.extend(&listed);
        let table = self.store.table.read();
        work.extend(
            table.iter_numbered().filter(|(_, l)| l.root == n && !l.gone).map(|(log, _)| log),
        );
        Ok(())
    }

    /// Returns the numbers of the logs at any depth below a folder.
    fn list_tree(&self, n: u32, root: &LogRoot, dir: &OwnedFd) -> BTreeSet<u32> {
        let mut out = BTreeSet::new();
        let health = &self.store.health;
        self.store.walk_tree(root, dir, &mut |entry| match entry {
            TreeEntry::Log(name, _) => out.extend(self.assign_number(n, name)),
            TreeEntry::Skipped(path, why) => {
                health.set_fault(&show_path(path), Some(format!("is skipped: {why}")));
            }
            TreeEntry::Unread(path, e) => health.note_error(&show_path(path), "be listed", &e),
        });
        out
    }

    /// Returns the numbers of the logs in a folder.
    fn list_log_numbers(&self, root: u32, dir: &Rc<OwnedFd>) -> io::Result<BTreeSet<u32>> {
        let mut out = BTreeSet::new();
        let (meant, word) = match F::SHAPE.log_file {
            Some(_) => (FileType::Directory, "folder"),
            None => (FileType::RegularFile, "file"),
        };
        let skipped = |name: &str, why: String| {
            self.store.health.set_fault(name, Some(format!("is skipped: {why}")));
        };
        for entry in Dir::read_from(dir.as_ref())? {
            let entry = entry?;
            let Ok(name) = entry.file_name().to_str() else {
                let shown = sanitize_line(&entry.file_name().to_string_lossy()).into_owned();
                skipped(&shown, "its name is not UTF-8".into());
                continue;
            };
            match F::classify_name(name) {
                NameClass::Log => {}
                NameClass::Other => continue,
                NameClass::Bad(_, why) => {
                    skipped(name, why.into());
                    continue;
                }
            }
            let kind = match entry.file_type() {
                // An entry whose type is unknown is read, and reported then.
                FileType::Unknown => confined::stat(dir, name).map_or(meant, |(kind, _)| kind),
                known => known,
            };
            if kind == meant {
                out.extend(self.assign_number(root, name));
            } else if meant == FileType::RegularFile || kind == FileType::Symlink {
                skipped(name, format!("it is {}, not a {word}", confined::describe_type(kind)));
            }
            // Other programs put other things here.
        }
        Ok(out)
    }
}
