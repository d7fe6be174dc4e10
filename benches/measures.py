"""The measurements: one function each, from a world with messages in it to rows of the table."""

import contextlib
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import kinds
import links
import peers
import store
from harness import (BenchError, Place, Row, command, median_seconds, place, proc_field, quantile,
                     resident, seconds, switches, wait_until)

HERE = Path(__file__).resolve().parent
NOTHING = math.nan

# Records that arrive while we measure are later than all generated ones, one a second, so that
# each has the digits .000 in its name.
LATER = store.START + 40 * 86_400


@dataclass(frozen=True)
class Sizes:
    """How much of everything."""

    records: int = 500_000
    folder: int = 100_000
    opens: int = 500
    sends: int = 2_000
    appends: int = 200
    letters: int = 10_000
    amp_files: int = 100_000
    atsf_messages: int = 200_000
    ssot_messages: int = 10_000
    amq_messages: int = 100_000
    repeat: int = 5
    nats: links.Sizes = field(default_factory=links.Sizes)

    @classmethod
    def quick(cls) -> "Sizes":
        """Enough to see that every measurement still works, not enough to learn anything."""
        return cls(records=5_000, folder=1_000, opens=50, sends=50, appends=20, letters=200,
                   amp_files=500, atsf_messages=1_000, ssot_messages=400, amq_messages=500, repeat=1, nats=links.Sizes.quick())


class World:
    """The stores that several measurements share, made when first needed."""

    def __init__(self, program: Path, parent: Path, sizes: Sizes, stack: contextlib.ExitStack) -> None:
        self.program, self.parent, self.sizes, self.stack = program, parent, sizes, stack
        self._places: dict[str, Place] = {}
        self._reader: dict[str, float] | None = None
        self._later = LATER

    def fresh(self, config: str = "") -> Place:
        """An empty place."""
        return self.stack.enter_context(place(self.program, self.parent, config))

    def _shared(self, name: str, shape: store.Shape, seen: bool) -> Place:
        if name not in self._places:
            where = self.fresh()
            store.generate(where.store, shape)
            if seen:
                store.mark_all_read(where.store, LATER - 1)
            self._places[name] = where
        return self._places[name]

    def big(self) -> Place:
        """The large store: ten logs, half of the messages to me, none of them read."""
        return self._shared("big", store.Shape(self.sizes.records), seen=False)

    def folder(self) -> Place:
        """One day with many messages to me, all read."""
        shape = store.Shape(self.sizes.folder, to_me=1.0, span_seconds=86_400)
        return self._shared("folder", shape, seen=True)

    def small(self) -> Place:
        """A store as most are, all read."""
        return self._shared("small", store.Shape(1_000), seen=True)

    def empty(self) -> Place:
        """A store without messages."""
        return self._shared("empty", store.Shape(0), seen=False)

    def arrival(self, sender: str = "agent3") -> tuple[str, bytes]:
        """A new message to me: the name it will have in the mount, and its line."""
        self._later += 1
        ident, line = store.record(self._later, sender, store.ME, "2026-02-14-arrival", f"number {self._later}")
        return store.file_name(self._later, sender, ident), line

    def reader(self) -> dict[str, float]:
        """What the plain Python reader says about the large store, and how long it took."""
        if self._reader is None:
            times = []
            for _ in range(min(self.sizes.repeat, 3)):
                start = time.perf_counter()
                out = subprocess.run([sys.executable, HERE / "reader.py", self.big().store, store.ME],
                                     check=True, stdout=subprocess.PIPE).stdout
                times.append(time.perf_counter() - start)
            self._reader = {**json.loads(out), "seconds": statistics.median(times)}
            if self._reader["bad_ids"]:
                raise BenchError(f"the generator made {self._reader['bad_ids']} wrong ids")
        return self._reader


def index(world: World) -> Iterator[Row]:
    """Reading a store for the first time: `msgfs status` without a snapshot."""
    big, repeat = world.big(), world.sizes.repeat
    logs = sorted(big.store.glob("log-*.jsonl"))
    command("sha256sum", *logs)  # everything measured here finds the files in the page cache
    hashing = median_seconds(lambda: command("sha256sum", *logs), repeat)
    big.run("status")  # makes the key
    ours = median_seconds(lambda: big.run("status"), repeat, big.forget_index)
    one_core = median_seconds(lambda: big.run("status", one_core=True), repeat, big.forget_index)
    reader = world.reader()
    count = reader["records"]
    yield Row(f"cold index, {count:,.0f} records", ours, "s", "plain Python reader", reader["seconds"])
    yield Row(f"cold index, {count:,.0f} records", ours, "s", "sha256sum of the logs", hashing)
    yield Row("cold index on one core, records a second", count / one_core, "/s", "plain Python reader",
              count / reader["seconds"], "1,500,000 /s", more_is_better=True)
    empty = world.empty()
    empty.run("status")
    yield Row("`msgfs status` of an empty store", median_seconds(lambda: empty.run("status"), repeat),
              "s", "the cold index", ours)


def remount(world: World) -> Iterator[Row]:
    """Mounting again, with a snapshot, when nothing, one or a thousand messages are new."""
    big = world.big()

    def timed(new: int, cold: bool = False) -> float:
        times = []
        for _ in range(world.sizes.repeat):
            if cold:
                big.forget_index()
            names = []
            for number in range(new):
                name, line = world.arrival(f"agent{number % 10}")
                big.append(f"agent{number % 10}", line)
                names.append(name)
            try:
                times.append(seconds(lambda: big.run("mount", str(big.mountpoint))))
                # What was appended while we were away must be there now, not soon.
                missing = [name for name in names if not (big.mountpoint / "inbox" / name).exists()]
                if missing:
                    raise BenchError(f"mounted without {len(missing)} of {new} new messages")
                big.unmount()
            finally:
                big.force_unmount()
        return statistics.median(times)

    cold = timed(0, cold=True)
    with big.mounted():
        shown, wanted = len(os.listdir(big.mountpoint / "inbox")), world.reader()["to_me"]
        if shown < wanted:
            raise BenchError(f"inbox/ shows {shown} messages, the store has {wanted:.0f}")
    for new in (0, 1, 1_000):
        yield Row(f"mount from the snapshot, {new:,} new", timed(new), "s", "mount without snapshot",
                  cold, "grows with what is new")
    empty = world.empty()
    empty.mount_seconds()
    floor = empty.mount_seconds()
    yield Row("mount of an empty store", floor, "s", "mount without snapshot", cold)


def memory(world: World) -> Iterator[Row]:
    """Resident memory of the daemon for each message, right after mounting."""
    big, empty = world.big(), world.empty()
    with empty.mounted() as pid:
        base = resident(pid)
    reader = world.reader()
    big.forget_index()
    with big.mounted() as pid:
        cold = (resident(pid) - base) / reader["records"]
    with big.mounted() as pid:
        warm = (resident(pid) - base) / reader["records"]
    per_record = reader["bytes"] / reader["records"]
    yield Row("memory a message, after a cold index", cold, "bytes", "plain Python reader", per_record, "100 bytes")
    yield Row("memory a message, from the snapshot", warm, "bytes", "plain Python reader", per_record, "100 bytes")
    yield Row("memory without messages", base / 1e6, "MB", "", NOTHING)


def changed(world: World) -> Iterator[Row]:
    """One record appended to one large log: how long, and how many bytes msgfs reads for it."""
    big = world.big()
    log = big.store / "log-agent3.jsonl"
    with big.mounted() as pid:
        inbox = str(big.mountpoint / "inbox")
        os.stat(inbox)
        times, before, appended = [], proc_field(pid, "io", "rchar:"), 0
        for _ in range(world.sizes.appends):
            name, line = world.arrival()
            path = f"{inbox}/{name}"
            start = time.perf_counter()
            big.append("agent3", line)
            wait_until(lambda path=path: os.path.exists(path), name)
            times.append(time.perf_counter() - start)
            appended += len(line)
            time.sleep(0.005)
        read = proc_field(pid, "io", "rchar:") - before
    alone = world.fresh().store
    shutil.copy(log, alone)
    again = median_seconds(lambda: subprocess.run([sys.executable, HERE / "reader.py", alone, store.ME],
                                                  check=True, stdout=subprocess.DEVNULL), min(world.sizes.repeat, 3))
    yield Row("one record more in a large log, until visible", statistics.median(times), "s",
              "Python reads that log again", again)
    yield Row("bytes read for it", read / world.sizes.appends, "bytes", "bytes appended",
              appended / world.sizes.appends, "the changed bytes")


def folder(world: World) -> Iterator[Row]:
    """ls, ls -l and grep -r of a large folder, first and again, beside the same files on disk."""
    where, size = world.folder(), world.sizes.folder
    day = where.mountpoint / "archive" / time.strftime("%Y-%m-%d", time.gmtime(store.START))
    local = where.root / "local"
    with where.mounted():
        command("cp", "-a", day, local)
    if len(os.listdir(local)) != size:
        raise BenchError(f"{day} shows {len(os.listdir(local))} messages, expected {size}")
    for words in (("ls",), ("ls", "-l"), ("grep", "-r", "not in any message")):
        with where.mounted():
            first = seconds(lambda words=words: command(*words, day))
            again = median_seconds(lambda words=words: command(*words, day), world.sizes.repeat)
        disk = median_seconds(lambda words=words: command(*words, local), world.sizes.repeat)
        what = " ".join(words[:2])
        yield Row(f"`{what}` of {size:,} messages, first", first, "s", "same files on disk, cached", disk)
        yield Row(f"`{what}` again", again, "s", "same files on disk, cached", disk)
    shutil.rmtree(local)


def opening(world: World) -> Iterator[Row]:
    """Opening, reading and closing one message, first and again."""
    where, count = world.folder(), world.sizes.opens
    day = where.mountpoint / "archive" / time.strftime("%Y-%m-%d", time.gmtime(store.START))
    local = where.root / "some"
    local.mkdir()
    with where.mounted():
        names = os.listdir(day)
        names = names[:: max(1, len(names) // count)][:count]
        for name in names:
            shutil.copy(day / name, local)
    with where.mounted():
        first = statistics.median(peers.open_read_close(f"{day}/{name}") for name in names)
        again = statistics.median(peers.open_read_close(f"{day}/{name}") for _ in range(5) for name in names)
    disk = statistics.median(peers.open_read_close(f"{local}/{name}") for _ in range(5) for name in names)
    yield Row("open, read, close one message, first", first, "s", "same file on disk, cached", disk)
    yield Row("open, read, close it again", again, "s", "same file on disk, cached", disk)
    shutil.rmtree(local)


def sending(world: World) -> Iterator[Row]:
    """Messages sent a second through outbox/, durable and not."""
    count = world.sizes.sends
    for durability, sync, peer in (("fsync", True, "append + fdatasync"), ("none", False, "append")):
        where = world.fresh(f'durability = "{durability}"\n')
        log = where.store / f"log-{store.ME}.jsonl"
        with where.mounted():
            outbox = f"{where.mountpoint}/outbox/alice"
            start = time.perf_counter()
            for number in range(count):
                fd = os.open(outbox, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
                os.write(fd, b"message number %d, of the length that such messages have\n" % number)
                os.close(fd)
            closed = time.perf_counter() - start
            wait_until(lambda: log.exists() and log.read_bytes().count(b"\n") >= count, f"{count} sends", 60.0)
            landed = time.perf_counter() - start
        lines = log.read_bytes().splitlines(keepends=True)
        if len(lines) != count:
            raise BenchError(f"sent {count} messages, the log has {len(lines)}")
        raw = peers.append_loop(where.root / "raw.jsonl", lines, sync)
        target = "1 durable append more: 0.5×" if sync else ""
        yield Row(f'sends a second, durability "{durability}"', count / landed, "/s", peer, count / raw,
                  target, more_is_better=True)
        yield Row("one send, as the sender waits for it", closed / count, "s", peer, raw / count)


def latency(world: World) -> Iterator[Row]:
    """From a line in a log to a name in inbox/."""
    where, count = world.small(), world.sizes.appends
    with peers.watcher(where.store) as report:
        known = []
        for _ in range(count):
            _, line = world.arrival("agent1")
            start = time.perf_counter()
            where.append("agent1", line)
            report()
            known.append(time.perf_counter() - start)
            time.sleep(0.01)
    ways: tuple[tuple[str, Callable[[str, str], bool]], ...] = (
        ("by name", lambda inbox, name: os.path.exists(f"{inbox}/{name}")),
        ("in `ls inbox`", lambda inbox, name: name in os.listdir(inbox)),
    )
    for how, visible in ways:
        times = []
        with where.mounted():
            inbox = str(where.mountpoint / "inbox")
            os.listdir(inbox)
            for _ in range(count):
                name, line = world.arrival("agent2")
                start = time.perf_counter()
                where.append("agent2", line)
                wait_until(lambda name=name: visible(inbox, name), name)
                times.append(time.perf_counter() - start)
                time.sleep(0.01)
        for what, share in (("median", 0.5), ("99th percentile", 0.99)):
            yield Row(f"append to visible {how}, {what}", quantile(times, share), "s",
                      "a bare inotify watcher", quantile(known, share), "5 ms")


def idle(world: World) -> Iterator[Row]:
    """What a mount costs while nothing happens."""
    with world.small().mounted() as pid:
        time.sleep(1.0)
        before, span = switches(pid), 1.0 if world.sizes.repeat == 1 else 10.0
        time.sleep(span)
        yield Row("wake-ups a second while nothing happens", (switches(pid) - before) / span, "/s", "",
                  NOTHING, "0")


def nats(world: World) -> Iterator[Row]:
    """Mail between machines over NATS."""
    yield from links.nats(world.program, world.parent, world.sizes.nats)


ALL: dict[str, Callable[[World], Iterator[Row]]] = {
    "index": index, "remount": remount, "memory": memory, "changed": changed, "folder": folder,
    "open": opening, "send": sending, "latency": latency, "idle": idle,
    "agentazall": kinds.agentazall, "amp": kinds.amp, "atsf": kinds.atsf, "ssot": kinds.ssot,
    "amq": kinds.amq, "nats": nats,
}
