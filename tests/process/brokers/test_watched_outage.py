"""What is seen of a broker's outage from outside, and what of metrics and history outlives it."""

from __future__ import annotations

import http.client
import time
from contextlib import closing

import pytest
from support.poolrig import PoolProcess, Rig
from support.poolrig_brokers import Broker
from support.waiting import wait_until

from jobpool.history.places import InFile
from jobpool.metrics.reader import rollups
from jobpool.metrics.rollup import HOUR


def get(pool: PoolProcess, path: str) -> tuple[int, str]:
    port = int(wait_until(lambda: pool.log("metrics are served"), 30)[0]["port"])
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=30)) as connection:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()


@pytest.mark.own_server
def test_an_outage_is_degraded_and_not_dead_and_nothing_that_was_counted_is_lost(broker: Broker, rig: Rig) -> None:
    flags = ("--metrics-port", "0", "--history", "file:h.ndjson", "--broker-timeout", "1")
    pool = rig.start_pool(*flags, url=broker.host().url).wait_ready(2)
    rig.enqueue_many("work", [{}] * 20)
    rig.wait_drained()
    wait_until(lambda: 'outcome="succeeded",queue="default"} 20.0' in get(pool, "/metrics")[1], 30)
    broker.server.kill()
    status, text = wait_until(lambda: (answer := get(pool, "/readyz"))[0] == 503 and answer, 60)
    assert (status, text.startswith("degraded: the broker last answered")) == (503, True)
    assert get(pool, "/livez") == (200, "live\n")
    status, scraped = get(pool, "/metrics")
    assert status == 200, "a scrape never asks the broker"
    assert 'outcome="succeeded",queue="default"} 20.0' in scraped
    broker.server.start()
    wait_until(lambda: get(pool, "/readyz")[0] == 200, 60, "the pool is ready again")
    assert pool.stop() == 0
    now = time.time()
    rows = rollups(rig.backend.keys, now - HOUR, now + HOUR)
    assert sum(row.outcomes.get("succeeded", 0) for row in rows) == 20
    assert len(InFile(rig.directory / "h.ndjson", 100).read("work", 100)) == 20
