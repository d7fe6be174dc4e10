//! The proofs that a mail of mine has arrived: the file in the recipient's Maildir on this machine, with its flags.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use rustix::fs::FileType;

use super::MaildirStore;
use super::names::{self, MailFolderRole};
use crate::model::{DeliveryState, Timestamp, plain_id};
use crate::store::engine::files;
use crate::store::{NOT_TRIED_AGAIN, Receipt, SentMessage, Store as _, StoreDirectory, confined};

/// The number of files up to which a Maildir is looked through. A look would take too long with more.
const FILES: usize = 200_000;

/// The files of a Maildir: by the part of a name that every program keeps, the path of the leaf and the whole name.
type MailboxFiles = HashMap<String, (Vec<String>, String)>;

/// The Maildir of a recipient. Its own folders are listed only if a mail is not in the Maildir itself.
struct RecipientMailbox<'a> {
    dir: &'a Path,
    files: MailboxFiles,
    in_folders: Option<MailboxFiles>,
}

impl StoreDirectory for MaildirStore {
    fn provable_states(&self, to: &str) -> Vec<DeliveryState> {
        use DeliveryState::{Answered, Delivered, Read, Refused, Stored, Told, Waiting};
        match self.find_mailbox_of(to) {
            Some(_) => vec![Waiting, Stored, Delivered, Told, Read, Answered],
            None => vec![Waiting, Stored, Delivered, Answered, Refused],
        }
    }

    fn find_receipts(&self, sent: &[SentMessage<'_>]) -> Vec<Receipt> {
        let mut mailboxes: HashMap<PathBuf, RecipientMailbox<'_>> = HashMap::new();
        let receipt = |one: &SentMessage<'_>| {
            let Some(dir) = self.find_mailbox_of(one.to) else {
                return self.find_relay_receipt(one.id);
            };
            let mailbox = mailboxes
                .entry(dir.to_owned())
                .or_insert_with(|| RecipientMailbox::list(dir, self));
            let own = self.list_own_names(one.at.source);
            mailbox.find_receipt(&own).unwrap_or_default()
        };
        sent.iter().map(receipt).collect()
    }
}

impl MaildirStore {
    /// Returns the Maildir of an address on this machine.
    fn find_mailbox_of(&self, to: &str) -> Option<&Path> {
        let (settings, to) = (&self.format.settings, to.to_ascii_lowercase());
        let local = settings.local.get(&to).map(PathBuf::as_path);
        local.or_else(|| settings.me.contains(&to).then(|| self.dir()))
    }

    /// Returns the receipt for a recipient to whom the program sends mail. It ends with success only when it has taken
    /// the mail, and until then the mail waits, unless the program refused it.
    fn find_relay_receipt(&self, id: &str) -> Receipt {
        if let Some(refused) = self.format.outcomes.find_refusal(plain_id(id)) {
            return Receipt::of_fault(DeliveryState::Refused, refused.why);
        }
        let taken =
            || Receipt { is_tentative: true, ..Receipt::of_state(DeliveryState::Delivered, None) };
        self.format.settings.sendmail.as_ref().map_or_else(Receipt::default, |_| taken())
    }

    /// Returns the sentence about a mail of mine that the program refused, if it did.
    pub(super) fn describe_refusal(&self, id: &str) -> Option<String> {
        let refused = self.format.outcomes.find_refusal(id)?;
        Some(format!(
            "{} does not get it, because it was refused for good: {}\n{NOT_TRIED_AGAIN}",
            refused.recipients(),
            refused.why
        ))
    }

    /// Returns the parts that stay of the names of my copies of a mail. It is delivered under such a name.
    fn list_own_names(&self, source: u32) -> Vec<String> {
        let table = self.table.read();
        let Some(facts) = table.facts(source) else { return Vec::new() };
        let mut copies = facts.find_copies(&table);
        copies.retain(|n| self.format.file_role(&table, *n) == MailFolderRole::Sent);
        copies.iter().map(|n| names::delivery_part(table.name(*n)).to_owned()).collect()
    }
}

impl<'a> RecipientMailbox<'a> {
    fn list(dir: &'a Path, store: &MaildirStore) -> Self {
        let mut files = MailboxFiles::new();
        list_leaves(dir, &[], &mut files);
        // The copy among my own sent mail proves nothing of a mail to me.
        let in_folders = (dir == store.dir()).then(MailboxFiles::new);
        Self { dir, files, in_folders }
    }

    /// Returns the proof about the mail that was delivered under one of these names. A program may have set its flags
    /// where it lay, or moved it to another folder of the Maildir.
    fn find_receipt(&mut self, own: &[String]) -> Option<Receipt> {
        let here = own.iter().find_map(|name| self.files.get(name));
        let (leaf, name) = if let Some(found) = here {
            found
        } else {
            let folders = self.in_folders.get_or_insert_with(|| list_folders(self.dir));
            own.iter().find_map(|name| folders.get(name))?
        };
        Some(if names::has_flag(name, 'S') {
            // A flag has no time.
            Receipt::of_state(DeliveryState::Read, None)
        } else {
            let time = modified_time(self.dir, leaf, name);
            Receipt::of_state(DeliveryState::Delivered, time)
        })
    }
}

/// Lists the files of the folders of a Maildir that lie beside its `new/`.
fn list_folders(dir: &Path) -> MailboxFiles {
    let mut all = MailboxFiles::new();
    let listed = confined::open_dir(dir, &[]).and_then(|open| files::list_names(&open));
    for (name, kind) in listed.unwrap_or_default() {
        if let (Ok(name), true) = (name, kind == FileType::Directory)
            && names::folder_name(&[&name]).is_some()
        {
            list_leaves(dir, &[&name], &mut all);
        }
    }
    all
}

/// Lists the files of one folder of a Maildir. One that cannot be read has none.
fn list_leaves(dir: &Path, folder: &[&str], all: &mut MailboxFiles) {
    for leaf in ["new", "cur"] {
        let path = [folder, &[leaf]].concat();
        let listed = confined::open_dir(dir, &path).and_then(|open| files::list_names(&open));
        for (name, kind) in listed.unwrap_or_default() {
            let is_file = matches!(kind, FileType::RegularFile | FileType::Unknown);
            if let (Ok(name), true) = (name, is_file && all.len() < FILES) {
                let path = path.iter().map(|part| (*part).to_owned()).collect();
                all.insert(names::delivery_part(&name).to_owned(), (path, name));
            }
        }
    }
}

fn modified_time(dir: &Path, leaf: &[String], name: &str) -> Option<Timestamp> {
    let leaf: Vec<&str> = leaf.iter().map(String::as_str).collect();
    let open = confined::open_dir(dir, &leaf).ok()?;
    confined::stat(&open, name).ok().map(|(_, stamp)| stamp.modified())
}
