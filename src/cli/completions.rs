//! `msgfs completions`: what a shell needs to complete our commands.

use std::io::Write;

use clap::CommandFactory;
use clap_complete::{Shell, generate};

use super::Cli;
use super::failure::Failure;

/// Print the completions for a shell
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    msgfs completions bash > ~/.local/share/bash-completion/completions/msgfs\n  \
    msgfs completions fish > ~/.config/fish/completions/msgfs.fish")]
pub(crate) struct Args {
    /// Which shell
    shell: Shell,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    // Generated into memory: the generator panics on a closed pipe.
    let mut script = Vec::new();
    generate(args.shell, &mut Cli::command(), "msgfs", &mut script);
    std::io::stdout().write_all(&script).map_err(|e| Failure::output(&e))
}
