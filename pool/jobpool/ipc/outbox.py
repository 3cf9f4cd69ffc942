"""Packets for a socket that may be full: sent now, or kept in order until it takes them."""

from __future__ import annotations

import errno
import os
import socket
from collections import deque
from collections.abc import Sequence

from jobpool.ipc import packets

_FULL = {errno.EAGAIN, errno.ENOBUFS, errno.ENOMEM, errno.ETOOMANYREFS}
"""ETOOMANYREFS: more descriptors are on their way than this user may have open."""


class Outbox:
    """The sending side of a non-blocking SOCK_SEQPACKET socket, which stays the caller's."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._kept: deque[tuple[bytes, list[int]]] = deque()

    def __len__(self) -> int:
        """How many packets wait; when there are any, call `flush` once the socket is writable."""
        return len(self._kept)

    def send(self, packet: bytes, fds: Sequence[int] = ()) -> None:
        """Send `packet` behind all that wait. `fds` stay the caller's: a packet that has to wait gets copies.

        Raises:
            OSError: The peer is gone.
        """
        self.flush()
        if self._kept or not self._sent(packet, fds):
            self._kept.append((packet, [os.dup(fd) for fd in fds]))

    def flush(self) -> None:
        """Send what waits, as far as the socket takes it. Raises `OSError` when the peer is gone."""
        while self._kept and self._sent(*self._kept[0]):
            packets.close_all(self._kept.popleft()[1])

    def close(self) -> None:
        """Drop what waits."""
        while self._kept:
            packets.close_all(self._kept.popleft()[1])

    def _sent(self, packet: bytes, fds: Sequence[int]) -> bool:
        try:
            packets.send(self._sock, packet, tuple(fds))
        except OSError as error:
            if error.errno not in _FULL:
                raise
            return False
        return True
