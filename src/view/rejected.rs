//! `rejected/`: the messages that were not accepted, each with the reason.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::generation_cache::GenerationCache;
use super::listing::Listing;
use super::node::{Ino, InodeTag, Node, NodeProperty, make_inode};
use super::table::{TreeChanges, View, ViewKey};
use super::{Error, Tree, names};
use crate::index::{IndexTables, IndexedRejection};
use crate::model::{ShownMessage, Timestamp, render_body};
use crate::store::Location;

/// Bytes of a rejected message that `rejected/` shows.
const SHOWN: usize = 64 << 10;

/// A node of `rejected/`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum RejectedKey {
    /// `rejected/`
    Folder,
    /// A file in it, by identity.
    File(u64),
}

/// The view `rejected/`.
#[derive(Debug, Default)]
pub(super) struct RejectedView {
    /// The files by name.
    names: GenerationCache<(), Arc<BTreeMap<String, u64>>>,
}

impl RejectedView {
    fn names(&self, tree: &Tree) -> Arc<BTreeMap<String, u64>> {
        let generation = tree.index.read().name_generation();
        self.names.get((), generation, || Arc::new(name_rejects(&tree.index.read())))
    }
}

fn file_node(identity: u64) -> Node {
    ViewKey::Rejected(RejectedKey::File(identity)).into()
}

impl View for RejectedView {
    type Key = RejectedKey;

    fn node_properties(key: &RejectedKey) -> &'static [NodeProperty] {
        match key {
            RejectedKey::Folder => &[NodeProperty::Folder, NodeProperty::LastingListing],
            RejectedKey::File(_) => &[],
        }
    }

    fn inode_number(&self, _tree: &Tree, key: &RejectedKey) -> Option<Ino> {
        let RejectedKey::File(identity) = key else { return None };
        Some(make_inode(InodeTag::Reject, *identity))
    }

    fn find_by_inode(&self, _tree: &Tree, tag: u64, low: u64) -> Option<RejectedKey> {
        (tag == InodeTag::Reject as u64).then_some(RejectedKey::File(low))
    }

    fn text(&self, tree: &Tree, key: &RejectedKey) -> Result<(String, Timestamp), Error> {
        let RejectedKey::File(identity) = key else { return Err(Error::IsDir) };
        reject_text(tree, *identity)
    }

    fn list(&self, tree: &Tree, folder: &RejectedKey) -> Result<Listing, Error> {
        if *folder != RejectedKey::Folder {
            return Err(Error::NotDir);
        }
        let names = self.names(tree);
        Ok(Listing::from_named(names.iter().map(|(name, id)| (name.clone(), file_node(*id)))))
    }

    fn find(&self, tree: &Tree, folder: &RejectedKey, name: &str) -> Result<Option<Node>, Error> {
        if *folder != RejectedKey::Folder {
            return Err(Error::NotDir);
        }
        Ok(self.names(tree).get(name).copied().map(file_node))
    }

    fn newest_time(&self, tree: &Tree, _key: &RejectedKey) -> Option<Timestamp> {
        let tables = tree.index.read();
        tables.trust.rejects().map(|(_, r)| Timestamp::from_millis(r.time_ms)).max()
    }

    fn stale_keys(&self, changes: &TreeChanges<'_>) -> Vec<RejectedKey> {
        if changes.index.other { vec![RejectedKey::Folder] } else { Vec::new() }
    }
}

/// Returns the entries of `rejected/` by name. The name is made of source and line. If two names would be
/// equal, the later one in order of paths and lines takes the whole hash.
fn name_rejects(tables: &IndexTables) -> BTreeMap<String, u64> {
    let rejects = tables.trust.rejects();
    let mut ordered: Vec<(&str, u64, usize, u64)> = rejects
        .map(|((source, _), r)| (r.path.as_str(), r.line, source.store(), r.identity))
        .collect();
    ordered.sort_unstable();
    let mut named = BTreeMap::new();
    for (path, line, store, identity) in ordered {
        let what = format!("{path}:{line}");
        let short = names::reject_name(path, &what, false);
        // Two stores may have equal paths, and one file several rejections at one place.
        let longer =
            (0u32..).map(|n| if n == 0 { what.clone() } else { format!("{what}:{store}:{n}") });
        let longer = longer.map(|what| names::reject_name(path, &what, true));
        let mut free = std::iter::once(short).chain(longer).filter(|n| !named.contains_key(n));
        if let Some(name) = free.next() {
            named.insert(name, identity);
        }
    }
    named
}

/// Returns the text of a file in `rejected/`: reason, source, and the readable content.
fn reject_text(tree: &Tree, identity: u64) -> Result<(String, Timestamp), Error> {
    let (source, offset, reject) = {
        let tables = tree.index.read();
        let (key, reject) = tables.trust.find_rejection(identity).ok_or(Error::NotFound)?;
        (key.0, key.1, reject.clone())
    };
    let store = tree.index.stores().get(source.store()).ok_or(Error::NotFound)?;
    let line = if reject.line > 0 { format!(":{}", reject.line) } else { String::new() };
    let mut text = format!(
        "Reason: {}\nSource: raw/{}/{}{line}\n",
        crate::model::sanitize_line(&reject.reason),
        store.name(),
        crate::model::sanitize_line(&crate::model::name_encoding::display_name(&reject.path)),
    );
    let at = Location { source: source.file(), offset, len: reject.len };
    text.push_str(&render_reject(store.as_ref(), &at, &reject));
    Ok((text, Timestamp::from_millis(reject.time_ms)))
}

/// Renders a rejected message: header and body if it can be parsed, else its bytes as text.
fn render_reject(
    store: &dyn crate::store::Store,
    at: &Location,
    reject: &IndexedRejection,
) -> String {
    let mut text = String::new();
    let body = if let Ok(mut record) = store.read_record(at) {
        super::message_texts::strip_thread_label(store, &mut record.message);
        let shown = ShownMessage::new(&record.message, store.kind().as_str());
        shown.render_header(&mut text, None);
        record.message.body
    } else {
        let bytes = store.read_bytes(at, SHOWN).unwrap_or_default();
        let mut body = String::from_utf8_lossy(&bytes).into_owned();
        if u64::from(reject.len) > SHOWN as u64 {
            body.push_str("\n[only the beginning is shown; the whole is in raw/]");
        }
        body
    };
    text.push('\n');
    text.push_str(&render_body(&body));
    if !text.ends_with('\n') {
        text.push('\n');
    }
    text
}
