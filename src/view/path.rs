//! The same tree by path, without a mount: `msgfs ls`, `cat`, `write`, `rm` and `mv`.

use std::io::Write;
use std::time::Duration;

use super::file::OpenFile;
use super::wait::{abandon_read, await_mail};
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

impl FolderEntry {
    /// Returns the line of an entry whose attributes cannot be read: its name hides no other, and reading it tells why.
    pub fn unread(name: String, is_dir: bool) -> Self {
        Self { name, is_dir, size: 0, time: Timestamp::default(), mode: 0 }
    }
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
        parts.into_iter().try_fold(Node::ROOT, |node, name| self.lookup(&node, name))
    }
}

/// Returns the entries of a folder, or the file itself.
///
/// # Errors
/// Those of [`Tree::resolve_path`].
pub fn list_path(tree: &Tree, path: &str) -> Result<Vec<FolderEntry>, Error> {
    let node = tree.resolve_path(path)?;
    let line = |name: String, node: &Node| {
        let Attr { is_dir, size, time, mode, .. } = tree.stat_node(node)?;
        Ok::<_, Error>(FolderEntry { name, is_dir, size, time, mode })
    };
    match tree.list_folder(&node) {
        Ok(listing) => Ok(listing
            .iter_entries(tree)
            .filter_map(|(name, node)| match line(name.clone(), &node) {
                // An entry that went after the listing was taken is no error.
                Err(e) if e.errno() == libc::ENOENT => None,
                other => Some(other.unwrap_or_else(|_| FolderEntry::unread(name, node.is_dir()))),
            })
            .collect()),
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
pub fn copy_path_to(tree: &Tree, path: &str, out: &mut dyn Write) -> Result<(), Error> {
    let file = tree.open(&tree.resolve_path(path)?, &OpenRequest::default())?;
    // A text that could not be printed has not been read.
    copy_open_file(tree, &file, out).inspect_err(|_| abandon_read(tree, &file))?;
    let closed = tree.flush(&file, 0);
    tree.release(&file);
    closed
}

fn copy_open_file(tree: &Tree, file: &OpenFile, out: &mut dyn Write) -> Result<(), Error> {
    let mut offset = 0;
    loop {
        await_mail(tree, file)?;
        let bytes = tree.read(file, offset, CHUNK, 0)?;
        if bytes.is_empty() {
            return Ok(());
        }
        out.write_all(&bytes)?;
        out.flush()?;
        offset += bytes.len() as u64;
    }
}

/// Removes a file as [`TreeWriter::unlink`](super::TreeWriter::unlink) does, for `rm`.
///
/// # Errors
/// Those of [`TreeWriter::unlink`](super::TreeWriter::unlink); [`Error::IsDir`] for folders.
pub fn remove_path(tree: &Tree, path: &str) -> Result<(), Error> {
    let (parent, name) = split_path(tree, path)?;
    if tree.lookup(&parent, name)?.is_dir() {
        return Err(Error::IsDir);
    }
    tree.writer().unlink(&parent, name)
}

/// Renames a file as [`TreeWriter::rename`](super::TreeWriter::rename) does, for `mv`.
///
/// # Errors
/// Those of [`TreeWriter::rename`](super::TreeWriter::rename).
pub fn rename_path(tree: &Tree, from: &str, to: &str) -> Result<(), Error> {
    let (parent, name) = split_path(tree, from)?;
    tree.lookup(&parent, name)?;
    let (new_parent, new_name) = split_path(tree, to)?;
    tree.writer().rename(&parent, name, &new_parent, new_name, true)?;
    tree.writable_outbox()?.sender().wait_until_appended(SENT);
    Ok(())
}

/// Returns the folder of a path, and the name in it.
fn split_path<'a>(tree: &Tree, path: &'a str) -> Result<(Node, &'a str), Error> {
    let path = path.trim_end_matches('/');
    let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
    Ok((tree.resolve_path(folder)?, name))
}

/// Writes a whole file, which is one draft.
///
/// # Errors
/// The reason of a refusal; the draft is then kept with its note, as under a mount.
pub fn write_path(tree: &Tree, path: &str, text: &[u8]) -> Result<(), Error> {
    let (parent, name) = split_path(tree, path)?;
    let access = OpenRequest { write: true, truncate: true, ..OpenRequest::default() };
    let file = match tree.lookup(&parent, name) {
        Ok(node) => tree.open(&node, &access)?,
        Err(Error::NotFound) => tree.writer().create(&parent, name, &access)?.1,
        Err(e) => return Err(e),
    };
    let done = tree.writer().write_file(&file, 0, text).and_then(|()| tree.flush(&file, 0));
    tree.release(&file);
    done?;
    if matches!(file, OpenFile::Draft { .. }) {
        let outbox = tree.writable_outbox()?;
        outbox.composer().wait_for_folders(SENT);
        outbox.sender().wait_until_appended(SENT);
    }
    Ok(())
}
