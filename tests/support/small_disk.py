"""A small disk that can be filled: a file system in memory, in a mount namespace of this thread's own.

Only this thread, and the processes and threads that it starts meanwhile, see it; with the last of them it is gone.
"""

from __future__ import annotations

import ctypes
import errno
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

CLONE_NEWNS = 0x00020000
BLOCK = 4096
MOST = 1 << 20


class SmallDisk:
    """Mounted at `path`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._ballast = path / "ballast"

    def fill(self) -> None:
        """Leave no block, whatever others take or give back meanwhile."""
        size, piece = 0, MOST
        with self._ballast.open("ab") as file:
            while piece >= BLOCK:
                try:
                    os.posix_fallocate(file.fileno(), size, piece)
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
                    piece //= 2
                else:
                    size += piece

    def free(self) -> None:
        """Give back what `fill` took."""
        self._ballast.unlink()


@contextmanager
def small_disk(path: Path, mebibytes: int) -> Iterator[SmallDisk]:
    """A disk of that size at `path`, which is made. Raises `OSError` where this user may not mount."""
    path.mkdir()
    directory = os.getcwd()
    with open("/proc/thread-self/ns/mnt") as home:
        _call("unshare", CLONE_NEWNS)
        try:
            _mount("--make-rprivate", "/")
            _mount("-t", "tmpfs", "-o", f"size={mebibytes}m", "tmpfs", str(path))
            yield SmallDisk(path)
        finally:
            _call("setns", home.fileno(), CLONE_NEWNS)
            os.chdir(directory)


def _call(name: str, *arguments: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*arguments):
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


def _mount(*words: str) -> None:
    done = subprocess.run(["mount", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(done.stderr.strip())
