"""What a beanstalkd can do to its clients: answer every reserve with DEADLINE_SOON (row 27).

Where a connection breaks, its leases are lost: test_killed_brokers.py and test_bad_networks.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.faultmoves import Figure, let_pass, start_pools, stop_all
from support.outages import costing
from support.poolrig import Rig
from support.poolrig_brokers import TTR, BeanstalkBroker


@pytest.fixture
def short(broker: BeanstalkBroker, tmp_path: Path) -> Iterator[Rig]:
    """All of whose leases are in their last second from the start."""
    directory = tmp_path / "short"
    directory.mkdir()
    rig = Rig(directory, broker.url.replace(f"ttr={TTR}", "ttr=1"), witness=True)
    yield rig
    rig.end()


@pytest.mark.row(27)
@pytest.mark.on("beanstalk")
def test_a_job_in_the_last_second_of_its_lease_makes_nobody_busy(
    broker: BeanstalkBroker, short: Rig, figure: Figure
) -> None:
    """It is answered at once, on the connection that holds such a job."""
    pools = start_pools(short, 2, workers=1)
    idents = short.enqueue_many("work", [{"seconds": 4.0}] * 2)
    short.wait_started(*idents)
    asked = broker.commands()
    with costing(pools) as cost:
        let_pass(2.0)
    figure("commands of two pools a second", (broker.commands() - asked) / cost.seconds, "")
    assert cost.cpu < 0.2
    assert broker.commands() - asked < 2 * 60, "renewals, a look each second, and who counts here"
    short.wait_drained()
    stop_all(short, pools)
    short.account().assert_once_each()
