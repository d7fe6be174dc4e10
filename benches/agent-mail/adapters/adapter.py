"""The program side of the protocol of docs/BENCHMARK.md: lines of JSON from standard input to standard output.

An adapter in Python gives an object with one method for each `op`; the members of the request are its arguments.
An adapter in another language needs nothing of this file.
"""

import json
import os
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path


class Refused(Exception):
    """The program did not do it, and says why."""


def command(words: list, text: str | None = None, env: dict[str, str] | None = None, cwd: Path | None = None) -> str:
    """Runs a command of the program and returns what it prints; a failure is a refusal."""
    done = subprocess.run([str(word) for word in words], input=text, env={**os.environ, **(env or {})}, cwd=cwd,
                          stdin=None if text is not None else subprocess.DEVNULL, capture_output=True, check=False,
                          text=True, errors="replace")
    if done.returncode:
        raise Refused(f"{Path(str(words[0])).name} ended with {done.returncode}: {(done.stderr or done.stdout).strip()[-300:]}")
    return done.stdout


def packaged(name: str) -> str:
    """Returns the name and version of a package of the benchmark's Python."""
    code = f"import importlib.metadata as m; print(m.version({name!r}))"
    return f"{name} {command([Path(os.environ['AGENT_MAIL_VENV']) / 'bin/python', '-c', code]).strip()}"


class Transcript:
    """The commands of an agent's session and what they print, run by a shell in the agent's home."""

    def __init__(self, home: Path, env: dict[str, str] | None = None) -> None:
        self.steps: list[list[str]] = []
        self.home, self.env = home, {**os.environ, "HOME": str(home), **(env or {})}

    def run(self, line: str) -> str:
        """Runs one line as the agent's shell does; the agent sees both outputs."""
        done = subprocess.run(["sh", "-c", line], cwd=self.home, env=self.env, stdin=subprocess.DEVNULL, check=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
        self.steps.append([line, done.stdout])
        return done.stdout


def say(answer: dict) -> None:
    """Writes one answer."""
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def serve(adapter: object) -> None:
    """Answers requests until standard input ends."""
    for line in sys.stdin:
        request = json.loads(line)
        operation = request.pop("op")
        method: Callable | None = getattr(adapter, operation, None)
        if method is None:
            say({"ok": False, "error": f"this adapter has no {operation}", "missing": True})
            continue
        try:
            say({"ok": True, **(method(**request) or {})})
        except (Refused, OSError) as refusal:
            say({"ok": False, "error": str(refusal)})
        except Exception as error:  # noqa: BLE001 - the benchmark must hear of a defect of the adapter
            say({"ok": False, "error": f"{type(error).__name__}: {error}", "trace": traceback.format_exc()})
        if operation == "stop":
            return
