"""Calls that break in the middle: what is known to be done is told, and is not done again."""

from __future__ import annotations

from collections import Counter
from io import BufferedReader

import pytest
from beanstalk_clients import QUEUE, Clients, a_job
from hypothesis import given
from hypothesis import strategies as st

from jobpool.errors import BackendUnavailable
from jobpool.message.settlement import Abandon, Ack, Nack, Settled
from jobpool_backends.beanstalk import connection
from jobpool_backends.beanstalk.connection import BYTES_PER_WRITE, COMMANDS_PER_WRITE, Answer, pieces, read_answer
from jobpool_backends.beanstalk.records import from_bytes


def lose_answers_after(puts: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection breaks, once, when the answers to so many puts have come: the server has done what follows."""
    left = puts

    def read(reader: BufferedReader) -> Answer:
        nonlocal left
        if left == 0:
            left -= 1
            raise ConnectionResetError
        answer = read_answer(reader)
        left -= isinstance(answer, tuple) and answer[0] == b"INSERTED"
        return answer

    monkeypatch.setattr(connection, "read_answer", read)


def test_a_half_sent_enqueue_many_says_how_many_jobs_are_there(
    clients: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = clients.open()
    lose_answers_after(3, monkeypatch)
    with pytest.raises(BackendUnavailable, match=r"closed the connection.*; of 5 jobs 3 are enqueued for certain"):
        backend.enqueue_many([a_job(n) for n in range(5)])
    assert clients.counts()[0] >= 3


def test_a_settlement_whose_copy_is_there_for_certain_is_not_repeated(
    clients: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = clients.open()
    idents = backend.enqueue_many([a_job(n) for n in range(5)])
    call = [
        (lease, Abandon("failed") if n == 1 else Nack()) for n, lease in enumerate(backend.fetch_many(QUEUE, limit=5))
    ]
    lose_answers_after(3, monkeypatch)
    with pytest.raises(BackendUnavailable, match="closed the connection"):
        backend.settle_many(call, "call")
    assert backend.settle_many(call, "call") == [Settled.ALREADY] * 3 + [Settled.OK] * 2
    found: Counter[str] = Counter()
    for ready in (True, False):
        while clients.counts()[0 if ready else 1]:
            job = clients.raw.peek_ready() if ready else clients.raw.peek_delayed()
            found[from_bytes(job.body, 0)[0].id] += 1
            clients.raw.delete(job)
    assert [found[ident] for ident in idents[:3]] == [1, 1, 1]
    assert set(found) == set(idents)


def test_an_ack_whose_follow_ups_are_there_and_whose_delete_is_not_answered_is_not_known(
    clients: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lease went with the connection: had the delete not been done, the message would run again."""
    backend = clients.open()
    backend.enqueue(a_job(1))
    [lease] = backend.fetch_many(QUEUE, limit=1)
    ack = [(lease, Ack(follow_ups=(a_job(2),)))]
    lose_answers_after(1, monkeypatch)
    with pytest.raises(BackendUnavailable, match="closed the connection"):
        backend.settle_many(ack, "call")
    assert backend.settle_many(ack, "call") == [Settled.NOT_IN_FLIGHT]
    assert clients.counts()[0] == 1
    assert from_bytes(clients.raw.peek_ready().body, 0)[0].id != lease.id


@given(
    st.lists(st.sampled_from([1, 20, 400_000, BYTES_PER_WRITE, 2 * BYTES_PER_WRITE]), max_size=12),
    st.integers(0, 2 * COMMANDS_PER_WRITE),
)
def test_writes_are_cut_by_number_and_by_size(sizes: list[int], small: int) -> None:
    commands = [b"x" * size for size in sizes] + [b"y"] * small
    cut = list(pieces(commands))
    assert [command for piece in cut for command in piece] == commands
    assert all(len(piece) <= COMMANDS_PER_WRITE for piece in cut)
    assert all(len(piece) == 1 or sum(map(len, piece)) <= BYTES_PER_WRITE for piece in cut)
