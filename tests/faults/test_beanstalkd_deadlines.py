"""What a beanstalkd can do to its clients: answer every reserve with DEADLINE_SOON (row 27).

Where a connection breaks, its leases are lost: test_killed_brokers.py and test_bad_networks.py.
"""

from __future__ import annotations

import time

import greenstalk
import pytest
from support.faultmoves import Figure, gated, let_pass, start_pools, stop_all
from support.outages import costing
from support.poolrig import LIMIT, Rig
from support.poolrig_brokers import BeanstalkBroker
from support.waiting import wait_until

SOON = 1
"""Seconds of a lease that is in its last second from the start."""


@pytest.mark.row(27)
@pytest.mark.on("beanstalk")
@pytest.mark.ttr(SOON)
def test_a_job_in_the_last_second_of_its_lease_makes_nobody_busy(
    broker: BeanstalkBroker, rig: Rig, figure: Figure
) -> None:
    """Its connection is answered so at once, whatever it asks for; and its pool asks, for it has an idle child."""
    assert_answered_so(broker)
    pools = start_pools(rig, 2, "--max-crashes", "0")  # a pause of the machine may end so short a lease
    opened = rig.directory / "opened"
    begun, reserved, asked = time.monotonic(), reserves(broker), broker.commands()
    with costing(pools) as cost:
        held = gated(rig, opened, opened)
        rig.wait_started(held)
        let_pass(2.0)
    grown, commands = reserves(broker) - reserved, broker.commands() - asked
    figure("commands of two pools a second", commands / cost.seconds, "")
    assert cost.cpu < 0.1 * cost.seconds
    assert 0 < grown < 30 * cost.seconds, "a look each second of either, and few when it comes"
    assert commands < 60 * cost.seconds, "renewals, and who counts here"
    wait_until(lambda: asks_for_more(rig, held), LIMIT, "its pool fetches beside it")
    assert reserves(broker) - reserved < 30 * (time.monotonic() - begun) + 20 * (len(rig.enqueued) - 1)
    opened.touch()
    rig.wait_drained()
    stop_all(rig, pools)
    rig.account().assert_clean()


def assert_answered_so(broker: BeanstalkBroker) -> None:
    """The server tells each line that holds such a job."""
    with broker.server.client(f"{broker.place}.raw") as client:
        number = client.put(b"x", ttr=SOON)
        client.reserve(timeout=0)
        with pytest.raises(greenstalk.DeadlineSoonError):
            client.reserve(timeout=0)
        client.delete(number)


def reserves(broker: BeanstalkBroker) -> int:
    with broker.server.client() as client:
        return int(client.stats()["cmd-reserve-with-timeout"])


def asks_for_more(rig: Rig, held: str) -> bool:
    """Whether the pool that holds it has been given something besides; a job is put wherever none waits."""
    if not rig.stats().waiting:
        rig.enqueue("work")
    fetched = rig.lines("fetched")
    holder = [line for line in fetched if line.id == held][-1]
    return any(line.pid == holder.pid and line.at > holder.at for line in fetched)
