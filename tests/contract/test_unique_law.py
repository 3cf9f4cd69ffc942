"""Unique enqueue: one message for a key of a queue, live, dead, or done not too long ago."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.claims import found
from support.harness import Harness
from support.jobs import QUEUE, a_job, at
from support.looks import a_lease, picture

from jobpool.broker.backend import QueueBackend
from jobpool.broker.values import MessageFilter, ReapPolicy, State, Verb
from jobpool.errors import InvalidJob
from jobpool.message.definition import JobDefinition
from jobpool.message.guards import IDEMPOTENCY_TTL, Guards
from jobpool.message.settlement import Abandon, Ack, Forfeit, Move, Nack, Release, Settled, Settlement

pytestmark = pytest.mark.needs("leases", "key_store")


def unique(payload: object = None, key: str = "order-17", **fields: object) -> JobDefinition:
    return a_job(payload, unique=True, idempotency_key=key, **fields)


# --- at the enqueue ---------------------------------------------------------------------------------------


def test_a_duplicate_gets_the_id_of_the_first_and_changes_nothing(harness: Harness, backend: QueueBackend) -> None:
    first = backend.enqueue(unique("first"))
    harness.advance(1.0)
    before = picture(backend, QUEUE)
    assert harness.open().enqueue(unique("second", priority=0, scheduled_at=at(harness.now() + 9))) == first
    assert picture(backend, QUEUE) == before


def test_in_one_call_the_first_of_a_key_is_the_one(backend: QueueBackend) -> None:
    ids = backend.enqueue_many([unique(1), a_job(2), unique(3), unique(4, key="order-18"), unique(5), a_job(6)])
    assert ids[0] == ids[2] == ids[4]
    assert len(set(ids)) == 4
    assert [lease.envelope.payload for lease in backend.fetch_many(QUEUE, limit=9)] == [1, 2, 4, 6]


@pytest.mark.spans
def test_a_key_is_scoped_by_its_queue(backend: QueueBackend) -> None:
    here, there = backend.enqueue_many([unique(), unique(queue="mails")])
    assert here != there
    assert backend.enqueue_many([unique(queue="mails"), unique()]) == [there, here]


def test_a_job_that_is_not_unique_neither_has_the_key_nor_meets_it(backend: QueueBackend) -> None:
    plain = a_job(idempotency_key="order-17")
    ids = backend.enqueue_many([plain, unique(), plain, unique()])
    assert len(set(ids)) == 3
    assert ids[1] == ids[3]


@pytest.mark.spans
def test_an_id_of_the_producers_own_is_left_out_too(backend: QueueBackend) -> None:
    assert backend.enqueue(unique(identifier="first")) == "first"
    assert backend.enqueue(unique(identifier="second")) == "first"
    assert backend.inspect("second") is None
    assert backend.enqueue(unique(identifier="second", key="order-18")) == "second"


def test_a_known_id_is_its_own_answer_even_where_another_has_the_key(backend: QueueBackend) -> None:
    assert backend.enqueue_many([unique(identifier="first"), a_job(identifier="plain")]) == ["first", "plain"]
    before = picture(backend, QUEUE)
    assert backend.enqueue(unique(identifier="plain")) == "plain"
    assert backend.enqueue_many([unique(identifier="plain"), unique(identifier="new")]) == ["plain", "first"]
    assert backend.enqueue_many([unique(identifier="new"), unique(identifier="plain")]) == ["first", "plain"]
    assert picture(backend, QUEUE) == before
    assert backend.enqueue(unique(identifier="first")) == "first", "a retried call: its id is known, and so is its key"
    assert backend.enqueue(unique(identifier="first", key="order-18")) == "first", "and takes no other key"
    assert picture(backend, QUEUE) == before
    assert backend.enqueue(unique(identifier="second", key="order-18")) == "second"


@pytest.mark.parametrize("is_live", [True, False])
def test_a_known_id_is_its_own_answer_even_where_one_before_it_takes_the_key(
    backend: QueueBackend, is_live: bool
) -> None:
    backend.enqueue(a_job(identifier="known"))
    if not is_live:
        backend.bulk(MessageFilter(queue=QUEUE), Verb.DELETE)
    assert backend.enqueue_many([unique(identifier="new"), unique(identifier="known")]) == ["new", "known"]
    assert backend.enqueue(unique(identifier="other")) == "new"


def test_in_one_call_a_second_job_of_an_id_is_left_out_with_the_first(backend: QueueBackend) -> None:
    backend.enqueue(unique(identifier="first"))
    before = picture(backend, QUEUE)
    again = [unique(identifier="again"), a_job(identifier="again"), unique(identifier="again", key="order-18")]
    assert backend.enqueue_many(again) == ["first"] * 3
    assert picture(backend, QUEUE) == before


def test_a_batch_that_is_refused_takes_no_key(backend: QueueBackend) -> None:
    with pytest.raises(InvalidJob, match="1048576"):
        backend.enqueue_many([unique(1), a_job("x" * 1_048_577)])
    backend.enqueue(unique(2))
    assert a_lease(backend).envelope.payload == 2


@pytest.mark.spans
def test_follow_ups_may_be_unique(backend: QueueBackend) -> None:
    backend.enqueue_many([a_job(1), a_job(2)])
    one, two = backend.fetch_many(QUEUE, limit=2)
    mail = unique("mail", queue="mails")
    assert backend.settle_many([(one, Ack((mail,))), (two, Ack((mail, a_job("other", queue="mails"))))])
    assert [lease.envelope.payload for lease in backend.fetch_many("mails", limit=9)] == ["mail", "other"]


@pytest.mark.parametrize("key", ["Zürich №5", "a b:c%_*?[x]{y}\\'\"", "x" * 255])
def test_any_printable_key_will_do_and_is_trimmed(backend: QueueBackend, key: str) -> None:
    padded = f"  {key} " if len(key) < 99 else key  # it is trimmed
    assert backend.enqueue(unique(key=key)) == backend.enqueue(unique(key=padded))
    assert backend.stats(QUEUE).pending == 1


# --- while it lives ---------------------------------------------------------------------------------------

Enqueue = Callable[[QueueBackend, str], str]
each_way = pytest.mark.parametrize(
    "enqueue",
    [
        pytest.param(lambda backend, payload: backend.enqueue(unique(payload)), id="unique"),
        pytest.param(lambda backend, payload: backend.enqueue_once(a_job(payload), "nightly at two"), id="once"),
    ],
)
STAGES = [
    pytest.param(None, State.LEASED, id="leased"),
    pytest.param(Nack(60.0, "boom"), State.DELAYED, id="nacked"),
    pytest.param(Nack(), State.WAITING, id="nacked, at once"),
    pytest.param(Release(), State.WAITING, id="released"),
    pytest.param(Abandon("hopeless"), State.DEAD, id="dead"),
    pytest.param(Forfeit("SIGSEGV"), State.LEASED, id="forfeited"),
]


@pytest.mark.spans
@each_way
@pytest.mark.parametrize(("settlement", "state"), STAGES)
def test_it_is_known_wherever_it_is(
    harness: Harness, backend: QueueBackend, enqueue: Enqueue, settlement: Settlement | None, state: State
) -> None:
    first = enqueue(backend, "first")
    lease = a_lease(backend, ttl=100.0)
    if settlement is not None:
        backend.settle_many([(lease, settlement)])
    harness.advance(10.0)
    before = picture(backend, QUEUE)
    assert enqueue(backend, "second") == first
    assert picture(backend, QUEUE) == before
    message = found(backend, first)
    assert message.state is state


@pytest.mark.lacks("native_reap")
@each_way
@pytest.mark.parametrize("max_crashes", [0, 1])
def test_it_is_known_after_a_crash(harness: Harness, backend: QueueBackend, enqueue: Enqueue, max_crashes: int) -> None:
    first = enqueue(backend, "first")
    for _ in range(2):
        a_lease(backend, ttl=1.0)
        harness.expire_leases(1.0)
        backend.reap(QUEUE, ReapPolicy(max_crashes=max_crashes, back_off=0.0))
    assert enqueue(backend, "second") == first
    assert (backend.stats(QUEUE).pending, backend.stats(QUEUE).dead) == ((0, 1) if max_crashes else (1, 0))


@pytest.mark.parametrize("verb", [Verb.RETRY, Verb.RESUME])
def test_it_is_known_when_it_was_raised_from_the_dead(backend: QueueBackend, verb: Verb) -> None:
    first = backend.enqueue(unique())
    backend.abandon(a_lease(backend), "hopeless")
    assert backend.bulk(MessageFilter(queue=QUEUE), verb) == 1
    assert backend.enqueue(unique()) == first
    assert backend.ack(a_lease(backend))
    assert backend.enqueue(unique()) == first


def test_the_dead_are_known_for_ever(harness: Harness, backend: QueueBackend) -> None:
    first = backend.enqueue(unique())
    backend.abandon(a_lease(backend), "hopeless")
    harness.advance(3 * IDEMPOTENCY_TTL)
    assert backend.enqueue(unique()) == first


# --- after its end ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("guards", "keep"),
    [
        pytest.param(None, IDEMPOTENCY_TTL, id="without guards"),
        pytest.param(Guards(key="order-17", keep=10.0), 10.0, id="shorter"),
        pytest.param(Guards(key="order-17", keep=3 * IDEMPOTENCY_TTL), 3 * IDEMPOTENCY_TTL, id="longer"),
    ],
)
def test_after_the_ack_it_is_known_for_as_long_as_its_key_is_done(
    harness: Harness, backend: QueueBackend, guards: Guards | None, keep: float
) -> None:
    first = backend.enqueue(unique())
    lease = a_lease(backend)
    if guards is not None:
        assert backend.keys.begin_many([(lease, guards)])[0]
        lease = lease.guarded(guards)
    harness.advance(5.0)
    assert backend.ack(lease) is Settled.OK
    harness.advance(keep - harness.tick)
    assert backend.enqueue(unique()) == first
    assert backend.stats(QUEUE).pending == 0
    harness.advance(harness.tick)
    second = backend.enqueue(unique())
    assert second != first
    assert (backend.enqueue(unique()), backend.stats(QUEUE).pending) == (second, 1)


@pytest.mark.needs("idempotent_settle")
def test_a_repeated_ack_does_not_prolong_it(harness: Harness, backend: QueueBackend) -> None:
    first = backend.enqueue(unique())
    guards = Guards(key="order-17", keep=50.0)
    lease = a_lease(backend)
    assert backend.keys.begin_many([(lease, guards)])[0]
    assert backend.ack(lease.guarded(guards)) is Settled.OK
    harness.advance(40.0)
    assert backend.ack(lease.guarded(guards)) is Settled.ALREADY
    harness.advance(10.0)
    assert backend.enqueue(unique()) != first


def _delete_waiting(backend: QueueBackend) -> None:
    assert backend.bulk(MessageFilter(queue=QUEUE), Verb.DELETE) == 1


def _delete_dead(backend: QueueBackend) -> None:
    backend.abandon(a_lease(backend), "hopeless")
    _delete_waiting(backend)


def _move(backend: QueueBackend) -> None:
    assert backend.settle_many([(a_lease(backend), Move("mails"))]) == [Settled.OK]


@pytest.mark.spans
@pytest.mark.parametrize("end", [_delete_waiting, _delete_dead, _move])
def test_what_a_person_deletes_or_what_moves_away_gives_its_key_free_at_once(
    backend: QueueBackend, end: Callable[[QueueBackend], None]
) -> None:
    first = backend.enqueue(unique())
    end(backend)
    second = backend.enqueue(unique())
    assert second != first
    assert (backend.enqueue(unique()), backend.stats(QUEUE).waiting) == (second, 1)


@pytest.mark.spans
def test_what_moved_claims_no_key_there_and_its_end_does_not_touch_its_successor(
    harness: Harness, backend: QueueBackend
) -> None:
    first = backend.enqueue(unique())
    _move(backend)
    second = backend.enqueue(unique())
    [moved] = backend.fetch_many("mails", limit=1)
    assert backend.enqueue(unique(queue="mails")) not in (first, second)
    assert backend.ack(moved)
    assert backend.enqueue(unique()) == second
    harness.advance(IDEMPOTENCY_TTL)
    assert backend.enqueue(unique()) == second
