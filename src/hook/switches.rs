//! By which of its settings a harness runs none of our hooks.

/// Where a harness reads a setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SettingsPlace {
    /// In its folder.
    Own,
    /// In the project's folder.
    Project,
    /// On this machine, for everybody.
    Machine,
}

/// When a setting keeps a harness from running our hooks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OffCondition {
    /// If it says this.
    Equals(bool),
    /// If it lists the name of our hooks.
    Lists(&'static str),
}

/// Settings by which a harness runs none of our hooks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HookSwitch {
    /// The files in which it looks, as JSON or TOML.
    pub files: &'static [(SettingsPlace, &'static str)],
    /// Where the setting is in them.
    pub path: &'static [&'static str],
    /// What it says then.
    pub off_condition: OffCondition,
}

/// Where Codex reads its settings, and an admin's requirements.
const CODEX_FILES: &[(SettingsPlace, &str)] = &[
    (SettingsPlace::Own, "config.toml"),
    (SettingsPlace::Project, ".codex/config.toml"),
    (SettingsPlace::Machine, "/etc/codex/requirements.toml"),
];
/// Where Gemini CLI reads its settings.
const GEMINI_FILES: &[(SettingsPlace, &str)] = &[
    (SettingsPlace::Own, "settings.json"),
    (SettingsPlace::Project, ".gemini/settings.json"),
    (SettingsPlace::Machine, "/etc/gemini-cli/settings.json"),
];

/// Where Claude Code reads its settings; a later one counts more.
pub(super) const CLAUDE_FILES: &[(SettingsPlace, &str)] = &[
    (SettingsPlace::Own, "settings.json"),
    (SettingsPlace::Project, ".claude/settings.json"),
    (SettingsPlace::Project, ".claude/settings.local.json"),
    (SettingsPlace::Machine, "/etc/claude-code/managed-settings.json"),
];

/// Those of Claude Code.
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

/// Those of Codex CLI.
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

/// Those of Gemini CLI.
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

/// Those of Copilot CLI.
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
