//! `msgfs inbox`: read what is new.

use super::Global;
use super::access::{self, Purpose};
use super::failure::Failure;
use super::output;

/// Print the unread messages, oldest first, and mark them as read
///
/// The same as `cat inbox/*` in a mount, each under a separator line. With `mark_read = "on-remove"` in the configuration
/// nothing is marked. `msgfs status` shows what is unread without marking it.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  msgfs inbox\n  msgfs wait && msgfs inbox")]
pub(crate) struct Args {}

pub(crate) fn run(global: &Global, _args: &Args) -> Result<(), Failure> {
    access::with(global, Purpose::Act, |tree| {
        let unread = tree.unread()?;
        if unread.is_empty() {
            output::say("no new messages");
        }
        unread.iter().try_for_each(|name| access::print_section(tree, &format!("inbox/{name}")))
    })
}
