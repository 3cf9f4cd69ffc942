"""The servers of the tests: that they are ours alone, keep what they should, and never outlive us."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from support.servers import (
    RedisServer,
    ServerFailed,
    fresh_name,
    process,
    shared_postgres,
    shared_redis,
)
from support.waiting import wait_until

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    with RedisServer(tmp_path / "redis") as server:
        yield server


@pytest.fixture
def turned(tmp_path: Path) -> Iterator[RedisServer]:
    with RedisServer(tmp_path / "turned", turned=True) as server:
        yield server


def client(server: RedisServer) -> redis.Redis:
    """Gives up at once: a test wants to see the failure."""
    return redis.Redis.from_url(server.url, socket_timeout=0.2, retry=Retry(NoBackoff(), 0))


def test_a_port_that_is_taken_is_not_insisted_on(
    server: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ports = iter([server.port, process.free_port()])
    monkeypatch.setattr(process, "free_port", lambda: next(ports))
    with RedisServer(tmp_path / "other") as other, client(other) as connection:
        assert other.port != server.port
        assert connection.ping()


def test_a_server_that_cannot_start_says_why(tmp_path: Path) -> None:
    with pytest.raises(ServerFailed, match="no-such-directive"):
        RedisServer(tmp_path, config={"no-such-directive": "yes"})


def test_a_frozen_server_can_be_stopped(server: RedisServer) -> None:
    server.pause()
    server.stop()
    assert not server.running


def test_a_server_that_ended_by_itself_can_be_stopped_and_started(server: RedisServer) -> None:
    psutil.Process(server.pid).kill()
    server.stop()
    server.start()
    with client(server) as connection:
        assert connection.ping()


def test_a_killed_turned_server_leaves_no_shared_memory(turned: RedisServer) -> None:
    pid = turned.pid
    turned.kill()
    assert not [path for path in Path("/dev/shm").iterdir() if str(pid) in path.name]


def alive(member: psutil.Process) -> bool:
    return member.is_running() and member.status() != psutil.STATUS_ZOMBIE


# --- who they belong to ------------------------------------------------------------------------------------


def test_a_server_outlives_the_thread_that_asked_for_it(tmp_path: Path) -> None:
    with ThreadPoolExecutor(1) as executor:
        server = executor.submit(RedisServer, tmp_path).result()
    with server, client(server) as connection:
        assert connection.ping()


def test_a_fork_that_ends_leaves_the_servers_of_its_parent(server: RedisServer) -> None:
    with client(server) as connection:
        connection.ping()
        child = os.fork()
        if not child:
            process.close_all()
            os._exit(0)
        assert os.waitpid(child, 0) == (child, 0)
        assert connection.ping()


USES_ALL = """
    import os, signal
    from pathlib import Path
    from support.servers import shared_postgres, shared_redis

    servers = [shared_redis(), shared_redis(turned=True), shared_postgres()]
    print(*(server.pid for server in servers), servers[0].folder.parent, flush=True)
"""


def use_all(then: str) -> tuple[list[psutil.Process], Path]:
    """Start all shared servers in a process that does `then` at its end; their processes, and their folder."""
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(USES_ALL) + f"input()\n{then}"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "tests")},
    ) as user:
        assert user.stdin is not None
        assert user.stdout is not None
        *pids, scratch = user.stdout.readline().split()
        members = [psutil.Process(int(pid)) for pid in pids]
        user.stdin.write("\n")
    return members, Path(scratch)


def test_servers_end_with_the_process_and_leave_nothing() -> None:
    members, folder = use_all("")
    assert not any(map(alive, members))
    assert not folder.exists()


def test_servers_end_with_a_process_that_is_killed() -> None:
    members, folder = use_all("os.kill(os.getpid(), signal.SIGKILL)")
    try:
        wait_until(lambda: not any(map(alive, members)), what="the end of its servers")
    finally:
        subprocess.run(["rm", "-rf", folder], check=True)
        for member in members:
            for path in Path("/dev/shm").glob(f"*faketime_s*_{member.pid}"):
                path.unlink()


def test_shared_servers_are_one_a_kind() -> None:
    assert shared_redis() is shared_redis()
    assert shared_redis(turned=True) is not shared_redis()
    assert shared_postgres() is shared_postgres()


def test_fresh_names_differ_and_need_no_quotes() -> None:
    names = {fresh_name() for _ in range(10)}
    assert len(names) == 10
    assert all(name.isidentifier() and name == name.lower() for name in names)
