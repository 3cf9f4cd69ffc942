"""Something that listens, and is not the server that a test expects there."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress


@contextmanager
def answering(text: bytes) -> Iterator[tuple[str, int]]:
    """A host and port where every connection is told this, whatever it says first, and hung up on."""

    def serve() -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            with client, suppress(OSError):  # one that hangs up first
                client.recv(4096)
                client.sendall(text)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield listener.getsockname()
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()
