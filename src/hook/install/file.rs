//! A file of somebody's configuration: read, kept aside, and replaced as a whole.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use rustix::fs::CWD;

use crate::model::{Timestamp, shown_path};
use crate::store::fs::{self as store_fs, Stamp};
use crate::store::place::Slot;

/// No such file is larger.
const LARGEST: u64 = 16 << 20;
/// What stands between the name of a file and the time at which it was kept aside.
const ASIDE: &str = ".msgfs-bak-";
/// Kept files that are looked at.
const LOOKED_AT: usize = 50;

/// A file as it is now.
#[derive(Debug)]
pub(super) struct Config {
    /// As it is called.
    pub(super) path: PathBuf,
    /// Where it is: behind the symlink, if it is one.
    place: PathBuf,
    /// What is in it; `None` if it is not there.
    pub(super) text: Option<String>,
    seen: Option<(Stamp, u32)>,
}

impl Config {
    /// Reads a file. The error is a phrase that says why it is left alone.
    pub(super) fn read(path: PathBuf) -> Result<Self, String> {
        let said = |e: &io::Error| format!("it cannot be read: {e}");
        let link = match fs::symlink_metadata(&path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                return Ok(Self { place: path.clone(), path, text: None, seen: None });
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
            return Err(format!("it is read-only (chmod u+w {} first)", shown_path(&path)));
        }
        let file = store_fs::open_regular(&place).map_err(|e| said(&e))?;
        let stamp = Stamp::of(&file).map_err(|e| said(&e))?;
        let bytes = store_fs::read_at_once(file, LARGEST).map_err(|e| said(&e))?;
        let text = String::from_utf8(bytes).map_err(|_| "it is not UTF-8".to_owned())?;
        let seen = Some((stamp, meta.mode() & 0o7777));
        Ok(Self { path, place, text: Some(text), seen })
    }

    /// Puts this text there, after keeping aside what was there if that is asked for.
    pub(super) fn write(&self, text: &str, keep: bool) -> Result<(), String> {
        let said = |e: io::Error| format!("it cannot be written: {e}");
        if let Some(above) = self.place.parent() {
            store_fs::make_dirs(above, 0o700).map_err(said)?;
        }
        let slot = Slot::new(CWD, &self.place);
        let Some((stamp, _)) = &self.seen else {
            slot.fill(0o600, |file| file.write_all(text.as_bytes())).map_err(said)?;
            return self.sync();
        };
        if keep {
            self.keep()?;
        }
        match slot.replace(stamp, text.as_bytes()).map_err(said)? {
            // It keeps the time as well, and who looks for changes must see one.
            Some(_) => File::options()
                .write(true)
                .open(&self.place)
                .and_then(|file| file.set_modified(SystemTime::now()))
                .map_err(said)?,
            None => return Err("another program changed it at this moment; try again".to_owned()),
        }
        self.sync()
    }

    /// Removes it.
    pub(super) fn remove(&self, keep: bool) -> Result<(), String> {
        if keep {
            self.keep()?;
        }
        fs::remove_file(&self.place).map_err(|e| format!("it cannot be removed: {e}"))?;
        self.sync()
    }

    fn sync(&self) -> Result<(), String> {
        let above = self.place.parent().unwrap_or(Path::new(""));
        store_fs::sync_dir(above).map_err(|e| format!("it cannot be written: {e}"))
    }

    /// Keeps aside what is there, under a name of its own.
    fn keep(&self) -> Result<(), String> {
        let Some((_, mode)) = &self.seen else { return Ok(()) };
        let said = |e: io::Error| format!("a copy of the old file cannot be saved: {e}");
        let text = self.text.as_deref().unwrap_or_default();
        let mut now = Timestamp::now().secs();
        loop {
            let mut options = File::options();
            options.write(true).create_new(true).mode(*mode);
            match options.open(self.aside(Timestamp::from_secs(now))) {
                // Two in one second.
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => now += 1,
                opened => {
                    let mut file = opened.map_err(said)?;
                    let written = file.write_all(text.as_bytes()).and_then(|()| file.sync_all());
                    return written.map_err(said);
                }
            }
        }
    }

    fn aside(&self, at: Timestamp) -> PathBuf {
        let mut name = self.path.file_name().unwrap_or_default().to_owned();
        name.push(format!("{ASIDE}{}", stamp(at)));
        self.path.with_file_name(name)
    }

    /// What was kept aside, the newest first.
    pub(super) fn kept(&self) -> Vec<String> {
        let read = |path: &PathBuf| store_fs::read_small(path, LARGEST).ok();
        let files = kept_of(&self.path);
        let texts = files.iter().take(LOOKED_AT).filter_map(read);
        texts.filter_map(|bytes| String::from_utf8(bytes).ok()).collect()
    }
}

/// Returns the files in which a file was kept aside, the newest first.
pub(super) fn kept_of(file: &Path) -> Vec<PathBuf> {
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

/// `YYYYMMDDTHHMMSSZ`.
fn stamp(at: Timestamp) -> String {
    let text = at.rfc3339();
    let digits: String = text.chars().take(19).filter(|c| !matches!(c, '-' | ':')).collect();
    digits + "Z"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_has_the_time_in_utc() {
        assert_eq!(stamp(Timestamp::from_secs(1_777_052_523)), "20260424T174203Z");
    }
}
