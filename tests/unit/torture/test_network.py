"""The proxy does to a connection what its docstrings say, between real sockets on both sides."""

from __future__ import annotations

import signal
import socket
import socketserver
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from support.waiting import wait_until

from jobpool_torture import network
from jobpool_torture.network import Direction, NetworkFailed, Proxy

SOON = 0.15
"""Seconds in which nothing must come."""


class Echo(socketserver.ThreadingTCPServer):
    """Answers each line with itself, and keeps what it was told. `reset`: clients that went without a goodbye."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answering)
        self.heard: list[bytes] = []
        self.left = 0
        self.reset = 0

    @property
    def port(self) -> int:
        return int(self.server_address[1])


class Answering(socketserver.StreamRequestHandler):
    server: Echo

    def handle(self) -> None:
        try:
            for line in self.rfile:
                self.server.heard.append(line)
                self.wfile.write(line)
            self.server.left += 1
        except ConnectionResetError:
            self.server.reset += 1


@pytest.fixture
def echo() -> Iterator[Echo]:
    with Echo() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def proxy(echo: Echo) -> Iterator[Proxy]:
    with Proxy("127.0.0.1", echo.port) as proxy:
        yield proxy


class Client:
    """One connection through the proxy."""

    def __init__(self, proxy: Proxy, timeout: float = 5.0) -> None:
        self.socket = socket.create_connection((proxy.host, proxy.port), timeout)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def say(self, line: bytes) -> None:
        self.socket.sendall(line)

    def hear(self, count: int, within: float = 5.0) -> bytes:
        """So many bytes; fewer when the other side has closed. Raises TimeoutError, ConnectionResetError."""
        self.socket.settimeout(within)
        heard = b""
        while len(heard) < count and (data := self.socket.recv(65536)):
            heard += data
        return heard

    def ask(self, line: bytes, within: float = 5.0) -> bytes:
        self.say(line)
        return self.hear(len(line), within)

    def hears_nothing(self) -> bool:
        with suppress(TimeoutError):
            self.hear(1, SOON)
            return False
        return True


def test_it_carries_both_ways_and_counts(proxy: Proxy) -> None:
    with Client(proxy) as one, Client(proxy) as other:
        assert one.ask(b"first\n") == b"first\n"
        assert other.ask(b"second\n") == b"second\n"
        assert one.ask(b"third\n") == b"third\n"
        counts = proxy.counts()
        assert (counts.connections, counts.open, counts.requests) == (2, 2, 3)
        assert counts.bytes_up == counts.bytes_down == 19
    wait_until(lambda: proxy.counts().open == 0)


def test_it_carries_much_at_once(proxy: Proxy) -> None:
    line = b"x" * (8 << 20) + b"\n"
    with Client(proxy) as client:
        sender = threading.Thread(target=client.say, args=(line,))
        sender.start()
        assert client.hear(len(line)) == line
        sender.join()


def test_a_side_that_is_done_is_done_behind_the_proxy_too(proxy: Proxy, echo: Echo) -> None:
    with Client(proxy) as client:
        client.say(b"last\n")
        client.socket.shutdown(socket.SHUT_WR)
        assert client.hear(99) == b"last\n"
    wait_until(lambda: echo.left == 1)


def test_a_server_that_is_not_there_resets() -> None:
    with socket.create_server(("127.0.0.1", 0)) as dead:
        port = dead.getsockname()[1]
    with Proxy("127.0.0.1", port) as proxy, pytest.raises(ConnectionResetError), Client(proxy) as client:
        client.hear(1)


@pytest.mark.parametrize("directions", [(), ("up",), ("down",)])
def test_a_black_hole_holds_everything_back_and_closes_nothing(
    proxy: Proxy, echo: Echo, directions: tuple[Direction, ...]
) -> None:
    with Client(proxy) as client:
        client.ask(b"before\n")
        proxy.black_hole(*directions)
        client.say(b"held\n")
        assert client.hears_nothing()
        assert (b"held\n" in echo.heard) is (directions == ("down",))
        proxy.restore()
        assert client.hear(5) == b"held\n"
        assert client.ask(b"after\n") == b"after\n"
    assert echo.heard == [b"before\n", b"held\n", b"after\n"]


def test_the_end_of_a_connection_does_not_get_through_a_black_hole(proxy: Proxy, echo: Echo) -> None:
    with Client(proxy) as client:
        client.ask(b"before\n")
        proxy.black_hole()
        client.say(b"late\n")
    assert echo.left == 0
    assert proxy.counts().open == 1
    proxy.restore()
    wait_until(lambda: echo.left == 1)
    assert echo.heard == [b"before\n", b"late\n"], "what was sent before it still arrives"


def test_new_connections_hang_in_a_black_hole(proxy: Proxy) -> None:
    proxy.black_hole("down")
    with pytest.raises(TimeoutError):
        Client(proxy, SOON)
    proxy.restore()
    with Client(proxy) as client:
        assert client.ask(b"after\n") == b"after\n"
    assert proxy.counts().connections <= 2, "its own connections are not counted, one that was given up may be"


def test_what_a_losing_hole_swallows_is_lost_and_its_connection_is_half_open(proxy: Proxy, echo: Echo) -> None:
    with Client(proxy) as speaker, Client(proxy) as silent:
        speaker.ask(b"before\n")
        silent.ask(b"before\n")
        proxy.black_hole(keep=False)
        speaker.say(b"lost\n")
        wait_until(lambda: proxy.counts().bytes_lost == 5)
        proxy.restore()
        speaker.say(b"lost too\n")
        assert speaker.hears_nothing()
        assert silent.ask(b"unharmed\n") == b"unharmed\n"
    wait_until(lambda: proxy.counts().open == 1)
    assert echo.left <= 1, "of the other one the server is not told"
    assert echo.heard == [b"before\n"] * 2 + [b"unharmed\n"]


def test_what_is_under_way_when_a_losing_hole_opens_is_lost_and_counted(proxy: Proxy, echo: Echo) -> None:
    with Client(proxy) as client:
        client.ask(b"before\n")
        proxy.delay(SOON)
        client.say(b"lost\n")
        wait_until(lambda: proxy.counts().bytes_up == 12, what="the proxy has it, and holds it")
        proxy.black_hole(keep=False)
        proxy.restore()
        wait_until(lambda: proxy.counts().bytes_lost == 5)
    assert echo.heard == [b"before\n"]


def test_a_hole_in_another_direction_leaves_the_first_as_it_is(proxy: Proxy, echo: Echo) -> None:
    with Client(proxy) as client, Client(proxy) as other:
        client.ask(b"before\n")
        proxy.black_hole("up")
        proxy.black_hole("down", keep=False)
        client.say(b"held\n")
        assert client.hears_nothing()
        assert echo.heard == [b"before\n"], "the first still keeps it"
        proxy.restore()
        assert client.hear(5) == b"held\n", "its answer comes after the holes"
        proxy.black_hole("down", keep=False)
        proxy.black_hole("up")
        other.say(b"held too\n")
        assert other.hears_nothing()
        assert proxy.counts().bytes_lost == 0
        proxy.restore()
        assert other.hear(9) == b"held too\n"


def test_a_cut_resets_both_sides(proxy: Proxy, echo: Echo) -> None:
    with Client(proxy) as client:
        client.ask(b"before\n")
        proxy.cut()
        with pytest.raises(ConnectionResetError):
            client.hear(1)
    wait_until(lambda: echo.reset == 1)
    with Client(proxy) as client:
        assert client.ask(b"after\n") == b"after\n"


def test_refused_are_the_new_ones(proxy: Proxy) -> None:
    with Client(proxy) as client:
        client.ask(b"before\n")
        proxy.refuse()
        with pytest.raises(ConnectionRefusedError):
            Client(proxy)
        assert client.ask(b"still\n") == b"still\n"
        proxy.restore()
        with Client(proxy) as other:
            assert other.ask(b"after\n") == b"after\n"


def test_it_can_refuse_after_a_black_hole(proxy: Proxy) -> None:
    proxy.black_hole()
    proxy.refuse()
    with pytest.raises(ConnectionRefusedError):
        Client(proxy)
    proxy.restore()
    with Client(proxy) as client:
        assert client.ask(b"after\n") == b"after\n"


def test_a_delay_is_met_in_each_direction_and_ends(proxy: Proxy) -> None:
    with Client(proxy) as client:
        proxy.delay(SOON)
        begun = time.monotonic()
        assert client.ask(b"slow\n") == b"slow\n"
        assert time.monotonic() - begun >= 2 * SOON
        client.say(b"one\n")
        proxy.delay(0)
        client.say(b"two\n")
        assert client.hear(8) == b"one\ntwo\n", "nothing overtakes"


def test_a_dropped_reply_cuts_its_connection_and_the_server_has_done_it(proxy: Proxy, echo: Echo) -> None:
    with Client(proxy) as client:
        client.ask(b"before\n")
        proxy.drop_replies(1)
        client.say(b"dropped\n")
        with pytest.raises(ConnectionResetError):
            client.hear(1)
    with Client(proxy) as client:
        assert client.ask(b"after\n") == b"after\n"
    assert echo.heard == [b"before\n", b"dropped\n", b"after\n"]
    wait_until(lambda: proxy.counts().open == 0)
    assert proxy.counts().dropped == 1


def test_a_dropped_reply_may_leave_its_connection_half_open(proxy: Proxy, echo: Echo) -> None:
    proxy.drop_replies(1, then="silent")
    with Client(proxy) as client, Client(proxy) as other:
        client.say(b"dropped\n")
        assert client.hears_nothing()
        assert other.ask(b"fine\n") == b"fine\n"
        client.say(b"lost\n")
        assert client.hears_nothing()
    assert echo.heard == [b"dropped\n", b"fine\n"]


def test_only_replies_to_matching_requests_are_dropped(proxy: Proxy) -> None:
    proxy.drop_replies(match="^settle .*7", then="silent")
    with Client(proxy) as client:
        assert client.ask(b"fetch 7\n") == b"fetch 7\n"
        assert client.ask(b"settle 6\n") == b"settle 6\n"
        client.say(b"settle \n17\n")
        assert client.hears_nothing()


def test_a_share_of_the_replies_is_dropped_and_its_seed_repeats_it(proxy: Proxy) -> None:
    stories = [_story(proxy, seed) for seed in (1, 1, 2)]
    assert stories[0] == stories[1] != stories[2]
    assert 5 < stories[0].count("dropped") < 35


def _story(proxy: Proxy, seed: int) -> list[str]:
    proxy.drop_replies(share=0.3, seed=seed)
    return [_fate(proxy) for _ in range(60)]


def _fate(proxy: Proxy) -> str:
    with Client(proxy) as client:
        try:
            return client.ask(b"?\n").decode()
        except ConnectionResetError:
            return "dropped"


def test_closing_it_ends_every_connection(echo: Echo) -> None:
    proxy = Proxy("127.0.0.1", echo.port)
    with Client(proxy) as client:
        client.ask(b"before\n")
        proxy.close()
        proxy.close()
        with suppress(ConnectionResetError):
            assert client.hear(1) == b""
    wait_until(lambda: echo.left + echo.reset == 1)


# --- when its process is not well, and when its server has several addresses ----------------------------------------


def test_a_proxy_whose_process_was_killed_says_so_to_every_order_and_can_be_closed(echo: Echo) -> None:
    proxy = Proxy("127.0.0.1", echo.port)
    proxy._process.kill()
    proxy._process.wait()
    for order in (proxy.cut, proxy.restore, proxy.counts):  # the first is not heard, the others cannot be written
        with pytest.raises(NetworkFailed, match=f"port {proxy.port}"):
            order()
    proxy.close()
    proxy.close()


def test_a_proxy_that_hangs_is_given_up_and_its_late_answer_is_nobodys(
    echo: Echo, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy = Proxy("127.0.0.1", echo.port)
    monkeypatch.setattr(network, "ORDER_LIMIT_S", SOON)
    proxy._socket.settimeout(SOON)
    proxy._process.send_signal(signal.SIGSTOP)
    with pytest.raises(NetworkFailed, match="does not answer within"):
        proxy.cut()
    proxy._process.send_signal(signal.SIGCONT)
    with pytest.raises(NetworkFailed, match="cannot be heard"):
        proxy.counts()
    proxy._process.send_signal(signal.SIGSTOP)
    proxy.close()
    assert proxy._process.returncode == -signal.SIGKILL


def addresses(monkeypatch: pytest.MonkeyPatch, *found: str) -> None:
    """What every name is from now on."""

    def answer(_host: str, port: int, *_: Any, **__: Any) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in found]

    monkeypatch.setattr(socket, "getaddrinfo", answer)


def test_of_several_addresses_the_first_that_takes_connections_is_the_servers(
    echo: Echo, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as names:
        addresses(names, "127.0.0.9", "127.0.0.1", "127.0.0.8")  # of this machine; nobody listens at the first
        proxy = Proxy("somewhere", echo.port)
    wait_until(lambda: echo.left == 1, what="the connection that has tasted it is closed")
    with proxy, Client(proxy) as client:
        assert client.ask(b"there\n") == b"there\n"


def test_a_server_that_is_down_has_its_first_address(monkeypatch: pytest.MonkeyPatch) -> None:
    addresses(monkeypatch, "127.0.0.9", "127.0.0.1", "127.0.0.9")
    assert network._address("somewhere", 1) == "127.0.0.9"
