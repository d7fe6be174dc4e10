//! The same tree by path, without a mount: `msgfs ls`, `cat`, `write`, `rm` and `mv`.

use std::io::Write;
use std::time::Duration;

use super::file::OpenFile;
use super::{Access, Attr, Error, Node, Tree};
use crate::model::Timestamp;

/// One line of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// File name.
    pub name: String,
    /// A folder.
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
/// How long a write waits for its message to be in the store.
const SENT: Duration = Duration::from_secs(30);

impl Tree {
    /// The node of a path.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::NotDir`].
    pub fn resolve(&self, path: &str) -> Result<Node, Error> {
        let parts = path.split('/').filter(|p| !p.is_empty() && *p != ".");
        parts.into_iter().try_fold(Node::Root, |node, name| self.lookup(&node, name))
    }

    /// The entries of a folder, or the file itself.
    ///
    /// # Errors
    /// As [`Tree::resolve`].
    pub fn ls(&self, path: &str) -> Result<Vec<Listed>, Error> {
        let node = self.resolve(path)?;
        let line = |name: String, node: &Node| {
            let Attr { is_dir, size, time, mode, .. } = self.attr(node)?;
            Ok(Listed { name, is_dir, size, time, mode })
        };
        match self.list(&node) {
            Ok(listing) => self
                .items(&listing)
                // What went since the listing was taken is not an error of the listing.
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
    /// As [`Tree::open`] and [`Tree::read`]; what `out` gives.
    pub fn cat(&self, path: &str, out: &mut dyn Write) -> Result<(), Error> {
        let file = self.open(&self.resolve(path)?, &Access::default())?;
        // A text that could not be printed has not been read.
        self.copy(&file, out).inspect_err(|_| self.abandon(&file))?;
        let closed = self.flush(&file, 0);
        self.release(&file);
        closed
    }

    fn copy(&self, file: &OpenFile, out: &mut dyn Write) -> Result<(), Error> {
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

    /// `rm`: as [`Tree::unlink`].
    ///
    /// # Errors
    /// As that; [`Error::IsDir`] for folders.
    pub fn rm(&self, path: &str) -> Result<(), Error> {
        let (parent, name) = self.split(path)?;
        if self.lookup(&parent, name)?.is_dir() {
            return Err(Error::IsDir);
        }
        self.unlink(&parent, name)
    }

    /// Marks everything read that `inbox/` lists, as removing each of its names does; how many those were.
    ///
    /// # Errors
    /// If nothing can be marked here.
    pub fn mark_all(&self) -> Result<usize, Error> {
        self.outbox()?;
        Ok(self.index.mark_all())
    }

    /// `mv`: as [`Tree::rename`].
    ///
    /// # Errors
    /// As that.
    pub fn mv(&self, from: &str, to: &str) -> Result<(), Error> {
        let (parent, name) = self.split(from)?;
        self.lookup(&parent, name)?;
        let (new_parent, new_name) = self.split(to)?;
        self.rename(&parent, name, &new_parent, new_name, true)?;
        self.outbox()?.settle(SENT);
        Ok(())
    }

    /// The folder a path lies in, and its name there.
    fn split<'a>(&self, path: &'a str) -> Result<(Node, &'a str), Error> {
        let (folder, name) = path.trim_end_matches('/').rsplit_once('/').unwrap_or(("", path));
        Ok((self.resolve(folder)?, name))
    }

    /// Writes a file in one go: one draft.
    ///
    /// # Errors
    /// Why it is refused; the draft is then kept with its note, as under a mount.
    pub fn write(&self, path: &str, text: &[u8]) -> Result<(), Error> {
        let (parent, name) = self.split(path)?;
        let access = Access { write: true, truncate: true, ..Access::default() };
        let file = match self.lookup(&parent, name) {
            Ok(node) => self.open(&node, &access)?,
            Err(Error::NotFound) => self.create(&parent, name, &access)?.1,
            Err(e) => return Err(e),
        };
        let done = self.write_file(&file, 0, text).and_then(|()| self.flush(&file, 0));
        self.release(&file);
        done?;
        if matches!(file, OpenFile::Draft { .. }) {
            let outbox = self.outbox()?;
            outbox.settle_folders(SENT);
            outbox.settle(SENT);
        }
        Ok(())
    }
}
