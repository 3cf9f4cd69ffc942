"""How a pool is used: what runs, in which order, when it stops by itself and with which status."""

from __future__ import annotations

import statistics
import time
from datetime import datetime

import pytest
from support.jobs import at
from support.poolrig import Rig
from support.stalls import Stopwatch
from support.waiting import wait_until


@pytest.mark.brokers
def test_until_empty_runs_everything_and_exits_0(rig: Rig) -> None:
    rig.enqueue_many("work", [{}] * 300)
    rig.enqueue("work", {"tag": "late"}, scheduled_at=_in(0.6))
    pool = rig.run_pool("--until-empty", "--fail-on-dead")
    assert pool.wait() == 0
    rig.account().assert_once_each()
    assert len(rig.ends()) == 301, "delayed ones are waited for"
    rig.assert_no_processes_left()


def test_once_runs_exactly_one_job(rig: Rig) -> None:
    rig.enqueue_many("work", [{}] * 5)
    assert rig.run_pool("--once").wait() == 0
    assert len(rig.starts()) == 1
    assert rig.stats().waiting == 4


def test_max_runs_exactly_so_many(rig: Rig) -> None:
    rig.enqueue_many("work", [{}] * 60)
    assert rig.run_pool("--max", "25", workers=3).wait() == 0
    assert len(rig.starts()) == 25
    assert rig.stats().waiting == 35
    rig.account().assert_once_each()


def test_max_counts_each_message_that_was_settled_not_those_given_back(rig: Rig) -> None:
    rig.enqueue("ask_for", {"what": "snooze"})
    assert rig.run_pool("--max", "1").wait() == 0
    assert [line.event for line in rig.lines()] == ["start", "start", "end"]


def test_fail_on_dead_exits_1_after_all_the_others(rig: Rig) -> None:
    rig.enqueue_many("work", [{}] * 10)
    rig.enqueue("fail", {"times": 9})
    assert rig.run_pool("--until-empty", "--fail-on-dead").wait() == 1
    assert len(rig.ends()) == 10
    assert rig.run_pool("--until-empty", "--fail-on-dead").wait() == 0, "an old dead letter is not this run's"


def test_a_smaller_priority_number_runs_sooner(rig: Rig) -> None:
    for priority in (9, 5, 1, 7, 3):
        rig.enqueue_many("work", [{"seconds": 0.01, "tag": str(priority)}] * 4, priority=priority)
    rig.run_pool("--until-empty", workers=1)
    order = [int(line.tag) for line in rig.starts()]
    assert order == sorted(order)


@pytest.mark.brokers
def test_a_delayed_job_falls_due_while_the_pool_is_idle(rig: Rig) -> None:
    pool = rig.start_pool().wait_ready(2)
    asked = Stopwatch()
    ident = rig.enqueue("work", scheduled_at=_in(1.2))
    [start] = rig.wait_started(ident)
    assert start.at - asked.began >= 1.19
    assert start.at - asked.began < 1.8 + asked.stalled()
    assert pool.stop() == 0


def test_an_idle_pool_begins_a_job_soon_after_its_enqueue(rig: Rig) -> None:
    pool = rig.start_pool().wait_ready(2)
    delays = []
    for _ in range(15):
        enqueued = time.monotonic()
        [start] = rig.wait_started(rig.enqueue("work"))
        delays.append(start.at - enqueued)
    assert statistics.median(delays) < 0.1, delays
    assert pool.stop() == 0


def test_an_idle_pool_costs_next_to_no_time(rig: Rig) -> None:
    pool = rig.start_pool().wait_ready(2)
    rig.wait_started(rig.enqueue("work"))
    before, began = _cpu_seconds(pool.pid), time.monotonic()
    wait_until(lambda: time.monotonic() - began > 2.0)
    assert _cpu_seconds(pool.pid) - before < 0.2
    assert pool.stop() == 0


@pytest.mark.brokers
def test_two_pools_share_one_queue(rig: Rig) -> None:
    pools = [rig.start_pool().wait_ready(2) for _ in range(2)]
    owner = {child: pool.name for pool in pools for child in pool.children()}
    gate = rig.directory / "gate"
    # One for each child: a pool that misses the bell looks by itself within 0.5 s, and the other would be done by then.
    rig.wait_started(*rig.enqueue_many("again", [{"first": 0, "later": 0, "until": str(gate)}] * 4))
    rig.enqueue_many("work", [{"seconds": 0.005}] * 300)
    gate.touch()
    rig.wait_drained()
    rig.account().assert_once_each()
    shares = [owner[line.pid] for line in rig.starts()]
    assert min(shares.count(pool.name) for pool in pools) > 30
    assert [pool.stop() for pool in pools] == [0, 0]
    rig.assert_no_processes_left()


def test_queues_share_by_their_weights(rig: Rig) -> None:
    for queue in ("much", "little"):
        rig.enqueue_many("work", [{"seconds": 0.005, "tag": queue}] * 200, queue=queue)
    pool = rig.start_pool("-Q", "much=4,little=1")
    wait_until(lambda: len(rig.starts()) >= 150)
    first = [line.tag for line in rig.starts()[:150]]
    assert 0.6 < first.count("much") / 150 < 0.95
    assert pool.stop() == 0


@pytest.mark.brokers
def test_what_handlers_may_ask_for(rig: Rig) -> None:
    retry = rig.enqueue("ask_for", {"what": "retry"}, max_retries=1)
    snooze = rig.enqueue("ask_for", {"what": "snooze"})
    unrecoverable = rig.enqueue("ask_for", {"what": "unrecoverable"}, max_retries=9)
    failing = rig.enqueue("fail", {"times": 2}, max_retries=2)
    rig.enqueue("typed", {"customer": 7})
    asleep = rig.enqueue("asleep", {"seconds": 0.05})
    rig.run_pool("--until-empty")
    assert [line.attempt for line in rig.starts(retry)] == [1, 2]
    assert [line.attempt for line in rig.starts(snooze)] == [1, 1]
    assert [line.attempt for line in rig.starts(failing)] == [1, 2, 3]
    assert rig.ends(failing)
    assert rig.ends(asleep)
    assert "7 2026-06" in {line.tag for line in rig.ends()}
    assert set(rig.dead()) == {unrecoverable}
    assert "no such customer" in (rig.inspect(unrecoverable).last_error or "")


@pytest.mark.brokers
def test_follow_ups_are_sent_with_the_ack_and_only_then(rig: Rig) -> None:
    good, bad = rig.enqueue("follow_up"), rig.enqueue("follow_up", {"fail": True})
    rig.run_pool("--until-empty")
    assert [line.id for line in rig.ends() if line.tag == "follow-up"] == [rig.ends(good)[0].tag]
    assert set(rig.dead()) == {bad}


def test_jobs_inside_a_handler_go_through_the_master(rig: Rig) -> None:
    ident = rig.enqueue("produce")
    assert rig.run_pool("--until-empty", "--fail-on-dead").wait() == 0
    produced = rig.ends(ident)[0].tag.split(",")
    assert {line.id for line in rig.ends() if line.tag == "produced"} == set(produced)


def test_an_unknown_handler_is_waited_for_and_then_dead(rig: Rig) -> None:
    ident = rig.enqueue("nobody")
    rig.run_pool("--until-empty", "--unknown-handler-grace", "0.5")
    message = rig.inspect(ident)
    assert message.reason == "unknown-handler"
    assert message.attempts == message.crashes == 0


def test_retries_run_as_often_as_the_job_asks(rig: Rig) -> None:
    ident = rig.enqueue("fail", {"times": 99}, max_retries=2)
    rig.run_pool("--until-empty", "--retry", "fixed base=50ms")
    assert [line.attempt for line in rig.starts(ident)] == [1, 2, 3]
    assert rig.inspect(ident).reason == "failed"
    assert rig.inspect(ident).attempts == 3, "the last failure too"
    rig.account().assert_clean()


def _in(seconds: float) -> datetime:
    return at(time.time() + seconds)


def _cpu_seconds(pid: int) -> float:
    with open(f"/proc/{pid}/stat") as stat:
        fields = stat.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


@pytest.mark.parametrize("closed", ["0<&-", "1>&-", "2>&-", "0<&- 1>&- 2>&-"])
def test_a_pool_that_is_started_without_standard_streams_runs(rig: Rig, closed: str) -> None:
    rig.enqueue("work")
    rig.enqueue("fail", {"times": 9}, max_retries=0)
    pool = rig.start_pool("--until-empty", through=("sh", "-c", f'exec "$@" {closed}', "sh"))
    assert pool.wait() == 0
    assert len(rig.ends()) == 1
    assert len(rig.dead()) == 1
    assert bool(pool.log("a message is dead")) is ("2" not in closed)
