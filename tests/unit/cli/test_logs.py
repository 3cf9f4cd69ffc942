from __future__ import annotations

import errno
import fcntl
import io
import json
import logging
import os
import struct
import termios
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import pytest
from support.waiting import wait_until

from jobpool.telemetry import logs
from jobpool.telemetry.logs import JOB_LOG, MAX_UNWRITTEN_BYTES, LineHandler, RateLimit, configure, fields_of

log = logging.getLogger("jobpool")


@pytest.fixture
def stream() -> io.StringIO:
    return io.StringIO()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_text_line_is_time_level_event_and_fields(stream: io.StringIO) -> None:
    configure("info", stream=stream)
    log.warning("child died", extra={"slot": 3, "cause": "SIGSEGV", "seconds": 0.123456789})
    assert stream.getvalue().endswith(" WARNING  child died                   slot=3 cause=SIGSEGV seconds=0.123457\n")
    assert stream.getvalue().count(":") == 2


def test_fields_keep_a_record_on_one_line(stream: io.StringIO) -> None:
    configure(stream=stream)
    log.info(
        "failed", extra={"fields": {"name": "a b", "error": 'line 1\nline "2"', "empty": "", "queues": ["a", "b"]}}
    )
    assert stream.getvalue().count("\n") == 1
    assert r'name="a b" error="line 1\nline \"2\"" empty="" queues=a,b' in stream.getvalue()


def test_a_stack_stands_below_its_line(stream: io.StringIO) -> None:
    configure(stream=stream)
    log.warning("stack of a child", extra={"fields": {"stack": "Current thread:\n  File \x1b\n", "pid": 7}})
    log.warning("a child died", extra={"fields": {"stack": ["in a", "in b"]}})
    first, *below, last = stream.getvalue().splitlines()
    assert first.endswith(" pid=7")
    assert below == ["  Current thread:", r"    File \u001b"]
    assert last.endswith(' stack="in a,in b"')


def test_json_lines_hold_the_same(stream: io.StringIO) -> None:
    configure("debug", "json", stream)
    log.debug("job acked", extra={"fields": {"id": "ab", "name": "x", "level": "mine"}, "slot": 2})
    entry = json.loads(stream.getvalue())
    assert entry.pop("time").endswith("+00:00")
    assert entry == {"level": "debug", "logger": "jobpool", "event": "job acked", "slot": 2, "id": "ab", "name": "x"}


@pytest.mark.parametrize("style", ["text", "json"])
def test_an_exception_is_written_with_its_traceback(style: str, stream: io.StringIO) -> None:
    configure("info", style, stream)
    try:
        raise ValueError("oh")
    except ValueError:
        log.exception("it broke")
    assert "Traceback (most recent call last)" in stream.getvalue()
    assert "ValueError: oh" in stream.getvalue()


def test_colours_only_on_a_terminal_and_never_with_no_color(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for stream, no_color, coloured in ((Terminal(), "", True), (Terminal(), "1", False), (io.StringIO(), "", False)):
        monkeypatch.setenv("NO_COLOR", no_color)
        configure(stream=stream)
        log.error("x")
        assert ("\x1b[" in stream.getvalue()) is coloured


def test_below_the_level_nothing_is_written(stream: io.StringIO) -> None:
    configure("warning", stream=stream)
    log.info("x")
    assert stream.getvalue() == ""


def test_configuring_twice_does_not_write_twice(stream: io.StringIO) -> None:
    configure(stream=io.StringIO())
    configure(stream=stream)
    log.info("x")
    assert stream.getvalue().count("\n") == 1


def test_a_flood_of_one_kind_is_thinned_out_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    now, limit = [0.0], RateLimit()
    monkeypatch.setattr(logs, "MAX_BURST_LINES", 2)
    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    def passes(kind: str | None) -> tuple[bool, object]:
        record = logging.makeLogRecord({"msg": "rejected", "limit": kind} if kind else {"msg": "other"})
        return limit.filter(record), fields_of(record).get("left_out")

    assert [passes("rejected") for _ in range(4)] == [(True, None), (True, None), (False, None), (False, None)]
    assert passes("dead") == (True, None)
    assert passes(None) == (True, None)
    now[0] = 10.0
    assert passes("rejected") == (True, 2)
    assert passes("rejected") == (True, None)


def test_a_status_line_stays_below_the_log(stream: io.StringIO) -> None:
    handler = LineHandler(stream)
    handler.status("half done")
    handler.emit(logging.makeLogRecord({"msg": "child died"}))
    handler.status("")
    assert stream.getvalue() == "\r\x1b[Khalf done\r\x1b[Kchild died\nhalf done\n"


# --- in the background ------------------------------------------------------------------------------------------------


@pytest.fixture
def pipe() -> Iterator[tuple[TextIO, TextIO]]:
    """Its reading end, and its writing end."""
    reading, writing = os.pipe()
    with os.fdopen(reading) as here, os.fdopen(writing, "w") as there:
        yield here, there


def test_a_reader_that_stands_still_keeps_no_caller_waiting_and_hears_how_many_lines_it_missed(
    pipe: tuple[TextIO, TextIO],
) -> None:
    here, there = pipe
    configure("info", "json", there).write_in_background()
    wide, missed = "x" * 1000, 50
    for number in range(MAX_UNWRITTEN_BYTES // 1000 + 100):  # the pipe takes some more than the log keeps
        log.info(wide, extra={"number": number})
    for _ in range(missed):
        log.info("missed")

    lines = map(json.loads, here)
    kept = 0
    while (entry := next(lines))["event"] == wide:
        assert entry["number"] == kept
        kept += 1
    assert kept * 1000 < MAX_UNWRITTEN_BYTES + 100_000
    assert entry["level"] == "warning"
    assert "left out" in entry["event"]
    assert entry["lines"] == MAX_UNWRITTEN_BYTES // 1000 + 100 - kept + missed
    log.info("again")
    assert next(lines)["event"] == "again"


def test_what_is_left_is_written_at_the_end(pipe: tuple[TextIO, TextIO]) -> None:
    here, there = pipe
    handler = configure(stream=there)
    log.info("first")
    handler.write_in_background()
    for number in range(100):
        log.info(number)
    handler.close()
    there.close()
    assert [line.split()[-1] for line in here.read().splitlines()] == ["first", *map(str, range(100))]


def test_what_the_descriptor_refuses_is_counted_and_told_once_it_takes_more() -> None:
    reading, writing = os.pipe()
    full = os.open("/dev/full", os.O_WRONLY)
    with os.fdopen(reading) as here, os.fdopen(os.dup(full), "w") as there:
        handler = configure("info", "json", there)
        handler.write_in_background()
        for _ in range(3):
            log.info("refused")
        stream = handler._background
        assert stream is not None
        wait_until(lambda: stream._left_out == 3)
        os.dup2(writing, there.fileno())  # the disk has room again
        log.info("taken")
        assert [json.loads(here.readline()).get("lines") for _ in range(2)] == [None, 3]
        handler.close()
    os.close(writing)
    os.close(full)


def test_after_a_line_that_a_full_disk_cut_short_the_next_begins_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, write = tmp_path / "log", os.write
    room = [100]

    def small(fd: int, data: bytes) -> int:
        if not room[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        count = write(fd, data[: room[0]])
        room[0] -= count
        return count

    with path.open("w") as there, monkeypatch.context() as patch:
        handler = configure("info", "json", there)
        handler.write_in_background()
        patch.setattr(os, "write", small)
        log.info("x" * 200)
        wait_until(lambda: not room[0], 10)
        log.info("refused")
        wait_until(lambda: handler.stream._left_out == 2, 10)  # type: ignore[attr-defined]
        room[0] = 10_000
        log.info("whole")
        handler.close()
    torn, *lines = path.read_text().splitlines()
    assert len(torn) == 100
    assert [json.loads(line)["event"][:9] for line in lines] == ["whole", "log lines"]


def test_a_fork_writes_by_itself(pipe: tuple[TextIO, TextIO]) -> None:
    here, there = pipe
    configure(stream=there).write_in_background()
    pid = os.fork()
    if pid == 0:
        log.info("from the fork")
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    assert here.readline().endswith("from the fork\n")


def test_a_stream_without_a_descriptor_stays_as_it_is(stream: io.StringIO) -> None:
    handler = configure(stream=stream)
    handler.write_in_background()
    log.info("at once")
    assert handler.stream is stream
    assert stream.getvalue().endswith("at once\n")


def test_a_handlers_line_begins_with_its_job_and_cannot_steer_or_forge(stream: io.StringIO) -> None:
    configure(stream=stream)
    said = "\x1b[2Jred\n12:00:00.000 CRITICAL a message is dead"
    logging.getLogger(JOB_LOG).info(said, extra={"fields": {"handler": "greet", "id": "ab", "left_out": 3}})
    logging.getLogger(JOB_LOG).info("late", extra={"fields": {"slot": 3}})
    first, second, third = stream.getvalue().splitlines()
    assert first.endswith(" INFO     greet ab: \\u001b[2Jred")
    assert second == "  12:00:00.000 CRITICAL a message is dead"
    assert third.endswith(" INFO     slot 3: late")


def test_the_close_sums_up_what_was_thinned_out(stream: io.StringIO) -> None:
    handler = configure("info", "json", stream)
    for _ in range(12):
        log.info("dead", extra={"limit": "dead"})
    handler.close()
    last = json.loads(stream.getvalue().splitlines()[-1])
    assert "left out" in last["event"]
    assert (last["kind"], last["lines"]) == ("dead", 7)


@pytest.mark.parametrize(("columns", "room"), [(20, 19), (0, 79)])
def test_a_status_is_cut_to_the_terminal_and_can_be_wiped(columns: int, room: int) -> None:
    here, there = os.openpty()
    with os.fdopen(there, "w") as stream:
        fcntl.ioctl(there, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        handler = LineHandler(stream)
        for text in ("x" * 100, "x" * 100, None, None):
            handler.status(text)
        shown = b""
        while shown.count(b"\x1b[K") < 2:  # a terminal may hand over what was written bit by bit
            shown += os.read(here, 1000)
    os.close(here)
    assert shown == b"\r\x1b[K" + b"x" * room + b"\r\x1b[K"


def test_handlers_lines_leave_room_for_the_pools_own(pipe: tuple[TextIO, TextIO]) -> None:
    here, there = pipe
    configure("info", "json", there).write_in_background()
    for _ in range(MAX_UNWRITTEN_BYTES // 1000 + 100):
        logging.getLogger(JOB_LOG).info("x" * 1000)
    log.info("the pool's own")
    lines = map(json.loads, here)
    read = 0
    while (entry := next(lines))["event"] == "x" * 1000:
        read += 1
    assert read * 1000 < MAX_UNWRITTEN_BYTES // 2 + 200_000
    assert entry["event"] == "the pool's own"
