"""The rules of RESULT, CANCEL and BATCH, over ledgers and leftovers as a run has them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from msgspec import structs
from stories import CLOCK, cut_short, enq, failed, fetched, item, kept, ran, reaped, run, settled, unknown

from jobpool.broker.values import Message, State
from jobpool_torture.ledger import Line
from jobpool_torture.tracking import batches, cancels, results
from jobpool_torture.workload import RESULT_TTL_S, Item, done_of, member_ids, success_of


def of(ident: str, lines: list[Line]) -> list[Line]:
    return [structs.replace(line, id=ident) for line in lines]


# --- RESULT --------------------------------------------------------------------------------------------------------

KEPT = {"m": item("kept", result_ttl=RESULT_TTL_S)}


def receipt(fence: int, attempt: int = 1, job: str = "m") -> dict[str, Any]:
    return {"job": job, "fence": fence, "attempt": attempt}


NONE_ACKED = "no delivery was acked, and its result is "
ANOTHERS = "delivery 1 was acked, and its result is "
ENDED = [fetched(1), run("start"), run("end")]
UNSURE = [*ENDED, *unknown(1, "ack")]


def test_the_result_is_that_of_the_delivery_that_was_acked() -> None:
    for case, lines, found, wrong in [
        ("its own", ran(1), receipt(1), ""),
        ("of its second attempt", [*failed(1), *ran(2, 1)], receipt(2, 2), ""),
        ("after a crash", [*cut_short(1), *ran(2, 0, 1)], receipt(2), ""),
        ("the ack was not answered, and not made", UNSURE, None, ""),
        ("the ack was not answered, and made", UNSURE, receipt(1), ""),
        ("dead", failed(1, verb="abandon"), None, ""),
        ("its time is over", [*ran(1), structs.replace(enq("later"), at=CLOCK.now + RESULT_TTL_S)], None, ""),
        ("an unanswered ack before the one that was made", [*UNSURE, *ran(2, 0, 1)], receipt(2), ""),
        ("missing", ran(1), None, "delivery 1 was acked, and its result is not kept"),
        ("a former owner's", [*cut_short(1), *ran(2, 0, 1)], receipt(1), "delivery 2 was acked, and its result is "),
        ("another attempt's", ran(1), receipt(1, 2), ANOTHERS),
        ("another job's", ran(1), receipt(1, job="another"), ANOTHERS),
        ("what no run returned", ran(1), "rubbish", "delivery 1 was acked, and its result is rubbish"),
        ("a failed run's", failed(1), receipt(1), NONE_ACKED),
        ("of a refused ack", [*ENDED, *settled(1, "ack", "expired")], receipt(1), NONE_ACKED),
        ("the ack was not answered, and another's result is there", UNSURE, receipt(2), ANOTHERS),
    ]:
        told = results(lines, KEPT, {} if found is None else {"m": found})
        assert set(told) == ({"m"} if wrong else set()), case
        assert told.get("m", "").startswith(wrong), case


def test_a_job_that_keeps_no_result_owes_none() -> None:
    assert not results(ran(1), {"m": item("work")}, {})


# --- CANCEL --------------------------------------------------------------------------------------------------------


def cancelled(answer: str = "cancelled") -> Line:
    return Line("cancel", "m", at=CLOCK.tick(), answer=answer)


BURIED = structs.replace(kept(State.DEAD, 1), reason="cancelled")
CUT = cut_short(1, verb="abandon")
LATE = "delivery 1 began after its cancel was answered"
CUT_LATER = [fetched(2), *settled(2, "abandon")]
NO_DEAD_LETTER = "its cancel was answered, and it is not a dead letter of that"


def test_after_the_answer_to_a_cancel_nothing_begins() -> None:
    for case, lines, left, wrong in [
        ("while it waited", [enq(), cancelled()], BURIED, ""),
        ("while it ran", [*CUT, cancelled()], BURIED, ""),
        ("by an earlier cancel", [*failed(1), cancelled("already cancelled")], BURIED, ""),
        ("too late", [*ran(1), cancelled("ended first")], None, ""),
        ("nobody knew yet", [enq(), cancelled("asked"), *ran(1)], None, ""),
        ("one without a lease wrote late", [fetched(1), *CUT_LATER, cancelled(), run("start")], BURIED, ""),
        ("acked", [*ran(1), cancelled()], None, NO_DEAD_LETTER),
        ("gone", [enq(), cancelled()], None, NO_DEAD_LETTER),
        ("dead of something else", [enq(), cancelled()], structs.replace(BURIED, reason="failed"), NO_DEAD_LETTER),
        ("still there", [enq(), cancelled()], kept(State.DELAYED, 0), NO_DEAD_LETTER),
        ("fetched later", [cancelled(), *cut_short(1, verb="")], BURIED, LATE),
        ("fetched later, and it was an earlier cancel", [cancelled("already cancelled"), *CUT], BURIED, LATE),
        ("fetched before, begun later", [fetched(1), cancelled(), run("start"), *settled(1, "abandon")], BURIED, LATE),
    ]:
        lines = [structs.replace(line, at=CLOCK.tick(), since=CLOCK.now - 0.5) for line in lines]
        told = cancels(lines, {"m": item("cancelled")}, [left] if left else [])
        assert told == ({"m": wrong} if wrong else {}), case


# --- BATCH ---------------------------------------------------------------------------------------------------------

DONE, SUCCESS = done_of("b"), success_of("b")
BATCH = replace(item("batch"), members=(item("w"), item("w")))
FIRST, SECOND = member_ids("b", BATCH)
ITEMS = {DONE: BATCH, SUCCESS: BATCH, FIRST: item("follow"), SECOND: item("work")}
CLOSED = [enq(FIRST), enq(SECOND), enq(DONE)]


def told(counts: str, callback: str = DONE, fence: int = 1) -> list[Line]:
    """A run of a callback, acked."""
    begun, start, end, *calls = ran(fence)
    return of(callback, [begun, start, run("told", fence, tag=counts), end, *calls])


def both(*acked: str) -> list[Line]:
    """A closed batch of which these members were acked."""
    return [*CLOSED, *(line for ident in acked for line in of(ident, ran(1)))]


def dead(ident: str, reason: str = "failed") -> Message:
    return structs.replace(kept(State.DEAD, 1, 1, ident=ident), reason=reason)


ALL_DONE = both(FIRST, SECOND)
WELL = [*ALL_DONE, *told("2 2 0 0"), *told("2 2 0 0", SUCCESS)]
PARENT = [fetched(1), run("start"), run("follow", tag="f"), run("end")]
FOLLOWED = [*CLOSED, *of(FIRST, [*PARENT, *settled(1, "ack")]), *of(SECOND, ran(1))]
UNSURE_PARENT = [*CLOSED, *of(FIRST, [*PARENT, *unknown(1, "ack")]), *of(SECOND, ran(1))]


FAILED = [*both(FIRST), *told("2 1 1 0")]
NOT_ALL = "b:on_success ran, and 1 of its members had not succeeded"
TWICE = "b:on_{} came more than once: {}"
NEVER = "all of its members have ended, and b:{} never ran"


def off(told: str, members: int, dead: int, cancelled: int) -> str:
    return f"b:on_done was told {told}: of {members} members, {dead} are dead, {cancelled} cancelled"


def test_the_callbacks_of_a_batch_come_once_with_its_counts() -> None:
    for case, lines, left, wrong in [
        ("all have succeeded", WELL, [], ""),
        ("one has failed", FAILED, [dead(SECOND)], ""),
        ("one was cancelled", [*both(FIRST), *told("2 1 0 1")], [dead(SECOND, "cancelled")], ""),
        ("none has succeeded", [*both(), *told("2 0 1 1")], [dead(FIRST), dead(SECOND, "cancelled")], ""),
        ("one was added", [*FOLLOWED, *of("f", ran(1)), *told("3 3 0 0"), *told("3 3 0 0", SUCCESS)], [], ""),
        ("one was perhaps added, and was not", [*UNSURE_PARENT, *told("2 2 0 0"), *told("2 2 0 0", SUCCESS)], [], ""),
        ("one was perhaps added, and was", [*UNSURE_PARENT, *told("3 3 0 0"), *told("3 3 0 0", SUCCESS)], [], ""),
        ("a member has not ended", both(FIRST), [kept(State.WAITING, 0, ident=SECOND)], ""),
        ("a callback has not ended", [*ALL_DONE, *told("2 2 0 0")], [kept(State.WAITING, 0, ident=SUCCESS)], ""),
        ("a callback crashed, and ran again", [*of(DONE, cut_short(1)), *WELL], [], ""),
        ("it was perhaps not closed", ALL_DONE[:2], [], ""),
        ("no callback", ALL_DONE, [], NEVER.format("on_done")),
        ("only that of a success", [*ALL_DONE, *told("2 2 0 0", SUCCESS)], [], NEVER.format("on_done")),
        ("not that of a success", [*ALL_DONE, *told("2 2 0 0")], [], NEVER.format("on_success")),
        ("no callback after a failure", both(FIRST), [dead(SECOND)], NEVER.format("on_done")),
        ("that of a success after a failure", [*FAILED, *told("2 1 1 0", SUCCESS)], [dead(SECOND)], NOT_ALL),
        ("twice", [*WELL, *told("2 2 0 0", fence=2)], [], TWICE.format("done", ["2 2 0 0"])),
        ("twice, of a success", [*WELL, *told("2 2 0 0", SUCCESS, fence=2)], [], TWICE.format("success", ["2 2 0 0"])),
        (
            "twice, with other counts",
            [*WELL[:-5], *of(DONE, cut_short(1)[:2]), *of(DONE, [run("told", tag="1 1 0 0")]), *WELL[-5:]],
            [],
            TWICE.format("done", ["1 1 0 0", "2 2 0 0"]),
        ),
        ("a member too few", [*ALL_DONE, *told("1 1 0 0")], [], off("1 1 0 0", 2, 0, 0)),
        ("a member too many", [*ALL_DONE, *told("3 3 0 0")], [], off("3 3 0 0", 2, 0, 0)),
        ("a failure too many", [*ALL_DONE, *told("2 1 1 0")], [], off("2 1 1 0", 2, 0, 0)),
        ("a success too few", [*ALL_DONE, *told("2 1 0 0")], [], off("2 1 0 0", 2, 0, 0)),
        ("a failure too few", [*both(FIRST), *told("2 2 0 0")], [dead(SECOND)], off("2 2 0 0", 2, 1, 0)),
        ("a cancel taken for a failure", FAILED, [dead(SECOND, "cancelled")], off("2 1 1 0", 2, 1, 1)),
        ("the added one is missing", [*FOLLOWED, *of("f", ran(1)), *told("2 2 0 0")], [], off("2 2 0 0", 3, 0, 0)),
    ]:
        assert batches(lines, ITEMS, left) == ({"b": wrong} if wrong else {}), case


def test_each_batch_is_judged_by_its_own_members() -> None:
    two = {ident.replace("b", "c", 1): each for ident, each in ITEMS.items()}
    other = [structs.replace(line, id=line.id.replace("b", "c", 1)) for line in ALL_DONE]
    assert batches([*WELL, *other], ITEMS | two, []) == {"c": "all of its members have ended, and c:on_done never ran"}


def test_the_crash_limit_is_a_failure() -> None:
    lines = [*both(FIRST), *of(SECOND, [*cut_short(1), reaped(1, "dead")]), *told("2 1 1 0")]
    assert not batches(lines, ITEMS, [dead(SECOND, "crash-limit")])


def test_nothing_is_judged_that_did_not_come_about() -> None:
    nothing: Mapping[str, Item] = {}
    assert not results([], nothing, {})
    assert not cancels([], nothing, [])
    assert not batches([], nothing, [])
