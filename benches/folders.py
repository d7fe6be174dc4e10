"""Folders and files as programs walk through them, beside the floor (benches/floor.rs) and the same files on disk."""

import contextlib
import os
import shutil
import statistics
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import peers
import store
from harness import BenchError, Place, Row, command, median_seconds, seconds

# What the mount may take, beside the floor.
FIRST, AGAIN = "1.3×", "1.1×"

# How a program walks through a folder; the second one is a copy of it on disk.
WALKS: dict[str, tuple[str, ...]] = {
    "ls": ("ls", "-R", "{0}"),
    "ls -l": ("ls", "-lR", "{0}"),
    "find": ("find", "{0}", "-type", "f"),
    "grep -r": ("grep", "-r", "not in any message", "{0}"),
    "tar": ("tar", "-cf", "-", "{0}"),
    "rsync": ("rsync", "-a", "{0}/", "{1}/"),
}


@dataclass(frozen=True)
class Folder:
    """A folder of a mount with many messages below it."""

    what: str
    where: Place
    below: str

    @property
    def path(self) -> Path:
        """Where it is in the mount."""
        return self.where.mountpoint / self.below

    @property
    def local(self) -> Path:
        """Where its copy is on disk."""
        return self.where.root / "local"

    def copy(self) -> int:
        """Copies it to the disk; how many files it has."""
        with self.where.mounted():
            command("cp", "-a", self.path, self.local)
        return sum(len(files) for _, _, files in os.walk(self.local))

    @contextlib.contextmanager
    def as_mounted(self) -> Iterator[Path]:
        """Mounted by a msgfs that has rendered nothing yet."""
        self.where.forget_index()
        with self.where.mounted():
            yield self.path

    def as_floor(self) -> contextlib.AbstractContextManager[Path]:
        """The floor that shows the same files."""
        return floor(self.where, self.local)

    def rows(self, what: str, first: list[float], again: list[float], disk: float) -> Iterator[Row]:
        """What the mount took beside the floor and the disk."""
        for ours, floor, name, target in ((*first, "first", FIRST), (*again, "again", AGAIN)):
            yield Row(f"{what}, {name}", ours, "s", "the floor", floor, target)
            yield Row(f"{what}, {name}", ours, "s", "same files on disk, cached", disk)


@contextlib.contextmanager
def floor(where: Place, shown: Path) -> Iterator[Path]:
    """The floor that shows a folder of the disk: where it is mounted."""
    program = where.program.parent / "examples/floor"
    mountpoint = where.root / "floor"
    mountpoint.mkdir(exist_ok=True)
    # In a session of its own, as the daemon is: the kernel shares the processor among sessions.
    with subprocess.Popen([program, shown, mountpoint], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                          start_new_session=True) as running:
        try:
            if running.stdout is None or not running.stdout.readline():
                raise BenchError("the floor does not mount")
            yield mountpoint
        finally:
            # It unmounts when its input ends.
            running.communicate()


def day(where: Place) -> Folder:
    """All messages in one folder."""
    return Folder("one folder", where, "archive/" + store.day(store.START))


def threads(where: Place) -> Folder:
    """All messages, in the folders of their threads."""
    return Folder("threads", where, "threads")


def walks(folder: Folder, files: int, repeat: int) -> Iterator[Row]:
    """ls, ls -l, find, grep -r, tar and rsync, the first time and again."""
    if (found := folder.copy()) != files:
        raise BenchError(f"{folder.path} shows {found} messages, expected {files}")
    for name, words in WALKS.items():
        if not shutil.which(words[0]):
            continue
        first: list[list[float]] = [[], []]
        again: list[list[float]] = [[], []]

        def walk(path: Path, words: tuple[str, ...] = words) -> None:
            command(*(word.format(path, folder.local) for word in words))

        for _ in range(min(repeat, 3)):
            for number, mounted in enumerate((folder.as_mounted, folder.as_floor)):
                with mounted() as path:
                    first[number].append(seconds(lambda path=path: walk(path)))
                    again[number].extend(seconds(lambda path=path: walk(path)) for _ in range(min(repeat, 2)))
        disk = median_seconds(lambda: walk(folder.local), repeat)
        what = f"`{name}` of {files:,} messages, {folder.what}"
        yield from folder.rows(what, *([statistics.median(of) for of in times] for times in (first, again)), disk)
    shutil.rmtree(folder.local)


def opening(folder: Folder, count: int) -> Iterator[Row]:
    """Opening, reading and closing one message."""
    folder.copy()
    names = os.listdir(folder.local)
    names = names[:: max(1, len(names) // count)][:count]
    first, again = [], []
    for mounted in (folder.as_mounted, folder.as_floor):
        with mounted() as path:
            first.append(statistics.median(peers.open_read_close(f"{path}/{name}") for name in names))
            again.append(statistics.median(peers.open_read_close(f"{path}/{name}") for _ in range(5) for name in names))
    disk = statistics.median(peers.open_read_close(f"{folder.local}/{name}") for _ in range(5) for name in names)
    yield from folder.rows("open, read, close one message", first, again, disk)
    shutil.rmtree(folder.local)
