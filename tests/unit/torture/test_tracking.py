"""The rules of RESULT, CANCEL and BATCH, over ledgers and leftovers as a run has them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from msgspec import structs
from stories import CLOCK, cut_short, enq, failed, fetched, kept, ran, reaped, run, settled, unknown

from jobpool.broker.values import Message, State
from jobpool_torture.ledger import Line
from jobpool_torture.tracking import batches, cancels, results
from jobpool_torture.workload import RESULT_TTL_S, Item, done_of, member_ids, success_of


def item(kind: str, members: int = 0, **options: object) -> Item:
    return Item(
        0, 0.0, kind, "torture.work", {}, options=dict(options), members=(Item(0, 0.0, "w", "w", {}),) * members
    )


def of(ident: str, lines: list[Line]) -> list[Line]:
    return [structs.replace(line, id=ident) for line in lines]


# --- RESULT --------------------------------------------------------------------------------------------------------

KEPT = {"m": item("kept", result_ttl=RESULT_TTL_S)}


def receipt(fence: int, attempt: int = 1, job: str = "m") -> dict[str, Any]:
    return {"job": job, "fence": fence, "attempt": attempt}


UNSURE = [fetched(1), run("start"), run("end"), *unknown(1, "ack")]


@pytest.mark.parametrize(
    ("lines", "found", "wrong"),
    [
        (ran(1), receipt(1), ""),
        ([*failed(1), *ran(2, 1)], receipt(2, 2), ""),
        ([*cut_short(1), *ran(2, 0, 1)], receipt(2), ""),
        (UNSURE, None, ""),
        (UNSURE, receipt(1), ""),
        (failed(1, verb="abandon"), None, ""),
        ([*ran(1), structs.replace(enq("later"), at=CLOCK.now + RESULT_TTL_S)], None, ""),
        ([fetched(1), run("start"), run("end"), *unknown(1, "ack"), *ran(2, 0, 1)], receipt(2), ""),
        (ran(1), None, "delivery 1 was acked, and its result is not kept"),
        ([*cut_short(1), *ran(2, 0, 1)], receipt(1), "delivery 2 was acked, and its result is "),
        (ran(1), receipt(1, 2), "delivery 1 was acked, and its result is "),
        (ran(1), receipt(1, job="another"), "delivery 1 was acked, and its result is "),
        (ran(1), "rubbish", "delivery 1 was acked, and its result is rubbish"),
        (failed(1), receipt(1), "no delivery was acked, and its result is "),
        (
            [fetched(1), run("start"), run("end"), *settled(1, "ack", "expired")],
            receipt(1),
            "no delivery was acked, and its result is ",
        ),
        (UNSURE, receipt(2), "delivery 1 was acked, and its result is "),
    ],
    ids=[
        "its own",
        "of its second attempt",
        "after a crash",
        "the ack was not answered, and not made",
        "the ack was not answered, and made",
        "dead",
        "its time is over",
        "an unanswered ack before the one that was made",
        "missing",
        "a former owner's",
        "another attempt's",
        "another job's",
        "what no run returned",
        "a failed run's",
        "of a refused ack",
        "the ack was not answered, and another's result is there",
    ],
)
def test_the_result_is_that_of_the_delivery_that_was_acked(lines: list[Line], found: Any, wrong: str) -> None:
    told = results(lines, KEPT, {} if found is None else {"m": found})
    assert set(told) == ({"m"} if wrong else set())
    assert told.get("m", "").startswith(wrong)


def test_a_job_that_keeps_no_result_owes_none() -> None:
    assert not results(ran(1), {"m": item("work")}, {})


# --- CANCEL --------------------------------------------------------------------------------------------------------


def cancelled(answer: str = "cancelled") -> Line:
    return Line("cancel", "m", at=CLOCK.tick(), answer=answer)


BURIED = structs.replace(kept(State.DEAD, 1), reason="cancelled")
CUT = cut_short(1, verb="abandon")
NO_DEAD_LETTER = "its cancel was answered, and it is not a dead letter of that"


@pytest.mark.parametrize(
    ("lines", "left", "wrong"),
    [
        ([enq(), cancelled()], BURIED, ""),
        ([*CUT, cancelled()], BURIED, ""),
        ([*failed(1), cancelled("already cancelled")], BURIED, ""),
        ([*ran(1), cancelled("ended first")], None, ""),
        ([enq(), cancelled("asked"), *ran(1)], None, ""),
        ([fetched(1), fetched(2), *settled(2, "abandon"), cancelled(), run("start")], BURIED, ""),
        ([*ran(1), cancelled()], None, NO_DEAD_LETTER),
        ([enq(), cancelled()], None, NO_DEAD_LETTER),
        ([enq(), cancelled()], structs.replace(BURIED, reason="failed"), NO_DEAD_LETTER),
        ([enq(), cancelled()], kept(State.DELAYED, 0), NO_DEAD_LETTER),
        ([cancelled(), *cut_short(1, verb="")], BURIED, "delivery 1 began after its cancel was answered"),
        ([cancelled("already cancelled"), *CUT], BURIED, "delivery 1 began after its cancel was answered"),
        (
            [fetched(1), cancelled(), run("start"), *settled(1, "abandon")],
            BURIED,
            "delivery 1 began after its cancel was answered",
        ),
    ],
    ids=[
        "while it waited",
        "while it ran",
        "by an earlier cancel",
        "too late",
        "nobody knew yet",
        "one without a lease began and wrote that late",
        "acked",
        "gone",
        "dead of something else",
        "still there",
        "fetched later",
        "fetched later, and it was an earlier cancel",
        "fetched before, and begun by its holder later",
    ],
)
def test_after_the_answer_to_a_cancel_nothing_begins(lines: list[Line], left: Message | None, wrong: str) -> None:
    lines = [structs.replace(line, at=CLOCK.tick(), since=CLOCK.now - 0.5) for line in lines]
    told = cancels(lines, {"m": item("cancelled")}, [left] if left else [])
    assert told == ({"m": wrong} if wrong else {})


# --- BATCH ---------------------------------------------------------------------------------------------------------

DONE, SUCCESS = done_of("b"), success_of("b")
BATCH = item("batch", members=2)
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


@pytest.mark.parametrize(
    ("lines", "left", "wrong"),
    [
        (WELL, [], ""),
        ([*both(FIRST), *told("2 1 1 0")], [dead(SECOND)], ""),
        ([*both(FIRST), *told("2 1 0 1")], [dead(SECOND, "cancelled")], ""),
        ([*both(), *told("2 0 1 1")], [dead(FIRST), dead(SECOND, "cancelled")], ""),
        ([*FOLLOWED, *of("f", ran(1)), *told("3 3 0 0"), *told("3 3 0 0", SUCCESS)], [], ""),
        ([*UNSURE_PARENT, *told("2 2 0 0"), *told("2 2 0 0", SUCCESS)], [], ""),
        ([*UNSURE_PARENT, *told("3 3 0 0"), *told("3 3 0 0", SUCCESS)], [], ""),
        (both(FIRST), [kept(State.WAITING, 0, ident=SECOND)], ""),
        ([*ALL_DONE, *told("2 2 0 0")], [kept(State.WAITING, 0, ident=SUCCESS)], ""),
        ([*of(DONE, cut_short(1)), *WELL], [], ""),
        (ALL_DONE[:2], [], ""),
        (ALL_DONE, [], "all of its members have ended, and b:on_done never ran"),
        ([*ALL_DONE, *told("2 2 0 0", SUCCESS)], [], "all of its members have ended, and b:on_done never ran"),
        ([*ALL_DONE, *told("2 2 0 0")], [], "all of its members have ended, and b:on_success never ran"),
        (both(FIRST), [dead(SECOND)], "all of its members have ended, and b:on_done never ran"),
        (
            [*both(FIRST), *told("2 1 1 0"), *told("2 1 1 0", SUCCESS)],
            [dead(SECOND)],
            "b:on_success ran, and 1 of its members had not succeeded",
        ),
        ([*WELL, *told("2 2 0 0", fence=2)], [], "b:on_done came more than once: ['2 2 0 0']"),
        ([*WELL, *told("2 2 0 0", SUCCESS, fence=2)], [], "b:on_success came more than once: ['2 2 0 0']"),
        (
            [*WELL[:-5], *of(DONE, cut_short(1)[:2]), *of(DONE, [run("told", tag="1 1 0 0")]), *WELL[-5:]],
            [],
            "b:on_done came more than once: ['1 1 0 0', '2 2 0 0']",
        ),
        ([*ALL_DONE, *told("1 1 0 0")], [], "b:on_done was told 1 1 0 0: of 2 members, 0 are dead, 0 cancelled"),
        ([*ALL_DONE, *told("3 3 0 0")], [], "b:on_done was told 3 3 0 0: of 2 members, 0 are dead, 0 cancelled"),
        ([*ALL_DONE, *told("2 1 1 0")], [], "b:on_done was told 2 1 1 0: of 2 members, 0 are dead, 0 cancelled"),
        ([*ALL_DONE, *told("2 1 0 0")], [], "b:on_done was told 2 1 0 0: of 2 members, 0 are dead, 0 cancelled"),
        (
            [*both(FIRST), *told("2 2 0 0")],
            [dead(SECOND)],
            "b:on_done was told 2 2 0 0: of 2 members, 1 are dead, 0 cancelled",
        ),
        (
            [*both(FIRST), *told("2 1 1 0")],
            [dead(SECOND, "cancelled")],
            "b:on_done was told 2 1 1 0: of 2 members, 1 are dead, 1 cancelled",
        ),
        (
            [*FOLLOWED, *of("f", ran(1)), *told("2 2 0 0")],
            [],
            "b:on_done was told 2 2 0 0: of 3 members, 0 are dead, 0 cancelled",
        ),
    ],
    ids=[
        "all have succeeded",
        "one has failed",
        "one was cancelled",
        "none has succeeded",
        "one was added",
        "one was perhaps added, and was not",
        "one was perhaps added, and was",
        "a member has not ended",
        "a callback has not ended",
        "a callback crashed, and ran again",
        "it was perhaps not closed",
        "no callback",
        "only that of a success",
        "not that of a success",
        "no callback after a failure",
        "that of a success after a failure",
        "twice",
        "twice, of a success",
        "twice, with other counts",
        "a member too few",
        "a member too many",
        "a failure too many",
        "a success too few",
        "a failure too few",
        "a cancel taken for a failure",
        "the added one is missing",
    ],
)
def test_the_callbacks_of_a_batch_come_once_with_its_counts(lines: list[Line], left: list[Message], wrong: str) -> None:
    assert batches(lines, ITEMS, left) == ({"b": wrong} if wrong else {})


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
