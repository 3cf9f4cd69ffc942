"""The small server in the master: its pages, and what slow, rude and many clients can do to it."""

from __future__ import annotations

import contextlib
import errno
import http.client
import socket
import threading
import time
from collections.abc import Callable, Iterator
from socketserver import TCPServer

import pytest
from support.descriptors import no_more_descriptors, open_descriptors
from support.waiting import wait_until

from jobpool.errors import ConfigurationError, JobpoolError
from jobpool.telemetry.metrics import server as module
from jobpool.telemetry.metrics.pages import Page, text_page
from jobpool.telemetry.metrics.server import MAX_CONNECTIONS, Server


@contextlib.contextmanager
def serving(**views: Callable[[str], Page]) -> Iterator[int]:
    server = Server("127.0.0.1", 0, {f"/{name}": view for name, view in views.items()})
    server.start()
    try:
        yield server.port
    finally:
        server.close()


def get(port: int, path: str, method: str = "GET", **headers: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def knock(port: int, said: bytes = b"") -> socket.socket:
    client = socket.create_connection(("127.0.0.1", port), timeout=10)
    client.sendall(said)
    return client


def fine(_: str) -> Page:
    return text_page(200, "fine")


def test_a_page_is_served_with_its_status_type_and_query() -> None:
    def metrics(accept: str) -> Page:
        return text_page(200, accept)

    with serving(livez=fine, readyz=lambda _: text_page(503, "no"), metrics=metrics) as port:
        assert get(port, "/livez") == (200, b"fine\n")
        assert get(port, "/livez?verbose=1") == (200, b"fine\n")
        assert get(port, "/readyz") == (503, b"no\n")
        assert get(port, "/livez", "HEAD") == (200, b"")
        assert get(port, "/metrics", Accept="text/x") == (200, b"text/x\n")


def test_other_paths_and_methods_are_refused() -> None:
    with serving(livez=fine, metrics=fine) as port:
        assert get(port, "/") == (404, b"there is /livez, /metrics\n")
        assert get(port, "/livez", "POST")[0] == 501
        assert get(port, "/livez", "DELETE")[0] == 501


def test_a_fault_in_a_view_is_an_answer_and_the_next_one_is_served(caplog: pytest.LogCaptureFixture) -> None:
    def broken(_: str) -> Page:
        raise KeyError("here")

    with serving(metrics=broken, livez=fine) as port:
        assert get(port, "/metrics")[0] == 500
        assert get(port, "/livez")[0] == 200
    assert "a page could not be made" in caplog.text


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"\r\n\r\n",
        b"\x16\x03\x01\x02\x00",
        b"GET",
        b"GET /livez HTTP/9.9\r\n\r\n",
        b"A" * 70_000,
        b"GET / HTTP/1.1\r\nX",
    ],
    ids=["nothing", "empty lines", "TLS", "half a line", "version", "a line too long", "half a header"],
)
def test_rubbish_does_not_disturb_others(said: bytes) -> None:
    with serving(livez=fine) as port:
        with contextlib.closing(knock(port)) as rude, contextlib.suppress(OSError):
            rude.sendall(said)
            assert get(port, "/livez")[0] == 200
        assert get(port, "/livez")[0] == 200


def test_who_is_slow_is_hung_up_on_even_while_he_goes_on_talking(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REQUEST_TIMEOUT_S", 0.4)
    with serving(livez=fine) as port, contextlib.closing(knock(port, b"GET /livez HTTP/1.1\r\n")) as slow:
        begun = time.monotonic()

        def is_over() -> bool:
            try:
                slow.sendall(b"X")
                slow.setblocking(False)
                return slow.recv(1) == b""
            except BlockingIOError:
                return False
            except OSError:
                return True
            finally:
                slow.setblocking(True)

        wait_until(is_over, 10, "the connection is closed")
        assert time.monotonic() - begun >= 0.4


def test_a_flood_gets_no_more_threads_than_there_are_and_is_over_when_it_is_over() -> None:
    with serving(livez=fine) as port:
        before = threading.active_count()
        flood = [knock(port) for _ in range(MAX_CONNECTIONS * 3)]
        wait_until(lambda: threading.active_count() == before + MAX_CONNECTIONS, 10)
        for client in flood:
            client.close()
        wait_until(lambda: threading.active_count() <= before, 10, "their threads have ended")
        assert get(port, "/livez")[0] == 200


def test_idle_connections_keep_nobody_from_the_pages() -> None:
    with serving(livez=fine) as port, contextlib.ExitStack() as idle:
        for _ in range(MAX_CONNECTIONS * 2):
            idle.enter_context(contextlib.closing(knock(port)))
            idle.enter_context(contextlib.closing(knock(port, b"GET /livez HTTP/1.1\r\n")))
        for _ in range(3):
            assert get(port, "/livez") == (200, b"fine\n")


def test_a_request_that_is_being_answered_is_not_dropped_for_a_new_connection() -> None:
    let_go = threading.Event()
    began = threading.Event()

    def slow(_: str) -> Page:
        began.set()
        let_go.wait(30)
        return text_page(200, "at last")

    with serving(metrics=slow, livez=fine) as port, contextlib.ExitStack() as idle:
        client = idle.enter_context(contextlib.closing(knock(port, b"GET /metrics HTTP/1.1\r\n\r\n")))
        assert began.wait(10)
        for _ in range(MAX_CONNECTIONS * 2):
            idle.enter_context(contextlib.closing(knock(port)))
        assert get(port, "/livez")[0] == 200
        let_go.set()
        assert client.makefile("rb").read().endswith(b"at last\n")


def test_without_a_descriptor_or_a_thread_it_goes_on_when_there_is_one_again() -> None:
    with serving(livez=fine) as port:
        client = socket.socket()
        with contextlib.closing(client), no_more_descriptors():
            client.connect(("127.0.0.1", port))
            client.sendall(b"GET /livez HTTP/1.1\r\n\r\n")
            client.settimeout(0.3)
            with pytest.raises(TimeoutError):
                client.recv(1)
        assert get(port, "/livez")[0] == 200


def test_at_the_end_no_descriptor_and_no_thread_is_left() -> None:
    before = open_descriptors(), threading.active_count()
    with serving(livez=fine) as port:
        clients = [knock(port, b"GET /livez HTTP/1.1\r\n") for _ in range(5)]
        get(port, "/livez")
    for client in clients:
        client.close()
    assert open_descriptors() <= before[0]
    assert threading.active_count() == before[1]


def test_the_end_does_not_wait_for_a_view_that_hangs_for_long() -> None:
    let_go = threading.Event()
    began = threading.Event()

    def hangs(_: str) -> Page:
        began.set()
        let_go.wait(30)
        return text_page(200, "late")

    server = Server("127.0.0.1", 0, {"/metrics": hangs})
    server.start()
    with contextlib.closing(knock(server.port, b"GET /metrics HTTP/1.1\r\n\r\n")):
        assert began.wait(10)
        begun = time.monotonic()
        server.close()
        assert time.monotonic() - begun < 15
        let_go.set()
    wait_until(lambda: not any(thread.name == "scrape" for thread in threading.enumerate()), 10)


def test_a_port_that_is_taken_is_said_with_the_mend() -> None:
    with (
        serving(livez=fine) as port,
        pytest.raises(JobpoolError, match=rf"127\.0\.0\.1:{port} cannot be listened") as taken,
    ):
        Server("127.0.0.1", port, {})
    assert not isinstance(taken.value, ConfigurationError), "a service manager tries again"


def test_a_host_that_is_not_known_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"^metrics: "):
        Server("no.such.host.invalid", 0, {})


@pytest.mark.parametrize(
    ("call", "error"),
    [
        ("bind", OSError(errno.EADDRNOTAVAIL, "Cannot assign requested address")),
        ("getaddrinfo", socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")),
    ],
    ids=["address", "name server"],
)
def test_an_address_that_may_come_yet_is_no_fault_of_the_settings(
    call: str, error: OSError, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(*{"bind": (TCPServer, "server_bind"), "getaddrinfo": (socket, "getaddrinfo")}[call], away)
    with pytest.raises(JobpoolError, match=rf"^metrics: .*{error.strerror}") as refused:
        Server("127.0.0.1", 0, {})
    assert not isinstance(refused.value, ConfigurationError), "a service manager tries again"


def test_it_can_be_closed_without_having_been_started() -> None:
    before = open_descriptors()
    Server("127.0.0.1", 0, {}).close()
    assert open_descriptors() <= before
