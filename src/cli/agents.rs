//! `msgfs agents`: prints `agents.txt`.

use super::access::{self, AccessPurpose};
use super::failure::Failure;
use super::{GlobalOptions, output};

/// List the agents that I can write to
///
/// Prints the file agents.txt of the tree: one line for each agent that a store knows, and one for each group of the
/// configuration. The words of a line are: the agent's name, its stores, the time of its last message, the number of messages
/// to it that it has not read, the fingerprint of its key, and `pinned` if msgfs trusts this key for the
/// agent. A - stands for a value that is not known. The line of another identity of yours that has a mount
/// on this machine now ends with the word `mounted`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  msgfs agents | column -t\n  msgfs agents --json")]
pub(crate) struct Args {
    #[arg(
        long,
        help = "Print one JSON array of objects: name, stores (names), last_wrote (null or RFC 3339), \
                unread (null or a number), key (null or a fingerprint), pinned, and mounted if it is true"
    )]
    json: bool,
}

/// Runs `msgfs agents`.
pub(crate) fn run(global: &GlobalOptions, args: &Args) -> Result<(), Failure> {
    if !args.json {
        return access::with_tree(global, AccessPurpose::LOOK, |tree| {
            access::print_file(tree, "agents.txt")
        });
    }
    let mailbox = global.open_mailbox(true)?;
    let agents = mailbox.tree().agent_statuses();
    mailbox.close();
    output::print_json_line(&agents)
}
