"""Sessions of the real programs without a terminal, and what msgfs shows and keeps of their transcripts."""

import glob
import json
import os
import shutil
import subprocess
import sys
import time

import programs
from app_server import AppServer

#: A reader of kept threads that is none of msgfs.
ATSF_READER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "peers", "atsf_reader.py")
#: The answer to a prompt with a call, or to one without.
DONE = "agent: done"


def run(agent, *words, seconds=120):
    """Runs the program with a prompt as its last word, and returns its output."""
    program = agent.bed.program(agent.program.name)
    done = subprocess.run(
        [program, *words], env=agent.env, cwd=agent.project, capture_output=True, text=True, timeout=seconds,
        stdin=subprocess.DEVNULL, check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"{words}: {done.returncode}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout


def read_bytes(path):
    with open(path, "rb") as file:
        return file.read()


def tree(folder):
    """Returns the files below a folder, with their bytes."""
    paths = [os.path.join(above, name) for above, _, names in os.walk(folder) for name in names]
    return {path: read_bytes(path) for path in paths}


class ClaudeSessions:
    """Sessions of Claude Code."""

    kind, folder, logs = "claude", ".claude", "projects"

    def __init__(self, agent):
        self.agent = agent

    def say(self, text, session=None, *words):
        """Says a prompt in a new session or in an old one, and returns the id of the session."""
        resume = ("--resume", session) if session else ()
        words = ("--allowedTools", "Bash,Agent", "--output-format", "json", "-p", *resume, *words)
        return json.loads(run(self.agent, *words, text))["session_id"]

    def make(self):
        """Makes sessions, and returns the messages that each must have."""
        first = self.say("SEND bob one")
        self.say("good morning", first)
        fork = self.say("another way", first, "--fork-session")
        self.say("/compact", first)
        self.say("after it", first)
        messages = ["user: SEND bob one", DONE, "user: good morning", DONE, "system", "user: after it", DONE]
        made = {first: messages, fork: ["user: another way", DONE]}
        # A sub-agent works in the background, and the program tells the model of its end.
        parent = self.say("SPAWN look")
        [log] = glob.glob(os.path.join(self.place(), "*", parent, "subagents", "agent-*.jsonl"))
        child = os.path.basename(log).removeprefix("agent-").removesuffix(".jsonl")
        made[parent] = ["user: SPAWN look", DONE, DONE]
        made[f"{parent}.{child}"] = ["agent: look", "agent.general-purpose: done"]
        return made

    def place(self):
        return os.path.join(self.agent.home, self.folder, self.logs)

    def log(self, session):
        [log] = glob.glob(os.path.join(self.place(), "*", f"{session}.jsonl"))
        return log

    def moves(self, _made):
        """Returns the things that the program may do to its files without a change of messages."""
        return []


class CodexSessions:
    """Sessions of Codex."""

    kind, folder, logs = "codex", ".codex", "sessions"

    def __init__(self, agent):
        self.agent = agent

    def say(self, text, session=None):
        """Says a prompt in a new session or in an old one, and returns the id of the session."""
        resume = ("resume", session) if session else ()
        told = run(self.agent, "exec", "--skip-git-repo-check", "--json", *resume, text).splitlines()
        events = [json.loads(line) for line in told if line.startswith("{")]
        return next(event["thread_id"] for event in events if event.get("type") == "thread.started")

    def make(self):
        """Makes sessions, and returns the messages that each must have."""
        first = self.say("SEND bob one")
        self.say("good morning", first)
        made = {first: ["user: SEND bob one", DONE, "user: good morning", DONE]}
        with AppServer(self.agent) as server:
            for mode in ("paginated", "legacy"):
                thread = server.start(historyMode=mode)
                server.say(thread, f"SEND bob {mode}")
                server.compact(thread)
                server.say(thread, "no call")
                fork = server.fork(thread)
                server.say(fork, "another way")
                made[thread] = [f"user: SEND bob {mode}", DONE, "user: no call", DONE]
                made[fork] = ["user: another way", DONE]
            rewound = server.start()
            server.say(rewound, "begin")
            wrong = server.say(rewound, "left")
            server.ask("thread/revert", threadId=rewound, beforeTurnId=wrong)
            server.say(rewound, "right")
            made[rewound] = ["user: begin", DONE, "user: left", DONE, "user: right", DONE]
            parent = server.start()
            server.say(parent, "SPAWN look")
            made[parent] = ["user: SPAWN look", DONE]
        child, name = self.find_child(parent)
        made[child] = ["agent: look", f"agent.{name}: done"]
        return made

    def find_child(self, parent):
        """Returns the id and the name of the only sub-agent of a session."""
        heads = [json.loads(read_bytes(path).split(b"\n")[0])["payload"] for path in self.all_logs()]
        [head] = [head for head in heads if head.get("parent_thread_id") == parent]
        return head["id"], head["agent_nickname"]

    def place(self):
        return os.path.join(self.agent.home, self.folder, self.logs)

    def all_logs(self):
        return glob.glob(os.path.join(self.place(), "**", "rollout-*.jsonl"), recursive=True)

    def log(self, session):
        [log] = [path for path in self.all_logs() if path.endswith(f"{session}.jsonl")]
        return log

    def moves(self, made):
        """Returns the things that the program may do to its files without a change of messages."""
        first = next(iter(made))
        return [
            lambda: run(self.agent, "archive", first),
            lambda: run(self.agent, "unarchive", first),
            self.migrate,
            self.compress,
        ]

    def migrate(self):
        """Lets the program write the older form of logs anew."""
        told = json.loads(run(self.agent, "migrate-rollouts", "--apply", "--json"))
        states = [outcome["status"] for outcome in told["outcomes"]]
        assert states.count("migrated") == 2, states

    def compress(self):
        """Lets the program compress its logs, which were idle for long."""
        for path in self.all_logs():
            os.utime(path, (time.time() - 9 * 86400,) * 2)
        with AppServer(self.agent, "--enable", "local_thread_store_compression") as server:
            server.ask("rollout/compress")
            end = time.monotonic() + 30
            while self.all_logs() and time.monotonic() < end:
                time.sleep(0.1)
        assert not self.all_logs(), "not all logs are compressed"


SESSIONS = {"claude-code": ClaudeSessions, "codex": CodexSessions}


class Reader:
    """Somebody who reads and keeps the transcripts of an agent with msgfs."""

    def __init__(self, agent):
        self.agent = agent
        sessions = SESSIONS[agent.program.name]
        self.place = os.path.join(agent.home, sessions.folder)
        self.env = agent.env | {"XDG_CONFIG_HOME": os.path.join(agent.home, "reader"), "MSGFS_ME": "reader"}
        store = '[[store]]\nkind = "{}"\ndir = "{}"\n'
        stores = store.format(sessions.kind, self.place) + store.format("atsf", agent.project)
        programs.write(f"{self.env['XDG_CONFIG_HOME']}/msgfs/config.toml", stores)
        programs.write(f"{agent.project}/.gitignore", "/.agent/threads/\n")

    def msgfs(self, *words):
        done = subprocess.run(
            ["msgfs", *words], env=self.env, cwd=self.agent.home, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"msgfs {words}: {done.stdout}{done.stderr}"
        return done.stdout

    def read(self, thread):
        """Returns the messages of a thread by their names."""
        names = [name for name in self.msgfs("ls", f"threads/{thread}").split() if name.endswith(".txt")]
        return {name: self.msgfs("cat", f"threads/{thread}/{name}") for name in names}

    def read_all(self):
        return {thread: self.read(thread) for thread in self.msgfs("ls", "threads").split()}

    def keep(self):
        """Keeps all sessions. Returns the files of their threads."""
        self.msgfs("keep", "--all")
        return tree(os.path.join(self.agent.project, ".agent"))

    def read_kept(self):
        """Returns the kept threads as another program reads them."""
        words = [sys.executable, ATSF_READER, self.agent.project]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def transcripts(self):
        """Returns the transcript files of the program, with their bytes and times."""
        found = tree(self.place)
        return {path: (data, os.stat(path).st_mtime_ns) for path, data in found.items() if ".jsonl" in path}


def shorten(message):
    """Returns the sender of a message and its last line. The words of a summary are those of the program."""
    head, _, body = message.partition("\n\n")
    [sender] = [line.removeprefix("From: ") for line in head.splitlines() if line.startswith("From: ")]
    return sender if sender == "system" else f"{sender}: {body.strip().splitlines()[-1]}"


def shorten_all(threads):
    return {thread: [shorten(message) for message in messages.values()] for thread, messages in threads.items()}


def check(agent):
    """Makes sessions, and checks what msgfs shows and keeps of them."""
    sessions = SESSIONS[agent.program.name](agent)
    made = sessions.make()
    reader = Reader(agent)
    before = reader.transcripts()
    shown = reader.read_all()
    assert shorten_all(shown) == made, f"{made} became {shorten_all(shown)}"
    calls = [message for messages in shown.values() for message in messages.values() if "\n[tool call: " in message]
    assert len(calls) > 1, "no calls are shown"
    assert reader.msgfs("ls", "inbox") == "", "a transcript is in the inbox"
    reader.msgfs("check")
    kept = reader.keep()
    assert reader.transcripts() == before, "a transcript was changed"
    check_kept(reader, kept, shown)
    for move in sessions.moves(made):
        move()
        assert reader.read_all() == shown, f"{move} changed the messages"
        assert reader.keep() == kept, f"{move} changed what is kept"
    shown = check_growth(sessions, reader, next(iter(made)), shown)
    check_torn(sessions, reader)
    shown |= {thread: messages for thread, messages in reader.read_all().items() if thread not in shown}
    reader.keep()
    shutil.rmtree(sessions.place())
    assert reader.read_all() == shown, "the messages changed with the end of the transcripts"
    return f"{sum(map(len, shown.values()))} messages in {len(shown)} sessions"


def check_kept(reader, kept, shown):
    """Checks that the kept threads are those of the sessions, for msgfs and for another program."""
    assert reader.keep() == kept, "a second keep changes bytes"
    reader.msgfs("check")
    assert reader.read_all() == shown, "the kept threads are shown, too"
    threads = reader.read_kept()
    texts = {
        thread: [message["text"].strip().splitlines()[-1:] for message in about["messages"]]
        for thread, about in threads.items()
    }
    expected = {
        thread: [message.strip().splitlines()[-1:] for message in messages.values()] for thread, messages in shown.items()
    }
    assert texts == expected, f"{expected} were kept as {texts}"


def check_growth(sessions, reader, thread, shown):
    """Lets a session go on, and checks that nothing but its end is new. Returns what is shown then."""
    kept = reader.keep()
    sessions.say("and more", thread)
    now = reader.read_all()
    new = [now[thread].pop(name) for name in sorted(set(now[thread]) - set(shown[thread]))]
    assert [shorten(message) for message in new] == ["user: and more", DONE], new
    assert now == shown, "other messages changed"
    for path, data in reader.keep().items():
        is_same = data.startswith(kept[path]) if path.endswith(".jsonl") else data == kept[path] or thread in path
        assert is_same, f"{path} was not appended to"
    return reader.read_all()


def check_torn(sessions, reader):
    """Cuts an answer of a session in half, and lets the session go on."""
    thread = sessions.say("tear this")
    path = sessions.log(thread)
    lines = read_bytes(path).splitlines(keepends=True)
    answers = [n for n, line in enumerate(lines) if shows_answer(json.loads(line))]
    whole = sum(map(len, lines[: answers[-1]]))
    os.truncate(path, whole + len(lines[answers[-1]]) // 2)
    assert shorten_all({thread: reader.read(thread)})[thread] == ["user: tear this"]
    assert reader.msgfs("ls", "rejected") == "", "a line that may go on is rejected"
    sessions.say("go on", thread)
    texts = shorten_all({thread: reader.read(thread)})[thread]
    assert texts[:2] + texts[-1:] == ["user: tear this", "user: go on", DONE], texts
    torn = [name for name in reader.msgfs("ls", "rejected").split() if not name.endswith(".reason")]
    assert len(torn) == 1, torn


def shows_answer(record):
    """Returns true if a line has the text of an answer."""
    item = record.get("payload", {}).get("item", {})
    is_claude = record.get("type") == "assistant" and record["message"]["content"][0]["type"] == "text"
    return is_claude or item.get("type") == "AgentMessage"


def check_terminal(agent):
    """Checks that msgfs knows everything in the transcripts of an agent's sessions in terminals. Returns their number."""
    reader = Reader(agent)
    reader.msgfs("check")
    threads = reader.read_all()
    assert any("user: good morning" in messages for messages in shorten_all(threads).values()), threads
    return len(threads)
