"""What each broker lacks, written down: a capability is gained or given up on purpose, and never by the way."""

from __future__ import annotations

from dataclasses import fields

import pytest
from support.harness import HARNESSES

from jobpool.broker.backend import QueueBackend
from jobpool.broker.values import Capabilities
from jobpool_backends.beanstalk import BeanstalkBackend
from jobpool_backends.memory import MemoryBackend
from jobpool_backends.postgres import PostgresBackend
from jobpool_backends.redis import RedisBackend, RedisClusterBackend
from jobpool_backends.servicebus import ServiceBusBackend
from jobpool_backends.sqlite import SqliteBackend
from jobpool_backends.sync import SyncBackend

TRANSACTIONS = {"enqueue_in_transaction", "ack_in_transaction"}
STORES = {"key_store", "claims"}
REPEATS = {"atomic_nack", "idempotent_settle", "idempotent_fetch"}
TOGETHER = {"atomic_follow_ups", "atomic_across_queues", "atomic_enqueue"}
KNOWING = {"known_ids", "keeps_place", "deletes_live", "dead_caps"}
OWNING = {"chosen_ttl", "settle_anywhere", "exact_refusals"}
KEEPING = {"leases", "forfeit", "exact_crashes", "priorities", "atomic_follow_ups"}
COUNTING = {"exact_crashes", "exact_stats", "lists_queues", "makes_queues"}

COPYING = TRANSACTIONS | STORES | REPEATS | TOGETHER | KNOWING | OWNING
"""What brokers lack that know a message by a number of theirs, and lock it for one connection."""

LACKS: dict[type[QueueBackend], set[str]] = {
    MemoryBackend: TRANSACTIONS,
    SqliteBackend: set(),
    PostgresBackend: set(),
    RedisBackend: TRANSACTIONS,
    RedisClusterBackend: TRANSACTIONS | {"atomic_follow_ups", "atomic_across_queues"},
    SyncBackend: TRANSACTIONS | STORES | REPEATS | KEEPING,
    BeanstalkBackend: COPYING | {"lists_live", "lasting_leases"},
    ServiceBusBackend: COPYING | COUNTING | {"priorities"},
}
DELAYS = {BeanstalkBackend: 1.0, ServiceBusBackend: 0.001}
"""Seconds to which delays are rounded up; a microsecond elsewhere."""

each_broker = pytest.mark.parametrize("broker", LACKS, ids=lambda broker: broker.scheme)


@each_broker
def test_a_broker_lacks_what_is_written_down(broker: type[QueueBackend]) -> None:
    can = broker.capabilities
    missing = {field.name for field in fields(Capabilities) if getattr(can, field.name) is False}
    assert missing - {"native_reap"} == LACKS[broker]
    assert can.native_reap is (broker in DELAYS), "who frees expired leases itself is a difference, not a lack"
    assert can.delay_resolution == DELAYS.get(broker, 1e-6)


@each_broker
def test_what_is_lacking_goes_together(broker: type[QueueBackend]) -> None:
    can = broker.capabilities
    assert can.known_ids or not can.atomic_across_queues, "an id that is not known is not known in all queues"
    assert can.key_store or not can.claims, "claims are kept beside keys"
    assert can.lists_live or not can.deletes_live, "what is not found is not deleted by a filter"
    assert can.settle_anywhere or not can.idempotent_settle, "a repeat may come from another client"
    assert can.atomic_nack or not can.idempotent_settle or not can.leases
    assert can.lasting_leases or not can.settle_anywhere, "a lease of a connection is that client's"


def test_every_broker_is_in_the_contract_suite_with_its_own_capabilities() -> None:
    tested = [kind.capabilities for kind in HARNESSES.values()]
    assert sorted(map(repr, tested)) == sorted(repr(broker.capabilities) for broker in LACKS)
