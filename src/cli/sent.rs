//! `msgfs sent`: prints the way of my messages to their recipients.

use msgfs::view::{SentReceipt, format_receipts, sent_report_path};

use super::access::{self, AccessPurpose, TreeAccess};
use super::failure::{Failure, refuse};
use super::{GlobalOptions, output};

/// Show the state of my messages for each recipient
///
/// Prints the file sent.txt of the tree: the newest 200 lines, one for each message and recipient. The
/// fields of a line are: time, short id, recipient, state, time of that state, subject or first words.
/// A - stands for a value that is not known. The states are:
///
/// waiting: the message is accepted, and something keeps it from the recipient's store
///
/// stored: it is in the files of the store here
///
/// delivered: a mailbox of the recipient, a provider or a server has it
///
/// told: msgfs has told a session of the recipient's coding agent that this message came
///
/// passed: the recipient's read position (SAMP) has passed it; the recipient may not have read it
///
/// read: the recipient's program has marked it as read or acknowledged it
///
/// answered: a message of the recipient answers it
///
/// refused: a provider or server refused it for good
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  msgfs sent | column -ts \"$(printf '\\t')\"\n  msgfs sent ab12cd34\n  msgfs sent --all --json"
)]
pub(crate) struct Args {
    #[arg(
        long,
        help = "Print one JSON array of objects: time, id, message_id, store, recipient (null or an \
                address), state, since (null or RFC 3339), subject (null or text), reason (null or \
                text)"
    )]
    json: bool,
    /// Print all lines, and not only the newest 200
    #[arg(long, conflicts_with = "id")]
    all: bool,
    /// Print the lines of this message: its short id, or its id from the line Message-ID
    #[arg(value_name = "ID")]
    id: Option<String>,
}

/// Runs `msgfs sent`.
pub(crate) fn run(global: &GlobalOptions, args: &Args) -> Result<(), Failure> {
    let report = match &args.id {
        Some(id) => sent_report_path("id=", id),
        None if args.all => ".sent/all".to_owned(),
        None => ".sent/recent".to_owned(),
    };
    access::with_tree(global, AccessPurpose::LOOK, |tree| {
        if !args.json && !args.all && args.id.is_none() {
            return access::print_file(tree, "sent.txt");
        }
        let receipts = read_receipts(tree, &report)?;
        if let Some(id) = args.id.as_ref().filter(|_| receipts.is_empty()) {
            let id = msgfs::model::sanitize_line(id);
            refuse!("no message of yours has the id {id}; see `msgfs sent --all`");
        }
        if args.json {
            return output::print_json_line(&receipts);
        }
        output::print_data(&format_receipts(&receipts))
    })
}

/// Reads a report of the tree.
pub(super) fn read_receipts(
    tree: &dyn TreeAccess,
    report: &str,
) -> Result<Vec<SentReceipt>, Failure> {
    let mut text = Vec::new();
    tree.cat(report, &mut text)?;
    serde_json::from_slice(&text)
        .map_err(|e| Failure::refused(format!("{report} is not what this msgfs expects: {e}")))
}
