"""Jobs of mixed lengths, on simulated time: idle children get what waits behind others, and the urgent go first."""

from __future__ import annotations

import math
import random
import signal
from collections import Counter

import pytest
from simulation import HOP_S, Simulation
from stage import Stage, of

from jobpool.ipc.frames import Result
from jobpool.master import actions as act
from jobpool.master import events as ev
from jobpool.master.apply import apply
from jobpool.master.dispatch import (
    AHEAD_FOR_REST,
    LONG_HEAD_S,
    REST_S,
    STEAL_AFTER_S,
    STEAL_ANYWAY_AFTER_S,
    STEAL_QUICK_AFTER_S,
    rest,
    shares_to_steal,
    steal_due,
)
from jobpool.master.plan import CHECK_EVERY_S
from jobpool.master.slots import Slot
from jobpool.message.outcome import ResultKind
from jobpool.message.settlement import Ack
from jobpool.policy.inspection import Inspected

URGENT, USUAL, LATER = 0, 100, 200
SHORT_S, LONG_S = 0.0005, 0.12


def test_idle_children_get_an_equal_share_of_what_waits() -> None:
    for case, waiting, idle, given in [
        ("nothing waits", [], 3, []),
        ("nobody is idle", [5], 0, [0]),
        ("one for three", [1], 3, [1]),
        ("half of it", [4], 1, [2]),
        ("a third for each", [9], 2, [6]),
        ("from the first", [3, 3], 1, [2, 0]),
        ("all of the first, then of the next", [1, 8], 1, [1, 2]),
        ("one each, though the equal share is less", [1, 1, 1, 1], 2, [1, 1, 0, 0]),
        ("one gives nothing", [0, 2], 1, [0, 1]),
        ("one of sixteen is idle", [64] * 15, 1, [60] + [0] * 14),
    ]:
        assert shares_to_steal(waiting, idle) == given, case


# --- single decisions -----------------------------------------------------------------------------------------------


def ahead(stage: Stage, slot: Slot, *priorities: int) -> None:
    """Hand these to the slot's child, one behind the other."""
    leases = [stage.a_lease("report", priority=priority) for priority in priorities]
    before = len(stage.pool.ready)
    for lease in leases:
        apply(stage.pool, ev.Leased([Inspected(lease, None)]), stage.now)
        delivery = next(d for d in stage.pool.ready if d.lease is lease)
        stage.pool.ready.remove(delivery)
        slot.add_deliveries([delivery], stage.now)
    assert len(stage.pool.ready) == before


def taken_back(stage: Stage, action: act.TakeBack) -> list[act.Action]:
    nonces = [delivery.nonce for delivery in action.slot.deliveries][1 : 1 + action.most]
    return stage.tell(ev.TookBack(action.slot.child, frozenset(nonces), len(nonces) < action.most))


def test_an_attempt_that_has_not_begun_is_looked_at_again_and_given_up_in_time() -> None:
    stage = Stage(workers=2).boot()
    busy, _ = stage.idle
    ahead(stage, busy, USUAL, USUAL)
    assert of(stage.after(STEAL_AFTER_S + 1e-6), act.Steal)
    assert not of(stage.tell(ev.NotBegun(busy.child)), act.TakeBack)
    assert steal_due(stage.pool, stage.now) == stage.now + STEAL_AFTER_S
    [forced] = of(stage.after(STEAL_ANYWAY_AFTER_S), act.TakeBack)
    assert type(forced) is act.TakeBack, "whether it has begun or not"


def test_nobody_asks_again_for_what_a_child_has_read_already() -> None:
    """Its answer is on its way; or it is frozen, or its handler has read the socket: no turn of the loop is spent."""
    stage = Stage(workers=2).boot()
    busy, _ = stage.idle
    ahead(stage, busy, USUAL, USUAL)
    assert of(stage.after(STEAL_AFTER_S + 1e-6), act.Steal)
    assert not of(stage.tell(ev.TookBack(busy.child, frozenset(), emptied=True)), act.TakeBack)
    assert steal_due(stage.pool, stage.now) == math.inf
    assert not of(stage.after(1.0), act.TakeBack)
    assert [delivery.settling for delivery in busy.deliveries] == [False, False], "they are its own"


def test_a_child_that_is_leaving_gets_nothing_of_what_others_have() -> None:
    stage = Stage(workers=2).boot()
    busy, leaving = stage.idle
    ahead(stage, busy, USUAL, USUAL)
    leaving.leave()
    assert steal_due(stage.pool, stage.now) == math.inf
    assert not of(stage.after(0.05), act.TakeBack)


def test_who_begins_exactly_when_asked_keeps_it() -> None:
    """The kernel has given the next frame to the child, and the rest to the master."""
    stage = Stage(workers=2).boot()
    busy, idle = stage.idle
    ahead(stage, busy, USUAL, USUAL, USUAL, USUAL)
    head, begun, *rest = busy.deliveries
    [steal] = of(stage.after(STEAL_AFTER_S + 1e-6), act.Steal)
    assert steal.most == 1
    answer = Result(head.nonce, ResultKind.SUCCEEDED, stage.now, 0.001)
    stage.tell(ev.TookBack(busy.child, frozenset({rest[0].nonce})), ev.ChildResults(busy.child, [answer]))
    assert busy.deliveries[0] is begun
    assert list(idle.deliveries) == [rest[0]]
    handed = Counter(d.nonce for action in of(stage.log, act.Dispatch) for d in action.deliveries)
    assert max(handed.values()) == 1


def test_an_urgent_message_is_begun_before_what_was_handed_ahead(stage: Stage) -> None:
    [slot] = stage.idle
    ahead(stage, slot, USUAL, USUAL, LATER)
    [back] = of(stage.lease("report", priority=URGENT), act.TakeBack)
    assert back.most > 2, "all of it"
    taken_back(stage, back)
    waiting = [*list(slot.deliveries)[1:], *stage.pool.ready]
    assert [delivery.priority for delivery in waiting] == [URGENT, USUAL, LATER]


def test_an_idle_child_gets_the_urgent_one_behind_another_before_what_is_ready() -> None:
    stage = Stage(workers=2).boot()
    busy, idle = stage.idle
    ahead(stage, busy, USUAL, URGENT)
    [back] = of(stage.lease("report", priority=LATER), act.TakeBack)
    assert back.slot is busy
    taken_back(stage, back)
    assert idle.deliveries[0].priority == URGENT


# --- few children while jobs are quick ------------------------------------------------------------------------------


def streaming(workers: int, jobs: int = 20) -> tuple[Stage, list[Slot]]:
    """Return a stage on which, after many others, `jobs` quick jobs were handed out; and the slots that have them."""
    stage = Stage(workers).boot()
    for _ in range(100):
        stage.now += 0.001
        stage.pool.lookahead.finished(20, stage.now, busy=20 * 0.00002)
    stage.lease(*["report"] * jobs)
    return stage, stage.busy


def test_quick_jobs_go_to_few_children_and_deep() -> None:
    stage, few = streaming(workers=16)
    assert len(few) == stage.pool.lookahead.children(stage.now) == 4
    assert [len(slot.deliveries) for slot in few] == [5] * 4


def test_with_two_workers_both_get_them() -> None:
    _, both = streaming(workers=2)
    assert [len(slot.deliveries) for slot in both] == [10, 10]


def test_the_same_children_get_the_next_ones_whether_they_are_at_work_or_idle() -> None:
    stage, few = streaming(workers=16)
    first, *rest = few
    while first.deliveries:
        stage.answer(first, seconds=0.0)
    for _ in range(5):
        stage.lease("report", "report", "report", "report")
        assert {slot.index for slot in stage.busy} == {slot.index for slot in few}
    assert all(len(slot.deliveries) > 5 for slot in rest)


def test_more_children_are_woken_when_the_sockets_of_the_few_are_full() -> None:
    stage, few = streaming(workers=16)
    for slot in few:
        slot.full = True
    stage.lease("report")
    assert len(stage.busy) == 5


def test_all_that_waits_behind_a_head_that_turns_long_goes_to_other_children_in_some_slices() -> None:
    stage, few = streaming(workers=16)
    long, *short = few
    stage.now += STEAL_QUICK_AFTER_S * 0.6
    for slot in short:
        stage.answer(slot, seconds=0.0)
    assert steal_due(stage.pool, stage.now) == pytest.approx(long.head_since + STEAL_QUICK_AFTER_S)
    [steal] = of(stage.after(STEAL_QUICK_AFTER_S * 0.5), act.Steal)
    assert (steal.slot, steal.most) == (long, 4)
    hands = of(taken_back(stage, steal), act.Dispatch)
    assert sum(len(hand.deliveries) for hand in hands) == 4
    assert long not in [hand.slot for hand in hands]
    assert len(stage.busy) == 5, "another one takes its part"


def test_a_child_that_waits_for_a_processor_keeps_its_jobs_and_no_other_is_woken() -> None:
    stage, few = streaming(workers=16)
    steals = of(stage.after(STEAL_QUICK_AFTER_S * 1.1), act.Steal)
    assert {steal.slot.index for steal in steals} == {slot.index for slot in few}
    stage.tell(*(ev.NotBegun(steal.slot.child) for steal in steals))
    stage.lease("report", "report", "report", "report")
    assert [len(slot.deliveries) for slot in stage.busy] == [6] * 4


def test_while_quick_jobs_stream_answers_gather_and_else_none_waits() -> None:
    stage, few = streaming(workers=16, jobs=4 * AHEAD_FOR_REST)
    assert rest(stage.pool, stage.now) == REST_S, "others are idle, and left asleep"
    stage.answer(few[0], seconds=0.0)
    assert rest(stage.pool, stage.now) == 0.0, "the children may be out of work before the loop looks again"
    stage.lease("report")
    assert rest(stage.pool, stage.now) == REST_S
    stage.tell(ev.SignalCame(signal.SIGTERM))
    assert rest(stage.pool, stage.now) == 0.0


def test_with_two_workers_no_answer_waits_while_one_is_idle() -> None:
    stage, [first, second] = streaming(workers=2, jobs=2 * AHEAD_FOR_REST)
    assert rest(stage.pool, stage.now) == REST_S
    while first.deliveries:
        stage.answer(first, seconds=0.0)
    assert len(second.deliveries) == AHEAD_FOR_REST
    assert rest(stage.pool, stage.now) == 0.0


def test_answers_gather_unless_a_child_is_idle_or_may_soon_be() -> None:
    stage, few = streaming(workers=16, jobs=4 * AHEAD_FOR_REST)
    stage.pool.lookahead.finished(100, stage.now, busy=1.0)
    assert rest(stage.pool, stage.now) == 0.0, "these are not quick jobs: the idle ones are to have some"
    stage.lease(*["report"] * (12 * AHEAD_FOR_REST))
    assert not stage.pool.slots.idle
    assert rest(stage.pool, stage.now) == REST_S
    first = few[0]
    while len(first.deliveries) >= AHEAD_FOR_REST:
        stage.answer(first, seconds=0.001)
    assert rest(stage.pool, stage.now) == 0.0, "it may be out of work before the loop looks again"
    first.head_since = stage.now - 1.1 * LONG_HEAD_S
    assert rest(stage.pool, stage.now) == REST_S, "its attempt is a long one"


def test_no_answer_of_long_jobs_waits_nor_one_while_nothing_runs() -> None:
    stage = Stage(workers=2).boot()
    stage.lease("report", "report")
    assert len(stage.busy) == 2
    assert rest(stage.pool, stage.now) == 0.0, "nothing streams"
    stage, few = streaming(workers=4, jobs=4)
    for slot in few:
        while slot.deliveries:
            stage.answer(slot, seconds=0.0)
    assert not stage.pool.slots.engaged
    assert rest(stage.pool, stage.now) == 0.0


def test_urgent_ones_among_quick_jobs_go_to_idle_children_at_once() -> None:
    stage, few = streaming(workers=16)
    urgent = [stage.a_lease("report", priority=priority) for priority in (URGENT, URGENT + 1)]
    backs = of(stage.tell(ev.Leased([Inspected(lease, None) for lease in urgent])), act.TakeBack)
    assert {back.slot.index for back in backs} == {slot.index for slot in few}
    for back in backs:
        taken_back(stage, back)
    heads = [slot.deliveries[0].lease.id for slot in stage.busy if slot not in few]
    assert {lease.id for lease in urgent} <= set(heads)


# --- a pool at work -------------------------------------------------------------------------------------------------


def mixed(workers: int, seconds: float, *, seed: int = 18) -> list[tuple[int, float]]:
    """Return 3 % of 120 ms among 0.5 ms: as many as `workers` need `seconds` for."""
    count = round(workers * seconds / (0.97 * SHORT_S + 0.03 * LONG_S))
    return [(USUAL, length) for length in random.Random(seed).choices([SHORT_S, LONG_S], [97, 3], k=count)]


@pytest.mark.parametrize("workers", [4, 16])
def test_long_jobs_among_short_ones_leave_no_child_idle(workers: int) -> None:
    jobs = mixed(workers, 16.0 / workers)
    simulation = Simulation(workers, jobs)
    simulation.play()
    assert simulation.used() >= 0.95
    assert Counter(job for _, job in simulation.begun) == Counter(jobs), "each has run, and none twice"


def test_an_urgent_message_waits_for_the_next_free_child_and_nothing_else() -> None:
    """From its lease until it is handed over no other job begins."""
    draw = random.Random(3)
    simulation = Simulation(4, [(USUAL, draw.uniform(0.002, 0.02)) for _ in range(800)])
    for number in range(20):
        simulation.play(simulation.now + draw.uniform(0.02, 0.06))
        urgent = (URGENT, 0.005 + number * 1e-6)
        simulation.backlog.appendleft(urgent)
        while urgent not in simulation.leased_at:
            simulation.play(simulation.now + 0.0005)
        while urgent not in (job for _, job in simulation.begun):
            simulation.play(simulation.now + 0.0005)
        [began] = [at for at, job in simulation.begun if job == urgent]
        # What an idle child was given just before is on its way; and so is it, once a child is free.
        known, handed = simulation.leased_at[urgent] + HOP_S, began - HOP_S
        before = [job for at, job in simulation.begun if known < at < handed]
        assert not before, number


def test_long_jobs_are_leased_one_by_one_so_that_an_urgent_one_is_next() -> None:
    simulation = Simulation(4, [(USUAL, 0.1)] * 80)
    simulation.play(simulation.now + 1.0)
    assert all(len(slot.deliveries) <= 1 for slot in simulation.pool.slots.live)
    assert not simulation.pool.ready
    simulation.play()
    assert simulation.used() >= 0.95


def test_what_waits_in_a_frozen_childs_socket_is_run_by_others_once_and_the_loop_does_not_spin() -> None:
    jobs = [(USUAL, SHORT_S + number * 1e-9) for number in range(2000)]
    simulation = Simulation(4, jobs)
    simulation.play(simulation.now + 0.1)
    frozen = next(child for child in simulation.children.values() if child.socket)
    frozen.frozen = True
    simulation.play(simulation.now + 1.0)
    turns = simulation.turns
    simulation.play(simulation.now + 1.0)
    assert simulation.turns - turns <= 1.0 / CHECK_EVERY_S + 10
    assert not frozen.socket
    begun = Counter(job for _, job in simulation.begun)
    assert begun == Counter(jobs), "its head has begun; what was behind it has run elsewhere"
    assert len(simulation.verdicts()) == len(jobs) - 1
    assert {type(verdict) for verdict in simulation.verdicts()} == {Ack}


def test_jobs_of_30_ms_among_quick_ones_leave_no_child_idle() -> None:
    jobs = [(USUAL, length) for length in random.Random(18).choices([0.00002, 0.03], [99, 1], k=12_000)]
    simulation = Simulation(4, jobs)
    simulation.play()
    assert simulation.used() >= 0.85
    assert Counter(job for _, job in simulation.begun) == Counter(jobs), "each has run, and none twice"


def test_a_burst_of_long_jobs_behind_quick_ones_is_spread_within_20_ms() -> None:
    quick = [(USUAL, 0.00002 + number * 1e-9) for number in range(6000)]
    long = [(USUAL, 0.2 + number * 1e-6) for number in range(12)]
    simulation = Simulation(16, quick + long)
    simulation.play()
    begun = [at for at, (_, seconds) in simulation.begun if seconds > 0.1]
    assert max(begun) - min(begun) <= 0.02
