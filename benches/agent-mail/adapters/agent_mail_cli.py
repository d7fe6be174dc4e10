#!/usr/bin/env python3
"""agent-mail-cli: a command over SQLite."""

import json
import os
import sqlite3
import sys
import uuid
from pathlib import Path

sys.dont_write_bytecode = True

from adapter import Refused, Transcript, command, packaged, serve  # noqa: E402

BIN = Path(os.environ["AGENT_MAIL_VENV"]) / "bin"
ALL = "1000000"


def address(name: str) -> str:
    """Its names have two parts."""
    return f"bench:{name}"


class AgentMailCli:
    """Each operation is a command. `send` has one recipient."""

    def version(self) -> dict:
        return {"program": packaged("agent-mail-cli")}

    def start(self, root: str, **_) -> dict:
        self.root = Path(root)
        os.environ["AGENT_MAIL_DB"] = str(self.root / "mail.db")
        return {"way": "command", "groups": False, "keys": False}

    def _run(self, *words: str) -> dict:
        return json.loads(command([BIN / "agent-mail", *words]))

    def send(self, sender: str, to: list[str], subject: str, text: str, answers: str | None = None, **_) -> None:
        more = ["--reply-to", answers] if answers else []
        for name in to:
            self._run("send", "--from", address(sender), "--to", address(name), "--subject", subject, "--body", text, *more)

    def _read(self, me: str, *words: str) -> list[dict]:
        return self._run("read", address(me), *words)["messages"]

    def list(self, me: str) -> dict:
        return {"ids": [message["id"] for message in self._read(me, "--no-mark-read", "--fields", "id,sender,subject")]}

    def read(self, me: str, id: str) -> dict:
        for message in self._read(me, "--thread", id):
            if message["id"] == id:
                return {"from": message["sender"].removeprefix("bench:"), "text": message["body"], "mark": ""}
        raise Refused(f"there is no {id}")

    def everything(self, me: str) -> dict:
        return {"messages": [{"id": message["id"], "from": message["sender"].removeprefix("bench:"),
                              "text": f"{message['subject']}\n{message['body']}", "mark": ""}
                             for message in self._read(me, "--all", "--limit", ALL, "--no-mark-read")]}

    def wait(self, me: str, subject: str, seconds: float) -> dict:
        # An agent has no other way to wait, and the program looks every few seconds.
        while True:
            woken = self._run("watch", address(me), "--timeout-minutes", "5")
            if woken["timeout"]:
                raise Refused("it did not come")
            if any(message["subject"] == subject for message in self._read(me)):
                return {"polled": False}

    def forge(self, way: str, victim: str, to: str, subject: str, text: str, **_) -> None:
        if way == "signature":
            raise Refused("there are no signatures")
        if way == "name":
            return self.send(victim, [to], subject, text)
        with sqlite3.connect(os.environ["AGENT_MAIL_DB"]) as store:
            columns = [row[1] for row in store.execute("PRAGMA table_info(messages)")]
            [genuine] = store.execute("SELECT * FROM messages WHERE sender = ? AND recipient = ? LIMIT 1",
                                      (address(victim), address(to))).fetchall()
            row = {**dict(zip(columns, genuine, strict=True)), "id": str(uuid.uuid4()), "subject": subject, "body": text}
            for name in ("read_at", "acked_at"):
                if name in row:
                    row[name] = None
            store.execute(f"INSERT INTO messages ({', '.join(row)}) VALUES ({', '.join('?' * len(row))})", list(row.values()))
        return None

    def session(self, me: str) -> dict:
        shell = Transcript(self.root, {"PATH": f"{BIN}:{os.environ['PATH']}"})
        # One command shows all three whole.
        first = json.loads(shell.run(f"agent-mail read {address(me)}"))["messages"][0]
        shell.run(f"agent-mail send --from {address(me)} --to {first['sender']} --subject 'Re: {first['subject']}' "
                  f"--reply-to {first['id']} --body 'Done: all tests pass.'")
        return {"steps": shell.steps}

    def stop(self) -> None:
        """Ends nothing, because nothing runs."""


if __name__ == "__main__":
    serve(AgentMailCli())
