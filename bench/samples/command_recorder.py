"""Listens in on a Redis client: a door in front of the server that keeps every command that passes."""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from urllib.parse import urlsplit

CHUNK = 1 << 18


class Recorder:
    """The commands that clients have sent so far, in order; each connection's by themselves."""

    def __init__(self) -> None:
        self._sent: list[bytearray] = []

    def heard(self) -> bytearray:
        """Return a new connection's ear."""
        self._sent.append(bytearray())
        return self._sent[-1]

    def forget(self) -> None:
        """Start anew, on a moment at which no command is on its way."""
        for sent in self._sent:
            sent.clear()

    def commands(self) -> list[list[bytes]]:
        """Return the words of each command."""
        return [words for sent in self._sent for words in _parse(bytes(sent))]


@contextmanager
def recorded(url: str) -> Iterator[tuple[str, Recorder]]:
    """Yield the URL of a door to the server of `url`, and the recorder of its traffic."""
    place = urlsplit(url)
    recorder = Recorder()
    with socket.create_server(("127.0.0.1", 0)) as door:
        target = (str(place.hostname), int(place.port or 6379))
        threading.Thread(target=_serve, args=(door, target, recorder), daemon=True).start()
        try:
            yield place._replace(netloc=f"127.0.0.1:{door.getsockname()[1]}").geturl(), recorder
        finally:
            door.shutdown(socket.SHUT_RDWR)


def _serve(door: socket.socket, target: tuple[str, int], recorder: Recorder) -> None:
    while True:
        try:
            client, _ = door.accept()
        except OSError:
            return  # shut
        threading.Thread(target=_pass_on, args=(client, target, recorder.heard()), daemon=True).start()


def _pass_on(client: socket.socket, target: tuple[str, int], sent: bytearray) -> None:
    with ExitStack() as stack:
        server = stack.enter_context(socket.create_connection(target))
        stack.enter_context(client)
        while True:
            for ready in select.select([client, server], [], [])[0]:
                data = ready.recv(CHUNK)
                if not data:
                    return
                if ready is client:
                    sent += data
                (server if ready is client else client).sendall(data)


def _parse(stream: bytes) -> Iterator[list[bytes]]:
    """Yield commands, arrays of strings of known length: `*2\\r\\n$4\\r\\nPING\\r\\n$1\\r\\nx\\r\\n`."""
    at = 0
    while at < len(stream):
        count, at = _number(stream, at)
        words = []
        for _ in range(count):
            length, at = _number(stream, at)
            words.append(stream[at : at + length])
            at += length + 2
        yield words


def _number(stream: bytes, at: int) -> tuple[int, int]:
    """Parse the number of a line that begins with a sign; return it, and where the next line begins."""
    end = stream.index(b"\r\n", at)
    return int(stream[at + 1 : end]), end + 2
