#!/usr/bin/env python3
"""The smallest SAMP: `send FROM TO TEXT`, `list ME`, `read ID`, in the folder that HOME names. It makes nothing durable."""

import hashlib
import json
import os
import sys
import time
import unicodedata
from pathlib import Path


def append(store: Path, sender: str, to: str, body: str) -> str:
    """Appends one record by one write and returns its id."""
    body = unicodedata.normalize("NFC", body)
    record = {"ts": int(time.time()), "from": sender, "to": to, "thread": "", "body": body}
    canonical = json.dumps(record, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    record = {"id": hashlib.sha256(canonical.encode()).hexdigest()[:16], **record}
    line = json.dumps(record, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
    fd = os.open(store / f"log-{sender}.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        if os.write(fd, line) != len(line):
            raise OSError("the line is not whole")
    finally:
        os.close(fd)
    return record["id"]


def records(store: Path, me: str | None) -> list[dict]:
    """Returns the records to `me`, oldest first; each id once."""
    found: dict[str, dict] = {}
    for log in store.glob("log-*.jsonl"):
        for line in log.read_bytes().split(b"\n"):
            try:
                record = json.loads(line)
                if me in (None, record["to"]):
                    found.setdefault(record["id"], record)
            except (ValueError, KeyError, TypeError):
                continue
    return sorted(found.values(), key=lambda record: record["ts"])


if __name__ == "__main__":
    folder = Path.home()
    match sys.argv[1:]:
        case ["send", sender, to, text]:
            print(append(folder, sender, to, text))
        case ["list", me]:
            for record in records(folder, me):
                print(json.dumps({"id": record["id"], "from": record["from"], "first": record["body"].split("\n")[0]}))
        case ["read", ident]:
            for record in records(folder, None):
                if record["id"] == ident:
                    print(f"From: {record['from']}\n\n{record['body']}")
        case _:
            sys.exit(__doc__)
