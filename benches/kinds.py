"""Measurements of the kinds other than SAMP, beside AgentAZAll's own program and a plain reader."""

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import mailboxes
from harness import BenchError, Place, Row, anonymous, command, median_seconds, seconds, settled, wait_until

HERE = Path(__file__).resolve().parent
VERSION = "1.0.24"


def peer_bin(name: str) -> Path:
    """A program of the environment that has the real AgentAZAll."""
    default = HERE.parent / "target/ci-venv"
    venv = Path(os.environ.get("MSGFS_TEST_VENV") or default)
    if not (venv / "bin/agentazall").exists():
        raise BenchError(f"the peer is missing; install it with: python3 -m venv {venv} && "
                         f"{venv}/bin/pip install 'agentazall[ftp]=={VERSION}', or set MSGFS_TEST_VENV")
    return venv / "bin" / name


def generate(kind: str, folder: Path, count: int, script: str = "mailboxes.py") -> None:
    """Makes a store in a process of its own, whose Python has the peer's libraries."""
    done = subprocess.run([peer_bin("python3"), "-B", HERE / script, kind, folder, str(count)],
                          check=False, stderr=subprocess.PIPE)
    if done.returncode != 0:
        raise BenchError(f"{script} {kind}: {done.stderr.decode()}")


def configured(where: Place, kind: str, folder: Path, me: str = "") -> None:
    """Makes this folder the only store of the place."""
    path = where.home / ".config/msgfs/config.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    said = f"me = {json.dumps(me)}\n" if me else ""
    path.write_text(f'[[store]]\nkind = "{kind}"\ndir = {json.dumps(str(folder))}\n{said}')


class Peer:
    """AgentAZAll's own program over the same mailboxes."""

    def __init__(self, where: Place, root: Path) -> None:
        self.program = peer_bin("agentazall")
        self.env = {**where.env, "AGENTAZALL_CONFIG": str(root / "config.json")}

    def run(self, *args: str) -> str:
        """Runs a command of it; its failure is ours."""
        done = subprocess.run([self.program, *args], env=self.env, check=False, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        if done.returncode != 0:
            raise BenchError(f"agentazall {' '.join(args)}: {done.stdout}{done.stderr}")
        return done.stdout


def agentazall(world) -> Iterator[Row]:
    """Listing, reading by id and sending in a full AgentAZAll mailbox, beside its own program."""
    where, count, repeat = world.fresh(), world.sizes.letters, world.sizes.repeat
    root = where.root / "agz"
    generate("agentazall", root, count)
    configured(where, "agentazall", root)
    peer = Peer(where, root)
    inbox = str(where.mountpoint / "inbox")
    listed = peer.run("inbox", "--offline", "--all").count("[NEW]")
    if listed != count:
        raise BenchError(f"the peer lists {listed} messages, expected {count}")
    theirs = median_seconds(lambda: peer.run("inbox", "--offline", "--all"), repeat)
    where.run("status")  # makes what is made once
    cold = median_seconds(lambda: where.run("status"), repeat, where.forget_index)
    with where.mounted():
        first = seconds(lambda: command("ls", inbox))
        again = median_seconds(lambda: command("ls", inbox), repeat)
        status = median_seconds(lambda: command("cat", where.mountpoint / "status.txt"), repeat)
        shown = len(command("ls", inbox).splitlines())
        if shown != count:
            raise BenchError(f"inbox/ shows {shown} messages, expected {count}")
    yield signed(world.program, root, ".txt", count, cold, "AgentAZAll letter")
    name = "agentazall inbox --offline --all"
    yield Row(f"`ls inbox` of {count:,} AgentAZAll letters, first", first, "s", name, theirs, "20 times faster: 0.05×")
    yield Row("`ls inbox` again", again, "s", name, theirs, "20 times faster: 0.05×")
    yield Row("`cat status.txt`: names and first lines", status, "s", name, theirs)
    yield Row("`msgfs status` without an index", cold, "s", name, theirs)
    yield from reading(where, peer, count)
    yield from one_send(where, peer, root)


def reading(where: Place, peer: Peer, count: int) -> Iterator[Row]:
    """One letter by its id: read, shown and marked by each side."""
    tries = min(20, count // 4)
    picked = [1 + n * (count - 2) // (2 * tries) for n in range(2 * tries)]
    mine, others = picked[::2], picked[1::2]
    theirs = statistics.median(
        seconds(lambda n=n: peer.run("read", mailboxes.letter_id(n))) for n in others)
    with where.mounted():
        def by_name(number: int) -> None:
            path = where.mountpoint / "inbox" / mailboxes.letter_name(number, count)
            if mailboxes.letter_id(number).encode() not in command("cat", path):
                raise BenchError(f"{path} is another letter")

        def by_id(number: int) -> None:
            script = f"cat archive/*/*-{mailboxes.letter_id(number)[:8]}.txt"
            command("bash", "-c", f"cd {where.mountpoint} && {script}")

        def searched(number: int) -> None:
            found = command("grep", "-rl", mailboxes.letter_id(number), where.mountpoint / "archive")
            if found.count(b"\n") != 1:
                raise BenchError(f"grep finds {found!r}")

        searching = statistics.median(seconds(lambda n=n: searched(n)) for n in mine[:3])
        named = statistics.median(seconds(lambda n=n: by_name(n)) for n in mine)
        globbed = statistics.median(seconds(lambda n=n: by_id(n)) for n in mine)
    def search(number: int) -> None:
        if "(1 found)" not in peer.run("search", mailboxes.letter_id(number)):
            raise BenchError("agentazall search does not find one letter")

    search_theirs = statistics.median(seconds(lambda n=n: search(n)) for n in mine[:3])
    yield Row("`grep -rl` of one letter in all", searching, "s", "agentazall search", search_theirs)
    yield Row("`cat` of one letter by its name", named, "s", "agentazall read ID", theirs, "50 times faster: 0.02×")
    yield Row("`cat archive/*/*-ID.txt`", globbed, "s", "agentazall read ID", theirs)


def one_send(where: Place, peer: Peer, root: Path) -> Iterator[Row]:
    """One letter to somebody on this machine, from the command to the file in his mailbox."""
    today = time.strftime("%Y-%m-%d", time.gmtime())
    box = root / "data/mailboxes/alice@localhost" / today / "inbox"

    def arrived() -> int:
        return len(list(box.glob("*.txt"))) if box.is_dir() else 0

    def timed(send: Callable[[], object]) -> float:
        before = arrived()
        start = time.perf_counter()
        send()
        wait_until(lambda: arrived() > before, "a letter to alice")
        return time.perf_counter() - start

    tries = 15
    theirs = statistics.median(
        timed(lambda: peer.run("send", "--to", "alice@localhost", "-s", "a subject", "-b", "tests are green"))
        for _ in range(tries))
    with where.mounted():
        script = f"echo 'tests are green' > {where.mountpoint}/outbox/alice@localhost"
        ours = statistics.median(timed(lambda: command("bash", "-c", script)) for _ in range(tries))
    yield Row("one send to a local mailbox, durable", ours, "s", "agentazall send", theirs, "10 times faster: 0.1×")


@dataclass(frozen=True)
class Kind:
    """A store kind whose first index is measured, and how its stores are made and read."""

    name: str
    script: str
    read: str
    what: str
    me: str = ""
    # How the files end of which each is signed.
    signed: str = ""


def signed(program: Path, folder: Path, ending: str, count: int, ours: float, what: str) -> Row:
    """A first index beside reading the files and as many strict verifications, on all cores."""
    bare = program.parent / "examples/bare_signed"
    runs = [command(bare, folder, ending).split() for _ in range(3)]
    if int(runs[0][0]) != count:
        raise BenchError(f"{folder} has {int(runs[0][0])} files {ending}, expected {count}")
    return Row(f"first index of {count:,} signed {what}s", ours, "s", "reading and as many strict verifications",
               statistics.median(float(seconds) for _, seconds in runs), "1.3×")


def amp(world) -> Iterator[Row]:
    """First index of many AMP files, mounting again, and memory for each message."""
    kind = Kind("amp", "mailboxes.py", "read-amp", "AMP file", signed=".json")
    return indexed(world, kind, world.sizes.amp_files, world.sizes.amp_files)


def atsf(world) -> Iterator[Row]:
    """The same for ATSF threads of 200 messages."""
    # I am the user; what the agent says is to me.
    kind = Kind("atsf", "records.py", "read", "ATSF message")
    return indexed(world, kind, world.sizes.atsf_messages, world.sizes.atsf_messages // 2)


def ssot(world) -> Iterator[Row]:
    """The same for the task records of an SSOT folder."""
    # Results and verdicts go to the coordinator, and all of them were acknowledged.
    kind = Kind("ssot", "records.py", "read", "SSOT record", "coordinator")
    return indexed(world, kind, world.sizes.ssot_messages, 0)


def amq(world) -> Iterator[Row]:
    """The same for the messages of an AMQ root."""
    kind = Kind("amq", "records.py", "read", "AMQ message", "bob")
    return indexed(world, kind, world.sizes.amq_messages, world.sizes.amq_messages)


def indexed(world, kind: Kind, count: int, unread: int) -> Iterator[Row]:
    """First index, mounting again, and memory."""
    where, repeat = world.fresh(), min(world.sizes.repeat, 3)
    full, none = where.root / kind.name, where.root / f"{kind.name}-empty"
    for folder, size in ((none, 0), (full, count)):
        folder.mkdir()
        generate(kind.name, folder, size, kind.script)
    configured(where, kind.name, none, kind.me)
    with where.mounted() as pid:
        base = anonymous(pid)
    where.forget_index()
    configured(where, kind.name, full, kind.me)
    reader = plain_reader(kind, full)
    if reader["count"] != count:
        raise BenchError(f"made {reader['count']} messages, expected {count}")
    where.run("status")
    cold = median_seconds(lambda: where.run("status"), repeat, where.forget_index)
    with where.mounted():
        names = os.listdir(where.mountpoint / "inbox")
        # What comes with a message lies in a folder beside it.
        shown = sum(name.endswith(".txt") for name in names)
        if shown != unread:
            raise BenchError(f"inbox/ shows {shown} messages, expected {unread}")
    where.forget_index()
    with where.mounted() as pid:
        after_cold = (settled(where, pid) - base) / count
    warm = statistics.median(where.mount_seconds() for _ in range(repeat))
    with where.mounted() as pid:
        from_snapshot = (anonymous(pid) - base) / count
    where.forget_index()
    with where.mounted():
        command("find", where.mountpoint / "raw")
        walk = seconds(lambda: command("ls", "-lR", where.mountpoint))
    what, per_message = "plain Python reader", reader["bytes"] / count
    bytes_of = f"an {kind.what}"
    yield Row(f"first index of {count:,} {kind.what}s", cold, "s", what, reader["seconds"],
              "1×" if kind.name == "ssot" else "")
    if kind.signed:
        boxes = (box for box in full.glob("agents/*/messages") if any(box.rglob(f"*{kind.signed}")))
        yield signed(world.program, next(boxes), kind.signed, count, cold, kind.what)
    yield Row(f"first `ls -lR` of the tree with {count:,} {kind.what}s, after `find raw`", walk, "s", "`ls -lR` of the store",
              seconds(lambda: command("ls", "-lR", full)), "20 s" if count == 100_000 else "")
    yield Row("mount from the snapshot", warm, "s", what, reader["seconds"])
    yield Row(f"memory {bytes_of}, after the first index", after_cold, "bytes", "its bytes on disk", per_message, "100 bytes")
    yield Row(f"memory {bytes_of}, from the snapshot", from_snapshot, "bytes", "its bytes on disk", per_message, "100 bytes")


def plain_reader(kind: Kind, folder: Path) -> dict[str, float]:
    """What a plain Python program needs to read all messages, with the files in the page cache."""
    best: dict[str, float] = {}
    for _ in range(2):
        out = subprocess.run([sys.executable, "-B", HERE / kind.script, kind.read, folder], check=True,
                             stdout=subprocess.PIPE).stdout
        found = json.loads(out)
        if not best or found["seconds"] < best["seconds"]:
            best = found
    return best
