"""A TLS server on loopback that says back what it is told, line by line, until it is closed."""

from __future__ import annotations

import contextlib
import socketserver
import threading
from pathlib import Path
from typing import Self

from support.certificates import Authority

HOST = "127.0.0.1"


class TlsEcho:
    """Use as a context manager. `address`: HOST:PORT:CA FILE, as the app of `support.apps_imports` takes it."""

    def __init__(self, folder: Path) -> None:
        authority = Authority(folder)
        context = authority.server_context(f"IP:{HOST}")

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                with contextlib.suppress(OSError), context.wrap_socket(self.request, server_side=True) as connection:
                    while said := connection.recv(100):
                        connection.sendall(said)

        self._server = _Server((HOST, 0), Handler)
        self.address = f"{HOST}:{self._server.server_address[1]}:{authority.ca_file}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 64
