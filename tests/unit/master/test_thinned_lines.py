"""Which of the pool's own lines are thinned out when many of a kind come."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest
from stage import Stage

from jobpool.ipc.frames import HandlerInfo
from jobpool.ipc.scoreboard import Scoreboard
from jobpool.master.state import GIVEN_BACK, Pool
from jobpool.master.telemetry import Publisher
from jobpool.message.outcome import ResultKind
from jobpool.telemetry.logs import configure

NAMES = [f"h{number}" for number in range(10)]
SUCCEEDED, FAILED = ResultKind.SUCCEEDED, ResultKind.FAILED


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    logger = logging.getLogger("jobpool")
    before = (list(logger.handlers), logger.level, logger.propagate)
    stream = io.StringIO()
    configure("debug", "json", stream)
    yield stream
    logger.handlers[:], logger.level, logger.propagate = before
    logger.setLevel(before[1])


def a_stage(level: str = "info") -> Stage:
    stage = Stage(workers=1, log_level=level)
    stage.tell()
    stage.load(handlers=[HandlerInfo(name) for name in NAMES])
    stage.make_ready()
    return stage


def told(log: io.StringIO, kind: ResultKind, names: list[str], level: str) -> list[str]:
    """Run a job of each handler; return those that the log names."""
    stage = a_stage(level)
    for name in names:
        stage.lease(name, max_retries=0)
        stage.answer(stage.busy[0], kind)
    return written(log, stage.pool)


def written(log: io.StringIO, pool: Pool) -> list[str]:
    pool.notes = [note for note in pool.notes if note.fields.get("handler")]
    with Scoreboard.create(None, 1) as board:
        Publisher(board).write_log(pool)
    return [json.loads(line)["handler"] for line in log.getvalue().splitlines()]


@pytest.mark.parametrize(("kind", "names"), [(SUCCEEDED, NAMES * 2), (FAILED, ["h0"] * 20)])
def test_each_job_that_ends_has_a_line_if_each_is_asked_for(
    log: io.StringIO, kind: ResultKind, names: list[str]
) -> None:
    assert told(log, kind, names, "debug") == names


def test_snoozes_are_told_and_thinned(log: io.StringIO) -> None:
    stage = a_stage()
    stage.lease("h0")
    stage.answer(stage.busy[0], ResultKind.SNOOZE, after=60.0)
    (note,) = [note for note in stage.pool.notes if note.event == "job snoozed"]
    assert (note.level, note.fields["again_in"]) == ("info", "1m00s")
    assert told(log, ResultKind.SNOOZE, NAMES * 2, "info") == NAMES[:5]


def test_of_a_flood_of_deaths_each_handler_is_named(log: io.StringIO) -> None:
    assert told(log, FAILED, ["h0"] * 20 + NAMES, "info") == ["h0"] * 5 + NAMES[1:]


def test_each_running_job_that_is_given_back_has_a_line(log: io.StringIO) -> None:
    pool = a_stage().pool
    for line in [*GIVEN_BACK.values()] * 20:
        pool.note("warning", line, handler="h0")
    assert written(log, pool) == ["h0"] * 20 * len(GIVEN_BACK)


def test_handlers_that_the_app_does_not_know_share_a_limit(log: io.StringIO) -> None:
    names, pool = [f"unknown{number}" for number in range(20)], a_stage().pool
    for name in names:
        pool.note("critical", "a message is dead", handler=name)
    assert written(log, pool) == names[:5]
