"""What a run enqueues: the same for the same seed, nothing that the broker cannot do, and some of everything."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime
from inspect import signature

from jobpool.broker.values import Capabilities
from jobpool.handlers.registry import DEFAULT
from jobpool_torture import handlers
from jobpool_torture.workload import (
    DIES_OF,
    FAIL,
    KEY_SPAN_JOBS,
    KEYS,
    KINDS,
    MEMBERS,
    SLOW,
    WORK,
    Item,
    warm_up_jobs,
    workload,
)

ALL = Capabilities(key_store=True)
NOW = datetime(2026, 6, 1, tzinfo=UTC)


def made(seed: int = 1, *, seconds: float = 100.0, can: Capabilities = ALL) -> list[Item]:
    return workload(seed, seconds=seconds, rate=20.0, ttl=5.0, capabilities=can)


def test_a_seed_makes_the_same_jobs_again_and_another_one_others() -> None:
    assert made(7) == made(7)
    assert made(7) != made(8)


def test_a_longer_run_begins_with_the_jobs_of_the_shorter() -> None:
    short = made(3, seconds=20.0)
    assert made(3, seconds=60.0)[: len(short)] == short


def test_they_arrive_one_after_the_other_at_the_rate() -> None:
    items = made(seconds=200.0)
    assert [item.number for item in items] == list(range(len(items)))
    assert [item.at for item in items] == sorted(item.at for item in items)
    assert items[0].at > 0
    assert items[-1].at < 200.0
    assert 3600 < len(items) < 4400  # 4000 ± 6 standard deviations


def test_a_long_run_has_every_kind_in_its_share() -> None:
    items = made(seconds=400.0)
    counts = Counter(item.kind for item in items)
    whole = sum(kind.share for kind in KINDS.values())
    assert set(counts) == set(KINDS)
    for name, kind in KINDS.items():
        expected = len(items) * kind.share / whole
        assert abs(counts[name] - expected) < 6 * expected**0.5, name


def test_what_a_broker_cannot_do_is_plain_work_there_and_the_rest_is_the_same() -> None:
    for case, can, without in [
        ("no key store", Capabilities(key_store=False), {"keyed", "unique", "single", "kept", "cancelled", "batch"}),
        ("no priorities", Capabilities(key_store=True, priorities=False), {"ranked"}),
        ("no step over several queues", Capabilities(key_store=True, atomic_across_queues=False), {"batch"}),
    ]:
        for there, here in zip(made(), made(can=can), strict=True):
            assert here.kind == ("work" if there.kind in without else there.kind), case
            assert here.at == there.at, case
            if there.kind not in without:
                assert here == there, case
            here.definition("torture", "a1").require(can.key_store, "test")


def test_every_job_is_a_valid_one_for_a_handler_that_takes_its_payload() -> None:
    assert handlers.work.name == "torture.work"
    chosen = [*made(), *warm_up_jobs(1, ttl=5.0, capabilities=ALL)]
    for item in [*chosen, *(member for each in chosen for member in each.members)]:
        job = item.definition("torture-1", "a1", NOW)
        handler = DEFAULT.resolve(job.handler, "torture-1")
        assert set(job.payload) == set(signature(handler.function).parameters) - {"ctx", "batch"}, item
        assert (item.kind == "batch") is bool(item.members) is (handler is handlers.tally)
        assert (job.queue, job.identifier) == ("torture-1", "a1")
        assert (job.scheduled_at is not None) == bool(item.delay)


def test_the_taste_has_each_quick_kind_so_often_and_no_number_of_the_workload() -> None:
    items = warm_up_jobs(1, ttl=5.0, capabilities=ALL, times=3)
    assert Counter(item.kind for item in items) == dict.fromkeys(set(KINDS) - set(SLOW), 3)
    assert len({item.number for item in items}) == len(items)
    assert all(item.number < 0 for item in items)


def test_a_few_jobs_share_a_key_and_no_two_runs_do() -> None:
    keyed = [item for item in made(seconds=300.0) if item.kind == "keyed"]
    shared = Counter(item.options["idempotency_key"] for item in keyed)
    assert max(shared.values()) > 1
    assert (
        max(item.number for item in keyed) // KEY_SPAN_JOBS
        < len(shared)
        <= KEYS * (1 + max(i.number for i in keyed) // KEY_SPAN_JOBS)
    )
    assert Counter(item.handler for item in keyed).keys() == {"torture.work", "torture.crash"}, (
        "some crash before they are done"
    )
    one = keyed[0]
    assert one.definition("torture-1", "a").idempotency_key != one.definition("torture-2", "a").idempotency_key


def test_who_fails_sometimes_has_the_retries_for_it_and_who_is_to_die_has_not() -> None:
    """By that a dead letter is told from one that should not be."""
    items = made()
    failing = [item for item in items if item.handler == "torture.fail"]
    assert {item.kind for item in failing} == {"flaky", "doomed", "kept", "cancelled"}
    for item in failing:
        assert (item.payload["times"] > item.options["max_retries"]) is (item.kind == "doomed"), item
    assert all("max_retries" in item.options for item in items if item.kind in {*DIES_OF} - {"cancelled"})


def test_some_jobs_keep_results_some_are_cancelled_and_batches_have_members_of_all_ends() -> None:
    items = made(seconds=300.0)
    assert {item.handler for item in items if "result_ttl" in item.options} == {WORK, FAIL, "torture.crash"}
    assert {item.handler for item in items if item.cancel_after is not None} == {WORK, FAIL}
    batches = [item for item in items if item.members]
    assert {member.kind for item in batches for member in item.members} == set(MEMBERS)
    assert {len(item.members) for item in batches} == {1, 2, 3, 4, 5}
    warm_up = [item for item in warm_up_jobs(1, ttl=5.0, capabilities=ALL, times=20) if item.members]
    assert not any(member.kind in SLOW for item in warm_up for member in item.members)


def test_an_item_does_not_change_when_it_is_enqueued() -> None:
    item = made()[0]
    assert replace(item) == item
    item.definition("torture", "a1")
    assert replace(item) == made()[0]
