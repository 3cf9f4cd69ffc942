from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest

from jobpool.logs import LineHandler, RateLimit, configure, fields_of


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def log() -> Iterator[logging.Logger]:
    logger = logging.getLogger("jobpool")
    before = (list(logger.handlers), logger.level, logger.propagate)
    yield logger
    logger.handlers[:], logger.level, logger.propagate = before
    logger.setLevel(before[1])


def test_a_text_line_is_time_level_event_and_fields(log: logging.Logger) -> None:
    stream = io.StringIO()
    configure("info", stream=stream)
    log.warning("child died", extra={"slot": 3, "cause": "SIGSEGV", "seconds": 0.123456789})
    assert stream.getvalue().endswith(" WARNING  child died                   slot=3 cause=SIGSEGV seconds=0.123457\n")
    assert stream.getvalue().count(":") == 2


def test_fields_keep_a_record_on_one_line(log: logging.Logger) -> None:
    stream = io.StringIO()
    configure(stream=stream)
    log.info(
        "failed", extra={"fields": {"name": "a b", "error": 'line 1\nline "2"', "empty": "", "queues": ["a", "b"]}}
    )
    assert stream.getvalue().count("\n") == 1
    assert r'name="a b" error="line 1\nline \"2\"" empty="" queues=a,b' in stream.getvalue()


def test_json_lines_hold_the_same(log: logging.Logger) -> None:
    stream = io.StringIO()
    configure("debug", "json", stream)
    log.debug("job acked", extra={"fields": {"id": "ab", "name": "x", "level": "mine"}, "slot": 2})
    entry = json.loads(stream.getvalue())
    assert entry.pop("time").endswith("+00:00")
    assert entry == {"level": "debug", "logger": "jobpool", "event": "job acked", "slot": 2, "id": "ab", "name": "x"}


@pytest.mark.parametrize("style", ["text", "json"])
def test_an_exception_is_written_with_its_traceback(log: logging.Logger, style: str) -> None:
    stream = io.StringIO()
    configure("info", style, stream)
    try:
        raise ValueError("oh")
    except ValueError:
        log.exception("it broke")
    assert "Traceback (most recent call last)" in stream.getvalue()
    assert "ValueError: oh" in stream.getvalue()


def test_colours_only_on_a_terminal_and_never_with_no_color(
    log: logging.Logger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for stream, no_color, coloured in ((Terminal(), "", True), (Terminal(), "1", False), (io.StringIO(), "", False)):
        monkeypatch.setenv("NO_COLOR", no_color)
        configure(stream=stream)
        log.error("x")
        assert ("\x1b[" in stream.getvalue()) is coloured


def test_below_the_level_nothing_is_written(log: logging.Logger) -> None:
    stream = io.StringIO()
    configure("warning", stream=stream)
    log.info("x")
    assert stream.getvalue() == ""


def test_configuring_twice_does_not_write_twice(log: logging.Logger) -> None:
    configure(stream=io.StringIO())
    stream = io.StringIO()
    configure(stream=stream)
    log.info("x")
    assert stream.getvalue().count("\n") == 1


def test_a_flood_of_one_kind_is_thinned_out_and_counted() -> None:
    now = [0.0]
    limit = RateLimit(burst=2, window=10.0, now=lambda: now[0])

    def passes(kind: str | None) -> tuple[bool, object]:
        record = logging.makeLogRecord({"msg": "rejected", "limit": kind} if kind else {"msg": "other"})
        return limit.filter(record), fields_of(record).get("left_out")

    assert [passes("rejected") for _ in range(4)] == [(True, None), (True, None), (False, None), (False, None)]
    assert passes("dead") == (True, None)
    assert passes(None) == (True, None)
    now[0] = 10.0
    assert passes("rejected") == (True, 2)
    assert passes("rejected") == (True, None)


def test_a_status_line_stays_below_the_log() -> None:
    stream = io.StringIO()
    handler = LineHandler(stream)
    handler.status("half done")
    handler.emit(logging.makeLogRecord({"msg": "child died"}))
    handler.status("")
    assert stream.getvalue() == "\r\x1b[Khalf done\r\x1b[Kchild died\nhalf done\n"
