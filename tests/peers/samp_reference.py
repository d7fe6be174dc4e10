#!/usr/bin/env python3
"""A small SAMP reader and writer that behaves as the documented reference releases do.

It stands in for the other programs that share a store with msgfs. Two releases differ in how they
keep the reader's watermark, so both rules are here:

  r111   ids in `.seen-<me>` are bare; a record is skipped if ts < mark, or ts == mark and id known
  r12    ids are "<from>:<id>"; the mark is capped at now; a known id is skipped at any ts

usage: samp_reference.py DIR send FROM TO            (body on stdin; prints the id)
       samp_reference.py DIR inbox ME r111|r12 [--peek]   (prints one id a line, moves the mark)
       samp_reference.py DIR all ME                  (prints one JSON record a line, mark untouched)
       samp_reference.py DIR reply ME                (body on stdin; answers the newest to ME)
       samp_reference.py DIR burst FROM TO COUNT DELAY    (sends COUNT numbered messages)
       samp_reference.py DIR compact ALIAS           (rewrites one log as the reference compacts)
"""
import hashlib
import json
import os
import re
import sys
import time
import unicodedata

ALIAS = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
SPACE = " \t\n\v\f\r\x1c-\x1f\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
OVERRIDE = re.compile(f"[{SPACE}]*\\[thread:([^\\]]+)\\][{SPACE}]*")


def record_id(record):
    hashed = {k: record[k] for k in ("ts", "from", "to", "thread", "body") if k in record}
    if isinstance(hashed.get("body"), str):
        hashed["body"] = unicodedata.normalize("NFC", hashed["body"])
    text = json.dumps(hashed, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def derive_thread(sender, body, ts):
    found = OVERRIDE.match(body)
    if found:
        rest = body[found.end():]
        name = re.sub("[\x00-\x1f\x7f]", "", found.group(1)).strip()
        if name:
            return name, rest
        body = rest
    first = re.split("\r\n|[\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029]", body, maxsplit=1)[0]
    slug = re.sub("[^a-z0-9]+", "-", first.lower()).strip("-")[:40] or "msg"
    return f"{time.strftime('%Y-%m-%d', time.gmtime(ts))}-{sender}-{slug}", body


def append(folder, record):
    path = os.path.join(folder, f"log-{record['from']}.jsonl")
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    line = (json.dumps(record, ensure_ascii=False) + "\n").encode()
    log = os.open(path, flags, 0o644)
    try:
        if os.write(log, line) != len(line):
            raise OSError("short write")
    finally:
        os.close(log)


def send(folder, sender, to, body, thread=None):
    if not ALIAS.fullmatch(sender) or not ALIAS.fullmatch(to):
        raise SystemExit("bad alias")
    ts = int(time.time())
    body = unicodedata.normalize("NFC", body.rstrip("\n"))
    if thread is None:
        thread, body = derive_thread(sender, body, ts)
    record = {"id": "", "ts": ts, "from": sender, "to": to, "thread": thread, "body": body}
    record["id"] = record_id(record)
    append(folder, record)
    return record["id"]


def scan(folder):
    """Every valid record in the reference's order: file name, line, stable by ts; once each."""
    found, seen = [], set()
    for name in sorted(n for n in os.listdir(folder) if re.fullmatch(r"log-.*\.jsonl", n)):
        path, alias = os.path.join(folder, name), name[4:-6]
        if os.path.islink(path) or not ALIAS.fullmatch(alias):
            continue
        with open(path, "rb") as log:
            text = log.read().decode("utf-8", "replace")
        for line in text.split("\n"):
            try:
                record = json.loads(line)
            except ValueError:
                continue
            if not isinstance(record, dict) or record.get("from") != alias:
                continue
            texts = all(isinstance(record.get(k), str) for k in ("to", "thread", "body"))
            if not texts or not isinstance(record.get("ts"), (int, float)):
                continue
            stored = record.get("id")
            record["id"] = stored if isinstance(stored, str) and stored else record_id(record)
            key = (alias, record["id"])
            if key not in seen:
                seen.add(key)
                found.append(record)
    return sorted(found, key=lambda r: r["ts"])


def load_mark(folder, me):
    try:
        with open(os.path.join(folder, f".seen-{me}"), encoding="utf-8") as mark:
            value = json.load(mark)
    except (FileNotFoundError, ValueError):
        return 0, []
    return value.get("ts", 0), list(value.get("ids", []))


def save_mark(folder, me, ts, ids):
    final = os.path.join(folder, f".seen-{me}")
    temporary = f"{final}.{os.getpid()}.tmp"
    with open(temporary, "w", encoding="utf-8") as mark:
        json.dump({"ts": ts, "ids": ids}, mark)
    os.rename(temporary, final)


def inbox(folder, me, rule, peek):
    mark, known = load_mark(folder, me)
    now = int(time.time())
    if rule == "r12":
        mark = min(mark, now)

    def spelled(record):
        return record["id"] if rule == "r111" else f"{record['from']}:{record['id']}"

    def shown(record):
        if record["ts"] < mark:
            return False
        if rule == "r111":
            return record["ts"] != mark or spelled(record) not in known
        return spelled(record) not in known

    new = [r for r in scan(folder) if r["to"] == me and shown(r)]
    for record in new:
        print(record["id"])
    if peek or not new:
        return
    newest = max(r["ts"] for r in new)
    if rule == "r111":
        ids = [spelled(r) for r in new if r["ts"] == newest]
        if newest == mark:
            ids = sorted(set(ids) | set(known))
    else:
        newest = min(now, newest)
        times = {spelled(r): r["ts"] for r in scan(folder) if r["to"] == me}
        kept = {spelled(r) for r in new} | set(known)
        ids = sorted(k for k in kept if times.get(k, newest) >= newest)
    save_mark(folder, me, newest, ids)


def reply(folder, me, body):
    to_me = [r for r in scan(folder) if r["to"] == me]
    if not to_me:
        raise SystemExit("no inbox messages")
    newest = [r for r in to_me if r["ts"] == to_me[-1]["ts"]]
    if len({r["from"] for r in newest}) > 1:
        raise SystemExit("several senders share the newest second")
    return send(folder, me, newest[-1]["from"], body, newest[-1]["thread"])


def compact(folder, alias):
    """One line per id, re-serialised, unparsable lines dropped, the file replaced by rename."""
    path = os.path.join(folder, f"log-{alias}.jsonl")
    seen, kept = set(), []
    with open(path, "rb") as log:
        for line in log.read().decode("utf-8", "replace").split("\n"):
            try:
                record = json.loads(line)
            except ValueError:
                continue
            ident = record.get("id") or record_id(record)
            if ident not in seen:
                seen.add(ident)
                kept.append(json.dumps({"id": ident, **record}, ensure_ascii=False) + "\n")
    with open(path + ".compact", "w", encoding="utf-8", newline="\n") as new:
        new.writelines(kept)
    os.rename(path + ".compact", path)


def main(args):
    folder, verb, rest = args[0], args[1], args[2:]
    os.makedirs(folder, exist_ok=True)
    if verb == "send":
        print(send(folder, rest[0], rest[1], sys.stdin.read()))
    elif verb == "inbox":
        inbox(folder, rest[0], rest[1], "--peek" in rest)
    elif verb == "all":
        for record in scan(folder):
            if record["to"] == rest[0]:
                print(json.dumps(record, ensure_ascii=False))
    elif verb == "reply":
        print(reply(folder, rest[0], sys.stdin.read()))
    elif verb == "burst":
        for number in range(int(rest[2])):
            send(folder, rest[0], rest[1], f"burst {number} of {rest[0]}", f"burst-{rest[0]}")
            time.sleep(float(rest[3]))
    elif verb == "compact":
        compact(folder, rest[0])
    else:
        raise SystemExit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
