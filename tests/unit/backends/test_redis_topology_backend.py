"""The backend with several servers: follow-ups between the nodes of a cluster, and servers that come and go."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.claims import found
from support.jobs import a_job, numbered
from support.servers import RedisCluster, fresh_name
from support.servers.redis_cluster import ClusterNode
from support.servers.redis_sentinel import SentinelGroup
from support.waiting import patiently, wait_until

from jobpool.broker.backend import QueueBackend
from jobpool.broker.finding import cautions_of
from jobpool.broker.opening import open_backend
from jobpool.broker.packing import brought_by
from jobpool.errors import BackendUnavailable
from jobpool.message.guards import Guards, Hold
from jobpool.message.lease import JobLease
from jobpool.message.settlement import Ack, Move, Settled, Settlement
from jobpool_backends.redis.cluster_connections import slot_of
from jobpool_backends.redis.keyspace import KeyNames
from jobpool_backends.redis.records import write_entry


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisCluster]:
    """Three nodes that keep what they have."""
    config = {"appendonly": "yes", "appendfsync": "always", "cluster-require-full-coverage": "no"}
    with RedisCluster(tmp_path_factory.mktemp("cluster"), config=config) as cluster:
        yield cluster


class Nodes:
    """A cluster with a queue on each node, and a prefix for the keys of a test."""

    def __init__(self, cluster: RedisCluster, stack: ExitStack) -> None:
        self.cluster, self._stack, self._prefix = cluster, stack, fresh_name()
        self.keys = KeyNames(self._prefix, spread=True)
        fresh = iter(partial(fresh_name, "q"), None)
        self.queues = [next(name for name in fresh if self.of(name) is node) for node in cluster.masters]

    def open(self, **options: Any) -> QueueBackend:
        """A backend; closed at the end."""
        return self._stack.enter_context(closing(open_backend(self.cluster.url, prefix=self._prefix, **options)))

    def of(self, queue: str) -> ClusterNode:
        return self.cluster.holder(slot_of(queue))

    def relay(self, backend: QueueBackend, queue: str, entry: bytes) -> None:
        """Put an entry into the outbox of the queue, as if it had not been brought yet, and have it brought."""
        self.of(queue).ask("RPUSH", self.keys.one(queue, "outbox"), entry)
        backend.reap(queue)


@pytest.fixture
def nodes(cluster: RedisCluster, stack: ExitStack) -> Nodes:
    return Nodes(cluster, stack)


@contextmanager
def down(node: ClusterNode) -> Iterator[ClusterNode]:
    """It is killed meanwhile."""
    node.kill()
    try:
        yield node
    finally:
        node.start()
        wait_until(lambda: node.is_ready(3), what="the node is back")


def take(backend: QueueBackend, queue: str, limit: int = 1) -> list[JobLease]:
    return backend.fetch_many(queue, limit=limit, ttl=30.0)


def waiting(backend: QueueBackend, queues: Sequence[str]) -> list[int]:
    return [backend.stats(queue).waiting for queue in queues]


def test_follow_ups_for_a_node_that_is_down_arrive_when_it_is_back(nodes: Nodes) -> None:
    """The ack is done at once; the follow-up stands in the outbox, and the next reap brings it, whoever does it."""
    queues = nodes.queues
    first, second = nodes.open(timeout=0.5, connect_timeout=0.5), nodes.open()
    first.enqueue(a_job(queue=queues[0]))
    [lease] = take(first, queues[0])
    with down(nodes.of(queues[1])):
        assert first.settle_many([(lease, Ack((a_job(queue=queues[1]), a_job(queue=queues[2]))))]) == [Settled.OK]
        assert first.reap(queues[0]) == []
        assert second.stats(queues[0]).pending == 0
    first.close()
    assert patiently(partial(second.reap, queues[0])) == []
    assert waiting(second, queues[1:]) == [1, 1]


def test_a_node_that_is_down_with_the_list_of_queues_holds_up_no_other(nodes: Nodes) -> None:
    queues = nodes.queues
    producer, pool = nodes.open(timeout=0.5, connect_timeout=0.5), nodes.open()
    node = nodes.of(nodes.keys.queues)
    first, second = (queue for queue in queues if nodes.of(queue) is not node)
    with down(node):
        producer.enqueue(a_job(queue=first))
        [lease] = take(nodes.open(timeout=0.5, connect_timeout=0.5), first)
        producer.ping()
        assert any(
            f":{node.port}: no answer: its queues stand still" in caution
            for caution in cautions_of(producer.diagnose())
        )
        assert producer.settle_many([(lease, Ack((a_job(queue=second),)))]) == [Settled.OK]
        assert waiting(producer, [second]) == [1]
    assert patiently(pool.queues) == []
    pool.reap(second)
    assert pool.queues() == [second]


def test_an_entry_that_is_relayed_twice_is_added_once(nodes: Nodes) -> None:
    """As when a relay dies between the two steps: even if the message has run and ended meanwhile."""
    queues = nodes.queues
    backend = nodes.open()
    entry = write_entry(backend.pack(a_job("follow-up", queue=queues[1])))
    for _ in range(2):
        nodes.relay(backend, queues[0], entry)
        backend.reap(queues[0])
    [lease] = take(backend, queues[1], 9)
    assert backend.ack(lease) is Settled.OK
    nodes.relay(backend, queues[0], entry)
    assert backend.stats(queues[1]).pending == 0


def test_a_message_that_moves_and_is_relayed_twice_is_there_once(nodes: Nodes) -> None:
    queues = nodes.queues
    backend = nodes.open()
    ident = backend.enqueue(a_job("moves", queue=queues[0]))
    [lease] = take(backend, queues[0])
    move = Move(queues[1], crashes=1, error="boom")
    [entry] = map(write_entry, brought_by(backend, lease, move))
    assert backend.settle_many([(lease, move)]) == [Settled.OK]
    message = found(backend, ident)
    assert (message.queue, message.crashes, message.last_error) == (queues[1], 1, "boom")
    nodes.relay(backend, queues[0], entry)
    [there] = take(backend, queues[1], 9)
    assert (there.id, there.deliveries, there.envelope.payload) == (ident, 2, "moves")
    assert backend.ack(there) is Settled.OK
    nodes.relay(backend, queues[0], entry)
    assert waiting(backend, queues) == [0, 0, 0]


def test_a_long_outbox_is_relayed_in_order_and_in_pieces(nodes: Nodes) -> None:
    queues = nodes.queues
    backend = nodes.open()
    backend.enqueue(a_job(queue=queues[0]))
    [lease] = take(backend, queues[0])
    small = [a_job(number, queue=queues[1]) for number in range(250)]
    large = [a_job("x" * 900_000 + str(number), queue=queues[2]) for number in range(12)]
    backend.settle_many([(lease, Ack((*small, *large)))])
    assert [got.envelope.payload for got in take(backend, queues[1], 300)] == list(range(250))
    assert backend.stats(queues[2]).waiting == 12


def test_many_acks_and_many_relays_at_once_bring_each_follow_up_once(nodes: Nodes) -> None:
    queues = nodes.queues
    backends = [nodes.open() for _ in range(4)]
    backends[0].enqueue_many(numbered(200, queue=queues[0]))
    halt = threading.Event()

    def consume(backend: QueueBackend) -> None:
        while leases := take(backend, queues[0], 5):
            backend.settle_many([(lease, Ack((a_job(lease.envelope.payload, queue=queues[1]),))) for lease in leases])

    def reap(backend: QueueBackend) -> None:
        while not halt.is_set():
            backend.reap(queues[0])

    with ThreadPoolExecutor(6) as executor:
        reapers = [executor.submit(reap, backend) for backend in backends[:2]]
        try:
            for consumer in [executor.submit(consume, backend) for backend in backends]:
                consumer.result(30.0)
        finally:
            halt.set()
        for reaper in reapers:
            reaper.result(5.0)
    backends[0].reap(queues[0])
    payloads = [lease.envelope.payload for lease in take(backends[0], queues[1], 500)]
    assert sorted(payloads) == list(range(200))


def test_a_call_that_spans_nodes_is_repeated_without_harm(nodes: Nodes) -> None:
    queues = nodes.queues
    backend = nodes.open(timeout=0.5, connect_timeout=0.5)
    jobs = [a_job(number, queue=queue, identifier=f"{queue}-{number}") for number in range(5) for queue in queues]
    node = nodes.of(queues[1])
    with down(node), pytest.raises(BackendUnavailable, match=f"127.0.0.1:{node.port} refuses connections"):
        backend.enqueue_many(jobs)
    assert patiently(partial(backend.enqueue_many, jobs)) == [job.identifier for job in jobs]
    assert waiting(backend, queues) == [5, 5, 5]
    settlements = [(lease, Ack()) for queue in queues for lease in take(backend, queue, 9)]
    with down(node), pytest.raises(BackendUnavailable, match=f"127.0.0.1:{node.port} refuses connections"):
        backend.settle_many(settlements, "call")
    answers = patiently(partial(backend.settle_many, settlements, "call"))
    assert Counter(answers) == {Settled.ALREADY: 5, Settled.OK: 10}
    assert [backend.stats(queue).pending for queue in queues] == [0, 0, 0]


def play_while_it_moves(
    cluster: RedisCluster, queue: str, enqueue: Callable[[int], list[str]], consume: Callable[[], Iterable[str]]
) -> list[str]:
    """Enqueue and consume while the slot of the queue is on the move all the time; what was enqueued is acked once."""
    slot, halt, acked = slot_of(queue), threading.Event(), Counter[str]()

    def consume_all() -> None:
        while not halt.is_set():
            acked.update(consume())

    with ThreadPoolExecutor(1) as executor:
        consuming = executor.submit(consume_all)
        idents: list[str] = []
        try:
            for turn in range(10):
                idents += enqueue(turn)
                cluster.move(slot, cluster.masters[turn % 2], cluster.masters[(turn + 1) % 2])
            wait_until(lambda: consuming.done() or len(acked) == len(idents), 30.0, "all are acked")
        finally:
            halt.set()
        consuming.result(10.0)
    assert acked == Counter(idents)
    return idents


def settle_patiently(backend: QueueBackend, settlements: list[tuple[JobLease, Settlement]]) -> list[str]:
    """The ids of those that were accepted."""
    answers = patiently(partial(backend.settle_many, settlements, fresh_name()))
    return [lease.id for (lease, _), answer in zip(settlements, answers, strict=True) if answer]


def test_guarded_and_unique_jobs_go_on_while_their_queue_moves(nodes: Nodes) -> None:
    """Nothing of a key is done by half: each runs once, and is known and done when all have come to rest."""
    queues = nodes.queues
    queue, producer, consumer = queues[0], nodes.open(), nodes.open()

    def consume() -> list[str]:
        leases = patiently(partial(consumer.fetch_many, queue, limit=5, fetch_id=fresh_name()))
        asked = [(lease, Guards(key=lease.envelope.idempotency_key, holds=(Hold("queue", 9),))) for lease in leases]
        assert all(patiently(partial(consumer.keys.begin_many, asked)))
        return settle_patiently(consumer, [(lease.guarded(guards), Ack()) for lease, guards in asked])

    def enqueue(turn: int) -> list[str]:
        keys = [f"{turn}-{number}" for number in range(10)]
        jobs = [a_job(queue=queue, unique=True, idempotency_key=key) for key in keys]
        return patiently(partial(producer.enqueue_many, jobs))

    idents = play_while_it_moves(nodes.cluster, queue, enqueue, consume)
    assert [ident for turn in range(10) for ident in enqueue(turn)] == idents
    assert patiently(partial(producer.stats, queue)).pending == 0
    assert not any(patiently(partial(producer.keys.first_run, queue, f"{turn}-0")) for turn in range(10))


def test_what_a_slot_on_its_way_refuses_is_refused_before_anything_is_done(nodes: Nodes) -> None:
    queues = nodes.queues
    queue, slot = queues[0], slot_of(queues[0])
    backend = nodes.open()
    backend.enqueue_many(numbered(2, queue=queue))
    lease, _ = take(backend, queue, 2)
    guards = Guards(key="order-17", holds=(Hold("job:nightly"),))
    nodes.cluster.start_move(slot, nodes.cluster.masters[0], nodes.cluster.masters[1])
    try:
        with pytest.raises(BackendUnavailable, match="is moving these keys to another node"):
            backend.keys.begin_many([(lease, guards)])
    finally:
        nodes.cluster.move(slot, nodes.cluster.masters[0], nodes.cluster.masters[1])
        nodes.cluster.move(slot, nodes.cluster.masters[1], nodes.cluster.masters[0])
    assert patiently(partial(backend.keys.holders, queue, "job:nightly")) == []
    assert patiently(partial(backend.keys.begin_many, [(lease, guards)]))[0]


def test_a_lease_outlives_the_failover_of_its_server(stack: ExitStack, tmp_path: Path) -> None:
    group = stack.enter_context(SentinelGroup(tmp_path, replicas=2, sentinels=3))
    opened = open_backend(group.url, prefix=fresh_name(), timeout=0.5, connect_timeout=0.5)
    backend: Any = stack.enter_context(closing(opened))
    backend.enqueue_many(numbered(10))
    held, after = take(backend, "reports", 4), a_job("after", identifier="after")
    wait_until(lambda: backend._link.call("WAIT", 2, 100) == 2, what="the replicas have it all")
    group.servers[0].kill()
    settlements = [(lease, Ack()) for lease in held]
    answers = patiently(partial(backend.settle_many, settlements, "call"))
    assert answers == [Settled.OK] * 4
    assert patiently(partial(backend.enqueue_many, [after])) == ["after"]
    rest = patiently(partial(backend.fetch_many, "reports", limit=20, fetch_id="rest"))
    assert [lease.envelope.payload for lease in rest] == [4, 5, 6, 7, 8, 9, "after"]
    assert group.master() is not group.servers[0]
