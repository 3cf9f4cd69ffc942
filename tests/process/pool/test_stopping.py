"""Stops: by a supervisor, by a person at a terminal, twice, under load (FAULTS 21)."""

from __future__ import annotations

import os
import signal
import time

import pytest
from support.poolrig import Rig, measured
from support.waiting import wait_until

from jobpool.master.watch import UNDEAD_AFTER

GRACE = 1.5


def test_a_stop_lets_short_jobs_end_and_gives_back_long_ones(rig: Rig) -> None:
    pool = rig.start_pool("--stop-grace", str(GRACE), workers=3).wait_ready(3)
    end = rig.directory / "end"
    short = rig.enqueue("again", {"first": 0.1, "later": 0, "until": str(end)})
    long = rig.enqueue("again", {"first": 60, "later": 0})
    hour = rig.enqueue("hang", {"how": "hang_in_sum"}, timeout=3600)
    rig.wait_started(short, long, hour)
    waiting = rig.enqueue_many("work", [{}] * 50)
    asked = time.monotonic()
    pool.send(signal.SIGTERM)
    wait_until(lambda: pool.header().draining)
    end.touch()  # not before: the pool would take what waits
    assert pool.wait() == 0
    assert GRACE <= time.monotonic() - asked < GRACE + UNDEAD_AFTER, "and nothing is waited for that was killed"
    rig.assert_no_processes_left()
    assert rig.ends(short)
    assert rig.stats().waiting == 52, "at once fetchable"
    for ident in (long, hour):
        message = rig.inspect(ident)
        assert (message.attempts, message.crashes) == (0, 0)
    assert all(rig.inspect(ident).deliveries <= 1 for ident in waiting)

    rig.run_pool("--max", "1", workers=1)
    assert [line.attempt for line in rig.starts(long)] == [1, 1], "it keeps its old place"
    assert [line.crashes for line in rig.starts(long)] == [0, 0]


def test_an_idle_pool_stops_at_once(rig: Rig) -> None:
    pool = rig.start_pool().wait_ready(2)
    assert measured(lambda: pool.stop()) < 1.0
    assert pool.wait() == 0
    rig.assert_no_processes_left(0.2)
    assert list(rig.runtime.iterdir()) == []


@pytest.mark.brokers
def test_a_stop_in_a_stream_of_short_jobs_loses_and_repeats_none(rig: Rig) -> None:
    rig.enqueue_many("work", [{"seconds": 0.002}] * 2500)  # a second for each pool: some are left for the last one
    for _ in range(3):
        pool = rig.start_pool(workers=2)
        before = len(rig.starts())
        wait_until(lambda b=before: len(rig.starts()) > b + 200)  # type: ignore[misc]
        took = measured(lambda p=pool: p.stop())  # type: ignore[misc]
        assert pool.wait() == 0
        assert took < 1.5
        assert rig.stats().leased == 0
        rig.assert_no_processes_left()
    assert rig.run_pool("--until-empty").wait() == 0
    account = rig.account()
    account.assert_once_each()
    assert set(account.crashes.values()) == {0}
    assert len(rig.starts()) == len(rig.ends()) == 2500


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_kills_at_once(rig: Rig, number: signal.Signals) -> None:
    pool = rig.start_pool("--stop-grace", "60").wait_ready(2)
    ids = [rig.enqueue("work", {"seconds": 100}), rig.enqueue("hang", {"how": "swallow_everything"})]
    rig.wait_started(*ids)
    pool.send(number)
    wait_until(lambda: pool.header().draining)
    assert measured(lambda: pool.stop(number)) < 1.0
    assert pool.wait() == 0
    rig.assert_no_processes_left()
    assert rig.stats().waiting == 2
    assert all((m := rig.inspect(ident)).attempts == m.crashes == 0 for ident in ids)


def test_ctrl_c_reaches_the_whole_group_and_children_go_on(rig: Rig) -> None:
    pool = rig.start_pool("--stop-grace", "10").wait_ready(2)
    ident = rig.enqueue("work", {"seconds": 0.7})
    rig.wait_started(ident)
    os.killpg(pool.pid, signal.SIGINT)
    assert pool.wait() == 0
    rig.account().assert_once_each()
    assert rig.ends(ident)
    rig.assert_no_processes_left()


def test_a_term_to_every_process_of_the_pool_costs_no_attempt_and_no_message(rig: Rig) -> None:
    """What a supervisor does that signals a whole control group."""
    pool = rig.start_pool("--stop-grace", "5").wait_ready(2)
    ids = rig.enqueue_many("work", [{"seconds": 0.3}] * 10)
    rig.wait_started(ids[0])
    for pid in (pool.pid, *pool.fork_servers(), *pool.children()):
        os.kill(pid, signal.SIGTERM)
    assert pool.wait(10) == 0
    rig.assert_no_processes_left()
    account = rig.account()
    account.assert_clean()
    assert rig.stats().leased == 0
    assert all(rig.inspect(ident).attempts == 0 for ident in ids if not rig.ends(ident))


def test_a_stop_before_the_app_is_loaded(rig: Rig) -> None:
    app = rig.directory / "slow_app.py"
    app.write_text("import time\nimport jobpool\n\ntime.sleep(30)\n\n@jobpool.handler\ndef noop(ctx): ...\n")
    pool = rig.start_pool(app=app)
    wait_until(lambda: pool.process.poll() is None and pool.fork_servers())
    assert measured(lambda: pool.stop()) < 2.0
    assert pool.wait() == 0
    rig.assert_no_processes_left()


def test_a_stop_right_after_the_start(rig: Rig) -> None:
    for delay in (0.0, 0.1, 0.2, 0.3, 0.4):
        pool = rig.start_pool()
        begun = time.monotonic()
        wait_until(lambda b=begun, d=delay: time.monotonic() - b >= d)  # type: ignore[misc]
        assert pool.stop(limit=3.0) in (0, 1, -signal.SIGTERM), pool.log_path.read_text()
        rig.assert_no_processes_left()
        assert "Traceback" not in pool.log_path.read_text()
