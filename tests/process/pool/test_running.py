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
    rig.witness = True
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


def test_max_counts_exactly_so_many_that_were_settled_and_none_that_is_given_back(rig: Rig) -> None:
    rig.enqueue("ask_for", {"what": "snooze"}, priority=1)
    rig.enqueue_many("work", [{}] * 60)
    assert rig.run_pool("--max", "25", workers=3).wait() == 0
    assert len(rig.ends()) == len({line.id for line in rig.ends()}) == 25
    assert rig.stats().pending == 36


def test_a_smaller_priority_number_runs_sooner(rig: Rig) -> None:
    for priority in (9, 5, 1, 7, 3):
        rig.enqueue_many("work", [{"seconds": 0.01, "tag": str(priority)}] * 4, priority=priority)
    rig.witness = True
    rig.run_pool("--until-empty", workers=1)
    # What a pool holds for 100 ms and does not begin goes back, as when the machine stands still: others may be sooner.
    given_back = {line.id for line in rig.lines("settled") if line.verb == "release"}
    order = [int(line.tag) for line in rig.starts() if line.id not in given_back]
    assert order == sorted(order)
    assert len(rig.starts()) == 20


@pytest.mark.brokers
def test_an_idle_pool_costs_next_to_nothing_and_begins_what_comes_or_falls_due(rig: Rig) -> None:
    pool = rig.start_pool().wait_ready(2)
    delays = []
    for _ in range(15):
        enqueued = time.monotonic()
        [start] = rig.wait_started(rig.enqueue("work"))
        delays.append(start.at - enqueued)
    assert statistics.median(delays) < 0.1, delays
    before, began = pool.cpu_seconds(), time.monotonic()
    wait_until(lambda: time.monotonic() - began > 2.0)
    assert pool.cpu_seconds() - before < 0.2
    asked = Stopwatch()
    ident = rig.enqueue("work", scheduled_at=_in(1.2))
    [start] = rig.wait_started(ident)
    assert start.at - asked.began >= 1.19
    assert start.at - asked.began < 1.8 + asked.stalled()
    assert pool.stop() == 0


@pytest.mark.brokers
def test_a_handler_fills_a_batch_also_if_it_is_killed_or_fails_meanwhile(rig: Rig) -> None:
    ident = rig.enqueue("fan_out", max_retries=1)
    rig.run_pool("--until-empty", "--fail-on-dead", "--retry", "fixed base=50ms", "--ttl", "2")
    assert [line.tag for line in rig.ends(ident)] == ["4"]
    assert sorted(line.tag for line in rig.ends() if line.id != ident) == ["fanned out: 4 of 4", *["member"] * 4]


@pytest.mark.brokers
def test_what_handlers_may_ask_for(rig: Rig) -> None:
    retry = rig.enqueue("ask_for", {"what": "retry"}, max_retries=1)
    snooze = rig.enqueue("ask_for", {"what": "snooze"})
    unrecoverable = rig.enqueue("ask_for", {"what": "unrecoverable"}, max_retries=9)
    failing = rig.enqueue("fail", {"times": 2}, max_retries=2)
    hopeless = rig.enqueue("fail", {"times": 99}, name="the daily report", max_retries=2)
    unknown = rig.enqueue("nobody")
    rig.enqueue("typed", {"customer": 7})
    asleep = rig.enqueue("asleep", {"seconds": 0.05})
    good, bad, producer = rig.enqueue("follow_up"), rig.enqueue("follow_up", {"fail": True}), rig.enqueue("produce")
    flags = ("--retry", "fixed base=50ms", "--unknown-handler-grace", "0.5", "--enqueue-to", "reports,default")
    pool = rig.run_pool("--until-empty", "--fail-on-dead", *flags)
    assert pool.wait() == 1
    runs = {ident: [line.attempt for line in rig.starts(ident)] for ident in (retry, snooze, failing, hopeless)}
    assert runs == {retry: [1, 2], snooze: [1, 1], failing: [1, 2, 3], hopeless: [1, 2, 3]}
    assert all(rig.ends(ident) for ident in (retry, snooze, failing, asleep))
    assert "7 2026-06" in {line.tag for line in rig.ends()}
    assert [line.id for line in rig.ends() if line.tag == "follow-up"] == [rig.ends(good)[0].tag], "only with the ack"
    assert {line.id for line in rig.ends() if line.tag == "produced"} == set(rig.ends(producer)[0].tag.split(","))

    dead = rig.dead()
    assert set(dead) == {unrecoverable, hopeless, unknown, bad}
    assert "no such customer" in (dead[unrecoverable].last_error or "")
    assert (dead[unknown].reason, dead[unknown].attempts, dead[unknown].crashes) == ("unknown-handler", 0, 0)
    assert (dead[hopeless].reason, dead[hopeless].attempts) == ("failed", 3), "the last failure too"
    [told] = [entry for entry in pool.log() if entry.get("id") == hopeless and entry["level"] == "critical"]
    assert (told["event"], told["name"], told["handler"]) == ("a message is dead", "the daily report", "fail")
    assert (told["queue"], told["attempts"], told["reason"]) == ("default", 3, "failed")
    last_line = (dead[hopeless].last_error or "").strip().splitlines()[-1]
    assert last_line
    assert told["error"] in last_line or last_line in told["error"]


def _in(seconds: float) -> datetime:
    return at(time.time() + seconds)


@pytest.mark.parametrize("closed", ["0<&- 1>&-", "0<&- 1>&- 2>&-"])
def test_a_pool_that_is_started_without_standard_streams_runs(rig: Rig, closed: str) -> None:
    rig.enqueue("work")
    rig.enqueue("fail", {"times": 9}, max_retries=0)
    pool = rig.start_pool("--until-empty", through=("sh", "-c", f'exec "$@" {closed}', "sh"))
    assert pool.wait() == 0
    assert len(rig.ends()) == 1
    assert len(rig.dead()) == 1
    assert bool(pool.log("a message is dead")) is ("2" not in closed)
