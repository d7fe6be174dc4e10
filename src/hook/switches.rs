//! By which of its settings a harness runs none of our hooks.

/// Where a harness reads a setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In its folder.
    Own,
    /// In the project's folder.
    Project,
    /// On this machine, for everybody.
    Machine,
}

/// When a setting keeps a harness from running our hooks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Off {
    /// If it says this.
    Says(bool),
    /// If it lists the name of our hooks.
    Lists(&'static str),
}

/// Settings by which a harness runs none of our hooks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Switch {
    /// The files in which it looks, as JSON or TOML.
    pub files: &'static [(Place, &'static str)],
    /// Where the setting is in them.
    pub path: &'static [&'static str],
    /// What it says then.
    pub off: Off,
}

/// Where Codex reads its settings, and an admin's requirements.
const CODEX_FILES: &[(Place, &str)] = &[
    (Place::Own, "config.toml"),
    (Place::Project, ".codex/config.toml"),
    (Place::Machine, "/etc/codex/requirements.toml"),
];
/// Where Gemini CLI reads its settings.
const GEMINI_FILES: &[(Place, &str)] = &[
    (Place::Own, "settings.json"),
    (Place::Project, ".gemini/settings.json"),
    (Place::Machine, "/etc/gemini-cli/settings.json"),
];

/// Where Claude Code reads its settings; a later one counts more.
pub(super) const CLAUDE_FILES: &[(Place, &str)] = &[
    (Place::Own, "settings.json"),
    (Place::Project, ".claude/settings.json"),
    (Place::Project, ".claude/settings.local.json"),
    (Place::Machine, "/etc/claude-code/managed-settings.json"),
];

/// Those of Claude Code.
pub(super) const CLAUDE: &[Switch] = &[
    Switch { files: CLAUDE_FILES, path: &["disableAllHooks"], off: Off::Says(true) },
    Switch {
        files: &[(Place::Machine, "/etc/claude-code/managed-settings.json")],
        path: &["allowManagedHooksOnly"],
        off: Off::Says(true),
    },
];

/// Those of Codex CLI.
pub(super) const CODEX: &[Switch] = &[
    Switch { files: CODEX_FILES, path: &["features", "hooks"], off: Off::Says(false) },
    Switch { files: CODEX_FILES, path: &["features", "codex_hooks"], off: Off::Says(false) },
];

/// Those of Gemini CLI.
pub(super) const GEMINI: &[Switch] = &[
    Switch { files: GEMINI_FILES, path: &["hooksConfig", "enabled"], off: Off::Says(false) },
    Switch { files: GEMINI_FILES, path: &["hooksConfig", "disabled"], off: Off::Lists("msgfs") },
];

/// Those of Copilot CLI.
pub(super) const COPILOT: &[Switch] = &[Switch {
    files: &[
        (Place::Own, "settings.json"),
        (Place::Own, "config.json"),
        (Place::Project, ".github/copilot/settings.json"),
        (Place::Project, ".github/copilot/settings.local.json"),
    ],
    path: &["disableAllHooks"],
    off: Off::Says(true),
}];
