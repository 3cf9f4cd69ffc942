"""What the settings make of a pool's watchers: its pages, and how other threads get at the loop's numbers."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from support.descriptors import open_descriptors
from support.waiting import wait_until

from jobpool import __version__
from jobpool.broker.opening import open_backend
from jobpool.ipc.scoreboard import Scoreboard
from jobpool.master import events as ev
from jobpool.master.apply import apply
from jobpool.master.inbox import Inbox
from jobpool.master.observer import Observer
from jobpool.master.run import unmet
from jobpool.master.state import Pool
from jobpool.master.telemetry import (
    NO_ANSWER,
    LoopCalls,
    Publisher,
    Telemetry,
    make_telemetry,
    metrics_page,
    probe_page,
)
from jobpool.message.outcome import OUTCOMES
from jobpool.message.setting_types import Address, History
from jobpool.settings import Settings
from jobpool.telemetry.history.row import FIELDS
from jobpool.telemetry.metrics.catalogue import METRICS
from jobpool.telemetry.metrics.pages import live, ready

DOCS = Path(__file__).parents[3] / "docs"


ANY_PORT, TABLE = Address("127.0.0.1", 0), History(table=True)


@pytest.fixture
def inbox() -> Iterator[Inbox]:
    inbox = Inbox()
    yield inbox
    inbox.close()


@pytest.fixture
def board() -> Iterator[Scoreboard]:
    with Scoreboard.create(None, 2) as board:
        yield board


def some_settings(**fields: Any) -> Settings:
    return Settings(queues=(("reports", 1.0),), backend="memory://", **fields)


def watchers(inbox: Inbox, board: Scoreboard, url: str = "memory://", **fields: Any) -> Telemetry | None:
    with closing(open_backend(url)) as backend:
        return make_telemetry(some_settings(**fields), backend, board, inbox)


class Loop:
    """Answers what is asked, as the master's loop does."""

    def __init__(self, inbox: Inbox) -> None:
        self.pool = Pool(some_settings(), now=0.0)
        self._inbox = inbox
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self._stop.wait(0.001):
            for event in self._inbox.take():
                apply(self.pool, event, 0.0)

    def __enter__(self) -> Loop:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


# --- asking the loop --------------------------------------------------------------------------------------------------


def test_the_loops_thread_makes_what_is_asked_for(inbox: Inbox) -> None:
    with Loop(inbox) as loop:
        calls = LoopCalls(inbox)
        assert calls.call_in_loop(lambda pool: pool is loop.pool) is True
        assert calls.call_in_loop(lambda _: threading.current_thread()) is not threading.current_thread()


def test_a_loop_that_hangs_is_not_waited_for_and_what_nobody_waits_for_is_not_made(inbox: Inbox) -> None:
    made: list[Pool] = []
    assert LoopCalls(inbox).call_in_loop(made.append, timeout=0.01) is None
    for event in inbox.take():
        apply(Pool(some_settings(), now=0.0), event, 0.0)
    assert made == []


def test_what_is_being_made_is_waited_for(inbox: Inbox) -> None:
    never = threading.Event()

    def slow(_: Pool) -> str:
        never.wait(1.5)  # longer than the patience
        return "made"

    with Loop(inbox):
        assert LoopCalls(inbox).call_in_loop(slow, timeout=1.0) == "made"


def test_the_end_lets_go_of_those_who_wait_and_refuses_those_who_come(inbox: Inbox) -> None:
    calls, answers = LoopCalls(inbox), []
    waiter = threading.Thread(target=lambda: answers.append(calls.call_in_loop(lambda _: 1, timeout=60)))
    waiter.start()
    asked: list[ev.Event] = []
    wait_until(lambda: asked.extend(inbox.take()) or asked, 10)
    calls.close()
    waiter.join(10)
    assert answers == [None]
    assert calls.call_in_loop(lambda _: 1, timeout=60) is None
    assert inbox.take() == [], "nothing is left in the inbox of a loop that has ended"


# --- pages ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def observer() -> Observer:
    return Observer()


def test_the_metrics_page_until_the_loop_has_ended(inbox: Inbox, observer: Observer) -> None:
    calls = LoopCalls(inbox)
    with Loop(inbox):
        page = metrics_page(calls, observer, "")
    assert page.status == 200
    assert f'jobpool_build_info{{version="{__version__}"}} 1.0' in page.body.decode()
    calls.close()
    page = metrics_page(calls, observer, "")
    assert (page.status, page.body.decode()) == (503, f"{NO_ANSWER}\n")


@pytest.mark.usefixtures("no_client")
def test_without_prometheus_client_the_page_and_the_log_name_the_mend(
    inbox: Inbox, board: Scoreboard, observer: Observer, caplog: pytest.LogCaptureFixture
) -> None:
    page = metrics_page(LoopCalls(inbox), observer, "")
    assert page.status == 501
    assert b"pip install 'prometheus-client>=0.21'" in page.body
    with caplog.at_level("INFO", "jobpool.metrics"):
        watched = watchers(inbox, board, metrics=ANY_PORT)
    assert watched is not None
    watched.close()
    assert caplog.messages == ["/metrics will not be served", "probes are served"]


def test_the_probes_read_the_scoreboard(board: Scoreboard) -> None:
    board.header.write(started=1e-9, loop_at=1e-9)
    assert probe_page(board, live).status == 503
    board.header.write(loop_at=1e12, broker_ok_at=1e12, workers=1, ready=1)
    assert (probe_page(board, live).status, probe_page(board, ready).status) == (200, 200)


def test_a_pool_whose_files_were_removed_says_so_once(board: Scoreboard, tmp_path: Path) -> None:
    files = [tmp_path / f"night.7.{end}" for end in ("board", "json", "sock")]
    for file in files:
        file.touch()
    pool = Pool(some_settings(board_path=str(files[0])), now=0.0)
    publisher = Publisher(board)
    publisher.look_for_files(pool)
    publisher.look_for_files(pool)
    assert pool.notes == []
    files[0].unlink()
    files[2].unlink()
    for _ in range(3):
        publisher.look_for_files(pool)
    [note] = pool.notes
    assert note.fields["files"] == f"{files[0]} {files[2]}"
    assert "cleaners of temporary files" in note.fields["mend"]


# --- what the settings ask for ----------------------------------------------------------------------------------------


def test_what_runs_is_told_where_nothing_else_is(inbox: Inbox, board: Scoreboard) -> None:
    watched = watchers(inbox, board, rollups=0.0)
    assert watched is not None
    assert watched.running is not None
    assert (watched.server, watched.rollups, watched.history) == (None, None, None)
    watched.close()


@pytest.mark.parametrize("fields", [{"metrics": ANY_PORT, "rollups": 0.0}, {"rollups": 60.0}, {"history": TABLE}])
def test_each_of_them_is_enough(inbox: Inbox, board: Scoreboard, fields: dict[str, Any]) -> None:
    before = open_descriptors()
    watched = watchers(inbox, board, **fields)
    assert watched is not None
    watched.close()
    watched.close()
    assert open_descriptors() <= before


def test_a_table_needs_a_broker_that_keeps_keys() -> None:
    with closing(open_backend("sync://")) as backend:
        *_, sentence = unmet(some_settings(history=TABLE), backend)
    assert re.search(r"keeps none.*use history = 'file:PATH'", sentence)


def test_rollups_are_left_out_without_a_word_where_there_is_no_place(inbox: Inbox, board: Scoreboard) -> None:
    assert watchers(inbox, board, "sync://") is None


# --- the pages of the docs --------------------------------------------------------------------------------------------


def test_every_metric_and_outcome_has_its_place_in_the_docs() -> None:
    page = (DOCS / "metrics.md").read_text("utf-8")
    told = set(re.findall(r"^### `(jobpool_\w+)", page, re.MULTILINE)) | set(
        re.findall(r"^\| `(jobpool_\w+)", page, re.MULTILINE)
    )
    assert told == {metric.shown for metric in METRICS}
    assert [word for word in OUTCOMES if f"`{word}`" not in page] == []
    labels = {m.shown: "".join(f"{{{', '.join(m.labels)}}}" if m.labels else "") for m in METRICS}
    assert [name for name, shown in labels.items() if f"`{name}{shown}`" not in page] == []


def test_every_field_of_a_row_has_its_place_in_the_docs() -> None:
    page = (DOCS / "history.md").read_text("utf-8")
    assert [field for field in FIELDS if f"`{field}`" not in page] == []
