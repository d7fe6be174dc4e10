#!/usr/bin/env python3
"""A Maildir for each agent, written and read with the commands of mblaze."""

import os
import re
import subprocess
import sys
import time
from email.utils import formatdate, make_msgid
from pathlib import Path

sys.dont_write_bytecode = True

import forgery  # noqa: E402
from adapter import Refused, Transcript, command, serve  # noqa: E402

HOST = "@localhost"


class Maildir:
    """mdeliver, mlist, mhdr, mshow, magrep and mflag."""

    def version(self) -> dict:
        return {"program": "mblaze " + command(["dpkg-query", "-W", "-f", "${Version}", "mblaze"])}

    def start(self, root: str, agents: list[str], **_) -> dict:
        self.root = Path(root)
        os.environ["HOME"] = root  # mblaze keeps the last sequence there
        os.environ["COLUMNS"] = "1000"  # mscan cuts its lines
        (self.root / ".mblaze").mkdir(exist_ok=True)
        for name in agents:
            for part in ("tmp", "new", "cur"):
                (self.root / name / part).mkdir(parents=True, exist_ok=True)
        return {"way": "command", "groups": True, "keys": False}

    def send(self, sender: str, to: list[str], subject: str, text: str, **_) -> None:
        mail = (f"From: {sender}{HOST}\nTo: {', '.join(name + HOST for name in to)}\nSubject: {subject}\n"
                f"Date: {formatdate()}\nMessage-ID: {make_msgid(domain='bench')}\n\n{text}\n")
        for name in to:
            command(["mdeliver", self.root / name], mail)

    def list(self, me: str) -> dict:
        return {"ids": command(["mlist", "-s", self.root / me]).split()}

    def read(self, me: str, id: str) -> dict:
        said = command(["mshow", id])
        command(["mflag", "-S"], id + "\n")
        sender = re.search(r"^From: (.*?)@localhost$", said, re.MULTILINE)
        return {"from": sender[1] if sender else "", "text": said, "mark": ""}

    def everything(self, me: str) -> dict:
        listed, found = command(["mlist", self.root / me]), []
        for line in command(["mscan", "-f", "%R|%f|%s"], listed).splitlines() if listed else []:
            path, sender, subject = line.split("|", 2)
            found.append({"id": path, "from": sender.removesuffix(HOST), "text": subject, "mark": ""})
        return {"messages": found}

    def wait(self, me: str, subject: str, seconds: float) -> dict:
        end, known = time.monotonic() + seconds, set()
        while time.monotonic() < end:
            for path in set(command(["mlist", self.root / me]).split()) - known:
                known.add(path)
                if command(["mhdr", "-h", "subject", path]).strip() == subject:
                    return {"polled": True}
        raise Refused("it did not come")

    def search(self, me: str, text: str) -> dict:
        listed = command(["mlist", self.root / me])
        done = subprocess.run(["magrep", "/:" + re.escape(text)], input=listed, capture_output=True, check=False, text=True)
        return {"found": len(done.stdout.splitlines())}

    def forge(self, way: str, victim: str, to: str, subject: str, text: str, **_) -> None:
        if way == "signature":
            raise Refused("there are no signatures")
        if way == "name":
            return self.send(victim, [to], subject, text)
        return forgery.bare("maildir", self.root, victim, to, subject, text)

    def session(self, me: str) -> dict:
        shell = Transcript(self.root)
        shell.run(f"mlist -s ~/{me} | mseq -S | mscan")
        said = [shell.run(f"mshow {number}; mflag -S {number}") for number in (1, 2, 3)]
        sender = re.search(r"^From: (.*)@localhost$", said[0], re.MULTILINE)[1]
        subject = re.search(r"^Subject: (.*)$", said[0], re.MULTILINE)[1]
        shell.run(f"printf 'From: {me}{HOST}\\nTo: {sender}{HOST}\\nSubject: Re: {subject}\\n\\nDone: all tests pass.\\n' | mdeliver ~/{sender}")
        return {"steps": shell.steps}

    def stop(self) -> None:
        """Ends nothing, because nothing runs."""


if __name__ == "__main__":
    serve(Maildir())
