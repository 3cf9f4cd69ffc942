"""The output of an attempt, bounded: the first half of the cap and the last.

A handler prints in two ways. Text for `sys.stdout` and `sys.stderr` stays in memory (`Capture`). The two streams are
there when the app is imported, so that log handlers made then write to them too. Text written past them to descriptors
1 and 2 (C code, subprocesses) goes into the child's output pipe (`OutputPipe`). It is read when the attempt is over, as
far as the master has not thrown it away by then.
"""

from __future__ import annotations

import array
import contextlib
import fcntl
import io
import os
import sys
import termios
from collections.abc import Callable, Iterator
from typing import Any, TextIO, cast

from jobpool.message.capped_text import DEFAULT_CAP, HeadTail


class Capture:
    """A stand-in for both streams, into one text in the order of the writes.

    In another process than its own the text goes to descriptors 1 and 2: in one that a handler has forked.

    Args:
        cap: Bytes of text that are kept.
        pid: The process whose text is kept; None = this one, 0 = none yet (`enter`).
    """

    def __init__(self, cap: int = DEFAULT_CAP, pid: int | None = None) -> None:
        self._kept = HeadTail(cap)
        self.pid = os.getpid() if pid is None else pid
        self._echo: Callable[[bytes], None] | None = None
        self._out = cast(TextIO, _Stream(self, 1))
        self._err = cast(TextIO, _Stream(self, 2))

    def enter(self, echo: Callable[[bytes], None]) -> None:
        """Keep the text of this process from now on. `echo` gets each write, too."""
        self.pid, self._echo = os.getpid(), echo

    def begin(self) -> None:
        """Forget what was printed, and take the places of the two streams."""
        if self._kept.total:
            self._kept.clear()
        sys.stdout, sys.stderr = self._out, self._err

    def keep(self, data: bytes) -> None:
        """Add to the text, without the echo."""
        self._kept.write(data)

    def write(self, data: bytes, fd: int) -> None:
        if self.pid != os.getpid():
            while data:
                data = data[os.write(fd, data) :]
            return
        self._kept.write(data)
        if self._echo is not None:
            self._echo(data)

    def text(self) -> str:
        """Return the text printed since `begin`."""
        return self._kept.text() if self._kept.total else ""

    @contextlib.contextmanager
    def lent(self) -> Iterator[None]:
        """Give the two streams back afterwards, as they were."""
        before = sys.stdout, sys.stderr
        try:
            yield
        finally:
            sys.stdout, sys.stderr = before


class OutputPipe:
    """The pipe of descriptors 1 and 2 of a child, by its writing end `fd`. The master empties it when it is full."""

    def __init__(self, fd: int, cap: int = DEFAULT_CAP) -> None:
        # An end of its own: whether it waits concerns neither the master nor a subprocess of a handler.
        self._fd = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        self._cap = cap
        self._waiting = array.array("i", [0])

    def take(self) -> str:
        """Return the text since the last call. One system call if there is none. Raises `OSError` if it was closed."""
        fcntl.ioctl(self._fd, termios.FIONREAD, self._waiting)
        size = self._waiting[0]
        if not size:
            return ""
        kept = HeadTail(self._cap)
        with contextlib.suppress(BlockingIOError):  # the master was quicker
            kept.write(os.read(self._fd, size))
        return kept.text()


class _Kept:
    """The common part of a stream and its buffer. They cannot be closed: the next attempt prints to them too."""

    def __init__(self, capture: Capture, fd: int) -> None:
        super().__init__()
        self._capture = capture
        self._fd = fd

    def fileno(self) -> int:
        return self._fd

    def writable(self) -> bool:
        return True

    def close(self) -> None:
        pass


class _Stream(_Kept, io.TextIOBase):
    """One of the two streams."""

    encoding = "utf-8"
    errors = "backslashreplace"
    mode = "w"

    def __init__(self, capture: Capture, fd: int) -> None:
        super().__init__(capture, fd)
        self.buffer = _Binary(capture, fd)
        self.name = "<stdout>" if fd == 1 else "<stderr>"

    def write(self, text: str) -> int:
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        self._capture.write(text.encode("utf-8", "backslashreplace"), self._fd)
        return len(text)

    def reconfigure(self, **_: Any) -> None:
        """Do nothing: unlike a `TextIOWrapper` this has no options."""


class _Binary(_Kept, io.RawIOBase):
    """`sys.stdout.buffer`."""

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        self._capture.write(bytes(view), self._fd)
        return len(view)
