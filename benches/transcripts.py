#!/usr/bin/env python3
"""Makes transcripts of Claude Code for measuring: the same bytes for the same arguments.

    transcripts.py DIR COUNT    sessions of 600 records in DIR/projects, COUNT records in all
"""

import datetime
import json
import os
import random
import sys
import uuid

WORDS = "parser index file error test module line buffer cursor scan store message thread token value".split()


class Session:
    """The records of one session, 0.35 s each."""

    def __init__(self, dice, start):
        self.dice, self.time = dice, start
        self.id = self.uuid()
        self.lines = []

    def uuid(self):
        return str(uuid.UUID(int=self.dice.getrandbits(128), version=4))

    def text(self):
        return " ".join(self.dice.choices(WORDS, k=self.dice.choice((3, 8, 20, 40, 80, 150))))

    def add(self, record):
        self.lines.append(json.dumps(record, separators=(",", ":")))

    def record(self, kind, **more):
        self.time += datetime.timedelta(milliseconds=350)
        head = {"parentUuid": None, "isSidechain": False, "type": kind, "uuid": self.uuid()}
        head["timestamp"] = self.time.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        head |= {"userType": "external", "entrypoint": "cli", "cwd": "/home/anna/p", "sessionId": self.id}
        self.add(head | {"version": "2.1.332", "gitBranch": "main"} | more)

    def answer(self, name, block):
        message = {"id": name, "type": "message", "role": "assistant", "model": "opus", "content": [block]}
        usage = {"input_tokens": 10, "output_tokens": 7}
        self.record("assistant", message=message | {"stop_reason": "end_turn", "usage": usage})

    def turn(self):
        """Adds a prompt and an answer with three calls: 15 records."""
        self.record("user", message={"role": "user", "content": self.text()}, promptSource="typed")
        self.record("attachment", attachment={"type": "task_reminder", "content": self.text()})
        for step in range(3):
            name, call = "msg_" + self.uuid()[:12], "toolu_" + self.uuid()[:16]
            self.answer(name, {"type": "thinking", "thinking": self.text(), "signature": "x" * 80})
            self.answer(name, {"type": "tool_use", "id": call, "name": "Bash", "input": {"command": self.text()}})
            output = self.text()
            result = {"tool_use_id": call, "type": "tool_result", "content": output, "is_error": False}
            more = {"toolUseResult": {"stdout": output, "stderr": ""}}
            self.record("user", message={"role": "user", "content": [result]}, **more)
            if step == 1:
                self.add({"type": "last-prompt", "lastPrompt": "x", "leafUuid": self.uuid(), "sessionId": self.id})
            self.answer("msg_" + self.uuid()[:12], {"type": "text", "text": self.text()})


def make(folder, count):
    """Writes sessions of `count` records in all, or a few more. Returns the numbers of records and of sessions."""
    dice = random.Random(1)
    time = datetime.datetime(2026, 11, 1, tzinfo=datetime.timezone.utc)
    made = number = 0
    while made < count:
        session = Session(dice, time)
        for _ in range(40):
            session.turn()
        project = os.path.join(folder, "projects", f"-home-anna-p{number % 40}")
        os.makedirs(project, exist_ok=True)
        with open(os.path.join(project, session.id + ".jsonl"), "w", encoding="utf-8") as file:
            file.write("\n".join(session.lines) + "\n")
        made, number, time = made + len(session.lines), number + 1, session.time
    return made, number


def main():
    made, number = make(sys.argv[1], int(sys.argv[2]))
    print(f"{made} records in {number} sessions")


if __name__ == "__main__":
    main()
