//! AgentAZAll mailboxes in the mount.

mod filter;
mod identity;
mod marks;
mod one_message;
mod reading;
mod sending;
mod signatures;
mod threads;

use crate::common::agz::Tree;
use crate::common::{Bed, Mount};

/// Makes a bed whose only store is the mailbox of `bar@localhost`, filled by `fill`, and mounts it for bar.
#[track_caller]
pub(crate) fn with(fill: impl FnOnce(&Bed, &Tree)) -> (Bed, Tree, Mount) {
    let bed = Bed::new();
    let tree = Tree::new(&bed);
    bed.config(&tree.store());
    fill(&bed, &tree);
    let m = bed.mount("bar");
    (bed, tree, m)
}
