#!/usr/bin/env python3
"""Verifies the signatures in SAMP logs with `cryptography`, without any code of msgfs.

usage: verify_samp.py LOG...     one line per record: valid|unsigned|BAD <fingerprint> <id>
Exit status 1 if any record is BAD or its id is not the one its content hashes to.
"""
import base64
import hashlib
import json
import sys
import unicodedata

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey


def canonical(record):
    """The bytes the id formula hashes: sorted keys, no spaces, raw UTF-8, the body in NFC."""
    record = dict(record)
    if isinstance(record.get("body"), str):
        record["body"] = unicodedata.normalize("NFC", record["body"])
    return json.dumps(record, ensure_ascii=False, sort_keys=True, separators=(",", ":")).encode()


def content_id(record):
    named = {k: record[k] for k in ("ts", "from", "to", "thread", "body") if k in record}
    return hashlib.sha256(canonical(named)).hexdigest()[:16]


def verdict(record):
    if "sig" not in record and "pub" not in record:
        return "unsigned", "-"
    try:
        key = base64.b64decode(record["pub"], validate=True)
        signature = base64.b64decode(record["sig"], validate=True)
        covered = b"samp-sig-v1\n" + canonical({k: v for k, v in record.items() if k != "sig"})
        Ed25519PublicKey.from_public_bytes(key).verify(signature, covered)
    except (KeyError, ValueError, InvalidSignature) as problem:
        return f"BAD({type(problem).__name__})", "-"
    return "valid", hashlib.sha256(key).hexdigest()[:16]


def main(paths):
    bad = 0
    for path in paths:
        with open(path, encoding="utf-8", newline="\n") as log:
            for line in log:
                if not line.strip():
                    continue
                record = json.loads(line)
                state, fingerprint = verdict(record)
                if record["id"] != content_id(record):
                    state = "BAD(id)"
                bad += state.startswith("BAD")
                print(state, fingerprint, record["id"])
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
