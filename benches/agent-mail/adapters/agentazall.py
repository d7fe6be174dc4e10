#!/usr/bin/env python3
"""AgentAZAll, by its own program `agentazall`: mailboxes of letters on this machine, no server."""

import json
import os
import re
import sys
import time
from pathlib import Path

sys.dont_write_bytecode = True

import forgery  # noqa: E402
from adapter import Refused, Transcript, command, serve  # noqa: E402

PROGRAM = Path(os.environ["AGENT_MAIL_VENV"]) / "bin/agentazall"
FIELD = re.compile(r"^    (From|Subject|ID): (.*)$", re.MULTILINE)
HOST = "@localhost"


class AgentAZAll:
    """Each operation is a command. Bodies are signed by the program; its `read` prints the signed block as it is."""

    def version(self) -> dict:
        return {"program": command([PROGRAM, "--version"]).strip()}

    def start(self, root: str, agents: list[str], **_) -> dict:
        self.root = Path(root)
        self.boxes = self.root / "mailboxes"
        for name in agents:
            if not (self.root / name / "config.json").exists():
                self._enrol(name)
        return {"way": "command", "groups": True, "keys": False}

    def _enrol(self, name: str) -> None:
        (self.root / name).mkdir(parents=True)
        (self.boxes / (name + HOST)).mkdir(parents=True)
        (self.root / name / "config.json").write_text(json.dumps(
            {"agent_name": name + HOST, "mailbox_dir": str(self.boxes), "transport": "none", "log_file": ""}))
        self._run(name, "crypto-identity")

    def _run(self, me: str, *words: str) -> str:
        return command([PROGRAM, *words], env={"AGENTAZALL_CONFIG": str(self.root / me / "config.json")})

    def send(self, sender: str, to: list[str], subject: str, text: str, **_) -> None:
        said = self._run(sender, "send", "--to", ",".join(name + HOST for name in to), "-s", subject, "-b", text)
        if "Delivered" not in said:
            raise Refused(said.strip()[-300:])

    def _listed(self, me: str, *more: str) -> list[dict]:
        said = self._run(me, "inbox", "--offline", *more)
        found: list[dict] = []
        for block in re.split(r"^\[\d+\] ", said, flags=re.MULTILINE)[1:]:
            found.append({**dict(FIELD.findall(block)), "new": block.startswith("[NEW]")})
        return found

    def list(self, me: str) -> dict:
        return {"ids": [letter["ID"] for letter in self._listed(me) if letter["new"]]}

    def read(self, me: str, id: str) -> dict:
        said = self._run(me, "read", id)
        sender = re.search(r"^From: (.*?)(?:@localhost)?$", said, re.MULTILINE)
        mark = re.search(r"^Fingerprint: .*$", said, re.MULTILINE)
        return {"from": sender[1] if sender else "", "text": said, "mark": mark[0] if mark else ""}

    def everything(self, me: str) -> dict:
        return {"messages": [{"id": letter["ID"], "from": letter["From"].removesuffix(HOST), "text": letter["Subject"]}
                             for letter in self._listed(me, "--all")]}

    def wait(self, me: str, subject: str, seconds: float) -> dict:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if any(letter["Subject"] == subject for letter in self._listed(me)):
                return {"polled": True}
        raise Refused("it did not come")

    def search(self, me: str, text: str) -> dict:
        found = re.search(r"\((\d+) found\)", self._run(me, "search", text))
        return {"found": int(found[1]) if found else 0}

    def forge(self, way: str, victim: str, to: str, subject: str, text: str, genuine: dict[str, str]) -> None:
        if way == "name":
            return self._forge_by_name(victim, to, subject, text)
        if way == "bare":
            return forgery.bare("agentazall", self.root, victim, to, subject, text)
        return forgery.changed("agentazall", self.root, victim, to, subject, text, genuine)

    def _forge_by_name(self, victim: str, to: str, subject: str, text: str) -> None:
        """Runs the program for that name in a place of the forger's own, and copies the letter."""
        own = AgentAZAll()
        own.start(str(self.root / "forger"), [victim, to])
        own.send(victim, [to], subject, text)
        forgery.carry("agentazall", own.root, self.root, victim, to, subject)

    def session(self, me: str) -> dict:
        shell = Transcript(self.root, {"AGENTAZALL_CONFIG": str(self.root / me / "config.json"),
                                       "PATH": f"{PROGRAM.parent}:{os.environ['PATH']}"})
        idents = re.findall(r"^    ID: (.*)$", shell.run("agentazall inbox"), re.MULTILINE)
        for ident in idents[:3]:
            shell.run(f"agentazall read {ident}")
        shell.run(f"agentazall reply {idents[0]} --body 'Done: all tests pass.'")
        return {"steps": shell.steps}

    def stop(self) -> None:
        """Ends nothing, because nothing runs."""


if __name__ == "__main__":
    serve(AgentAZAll())
