//! `msgfs hook`: a bell for coding agents.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use clap::Subcommand;
use clap::builder::PossibleValuesParser;
use msgfs::config::{self, Env};
use msgfs::fuse::mountpoint::shell_word;
use msgfs::hook::harness::ALL;
use msgfs::hook::install::plugin::EnabledPlugin;
use msgfs::hook::install::{self, Outcome, Report, Standing, What, Wish};
use msgfs::hook::{self, Call, Event, Harness, Session, Sessions};
use msgfs::mailbox::Options;
use msgfs::model::{one_line, shown_path};
use msgfs::store::fs::make_dirs;
use msgfs::store::place::write_atomic;

use super::failure::Failure;
use super::machine::Problem;
use super::{Global, output};

const NO_PROGRAM: &str = "  The plugin calls msgfs, which is not on the PATH here.\n";
/// What stands for every harness that is found.
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
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Write the hooks
    ///
    /// Keeps everything that a file has already, and keeps a copy of the file beside it. If msgfs does not understand a
    /// file, it leaves the file alone and ends with exit code 1.
    Install(Install),
    /// Remove the hooks
    ///
    /// A file that nobody has changed since then gets back the bytes that it had.
    Uninstall(Choice),
    /// Show the hooks that are installed
    Status,
    /// Write the plugin for Claude Code into a folder
    ///
    /// It has the same hooks and instructions as `msgfs hook install` and `msgfs init --integrate` write. To install it:
    /// claude plugin marketplace add FOLDER; claude plugin install msgfs@msgfs
    Plugin {
        /// The folder, which is made if it is missing
        folder: PathBuf,
    },
    /// Tell that there is mail (the hooks call this)
    ///
    /// Reads the event of the harness from standard input. Prints a text that the harness understands, or nothing. Exit code 10 means
    /// that --wait found mail. In every other case, also after a failure, the exit code is 0.
    Run(Run),
}

#[derive(Debug, clap::Args)]
struct Install {
    #[command(flatten)]
    choice: Choice,
    /// Also tell in the middle of a turn. This starts one process for each call of a tool
    #[arg(long)]
    mid_turn: bool,
}

/// Which harnesses, and whether anything is written.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Choice {
    /// The harness. "auto" means each harness whose folder or program is on this machine
    #[arg(long = "for", value_name = "NAME", default_value = AUTO, value_parser = names())]
    harness: String,
    /// Write nothing; print the changes as a diff
    #[arg(long)]
    dry_run: bool,
}

#[derive(Debug, clap::Args)]
struct Run {
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

impl Choice {
    pub(crate) fn is_dry(&self) -> bool {
        self.dry_run
    }

    pub(crate) fn is_named(&self) -> bool {
        self.harness != AUTO
    }

    fn harnesses(&self, env: &Env) -> Vec<&'static Harness> {
        if self.harness == AUTO {
            return install::found(env);
        }
        Harness::named(&self.harness).into_iter().collect()
    }
}

/// Runs a hook and ends the process, if the command line says so. Before everything else: whatever is
/// wrong with the rest of it, a hook says nothing and ends with 0.
pub(crate) fn attend(args: impl Iterator<Item = OsString>) {
    let args: Vec<String> = args.map(|arg| arg.to_string_lossy().into_owned()).collect();
    let Some(rest) = of_run(&args) else { return };
    if rest.iter().any(|arg| arg == "--help" || arg == "-h") {
        return;
    }
    match call(&args, rest) {
        Ok(call) => hook::run(&call),
        Err(why) => hook::refuse(&why),
    }
}

/// What is behind `hook run`, if that is the command. Before it there may be options.
fn of_run(args: &[String]) -> Option<&[String]> {
    let (at, command) = words(args).next()?;
    let after = args.get(at + 1..)?;
    let (next, action) = words(after).next()?;
    (command == "hook" && action == "run").then(|| after.get(next + 1..))?
}

/// The words that are no options and no values of the two that go with every command.
fn words(args: &[String]) -> impl Iterator<Item = (usize, &str)> {
    let is_value = |at: usize| {
        let before = at.checked_sub(1).and_then(|before| args.get(before));
        before.is_some_and(|before| VALUED.contains(&before.as_str()))
    };
    let words =
        args.iter().enumerate().filter(move |(at, arg)| !arg.starts_with('-') && !is_value(*at));
    words.map(|(at, arg)| (at, arg.as_str()))
}

/// So many characters of a word that is not known are noted.
const SHOWN: usize = 64;
/// Options of every command that have a value.
const VALUED: [&str; 2] = ["--me", "--config"];

/// What is asked for; why not, if anything of it is not known.
fn call(args: &[String], rest: &[String]) -> Result<Call, String> {
    let shown = |arg: &str| arg.chars().take(SHOWN).collect::<String>();
    let unknown = |what: &str, arg: &str| format!("the {what} {:?} is not known", shown(arg));
    let (mut event, mut harness, mut wait) = (None, None, false);
    let mut options = Options { read_only: true, ..Options::default() };
    let before = args.len() - rest.len();
    let mut all = args.iter().enumerate();
    while let Some((at, arg)) = all.next() {
        let (name, given) = arg.split_once('=').map_or((arg.as_str(), None), |(n, v)| (n, Some(v)));
        let mut value = || {
            let value = given.map(str::to_owned).or_else(|| all.next().map(|(_, v)| v.clone()));
            value.ok_or_else(|| format!("{name} has no value"))
        };
        match name {
            "--me" => options.me = Some(config::alias(&value()?)?),
            "--config" => options.config = Some(value()?.into()),
            // The command itself.
            _ if at < before && !arg.starts_with('-') => {}
            "--for" if at >= before => {
                let name = value()?;
                harness = Some(Harness::named(&name).ok_or_else(|| unknown("harness", &name))?);
            }
            "--wait" if at >= before && given.is_none() => wait = true,
            _ if arg.starts_with('-') => return Err(unknown("option", arg)),
            _ if event.is_none() => {
                event = Some(Event::named(arg).ok_or_else(|| unknown("event", arg))?);
            }
            _ => return Err(format!("{:?} is one word too many", shown(arg))),
        }
    }
    let event = event.ok_or("no event is named")?;
    let harness = harness.ok_or("no harness is named: --for is missing")?;
    Ok(Call { event, harness, wait, options })
}

pub(crate) fn run(_: &Global, args: &Args) -> Result<(), Failure> {
    match &args.action {
        Action::Install(Install { choice, mid_turn }) => {
            change(choice, What::Hooks, *mid_turn, false)
        }
        Action::Uninstall(choice) => change(choice, What::Hooks, false, true),
        Action::Status => status(),
        Action::Plugin { folder } => plugin(folder),
        // It was run before the command line was looked at.
        Action::Run(_) => Ok(()),
    }
}

/// Writes or removes something, for each harness that is meant, and says what became of it.
pub(crate) fn change(
    choice: &Choice,
    what: What,
    mid_turn: bool,
    remove: bool,
) -> Result<(), Failure> {
    let env = Env::from_process();
    let harnesses = choice.harnesses(&env);
    if harnesses.is_empty() {
        output::say("no harness is found here; name one with --for");
        return Ok(());
    }
    let installs = what == What::Hooks && !remove;
    let called = std::env::args_os().next().unwrap_or_default();
    let program = match install::program(&env, Path::new(&called)) {
        Ok(program) => program,
        Err(why) if installs => return Err(Failure::refused(why)),
        // It is written into hooks only.
        Err(_) => String::new(),
    };
    let wish = Wish { program, mid_turn, dry_run: choice.dry_run };
    let (mut text, mut refused) = (String::new(), false);
    for harness in harnesses {
        if !remove && let Some(plugin) = install::plugin::enabled(&env, harness) {
            text += &left_to(&env, harness, what, &plugin);
            continue;
        }
        let done = if remove { install::take } else { install::put };
        let report = done(&env, harness, what, &wish);
        refused |= match report.outcome {
            Outcome::Refused(..) => true,
            Outcome::Nowhere(_) => choice.is_named(),
            _ => false,
        };
        text += &told(&env, harness, &report, choice.dry_run);
        let stands = matches!(report.outcome, Outcome::Written | Outcome::Unchanged);
        if installs && !choice.dry_run && stands {
            text += &advice(harness);
        }
        if installs {
            text += &silence(&env, harness);
        }
        if what == What::Hooks && remove && !choice.dry_run {
            let line = ended(hook::end_all(&env, harness), "is");
            text.extend(line.lines().flat_map(|line| ["  ", line, "\n"]));
        }
    }
    output::data(&text)?;
    if refused { Err(Failure::Said) } else { Ok(()) }
}

/// Tells that a harness is left to its plugin.
fn left_to(env: &Env, harness: &'static Harness, what: What, plugin: &EnabledPlugin) -> String {
    let EnabledPlugin { id, file, finds_program } = plugin;
    let Harness { name, title, .. } = harness;
    let file = env.display_home(file);
    let mut text = format!("{name}: left alone, because {title} has the plugin {id} ({file})\n");
    text += &doubled(env, harness, what);
    text += if *finds_program { "" } else { NO_PROGRAM };
    text
}

/// Tells what is installed for a harness beside its plugin.
fn doubled(env: &Env, harness: &'static Harness, what: What) -> String {
    let (file, standing) = install::standing(env, harness, what);
    if !matches!(standing, Standing::Installed | Standing::Older | Standing::Gone(_)) {
        return String::new();
    }
    let (file, name) = (env.display_home(&file), harness.name);
    let (things, command) = match what {
        What::Hooks => ("hooks", "hook uninstall"),
        What::Instructions => ("instructions", "init --integrate --uninstall"),
    };
    format!("  There are also {things} in {file}; remove them with: msgfs {command} --for {name}\n")
}

/// Writes the plugin into a folder.
fn plugin(folder: &Path) -> Result<(), Failure> {
    // Claude Code may take a path that begins with a name for a repository.
    let folder = &std::path::absolute(folder).map_err(|e| Failure::io(shown_path(folder), &e))?;
    for (name, text) in install::plugin::files() {
        let file = folder.join(name);
        let written = file.parent().map_or(Ok(()), |above| make_dirs(above, 0o755));
        let written = written.and_then(|()| write_atomic(&file, text.as_bytes(), 0o644));
        written.map_err(|e| Failure::io(format!("cannot write {}", shown_path(&file)), &e))?;
    }
    output::data(&format!(
        "written: {}\nTo install it: claude plugin marketplace add {}; claude plugin install msgfs@msgfs\n",
        shown_path(folder),
        shell_word(folder.as_os_str())
    ))
}

/// The report of what was taken out of the files of all harnesses.
pub(crate) struct RemovalReport {
    pub(crate) text: String,
    /// A file was left alone although something of ours may be in it.
    pub(crate) is_refused: bool,
}

/// Takes hooks and standing instructions out of the files of all harnesses, and ends the processes that wait for mail.
pub(crate) fn take_all(env: &Env, dry_run: bool) -> RemovalReport {
    let wish = Wish { program: String::new(), mid_turn: false, dry_run };
    let mut out = RemovalReport { text: String::new(), is_refused: false };
    for harness in &ALL {
        for what in [What::Hooks, What::Instructions] {
            let report = Report { diff: None, ..install::take(env, harness, what, &wish) };
            if matches!(report.outcome, Outcome::Unchanged | Outcome::Nowhere(_)) {
                continue;
            }
            out.is_refused |= matches!(report.outcome, Outcome::Refused(..));
            out.text += &told(env, harness, &report, dry_run);
        }
    }
    if dry_run {
        let places = Sessions::places(env);
        let waiting = places.iter().flat_map(Sessions::all).filter(Session::is_waited_for);
        out.text += &ended(waiting.count(), "would be");
    } else {
        out.text += &ended(ALL.iter().map(|harness| hook::end_all(env, harness)).sum(), "is");
    }
    out
}

/// Tells how many waiters of a harness were ended.
fn ended(count: usize, is: &str) -> String {
    let are = if is == "is" { "are" } else { is };
    match count {
        0 => String::new(),
        1 => format!("One process that waited for mail {is} ended.\n"),
        n => format!("{n} processes that waited for mail {are} ended.\n"),
    }
}

/// One line for a file, with what would change, or what a person can add.
fn told(env: &Env, harness: &Harness, report: &Report, dry: bool) -> String {
    let (file, name) = (env.display_home(&report.file), harness.name);
    let mut text = report.diff.clone().unwrap_or_default();
    if !text.is_empty() && !text.ends_with('\n') {
        text.push('\n');
    }
    let would = if dry { "would be " } else { "" };
    // Writing to a String cannot fail.
    let _ = match &report.outcome {
        Outcome::Written => writeln!(text, "{name}: {file}: {would}written"),
        Outcome::Unchanged => writeln!(text, "{name}: {file}: unchanged"),
        Outcome::Removed => writeln!(text, "{name}: {file}: {would}removed"),
        Outcome::Nowhere(why) => writeln!(text, "{name}: {file}: left out ({why})"),
        Outcome::Refused(why, add) if add.is_empty() => {
            writeln!(text, "{name}: {file}: refused ({why})")
        }
        Outcome::Refused(why, add) => {
            let add = add.trim_end();
            writeln!(text, "{name}: {file}: refused ({why}); to be added by hand:\n{add}")
        }
    };
    if let Some(note) = &report.note {
        let _ = writeln!(text, "  {note}");
    }
    text
}

/// Why nothing will ring in a harness, if that is so.
fn silence(env: &Env, harness: &Harness) -> String {
    let off = install::switched_off(env, harness);
    let line = |(file, setting): &(PathBuf, String)| {
        format!("  It runs no hooks of ours: {setting} in {}.\n", env.display_home(file))
    };
    off.iter().map(line).collect()
}

/// What to know when the hooks of a harness are installed.
fn advice(harness: &Harness) -> String {
    let Harness { title, can, trust, .. } = harness;
    format!("  {title} {can}.\n  Before its hooks run: {trust}.\n  To test: {}.\n", test(harness))
}

fn test(harness: &Harness) -> &'static str {
    if harness.wakes.is_some() {
        "end a turn, and let somebody run `msgfs send` to you: the session goes on"
    } else {
        "let somebody run `msgfs send` to you, then type a prompt or end a turn: the next answer tells of the mail"
    }
}

fn status() -> Result<(), Failure> {
    let env = Env::from_process();
    let found = install::found(&env);
    let mut text = String::new();
    for harness in &ALL {
        let here = found.iter().any(|of| of.name == harness.name);
        let (file, standing) = install::standing(&env, harness, What::Hooks);
        let (told, told_by) = install::standing(&env, harness, What::Instructions);
        if let Some(plugin) = install::plugin::enabled(&env, harness) {
            let EnabledPlugin { id, file, finds_program } = plugin;
            let file = env.display_home(&file);
            let _ = writeln!(
                text,
                "{}: here; hooks and instructions: by the plugin {id} ({file})",
                harness.name
            );
            text += &doubled(&env, harness, What::Hooks);
            text += &doubled(&env, harness, What::Instructions);
            text += if finds_program { "" } else { NO_PROGRAM };
            text += &silence(&env, harness);
            let nameless = hook::nameless(&env, harness);
            text += &nameless.map_or(String::new(), |why| format!("  Here it is silent: {why}.\n"));
            continue;
        }
        let _ = writeln!(
            text,
            "{}: {}; hooks: {} ({}); instructions: {} ({})",
            harness.name,
            if here { "here" } else { "not found" },
            words_for(&standing),
            env.display_home(&file),
            words_for(&told_by),
            env.display_home(&told),
        );
        text += &silence(&env, harness);
        if matches!(standing, Standing::Installed | Standing::Older | Standing::Gone(_)) {
            let nameless = hook::nameless(&env, harness);
            text += &nameless.map_or(String::new(), |why| format!("  Here it is silent: {why}.\n"));
        }
        for what in [What::Hooks, What::Instructions] {
            let problem = problem(&env, harness, what).and_then(|problem| problem.command);
            text += &problem.map_or(String::new(), |command| format!("  To renew: {command}\n"));
        }
    }
    if hook::is_off(&env) {
        let _ = writeln!(text, "MSGFS_HOOK=off is set here, so no hook tells of mail");
    }
    text += &Sessions::of(&env).map_or(String::new(), |sessions| kept(&env, &sessions));
    output::data(&text)
}

/// Lists the sessions that are known, and why they heard nothing.
fn kept(env: &Env, sessions: &Sessions) -> String {
    let all = sessions.all();
    let waiting = all.iter().filter(|session| session.is_waited_for()).count();
    let deaf = all.iter().filter(|session| session.is_deaf()).count();
    let deaf = if deaf == 0 { String::new() } else { format!(", {deaf} whose waiter is gone") };
    let dir = env.display_home(sessions.dir());
    let mut text = format!("sessions: {} ({waiting} with a waiter{deaf}), {dir}\n", all.len());
    for reason in sessions.reasons() {
        let _ = writeln!(text, "last silence for a reason: {reason}");
    }
    text
}

fn words_for(standing: &Standing) -> String {
    match standing {
        Standing::Installed => "installed".to_owned(),
        Standing::Older => "installed by an older msgfs".to_owned(),
        Standing::Gone(program) => {
            format!("installed, but {} is gone", one_line(&program.to_string_lossy()))
        }
        Standing::Missing => "not installed".to_owned(),
        Standing::Unclear => "not understood".to_owned(),
        Standing::Nowhere(why) => why.clone(),
    }
}

/// Returns the fault of what is installed for a harness.
fn problem(env: &Env, harness: &'static Harness, what: What) -> Option<Problem> {
    let (file, standing) = install::standing(env, harness, what);
    let (file, Harness { name, title, .. }) = (env.display_home(&file), harness);
    let (things, command) = match what {
        What::Hooks => ("hooks", format!("msgfs hook install --for {name}")),
        What::Instructions => {
            ("standing instructions", format!("msgfs init --integrate --for {name}"))
        }
    };
    let again = if what == What::Hooks && harness.trusts_again {
        "; it runs the new ones after they were trusted again"
    } else {
        ""
    };
    let problem = match standing {
        Standing::Older => Problem::warning(format!(
            "the {things} of {title} in {file} are of an older msgfs{again}"
        )),
        Standing::Gone(program) => {
            let program = one_line(&program.to_string_lossy()).into_owned();
            Problem::error(format!(
                "the {things} of {title} in {file} call {program}, which is gone{again}"
            ))
        }
        _ => return None,
    };
    Some(problem.mend(command))
}

/// Returns the faults of what is installed for the harnesses.
pub(crate) fn problems() -> Vec<Problem> {
    let env = Env::from_process();
    let both = [What::Hooks, What::Instructions];
    let of = |harness| both.into_iter().filter_map(|what| problem(&env, harness, what)).collect();
    ALL.iter().flat_map(|harness| -> Vec<Problem> { of(harness) }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(line: &str) -> Vec<String> {
        line.split(' ').map(str::to_owned).collect()
    }

    /// What a command line that is a hook asks for.
    #[track_caller]
    fn parsed(line: &str) -> Result<Call, String> {
        let args = args(line);
        call(&args, of_run(&args).unwrap())
    }

    #[test]
    fn a_hook_is_recognised_and_the_rest_is_left_to_others() {
        for other in ["hook", "hook install", "ls hook run", "--me hook run x", "hook status run"] {
            assert!(of_run(&args(other)).is_none(), "{other}");
        }
        let call = parsed("hook run stop --for claude-code --wait").unwrap();
        assert_eq!((call.event, call.harness.name, call.wait), (Event::Stop, "claude-code", true));
        let call = parsed("--me bob --config=/c hook run --for=codex prompt").unwrap();
        assert_eq!((call.event, call.harness.name), (Event::Prompt, "codex"));
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
