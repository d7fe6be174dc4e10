//! `msgfs mark`: marks messages as read without reading them.

use super::access::{self, AccessPurpose};
use super::failure::Failure;
use super::{GlobalOptions, output};

/// Mark every unread message as read, without reading it
///
/// Does the same as `rm inbox/*` in a mount. Nothing is deleted: the messages stay in archive/ and in
/// threads/. To mark one message, use `msgfs rm inbox/NAME`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  msgfs mark --all")]
pub(crate) struct Args {
    /// Mark all messages that are in inbox/ now
    #[arg(long, required = true)]
    all: bool,
}

/// Runs `msgfs mark`.
pub(crate) fn run(global: &GlobalOptions, _args: &Args) -> Result<(), Failure> {
    let marked = access::with_tree(global, AccessPurpose::ACT, |tree| tree.mark_all_read())?;
    output::print_notice(&match marked {
        0 => "no unread messages".to_owned(),
        1 => "1 message marked as read".to_owned(),
        n => format!("{n} messages marked as read"),
    });
    Ok(())
}
