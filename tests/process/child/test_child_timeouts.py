"""The hard timeout, stage 1: what it must end, and what it must leave to the kill.

More ways to hang and to resist, and the kill itself: tests/faults/test_timeouts.py.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from childrig import ChildProcess

from jobpool.message.outcome import ResultKind

Start = Callable[..., ChildProcess]

TIMEOUT = 0.3

INTERRUPTED = [
    "hang_sleep",
    "hang_except_exception",
    "hang_async",
    "hang_async_swallow",
    "hang_async_side_task",
    "hang_in_repr",
    "hang_before",
    "hang_after",
    "hang_in_finally",
]
SWALLOWED_ONCE = [
    "hang_swallow_once",
    "fail_with_endless_words",
]
DISARMED = ["clear", "replace", "mask", "ignore", "replace in C"]


@pytest.mark.parametrize("handler", INTERRUPTED + SWALLOWED_ONCE)
def test_the_alarm_ends_it(handler: str, child: ChildProcess) -> None:
    result = child.run(handler, timeout=TIMEOUT)

    assert result.kind is ResultKind.TIMEOUT
    assert result.error.startswith(f"Job '{handler}' exceeded maximum execution time of 0.3 seconds.")
    assert "jobpool/child" not in result.error
    assert result.leaving == "timeout"
    assert TIMEOUT <= result.duration < 5
    assert child.exit_status() == 0


def test_finally_blocks_have_half_of_the_grace(start_child: Start) -> None:
    assert start_child(kill_grace=2.0).run("hang_in_finally", timeout=TIMEOUT).output == "cleaned up\n"


@pytest.mark.parametrize(
    ("handler", "payload"),
    [
        pytest.param("resist", {"seconds": TIMEOUT + 0.3}, id="except BaseException"),
        pytest.param("loop_in_c", {"count": 50_000_000}, id="C code"),
        *[pytest.param("disarm", {"how": how, "seconds": TIMEOUT + 0.1}, id=how) for how in DISARMED],
    ],
)
def test_what_resists_and_returns_late_has_timed_out(start_child: Start, handler: str, payload: object) -> None:
    assert start_child().run(handler, payload, timeout=TIMEOUT).kind is ResultKind.TIMEOUT


@pytest.mark.parametrize("how", DISARMED)
def test_the_next_job_has_its_alarm_again(how: str, child: ChildProcess) -> None:
    child.succeed("disarm", {"how": how}, timeout=5.0)
    assert child.run("hang_sleep", timeout=TIMEOUT).kind is ResultKind.TIMEOUT


def test_a_pending_masked_alarm_does_not_hit_the_next_job(child: ChildProcess) -> None:
    """The alarm of the first is pending, unseen, when the handler returns in time by its own clock."""
    for _ in range(5):
        child.succeed("disarm", {"how": "mask"}, timeout=5.0)
        child.succeed("noop", timeout=5.0)
