#!/usr/bin/env python3
"""agent-collab-kit: a command over SQLite; a message has no subject, and its key makes a repeat harmless."""

import json
import os
import sqlite3
import sys
import time
import uuid
from pathlib import Path

sys.dont_write_bytecode = True

from adapter import Refused, Transcript, command, packaged, serve  # noqa: E402

BIN = Path(os.environ["AGENT_MAIL_VENV"]) / "bin"


class AgentCollabKit:
    """Each operation is a command. `send` has one recipient; `inbox` shows whole messages until they are acknowledged."""

    def version(self) -> dict:
        return {"program": packaged("agent-collab-kit")}

    def start(self, root: str, **_) -> dict:
        self.db = Path(root) / "team.db"
        if not self.db.exists():
            self._run("init")
        return {"way": "command", "groups": False, "keys": True}

    def _run(self, *words: str) -> list | dict:
        return json.loads(command([BIN / "agent-collab", "--db", self.db, *words]))

    def send(self, sender: str, to: list[str], subject: str, text: str, key: str, **_) -> None:
        for name in to:
            self._run("send", "--sender", sender, "--recipient", name, "--key", f"{key}-{name}", "--body", f"{subject}\n{text}")

    def list(self, me: str) -> dict:
        return {"ids": [message["id"] for message in self._run("inbox", "--recipient", me)]}

    def read(self, me: str, id: str) -> dict:
        message = self._run("ack", "--recipient", me, "--id", id)
        return {"from": message["sender"], "text": message["body"], "mark": ""}

    def everything(self, me: str) -> dict:
        # No command shows what was acknowledged, so the benchmark acknowledges nothing that it counts.
        return {"messages": [{"id": message["id"], "from": message["sender"], "text": message["body"], "mark": ""}
                             for message in self._run("inbox", "--recipient", me)], "unread_only": True}

    def wait(self, me: str, subject: str, seconds: float) -> dict:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if any(message["body"].startswith(subject) for message in self._run("inbox", "--recipient", me)):
                return {"polled": True}
        raise Refused("it did not come")

    def forge(self, way: str, victim: str, to: str, subject: str, text: str, **_) -> None:
        if way == "signature":
            raise Refused("there are no signatures")
        if way == "name":
            return self.send(victim, [to], subject, text, str(uuid.uuid4()))
        with sqlite3.connect(self.db) as store:
            store.execute("INSERT INTO messages VALUES (?,?,?,?,?,?,NULL)",
                          (str(uuid.uuid4()), str(uuid.uuid4()), victim, to, f"{subject}\n{text}", time.time()))
        return None

    def session(self, me: str) -> dict:
        shell = Transcript(self.db.parent, {"PATH": f"{BIN}:{os.environ['PATH']}"})
        # One command shows all three whole; they stay until they are acknowledged.
        messages = json.loads(shell.run(f"agent-collab --db ~/team.db inbox --recipient {me}"))
        for message in messages[:3]:
            shell.run(f"agent-collab --db ~/team.db ack --recipient {me} --id {message['id']}")
        shell.run(f"agent-collab --db ~/team.db send --sender {me} --recipient {messages[0]['sender']} --key answer-1 "
                  "--body 'Done: all tests pass.'")
        return {"steps": shell.steps}

    def stop(self) -> None:
        """Ends nothing, because nothing runs."""


if __name__ == "__main__":
    serve(AgentCollabKit())
