//! `msgfs mv`: drafts renamed, which sends them, and messages unread again.

use clap_complete::engine::ArgValueCompleter;

use super::access::{self, Purpose};
use super::failure::Failure;
use super::{Global, complete};

/// Rename a draft, which sends it, or make a message unread again
///
/// What `mv` does in a mount: a draft with a private name (.bob, bob.tmp) is sent when it gets a
/// plain one, and a message of archive/ that is moved to inbox/ is unread again.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  msgfs mv outbox/.draft outbox/bob\n  \
    msgfs mv archive/2026-04-24/20260424T174203.000Z-foo-ab12cd34.txt inbox/")]
pub(crate) struct Args {
    /// File, from the root of the tree
    #[arg(add = ArgValueCompleter::new(complete::paths))]
    from: String,
    /// Its new name, or the folder it shall lie in
    #[arg(add = ArgValueCompleter::new(complete::paths))]
    to: String,
}

pub(crate) fn run(global: &Global, args: &Args) -> Result<(), Failure> {
    let (from, to) = (access::tree_path(&args.from)?, access::tree_path(&args.to)?);
    access::with(global, Purpose::ACT, |tree| {
        let Some(to) = tree.mv(&from, &to)? else { return Ok(()) };
        // As mv(1) does where a file cannot be renamed.
        let mut text = Vec::new();
        tree.cat(&from, &mut text)?;
        tree.write(&to, &text)?;
        tree.rm(&from)
    })
}
