//! The inode numbers of paths.

use super::*;
use crate::view::raw::RawKey;
use crate::view::table::ViewKey;

#[test]
fn what_is_known_of_paths_is_bounded() {
    let b = bed(vec![store(Vec::new())]);
    let draft = |n: usize| Node::draft_for_test(&format!("draft{n}"));
    let first = b.tree.inode_number(&draft(0));
    for n in 1..PathNodes::FILES {
        b.tree.inode_number(&draft(n));
    }
    assert_eq!(b.tree.node_by_inode(first), Some(draft(0)), "as many as that are known");
    let second = b.tree.inode_number(&draft(1));
    b.tree.inode_number(&draft(PathNodes::FILES));
    b.tree.inode_number(&draft(PathNodes::FILES + 1));
    // A node used lately stays; a node that is looked up again has its former number.
    assert_eq!(
        (b.tree.node_by_inode(first), b.tree.node_by_inode(second)),
        (Some(draft(0)), Some(draft(1)))
    );
    assert_eq!(b.tree.path_nodes.lock().files.len(), PathNodes::FILES);
    assert_eq!(b.tree.inode_number(&draft(2)), b.tree.inode_number(&draft(2)));
}

#[test]
fn files_push_out_no_folder() {
    let b = bed(vec![store(Vec::new())]);
    let raw = |path: String| Node::from(ViewKey::Raw(RawKey::Folder(0, path)));
    let folder = b.tree.inode_number(&raw("cur".into()));
    for n in 0..=PathNodes::FILES {
        b.tree.inode_number(&Node::draft_for_test(&format!("draft{n}")));
    }
    assert_eq!(b.tree.node_by_inode(folder), Some(raw("cur".into())));
    for n in 0..=PathNodes::FOLDERS {
        b.tree.inode_number(&raw(format!("{n}")));
    }
    assert_eq!(b.tree.path_nodes.lock().folders.len(), PathNodes::FOLDERS);
    assert_eq!(b.tree.node_by_inode(folder), None, "other folders push it out at last");
}

#[test]
fn a_folder_and_a_file_of_one_path_never_have_one_number() {
    let b = bed(vec![store(Vec::new())]);
    let folder: Node = ViewKey::Raw(RawKey::Folder(0, "x".into())).into();
    let file: Node = ViewKey::Raw(RawKey::File(0, "x".into())).into();
    let of_folder = b.tree.inode_number(&folder);
    *b.tree.path_nodes.lock() = PathNodes::default();
    let of_file = b.tree.inode_number(&file);
    assert_ne!(of_folder, of_file);
    assert_eq!(
        (b.tree.node_by_inode(of_folder), b.tree.node_by_inode(of_file)),
        (None, Some(file))
    );
    assert_eq!(
        (b.tree.inode_number(&folder), b.tree.node_by_inode(of_folder)),
        (of_folder, Some(folder))
    );
}
