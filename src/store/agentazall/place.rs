//! The folders of a mailbox (docs/formats/agentazall.md, section 1) and paths below it.

use std::path::{Path, PathBuf};

use rustix::fs::FileType;

use super::date;
use crate::store::below;
use crate::store::engine::files;

/// The folders of a day that hold messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum MailboxFolder {
    /// What arrived.
    Inbox,
    /// What was sent, for good.
    Sent,
    /// What waits to be sent.
    Outbox,
    /// What a link carries: no other program looks here, so none sends it a second time.
    Carrying,
}

impl MailboxFolder {
    /// All of them, in the order in which they are looked at.
    pub const ALL: [Self; 4] = [Self::Inbox, Self::Sent, Self::Outbox, Self::Carrying];

    /// Its name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Inbox => "inbox",
            Self::Sent => "sent",
            Self::Outbox => "outbox",
            Self::Carrying => "carrying",
        }
    }

    /// Whether what lies there waits for somebody.
    pub fn is_waiting(self) -> bool {
        matches!(self, Self::Outbox | Self::Carrying)
    }

    /// The folder of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|f| f.as_str() == name)
    }
}

/// Where a message file lies: `<day>/<folder>/<stem>.txt` below the mailbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LetterPath<'a> {
    /// `YYYY-MM-DD`, the local day of whoever wrote it.
    pub day: &'a str,
    /// The folder.
    pub folder: MailboxFolder,
    /// The file's name without `.txt`.
    pub stem: &'a str,
}

impl<'a> LetterPath<'a> {
    /// Takes a path apart; `None` if it is not that of a message file.
    pub fn parse(path: &'a str) -> Option<Self> {
        let (day, rest) = path.split_once('/')?;
        let (folder, name) = rest.split_once('/')?;
        let stem = name.strip_suffix(".txt").filter(|_| !name.contains('/'))?;
        let folder = MailboxFolder::from_name(folder)?;
        date::is_day(day).then_some(Self { day, folder, stem })
    }

    /// The same file in another folder of its day.
    pub fn path_in(&self, folder: MailboxFolder) -> String {
        format!("{}/{}/{}.txt", self.day, folder.as_str(), self.stem)
    }
}

/// Whether a name ends as those of messages and texts do.
pub(super) fn is_text_name(name: &str) -> bool {
    name.strip_suffix(".txt").is_some()
}

/// The folder of the attachments that belong to a message file.
pub(super) fn attachments_dir(file: &Path) -> PathBuf {
    file.with_extension("")
}

/// Whether there is a folder of this name, not a symbolic link to one.
pub(super) fn is_real_dir(path: &Path) -> bool {
    std::fs::symlink_metadata(path).is_ok_and(|m| m.is_dir())
}

/// The names of the day folders in a mailbox, oldest first; what is a link or a file is none.
pub(super) fn list_days(base: &Path) -> std::io::Result<Vec<String>> {
    let names = files::list_names(&below::open_dir(base, &[])?)?.into_iter();
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
