"""The beanstalkd of the tests: it is ours alone, keeps what it should, and its jobs follow the clock that is turned."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import greenstalk
import psutil
import pytest
from support.servers import BeanstalkServer, ServerFailed, process, shared_beanstalk

BODY = b"a body"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[BeanstalkServer]:
    with BeanstalkServer(tmp_path / "beanstalkd") as server:
        yield server


@pytest.fixture
def turned(tmp_path: Path) -> Iterator[BeanstalkServer]:
    with BeanstalkServer(tmp_path / "turned", turned=True) as server:
        yield server


def test_it_answers_on_its_port(server: BeanstalkServer) -> None:
    with server.client() as client:
        told = client.stats()

    assert told["pid"] == server.pid
    assert told["binlog-current-index"] == 0


def test_a_port_that_is_taken_is_not_insisted_on(
    server: BeanstalkServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ports = iter([server.port, process.free_port()])
    monkeypatch.setattr(process, "free_port", lambda: next(ports))
    with BeanstalkServer(tmp_path / "other") as other, other.client() as client:
        assert other.port != server.port
        assert client.stats()["pid"] == other.pid


def test_a_server_that_cannot_start_says_why(tmp_path: Path) -> None:
    with BeanstalkServer(tmp_path, binlog=True), pytest.raises(ServerFailed, match="lock"):
        BeanstalkServer(tmp_path, binlog=True)


def test_it_keeps_nothing_unless_asked(server: BeanstalkServer) -> None:
    with server.client() as client:
        client.put(BODY)
    server.restart()
    with server.client() as client, pytest.raises(greenstalk.NotFoundError):
        client.peek_ready()


def test_a_binlog_keeps_jobs_through_a_restart_and_a_kill_on_the_same_port(tmp_path: Path) -> None:
    with BeanstalkServer(tmp_path, binlog=True) as server:
        port, pid = server.port, server.pid
        with server.client() as client:
            kept = client.put(BODY)
        server.restart()
        server.kill()
        assert not psutil.pid_exists(pid)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((server.host, server.port))
        server.start()
        assert server.port == port
        with server.client() as client:
            assert client.peek_ready().id == kept


def test_it_takes_what_the_largest_body_needs_and_no_more_when_told_so(server: BeanstalkServer, tmp_path: Path) -> None:
    with server.client() as client:
        client.put(b"x" * (2**20 + 4096))
    with BeanstalkServer(tmp_path / "small", max_job_size=1000) as small, small.client() as client:
        client.put(b"x" * 1000)
        with pytest.raises(greenstalk.JobTooBigError):
            client.put(b"x" * 1001)


def test_a_drained_server_takes_no_more(server: BeanstalkServer) -> None:
    with server.client() as client:
        client.put(BODY)
        server.drain()
        with pytest.raises(greenstalk.DrainingError):
            client.put(BODY)
        assert client.reserve(0).body == BODY


def test_shared_servers_are_one_of_each_kind() -> None:
    assert shared_beanstalk() is shared_beanstalk(turned=False)
    assert shared_beanstalk(turned=True) is shared_beanstalk(True)
    assert shared_beanstalk() is not shared_beanstalk(turned=True)


# --- a turned one ------------------------------------------------------------------------------------------


def test_only_a_turned_server_can_be_turned(server: BeanstalkServer) -> None:
    with pytest.raises(ValueError, match="turned=True"):
        server.advance(1.0)


def test_a_delayed_job_falls_due_by_the_turned_time(turned: BeanstalkServer) -> None:
    with turned.client() as client:
        ident = client.put(BODY, delay=600)
        turned.advance(599.999_999)
        assert client.peek_delayed().id == ident
        turned.advance(0.000_001)
        assert client.reserve(0).id == ident


def test_a_lease_runs_out_by_the_turned_time(turned: BeanstalkServer) -> None:
    with turned.client() as holder, turned.client() as other:
        job = holder.reserve_job(holder.put(BODY, ttr=60))
        turned.advance(59.999_999)
        with pytest.raises(greenstalk.TimedOutError):
            other.reserve(0)
        turned.advance(0.000_002)
        assert other.reserve(0).id == job.id
        with pytest.raises(greenstalk.NotFoundError):
            holder.touch(job)
        assert other.stats_job(job.id)["timeouts"] == 1


def test_a_lease_that_time_meets_in_its_last_moment_lasts_until_its_holder_speaks(turned: BeanstalkServer) -> None:
    """A fault of beanstalkd 1.12, which tests have to go round, and pools to live with."""
    with turned.client() as holder, turned.client() as other:
        holder.reserve_job(holder.put(BODY, ttr=60))
        turned.advance(60.0)
        turned.advance(600.0)
        with pytest.raises(greenstalk.TimedOutError):
            other.reserve(0)
        holder.using()
        assert other.reserve(0).body == BODY


def test_a_touch_counts_from_the_turned_time(turned: BeanstalkServer) -> None:
    with turned.client() as holder:
        job = holder.reserve_job(holder.put(BODY, ttr=60))
        turned.advance(59.0)
        holder.touch(job)
        turned.advance(59.0)
        assert holder.stats_job(job)["state"] == "reserved"


def test_the_deadline_is_soon_in_the_last_second_of_the_turned_time(turned: BeanstalkServer) -> None:
    with turned.client() as holder:
        holder.reserve_job(holder.put(BODY, ttr=60))
        turned.advance(58.999_999)
        with pytest.raises(greenstalk.TimedOutError):
            holder.reserve(0)
        turned.advance(0.000_001)
        with pytest.raises(greenstalk.DeadlineSoonError):
            holder.reserve(0)


def test_turned_time_is_set_back_for_the_next_test_and_outlasts_a_restart(turned: BeanstalkServer) -> None:
    start = turned.now()
    turned.advance(5000.0)
    turned.restart()
    turned.turn_to(start)
    with turned.client() as client:
        ident = client.put(BODY, delay=10)
        turned.advance(9.0)
        assert client.stats_job(ident)["time-left"] in (0, 1)
        turned.advance(1.0)
        assert client.reserve(0).id == ident


def test_a_killed_turned_server_leaves_no_shared_memory(turned: BeanstalkServer) -> None:
    pid = turned.pid
    turned.kill()
    assert not [path for path in Path("/dev/shm").iterdir() if str(pid) in path.name]
