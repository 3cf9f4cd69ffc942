"""What a server's settings can lose: each setting one sentence; and a server that is too old."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from support.servers import RedisServer
from support.servers.redis_server import DURABLE
from support.tables import row
from support.waiting import wait_until

from jobpool.broker.finding import Finding, Level, cautions_of
from jobpool.errors import ConfigurationError
from jobpool_backends.redis.checks import (
    Facts,
    check_version,
    diagnose,
    judge,
    require_version,
    server_time,
    try_to_write,
)
from jobpool_backends.redis.connection import Endpoint
from jobpool_backends.redis.connections import Link, ServerLink

SAFE = {"appendonly": "yes", "appendfsync": "always", "save": "", "min-replicas-to-write": "0"}


def test_what_the_settings_can_lose() -> None:
    for case, info, config, said in [
        ("nothing can be lost", {}, {}, []),
        ("saves and appends", {}, {"save": "3600 1"}, []),
        ("full, and keeps what it has", {"maxmemory": "1000", "maxmemory_policy": "noeviction"}, {}, []),
        ("never full", {"maxmemory": "0", "maxmemory_policy": "allkeys-lru"}, {}, []),
        (
            "throws away messages",
            {"maxmemory": "1000", "maxmemory_policy": "allkeys-lru"},
            {},
            ["maxmemory-policy allkeys-lru: .* messages are thrown away unseen; set noeviction"],
        ),
        (
            "throws away calls",
            {"maxmemory": "1000", "maxmemory_policy": "volatile-ttl"},
            {},
            ["maxmemory-policy volatile-ttl: .* keys and results are thrown away .* run twice; set noeviction"],
        ),
        (
            "keeps nothing",
            {},
            {"appendonly": "no"},
            ["appendonly no, and no save: a crash or restart of the server loses every message; set appendonly yes"],
        ),
        (
            "saves now and then",
            {},
            {"appendonly": "no", "save": "3600 1 300 100"},
            ["appendonly no, save 3600 1 300 100: a crash of the server loses all that was done since it last saved"],
        ),
        (
            "writes every second",
            {},
            {"appendfsync": "everysec"},
            ["appendfsync everysec: a crash of the server's machine loses up to two seconds of what was answered"],
        ),
        (
            "writes when the kernel likes",
            {},
            {"appendfsync": "no"},
            ["appendfsync no: a crash of the server's machine loses up to half a minute of what was answered"],
        ),
        (
            "does not write while it rewrites",
            {},
            {"no-appendfsync-on-rewrite": "yes"},
            ["no-appendfsync-on-rewrite yes: .* while it rewrites its file loses what was answered meanwhile"],
        ),
        (
            "one replica that nobody waits for",
            {"connected_slaves": "1"},
            {},
            ["1 replica, min-replicas-to-write 0: a failover loses what had not reached the replica"],
        ),
        ("replicas that are waited for", {"connected_slaves": "2"}, {"min-replicas-to-write": "1"}, []),
        (
            "replicas that scripts do not wait for",
            {"connected_slaves": "2", "redis_version": "6.2.14"},
            {"min-replicas-to-write": "1"},
            ["min-replicas-to-write is not heeded by scripts before Redis 7"],
        ),
        (
            "nearly full",
            {"maxmemory": "1000", "used_memory": "950", "maxmemory_policy": "noeviction"},
            {},
            ["a full server refuses enqueues, .*; fetches and settlements go on; raise maxmemory, or purge dead"],
        ),
        ("room enough", {"maxmemory": "1000", "used_memory": "800"}, {}, []),
        (
            "a replica",
            {"role": "slave"},
            {},
            ["the server is a replica: nothing can be enqueued or fetched; name its master"],
        ),
        (
            "all of it",
            {"connected_slaves": "2", "maxmemory": "9", "maxmemory_policy": "allkeys-lru"},
            {"appendonly": "no"},
            ["messages are thrown away", "loses every message", "2 replicas, min-replicas-to-write 0"],
        ),
        (
            "a managed service",
            {"connected_slaves": "2", "maxmemory": "9", "maxmemory_policy": "allkeys-lru"},
            None,
            ["messages are thrown away", "CONFIG is forbidden, so what a crash .* can lose could not be checked"],
        ),
    ]:
        findings = judge(Facts(info, None if config is None else SAFE | config))
        assert all(finding.mend for finding in findings if finding.is_bad), case
        found = cautions_of(findings)
        assert len(found) == len(said), case
        for caution, pattern in zip(found, said, strict=True):
            assert re.search(pattern, caution), caution


def test_how_bad_it_is() -> None:
    for info, config, check, level in [
        ({"maxmemory": "9", "maxmemory_policy": "allkeys-lru"}, {}, "redis.eviction", Level.PROBLEM),
        ({"maxmemory": "9", "maxmemory_policy": "volatile-lru"}, {}, "redis.eviction", Level.PROBLEM),
        ({"maxmemory": "9", "maxmemory_policy": "noeviction"}, {}, "redis.eviction", Level.OK),
        ({}, {"appendonly": "no"}, "redis.persistence", Level.PROBLEM),
        ({}, {"appendonly": "no", "save": "60 1"}, "redis.persistence", Level.PROBLEM),
        ({}, {"appendfsync": "everysec"}, "redis.persistence", Level.WARNING),
        ({}, {"appendfsync": "no"}, "redis.persistence", Level.PROBLEM),
        ({}, {}, "redis.persistence", Level.OK),
        ({"connected_slaves": "1"}, {}, "redis.replication", Level.PROBLEM),
        ({"connected_slaves": "1"}, {"min-replicas-to-write": "1"}, "redis.replication", Level.OK),
    ]:
        assert [finding.level for finding in judge(Facts(info, SAFE | config)) if finding.check == check] == [level], (
            info,
            config,
        )


# --- on real servers ---------------------------------------------------------------------------------------


@pytest.fixture
def link_to(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Starts a server with this configuration, and links to it."""
    opened: list[tuple[RedisServer, Link]] = []

    def start(config: dict[str, str] | None = None, **fields: Any) -> Link:
        server = RedisServer(tmp_path_factory.mktemp("redis"), config=config)
        opened.append((server, ServerLink(Endpoint(server.host, server.port, **fields))))
        return opened[-1][1]

    yield start
    for server, link in opened:
        link.close()
        server.close()


def test_a_durable_server_gives_no_caution_and_a_line_a_check_in_one_round_trip(link_to: Any) -> None:
    link = link_to(DURABLE)
    before = _reads(link)
    found: list[Finding] = diagnose(link)
    assert _reads(link) - before == 2  # the survey, and this question
    assert cautions_of(found) == []
    assert {finding.check: finding.level for finding in found} == {
        "redis.eviction": Level.OK,
        "redis.persistence": Level.OK,
    }


def test_a_forgetful_server_is_named_and_its_settings_too(link_to: Any) -> None:
    link = link_to({"maxmemory": "100mb", "maxmemory-policy": "allkeys-lru"})
    thrown, lost = cautions_of(diagnose(link))
    assert thrown.startswith(f"{link.title}: maxmemory-policy allkeys-lru: ")
    assert lost.startswith(f"{link.title}: appendonly no, and no save: ")


def test_the_defaults_of_redis_save_now_and_then(link_to: Any) -> None:
    [caution] = cautions_of(diagnose(link_to({"save": "3600 1 300 100 60 10000"})))
    assert "appendonly no, save 3600 1 300 100 60 10000: a crash" in caution


def test_a_master_with_a_replica_that_it_does_not_wait_for_is_told_and_the_replica_too(
    link_to: Any, tmp_path_factory: Any
) -> None:
    link = link_to(DURABLE)
    config = DURABLE | {"replicaof": f"{link.place.host} {link.place.port}"}
    with RedisServer(tmp_path_factory.mktemp("replica"), config=config) as replica:
        wait_until(lambda: b"connected_slaves:1" in link.call("INFO", "replication"), what="the replica is there")
        [caution] = cautions_of(diagnose(link))
        assert "1 replica, min-replicas-to-write 0: a failover loses" in caution
        link.call("CONFIG", "SET", "min-replicas-to-write", 1)
        assert cautions_of(diagnose(link)) == []
        there = ServerLink(Endpoint(replica.host, replica.port))
        [caution] = cautions_of(diagnose(there))
        there.close()
    assert "the server is a replica: nothing can be enqueued or fetched" in caution


def test_config_and_info_may_be_forbidden(link_to: Any) -> None:
    link = link_to(DURABLE)
    link.call("ACL", "SETUSER", "default", "-config")
    [caution] = cautions_of(diagnose(link))
    assert "CONFIG is forbidden, so what a crash of the server can lose could not be checked" in caution
    link.call("ACL", "SETUSER", "default", "+config", "-info")
    assert {finding.check: finding.level for finding in diagnose(link)} == {
        "redis.eviction": Level.NOTE,
        "redis.persistence": Level.OK,
    }


def test_a_user_who_may_not_write_or_wait_and_a_full_server_take_no_writes(link_to: Any) -> None:
    link = link_to(DURABLE)
    [well] = try_to_write(link, "jobpool")
    assert well.level is Level.OK
    assert link.call("DBSIZE") == 0, "nothing is left behind"
    for right in ("@write", "blpop"):
        link.call("ACL", "SETUSER", "few", "reset", "on", ">secret", "~*", "+@all", f"-{right}")
        there = ServerLink(replace(link.place, username="few", password="secret"))
        [lacking] = try_to_write(there, "jobpool")
        there.close()
        assert lacking.level is Level.PROBLEM, right
        assert lacking.mend.startswith("grant it the commands and the keys ("), right
    link.call("CONFIG", "SET", "maxmemory", 1)
    [full] = try_to_write(link, "jobpool")
    assert full.mend.startswith("raise maxmemory")
    assert full.mend.endswith("what is not needed")
    assert (lacking.why, full.why) == ("nothing can be enqueued or fetched", "nothing can be enqueued")


def test_a_server_that_is_nearly_full(link_to: Any) -> None:
    link = link_to(DURABLE | {"maxmemory": "100mb", "maxmemory-policy": "noeviction"})
    assert cautions_of(diagnose(link)) == []
    used = next(line for line in link.call("INFO", "memory").decode().splitlines() if line.startswith("used_memory:"))
    link.call("CONFIG", "SET", "maxmemory", int(used.partition(":")[2]) + 50_000)
    [caution] = cautions_of(diagnose(link))
    assert "1 MiB (maxmemory) are used: a full server refuses" in caution


def test_the_clock_of_a_server(link_to: Any, tmp_path_factory: Any) -> None:
    assert abs(server_time(link_to()) - time.time()) < 5.0
    with RedisServer(tmp_path_factory.mktemp("turned"), turned=True) as turned:
        link = ServerLink(Endpoint(turned.host, turned.port))
        turned.turn_to(1_900_000_000.25)
        assert server_time(link) == pytest.approx(1_900_000_000.25, abs=0.01)
        link.close()


def _reads(link: Link) -> int:
    stats = link.call("INFO", "stats").decode().splitlines()
    return next(int(line.split(":")[1]) for line in stats if line.startswith("total_reads_processed"))


def test_a_server_that_is_too_old_is_refused(link_to: Any) -> None:
    check_version(link_to())
    for version in ("6.2.0", "7.0.15", "8.2.1", "10.0.0", "255.255.255", ""):
        require_version("Redis at here", {"redis_version": version})
    for version in ("6.0.16", "5.0.14", "2.8"):
        text = rf"Redis at here is version {version}, and jobpool needs Redis 6.2 or later: upgrade it"
        with row(version), pytest.raises(ConfigurationError, match=text):
            require_version("Redis at here", {"redis_version": version})


def test_a_sentinel_is_not_a_server() -> None:
    with pytest.raises(ConfigurationError, match=r"Redis at here is a sentinel: write redis\+sentinel://"):
        require_version("Redis at here", {"redis_version": "7.0.15", "redis_mode": "sentinel"})
