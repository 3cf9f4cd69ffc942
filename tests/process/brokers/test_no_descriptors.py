"""A master that has run out of descriptors goes on with those that it has, and opens others when there are some."""

from __future__ import annotations

import pytest
from support.descriptors import no_more_descriptors
from support.poolrig import LIMIT, Rig
from support.poolrig_brokers import Broker
from support.waiting import wait_until

MEASURED = "children cannot be measured, and memory_limit is not kept to; trying again each second"


@pytest.mark.also("beanstalk", "servicebus")  # no proxy reaches the nodes of a cluster
def test_connections_that_cannot_be_opened_are_an_outage(broker: Broker, rig: Rig) -> None:
    rig.witness = True
    host = broker.host()
    pool = rig.start_pool("--metrics", "0", url=host.url).wait_ready(2)
    rig.enqueue_many("work", [{}] * 20)
    rig.wait_drained()
    with no_more_descriptors(pool.pid):
        host.proxy.cut()
        rig.enqueue_many("work", [{}] * 20)
        wait_until(lambda: "does not answer" in pool.header().problem, LIMIT, "the broker cannot be reached")
        wait_until(lambda: pool.log(MEASURED), LIMIT, "children cannot be measured")
    rig.wait_drained()
    assert pool.stop() == 0
    rig.account().assert_clean()
