"""Networks that swallow a hint, or are slow, and what must not come of it.

Black holes, resets and half-open connections under load: tests/faults/test_bad_networks.py.
"""

from __future__ import annotations

from support.faultmoves import let_pass
from support.poolrig import Rig
from support.poolrig_brokers import Broker
from support.stalls import Stopwatch
from support.waiting import wait_until


def test_a_hint_that_was_lost_delays_nobody_else(broker: Broker, rig: Rig) -> None:
    """The broker tells one of two idle pools of a message, and that one cannot hear it."""
    host = broker.host()
    rig.start_pool(url=host.url).wait_ready(2)
    hearing = rig.start_pool().wait_ready(2)
    let_pass(0.5)
    for _ in range(3):
        host.proxy.black_hole()
        enqueued = Stopwatch()
        [start] = rig.wait_started(rig.enqueue("work"))
        assert start.pid in hearing.children()
        assert start.at - enqueued.began < 1.2 + enqueued.stalled()
        host.proxy.restore()


def test_no_job_begins_with_a_lease_that_has_ended(broker: Broker, rig: Rig) -> None:
    """The broker leases a message, and says so when somebody else may have it already."""
    host = broker.host()
    pool = rig.start_pool("--ttl", "1", "--max-crashes", "0", url=host.url).wait_ready(2)
    rig.enqueue_many("work", [{}] * 50)  # after which every connection that it needs is open
    rig.wait_drained()
    host.proxy.delay(0.6)
    ident = rig.enqueue("work")
    wait_until(lambda: rig.inspect(ident).deliveries == 1, what="leased")
    let_pass(0.3)  # the answer is on its way
    host.proxy.delay(0.0)
    rig.wait_drained()
    assert len(rig.starts(ident)) == 1, "begun with a lease that holds, or not at all"
    assert pool.stop() == 0
