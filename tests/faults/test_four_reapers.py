"""Row 7: four reapers against completions that come as their leases end: no end of a message is ever overwritten."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing, contextmanager
from functools import partial
from typing import TYPE_CHECKING, cast

import pytest
from support.apart import context
from support.crowd_reapers import POLICY, Race, Seen, run
from support.faultmoves import Figure, fed, start_pools, stop_all
from support.poolrig import LIMIT, Rig
from support.poolrig_brokers import TTR, BeanstalkBroker, Broker
from support.waiting import wait_until

from jobpool.broker.backend import QueueBackend
from jobpool.broker.opening import open_backend
from jobpool.broker.values import Leases, ReapPolicy
from jobpool.message.definition import JobDefinition
from jobpool.message.signing import EnvelopeSigner
from jobpool_torture.ledger import Line

if TYPE_CHECKING:
    from support.poolrig_servicebus import ServiceBusBroker

REAPERS = 4
MESSAGES = 1000
FEWER = 500
"""Where a lease lasts for a second at least."""

REFUSED = 30
"""Completions that must have come too late before the thieves end."""

EVERY = 0.01
"""Seconds between two thefts of one thief."""

STOLEN_AFTER = (0.005, 0.05)
"""Seconds, at random: leases that are older are taken away, in the middle of a job or of its settlement."""


@pytest.fixture(scope="module")
def processes() -> Iterator[ProcessPoolExecutor]:
    with ProcessPoolExecutor(REAPERS, mp_context=context()) as processes:
        yield processes


@pytest.mark.row(7)
@pytest.mark.on("redis-cluster", "sqlite", "redis", "postgres", "beanstalk")
def test_no_end_of_a_message_is_overwritten_by_a_reaper_or_by_a_late_completion(
    broker: Broker | None, rig: Rig, figure: Figure, processes: ProcessPoolExecutor
) -> None:
    """In four processes, each with a reaper and a consumer whose completions come about when its leases end."""
    race = _race(broker, rig)
    count = FEWER if isinstance(broker, BeanstalkBroker) else MESSAGES
    known = _enqueue(race, count)
    seen = list(processes.map(partial(run, race), range(REAPERS)))
    ends = [end for one in seen for end in one.ended]
    kinds = Counter(kind for _, _, kind in ends)
    letters = rig.dead()
    assert Counter(ident for ident, _, _ in ends) == Counter(known), "each ended once"
    _check_nothing_came_back(seen, ends)
    for ident, fence, kind in ends:
        assert (ident in letters) is (kind != "ack"), kind
        if kind == "abandon":
            assert (letters[ident].reason, letters[ident].last_error) == ("failed", f"delivery {fence}")
        elif kind == "reaped":
            assert (letters[ident].reason, letters[ident].crashes) == ("crash-limit", POLICY.max_crashes + 1)
    asked, refused = sum(one.asked for one in seen), sum(one.refused for one in seen)
    figure("completions", asked, "")
    figure("refused", refused, "")
    assert asked >= count
    assert refused >= (count / 10 if isinstance(broker, BeanstalkBroker) else count), "reapers won"
    assert kinds["ack"], "completions won some, however late a busy machine makes them"
    assert kinds["abandon"]


def _race(broker: Broker | None, rig: Rig) -> Race:
    if isinstance(broker, BeanstalkBroker):
        return Race(rig.url.replace(f"ttr={TTR:g}", "ttr=1"), "default", ttl=1.0, early=0.9, late=1.1, batch=60)
    return Race(rig.url, "default", ttl=0.05, early=0.035, late=0.065, batch=20)


def _enqueue(race: Race, count: int) -> set[str]:
    """By the race's own address: on beanstalkd who enqueues says how long leases last."""
    with closing(open_backend(race.url, signer=EnvelopeSigner())) as backend:
        return set(backend.enqueue_many([JobDefinition("noop", {}, queue=race.queue) for _ in range(count)]))


def _check_nothing_came_back(seen: list[Seen], ends: list[tuple[str, int, str]]) -> None:
    """The delivery that ended a message is its last."""
    last: Counter[str] = Counter()
    for one in seen:
        last |= Counter(one.fetched)
    for ident, fence, kind in ends:
        assert last[ident] == (fence or POLICY.max_crashes + 1), kind


@pytest.mark.more
@pytest.mark.row(7)
@pytest.mark.on("servicebus", "sqlite", "redis", "postgres")
def test_pools_whose_leases_are_taken_away_in_mid_job_end_each_message_once(
    broker: Broker | None, rig: Rig, figure: Figure
) -> None:
    """Two pools finish jobs while four thieves give away what they hold, before, while and after they settle it."""
    pools = start_pools(rig, 2, "--max-crashes", "0")
    with _thieves(broker, rig):
        wait_until(lambda: fed(rig, lambda: len(_refused(rig)) >= REFUSED, 0.01, 100), LIMIT, "some came too late")
    rig.wait_drained()
    figure("refused", len(_refused(rig)), "")
    accepted = {line.id for line in rig.lines("settled") if line.verb == "ack" and line.answer == "ok"}
    dead = set(rig.dead())
    assert accepted | dead == rig.enqueued
    assert not accepted & dead
    account = rig.account(leases=Leases.CONNECTION)
    if hasattr(broker, "control"):
        _forgive_brought_by_a_wait(account.found["FENCE"])
    account.assert_clean()
    stop_all(rig, pools)


def _forgive_brought_by_a_wait(fences: dict[str, str]) -> None:
    """Leave out messages that Service Bus sent to a waiting pool, and whose locks the thieves ended before its fetch.

    The fetch hands them out, and was asked for when others had them already: their locks tell, when they are settled.
    """
    for ident in [ident for ident, why in fences.items() if "was asked for after" in why]:
        del fences[ident]


def _refused(rig: Rig) -> list[Line]:
    return [line for line in rig.lines("settled") if line.answer not in ("ok", "already")]


@contextmanager
def _thieves(broker: Broker | None, rig: Rig) -> Iterator[None]:
    """Four threads, each with a client of its own, that take leases away."""
    over = threading.Event()
    threads = [threading.Thread(target=_steal, args=(broker, rig.url, over, seed)) for seed in range(REAPERS)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()


def _steal(broker: Broker | None, url: str, over: threading.Event, seed: int) -> None:
    rng = random.Random(seed)
    with closing(open_backend(url, signer=EnvelopeSigner())) as backend:
        while not over.wait(EVERY):
            _take_away(broker, backend, rng.uniform(*STOLEN_AFTER))


def _take_away(broker: Broker | None, backend: QueueBackend, age: float) -> None:
    if hasattr(broker, "control"):
        cast("ServiceBusBroker", broker).control.expire_locks("default")
    else:  # as `reap_expired` does it, but for a policy that leaves the pools something to do
        backend._reap("default", ReapPolicy(max_crashes=0, back_off=0.0), age)
