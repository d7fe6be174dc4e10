//! `msgfs status`: `status.txt` on standard output.

use super::access::{self, Purpose};
use super::failure::Failure;
use super::{Global, output};

/// Show my name, my unread messages and the state of each store
///
/// Prints the file status.txt of the tree. Marks nothing as read.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  msgfs status\n  msgfs status --json")]
pub(crate) struct Args {
    #[arg(
        long,
        help = "Print one JSON object: me, key, read_only, unread, messages (the first 50: name, \
                subject (null if it has none), first_line), stores (name, kind, me, key, messages (with scope \"all\", else null), \
                to_me, from_me, rejected, healthy, health, remarks), links (name, state, since, \
                why, engine, last_contact, waiting, refused, notes), last_refusal (null, or time, \
                name, reason), last_unknown_id (null, or id, meaning), notes"
    )]
    json: bool,
}

pub(crate) fn run(global: &Global, args: &Args) -> Result<(), Failure> {
    if !args.json {
        return access::with(global, Purpose::LOOK, |tree| access::print(tree, "status.txt"));
    }
    let mailbox = global.open(true)?;
    let status = mailbox.tree().status_data();
    mailbox.close();
    output::json_line(&status)
}
