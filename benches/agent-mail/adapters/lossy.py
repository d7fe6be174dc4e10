#!/usr/bin/env python3
"""A program for the self-test: it loses every tenth message, doubles every fifteenth, and believes everybody.

`lossy.py sound` does none of that.
"""

import fcntl
import json
import os
import sys
import time
from pathlib import Path

sys.dont_write_bytecode = True

from adapter import Refused, serve  # noqa: E402


class Lossy:
    """All messages are lines of one file."""

    def __init__(self, sound: bool) -> None:
        self.sound = sound

    def version(self) -> dict:
        return {"program": "lossy 1"}

    def start(self, root: str, **_) -> dict:
        self.log = Path(root) / "log"
        return {"way": "library", "groups": True, "keys": True}

    def _lines(self) -> list[dict]:
        return [json.loads(line) for line in self.log.read_text().splitlines()] if self.log.exists() else []

    def send(self, sender: str, to: list[str], subject: str, text: str, key: str, **_) -> None:
        with self.log.open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            lines = self._lines()
            for name in to * self._copies(lines, key):
                line = {"id": os.urandom(8).hex(), "from": sender, "to": name, "text": f"{subject}\n{text}", "key": key}
                os.write(file.fileno(), json.dumps(line).encode() + b"\n")

    def _copies(self, lines: list[dict], key: str) -> int:
        if self.sound:
            return int(all(line["key"] != key for line in lines))
        with (self.log.parent / "count").open("a+") as file:
            file.write(".")
            number = file.tell()
        return 0 if number % 10 == 9 else 2 if number % 15 == 7 else 1

    def list(self, me: str) -> dict:
        return {"ids": [message["id"] for message in self._lines() if message["to"] == me]}

    def read(self, me: str, id: str) -> dict:
        for message in self._lines():
            if message["id"] == id:
                return {**message, "mark": ""}
        raise Refused(f"there is no {id}")

    def everything(self, me: str) -> dict:
        return {"messages": [{**message, "mark": ""} for message in self._lines() if message["to"] == me]}

    def wait(self, me: str, subject: str, seconds: float) -> dict:
        end = time.monotonic() + min(seconds, 0.5)
        while time.monotonic() < end:
            if any(message["to"] == me and message["text"].startswith(subject) for message in self._lines()):
                return {"polled": True}
            time.sleep(0.001)
        # What it lost does not come; the test of arrivals is not that of losses.
        return {"polled": True}

    def forge(self, way: str, victim: str, to: str, subject: str, text: str, **_) -> None:
        if self.sound:
            raise Refused("nobody else can write into the file")
        self.send(victim, [to], subject, text, os.urandom(8).hex())

    def stop(self) -> None:
        """Ends nothing, because nothing runs."""


if __name__ == "__main__":
    serve(Lossy("sound" in sys.argv[1:]))
