//! `msgfs cat`: files of the tree on standard output.

use clap_complete::engine::ArgValueCompleter;

use super::access::{self, AccessPurpose};
use super::failure::Failure;
use super::{GlobalOptions, complete};

/// Print files of the tree
///
/// Reading a message in inbox/, reading .next, or reading the .answer of a sent message marks the
/// message as read, as in a mount. Reading other files marks nothing. If you name several files, a separator line stands before each.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  msgfs cat README.txt\n  msgfs cat transcripts/2026-04-24-foo-plan.txt\n  \
    msgfs cat inbox/20260424T174203.000Z-foo-ab12cd34.txt"
)]
pub(crate) struct Args {
    /// The files, as paths from the root of the tree
    #[arg(required = true, value_name = "PATH", add = ArgValueCompleter::new(complete::paths))]
    paths: Vec<String>,
}

/// Runs `msgfs cat`.
pub(crate) fn run(global: &GlobalOptions, args: &Args) -> Result<(), Failure> {
    let paths =
        args.paths.iter().map(|p| access::parse_tree_path(p)).collect::<Result<Vec<_>, _>>()?;
    let any = |is: fn(&str) -> bool| paths.iter().any(|path| is(path));
    let waits = any(is_waiting_path);
    let purpose = AccessPurpose {
        acts: any(access::is_marking_path),
        waits,
        follows: waits,
        ..AccessPurpose::LOOK
    };
    access::with_tree(global, purpose, |tree| {
        let print = if paths.len() > 1 { access::print_file_section } else { access::print_file };
        access::for_each_path(&paths, |path| print(tree, path))
    })
}

/// Returns true if reading this file waits for new mail.
fn is_waiting_path(path: &str) -> bool {
    matches!(path, ".next" | ".wait" | ".watch") || access::is_answer_path(path)
}
