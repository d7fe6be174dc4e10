//! `msgfs hook status`: the hooks and instructions that are installed, and what is wrong with them.

use std::fmt::Write as _;

use msgfs::config::{Config, Env};
use msgfs::fuse::mountpoint::shell_word;
use msgfs::hook::harness::ALL;
use msgfs::hook::install::plugin::EnabledPlugin;
use msgfs::hook::install::{self, InstallPart, InstallStatus};
use msgfs::hook::{self, Harness, SessionDir};
use msgfs::model::sanitize_line;
use msgfs::store::probe;

use super::super::failure::Failure;
use super::super::machine::DoctorProblem;
use super::super::{GlobalOptions, output};
use super::explain_silence;

/// The line about a plugin that finds no program.
pub(super) const NO_PROGRAM: &str = "  The plugin calls msgfs, which is not on the PATH here.\n";

/// Prints the state of every harness.
pub(super) fn print_status(options: &GlobalOptions) -> Result<(), Failure> {
    let env = Env::from_process();
    let found = install::find_harnesses(&env);
    let mut text = String::new();
    for harness in &ALL {
        let here = found.iter().any(|of| of.name == harness.name);
        let (file, status) = install::read_install_status(&env, harness, InstallPart::Hooks);
        let (told, told_by) =
            install::read_install_status(&env, harness, InstallPart::Instructions);
        if let Some(plugin) = install::plugin::find_enabled_plugin(&env, harness) {
            let problem = find_plugin_problem(&env, harness).and_then(|problem| problem.command);
            let EnabledPlugin { id, file, finds_program, .. } = plugin;
            let file = env.display_home(&file);
            let _ = writeln!(
                text,
                "{}: here; hooks and instructions: by the plugin {id} ({file})",
                harness.name
            );
            text += &describe_duplicates(&env, harness, InstallPart::Hooks);
            text += &describe_duplicates(&env, harness, InstallPart::Instructions);
            text += if finds_program { "" } else { NO_PROGRAM };
            text += &problem.map_or(String::new(), |command| format!("  To renew: {command}\n"));
            text += &explain_silence(&env, harness);
            let nameless = hook::explain_missing_name(&env, harness);
            text += &nameless.map_or(String::new(), |why| format!("  Here it is silent: {why}.\n"));
            continue;
        }
        let _ = writeln!(
            text,
            "{}: {}; hooks: {} ({}); instructions: {} ({})",
            harness.name,
            if here { "here" } else { "not found" },
            describe_install_status(&status),
            env.display_home(&file),
            describe_install_status(&told_by),
            env.display_home(&told),
        );
        text += &explain_silence(&env, harness);
        if matches!(
            status,
            InstallStatus::Installed | InstallStatus::Outdated | InstallStatus::ProgramMissing(_)
        ) {
            let nameless = hook::explain_missing_name(&env, harness);
            text += &nameless.map_or(String::new(), |why| format!("  Here it is silent: {why}.\n"));
        }
        for what in [InstallPart::Hooks, InstallPart::Instructions] {
            let problem = find_problem(&env, harness, what).and_then(|problem| problem.command);
            text += &problem.map_or(String::new(), |command| format!("  To renew: {command}\n"));
        }
    }
    let volume = match Config::load(options.config.as_deref(), &env) {
        Ok(config) => hook::describe_volume(&config),
        Err(why) => format!("no mail rings, because the configuration is wrong: {why}"),
    };
    let _ = writeln!(text, "{volume}");
    if hook::is_bell_off(&env) {
        let _ = writeln!(text, "MSGFS_HOOK=off is set here, so no hook tells of mail");
    }
    text += &SessionDir::locate_dir(&env)
        .map_or(String::new(), |sessions| format_sessions(&env, &sessions));
    output::print_data(&text)
}

/// Returns the lines about known sessions, and the reasons why they heard nothing.
fn format_sessions(env: &Env, sessions: &SessionDir) -> String {
    let all = sessions.list_sessions();
    let waiting = all.iter().filter(|session| session.has_running_waiter()).count();
    let deaf = all.iter().filter(|session| session.has_lost_waiter()).count();
    let deaf = if deaf == 0 { String::new() } else { format!(", {deaf} whose waiter is gone") };
    let dir = env.display_home(sessions.dir());
    let mut text = format!("sessions: {} ({waiting} with a waiter{deaf}), {dir}\n", all.len());
    for reason in sessions.read_last_reasons() {
        let _ = writeln!(text, "last silence for a reason: {reason}");
    }
    text
}

fn describe_install_status(status: &InstallStatus) -> String {
    match status {
        InstallStatus::Installed => "installed".to_owned(),
        InstallStatus::Outdated => "installed by an older msgfs".to_owned(),
        InstallStatus::ProgramMissing(program) => {
            format!("installed, but {} is gone", sanitize_line(&program.to_string_lossy()))
        }
        InstallStatus::Missing => "not installed".to_owned(),
        InstallStatus::Unreadable => "not understood".to_owned(),
        InstallStatus::NoPlace(why) => why.clone(),
    }
}

/// Returns the problem of a part that is installed for a harness.
fn find_problem(env: &Env, harness: &'static Harness, what: InstallPart) -> Option<DoctorProblem> {
    let (file, status) = install::read_install_status(env, harness, what);
    let (file, Harness { name, title, .. }) = (env.display_home(&file), harness);
    let (things, command) = match what {
        InstallPart::Hooks => ("hooks", format!("msgfs hook install --for {name}")),
        InstallPart::Instructions => {
            ("standing instructions", format!("msgfs init --integrate --for {name}"))
        }
    };
    let again = if what == InstallPart::Hooks && harness.must_trust_again {
        "; it runs the new ones after they were trusted again"
    } else {
        ""
    };
    let problem = match status {
        InstallStatus::Outdated => DoctorProblem::warning(format!(
            "the {things} of {title} in {file} are of an older msgfs{again}"
        )),
        InstallStatus::ProgramMissing(program) => {
            let program = sanitize_line(&program.to_string_lossy()).into_owned();
            DoctorProblem::error(format!(
                "the {things} of {title} in {file} call {program}, which is gone{again}"
            ))
        }
        _ => return None,
    };
    Some(problem.with_remedy(command))
}

/// Returns the problem of the plugin that a harness uses.
fn find_plugin_problem(env: &Env, harness: &Harness) -> Option<DoctorProblem> {
    let plugin = install::plugin::find_enabled_plugin(env, harness)?;
    let folder = plugin.outdated_folder?;
    let shown = env.display_home(&folder);
    let problem = DoctorProblem::warning(format!(
        "the plugin {} of {} in {shown} is of an older msgfs",
        plugin.id, harness.title
    ));
    Some(problem.with_remedy(format!("msgfs hook plugin {}", shell_word(folder.as_os_str()))))
}

/// Returns the problems of the parts that are installed for all harnesses.
pub(crate) fn find_problems() -> Vec<DoctorProblem> {
    let env = Env::from_process();
    let both = [InstallPart::Hooks, InstallPart::Instructions];
    // The settings of a project can name a plugin, too.
    let reads_project = env.cwd().is_none_or(|cwd| probe::require_response(cwd).is_ok());
    let of = |harness| {
        let parts = both.into_iter().filter_map(|what| find_problem(&env, harness, what));
        let plugin = reads_project.then(|| find_plugin_problem(&env, harness)).flatten();
        parts.chain(plugin).collect()
    };
    ALL.iter().flat_map(|harness| -> Vec<DoctorProblem> { of(harness) }).collect()
}

/// Returns the text about parts that are installed beside a harness's plugin.
pub(super) fn describe_duplicates(
    env: &Env,
    harness: &'static Harness,
    what: InstallPart,
) -> String {
    let (file, status) = install::read_install_status(env, harness, what);
    if !matches!(
        status,
        InstallStatus::Installed | InstallStatus::Outdated | InstallStatus::ProgramMissing(_)
    ) {
        return String::new();
    }
    let (file, name) = (env.display_home(&file), harness.name);
    let (things, command) = match what {
        InstallPart::Hooks => ("hooks", "hook uninstall"),
        InstallPart::Instructions => ("instructions", "init --integrate --uninstall"),
    };
    format!("  There are also {things} in {file}; remove them with: msgfs {command} --for {name}\n")
}
