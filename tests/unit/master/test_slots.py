"""The table of children: a child's whole life without one fork."""

from __future__ import annotations

import itertools

import pytest

from jobpool.master.slots import MOVES, Delivery, IllegalMoveError, Slot, Slots, SlotState
from jobpool.message.lease import JobLease
from jobpool.message.outcome import EndReason


def a_delivery(nonce: int, timeout: float = 5.0) -> Delivery:
    return Delivery(JobLease("id", "q", b"{}", 1, "o", 100.0, "memory"), nonce, timeout, "report", 0.0)


def busy(*deliveries: Delivery) -> Slot:
    """A child that was handed these, one after the other, at 10 s."""
    slot = Slot(0, state=SlotState.IDLE)
    for delivery in deliveries:
        slot.add_deliveries([delivery], 10.0)
    return slot


@pytest.mark.parametrize(
    ("here", "there"), list(itertools.product(SlotState, SlotState)), ids=lambda state: state.value
)
def test_a_move_is_legal_or_raises_and_changes_nothing(here: SlotState, there: SlotState) -> None:
    slot = Slot(0, state=here)
    if there in MOVES[here]:
        slot.move(there, 1.0)
        assert (slot.state, slot.since) == (there, 1.0)
    else:
        with pytest.raises(IllegalMoveError):
            slot.move(there, 1.0)
        assert (slot.state, slot.since) == (here, 0.0)


def test_a_childs_whole_life() -> None:
    slots = Slots(2)
    slot = slots.empty()
    assert slot is not None
    slots.start(slot, child=7, generation=1, now=1.0)
    slot.move(SlotState.IDLE, 2.0)
    slot.add_deliveries([a_delivery(1)], 3.0)
    assert (slot.state, slot.since) == (SlotState.BUSY, 3.0)
    assert slots.by_child.get(7) is slot
    head = slot.finished(1, 4.0)
    assert head is not None
    assert slot.state is SlotState.IDLE
    assert slots.collect(7, 5.0) is slot
    assert (slot.state, slots.by_child.get(7)) == (SlotState.EMPTY, None)


def test_a_child_that_the_table_does_not_know_is_somebody_elses() -> None:
    assert Slots(1).collect(99, 0.0) is None


def test_the_clock_of_the_next_attempt_starts_when_the_one_before_was_answered() -> None:
    slot = busy(a_delivery(1, timeout=5.0), a_delivery(2, timeout=7.0))
    assert slot.deadline() == 15.0
    slot.finished(1, 14.0)
    assert slot.deadline() == 21.0


def test_an_unlimited_attempt_has_no_deadline() -> None:
    assert busy(a_delivery(1, timeout=0.0)).deadline() is None


def test_taking_back_keeps_what_the_child_has_read() -> None:
    slot = busy(*(a_delivery(nonce) for nonce in (1, 2, 3)))
    assert [d.nonce for d in slot.take_back({2, 3}, 11.0)] == [2, 3]
    assert [d.nonce for d in slot.deliveries] == [1]
    assert slot.state is SlotState.BUSY


def test_the_first_reason_for_an_end_stands() -> None:
    slot = Slot(0, state=SlotState.IDLE)
    slot.end(EndReason.TIMEOUT, 1.0)
    slot.end(EndReason.STOP, 2.0)
    assert slot.ending is EndReason.TIMEOUT
    assert slot.killed_at == 1.0
