//! The plugin of a harness. Its files have the same hooks and the same text that are installed otherwise. It also finds
//! a plugin in use, so that nothing is installed beside it.

use std::io;
use std::path::{Path, PathBuf};

use super::super::harness::{Harness, HookLayout, PluginSettings};
use super::super::switches::SettingsPlace;
use super::content::{TEXT, TITLE};
use super::json_hooks::HookSpec;
use super::{find_on_path, harness_folder, switch};
use crate::config::Env;
use crate::store::fs::read_small_file;

/// The name of the plugin, and of the marketplace that its folder is.
const NAME: &str = "msgfs";
/// The beginning of its id, from any marketplace.
const ID: &str = "msgfs@";
/// The id of a plugin in the folder for skills, which needs no setting, and that folder.
const AMONG_SKILLS: (&str, &str) = ("msgfs@skills-dir", "skills/msgfs");
const MANIFEST: &str = ".claude-plugin/plugin.json";
/// The file in which the harness notes the folders of its marketplaces, and the member that has a folder.
const MARKETPLACES: (&str, &str) = ("plugins/known_marketplaces.json", "installLocation");

const DESCRIPTION: &str =
    "Mail between agents: tells that there is some, and how to read, answer and send it";
const AUTHOR: &str = "The msgfs developers";
const SKILL: &str = "---
name: msgfs
description: Read, answer and send mail between agents with msgfs. Use it when mail, an inbox or another agent is the subject, or when a line of the msgfs hook says that there is mail.
---
";
const README: &str = "# msgfs: mail between agents

This plugin tells Claude Code that there is mail from other agents, and wakes an idle session when some arrives: one line, once,
never the text of a message. A skill tells how to read, answer and send mail. It is loaded when mail is the subject.

It needs the program `msgfs` on the PATH. `msgfs hook status` says whether it works, and `msgfs hook install` does the
same for other coding agents.
";

/// A plugin that a harness uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EnabledPlugin {
    /// Its name and that of its marketplace.
    pub id: String,
    /// The file that enables it.
    pub file: PathBuf,
    /// True if its hooks find the program that they call.
    pub finds_program: bool,
    /// The folder in which an older msgfs has written it.
    pub outdated_folder: Option<PathBuf>,
}

/// Returns the files of the plugin for Claude Code, by their paths in its folder.
pub fn render_plugin_files() -> Vec<(&'static str, String)> {
    let harness = Harness::from_name("claude-code");
    let hooks = harness.and_then(|harness| match &harness.hooks {
        // The plugin cannot know where msgfs is.
        HookLayout::Shared(entries) => {
            Some(HookSpec { entries, program: NAME, mid_turn: false }.render_new_file())
        }
        _ => None,
    });
    let (version, license) = (env!("CARGO_PKG_VERSION"), env!("CARGO_PKG_LICENSE"));
    let manifest = format!(
        "{{\n  \"name\": \"{NAME}\",\n  \"version\": \"{version}\",\n  \"description\": \"{DESCRIPTION}\",\n  \
         \"author\": {{ \"name\": \"{AUTHOR}\" }},\n  \"license\": \"{license}\"\n}}\n"
    );
    let marketplace = format!(
        "{{\n  \"name\": \"{NAME}\",\n  \"description\": \"{DESCRIPTION}\",\n  \"owner\": {{ \"name\": \"{AUTHOR}\" }},\n  \
         \"plugins\": [{{ \"name\": \"{NAME}\", \"source\": \"./\", \"description\": \"{DESCRIPTION}\" }}]\n}}\n"
    );
    vec![
        (MANIFEST, manifest),
        (".claude-plugin/marketplace.json", marketplace),
        ("README.md", README.to_owned()),
        ("hooks/hooks.json", hooks.unwrap_or_default()),
        ("skills/msgfs/SKILL.md", format!("{SKILL}{TITLE}\n{TEXT}")),
    ]
}

/// Returns the first file of a folder that is in the place of one of ours and that msgfs did not write. If the manifest
/// there has our name, an older msgfs wrote the files.
pub fn find_foreign_file(folder: &Path) -> Option<PathBuf> {
    let manifest = switch::read_settings(&folder.join(MANIFEST));
    if manifest.is_some_and(|manifest| manifest.get("name").is_some_and(|name| name == NAME)) {
        return None;
    }
    let foreign = |(name, text): (&str, String)| {
        let file = folder.join(name);
        let place = std::fs::symlink_metadata(&file);
        let is_free = place.is_err_and(|e| e.kind() == io::ErrorKind::NotFound);
        // A file that cannot be read may be anybody's.
        let is_ours =
            || read_small_file(&file, switch::LARGEST).is_ok_and(|found| found == text.as_bytes());
        (!is_free && !is_ours()).then_some(file)
    };
    render_plugin_files().into_iter().find_map(foreign)
}

/// Returns the plugin of ours that a harness uses here.
pub fn find_enabled_plugin(env: &Env, harness: &Harness) -> Option<EnabledPlugin> {
    let PluginSettings { files, member } = harness.plugins?;
    let own = harness_folder(env, harness)?;
    let among_skills = own.join(AMONG_SKILLS.1).join(MANIFEST);
    let mut said: Vec<(String, PathBuf, bool)> = Vec::new();
    if among_skills.is_file() {
        said.push((AMONG_SKILLS.0.to_owned(), among_skills, true));
    }
    for (place, name) in files {
        let Some(path) = settings_path(env, &own, *place, name) else { continue };
        let Some(settings) = switch::read_settings(&path) else { continue };
        let plugins = settings.get(member).and_then(|plugins| plugins.as_object());
        for (id, value) in plugins.into_iter().flatten().filter(|(id, _)| id.starts_with(ID)) {
            let is_on = !matches!(value, serde_json::Value::Bool(false) | serde_json::Value::Null);
            match said.iter_mut().find(|(of, ..)| of == id) {
                // The later file counts. A plugin in the folder for skills needs no setting.
                Some((_, file, was_on)) => {
                    if !(is_on && *was_on) {
                        file.clone_from(&path);
                    }
                    *was_on = is_on;
                }
                // A plugin that was taken out of that folder may still have its setting.
                None if *id != AMONG_SKILLS.0 => said.push((id.clone(), path.clone(), is_on)),
                None => {}
            }
        }
    }
    let (id, file, _) = said.into_iter().find(|(.., is_on)| *is_on)?;
    let outdated_folder = find_plugin_folder(&own, &id).filter(|folder| is_outdated(folder));
    Some(EnabledPlugin {
        id,
        file,
        finds_program: find_on_path(env, NAME).is_some(),
        outdated_folder,
    })
}

/// Returns the folder from which a harness reads the plugin.
fn find_plugin_folder(own: &Path, id: &str) -> Option<PathBuf> {
    if id == AMONG_SKILLS.0 {
        return Some(own.join(AMONG_SKILLS.1));
    }
    let known = switch::read_settings(&own.join(MARKETPLACES.0))?;
    let folder = known.get(id.strip_prefix(ID)?)?.get(MARKETPLACES.1)?.as_str()?;
    Some(folder.into())
}

/// Returns true if a plugin in a folder is not as this msgfs writes it.
fn is_outdated(folder: &Path) -> bool {
    let differs = |(name, text): (&str, String)| {
        std::fs::read_to_string(folder.join(name)).is_ok_and(|found| found != text)
    };
    render_plugin_files().into_iter().any(differs)
}

/// Returns the path at which a harness reads a file.
pub(super) fn settings_path(
    env: &Env,
    own: &Path,
    place: SettingsPlace,
    name: &str,
) -> Option<PathBuf> {
    Some(match place {
        SettingsPlace::Own => own.join(name),
        SettingsPlace::Project => env.cwd()?.join(name),
        SettingsPlace::Machine => name.into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn its_files_are_what_a_harness_reads() {
        for (name, text) in render_plugin_files() {
            if Path::new(name).extension().is_some_and(|end| end == "json") {
                let value: serde_json::Value = serde_json::from_str(&text).unwrap();
                assert!(value.is_object(), "{name}");
            }
            assert!(!text.is_empty(), "{name}");
        }
    }

    #[test]
    fn the_skill_is_short_and_says_what_is_installed_otherwise() {
        let (_, skill) = render_plugin_files().pop().unwrap();
        assert!(skill.ends_with(TEXT));
        let (_, lines) = skill.split_once("---\n").unwrap().1.split_once("---\n").unwrap();
        assert!(lines.lines().count() <= 15, "{lines}");
    }
}
