//! The installer: it writes hooks and standing instructions into the files of other programs, and takes them out again.
//!
//! It leaves a file alone that it does not understand. Before a change it keeps a copy aside, writes the new text
//! beside the file and renames it. It does not touch the rest of the file. Taking out is undoing: the bytes are those
//! from before, as long as nobody else has changed the file.

mod harness_file;
mod json_hooks;
pub mod plugin;
mod switch;
mod text_block;

use std::path::{Path, PathBuf};

use similar::TextDiff;

use super::harness::{ALL, Harness, HookLayout, InstructionsPlace};
use crate::config::Env;
use crate::model::display_path;
use crate::store::probe;
use harness_file::HarnessFile;
use json_hooks::HookSpec;
pub use switch::find_off_switches;

/// The text for a model, in lines for a block or a file.
const TEXT: &str = include_str!("instructions.md");
/// The first line of a file that is all ours.
const TITLE: &str = "# Mail from other agents (msgfs)\n";
/// The beginning of the first line of our plugin. Older plugins have another number after it.
const PLUGIN: &str = "// msgfs-hook ";
/// The line of the plugin that names the msgfs program.
const PROGRAM: &str = "const PROGRAM = \"msgfs\"\n";
/// The beginning of that line.
const PROGRAM_IS: &str = "const PROGRAM = ";

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

/// The reason why the hooks cannot call this msgfs, in a sentence.
#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    /// A program that disappears as soon as something is built or cleaned up.
    #[error(
        "{} may be gone soon, because it is in a {}; install msgfs first ({}), and run this again",
        display_path(.0),
        .1.what,
        .1.install
    )]
    Temporary(PathBuf, &'static TemporaryPlace),
    /// No absolute path that can be written into a command.
    #[error(
        "msgfs is not on the PATH, and it was not called by an absolute path whose last part is msgfs"
    )]
    NoAbsolutePath,
}

/// Returns the command that calls msgfs from a shell: the path of the first one on the PATH, symlinks kept; else the
/// path of this process.
///
/// # Errors
/// [`ProgramError`].
pub fn locate_program(env: &Env, called: &Path) -> Result<String, ProgramError> {
    let called = || {
        let has_folder = called.components().count() > 1;
        if has_folder { env.make_absolute(called) } else { called.into() }
    };
    let path = find_on_path(env, "msgfs").unwrap_or_else(called);
    if let Some(place) = find_temporary_place(&path) {
        return Err(ProgramError::Temporary(path, place));
    }
    let text = path.to_str().filter(|text| !text.contains(char::is_control));
    let text = text.filter(|_| path.is_absolute() && path.ends_with("msgfs"));
    text.map(str::to_owned).ok_or(ProgramError::NoAbsolutePath)
}

/// A kind of place in which no program stays.
#[derive(Debug)]
pub struct TemporaryPlace {
    what: &'static str,
    /// The command that puts the same program where it stays.
    install: &'static str,
}

const BUILD: TemporaryPlace = TemporaryPlace {
    what: "folder of a build",
    install: "cargo install --locked --path ., in its source",
};
const NPX: TemporaryPlace = TemporaryPlace {
    what: "cache of npx",
    install: "npm install --global, with the packages that npx was given",
};
const UVX: TemporaryPlace = TemporaryPlace {
    what: "cache of uvx",
    install: "uv tool install, with the wheel that uvx was given",
};

/// Returns the kind of place a program is in, if it does not stay there.
fn find_temporary_place(path: &Path) -> Option<&'static TemporaryPlace> {
    let mut parts = path.components().filter_map(|part| part.as_os_str().to_str());
    parts.find_map(|part| match part {
        "target" => Some(&BUILD),
        "_npx" => Some(&NPX),
        part if part.starts_with("archive-v") || part.starts_with("environments-v") => Some(&UVX),
        _ => None,
    })
}

/// Returns the first program of this name on the PATH.
fn find_on_path(env: &Env, program: &str) -> Option<PathBuf> {
    let folders = env.var("PATH").map(std::env::split_paths).into_iter().flatten();
    // A relative path depends on the current folder.
    let mut files =
        folders.filter(|folder| folder.is_absolute()).map(|folder| folder.join(program));
    files.find(|file| is_executable(file))
}

fn is_executable(file: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::metadata(file).is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
}

/// Returns the folder of a harness.
fn harness_folder(env: &Env, harness: &Harness) -> Option<PathBuf> {
    let moved = harness.folder.variable.and_then(|variable| env.folder_var(variable));
    let moved = moved.map(|folder| folder.join(harness.folder.below));
    moved.or_else(|| Some(env.home()?.join(harness.folder.home)))
}

/// Returns the harnesses on this machine, recognised by a folder or a program.
pub fn find_harnesses(env: &Env) -> Vec<&'static Harness> {
    let there = |harness: &&Harness| {
        harness_folder(env, harness).is_some_and(|folder| folder.is_dir())
            || harness.programs.iter().any(|program| find_on_path(env, program).is_some())
    };
    ALL.iter().filter(there).collect()
}

/// One file and the content intended for it.
struct InstallTarget<'a> {
    path: PathBuf,
    content: InstallContent<'a>,
}

#[derive(Clone)]
enum InstallContent<'a> {
    /// Hooks among those of others.
    Shared(HookSpec<'a>),
    /// A file of hooks that is all ours.
    Own(HookSpec<'a>),
    /// A text that is all ours, recognised by its beginning.
    Whole { text: String, begin: String },
    /// A block.
    Block,
    /// No content here, because another program's file holds hooks.
    Elsewhere(PathBuf, HookSpec<'a>),
}

/// A file that gets nothing here, and the reason.
struct MissingTarget {
    file: PathBuf,
    why: String,
    /// True if the reason holds in every folder.
    in_every_folder: bool,
}

impl MissingTarget {
    fn into_report(self) -> InstallReport {
        let Self { file, why, in_every_folder } = self;
        let outcome = if in_every_folder {
            InstallOutcome::Refused(why, String::new())
        } else {
            InstallOutcome::NoPlace(why)
        };
        InstallReport { file, outcome, diff: None, note: None }
    }
}

impl<'a> InstallTarget<'a> {
    fn resolve_target(
        env: &Env,
        harness: &'static Harness,
        what: InstallPart,
        wish: &'a InstallOptions,
    ) -> Result<Self, MissingTarget> {
        let file = match what {
            InstallPart::Hooks => harness.file,
            InstallPart::Instructions => harness.instructions.default_file(),
        };
        let nowhere = |why| MissingTarget { file: file.into(), why, in_every_folder: false };
        let folder = harness_folder(env, harness).ok_or_else(|| MissingTarget {
            in_every_folder: true,
            ..nowhere("HOME is not set".to_owned())
        })?;
        match what {
            InstallPart::Hooks => Ok(Self::target_hooks(&folder, harness, wish)),
            InstallPart::Instructions => {
                Self::target_instructions(env, &folder, harness).map_err(nowhere)
            }
        }
    }

    fn target_hooks(folder: &Path, harness: &'static Harness, wish: &'a InstallOptions) -> Self {
        let wanted =
            |entries| HookSpec { entries, program: &wish.program, mid_turn: wish.mid_turn };
        let content = match &harness.hooks {
            HookLayout::Shared(entries) => match entries.toml_file.map(|name| folder.join(name)) {
                Some(toml) if may_hold_hooks(&toml) => {
                    InstallContent::Elsewhere(toml, wanted(entries))
                }
                _ => InstallContent::Shared(wanted(entries)),
            },
            HookLayout::Own(entries) => InstallContent::Own(wanted(entries)),
            HookLayout::Plugin(source) => {
                let program = serde_json::Value::from(wish.program.as_str());
                let text = source.replacen(PROGRAM, &format!("const PROGRAM = {program}\n"), 1);
                InstallContent::Whole { text, begin: PLUGIN.to_owned() }
            }
        };
        Self { path: folder.join(harness.file), content }
    }

    fn target_instructions(env: &Env, folder: &Path, harness: &Harness) -> Result<Self, String> {
        let whole = |head: &str| InstallContent::Whole {
            text: format!("{head}{TITLE}\n{TEXT}"),
            begin: format!("{head}{TITLE}"),
        };
        Ok(match harness.instructions {
            InstructionsPlace::Own(name, head) => {
                Self { path: folder.join(name), content: whole(head) }
            }
            InstructionsPlace::Project(name, head) => {
                if let Some(Err(e)) = env.cwd().map(probe::require_response) {
                    return Err(format!("its rules are in the project's folder, and {e}"));
                }
                let is_home = |here: &Path| env.home().is_some_and(|home| home == here);
                let here = match env.cwd() {
                    Some(here) if is_home(here) => Err("the home folder"),
                    Some(here) if here.parent().is_some() => Ok(here),
                    _ => Err("this folder"),
                };
                let why = |none| {
                    format!(
                        "its rules belong to a project, and {none} is not a project; run this in \
                         the project's folder"
                    )
                };
                Self { path: here.map_err(why)?.join(name), content: whole(head) }
            }
            InstructionsPlace::Block(names) => {
                let used = |path: &PathBuf| std::fs::metadata(path).is_ok_and(|m| m.len() > 0);
                let mut paths = names.iter().map(|name| folder.join(name));
                let last = names.last().map(|name| folder.join(name));
                let path = paths.find(used).or(last).ok_or("it has no such file")?;
                Self { path, content: InstallContent::Block }
            }
        })
    }

    /// Returns the target, and the other files of a harness that may have the same block.
    fn with_other_files(self, harness: &Harness) -> impl Iterator<Item = Self> {
        let names = match (&self.content, harness.instructions) {
            (InstallContent::Block, InstructionsPlace::Block(names)) => names,
            _ => &[],
        };
        let paths = names.iter().map(|name| self.path.with_file_name(name));
        let others: Vec<PathBuf> = paths.filter(|path| *path != self.path).collect();
        let other = |path| Self { path, content: InstallContent::Block };
        std::iter::once(self).chain(others.into_iter().map(other))
    }
}

/// Returns true if a TOML file has hooks in it, or cannot be understood.
fn may_hold_hooks(file: &Path) -> bool {
    let text = match std::fs::read_to_string(file) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return false,
        Err(_) => return true,
        Ok(text) => text,
    };
    let Ok(table) = text.parse::<toml::Table>() else { return true };
    match table.get("hooks") {
        None => false,
        Some(toml::Value::Table(hooks)) => hooks.keys().any(|key| key != "state"),
        Some(_) => true,
    }
}

impl InstallContent<'_> {
    /// Returns the text of a new file.
    fn render_new_file(&self) -> Result<String, String> {
        match self {
            Self::Shared(wanted) | Self::Own(wanted) => Ok(wanted.render_new_file()),
            Self::Whole { text, .. } => Ok(text.clone()),
            Self::Block => text_block::insert_block("", TEXT),
            Self::Elsewhere(file, _) => Err(format!(
                "{} already holds hooks, and hooks in both files are not supported",
                display_path(file)
            )),
        }
    }

    /// Returns the command by which an installed text calls msgfs.
    fn find_program_in(&self, text: &str) -> Option<String> {
        match self {
            Self::Shared(wanted) | Self::Own(wanted) | Self::Elsewhere(_, wanted) => {
                wanted.find_program_in(text)
            }
            Self::Whole { .. } => {
                let said = text.lines().find_map(|line| line.strip_prefix(PROGRAM_IS))?;
                serde_json::from_str(said).ok()
            }
            Self::Block => None,
        }
    }

    /// Returns the text that a person can add where we do not.
    fn render_manual_addition(&self) -> String {
        match self {
            Self::Elsewhere(_, wanted) => wanted.render_toml(),
            _ => self.render_new_file().unwrap_or_default(),
        }
    }

    /// Returns a text with ours in it.
    fn insert_into(&self, text: &str) -> Result<String, String> {
        match self {
            Self::Shared(wanted) => wanted.insert_hooks(text),
            Self::Own(wanted) => match wanted.has_own_and_other(text)? {
                (_, true) => Err("it also holds hooks that msgfs did not write".to_owned()),
                _ => wanted.renew_file(text),
            },
            Self::Whole { text: ours, begin } if text.starts_with(begin) => Ok(ours.clone()),
            Self::Whole { .. } => Err("msgfs did not write it: it begins differently".to_owned()),
            Self::Block => text_block::insert_block(text, TEXT),
            Self::Elsewhere(..) => self.render_new_file(),
        }
    }

    /// Returns the text of a first installation into a text, or into no file.
    fn install_into(&self, text: Option<&str>) -> Result<String, String> {
        text.map_or_else(|| self.render_new_file(), |text| self.insert_into(text))
    }

    /// Returns all texts that install can have made of it: without the hook for tools, with it, and with it later.
    fn list_possible_installs(&self, text: Option<&str>) -> impl Iterator<Item = String> {
        let [plain, tool] = [false, true].map(|mid_turn| match self.clone() {
            Self::Shared(wanted) => Self::Shared(HookSpec { mid_turn, ..wanted }),
            Self::Own(wanted) => Self::Own(HookSpec { mid_turn, ..wanted }),
            Self::Elsewhere(file, wanted) => Self::Elsewhere(file, HookSpec { mid_turn, ..wanted }),
            other => other,
        });
        let first = plain.install_into(text).ok();
        let later = first.as_deref().and_then(|first| tool.insert_into(first).ok());
        [first, tool.install_into(text).ok(), later].into_iter().flatten()
    }

    /// Returns true if a text is exactly what install writes into a new file.
    fn is_fresh_install(&self, text: &str) -> bool {
        self.list_possible_installs(None).any(|made| made == text)
    }

    /// Returns true if a text holds hooks of ours and nothing else.
    fn has_only_own_hooks(&self, text: &str) -> Result<bool, String> {
        Ok(match self {
            Self::Shared(wanted) | Self::Own(wanted) | Self::Elsewhere(_, wanted) => {
                wanted.has_own_and_other(text)? == (true, false)
            }
            _ => false,
        })
    }

    /// Returns true if all of a text is ours, now or in an older form.
    fn is_all_ours(&self, text: &str) -> bool {
        self.is_fresh_install(text) || self.has_only_own_hooks(text) == Ok(true)
    }

    /// Returns true if a backup is from before install.
    fn is_from_before(&self, kept: &str) -> bool {
        self.is_installed_in(kept) == Ok(false)
    }

    /// Returns true if a text has something of ours.
    fn is_installed_in(&self, text: &str) -> Result<bool, String> {
        match self {
            Self::Shared(wanted) | Self::Own(wanted) | Self::Elsewhere(_, wanted) => {
                Ok(wanted.has_own_and_other(text)?.0)
            }
            Self::Whole { begin, .. } => Ok(text.starts_with(begin)),
            Self::Block => text_block::has_block(text),
        }
    }

    /// Returns true if a text, which may not be understood, can have something of ours.
    fn may_be_installed_in(&self, text: &str) -> bool {
        match self {
            Self::Shared(_) | Self::Own(_) | Self::Elsewhere(..) => text.contains(" hook run "),
            Self::Whole { .. } | Self::Block => true,
        }
    }

    /// Returns a text without ours; `None` if the file goes with it.
    fn remove_from(&self, text: &str) -> Result<Option<String>, String> {
        Ok(match self {
            Self::Shared(wanted) | Self::Own(wanted) | Self::Elsewhere(_, wanted) => {
                Some(wanted.remove_hooks(text)?)
            }
            Self::Block => Some(text_block::remove_block(text)?),
            Self::Whole { .. } => None,
        })
    }

    /// Returns the text from before, if it was kept; else the text without ours. `None` removes the file.
    fn undo_install(&self, text: &str, kept: &[String]) -> Result<Option<String>, String> {
        let is_before = |kept: &&String| {
            self.is_from_before(kept)
                && self.list_possible_installs(Some(kept)).any(|with| with == text)
        };
        if let Some(before) = kept.iter().find(is_before) {
            return Ok(Some(before.clone()));
        }
        // Only install writes such a text.
        if self.is_fresh_install(text)
            || (self.has_only_own_hooks(text)?
                && !kept.iter().any(|kept| self.is_from_before(kept)))
        {
            return Ok(None);
        }
        self.remove_from(text)
    }
}

/// Puts ours into the file of a harness.
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

/// Takes ours out of the file of a harness, and out of every other file that may have it from before. The other files
/// are reported only if there was something to do.
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
