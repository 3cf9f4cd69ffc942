"""The circuit breaker of a pool whose broker is away: open in plain sight, and never longer than the outage."""

from __future__ import annotations

from support.poolrig import Rig
from support.poolrig_brokers import Broker
from support.waiting import wait_until

BACK = 5.0
"""Seconds after the broker is back within which work goes on (FAULTS 8)."""

COOLDOWN = 600.0
"""Seconds: nobody would wait for its end."""

OPENED = "the circuit breaker of a queue is open: nothing is fetched from it for now"
CLOSED = "the circuit breaker of a queue is closed again"


def test_a_long_cooldown_ends_with_the_outage(broker: Broker, rig: Rig) -> None:
    host = broker.host()
    flags = ("--breaker-threshold", "2", "--breaker-cooldown", str(COOLDOWN), "--breaker-max-cooldown", str(COOLDOWN))
    pool = rig.start_pool(*flags, url=host.url).wait_ready(2)
    rig.wait_started(rig.enqueue("work"))
    rig.wait_drained()
    host.proxy.refuse()
    host.proxy.cut()
    waiting = rig.enqueue("work")
    wait_until(lambda: pool.log(OPENED), what="open")
    [opened] = pool.log(OPENED)
    assert (opened["queue"], opened["cooldown"]) == ("default", COOLDOWN)
    assert rig.starts(waiting) == []
    host.proxy.restore()
    rig.wait_started(waiting, limit=BACK)
    wait_until(lambda: pool.log(CLOSED), what="closed")
    assert pool.stop() == 0
    assert len(pool.log(OPENED)) == len(pool.log(CLOSED)) == 1
