"""The hard timeout, whatever the handler does against it (FAULTS 10 and 11)."""

from __future__ import annotations

import re

from support.apps_pool import HANGS, IN_C
from support.poolrig import Rig, wait_gone
from support.waiting import wait_until

TIMEOUT = 0.5
GRACE = 0.4
SLACK = 0.5
POOL = ("--kill-grace", str(GRACE))
BY_ALARM = ("hang_in_sleep", "hang_in_lock", "hang_in_read", "hang_in_subprocess", "swallow_exception")
"""What the alarm ends, so that no kill is needed."""


def test_every_way_to_hang_is_ended_in_time_as_a_failed_attempt(rig: Rig) -> None:
    rig.start_pool(*POOL, workers=4).wait_ready(4)
    ids = {how: rig.enqueue("hang", {"how": how}, timeout=TIMEOUT) for how in HANGS}
    rig.wait_drained()
    wrong = {}
    for how, ident in ids.items():
        message = rig.inspect(ident)
        [start] = rig.starts(ident)
        took = (message.died_at or 0.0) - start.wall
        named = how in IN_C or how in (message.last_error or "")
        limit = TIMEOUT + GRACE + SLACK
        if (message.reason, message.crashes) != ("timeout", 0) or not TIMEOUT <= took < limit or not named:
            wrong[how] = (message.reason, message.crashes, round(took, 3), message.last_error)
    assert not wrong, wrong


def test_the_record_names_the_line_in_which_c_code_hung(rig: Rig) -> None:
    """The grace is long: within it the hanging process needs a core for a moment, to write its stack."""
    rig.start_pool("--kill-grace", "1.5", workers=3).wait_ready(3)
    ids = [rig.enqueue("hang", {"how": how}, timeout=TIMEOUT) for how in IN_C]
    rig.wait_drained()
    for ident, how in zip(ids, IN_C, strict=True):
        error = rig.inspect(ident).last_error or ""
        assert error.startswith("Job 'hang' exceeded maximum execution time of 0.5 seconds."), error
        assert re.search(rf'File ".*apps_pool\.py", line \d+ in {how}', error), error
        assert "jobpool/child/" not in error, "only the user's own lines"


def test_what_meets_the_alarm_ends_at_once(rig: Rig) -> None:
    rig.start_pool("--kill-grace", "10", workers=3).wait_ready(3)
    ids = [rig.enqueue("hang", {"how": how}, timeout=TIMEOUT) for how in BY_ALARM]
    rig.wait_drained()
    for ident in ids:
        message = rig.inspect(ident)
        assert message.reason == "timeout"
        assert (message.died_at or 0) - rig.starts(ident)[0].wall < TIMEOUT + SLACK


def test_a_timeout_burns_an_attempt_and_no_crash_and_the_child_is_replaced(rig: Rig) -> None:
    pool = rig.start_pool(*POOL).wait_ready(2)
    ident = rig.enqueue("hang", {"how": "hang_in_sum"}, timeout=TIMEOUT, max_retries=1)
    wait_until(lambda: rig.is_dead(ident))
    first, second = rig.starts(ident)
    assert (second.attempt, second.crashes) == (2, 0)
    wait_gone([first.pid, second.pid], 0.5)
    pool.wait_ready(2)
    rig.wait_started(rig.enqueue("work"))
    assert pool.stop() == 0
    rig.assert_no_processes_left()


def test_a_hanging_job_makes_no_other_job_late(rig: Rig) -> None:
    pool = rig.start_pool(*POOL, workers=2).wait_ready(2)
    hanging = rig.enqueue("hang", {"how": "hang_in_sum"}, timeout=3.0)
    rig.wait_started(hanging)
    ids = rig.enqueue_many("noop", [{}] * 300) + rig.enqueue_many("work", [{"seconds": 0.005}] * 100)
    wait_until(lambda: rig.stats().pending == 1, 2.8, "all but the hanging one are done")
    assert len(rig.ends()) == 100
    assert len(ids) == 400
    assert pool.stop() == 0


def test_handlers_that_end_at_their_timeout_are_one_thing_or_the_other(rig: Rig) -> None:
    """FAULTS 12 in short: success or timeout, never both, and nothing gets into the next job."""
    ids = [
        rig.enqueue("work", {"seconds": 0.02 + step * 0.0002}, timeout=0.02)
        for step in range(-20, 20)
        for _ in range(3)
    ]
    rig.run_pool("--until-empty", *POOL)
    dead = rig.dead()
    assert {message.reason for message in dead.values()} <= {"timeout"}
    assert set(ids) - set(dead) <= {line.id for line in rig.ends()}
    assert all(len(rig.starts(ident)) == 1 for ident in ids)
    rig.account().assert_clean()


def test_the_pools_default_timeout_holds_for_jobs_that_name_none(rig: Rig) -> None:
    ident = rig.enqueue("hang", {"how": "hang_in_sleep"})
    unlimited = rig.enqueue("work", {"seconds": 1.0}, timeout=0)
    rig.run_pool("--until-empty", "--default-timeout", "0.3", *POOL)
    assert rig.inspect(ident).reason == "timeout"
    assert rig.ends(unlimited)
