//! A mailbox without FUSE: store, keyring, index, outbox and tree over a temporary folder.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use msgfs::identity::{KeyPair, Keyring, SignerRegistry};
use msgfs::index::{self, Index};
use msgfs::model::{MarkRead, Scope, Timestamp, UnknownRecipient, Unsigned};
use msgfs::outbox::{self, Outbox, SigningKeys};
use msgfs::store::{self, Durability, Kind, Signer, StoreSpec};
use msgfs::view::{self, Ino, Node, Tree};

use crate::state::ME;

/// The folders, which outlive every mailbox over them.
pub(crate) struct Bed {
    root: tempfile::TempDir,
}

/// An open mailbox.
pub(crate) struct Mailbox {
    pub(crate) index: Arc<Index>,
    outbox: Arc<Outbox>,
    pub(crate) tree: Arc<Tree>,
    /// The fingerprint of my key.
    pub(crate) fingerprint: String,
}

impl Bed {
    pub(crate) fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        for folder in ["store", "state", "cache"] {
            std::fs::create_dir(root.path().join(folder)).unwrap();
        }
        Self { root }
    }

    pub(crate) fn store(&self) -> PathBuf {
        self.root.path().join("store")
    }

    pub(crate) fn log(&self, writer: &str) -> PathBuf {
        self.store().join(format!("log-{writer}.jsonl"))
    }

    pub(crate) fn seen(&self) -> PathBuf {
        self.store().join(format!(".seen-{ME}"))
    }

    pub(crate) fn drop_cache(&self) {
        let _ = std::fs::remove_file(self.root.path().join("cache/index"));
    }

    /// Puts the parts together as a mount does.
    pub(crate) fn open(&self) -> Mailbox {
        let state = self.root.path().join("state");
        let signer = KeyPair::load_or_create(&state.join("key")).unwrap();
        let my_key = signer.public_key();
        let keyring = Keyring::open(&state.join("keyring.json")).unwrap();
        keyring.trust_key(ME, Some(my_key)).unwrap();
        std::fs::create_dir_all(self.store()).unwrap();
        let store = store::open(&StoreSpec {
            may_create: true,
            name: "samp".into(),
            kind: Kind::Samp,
            dir: self.store(),
            me: ME.into(),
            ..StoreSpec::default()
        })
        .unwrap();
        let settings = index::IndexSettings {
            marks: state.join("marks"),
            snapshot: self.root.path().join("cache/index"),
            map: true,
            unsigned: Unsigned::Accept,
            read_only: false,
            my_keys: vec![Some(my_key)],
        };
        let index = Index::open(vec![store], Arc::new(keyring), settings, &mut |_, _| {}).unwrap();
        let index = Arc::new(index);
        let settings = outbox::OutboxSettings {
            durability: Durability::None,
            max_message: 1 << 20,
            unknown_recipient: UnknownRecipient::Accept,
            groups: outbox::RecipientGroups::default(),
        };
        let used = SignerRegistry::open(&state.join("signers.json"), false);
        let seed = signer.seed();
        let keys = SigningKeys::new(move |_| Ok(seed.clone()), Arc::clone(index.keyring()), used);
        let outbox = Outbox::open(&state, Arc::clone(&index), Arc::new(keys), settings).unwrap();
        let settings = view::TreeSettings {
            me: ME.into(),
            key: Some(my_key),
            mark_read: MarkRead::OnRead,
            scope: Scope::Mine,
            wait_timeout: Duration::ZERO,
            read_only: false,
            allow_other: false,
            warnings: Arc::default(),
            recent_reads_file: state.join("read-last"),
            reply_warnings_file: state.join("answer-warnings.jsonl"),
            link_boards: Arc::default(),
            taken_logs: Arc::default(),
            bell_record: None,
            find_mounted: view::MountedFinder::default(),
            search: None,
            groups: std::collections::BTreeMap::default(),
        };
        let tree = Arc::new(Tree::new(Arc::clone(&index), Some(Arc::clone(&outbox)), settings));
        Mailbox { index, outbox, tree, fingerprint: my_key.fingerprint().to_string() }
    }
}

impl Mailbox {
    /// Closes the mailbox properly: the stores get their marks, marks and snapshot are written.
    pub(crate) fn close(self) {
        self.outbox.close();
        self.index.close();
    }

    pub(crate) fn cat(&self, path: &str) -> String {
        let mut out = Vec::new();
        view::copy_path_to(&self.tree, path, &mut out)
            .unwrap_or_else(|e| panic!("cat {path}: {e}"));
        String::from_utf8(out).unwrap()
    }

    pub(crate) fn parent(&self, path: &str) -> (Node, String) {
        let (folder, name) = path.rsplit_once('/').unwrap();
        let node = self.tree.resolve_path(folder).unwrap_or_else(|e| panic!("{folder}: {e}"));
        (node, name.to_owned())
    }

    fn names(&self, folder: &Node) -> Vec<(String, Node)> {
        let listing = self.tree.list_folder(folder).unwrap();
        (0..listing.len()).filter_map(|n| listing.resolve_entry(&self.tree, n)).collect()
    }

    /// Returns every message file below the four message views, with inode number and time. A name that is listed must
    /// be found by that name and be the same node.
    pub(crate) fn walk(&self) -> BTreeMap<String, (Ino, Timestamp)> {
        let mut out = BTreeMap::new();
        for view in ["inbox", "archive", "sent", "threads"] {
            let node = self.tree.resolve_path(view).unwrap();
            let folders = if view == "inbox" {
                vec![(view.to_owned(), node)]
            } else {
                self.names(&node).into_iter().map(|(n, f)| (format!("{view}/{n}"), f)).collect()
            };
            for (folder, node) in folders {
                for (name, file) in self.names(&node) {
                    assert_eq!(self.tree.lookup(&node, &name).unwrap(), file, "{folder}/{name}");
                    let attr = self.tree.stat_node(&file).unwrap();
                    assert_eq!(
                        self.tree.node_by_inode(attr.ino).as_ref(),
                        Some(&file),
                        "{folder}/{name}"
                    );
                    // The model does not know what else was unread when an answer was written (S1143).
                    if std::path::Path::new(&name).extension().is_some_and(|end| end == "warning") {
                        continue;
                    }
                    let twice = out.insert(format!("{folder}/{name}"), (attr.ino, attr.time));
                    assert!(twice.is_none(), "{folder}/{name} is listed twice");
                }
            }
        }
        out
    }

    /// Asks for everything that is listed, while it may change.
    pub(crate) fn walk_loosely(&self) -> u64 {
        let mut size = self.tree.stat_node(&Node::ROOT).map_or(0, |a| a.size);
        for view in ["inbox", "archive", "sent", "threads", "transcripts"] {
            let view = self.tree.resolve_path(view).unwrap();
            for (_, node) in self.names(&view) {
                let Ok(listing) = self.tree.list_folder(&node) else { continue };
                for (_, file) in
                    (0..listing.len()).filter_map(|n| listing.resolve_entry(&self.tree, n))
                {
                    size += self.tree.stat_node(&file).map_or(0, |a| a.size);
                }
            }
        }
        let mut out = Vec::new();
        let _ = view::copy_path_to(&self.tree, "status.txt", &mut out);
        size + out.len() as u64
    }

    pub(crate) fn refused(&self) -> usize {
        self.names(&self.tree.resolve_path("rejected").unwrap()).len()
    }
}

/// Reads `.seen-<me>` as a program that knows only the format does, and returns time and ids.
pub(crate) fn read_seen(path: &Path) -> (i64, BTreeSet<String>) {
    let Ok(text) = std::fs::read_to_string(path) else { return (0, BTreeSet::new()) };
    let value: serde_json::Value = serde_json::from_str(&text).unwrap();
    let ids = value["ids"].as_array().unwrap().iter();
    (value["ts"].as_i64().unwrap(), ids.map(|id| id.as_str().unwrap().to_owned()).collect())
}
