"""Ports for servers.

They are taken from below the range that the kernel takes ports for outgoing connections from. From within it, a client
that tries again and again to reach a stopped server can be given that very port, connect to itself, and keep the
server from coming back.
"""

from __future__ import annotations

import socket
from pathlib import Path
from random import SystemRandom

from support.servers.errors import ServerFailed


def free_port() -> int:
    """A port on loopback that nothing listens on now.

    It is not reserved: who wants it listens on it, and asks for another one when that fails.
    """
    for _ in range(1000):
        port = SystemRandom().randrange(10_000, _first_outgoing_port())
        if _is_free(port):
            return port
    raise ServerFailed("no port is free on 127.0.0.1")


def _first_outgoing_port() -> int:
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    return first if first > 12_000 else 32_768


def _is_free(port: int) -> bool:
    with socket.socket() as listener:
        # As servers do: what is left of a closed connection does not keep the port.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
