"""What a broker cannot do it refuses with a sentence, and nothing has happened then."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.harness import Harness
from support.jobs import QUEUE, a_job, new_lease, numbered

from jobpool.broker.backend import QueueBackend
from jobpool.broker.editing import read_changes
from jobpool.broker.values import MessageFilter, Verb
from jobpool.errors import ConfigurationError, Unsupported
from jobpool.message.settlement import Abandon, Move, Nack, Settled

pytestmark = pytest.mark.needs("leases")

MISSING = "no-such-queue"


@pytest.mark.lacks("dead_caps")
@pytest.mark.parametrize(("option", "value"), [("dead_max", 3), ("dead_max_age", 60.0), ("dead_max", "3")])
def test_caps_on_dead_letters_are_refused(harness: Harness, option: str, value: object) -> None:
    with pytest.raises(ConfigurationError, match=option):
        harness.connect(**{option: value})


@pytest.mark.lacks("edits")
def test_an_edit_of_what_waits_is_refused(backend: QueueBackend) -> None:
    backend.enqueue(a_job())
    for changes in ({"at": 0}, {"priority": 1}, {"queue": QUEUE}):
        with pytest.raises(Unsupported, match="changes no job that waits"):
            read_changes(backend, **changes)
    [lease] = backend.fetch_many(QUEUE, limit=1)
    assert backend.ack(lease)


CALLS = [
    pytest.param(lambda backend: backend.enqueue(a_job(queue=MISSING)), id="enqueue"),
    pytest.param(lambda backend: backend.fetch_many(MISSING, limit=1), id="fetch"),
    pytest.param(lambda backend: backend.wait_any([MISSING], 0.0), id="wait"),
    pytest.param(lambda backend: backend.stats(MISSING), id="stats"),
    pytest.param(lambda backend: backend.list_messages(MessageFilter(queue=MISSING)), id="list"),
    pytest.param(lambda backend: backend.bulk(MessageFilter(queue=MISSING), Verb.DELETE), id="purge"),
]


@pytest.mark.lacks("makes_queues")
@pytest.mark.parametrize("call", CALLS)
def test_a_queue_that_is_missing_is_named_with_the_mend(
    backend: QueueBackend, call: Callable[[QueueBackend], object]
) -> None:
    with pytest.raises(ConfigurationError, match=rf"(?s){MISSING}.*[Cc]reate|[Cc]reate.*{MISSING}"):
        call(backend)
    lease = new_lease(backend)
    assert backend.ack(lease) is Settled.OK


@pytest.mark.lacks("makes_queues")
def test_a_call_with_a_message_that_cannot_be_moved_settles_nothing_and_copies_nothing(backend: QueueBackend) -> None:
    backend.enqueue_many(numbered(2))
    failed, moving = backend.fetch_many(QUEUE, limit=2)
    with pytest.raises(ConfigurationError, match=MISSING):
        backend.settle_many([(failed, Nack(error="boom")), (moving, Move(MISSING))])
    assert (backend.stats(QUEUE).waiting, backend.stats(QUEUE).leased) == (0, 2)
    assert backend.settle_many([(failed, Nack(error="boom")), (moving, Abandon("failed"))]) == [Settled.OK] * 2
    assert (backend.stats(QUEUE).waiting, backend.stats(QUEUE).dead) == (1, 1)


@pytest.mark.lacks("lists_queues")
def test_the_queues_are_those_that_this_client_was_told_of(harness: Harness) -> None:
    one, other = harness.open(), harness.open()
    one.enqueue_many([a_job(queue="a"), a_job(queue="b")])
    assert one.queues() == ["a", "b"]
    assert other.queues() == []
    assert other.stats("b").waiting == 1
    assert other.queues() == ["b"]


@pytest.mark.lacks("exact_stats")
def test_a_client_counts_its_own_leases_and_all_that_is_there(harness: Harness) -> None:
    one, other = harness.open(), harness.open()
    one.enqueue_many([a_job(), a_job()])
    [lease] = one.fetch_many(QUEUE, limit=1)
    mine, theirs = one.stats(QUEUE), other.stats(QUEUE)
    assert (mine.waiting, mine.leased) == (1, 1)
    assert (theirs.waiting, theirs.leased) == (2, 0)
    one.ack(lease)
    assert one.stats(QUEUE).pending == other.stats(QUEUE).pending == 1


@pytest.mark.lacks("key_store")
def test_what_needs_a_key_store_is_refused(backend: QueueBackend) -> None:
    for ask in (lambda: backend.keys, lambda: backend.claims):
        with pytest.raises(Unsupported, match=r"Capabilities\.key_store"):
            ask()
    keyed = a_job(2, unique=True, idempotency_key="k")
    for refused in (keyed, a_job(then=(a_job(), keyed))):
        with pytest.raises(Unsupported, match="key_store"):
            backend.enqueue_many([a_job(1), refused])
    assert backend.stats(QUEUE).pending == 0


@pytest.mark.lacks("enqueue_in_transaction")
def test_a_transaction_of_the_caller_s_is_refused(backend: QueueBackend) -> None:
    with pytest.raises(Unsupported, match="transaction of yours"):
        backend.enqueue_in(object(), [a_job()])
    assert backend.stats(QUEUE).pending == 0


@pytest.mark.lacks("ack_in_transaction")
def test_an_ack_in_a_transaction_of_the_handler_s_is_refused(backend: QueueBackend) -> None:
    lease = new_lease(backend)
    with pytest.raises(Unsupported, match="transaction of yours"):
        backend.ticket(lease)
    assert backend.ack(lease) is Settled.OK
