//! `msgfs <kind> WORD…`: commands that only stores of one kind have.

use std::fmt::Write;

use clap::{ArgMatches, Args as _, Command, FromArgMatches, Subcommand};
use msgfs::model::sanitize_text;
use msgfs::store::{Kind, StoreError};

use clap_complete::engine::ArgValueCompleter;

use super::context::CommandContext;
use super::failure::Failure;
use super::stores::{self, StoreOpener};
use super::{GlobalOptions, complete, output};

/// A command of one kind of store.
#[derive(Clone, Debug)]
pub(crate) struct Args {
    kind: Kind,
    options: KindOptions,
}

#[derive(Clone, Debug, clap::Args)]
struct KindOptions {
    /// The command and its arguments. Without them, msgfs lists the commands
    #[arg(value_name = "WORD")]
    words: Vec<String>,
    /// Use the store with this name, if there are several of this kind
    #[arg(long, value_name = "NAME", add = ArgValueCompleter::new(complete::stores))]
    store: Option<String>,
}

/// Returns the kinds that have commands.
fn kinds_with_commands() -> impl Iterator<Item = Kind> {
    Kind::ALL.iter().copied().filter(|kind| !kind.row().commands.is_empty())
}

/// Returns the subcommand of a kind, with its commands in the help.
fn build_subcommand(kind: Kind) -> Command {
    let mut examples = format!("Examples:\n  msgfs {kind}");
    for (usage, _) in kind.row().commands {
        let _ = write!(examples, "\n  msgfs {kind} {usage}");
    }
    let about = format!("Run a command that only {kind} stores have");
    let long = format!("{about}\n\nCommands:\n{}", format_commands(kind));
    let command = Command::new(kind.as_str()).about(about).long_about(long).after_help(examples);
    KindOptions::augment_args(command)
}

/// Returns the commands of a kind, one a line.
fn format_commands(kind: Kind) -> String {
    let width = kind.row().commands.iter().map(|(usage, _)| usage.len()).max().unwrap_or_default();
    let lines = kind.row().commands.iter().map(|(usage, what)| format!("  {usage:width$}  {what}"));
    lines.collect::<Vec<_>>().join("\n")
}

impl Subcommand for Args {
    fn augment_subcommands(cmd: Command) -> Command {
        kinds_with_commands().fold(cmd, |cmd, kind| cmd.subcommand(build_subcommand(kind)))
    }

    fn augment_subcommands_for_update(cmd: Command) -> Command {
        Self::augment_subcommands(cmd)
    }

    fn has_subcommand(name: &str) -> bool {
        kinds_with_commands().any(|kind| kind.as_str() == name)
    }
}

impl FromArgMatches for Args {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let missing = || clap::Error::new(clap::error::ErrorKind::MissingSubcommand);
        let (name, matches) = matches.subcommand().ok_or_else(missing)?;
        let kind = name.parse().map_err(|_| missing())?;
        Ok(Self { kind, options: KindOptions::from_arg_matches(matches)? })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// Returns true if a kind has a command of this name.
fn has_command(kind: Kind, word: &str) -> bool {
    kind.row().commands.iter().any(|(usage, _)| usage.split(' ').next() == Some(word))
}

/// Runs a command of one kind of store.
pub(crate) fn run(global: &GlobalOptions, args: &Args) -> Result<(), Failure> {
    let Args { kind, options } = args;
    let Some(command) = options.words.first() else {
        return output::print_data(&format!("{}\n", format_commands(*kind)));
    };
    if !has_command(*kind, command) {
        let command = sanitize_text(command);
        return Err(Failure::Usage(format!(
            "{kind} stores have no command {command}; they have:\n{}",
            format_commands(*kind)
        )));
    }
    let fits = |usage: &str| {
        usage.split(' ').next() == Some(command) && usage.split(' ').count() == options.words.len()
    };
    if !kind.row().commands.iter().any(|(usage, _)| fits(usage)) {
        return Err(Failure::Usage(format!("the commands are:\n{}", format_commands(*kind))));
    }
    let context = CommandContext::find(global)?;
    let mut specs = context.store_specs()?;
    specs.retain(|spec| spec.kind == *kind);
    let spec = stores::select_spec(&specs, options.store.as_deref(), &format!("{kind} store"))?;
    let opener = StoreOpener::new(&context)?;
    let store = opener.open_with_refusals(global, spec)?;
    let answer = match store.facets().upkeep {
        Some(upkeep) => upkeep.run_command(&options.words),
        None => Err(StoreError::Invalid(format!("a store of kind {kind} has no commands"))),
    };
    let answer = answer.map_err(|e| match e {
        StoreError::Invalid(why) => Failure::Usage(why),
        other => Failure::refused(other),
    });
    output::print_data(&sanitize_answer(&answer?))
}

/// Returns the answer as whole lines that cannot drive the terminal.
fn sanitize_answer(answer: &str) -> String {
    let answer = sanitize_text(answer.trim_end_matches('\n')).into_owned();
    if answer.is_empty() { answer } else { answer + "\n" }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &[&str]) -> Result<Args, clap::Error> {
        let command = Args::augment_subcommands(Command::new("msgfs"));
        Args::from_arg_matches(&command.try_get_matches_from(line)?)
    }

    #[test]
    fn a_kind_with_commands_is_a_command() {
        let args = parse(&["msgfs", "ssot", "resume", "T1", "--store", "a"]).unwrap();
        assert_eq!((args.kind, args.options.store.as_deref()), (Kind::Ssot, Some("a")));
        assert_eq!(args.options.words, ["resume", "T1"]);
        assert!(parse(&["msgfs", "ssot"]).unwrap().options.words.is_empty());
        assert!(parse(&["msgfs", "samp", "x"]).is_err(), "SAMP has none");
        assert!(Args::has_subcommand("ssot") && !Args::has_subcommand("samp"));
    }

    #[test]
    fn commands_are_known_by_their_first_word() {
        assert!(has_command(Kind::Ssot, "resume") && !has_command(Kind::Ssot, "TASK"));
        assert!(format_commands(Kind::Ssot).starts_with("  resume TASK  lift "));
        assert_eq!(sanitize_answer("a\u{1b}\nb\n\n"), "a\u{241b}\nb\n");
        assert_eq!(sanitize_answer(""), "");
    }
}
