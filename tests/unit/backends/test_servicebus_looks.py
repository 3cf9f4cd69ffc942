"""The administrator's side on a peer: what the contract cannot know of queues that others use, too."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusMessage
from servicebus_peer import Control, MessageLook
from support.harnesses.servicebus import PeerHarness
from support.jobs import QUEUE, a_job, at, numbered
from support.peers import turned_hub, turned_peer
from support.tables import row

from jobpool.broker import control as asked
from jobpool.broker.backend import QueueBackend
from jobpool.broker.finding import Level
from jobpool.broker.opening import open_backend
from jobpool.broker.values import Message, MessageFilter, State, Verb
from jobpool.errors import Unsupported, WriteRefused
from jobpool_backends.servicebus import bulk, inspect
from jobpool_backends.servicebus.bulk import touched
from jobpool_backends.servicebus.inspect import MAX_STATS_MESSAGES, sides, tally

DEAD_LETTERS = f"{QUEUE}/$DeadLetterQueue"


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[PeerHarness]:
    harness = PeerHarness(tmp_path)
    yield harness
    harness.close()


@pytest.fixture
def backend(harness: PeerHarness) -> QueueBackend:
    return harness.open()


@pytest.fixture
def control() -> Control:
    return turned_peer().control


def bury(backend: QueueBackend, reasons: list[str]) -> list[str]:
    """So many dead letters, the first one first; their ids."""
    known = backend.enqueue_many(numbered(len(reasons)))
    for lease, reason in zip(backend.fetch_many(QUEUE, limit=len(reasons)), reasons, strict=True):
        backend.abandon(lease, reason)
    return known


def test_a_long_queue_is_counted_as_at_least_so_many(backend: QueueBackend) -> None:
    backend.enqueue_many(numbered(MAX_STATS_MESSAGES + 1))
    stats = backend.stats(QUEUE)
    assert (stats.waiting, stats.cap) == (MAX_STATS_MESSAGES, MAX_STATS_MESSAGES)
    assert backend.count(MessageFilter(queue=QUEUE)) == MAX_STATS_MESSAGES + 1


def test_counts_look_at_a_queue_and_at_its_dead_letters_at_the_same_time(
    backend: QueueBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = asyncio.Barrier(2)

    async def peek(*_: object) -> list[object]:
        async with asyncio.timeout(5):
            await both.wait()  # each of them may have to connect
        return []

    monkeypatch.setattr(inspect, "_peek", peek)
    assert backend.stats(QUEUE).waiting == 0


def test_what_another_program_put_there_is_shown_as_it_is(backend: QueueBackend) -> None:
    namespace = turned_hub()
    theirs = ServiceBusMessage("hello", message_id="theirs")
    namespace.call(namespace.queue(QUEUE).sending.run(lambda sender: sender.send_messages(theirs)))
    backend.stats(QUEUE)  # it is told of the queue
    [message] = backend.list_messages()
    assert (message.id, message.handler, message.state, message.body) == ("theirs", "", State.WAITING, b"hello")
    assert backend.inspect("theirs") == message


def test_what_the_broker_itself_gave_up_is_a_dead_letter_of_the_crash_limit(
    backend: QueueBackend, control: Control
) -> None:
    control.create_queue("few", max_delivery_count=2)
    try:
        ident = backend.enqueue(a_job(queue="few"))
        for _ in range(2):
            [lease] = backend.fetch_many("few", limit=1)
            backend.release(lease)
        [dead] = backend.list_messages(MessageFilter(queue="few"))
        assert (dead.id, dead.state, dead.reason, dead.deliveries) == (ident, State.DEAD, "crash-limit", 2)
        assert backend.bulk(MessageFilter(queue="few"), Verb.RETRY) == 1
        [again] = backend.fetch_many("few", limit=1)
        assert (again.id, again.deliveries) == (ident, 3)
    finally:
        control.delete_queue("few")


def test_dead_letters_that_were_not_meant_are_as_before(backend: QueueBackend, control: Control) -> None:
    known = bury(backend, ["odd", "even", "odd", "even"])

    def those() -> list[MessageLook]:
        return [look for look in control.messages(DEAD_LETTERS) if look.dead_letter_reason == "odd"]

    before = those()
    assert backend.bulk(MessageFilter(reason="even"), Verb.RETRY) == 2
    assert those() == before
    assert not any(look.locked for look in before)
    assert [message.id for message in backend.list_messages(MessageFilter(states=(State.DEAD,)))] == known[::2]


def test_the_mark_of_a_letter_goes_before_a_client_that_has_not_met_its_queue_raises_it(harness: PeerHarness) -> None:
    backend, state = harness.open(), open_backend("memory://")
    first, second = bury(backend, ["failed", "failed"])
    fresh = harness.connect()
    fresh.lend(state)
    with closing(fresh):
        asked.cancel(fresh, [first, second], wait=0.0)
        assert fresh.bulk(MessageFilter(queue=QUEUE, ids=(first,)), Verb.RETRY) == 1
        assert asked.read(fresh).cancels.keys() == {second}


def test_letters_whose_copies_are_refused_stay_free(backend: QueueBackend, control: Control) -> None:
    bury(backend, ["odd", "even"])
    control.set_status(QUEUE, "SendDisabled")
    try:
        with pytest.raises(WriteRefused, match="is disabled"):
            backend.bulk(MessageFilter(reason="even"), Verb.RETRY)
    finally:
        control.set_status(QUEUE, "Active")
    assert not any(look.locked for look in control.messages(DEAD_LETTERS))
    assert backend.bulk(MessageFilter(queue=QUEUE, states=(State.DEAD,)), Verb.DELETE) == 2


def test_what_stands_behind_too_many_others_is_refused_and_nothing_stays_locked(
    backend: QueueBackend, control: Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "MAX_LOCKED_MESSAGES", 3)
    monkeypatch.setattr(bulk, "RECEIVE_MESSAGES", 2)
    bury(backend, ["odd"] * 5 + ["even"])
    before = control.messages(DEAD_LETTERS)
    with pytest.raises(Unsupported, match="raise or purge what comes before"):
        backend.bulk(MessageFilter(reason="even"), Verb.RETRY)
    assert control.messages(DEAD_LETTERS) == before
    assert backend.bulk(MessageFilter(reason="odd"), Verb.DELETE) == 5
    assert backend.bulk(MessageFilter(reason="even"), Verb.RETRY) == 1


def test_a_delayed_message_is_deleted_by_any_filter(
    harness: PeerHarness, backend: QueueBackend, control: Control
) -> None:
    known = backend.enqueue_many(numbered(2, scheduled_at=at(harness.now() + 50.0)))
    where = MessageFilter(ids=(known[0],), states=(State.DELAYED,))
    assert backend.bulk(where, Verb.DELETE) == 1
    assert backend.bulk(where, Verb.DELETE) == 0
    assert control.counts(QUEUE).scheduled == 1


def test_the_doctor_is_told_which_queue_is_missing_and_how_long_locks_really_last(
    harness: PeerHarness, control: Control
) -> None:
    backend = harness.open()
    control.create_queue("short", lock_duration=20.0)
    try:
        backend.enqueue(a_job(queue="short"))
        backend.fetch_many("short", limit=1)
        with pytest.raises(Exception, match="no-such-queue"):
            backend.stats("no-such-queue")
        bad = {finding.check: finding for finding in backend.diagnose() if finding.is_bad}
    finally:
        control.delete_queue("short")
    assert "no-such-queue" in bad["servicebus.queue"].found
    assert "create" in bad["servicebus.queue"].mend
    assert (bad["servicebus.lock"].level, "lock=20" in bad["servicebus.lock"].mend) == (Level.PROBLEM, True)


def test_ping_needs_no_queue(backend: QueueBackend) -> None:
    backend.ping()
    assert backend.queues() == []


WAITING, DELAYED, LEASED, DEAD = State.WAITING, State.DELAYED, State.LEASED, State.DEAD


def a_message(state: State = WAITING, place: int = 1) -> Message:
    times = {"enqueued_at": 100.0, "available_at": 100.0}
    counts = dict.fromkeys(("priority", "attempts", "crashes", "deliveries"), 0)
    told = {"id": f"job-{place}", "queue": "reports", "handler": "report", "body": b"{}", "cursor": str(place)}
    return Message(state=state, **told, **counts, **times)  # type: ignore[arg-type]


# --- what a verb may meet -----------------------------------------------------------------------------------


def test_what_waits_is_not_deleted_one_by_one_and_the_refusal_says_what_is() -> None:
    for case, where in [
        ("ids", MessageFilter(ids=("a",), states=(WAITING, DELAYED, DEAD))),
        ("handler", MessageFilter(handler="mail", states=(WAITING, DEAD))),
        ("age", MessageFilter(queue="q", older_than=5.0, states=(WAITING,))),
    ]:
        with row(case), pytest.raises(Unsupported, match=r"keeps_records.*state:dead"):
            touched(where)


# --- where to look ------------------------------------------------------------------------------------------


def test_only_what_can_hold_a_match_is_looked_through() -> None:
    for where, looked in [
        (MessageFilter(), [False, True]),
        (MessageFilter(states=(DEAD,)), [True]),
        (MessageFilter(states=(WAITING, LEASED)), [False]),
        (MessageFilter(reason="timeout"), [True]),
        (MessageFilter(reason="timeout", states=(WAITING,)), []),
    ]:
        assert sides(where) == looked, where


# --- counts -------------------------------------------------------------------------------------------------


def test_counts_of_a_short_queue_are_exact_and_those_of_a_long_one_at_least_so_many() -> None:
    live = [a_message(), a_message(DELAYED), a_message(LEASED), a_message(LEASED)]
    stats = tally(live, dead=3, now=160.0)
    assert (stats.waiting, stats.delayed, stats.leased, stats.dead, stats.cap) == (1, 1, 2, 3, None)
    assert stats.oldest == 60.0
    assert tally([a_message(DELAYED)], dead=0, now=160.0).oldest is None
    long = [a_message()] * (MAX_STATS_MESSAGES - 100) + [a_message(DELAYED)] * 100
    assert tally(long, dead=7, now=160.0).cap == 100
    assert tally([a_message()], dead=MAX_STATS_MESSAGES, now=160.0).cap == MAX_STATS_MESSAGES
