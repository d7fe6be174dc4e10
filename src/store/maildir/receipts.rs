//! The proofs that a mail of mine has arrived: the file in the recipient's Maildir on this machine, with its flags.

use std::collections::HashMap;
use std::path::Path;

use rustix::fs::FileType;

use super::MaildirStore;
use super::names::{self, MailFolderRole};
use crate::model::{DeliveryState, plain_id};
use crate::store::engine::files::{list_names, path_parts};
use crate::store::{NOT_TRIED_AGAIN, Receipt, SentMessage, Store as _, StoreDirectory, confined};

/// The number of files up to which a Maildir is looked through. A look would take too long with more.
const FILES: usize = 200_000;

/// The files of a Maildir: by the part of a name that every program keeps, the path of the leaf and the whole name.
type MailboxFiles = HashMap<String, (String, String)>;

impl StoreDirectory for MaildirStore {
    fn provable_states(&self, to: &str) -> Vec<DeliveryState> {
        use DeliveryState::{Answered, Delivered, Read, Refused, Stored, Told, Waiting};
        match self.find_mailbox_of(to) {
            Some(_) => vec![Waiting, Stored, Delivered, Told, Read, Answered],
            None => vec![Waiting, Stored, Delivered, Answered, Refused],
        }
    }

    fn find_receipts(&self, sent: &[SentMessage<'_>]) -> Vec<Receipt> {
        let mut mailboxes: HashMap<&Path, MailboxFiles> = HashMap::new();
        let receipt = |one: &SentMessage<'_>| {
            let Some(dir) = self.find_mailbox_of(one.to) else {
                return self.find_relay_receipt(one.id);
            };
            // The copy among my own sent mail proves nothing of a mail to me.
            let with_folders = dir != self.dir();
            let files = mailboxes.entry(dir).or_insert_with(|| list_mailbox(dir, with_folders));
            let own = self.list_own_names(one.at.source);
            let found = own.iter().find_map(|name| files.get(name));
            found.map_or_else(Receipt::default, |(leaf, name)| find_receipt(dir, leaf, name))
        };
        sent.iter().map(receipt).collect()
    }
}

impl MaildirStore {
    /// Returns the receipt for a recipient to whom the program sends mail. It ends with success only when it has taken
    /// the mail, and until then the mail waits, unless the program refused it.
    fn find_relay_receipt(&self, id: &str) -> Receipt {
        match self.format.outcomes.find_refusal(plain_id(id)) {
            Some(refused) => Receipt::of_fault(DeliveryState::Refused, refused.why),
            None if self.format.settings.sendmail.is_none() => Receipt::default(),
            None => {
                Receipt { is_tentative: true, ..Receipt::of_state(DeliveryState::Delivered, None) }
            }
        }
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
        let copies = self.format.list_copies(&table, facts).into_iter();
        let sent = copies.filter(|(role, _)| *role == MailFolderRole::Sent);
        sent.map(|(_, n)| names::delivery_part(table.name(n)).to_owned()).collect()
    }
}

/// Returns the proof that a file in a leaf of a Maildir is.
fn find_receipt(dir: &Path, leaf: &str, name: &str) -> Receipt {
    if names::has_flag(name, 'S') {
        // A flag has no time.
        return Receipt::of_state(DeliveryState::Read, None);
    }
    let open = confined::open_dir(dir, &path_parts(leaf));
    let stat = open.and_then(|open| confined::stat(&open, name)).ok();
    Receipt::of_state(DeliveryState::Delivered, stat.map(|(_, stamp)| stamp.modified()))
}

/// Lists the files of a Maildir, and those of the folders beside its `new/`, where programs move them. A folder that
/// cannot be read has none.
fn list_mailbox(dir: &Path, with_folders: bool) -> MailboxFiles {
    let list = |path: &str, is_wanted: fn(FileType) -> bool| {
        let listed = confined::open_dir(dir, &path_parts(path)).and_then(|open| list_names(&open));
        let wanted = move |(name, kind): (Result<String, _>, FileType)| {
            name.ok().filter(|_| is_wanted(kind))
        };
        listed.unwrap_or_default().into_iter().filter_map(wanted)
    };
    let folders = list("", |kind| kind == FileType::Directory);
    let folders = folders.filter(|name| with_folders && names::folder_name(&[name]).is_some());
    let mut all = MailboxFiles::new();
    for folder in std::iter::once(String::new()).chain(folders) {
        for leaf in ["new", "cur"].map(|leaf| format!("{folder}/{leaf}")) {
            let is_file = |kind| matches!(kind, FileType::RegularFile | FileType::Unknown);
            for name in list(&leaf, is_file).take(FILES - all.len()) {
                let part = names::delivery_part(&name).to_owned();
                all.entry(part).or_insert_with(|| (leaf.clone(), name));
            }
        }
    }
    all
}
