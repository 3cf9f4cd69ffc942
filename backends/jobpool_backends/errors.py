"""The shape of every broker's table of errors, a driver's error → a `Meaning`; and the errors of the network."""

from __future__ import annotations

import errno
import socket
from typing import NamedTuple

from jobpool.errors import AccessRefused, BackendUnavailable, JobpoolError, WriteRefused


class Meaning(NamedTuple):
    """The error to raise, and its sentence after the broker's name; `sound`: the connection can be used again."""

    kind: type[JobpoolError]
    text: str
    sound: bool = False

    def as_error(self, title: str) -> JobpoolError:
        return self.kind(f"{title} {self.text}")


def outage(text: str, *, sound: bool = False) -> Meaning:
    """Return the meaning of an error that goes by itself, or when the broker is mended."""
    return Meaning(BackendUnavailable, text, sound)


def write_refusal(text: str) -> Meaning:
    """Return the meaning of a refusal of writes: the broker answers, and calls that need no room may go on."""
    return Meaning(WriteRefused, text, sound=True)


def refusal(text: str) -> Meaning:
    """Return the meaning of an error that settings, or rights at the broker, must mend."""
    return Meaning(AccessRefused, text)


_FAR = "cannot be reached from here: mend the host, the route or the firewall"

_UNREACHED = {
    errno.ECONNREFUSED: "refuses connections: nothing listens there. Start {server}, or mend the address",
    errno.EHOSTUNREACH: _FAR,
    errno.ENETUNREACH: _FAR,
    errno.EMFILE: "cannot be reached, because this process has no file descriptor left: raise `ulimit -n`",
    errno.ENFILE: "cannot be reached, because this machine has no file descriptor left: raise fs.file-max",
    errno.EADDRNOTAVAIL: "cannot be reached, because this machine has no free port left: close some connections",
}

HUNG_UP = frozenset({errno.ECONNRESET, errno.EPIPE, errno.ECONNABORTED, errno.ESHUTDOWN, errno.ENOTCONN, errno.EBADF})
"""The other side had closed the connection."""


def unreached(error: OSError, server: str) -> str | None:
    """Return why the operating system found no way to `server`; None where it is not the way."""
    if isinstance(error, socket.gaierror):
        return "cannot be found: mend the host name, or the name service of this machine"
    return _UNREACHED.get(error.errno or 0, "").format(server=server) or None
