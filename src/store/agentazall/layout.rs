//! The folders of a mailbox (docs/formats/agentazall.md, section 1) and paths below it.

use std::path::{Path, PathBuf};

use rustix::fs::FileType;

use super::date;
use crate::store::confined;
use crate::store::engine::files;

/// The folders of a day that hold messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum MailboxFolder {
    /// Messages that arrived.
    Inbox,
    /// Messages that were sent.
    Sent,
    /// Messages that wait to be sent.
    Outbox,
    /// Messages that a link carries. No other program looks here, so none sends them a second time.
    Carrying,
}

impl MailboxFolder {
    /// All folders.
    pub const ALL: [Self; 4] = [Self::Inbox, Self::Sent, Self::Outbox, Self::Carrying];

    /// Returns its name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Inbox => "inbox",
            Self::Sent => "sent",
            Self::Outbox => "outbox",
            Self::Carrying => "carrying",
        }
    }

    /// Returns true if messages in this folder wait for delivery.
    pub fn is_waiting(self) -> bool {
        matches!(self, Self::Outbox | Self::Carrying)
    }

    /// Returns the folder of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|f| f.as_str() == name)
    }
}

/// The path of a message file: `<day>/<folder>/<stem>.txt` below the mailbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LetterPath<'a> {
    /// `YYYY-MM-DD`, the local day of its writer.
    pub day: &'a str,
    /// The folder.
    pub folder: MailboxFolder,
    /// The file's name without `.txt`.
    pub stem: &'a str,
}

impl<'a> LetterPath<'a> {
    /// Parses a path. Returns `None` if it is not that of a message file.
    pub fn parse(path: &'a str) -> Option<Self> {
        let (day, rest) = path.split_once('/')?;
        let (folder, name) = rest.split_once('/')?;
        let stem = name.strip_suffix(".txt").filter(|_| !name.contains('/'))?;
        let folder = MailboxFolder::from_name(folder)?;
        date::is_day(day).then_some(Self { day, folder, stem })
    }

    /// Returns the path of the same file in another folder of its day.
    pub fn path_in(&self, folder: MailboxFolder) -> String {
        format!("{}/{}/{}.txt", self.day, folder.as_str(), self.stem)
    }
}

/// Returns true if a name ends like those of messages and texts.
pub(super) fn is_text_name(name: &str) -> bool {
    name.strip_suffix(".txt").is_some()
}

/// Returns the folder of the attachments of a message file.
pub(super) fn attachments_dir(file: &Path) -> PathBuf {
    file.with_extension("")
}

/// Returns true if this is a folder, not a symbolic link to one.
pub(super) fn is_real_dir(path: &Path) -> bool {
    std::fs::symlink_metadata(path).is_ok_and(|m| m.is_dir())
}

/// Returns the names of the day folders in a mailbox, oldest first. A link or a file is not a day folder.
pub(super) fn list_days(base: &Path) -> std::io::Result<Vec<String>> {
    let names = files::list_names(&confined::open_dir(base, &[])?)?.into_iter();
    let day = |(name, kind): (Result<String, String>, FileType)| {
        name.ok().filter(|name| kind == FileType::Directory && date::is_day(name))
    };
    Ok(names.filter_map(day).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_messages_and_nothing_else() {
        let place = LetterPath::parse("2026-03-11/inbox/ab12.txt").unwrap();
        assert_eq!(
            (place.day, place.folder, place.stem),
            ("2026-03-11", MailboxFolder::Inbox, "ab12")
        );
        assert_eq!(LetterPath::parse("2026-03-11/sent/.a.b.txt").unwrap().stem, ".a.b");
        for bad in [
            "2026-03-11/notes/a.txt",
            "2026-03-11/inbox/a.tmp",
            "2026-03-11/inbox/a/b.txt",
            "2026-3-11/inbox/a.txt",
            "inbox/a.txt",
            "",
        ] {
            assert_eq!(LetterPath::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn attachments_lie_under_the_stem() {
        assert_eq!(attachments_dir(Path::new("/m/inbox/ab.cd.txt")), Path::new("/m/inbox/ab.cd"));
    }

    #[test]
    fn linked_days_are_left_out() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("2026-03-12")).unwrap();
        std::fs::create_dir(dir.path().join("2026-03-11")).unwrap();
        std::fs::create_dir(dir.path().join("skills")).unwrap();
        std::os::unix::fs::symlink("2026-03-11", dir.path().join("2026-03-13")).unwrap();
        std::fs::write(dir.path().join("2026-03-14"), "").unwrap();
        assert_eq!(list_days(dir.path()).unwrap(), ["2026-03-11", "2026-03-12"]);
    }
}
