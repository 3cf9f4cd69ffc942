"""What a running pool serves on its metrics port, and the sums that it leaves in the broker."""

from __future__ import annotations

import http.client
import os
import signal
import socket
import time
from contextlib import closing

import pytest
from prometheus_client.parser import text_string_to_metric_families as parse
from support.poolrig import PoolProcess, Rig
from support.waiting import wait_until

from jobpool.telemetry.metrics.rollup import HOUR, rollups, summed

Values = dict[tuple[str, frozenset[tuple[str, str]]], float]


def start(rig: Rig, *flags: str) -> PoolProcess:
    return rig.start_pool("--metrics", "0", *flags).wait_ready(2)


def port_of(pool: PoolProcess) -> int:
    return int(wait_until(lambda: pool.log("metrics are served"), 30)[0]["port"])


def get(pool: PoolProcess, path: str) -> tuple[int, str]:
    with closing(http.client.HTTPConnection("127.0.0.1", port_of(pool), timeout=30)) as connection:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()


def scrape(pool: PoolProcess) -> Values:
    status, body = get(pool, "/metrics")
    assert status == 200, body
    return {(s.name, frozenset(s.labels.items())): s.value for family in parse(body) for s in family.samples}


def jobs(values: Values, handler: str, outcome: str) -> float:
    labels = frozenset({("queue", "default"), ("handler", handler), ("outcome", outcome)})
    return values.get(("jobpool_jobs_total", labels), 0.0)


def test_what_happened_is_what_is_scraped(rig: Rig) -> None:
    pool = start(rig, "--kill-grace", "0.2")
    rig.enqueue_many("work", [{}] * 200)
    rig.enqueue("fail", {"times": 9})
    rig.enqueue("die", {"how": "SIGSEGV"})
    rig.enqueue("hang", {"how": "hang_in_sum"}, timeout=0.3)
    rig.wait_drained()
    values = wait_until(lambda: (v := scrape(pool)) and jobs(v, "hang", "timed_out") and v, 30)
    assert jobs(values, "work", "succeeded") == 200
    assert (jobs(values, "fail", "failed"), jobs(values, "fail", "failed_permanently")) == (1, 1)
    assert (jobs(values, "die", "crashed"), jobs(values, "die", "succeeded")) == (1, 1)
    assert jobs(values, "", "reaped") == 1
    none: frozenset[tuple[str, str]] = frozenset()
    work = frozenset({("queue", "default"), ("handler", "work")})
    assert values["jobpool_job_run_seconds_count", work] == 200
    assert values["jobpool_job_wait_seconds_count", work] == 200
    assert values["jobpool_kill_overrun_seconds_count", none] == 1
    assert 0.2 < values["jobpool_kill_overrun_seconds_sum", none] < 10
    assert values["jobpool_child_exits_total", frozenset({("cause", "SIGSEGV")})] == 1
    assert values["jobpool_child_exits_total", frozenset({("cause", "timeout")})] == 1
    assert values["jobpool_child_peak_rss_bytes", none] > 1 << 20
    assert values["jobpool_jobs_fetched_total", frozenset({("queue", "default")})] >= 204
    assert pool.stop() == 0


def test_gauges_follow_the_queue(rig: Rig) -> None:
    pool = start(rig)
    rig.enqueue_many("work", [{"seconds": 60}] * 2)
    rig.enqueue_many("noop", [{}] * 40)

    def waiting() -> bool:
        values = scrape(pool)
        told = values.get(("jobpool_queue_messages", frozenset({("queue", "default"), ("state", "waiting")})))
        return told == 40 and values["jobpool_slots", frozenset({("state", "busy")})] == 2

    wait_until(waiting, 30, "the queue and the busy children are told")
    values = wait_until(lambda: (v := scrape(pool)) and _oldest(v) > 0 and v, 30)
    assert values["jobpool_breaker_open", frozenset({("queue", "default")})] == 0


def _oldest(values: Values) -> float:
    return values["jobpool_queue_oldest_age_seconds", frozenset({("queue", "default")})]


def test_probes_tell_a_healthy_pool_from_one_without_children(rig: Rig) -> None:
    pool = start(rig)
    assert get(pool, "/livez") == (200, "live\n")
    assert get(pool, "/readyz") == (200, "ready: 2 of 2 children ready\n")
    [server] = pool.fork_servers()
    children = pool.children()
    with closing(Pidfd(server)) as stopped:
        stopped.send(signal.SIGSTOP)  # no child can come while it cannot fork
        for child in children:
            with closing(Pidfd(child)) as doomed:
                doomed.send(signal.SIGKILL)
        _, body = wait_until(lambda: (a := get(pool, "/readyz"))[0] == 503 and a, 30)
        assert "0 of 2 children ready" in body
        assert get(pool, "/livez")[0] == 200
        stopped.send(signal.SIGCONT)
    wait_until(lambda: get(pool, "/readyz")[0] == 200, 30, "the pool is ready again")


class Pidfd:
    """A process, whatever becomes of its pid."""

    def __init__(self, pid: int) -> None:
        self._fd = os.pidfd_open(pid)

    def send(self, number: signal.Signals) -> None:
        signal.pidfd_send_signal(self._fd, number)

    def close(self) -> None:
        os.close(self._fd)


def test_a_port_that_is_taken_stops_the_start_with_one_sentence(rig: Rig) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
        pool = rig.run_pool("--metrics", str(port))
    assert pool.wait() == 2
    [sentence] = [line for line in pool.log_lines() if not line.startswith("{")]
    assert f"127.0.0.1:{port} cannot be listened on" in sentence
    rig.assert_no_processes_left()


def test_clients_that_hang_or_flood_neither_disturb_jobs_nor_a_stop(rig: Rig) -> None:
    pool = start(rig)
    port = port_of(pool)
    clients = [socket.create_connection(("127.0.0.1", port)) for _ in range(60)]
    try:
        for client in clients[:20]:
            client.sendall(b"GET /metrics HTTP/1.1\r\nX: ")
        rig.enqueue_many("work", [{}] * 100)
        rig.wait_drained()
        assert pool.is_healthy()
        begun = time.monotonic()
        assert pool.stop() == 0
        assert time.monotonic() - begun < 20
    finally:
        for client in clients:
            client.close()
    rig.account().assert_once_each()


def test_a_pool_without_the_port_serves_nothing(rig: Rig) -> None:
    pool = rig.start_pool().wait_ready(2)
    assert not pool.log("metrics are served")
    assert pool.stop() == 0


@pytest.mark.brokers
def test_sums_of_all_pools_are_in_the_broker_when_they_have_stopped(rig: Rig) -> None:
    pools = [rig.start_pool(workers=1).wait_ready(1) for _ in range(2)]
    rig.enqueue_many("work", [{"seconds": 0.01}] * 60)
    rig.enqueue("fail", {"times": 9})
    rig.wait_drained()
    for pool in pools:
        assert pool.stop() == 0
    now = time.time()
    found = summed(rollups(rig.backend.keys, now - HOUR, now + HOUR), 24 * HOUR)
    outcomes: dict[str, dict[str, int]] = {}
    for row in found:
        mine = outcomes.setdefault(row.handler, {})
        for word, count in row.outcomes.items():
            mine[word] = mine.get(word, 0) + count
    assert outcomes["work"]["succeeded"] == 60
    assert outcomes["fail"] == {"failed": 1, "failed_permanently": 1}
    assert sum(row.run.count for row in found if row.handler == "work") == 60


def test_no_sums_are_made_when_they_are_off(rig: Rig) -> None:
    rig.enqueue("work")
    assert rig.run_pool("--until-empty", "--rollups", "0").wait() == 0
    assert rig.backend.keys.list_records("rollups") == []
