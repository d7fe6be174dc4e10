//! The folder of the files that come with a mail, until the draft that names them is accepted.

use std::cell::OnceCell;
use std::fs::{self, DirBuilder, Metadata};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use msgfs::mime::attachments::MailAttachment;

/// The beginning of the name of such a folder.
const PREFIX: &str = "sendmail-";
/// The age at which a folder is one that its process has left behind.
const OLD: Duration = Duration::from_secs(24 * 3600);

/// A folder of this process; removed at its end.
pub(super) struct SubmissionFolder {
    above: PathBuf,
    made: OnceCell<PathBuf>,
}

impl SubmissionFolder {
    /// Returns a folder below one that the mount of me can read too. It is made when there is a file to write.
    pub fn new(cache: &Path) -> Self {
        Self { above: cache.to_owned(), made: OnceCell::new() }
    }

    /// Returns the path of the folder in which it is made.
    pub fn above(&self) -> &Path {
        &self.above
    }

    /// Writes the files and returns their paths.
    ///
    /// # Errors
    /// Returns the error of the system.
    pub fn write_files(&self, files: &[MailAttachment<'_>]) -> io::Result<Vec<PathBuf>> {
        if files.is_empty() {
            return Ok(Vec::new());
        }
        DirBuilder::new().recursive(true).mode(0o700).create(&self.above)?;
        remove_old(&self.above);
        let dir = self.make()?;
        let put = |file: &MailAttachment<'_>| {
            let path = dir.join(&file.name);
            fs::write(&path, &file.bytes).map(|()| path)
        };
        files.iter().map(put).collect()
    }

    /// Makes the folder under a name of chance: a process of another container may have the same number.
    fn make(&self) -> io::Result<&Path> {
        let random = getrandom::u64().map_err(io::Error::other)?;
        let dir = self.above.join(format!("{PREFIX}{random:016x}"));
        DirBuilder::new().mode(0o700).create(&dir)?;
        Ok(self.made.get_or_init(|| dir))
    }
}

impl Drop for SubmissionFolder {
    fn drop(&mut self) {
        if let Some(made) = self.made.get() {
            let _ = fs::remove_dir_all(made);
        }
    }
}

/// Removes the folders of processes that were killed.
fn remove_old(above: &Path) {
    let Ok(entries) = fs::read_dir(above) else { return };
    let age = |meta: Metadata| meta.modified().ok()?.elapsed().ok();
    for entry in entries.flatten() {
        let is_one = entry.file_name().as_encoded_bytes().starts_with(PREFIX.as_bytes());
        let meta = entry.metadata().ok().filter(|meta| is_one && meta.is_dir());
        if meta.and_then(age).is_some_and(|age| age > OLD) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::SystemTime;

    fn file(bytes: &'static [u8]) -> MailAttachment<'static> {
        MailAttachment { name: "a.txt".into(), bytes: bytes.into() }
    }

    /// S535: two processes of one number do not share a folder, and only old folders are removed.
    #[test]
    fn each_folder_has_its_own_name() {
        let cache = tempfile::tempdir().unwrap();
        let make = |name: &str, age: Duration| {
            let dir = cache.path().join(name);
            fs::create_dir(&dir).unwrap();
            let time = SystemTime::now() - age;
            fs::File::open(&dir).unwrap().set_modified(time).unwrap();
            dir
        };
        let (old, new) = (make("sendmail-1", OLD * 2), make("sendmail-2", OLD / 2));
        let other = make("thumbnails", OLD * 2);
        let folders = [0, 1].map(|_| SubmissionFolder::new(cache.path()));
        let [one, two] = &folders;
        let paths =
            [one.write_files(&[file(b"one")]).unwrap(), two.write_files(&[file(b"two")]).unwrap()];
        for (paths, text) in paths.iter().zip(["one", "two"]) {
            assert_eq!(fs::read_to_string(&paths[0]).unwrap(), text);
        }
        assert!(!old.exists() && new.exists() && other.exists());
        drop(folders);
        assert!(!paths.iter().flatten().any(|path| path.exists()) && new.exists());
    }
}
