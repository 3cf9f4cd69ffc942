"""The ring of what an attempt has printed: its last 2 KiB, whatever the writes were, and never another attempt's."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jobpool.ipc.board_layout import PRINTED
from jobpool.ipc.scoreboard import Scoreboard, SlotPages

ROOM = PRINTED.fields["ring"].room


@pytest.fixture
def slot() -> Iterator[SlotPages]:
    with Scoreboard.create(None, 1) as board:
        yield board.slot(0)


@given(writes=st.lists(st.integers(0, 3 * ROOM), max_size=12))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_last_of_it_is_kept(slot: SlotPages, writes: list[int]) -> None:
    nonce = slot.child.nonce + 1
    slot.child.took(nonce, 0.0)
    said = b""
    for number, length in enumerate(writes):
        data = bytes(97 + (number * 7 + at) % 26 for at in range(length))
        slot.printed.write(data)
        said += data
    assert slot.printed.read(nonce) == said[-ROOM:].decode()


def test_a_character_that_the_ring_has_cut_is_no_error(slot: SlotPages) -> None:
    slot.child.took(1, 0.0)
    slot.printed.write("é".encode() * ROOM + b"x")
    assert slot.printed.read(1).endswith("éx")


def test_what_an_attempt_before_has_printed_is_not_this_ones(slot: SlotPages) -> None:
    slot.child.took(1, 0.0)
    slot.printed.write(b"mine")
    slot.child.took(2, 0.0)
    assert (slot.printed.read(1), slot.printed.read(2)) == ("mine", "")
    slot.printed.write(b"yours")
    assert (slot.printed.read(1), slot.printed.read(2)) == ("", "yours")
