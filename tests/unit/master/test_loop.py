"""The loop's own turns, with the real backend and settle thread, and stand-ins for what has processes."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any
from unittest.mock import Mock, create_autospec

import pytest
from stage import HANDLERS, Stage
from support.jobs import new_lease

from jobpool.broker.backend import QueueBackend
from jobpool.broker.parts import Brought, Settlements
from jobpool.broker.values import ReapPolicy, State
from jobpool.clock import SystemClock
from jobpool.errors import AccessRefused
from jobpool.ipc.frames import Loaded
from jobpool.master import events as ev
from jobpool.master.apply import apply
from jobpool.master.child_processes import ChildProcesses
from jobpool.master.fetch_thread import FetchThread
from jobpool.master.inbox import Inbox
from jobpool.master.loop import GC_EVERY_S, LAST_LOOK_S, READY_PUBLISH_EVERY_S, STREAM_WAIT_S, Master
from jobpool.master.plan import Planner
from jobpool.master.settle_thread import SettleThread
from jobpool.master.slots import Delivery
from jobpool.master.state import Note, Pool
from jobpool.master.telemetry import PUBLISH_EVERY_S, Publisher
from jobpool.message.settlement import Ack, Settled
from jobpool.message.signing import EnvelopeSigner
from jobpool.policy.inspection import Inspected, LeaseInspector
from jobpool.policy.retry import RetryPolicy
from jobpool.settings import Settings
from jobpool_backends.memory import MemoryBackend


def no_children() -> Mock:
    """No child, no fork server: only the inbox is watched."""
    children: Mock = create_autospec(ChildProcesses, instance=True)
    children.watch.side_effect = lambda _fd, take: setattr(children.poll, "side_effect", lambda _timeout: take())
    return children


def silent() -> Mock:
    """Publishes nothing."""
    publisher: Mock = create_autospec(Publisher, instance=True)
    publisher.write_log.side_effect = lambda pool: pool.notes.clear()
    return publisher


class Sleepy(MemoryBackend):
    """Its wait lasts until it is woken."""

    def __init__(self) -> None:
        super().__init__()
        self.asleep, self.woken = threading.Event(), threading.Event()

    @property
    def has_control(self) -> bool:
        """Say that nothing can be paused: the fetch thread need not wait to know what is."""
        return False

    def _wait_any(self, queues: Sequence[str], timeout: float) -> str | None:
        del queues, timeout
        self.asleep.set()
        assert self.woken.wait(30.0)
        return None


def last_lease(inbox: Inbox, event: ev.Event) -> Mock:
    """A fetch thread whose last fetch comes in between two looks at it."""
    left = [event]

    def is_leasing() -> bool:
        if left:
            inbox.put(left.pop())
        return False

    fetch_thread: Mock = create_autospec(FetchThread, instance=True)
    fetch_thread.answered_at = 0.0
    fetch_thread.is_leasing.side_effect = is_leasing
    return fetch_thread


def a_master(pool: Pool, backend: QueueBackend, inbox: Inbox, fetch_thread: FetchThread | Mock) -> Master:
    """A loop that begins now, whose app is loaded."""
    apply(pool, ev.FrameCame(1, Loaded(HANDLERS)), pool.now)
    return Master(
        pool=pool,
        planner=Planner(RetryPolicy(), backend.pack),
        backend=backend,
        children=no_children(),
        inbox=inbox,
        fetch_thread=fetch_thread,
        settle_thread=SettleThread(backend, ("reports",), 30.0, ReapPolicy(), inbox, 2.0),
        publisher=silent(),
    )


SETTINGS = Settings(queues=(("reports", 1.0),), backend="memory://")


@pytest.fixture
def master(inbox: Inbox) -> Master:
    """A loop that has nothing to do."""
    backend = MemoryBackend()
    pool = Pool(SETTINGS, now=backend.clock.mono())
    return a_master(pool, backend, inbox, last_lease(inbox, ev.ReapDone([])))


def stopping(backend: MemoryBackend, inbox: Inbox, **settings: Any) -> Master:
    """A loop that is told to stop, and whose fetch thread brings a lease after that."""
    lease = new_lease(backend)
    pool = Pool(replace(SETTINGS, **settings), now=backend.clock.mono())
    master = a_master(pool, backend, inbox, last_lease(inbox, ev.Leased([Inspected(lease, None)])))
    pool.stop("stopping")
    return master


def test_what_the_lease_thread_brings_at_the_very_end_of_a_stop_is_given_back(inbox: Inbox) -> None:
    backend = MemoryBackend()
    assert stopping(backend, inbox).run() == 0
    [message] = backend.list_messages()
    assert message.state is State.WAITING


def test_an_ack_that_still_waits_for_company_when_a_stop_ends_is_settled(inbox: Inbox) -> None:
    """The time for answers is over, as after a SIGSTOP, and the last child has just died."""
    backend = MemoryBackend()
    delivery = Delivery(new_lease(backend), 1, 0.0, "report", backend.clock.mono(), settling=True)
    pool = Pool(replace(SETTINGS, stop_grace=0.0), now=backend.clock.mono() - 60.0)
    master = a_master(pool, backend, inbox, last_lease(inbox, ev.ReapDone([])))
    pool.held[delivery.nonce] = delivery
    pool.stop("stopping")
    master._batch.add([(delivery, Ack())], time.monotonic(), ahead=100, linger=60.0, held=2)
    assert master.run() == 0
    assert not backend.list_messages()
    assert not pool.held


class Refusing(MemoryBackend):
    """Takes no settlement."""

    def _settle(self, settlements: Settlements, brought: Brought, call_id: str) -> list[Settled]:
        del settlements, brought, call_id
        raise AccessRefused("mend the rights")


def test_leases_that_are_left_at_a_stop_are_told_with_what_the_broker_said(
    inbox: Inbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    master = stopping(Refusing(), inbox, stop_grace=0.1)
    told: list[Note] = []
    monkeypatch.setattr(master.publisher, "write_log", lambda pool: told.extend(pool.notes) or pool.notes.clear())
    master.run()
    [left] = [note.fields for note in told if note.event.startswith("leases are left to expire")]
    assert left == {"count": 1, "error": "mend the rights"}


def test_a_stop_does_not_wait_for_a_lease_thread_that_sleeps_in_the_backend(inbox: Inbox) -> None:
    backend = Sleepy()
    fetch_thread = FetchThread(backend, SETTINGS.queues, 30.0, LeaseInspector(EnvelopeSigner(), {}), inbox)
    fetch_thread.want(1)
    master = a_master(Pool(SETTINGS, now=backend.clock.mono()), backend, inbox, fetch_thread)
    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(master.run)
        try:
            assert backend.asleep.wait(10.0)
            inbox.put(ev.ThreadDied("a thread", "so the pool stops"))
            assert running.result(10.0) == 1
            assert fetch_thread.is_alive(), "still asleep"
        finally:
            backend.woken.set()
    fetch_thread.join(10.0)


def test_an_error_in_the_loop_ends_all_threads_and_children_and_is_raised(
    inbox: Inbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend, closed = MemoryBackend(), list[str]()
    fetch_thread = FetchThread(backend, SETTINGS.queues, 30.0, LeaseInspector(EnvelopeSigner(), {}), inbox)
    master = a_master(Pool(SETTINGS, now=backend.clock.mono()), backend, inbox, fetch_thread)
    monkeypatch.setattr(master.children, "poll", lambda _timeout: dict[str, int]()["a fault"])
    monkeypatch.setattr(master.children, "close", lambda: closed.append("children"))
    before = set(threading.enumerate())
    with pytest.raises(KeyError, match="a fault"):
        master.run()
    assert set(threading.enumerate()) == before
    assert closed == ["children"]


def test_a_child_that_becomes_ready_is_shown_soon_and_anything_else_in_its_time(master: Master) -> None:
    assert Stage().boot().pool.child_came, "for the loop to publish soon"
    pool = master.pool
    pool.checked_at = now = time.monotonic()
    master._after(now)
    master._unpublished = True
    assert now + READY_PUBLISH_EVERY_S < master._due() <= now + PUBLISH_EVERY_S
    for _ in range(3):
        pool.child_came = True
        master._after(now)
        assert now < master._due() <= now + READY_PUBLISH_EVERY_S, "not at once: many become ready together"


def test_the_brokers_last_good_answer_stays_where_it_is_for_as_long_as_it_refuses_something(
    master: Master, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Looks at an empty queue may be answered all the while, and health would take the pool for a well one."""
    pool = master.pool
    published: list[float] = []
    monkeypatch.setattr(master.publisher, "publish", lambda _pool, _now, answered, _reaped: published.append(answered))
    for at, event in enumerate(
        (None, ev.BrokerSilent("mend it", "settle", AccessRefused), ev.BrokerAnswered("settle"))
    ):
        if event:
            apply(pool, event, pool.now)
        master.settle_thread.answered_at = float(at)
        master._publish(pool.now)
    assert published == [0.0, 0.0, 2.0]


def test_the_last_turn_of_a_stop_sleeps_no_more(master: Master) -> None:
    """The fetch thread ends without an event, perhaps after everything else."""
    pool = master.pool
    pool.stop("stopping")
    pool.checked_at = time.monotonic() + 60.0
    master._publish_at = pool.checked_at
    assert pool.finished
    begun = time.monotonic()
    assert begun < master._due() <= time.monotonic() + LAST_LOOK_S, "it may still bring something"
    master._leases = False
    assert master._due() <= time.monotonic()
    pool.held[1] = None  # type: ignore[assignment]
    begun = time.monotonic()
    assert begun < master._due() <= time.monotonic() + PUBLISH_EVERY_S, "an answer of the broker wakes the loop"


def test_events_are_asked_for_without_a_wait_only_while_they_stream(
    master: Master, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Something comes after a while, never at once."""
    asked: list[float] = []

    def poll(timeout: float) -> list[ev.Event]:
        asked.append(timeout)
        if timeout == 0.0:
            return []
        time.sleep(2 * STREAM_WAIT_S)
        return [ev.ReapDone([])]

    monkeypatch.setattr(master.children, "poll", poll)
    assert [len(master._wait()) for _ in range(3)] == [1, 1, 1]
    assert len(asked) == 3
    assert 0.0 not in asked
    asked.clear()
    master._streams = True
    assert [len(master._wait()) for _ in range(2)] == [1, 1]
    assert len(asked) == 3, "once without a wait, in vain: the stream is over"
    assert asked[0] == 0.0


class Connection:
    """Garbage that refers to itself."""

    def __init__(self) -> None:
        self.itself = self


def test_garbage_that_refers_to_itself_goes_every_ten_seconds_however_rarely_the_collector_runs(master: Master) -> None:
    start = time.monotonic()
    gc.disable()
    try:
        for turn in (1, 2):
            dropped = weakref.ref(Connection())
            master._after(start + turn * GC_EVERY_S - 1.0)
            assert dropped() is not None
            master._after(start + turn * GC_EVERY_S + 0.1 * turn)
            assert dropped() is None
    finally:
        gc.enable()


class Sleeper(SystemClock):
    """The clock of a machine that has slept."""

    slept = 0.0

    def boot(self) -> float:
        return super().boot() + self.slept


def test_a_pool_tells_its_start_by_the_brokers_clock_also_after_a_sleep_of_the_machine(
    inbox: Inbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MemoryBackend, "broker_time", lambda self: 5e9 + self.clock.slept)
    backend = MemoryBackend(clock=(clock := Sleeper()))
    master = a_master(Pool(SETTINGS, now=backend.clock.mono()), backend, inbox, last_lease(inbox, ev.ReapDone([])))
    for clock.slept in (0.0, 3600.0):
        assert master._describe().started == pytest.approx(5e9, abs=5.0)


def test_the_brokers_clock_is_known_before_anything_is_fetched(inbox: Inbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MemoryBackend, "broker_time", lambda _: 5e9)
    backend, told = MemoryBackend(), list[float]()
    master = a_master(Pool(SETTINGS, now=backend.clock.mono()), backend, inbox, last_lease(inbox, ev.ReapDone([])))
    assert master._control_thread is not None
    monkeypatch.setattr(Inbox, "put", lambda *_: told.append(backend.time.last()))
    master._control_thread._look()
    assert told == [pytest.approx(5e9, abs=5.0)]
