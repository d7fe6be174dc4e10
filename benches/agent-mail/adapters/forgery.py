"""Writes messages into stores by hand, in the name of somebody else, with no key of his."""

import hashlib
import json
import os
import re
import time
from pathlib import Path

from adapter import Refused

HOST = "@localhost"
TENANT = "@acme.aimaestro.local"


def bare(kind: str, store: Path, victim: str, to: str, subject: str, text: str) -> None:
    """Writes a message without a signature, as the format's simplest writer does."""
    now, token = time.time(), os.urandom(6).hex()
    match kind:
        case "samp":
            record = {"ts": int(now), "from": victim, "to": to, "thread": "forged", "body": f"{subject}\n{text}"}
            _append(store / f"log-{victim}.jsonl", record)
        case "agentazall":
            box = store / "mailboxes" / (to + HOST) / time.strftime("%Y-%m-%d") / "inbox"
            box.mkdir(parents=True, exist_ok=True)
            (box / f"{token}.txt").write_text(
                f"From: {victim}{HOST}\nTo: {to}{HOST}\nSubject: {subject}\nDate: {time.strftime('%Y-%m-%d %H:%M:%S')}\n"
                f"Message-ID: {token}\nStatus: new\n\n---\n{text}")
        case "amp":
            ident, when = f"msg_{int(now)}_{token}0000", time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now))
            box = next(iter(_boxes(kind, store, to))) / f"{victim}{TENANT}".replace("@", "_").replace(".", "_")
            box.mkdir(parents=True, exist_ok=True)
            (box / f"{ident}.json").write_text(json.dumps({
                "envelope": {"version": "amp/0.1", "id": ident, "from": victim + TENANT, "to": to + TENANT, "subject": subject,
                             "priority": "normal", "timestamp": when, "thread_id": ident, "in_reply_to": None, "expires_at": None},
                "payload": {"message": text, "type": "notification"},
                "metadata": {"status": "unread", "queued_at": when, "delivery_attempts": 0},
                "local": {"received_at": when, "status": "unread"}}))
        case "amq":
            ident = f"{time.strftime('%Y-%m-%dT%H-%M-%S', time.gmtime(now))}.000Z_pid1_{token[:8]}"
            header = {"schema": 1, "id": ident, "from": victim, "to": [to], "thread": f"p2p/{victim}__{to}", "subject": subject,
                      "created": time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(now)), "priority": "normal"}
            (next(iter(_boxes(kind, store, to))) / "new" / f"{ident}.md").write_text(
                f"---json\n{json.dumps(header, indent=2)}\n---\n{text}\n")
        case "maildir":
            (next(iter(_boxes(kind, store, to))) / "new" / f"{int(now)}.{token}.forger").write_text(
                f"From: {victim}{HOST}\nTo: {to}{HOST}\nSubject: {subject}\nMessage-ID: <{token}@forger>\n"
                f"Date: {time.strftime('%a, %d %b %Y %H:%M:%S +0000', time.gmtime(now))}\n\n{text}\n")


def changed(kind: str, store: Path, victim: str, to: str, subject: str, text: str, genuine: dict[str, str]) -> None:
    """Writes a genuine message again, with another subject and text and a new id, and the signature that it had."""
    def alter(written: str) -> str:
        return written.replace(genuine["subject"], subject).replace(genuine["text"], text)

    if kind == "samp":
        log = store / f"log-{victim}.jsonl"
        line = next(line for line in log.read_text().splitlines() if genuine["text"] in line and json.loads(line)["to"] == to)
        record = json.loads(alter(line))
        del record["id"]
        return _append(log, record)
    for box in _boxes(kind, store, to):
        for path in sorted(box.rglob("*")):
            if not path.is_file() or genuine["text"] not in path.read_text(errors="replace"):
                continue
            written, new = alter(path.read_text()), os.urandom(3).hex()
            if kind == "maildir":
                written = re.sub(r"(?im)^(message-id: *<)", rf"\g<1>{new}", written)
                (box / "new" / f"{int(time.time())}.{new}.forger").write_text(written)
            else:
                folder = path.parent.parent / "new" if path.parent.name == "cur" else path.parent
                ident = path.stem
                (folder / f"{ident[:-6]}{new}{path.suffix}").write_text(written.replace(ident, ident[:-6] + new))
            return None
    raise Refused("the genuine message is in no file")


def carry(kind: str, own: Path, store: Path, victim: str, to: str, subject: str) -> None:
    """Copies what the forger's own program has sent in his own store into the store of the others."""
    if kind == "samp":
        lines = (own / f"log-{victim}.jsonl").read_text().splitlines()
        with (store / f"log-{victim}.jsonl").open("a") as log:
            log.write(next(line for line in lines if subject in line) + "\n")
        return
    for mine, theirs in zip(_boxes(kind, own, to), _boxes(kind, store, to), strict=True):
        for path in sorted(mine.rglob("*")):
            if path.is_file() and subject in path.read_text(errors="replace"):
                copy = theirs / path.relative_to(mine)
                copy.parent.mkdir(parents=True, exist_ok=True)
                copy.write_bytes(path.read_bytes())


def _append(log: Path, record: dict) -> None:
    named = {key: record[key] for key in ("ts", "from", "to", "thread", "body")}
    canonical = json.dumps(named, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    record = {"id": hashlib.sha256(canonical.encode()).hexdigest()[:16], **record}
    with log.open("a") as file:
        file.write(json.dumps(record, ensure_ascii=False, separators=(",", ":")) + "\n")


def _boxes(kind: str, store: Path, to: str) -> list[Path]:
    """Returns the folders in which mail to somebody arrives."""
    match kind:
        case "agentazall":
            return [store / "mailboxes" / (to + HOST)]
        case "amp":
            return [store / "agents" / to / "messages/inbox"]
        case "amq":
            return [store / "agents" / to / "inbox"]
        case _:
            return [store / to]
