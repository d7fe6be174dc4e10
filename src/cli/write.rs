//! `msgfs write`: writes standard input to a draft.

use clap_complete::engine::ArgValueCompleter;

use super::access::{self, AccessPurpose};
use super::failure::{Failure, refuse};
use super::message;
use super::{GlobalOptions, complete};

/// Write standard input to a file of the tree
///
/// Does the same as `>` in a mount. Writing to outbox/NAME sends to NAME. Writing to threads/THREAD/NAME
/// or MESSAGE.reply answers. Writing to MESSAGE.ack acknowledges. The text can begin with header lines
/// (`To: bob`, `Subject: plan`) and an empty line after them.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  echo 'tests are green' | msgfs write outbox/bob\n  \
    msgfs write threads/2026-04-24-foo-plan/answer < answer.txt")]
pub(crate) struct Args {
    /// The file, as a path from the root of the tree
    #[arg(add = ArgValueCompleter::new(complete::paths))]
    path: String,
}

/// Returns true if a file of the tree may have no text: a note, or an attachment.
fn may_be_empty(path: &str) -> bool {
    let parts: Vec<&str> = path.split('/').collect();
    matches!(parts[..], ["me", ..] | ["outbox", _, _, ..])
}

/// Runs `msgfs write`.
pub(crate) fn run(global: &GlobalOptions, args: &Args) -> Result<(), Failure> {
    let path = access::parse_tree_path(&args.path)?;
    let text = message::read_stdin()?;
    if text.is_empty() && !may_be_empty(&path) {
        refuse!("{path}: the text is empty, so nothing was sent; give it on standard input");
    }
    access::with_tree(global, AccessPurpose::ACT, |tree| tree.write(&path, &text))
}
