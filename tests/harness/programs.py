"""The agent programs: how each is installed, pointed to the model on loopback, and started without a question."""

import json
import os

#: The package of npm, its tested version, and its program.
PACKAGES = {
    "claude-code": ("@anthropic-ai/claude-code", "2.1.332", "claude"),
    "codex": ("@openai/codex", "0.169.0", "codex"),
    "opencode": ("opencode-ai", "1.18.33", "opencode"),
    "gemini": ("@google/gemini-cli", "0.61.0", "gemini"),
    "copilot": ("@github/copilot", "1.0.102", "copilot"),
}

KEY = "sk-test-000000000000000000000000000000000000"


def write(path, text):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


class Program:
    """One agent program. A subclass says what is special to it."""

    name = ""
    #: True if an idle session is woken by mail.
    wakes = False
    #: The events at which the model hears of mail, beside a wake.
    told = ("start", "prompt", "stop")
    #: The question for approval of a shell call, and what such a call says; None if it is not tested.
    approval = None
    #: True if a session goes on in the background after `/quit`.
    stays_after_quit = False
    #: The settings by which no shell call needs approval, where they are lines of their settings.
    unasked = ()
    #: The seconds for which a program in the place of msgfs hangs.
    hang = 600
    #: The dialogs of the start, and the keys that answer them.
    dialogs = ()
    #: The screen shows this when a prompt can be typed.
    ready = ""
    def configure(self, home, project, url):
        """Writes the program's own settings, and returns its environment."""
        raise NotImplementedError

    def command(self, program):
        return [program]


class ClaudeCode(Program):
    name = "claude-code"
    wakes = True
    told = ("start", "prompt")
    dialogs = (
        (r"❯ No, exit\s+Yes, I trust this folder", ("Down", "Enter")),
        (r"❯ 1\. Yes, I trust this folder", ("Enter",)),
        (r"Detected a custom API key", ("Up", "Enter")),
        (r"Press Enter to continue", ("Enter",)),
    )
    ready = r"\? for shortcuts|for agents"

    def configure(self, home, project, url):
        told = {"hasCompletedOnboarding": True, "theme": "dark", "hasTrustDialogAccepted": True}
        told["customApiKeyResponses"] = {"approved": [KEY[-20:]], "rejected": []}
        write(f"{home}/.claude.json", json.dumps(told))
        return {
            "ANTHROPIC_BASE_URL": url,
            "ANTHROPIC_API_KEY": KEY,
            "DISABLE_AUTOUPDATER": "1",
            "DISABLE_TELEMETRY": "1",
            "DISABLE_ERROR_REPORTING": "1",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        }

    def command(self, program):
        return [program, "--permission-mode", "default", "--allowedTools", "Bash"]


class Codex(Program):
    name = "codex"
    wakes = True
    dialogs = (
        (r"Trust this folder\?", ("Enter",)),
        (r"(?i)hooks need review", ("2", "Enter", "Enter")),
    )
    ready = r"(?m)^\s*› (?!\d)"
    approval = (
        "Would you like to run the following command",
        {"sandbox_permissions": "require_escalated", "justification": "May I look at the mail?"},
    )
    stays_after_quit = True
    unasked = ('approval_policy = "never"', 'sandbox_mode = "danger-full-access"')

    def configure(self, home, project, url):
        # A project's .agent-message names the agent: the environment of Codex is shared by all its terminals.
        write(
            f"{home}/.codex/config.toml",
            f'''model = "scripted"
model_provider = "scripted"
{self.unasked[0]}
{self.unasked[1]}
check_for_update_on_startup = false

[model_providers.scripted]
name = "scripted"
base_url = "{url}/v1"
wire_api = "responses"
env_key = "SCRIPTED_KEY"
request_max_retries = 0
stream_max_retries = 0

[analytics]
enabled = false

[projects."{project}"]
trust_level = "trusted"
''',
        )
        return {"SCRIPTED_KEY": KEY}


class OpenCode(Program):
    name = "opencode"
    wakes = True
    told = ()
    ready = r"(?i)ask anything|>\s|┃"

    def configure(self, home, project, url):
        model = {"scripted": {"name": "scripted", "tool_call": True, "limit": {"context": 100000, "output": 10000}}}
        provider = {"npm": "@ai-sdk/openai-compatible", "name": "scripted", "models": model}
        provider["options"] = {"baseURL": f"{url}/v1", "apiKey": KEY}
        told = {"provider": {"scripted": provider}, "model": "scripted/scripted", "small_model": "scripted/scripted"}
        told |= {"autoupdate": False, "share": "disabled", "permission": {"bash": "allow", "edit": "allow"}}
        write(f"{home}/.config/opencode/opencode.json", json.dumps(told))
        return {"OPENCODE_DISABLE_AUTOUPDATE": "1", "OPENCODE_DISABLE_MODELS_FETCH": "1", "npm_config_fetch_retries": "0"}


class Gemini(Program):
    name = "gemini"
    # It waits as long as the output of a hook is open, whatever the time limit of the hook.
    hang = 12
    dialogs = ((r"(?i)do you trust (this folder|the files)", ("Enter",)),)
    ready = r"Type your message"

    def configure(self, home, project, url):
        told = {"security": {"auth": {"selectedType": "gemini-api-key"}, "folderTrust": {"enabled": True}}}
        told |= {"privacy": {"usageStatisticsEnabled": False}, "general": {"enableAutoUpdate": False}}
        told["model"] = {"name": "gemini-2.5-flash"}
        write(f"{home}/.gemini/settings.json", json.dumps(told, indent=2) + "\n")
        write(f"{home}/.gemini/trustedFolders.json", json.dumps({project: "TRUST_FOLDER"}))
        return {"GOOGLE_GEMINI_BASE_URL": url, "GEMINI_API_KEY": KEY, "GEMINI_TELEMETRY_ENABLED": "false"}

    def command(self, program):
        return [program, "--approval-mode", "yolo"]


class Copilot(Program):
    name = "copilot"
    dialogs = ((r"(?i)do you trust|confirm folder trust", ("Enter",)),)
    ready = r"(?m)^\s*[>❯]\s"

    def configure(self, home, project, url):
        write(f"{home}/.copilot/config.json", json.dumps({"trusted_folders": [project], "banner": "never"}))
        return {
            "COPILOT_PROVIDER_BASE_URL": f"{url}/v1",
            "COPILOT_PROVIDER_API_KEY": KEY,
            "COPILOT_MODEL": "scripted",
            "COPILOT_OFFLINE": "true",
            "COPILOT_AUTO_UPDATE": "false",
        }

    def command(self, program):
        return [program, "--allow-all-tools"]


ALL = {program.name: program for program in (ClaudeCode(), Codex(), OpenCode(), Gemini(), Copilot())}
