"""What is known of a settlement, and which counters can follow."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace
from stories import ID, asked, cut_short, failed, fetched, kept, ran, settled, unknown

from jobpool.broker.values import Capabilities, State
from jobpool_torture.ledger import Line
from jobpool_torture.message_history import CRASHED, CounterStep, History, Known, counter_steps, known_of, steps_of

CAN = Capabilities()


# --- what is known of one delivery's settlement ------------------------------------------------------------------


def test_what_is_known_of_a_settlement() -> None:
    for case, calls, done, verb, unknown_verbs in [
        ("never asked", [], 0, "", []),
        ("accepted", settled(1, "ack"), 1, "ack", []),
        ("refused", settled(1, "ack", "expired"), 0, "", []),
        ("raised", unknown(1, "nack"), 0, "", ["nack"]),
        ("killed in the call", [asked(1, "nack")], 0, "", ["nack"]),
        ("raised, then known", [*unknown(1, "ack"), *settled(1, "ack", "already")], 0, "ack", []),
        ("raised without effect", [*unknown(1, "ack"), *settled(1, "ack")], 1, "ack", []),
        ("raised, then refused", [*unknown(1, "ack"), *settled(1, "ack", "expired")], 0, "", []),
        ("killed, then by another", [asked(1, "ack"), *settled(1, "release")], 1, "release", []),
        ("accepted twice", [*settled(1, "ack"), *settled(1, "ack")], 2, "ack", []),
        ("repeated", [*settled(1, "ack"), *settled(1, "ack", "already")], 1, "ack", []),
    ]:
        known = known_of(calls)

        assert (len(known.done), known.verb, [line.verb for line in known.unknown]) == (done, verb, unknown_verbs), case


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


def test_what_a_delivery_adds() -> None:
    for case, calls, steps in [
        ("left to expire", [], {CRASHED}),
        ("forfeited", settled(1, "forfeit"), {CRASHED}),
        ("failed", settled(1, "nack"), {(1, 0)}),
        ("released", settled(1, "release"), {(0, 0)}),
        ("given up", settled(1, "abandon"), {(0, 0)}),
        ("given up after a failure", settled(1, "abandon", adds=(1, 0)), {(1, 0)}),
        ("moved after a failure", settled(1, "move", adds=(1, 0)), {(1, 0)}),
        ("moved after a crash", settled(1, "move", adds=(0, 1)), {CRASHED}),
        ("refused", settled(1, "nack", "expired"), {CRASHED}),
        ("failed, perhaps", unknown(1, "nack"), {(1, 0), CRASHED}),
        ("released, perhaps", unknown(1, "release"), {(0, 0), CRASHED}),
        ("acked, but not: it is there again", unknown(1, "ack"), {CRASHED}),
    ]:
        assert steps_of(known_of(calls)) == steps, case


def test_nothing_known_is_nothing_done() -> None:
    assert (Known().verb, Known().may_be("ack")) == ("", False)


# --- counters --------------------------------------------------------------------------------------------------------


def fits(link: CounterStep, *, exact: bool = True) -> tuple[bool, bool]:
    return link.attempts_fit(), link.crashes_fit(exact=exact)


def test_whether_counters_fit() -> None:
    for case, link, fit in [
        ("as settled", CounterStep(2, (1, 0), frozenset({(1, 0)}), 0), (True, True)),
        ("a failure forgotten", CounterStep(2, (0, 0), frozenset({(1, 0)}), 0), (False, False)),
        ("a failure too many", CounterStep(2, (2, 0), frozenset({(1, 0)}), 0), (False, False)),
        ("a crash forgotten", CounterStep(2, (0, 0), frozenset({CRASHED}), 0), (True, False)),
        ("a crash too many", CounterStep(2, (0, 2), frozenset({CRASHED}), 0), (True, False)),
        ("a crash taken for a failure", CounterStep(2, (1, 0), frozenset({CRASHED}), 0), (False, False)),
        ("both of two", CounterStep(2, (1, 1), frozenset({(1, 0), CRASHED}), 0), (True, False)),
        ("two unseen that crashed", CounterStep(4, (0, 3), frozenset({CRASHED}), 2), (True, True)),
        ("two unseen that were released", CounterStep(4, (0, 1), frozenset({CRASHED}), 2), (True, True)),
        ("more than the unseen", CounterStep(4, (0, 4), frozenset({CRASHED}), 2), (True, False)),
        ("an unseen one cannot fail", CounterStep(4, (1, 1), frozenset({CRASHED}), 2), (False, False)),
    ]:
        assert fits(link) == fit, case


def test_a_broker_that_is_not_exact_may_charge_less_and_never_more() -> None:
    assert fits(CounterStep(2, (0, 0), frozenset({CRASHED}), 0), exact=False) == (True, True)
    assert fits(CounterStep(2, (0, 2), frozenset({CRASHED}), 0), exact=False) == (True, False)


def test_the_chain_of_counters() -> None:
    for case, lines, message, wrong in [
        ("acked at once", ran(1), None, []),
        ("failed, crashed, done", [*failed(1), *cut_short(2, 1), *ran(3, 1, 1)], None, []),
        ("a failure forgotten", [*failed(1), *ran(2, 0)], None, [2]),
        ("a crash forgotten", [*cut_short(1), *cut_short(2, 0, 0), *ran(3, 0, 1)], None, [2]),
        ("two before it that nobody saw", [fetched(3, 0, 2)], None, []),
        ("a failure before anybody saw it", [fetched(2, 1)], None, [2]),
        ("dead, its last failure not counted", failed(1, verb="abandon"), kept(State.DEAD, 1), [1]),
        ("dead, its last failure counted", failed(1, verb="abandon"), kept(State.DEAD, 1, 1), []),
        ("dead at the crash limit", cut_short(1), kept(State.DEAD, 1, 0, 1), []),
        ("dead without its crash", cut_short(1), kept(State.DEAD, 1, 0, 0), [1]),
        ("to be retried", failed(1), kept(State.DELAYED, 1, 1), []),
        ("to be retried, uncounted", failed(1), kept(State.DELAYED, 1, 0), [1]),
        ("its lease still runs", cut_short(1, verb=""), kept(State.LEASED, 1), []),
        ("leased again", cut_short(1, verb=""), kept(State.LEASED, 2, 0, 1), []),
        ("leased again, charged too early", cut_short(1, verb=""), kept(State.LEASED, 2, 0, 2), [2]),
        ("forfeited, and not reaped yet", cut_short(1), kept(State.LEASED, 1), []),
        ("failed, and still held by that delivery", failed(1), kept(State.LEASED, 1), [1]),
        ("failed, and held by the next", failed(1), kept(State.LEASED, 2, 1), []),
        ("never fetched", [], kept(State.WAITING, 0), []),
        ("never fetched, and charged", [], kept(State.WAITING, 0, 1), [0]),
        ("fetched, unseen", [], kept(State.WAITING, 1, 0, 1), []),
        ("its first fetch was not written", [*settled(1, "release"), *ran(2)], None, []),
    ]:
        found = counter_steps(History(ID, lines, CAN), message)

        assert [link.fence for link in found if fits(link) != (True, True)] == wrong, case


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
