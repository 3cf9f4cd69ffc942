"""The end of a run: what is judged arrives in its result, also where a broker lists no live messages; what is clean."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from msgspec import structs
from stories import ID, cut_short, enq, failed, fetched, item, kept, ran, reaped, settled

from jobpool.broker.values import Capabilities, Message, State
from jobpool_torture.judge import MAX_CRASHES, fill_in
from jobpool_torture.ledger import Line
from jobpool_torture.result import Result

MUTE = Capabilities(lists_live=False)


def lost(lines: list[Line], left: int, can: Capabilities) -> int:
    result = Result(left=left)
    fill_in(result, lines, [], {}, [], can, results={})
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


def poisoned(times: int) -> list[Line]:
    """Begun so often, and dead in the end."""
    runs = [line for number in range(times) for line in cut_short(number + 1, 0, number)]
    return [*runs, reaped(times, "dead")]


def hung(seconds: float) -> list[Line]:
    """A job whose verdict was asked for so long after it had begun."""
    first, start, *calls = cut_short(1, verb="abandon")
    return [first, start, *(structs.replace(line, attempt=1, at=start.at + seconds) for line in calls)]


def dead_of(crashes: int) -> Message:
    return structs.replace(kept(State.DEAD, crashes, 0, crashes), reason="crash-limit")


KEYED = item("keyed", idempotency_key="k")
FATAL = structs.replace(kept(State.DEAD, 1, 1), reason="timeout")
FAILED = structs.replace(FATAL, reason="failed")
SWALLOWED = [structs.replace(enq("another"), tag=ID), Line("try", "another")]
CANCEL = Line("cancel", ID, answer="cancelled")


def test_each_of_its_own_judgements_arrives_in_the_result() -> None:
    for case, lines, left, what, found in [
        ("KEY", [fetched(1), *settled(1, "ack")], None, KEYED, {"KEY": "nobody had done its key"}),
        ("LOST: skipped", [fetched(1), *settled(1, "ack")], None, item("work"), {"LOST": "had not begun"}),
        ("LATE", hung(20.0), FATAL, item("hang", max_retries=0), {"LATE": "m: 19.0 s"}),
        ("in time", hung(2.0), FATAL, item("hang", max_retries=0), {}),
        ("POISON", poisoned(MAX_CRASHES + 2), dead_of(MAX_CRASHES + 2), item("poison"), {"POISON": "ran 7 times"}),
        ("poison", poisoned(MAX_CRASHES + 1), dead_of(MAX_CRASHES + 1), item("poison"), {}),
        ("LOST: too early", poisoned(MAX_CRASHES), dead_of(MAX_CRASHES), item("poison"), {"LOST": "after 5 crashes"}),
        ("LOST: buried", failed(1, verb="abandon"), FAILED, item("work"), {"LOST": "of the kind work"}),
        ("LOST: swallowed", SWALLOWED, None, item("work"), {"LOST": "answered as another"}),
        ("RESULT", ran(1), None, item("kept", result_ttl=60.0), {"RESULT": "its result is not kept"}),
        ("CANCEL", [*ran(1), CANCEL], None, item("cancelled"), {"CANCEL": "began after its"}),
    ]:
        result = Result()
        promised = [] if any(line.event == "enq" for line in lines) else [enq()]
        fill_in(result, [*promised, *lines], [left] if left else [], {ID: what}, [], Capabilities(), results={})
        told = {count: "; ".join(sentences) for count, sentences in result.counts.items()}
        assert told.keys() == found.keys(), (case, told)
        assert all(why in told[count] for count, why in found.items()), (case, told)


def test_a_batch_without_its_callback_arrives_in_the_result_and_so_does_what_there_was_to_judge_by() -> None:
    result = Result()
    batch, lines = replace(item("batch"), members=(item("work"),)), [enq("b:on_done"), enq("bm0"), *ran(1)]
    lines = [structs.replace(line, id="bm0") if line.id == ID else line for line in lines]
    lines.append(Line("cancel", "c", answer="ended first"))
    items = {"b:on_done": batch, "b:on_success": batch, "bm0": item("work")}
    fill_in(result, lines, [], items, [], Capabilities(), results={"r": {}})
    assert result.counts["BATCH"] == ["b: all of its members have ended, and b:on_done never ran"]
    assert result.tracked == {"results": 1, "not cancelled": 1, "batches": 1}


def test_a_strangers_dead_letter_is_a_ghost_and_no_job_that_was_lost() -> None:
    result = Result()
    fill_in(result, [], [structs.replace(kept(State.DEAD, 1), reason="rejected")], {}, [], Capabilities(), results={})
    assert result.counts == {"GHOST": [f"{ID}: nobody has enqueued it"]}


def test_a_run_that_has_shown_nothing_is_not_clean() -> None:
    for case, result, doubt in [
        ("one missed", Result(planned=2, struck=Counter({"child.kill": 1}), missed=1), ""),
        ("none planned", Result(planned=0), ""),
        ("all missed", Result(planned=2, missed=2), "none of the 2 faults of the schedule found anything to strike"),
        ("interrupted before the first", Result(planned=2, interrupted=True), ""),
        (
            "a problem",
            Result(planned=2, struck=Counter({"child.kill": 2}), problems=["'x' has ended with status 127"]),
            "'x' has ended",
        ),
    ]:
        assert result.doubt.startswith(doubt), case
        assert bool(result.doubt) is bool(doubt), case
        assert result.is_clean is not bool(doubt), case
        assert result.violations == 0, case
        assert result.to_dict()["doubt"] == result.doubt, case
