"""Each count of the oracle: stories that must be clean, and those of pools and brokers with a fault, which it sees."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from msgspec import structs
from stories import ID, asked, cut_short, enq, failed, fetched, kept, ran, reaped, run, settled, unknown
from support.accounts import Account, count
from support.tables import row

from jobpool.broker.values import Capabilities, Message, State
from jobpool_torture.ledger import Line

COPYING = Capabilities(keeps_records=False)
INEXACT = Capabilities(keeps_records=False, exact_counts=False)


def unknown_lease(fence: int, verb: str) -> list[Line]:
    """A lease of nine seconds, and a settlement of which nobody knows."""
    return [fetched(fence, holds=9.0), *unknown(fence, verb)]


def ended() -> list[Line]:
    """A first run to its end, not settled yet."""
    return [fetched(1), run("start"), run("end")]


NACKED = [fetched(1), run("start"), run("fail"), *unknown(1, "nack")]
OVERTAKEN = [*ended(), fetched(2, 0, 1)]
BACK = kept(State.WAITING, 2, 0, 1)


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


# --- single messages ----------------------------------------------------------------------------------------------


def test_what_is_right() -> None:
    for case, lines, messages in [
        ("done at once", ran(1), []),
        ("waits", [], [kept(State.WAITING, 0)]),
        ("failed, done", [*failed(1), *ran(2, 1)], []),
        ("failed for good", failed(1, verb="abandon"), [kept(State.DEAD, 1, 1)]),
        ("crashed, done", [*cut_short(1), reaped(1), *ran(2, 0, 1)], []),
        ("its pool was killed", [*cut_short(1, verb=""), *ran(2, 0, 1)], []),
        ("dead at the crash limit", [*cut_short(1), reaped(1, "dead")], [kept(State.DEAD, 1, 0, 1)]),
        ("stopped, released", [*cut_short(1, verb="release"), *ran(2)], []),
        ("timed out", [*cut_short(1, verb="nack"), *ran(2, 1)], []),
        ("killed in its ack, which was made", [*ended(), asked(1, "ack")], []),
        ("killed before its ack was made", [*ended(), asked(1, "ack"), *ran(2, 0, 1)], []),
        ("its ack was not answered", [*ended(), *unknown(1, "ack")], []),
        ("its nack was made", [*NACKED, *ran(2, 1)], []),
        ("its nack was not made", [*NACKED, *ran(2, 0, 1)], []),
        ("a reply of a fetch was lost", [*cut_short(1, verb=""), *ran(3, 0, 2)], []),
        ("skipped: its key was done already", [fetched(1), *settled(1, "ack")], []),
        ("a late ack was refused", [*OVERTAKEN, *settled(1, "ack", "not-owner"), *settled(2, "release")], [BACK]),
        ("an earlier line", [*ran(2, 0, 1), fetched(1)][-1:] + ran(2, 0, 1), []),
        ("delivered again after its lease", [fetched(1, holds=1.5), *ran(2, 0, 1)], []),
        ("given back before its lease was over, perhaps", [*unknown_lease(1, "release"), *ran(2)], []),
        ("dead at the second failure", [*failed(1), *failed(2, 1, verb="abandon")], [kept(State.DEAD, 2, 2)]),
        ("failed, then died", [*failed(1), *cut_short(2, 1), reaped(1, "dead")], [kept(State.DEAD, 2, 1, 1)]),
        ("died in a delivery that nobody saw", cut_short(1, verb="release"), [kept(State.DEAD, 2, 0, 1)]),
        ("cancelled after a failure", failed(1), [structs.replace(kept(State.DEAD, 1, 1), reason="cancelled")]),
        ("its ack was known when it was repeated", [*ended(), *unknown(1, "ack"), *settled(1, "ack", "already")], []),
        ("its ack was repeated", [*ran(1), *settled(1, "ack", "already")], []),
        ("two fetches that nobody saw", [fetched(3, 0, 2)], [kept(State.LEASED, 3, 0, 2)]),
        ("its first fetch was not written", [*settled(1, "release"), *ran(2)], []),
        ("moved after a failure", [*failed(1, verb="move"), *ran(2, 1)], []),
        ("moved after a crash", [fetched(1), *settled(1, "move", adds=(0, 1)), *ran(2, 0, 1)], []),
        ("its lease still runs", cut_short(1, verb=""), [kept(State.LEASED, 1)]),
        ("leased again", cut_short(1, verb=""), [kept(State.LEASED, 2, 0, 1)]),
        ("leased again after a failure", failed(1), [kept(State.LEASED, 2, 1)]),
        ("forfeited, and not reaped yet", cut_short(1), [kept(State.LEASED, 1)]),
        ("fetched, and nobody saw it", [], [kept(State.WAITING, 1, 0, 1)]),
    ]:
        with row(case):
            counted(lines, messages).assert_clean()


def test_what_is_wrong() -> None:
    for case, lines, messages, counts in [
        # LOST
        ("nobody knows of it", [], [], "LOST"),
        ("the ledger promised it", [enq()], [], "LOST"),
        ("gone in mid-run", cut_short(1, verb=""), [], "LOST"),
        ("ended, never settled, gone", [*ended()], [], "LOST"),
        ("gone after a nack", [*failed(1)], [], "LOST"),
        ("gone after a release", cut_short(1, verb="release"), [], "LOST"),
        ("its dead letter is gone", failed(1, verb="abandon"), [], "LOST"),
        ("its dead letter of the reaper is gone", [*cut_short(1), reaped(1, "dead")], [], "LOST"),
        ("acked though it failed", failed(1, verb="ack"), [], "LOST"),
        ("acked though it died", cut_short(1, verb="ack"), [], "LOST"),
        ("its ack was refused", [*ended(), *settled(1, "ack", "expired")], [], "LOST"),
        ("gone after a nack, its first ack not made", [*ended(), *unknown(1, "ack"), *failed(2, 0, 1)], [], "LOST"),
        ("its pool was killed in its ack, and it is gone", [*ended(), asked(1, "ack"), reaped(1)], [], "LOST"),
        ("dead after a nack", failed(1), [kept(State.DEAD, 1, 1)], "LOST"),
        ("dead after a release", cut_short(1, verb="release"), [kept(State.DEAD, 1)], "LOST"),
        # DOUBLE-SETTLE
        ("acked twice", [*ran(1), *settled(1, "ack")], [], "DOUBLE-SETTLE"),
        ("acked, and nacked", [*ran(1), *settled(1, "nack")], [], "DOUBLE-SETTLE LOST"),
        ("done twice", [*ran(1), *ran(2)], [], "DOUBLE-SETTLE RERUN DUP"),
        ("done, and reaped", [*ran(1), reaped(1, "dead")], [kept(State.DEAD, 1)], "DOUBLE-SETTLE RERUN"),
        ("died twice", [*cut_short(1), *[reaped(1, "dead")] * 2], [kept(State.DEAD, 1, 0, 1)], "DOUBLE-SETTLE"),
        (
            "a late release was accepted",
            [*OVERTAKEN, *settled(1, "release"), *settled(2, "release")],
            [BACK],
            "DOUBLE-SETTLE CR",
        ),
        ("a late ack was accepted", [*OVERTAKEN, *settled(1, "ack")], [], "DOUBLE-SETTLE RERUN"),
        ("nacked, and an ack answered as done", [*failed(1), *settled(1, "ack", "already")], [], "DOUBLE-SETTLE LOST"),
        # RERUN
        ("given up, and back", [*failed(1, verb="abandon"), fetched(2, 1), *unknown(2, "ack")], [], "RERUN"),
        ("given up, and waiting", failed(1, verb="abandon"), [kept(State.WAITING, 1, 1)], "RERUN"),
        ("died, and back", [*cut_short(1), reaped(1, "dead"), fetched(2, 0, 1), *unknown(2, "ack")], [], "RERUN"),
        ("delivered while it was held", [fetched(1, holds=9.0), *ran(2, 0, 1)], [], "RERUN"),
        ("delivered after its ack", [*ran(1), fetched(2, 0, 1)], [], "RERUN"),
        ("acked, and dead", ran(1), [kept(State.DEAD, 1)], "RERUN"),
        ("acked, and waiting", ran(1), [kept(State.WAITING, 1)], "RERUN"),
        # FENCE
        ("one number, two owners", [fetched(1), fetched(1, owner="another"), *ran(1)[1:]], [], "FENCE"),
        ("begun twice", [fetched(1), run("start"), run("start"), run("end"), *settled(1, "ack")], [], "FENCE"),
        ("told another number", [fetched(1), run("start", 2), run("end", 2), *settled(1, "ack")], [], "FENCE RERUN"),
        (
            "numbers begin anew",
            [*cut_short(2, 0, 1, verb="release"), fetched(1), *settled(1, "release")],
            [BACK],
            "FENCE DOUBLE-SETTLE CR",
        ),
        # ATT
        ("a failure forgotten", [*failed(1), *ran(2, 0)], [], "ATT"),
        ("a failure counted twice", [*failed(1), *ran(2, 2)], [], "ATT"),
        ("a crash taken for a failure", [*cut_short(1), *ran(2, 1)], [], "ATT"),
        ("a release counted", [*cut_short(1, verb="release"), *ran(2, 1)], [], "ATT"),
        ("a failure released", [*failed(1, verb="release"), *ran(2)], [], "ATT"),
        ("told another attempt", [fetched(1), run("start", attempt=2), run("end"), *settled(1, "ack")], [], "ATT"),
        ("a failure forgotten in the queue", failed(1), [kept(State.DELAYED, 1, 0)], "ATT"),
        ("in the dead letter", failed(1, verb="abandon"), [kept(State.DEAD, 1, 3)], "ATT"),
        ("its last failure forgotten", failed(1, verb="abandon"), [kept(State.DEAD, 1)], "ATT"),
        # CR
        ("a crash forgotten", [*cut_short(1), *ran(2)], [], "CR"),
        ("a crash charged twice", [*cut_short(1), *ran(2, 0, 2)], [], "CR"),
        ("an expiry not charged", [*cut_short(1, verb=""), *ran(2)], [], "CR"),
        ("a release charged", [*cut_short(1, verb="release"), *ran(2, 0, 1)], [], "CR"),
        ("a failure charged as a crash, too", [*failed(1), *ran(2, 1, 1)], [], "CR"),
        ("told other crashes", [fetched(1), run("start", crashes=4), run("end"), *settled(1, "ack")], [], "CR"),
        ("a dead letter without its crash", [*cut_short(1)], [kept(State.DEAD, 1, 0, 0)], "CR"),
        ("a crash charged while its lease runs", cut_short(1, verb=""), [kept(State.LEASED, 2, 0, 2)], "CR"),
        ("both that a nack may add", [*NACKED, fetched(2, 1, 1)], [kept(State.LEASED, 2, 1, 1)], "CR"),
        ("more crashes than deliveries", [*cut_short(1, verb=""), fetched(4, 0, 4)], [], "CR LOST"),
        ("a failure taken back while it is held", failed(1), [kept(State.LEASED, 1)], "ATT"),
        ("a failure that nobody saw", [*cut_short(1, verb=""), fetched(4, 1, 1)], [], "ATT LOST"),
        ("a failure before anybody has fetched it", [], [kept(State.WAITING, 0, 1)], "ATT"),
        # DUP, OVERLAP
        ("ended twice", [*ended(), *cut_short(1)[3:], *ran(2, 0, 1)], [], "DUP"),
        ("ran beside itself", [fetched(1), run("start"), *ran(2, 0, 1), run("end")], [], "DUP OVERLAP"),
        ("began late", [fetched(1), *ran(2, 0, 1), run("start")], [], "OVERLAP"),
    ]:
        account = counted(lines, messages)
        assert named(account) == {*counts.split()}, (case, account.found)


def test_a_refusal_denies_the_unanswered_ack_before_it_unless_the_broker_may_have_forgotten_that() -> None:
    *lines, asked_again, refused = [*ended(), *unknown(1, "ack"), *settled(1, "ack", "not-in-flight")]
    late = [structs.replace(line, at=line.at + 3600) for line in (asked_again, refused)]
    assert counted([*lines, asked_again, refused])["LOST"] == {ID}
    assert not counted([*lines, *late])["LOST"]
    assert not counted([*lines, asked_again, refused], can=COPYING)["LOST"]


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
    for calls in (settled(1, "nack"), [*unknown(1, "ack"), *settled(1, "nack")]):
        lines = [*parent(*calls), *of_child(ran(1))]
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
    *NACKED,
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
