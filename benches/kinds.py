"""Measurements of the stores that keep a file for each message, beside AgentAZAll's own program."""

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import mailboxes
from harness import BenchError, Place, Row, command, median_seconds, resident, seconds, wait_until

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


def generate(kind: str, folder: Path, count: int) -> None:
    """Makes a store in a process of its own, whose Python has the peer's libraries."""
    done = subprocess.run([peer_bin("python3"), "-B", HERE / "mailboxes.py", kind, folder, str(count)],
                          check=False, stderr=subprocess.PIPE)
    if done.returncode != 0:
        raise BenchError(f"mailboxes.py {kind}: {done.stderr.decode()}")


def configured(where: Place, kind: str, folder: Path) -> None:
    """Makes this folder the only store of the place."""
    path = where.home / ".config/msgfs/config.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'[[store]]\nkind = "{kind}"\ndir = {json.dumps(str(folder))}\n')


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

        named = statistics.median(seconds(lambda n=n: by_name(n)) for n in mine)
        globbed = statistics.median(seconds(lambda n=n: by_id(n)) for n in mine)
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


def amp(world) -> Iterator[Row]:
    """First index of many AMP files, mounting again, and memory for each message."""
    where, count, repeat = world.fresh(), world.sizes.amp_files, min(world.sizes.repeat, 3)
    home, none = where.root / "amp", where.root / "amp-empty"
    generate("amp", none, 0)
    generate("amp", home, count)
    configured(where, "amp", none)
    with where.mounted() as pid:
        base = resident(pid)
    where.forget_index()
    configured(where, "amp", home)
    reader = plain_reader(home)
    if reader["count"] != count:
        raise BenchError(f"made {reader['count']} messages, expected {count}")
    where.run("status")
    cold = median_seconds(lambda: where.run("status"), repeat, where.forget_index)
    with where.mounted():
        shown = len(os.listdir(where.mountpoint / "inbox"))
        if shown != count:
            raise BenchError(f"inbox/ shows {shown} messages, expected {count}")
    warm = statistics.median(where.mount_seconds() for _ in range(repeat))
    where.forget_index()
    with where.mounted() as pid:
        after_cold = (resident(pid) - base) / count
    with where.mounted() as pid:
        from_snapshot = (resident(pid) - base) / count
    what = "plain Python reader"
    yield Row(f"first index of {count:,} AMP files", cold, "s", what, reader["seconds"])
    yield Row("mount from the snapshot", warm, "s", what, reader["seconds"])
    per_file = reader["bytes"] / count
    yield Row("memory an AMP message, after the first index", after_cold, "bytes", "size of its file", per_file, "100 bytes")
    yield Row("memory an AMP message, from the snapshot", from_snapshot, "bytes", "size of its file", per_file, "100 bytes")


def plain_reader(home: Path) -> dict[str, float]:
    """What a plain Python program needs to read all messages, with the files in the page cache."""
    best: dict[str, float] = {}
    for _ in range(2):
        out = subprocess.run([sys.executable, "-B", HERE / "mailboxes.py", "read-amp", home], check=True,
                             stdout=subprocess.PIPE).stdout
        found = json.loads(out)
        if not best or found["seconds"] < best["seconds"]:
            best = found
    return best
