"""Sessions of the real programs without a terminal, and what msgfs shows of their transcripts."""

import json
import os
import subprocess

import programs

#: The kind of store that reads the transcripts of a program, and the folder that it is given.
KINDS = {"claude-code": ("claude", ".claude"), "codex": ("codex", ".codex")}


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


def make_claude(agent):
    """Makes a session with calls, one that goes on, and a fork. Returns their ids."""
    words = ("--allowedTools", "Bash", "--output-format", "json", "-p")
    first = json.loads(run(agent, *words, "SEND bob one"))["session_id"]
    run(agent, *words, "--resume", first, "good morning")
    fork = json.loads(run(agent, *words, "--resume", first, "--fork-session", "another way"))["session_id"]
    return [first, fork]


def make_codex(agent):
    """Makes a session with calls, and one that goes on. Returns their ids."""
    words = ("exec", "--skip-git-repo-check", "--json")
    started = [json.loads(line) for line in run(agent, *words, "SEND bob one").splitlines() if line.startswith("{")]
    first = next(event["thread_id"] for event in started if event.get("type") == "thread.started")
    run(agent, *words, "resume", first, "good morning")
    return [first]


MAKERS = {"claude-code": make_claude, "codex": make_codex}
#: Commands of a program that move a session, and change no message.
MOVES = {"claude-code": (), "codex": ("archive", "unarchive")}


def transcripts(agent):
    """Returns the transcript files of the program, with their bytes and times."""
    found = {}
    for folder, _, files in os.walk(os.path.join(agent.home, KINDS[agent.program.name][1])):
        for path in (os.path.join(folder, name) for name in files if name.endswith(".jsonl")):
            with open(path, "rb") as file:
                found[path] = (file.read(), os.stat(path).st_mtime_ns)
    return found


def check(agent):
    """Makes sessions, and checks what msgfs shows of them: each message once, and no file changed."""
    made = MAKERS[agent.program.name](agent)
    kind, folder = KINDS[agent.program.name]
    env = agent.env | {"XDG_CONFIG_HOME": os.path.join(agent.home, "reader"), "MSGFS_ME": "reader"}
    place = os.path.join(agent.home, folder)
    programs.write(f"{env['XDG_CONFIG_HOME']}/msgfs/config.toml", f'[[store]]\nkind = "{kind}"\ndir = "{place}"\n')
    before = transcripts(agent)

    def msgfs(*words):
        done = subprocess.run(["msgfs", *words], env=env, cwd=agent.home, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"msgfs {words}: {done.stdout}{done.stderr}"
        return done.stdout

    def read(thread):
        names = [name for name in msgfs("ls", f"threads/{thread}").split() if name.endswith(".txt")]
        return [(name, msgfs("cat", f"threads/{thread}/{name}").split("\n\n", 1)[1].strip()) for name in names]

    threads = msgfs("ls", "threads").split()
    assert set(made) <= set(threads), f"{made} are not all in {threads}"
    messages = {thread: read(thread) for thread in made}
    texts = {thread: [text for _, text in found] for thread, found in messages.items()}
    first, *forks = made
    shown = [text.splitlines()[-1] for text in texts[first]]
    assert shown == ["SEND bob one", "done", "good morning", "done"], shown
    assert texts[first][1].startswith("[tool call: "), texts[first][1]
    assert [texts[fork] for fork in forks] == [["another way", "done"]] * len(forks), texts
    assert msgfs("ls", "inbox") == "", "a transcript is in the inbox"
    said = msgfs("check")
    assert "unknown" not in said and "schema" not in said, said
    assert transcripts(agent) == before, "a transcript was changed"
    for command in MOVES[agent.program.name]:
        run(agent, command, first)
        assert read(first) == messages[first], f"{command} changed the messages"
    return f"{sum(map(len, texts.values()))} messages in {len(made)} sessions"
