"""What a server's settings can lose: each setting one sentence; and a server that is too old."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest
from redis_rig import Rig, Start, linked
from support.servers.redis_server import DURABLE
from support.tables import row
from support.waiting import wait_until

from jobpool.broker.finding import Finding, Level, cautions_of
from jobpool.errors import ConfigurationError
from jobpool_backends.redis.checks import (
    check_version,
    diagnose,
    judge,
    require_version,
    server_time,
    try_to_write,
)
from jobpool_backends.redis.connections import Link

SAFE = {"appendonly": "yes", "appendfsync": "always", "save": "", "min-replicas-to-write": "0"}

NOW_AND_THEN = {"appendonly": "no", "save": "3600 1 300 100"}
UNHEEDED = {"connected_slaves": "2", "redis_version": "6.2.14", "min-replicas-to-write": "1"}


def evicting(policy: str, used: int = 0, most: int = 1000) -> dict[str, str]:
    return {"maxmemory": str(most), "used_memory": str(used), "maxmemory_policy": policy}


ALL_OF_IT = {"connected_slaves": "2", "appendonly": "no", **evicting("allkeys-lru", most=9)}


def judged(info: dict[str, str], config: dict[str, str] | None) -> list[str]:
    """What is bad, and how bad; each has a mend."""
    bad = [finding for finding in judge(info, config) if finding.is_bad]
    assert all(finding.mend for finding in bad)
    return [f"{finding.level.name}: {finding}" for finding in bad]


LOSSES: list[tuple[Any, ...]] = [
    (evicting("allkeys-lru"), "PROBLEM: .*-policy allkeys-lru: .* messages are thrown away unseen; set noeviction"),
    (evicting("volatile-ttl"), "PROBLEM: .*-policy volatile-ttl: .* keys and results .* twice; set noeviction"),
    ({"appendonly": "no"}, "PROBLEM: appendonly no, and no save: .* loses every message; set appendonly yes"),
    (NOW_AND_THEN, "PROBLEM: appendonly no, save 3600 1 300 100: .* loses all that was done since it last saved"),
    ({"appendfsync": "everysec"}, "WARNING: appendfsync everysec: .* loses up to two seconds of what was answered"),
    ({"appendfsync": "no"}, "PROBLEM: appendfsync no: .* loses up to half a minute of what was answered"),
    ({"no-appendfsync-on-rewrite": "yes"}, "no-appendfsync-on-rewrite yes: .* loses what was answered meanwhile"),
    ({"connected_slaves": "1"}, "PROBLEM: 1 replica, min-replicas-to-write 0: .* had not reached the replica"),
    (UNHEEDED, "min-replicas-to-write is not heeded by scripts before Redis 7"),
    (evicting("noeviction", used=950), "a full server refuses enqueues, .*; raise maxmemory, or purge dead"),
    ({"role": "slave"}, "the server is a replica: nothing can be enqueued or fetched; name its master"),
    (ALL_OF_IT, "messages are thrown away", "loses every message", "2 replicas, min-replicas-to-write 0"),
]
"""Settings, and what is said of them."""


def test_what_the_settings_can_lose() -> None:
    for settings, *said in LOSSES:
        with row(settings):
            found = judged(settings, SAFE | settings)
            assert len(found) == len(said)
            for caution, pattern in zip(found, said, strict=True):
                assert re.search(pattern, caution), caution


def test_nothing_is_told_of_settings_that_lose_nothing() -> None:
    for check, settings in [
        ("persistence", {}),
        ("persistence", {"save": "3600 1"}),
        ("eviction", evicting("noeviction")),
        ("eviction", evicting("allkeys-lru", most=0)),
        ("memory", evicting("noeviction", used=800)),
        ("replication", {"connected_slaves": "2", "min-replicas-to-write": "1"}),
    ]:
        with row(settings):
            assert judged(settings, SAFE | settings) == []
            findings = judge(settings, SAFE | settings)
            assert [finding.level for finding in findings if finding.check == f"redis.{check}"] == [Level.OK]


def test_a_managed_service_may_forbid_config() -> None:
    thrown, unchecked = judged(evicting("allkeys-lru"), None)
    assert "messages are thrown away" in thrown
    assert re.search("CONFIG is forbidden, so what a crash .* can lose could not be checked", unchecked)


@pytest.fixture
def link_to(start: Start, stack: ExitStack) -> Callable[..., Any]:
    """Starts a server with this configuration, and links to it."""
    return lambda **config: stack.enter_context(linked(start(**config)))


def test_a_durable_server_gives_no_caution_and_a_line_a_check_in_one_round_trip(link_to: Any) -> None:
    link = link_to(**DURABLE)
    before = _reads(link)
    found: list[Finding] = diagnose(link)
    assert _reads(link) - before == 2  # the survey, and this question
    assert cautions_of(found) == []
    assert {finding.check: finding.level for finding in found} == {
        "redis.eviction": Level.OK,
        "redis.persistence": Level.OK,
    }


def test_a_forgetful_server_is_named_and_its_settings_too(link_to: Any) -> None:
    link = link_to(maxmemory="100mb", maxmemory_policy="allkeys-lru")
    thrown, lost = cautions_of(diagnose(link))
    assert thrown.startswith(f"{link.title}: maxmemory-policy allkeys-lru: ")
    assert lost.startswith(f"{link.title}: appendonly no, and no save: ")


def test_the_defaults_of_redis_save_now_and_then(link_to: Any) -> None:
    [caution] = cautions_of(diagnose(link_to(save="3600 1 300 100 60 10000")))
    assert "appendonly no, save 3600 1 300 100 60 10000: a crash" in caution


def test_a_master_with_a_replica_that_it_does_not_wait_for_is_told_and_the_replica_too(link_to: Any) -> None:
    link = link_to(**DURABLE)
    there = link_to(**DURABLE, replicaof=f"{link.place.host} {link.place.port}")
    wait_until(lambda: b"connected_slaves:1" in link.call("INFO", "replication"), what="the replica is there")
    [caution] = cautions_of(diagnose(link))
    assert "1 replica, min-replicas-to-write 0: a failover loses" in caution
    link.call("CONFIG", "SET", "min-replicas-to-write", 1)
    assert cautions_of(diagnose(link)) == []
    [caution] = cautions_of(diagnose(there))
    assert "the server is a replica: nothing can be enqueued or fetched" in caution


def test_config_and_info_may_be_forbidden(link_to: Any) -> None:
    link = link_to(**DURABLE)
    link.call("ACL", "SETUSER", "default", "-config")
    [caution] = cautions_of(diagnose(link))
    assert "CONFIG is forbidden, so what a crash of the server can lose could not be checked" in caution
    link.call("ACL", "SETUSER", "default", "+config", "-info")
    assert {finding.check: finding.level for finding in diagnose(link)} == {
        "redis.eviction": Level.NOTE,
        "redis.persistence": Level.OK,
    }


def test_a_user_who_may_not_write_or_wait_and_a_full_server_take_no_writes(link_to: Any) -> None:
    link = link_to(**DURABLE)
    [well] = try_to_write(link, "jobpool")
    assert well.level is Level.OK
    assert link.call("DBSIZE") == 0, "nothing is left behind"
    for right in ("@write", "blpop"):
        link.call("ACL", "SETUSER", "few", "reset", "on", ">secret", "~*", "+@all", f"-{right}")
        with linked(f"redis://few:secret@{link.place.host}:{link.place.port}") as there:
            [lacking] = try_to_write(there, "jobpool")
        assert lacking.level is Level.PROBLEM, right
        assert lacking.mend.startswith("grant it the commands and the keys ("), right
    link.call("CONFIG", "SET", "maxmemory", 1)
    [full] = try_to_write(link, "jobpool")
    assert full.mend.startswith("raise maxmemory")
    assert full.mend.endswith("what is not needed")
    assert (lacking.why, full.why) == ("nothing can be enqueued or fetched", "nothing can be enqueued")


def test_a_server_that_is_nearly_full(link_to: Any) -> None:
    link = link_to(**DURABLE, maxmemory="100mb", maxmemory_policy="noeviction")
    assert cautions_of(diagnose(link)) == []
    used = next(line for line in link.call("INFO", "memory").decode().splitlines() if line.startswith("used_memory:"))
    link.call("CONFIG", "SET", "maxmemory", int(used.partition(":")[2]) + 50_000)
    [caution] = cautions_of(diagnose(link))
    assert "1 MiB (maxmemory) are used: a full server refuses" in caution


def test_the_clock_of_a_server(link_to: Any, turned: Rig) -> None:
    assert abs(server_time(link_to()) - time.time()) < 5.0
    turned.server.turn_to(1_900_000_000.25)
    with linked(turned.server) as link:
        assert server_time(link) == pytest.approx(1_900_000_000.25, abs=0.01)


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
