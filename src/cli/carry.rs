//! `msgfs carry`: links at work, without a mount.

use std::path::PathBuf;

use msgfs::link::{self, job};
use msgfs::mailbox::{Mailbox, Options};
use msgfs::model::safe_text;
use msgfs::store::process;
use sd_notify::NotifyState;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::failure::Failure;
use super::{Global, logging, output};

/// Carry mail to and from other machines as long as this runs
///
/// A mount does the same by itself. This is for machines and containers without one, whose agents
/// use `msgfs ls`, `cat` and `write`: what they write waits until this, or a mount, carries it.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  msgfs carry --all\n  systemd-run --user msgfs carry --all",
    arg_required_else_help = true
)]
pub(crate) struct Args {
    /// Carry for all links, until a signal ends it
    #[arg(long)]
    all: bool,
    /// The folder of one exchange, which is made and then ends
    #[arg(hide = true, conflicts_with = "all")]
    job: Option<PathBuf>,
}

impl Args {
    /// Tells it from the hidden half that makes one exchange.
    pub(crate) fn carries_all(&self) -> bool {
        self.all
    }
}

pub(crate) fn run(global: &Global, args: &Args) -> Result<(), Failure> {
    match &args.job {
        Some(folder) => {
            let failed = |e| Failure::io("the exchange cannot be made", &e);
            job::begin(folder).map_err(failed)?;
            job::carry(folder, link::engine).map_err(failed)
        }
        None => all(global),
    }
}

fn all(global: &Global) -> Result<(), Failure> {
    logging::to_stderr("info");
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP])
        .map_err(|e| Failure::io("cannot watch for signals", &e))?;
    let options = Options { carry: true, ..global.options() };
    process::start_again_with(Some(std::env::args_os().skip(1).collect()));
    let mailbox = Mailbox::open(&options, &mut |_, _| {})?;
    for warning in mailbox.warnings() {
        output::say(&format!("warning: {}", safe_text(&warning)));
    }
    let boards = mailbox.links().boards();
    if boards.is_empty() {
        mailbox.close();
        return Err(Failure::refused(
            "there is no link; see `msgfs init --help`, and docs/links for what each kind needs",
        ));
    }
    for board in boards {
        output::say(&format!("carrying: {}, {}", board.name(), board.standing().engine));
    }
    let _ = sd_notify::notify(&[NotifyState::Ready]);
    signals.forever().next();
    let _ = sd_notify::notify(&[NotifyState::Stopping]);
    mailbox.close();
    Ok(())
}
