"""Search and transcripts: the index of words beside `grep -r`, and a first look at sessions beside a plain reader."""

import json
import os
import statistics
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import store
import transcripts
from harness import BenchError, Place, Row, command, quantile, seconds

# Different queries that nobody asked before: pairs of words, of which some are in most messages and some in few.
QUERIES = [f"{one} {other}" for one in store.WORDS[:20] for other in store.WORDS[20:35]]

Fresh = Callable[..., Place]


def search_rows(fresh: Fresh, small: int, many: int) -> Iterator[Row]:
    """A small store and a large one."""
    for records, target in ((small, "0.65 ms"), (many, "50 ms at a million")):
        where = fresh()
        store.generate(where.store, store.Shape(records, to_me=1.0))
        yield from index_rows(where, records)
        yield from query_rows(where, records, target)


def index_rows(where: Place, records: int) -> Iterator[Row]:
    """The first search without a mount: it makes the index."""
    taken = used_by(where, "status")
    where.forget_index()
    with_index = used_by(where, "search", "deploy")
    lines = (line for log in where.store.glob("log-*.jsonl") for line in log.read_text(encoding="utf-8").splitlines())
    text = sum(len(json.loads(line)["body"].encode()) for line in lines)
    size = sum(path.stat().st_size for path in where.cache.glob("*/search*") if path.is_file())
    yield Row(f"first search of {records:,} messages: processor", with_index, "s", "`msgfs status`, cold", taken, "90 s at a million")
    yield Row(f"index of words of {records:,} messages", size, "bytes", "their bodies", text, "0.6×")


def query_rows(where: Place, records: int, target: str) -> Iterator[Row]:
    """`hits.txt` of different queries in one process, and of one query again and again."""
    with where.mounted():
        folder = where.mountpoint / "search"
        (folder / "warm/hits.txt").read_bytes()
        times = [seconds((folder / query / "hits.txt").read_bytes) for query in QUERIES]
        again = [seconds((folder / QUERIES[0] / "hits.txt").read_bytes) for _ in range(300)]
        found = (folder / QUERIES[0] / "hits.txt").read_bytes()
        if b"agent" not in found:
            raise BenchError(f"a search found nothing: {found!r}")
        grep = seconds(lambda: command("grep", "-rlw", "deploy", where.mountpoint / "archive")) if records <= 100_000 else \
            seconds(lambda: command("grep", "-c", "deploy", *where.store.glob("log-*.jsonl")))
    peer = "`grep -r` of `archive/`" if records <= 100_000 else "`grep` of the logs"
    name = f"`hits.txt` of {records:,} messages"
    yield Row(f"{name}: {len(QUERIES)} different queries, median", statistics.median(times), "s", peer, grep, target)
    yield Row(f"{name}: 99th percentile", quantile(times, 0.99), "s", peer, grep)
    yield Row(f"{name}: a query again, median", statistics.median(again), "s", peer, grep, target)


def session_rows(fresh: Fresh, records: int) -> Iterator[Row]:
    """A first index of transcripts of Claude Code."""
    where = fresh('[[store]]\nkind = "claude"\n')
    folder = where.home / ".claude"
    transcripts.make(folder, records)
    reader = seconds(lambda: read_plainly(folder))
    taken = seconds(lambda: where.run("status"))
    yield Row(f"first index of {records:,} records of Claude Code", taken, "s", "plain Python reader", reader, "10 s at 1,100,000")
    where.forget_index()
    size = sum(path.stat().st_size for path in folder.rglob("*.jsonl"))
    yield Row("most memory meanwhile", where.peak("status"), "bytes", "the transcripts", size, "200 MB at 1,100,000")
    taken = seconds(lambda: where.run("status"))
    yield Row("`msgfs status` again", taken, "s", "plain Python reader", reader)


def read_plainly(folder: Path) -> None:
    """Parses each line, as a script would."""
    for path in folder.rglob("*.jsonl"):
        with path.open(encoding="utf-8") as lines:
            for line in lines:
                json.loads(line)


def used_by(where: Place, *args: str) -> float:
    """Runs msgfs; returns the time of processor that it took."""
    return processor_seconds(where, where.program, *args)


def processor_seconds(where: Place, *words: str | os.PathLike[str]) -> float:
    """Runs a command at the place; returns the time of processor that it took."""
    with subprocess.Popen(words, env=where.env, cwd=where.root, stdin=subprocess.DEVNULL,
                          stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        said = process.stderr.read()
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise BenchError(f"{' '.join(map(str, words))} failed ({process.returncode}): {said.decode()}")
    return used.ru_utime + used.ru_stime
