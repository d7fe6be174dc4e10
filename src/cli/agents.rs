//! `msgfs agents`: `agents.txt` on standard output.

use super::access::{self, Purpose};
use super::failure::Failure;
use super::{Global, output};

/// Show who there is: whom I can write to, and how much they have not read
///
/// Prints agents.txt of the tree: a line for each agent that any store knows, with its name, the
/// stores, when it last wrote, how many messages to it it has not read, the fingerprint of its key
/// and whether that is pinned. What is not known is a -.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  msgfs agents | column -t\n  msgfs agents --json")]
pub(crate) struct Args {
    #[arg(
        long,
        help = "Print one JSON array of objects: name, stores (names), last_wrote (null or RFC 3339), \
                unread (null or a number), key (null or a fingerprint), pinned"
    )]
    json: bool,
}

pub(crate) fn run(global: &Global, args: &Args) -> Result<(), Failure> {
    if !args.json {
        return access::with(global, Purpose::LOOK, |tree| access::print(tree, "agents.txt"));
    }
    let mailbox = global.open(true)?;
    let agents = mailbox.tree().agents_data();
    mailbox.close();
    output::json_line(&agents)
}
