//! The count of messages that a peer has not read, from the files of its mailbox.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::FileType;

use super::table::stamp_hash;
use crate::model::locks::Mutex;
use crate::store::{PeerReadState, PeerUnread, confined};

/// The number of files up to which a mailbox is counted. The caller would wait too long for more.
const FILES: usize = 500;
/// The number of mailboxes up to which any is counted.
pub const MAILBOXES: usize = 64;

/// The state of the files of one mailbox: by path, the hash of the stamp, and true if it is unread.
type UnreadCache = HashMap<String, (u64, bool)>;

/// A counter that keeps earlier results. A file is read again when it changed.
#[derive(Debug, Default)]
pub struct UnreadCounter(Mutex<HashMap<PathBuf, UnreadCache>>);

/// The rules by which files of a mailbox are messages, and unread.
#[derive(Clone, Copy, Debug)]
pub struct UnreadRules {
    /// A function that returns true if a file of this name is a message.
    pub is_message: fn(&str) -> bool,
    /// A number of bytes, and a function that returns true if a file that begins with at most that many bytes is
    /// unread.
    pub is_unread: (usize, fn(&[u8]) -> bool),
}

/// One count under way.
struct MailboxCount<'a> {
    base: &'a Path,
    mail: UnreadRules,
    before: UnreadCache,
    counted: UnreadCache,
    newest: i128,
}

impl UnreadCounter {
    /// Counts the unread messages in these folders of a mailbox, and with `deeper` in the folders in them. `None` if
    /// not all of it can be read, or there is too much of it.
    pub fn count_unread(
        &self,
        base: &Path,
        folders: &[String],
        deeper: bool,
        mail: UnreadRules,
    ) -> Option<PeerReadState> {
        let before = self.0.lock().remove(base).unwrap_or_default();
        let mut count = MailboxCount { base, mail, before, counted: UnreadCache::new(), newest: 0 };
        folders.iter().try_for_each(|folder| count.count_folder(folder, deeper)).ok()?;
        let behind = count.counted.values().filter(|(_, unread)| *unread).count() as u64;
        let newest = std::time::Duration::from_nanos(u64::try_from(count.newest).unwrap_or(0));
        let since = (count.newest > 0).then(|| (std::time::UNIX_EPOCH + newest).into());
        self.0.lock().insert(base.to_owned(), count.counted);
        Some(PeerReadState { unread: PeerUnread::Count(behind), since })
    }
}

impl MailboxCount<'_> {
    fn count_folder(&mut self, folder: &str, deeper: bool) -> io::Result<()> {
        let dir = match confined::open_dir(self.base, &super::path_parts(folder)) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
            dir => dir?,
        };
        for (name, kind) in super::list_names(&dir)? {
            let Ok(name) = name else { continue };
            let path = super::join_path(folder, &name);
            if kind == FileType::Directory && deeper {
                self.count_folder(&path, false)?;
            }
            if kind != FileType::RegularFile || !(self.mail.is_message)(&name) {
                continue;
            }
            if self.counted.len() >= FILES {
                return Err(io::ErrorKind::FileTooLarge.into());
            }
            let (_, stamp) = confined::stat(&dir, &name)?;
            let print = stamp_hash(&stamp);
            self.newest = self.newest.max(stamp.mtime);
            let (limit, is_unread) = self.mail.is_unread;
            let unread = match self.before.get(&path) {
                Some((old, unread)) if *old == print => *unread,
                _ => is_unread(&confined::read_whole(&confined::open_file(&dir, &name)?, limit)?.1),
            };
            self.counted.insert(path, (print, unread));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    const MAIL: UnreadRules = UnreadRules {
        is_message: |name| name.strip_suffix(".txt").is_some(),
        is_unread: (64, |bytes| bytes.starts_with(b"new")),
    };

    #[test]
    fn what_is_new_is_counted_and_what_cannot_be_read_is_not_guessed() {
        let dir = tempfile::tempdir().unwrap();
        let (base, unread) = (dir.path(), UnreadCounter::default());
        let count = |folders: &[&str], deeper| {
            let folders: Vec<String> = folders.iter().map(|f| (*f).to_owned()).collect();
            Some(unread.count_unread(base, &folders, deeper, MAIL)?.unread)
        };
        fs::create_dir_all(base.join("in/x")).unwrap();
        fs::write(base.join("in/a.txt"), "new").unwrap();
        fs::write(base.join("in/b.txt"), "read").unwrap();
        fs::write(base.join("in/c.tmp"), "new").unwrap();
        fs::write(base.join("in/x/d.txt"), "new").unwrap();
        std::os::unix::fs::symlink("a.txt", base.join("in/link.txt")).unwrap();
        assert_eq!(count(&["in", "gone"], false), Some(PeerUnread::Count(1)));
        assert_eq!(count(&["in"], true), Some(PeerUnread::Count(2)));
        fs::write(base.join("in/a.txt"), "read").unwrap();
        assert_eq!(count(&["in"], true), Some(PeerUnread::Count(1)));
        for n in 0..FILES {
            fs::write(base.join(format!("in/x/{n}.txt")), "read").unwrap();
        }
        assert_eq!(count(&["in"], true), None);
        fs::write(base.join("file"), "").unwrap();
        assert_eq!(count(&["file"], true), None);
    }
}
