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
from functools import partial
from pathlib import Path

import arrivals
import folders
import kinds
import links
import mail_search
import peers
import post
import search
import store
from harness import (BenchError, Place, Row, anonymous, command, median_seconds, place, proc_field,
                     seconds, settled, switches, wait_until)

HERE = Path(__file__).resolve().parent
NOTHING = math.nan

# Records that arrive while we measure are later than all generated ones, one a second, so that
# each has the digits .000 in its name.
LATER = store.START + 40 * 86_400


@dataclass(frozen=True)
class Sizes:
    """How much of everything."""

    records: int = 500_000
    many: int = 10_000_000
    folder: int = 100_000
    opens: int = 500
    marks: int = 500_000
    sends: int = 2_000
    appends: int = 200
    burst: int = 100_000
    letters: int = 10_000
    amp_files: int = 100_000
    atsf_messages: int = 200_000
    ssot_messages: int = 10_000
    amq_messages: int = 100_000
    repeat: int = 5
    post: int = 300
    search: tuple[int, int] = (1_560, 1_000_000)
    mail_search: int = 20_000
    transcripts: int = 1_100_000
    nats: links.Sizes = field(default_factory=links.Sizes)

    @classmethod
    def quick(cls) -> "Sizes":
        """Enough to see that every measurement still works, not enough to learn anything."""
        return cls(records=5_000, many=20_000, folder=1_000, opens=50, marks=2_000, sends=64, appends=20, burst=1_000, letters=200,
                   amp_files=500, atsf_messages=1_000, ssot_messages=400, amq_messages=500, repeat=1, post=20,
                   search=(100, 1_000), mail_search=200, transcripts=5_000,
                   nats=links.Sizes.quick())


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

    def threads(self) -> Place:
        """As many messages to me in threads of a hundred, all read."""
        many = self.sizes.folder // 100
        shape = store.Shape(self.sizes.folder, to_me=1.0, threads=many)
        return self._shared("threads", shape, seen=True)

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
    yield Row(f"cold index, {count:,.0f} records", ours, "s", "sha256sum of the logs", hashing,
              "0.7× on 2 cores")
    big.forget_index()
    yield Row(f"most memory while {count:,.0f} records are indexed", big.peak("status") / 1e6, "MB",
              "the logs", sum(log.stat().st_size for log in logs) / 1e6, "1,000 MB at 10,000,000")
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
                  cold, "15 ms" if new == 0 else "grows with what is new")
    empty = world.empty()
    empty.mount_seconds()
    floor = empty.mount_seconds()
    yield Row("mount of an empty store", floor, "s", "mount without snapshot", cold)


def memory(world: World) -> Iterator[Row]:
    """Memory of the daemon for each message that is its own, right after mounting."""
    big, empty = world.big(), world.empty()
    with empty.mounted() as pid:
        base = anonymous(pid)
    reader = world.reader()
    big.forget_index()
    with big.mounted() as pid:
        cold = (settled(big, pid) - base) / reader["records"]
    with big.mounted() as pid:
        warm = (anonymous(pid) - base) / reader["records"]
        command("ls", "-l", big.mountpoint / "inbox")
        listed = (anonymous(pid) - base) / reader["records"]
    per_record = reader["bytes"] / reader["records"]
    peer = "plain Python reader"
    yield Row("memory a message, after a cold index", cold, "bytes", peer, per_record, "80 bytes")
    yield Row("memory a message, from the snapshot", warm, "bytes", peer, per_record, "80 bytes")
    yield Row("memory a message, after `ls -l inbox`", listed, "bytes", peer, per_record)
    yield Row("memory without messages", base / 1e6, "MB", "", NOTHING)


def many(world: World) -> Iterator[Row]:
    """Millions of messages: mounting again, and memory."""
    for count, mount, memory_of in ((world.sizes.many // 2, "30 ms", ""), (world.sizes.many, "", "300 MB")):
        where = world.fresh()
        store.generate_many(where.store, count)
        with where.mounted() as pid:
            cold = settled(where, pid)
        times = [where.mount_seconds() for _ in range(world.sizes.repeat)]
        yield Row(f"mount from the snapshot of {count:,}", statistics.median(times), "s", "", NOTHING, mount)
        with where.mounted() as pid:
            yield Row(f"memory of {count:,} messages, after a cold index", cold / 1e6, "MB", "from the snapshot",
                      anonymous(pid) / 1e6, memory_of)
        if count == world.sizes.many:
            yield from indexing_many(world, where, count)
        shutil.rmtree(where.store)


def indexing_many(world: World, where: Place, count: int) -> Iterator[Row]:
    """The first index of millions of messages, beside that of the large store."""
    big = world.big()
    big.run("status")
    rate = world.sizes.records / median_seconds(lambda: big.run("status"), world.sizes.repeat, big.forget_index)
    where.forget_index()
    taken = seconds(lambda: where.run("status"))
    yield Row(f"cold index of {count:,} records, a second", count / taken, "/s", f"of {world.sizes.records:,}", rate, "1×",
              more_is_better=True)
    where.forget_index()
    yield Row(f"most memory while {count:,} records are indexed", where.peak("status") / 1e6, "MB", "", NOTHING, "1,000 MB")


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
    """Many messages in one folder, as programs walk through it."""
    yield from folders.walks(folders.day(world.folder()), world.sizes.folder, world.sizes.repeat)


def threads(world: World) -> Iterator[Row]:
    """The same number in the folders of their threads."""
    yield from folders.walks(folders.threads(world.threads()), world.sizes.folder, world.sizes.repeat)


def opening(world: World) -> Iterator[Row]:
    """Opening, reading and closing one message, first and again."""
    yield from folders.opening(folders.day(world.folder()), world.sizes.opens)


def sending(world: World) -> Iterator[Row]:
    """Messages sent a second through outbox/, durable and not."""
    count = world.sizes.sends
    for durability, sync, peer in (("fsync", True, "append + fdatasync"), ("none", False, "append")):
        where = world.fresh(f'durability = "{durability}"\n')
        log = where.store / f"log-{store.ME}.jsonl"

        def send_all(mountpoint: Path) -> None:
            for number in range(count):
                peers.send_one(f"{mountpoint}/outbox/alice",
                               b"message number %d, of the length that such messages have\n" % number)

        with where.mounted():
            start = time.perf_counter()
            send_all(where.mountpoint)
            closed = time.perf_counter() - start
            wait_until(lambda: log.exists() and log.read_bytes().count(b"\n") >= count, f"{count} sends", 60.0)
            landed = time.perf_counter() - start
        lines = log.read_bytes().splitlines(keepends=True)
        if len(lines) != count:
            raise BenchError(f"sent {count} messages, the log has {len(lines)}")
        raw = peers.append_loop(where.root / "raw.jsonl", lines, sync)
        target = "1 durable append more: 0.43×" if sync else ""
        yield Row(f'sends a second, durability "{durability}"', count / landed, "/s", peer, count / raw,
                  target, more_is_better=True)
        yield Row("one send, as the sender waits for it", closed / count, "s", peer, raw / count, "2.3×" if sync else "")
        (where.root / "shown/outbox").mkdir(parents=True)
        with folders.floor(where, where.root / "shown") as mountpoint:
            bare = seconds(partial(send_all, mountpoint))
        yield Row("one send, as the sender waits for it", closed / count, "s", f"the floor, which forgets it, and {peer}",
                  (bare + raw) / count)
        if sync:
            yield together(world, 8, raw / count)


def together(world: World, senders: int, append: float) -> Row:
    """Messages sent a second by several at once; `append`: what one durable append takes."""
    where, each = world.fresh(), world.sizes.sends // senders
    log = where.store / f"log-{store.ME}.jsonl"
    count = senders * each
    with where.mounted():
        start = time.perf_counter()
        peers.send_together(where.mountpoint / "outbox", senders, each)
        wait_until(lambda: log.read_bytes().count(b"\n") >= count, f"{count} sends", 60.0)
        landed = time.perf_counter() - start
    if len(lines := log.read_bytes().splitlines()) != count:
        raise BenchError(f"sent {count} messages, the log has {len(lines)}")
    return Row(f"{senders} senders at once, sends a second", count / landed, "/s", "append + fdatasync, one after the other",
               1 / append, "1×", more_is_better=True)


def marks(world: World) -> Iterator[Row]:
    """Marking many messages: by removing their names, and all at once."""
    count = world.sizes.marks
    where = world.fresh()
    store.generate(where.store, store.Shape(count, to_me=1.0))
    others = [world.fresh() for _ in range(2)]
    for other in others:
        shutil.copytree(where.store, other.store, dirs_exist_ok=True)
    inbox, local = where.mountpoint / "inbox", where.root / "local"
    with where.mounted():
        names = os.listdir(inbox)
        ours = peers.remove_all(inbox, names)
        if len(names) != count or (left := os.listdir(inbox)):
            raise BenchError(f"of {count} messages {len(names)} were listed, and {len(left)} are left")

    def on_disk() -> None:
        local.mkdir()
        for name in names:
            (local / name).write_bytes(b"as long as a message\n" * 20)

    on_disk()
    with folders.Folder("inbox", where, "inbox").as_floor() as floor:
        least = peers.remove_all(floor, names)
    shutil.rmtree(local)
    # Files that the disk has by now take several times as long as those that were just written.
    on_disk()
    disk = peers.remove_all(local, names)
    what = f"removing {count:,} names from `inbox/`"
    yield Row(what, ours, "s", "the floor", least)
    yield Row(what, ours, "s", "as many files from the disk", disk, "3×")
    said = f"{count} messages marked as read"

    def all_of(place: Place) -> float:
        start = time.perf_counter()
        out = place.run("mark", "--all").stderr.decode()
        if said not in out:
            raise BenchError(f"expected {said!r}, got {out!r}")
        return time.perf_counter() - start

    mounted, alone = others
    with mounted.mounted():
        taken = all_of(mounted)
    yield Row(f"`msgfs mark --all` of {count:,}, mounted", taken, "s", "as many files from the disk", disk, "1 s")
    start = median_seconds(lambda: alone.run("status"), 3)
    yield Row(f"`msgfs mark --all` of {count:,}, without a mount", all_of(alone), "s", "`msgfs status`", start)


def maildir(world: World) -> Iterator[Row]:
    """The same messages as a Maildir on disk, which mblaze lists and scans, there and here."""
    where, count = world.fresh(), world.sizes.letters
    store.generate(where.store, store.Shape(count, to_me=1.0))
    local, mount = where.root / "maildir", where.mountpoint

    def programs(line: str) -> float:
        """Seconds of a pipeline that prints a line for each message."""
        def run() -> None:
            printed = command("bash", "-o", "pipefail", "-c", line).count(b"\n")
            if printed != count:
                raise BenchError(f"{line}: {printed} lines of {count}")
        return median_seconds(run, min(world.sizes.repeat, 3))

    # mscan looks for the message that was read last.
    (where.root / "mblaze").mkdir()
    (where.root / "mblaze/seq").touch()
    scan = f"MBLAZE={where.root}/mblaze mscan"
    with where.mounted():
        command("cp", "-a", mount / ".maildir", local)
        listed, scanned = f"mlist {local}", f"mlist {local} | {scan}"
        theirs = programs(listed), programs(scanned)
        yield Row(f"`ls inbox` of {count:,} messages", programs(f"ls {mount}/inbox"), "s", "mlist, a Maildir on disk", theirs[0])
        yield Row("`mlist .maildir`", programs(f"mlist {mount}/.maildir"), "s", "mlist, a Maildir on disk", theirs[0])
        yield Row("mlist and mscan of `.maildir`", programs(f"mlist {mount}/.maildir | {scan}"), "s",
                  "mlist and mscan, a Maildir on disk", theirs[1])
    yield Row("`msgfs status` without an index", median_seconds(lambda: where.run("status"), 1, where.forget_index), "s",
              "mlist and mscan, a Maildir on disk", theirs[1])


def latency(world: World) -> Iterator[Row]:
    """From a line in a log to a name in inbox/."""
    yield from arrivals.latency(world.small(), world.arrival, world.sizes.appends)


def burst(world: World) -> Iterator[Row]:
    """Many lines at once, by ten writers."""
    yield from arrivals.burst(world.fresh(), world.arrival, world.sizes.burst)


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


def letters(world: World) -> Iterator[Row]:
    """Letters between machines over a relay, mail, FTP and a provider of AMP."""
    yield from post.post(world.program, world.parent, world.sizes.post)


def searching(world: World) -> Iterator[Row]:
    """The index of words, and queries."""
    return search.search_rows(world.fresh, *world.sizes.search)


def searching_mail(world: World) -> Iterator[Row]:
    """Search beside programs that search a Maildir."""
    return mail_search.rows(world.fresh, world.sizes.mail_search)


def sessions(world: World) -> Iterator[Row]:
    """Transcripts of coding agents."""
    return search.session_rows(world.fresh, world.sizes.transcripts)


ALL: dict[str, Callable[[World], Iterator[Row]]] = {
    "index": index, "remount": remount, "memory": memory, "many": many, "changed": changed, "folder": folder,
    "threads": threads, "open": opening, "send": sending, "marks": marks, "maildir": maildir, "latency": latency,
    "burst": burst, "idle": idle,
    "agentazall": kinds.agentazall, "amp": kinds.amp, "atsf": kinds.atsf, "ssot": kinds.ssot,
    "amq": kinds.amq, "nats": nats, "post": letters, "search": searching, "mail-search": searching_mail,
    "transcripts": sessions,
}
