#!/usr/bin/env python3
"""Reads message files with AgentAZAll's own functions and prints what they say.

usage: verify_agentazall.py FILE...     (with the Python of an environment that has agentazall)

One JSON object a line: headers, body (unwrapped), verified (true, false, null: unsigned), fingerprint
(computed from the key), claimed (the text of the Fingerprint line), envelope (whether Signature-V2
covers the metadata lines and the body: checked here, for the program itself ignores it; null without),
metadata (the lines of the block), attachments (name -> whether the signed hash fits the file).
"""
import base64
import hashlib
import json
import sys
from pathlib import Path

import nacl.exceptions
import nacl.signing
from agentazall.identity import fingerprint_from_b64
from agentazall.messages import parse_message, unwrap_signed_body, verify_message

BEGIN = "---BEGIN AGENTAZALL SIGNED MESSAGE---\n"


def metadata(body):
    """The metadata lines of the block that opens the text."""
    if not body.startswith(BEGIN):
        return []
    return body[len(BEGIN):].split("\n\n", 1)[0].split("\n")


def envelope(lines, text, key):
    """Whether Signature-V2 covers all other metadata lines and the text."""
    signed = [line for line in lines if line.startswith("Signature-V2: ")]
    if not signed:
        return None
    covered = "".join(line + "\n" for line in lines if line not in signed) + "\n" + text
    try:
        verifier = nacl.signing.VerifyKey(base64.b64decode(key, validate=True))
        verifier.verify(covered.encode(), base64.b64decode(signed[0].split(": ", 1)[1], validate=True))
    except (ValueError, nacl.exceptions.CryptoError):
        return False
    return len(signed) == 1


def attachments(path, lines):
    """Each signed attachment, and whether the file beside the message is the one that was signed."""
    found = {}
    for line in lines:
        if line.startswith("Attachment: sha256="):
            digest, name = line.removeprefix("Attachment: sha256=").split("; name=", 1)
            file = path.with_suffix("") / name
            found[name] = file.is_file() and hashlib.sha256(file.read_bytes()).hexdigest() == digest
    return found


def report(path):
    headers, body = parse_message(path)
    text, key, claimed, _ = unwrap_signed_body(body)
    lines = metadata(body)
    return {
        "headers": headers,
        "body": text,
        "verified": verify_message(headers, body),
        "fingerprint": fingerprint_from_b64(key) if key else None,
        "claimed": claimed,
        "envelope": envelope(lines, text, key) if key else None,
        "metadata": lines,
        "attachments": attachments(path, lines),
    }


def main(paths):
    for path in paths:
        print(json.dumps(report(Path(path))))


if __name__ == "__main__":
    main(sys.argv[1:])
