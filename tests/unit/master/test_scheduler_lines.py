"""Lines that a scheduler prints: its records are logged anew, and whatever the app prints there is a line as it is."""

from __future__ import annotations

import logging

import pytest

from jobpool.master.scheduler import _log_record


def test_a_record_is_logged_as_it_was(caplog: pytest.LogCaptureFixture) -> None:
    line = '{"time": "now", "level": "warning", "logger": "jobpool.cron", "event": "100 % late", "schedule": "s"}'
    assert _log_record(line)
    [record] = caplog.records
    assert (record.levelno, record.name, record.getMessage()) == (logging.WARNING, "jobpool.cron", "100 % late")
    assert record.__dict__["fields"] == {"schedule": "s"}


@pytest.mark.parametrize(
    "line", ["[1, 2, 3]", "[]", "7", "null", '"level"', "{}", '{"level": "info"}', "text", "[" * 900]
)
def test_other_json_is_no_record(line: str) -> None:
    assert not _log_record(line)


@pytest.mark.parametrize("level", ['"basic_format"', '"handler"', '"loud"', "null", "[1]"])
def test_a_level_that_is_none_is_that_of_other_lines(level: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        assert _log_record(f'{{"level": {level}, "logger": "x", "event": "e"}}')
    assert caplog.records[0].levelno == logging.INFO
