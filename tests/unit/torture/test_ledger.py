"""The ledger's file: whole lines, in the order of the writes, of any number of writers."""

from __future__ import annotations

import os
import resource
import threading
from pathlib import Path

import pytest

from jobpool_torture.ledger import Ledger, LedgerBroken, Line, append, encode, open_ledger

LINES = [
    Line("start", "a", fence=1, pid=7, at=1.5, wall=2.5, attempt=1),
    Line("settled", "b", fence=3, pool="p", at=2.0, since=1.0, owner="o", verb="ack", answer="ok", tag="ü\n"),
    Line("try", "c"),
]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger"


def test_what_an_event_does_not_know_is_not_written() -> None:
    assert encode([LINES[2]]) == b'{"event":"try","id":"c"}\n'


def test_who_looks_often_is_given_what_is_new(path: Path) -> None:
    ledger = Ledger(path)
    assert ledger.read() == []
    append(path, LINES[:2])
    assert ledger.after(0) == LINES[:2]
    append(str(path), LINES[2:])
    assert ledger.after(2) == LINES[2:]
    assert ledger.after(3) == []
    assert ledger.read() == LINES


def test_a_line_that_is_not_whole_yet_waits(path: Path) -> None:
    ledger = Ledger(path)
    whole = encode(LINES)
    path.write_bytes(whole[:-5])
    assert ledger.read() == LINES[:2]
    path.write_bytes(whole)
    assert ledger.read() == LINES


@pytest.mark.parametrize("text", [b"rubbish\n", b'{"event":"start"}\n', b'{"event":"start","id":"a","who":1}\n'])
def test_what_nobody_of_ours_wrote_is_an_error(path: Path, text: bytes) -> None:
    path.write_bytes(text)

    with pytest.raises(LedgerBroken, match="no line of a ledger"):
        Ledger(path).read()


def test_half_a_write_is_an_error_for_its_writer_and_nothing_for_the_next(path: Path) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))
    try:
        with pytest.raises(OSError, match="No space left"):
            append(path, [Line("start", "a" * 100)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    append(path, [Line("start", "b")])
    assert Ledger(path).read() == [Line("start", "b")]


@pytest.mark.parametrize("half", [1, 5, 9, 10, -2])
def test_the_half_of_a_line_that_a_kill_leaves_harms_no_other(path: Path, half: int) -> None:
    path.write_bytes(encode(LINES[:1]) + encode(LINES[1:2])[:half])
    append(path, LINES[2:])

    assert Ledger(path).read() == [LINES[0], LINES[2]]


def test_nothing_is_not_written(path: Path) -> None:
    append(path, [])

    assert not path.exists()


def test_the_lines_of_many_writers_do_not_mix(path: Path) -> None:
    """Each with a descriptor of its own, as processes have."""

    def write(number: int) -> None:
        descriptor = open_ledger(path)
        for count in range(200):
            append(descriptor, [Line("start", f"{number}", fence=count, tag="x" * 300)] * 3)
        os.close(descriptor)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    lines = Ledger(path).read()
    assert len(lines) == 4 * 200 * 3
    for number in range(4):
        assert [line.fence for line in lines if line.id == f"{number}"] == [n // 3 for n in range(600)]


def test_a_program_that_is_started_does_not_get_the_descriptor(path: Path) -> None:
    descriptor = open_ledger(path)
    try:
        assert not os.get_inheritable(descriptor)
    finally:
        os.close(descriptor)
