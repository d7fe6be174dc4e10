//! The command line: its options and commands.
//!
//! Each command is one file with its arguments (`Args`) and a function `run`. Data goes to standard output, and
//! all texts for people go to standard error. A command reaches the tree through [`access`], so that it works
//! the same with and without a mount.

mod access;
mod agents;
#[cfg(feature = "http")]
mod amp;
mod ask;
mod carry;
mod cat;
mod check;
mod complete;
mod completions;
mod context;
mod daemon;
mod delivery_wait;
mod doctor;
mod failure;
mod hook;
mod inbox;
mod init;
mod keep;
mod key;
mod kind_commands;
mod link;
mod logging;
mod ls;
mod machine;
mod man;
mod mark;
mod message;
mod mount;
mod mount_options;
mod mount_users;
mod mv;
mod output;
mod progress;
mod reply;
mod rm;
mod search;
mod send;
mod sendmail;
mod sent;
mod serve;
mod status;
mod stores;
mod systemd_units;
mod umount;
mod uninstall;
mod wait;
mod write;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Parser, Subcommand};

use failure::Failure;
use msgfs::config;
use msgfs::link as links;
use msgfs::mailbox::{Mailbox, MailboxOpenError, MailboxOptions};
use progress::WorkProgress;

/// Read and send agent messages as files.
#[derive(Debug, Parser)]
#[command(
    name = "msgfs",
    version,
    long_version = long_version(),
    long_about = "Shows agent messages as files. You read mail with ls and cat, and you send mail \
        by writing a file. `msgfs mount` shows these files in a folder. The files and folders \
        together are called the tree. All other commands but `umount` work with a mount and \
        without one.",
    after_help = "Examples:\n  \
        msgfs mount                       mount my mail at ~/mail\n  \
        cat ~/mail/README.txt             read how to use it\n  \
        msgfs send bob 'tests are green'  send a message to bob\n  \
        msgfs inbox                       read my new messages",
    arg_required_else_help = true,
    subcommand_required = true,
    max_term_width = 100
)]
pub(crate) struct Cli {
    #[command(flatten)]
    global: GlobalOptions,
    #[command(subcommand)]
    command: CliCommand,
}

/// Options that go with every command.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct GlobalOptions {
    #[arg(
        long,
        global = true,
        value_name = "NAME",
        value_parser = config::parse_alias,
        help_heading = "Options of every command",
        help = "Act for this name [default: the first of these that there is: $MSGFS_ME, the name of the mount \
                that the current folder is in, `me` in the configuration, the file .agent-message in the \
                current folder, the name of the current folder]"
    )]
    pub(crate) me: Option<String>,
    /// Use this configuration file instead of ~/.config/msgfs/config.toml
    #[arg(long, global = true, value_name = "FILE", help_heading = "Options of every command")]
    pub(crate) config: Option<PathBuf>,
}

impl GlobalOptions {
    /// Returns the options for the mailbox to open.
    fn mailbox_options(&self) -> MailboxOptions {
        let is_named =
            self.me.is_some() || std::env::var_os("MSGFS_ME").is_some_and(|me| !me.is_empty());
        let here = if is_named { None } else { context::find_current_mount() };
        MailboxOptions {
            config: self.config.clone(),
            me: self.me.clone(),
            current_mount: here,
            ..MailboxOptions::default()
        }
    }

    /// Opens the mailbox for one command that waits for nothing.
    fn open_mailbox(&self, read_only: bool) -> Result<Mailbox, MailboxOpenError> {
        open_with_progress(&MailboxOptions { read_only, once: true, ..self.mailbox_options() })
    }
}

/// Opens the mailbox for one command, with a progress bar if that takes long.
fn open_with_progress(options: &MailboxOptions) -> Result<Mailbox, MailboxOpenError> {
    let mut progress = WorkProgress::new();
    Mailbox::open(options, &mut |done, total| progress.update(done, total))
}

/// Returns the version, and the links that are built in.
fn long_version() -> String {
    let built_in = links::kind::FEATURES.iter().filter(|(_, is_in)| *is_in);
    let names: Vec<&str> = built_in.map(|(name, _)| *name).collect();
    let names = if names.is_empty() { "none".to_owned() } else { names.join(" ") };
    format!("{}\nlinks: {names}", env!("CARGO_PKG_VERSION"))
}

#[derive(Debug, Subcommand)]
enum CliCommand {
    Mount(mount::Args),
    Umount(umount::Args),
    Status(status::Args),
    Agents(agents::Args),
    Inbox(inbox::Args),
    Reply(reply::Args),
    Send(Box<send::Args>),
    Ask(Box<ask::Args>),
    #[command(disable_help_flag = true)]
    Sendmail(Box<sendmail::Args>),
    Sent(sent::Args),
    Search(search::Args),
    Wait(wait::Args),
    Ls(ls::Args),
    Cat(cat::Args),
    Write(write::Args),
    Rm(rm::Args),
    Mv(mv::Args),
    Mark(mark::Args),
    Keep(keep::Args),
    Check(check::Args),
    Doctor(doctor::Args),
    Key(key::Args),
    Init(init::Args),
    Hook(hook::Args),
    Uninstall(uninstall::Args),
    Link(link::Args),
    Carry(carry::Args),
    #[cfg(feature = "http")]
    Amp(amp::Args),
    #[command(flatten)]
    Kind(kind_commands::Args),
    Completions(completions::Args),
    Man(man::Args),
}

impl CliCommand {
    /// Returns true for a command that acts for a name or shows its mail, and does not print the name itself.
    fn should_announce(&self) -> bool {
        match self {
            Self::Mount(_)
            | Self::Umount(_)
            | Self::Init(_)
            | Self::Send(_)
            | Self::Ask(_)
            | Self::Reply(_)
            | Self::Hook(_)
            | Self::Uninstall(_)
            | Self::Completions(_)
            | Self::Man(_) => false,
            Self::Carry(args) => args.should_carry_all(),
            _ => true,
        }
    }
}

/// The log filter of commands. They report their own refusals, and `rejected/` has the messages that were
/// refused.
const COMMANDS_LOG: &str = "warn,msgfs::index::apply=error,msgfs::outbox::refusals=error";

/// Runs the command line. Exit codes: 0 done, 1 refused or failed, 2 usage.
pub(crate) fn main() -> ExitCode {
    hook::intercept_hook_run(std::env::args_os().skip(1));
    completions::answer_shell();
    let line = search::move_excluded_words(sendmail::effective_command_line());
    let cli = match Cli::try_parse_from(&line) {
        Ok(cli) => cli,
        Err(e) => {
            let e = explain_unknown_option(e);
            if e.use_stderr() {
                // A closed terminal must not turn a usage error into a panic.
                let _ = e.print();
                return ExitCode::from(sendmail::usage_exit_code(&line).unwrap_or(2));
            }
            return match output::print_help(&e) {
                Ok(()) => ExitCode::SUCCESS,
                Err(failure) => failure.report(),
            };
        }
    };
    match run_command(&cli.global, &cli.command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

/// Replaces clap's tip about an unknown option, which offers to pass it as a value. It is more often mistyped.
fn explain_unknown_option(mut error: clap::Error) -> clap::Error {
    if error.kind() != ErrorKind::UnknownArgument || error.remove(ContextKind::Suggested).is_none()
    {
        return error;
    }
    let tip =
        "a text that begins with a hyphen stands behind `--`, as in: msgfs send bob -- -5 degrees";
    error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.to_owned().into()]));
    error
}

fn run_command(global: &GlobalOptions, command: &CliCommand) -> Result<(), Failure> {
    if !matches!(command, CliCommand::Mount(_) | CliCommand::Carry(_)) {
        logging::log_to_stderr(COMMANDS_LOG);
    }
    if command.should_announce() {
        context::announce_identity(global);
    }
    match command {
        CliCommand::Mount(args) => mount::run(global, args),
        CliCommand::Umount(args) => umount::run(global, args),
        CliCommand::Status(args) => status::run(global, args),
        CliCommand::Agents(args) => agents::run(global, args),
        CliCommand::Inbox(args) => inbox::run(global, args),
        CliCommand::Reply(args) => reply::run(global, args),
        CliCommand::Send(args) => send::run(global, args),
        CliCommand::Ask(args) => ask::run(global, args),
        CliCommand::Sendmail(args) => sendmail::run(global, args),
        CliCommand::Sent(args) => sent::run(global, args),
        CliCommand::Search(args) => search::run(global, args),
        CliCommand::Wait(args) => wait::run(global, args),
        CliCommand::Ls(args) => ls::run(global, args),
        CliCommand::Cat(args) => cat::run(global, args),
        CliCommand::Write(args) => write::run(global, args),
        CliCommand::Rm(args) => rm::run(global, args),
        CliCommand::Mv(args) => mv::run(global, args),
        CliCommand::Mark(args) => mark::run(global, args),
        CliCommand::Keep(args) => keep::run(global, args),
        CliCommand::Check(args) => check::run(global, args),
        CliCommand::Doctor(args) => doctor::run(global, args),
        CliCommand::Key(args) => key::run(global, args),
        CliCommand::Init(args) => init::run(global, args),
        CliCommand::Hook(args) => hook::run(global, args),
        CliCommand::Uninstall(args) => uninstall::run(global, args),
        CliCommand::Link(args) => link::run(global, args),
        CliCommand::Carry(args) => carry::run(global, args),
        #[cfg(feature = "http")]
        CliCommand::Amp(args) => amp::run(global, args),
        CliCommand::Kind(args) => kind_commands::run(global, args),
        CliCommand::Completions(args) => completions::run(args),
        CliCommand::Man(args) => man::run(args),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_definition_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn an_unknown_option_is_not_offered_as_a_text() {
        let told = |line: &[&str]| {
            explain_unknown_option(Cli::try_parse_from(line).unwrap_err()).to_string()
        };
        let text = told(&["msgfs", "send", "--bogus", "bob", "hi"]);
        assert!(text.contains("unexpected argument '--bogus'"), "{text}");
        assert!(!text.contains("-- --bogus") && text.contains("behind `--`"), "{text}");
        let similar = told(&["msgfs", "send", "--subjct", "x", "bob", "hi"]);
        assert!(similar.contains("'--subject'"), "{similar}");
    }

    #[test]
    fn every_command_has_an_example() {
        for command in Cli::command().get_subcommands() {
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(help.contains("msgfs "), "{} has no example", command.get_name());
        }
    }
}
