"""Sockets with bounds of time and size, whatever the code above them would wait for or read.

A socket's own timeout starts anew with every system call, so a peer that sends a byte now and then could hold a call
open forever. And http.client can be told to read without end: by a chunk of size -1, for one. Here each system call
gets the rest of the call's time, and received bytes are counted, without a thread or a signal.
"""

from __future__ import annotations

import socket
import ssl
from typing import TYPE_CHECKING

from jobpool.handlers.builtin.url.deadline import Deadline

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer


class TooMuch(Exception):
    """The peer has sent more than it may."""


class Bounds:
    """The limits of one connection.

    Args:
        deadline: By when it ends.
        most: Bytes that may come in: the head and framing too, after TLS.
    """

    def __init__(self, deadline: Deadline, most: int) -> None:
        self.deadline = deadline
        self._room = most

    def took(self, count: int) -> int:
        """Return `count`, bytes that came in. Raises `TooMuch`."""
        self._room -= count
        if self._room < 0:
            raise TooMuch
        return count


class BoundedSocket(socket.socket):
    """A TCP socket. Set `bounds` before use."""

    bounds: Bounds

    def recv_into(self, buffer: WriteableBuffer, nbytes: int = 0, flags: int = 0) -> int:
        self.settimeout(self.bounds.deadline.left())
        return self.bounds.took(super().recv_into(buffer, nbytes, flags))

    def sendall(self, data: ReadableBuffer, flags: int = 0) -> None:
        self.settimeout(self.bounds.deadline.left())
        super().sendall(data, flags)


class BoundedTlsSocket(ssl.SSLSocket):
    """A TLS socket. Set `bounds` after the handshake, which keeps to the timeout of the socket."""

    bounds: Bounds

    def do_handshake(self, block: bool = False) -> None:
        try:
            super().do_handshake(block)
        except BaseException:  # the hard timeout: `ssl` closes for errors only
            self.close()
            raise

    def recv_into(self, buffer: WriteableBuffer, nbytes: int | None = None, flags: int = 0) -> int:
        self.settimeout(self.bounds.deadline.left())
        return self.bounds.took(super().recv_into(buffer, nbytes, flags))

    def send(self, data: ReadableBuffer, flags: int = 0) -> int:
        self.settimeout(self.bounds.deadline.left())
        return super().send(data, flags)


def bounded(sock: socket.socket, bounds: Bounds) -> socket.socket:
    """Return the same connection as a socket that keeps to the bounds; `sock` itself must not be used any more."""
    if not isinstance(sock, ssl.SSLSocket):
        sock = BoundedSocket(sock.family, sock.type, sock.proto, fileno=sock.detach())
    if not isinstance(sock, BoundedSocket | BoundedTlsSocket):
        raise TypeError("the TLS context is not one of tls_context()")
    sock.bounds = bounds
    return sock
