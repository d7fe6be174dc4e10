//! `msgfs status`: prints `status.txt`.

use super::access::{self, AccessPurpose};
use super::failure::Failure;
use super::{GlobalOptions, output};

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
                to_me, from_me, rejected, healthy, health, remarks), links (name, state, engine, \
                last_contact, waiting, refused, notes, and since, why, behind and marks if they apply), \
                last_sent (null, or id, to, time), last_refusal (null, or time, name, reason), \
                last_unknown_id (null, or id, meaning), last_bad_query (null, or query, reason), notes"
    )]
    json: bool,
}

/// Runs `msgfs status`.
pub(crate) fn run(global: &GlobalOptions, args: &Args) -> Result<(), Failure> {
    access::with_tree(global, AccessPurpose::LOOK, |tree| {
        if !args.json {
            return access::print_file(tree, "status.txt");
        }
        let mut text = Vec::new();
        tree.cat(".status", &mut text)?;
        output::print_json(&String::from_utf8_lossy(&text))
    })
}
