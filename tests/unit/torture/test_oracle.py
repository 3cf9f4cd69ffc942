"""Each count of the oracle: stories that must be clean, and those of pools and brokers with a fault, which it sees."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from msgspec import structs
from stories import ID, asked, cut_short, enq, failed, fetched, kept, ran, reaped, run, settled, unknown
from support import unwitnessed

from jobpool.broker.values import Capabilities, Message, State
from jobpool_torture.ledger import Line
from jobpool_torture.oracle import Account, count

COPYING = Capabilities(keeps_records=False)
INEXACT = Capabilities(keeps_records=False, exact_counts=False)


def unknown_lease(fence: int, verb: str) -> list[Line]:
    """A lease of nine seconds, and a settlement of which nobody knows."""
    return [fetched(fence, holds=9.0), *unknown(fence, verb)]


def counted(
    lines: Sequence[Line],
    messages: Sequence[Message] = (),
    can: Capabilities = Capabilities(),  # noqa: B008 - a value
    *,
    promised: bool = True,
) -> Account:
    return count(lines, [ID] if promised else [], messages, can=can)


def named(account: Account) -> set[str]:
    """The counts that are not 0."""
    return {name for name, found in account.found.items() if found}


# --- under a witness ---------------------------------------------------------------------------------------------

CLEAN = [
    pytest.param(ran(1), [], id="done at once"),
    pytest.param([], [kept(State.WAITING, 0)], id="waits"),
    pytest.param([*failed(1), *ran(2, 1)], [], id="failed, done"),
    pytest.param(failed(1, verb="abandon"), [kept(State.DEAD, 1, 1)], id="failed for good"),
    pytest.param([*cut_short(1), reaped(1), *ran(2, 0, 1)], [], id="crashed, done"),
    pytest.param([*cut_short(1, verb=""), *ran(2, 0, 1)], [], id="its pool was killed"),
    pytest.param([*cut_short(1), reaped(1, "dead")], [kept(State.DEAD, 1, 0, 1)], id="dead at the crash limit"),
    pytest.param([*cut_short(1, verb="release"), *ran(2)], [], id="stopped, released"),
    pytest.param([*cut_short(1, verb="nack"), *ran(2, 1)], [], id="timed out"),
    pytest.param([fetched(1), run("start"), run("end"), asked(1, "ack")], [], id="killed in its ack, which was made"),
    pytest.param(
        [fetched(1), run("start"), run("end"), asked(1, "ack"), *ran(2, 0, 1)], [], id="killed before its ack was made"
    ),
    pytest.param([fetched(1), run("start"), run("end"), *unknown(1, "ack")], [], id="its ack was not answered"),
    pytest.param([fetched(1), run("start"), run("fail"), *unknown(1, "nack"), *ran(2, 1)], [], id="its nack was made"),
    pytest.param(
        [fetched(1), run("start"), run("fail"), *unknown(1, "nack"), *ran(2, 0, 1)], [], id="its nack was not made"
    ),
    pytest.param([*cut_short(1, verb=""), *ran(3, 0, 2)], [], id="a reply of a fetch was lost"),
    pytest.param([fetched(1), *settled(1, "ack")], [], id="skipped: its key was done already"),
    pytest.param(
        [
            fetched(1),
            run("start"),
            run("end"),
            fetched(2, 0, 1),
            *settled(1, "ack", "not-owner"),
            *settled(2, "release"),
        ],
        [kept(State.WAITING, 2, 0, 1)],
        id="a late ack was refused",
    ),
    pytest.param([*ran(2, 0, 1), fetched(1)][-1:] + ran(2, 0, 1), [], id="an earlier line"),
    pytest.param([fetched(1, holds=1.5), *ran(2, 0, 1)], [], id="delivered again after its lease"),
    pytest.param([*unknown_lease(1, "release"), *ran(2)], [], id="given back before its lease was over, perhaps"),
    pytest.param(
        [*failed(1), *failed(2, 1, verb="abandon")], [kept(State.DEAD, 2, 2)], id="dead at the second failure"
    ),
    pytest.param(
        [*failed(1), *cut_short(2, 1), reaped(1, "dead")], [kept(State.DEAD, 2, 1, 1)], id="failed, then died"
    ),
    pytest.param(cut_short(1, verb="release"), [kept(State.DEAD, 2, 0, 1)], id="died in a delivery that nobody saw"),
    pytest.param(
        failed(1), [structs.replace(kept(State.DEAD, 1, 1), reason="cancelled")], id="cancelled after a failure"
    ),
    pytest.param(
        [fetched(1), run("start"), run("end"), *unknown(1, "ack"), *settled(1, "ack", "already")],
        [],
        id="its ack was known when it was repeated",
    ),
]


@pytest.mark.parametrize(("lines", "messages"), CLEAN)
def test_what_is_right(lines: list[Line], messages: list[Message]) -> None:
    account = counted(lines, messages)

    account.assert_clean()


CAUGHT = [
    # LOST
    pytest.param([], [], {"LOST"}, id="nobody knows of it"),
    pytest.param([enq()], [], {"LOST"}, id="the ledger promised it"),
    pytest.param(cut_short(1, verb=""), [], {"LOST"}, id="gone in mid-run"),
    pytest.param([fetched(1), run("start"), run("end")], [], {"LOST"}, id="ended, never settled, gone"),
    pytest.param([*failed(1)], [], {"LOST"}, id="gone after a nack"),
    pytest.param(cut_short(1, verb="release"), [], {"LOST"}, id="gone after a release"),
    pytest.param(failed(1, verb="abandon"), [], {"LOST"}, id="its dead letter is gone"),
    pytest.param([*cut_short(1), reaped(1, "dead")], [], {"LOST"}, id="its dead letter of the reaper is gone"),
    pytest.param(failed(1, verb="ack"), [], {"LOST"}, id="acked though it failed"),
    pytest.param(cut_short(1, verb="ack"), [], {"LOST"}, id="acked though it died"),
    pytest.param(
        [fetched(1), run("start"), run("end"), *settled(1, "ack", "expired")], [], {"LOST"}, id="its ack was refused"
    ),
    pytest.param(
        [fetched(1), run("start"), run("end"), *unknown(1, "ack"), *failed(2, 0, 1)],
        [],
        {"LOST"},
        id="gone after a nack, and an ack before that which was not made",
    ),
    pytest.param(
        [fetched(1), run("start"), run("end"), asked(1, "ack"), reaped(1)],
        [],
        {"LOST"},
        id="its pool was killed in its ack, it was reaped, and is gone",
    ),
    pytest.param(failed(1), [kept(State.DEAD, 1, 1)], {"LOST"}, id="dead after a nack"),
    pytest.param(cut_short(1, verb="release"), [kept(State.DEAD, 1)], {"LOST"}, id="dead after a release"),
    # DOUBLE-SETTLE
    pytest.param([*ran(1), *settled(1, "ack")], [], {"DOUBLE-SETTLE"}, id="acked twice"),
    pytest.param([*ran(1), *settled(1, "nack")], [], {"DOUBLE-SETTLE", "LOST"}, id="acked, and nacked"),
    pytest.param([*ran(1), *ran(2)], [], {"DOUBLE-SETTLE", "RERUN", "DUP"}, id="done twice"),
    pytest.param(
        [*ran(1), reaped(1, "dead")], [kept(State.DEAD, 1)], {"DOUBLE-SETTLE", "RERUN"}, id="done, and reaped"
    ),
    pytest.param(
        [*cut_short(1), reaped(1, "dead"), reaped(1, "dead")],
        [kept(State.DEAD, 1, 0, 1)],
        {"DOUBLE-SETTLE"},
        id="died twice",
    ),
    pytest.param(
        [fetched(1), run("start"), run("end"), fetched(2, 0, 1), *settled(1, "release"), *settled(2, "release")],
        [kept(State.WAITING, 2, 0, 1)],
        {"DOUBLE-SETTLE", "CR"},
        id="a late release was accepted",
    ),
    pytest.param(
        [fetched(1), run("start"), run("end"), fetched(2, 0, 1), *settled(1, "ack")],
        [],
        {"DOUBLE-SETTLE", "RERUN"},
        id="a late ack was accepted",
    ),
    pytest.param(
        [*failed(1), *settled(1, "ack", "already")],
        [],
        {"DOUBLE-SETTLE", "LOST"},
        id="nacked, and an ack answered as done",
    ),
    # RERUN
    pytest.param(
        [*failed(1, verb="abandon"), fetched(2, 1), *unknown(2, "ack")], [], {"RERUN"}, id="given up, and back"
    ),
    pytest.param(failed(1, verb="abandon"), [kept(State.WAITING, 1, 1)], {"RERUN"}, id="given up, and waiting"),
    pytest.param(
        [*cut_short(1), reaped(1, "dead"), fetched(2, 0, 1), *unknown(2, "ack")], [], {"RERUN"}, id="died, and back"
    ),
    pytest.param([fetched(1, holds=9.0), *ran(2, 0, 1)], [], {"RERUN"}, id="delivered while it was held"),
    pytest.param([*ran(1), fetched(2, 0, 1)], [], {"RERUN"}, id="delivered after its ack"),
    pytest.param(ran(1), [kept(State.DEAD, 1)], {"RERUN"}, id="acked, and dead"),
    pytest.param(ran(1), [kept(State.WAITING, 1)], {"RERUN"}, id="acked, and waiting"),
    # FENCE
    pytest.param(
        [fetched(1), fetched(1, owner="another"), run("start"), run("end"), *settled(1, "ack")],
        [],
        {"FENCE"},
        id="one number, two owners",
    ),
    pytest.param(
        [fetched(1), run("start"), run("start"), run("end"), *settled(1, "ack")], [], {"FENCE"}, id="begun twice"
    ),
    pytest.param(
        [fetched(1), run("start", 2), run("end", 2), *settled(1, "ack")],
        [],
        {"FENCE", "RERUN"},
        id="told another number",
    ),
    pytest.param(
        [*cut_short(2, 0, 1, verb="release"), fetched(1), *settled(1, "release")],
        [kept(State.WAITING, 2, 0, 1)],
        {"FENCE", "DOUBLE-SETTLE", "CR"},
        id="the numbers begin anew",
    ),
    # ATT
    pytest.param([*failed(1), *ran(2, 0)], [], {"ATT"}, id="a failure forgotten"),
    pytest.param([*failed(1), *ran(2, 2)], [], {"ATT"}, id="a failure counted twice"),
    pytest.param([*cut_short(1), *ran(2, 1)], [], {"ATT"}, id="a crash taken for a failure"),
    pytest.param([*cut_short(1, verb="release"), *ran(2, 1)], [], {"ATT"}, id="a release counted"),
    pytest.param([*failed(1, verb="release"), *ran(2)], [], {"ATT"}, id="a failure released"),
    pytest.param(
        [fetched(1), run("start", attempt=2), run("end"), *settled(1, "ack")],
        [],
        {"ATT"},
        id="told another attempt",
    ),
    pytest.param(failed(1), [kept(State.DELAYED, 1, 0)], {"ATT"}, id="a failure forgotten in the queue"),
    pytest.param(failed(1, verb="abandon"), [kept(State.DEAD, 1, 3)], {"ATT"}, id="in the dead letter"),
    pytest.param(failed(1, verb="abandon"), [kept(State.DEAD, 1)], {"ATT"}, id="its last failure forgotten"),
    # CR
    pytest.param([*cut_short(1), *ran(2)], [], {"CR"}, id="a crash forgotten"),
    pytest.param([*cut_short(1), *ran(2, 0, 2)], [], {"CR"}, id="a crash charged twice"),
    pytest.param([*cut_short(1, verb=""), *ran(2)], [], {"CR"}, id="an expiry not charged"),
    pytest.param([*cut_short(1, verb="release"), *ran(2, 0, 1)], [], {"CR"}, id="a release charged"),
    pytest.param([*failed(1), *ran(2, 1, 1)], [], {"CR"}, id="a failure charged as a crash, too"),
    pytest.param(
        [fetched(1), run("start", crashes=4), run("end"), *settled(1, "ack")],
        [],
        {"CR"},
        id="told other crashes",
    ),
    pytest.param([*cut_short(1)], [kept(State.DEAD, 1, 0, 0)], {"CR"}, id="a dead letter without its crash"),
    # DUP, OVERLAP
    pytest.param(
        [fetched(1), run("start"), run("end"), *cut_short(1)[3:], *ran(2, 0, 1)], [], {"DUP"}, id="ended twice"
    ),
    pytest.param(
        [fetched(1), run("start"), *ran(2, 0, 1), run("end")],
        [],
        {"DUP", "OVERLAP"},
        id="ran beside itself",
    ),
    pytest.param(
        [fetched(1), fetched(2, 0, 1), run("start", 2, 1, 1), run("end", 2, 1, 1), *settled(2, "ack"), run("start")],
        [],
        {"OVERLAP"},
        id="began late",
    ),
]


@pytest.mark.parametrize(("lines", "messages", "counts"), CAUGHT)
def test_what_is_wrong(lines: list[Line], messages: list[Message], counts: set[str]) -> None:
    account = counted(lines, messages)

    assert named(account) == counts, account.found


def test_ghosts() -> None:
    assert named(counted(ran(1), promised=False)) == {"GHOST"}
    assert named(counted([], [kept(State.DEAD, 1, ident="x")], promised=False)) == {"GHOST"}
    assert named(counted([reaped(1)], promised=False)) == {"GHOST"}


def test_what_was_tried_is_no_ghost_and_nobody_misses_it() -> None:
    tried = Line("try", ID)

    assert named(counted([tried], promised=False)) == set()
    assert named(counted([tried, *ran(1)], promised=False)) == set()


# --- follow-ups --------------------------------------------------------------------------------------------------


def parent(*calls: Line) -> list[Line]:
    return [fetched(1), run("start"), run("follow", tag="child"), run("end"), *calls]


def of_child(lines: Sequence[Line]) -> list[Line]:
    return [structs.replace(line, id="child") for line in lines]


def test_a_follow_up_of_an_acked_run_is_promised() -> None:
    assert named(counted([*parent(*settled(1, "ack")), *of_child(ran(1))])) == set()
    assert counted(parent(*settled(1, "ack")))["LOST"] == {"child"}


def test_a_follow_up_of_a_run_whose_ack_is_not_known_may_be_there_or_not() -> None:
    assert named(counted(parent(*unknown(1, "ack")))) == set()
    assert named(counted([*parent(*unknown(1, "ack")), *of_child(ran(1))])) == set()


def test_a_follow_up_of_a_run_that_was_not_acked_is_a_ghost() -> None:
    lines = [*parent(*settled(1, "nack")), *of_child(ran(1))]

    assert counted(lines, [kept(State.DELAYED, 1, 1)])["GHOST"] == {"child"}


def test_a_follow_up_of_a_refused_ack_may_be_there_where_it_is_put_first() -> None:
    lines = [*parent(*settled(1, "ack", "expired")), *of_child(ran(1))]
    account = counted(lines, [kept(State.DELAYED, 1, 1)], can=structs.replace(COPYING, atomic_across_queues=False))
    assert account["GHOST"] == set()
    assert account["LOST"] == set()
    assert counted(lines, [kept(State.DELAYED, 1, 1)])["GHOST"] == {"child"}


def test_a_number_that_was_given_twice_promises_follow_ups_when_both_were_acked() -> None:
    """As after a restart of a broker that forgets deliveries."""
    first = parent(*settled(1, "ack", "expired"))
    again = [fetched(1, owner="later"), run("start"), run("end"), *settled(1, "ack")]
    assert counted([*first, *again], can=COPYING)["LOST"] == set()
    assert counted([*parent(*settled(1, "ack")), *again], can=COPYING)["LOST"] == {"child"}


# --- what brokers cannot do --------------------------------------------------------------------------------------

HALF_DONE = [
    *(fetched(1), run("start"), run("fail"), *unknown(1, "nack")),
    *(fetched(2, 1), run("start", 2, 2), run("end", 2, 2), *settled(2, "ack")),
    *(fetched(2, 0, 1, owner="copy"), run("start", 2, 1, 1), run("end", 2, 1, 1), *settled(2, "ack")),
]
"""A nack put its copy and did not delete the original: both were delivered, and done."""


def test_a_broker_that_copies_may_leave_one_more_for_each_call_that_was_not_answered() -> None:
    account = counted(HALF_DONE, can=COPYING)

    assert named(account) <= {"DUP", "OVERLAP"}
    assert account.excused == {ID}
    assert not counted(ran(1), can=COPYING).excused


@pytest.mark.parametrize(("verb", "excused"), [("nack", {ID}), ("forfeit", {ID}), ("ack", set())])
def test_nor_is_it_known_whether_a_refused_one_had_put_its_copy(verb: str, excused: set[str]) -> None:
    lines = [fetched(1), run("start"), *settled(1, verb, "expired"), *ran(2, 0, 1)]
    assert counted(lines, can=COPYING).excused == excused
    assert not counted(lines).excused


def test_and_no_more_than_that() -> None:
    third = [*cut_short(3, 0, 1), *ran(4, 0, 2), *ran(5, 0, 2)]

    assert counted([*HALF_DONE, *third], can=COPYING)["DOUBLE-SETTLE"] == {ID}
    assert counted(HALF_DONE)["DOUBLE-SETTLE"] == {ID}, "no other broker may"


def test_a_broker_that_is_not_exact_may_forget_a_crash() -> None:
    lines = [*cut_short(1, verb=""), *ran(2)]

    assert named(counted(lines, can=INEXACT)) == set()
    assert named(counted([*cut_short(1, verb=""), *ran(2, 0, 2)], can=INEXACT)) == {"CR"}


# --- without a witness -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lines", "counts"),
    [
        pytest.param([run("start"), run("end")], set(), id="done"),
        pytest.param([run("start"), run("fail"), run("start", 2, 2), run("end", 2, 2)], set(), id="failed, done"),
        pytest.param([run("start"), run("start", 2, 1, 1), run("end", 2, 1, 1)], set(), id="crashed, done"),
        pytest.param([run("start")], {"LOST"}, id="gone"),
        pytest.param([run("start"), run("end"), run("start"), run("end")], {"FENCE", "DUP"}, id="one number"),
        pytest.param([run("start", 2), run("end", 2), run("start")], {"FENCE", "OVERLAP"}, id="back"),
        pytest.param([run("start"), run("fail"), run("start", 2), run("end", 2)], {"ATT"}, id="forgotten"),
        pytest.param([run("start"), run("start", 2), run("end", 2)], {"CR"}, id="uncharged"),
    ],
)
def test_without_a_witness_it_goes_by_what_handlers_wrote(lines: list[Line], counts: set[str]) -> None:
    assert named(unwitnessed.count(lines, [ID], [])) == counts


# --- the account -------------------------------------------------------------------------------------------------


def test_an_account_tells_what_is_wrong_with_whom() -> None:
    with pytest.raises(AssertionError, match=r"LOST.*m.*never acked"):
        counted([]).assert_clean()


def test_duplicates_are_no_fault_unless_each_must_run_once() -> None:
    account = counted([fetched(1), run("start"), run("end"), *ran(2, 0, 1)])

    account.assert_clean()
    with pytest.raises(AssertionError, match="DUP"):
        account.assert_once_each()


def test_crashes_are_those_that_the_last_run_was_told() -> None:
    assert counted([*cut_short(1), *ran(2, 0, 1)]).crashes == {ID: 1}
    assert counted([fetched(1), *settled(1, "ack")]).crashes == {}
