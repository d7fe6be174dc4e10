//! The folder of the files that come with a mail, until the draft that names them is accepted.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process;

use msgfs::mime::attachments::MailAttachment;

/// A folder of this process; removed at its end.
pub(super) struct SubmissionFolder(PathBuf);

impl SubmissionFolder {
    /// Returns a folder below one that the mount of me can read too. It is made when there is a file to write.
    pub fn new(cache: &Path) -> Self {
        Self(cache.join(format!("sendmail-{}", process::id())))
    }

    /// Returns its path.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Writes the files and returns their paths.
    ///
    /// # Errors
    /// Returns the error of the system.
    pub fn write_files(&self, files: &[MailAttachment<'_>]) -> io::Result<Vec<PathBuf>> {
        if files.is_empty() {
            return Ok(Vec::new());
        }
        // These are the files of an earlier process of this number that was killed.
        let _ = fs::remove_dir_all(&self.0);
        let above = self.0.parent().unwrap_or(Path::new("/"));
        DirBuilder::new().recursive(true).mode(0o700).create(above)?;
        DirBuilder::new().mode(0o700).create(&self.0)?;
        let put = |file: &MailAttachment<'_>| {
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
