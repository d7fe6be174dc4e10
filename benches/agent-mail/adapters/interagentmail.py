#!/usr/bin/env python3
"""InterAgentMail (cgl-interagentmail): a command over mailboxes of JSON files; without its supervisor, which needs Codex."""

import json
import os
import re
import sys
import time
from pathlib import Path

sys.dont_write_bytecode = True

from adapter import Refused, Transcript, command, packaged, serve  # noqa: E402

BIN = Path(os.environ["AGENT_MAIL_VENV"]) / "bin"
LINE = re.compile(r"^(\S+) \[(read|new)\] \[\w+\] \S+ from .* <(\S+)>: (.*)$", re.MULTILINE)


class InterAgentMail:
    """Each operation is a command. An agent is named by the folder of its project."""

    def version(self) -> dict:
        return {"program": packaged("cgl-interagentmail")}

    def start(self, root: str, agents: list[str], **_) -> dict:
        self.root = Path(root)
        os.environ["INTERAGENTMAIL_HOME"] = str(self.root / "mail")
        for name in agents:
            project = self.root / "projects" / name
            if not project.exists():
                project.mkdir(parents=True)
                self._run(name, "init")
        return {"way": "command", "groups": True, "keys": False}

    def _run(self, me: str, verb: str, *words: str) -> str:
        return command([BIN / "interagentmail", verb, *words, "--project-root", self.root / "projects" / me])

    def send(self, sender: str, to: list[str], subject: str, text: str, answers: str | None = None, **_) -> None:
        if answers:
            self._run(sender, "reply", answers, "--subject", subject, "--body", text)
        else:
            self._run(sender, "send", "--to", ",".join(to), "--subject", subject, "--body", text)

    def _listed(self, me: str) -> list[tuple[str, str, str, str]]:
        return LINE.findall(self._run(me, "inbox"))

    def list(self, me: str) -> dict:
        return {"ids": [ident for ident, state, *_ in self._listed(me) if state == "new"]}

    def read(self, me: str, id: str) -> dict:
        message = json.loads(self._run(me, "read", id))
        return {"from": message["from"], "text": message["body"], "mark": ""}

    def everything(self, me: str) -> dict:
        return {"messages": [{"id": ident, "from": sender, "text": subject} for ident, _, sender, subject in self._listed(me)]}

    def wait(self, me: str, subject: str, seconds: float) -> dict:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if any(listed[3] == subject for listed in self._listed(me)):
                return {"polled": True}
        raise Refused("it did not come")

    def forge(self, way: str, victim: str, to: str, subject: str, text: str, genuine: dict[str, str]) -> None:
        if way == "signature":
            raise Refused("there are no signatures; the member of that name holds the sender's name")
        if way == "name":
            return self.send(victim, [to], subject, text)
        box = self.root / "mail/mailboxes" / to / "inbox"
        path = next(path for path in box.glob("*.json") if genuine["text"] in path.read_text())
        ident = f"{int(time.time())}-{os.urandom(4).hex()}"
        (box / f"{ident}.json").write_text(json.dumps(
            {**json.loads(path.read_text()), "id": ident, "subject": subject, "body": text, "read_at": None}))
        return None

    def session(self, me: str) -> dict:
        shell = Transcript(self.root / "projects" / me, {"PATH": f"{BIN}:{os.environ['PATH']}"})
        idents = [ident for ident, *_ in LINE.findall(shell.run("interagentmail inbox"))]
        for ident in idents[:3]:
            shell.run(f"interagentmail read {ident}")
        shell.run(f"interagentmail reply {idents[0]} --body 'Done: all tests pass.'")
        return {"steps": shell.steps}

    def stop(self) -> None:
        """Ends nothing, because nothing runs."""


if __name__ == "__main__":
    serve(InterAgentMail())
