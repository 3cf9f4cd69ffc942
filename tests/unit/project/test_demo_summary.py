"""What the demo says about a good day and about bad ones."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stdlib_reports.shelf import Entry
from stdlib_reports.summary import DeadLetter, Picture, differences, lines

HANG = DeadLetter("h", "hang", "timeout", "", "line 47 in hang", died_at=103.1)
CRASH = DeadLetter("c", "crash", "crash-limit", "killed by SIGSEGV", "", died_at=102.0)


def started(job: str, attempt: int = 1, fence: int = 1, at: float = 100.0) -> Entry:
    return Entry(job, job, attempt, fence, pid=1000 + fence, at=at)


GOOD = Picture(
    reports=("r1", "r2"),
    hang="h",
    crash="c",
    flaky="f",
    pages=2,
    pending=0,
    dead=(HANG, CRASH),
    ledger=(
        started("h"),
        *(started("c", fence=fence) for fence in (1, 2, 3)),
        *(started("f", attempt=attempt, fence=attempt) for attempt in (1, 2, 3)),
        started("r1"),
        started("r2"),
    ),
    allowed=3.0,
    crashes=3,
    pool_exit=0,
)


def test_a_good_day() -> None:
    assert differences(GOOD) == []
    assert {line.what: line.count for line in lines(GOOD)} == {
        "acked": 3,
        "retried": 2,
        "timed out": 1,
        "crashed": 3,
        "dead letters": 2,
        "lost": 0,
    }


def test_a_good_day_says_why() -> None:
    text = " ".join(line.why for line in lines(GOOD))

    assert "killed after 3.10 s (3.0 s allowed)" in text
    assert "crash took 3 processes with it, each killed by SIGSEGV; then" in text
    assert "attempts 1, 2, 3" in text


def without(job: str) -> tuple[Entry, ...]:
    return tuple(entry for entry in GOOD.ledger if entry.job != job)


@pytest.mark.parametrize(
    ("picture", "said"),
    [
        pytest.param(replace(GOOD, pool_exit=1), "status 1", id="the pool failed"),
        pytest.param(replace(GOOD, pending=4), "4 jobs are still in the queue", id="not empty"),
        pytest.param(replace(GOOD, pages=1), "1 of 2 reports", id="a page is missing"),
        pytest.param(
            replace(GOOD, dead=(HANG, CRASH, replace(HANG, id="r1", error="Traceback\nOSError: full\n"))),
            "r1 is a dead letter, timeout: OSError: full",
            id="a report died",
        ),
        pytest.param(replace(GOOD, dead=(CRASH,)), "is no dead letter", id="the hang got away"),
        pytest.param(replace(GOOD, ledger=without("h")), "is no dead letter", id="the hang never started"),
        pytest.param(
            replace(GOOD, dead=(replace(HANG, reason="crash-limit"), CRASH)), "'crash-limit'", id="hang, wrong reason"
        ),
        pytest.param(replace(GOOD, dead=(replace(HANG, error=""), CRASH)), "without its stack", id="no stack"),
        pytest.param(replace(GOOD, dead=(replace(HANG, died_at=109.0), CRASH)), "after 9.0 s", id="killed late"),
        pytest.param(replace(GOOD, dead=(HANG,)), "segfaults is no dead letter", id="the crash got away"),
        pytest.param(replace(GOOD, crashes=6), "started 3 times; it should be 6", id="crash limit not kept"),
        pytest.param(replace(GOOD, ledger=without("f")), "attempts []", id="flaky never ran"),
    ],
)
def test_a_bad_day_is_named(picture: Picture, said: str) -> None:
    assert any(said in text for text in differences(picture)), differences(picture)


def test_a_report_that_vanished_is_lost() -> None:
    assert replace(GOOD, pages=1).lost == 1
    assert replace(GOOD, pages=1, pending=1).lost == 0


def test_a_summary_of_nothing_can_be_printed() -> None:
    nothing = replace(GOOD, dead=(), ledger=(), pages=0)

    assert [line.count for line in lines(nothing)] == [5, 0, 0, 0, 0, 2]
