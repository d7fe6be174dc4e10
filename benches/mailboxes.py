#!/usr/bin/env python3
"""Makes AgentAZAll and AMP mailboxes for measuring: the same bytes for the same arguments.

    mailboxes.py agentazall ROOT COUNT     ROOT/config.json and its mailboxes: COUNT letters to bob@localhost
    mailboxes.py amp HOME COUNT            HOME/agents with bob, who has COUNT messages
    mailboxes.py read-amp HOME             reads and parses every AMP message, as a plain program does;
                                           prints the count, the bytes and the seconds as JSON

Letters are signed, so the first two need PyNaCl: run them with the Python of the environment that has
agentazall.
"""

import base64
import hashlib
import json
import os
import random
import sys
import time
from pathlib import Path

from store import START, WORDS

ME = "bob@localhost"
SENDERS = 10
DAYS = 30


def signing_key(seed: int):
    """A key that is the same in every run."""
    import nacl.signing

    return nacl.signing.SigningKey(bytes([seed]) * 32)


def text(rng: random.Random) -> str:
    """A body of a few lines, as agents write them."""
    return "\n".join(" ".join(rng.choices(WORDS, k=rng.randrange(4, 14))) for _ in range(rng.randrange(1, 6)))


def letter_id(number: int) -> str:
    """The id of a letter: twelve hexadecimal digits, as the reference makes them."""
    return hashlib.sha256(b"letter %d" % number).hexdigest()[:12]


def letter_name(number: int, count: int) -> str:
    """The name of a letter in the mount."""
    stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime(letter_time(number, count)))
    return f"{stamp}.000Z-agent{number % SENDERS}@localhost-{letter_id(number)[:8]}.txt"


def letter_time(number: int, count: int) -> int:
    """When a letter was written."""
    return START + number * DAYS * 86_400 // count


def agentazall(root: Path, count: int) -> None:
    """A project of bob@localhost with a full inbox, all of it new."""
    boxes = root / "data/mailboxes"
    for name in (ME, "alice@localhost"):
        (boxes / name).mkdir(parents=True)
    config = {"agent_name": ME, "mailbox_dir": "./data/mailboxes", "transport": "none", "log_file": ""}
    (root / "config.json").write_text(json.dumps(config))
    identity(boxes / ME, signing_key(99))
    keys = [signing_key(n + 1) for n in range(SENDERS)]
    rng = random.Random(1)
    for number in range(count):
        body, key = text(rng), keys[number % SENDERS]
        public = base64.b64encode(key.verify_key.encode()).decode()
        fingerprint = hashlib.sha256(key.verify_key.encode()).hexdigest()[:16]
        signature = base64.b64encode(key.sign(body.encode()).signature).decode()
        when = time.gmtime(letter_time(number, count))
        ident = letter_id(number)
        subject = " ".join(rng.choices(WORDS, k=3))
        folder = boxes / ME / time.strftime("%Y-%m-%d", when) / "inbox"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{ident}.txt").write_text(
            f"From: agent{number % SENDERS}@localhost\nTo: {ME}\nSubject: {subject}\n"
            f"Date: {time.strftime('%Y-%m-%d %H:%M:%S', when)}\nMessage-ID: {ident}\nStatus: new\n\n---\n"
            f"---BEGIN AGENTAZALL SIGNED MESSAGE---\nFingerprint: {fingerprint}\nPublic-Key: {public}\n\n{body}\n"
            "---END AGENTAZALL SIGNED MESSAGE---\n---BEGIN AGENTAZALL SIGNATURE---\n"
            f"{signature}\n---END AGENTAZALL SIGNATURE---")


def identity(base: Path, key) -> None:
    """The reference's key file, with the mode it should have."""
    public = key.verify_key.encode()
    path = base / ".identity_key"
    path.write_text(json.dumps({
        "private_key_hex": key.encode().hex(), "public_key_hex": public.hex(),
        "public_key_b64": base64.b64encode(public).decode(),
        "fingerprint": hashlib.sha256(public).hexdigest()[:16], "created": "2026-01-01T00:00:00.000000",
    }, indent=2))
    path.chmod(0o600)


def pem(kind: str, prefix: str, raw: bytes) -> str:
    """An Ed25519 key as the tools write it."""
    data = base64.b64encode(bytes.fromhex(prefix) + raw).decode()
    return f"-----BEGIN {kind} KEY-----\n{data}\n-----END {kind} KEY-----\n"


def agent(home: Path, name: str, seed: int):
    """An agent's folder; gives its key and the folder."""
    folder, key = home / "agents" / f"{seed:08x}-0000-4000-8000-000000000000", signing_key(seed)
    for part in ("keys", "registrations", "messages/inbox", "messages/sent", "attachments"):
        (folder / part).mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({
        "version": "1.1", "agent": {"name": name, "tenant": "acme", "address": f"{name}@acme.aimaestro.local"},
        "provider": {"domain": "aimaestro.local"}}))
    (folder / "keys/private.pem").write_text(pem("PRIVATE", "302e020100300506032b657004220420", key.encode()))
    (folder / "keys/private.pem").chmod(0o600)
    (folder / "keys/public.pem").write_text(pem("PUBLIC", "302a300506032b6570032100", key.verify_key.encode()))
    return key, folder


def amp(home: Path, count: int) -> None:
    """The agents, and bob's inbox full of signed messages, all unread."""
    key, bob = agent(home, "bob", 1)
    senders = [agent(home, f"agent{n}", n + 2) for n in range(SENDERS)]
    index = {"bob": bob.name} | {f"agent{n}": folder.name for n, (_, folder) in enumerate(senders)}
    (home / "agents/.index.json").write_text(json.dumps(index))
    rng = random.Random(1)
    to = "bob@acme.aimaestro.local"
    for number in range(count):
        key = senders[number % SENDERS][0]
        sender = f"agent{number % SENDERS}@acme.aimaestro.local"
        stamp = START + number * DAYS * 86_400 // count
        ident = f"msg_{stamp}_{number:016x}"
        subject, payload = " ".join(rng.choices(WORDS, k=3)), {"message": text(rng), "type": "notification"}
        canonical = json.dumps(payload, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
        digest = base64.b64encode(hashlib.sha256(canonical.encode()).digest()).decode()
        signed = f"{sender}|{to}|{subject}|normal||{digest}"
        folder = bob / "messages/inbox" / sender.replace("@", "_").replace(".", "_")
        folder.mkdir(exist_ok=True)
        when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(stamp))
        (folder / f"{ident}.json").write_text(json.dumps({
            "envelope": {"version": "amp/0.1", "id": ident, "from": sender, "to": to, "subject": subject,
                         "priority": "normal", "timestamp": when, "thread_id": ident, "in_reply_to": None,
                         "expires_at": None,
                         "signature": base64.b64encode(key.sign(signed.encode()).signature).decode()},
            "payload": payload,
            "metadata": {"status": "unread", "queued_at": when, "delivery_attempts": 0},
            "local": {"received_at": when, "status": "unread"},
        }, indent=2) + "\n")


def read_amp(home: Path) -> None:
    """Reads and parses all messages and keeps them, as a program without an index must."""
    start, size, kept = time.perf_counter(), 0, []
    for folder, _, names in os.walk(home / "agents"):
        if "/messages/" in folder:
            for name in names:
                with open(os.path.join(folder, name), "rb") as file:
                    data = file.read()
                size += len(data)
                kept.append(json.loads(data))
    print(json.dumps({"count": len(kept), "bytes": size, "seconds": time.perf_counter() - start}))


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["agentazall", root, count]:
            agentazall(Path(root), int(count))
        case ["amp", home, count]:
            amp(Path(home), int(count))
        case ["read-amp", home]:
            read_amp(Path(home))
        case _:
            sys.exit(__doc__)
