"""The end of a run, where a broker lists no live messages and a person has ended the drain."""

from __future__ import annotations

from stories import ID, cut_short, enq, failed

from jobpool.backend import Capabilities
from jobpool.torture.ledger import Line
from jobpool.torture.result import Result
from jobpool.torture.verdict import reach

MUTE = Capabilities(lists_live=False)


def lost(lines: list[Line], left: int, can: Capabilities) -> int:
    result = Result(left=left)
    reach(result, lines, [], {}, [], can, kill_grace=1.0)
    return len(result.counts.get("LOST", ()))


def test_what_was_left_is_not_lost_where_nobody_can_list_it() -> None:
    waiting = [enq(), *failed(1)]
    assert lost(waiting, 1, MUTE) == 0
    assert lost(waiting, 0, MUTE) == 1
    assert lost(waiting, 1, Capabilities()) == 1


def test_more_than_were_left_are_lost() -> None:
    assert lost([enq(), enq("another"), *failed(1)], 1, MUTE) == 2


def test_a_dead_letter_that_is_gone_and_an_ack_too_early_are_lost_whatever_was_left() -> None:
    assert lost([enq(), *failed(1, verb="abandon")], 1, MUTE) == 1
    assert lost([enq(ID), *cut_short(1, verb="ack")], 1, MUTE) == 1
