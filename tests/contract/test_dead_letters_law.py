"""Dead letters are shown, found, counted, deleted and raised on every broker, also where other messages are not."""

from __future__ import annotations

import pytest
from support.harness import Harness
from support.jobs import QUEUE, a_job, at, numbered
from support.looks import picture

from jobpool.broker.backend import QueueBackend
from jobpool.broker.values import MessageFilter, State, Verb
from jobpool.message.settlement import Abandon

pytestmark = [pytest.mark.needs("leases"), pytest.mark.spans]

MAILS = "mails"
DEAD = (State.DEAD,)

GRAVES = [
    ("invoice", QUEUE, "timeout", "Too Slow", None),
    ("invoice", QUEUE, "failed", "ValueError: Zürich", None),
    ("report", QUEUE, "timeout", None, "SIGKILL"),
    ("report", MAILS, "failed", None, "SIGBUS"),
]
"""Handler, queue, reason, error and cause of what dies, a second apart, in this order."""


def bury(harness: Harness, backend: QueueBackend) -> list[str]:
    """The ids of `GRAVES`; besides them there is a message of each other state."""
    known: list[str] = []
    for handler, queue, reason, error, cause in GRAVES:
        known.append(backend.enqueue(a_job({"number": len(known)}, handler=handler, queue=queue)))
        [lease] = backend.fetch_many(queue, limit=1)
        backend.settle_many([(lease, Abandon(reason, error, cause))])
        harness.advance(1.0)
    backend.enqueue_many([a_job("leased", handler="invoice"), a_job("waiting", handler="invoice")])
    backend.fetch_many(QUEUE, limit=1)
    backend.enqueue(a_job("delayed", handler="invoice", scheduled_at=at(harness.now() + 100.0)))
    return known


def died(backend: QueueBackend, count: int) -> list[str]:
    """So many dead letters; their ids, in the order of enqueue and of death."""
    known = backend.enqueue_many(numbered(count))
    for lease in backend.fetch_many(QUEUE, limit=count):
        backend.abandon(lease, "hopeless")
    return known


def left(backend: QueueBackend, where: MessageFilter | None = None) -> list[str]:
    return [message.id for message in backend.list_messages(where or MessageFilter(states=DEAD), limit=1000)]


def test_looking_at_dead_letters_changes_nothing(harness: Harness, backend: QueueBackend) -> None:
    known = bury(harness, backend)
    before = picture(backend, QUEUE, MAILS)
    for ident in (*known, "0000000000000000"):
        backend.inspect(ident)
    backend.count(MessageFilter(states=DEAD, text="slow"))
    backend.list_messages(MessageFilter(states=DEAD, reason="failed"), limit=1)
    assert picture(backend, QUEUE, MAILS) == before
    assert [message.payload for message in (lease.envelope for lease in backend.fetch_many(QUEUE, limit=9))] == [
        "waiting"
    ]


FILTERS = [
    pytest.param(MessageFilter(states=DEAD), "0123", id="all"),
    pytest.param(MessageFilter(states=DEAD, queue=QUEUE), "012", id="queue"),
    pytest.param(MessageFilter(states=DEAD, handler="invoice"), "01", id="handler"),
    pytest.param(MessageFilter(reason="timeout"), "02", id="reason"),
    pytest.param(MessageFilter(reason="time"), "", id="part of a reason"),
    pytest.param(MessageFilter(states=DEAD, text="zÜRICH"), "1", id="word of the error"),
    pytest.param(MessageFilter(states=DEAD, text="sigb"), "3", id="word of the cause"),
    pytest.param(MessageFilter(states=DEAD, text='"NUMBER":2'), "2", id="word of the body"),
    pytest.param(MessageFilter(states=DEAD, older_than=3.0), "01", id="older"),
    pytest.param(MessageFilter(states=DEAD, newer_than=3.0), "123", id="newer"),
    pytest.param(MessageFilter(states=DEAD, older_than=1.5, newer_than=3.5), "12", id="between"),
    pytest.param(MessageFilter(queue=QUEUE, reason="failed", handler="invoice"), "1", id="every field must match"),
]


@pytest.mark.parametrize("verb", [Verb.RETRY, Verb.DELETE])
@pytest.mark.parametrize(("where", "expected"), FILTERS)
def test_a_filter_finds_and_changes_the_dead_that_it_means_and_nothing_else(
    harness: Harness, backend: QueueBackend, where: MessageFilter, expected: str, verb: Verb
) -> None:
    known = bury(harness, backend)
    before = [backend.stats(queue).pending for queue in (QUEUE, MAILS)]
    assert sorted(str(known.index(ident)) for ident in left(backend, where)) == list(expected)
    assert backend.count(where) == len(expected)
    assert backend.bulk(where, verb) == len(expected)
    assert set(left(backend)) == {ident for place, ident in enumerate(known) if str(place) not in expected}
    after = [backend.stats(queue).pending for queue in (QUEUE, MAILS)]
    if verb is Verb.DELETE:
        assert after == before
        assert not any(backend.inspect(known[int(place)]) for place in expected)
    else:
        assert sum(after) == sum(before) + len(expected)


def test_the_dead_are_found_by_their_ids(harness: Harness, backend: QueueBackend) -> None:
    known = bury(harness, backend)
    wanted = (known[3], "unknown", known[1])
    assert left(backend, MessageFilter(states=DEAD, ids=wanted)) == [known[1], known[3]]
    assert left(backend, MessageFilter(states=DEAD, ids=wanted, queue=MAILS)) == [known[3]]
    assert backend.bulk(MessageFilter(states=DEAD, ids=wanted), Verb.DELETE) == 2
    assert left(backend) == [known[0], known[2]]


def test_pages_of_the_dead_follow_each_other_oldest_first(backend: QueueBackend) -> None:
    known = died(backend, 25)
    pages: list[str] = []
    after = None
    while page := backend.list_messages(MessageFilter(queue=QUEUE, states=DEAD), after=after, limit=7):
        pages += [message.id for message in page]
        after = page[-1].cursor
    assert pages == known
    for where in (MessageFilter(states=DEAD), MessageFilter(reason="hopeless")):
        assert [backend.count(where, cap=cap) for cap in (1, 24, 25, 26)] == [1, 24, 25, 25], where


@pytest.mark.parametrize("verb", [Verb.RETRY, Verb.RESUME])
def test_one_that_is_raised_by_its_id_goes_to_its_own_queue(backend: QueueBackend, verb: Verb) -> None:
    """Also if the broker's connection was busy with another queue since it was looked at."""
    [known] = died(backend, 1)
    assert left(backend) == [known]
    backend.enqueue(a_job(queue=MAILS))
    assert backend.bulk(MessageFilter(ids=(known,)), verb) == 1
    assert [lease.id for lease in backend.fetch_many(QUEUE, limit=2)] == [known]
    assert len(backend.fetch_many(MAILS, limit=2)) == 1


@pytest.mark.parametrize("verb", [Verb.RETRY, Verb.RESUME])
def test_many_are_raised_in_bounded_steps_and_each_once(backend: QueueBackend, verb: Verb) -> None:
    known = died(backend, 120)
    counts = [backend.bulk(MessageFilter(queue=QUEUE, states=DEAD), verb, limit=50) for _ in range(4)]
    assert counts == [50, 50, 20, 0]
    stats = backend.stats(QUEUE)
    assert (stats.waiting, stats.dead) == (120, 0)
    assert sorted(lease.id for lease in backend.fetch_many(QUEUE, limit=200)) == sorted(known)


def test_the_dead_wake_nobody_and_are_not_fetched(backend: QueueBackend) -> None:
    died(backend, 2)
    assert backend.wait_any([QUEUE], 0.0) is None
    assert backend.fetch_many(QUEUE, limit=9) == []
    assert backend.queues() == [QUEUE]


@pytest.mark.lacks("lists_live")
def test_where_the_living_are_not_shown_they_are_not(harness: Harness, backend: QueueBackend) -> None:
    known = bury(harness, backend)
    ident = backend.enqueue(a_job("alive"))
    assert backend.inspect(ident) is None
    assert left(backend, MessageFilter()) == known
    assert backend.count(MessageFilter(queue=QUEUE, handler="invoice")) == 2
