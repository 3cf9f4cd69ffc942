"""What one connection sends."""

from __future__ import annotations

import asyncio
import struct
import time
from socket import SO_LINGER, SOL_SOCKET

from servicebus_peer.faults import Faults

_NO_LINGER = struct.pack("ii", 1, 0)


class Output:
    """Gathered while a read is answered, held back in a stall, lost once the connection is half-open.

    Attributes:
        last: When something was sent, on the machine's monotonic clock.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        self.last = 0.0
        self._transport = transport
        self._pieces: list[bytes] = []
        self._gathering = False
        self._deaf = False

    def write(self, data: bytes, faults: Faults) -> None:
        """`faults`: those of now."""
        if not self._deaf:
            self._pieces.append(data)
            if not self._gathering:
                self.flush(faults)

    def gather(self) -> None:
        """Send nothing before `flush`, then all at once."""
        self._gathering = True

    def flush(self, faults: Faults) -> None:
        self._gathering = False
        if not self._pieces or faults.stalled:
            return
        if not self._transport.is_closing():
            self.last = time.monotonic()
            self._transport.write(b"".join(self._pieces))
        self._pieces.clear()

    def deafen(self) -> None:
        """From now on nothing passes."""
        self._deaf = True
        self._pieces.clear()

    def close(self) -> None:
        """Close the socket once all is sent."""
        self._transport.close()

    def reset(self) -> None:
        """Close the socket so that the other side reads "connection reset": with a linger of 0 seconds."""
        socket = self._transport.get_extra_info("socket")
        if socket is not None and not self._transport.is_closing():
            socket.setsockopt(SOL_SOCKET, SO_LINGER, _NO_LINGER)
        self._transport.abort()
