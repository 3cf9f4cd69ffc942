"""Behind sentinels: the master is found, and a failover is followed, on real servers."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

import pytest
import redis_rig
from support.servers import shared_redis
from support.servers.redis_sentinel import SentinelGroup
from support.stalls import Stopwatch
from support.waiting import patiently, wait_until

from jobpool.broker.finding import cautions_of
from jobpool.errors import BackendUnavailable, ConfigurationError, JobpoolError
from jobpool_backends.redis.checks import diagnose
from jobpool_backends.redis.connections import Link, Script

PASSWORD = "hidden-from-all"
ADD = Script("return redis.call('INCRBY', KEYS[1], ARGV[1])")

Group = Callable[..., SentinelGroup]
linked = partial(redis_rig.linked, timeout=0.5, connect_timeout=0.5)


@pytest.fixture
def start(stack: ExitStack, tmp_path_factory: pytest.TempPathFactory) -> Group:
    """Starts groups of servers and sentinels."""
    return lambda **options: stack.enter_context(SentinelGroup(tmp_path_factory.mktemp("group"), **options))


def told(kind: type[JobpoolError], pattern: str, url: str, **options: Any) -> None:
    """A first call to `url` raises this; no password is in it."""
    with linked(url, **options) as link, pytest.raises(kind, match=pattern) as caught:
        link.call("PING")
    assert PASSWORD not in str(caught.value)


def port_of(link: Link) -> int:
    """Of the server that answers."""
    return int(link.call("CONFIG", "GET", "port")[1])


def add_until_accepted(link: Link) -> bool:
    """Call again and again, as a pool does, until a write is taken."""
    return bool(patiently(lambda: link.run(ADD, ["key"], [1])))


def test_the_master_is_found_and_cautions_tell_of_its_replica(start: Group) -> None:
    group = start()
    with linked(group.url) as link:
        assert port_of(link) == group.servers[0].port
        assert link.call("ROLE")[0] == b"master"
        assert link.title.startswith("Redis master reports (sentinels 127.0.0.1:")
        assert "1 replica, min-replicas-to-write 0: a failover loses" in " ".join(cautions_of(diagnose(link)))


def test_passwords_of_servers_and_of_sentinels(start: Group) -> None:
    group = start(password=PASSWORD)
    with linked(group.url, password=PASSWORD, sentinel_password=PASSWORD) as link:
        assert link.run(ADD, ["key"], [1]) == 1
    other = "other than it should be"
    told(ConfigurationError, r"sentinel at .* wants a password, .* sentinel_password", group.url, password=PASSWORD)
    told(ConfigurationError, r"master reports at .* wants a password", group.url, sentinel_password=PASSWORD)
    told(ConfigurationError, r"master .* refuses this", group.url, sentinel_password=PASSWORD, password=other)
    told(ConfigurationError, r"sentinel .* refuses this", group.url, sentinel_password=other, password=PASSWORD)


@pytest.mark.parametrize("how", ["killed", "hung"])
def test_work_goes_on_with_the_new_master_when_the_old_one_is_gone(start: Group, how: str) -> None:
    group = start(replicas=2, sentinels=3)
    old = group.servers[0]
    with linked(group.url) as link:
        assert link.run(ADD, ["key"], [1]) == 1
        wait_until(lambda: link.call("WAIT", 2, 100) == 2, what="the replicas have it")
        old.kill() if how == "killed" else old.pause()
        add_until_accepted(link)
        assert port_of(link) == group.master().port != old.port
        assert link.call("GET", "key") == b"2"
        assert link.wait_pop(["bell"], 0.01) is None


def test_a_failover_with_both_alive_is_followed(start: Group) -> None:
    group = start()
    with linked(group.url) as link:
        add_until_accepted(link)
        link.wait_pop(["bell"], 0.01)
        group.fail_over()
        new = group.master().port
        wait_until(lambda: add_until_accepted(link) and port_of(link) == new, 30.0, "the new master is used")
        assert link.wait_pop(["bell"], 0.01) is None


def test_a_master_that_became_a_replica_behind_our_back_is_told_and_left(start: Group) -> None:
    """Its connections stay open, as when a person demotes it: READONLY is all that we see of it."""
    group = start()
    old, new = group.servers
    with linked(group.url) as link, linked(old.url) as to_old, linked(new.url) as to_new:
        link.run(ADD, ["key"], [1])
        for sentinel in group.sentinels:
            sentinel.pause()
        to_new.call("REPLICAOF", "NO", "ONE")
        to_old.call("REPLICAOF", new.host, new.port)
        with pytest.raises(BackendUnavailable, match=r"is a replica, which takes no writes: after a failover the next"):
            link.run(ADD, ["key"], [1])
        for sentinel in group.sentinels:
            sentinel.resume()
        add_until_accepted(link)


def test_a_dead_sentinel_is_passed_over(start: Group) -> None:
    group = start(sentinels=3)
    group.sentinels[0].kill()
    group.sentinels[1].pause()
    with linked(group.url, connect_timeout=0.6) as link:
        began = Stopwatch()
        link.run(ADD, ["key"], [1])
        assert began.seconds() < 0.6
        began = Stopwatch()
        with linked(group.servers[0].url) as other:
            other.call("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        link.run(ADD, ["key"], [1])
        assert began.seconds() < 0.2  # the one that answered last time is asked first


def test_whoever_does_not_answer_or_knows_nothing_is_named(start: Group) -> None:
    group = start(sentinels=2, replicas=0)
    unknown = group.url.replace("reports", "invoices")
    told(ConfigurationError, r"Redis sentinel at .* knows no service 'invoices': write the one of its", unknown)
    group.servers[0].kill()
    told(BackendUnavailable, r"Redis master reports at 127.0.0.1:\d+ refuses connections", group.url)
    group.close()
    both = r"no sentinel names the master of reports: Redis sentinel at .* refuses .*; Redis sentinel at .* refuses"
    told(BackendUnavailable, both, group.url)
    no_sentinel = f"redis+sentinel://127.0.0.1:{shared_redis().port}/reports"
    told(ConfigurationError, r"Redis sentinel at .* is not a sentinel: name the", no_sentinel)
