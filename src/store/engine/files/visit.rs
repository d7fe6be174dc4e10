//! The walk of `msgfs check`: everything below the store's folder, whatever a table contains.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::fs::{Dir, FileType};

use super::format::{FileFormat, PathRole, describe_non_message, describe_odd_type};
use super::walk::DirCache;
use super::{FileStore, join_path, path_parts};
use crate::store::fs::Stamp;
use crate::store::{StoreError, Violation, confined};

/// A path that the walk came to.
#[derive(Debug)]
pub enum WalkEntry<'a> {
    /// A message file.
    Message {
        /// Its folder.
        folder: &'a str,
        /// Its name.
        name: &'a str,
        /// Its state when it was read.
        stamp: Stamp,
        /// Its bytes, at most one more than [`FileFormat::LONGEST`].
        bytes: &'a [u8],
    },
    /// Something else that has a meaning.
    Other {
        /// Its path in the store.
        path: &'a str,
        /// Its role.
        what: PathRole,
    },
    /// Something that breaks a rule.
    Wrong(Violation),
}

/// Returns the violation of a rule by a file.
pub fn file_violation(file: &str, rule: &'static str, detail: String) -> Violation {
    Violation { file: file.to_owned(), line: 0, rule, detail }
}

impl<F: FileFormat> FileStore<F> {
    /// Calls back with everything, folder by folder in the order of the names.
    ///
    /// # Errors
    /// If the store's folder cannot be listed.
    pub fn visit_entries(&self, each: &mut dyn FnMut(WalkEntry<'_>)) -> Result<(), StoreError> {
        confined::open_dir(&self.properties.dir, &[])
            .map_err(|e| StoreError::io(&self.properties.dir, e))?;
        self.visit_folder("", &mut DirCache::new(&self.properties.dir), each);
        Ok(())
    }

    fn visit_folder(
        &self,
        path: &str,
        dirs: &mut DirCache<'_>,
        each: &mut dyn FnMut(WalkEntry<'_>),
    ) {
        let opened = dirs.open(path).and_then(|dir| Ok((Arc::clone(&dir), list_names(&dir)?)));
        let (dir, names) = match opened {
            Ok(opened) => opened,
            Err(e) => return each(wrong_file(path, format!("cannot be listed: {e}"))),
        };
        let mut folders = Vec::new();
        for (name, kind) in names {
            let here = join_path(path, name.as_ref().unwrap_or_else(|shown| shown));
            let Ok(name) = name else {
                let why = "the name is not UTF-8".to_owned();
                each(WalkEntry::Wrong(file_violation(&here, "name", why)));
                continue;
            };
            match (self.format.determine_role(&path_parts(&here), kind), kind) {
                (what @ PathRole::Folder, FileType::Directory) => {
                    each(WalkEntry::Other { path: &here, what });
                    folders.push(here);
                }
                (PathRole::Folder, kind) => {
                    let what = confined::describe_type(kind);
                    each(wrong_file(&here, format!("is {what}, not a folder")));
                }
                (PathRole::Message, FileType::RegularFile) => {
                    let read = confined::open_file(&dir, &name)
                        .and_then(|file| confined::read_whole(&file, F::LONGEST.saturating_add(1)));
                    match read {
                        Ok((stamp, bytes)) => {
                            each(WalkEntry::Message {
                                folder: path,
                                name: &name,
                                stamp,
                                bytes: &bytes,
                            });
                        }
                        Err(e) => each(wrong_file(&here, format!("cannot be read: {e}"))),
                    }
                }
                (PathRole::Message, kind) if F::REFUSES_ODD => {
                    each(wrong_file(&here, describe_odd_type(kind)));
                }
                (PathRole::Message, kind) => {
                    each(wrong_file(&here, strip_skip_phrase(&describe_non_message(kind))));
                }
                (PathRole::Unexpected(why), _) => each(wrong_file(&here, strip_skip_phrase(&why))),
                (what, _) => each(WalkEntry::Other { path: &here, what }),
            }
        }
        for folder in folders {
            self.visit_folder(&folder, dirs, each);
        }
    }
}

fn wrong_file(file: &str, detail: String) -> WalkEntry<'static> {
    WalkEntry::Wrong(file_violation(file, "file", detail))
}

/// Returns a sentence without the phrase that the mount skips a file: here it is simply wrong.
fn strip_skip_phrase(why: &str) -> String {
    why.replacen("is skipped: it is", "is", 1)
}

/// Returns the names in a folder with their types, sorted. A name that is not UTF-8 is an `Err` with the text to show.
///
/// # Errors
/// As the system gave it.
pub fn list_names(dir: &OwnedFd) -> io::Result<Vec<(Result<String, String>, FileType)>> {
    let mut out = Vec::new();
    for entry in Dir::read_from(dir)? {
        let entry = entry?;
        match entry.file_name().to_str() {
            Ok("." | "..") => {}
            Ok(name) => {
                let kind = confined::stat(dir, name).map_or(FileType::Unknown, |(kind, _)| kind);
                out.push((Ok(name.to_owned()), kind));
            }
            Err(_) => {
                let shown = entry.file_name().to_string_lossy().into_owned();
                out.push((Err(shown), FileType::Unknown));
            }
        }
    }
    out.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
    Ok(out)
}
