"""Plays an agent program in a terminal in which nobody types after the start: agent_program.py NAME [PROMPT]

NAME is `claude` or `codex`. The hooks of the user's configuration are run, and their answers are read, as that
program does it (docs/HARNESSES.md): what it would refuse ends this one. Each text that the model would hear is
noted in the file $MSGFS_TEST_HEARD, one line of JSON with the program, the place it came from, and the text.

The model is the file $MSGFS_TEST_MODEL, a list of `{"hears": PATTERN, "does": COMMAND}`. A text in which a pattern
is found has its command run, once; the model hears what the command prints. `{id}` in a command is the short name of
the message that was heard. A bell is followed without a rule: what it names is read.
"""

import json
import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time

PROGRAM, PROMPT = sys.argv[1], " ".join(sys.argv[2:])
SESSION = f"{PROGRAM}-{os.getpid()}"
FILE = {"claude": "~/.claude/settings.json", "codex": "~/.codex/hooks.json"}[PROGRAM]
TRANSCRIPT = os.path.expanduser(f"~/{SESSION}.jsonl")
WAKES = queue.Queue()
with open(os.environ["MSGFS_TEST_MODEL"]) as file:
    RULES = json.load(file)
ENV = dict(os.environ)
if PROGRAM == "claude":
    ENV |= {
        "CLAUDECODE": "1",
        "CLAUDE_CODE_SESSION_ID": SESSION,
        "CLAUDE_CODE_ENTRYPOINT": "cli",
        "CLAUDE_PROJECT_DIR": os.getcwd(),
        "CLAUDE_PID": str(os.getpid()),
    }


def note(source, text):
    line = json.dumps({"program": PROGRAM, "from": source, "text": text}) + "\n"
    with open(os.environ["MSGFS_TEST_HEARD"], "a") as file:
        file.write(line)


def handlers(event):
    with open(os.path.expanduser(FILE)) as file:
        groups = json.load(file)["hooks"].get(event, [])
    return [handler for group in groups for handler in group["hooks"]]


def hooks(event, **more):
    """Runs the hooks of an event; returns what they answered."""
    told = {"session_id": SESSION, "transcript_path": TRANSCRIPT, "cwd": os.getcwd(), "hook_event_name": event}
    told |= {"permission_mode": "default"} | more
    if PROGRAM == "codex":
        told |= {"model": "m", "turn_id": "t"}
    told = json.dumps(told) + "\n"
    answers = []
    for handler in handlers(event):
        if handler.get("asyncRewake"):
            threading.Thread(target=waits, args=(handler, told), daemon=True).start()
            continue
        done = run_hook(handler, told)
        if done.returncode != 0:
            sys.exit(f"{event}: {done}")
        if done.stdout.strip():
            answers.append(json.loads(done.stdout))
    return answers


def run_hook(handler, told):
    return subprocess.run(
        ["sh", "-c", handler["command"]], input=told, capture_output=True, text=True, env=ENV, timeout=handler["timeout"]
    )


def waits(handler, told):
    """Runs a hook in the background, which wakes the session if it ends with 2."""
    done = run_hook(handler, told)
    if done.returncode == 2:
        WAKES.put(done.stderr)
    elif done.returncode != 0:
        note("failed hook", str(done))


def context(event, answers):
    """Returns the text that the hooks of an event add to what the model hears."""
    texts = []
    for answer in answers:
        if PROGRAM == "claude" and set(answer) == {"systemMessage"}:
            # The person sees it, the model does not.
            continue
        own = answer["hookSpecificOutput"]
        if set(answer) != {"hookSpecificOutput"} or set(own) != {"hookEventName", "additionalContext"}:
            sys.exit(f"{event}: a member is not known: {answer}")
        if own["hookEventName"] != event:
            sys.exit(f"{event}: this is for another event: {answer}")
        texts.append(own["additionalContext"])
    return texts


def hears(source, text):
    note(source, text)
    bell = re.search(r"^msgfs: .*?: (?:(msgfs --me \S+) (cat|ls) (inbox\S*)|(/\S+))$", text, re.M)
    if bell:
        command, verb, _, path = bell.groups()
        if path:
            uses(f"cat {path}" if path.endswith(".txt") else f"cat {path}/*.txt")
        else:
            uses(bell.group(0).split(": ")[-1] if verb == "cat" else f"{command} inbox")
        return
    name = re.search(r"^Message-ID: <([0-9a-f]{8})", text, re.M)
    for rule in [rule for rule in RULES if re.search(rule["hears"], text)]:
        if rule not in RULES:
            continue
        RULES.remove(rule)
        uses(rule["does"].replace("{id}", name[1] if name else ""))


def uses(command):
    """Calls a tool: the shell."""
    done = subprocess.run(["bash", "-c", command], stdin=subprocess.DEVNULL, capture_output=True, text=True, env=ENV)
    if done.returncode != 0:
        sys.exit(f"{command}: {done}")
    hears("tool", done.stdout)


def turn(source, prompt):
    """Takes a turn, and those that the hook at its end begins."""
    added = context("UserPromptSubmit", hooks("UserPromptSubmit", prompt=prompt))
    for text in [prompt, *added]:
        hears(source, text)
        source = "prompt hook"
    goes_on = False
    while answers := hooks("Stop", stop_hook_active=goes_on):
        if PROGRAM != "codex" or len(answers) != 1 or set(answers[0]) != {"decision", "reason"}:
            sys.exit(f"Stop: {answers}")
        goes_on = True
        hears("stop hook", answers[0]["reason"])


signal.signal(signal.SIGINT, signal.SIG_IGN)
started = context("SessionStart", hooks("SessionStart", source="startup"))
if PROMPT:
    for text in started:
        hears("start hook", text)
    turn("person", PROMPT)
while True:
    if PROGRAM == "codex":
        time.sleep(3600)
    turn("wake", "<task-notification>\n<task-id>b1</task-id>\n</task-notification>\n" + WAKES.get())
