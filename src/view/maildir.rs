//! `.maildir/`: the mail to me as mail programs know it (docs/SEMANTICS.md, "Mail programs").
//!
//! A name there is that of the message file without its ending, and flags behind `:2,`. Where a message
//! stands follows from its mark and from what mail programs keep with it ([`Label`]); each has one inode
//! number, wherever it stands, so that a rename is a rename. No cache may trust a name: a rename to a
//! name of the same file would do nothing, and the kernel would not even ask.

use super::listing::Item;
use super::names::{self, Level};
use super::node::{MailBox, Node};
use super::{Error, Listing, Tree};
use crate::index::{Label, MsgIx, TRASHED};
use crate::model::Timestamp;

/// What stands between a name and its flags.
const INFO: &str = ":2,";
/// The flag of what was read.
const SEEN: char = 'S';
/// The flag of what was answered.
const REPLIED: char = 'R';
/// Flags of one message.
const FLAGS: usize = 64;

/// The folders of the Maildir.
const BOXES: [(&str, MailBox); 3] =
    [("cur", MailBox::Cur), ("new", MailBox::New), ("tmp", MailBox::Tmp)];

/// Where a message stands, and its flags if there are any behind its name.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Standing {
    folder: MailBox,
    flags: Option<String>,
}

impl Standing {
    fn of(read: bool, answered: bool, label: Option<&Label>) -> Self {
        let mut flags = label.and_then(|label| label.flags.clone());
        if read {
            add(&mut flags, SEEN);
        } else if flags.as_ref().is_some_and(|flags| flags.contains(SEEN)) {
            flags = flags.map(|flags| flags.replace(SEEN, "")).filter(|flags| !flags.is_empty());
        }
        if answered && !label.is_some_and(|label| label.unanswered) {
            add(&mut flags, REPLIED);
        }
        Self { folder: folder(read, label), flags }
    }

    /// The name without its flags, and what it says in a folder; `None` if it says nothing that is
    /// understood.
    fn parse(folder: MailBox, name: &str) -> Option<(&str, Self)> {
        let Some((stem, flags)) = name.split_once(INFO) else {
            return (!name.contains(':')).then_some((name, Self { folder, flags: None }));
        };
        let known = |b: u8| b.is_ascii_graphic() && b != b':';
        let sound = flags.len() <= FLAGS && flags.bytes().all(known);
        sound.then(|| (stem, Self { folder, flags: Some(flags.to_owned()) }))
    }

    fn has(&self, flag: char) -> bool {
        self.flags.as_ref().is_some_and(|flags| flags.contains(flag))
    }

    /// What is to be kept of a message so that it stands here.
    fn label(self, seen: bool, answered: bool) -> Label {
        if self == Self::of(seen, answered, None) {
            return Label::default();
        }
        Label {
            old: self.folder == MailBox::Cur && !seen,
            removed: false,
            unanswered: answered && !self.has(REPLIED),
            flags: self.flags,
        }
    }

    fn name(&self, stem: &str) -> String {
        self.flags.as_ref().map_or_else(|| stem.to_owned(), |flags| format!("{stem}{INFO}{flags}"))
    }
}

/// Adds a flag in its place.
fn add(flags: &mut Option<String>, flag: char) {
    let flags = flags.get_or_insert_default();
    if !flags.contains(flag) {
        flags.insert(flags.find(|other| other > flag).unwrap_or(flags.len()), flag);
    }
}

fn folder(read: bool, label: Option<&Label>) -> MailBox {
    if read || label.is_some_and(|label| label.old) { MailBox::Cur } else { MailBox::New }
}

fn is_listed(read: bool, label: Option<&Label>) -> bool {
    !read || !label.is_some_and(Label::is_hidden)
}

/// When the Maildir last changed, as far as its readers were told: with every change of the index.
#[derive(Debug)]
pub(super) struct Changed {
    generation: u64,
    at: Timestamp,
}

impl Changed {
    pub fn new(generation: u64) -> Self {
        Self { generation, at: Timestamp::now() }
    }
}

/// A message of the Maildir as it is now.
struct Found {
    ix: MsgIx,
    read: bool,
    answered: bool,
    label: Label,
}

impl Tree {
    /// The folders of the Maildir.
    pub(super) fn list_boxes() -> Listing {
        Listing::named(BOXES.map(|(name, folder)| (name.to_owned(), Node::MailBox(folder))))
    }

    /// What a folder of the Maildir holds, oldest first.
    pub(super) fn list_mail(&self, which: MailBox) -> Listing {
        let core = self.index.read();
        let lies_there = |ix: &MsgIx| {
            let Some(entry) = core.entry(*ix) else { return false };
            let (read, label) = (entry.is_read(), core.label(entry));
            folder(read, label) == which && is_listed(read, label)
        };
        let mail = self.levels(&core, core.to_me().filter(lies_there));
        Listing::mail(mail.map(|(ix, level)| Item::Mail(which, ix, level)))
    }

    /// The name that a message has now in a folder of the Maildir.
    pub(super) fn mail_name(&self, which: MailBox, ix: MsgIx, level: Level) -> Option<String> {
        let core = self.index.read();
        let entry = core.entry(ix).filter(|e| e.is_to_me())?;
        let (read, label) = (entry.is_read(), core.label(entry));
        let standing = Standing::of(read, core.is_answered(entry), label);
        let there = standing.folder == which && is_listed(read, label);
        there.then(|| standing.name(&names::message_stem(&core, entry, level)))
    }

    /// A message by its name in a folder of the Maildir: also one that was thrown away there, so that it can
    /// be taken back, but none that was removed.
    pub(super) fn find_mail(&self, which: MailBox, name: &str) -> Option<Node> {
        Some(Node::Message(super::Place::Maildir, self.mail_at(which, name)?.ix))
    }

    fn mail_at(&self, which: MailBox, name: &str) -> Option<Found> {
        let (stem, asked) = Standing::parse(which, name)?;
        let core = self.index.read();
        let ix = self.message_called(&core, &Node::MailBox(which), stem)?;
        let entry = core.entry(ix)?;
        let (read, answered) = (entry.is_read(), core.is_answered(entry));
        let label = core.label(entry);
        let removed = read && label.is_some_and(|label| label.removed);
        let found = || Found { ix, read, answered, label: label.cloned().unwrap_or_default() };
        (!removed && Standing::of(read, answered, label) == asked).then(found)
    }

    /// A mail program moves a message, or changes its flags.
    ///
    /// # Errors
    /// [`Error::NotFound`] if it is not there under this name any more, [`Error::NotPermitted`] for another name.
    pub(super) fn move_mail(
        &self,
        (from, name): (MailBox, &str),
        (to, new_name): (MailBox, &str),
    ) -> Result<(), Error> {
        let Found { ix, read, answered, .. } = self.mail_at(from, name).ok_or(Error::NotFound)?;
        let kept = name.split(INFO).next();
        let (stem, wanted) = Standing::parse(to, new_name).ok_or_else(|| {
            Error::not_permitted("after the name of a message only `:2,` and flags are allowed")
        })?;
        if kept != Some(stem) {
            return Err(Error::not_permitted("messages keep their names; only flags change"));
        }
        let refused = match to {
            MailBox::Tmp => Some("nothing can be written to tmp/"),
            MailBox::New if wanted.has(SEEN) => {
                Some("a message that was read belongs in cur/, not in new/")
            }
            MailBox::New | MailBox::Cur => None,
        };
        if let Some(why) = refused {
            return Err(Error::not_permitted(why));
        }
        let seen = wanted.has(SEEN) || wanted.has(TRASHED);
        // What does not change is not said: it may be changing somewhere else.
        self.keep(ix, wanted.label(seen, answered), (seen != read).then_some(seen))
    }

    /// A mail program removes a message: it is read, and not in the Maildir any more.
    ///
    /// # Errors
    /// [`Error::NotFound`] if it is not there under this name any more.
    pub(super) fn remove_mail(&self, which: MailBox, name: &str) -> Result<(), Error> {
        let Found { ix, read, label, .. } = self.mail_at(which, name).ok_or(Error::NotFound)?;
        self.keep(ix, Label { removed: true, ..label }, (!read).then_some(true))
    }

    fn keep(&self, ix: MsgIx, label: Label, read: Option<bool>) -> Result<(), Error> {
        if read == Some(false) {
            self.hand_out_again(ix);
        }
        Ok(self.index.label(ix, label, read)?)
    }

    /// When the Maildir last changed, or a moment later: asked after every change. Programs look again when
    /// this is another, and some only if it is later.
    pub(super) fn mail_time(&self) -> Timestamp {
        let generation = self.generation();
        let mut changed = self.mail_changed.lock();
        if changed.generation != generation {
            let at = Timestamp::now().max(changed.at.plus_millis(1));
            *changed = Changed { generation, at };
        }
        changed.at
    }
}

/// Why nothing can be made in the Maildir.
pub(super) fn takes_nothing() -> Error {
    Error::not_permitted(
        "mail cannot be saved here; to send, write to outbox/ or set the program to call msgfs",
    )
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn label(flags: Option<&str>) -> Label {
        Label { flags: flags.map(str::to_owned), ..Label::default() }
    }

    /// Folder and name of a message `X` that is read or not, answered or not.
    fn shown(read: bool, answered: bool, label: &Label) -> (MailBox, String) {
        let standing = Standing::of(read, answered, Some(label));
        (standing.folder, standing.name("X"))
    }

    #[test]
    fn names_follow_marks_and_what_programs_keep() {
        use MailBox::{Cur, New};
        let plain = label(None);
        let old = Label { old: true, ..label(Some("")) };
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
            (true, true, &Label { unanswered: true, ..label(None) }, Cur, "X:2,S"),
        ] {
            assert_eq!(shown(read, answered, label), (folder, name.to_owned()), "{label:?}");
        }
    }

    #[test]
    fn only_flags_stand_behind_a_name() {
        for name in ["X:1,a", "X:", "X:2", "X:2,a b", "X:2,a:2,b", "X:2,\u{e9}"] {
            assert_eq!(Standing::parse(MailBox::Cur, name), None, "{name}");
        }
        let long = format!("X:2,{}", "a".repeat(FLAGS + 1));
        assert_eq!(Standing::parse(MailBox::Cur, &long), None);
        let flags = |name| Standing::parse(MailBox::Cur, name).unwrap().1.flags;
        assert_eq!(flags("X"), None);
        assert_eq!(flags("X:2,"), Some(String::new()));
        assert_eq!(flags("X:2,DFa"), Some("DFa".to_owned()));
    }

    proptest! {
        /// What a program names a message is what it is named then, whatever else is known of it.
        #[test]
        fn a_message_stands_where_it_was_moved(
            cur: bool, answered: bool, flags in proptest::option::of("[DFPRSabz,]{0,6}")
        ) {
            let to = if cur { MailBox::Cur } else { MailBox::New };
            let wanted = Standing { folder: to, flags };
            prop_assume!(cur || !wanted.has(SEEN));
            let seen = wanted.has(SEEN);
            let label = wanted.clone().label(seen, answered);
            prop_assert_eq!(Standing::of(seen, answered, Some(&label)), wanted);
        }
    }
}
