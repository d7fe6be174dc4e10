//! `outbox/`: drafts, the notes about refused ones, and composing folders.

use super::file::{OpenFile, OpenRequest};
use super::listing::Listing;
use super::node::{Ino, Node, NodeProperty, PagePolicy};
use super::table::{NodeAttributes, View, ViewKey};
use super::{CachePolicy, DraftWriters, Error, Tree};
use crate::model::Timestamp;
use crate::outbox::{BODY, DraftTarget};

/// A node of `outbox/`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum OutboxKey {
    /// `outbox/`
    Top,
    /// A draft, or the note beside one.
    Draft(String),
    /// `outbox/<name>/`, a composing folder.
    Folder(String),
    /// A file in a composing folder.
    File(String, String),
}

/// The view `outbox/`.
#[derive(Debug, Default)]
pub(super) struct OutboxView;

/// Returns the node of a draft, or of the note beside one.
pub(super) fn draft_node(name: String) -> Node {
    ViewKey::Outbox(OutboxKey::Draft(name)).into()
}

#[cfg(test)]
impl Node {
    /// Returns the node of a draft in `outbox/`.
    pub fn draft_for_test(name: &str) -> Self {
        draft_node(name.to_owned())
    }
}

impl View for OutboxView {
    type Key = OutboxKey;

    const CHANGES_WITHOUT_INDEX: bool = true;

    /// Returns the properties of a node. Every node is editable, also a folder, because `cp -p` sets the times of the
    /// folder.
    fn node_properties(key: &OutboxKey) -> &'static [NodeProperty] {
        use NodeProperty::{Editable, Folder, GoesWhenClosed, Pages, ShowsSent, TakesFiles};
        match key {
            OutboxKey::Top => &[Editable, Folder, TakesFiles, ShowsSent],
            OutboxKey::Folder(_) => &[Editable, Folder, TakesFiles],
            OutboxKey::Draft(_) => &[Editable, GoesWhenClosed, Pages(PagePolicy::Bypass)],
            OutboxKey::File(..) => &[Editable, Pages(PagePolicy::Bypass)],
        }
    }

    fn inode_number(&self, tree: &Tree, key: &OutboxKey) -> Option<Ino> {
        let node = ViewKey::Outbox(key.clone()).into();
        match key {
            OutboxKey::Top => None,
            OutboxKey::Draft(name) => Some(tree.assign_path_inode(&["outbox", name], &node)),
            OutboxKey::Folder(folder) => Some(tree.assign_path_inode(&["compose", folder], &node)),
            OutboxKey::File(folder, name) => {
                Some(tree.assign_path_inode(&["compose", folder, name], &node))
            }
        }
    }

    fn stat(&self, tree: &Tree, key: &OutboxKey) -> Result<NodeAttributes, Error> {
        let time = self.newest_time(tree, key);
        match key {
            OutboxKey::Top => Ok(NodeAttributes::of_folder(time, CachePolicy::Folder)),
            OutboxKey::Folder(_) if time.is_none() => Err(Error::NotFound),
            OutboxKey::Folder(_) => Ok(NodeAttributes::of_folder(time, CachePolicy::Volatile)),
            OutboxKey::Draft(name) => {
                let draft = tree.outbox.as_ref().and_then(|outbox| outbox.find_entry(name));
                let draft = draft.ok_or(Error::NotFound)?;
                let mode = if draft.is_note { 0o400 } else { 0o600 };
                Ok(NodeAttributes::of_draft(mode, draft.len, draft.time))
            }
            OutboxKey::File(folder, name) => {
                let outbox = tree.outbox.as_ref();
                let found =
                    outbox.and_then(|outbox| outbox.composer().stat_folder_file(folder, name));
                let (len, time) = found.ok_or(Error::NotFound)?;
                Ok(NodeAttributes::of_draft(0o600, len, time))
            }
        }
    }

    fn list(&self, tree: &Tree, folder: &OutboxKey) -> Result<Listing, Error> {
        match folder {
            OutboxKey::Top => Ok(Listing::from_named(list_drafts(tree))),
            OutboxKey::Folder(folder) => {
                let outbox = tree.outbox.as_ref();
                let files = outbox.and_then(|outbox| outbox.composer().folder_files(folder));
                let node = |name| ViewKey::Outbox(OutboxKey::File(folder.clone(), name)).into();
                let named = |name: String| (name.clone(), node(name));
                Ok(Listing::from_named(files.ok_or(Error::NotFound)?.into_iter().map(named)))
            }
            OutboxKey::Draft(_) | OutboxKey::File(..) => Err(Error::NotDir),
        }
    }

    fn find(&self, tree: &Tree, folder: &OutboxKey, name: &str) -> Result<Option<Node>, Error> {
        match folder {
            OutboxKey::Top => Ok(find_draft(tree, name)),
            _ => Ok(tree.find_in(&self.list(tree, folder)?, name)),
        }
    }

    fn parent_folder(&self, _tree: &Tree, folder: &OutboxKey) -> Option<OutboxKey> {
        matches!(folder, OutboxKey::Folder(_)).then_some(OutboxKey::Top)
    }

    fn open(&self, tree: &Tree, key: &OutboxKey, access: &OpenRequest) -> Result<OpenFile, Error> {
        match key {
            OutboxKey::Draft(name) if access.write => {
                tree.writable_outbox()?;
                if is_error_note(tree, name) {
                    return Err(Error::not_permitted(
                        "this note is about a refused draft; write the draft again",
                    ));
                }
                tree.writer().start_draft(name, DraftTarget::Outbox, access)
            }
            OutboxKey::Draft(name) => {
                let outbox = tree.outbox.as_ref().ok_or(Error::NotFound)?;
                let text = outbox.read_text(name, &DraftTarget::Outbox);
                Ok(OpenFile::from_bytes(text.ok_or(Error::NotFound)?))
            }
            OutboxKey::File(folder, name) => open_composed(tree, folder, name, access),
            OutboxKey::Top | OutboxKey::Folder(_) => Err(Error::IsDir),
        }
    }

    fn name_file(&self, _: &Tree, folder: &OutboxKey, name: &str) -> Result<Option<Node>, Error> {
        let key = match folder {
            OutboxKey::Top => OutboxKey::Draft(name.to_owned()),
            OutboxKey::Folder(folder) => OutboxKey::File(folder.clone(), name.to_owned()),
            OutboxKey::Draft(_) | OutboxKey::File(..) => return Ok(None),
        };
        Ok(Some(ViewKey::Outbox(key).into()))
    }

    fn set_len(&self, tree: &Tree, key: &OutboxKey, len: u64) -> Result<bool, Error> {
        match key {
            OutboxKey::Draft(name) => {
                tree.writer().truncate_draft(name, DraftTarget::Outbox, len)?;
            }
            OutboxKey::File(folder, name) if *name != BODY => {
                let outbox = tree.writable_outbox()?;
                let file =
                    outbox.composer().open_folder_file(folder, name, true, (false, false))?;
                let done = outbox.composer().resize_folder_file(&file, len);
                outbox.composer().close_folder_file(&file);
                done?;
            }
            OutboxKey::File(..) | OutboxKey::Top | OutboxKey::Folder(_) => return Ok(false),
        }
        Ok(true)
    }

    fn remove(&self, tree: &Tree, folder: &OutboxKey, name: &str) -> Result<bool, Error> {
        let outbox = tree.writable_outbox()?;
        match folder {
            OutboxKey::Top => outbox.remove(name, &DraftTarget::Outbox)?,
            OutboxKey::Folder(folder) => outbox.composer().remove_folder_file(folder, name)?,
            OutboxKey::Draft(_) | OutboxKey::File(..) => return Ok(false),
        }
        Ok(true)
    }

    fn rename(
        &self,
        tree: &Tree,
        folder: &OutboxKey,
        name: &str,
        (to, new_name): (&Node, &str),
        replace: bool,
    ) -> Result<bool, Error> {
        let ViewKey::Outbox(to) = to.key() else { return Ok(false) };
        let outbox = tree.writable_outbox()?;
        match (folder, to) {
            (OutboxKey::Top, OutboxKey::Top) => {
                if outbox.composer().folder_time(name).is_some() {
                    outbox.composer().rename_folder(name, new_name)?;
                } else if is_error_note(tree, name) {
                    return Err(Error::not_permitted(
                        "this note about a refused draft goes with its draft; rename the draft, or copy the note",
                    ));
                } else {
                    let named = |name: &str| (name.to_owned(), DraftTarget::Outbox);
                    outbox.rename_draft(&named(name), &named(new_name), replace)?;
                }
                Ok(true)
            }
            (OutboxKey::Folder(from), OutboxKey::Folder(to)) if from == to => {
                outbox.composer().rename_folder_file(from, name, new_name)?;
                Ok(true)
            }
            (OutboxKey::Folder(folder), OutboxKey::Top) => {
                Ok(outbox.composer().move_file_out(folder, name, new_name, replace)?)
            }
            _ => Ok(false),
        }
    }

    fn make_folder(
        &self,
        tree: &Tree,
        folder: &OutboxKey,
        name: &str,
    ) -> Result<Option<Node>, Error> {
        if *folder != OutboxKey::Top {
            return Ok(None);
        }
        tree.writable_outbox()?.composer().create_folder(name)?;
        Ok(Some(ViewKey::Outbox(OutboxKey::Folder(name.to_owned())).into()))
    }

    fn remove_folder(&self, tree: &Tree, folder: &OutboxKey, name: &str) -> Result<bool, Error> {
        if *folder != OutboxKey::Top {
            return Ok(false);
        }
        let removed = tree.writable_outbox()?.composer().remove_folder(name)?;
        if removed { Ok(true) } else { Err(Error::NotEmpty) }
    }

    fn newest_time(&self, tree: &Tree, key: &OutboxKey) -> Option<Timestamp> {
        match key {
            OutboxKey::Top => tree.outbox.as_ref()?.newest_time(),
            OutboxKey::Folder(name) => tree.outbox.as_ref()?.composer().folder_time(name),
            OutboxKey::Draft(_) | OutboxKey::File(..) => None,
        }
    }
}

/// Returns true if a name in `outbox/` is that of a note about a refused draft.
fn is_error_note(tree: &Tree, name: &str) -> bool {
    let found = tree.outbox.as_ref().and_then(|outbox| outbox.find_entry(name));
    found.is_some_and(|file| file.is_note)
}

/// Finds a draft or composing folder by its name.
fn find_draft(tree: &Tree, name: &str) -> Option<Node> {
    let outbox = tree.outbox.as_ref();
    if outbox.is_some_and(|outbox| outbox.composer().folder_time(name).is_some()) {
        return Some(ViewKey::Outbox(OutboxKey::Folder(name.to_owned())).into());
    }
    if name.strip_suffix(".error").is_some() {
        tree.settle_pending_messages();
    }
    let entry = outbox.filter(|outbox| !outbox.is_leaving(name))?.find_entry(name)?;
    Some(draft_node(entry.name))
}

fn list_drafts(tree: &Tree) -> Vec<(String, Node)> {
    let Some(outbox) = &tree.outbox else { return Vec::new() };
    let drafts = outbox.list_entries().into_iter().map(|l| (l.name.clone(), draft_node(l.name)));
    let folder = |name: String| (name.clone(), ViewKey::Outbox(OutboxKey::Folder(name)).into());
    let folders = outbox.composer().folder_names().into_iter().map(folder);
    let mut out: Vec<(String, Node)> = drafts.chain(folders).collect();
    out.sort_unstable_by(|a, b| a.0.cmp(&b.0));
    out
}

fn open_composed(
    tree: &Tree,
    folder: &str,
    name: &str,
    access: &OpenRequest,
) -> Result<OpenFile, Error> {
    let (outbox, append) = (tree.writable_outbox()?, access.append);
    let writers = DraftWriters::new(access.opener);
    if name != BODY || !access.write {
        let how = (access.truncate, append);
        let file = outbox.composer().open_folder_file(folder, name, access.write, how)?;
        return Ok(OpenFile::Compose { file, writers });
    }
    outbox.composer().folder_time(folder).ok_or(Error::NotFound)?;
    let kept = if access.truncate { Vec::new() } else { outbox.composer().folder_body(folder)? };
    let id = outbox.composer().start_body(folder, kept);
    Ok(OpenFile::Draft { id, writers, append, composed: true })
}
