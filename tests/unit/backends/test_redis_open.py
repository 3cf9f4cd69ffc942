"""Opening: what a URL and options may say, and what a server must be."""

from __future__ import annotations

import socketserver
import threading
from collections.abc import Iterator

import pytest
from redis_rig import Rig, take
from support.jobs import QUEUE, a_job
from support.servers import RedisServer, free_port, shared_redis

from jobpool.broker.opening import open_backend
from jobpool.errors import BackendUnavailable, ConfigurationError
from jobpool_backends.redis import RedisBackend


@pytest.fixture
def server() -> RedisServer:
    return shared_redis()


def test_two_prefixes_share_nothing(server: RedisServer) -> None:
    with Rig(server) as one, Rig(server) as other:
        one.open().enqueue(a_job(identifier="order-17"))
        assert other.open().queues() == []
        other.open().enqueue(a_job("mine", identifier="order-17"))
        [lease] = take(other.open())
        assert lease.envelope.payload == "mine"


def test_options_may_stand_in_the_url_or_beside_it_which_wins(server: RedisServer) -> None:
    with Rig(server) as rig:
        backend = open_backend(f"{server.url}?prefix=elsewhere&dead_max=1&dead_max_age=60.5", prefix=rig.prefix)
        backend.enqueue(a_job())
        assert rig.open().stats(QUEUE).waiting == 1
        backend.close()


@pytest.mark.parametrize("prefix", ["", "a b", "{a}", "a*", "-a", "x" * 101, 7])
def test_an_odd_prefix_is_refused(server: RedisServer, prefix: object) -> None:
    with pytest.raises(ConfigurationError, match="option prefix"):
        RedisBackend.from_url(server.url, prefix=prefix)


def test_a_server_that_is_not_there_is_named_with_the_mend() -> None:
    port = free_port()
    with pytest.raises(BackendUnavailable, match=rf"127\.0\.0\.1:{port} .*[Ss]tart"):
        RedisBackend.from_url(f"redis://127.0.0.1:{port}/0")


class _OldServer(socketserver.BaseRequestHandler):
    """Answers every command as a Redis of 2020 answers INFO."""

    def handle(self) -> None:
        info = b"# Server\r\nredis_version:6.0.16\r\n"
        while self.request.recv(4096):
            self.request.sendall(b"$%d\r\n%s\r\n" % (len(info), info))


@pytest.fixture
def old_server() -> Iterator[str]:
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), _OldServer) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"redis://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def test_a_server_that_is_too_old_is_told_so_plainly(old_server: str) -> None:
    with pytest.raises(ConfigurationError, match=r"version 6\.0\.16, and jobpool needs Redis 6\.2 or later: upgrade"):
        RedisBackend.from_url(old_server)


def test_prepare_and_ping_ask_the_server(server: RedisServer) -> None:
    with Rig(server) as rig:
        backend = rig.open()
        backend.prepare()
        backend.ping()
        assert rig.names() == set()
        assert any("appendonly" in caution for caution in backend.cautions())
