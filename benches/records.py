#!/usr/bin/env python3
"""Makes ATSF threads, SSOT folders and AMQ roots for measuring: the same bytes for the same arguments.

    records.py atsf PROJECT COUNT    threads of 200 messages in PROJECT/.agent, COUNT messages in all
    records.py ssot DIR COUNT        COUNT task records, a dispatch, a result, a request and a verdict a task
    records.py amq ROOT COUNT        a queue of bob, with COUNT unread messages of ten others
    records.py read DIR              reads and parses every message below DIR, as a plain program does;
                                     prints the count, the bytes and the seconds as JSON
"""

import json
import os
import random
import sys
import time
import uuid
from datetime import UTC, datetime
from pathlib import Path

from store import START, WORDS

PER_THREAD = 200


def words(rng: random.Random, least: int, most: int) -> str:
    """Some words."""
    return " ".join(rng.choices(WORDS, k=rng.randrange(least, most)))


def iso(millis: int) -> str:
    """A time as both formats write it."""
    return datetime.fromtimestamp(millis / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S.") + f"{millis % 1000:03}Z"


def unique(rng: random.Random) -> str:
    """A UUID of version 4."""
    return str(uuid.UUID(int=rng.getrandbits(128), version=4))


def atsf(project: Path, count: int) -> None:
    """Conversations of a user and an agent that calls a tool now and then."""
    rng = random.Random(1)
    for first in range(0, count, PER_THREAD):
        ident, size = unique(rng), min(PER_THREAD, count - first)
        folder = project / ".agent/threads" / ident
        folder.mkdir(parents=True)
        calls = 0
        with open(folder / "messages.jsonl", "w", encoding="utf-8") as log:
            for number in range(size):
                stamp = iso((START + first + number) * 1000 + number)
                message = {"id": unique(rng), "role": "agent" if number % 2 else "user", "timestamp": stamp,
                           "content": [{"type": "text", "text": words(rng, 10, 60)}]}
                if number % 6 == 5:
                    calls += 1
                    message["toolCalls"] = [{"toolCallId": f"call_{number}", "name": "Bash", "status": "completed",
                                             "input": words(rng, 3, 9), "output": words(rng, 3, 40)}]
                log.write(json.dumps(message, ensure_ascii=False, separators=(",", ":")) + "\n")
        (folder / "thread.json").write_text(json.dumps({
            "specVersion": "1.1", "threadId": ident, "title": words(rng, 2, 5),
            "createdAt": iso((START + first) * 1000), "updatedAt": stamp,
            "agent": {"id": "claude-code", "name": "Claude Code"}, "context": {"workingDir": str(project)},
            "stats": {"messageCount": size, "userMessageCount": (size + 1) // 2, "agentMessageCount": size // 2,
                      "toolCallCount": calls}}, indent=2) + "\n")


def payloads(rng: random.Random, task: str, dispatch: str, result: str) -> list[tuple[str, str, str, dict]]:
    """The four records of a task that goes well: type, from, to and payload."""
    criteria = [words(rng, 4, 10) for _ in range(3)]
    return [
        ("task_dispatch", "coordinator", "executor", {
            "description": words(rng, 10, 40), "repo": "/srv/project", "branch": f"agent/{task}",
            "subtasks": [{"subtask_id": f"{task}-S1", "description": words(rng, 4, 12), "estimated_lines": 60}],
            "acceptance_criteria": criteria, "risk_level": "low"}),
        ("task_result", "executor", "coordinator", {
            "subtask_id": f"{task}-S1", "completion_status": "complete",
            "diff_summary": {"files_changed": ["src/lib.rs"], "lines_added": 40, "lines_removed": 2},
            "self_assessment": {"criteria_met": [True] * 3, "notes": [""] * 3}, "work_log": []}),
        ("review_request", "coordinator", "reviewer", {
            "original_dispatch_ref": dispatch, "task_result_ref": result, "review_scope": "full",
            "diff_url": "/srv/project/diff.patch", "reject_count": 0}),
        ("review_verdict", "reviewer", "coordinator", {
            "decision": "approved", "confidence": 0.95,
            "criteria_results": [{"criterion": c, "passed": True, "evidence": words(rng, 3, 9)} for c in criteria]}),
    ]


def ssot(folder: Path, count: int) -> None:
    """Tasks that are approved at once; every record is acknowledged."""
    rng = random.Random(1)
    timeouts = {"task_dispatch": 300, "task_result": 120, "review_request": 600, "review_verdict": 60}
    made = 0
    for number in range((count + 3) // 4):
        task = f"T-{2020 + number // 1000}-{number % 1000:03}"
        (folder / "messages" / task).mkdir(parents=True)
        (folder / "acks" / task).mkdir(parents=True)
        start = (START + number * 300) * 1000
        names = [f"{kind}-{task}-{start + n * 1000}" for n, kind in enumerate(timeouts)]
        for n, (kind, sender, to, payload) in enumerate(payloads(rng, task, names[0], names[1])):
            if made == count:
                return
            made += 1
            (folder / "messages" / task / f"{names[n]}.json").write_text(json.dumps({
                "msg_id": names[n], "protocol_version": "AMP/1.0", "type": kind, "from": sender, "to": to,
                "task_id": task, "timestamp": iso(start + n * 1000), "requires_ack": True,
                "ack_timeout_sec": timeouts[kind], "payload": payload}, indent=2) + "\n")
            (folder / "acks" / task / f"{names[n]}.json").write_text(json.dumps({
                "ack_for": names[n], "from": to, "task_id": task, "timestamp": iso(start + n * 1000 + 500),
                "protocol_version": "AMP/1.0"}, indent=2) + "\n")


def amq(root: Path, count: int) -> None:
    """Mailboxes as the queue's program makes them, and mail to bob."""
    rng = random.Random(1)
    leaves = ("inbox/tmp", "inbox/new", "inbox/cur", "outbox/sent", "receipts", "dlq/tmp", "dlq/new", "dlq/cur")
    for leaf in leaves:
        (root / "agents/bob" / leaf).mkdir(parents=True)
    for number in range(count):
        millis, sender = (START + number * 60) * 1000, f"agent{number % 10}"
        ident = f"{iso(millis).replace(':', '-')}_pid1_{number:08x}"
        header = {"schema": 1, "id": ident, "from": sender, "to": ["bob"], "thread": f"p2p/{sender}__bob",
                  "subject": words(rng, 2, 5), "created": iso(millis), "priority": "normal", "kind": "status"}
        (root / f"agents/bob/inbox/new/{ident}.md").write_text(
            f"---json\n{json.dumps(header, indent=2)}\n---\n{words(rng, 20, 120)}\n")


def read(top: Path) -> None:
    """Reads and parses all messages and keeps them, as a program without an index must."""
    start, size, kept = time.perf_counter(), 0, []
    for folder, _, names in os.walk(top):
        for name in names:
            if name.endswith((".jsonl", ".md")) or "/messages/" in folder:
                with open(os.path.join(folder, name), "rb") as file:
                    data = file.read()
                size += len(data)
                if name.endswith(".md"):
                    header, _, body = data.removeprefix(b"---json\n").partition(b"\n---\n")
                    kept.append((json.loads(header), body))
                    continue
                kept.extend(map(json.loads, data.splitlines()) if name.endswith("l") else [json.loads(data)])
    print(json.dumps({"count": len(kept), "bytes": size, "seconds": time.perf_counter() - start}))


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["atsf", project, count]:
            atsf(Path(project), int(count))
        case ["ssot", folder, count]:
            ssot(Path(folder), int(count))
        case ["amq", root, count]:
            amq(Path(root), int(count))
        case ["read", folder]:
            read(Path(folder))
        case _:
            sys.exit(__doc__)
