"""A schedule is a pure function of its seed and parameters, and comes back from its file as it was."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.tables import row
from support.tiers import examples

from jobpool_torture.schedule import KINDS, About, Fault, dump, load, plan

ALL = tuple(KINDS)
ABOUT: dict[str, Any] = {"seed": 1, "seconds": 2.0, "pools": 3, "workers": 2, "ttl": 1.0, "rate": 5.0}
SEEDS = st.integers(min_value=0, max_value=2**63)


def a_plan(seed: int = 1, **changed: Any) -> list[Fault]:
    given: dict[str, Any] = {"seconds": 60.0, "pools": 3, "kinds": ALL, "ttl": 5.0, "rate": 0.5}
    return plan(seed, **(given | changed))


def test_a_seed_gives_the_same_schedule_on_every_machine() -> None:
    first, second, *_ = a_plan(8)
    assert [first, second] == [
        Fault(0, 0.514, "clock.jump", pool=0, pick=46190, seconds=3.991, amount=-1818.425),
        Fault(1, 14.605, "child.stop", pool=1, pick=30089, seconds=4.805),
    ]


@given(SEEDS, st.integers(1, 5), st.sets(st.sampled_from(ALL), min_size=1), st.floats(0.5, 60), st.floats(0.05, 5))
@settings(max_examples=examples(100))
def test_every_fault_is_within_what_was_asked(seed: int, pools: int, kinds: set[str], ttl: float, rate: float) -> None:
    faults = a_plan(seed, pools=pools, kinds=sorted(kinds), ttl=ttl, rate=rate)
    assert [fault.number for fault in faults] == list(range(len(faults)))
    assert faults == sorted(faults, key=lambda fault: fault.at)
    for fault in faults:
        kind = KINDS[fault.kind]
        assert fault.kind in kinds
        assert 0 <= fault.at <= 60
        assert 0 <= fault.pool < pools
        assert fault.pick >= 0
        assert kind.lasts[0] * ttl - 0.001 <= fault.seconds <= kind.lasts[1] * ttl + 0.001
        assert kind.amount[0] <= fault.amount <= kind.amount[1]


@given(SEEDS)
@settings(max_examples=examples(30))
def test_a_longer_run_begins_as_a_shorter_one_and_the_order_of_kinds_does_not_matter(seed: int) -> None:
    short, long = a_plan(seed, seconds=30.0), a_plan(seed, seconds=90.0, kinds=tuple(reversed(ALL)))
    assert long[: len(short)] == short
    assert all(fault.at >= 29.999 for fault in long[len(short) :])


def test_kinds_come_as_often_as_they_weigh_and_as_many_as_the_rate_says() -> None:
    faults = a_plan(seconds=20_000.0, rate=1.0)
    counted = Counter(fault.kind for fault in faults)
    weights = sum(kind.weight for kind in KINDS.values())
    assert 19_000 < len(faults) < 21_000
    for name, kind in KINDS.items():
        assert counted[name] == pytest.approx(len(faults) * kind.weight / weights, rel=0.2)
    assert {fault.pool for fault in faults} == {0, 1, 2}
    assert min(fault.amount for fault in faults if fault.kind == "clock.jump") < -3000


def test_two_seeds_differ() -> None:
    assert a_plan(1) != a_plan(2)


# --- the file ---------------------------------------------------------------------------------------------------------


@given(SEEDS)
@settings(max_examples=examples(30))
def test_a_file_gives_back_what_was_written(seed: int) -> None:
    faults, about = a_plan(seed), ABOUT | {"seed": seed}
    assert load(dump(faults, about)) == (faults, About(**about))


def test_a_file_may_hold_no_fault_and_has_a_line_for_each() -> None:
    assert load(dump([], ABOUT)) == ([], About(**ABOUT))
    assert len(dump(a_plan(), ABOUT).splitlines()) == len(a_plan()) + 6


def test_a_file_written_by_hand_may_leave_out_what_does_not_matter_and_needs_no_order() -> None:
    entries = [{"number": 7, "at": 2, "kind": "pool.hup"}, {"number": 3, "at": 1.5, "kind": "child.kill", "pool": 1}]
    text = json.dumps({"version": 1, "about": ABOUT, "faults": entries})
    assert load(text)[0] == [Fault(3, 1.5, "child.kill", pool=1), Fault(7, 2, "pool.hup")]


def test_what_is_no_fault_is_refused() -> None:
    for entry in [
        "child.kill",
        {"at": 1, "kind": "child.kill"},
        {"number": 0, "at": 1, "kind": "child.tickle"},
        {"number": 0, "at": -1, "kind": "child.kill"},
        {"number": 0, "at": 1, "kind": "child.kill", "pool": -1},
        {"number": 0, "at": 1, "kind": "child.kill", "pool": 0.5},
        {"number": 0, "at": 1, "kind": "child.kill", "pick": True},
        {"number": 0, "at": 1, "kind": "child.kill", "seconds": "long"},
        {"number": 0, "at": 1, "kind": "child.kill", "seconds": -1},
        {"number": 0, "at": 1, "kind": "child.kill", "pid": 1},
        {"number": 0, "at": float("nan"), "kind": "child.kill"},
        {"number": 0, "at": 1, "kind": ["child.kill"]},
        {"number": 0, "at": 10**400, "kind": "child.kill"},
        {"number": 0, "at": 1, "kind": "child.stop", "seconds": 1e10},
        {"number": 0, "at": 1, "kind": "net.drop", "amount": 1.1},
        {"number": 0, "at": 1, "kind": "net.delay", "amount": -0.1},
        {"number": 0, "at": 1, "kind": "clock.jump", "amount": 1e6},
    ]:
        with row(entry), pytest.raises(ValueError, match=r"`\$.faults\[0\]|malformed|fault 0 of the schedule is none"):
            load(json.dumps({"version": 1, "about": ABOUT, "faults": [entry]}))


def test_what_is_no_schedule_is_refused() -> None:
    for text in [
        "",
        "[]",
        '{"faults": []}',
        '{"version": 1, "about": [], "faults": []}',
        json.dumps({"version": 1, "about": ABOUT, "faults": {}}),
        "[" * 100_000,
        dump([], {"seed": 1}),
        *(dump([], ABOUT | {name: value}) for name, value in [("pools", 2.5), ("rate", True), ("ttl", float("nan"))]),
        dump([], ABOUT | {"seconds": 10**400}),
    ]:
        with row(text), pytest.raises(ValueError, match="it is not a schedule"):
            load(text)


def test_a_schedule_of_another_version_is_refused_by_its_version() -> None:
    with pytest.raises(ValueError, match="of version 2, and this jobpool reads 1"):
        load('{"version": 2, "about": {}, "faults": []}')


def test_a_number_names_one_fault_and_its_pool_is_there() -> None:
    with pytest.raises(ValueError, match="have one number"):
        load(dump([Fault(0, 1, "child.kill")] * 2, ABOUT))
    with pytest.raises(ValueError, match="fault 0 strikes a pool that is not there"):
        load(dump([Fault(0, 1, "child.kill", pool=3)], ABOUT))
