"""The benchmark's side of the protocol: an adapter that runs, and what it is asked."""

import contextlib
import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import programs

CALL_LIMIT = 330.0


class AdapterError(Exception):
    """An adapter did not answer, or could not do what the benchmark needs."""


class Gone(AdapterError):
    """The adapter's process has ended."""


@dataclass
class Setting:
    """A program, and the folders of one scenario."""

    program: programs.Program
    msgfs: Path
    # All that a program keeps is below `root`; what it may lose, mount points for example, below `scratch`.
    root: Path
    scratch: Path
    agents: list[str]
    environment: dict[str, str] = field(default_factory=dict)


class Adapter:
    """One adapter's process, which acts for some of the agents."""

    def __init__(self, setting: Setting, mine: list[str], first: bool = False) -> None:
        self.setting, self.mine, self.first = setting, mine, first
        self.scratch = setting.scratch / f"adapter-{os.urandom(4).hex()}"
        self.scratch.mkdir(parents=True)
        self.about: dict = {}
        self.born: dict[int, str] = {}
        self._begin()

    def _begin(self) -> None:
        setting = self.setting
        self.errors = (self.scratch / "stderr").open("ab")
        self.process = subprocess.Popen(
            programs.command_line(setting.program), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors,
            cwd=self.scratch, env={**os.environ, **programs.environment(setting.msgfs), "HOME": str(setting.scratch),
                                   **setting.environment})
        self.buffer = b""

    def start(self) -> dict:
        """Makes the store if this is the first adapter, and starts what the program needs for its agents."""
        setting = self.setting
        self.about = self.ask("start", root=str(setting.root), scratch=str(self.scratch), agents=setting.agents, mine=self.mine,
                              first=self.first)
        self._remember()
        return self.about

    def _remember(self) -> None:
        """Notes which processes the program told, so that none is killed that only has the number of one of them."""
        self.born = {pid: birth(pid) for pid in (self.about.get("processes") or {}).values()}

    def ask(self, operation: str, **arguments) -> dict:
        """Asks and returns the answer; a refusal is an error."""
        answer = self.try_to(operation, **arguments)
        if not answer["ok"]:
            raise AdapterError(f"{self.setting.program.name}: {operation}: {answer.get('trace') or answer['error']}")
        return answer

    def insist(self, operation: str, **arguments) -> dict:
        """Asks again for ten seconds if it is refused, as an agent does whose program says that its store is locked."""
        end = time.monotonic() + 10
        while True:
            answer = self.try_to(operation, **arguments)
            if answer["ok"]:
                return answer
            if answer.get("trace") or time.monotonic() > end:
                raise AdapterError(f"{self.setting.program.name}: {operation}: {answer.get('trace') or answer['error']}")
            time.sleep(0.02)

    def try_to(self, operation: str, **arguments) -> dict:
        """Asks and returns the answer, also if it is a refusal."""
        self.tell(operation, **arguments)
        return self.answer(CALL_LIMIT)

    def tell(self, operation: str, **arguments) -> None:
        """Asks without waiting for the answer."""
        try:
            self.process.stdin.write(json.dumps({"op": operation, **arguments}).encode() + b"\n")
            self.process.stdin.flush()
        except OSError as error:
            raise Gone(self._last_words()) from error

    def answer(self, seconds: float) -> dict:
        """Waits for the next answer."""
        end = time.monotonic() + seconds
        while b"\n" not in self.buffer:
            left = end - time.monotonic()
            if left <= 0 or not select.select([self.process.stdout], [], [], left)[0]:
                raise AdapterError(f"{self.setting.program.name}: no answer in {seconds:.0f} s")
            part = os.read(self.process.stdout.fileno(), 1 << 20)
            if not part:
                raise Gone(self._last_words())
            self.buffer += part
        line, self.buffer = self.buffer.split(b"\n", 1)
        return json.loads(line)

    def _last_words(self) -> str:
        said = (self.scratch / "stderr").read_text(errors="replace").strip()
        return f"{self.setting.program.name}: the adapter has ended: {said[-500:]}"

    def victims(self, sender: str) -> list[int]:
        """Returns the processes of the program that do a send: the sender's own if the adapter told it, else the adapter
        itself if it uses a library, else the commands that run now."""
        processes = self.about.get("processes") or {}
        if sender in processes:
            return [pid for pid in (processes[sender],) if birth(pid) == self.born[pid]]
        if self.about["way"] == "library":
            return [self.process.pid]
        return descendants(self.process.pid)

    def kill_now(self, sender: str) -> int:
        """Kills them; returns how many there were."""
        hit = 0
        for pid in self.victims(sender):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                hit += 1
        return hit

    def revive(self, sender: str) -> None:
        """Lets the program run again after a kill, and the adapter, too, if it was the one."""
        if self.about["way"] == "library":
            self._reap()
            self._begin()
            self.first = False
            self.start()
        elif self.about.get("processes"):
            self.about["processes"] = self.ask("restart", me=sender)["processes"]
            self._remember()

    def _reap(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout, self.errors):
            with contextlib.suppress(OSError):
                pipe.close()

    def stop(self) -> None:
        """Ends the program's processes and the adapter."""
        with contextlib.suppress(AdapterError):
            self.tell("stop")
            self.answer(60)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(5)
        self._reap()

    def kill(self) -> None:
        """Ends everything at once, as a loss of power does."""
        pids = [pid for pid, born in self.born.items() if birth(pid) == born] + descendants(self.process.pid)
        self.process.kill()
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._reap()
        for mount in self.mounts():
            subprocess.run(["fusermount3", "-uz", mount], capture_output=True, check=False)

    def mounts(self) -> list[str]:
        """Returns the mount points below the adapter's own folder."""
        lines = Path("/proc/self/mounts").read_text().splitlines()
        return [line.split()[1] for line in lines if line.split()[1].startswith(str(self.scratch))]


@contextlib.contextmanager
def running(setting: Setting, mine: list[str], first: bool = False) -> Iterator[Adapter]:
    """Starts an adapter and its program, and ends both afterwards."""
    adapter = Adapter(setting, mine, first)
    try:
        adapter.start()
        yield adapter
    finally:
        adapter.stop()
        adapter.kill()


def birth(pid: int) -> str:
    """Returns the moment at which a process began, or "" if there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[19]
    except OSError:
        return ""


def descendants(pid: int) -> list[int]:
    """Returns the processes that a process has started, and those that they have."""
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in map(int, task.read_text().split()):
                found += [child, *descendants(child)]
    return found
