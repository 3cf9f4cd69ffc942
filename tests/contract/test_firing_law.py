"""`enqueue_once`: of any number of callers with one key, now and later, one adds a message."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from support.harness import Harness
from support.harnesses.base import Opener
from support.jobs import QUEUE, a_job, at

from jobpool.broker.backend import QueueBackend
from jobpool.broker.values import ENQUEUE_MEMORY, MessageFilter, Verb, once_id
from jobpool.cron.records import load
from jobpool.cron.runner import CronRunner
from jobpool.cron.scheduler import Scheduler
from jobpool.errors import InvalidJob
from jobpool.handlers.registry import HandlerRegistry
from jobpool.message.context import JobContext
from jobpool.message.definition import JobDefinition
from jobpool.message.guards import IDEMPOTENCY_TTL, Guards
from jobpool.message.lease import JobLease
from jobpool.message.settlement import Move, Settled

pytestmark = pytest.mark.needs("leases")

KEY = "nightly at 2026-03-01T02:00:00Z"

KINDS = [
    pytest.param({}, id="plain"),
    pytest.param({"idempotency_key": "customer-7"}, id="with a key of its own", marks=pytest.mark.needs("key_store")),
    pytest.param(
        {"idempotency_key": "customer-7", "unique": True}, id="unique itself", marks=pytest.mark.needs("key_store")
    ),
    pytest.param({"identifier": "of-the-producer"}, id="with an id of its own"),
]


def a_lease(backend: QueueBackend, queue: str = QUEUE) -> JobLease:
    [lease] = backend.fetch_many(queue, limit=1, ttl=100.0)
    return lease


def fire(backend: QueueBackend, number: int) -> str:
    return backend.enqueue_once(a_job(number), KEY)


@pytest.mark.needs("known_ids")
@pytest.mark.parametrize("fields", KINDS)
def test_the_second_call_adds_nothing_and_has_the_same_answer(
    harness: Harness, backend: QueueBackend, fields: dict[str, object]
) -> None:
    first = backend.enqueue_once(a_job("first", **fields), KEY)
    assert first == once_id(KEY)
    assert harness.open().enqueue_once(a_job("second", **fields), KEY) == first
    assert [lease.envelope.payload for lease in backend.fetch_many(QUEUE, limit=9)] == ["first"]


@pytest.mark.lacks("known_ids")
def test_where_no_id_is_known_it_is_the_id_of_the_key_all_the_same(backend: QueueBackend) -> None:
    ident = backend.enqueue_once(a_job("first", identifier="of-the-producer"), KEY)
    assert ident == once_id(KEY)
    lease = a_lease(backend)
    assert (lease.id, lease.envelope.identifier, lease.envelope.payload) == (ident, ident, "first")
    assert backend.ack(lease) is Settled.OK


@pytest.mark.xdist_group("crowds")
@pytest.mark.needs("known_ids")
def test_of_a_crowd_one_adds_the_message(harness: Harness, opener: Opener, live: QueueBackend) -> None:
    ids = harness.crowd(opener, fire, 4)
    assert set(ids) == {once_id(KEY)}
    assert live.stats(QUEUE).pending == 1


def test_other_keys_are_other_messages(backend: QueueBackend) -> None:
    ids = {backend.enqueue_once(a_job(), key) for key in ("a", "b", "c" * 1000, "ü")}
    assert len(ids) == 4
    assert backend.stats(QUEUE).pending == 4


def test_a_delay_is_kept(harness: Harness, backend: QueueBackend) -> None:
    later = at(harness.now() + 60.0)
    ident = backend.enqueue_once(a_job("later", scheduled_at=later), KEY)
    if backend.capabilities.keeps_records:
        assert backend.enqueue_once(a_job("now"), KEY) == ident
    assert backend.fetch_many(QUEUE, limit=1) == []
    harness.advance(60.0)
    assert a_lease(backend).envelope.payload == "later"


def test_what_is_refused_uses_no_key_up(backend: QueueBackend) -> None:
    with pytest.raises(InvalidJob, match="1048576"):
        backend.enqueue_once(a_job("x" * 1_048_577), KEY)
    backend.enqueue_once(a_job("good"), KEY)
    assert a_lease(backend).envelope.payload == "good"


OWN = [
    pytest.param({}, None, id="plain"),
    pytest.param({"idempotency_key": "customer-7"}, Guards(key="customer-7"), id="with a key of its own"),
    pytest.param({"idempotency_key": "customer-7", "unique": True}, Guards(key="customer-7"), id="unique itself"),
]


@pytest.mark.needs("key_store")
@pytest.mark.parametrize(("fields", "guards"), OWN)
def test_it_is_known_for_a_day_after_its_ack(
    harness: Harness, backend: QueueBackend, fields: dict[str, object], guards: Guards | None
) -> None:
    definition = a_job(**fields)
    ident = backend.enqueue_once(definition, KEY)
    lease = a_lease(backend)
    if guards is not None:
        assert backend.keys.begin_many([(lease, guards)])[0]
        lease = lease.guarded(guards)
    harness.advance(5.0)
    assert backend.ack(lease) is Settled.OK
    harness.advance(IDEMPOTENCY_TTL - harness.tick)
    assert backend.enqueue_once(definition, KEY) == ident
    assert backend.stats(QUEUE).pending == 0
    harness.advance(harness.tick)
    assert backend.enqueue_once(definition, KEY) == ident
    assert backend.stats(QUEUE).pending == 1


def _delete(backend: QueueBackend) -> None:
    assert backend.bulk(MessageFilter(queue=QUEUE), Verb.DELETE) == 1


def _short_memory(backend: QueueBackend) -> None:
    lease = a_lease(backend)
    guards = Guards(key="customer-7", keep=1.0)
    assert backend.keys.begin_many([(lease, guards)])[0]
    assert backend.ack(lease.guarded(guards)) is Settled.OK


@pytest.mark.needs("key_store")
@pytest.mark.parametrize("end", [_delete, _short_memory])
def test_however_it_ended_it_is_known_for_a_while(harness: Harness, backend: QueueBackend, end: object) -> None:
    assert callable(end)
    backend.enqueue_once(a_job(idempotency_key="customer-7"), KEY)
    end(backend)
    harness.advance(ENQUEUE_MEMORY - harness.tick)
    backend.enqueue_once(a_job(), KEY)
    assert backend.stats(QUEUE).pending == 0


@pytest.mark.spans
@pytest.mark.needs("atomic_across_queues")
def test_what_moved_to_another_queue_is_known(backend: QueueBackend) -> None:
    ident = backend.enqueue_once(a_job(), KEY)
    assert backend.settle_many([(a_lease(backend), Move("mails"))]) == [Settled.OK]
    assert backend.enqueue_once(a_job(), KEY) == ident
    assert (backend.stats(QUEUE).pending, backend.stats("mails").pending) == (0, 1)


@pytest.mark.needs("key_store")
def test_a_unique_definition_meets_the_message_of_another_firing(backend: QueueBackend) -> None:
    definition = JobDefinition("report", queue=QUEUE, idempotency_key="customer-7", unique=True)
    first = backend.enqueue_once(definition, "at one")
    assert backend.enqueue_once(definition, "at two") == first
    assert backend.stats(QUEUE).pending == 1


@pytest.mark.needs("known_ids")
def test_many_are_enqueued_once_together_and_those_that_are_known_left_out(backend: QueueBackend) -> None:
    keys = [f"nightly-{number}" for number in range(5)]
    backend.enqueue_once(a_job(1), keys[1])
    for _ in range(2):
        ids = backend.enqueue_many_once([(a_job(number), key) for number, key in enumerate(keys)])
        assert ids == [once_id(key) for key in keys]
    assert backend.stats(QUEUE).waiting == 5
    assert backend.enqueue_many_once([]) == []


NAMES = [
    *("report", "Report", " report", "report ", "re port", "report at 2027-01-15T08:00:00Z", "é", "e\u0301", "😀"),
    *("a*b?[c]", "a%_b", "a:b:c", "{a}", "a\\b", "'a'", '"a"', "../a", "--a", "0", "x" * 255, "é" * 255),
]


@pytest.mark.needs("key_store")
def test_each_name_is_one_schedule_whatever_it_is_made_of(harness: Harness) -> None:
    ran: list[str] = []
    registry = HandlerRegistry()

    @registry.handler("inline")
    def inline(ctx: JobContext) -> None:
        ran.append(ctx.name)

    scheduler = Scheduler()
    for name in NAMES:
        scheduler.define("queued").named(name).queue(QUEUE)
        scheduler.define("inline").named(f"i{name}"[:255])
    backend = harness.open()
    first, second = (CronRunner(scheduler, harness.open(), registry=registry, name=who) for who in "ab")
    now = first.time.now()
    then = datetime(now.year, now.month, now.day, now.hour, now.minute, tzinfo=UTC) + timedelta(minutes=1)

    for moment in (then, then + timedelta(minutes=1)):
        assert {firing.status.value for firing in first.run(moment)} == {"fired"}
        assert "fired" not in {firing.status.value for firing in second.run(moment)}

    assert backend.stats(QUEUE).pending == 2 * len(NAMES)
    assert sorted(ran) == sorted(2 * [f"i{name}"[:255] for name in NAMES])
    records = load(backend.keys, (planned.name for planned in first.planned))
    assert {record.last for record in records.values()} == {then + timedelta(minutes=1)}
    assert len(records) == 2 * len(NAMES)
