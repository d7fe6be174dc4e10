//! The settings by which a harness runs none of our hooks.

/// The place where a harness reads a setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SettingsPlace {
    /// The harness's own folder.
    Own,
    /// The project's folder.
    Project,
    /// A path on this machine, for everybody.
    Machine,
}

/// The value of a setting that keeps a harness from running our hooks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OffCondition {
    /// This value.
    Equals(bool),
    /// A list that holds the name of our hooks.
    Lists(&'static str),
}

/// A setting by which a harness runs none of our hooks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HookSwitch {
    /// The files that may hold it, as JSON or TOML.
    pub files: &'static [(SettingsPlace, &'static str)],
    /// The path of the setting in them.
    pub path: &'static [&'static str],
    /// The value that switches the hooks off.
    pub off_condition: OffCondition,
}

/// The files of Codex's settings, and of an admin's requirements.
const CODEX_FILES: &[(SettingsPlace, &str)] = &[
    (SettingsPlace::Own, "config.toml"),
    (SettingsPlace::Project, ".codex/config.toml"),
    (SettingsPlace::Machine, "/etc/codex/requirements.toml"),
];
/// The files of Gemini CLI's settings.
const GEMINI_FILES: &[(SettingsPlace, &str)] = &[
    (SettingsPlace::Own, "settings.json"),
    (SettingsPlace::Project, ".gemini/settings.json"),
    (SettingsPlace::Machine, "/etc/gemini-cli/settings.json"),
];

/// The files of Claude Code's settings, of which a later one counts more.
pub(super) const CLAUDE_FILES: &[(SettingsPlace, &str)] = &[
    (SettingsPlace::Own, "settings.json"),
    (SettingsPlace::Project, ".claude/settings.json"),
    (SettingsPlace::Project, ".claude/settings.local.json"),
    (SettingsPlace::Machine, "/etc/claude-code/managed-settings.json"),
];

/// The settings of Claude Code.
pub(super) const CLAUDE: &[HookSwitch] = &[
    HookSwitch {
        files: CLAUDE_FILES,
        path: &["disableAllHooks"],
        off_condition: OffCondition::Equals(true),
    },
    HookSwitch {
        files: &[(SettingsPlace::Machine, "/etc/claude-code/managed-settings.json")],
        path: &["allowManagedHooksOnly"],
        off_condition: OffCondition::Equals(true),
    },
];

/// The settings of Codex CLI.
pub(super) const CODEX: &[HookSwitch] = &[
    HookSwitch {
        files: CODEX_FILES,
        path: &["features", "hooks"],
        off_condition: OffCondition::Equals(false),
    },
    HookSwitch {
        files: CODEX_FILES,
        path: &["features", "codex_hooks"],
        off_condition: OffCondition::Equals(false),
    },
];

/// The settings of Gemini CLI.
pub(super) const GEMINI: &[HookSwitch] = &[
    HookSwitch {
        files: GEMINI_FILES,
        path: &["hooksConfig", "enabled"],
        off_condition: OffCondition::Equals(false),
    },
    HookSwitch {
        files: GEMINI_FILES,
        path: &["hooksConfig", "disabled"],
        off_condition: OffCondition::Lists("msgfs"),
    },
];

/// The settings of Copilot CLI.
pub(super) const COPILOT: &[HookSwitch] = &[HookSwitch {
    files: &[
        (SettingsPlace::Own, "settings.json"),
        (SettingsPlace::Own, "config.json"),
        (SettingsPlace::Project, ".github/copilot/settings.json"),
        (SettingsPlace::Project, ".github/copilot/settings.local.json"),
    ],
    path: &["disableAllHooks"],
    off_condition: OffCondition::Equals(true),
}];
