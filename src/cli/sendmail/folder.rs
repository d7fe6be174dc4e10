//! The files that come with a mail, until the draft that names them was taken.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process;

use super::mail::SubmittedAttachment;

/// A folder of this process; removed at its end.
pub(super) struct SubmissionFolder(PathBuf);

impl SubmissionFolder {
    /// In a folder that the mount of me can read too. It is made when there is something to put there.
    pub fn new(cache: &Path) -> Self {
        Self(cache.join(format!("sendmail-{}", process::id())))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Writes the files; answers with their paths.
    ///
    /// # Errors
    /// As the system gave it.
    pub fn write_files(&self, files: &[SubmittedAttachment<'_>]) -> io::Result<Vec<PathBuf>> {
        if files.is_empty() {
            return Ok(Vec::new());
        }
        // Of an earlier process of this number that was killed.
        let _ = fs::remove_dir_all(&self.0);
        let above = self.0.parent().unwrap_or(Path::new("/"));
        DirBuilder::new().recursive(true).mode(0o700).create(above)?;
        DirBuilder::new().mode(0o700).create(&self.0)?;
        let put = |file: &SubmittedAttachment<'_>| {
            let path = self.0.join(&file.name);
            fs::write(&path, &file.bytes).map(|()| path)
        };
        files.iter().map(put).collect()
    }
}

impl Drop for SubmissionFolder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
