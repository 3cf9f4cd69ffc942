from __future__ import annotations

import logging
import socket
from collections.abc import Iterator

import pytest

from jobpool.child.lines import Lines
from jobpool.ipc import packets
from jobpool.ipc.frames import MAX_SAID_BYTES, Said, decode
from jobpool.ipc.line_budget import SAID_AT_ONCE, SAID_PER_S
from jobpool.message.masking import Masker

CHUNKS = [
    (["one\ntwo\n"], ["one", "two"]),
    (["o", "ne", "\n"], ["one"]),
    (["\n", "  \n", "one\r\n"], ["one"]),
    (["\r 10%", "\r 50%", "\r100%", "\n"], ["100%"]),
    (["10 %", "\r", "100 %", "\r", "\n", "ab\r\n"], ["100 %", "ab"]),
    (["no end"], ["no end"]),
    (["x" * 5000 + "\n", "next\n"], ["x" * MAX_SAID_BYTES + "…", "next"]),
    (["-----BEGIN RSA PRIVATE KEY-----\nMIIEow\nAAAA\n-----END RSA PRIVATE KEY-----\nend\n"], ["***", "end"]),
    (["password=hunter2\n"], ["password=***"]),
    (["\u00e9\n", "ok\n"], ["\u00e9", "ok"]),
]


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    here, there = packets.pair()
    here.setblocking(False)
    with here, there:
        yield here, there


def received(here: socket.socket) -> list[Said]:
    found: list[Said] = []
    while True:
        try:
            frame = decode(here.recv(1 << 16))
        except BlockingIOError:
            return found
        assert isinstance(frame, Said)
        found.append(frame)


def test_printed_text_becomes_lines(ends: tuple[socket.socket, socket.socket]) -> None:
    here, there = ends
    for chunks, wanted in CHUNKS:
        lines = Lines(there, logging.INFO, Masker())
        lines.nonce = 7
        for chunk in chunks:
            lines.write(chunk.encode())
        lines.end()
        assert [said.text for said in received(here)] == wanted, chunks


def test_lines_beyond_the_bound_are_counted_with_the_attempt_that_wrote_them(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    here, there = ends
    lines = Lines(there, logging.INFO, Masker())
    lines.nonce = 7
    for number in range(100):
        lines.write(f"{number}\n".encode() * 10)
    lines.nonce = 8
    lines.say(logging.INFO, "other")
    lines.leave()
    said = received(here)
    texts = [one for one in said if one.text]
    assert SAID_AT_ONCE <= len(texts) <= SAID_AT_ONCE + SAID_PER_S  # on a slow machine some more
    assert len(texts) + sum(one.left_out for one in said) == 1001
    assert {one.nonce for one in said if one.left_out} <= {7, 8}


def test_what_was_left_out_is_told_at_the_end_of_its_attempt(ends: tuple[socket.socket, socket.socket]) -> None:
    here, there = ends
    lines = Lines(there, logging.INFO, Masker())
    lines.nonce = 7
    lines.write(b"line\n" * 1000)
    lines.end()
    said = received(here)
    assert (said[-1].nonce, sum(one.left_out for one in said)) == (7, 1000 - sum(one.text != "" for one in said))


def test_below_the_level_nothing_is_sent_and_a_record_is_one_frame(ends: tuple[socket.socket, socket.socket]) -> None:
    here, there = ends
    lines = Lines(there, logging.WARNING, Masker())
    lines.write(b"printed\n")
    lines.say(logging.ERROR, "two\nlines", "shop")
    assert [(one.level, one.text, one.logger) for one in received(here)] == [(logging.ERROR, "two\nlines", "shop")]
    lines.say(logging.ERROR, "\0" * 10_000, "\0" * 10_000)
    assert len(here.recv(2**20)) < packets.INLINE_BYTES, "else the child is taken for broken"


def test_a_master_that_stands_still_holds_nobody_up(ends: tuple[socket.socket, socket.socket]) -> None:
    here, there = ends
    there.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
    lines = Lines(there, logging.INFO, Masker())
    for _ in range(SAID_AT_ONCE):
        lines.write(b"x" * 1000 + b"\n")
    kept = len(received(here))
    lines.leave()
    assert kept < SAID_AT_ONCE
    [summary] = received(here)
    assert (summary.text, summary.left_out) == ("", SAID_AT_ONCE - kept)
