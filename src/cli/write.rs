//! `msgfs write`: standard input becomes a draft.

use clap_complete::engine::ArgValueCompleter;

use super::access::{self, Purpose};
use super::failure::Failure;
use super::message;
use super::{Global, complete};

/// Write standard input to a file of the tree
///
/// Writing to outbox/NAME sends to NAME, to threads/THREAD/NAME or MESSAGE.reply answers, to
/// MESSAGE.ack acknowledges: exactly what `>` does in a mount. The text may begin with header
/// lines (`To: bob`, `Subject: plan`, an empty line).
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  echo 'tests are green' | msgfs write outbox/bob\n  \
    msgfs write threads/2026-04-24-foo-plan/answer < answer.txt")]
pub(crate) struct Args {
    /// File, from the root of the tree
    #[arg(add = ArgValueCompleter::new(complete::paths))]
    path: String,
}

pub(crate) fn run(global: &Global, args: &Args) -> Result<(), Failure> {
    let path = access::tree_path(&args.path)?;
    let text = message::from_stdin()?;
    access::with(global, Purpose::Act, |tree| tree.write(&path, &text))
}
