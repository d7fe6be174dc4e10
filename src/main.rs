//! The command line of msgfs.

mod cli;

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::main()
}
