"""Connections that break all the time, under load: nothing is lost, nothing is left over, every lost lease is told."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

from beanstalk_clients import QUEUE, Clients, a_job
from support.waiting import wait_until

from jobpool.broker.values import MessageFilter, ReapPolicy
from jobpool.errors import BackendUnavailable
from jobpool.message.lease import JobLease
from jobpool.message.settlement import Abandon, Ack, Forfeit, Nack, Release, Settled, Settlement
from jobpool_backends.beanstalk import BeanstalkBackend
from jobpool_backends.beanstalk.records import Record, from_bytes
from jobpool_torture.network import Proxy

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
                until = time.monotonic() + 0.4
                while time.monotonic() < until:
                    proxy.cut()
                    time.sleep(0.03)
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
