"""A program in a terminal of its own: a session of a private tmux server."""

import os
import re
import signal
import subprocess
import time


class Terminal:
    """A program in a terminal. Its server is private, so nothing else is ever touched."""

    def __init__(self, folder, name, env, cwd, command, dialogs=()):
        self.dialogs = list(dialogs)
        self.socket = os.path.join(folder, f"{name}.tmux")
        self.screen_file = os.path.join(folder, f"{name}.screen")
        # tmux gives a new server's environment to its programs. There is nothing in it but what is given here.
        words = ["new-session", "-d", "-s", "it", "-x", "180", "-y", "50", "-c", cwd, *command]
        subprocess.run(["tmux", "-f", "/dev/null", "-S", self.socket, *words], env=env, cwd=cwd, check=True)
        self.tmux("set-option", "-g", "remain-on-exit", "on")
        self.pid = int(self.tmux("display-message", "-p", "#{pane_pid}"))

    def tmux(self, *words):
        done = subprocess.run(["tmux", "-S", self.socket, *words], capture_output=True, text=True, check=False)
        return done.stdout

    def screen(self):
        text = self.tmux("capture-pane", "-p", "-S", "-300")
        with open(self.screen_file, "w", encoding="utf-8") as file:
            file.write(text)
        return text

    def keys(self, *keys):
        self.tmux("send-keys", *keys)

    def type(self, text):
        """Types a prompt and sends it. The pause keeps the program from taking both for one paste."""
        self.tmux("send-keys", "-l", text)
        time.sleep(0.5)
        self.keys("Enter")

    def wait_for(self, pattern, seconds=30):
        """Waits until the screen shows a pattern."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            text = self.screen()
            if re.search(pattern, text):
                return text
            time.sleep(0.2)
        raise TimeoutError(f"the screen never showed {pattern!r}:\n{self.screen()}")

    def answer_dialog(self):
        """Answers a dialog that was not answered yet. Returns True if there was one."""
        text = self.screen()
        for dialog in self.dialogs:
            pattern, keys = dialog
            if re.search(pattern, text):
                self.dialogs.remove(dialog)
                time.sleep(0.5)
                for key in keys:
                    self.keys(key)
                    time.sleep(1)
                return True
        return False

    def wait_until_ready(self, ready, seconds=90):
        """Answers the dialogs of the start, until the program is ready."""
        end = time.monotonic() + seconds
        ready_since = None
        while time.monotonic() < end:
            text = self.screen()
            if self.answer_dialog():
                ready_since = None
            elif not re.search(ready, text):
                ready_since = None
            elif ready_since is None:
                ready_since = time.monotonic()
            elif time.monotonic() - ready_since > 1.5:
                # A dialog may follow a moment after the first screen.
                return text
            time.sleep(0.3)
        raise TimeoutError(f"it never became ready:\n{self.screen()}")

    def is_running(self):
        return self.tmux("display-message", "-p", "#{pane_dead}").strip() == "0"

    def close(self):
        """Ends the program and its terminal."""
        self.screen()
        server = self.tmux("display-message", "-p", "#{pid}").strip()
        children = descendants(self.pid)
        for pid in [*children, self.pid]:
            end_process(pid, signal.SIGTERM)
        time.sleep(0.5)
        for pid in [*children, self.pid]:
            end_process(pid, signal.SIGKILL)
        if server:
            end_process(int(server), signal.SIGTERM)


def end_process(pid, how):
    try:
        os.kill(pid, how)
    except ProcessLookupError:
        pass


def descendants(pid):
    """Returns the processes below a process."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/stat", encoding="utf-8", errors="replace") as file:
                    parent = int(file.read().rsplit(")", 1)[1].split()[1])
            except (OSError, IndexError):
                continue
            if parent == pid:
                found += [int(entry), *descendants(int(entry))]
    return found
