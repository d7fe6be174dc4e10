#!/usr/bin/env python3
"""The peer of the index: a plain SAMP reader, as somebody would write it in an afternoon.

It does what a cold index must do: parse each record, check its id, drop duplicates and records in
the wrong log, keep those to me in order. Prints one JSON object about it.
"""

import hashlib
import json
import sys
import unicodedata
from pathlib import Path


def resident() -> int:
    """Resident memory of this process in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise OSError("no VmRSS in /proc/self/status")


def main() -> None:
    store, me = Path(sys.argv[1]), sys.argv[2]
    before = resident()
    seen: set[tuple[str, str]] = set()
    mine = []
    records = bad_ids = 0
    for path in sorted(store.glob("log-*.jsonl")):
        alias = path.name[4:-6]
        with open(path, encoding="utf-8", errors="replace") as log:
            for line in log:
                try:
                    record = json.loads(line)
                except ValueError:
                    continue
                if not isinstance(record, dict) or record.get("from") != alias:
                    continue
                fields = {key: record[key] for key in ("ts", "from", "to", "thread", "body") if key in record}
                fields["body"] = unicodedata.normalize("NFC", fields["body"])
                hashed = json.dumps(fields, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
                ident = hashlib.sha256(hashed.encode()).hexdigest()[:16]
                bad_ids += ident != record.get("id")
                key = (alias, record.get("id") or ident)
                if key in seen:
                    continue
                seen.add(key)
                records += 1
                if record["to"] == me:
                    mine.append((record["ts"], alias, key[1], record["thread"]))
    mine.sort(key=lambda entry: entry[0])
    print(json.dumps({"records": records, "to_me": len(mine), "bad_ids": bad_ids,
                      "bytes": resident() - before}))


if __name__ == "__main__":
    main()
