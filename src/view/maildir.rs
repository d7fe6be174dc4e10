//! `.maildir/`: the messages to me for mail programs (docs/SEMANTICS.md, "Mail programs").
//!
//! A name there is that of the message file without its ending, with flags after `:2,`. The folder of a message
//! follows from its mark and from its label ([`MailLabel`]), which mail programs set. Each message has one
//! inode number in all folders, so that a rename is a rename. No cache may trust a name: a rename between two
//! names of one file would do nothing, and the kernel would not even ask.
//!
//! A message with files is a [`MailWithFiles`]; all others have the bytes of the message file.

use super::attr::README_TIME;
use super::file::{OpenFile, OpenRequest};
use super::folder_scope::{FolderScope, MessageFolder};
use super::listing::ListingEntry;
use super::mail_with_files::MailWithFiles;
use super::node::{Ino, InodeTag, Node, NodeProperty, PagePolicy, make_inode};
use super::sidecars::FIXED_MESSAGE;
use super::table::{NodeAttributes, TreeChanges, View, ViewKey, WRITE_REFUSAL};
use super::unique_names::NameForm;
use super::{CachePolicy, Error, Listing, Tree};
use crate::index::{MailLabel, MsgIx, TRASHED};
use crate::model::Timestamp;
use crate::model::locks::Mutex;

/// Separator between a name and its flags.
const INFO: &str = ":2,";
/// The flag of a read message.
const SEEN: char = 'S';
/// The flag of an answered message.
const REPLIED: char = 'R';
/// Largest number of flags of one message.
const FLAGS: usize = 64;

/// The folders of the Maildir.
const BOXES: [(&str, MaildirFolder); 3] =
    [("cur", MaildirFolder::Cur), ("new", MaildirFolder::New), ("tmp", MaildirFolder::Tmp)];

/// Their inode numbers.
const NUMBERS: [(Ino, MaildirFolder); 3] =
    [(18, MaildirFolder::New), (19, MaildirFolder::Cur), (20, MaildirFolder::Tmp)];

/// The folder of a message, and its flags if its name has any.
#[derive(Clone, Debug, PartialEq, Eq)]
struct MaildirState {
    folder: MaildirFolder,
    flags: Option<String>,
}

impl MaildirState {
    fn from_marks(read: bool, answered: bool, label: Option<&MailLabel>) -> Self {
        let mut flags = label.and_then(|label| label.flags.clone());
        if read {
            insert_flag(&mut flags, SEEN);
        } else if flags.as_ref().is_some_and(|flags| flags.contains(SEEN)) {
            flags = flags.map(|flags| flags.replace(SEEN, "")).filter(|flags| !flags.is_empty());
        }
        if answered && !label.is_some_and(|label| label.unanswered) {
            insert_flag(&mut flags, REPLIED);
        }
        Self { folder: choose_folder(read, label), flags }
    }

    /// Splits a name in a folder into the stem and the state that it expresses. Returns `None` if the name is
    /// not understood.
    fn parse(folder: MaildirFolder, name: &str) -> Option<(&str, Self)> {
        let Some((stem, flags)) = name.split_once(INFO) else {
            return (!name.contains(':')).then_some((name, Self { folder, flags: None }));
        };
        let known = |b: u8| b.is_ascii_graphic() && b != b':';
        let sound = flags.len() <= FLAGS && flags.bytes().all(known);
        sound.then(|| (stem, Self { folder, flags: Some(flags.to_owned()) }))
    }

    fn has_flag(&self, flag: char) -> bool {
        self.flags.as_ref().is_some_and(|flags| flags.contains(flag))
    }

    /// Returns the label that gives a message this state.
    fn into_label(self, seen: bool, answered: bool) -> MailLabel {
        if self == Self::from_marks(seen, answered, None) {
            return MailLabel::default();
        }
        MailLabel {
            old: self.folder == MaildirFolder::Cur && !seen,
            removed: false,
            unanswered: answered && !self.has_flag(REPLIED),
            flags: self.flags,
        }
    }

    fn file_name(&self, stem: &str) -> String {
        self.flags.as_ref().map_or_else(|| stem.to_owned(), |flags| format!("{stem}{INFO}{flags}"))
    }
}

/// Inserts a flag in order.
fn insert_flag(flags: &mut Option<String>, flag: char) {
    let flags = flags.get_or_insert_default();
    if !flags.contains(flag) {
        flags.insert(flags.find(|other| other > flag).unwrap_or(flags.len()), flag);
    }
}

fn choose_folder(read: bool, label: Option<&MailLabel>) -> MaildirFolder {
    if read || label.is_some_and(|label| label.old) {
        MaildirFolder::Cur
    } else {
        MaildirFolder::New
    }
}

fn is_listed(read: bool, label: Option<&MailLabel>) -> bool {
    !read || !label.is_some_and(MailLabel::is_hidden)
}

/// A message of the Maildir as it is now.
struct MaildirMessage {
    ix: MsgIx,
    read: bool,
    answered: bool,
    label: MailLabel,
}

/// The folders of `.maildir/`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum MaildirFolder {
    /// Messages that are unread and that no mail program has seen.
    New,
    /// Messages that are read or that a mail program has seen.
    Cur,
    /// A folder that is always empty.
    Tmp,
}

/// A node of `.maildir/`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum MaildirKey {
    /// `.maildir/`
    Top,
    /// A folder in it.
    Folder(MaildirFolder),
    /// A message, the same in each folder.
    Message(MsgIx),
}

/// The view `.maildir/`.
#[derive(Debug)]
pub(super) struct MaildirView {
    change: Mutex<MaildirChangeTime>,
}

impl Default for MaildirView {
    fn default() -> Self {
        Self { change: Mutex::new(MaildirChangeTime { generation: None, at: Timestamp::now() }) }
    }
}

/// Time of the Maildir's last change, as its readers know it. Every change of the index changes it.
#[derive(Debug)]
struct MaildirChangeTime {
    /// The generation of the index at that change; `None` until `change_time` is called first.
    generation: Option<u64>,
    at: Timestamp,
}

impl MaildirView {
    /// Returns the time of the Maildir's last change, or a moment later. It must be called after every change. Mail
    /// programs list again if the time differs, and some only if it is later.
    pub fn change_time(&self, tree: &Tree) -> Timestamp {
        let generation = Some(tree.generation());
        let mut changed = self.change.lock();
        if changed.generation != generation {
            let at = Timestamp::now().max(changed.at.plus_millis(1));
            *changed = MaildirChangeTime { generation, at };
        }
        changed.at
    }
}

impl View for MaildirView {
    type Key = MaildirKey;

    fn node_properties(key: &MaildirKey) -> &'static [NodeProperty] {
        use NodeProperty::{Folder, LastingListing, Pages, ShowsSent};
        match key {
            MaildirKey::Top => &[Folder, LastingListing],
            MaildirKey::Folder(_) => &[Folder, LastingListing, ShowsSent],
            MaildirKey::Message(_) => &[Pages(PagePolicy::Keep)],
        }
    }

    fn inode_number(&self, tree: &Tree, key: &MaildirKey) -> Option<Ino> {
        let folder = match key {
            MaildirKey::Top => return None,
            MaildirKey::Folder(folder) => folder,
            MaildirKey::Message(ix) => {
                let identity = tree.index.read().messages.entry(*ix).identity();
                return Some(make_inode(InodeTag::MaildirMessage, identity));
            }
        };
        NUMBERS.iter().find(|(_, of)| of == folder).map(|(number, _)| *number)
    }

    fn find_by_inode(&self, tree: &Tree, tag: u64, low: u64) -> Option<MaildirKey> {
        if tag == InodeTag::MaildirMessage as u64 {
            let tables = tree.index.read();
            return tables.messages.find_by_identity(low).map(MaildirKey::Message);
        }
        let mut numbers = NUMBERS.iter().filter(|_| tag == 0);
        numbers.find(|(number, _)| *number == low).map(|(_, of)| MaildirKey::Folder(*of))
    }

    fn stat(&self, tree: &Tree, key: &MaildirKey) -> Result<NodeAttributes, Error> {
        let (time, caching) = match key {
            // A rename in one of them changes the other, too, so their attributes are not cached.
            MaildirKey::Folder(MaildirFolder::New | MaildirFolder::Cur) => {
                (self.change_time(tree), CachePolicy::Volatile)
            }
            // The entries of `tmp/` and of the top never change.
            MaildirKey::Folder(MaildirFolder::Tmp) => (README_TIME, CachePolicy::Volatile),
            MaildirKey::Top => (README_TIME, CachePolicy::Folder),
            MaildirKey::Message(ix) => {
                let Some(mail) = MailWithFiles::of_message(tree, *ix)? else {
                    return tree.stat_message(*ix, CachePolicy::Moving);
                };
                let time = tree.texts.live_entry(*ix)?.time();
                return Ok(NodeAttributes::of_file(mail.len(), time, CachePolicy::Moving));
            }
        };
        Ok(NodeAttributes::of_folder(Some(time), caching))
    }

    fn list(&self, tree: &Tree, folder: &MaildirKey) -> Result<Listing, Error> {
        match folder {
            MaildirKey::Top => {
                let node = |folder| ViewKey::Maildir(MaildirKey::Folder(folder)).into();
                let named = |(name, folder): (&str, MaildirFolder)| (name.to_owned(), node(folder));
                Ok(Listing::from_named(BOXES.map(named)))
            }
            MaildirKey::Folder(folder) => Ok(list_messages(tree, *folder)),
            MaildirKey::Message(_) => Err(Error::NotDir),
        }
    }

    fn find(&self, tree: &Tree, folder: &MaildirKey, name: &str) -> Result<Option<Node>, Error> {
        let MaildirKey::Folder(of) = folder else {
            return Ok(tree.find_in(&self.list(tree, folder)?, name));
        };
        Ok(find_message(tree, *of, name).map(|found| maildir_node(found.ix)))
    }

    fn parent_folder(&self, _tree: &Tree, folder: &MaildirKey) -> Option<MaildirKey> {
        matches!(folder, MaildirKey::Folder(_)).then_some(MaildirKey::Top)
    }

    fn open(&self, tree: &Tree, key: &MaildirKey, access: &OpenRequest) -> Result<OpenFile, Error> {
        let MaildirKey::Message(ix) = key else { return Err(Error::IsDir) };
        if let Some(mail) = MailWithFiles::of_message(tree, *ix)? {
            return Ok(OpenFile::Mail(mail));
        }
        tree.open_message(MessageFolder::Maildir, *ix, access)
    }

    fn write_refusal(&self, _tree: &Tree, key: &MaildirKey) -> &'static str {
        if let MaildirKey::Message(_) = key { FIXED_MESSAGE } else { WRITE_REFUSAL }
    }

    fn name_file(&self, _: &Tree, _: &MaildirKey, _name: &str) -> Result<Option<Node>, Error> {
        Err(Error::not_permitted(
            "mail cannot be saved here; to send, write to outbox/ or set the program to call msgfs",
        ))
    }

    fn remove(&self, tree: &Tree, folder: &MaildirKey, name: &str) -> Result<bool, Error> {
        let MaildirKey::Folder(folder) = folder else { return Ok(false) };
        remove_message(tree, *folder, name)?;
        Ok(true)
    }

    fn rename(
        &self,
        tree: &Tree,
        folder: &MaildirKey,
        name: &str,
        (to, new_name): (&Node, &str),
        _replace: bool,
    ) -> Result<bool, Error> {
        let (MaildirKey::Folder(from), ViewKey::Maildir(MaildirKey::Folder(to))) =
            (folder, to.key())
        else {
            return Ok(false);
        };
        move_message(tree, (*from, name), (*to, new_name))?;
        Ok(true)
    }

    fn stale_keys(&self, changes: &TreeChanges<'_>) -> Vec<MaildirKey> {
        let folders = [MaildirFolder::New, MaildirFolder::Cur].map(MaildirKey::Folder);
        folders.into_iter().chain(changes.changed_texts().map(MaildirKey::Message)).collect()
    }
}

/// Returns the node of a message.
pub(super) fn maildir_node(ix: MsgIx) -> Node {
    ViewKey::Maildir(MaildirKey::Message(ix)).into()
}

/// Returns the messages of a folder of the Maildir, oldest first.
fn list_messages(tree: &Tree, which: MaildirFolder) -> Listing {
    let tables = tree.index.read();
    let lies_there = |ix: &MsgIx| {
        let entry = tables.messages.entry(*ix);
        let (read, label) = (entry.is_read(), tables.marks.label(entry));
        choose_folder(read, label) == which && is_listed(read, label)
    };
    let mail =
        tree.names.name_forms(&tables, tables.messages.lists().messages_to_me().filter(lies_there));
    Listing::from_maildir(mail.map(|(ix, form)| ListingEntry::Mail(which, ix, form)))
}

/// Returns the present name of a message in a folder of the Maildir.
pub(super) fn maildir_name(
    tree: &Tree,
    which: MaildirFolder,
    ix: MsgIx,
    form: NameForm,
) -> Option<String> {
    let tables = tree.index.read();
    let entry = tables.messages.entry(ix);
    if !entry.is_to_me() {
        return None;
    }
    let (read, label) = (entry.is_read(), tables.marks.label(entry));
    let standing =
        MaildirState::from_marks(read, tables.marks.is_answered(&tables.messages, entry), label);
    let there = standing.folder == which && is_listed(read, label);
    there.then(|| {
        let mut stem = String::with_capacity(64);
        tree.names.push_stem(&mut stem, &tables, ix, form);
        standing.file_name(&stem)
    })
}

/// Finds a message by its name in a folder of the Maildir. A message that was thrown away there is found
/// too, so that it can be taken back; a removed one is not.
fn find_message(tree: &Tree, which: MaildirFolder, name: &str) -> Option<MaildirMessage> {
    let (stem, asked) = MaildirState::parse(which, name)?;
    let tables = tree.index.read();
    let ix = tree.names.find_by_stem(&tables, FolderScope::Inbox, stem)?;
    let entry = tables.messages.entry(ix);
    let (read, answered) = (entry.is_read(), tables.marks.is_answered(&tables.messages, entry));
    let label = tables.marks.label(entry);
    let removed = read && label.is_some_and(|label| label.removed);
    let found = || MaildirMessage { ix, read, answered, label: label.cloned().unwrap_or_default() };
    (!removed && MaildirState::from_marks(read, answered, label) == asked).then(found)
}

/// Moves a message, or changes its flags, for a mail program.
///
/// # Errors
/// [`Error::NotFound`] if it no longer has this name there, [`Error::NotPermitted`] for another name.
fn move_message(
    tree: &Tree,
    (from, name): (MaildirFolder, &str),
    (to, new_name): (MaildirFolder, &str),
) -> Result<(), Error> {
    let MaildirMessage { ix, read, answered, .. } =
        find_message(tree, from, name).ok_or(Error::NotFound)?;
    let kept = name.split(INFO).next();
    let (stem, wanted) = MaildirState::parse(to, new_name).ok_or_else(|| {
        Error::not_permitted("after the name of a message only `:2,` and flags are allowed")
    })?;
    if kept != Some(stem) {
        return Err(Error::not_permitted("messages keep their names; only flags change"));
    }
    let refused = match to {
        MaildirFolder::Tmp => Some("nothing can be written to tmp/"),
        MaildirFolder::New if wanted.has_flag(SEEN) => {
            Some("a message that was read belongs in cur/, not in new/")
        }
        MaildirFolder::New | MaildirFolder::Cur => None,
    };
    if let Some(why) = refused {
        return Err(Error::not_permitted(why));
    }
    let seen = wanted.has_flag(SEEN) || wanted.has_flag(TRASHED);
    // An unchanged mark is not written, because another program may be changing it.
    store_label(tree, ix, wanted.into_label(seen, answered), (seen != read).then_some(seen))
}

/// Removes a message for a mail program: marks it read and hides it in the Maildir.
///
/// # Errors
/// [`Error::NotFound`] if it no longer has this name there.
fn remove_message(tree: &Tree, which: MaildirFolder, name: &str) -> Result<(), Error> {
    let MaildirMessage { ix, read, label, .. } =
        find_message(tree, which, name).ok_or(Error::NotFound)?;
    store_label(tree, ix, MailLabel { removed: true, ..label }, (!read).then_some(true))
}

fn store_label(tree: &Tree, ix: MsgIx, label: MailLabel, read: Option<bool>) -> Result<(), Error> {
    if read == Some(false) {
        tree.views.wait.release_claim(ix);
    }
    Ok(tree.index.set_label(ix, label, read)?)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn label(flags: Option<&str>) -> MailLabel {
        MailLabel { flags: flags.map(str::to_owned), ..MailLabel::default() }
    }

    /// Returns folder and name of a message `X` with these marks.
    fn shown(read: bool, answered: bool, label: &MailLabel) -> (MaildirFolder, String) {
        let standing = MaildirState::from_marks(read, answered, Some(label));
        (standing.folder, standing.file_name("X"))
    }

    #[test]
    fn names_follow_marks_and_what_programs_keep() {
        use MaildirFolder::{Cur, New};
        let plain = label(None);
        let old = MailLabel { old: true, ..label(Some("")) };
        for (read, answered, label, folder, name) in [
            (false, false, &plain, New, "X"),
            (true, false, &plain, Cur, "X:2,S"),
            (true, true, &plain, Cur, "X:2,RS"),
            (false, true, &plain, New, "X:2,R"),
            (false, false, &old, Cur, "X:2,"),
            (true, false, &old, Cur, "X:2,S"),
            (true, true, &label(Some("FSTab")), Cur, "X:2,FRSTab"),
            (false, false, &label(Some("FS")), New, "X:2,F"),
            (false, false, &label(Some("S")), New, "X"),
            (true, false, &label(Some("SF")), Cur, "X:2,SF"),
            (true, true, &MailLabel { unanswered: true, ..label(None) }, Cur, "X:2,S"),
        ] {
            assert_eq!(shown(read, answered, label), (folder, name.to_owned()), "{label:?}");
        }
    }

    #[test]
    fn only_flags_stand_behind_a_name() {
        for name in ["X:1,a", "X:", "X:2", "X:2,a b", "X:2,a:2,b", "X:2,\u{e9}"] {
            assert_eq!(MaildirState::parse(MaildirFolder::Cur, name), None, "{name}");
        }
        let long = format!("X:2,{}", "a".repeat(FLAGS + 1));
        assert_eq!(MaildirState::parse(MaildirFolder::Cur, &long), None);
        let flags = |name| MaildirState::parse(MaildirFolder::Cur, name).unwrap().1.flags;
        assert_eq!(flags("X"), None);
        assert_eq!(flags("X:2,"), Some(String::new()));
        assert_eq!(flags("X:2,DFa"), Some("DFa".to_owned()));
    }

    proptest! {
        /// A message keeps the name that a program gives it, whatever its mark.
        #[test]
        fn a_message_stands_where_it_was_moved(
            cur: bool, answered: bool, flags in proptest::option::of("[DFPRSabz,]{0,6}")
        ) {
            let to = if cur { MaildirFolder::Cur } else { MaildirFolder::New };
            let wanted = MaildirState { folder: to, flags };
            prop_assume!(cur || !wanted.has_flag(SEEN));
            let seen = wanted.has_flag(SEEN);
            let label = wanted.clone().into_label(seen, answered);
            prop_assert_eq!(MaildirState::from_marks(seen, answered, Some(&label)), wanted);
        }
    }
}
