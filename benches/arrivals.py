"""Mail that comes while the mount is there."""

import os
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator

import peers
import store
from harness import BenchError, Place, Row, median_seconds, quantile, seconds, wait_until

# Gives the name that a new message of a writer to me will have, and its line.
Arrival = Callable[[str], tuple[str, bytes]]


def latency(where: Place, arrival: Arrival, count: int) -> Iterator[Row]:
    """From a line in a log to a name in inbox/, by name and by listing it again and again."""
    with peers.watcher(where.store) as report:
        known = []
        for _ in range(count):
            _, line = arrival("agent1")
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
        times, lists = [], []
        with where.mounted():
            inbox = str(where.mountpoint / "inbox")
            os.listdir(inbox)
            for _ in range(count):
                name, line = arrival("agent2")
                start = time.perf_counter()
                where.append("agent2", line)
                wait_until(lambda name=name: visible(inbox, name), name)
                times.append(time.perf_counter() - start)
                lists.append(seconds(lambda: os.listdir(inbox)))
                time.sleep(0.01)
        for what, share in (("median", 0.5), ("99th percentile", 0.99)):
            yield Row(f"append to visible {how}, {what}", quantile(times, share), "s",
                      "a bare inotify watcher", quantile(known, share), "5 ms")
    least = 3 * statistics.median(known) + statistics.median(lists)
    yield Row("append to visible in `ls inbox`, median", statistics.median(times), "s",
              "3 of the watcher and one listing", least, "1×")


def burst(where: Place, arrival: Arrival, count: int) -> Iterator[Row]:
    """Lines of ten writers at once, the last one of each to me; listing inbox/ meanwhile."""
    shape = store.Shape(count, to_me=0.0)
    store.generate(where.store, shape)
    logs = {sender: where.store / f"log-{sender}.jsonl" for sender in store.writers(shape)}
    last = {sender: arrival(sender) for sender in logs}
    for sender, (_, line) in last.items():
        store.append(where.store, sender, line)
    where.run("status")
    cold = median_seconds(lambda: where.run("status"), 3, where.forget_index)
    waiting = {sender: log.rename(where.root / log.name) for sender, log in logs.items()}
    where.forget_index()
    with where.mounted():
        inbox = str(where.mountpoint / "inbox")
        idle = median_seconds(lambda: os.listdir(inbox), 20)
        names, slowest = {name for name, _ in last.values()}, 0.0
        writers = []
        for sender, source in waiting.items():
            with open(logs[sender], "ab") as log:
                wait = ["sh", "-c", 'read -r _; exec cat "$0"', source]
                writers.append(subprocess.Popen(wait, stdin=subprocess.PIPE, stdout=log))
        time.sleep(0.5)
        start = time.perf_counter()
        for writer in writers:
            if writer.stdin:
                writer.stdin.close()
        seen: set[str] = set()
        while not names <= seen:
            before = time.perf_counter()
            if before > start + 60:
                raise BenchError("the burst is not indexed within a minute")
            seen = set(os.listdir(inbox))
            slowest = max(slowest, time.perf_counter() - before)
            time.sleep(0.001)
        taken = time.perf_counter() - start
        for writer in writers:
            writer.wait()
    yield Row(f"{count:,} lines by ten writers at once, a second", count / taken, "/s", "cold index of them",
              count / cold, "1×", more_is_better=True)
    yield Row("slowest `ls inbox` meanwhile", slowest, "s", "while nothing happens", idle, "50 ms")
