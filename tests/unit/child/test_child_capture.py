from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest

from jobpool.child.capture import Capture, OutputPipe
from jobpool.message.capped_text import HeadTail, cap_text


def test_head_and_tail_are_kept() -> None:
    for case, writes, cap, text in [
        ("nothing", [], 8, ""),
        ("fits", [b"abc", b"def"], 8, "abcdef"),
        ("fits exactly", [b"abcdefgh"], 8, "abcdefgh"),
        ("one too many", [b"abcdefghi"], 8, "abcd\n[… 1 bytes dropped …]\nfghi"),
        ("many writes", [b"abc", b"x" * 100, b"yz"], 8, "abcx\n[… 97 bytes dropped …]\nxxyz"),
        ("a thousand writes", [b"a"] * 1000, 4, "aa\n[… 996 bytes dropped …]\naa"),
        ("character cut in the head", ["aaaé".encode(), b"-" * 9], 8, "aaa\n[… 7 bytes dropped …]\n----"),
        ("cut in the tail", [b"------------", "éaaa".encode()], 8, "----\n[… 10 bytes dropped …]\naaa"),
        ("no UTF-8", [b"\xff\xfe"], 8, "\ufffd\ufffd"),
    ]:
        kept = HeadTail(cap)
        for data in writes:
            kept.write(data)
        assert kept.text() == text, case


def test_a_cleared_buffer_starts_anew() -> None:
    kept = HeadTail(4)
    kept.write(b"abcdefgh")
    kept.clear()
    kept.write(b"ij")
    assert kept.text() == "ij"


def test_text_is_capped() -> None:
    for text, capped in [
        ("short", "short"),
        ("x" * 20, "xxxx\n[… 12 bytes dropped …]\nxxxx"),
        ("\udc80", "\\udc80"),
        ("é" * 4, "éééé"),
    ]:
        assert cap_text(text, 8) == capped, text


@pytest.fixture
def capture() -> Capture:
    return Capture(64)


def test_both_streams_go_into_one_text_and_are_given_back(capture: Capture) -> None:
    before = sys.stdout, sys.stderr
    with capture.lent():
        capture.begin()
        print("one")
        print("two", file=sys.stderr)
        sys.stdout.buffer.write(b"three\n")
        sys.stderr.buffer.write(memoryview(b"four\n"))
    assert capture.text() == "one\ntwo\nthree\nfour\n"
    assert (sys.stdout, sys.stderr) == before


def test_the_streams_behave_like_streams(capture: Capture) -> None:
    with capture.lent():
        capture.begin()
        out = sys.stdout
        facts = (out.writable(), out.isatty(), out.fileno(), out.encoding, out.closed, out.write("ab"), sys.stderr.name)
        with pytest.raises(TypeError, match="must be str, not bytes"):
            out.write(b"x")  # type: ignore[arg-type]
        out.close()
        out.reconfigure(line_buffering=True)  # type: ignore[union-attr]
        out.flush()
        print("\udc80 still open")
    assert facts == (True, False, 1, "utf-8", False, 2, "<stderr>")
    assert capture.text() == "ab\\udc80 still open\n"


def test_a_new_attempt_forgets_and_takes_the_streams_back(capture: Capture) -> None:
    with capture.lent():
        capture.begin()
        print("old")
        sys.stdout = sys.__stdout__
        capture.begin()
        print("new")
    assert capture.text() == "new\n"


def test_memory_stays_flat_under_a_flood() -> None:
    kept = HeadTail(1000)
    for _ in range(1000):
        kept.write(b"x" * 100_000)
    assert len(kept._head) + len(kept._tail) <= 1500
    assert kept.total == 100_000_000


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for fd in ends:
        os.close(fd)


@pytest.mark.parametrize(
    ("written", "taken"),
    [
        (b"", ""),
        (b"abc", "abc"),
        (b"abcdefgh", "abcdefgh"),
        (b"abcd-----efgh", "abcd\n[… 5 bytes dropped …]\nefgh"),
        (b"abcdefghi", "abcd\n[… 1 bytes dropped …]\nfghi"),
    ],
)
def test_the_output_pipe_is_read_and_empty_then(pipe: tuple[int, int], written: bytes, taken: str) -> None:
    output = OutputPipe(pipe[1], 8)
    try:
        os.write(pipe[1], written)
        assert output.take() == taken
        assert output.take() == ""
        os.write(pipe[1], b"next")
        assert output.take() == "next"
    finally:
        os.close(output._fd)
