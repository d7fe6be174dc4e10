//! The same tree by path, without a mount: `msgfs ls`, `cat`, `write`, `rm` and `mv`.

use std::io::Write;
use std::time::Duration;

use super::file::OpenFile;
use super::{Attr, Error, Node, OpenRequest, Tree};
use crate::model::Timestamp;

/// One line of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FolderEntry {
    /// File name.
    pub name: String,
    /// True for a folder.
    pub is_dir: bool,
    /// Size in bytes.
    pub size: u64,
    /// Modification time.
    pub time: Timestamp,
    /// Permission bits.
    pub mode: u16,
}

/// Bytes copied at once.
const CHUNK: usize = 128 << 10;
/// Longest time for which a write waits until its message is in the store.
const SENT: Duration = Duration::from_secs(30);

impl Tree {
    /// Returns the node of a path.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::NotDir`].
    pub fn resolve_path(&self, path: &str) -> Result<Node, Error> {
        let parts = path.split('/').filter(|p| !p.is_empty() && *p != ".");
        parts.into_iter().try_fold(Node::Root, |node, name| self.lookup(&node, name))
    }

    /// Returns the entries of a folder, or the file itself.
    ///
    /// # Errors
    /// Those of [`Tree::resolve_path`].
    pub fn list_path(&self, path: &str) -> Result<Vec<FolderEntry>, Error> {
        let node = self.resolve_path(path)?;
        let line = |name: String, node: &Node| {
            let Attr { is_dir, size, time, mode, .. } = self.stat_node(node)?;
            Ok(FolderEntry { name, is_dir, size, time, mode })
        };
        match self.list_folder(&node) {
            Ok(listing) => self
                .iter_entries(&listing)
                // An entry that went after the listing was taken is no error.
                .filter_map(|(name, node)| match line(name, &node) {
                    Err(Error::NotFound) => None,
                    other => Some(other),
                })
                .collect(),
            Err(Error::NotDir) => {
                let name = path.rsplit('/').next().unwrap_or(path).to_owned();
                Ok(vec![line(name, &node)?])
            }
            Err(e) => Err(e),
        }
    }

    /// Copies a file to `out`, and marks it read if reading marks.
    ///
    /// # Errors
    /// Those of [`Tree::open`], [`Tree::read`] and `out`.
    pub fn copy_path_to(&self, path: &str, out: &mut dyn Write) -> Result<(), Error> {
        let file = self.open(&self.resolve_path(path)?, &OpenRequest::default())?;
        // A text that could not be printed has not been read.
        self.copy_open_file(&file, out).inspect_err(|_| self.abandon_read(&file))?;
        let closed = self.flush(&file, 0);
        self.release(&file);
        closed
    }

    fn copy_open_file(&self, file: &OpenFile, out: &mut dyn Write) -> Result<(), Error> {
        let mut offset = 0;
        loop {
            self.await_mail(file)?;
            let bytes = self.read(file, offset, CHUNK)?;
            if bytes.is_empty() {
                return Ok(());
            }
            out.write_all(&bytes)?;
            out.flush()?;
            offset += bytes.len() as u64;
        }
    }

    /// Removes a file as [`Tree::unlink`] does, for `rm`.
    ///
    /// # Errors
    /// Those of [`Tree::unlink`]; [`Error::IsDir`] for folders.
    pub fn remove_path(&self, path: &str) -> Result<(), Error> {
        let (parent, name) = self.split_path(path)?;
        if self.lookup(&parent, name)?.is_dir() {
            return Err(Error::IsDir);
        }
        self.unlink(&parent, name)
    }

    /// Marks all messages of `inbox/` as read, as removing each of them does. Returns their number.
    ///
    /// # Errors
    /// If nothing can be marked here.
    pub fn mark_all_read(&self) -> Result<usize, Error> {
        self.writable_outbox()?;
        Ok(self.index.mark_all_read())
    }

    /// Renames a file as [`Tree::rename`] does, for `mv`.
    ///
    /// # Errors
    /// Those of [`Tree::rename`].
    pub fn rename_path(&self, from: &str, to: &str) -> Result<(), Error> {
        let (parent, name) = self.split_path(from)?;
        self.lookup(&parent, name)?;
        let (new_parent, new_name) = self.split_path(to)?;
        self.rename(&parent, name, &new_parent, new_name, true)?;
        self.writable_outbox()?.wait_until_appended(SENT);
        Ok(())
    }

    /// Returns the folder of a path, and the name in it.
    fn split_path<'a>(&self, path: &'a str) -> Result<(Node, &'a str), Error> {
        let (folder, name) = path.trim_end_matches('/').rsplit_once('/').unwrap_or(("", path));
        Ok((self.resolve_path(folder)?, name))
    }

    /// Writes a file in one go: one draft.
    ///
    /// # Errors
    /// The reason of a refusal; the draft is then kept with its note, as under a mount.
    pub fn write_path(&self, path: &str, text: &[u8]) -> Result<(), Error> {
        let (parent, name) = self.split_path(path)?;
        let access = OpenRequest { write: true, truncate: true, ..OpenRequest::default() };
        let file = match self.lookup(&parent, name) {
            Ok(node) => self.open(&node, &access)?,
            Err(Error::NotFound) => self.create(&parent, name, &access)?.1,
            Err(e) => return Err(e),
        };
        let done = self.write_file(&file, 0, text).and_then(|()| self.flush(&file, 0));
        self.release(&file);
        done?;
        if matches!(file, OpenFile::Draft { .. }) {
            let outbox = self.writable_outbox()?;
            outbox.composer().wait_for_folders(SENT);
            outbox.wait_until_appended(SENT);
        }
        Ok(())
    }
}
