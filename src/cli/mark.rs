//! `msgfs mark`: messages marked as read without being read.

use super::access::{self, Purpose};
use super::failure::Failure;
use super::{Global, output};

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

pub(crate) fn run(global: &Global, _args: &Args) -> Result<(), Failure> {
    let marked = access::with(global, Purpose::ACT, |tree| tree.mark_all())?;
    output::say(&match marked {
        0 => "no unread messages".to_owned(),
        1 => "1 message marked as read".to_owned(),
        n => format!("{n} messages marked as read"),
    });
    Ok(())
}
