//! The command line of msgfs.

mod cli;

use std::process::ExitCode;

/// Runs before `main`.
#[used]
// SAFETY: the C library calls each function in this section once, with arguments that this one does not take. It needs
// nothing of the standard library that `main` would have to prepare.
#[unsafe(link_section = ".init_array")]
static NOTE_STDOUT: extern "C" fn() = note_stdout;

extern "C" fn note_stdout() {
    msgfs::store::process::note_stdout();
}

fn main() -> ExitCode {
    cli::main()
}
