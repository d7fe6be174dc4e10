//! `msgfs rm`: removes drafts and notes, and marks messages as read.

use clap_complete::engine::ArgValueCompleter;

use super::access::{self, AccessPurpose};
use super::failure::Failure;
use super::{GlobalOptions, complete};

/// Remove drafts, or mark messages as read
///
/// Does the same as `rm` in a mount. It removes a draft in outbox/. It marks a message in inbox/ as
/// read without reading it. Nothing is deleted from a store.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  msgfs rm outbox/bob outbox/bob.error\n  \
    msgfs rm inbox/20260424T174203.000Z-foo-ab12cd34.txt")]
pub(crate) struct Args {
    /// The files, as paths from the root of the tree
    #[arg(required = true, value_name = "PATH", add = ArgValueCompleter::new(complete::paths))]
    paths: Vec<String>,
}

/// Runs `msgfs rm`.
pub(crate) fn run(global: &GlobalOptions, args: &Args) -> Result<(), Failure> {
    let paths =
        args.paths.iter().map(|p| access::parse_tree_path(p)).collect::<Result<Vec<_>, _>>()?;
    access::with_tree(global, AccessPurpose::ACT, |tree| {
        access::for_each_path(&paths, |path| tree.rm(path))
    })
}
