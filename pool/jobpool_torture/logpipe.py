"""A pool's log: a pipe that this process copies to a file, and may stop reading, as a terminal does on Ctrl-S.

The reader is a thread. While it stands still, the pipe is full, and writes to it block.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import threading
from pathlib import Path

PIPE_BYTES = 1 << 16
SMALL_PIPE_BYTES = 1 << 12
"""Size of the pipe while it is read, and while it is not: less, so that less has to fill it."""

FILLING = b" " * 127 + b"\n"
PIPE_LOOK_S = 0.05  # for the end, where nothing is written


class LogPipe:
    """A pipe whose `writer`, a descriptor for a program's output, is copied to the end of a file until `close`."""

    def __init__(self, path: Path) -> None:
        """Open the file and the pipe. Raises OSError: the file cannot be opened, or there are no descriptors left."""
        with contextlib.ExitStack() as undo:
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            undo.callback(os.close, self._file)
            self._reader, self.writer = os.pipe()
            undo.callback(os.close, self._reader)
            undo.callback(os.close, self.writer)
            os.set_blocking(self._reader, False)
            self._close = undo.pop_all()
        self._reads = threading.Event()
        self._reads.set()
        self._is_over = False
        self._lock = threading.RLock()
        self._thread = threading.Thread(target=self._copy, name="torture-log", daemon=True)
        self._thread.start()

    def hold(self) -> None:
        """Stop reading, and fill the pipe: the next write to it waits."""
        with self._lock:
            self._reads.clear()
            self._resize(SMALL_PIPE_BYTES)
            # By an open file of our own: the pool's shall not become non-blocking.
            with open(f"/proc/self/fd/{self.writer}", "wb", buffering=0, opener=_without_waiting) as file:
                while file.write(FILLING):
                    pass

    def go_on(self) -> None:
        """Read again."""
        self.drain()
        self._reads.set()
        self._resize(PIPE_BYTES)

    def drain(self) -> None:
        """Copy what is in the pipe now, held or not. Does not wait for more."""
        with self._lock, contextlib.suppress(BlockingIOError):
            while data := os.read(self._reader, PIPE_BYTES):
                os.write(self._file, data.replace(FILLING, b""))

    def close(self) -> None:
        """Copy the rest, and end. To be called once, after the last write."""
        self._is_over = True
        self._reads.set()
        self._thread.join()
        self.drain()
        self._close.close()

    def _copy(self) -> None:
        """Copy, in the thread, unless it is held."""
        while not self._is_over:
            self._reads.wait()
            select.select([self._reader], [], [], PIPE_LOOK_S)
            with self._lock:
                if self._reads.is_set():
                    self.drain()

    def _resize(self, size: int) -> None:
        """Resize the pipe. The kernel may refuse: it holds more than that, or the user has too many pages in pipes."""
        with contextlib.suppress(OSError):
            fcntl.fcntl(self.writer, fcntl.F_SETPIPE_SZ, size)


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags & os.O_ACCMODE | os.O_NONBLOCK | os.O_CLOEXEC)
