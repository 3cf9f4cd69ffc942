"""The descriptors that children inherit: those that the app opened at its import are reopened, kept, or cut off.

No two children may share an offset, a connection or a wake-up. So a file is opened anew through /proc, under the same
number. Reading goes on at the app's offset; writing appends, so that children do not overwrite each other. All that
cannot be opened anew is cut off, and the master is told by path or address.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import io
import logging
import os
import socket
import stat
import sys
import weakref
from collections.abc import Collection, Iterator
from enum import Enum
from typing import Any

from jobpool.ipc import linux
from jobpool.ipc.packets import close_all

Streams = Collection["weakref.ref[Any]"]

_STATELESS = {os.makedev(1, minor) for minor in (3, 5, 7, 8, 9)}
"""The devices null, zero, full, random and urandom. Sharing them does no harm, without an offset or a state."""

_KEPT_FLAGS = os.O_ACCMODE | os.O_APPEND | os.O_NONBLOCK | os.O_SYNC | os.O_DSYNC | os.O_DIRECT | os.O_NOATIME
"""Not O_NOFOLLOW, which refuses the link in /proc, and no flag that creates or cuts."""

_HIDDEN = "/memfd:", "/dev/shm/"
"""Shared memory: its owner uses the mapping, which a fork keeps, and the descriptor for nothing."""


class Treatment(Enum):
    """The fate of an inherited descriptor in a child."""

    REOPEN = "opened anew: own offset, same number"
    KEEP = "kept: it has no state"
    CUT = "cut off: using it is EBADF"


def treatment(mode: int, device: int, flags: int) -> Treatment:
    """Decide by `st_mode` and `st_rdev` of its file and its status flags (F_GETFL)."""
    if flags & os.O_PATH:
        return Treatment.KEEP
    both = flags & os.O_ACCMODE == os.O_RDWR
    if stat.S_ISREG(mode):
        return Treatment.CUT if both and not flags & os.O_APPEND else Treatment.REOPEN
    if stat.S_ISCHR(mode):
        return Treatment.CUT if both and device not in _STATELESS else Treatment.REOPEN
    return Treatment.REOPEN if stat.S_ISDIR(mode) else Treatment.CUT  # sockets, pipes, epoll, timers, block devices


def reopening_flags(mode: int, flags: int) -> int:
    """Return the flags with which its file is opened again, for the same use and no harm to others."""
    again = flags & _KEPT_FLAGS | os.O_CLOEXEC | os.O_NOCTTY
    if stat.S_ISREG(mode):
        return again | os.O_APPEND if flags & os.O_ACCMODE else again
    return again | os.O_NONBLOCK if stat.S_ISCHR(mode) else again  # a device must not have the fork wait


class Inheritance:
    """The descriptors that a process forked from the fork server may keep.

    There are three kinds of forks. A child keeps `keep`; descriptors that the app opened at its import get their
    `Treatment`, the rest are closed. A process that the app forks at its import must not hold the control socket, or
    the fork server's end would go unseen. Forks by a handler later are left alone.
    """

    def __init__(self, control: int | None = None) -> None:
        """Register the hook that has every fork shed them, before the app can register its own.

        `control`: the descriptor of the fork server's socket; None = this process only looks, and forks no children.
        """
        self.keep: Collection[int] | None = None
        self.cut: list[str] = []  # paths or addresses of the app's descriptors that children do not have
        self.streams: Streams = ()  # the app's streams to files, which may hold unwritten text
        self.of_app: set[int] = set()  # numbers of all descriptors that it opened
        self._shared: set[int] = set()  # those of them that all children have as they are
        self._control = control  # None too in each fork
        self._before = linux.open_fds()
        if control is not None:
            os.register_at_fork(after_in_child=self._shed)

    def app_is_imported(self) -> None:
        """Note the descriptors that it opened, and write out its streams' buffers: else each child would write them."""
        gc.collect()  # closes descriptors that only garbage holds open
        self.of_app = linux.open_fds() - self._before
        if (module := sys.modules.get("multiprocessing.resource_tracker")) is not None:
            # With a tracker of its own, a child that attaches to shared memory of the app's would unlink it at its end.
            self._shared = {module._resource_tracker._fd} & self.of_app
            with contextlib.suppress(AttributeError):  # else newer Pythons, such as 3.14.8, close it after a bare fork
                module._fork_intent.preserve_fd = True
        if (module := sys.modules.get("multiprocessing.forkserver")) is not None:
            module._forkserver._forkserver_pid = None  # a child must start its own: it cannot wait for this one
        streams = writers()
        flush(streams)
        self.streams = [ref for ref in streams if _is_reopened(ref)]
        self.cut = sorted(set(filter(None, map(missed, self.of_app - self._shared))))

    def _shed(self) -> None:
        control, self._control = self._control, None
        if control is None:
            return
        if self.keep is None:
            os.close(control)
            return
        unwanted = linux.open_fds().difference(self.keep, self._shared)
        close_all(unwanted - self.of_app)
        linux.blind(fd for fd in unwanted & self.of_app if not renew(fd))


def renew(fd: int) -> bool:
    """Open its file anew, under its number, if that is its treatment; False = it must be cut off."""
    try:
        kind = treatment_of(fd)
        if kind is Treatment.REOPEN:
            anew = opened_anew(fd)
            os.dup2(anew, fd, inheritable=os.get_inheritable(fd))
            os.close(anew)
    except OSError:  # deleted rights, no descriptor left, a device that is busy
        return False
    return kind is not Treatment.CUT


def treatment_of(fd: int) -> Treatment:
    """Return the `treatment` of an open descriptor. Raises `OSError`."""
    found = os.fstat(fd)
    return treatment(found.st_mode, found.st_rdev, fcntl.fcntl(fd, fcntl.F_GETFL))


def opened_anew(fd: int) -> int:
    """Return a descriptor of the same file with an offset of its own. Raises `OSError`."""
    mode, flags = os.fstat(fd).st_mode, fcntl.fcntl(fd, fcntl.F_GETFL)
    anew = os.open(f"/proc/self/fd/{fd}", reopening_flags(mode, flags))
    if stat.S_ISREG(mode):
        os.lseek(anew, os.lseek(fd, 0, os.SEEK_CUR), os.SEEK_SET)
    elif stat.S_ISCHR(mode):
        os.set_blocking(anew, not flags & os.O_NONBLOCK)
    return anew


# --- what people are told -------------------------------------------------------------------------------


def missed(fd: int) -> str:
    """Name a descriptor that children do not have, and why; "" = they have it, or nobody misses it."""
    try:
        kind, link = treatment_of(fd), os.readlink(f"/proc/self/fd/{fd}")
    except OSError:
        return ""
    if kind is Treatment.REOPEN:
        try:
            os.close(opened_anew(fd))
        except OSError as error:
            return f"{link} (it cannot be opened again: {error.strerror})"
    if kind is not Treatment.CUT or link.startswith(_HIDDEN):
        return ""
    if link.startswith("/") and stat.S_ISREG(os.fstat(fd).st_mode):
        return "" if _is_mapped(link) else f"{link} (open for reading and writing)"
    if link.startswith("/"):
        return link
    if link.startswith("socket:"):
        return _socket(fd)
    start, _, rest = link.partition(":")  # `anon_inode:[eventpoll]` is named eventpoll, and `pipe:[4711]` pipe
    return rest.strip("[]") if start == "anon_inode" else start


def _is_mapped(path: str) -> bool:
    """Return whether this process has mapped the file, as `mmap` does, which keeps a descriptor and does not use it."""
    with open("/proc/self/maps", errors="surrogateescape") as maps:
        return any(line.rstrip("\n").endswith(f" {path}") for line in maps)


def _socket(fd: int) -> str:
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(fd)) as sock:
        with contextlib.suppress(OSError):
            if peer := _address(sock.getpeername()):
                return f"socket to {peer}"
        if own := _address(sock.getsockname()):
            return f"socket at {own}"
    return "socket without an address"


def _address(name: object) -> str:
    if isinstance(name, tuple):
        host, port = name[:2]
        return f"[{host}]:{port}" if ":" in str(host) else f"{host}:{port}"
    return os.fsdecode(name).replace("\0", "@") if isinstance(name, str | bytes) else ""


# --- buffered streams -----------------------------------------------------------------------------------


def writers() -> Streams:
    """Find the open stream objects that write to files, other than the standard streams.

    Takes some 50 nanoseconds an object that Python's collector knows; those that are frozen are not found.
    """
    found = _alive(io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)
    return [weakref.ref(stream) for stream in found if _writes_to_file(stream)]


def spoilt_logs(*, forked: bool) -> list[str]:
    """Return the paths of log files that each child would rotate for itself, or empty, if not `forked`, by its import.

    `forked`: children are forks of this process; else each imports the app.
    """
    rotating = getattr(sys.modules.get("logging.handlers"), "BaseRotatingHandler", ())

    def is_spoilt(log: logging.FileHandler) -> bool:
        rotated = isinstance(log, rotating) and getattr(log, "maxBytes", True)
        return bool(rotated) or not (forked or log.mode.startswith("a"))

    return sorted({log.baseFilename for log in _alive(logging.FileHandler) if is_spoilt(log)})


def _alive(*kinds: type) -> Iterator[Any]:
    # The type and not `isinstance`, which asks an object for its class: a lazy one would make itself then.
    return (thing for thing in gc.get_objects() if issubclass(type(thing), kinds))


def _writes_to_file(stream: Any) -> bool:
    try:
        return bool(stream.writable() and stream.fileno() > 2 and stat.S_ISREG(os.fstat(stream.fileno()).st_mode))
    except Exception:  # noqa: BLE001 - closed, detached, or a class of the app's
        return False


def _is_reopened(ref: weakref.ref[Any]) -> bool:
    try:
        return (stream := ref()) is not None and treatment_of(stream.fileno()) is Treatment.REOPEN
    except Exception:  # noqa: BLE001 - as above
        return False


def flush(streams: Streams) -> Exception | None:
    """Write out what they hold; return the first error."""
    failed = None
    for ref in streams:
        try:
            if (stream := ref()) is not None and not stream.closed:
                stream.flush()
        except Exception as error:  # noqa: BLE001 - a full disk, or a class of the app's
            failed = failed or error
    return failed
