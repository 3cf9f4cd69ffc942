"""Packets over a SOCK_SEQPACKET socket, of any size up to a bound, with descriptors beside them.

One `send` is one packet is one `recv`: nothing is ever half read. A packet above `INLINE_BYTES` (the kernel bounds one
by net.core.wmem_max, 212,992 bytes by default) travels as a sealed memfd beside a one-byte packet.
"""

from __future__ import annotations

import array
import contextlib
import errno
import fcntl
import os
import socket
from collections import deque
from collections.abc import Iterable, Sequence

INLINE_BYTES = 32 * 1024
MAX_PACKET_BYTES = 64 * 1024 * 1024
MAX_FDS = 4
_BY_MEMFD = b"\xff"
_ANNOUNCED = b"\xfe"
MAX_ANNOUNCED = 128
"""Packets announced and not sent; a further announcement is read as a packet. There is one a thread, or after a signal,
and a sender of nothing else must not keep the reader busy."""
_ANCILLARY = socket.CMSG_SPACE(MAX_FDS * array.array("i").itemsize)
# Plain numbers: to combine the enum's members costs more than the system call.
_CLOEXEC = int(socket.MSG_CMSG_CLOEXEC)
_PEEK = int(socket.MSG_PEEK | socket.MSG_DONTWAIT)
_TRUNCATED = int(socket.MSG_TRUNC | socket.MSG_CTRUNC)
# ETOOMANYREFS: more descriptors are on their way than this user may have open.
_FULL = {errno.EAGAIN, errno.ENOBUFS, errno.ENOMEM, errno.ETOOMANYREFS}


class PacketTooLarge(ValueError):
    """A peer sent, or was to send, more than the bound."""


def pair() -> tuple[socket.socket, socket.socket]:
    """Return a connected pair; close-on-exec, blocking."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def send(sock: socket.socket, packet: bytes, fds: tuple[int, ...] = ()) -> None:
    """Send one packet, whole. `packet` is never empty, at most MAX_PACKET_BYTES bytes; `fds` at most MAX_FDS.

    Blocks while the socket is full; a non-blocking one raises `BlockingIOError`, and nothing was sent. Raises `OSError`
    if the peer is gone (EPIPE, ECONNRESET).
    """
    if len(packet) > INLINE_BYTES:
        _send_file(sock, packet, fds)
    elif fds:
        socket.send_fds(sock, [packet], fds)
    else:
        sock.send(packet)


def _send_file(sock: socket.socket, packet: bytes, fds: tuple[int, ...] = (), announced: bool = False) -> None:
    if len(packet) > MAX_PACKET_BYTES or fds:
        raise PacketTooLarge(
            f"a packet of {len(packet)} bytes; at most {MAX_PACKET_BYTES}, and no descriptors above {INLINE_BYTES}"
        )
    memfd = os.memfd_create("packet", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        _write_all(memfd, packet)
        fcntl.fcntl(memfd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK)
        if announced:  # here, for what fails above sends nothing
            sock.send(_ANNOUNCED)
        socket.send_fds(sock, [_BY_MEMFD], [memfd])
    finally:
        os.close(memfd)


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def send_announced(sock: socket.socket, packet: bytes) -> None:
    """Send as `send` does, to a reader that uses `Reader`."""
    if len(packet) > INLINE_BYTES:
        _send_file(sock, packet, announced=True)
    else:
        sock.send(packet)


class Reader:
    """A reader of packets without descriptors off one socket, which is its alone, at half the cost of `recv`.

    A packet that comes as a memfd is announced by one before it; a descriptor that was not announced is dropped.
    Packets of the sender's other threads may come in between, and a signal may keep the announced one from being sent.
    """

    def __init__(self, sock: socket.socket, largest: int = MAX_PACKET_BYTES) -> None:
        self._sock = sock
        self._largest = largest
        self._announced = 0  # packets that are to come as a memfd

    def read(self) -> bytes | None:
        """Return the next packet; None at the end of the stream. Raises as `recv`."""
        if not self._announced:
            data = self._sock.recv(INLINE_BYTES + 1)
            if data != _ANNOUNCED:
                if len(data) > INLINE_BYTES:
                    raise PacketTooLarge(f"a packet above {INLINE_BYTES} bytes, and not in a file")
                return data or None
            self._announced = 1
        while received := recv(self._sock, self._largest):
            data, fds = received
            close_all(fds)
            if data != _ANNOUNCED or self._announced >= MAX_ANNOUNCED:
                self._announced -= len(data) > INLINE_BYTES
                return data
            self._announced += 1
        return None


def recv(
    sock: socket.socket, largest: int = MAX_PACKET_BYTES, flags: int = 0, *, fds_may_lack: bool = False
) -> tuple[bytes, list[int]] | None:
    """Return the next packet and the descriptors beside it; None at the end of the stream.

    `fds_may_lack`: a packet whose descriptors this process has no room for (`ulimit -n`) comes without any.

    Raises:
        BlockingIOError: Nothing to read now, on a non-blocking socket or with MSG_DONTWAIT.
        PacketTooLarge: Above `largest`; it was taken off the socket and its descriptors closed.
        OSError: The socket is broken.
    """
    data, ancillary, message_flags, _ = sock.recvmsg(INLINE_BYTES + 1, _ANCILLARY, int(flags) | _CLOEXEC)
    if data and not (ancillary or message_flags & _TRUNCATED):
        return data, []  # nearly always
    fds: list[int] = []
    for level, kind, rights in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            received = array.array("i")
            received.frombytes(rights[: len(rights) - len(rights) % received.itemsize])
            fds += received
    if not data and not fds:
        return None
    if message_flags & _TRUNCATED:
        close_all(fds)
        if fds_may_lack and not message_flags & socket.MSG_TRUNC:
            return data, []
        raise PacketTooLarge(
            f"a packet above {INLINE_BYTES} bytes, or with more descriptors than {MAX_FDS} or than `ulimit -n` allows"
        )
    if data == _BY_MEMFD and len(fds) == 1:
        return _read_memfd(fds[0], largest), []
    return data, fds


def check_room(sock: socket.socket) -> None:
    """Raise `OSError` if there is nothing to read now, or no descriptor for the next packet: it would be lost."""
    if sock.recv(1, _PEEK) == _BY_MEMFD:
        os.close(os.dup(sock.fileno()))


def close_all(fds: Iterable[int]) -> None:
    """Close each descriptor; ignore one that is closed already."""
    for fd in fds:
        with contextlib.suppress(OSError):
            os.close(fd)


def _read_memfd(memfd: int, largest: int) -> bytes:
    try:
        if fcntl.fcntl(memfd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_WRITE == 0:
            raise PacketTooLarge("a packet beside an unsealed file")
        size = os.fstat(memfd).st_size
        if size > largest:
            raise PacketTooLarge(f"a packet of {size} bytes; at most {largest}")
        return os.pread(memfd, size, 0)
    finally:
        os.close(memfd)


class Outbox:
    """The sending side of a non-blocking SOCK_SEQPACKET socket, which stays the caller's."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._kept: deque[tuple[bytes, list[int]]] = deque()

    def __len__(self) -> int:
        """Count the packets that wait; while there are any, call `flush` once the socket is writable."""
        return len(self._kept)

    def send(self, packet: bytes, fds: Sequence[int] = ()) -> None:
        """Send `packet` after all that wait, with copies of `fds` if it waits.

        Raises `OSError` if the peer is gone, or no descriptor is to be had for a copy; the packet is not sent then.
        """
        self.flush()
        if self._kept or not self._sent(packet, fds):
            copies: list[int] = []
            try:
                copies.extend(map(os.dup, fds))
            except OSError:
                close_all(copies)
                raise
            self._kept.append((packet, copies))

    def flush(self) -> None:
        """Send what waits, as far as the socket takes it. Raises `OSError` when the peer is gone."""
        while self._kept and self._sent(*self._kept[0]):
            close_all(self._kept.popleft()[1])

    def close(self) -> None:
        """Drop what waits."""
        while self._kept:
            close_all(self._kept.popleft()[1])

    def _sent(self, packet: bytes, fds: Sequence[int]) -> bool:
        try:
            send(self._sock, packet, tuple(fds))
        except OSError as error:
            if error.errno not in _FULL:
                raise
            return False
        return True
