//! A configuration file of another program: read, backed up, and replaced as a whole.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use rustix::fs::CWD;

use crate::model::{Timestamp, display_path};
use crate::store::atomic_file::FileSlot;
use crate::store::fs::{self as store_fs, Stamp};

/// The largest size of such a file.
const LARGEST: u64 = 16 << 20;
/// The text between the name of a file and the time of its backup.
const ASIDE: &str = ".msgfs-bak-";
/// The largest number of backups that are read.
const LOOKED_AT: usize = 50;
/// The error for a file that is not as it was read.
const CHANGED: &str = "another program changed it at this moment; try again";

/// A file as it is now.
#[derive(Debug)]
pub(super) struct HarnessFile {
    /// The path by which it is called.
    pub(super) path: PathBuf,
    /// Its real path: the target, if it is a symlink.
    real_path: PathBuf,
    /// Its text; `None` if it does not exist.
    pub(super) text: Option<String>,
    stamp_and_mode: Option<(Stamp, u32)>,
}

impl HarnessFile {
    /// Reads a file. The error is a phrase with the reason for leaving it alone.
    pub(super) fn read(path: PathBuf) -> Result<Self, String> {
        let said = |e: &io::Error| format!("it cannot be read: {e}");
        let link = match fs::symlink_metadata(&path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                return Ok(Self {
                    real_path: path.clone(),
                    path,
                    text: None,
                    stamp_and_mode: None,
                });
            }
            other => other.map_err(|e| said(&e))?,
        };
        let place = if link.is_symlink() {
            fs::canonicalize(&path)
                .map_err(|e| format!("it is a symlink that leads nowhere: {e}"))?
        } else {
            path.clone()
        };
        let meta = fs::metadata(&place).map_err(|e| said(&e))?;
        if let Some(owner) = store_fs::foreign_owner(&meta) {
            return Err(format!("it belongs to the user {owner}"));
        }
        if meta.mode() & 0o200 == 0 {
            return Err(format!("it is read-only (chmod u+w {} first)", display_path(&path)));
        }
        let file = store_fs::open_regular(&place).map_err(|e| said(&e))?;
        let stamp = Stamp::from_file(&file).map_err(|e| said(&e))?;
        let bytes = store_fs::read_limited(file, LARGEST).map_err(|e| said(&e))?;
        let text = String::from_utf8(bytes).map_err(|_| "it is not UTF-8".to_owned())?;
        let seen = Some((stamp, meta.mode() & 0o7777));
        Ok(Self { path, real_path: place, text: Some(text), stamp_and_mode: seen })
    }

    /// Writes this text to the file, with `keep` after a backup of the old text.
    pub(super) fn write(&self, text: &str, keep: bool) -> Result<(), String> {
        let said = |e: io::Error| format!("it cannot be written: {e}");
        if let Some(above) = self.real_path.parent() {
            store_fs::make_dirs(above, 0o700).map_err(said)?;
        }
        let slot = FileSlot::new(CWD, &self.real_path);
        let Some((stamp, _)) = &self.stamp_and_mode else {
            slot.create_with(0o600, |file| file.write_all(text.as_bytes())).map_err(said)?;
            return self.sync_folder();
        };
        if keep {
            self.write_backup()?;
        }
        match slot.replace_if_unchanged(stamp, text.as_bytes()).map_err(said)? {
            // The replaced file keeps its time as well, and programs that look for changes must see one.
            Some(_) => File::options()
                .write(true)
                .open(&self.real_path)
                .and_then(|file| file.set_modified(SystemTime::now()))
                .map_err(said)?,
            None => return Err(CHANGED.to_owned()),
        }
        self.sync_folder()
    }

    /// Removes the file, with `keep` after a backup.
    pub(super) fn remove(&self, keep: bool) -> Result<(), String> {
        let said = |e: io::Error| format!("it cannot be removed: {e}");
        if keep {
            self.write_backup()?;
        }
        // This check is as late as possible, as in `write`.
        let seen = self.stamp_and_mode.map(|(stamp, _)| stamp);
        if Stamp::from_path(&self.real_path).map_err(said)? != seen {
            return Err(CHANGED.to_owned());
        }
        fs::remove_file(&self.real_path).map_err(said)?;
        self.sync_folder()
    }

    fn sync_folder(&self) -> Result<(), String> {
        let above = self.real_path.parent().unwrap_or(Path::new(""));
        store_fs::sync_dir(above).map_err(|e| format!("it cannot be written: {e}"))
    }

    /// Writes a backup of the old text, under a name of its own.
    fn write_backup(&self) -> Result<(), String> {
        let Some((_, mode)) = &self.stamp_and_mode else { return Ok(()) };
        let said = |e: io::Error| format!("a copy of the old file cannot be saved: {e}");
        let text = self.text.as_deref().unwrap_or_default();
        let mut now = Timestamp::now().secs();
        loop {
            let mut options = File::options();
            options.write(true).create_new(true).mode(*mode);
            match options.open(self.backup_path(Timestamp::from_secs(now))) {
                // Two backups fall into one second.
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => now += 1,
                opened => {
                    let mut file = opened.map_err(said)?;
                    let written = file.write_all(text.as_bytes()).and_then(|()| file.sync_all());
                    return written.map_err(said);
                }
            }
        }
    }

    fn backup_path(&self, at: Timestamp) -> PathBuf {
        let mut name = self.path.file_name().unwrap_or_default().to_owned();
        name.push(format!("{ASIDE}{}", format_backup_time(at)));
        self.path.with_file_name(name)
    }

    /// Returns the texts of the backups, the newest first.
    pub(super) fn read_backups(&self) -> Vec<String> {
        let read = |path: &PathBuf| store_fs::read_small_file(path, LARGEST).ok();
        let files = list_backups(&self.path);
        let texts = files.iter().take(LOOKED_AT).filter_map(read);
        texts.filter_map(|bytes| String::from_utf8(bytes).ok()).collect()
    }
}

/// Returns the paths of a file's backups, the newest first.
pub(super) fn list_backups(file: &Path) -> Vec<PathBuf> {
    let Some(folder) = file.parent() else { return Vec::new() };
    let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned() + ASIDE;
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|entry| entry.starts_with(&name))
        .collect();
    names.sort_unstable_by(|a, b| b.cmp(a));
    names.iter().map(|name| folder.join(name)).collect()
}

/// Returns the time as `YYYYMMDDTHHMMSSZ`.
fn format_backup_time(at: Timestamp) -> String {
    let text = at.rfc3339();
    let digits: String = text.chars().take(19).filter(|c| !matches!(c, '-' | ':')).collect();
    digits + "Z"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_removed_only_as_it_was_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("hooks.json");
        fs::write(&path, "old").unwrap();
        let read = HarnessFile::read(path.clone()).unwrap();
        fs::write(&path, "from another program").unwrap();
        assert_eq!(read.remove(false).unwrap_err(), CHANGED);
        assert_eq!(fs::read_to_string(&path).unwrap(), "from another program");
        HarnessFile::read(path.clone()).unwrap().remove(false).unwrap();
        assert!(!path.exists());
    }

    #[test]
    fn the_name_has_the_time_in_utc() {
        assert_eq!(format_backup_time(Timestamp::from_secs(1_777_052_523)), "20260424T174203Z");
    }
}
