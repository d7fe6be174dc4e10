use std::collections::HashMap;

use super::*;
use crate::model::TWIN;
use crate::store::testing::Key;
use crate::store::{Found, Rejected, Signer};

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

    pub(super) fn spec(&self) -> Spec {
        Spec {
            state: Some(self.root().join("state")),
            name: "agentazall".into(),
            kind: Kind::AgentAzall,
            dir: self.root(),
            me: "somebody".into(),
            as_me: None,
            home: None,
        }
    }

    pub(super) fn store(&self) -> AgentAzall {
        AgentAzall::open_in(&self.spec(), TimeZone::fixed(jiff::tz::offset(1))).unwrap()
    }

    /// Loses nothing but the cache: a store that knows its state folder only.
    pub(super) fn lose_cache(&self) -> (AgentAzall, Seen) {
        let (store, mut seen) = (self.store(), Seen::default());
        store.scan(true, &mut seen).unwrap();
        (store, seen)
    }

    /// The store after its first scan.
    pub(super) fn scanned(&self) -> AgentAzall {
        let store = self.store();
        store.scan(true, &mut Seen::default()).unwrap();
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

/// What an index would know after the reports it got.
#[derive(Debug, Default)]
pub(super) struct Seen {
    messages: HashMap<(String, String), Found<'static>>,
    rejected: HashMap<u32, String>,
    stale: Vec<(String, String)>,
    reports: usize,
    rescans: usize,
}

impl Sink for Seen {
    fn batch(&mut self, found: &mut Vec<Found<'_>>, rejected: &mut Vec<Rejected>) {
        for f in found.drain(..) {
            self.reports += 1;
            let key = (f.from.to_string(), f.id.to_string());
            self.stale.retain(|k| *k != key);
            let owned = |text: Cow<'_, str>| Cow::Owned(text.into_owned());
            let f = Found {
                name_time: None,
                noted: false,
                from: owned(f.from),
                to: owned(f.to),
                thread: owned(f.thread),
                id: owned(f.id),
                answers: f.answers.map(owned),
                ..f
            };
            self.messages.insert(key, f);
        }
        for r in rejected.drain(..) {
            self.rejected.insert(r.at.source, r.reason);
        }
    }

    fn begin_rescan(&mut self, sources: &[u32]) {
        self.rescans += 1;
        self.rejected.retain(|source, _| !sources.contains(source));
        let stale = self.messages.iter().filter(|(_, f)| sources.contains(&f.at.source));
        self.stale.extend(stale.map(|(key, _)| key.clone()));
    }

    fn end_rescan(&mut self, _: &[u32]) {
        for key in std::mem::take(&mut self.stale) {
            self.messages.remove(&key);
        }
    }

    fn resume(&mut self, _: u32) {}

    fn progress(&mut self, _: u64, _: u64) {}
}

use std::borrow::Cow;

impl Seen {
    fn ids(&self) -> Vec<String> {
        let mut ids: Vec<String> = self.messages.keys().map(|(_, id)| id.clone()).collect();
        ids.sort();
        ids
    }

    fn one(&self, id: &str) -> &Found<'static> {
        let found: Vec<_> = self.messages.values().filter(|f| f.id == id).collect();
        assert_eq!(found.len(), 1, "{id} in {:?}", self.messages.keys());
        found[0]
    }
}

/// A writer's key.
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
