//! The installer: it writes hooks and standing instructions into the files of other programs, and takes them out again.
//!
//! It leaves a file alone that it does not understand. Before a change it keeps a copy aside, writes the new text
//! beside the file and renames it. It does not touch the rest of the file. Taking out is undoing: the bytes are those
//! from before, as long as nobody else has changed the file.

mod content;
mod harness_file;
mod json_hooks;
pub mod plugin;
mod program;
mod switch;
mod target;
mod text_block;

use std::path::{Path, PathBuf};

use similar::TextDiff;

use super::harness::{ALL, Harness};
use crate::config::Env;
use content::InstallContent;
use harness_file::HarnessFile;
pub use program::{ProgramError, locate_program};
use program::{find_on_path, is_executable};
pub use switch::find_off_switches;
use target::{InstallTarget, MissingTarget, harness_folder};

/// A part of the installation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InstallPart {
    /// Hooks.
    Hooks,
    /// Standing instructions.
    Instructions,
}

/// The options of an installation.
#[derive(Clone, Debug)]
pub struct InstallOptions {
    /// The command that calls msgfs: its name, or a path.
    pub program: String,
    /// True to add a hook for tools.
    pub mid_turn: bool,
    /// True to write nothing and report the changes.
    pub dry_run: bool,
}

/// The outcome for a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InstallOutcome {
    /// A file that was written.
    Written,
    /// A file that is as it should be.
    Unchanged,
    /// A file that was removed.
    Removed,
    /// A file that is left alone: the reason, and the text that a person can add.
    Refused(String, String),
    /// No place for the file here, for this reason.
    NoPlace(String),
}

/// A file and its outcome.
#[derive(Clone, Debug)]
pub struct InstallReport {
    /// Path of the file.
    pub file: PathBuf,
    /// The outcome.
    pub outcome: InstallOutcome,
    /// The changes of a dry run, as a unified diff.
    pub diff: Option<String>,
    /// A remark for a person.
    pub note: Option<String>,
}

/// The state of an installed file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InstallStatus {
    /// The text that would be written now.
    Installed,
    /// A text that an older msgfs has written.
    Outdated,
    /// Hooks that call a msgfs that is not there any more.
    ProgramMissing(PathBuf),
    /// Nothing of ours.
    Missing,
    /// A file that is not understood.
    Unreadable,
    /// No place for the file here, for this reason.
    NoPlace(String),
}

/// Returns the harnesses on this machine, recognised by a folder or a program.
pub fn find_harnesses(env: &Env) -> Vec<&'static Harness> {
    let there = |harness: &&Harness| {
        harness_folder(env, harness).is_some_and(|folder| folder.is_dir())
            || harness.programs.iter().any(|program| find_on_path(env, program).is_some())
    };
    ALL.iter().filter(there).collect()
}

/// Puts our content into the file of a harness.
pub fn install_part(
    env: &Env,
    harness: &'static Harness,
    what: InstallPart,
    wish: &InstallOptions,
) -> InstallReport {
    match InstallTarget::resolve_target(env, harness, what, wish) {
        Ok(target) => apply_change(env, harness, what, wish, &target, false, &|_, content, old| {
            content.install_into(old).map(Some)
        }),
        Err(missing) => missing.into_report(),
    }
}

/// Takes our content out of the file of a harness, and out of every other file that an earlier installation may have
/// changed. The other files are reported only if there was something to do.
pub fn uninstall_part(
    env: &Env,
    harness: &'static Harness,
    what: InstallPart,
    wish: &InstallOptions,
) -> Vec<InstallReport> {
    // Uninstalling removes the text that was written then.
    let wish = &read_written_options(env, harness, what, wish);
    let target = match InstallTarget::resolve_target(env, harness, what, wish) {
        Ok(target) => target,
        Err(missing) => return vec![missing.into_report()],
    };
    let change =
        |kept: &dyn Fn() -> Vec<String>, content: &InstallContent<'_>, old: Option<&str>| {
            let Some(old) = old else { return Ok(None) };
            // An unknown text is no obstacle if nothing of ours can be in it.
            if !(content.may_be_installed_in(old) && content.is_installed_in(old)?) {
                return Ok(Some(old.to_owned()));
            }
            content.undo_install(old, &kept())
        };
    let chosen = target.path.clone();
    let targets = target.with_other_files(harness);
    let reports =
        targets.map(|target| apply_change(env, harness, what, wish, &target, true, &change));
    reports
        .filter(|report| report.file == chosen || report.outcome != InstallOutcome::Unchanged)
        .collect()
}

/// A function that makes the new text from the backups, the intended content and the old text.
type ContentChange<'a> = &'a dyn Fn(
    &dyn Fn() -> Vec<String>,
    &InstallContent<'_>,
    Option<&str>,
) -> Result<Option<String>, String>;

fn apply_change(
    env: &Env,
    harness: &'static Harness,
    what: InstallPart,
    wish: &InstallOptions,
    target: &InstallTarget<'_>,
    removes: bool,
    change: ContentChange<'_>,
) -> InstallReport {
    let file = target.path.clone();
    let refused = |why| {
        InstallOutcome::Refused(
            why,
            if removes { String::new() } else { target.content.render_manual_addition() },
        )
    };
    let config = match HarnessFile::read(target.path.clone()) {
        Ok(config) => config,
        Err(why) => return InstallReport { file, outcome: refused(why), diff: None, note: None },
    };
    let old = config.text.as_deref();
    let new = match change(&|| config.read_backups(), &target.content, old) {
        Ok(new) => new,
        Err(why) => return InstallReport { file, outcome: refused(why), diff: None, note: None },
    };
    if new.as_deref() == old {
        return InstallReport { file, outcome: InstallOutcome::Unchanged, diff: None, note: None };
    }
    let done = if new.is_some() { InstallOutcome::Written } else { InstallOutcome::Removed };
    let instead = harness
        .replaced_instructions
        .filter(|_| what == InstallPart::Instructions && old.is_none());
    let instead =
        instead.and_then(|name| Some(env.home()?.join(name))).filter(|path| path.exists());
    let note = instead.map(|path| {
        let (path, title) = (env.display_home(&path), harness.title);
        format!("{title} 1 read {path} until now; from now on it reads this file instead")
    });
    if wish.dry_run {
        let diff = Some(render_diff(&file, old, new.as_deref()));
        return InstallReport { file, outcome: done, diff, note };
    }
    // A text that was all ours needs no backup.
    let keep = !old.is_some_and(|old| target.content.is_all_ours(old));
    let written = match &new {
        Some(new) => config.write(new, keep),
        None => config.remove(keep),
    };
    let outcome = written.map_or_else(refused, |()| done);
    InstallReport { file, outcome, diff: None, note }
}

/// Returns the options with which a file was written, as far as the file shows them.
fn read_written_options(
    env: &Env,
    harness: &'static Harness,
    what: InstallPart,
    wish: &InstallOptions,
) -> InstallOptions {
    let said = InstallTarget::resolve_target(env, harness, what, wish).ok().and_then(|target| {
        target.content.find_program_in(&HarnessFile::read(target.path.clone()).ok()?.text?)
    });
    InstallOptions { program: said.unwrap_or_else(|| wish.program.clone()), ..wish.clone() }
}

/// Returns a unified diff.
fn render_diff(file: &Path, old: Option<&str>, new: Option<&str>) -> String {
    let name = |text: Option<&str>| match text {
        Some(_) => file.to_string_lossy().into_owned(),
        None => "/dev/null".to_owned(),
    };
    let diff = TextDiff::from_lines(old.unwrap_or_default(), new.unwrap_or_default());
    diff.unified_diff().header(&name(old), &name(new)).to_string()
}

/// Returns the backups of all the harnesses' files.
pub fn list_all_backups(env: &Env) -> Vec<PathBuf> {
    let wish = InstallOptions { program: String::new(), mid_turn: false, dry_run: true };
    let all = ALL
        .iter()
        .flat_map(|harness| [(harness, InstallPart::Hooks), (harness, InstallPart::Instructions)]);
    let targets = all.filter_map(|(harness, what)| {
        let target = InstallTarget::resolve_target(env, harness, what, &wish).ok()?;
        Some(target.with_other_files(harness))
    });
    targets.flatten().flat_map(|target| harness_file::list_backups(&target.path)).collect()
}

/// Returns the path and the state of a harness's file.
pub fn read_install_status(
    env: &Env,
    harness: &'static Harness,
    what: InstallPart,
) -> (PathBuf, InstallStatus) {
    let wish = InstallOptions { program: String::new(), mid_turn: false, dry_run: true };
    let wish = read_written_options(env, harness, what, &wish);
    let target = match InstallTarget::resolve_target(env, harness, what, &wish) {
        Ok(target) => target,
        Err(MissingTarget { file, why, .. }) => return (file, InstallStatus::NoPlace(why)),
    };
    let Ok(config) = HarnessFile::read(target.path.clone()) else {
        return (target.path, InstallStatus::Unreadable);
    };
    let Some(text) = &config.text else { return (target.path, InstallStatus::Missing) };
    let program = Path::new(&wish.program);
    let standing = match (target.content.is_installed_in(text), target.content.insert_into(text)) {
        (Ok(true), _) if program.is_absolute() && !is_executable(program) => {
            InstallStatus::ProgramMissing(program.to_owned())
        }
        // Older versions called msgfs by its name.
        (Ok(true), _) if what == InstallPart::Hooks && !program.is_absolute() => {
            InstallStatus::Outdated
        }
        (Ok(true), Ok(new)) if new == *text => InstallStatus::Installed,
        (Ok(true), _) => InstallStatus::Outdated,
        (Ok(false), _) => InstallStatus::Missing,
        (Err(_), _) => InstallStatus::Unreadable,
    };
    (target.path, standing)
}
