//! `msgfs status`: `status.txt` on standard output.

use super::Global;
use super::access::{self, Purpose};
use super::failure::Failure;

/// Show who I am, what is unread and how the stores are
///
/// Prints status.txt of the tree; nothing is marked as read.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  msgfs status")]
pub(crate) struct Args {}

pub(crate) fn run(global: &Global, _args: &Args) -> Result<(), Failure> {
    access::with(global, Purpose::Look, |tree| access::print(tree, "status.txt"))
}
