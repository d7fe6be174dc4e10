//! The content that msgfs puts into a file of another program: how it gets in, is recognised, and comes out.

use std::path::PathBuf;

use super::json_hooks::HookSpec;
use super::text_block;
use crate::model::display_path;

/// The text for a model, in lines for a block or a file.
pub(super) const TEXT: &str = include_str!("instructions.md");
/// The first line of a file that is all ours.
pub(super) const TITLE: &str = "# Mail from other agents (msgfs)\n";
/// The beginning of the first line of our plugin. Older plugins have another number after it.
pub(super) const PLUGIN: &str = "// msgfs-hook ";
/// The line of the plugin that names the msgfs program.
pub(super) const PROGRAM: &str = "const PROGRAM = \"msgfs\"\n";
/// The beginning of that line.
const PROGRAM_IS: &str = "const PROGRAM = ";

/// The content for one file.
#[derive(Clone)]
pub(super) enum InstallContent<'a> {
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
    pub(super) fn find_program_in(&self, text: &str) -> Option<String> {
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
    pub(super) fn render_manual_addition(&self) -> String {
        match self {
            Self::Elsewhere(_, wanted) => wanted.render_toml(),
            _ => self.render_new_file().unwrap_or_default(),
        }
    }

    /// Returns a text with our content in it.
    pub(super) fn insert_into(&self, text: &str) -> Result<String, String> {
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
    pub(super) fn install_into(&self, text: Option<&str>) -> Result<String, String> {
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
    pub(super) fn is_all_ours(&self, text: &str) -> bool {
        self.is_fresh_install(text) || self.has_only_own_hooks(text) == Ok(true)
    }

    /// Returns true if a backup is from before install.
    fn is_from_before(&self, kept: &str) -> bool {
        self.is_installed_in(kept) == Ok(false)
    }

    /// Returns true if a text has something of ours.
    pub(super) fn is_installed_in(&self, text: &str) -> Result<bool, String> {
        match self {
            Self::Shared(wanted) | Self::Own(wanted) | Self::Elsewhere(_, wanted) => {
                Ok(wanted.has_own_and_other(text)?.0)
            }
            Self::Whole { begin, .. } => Ok(text.starts_with(begin)),
            Self::Block => text_block::has_block(text),
        }
    }

    /// Returns true if a text, which may not be understood, can have something of ours.
    pub(super) fn may_be_installed_in(&self, text: &str) -> bool {
        match self {
            Self::Shared(_) | Self::Own(_) | Self::Elsewhere(..) => text.contains(" hook run "),
            Self::Whole { .. } | Self::Block => true,
        }
    }

    /// Returns a text without our content; `None` if the file must be removed.
    fn remove_from(&self, text: &str) -> Result<Option<String>, String> {
        Ok(match self {
            Self::Shared(wanted) | Self::Own(wanted) | Self::Elsewhere(_, wanted) => {
                Some(wanted.remove_hooks(text)?)
            }
            Self::Block => Some(text_block::remove_block(text)?),
            Self::Whole { .. } => None,
        })
    }

    /// Returns the text from before, if it was kept; else the text without our content. `None` removes the file.
    pub(super) fn undo_install(
        &self,
        text: &str,
        kept: &[String],
    ) -> Result<Option<String>, String> {
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
