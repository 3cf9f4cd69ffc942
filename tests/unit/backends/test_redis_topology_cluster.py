"""A link to a real cluster of three nodes: routing, waiting in several slots, slots that move, nodes that die."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial

import pytest
from redis_rig import linked
from support.descriptors import open_descriptors
from support.servers import fresh_name, shared_redis
from support.servers.redis_cluster import ClusterNode, RedisCluster
from support.stalls import Stopwatch
from support.waiting import patiently, wait_until

from jobpool.broker.finding import cautions_of
from jobpool.errors import BackendUnavailable, ConfigurationError
from jobpool_backends.redis.checks import check_version, diagnose
from jobpool_backends.redis.cluster_connections import ClusterLink, read_slots, slot_of
from jobpool_backends.redis.connections import Link, Script

ADD = Script("return redis.call('INCRBY', KEYS[1], ARGV[1])")
PUT_TWO = Script("redis.call('SET', KEYS[1], 1) redis.call('SET', KEYS[2], 2) return 'put'")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisCluster]:
    with RedisCluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.fixture
def link(cluster: RedisCluster) -> Iterator[Link]:
    with linked(cluster.url) as link:
        yield link


def keys(cluster: RedisCluster, count: int = 3) -> list[str]:
    """Fresh keys, one on each node, over and over, all in different slots."""
    found: list[str] = []
    while len(found) < count:
        key = fresh_name("{k") + "}"
        if cluster.holder(slot_of(key)) is cluster.masters[len(found) % len(cluster.masters)]:
            found.append(key)
    return found


def test_slots_are_computed_as_redis_does(cluster: RedisCluster) -> None:
    for key in ("foo", "jobpool:{reports}:ready", "{}x", "{a}{b}", "\u20ac", "x{"):
        assert slot_of(key) == slot_of(key.encode()) == cluster.nodes[0].ask("CLUSTER", "KEYSLOT", key)


def test_a_node_that_does_not_know_its_own_address_is_the_one_that_was_asked() -> None:
    answer = [[0, 5460, [b"", 7000, b"id"]], [5461, 16000, [b"10.0.0.2", 7001, b"id"], [b"10.0.0.9", 7009, b"id"]]]
    owners = read_slots(answer, "10.0.0.1")
    assert owners[0] == owners[5460] == ("10.0.0.1", 7000)
    assert owners[5461] == owners[16000] == ("10.0.0.2", 7001)
    assert owners[16001] is None


def test_each_call_goes_to_the_node_that_holds_its_keys(cluster: RedisCluster, link: Link) -> None:
    assert isinstance(link, ClusterLink)
    for key in keys(cluster, 6):
        assert link.run(ADD, [key], [2]) == 2
        assert link.run(ADD, [key.encode()], [2]) == 4
        assert link.call("GET", key) == b"4"
        assert link.run(PUT_TWO, [key + "1", key + "2"], []) == b"put"


def test_many_commands_for_many_nodes(cluster: RedisCluster, link: Link) -> None:
    some = keys(cluster, 9)
    assert link.call_many([("SET", key, number) for number, key in enumerate(some)]) == [b"OK"] * 9
    assert link.call_many([("GET", key) for key in reversed(some)]) == [b"%d" % n for n in reversed(range(9))]
    with pytest.raises(BackendUnavailable, match="remove that key"):
        link.call_many([("GET", some[0]), ("LPUSH", some[1], 1), ("GET", some[2])])


def test_any_one_node_is_enough_to_find_the_others(cluster: RedisCluster) -> None:
    url = f"redis+cluster://127.0.0.1:1,{cluster.nodes[2].host}:{cluster.nodes[2].port}"
    with linked(url) as link:
        for key in keys(cluster):
            assert link.run(ADD, [key], [1]) == 1


def test_many_silent_nodes_do_not_hold_a_call_up_for_long() -> None:
    """Eight listeners that never answer; one is enough for a share, all of them for the time of one."""
    with ExitStack() as stack:
        silent = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(8)]
        hosts = ",".join(f"127.0.0.1:{listener.getsockname()[1]}" for listener in silent)
        link = stack.enter_context(linked(f"redis+cluster://{hosts}", connect_timeout=0.5))
        began = Stopwatch()
        with pytest.raises(BackendUnavailable, match=r"did not answer within 0.25 s"):
            link.ping()
        assert began.elapsed() >= 0.5
        assert began.seconds() < 1.5


def test_all_masters_are_surveyed(cluster: RedisCluster, link: Link) -> None:
    told = link.survey([("CONFIG", "GET", "port"), ("NOSUCH",)])
    assert [int(answers[0][1]) for _, answers in told] == sorted(node.port for node in cluster.masters)
    assert {str(answers[1]).partition(",")[0] for _, answers in told} == {"unknown command 'NOSUCH'"}
    check_version(link)
    [caution] = cautions_of(diagnose(link))  # all three the same, told once
    assert all(f"Redis Cluster node at 127.0.0.1:{node.port}" in caution for node in cluster.masters)


def blocked(cluster: RedisCluster) -> int:
    """How many clients wait, on all nodes."""
    return sum(node.ask("CLIENT", "LIST").count(b" flags=b ") for node in cluster.masters)


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_a_bell_of_any_slot_is_heard_at_once(cluster: RedisCluster, link: Link, count: int) -> None:
    some = keys(cluster, count)
    with ThreadPoolExecutor(1) as executor:
        for key in some:
            heard = executor.submit(link.wait_pop, some, 30.0)
            wait_until(lambda: blocked(cluster) == count, what="the waiter waits in all slots")
            link.call("RPUSH", key, 1)
            assert heard.result(10.0) == key
            assert blocked(cluster) == 0  # nothing is left behind that would take a bell which nobody hears


def test_bells_that_ring_at_once_are_all_told(cluster: RedisCluster, link: Link) -> None:
    some = keys(cluster, 6)
    for key in some:
        link.call("RPUSH", key, 1)
    assert {link.wait_pop(some, 30.0) for _ in some} == set(some)
    began = Stopwatch()
    assert link.wait_pop(some, 0.05) is None
    assert began.seconds() < 1.0


def test_several_queues_of_one_slot_share_a_connection(cluster: RedisCluster, link: Link) -> None:
    [key] = keys(cluster, 1)
    link.call("RPUSH", key + "2", 1)
    assert link.wait_pop([key + "1", key + "2"], 30.0) == key + "2"


def test_bells_and_waiters_without_end(cluster: RedisCluster, link: Link, threads: ThreadPoolExecutor) -> None:
    """Four threads wait for six bells that ring hundreds of times: all are taken, and none is heard twice."""
    some, halt, count = keys(cluster, 6), threading.Event(), 300

    def listen(_: int) -> int:
        heard = 0
        while not halt.is_set():
            heard += link.wait_pop(some, 0.2) is not None
        return heard

    with linked(cluster.url) as ringer:
        listeners = [threads.submit(listen, number) for number in range(4)]
        try:
            for number in range(count):
                ringer.call("RPUSH", some[number % len(some)], 1)
            lengths = [("LLEN", key) for key in some]
            wait_until(lambda: not any(ringer.call_many(lengths)), what="all bells are taken")
        finally:
            halt.set()
        heard = sum(listener.result(10.0) for listener in listeners)
    while link.wait_pop(some, 0.01) is not None:
        heard += 1
    assert count // 2 < heard <= count  # one bell that several heard while they were called off is told once


def test_closing_wakes_who_waits(cluster: RedisCluster, threads: ThreadPoolExecutor) -> None:
    with linked(cluster.url) as link:
        waits = [threads.submit(link.wait_pop, keys(cluster), 60.0) for _ in range(2)]
        wait_until(lambda: blocked(cluster) == 6, what="both wait")
        link.close()
        for wait in waits:
            with pytest.raises(BackendUnavailable, match="was closed here: open the backend again"):
                wait.result(10.0)
        with pytest.raises(BackendUnavailable, match="was closed here: open the backend again"):
            link.ping()
        link.close()


def test_connections_that_the_servers_closed_are_replaced(cluster: RedisCluster, link: Link) -> None:
    some = keys(cluster, 6)
    before = 0
    for turn in range(30):
        for key in some:
            link.run(ADD, [f"{key}n"], [1])
        link.call("RPUSH", some[turn % 6], 1)
        assert link.wait_pop(some, 30.0) == some[turn % 6]
        before = before or open_descriptors()
        for node in cluster.masters:
            node.ask("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    assert open_descriptors() <= before


def test_a_slot_that_was_moved_is_followed(cluster: RedisCluster, link: Link) -> None:
    [key] = keys(cluster, 1)
    slot, source, target = slot_of(key), cluster.masters[0], cluster.masters[1]
    assert link.run(ADD, [key], [1]) == 1
    try:
        cluster.move(slot, source, target)
        assert link.run(ADD, [key], [1]) == 2
        assert link.call("GET", key) == b"2"
        assert link.call_many([("GET", key)]) == [b"2"]
    finally:
        cluster.move(slot, target, source)
    assert link.call_many([("GET", key)]) == [b"2"]
    assert link.wait_pop([key + "bell"], 0.01) is None


def test_a_slot_on_its_way(cluster: RedisCluster, link: Link) -> None:
    """Each key is found where it is; a script whose keys are in both places has to wait until all have arrived."""
    [key] = keys(cluster, 1)
    slot, source, target = slot_of(key), cluster.masters[0], cluster.masters[1]
    link.run(PUT_TWO, [key + "1", key + "2"], [])
    cluster.start_move(slot, source, target)
    try:
        assert link.run(PUT_TWO, [key + "1", key + "2"], []) == b"put"
        assert cluster.move_keys(slot, source, target, most=1) == 1
        assert link.call_many([("GET", key + "1"), ("GET", key + "2")]) == [b"1", b"2"]
        assert link.run(ADD, [key + "new"], [1]) == 1
        with pytest.raises(BackendUnavailable, match=r"is moving these keys to another node: it answers when that is"):
            link.run(PUT_TWO, [key + "1", key + "2"], [])
        began = Stopwatch()
        assert link.wait_pop([key + "bell"], 0.1) is None
        assert began.seconds() < 1.0
        cluster.move_keys(slot, source, target)
        cluster.end_move(slot, target)
        assert link.run(PUT_TWO, [key + "1", key + "2"], []) == b"put"
    finally:
        cluster.move(slot, target, source)
    assert link.run(PUT_TWO, [key + "1", key + "2"], []) == b"put"


def test_a_slot_that_is_moved_while_somebody_waits(cluster: RedisCluster, link: Link) -> None:
    [key] = keys(cluster, 1)
    slot, source, target = slot_of(key), cluster.masters[0], cluster.masters[1]
    halt = threading.Event()

    def listen() -> int:
        turns = 0
        while not halt.is_set():
            turns += 1
            if link.wait_pop([key], 0.5) is not None:
                return turns
        return -1

    with linked(cluster.url) as other, ThreadPoolExecutor(1) as executor:
        heard = executor.submit(listen)
        wait_until(lambda: blocked(cluster) == 1, what="the waiter waits")
        try:
            cluster.move(slot, source, target)
            other.call("RPUSH", key, 1)
            assert 0 < heard.result(10.0) < 100
        finally:
            halt.set()
            cluster.move(slot, target, source)


def bells(keys: list[str]) -> list[str]:
    """Keys beside these, in the same slots."""
    return [f"{key}:bell" for key in keys]


@pytest.mark.parametrize("how", ["killed", "hung"])
def test_a_replica_takes_over_from_a_master_that_is_gone(tmp_path_factory: pytest.TempPathFactory, how: str) -> None:
    with (
        RedisCluster(tmp_path_factory.mktemp("cluster"), replicas=1) as cluster,
        linked(cluster.url, timeout=0.5, connect_timeout=0.5) as link,
    ):
        some = keys(cluster)
        lost = cluster.masters[0]
        for key in some:
            assert link.run(ADD, [key], [1]) == 1
        wait_until(lambda: cluster.replicas[0].ask("DBSIZE") == 1, what="the replica has it")
        lost.kill() if how == "killed" else lost.pause()
        with pytest.raises(BackendUnavailable, match=r"Redis Cluster node at 127.0.0.1:\d+ (refuses|did not answer)"):
            link.run(ADD, [some[0]], [1])

        for key in some:  # the others stop for a moment too, when they learn of it
            patiently(partial(link.run, ADD, [key], [1]))
            assert int(patiently(partial(link.call, "GET", key))) >= 2
        assert patiently(lambda: link.wait_pop(bells(some), 0.01)) is None


def test_a_node_that_comes_back(tmp_path_factory: pytest.TempPathFactory) -> None:
    config = {"appendonly": "yes", "appendfsync": "always", "cluster-require-full-coverage": "no"}
    with RedisCluster(tmp_path_factory.mktemp("cluster"), config=config) as cluster, linked(cluster.url) as link:
        some = keys(cluster)
        for key in some:
            assert link.run(ADD, [key], [1]) == 1
        link.wait_pop(bells(some), 0.01)
        lost = cluster.masters[1]
        lost.kill()
        text = f"Redis Cluster node at 127.0.0.1:{lost.port} refuses connections: nothing listens there"
        with pytest.raises(BackendUnavailable, match=text):
            link.run(ADD, [some[1]], [1])
        with pytest.raises(BackendUnavailable, match=text):
            link.wait_pop(bells(some), 1.0)
        assert link.run(ADD, [some[0]], [1]) == 2  # the others go on
        with linked(cluster.url) as another:
            another.ping()
        lost.start()
        wait_until(lambda: lost.is_ready(3), what="the node is back")
        assert link.run(ADD, [some[1]], [1]) == 2
        assert link.wait_pop(bells(some), 0.01) is None


def test_no_node_answers() -> None:
    text = r"no node of Redis Cluster \(127.0.0.1:1, 127.0.0.1:2\) answers: Redis Cluster node at 127.0.0.1:\d refuses"
    with linked("redis+cluster://127.0.0.1:1,127.0.0.1:2") as link:
        for call in (link.ping, lambda: link.wait_pop(["key"], 1.0), lambda: diagnose(link)):
            with pytest.raises(BackendUnavailable, match=text):
                call()


def test_a_server_that_is_in_no_cluster() -> None:
    url = f"redis+cluster://127.0.0.1:{shared_redis().port}"
    with (
        linked(url) as link,
        pytest.raises(ConfigurationError, match="is not a node of a cluster: write redis://"),
    ):
        link.ping()


def test_a_cluster_without_slots(tmp_path_factory: pytest.TempPathFactory) -> None:
    with (
        ClusterNode(tmp_path_factory.mktemp("node")) as node,
        linked(f"redis+cluster://{node.host}:{node.port}") as link,
        pytest.raises(BackendUnavailable, match="has no node for slot 12182: bring the missing ones back"),
    ):
        link.call("GET", "foo")
