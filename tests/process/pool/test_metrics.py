"""What a running pool serves on its metrics port."""

from __future__ import annotations

import http.client
import os
import signal
import socket
from contextlib import closing

from prometheus_client.parser import text_string_to_metric_families as parse
from support.poolrig import PoolProcess, Rig, measured
from support.waiting import wait_until

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
    values = wait_until(lambda: v if jobs(v := scrape(pool), "hang", "timed_out") else None, 30)
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
    gauges_follow_the_queue(rig, pool)


def gauges_follow_the_queue(rig: Rig, pool: PoolProcess) -> None:
    rig.enqueue_many("work", [{"seconds": 60}] * 2)
    rig.enqueue_many("noop", [{}] * 40)

    def waiting() -> bool:
        values = scrape(pool)
        told = values.get(("jobpool_queue_messages", frozenset({("queue", "default"), ("state", "waiting")})))
        return told == 40 and values["jobpool_slots", frozenset({("state", "busy")})] == 2

    wait_until(waiting, 30, "the queue and the busy children are told")
    values = wait_until(lambda: v if _oldest(v := scrape(pool)) > 0 else None, 30)
    assert values["jobpool_breaker_open", frozenset({("queue", "default")})] == 0


def _oldest(values: Values) -> float:
    return values["jobpool_queue_oldest_age_seconds", frozenset({("queue", "default")})]


def test_probes_tell_of_children_and_clients_that_hang_or_flood_disturb_neither_jobs_nor_a_stop(rig: Rig) -> None:
    rig.witness = True
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
        _, body = wait_until(lambda: a if (a := get(pool, "/readyz"))[0] == 503 else None, 30)
        assert "0 of 2 children ready" in body
        assert get(pool, "/livez")[0] == 200
        stopped.send(signal.SIGCONT)
    wait_until(lambda: get(pool, "/readyz")[0] == 200, 30, "the pool is ready again")

    clients = [socket.create_connection(("127.0.0.1", port_of(pool))) for _ in range(60)]
    try:
        for client in clients[:20]:
            client.sendall(b"GET /metrics HTTP/1.1\r\nX: ")
        rig.enqueue_many("work", [{}] * 100)
        rig.wait_drained()
        assert pool.is_healthy()
        assert measured(lambda: pool.stop()) < 20
        assert pool.wait() == 0
    finally:
        for client in clients:
            client.close()
    rig.account().assert_once_each()


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
    assert pool.wait() == 1, "so that a service manager tries again"
    assert f"127.0.0.1:{port} cannot be listened on" in pool.log("the pool ends")[0]["error"]
    rig.assert_no_processes_left()
