"""An outage is told once for the pool as a whole, and so is its end; a refusal that lasts ends the pool."""

from __future__ import annotations

import threading
import time

import pytest
from stage import Stage

from jobpool.errors import AccessRefused, BackendUnavailable, WriteRefused
from jobpool.ipc.scoreboard import Scoreboard
from jobpool.master import events as ev
from jobpool.master import threads
from jobpool.master.inbox import Inbox
from jobpool.master.telemetry import Publisher
from jobpool.master.threads import BrokerRetry
from jobpool.telemetry.metrics.pages import ready

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


# --- one thread -----------------------------------------------------------------------------------------------


def test_a_call_that_always_fails_and_one_that_always_succeeds_do_not_take_turns(
    inbox: Inbox, outage: BrokerRetry
) -> None:
    for _ in range(5):
        outage.failed(BackendUnavailable("silent"), "reap")
        outage.over("count")
    assert inbox.take() == [ev.BrokerSilent("silent", "settle")]
    outage.over("reap")
    assert inbox.take() == [ev.BrokerAnswered("settle")]


def test_a_kind_of_call_that_is_long_not_made_any_more_does_not_keep_an_outage_alive(
    inbox: Inbox, outage: BrokerRetry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its queue was paused, say, or there is no room for what it would bring."""
    outage.failed(BackendUnavailable("silent"), "fetch:reports")
    outage.over()
    assert inbox.take() == [ev.BrokerSilent("silent", "settle")]
    monkeypatch.setattr(threads, "FORGET_FAILURE_S", 0.0)
    outage.over()
    assert inbox.take() == [ev.BrokerAnswered("settle")]


def test_a_refusal_counts_as_an_outage_only_after_such_a_call_was_answered(inbox: Inbox, outage: BrokerRetry) -> None:
    refused = AccessRefused("mend the password")
    with pytest.raises(AccessRefused):
        outage.failed(refused, "count")
    outage.over("count")
    outage.failed(refused, "count")
    outage.failed(refused, "settle", holding=True)
    assert inbox.take() == [ev.BrokerSilent("mend the password", "settle", AccessRefused)]


def test_each_kind_of_trouble_is_told(inbox: Inbox, outage: BrokerRetry) -> None:
    outage.over("settle")
    for error in (BackendUnavailable("silent"), AccessRefused("mend"), AccessRefused("mend"), WriteRefused("full")):
        outage.failed(error, "settle")
    assert [event.kind for event in inbox.take() if isinstance(event, ev.BrokerSilent)] == [
        BackendUnavailable,
        AccessRefused,
        WriteRefused,
    ]


# --- the pool -------------------------------------------------------------------------------------------------


def test_an_outage_that_threads_meet_one_by_one_is_told_once_and_is_over_when_the_last_says_so() -> None:
    stage = Stage()
    stage.tell(ev.BrokerSilent("silent", "fetch"), ev.BrokerSilent("silent", "settle"))
    stage.tell(ev.BrokerAnswered("settle"), ev.BrokerSilent("silent", "settle"), ev.BrokerAnswered("settle"))
    assert said(stage) == [SILENT]
    stage.tell(ev.BrokerAnswered("fetch"))
    assert said(stage) == [SILENT, AGAIN]
    stage.tell(ev.BrokerSilent("silent", "renew"))
    assert said(stage) == [SILENT, AGAIN, SILENT]


def test_a_refusal_in_an_outage_is_told_too_for_it_wants_another_mend() -> None:
    stage = Stage()
    stage.tell(ev.BrokerSilent("silent", "fetch"), ev.BrokerSilent("mend it", "fetch", AccessRefused))
    assert said(stage) == [SILENT, REFUSED]
    stage.tell(ev.BrokerAnswered("fetch"))
    assert said(stage) == [SILENT, REFUSED, AGAIN]


def test_a_broker_that_refuses_to_write_makes_the_pool_unready_at_once_and_a_silent_one_later() -> None:
    stage = Stage(workers=1).boot()
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
    stage = Stage(broker_refusal_timeout=60.0).boot()
    stage.tell(ev.BrokerSilent("mend it", "fetch", AccessRefused))
    stage.after(59.0)
    assert not stage.pool.is_stopping
    stage.after(1.0)
    assert stage.pool.is_stopping
    assert stage.pool.fatal == "mend it"


@pytest.mark.parametrize("limit", [60.0, 0.0])
def test_a_refusal_that_ends_or_has_no_limit_stops_no_pool(limit: float) -> None:
    stage = Stage(broker_refusal_timeout=limit).boot()
    stage.tell(ev.BrokerSilent("mend it", "fetch", AccessRefused))
    stage.after(59.0)
    if limit:
        stage.tell(ev.BrokerAnswered("fetch"), ev.BrokerSilent("silent", "fetch"))
    stage.after(3600.0)
    assert not stage.pool.is_stopping
