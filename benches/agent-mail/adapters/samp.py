#!/usr/bin/env python3
"""Plain SAMP, without any program: a log for each writer, lines of JSON, everybody reads all logs."""

import json
import os
import sys
import time
from pathlib import Path

sys.dont_write_bytecode = True

from adapter import Refused, Transcript, serve  # noqa: E402
from samp_writer import append, records  # noqa: E402

WRITER = Path(__file__).with_name("samp_writer.py")


class Samp:
    """Each operation opens the logs anew, as a command would."""

    def version(self) -> dict:
        return {"program": "a small writer in Python"}

    def start(self, root: str, agents: list[str], **_) -> dict:
        self.store = Path(root) / "store"
        self.store.mkdir(parents=True, exist_ok=True)
        return {"way": "library", "groups": False, "keys": False}

    def send(self, sender: str, to: list[str], subject: str, text: str, **_) -> None:
        for name in to:
            append(self.store, sender, name, f"{subject}\n{text}")

    def _seen(self, me: str) -> Path:
        return self.store / f".seen-{me}"

    def list(self, me: str) -> dict:
        path = self._seen(me)
        seen = set(path.read_text().split()) if path.exists() else set()
        return {"ids": [record["id"] for record in records(self.store, me) if record["id"] not in seen]}

    def read(self, me: str, id: str) -> dict:
        for record in records(self.store, me):
            if record["id"] == id:
                with self._seen(me).open("a") as seen:
                    seen.write(id + "\n")
                return {"from": record["from"], "text": record["body"], "mark": ""}
        raise Refused(f"there is no {id}")

    def everything(self, me: str) -> dict:
        return {"messages": [{"id": record["id"], "from": record["from"], "text": record["body"], "mark": ""}
                             for record in records(self.store, me)]}

    def wait(self, me: str, subject: str, seconds: float) -> dict:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if any(record["body"].startswith(subject) for record in records(self.store, me)):
                return {"polled": True}
            time.sleep(0.001)
        raise Refused("it did not come")

    def search(self, me: str, text: str) -> dict:
        return {"found": sum(text in record["body"] for record in records(self.store, me))}

    def forge(self, way: str, victim: str, to: str, subject: str, text: str, **_) -> None:
        if way == "signature":
            raise Refused("there are no signatures")
        append(self.store, victim, to, f"{subject}\n{text}")

    def session(self, me: str) -> dict:
        shell = Transcript(self.store)
        writer = "python3 -B ~/samp"
        os.symlink(WRITER, self.store / "samp")
        listed = [json.loads(line) for line in shell.run(f"{writer} list {me}").splitlines()]
        for record in listed[:3]:
            shell.run(f"{writer} read {record['id']}")
        shell.run(f"{writer} send {me} {listed[0]['from']} 'Done: all tests pass.'")
        return {"steps": shell.steps}

    def stop(self) -> None:
        """Ends nothing, because nothing runs."""


if __name__ == "__main__":
    serve(Samp())
