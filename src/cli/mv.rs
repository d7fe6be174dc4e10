//! `msgfs mv`: renames drafts, which sends them, and makes messages unread again.

use clap_complete::engine::ArgValueCompleter;

use super::access::{self, AccessPurpose};
use super::failure::Failure;
use super::{GlobalOptions, complete};

/// Send a draft by renaming it, or make a message unread again
///
/// Does the same as `mv` in a mount. A draft with a private name (.bob, bob.tmp) is sent when you give
/// it a plain name. A message of archive/ is unread again when you move it to inbox/.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  msgfs mv outbox/.draft outbox/bob\n  \
    msgfs mv archive/2026-04-24/20260424T174203.000Z-foo-ab12cd34.txt inbox/")]
pub(crate) struct Args {
    /// The file, as a path from the root of the tree
    #[arg(add = ArgValueCompleter::new(complete::paths))]
    from: String,
    /// The new name, or the folder to move it to
    #[arg(add = ArgValueCompleter::new(complete::paths))]
    to: String,
}

/// Runs `msgfs mv`.
pub(crate) fn run(global: &GlobalOptions, args: &Args) -> Result<(), Failure> {
    let (from, to) = (access::parse_tree_path(&args.from)?, access::parse_tree_path(&args.to)?);
    access::with_tree(global, AccessPurpose::ACT, |tree| {
        let Some(to) = tree.mv(&from, &to)? else { return Ok(()) };
        // The text is copied, like in mv(1) for a file that cannot be renamed.
        let mut text = Vec::new();
        tree.cat(&from, &mut text)?;
        tree.write(&to, &text)?;
        tree.rm(&from)
    })
}
