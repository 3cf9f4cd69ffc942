"""A web server on loopback that answers with the very bytes that a test gives it, well-formed or not."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

Answer = bytes | Callable[[socket.socket], object]
"""Bytes to send; or what is done with the connection once a request was read."""


@dataclass
class Seen:
    """A request as it came."""

    method: str
    path: str
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""


class WebServer:
    """Answers each path as `answers` says, and hangs up. Use as a context manager.

    `seen` holds the requests, `connections` counts what was accepted, `names` the server names of TLS clients.
    """

    def __init__(self, host: str = "127.0.0.1", port: int = 0, context: ssl.SSLContext | None = None) -> None:
        self.host = host
        self.answers: dict[str, Answer] = {}
        self.seen: list[Seen] = []
        self.names: list[str | None] = []
        self.connections = 0
        self.failures: list[OSError] = []
        self.ending = threading.Event()
        self._context = context
        if context is not None:
            context.sni_callback = lambda _sock, name, _context: self.names.append(name)
        self._listener = socket.create_server((host, port), backlog=64)
        self.port: int = self._listener.getsockname()[1]
        self._open: set[socket.socket] = set()
        self._threads = [threading.Thread(target=self._accept, daemon=True)]

    def __enter__(self) -> WebServer:
        self._threads[0].start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ending.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        for sock in list(self._open):
            with contextlib.suppress(OSError):
                socket.socket.shutdown(sock, socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        self._listener.close()

    def _accept(self) -> None:
        while not self.ending.is_set():
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            thread = threading.Thread(target=self._serve, args=(sock,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, sock: socket.socket) -> None:
        try:
            if self._context is not None:
                sock = self._context.wrap_socket(sock, server_side=True)
            self._open.add(sock)
            request = _read_request(sock)
            if request is not None:
                self.seen.append(request)
                answer = self.answers[request.path.partition("?")[0]]
                sock.sendall(answer) if isinstance(answer, bytes) else answer(sock)
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_WR)
        except OSError as error:
            self.failures.append(error)
        finally:
            self._open.discard(sock)
            sock.close()


def answer(body: bytes = b"", status: str = "200 OK", **headers: str) -> bytes:
    """A well-formed response; `content_type="text/plain"` is the header `content-type`."""
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    lines = {"content-length": str(len(body)), **given}
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return f"HTTP/1.1 {status}\r\n{head}\r\n".encode() + body


def _read_request(sock: socket.socket) -> Seen | None:
    data = b""
    while b"\r\n\r\n" not in data:
        piece = sock.recv(65536)
        if not piece:
            return None
        data += piece
    head, _, body = data.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    method, path, _ = first.split(" ")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    while len(body) < int(headers.get("content-length", "0")):
        body += sock.recv(65536)
    return Seen(method, path, headers, body)
