"""What every measurement needs: a world of its own, mounts that always end, clocks and tables."""

import contextlib
import json
import math
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import store


class BenchError(Exception):
    """A measurement could not be made; the text says why."""


@dataclass(frozen=True)
class Row:
    """One result beside its peer."""

    what: str
    ours: float
    unit: str
    peer_name: str
    peer: float
    target: str = ""
    # For rates more is better; for times and bytes less is.
    more_is_better: bool = False

    @property
    def ratio(self) -> float:
        """Ours divided by the peer's."""
        return self.ours / self.peer if self.peer else float("nan")


class Place:
    """A home, a SAMP store at its default place and mounts, all in one temporary folder."""

    def __init__(self, program: Path, root: Path, config: str = "") -> None:
        self.program = program
        self.root = root
        self.home = root / "home"
        self.store = self.home / ".local/state/agent-message"
        self.cache = self.home / ".cache/msgfs"
        self.mountpoint = root / "mnt"
        self.store.mkdir(parents=True)
        self.mountpoint.mkdir()
        (root / "tmp").mkdir()
        if config:
            path = self.home / ".config/msgfs/config.toml"
            path.parent.mkdir(parents=True)
            path.write_text(config)
        # A clean environment, so that nobody's settings or messages are in the measurement.
        self.env = {
            "HOME": str(self.home), "TMPDIR": str(root / "tmp"), "LC_ALL": "C.UTF-8", "TZ": "UTC",
            "PATH": os.environ.get("PATH", "/usr/bin:/bin"), "MSGFS_ME": store.ME,
        }

    def run(self, *args: str, one_core: bool = False) -> subprocess.CompletedProcess[bytes]:
        """Runs msgfs with these arguments, on one core if asked; its failure is ours."""
        pinned = ["taskset", "-c", str(min(os.sched_getaffinity(0)))] if one_core else []
        done = subprocess.run([*pinned, self.program, *args], env=self.env, cwd=self.root, check=False,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        if done.returncode != 0:
            raise BenchError(f"msgfs {' '.join(args)} failed ({done.returncode}): {done.stderr.decode()}")
        return done

    def peak(self, *args: str) -> int:
        """Runs msgfs with these arguments; the most memory it had at once, in bytes."""
        with subprocess.Popen([self.program, *args], env=self.env, cwd=self.root, stdin=subprocess.DEVNULL,
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            _, status, used = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != 0:
            raise BenchError(f"msgfs {' '.join(args)} failed ({process.returncode})")
        return used.ru_maxrss * 1024

    def forget_index(self) -> None:
        """Deletes the snapshot: the next start is cold."""
        shutil.rmtree(self.cache, ignore_errors=True)

    def is_mounted(self) -> bool:
        """Whether something is mounted at our mount point, answering or not."""
        wanted = os.fsencode(self.mountpoint)
        with open("/proc/self/mountinfo", "rb") as table:
            return any(line.split()[4] == wanted for line in table)

    def daemons(self) -> list[int]:
        """Processes that run our program for our mount point."""
        parents: dict[int, int] = {}
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            with contextlib.suppress(OSError):
                words = (entry / "cmdline").read_bytes().split(b"\0")
                if os.fsencode(self.mountpoint) in words and b"mount" in words \
                        and os.path.samefile(entry / "exe", self.program):
                    parents[int(entry.name)] = proc_field(int(entry.name), "status", "PPid:")
        # A child of one of them is about to become a carrier.
        return [pid for pid, parent in parents.items() if parent not in parents]

    @contextlib.contextmanager
    def mounted(self) -> Iterator[int]:
        """Mounts, gives the daemon's process id, and unmounts whatever happens."""
        try:
            self.run("mount", str(self.mountpoint))
            daemons = self.daemons()
            if len(daemons) != 1:
                raise BenchError(f"expected one daemon, found {daemons}")
            yield daemons[0]
            self.unmount()
        finally:
            self.force_unmount()

    def mount_seconds(self) -> float:
        """How long it takes until a mount answers; unmounts again."""
        try:
            taken = seconds(lambda: self.run("mount", str(self.mountpoint)))
            self.unmount()
            return taken
        finally:
            self.force_unmount()

    def unmount(self) -> None:
        """Unmounts in the ordinary way and waits until the daemon has ended."""
        self.run("umount", str(self.mountpoint))
        deadline = time.monotonic() + 30
        while self.daemons():
            if time.monotonic() > deadline:
                raise BenchError("the daemon still runs 30 s after umount")
            time.sleep(0.01)

    def force_unmount(self) -> None:
        """Leaves neither a mount nor a daemon behind."""
        if self.is_mounted():
            subprocess.run(["fusermount3", "-u", "-z", "-q", self.mountpoint], check=False)
        for pid in self.daemons():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, 9)

    def append(self, sender: str, data: bytes) -> None:
        """Appends to a log as another program would."""
        store.append(self.store, sender, data)


@contextlib.contextmanager
def place(program: Path, parent: Path, config: str = "") -> Iterator[Place]:
    """A fresh `Place` that is unmounted and removed at the end."""
    root = Path(tempfile.mkdtemp(prefix="msgfs-bench-", dir=parent))
    where = Place(program, root, config)
    try:
        yield where
    finally:
        where.force_unmount()
        if not where.is_mounted():
            shutil.rmtree(root, ignore_errors=True)


def seconds(action: Callable[[], object]) -> float:
    """How long it takes."""
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def median_seconds(action: Callable[[], object], repeat: int, before: Callable[[], object] | None = None) -> float:
    """The median of several runs, each after `before`, which is not counted."""
    times = []
    for _ in range(repeat):
        if before:
            before()
        times.append(seconds(action))
    return statistics.median(times)


def quantile(times: list[float], share: float) -> float:
    """The smallest value that at least this share of the values does not exceed."""
    ordered = sorted(times)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def command(*words: str | os.PathLike[str]) -> bytes:
    """Runs a command and reads all it prints.

    Into a pipe, because ls, grep and tar do less work when they see /dev/null.
    """
    done = subprocess.run(words, check=False, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          env={"PATH": os.environ.get("PATH", "/usr/bin:/bin"), "LC_ALL": "C.UTF-8"})
    # grep says 1 when nothing matched.
    if done.returncode > (1 if words[0] == "grep" else 0):
        raise BenchError(f"{words[0]} ended with {done.returncode}")
    return done.stdout


def resident(pid: int) -> int:
    """Resident memory of a process in bytes."""
    return proc_field(pid, "status", "VmRSS:") * 1024


def anonymous(pid: int) -> int:
    """Memory of a process in bytes that is its own: what it mapped from a file and did not change is not."""
    return proc_field(pid, "status", "RssAnon:") * 1024


def settled(where: Place, pid: int) -> int:
    """The same after a first index: when it has been written, and become less for the last time."""
    wait_until(lambda: any(where.cache.glob("*/index")), "a saved index", 600.0)
    least, since = anonymous(pid), time.monotonic()
    while time.monotonic() < since + 2:
        time.sleep(0.1)
        if (now := anonymous(pid)) < least:
            least, since = now, time.monotonic()
    return least


def proc_field(pid: int, table: str, name: str) -> int:
    """A number from /proc/PID/TABLE."""
    for line in Path(f"/proc/{pid}/{table}").read_text().splitlines():
        words = line.split()
        if words[0] == name:
            return int(words[1])
    raise BenchError(f"/proc/{pid}/{table} has no {name}")


def switches(pid: int) -> int:
    """How often the threads of a process have run so far, counted by their context switches."""
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        for line in (task / "status").read_text().splitlines():
            if "ctxt_switches" in line:
                total += int(line.split()[1])
    return total


def wait_until(condition: Callable[[], bool], what: str, limit: float = 30.0) -> None:
    """Busy-waits, because a sleep would be part of what is measured."""
    deadline = time.monotonic() + limit
    while not condition():
        if time.monotonic() > deadline:
            raise BenchError(f"{what}: not within {limit:.0f} s")


def human(value: float, unit: str) -> str:
    """A number with three significant digits, in a unit of fitting size."""
    if unit == "s":
        for name, factor in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
            if abs(value) >= factor or name == "µs":
                return f"{three(value / factor)} {name}"
    return f"{three(value)} {unit}"


def three(value: float) -> str:
    """At least three significant digits, without an exponent."""
    if value != value:
        return "n/a"
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2
    return f"{value:,.{digits}f}"


def table(rows: list[Row]) -> str:
    """The results in Markdown."""
    head = ["| what | msgfs | peer | | ratio | target |", "|---|---:|---:|---|---:|---|"]
    return "\n".join(head + [table_line(row) for row in rows])


def table_line(row: Row) -> str:
    """One result in Markdown."""
    peer = human(row.peer, row.unit) if row.peer == row.peer else ""
    ratio = f"{three(row.ratio)}×" if row.ratio == row.ratio else ""
    return f"| {row.what} | {human(row.ours, row.unit)} | {peer} | {row.peer_name} | {ratio} | {row.target} |"


def as_json(rows: list[Row], about: dict[str, object]) -> str:
    """The results for programs."""
    results = [{**asdict(row), "ratio": row.ratio if row.ratio == row.ratio else None,
                "peer": row.peer if row.peer == row.peer else None} for row in rows]
    return json.dumps({"about": about, "results": results}, indent=1, ensure_ascii=False)
