"""A broker that is not there when a pool is started. One that goes away later: tests/faults/test_killed_brokers.py."""

from __future__ import annotations

import pytest
from support.poolrig import Rig
from support.poolrig_brokers import Broker


@pytest.mark.also("beanstalk")
def test_an_unreachable_broker_at_the_start_is_one_sentence(broker: Broker, rig: Rig) -> None:
    host = broker.host()
    host.proxy.refuse()
    pool = rig.run_pool(url=host.url)
    assert pool.wait() == 1
    text = pool.log_path.read_text()
    assert f"127.0.0.1:{host.proxy.port}" in text
    assert "Traceback" not in text
