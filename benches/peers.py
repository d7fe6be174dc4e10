#!/usr/bin/env python3
"""What msgfs is measured against, besides the plain reader in reader.py.

`peers.py watch DIR` writes one byte to standard output for each change in a folder: what a program
that watches a SAMP folder with inotify, and does nothing else, can know at the earliest.
"""

import contextlib
import ctypes
import os
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

IN_MODIFY = 0x2
EVENT_HEADER = struct.Struct("iIII")


def append_loop(path: Path, lines: list[bytes], sync: bool) -> float:
    """Seconds to append each line on its own, each made durable before the next if `sync`."""
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        start = time.perf_counter()
        for line in lines:
            os.write(fd, line)
            if sync:
                os.fdatasync(fd)
        return time.perf_counter() - start
    finally:
        os.close(fd)


def send_one(outbox: str, text: bytes) -> None:
    """Writes one draft, whole: when this returns, it is accepted."""
    fd = os.open(outbox, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    os.write(fd, text)
    os.close(fd)


def send_together(outbox: Path, senders: int, each: int) -> float:
    """Seconds for several processes at once to send so many messages each, every one to somebody else."""
    ready, go = os.pipe()
    children = []
    for sender in range(senders):
        child = os.fork()
        if child == 0:
            # When the last one that holds the other end closes it, all begin.
            os.close(go)
            os.read(ready, 1)
            for number in range(each):
                send_one(f"{outbox}/agent{sender}", b"message number %d of %d, as long as they are\n" % (number, sender))
            os._exit(0)
        children.append(child)
    os.close(ready)
    start = time.perf_counter()
    os.close(go)
    if any([os.waitpid(child, 0)[1] for child in children]):
        raise OSError("a sender failed")
    return time.perf_counter() - start


def remove_all(folder: Path, names: list[str]) -> float:
    """Seconds to remove these files, one after the other."""
    start = time.perf_counter()
    for name in names:
        os.unlink(f"{folder}/{name}")
    return time.perf_counter() - start


def open_read_close(path: str) -> float:
    """Seconds to open one file, read it to the end and close it."""
    start = time.perf_counter()
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    while os.read(fd, 65536):
        pass
    os.close(fd)
    return time.perf_counter() - start


@contextlib.contextmanager
def watcher(folder: Path) -> Iterator[Callable[[], None]]:
    """A process that watches a folder; gives a function that waits for its next report."""
    with subprocess.Popen([sys.executable, __file__, "watch", folder], stdout=subprocess.PIPE,
                          bufsize=0) as process:
        try:
            def report() -> None:
                if process.stdout is None or not process.stdout.read(1):
                    raise OSError("the watcher ended")
            report()
            yield report
        finally:
            process.kill()


def watch(folder: str) -> None:
    """Reports that it is ready, then each change, one byte each."""
    libc = ctypes.CDLL(None, use_errno=True)
    fd = libc.inotify_init1(os.O_CLOEXEC)
    if fd < 0 or libc.inotify_add_watch(fd, os.fsencode(folder), IN_MODIFY) < 0:
        raise OSError(ctypes.get_errno(), f"cannot watch {folder}")
    os.write(1, b".")
    while events := os.read(fd, 65536):
        while events:
            _, _, _, length = EVENT_HEADER.unpack_from(events)
            events = events[EVENT_HEADER.size + length:]
            os.write(1, b".")


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] != "watch":
        sys.exit("usage: peers.py watch DIR")
    watch(sys.argv[2])
