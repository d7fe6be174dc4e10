//! The harnesses, as data: the input of their hooks, the answers to this input, and the text written into their files.
//! docs/HARNESSES.md has the known facts about each, with their sources.

use super::switches::{self, HookSwitch, SettingsPlace};

/// An event in a session, by the same name for every harness.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HookEvent {
    /// The beginning or resumption of a session.
    SessionStart,
    /// A person's prompt.
    Prompt,
    /// The use of tools in the middle of a turn.
    Tool,
    /// The end of a turn.
    Stop,
    /// The end of a session.
    SessionEnd,
}

impl HookEvent {
    /// All events, with their names on the command line.
    pub const ALL: [(&'static str, Self); 5] = [
        ("session-start", Self::SessionStart),
        ("prompt", Self::Prompt),
        ("tool", Self::Tool),
        ("stop", Self::Stop),
        ("session-end", Self::SessionEnd),
    ];

    /// Returns the event of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|(known, _)| *known == name).map(|(_, event)| *event)
    }

    /// Returns true if a waiter may begin to wait at the event.
    pub fn may_arm_waiter(self) -> bool {
        matches!(self, Self::SessionStart | Self::Prompt | Self::Stop)
    }

    /// Returns the event's name on the command line.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, event)| *event == self).map_or("", |(name, _)| name)
    }
}

/// The stream on which a waiter reports mail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BellStream {
    /// Standard output.
    Out,
    /// Standard error, which the harness shows to the model.
    Err,
}

/// The way in which a waiter wakes a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WakeMeans {
    /// The harness starts the waiter, which prints the text and ends with [`RINGS`](super::RINGS).
    Print(BellStream),
    /// The hook at the end of a turn starts the waiter, which calls the harness's program with these words. `SESSION`
    /// stands for the session's id and `TEXT` for the text.
    Command(&'static [&'static str]),
}

/// The folder in which a harness keeps its files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HarnessFolder {
    /// The variable that moves the folder.
    pub variable: Option<&'static str>,
    /// The path below the folder that the variable names.
    pub below: &'static str,
    /// The path below the home folder, without the variable.
    pub home: &'static str,
}

/// The way in which a harness keeps its hooks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HookLayout {
    /// Hooks among the hooks of others, in a JSON file.
    Shared(HookEntries),
    /// Hooks in a JSON file that is all ours.
    Own(HookEntries),
    /// A plugin that is all ours, from its first line on.
    Plugin(&'static str),
}

/// Hooks in a JSON file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HookEntries {
    /// True if a new file has `"version":1` before `hooks`. An existing file must agree with it.
    pub has_version: bool,
    /// True if a handler stands in a group of its own, `{"hooks":[…]}`.
    pub is_grouped: bool,
    /// The member of a handler that holds the command.
    pub command: &'static str,
    /// The event, its key, and the handler, in which `EVENT` stands for the event's name. Handlers of
    /// [`HookEvent::Tool`] are written only on request.
    pub handlers: &'static [(HookEvent, &'static str, &'static str)],
    /// All events that the harness knows, if one other key makes it drop the file; else empty.
    pub known_events: &'static [&'static str],
    /// Another file beside it that may hold hooks instead.
    pub toml_file: Option<&'static str>,
}

/// The place of the standing instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InstructionsPlace {
    /// A file that is all ours, below the folder of the harness, with these lines before the text.
    Own(&'static str, &'static str),
    /// A file that is all ours, below the project's folder, with these lines before the text.
    Project(&'static str, &'static str),
    /// A block in a file that others write too: the first of these that is there and not empty, else the last.
    Block(&'static [&'static str]),
}

impl InstructionsPlace {
    /// Returns the name of the file, or the last name if there are several.
    pub fn default_file(&self) -> &'static str {
        match self {
            Self::Own(name, _) | Self::Project(name, _) => name,
            Self::Block(names) => names.last().unwrap_or(&""),
        }
    }
}

/// The variables by which a hook knows that it runs in its own harness. Other harnesses read the same file and run its
/// hooks in the foreground.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HarnessVariables {
    /// A variable that is set, and its value.
    pub flag: (&'static str, &'static str),
    /// The variable that names the session.
    pub session: &'static str,
    /// A variable, and the beginning of its value in a scripted run, in which nobody can be woken.
    pub scripted: (&'static str, &'static str),
    /// The variable that names the process of the harness.
    pub process: &'static str,
    /// The first version that sets `flag` and `session`.
    pub since: &'static str,
    /// The beginning of a prompt that no person has typed.
    pub untyped: &'static str,
}

/// The place where a harness lists the plugins it uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PluginSettings {
    /// The files, of which a later one counts more.
    pub files: &'static [(SettingsPlace, &'static str)],
    /// The member that has the plugins' ids.
    pub member: &'static str,
}

/// One harness.
#[derive(Debug)]
pub struct Harness {
    /// Its name on the command line.
    pub name: &'static str,
    /// Its name for people.
    pub title: &'static str,
    /// Members of the input that hold the id of the session.
    pub session: &'static [&'static str],
    /// The variables by which a hook knows that it runs in this harness; `None` where no other harness reads its file.
    pub variables: Option<HarnessVariables>,
    /// True if one process runs the hooks of all sessions, in the environment of the first. `$MSGFS_ME` may then be
    /// another session's name, and does not count.
    pub shares_environment: bool,
    /// The variable that names the project's folder.
    pub project_variable: Option<&'static str>,
    /// The member that lists the project's folders.
    pub roots_member: Option<&'static str>,
    /// A member and its value at the end of a turn that may be continued; `None` if any turn may.
    pub continues_only_if: Option<(&'static str, &'static str)>,
    /// The answers to its hooks: JSON in which `TEXT` stands for the text as a JSON string.
    pub answers: &'static [(HookEvent, &'static str)],
    /// The answer to the hook of a prompt that a ring made, as `answers` has them. The person sees the text, the model
    /// does not.
    pub ring_notice: Option<&'static str>,
    /// The way in which an idle session is woken; `None` if it cannot be.
    pub wake: Option<WakeMeans>,
    /// Programs by which it is recognised.
    pub programs: &'static [&'static str],
    /// Its folder.
    pub folder: HarnessFolder,
    /// The file of its hooks, below that folder.
    pub file: &'static str,
    /// The hooks in that file.
    pub hooks: HookLayout,
    /// Settings that keep it from running them.
    pub switches: &'static [HookSwitch],
    /// The settings that name our plugin, which replaces hooks and instructions.
    pub plugins: Option<PluginSettings>,
    /// The place of its standing instructions.
    pub instructions: InstructionsPlace,
    /// A file below the home folder that it reads as long as the file of its instructions is missing.
    pub replaced_instructions: Option<&'static str>,
    /// Its use of mail, in a sentence.
    pub abilities: &'static str,
    /// True if a person must trust changed hooks again.
    pub must_trust_again: bool,
    /// The steps that a person must take before its hooks run.
    pub trust_steps: &'static str,
}

impl Harness {
    /// Returns the harness of this name.
    pub fn from_name(name: &str) -> Option<&'static Self> {
        ALL.iter().find(|harness| harness.name == name)
    }

    /// Returns the answer printed at an event; `None` if nothing is printed.
    pub fn find_answer(&self, event: HookEvent) -> Option<&'static str> {
        self.answers.iter().find(|(of, _)| *of == event).map(|(_, answer)| *answer)
    }

    /// Returns true if the hook at the end of a turn starts the waiter.
    pub fn has_own_waiter(&self) -> bool {
        matches!(self.wake, Some(WakeMeans::Command(_)))
    }

    /// Returns true if a hook of ours runs at each prompt.
    pub fn has_prompt_hook(&self) -> bool {
        match &self.hooks {
            HookLayout::Shared(entries) | HookLayout::Own(entries) => {
                entries.handlers.iter().any(|(event, ..)| *event == HookEvent::Prompt)
            }
            HookLayout::Plugin(_) => true,
        }
    }
}

const START: &str =
    r#"{"hookSpecificOutput":{"hookEventName":"SessionStart","additionalContext":TEXT}}"#;
const SUBMIT: &str =
    r#"{"hookSpecificOutput":{"hookEventName":"UserPromptSubmit","additionalContext":TEXT}}"#;
const FLAT: &str = r#"{"additionalContext":TEXT}"#;
const SNAKE: &str = r#"{"additional_context":TEXT}"#;
const BLOCK: &str = r#"{"decision":"block","reason":TEXT}"#;

/// The lines before the text in a rule that Cursor always reads.
const CURSOR_RULE: &str = "---\ndescription: Mail from other agents\nalwaysApply: true\n---\n";
/// The lines before the text in a file that Copilot reads for every file.
const COPILOT_RULE: &str = "---\napplyTo: \"**\"\n---\n";

// A handler for each harness that keeps its handlers in JSON.
const CLAUDE_HOOK: &str = r#"{"type":"command","command":"msgfs hook run EVENT --for claude-code 2>/dev/null || true","timeout":5}"#;
const CLAUDE_WAITER: &str = r#"{"type":"command","command":"msgfs hook run EVENT --for claude-code --wait; test $? -eq 10 && exit 2; exit 0","timeout":28800,"asyncRewake":true,"rewakeSummary":"msgfs: mail from another agent","rewakeMessage":"Mail has come."}"#;
const CODEX_HOOK: &str = r#"{"type":"command","command":"msgfs hook run EVENT --for codex 2>/dev/null || true","timeout":5}"#;
const GEMINI_HOOK: &str = r#"{"name":"msgfs","type":"command","command":"msgfs hook run EVENT --for gemini 2>/dev/null || true","timeout":5000}"#;
const COPILOT_HOOK: &str = r#"{"type":"command","bash":"msgfs hook run EVENT --for copilot 2>/dev/null || true","timeoutSec":5}"#;
const CURSOR_HOOK: &str =
    r#"{"command":"msgfs hook run EVENT --for cursor 2>/dev/null || true","timeout":5}"#;

/// All harnesses.
pub static ALL: [Harness; 6] = [
    Harness {
        name: "claude-code",
        title: "Claude Code",
        session: &["session_id"],
        variables: Some(HarnessVariables {
            flag: ("CLAUDECODE", "1"),
            session: "CLAUDE_CODE_SESSION_ID",
            scripted: ("CLAUDE_CODE_ENTRYPOINT", "sdk"),
            process: "CLAUDE_PID",
            since: "2.1.145",
            untyped: "<task-notification>",
        }),
        shares_environment: false,
        project_variable: Some("CLAUDE_PROJECT_DIR"),
        roots_member: None,
        continues_only_if: None,
        answers: &[
            (HookEvent::SessionStart, START),
            (HookEvent::Prompt, SUBMIT),
            (
                HookEvent::Tool,
                r#"{"hookSpecificOutput":{"hookEventName":"PostToolBatch","additionalContext":TEXT}}"#,
            ),
        ],
        ring_notice: Some(r#"{"systemMessage":TEXT}"#),
        wake: Some(WakeMeans::Print(BellStream::Err)),
        programs: &["claude"],
        folder: HarnessFolder { variable: Some("CLAUDE_CONFIG_DIR"), below: "", home: ".claude" },
        file: "settings.json",
        hooks: HookLayout::Shared(HookEntries {
            has_version: false,
            is_grouped: true,
            command: "command",
            handlers: &[
                (HookEvent::SessionStart, "SessionStart", CLAUDE_HOOK),
                (HookEvent::SessionStart, "SessionStart", CLAUDE_WAITER),
                (HookEvent::Prompt, "UserPromptSubmit", CLAUDE_HOOK),
                (HookEvent::Prompt, "UserPromptSubmit", CLAUDE_WAITER),
                (HookEvent::Tool, "PostToolBatch", CLAUDE_HOOK),
                (HookEvent::Stop, "Stop", CLAUDE_WAITER),
                (
                    HookEvent::SessionEnd,
                    "SessionEnd",
                    r#"{"type":"command","command":"msgfs hook run EVENT --for claude-code 2>/dev/null || true","timeout":1}"#,
                ),
            ],
            known_events: &[],
            toml_file: None,
        }),
        switches: switches::CLAUDE,
        plugins: Some(PluginSettings { files: switches::CLAUDE_FILES, member: "enabledPlugins" }),
        instructions: InstructionsPlace::Own("rules/msgfs.md", ""),
        replaced_instructions: None,
        abilities: "wakes an idle session when mail arrives, and announces mail at the start and with each prompt",
        must_trust_again: false,
        trust_steps: "start claude in the folder once and trust it: hooks run only in trusted folders",
    },
    Harness {
        name: "codex",
        title: "Codex CLI",
        session: &["session_id"],
        variables: None,
        shares_environment: true,
        project_variable: None,
        roots_member: None,
        continues_only_if: None,
        answers: &[
            (HookEvent::SessionStart, START),
            (HookEvent::Prompt, SUBMIT),
            (
                HookEvent::Tool,
                r#"{"hookSpecificOutput":{"hookEventName":"PostToolUse","additionalContext":TEXT}}"#,
            ),
            (HookEvent::Stop, BLOCK),
        ],
        ring_notice: None,
        wake: Some(WakeMeans::Command(&["queue", "--thread", "SESSION", "--message", "TEXT"])),
        programs: &["codex"],
        folder: HarnessFolder { variable: Some("CODEX_HOME"), below: "", home: ".codex" },
        file: "hooks.json",
        hooks: HookLayout::Shared(HookEntries {
            has_version: false,
            is_grouped: true,
            command: "command",
            handlers: &[
                (HookEvent::SessionStart, "SessionStart", CODEX_HOOK),
                (HookEvent::Prompt, "UserPromptSubmit", CODEX_HOOK),
                (HookEvent::Tool, "PostToolUse", CODEX_HOOK),
                (HookEvent::Stop, "Stop", CODEX_HOOK),
            ],
            known_events: &[],
            toml_file: Some("config.toml"),
        }),
        switches: switches::CODEX,
        plugins: None,
        instructions: InstructionsPlace::Block(&["AGENTS.override.md", "AGENTS.md"]),
        replaced_instructions: None,
        abilities: "announces mail at the start, with each prompt and at the end of a turn; from 0.169 on, mail also wakes a session that is idle after a turn",
        must_trust_again: true,
        trust_steps: "start codex, type /hooks and trust the new hooks; to let it send, add the mount to \
                writable_roots under [sandbox_workspace_write] in config.toml",
    },
    Harness {
        name: "gemini",
        title: "Gemini CLI",
        session: &["session_id"],
        variables: None,
        shares_environment: false,
        project_variable: Some("GEMINI_PROJECT_DIR"),
        roots_member: None,
        continues_only_if: None,
        answers: &[
            (HookEvent::SessionStart, START),
            (
                HookEvent::Prompt,
                r#"{"hookSpecificOutput":{"hookEventName":"BeforeAgent","additionalContext":TEXT}}"#,
            ),
            (
                HookEvent::Tool,
                r#"{"hookSpecificOutput":{"hookEventName":"AfterTool","additionalContext":TEXT}}"#,
            ),
            (HookEvent::Stop, r#"{"decision":"deny","reason":TEXT}"#),
        ],
        ring_notice: None,
        wake: None,
        programs: &["gemini"],
        folder: HarnessFolder { variable: None, below: "", home: ".gemini" },
        file: "settings.json",
        hooks: HookLayout::Shared(HookEntries {
            has_version: false,
            is_grouped: true,
            command: "command",
            handlers: &[
                (HookEvent::SessionStart, "SessionStart", GEMINI_HOOK),
                (HookEvent::Prompt, "BeforeAgent", GEMINI_HOOK),
                (HookEvent::Tool, "AfterTool", GEMINI_HOOK),
                (HookEvent::Stop, "AfterAgent", GEMINI_HOOK),
            ],
            known_events: &[],
            toml_file: None,
        }),
        switches: switches::GEMINI,
        plugins: None,
        instructions: InstructionsPlace::Block(&["GEMINI.md"]),
        replaced_instructions: None,
        abilities: "announces mail at the start, with each prompt and at the end of a turn; an idle session is not woken",
        must_trust_again: false,
        trust_steps: "start gemini in the folder once and trust it: hooks run only in trusted folders",
    },
    Harness {
        name: "copilot",
        title: "Copilot CLI",
        session: &["sessionId", "session_id"],
        variables: None,
        shares_environment: false,
        project_variable: None,
        roots_member: None,
        continues_only_if: None,
        answers: &[
            (HookEvent::SessionStart, FLAT),
            (HookEvent::Prompt, FLAT),
            (HookEvent::Tool, FLAT),
            (HookEvent::Stop, BLOCK),
        ],
        ring_notice: None,
        wake: None,
        programs: &["copilot"],
        folder: HarnessFolder { variable: Some("COPILOT_HOME"), below: "", home: ".copilot" },
        file: "hooks/msgfs.json",
        hooks: HookLayout::Own(HookEntries {
            has_version: true,
            is_grouped: false,
            command: "bash",
            handlers: &[
                (HookEvent::SessionStart, "sessionStart", COPILOT_HOOK),
                (HookEvent::Prompt, "userPromptSubmitted", COPILOT_HOOK),
                (HookEvent::Tool, "postToolUse", COPILOT_HOOK),
                (HookEvent::Stop, "agentStop", COPILOT_HOOK),
            ],
            known_events: &[],
            toml_file: None,
        }),
        switches: switches::COPILOT,
        plugins: None,
        instructions: InstructionsPlace::Own("instructions/msgfs.instructions.md", COPILOT_RULE),
        replaced_instructions: None,
        abilities: "announces mail at the start, at the end of a turn and, from 1.0.102 on, with each prompt; an idle session is not woken",
        must_trust_again: false,
        trust_steps: "nothing: no trust step is known for a user's own hooks",
    },
    Harness {
        name: "cursor",
        title: "Cursor",
        session: &["conversation_id", "session_id"],
        variables: None,
        shares_environment: false,
        project_variable: None,
        roots_member: Some("workspace_roots"),
        continues_only_if: Some(("status", "completed")),
        answers: &[
            (HookEvent::SessionStart, SNAKE),
            (HookEvent::Tool, SNAKE),
            (HookEvent::Stop, r#"{"followup_message":TEXT}"#),
        ],
        ring_notice: None,
        wake: None,
        programs: &["cursor-agent", "cursor"],
        folder: HarnessFolder { variable: None, below: "", home: ".cursor" },
        file: "hooks.json",
        hooks: HookLayout::Shared(HookEntries {
            has_version: true,
            is_grouped: false,
            command: "command",
            handlers: &[
                (HookEvent::SessionStart, "sessionStart", CURSOR_HOOK),
                (HookEvent::Tool, "postToolUse", CURSOR_HOOK),
                (
                    HookEvent::Stop,
                    "stop",
                    r#"{"command":"msgfs hook run EVENT --for cursor 2>/dev/null || true","timeout":5,"loop_limit":5}"#,
                ),
            ],
            known_events: &[
                "sessionStart",
                "sessionEnd",
                "preToolUse",
                "postToolUse",
                "postToolUseFailure",
                "subagentStart",
                "subagentStop",
                "beforeShellExecution",
                "afterShellExecution",
                "beforeMCPExecution",
                "afterMCPExecution",
                "beforeReadFile",
                "afterFileEdit",
                "beforeTabFileRead",
                "afterTabFileEdit",
                "beforeSubmitPrompt",
                "preCompact",
                "stop",
                "afterAgentResponse",
                "afterAgentThought",
            ],
            toml_file: None,
        }),
        switches: &[],
        plugins: None,
        instructions: InstructionsPlace::Project(".cursor/rules/msgfs.mdc", CURSOR_RULE),
        replaced_instructions: None,
        abilities: "announces mail at the end of a turn, and in its command line at the start; an idle session is not woken",
        must_trust_again: false,
        trust_steps: "open the folder once and trust the workspace",
    },
    Harness {
        name: "opencode",
        title: "OpenCode",
        session: &["session_id"],
        variables: None,
        shares_environment: false,
        project_variable: None,
        roots_member: None,
        continues_only_if: None,
        answers: &[],
        ring_notice: None,
        wake: Some(WakeMeans::Print(BellStream::Out)),
        programs: &["opencode", "opencode2"],
        folder: HarnessFolder {
            variable: Some("XDG_CONFIG_HOME"),
            below: "opencode",
            home: ".config/opencode",
        },
        file: "plugins/msgfs.js",
        hooks: HookLayout::Plugin(include_str!("opencode.js")),
        switches: &[],
        plugins: None,
        instructions: InstructionsPlace::Block(&["AGENTS.md"]),
        replaced_instructions: Some(".claude/CLAUDE.md"),
        abilities: "wakes an idle session when mail arrives",
        must_trust_again: false,
        trust_steps: "nothing; restart opencode, which loads plugins when it starts",
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_and_answered_is_json() {
        for harness in &ALL {
            for answer in
                harness.answers.iter().map(|(_, answer)| answer).chain(&harness.ring_notice)
            {
                let text = answer.replace("TEXT", r#""x""#);
                assert!(serde_json::from_str::<serde_json::Value>(&text).is_ok(), "{text}");
            }
            let (HookLayout::Shared(entries) | HookLayout::Own(entries)) = harness.hooks else {
                continue;
            };
            for (event, _, handler) in entries.handlers {
                let value: serde_json::Value = serde_json::from_str(handler).unwrap();
                let command = value[entries.command].as_str().unwrap();
                let begin = format!("msgfs hook run EVENT --for {} ", harness.name);
                assert!(command.starts_with(&begin), "{command}");
                let end = command.strip_prefix(&begin).unwrap();
                if value["asyncRewake"] == true {
                    assert!(harness.wake.is_some() && event.may_arm_waiter());
                    assert_eq!(end, "--wait; test $? -eq 10 && exit 2; exit 0");
                } else {
                    assert_eq!(end, "2>/dev/null || true");
                }
                let timed = value["timeout"].is_u64() || value["timeoutSec"].is_u64();
                assert!(timed, "{handler}");
            }
        }
    }
}
