"""What a beanstalkd keeps when it is killed: with a binlog all messages, and no lease; without one nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.jobs import QUEUE, a_job, at, numbered
from support.servers import BeanstalkServer
from support.waiting import wait_until

from jobpool.broker.values import MessageFilter, QueueStats, Verb
from jobpool.errors import BackendUnavailable
from jobpool_backends.beanstalk import BeanstalkBackend


@pytest.fixture
def server(tmp_path: Path) -> Iterator[BeanstalkServer]:
    with BeanstalkServer(tmp_path, binlog=True) as server:
        yield server


@pytest.fixture
def backend(server: BeanstalkServer) -> Iterator[BeanstalkBackend]:
    backend = BeanstalkBackend.from_url(server.url)
    yield backend
    backend.close()


def kill(server: BeanstalkServer) -> None:
    server.kill()
    server.start()


def test_with_a_binlog_every_message_outlives_a_kill_and_every_lease_is_lost(
    server: BeanstalkServer, backend: BeanstalkBackend
) -> None:
    backend.enqueue_many(numbered(4))
    dead, failed, held, done = backend.fetch_many(QUEUE, limit=4)
    backend.abandon(dead, "timeout", "too slow")
    backend.nack(failed, error="boom")
    backend.ack(done)
    backend.enqueue_many([a_job("waits"), a_job("later", scheduled_at=at(4e9))])
    kill(server)
    assert backend.lost() == [held]
    assert backend.lost() == []
    assert not backend.ack(held)
    stats = backend.stats(QUEUE)
    assert (stats.waiting, stats.delayed, stats.leased, stats.dead) == (3, 1, 0, 1)
    [message] = backend.list_messages(MessageFilter(queue=QUEUE))
    assert (message.id, message.reason, message.last_error) == (dead.id, "timeout", "too slow")
    again = {lease.id: lease for lease in backend.fetch_many(QUEUE, limit=9)}
    assert len(again) == 3
    assert (again[failed.id].attempts, again[failed.id].deliveries) == (1, 2), "its copy has its counters"
    assert (again[held.id].deliveries, again[held.id].crashes) == (1, 0), "its log knows nothing of what was reserved"
    assert backend.ack(again[held.id])


def test_dead_letters_outlive_a_kill_in_their_order_however_often_they_were_looked_at(
    server: BeanstalkServer, backend: BeanstalkBackend
) -> None:
    known = backend.enqueue_many(numbered(5))
    for lease in backend.fetch_many(QUEUE, limit=5):
        backend.abandon(lease, "hopeless")
    backend.list_messages()
    kill(server)
    assert backend.stats(QUEUE).dead == 5
    assert [message.id for message in backend.list_messages()] == known
    assert backend.stats(QUEUE) == QueueStats(dead=5)


def test_no_copy_is_so_long_that_a_restarted_server_drops_the_log_from_there_on(tmp_path: Path) -> None:
    """At its start it counts the line end after a job, too."""
    limit = 4096
    with BeanstalkServer(tmp_path, binlog=True, max_job_size=limit) as server:
        backend = BeanstalkBackend.from_url(server.url)

        def failed_copy(pad: int) -> int:
            """Return the length of the copy of a job that failed with a long error."""
            queue = f"pad-{pad}"
            backend.enqueue(a_job("x" * pad, queue=queue))
            [lease] = backend.fetch_many(queue, limit=1)
            assert backend.nack(lease, delay=3600.0, error="e" * limit)
            with server.client(queue) as raw:
                return len(raw.peek_delayed().body)

        pad = limit // 2
        pad += limit - 4 - failed_copy(pad)
        assert all(failed_copy(pad + more) <= limit - 2 for more in range(5))
        backend.enqueue_many(numbered(3))
        kill(server)
        assert backend.stats(QUEUE).waiting == 3
        backend.close()


def test_a_call_while_the_server_is_gone_says_so_and_the_next_one_works_again(
    server: BeanstalkServer, backend: BeanstalkBackend
) -> None:
    backend.enqueue(a_job())
    server.kill()
    for call in (lambda: backend.stats(QUEUE), backend.queues, backend.list_messages, backend.ping):
        with pytest.raises(BackendUnavailable, match=f"beanstalkd at 127.0.0.1:{server.port} "):
            call()
    with pytest.raises(BackendUnavailable, match="refuses connections") as refused:
        backend.enqueue(a_job())
    assert "all the same" not in str(refused.value)
    server.start()
    assert backend.queues() == [QUEUE]


def test_a_server_that_stands_still_is_not_waited_for_longer_than_the_timeout(server: BeanstalkServer) -> None:
    backend = BeanstalkBackend.from_url(server.url, timeout=1.0)
    backend.enqueue(a_job())
    server.pause()
    with pytest.raises(BackendUnavailable, match=r"did not answer within 1 s.*; the job may be enqueued all the same"):
        backend.enqueue(a_job())
    for call in (lambda: backend.stats(QUEUE), lambda: backend.bulk(MessageFilter(queue=QUEUE), Verb.RETRY)):
        with pytest.raises(BackendUnavailable, match=r"did not answer within 1 s"):
            call()
    server.resume()
    wait_until(lambda: backend.stats(QUEUE).waiting == 2, what="the job that was put in doubt")
    backend.close()


def test_without_a_binlog_a_kill_loses_all(tmp_path: Path) -> None:
    with BeanstalkServer(tmp_path / "forgets") as server:
        backend = BeanstalkBackend.from_url(server.url)
        backend.enqueue_many(numbered(3))
        kill(server)
        assert backend.queues() == []
        backend.close()
