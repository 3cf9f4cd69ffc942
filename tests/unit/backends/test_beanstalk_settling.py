"""Settlements that beanstalkd refuses, in part or in whole: nothing is lost, and a repeated call finishes the rest."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import product
from pathlib import Path

import greenstalk
import pytest
from beanstalk_clients import AT_ONCE, Clients, one
from support.jobs import QUEUE, a_job
from support.servers import BeanstalkServer

from jobpool.errors import BackendUnavailable, InvalidJob, WriteRefused
from jobpool.message.envelope import MAX_BODY_BYTES
from jobpool.message.settlement import Abandon, Ack, Nack, Settled, Settlement
from jobpool_backends.beanstalk.connection import Held
from jobpool_backends.beanstalk.connections import Answers, Connections
from jobpool_backends.beanstalk.records import HEADER_ROOM, from_bytes
from jobpool_backends.beanstalk.settle import Call

LIMIT = 4096
"""Bytes a job on the small server."""


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BeanstalkServer]:
    server = BeanstalkServer(tmp_path_factory.mktemp("small"), max_job_size=LIMIT)
    yield server
    server.close()


# --- copies ----------------------------------------------------------------------------------------------------


def test_a_copy_is_put_before_the_original_is_deleted(clients: Clients) -> None:
    backend = clients.open(ttr=77)
    backend.enqueue(a_job())
    lease = one(backend)
    before = clients.raw.stats()
    assert backend.nack(lease, delay=100.0, error="boom")
    after = clients.raw.stats()
    done = {name: after[f"cmd-{name}"] - before[f"cmd-{name}"] for name in ("touch", "put", "delete")}  # type: ignore[literal-required]
    assert done == {"touch": 1, "put": 1, "delete": 1}
    copy = clients.raw.peek_delayed()
    assert clients.raw.stats_job(copy)["ttr"] == 77
    record, body = from_bytes(copy.body, 0)
    assert (record.id, record.attempts, record.deliveries, record.last_error) == (lease.id, 1, 1, "boom")
    assert body == lease.body


def test_a_copy_is_taken_back_when_the_lease_ends_before_the_original_is_deleted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with Clients(turned=True) as clients:
        backend = clients.open(ttr=10)
        backend.enqueue(a_job())
        lease = one(backend)
        settler = backend._settler
        put = settler._put

        def put_slowly(call: Call, held_jobs: Sequence[Held]) -> dict[Held, list[int]]:
            copies = put(call, held_jobs)
            assert clients.counts() == (1, 0, 1, 0), "both are there"
            clients.advance(10.0)
            return copies

        monkeypatch.setattr(settler, "_put", put_slowly)
        assert not backend.nack(lease, error="boom")
        again = one(clients.open())
        assert (again.id, again.attempts, again.crashes) == (lease.id, 0, 1)


# --- drain mode ------------------------------------------------------------------------------------------------


@pytest.fixture
def drained(tmp_path: Path) -> Iterator[Clients]:
    """Nine messages, of which one lost a lease, on a server that takes no more."""
    server = BeanstalkServer(tmp_path)
    with Clients(server) as clients:
        clients.open().enqueue_many([a_job(n) for n in range(9)])
        with server.client(clients.prefix + QUEUE) as client:
            client.reserve(timeout=0)
        server.drain()
        yield clients
    server.close()


def test_in_drain_mode_what_needs_no_copy_is_done_and_the_rest_is_told(drained: Clients) -> None:
    backend = drained.open()
    with pytest.raises(BackendUnavailable, match=r"drain mode.*Restart it, or name another server"):
        backend.enqueue(a_job())
    leases = backend.fetch_many(QUEUE, limit=4)
    verbs: list[Settlement] = [Ack(), Nack(), Ack(), Abandon("failed")]
    call = list(zip(leases, verbs, strict=True))
    for answer in (Settled.OK, Settled.ALREADY):
        with pytest.raises(WriteRefused, match="drain mode") as refused:
            backend.settle_many(call, call_id="call")
        assert refused.value.answers == [answer, None, answer, None]
    call = [call[0], (leases[1], Ack()), call[2], (leases[3], Ack())]
    answers = backend.settle_many(call, call_id="call")
    assert answers == [Settled.ALREADY, Settled.OK, Settled.ALREADY, Settled.OK]


def test_in_drain_mode_a_message_that_crashed_is_handed_out_with_its_crash(drained: Clients) -> None:
    backend = drained.open()
    found = backend.fetch_many(QUEUE, limit=9)
    assert sorted(lease.crashes for lease in found) == [0] * 8 + [1]
    assert all(backend.settle_many([(lease, Ack()) for lease in found]))
    assert backend.reap(QUEUE, AT_ONCE) == [], "it was not charged for good"


def test_a_job_that_a_full_binlog_hides_at_its_release_is_told(
    clients: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    """beanstalkd 1.12 has taken it from its connection before it looks for room for the delay."""
    backend = clients.open()
    backend.enqueue(a_job())
    [lease] = backend.fetch_many(QUEUE, limit=1)

    def refuse(_: Connections, held_jobs: Sequence[Held], *_more: object, **_named: object) -> Answers:
        return dict.fromkeys(held_jobs, greenstalk.OutOfMemoryError())

    monkeypatch.setattr(Connections, "send_each", refuse)
    with pytest.raises(WriteRefused, match=r"make room, then restart it, for until then it hides"):
        backend.release(lease, 60.0)


# --- sizes -----------------------------------------------------------------------------------------------------


def test_a_body_that_is_too_large_is_refused_before_anything_is_put(small: BeanstalkServer) -> None:
    with Clients(small) as clients:
        backend = clients.open()
        with pytest.raises(
            InvalidJob, match=rf"takes {LIMIT - 2 - HEADER_ROOM} at most: make its payload smaller, or .* -z"
        ):
            backend.enqueue_many([a_job(1), a_job("x" * LIMIT)])
        assert clients.counts() == (0, 0, 0, 0)


def test_a_server_that_was_started_again_with_room_is_asked_again(tmp_path: Path) -> None:
    with BeanstalkServer(tmp_path, max_job_size=LIMIT) as server, Clients(server) as clients:
        backend = clients.open()
        with pytest.raises(InvalidJob, match="at most"):
            backend.enqueue(a_job("x" * LIMIT))
        server.max_job_size = 2 * LIMIT
        server.restart()
        assert backend.enqueue(a_job("x" * LIMIT))


def test_follow_ups_that_are_too_large_are_refused_before_anything_is_settled(small: BeanstalkServer) -> None:
    with Clients(small) as clients:
        backend = clients.open()
        backend.enqueue_many([a_job(1), a_job(2)])
        first, second = backend.fetch_many(QUEUE, limit=2)
        with pytest.raises(InvalidJob, match="at most"):
            backend.settle_many([(first, Ack()), (second, Ack((a_job("x" * LIMIT),)))])
        assert clients.counts() == (0, 0, 2, 0)
        assert backend.ack(first)


# --- what other programs put -------------------------------------------------------------------------------------


@pytest.mark.parametrize("body", [b"", b"hello", b'{"jobpool":9,"id":"x"}\n{}', b"\x00" * 1000])
def test_what_has_no_header_is_a_message_without_an_envelope_and_dies_like_any_other(
    clients: Clients, body: bytes
) -> None:
    number = clients.raw.put(body, ttr=30)
    backend = clients.open()
    lease = one(backend)
    assert (lease.id, lease.body, lease.attempts, lease.crashes) == (f"beanstalkd-{number}", body, 0, 0)
    assert lease.enqueued_at == pytest.approx(clients.open().clock.wall(), abs=60.0)
    assert backend.abandon(lease, "rejected")
    [dead] = backend.list_messages()
    assert (dead.id, dead.body, dead.reason) == (lease.id, body, "rejected")


def test_one_that_fills_the_server_to_the_brim_is_buried_as_it_is(small: BeanstalkServer) -> None:
    with Clients(small) as clients:
        number = clients.raw.put(b"x" * LIMIT, ttr=30)
        backend = clients.open()
        with pytest.raises(InvalidJob, match="as big as this"):
            backend.nack(one(backend))
        backend.close()
        backend = clients.open()
        lease = one(backend)
        assert lease.crashes == 1
        assert backend.abandon(lease, "rejected")
        assert clients.raw.peek_buried().id == number
        assert clients.counts() == (0, 0, 0, 1)


def test_one_that_would_fill_it_with_a_header_gets_none(small: BeanstalkServer) -> None:
    with Clients(small) as clients:
        backend = clients.open()
        clients.raw.put(b"x")
        assert backend.nack(one(backend))
        header = len(clients.raw.peek_ready().body)
        assert backend.ack(one(backend))
        for room, settles in product(range(header - 4, header + 90), (True, False)):
            clients.raw.put(b"x" * (LIMIT - room), ttr=30)
            client = clients.open()
            lease = one(client)
            with suppress(InvalidJob):
                assert not settles or client.nack(lease)
            client.close()
            client = clients.open()
            client.reap(QUEUE, AT_ONCE)  # sets the policy of fetches, which charge a crash by a copy
            lease = one(client)
            assert isinstance(lease.token, int)
            assert len(clients.raw.peek(lease.token).body) <= LIMIT - 2
            assert client.ack(lease)
            client.close()


def test_a_rejected_one_without_room_for_a_header_is_told_with_its_reason_where_that_is_certain(tmp_path: Path) -> None:
    with BeanstalkServer(tmp_path) as server, Clients(server) as clients:
        backend = clients.open()
        for size, reason, error in [
            (server.max_job_size, "rejected", "the body has 1114112 bytes; at most 1048576"),
            (MAX_BODY_BYTES, "buried", None),
        ]:
            number = clients.raw.put(b"x" * size, ttr=30)
            clients.raw.bury(clients.raw.reserve_job(number))
            [dead] = backend.list_messages()
            assert (dead.reason, dead.last_error) == (reason, error)
            clients.raw.delete(number)
