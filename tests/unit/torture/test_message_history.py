"""What is known of a settlement, and which counters can follow."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from msgspec.structs import replace
from stories import ID, asked, cut_short, failed, fetched, kept, ran, settled, unknown

from jobpool.broker.values import Capabilities, Message, State
from jobpool_torture.ledger import Line
from jobpool_torture.message_history import CRASHED, CounterStep, History, Known, counter_steps, known_of, steps_of

CAN = Capabilities()


# --- what is known of one delivery's settlement ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("calls", "done", "verb", "unknown_verbs"),
    [
        pytest.param([], 0, "", [], id="never asked"),
        pytest.param(settled(1, "ack"), 1, "ack", [], id="accepted"),
        pytest.param(settled(1, "ack", "expired"), 0, "", [], id="refused"),
        pytest.param(unknown(1, "nack"), 0, "", ["nack"], id="raised"),
        pytest.param([asked(1, "nack")], 0, "", ["nack"], id="killed in the call"),
        pytest.param([*unknown(1, "ack"), *settled(1, "ack", "already")], 0, "ack", [], id="raised, then known"),
        pytest.param([*unknown(1, "ack"), *settled(1, "ack")], 1, "ack", [], id="raised without effect"),
        pytest.param([*unknown(1, "ack"), *settled(1, "ack", "expired")], 0, "", [], id="raised, then refused"),
        pytest.param([asked(1, "ack"), *settled(1, "release")], 1, "release", [], id="killed, then by another"),
        pytest.param([*settled(1, "ack"), *settled(1, "ack")], 2, "ack", [], id="accepted twice"),
        pytest.param([*settled(1, "ack"), *settled(1, "ack", "already")], 1, "ack", [], id="repeated"),
    ],
)
def test_what_is_known_of_a_settlement(calls: list[Line], done: int, verb: str, unknown_verbs: list[str]) -> None:
    known = known_of(calls)

    assert (len(known.done), known.verb, [line.verb for line in known.unknown]) == (done, verb, unknown_verbs)


def test_where_repeats_are_not_known_again_a_refusal_tells_nothing_of_the_call_before() -> None:
    calls = [*unknown(1, "ack"), *settled(1, "ack", "not-in-flight")]

    assert known_of(calls).unknown == ()
    assert [line.verb for line in known_of(calls, idempotent=False).unknown] == ["ack"]


def test_a_refusal_tells_nothing_of_a_call_that_the_broker_has_forgotten() -> None:
    first, second = unknown(1, "ack"), settled(1, "ack", "not-in-flight")
    late = [replace(line, at=line.at + 3600) for line in second]

    assert [line.verb for line in known_of([*first, *late]).unknown] == ["ack"]


def test_what_was_not_answered_is_remembered_for_brokers_that_copy() -> None:
    known = known_of([*unknown(1, "nack"), *settled(1, "nack", "already")])

    assert [line.verb for line in known.unanswered] == ["nack"]


# --- what a delivery adds ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("calls", "steps"),
    [
        pytest.param([], {CRASHED}, id="left to expire"),
        pytest.param(settled(1, "forfeit"), {CRASHED}, id="forfeited"),
        pytest.param(settled(1, "nack"), {(1, 0)}, id="failed"),
        pytest.param(settled(1, "release"), {(0, 0)}, id="released"),
        pytest.param(settled(1, "abandon"), {(0, 0)}, id="given up"),
        pytest.param(settled(1, "abandon", adds=(1, 0)), {(1, 0)}, id="given up after a failure"),
        pytest.param(settled(1, "move", adds=(1, 0)), {(1, 0)}, id="moved after a failure"),
        pytest.param(settled(1, "move", adds=(0, 1)), {CRASHED}, id="moved after a crash"),
        pytest.param(settled(1, "nack", "expired"), {CRASHED}, id="refused"),
        pytest.param(unknown(1, "nack"), {(1, 0), CRASHED}, id="failed, perhaps"),
        pytest.param(unknown(1, "release"), {(0, 0), CRASHED}, id="released, perhaps"),
        pytest.param(unknown(1, "ack"), {CRASHED}, id="acked, but not: it is there again"),
    ],
)
def test_what_a_delivery_adds(calls: list[Line], steps: set[tuple[int, int]]) -> None:
    assert steps_of(known_of(calls)) == steps


def test_nothing_known_is_nothing_done() -> None:
    assert (Known().verb, Known().may_be("ack")) == ("", False)


# --- counters --------------------------------------------------------------------------------------------------------


def fits(link: CounterStep, *, exact: bool = True) -> tuple[bool, bool]:
    return link.attempts_fit(), link.crashes_fit(exact=exact)


@pytest.mark.parametrize(
    ("link", "fit"),
    [
        pytest.param(CounterStep(2, (1, 0), frozenset({(1, 0)}), 0), (True, True), id="as settled"),
        pytest.param(CounterStep(2, (0, 0), frozenset({(1, 0)}), 0), (False, False), id="a failure forgotten"),
        pytest.param(CounterStep(2, (2, 0), frozenset({(1, 0)}), 0), (False, False), id="a failure too many"),
        pytest.param(CounterStep(2, (0, 0), frozenset({CRASHED}), 0), (True, False), id="a crash forgotten"),
        pytest.param(CounterStep(2, (0, 2), frozenset({CRASHED}), 0), (True, False), id="a crash too many"),
        pytest.param(CounterStep(2, (1, 0), frozenset({CRASHED}), 0), (False, False), id="a crash taken for a failure"),
        pytest.param(CounterStep(2, (1, 1), frozenset({(1, 0), CRASHED}), 0), (True, False), id="both of two"),
        pytest.param(CounterStep(4, (0, 3), frozenset({CRASHED}), 2), (True, True), id="two unseen that crashed"),
        pytest.param(CounterStep(4, (0, 1), frozenset({CRASHED}), 2), (True, True), id="two unseen that were released"),
        pytest.param(CounterStep(4, (0, 4), frozenset({CRASHED}), 2), (True, False), id="more than the unseen"),
        pytest.param(CounterStep(4, (1, 1), frozenset({CRASHED}), 2), (False, False), id="an unseen one cannot fail"),
    ],
)
def test_whether_counters_fit(link: CounterStep, fit: tuple[bool, bool]) -> None:
    assert fits(link) == fit


def test_a_broker_that_is_not_exact_may_charge_less_and_never_more() -> None:
    assert fits(CounterStep(2, (0, 0), frozenset({CRASHED}), 0), exact=False) == (True, True)
    assert fits(CounterStep(2, (0, 2), frozenset({CRASHED}), 0), exact=False) == (True, False)


@pytest.mark.parametrize(
    ("lines", "message", "wrong"),
    [
        pytest.param(ran(1), None, [], id="acked at once"),
        pytest.param([*failed(1), *cut_short(2, 1), *ran(3, 1, 1)], None, [], id="failed, crashed, done"),
        pytest.param([*failed(1), *ran(2, 0)], None, [2], id="a failure forgotten"),
        pytest.param([*cut_short(1), *cut_short(2, 0, 0), *ran(3, 0, 1)], None, [2], id="a crash forgotten"),
        pytest.param([fetched(3, 0, 2)], None, [], id="two before it that nobody saw"),
        pytest.param([fetched(2, 1)], None, [2], id="a failure before anybody saw it"),
        pytest.param(failed(1, verb="abandon"), kept(State.DEAD, 1), [1], id="dead, its last failure not counted"),
        pytest.param(failed(1, verb="abandon"), kept(State.DEAD, 1, 1), [], id="dead, its last failure counted"),
        pytest.param(cut_short(1), kept(State.DEAD, 1, 0, 1), [], id="dead at the crash limit"),
        pytest.param(cut_short(1), kept(State.DEAD, 1, 0, 0), [1], id="dead without its crash"),
        pytest.param(failed(1), kept(State.DELAYED, 1, 1), [], id="to be retried"),
        pytest.param(failed(1), kept(State.DELAYED, 1, 0), [1], id="to be retried, uncounted"),
        pytest.param(cut_short(1, verb=""), kept(State.LEASED, 1), [], id="its lease still runs"),
        pytest.param(cut_short(1, verb=""), kept(State.LEASED, 2, 0, 1), [], id="leased again"),
        pytest.param(cut_short(1, verb=""), kept(State.LEASED, 2, 0, 2), [2], id="leased again, charged too early"),
        pytest.param(cut_short(1), kept(State.LEASED, 1), [], id="forfeited, and not reaped yet"),
        pytest.param(failed(1), kept(State.LEASED, 1), [1], id="failed, and still held by that delivery"),
        pytest.param(failed(1), kept(State.LEASED, 2, 1), [], id="failed, and held by the next"),
        pytest.param([], kept(State.WAITING, 0), [], id="never fetched"),
        pytest.param([], kept(State.WAITING, 0, 1), [0], id="never fetched, and charged"),
        pytest.param([], kept(State.WAITING, 1, 0, 1), [], id="fetched, unseen"),
        pytest.param([*settled(1, "release"), *ran(2)], None, [], id="its first fetch was not written"),
    ],
)
def test_the_chain_of_counters(lines: list[Line], message: Message | None, wrong: list[int]) -> None:
    found = counter_steps(History(ID, lines, CAN), message)

    assert [link.fence for link in found if fits(link) != (True, True)] == wrong


# --- stories -----------------------------------------------------------------------------------------------------


def copies(lines: Sequence[Line]) -> int:
    return History(ID, lines, CAN).copies()


def test_what_may_have_been_left_half_done() -> None:
    assert copies(ran(1)) == 0
    assert copies([*unknown(1, "nack"), *unknown(1, "nack"), asked(2, "forfeit")]) == 3
    assert copies(unknown(1, "ack")) == 0, "an ack copies nothing"


def test_deliveries_are_in_the_order_of_their_numbers_whoever_wrote_first() -> None:
    story = History(ID, [*ran(2), *cut_short(1)], CAN)

    assert [delivery.fence for delivery in story.deliveries] == [1, 2]
