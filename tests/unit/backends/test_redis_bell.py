"""Waiting: who is woken, what it costs, and that no message is slept through."""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

import pytest
from redis_rig import Rig, take
from support.jobs import QUEUE, a_job, at, new_lease, numbered
from support.stalls import Stopwatch
from support.waiting import wait_until

from jobpool.broker.editing import edit, read_changes
from jobpool.broker.values import Edited, MessageFilter, Verb
from jobpool.message.settlement import Ack
from jobpool_backends.redis import RedisBackend


def sleepers(rig: Rig) -> int:
    """How many connections wait for a bell."""
    return int(rig.call("CLIENT", "LIST").count(b"cmd=blpop"))


def asleep(rig: Rig, threads: ThreadPoolExecutor, *backends: RedisBackend) -> list[Future[str | None]]:
    """All of them waiting, each in a thread of its own."""
    before = sleepers(rig)
    waits = [threads.submit(backend.wait_any, ["mails", QUEUE], 30.0) for backend in backends]
    wait_until(lambda: sleepers(rig) >= before + len(backends))
    return waits


def test_one_message_wakes_one_of_two_waiters(rig: Rig, threads: ThreadPoolExecutor) -> None:
    one, two = rig.open(), rig.open()
    waits = asleep(rig, threads, one, two)
    rig.open().enqueue(a_job())
    wait_until(lambda: any(wait.done() for wait in waits))
    assert rig.holds("bell") == 0
    [woken] = [wait for wait in waits if wait.done()]
    assert woken.result() == QUEUE
    take(one)
    assert sum(wait.done() for wait in waits) == 1
    one.close()
    two.close()
    assert None in [wait.result(10.0) for wait in waits]


def test_a_fetch_that_leaves_something_behind_wakes_the_next(rig: Rig, threads: ThreadPoolExecutor) -> None:
    backends = [rig.open() for _ in range(3)]
    waits = asleep(rig, threads, *backends)
    producer = rig.open()
    producer.enqueue_many(numbered(3))
    for count in (1, 2, 3):
        wait_until(partial(lambda count: sum(wait.done() for wait in waits) >= count, count))
        assert len(take(producer)) == 1
    assert [wait.result() for wait in waits] == [QUEUE] * 3
    assert rig.holds("bell") == 0


@pytest.mark.parametrize("verb", ["release", "nack", "reap", "retry", "follow-up"])
def test_whatever_makes_a_message_fetchable_rings(rig: Rig, backend: RedisBackend, verb: str) -> None:
    lease = new_lease(backend)
    assert rig.holds("bell") == 0
    match verb:
        case "release":
            backend.release(lease)
        case "nack":
            backend.nack(lease)
        case "reap":
            backend.forfeit(lease, "SIGSEGV")
            backend.reap(QUEUE)
        case "retry":
            backend.abandon(lease, "failed")
            backend.bulk(MessageFilter(), Verb.RETRY)
        case "follow-up":
            backend.settle_many([(lease, Ack((a_job("next"),)))])
    assert rig.holds("bell") == 1
    assert backend.wait_any([QUEUE], 0.0) == QUEUE


@pytest.mark.parametrize("verb", ["release", "nack"])
def test_what_is_put_off_rings_nothing(rig: Rig, backend: RedisBackend, verb: str) -> None:
    backend.enqueue(a_job(scheduled_at=at(4e9)))
    backend.enqueue(a_job())
    getattr(backend, verb)(take(backend)[0], delay=60.0)
    assert rig.holds("bell") == 0
    assert backend.wait_any([QUEUE], 0.05) is None


@pytest.mark.parametrize("verb", ["enqueue", "edit", "release", "nack", "move"])
def test_what_falls_due_first_and_before_a_look_has_one_waiter_look(
    rig: Rig, threads: ThreadPoolExecutor, verb: str
) -> None:
    waiter, other = rig.open(), rig.open()
    other.enqueue(a_job("later", scheduled_at=at(4e9)))
    ident = other.enqueue(a_job(queue="others" if verb == "move" else QUEUE, scheduled_at=at(time.time() + 60.0)))
    lease = new_lease(other)
    [wait] = asleep(rig, threads, waiter)
    due = at(time.time() + 0.1)
    match verb:
        case "enqueue":
            other.enqueue(a_job(scheduled_at=due))
        case "edit":
            assert edit(other, read_changes(other, due, None, None), [ident]) == {ident: Edited.EDITED}
        case "move":
            assert edit(other, read_changes(other, due, None, QUEUE), [ident]) == {ident: Edited.EDITED}
        case _:
            getattr(other, verb)(lease, delay=0.1)
    started = Stopwatch()
    assert wait.result(10.0) == QUEUE
    assert started.seconds() < 0.4  # before it would have looked by itself
    assert len(take(other, 2)) == 1, "it was not told too early"


def test_what_falls_due_after_another_or_after_a_look_rings_nothing(rig: Rig, backend: RedisBackend) -> None:
    backend.enqueue_many([a_job(scheduled_at=at(time.time() + delay)) for delay in (10.0, 60.0)])
    assert rig.holds("bell") == 0
    backend.enqueue(a_job(scheduled_at=at(time.time() + 0.3)))
    rig.call("DEL", rig.key("bell"))
    backend.enqueue(a_job(scheduled_at=at(time.time() + 0.4)))
    assert rig.holds("bell") == 0


def test_a_bell_that_rings_before_the_sleep_is_heard(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    backend, producer = rig.open(), rig.open()
    look = backend._waiter._look

    def look_then_enqueue(queues: list[str]) -> tuple[str | None, float]:
        seen = look(queues)
        producer.enqueue(a_job())
        return seen

    monkeypatch.setattr(backend._waiter, "_look", look_then_enqueue)
    started = Stopwatch()
    assert backend.wait_any([QUEUE], 30.0) == QUEUE
    assert started.seconds() < 0.4  # before it would have looked again


def test_one_element_is_the_most_and_an_empty_queue_has_none(rig: Rig, backend: RedisBackend) -> None:
    for number in range(3):
        backend.enqueue(a_job(number))
        assert rig.holds("bell") == 1
    take(backend, 2)
    assert rig.holds("bell") == 1
    take(backend, 2)
    assert rig.holds("bell") == 0
    backend.enqueue(a_job())
    backend.bulk(MessageFilter(), Verb.DELETE)
    assert take(backend) == []
    assert rig.holds("bell") == 0  # it was rung for what is gone


def test_who_was_woken_and_died_is_made_good_by_the_next_look(rig: Rig, threads: ThreadPoolExecutor) -> None:
    backend = rig.open()
    [wait] = asleep(rig, threads, backend)
    rig.call("ZADD", rig.key("ready"), 0, "0050000000000000001")  # as if the bell's one element had been taken
    started = Stopwatch()
    assert wait.result(10.0) == QUEUE
    assert started.seconds() < 2.0


def test_an_idle_pool_asks_little(rig: Rig, backend: RedisBackend) -> None:
    queues = [QUEUE, "mails", "faxes"]
    backend.wait_any(queues, 0.01)
    asked = rig.spent(lambda: backend.wait_any(queues, 1.4))
    assert asked["evalsha"] + asked["blpop"] <= 8


@pytest.mark.parametrize(("there", "looks"), [(2, 0), (3, 1)], ids=["nothing is left", "something is left"])
def test_after_a_fetch_that_leaves_nothing_a_wait_begins_without_a_look(
    rig: Rig, backend: RedisBackend, there: int, looks: int
) -> None:
    backend.enqueue_many(numbered(there))
    assert len(take(backend, 2)) == 2
    rig.call("DEL", rig.key("bell"))
    spent = rig.spent(lambda: backend.wait_any([QUEUE], 0.05))
    assert (spent["exists"] > 0, spent["blpop"]) == (looks > 0, 1 - looks)
    assert rig.spent(lambda: backend.wait_any([QUEUE], 0.05))["exists"] > 0, "it counts once"


def test_a_wait_without_a_first_look_misses_nothing(rig: Rig, threads: ThreadPoolExecutor) -> None:
    backend, producer = rig.open(), rig.open()
    assert take(backend) == []
    producer.enqueue(a_job())
    assert backend.wait_any([QUEUE], 0.0) == QUEUE, "without time to wait it looks all the same"
    assert len(take(backend, 2)) == 1
    producer.enqueue(a_job())
    started = Stopwatch()
    assert backend.wait_any([QUEUE], 30.0) == QUEUE
    assert started.seconds() < 0.4  # before it would have looked: the bell has rung
    backend.enqueue(a_job(scheduled_at=at(time.time() + 0.2)))
    assert len(take(backend, 2)) == 1
    assert backend.wait_any([QUEUE], 30.0) == QUEUE
    assert len(take(backend)) == 1
    assert take(backend) == []
    wait = threads.submit(backend.wait_any, [QUEUE], 30.0)
    rig.call("ZADD", rig.key("ready"), 0, "0050000000000000001")  # as if the bell's one element had been taken
    assert wait.result(10.0) == QUEUE
