"""Calls that break in the middle: what is known to be done is told, and is not done again."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from io import BufferedReader

import pytest
from beanstalk_clients import Clients
from hypothesis import given
from hypothesis import strategies as st
from support.jobs import QUEUE, a_job
from support.waiting import wait_until

from jobpool.broker.values import MessageFilter, ReapPolicy
from jobpool.errors import BackendUnavailable
from jobpool.message.lease import JobLease
from jobpool.message.settlement import Abandon, Ack, Forfeit, Nack, Release, Settled, Settlement
from jobpool_backends.beanstalk import BeanstalkBackend, connection
from jobpool_backends.beanstalk.connection import BYTES_PER_WRITE, COMMANDS_PER_WRITE, Answer, pieces, read_answer
from jobpool_backends.beanstalk.records import Record, from_bytes
from jobpool_torture.network import Proxy


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
    with pytest.raises(
        BackendUnavailable, match=r"closed the connection.*; of the last 5 jobs 3 are enqueued for certain"
    ):
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


JOBS = 120
ENDLESS = ReapPolicy(max_crashes=0, back_off=0.0)


class Worker:
    """Fetches, settles this way or that, and keeps count of what was settled for good.

    Attributes:
        ended: How often each message was acked or abandoned.
        refused: Leases whose settlement was refused.
        lost: Leases that the backend told as lost.
    """

    def __init__(self, backend: BeanstalkBackend, over: threading.Event, seed: int) -> None:
        self._backend = backend
        self._over = over
        self._random = random.Random(seed)
        self.ended: Counter[str] = Counter()
        self.refused: list[JobLease] = []
        self.lost: set[str] = set()

    def work(self) -> None:
        self._backend.reap(QUEUE, ENDLESS)
        while not self._over.is_set():
            try:
                if self._backend.wait_any([QUEUE], 0.05):
                    self._settle(self._backend.fetch_many(QUEUE, limit=7))
            except BackendUnavailable:
                pass  # as a pool does: it comes round again
            self._tell_lost()
        self._tell_lost()

    def _settle(self, leases: list[JobLease]) -> None:
        choices: tuple[Settlement, ...] = (Ack(), Ack(), Nack(), Release(), Forfeit("x"), Abandon("failed"))
        work: list[tuple[JobLease, Settlement]] = [(lease, self._random.choice(choices)) for lease in leases]
        answers = self._insist(work)
        for (lease, settlement), answer in zip(work, answers, strict=True):
            if not answer:
                self.refused.append(lease)
            elif isinstance(settlement, Ack | Abandon):
                self.ended[lease.id] += 1

    def _insist(self, work: list[tuple[JobLease, Settlement]]) -> list[Settled]:
        """As a pool does: again under the same id, until there is an answer."""
        call_id = f"{self._random.random()}"
        while True:
            try:
                return self._backend.settle_many(work, call_id)
            except BackendUnavailable:
                self._tell_lost()

    def _tell_lost(self) -> None:
        self.lost |= {lease.owner_token for lease in self._backend.lost()}


def test_nothing_is_lost_whatever_breaks() -> None:
    over = threading.Event()
    with Clients() as clients, Proxy(clients.server.host, clients.server.port) as proxy:
        idents = set(clients.open().enqueue_many([a_job(n) for n in range(JOBS)]))
        url = f"beanstalk://{proxy.host}:{proxy.port}"
        workers = [Worker(clients.open(url, timeout=1), over, seed) for seed in range(3)]
        with ThreadPoolExecutor(3) as executor:
            running = [executor.submit(worker.work) for worker in workers]
            try:
                begun = time.monotonic()
                while (spent := time.monotonic() - begun) < 0.4 or (spent < 10.0 and not any(w.lost for w in workers)):
                    proxy.cut()
                    time.sleep(random.uniform(0.01, 0.06))  # a slow machine needs some time to lease anything
                wait_until(lambda: clients.counts()[0] == clients.counts()[2] == 0, 10.0, "an empty queue")
            finally:
                over.set()
            for each in running:
                each.result(10.0)
        known = set().union(*(worker.ended for worker in workers))
        dead = {message.id for message in clients.open().list_messages(MessageFilter(queue=QUEUE), limit=1000)}
        unknown = {lease.id for worker in workers for lease in worker.refused}
        assert idents == known | dead | unknown, "every message was settled, or may have been"
        assert sum(len(worker.lost) for worker in workers) > 0
        told = {lease.owner_token for worker in workers for lease in worker.refused}
        assert told <= set().union(*(worker.lost for worker in workers)), (
            "refusals are of leases that were told as lost"
        )
        assert all(record.is_dead for record in delayed(clients)), "dead letters that nobody came to bury"


def delayed(clients: Clients) -> list[Record]:
    """The headers of the delayed jobs; they are gone then."""
    found = []
    while clients.counts()[1]:
        job = clients.raw.peek_delayed()
        found.append(from_bytes(job.body, job.id)[0])
        clients.raw.delete(job)
    return found
