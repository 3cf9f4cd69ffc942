"""The thread that writes history: in batches, on through outages, and never in anybody's way."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from support.waiting import wait_until

from jobpool.broker.opening import open_backend
from jobpool.message.masking import Masker
from jobpool.telemetry.history import writer as module
from jobpool.telemetry.history.places import HistoryFile, HistoryTable, Line, Place, Row, Wants
from jobpool.telemetry.history.row import AttemptRow
from jobpool.telemetry.history.writer import Writer


class Gathered:
    """What the loop would have."""

    def __init__(self, *attempts: AttemptRow) -> None:
        self.attempts = list(attempts)

    def is_waiting(self) -> bool:
        return bool(self.attempts)

    def take(self) -> list[AttemptRow]:
        taken, self.attempts = self.attempts, []
        return taken


class Moody(HistoryTable):
    """Keeps what it is given, when it works."""

    def __init__(self) -> None:
        self.lines: list[Line] = []
        self.calls: list[int] = []
        self.broken = False
        self.let_go: threading.Event | None = None

    def append(self, lines: Sequence[Line]) -> None:
        if self.let_go is not None:
            self.let_go.wait(30)
        if self.broken:
            raise OSError("disk full")
        self.calls.append(len(lines))
        self.lines += lines

    def read(self, name: str, limit: int, wants: Wants = bool) -> list[Row]:
        raise NotImplementedError

    def names(self) -> list[str]:
        return [name for name, _ in self.lines]


def an_attempt(number: int, name: str = "report", **fields: Any) -> AttemptRow:
    about = dict[str, Any](name=name, job="report", id=str(number), attempt=1, queue="q", payload=None)
    return AttemptRow(**({**about, "status": "acked"} | fields))


def a_writer(place: Place, gathered: Gathered | None = None) -> Writer:
    source = gathered or Gathered()
    return Writer(place, Masker(), source.is_waiting, source.take)


def test_it_writes_what_was_gathered_and_at_the_end_the_rest(tmp_path: Path) -> None:
    place = HistoryFile(tmp_path / "h", 100)
    gathered = Gathered(an_attempt(1))
    writer = a_writer(place, gathered)
    writer.start()
    wait_until(lambda: place.read("report", 9), 10)
    writer.finish([an_attempt(2)], 10.0)
    assert [row["id"] for row in place.read("report", 9)] == ["2", "1"]
    assert not writer.is_alive()


def test_in_the_table_the_newest_of_each_name_stay() -> None:
    with closing(open_backend("memory://")) as backend:
        place = HistoryTable(backend.keys, 3)
        a_writer(place).write(
            [an_attempt(number) for number in range(5)] + [an_attempt(9, "mail"), an_attempt(1, "\0")]
        )
        assert [row["id"] for row in place.read("report", 10)] == ["4", "3", "2"]
        assert [row["id"] for row in place.read("report", 1)] == ["4"]
        assert place.names() == ["-", "mail", "report"]


@pytest.mark.parametrize("in_file", [False, True])
def test_rare_rows_are_looked_for_further_back_and_not_among_all_lines_at_once(tmp_path: Path, in_file: bool) -> None:
    with closing(open_backend("memory://")) as backend:
        keys, asked = backend.keys, list[int]()
        place = HistoryFile(tmp_path / "h", 1000) if in_file else HistoryTable(keys, 1000)
        a_writer(place).write([an_attempt(number) for number in range(500)])
        read = keys._read_log
        keys._read_log = lambda space, name, limit: asked.append(limit) or read(space, name, limit)[:limit]

        def found(limit: int, *wanted: int) -> list[int]:
            return [int(row["id"]) for row in place.read("report", limit, lambda row: int(row["id"]) in wanted)]

        assert found(2, 499, 300, 1) == [499, 300]
        assert found(3, 499, 498, 497, 1) == [499, 498, 497]
        assert found(2, 1) == [1]
        assert asked == ([] if in_file else [2, 20, 200, 3, 2, 20, 200, 2000])


def test_what_could_not_be_written_is_tried_again_and_said_once_each_way(caplog: pytest.LogCaptureFixture) -> None:
    place = Moody()
    writer = a_writer(place)
    place.broken = True
    for number in range(3):
        writer.write([an_attempt(number)])
    place.broken = False
    writer.write([])
    assert len(place.lines) == 3
    assert [record.message for record in caplog.records] == [
        "history cannot be written; trying again",
        "history is written again",
    ]


def test_an_error_in_the_thread_is_said_and_it_goes_on(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "VISIT_PAUSE_S", 0.01)
    place, calls = Moody(), iter([MemoryError(), RuntimeError("a fault of ours")])

    def take() -> list[AttemptRow]:
        for error in calls:
            raise error
        return [an_attempt(1)]

    writer = Writer(place, Masker(), lambda: not place.lines, take)
    writer.start()
    wait_until(lambda: place.lines, 10)
    writer.finish([], 10.0)
    assert caplog.text.count("history cannot be written") == 1


@pytest.mark.parametrize(
    ("bound", "most", "output", "kept"), [("MAX_LEFT_LINES", 10, 0, 10), ("MAX_LEFT_BYTES", 200_000, 40_000, 4)]
)
def test_an_outage_fills_no_memory_and_what_is_dropped_is_counted(
    monkeypatch: pytest.MonkeyPatch, bound: str, most: int, output: int, kept: int
) -> None:
    monkeypatch.setattr(module, bound, most)
    place = Moody()
    writer = a_writer(place)
    place.broken = True
    for number in range(25):
        writer.write([an_attempt(number, output="x" * output)])
    place.broken = False
    writer.write([])
    assert (writer.dropped, len(place.lines)) == (25 - kept, kept)


def test_large_rows_go_in_several_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_LINES_A_CALL", 4)
    monkeypatch.setattr(module, "MAX_BYTES_A_CALL", 50_000)
    place = Moody()
    a_writer(place).write([an_attempt(n) for n in range(9)] + [an_attempt(n, output="x" * 40_000) for n in range(4)])
    assert place.calls == [4, 4, 3, 2]


def test_a_row_that_cannot_be_made_disturbs_no_other(caplog: pytest.LogCaptureFixture) -> None:
    place = Moody()
    writer = a_writer(place)
    writer.write([an_attempt(1), an_attempt(2, cause=7), an_attempt(3)])
    assert len(place.lines) == 2
    assert writer.dropped == 1
    assert "a row of history could not be made" in caplog.text


def test_a_place_that_hangs_does_not_hold_up_the_end_for_long(caplog: pytest.LogCaptureFixture) -> None:
    place = Moody()
    place.let_go = threading.Event()
    gathered = Gathered(an_attempt(1))
    writer = a_writer(place, gathered)
    writer.start()
    wait_until(lambda: not gathered.attempts, 10)
    writer.finish([an_attempt(2)], 0.05)
    assert "history is cut short" in caplog.text
    place.let_go.set()
    writer.join(10)
    assert len(place.lines) == 2
