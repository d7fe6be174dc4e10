//! The files of a harness that get hooks or instructions, and what each of them gets.

use std::path::{Path, PathBuf};

use super::content::{InstallContent, PLUGIN, PROGRAM, TEXT, TITLE};
use super::json_hooks::HookSpec;
use super::{InstallOptions, InstallOutcome, InstallPart, InstallReport};
use crate::config::Env;
use crate::hook::harness::{Harness, HookLayout, InstructionsPlace};
use crate::store::probe;

/// One file and the content intended for it.
pub(super) struct InstallTarget<'a> {
    pub(super) path: PathBuf,
    pub(super) content: InstallContent<'a>,
}

/// A file that gets nothing here, and the reason.
pub(super) struct MissingTarget {
    pub(super) file: PathBuf,
    pub(super) why: String,
    /// True if the reason holds in every folder.
    in_every_folder: bool,
}

impl MissingTarget {
    /// Returns the report that nothing was installed, with the reason.
    pub(super) fn into_report(self) -> InstallReport {
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
    /// Finds the file of a harness that gets a part of the installation, and the content intended for it.
    pub(super) fn resolve_target(
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
    pub(super) fn with_other_files(self, harness: &Harness) -> impl Iterator<Item = Self> {
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

/// Returns the folder of a harness.
pub(super) fn harness_folder(env: &Env, harness: &Harness) -> Option<PathBuf> {
    let moved = harness.folder.variable.and_then(|variable| env.folder_var(variable));
    let moved = moved.map(|folder| folder.join(harness.folder.below));
    moved.or_else(|| Some(env.home()?.join(harness.folder.home)))
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
