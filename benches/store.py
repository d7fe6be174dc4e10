#!/usr/bin/env python3
"""Makes a SAMP store for measuring: the same bytes for the same arguments, on every machine."""

import argparse
import hashlib
import json
import os
import random
import time
from dataclasses import dataclass
from pathlib import Path

ME = "bob"

# 2026-01-05T00:00:00Z, a Monday in the past, so that no record is in the future.
START = 1_767_571_200

WORDS = (
    "schema migration index deploy review branch merge failing flaky timeout cache retry queue "
    "worker shard latency budget token prompt agent handoff summary blocked waiting approve reject "
    "rebase snapshot replay cursor offset commit rollback staging release canary metric trace span "
    "the a to of in is it on with and but not yet for please see when after before done next"
).split()

# What JSON must escape, and what is not ASCII: rare in real bodies, expensive in careless parsers.
SPICE = ['said "ship it"', "path\\to\\file", "first line\nsecond line", "Größe naïve café", "完了しました"]


@dataclass(frozen=True)
class Shape:
    """What a generated store looks like."""

    records: int
    logs: int = 10
    line_bytes: int = 300
    to_me: float = 0.5
    start: int = START
    span_seconds: int = 30 * 86_400
    seed: int = 1
    # As many threads, each with the same number of messages; 0 for some, as they come.
    threads: int = 0


def day(ts: int) -> str:
    """The day of a time, as folders are named."""
    return time.strftime("%Y-%m-%d", time.gmtime(ts))


def record(ts: int, sender: str, recipient: str, thread: str, body: str) -> tuple[str, bytes]:
    """One record as the reference writes it: its id and its line, with the newline."""
    fields = {"ts": ts, "from": sender, "to": recipient, "thread": thread, "body": body}
    hashed = json.dumps(fields, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    ident = hashlib.sha256(hashed.encode()).hexdigest()[:16]
    line = json.dumps({"id": ident, **fields}, ensure_ascii=False)
    return ident, line.encode() + b"\n"


def file_name(ts: int, sender: str, ident: str) -> str:
    """The name the mount gives the first message of a writer in a second."""
    stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime(ts))
    return f"{stamp}.000Z-{sender}-{ident[:8]}.txt"


def append(store: Path, sender: str, data: bytes, sync: bool = False) -> None:
    """Appends to a log as the reference does: one write to a descriptor opened with O_APPEND."""
    fd = os.open(store / f"log-{sender}.jsonl",
                 os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    try:
        os.write(fd, data)
        if sync:
            os.fdatasync(fd)
    finally:
        os.close(fd)


def writers(shape: Shape) -> list[str]:
    """Who writes in a store of this shape."""
    return [f"agent{n}" for n in range(shape.logs)]


def generate(store: Path, shape: Shape) -> int:
    """Writes the store; returns its size in bytes."""
    store.mkdir(parents=True, exist_ok=True)
    names = writers(shape)
    rng = random.Random(shape.seed)
    total = 0
    for number, sender in enumerate(names):
        share = shape.records // shape.logs + (number < shape.records % shape.logs)
        others = [name for name in names if name != sender] or ["nobody"]
        with open(store / f"log-{sender}.jsonl", "wb") as log:
            for n in range(share):
                ts = shape.start + n * shape.span_seconds // max(share, 1)
                recipient = ME if rng.random() < shape.to_me else others[rng.randrange(len(others))]
                thread = f"{day(ts)}-{WORDS[rng.randrange(50)]}-{rng.randrange(max(shape.records // 400, 1))}"
                if shape.threads:
                    thread = f"{day(shape.start)}-{WORDS[n % shape.threads % 50]}-{n % shape.threads}"
                _, line = record(ts, sender, recipient, thread, text(rng, shape.line_bytes, len(thread)))
                log.write(line)
                total += len(line)
    return total


def generate_many(store: Path, records: int, logs: int = 10) -> None:
    """Writes a store of many short records quickly: texts that JSON need not escape, a thread for four."""
    store.mkdir(parents=True, exist_ok=True)
    share, span = records // logs, 30 * 86_400
    for number in range(logs):
        sender = f"agent{number}"
        with open(store / f"log-{sender}.jsonl", "wb") as log:
            for n in range(share):
                ts, to = START + n * span // share, ME if n % 2 else f"agent{(number + 1) % logs}"
                thread = f"2026-01-{WORDS[n // 4 % 50]}-{number}-{n // 4}"
                body = f"{n:010x} please review the merge of shard {n % 97} when the canary has finished"
                hashed = f'{{"body":"{body}","from":"{sender}","thread":"{thread}","to":"{to}","ts":{ts}}}'
                ident = hashlib.sha256(hashed.encode()).hexdigest()[:16]
                line = f'{{"id": "{ident}", "ts": {ts}, "from": "{sender}", "to": "{to}", "thread": "{thread}", "body": "{body}"}}\n'
                log.write(line.encode())


def text(rng: random.Random, line_bytes: int, thread_bytes: int) -> str:
    """A body that makes its line about `line_bytes` long."""
    # The members of the record take about 115 bytes besides thread and body.
    wanted = int((line_bytes - 115 - thread_bytes) * rng.uniform(0.5, 1.5))
    parts = [f"{rng.getrandbits(40):010x}"]
    if rng.random() < 0.1:
        parts.append(SPICE[rng.randrange(len(SPICE))])
    length = sum(len(part) + 1 for part in parts)
    while length < wanted:
        word = WORDS[rng.randrange(len(WORDS))]
        parts.append(word)
        length += len(word) + 1
    return " ".join(parts)


def mark_all_read(store: Path, until: int) -> None:
    """Leaves the watermark of a reader who has read everything before `until`."""
    (store / f".seen-{ME}").write_text(json.dumps({"ts": until, "ids": []}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dir", type=Path, help="folder to write the logs to")
    parser.add_argument("--records", type=int, default=500_000)
    parser.add_argument("--logs", type=int, default=10)
    parser.add_argument("--line-bytes", type=int, default=300, help="mean length of a line")
    parser.add_argument("--to-me", type=float, default=0.5, help=f"share of the messages to {ME}")
    parser.add_argument("--span", type=int, default=30 * 86_400, help="seconds from first to last")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seen", action="store_true", help="mark everything read for the reference")
    args = parser.parse_args()
    shape = Shape(args.records, args.logs, args.line_bytes, args.to_me, START, args.span, args.seed)
    size = generate(args.dir, shape)
    if args.seen:
        mark_all_read(args.dir, START + args.span)
    print(f"{args.records} records, {size} bytes, {size / max(args.records, 1):.0f} bytes a line")


if __name__ == "__main__":
    main()
