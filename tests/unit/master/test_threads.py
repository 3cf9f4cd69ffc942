"""The master's threads: leases are renewed in time, the pool's record is written, and an outage is told once."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from functools import partial

import pytest
from running import Running, held
from stage import Stage
from support.jobs import QUEUE
from support.modest import OwnLeases
from support.stalls import Stopwatch
from support.waiting import wait_until

from jobpool.broker import control
from jobpool.clock import ManualClock
from jobpool.errors import AccessRefused, BackendUnavailable, WriteRefused
from jobpool.ipc.scoreboard import Scoreboard
from jobpool.master import events as ev
from jobpool.master import threads
from jobpool.master.deadlines import CALM_S, MAX_REFUSED_S, REMIND_EVERY_S
from jobpool.master.inbox import Inbox
from jobpool.master.slots import Delivery
from jobpool.master.telemetry import Publisher
from jobpool.master.threads import ROUNDS_A_LEASE, BrokerRetry, ControlThread, RenewThread
from jobpool.message.lease import JobLease
from jobpool.telemetry.metrics.pages import ready
from jobpool_backends.memory import MemoryBackend

OTHER = "mails"
TTL = 30.0


def renewals(events: Sequence[ev.Event]) -> list[tuple[Delivery, JobLease | None]]:
    return [renewal for event in events if isinstance(event, ev.Renewed) for renewal in event.renewals]


# --- renewals: parts of a broker ------------------------------------------------------------------------------


class HalfSilent(MemoryBackend):
    """As a cluster without one of its masters: no call that touches `QUEUE` is answered."""

    def _renew(self, leases: Sequence[JobLease], ttl: float) -> list[JobLease | None]:
        if any(lease.queue == QUEUE for lease in leases):
            raise BackendUnavailable("silent")
        return super()._renew(leases, ttl)


def test_the_leases_of_other_queues_are_renewed_while_one_queue_is_silent() -> None:
    backend = HalfSilent()
    deliveries = [held(backend, queue, ttl=1.0) for queue in (QUEUE, OTHER)]
    with Running(partial(RenewThread, backend, 1.0, lambda: deliveries)) as thread:
        wait_until(lambda: renewals(thread.told()))
    assert renewals(thread.told())[0][0] is deliveries[1]
    assert thread.outages() == [ev.BrokerSilent]


def test_an_outage_is_over_when_what_was_not_renewed_has_been_settled() -> None:
    """And not when the next of what is held is due, which may take minutes."""
    backend = HalfSilent()
    fresh = held(backend, OTHER, ttl=3600.0)
    deliveries = [held(backend, ttl=1.0), fresh]
    with Running(partial(RenewThread, backend, 1.0, lambda: deliveries)) as thread:
        thread.until(ev.BrokerSilent)
        deliveries = [fresh]
        thread.until(ev.BrokerAnswered)
    assert [type(event) for event in thread.told()] == [ev.BrokerSilent, ev.BrokerAnswered]


# --- renewals: lengths ----------------------------------------------------------------------------------------


class Watch:
    """A renew thread's rounds on a clock that the test turns, and the loop that takes in what it tells."""

    def __init__(self, lasts: float, inbox: Inbox) -> None:
        self.clock = ManualClock()
        self.backend = OwnLeases(lasts, self.clock)
        self.delivery = held(self.backend)
        self._inbox = inbox
        self._renew_thread = RenewThread(self.backend, TTL, lambda: [self.delivery], inbox)
        self._renew_thread._broker_retry._stop.set()  # a pause of the outage is not waited for in full

    def turn(self, seconds: float) -> None:
        """Let a part of the lease pass, as long as a round is, and have one."""
        self.clock.advance(seconds)
        self._renew_thread._renew_what_is_due()
        for _, lease in renewals(self._inbox.take()):
            assert lease is not None
            self.delivery.lease = lease

    @property
    def left(self) -> float:
        return self.delivery.lease.expires_at - self.clock.boot()

    @property
    def pace(self) -> float:
        return self._renew_thread._shortest


@pytest.mark.parametrize("lasts", [TTL / 10, TTL, TTL * 10], ids=["a tenth", "as asked", "ten times"])
def test_a_lease_is_renewed_each_third_of_its_own_length(inbox: Inbox, lasts: float) -> None:
    watch = Watch(lasts, inbox)
    for _ in range(3 * ROUNDS_A_LEASE):
        watch.turn(lasts / ROUNDS_A_LEASE)
        assert watch.left > lasts / 2
    apart = [
        after - before for before, after in zip(watch.backend.renewed_at, watch.backend.renewed_at[1:], strict=False)
    ]
    assert len(apart) >= 5
    assert all(lasts / 3 <= gap <= lasts / 2 for gap in apart), apart


@pytest.mark.parametrize("lasts", [TTL / 10, TTL * 10], ids=["a tenth", "ten times"])
def test_it_is_tried_several_times_before_its_end(inbox: Inbox, lasts: float) -> None:
    watch = Watch(lasts, inbox)
    watch.backend.silent = 5
    for _ in range(ROUNDS_A_LEASE - 1):
        watch.turn(lasts / ROUNDS_A_LEASE)
    assert watch.backend.silent == 0
    assert watch.backend.renewed_at, "the sixth try is answered, and in time"


def test_the_thread_looks_round_as_often_as_the_shortest_lease_needs_and_no_oftener(inbox: Inbox) -> None:
    watch = Watch(TTL / 10, inbox)
    watch.turn(0.0)
    assert watch.pace == pytest.approx(TTL / 10)
    watch.delivery = held(OwnLeases(TTL * 10, watch.clock))
    watch.turn(0.0)
    assert watch.pace == TTL


def test_a_short_lease_that_comes_while_the_thread_sleeps_is_renewed_in_time() -> None:
    backend, deliveries = OwnLeases(0.5), list[Delivery]()
    with Running(partial(RenewThread, backend, 3600.0, lambda: list(deliveries))) as thread:
        deliveries.append(held(backend))
        expected = Stopwatch()
        thread.thread.expect(0.5)
        wait_until(lambda: renewals(thread.told()))
        assert expected.seconds() < 0.5, "renewed before its end"
        begun = time.monotonic()
    assert time.monotonic() - begun < 5.0, "a stop wakes it, too"


# --- the pool's record at the broker -------------------------------------------------------------------------------


def test_the_record_is_written_again_once_when_all_children_are_ready(inbox: Inbox) -> None:
    backend = MemoryBackend()
    ready = [0]

    def describe() -> control.PoolRecord:
        facts = {"name": "night", "host": "far", "pid": 7, "version": "1", "state": "running", "queues": ["a"]}
        return control.PoolRecord(id="0a1b", children=ready[-1], busy=0, lease_margin=None, started=1.0, **facts)  # type: ignore[arg-type]

    thread = ControlThread(backend, describe, lambda: 2, inbox)
    told = []
    for count in (0, 1, 2, 1, 2, 3):
        ready.append(count)
        thread._look()
        [record] = control.pools(backend)
        told.append(record.children)
    assert told == [0, 0, 2, 2, 2, 2]


# --- outages: told once for the pool as a whole, and so is their end -----------------------------------------------


SILENT = "the broker does not answer; trying again until it does"
REFUSED = "the broker refuses this pool; trying again until that is mended"
AGAIN = "the broker answers again"


@pytest.fixture
def outage(inbox: Inbox) -> BrokerRetry:
    stopped = threading.Event()
    stopped.set()  # so that nothing waits
    return BrokerRetry(inbox, stopped, "settle")


def said(stage: Stage) -> list[str]:
    """What was noted for the log of outages."""
    return [note.event for note in stage.pool.notes if "broker" in note.event]


def test_a_call_that_always_fails_and_one_that_always_succeeds_do_not_take_turns(
    inbox: Inbox, outage: BrokerRetry
) -> None:
    for _ in range(5):
        outage.failed(BackendUnavailable("silent"), "reap")
        outage.answered("count")
    assert inbox.take() == [ev.BrokerSilent("silent", "settle")]
    outage.answered("reap")
    assert inbox.take() == [ev.BrokerAnswered("settle")]


def test_a_kind_of_call_that_is_long_not_made_any_more_does_not_keep_an_outage_alive(
    inbox: Inbox, outage: BrokerRetry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its queue was paused, say, or there is no room for what it would bring."""
    outage.failed(BackendUnavailable("silent"), "fetch:reports")
    outage.answered()
    assert inbox.take() == [ev.BrokerSilent("silent", "settle")]
    monkeypatch.setattr(threads, "FORGET_FAILURE_S", 0.0)
    outage.answered()
    assert inbox.take() == [ev.BrokerAnswered("settle")]


def test_a_refusal_counts_as_an_outage_only_after_such_a_call_was_answered(inbox: Inbox, outage: BrokerRetry) -> None:
    refused = AccessRefused("mend the password")
    with pytest.raises(AccessRefused):
        outage.failed(refused, "count")
    outage.answered("count")
    outage.failed(refused, "count")
    outage.failed(refused, "settle", holding=True)
    assert inbox.take() == [ev.BrokerSilent("mend the password", "settle", AccessRefused)]


def test_each_kind_of_trouble_is_told(inbox: Inbox, outage: BrokerRetry) -> None:
    outage.answered("settle")
    for error in (BackendUnavailable("silent"), AccessRefused("mend"), AccessRefused("mend"), WriteRefused("full")):
        outage.failed(error, "settle")
    assert [event.kind for event in inbox.take() if isinstance(event, ev.BrokerSilent)] == [
        BackendUnavailable,
        AccessRefused,
        WriteRefused,
    ]


def test_an_outage_that_threads_meet_one_by_one_is_told_once_and_is_over_when_the_last_says_so() -> None:
    stage = Stage()
    stage.tell(ev.BrokerSilent("silent", "fetch"), ev.BrokerSilent("silent", "settle"))
    stage.tell(ev.BrokerAnswered("settle"), ev.BrokerSilent("silent", "settle"), ev.BrokerAnswered("settle"))
    stage.after(CALM_S)
    assert said(stage) == [SILENT]
    stage.tell(ev.BrokerAnswered("fetch"))
    stage.after(CALM_S)
    assert said(stage) == [SILENT, AGAIN]
    stage.tell(ev.BrokerSilent("silent", "renew"))
    assert said(stage) == [SILENT, AGAIN, SILENT]


def test_a_broker_that_refuses_and_answers_by_turns_is_told_of_at_the_beginning_now_and_then_and_at_the_end() -> None:
    stage = Stage()
    for _ in range(int(1.5 * REMIND_EVERY_S / CALM_S)):
        stage.tell(ev.BrokerSilent("mend it", "fetch", AccessRefused), ev.BrokerAnswered("fetch"))
        stage.after(0.9 * CALM_S)
    assert said(stage) == [REFUSED, REFUSED]
    stage.after(CALM_S)
    assert said(stage) == [REFUSED, REFUSED, AGAIN]


def test_the_line_that_tells_an_outage_again_names_the_queues_that_are_not_fetched_from() -> None:
    stage = Stage()
    stage.tell(ev.BrokerSilent("silent", "fetch"), ev.BreakerTurned("reports", True))
    stage.after(REMIND_EVERY_S)
    assert [note.fields.get("queues") for note in stage.pool.notes if note.event == SILENT] == [None, "reports"]


def test_an_outage_that_lasts_is_told_again_now_and_then() -> None:
    stage = Stage()
    stage.tell(ev.BrokerSilent("silent", "fetch"), ev.BrokerSilent("silent", "settle"))
    for _ in range(3):
        stage.after(0.5 * REMIND_EVERY_S)
    assert said(stage) == [SILENT, SILENT]


def test_a_refusal_in_an_outage_is_told_too_for_it_wants_another_mend() -> None:
    stage = Stage()
    stage.tell(ev.BrokerSilent("silent", "fetch"), ev.BrokerSilent("mend it", "fetch", AccessRefused))
    assert said(stage) == [SILENT, REFUSED]
    stage.tell(ev.BrokerAnswered("fetch"))
    stage.after(CALM_S)
    assert said(stage) == [SILENT, REFUSED, AGAIN]


def test_a_broker_that_refuses_to_write_makes_the_pool_unready_at_once_and_a_silent_one_later(stage: Stage) -> None:
    with Scoreboard.create(None, len(stage.pool.slots.all)) as board:
        publisher = Publisher(board, broker_interval=2.0)
        for refusals, is_ready, why in [
            ((), True, "ready"),
            ((ev.BrokerSilent("silent", "fetch"),), True, "ready"),
            ((ev.BrokerSilent("the disk is full", "settle", WriteRefused),), False, "refuses: the disk is full"),
        ]:
            stage.tell(*refusals)
            now = time.monotonic()
            publisher.publish(stage.pool, now, now, now)
            probe = ready(board.header.read(), now)
            assert (probe.ok, why in probe.text) == (is_ready, True), probe


def test_a_pool_that_is_refused_for_too_long_stops_and_says_why() -> None:
    stage = Stage().boot()
    stage.tell(ev.BrokerSilent("mend it", "fetch", AccessRefused))
    stage.after(MAX_REFUSED_S - 1.0)
    assert not stage.pool.is_stopping
    stage.after(1.0)
    assert stage.pool.is_stopping
    assert stage.pool.fatal == "mend it"


def test_a_refusal_that_ends_stops_no_pool() -> None:
    stage = Stage().boot()
    stage.tell(ev.BrokerSilent("mend it", "fetch", AccessRefused))
    stage.after(MAX_REFUSED_S - 1.0)
    stage.tell(ev.BrokerAnswered("fetch"), ev.BrokerSilent("silent", "fetch"))
    stage.after(2 * MAX_REFUSED_S)
    assert not stage.pool.is_stopping
