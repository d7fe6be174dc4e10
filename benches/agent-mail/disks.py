"""Small disks that can be full, and that can lose their power. Both need root."""

import contextlib
import ctypes
import fcntl
import os
import struct
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

SHUTDOWN = 0x8004587D  # EXT4_IOC_SHUTDOWN
NO_LOG_FLUSH = 2


class NoDisk(Exception):
    """This machine does not let us have such a disk."""


def _run(*words: str | Path) -> None:
    done = subprocess.run(words, capture_output=True, check=False, text=True)
    if done.returncode:
        raise NoDisk(f"{words[0]}: {done.stderr.strip()}")


@contextlib.contextmanager
def small(parent: Path, size: int) -> Iterator[Path]:
    """Mounts a file system in memory with this many bytes."""
    folder = Path(tempfile.mkdtemp(prefix="small-", dir=parent))
    _run("mount", "-t", "tmpfs", "-o", f"size={size},mode=700", "tmpfs", folder)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], capture_output=True, check=False)


class Disk:
    """An ext4 file system in a file, by a loop device, whose power can be cut."""

    def __init__(self, parent: Path) -> None:
        self.image, self.folder = parent / "disk", parent / "mounted"
        self.folder.mkdir()
        with self.image.open("wb") as file:
            file.truncate(192 << 20)
        _run("mkfs.ext4", "-q", "-F", "-m", "0", "-E", "lazy_itable_init=0,lazy_journal_init=0", self.image)
        self.mount()

    def mount(self) -> None:
        """Mounts it; after a cut, the journal is replayed, as at a start of the machine."""
        # The journal is written when somebody asks for it, and not because five seconds are over.
        _run("mount", "-o", "loop,commit=300", self.image, self.folder)

    def sync(self) -> None:
        """Makes everything durable that is there."""
        libc = ctypes.CDLL(None, use_errno=True)
        fd = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY)
        libc.syncfs(fd)
        os.close(fd)

    def cut(self) -> None:
        """Cuts the power: from now on nothing reaches the device, and what waited in memory is gone."""
        fd = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.ioctl(fd, SHUTDOWN, struct.pack("I", NO_LOG_FLUSH))
        finally:
            os.close(fd)

    def unmount(self) -> None:
        """Lets go of it."""
        _run("umount", self.folder)


@contextlib.contextmanager
def disk(parent: Path) -> Iterator[Disk]:
    """Makes a disk that can be cut; nothing of it stays."""
    with tempfile.TemporaryDirectory(prefix="power-", dir=parent, ignore_cleanup_errors=True) as folder:
        made = Disk(Path(folder))
        try:
            yield made
        finally:
            subprocess.run(["umount", "-l", made.folder], capture_output=True, check=False)
