//! The tree in this process, without FUSE.

use std::io::Write;
use std::time::Duration;

use msgfs::mailbox::{Mailbox, Options};
use msgfs::model::one_line;
use msgfs::view::{Listed, Tree};

use super::super::Global;
use super::super::failure::Failure;
use super::{Access, Purpose, into, split};

/// A mailbox opened for one command.
pub(super) struct Direct {
    mailbox: Mailbox,
}

impl Direct {
    pub(super) fn open(global: &Global, purpose: Purpose) -> Result<Self, Failure> {
        let Purpose { acts, waits } = purpose;
        let options = Options { read_only: !acts, once: !waits, ..global.options() };
        Ok(Self { mailbox: super::super::open(&options)? })
    }

    fn tree(&self) -> &dyn Access {
        self.mailbox.tree().as_ref()
    }
}

impl Access for Direct {
    fn ls(&self, path: &str) -> Result<Vec<Listed>, Failure> {
        self.tree().ls(path)
    }

    fn cat(&self, path: &str, out: &mut dyn Write) -> Result<(), Failure> {
        self.tree().cat(path, out)
    }

    fn has(&self, path: &str) -> bool {
        self.tree().has(path)
    }

    fn write(&self, path: &str, text: &[u8]) -> Result<(), Failure> {
        self.tree().write(path, text)
    }

    fn rm(&self, path: &str) -> Result<(), Failure> {
        self.tree().rm(path)
    }

    fn mark_all(&self) -> Result<usize, Failure> {
        self.tree().mark_all()
    }

    fn mv(&self, from: &str, to: &str) -> Result<Option<String>, Failure> {
        self.tree().mv(from, to)
    }

    fn wait(&self, timeout: Duration) -> Result<Vec<String>, Failure> {
        self.tree().wait(timeout)
    }

    fn close(self: Box<Self>) {
        self.mailbox.close();
    }
}

impl Access for Tree {
    fn ls(&self, path: &str) -> Result<Vec<Listed>, Failure> {
        let tree = self;
        let mut listed = match Tree::ls(tree, path) {
            Ok(listed) => listed,
            Err(e) => {
                // A file is listed as itself, as ls(1) does.
                let (folder, name) = split(path);
                let beside = Tree::ls(tree, folder).unwrap_or_default();
                match beside.into_iter().find(|entry| entry.name == name && !entry.is_dir) {
                    Some(file) => vec![file],
                    None => return Err(at(path, e)),
                }
            }
        };
        listed.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(listed)
    }

    fn cat(&self, path: &str, out: &mut dyn Write) -> Result<(), Failure> {
        Tree::cat(self, path, out).map_err(|e| at(path, e))
    }

    fn has(&self, path: &str) -> bool {
        self.resolve(path).is_ok()
    }

    fn write(&self, path: &str, text: &[u8]) -> Result<(), Failure> {
        Tree::write(self, path, text).map_err(|e| at(path, e))
    }

    fn rm(&self, path: &str) -> Result<(), Failure> {
        Tree::rm(self, path).map_err(|e| at(path, e))
    }

    fn mark_all(&self) -> Result<usize, Failure> {
        Tree::mark_all(self).map_err(|e| at("inbox", e))
    }

    fn mv(&self, from: &str, to: &str) -> Result<Option<String>, Failure> {
        let tree = self;
        let to = into(tree.resolve(to).is_ok_and(|node| node.is_dir()), from, to);
        match Tree::mv(tree, from, &to) {
            Err(e) if e.errno() == libc::EXDEV => Ok(Some(to)),
            done => done.map(|()| None).map_err(|e| at(from, e)),
        }
    }

    fn wait(&self, timeout: Duration) -> Result<Vec<String>, Failure> {
        Ok(Tree::wait(self, timeout))
    }
}

/// A failure with the path it is about.
fn at(path: &str, error: msgfs::view::Error) -> Failure {
    Failure::Errno(error.errno(), format!("{}: {error}", one_line(path)))
}
