"""Wake-ups between processes: one touches a file, in two microseconds; others hear it through inotify, in `poll`.

The kernel limits the listeners of a user (fs.inotify.max_user_instances, 128 by default). Beyond that, and on systems
that have no inotify, `OSError` is raised, and the caller looks at intervals instead.
"""

from __future__ import annotations

import ctypes
import os
import select
import struct
import sys
from contextlib import suppress

_IN_ATTRIB = 0x00000004
_IN_CLOEXEC = 0o2000000
_IN_NONBLOCK = 0o0004000
_GONE = struct.pack("III", 0x00008000, 0, 0)
"""The end of the last event of a listener: IN_IGNORED, as the file was deleted."""
_PLENTY = 4096  # bytes: more than the events of one file, which the kernel merges while nobody reads

_libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


class Listener:
    """A listener for `wake(path)` from any process. For one thread at a time; close it. Deaf when the file was deleted.

    Raises `OSError`: the file is not there, the kernel's limit of listeners is reached, or there is no inotify.
    """

    def __init__(self, path: str) -> None:
        if _libc is None:
            raise OSError(f"{sys.platform} has no inotify")
        self.is_deaf = False
        self._fd = _checked(_libc.inotify_init1(_IN_CLOEXEC | _IN_NONBLOCK))
        self._poll = select.poll()
        self._poll.register(self._fd, select.POLLIN)
        try:
            _checked(_libc.inotify_add_watch(self._fd, os.fsencode(path), _IN_ATTRIB))
        except OSError:
            self.close()
            raise

    def wait(self, timeout: float) -> bool:
        """Sleep until `wake`, `timeout` seconds at most; return whether it was called since the last time."""
        heard = bool(self._poll.poll(timeout * 1000.0))
        if heard:
            self.clear()
        return heard

    def clear(self) -> None:
        """Forget the wake-ups until now. Does not block."""
        with suppress(BlockingIOError):
            while True:
                events = os.read(self._fd, _PLENTY)
                self.is_deaf = events.endswith(_GONE)
                if len(events) < _PLENTY:
                    return

    def close(self) -> None:
        """Stop listening; safe to call twice."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def wake(path: str) -> None:
    """Wake every listener of `path`. A missing file has none, and raises nothing."""
    with suppress(OSError):  # the message is safe; listeners look by themselves within half a second
        os.utime(path)


def _checked(result: int) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result
