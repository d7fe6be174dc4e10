//! `msgfs hook`: a bell for coding agents.

mod status;

use std::ffi::OsString;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use clap::Subcommand;
use clap::builder::PossibleValuesParser;
use msgfs::config::{self, Env};
use msgfs::fuse::mountpoint::shell_word;
use msgfs::hook::harness::ALL;
use msgfs::hook::install::plugin::EnabledPlugin;
use msgfs::hook::install::{self, InstallOptions, InstallOutcome, InstallPart, InstallReport};
use msgfs::hook::{self, Harness, HookCall, HookEvent, Session, SessionDir};
use msgfs::mailbox::MailboxOptions;
use msgfs::model::display_path;
use msgfs::store::atomic_file::write_atomic;
use msgfs::store::fs::make_dirs;

use super::failure::{Failure, refuse};
use super::{GlobalOptions, output};
pub(crate) use status::find_problems;
use status::{NO_PROGRAM, describe_duplicates, print_status};

/// The word for every harness that is found.
const AUTO: &str = "auto";

/// Tell coding agents when mail arrives
///
/// Writes hooks into the settings of a coding agent's program (its harness). The hooks call `msgfs hook run`. For each arrival
/// it prints one line: the number of unread messages, their senders and their place. A hook changes nothing, and no failure of a
/// hook stops the agent.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  msgfs hook install --dry-run\n  msgfs hook install --for claude-code\n  msgfs hook status"
)]
pub(crate) struct Args {
    #[command(subcommand)]
    action: HookAction,
}

#[derive(Debug, Subcommand)]
enum HookAction {
    /// Write the hooks
    ///
    /// Keeps everything that a file has already, and keeps a copy of the file beside it. If msgfs does not understand a
    /// file, it leaves the file alone and ends with exit code 1.
    Install(HookInstallArgs),
    /// Remove the hooks
    ///
    /// A file that nobody has changed since then gets back the bytes that it had.
    Uninstall(HarnessChoice),
    /// Show the hooks that are installed
    Status,
    /// Write the plugin for Claude Code into a folder
    ///
    /// It has the same hooks and instructions as `msgfs hook install` and `msgfs init --integrate` write. If a file
    /// there has one of the names and msgfs did not write it, nothing is written, and the exit code is 1. To install it:
    /// claude plugin marketplace add FOLDER; claude plugin install msgfs@msgfs
    Plugin {
        /// The folder, which is made if it is missing
        folder: PathBuf,
    },
    /// Tell that there is mail (the hooks call this)
    ///
    /// Reads the event of the harness from standard input. Prints a text that the harness understands, or nothing. Exit code 10 means
    /// that --wait found mail. In every other case, also after a failure, the exit code is 0.
    Run(HookRunArgs),
}

#[derive(Debug, clap::Args)]
struct HookInstallArgs {
    #[command(flatten)]
    choice: HarnessChoice,
    /// Also tell in the middle of a turn. This starts one process for each call of a tool
    #[arg(long)]
    mid_turn: bool,
}

/// The harnesses of a command, and whether it writes anything.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct HarnessChoice {
    /// The harness. "auto" means each harness whose folder or program is on this machine
    #[arg(long = "for", value_name = "NAME", default_value = AUTO, value_parser = names())]
    harness: String,
    /// Write nothing; print the changes as a diff
    #[arg(long)]
    dry_run: bool,
}

#[derive(Debug, clap::Args)]
struct HookRunArgs {
    /// The event: session-start, prompt, tool, stop, session-end
    #[arg(value_name = "EVENT")]
    event: String,
    /// The harness that calls
    #[arg(long = "for", value_name = "NAME")]
    harness: String,
    /// Wait until there is mail
    #[arg(long)]
    wait: bool,
}

fn names() -> PossibleValuesParser {
    PossibleValuesParser::new(ALL.iter().map(|harness| harness.name).chain([AUTO]))
}

impl HarnessChoice {
    pub(crate) fn is_dry_run(&self) -> bool {
        self.dry_run
    }

    pub(crate) fn is_harness_named(&self) -> bool {
        self.harness != AUTO
    }

    fn select_harnesses(&self, env: &Env) -> Vec<&'static Harness> {
        if self.harness == AUTO {
            return install::find_harnesses(env);
        }
        Harness::from_name(&self.harness).into_iter().collect()
    }
}

/// Runs a hook and ends the process, if the command line asks for it. It comes before everything else: a hook
/// reports no error and ends with 0, whatever is wrong with the rest.
pub(crate) fn intercept_hook_run(args: impl Iterator<Item = OsString>) {
    let args: Vec<String> = args.map(|arg| arg.to_string_lossy().into_owned()).collect();
    let Some(rest) = find_run_arguments(&args) else { return };
    if rest.iter().any(|arg| arg == "--help" || arg == "-h") {
        return;
    }
    match parse_call(&args, rest) {
        Ok(call) => hook::run(&call),
        Err(why) => hook::refuse_call(&why),
    }
}

/// Returns the words behind `hook run`, if that is the command. Options may stand before it.
fn find_run_arguments(args: &[String]) -> Option<&[String]> {
    let (at, command) = command_words(args).next()?;
    let after = args.get(at + 1..)?;
    let (next, action) = command_words(after).next()?;
    (command == "hook" && action == "run").then(|| after.get(next + 1..))?
}

/// Returns the words that are neither options nor values of the two options of every command.
fn command_words(args: &[String]) -> impl Iterator<Item = (usize, &str)> {
    let is_value = |at: usize| {
        let before = at.checked_sub(1).and_then(|before| args.get(before));
        before.is_some_and(|before| VALUED.contains(&before.as_str()))
    };
    let words =
        args.iter().enumerate().filter(move |(at, arg)| !arg.starts_with('-') && !is_value(*at));
    words.map(|(at, arg)| (at, arg.as_str()))
}

/// The most characters of an unknown word that are logged.
const SHOWN: usize = 64;
/// The options of every command that have a value.
const VALUED: [&str; 2] = ["--me", "--config"];

/// Returns the call that is asked for, or the reason why a word of it is not known.
fn parse_call(args: &[String], rest: &[String]) -> Result<HookCall, String> {
    let shown = |arg: &str| arg.chars().take(SHOWN).collect::<String>();
    let unknown = |what: &str, arg: &str| format!("the {what} {:?} is not known", shown(arg));
    let (mut event, mut harness, mut wait) = (None, None, false);
    let mut options = MailboxOptions { read_only: true, ..MailboxOptions::default() };
    let before = args.len() - rest.len();
    let mut all = args.iter().enumerate();
    while let Some((at, arg)) = all.next() {
        let (name, given) = arg.split_once('=').map_or((arg.as_str(), None), |(n, v)| (n, Some(v)));
        let mut value = || {
            let value = given.map(str::to_owned).or_else(|| all.next().map(|(_, v)| v.clone()));
            value.ok_or_else(|| format!("{name} has no value"))
        };
        match name {
            "--me" => options.me = Some(config::parse_alias(&value()?)?),
            "--config" => options.config = Some(value()?.into()),
            // This is the command itself.
            _ if at < before && !arg.starts_with('-') => {}
            "--for" if at >= before => {
                let name = value()?;
                harness = Some(Harness::from_name(&name).ok_or_else(|| unknown("harness", &name))?);
            }
            "--wait" if at >= before && given.is_none() => wait = true,
            _ if arg.starts_with('-') => return Err(unknown("option", arg)),
            _ if event.is_none() => {
                event = Some(HookEvent::from_name(arg).ok_or_else(|| unknown("event", arg))?);
            }
            _ => return Err(format!("{:?} is one word too many", shown(arg))),
        }
    }
    let event = event.ok_or("no event is named")?;
    let harness = harness.ok_or("no harness is named: --for is missing")?;
    Ok(HookCall { event, harness, wait, options })
}

/// Runs `msgfs hook`.
pub(crate) fn run(options: &GlobalOptions, args: &Args) -> Result<(), Failure> {
    match &args.action {
        HookAction::Install(HookInstallArgs { choice, mid_turn }) => {
            install_or_remove(choice, InstallPart::Hooks, *mid_turn, false)
        }
        HookAction::Uninstall(choice) => install_or_remove(choice, InstallPart::Hooks, false, true),
        HookAction::Status => print_status(options),
        HookAction::Plugin { folder } => write_plugin(folder),
        // It was run before the command line was parsed.
        HookAction::Run(_) => Ok(()),
    }
}

/// Installs or removes a part for each chosen harness, and prints the results.
pub(crate) fn install_or_remove(
    choice: &HarnessChoice,
    what: InstallPart,
    mid_turn: bool,
    remove: bool,
) -> Result<(), Failure> {
    let env = Env::from_process();
    let harnesses = choice.select_harnesses(&env);
    if harnesses.is_empty() {
        let names: Vec<&str> = ALL.iter().map(|harness| harness.name).collect();
        output::print_notice(&format!(
            "no program of a coding agent is found here (its folder or its command); name the one that you use \
             with --for: {}",
            names.join(", ")
        ));
        return Ok(());
    }
    let installs = what == InstallPart::Hooks && !remove;
    let called = std::env::args_os().next().unwrap_or_default();
    let program = match install::locate_program(&env, Path::new(&called)) {
        Ok(program) => program,
        Err(why) if installs => return Err(Failure::refused(why)),
        // The program is written into hooks only.
        Err(_) => String::new(),
    };
    let wish = InstallOptions { program, mid_turn, dry_run: choice.dry_run };
    let (mut text, mut refused) = (String::new(), false);
    for harness in harnesses {
        if !remove && let Some(plugin) = install::plugin::find_enabled_plugin(&env, harness) {
            text += &describe_plugin_use(&env, harness, what, &plugin);
            continue;
        }
        let reports = if remove {
            install::uninstall_part(&env, harness, what, &wish)
        } else {
            vec![install::install_part(&env, harness, what, &wish)]
        };
        for report in &reports {
            refused |= match report.outcome {
                InstallOutcome::Refused(..) => true,
                InstallOutcome::NoPlace(_) => choice.is_harness_named(),
                _ => false,
            };
            text += &format_report(&env, harness, report, choice.dry_run);
            let stands =
                matches!(report.outcome, InstallOutcome::Written | InstallOutcome::Unchanged);
            if installs && !choice.dry_run && stands {
                text += &format_advice(harness);
            }
        }
        if installs {
            text += &explain_silence(&env, harness);
        }
        if what == InstallPart::Hooks && remove && !choice.dry_run {
            let line = describe_ended_waiters(hook::end_waiters(&env, harness), "is");
            text.extend(line.lines().flat_map(|line| ["  ", line, "\n"]));
        }
    }
    output::print_data(&text)?;
    if refused { Err(Failure::AlreadyReported) } else { Ok(()) }
}

/// Returns the text for a harness that is left to its plugin.
fn describe_plugin_use(
    env: &Env,
    harness: &'static Harness,
    what: InstallPart,
    plugin: &EnabledPlugin,
) -> String {
    let EnabledPlugin { id, file, finds_program, .. } = plugin;
    let Harness { name, title, .. } = harness;
    let file = env.display_home(file);
    let mut text = format!("{name}: left alone, because {title} has the plugin {id} ({file})\n");
    text += &describe_duplicates(env, harness, what);
    text += if *finds_program { "" } else { NO_PROGRAM };
    text
}

/// Writes the plugin into a folder.
fn write_plugin(folder: &Path) -> Result<(), Failure> {
    // Claude Code may take a path that begins with a name for a repository.
    let folder =
        &std::path::absolute(folder).map_err(|e| Failure::from_io(display_path(folder), &e))?;
    if let Some(file) = install::plugin::find_foreign_file(folder) {
        refuse!(
            "nothing is written, because msgfs did not write {}; name another folder",
            display_path(&file)
        );
    }
    for (name, text) in install::plugin::render_plugin_files() {
        let file = folder.join(name);
        let written = file.parent().map_or(Ok(()), |above| make_dirs(above, 0o755));
        let written = written.and_then(|()| write_atomic(&file, text.as_bytes(), 0o644));
        written
            .map_err(|e| Failure::from_io(format!("cannot write {}", display_path(&file)), &e))?;
    }
    output::print_data(&format!(
        "written: {}\nTo install it: claude plugin marketplace add {}; claude plugin install msgfs@msgfs\n",
        display_path(folder),
        shell_word(folder.as_os_str())
    ))
}

/// A report of the parts that were removed from the files of all harnesses.
pub(crate) struct HookRemovalReport {
    pub(crate) text: String,
    /// A file was left alone although a part of ours may be in it.
    pub(crate) is_refused: bool,
}

/// Removes hooks and standing instructions from the files of all harnesses, and ends the processes that wait
/// for mail.
pub(crate) fn remove_from_harnesses(env: &Env, dry_run: bool) -> HookRemovalReport {
    let wish = InstallOptions { program: String::new(), mid_turn: false, dry_run };
    let mut out = HookRemovalReport { text: String::new(), is_refused: false };
    for harness in &ALL {
        let parts = [InstallPart::Hooks, InstallPart::Instructions];
        let reports =
            parts.into_iter().flat_map(|what| install::uninstall_part(env, harness, what, &wish));
        for report in reports {
            let report = InstallReport { diff: None, ..report };
            if matches!(report.outcome, InstallOutcome::Unchanged | InstallOutcome::NoPlace(_)) {
                continue;
            }
            out.is_refused |= matches!(report.outcome, InstallOutcome::Refused(..));
            out.text += &format_report(env, harness, &report, dry_run);
        }
    }
    if dry_run {
        let places = SessionDir::locate_all(env);
        let waiting =
            places.iter().flat_map(SessionDir::list_sessions).filter(Session::has_running_waiter);
        out.text += &describe_ended_waiters(waiting.count(), "would be");
    } else {
        out.text += &describe_ended_waiters(
            ALL.iter().map(|harness| hook::end_waiters(env, harness)).sum(),
            "is",
        );
    }
    out
}

/// Returns a line with the number of ended waiters.
fn describe_ended_waiters(count: usize, is: &str) -> String {
    let are = if is == "is" { "are" } else { is };
    match count {
        0 => String::new(),
        1 => format!("One process that waited for mail {is} ended.\n"),
        n => format!("{n} processes that waited for mail {are} ended.\n"),
    }
}

/// Returns one line for a file, with the diff or the text that a person can add.
fn format_report(env: &Env, harness: &Harness, report: &InstallReport, dry: bool) -> String {
    let (file, name) = (env.display_home(&report.file), harness.name);
    let mut text = report.diff.clone().unwrap_or_default();
    if !text.is_empty() && !text.ends_with('\n') {
        text.push('\n');
    }
    let would = if dry { "would be " } else { "" };
    // Writing to a String cannot fail.
    let _ = match &report.outcome {
        InstallOutcome::Written => writeln!(text, "{name}: {file}: {would}written"),
        InstallOutcome::Unchanged => writeln!(text, "{name}: {file}: unchanged"),
        InstallOutcome::Removed => writeln!(text, "{name}: {file}: {would}removed"),
        InstallOutcome::NoPlace(why) => writeln!(text, "{name}: {file}: left out ({why})"),
        InstallOutcome::Refused(why, add) if add.is_empty() => {
            writeln!(text, "{name}: {file}: refused ({why})")
        }
        InstallOutcome::Refused(why, add) => {
            let add = add.trim_end();
            writeln!(text, "{name}: {file}: refused ({why}); to be added by hand:\n{add}")
        }
    };
    if let Some(note) = &report.note {
        let _ = writeln!(text, "  {note}");
    }
    text
}

/// Returns the settings that keep a harness from running our hooks, one line each.
fn explain_silence(env: &Env, harness: &Harness) -> String {
    let off = install::find_off_switches(env, harness);
    let line = |(file, setting): &(PathBuf, String)| {
        format!("  It runs no hooks of ours: {setting} in {}.\n", env.display_home(file))
    };
    off.iter().map(line).collect()
}

/// Returns the advice for a harness with new hooks.
fn format_advice(harness: &Harness) -> String {
    let Harness { title, abilities: can, trust_steps: trust, .. } = harness;
    format!(
        "  {title} {can}.\n  Before its hooks run: {trust}.\n  To test: {}.\n",
        describe_test(harness)
    )
}

fn describe_test(harness: &Harness) -> &'static str {
    if harness.wake.is_some() {
        "end a turn, and let somebody run `msgfs send` to you: the session goes on"
    } else if harness.has_prompt_hook() {
        "let somebody run `msgfs send` to you, then type a prompt or end a turn: the next answer tells of the mail"
    } else {
        "let somebody run `msgfs send` to you, then end a turn: the next answer tells of the mail"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(line: &str) -> Vec<String> {
        line.split(' ').map(str::to_owned).collect()
    }

    /// Returns the call of a command line that is a hook.
    #[track_caller]
    fn parsed(line: &str) -> Result<HookCall, String> {
        let args = args(line);
        parse_call(&args, find_run_arguments(&args).unwrap())
    }

    #[test]
    fn a_hook_is_recognised_and_the_rest_is_left_to_others() {
        for other in ["hook", "hook install", "ls hook run", "--me hook run x", "hook status run"] {
            assert!(find_run_arguments(&args(other)).is_none(), "{other}");
        }
        let call = parsed("hook run stop --for claude-code --wait").unwrap();
        assert_eq!(
            (call.event, call.harness.name, call.wait),
            (HookEvent::Stop, "claude-code", true)
        );
        let call = parsed("--me bob --config=/c hook run --for=codex prompt").unwrap();
        assert_eq!((call.event, call.harness.name), (HookEvent::Prompt, "codex"));
        assert_eq!(call.options.me.as_deref(), Some("bob"));
        assert_eq!(call.options.config.as_deref(), Some(Path::new("/c")));
    }

    #[test]
    fn what_is_not_known_is_nothing() {
        for odd in [
            "hook run",
            "hook run stop",
            "hook run stop --for",
            "hook run stop --for nobody",
            "hook run wake --for codex",
            "hook run stop stop --for codex",
            "hook run stop --for codex --loud",
            "hook run stop --for codex --wait=1",
            "hook run --me a/b stop --for codex",
            "--zork hook run stop --for codex",
            "--for=codex hook run stop",
        ] {
            assert!(parsed(odd).is_err(), "{odd}");
        }
    }
}
