"""The programs that are compared, where they come from, and which were left out."""

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
TOOLS = ROOT / "target/agent-mail"

# A run is repeated with the same versions.
PYTHON = ["agentazall==1.0.24", "agent-mail-cli==0.5.1", "agent-collab-kit==0.1.2", "cgl-interagentmail==1.4.0"]
# This one wants Python 3.12 or newer; without one, it is left out.
NEWER_PYTHON = ["agent-inbox[clients]==0.34.0"]
NODE = ["swarm-mail@1.11.2", "gpt-tokenizer@4.0.0"]


@dataclass(frozen=True)
class Program:
    """A program behind its adapter."""

    name: str
    title: str
    licence: str
    words: tuple[str, ...]


def ours(kind: str, *more: str) -> Program:
    """msgfs over a kind of store."""
    how = "commands" if more else "mount"
    return Program("-".join(("msgfs", kind, *more)), f"msgfs, {kind}, {how}", "MIT or Apache-2.0", ("msgfs.py", kind, *more))


ALL = [
    ours("samp"),
    ours("samp", "commands"),
    ours("agentazall"),
    ours("amp"),
    ours("amq"),
    ours("maildir"),
    Program("samp", "plain SAMP", "of this repository", ("samp.py",)),
    Program("maildir", "Maildir, mblaze", "CC0 and MIT", ("maildir.py",)),
    Program("agentazall", "AgentAZAll", "AGPL-3.0-or-later", ("agentazall.py",)),
    Program("agent-mail-cli", "agent-mail-cli", "MIT", ("agent_mail_cli.py",)),
    Program("agent-collab-kit", "agent-collab-kit", "MIT", ("agent_collab_kit.py",)),
    Program("interagentmail", "InterAgentMail", "MIT", ("interagentmail.py",)),
    Program("agent-inbox", "agent-inbox", "GPL-3.0-or-later", ("agent_inbox.py",)),
    Program("swarm-mail", "swarm-mail", "MIT", ("swarm_mail.mjs",)),
]


def command_line(program: Program) -> list[str]:
    """Returns the command that starts an adapter: one of this folder by its ending, another as it is."""
    name, *rest = program.words
    path = HERE / "adapters" / name
    if name.endswith(".py"):
        return [sys.executable, "-B", str(path), *rest]
    return ["node", str(path), *rest] if name.endswith(".mjs") else [name, *rest]


def environment(msgfs: Path) -> dict[str, str]:
    """Returns the variables that tell an adapter where the programs are."""
    return {"AGENT_MAIL_VENV": str(TOOLS / "venv"), "AGENT_MAIL_NEWER": str(TOOLS / "newer"), "AGENT_MAIL_NODE": str(TOOLS / "node"), "AGENT_MAIL_MSGFS": str(msgfs)}


def install() -> None:
    """Puts the programs below target/agent-mail, once for each list of versions."""
    done, wanted = TOOLS / "installed", "\n".join(PYTHON + NEWER_PYTHON + NODE)
    if done.exists() and done.read_text() == wanted:
        return
    print(f"installing {', '.join(PYTHON + NODE)} below {TOOLS} ...", file=sys.stderr, flush=True)
    TOOLS.mkdir(parents=True, exist_ok=True)
    venv, node = TOOLS / "venv", TOOLS / "node"
    if not (venv / "bin/pip").exists():
        subprocess.run([sys.executable, "-m", "venv", venv], check=True)
    subprocess.run([venv / "bin/pip", "install", "--quiet", "--disable-pip-version-check", *PYTHON], check=True)
    if newer := newer_python():
        subprocess.run([newer, "-m", "venv", TOOLS / "newer"], check=True)
        subprocess.run([TOOLS / "newer/bin/pip", "install", "--quiet", "--disable-pip-version-check", *NEWER_PYTHON], check=True)
    node.mkdir(exist_ok=True)
    (node / "package.json").write_text('{"private": true}\n')
    subprocess.run(["npm", "install", "--silent", "--ignore-scripts", "--no-audit", "--no-fund", *NODE], cwd=node, check=True)
    done.write_text(wanted)


def newer_python() -> str | None:
    """Finds a Python of 3.12 or newer that runs here."""
    kept = sorted(Path.home().glob(".pyenv/versions/3.*/bin/python3"), reverse=True)
    for candidate in (sys.executable, *(shutil.which(f"python3.{minor}") for minor in (14, 13, 12)), *map(str, kept)):
        code = "import sys; sys.exit(sys.version_info < (3, 12))"
        if candidate and subprocess.run([candidate, "-c", code], capture_output=True, check=False).returncode == 0:
            return candidate
    return None


def can_run(program: Program) -> bool:
    """Tells if what the program needs could be installed."""
    return program.name != "agent-inbox" or (TOOLS / "newer/bin/agent-inbox").exists()


def missing_tools() -> list[str]:
    """Returns the Debian packages that a run needs and that are not here."""
    needed = {"mdeliver": "mblaze", "faketime": "faketime", "strace": "strace", "npm": "npm", "node": "nodejs", "openssl": "openssl",
              "fusermount3": "fuse3", "mkfs.ext4": "e2fsprogs"}
    os.environ["PATH"] += ":/usr/sbin:/sbin"
    return [package for tool, package in needed.items() if shutil.which(tool) is None]
