"""The servers of the tests: that they are ours alone, keep what they should, and never outlive us."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import psycopg
import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from support.servers import (
    PostgresServer,
    RedisServer,
    ServerFailed,
    fresh_name,
    process,
    redis_server,
    shared_postgres,
    shared_redis,
    shared_redis_cluster,
)
from support.waiting import wait_until

ROOT = Path(__file__).resolve().parents[3]
START = 1_800_000_000_000_000


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    with RedisServer(tmp_path / "redis") as server:
        yield server


@pytest.fixture
def turned(tmp_path: Path) -> Iterator[RedisServer]:
    with RedisServer(tmp_path / "turned", turned=True) as server:
        yield server


@pytest.fixture(scope="module")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresServer]:
    with PostgresServer(tmp_path_factory.mktemp("postgres")) as server:
        yield server


def client(server: RedisServer) -> redis.Redis:
    """Gives up at once: a test wants to see the failure."""
    return redis.Redis.from_url(server.url, socket_timeout=0.2, retry=Retry(NoBackoff(), 0))


def micros(connection: redis.Redis) -> int:
    seconds, fraction = connection.time()
    return int(seconds) * 1_000_000 + int(fraction)


# --- Redis -------------------------------------------------------------------------------------------------


def test_redis_answers_on_its_port_and_on_its_socket(server: RedisServer) -> None:
    with client(server) as by_port, redis.Redis(unix_socket_path=str(server.socket_path)) as by_socket:
        by_port.set("key", "value")
        assert by_socket.get("key") == b"value"
        assert by_port.info("server")["process_id"] == server.pid


def test_two_servers_do_not_meet(server: RedisServer, tmp_path: Path) -> None:
    with RedisServer(tmp_path / "other") as other:
        assert other.port != server.port
        with client(server) as one, client(other) as two:
            one.set("key", "value")
            assert two.get("key") is None


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


def test_a_restart_keeps_the_port_and_what_was_to_be_kept(tmp_path: Path) -> None:
    with RedisServer(tmp_path, config=redis_server.DURABLE) as server, client(server) as connection:
        port, pid = server.port, server.pid
        connection.set("key", "value")
        server.restart()
        assert (server.port, server.pid != pid) == (port, True)
        assert connection.get("key") == b"value"
        server.kill()
        server.start()
        assert connection.get("key") == b"value"


def test_a_server_keeps_nothing_unless_asked(server: RedisServer) -> None:
    with client(server) as connection:
        connection.set("key", "value")
        server.restart()
        assert connection.get("key") is None


def test_a_flushed_server_is_empty(server: RedisServer) -> None:
    with client(server) as connection:
        connection.set("key", "value")
        server.flush()
        assert connection.dbsize() == 0


def test_a_killed_server_is_gone_and_refuses_connections(server: RedisServer) -> None:
    pid = server.pid
    server.kill()
    assert not psutil.pid_exists(pid)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((server.host, server.port))
    with pytest.raises(ServerFailed, match="not running"):
        server.pid  # noqa: B018 - it raises


def test_a_frozen_server_takes_connections_and_does_not_answer(server: RedisServer) -> None:
    with client(server) as connection:
        server.pause()
        with pytest.raises(redis.TimeoutError):
            connection.ping()
        server.resume()
        assert connection.ping()


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


def test_stopping_and_closing_twice_are_the_same_as_once(server: RedisServer) -> None:
    for _ in range(2):
        server.stop()
        server.kill()
        server.close()


# --- a turned Redis ----------------------------------------------------------------------------------------


def test_turned_time_stands_still_and_moves_to_the_microsecond(turned: RedisServer) -> None:
    with client(turned) as connection:
        expected = START
        assert micros(connection) == micros(connection) == expected
        for step in (1, 7, 999_999, 1_000_000, 600_000_000, 123_456_789, *range(1, 200)):
            turned.advance(step / 1e6)
            expected += step
            assert micros(connection) == round(turned.now() * 1e6) == expected


def test_a_script_sees_the_turned_time(turned: RedisServer) -> None:
    turned.advance(1.000_001)
    with client(turned) as connection:
        assert connection.eval("return redis.call('TIME')", 0) == [b"1800000001", b"1"]


def test_keys_expire_by_the_turned_time(turned: RedisServer) -> None:
    """Redis counts in milliseconds, and a key lives through the one that it expires in."""
    with client(turned) as connection:
        connection.set("key", "value", px=5000)
        assert connection.pexpiretime("key") == START // 1000 + 5000
        turned.advance(5.000_999)
        assert connection.exists("key")
        turned.advance(0.000_001)
        assert not connection.exists("key")


def test_turned_time_can_be_set_back_once_nothing_is_there(turned: RedisServer) -> None:
    with client(turned) as connection:
        turned.advance(600.0)
        connection.flushall()
        turned.turn_to(START / 1e6)
        connection.set("key", "value", px=1000)
        turned.advance(0.5)
        assert (micros(connection), connection.pttl("key")) == (START + 500_000, 500)


def test_turned_time_outlasts_a_restart(turned: RedisServer) -> None:
    turned.advance(10.0)
    turned.kill()
    turned.start()
    with client(turned) as connection:
        assert micros(connection) == START + 10_000_000


def test_a_killed_turned_server_leaves_no_shared_memory(turned: RedisServer) -> None:
    pid = turned.pid
    turned.kill()
    assert not [path for path in Path("/dev/shm").iterdir() if str(pid) in path.name]


def test_only_a_turned_server_can_be_turned(server: RedisServer) -> None:
    with pytest.raises(ValueError, match="turned=True"):
        server.advance(1.0)


def test_the_clocks_of_a_turned_cluster_are_turned_together() -> None:
    cluster = shared_redis_cluster(turned=True)
    for moment in (1_800_000_600, 1_800_000_000):
        cluster.flush()
        cluster.turn_to(moment)
        assert {tuple(node.ask("TIME")) for node in cluster.nodes} == {(str(moment).encode(), b"0")}
        assert all(node.is_ready(len(cluster.nodes)) for node in cluster.nodes)


# --- Postgres ----------------------------------------------------------------------------------------------


def test_postgres_answers(postgres: PostgresServer) -> None:
    with psycopg.connect(postgres.url()) as connection:
        row = connection.execute("SELECT lower('Ü'), current_setting('port')::int, pg_backend_pid()").fetchone()
    assert row is not None
    assert row[:2] == ("ü", postgres.port)


def test_what_was_committed_outlives_a_kill_of_postgres(postgres: PostgresServer) -> None:
    name = fresh_name()
    with psycopg.connect(postgres.url(), autocommit=True) as connection:
        connection.execute(f"CREATE TABLE {name} AS SELECT 7 AS number")
        port, members = postgres.port, family(postgres)
        postgres.kill()
        assert not any(map(alive, members))
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")
    postgres.start()
    assert postgres.port == port
    with psycopg.connect(postgres.url()) as connection:
        assert connection.execute(f"SELECT number FROM {name}").fetchall() == [(7,)]


def test_every_process_of_a_frozen_postgres_stands_still(postgres: PostgresServer) -> None:
    with psycopg.connect(postgres.url(), autocommit=True) as connection:
        postgres.pause()
        assert {member.status() for member in family(postgres)} == {psutil.STATUS_STOPPED}
        postgres.resume()
        assert connection.execute("SELECT 1").fetchone() == (1,)


def test_postgres_does_not_wait_for_its_clients_to_leave(postgres: PostgresServer) -> None:
    with psycopg.connect(postgres.url()):
        postgres.restart()
    with psycopg.connect(postgres.url()) as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)


def test_postgres_takes_settings_and_says_what_is_wrong_with_them(tmp_path: Path) -> None:
    with (
        PostgresServer(tmp_path / "right", config={"fsync": "on", "max_connections": "17"}) as server,
        psycopg.connect(server.url()) as connection,
    ):
        row = connection.execute("SELECT current_setting('fsync'), current_setting('max_connections')").fetchone()
        assert row == ("on", "17")
    assert not server.data.exists() or server.data.is_relative_to(tmp_path)
    with pytest.raises(ServerFailed, match="no_such_setting"):
        PostgresServer(tmp_path / "wrong", config={"no_such_setting": "yes"})


def family(server: PostgresServer) -> list[psutil.Process]:
    first = psutil.Process(server.pid)
    return [first, *first.children(recursive=True)]


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
