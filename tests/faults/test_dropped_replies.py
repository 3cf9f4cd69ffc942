"""Replies that are lost on the way: the broker has done what it was asked, and nobody heard of it (row 9)."""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Iterator, Sequence

import pytest
from support.faultmoves import Figure, end_unharmed, gated, most_at_once, start_on, start_pools, stop_all
from support.outages import Producer
from support.poolrig import Rig
from support.poolrig_brokers import Broker, Host
from support.stalls import Stalls
from support.waiting import wait_until

from jobpool.broker.backend import QueueBackend
from jobpool.broker.opening import open_backend
from jobpool.broker.values import State

NOW_AND_THEN = 0.2
"""The share of replies that are lost."""

LIMIT = 2

TTL, LONGER = 4.0, 6.0
"""Seconds, where a lease has to run out: of the pool that is killed, and of the one that reaps."""

BACK_WITHIN = TTL + LONGER / 3 * 1.2 + 1.5
"""Seconds: the lease, the longest time between two reaps, and a fetch and the start of a job on a busy machine."""


@pytest.fixture
def hosts(broker: Broker) -> list[Host]:
    """Two machines, whose networks lose replies when they are told to."""
    return [broker.host() for _ in range(2)]


def lose(hosts: Sequence[Host], share: float, match: str = "", seed: int = 3) -> None:
    for number, host in enumerate(hosts):
        host.proxy.drop_replies(share=share, seed=seed + number, match=match)


def dropped(hosts: Sequence[Host]) -> int:
    return sum(host.proxy.counts().dropped for host in hosts)


# --- of settlements -----------------------------------------------------------------------------------------


@pytest.mark.row(9)
@pytest.mark.on("postgres", "redis")
def test_settlements_that_are_asked_again_repeat_no_job(
    broker: Broker, hosts: list[Host], rig: Rig, figure: Figure
) -> None:
    pools = start_on(hosts, rig)
    lose(hosts, NOW_AND_THEN, broker.settle_calls)
    rig.enqueue_many("work", [{"seconds": 0.02}] * 200)
    failing = rig.enqueue_many("fail", [{"times": 2}] * 20, max_retries=2)
    end_unharmed(rig, pools)
    assert dropped(hosts) >= 5
    assert all([line.attempt for line in rig.starts(ident)] == [1, 2, 3] for ident in failing)
    figure("settle calls whose replies were lost", dropped(hosts), "calls")
    figure("their settlements answered ALREADY", len(rig.lines("settled")) - answers(rig)["ok"], "messages")
    assert set(answers(rig)) <= {"ok", "already"}
    assert answers(rig)["already"]


def answers(rig: Rig) -> Counter[str]:
    """What the broker answered to settlements, as the witnesses have seen it."""
    return Counter(line.answer for line in rig.lines("settled"))


@pytest.mark.row(9)
@pytest.mark.on("beanstalk", "servicebus")
def test_settlements_and_fetches_that_nobody_answers_lose_nothing(broker: Broker, hosts: list[Host], rig: Rig) -> None:
    """Such a job may run again, with its counters as they were.

    What a lost fetch has leased comes back with its connection on beanstalkd, when its lock ends on Service Bus.
    """
    pools = start_on(hosts, rig, "--max-crashes", "0")
    lose(hosts, NOW_AND_THEN, broker.settle_calls)
    rig.enqueue_many("work", [{"seconds": 0.01}] * 120)
    failing = rig.enqueue_many("fail", [{"times": 1}] * 5, max_retries=1)
    rig.wait_drained()
    of_settlements = dropped(hosts)
    assert of_settlements >= 2
    account = rig.account()
    account.assert_clean()
    assert len(account.excused) <= of_settlements, "judged but where a copy may have been left"
    released = {line.id for line in rig.lines("asked") if line.verb == "release"}  # not begun when the broker was away
    assert account.excused <= {*failing, *released}, "an ack copies nothing"
    assert {line.id for line in rig.ends()} == rig.enqueued
    assert all({line.attempt for line in rig.starts(ident)} == {1, 2} for ident in failing)

    for host in hosts:
        host.proxy.drop_replies(3, match=broker.fetch_calls)
    rig.enqueue_many("work", [{"seconds": 0.01}] * 100)
    rig.wait_drained()
    stop_all(rig, pools)
    assert dropped(hosts) >= of_settlements + 2
    account = rig.account()
    account.assert_clean()
    assert len(account.excused) <= dropped(hosts), "judged but where a copy may have been left"
    assert {line.id for line in rig.ends()} == rig.enqueued


# --- of fetches ---------------------------------------------------------------------------------------------


@pytest.mark.more
@pytest.mark.row(9)
@pytest.mark.on("redis", "postgres")
def test_a_fetch_that_is_asked_again_gets_the_same_leases(
    broker: Broker, hosts: list[Host], rig: Rig, figure: Figure
) -> None:
    """None of them has to run out; nor where a reply is lost in silence, and the connection stays open."""
    pools = start_on(hosts, rig, timeout=1)
    lose(hosts, NOW_AND_THEN, broker.fetch_calls)
    rig.enqueue_many("work", [{"seconds": 0.01}] * 200)
    rig.wait_drained()
    figure("fetches whose replies were lost", dropped(hosts), "calls")
    lost = dropped(hosts)
    assert lost >= 3
    for host in hosts:
        host.proxy.drop_replies(2, match=broker.fetch_calls, then="silent")
    rig.enqueue_many("work", [{"seconds": 0.01}] * 200)
    end_unharmed(rig, pools)  # no lease of 30 s had to run out
    assert dropped(hosts) > lost
    released = {line.id for line in rig.lines("settled") if line.verb == "release"}  # what did not begin at once
    assert {line.fence for line in rig.starts() if line.id not in released} == {1}


@pytest.mark.more
@pytest.mark.row(9)
@pytest.mark.on("postgres", "redis")
def test_what_a_fetch_has_leased_that_is_never_asked_again_comes_back_after_the_ttl(
    broker: Broker, rig: Rig, figure: Figure
) -> None:
    """Its reply is lost, and its pool with it: no delivery of it was ever seen, and it is charged as a crash."""
    host = broker.host()
    [pool] = start_on([host], rig, "--ttl", f"{TTL:g}", workers=1)
    [other] = start_pools(rig, 1, "--ttl", f"{LONGER:g}", workers=1)
    gates = {gated(rig, rig.directory / name): rig.directory / name for name in ("one", "two")}
    begun = rig.wait_started(*gates)  # neither pool fetches: their only children are taken
    [mine] = [line.id for line in begun if line.pid in pool.children()]
    [others] = gates.keys() - {mine}
    held = rig.enqueue("work")
    host.proxy.drop_replies(match=broker.fetch_calls, then="silent")
    with Stalls() as stalls:
        asked = time.monotonic()
        gates[mine].touch()
        wait_until(lambda: rig.inspect(held).state is State.LEASED, what="it is fetched")
        pool.stop(signal.SIGKILL)
        gates[others].touch()
        [start] = rig.wait_started(held)
    assert dropped([host])
    assert [line.pid for line in rig.lines("fetched", held)] == [other.pid], "it was not seen before"
    assert (start.fence, start.attempt, start.crashes) == (2, 1, 1)
    figure("leased by a lost fetch, there again after", start.at - asked, "s")
    assert TTL < start.at - asked < BACK_WITHIN + stalls.allowance
    rig.wait_drained()
    account = rig.account()
    account.assert_clean()
    assert account["DUP"] <= {mine}, "it may have been killed while it settled that"
    stop_all(rig, [other])


# --- of enqueues --------------------------------------------------------------------------------------------


@pytest.fixture
def elsewhere(broker: Broker) -> Iterator[tuple[Host, QueueBackend]]:
    """A producer's machine."""
    host = broker.host()
    backend = open_backend(host.url)
    yield host, backend
    backend.close()


@pytest.mark.more
@pytest.mark.row(9)
@pytest.mark.on("redis", "postgres")
def test_an_enqueue_that_is_asked_again_with_its_id_makes_no_second_job(
    elsewhere: tuple[Host, QueueBackend], rig: Rig, figure: Figure
) -> None:
    """Also when the first one has been run and is gone."""
    host, backend = elsewhere
    pools = start_pools(rig, 2)
    host.proxy.drop_replies(share=NOW_AND_THEN, seed=5)
    producer = Producer(rig, every=0.002, backend=backend, most=250)
    producer.run()
    rig.wait_drained()
    stop_all(rig, pools)
    assert len(producer.answered) == 250
    assert producer.refused >= 3, "asked again by the producer, and not only within a call"
    figure("enqueues that were asked again", producer.refused, "calls")
    rig.account().assert_once_each()


# --- of all kinds -------------------------------------------------------------------------------------------


@pytest.mark.row(9)
@pytest.mark.on("redis", "postgres")
def test_pools_that_lose_replies_of_all_kinds_keep_what_was_promised(hosts: list[Host], rig: Rig) -> None:
    """Keys, limits and follow-ups: what was granted, done, sent or counted twice over must not show."""
    pools = start_on(hosts, rig, "--concurrency-limit", f"default={LIMIT}")
    lose(hosts, NOW_AND_THEN / 4)
    keys = [f"order {number}" for number in range(30)]
    rig.enqueue_many("work", [{"seconds": 0.02, "tag": "plain"}] * 60)
    rig.enqueue_many("follow_up", [{}] * 20)
    for key in keys * 2:
        rig.enqueue("work", {"seconds": 0.01, "tag": key}, idempotency_key=key)
    rig.wait_drained(120.0)  # who meets a key or a limit that is taken comes again after up to 30 s
    stop_all(rig, pools)
    assert dropped(hosts) >= 5
    began = {line.id for line in rig.starts()}
    told = Counter(line.tag for line in rig.ends() if line.id in began)
    assert told == {"plain": 60, "follow-up": 20, **dict.fromkeys(keys, 1)}
    rig.account().assert_once_each()
    assert most_at_once(line for line in rig.lines() if line.id in began) == LIMIT
