"""Serves `/metrics`, `/livez` and `/readyz` from a thread of the master: the standard library's server, on a leash.

A connection has `REQUEST_TIMEOUT_S` from its first byte to its last, at most `MAX_CONNECTIONS` are served at a time,
and each answers one request. A new connection takes the place of the oldest one that has not sent its request yet. So
clients that are slow, silent or many keep nobody from these pages, and the pool from nothing.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from socketserver import TCPServer, ThreadingMixIn
from typing import Any

from jobpool.errors import PASSING, ConfigurationError, JobpoolError
from jobpool.telemetry.metrics.pages import Page, View, text_page

REQUEST_TIMEOUT_S = 5.0  # seconds for a whole request and its answer
MAX_CONNECTIONS = 16
LOOK_PAUSE_S = 0.25  # seconds between two looks for connections whose time is up
CLOSE_TIMEOUT_S = 2.0
ACCEPT_PAUSE_S = 0.1  # after a connection that could not be accepted: for lack of a descriptor, it fails again at once
RESTART_PAUSE_S = 1.0
ROOM_LIMIT_S = 1.0  # for which a new connection waits until threads have ended that were hung up on

log = logging.getLogger("jobpool.metrics")


@dataclass(slots=True)
class _Connection:
    """One that is open. `is_idle`: it has not sent its request; `is_over`: it was hung up on, its thread ends soon."""

    deadline: float
    thread: threading.Thread
    is_idle: bool = True
    is_over: bool = False


class Server(ThreadingMixIn, TCPServer):
    """The metrics server. `start` it once, `close` it once. `views` are by path; at port 0, `port` tells which it got.

    Raises `ConfigurationError`: the address cannot be one of this machine's. `JobpoolError`: it cannot be used now.
    """

    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 128  # a client that finds it full tries again after a second

    def __init__(self, host: str, port: int, views: dict[str, View]) -> None:
        self.views = views
        self._open: dict[socket.socket, _Connection] = {}
        self._changed = threading.Condition()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="metrics", daemon=True)
        try:
            self.address_family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
            super().__init__((host, port), _Handler)
        except OSError as error:
            kind = JobpoolError if error.errno in {*PASSING, socket.EAI_AGAIN} else ConfigurationError
            raise kind(
                f"metrics: {host}:{port} cannot be listened on ({error.strerror or error}):"
                " choose another port or host, or 0 for any free port"
            ) from error
        self.port: int = self.server_address[1]

    def start(self) -> None:
        """Answer from now on. Returns at once."""
        self._thread.start()

    def close(self) -> None:
        """Let every connection and the port go. Blocks until that is done, some 0.25 s, `CLOSE_TIMEOUT_S` at most."""
        self._closing.set()
        if self._thread.is_alive():
            self.shutdown()
            self._thread.join(CLOSE_TIMEOUT_S)
        self.server_close()
        with self._changed:
            left = list(self._open.items())
            for request, _ in left:
                self._hang_up(request)
        give_up = time.monotonic() + CLOSE_TIMEOUT_S
        for _, one in left:
            one.thread.join(max(0.0, give_up - time.monotonic()))

    def _serve(self) -> None:
        while not self._closing.is_set():
            try:
                self.serve_forever(LOOK_PAUSE_S)
            except Exception:
                log.exception("the metrics server has failed; it is started again", extra={"limit": "metrics server"})
                self._closing.wait(RESTART_PAUSE_S)

    def get_request(self) -> tuple[socket.socket, Any]:
        try:
            return super().get_request()
        except OSError:
            time.sleep(ACCEPT_PAUSE_S)
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        """Give it a thread, at the cost of the oldest idle connection if there are too many."""
        thread = threading.Thread(target=self._answer, args=(request, client_address), name="scrape", daemon=True)
        with self._changed:
            if not self._make_room():
                self.shutdown_request(request)
                return
            self._open[request] = _Connection(time.monotonic() + REQUEST_TIMEOUT_S, thread)
        try:
            thread.start()
        except BaseException:
            self._forget(request)
            raise

    def _make_room(self) -> bool:
        """Return False if every connection is being answered, or too many threads have not ended yet."""
        served = [(request, one) for request, one in self._open.items() if not one.is_over]
        if len(served) < MAX_CONNECTIONS:
            return True
        oldest = next((request for request, one in served if one.is_idle), None)
        if oldest is None:
            return False
        self._hang_up(oldest)
        # On a busy machine many threads may have been hung up on, and not have come to their end.
        return self._changed.wait_for(lambda: len(self._open) < 2 * MAX_CONNECTIONS, ROOM_LIMIT_S)

    def _answer(self, request: Any, client_address: Any) -> None:
        try:
            self.process_request_thread(request, client_address)
        finally:
            self._forget(request)

    def _forget(self, request: Any) -> None:
        with self._changed:
            self._open.pop(request, None)
            self._changed.notify()

    def answering(self, request: Any) -> None:
        with self._changed:
            if request in self._open:
                self._open[request].is_idle = False

    def service_actions(self) -> None:
        """Hang up on requests whose time is over. Called by `serve_forever` now and then."""
        now = time.monotonic()
        with self._changed:
            for request, one in self._open.items():
                if now >= one.deadline:
                    self._hang_up(request)

    def _hang_up(self, request: socket.socket) -> None:
        """End the next read or write of its thread at once; the thread closes the socket. Called under the lock."""
        self._open[request].is_over = True
        with contextlib.suppress(OSError):
            request.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002 - the signature is socketserver's
        """Ignore clients that went away, or sent rubbish."""
        log.debug("a request failed", exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    server: Server
    timeout = REQUEST_TIMEOUT_S
    server_version = "jobpool"
    sys_version = ""

    def do_GET(self) -> None:
        self.server.answering(self.request)
        page = self._page()
        self.send_response(page.status)
        self.send_header("Content-Type", page.content_type)
        self.send_header("Content-Length", str(len(page.body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(page.body)

    do_HEAD = do_GET  # noqa: N815 - the name is http.server's

    def _page(self) -> Page:
        view = self.server.views.get(self.path.partition("?")[0])
        if view is None:
            return text_page(404, f"there is {', '.join(sorted(self.server.views))}")
        try:
            return view(self.headers.get("Accept", ""))
        except Exception:
            log.exception("a page could not be made", extra={"path": self.path})
            return text_page(500, "a fault in jobpool; its log says where")

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: probes come every few seconds."""
