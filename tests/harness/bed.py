"""A bed for agents: homes of their own, one store of mail, one model."""

import contextlib
import fcntl
import os
import socket
import struct
import subprocess
import threading
import time

import programs
from terminal import Terminal


def raise_loopback():
    """Raises the loopback device of a new network namespace."""
    up = struct.pack("16sh14x", b"lo", 0x1 | 0x40)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, 0x8914, up)  # SIOCSIFFLAGS


class Agent:
    """One agent: a program with a home, a project, and a name in the mail."""

    def __init__(self, bed, name, program, asks=False):
        self.bed, self.name, self.program = bed, name, programs.ALL[program]
        self.home = os.path.join(bed.folder, name)
        self.project = os.path.join(self.home, "project")
        os.makedirs(self.project)
        # A project that is a repository gets no question about git.
        subprocess.run(["git", "init", "-q", self.project], check=True)
        programs.write(f"{self.project}/.agent-message", name + "\n")
        runtime = os.path.join(self.home, "run")
        os.makedirs(runtime, mode=0o700)
        # A login shell has the PATH of the profile.
        programs.write(f"{self.home}/.profile", f"PATH={bed.bin}:$PATH\n")
        self.env = {
            "HOME": self.home,
            "PATH": f"{bed.bin}:/usr/local/bin:/usr/bin:/bin",
            "TERM": "xterm-256color",
            "LANG": "C.UTF-8",
            "SHELL": "/bin/bash",
            "XDG_RUNTIME_DIR": runtime,
            "XDG_CONFIG_HOME": f"{self.home}/.config",
            "XDG_DATA_HOME": f"{self.home}/.local/share",
            "XDG_STATE_HOME": f"{self.home}/.local/state",
            "XDG_CACHE_HOME": f"{self.home}/.cache",
            "AGENT_MESSAGE_DIR": bed.store,
            "MSGFS_ME": name,
            "NO_UPDATE_NOTIFIER": "1",
            "IS_SANDBOX": "1",
        }
        self.env |= self.program.configure(self.home, self.project, bed.model.url(name))
        if asks:
            self.ask_for_approval()
        self.terminal = None

    def ask_for_approval(self):
        """Gives the program its default policy, and lets the model ask for what needs approval."""
        for folder, _, files in os.walk(self.home):
            for path in (os.path.join(folder, name) for name in files if name == "config.toml"):
                with open(path, encoding="utf-8") as file:
                    text = file.read()
                for line in self.program.unasked:
                    text = text.replace(line + "\n", "")
                programs.write(path, text)
        self.model.extra = self.program.approval[1]

    @property
    def model(self):
        return self.bed.model.agent(self.name)

    def msgfs(self, *words, text=None):
        """Runs msgfs as this agent's user would, and returns its output."""
        done = subprocess.run(
            ["msgfs", *words], env=self.env, cwd=self.project, input=text, capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise RuntimeError(f"msgfs {words}: {done.returncode}: {done.stdout}{done.stderr}")
        return done.stdout

    def start(self, *arguments):
        """Starts the program, and answers its dialogs."""
        command = [*self.program.command(self.bed.program(self.program.name)), *arguments]
        self.terminal = Terminal(
            self.bed.folder, self.name, self.env, self.project, command, self.program.dialogs
        )
        self.terminal.wait_until_ready(self.program.ready)

    def stop(self):
        if self.terminal:
            self.terminal.close()
            self.terminal = None

    def type(self, text):
        self.terminal.type(text)

    def requests(self, since=0):
        """Returns the requests of the conversation since a time."""
        return [request for request in list(self.model.requests) if request.time >= since and request.has_tools]

    def wait_for_request(self, wanted, since, seconds=40, what="a request"):
        """Waits for a request of the conversation, and returns it."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for request in self.requests(since):
                if wanted(request):
                    return request
            time.sleep(0.05)
            if self.terminal and self.terminal.dialogs:
                self.terminal.answer_dialog()
        screen = self.terminal.screen() if self.terminal else ""
        raise TimeoutError(f"{self.name} ({self.program.name}): {what} never came:\n{screen}")

    def wait_for_bell(self, since, seconds=30):
        return self.wait_for_request(lambda request: request.bells(), since, seconds, "the bell")

    def wait_for_shown(self, text, since, seconds=40):
        """Waits until a shell call showed a text of mail."""
        return self.wait_for_request(lambda request: request.shows(text), since, seconds, f"{text!r} in an answer")

    def count_shown(self, text, since):
        return sum(request.shows(text) for request in self.requests(since))

    def wait_for_sent(self, text, since):
        """Returns the time at which the agent's shell had sent a text."""
        request = self.wait_for_request(lambda r: text in r.sent(), since, 60, f"the end of sending {text!r}")
        return request.sent()[text]

    @contextlib.contextmanager
    def held_turn(self, prompt):
        """Keeps a turn from going on as long as the block runs."""
        self.wait_until_idle()
        gate = threading.Event()
        self.model.hold = gate
        since = time.monotonic()
        try:
            self.type(prompt)
            self.wait_for_held(since)
            yield
        finally:
            self.model.hold = None
            gate.set()

    def wait_for_held(self, since):
        end = time.monotonic() + 30
        while self.model.held_since < since:
            if time.monotonic() > end:
                raise TimeoutError("the turn never began")
            time.sleep(0.05)

    def settings(self):
        """Returns the files of the program in the home, with their bytes. Backups do not count."""
        found = {}
        for folder, _, files in os.walk(self.home):
            for name in files:
                path = os.path.join(folder, name)
                if ".msgfs-bak-" not in name and "/.git/" not in path:
                    with open(path, "rb") as file:
                        found[path] = file.read()
        return found

    def prompt(self, text, seconds=60, mail=None):
        """Types a prompt, and returns the request that carries it, or one that shows a text of mail. A program may add
        a prompt to a turn that reads the mail already."""
        since = time.monotonic()
        self.type(text)
        asked = (lambda request: text in request.text or (mail and request.shows(mail)), since)
        try:
            return self.wait_for_request(*asked, seconds / 4, f"the prompt {text!r}")
        except TimeoutError:
            # A program that is busy for longer than the pause before the key takes the key for a part of the text.
            self.terminal.keys("Enter")
            return self.wait_for_request(*asked, seconds, f"the prompt {text!r}, sent twice")

    def wait_until_idle(self, quiet=2.5, seconds=60):
        """Waits until no shell call runs and the model was asked nothing for a while."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            last = max((request.time for request in list(self.model.requests)), default=0)
            if time.monotonic() - last > quiet and not self.model.owes:
                return
            time.sleep(0.1)


class Bed:
    """A folder with homes, a store and a model."""

    def __init__(self, folder, msgfs, agents_folder, model):
        self.folder, self.agents_folder, self.model = folder, agents_folder, model
        self.bin = os.path.join(folder, "bin")
        self.store = os.path.join(folder, "store")
        os.makedirs(folder, exist_ok=True)
        os.makedirs(self.bin)
        os.makedirs(self.store)
        os.symlink(msgfs, os.path.join(self.bin, "msgfs"))
        os.symlink(subprocess.check_output(["which", "node"], text=True).strip(), os.path.join(self.bin, "node"))
        self.agents, self.was_read = [], {}

    def program(self, name):
        """Returns the path of an installed program."""
        return os.path.join(self.agents_folder, name, "node_modules/.bin", programs.PACKAGES[name][2])

    def agent(self, name, program, asks=False):
        agent = Agent(self, name, program, asks)
        self.agents.append(agent)
        return agent

    @contextlib.contextmanager
    def program_replaced(self, script):
        """Puts a script in the place of msgfs, or nothing, as long as the block runs."""
        place = os.path.join(self.bin, "msgfs")
        program = os.readlink(place)
        os.remove(place)
        try:
            if script:
                programs.write(place, script)
                os.chmod(place, 0o755)
            yield
        finally:
            if script:
                os.remove(place)
            os.symlink(program, place)

    def environment(self, name):
        """Returns the environment of somebody who has no program."""
        home = os.path.join(self.folder, "people", name)
        os.makedirs(home, exist_ok=True)
        places = {f"XDG_{kind}_HOME": f"{home}/{kind}" for kind in ("CONFIG", "STATE", "CACHE", "DATA")}
        path = f"{self.bin}:/usr/bin:/bin"
        return {"HOME": home, "PATH": path, "AGENT_MESSAGE_DIR": self.store, "MSGFS_ME": name, **places}

    def read(self, name):
        """Returns the text of all mail that somebody has got."""
        words = ["msgfs", "inbox"]
        done = subprocess.run(words, env=self.environment(name), capture_output=True, text=True, check=True, cwd=self.folder)
        self.was_read[name] = self.was_read.get(name, "") + done.stdout
        return self.was_read[name]

    def send(self, sender, to, text):
        """Lets somebody who has no program write. Returns the time after it was sent."""
        words = ["msgfs", "send", "--new", to, text]
        env = self.environment(sender)
        subprocess.run(words, env=env, cwd=self.folder, check=True, capture_output=True)
        return time.monotonic()

    def close(self):
        for agent in self.agents:
            agent.stop()
