//! The tree over stores in memory. `shown`: messages and their attachments; `beside`: files that can be written
//! beside them; `inodes`: inode numbers of paths; `questions`: answers; `receipts`: the states of my messages;
//! `search`; `threads`: their folders; `texts`: `me/`; `waiting`: `.next`.

mod beside;
mod inodes;
mod questions;
mod receipts;
#[cfg(feature = "search")]
mod search;
mod shown;
mod texts;
mod threads;
mod waiting;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use ed25519_dalek::{Signer, SigningKey};

use super::*;
use crate::identity::{KeyError, Keyring, SignerRegistry};
use crate::index::{self, IndexChanges};
use crate::model::{
    Attachment, Message, PublicKey, QUALIFIER, SignatureClaim, SignatureScope, SignedBytes,
    Timestamp, UnknownRecipient, Unsigned,
};
use crate::outbox::{self, SigningKeys};
use crate::store::testing::{Folder, Letter, Memory, Texts};
use crate::store::{Durability, Store};

/// 2026-04-24T17:42:03Z.
const T0: i64 = 1_777_052_523;
const DAY: &str = "2026-04-24";

struct Bed {
    dir: tempfile::TempDir,
    stores: Vec<Arc<Memory>>,
    tree: Tree,
}

fn store(letters: Vec<Letter>) -> Memory {
    named("amp", letters)
}

fn named(name: &str, letters: Vec<Letter>) -> Memory {
    let folder = Folder { closed: true, text_only: true, ..Folder::default() };
    let memory = Memory::new(name, "me", &Arc::new(Mutex::new(folder)));
    for letter in letters {
        memory.folder.lock().push(letter);
    }
    memory
}

/// Makes a letter to me with these files.
fn letter(id: &str, secs: i64, files: &[(&str, &str)]) -> Letter {
    let attachments = files.iter().map(|(name, text)| Attachment {
        name: (*name).to_owned(),
        size: text.len() as u64,
        withheld: None,
    });
    let message = Message {
        from: Some("bob@x".into()),
        to: vec!["me".into()],
        time: Timestamp::from_secs(secs),
        thread: Some(id.to_owned()),
        id: id.to_owned(),
        attachments: attachments.collect(),
        body: "hello".into(),
        ..Message::default()
    };
    let files = files.iter().map(|(_, text)| text.as_bytes().to_vec()).collect();
    Letter { message, files, ..Letter::default() }
}

fn bed(stores: Vec<Memory>) -> Bed {
    bed_with(stores, false)
}

fn bed_with(stores: Vec<Memory>, read_only: bool) -> Bed {
    let dir = tempfile::tempdir().unwrap();
    let stores: Vec<Arc<Memory>> = stores.into_iter().map(Arc::new).collect();
    let tree = tree(&dir, &stores, read_only);
    Bed { dir, stores, tree }
}

fn tree(dir: &tempfile::TempDir, stores: &[Arc<Memory>], read_only: bool) -> Tree {
    let keyring = Arc::new(Keyring::open(&dir.path().join("keyring.json")).unwrap());
    let settings = index::IndexSettings {
        marks: dir.path().join("marks"),
        snapshot: dir.path().join("snapshot"),
        map: true,
        unsigned: Unsigned::Accept,
        read_only,
        my_keys: vec![None; stores.len()],
    };
    let used = SignerRegistry::open(&dir.path().join("signers.json"), false);
    let no_key = dir.path().join("none");
    let no_key = move |_: &SignerRegistry| Err(KeyError::Missing(no_key.clone()));
    let keys = Arc::new(SigningKeys::new(no_key, Arc::clone(&keyring), used));
    for store in stores {
        store.reset_cursors();
    }
    let as_stores = stores.iter().map(|s| Arc::clone(s) as Arc<dyn Store>).collect();
    let index = Index::open(as_stores, keyring, settings, &mut |_, _| {}).unwrap();
    let index = Arc::new(index);
    let settings = outbox::OutboxSettings {
        durability: Durability::None,
        max_message: 1000,
        unknown_recipient: UnknownRecipient::Accept,
        groups: BTreeMap::default(),
    };
    let outbox =
        (!read_only).then(|| Outbox::open(dir.path(), Arc::clone(&index), keys, settings).unwrap());
    let settings = TreeSettings {
        me: "me".into(),
        key: None,
        mark_read: MarkRead::OnRead,
        scope: Scope::Mine,
        wait_timeout: Duration::ZERO,
        read_only,
        allow_other: false,
        warnings: Arc::default(),
        recent_reads_file: dir.path().join("read-last"),
        reply_warnings_file: dir.path().join("answer-warnings.jsonl"),
        link_boards: Arc::default(),
        taken_logs: Arc::default(),
        bell_record: None,
        groups: crate::outbox::RecipientGroups::default(),
        find_mounted: crate::view::MountedFinder::default(),
        search: None,
    };
    Tree::new(index, outbox, settings)
}

impl Bed {
    fn names(&self, path: &str) -> Vec<String> {
        list_path(&self.tree, path).unwrap().into_iter().map(|l| l.name).collect()
    }

    fn cat(&self, path: &str) -> String {
        let mut out = Vec::new();
        copy_path_to(&self.tree, path, &mut out).unwrap_or_else(|e| panic!("{path}: {e}"));
        String::from_utf8(out).unwrap()
    }

    fn errno(&self, path: &str) -> i32 {
        self.tree.resolve_path(path).unwrap_err().errno()
    }

    fn attr(&self, path: &str) -> Attr {
        self.tree.stat_node(&self.tree.resolve_path(path).unwrap()).unwrap()
    }

    /// Opens for writing as the kernel does: by name if it is there, else by creating it.
    fn open(&self, folder: &str, name: &str, append: bool) -> OpenFile {
        self.try_open(folder, name, append).unwrap()
    }

    fn try_open(&self, folder: &str, name: &str, append: bool) -> Result<OpenFile, Error> {
        let access = OpenRequest {
            write: true,
            append,
            truncate: !append,
            opener: 7,
            ..OpenRequest::default()
        };
        let parent = self.tree.resolve_path(folder).unwrap();
        match self.tree.lookup(&parent, name) {
            Ok(node) => self.tree.open(&node, &access),
            Err(_) => Ok(self.tree.writer().create(&parent, name, &access)?.1),
        }
    }

    /// Writes as a shell does for `echo -n text > folder/name`: with a flush before the first byte.
    fn write(&self, folder: &str, name: &str, text: &str, append: bool) -> Result<(), Error> {
        let file = self.try_open(folder, name, append)?;
        self.tree.flush(&file, 7)?;
        let done = self.tree.writer().write_file(&file, 0, text.as_bytes());
        let done = done.and_then(|()| self.tree.flush(&file, 7));
        self.tree.release(&file);
        done
    }

    fn rename(&self, folder: &str, from: &str, to: &str) -> Result<(), Error> {
        let folder = self.tree.resolve_path(folder).unwrap();
        self.tree.writer().rename(&folder, from, &folder, to, true)
    }

    fn unlink(&self, folder: &str, name: &str) -> Result<(), Error> {
        self.tree.writer().unlink(&self.tree.resolve_path(folder).unwrap(), name)
    }

    fn book(&self) -> &Texts {
        self.stores[0].book.as_ref().unwrap()
    }
}

const STEM: &str = "20260424T174203.000Z-bob@x-00000001";
