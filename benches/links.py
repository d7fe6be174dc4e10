"""Measurements of links, each beside the client of the engine used by itself."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import store
from harness import BenchError, Place, Row, place, quantile, resident, wait_until

# Whoever writes on the first machine.
WRITER = "alice"


@dataclass(frozen=True)
class Sizes:
    """How much of everything."""

    waiting: int = 200_000
    records: int = 1_000_000
    agents: int = 2_000
    hosts: int = 200
    rate: int = 100
    arrivals: int = 300
    at_rest: float = 20.0

    @classmethod
    def quick(cls) -> "Sizes":
        """Enough to see that it works."""
        return cls(waiting=500, records=2_000, agents=20, hosts=5, rate=20, arrivals=10, at_rest=1.0)


class Server:
    """A NATS server of our own, ended with this."""

    def __init__(self, parent: Path, stack: contextlib.ExitStack) -> None:
        program = os.environ.get("NATS_SERVER") or "nats-server"
        root = Path(tempfile.mkdtemp(prefix="nats-", dir=parent))
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"nats://127.0.0.1:{self.port}"
        (root / "conf").write_text(f'host: 127.0.0.1\nport: {self.port}\njetstream {{ store_dir: "{root}/js" }}\n')
        process = subprocess.Popen([program, "-c", root / "conf"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        stack.callback(shutil.rmtree, root, ignore_errors=True)
        stack.callback(end, process)
        self.pid = process.pid
        wait_until(self.listens, "the NATS server")

    def listens(self) -> bool:
        """Whether somebody can connect."""
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0


def end(process: subprocess.Popen[bytes]) -> None:
    """Ends a process and waits for it."""
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


class Bare:
    """The client by itself."""

    def __init__(self, program: Path, server: Server) -> None:
        self.program = program.parent / "examples/bare_nats"
        self.url = server.url

    def run(self, what: str, *numbers: int) -> list[float]:
        """Runs it to its end; what it printed."""
        words = [self.program, what, self.url, *map(str, numbers)]
        done = subprocess.run(words, check=False, capture_output=True, text=True)
        if done.returncode != 0:
            raise BenchError(f"bare_nats {what}: {done.stderr}")
        return [float(line) for line in done.stdout.split()]

    @contextlib.contextmanager
    def crowd(self, sizes: Sizes) -> Iterator[None]:
        """Many other hosts, as long as this lasts."""
        words = [self.program, "crowd", self.url, str(sizes.hosts), str(sizes.agents), str(sizes.rate)]
        with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            try:
                if process.stdout is None or process.stdout.readline() != "ready\n":
                    raise BenchError("the crowd did not come")
                yield
            finally:
                if process.stdin:
                    process.stdin.close()
                if process.wait(60) != 0:
                    raise BenchError("the crowd ended with an error")


@contextlib.contextmanager
def machine(program: Path, parent: Path, server: Server) -> Iterator[Place]:
    """A machine whose store the server shall carry; it does not yet."""
    link = f'[[store]]\nkind = "samp"\n\n[[link]]\nkind = "nats"\nstore = "samp"\nspace = "team"\nurl = "{server.url}"\n'
    with place(program, parent, link) as where:
        yield where


@contextlib.contextmanager
def carrying(where: Place) -> Iterator[int]:
    """Carries, as long as this lasts; gives the process id."""
    with (where.root / "carry.err").open("wb") as errors:
        process = subprocess.Popen([where.program, "carry", "--all"], env=where.env, cwd=where.root,
                                   stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors)
        try:
            yield process.pid
            if process.poll() is not None:
                raise BenchError("msgfs carry --all ended: " + (where.root / "carry.err").read_text())
        finally:
            end(process)


def size(where: Place, writer: str) -> int:
    """How long a log is on a machine."""
    with contextlib.suppress(FileNotFoundError):
        return (where.store / f"log-{writer}.jsonl").stat().st_size
    return 0


def lines(count: int, start: int = 0) -> list[bytes]:
    """Records of the writer."""
    body = "the schema migration is done, please review the branch before it is merged. " * 2
    return [store.record(store.START + n, WRITER, store.ME, f"t{n % 100}", f"{body}{n}")[1]
            for n in range(start, start + count)]


def one_by_one(here: Place, there: Place, records: list[bytes]) -> list[float]:
    """From the append on one machine to the append on the other, for each record."""
    times, end_of_log = [], size(here, WRITER)
    for line in records:
        end_of_log += len(line)
        start = time.perf_counter()
        here.append(WRITER, line)
        wait_until(lambda: size(there, WRITER) >= end_of_log, "a line on the other machine")
        times.append(time.perf_counter() - start)
        time.sleep(0.005)
    return times


def quantiles(what: str, times: list[float], peer: list[float]) -> Iterator[Row]:
    """The rows of a list of times."""
    for name, share in (("median", 0.5), ("99th percentile", 0.99)):
        yield Row(f"{what}, {name}", quantile(times, share), "s", "publish to receipt, the client alone",
                  quantile(peer, share))


def waiting(program: Path, parent: Path, sizes: Sizes) -> Iterator[Row]:
    """Lines that waited on one machine, until they are on another; then lines one by one."""
    with contextlib.ExitStack() as stack:
        server = Server(parent, stack)
        bare = Bare(program, server)
        here, there = (stack.enter_context(machine(program, parent, server)) for _ in range(2))
        records = lines(sizes.waiting)
        here.append(WRITER, b"".join(records))
        stack.enter_context(carrying(there))
        start = time.perf_counter()
        stack.enter_context(carrying(here))
        wait_until(lambda: size(there, WRITER) == size(here, WRITER), "all lines", 600.0)
        taken = time.perf_counter() - start
        times = one_by_one(here, there, lines(sizes.arrivals, sizes.waiting))
        alone = bare.run("arrive", sizes.arrivals)
        other = Server(parent, stack)
        [filled] = Bare(program, other).run("fill", 1, sizes.waiting)
        [read] = Bare(program, other).run("replay", sizes.waiting)
    yield Row(f"`nats`: {sizes.waiting:,} waiting lines, machine to machine", sizes.waiting / taken, "/s",
              "stored in batches, then read, the client alone", sizes.waiting / (filled + read), more_is_better=True)
    yield from quantiles("`nats`: append to append", times, alone)


def fleet(program: Path, parent: Path, sizes: Sizes) -> Iterator[Row]:
    """A machine that comes late to a large fleet, and how fast lines arrive in it."""
    with contextlib.ExitStack() as stack:
        server = Server(parent, stack)
        bare = Bare(program, server)
        each = sizes.records // sizes.agents
        total = each * sizes.agents
        bare.run("fill", sizes.agents, each)
        [alone] = bare.run("replay", total)
        late = stack.enter_context(machine(program, parent, server))
        start = time.perf_counter()
        pid = stack.enter_context(carrying(late))
        wait_until(lambda: held(late, sizes, each), f"{total:,} lines", 1800.0)
        taken = time.perf_counter() - start
        yield Row(f"`nats`: {total:,} lines of {sizes.agents:,} agents, to a new machine", total / taken, "/s",
                  "read by the client alone", total / alone, more_is_better=True)
        yield Row("`nats`: memory of `msgfs carry --all` then", resident(pid) / 1e6, "MB", "", float("nan"))
        other = stack.enter_context(machine(program, parent, server))
        stack.enter_context(carrying(other))
        wait_until(lambda: held(other, sizes, each), f"{total:,} lines", 1800.0)
        with bare.crowd(sizes):
            times = one_by_one(late, other, lines(sizes.arrivals))
            peer = bare.run("arrive", sizes.arrivals)
        what = f"`nats`: append to append beside {sizes.hosts} hosts, {sizes.agents:,} agents, {sizes.rate} lines/s"
        yield from quantiles(what, times, peer)
        time.sleep(2.0)
        before = spent(pid)
        time.sleep(sizes.at_rest)
        yield Row("`nats`: processor time a second at rest", (spent(pid) - before) / sizes.at_rest, "s", "",
                  float("nan"), "0")
        same_logs(late, other)


def held(where: Place, sizes: Sizes, each: int) -> bool:
    """Whether the logs of all agents are whole; looks at few while they are not."""
    for n in range(sizes.agents - 1, -1, -1):
        path = where.store / f"log-agent{n}.jsonl"
        if not path.exists() or not ends_with(path, f'"id":"agent{n}-{each - 1}"'.encode()):
            time.sleep(0.005)
            return False
    return True


def ends_with(path: Path, mark: bytes) -> bool:
    """Whether the last line of a log has this and is whole."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 1024))
        tail = file.read()
    return tail.endswith(b"\n") and mark in tail.splitlines()[-1]


def spent(pid: int) -> float:
    """The processor time of a process so far, in seconds."""
    words = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def same_logs(one: Place, other: Place) -> None:
    """Both machines hold the same bytes; a figure of something wrong is worth nothing."""
    wait_until(lambda: size(one, WRITER) == size(other, WRITER), "the last line")
    names = [sorted(path.name for path in where.store.glob("log-*.jsonl")) for where in (one, other)]
    if names[0] != names[1]:
        raise BenchError(f"the machines have different logs: {set(names[0]) ^ set(names[1])}")
    for name in names[0]:
        if (one.store / name).read_bytes() != (other.store / name).read_bytes():
            wait_until(lambda name=name: (one.store / name).read_bytes() == (other.store / name).read_bytes(), name)


def nats(program: Path, parent: Path, sizes: Sizes) -> Iterator[Row]:
    """All of it."""
    yield from waiting(program, parent, sizes)
    yield from fleet(program, parent, sizes)
