#!/usr/bin/env python3
"""A strict reader of ATSF 1.1 threads, written from the published format and not from msgfs.

It stands in for the other programs that read a project's threads. It takes nothing that the format does not allow, and
prints what it read as one JSON value: the threads by their ids, each with its title, its parent and its messages in order.
If a thread breaks the format, it prints each violation to stderr and exits with 1.

usage: atsf_reader.py PROJECT [THREAD...]
"""

import hashlib
import json
import os
import re
import stat
import sys
from datetime import datetime

VERSION = re.compile(r"1\.\d+")
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")
ASSET = re.compile(r"sha256-([0-9a-f]{16})\.([A-Za-z0-9]{1,10})")
ABSOLUTE = re.compile(r"/|[A-Za-z]:\\|\\\\")
ROLES = ("user", "agent", "system")
STATES = ("pending", "running", "in_progress", "completed", "failed")
#: The endings of the images that every program shows.
ENDINGS = {"image/png": "png", "image/jpeg": "jpg", "image/gif": "gif", "image/webp": "webp", "image/svg+xml": "svg"}

TEXT, WHOLE, NUMBER, OBJECT = "a text", "a whole number from 0 on", "a number", "an object"
#: The members of each block: the required ones, and those that may be there.
BLOCKS = {
    "text": ({"text": TEXT}, {}),
    "thinking": ({"text": TEXT}, {}),
    "image": ({"assetRef": TEXT, "mimeType": TEXT}, {}),
    "audio": ({"assetRef": TEXT, "mimeType": TEXT}, {}),
    "resource": ({"uri": TEXT}, {"mimeType": TEXT, "text": TEXT, "assetRef": TEXT}),
    "resource_link": (
        {"uri": TEXT, "name": TEXT},
        {"mimeType": TEXT, "title": TEXT, "description": TEXT, "size": WHOLE},
    ),
    "tool_call_ref": ({"toolCallId": TEXT}, {}),
}
MESSAGE = ({"id": TEXT, "role": TEXT, "timestamp": TEXT}, {"stopReason": TEXT, "model": TEXT, "tokens": OBJECT})
CALL = (
    {"toolCallId": TEXT, "name": TEXT, "status": TEXT},
    {"title": TEXT, "input": TEXT, "output": TEXT, "duration": NUMBER, "diff": OBJECT, "kind": TEXT},
)
THREAD = (
    {"specVersion": TEXT, "threadId": TEXT, "title": TEXT, "createdAt": TEXT, "updatedAt": TEXT}
    | {"agent": OBJECT, "context": OBJECT, "stats": OBJECT},
    {"parentThreadId": TEXT, "metadata": OBJECT},
)
AGENT = ({"id": TEXT, "name": TEXT}, {"version": TEXT, "protocol": TEXT, "protocolVersion": NUMBER})
CONTEXT = ({"workingDir": TEXT}, {"relativeDir": TEXT, "gitBranch": TEXT, "gitCommit": TEXT, "worktree": OBJECT})
COUNTS = ("messageCount", "userMessageCount", "agentMessageCount", "toolCallCount")


class Violation(Exception):
    """A thing that the format does not allow."""


def require(is_true, what):
    if not is_true:
        raise Violation(what)


def read_object(data, what):
    """Reads one JSON object. A name that stands twice, and a number that JSON does not know, are none."""

    def unique(pairs):
        names = [name for name, _ in pairs]
        require(len(set(names)) == len(names), f"{what}: a member stands twice: {names}")
        return dict(pairs)

    def refuse(word):
        raise Violation(f"{what}: {word} is no number")

    require(not data.startswith(b"\xef\xbb\xbf"), f"{what}: it begins with a byte order mark")
    try:
        value = json.loads(data.decode("utf-8"), object_pairs_hook=unique, parse_constant=refuse)
    except ValueError as error:
        raise Violation(f"{what}: {error}") from error
    require(isinstance(value, dict), f"{what}: it is no object")
    return value


def is_a(value, kind):
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return {
        TEXT: isinstance(value, str),
        NUMBER: is_number,
        WHOLE: is_number and isinstance(value, int) and value >= 0,
        OBJECT: isinstance(value, dict),
    }[kind]


def require_members(value, schema, what):
    """Requires the members of a schema. Others may be there."""
    required, optional = schema
    require(isinstance(value, dict), f"{what} is no object")
    for name, kind in required.items():
        require(name in value, f"{what}.{name} is missing")
        require(is_a(value[name], kind), f"{what}.{name} is not {kind}")
    for name, kind in optional.items():
        require(name not in value or is_a(value[name], kind), f"{what}.{name} is not {kind}")


def require_time(text, what):
    require(TIME.fullmatch(text), f"{what}: {text!r} is no time in UTC with milliseconds")
    try:
        datetime.strptime(text, "%Y-%m-%dT%H:%M:%S.%fZ")
    except ValueError as error:
        raise Violation(f"{what}: {error}") from error


def read_file(path, limit=1 << 30):
    """Reads a regular file that is reached through no symlink."""
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(handle, "rb") as file:
        require(stat.S_ISREG(os.fstat(handle).st_mode), f"{path}: it is no regular file")
        return file.read(limit)


class Thread:
    """One thread, with what was found of its messages so far."""

    def __init__(self, folder):
        self.folder = folder
        self.id = os.path.basename(folder)
        self.messages, self.ids = [], set()
        self.counts = dict.fromkeys(COUNTS, 0)

    def read(self):
        require(stat.S_ISDIR(os.lstat(self.folder).st_mode), f"{self.id}: it is no folder")
        about = self.read_about()
        self.read_log()
        last = self.messages[-1]["timestamp"] if self.messages else about["createdAt"]
        require(about["updatedAt"] == last, f"updatedAt is {about['updatedAt']}, and the last line is of {last}")
        for name, count in self.counts.items():
            require(about["stats"][name] == count, f"stats.{name} is {about['stats'][name]}, and the log has {count}")
        known = {"thread.json", "messages.jsonl", "assets"}
        others = set(os.listdir(self.folder)) - known
        require(not others, f"the folder has other files: {sorted(others)}")
        return {"title": about["title"], "parent": about.get("parentThreadId"), "messages": self.messages}

    def read_about(self):
        data = read_file(os.path.join(self.folder, "thread.json"))
        require(data.endswith(b"\n"), "thread.json has no newline at its end")
        about = read_object(data, "thread.json")
        require_members(about, THREAD, "thread.json")
        require(VERSION.fullmatch(about["specVersion"]), f"the version is {about['specVersion']}")
        require(about["threadId"] == self.id, f"threadId is {about['threadId']}")
        for name in ("createdAt", "updatedAt"):
            require_time(about[name], name)
        require_members(about["agent"], AGENT, "agent")
        require_members(about["context"], CONTEXT, "context")
        require(ABSOLUTE.match(about["context"]["workingDir"]), "context.workingDir is no absolute path")
        if "worktree" in about["context"]:
            require_members(about["context"]["worktree"], ({"path": TEXT, "branch": TEXT}, {}), "context.worktree")
        require_members(about["stats"], (dict.fromkeys(COUNTS, WHOLE), {}), "stats")
        return about

    def read_log(self):
        data = read_file(os.path.join(self.folder, "messages.jsonl"))
        require(data.endswith(b"\n") or not data, "the log ends in half a line")
        require(b"\r" not in data, "the log has a carriage return")
        for number, line in enumerate(data.split(b"\n")[:-1], 1):
            what = f"line {number}"
            require(line.startswith(b"{") and line.endswith(b"}"), f"{what}: it is not one object and nothing else")
            self.read_message(read_object(line, what), what)

    def read_message(self, message, what):
        require_members(message, MESSAGE, what)
        require(message["id"], f"{what}: the id is empty")
        require(message["id"] not in self.ids, f"{what}: the id {message['id']!r} stands before it")
        self.ids.add(message["id"])
        role = message["role"]
        require(role in ROLES, f"{what}: the role is {role!r}")
        require_time(message["timestamp"], what)
        if "tokens" in message:
            require_members(message["tokens"], ({}, {"input": NUMBER, "output": NUMBER}), f"{what}.tokens")
        calls = self.read_calls(message.get("toolCalls", []), what)
        require(isinstance(message.get("content"), list), f"{what}.content is no list")
        texts, placed = [], []
        for block in message["content"]:
            self.read_block(block, what)
            if block["type"] == "text":
                texts.append(block["text"])
            elif block["type"] == "tool_call_ref":
                placed.append(block["toolCallId"])
        require(len(set(placed)) == len(placed), f"{what}: a call has two places")
        require(set(placed) <= set(calls), f"{what}: a place names no call of the message")
        self.counts["messageCount"] += 1
        self.counts["toolCallCount"] += len(calls)
        if role != "system":
            self.counts[f"{role}MessageCount"] += 1
        names = ("id", "role", "timestamp")
        shown = {name: message[name] for name in names} | {"text": "\n".join(texts), "calls": calls}
        self.messages.append(shown)

    def read_calls(self, calls, what):
        """Returns the names and states of the calls of a message, by their ids."""
        require(isinstance(calls, list), f"{what}.toolCalls is no list")
        found = {}
        for call in calls:
            require_members(call, CALL, f"{what}.toolCalls")
            require(call["status"] in STATES, f"{what}: the status is {call['status']!r}")
            require(call["toolCallId"] not in found, f"{what}: two calls have the id {call['toolCallId']!r}")
            if "diff" in call:
                require_members(call["diff"], ({"path": TEXT, "newText": TEXT}, {}), f"{what}.diff")
            found[call["toolCallId"]] = [call["name"], call["status"]]
        return found

    def read_block(self, block, what):
        require(isinstance(block, dict) and isinstance(block.get("type"), str), f"{what}: a block has no type")
        kind = block["type"]
        require(kind in BLOCKS, f"{what}: the block {kind!r} is not known")
        require_members(block, BLOCKS[kind], f"{what}: the block {kind}")
        if "assetRef" in block:
            self.read_asset(block["assetRef"], block.get("mimeType"), what)

    def read_asset(self, name, kind, what):
        parts = ASSET.fullmatch(name)
        require(parts, f"{what}: {name!r} is no name of an asset")
        ending = ENDINGS.get(kind, parts[2])
        require(parts[2] == ending, f"{what}: the asset of {kind} ends in .{parts[2]}")
        assets = os.path.join(self.folder, "assets")
        require(stat.S_ISDIR(os.lstat(assets).st_mode), "assets is no folder")
        digest = hashlib.sha256(read_file(os.path.join(assets, name))).hexdigest()
        require(digest.startswith(parts[1]), f"{what}: the bytes of {name} have the hash {digest}")


def main():
    project, *wanted = sys.argv[1:]
    folder = os.path.join(project, ".agent", "threads")
    names = wanted or [name for name in sorted(os.listdir(folder)) if not name.startswith(".")]
    found, is_sound = {}, True
    for name in names:
        try:
            found[name] = Thread(os.path.join(folder, name)).read()
        except (Violation, OSError) as error:
            is_sound = False
            print(f"{name}: {error}", file=sys.stderr)
    print(json.dumps(found))
    return 0 if is_sound else 1


if __name__ == "__main__":
    sys.exit(main())
