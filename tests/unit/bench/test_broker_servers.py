"""The benchmarks' own servers, and the ear at their door."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest
from bench import servers
from bench.plan import Plan
from bench.recorder import recorded
from redis import Redis


def test_a_redis_is_empty_each_time_and_counts_what_it_is_asked(tmp_path: Path) -> None:
    with servers.redis(tmp_path) as server:
        with server.fresh() as url, Redis.from_url(url) as client:
            client.ping()
            with server.asked(url) as asked:
                for _ in range(50):
                    client.eval("redis.call('SET', 'a', 1) return redis.call('GET', 'a')", 0)
            assert (asked.commands, asked.within) == (50, 100)
        with server.fresh() as url, Redis.from_url(url) as client:
            assert client.dbsize() == 0
        assert server.cpu_seconds() > 0


def test_a_postgres_gives_a_database_that_goes_away_and_waits_for_its_disk() -> None:
    with Plan().scratch() as scratch, servers.postgres(scratch) as server:
        with server.fresh() as url, psycopg.connect(url) as connection:
            assert connection.execute("show synchronous_commit").fetchone() == ("on",)
            assert connection.execute("show fsync").fetchone() == ("on",)
            server.settle_down(url)
            with server.asked(url) as asked:
                connection.rollback()
            assert asked.commands >= 0
        assert server.cpu_seconds() > 0

        with pytest.raises(psycopg.OperationalError, match="does not exist"):
            psycopg.connect(url)


def test_a_server_that_is_not_installed_is_named_with_the_mend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(servers.ServerMissing, match=r"no redis-server: scripts/services up"), servers.redis(tmp_path):
        pass


def test_every_command_of_a_client_is_heard_as_it_was_sent(tmp_path: Path) -> None:
    binary = bytes(range(256)) + b"\r\n*2\r\n$4\r\n"
    with servers.redis(tmp_path) as server, recorded(server.url) as (door, recorder):
        with Redis.from_url(door) as client:
            client.ping()
            recorder.forget()
            client.set("key", binary)
            assert client.get("key") == binary
        assert recorder.commands() == [[b"SET", b"key", binary], [b"GET", b"key"]]
