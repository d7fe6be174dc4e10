//! The proofs that a mail of mine has arrived: the file in the recipient's Maildir on this machine, with its flags.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use rustix::fs::FileType;

use super::MaildirStore;
use super::names::{self, MailFolderRole};
use crate::model::{DeliveryState, Timestamp};
use crate::store::engine::files;
use crate::store::{Receipt, SentMessage, Store as _, StoreDirectory, confined};

/// The number of files up to which a Maildir is looked through. A look would take too long with more.
const FILES: usize = 200_000;

/// The files of a Maildir: by the part of a name that stays, the leaf and the whole name.
type MailboxFiles = HashMap<String, (&'static str, String)>;

impl StoreDirectory for MaildirStore {
    fn provable_states(&self, to: &str) -> Vec<DeliveryState> {
        use DeliveryState::{Answered, Delivered, Read, Stored, Told, Waiting};
        match self.find_mailbox_of(to) {
            Some(_) => vec![Waiting, Stored, Delivered, Told, Read, Answered],
            None => vec![Waiting, Stored, Delivered, Answered],
        }
    }

    fn find_receipts(&self, sent: &[SentMessage<'_>]) -> Vec<Receipt> {
        let mut mailboxes: HashMap<PathBuf, MailboxFiles> = HashMap::new();
        let receipt = |one: &SentMessage<'_>| {
            let Some(dir) = self.find_mailbox_of(one.to) else { return self.find_relay_receipt() };
            let files = mailboxes.entry(dir.to_owned()).or_insert_with(|| list_mailbox(dir));
            let own = self.list_own_names(one.at.source);
            let found = own.iter().find_map(|name| files.get(name));
            let Some((leaf, name)) = found else { return Receipt::default() };
            if *leaf == "cur" && names::has_flag(name, 'S') {
                // A flag has no time.
                return Receipt::of_state(DeliveryState::Read, None);
            }
            Receipt::of_state(DeliveryState::Delivered, modified_time(dir, leaf, name))
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
    /// the mail, and until then the mail waits.
    fn find_relay_receipt(&self) -> Receipt {
        let taken =
            || Receipt { is_tentative: true, ..Receipt::of_state(DeliveryState::Delivered, None) };
        self.format.settings.sendmail.as_ref().map_or_else(Receipt::default, |_| taken())
    }

    /// Returns the parts that stay of the names of my copies of a mail. It is delivered under such a name.
    fn list_own_names(&self, source: u32) -> Vec<String> {
        let table = self.table.read();
        let Some(facts) = table.facts(source) else { return Vec::new() };
        let mut copies = facts.find_copies(&table);
        copies.retain(|n| self.format.file_role(&table, *n) == MailFolderRole::Sent);
        copies.iter().map(|n| names::unique_part(table.name(*n)).to_owned()).collect()
    }
}

/// Lists the files of a Maildir. One that cannot be read has none.
fn list_mailbox(dir: &Path) -> MailboxFiles {
    let mut all = MailboxFiles::new();
    for leaf in ["new", "cur"] {
        let listed = confined::open_dir(dir, &[leaf]).and_then(|open| files::list_names(&open));
        for (name, kind) in listed.unwrap_or_default() {
            let is_file = matches!(kind, FileType::RegularFile | FileType::Unknown);
            if let (Ok(name), true) = (name, is_file && all.len() < FILES) {
                all.insert(names::unique_part(&name).to_owned(), (leaf, name));
            }
        }
    }
    all
}

fn modified_time(dir: &Path, leaf: &str, name: &str) -> Option<Timestamp> {
    let open = confined::open_dir(dir, &[leaf]).ok()?;
    confined::stat(&open, name).ok().map(|(_, stamp)| stamp.modified())
}
