"""A broker that is killed under load and comes back (FAULTS 8)."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from support.poolrig import PoolProcess, Rig
from support.poolrig_brokers import Broker, Host
from support.waiting import wait_until

from jobpool.definition import JobDefinition
from jobpool.errors import BackendUnavailable
from jobpool.health import MISSED, look
from jobpool.master.run import BROKER_INTERVAL

BACK = 5.0
"""Seconds after the broker is back within which work goes on."""

OUTAGE = MISSED * BROKER_INTERVAL + 0.5
"""Seconds: long enough for health to see it."""


class Producer:
    """Enqueues a job every so often with ids of its own, and each again until it has been told that it is there."""

    def __init__(self, rig: Rig, every: float) -> None:
        self._rig = rig
        self._every = every
        self._stop = threading.Event()
        self.refused = 0

    @contextmanager
    def running(self) -> Iterator[Producer]:
        thread = threading.Thread(target=self._run)
        thread.start()
        try:
            yield self
        finally:
            self._stop.set()
            thread.join()

    def _run(self) -> None:
        number = 0
        while not self._stop.wait(self._every):
            number += 1
            self._enqueue(JobDefinition("work", {"seconds": 0.01}, identifier=f"given-{number}"))

    def _enqueue(self, job: JobDefinition) -> None:
        give_up = time.monotonic() + OUTAGE + 2 * BACK
        while time.monotonic() < give_up:
            try:
                self._rig.enqueued.add(self._rig.backend.enqueue(job))
            except BackendUnavailable:
                self.refused += 1
                self._stop.wait(self._every)
            else:
                return


@pytest.mark.own_server
def test_a_broker_that_is_killed_under_load_and_comes_back(broker: Broker, rig: Rig) -> None:
    pools = [rig.start_pool(url=broker.host().url) for _ in range(2)]
    for pool in pools:
        pool.wait_ready(2)
    rig.enqueue_many("work", [{"seconds": 0.02}] * 300)
    long = rig.enqueue("work", {"seconds": OUTAGE / 2}, priority=1)
    with Producer(rig, every=0.05).running() as producer:
        rig.wait_started(long)
        wait_until(lambda: len(rig.ends()) > 50)
        broker.server.kill()
        down = time.monotonic()
        spent = [pool.cpu_seconds() for pool in pools]
        said = [len(pool.log_lines()) for pool in pools]
        wait_until(lambda: not any(pool.is_healthy() for pool in pools), OUTAGE + 1.0, "health tells")
        assert time.monotonic() - down < OUTAGE
        for pool, cpu, lines in zip(pools, spent, said, strict=True):
            assert pool.cpu_seconds() - cpu < 0.03 * OUTAGE, "no busy loop"
            assert len(pool.log_lines()) - lines <= 3, "and no flood of its log"
            assert names_the_broker(pool)
            assert pool.ready() == 2, "its children stay"
        broker.server.start()
        back = time.monotonic()
        wait_until(lambda: any(line.at > back for line in rig.starts()), BACK, "work goes on")
        wait_until(lambda: all(pool.is_healthy() for pool in pools), BACK, "and health tells")
    rig.wait_drained()
    rig.account().assert_once_each()
    assert producer.refused
    assert not any(rig.account().crashes.values()), "every lease outlived the outage"
    assert len(rig.starts(long)) == 1
    assert [pool.stop() for pool in pools] == [0, 0]
    rig.assert_no_processes_left()


def names_the_broker(pool: PoolProcess) -> bool:
    """Whether it is the broker that health complains of, by name, and nothing else."""
    [complaint] = [check for check in look(pool.note()).checks if not check.ok and check.name != "reaper"]
    return complaint.name == "broker" and "127.0.0.1" in complaint.text


def test_leases_that_end_in_an_outage_are_neither_lost_nor_settled_late(broker: Broker, rig: Rig) -> None:
    """The pool holds one job for each child and nothing else: no other settlement is on its way at the cut."""
    ttl = 1.0
    host = broker.host()
    pool = rig.start_pool("--ttl", str(ttl), "--max-crashes", "0", url=host.url).wait_ready(2)
    cut = rig.directory / "cut"
    ends_then = {"first": 0, "later": 0.1, "until": str(cut)}
    held = rig.enqueue_many("again", [{"first": 60, "later": 0.1}, ends_then], priority=1)
    pids = [line.pid for line in rig.wait_started(*held)]
    rig.enqueue_many("work", [{"seconds": 0.02}] * 20)
    part(host)
    cut.touch()
    wait_until(lambda: pids[0] not in pool.children(), ttl + 1.0, "killed with its lease")
    wait_until(lambda: pool.header().lost >= 2, ttl + BACK, "the other one's result is dropped")
    host.proxy.restore()
    back = time.monotonic()
    wait_until(lambda: all(len(rig.starts(ident)) == 2 for ident in held), BACK, "redelivered")
    assert rig.starts(held[0])[1].at - back < BACK
    rig.wait_drained()
    rig.account().assert_clean()
    assert rig.account().duplicates <= {held[1]}
    assert pool.stop() == 0


def part(host: Host) -> None:
    """No way from here to the broker any more, and the machine knows it."""
    host.proxy.refuse()
    host.proxy.cut()


def test_a_pool_can_be_stopped_while_its_broker_is_away(broker: Broker, rig: Rig) -> None:
    host = broker.host()
    pool = rig.start_pool("--stop-grace", "1", url=host.url).wait_ready(2)
    ids = rig.enqueue_many("work", [{"seconds": 0.5}, {"seconds": 60}])
    rig.wait_started(*ids)
    part(host)
    begun = time.monotonic()
    assert pool.stop() == 0
    assert time.monotonic() - begun < 1.0 + 2 * BACK
    rig.assert_no_processes_left()
    assert pool.log("leases are left to expire: the broker did not answer")
    assert set(ids) == {message.id for message in rig.backend.list_messages()}


@pytest.mark.also("beanstalk")
def test_an_unreachable_broker_at_the_start_is_one_sentence(broker: Broker, rig: Rig) -> None:
    host = broker.host()
    host.proxy.refuse()
    pool = rig.run_pool(url=host.url)
    assert pool.wait() == 1
    text = pool.log_path.read_text()
    assert f"127.0.0.1:{host.proxy.port}" in text
    assert "Traceback" not in text
