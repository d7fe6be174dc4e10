use super::*;
use std::ffi::OsStr;
use std::path::PathBuf;

use crate::model::{Draft, QUALIFIER, SignatureClaim};
use crate::store::testing::traits::*;
use crate::store::testing::{Book, Key};
use crate::store::{AddressFit, Kind, PrepareContext, PreparedRecord, Signer, Store};

mod arriving;
mod ids;
mod sending;

/// A tree with a `config.json` for `me@x` and its mailbox, one hour east of Greenwich.
pub(super) struct Bed {
    dir: tempfile::TempDir,
}

impl Bed {
    pub(super) fn without_mailbox() -> Self {
        let bed = Self { dir: tempfile::tempdir().unwrap() };
        bed.config(r#"{"agent_name": "me@x"}"#);
        bed
    }

    pub(super) fn new() -> Self {
        let bed = Self::without_mailbox();
        std::fs::create_dir_all(bed.base()).unwrap();
        bed
    }

    pub(super) fn root(&self) -> PathBuf {
        self.dir.path().to_owned()
    }

    pub(super) fn mailbox(&self, name: &str) -> PathBuf {
        self.root().join("data/mailboxes").join(name)
    }

    pub(super) fn base(&self) -> PathBuf {
        self.mailbox("me@x")
    }

    pub(super) fn config(&self, text: &str) {
        std::fs::write(self.root().join("config.json"), text).unwrap();
    }

    /// Writes a file of my mailbox.
    pub(super) fn put(&self, path: &str, text: &str) {
        let path = self.base().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    pub(super) fn get(&self, path: &str) -> String {
        std::fs::read_to_string(self.base().join(path)).unwrap()
    }

    /// Writes an unsigned message as the reference does.
    pub(super) fn letter(&self, path: &str, from: &str, id: &str, date: &str, body: &str) {
        self.put(path, &letter(from, id, date, body));
    }

    pub(super) fn spec(&self) -> StoreSpec {
        StoreSpec {
            may_create: true,
            state: Some(self.root().join("state")),
            name: "agentazall".into(),
            kind: Kind::AgentAzall,
            dir: self.root(),
            me: "somebody".into(),
            ..StoreSpec::default()
        }
    }

    pub(super) fn store(&self) -> AgentAzall {
        AgentAzall::open_in_zone(&self.spec(), TimeZone::fixed(jiff::tz::offset(1))).unwrap()
    }

    /// Opens a store that has lost its cache and has only its state folder.
    pub(super) fn lose_cache(&self) -> (AgentAzall, Book) {
        let (store, mut seen) = (self.store(), Book::default());
        store.scan(true, &mut seen).unwrap();
        (store, seen)
    }

    /// Returns the store after its first scan.
    pub(super) fn scanned(&self) -> AgentAzall {
        let store = self.store();
        store.scan(true, &mut Book::default()).unwrap();
        store
    }
}

pub(super) fn letter(from: &str, id: &str, date: &str, body: &str) -> String {
    format!(
        "From: {from}\nTo: me@x\nSubject: hello\nDate: {date}\nMessage-ID: {id}\nStatus: new\n\n---\n{body}"
    )
}

/// Makes a file look as if it had been written some seconds ago.
pub(super) fn age(path: &Path, seconds: i64) {
    let time = Timestamp::from_secs(Timestamp::now().secs() - seconds);
    let time = std::time::UNIX_EPOCH + std::time::Duration::from_secs(time.secs() as u64);
    std::fs::File::options().write(true).open(path).unwrap().set_modified(time).unwrap();
}

/// Returns the sorted ids of the reported messages.
fn ids(seen: &Book) -> Vec<String> {
    let mut ids: Vec<String> = seen.messages.keys().map(|(_, id)| id.clone()).collect();
    ids.sort();
    ids
}

/// Returns a draft.
fn draft(to: &[&str], body: &str) -> Draft {
    Draft {
        to: to.iter().map(|s| (*s).to_owned()).collect(),
        subject: Some("hello".into()),
        body: body.to_owned(),
        ..Draft::default()
    }
}

fn seed(n: u8) -> Seed {
    Seed::new([n; 32])
}
