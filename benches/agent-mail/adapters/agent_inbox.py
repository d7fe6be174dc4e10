#!/usr/bin/env python3
"""agent-inbox: a hub over SQLite, and commands that ask it; as it comes, without accounts (its authentication is off)."""

import contextlib
import fcntl
import json
import os
import re
import select
import signal
import socket
import sqlite3
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

sys.dont_write_bytecode = True

from adapter import Refused, Transcript, command, serve  # noqa: E402

BIN = Path(os.environ["AGENT_MAIL_NEWER"]) / "bin"
LINE = re.compile(r"^([0-9a-f]{32})\s+(\S+)\s+(.*?)  \(\d+ chars\)$", re.MULTILINE)


def pause() -> None:
    """Waits a moment; libfaketime breaks `time.sleep`."""
    select.select([], [], [], 0.01)


class AgentInbox:
    """All adapters share the hub. The first one starts it, and the last one ends it."""

    def version(self) -> dict:
        return {"program": command([BIN / "agent-inbox", "--version"]).strip().replace(", version", "")}

    def start(self, root: str, agents: list[str], mine: list[str], first: bool, **_) -> dict:
        self.root, self.mine = Path(root), mine
        self.note, self.projects = self.root / "hub.json", self.root / "projects"
        self.users = (self.root / "users").open("a")
        fcntl.flock(self.users, fcntl.LOCK_SH)
        self._hub()
        for name in agents if first else []:
            (self.projects / name).mkdir(parents=True)
            self._run(name, "join", name, "--engine", "bench")
        return {"way": "command", "processes": self._processes(), "groups": False, "keys": False}

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        with (self.root / "hub.lock").open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _hub(self) -> None:
        """Starts the hub, or finds the one that runs."""
        with self._alone():
            if self.note.exists():
                self.hub = json.loads(self.note.read_text())
                if self._runs():
                    return
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                port = free.getsockname()[1]
            with (self.root / "hub.log").open("ab") as log:
                process = subprocess.Popen(
                    [BIN / "agent-inbox", "serve"], stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                    env={**os.environ, "AGENT_INBOX_DB": str(self.root / "hub.db"), "AGENT_INBOX_PORT": str(port),
                         "AGENT_INBOX_HOST": "127.0.0.1"})
            self.hub = {"pid": process.pid, "port": port}
            end = time.monotonic() + 30
            while not self._listens():
                if process.poll() is not None or time.monotonic() > end:
                    raise Refused(f"the hub does not start: {(self.root / 'hub.log').read_text()[-300:]}")
                pause()
            self.note.write_text(json.dumps(self.hub))

    def _runs(self) -> bool:
        """Tells if the noted process is the hub; after a cut of power it is some other, or none."""
        with contextlib.suppress(OSError):
            return b"agent-inbox" in Path(f"/proc/{self.hub['pid']}/cmdline").read_bytes() and self._listens()
        return False

    def _listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.hub["port"])) == 0

    def _processes(self) -> dict[str, int]:
        return {name: self.hub["pid"] for name in self.mine}

    def restart(self, me: str) -> dict:
        self._hub()
        return {"processes": self._processes()}

    def _environment(self, me: str) -> dict[str, str]:
        return {"AGENT_INBOX_HUB": f"http://127.0.0.1:{self.hub['port']}", "AGENT_INBOX_NAME": me}

    def _run(self, me: str, *words: str) -> str:
        return command([BIN / "agent-inbox", *words], env=self._environment(me), cwd=self.projects / me)

    def send(self, sender: str, to: list[str], subject: str, text: str, answers: str | None = None, **_) -> None:
        if answers:
            self._run(sender, "reply", answers, text, "-s", subject)
            return
        for name in to:
            self._run(sender, "send", name, text, "-s", subject)

    def list(self, me: str) -> dict:
        return {"ids": [ident for ident, *_ in LINE.findall(self._run(me, "inbox"))]}

    def read(self, me: str, id: str) -> dict:
        said = self._run(me, "read", id)
        sender = re.search(r"\b((?:agent|reader|sender)\w*)\b", said)
        return {"from": sender[1] if sender else "", "text": said, "mark": ""}

    def everything(self, me: str) -> dict:
        # No command shows what was read, so the benchmark counts what it reads itself.
        found = LINE.findall(self._run(me, "inbox"))
        return {"messages": [{"id": ident, "from": sender, "text": subject, "mark": ""} for ident, sender, subject in found],
                "unread_only": True}

    def wait(self, me: str, subject: str, seconds: float) -> dict:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if subject in self._run(me, "inbox"):
                return {"polled": True}
        raise Refused("it did not come")

    def forge(self, way: str, victim: str, to: str, subject: str, text: str, **_) -> None:
        if way == "signature":
            raise Refused("there are no signatures")
        if way == "name":
            return self.send(victim, [to], subject, text)
        with sqlite3.connect(self.root / "hub.db") as store:
            columns = [row[1] for row in store.execute("PRAGMA table_info(objects)")]
            [genuine] = store.execute("SELECT * FROM objects WHERE attributed_to = ? LIMIT 1", (victim,)).fetchall()
            row = {**dict(zip(columns, genuine, strict=True)), "id": uuid.uuid4().hex, "summary": subject, "content": text}
            store.execute(f"INSERT INTO objects ({', '.join(row)}) VALUES ({', '.join('?' * len(row))})", list(row.values()))
        return None

    def session(self, me: str) -> dict:
        shell = Transcript(self.projects / me, {**self._environment(me), "PATH": f"{BIN}:{os.environ['PATH']}"})
        idents = [ident for ident, *_ in LINE.findall(shell.run("agent-inbox inbox"))]
        for ident in idents[:3]:
            shell.run(f"agent-inbox read {ident}")
        shell.run(f"agent-inbox reply {idents[0]} 'Done: all tests pass.'")
        return {"steps": shell.steps}

    def stop(self) -> None:
        """Ends the hub if nobody else uses it."""
        with self._alone(), contextlib.suppress(BlockingIOError):
            fcntl.flock(self.users, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if self._runs():
                os.kill(self.hub["pid"], signal.SIGTERM)
                while Path(f"/proc/{self.hub['pid']}/cmdline").exists() and self._runs():
                    pause()
            self.note.unlink(missing_ok=True)


if __name__ == "__main__":
    serve(AgentInbox())
