//! `msgfs completions`: prints the script by which a shell completes our commands.

use clap::CommandFactory;
use clap_complete::env::Shells;
use clap_complete::{CompleteEnv, Shell};
use msgfs::store::process;

use super::Cli;
use super::failure::{Failure, refuse};

/// The variable by which a shell's script asks for completions.
const ASKED: &str = "MSGFS_COMPLETE";

/// Print the completion script for a shell
///
/// The script asks msgfs for the words that fit: commands, options, paths of the tree, recipients,
/// stores and mount points.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    msgfs completions bash > ~/.local/share/bash-completion/completions/msgfs\n  \
    msgfs completions fish > ~/.config/fish/completions/msgfs.fish")]
pub(crate) struct Args {
    /// The shell
    shell: Shell,
}

/// Runs `msgfs completions`.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let shell = args.shell.to_string();
    let shells = Shells::builtins();
    let Some(shell) = shells.completer(&shell) else { refuse!("there is no script for {shell}") };
    // The script is made in memory first, because half a script helps nobody.
    let mut script = Vec::new();
    shell
        .write_registration(ASKED, "msgfs", "msgfs", "msgfs", &mut script)
        .map_err(|e| Failure::from_io("the script cannot be made", &e))?;
    process::write_stdout(&script).map_err(|e| Failure::from_output_error(&e))
}

/// Answers the script of a shell and ends the process, if the script asks.
pub(crate) fn answer_shell() {
    CompleteEnv::with_factory(Cli::command).var(ASKED).complete();
}
