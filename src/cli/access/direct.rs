//! The tree in this process, without FUSE.

use std::io::Write;
use std::time::Duration;

use msgfs::mailbox::{Mailbox, MailboxOptions};
use msgfs::model::sanitize_line;
use msgfs::view::{self, AskProgress, AskQuery, FolderEntry, SearchReport, Tree};

use super::super::GlobalOptions;
use super::super::failure::Failure;
use super::super::progress::show_search_progress;
use super::{AccessPurpose, TreeAccess, resolve_move_target, split_path, suggest_listing};

/// A mailbox opened for one command.
pub(super) struct DirectAccess {
    mailbox: Mailbox,
}

impl DirectAccess {
    pub(super) fn open(global: &GlobalOptions, purpose: AccessPurpose) -> Result<Self, Failure> {
        let AccessPurpose { acts, follows, searches, .. } = purpose;
        let options = MailboxOptions {
            read_only: !acts,
            once: !follows,
            may_index: searches,
            ..global.mailbox_options()
        };
        Ok(Self { mailbox: super::super::open_with_progress(&options)? })
    }

    /// Waits until there is an answer that was not printed. Returns false if there is none in time.
    pub(super) fn wait_for_answer(
        &self,
        query: AskQuery<'_>,
        within: Duration,
    ) -> Result<bool, Failure> {
        view::wait_for_answer(self.mailbox.tree(), query, within)
            .map_err(|e| Failure::Errno(e.errno(), e.to_string()))
    }

    fn tree(&self) -> &dyn TreeAccess {
        self.mailbox.tree().as_ref()
    }
}

impl TreeAccess for DirectAccess {
    fn ls(&self, path: &str) -> Result<Vec<FolderEntry>, Failure> {
        self.tree().ls(path)
    }

    fn cat(&self, path: &str, out: &mut dyn Write) -> Result<(), Failure> {
        self.tree().cat(path, out)
    }

    fn has_path(&self, path: &str) -> bool {
        self.tree().has_path(path)
    }

    fn write(&self, path: &str, text: &[u8]) -> Result<(), Failure> {
        self.tree().write(path, text)
    }

    fn rm(&self, path: &str) -> Result<(), Failure> {
        self.tree().rm(path)
    }

    fn mark_all_read(&self) -> Result<usize, Failure> {
        self.tree().mark_all_read()
    }

    fn mv(&self, from: &str, to: &str) -> Result<Option<String>, Failure> {
        self.tree().mv(from, to)
    }

    fn wait_for_mail(&self, timeout: Duration) -> Result<Vec<String>, Failure> {
        self.tree().wait_for_mail(timeout)
    }

    fn next_answer(
        &self,
        query: AskQuery<'_>,
        within: Duration,
        out: &mut dyn Write,
    ) -> Result<AskProgress, Failure> {
        self.tree().next_answer(query, within, out)
    }

    fn search(&self, query: &str, limit: usize) -> Result<SearchReport, Failure> {
        let tree = self.mailbox.tree();
        show_search_progress(|| tree.search_progress(), || self.tree().search(query, limit))
    }

    fn close(self: Box<Self>) {
        self.mailbox.close();
    }
}

impl TreeAccess for Tree {
    fn ls(&self, path: &str) -> Result<Vec<FolderEntry>, Failure> {
        let tree = self;
        let mut listed = match view::list_path(tree, path) {
            Ok(listed) => listed,
            Err(e) => {
                // A file is listed as itself, like in ls(1).
                let (folder, name) = split_path(path);
                let beside = view::list_path(tree, folder).unwrap_or_default();
                match beside.into_iter().find(|entry| entry.name == name && !entry.is_dir) {
                    Some(file) => vec![file],
                    None => return Err(path_failure(path, e)),
                }
            }
        };
        listed.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(listed)
    }

    fn cat(&self, path: &str, out: &mut dyn Write) -> Result<(), Failure> {
        view::copy_path_to(self, path, out).map_err(|e| path_failure(path, e))
    }

    fn has_path(&self, path: &str) -> bool {
        self.resolve_path(path).is_ok()
    }

    fn write(&self, path: &str, text: &[u8]) -> Result<(), Failure> {
        view::write_path(self, path, text).map_err(|e| path_failure(path, e))
    }

    fn rm(&self, path: &str) -> Result<(), Failure> {
        view::remove_path(self, path).map_err(|e| path_failure(path, e))
    }

    fn mark_all_read(&self) -> Result<usize, Failure> {
        self.writer().mark_all_read().map_err(|e| path_failure("inbox", e))
    }

    fn mv(&self, from: &str, to: &str) -> Result<Option<String>, Failure> {
        let tree = self;
        let to =
            resolve_move_target(tree.resolve_path(to).is_ok_and(|node| node.is_dir()), from, to);
        match view::rename_path(tree, from, &to) {
            Err(e) if e.errno() == libc::EXDEV => Ok(Some(to)),
            done => done.map(|()| None).map_err(|e| path_failure(from, e)),
        }
    }

    fn wait_for_mail(&self, timeout: Duration) -> Result<Vec<String>, Failure> {
        Ok(view::wait_for_unread(self, timeout))
    }

    fn next_answer(
        &self,
        query: AskQuery<'_>,
        within: Duration,
        out: &mut dyn Write,
    ) -> Result<AskProgress, Failure> {
        view::copy_next_answer(self, query, within, out)
            .map_err(|e| Failure::Errno(e.errno(), e.to_string()))
    }
}

/// Returns a failure that names its path. An error with a sentence of its own says what to do.
fn path_failure(path: &str, error: msgfs::view::Error) -> Failure {
    let is_bare = matches!(error, view::Error::NotFound | view::Error::IsDir);
    let hint = if is_bare { suggest_listing(path, error.errno()) } else { String::new() };
    Failure::Errno(error.errno(), format!("{}: {error}{hint}", sanitize_line(path)))
}
